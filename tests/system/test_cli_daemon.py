# SPDX-License-Identifier: Apache-2.0
"""The CLI with a real daemon that it starts itself, and a tiny model.

    test_cli_daemon.py HEARTH MODELS_DIR
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from harness import Terminal, environment, private_dir, run_tests, skip
from pyclient import Client

HEARTH, MODELS = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
TINY = MODELS / "llama-q4_0.gguf"
if not TINY.exists():
    skip(f"no tiny model {TINY}")
if os.path.exists("/run/hearth/hearth.sock"):
    skip("a system-wide daemon runs here; its socket comes before the one that would be started")
# The tiny model's end-of-text tokens; without them an answer is as long as asked for.
NO_END = ["--logit-bias", "313=-inf", "--logit-bias", "314=-inf"]


class World:
    """A user's home with a model directory; the daemon is started by the first command."""

    def __init__(self):
        self.dir = private_dir()
        self.home = pathlib.Path(self.dir.name)
        self.env = environment(self.home)
        self.models = self.home / "data/hearth/models"
        self.models.mkdir(parents=True)
        shutil.copy(TINY, self.models / "tiny.gguf")
        os.chmod(self.models / "tiny.gguf", 0o600)

    def run(self, *arguments, stdin=b"", timeout=120, **kw):
        return subprocess.run([HEARTH, *arguments], input=stdin, env=self.env, capture_output=True, timeout=timeout, **kw)

    def pid(self):
        r = self.run("status", "--json", "--no-start")
        return json.loads(r.stdout)["pid"] if r.returncode == 0 else None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        pid = self.pid()
        if pid:
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 60
            while os.path.exists(f"/proc/{pid}") and not is_zombie(pid):
                assert time.monotonic() < end, "the daemon does not stop"
                time.sleep(0.02)
        log = self.home / "hearth/hearthd.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        if kind or "Sanitizer" in text:
            print(f"--- the daemon's log ---\n{text}---")
        assert "Sanitizer" not in text
        self.dir.cleanup()


def is_zombie(pid):
    try:
        return open(f"/proc/{pid}/stat", encoding="ascii", errors="replace").read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def check(r, status, err=None):
    got = (r.returncode, r.stdout[-300:].decode(errors="replace"), r.stderr.decode(errors="replace"))
    assert r.returncode == status, f"exit status {status} expected: {got}"
    if err is not None:
        assert (err in got[2]) if err else got[2] == "", got


def test_first_use():
    """the first command starts a daemon, loads the model, answers; nothing but the answer is shown"""
    with World() as w:
        a = w.run("run", "--raw", "-t", "0", "-n", "12", *NO_END, "tiny", "the quick brown")
        check(a, 0, "")
        assert len(a.stdout) > 0
        pid = w.pid()
        b = w.run("run", "--raw", "-t", "0", "-n", "12", *NO_END, "tiny", "the quick brown")
        assert (b.stdout, w.pid()) == (a.stdout, pid), (a, b)
        # The only model needs no name; what is piped in is the prompt.
        c = w.run("run", "--raw", "-t", "0", "-n", "12", *NO_END, stdin=b"the quick brown")
        check(c, 0, "")
        assert c.stdout == a.stdout, (a, c)
    with World() as w:  # the same without a word about the model, from the start
        d = w.run("run", "--raw", "-t", "0", "-n", "12", *NO_END, "the quick brown", stdin=b"")
        check(d, 0, "")
        assert d.stdout == a.stdout, (a, d)
    with World() as w:
        shutil.copy(TINY, w.models / "other.gguf")
        check(w.run("run", "--raw", "the quick brown"), 64, "several models are there, and none is loaded: name one of other, tiny")
        os.remove(w.models / "other.gguf")
        os.remove(w.models / "tiny.gguf")
        check(w.run("run", "hello"), 66, "the daemon knows no model")


def test_two_at_once_start_one():
    """many first commands at the same time: one daemon remains, all are answered"""
    with World() as w:
        ps = [subprocess.Popen([HEARTH, "models", "--names"], env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
              for _ in range(6)]
        for p in ps:
            out, err = p.communicate(timeout=60)
            assert (p.returncode, out, err) == (0, b"tiny\n", b""), (p.returncode, out, err)


def test_json_and_seed():
    """the seed that was chosen gives the same tokens again"""
    with World() as w:
        def tokens(*more):
            r = w.run("run", "--raw", "--json", "-n", "20", "-t", "1", *NO_END, *more, "tiny", "once upon")
            check(r, 0, "")
            events = [json.loads(line) for line in r.stdout.decode().splitlines()]
            assert events[-1]["event"] == "done" and events[-1]["finish"] == "length" and events[-1]["n_generated"] == 20, events[-1]
            accepted = [e for e in events if e["event"] == "accepted"]
            assert len(accepted) == 1, events
            return accepted[0]["seed"], [i for e in events if e["event"] == "tokens" for i in e["ids"]]
        seed, first = tokens()
        again_seed, again = tokens("--seed", str(seed))
        assert len(first) == 20 and (again_seed, again) == (seed, first), (seed, first, again_seed, again)


def test_by_path():
    """a model the daemon could not open itself is passed as an open file"""
    with World() as w:
        file = w.home / "elsewhere" / "mine.gguf"
        file.parent.mkdir()
        shutil.copy(TINY, file)
        r = w.run("run", "--raw", "-n", "4", *NO_END, "elsewhere/mine.gguf", "hello", cwd=w.home)
        check(r, 0, "")
        r = w.run("run", "--raw", "-n", "4", "./missing.gguf", "hello")
        check(r, 66, "./missing.gguf: No such file")
        broken = w.home / "broken.gguf"
        broken.write_bytes(TINY.read_bytes()[:1000])
        r = w.run("run", "--raw", "-n", "4", str(broken), "hello")
        check(r, 65, "hearth: ")


def test_errors():
    with World() as w:
        check(w.run("run", "tinny", "hello"), 66, "Did you mean tiny?")
        check(w.run("run", "--raw", "-n", "4", "tiny", "word " * 3000), 65, "Nothing was cut")
        check(w.run("unload", "tiny"), 0)
        check(w.run("unload", "tiny"), 66, "hearth: ")
        r = w.run("run", "tiny", "hello")
        check(r, 65, "chat template")
        check(w.run("run", "--raw", "--json-schema", "/dev/null", "tiny", "x"), 65, "is empty")


def test_strange_names():
    """File names with control characters or no UTF-8 break no list and reach no terminal; broken files are told; each name is answered under itself"""
    with World() as w:
        for name in ("sp ace", "-dash"):
            shutil.copy(TINY, w.models / f"{name}.gguf")
        for name in (b"bad\xff", b"esc\x1b[31mred", b"c1\xc2\x9b", "turn\u202enrut".encode()):
            shutil.copy(TINY, os.fsencode(w.models) + b"/" + name + b".gguf")
        (w.models / "empty.gguf").touch()
        (w.models / "split-00002-of-00002.gguf").write_bytes(b"GGUF")
        r = w.run("models")
        check(r, 0, "")
        out = r.stdout.decode()
        for text in ("tiny ", "sp ace ", "bad\\xff ", "esc\\x1b[31mred ", "c1\\xc2\\x9b ", "turn\\xe2\\x80\\xaenrut "):
            assert text in out, (text, out)
        assert "its file is empty" in out and "only 1 of its 2 parts are there" in out and "\x1b" not in out and "\u202e" not in out, out
        r = w.run("doctor")
        out = r.stdout.decode()
        assert "✗ models     empty: its file is empty" in out and "✓ models     3 can be named" in out and "\x1b" not in out, out
        r = w.run("load", "esc\x1b[31mred")
        assert r.returncode == 66 and b"\x1b" not in r.stderr and b"control characters" in r.stderr, r
        for command in ("inspect", "load", "unload", "run"):
            r = w.run(command, "./no\x1b[31m\u202e.gguf", *["hi"] * (command == "run"))
            assert r.returncode != 0 and b"\x1b" not in r.stderr and b"\\x1b[31m\\xe2\\x80\\xae" in r.stderr, r
        odd = w.models / "turn\u202enrut.gguf"
        r = w.run("inspect", str(odd))
        assert r.returncode == 0 and b"turn\\xe2\\x80\\xaenrut" in r.stdout and "\u202e".encode() not in r.stdout, r
        r = w.run("inspect", "--json", str(odd))
        assert r.returncode == 0 and b"turn\\u202enrut" in r.stdout and json.loads(r.stdout)["file"] == str(odd), r
        # One content, several names.
        check(w.run("load", "--", "-dash"), 0, "")
        for name in ("sp ace", "tiny", "-dash"):
            check(w.run("run", "--", name, "hi"), 65, f"hearth: {name} has no chat template")
            r = w.run("run", "--raw", "--json", "-n", "2", "--", name, "hi")
            check(r, 0)
            assert json.loads(r.stdout.splitlines()[0])["model"] == name, r.stdout
        # An unset variable is no wish for the default.
        check(w.run("run", "--", "", "hi"), 64, "the model's name is empty")
        check(w.run("load", ""), 64, "the model's name is empty")
        check(w.run("run", "--raw", "--model", "", "hi"), 64, "the model's name is empty")


def test_unload_by_path():
    """what was loaded by a path is unloaded by it, however it is written"""
    with World() as w:
        file = w.home / "mine.gguf"
        shutil.copy(TINY, file)
        file.write_bytes(file.read_bytes() + b"\0")
        check(w.run("load", "./mine.gguf", cwd=w.home), 0)
        check(w.run("unload", "mine.gguf", cwd=w.home), 0)
        check(w.run("unload", "./mine.gguf", cwd=w.home), 66)


def test_interrupt():
    """Ctrl-C frees the slot at once"""
    with World() as w:
        w.run("load", "tiny")
        p = subprocess.Popen([HEARTH, "run", "--raw", "-n", "1000", *NO_END, "tiny", "x"], env=w.env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
        # The model may have been done before the signal came; then there was nothing to interrupt.
        assert p.returncode in (130, 0) and err == b"", (p.returncode, err)
        with Client(f"{w.home}/hearth/hearth.sock") as c:
            assert not c.call("ps").get("requests"), c.call("ps")


def test_lifecycle():
    """load, models, ps, status, unload"""
    with World() as w:
        check(w.run("load", "tiny", "-c", "512", "--slots", "2"), 0, "")
        r = w.run("models", "--json")
        check(r, 0, "")
        (m,) = [json.loads(line) for line in r.stdout.splitlines()]
        assert m["name"] == "tiny" and m["n_ctx"] == 512 and m["slots"] == 2 and m["where"] == "memory", m
        r = w.run("models")
        assert b"tiny" in r.stdout and b"Q4_0" in r.stdout, r
        st = json.loads(w.run("status", "--json").stdout)
        assert st["models_resident"] == 1 and st["protocol"] == 1, st
        check(w.run("status"), 0, "")
        check(w.run("ps"), 0, "")
        check(w.run("unload", "tiny"), 0, "")
        assert json.loads(w.run("status", "--json").stdout)["models_resident"] == 0


def test_text_commands():
    with World() as w:
        r = w.run("tokenize", "tiny", stdin="the naïve café\n".encode())
        check(r, 0, "")
        ids = r.stdout.split()
        back = w.run("detokenize", "tiny", *[i.decode() for i in ids])
        check(back, 0, "")
        assert back.stdout.decode() == "the naïve café\n", (ids, back)
        check(w.run("embed", "tiny", "x"), 69, "hearth: ")
        check(w.run("fim", "tiny", "--suffix", "}", stdin=b"{"), 69, "hearth: ")


def test_structured():
    """an answer that fits the schema or the grammar, and refusals that name the place"""
    with World() as w:
        schema = w.home / "s.json"
        schema.write_text(json.dumps({"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
                                      "required": ["colour", "n"], "additionalProperties": False}))
        for seed in "123":
            r = w.run("run", "--raw", "--json", "--seed", seed, "-n", "900", "--json-schema", str(schema), "tiny", "x")
            events = [json.loads(line) for line in r.stdout.decode().splitlines()]
            check(r, 0 if events[-1]["finish"] == "stop" else 65, "")
            text = "".join(e["text"] for e in events if e["event"] == "tokens")
            if events[-1]["finish"] == "stop":  # blanks are JSON too, and a model of random weights may write many
                got = json.loads(text)
                assert got["colour"] in ("red", "blue") and 0 <= got["n"] <= 9 and len(got) == 2, got
        grammar = w.home / "g.gbnf"
        grammar.write_text('root ::= "yes" | "no"\n')
        r = w.run("run", "--raw", "--grammar", str(grammar), "tiny", "x")
        check(r, 0, "")
        assert r.stdout.decode() in ("yes", "no"), r
        schema.write_text('{"type": "objekt"}')
        check(w.run("run", "--raw", "--json-schema", str(schema), "tiny", "x"), 65, "/type")
        grammar.write_text("root ::= nothing\n")
        check(w.run("run", "--raw", "--grammar", str(grammar), "tiny", "x"), 65, "nothing")


def test_inspect():
    with World() as w:
        r = w.run("inspect", str(TINY))
        check(r, 0, "")
        assert b"general.architecture" in r.stdout and b"blk.0.attn_q.weight" in r.stdout, r.stdout
        check(w.run("inspect", "/dev/null"), 66, "not a regular file")
        for r in (w.run("inspect", "/nonexistent.gguf"), w.run("inspect", "/dev/null")):
            assert r.stderr.startswith(b"hearth: /"), r.stderr
        # a name of the registry, as load takes it; a split model by its first part
        part = w.models / "two-00001-of-00002.gguf"
        shutil.copy(TINY, part)
        for name, path in (("tiny", w.models / "tiny.gguf"), ("two", part)):
            r = w.run("inspect", name)
            check(r, 0, "")
            assert r.stdout.startswith(str(path).encode()), r.stdout
        check(w.run("inspect", "nothing"), 66, "hearth: nothing is no file, and no model")
        r = w.run("inspect", "--verify", "tiny")
        check(r, 0, "every weight is finite")
        assert b"the engine can run it" in r.stderr, r.stderr


def test_calibrate():
    """the profile lies where one's own daemon looks, which expects by it; one that doesn't hold is not used, and its log says why"""
    with World() as w:
        path = w.home / "state/hearth/card-profile-cpu.json"
        r = first = w.run("calibrate", "--quick", "--backend", "cpu")
        check(r, 0, f"written to {path}; too rough to be used")
        assert b"host memory, read by    1 thread" in r.stdout and b"\nIQ4_XS " in r.stdout, r.stdout
        assert path.stat().st_mode & 0o777 == 0o644
        assert os.listdir(path.parent) == [path.name]
        profile = json.loads(path.read_text())
        other = w.home / "elsewhere"
        other.mkdir()
        r = w.run("calibrate", "--quick", "--backend", "cpu", "--json", "--threads", "1", "--profile-dir", str(other))
        check(r, 0)
        assert r.stdout == (other / path.name).read_bytes()
        one = json.loads(r.stdout)
        assert one["version"] == 2 and one["quick"] and "1 thread)" in one["card"], one["card"]
        assert one["choices"] == []  # one thread: there is nothing to divide
        assert all(c["left_out"] == "" and c["chosen_s"] <= c["plain_s"] for c in profile["choices"])
        assert bool(profile["choices"]) == (len(os.sched_getaffinity(0)) > 1) == (b"\nlaunches " in first.stdout), first.stdout
        kinds = [(p["type"], p["role"], p["batch"]) for p in one["products"]]
        assert kinds == [(p["type"], p["role"], p["batch"]) for p in profile["products"]] and len(set(kinds)) == len(kinds)
        assert {t for t, _, _ in kinds} >= {"F32", "Q4_0", "Q8_0", "Q6_K", "MXFP4"}
        check(w.run("calibrate", "word"), 64, "takes no words")
        check(w.run("calibrate", "--backend", "tpu"), 64, "cpu or cuda, not 'tpu'")
        check(w.run("calibrate", "--quick", "--backend", "cpu", "--profile-dir", "/nonexistent"), 74, "/nonexistent, where the profile goes")
        check(w.run("calibrate", "--quick", "--backend", "cpu", "--profile-dir", str(path)), 74, "where the profile goes: Not a directory")
        check(w.run("calibrate", "--quick", "--backend", "cpu", "--profile-dir", ""), 64, "--profile-dir takes a directory")
        check(w.run("calibrate", "--quick", "--backend", "cpu", "--profile-dir", "--json"), 74, "./--json, where the profile goes")
        check(w.run("calibrate", "--quick", "--backend", "cpu", "--threads", "5000"), 64, "--threads at most 4096")
        r = w.run("calibrate", "--quick", "--backend", "cpu", "--json", "--types", "q4_0,F16", "--profile-dir", str(other))
        check(r, 0)
        assert {p["type"] for p in json.loads(r.stdout)["products"]} == {"F16", "Q4_0"}, r.stdout
        for wrong in ("", "Q4_0,", ",Q4_0", "Q4_0 Q6_K", "I32", "Q99"):
            check(w.run("calibrate", "--quick", "--backend", "cpu", "--types", wrong), 64, "separated by commas")

    def change(**values):
        return json.dumps(profile | {"quick": False} | values)

    strange = {"family": "product", "type": "Q4_0", "rows": 256, "cols": 512, "batch": 1, "variant": "no such", "left_out": "", "plain_s": 1e-5,
               "chosen_s": 1e-5}
    for text, log, expected in ((change(), "holds for this device", True), (json.dumps(profile), "measured with --quick", False),
                                (change(build="0" * 40), "another build of hearth-worker", False), (change(card="no such"), "another device", False),
                                (change(version=1), "version 1, this program reads 2", False), (change(choices=[strange]), 'chooses "no such"', False),
                                (change(choices=[strange] * 2), "of another product than an entry", False), (change(launch_s=-1), '"launch_s" must be', False),
                                (change(launch_s=1e15), '"launch_s" must be a number that is neither negative nor beyond all devices', False),
                                (change()[:-9], "line 1", False)):
        with World() as w:
            path = w.home / "state/hearth/card-profile-cpu.json"
            path.parent.mkdir(parents=True)
            path.write_text(text)
            check(w.run("load", "tiny"), 0)
            r = w.run("models")
            assert (b"in host memory; about " in r.stdout) == expected, (log, r.stdout)
            assert log in (w.home / "hearth/hearthd.log").read_text(), log


def test_refused_before_the_copy():
    """a model that can't be run is refused from its metadata and takes no memory"""
    with World() as w:
        def strange(name, old, new):
            b = (w.models / "tiny.gguf").read_bytes()
            assert old in b
            path = w.models / name
            path.write_bytes(b.replace(old, new))
            return path

        for name, old, new, code, words in (
                ("arch", b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0frobn", 65, "unknown architecture \"frobn\"; known: llama"),
                ("tensor", b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight", 65, "tensor blk.1.ffn_up.weight is missing"),
                ("pre", b"llama-bpe", b"llama-xyz", 65, "llama-xyz")):
            strange(name + ".gguf", old, new)
            check(w.run("models"), 0)
            before = json.loads(w.run("status", "--json").stdout)
            r = w.run("load", name)
            check(r, code, words)
            after = json.loads(w.run("status", "--json").stdout)
            assert after["host_bytes"] == before["host_bytes"], (before, after)


def test_doctor():
    """says what is missing; finds a socket that nobody listens on"""
    with World() as w:
        r = w.run("doctor")
        check(r, 78, "")
        assert "is not there: no daemon runs" in r.stdout.decode(), r
        w.run("load", "tiny")
        r = w.run("doctor")
        out = r.stdout.decode()
        assert "✓ socket" in out and "✓ worker" in out and "✓ models     1 can be named" in out, r
        # A worker that ended is mentioned with how it did, there and in status.
        os.kill(json.loads(w.run("status", "--json").stdout)["worker_pid"], signal.SIGKILL)
        end = time.monotonic() + 20
        while (st := json.loads(w.run("status", "--json").stdout))["worker_restarts"] != 1 or st["worker"] != "ready":
            assert time.monotonic() < end, st
        assert st["worker_end"] == "was ended by signal 9 (Killed)", st
        for command in ("status", "doctor"):
            assert f"the last one {st['worker_end']}" in w.run(command).stdout.decode(), command
    with private_dir() as d:
        os.mkdir(f"{d}/hearth")
        s = socket.socket(socket.AF_UNIX)
        s.bind(f"{d}/hearth/hearth.sock")
        s.close()
        r = subprocess.run([HEARTH, "doctor"], env=environment(d), capture_output=True, timeout=60)
        assert r.returncode == 78 and "nobody listens" in r.stdout.decode(), r
        os.makedirs(f"{d}/config/hearth")
        pathlib.Path(f"{d}/config/hearth/hearth.conf").write_text("[limits]\n\nconnections = lots\n")
        pathlib.Path(f"{d}/hearth/hearth.sock.lock").write_text("999999999\n")
        os.chmod(f"{d}/hearth", 0o777)
        r = subprocess.run([HEARTH, "doctor", "--json"], env=environment(d), capture_output=True, timeout=60)
        found = [json.loads(line) for line in r.stdout.splitlines()]
        said = lambda level, subject, text: any(f["level"] == level and f["subject"] == subject and text in f["text"] for f in found)
        assert r.returncode == 78 and said("fault", "config", "hearth.conf:3: connections is a number from 1"), r
        assert said("note", "stale", "process 999999999, which ended") and said("fault", "socket", "can be written by everybody"), r
        r = subprocess.run([HEARTH, "doctor", "--socket", "/" + "x" * 150], env=environment(d), capture_output=True, timeout=60)
        assert r.returncode == 78 and "its path has 151 bytes, at most 107" in r.stdout.decode(), r
        r = subprocess.run([HEARTH, "ps"], env=environment(d), capture_output=True, timeout=60)
        check(r, 69, "hearth: no daemon at")


def test_status_json():
    """hearth status --json is as docs/status.schema.json says, neither more nor less"""
    import jsonschema
    schema = json.loads((DOCS / "status.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    with World() as w:
        for command in (("models",), ("run", "tiny", "--raw", "a", "-n", "3")):  # before and after a worker runs
            assert w.run(*command).returncode == 0
            r = w.run("status", "--json")
            got = json.loads(r.stdout)
            jsonschema.validate(got, schema)
            assert set(got) == set(schema["properties"]) == set(schema["required"]), set(got) ^ set(schema["properties"])
        assert got["metrics"]["requests"] == 1 and isinstance(got["metrics"]["requests"], int)


def test_metrics():
    """hearth metrics: every figure that docs/metrics.md has, of its type, and none that it has not"""
    table = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("hearth_"):
            table[cells[0]] = cells[1]
    with World() as w:
        assert w.run("run", "tiny", "--raw", "a", "-n", "3", *NO_END).returncode == 0
        r = w.run("metrics")
        check(r, 0)
        types, values, helped, by_model = {}, {}, set(), set()
        for line in r.stdout.decode().splitlines():
            if line.startswith("# HELP "):
                helped.add(line.split(" ", 3)[2])
            elif line.startswith("# TYPE "):
                name, types[name] = line.split(" ")[2:4][0], line.split(" ")[3]
            else:
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
                if "{model=" in name:
                    by_model.add(name.split("{")[0])
        got = {n + ("{model}" if n in by_model else ""): t for n, t in types.items()}
        assert got == table, f"docs/metrics.md and the daemon differ: {set(got.items()) ^ set(table.items())}"
        assert helped == set(types)
        for name in values:
            base = name.split("{")[0]
            assert any(base == n or types[n] == "histogram" and base in (n + "_bucket", n + "_sum", n + "_count") for n in types), name
        assert values["hearth_tokens_generated_total"] == 3 and values['hearth_model_slots{model="tiny"}'] == 4
        for h in (n for n, t in types.items() if t == "histogram"):
            buckets = [v for n, v in values.items() if n.startswith(h + "_bucket")]
            assert buckets == sorted(buckets) and buckets[-1] == values[h + "_count"] == 1, (h, buckets)


def test_daemon_that_cant_start():
    """its own message is passed on"""
    with World() as w:
        w.env["HEARTH_SOCKET"] = f"{w.home}/no/such/dir/h.sock"
        r = w.run("ps")
        check(r, 69, "hearth: no daemon at")
        r = w.run("run", "tiny", "x")
        check(r, 69, "hearthd did not start: ")
        w.env.pop("HEARTH_SOCKET")


def test_chat_terminal():
    """a conversation on a terminal; the tiny model has no template, which is said and does not end the program"""
    with World() as w:
        t = Terminal([HEARTH, "chat", "tiny"], w.env)
        t.expect("> ")
        t.type("hello\r")
        t.expect("chat template")
        t.expect("> ")
        t.type("/exit\r")
        assert t.wait(60) == 0, t.output


def test_daemon_dies_in_an_answer():
    """kill -9 of the daemon in the middle: the CLI starts another one, and the answer is that of an undisturbed run."""
    with World() as w:
        ask = ["run", "tiny", "the cat", "--raw", "--json", "--max-tokens", "900", "--logprobs", "20", "--seed", "5", "--temperature", "1", *NO_END]
        want = [json.loads(x) for x in w.run(*ask).stdout.splitlines()]
        # The answer is larger than what the sockets and the pipe hold: it waits in the middle for us.
        p = subprocess.Popen([HEARTH, *ask], env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        head = p.stdout.read(60_000)
        os.kill(w.pid(), signal.SIGKILL)
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0, err
        got = [json.loads(x) for x in (head + out).splitlines()]
        tokens = lambda events: [(e["text"], e["ids"], e["logprobs"]) for e in events if e["event"] == "tokens"]
        assert tokens(got) == tokens(want) and len(tokens(want)) == 900
        assert [e["changed"] for e in got if e["event"] == "paused"] == [False]
        assert len([e for e in got if e["event"] == "accepted"]) == 1 and got[-1]["finish"] == "length"


def test_another_daemon_dies():
    """kill -9 of a daemon that someone started with options of their own: no other one takes its place, and its own return is what goes on."""
    for named in (False, True):
        with World() as w:
            path = str(w.home / ("own.sock" if named else "hearth/hearth.sock"))
            own = w.home / "own"
            own.mkdir()
            shutil.move(w.models / "tiny.gguf", own / "tiny.gguf")
            os.makedirs(w.home / "hearth", mode=0o700, exist_ok=True)
            if named:
                w.env["HEARTH_SOCKET"] = path
            program = next(p for p in (pathlib.Path(HEARTH).parent / "../daemon/hearthd", pathlib.Path(HEARTH).parent / "hearthd") if p.exists())

            def start():
                p = subprocess.Popen([program, "--user", "--socket", path, "--model-dir", own], env=w.env, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
                end = time.monotonic() + 60
                while w.pid() != p.pid:
                    assert time.monotonic() < end and p.poll() is None, "it does not start"
                    time.sleep(0.05)
                return p

            ask = ["run", "tiny", "the cat", "--raw", "--json", "--max-tokens", "900", "--logprobs", "20", "--seed", "5", *NO_END]
            d = start()
            # It comes back by itself.
            p = subprocess.Popen([HEARTH, *ask], env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
            head = p.stdout.read(60_000)
            d.kill()
            d.wait()
            time.sleep(1.5)  # longer than after which one is started where that is right
            assert w.pid() is None, "another daemon serves"
            d = start()
            out, err = p.communicate(timeout=120)
            assert p.returncode == 0, err
            assert json.loads((head + out).splitlines()[-1])["finish"] == "length"
            # It does not.
            p = subprocess.Popen([HEARTH, *[a for a in ask if a != "--json"], "--deadline", "600"], env=w.env, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
            assert p.stdout.read(1)
            os.kill(p.pid, signal.SIGSTOP)  # what it has not read yet is lost with the daemon
            d.kill()
            d.wait()
            os.kill(p.pid, signal.SIGCONT)
            out, err = p.communicate(timeout=120)
            assert w.pid() is None, "another daemon serves"
            if p.returncode != 0 or b"incomplete" in err:  # else the whole answer had been sent before
                assert p.returncode == 69 and b"the answer is incomplete" in err and b"did not come back" in err, (p.returncode, err)


if __name__ == "__main__":
    sys.exit(run_tests([v for k, v in list(globals().items()) if k.startswith("test_")]))
