# SPDX-License-Identifier: Apache-2.0
"""As much of a service manager as the fd store needs: keeps what a daemon hands over, gives it to the next one."""
import array
import fcntl
import os
import socket
import subprocess
import threading
import time

from harness import environment
from pyclient import Client, Closed, RemoteError

SEALS = 0xF  # SEAL, SHRINK, GROW, WRITE
F_ADD_SEALS, F_GET_SEALS = 1033, 1034


class Manager:
    def __init__(self, home, hearthd, *arguments):
        self.home, self.argv, self.fds, self.removed, self.process = str(home), [hearthd, "--user", *arguments], {}, [], None
        os.makedirs(f"{home}/hearth", mode=0o700, exist_ok=True)
        self.path, self.messages, self.env = f"{home}/hearth/hearth.sock", "", {}
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(f"{home}/notify")
        self.lock = threading.Lock()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(64 * 4), socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
            fds = array.array("i")
            for _, _, blob in ancillary:
                fds.frombytes(blob[: len(blob) - len(blob) % 4])
            lines = data.decode().split("\n")
            name = next((l[7:] for l in lines if l.startswith("FDNAME=")), "stored")
            with self.lock:
                if "FDSTOREREMOVE=1" in lines:
                    self.removed.append(name)
                    for fd in self.fds.pop(name, []):
                        os.close(fd)
                elif "FDSTORE=1" in lines:
                    self.fds.setdefault(name, []).extend(fds)
                    continue
            for fd in fds:
                os.close(fd)

    def start(self):
        """The daemon, with what is stored as descriptors 3 and up."""
        with self.lock:
            given = [(name, fd) for name, fds in self.fds.items() for fd in fds]

        def arrange():
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for _, fd in given]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)  # inheritable

        env = dict(environment(self.home), NOTIFY_SOCKET=f"{self.home}/notify", **self.env)
        if given:
            env.update(LISTEN_FDS=str(len(given)), LISTEN_FDNAMES=":".join(n for n, _ in given))
        self.log = open(f"{self.home}/hearthd.log", "w+b")
        self.process = subprocess.Popen(["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *self.argv, "--socket", self.path], env=env, close_fds=False,
                                        preexec_fn=arrange, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 20
        while True:
            try:
                Client(self.path).close()
                return self
            except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError, Closed, RemoteError):
                if self.process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"hearthd did not start:\n{self.text()}")
                time.sleep(0.01)

    def text(self):
        with open(f"{self.home}/hearthd.log", errors="replace") as f:
            return f.read()

    def end(self, crash=False):
        self.process.kill() if crash else self.process.terminate()
        code = self.process.wait(60)
        self.log.close()
        assert code == (-9 if crash else 0), (code, self.text())
        self.messages += self.text()

    def replace(self, name, change, seal=True):
        """Another memory file in place of a stored one: change(bytes) -> bytes."""
        with self.lock:
            old = self.fds[name][0]
            fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            data = change(os.pread(old, os.fstat(old).st_size, 0))
            at = 0
            while at < len(data):
                at += os.write(fd, data[at:])
            if seal:
                fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
            os.close(old)
            self.fds[name] = [fd]

    def copies(self):
        with self.lock:
            return sorted(n for n in self.fds if n.startswith("hearth-copy-"))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        if kind:
            print("--- the daemon's log ---\n" + self.messages + self.text() + "---")
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
