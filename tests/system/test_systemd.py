# SPDX-License-Identifier: Apache-2.0
"""The shipped units under a real systemd, PID 1 of a namespace of its own.

Skipped where that is not possible: it needs root, unshare, nsenter and systemd."""
import pathlib
import re
import shutil
import signal
import subprocess
import time

from daemonlib import *

UNITS = [pathlib.Path(p) for p in sys.argv[3:5]]  # hearthd.service as configured, hearthd.socket
RESUME_CLIENT = sys.argv[5]
SYSTEMD = "/lib/systemd/systemd"

BOOT = r"""
set -e
export container=docker
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/bin /mnt/units /mnt/models
cp "$1" /mnt/bin/hearthd; cp "$(dirname "$1")/hearth-worker" /mnt/bin/; cp "$2" /mnt/models/tiny.gguf
cp "$3" "$4" /mnt/units/; chmod -R a+rX /mnt
# systemd's start empties /tmp: private ones come first.
for d in /tmp /var/tmp /run /var/log; do mount -t tmpfs tmpfs "$d"; done
mkdir -p /run/systemd/system; cp /mnt/units/* /run/systemd/system/
printf '[Unit]\nDescription=test\nWants=hearthd.socket\nAllowIsolate=yes\n' >/run/systemd/system/hearth-test.target
exec /lib/systemd/systemd --system --unit=hearth-test.target --log-target=null
"""


def unit_files(home):
    """The shipped units, but for the user, who does not exist here, and the paths."""
    service, sock = (p.read_text() for p in UNITS)
    service = re.sub(r"^ExecStart=\S*/hearthd --system$", "ExecStart=/mnt/bin/hearthd --system --model-dir /mnt/models", service, flags=re.M)
    assert "/mnt/bin/hearthd" in service, "the unit's ExecStart is not as expected"
    service = re.sub(r"^(User|Group)=hearth$", r"\1=daemon", service, flags=re.M)
    service = re.sub(r"^WatchdogSec=\d+$", "WatchdogSec=2", service, flags=re.M)
    sock = re.sub(r"^SocketGroup=hearth$", "SocketGroup=daemon", sock, flags=re.M)
    out = [pathlib.Path(home) / "hearthd.service", pathlib.Path(home) / "hearthd.socket"]
    out[0].write_text(service)
    out[1].write_text(sock)
    return [str(p) for p in out]


class Machine:
    def __init__(self, home):
        script = pathlib.Path(home) / "boot"
        script.write_text(BOOT)
        self.log = open(f"{home}/log", "w+b")
        self.unshare = subprocess.Popen(["timeout", "200", "unshare", "--pid", "--fork", "--mount", "--mount-proc", "--uts", "--ipc", "sh", str(script),
                                         HEARTHD, str(TINY), *unit_files(home)], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.pid = until("PID 1 is there", self.find_init, 30)
        until("systemd answers", lambda: "running" in self.ctl("is-system-running", check=False) or
              "degraded" in self.ctl("is-system-running", check=False) or self.ctl("is-active", "hearthd.socket", check=False) == "active", 30)

    def find_init(self):
        """The process below timeout and unshare, once it has become systemd."""
        if self.unshare.poll() is not None:
            self.log.seek(0)
            skip(f"no namespace of one's own: {self.log.read().decode(errors='replace').strip()[-200:]}")
        for middle in children(self.unshare.pid):
            for pid in children(middle):
                with contextlib.suppress(OSError):
                    if b"systemd" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                        return pid

    def run(self, *argv, check=True):
        r = subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", *argv], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert not check or r.returncode == 0, (argv, r)
        return r.stdout.strip()

    def ctl(self, *argv, check=True):
        return self.run("systemctl", *argv, check=check)

    def shown(self, name):
        return self.ctl("show", "-P", name, "hearthd.service")

    def connect(self):
        """A client in here; the socket's path is in there, reached through its PID 1's root."""
        return Client(f"/proc/{self.pid}/root/run/hearth/hearth.sock")

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.unshare.wait(30)
        self.log.close()


def units():
    """Activation, READY, the watchdog, a crash, a restart, a stop: one machine, one story."""
    with private_dir() as home:
        m = Machine(home)
        try:
            assert m.shown("ActiveState") == "inactive", "it runs before anybody asked"
            with m.connect() as c:
                c.call("ping")
                until("READY", lambda: m.shown("ActiveState") == "active")
                assert m.shown("StatusText").startswith("Serving on")
                assert c.generate(model="tiny", prompt="the", max_tokens=5, **NO_END)[2]["n_generated"] == 5
                assert c.call("status")["socket"] == "/run/hearth/hearth.sock"
            first = m.shown("MainPID")
            # A frozen broker is replaced by the watchdog.
            m.run("kill", "-STOP", first)
            second = until("the watchdog replaces it", lambda: (p := m.shown("MainPID")) not in ("0", first) and m.shown("ActiveState") == "active" and p)
            with m.connect() as c:
                assert c.generate(model="tiny", prompt="the", max_tokens=5, **NO_END)[2]["n_generated"] == 5
                worker = c.call("status")["worker_pid"]
                # A worker that dies is the broker's business: the service stays.
                m.run("kill", "-KILL", str(worker))
                assert c.generate(model="tiny", prompt="the", max_tokens=5, **NO_END)[2]["n_generated"] == 5
                assert m.shown("MainPID") == second
            # A crash, then a restart: the socket stays, the next connection finds a daemon, and the model is still in memory.
            for end in (lambda: m.run("kill", "-KILL", m.shown("MainPID")), lambda: m.ctl("restart", "hearthd.service")):
                last = m.shown("MainPID")
                end()
                until("another one serves", lambda: m.shown("MainPID") not in ("0", last) and m.shown("ActiveState") == "active")
                with m.connect() as c:
                    held = c.call("status")["host_bytes"]
                    assert held > 0, "the copy did not come back"
                    assert c.call("load", {"model": "tiny"})["cached"]
                    assert metrics(c)["bytes_read"] == 0 and metrics(c)["fills"] == 0
                    assert c.generate(model="tiny", prompt="the", max_tokens=5, **NO_END)[2]["n_generated"] == 5
                assert m.shown("NFileDescriptorStore") == "2", "one copy and its description"
            # Streams run on, whatever becomes of the daemon: with the socket held by systemd the client is back at once.
            ask = ["model=tiny", "prompt=the cat", "max_tokens=100", "temperature=1", "seed=9", "forbid=313,314", "logprobs=1", "exact=1"]
            client = lambda *more: subprocess.Popen([RESUME_CLIENT, f"/proc/{m.pid}/root/run/hearth/hearth.sock", *ask, *more],
                                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            pick = lambda lines: [x for x in lines if x.startswith(("token", "text", "done"))]
            want = pick(client().communicate(timeout=60)[0].splitlines())
            assert len(want) > 200, want
            for end in (lambda: m.run("kill", "-KILL", m.shown("MainPID")), lambda: m.ctl("restart", "hearthd.service")):
                p, lines = client("credits=20"), []
                while not lines or not lines[-1].startswith("hold"):
                    lines.append(p.stdout.readline().rstrip("\n"))
                end()
                lines += p.communicate("go\n", timeout=60)[0].splitlines()
                assert p.returncode == 0 and pick(lines) == want, lines
                with m.connect() as c:
                    assert metrics(c)["bytes_read"] == 0 and metrics(c)["fills"] == 0, "the stream's model was read again"
            # What is unloaded leaves the store too.
            with m.connect() as c:
                c.call("unload", {"model": "tiny"})
                until("the copy left the store", lambda: m.shown("NFileDescriptorStore") == "1")
                assert not c.call("load", {"model": "tiny"}).get("cached")
            m.ctl("stop", "hearthd.service", check=False)
            until("it stopped", lambda: m.shown("ActiveState") == "inactive")
            assert m.shown("Result") == "success", m.shown("Result")
        finally:
            m.stop()


if os.getuid() != 0:
    skip("root is needed to start a systemd in a namespace")
if not os.path.exists(SYSTEMD) or not all(shutil.which(p) for p in ("unshare", "nsenter", "systemctl")):
    skip("systemd, unshare or nsenter is not installed")
if SANITIZED:
    skip("the unit's sandbox and the sanitizer exclude each other")
sys.exit(run_tests([units]))
