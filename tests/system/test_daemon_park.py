# SPDX-License-Identifier: Apache-2.0
"""A client that lets others wait: its request gives its slot up and goes on later with the same tokens."""
import signal

from daemonlib import *

CONFIG = "[limits]\nyield_timeout = 1s\n[models]\nslots = 1\n"
ASK = dict(model="tiny", prompt="the cat and the dog", max_tokens=60, temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, seed=7, **NO_END)


def parked(c):
    return figures(c)["hearth_parked_total"]


def figures(c):
    out = {}
    for line in c.call("metrics")["text"].splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
    return out


def phases(c):
    return [p["phase"] for p in c.call("ps").get("requests", [])]


def without_credits():
    """It gives the slot to who waits, keeps its place in the text, and the rest is as it would have been."""
    with daemon(config=CONFIG) as d, Client(d.path) as c, Client(d.path) as other:
        # A word that is held back while it may still become the stop string lies over the seam, too.
        want = c.generate(**ASK)
        for stop in ([], [want[0][len(want[0]) // 2:][:12] + "never"]):
            i = c.start("generate", dict(ASK, credits=20, stop=stop))
            got, text = read_tokens(c, i, 20)
            before = parked(other)
            assert other.generate(model="tiny", prompt="x", max_tokens=10, **NO_END)[2]["n_generated"] == 10
            assert parked(other) == before + 1 and phases(c) == ["paused"]
            # Again and again, at any place.
            for n in (1, 2, 9):
                c.call("credit", {"request": i, "n": n})
                more, rest = read_tokens(c, i, n)
                got, text = got + more, text + rest
                assert other.generate(model="tiny", prompt="y", max_tokens=3, **NO_END)[2]["n_generated"] == 3
            c.call("credit", {"request": i, "n": 1000})
            more, rest, reply, notes = finish(c, i)
            assert got + more == want[1] and text + rest == want[0], "the rest went another way"
            assert "accepted" not in notes and reply["n_generated"] == 60 and reply["seed"] == 7
        assert parked(other) == 8


def alone_it_keeps_its_slot():
    """Nobody waits: nothing happens to it."""
    with daemon(config=CONFIG) as d, Client(d.path) as c:
        i = c.start("generate", dict(ASK, credits=5))
        read_tokens(c, i, 5)
        up = c.call("status")["uptime_ms"]
        until("some ticks have passed", lambda: c.call("status")["uptime_ms"] > up + 3500)
        assert parked(c) == 0 and "slot" in c.call("ps")["requests"][0]
        c.cancel(i)
        # And who reads is not parked for others: they wait.
    with daemon(config=CONFIG) as d, Client(d.path) as c, Client(d.path) as other:
        i = c.start("generate", dict(ASK, max_tokens=600))
        j = other.start("generate", dict(ASK, max_tokens=5))
        assert len(finish(c, i)[0]) == 600 and len(finish(other, j)[0]) == 5
        assert parked(c) == 0


def who_does_not_read():
    """A socket that nobody empties: the same."""
    with daemon(config=CONFIG) as d, Client(d.path) as c, Client(d.path) as other:
        ask = dict(ASK, max_tokens=900, logprobs=20)
        want = c.generate(**ask)
        i = c.start("generate", ask)
        until("its socket is full", lambda: [p["phase"] for p in other.call("ps")["requests"]] == ["paused"])
        assert other.generate(model="tiny", prompt="x", max_tokens=10, **NO_END)[2]["n_generated"] == 10
        assert parked(other) == 1
        got, text, reply, notes = finish(c, i)
        assert got == want[1] and text == want[0] and reply["n_generated"] == 900


def ends_while_parked():
    """Cancelled, hung up, out of time, unloaded, its worker killed, daemon stopped: each once, while it is parked."""
    with daemon(config=CONFIG) as d, Client(d.path) as c, Client(d.path) as other:
        want = c.generate(**ASK)

        def park(client=c, **more):
            i = client.start("generate", dict(ASK, credits=10, **more))
            got, text = read_tokens(client, i, 10)
            before = parked(other)
            other.generate(model="tiny", prompt="x", max_tokens=3, **NO_END)
            assert parked(other) == before + 1
            return i, got, text

        i, got, _ = park()
        c.cancel(i)
        more, _, reply, _ = finish(c, i)
        assert reply["finish"] == "cancelled" and reply["n_generated"] == 10 and got + more == want[1][:10]
        gone = Client(d.path)
        park(gone)
        gone.close()
        until("it is gone", lambda: other.call("ps").get("requests", []) == [])
        i, _, _ = park(deadline_ms=4000)
        assert finish(c, i)[2]["finish"] == "deadline"
        i, _, _ = park(supersedes="k")
        j = c.start("generate", dict(ASK, max_tokens=2, supersedes="k"))
        assert finish(c, i)[2]["finish"] == "superseded" and len(finish(c, j)[0]) == 2
        i, got, text = park()
        pid = other.call("status")["worker_pid"]
        os.kill(pid, signal.SIGKILL)
        until("another worker serves", lambda: (s := other.call("status"))["worker"] == "ready" and s["worker_pid"] not in (0, pid))
        c.call("credit", {"request": i, "n": 1000})
        more, rest, reply, _ = finish(c, i)
        assert got + more == want[1] and text + rest == want[0]
        i, _, _ = park()
        expect("busy", lambda: other.call("unload", {"model": "tiny"}))
        other.call("unload", {"model": "tiny", "force": True})
        assert finish(c, i)[2]["finish"] == "cancelled"
        park()
        d.process.terminate()
        d.process.wait(60)
        d2 = Daemon(HEARTHD, str(d.home), "--model-dir", str(d.models))
        d.process, d.log = d2.process, d2.log


def not_for_ever():
    """stall_timeout counts while it is parked."""
    with daemon(config=CONFIG + "[limits]\nstall_timeout = 3s\n") as d, Client(d.path) as c, Client(d.path) as other:
        i = c.start("generate", dict(ASK, credits=10))
        read_tokens(c, i, 10)
        other.generate(model="tiny", prompt="x", max_tokens=3, **NO_END)
        assert parked(other) == 1 and finish(c, i)[2]["finish"] == "deadline"
    with daemon(config="[limits]\nyield_timeout = never\n[models]\nslots = 1\n") as d, Client(d.path) as c, Client(d.path) as other:
        i = c.start("generate", dict(ASK, credits=10))
        read_tokens(c, i, 10)
        j = other.start("generate", dict(ASK, max_tokens=3))
        up = c.call("status")["uptime_ms"]
        until("some ticks have passed", lambda: c.call("status")["uptime_ms"] > up + 2500)
        assert parked(c) == 0 and sorted(phases(c)) == ["paused", "queued"]
        c.cancel(i)
        assert len(finish(other, j)[0]) == 3


sys.exit(run_tests([without_credits, alone_it_keeps_its_slot, who_does_not_read, ends_while_parked, not_for_ever]))
