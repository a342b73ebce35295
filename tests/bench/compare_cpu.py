#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hearth and a peer on the same GGUF files, on the CPU, interleaved in one run.

Rounds go over all files; within a file the arms alternate (H P, then P H), each
in a fresh process, so that both see the same machine. Each runs at each of the
thread counts and its best median is taken. Medians with their spread and ratio
go into a Markdown table, which is written anew after every round, so that a run
that is cut short has a table too; every figure goes into --json. A round that
can't be finished within --budget seconds is not begun.

  compare_cpu.py --probe build/tests/probe/hearth-probe --peer-python VENV/bin/python \\
                 --rounds 3 --threads 1,2 --budget 480 --out table.md MODEL.gguf ...

MODEL may be NAME:TYPE[:layers=N], of which --synth (a generator of files with
random weights and a known model's shapes: NAME TYPE OUT.gguf [layers=N]) makes a
file in --dir, if it is not there yet.

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
import time

HERE = pathlib.Path(__file__).resolve().parent


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def say(text):
    print("%s %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


class Failed(Exception):
    pass


def run(cmd, timeout):
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    try:
        r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, env=env)
    except subprocess.TimeoutExpired:
        raise Failed("%s took more than %d s" % (cmd[0], timeout))
    if r.returncode:
        raise Failed("%s ended with %d: %s" % (cmd[0], r.returncode, r.stderr.strip()[-300:]))
    return json.loads(r.stdout.strip().splitlines()[-1])


def ours(a, model, threads):
    r = run([a.probe, "bench", "--model", model, "--backend", "cpu", "--threads", str(threads), "--prefill", str(a.prefill),
             "--decode", str(a.decode), "--depth", str(a.depth), "--repeat", "1", "--json"], a.timeout)
    return r | {"prefill_tps": r["prefill_tok_s"], "decode_tps": r["decode_tok_s"], "peak_rss_kb": r["peak_bytes"] / 1024}


def peer(a, model, threads):
    return run([a.peer_python, str(HERE / "peer_llama_cpp.py"), "--model", model, "--prefill", str(a.prefill),
                "--decode", str(a.decode), "--depth", str(a.depth), "--threads", str(threads), "--reps", "1"], a.timeout)


def made(a, word):
    """The file that a word of the command line means."""
    if word.endswith(".gguf"):
        return word
    if not a.synth or not a.dir:
        sys.exit("%s: needs --synth and --dir" % word)
    name, kind, *rest = word.split(":")
    path = os.path.join(a.dir, word.replace(":", "-").replace("=", "") + ".gguf")
    if not os.path.exists(path):
        say("making " + path)
        subprocess.run([a.synth, name, kind, path + ".part", *rest], check=True, stdout=subprocess.DEVNULL, timeout=600)
        os.rename(path + ".part", path)
    return path


def fmt(v):
    return "%.1f (%.1f..%.1f)" % (statistics.median(v), min(v), max(v))


def row_of(model, got, threads):
    row = [os.path.basename(model)[:-5]]
    for metric in ("prefill_tps", "decode_tps"):
        best = {}
        for who in ("hearth", "peer"):
            best[who] = max(([x[metric] for x in got[who, t]] for t in threads if got[who, t]), key=statistics.median, default=None)
        if not best["hearth"] or not best["peer"]:
            row += ["-" if not best[w] else fmt(best[w]) for w in ("hearth", "peer")] + ["-"]
        else:
            row += [fmt(best["hearth"]), fmt(best["peer"]),
                    "%.2f" % (statistics.median(best["hearth"]) / statistics.median(best["peer"]))]
    mem = [min((x["peak_rss_kb"] / 1024 for t in threads for x in got[w, t]), default=0) for w in ("hearth", "peer")]
    return row + ["%.0f / %.0f" % tuple(mem)]


def table(a, results, rounds, threads):
    lines = ["%s, %s, %d rounds interleaved, threads %s, prefill %d, decode %d at depth %d; median (min..max), tokens/s" % (
        cpu_name(), datetime.date.today().isoformat(), rounds, a.threads, a.prefill, a.decode, a.depth), ""]
    head = ["model", "prefill", "peer", "ratio", "decode", "peer", "ratio", "peak MB, ours / peer"]
    for r in [head, ["---"] * len(head)] + [row_of(m, got, threads) for m, got in results.items()]:
        lines.append("| " + " | ".join(r) + " |")
    return "\n".join(lines) + "\n"


def write(path, text):
    if path:
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)


def one_round(a, r, results, threads):
    for model, got in results.items():
        arms = list(got) if r % 2 == 0 else list(reversed(got))
        for who, t in arms:
            try:
                x = (ours if who == "hearth" else peer)(a, model, t)
            except Failed as e:
                say("%s, %s, %d threads: %s" % (os.path.basename(model), who, t, e))
                continue
            got[who, t].append(x)
            say("round %d %-28s %-6s %d threads: prefill %8.1f decode %7.1f" % (
                r + 1, os.path.basename(model), who, t, x["prefill_tps"], x["decode_tps"]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--probe", required=True)
    ap.add_argument("--peer-python", required=True)
    ap.add_argument("--synth", help="the generator of files with random weights")
    ap.add_argument("--dir", help="where generated files lie")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--threads", default="1,2", help="comma-separated counts; each arm's best is compared")
    ap.add_argument("--prefill", type=int, default=128)
    ap.add_argument("--decode", type=int, default=32)
    ap.add_argument("--depth", type=int, default=0)
    ap.add_argument("--budget", type=float, default=1e9, help="seconds; rounds that would end later are left out")
    ap.add_argument("--timeout", type=float, default=120, help="seconds for one process")
    ap.add_argument("--json")
    ap.add_argument("--out", help="the table goes here too, after every round")
    ap.add_argument("models", nargs="+")
    a = ap.parse_args()
    threads = [int(t) for t in a.threads.split(",")]
    results = {made(a, m): {(w, t): [] for t in threads for w in ("hearth", "peer")} for m in a.models}
    begin, longest, done = time.monotonic(), 0, 0

    while done < a.rounds and time.monotonic() - begin + longest <= a.budget:
        t0 = time.monotonic()
        one_round(a, done, results, threads)
        longest = max(longest, time.monotonic() - t0)
        done += 1
        write(a.out, table(a, results, done, threads))
        write(a.json, json.dumps([{"model": os.path.basename(m), "arm": w, "threads": t, "runs": v}
                                  for m, got in results.items() for (w, t), v in got.items()], indent=1))
    print(table(a, results, done, threads), end="")


if __name__ == "__main__":
    main()
