# SPDX-License-Identifier: Apache-2.0
"""Out of memory within a control group: the kernel ends the worker and never the broker, it is said whose limit it was, and requests go
on as after any end. The limits are real ones: without the right to make a group the test is skipped."""
import signal
import subprocess

from daemonlib import *

PRELOAD, HEARTH = sys.argv[3], sys.argv[4]
MB = 1 << 20
LIMIT = 400 * MB
PRELOADED = {"LD_PRELOAD": PRELOAD, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


class Group:
    """A control group with a limit, of either version."""

    def __init__(self, name, limit):
        self.name = name
        rows = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().split("\n") if line]
        own = next((g for _, controllers, g in rows if "memory" in controllers.split(",")), None)
        self.v1 = own is not None
        self.before = pathlib.Path("/sys/fs/cgroup/memory") / own.lstrip("/") if self.v1 else \
            pathlib.Path("/sys/fs/cgroup") / next(g for i, _, g in rows if i == "0").lstrip("/")
        # Version 2 has no groups below one with processes: at the top.
        self.path = (self.before if self.v1 else pathlib.Path("/sys/fs/cgroup")) / name
        self.path.mkdir()
        self.now = 1 << 62
        try:
            self.limit(limit)
            self.kills()
            (self.before / "cgroup.procs").stat()
        except BaseException:
            self.path.rmdir()
            raise

    def limit(self, n):
        files = [("memory.limit_in_bytes", n), ("memory.memsw.limit_in_bytes", n)] if self.v1 else [("memory.max", n), ("memory.swap.max", 0)]
        for name, value in files if n < self.now else files[::-1]:  # with swap there is never less than without
            if (self.path / name).exists():
                (self.path / name).write_text(str(value))
        self.now = n

    def kills(self):
        rows = (self.path / ("memory.oom_control" if self.v1 else "memory.events")).read_text().split("\n")
        return int(next(r.split()[1] for r in rows if r.startswith("oom_kill ")))

    def used(self):
        """What the kernel can't take back."""
        stat = dict(r.split() for r in (self.path / "memory.stat").read_text().split("\n") if r)
        files = sum(int(stat[("total_" if self.v1 else "") + k]) for k in ("inactive_file", "active_file"))
        return int((self.path / ("memory.usage_in_bytes" if self.v1 else "memory.current")).read_text()) - files

    def join(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self):
        (self.before / "cgroup.procs").write_text(str(os.getpid()))

    def end(self):
        def removed():
            try:
                self.path.rmdir()
                return True
            except OSError:
                return False
        until("the group is empty", removed)


@contextlib.contextmanager
def in_group(*arguments, limit=LIMIT, env={}, **more):
    """A daemon in a group of its own."""
    g = Group(f"hearth-test-{os.getpid()}", limit)
    try:
        g.join()
        try:
            context = daemon(*arguments, env={**PRELOADED, **env}, **more)
            d = context.__enter__()
        finally:
            g.leave()
        try:
            yield d, g
        except BaseException:
            context.__exit__(*sys.exc_info())
            raise
        else:
            context.__exit__(None, None, None)
    finally:
        g.end()


if SANITIZED:
    skip("a sanitized broker is larger than its worker: the kernel would end it first")
try:
    Group(f"hearth-test-{os.getpid()}", LIMIT).end()
except (OSError, StopIteration) as e:
    skip(f"no control group with a memory limit can be made here: {e}")


def end_worker(c, g):
    """It takes all that its group may have."""
    before = metrics(c), g.kills()
    os.kill(c.call("status")["worker_pid"], signal.SIGUSR1)
    until("its end is noticed", lambda: metrics(c)["worker_restarts"] > before[0]["worker_restarts"])
    after = metrics(c)
    assert g.kills() == before[1] + 1, "the kernel did not end one process of the group"
    assert after["oom_kills"] == before[0]["oom_kills"] + 1, after


def running(c):
    return c.call("status")["worker"] == "ready" and [r["phase"] for r in c.call("ps").get("requests", [])] == ["paused"] and \
        all(m["where"] == "memory" for m in c.call("models")["models"])


def the_stream_goes_on_and_it_is_said():
    """In the middle of an answer: the same tokens after a pause; status, metrics and the log name the limit."""
    with in_group() as (d, g), Client(d.path) as c:
        want = c.generate(model="tiny", prompt="the cat", max_tokens=80, temperature=0.0, **NO_END)[1]
        assert "worker_end" not in c.call("status")
        score = lambda pid: int(open(f"/proc/{pid}/oom_score_adj").read())
        assert score(c.call("status")["worker_pid"]) >= score(d.process.pid) + 500, "out of memory, the broker goes before the worker"
        i = long_answer(c, 80, credits=20)
        got = read_tokens(c, i, 20)[0]
        read = metrics(c)["bytes_read"]
        end_worker(c, g)
        c.call("credit", {"request": i, "n": 1000})
        rest, _, reply, notes = finish(c, i)
        assert got + rest == want and "paused" in notes, "another text than without it"
        assert metrics(c)["bytes_read"] == read
        said = c.call("status")["worker_end"]
        assert said.startswith("was ended by the kernel: out of memory (limit of the control group") and g.name in said, said
        assert f"{LIMIT / 1e6:.0f} MB" in said or f"{LIMIT / 1e9:.1f} GB" in said, said
        assert f"worker {said}" in d.messages()
        assert "\nhearth_oom_kills_total 1\n" in c.call("metrics")["text"]
        shown = subprocess.run([HEARTH, "status", "--socket", d.path], capture_output=True, text=True, check=True).stdout
        assert said in shown, shown
        # An end by somebody's signal afterwards is one by a signal.
        os.kill(c.call("status")["worker_pid"], signal.SIGKILL)
        until("it is noticed", lambda: "signal 9" in c.call("status")["worker_end"])
        assert metrics(c)["oom_kills"] == 1


def the_cause_ends_with_its_error():
    """Three ends end the request, five its model; both errors and the list of models say by what."""
    with in_group() as (d, g), Client(d.path) as c:
        i = long_answer(c, 200, credits=5)
        read_tokens(c, i, 5)
        for n in range(5):
            if n == 3:
                i = long_answer(c, 200, credits=5)
                read_tokens(c, i, 5)
            until("it runs", lambda: running(c))
            end_worker(c, g)
            if n == 2:
                expect("worker_lost", lambda: finish(c, i), "2 others before it", "by the kernel: out of memory", g.name)
        expect("quarantined", lambda: finish(c, i), "5 times", "by the kernel: out of memory", g.name)
        assert "out of memory" in c.call("models")["models"][0]["note"]


def a_fill_is_ended():
    """While a model is read: that load ends with no_memory and the limit; nothing of it stays."""
    with in_group(env={"TEST_END_FILL": "1"}) as (d, g), Client(d.path) as c:
        expect("no_memory", lambda: c.call("load", {"model": "tiny"}), "the process that reads it was ended by the kernel: out of memory", g.name)
        assert g.kills() == metrics(c)["oom_kills"] == 1
        assert c.call("status").get("host_bytes", 0) == 0


def prompts_need_more():
    """Nothing but prompts: a context's pages come into being as they are filled, and the group has too few for all of them."""
    with in_group(config="[daemon]\nhost_budget = 8GiB\n[models]\nslots = 32\ncontext = 1024\n") as (d, g), Client(d.path) as c:
        ask = dict(model="tiny", max_tokens=8, temperature=0.0, exact=True, **NO_END)
        prompts = [f"{n} " + "the cat and the dog and the man " * 40 for n in range(32)]
        start = lambda: [c.start("generate", dict(ask, prompt=p)) for p in prompts]
        want = [finish(c, i)[0] for i in start()]
        whole = g.used()
        ended = 0
        for percent in (80, 60, 40, 20, 10, 5, 2, 1, 0):  # of what all of them together need; some of it the kernel may take back
            g.limit(LIMIT)
            pid = c.call("status")["worker_pid"]
            os.kill(pid, signal.SIGKILL)  # with all that it has touched
            until("another serves", lambda: (s := c.call("status"))["worker"] == "ready" and s["worker_pid"] != pid)
            assert c.generate(prompt=prompts[0], **ask)[1] == want[0]
            one = g.used()
            g.limit(one + (whole - one) * percent // 100)
            for k, i in enumerate(start()):
                try:
                    assert finish(c, i)[0] == want[k], "another text"
                    ended += 1
                except RemoteError as e:
                    assert e.code in ("worker_lost", "quarantined") and "by the kernel: out of memory" in e.message and g.name in e.message, e
            if g.kills():
                break
        until("the end is noticed", lambda: metrics(c)["oom_kills"] == g.kills())  # the kernel counts it before the process is gone
        assert g.kills() == metrics(c)["oom_kills"] >= 1 and ended >= 8, (g.kills(), metrics(c), ended)
        g.limit(LIMIT)
        c.call("load", {"model": "tiny"})
        assert c.generate(prompt=prompts[0], **ask)[1] == want[0]


def the_budget_follows_the_limit():
    """Without host_budget it is what the group leaves, and hearth doctor says which group that is."""
    with in_group(limit=LIMIT * 4) as (d, g), Client(d.path) as c:
        budget = c.call("status")["host_budget"]
        assert 0 < budget <= 4 * LIMIT - (256 << 20), budget
        assert g.name in d.messages() and str(4 * LIMIT) in d.messages()
        told = subprocess.run([HEARTH, "doctor", "--socket", d.path], capture_output=True, text=True).stdout
        assert any("memory is limited to" in line and g.name in line for line in told.split("\n")), told


sys.exit(run_tests([the_stream_goes_on_and_it_is_said, the_cause_ends_with_its_error, a_fill_is_ended, prompts_need_more, the_budget_follows_the_limit]))
