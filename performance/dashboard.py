#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draw examples/grafana/mimeo.svg: the panels of mimeo.json beside it, with what a Prometheus answers to their queries.

It is no picture of Grafana. Usage: dashboard.py http://127.0.0.1:9090 SECONDS (of the last so many seconds)."""
import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request

from charts import COLOURS, GRID, linear_ticks, text

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "examples" / "grafana"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, HEAD, POINTS, LINES = 400, 250, 56, 34, 66, 44, 100, 6
RATE = "20s"
UNITS = {"s": ((1, "s"), (1e-3, "ms"), (1e-6, "us")), "percentunit": ((0.01, "%"),), "short": ((1, ""),)}


def ask(url, expression, end, seconds):
    query = {"query": expression, "start": end - seconds, "end": end, "step": max(1, seconds / POINTS)}
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(query)}", timeout=30) as reply:
        return json.load(reply)["data"]["result"]


def series(url, panel, end, seconds):
    """[(name, [(second, value)])] of the panel's targets."""
    found = []
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", RATE).replace("$model", ".*")
        for one in ask(url, expression, end, seconds):
            name = target["legendFormat"]
            for label, value in one["metric"].items():
                name = name.replace("{{%s}}" % label, value)
            points = [(at - end + seconds, float(value)) for at, value in one["values"]]
            found.append((name, [p for p in points if math.isfinite(p[1])]))
    return [one for one in found if one[1]][:LINES]


def draw_panel(panel, lines, left, top, seconds):
    right, bottom = left + WIDTH - 16, top + HEIGHT - BOTTOM
    most = max([value for _, points in lines for _, value in points]) if lines else 0
    most = most or 1  # all are 0
    scale, unit = next((u for u in UNITS[panel["fieldConfig"]["defaults"]["unit"]] if u[0] <= most),
                       UNITS[panel["fieldConfig"]["defaults"]["unit"]][-1])
    ticks = linear_ticks(most / scale)
    out = [text(left + LEFT, top + 18, panel["title"], size=13)]
    for tick in ticks:
        y = bottom - tick / ticks[-1] * (bottom - top - TOP)
        out.append(f'<line x1="{left + LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        out.append(text(left + LEFT - 6, y + 4, f"{tick:,.4g} {unit}".strip(), "end", 10))
    for i, (name, points) in enumerate(lines):
        path = " ".join(f"{left + LEFT + x / seconds * (right - left - LEFT):.1f},"
                        f"{bottom - y / scale / ticks[-1] * (bottom - top - TOP):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.5"/>')
        x, y = left + LEFT + (i % 2) * 170, bottom + 18 + 15 * (i // 2)
        out.append(f'<line x1="{x}" x2="{x + 14}" y1="{y - 4}" y2="{y - 4}" stroke="{COLOURS[i]}" stroke-width="3"/>')
        out.append(text(x + 18, y, name, size=10))
    return out


def draw(dashboard, url, end, seconds):
    panels = dashboard["panels"]
    width, height = 3 * WIDTH, HEAD + HEIGHT * math.ceil(len(panels) / 3)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           text(16, 26, f"The panels of mimeo.json with {seconds} s of a Prometheus, drawn by performance/dashboard.py: "
                        "not a picture of Grafana", size=14)]
    for i, panel in enumerate(panels):
        left, top = WIDTH * (i % 3), HEAD + HEIGHT * (i // 3)
        out += draw_panel(panel, series(url, panel, end, seconds), left, top, seconds)
    return "\n".join(out + ["</svg>", ""])


def main():
    url, seconds = sys.argv[1].rstrip("/"), int(sys.argv[2])
    dashboard = json.loads((FOLDER / "mimeo.json").read_text())
    (FOLDER / "mimeo.svg").write_text(draw(dashboard, url, time.time(), seconds))


if __name__ == "__main__":
    main()
