#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The charts and the page that performance/figures.py makes of growth, from results made up here. Speaks TAP."""
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import traceback
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
SOURCE = pathlib.Path(os.environ.get("MIMEO_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "performance"))
import figures  # pylint: disable=wrong-import-position

SVG = "{http://www.w3.org/2000/svg}"
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131064)
PROCESSES = (1, 2, 4, 8, 16, 32)
DEVICES = {"1B": "Device A", "8B": "Device <B>"}
NO_SPACE = "there is no space for it"


def row_of(model, **figures_of):
    return {"model": model, "device": DEVICES[model], "date": "2000-01-01T00:00:00Z", "commit": "abc", "note": None,
            **figures_of}


def step(model, batch, context):
    """The floor is half of the step; 32 rows of the longest context do not fit."""
    seconds = (1e-3 if model == "1B" else 4e-3) * (1 + batch * context / 1e5)
    fits = batch * context < 32 * CONTEXTS[-1]
    return row_of(model, batch=batch, context=context, floor_median_s=seconds / 2,
                  step_median_s=seconds if fits else None, ratio=2 if fits else None, note=None if fits else NO_SPACE)


def shared(model, processes):
    return row_of(model, processes=processes, tokens_per_s=900.0 * processes, floor_tokens_per_s=1000.0 * processes,
                  device_used_bytes=4e9)


def results_of(model):
    return {
        "growth_rows": [step(model, rows, 1024) for rows in ROWS],
        "growth_contexts": [step(model, rows, context) for rows in (1, 8, 32) for context in CONTEXTS],
        "growth_processes": [shared(model, n) for n in PROCESSES],
        "share": [shared(model, n) for n in PROCESSES],
        "shapes": [step(model, rows, 1024) for rows in (1, 8)],
    }


def write_results(folder):
    for model in DEVICES:
        for bench, rows in results_of(model).items():
            (folder / f"{bench}-{model}.json").write_text(json.dumps(rows), encoding="utf-8")


def charts():
    return {path.name: xml.fromstring(text) for path, text in figures.growth_charts().items()}


def points_of(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def lines(svg):
    """(measured, floors), without those of the legend, which have a point at either end of 24 units."""
    all_of_them = [line for line in svg.iter(SVG + "polyline")
                   if points_of(line)[-1][0] - points_of(line)[0][0] != 24]
    return ([line for line in all_of_them if not line.get("stroke-dasharray")],
            [line for line in all_of_them if line.get("stroke-dasharray")])


def texts(svg):
    return [text.text for text in svg.iter(SVG + "text")]


def test_nothing_is_drawn_without_results(folder):
    assert not charts()
    (folder / "growth_rows-1B.json").write_text("null", encoding="utf-8")
    assert not charts()


def test_each_chart_has_a_measured_line_and_a_floor_of_each_model(folder):
    write_results(folder)
    drawn = charts()
    assert sorted(drawn) == ["contexts.svg", "rows.svg", "share.svg"], drawn
    shortened = len(CONTEXTS) - 1  # of 32 rows
    for name, n_points in (("rows.svg", [len(ROWS)] * 2), ("share.svg", [len(PROCESSES)] * 2),
                           ("contexts.svg", [shortened] * 2 + [len(CONTEXTS)] * 4)):
        for one in lines(drawn[name]):
            assert sorted(len(points_of(line)) for line in one) == n_points, name


def test_lines_lie_within_the_chart_and_floors_beside_them(folder):
    write_results(folder)
    for name, svg in charts().items():
        _, _, width, height = map(float, svg.get("viewBox").split())
        measured, floors = lines(svg)
        for line in measured + floors:
            for x, y in points_of(line):
                assert math.isfinite(x) and math.isfinite(y) and 0 < x < width and 0 < y < height, (name, x, y)
            assert [x for x, _ in points_of(line)] == sorted({x for x, _ in points_of(line)}), name
        for line, floor in zip(measured, floors):
            for (x, y), (floor_x, floor_y) in zip(points_of(line), points_of(floor)):
                # y grows downwards; here a floor of tokens a second is more than what was measured
                assert x == floor_x and (floor_y < y if name == "share.svg" else floor_y > y), (name, x)


def test_charts_name_devices_axes_and_lines(folder):
    write_results(folder)
    drawn = charts()
    for name, axis, unit in (("rows.svg", "rows", "ms"), ("contexts.svg", "tokens of context of each row", "ms"),
                             ("share.svg", "processes", "tokens/s")):
        named = texts(drawn[name])
        assert {"1B, Device A", "8B, Device <B>", axis, unit, "floor"} <= set(named), named
    assert {"1 row", "8 rows", "32 rows", "128", "2k", "128k"} <= set(texts(drawn["contexts.svg"]))
    assert {"1", "32", "256", "measured"} <= set(texts(drawn["rows.svg"]))


def test_what_does_not_fit_is_left_out_and_named(folder):
    write_results(folder)
    page = figures.page()
    assert f"\nNot measured ({NO_SPACE}): 1B, rows 32, context 131064; 8B, rows 32, context 131064.\n" in page, page
    assert not any(re.match(r"1B +32 +131064\b", line) for line in page.splitlines()), page


def test_section_without_figures_says_why(folder):
    write_results(folder)
    rows = [dict(step("1B", rows, 1024), step_median_s=None, ratio=None, note=NO_SPACE) for rows in (1, 8)]
    (folder / "shapes-1B.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "shapes-8B.json").write_text("null", encoding="utf-8")
    section = next(one for one in figures.page().split("\n# ") if one.startswith("OTHER SHAPES"))
    assert "```" not in section, section
    assert section.endswith(f"\n\nNot measured ({NO_SPACE}): 1B, rows 1, context 1024; 1B, rows 8, context 1024.\n\n"
                            "Device A, 2000-01-01, commit abc.\n"), section


def test_page_and_readme_are_made_without_share_and_decode(folder):
    (folder / "share-8B.json").write_text(json.dumps([shared("8B", n) for n in PROCESSES]), encoding="utf-8")
    assert "mimeod, N processes" not in figures.page() + figures.chart()
    assert figures.readme_figures() == ""


def test_model_of_a_folder_has_its_name(folder):
    row = row_of("1B", context=512, tokens=100, seconds=1.0, perplexity=10.0, bits_per_byte=1.0)
    (folder / "perplexity-x.json").write_text(json.dumps([dict(row, model="/models/Some-1B")]), encoding="utf-8")
    section = next(one for one in figures.page().split("\n# ") if one.startswith("ACCURACY"))
    assert re.search(r"^Some-1B +512 +100 +10 +1$", section, re.M), section
    assert section.endswith("\nDevice A, 2000-01-01, commit abc.\n"), section


def panel_of(*lines_of):
    return [{"title": "", "lines": [{"name": name, "points": points, "floor": points} for name, points in lines_of]}]


def test_log_axis_of_one_round_number_has_ticks_around_it(_):
    for value in 1.0, 2.0, 5.0, 0.01:
        svg = xml.fromstring(figures.charts.draw("", "", "", panel_of(("a", [(1, value), (2, value)])), True))
        (line,), _floors = lines(svg)
        top, bottom = (float(one.get("y1")) for one in (svg.findall(SVG + "line")[-1], svg.find(SVG + "line")))
        assert all(top < y < bottom for _, y in points_of(line)), value


def test_each_name_has_a_colour_or_the_chart_is_refused(_):
    names = [f"line {i}" for i in range(len(figures.charts.COLOURS) + 1)]
    svg = xml.fromstring(figures.charts.draw("", "", "", panel_of(*((name, [(1, 1), (2, 2)]) for name in names[:-1]))))
    assert set(names[:-1]) <= set(texts(svg))
    assert len({line.get("stroke") for line in lines(svg)[0]}) == len(names) - 1
    try:
        figures.charts.draw("too many", "", "", panel_of(*((name, [(1, 1), (2, 2)]) for name in names)))
    except ValueError as error:
        assert "too many: 9 names of lines, but 8 colours" in str(error)
    else:
        assert False, "it was drawn"


def test_page_names_the_device_of_each_model(folder):
    write_results(folder)
    sections = figures.page().split("\n# ")
    for heading in "GROWTH WITH ROWS", "GROWTH WITH CONTEXT", "GROWTH WITH PROCESSES", "OTHER SHAPES":
        section = next(one for one in sections if one.startswith(heading))
        expected = "1B: Device A, 2000-01-01, commit abc; 8B: Device <B>, 2000-01-01, commit abc.\n"
        assert section.endswith(expected), section


def test_other_devices_figures_are_named_beside_those_of_the_peers(folder):
    rows = [shared("1B", n) for n in PROCESSES]
    (folder / "share-1B.json").write_text(json.dumps(rows), encoding="utf-8")
    assert "mimeod, N processes (Device A)" in figures.chart()
    for row in rows:
        row["device"] = figures.read_rows(figures.HERE / "peers.json")["device"]
    (folder / "share-1B.json").write_text(json.dumps(rows), encoding="utf-8")
    assert "mimeod, N processes<" in figures.chart()


def main():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    bad = 0
    print(f"1..{len(tests)}")
    for number, test in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as folder:
            figures.RESULTS = pathlib.Path(folder)
            try:
                test(figures.RESULTS)
                print(f"ok {number} - {test.__name__}")
            except Exception:  # pylint: disable=broad-except
                bad += 1
                print(f"not ok {number} - {test.__name__}")
                print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
