# SPDX-License-Identifier: Apache-2.0
"""Workers that end again and again: the cause is found and ended, everybody else goes on with the same text."""
import os
import random
import signal

from daemonlib import *

# The signals are sent on purpose: a worker built with AddressSanitizer is to end by them, not to report them.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "handle_segv=0:handle_sigbus=0:handle_abort=0"]))


def worker_of(c):
    return c.call("status").get("worker_pid", 0)


def read_tokens(c, i, n):
    got = []
    while len(got) < n:
        kind, m, f = c.next_of(i)
        assert kind == EVENT, (kind, m, f)
        if m == "tokens":
            got += ids(f.get("ids", b""))
    return got


def finish(c, i):
    got, notes, bits = [], [], []
    for kind, m, f in c.events(i):
        if m == "tokens":
            got += ids(f.get("ids", b""))
            bits += [f.get("logprobs")]
        notes.append(m)
    return got, f, notes, bits


def phases(c):
    return {r["request"]: r for r in c.call("ps").get("requests", [])}


def kill(c, sig=signal.SIGKILL):
    before = metrics(c)["worker_restarts"]
    os.kill(worker_of(c), sig)
    until("its end is noticed", lambda: metrics(c)["worker_restarts"] == before + 1)


def serving(c):
    return c.call("status")["worker"] == "ready" and any(m["where"] == RESIDENT for m in c.call("models")["models"])


def a_suspect_runs_alone():
    """Two ends of the worker with four streams: each then runs alone, oldest first; the one at whose turn it ends again ends with
    worker_lost, the others go on with the same text and the same bits."""
    with daemon() as d, Client(d.path) as c:
        prompts = ["the cat", "a dog", "he", "an apple"]
        base = dict(model="tiny", max_tokens=80, temperature=1.0, seed=5, logprobs=1, exact=True, **NO_END)
        want = [[(f["ids"], f["logprobs"], f["top"][0]["logprobs"]) for _, m, f in c.stream("generate", dict(base, prompt=p)) if m == "tokens"]
                for p in prompts]
        running = [c.start("generate", dict(base, prompt=p, credits=12)) for p in prompts]
        seen = [[] for _ in prompts]

        def take(k, kind, m, f):
            if m == "tokens":
                seen[k].append((f["ids"], f["logprobs"], f["top"][0]["logprobs"]))

        for k, i in enumerate(running):
            while len(seen[k]) < 12:
                take(k, *c.next_of(i))
        oldest = min(phases(c))
        kill(c)
        until("all run again", lambda: serving(c) and all(r["phase"] == "paused" for r in phases(c).values()) and metrics(c)["replays"] == 4)
        kill(c)
        # It alone is given to the worker: the others wait, though there are slots.
        until("one runs alone", lambda: serving(c) and phases(c)[oldest]["phase"] == "paused" and
              all(r["phase"] == "queued" for i, r in phases(c).items() if i != oldest))
        late = c.start("generate", dict(base, prompt="late", max_tokens=3))
        until("the late one waits, too", lambda: len(phases(c)) == 5 and all(r["phase"] == "queued" for i, r in phases(c).items() if i != oldest))
        kill(c)
        e = expect("worker_lost", lambda: finish(c, running[0]), "alone", "12 tokens")
        assert e.fields["needed"] == 3, e.fields
        for k, i in list(enumerate(running))[1:]:
            c.call("credit", {"request": i, "n": 1000})
        for k, i in list(enumerate(running))[1:]:
            for kind, m, f in c.events(i):
                take(k, kind, m, f)
            assert seen[k] == want[k], f"{prompts[k]}: another text or other bits"
        assert list(c.events(late))[-1][2]["n_generated"] == 3
        assert metrics(c)["worker_restarts"] == 3


def a_suspect_that_waits_keeps_nobody_out():
    """A suspect whose client gives no credit, or whose client hangs up, does not stop the others."""
    with daemon() as d, Client(d.path) as c, Client(d.path) as other:
        i = long_answer(c, 300, credits=4)
        read_tokens(c, i, 4)
        for n in (1, 2):
            until("it runs", lambda: serving(c) and all(r["phase"] == "paused" for r in phases(c).values()))
            kill(c)
        assert other.generate(model="tiny", prompt="a", max_tokens=20, **NO_END)[2]["n_generated"] == 20
        c.call("credit", {"request": i, "n": 1000})
        assert len(finish(c, i)[0]) == 296
        gone = Client(d.path)
        i = long_answer(gone, 300, credits=4)
        read_tokens(gone, i, 4)
        for n in (1, 2):
            until("it runs", lambda: serving(c) and all(r["phase"] == "paused" for r in phases(c).values()))
            kill(c)
        gone.close()
        assert other.generate(model="tiny", prompt="a", max_tokens=20, **NO_END)[2]["n_generated"] == 20


def undisturbed(c):
    """What is asked for, and the undisturbed answer: tokens and the bits of their likeliest ones."""
    prompt = "the cat and the dog and the man " * 25
    base = dict(model="tiny", prompt=prompt, max_tokens=150, temperature=1.0, seed=8, logprobs=3, exact=True, **NO_END)
    return [(f["ids"], f["logprobs"], f["top"][0]["logprobs"]) for _, m, f in c.stream("generate", base) if m == "tokens"], base


def any_signal_at_any_time():
    """kill -9, abort, a segmentation fault, a bus error, termination, a stop: while loading, prefilling, decoding: one pause, the same bits."""
    want = None
    rng = random.Random(4)
    for sig in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM, signal.SIGSTOP):
        # A daemon for each: the pauses between workers grow with each end.
        with daemon(config=f"[worker]\nhang_timeout = {HANG_MS}ms\n") as d, Client(d.path) as c:
            got, base = undisturbed(c)
            want = want or got
            assert got == want
            for when in ("load", "start", "decode"):
                before = metrics(c)["worker_restarts"]
                if when == "load":
                    c.call("unload", {"model": "tiny", "force": True})
                i = c.start("generate", dict(base))
                got = []
                if when == "load":
                    time.sleep(rng.random() * 0.03)
                elif when == "decode":
                    while len(got) < 30:
                        _, m, f = c.next_of(i)
                        got += [(f["ids"], f["logprobs"], f["top"][0]["logprobs"])] if m == "tokens" else []
                pid = worker_of(c)
                if pid:
                    os.kill(pid, sig)
                for _, m, f in c.events(i):
                    got += [(f["ids"], f["logprobs"], f["top"][0]["logprobs"])] if m == "tokens" else []
                assert got == want, (sig, when)
                c.call("ping")
                # The stopped one may have been idle at that moment: then it is ended by the next one's needs.
                assert metrics(c)["worker_restarts"] <= before + 1


def a_model_is_set_aside():
    """Five ends in a row that nobody else can have caused: the model is set aside and it is said, as long as it lasts and how to end
    it; another model goes on, and load lifts it."""
    with daemon() as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "good.gguf")
        c.call("load", {"model": "good"})
        asked = 0
        for n in range(5):
            if n in (0, 3):
                i = long_answer(c, 100, credits=3)
                read_tokens(c, i, 3)
            until("it runs", lambda: serving(c) and any(r["phase"] == "paused" for r in phases(c).values()) and
                  all(m["where"] == RESIDENT for m in c.call("models")["models"]))
            kill(c)
            if n == 2:
                expect("worker_lost", lambda: finish(c, i))
        e = expect("quarantined", lambda: finish(c, i), "tiny", "5 times", "signal 9", "hearth load tiny")
        assert 0 < e.fields["retry_after_ms"] <= 600_000
        expect("quarantined", lambda: c.generate(model="tiny", prompt="a", max_tokens=1), "hearth load tiny")
        os.link(d.models / "tiny.gguf", d.models / "other-name.gguf")
        expect("quarantined", lambda: c.generate(model="other-name", prompt="a", max_tokens=1))
        shutil.copy(TINY, d.models / "copy.gguf")  # the same content, to be read first
        expect("quarantined", lambda: c.generate(model="copy", prompt="a", max_tokens=1))
        listed = {m["name"]: m for m in c.call("models")["models"]}
        assert listed["tiny"]["where"] == "failed" and "5 times" in listed["tiny"]["note"], listed["tiny"]
        assert c.generate(model="good", prompt="a", max_tokens=5, **NO_END)[2]["n_generated"] == 5
        assert metrics(c)["quarantined"] == 1
        c.call("load", {"model": "tiny"})
        assert c.generate(model="tiny", prompt="a", max_tokens=5, **NO_END)[2]["n_generated"] == 5


def it_ends_by_itself():
    """The time over, it is tried again; with the setting 'never' nothing is set aside for longer than its requests."""
    for setting in ("1500ms", "never"):
        with daemon(config=f"[worker]\nquarantine = {setting}\n") as d, Client(d.path) as c:
            for n in range(5):
                if n in (0, 3):
                    i = long_answer(c, 100, credits=3)
                    read_tokens(c, i, 3)
                until("it runs", lambda: serving(c) and any(r["phase"] == "paused" for r in phases(c).values()))
                kill(c)
                if n == 2:
                    expect("worker_lost", lambda: finish(c, i))
            expect("quarantined", lambda: finish(c, i))
            if setting != "never":
                expect("quarantined", lambda: c.generate(model="tiny", prompt="a", max_tokens=1))
                time.sleep(1.6)
            assert c.generate(model="tiny", prompt="a", max_tokens=2, **NO_END)[2]["n_generated"] == 2


def two_models_and_one_is_bad():
    """Beside a stream of a good model: the bad one's request is found by running alone, the good one's stream keeps its text."""
    with daemon() as d, Client(d.path) as c, Client(d.path) as g:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "good.gguf")
        ask = dict(model="good", prompt="the cat", max_tokens=60, temperature=0.0, **NO_END)
        want = g.generate(**dict(ask, exact=True))[1]
        good = g.start("generate", dict(ask, credits=10, exact=True))
        got = read_tokens(g, good, 10)
        bad = long_answer(c, 100, credits=3)
        read_tokens(c, bad, 3)
        number = next(i for i, r in phases(c).items() if r["model"] == "tiny")
        while True:
            until("the bad one is given to the worker", lambda: c.call("status")["worker"] == "ready" and
                  (number not in phases(c) or phases(c)[number]["phase"] == "paused" and
                   [m for m in c.call("models")["models"] if m["name"] == "tiny"][0]["where"] == RESIDENT))
            if number not in phases(c):
                break
            if metrics(c)["worker_restarts"] == 2:  # give it the time to be alone
                time.sleep(0.1)
            kill(c)
        expect("worker_lost", lambda: finish(c, bad))
        g.call("credit", {"request": good, "n": 1000})
        got += finish(g, good)[0]
        assert got == want
        assert c.generate(model="tiny", prompt="a", max_tokens=2, **NO_END)[2]["n_generated"] == 2, "one bad request sets no model aside"


CASES = [a_suspect_runs_alone, a_suspect_that_waits_keeps_nobody_out, any_signal_at_any_time, a_model_is_set_aside, it_ends_by_itself,
         two_models_and_one_is_bad]
sys.exit(run_tests([c for c in CASES if len(sys.argv) < 4 or c.__name__ in sys.argv[3:]]))
