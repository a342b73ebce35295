#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One timed run of the peer (llama-cpp-python's low-level API) on a GGUF file.

Fixed token ids, so that no tokenizer, sampler or Python list work is counted:
prefill is one llama_decode of N tokens, decode is D calls of one token each.
Prints one JSON line. Needs the package llama-cpp-python (built from source for
this processor) in the Python that runs it; it is not a dependency of Hearth.

  peer_llama_cpp.py --model F --prefill 512 --decode 128 --depth 0 --threads 2 [--reps 3]
"""
import argparse
import ctypes
import json
import resource
import statistics
import time

import llama_cpp as L


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--prefill", type=int, default=512)
    ap.add_argument("--decode", type=int, default=128)
    ap.add_argument("--depth", type=int, default=0)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--perplexity", metavar="TEXT", help="windows without overlap, first token of each unscored")
    ap.add_argument("--window", type=int, default=1024)
    ap.add_argument("--windows", type=int, default=0, help="at most so many; 0: all")
    ap.add_argument("--kv", default="f16", choices=["f16", "f32"])
    a = ap.parse_args()

    log = L.llama_log_callback(lambda level, text, ud: None)
    L.llama_log_set(log, ctypes.c_void_p(0))
    L.llama_backend_init()
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(a.model.encode(), mp)
    assert model, "load failed"
    vocab = L.llama_model_get_vocab(model)
    n_vocab = L.llama_vocab_n_tokens(vocab)

    need = max(a.prefill, a.depth + a.decode, a.window if a.perplexity else 0) + 8
    cp = L.llama_context_default_params()
    cp.n_ctx = (need + 255) // 256 * 256
    cp.n_batch = max(512, a.prefill, a.depth, a.window if a.perplexity else 0)
    cp.n_ubatch = 512
    cp.n_threads = cp.n_threads_batch = a.threads
    if a.kv == "f32":
        cp.type_k = cp.type_v = 0
    cp.no_perf = True
    ctx = L.llama_init_from_model(model, cp)
    assert ctx, "context failed"
    mem = L.llama_get_memory(ctx)

    def feed(ids, pos0, all_logits=False):
        n = len(ids)
        b = L.llama_batch_init(n, 0, 1)
        b.n_tokens = n
        for i, t in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i] = t, pos0 + i, 1
            b.seq_id[i][0] = 0
            b.logits[i] = all_logits or i == n - 1
        t0 = time.perf_counter()
        r = L.llama_decode(ctx, b)
        L.llama_synchronize(ctx)
        dt = time.perf_counter() - t0
        assert r == 0, r
        L.llama_batch_free(b)
        return dt

    out = {"peer": "llama-cpp-python " + L.__version__, "threads": a.threads}
    if a.perplexity:
        import numpy as np
        text = open(a.perplexity, "rb").read()
        buf = (L.llama_token * (len(text) + 16))()
        n = L.llama_tokenize(vocab, text, len(text), buf, len(buf), False, False)
        ids = list(buf[:n])
        nll, cnt = 0.0, 0
        for w in range(min(n // a.window, a.windows or 1 << 30)):
            L.llama_memory_clear(mem, True)
            win = ids[w * a.window:(w + 1) * a.window]
            feed(win, 0, True)
            lg = np.ctypeslib.as_array(L.llama_get_logits(ctx), (a.window, n_vocab)).astype(np.float64)
            m = lg.max(1, keepdims=True)
            lse = (m + np.log(np.exp(lg - m).sum(1, keepdims=True)))[:, 0]
            for i in range(a.window - 1):
                nll += lse[i] - lg[i, win[i + 1]]
                cnt += 1
        out.update(perplexity=float(np.exp(nll / cnt)), tokens=cnt)
        print(json.dumps(out))
        return

    ids = [(i * 7919 + 13) % (n_vocab - 10) + 3 for i in range(max(a.prefill, a.depth) + a.decode + 1)]
    pre, dec = [], []
    for rep in range(a.reps + 1):
        L.llama_memory_clear(mem, True)
        if a.prefill:
            dt = feed(ids[:a.prefill], 0)
            if rep:
                pre.append(a.prefill / dt)
        if a.decode:
            L.llama_memory_clear(mem, True)
            if a.depth:
                feed(ids[:a.depth], 0)
            else:
                feed(ids[:1], 0)
            p = max(a.depth, 1)
            t = sum(feed([ids[p + i]], p + i) for i in range(a.decode))
            if rep:
                dec.append(a.decode / t)
    out.update(prefill_tps=statistics.median(pre) if pre else None, decode_tps=statistics.median(dec) if dec else None,
               prefill_all=pre, decode_all=dec, peak_rss_kb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
