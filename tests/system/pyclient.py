# SPDX-License-Identifier: Apache-2.0
"""A client of the daemon, written from ipc/PROTOCOL.md alone, with msgpack.

    c = Client(path)                      # greets
    for kind, method, fields in c.stream("generate", {"prompt": "Hi"}): ...
    reply = c.call("status")
    r = c.start("generate", {...}); c.cancel(r)

An error answer raises RemoteError (code, message, fields).
"""
import array
import os
import socket
import struct
import time

import msgpack

REQUEST, REPLY, EVENT, ERROR, CANCEL = range(5)
VERSION = 1


class RemoteError(Exception):
    def __init__(self, fields):
        super().__init__(f"{fields.get('code')}: {fields.get('message')}")
        self.code, self.message, self.fields = fields.get("code"), fields.get("message"), fields


class Closed(Exception):
    """The other side closed the connection."""


def pack(kind, ident, method, fields):
    body = msgpack.packb([kind, ident, method, fields], use_bin_type=True)
    return struct.pack("<I", len(body)) + body


def ids(blob):
    return list(struct.unpack(f"<{len(blob) // 4}I", blob))


def floats(blob):
    return list(struct.unpack(f"<{len(blob) // 4}f", blob))


class Stream:
    """Frames over a connected socket; also used by the tests' scripted daemon."""

    def __init__(self, sock):
        self.sock, self.buffer, self.fds = sock, b"", []

    def send(self, kind, ident, method, fields, fds=()):
        data = pack(kind, ident, method, fields)
        if fds:
            n = self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            data = data[n:]
        self.sock.sendall(data)

    def send_raw(self, data):
        self.sock.sendall(data)

    def receive(self, timeout=60):
        """The next message as (kind, id, method, fields). Raises Closed, or TimeoutError."""
        end = time.monotonic() + timeout
        while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack("<I", self.buffer[:4])[0]:
            self.sock.settimeout(max(0.001, end - time.monotonic()))
            try:
                data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(128 * 4))
            except ConnectionResetError as e:
                raise Closed from e
            for level, kind, blob in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    got = array.array("i")
                    got.frombytes(blob[: len(blob) - len(blob) % 4])
                    self.fds += list(got)
            if not data:
                raise Closed
            self.buffer += data
        n = struct.unpack("<I", self.buffer[:4])[0]
        body, self.buffer = self.buffer[4 : 4 + n], self.buffer[4 + n :]
        return msgpack.unpackb(body, raw=False, strict_map_key=True)

    def close(self):
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Client(Stream):
    def __init__(self, path, version=VERSION, name="pyclient", greet=True):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        super().__init__(sock)
        self.next_id, self.pending = 1, {}
        if greet:
            self.hello = self.call("hello", {"version": version, "client": name})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, method, fields=None, fds=()):
        ident, self.next_id = self.next_id, self.next_id + 1
        self.send(REQUEST, ident, method, fields or {}, fds)
        return ident

    def cancel(self, ident):
        self.send(CANCEL, ident, "cancel", {})

    def next_of(self, ident, timeout=60):
        """The next message of one request; those of others are kept for their own readers."""
        queue = self.pending.setdefault(ident, [])
        while not queue:
            kind, got, method, fields = self.receive(timeout)
            if got == 0 and kind == ERROR:
                raise RemoteError(fields)
            self.pending.setdefault(got, []).append((kind, method, fields))
        return queue.pop(0)

    def events(self, ident, timeout=60):
        """(kind, method, fields) of one request, the reply last."""
        while True:
            kind, method, fields = self.next_of(ident, timeout)
            if kind == ERROR:
                raise RemoteError(fields)
            yield kind, method, fields
            if kind == REPLY:
                return

    def stream(self, method, fields=None, fds=(), timeout=60):
        yield from self.events(self.start(method, fields, fds), timeout)

    def call(self, method, fields=None, fds=(), timeout=60):
        for kind, _, got in self.stream(method, fields, fds, timeout):
            if kind == REPLY:
                return got
        raise AssertionError("unreachable: a stream ends with a reply or an error")

    def generate(self, timeout=120, **fields):
        """The whole answer: (text, ids, reply)."""
        text, tokens, reply = "", [], None
        for kind, method, got in self.stream("generate", fields, timeout=timeout):
            if kind == EVENT and method == "tokens":
                text += got.get("text", "")
                tokens += ids(got.get("ids", b""))
            elif kind == REPLY:
                reply = got
        return text, tokens, reply
