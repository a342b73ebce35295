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
    # which layers slide, said by a period or one by one; the caps of gemma2's first files, which have no keys
    "gemma2-windows": dict(BASE, arch="gemma2", tied=True, window=10, n_layer=5, pattern=3, caps=False),
    "gemma3-windows": dict({k: v for k, v in M.PRESETS["gemma3"].items() if k != "swa_every"}, pattern=[1, 0, 0, 1]),
    "gpt-oss-windows": dict(M.PRESETS["gpt-oss"], pattern=[0, 1, 1]),
    "lfm2": dict(BASE, arch="lfm2", n_kv=[0, 2, 0, 0, 1], n_layer=5, conv=3),
    "gemma3n": dict(M.PRESETS["gemma3n"]),
    "gemma3n-shared": dict(M.PRESETS["gemma3n"], n_layer=7, swa_layers=[1, 1, 0, 1, 1, 1, 0], n_shared_kv=3,
                           sparsity=[1.6448536, 0, 1.2, 0, 0, 1.6448536, 0]),
    "glm4moe-mtp": dict(BASE, arch="glm4moe", n_rot=8, qk=True, n_nextn=1, **MOE),
    # rows of struct arch_plain: what differs from llama is in PLAIN below
    "internlm2": dict(BASE, arch="internlm2"),
    "exaone": dict(BASE, arch="exaone"),
    "ernie4_5": dict(BASE, arch="ernie4_5"),
    "minicpm": dict(BASE, arch="minicpm"),
    "qwen2vl": dict(BASE, arch="qwen2vl", sections=[3, 3, 2, 0]),
    "qwen3vl": dict(BASE, arch="qwen3vl", sections=[3, 3, 2, 0]),
    "qwen3vlmoe": dict(BASE, arch="qwen3vlmoe", sections=[3, 3, 2, 0], **MOE),
    "mixtral": dict(BASE, arch="llama", n_ff=48, pre="llama-bpe", **MOE),
    "chatglm": dict(BASE, arch="chatglm", n_rot=8),
    "xverse": dict(BASE, arch="xverse"),
    "orion": dict(BASE, arch="orion"),
    "starcoder2": dict(BASE, arch="starcoder2"),
    "nemotron": dict(BASE, arch="nemotron", n_rot=8),
    "gpt2": dict(BASE, arch="gpt2", n_kv=4, n_ctx=512),
    "starcoder": dict(BASE, arch="starcoder", n_kv=1, n_ctx=512),
    "phi2": dict(BASE, arch="phi2", n_kv=4, n_rot=8),
    "arcee": dict(BASE, arch="arcee"),
    "stablelm": dict(BASE, arch="stablelm", n_kv=4, n_rot=8),
    "stablelm-once": dict(BASE, arch="stablelm", n_kv=4, n_rot=8, once=True),
    "command-r": dict(BASE, arch="command-r", tied=True),
    "cohere2": dict(BASE, arch="cohere2", tied=True, window=12, n_layer=5),
    "glm4": dict(BASE, arch="glm4", n_rot=8),
    "exaone4": dict(BASE, arch="exaone4"),
    # llama.cpp knows the member with windows by its 64 layers
    "exaone4-swa": dict(BASE, arch="exaone4", window=12, n_layer=64, n_ff=32),
    "seed_oss": dict(BASE, arch="seed_oss"),
    "ernie4_5-moe": dict(BASE, arch="ernie4_5-moe", **MOE),
    "deepseek": dict(BASE, arch="deepseek", n_kv=4, **MOE),
    "olmoe": dict(BASE, arch="olmoe", n_kv=4, **dict(MOE, n_ff_exp=96)),
    "dots1": dict(BASE, arch="dots1", n_kv=4, **MOE),
    "bailingmoe2": dict(BASE, arch="bailingmoe2", n_rot=8, **MOE),
    "minimax-m2": dict(BASE, arch="minimax-m2", n_rot=8, **dict(MOE, n_ff_exp=96)),
    "lfm2moe": dict(BASE, arch="lfm2moe", n_kv=[0, 2, 0, 0, 1], n_layer=5, conv=3, **MOE),
    "deepseek2-lite": dict(M.PRESETS["deepseek2"], plain_q=True, n_layer=27, gating=1, w_norm=False, w_scale=1.0),
    "deepseek2-groups": dict(M.PRESETS["deepseek2"], n_used=3, groups=(4, 2)),
    "deepseek2-yarn": dict(M.PRESETS["deepseek2"], yarn=dict(factor=4.0, orig=32), log_mul=0.0707),
    "gemma-embedding": dict(BASE, arch="gemma-embedding", n_layer=7, window=20, rope_base=1e6, tied=True),
    "gemma-embedding-dense": dict(BASE, arch="gemma-embedding", n_layer=7, window=20, rope_base=1e6, tied=True, dense=96),
    "bert": dict(BASE, arch="bert", n_kv=4, n_ctx=512),
    "nomic-bert": dict(BASE, arch="nomic-bert", n_kv=4, n_ctx=512),
}


# norms: b before, a after, + around, 1 once for both branches; ln: layer norms with biases; ffn: u without a gate, f fused
PLAIN = {
    "internlm2": {}, "exaone": {}, "ernie4_5": {}, "minicpm": {}, "qwen2vl": dict(bias="qkv"), "qwen3vl": dict(qk="head"),
    "qwen3vlmoe": dict(qk="head", moe=True),
    "chatglm": dict(bias="qkv", fused=True, ffn="f"), "xverse": {},
    "orion": dict(ln=True),
    "starcoder2": dict(ln=True, bias="qkvofd", ffn="u"), "nemotron": dict(ln=True, bias="qkvofd", ffn="u"),
    "gpt2": dict(ln=True, bias="qkvofd", ffn="u", fused=True, pos=True),
    "starcoder": dict(ln=True, bias="qkvofd", ffn="u", fused=True, pos=True),
    "phi2": dict(ln=True, bias="qkvofdO", ffn="u", norms="1", fused=True), "arcee": dict(ffn="u"),
    "stablelm": dict(ln=True, bias="qkv"), "command-r": dict(ln=True, norms="1", biasless=True),
    "cohere2": dict(ln=True, norms="1", biasless=True), "glm4": dict(norms="+", ffn="f"),
    "exaone4": dict(norms="a", qk="head"), "seed_oss": dict(bias="qkv", ffn_norm="post_attention_norm"),
    "ernie4_5-moe": dict(moe=True, dense=1, shared=True, select=True), "deepseek": dict(moe=True, dense=1, shared=True),
    "olmoe": dict(moe=True, qk="full"), "dots1": dict(moe=True, qk="head", dense=1, shared=True, select=True),
    "bailingmoe2": dict(moe=True, qk="head", dense=1, shared=True, select=True, fused=True),
    "minimax-m2": dict(moe=True, qk="full", select=True),
}


class Builder(M.Builder):
    def header(self):
        super().header()
        how = self.c.get("pattern")
        if isinstance(how, list):
            self.arr("attention.sliding_window_pattern", G.BOOL, [bool(x) for x in how])
        elif how is not None:
            self.u32("attention.sliding_window_pattern", how)

    def layer_norm(self, name, with_bias):
        self.norm(name + ".weight", self.c["n_embd"])
        if with_bias:
            self.bias(name + ".bias", [self.c["n_embd"]])

    def plain_keys(self, p):
        c = self.c
        if p.get("ln"):
            self.f32("attention.layer_norm_epsilon", 1e-5)
        if "window" in c:
            self.u32("attention.sliding_window", c["window"])
        if "sections" in c:
            self.arr("rope.dimension_sections", G.I32, c["sections"])
        if self.arch in ("command-r", "cohere2"):
            self.f32("logit_scale", 0.25)
        if self.arch == "minicpm":
            self.granite_scales()
        if self.arch == "qwen3vl" or self.arch == "qwen3vlmoe":
            self.u32("n_deepstack_layers", 0)
        if not p.get("moe"):
            return
        self.u32("leading_dense_block_count", p.get("dense", 0))
        if p.get("shared"):
            self.u32("expert_shared_count", 1)
            self.u32("expert_shared_feed_forward_length", c["n_ff_exp"])
        if self.arch == "ernie4_5-moe":
            self.u32("interleave_moe_layer_step", 1)
        if self.arch in ("dots1", "bailingmoe2", "minimax-m2"):
            self.u32("expert_gating_func", 2)
            if self.arch != "minimax-m2":
                self.boolean("expert_weights_norm", True)
                self.f32("expert_weights_scale", 1.5)
        if self.arch == "bailingmoe2":
            self.u32("expert_group_count", 4)
            self.u32("expert_group_used_count", 2)

    def plain_attention(self, i, p):
        c = self.c
        E, H, KV, hd = c["n_embd"], c["n_head"], c["n_kv"], c["hd"]
        b, name = p.get("bias", ""), "blk.%d." % i
        if p.get("fused"):
            self.mat(name + "attn_qkv.weight", [E, (H + 2 * KV) * hd], 1.6)
            if "qkv" in b:
                self.bias(name + "attn_qkv.bias", [(H + 2 * KV) * hd])
        else:
            self.qkv(i, bias="qkv" in b)
        if p.get("qk") == "head":
            self.qk_norm(i)
        elif p.get("qk") == "full":
            self.norm(name + "attn_q_norm.weight", H * hd, 1.5)
            self.norm(name + "attn_k_norm.weight", KV * hd, 1.5)
        self.attn_out(i, H * hd, bias="o" in b)

    def plain_ffn(self, i, p):
        c = self.c
        E, F, b, name = c["n_embd"], c["n_ff"], p.get("bias", ""), "blk.%d." % i
        if p.get("moe") and i >= p.get("dense", 0):
            self.moe(i)
            if p.get("select"):
                n = name + "exp_probs_b.bias"
                self.raw(n, [c["n_expert"]], 0.2 * self.z(n, c["n_expert"]))
            if p.get("shared"):
                self.ffn(i, c["n_ff_exp"], "_shexp")
        elif p.get("ffn") in ("u", "f"):
            self.mat(name + "ffn_up.weight", [E, F if p["ffn"] == "u" else 2 * F], 1.4)
            self.mat(name + "ffn_down.weight", [F, E], 1.4)
            if "f" in b:
                self.bias(name + "ffn_up.bias", [F])
            if "d" in b:
                self.bias(name + "ffn_down.bias", [E])
        else:
            self.ffn(i)

    def plain(self):
        c, p = self.c, dict(PLAIN[self.arch])
        if c.get("once"):
            p["norms"] = "1"
        norms, bias = p.get("norms", "b"), p.get("ln") and not p.get("biasless")
        self.plain_keys(p)
        self.embeddings()
        if bias:
            self.bias("output_norm.bias", [c["n_embd"]])
        if "O" in p.get("bias", ""):
            self.bias("output.bias", [c["n_vocab"]])
        if p.get("pos"):
            self.raw("position_embd.weight", [c["n_embd"], c["n_ctx"]],
                     0.5 * self.z("position_embd.weight", c["n_embd"] * c["n_ctx"]))
        for i in range(c["n_layer"]):
            name = "blk.%d." % i
            if norms != "a":
                self.layer_norm(name + "attn_norm", bias)
            if norms in "b+":
                self.layer_norm(name + p.get("ffn_norm", "ffn_norm"), bias)
            if norms in "a+":
                self.layer_norm(name + "post_attention_norm", bias)
                self.layer_norm(name + "post_ffw_norm", bias)
            self.plain_attention(i, p)
            self.plain_ffn(i, p)

    def build(self):
        if self.arch not in PLAIN:
            return super().build()
        self.header()
        self.plain()
        self.tokenizer()
        return self.g

    def a_deepseek2(self):
        c = self.c
        if "groups" in c:
            self.u32("expert_group_count", c["groups"][0])
            self.u32("expert_group_used_count", c["groups"][1])
        if "log_mul" in c:
            self.f32("rope.scaling.yarn_log_multiplier", c["log_mul"])
        super().a_deepseek2()
        if c.get("plain_q"):
            self.plain_q()

    def plain_q(self):
        """Queries without a latent: one product in the place of two and a norm."""
        c = self.c
        key = G._val(G.STR, self.key("attention.q_lora_rank"))
        self.g.kv = [kv for kv in self.g.kv if not kv.startswith(key)]
        self.g.tensors = [t for t in self.g.tensors if "attn_q_" not in t[0]]
        for i in range(c["n_layer"]):
            self.mat("blk.%d.attn_q.weight" % i, [c["n_embd"], c["n_head"] * (c["d_nope"] + c["n_rot"])], 1.6)

    def a_lfm2moe(self):
        self.u32("leading_dense_block_count", 1)
        self.u32("expert_gating_func", 2)
        self.a_lfm2()

    def layers(self, ffn_norm="ffn_norm", bias=False, qk=False, moe_from=None, shared=0, post=False, pre=True, fused=False,
               full_norms=False, scaled=False):
        c = self.c
        E, H, KV, hd, F = c["n_embd"], c["n_head"], c["n_kv"], c["hd"], c["n_ff"]
        self.embeddings(scaled=scaled)
        for i in range(c["n_layer"] + c.get("n_nextn", 0)):
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
                if i >= c["n_layer"]:
                    self.mat(p + "nextn.eh_proj.weight", [2 * E, E], 1.2)
                    for n in ("enorm", "hnorm", "shared_head_norm"):
                        self.norm(p + "nextn.%s.weight" % n, E)
            elif fused:
                self.mat(p + "ffn_up.weight", [E, 2 * F], 1.4)
                self.mat(p + "ffn_down.weight", [F, E], 1.4)
            else:
                self.ffn(i)

    def granite_scales(self):
        self.f32("embedding_scale", 3.0)
        self.f32("residual_scale", 0.6)
        if self.arch != "minicpm":
            self.f32("attention.scale", 0.1)
        self.f32("logit_scale", 4.0)

    def a_granite(self):
        self.granite_scales()
        self.layers()

    def a_granitemoe(self):
        self.granite_scales()
        self.u32("expert_shared_feed_forward_length", 48)
        self.layers(moe_from=0, shared=48)

    def long_rope(self):
        n = self.c["n_rot"] // 2
        self.u32("rope.scaling.original_context_length", self.c["longrope"])
        self.f32("rope.scaling.attn_factor", 1.19)
        self.raw("rope_factors_long.weight", [n], 1.5 + 0.1 * np.arange(n))
        self.raw("rope_factors_short.weight", [n], 1.0 + 0.02 * np.arange(n))

    def a_phi3(self):
        if "longrope" in self.c:
            self.long_rope()
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
        if self.c.get("caps", True):
            self.f32("attn_logit_softcapping", 20.0)
            self.f32("final_logit_softcapping", 30.0)
        self.u32("attention.sliding_window", self.c["window"])
        self.layers(post=True, scaled=True)

    def a_gemma_embedding(self):
        c = self.c
        E, D = c["n_embd"], c.get("dense")
        self.u32("attention.sliding_window", c["window"])
        self.u32("pooling_type", 1)
        self.boolean("attention.causal", False)
        if D:
            for k, v in (("dense_2_feat_in", E), ("dense_2_feat_out", D), ("dense_3_feat_in", D), ("dense_3_feat_out", E)):
                self.u32(k, v)
            self.mat("dense_2.weight", [E, D], 1.2)
            self.mat("dense_3.weight", [D, E], 1.2)
        self.layers(post=True, scaled=True, qk=True)

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
            if c.get("n_expert") and i >= 1:
                self.moe(i)
                n = p + "exp_probs_b.bias"
                self.raw(n, [c["n_expert"]], 0.2 * self.z(n, c["n_expert"]))
            else:
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


def is_encoder(name):
    return "bert" in name or "embedding" in name


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
