# SPDX-License-Identifier: Apache-2.0
"""What the daemon's tests share: a daemon of their own with tiny models, and looks into it from outside."""
import contextlib
import os
import pathlib
import shlex
import shutil
import struct
import sys
import time

from harness import Daemon, private_dir, run_tests, skip
from pyclient import CANCEL, ERROR, EVENT, REPLY, REQUEST, Client, Closed, RemoteError, ids

HEARTHD, MODELS = sys.argv[1], pathlib.Path(sys.argv[2])
TINY = MODELS / "llama-q4_0.gguf"
# The tiny model's end-of-text tokens; forbidding them makes an answer as long as wanted.
NO_END = {"bias_ids": struct.pack("<2I", 313, 314), "bias_values": struct.pack("<2f", -float("inf"), -float("inf"))}
N_CTX = 1024
# tests/gpu/run sets it: the same tests, the models on a GPU.
BACKEND = os.environ.get("HEARTH_TEST_BACKEND")
RESIDENT = "vram" if BACKEND == "cuda" else "memory"  # where a loaded model is
HANG_MS = 6000 if BACKEND == "cuda" else 1500  # that a worker is heard of: beside others' workers a driver may take seconds for one call
# The same tests with steps begun ahead, as on a GPU.
AHEAD = os.environ.get("HEARTH_TEST_AHEAD")
# A sanitizer keeps freed memory for a while: sizes say nothing then.
SANITIZED = b"__asan_init" in pathlib.Path(HEARTHD).read_bytes()

if not TINY.exists():
    skip(f"no tiny models in {MODELS}")


def on_backend(config):
    """This configuration, with the models where the tests want them."""
    return (config or "") + (f"\n[worker]\nbackend = {BACKEND}\n" if BACKEND else "")


def ids_blob(values):
    return struct.pack(f"<{len(values)}I", *values)


@contextlib.contextmanager
def daemon(*arguments, config=None, models=("tiny",), env=None):
    """A daemon whose model directory holds these names, each the tiny model. Checks at the end that it stopped cleanly."""
    with private_dir() as home:
        where = pathlib.Path(home) / "models"
        where.mkdir()
        for name in models:
            shutil.copy(TINY, where / f"{name}.gguf")
            os.chmod(where / f"{name}.gguf", 0o600)
        extra = ["--model-dir", str(where)]
        if BACKEND:
            config = on_backend(config)
        if AHEAD and "--worker" not in arguments:
            real, wrapper = pathlib.Path(HEARTHD).absolute().parent / "hearth-worker", pathlib.Path(home) / "worker-ahead"
            wrapper.write_text(f'#!/bin/sh\n[ "$1" = --serve ] && exec {real} "$@" --ahead\nexec {real} "$@"\n')
            wrapper.chmod(0o755)
            extra += ["--worker", str(wrapper)]
        if config is not None:
            file = pathlib.Path(home) / "hearth.conf"
            file.write_text(config or "# the defaults\n")  # an empty file is refused
            extra += ["--config", str(file)]
        old = {k: os.environ.get(k) for k in (env or {})}
        os.environ.update(env or {})
        try:
            d = Daemon(HEARTHD, home, *extra, *arguments)
        finally:
            for k, v in old.items():
                if v is None:
                    os.environ.pop(k, None)
                else:
                    os.environ[k] = v
        d.models, d.home = where, pathlib.Path(home)
        try:
            yield d
            check_alive(d)
        except BaseException:
            print("--- the daemon's log ---\n" + d.messages() + "---")
            raise
        finally:
            log = None
            if d.process.poll() is None:
                d.process.terminate()
                d.process.wait(60)
            log = d.messages()
            code = d.stop()
        if code != 0 or "Sanitizer" in log:
            raise AssertionError(f"hearthd ended with {code}:\n{log}")
        assert BACKEND != "cuda" or "serves on cpu" not in log, log


@contextlib.contextmanager
def with_files(n):
    """Daemons started meanwhile have this limit of open files."""
    global HEARTHD
    program = HEARTHD
    with private_dir() as home:
        script = pathlib.Path(home) / "hearthd"
        script.write_text(f'#!/bin/sh\nulimit -n {n} && exec {shlex.quote(os.path.abspath(program))} "$@"\n')
        script.chmod(0o755)
        HEARTHD = str(script)
        try:
            yield HEARTHD
        finally:
            HEARTHD = program


def check_alive(d):
    if d.process.poll() is not None:
        raise AssertionError(f"hearthd ended by itself with {d.process.returncode}")
    with until("it takes a connection", lambda: connect(d)) as c:
        c.call("ping")


def connect(d):
    """A client, or None where the limit of connections is reached for a moment."""
    try:
        return Client(d.path)
    except RemoteError as e:
        if e.code not in ("busy", "quota"):
            raise


def metrics(c):
    return {m["name"]: m["value"] for m in c.call("status")["metrics"]}


def until(what, condition, timeout=60):
    """Waits for something that is to happen; how long it takes is not judged."""
    end = time.monotonic() + timeout
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.01)


def expect(code, function, *words):
    """The call fails with this code, and its message names these."""
    try:
        got = function()
    except RemoteError as e:
        assert e.code == code, f"expected {code}, got {e.code}: {e.message}"
        for w in words:
            assert str(w) in e.message, f"the message does not name {w!r}: {e.message}"
        return e
    raise AssertionError(f"expected {code}, got an answer: {got}")


def fds_of(pid):
    return sorted(os.listdir(f"/proc/{pid}/fd"), key=int)


def rss_kib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def children(pid):
    return [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]


def long_answer(c, n=300, **more):
    """Starts an answer of n tokens; its id."""
    return c.start("generate", {"model": "tiny", "prompt": "the cat", "max_tokens": n, "temperature": 0.0, **NO_END, **more})


def read_tokens(c, i, n):
    """n tokens of a stream that is paced by credits, and their text."""
    got, text = [], ""
    while len(got) < n:
        kind, m, f = c.next_of(i)
        assert kind == EVENT, (kind, m, f)
        if m == "tokens":
            got += ids(f.get("ids", b""))
            text += f.get("text", "")
    return got, text


def finish(c, i):
    """The rest of a stream: tokens, text, the reply and the names of all that came."""
    got, text, notes = [], "", []
    for _, m, f in c.events(i):
        if m == "tokens":
            got += ids(f.get("ids", b""))
            text += f.get("text", "")
        notes.append(m)
    return got, text, f, notes


@contextlib.contextmanager
def as_user(uid, *gids):
    """What connects meanwhile is this user to the daemon: SO_PEERCRED and SO_PEERGROUPS take effective ids at connect."""
    old = os.getgroups()
    os.setgroups(list(gids))
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(old)


def client_as(d, uid, *gids, name="x"):
    """A connection of that user's."""
    with as_user(uid, *gids):
        return Client(d.path, name=name)


@contextlib.contextmanager
def open_daemon(config="", models=("tiny",), **kw):
    """A system daemon whose socket's mode keeps nobody out."""
    with daemon("--system", config=config, models=models, **kw) as d:
        for p in (d.home, d.home / "hearth"):
            os.chmod(p, 0o755)
        os.chmod(d.path, 0o666)
        yield d


def without(nr, function):
    """The function's value, computed in a process whose kernel doesn't know this system call (it and what it starts: ENOSYS)."""
    import ctypes
    import json
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            # load nr; is it this one? ENOSYS; else allow
            code = struct.pack("<" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, nr, 0x06, 0, 0, 0x00050000 | 38, 0x06, 0, 0, 0x7FFF0000)
            buf = ctypes.create_string_buffer(code)
            prog = ctypes.create_string_buffer(struct.pack("@HxxxxxxQ", 4, ctypes.addressof(buf)))
            if libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(prog)) == 0:
                os.write(w, json.dumps(function()).encode())
                status = 0
        except BaseException as e:
            print(f"without({nr}): {e!r}")
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        got = f.read()
    assert os.waitpid(pid, 0)[1] == 0, "the process without it failed"
    return json.loads(got)
