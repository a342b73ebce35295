#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every entry of the roster in small: made, written to a file, loaded and run on the CPU; no GPU.

usage: test_roster.py SYNTH_GGUF HEARTH_PROBE

For each (model, type): the file that is written and the bytes made while they are read give the same logits, all of them
finite; another seed gives others. A suite's depth is bounded by the model's context. The roster has what it must have: 36 entries and the classes that users have.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from roster import ROSTER, name  # noqa: E402

CLASSES = {"bitnet-2b": 1, "gemma-4-e2b": 1, "gemma-4-e4b": 1, "qwen3-0.6b": 1, "qwen3-4b": 1, "llama-3.1-8b": 5, "qwen3.5-27b": 1,
           "llama-3.3-70b": 1, "gpt-oss-20b": 1, "gpt-oss-120b": 1, "qwen3-30b-a3b": 1}


def logits(probe, model, out):
    p = subprocess.run([probe, "logits", "--model", model, "--tokens", "1,2,3,4,5", "--positions", "all", "--threads", "1", "--out", out],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if p.returncode:
        raise RuntimeError("%s: status %d: %s" % (model, p.returncode, p.stdout.strip()))
    return np.load(out)


def main():
    synth, probe = sys.argv[1:3]
    failed = 0

    def expect(ok, text):
        nonlocal failed
        if not ok:
            failed += 1
            print("FAIL " + text)

    expect(len(set(ROSTER)) == len(ROSTER) >= 36, "the roster has %d entries, %d different" % (len(ROSTER), len(set(ROSTER))))
    for model, n in CLASSES.items():
        expect(sum(1 for e in ROSTER if e[0] == model) >= n, "%s: fewer than %d entries" % (model, n))
    types = {e[1] for e in ROSTER}
    expect({"q4_0", "q8_0", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"} <= types, "types: %s" % sorted(types))
    expect({e[2] for e in ROSTER} >= {"gpu", "quarter", "experts-cpu"}, "places")

    with tempfile.TemporaryDirectory() as tmp:
        for model, t in sorted({e[:2] for e in ROSTER}):
            whole = json.loads(subprocess.run([synth, "--facts", "%s:%s" % (model, t)], stdout=subprocess.PIPE, text=True, check=True).stdout)
            expect(0 < whole["decode"] <= whole["total"] < whole["file"], "%s %s: %s" % (model, t, whole))
            tiny, path, out = "%s:%s:tiny" % (model, t), os.path.join(tmp, "m.gguf"), os.path.join(tmp, "o.npy")
            try:
                f = json.loads(subprocess.run([synth, tiny, path], stdout=subprocess.PIPE, text=True, check=True).stdout)
                expect(os.path.getsize(path) == f["file"], "%s %s: %d bytes written, %d said" % (model, t, os.path.getsize(path), f["file"]))
                a, b, c = logits(probe, path, out), logits(probe, "synth:" + tiny, out), logits(probe, "synth:%s:seed=2" % tiny, out)
                expect(a.shape == (5, f["vocab"]) and np.isfinite(a).all() and a.std() > 0, "%s %s: logits %s" % (model, t, a.shape))
                expect(np.array_equal(a, b), "%s %s: other logits from the file than from the bytes made while read" % (model, t))
                expect(not np.array_equal(a, c), "%s %s: the same logits with another seed" % (model, t))
            except (RuntimeError, subprocess.SubprocessError) as x:
                expect(False, "%s %s: %s" % (model, t, x))
    p = subprocess.run([probe, "suite", "--model", "synth:bitnet-2b:tq2_0:tiny", "--threads", "1", "--repeat", "1", "--decode", "4", "--turn", "/dev/null"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    depths = [f["n"] for f in map(json.loads, p.stdout.splitlines()) if f["what"] == "decode"] if p.returncode == 0 else []
    expect(depths == [0, 4096 - 4 - 16], "a suite of a model with a context of 4,096: status %d, %s" % (p.returncode, depths or p.stdout))
    for spec in ("llama-3.1-8b", "llama-3.1-8b:q9", "no-such:q4_0", "gpt-oss-20b:q4_0", "qwen3-8b:q4_k:layers=x", "gemma-3-1b:q4_k"):
        p = subprocess.run([synth, "--facts", spec], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        expect(p.returncode == 65 and len(p.stderr) > 20, "%s: status %d, %r" % (spec, p.returncode, p.stderr))
    print("%d entries, %d failed" % (len(ROSTER), failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
