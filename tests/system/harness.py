# SPDX-License-Identifier: Apache-2.0
"""What the system tests share: private directories, a scripted daemon, a real one, the CLI."""
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from pyclient import CANCEL, ERROR, EVENT, REPLY, REQUEST, Client, Closed, Stream

SKIP = 77


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(SKIP)


def private_dir():
    """Short, since a socket's path may have 107 bytes; gone when the test ends."""
    return tempfile.TemporaryDirectory(prefix="hth-")


def environment(home):
    """Nothing of the caller's own set-up reaches the programs under test."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "HEARTH_"))}
    env.update(HOME=str(home), XDG_RUNTIME_DIR=str(home), XDG_STATE_HOME=f"{home}/state", XDG_DATA_HOME=f"{home}/data",
               XDG_CONFIG_HOME=f"{home}/config", TERM="xterm", LC_ALL="C.UTF-8")
    return env


class ScriptedDaemon(threading.Thread):
    """Greets, then hands each request to handler(stream, ident, method, fields). One connection after the other."""

    def __init__(self, path, handler, greeting=None):
        super().__init__(daemon=True)
        self.handler, self.greeting, self.requests, self.failure = handler, greeting, [], None
        self.gone = threading.Event()  # the last connection was closed by the client
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(8)
        self.start()

    def run(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            stream = Stream(sock)
            try:
                self.serve(stream)
            except (Closed, BrokenPipeError, ConnectionResetError):
                self.gone.set()
            except Exception as e:  # shown by the test that waits for it
                self.failure = e
            stream.close()

    def serve(self, stream):
        kind, ident, method, fields = stream.receive()
        assert (kind, method) == (REQUEST, "hello"), (kind, method)
        self.client_name = fields.get("client")
        if self.greeting:
            self.greeting(stream, ident)
            return
        stream.send(REPLY, ident, "hello", {"version": 1, "daemon": "test", "session": 1})
        while True:
            kind, ident, method, fields = stream.receive()
            self.requests.append((kind, method, fields))
            self.handler(stream, ident, method, fields)

    def stop(self):
        # A thread left in accept() would try again on the same number after a signal, when it is another test's socket.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.join(20)
        self.listener.close()


class Daemon:
    """A real hearthd of its own."""

    def __init__(self, hearthd, home, *arguments, worker=None):
        self.path = f"{home}/hearth/hearth.sock"
        self.env = environment(home)
        self.log = open(f"{home}/hearthd.log", "w+b")
        os.makedirs(f"{home}/hearth", mode=0o700, exist_ok=True)
        self.process = subprocess.Popen([hearthd, *([] if "--system" in arguments else ["--user"]), "--socket", self.path, *arguments], env=self.env,
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 20
        while True:
            try:
                Client(self.path).close()
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if self.process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"hearthd did not start:\n{self.messages()}")
                time.sleep(0.01)

    def messages(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Terminal:
    """A program on a terminal of its own; output is what a person would see."""

    def __init__(self, argv, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], argv, env)
        self.output = ""

    def expect(self, text, timeout=20):
        end = time.monotonic() + timeout
        while text not in self.output:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"the terminal does not show {text!r}:\n{self.output}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"the program ended without showing {text!r}:\n{self.output}")
            self.output += data.decode(errors="replace")
        before, _, self.output = self.output.partition(text)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, timeout=20, again=None):
        """Exit status; what it still wrote is added to output. 'again' is typed once more every few seconds: a terminal that is
        just being switched to another mode may lose a key."""
        end = time.monotonic() + timeout
        retry = time.monotonic() + 4
        while True:
            if again and time.monotonic() > retry:
                retry += 4
                try:
                    self.type(again)
                except OSError:
                    pass
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.output += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                # What it wrote between the last read and its end.
                while select.select([self.fd], [], [], 0)[0]:
                    try:
                        data = os.read(self.fd, 65536)
                    except OSError:
                        break
                    if not data:
                        break
                    self.output += data.decode(errors="replace")
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                os.close(self.fd)
                raise AssertionError(f"the program does not end:\n{self.output}")


def run_tests(cases):
    """Runs functions; names, outcomes and failures are printed. Exit status. HEARTH_TEST_SHARE=K/N: every N-th of them, from the K-th on."""
    import traceback

    share, shares = map(int, os.environ.get("HEARTH_TEST_SHARE", "1/1").split("/"))
    cases = cases[share - 1 :: shares]
    if share < 1 or not cases:
        print("FAIL  no test is among these")
        return 1
    failed = skipped = 0
    for case in cases:
        try:
            case()
            print(f"ok    {case.__name__}")
        except ModuleNotFoundError as x:  # a machine without tests/requirements.txt
            skipped += 1
            print(f"skip  {case.__name__}: {x}")
        except Exception:
            failed += 1
            print(f"FAIL  {case.__name__}: {case.__doc__ or ''}\n{traceback.format_exc()}")
        sys.stdout.flush()
    print(f"{len(cases) - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0
