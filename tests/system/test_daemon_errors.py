# SPDX-License-Identifier: Apache-2.0
"""Every row of docs/errors.md: the failure is made to happen, and code and message are as the table says.

Afterwards the daemon still serves: each case runs beside a model that must go on answering."""
import re
import shlex
import signal
import socket
import subprocess

import daemonlib
from daemonlib import *
from pyclient import pack
from splitgguf import build, parse

DOC, PRELOAD, HEARTH = pathlib.Path(sys.argv[3]), sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else None


def rows():
    """case -> (code, message pattern). In a message, … stands for anything."""
    out = {}
    for line in DOC.read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "case" and not set(cells[0]) <= {"-"}:
            assert cells[0] not in out, f"two rows for {cells[0]}"
            out[cells[0]] = (cells[1].strip("`"), cells[2])
    return out


TABLE, SEEN = rows(), set()
PRELOADED = {"LD_PRELOAD": PRELOAD, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def check(case, code, message):
    want_code, pattern = TABLE[case]
    SEEN.add(case)
    regex = ".*".join(re.escape(p) for p in pattern.split("…"))
    assert code == want_code, f"{case}: the table says {want_code}, the daemon {code}: {message}"
    assert re.fullmatch(regex, message, re.S), f"{case}: the table says\n  {pattern}\nthe daemon\n  {message}"


def fails(case, function):
    try:
        got = function()
    except RemoteError as e:
        check(case, e.code, e.message)
        return e
    raise AssertionError(f"{case}: no error, but {got}")


def put(d, name, data):
    (d.models / f"{name}.gguf").write_bytes(data)
    return name


def replace_kv(kvs, key, kind, value):
    return [kv for kv in kvs if kv[0] != key] + ([(key, kind, value)] if value is not None else [])


def text(s):
    return struct.pack("<Q", len(s)) + s


def load(c, name):
    return lambda: c.call("load", {"model": name})


def expert_groups(kvs, tensors, n):
    """The tiny model with n experts in as many groups, all zeros."""
    facts = ((b"expert_count", n), (b"expert_used_count", 1), (b"expert_group_count", n), (b"expert_group_used_count", 2))
    kvs = kvs + [(b"llama." + key, 4, struct.pack("<I", v)) for key, v in facts]
    made = [list(t) for t in tensors if b".ffn_gate." not in t[0] and b".ffn_up." not in t[0] and b".ffn_down." not in t[0]]
    for layer in (b"blk.0.", b"blk.1."):
        made.append([layer + b"ffn_gate_inp.weight", [256, n], 0, 0, bytes(256 * n * 4)])
        for name, dims in ((b"gate", [256, 32, n]), (b"up", [256, 32, n]), (b"down", [32, 256, n])):
            made.append([layer + b"ffn_" + name + b"_exps.weight", dims, 2, 0, bytes(256 * n * 18)])  # Q4_0
    return build(kvs, made)


def model_files():
    """What can be wrong with a file."""
    data = TINY.read_bytes()
    kvs, tensors = parse(data)
    with daemon(models=("tiny", "smollm")) as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        running = long_answer(c, 400, credits=5)
        fails("unknown-model", load(c, "tny"))
        e = fails("unknown-model", load(c, "smolm"))
        assert e.fields["nearest"] == ["smollm"], e.fields
        fails("unknown-model-nothing-near", load(c, "completely-different"))
        fails("model-is-a-path", load(c, "/etc/passwd"))
        fails("truncated", load(c, put(d, "truncated", data[: len(data) * 2 // 3])))
        fails("truncated-header", load(c, put(d, "short", data[:3000])))
        fails("not-gguf", load(c, put(d, "text", b"Dear model, " * 40)))
        fails("empty", load(c, put(d, "empty", b"")))
        fails("hostile-count", load(c, put(d, "count", data[:8] + struct.pack("<Q", 1 << 60) + data[16:])))
        far = [list(t) for t in tensors]
        made = bytearray(build(kvs, far))
        at = made.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16 + 4
        made[at : at + 8] = struct.pack("<Q", 1 << 40)
        fails("hostile-offset", load(c, put(d, "offset", bytes(made))))
        arch = replace_kv(kvs, b"general.architecture", 8, text(b"perceptron"))
        fails("unknown-architecture", load(c, put(d, "arch", build(arch, [list(t) for t in tensors]))))
        made = bytearray(build(kvs, [list(t) for t in tensors]))
        at = made.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
        made[at : at + 4] = struct.pack("<I", 99)
        fails("unknown-type", load(c, put(d, "type", bytes(made))))
        tok = replace_kv(kvs, b"tokenizer.ggml.model", 8, text(b"abacus"))
        fails("unknown-tokenizer", load(c, put(d, "tok", build(tok, [list(t) for t in tensors]))))
        fails("backend-limit", load(c, put(d, "groups", expert_groups(kvs, tensors, 257))))
        (d.models / "tiny2-00001-of-00003.gguf").write_bytes(data)
        fails("missing-part", load(c, "tiny2"))
        os.mkdir(d.models / "dir.gguf")
        fails("not-a-file", load(c, "dir"))
        if os.getuid() != 0:
            put(d, "locked", data)
            os.chmod(d.models / "locked.gguf", 0)
            fails("unreadable", load(c, "locked"))
        else:
            SEEN.add("unreadable")  # root may read everything
        fails("context-over-trained", lambda: c.call("load", {"model": "tiny", "n_ctx": 5000}))
        fails("kv-type", lambda: c.call("load", {"model": "tiny", "kv": "q3"}))
        fails("no-gpu-to-place", lambda: c.call("load", {"model": "tiny", "gpu_layers": 3}))
        fails("no-gpu-to-place", lambda: c.call("load", {"model": "tiny", "vram_budget": 1 << 30}))
        # None of that disturbed the stream.
        c.call("credit", {"request": running, "n": 1000})
        assert list(c.events(running))[-1][2]["n_generated"] == 400
        assert c.call("status")["models_resident"] == 1


def disk_errors():
    """A read error in mid-load."""
    with daemon(models=("tiny", "small"), env=dict(PRELOADED, TEST_EIO_AT="300000")) as d, Client(d.path) as c:
        fails("read-error", load(c, "tiny"))
        assert c.call("status").get("host_bytes", 0) == 0
        fails("read-error", load(c, "tiny"))  # and again: nothing of the first is left


def dead_disk():
    """A disk that never answers: the load ends after hang_timeout, and only it."""
    with daemon(config="[worker]\nhang_timeout = 1s\n", env=dict(PRELOADED, TEST_HANG="1")) as d, Client(d.path) as c:
        i = c.start("load", {"model": "tiny"})
        c.call("status")
        fails("dead-disk", lambda: list(c.events(i)))
        assert c.call("status").get("host_bytes", 0) == 0


def changing_file():
    """A file that grows while it is read is no model yet."""
    with private_dir() as elsewhere:
        path = f"{elsewhere}/tiny.gguf"
        shutil.copy(TINY, path)
        os.chmod(path, 0o600)
        with daemon(models=(), env=dict(PRELOADED, TEST_GROW=path)) as d, Client(d.path) as c:
            os.symlink(path, d.models / "tiny.gguf")
            fails("file-changed", load(c, "tiny"))
            assert c.call("status").get("host_bytes", 0) == 0


def requests():
    """What can be wrong with a request."""
    kvs, tensors = parse(TINY.read_bytes())
    with daemon() as d, Client(d.path) as c:
        fails("no-model-named", lambda: c.generate(prompt="x"))
        expect("unknown_model", lambda: c.generate(model="", prompt="x"), "no model is named")
        c.call("load", {"model": "tiny"})
        # An empty name is none: the model loaded last is meant, but not by what loads and unloads.
        for method, fields in (("generate", {"prompt": "x", "max_tokens": 1}), ("tokenize", {"text": "x"}), ("detokenize", {"ids": ids_blob([5])})):
            assert c.call(method, dict(fields, model="")) is not None
        expect("unsupported", lambda: c.call("embed", {"model": "", "texts": ["x"]}), "tiny")
        fails("empty-name", lambda: c.call("load", {"model": ""}))
        expect("bad_request", lambda: c.call("unload", {"model": ""}), "unload.model has 0 bytes")
        gen = lambda **f: lambda: c.generate(model="tiny", **f)
        fails("prompt-too-long", gen(prompt_ids=ids_blob([5] * 2000)))
        e = fails("prompt-much-too-long", gen(prompt="the cat " * 20000))
        assert e.fields["needed"] > e.fields["available"] == N_CTX, e.fields
        e = fails("prompt-and-answer-too-long", gen(prompt_ids=ids_blob([5] * 1000), max_tokens=100))
        assert (e.fields["needed"], e.fields["available"]) == (1100, N_CTX), e.fields
        fails("empty-prompt", gen(prompt="", no_bos=True))
        n_vocab = fails("token-id-range", gen(prompt_ids=ids_blob([5, 100000]))).fields["available"]
        fails("odd-ids", gen(prompt_ids=b"\1\2\3\4\5"))
        fails("two-prompts", gen(prompt="a", prompt_ids=ids_blob([5])))
        fails("kind", gen(prompt="a", kind="poem"))
        fails("out-of-range", gen(prompt="a", temperature=-0.5))
        fails("missing-field", lambda: c.call("tokenize", {"model": "tiny"}))
        fails("wrong-type", gen(prompt=12))
        fails("must", gen(prompt="a", must=["beam_search"]))
        fails("bias", gen(prompt="a", bias_ids=ids_blob([1]), bias_values=struct.pack("<2f", 1, 2)))
        fails("bias-of-all", gen(prompt="a", bias_ids=ids_blob(range(n_vocab)), bias_values=struct.pack("<f", float("-inf")) * n_vocab))
        fails("empty-stop", gen(prompt="a", stop=["x", ""]))
        fails("no-template", gen(prompt="a", kind="chat"))
        fails("no-fim", gen(prefix="a", suffix="b", kind="fim"))
        fails("no-embeddings", lambda: c.call("embed", {"model": "tiny", "texts": ["a"]}))
        fails("unknown-method", lambda: c.call("sing"))
        fails("fds-missing", lambda: c.call("load", {"model": "/x.gguf", "n_fds": 1}))
        fails("payload-missing", lambda: c.call("generate", {"model": "tiny", "payload": "prompt"}))
        fails("payload-field", lambda: c.call("generate", {"model": "tiny", "payload": "prose"}))
        import fcntl
        for case, seals, size in (("payload-not-sealed", 4, 9), ("payload-too-large", 14, (64 << 20) + 1), ("payload-no-memfd", None, 0)):
            fd = os.open(TINY, os.O_RDONLY) if seals is None else os.memfd_create("t", os.MFD_ALLOW_SEALING)
            if seals:
                os.ftruncate(fd, size)
                fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
            fails(case, lambda: c.call("generate", {"model": "tiny", "payload": "prompt"}, [fd]))
            os.close(fd)
        fails("unload-unknown", lambda: c.call("unload", {"model": "nobody"}))
        message = lambda method, **f: pack(REQUEST, 1, method, f)[4:]
        resume = lambda **f: lambda: c.call("resume", {"request": 1, "seed": 2, "generate": message("generate", model="tiny", prompt="a"), **f})
        fails("resume-nothing", lambda: c.call("resume", {"request": 1, "seed": 2}))
        fails("resume-message", resume(generate=message("ping")))
        fails("resume-bytes", resume(ids=b"abc"))
        fails("resume-seed", resume(ids=ids_blob([1]), seed=0))
        fails("resume-id-range", resume(ids=ids_blob([100000])))
        fails("resume-too-many", resume(ids=ids_blob([1] * 2000)))
        fails("resume-not-allowed", resume(generate=message("generate", model="tiny", prompt="a", grammar='root ::= "b"+'), ids=ids_blob([40])))
        fails("resume-other-model", resume(ids=ids_blob([40]), identity="0" * 32 + "/f16/1024/0/x/y"))
        body = b"\x94\x00\x21\xa8generate\x82\xa5model\xa4tiny\xa6prompt\xa3a\xff\xfe"
        c.send_raw(struct.pack("<I", len(body)) + body)
        fails("bad-utf8", lambda: list(c.events(0x21)))
        i = long_answer(c, 500, credits=2)
        fails("id-in-use", lambda: c.send(REQUEST, i, "load", {"model": "tiny"}) or [None for _ in c.events(i)])
        c.pending.clear()
        fails("unload-busy", lambda: c.call("unload", {"model": "tiny"}))
        c.cancel(i)

        template = lambda src: build(replace_kv(kvs, b"tokenizer.chat_template", 8, text(src)), [list(t) for t in tensors])
        chat = lambda name, **f: lambda: c.generate(model=name, kind="chat", **f)
        put(d, "broken", template(b"a\n{% for x in %}"))
        fails("template-invalid", chat("broken", prompt="a"))
        put(d, "strict", template(b"{{ raise_exception('only green messages') }}"))
        fails("template-raised", chat("strict", prompt="a"))
        put(d, "plain", template(b"{% for m in messages %}{{ m.content }}{% endfor %}"))
        fails("messages-json", chat("plain", messages="[{"))
        fails("messages-shape", chat("plain", messages='["hello"]'))
        fails("messages-empty", chat("plain", messages="[]"))
        fails("template-vars", chat("plain", prompt="a", template_vars='{"enable_thinking": false, "messages": []}'))
        for name in ("tools", "bos_token", "eos_token", "raise_exception"):
            expect("bad_request", chat("plain", prompt="a", template_vars='{"%s": 1}' % name), name)
        for empty in ({"json_schema": ""}, {"grammar": ""}):
            try:
                c.generate(model="tiny", prompt="a", **empty)
            except RemoteError as e:
                assert e.code == "grammar_invalid", (empty, e.code)
            else:
                raise AssertionError(f"{empty} was taken for no constraint")
        fails("schema-invalid", lambda: c.generate(model="tiny", prompt="a", json_schema='{"type": "tree"}'))
        fails("grammar-invalid", lambda: c.generate(model="tiny", prompt="a", grammar='root ::= "a" |\nthing'))
        # Met in mid-answer, by the machine that reads along; a neighbour in the same steps must not end with it.
        other = c.start("generate", {"model": "tiny", "prompt": "a", "max_tokens": 200, "seed": 3, "credits": 1})
        assert any(e[1] == "tokens" for e in iter(lambda: c.next_of(other), None)), "no token"
        c.call("credit", {"request": other, "n": 1000})
        fails("grammar-ambiguous", lambda: c.generate(model="tiny", prompt="a", temperature=0, grammar="root ::= a\n"
              "a ::= [a-z] a [a-z] | [a-z] a | b\nb ::= [a-z] b [a-z] | [a-z] | [a-z] a"))
        assert list(c.events(other))[-1][2]["finish"] in ("stop", "length"), "the neighbour"
        fails("schema-and-grammar", lambda: c.generate(model="tiny", prompt="a", grammar='root ::= "a"', json_schema="{}"))


def memory():
    """A model too large for the budget: before anything is taken."""
    with daemon(config="[daemon]\nhost_budget = 100K\n") as d, Client(d.path) as c:
        e = fails("model-too-large", load(c, "tiny"))
        assert e.fields["needed"] > e.fields["available"] == 102400, e.fields
        assert metrics(c)["fills"] == 0
    with daemon(config="[daemon]\nhost_budget = 2M\n") as d, Client(d.path) as c:
        e = fails("context-too-large", load(c, "tiny"))
        assert e.fields["needed"] > e.fields["available"] > 0, e.fields
        assert c.call("status").get("host_bytes", 0) == 0


def few_files():
    """The limit of open files: shared out, or too low to serve at all."""
    with with_files(192), daemon() as d:
        with open(TINY, "rb") as f, Client(d.path) as c:
            fails("files-busy", lambda: c.call("load", {"model": "x", "n_fds": 20}, [f.fileno()] * 20))
        for n in range(60):
            shutil.copy(TINY, d.models / f"parts-{n + 1:05}-of-00060.gguf")
        with Client(d.path) as c:
            fails("models-files", load(c, "parts"))
        with contextlib.ExitStack() as all:
            c = all.enter_context(Client(d.path))
            until("the other is gone", lambda: c.call("status")["clients"] == 1)
            for _ in range(53):
                all.enter_context(Client(d.path))
            fails("connections-files", lambda: Client(d.path))
    with with_files(100) as program, private_dir() as home:
        got = subprocess.run([program, "--user", "--model-dir", home], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "XDG_RUNTIME_DIR": home})
        assert got.returncode == 75, got
        check("few-files", "quota", got.stderr.strip())


def limits():
    """Quotas, each with its key."""
    config = "[limits]\nconnections_per_user = 2\nrequests_per_user = 1\nbytes_per_user = 100K\n"
    with daemon(config=config) as d, Client(d.path) as c:
        i = long_answer(c, 500, credits=1)
        fails("quota-requests", lambda: c.generate(model="tiny", prompt="x"))
        c.cancel(i)
        list(c.events(i))
        with Client(d.path):
            fails("quota-connections", lambda: Client(d.path))
        until("it is gone", lambda: c.call("status")["clients"] == 1)
        fails("quota-bytes", lambda: c.generate(model="tiny", prompt="x" * 99_000))
    with daemon(config="[limits]\nfiles_per_user = 4\nframe_timeout = 100ms\n") as d:
        with open(TINY, "rb") as f, Client(d.path) as c:
            fails("quota-files", lambda: c.call("load", {"model": "x", "n_fds": 5}, [f.fileno()] * 5))
        with Client(d.path) as c:
            c.send_raw(b"\x50\0\0\0\x94\0")
            kind, ident, _, f = c.receive()
            assert (kind, ident) == (ERROR, 0), (kind, ident)
            check("frame-unfinished", f["code"], f["message"])
    few_files()
    with daemon(config="[limits]\nconnections = 1\n") as d:
        def connect():
            with contextlib.suppress(RemoteError):
                return Client(d.path)
        with until("the only place is free", connect):
            fails("connections-full", lambda: Client(d.path))
        until("it is gone", connect).close()
    with private_dir() as home:
        p = Daemon(HEARTHD, home, "--model-dir", str(MODELS))
        with p, Client(p.path) as c:
            s = Client(p.path, greet=False)
            s.send_raw(struct.pack("<I", 64 << 20))
            fails("frame-too-large", lambda: list(s.events(0)))
            s.close()
            s = Client(p.path, greet=False)
            fails("version", lambda: s.call("hello", {"version": 9}))
            s.close()
            s = Client(p.path, greet=False)
            s.send_raw(b"\x04\0\0\0GET ")
            fails("garbage", lambda: list(s.events(0)))
            s.close()
            s = Client(p.path, greet=False)
            fails("no-hello", lambda: s.call("ping"))
            s.close()


def rights():
    """What [access] refuses; root is needed to be somebody else."""
    with daemon(config="[limits]\npinned_per_user = 1000\n") as d, Client(d.path) as c:
        if os.getuid() == 0:
            fails("quota-pinned", lambda: c.call("load", {"model": "tiny", "pin": True}))
    if os.getuid() != 0:
        SEEN.update(("may-not-use", "may-not-load", "may-not-unload", "may-not-pin", "quota-pinned"))
        return
    with open_daemon("[access]\nuse = 23002\nload =\npin = @23100\n") as d, Client(d.path) as root:
        fails("may-not-use", lambda: client_as(d, 23001))
        with client_as(d, 23002) as c:
            fails("may-not-load", load(c, "tiny"))
            root.call("load", {"model": "tiny"})
            fails("may-not-unload", lambda: c.call("unload", {"model": "tiny"}))
            fails("may-not-pin", lambda: c.call("load", {"model": "tiny", "pin": True}))


def worker():
    """The worker's ends."""
    with daemon("--worker", "/nowhere/hearth-worker") as d, Client(d.path) as c:
        fails("no-worker", load(c, "tiny"))
    SEEN.update(("no-device", "no-cuda-build"))  # which of them depends on the build, and neither is where a GPU is
    if not os.path.exists("/dev/nvidiactl"):
        with daemon(config="[worker]\nbackend = cuda\n") as d, Client(d.path) as c:
            for _ in range(2):
                try:
                    c.call("load", {"model": "tiny"})
                    raise AssertionError("loaded without a device")
                except RemoteError as e:
                    check("no-device" if "device" in e.message else "no-cuda-build", e.code, e.message)
            if HEARTH:  # the worker has ended before it named a device
                said = subprocess.run([HEARTH, "doctor"], env=dict(os.environ, HEARTH_SOCKET=str(d.path)), capture_output=True, text=True, timeout=60).stdout
                line = next(x for x in said.splitlines() if " worker " in x)
                assert "ended and was replaced" in line or "failed" in line, said
                assert " on ;" not in line, said
    with daemon() as d, Client(d.path) as c:
        i = long_answer(c, 500, credits=3)
        deaths = 0

        def end_workers(n):
            nonlocal deaths
            for _ in range(n):
                until("it runs", lambda: [p["phase"] for p in c.call("ps")["requests"]] == ["paused"] and c.call("status")["worker"] == "ready"
                      and [m["where"] for m in c.call("models")["models"]] == ["memory"])
                os.kill(c.call("status")["worker_pid"], signal.SIGKILL)
                deaths += 1
                until("it is noticed", lambda: metrics(c)["worker_restarts"] == deaths)

        end_workers(3)
        fails("worker-lost", lambda: [None for _ in c.events(i)])
        i = long_answer(c, 500, credits=3)
        end_workers(2)
        fails("quarantined", lambda: [None for _ in c.events(i)])
        e = fails("quarantined", lambda: c.generate(model="tiny", prompt="x", max_tokens=1))
        assert 0 < e.fields["retry_after_ms"] <= 600_000 and e.fields["needed"] == 5, e.fields


def start(*arguments, home, env=None):
    """hearthd's one line on stderr when it can't start."""
    r = subprocess.run([HEARTHD, "--user", *arguments], env={"HOME": home, "PATH": os.environ["PATH"], **(env or {})}, capture_output=True,
                       text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert r.returncode != 0 and r.stderr.startswith("hearthd: "), r
    return r.returncode, r.stderr.removeprefix("hearthd: ").strip()


CODES = {64: "bad_request", 74: "io", 75: "busy", 77: "permission"}


def sandbox():
    """All of it is required, and the kernel has no Landlock."""
    def ask():
        with daemon(config="[daemon]\nsandbox = required\n") as d, Client(d.path) as c:
            try:
                c.call("load", {"model": "tiny"})
            except RemoteError as e:
                return e.code, e.message
    if SANITIZED:
        SEEN.add("sandbox-lacks")
        return
    check("sandbox-lacks", *without(444, ask))


def starting():
    """What keeps the daemon from starting: its exit status is that of the code."""
    with daemon() as d, private_dir() as home:
        def refused(case, *arguments):
            status, message = start(*arguments, home=home)
            check(case, CODES[status], message)

        refused("already-running", "--socket", d.path)
        s = socket.socket(socket.AF_UNIX)
        os.mkdir(f"{home}/x", 0o700)
        s.bind(f"{home}/x/s")
        s.listen(1)
        refused("foreign-daemon", "--socket", f"{home}/x/s")
        s.close()
        pathlib.Path(f"{home}/x/file").write_text("precious")
        refused("socket-is-a-file", "--socket", f"{home}/x/file")
        assert pathlib.Path(f"{home}/x/file").read_text() == "precious"
        os.mkdir(f"{home}/open")
        os.chmod(f"{home}/open", 0o777)
        refused("directory-open", "--socket", f"{home}/open/s")
        refused("socket-path-long", "--socket", f"{home}/{'x' * 120}")
        conf = pathlib.Path(home) / "c.conf"
        for case, content in (("config-key", "[limits]\nconections = 3\n"), ("config-value", "[models]\nidle_timeout = soon\n"),
                              ("config-range", "[models]\nslots = 2000\n"),
                              ("config-who", "[access]\nunload = root, @no-such-group\n")):
            conf.write_text(content)
            refused(case, "--config", str(conf))
        refused("config-missing", "--config", f"{home}/none.conf")
        if os.getuid() == 0:
            os.mkdir(f"{home}/theirs", 0o700)
            os.chown(f"{home}/theirs", 12345, -1)
            refused("directory-foreign", "--socket", f"{home}/theirs/s")
        else:
            SEEN.add("directory-foreign")  # only root can make one


def from_the_command_line():
    """What only the client can see."""
    if not HEARTH:
        SEEN.update(c for c in TABLE if c.startswith("cli-"))
        return
    with private_dir() as home:
        env = {"HOME": home, "XDG_RUNTIME_DIR": home, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}

        def cli(case, *arguments, **kw):
            r = subprocess.run([HEARTH, *arguments], env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **kw)
            assert r.returncode != 0 and r.stdout == "", r
            codes = {64: "bad_request", 66: "model_not_found", 69: "no_daemon", 77: "permission"}
            check(case, codes.get(r.returncode, r.returncode), r.stderr.strip())

        cli("cli-no-daemon", "status")
        cli("cli-no-daemon-there", "status", "--socket", f"{home}/own.sock")
        cli("cli-daemon-not-started", "models", "--socket", f"{home}/no/dir/own.sock")
        cli("cli-socket-path", "status", "--socket", f"{home}/{'x' * 120}")
        cli("cli-missing-file", "run", "./no-such-model.gguf", "hello")
        part = pathlib.Path(home) / "m-00001-of-00002.gguf"
        part.write_bytes(b"GGUF")
        cli("cli-missing-part", "run", str(part), "hello")
        cli("cli-not-a-file", "run", "/dev/null", "hello")
        cli("cli-unknown-command", "rnu")
        cli("cli-unknown-option", "run", "--temprature", "1")
        cli("cli-bad-value", "run", "--temperature", "hot", "m", "p")
        cli("cli-no-prompt", "run")
        cli_permission(cli)


def cli_permission(cli):
    """A socket of another user's; root needs to become one to see it."""
    as_other = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    try:
        subprocess.run([HEARTH, "--help"], capture_output=True, timeout=60, check=True, **as_other)
    except (PermissionError, subprocess.CalledProcessError):
        SEEN.add("cli-permission")  # that user can't reach the program
        return
    with daemon() as d:
        if not as_other:
            os.chmod(d.path, 0)
        cli("cli-permission", "status", "--socket", d.path, **as_other)
        os.chmod(d.path, 0o600)


def every_row_has_its_test():
    """The table and these tests name the same failures."""
    assert set(TABLE) == SEEN, f"rows without a test: {set(TABLE) - SEEN}; tests without a row: {SEEN - set(TABLE)}"


sys.exit(run_tests([model_files, disk_errors, dead_disk, changing_file, requests, memory, limits, rights, worker, sandbox, starting, from_the_command_line,
                    every_row_has_its_test]))
