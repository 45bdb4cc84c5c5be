#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints mimeo-bench's JSON as one table: figure, floor, ratio, target.

    gpu_bench.py DEVICE FILE...      FILE is BENCH-MODEL.json, and BENCH-MODEL.bytes is the model's
                                     size; "null" in the former: it was not measured

A row that names its target keeps it; targets of figures on one H200 are here.
Exits 1 if a bench was not measured. A target missed is printed as missed and is no failure.
"""
import json
import os
import sys

# Models by the bytes of their weights in bf16.
SHAPES = {"1B": (2.0e9, 3.2e9), "8B": (14e9, 18e9)}
# Decode step, context 1024: batch -> milliseconds.
DECODE_MS = {
    "1B": {1: 0.80, 8: 0.90, 32: 1.15, 128: 2.1},
    "8B": {1: 4.1, 8: 4.4, 32: 5.3},
}
# N processes, one sequence each, the 1B shape, context 1024: tokens/s together.
SHARE_TOKENS = {1: 1200, 2: 2300, 4: 4400, 8: 8500, 16: 15000}
DECODE_CONTEXT = 1024

FIGURES = ("between_median_s", "median_s", "step_median_s", "seconds", "token_median_s", "gap_mean_s", "full_s", "step_mean_s")
FLOORS = ("floor_median_s", "floor_s", "floor_mean_s")
RATIOS = ("ratio", "ratio_median")
LABELS = ("part", "mode", "measure", "graph", "matrix", "processes", "batch", "query", "rows", "side",
          "context", "draft_tokens")


def first(row, keys):
    return next((row[key] for key in keys if isinstance(row.get(key), (int, float))), None)


def figure_of(row):
    """Of speculation the step: its gaps are a figure beside that."""
    return row["step_mean_s"] if "break_even" in row else first(row, FIGURES)


def seconds(value):
    if value is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return "%.3g %s" % (value * factor, unit)
    return "%.3g us" % (value * 1e6)


def shape_of(path):
    try:
        with open(path[: -len("json")] + "bytes", encoding="utf-8") as file:
            size = int(file.read())
    except (OSError, ValueError):
        return None
    return next((name for name, (low, high) in SHAPES.items() if low <= size <= high), None)


def met(good):
    return "yes" if good else "no"


def target(bench, row, shape):
    """Text of the target, and whether it is met; "-" where there is none."""
    figure = figure_of(row)
    if row.get("target"):
        return row["target"], row.get("met") or "-"
    if bench == "decode" and row.get("context") == DECODE_CONTEXT and figure is not None:
        most = DECODE_MS.get(shape, {}).get(row.get("batch"))
        if most:
            return "<= %g ms" % most, met(figure * 1e3 <= most)
    if bench == "share" and shape == "1B" and row.get("tokens_per_s"):
        least = SHARE_TOKENS.get(row.get("processes"))
        if least:
            return ">= %d tokens/s" % least, met(row["tokens_per_s"] >= least)
    if row.get("target_ratio_median"):
        return "ratio <= %g" % row["target_ratio_median"], row.get("met") or "-"
    return "-", row.get("met") or "-"


def figure_text(row):
    text = seconds(figure_of(row))
    rate = row.get("tokens_per_s")
    text += ", %.4g tokens/s" % rate if rate else ""
    if row.get("first_median_s"):
        text += ", first token %s (P99 %s)" % (seconds(row["first_median_s"]), seconds(row["first_p99_s"]))
    if row.get("against_none"):
        text += ", %.3g of that without" % row["against_none"]
    if row.get("break_s") is not None:
        text += ", in pieces %s, eager %s, a break %.3g us" % (
            seconds(row["piecewise_s"]), seconds(row["none_s"]), row["break_s"] * 1e6)
    if row.get("break_even") is not None:
        text += ", draft %s, breaks even at %.3g a verification" % (
            seconds(row.get("draft_mean_s")), row["break_even"])
    return text


def label(name, row):
    parts = [name]
    for key in LABELS:
        if key in ("mode", "rows") and row.get("graph"):
            continue  # its name says it
        value = row.get(key)
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, (int, float)):
            parts.append("%s %g" % (key, value))
    return " ".join(parts)


def rows_of(path):
    name = os.path.basename(path)[: -len(".json")]
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    bench = name.split("-")[0]
    if rows is None:
        return [(name, "not measured", "-", "-", "-", "-")], False
    if bench == "capture":
        rows = rows[-1:]  # all graphs together: the table is to be short
    return [
        (
            label(name, row),
            figure_text(row),
            seconds(first(row, FLOORS)),
            "-" if first(row, RATIOS) is None else "%.3g" % first(row, RATIOS),
            *target(bench, row, shape_of(path)),
        )
        for row in rows
    ], True


def main(device, paths):
    good, table = bool(paths), [("bench", "figure", "floor", "ratio", "target", "met")]
    for path in paths:
        if not os.path.exists(path):
            good = False
            continue
        rows, measured = rows_of(path)
        table += rows
        good = good and measured
    widths = [max(len(row[i]) for row in table) for i in range(6)]
    print("\non %s" % device)
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    return 0 if good else 1


sys.exit(main(sys.argv[1], sys.argv[2:]))
