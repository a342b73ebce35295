#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes EXPECTED_DIR/NAME.npy for test_families.py: what llama.cpp computes for a model of make_families.py.

usage: record_families.py EXPECTED_DIR NAME...

Needs the package llama-cpp-python in the Python that runs it; it is no dependency of Hearth. CPU, F32 KV cache, flash
attention off, one thread, the whole prompt in one batch.
"""
import ctypes
import os
import sys
import tempfile

import llama_cpp as L
import numpy as np

import make_families as F
import test_families as T


def load(path):
    params = L.llama_model_default_params()
    params.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit("%s was not loaded" % path)
    return model


def rows(path, ids, embed):
    model = load(path)
    p = L.llama_context_default_params()
    p.n_ctx = max(len(ids) + 8, 512)
    p.n_batch = p.n_ubatch = max(len(ids), 512)
    p.n_threads = p.n_threads_batch = 1
    p.type_k = p.type_v = 0
    p.flash_attn_type = 0
    p.embeddings = embed
    if embed:
        p.pooling_type = 1
    ctx = L.llama_init_from_model(model, p)
    b = L.llama_batch_init(len(ids), 0, 1)
    b.n_tokens = len(ids)
    for i, t in enumerate(ids):
        b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = t, i, 1, 0, 1
    if L.llama_decode(ctx, b):
        sys.exit("%s: decode failed" % path)
    if embed:
        n = L.llama_model_n_embd(model)
        return np.ctypeslib.as_array(L.llama_get_embeddings_seq(ctx, 0), (1, n)).copy()
    n = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    return np.ctypeslib.as_array(L.llama_get_logits(ctx), (len(ids), n))[list(T.POSITIONS)].copy()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    keep = []
    if not os.environ.get("VERBOSE"):
        keep.append(L.llama_log_callback(lambda level, text, ud: None))
        L.llama_log_set(keep[0], ctypes.c_void_p(0))
    for name in sys.argv[2:]:
        if name in T.OWN:
            sys.exit("%s is compared with reference.py only" % name)
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, name + ".gguf")
            F.build(name).write(path)
            got = rows(path, T.tokens(T.LENGTH.get(name, 60)), F.is_encoder(name))
        assert np.isfinite(got).all(), name
        np.save(os.path.join(sys.argv[1], name + ".npy"), got)
        print(name, got.shape, "std %.3g" % got.std())


if __name__ == "__main__":
    main()
