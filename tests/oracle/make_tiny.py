#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_tiny.py - deterministic tiny random-weight GGUF models of many architectures.

Self-contained (numpy only).  Writes GGUF v3 directly.

  make_tiny.py --list
  make_tiny.py --preset llama --seed 1 --type F32 --out llama.gguf
  make_tiny.py --preset llama-q --seed 1 --type Q4_K --libggml /path/libggml-base.so --out q.gguf
  make_tiny.py --config cfg.json --seed 9 --out x.gguf        (cfg.json: {"arch": ..., ...})

The weights depend only on (seed, tensor name, shape, role): the random stream is an
integer counter hash, so the bytes are the same on every machine and numpy version.
F32, F16 and BF16 are encoded here; every other type is encoded by the shared library
given with --libggml (its exported ggml_quantize_chunk is called through ctypes).
"""
import argparse, ctypes, hashlib, json, struct, sys
import numpy as np

# --------------------------------------------------------------------------- types
TYPES = {  # name: (ggml id, weights per block, bytes per block)
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
}
FTYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9,
         "Q2_K": 10, "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25,
         "IQ4_XS": 30, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39}


def encode(a, tname, lib=None):
    """float32 array (rows, cols) -> bytes of the named tensor type"""
    a = np.ascontiguousarray(a, dtype=np.float32)
    if tname == "F32":
        return a.tobytes()
    if tname == "F16":
        return a.astype(np.float16).tobytes()
    if tname == "BF16":
        u = a.view(np.uint32).astype(np.uint64)
        return (((u + 0x7FFF + ((u >> 16) & 1)) >> 16) & 0xFFFF).astype(np.uint16).tobytes()
    if lib is None:
        raise SystemExit("type %s needs --libggml" % tname)
    tid, bw, bb = TYPES[tname]
    cols = a.shape[-1]
    rows = a.size // cols
    if cols % bw:
        raise SystemExit("row length %d is no multiple of %d for %s" % (cols, bw, tname))
    out = np.zeros(rows * cols // bw * bb, dtype=np.uint8)
    fp = a.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    lib.ggml_quantize_init(tid)
    n = lib.ggml_quantize_chunk(tid, fp, out.ctypes.data, 0, rows, cols, None)
    assert n == out.size, (tname, n, out.size)
    return out.tobytes()


def load_lib(path):
    lib = ctypes.CDLL(path)
    lib.ggml_quantize_init.argtypes = [ctypes.c_int]
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p,
                                        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return lib


# --------------------------------------------------------------------------- random numbers
def noise(seed, name, n):
    """n roughly normal float64 values (mean 0, variance 1, |x| < 3.47) from a counter hash"""
    key = int.from_bytes(hashlib.sha256(("%s|%s" % (seed, name)).encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        x = np.uint64(key) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    m = np.uint64(0xFFFF)
    s = sum(((x >> np.uint64(k)) & m).astype(np.int64) for k in (0, 16, 32, 48))
    return (s - 131070).astype(np.float64) / 37837.22


# --------------------------------------------------------------------------- tokenizer
CORPUS = """the small river ran under the old stone bridge and then it turned to the north where the
water was cold and clear. people of the town said that there was once a mill on the bank, and that the
wheel of the mill could be heard in the night. every morning the children walked along the path to the
school, and in the evening they returned with their books and their stories. numbers such as 12, 345 and
2026 appear in this text, as do words like testing, tokens, merging, attention, running, reading, thinking.
she thinks that he has been there before; he thinks that she is right. for each of these there is another
one, and another after that, until there are no more words to count. int main(void) { return 0; }"""


def byte_alphabet():
    """printable stand-in character for each byte value, as byte-level BPE vocabularies spell them"""
    keep = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    table, extra = {}, 256
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(extra)
            extra += 1
    return table


def make_vocab(n_vocab, n_special):
    alpha = byte_alphabet()
    tokens = [alpha[b] for b in range(256)]
    words, first = {}, True
    for w in CORPUS.split():
        sym = tuple(alpha[b] for b in ((b"" if first else b" ") + w.encode()))
        words[sym] = words.get(sym, 0) + 1
        first = False
    merges, want = [], n_vocab - 256 - n_special
    known = set(tokens)
    while len(merges) < want:
        count = {}
        for sym, c in words.items():
            for p in zip(sym, sym[1:]):
                count[p] = count.get(p, 0) + c
        count = {p: c for p, c in count.items() if p[0] + p[1] not in known}
        if not count:
            break
        best = min(count, key=lambda p: (-count[p], p))
        merges.append(best)
        tokens.append(best[0] + best[1])
        known.add(best[0] + best[1])
        new = {}
        for sym, c in words.items():
            out, i = [], 0
            while i < len(sym):
                if i + 1 < len(sym) and (sym[i], sym[i + 1]) == best:
                    out.append(sym[i] + sym[i + 1])
                    i += 2
                else:
                    out.append(sym[i])
                    i += 1
            new[tuple(out)] = new.get(tuple(out), 0) + c
        words = new
    types = [1] * len(tokens)
    while len(tokens) < n_vocab - n_special:      # corpus exhausted: unused filler
        tokens.append("<fill%d>" % len(tokens))
        types.append(5)
    names = ["<|bos|>", "<|eos|>", "<|eot|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]
    for i in range(n_special):
        tokens.append(names[i] if i < len(names) else "<|reserved%d|>" % i)
        types.append(3)
    return tokens, types, ["%s %s" % m for m in merges]


# --------------------------------------------------------------------------- GGUF container
class Gguf:
    U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
    FMT = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

    def __init__(self):
        self.kv, self.tensors = [], []

    @classmethod
    def _val(cls, t, v):
        if t == cls.STR:
            b = v.encode("utf-8")
            return struct.pack("<Q", len(b)) + b
        return struct.pack(cls.FMT[t], v)

    def put(self, key, t, v):
        self.kv.append(self._val(self.STR, key) + struct.pack("<I", t) + self._val(t, v))

    def put_array(self, key, t, vs):
        head = self._val(self.STR, key) + struct.pack("<IIQ", self.ARR, t, len(vs))
        self.kv.append(head + b"".join(self._val(t, v) for v in vs))

    def tensor(self, name, ne, tid, data):
        self.tensors.append((name, list(ne), tid, data))

    def write(self, path, align=32):
        infos, off = [], 0
        for name, ne, tid, data in self.tensors:
            infos.append(self._val(self.STR, name) + struct.pack("<I", len(ne))
                         + struct.pack("<%dQ" % len(ne), *ne) + struct.pack("<IQ", tid, off))
            off += (len(data) + align - 1) // align * align
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.kv)) + b"".join(self.kv) + b"".join(infos)
        with open(path, "wb") as f:
            f.write(head + b"\0" * (-len(head) % align))
            for _, _, _, data in self.tensors:
                f.write(data + b"\0" * (-len(data) % align))


# --------------------------------------------------------------------------- model building
class Builder:
    def __init__(self, cfg, seed, wtype, lib):
        self.c, self.seed, self.wtype, self.lib = cfg, seed, wtype, lib
        self.g = Gguf()
        self.arch = cfg["arch"]

    # metadata
    def u32(self, k, v): self.g.put(self.key(k), Gguf.U32, int(v))
    def f32(self, k, v): self.g.put(self.key(k), Gguf.F32, float(v))
    def boolean(self, k, v): self.g.put(self.key(k), Gguf.BOOL, bool(v))
    def string(self, k, v): self.g.put(self.key(k), Gguf.STR, v)
    def arr(self, k, t, v): self.g.put_array(self.key(k), t, v)
    def key(self, k): return k[1:] if k[0] == "/" else self.arch + "." + k

    # tensors.  shape is given in GGUF order: (columns = input size, rows, ...)
    def raw(self, name, ne, values, tname="F32"):
        values = np.asarray(values, dtype=np.float64).astype(np.float32).reshape(-1, ne[0])
        self.g.tensor(name, ne, TYPES[tname][0], encode(values, tname, self.lib))

    def z(self, name, n): return noise(self.seed, name, n)

    def mat(self, name, ne, gain=1.0, wtype=None):
        """weight matrix, N(0, gain/sqrt(inputs))"""
        n = int(np.prod(ne))
        w = self.z(name, n) * (gain / np.sqrt(ne[0]))
        if self.c.get("ternary") and "blk." in name:
            w = self.ternary(name, ne)
        self.raw(name, ne, w, wtype or self.wtype)

    def ternary(self, name, ne):
        """each weight is -d, 0 or +d (absmean-style ternary), about a third zeros"""
        n = int(np.prod(ne))
        d = 1.2 / np.sqrt(ne[0]) if not self.c.get("scale_tensors") else 1.0
        d = float(np.float16(d))
        z = self.z(name, n)
        return np.where(z > 0.43, d, np.where(z < -0.43, -d, 0.0))

    def norm(self, name, n, center=1.0, spread=0.15):
        self.raw(name, [n], center * (1.0 + spread * self.z(name, n)))

    def bias(self, name, ne, scale=0.3):
        self.raw(name, ne, scale * self.z(name, int(np.prod(ne))))

    # common parts
    def header(self):
        c = self.c
        self.string("/general.architecture", self.arch)
        self.string("/general.name", "tiny-%s" % c.get("label", self.arch))
        self.u32("/general.file_type", FTYPE.get(self.wtype, 0))
        self.u32("/general.quantization_version", 2)
        self.u32("/general.alignment", 32)
        self.u32("context_length", c.get("n_ctx", 1024))
        self.u32("embedding_length", c["n_embd"])
        self.u32("block_count", c["n_layer"] + c.get("n_nextn", 0))
        if isinstance(c["n_ff"], list):
            self.arr("feed_forward_length", Gguf.I32, c["n_ff"])
        else:
            self.u32("feed_forward_length", c["n_ff"])
        self.u32("attention.head_count", c["n_head"])
        if isinstance(c["n_kv"], list):
            self.arr("attention.head_count_kv", Gguf.I32, c["n_kv"])
        else:
            self.u32("attention.head_count_kv", c["n_kv"])
        self.u32("attention.key_length", c["hd"])
        self.u32("attention.value_length", c.get("hd_v", c["hd"]))
        self.f32("attention.layer_norm_rms_epsilon", c.get("eps", 1e-6))
        self.f32("rope.freq_base", c.get("rope_base", 10000.0))
        self.u32("rope.dimension_count", c.get("n_rot", c["hd"]))
        self.u32("vocab_size", c["n_vocab"])
        if c.get("n_nextn"):
            self.u32("nextn_predict_layers", c["n_nextn"])
        if c.get("n_expert"):
            self.u32("expert_count", c["n_expert"])
            self.u32("expert_used_count", c["n_used"])
            self.u32("expert_feed_forward_length", c["n_ff_exp"])
        y = c.get("yarn")
        if y:
            self.string("rope.scaling.type", "yarn")
            self.f32("rope.scaling.factor", y["factor"])
            self.u32("rope.scaling.original_context_length", y["orig"])
            for k in ("beta_fast", "beta_slow"):
                if k in y:
                    self.f32("rope.scaling.yarn_" + k, y[k])
        if c.get("rope_linear"):
            self.string("rope.scaling.type", "linear")
            self.f32("rope.scaling.factor", c["rope_linear"])

    def tokenizer(self):
        c = self.c
        nsp = c.get("n_special", 8)
        tok, typ, mer = make_vocab(c["n_vocab"], nsp)
        self.string("/tokenizer.ggml.model", "gpt2")
        self.string("/tokenizer.ggml.pre", c.get("pre", "gpt-2"))
        self.arr("/tokenizer.ggml.tokens", Gguf.STR, tok)
        self.arr("/tokenizer.ggml.token_type", Gguf.I32, typ)
        self.arr("/tokenizer.ggml.merges", Gguf.STR, mer)
        b = c["n_vocab"] - nsp
        self.u32("/tokenizer.ggml.bos_token_id", b)
        self.u32("/tokenizer.ggml.eos_token_id", b + 1)
        self.u32("/tokenizer.ggml.eot_token_id", b + 2)
        self.u32("/tokenizer.ggml.padding_token_id", b + 3)
        self.boolean("/tokenizer.ggml.add_bos_token", False)

    def embeddings(self, scaled=False):
        """scaled: the architecture multiplies embeddings by sqrt(n_embd) (gemma family).
        Tied models get small embeddings and a large output norm, so that the residual stream is
        not dominated by the current token (which would make every greedy continuation a repeat)."""
        c = self.c
        E, V = c["n_embd"], c["n_vocab"]
        s = 0.3 if c.get("tied") else 1.0
        if scaled:
            s = 0.5 / np.sqrt(E)
        self.raw("token_embd.weight", [E, V], s * self.z("token_embd.weight", E * V), c.get("embd_type", self.wtype))
        self.norm("output_norm.weight", E, 2.0 / (s * np.sqrt(E)) if c.get("tied") else 1.0)
        if not c.get("tied"):
            self.mat("output.weight", [E, V], 2.0, c.get("out_type"))

    def qkv(self, i, H=None, KV=None, hd=None, q_mul=1, bias=False, want_kv=True, want_v=True, gain=1.6):
        c = self.c
        E = c["n_embd"]
        H, KV, hd = H or c["n_head"], KV or c["n_kv"], hd or c["hd"]
        p = "blk.%d." % i
        self.mat(p + "attn_q.weight", [E, H * hd * q_mul], gain)
        if want_kv:
            self.mat(p + "attn_k.weight", [E, KV * hd], gain)
            if want_v:
                self.mat(p + "attn_v.weight", [E, KV * hd], 1.2)
        if bias:
            self.bias(p + "attn_q.bias", [H * hd * q_mul])
            self.bias(p + "attn_k.bias", [KV * hd])
            self.bias(p + "attn_v.bias", [KV * hd])

    def qk_norm(self, i, hd=None, want_k=True):
        hd = hd or self.c["hd"]
        s = self.c.get("qk_scale", 1.5)
        if self.c.get("attn_scale_one"):      # attention multiplies by 1, not 1/sqrt(hd)
            s = s / float(hd) ** 0.25
        self.norm("blk.%d.attn_q_norm.weight" % i, hd, s)
        if want_k:
            self.norm("blk.%d.attn_k_norm.weight" % i, hd, s)

    def attn_out(self, i, n_in, bias=False):
        self.mat("blk.%d.attn_output.weight" % i, [n_in, self.c["n_embd"]], 1.5)
        if bias:
            self.bias("blk.%d.attn_output.bias" % i, [self.c["n_embd"]])

    def ffn(self, i, n_ff=None, suffix=""):
        c = self.c
        E, F = c["n_embd"], n_ff or c["n_ff"]
        p = "blk.%d." % i
        self.mat(p + "ffn_gate%s.weight" % suffix, [E, F], 1.4)
        self.mat(p + "ffn_up%s.weight" % suffix, [E, F], 1.4)
        self.mat(p + "ffn_down%s.weight" % suffix, [F, E], 1.4)

    def moe(self, i, bias=False):
        c = self.c
        E, F, X = c["n_embd"], c["n_ff_exp"], c["n_expert"]
        p = "blk.%d." % i
        xt = c.get("expert_type")
        gain = c.get("moe_gain", 1.4)          # above 1.4: makes the clamp of the gpt-oss activation matter
        self.mat(p + "ffn_gate_inp.weight", [E, X], 2.0, "F32")
        if c.get("fused_gate_up"):
            self.mat(p + "ffn_gate_up_exps.weight", [E, 2 * F, X], gain, xt)
        else:
            self.mat(p + "ffn_gate_exps.weight", [E, F, X], gain, xt)
            self.mat(p + "ffn_up_exps.weight", [E, F, X], gain, xt)
        self.mat(p + "ffn_down_exps.weight", [F, E, X], 1.4 * (1.4 / gain) ** 2, xt)
        if bias:
            self.bias(p + "ffn_gate_inp.bias", [X])
            self.bias(p + "ffn_gate_exps.bias", [F, X])
            self.bias(p + "ffn_up_exps.bias", [F, X])
            self.bias(p + "ffn_down_exps.bias", [E, X])

    def shared_expert(self, i, gated=True):
        if gated:
            n = "blk.%d.ffn_gate_inp_shexp.weight" % i
            E = self.c["n_embd"]
            self.raw(n, [E], 2.0 / np.sqrt(E) * self.z(n, E))
        self.ffn(i, self.c["n_ff_shexp"], "_shexp")

    # ---- architectures
    def build(self):
        self.header()
        getattr(self, "a_" + self.arch.replace("-", "_"))()
        self.tokenizer()
        return self.g

    def dense_stack(self, qk_norm=False, bias=False, moe=False):
        c = self.c
        self.embeddings()
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", c["n_embd"])
            self.qkv(i, bias=bias)
            if qk_norm:
                self.qk_norm(i)
            self.attn_out(i, c["n_head"] * c["hd"])
            self.norm(p + "ffn_norm.weight", c["n_embd"])
            self.moe(i) if moe else self.ffn(i)

    def a_llama(self):
        c = self.c
        if c.get("freq_factors"):
            self.rope_freqs(c["freq_factors"])
        self.dense_stack(moe=bool(c.get("n_expert")))

    def rope_freqs(self, ff):
        """llama-3 style: 1 for high frequencies, `factor` for low ones, smooth between"""
        c = self.c
        n = c["hd"] // 2
        f = c.get("rope_base", 10000.0) ** (-2.0 * np.arange(n) / c["hd"])
        wave = 2 * np.pi / f
        lo, hi = ff["orig"] / ff["low"], ff["orig"] / ff["high"]
        s = (ff["orig"] / wave - ff["low"]) / (ff["high"] - ff["low"])
        mid = 1.0 / ((1 - s) / ff["factor"] + s)
        self.raw("rope_freqs.weight", [n], np.where(wave < hi, 1.0, np.where(wave > lo, ff["factor"], mid)))

    def a_mistral3(self):
        t = self.c.get("temp_scale")
        if t:
            self.f32("attention.temperature_scale", t)
        self.dense_stack()

    def a_qwen2(self): self.dense_stack(bias=True)
    def a_qwen3(self): self.dense_stack(qk_norm=True)
    def a_qwen3moe(self): self.dense_stack(qk_norm=True, moe=True)

    def a_bitnet(self):
        c = self.c
        E, F = c["n_embd"], c["n_ff"]
        self.embeddings()
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.norm(p + "attn_sub_norm.weight", E)
            self.qkv(i)
            self.attn_out(i, E)
            self.norm(p + "ffn_norm.weight", E)
            self.norm(p + "ffn_sub_norm.weight", F)
            self.ffn(i)
            if c.get("scale_tensors"):
                for t, k in (("attn_q", E), ("attn_k", E), ("attn_v", E), ("attn_output", E),
                             ("ffn_gate", E), ("ffn_up", E), ("ffn_down", F)):
                    n = p + t + ".scale"
                    self.raw(n, [1], [1.2 / np.sqrt(k) * (1 + 0.3 * self.z(n, 1)[0])])

    def a_gpt_oss(self):
        c = self.c
        E, H = c["n_embd"], c["n_head"]
        self.u32("attention.sliding_window", c["window"])
        self.embeddings()
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.qkv(i, bias=True)
            n = p + "attn_sinks.weight"
            self.raw(n, [H], 1.0 + 1.5 * self.z(n, H))
            self.attn_out(i, H * c["hd"], bias=True)
            self.norm(p + "post_attention_norm.weight", E)
            self.moe(i, bias=True)

    def a_gemma3(self):
        c = self.c
        E = c["n_embd"]
        self.u32("attention.sliding_window", c["window"])
        if "swa_every" in c:
            self.u32("attention.sliding_window_pattern", c["swa_every"])
        if "rope_base_swa" in c:
            self.f32("rope.freq_base_swa", c["rope_base_swa"])
        if "softcap" in c:
            self.f32("final_logit_softcapping", c["softcap"])
        self.embeddings(scaled=True)
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.qkv(i)
            self.qk_norm(i)
            self.attn_out(i, c["n_head"] * c["hd"])
            self.norm(p + "post_attention_norm.weight", E)
            self.norm(p + "ffn_norm.weight", E)
            self.ffn(i)
            self.norm(p + "post_ffw_norm.weight", E)

    def a_gemma4(self):
        c = self.c
        E, L, H, KV, P = c["n_embd"], c["n_layer"], c["n_head"], c["n_kv"], c["n_ple"]
        swa, hs, hf = c["swa_layers"], c["hd_swa"], c["hd"]
        self.u32("attention.sliding_window", c["window"])
        self.arr("attention.sliding_window_pattern", Gguf.BOOL, [bool(x) for x in swa])
        self.u32("attention.shared_kv_layers", c["n_shared_kv"])
        self.u32("embedding_length_per_layer_input", P)
        self.u32("attention.key_length_swa", hs)
        self.u32("attention.value_length_swa", hs)
        self.u32("rope.dimension_count_swa", hs)
        self.f32("rope.freq_base_swa", c["rope_base_swa"])
        if "softcap" in c:
            self.f32("final_logit_softcapping", c["softcap"])
        self.embeddings(scaled=True)
        # proportional rope: only the first part of the frequencies rotates
        n_live = int(hf // 2 * c.get("rope_part", 0.25))
        self.raw("rope_freqs.weight", [hf // 2], [1.0] * n_live + [1e30] * (hf // 2 - n_live))
        if P:
            n = "per_layer_token_embd.weight"
            self.raw(n, [P * L, c["n_vocab"]], 1.0 / np.sqrt(P) * self.z(n, P * L * c["n_vocab"]), self.wtype)
            self.mat("per_layer_model_proj.weight", [E, P * L], np.sqrt(E))
            self.norm("per_layer_proj_norm.weight", P)
        for i in range(L):
            p = "blk.%d." % i
            hd = hs if swa[i] else hf
            has_kv = i < L - c["n_shared_kv"]
            self.norm(p + "attn_norm.weight", E)
            # k_eq_v: full-attention layers have no V projection (V is the K projection)
            self.qkv(i, H, KV[i] if isinstance(KV, list) else KV, hd, want_kv=has_kv,
                     want_v=bool(swa[i]) or not c.get("k_eq_v"))
            self.qk_norm(i, hd, want_k=has_kv)
            self.attn_out(i, H * hd)
            self.norm(p + "post_attention_norm.weight", E)
            self.norm(p + "ffn_norm.weight", E)
            self.ffn(i, c["n_ff"][i] if isinstance(c["n_ff"], list) else c["n_ff"])
            self.norm(p + "post_ffw_norm.weight", E)
            if c.get("n_expert"):
                self.moe(i)
                n = p + "ffn_gate_inp.scale"
                self.norm(n, E, np.sqrt(E))
                self.norm(p + "pre_ffw_norm_2.weight", E)
                self.norm(p + "post_ffw_norm_1.weight", E)
                self.norm(p + "post_ffw_norm_2.weight", E)
                n = p + "ffn_down_exps.scale"
                self.norm(n, c["n_expert"])
            if P:
                self.mat(p + "inp_gate.weight", [E, P], 1.4)
                self.mat(p + "proj.weight", [P, E], 1.4)
                self.norm(p + "post_norm.weight", E)
            n = p + "layer_output_scale.weight"
            self.raw(n, [1], [0.9 + 0.15 * self.z(n, 1)[0]])

    def a_gemma3n(self):
        c = self.c
        E, L, H, KV, P = c["n_embd"], c["n_layer"], c["n_head"], c["n_kv"], c["n_ple"]
        A, R, hd = c["n_altup"], c["n_laurel"], c["hd"]
        self.u32("attention.sliding_window", c["window"])
        self.arr("attention.sliding_window_pattern", Gguf.BOOL, [bool(x) for x in c["swa_layers"]])
        self.u32("attention.shared_kv_layers", c["n_shared_kv"])
        self.u32("embedding_length_per_layer_input", P)
        self.u32("altup.active_idx", 0)
        self.u32("altup.num_inputs", A)
        self.arr("activation_sparsity_scale", Gguf.F32, c["sparsity"])
        if "rope_base_swa" in c:
            self.f32("rope.freq_base_swa", c["rope_base_swa"])
        self.embeddings(scaled=True)
        n = "per_layer_token_embd.weight"
        self.raw(n, [P * L, c["n_vocab"]], 1.0 / np.sqrt(P) * self.z(n, P * L * c["n_vocab"]), self.wtype)
        self.mat("per_layer_model_proj.weight", [E, P * L], np.sqrt(E))
        self.norm("per_layer_proj_norm.weight", P)
        self.mat("altup_proj.weight", [E, E, A - 1], 1.0)
        self.mat("altup_unembd_proj.weight", [E, E, A - 1], 1.0)
        for i in range(L):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.qkv(i)
            self.qk_norm(i)
            self.attn_out(i, H * hd)
            self.norm(p + "post_attention_norm.weight", E)
            self.norm(p + "ffn_norm.weight", E)
            self.ffn(i)
            self.norm(p + "post_ffw_norm.weight", E)
            self.mat(p + "inp_gate.weight", [E, P], 1.4)
            self.mat(p + "proj.weight", [P, E], 1.4)
            self.norm(p + "post_norm.weight", E)
            self.mat(p + "altup_correct_coef.weight", [A, A], 0.5, "F32")
            self.norm(p + "altup_correct_scale.weight", E)
            self.mat(p + "altup_predict_coef.weight", [A, A * A], 0.5, "F32")
            self.mat(p + "altup_router.weight", [E, A], 2.0)
            self.norm(p + "altup_router_norm.weight", E)
            self.mat(p + "laurel_l.weight", [E, R], 1.2)
            self.mat(p + "laurel_r.weight", [R, E], 1.2)
            self.norm(p + "laurel_post_norm.weight", E)

    def hybrid(self, moe=False, next_layout=False):
        """gated delta net layers with a full-attention layer every `interval`, optional MTP block"""
        c = self.c
        E, L, H, KV, hd = c["n_embd"], c["n_layer"], c["n_head"], c["n_kv"], c["hd"]
        S, nk, nv = c["ssm_state"], c["ssm_k_heads"], c["ssm_v_heads"]
        kd, vd = S * nk, S * nv
        if not next_layout:
            self.arr("rope.dimension_sections", Gguf.I32, c["sections"])
        self.u32("ssm.conv_kernel", c["conv"])
        self.u32("ssm.inner_size", vd)
        self.u32("ssm.state_size", S)
        self.u32("ssm.time_step_rank", nv)
        self.u32("ssm.group_count", nk)
        self.u32("full_attention_interval", c["interval"])
        if c.get("n_ff_shexp"):
            self.u32("expert_shared_feed_forward_length", c["n_ff_shexp"])
        self.embeddings()

        def full(i):
            self.qkv(i, H, KV, hd, q_mul=2)
            self.qk_norm(i)
            self.attn_out(i, H * hd)

        def mlp(i):
            if moe:
                self.moe(i)
                self.shared_expert(i)
            else:
                self.ffn(i)

        for i in range(L + c.get("n_nextn", 0)):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.norm(p + "post_attention_norm.weight", E)
            if i >= L or (i + 1) % c["interval"] == 0:
                full(i)
            else:
                self.mat(p + "attn_qkv.weight", [E, 2 * kd + vd], 1.2)
                self.mat(p + "attn_gate.weight", [E, vd], 1.2)
                self.mat(p + "ssm_conv1d.weight", [c["conv"], 2 * kd + vd], 1.5, "F32")
                n = p + "ssm_dt.bias"
                self.raw(n, [nv], self.z(n, nv) - 1.0)
                n = p + "ssm_a"
                self.raw(n, [nv], -(0.05 + 0.6 * np.abs(self.z(n, nv))))
                if next_layout:
                    self.mat(p + "ssm_ba.weight", [E, 2 * nv], 1.2)
                else:
                    self.mat(p + "ssm_beta.weight", [E, nv], 1.2)
                    self.mat(p + "ssm_alpha.weight", [E, nv], 1.2)
                self.norm(p + "ssm_norm.weight", S)
                self.mat(p + "ssm_out.weight", [vd, E], 1.5)
            mlp(i)
            if i >= L:
                self.mat(p + "nextn.eh_proj.weight", [2 * E, E], 1.2)
                self.norm(p + "nextn.enorm.weight", E)
                self.norm(p + "nextn.hnorm.weight", E)
                self.norm(p + "nextn.shared_head_norm.weight", E)

    def a_qwen35(self): self.hybrid()
    def a_qwen35moe(self): self.hybrid(moe=True)
    def a_qwen3next(self): self.hybrid(moe=True, next_layout=True)

    def a_deepseek2(self):
        c = self.c
        E, H = c["n_embd"], c["n_head"]
        r, q_r, nope, rope, vh = c["kv_rank"], c["q_rank"], c["d_nope"], c["n_rot"], c["d_v"]
        self.u32("leading_dense_block_count", c["n_dense"])
        self.u32("attention.q_lora_rank", q_r)
        self.u32("attention.kv_lora_rank", r)
        self.u32("attention.key_length_mla", nope + rope)
        self.u32("attention.value_length_mla", vh)
        self.u32("expert_shared_count", c["n_shexp"])
        self.f32("expert_weights_scale", c["w_scale"])
        self.boolean("expert_weights_norm", c.get("w_norm", True))
        self.u32("expert_gating_func", c["gating"])        # 1 softmax, 2 sigmoid
        self.embeddings()
        for i in range(c["n_layer"]):
            p = "blk.%d." % i
            self.norm(p + "attn_norm.weight", E)
            self.mat(p + "attn_q_a.weight", [E, q_r])
            self.norm(p + "attn_q_a_norm.weight", q_r)
            self.mat(p + "attn_q_b.weight", [q_r, H * (nope + rope)], 1.6)
            self.mat(p + "attn_kv_a_mqa.weight", [E, r + rope], 1.4)
            self.norm(p + "attn_kv_a_norm.weight", r)
            self.mat(p + "attn_k_b.weight", [nope, r, H], 1.4)
            self.mat(p + "attn_v_b.weight", [r, vh, H], 1.4)
            self.attn_out(i, H * vh)
            self.norm(p + "ffn_norm.weight", E)
            if i < c["n_dense"]:
                self.ffn(i)
            else:
                self.moe(i)
                if c["gating"] == 2:
                    n = p + "exp_probs_b.bias"
                    self.raw(n, [c["n_expert"]], 0.2 * self.z(n, c["n_expert"]))
                self.ffn(i, c["n_ff_exp"] * c["n_shexp"], "_shexp")


# --------------------------------------------------------------------------- presets
PRESETS = {
    "llama": dict(arch="llama", n_embd=128, n_layer=2, n_head=4, n_kv=2, hd=64, n_ff=160, n_vocab=384,
                  eps=1e-5, pre="llama-bpe"),
    "llama3-rope": dict(arch="llama", n_embd=64, n_layer=3, n_head=6, n_kv=2, hd=64, n_ff=160, n_vocab=320,
                        eps=1e-5, rope_base=500000.0, tied=True, pre="llama-bpe",
                        freq_factors=dict(factor=8.0, low=1.0, high=4.0, orig=64)),
    # all row lengths are multiples of 256: the carrier for the quantized files
    "llama-q": dict(arch="llama", n_embd=256, n_layer=2, n_head=4, n_kv=2, hd=64, n_ff=256, n_vocab=320,
                    eps=1e-5, tied=True, pre="llama-bpe"),
    "qwen2": dict(arch="qwen2", n_embd=128, n_layer=2, n_head=2, n_kv=1, hd=64, n_ff=160, n_vocab=320,
                  rope_base=1e6, tied=True, pre="qwen2"),
    "qwen3": dict(arch="qwen3", n_embd=64, n_layer=3, n_head=4, n_kv=2, hd=128, n_ff=160, n_vocab=320,
                  rope_base=1e6, tied=True, pre="qwen2"),
    "qwen3moe": dict(arch="qwen3moe", n_embd=128, n_layer=2, n_head=4, n_kv=2, hd=64, n_ff=128, n_vocab=320,
                     rope_base=1e6, n_expert=8, n_used=2, n_ff_exp=32, pre="qwen2"),
    "qwen35": dict(arch="qwen35", n_embd=64, n_layer=4, n_nextn=1, n_head=4, n_kv=2, hd=64, n_rot=16, n_ff=96,
                   n_vocab=320, rope_base=1e7, tied=True, sections=[3, 3, 2, 0], conv=4,
                   ssm_state=128, ssm_k_heads=2, ssm_v_heads=4, interval=4, pre="qwen35"),
    "qwen35moe": dict(arch="qwen35moe", n_embd=64, n_layer=3, n_nextn=1, n_head=4, n_kv=2, hd=64, n_rot=16,
                      n_ff=64, n_vocab=320, rope_base=1e7, sections=[3, 3, 2, 0], conv=4, ssm_state=128,
                      ssm_k_heads=2, ssm_v_heads=4, interval=3, n_expert=6, n_used=3, n_ff_exp=32,
                      n_ff_shexp=64, pre="qwen35"),
    "qwen3next": dict(arch="qwen3next", n_embd=64, n_layer=3, n_head=4, n_kv=2, hd=64, n_rot=16,
                      n_ff=64, n_vocab=320, rope_base=1e7, conv=4, ssm_state=64, ssm_k_heads=2, ssm_v_heads=4,
                      interval=3, n_expert=8, n_used=3, n_ff_exp=32, n_ff_shexp=64, pre="qwen2"),
    "gpt-oss": dict(arch="gpt-oss", n_embd=128, n_layer=3, n_head=4, n_kv=2, hd=64, n_ff=32, n_vocab=320,
                    eps=1e-5, rope_base=150000.0, yarn=dict(factor=8.0, orig=128), window=24, n_expert=6, n_used=2,
                    n_ff_exp=32, moe_gain=3.5, pre="gpt-4o"),
    # experts MXFP4, the rest in --type (Q8_0), as in the published files of this family
    "gpt-oss-mxfp4": dict(arch="gpt-oss", n_embd=128, n_layer=3, n_head=4, n_kv=2, hd=64, n_ff=64, n_vocab=320,
                          eps=1e-5, rope_base=150000.0, yarn=dict(factor=8.0, orig=128), window=24, n_expert=6,
                          n_used=2, n_ff_exp=64, moe_gain=3.5, expert_type="MXFP4", pre="gpt-4o"),
    "gemma3": dict(arch="gemma3", n_embd=64, n_layer=4, n_head=4, n_kv=2, hd=128, n_ff=96, n_vocab=320,
                   rope_base=1e6, rope_linear=8.0, rope_base_swa=10000.0, window=20, swa_every=3, tied=True),
    "gemma4": dict(arch="gemma4", n_embd=64, n_layer=5, n_head=2, n_kv=1, hd=256, hd_swa=128,
                   n_ff=[64, 64, 64, 128, 128], n_vocab=320, rope_base=1e6, rope_base_swa=10000.0, window=20,
                   swa_layers=[1, 1, 0, 1, 0], n_shared_kv=2, n_ple=32, softcap=30.0, tied=True,
                   attn_scale_one=True),
    # the mixture-of-experts members: no per-layer embeddings, no shared KV, K used as V in full-attention layers
    "gemma4-moe": dict(arch="gemma4", n_embd=64, n_layer=3, n_head=4, n_kv=[2, 2, 1], hd=128, hd_swa=64, n_ff=64,
                       n_vocab=320, rope_base=1e6, rope_base_swa=10000.0, window=20, swa_layers=[1, 1, 0],
                       n_shared_kv=0, n_ple=0, softcap=30.0, tied=True, attn_scale_one=True, k_eq_v=True,
                       n_expert=6, n_used=2, n_ff_exp=32, fused_gate_up=True),
    "gemma3n": dict(arch="gemma3n", n_embd=64, n_layer=5, n_head=4, n_kv=2, hd=64, n_ff=64, n_vocab=320,
                    rope_base=1e6, rope_base_swa=10000.0, window=20, swa_layers=[1, 1, 1, 1, 0], n_shared_kv=0,
                    n_ple=256, n_altup=4, n_laurel=64, sparsity=[1.6448536] * 5, tied=True, attn_scale_one=True),
    "bitnet": dict(arch="bitnet", n_embd=128, n_layer=2, n_head=2, n_kv=1, hd=64, n_ff=192, n_vocab=320, eps=1e-5,
                   tied=True, ternary=True, scale_tensors=True, pre="llama-bpe"),
    # ternary blocks, F16 embeddings; every row is a multiple of 256, so TQ1_0/TQ2_0 hold the weights exactly
    "bitnet-tq": dict(arch="bitnet", n_embd=256, n_layer=2, n_head=4, n_kv=2, hd=64, n_ff=512, n_vocab=320, eps=1e-5,
                      tied=True, ternary=True, embd_type="F16", pre="llama-bpe"),
    "deepseek2": dict(arch="deepseek2", n_embd=64, n_layer=2, n_head=4, n_kv=1, hd=80, hd_v=64, n_rot=16,
                      kv_rank=64, q_rank=96, d_nope=32, d_v=32, n_ff=128, n_vocab=320, n_dense=1, n_expert=8,
                      n_used=2, n_ff_exp=32, n_shexp=1, w_scale=1.5, gating=2, pre="deepseek-v3"),
    "mistral3": dict(arch="mistral3", n_embd=64, n_layer=2, n_head=4, n_kv=2, hd=64, n_ff=160, n_vocab=320,
                     eps=1e-5, rope_base=1e6, yarn=dict(factor=16.0, orig=64, beta_fast=32.0, beta_slow=1.0),
                     temp_scale=0.1, pre="tekken"),
}


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--preset")
    ap.add_argument("--config")
    ap.add_argument("--set", action="append", default=[], help="key=json override")
    ap.add_argument("--seed", default="1")
    ap.add_argument("--type", default="F32")
    ap.add_argument("--libggml")
    ap.add_argument("--out")
    a = ap.parse_args()
    if a.list:
        for k, v in PRESETS.items():
            print(k, json.dumps(v))
        return
    cfg = json.load(open(a.config)) if a.config else dict(PRESETS[a.preset])
    cfg.setdefault("label", a.preset or "custom")
    for s in a.set:
        k, v = s.split("=", 1)
        cfg[k] = json.loads(v)
    lib = load_lib(a.libggml) if a.libggml else None
    Builder(cfg, a.seed, a.type, lib).build().write(a.out)


if __name__ == "__main__":
    main()
