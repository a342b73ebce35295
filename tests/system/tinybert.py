# SPDX-License-Identifier: Apache-2.0
"""A tiny embedding model (BERT, random weights) as GGUF, and the same computed in float64 with numpy."""
import math
import struct

import numpy as np

from splitgguf import build

E, F, HEADS, LAYERS, POSITIONS = 32, 64, 2, 2, 64
WORDS = ["the", "cat", "dog", "sat", "on", "mat", "a", "runs"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *("\u2581" + w for w in WORDS)]
EPS = 1e-12


def weights():
    rng = np.random.default_rng(3)
    g = lambda *shape: (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)
    near_one = lambda n: (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
    w = {"token_embd.weight": g(len(TOKENS), E), "token_types.weight": g(2, E), "position_embd.weight": g(POSITIONS, E),
         "token_embd_norm.weight": near_one(E), "token_embd_norm.bias": g(E)}
    for i in range(LAYERS):
        for n in "qkv":
            w[f"blk.{i}.attn_{n}.weight"], w[f"blk.{i}.attn_{n}.bias"] = g(E, E), g(E)
        w[f"blk.{i}.attn_output.weight"], w[f"blk.{i}.attn_output.bias"] = g(E, E), g(E)
        w[f"blk.{i}.attn_output_norm.weight"], w[f"blk.{i}.attn_output_norm.bias"] = near_one(E), g(E)
        w[f"blk.{i}.ffn_up.weight"], w[f"blk.{i}.ffn_up.bias"] = g(F, E), g(F)
        w[f"blk.{i}.ffn_down.weight"], w[f"blk.{i}.ffn_down.bias"] = g(E, F), g(E)
        w[f"blk.{i}.layer_output_norm.weight"], w[f"blk.{i}.layer_output_norm.bias"] = near_one(E), g(E)
    return w


def gguf():
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    u32 = lambda v: (4, struct.pack("<I", v))
    kvs = {"general.architecture": (8, text("bert")), "bert.context_length": u32(POSITIONS), "bert.embedding_length": u32(E),
           "bert.block_count": u32(LAYERS), "bert.feed_forward_length": u32(F), "bert.attention.head_count": u32(HEADS),
           "bert.attention.layer_norm_epsilon": (6, struct.pack("<f", EPS)), "bert.attention.causal": (7, b"\0"),
           "bert.pooling_type": u32(1), "tokenizer.ggml.model": (8, text("bert")),
           "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, len(TOKENS)) + b"".join(text(t) for t in TOKENS)),
           "tokenizer.ggml.token_type": (9, struct.pack("<IQ", 5, len(TOKENS)) + struct.pack(f"<{len(TOKENS)}i", 3, 3, 3, 3, *[1] * len(WORDS))),
           "tokenizer.ggml.padding_token_id": u32(0), "tokenizer.ggml.unknown_token_id": u32(1),
           "tokenizer.ggml.cls_token_id": u32(2), "tokenizer.ggml.seperator_token_id": u32(3),
           "tokenizer.ggml.bos_token_id": u32(2), "tokenizer.ggml.eos_token_id": u32(3)}
    tensors = [[n.encode(), list(reversed(a.shape)), 0, 0, a.tobytes()] for n, a in weights().items()]
    return build([(k.encode(), t, v) for k, (t, v) in kvs.items()], tensors)


def embed(words):
    """The reference: [CLS] words [SEP], mean over all positions, length 1."""
    w = {n: a.astype(np.float64) for n, a in weights().items()}
    ids = [2, *(4 + WORDS.index(x) for x in words), 3]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name + ".weight"] + w[name + ".bias"]

    linear = lambda x, name: x @ w[name + ".weight"].T + w[name + ".bias"]
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    x = norm(w["token_embd.weight"][ids] + w["token_types.weight"][0] + w["position_embd.weight"][: len(ids)], "token_embd_norm")
    for i in range(LAYERS):
        split = lambda n: linear(x, f"blk.{i}.attn_{n}").reshape(len(ids), HEADS, E // HEADS).transpose(1, 0, 2)
        q, k, v = (split(n) for n in "qkv")
        s = q @ k.transpose(0, 2, 1) / math.sqrt(E // HEADS)
        s = np.exp(s - s.max(-1, keepdims=True))
        a = (s / s.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), E)
        x = norm(x + linear(a, f"blk.{i}.attn_output"), f"blk.{i}.attn_output_norm")
        x = norm(x + linear(gelu(linear(x, f"blk.{i}.ffn_up")), f"blk.{i}.ffn_down"), f"blk.{i}.layer_output_norm")
    v = x.mean(0)
    return v / np.sqrt(v @ v), len(ids)
