# SPDX-License-Identifier: Apache-2.0
"""How the daemon comes up and goes: sockets, permissions, activation, notification, stopping."""
import fcntl
import resource
import signal
import socket
import stat
import subprocess

from daemonlib import *


def popen(home, *arguments, **more):
    env = {"HOME": home, "XDG_RUNTIME_DIR": home, "PATH": os.environ["PATH"], **more.pop("env", {})}
    for k in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
        if k in os.environ:
            env[k] = os.environ[k]
    return subprocess.Popen([HEARTHD, *arguments], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)


def serves(path):
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        with Client(path) as c:
            return c.call("ping") == {}


def ended(p):
    p.terminate()
    err = p.communicate(timeout=60)[1].decode()
    assert p.returncode == 0 and "Sanitizer" not in err, (p.returncode, err)
    return err


def default_place():
    """$XDG_RUNTIME_DIR/hearth/hearth.sock, in a directory of mode 0700, itself 0600."""
    with private_dir() as home:
        p = popen(home, "--user")
        path = f"{home}/hearth/hearth.sock"
        until("it serves", lambda: serves(path))
        assert stat.S_IMODE(os.stat(f"{home}/hearth").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        ended(p)
        assert not os.path.exists(path), "the socket stayed behind"


def born_with_its_mode():
    """The socket has its final mode from the first moment, whatever the umask: no bind, then chmod."""
    with private_dir() as home:
        calls = f"{home}/trace"
        if not shutil.which("strace"):
            # Without strace: at least the result, under the most open umask.
            old = os.umask(0)
            try:
                p = popen(home, "--user")
            finally:
                os.umask(old)
            path = f"{home}/hearth/hearth.sock"
            until("it serves", lambda: serves(path))
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            assert stat.S_IMODE(os.stat(f"{home}/hearth").st_mode) == 0o700
            ended(p)


def system_mode():
    """The system's daemon: its socket's group may connect (0660)."""
    with private_dir() as home:
        os.chmod(home, 0o755)
        p = popen(home, "--system", "--socket", f"{home}/run/s", "--model-dir", home)
        until("it serves", lambda: serves(f"{home}/run/s"))
        assert stat.S_IMODE(os.stat(f"{home}/run/s").st_mode) == 0o660
        assert stat.S_IMODE(os.stat(f"{home}/run").st_mode) == 0o755
        ended(p)


def stale_socket():
    """A socket whose daemon was killed is replaced; one whose daemon lives is not touched."""
    with private_dir() as home:
        path = f"{home}/hearth/hearth.sock"
        first = popen(home, "--user")
        until("it serves", lambda: serves(path))
        second = popen(home, "--user")
        assert second.wait(60) == 75 and str(first.pid) in second.communicate()[1].decode()
        assert serves(path)
        first.kill()
        first.wait()
        first.communicate()
        assert os.path.exists(path), "the test needs a stale socket"
        third = popen(home, "--user")
        until("it serves", lambda: serves(path))
        ended(third)


def two_at_once():
    """Of several daemons started at the same time over a stale socket exactly one serves."""
    with private_dir() as home:
        path = f"{home}/hearth/hearth.sock"
        os.mkdir(f"{home}/hearth", 0o700)
        s = socket.socket(socket.AF_UNIX)
        s.bind(path)
        s.close()
        crowd = [popen(home, "--user") for _ in range(5)]
        until("one serves", lambda: serves(path))
        until("the others gave up", lambda: sum(p.poll() is None for p in crowd) == 1)
        assert sorted(p.returncode for p in crowd if p.returncode is not None) == [75] * 4
        for p in crowd:
            if p.poll() is None:
                ended(p)
            else:
                p.communicate()


def activation():
    """A listening socket from the service manager is used, and left alone at the end; READY, STOPPING and watchdog are told."""
    with private_dir() as home:
        path = f"{home}/given.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(8)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(f"{home}/notify")
        notify.settimeout(20)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(path)  # before it runs
        with open(f"{home}/log", "wb") as log:
            become = ("import os, sys; os.dup2(int(sys.argv[1]), 3, inheritable=True); pid = str(os.getpid()); "
                      "os.environ.update(LISTEN_PID=pid, WATCHDOG_PID=pid); os.execv(sys.argv[2], sys.argv[2:])")
            high = fcntl.fcntl(listener, fcntl.F_DUPFD, 20)  # 3 is what it is to become
            p = subprocess.Popen([sys.executable, "-c", become, str(high), HEARTHD, "--user"],
                                 env={"HOME": home, "LISTEN_FDS": "1", "NOTIFY_SOCKET": f"{home}/notify", "WATCHDOG_USEC": "200000",
                                      "PATH": os.environ["PATH"]},
                                 pass_fds=[high], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            os.close(high)
            got = []
            while sum("WATCHDOG=1" in g for g in got) < 3 or not any("READY=1" in g for g in got):
                got.append(notify.recv(4096).decode())
            with Client(path) as c:
                assert c.call("status")["socket"] == path
            from pyclient import Stream
            early = Stream(waiting)
            early.send(REQUEST, 1, "hello", {"version": 1})
            assert early.receive()[0] == REPLY
            early.close()
            p.terminate()
            while "STOPPING=1" not in got[-1]:
                got.append(notify.recv(4096).decode())
            assert p.wait(60) == 0, open(f"{home}/log").read()
        assert os.path.exists(path), "a socket of the service manager's was removed"
        ready = next(i for i, g in enumerate(got) if "READY=1" in g)
        assert "STATUS=" in got[ready]


def standard_files_are_closed():
    """Started without standard input, output and error: nothing else gets their numbers, it serves, replaces its worker and stops."""
    with private_dir() as home:
        models = pathlib.Path(home) / "models"
        models.mkdir()
        shutil.copy(TINY, models / "tiny.gguf")
        pid = os.fork()
        if pid == 0:
            os.closerange(0, 3)
            os.execve(HEARTHD, [HEARTHD, "--user", "--model-dir", str(models)], {**os.environ, "HOME": home, "XDG_RUNTIME_DIR": home})
        path = f"{home}/hearth/hearth.sock"
        until("it serves", lambda: serves(path))
        with Client(path) as c:
            assert c.generate(model="tiny", prompt="x", max_tokens=3, **NO_END)[2]["n_generated"] == 3
            worker = c.call("status")["worker_pid"]
            for p in (pid, worker):
                assert {os.readlink(f"/proc/{p}/fd/{n}") for n in range(3)} == {"/dev/null"}, p
            os.kill(worker, signal.SIGKILL)
            assert c.generate(model="tiny", prompt="x", max_tokens=3, **NO_END)[2]["n_generated"] == 3
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == 0


def other_limits():
    """No room for its threads: it says so and does not start, instead of ending under the first client. A limit of file sizes is the error
    of the load that meets it."""
    with private_dir() as home:
        if not SANITIZED:
            p = popen(home, "--user", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (20 << 20,) * 2))
            err = p.communicate(timeout=60)[1].decode()
            assert p.returncode == 75 and "threads can't be started" in err and "TasksMax" in err, (p.returncode, err)
        models = pathlib.Path(home) / "models"
        models.mkdir()
        shutil.copy(TINY, models / "tiny.gguf")
        p = popen(home, "--user", "--model-dir", str(models), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10,) * 2))
        path = f"{home}/hearth/hearth.sock"
        until("it serves", lambda: serves(path))
        with Client(path) as c:
            expect("io", lambda: c.call("load", {"model": "tiny"}), "memory file", "File too large")
        ended(p)


def stopping():
    """SIGTERM ends running streams with shutting_down and leaves no process behind."""
    with daemon() as d, Client(d.path) as c:
        i = long_answer(c, 500, credits=2)
        while c.next_of(i)[1] != "tokens":
            pass
        worker = c.call("status")["worker_pid"]
        d.process.terminate()
        expect("shutting_down", lambda: [None for _ in c.events(i)])
        assert d.process.wait(60) == 0
        until("the worker is gone", lambda: not os.path.exists(f"/proc/{worker}"))
        # For the check at the end of the test:
        d2 = Daemon(HEARTHD, str(d.home), "--model-dir", str(d.models))
        d.process, d.log = d2.process, d2.log


def a_killed_daemon_takes_its_worker_along():
    """kill -9 of the daemon: the worker does not stay."""
    with private_dir() as home:
        d = Daemon(HEARTHD, home, "--model-dir", str(MODELS))
        with Client(d.path) as c:
            c.call("load", {"model": "llama-q4_0"})
            worker = c.call("status")["worker_pid"]
        d.process.kill()
        d.process.wait()
        until("the worker is gone", lambda: not os.path.exists(f"/proc/{worker}") or "Z" in open(f"/proc/{worker}/stat").read().split()[2])
        d.log.close()


def configuration():
    """hearth.conf: comments, units, per-model sections; what it says holds."""
    config = """
# a comment
[daemon]
log_level = warning
host_budget = 1 GiB
[worker]
threads = 1
[models]
context = 300
slots = 3
[model tiny]
slots = 2
"""
    with daemon(config=config, models=("tiny",)) as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "other.gguf")
        tiny, other = (c.call("load", {"model": m}) for m in ("tiny", "other"))
        assert (tiny["n_ctx"], tiny["slots"]) == (300, 2) and (other["n_ctx"], other["slots"]) == (300, 3)
        status = c.call("status")
        assert status["host_budget"] == 1 << 30 and "1 thread" in status["device"], status


sys.exit(run_tests([default_place, born_with_its_mode, system_mode, stale_socket, two_at_once, activation, standard_files_are_closed, other_limits, stopping,
                    a_killed_daemon_takes_its_worker_along, configuration]))
