#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tool calls there and back: a conversation with calls is rendered by each real template, the assistant's turn is cut
out and read again, whole and in pieces of 1, 3 and 7 bytes, and must give the same calls, content and reasoning.
Skips (77) where the template oracle is not there.

usage: test_toolcalls.py HEARTH_PROBE TEXT_TOOL SHARED_DIR
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "City"}, "days": {"type": "integer", "description": "Days"},
            "zip": {"type": "string", "description": "Code"}, "opts": {"type": "object", "description": "Options"},
            "tags": {"type": "array", "description": "Tags"}, "f": {"type": "number", "description": "F"},
            "b": {"type": "boolean", "description": "B"}}}}},
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
        "type": "object", "required": ["a", "b"],
        "properties": {"a": {"type": "integer", "description": "A"}, "b": {"type": "integer", "description": "B"}}}}},
]
CALLS = [
    {"city": "Zürich", "days": 3, "zip": "75001", "opts": {"deep": [1, 2.5, None, True], "q": "a \"b\" </x> {}"},
     "tags": ["x", "y"], "f": 1.5, "b": False},
    {"a": 2, "b": -3},
]
# What ends a generation or belongs to the next turn.
ENDS = ["<|im_end|>", "<|eot_id|>", "</s>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<turn|>", "<|call|>", "<|observation|>",
        "<|tool_response>", "<|END_OF_TURN_TOKEN|>", "<sep>", "<seed:eos>"]
# Templates that print no calls of the assistant at all.
SILENT = {"HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "deepseek_v3", "google-gemma-2-2b-it", "ibm-granite-granite-3.3-2B-Instruct",
          "microsoft-Phi-3.5-mini-instruct"}
# Templates that drop or refuse arguments given as a JSON string.
OBJECTS_ONLY = {"GLM-4.6", "GLM-5.2", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3-Coder", "Qwen3.5-4B"}


def render(probe, template, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join(json.dumps(line) + "\n" for line in lines))
        f.flush()
        p = subprocess.run([probe, "render", "--template", template, "--jsonl", f.name], capture_output=True, timeout=60)
    if p.returncode:
        raise SystemExit(f"{template}: {p.stderr.decode()}")
    return [json.loads(line) for line in p.stdout.decode().split("\n") if line]


def cases():
    for as_text in (False, True):
        for content, reason, n in (("", None, 1), ("Let me check.", None, 1), ("", "I think so.", 1), ("", None, 2)):
            calls = [{"id": f"abcdefg0{i + 1}", "type": "function", "function": {
                "name": TOOLS[i]["function"]["name"], "arguments": json.dumps(CALLS[i]) if as_text else CALLS[i]}} for i in range(n)]
            turn = {"role": "assistant", "content": content, "tool_calls": calls}
            if reason:
                turn.update(reasoning_content=reason, thinking=reason)
            yield as_text, content, reason, turn


def main():
    probe, tool, shared = sys.argv[1], sys.argv[2], os.environ.get("HEARTH_SHARED") or sys.argv[3]
    folder = os.path.join(shared, "tokenizers", "templates")
    if not os.path.isdir(folder):
        print(f"skipped: no template oracle at {folder}")
        return 77
    total = bad = 0
    families = set()
    variables = {"bos_token": "<s>", "eos_token": "</s>", "functions": json.dumps(TOOLS), "datetime": "now"}
    user = {"role": "user", "content": "Hi?"}
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        name = os.path.basename(path)[:-len(".jinja")]
        seen = 0
        for as_text, content, reason, turn in cases():
            prompt, full = render(probe, path, [
                {"messages": [user], "tools": TOOLS, "vars": {**variables, "add_generation_prompt": True}},
                {"messages": [user, turn], "tools": TOOLS, "vars": {**variables, "add_generation_prompt": False}}])
            if "text" not in prompt or "text" not in full:
                continue  # raise_exception: several calls, for instance
            prompt, full = prompt["text"], full["text"]
            at = len(os.path.commonprefix([prompt, full]))
            if at < len(prompt):  # the prompt opens a thought that this turn does not have: go back to before its marker
                at = max(prompt.rfind("<", 0, at), prompt.rfind("\n", 0, at) + 1) if "<" in prompt[at - 12:at] else at
            text = full[at:]
            for end in ENDS:
                text = text.split(end)[0]
            want = [(c["function"]["name"], CALLS[i]) for i, c in enumerate(turn["tool_calls"]) if c["function"]["name"] in text]
            if not want or (as_text and name in OBJECTS_ONLY):
                continue
            seen += 1
            total += 1
            lines = "".join(json.dumps({"text": text, "prompt": full[:at], "tools": TOOLS, "chunk": n}) + "\n" for n in (0, 1, 3, 7))
            p = subprocess.run([tool, "toolcall", path], input=lines.encode(), capture_output=True, timeout=60)
            outs = [json.loads(line) for line in p.stdout.decode().split("\n") if line]
            why = None
            if p.returncode or len(outs) != 4:
                why = f"exit {p.returncode}: {p.stderr.decode()}"
            else:
                got = outs[0]
                families.add(got["family"])
                calls = [(c["name"], json.loads(c["args"])) for c in got["calls"]]
                if any(o != got for o in outs):
                    why = f"pieces change the result: {outs}"
                elif calls != want:
                    why = f"calls {calls}, expected {want}"
                elif got["family"] == "harmony":  # its template shows text beside a call as analysis
                    if (got["content"], got["reasoning"]) != ("", content or reason or ""):
                        why = f"content {got['content']!r}, reasoning {got['reasoning']!r}"
                elif got["content"] != (content if content in text else ""):
                    why = f"content {got['content']!r}"
                elif got["reasoning"] != (reason if reason and reason in text else ""):
                    why = f"reasoning {got['reasoning']!r}"
            if why:
                bad += 1
                print(f"{name}: {text!r:.300}\n  {why:.600}")
        if not seen and name not in SILENT:
            bad += 1
            print(f"{name}: no call was rendered")
    print(f"{total} turns of {len(families)} families, {bad} wrong")
    return 1 if bad or len(families) < 10 else 0


sys.exit(main())
