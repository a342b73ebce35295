#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measured batches feed each sequence tokens of its own: prompts and steps, bench and suite, mixtures of experts in small, on the CPU.

usage: test_batches.py HEARTH_PROBE

With the same token in every row all rows choose the same experts, and a batch reads no more of them than one row. What the
program says ("different") is counted in the engine's own history of the sequences, over all their positions.
"""
import json
import subprocess
import sys


def main():
    probe = sys.argv[1]
    failed = 0

    def run(command, model, *options):
        p = subprocess.run([probe, command, "--model", "synth:%s:tiny" % model, "--threads", "1", "--repeat", "1", *options],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
        return [json.loads(line) for line in p.stdout.splitlines()] if p.returncode == 0 else [{"status": p.returncode, "text": p.stderr}]

    def expect(ok, *text):
        nonlocal failed
        if not ok:
            failed += 1
            print("FAIL", *text)

    for model in ("qwen3-30b-a3b:q4_k", "gpt-oss-20b:mxfp4"):
        for batch in (1, 6, 32):
            f = run("bench", model, "--json", "--prefill", "0", "--depth", "5", "--decode", "70", "--batch", str(batch))[0]
            expect(f.get("different") == batch and f.get("decode_tok_s", 0) > 0, model, "bench, batch", batch, f)
            # The thread's time for a step: its halves add up, and with one thread it is most of the step's.
            both, step_us = f.get("cpu_us_begin", 0) + f.get("cpu_us_finish", 0), 1e6 * batch / max(f.get("decode_tok_s", 0), 1e-9)
            expect(abs(both - f.get("cpu_us_per_step", -1)) < 0.1 and 0 < both <= step_us * 1.1 and f.get("sleeps_per_step", -1) >= 0 and f.get("launches_per_step") == 0,
                   model, "bench's halves, batch", batch, f)
        figures = run("suite", model, "--depth", "16", "--decode", "3")
        got = [(f["n"], f["different"]) for f in figures if f.get("what") == "batch"]
        expect(got == [(n, n) for n in (4, 8, 16, 32)], model, "suite", got or figures)
        for command, option in (("bench", "--depth"), ("bench", "--prefill"), ("bench", "--decode"), ("suite", "--decode"), ("suite", "--depth")):
            f = run(command, model, option, str(2**32 - 1))[0]  # the sum wraps around to a few
            expect(f.get("status") == 64 and "are at most" in f["text"], model, command, option, f)
        f = run("bench", model, "--repeat", "1000001")[0]
        expect(f.get("status") == 64 and "--repeat is at most" in f["text"], model, "bench, too many runs", f)
        f = run("bench", model, "--threads", "4097")[0]
        expect(f.get("status") == 64 and "--threads is at most" in f["text"], model, "bench, too many threads", f)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
