#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rendering of the shared template oracle, exactly; skips (77) where the oracle is not there.

usage: test_templates.py HEARTH_PROBE SHARED_DIR
"""
import glob
import json
import os
import subprocess
import sys
import tempfile


def render(tool, template, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join(json.dumps(line) + "\n" for line in lines))
        f.flush()
        p = subprocess.run([tool, "render", "--template", template, "--jsonl", f.name],
                           capture_output=True, timeout=120)
    if p.returncode:
        return [{"error": p.stderr.decode().strip()}] * len(lines)
    return [json.loads(line) for line in p.stdout.decode().split("\n") if line]


def differs(case, got):
    if "raises" in case:
        if got.get("error") == case["raises"]:
            return None
        return f"expected raise_exception({case['raises']!r}), got {got!r:.300}"
    if got.get("text") == case["expected"]:
        return None
    if "text" not in got:
        return f"expected text, got {got!r:.300}"
    want, have = case["expected"], got["text"]
    at = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
    return f"differs at {at}: expected {want[max(0, at - 30):at + 60]!r}, got {have[max(0, at - 30):at + 60]!r}"


def main():
    tool, shared = sys.argv[1], os.environ.get("HEARTH_SHARED") or sys.argv[2]
    folder = os.path.join(shared, "tokenizers", "templates")
    if not os.path.isdir(folder):
        print(f"skipped: no template oracle at {folder}")
        return 77
    total = bad = 0
    for path in sorted(glob.glob(os.path.join(folder, "*.cases.json"))):
        with open(path, encoding="utf-8") as f:
            doc = json.load(f)
        got = render(tool, os.path.join(folder, doc["template"]), doc["cases"])
        for case, g in zip(doc["cases"], got):
            total += 1
            why = differs(case, g)
            if why:
                bad += 1
                print(f"{doc['template']}: {case['name']}: {why}")
    with open(os.path.join(folder, "snippets.json"), encoding="utf-8") as f:
        snippets = json.load(f)["snippets"]
    for case in snippets:
        total += 1
        with tempfile.NamedTemporaryFile("wb", suffix=".jinja") as f:
            f.write(case["template"].encode())
            f.flush()
            g = render(tool, f.name, [{"vars": case["vars"], "now": "2024-07-26T09:05:03"}])[0]
        why = differs(case, g)
        if why:
            bad += 1
            print(f"snippet {case['name']}: {why}")
    print(f"{total} renderings, {bad} wrong")
    return 1 if bad or not total else 0


sys.exit(main())
