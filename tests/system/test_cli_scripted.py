# SPDX-License-Identifier: Apache-2.0
"""The CLI against a scripted daemon: what it sends, shows, and how it ends.

    test_cli_scripted.py HEARTH
"""
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time

from harness import ScriptedDaemon, Terminal, environment, private_dir, run_tests
from pyclient import CANCEL, ERROR, EVENT, REPLY, REQUEST

HEARTH = os.path.abspath(sys.argv[1])
DONE = {"finish": "stop", "n_prompt": 1204, "n_cached": 1150, "n_generated": 11, "prefill_us": 2857, "first_token_us": 42000,
        "decode_us": 39841, "n_drafted": 100, "n_accepted": 93, "seed": 7}


def answer(pieces=("Red, blue", " and green."), done=DONE):
    def handler(stream, ident, method, fields):
        if method == "models":
            models = [{"name": n, "where": "disk", "bytes": 94_000_000, "type": "Q4_1"} for n in ("smollm2", "llama-70b")]
            models[0].update(where="memory", slots=4, n_ctx=8192, idle_ms=180_000, is_default=True)
            stream.send(REPLY, ident, "models", {"models": models})
        elif method == "generate":
            stream.send(EVENT, ident, "accepted", {"request": 9, "seed": 7, "slot": 0, "model": "smollm2", "n_prompt": 1204})
            for i, p in enumerate(pieces):
                stream.send(EVENT, ident, "tokens", {"text": p, "ids": struct.pack("<I", i)})
            stream.send(REPLY, ident, "generate", done)
    return handler


class Fixture:
    def __init__(self, handler, greeting=None):
        self.dir = private_dir()
        self.env = environment(self.dir.name)
        self.daemon = ScriptedDaemon(f"{self.dir.name}/hearth/hearth.sock", handler, greeting)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.daemon.stop()
        self.dir.cleanup()
        if self.daemon.failure:
            raise self.daemon.failure

    def run(self, *arguments, stdin=b"", **kw):
        kw.setdefault("env", self.env)
        if stdin is None:
            kw["stdin"] = subprocess.DEVNULL
        else:
            kw["input"] = stdin
        return subprocess.run([HEARTH, *arguments], capture_output=True, timeout=60, **kw)

    def sent(self, method):
        return [f for _, m, f in self.daemon.requests if m == method]


def check(result, status, out=None, err=None):
    got = (result.returncode, result.stdout.decode(), result.stderr.decode())
    assert result.returncode == status, f"exit status {status} expected: {got}"
    if out is not None:
        assert result.stdout.decode() == out, got
    if err is not None:
        assert (err in got[2]) if err else got[2] == "", got


def test_run():
    """the answer alone on stdout, nothing on stderr"""
    with Fixture(answer()) as f:
        check(f.run("run", "smollm2", "Name three colours.", stdin=None), 0, "Red, blue and green.\n", "")
        (g,) = f.sent("generate")
        assert g == {"model": "smollm2", "kind": "chat", "prompt": "Name three colours.", "exact": True}, g
        assert f.daemon.client_name == "hearth run"


def test_run_pipe():
    """argument first, then what is piped in; with one word the daemon's list decides what it is"""
    with Fixture(answer()) as f:
        check(f.run("run", "smollm2", "Summarize:", stdin=b"some text\n"), 0)
        check(f.run("run", "smollm2", stdin=b"only piped"), 0)
        check(f.run("run", "Tell me.", stdin=b"x"), 0)
        check(f.run("run", "-m", "smollm2", "two", "words", stdin=None), 0)
        prompts = [(g.get("model"), g["prompt"]) for g in f.sent("generate")]
        assert prompts == [("smollm2", "Summarize:\n\nsome text\n"), ("smollm2", "only piped"), (None, "Tell me.\n\nx"),
                           ("smollm2", "two words")], prompts
        check(f.run("run", "smolm2", stdin=b"x"), 66, "", 'no model named "smolm2". Did you mean smollm2?')
        check(f.run("run", stdin=None), 64, "", "no prompt")
        check(f.run("run", "smollm2", stdin=b"\xff\xfe"), 65, "", "generate.prompt is not valid UTF-8: byte 0xff at offset 0")


def test_options():
    """every sampling option reaches the daemon under its own name"""
    with Fixture(answer()) as f:
        schema = f"{f.dir.name}/s.json"
        with open(schema, "w", encoding="utf-8") as s:
            s.write("{}")
        check(f.run("run", "m", "p", "-s", "be brief", "-n", "5", "-t", "0", "--top-k", "1", "--top-p=0.5", "--min-p", "0.1",
                    "--repeat-penalty", "1.1", "--presence-penalty", "-1", "--frequency-penalty", "0.5", "--penalty-last", "0",
                    "--logit-bias", "5=-inf", "--logit-bias", "6=1.5", "--seed", "18446744073709551615", "--stop", "a", "--stop", "b",
                    "--logprobs", "3", "--json-schema", schema, "--deadline", "1.5", "--template-vars", "{}", stdin=None), 0)
        (g,) = f.sent("generate")
        want = {"model": "m", "kind": "chat", "prompt": "p", "system": "be brief", "max_tokens": 5, "temperature": 0.0, "top_k": 1,
                "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.1, "presence_penalty": -1.0, "frequency_penalty": 0.5,
                "penalty_last": 0, "bias_ids": struct.pack("<2I", 5, 6), "bias_values": struct.pack("<2f", float("-inf"), 1.5),
                "seed": 2**64 - 1, "stop": ["a", "b"], "logprobs": 3, "json_schema": "{}", "deadline_ms": 1500, "template_vars": "{}",
                "exact": True}  # one answer, whatever was answered before
        assert g == want, {k: (g.get(k), want.get(k)) for k in g.keys() | want.keys() if g.get(k) != want.get(k)}
        for bad in (["--top-p", "2"], ["--temperature", "-1"], ["--logit-bias", "x"], ["--logprobs", "21"], ["-n", "0"],
                    ["--deadline", "0"], ["--json-schema", "/nonexistent"], ["--raw", "--system", "x"]):
            r = f.run("run", "m", "p", *bad, stdin=None)
            assert r.returncode in (64, 66) and r.stderr.startswith(b"hearth: "), (bad, r)
        assert len(f.sent("generate")) == 1
        check(f.run("run", "m", "p", "--raw", stdin=None), 0, "Red, blue and green.")
        assert f.sent("generate")[-1]["kind"] == "complete"
        check(f.run("fim", "m", "--suffix", "}", stdin=b"{"), 0)
        g = f.sent("generate")[-1]
        assert (g["kind"], g["prefix"], g["suffix"]) == ("fim", "{", "}"), g
    # Half an answer of a demanded form is said to be half; half a prose is what -n asks for.
    with Fixture(answer(done={**DONE, "finish": "length"})) as f:
        check(f.run("run", "m", "p", "-n", "5", stdin=None), 0, "Red, blue and green.\n", "")
        schema = f"{f.dir.name}/s.json"
        with open(schema, "w", encoding="utf-8") as s:
            s.write("{}")
        check(f.run("run", "m", "p", "--json-schema", schema, stdin=None), 65, None, "what the schema demands is not complete")
        check(f.run("run", "m", "p", "--grammar", schema, stdin=None), 65, None, "what the grammar demands is not complete")
        check(f.run("run", "m", "p", "--json", "--json-schema", schema, stdin=None), 65, None, "")
    with Fixture(answer(done={**DONE, "finish": "context"})) as f:
        schema = f"{f.dir.name}/s.json"
        with open(schema, "w", encoding="utf-8") as s:
            s.write("{}")
        check(f.run("run", "m", "p", stdin=None), 0, None, "the model's context is full")
        check(f.run("run", "m", "p", "--json-schema", schema, stdin=None), 65, None, "what the schema demands is not complete")
    with Fixture(answer()) as f:
        check(f.run("run", "m", "p", "--logprobs", "2", stdin=None), 0, None, "in the events of --json only")
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words in (["--help"], ["run", "--help"], ["help", "run"], ["completion", "bash"], ["run", "m", "p"]):
                r = subprocess.run([HEARTH, *words], env=f.env, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60)
                assert r.returncode == 74 and b"standard output" in r.stderr, (words, r)
        r = subprocess.run([HEARTH, "run", "m", "p"], env=f.env, stdin=subprocess.DEVNULL, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, timeout=60)
        assert r.returncode == 74 and b"standard output: Bad file" in r.stderr, r  # closed: no socket got its number


def test_stats():
    with Fixture(answer()) as f:
        check(f.run("run", "m", "p", "--stats", stdin=None), 0, "Red, blue and green.\n",
              "  first token 42 ms · prompt 1,204 tokens (1,150 cached) 18,901 tok/s · answer 11 tokens 251 tok/s · draft accepted 93%\n")


def test_json():
    """one JSON object a line, the last one 'done'"""
    with Fixture(answer()) as f:
        r = f.run("run", "m", "p", "--json", stdin=None)
        check(r, 0, err="")
        events = [json.loads(line) for line in r.stdout.decode().splitlines()]
        assert [e["event"] for e in events] == ["accepted", "tokens", "tokens", "done"], events
        assert events[0]["seed"] == 7 and events[1] == {"event": "tokens", "text": "Red, blue", "ids": [0]}, events
        assert events[3]["finish"] == "stop" and events[3]["n_cached"] == 1150


def refuse(code, message, **more):
    def handler(stream, ident, method, fields):
        stream.send(ERROR, ident, "error", {"code": code, "message": message, **more})
    return handler


def test_errors():
    """typed errors keep their words and get their exit status"""
    for code, status in (("unknown_model", 66), ("prompt_too_long", 65), ("model_no_memory", 75), ("permission", 77),
                         ("no_such_code_yet", 70)):
        with Fixture(refuse(code, "what, why, next")) as f:
            check(f.run("run", "m", "p", stdin=None), status, "", "hearth: what, why, next")
            r = f.run("run", "m", "p", "--json", stdin=None)
            assert r.returncode == status and json.loads(r.stdout)["event"] == "error", r
    with Fixture(refuse("model_no_memory", "too big.", holders=["a 1 GB", "b 2 GB"], retry_after_ms=1500, nearest=["x"])) as f:
        check(f.run("load", "m", stdin=None), 75, "",
              "hearth: too big. Did you mean x?\n  held: a 1 GB · b 2 GB\n  trying again may succeed in 1.5s\n")


def test_version_mismatch():
    def greeting(stream, ident):
        stream.send(ERROR, ident, "error", {"code": "version", "message": "this side speaks 2", "needed": 2, "available": 1})
    with Fixture(answer(), greeting) as f:
        check(f.run("run", "m", "p", stdin=None), 76, "", "hearth: this side speaks 2")
    with Fixture(answer(), lambda s, i: s.send(REPLY, i, "hello", {"version": 9, "daemon": "x", "session": 1})) as f:
        check(f.run("status", stdin=None), 76, "", "the daemon speaks protocol version 9, this side speaks 1")


def test_daemon_goes_away():
    def handler(stream, ident, method, fields):
        stream.send(EVENT, ident, "tokens", {"text": "Red"})
        stream.sock.shutdown(2)
    with Fixture(handler) as f:
        check(f.run("run", "m", "p", stdin=None), 69, "Red\n", "hearth: the daemon closed the connection")


def endless(stream, ident, method, fields):
    """Streams until the cancel comes."""
    import select
    stream.send(EVENT, ident, "tokens", {"text": "word "})
    while not select.select([stream.sock], [], [], 0.01)[0]:
        stream.send(EVENT, ident, "tokens", {"text": "word "})
    kind, cancelled, _, _ = stream.receive()
    assert (kind, cancelled) == (CANCEL, ident), kind
    stream.send(REPLY, ident, "generate", {"finish": "cancelled"})


def test_interrupt():
    """Ctrl-C: the request is cancelled, its answer awaited, 130"""
    with Fixture(endless) as f:
        p = subprocess.Popen([HEARTH, "run", "m", "p"], env=f.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.read(5) == b"word "
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20)
        assert (p.returncode, err) == (130, b"") and out.endswith(b"\n"), (p.returncode, out[-20:], err)


def waits(pid):
    """True if the program blocks SIGINT: it is in the loop that reads signals."""
    with open(f"/proc/{pid}/status") as f:
        mask = next(line for line in f if line.startswith("SigBlk:")).split()[1]
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


def test_interrupt_elsewhere():
    """Ctrl-C also ends a program that waits for its input, or for a load"""
    def handler(stream, ident, method, fields):
        kind, cancelled, _, _ = stream.receive()
        assert (kind, cancelled) == (CANCEL, ident), kind
        stream.send(ERROR, ident, "error", {"code": "cancelled", "message": "cancelled by the client"})
    with Fixture(handler) as f:
        p = subprocess.Popen([HEARTH, "tokenize", "m"], env=f.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == -signal.SIGINT
        for pipe in (p.stdin, p.stdout, p.stderr):
            pipe.close()
        p = subprocess.Popen([HEARTH, "load", "m"], env=f.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not f.sent("load") or not waits(p.pid):  # before its loop takes signals, Ctrl-C ends it as any program
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20)
        assert (p.returncode, out, err) == (130, b"", b""), (p.returncode, out, err)


def test_reader_leaves():
    """hearth run ... | head -c 5"""
    with Fixture(endless) as f:
        p = subprocess.Popen([HEARTH, "run", "m", "p"], env=f.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.read(5) == b"word "
        p.stdout.close()
        assert p.wait(20) == 141 and p.stderr.read() == b""
        p.stderr.close()


def test_model_by_path():
    """the file and all its parts are opened here and passed on"""
    seen = []

    def handler(stream, ident, method, fields):
        seen.append((fields, [os.fstat(fd).st_size for fd in stream.fds]))
        for fd in stream.fds:
            os.close(fd)
        stream.fds = []
        stream.send(REPLY, ident, "load", {"model": "x", "bytes": 1})
    with Fixture(handler) as f:
        for i in (1, 2, 3):
            with open(f"{f.dir.name}/x-{i:05}-of-00003.gguf", "wb") as o:
                o.write(b"x" * i)
        check(f.run("load", "./x-00002-of-00003.gguf", cwd=f.dir.name, stdin=None), 0)
        assert seen[0][0]["n_fds"] == 3 and seen[0][1] == [1, 2, 3], seen
        assert seen[0][0]["model"] == os.path.realpath(f"{f.dir.name}/x-00002-of-00003.gguf"), seen
        os.remove(f"{f.dir.name}/x-00003-of-00003.gguf")
        check(f.run("load", f"{f.dir.name}/x-00001-of-00003.gguf", stdin=None), 66, "", "x-00003-of-00003.gguf (part 3 of 3): No such file")
        check(f.run("load", "./nothing.gguf", stdin=None), 66, "", "./nothing.gguf: No such file")
        check(f.run("load", "/dev/null", stdin=None), 66, "", "not a regular file")


def test_tables():
    def handler(stream, ident, method, fields):
        if method == "ps":
            stream.send(REPLY, ident, "ps", {"requests": [
                {"request": 1, "client": "nvim", "pid": 3121, "user": "ada", "model": "smollm2", "phase": "decode", "n_generated": 212,
                 "n_prompt": 100, "n_cached": 96, "tokens_per_s": 240.2, "age_ms": 1100},
                {"request": 2, "client": "notes\nroot", "user": "bob", "model": "smollm2", "phase": "queued", "position": 1, "wait_ms": 300}]})
        elif method == "status":
            stream.send(REPLY, ident, "status", {"daemon": "0.1", "protocol": 1, "uptime_ms": 5000, "metrics": [{"name": "m", "value": 2}]})
        else:
            answer()(stream, ident, method, fields)
    with Fixture(handler) as f:
        # a newline in a client's name makes no row of its own
        check(f.run("ps"), 0, "CLIENT       USER  MODEL    SLOT  PHASE   TOKENS  TOK/S  CACHED   AGE\n"
                              "nvim (3121)  ada   smollm2  0     decode     212    240     96%  1.1s\n"
                              "notes\\nroot  bob   smollm2  -     queued       -      -       -  0.0s  (position 1, about 0.3s)\n", "")
        check(f.run("models"), 0, "NAME        SIZE  TYPE  WHERE    CONTEXT  SLOTS  IDLE\n"
                                  "smollm2 *  94 MB  Q4_1  memory   8k       4      3m\n"
                                  "llama-70b  94 MB  Q4_1  on disk  -        -      -\n", "")
        check(f.run("models", "--names"), 0, "smollm2\nllama-70b\n", "")
        st = json.loads(f.run("status", "--json").stdout)
        assert st["uptime_ms"] == 5000 and st["metrics"] == {"m": 2.0}, st
        check(f.run("status"), 0, err="")
        check(f.run("version"), 0, err="")


def test_text_commands():
    def handler(stream, ident, method, fields):
        if method == "tokenize":
            assert fields["text"] == "a b", fields
            stream.send(REPLY, ident, "tokenize", {"ids": struct.pack("<2I", 5, 70000), "pieces": ["a", ' "b']})
        elif method == "detokenize":
            stream.send(REPLY, ident, "detokenize", {"bytes": b"n=%d" % (len(fields["ids"]) // 4)})
        elif method == "embed":
            n = len(fields["texts"])
            stream.send(REPLY, ident, "embed", {"n": n, "dim": 2, "vectors": struct.pack(f"<{2 * n}f", *range(2 * n))})
    with Fixture(handler) as f:
        check(f.run("tokenize", "m", "a", "b"), 0, "5 70000\n", "")
        assert json.loads(f.run("tokenize", "m", "--json", stdin=b"a b").stdout) == [{"id": 5, "text": "a"}, {"id": 70000, "text": ' "b'}]
        check(f.run("detokenize", "m", "1", "2,3"), 0, "n=3", "")
        check(f.run("detokenize", "m", "x"), 65, "", "'x' is no token id")
        check(f.run("embed", "m", stdin=b"one\ntwo\n"), 0, "0 1\n2 3\n", "")
        check(f.run("embed", "m", "one", "--json"), 0, "[0,1]\n", "")
        assert f.sent("embed")[1]["texts"] == ["one"]


def test_usage():
    """unknown words get the nearest known one; help goes to stdout"""
    with Fixture(answer()) as f:
        check(f.run("rnu", "x"), 64, "", "no command named 'rnu'. Did you mean run?")
        check(f.run("run", "--temprature", "1"), 64, "", "Did you mean --temperature?")
        check(f.run(), 64, "", "usage: hearth COMMAND")
        check(f.run("--help"), 0, err="")
        for command in ("run", "chat", "fim", "models", "load", "unload", "ps", "status", "doctor", "inspect", "calibrate", "tokenize", "detokenize", "embed",
                        "completion", "version"):
            r = f.run(command, "--help")
            check(r, 0, err="")
            assert r.stdout.startswith(f"usage: hearth {command} ".encode()), r.stdout
            assert f.run("help", command).stdout == r.stdout
            assert b"\x1b" not in r.stdout


def test_no_daemon():
    with private_dir() as d:
        env = environment(d)
        path = f"{d}/hearth/hearth.sock"
        for command in (["ps"], ["run", "m", "p", "--no-start"]):
            r = subprocess.run([HEARTH, *command], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            if not os.path.exists("/run/hearth/hearth.sock"):
                check(r, 69, "", f"hearth: no daemon at {path}. Start it: systemctl --user start hearthd.socket, or: hearthd --user &")
        env["HEARTH_SOCKET"] = "/" + "x" * 200
        r = subprocess.run([HEARTH, "ps"], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        check(r, 64, "", "has 201 bytes, but at most 107 are possible")


def test_completions():
    with private_dir() as d:
        for shell in ("bash", "zsh", "fish"):
            script = subprocess.run([HEARTH, "completion", shell], env=environment(d), capture_output=True, timeout=60)
            check(script, 0, err="")
            assert b"temperature" in script.stdout
        script = subprocess.run([HEARTH, "completion", "bash"], env=environment(d), capture_output=True, timeout=60).stdout
        probe = script + b'\nCOMP_WORDS=(hearth run --temp); COMP_CWORD=2; _hearth 2>/dev/null; echo "${COMPREPLY[*]}"' \
                         b'\nCOMP_WORDS=(hearth sta); COMP_CWORD=1; _hearth; echo "${COMPREPLY[*]}"'
        r = subprocess.run(["bash", "--norc"], input=probe, capture_output=True, timeout=60)
        assert r.stdout.split(b"\n")[0].split() == [b"--temperature", b"--template-vars"][:1] or b"--temperature" in r.stdout, r
        assert b"status" in r.stdout, r


def test_chat_piped():
    """without a terminal each line is a message; the whole conversation is sent"""
    with Fixture(answer(("Hi.",))) as f:
        check(f.run("chat", "m", "-s", "be kind", stdin=b"hello\n\nagain\n"), 0, "Hi.\nHi.\n", "")
        first, second = [json.loads(g["messages"]) for g in f.sent("generate")]
        assert first == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}], first
        assert second[2:] == [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "again"}], second


def chat(then):
    """A handler for `hearth chat`, which loads the model before anything is typed; the rest is for 'then'."""
    def handler(stream, ident, method, fields):
        if method == "load":
            stream.send(REPLY, ident, "load", {"model": fields["model"], "n_ctx": 1024, "slots": 1})
        else:
            then(stream, ident, method, fields)
    return handler


def test_chat_terminal():
    """Ctrl-C ends the answer, not the program; the history is kept; a model can't drive the terminal"""
    calls = []

    @chat
    def handler(stream, ident, method, fields):
        calls.append(fields)
        if len(calls) == 1:
            endless(stream, ident, method, fields)
        else:
            answer(("evil \x1b]0;title\x07", "text"))(stream, ident, method, fields)
    with Fixture(handler) as f:
        t = Terminal([HEARTH, "chat", "m"], f.env)
        t.expect("> ")
        t.type("not this\x03hello\r")
        t.expect("word word")
        t.type("\x03\x03")  # an impatient second one does not end the program
        for last in (False, False, True):
            try:
                t.expect("> ", 8)
                break
            except AssertionError:
                if last:
                    raise
                # A terminal throws pending output away at Ctrl-C, so the second one may have met the prompt: ask for it again.
                t.type("\x03")
        t.type("second\r")
        shown = t.expect("text")
        assert "\x1b]0;" not in shown and "evil \ufffd]0;title\ufffd" in shown, repr(shown)
        t.expect("> ")
        t.type("\x04")
        assert t.wait(again="\x04") == 0, t.output
        assert json.loads(calls[0]["messages"]) == [{"role": "user", "content": "hello"}], calls[0]
        assert [m["role"] for m in json.loads(calls[1]["messages"])] == ["user", "assistant", "user"], calls[1]
        history = f"{f.dir.name}/state/hearth/chat_history"
        assert "second" in open(history, encoding="utf-8").read() and os.stat(history).st_mode & 0o777 == 0o600


def test_chat_early_end():
    """Ctrl-D while an answer streams ends nothing; the next one, at the prompt, leaves"""
    typed = threading.Event()

    @chat
    def handler(stream, ident, method, fields):
        stream.send(EVENT, ident, "tokens", {"text": "first", "ids": struct.pack("<I", 1)})
        typed.wait(20)
        answer(("last",))(stream, ident, method, fields)
    with Fixture(handler) as f:
        t = Terminal([HEARTH, "chat", "m"], f.env)
        t.expect("> ")
        t.type("hello\r")
        t.expect("first")
        t.type("\x04")
        typed.set()
        t.expect("last")
        t.expect("> ")
        t.type("\x04")
        assert t.wait() == 0, t.output


def test_chat_commands():
    """/help, /quit, a misspelt command and a message that begins with a slash"""
    calls = []

    @chat
    def handler(stream, ident, method, fields):
        calls.append(fields)
        answer(("Yes.",))(stream, ident, method, fields)
    with Fixture(handler) as f:
        t = Terminal([HEARTH, "chat", "m"], f.env)
        t.expect("> ")
        t.type("/help\r")
        t.expect("/quit")
        t.expect("> ")
        t.type("/qiut\r")
        t.expect("Did you mean /quit?")
        t.expect("> ")
        t.type("//etc/fstab\r")
        t.expect("Yes.")
        t.expect("> ")
        t.type("/quit\r")
        assert t.wait() == 0, t.output
        assert [json.loads(c["messages"])[-1]["content"] for c in calls] == ["/etc/fstab"], calls


def test_chat_wrong_model():
    """a wrong name is told before anything was typed"""
    def handler(stream, ident, method, fields):
        stream.send(ERROR, ident, "error", {"code": "unknown_model", "message": 'no model named "n". Did you mean m?', "nearest": ["m"]})
    with Fixture(handler) as f:
        t = Terminal([HEARTH, "chat", "n"], f.env)
        t.expect('no model named "n"')
        assert t.wait() == 66 and "> " not in t.output, t.output


def test_large_text():
    """a text over 1 MiB goes beside the message, in a sealed memfd; the rest of the message as ever"""
    import fcntl
    seen = []

    def handler(stream, ident, method, fields):
        if method == "generate":
            fd = stream.fds.pop() if stream.fds else -1
            seen.append((fields, fcntl.fcntl(fd, 1034) if fd >= 0 else 0, os.pread(fd, 4 << 20, 0) if fd >= 0 else b""))  # F_GET_SEALS
            if fd >= 0:
                os.close(fd)
        answer(("Hi.",))(stream, ident, method, fields)
    text = b"word " * (400 << 10)
    with Fixture(handler) as f:
        check(f.run("run", "-m", "m", "--raw", stdin=text), 0, "Hi.")
        check(f.run("run", "-m", "m", "--raw", stdin=text[:1000]), 0, "Hi.")
        check(f.run("run", "-m", "m", "-s", "terse", stdin=text), 0, "Hi.\n")
    large, small, chat = seen
    assert large[0]["payload"] == "prompt" and "prompt" not in large[0] and large[1] & 14 == 14, large[:2]
    assert large[2].strip() == text.strip()
    assert "payload" not in small[0] and small[0]["prompt"].strip() == text[:1000].decode().strip()
    assert chat[0]["payload"] == "prompt" and chat[0]["system"] == "terse" and chat[0]["kind"] == "chat"


def test_progress():
    """a load is shown on a terminal after half a second, and gone afterwards"""
    def handler(stream, ident, method, fields):
        for done in (0, 47, 94):
            stream.send(EVENT, ident, "progress", {"stage": "load", "model": "smollm2", "done": done * 10**6, "total": 94 * 10**6})
            time.sleep(0.4)
        answer(("Hi.",))(stream, ident, method, fields)
    with Fixture(handler) as f:
        t = Terminal([HEARTH, "run", "m", "p"], f.env)
        t.expect("loading smollm2  ▕████████████▏ 94 MB")
        assert t.wait() == 0
        assert t.output.split("\r\x1b[K")[-1] == "Hi.\r\n", repr(t.output)
        check(f.run("run", "m", "p", stdin=None), 0, "Hi.\n", "")


if __name__ == "__main__":
    sys.exit(run_tests([v for k, v in list(globals().items()) if k.startswith("test_")]))
