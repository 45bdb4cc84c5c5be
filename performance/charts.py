# SPDX-License-Identifier: MIT
"""SVG charts of growth: panels side by side, measured lines with points, the floor of each dashed."""
import html
import math

PANEL, LEFT, LEGEND, HEIGHT, TOP, BOTTOM = 320, 60, 150, 360, 64, 48
COLOURS = ("#1f6fb4", "#c0392b", "#2e7d32", "#b8860b", "#6a3d9a", "#00838f", "#ad1457", "#5d4037")
TEXT, GRID, FLOOR = "#222222", "#dddddd", "#777777"


def short(value):
    """131064 is 128k as well: a last step needs positions of its own."""
    return f"{value:g}" if value < 1024 else f"{round(value / 1024)}k"


def is_power_of_2(value):
    return abs(math.log2(value) - round(math.log2(value))) < 0.001


def rounds(least, most):
    """The numbers 1, 2 and 5 times a power of 10 that enclose both."""
    all_of_them = [m * 10.0 ** e for e in range(-6, 9) for m in (1, 2, 5)]
    first = max(v for v in all_of_them if v <= least)
    last = min(v for v in all_of_them if v >= most)
    return [v for v in all_of_them if first <= v <= last]


def log_ticks(least, most):
    """At least two, also around a single number."""
    ticks = rounds(least, most)
    return ticks if len(ticks) > 1 else rounds(least / 2, most * 2)


def linear_ticks(most):
    """From 0, at most 6."""
    step = min(v for v in rounds(most / 10, most) if most / v <= 5)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def text(x, y, content, anchor="start", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{TEXT}">'
            f"{html.escape(content)}</text>")


def line(points, colour, floor):
    style = ' stroke-dasharray="5 4" stroke-width="1.5"' if floor else ' stroke-width="2"'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    out = [f'<polyline points="{path}" fill="none" stroke="{colour}"{style}/>']
    if not floor:
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return out


class Axes:
    """The area of a panel: x in powers of 2, y from 0, or in powers of 10."""

    def __init__(self, panel, left, log):
        points = [p for one in panel["lines"] for p in one["points"] + one["floor"]]
        self.xs = sorted({x for x, _ in points})
        ys = [y for _, y in points]
        self.ticks = log_ticks(min(ys), max(ys)) if log else linear_ticks(max(ys))
        self.log, self.left, self.right = log, left + LEFT, left + PANEL - 10

    def x(self, value):
        first, last = math.log2(self.xs[0]), math.log2(self.xs[-1])
        part = (math.log2(value) - first) / (last - first) if last > first else 0.5
        return self.left + part * (self.right - self.left)

    def y(self, value):
        scale = math.log if self.log else float
        first, last = scale(self.ticks[0]), scale(self.ticks[-1])
        return HEIGHT - BOTTOM - (scale(value) - first) / (last - first) * (HEIGHT - TOP - BOTTOM)

    def place(self, points):
        return [(self.x(x), self.y(y)) for x, y in points]

    def draw(self, title, x_label, y_label):
        out = [text(self.left, TOP - 14, title, size=13), text(self.left - 6, TOP - 14, y_label, "end", 11)]
        for value in self.ticks:
            y = self.y(value)
            out.append(f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
            out.append(text(self.left - 6, y + 4, f"{value:,.10g}", "end", 11))
        for value in filter(is_power_of_2, self.xs):
            out.append(text(self.x(value), HEIGHT - BOTTOM + 16, short(value), "middle", 11))
        return out + [text((self.left + self.right) / 2, HEIGHT - 10, x_label, "middle")]


def legend(names, left):
    """Of the measured lines by colour, the last one on top, and of the floors."""
    out = []
    rows = [(name, colour, False) for name, colour in reversed(list(zip(names, COLOURS)))]
    for i, (name, colour, floor) in enumerate(rows + [("floor", FLOOR, True)]):
        at = TOP + 10 + 22 * i
        out += line([(left, at - 4), (left + 24, at - 4)], colour, floor)
        out.append(text(left + 32, at, name))
    return out


def draw(title, x_label, y_label, panels, log=False):
    """panels: [{"title", "lines": [{"name", "points": [(x, y)], "floor": [(x, y)]}]}]; the legend has the names
    of all, in the order of the first panel that has each."""
    width = PANEL * len(panels) + LEGEND
    names = list(dict.fromkeys(one["name"] for panel in panels for one in panel["lines"]))
    if len(names) > len(COLOURS):
        raise ValueError(f"{title}: {len(names)} names of lines, but {len(COLOURS)} colours")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>', text(LEFT, 24, title, size=14)]
    for i, panel in enumerate(panels):
        axes = Axes(panel, PANEL * i, log)
        out += axes.draw(panel["title"], x_label, y_label)
        for one in panel["lines"]:
            colour = COLOURS[names.index(one["name"])]
            out += line(axes.place(one["floor"]), colour, True) + line(axes.place(one["points"]), colour, False)
    return "\n".join(out + legend(names, PANEL * len(panels)) + ["</svg>", ""])
