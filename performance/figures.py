#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints bench results (JSON of mimeo-bench and bench-internals) for people.

    figures.py table DEVICE FILE...  one table of figure, floor, ratio and target. A FILE is named
                                     BENCH-MODEL.json; "null" in it: it was not measured. Exits 1
                                     if a bench was not measured; a target missed is no failure
    figures.py update                writes mimeo-performance(7), the charts and the figures in
                                     README.md, from results/
    figures.py check                 compares these with results/; speaks TAP

results/ has the last measured figures, as `tests/gpu.sh bench` left them in its KEEP folder;
peers.json what other programs reached on the same device.
"""
import json
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import charts  # pylint: disable=wrong-import-position

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
CHART = HERE / "processes.svg"
README = HERE.parent / "README.md"
PAGE = HERE.parent / "man" / "mimeo-performance.7.scd"

# Targets on one H200. Decode step in ms, context 1024: {model: {batch: ms}}.
DECODE_MS = {
    "1B": {1: 0.66, 8: 0.73, 32: 0.95, 64: 1.25, 128: 1.85, 256: 3.0},
    "8B": {1: 3.70, 8: 3.95, 32: 4.90, 64: 6.1, 128: 8.3},
}
# N processes, one sequence each, 1B, context 1024: tokens/s together.
SHARE_TOKENS = {1: 1500, 2: 2900, 4: 5500, 8: 10500, 16: 18500, 32: 33000}
DECODE_CONTEXT = 1024

FIGURES = ("between_median_s", "median_s", "step_median_s", "seconds", "token_median_s",
           "gap_mean_s", "full_s", "step_mean_s", "beside_p99_s")
FLOORS = ("floor_median_s", "floor_s", "floor_mean_s", "alone_p99_s")
RATIOS = ("ratio", "ratio_median")
LABELS = ("backend", "op", "part", "mode", "measure", "graph", "matrix", "processes", "batch",
          "query", "rows", "side", "context", "tokens", "draft_tokens")


def first(row, keys):
    return next((row[key] for key in keys if isinstance(row.get(key), (int, float))), None)


def figure_of(row):
    return row["step_mean_s"] if "step_mean_s" in row else first(row, FIGURES)


def digits(value):
    """Three significant ones."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:.0f}"


def seconds(value):
    if value is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e6)} us"


def ratio(value):
    return "-" if value is None else digits(value)


def kernels_of(side):
    return {0: "chosen", 1: "cuBLASLt", 2: "Mimeo"}.get(side, "-")


def count(value):
    return "-" if value is None else f"{value:,.0f}"


def gigabytes(value):
    return "-" if value is None else f"{value / 1e9:.1f} GB"


def plain(value):
    return "-" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def align(rows):
    """Lines of a table: text to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def read_rows(path):
    """Rows of a file; None: it was not measured."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# ---- the table of one run ----

def met(good):
    return "yes" if good else "no"


def target(bench, row, model):
    """Text of the target, and whether it is met; "-" where there is none."""
    figure = figure_of(row)
    if row.get("target"):
        return row["target"], row.get("met") or "-"
    if bench == "decode" and row.get("context") == DECODE_CONTEXT and figure is not None:
        most = DECODE_MS.get(model, {}).get(row.get("batch"))
        if most:
            return f"<= {most:g} ms", met(figure * 1e3 <= most)
    if bench == "share" and model == "1B" and row.get("tokens_per_s"):
        least = SHARE_TOKENS.get(row.get("processes"))
        if least:
            return f">= {least} tokens/s", met(row["tokens_per_s"] >= least)
    if row.get("target_ratio_median"):
        return f"ratio <= {row['target_ratio_median']:g}", row.get("met") or "-"
    return "-", row.get("met") or "-"


def is_unmeasured(row):
    """Its note says why."""
    return bool(row.get("note")) and figure_of(row) is None and first(row, RATIOS) is None


def figure_text(row):
    if is_unmeasured(row):
        return row["note"]
    text = seconds(figure_of(row))
    if row.get("tokens_per_s"):
        text += f", {row['tokens_per_s']:.4g} tokens/s"
    if row.get("first_median_s"):
        text += f", first token {seconds(row['first_median_s'])} (P99 {seconds(row['first_p99_s'])})"
    if row.get("perplexity"):
        text += f", perplexity {row['perplexity']:.6g}, {row['bits_per_byte']:.4g} bits a byte"
    if row.get("tokens_ratio"):
        text += f", tokens 1:{digits(row['tokens_ratio'])}"
    if row.get("against_none"):
        text += f", {row['against_none']:.3g} of that without"
    if row.get("break_s") is not None:
        text += (f", in pieces {seconds(row['piecewise_s'])}, eager {seconds(row['none_s'])},"
                 f" a break {row['break_s'] * 1e6:.3g} us")
    if row.get("break_even") is not None:
        text += (f", draft {seconds(row.get('draft_mean_s'))},"
                 f" breaks even at {row['break_even']:.3g} a verification")
    return text


def label(name, row):
    parts = [name]
    for key in LABELS:
        if key in ("mode", "rows", "tokens") and row.get("graph"):
            continue  # its name says it
        value = row.get(key)
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, (int, float)):
            parts.append(f"{key} {value:g}")
    return " ".join(parts)


def table_rows(path):
    name = pathlib.Path(path).stem
    rows = read_rows(path)
    bench, _, model = name.partition("-")
    if rows is None:
        return [(name, "not measured", "-", "-", "-", "-")]
    if bench == "capture":
        rows = rows[-1:]  # all graphs together: the table is to be short
    return [(label(name, row), figure_text(row), seconds(first(row, FLOORS)),
             ratio(first(row, RATIOS)), *target(bench, row, model)) for row in rows]


def table(device, paths):
    rows = [("bench", "figure", "floor", "ratio", "target", "met")]
    for path in paths:
        rows += table_rows(path) if os.path.exists(path) else [(path, "not measured", *"----")]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    print(f"\non {device}")
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    return 0 if paths and not any(row[1] == "not measured" for row in rows) else 1


# ---- the manual page ----

# bench, heading, what is measured and its floor, [(title, key, format)]
STEP = [("model", "model", plain), ("rows", "batch", plain), ("context", "context", plain),
        ("floor", "floor_median_s", seconds), ("step", "step_median_s", seconds),
        ("ratio", "ratio", ratio), ("tokens/s", "tokens_per_s", count)]
SHARED = [("model", "model", plain), ("processes", "processes", plain),
          ("floor, tokens/s", "floor_tokens_per_s", count),
          ("tokens/s", "tokens_per_s", count), ("device memory", "device_used_bytes", gigabytes)]
SECTIONS = [
    ("decode", "DECODE", "One decode step, without a daemon. Floor: each weight and each row's keys "
     "and values read once at the bandwidth of a device copy.", STEP),
    ("growth_rows", "GROWTH WITH ROWS", "As DECODE. The chart is performance/rows.svg in the source tree.", STEP),
    ("growth_contexts", "GROWTH WITH CONTEXT", "As DECODE. The chart is performance/contexts.svg in the source "
     "tree.", STEP),
    ("shapes", "OTHER SHAPES", "As DECODE, of other models' shapes.", STEP),
    ("deterministic", "DETERMINISTIC RESULTS", "One decode step of a deterministic model (*deterministic* in "
     "*mimeod.conf*(5)); DECODE has the default.",
     [("model", "model", plain), ("rows", "batch", plain), ("context", "context", plain),
      ("floor", "floor_median_s", seconds), ("step", "step_median_s", seconds), ("ratio", "ratio", ratio)]),
    ("share", "PROCESSES THAT SHARE A DAEMON", "N processes with one sequence each. Floor: one process that "
     "replays the same graph for as many rows, without rings.", SHARED),
    ("growth_processes", "GROWTH WITH PROCESSES", "As PROCESSES THAT SHARE A DAEMON. The chart is "
     "performance/share.svg in the source tree.", SHARED),
    ("load", "MIXED LOAD", "N processes with several requests in flight each, of random lengths.",
     [("model", "model", plain), ("processes", "processes", plain), ("in flight", "in_flight", plain),
      ("tokens/s", "tokens_per_s", count),
      ("first token", "first_median_s", seconds), ("p99", "first_p99_s", seconds),
      ("between tokens", "between_median_s", seconds), ("p99", "between_p99_s", seconds)]),
    ("prefix", "COMMON PREFIX", "N processes whose prompts begin with the same tokens, which the prefix cache has.",
     [("model", "model", plain), ("processes", "processes", plain), ("common tokens", "prefix", plain),
      ("prompt tokens", "prompt_tokens", count), ("from the cache", "cached_tokens", count),
      ("first token", "first_median_s", seconds), ("p99", "first_p99_s", seconds)]),
    ("fair", "FAIR SHARE OF TWO USERS", "Two users with the weights 1 and 3. The user of weight 1 sends many long "
     "prompts. The first columns count the tokens that the daemon computed for each user while both had requests "
     "waiting. The last columns are the time between two tokens of the user of weight 3, who has one request in flight "
     "in each process: without and with the other user.",
     [("model", "model", plain), ("processes of each", "processes", plain),
      ("weight 1, tokens/s", "light_tokens_per_s", count), ("weight 3, tokens/s", "heavy_tokens_per_s", count),
      ("3:1", "tokens_ratio", ratio), ("p99 alone", "alone_p99_s", seconds), ("p99 beside", "beside_p99_s", seconds),
      ("ratio", "ratio", ratio)]),
    ("speculation", "SPECULATION", "The same load with 0 and with 4 draft tokens. Break-even: the step time divided "
     "by that without a draft model, which is how many tokens a verification must yield to pay. The 1B draft model "
     "has random weights, so its tokens are rejected.",
     [("model", "model", plain), ("clients", "processes", plain), ("draft", "draft_tokens", plain),
      ("step", "step_mean_s", seconds), ("draft part", "draft_mean_s", seconds),
      ("break-even", "break_even", ratio), ("tokens/s", "tokens_per_s", count)]),
    ("acceptance", "ACCEPTANCE", "Tokens per verification with 4 draft tokens, and how often the draft token of each "
     "position was accepted, by prompt; both models of tinycalc were trained for the first one.",
     [("prompt", "text", plain), ("per verification", "tokens_per_verification", ratio),
      ("acceptance", "acceptance", plain)]),
    ("perplexity", "ACCURACY", "Perplexity of trained models on the shipped text. The text is split into windows of "
     "CONTEXT tokens; the first token of a window does not count. The cpu device computes in float32; devices that "
     "compute in bf16 give slightly different figures. tests/data/quantise.py made the quantised models: it rounds each "
     "weight to the nearest number, without calibration, and leaves the head in bf16. In models named 64, 64 columns "
     "share a factor.",
     [("model", "model", plain), ("context", "context", plain), ("tokens", "tokens", count),
      ("perplexity", "perplexity", "{:.6g}".format), ("bits per byte", "bits_per_byte", "{:.4g}".format)]),
    ("modes", "GRAPH MODES", "The same decode step as one graph (full) and as graph segments with attention "
     "called between them (piecewise). Per call: added time of each attention call between segments.",
     [("rows", "batch", plain), ("full", "full_s", seconds), ("piecewise", "piecewise_s", seconds),
      ("without a graph", "none_s", seconds), ("per call", "break_s", seconds)]),
    ("whole", "DECODE IN ONE KERNEL", "The same decode step as a graph of nodes and in one kernel; a daemon takes what "
     "was faster when kernels/cuda/step.cu was written.",
     [("model", "model", plain), ("rows", "batch", plain), ("context", "context", plain), ("floor", "floor_s", seconds),
      ("nodes", "nodes_s", seconds), ("one kernel", "kernel_s", seconds), ("ratio", "ratio", ratio)]),
    ("capture", "CAPTURE", "The graphs of a ladder. Floor: the driver's own time for as many nodes and segments.",
     [("graphs", "graphs", plain), ("graph", "graph", plain), ("floor", "floor_s", seconds),
      ("time", "seconds", seconds), ("memory", "bytes", gigabytes)]),
    ("ring", "RINGS", "The round trip of a null request.",
     [("measure", "measure", plain), ("floor", "floor_median_s", seconds), ("median", "median_s", seconds),
      ("p99", "p99_s", seconds), ("ratio", "ratio", ratio)]),
    ("attach", "ATTACH", "Connect, handshake and first token of one more process.",
     [("measure", "measure", plain), ("floor", "floor_median_s", seconds), ("median", "median_s", seconds),
      ("p99", "p99_s", seconds)]),
    ("gap", "GAP", "Idle time of the lane between two decode steps.",
     [("processes", "processes", plain), ("floor", "floor_mean_s", seconds), ("gap", "gap_mean_s", seconds)]),
    ("attention", "ATTENTION", "Kernels alone. Floor: bytes at the bandwidth of a device copy, or operations at "
     "the rate of a large product, whichever takes longer.",
     [("backend", "backend", plain), ("rows", "batch", plain), ("query", "query", plain),
      ("context", "context", plain), ("floor", "floor_median_s", seconds), ("median", "median_s", seconds),
      ("ratio", "ratio", ratio)]),
    ("gemm", "PRODUCTS", "Products of a few rows by a matrix of the model. Floor: bytes at the bandwidth of a "
     "device copy; reading alone is faster, so a ratio may be below 1. Kernels: Mimeo's, cuBLASLt's, or those that "
     "were faster in a trial (chosen).",
     [("matrix", "matrix", plain), ("kernels", "side", kernels_of), ("rows", "rows", plain),
      ("floor", "floor_median_s", seconds),
      ("median", "median_s", seconds), ("ratio", "ratio", ratio)]),
    ("experts", "EXPERTS", "One layer of experts. Floor: the larger of its bytes at copy bandwidth and its "
     "operations at the rate of a large product. Route, group and combine move few bytes, so their ratio says little.",
     [("op", "op", plain), ("tokens", "tokens", plain), ("floor", "floor_median_s", seconds),
      ("median", "median_s", seconds), ("ratio", "ratio", ratio)]),
]

HEAD = """mimeo-performance(7)

# NAME

mimeo-performance - measured figures of Mimeo

# DESCRIPTION

This page is generated from the JSON results of *mimeo-bench*(1) and of the developers' benches
(_performance/results_ in the source tree). The models 1B, 3B, 8B and V2-Lite have the shapes of Llama-3.2-1B,
Llama-3.2-3B, Llama-3.1-8B and DeepSeek-V2-Lite; the others have the shape that they are named after. All but the
shipped _tinycalc_ have random bf16 weights, unless a section says otherwise. The device of a table is named below it;
figures of different devices cannot be compared. To measure another device:

```
mimeo-bench --shape 1B decode
mimeo-bench --shape 1B share
mimeo-bench --shape 1B --plot load.svg load
```
"""


def results_of(bench):
    rows = []
    for path in sorted(RESULTS.glob(f"{bench}-*.json"), key=lambda path: path.stem):
        for row in read_rows(path) or []:
            model = row.get("model") or path.stem.partition("-")[2]
            rows.append(dict(row, model=pathlib.PurePath(model).name))
    return rows


def source_of(rows):
    """Device, date and commit, with the models where there are several devices."""
    runs = {}
    for row in rows:
        runs.setdefault((row["date"][:10], row["commit"], row["device"]), {})[row["model"]] = None
    several = len({device for _, _, device in runs}) > 1
    in_order = sorted(runs.items(), key=lambda run: list(run[1]) if several else run[0])
    return "; ".join((", ".join(models) + ": " if several else "") + f"{device}, {date}, commit {commit}"
                     for (date, commit, device), models in in_order)


def unmeasured_text(rows, columns):
    """Which rows the table leaves out, and why."""
    reasons = {}
    for row in rows:
        parts = [form(row[key]) if key == "model" else f"{title} {form(row[key])}"
                 for title, key, form in columns if form is plain]
        reasons.setdefault(row["note"], []).append(", ".join(parts))
    return "".join(f"\nNot measured ({note}): {'; '.join(names)}.\n" for note, names in reasons.items())


def literal(lines):
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def section(bench, heading, text, columns):
    all_rows = results_of(bench)
    if not all_rows:
        return ""
    unmeasured = [row for row in all_rows if is_unmeasured(row)]
    rows = [row for row in all_rows if not is_unmeasured(row)]
    left_out = unmeasured_text(unmeasured, columns)
    columns = [c for c in columns if any(row.get(c[1]) is not None for row in rows)]
    cells = [[title for title, _, _ in columns]]
    cells += [[form(row.get(key)) for _, key, form in columns] for row in rows]
    measured = literal(align(cells)) if rows else ""
    return (f"\n# {heading}\n\n{text}\n{measured}{left_out}\n{source_of(rows or unmeasured)}.\n"
            .replace("_", "\\_"))


def peers_section(peers):
    numbers = sorted({int(n) for s in peers["series"] for n in s["tokens_per_s"]})
    cells = [["tokens/s, N =", *map(str, numbers)]]
    for series in peers["series"] + own_series():
        cells.append([series["name"], *(count(series["tokens_per_s"].get(str(n))) for n in numbers)])
    return f"\n# OTHER WAYS TO SHARE A DEVICE\n\n{peers['load']}, on one {peers['device']}.\n{literal(align(cells))}"


def page():
    text = HEAD + peers_section(read_rows(HERE / "peers.json"))
    text += "".join(section(*s) for s in SECTIONS)
    return text + "\n# EXAMPLES\n\nThe same for the rings of this machine:\n\n```\nmimeo-bench ring\n```\n" \
        "\n# SEE ALSO\n\n*mimeo*(7), *mimeo-bench*(1)\n"


# ---- charts of growth ----

def rows_name(row):
    return "1 row" if row["batch"] == 1 else f"{row['batch']} rows"


def measured_name(row):
    return "measured"


# bench: its file, title, key and label of the x axis, keys of figure and floor, their factor and unit, a line's name,
# whether the y axis is logarithmic
GROWTH = {
    "growth_rows": ("rows.svg", "Time of a decode step, 1024 tokens of context", "batch", "rows",
                    "step_median_s", "floor_median_s", 1e3, "ms", measured_name, False),
    "growth_contexts": ("contexts.svg", "Time of a decode step", "context", "tokens of context of each row",
                        "step_median_s", "floor_median_s", 1e3, "ms", rows_name, True),
    "growth_processes": ("share.svg", "Tokens per second of N processes with a sequence each, 1024 tokens of context",
                         "processes", "processes", "tokens_per_s", "floor_tokens_per_s", 1, "tokens/s", measured_name,
                         False),
}


def growth_panels(rows, x, y, floor, factor, name_of):
    """One for each model and device, with a line for each name."""
    panels = {}
    for row in rows:
        title = f"{row['model']}, {row['device']}"
        one = panels.setdefault(title, {}).setdefault(name_of(row), {"points": [], "floor": []})
        one["points"].append((row[x], row[y] * factor))
        if row.get(floor) is not None:
            one["floor"].append((row[x], row[floor] * factor))
    return [{"title": title, "lines": [dict(one, name=name) for name, one in lines.items()]}
            for title, lines in panels.items()]


def growth_charts():
    """{file: its text}, of what was measured"""
    made_of = {}
    for bench, (file, title, x, x_label, y, floor, factor, unit, name_of, log) in GROWTH.items():
        rows = [row for row in results_of(bench) if row.get(y) is not None]
        if rows:
            panels = growth_panels(rows, x, y, floor, factor, name_of)
            made_of[HERE / file] = charts.draw(title, x_label, unit, panels, log)
    return made_of


# ---- README's chart and figures ----

def own_series():
    """One, or none if it is not measured."""
    rows = [row for row in results_of("share") if row["model"] == "1B" and row.get("tokens_per_s")]
    if not rows:
        return []
    device = rows[0]["device"]
    return [{
        "name": "mimeod, N processes" + ("" if device == read_rows(HERE / "peers.json")["device"] else f" ({device})"),
        "device": device,
        "tokens_per_s": {str(row["processes"]): row["tokens_per_s"] for row in rows},
        "device_gigabytes": {str(row["processes"]): row["device_used_bytes"] / 1e9 for row in rows},
    }]


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 60, 290, 40, 45
COLOURS = ("#888888", "#b8860b", "#1f6fb4", "#c0392b")


def chart():
    peers = read_rows(HERE / "peers.json")
    series = peers["series"] + own_series()
    numbers = sorted({int(n) for s in series for n in s["tokens_per_s"]})
    most = max(max(s["tokens_per_s"].values()) for s in series)
    step = 5000
    top = -(-most // step) * step

    def x(n):
        return LEFT + numbers.index(int(n)) * (WIDTH - LEFT - RIGHT) / (len(numbers) - 1)

    def y(value):
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
           ' font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="22" font-size="14">Tokens per second of N processes on one'
           f' {peers["device"].removeprefix("NVIDIA ")}, 1B model, 1024 tokens of context</text>']
    for value in range(0, int(top) + 1, step):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
                   ' stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>')
    for n in numbers:
        out.append(f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{n}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">processes</text>')
    for one, colour in zip(series, COLOURS):
        points = [(x(n), y(v)) for n, v in one["tokens_per_s"].items() if int(n) in numbers]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    for i, (one, colour) in enumerate(zip(reversed(series), reversed(COLOURS))):
        at = TOP + 20 + 22 * i
        out.append(f'<rect x="{WIDTH - RIGHT + 20}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 36}" y="{at}">{one["name"]}</text>')
    return "\n".join(out + ["</svg>", ""])


def readme_figures():
    decode = {(r["model"], r["batch"]): r for r in results_of("decode")}
    peers = read_rows(HERE / "peers.json")
    torch = peers["series"][0]
    one, eight = decode.get(("1B", 1)), decode.get(("8B", 8))
    lines = []
    for own in own_series():
        elsewhere = "" if own["device"] == peers["device"] else f" on one {peers['device']}"
        lines.append(f"- 8 processes with one sequence each on one {own['device']}:"
                     f" **{count(own['tokens_per_s']['8'])} tokens/s** in {own['device_gigabytes']['8']:.1f} GB of"
                     f" device memory; 8 torch processes with a CUDA graph each{elsewhere}:"
                     f" {count(torch['tokens_per_s']['8'])} tokens/s in {torch['device_gigabytes']['8']:.1f} GB.")
    if one:
        lines.append(f"- A decode step of the 1B model at one row on one {one['device']}:"
                     f" **{seconds(one['step_median_s'])}**, where reading weights, keys and values once takes"
                     f" {seconds(one['floor_median_s'])} (the bandwidth floor).")
    if eight:
        lines.append(f"- A decode step of the 8B model at 8 rows on one {eight['device']}:"
                     f" **{seconds(eight['step_median_s'])}**, bandwidth floor {seconds(eight['floor_median_s'])}.")
    return "\n".join(lines)


BLOCK = re.compile(r"(<!-- figures: performance/figures.py update -->\n).*?(\n<!-- end -->)", re.S)


def readme():
    text = README.read_text(encoding="utf-8")
    assert BLOCK.search(text), "README.md has no block of figures"
    return BLOCK.sub(lambda match: match[1] + readme_figures() + match[2], text)


def made():
    """{file: its text, made from results/}"""
    return {PAGE: page(), CHART: chart(), README: readme(), **growth_charts()}


def check():
    good = True
    files = made()
    print(f"1..{len(files)}")
    for i, (path, text) in enumerate(files.items(), 1):
        same = path.exists() and path.read_text(encoding="utf-8") == text
        good = good and same
        print("ok" if same else "not ok", i, f"- {path.name} has the figures of performance/results")
    if not good:
        print("# run performance/figures.py update")
    return 0 if good else 1


def main(arguments):
    command = arguments[0] if arguments else ""
    if command == "table" and len(arguments) > 1:
        return table(arguments[1], arguments[2:])
    if command == "check":
        return check()
    if command != "update":
        print(__doc__, file=sys.stderr)
        return 2
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
