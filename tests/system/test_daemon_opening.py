# SPDX-License-Identifier: Apache-2.0
"""A model that ends its worker when it is opened, while others always run: it is found and set aside, nobody else loses a token."""
from daemonlib import *

PRELOAD = sys.argv[3]
GOOD = MODELS / "llama-q8_0.gguf"
PRELOADED = {"LD_PRELOAD": PRELOAD, "TEST_END_BY": "signal", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
ASK = dict(model="good", prompt="the cat", max_tokens=1000, temperature=1.0, seed=3, exact=True, **NO_END)


def size_and_answer():
    """Bytes of the bad model's copy, by which its opening is known; what the good one says undisturbed."""
    with daemon(models=("bad",)) as d, Client(d.path) as c:
        shutil.copy(GOOD, d.models / "good.gguf")
        c.call("load", {"model": "bad"})
        return c.call("models")["models"][0]["bytes"], c.generate(**ASK)[1]


SIZE, WANT = size_and_answer()


@contextlib.contextmanager
def streaming(n_streams=2, credits=10, **env):
    """A daemon with a bad model that is not loaded, and streams of the good one that have begun. They wait for credits, or run on."""
    with daemon(models=("bad",), env={**PRELOADED, "TEST_END_AT_OPEN": str(SIZE), **env}) as d, Client(d.path) as c, Client(d.path) as g:
        shutil.copy(GOOD, d.models / "good.gguf")
        streams = [g.start("generate", dict(ASK, credits=credits)) for _ in range(n_streams)]
        got = [read_tokens(g, i, 10)[0] for i in streams]

        def go_on():
            for i in streams:
                g.call("credit", {"request": i, "n": 1000})
            for k, i in enumerate(streams):
                tokens, _, reply, _ = finish(g, i)
                assert got[k] + tokens == WANT and reply["n_generated"] == 1000, "the stream has another text"
        yield d, c, go_on


def the_bad_one_is_found(credits=10):
    """One end beside the streams, one alone: both were the model's. The next request for it ends no worker."""
    with streaming(credits=credits) as (d, c, go_on):
        e = expect("quarantined", lambda: c.call("load", {"model": "bad"}), "bad ended its worker 2 times while it was opened", "signal 9",
                   "hearth load bad")
        assert e.fields["needed"] == 2, e.fields
        go_on()
        m = metrics(c)
        # Only the first one took the streams with it: the second worker had nothing else yet.
        assert m["worker_restarts"] == 2 and m["replays"] == 2 and m["quarantined"] == 1, m
        assert "bad was being opened when the worker ended; it is opened first and alone" in d.messages()
        expect("quarantined", lambda: c.generate(model="bad", prompt="a", max_tokens=1), "while it was opened")
        listed = {m["name"]: m for m in c.call("models")["models"]}
        assert listed["bad"]["where"] == "failed" and "2 times while it was opened" in listed["bad"]["note"], listed
        assert metrics(c)["worker_restarts"] == 2
        # Asked for all the same, and now nothing else runs.
        expect("quarantined", lambda: c.call("load", {"model": "bad"}), "2 times while it was opened")
        assert metrics(c)["worker_restarts"] == 4
        assert c.generate(**ASK)[1] == WANT


def ill_luck_is_no_fault():
    """The worker ended while it was opened, but not because of it: alone it opens, then everybody's turn comes, and it serves."""
    with private_dir() as home:
        count = pathlib.Path(home) / "count"
        count.touch()
        with streaming(TEST_END_TIMES="1", TEST_END_COUNT=str(count)) as (d, c, go_on):
            c.call("load", {"model": "bad"})
            assert metrics(c)["worker_restarts"] == 1 and metrics(c)["quarantined"] == 0
            assert "bad was opened alone and nothing happened" in d.messages()
            go_on()
            assert c.generate(model="bad", prompt="a", max_tokens=5, **NO_END)[2]["n_generated"] == 5
            # What was counted is forgotten: one more such end is the first one.
            c.call("unload", {"model": "bad", "force": True})
            count.write_text("")
            c.call("load", {"model": "bad"})
            assert metrics(c)["worker_restarts"] == 2 and metrics(c)["quarantined"] == 0


def the_bad_one_is_found_beside_running():
    the_bad_one_is_found(credits=1000)


def nobody_else_is_charged():
    """The end beside the bad one's opening is taken back: three more of a stream's own it takes to end that stream."""
    with streaming(n_streams=1, credits=12) as (d, c, go_on):
        expect("quarantined", lambda: c.call("load", {"model": "bad"}))
        for n in (3, 4):
            until("it runs", lambda: c.call("status")["worker"] == "ready" and [r["phase"] for r in c.call("ps")["requests"]] == ["paused"] and
                  any(m["where"] == "memory" for m in c.call("models")["models"]))
            os.kill(c.call("status")["worker_pid"], 9)
            until("it is noticed", lambda: metrics(c)["worker_restarts"] == n)
        go_on()


def only_beside_others(credits=10):
    """It opens alone and ends the worker beside another model, each time: three times, then it is set aside."""
    with streaming(credits=credits, TEST_END_BESIDE="1") as (d, c, go_on):
        expect("quarantined", lambda: c.call("load", {"model": "bad"}), "bad ended its worker 3 times while it was opened beside other models")
        go_on()
        assert metrics(c)["worker_restarts"] == 3 and metrics(c)["quarantined"] == 1, metrics(c)


def only_beside_running_others():
    only_beside_others(credits=1000)


def unloaded_on_the_way():
    """Its user gives up while it is tried alone, is being closed again, waits: nothing is left of it and the others go on."""
    for pause in (0, 0.02, 0.05, 0.1, 0.2):
        with private_dir() as home:
            count = pathlib.Path(home) / "count"
            count.touch()
            with streaming(n_streams=1, TEST_END_TIMES="1", TEST_END_COUNT=str(count)) as (d, c, go_on):
                i = c.start("load", {"model": "bad"})
                until("it ended the worker", lambda: metrics(c)["worker_restarts"] == 1)
                time.sleep(pause)
                with Client(d.path) as other:
                    other.call("unload", {"model": "bad", "force": True})
                try:
                    finish(c, i)
                except RemoteError as e:
                    assert e.code == "cancelled", e
                go_on()
                until("it is gone", lambda: [m["where"] for m in c.call("models")["models"] if m["name"] == "bad"] == ["disk"])
                c.call("load", {"model": "bad"})
                assert metrics(c)["worker_restarts"] == 1


CASES = [the_bad_one_is_found, the_bad_one_is_found_beside_running, nobody_else_is_charged, ill_luck_is_no_fault, only_beside_others,
         only_beside_running_others, unloaded_on_the_way]
sys.exit(run_tests([c for c in CASES if len(sys.argv) < 5 or c.__name__ in sys.argv[4:]]))
