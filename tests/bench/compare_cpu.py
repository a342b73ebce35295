#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hearth and a peer on the same GGUF files, on the CPU, interleaved in one run.

The arms alternate (H P, P H, H P, ...), each in a fresh process, so that both
see the same machine; the peer runs at each of its thread counts and its best is
taken, as is ours. Medians, with the spread, and their ratio go into a Markdown
table; every single figure goes into --json.

  compare_cpu.py --probe build/tests/probe/hearth-probe --peer-python VENV/bin/python \\
                 --rounds 5 --threads 1,2 MODEL.gguf ...

The peer is the package llama-cpp-python, built from source for this processor
by whoever runs this; see peer_llama_cpp.py.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def run(cmd):
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1800, env=env)
    if r.returncode:
        sys.exit("%s failed: %s" % (" ".join(cmd), r.stderr.strip()[-2000:]))
    return json.loads(r.stdout.strip().splitlines()[-1])


def ours(a, model, threads):
    r = run([a.probe, "bench", "--model", model, "--backend", "cpu", "--threads", str(threads), "--prefill",
             str(a.prefill), "--decode", str(a.decode), "--depth", str(a.depth), "--repeat", "2", "--json"])
    return r | {"prefill_tps": r["prefill_tok_s"], "decode_tps": r["decode_tok_s"], "peak_rss_kb": r["peak_bytes"] / 1024}


def peer(a, model, threads):
    return run([a.peer_python, str(HERE / "peer_llama_cpp.py"), "--model", model, "--prefill", str(a.prefill),
                "--decode", str(a.decode), "--depth", str(a.depth), "--threads", str(threads), "--reps", "1"])


def fmt(v):
    return "%.1f (%.1f..%.1f)" % (statistics.median(v), min(v), max(v))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--probe", required=True)
    ap.add_argument("--peer-python", required=True)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", default="2", help="comma-separated counts; each arm's best is compared")
    ap.add_argument("--prefill", type=int, default=512)
    ap.add_argument("--decode", type=int, default=64)
    ap.add_argument("--depth", type=int, default=0)
    ap.add_argument("--json")
    ap.add_argument("models", nargs="+")
    a = ap.parse_args()
    threads = [int(t) for t in a.threads.split(",")]

    rows, raw = [], []
    for model in a.models:
        got = {("hearth", t): [] for t in threads} | {("peer", t): [] for t in threads}
        for r in range(a.rounds):
            arms = list(got) if r % 2 == 0 else list(reversed(got))
            for who, t in arms:
                got[who, t].append((ours if who == "hearth" else peer)(a, model, t))
        for key, v in got.items():
            raw.append({"model": os.path.basename(model), "arm": key[0], "threads": key[1], "runs": v})
        row = [os.path.basename(model)]
        for metric in ("prefill_tps", "decode_tps"):
            best = {}
            for who in ("hearth", "peer"):
                best[who] = max(([x[metric] for x in got[who, t]] for t in threads), key=statistics.median)
            row += [fmt(best["hearth"]), fmt(best["peer"]),
                    "%.2f" % (statistics.median(best["hearth"]) / statistics.median(best["peer"]))]
        mem = [min(x["peak_rss_kb"] for t in threads for x in got[w, t]) / 1024 for w in ("hearth", "peer")]
        row.append("%.0f / %.0f" % tuple(mem))
        rows.append(row)

    print("%s, %s, %d rounds interleaved, threads %s, prefill %d, decode %d at depth %d; median (min..max), tokens/s" % (
        cpu_name(), datetime.date.today().isoformat(), a.rounds, a.threads, a.prefill, a.decode, a.depth))
    print()
    head = ["model", "prefill", "peer", "ratio", "decode", "peer", "ratio", "peak MB, ours / peer"]
    for r in [head, ["---"] * len(head)] + rows:
        print("| " + " | ".join(r) + " |")
    if a.json:
        json.dump(raw, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
