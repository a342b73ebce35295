# SPDX-License-Identifier: Apache-2.0
"""The shipped units under a real systemd, PID 1 of a namespace of its own.

Skipped where that is not possible: it needs root, unshare, nsenter and systemd."""
import json
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
mkdir /mnt/bin /mnt/units /mnt/models /mnt/etc
echo "#" >/mnt/etc/hearth.conf
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
    ours = "/mnt/bin/hearthd --system --config /mnt/etc/hearth.conf --model-dir /mnt/models"
    service, n = re.subn(r"^(ExecStart|ExecReload)=\S*/hearthd --system", rf"\1={ours}", service, flags=re.M)
    assert n == 2, "the unit's ExecStart and ExecReload are not as expected"
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

    def result(self, *argv):
        return subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", *argv], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def run(self, *argv, check=True):
        r = self.result(*argv)
        assert not check or r.returncode == 0, (argv, r)
        return r.stdout.strip()

    def configure(self, text):
        self.run("sh", "-c", 'printf %s "$1" >/mnt/etc/hearth.conf', "sh", text)

    def journal(self, *matches):
        out = self.run("journalctl", "-o", "json", "--no-pager", "-q", *matches, check=False)
        return [json.loads(line) for line in out.splitlines()]

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


def reload(m):
    """systemctl reload takes over what changed; a mistake fails it, with the place, and changes nothing."""
    pid = m.shown("MainPID")
    with m.connect() as c, m.connect() as c2:
        i = c.start("generate", {"model": "tiny", "prompt": "the", "max_tokens": 500, "credits": 2, **NO_END})
        until("it runs", lambda: c.next_of(i)[1] == "tokens")
        m.configure("[access]\nunload = @daemon, root\n[limits]\nrequests_per_user = 1\n[worker]\nthreads = 1\n[models]\nidle_timeout = 7min\n")
        m.ctl("reload", "hearthd.service")
        until("the limit holds", lambda: refused(c2, "quota"))
        assert m.shown("ActiveState") == "active" and m.shown("MainPID") == pid
        lines = [e["MESSAGE"] for e in m.journal("-u", "hearthd.service")]
        if lines:
            assert any('[worker] threads is "1", was "0": after a restart only' in line for line in lines), lines
            assert any('[models] idle_timeout is "420000ms"' in line and "in effect now" in line for line in lines), lines
        m.configure("[limits]\nrequests_per_user = 9\n\nconnections = many\n")
        r = m.result("systemctl", "reload", "hearthd.service")
        assert r.returncode != 0, "a faulty file was taken"
        lines = [e["MESSAGE"] for e in m.journal("-u", "hearthd.service")]
        assert not lines or any("hearth.conf:4: connections is a number" in line for line in lines), lines
        # Also without the unit's own check.
        m.run("kill", "-HUP", pid)
        until("it is told", lambda: "connections is a number" in m.shown("StatusText"))
        assert refused(c2, "quota"), "the old limit holds"
        m.configure("# the defaults\n")
        m.ctl("reload", "hearthd.service")
        until("the limit is gone", lambda: not refused(c2, "quota"))
        until("its state is told", lambda: "not taken" not in m.shown("StatusText"))
        assert m.shown("ActiveState") == "active" and m.shown("MainPID") == pid
        c.call("credit", {"request": i, "n": 1000})
        assert list(c.events(i))[-1][2]["n_generated"] == 500, "the stream went on through it all"


def refused(c, code):
    try:
        c.generate(model="tiny", prompt="a", max_tokens=1)
    except RemoteError as e:
        assert e.code == code, e
        return True
    return False


def journal_fields(m):
    """A request's end in the journal: its fields, and nothing of its text."""
    with m.connect() as c:
        c.generate(model="tiny", prompt="a secret walrus", max_tokens=3, seed=5, **NO_END)
    if not m.journal("-u", "hearthd.service"):
        print("no journal runs in the namespace: its fields are tested in the unit test only")
        return
    entry = until("it is logged", lambda: next((e for e in m.journal("HEARTH_METHOD=generate", "HEARTH_GENERATED_TOKENS=3")), None))
    want = {"HEARTH_UID": "0", "HEARTH_MODEL": "tiny", "HEARTH_CODE": "length", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "hearthd",
            "_SYSTEMD_UNIT": "hearthd.service"}
    assert {k: entry.get(k) for k in want} == want, entry
    assert int(entry["HEARTH_REQUEST"]) > 0 and int(entry["HEARTH_CLIENT"]) > 0 and int(entry["HEARTH_TOTAL_MS"]) >= 0
    assert "walrus" not in json.dumps(m.journal("-u", "hearthd.service"))


def restart_with_open_streams(m):
    """Open streams end with a word, the next daemon gives the same text for the same seed, and reads no file."""
    ask = {"model": "tiny", "prompt": "the cat", "max_tokens": 400, "seed": 11, **NO_END}
    with m.connect() as c:
        i = c.start("generate", {**ask, "credits": 20})
        got = []
        while len(got) < 20:
            kind, method, fields = c.next_of(i)
            got += ids(fields.get("ids", b"")) if method == "tokens" else []
        m.ctl("restart", "hearthd.service")
        expect("shutting_down", lambda: list(c.events(i)))
    with m.connect() as c:
        text, tokens, reply = c.generate(**ask)
        assert tokens[:20] == got and reply["n_generated"] == 400
        assert metrics(c)["bytes_read"] == 0


def analysis():
    """systemd's own opinion: verify has nothing to say; the figure of security is printed."""
    if not shutil.which("systemd-analyze"):
        return
    with private_dir() as home:
        files = unit_files(home)
        env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{home}:/lib/systemd/system"}
        for f in files:  # of the programs that are meant only the path is checked
            text = pathlib.Path(f).read_text().replace("/mnt/bin/hearthd", str(pathlib.Path(HEARTHD).resolve()))
            pathlib.Path(f).write_text(text)
        r = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=60, env=env)
        said = [line for line in (r.stdout + r.stderr).splitlines() if "hearth" in line]
        assert r.returncode == 0 and not said, (r.returncode, r.stdout, r.stderr)
        user = pathlib.Path(home) / "user"
        user.mkdir()
        for f in sys.argv[6:8]:
            text = re.sub(r"^(Exec\w+=)\S*/hearthd ", rf"\1{pathlib.Path(HEARTHD).resolve()} ", pathlib.Path(f).read_text(), flags=re.M)
            (user / pathlib.Path(f).name).write_text(text)
        r = subprocess.run(["systemd-analyze", "--user", "verify", "--man=no", *map(str, user.iterdir())], capture_output=True, text=True, timeout=60,
                           env={**env, "SYSTEMD_UNIT_PATH": f"{user}:/usr/lib/systemd/user:/lib/systemd/user", "XDG_RUNTIME_DIR": home})
        said = [line for line in (r.stdout + r.stderr).splitlines() if "hearth" in line]
        assert r.returncode == 0 and not said, (r.returncode, r.stdout, r.stderr)
        r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", files[0]], capture_output=True, text=True, timeout=60, env=env)
        figure = re.search(r"exposure level for \S+: ([\d.]+)", r.stdout)
        assert figure, r
        print(f"systemd-analyze security: {figure[1]}")
        assert float(figure[1]) < 3.0, r.stdout


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
            assert len(want) > 150, want
            for end in (lambda: m.run("kill", "-KILL", m.shown("MainPID")), lambda: m.ctl("restart", "hearthd.service")):
                m.ctl("reset-failed", "hearthd.service")  # its start limit is not what is tested
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
            reload(m)
            journal_fields(m)
            restart_with_open_streams(m)
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
sys.exit(run_tests([analysis, units]))
