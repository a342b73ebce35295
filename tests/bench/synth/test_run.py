#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/synth/run without a GPU: its bookkeeping, with a probe that answers at once.

usage: test_run.py SYNTH_GGUF

Figures and the fraction of the floor come out as they were said; a run goes on where it stopped; what fails, what does not
fit the host budget and what this probe can't place are said by name; the peer's figures are read from the user's file. What is
slow runs less, what is named first begins first, a depth that the context bounds is in the table, halves are merged.
"""
import json
import os
import subprocess
import sys
import tempfile

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
PROBE = r"""#!/bin/sh
[ $# = 0 ] && { echo "usage: --gpu-layers N"; exit 64; }
echo "$*" >>"%(log)s"
case "$*" in *bitnet*) echo '{"what": "decode", "n": 3888, "tok_s": 40.0, "slowest": 39, "fastest": 41, "different": 1}';; *mistral-7b*) echo "out of luck" >&2; exit 70;; *qwen3-8b*) [ -e "%(mark)s" ] || { : >"%(mark)s"; exec sleep 20; };; esac
echo '{"what": "model", "name": "x", "type": "y", "device": "A card", "load_s": 1, "bytes": 1}'
echo '{"what": "memory", "places": 1, "n_ctx": 8192, "weights": 4000000000, "kv": 819200000, "state": 0, "draft": 0, "workspace": 5, "graphs": 0, "context": 0, "total": 6}'
echo '{"what": "decode", "n": 0, "tok_s": 100.0, "slowest": 99, "fastest": 101, "different": 1}'
echo '{"what": "prefill", "n": 512, "tok_s": 5000.0, "slowest": 4999, "fastest": 5001, "different": 1}'
echo '{"what": "batch", "n": 8, "tok_s": 700.0, "slowest": 690, "fastest": 710, "different": 8}'
"""


def main():
    failed = 0

    def expect(ok, text):
        nonlocal failed
        if not ok:
            failed += 1
            print("FAIL " + text)

    with tempfile.TemporaryDirectory() as tmp:
        build, log = os.path.join(tmp, "b"), os.path.join(tmp, "log")
        os.makedirs(os.path.join(build, "tests", "probe"))
        os.makedirs(os.path.join(build, "tests", "bench", "synth"))
        os.symlink(os.path.abspath(sys.argv[1]), os.path.join(build, "tests", "bench", "synth", "synth_gguf"))
        probe = os.path.join(build, "tests", "probe", "hearth-probe")
        with open(probe, "w") as f:
            f.write(PROBE % {"log": log, "mark": os.path.join(tmp, "mark")})
        os.chmod(probe, 0o755)
        peer = os.path.join(tmp, "peer.json")
        with open(peer, "w") as f:
            json.dump({"llama-3.1-8b q4_0 gpu": {"decode 0": 339}}, f)

        def run(*options):
            if os.path.exists(log):
                os.unlink(log)
            p = subprocess.run([sys.executable, RUN, "--build", build, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
            return p.returncode, p.stdout, open(log).read().splitlines() if os.path.exists(log) else []

        rc, out, calls = run("--list")
        expect(rc == 0 and len(out.split("\n")) >= 37, "list: %d, %r" % (rc, out))
        rc, out, calls = run("--only", "llama-3.1-8b:q4_0", "--peer", peer, "--bandwidth", "4280")
        # 4.22 GB a token at 100 tok/s of 4,280 GB/s
        expect(rc == 0 and len(calls) == 1 and "100 (10%); peer 339" in out and "5000" in out and "700 (9%)" in out and "4.00, 0.82" in out,
               "figures: %d, %r" % (rc, out))
        with open(os.path.join(build, "synth-results.json")) as f:
            expect(json.load(f)["entries"]["llama-3.1-8b q4_0 gpu"]["different"].get("batch 8") == 8, "how many tokens of a batch differ is kept")
        rc, out, calls = run("--only", "llama-3.1-8b:q4_0", "--only", "llama-3.1-8b:q8_0")
        expect(rc == 0 and len(calls) == 1 and "q8_0" in calls[0] and "--turn " in calls[0], "resumed: %d, %r" % (rc, calls))
        for options, status, why in ((("--only", "llama-3.1-8b:q4"), 2, "no model of the roster"), (("--first", "nope"), 2, "no model of the roster"),
                                     (("--build", os.path.join(tmp, "none")), 2, "build there first"), (("--merge", os.path.join(tmp, "none")), 1, "none"),
                                     (("--peer", os.path.join(tmp, "none")), 2, "none"), (("--bandwidth", "0"), 2, "more than 0"),
                                     (("--only", "mistral-7b", "--model-options", "no-such"), 1, "unknown option")):
            rc, out, calls = run(*options)
            expect(rc == status and not calls and why in out and "Traceback" not in out, "%s: %d, %r" % (options, rc, out))
        damaged = os.path.join(tmp, "damaged.json")
        for text in ("", "{", "[]", "{}", '{"build": "x", "entries": []}', '{"build": "x", "entries": {"a": 1}}'):
            with open(damaged, "w") as f:
                f.write(text)
            for options in (("--state", damaged), ("--merge", damaged), ("--report", "--state", damaged)):
                rc, out, calls = run("--only", "mistral-7b", *options)
                expect(rc == 1 and not calls and damaged in out and "Traceback" not in out, "%s of %r: %d, %r" % (options, text, rc, out))
        rc, out, calls = run("--only", "mistral-7b")
        expect(rc == 1 and "failed: status 70: out of luck" in out, "a failing entry: %d, %r" % (rc, out))
        rc, out, calls = run("--only", "llama-3.3-70b:q2_k", "--host-budget", "1e9")
        expect(rc == 0 and not calls and "the budget has 1.0" in out, "host budget: %d, %r" % (rc, out))
        rc, out, calls = run("--only", "llama-3.3-70b:q4_k:quarter", "--host-budget", "1e12")
        expect(rc == 0 and len(calls) == 1 and "--gpu-layers 20" in calls[0], "a quarter of the layers: %d, %r" % (rc, calls))
        rc, out, calls = run("--only", "gpt-oss-20b:mxfp4:experts-cpu", "--host-budget", "1e12")
        expect(rc == 0 and len(calls) == 1 and "--gpu-layers 0" in calls[0], "experts on the processor: %d, %r" % (rc, calls))
        expect("--repeat 2 --decode 16" in calls[0] and "medians of 2 (decoding: 16 tokens each): gpt-oss-20b mxfp4 experts-cpu" in out,
               "its pace: %r, %r" % (calls, out))
        rc, out, calls = run("--only", "bitnet-2b:tq2_0", "--model-options", "tiny")
        expect(rc == 0 and ":tiny " in calls[0] and "| 40.0 (" in out and " at 3888 |" in out, "a short context: %d, %r" % (rc, out))
        rc, out, calls = run("--only", "gemma-3-1b", "--only", "qwen3-1.7b", "--only", "gpt-oss-120b", "--first", "gpt-oss-120b", "--first", "qwen3-1.7b",
                             "--ahead", "0", "--host-budget", "1e12")
        order = [c.split("synth:")[1].split(":")[0] for c in calls]
        expect(rc == 0 and order == ["gpt-oss-120b", "qwen3-1.7b", "gemma-3-1b"], "order: %d, %r" % (rc, order))
        rc, out, calls = run("--only", "qwen3-8b", "--minutes", "0.15")
        expect(rc == 3 and "1 left" in out, "cut by the clock: %d, %r" % (rc, out))
        rc, out, calls = run("--only", "qwen3-8b")
        expect(rc == 0 and len(calls) == 1, "taken up again: %d, %r" % (rc, out))
        half = os.path.join(tmp, "half.json")
        rc, out, calls = run("--only", "qwen2.5-7b", "--state", half)
        expect(rc == 0 and len(calls) == 1, "another's half: %d, %r" % (rc, calls))
        rc, out, calls = run("--merge", half)
        expect(rc == 0 and not calls and "| qwen2.5-7b q4_k gpu |" in out and "| qwen3-8b q4_k gpu |" in out, "merged: %d, %r" % (rc, out))
        with open(probe, "a") as f:
            f.write("# another build\n")
        rc, out, calls = run("--only", "llama-3.1-8b:q4_0")
        expect(rc == 0 and len(calls) == 1, "another build: %d, %r" % (rc, calls))
        rc, out, calls = run("--merge", half)
        expect(rc == 2 and "is of build" in out, "merged with another build's: %d, %r" % (rc, out))
        rc, out, calls = run("--report")
        expect(rc == 0 and "| llama-3.1-8b q4_0 gpu |" in out and not calls, "report: %d, %r" % (rc, out))
    print("%d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
