# SPDX-License-Identifier: Apache-2.0
"""The daemon dies or restarts under a stream: libhearth comes back, and the answer is the one of an undisturbed run."""
import signal
import subprocess

from daemonlib import *
from splitgguf import build, parse

RESUME_CLIENT = sys.argv[3]
TOOLS = '[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"place":{"type":"string"}}}}}]'
SCHEMA = '{"type":"object","properties":{"a":{"type":"string","minLength":40,"maxLength":60},"b":{"enum":["x","yy"]}},"required":["a","b"],"additionalProperties":false}'


class Service:
    """A daemon that can be ended in any way and started again on the same socket."""

    def __init__(self, home, config="", worker=None):
        self.home, self.models = home, pathlib.Path(home) / "models"
        self.models.mkdir()
        shutil.copy(TINY, self.models / "tiny.gguf")
        self.d, self.logs = None, ""
        self.start(config, worker)

    def start(self, config="", worker=None):
        conf = pathlib.Path(self.home) / "hearth.conf"
        conf.write_text(on_backend(config) or "# the defaults\n")
        extra = ["--worker", str(worker)] if worker else []
        self.d = Daemon(HEARTHD, self.home, "--model-dir", str(self.models), "--config", str(conf), *extra)
        self.path = self.d.path

    def end(self, how):
        """'crash': kill -9; 'stop': SIGTERM, as systemctl restart does."""
        self.d.process.send_signal(signal.SIGKILL if how == "crash" else signal.SIGTERM)
        code = self.d.process.wait(60)
        self.logs += self.d.messages()
        self.d.log.close()
        assert code == (-signal.SIGKILL if how == "crash" else 0), (code, self.logs)
        assert "Sanitizer" not in self.logs, self.logs

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            print("--- the daemon's log ---\n" + self.logs + ("" if self.d.log.closed else self.d.messages()) + "---")
        if self.d.process.poll() is None:
            self.end("stop")


@contextlib.contextmanager
def service(config="", worker=None):
    with private_dir() as home, Service(home, config, worker) as s:
        yield s


class Asker:
    """The C client; its lines."""

    def __init__(self, s, **fields):
        self.p = subprocess.Popen([RESUME_CLIENT, s.path, *(f"{k}={v}" for k, v in fields.items())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = []

    def until(self, word):
        while True:
            line = self.p.stdout.readline()
            if not line:
                raise AssertionError(f"the client ended before it said {word!r}: {self.lines}")
            self.lines.append(line.rstrip("\n"))
            if line.startswith(word):
                return line.split()

    def say(self, text="go"):
        self.p.stdin.write(text + "\n")
        self.p.stdin.flush()

    def finish(self):
        out, _ = self.p.communicate(timeout=120)
        self.lines += out.splitlines()
        return self

    def of(self, word):
        return [x.split(" ", 1)[1] if " " in x else "" for x in self.lines if x.split(" ", 1)[0] == word]

    def text(self, word="text"):
        return bytes.fromhex("".join(self.of(word)))


# What is asked, and what the answer must exercise. logprobs: their bits are compared, not the tokens alone.
ASKS = {
    "greedy": dict(prompt="the cat and the dog", max_tokens=120, temperature=0, seed=1, forbid="313,314", logprobs=2),
    "sampled": dict(prompt="the cat", max_tokens=120, temperature=1, top_k=0, top_p=1, min_p=0, seed=99, forbid="313,314", logprobs=2),
    "seed by the daemon": dict(prompt="the cat", max_tokens=80, temperature=1, forbid="313,314", logprobs=1),
    "grammar": dict(prompt="a", max_tokens=60, temperature=1, seed=5, grammar='root ::= [a-e ]{40,50} ("." | "!")', logprobs=1),
    "schema": dict(prompt="a", max_tokens=200, temperature=1, seed=7, json_schema=SCHEMA, logprobs=1),
    "stop string": dict(prompt="the", max_tokens=90, temperature=0, seed=2, forbid="313,314", stop="~~no"),
}


def undisturbed(s, ask):
    a = Asker(s, model="tiny", exact=1, **ask).finish()
    assert a.p.returncode == 0 and a.of("done"), a.lines
    return a


def compare(want, got, sampled_by_daemon=False):
    assert got.p.returncode == 0, got.lines
    assert got.of("token") == want.of("token"), f"another way:\n{want.lines}\n{got.lines}"
    assert got.text() == want.text() and got.text("reasoning") == want.text("reasoning"), "the text has a seam"
    assert got.of("done") == want.of("done") and got.of("call") == want.of("call"), (want.lines[-3:], got.lines[-3:])
    assert len(got.of("accepted")) == 1, "accepted came twice"


def streams_survive():
    """kill -9 and an orderly stop of the daemon in mid-stream: every kind of answer ends as without it, to the bits of the logits."""
    with service() as s:
        for name, ask in ASKS.items():
            want = undisturbed(s, ask)
            if "seed" not in ask:  # the daemon chose one: the undisturbed run with it
                want = None
            for how in ("crash", "stop"):
                a = Asker(s, model="tiny", exact=1, credits=25, **ask)
                a.until("hold")
                s.end(how)
                a.until("paused 0")
                s.start()
                a.say()
                a.finish()
                w = want or undisturbed(s, dict(ask, seed=a.of("accepted")[0].split()[0]))
                compare(w, a)
                assert a.of("changes") == ["2"] or how == "stop", a.lines  # lost, back
                with Client(s.path) as c:
                    assert c.call("status")["clients"] == 1
            print(f"      {name}: {len(w.of('token'))} tokens")


def twice_and_while_nobody_is_there():
    """Two restarts in one stream; a request made while there is no daemon waits for one; one that is cancelled then ends."""
    with service() as s:
        want = undisturbed(s, ASKS["sampled"])
        a = Asker(s, model="tiny", exact=1, credits=20, **ASKS["sampled"])
        a.until("hold")
        for how in ("crash", "stop"):
            s.end(how)
            a.until("paused 0")
            s.start()
            if how == "crash":
                until("it is resumed", lambda: [r for r in Client(s.path).call("ps").get("requests", []) if r["n_generated"] >= 20])
        a.say()
        compare(want, a.finish())
        a = Asker(s, model="tiny", exact=1, credits=20, **ASKS["sampled"])
        a.until("hold")
        s.end("crash")
        a.until("paused 0")
        a.say("cancel")
        a.finish()
        assert a.of("done")[0].split()[:2] == ["cancelled", "20"], a.lines
        s.start()


def a_worker_and_the_daemon_die():
    """First the worker, then the daemon, in one stream."""
    with service() as s:
        want = undisturbed(s, ASKS["greedy"])
        a = Asker(s, model="tiny", exact=1, credits=20, **ASKS["greedy"])
        a.until("hold")
        with Client(s.path) as c:
            os.kill(c.call("status")["worker_pid"], signal.SIGKILL)
        a.until("paused 0")
        s.end("crash")
        a.until("paused 0")
        s.start()
        a.say()
        compare(want, a.finish())


def reused_roles_come_back():
    """A prompt that was partly evaluated as generated tokens is evaluated the same way by the next daemon."""
    with service() as s:
        base = dict(model="tiny", temperature=0, seed=4, forbid="313,314")
        first = Asker(s, prompt="the cat and the dog and the man", max_tokens=40, **base).finish()
        prompt = "the cat and the dog and the man" + first.text().decode() + " and"
        ask = dict(base, prompt=prompt, max_tokens=60, logprobs=1)
        runs = []
        for kill in (False, True):
            a = Asker(s, credits=25, **ask)
            a.until("hold")
            assert a.of("accepted")[0].split()[1] != "0", "nothing was reused: this tests nothing"
            if kill:
                s.end("crash")
                a.until("paused 0")
                s.start()
            a.say()
            runs.append(a.finish())
            if not kill:  # the same state of the cache for the second run
                s.end("stop")
                s.start()
                Asker(s, prompt="the cat and the dog and the man", max_tokens=40, **base).finish()
        compare(*runs)


def another_build_or_profile_is_said():
    """Another context length, KV type or worker build: what was sent is kept, the change is said in the event and in the reply."""
    with service() as s:
        for config, word in (("[models]\ncontext = 512\n", "context length"), ):
            a = Asker(s, model="tiny", credits=20, **ASKS["greedy"])
            a.until("hold")
            s.end("crash")
            s.start(config)
            a.say()
            a.finish()
            changed = [p for p in a.of("paused") if p.startswith("1 ")]
            assert len(changed) == 1 and word in changed[0], a.lines
            finish, n, flag, _ = a.of("done")[0].split()
            assert flag == "1" and n == "120" and len(a.of("token")) == 120, a.lines
            s.end("stop")
            s.start()
        # Another build: the same program with another build id.
        real = pathlib.Path(HEARTHD).parent / "hearth-worker"
        other = pathlib.Path(s.home) / "hearth-worker"
        data = real.read_bytes()
        at = data.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
        assert at > 0, "the worker has no build id"
        other.write_bytes(data[: at + 16] + bytes(b ^ 0xFF for b in data[at + 16 : at + 36]) + data[at + 36 :])
        other.chmod(0o755)
        want = undisturbed(s, ASKS["greedy"])
        a = Asker(s, model="tiny", exact=1, credits=20, **ASKS["greedy"])
        a.until("hold")
        s.end("crash")
        s.start(worker=other)
        a.say()
        a.finish()
        assert any(p.startswith("1 ") and "build" in p for p in a.of("paused")), a.lines
        assert a.of("token") == want.of("token") and a.of("done")[0].split()[2] == "1"


def another_model_is_refused():
    """Another model under the name: its tokens would mean something else. The request ends and says why."""
    with service() as s:
        a = Asker(s, model="tiny", credits=20, **ASKS["greedy"])
        a.until("hold")
        s.end("crash")
        shutil.copy(MODELS / "llama-q8_0.gguf", s.models / "tiny.gguf")
        s.start()
        a.say()
        a.finish()
        code, _, message = a.of("error")[0].partition(" ")
        assert code == "model_changed" and "20 tokens" in message, a.lines


def nobody_comes_back():
    """No daemon for longer than the client wants to wait: disconnected, with the reason."""
    with service() as s:
        a = Asker(s, model="tiny", credits=20, give_up=1, **ASKS["greedy"])
        a.until("hold")
        s.end("crash")
        a.finish()
        assert a.of("error")[0].startswith("disconnected") and "1 s" in a.of("error")[0], a.lines
        s.start()


def without_reconnect():
    """Without it the loss is the end, as it always was; and the rest can be asked for by hand, also from another daemon."""
    with service() as s, service() as other:
        want = undisturbed(s, ASKS["sampled"])
        a = Asker(s, model="tiny", exact=1, credits=20, give_up=0, **ASKS["sampled"])
        a.until("hold")
        s.end("crash")
        a.finish()
        assert a.of("error")[0].startswith("disconnected"), a.lines
        s.start()
        a = Asker(s, model="tiny", exact=1, credits=20, give_up=0, again=other.path, **ASKS["sampled"])
        a.until("hold")
        a.say("by hand")
        a.finish()
        assert a.of("token") == want.of("token") and a.of("done") == want.of("done"), a.lines


def tool_calls_survive():
    """A chat with tools: thoughts, calls and text come out of the whole answer, whoever generated its parts."""
    template = b"""{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>{% endif %}"""
    kvs, tensors = parse(TINY.read_bytes())
    kvs.append((b"tokenizer.chat_template", 8, struct.pack("<Q", len(template)) + template))
    with service() as s:
        (s.models / "chat.gguf").write_bytes(build(kvs, [list(t) for t in tensors]))
        # The tiny model would never call anything by itself.
        grammar = 'root ::= [a-e]{5,9} "\\n<tool_call>\\n{\\"name\\": \\"get_weather\\", \\"arguments\\": {\\"place\\": \\"" [a-e]{12,20} "\\"}}\\n</tool_call>"'
        ask = dict(kind="chat", messages='[{"role":"user","content":"the cat"}]', tools=TOOLS, max_tokens=200, temperature=1, seed=3,
                   grammar=grammar, logprobs=1)
        want = Asker(s, model="chat", exact=1, **ask).finish()
        assert len(want.of("call")) == 1 and "get_weather" in want.of("call")[0], want.lines
        for credits in (4, 30, len(want.of("token")) - 4):
            a = Asker(s, model="chat", exact=1, credits=credits, **ask)
            a.until("hold")
            s.end("crash")
            s.start()
            a.say()
            compare(want, a.finish())


def raw_refusals():
    """What can't be resumed is refused with the reason; a hostile resume harms nobody."""
    from pyclient import pack
    with service() as s, Client(s.path) as c:
        g = pack(REQUEST, 7, "generate", {"model": "tiny", "prompt": "the cat", "max_tokens": 30, "temperature": 0.0, **NO_END})[4:]
        whole = c.generate(model="tiny", prompt="the cat", max_tokens=30, temperature=0.0, exact=True, **NO_END)[1]
        resume = lambda **f: c.call("resume", {"request": 1, "seed": 5, **f})
        expect("bad_request", lambda: resume(), "generate", "again")
        expect("bad_request", lambda: resume(generate=b"\xff"), "resume.generate")
        expect("bad_request", lambda: resume(generate=pack(REQUEST, 1, "ping", {})[4:]), "ping")
        expect("bad_request", lambda: resume(generate=g, ids=b"abc"), "multiple of 4")
        expect("bad_request", lambda: resume(generate=g, seed=0, ids=ids_blob([1])), "seed")
        expect("bad_request", lambda: resume(generate=g, ids=ids_blob([1, 100000])), "ids[1]", "100000", "320")
        expect("bad_request", lambda: resume(generate=g, ids=ids_blob([1] * 2000)), "2000 ids", "1024")
        bad = pack(REQUEST, 7, "generate", {"model": "tiny", "prompt": "a", "grammar": 'root ::= "b"+'})[4:]
        expect("bad_request", lambda: resume(generate=bad, ids=ids_blob([40, 41])), "ids[0]", "grammar")
        expect("unknown_model", lambda: resume(generate=pack(REQUEST, 1, "generate", {"model": "nix", "prompt": "a"})[4:]))
        bad = pack(REQUEST, 7, "generate", {"model": "tiny", "prompt": "a", "n_fds": 2})[4:]
        expect("bad_request", lambda: resume(generate=bad), "n_fds")
        for n in (0, 1, 17, 29, 30):  # 30: it had ended; only the end is missing
            got, reply = [], None
            for kind, m, f in c.stream("resume", {"request": 1, "seed": 5, "generate": g, "ids": ids_blob(whole[:n])}):
                got += ids(f.get("ids", b"")) if m == "tokens" else []
                reply = f
            assert whole[:n] + got == whole and reply["n_generated"] == 30 and reply["finish"] == "length", (n, got, reply)
            assert m == "resume" and not reply.get("changed")
        # Roles that don't fit the prompt are no more than another way to evaluate it.
        for roles in ([0xFFFFFFFF] * 3, [0, 1, 0, 1] * 500, [1, 1]):
            assert list(c.stream("resume", {"request": 1, "seed": 5, "generate": g, "ids": ids_blob(whole[:3]), "roles": ids_blob(roles)}))[-1][0] == REPLY
        assert c.call("ping") == {} and not c.call("ps").get("requests")


CASES = [streams_survive, twice_and_while_nobody_is_there, a_worker_and_the_daemon_die, reused_roles_come_back, another_build_or_profile_is_said,
         another_model_is_refused, nobody_comes_back, without_reconnect, tool_calls_survive, raw_refusals]
sys.exit(run_tests([c for c in CASES if len(sys.argv) < 5 or c.__name__ in sys.argv[4:]]))
