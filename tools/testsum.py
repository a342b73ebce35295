#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases over one or more meson test logs and prints 'N passed, N failed, N skipped'.

A program that speaks TAP (cmocka does, under CMOCKA_MESSAGE_OUTPUT=TAP) counts
with each of its cases; every other one counts as a single case. Exit 1 if
anything failed or nothing ran.

  testsum.py LABEL=build/meson-logs/testlog.json ...
"""
import json
import re
import sys

BAD = {"FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"}
TAP = re.compile(r"^\s*(not ok|ok)\s+\d+(.*)$", re.M)


def cases(t):
    found = TAP.findall(t.get("stdout") or "")
    passed = failed = skipped = 0
    for verdict, rest in found:
        if re.search(r"#\s*skip", rest, re.I):
            skipped += 1
        elif verdict == "ok":
            passed += 1
        else:
            failed += 1
    return passed, failed, skipped


def main():
    total = [0, 0, 0]
    for arg in sys.argv[1:]:
        label, _, path = arg.partition("=")
        for line in open(path, encoding="utf-8"):
            t = json.loads(line)
            p, f, s = cases(t)
            if t["result"] in BAD:
                f = max(f, 1)
                print(f"FAILED {label}: {t['name']} ({t['result'].lower()})")
                for stream in ("stdout", "stderr"):
                    tail = (t.get(stream) or "").strip().splitlines()[-25:]
                    print("".join(f"    {x}\n" for x in tail), end="")
            elif t["result"] == "SKIP":
                s = max(s, 1)
                why = ((t.get("stdout") or "") + (t.get("stderr") or "")).strip().splitlines()
                print(f"skipped {label}: {t['name']}: {why[-1] if why else 'no reason given'}")
            elif p + f + s == 0:
                p = 1
            total = [a + b for a, b in zip(total, (p, f, s))]
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
