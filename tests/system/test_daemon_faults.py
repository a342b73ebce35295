# SPDX-License-Identifier: Apache-2.0
"""The device fails: a wild address, a trap, a kernel that does not end; while a model loads, a prompt is evaluated, tokens are generated,
and while nothing runs. Streams pause and go on with the same bits, models come back unread, the log says which kernel it was.

With tests/gpu/run these are faults of the GPU. Without one the worker's CPU does what comes closest: a wild address, abort(), a step that
does not end.
usage: test_daemon_faults.py HEARTHD MODELS WORKER [CASE...]"""
from faultlib import *

WORKER = sys.argv[3]
N_BAD, N_GOOD = 1024, 512  # contexts of the two models: by them the worker knows whose step is to fail
CONFIG = f"[model good]\ncontext = {N_GOOD}\n"
PROMPT = "the cat and the dog and the man in the house " * 16
ASK = dict(temperature=1.0, seed=8, logprobs=3, exact=True, **NO_END)
GOOD = dict(ASK, model="good", prompt="a man", max_tokens=300)
# How the worker's end reads, on a CPU and, with the kernel's place, on a GPU.
ENDS = {"address": "signal 11", "trap": "signal 6", "endless": "hung and was ended"}
ENDS_CUDA = {"address": "lost its device", "trap": "lost its device", "endless": "hung near the kernel at"}
want = {}


def bad(moment):
    """Another beginning each time: nothing of the prompt is there already."""
    return dict(ASK, model="tiny", prompt=f"{moment} {PROMPT}", max_tokens=60)


def add_good(d):
    shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "good.gguf")


def undisturbed():
    """The answers that nothing disturbs, and what they take of the card."""
    before = vram_used()
    with failing(WORKER, CONFIG, clock=False) as d, Client(d.path) as c:
        add_good(d)
        for name, ask in [("good", GOOD), *((m, bad(m)) for m in MOMENTS[1:] + ["alone"])]:
            want[name], notes = rest(c, c.start("generate", ask), [])
            assert len(want[name]) == ask["max_tokens"] and "paused" not in notes
        assert metrics(c)["worker_restarts"] == 0 and d.page.fired() == 0 and not c.call("status").get("worker_end")
    want["vram"] = before


def check_end(c, d, fault):
    said = c.call("status")["worker_end"]
    assert (ENDS_CUDA if CUDA else ENDS)[fault] in said and said in d.messages(), said
    assert not CUDA or "fault.cu:" in said, said  # the kernel
    return said


def at(fault, moment, c, g, d):
    before, fired, vram = metrics(c), d.page.fired(), vram_used()
    if moment == "loading":
        c.call("unload", {"model": "tiny", "force": True})
    d.page.arm(fault, moment, nth={"loading": 1, "prefill": 1, "decode": 20, "idle": 1}[moment], n_ctx=0 if moment == "idle" else N_BAD)
    if moment == "idle":
        until("it has happened", lambda: d.page.fired() == fired + 1)
    good = g.start("generate", GOOD)
    got, notes = rest(c, c.start("generate", bad(moment)), [])
    assert d.page.fired() == fired + 1, "nothing happened"
    assert got == want[moment], f"{moment}: another text or other bits"
    assert rest(g, good, [])[0] == want["good"], f"{moment}: the other model's stream"
    until("both models are back", lambda: resident(c) == {"tiny", "good"})
    after = metrics(c)
    assert after["worker_restarts"] == before["worker_restarts"] + 1, (before, after)
    # An unloaded model is read once, before the fault; then, as otherwise, its copy is there.
    assert after["fills"] == before["fills"] + (moment == "loading"), "a model was read again"
    assert moment == "loading" or after["bytes_read"] == before["bytes_read"]
    assert moment in ("loading", "idle") or "paused" in notes, notes
    print(f"      {fault} while {moment}: the worker {check_end(c, d, fault)}")
    if vram is not None:  # the next one's context takes as much; nothing of the dead one's is left
        until("the card's memory is as before", lambda: vram_used() <= vram + 64 * MIB, 20)


def then(fault, method, c, d):
    """It happens while nothing runs, and what comes next is no step: a load, an unload."""
    before, fired = metrics(c), d.page.fired()
    d.page.arm(fault, "idle")
    until("it has happened", lambda: d.page.fired() == fired + 1)
    c.call(method, {"model": "tiny"}, timeout=120)
    assert ("tiny" in resident(c)) == (method == "load")
    assert rest(c, c.start("generate", GOOD), [])[0] == want["good"], f"{method}: the other model's stream"
    assert metrics(c)["worker_restarts"] == before["worker_restarts"] + 1
    print(f"      {fault} before {method}: the worker {check_end(c, d, fault)}")


@contextlib.contextmanager
def both(fault):
    with failing(WORKER, CONFIG, hang=HANG_S if fault == "endless" else 60.0) as d, Client(d.path) as c, Client(d.path) as g:
        add_good(d)
        c.call("load", {"model": "tiny"})
        c.call("load", {"model": "good"})
        yield c, g, d


def matrix(fault):
    """At each moment once; then three times at the same request."""
    def case():
        with both(fault) as (c, g, d):
            for moment in MOMENTS[1:]:
                at(fault, moment, c, g, d)
            then(fault, "unload", c, d)
            then(fault, "load", c, d)
        with both(fault) as (c, g, d):  # the pauses between workers grow with each end: another daemon is faster
            # Thrice the same request: found by running alone, and ended; the other model's stream, and later ones, go on.
            d.page.arm(fault, "decode", nth=5, times=3, n_ctx=N_BAD)
            i = c.start("generate", bad("alone"))
            good = g.start("generate", GOOD)
            e = expect("worker_lost", lambda: rest(c, i, []), "2 others before it", "alone", *(["fault.cu:"] if CUDA else [ENDS[fault]]))
            assert e.fields["needed"] == 3, e.fields
            assert rest(g, good, [])[0] == want["good"]
            assert rest(c, c.start("generate", bad("alone")), [])[0] == want["alone"]
        if want["vram"] is not None:
            until("the card's memory is free", lambda: vram_used() <= want["vram"] + 16 * MIB, 20)
    case.__name__, case.__doc__ = f"{fault}_at_each_moment", matrix.__doc__
    return case


CASES = [undisturbed, *(matrix(f) for f in FAULTS)]
sys.exit(run_tests([c for c in CASES if len(sys.argv) < 5 or c is undisturbed or c.__name__ in sys.argv[4:]]))
