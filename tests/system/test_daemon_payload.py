# SPDX-License-Identifier: Apache-2.0
"""A large text beside its message, in a sealed memfd: what is taken, and what is refused."""
import fcntl
import signal

from daemonlib import *

SEAL, SHRINK, GROW, WRITE = 1, 2, 4, 8
ADD_SEALS, GET_SEALS = 1033, 1034


def memfd(data, seals=SEAL | SHRINK | GROW | WRITE, size=None):
    fd = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if size is not None:
        os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


def ask(c, fd, *more_fds, **fields):
    """The answer to a generation whose prompt comes in fd, which is closed afterwards."""
    try:
        i = c.start("generate", {"model": "tiny", "payload": "prompt", "max_tokens": 6, "temperature": 0, **NO_END, **fields},
                    [*more_fds, *([fd] if fd is not None else [])])
        tokens = []
        for _, m, f in c.events(i):
            tokens += ids(f.get("ids", b"")) if m == "tokens" else []
        return tokens, f
    finally:
        if fd is not None:
            os.close(fd)


def taken():
    """The same answer as with the text in the message; also with a model that is passed as an open file."""
    with daemon() as d, Client(d.path) as c:
        text = "the cat and the dog sat on the mat. "
        want = c.generate(model="tiny", prompt=text, max_tokens=6, temperature=0, **NO_END)
        before = fds_of(d.process.pid), fds_of(c.call("status")["worker_pid"])
        assert ask(c, memfd(text.encode()))[0] == want[1]
        # Without F_SEAL_SEAL, too: what counts can't be taken off again.
        assert ask(c, memfd(text.encode(), SHRINK | GROW | WRITE))[0] == want[1]
        with open(TINY, "rb") as f:
            assert ask(c, memfd(text.encode()), f.fileno(), model="./t.gguf", n_fds=1)[0] == want[1]
        large = text.encode() * 60000  # 2 MB: more than the context, and counted only so far
        e = expect("prompt_too_long", lambda: ask(c, memfd(large)), "at least")
        assert e.fields["needed"] > e.fields["available"] > 0, e.fields
        until("nothing was left open", lambda: (fds_of(d.process.pid), fds_of(c.call("status")["worker_pid"])) == before)


def refused():
    """No memfd, one that could still change, one of no or too large a size, a field that is none: each is told, nothing is kept."""
    with daemon() as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        before = fds_of(d.process.pid)
        all_seals = SHRINK | GROW | WRITE
        for left, word in ((0, "writing shrinking growing"), (WRITE, "shrinking growing"), (SHRINK | GROW, "writing"), (WRITE | GROW, "shrinking"),
                           (WRITE | SHRINK, "growing"), (16 | SHRINK | GROW, "writing")):  # F_SEAL_FUTURE_WRITE leaves mappings that exist
            assert left & all_seals != all_seals
            expect("bad_request", lambda: ask(c, memfd(b"x", left)), f"not sealed against {word}")
        with open(d.models / "tiny.gguf", "rb") as f:
            expect("bad_request", lambda: ask(c, os.dup(f.fileno())), "no memfd")
        for fd in os.pipe():
            expect("bad_request", lambda: ask(c, fd), "no memfd")
        expect("bad_request", lambda: ask(c, memfd(b"")), "0 bytes")
        e = expect("too_large", lambda: ask(c, memfd(b"x", size=(64 << 20) + 1)), str(64 << 20))
        assert e.fields["available"] == 64 << 20
        expect("bad_utf8", lambda: ask(c, memfd(b"a\xff")), "byte 0xff at offset 1")
        for name in ("temperature", "prompt_ids", "model", "nonsense", "stop"):
            expect("bad_request", lambda: ask(c, memfd(b"x"), payload=name), name, "no text field")
        expect("bad_request", lambda: ask(c, memfd(b"x"), prompt="y"), "prompt", "too")
        expect("bad_request", lambda: ask(c, None), "payload names a text", "0 open files")
        expect("bad_request", lambda: ask(c, None, payload="nonsense"), "payload names generate.nonsense")
        expect("bad_request", lambda: ask(c, memfd(b"x"), n_fds=1), "1 open files")
        # A sealed one can't be shrunk under the daemon: the kernel refuses it.
        fd = memfd(b"the cat")
        try:
            os.ftruncate(fd, 1)
            raise AssertionError("the seal does not hold")
        except PermissionError:
            pass
        assert len(ask(c, fd)[0]) == 6
        until("nothing was left open", lambda: fds_of(d.process.pid) == before)
        assert c.call("status")["clients"] == 1


def others_go_on():
    """Texts of the largest size, several at once: they end early, and others' requests are answered meanwhile; who hangs up is noticed."""
    with daemon() as d, Client(d.path) as c, Client(d.path) as other:
        want = other.call("tokenize", {"model": "tiny", "text": "hi"})["ids"]
        nuls = memfd(b"\0" * (64 << 20))
        asks = [c.start("generate", {"model": "tiny", "payload": "prompt"}, [nuls]) for _ in range(3)]
        for _ in range(5):
            assert other.call("tokenize", {"model": "tiny", "text": "hi"})["ids"] == want
        for i in asks:
            e = expect("prompt_too_long", lambda: list(c.events(i)), "at least")
            assert e.fields["needed"] > e.fields["available"]
        gone = Client(d.path)
        with gone:
            for _ in range(4):
                gone.start("generate", {"model": "tiny", "payload": "prompt"}, [nuls])
        os.close(nuls)
        until("nothing is left of who hung up", lambda: (s := other.call("status"))["clients"] == 2 and not other.call("ps").get("requests"))


def counted():
    """Its bytes are the user's: bytes_per_user holds for them, and they are given back."""
    with daemon(config="[limits]\nbytes_per_user = 3M\n") as d, Client(d.path) as c:
        for _ in range(3):
            expect("quota", lambda: ask(c, memfd(b"x" * (4 << 20))), "bytes_per_user")
            expect("prompt_too_long", lambda: ask(c, memfd(b"x " * (1 << 20))))


def read_again():
    """The worker dies, or the request is parked: its text is read again."""
    config = "[limits]\nyield_timeout = 1s\n[models]\nslots = 1\n"
    with daemon(config=config) as d, Client(d.path) as c, Client(d.path) as other:
        text = b"the cat and the dog"
        want = ask(c, memfd(text), max_tokens=60)[0]
        fd = memfd(text)
        i = c.start("generate", {"model": "tiny", "payload": "prompt", "max_tokens": 60, "temperature": 0, "credits": 9, **NO_END}, [fd])
        os.close(fd)
        got = []
        while len(got) < 9:
            _, m, f = c.next_of(i)
            got += ids(f.get("ids", b"")) if m == "tokens" else []
        other.generate(model="tiny", prompt="x", max_tokens=2, **NO_END)  # parks it
        pid = other.call("status")["worker_pid"]
        os.kill(pid, signal.SIGKILL)
        until("another worker serves", lambda: (s := other.call("status"))["worker"] == "ready" and s["worker_pid"] not in (0, pid))
        c.call("credit", {"request": i, "n": 100})
        for _, m, f in c.events(i):
            got += ids(f.get("ids", b"")) if m == "tokens" else []
        assert got == want


sys.exit(run_tests([taken, refused, others_go_on, counted, read_again]))
