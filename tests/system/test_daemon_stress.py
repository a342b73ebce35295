# SPDX-License-Identifier: Apache-2.0
"""Workers fail at random moments, in random ways, under several streams of several models: each stream has the bits of an undisturbed
one, or ends with the typed error for who was there each time; the broker holds no more descriptors and no more memory than before.

The faults, their moments and the requests are those of the seed; what is running when one comes depends on the machine. One daemon for
a handful of faults: its pauses between workers grow with each.
usage: test_daemon_stress.py HEARTHD MODELS WORKER [--seed N] [--rounds N] [--long]"""
import argparse
import random
import signal

from faultlib import *

ARGS = argparse.ArgumentParser()
ARGS.add_argument("hearthd")
ARGS.add_argument("models")
ARGS.add_argument("worker")
ARGS.add_argument("--seed", type=int, default=1)
ARGS.add_argument("--rounds", type=int, default=2, help="daemons, each with its faults")
ARGS.add_argument("--long", action="store_true", help="40 rounds")
ARGS = ARGS.parse_args()

FAULTS_A_ROUND = 5
STREAMS = 6
FILES = {"one": "llama-q4_0", "two": "llama-q8_0", "three": "gpt-oss-mxfp4"}
TYPED = {"worker_lost", "quarantined"}  # docs/errors.md
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP]
PROMPTS = ["the cat and the dog", "a", "he and she went to the house of the king " * 20, "an apple " * 60]
want, seen = {}, {"whole": 0, "paused": 0}


def ask(rng):
    """One of a limited number of requests, so that each one's answer is known."""
    model, prompt, n = rng.choice(sorted(FILES)), rng.choice(PROMPTS), rng.choice([8, 60, 250])
    return (model, prompt, n), dict(model=model, prompt=prompt, max_tokens=n, temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(1, 4), logprobs=2,
                                    exact=True, **NO_END)


def key(k, fields):
    return (*k, fields["temperature"], fields["seed"])


def answer(c, fields):
    return rest(c, c.start("generate", fields), [])


class Streams:
    """Clients of their own that ask, one request after the other."""

    def __init__(self, path, rng):
        self.over, self.failures, self.threads, self.done = threading.Event(), [], [], []
        for k in range(STREAMS):
            self.threads.append(threading.Thread(target=self.run, args=(path, random.Random(rng.random())), daemon=True))
            self.threads[-1].start()

    def run(self, path, rng):
        try:
            with Client(path) as c:
                while not self.over.is_set():
                    k, fields = ask(rng)
                    try:
                        got, notes = answer(c, fields)
                    except RemoteError as e:
                        assert e.code in TYPED and e.message, f"{e.code}: {e.message}"
                        seen[e.code] = seen.get(e.code, 0) + 1
                        continue
                    seen["whole"] += 1
                    seen["paused"] += "paused" in notes
                    self.done.append((key(k, fields), fields, got))
        except Exception as e:
            self.failures.append(f"{type(e).__name__}: {e}")

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join(180)
            assert not t.is_alive(), "a stream did not end"
        assert not self.failures, self.failures


def strike(rng, d, c):
    """One fault: from outside, or in the worker at a moment of its own."""
    if rng.random() < 0.5:
        sig = rng.choice(SIGNALS)
        pid = until("there is a worker", lambda: c.call("status").get("worker_pid", 0))
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass
        return signal.Signals(sig).name
    fault, moment = rng.choice(FAULTS), rng.choice(MOMENTS[1:])
    d.page.arm(fault, moment, nth=rng.choice([1, 1, 3, 30]) if moment in ("prefill", "decode") else 1)
    if moment == "loading":
        with contextlib.suppress(RemoteError):  # nobody's: then there is nothing to load
            c.call("unload", {"model": rng.choice(sorted(FILES)), "force": False})
    return f"{fault} while {moment}"


def held(d):
    """(descriptors, KiB) of the broker."""
    return len(fds_of(d.process.pid)), rss_kib(d.process.pid)


def round_of(n):
    rng = random.Random(f"{ARGS.seed} {n}")
    with failing(ARGS.worker, hang=HANG_S, clock=False) as d, Client(d.path) as c:
        for name, file in FILES.items():
            shutil.copy(MODELS / f"{file}.gguf", d.models / f"{name}.gguf")
            c.call("load", {"model": name})
        warm = Streams(d.path, rng)  # what the broker keeps for good is there now
        time.sleep(0.5)
        warm.stop()
        until("nothing runs", lambda: not c.call("ps").get("requests"))
        fds, kib = held(d)
        before = metrics(c)["worker_restarts"]
        clock, streams, told = StatusClock(d.path), Streams(d.path, rng), []
        for _ in range(FAULTS_A_ROUND):
            time.sleep(rng.random() * 0.4)
            old = metrics(c)["worker_restarts"]
            told.append(strike(rng, d, c))
            # Rarely what it waits for does not come: a model that is in use is not unloaded.
            end = time.monotonic() + 2 * HANG_S + 1
            while metrics(c)["worker_restarts"] == old and time.monotonic() < end:
                time.sleep(0.01)
            d.page.disarm()
            until("a worker serves", lambda: c.call("status")["worker"] == "ready")
        streams.stop()
        said = clock.stop()
        for name in FILES:
            c.call("load", {"model": name})
        until("nothing runs", lambda: not c.call("ps").get("requests"))
        for k, fields, got in [*warm.done, *streams.done]:  # by now nothing disturbs
            if k not in want:
                want[k] = answer(c, fields)[0]
                assert len(want[k]) == fields["max_tokens"]
            assert got == want[k], f"{k}: another text or other bits"
        until("the descriptors are as before", lambda: held(d)[0] <= fds, 20)
        after = held(d)
        # Buffers of the loop may have grown; a leak would add up with each fault and each request.
        assert SANITIZED or after[1] <= kib + 6144, f"{kib} KiB before, {after[1]} now"
        print(f"      round {n}: {', '.join(told)}: {metrics(c)['worker_restarts'] - before:.0f} workers, {len(streams.done)} answers; "
              f"{fds} descriptors, {kib} KiB before, {after[0]} and {after[1]} after; {said}")


def faults_at_random():
    """Streams under faults."""
    for n in range(40 if ARGS.long else ARGS.rounds):
        round_of(n)
    print("      answers:", dict(sorted(seen.items())))
    assert seen["paused"] > 0, "no stream met a fault"


sys.exit(run_tests([faults_at_random]))
