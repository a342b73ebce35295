# SPDX-License-Identifier: Apache-2.0
"""The roster: which shapes are measured in which types and places.

An entry is (model, type, place). Places: gpu (all of it in VRAM), quarter (a quarter of the layers, the rest in host
memory), experts-cpu (attention in VRAM, experts on the CPU), cpu.
"""

# (--repeat, --decode) at most, where a token takes as long as hundreds do elsewhere.
PACE = {"quarter": (1, 4), "experts-cpu": (2, 16)}

ROSTER = [
    # under 4B
    ("qwen3-0.6b", "q8_0", "gpu"), ("qwen3-0.6b", "q4_k", "gpu"),
    ("llama-3.2-1b", "q4_0", "gpu"), ("llama-3.2-1b", "q8_0", "gpu"),
    ("gemma-3-1b", "q4_0", "gpu"), ("qwen3-1.7b", "q4_k", "gpu"),
    ("bitnet-2b", "tq2_0", "gpu"), ("bitnet-2b", "tq1_0", "gpu"),
    ("gemma-4-e2b", "q4_0", "gpu"), ("gemma-4-e2b", "q8_0", "gpu"),
    ("llama-3.2-3b", "q4_k", "gpu"), ("qwen3-4b", "q4_k", "gpu"), ("qwen3-4b", "q6_k", "gpu"),
    ("gemma-3-4b", "q4_0", "gpu"), ("gemma-4-e4b", "q4_0", "gpu"), ("gemma-4-e4b", "q4_k", "gpu"),
    # 7B to 9B
    ("mistral-7b", "q4_k", "gpu"), ("mistral-7b", "q5_k", "gpu"), ("qwen2.5-7b", "q4_k", "gpu"),
    ("llama-3.1-8b", "q4_0", "gpu"), ("llama-3.1-8b", "q8_0", "gpu"), ("llama-3.1-8b", "q4_k", "gpu"),
    ("llama-3.1-8b", "q6_k", "gpu"), ("llama-3.1-8b", "q2_k", "gpu"), ("llama-3.1-8b", "q3_k", "gpu"),
    ("qwen3-8b", "q4_k", "gpu"), ("qwen3.5-9b", "q4_k", "gpu"),
    # 20B to 35B
    ("gpt-oss-20b", "mxfp4", "gpu"), ("mistral-small-24b", "q4_k", "gpu"), ("gemma-4-26b-a4b", "q4_0", "gpu"),
    ("gemma-3-27b", "q4_0", "gpu"), ("qwen3.5-27b", "q4_k", "gpu"), ("qwen3.5-27b", "q8_0", "gpu"),
    ("qwen3-30b-a3b", "q4_k", "gpu"), ("qwen3-30b-a3b", "q8_0", "gpu"), ("qwen3-32b", "q4_k", "gpu"),
    ("qwen3.5-35b-a3b", "q4_k", "gpu"),
    # over 64B
    ("llama-3.3-70b", "q4_k", "gpu"), ("llama-3.3-70b", "q2_k", "gpu"), ("gpt-oss-120b", "mxfp4", "gpu"),
    # not all in VRAM
    ("llama-3.3-70b", "q4_k", "quarter"), ("qwen3-30b-a3b", "q4_k", "experts-cpu"), ("gpt-oss-20b", "mxfp4", "experts-cpu"),
]


def name(entry):
    return "%s %s %s" % entry


def spec(entry, *options):
    return ":".join(("synth", entry[0], entry[1]) + options)
