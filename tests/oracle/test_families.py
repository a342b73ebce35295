#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Families beyond tests/data/oracle against llama.cpp v0.5.0 and against forward passes in float64 (reference.py), and the
refusal of contradictory models.

usage: test_families.py HEARTH_PROBE EXPECTED_DIR [--share I/N] [-- OPTION...]

OPTIONs (--backend cuda) are the probe's, for every run: then only what a device computes is looked at, exact and, of the families, as served (the
arithmetic of prompts and of generated tokens, KV in f16), not what is refused. --share: every Nth case, from the Ith on.
EXPECTED_DIR/NAME.npy: llama.cpp's logits (encoders: embeddings, the mean over positions) of the model that
make_families.py makes, for the tokens below; F32 KV, flash attention off, one thread. Rows: positions 5, 40, last.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

import make_families as F
import make_tiny as M
import reference as R


def tokens(n):
    return [(i * i * 7 + i * 31 + 11) % 290 + 5 for i in range(n)]


LENGTH = {"phi3-long": 300}
POSITIONS = (5, 40, -1)
GELU = ("gemma", "starcoder", "gpt2", "phi2")  # llama.cpp's GELU is a table of halves
# Only in reference.py: llama.cpp takes another standard deviation for gemma3n's gates, and runs no MTP layer of glm4moe.
OWN = ("gemma3n", "gemma3n-shared", "glm4moe-mtp")


class Checker:
    def __init__(self, probe, tmp, device=()):
        self.probe, self.tmp, self.device, self.failed = probe, tmp, list(device), 0

    def fail(self, text):
        self.failed += 1
        print("FAIL " + text)

    def run(self, command, model, ids, *options, how=("--exact", "--kv", "f32")):
        out = os.path.join(self.tmp, "out.npy")
        p = subprocess.run([self.probe, command, "--model", model, "--tokens", ",".join(map(str, ids)), *how,
                            "--threads", "1", "--out", out, *options, *self.device], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=120)
        return (np.load(out), "") if p.returncode == 0 else (None, p.stderr.strip())

    def served(self, name, model, ids, want, limit=0.02):
        """As a program gets it: the root of the mean square, for of several experts that are as good another one may be chosen."""
        if F.is_encoder(name):
            got, why = self.run("embed", model, ids, how=("--kv", "f16"))
        else:
            got, why = self.run("logits", model, ids, "--positions", "all", "--prompt", "30", how=("--kv", "f16"))
        if got is None:
            return self.fail("%s, served: %s" % (name, why))
        got = got.reshape(1, -1) if F.is_encoder(name) else got[list(POSITIONS)]
        d, limit = np.sqrt(np.mean((got - want) ** 2)) / want.std(), 0.15 if F.MODELS[name].get("n_expert") else limit
        print("%-14s served rms = %.1e" % (name, d))
        if not d <= limit:
            self.fail("%s, served: rms = %.3g, at most %g" % (name, d, limit))

    def family(self, name, want):
        model = os.path.join(self.tmp, name + ".gguf")
        F.build(name).write(model)
        ids = tokens(LENGTH.get(name, 60))
        if F.is_encoder(name):
            got, why = self.run("embed", model, ids)
            limit = {"bert": 2e-3, "nomic-bert": 1e-3}.get(name, 2e-2)  # llama.cpp takes the tanh GELU where bert has erf
        else:
            got, why = self.run("logits", model, ids, "--positions", "all", "--chunk", "17")
            limit = 2e-2 if name.startswith(GELU) else 1e-3
        if got is None:
            return self.fail("%s: %s" % (name, why))
        got = got.reshape(1, -1) if F.is_encoder(name) else got[list(POSITIONS)]
        d = np.abs(got - want).max() / want.std()
        print("%-14s d = %.1e" % (name, d))
        if not d <= limit:
            self.fail("%s: d = %.3g, at most %g" % (name, d, limit))
        if self.device:
            self.served(name, model, ids, want)

    def near(self, what, got, why, want, limit=1e-4):
        if got is None:
            return self.fail("%s: %s" % (what, why))
        d = np.abs(got - want).max() / want.std()
        print("%-24s d = %.1e" % (what, d))
        if not d <= limit:
            self.fail("%s: d = %.3g, at most %g" % (what, d, limit))

    def decoder(self, name):
        """Every position against the float64 pass, whole and in chunks; the MTP layer too."""
        model = os.path.join(self.tmp, name + ".gguf")
        g, ids = F.build(name), np.array(tokens(60))
        g.write(model)
        if name.startswith("gemma3n"):
            want = R.gemma3n(F.MODELS[name], R.weights(g), ids)
        else:
            want, mtp = R.glm4moe_mtp(F.MODELS[name], R.weights(g), ids)
            self.near(name + " mtp", *self.run("mtp", model, ids), mtp)
            self.near(name + " mtp, chunks", *self.run("mtp", model, ids, "--chunk", "7"), mtp)
        self.near(name + " float64", *self.run("logits", model, ids, "--positions", "all", "--chunk", "17"), want)
        self.near(name + " generated", *self.run("logits", model, ids, "--positions", "all", "--prompt", "40"), want)
        if not self.device:
            self.near(name + " scalar", *self.run("logits", model, ids, "--positions", "all", "--variant", "scalar"), want)
        else:
            self.served(name, model, ids, want[list(POSITIONS)])

    def decoder_q8(self, name):
        """The same of matrices in Q8_0, for whose products activations are rounded, and parts of a layer joined, where it is served."""
        model, ids = os.path.join(self.tmp, name + "-q8_0.gguf"), np.array(tokens(60))
        # of 64 gates 1.6 deviations leave one or two, and a norm makes much of what little there is of them: a tenth is enough here
        c = dict(sparsity=[0.1 * (i % 2 == 0) for i in range(F.MODELS[name]["n_layer"])])
        g, same = in_q8_0(F.build(name, **c)), F.build(name, **c)
        g.write(model)
        same.tensors = [(n, ne, 0, as_f32(tid, data)) for n, ne, tid, data in g.tensors]
        want = R.gemma3n(dict(F.MODELS[name], **c), R.weights(same), ids)
        self.near(name + " Q8_0", *self.run("logits", model, ids, "--positions", "all", "--chunk", "17"), want)
        self.served(name, model, ids, want[list(POSITIONS)], 0.06) # rows of 64 columns: rounding is much of them

    def qwen35(self, what, preset, changes, keep=(), add=()):
        """Trunk and MTP layer of another shape against the float64 pass; 'keep' of the MTP layer's own parts, 'add' some."""
        g = tiny(preset, **changes)
        c, ids, E, V = dict(M.PRESETS[preset], **changes), np.array(tokens(60)), changes.get("n_embd", 64), 320
        for name in ("shared_head_norm",):
            if name not in keep:
                without(g, "blk.%d.nextn.%s.weight" % (c["n_layer"], name))
        for name in add:
            full = "blk.%d.nextn.%s.weight" % (c["n_layer"], name)
            g.tensor(full, [E, V], 0, (0.3 * M.noise(3, full, E * V)).astype(np.float32).tobytes())
        model = os.path.join(self.tmp, "qwen35.gguf")
        g.write(model)
        want, mtp = R.qwen35(c, R.weights(g), ids)
        self.near(what, *self.run("logits", model, ids, "--positions", "all", "--chunk", "17"), want)
        self.near(what + ", mtp", *self.run("mtp", model, ids), mtp)
        self.near(what + ", mtp, chunks", *self.run("mtp", model, ids, "--chunk", "7"), mtp)

    def encoder(self, name):
        """Each kind of pooling, as it is and normalized."""
        model = os.path.join(self.tmp, name + ".gguf")
        g, ids = F.build(name), np.array(tokens(60))
        hidden = R.encoder(F.MODELS[name], R.weights(g), ids)
        for kind, number in (("mean", 1), ("cls", 2), ("last", 3)):
            with_key(g, name + ".pooling_type", M.Gguf.U32, number).write(model)
            self.near("%s %s" % (name, kind), *self.run("embed", model, ids), R.pool(hidden, kind).reshape(1, -1))
            self.near("%s %s, normalized" % (name, kind), *self.run("embed", model, ids, "--normalize"),
                      R.pool(hidden, kind, True).reshape(1, -1))

    def same(self, what, a, b):
        """Two files that say the same in two ways."""
        got = []
        for g in (a, b):
            model = os.path.join(self.tmp, "same.gguf")
            g.write(model)
            out, why = self.run("logits", model, tokens(60), "--positions", "all")
            if out is None:
                return self.fail("%s: %s" % (what, why))
            got.append(out)
        if not np.array_equal(got[0], got[1]):
            self.fail("%s: the logits differ" % what)

    def refused(self, what, g, *words):
        model = os.path.join(self.tmp, "bad.gguf")
        g.write(model)
        got, why = self.run("logits", model, [1, 2, 3])
        if got is not None:
            return self.fail("%s: the model was accepted" % what)
        lost = [w for w in words if w not in why]
        if lost:
            self.fail("%s: %s not named in: %s" % (what, lost, why))


def tiny(preset, **changes):
    return M.Builder(dict(M.PRESETS[preset], label=preset, **changes), 1, "F32", None).build()


def without(g, name):
    g.tensors = [t for t in g.tensors if t[0] != name]
    return g


Q8_0, Q8_0_BLOCK = M.TYPES["Q8_0"][0], np.dtype([("d", "<f2"), ("q", "i1", 32)])


def in_q8_0(g):
    """Every matrix whose rows are blocks of 32."""
    out = []
    for name, ne, tid, data in g.tensors:
        if len(ne) > 1 and ne[0] % 32 == 0 and tid == 0:
            x = np.frombuffer(data, np.float32).reshape(-1, 32)
            blocks = np.zeros(len(x), Q8_0_BLOCK)
            blocks["d"] = np.abs(x).max(1) / 127
            d = blocks["d"].astype(np.float32)[:, None]
            blocks["q"] = np.rint(np.divide(x, d, out=np.zeros_like(x), where=d != 0)).clip(-127, 127)
            tid, data = Q8_0, blocks.tobytes()
        out.append((name, ne, tid, data))
    g.tensors = out
    return g


def as_f32(tid, data):
    if tid != Q8_0:
        return data
    blocks = np.frombuffer(data, Q8_0_BLOCK)
    return (blocks["d"].astype(np.float32)[:, None] * blocks["q"]).astype(np.float32).tobytes()


def cut_row(g, name):
    """The tensor with one row less."""
    for k, (n, ne, tid, data) in enumerate(g.tensors):
        if n == name:
            g.tensors[k] = (n, [ne[0], ne[1] - 1] + ne[2:], tid, data[:len(data) // ne[1] * (ne[1] - 1)])
    return g


def with_key(g, key, kind, value):
    """The key replaced, or removed where value is None."""
    head = g._val(g.STR, key)
    g.kv = [kv for kv in g.kv if not kv.startswith(head)]
    if value is not None:
        g.put(key, kind, value)
    return g


def left_out(c):
    """What a missing key or tensor means."""
    U32, F32, BOOL = M.Gguf.U32, M.Gguf.F32, M.Gguf.BOOL
    c.same("gemma4 without a cap has the family's", with_key(tiny("gemma4"), "gemma4.final_logit_softcapping", F32, None), tiny("gemma4"))
    c.same("the width of experts by their tensors", with_key(tiny("qwen3moe"), "qwen3moe.expert_feed_forward_length", U32, None),
           tiny("qwen3moe"))
    orig = "mistral3.rope.scaling.original_context_length"
    c.same("mistral3's original context is its context",
           with_key(with_key(tiny("mistral3"), "mistral3.context_length", U32, 64), orig, U32, None),
           with_key(with_key(tiny("mistral3"), "mistral3.context_length", U32, 64), orig, U32, 64))
    c.same("glm4moe's experts are weighed as they are", with_key(F.build("glm4moe"), "glm4moe.expert_weights_norm", BOOL, None),
           with_key(F.build("glm4moe"), "glm4moe.expert_weights_norm", BOOL, False))
    zero, none = tiny("qwen2"), tiny("qwen2")
    zero.tensors = [(n, ne, tid, bytes(len(data)) if n.endswith(".bias") else data) for n, ne, tid, data in zero.tensors]
    none.tensors = [t for t in none.tensors if not t[0].endswith(".bias")]
    c.same("qwen2 without biases", none, zero)
    c.refused("qwen2 without one bias", without(tiny("qwen2"), "blk.0.attn_k.bias"), "model_invalid", "blk.0.attn_k.bias", "missing")
    c.refused("gemma4 without a pattern of windows", with_key(tiny("gemma4"), "gemma4.attention.sliding_window_pattern", BOOL, None),
              "model_invalid", "gemma4.attention.sliding_window_pattern", "missing")


def refusals(c):
    U32, F32, STR = M.Gguf.U32, M.Gguf.F32, M.Gguf.STR
    c.refused("unknown architecture", with_key(tiny("llama"), "general.architecture", STR, "frobnicate"),
              "unknown_arch", "frobnicate", "llama", "qwen35", "bert")
    # every tensor that a family needs is missed by name
    for preset in ("llama", "qwen35moe", "gpt-oss", "gemma4-moe", "deepseek2", "bitnet"):
        optional = ("output.weight", "rope_freqs", ".scale", "layer_output_scale", "exp_probs_b", "shared_head_norm",
                    "ffn_gate_inp_shexp", "attn_v.weight" if preset == "gemma4-moe" else "-", "_exps.bias", "ffn_gate.weight")
        if preset == "gpt-oss":
            optional = tuple(o for o in optional if o != "_exps.bias") + ("ffn_gate_exps.bias",)
        names = [t[0] for t in tiny(preset).tensors if t[0].startswith("blk.0.") or not t[0].startswith("blk.")]
        for name in names:
            if not any(o in name for o in optional) or name.endswith("ffn_gate_inp.scale"):
                # without the fused tensor, the separate ones are asked for
                c.refused("%s without %s" % (preset, name), without(tiny(preset), name), "model_invalid",
                          name.replace("gate_up_exps", "gate_exps"), "missing")
    for preset, name in (("llama", "blk.1.attn_k.weight"), ("llama", "blk.0.ffn_up.weight"), ("qwen35", "blk.0.attn_qkv.weight"),
                         ("qwen3moe", "blk.0.ffn_down_exps.weight"), ("deepseek2", "blk.1.attn_k_b.weight"),
                         ("gemma4", "per_layer_token_embd.weight"), ("qwen35", "blk.4.nextn.eh_proj.weight")):
        c.refused("%s, %s a row short" % (preset, name), cut_row(tiny(preset), name), "model_invalid", name, "expected", "found")
    for what, g, words in (
            ("heads that don't divide", with_key(tiny("llama"), "llama.attention.head_count_kv", U32, 3), ("head_count_kv", "4", "3")),
            ("no heads", with_key(tiny("llama"), "llama.attention.head_count", U32, 0), ("head_count",)),
            ("no block_count", with_key(tiny("llama"), "llama.block_count", U32, None), ("llama.block_count",)),
            ("a block_count beyond reason", with_key(tiny("llama"), "llama.block_count", U32, 1 << 30), ("llama.block_count",)),
            ("one layer too many", with_key(tiny("llama"), "llama.block_count", U32, 3), ("blk.2.",)),
            ("another width", with_key(tiny("llama"), "llama.embedding_length", U32, 64), ("token_embd.weight", "64")),
            ("an odd rope", with_key(tiny("llama"), "llama.rope.dimension_count", U32, 63), ("63",)),
            ("a rope beyond the head", with_key(tiny("llama"), "llama.rope.dimension_count", U32, 128), ("128", "64")),
            ("a key of the wrong type", with_key(tiny("llama"), "llama.embedding_length", STR, "wide"), ("llama.embedding_length",)),
            ("rope that is not a number", with_key(tiny("llama"), "llama.rope.freq_base", F32, float("nan")), ("rope.freq_base",)),
            ("more experts used than there are", with_key(tiny("qwen3moe"), "qwen3moe.expert_used_count", U32, 9),
             ("expert_used_count", "9", "8")),
            ("delta heads that don't divide", with_key(tiny("qwen35"), "qwen35.ssm.group_count", U32, 3), ("ssm.time_step_rank", "3")),
            ("an unknown rope scaling", with_key(tiny("mistral3"), "mistral3.rope.scaling.type", STR, "spiral"), ("rope.scaling.type",)),
            ("shared KV of every layer", with_key(tiny("gemma4"), "gemma4.attention.shared_kv_layers", U32, 5), ("shared_kv_layers",)),
    ):
        c.refused(what, g, "model_invalid", *words)


def shares(args):
    """Whether case number i is this run's: all are, or by --share."""
    if not args:
        return lambda i: True
    if len(args) != 2 or args[0] != "--share" or "/" not in args[1]:
        sys.exit(__doc__)
    k, n = (int(x) for x in args[1].split("/"))
    return lambda i: i % n == k - 1


def main():
    args, device = sys.argv[1:], []
    if "--" in args:
        args, device = args[:args.index("--")], args[args.index("--") + 1:]
    if len(args) < 2:
        sys.exit(__doc__)
    mine, norm = shares(args[2:]), ("shared_head_norm",)
    with tempfile.TemporaryDirectory() as tmp:
        c = Checker(args[0], tmp, device)
        cases = [lambda n=n: c.family(n, np.load(os.path.join(args[1], n + ".npy"))) for n in F.MODELS if n not in OWN]
        cases += [lambda n=n: c.decoder(n) for n in OWN]
        cases += [lambda: c.decoder_q8("gemma3n"), lambda: c.decoder_q8("gemma3n-shared")]
        cases += [lambda n=n: c.encoder(n) for n in ("bert", "nomic-bert")]
        cases += [
            lambda: c.qwen35("qwen35, K heads 3 of 6", "qwen35",
                             dict(n_layer=5, interval=3, ssm_k_heads=3, ssm_v_heads=6, ssm_state=32, conv=3), norm),
            lambda: c.qwen35("qwen35, MTP with its own table and head", "qwen35", dict(n_layer=2, interval=2, tied=False), norm,
                             ("embed_tokens", "shared_head_head")),
            lambda: c.qwen35("qwen35, MTP with the trunk's norm", "qwen35", dict(n_layer=3, interval=2, n_head=6, n_kv=3, n_embd=96)),
            lambda: c.qwen35("qwen35moe", "qwen35moe", dict(n_layer=4, interval=2, ssm_k_heads=1, ssm_v_heads=3, n_expert=5, n_used=2),
                             norm, ("shared_head_head",)),
        ]
        if not device:
            cases += [lambda: left_out(c), lambda: refusals(c)]
        own, bad = [case for i, case in enumerate(cases) if mine(i)], 0
        for case in own:
            before = c.failed
            case()
            bad += c.failed > before
    print("%d cases, %d failed" % (len(own), bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
