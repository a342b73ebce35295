# SPDX-License-Identifier: Apache-2.0
"""The processes that see untrusted bytes have given up their rights: seen from outside, in /proc."""
import ctypes

from daemonlib import *

PRELOAD = sys.argv[3]
# Landlock's version, if the kernel has it: landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION)
LANDLOCK = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1) > 0
STATUS = dict(line.split(":", 1) for line in open("/proc/self/status"))
# A GPU's driver needs more than a processor: another filter, and paths for Landlock.
KIND = "serve, device" if BACKEND == "cuda" else "serve, cpu"
if SANITIZED:
    skip("a sanitizer needs calls that the sandbox forbids")
if "Seccomp" not in STATUS:
    skip("this kernel says nothing of seccomp in /proc")


def tasks(pid):
    """name, Seccomp and NoNewPrivs of each thread."""
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir(), key=lambda p: int(p.name)):
        got = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        yield got["Name"].strip(), got["Seccomp"].strip(), got["NoNewPrivs"].strip()


def children(pid, name):
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (p / "stat").read_text()
        except OSError:
            continue
        if f"({name})" in stat and stat.rsplit(")", 1)[1].split()[1] == str(pid):
            found.append(int(p.name))
    return found


def the_worker():
    """Every thread of it, also after work and after a restart; and it says what holds."""
    with daemon() as d, Client(d.path) as c:
        for _ in range(2):
            c.generate(model="tiny", prompt="the", max_tokens=5, json_schema='{"type": "integer"}')
            pid = c.call("status")["worker_pid"]
            seen = list(tasks(pid))
            assert len(seen) >= 8 and {"engine", "loader", "text", "mask"} <= {n for n, _, _ in seen}, seen
            assert all((s, n) == ("2", "1") for _, s, n in seen), seen
            os.kill(pid, 9)
        assert (f"sandbox ({KIND}): no new privileges, Landlock" if LANDLOCK else "lacks: Landlock") in d.messages(), d.messages()


def limits_of(pid):
    with open(f"/proc/{pid}/limits") as f:
        return {line[:25].strip(): line[26:].split() for line in f}


def the_fill():
    """While it reads: no new privileges, system calls filtered, and bounds."""
    env = {"LD_PRELOAD": PRELOAD, "TEST_HANG": "1"}
    with daemon(config="[worker]\nhang_timeout = 20s\n", env=env) as d, Client(d.path) as c:
        c.start("load", {"model": "tiny"})
        # It has the broker's filter from its start on; its own comes after its limits.
        found = until("a fill is closed in", lambda: [p for p in children(d.process.pid, "hearth-fill")
                                                      if next(tasks(p))[1] == "2" and limits_of(p)["Max cpu time"][0] != "unlimited"])
        assert all((s, n) == ("2", "1") for _, s, n in tasks(found[0])), list(tasks(found[0]))
        limits = limits_of(found[0])
        assert limits["Max address space"][0] != "unlimited" and limits["Max cpu time"][0] != "unlimited", limits


def the_broker():
    """It needs no privileges, and no calls that only an attacker would make."""
    with daemon() as d, Client(d.path) as c:
        c.call("ping")
        seen = list(tasks(d.process.pid))
        assert all((s, n) == ("2", "1") for _, s, n in seen), seen
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{d.process.pid}/status") if ":\t" in line)
        assert int(status["CapEff"], 16) & ~(1 << 14) == 0, status["CapEff"]  # all but CAP_IPC_LOCK


def off_is_said():
    """Without a sandbox, that is in the log."""
    with daemon(config="[daemon]\nsandbox = off\n") as d, Client(d.path) as c:
        c.generate(model="tiny", prompt="the", max_tokens=2)
        assert f"no sandbox ({KIND}): [daemon] sandbox is off" in d.messages(), d.messages()


def works(d, c):
    """All that a worker does once it is closed in: loads, launches, memory pinned for the device and read in place, unloads; and its successor."""
    ask = dict(model="tiny", prompt="the cat", max_tokens=20, temperature=0.0, **NO_END)
    want = {}
    for ends in range(2):
        for layers in [{}, {"gpu_layers": 0}, {"gpu_layers": 1}] if BACKEND == "cuda" else [{}]:
            c.call("load", {"model": "tiny", **layers})
            got = c.generate(**ask)[1]
            assert len(got) == 20 and want.setdefault(str(layers), got) == got, (layers, got)
            entry = c.call("models")["models"][0]
            assert not layers or entry["placement"].startswith(f"{layers['gpu_layers']} of ") and "in host memory" in entry["placement"], entry
            c.call("unload", {"model": "tiny", "force": True})
            assert c.call("status").get("device_bytes", 0) == 0
        assert metrics(c)["worker_restarts"] == ends, d.messages()
        os.kill(c.call("status")["worker_pid"], 9)
        until("it is gone", lambda: metrics(c)["worker_restarts"] == ends + 1)
    assert "Operation not permitted" not in d.messages(), d.messages()


def required():
    """All of it or nothing: with what is missing named. What there is closes in, and nothing that serving takes is missed."""
    print("      required:", "works" if LANDLOCK else "refused, since this kernel has no Landlock; works with the rest")
    with daemon(config=f"[daemon]\nsandbox = {'required' if LANDLOCK else 'auto'}\n") as d, Client(d.path) as c:
        works(d, c)
    if LANDLOCK:
        return
    with daemon(config="[daemon]\nsandbox = required\n") as d, Client(d.path) as c:
        try:
            c.generate(model="tiny", prompt="the", max_tokens=2)
        except RemoteError as e:
            assert "a sandbox is required, but this machine lacks" in e.message, e.message
        else:
            raise AssertionError("a part is missing, and it was not said")


def what_lacks_is_said():
    """A kernel without a part: it works with the rest and says so, or does not start where all of it is required."""
    def log(config=None):
        with daemon(config=config) as d, Client(d.path) as c:
            assert c.generate(model="tiny", prompt="the", max_tokens=2)[2]["n_generated"] == 2
            return d.messages()

    said = without(444, log)
    assert f"the sandbox ({KIND}) lacks: Landlock (not in this kernel)" in said and "(fill) lacks: Landlock" in said, said
    said = without(317, log)
    assert "hearthd keeps rights that it does not need: seccomp (not in this kernel)" in said, said
    assert f"the sandbox ({KIND}) lacks: " in said and "seccomp (not in this kernel)" in said, said


sys.exit(run_tests([the_worker, the_fill, the_broker, off_is_said, required, what_lacks_is_said]))
