# SPDX-License-Identifier: Apache-2.0
"""Forward passes in float64, written from the papers for models of make_families.py and nothing else: what a family must
give, where llama.cpp rounds (its GELU is a table of halves), hard-codes or leaves a part out.

    gemma3n   AltUp arXiv:2301.13310, LAuReL arXiv:2411.07501, Gemma 3n's model card for the rest
    bert      arXiv:1810.04805 with the exact GELU
    nomic     arXiv:2402.01613: rotary positions, SwiGLU
    gemma3    arXiv:2503.19786, for texts of which llama.cpp's scores would take too long
    glm4moe   arXiv:2508.06471: the multi-token-prediction layer on top of a trunk of plain layers
    qwen35    arXiv:2412.06464 (gated delta net) and gated attention, with the multi-token-prediction layer

A model is a dict of float64 arrays by GGUF name (matrices [out, in]) and the builder's numbers.
"""
import math

import numpy as np


def weights(g):
    """The F32 tensors of a make_tiny Gguf."""
    out = {}
    for name, ne, _, data in g.tensors:
        out[name] = np.frombuffer(data, np.float32).astype(np.float64).reshape(list(reversed(ne)))
    return out


def rms(x, w=None, eps=1e-6):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if w is None else y * w


def layer_norm(x, w, b, eps):
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + eps) * w + b


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, base, n_rot=None, scale=1.0):
    """x [n, heads, d]: pairs are half of the rotated dimensions apart."""
    n = n_rot or x.shape[-1]
    h = n // 2
    t = scale * np.arange(x.shape[0])[:, None] * base ** (-2.0 * np.arange(h) / n)
    c, s = np.cos(t)[:, None, :], np.sin(t)[:, None, :]
    y = x.copy()
    y[..., :h] = x[..., :h] * c - x[..., h:n] * s
    y[..., h:n] = x[..., :h] * s + x[..., h:n] * c
    return y


def attend(q, k, v, scale, window=0, causal=True):
    """q [n, H, d], k and v [n, KV, d]: [n, H * d]"""
    n, H, d = q.shape
    k, v = (np.repeat(a, H // k.shape[1], axis=1) for a in (k, v))
    s = np.einsum("qhd,khd->hqk", q, k) * scale
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    seen = (j <= i) if causal else np.ones((n, n), bool)
    if window:
        seen = seen & (i - j < window)
    return np.einsum("hqk,khd->qhd", softmax(np.where(seen, s, -np.inf)), v).reshape(n, -1)


# ---- gemma3n ----------------------------------------------------------------

def gemma3n(c, w, ids):
    E, L, P, A, H, KV, hd = c["n_embd"], c["n_layer"], c["n_ple"], c["n_altup"], c["n_head"], c["n_kv"], c["hd"]
    eps, n, first_shared = c.get("eps", 1e-6), len(ids), L - c["n_shared_kv"]
    x = w["token_embd.weight"][ids] * math.sqrt(E)
    table = w["per_layer_token_embd.weight"][ids].reshape(n, L, P) * math.sqrt(P)
    proj = (x @ w["per_layer_model_proj.weight"].T / math.sqrt(E)).reshape(n, L, P)
    ple = (rms(proj, w["per_layer_proj_norm.weight"], eps) + table) / math.sqrt(2)

    def same_size(y, like):
        return y * np.sqrt((like ** 2).mean(-1, keepdims=True) / np.maximum((y ** 2).mean(-1, keepdims=True), 1e-5))

    h = [x] + [same_size(x @ w["altup_proj.weight"][i].T, x) for i in range(A - 1)]
    kept = {}
    for i in range(L):
        t = lambda name: w["blk.%d.%s.weight" % (i, name)]
        modes = lambda y: np.tanh(rms(y, t("altup_router_norm"), eps) / E @ t("altup_router").T)
        coef = (modes(h[0]) @ t("altup_predict_coef").T).reshape(n, A, A)
        pred = [h[j] + sum(coef[:, j, k:k + 1] * h[k] for k in range(A)) for j in range(A)]
        a = rms(pred[0], t("attn_norm"), eps)
        laurel = a + rms(a @ t("laurel_l").T @ t("laurel_r").T, t("laurel_post_norm"), eps)
        swa = c["swa_layers"][i]
        base = c["rope_base_swa"] if swa else c["rope_base"]
        q = rope(rms((a @ t("attn_q").T).reshape(n, H, hd), t("attn_q_norm"), eps), base)
        if i < first_shared:
            k = rope(rms((a @ t("attn_k").T).reshape(n, KV, hd), t("attn_k_norm"), eps), base)
            v = rms((a @ t("attn_v").T).reshape(n, KV, hd), eps=eps)
            kept[bool(swa)] = (k, v)
        else:
            k, v = kept[bool(swa)]
        o = attend(q, k, v, 1.0, c["window"] if swa else 0) @ t("attn_output").T
        y = (pred[0] + rms(o, t("post_attention_norm"), eps) + laurel) / math.sqrt(2)
        f = rms(y, t("ffn_norm"), eps)
        gate = f @ t("ffn_gate").T
        if c["sparsity"][i]:
            gate = np.maximum(gate - (gate.mean(-1, keepdims=True) + c["sparsity"][i] * gate.std(-1, keepdims=True)), 0)
        y = y + rms(gelu_tanh(gate) * (f @ t("ffn_up").T) @ t("ffn_down").T, t("post_ffw_norm"), eps)
        coef = modes(y) @ t("altup_correct_coef").T + 1
        h = [pred[j] + (y - pred[0]) * coef[:, j:j + 1] for j in range(A)]
        e = gelu_tanh(h[0] * t("altup_correct_scale") @ t("inp_gate").T) * ple[:, i]
        e = rms(e @ t("proj").T, t("post_norm"), eps)
        h = [h[0]] + [y + e for y in h[1:]]
    out = sum([h[0]] + [same_size(h[i + 1] @ w["altup_unembd_proj.weight"][i].T, h[0]) for i in range(A - 1)]) / A
    logits = rms(out, w["output_norm.weight"], eps) @ w["token_embd.weight"].T
    return 30 * np.tanh(logits / 30)


# ---- encoders ---------------------------------------------------------------

def encoder(c, w, ids):
    """Hidden states [n, n_embd] of bert or nomic-bert."""
    nomic, eps, n, H, hd = c["arch"] == "nomic-bert", 1e-6, len(ids), c["n_head"], c["hd"]
    x = w["token_embd.weight"][ids] + w["token_types.weight"][0]
    if not nomic:
        x = x + w["position_embd.weight"][:n]
    x = layer_norm(x, w["token_embd_norm.weight"], w["token_embd_norm.bias"], eps)
    for i in range(c["n_layer"]):
        t = lambda name, kind="weight": w["blk.%d.%s.%s" % (i, name, kind)]
        if nomic:
            q, k, v = np.split(x @ t("attn_qkv").T, 3, axis=-1)
        else:
            q, k, v = (x @ t("attn_" + s).T + t("attn_" + s, "bias") for s in "qkv")
        q, k, v = (a.reshape(n, H, hd) for a in (q, k, v))
        if nomic:
            q, k = rope(q, 10000.0), rope(k, 10000.0)
        o = attend(q, k, v, 1 / math.sqrt(hd), causal=False) @ t("attn_output").T
        if not nomic:
            o = o + t("attn_output", "bias")
        x = layer_norm(x + o, t("attn_output_norm"), t("attn_output_norm", "bias"), eps)
        if nomic:
            o = silu(x @ t("ffn_gate").T) * (x @ t("ffn_up").T) @ t("ffn_down").T
        else:
            o = gelu(x @ t("ffn_up").T + t("ffn_up", "bias")) @ t("ffn_down").T + t("ffn_down", "bias")
        x = layer_norm(x + o, t("layer_output_norm"), t("layer_output_norm", "bias"), eps)
    return x


def pool(x, kind, normalize=False):
    y = {"mean": x.mean(0), "cls": x[0], "last": x[-1]}[kind]
    return y / np.sqrt((y * y).sum()) if normalize else y


# ---- glm4moe ----------------------------------------------------------------

def glm_layer(c, t, x):
    n, H, KV, hd, eps = len(x), c["n_head"], c["n_kv"], c["hd"], c["eps"]
    a = rms(x, t("attn_norm"), eps)
    q, k, v = ((a @ t("attn_" + s).T + t("attn_" + s, "bias")).reshape(n, -1, hd) for s in "qkv")
    q, k = rms(q, t("attn_q_norm"), eps), rms(k, t("attn_k_norm"), eps)
    base = 10000.0
    x = x + attend(rope(q, base, c["n_rot"]), rope(k, base, c["n_rot"]), v, 1 / math.sqrt(hd)) @ t("attn_output").T
    f = rms(x, t("post_attention_norm"), eps)

    def swiglu(y, gate, up, down):
        return (silu(y @ gate.T) * (y @ up.T)) @ down.T

    if not t.has("ffn_gate_inp"):
        return x + swiglu(f, t("ffn_gate"), t("ffn_up"), t("ffn_down"))
    p = sigmoid(f @ t("ffn_gate_inp").T)
    y = swiglu(f, t("ffn_gate_shexp"), t("ffn_up_shexp"), t("ffn_down_shexp"))
    for r in range(n):
        best = np.argsort(-(p[r] + t("exp_probs_b", "bias").reshape(-1)), kind="stable")[:c["n_used"]]
        total = p[r][best].sum()
        for e in best:
            y[r] += 1.5 * p[r][e] / total * swiglu(f[r], t("ffn_gate_exps")[e], t("ffn_up_exps")[e], t("ffn_down_exps")[e])
    return x + y


class Layer:
    def __init__(self, w, i):
        self.w, self.i = w, i

    def __call__(self, name, kind="weight"):
        return self.w["blk.%d.%s" % (self.i, name) + (".%s" % kind if kind else "")]

    def has(self, name):
        return "blk.%d.%s.weight" % (self.i, name) in self.w


def glm4moe_mtp(c, w, ids):
    """(the trunk's logits, the MTP layer's): its row p sees token p and the trunk's normed state of p - 1, zeros at 0."""
    eps, L = c["eps"], c["n_layer"]
    x = w["token_embd.weight"][ids]
    for i in range(L):
        x = glm_layer(c, Layer(w, i), x)
    h = rms(x, w["output_norm.weight"], eps)
    t = Layer(w, L)
    before = np.vstack([np.zeros((1, c["n_embd"])), h[:-1]])
    both = np.hstack([rms(w["token_embd.weight"][ids], t("nextn.enorm"), eps), rms(before, t("nextn.hnorm"), eps)])
    y = rms(glm_layer(c, t, both @ t("nextn.eh_proj").T), t("nextn.shared_head_norm"), eps)
    return h @ w["output.weight"].T, y @ w["output.weight"].T


# ---- qwen35 -----------------------------------------------------------------

def delta_net(c, t, a):
    """Gated delta net, token by token. a [n, E]; V head h has K head h % n_k."""
    n, S, nk, nv, K = len(a), c["ssm_state"], c["ssm_k_heads"], c["ssm_v_heads"], c["conv"]
    x = np.vstack([np.zeros((K - 1, (2 * nk + nv) * S)), a @ t("attn_qkv").T])
    w = t("ssm_conv1d")  # [channels, taps], the last on the current token
    x = silu(sum(x[j:j + n] * w[:, j] for j in range(K)))
    q, k, v = x[:, :nk * S].reshape(n, nk, S), x[:, nk * S:2 * nk * S].reshape(n, nk, S), x[:, 2 * nk * S:].reshape(n, nv, S)
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + c.get("eps", 1e-6)) for y in (q, k))
    pick = np.arange(nv) % nk
    q, k = q[:, pick] / math.sqrt(S), k[:, pick]
    beta = sigmoid(a @ t("ssm_beta").T)
    decay = np.exp(t("ssm_a", None).reshape(-1) * np.logaddexp(0, a @ t("ssm_alpha").T + t("ssm_dt", "bias").reshape(-1)))
    state, out = np.zeros((nv, S, S)), np.zeros((n, nv, S))
    for i in range(n):
        state = state * decay[i][:, None, None]
        change = (v[i] - np.einsum("hkv,hk->hv", state, k[i])) * beta[i][:, None]
        state = state + k[i][:, :, None] * change[:, None, :]
        out[i] = np.einsum("hkv,hk->hv", state, q[i])
    z = (a @ t("attn_gate").T).reshape(n, nv, S)
    return (rms(out, t("ssm_norm"), c.get("eps", 1e-6)) * silu(z)).reshape(n, -1) @ t("ssm_out").T


def gated_attention(c, t, a):
    n, H, KV, hd, eps = len(a), c["n_head"], c["n_kv"], c["hd"], c.get("eps", 1e-6)
    both = (a @ t("attn_q").T).reshape(n, H, 2 * hd)
    q, gate = rms(both[..., :hd], t("attn_q_norm"), eps), both[..., hd:]
    k = rms((a @ t("attn_k").T).reshape(n, KV, hd), t("attn_k_norm"), eps)
    v = (a @ t("attn_v").T).reshape(n, KV, hd)
    o = attend(rope(q, c["rope_base"], c["n_rot"]), rope(k, c["rope_base"], c["n_rot"]), v, 1 / math.sqrt(hd))
    return o * sigmoid(gate.reshape(n, -1)) @ t("attn_output").T


def qwen35_ffn(c, t, f):
    def swiglu(y, gate, up, down):
        return (silu(y @ gate.T) * (y @ up.T)) @ down.T

    if not t.has("ffn_gate_inp"):
        return swiglu(f, t("ffn_gate"), t("ffn_up"), t("ffn_down"))
    y = swiglu(f, t("ffn_gate_shexp"), t("ffn_up_shexp"), t("ffn_down_shexp"))
    y = y * sigmoid(f @ t("ffn_gate_inp_shexp").reshape(-1, 1))
    p = softmax(f @ t("ffn_gate_inp").T)
    for r in range(len(f)):
        best = np.argsort(-p[r], kind="stable")[:c["n_used"]]
        for e in best:
            y[r] += p[r][e] / p[r][best].sum() * swiglu(f[r], t("ffn_gate_exps")[e], t("ffn_up_exps")[e], t("ffn_down_exps")[e])
    return y


def qwen35(c, w, ids):
    """(the trunk's logits, the MTP layer's), dense or with experts; tables and heads of the MTP layer's own where it has them."""
    eps, L = c.get("eps", 1e-6), c["n_layer"]

    def layer(i, x, full):
        t = Layer(w, i)
        a = rms(x, t("attn_norm"), eps)
        x = x + (gated_attention if full else delta_net)(c, t, a)
        return x + qwen35_ffn(c, t, rms(x, t("post_attention_norm"), eps))

    x = w["token_embd.weight"][ids]
    for i in range(L):
        x = layer(i, x, (i + 1) % c["interval"] == 0)
    h = rms(x, w["output_norm.weight"], eps)
    head = w.get("output.weight", w["token_embd.weight"])
    t = Layer(w, L)
    own = lambda name, other: t("nextn." + name) if t.has("nextn." + name) else other
    before = np.vstack([np.zeros((1, c["n_embd"])), h[:-1]])
    token = own("embed_tokens", w["token_embd.weight"])[ids]
    y = layer(L, np.hstack([rms(token, t("nextn.enorm"), eps), rms(before, t("nextn.hnorm"), eps)]) @ t("nextn.eh_proj").T, True)
    return h @ head.T, rms(y, own("shared_head_norm", w["output_norm.weight"]), eps) @ own("shared_head_head", head).T


# ---- gemma3, long texts -----------------------------------------------------

def windowed(q, k, v, scale, window, block=512):
    """attend() with a window, without the whole matrix of scores."""
    out = []
    for at in range(0, len(q), block):
        lo, hi = max(0, at - window + 1), min(len(q), at + block)
        kk, vv = (np.repeat(a[lo:hi], q.shape[1] // k.shape[1], axis=1) for a in (k, v))
        s = np.einsum("qhd,khd->hqk", q[at:hi], kk) * scale
        back = np.arange(at, hi)[:, None] - np.arange(lo, hi)[None, :]
        s = np.where((back >= 0) & (back < window), s, -np.inf)
        out.append(np.einsum("hqk,khd->qhd", softmax(s), vv).reshape(hi - at, -1))
    return np.vstack(out)


def gemma3_long(c, w, ids, positions):
    """Logits at some positions of a gemma3 whose last layer alone sees everything."""
    E, L, H, KV, hd, n = c["n_embd"], c["n_layer"], c["n_head"], c["n_kv"], c["hd"], len(ids)
    scale, pos = 1 / math.sqrt(hd), np.array(positions)
    x = w["token_embd.weight"][ids] * math.sqrt(E)
    for i in range(L):
        t, full = Layer(w, i), (i + 1) % c["swa_every"] == 0
        assert full == (i == L - 1)
        a = rms(x, t("attn_norm"))
        q = rms((a @ t("attn_q").T).reshape(n, H, hd), t("attn_q_norm"))
        k = rms((a @ t("attn_k").T).reshape(n, KV, hd), t("attn_k_norm"))
        v = (a @ t("attn_v").T).reshape(n, KV, hd)
        if full:  # linear scaling: positions grow more slowly
            turn = 1 / c["rope_linear"]
            q, k = rope(q, c["rope_base"], scale=turn)[pos], rope(k, c["rope_base"], scale=turn)
            o = np.vstack([attend_last(q[j], k[:p + 1], v[:p + 1], scale) for j, p in enumerate(pos)])
            x = x[pos]
        else:
            o = windowed(rope(q, c["rope_base_swa"]), rope(k, c["rope_base_swa"]), v, scale, c["window"])
        x = x + rms(o @ t("attn_output").T, t("post_attention_norm"))
        f = rms(x, t("ffn_norm"))
        x = x + rms(gelu_tanh(f @ t("ffn_gate").T) * (f @ t("ffn_up").T) @ t("ffn_down").T, t("post_ffw_norm"))
    return rms(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def attend_last(q, k, v, scale):
    """One query [H, d] over all keys."""
    k, v = (np.repeat(a, q.shape[0] // k.shape[1], axis=1) for a in (k, v))
    p = softmax(np.einsum("hd,khd->hk", q, k) * scale)
    return np.einsum("hk,khd->hd", p, v).reshape(1, -1)
