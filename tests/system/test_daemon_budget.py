# SPDX-License-Identifier: Apache-2.0
"""A budget that holds some of the models: who leaves for whom, in which order, and what a load is told that can't have it.

With tests/gpu/run it is the card's ([worker] vram_budget), and what the driver says is taken of the card (NVML) is compared with the
daemon's account. Without a card it is the host's ([daemon] host_budget), and what needs a card is left out, which is said."""
from faultlib import *
from splitgguf import build, parse

# Of these models nearly all is context; on a card four times what a load wants to have free for graphs besides.
CONFIG = "[models]\ncontext = 16384\nslots = 16\n" if CUDA else "[models]\ncontext = 4096\n"
NEAR = 48 * MIB  # the driver gives memory in pieces
ASK = dict(prompt="the cat", max_tokens=40, temperature=0.0, exact=True, **NO_END)


def write_models(d, names):
    """The tiny model as models of other contents, with room for a long context."""
    kvs, tensors = parse(TINY.read_bytes())
    for n in names:
        text = b"budget-" + n.encode()
        said = {b"llama.context_length": struct.pack("<I", 1 << 17), b"general.name": struct.pack("<Q", len(text)) + text}
        (d.models / f"{n}.gguf").write_bytes(build([(k, kind, said.get(k, v)) for k, kind, v in kvs], [list(t) for t in tensors]))


def held(c):
    return c.call("status").get("device_bytes" if CUDA else "host_bytes", 0)


def of_models(c):
    """Name: bytes, of those that are where they compute."""
    return {m["name"]: m["device_bytes"] if CUDA else m["bytes"] for m in c.call("models")["models"] if m["where"] == RESIDENT}


class Peak:
    """The most that was taken of the card meanwhile."""

    def __init__(self):
        self.most, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.wait(0.01):
            self.most = max(self.most, vram_used())

    def __enter__(self):
        if vram_used() is not None:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.thread.ident:
            self.thread.join(60)


size = {}  # "one": what a model takes; on a card "before": what was taken without a daemon, "fixed": what it takes beside its models


def what_a_model_takes():
    """Without a budget: the daemon's account of a model is what the driver says, and all of it comes back."""
    before = vram_used()
    with daemon(config=CONFIG) as d, Client(d.path) as c:
        write_models(d, "ab")
        c.call("load", {"model": "a"})
        first, with_a = held(c), vram_used()
        c.call("load", {"model": "b"})
        size["one"], with_b = held(c) - first, vram_used()
        assert 0 < size["one"] <= first and set(of_models(c)) == {"a", "b"}, (first, size)
        assert not CUDA or sum(of_models(c).values()) == held(c), of_models(c)
        c.call("unload", {"model": "a"})
        c.call("unload", {"model": "b"})
        assert held(c) == 0
        if before is None:
            return
        base = vram_used()
        c.call("load", {"model": "a"})
        c.call("unload", {"model": "a"})
        end = vram_used()
        size["before"], size["fixed"] = before, with_a - before - size["one"]
        print(f"      a model takes {(with_b - with_a) / 1e6:.1f} MB of the card, {size['one'] / 1e6:.1f} MB by the daemon's account; the driver's context "
              f"and what models share {size['fixed'] / 1e6:.0f} MB; without a model {(base - before) / 1e6:.0f} MB, {(end - base) / 1e6:.1f} MB more after another visit")
        assert abs(with_b - with_a - size["one"]) <= size["one"] // 4, (with_a, with_b, size)
        assert end <= base + 4 * MIB, f"{end - base} bytes are not free again"
    until("the card's memory is free", lambda: vram_used() <= before + NEAR, 20)


@contextlib.contextmanager
def budget_for(models, names="abc"):
    """A daemon whose budget holds so many of them."""
    budget = size.get("fixed", 0) + int(models * size["one"])
    with Peak() as peak:
        with daemon(config=CONFIG + (f"[worker]\nvram_budget = {budget}\n" if CUDA else f"[daemon]\nhost_budget = {budget}\n")) as d, Client(d.path) as c:
            write_models(d, names)
            d.budget = budget
            yield d, c
            assert c.call("status")["device_budget" if CUDA else "host_budget"] == budget
    if "before" in size:
        until("the card's memory is free", lambda: vram_used() <= size["before"] + NEAR, 20)
        print(f"      budget {budget / 1e6:.0f} MB: at most {(peak.most - size['before']) / 1e6:.0f} MB were taken")
        assert peak.most - size["before"] <= budget + NEAR, (peak.most, size, budget)


def resident_now(d, c, *names):
    assert set(of_models(c)) == set(names), (names, of_models(c))
    assert held(c) <= d.budget
    if "before" in size:
        took = vram_used() - size["before"]
        assert took <= d.budget + NEAR and took >= len(names) * size["one"] * 3 // 4, (took, names, size)


def one_of_two():
    """Asked in turn, by load and by a request: each takes the other's place; on a card the copies stay in memory and nothing is read again."""
    with budget_for(1.3) as (d, c):
        want = {}
        for name in "abab":
            c.call("load", {"model": name})
            resident_now(d, c, name)
            text = c.generate(model=name, **ASK)[1]
            assert want.setdefault(name, text) == text and len(text) == 40
        read = metrics(c)["bytes_read"]
        for name in "ab":
            assert c.generate(model=name, **ASK)[1] == want[name]
            resident_now(d, c, name)
        seen = metrics(c)
        assert seen["loads"] == 6 and seen["worker_restarts"] == 0, seen
        if CUDA:
            assert seen["fills"] == 2 and seen["bytes_read"] == read, (seen, read)
            assert "leaves the device to make room for b; its copy stays in memory" in d.messages()
        else:
            assert seen["fills"] == 6 and "a is unloaded to make room for b" in d.messages(), seen


def the_least_recently_used_leaves():
    """By last use, not by arrival; one that is pinned or answers stays."""
    with budget_for(2.3) as (d, c), Client(d.path) as other:
        for name in "ab":
            c.call("load", {"model": name})
        time.sleep(0.01)
        c.generate(model="a", **dict(ASK, max_tokens=1))
        c.call("load", {"model": "c"})  # b was there last, and used first
        resident_now(d, c, "a", "c")
        c.call("load", {"model": "b"})
        resident_now(d, c, "b", "c")
        i = c.start("generate", dict(ASK, model="c", max_tokens=300, credits=3))  # c is the older one, but answers
        read_tokens(c, i, 3)
        other.call("load", {"model": "a"})
        resident_now(d, other, "a", "c")
        c.cancel(i)
        list(c.events(i))
        c.call("load", {"model": "c", "pin": True})
        c.generate(model="a", **dict(ASK, max_tokens=1))
        c.call("load", {"model": "b"})
        resident_now(d, c, "b", "c")


def a_refusal_is_honest():
    """Who has it is in use or pinned: needed, available and the holders are named, and nothing is disturbed; the same where it would not
    fit into an empty card either."""
    with budget_for(1.3) as (d, c), Client(d.path) as other:
        want = c.generate(model="a", **dict(ASK, max_tokens=300))[1]
        i = c.start("generate", dict(ASK, model="a", max_tokens=300, credits=5))
        got = read_tokens(c, i, 5)[0]
        for ask in (lambda: other.call("load", {"model": "b"}), lambda: other.generate(model="b", **ASK)):
            e = expect("model_no_memory", ask, "b", "available", "held: a ", *(["budget", "it would fit without a: hearth unload"] if CUDA else []))
            assert e.fields["needed"] > e.fields["available"] > 0 and e.fields["available"] < size["one"], e.fields
        print("      " + e.message)
        resident_now(d, other, "a")
        c.call("credit", {"request": i, "n": 1000})
        assert got + finish(c, i)[0] == want, "another text"
        c.call("load", {"model": "a", "pin": True})
        expect("model_no_memory", lambda: c.call("load", {"model": "b"}), "held: a ")
        resident_now(d, c, "a")
    with budget_for(0.5) as (d, c):
        for _ in range(2):
            e = expect("model_no_memory", lambda: c.call("load", {"model": "a"}), "available")
            assert e.fields["needed"] > e.fields["available"] and e.fields["needed"] > size["one"] // 2, e.fields
            assert not of_models(c) and held(c) == 0
        print("      " + e.message)
        assert c.call("load", {"model": "a", "n_ctx": 1024, "slots": 1})["n_ctx"] == 1024  # what was said would fit
        assert metrics(c)["worker_restarts"] == 0


if not CUDA:
    print("      no card: the host's budget, nothing is compared with a driver")
sys.exit(run_tests([what_a_model_takes, one_of_two, the_least_recently_used_leaves, a_refusal_is_honest]))
