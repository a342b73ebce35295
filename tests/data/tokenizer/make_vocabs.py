#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small vocabularies of every kind on this repository's text and writes them as GGUF files without tensors,
with vectors by the libraries that trained them: 'tokenizers' and 'sentencepiece' of PyPI.

usage: make_vocabs.py OUT_DIR TRAINING_TEXT...

For each NAME: NAME.gguf, NAME.jsonl (encoding: hex, ids, ids_plain), NAME.decode.jsonl (ids, pieces).
"""
import io
import json
import os
import random
import struct
import sys

import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import make_pre_splits as splits

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


class Gguf:
    """Keys and values only; layout as in the format's description."""

    def __init__(self):
        self.items = []

    @staticmethod
    def text(s):
        b = s if isinstance(s, bytes) else s.encode()
        return struct.pack("<Q", len(b)) + b

    def put(self, key, kind, payload):
        self.items.append(self.text(key) + struct.pack("<I", kind) + payload)

    def string(self, key, v):
        self.put(key, 8, self.text(v))

    def u32(self, key, v):
        self.put(key, 4, struct.pack("<I", v))

    def flag(self, key, v):
        self.put(key, 7, bytes([v]))

    def array(self, key, kind, values):
        code = {8: None, 5: "i", 6: "f", 0: "B"}[kind]
        body = b"".join(map(self.text, values)) if code is None else struct.pack("<%d%s" % (len(values), code), *values)
        self.put(key, 9, struct.pack("<IQ", kind, len(values)) + body)

    def write(self, path):
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(self.items)) + b"".join(self.items)
        with open(path, "wb") as f:
            f.write(data + b"\0" * (-len(data) % 32))


def vocabulary(g, model, tokens, types, merges=None, scores=None, **ids):
    g.string("general.architecture", "llama")
    g.string("tokenizer.ggml.model", model)
    g.array("tokenizer.ggml.tokens", 8, tokens)
    g.array("tokenizer.ggml.token_type", 5, types)
    if scores is not None:
        g.array("tokenizer.ggml.scores", 6, scores)
    if merges is not None:
        g.array("tokenizer.ggml.merges", 8, merges)
    for key, v in ids.items():
        g.u32("tokenizer.ggml.%s_token_id" % key, v)


def texts():
    return splits.TEXTS + splits.random_texts(60, 3) + [
        "<s>not special</s> <unk>", "\u1e9b\u0323 \ufb01 \uff21\uff22 \u2460 \u212b \u0132", "e\u0301\u0323 a\u030a \u1100\u1161\u11a8",
        "  leading and trailing  ", "The tokenizer's words, tokenized.", "unaffable embeddings", "ÀÉÎÕÜ Ça va? İstanbul ǅ",
        "a" * 101, "a" * 100 + " b", "\U0001f600\U0001f468\u200d\U0001f469", "\u0378 \ue000 \u00ad", "kernel_matmul(q8_0, f32)",
        SPACE, "kernel" + SPACE, SPACE + SPACE + "a " + SPACE + "b" + SPACE, "a" + SPACE + "the kernel" + SPACE, "\u00bd" + SPACE + "B",
    ]


def save(out, name, g, encode, pieces, n_vocab, marked=()):
    g.write(os.path.join(out, name + ".gguf"))
    with open(os.path.join(out, name + ".jsonl"), "w") as f:
        for t in texts() + list(marked):
            row = {"hex": t.encode().hex()}
            row.update(encode(t))
            f.write(json.dumps(row) + "\n")
    r = random.Random(5)
    with open(os.path.join(out, name + ".decode.jsonl"), "w") as f:
        for n in (1, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            ids = [r.randrange(n_vocab) for _ in range(n)]
            f.write(json.dumps({"ids": ids, "pieces": [pieces(i).hex() for i in ids]}) + "\n")


# ---- byte-level BPE --------------------------------------------------------------------------------------------------

def alphabet():
    own = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    rest = [b for b in range(256) if b not in own]
    return dict([(chr(b), b) for b in own] + [(chr(256 + i), b) for i, b in enumerate(rest)])


def byte_bpe(out, name, pre, pattern, nfc, corpus, size):
    tok = Tokenizer(models.BPE())
    if nfc:
        tok.normalizer = normalizers.NFC()
    cut = [pre_tokenizers.Split(Regex(p), "isolated") for p in pattern]
    tok.pre_tokenizer = pre_tokenizers.Sequence(cut + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                        show_progress=False))
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<|im_start|>", "<|im_end|>", "<|im|>")])
    tok.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>", "<think><")])
    data = json.loads(tok.to_str())
    by_id = {i: t for t, i in data["model"]["vocab"].items()}
    added = {a["id"]: a for a in data["added_tokens"]}
    n = tok.get_vocab_size()
    tokens = [added[i]["content"] if i in added else by_id[i] for i in range(n)]
    types = [(CONTROL if added[i]["special"] else USER) if i in added else NORMAL for i in range(n)]
    g = Gguf()
    vocabulary(g, "gpt2", tokens + ["[PAD%d]" % n], types + [UNUSED], merges=[" ".join(m) for m in data["model"]["merges"]],
               eos=tok.token_to_id("<|im_end|>"))
    g.string("tokenizer.ggml.pre", pre)
    back = alphabet()

    def encode(t):
        tok.encode_special_tokens = False
        ids = tok.encode(t, add_special_tokens=False).ids
        tok.encode_special_tokens = True
        return {"ids": ids, "ids_plain": tok.encode(t, add_special_tokens=False).ids}

    def piece(i):
        return tokens[i].encode() if i in added else bytes(back[c] for c in tokens[i])

    save(out, name, g, encode, piece, n, ["<|im_start|>user\nhi<|im_end|>", "<think>a</think> <|im|><|im_startx|>", "<think><think>",
                                          "<|im_end|", "e\u0301<|im|>\u0301", " <think> "])


# ---- BPE over characters, spaces visible, byte tokens ----------------------------------------------------------------

def raw_bpe(out, name, corpus, size):
    tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Replace(" ", SPACE)
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tok.train_from_iterator([line for t in corpus for line in t.split("\n")],
                            trainers.BpeTrainer(vocab_size=size, special_tokens=special + ["<0x%02X>" % i for i in range(256)],
                                                initial_alphabet=["\n"], show_progress=False, max_token_length=16))
    data = json.loads(tok.to_str())
    vocab = data["model"]["vocab"]
    n = tok.get_vocab_size()
    # The byte entries were only reserved as special tokens; as such they must not match text.
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(data))
    by_id = {i: t for t, i in vocab.items()}
    tokens = [by_id[i] for i in range(n)]
    kinds = {"<pad>": CONTROL, "<eos>": CONTROL, "<bos>": CONTROL, "<unk>": UNKNOWN}
    types = [kinds.get(t, BYTE if t.startswith("<0x") and len(t) == 6 else NORMAL) for t in tokens]
    g = Gguf()
    vocabulary(g, "gemma4", tokens, types, merges=[" ".join(m) for m in data["model"]["merges"]], bos=vocab["<bos>"],
               eos=vocab["<eos>"], unknown=vocab["<unk>"])

    def encode(t):
        return {"ids_plain": tok.encode(t.replace("<unk>", "<unk "), add_special_tokens=False).ids} if "<unk>" not in t else {}

    def piece(i):
        return bytes([int(tokens[i][3:5], 16)]) if types[i] == BYTE else tokens[i].replace(SPACE, " ").encode()

    save(out, name, g, encode, piece, n)


# ---- SentencePiece ---------------------------------------------------------------------------------------------------

def charsmap(model):
    """NormalizerSpec.precompiled_charsmap (field 2) of ModelProto.normalizer_spec (field 3): a minimal protobuf walk."""
    def fields(b):
        i = 0
        while i < len(b):
            tag, i = varint(b, i)
            if tag & 7 == 2:
                n, i = varint(b, i)
                yield tag >> 3, b[i:i + n]
                i += n
            elif tag & 7 == 0:
                v, i = varint(b, i)
                yield tag >> 3, v
            else:
                i += {1: 8, 5: 4}[tag & 7]

    def varint(b, i):
        v = shift = 0
        while True:
            v |= (b[i] & 127) << shift
            shift += 7
            i += 1
            if not b[i - 1] & 128:
                return v, i

    for k, v in fields(model):
        if k == 3:
            for k2, v2 in fields(v):
                if k2 == 2:
                    return v2
    return b""


def sentencepiece(out, name, gguf_model, corpus, size, marked=(), **options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter([line for t in corpus for line in t.split("\n") if line]),
                                   model_writer=model, vocab_size=size, character_coverage=1.0, minloglevel=2,
                                   hard_vocab_limit=False, num_threads=1, **options)
    sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
    n = sp.get_piece_size()

    def kind(i):
        return (CONTROL if sp.is_control(i) else UNKNOWN if sp.is_unknown(i) else BYTE if sp.is_byte(i) else
                UNUSED if sp.is_unused(i) else USER if sp.id_to_piece(i) in options.get("user_defined_symbols", ()) else NORMAL)

    tokens, types = [sp.id_to_piece(i) for i in range(n)], [kind(i) for i in range(n)]
    g = Gguf()
    vocabulary(g, gguf_model, tokens, types, scores=[sp.get_score(i) for i in range(n)], bos=sp.bos_id(), eos=sp.eos_id(),
               unknown=sp.unk_id())
    g.flag("tokenizer.ggml.add_space_prefix", options["add_dummy_prefix"])
    g.flag("tokenizer.ggml.remove_extra_whitespaces", options["remove_extra_whitespaces"])
    rules = charsmap(model.getvalue())
    if rules:
        g.array("tokenizer.ggml.precompiled_charsmap", 0, list(rules))

    # Sums of scores are rounded differently by the two libraries: where two paths tie, they may differ.
    second = (Tokenizer(models.Unigram([(t, sp.get_score(i)) for i, t in enumerate(tokens)], sp.unk_id(), BYTE in types))
              if gguf_model == "t5" else None)

    def encode(t):
        ids = sp.encode(t)
        if "\0" in t or (second and second.encode(sp.normalize(t)).ids != ids):
            return {}
        return {"ids_plain": ids}

    def piece(i):
        return bytes([int(tokens[i][3:5], 16)]) if types[i] == BYTE else tokens[i].replace(SPACE, " ").encode()

    save(out, name, g, encode, piece, n, marked)


# ---- WordPiece -------------------------------------------------------------------------------------------------------

def wordpiece(out, name, corpus, size, lower, hashes):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False))
    vocab = tok.get_vocab()
    n = len(vocab)
    by_id = {i: t for t, i in vocab.items()}
    kinds = [UNKNOWN if by_id[i] == "[UNK]" else CONTROL if by_id[i] in special else NORMAL for i in range(n)]

    def spelled(i):
        t = by_id[i]
        if hashes or kinds[i] != NORMAL:
            return t
        return t[2:] if t.startswith("##") else SPACE + t

    g = Gguf()
    vocabulary(g, "bert", [spelled(i) for i in range(n)], kinds, cls=2, seperator=3, padding=0, mask=4, unknown=1)

    def encode(t):
        return {"ids_plain": tok.encode(t, add_special_tokens=False).ids} if "[" not in t else {}

    def piece(i):
        t = by_id[i]
        return (t if kinds[i] != NORMAL else t[2:] if t.startswith("##") else " " + t).encode()

    save(out, name, g, encode, piece, n)


def main():
    out = sys.argv[1]
    corpus = [open(p, encoding="utf-8").read() for p in sys.argv[2:]] + splits.TEXTS * 3
    byte_bpe(out, "bpe-qwen2", "qwen2", [splits.QWEN2.replace(splits.C, "(?i:'s|'t|'re|'ve|'m|'ll|'d)")], True, corpus, 700)
    byte_bpe(out, "bpe-gpt-4o", "gpt-4o", [splits.O200K.replace(splits.C, "(?i:'s|'t|'re|'ve|'m|'ll|'d)")], False, corpus, 700)
    byte_bpe(out, "bpe-deepseek-v3", "deepseek-v3", splits.RULES["deepseek-v3"], False, corpus, 700)
    raw_bpe(out, "bpe-raw", corpus, 900)
    sentencepiece(out, "spm-bpe", "llama", corpus, 900, model_type="bpe", byte_fallback=True, add_dummy_prefix=True,
                  remove_extra_whitespaces=False, normalization_rule_name="identity", split_digits=True)
    sentencepiece(out, "spm-bpe-user", "llama", corpus, 900, model_type="bpe", byte_fallback=True, add_dummy_prefix=False,
                  remove_extra_whitespaces=False, normalization_rule_name="identity",
                  user_defined_symbols=["<start>", "<start><", "\n\n", "\n", "<div>", SPACE * 2, SPACE * 4],
                  marked=["<start>user\n\n\nx<div>y<start><z", "a  b   c    d     e"])
    rules = os.path.join(out, "charsmap.tsv")
    for name, extra in (("unigram", {}), ("unigram-bytes", {"byte_fallback": True})):
        sentencepiece(out, name, "t5", corpus, 900, model_type="unigram", add_dummy_prefix=True, remove_extra_whitespaces=True,
                      normalization_rule_tsv=rules, **extra)
    wordpiece(out, "wordpiece", corpus, 700, True, False)
    wordpiece(out, "wordpiece-cased", corpus, 700, False, True)


if __name__ == "__main__":
    main()
