#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers against vectors made by programs that are not ours.

usage: test_tokenizer_vectors.py TOK_SERVE SHARED_DIR
       test_tokenizer_vectors.py TOK_SERVE --own DATA_DIR
       test_tokenizer_vectors.py TOK_SERVE --vocab FILE.gguf VECTORS.jsonl [DECODE.jsonl]

The first form runs every vocabulary under SHARED_DIR/tokenizers and the tokenizer checks of the models under
SHARED_DIR/oracle; it exits 77 if the folder is not there. The second runs the small vocabularies of tests/data/tokenizer
and the cuts of pre-tokenizers there. Vectors: "hex", "ids" (special parsing on), "ids_plain"
(off); decoding: "ids", "pieces", "text", "text_skip". A key that is absent is not checked.
"""
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile

SPECIAL = 1
SHOWN = 8  # failures printed per file


class Server:
    def __init__(self, program, path):
        self.p = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.p.stdin.write(json.dumps(request).encode() + b"\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit("the tokenizer program ended with status %s" % self.p.wait())
        return json.loads(line)

    def encode(self, data, flags):
        return self.ask(encode=data.hex(), flags=flags)

    def close(self):
        self.p.stdin.close()
        self.p.wait()


class Count:
    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, what, found, expected):
        if found == expected:
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= SHOWN:
            print("FAIL %s: %s\n  found    %s\n  expected %s" % (self.name, what, found, expected))


def lines(path):
    with open(path, "rb") as f:  # not text mode: strings hold U+2028 and the like
        return [json.loads(x) for x in f.read().split(b"\n") if x]


def run_encode(server, path, count):
    for v in lines(path):
        data = bytes.fromhex(v["hex"]) if "hex" in v else v["text"].encode()
        for key, flags in (("ids", SPECIAL), ("ids_plain", 0)):
            if key in v:
                count.check("%s of %r" % (key, data[:80]), server.encode(data, flags), {"ids": v[key]})


def run_decode(server, path, count):
    for v in lines(path):
        shown = server.ask(decode=v["ids"], flags=SPECIAL)
        what = "ids %s" % v["ids"][:20]
        if "pieces" in v:
            count.check("pieces of " + what, shown["pieces"], v["pieces"])
        if "text" in v:
            count.check("text of " + what, bytes.fromhex(shown["text"]).decode(), v["text"])
        if "text_skip" in v:
            plain = server.ask(decode=v["ids"], flags=0)
            count.check("text_skip of " + what, bytes.fromhex(plain["text"]).decode(), v["text_skip"])


def run_info(server, path, count):
    with open(path) as f:
        want = json.load(f)
    have = server.ask(info=True)
    count.check("n_tokens", have["n_vocab"], want["n_tokens"])
    for name, at in (("bos", 0), ("eos", 1), ("pad", 5)):
        count.check(name, have["special"][at], want[name])
    count.check("add_bos", have["first"] >= 0, want["add_bos"])
    count.check("add_eos", have["last"] >= 0, want["add_eos"])
    count.check("end_of_generation", have["eog"], sorted(want["end_of_generation"]))


def run_chat(server, path, count):
    """The rendered conversations of the model's own template, whose texts templates/*.cases.json has."""
    folder = os.path.join(os.path.dirname(os.path.dirname(path)), "templates")
    cases = {}
    for v in lines(path):
        name = v["template"]
        if name not in cases:
            with open(os.path.join(folder, name[:-len(".jinja")] + ".cases.json"), encoding="utf-8") as f:
                cases[name] = {c["name"]: c.get("expected") for c in json.load(f)["cases"]}
        text = cases[name][v["case"]]
        count.check("%s %s" % (name, v["case"]), server.encode(text.encode(), SPECIAL), {"ids": v["ids"]})


def run_all(program, shared):
    folder = os.path.join(shared, "tokenizers")
    counts = []
    with tempfile.TemporaryDirectory() as tmp:
        for packed in sorted(glob.glob(os.path.join(folder, "*.vocab.gguf.gz"))):
            name = os.path.basename(packed)[:-len(".vocab.gguf.gz")]
            path = os.path.join(tmp, name + ".gguf")
            with gzip.open(packed) as src, open(path, "wb") as dst:
                dst.write(src.read())
            server = Server(program, path)
            base = os.path.join(folder, "vectors", name)
            for suffix, run in ((".jsonl", run_encode), (".decode.jsonl", run_decode), (".chat.jsonl", run_chat), (".info.json", run_info)):
                if os.path.exists(base + suffix):
                    counts.append(Count(name + suffix))
                    run(server, base + suffix, counts[-1])
            server.close()
    count = Count("models' tokenizer_checks")
    for path in sorted(glob.glob(os.path.join(shared, "oracle", "expected", "*.json"))):
        with open(path) as f:
            checks = json.load(f).get("tokenizer_checks", [])
        model = os.path.join(shared, "oracle", "models", os.path.basename(path)[:-len(".json")] + ".gguf")
        if not checks or not os.path.exists(model):
            continue
        server = Server(program, model)
        for c in checks:
            count.check("%s: %r" % (os.path.basename(model), c["text"][:60]), server.encode(c["text"].encode(), SPECIAL),
                        {"ids": c["ids"]})
        server.close()
    counts.append(count)
    return counts


def run_own(program, folder):
    counts = []
    for path in sorted(glob.glob(os.path.join(folder, "*.gguf"))):
        server = Server(program, path)
        for suffix, run in ((".jsonl", run_encode), (".decode.jsonl", run_decode)):
            counts.append(Count(os.path.basename(path)[:-len(".gguf")] + suffix))
            run(server, path[:-len(".gguf")] + suffix, counts[-1])
        server.close()
    with open(os.path.join(folder, "pre_splits.json"), encoding="utf-8") as f:
        splits = json.load(f)
    server = Server(program, path)
    for name, rows in splits["words"].items():
        counts.append(Count("pre-tokenizer " + name))
        for text, words in zip(splits["texts"], rows):
            found = server.ask(split=text.encode().hex(), pre=name)
            counts[-1].check(repr(text), [bytes.fromhex(w).decode() for w in found["words"]], words)
    server.close()
    return counts


def main():
    if len(sys.argv) >= 5 and sys.argv[2] == "--vocab":
        server = Server(sys.argv[1], sys.argv[3])
        counts = [Count(sys.argv[4])]
        run_encode(server, sys.argv[4], counts[0])
        if len(sys.argv) > 5:
            counts.append(Count(sys.argv[5]))
            run_decode(server, sys.argv[5], counts[1])
        server.close()
    elif len(sys.argv) == 4 and sys.argv[2] == "--own":
        counts = run_own(sys.argv[1], sys.argv[3])
    elif len(sys.argv) == 3:
        shared = os.environ.get("HEARTH_SHARED", sys.argv[2])
        if not os.path.isdir(os.path.join(shared, "tokenizers")):
            print("skipped: no tokenizer vectors at %s/tokenizers (set HEARTH_SHARED)" % shared)
            return 77
        counts = run_all(sys.argv[1], shared)
    else:
        print(__doc__)
        return 64
    for c in counts:
        print("%s: %d passed, %d failed" % (c.name, c.passed, c.failed))
    return 1 if any(c.failed or not c.passed for c in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
