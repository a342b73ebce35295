#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits, greedy continuations and MTP logits against llama.cpp's, for a folder of tiny models.

usage: test_logits.py HEARTH_PROBE ORACLE_DIR [MODEL...] [-- PROBE-OPTION...]

ORACLE_DIR holds models/NAME.gguf and expected/NAME.json, NAME.logits.npy and perhaps NAME.dequant.npy (llama.cpp on
the file with every tensor decoded to F32) and NAME.exactgelu.npy (an exact GELU instead of llama.cpp's table). Exits 77
if the folder is not there.

d = max |ours - expected| / logit_std over a row. Each model is run
  exact    F32 arithmetic and KV: d <= 1e-3 on every row (2e-2 where only llama.cpp's GELU table is to compare with),
           the same bits when the prompt comes 7 tokens at a time, greedy ids up to the first near-tie
  served   the arithmetic that users get, f16 KV: F32 files d <= 5e-2 on rows that are not fragile (MoE: a few outliers);
           quantized files rms <= 0.08 and d <= 0.6 (MoE: rms <= 0.25 and median d <= 0.6)
"""
import json
import os
import subprocess
import sys
import tempfile
import threading

import numpy as np

ONE = ["--threads", "1"]  # tiny products: more threads only wait for each other
EXACT = ONE + ["--exact", "--kv", "f32"]
SERVED = ONE + ["--kv", "f16"]


class Session:
    """hearth-probe for many commands: a GPU's driver then starts once."""

    def __init__(self, probe):
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        self.p = subprocess.Popen([*probe, "session"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)

    def run(self, words):
        """(exit status, stdout, stderr)"""
        self.said.seek(0)
        self.said.truncate()
        timer = threading.Timer(300, self.p.kill)
        timer.start()
        out = []
        try:
            self.p.stdin.write("\t".join(words) + "\n")
            self.p.stdin.flush()
            for line in self.p.stdout:
                if line.startswith("\x1e"):
                    self.said.seek(0)
                    return int(line[1:]), "".join(out), self.said.read()
                out.append(line)
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        self.said.seek(0)
        return self.p.wait(), "".join(out), self.said.read()

    def close(self):
        self.p.stdin.close()
        self.p.wait(60)
        self.p.stdout.close()
        self.said.close()


class Model:
    def __init__(self, session, options, folder, name):
        self.session, self.options, self.name, self.failed = session, options, name, 0
        self.path = os.path.join(folder, "models", name + ".gguf")
        base = os.path.join(folder, "expected", name)
        with open(base + ".json") as f:
            self.e = json.load(f)
        self.std = self.e["logit_std"]
        self.quantized = os.path.exists(base + ".dequant.npy")
        self.gelu = self.e["arch"].startswith("gemma")
        self.moe = "moe" in name or self.e["arch"] in ("gpt-oss", "qwen3next")
        kind = "dequant" if self.quantized else "logits"
        self.limit = 1e-3
        if os.path.exists(base + ".exactgelu.npy"):
            kind = "exactgelu"
        elif self.gelu:
            self.limit = 2e-2
        self.want = np.load("%s.%s.npy" % (base, kind))
        self.logits = np.load(base + ".logits.npy")

    def fail(self, text):
        self.failed += 1
        print("FAIL %s: %s" % (self.name, text))

    def run(self, command, ids, *options):
        status, out, said = self.session.run([command, "--model", self.path, "--tokens", ",".join(map(str, ids)), *self.options, *options])
        if status:
            raise RuntimeError("%s ended with %d: %s" % (command, status, said.strip()))
        return out

    def rows(self, command, ids, *options):
        with tempfile.NamedTemporaryFile(suffix=".npy") as f:
            self.run(command, ids, "--out", f.name, *options)
            return np.load(f.name)

    def prompts(self, *options):
        """Ours for every position of prompt + recorded continuation, the latter fed one at a time."""
        for p in self.e["prompts"]:
            ids = p["tokens"] + p["greedy"]
            yield p, self.rows("logits", ids, "--prompt", str(len(p["tokens"])), "--positions", "all", *options)

    def exact(self):
        worst = 0
        for p, got in self.prompts(*EXACT):
            for row in p["rows"] + p["decode_rows"]:
                d = np.abs(got[row["pos"]] - self.want[row["row"]]).max() / self.std
                worst = max(worst, d)
                if not d <= self.limit:
                    self.fail("exact: prompt %s, position %d: d = %.3g, at most %g" % (p["name"], row["pos"], d, self.limit))
            n = len(p["tokens"])
            if n > 7:
                split = self.rows("logits", p["tokens"], "--positions", "all", "--chunk", "7", *EXACT)
                if not np.array_equal(split, got[:n]):
                    self.fail("prompt %s: other bits when fed 7 tokens at a time" % p["name"])
        return "exact %.1e" % worst

    def greedy(self):
        e = self.e.get("dequantized", {})
        compared = 0
        for i, p in enumerate(self.e["prompts"]):
            want = e["greedy"][i] if self.quantized else p["greedy"]
            margin = e["greedy_margin"][i] if self.quantized else p["greedy_margin"]
            if want and isinstance(want[0], list):
                want, margin = want[i], margin[i]
            tolerance = 2 * (2e-2 if self.gelu else 1e-3) * self.std
            got = [int(x) for x in self.run("greedy", p["tokens"], "--n", str(len(want)), *EXACT).split(",")]
            for k, (g, w, m) in enumerate(zip(got, want, margin)):
                if m <= tolerance:
                    break
                compared += 1
                if g != w:
                    self.fail("greedy: prompt %s, token %d is %d, expected %d (margin %.3g)" % (p["name"], k, g, w, m))
                    break
        return "greedy %d ids" % compared

    def served(self):
        ds, squares = [], []
        for p, got in self.prompts(*SERVED):
            for row in p["rows"] + p["decode_rows"]:
                if not self.quantized and row["fragility"] > 0.05:
                    continue
                diff = (got[row["pos"]] - self.want[row["row"]]) / self.std
                ds.append(np.abs(diff).max())
                squares.append(float(np.mean(diff.astype(np.float64) ** 2)))
        ds = np.array(ds)
        rms = np.sqrt(np.mean(squares))
        if not self.quantized:
            over = int((ds > (7e-2 if self.gelu else 5e-2)).sum())
            if over > (len(ds) // 8 if self.moe else 0):
                self.fail("served: %d of %d rows have d > 5e-2 (largest %.3g)" % (over, len(ds), ds.max()))
        elif self.moe:
            if rms > 0.25 or np.median(ds) > 0.6:
                self.fail("served: rms %.3g (0.25), median d %.3g (0.6)" % (rms, np.median(ds)))
        elif rms > 0.08 or ds.max() > 0.6:
            self.fail("served: rms %.3g (0.08), largest d %.3g (0.6)" % (rms, ds.max()))
        return "served rms %.1e max %.1e" % (rms, ds.max())

    def mtp(self):
        if "mtp" not in self.e:
            return ""
        worst = 0
        for p, m in zip(self.e["prompts"], self.e["mtp"]["prompts"]):
            for options in (EXACT, EXACT + ["--chunk", "7"]):
                got = self.rows("mtp", p["tokens"], *options)
                for row in m["rows"]:
                    d = np.abs(got[row["pos"]] - self.want[row["row"]]).max() / self.std
                    worst = max(worst, d)
                    if not d <= self.limit:
                        self.fail("mtp: prompt %s, position %d: d = %.3g, at most %g"
                                  % (p["name"], row["pos"], d, self.limit))
        return "mtp %.1e" % worst

    def check(self):
        try:
            print("%-14s %s" % (self.name, "  ".join(f() for f in (self.exact, self.greedy, self.served, self.mtp))), flush=True)
        except RuntimeError as x:
            self.fail(str(x))
        return self.failed == 0


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    probe, folder, *names = words[:words.index("--")] if "--" in words else words
    if not os.path.isdir(os.path.join(folder, "expected")):
        print("skipped: %s is not there" % folder)
        return 77
    names = names or sorted(x[:-5] for x in os.listdir(os.path.join(folder, "expected")) if x.endswith(".json"))
    bad, session = [], None
    for n in names:
        if session is None or session.p.poll() is not None:
            session = Session([probe])
        if not Model(session, options, folder, n).check():
            bad.append(n)
    session.close()
    if bad:
        print("failed: " + " ".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
