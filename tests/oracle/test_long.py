#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prompt of 32,768 tokens in a context of 131,072: logits against a float64 pass (reference.py).

usage: test_long.py HEARTH_PROBE

The model is a tiny gemma3: layers with a window of 96 positions, then one that sees everything, so that the reference
needs the last layer's attention at the compared positions only. The prompt comes in chunks of two sizes, which must give
the same bits; served arithmetic with f16 and q8_0 KV must stay near.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

import make_tiny as M
import reference as R

N, CTX = 32768, 131072
POSITIONS = (1000, 20000, N - 1)
MODEL = dict(M.PRESETS["gemma3"], n_ctx=CTX, n_layer=3, swa_every=3, n_head=2, n_kv=1, hd=32, window=96, label="long")


def logits(probe, model, tokens, out, *options):
    subprocess.run([probe, "logits", "--model", model, "--tokens", "@" + tokens, "--positions", ",".join(map(str, POSITIONS)),
                    "--ctx", str(CTX), "--out", out, *options], check=True, timeout=400)
    return np.load(out)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    g = M.Builder(dict(MODEL), 1, "F32", None).build()
    ids = (np.arange(N) * 7919 + np.arange(N) // 300 * 31) % 290 + 5
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        model, tokens, out = (os.path.join(tmp, n) for n in ("long.gguf", "tokens", "out.npy"))
        g.write(model)
        with open(tokens, "w") as f:
            f.write(",".join(map(str, ids)))
        want = R.gemma3_long(MODEL, R.weights(g), ids, POSITIONS)
        exact = logits(sys.argv[1], model, tokens, out, "--exact", "--kv", "f32", "--chunk", "512")
        split = logits(sys.argv[1], model, tokens, out, "--exact", "--kv", "f32", "--chunk", "777")
        for name, got, limit in (("exact", exact, 1e-3),
                                 ("f16", logits(sys.argv[1], model, tokens, out, "--kv", "f16"), 5e-2),
                                 ("q8_0", logits(sys.argv[1], model, tokens, out, "--kv", "q8_0"), 2e-1)):
            d = np.abs(got - want).max() / want.std()
            print("%-6s d = %.1e (at most %g)" % (name, d, limit), flush=True)
            failed += not d <= limit
        if not np.array_equal(exact, split):
            print("FAIL: other bits when fed 777 tokens at a time")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
