# SPDX-License-Identifier: Apache-2.0
"""The nth allocation, read, write, memory file, mapping, socket pair, open or fork of the broker, the worker or the fill process
fails, for each n: while a model loads, while requests are served, while clients come back, while the daemon starts again.

Each time: nobody hangs, whoever asked gets an answer or a typed error, the same works right afterwards, and the broker holds no
more memory and no more descriptors than before. By default some n of each; with --all every one."""
import argparse
import mmap
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
ARGS = argparse.ArgumentParser()
ARGS.add_argument("hearthd")
ARGS.add_argument("models")
ARGS.add_argument("preload")
ARGS.add_argument("--all", action="store_true")
ARGS.add_argument("--only", default="")
ARGS.add_argument("--log", action="store_true", help="the daemon's log at each failure")
ARGS.add_argument("--samples", type=int, default=7)
ARGS.add_argument("--patience", type=int, default=30, help="seconds that an answer may take")
ARGS = ARGS.parse_args()
sys.argv[1:] = [ARGS.hearthd, ARGS.models]

from daemonlib import *  # noqa: E402
from fdstore import Manager  # noqa: E402
from pyclient import pack  # noqa: E402

KINDS = ["none", "alloc", "read", "write", "memfd", "mmap", "socketpair", "fork", "open"]
ROLES = ["broker", "serve", "fill"]
PAGE = struct.Struct("<IIIIQQq")  # kind, role, action, fired, nth, seen, live
# What may come instead of an answer. `internal` is not among them.
TYPED = {"no_memory", "io", "disconnected", "worker_lost", "busy", "quarantined", "unknown_model", "model_no_memory", "shutting_down", "model_invalid",
         "model_truncated", "no_device", "protocol", "cancelled", "device_lost", "grammar_invalid", "too_large", "model_not_found", "permission"}

if SANITIZED:
    skip("the sanitizer has its own malloc")


class Page:
    def __init__(self, path):
        self.path = path
        with open(path, "w+b") as f:
            f.truncate(4096)
            self.map = mmap.mmap(f.fileno(), 4096)

    def get(self):
        return dict(zip(("kind", "role", "action", "fired", "nth", "seen", "live"), PAGE.unpack_from(self.map)))

    def arm(self, role, kind, nth, abort=False):
        struct.pack_into("<I", self.map, 0, 0)  # 'live' is the daemon's, it is never written here
        struct.pack_into("<IIII", self.map, 0, 0, ROLES.index(role), int(abort), 0)
        struct.pack_into("<QQ", self.map, 16, nth, 0)
        struct.pack_into("<I", self.map, 0, KINDS.index(kind))

    def disarm(self):
        """(calls seen, was there a fault)"""
        struct.pack_into("<I", self.map, 0, 0)
        got = self.get()
        return got["seen"], got["fired"]


@contextlib.contextmanager
def faulty():
    with private_dir() as home:
        where = pathlib.Path(home) / "models"
        where.mkdir()
        shutil.copy(TINY, where / "tiny.gguf")
        conf = pathlib.Path(home) / "hearth.conf"
        conf.write_text("[worker]\nquarantine = never\nhang_timeout = 20s\nthreads = 1\n")
        with Manager(home, HEARTHD, "--model-dir", str(where), "--config", str(conf)) as m:
            m.page = Page(f"{home}/page")
            m.env = {"LD_PRELOAD": ARGS.preload, "FAULT_PAGE": m.page.path}
            yield m


codes, FAILED = {}, []


def attempt(function):
    """True: it went well. A typed error, or a connection that was cut, is no failure of the test; anything else is."""
    try:
        function()
        return True
    except RemoteError as e:
        codes[e.code] = codes.get(e.code, 0) + 1
        assert e.code in TYPED, f"{e.code}: {e.message}"
        assert e.message
    except (Closed, ConnectionRefusedError, BrokenPipeError, ConnectionResetError):
        codes["(cut)"] = codes.get("(cut)", 0) + 1
    return False


# ---- what is done ----

def load(m):
    with Client(m.path) as c:
        c.call("load", {"model": "tiny"}, timeout=ARGS.patience)
        c.call("unload", {"model": "tiny", "force": True}, timeout=ARGS.patience)


def serve(m):
    with Client(m.path) as c:
        first = c.start("generate", {"model": "tiny", "prompt": "the cat and the dog", "max_tokens": 12, "temperature": 1.0, "seed": 3, "logprobs": 2,
                                     "stop": ["~~"], **NO_END})
        second = c.start("generate", {"model": "tiny", "prompt": "a", "max_tokens": 9, "grammar": 'root ::= [a-z]{4,6} "."', "seed": 4})
        third = c.start("tokenize", {"model": "tiny", "text": "the cat"})
        for method in ("status", "ps", "models", "metrics", "ping"):
            c.call(method, timeout=ARGS.patience)
        c.call("detokenize", {"model": "tiny", "ids": ids_blob([60, 61])}, timeout=ARGS.patience)
        errors = []
        for i in (first, second, third):
            try:
                list(c.events(i, timeout=ARGS.patience))
            except RemoteError as e:
                errors.append(e)
        if errors:
            raise errors[0]


def come_back(m):
    """A stream whose connection breaks and that is resumed on another one."""
    fields = {"model": "tiny", "prompt": "the cat", "max_tokens": 30, "temperature": 1.0, "seed": 9, **NO_END}
    got, accepted = [], None
    with Client(m.path) as c:
        i = c.start("generate", dict(fields, credits=6))
        while len(got) < 6:
            kind, method, f = c.next_of(i, timeout=ARGS.patience)
            if kind == ERROR:
                raise RemoteError(f)
            accepted = f if method == "accepted" else accepted
            got += ids(f.get("ids", b"")) if method == "tokens" else []
    with Client(m.path) as c:
        g = pack(REQUEST, 1, "generate", fields)[4:]
        for kind, method, f in c.stream("resume", {"request": accepted["request"], "seed": accepted["seed"], "identity": accepted["identity"],
                                                   "ids": ids_blob(got), "generate": g}, timeout=ARGS.patience):
            got += ids(f.get("ids", b"")) if method == "tokens" else []
        assert len(got) == 30
    if not hasattr(m, "want"):
        m.want = got
    assert got == m.want, "resumed with other tokens"


SCENARIOS = {"load": load, "serve": serve, "reconnect": come_back}


def settle(m):
    """The same once more, without a fault: with patience, since a worker may have to be started."""
    end = time.monotonic() + 60
    while not attempt(lambda: SCENARIOS[m.scenario](m)):
        assert time.monotonic() < end, "it never works again"
        assert m.process.poll() is None, "hearthd ended"
        time.sleep(0.05)


def idle(m):
    def gone():
        with connect(m) as c:
            s = c.call("status")
            return s["clients"] == 1 and not s.get("running") and not s.get("waiting")
    until("everything has ended", gone)
    time.sleep(0.02)


def held(m, fds=None, live=0):
    """Descriptors and bytes; refused connections stay open for a moment, and so does the last of ours."""
    idle(m)
    end = time.monotonic() + 5
    while fds is not None and (len(fds_of(m.process.pid)) > fds or m.page.get()["live"] > live + 4096) and time.monotonic() < end:
        time.sleep(0.05)
    return len(fds_of(m.process.pid)), m.page.get()["live"]


def numbers(seen, seed):
    if ARGS.all or seen <= ARGS.samples:
        return list(range(1, seen + 1))
    rng = random.Random(seed)
    # The first and the last, and some between.
    return sorted({1, seen, *(rng.randrange(1, seen + 1) for _ in range(ARGS.samples - 2))})


def where(m):
    """The last fault's place in the program, for people."""
    lines = m.text().split("fault at:\n")[-1].splitlines()
    out = []
    for line in lines:
        got = re.match(r"(\S+)\(\+(0x[0-9a-f]+)\)", line)
        if got and "preload" not in got[1] and shutil.which("addr2line"):
            name = subprocess.run(["addr2line", "-f", "-s", "-e", got[1], hex(int(got[2], 16) - 1)], capture_output=True, text=True).stdout.split()
            out.append(name[0] if name else line)
    return " < ".join(out[:9])


def loop(scenario, role, kind):
    """A daemon that fails the test is replaced, and the rest of the numbers are tried with the next one."""
    state = {"todo": None, "seen": 0, "hits": 0, "bad": 0, "n": None}

    def one_daemon(m):
        m.scenario, state["n"] = scenario, None
        m.start()
        for _ in range(3):  # what is kept for good is there now
            settle(m)
        settled = [held(m)]
        m.page.arm(role, kind, 1 << 60)
        settle(m)
        state["seen"], _ = m.page.disarm()
        settled.append(held(m))
        fds, live = max(f for f, _ in settled), max(b for _, b in settled)
        if state["todo"] is None:
            state["todo"] = numbers(state["seen"], f"{scenario}{role}{kind}")
        while state["todo"]:
            n = state["n"] = state["todo"].pop(0)
            m.page.arm(role, kind, n)
            state["bad"] += not attempt(lambda: SCENARIOS[scenario](m))
            state["hits"] += m.page.disarm()[1]
            assert m.process.poll() is None, f"hearthd ended with {m.process.returncode}"
            settle(m)
            got = held(m, fds, live)
            assert got[0] <= fds, f"descriptors: {fds} before, {got[0]} now: " + \
                str([os.readlink(f"/proc/{m.process.pid}/fd/{f}") for f in fds_of(m.process.pid)])
            # Buffers of the loop may have grown a little; a leak would add up over the numbers.
            assert got[1] <= live + 4096, f"memory: {live} bytes before, {got[1]} now"
            with Client(m.path) as c:
                if metrics(c)["worker_restarts"] >= 4:
                    break  # the pauses between workers grow: another daemon is faster
        m.end()

    while state["todo"] is None or state["todo"]:
        with faulty() as m:
            try:
                one_daemon(m)
            except Exception as e:
                FAILED.append(f"{scenario}: {kind} number {state['n']} of {state['seen']} of {role}: {type(e).__name__}: {e}\n        {where(m)}")
                print("      " + FAILED[-1])
                if ARGS.log:
                    print(m.text())
        if state["n"] is None:
            break
    print(f"      {scenario:9} {role:6} {kind:10} {state['seen']:6} calls, {state['hits']} made to fail, {state['bad']} told")
    sys.stdout.flush()


def told():
    failures, FAILED[:] = list(FAILED), []
    assert not failures, failures


def loads():
    """A model is made resident and unloaded."""
    for role, kinds in (("broker", "alloc read write memfd socketpair fork open"), ("fill", "alloc read write mmap open"), ("serve", "alloc read write mmap open")):
        for kind in kinds.split():
            loop("load", role, kind)
    told()


def serves():
    """Generations, one with a grammar, tokenizing, reports."""
    for role, kinds in (("broker", "alloc read write open"), ("serve", "alloc read write mmap")):
        for kind in kinds.split():
            loop("serve", role, kind)
    told()


def reconnects():
    """A connection breaks; another one resumes the answer."""
    for role, kinds in (("broker", "alloc read write open"), ("serve", "alloc")):
        for kind in kinds.split():
            loop("reconnect", role, kind)
    told()


def aborts():
    """The worker aborts at its nth allocation instead: a pause, and the same answer."""
    for scenario in ("load", "serve", "reconnect"):
        with faulty() as m:
            m.scenario = scenario
            m.start()
            settle(m)
            m.page.arm("serve", "alloc", 1 << 60)
            settle(m)
            seen, _ = m.page.disarm()
            for n in numbers(seen, scenario)[:None if ARGS.all else 4]:
                m.page.arm("serve", "alloc", n, abort=True)
                SCENARIOS[scenario](m)  # no error at all: it is replayed
                m.page.disarm()
            m.end()


def restarts():
    """The daemon is ended and started again with the copies of the last one; its start fails at every place, or does without."""
    for kind in ("alloc", "read", "write", "memfd", "socketpair", "open", "fork"):
        with faulty() as m:
            m.scenario = "reconnect"
            m.start()
            settle(m)
            until("the copy is stored", lambda: m.copies() and m.fds.get("hearth-state"))
            time.sleep(0.05)
            m.page.arm("broker", kind, 1 << 60)
            m.end(crash=True)
            m.start()
            settle(m)
            seen, _ = m.page.disarm()
            started = refused = 0
            for n in numbers(seen, kind):
                m.end(crash=n % 2 == 0)
                m.page.arm("broker", kind, n)
                try:
                    m.start()
                    started += 1
                    attempt(lambda: come_back(m))
                    m.page.disarm()
                except AssertionError:
                    m.page.disarm()
                    code = m.process.poll()
                    if code is None:  # no test's matter: it serves, but did not answer the first connection
                        raise
                    assert code in (64, 69, 70, 71, 74, 75, 77) and m.text().strip(), f"{kind} number {n}: it ended with {code}: {m.text()}"
                    assert "Did not" not in m.text()
                    refused += 1
                    m.start()
                settle(m)
            print(f"      restart   broker {kind:10} {seen:6} calls: {started} starts went on, {refused} ended with a reason")
            m.end()


CASES = [loads, serves, reconnects, aborts, restarts]
status = run_tests([c for c in CASES if not ARGS.only or c.__name__ in ARGS.only.split(",")])
print("errors told:", dict(sorted(codes.items())))
sys.exit(status)
