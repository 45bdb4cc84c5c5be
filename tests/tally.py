#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds up meson's JSON test logs: TAP lines where a program speaks TAP, else the program's result.

The last line is "N passed, N failed, N skipped"; the exit status is 1 if anything failed or nothing
passed. A program that ends badly without a "not ok" line (a crash, a timeout) counts as one failure.
"""
import json
import re
import sys

GOOD = ("OK", "EXPECTEDFAIL")


def add(record, totals):
    lines = [line for line in (record.get("stdout") or "").splitlines()]
    tap = [line for line in lines if re.match(r"(not )?ok\b", line)]
    good = record["result"] in GOOD
    # Tests that a program took out because this machine cannot run them.
    taken_out = sum(line.startswith("# skipped: ") for line in lines)
    if record["result"] == "SKIP" and not tap:
        totals["skipped"] += taken_out or 1
        return
    failed = 0
    for line in tap:
        if re.search(r"#\s*skip", line, re.IGNORECASE):
            totals["skipped"] += 1
        elif line.startswith("not ok"):
            failed += 1
        else:
            totals["passed"] += 1
    if not tap and good:
        totals["passed"] += 1
    if not good and record["result"] != "SKIP" and not failed:
        failed = 1
    totals["failed"] += failed
    totals["skipped"] += taken_out


def main(paths):
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for path in paths:
        with open(path, encoding="utf-8") as log:
            for line in log:
                add(json.loads(line), totals)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**totals))
    return 1 if totals["failed"] or not totals["passed"] else 0


sys.exit(main(sys.argv[1:]))
