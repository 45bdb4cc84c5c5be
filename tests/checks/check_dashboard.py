#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The dashboard asks for metrics that mimeo-metrics(7) has, with labels that they have; its picture has its panels."""
import html
import json
import os
import pathlib
import re

ROOT = pathlib.Path(os.environ.get("MIMEO_SOURCE", pathlib.Path(__file__).resolve().parent.parent.parent))
FOLDER = ROOT / "examples" / "grafana"


def page():
    """{metric: {labels}}; samples of a histogram are three."""
    entries = {}
    text = (ROOT / "man" / "mimeo-metrics.7.scd").read_text().replace("\\", "")
    for name, kind, labels in re.findall(r"^\*(\w+)\* \((\w+)(?:; ([^)]*))?\)$", text, re.M):
        own = set(labels.replace("_", "").split(", ")) if labels else set()
        for sample in [name] if kind != "histogram" else [name + s for s in ("_bucket", "_sum", "_count")]:
            entries[sample] = own | ({"le"} if sample.endswith("_bucket") else set())
    return entries


def wrong(entries, target):
    names = set(re.findall(r"\b(?:mimeo|process)_\w+", target["expr"]))
    labels = set(re.findall(r"{(\w+)=", target["expr"])) | set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    unknown = names - entries.keys()
    return unknown or not names or {label for label in labels if not any(label in entries[n] for n in names)}


def main():
    entries = page()
    dashboard = json.loads((FOLDER / "mimeo.json").read_text())
    picture = html.unescape((FOLDER / "mimeo.svg").read_text())
    checks = []
    for panel in dashboard["panels"]:
        bad = [t["expr"] for t in panel["targets"] if wrong(entries, t)]
        checks.append((not bad, f"panel {panel['title']} asks for metrics of the page", bad))
        checks.append((f">{panel['title']}<" in picture, f"panel {panel['title']} is in the picture", []))
    print(f"1..{len(checks)}")
    for i, (good, claim, bad) in enumerate(checks, 1):
        print(f"{'ok' if good else 'not ok'} {i} - {claim}")
        for line in bad:
            print(f"# {line}")
    return not all(good for good, _, _ in checks)


if __name__ == "__main__":
    raise SystemExit(main())
