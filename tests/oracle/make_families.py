#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of the families that make_tiny.py does not know; same noise, same container.

usage: make_families.py NAME OUT.gguf      (or no arguments: the names)
"""
import sys

import numpy as np

import make_tiny as M

G = M.Gguf
BASE = dict(n_embd=64, n_layer=3, n_head=4, n_kv=2, hd=16, n_ff=96, n_vocab=320, eps=1e-5, pre="qwen2")
MOE = dict(n_expert=8, n_used=3, n_ff_exp=48)
MODELS = {
    "granite": dict(BASE, arch="granite", tied=True),
    "granitemoe": dict(BASE, arch="granitemoe", **dict(MOE, n_ff_exp=96)),
    "phi3": dict(BASE, arch="phi3"),
    # LongRoPE: within the original context, and beyond it (the context is at least 512)
    "phi3-short": dict(BASE, arch="phi3", longrope=600, n_rot=16, n_ctx=2048),
    "phi3-long": dict(BASE, arch="phi3", longrope=128, n_rot=8, n_ctx=2048),
    "smollm3": dict(BASE, arch="smollm3", n_layer=5, tied=True),
    "olmo2": dict(BASE, arch="olmo2", n_kv=4),
    "olmo3": dict(BASE, arch="olmo2", window=12, n_layer=5, yarn=dict(factor=4.0, orig=32)),
    "glm4moe": dict(BASE, arch="glm4moe", n_rot=8, qk=True, **MOE),
    "glm4moe-air": dict(BASE, arch="glm4moe", n_rot=8, qk=False, **MOE),
    "qwen2moe": dict(BASE, arch="qwen2moe", sh_gate=True, **MOE),
    "gemma": dict(BASE, arch="gemma", tied=True),
    "gemma2": dict(BASE, arch="gemma2", tied=True, window=10, n_layer=4),
    "lfm2": dict(BASE, arch="lfm2", n_kv=[0, 2, 0, 0, 1], n_layer=5, conv=3),
    "bert": dict(BASE, arch="bert", n_kv=4, n_ctx=512),
    "nomic-bert": dict(BASE, arch="nomic-bert", n_kv=4, n_ctx=512),
}


class Builder(M.Builder):
    def layers(self, ffn_norm="ffn_norm", bias=False, qk=False, moe_from=None, shared=0, post=False, pre=True, fused=False,
               full_norms=False, scaled=False):
        c = self.c
        E, H, KV, hd, F = c["n_embd"], c["n_head"], c["n_kv"], c["hd"], c["n_ff"]
        self.embeddings(scaled=scaled)
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            if pre:
                self.norm(p + "attn_norm.weight", E)
                self.norm(p + ffn_norm + ".weight", E)
            if post:
                self.norm(p + "post_attention_norm.weight", E)
                self.norm(p + "post_ffw_norm.weight", E)
            if fused:
                self.mat(p + "attn_qkv.weight", [E, (H + 2 * KV) * hd], 1.6)
            else:
                self.qkv(i, bias=bias)
            if qk:
                self.qk_norm(i)
            if full_norms:
                self.norm(p + "attn_q_norm.weight", H * hd, 1.5)
                self.norm(p + "attn_k_norm.weight", KV * hd, 1.5)
            self.attn_out(i, H * hd)
            if moe_from is not None and i >= moe_from:
                self.moe(i)
                if c["arch"] == "glm4moe":
                    self.raw(p + "exp_probs_b.bias", [c["n_expert"]], 0.2 * self.z(p + "exp_probs_b.bias", c["n_expert"]))
                if c.get("sh_gate"):
                    self.raw(p + "ffn_gate_inp_shexp.weight", [E], 2.0 / np.sqrt(E) * self.z(p + "gate_shexp", E))
                if shared:
                    self.ffn(i, shared, "_shexp")
            elif fused:
                self.mat(p + "ffn_up.weight", [E, 2 * F], 1.4)
                self.mat(p + "ffn_down.weight", [F, E], 1.4)
            else:
                self.ffn(i)

    def granite_scales(self):
        self.f32("embedding_scale", 3.0)
        self.f32("residual_scale", 0.6)
        self.f32("attention.scale", 0.1)
        self.f32("logit_scale", 4.0)

    def a_granite(self):
        self.granite_scales()
        self.layers()

    def a_granitemoe(self):
        self.granite_scales()
        self.u32("expert_shared_feed_forward_length", 48)
        self.layers(moe_from=0, shared=48)

    def a_phi3(self):
        c = self.c
        if "longrope" in c:
            n = c["n_rot"] // 2
            self.u32("rope.scaling.original_context_length", c["longrope"])
            self.f32("rope.scaling.attn_factor", 1.19)
            self.raw("rope_factors_long.weight", [n], 1.5 + 0.1 * np.arange(n))
            self.raw("rope_factors_short.weight", [n], 1.0 + 0.02 * np.arange(n))
        self.layers(fused=True)

    def a_smollm3(self):
        self.layers()

    def a_olmo2(self):
        if "window" in self.c:
            self.u32("attention.sliding_window", self.c["window"])
        self.layers(pre=False, post=True, full_norms=True)

    def a_glm4moe(self):
        self.u32("leading_dense_block_count", 1)
        self.u32("expert_shared_count", 1)
        self.boolean("expert_weights_norm", True)
        self.f32("expert_weights_scale", 1.5)
        self.u32("expert_gating_func", 2)
        self.layers(ffn_norm="post_attention_norm", bias=True, qk=self.c["qk"], moe_from=1, shared=self.c["n_ff_exp"])

    def a_qwen2moe(self):
        self.u32("expert_shared_feed_forward_length", 48)
        self.layers(bias=True, moe_from=0, shared=48)

    def a_gemma(self):
        self.layers(scaled=True)

    def a_gemma2(self):
        self.f32("attn_logit_softcapping", 20.0)
        self.f32("final_logit_softcapping", 30.0)
        self.u32("attention.sliding_window", self.c["window"])
        self.layers(post=True, scaled=True)

    def a_lfm2(self):
        c = self.c
        E, L = c["n_embd"], c["conv"]
        self.u32("shortconv.l_cache", L)
        self.raw("token_embd.weight", [E, c["n_vocab"]], 0.3 * self.z("token_embd.weight", E * c["n_vocab"]))
        self.norm("token_embd_norm.weight", E, 0.9)
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.norm(p + "ffn_norm.weight", E)
            if c["n_kv"][i] == 0:
                self.mat(p + "shortconv.conv.weight", [L, E], 1.5, "F32")
                self.mat(p + "shortconv.in_proj.weight", [E, 3 * E], 1.4)
                self.mat(p + "shortconv.out_proj.weight", [E, E], 1.4)
            else:
                self.qkv(i, KV=c["n_kv"][i])
                self.qk_norm(i)
                self.attn_out(i, c["n_head"] * c["hd"])
            self.ffn(i)

    def encoder(self, nomic):
        c = self.c
        E, F = c["n_embd"], c["n_ff"]
        self.f32("attention.layer_norm_epsilon", 1e-6)
        self.boolean("attention.causal", False)
        self.u32("pooling_type", 1)
        self.raw("token_embd.weight", [E, c["n_vocab"]], self.z("token_embd.weight", E * c["n_vocab"]))
        self.raw("token_types.weight", [E, 2], 0.3 * self.z("token_types.weight", E * 2))
        if not nomic:
            self.raw("position_embd.weight", [E, c["n_ctx"]], 0.5 * self.z("position_embd.weight", E * c["n_ctx"]))

        def layer_norm(name):
            self.norm(name + ".weight", E)
            self.bias(name + ".bias", [E])

        layer_norm("token_embd_norm")
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            if nomic:
                self.mat(p + "attn_qkv.weight", [E, 3 * E], 1.6)
                self.mat(p + "ffn_gate.weight", [E, F], 1.4)
            else:
                self.qkv(i, bias=True)
                self.bias(p + "ffn_up.bias", [F])
                self.bias(p + "ffn_down.bias", [E])
            self.attn_out(i, E, bias=not nomic)
            layer_norm(p + "attn_output_norm")
            layer_norm(p + "layer_output_norm")
            self.mat(p + "ffn_up.weight", [E, F], 1.4)
            self.mat(p + "ffn_down.weight", [F, E], 1.4)

    def a_bert(self):
        self.encoder(False)

    def a_nomic_bert(self):
        self.encoder(True)

    def tokenizer(self):
        if "bert" not in self.arch:
            super().tokenizer()
            return
        V = self.c["n_vocab"]
        self.string("/tokenizer.ggml.model", "bert")
        self.string("/tokenizer.ggml.pre", "default")
        self.arr("/tokenizer.ggml.tokens", G.STR, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + ["\u2581w%d" % i for i in range(V - 5)])
        self.arr("/tokenizer.ggml.token_type", G.I32, [3] * 5 + [1] * (V - 5))
        self.u32("/tokenizer.ggml.token_type_count", 2)
        for k, v in dict(bos=2, eos=3, unknown=1, seperator=3, padding=0, cls=2, mask=4).items():
            self.u32("/tokenizer.ggml.%s_token_id" % k, v)


def vocab(n_vocab, n_special):
    """make_tiny's, with the names that llama.cpp expects of phi3 files."""
    tokens, types, merges = M.make_vocab(n_vocab, n_special)
    tokens[-4:] = ["</s>", "<|endoftext|>", "<s>", "<unk>"]
    return tokens, types, merges


def build(name, **changes):
    """A Gguf ready to be written or changed."""
    c = dict(MODELS[name], label=name, **changes)
    keep = M.make_vocab
    try:
        if c["arch"] == "phi3":
            made = vocab(c["n_vocab"], 8)
            M.make_vocab = lambda n_vocab, n_special: made
        return Builder(c, 1, "F32", None).build()
    finally:
        M.make_vocab = keep


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: make_families.py NAME OUT.gguf; names: " + " ".join(MODELS))
    build(sys.argv[1]).write(sys.argv[2])
