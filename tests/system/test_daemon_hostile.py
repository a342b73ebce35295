# SPDX-License-Identifier: Apache-2.0
"""Clients that break rules: each gets a typed error or is cut off, and nobody else notices."""
import array
import random
import resource
import select
import socket
import subprocess

import msgpack

from daemonlib import *
from pyclient import pack


def raw(d):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(d.path)
    s.settimeout(30)
    return s


def hello(s):
    s.sendall(pack(REQUEST, 1, "hello", {"version": 1}))


def read_all(s):
    """Until the daemon closes."""
    data = b""
    try:
        while True:
            got = s.recv(65536)
            if not got:
                return data
            data += got
    except ConnectionResetError:
        return data


def frames(data):
    out = []
    while data:
        n = struct.unpack("<I", data[:4])[0]
        out.append(msgpack.unpackb(data[4 : 4 + n], raw=False))
        data = data[4 + n :]
    return out


@contextlib.contextmanager
def bystander(d):
    """A stream that runs meanwhile and must come out as if alone. The daemon's fds and memory are as before at the end."""
    with Client(d.path) as c:
        want = c.generate(model="tiny", prompt="the cat", max_tokens=150, temperature=0.0, **NO_END)[1]
        fds, rss = len(fds_of(d.process.pid)), rss_kib(d.process.pid)
        i = long_answer(c, 150, credits=10)
        got = []

        def read(n):
            while len(got) < n:
                _, m, f = c.next_of(i)
                got.extend(ids(f.get("ids", b"")) if m == "tokens" else [])

        def go_on():
            """In the middle of it all: one more token, and it comes."""
            if len(got) < 140:
                c.call("credit", {"request": i, "n": 1})
                read(len(got) + 1)

        read(10)
        c.go_on = go_on
        yield c
        c.call("credit", {"request": i, "n": 1000})
        for _, m, f in c.events(i):
            got += ids(f.get("ids", b"")) if m == "tokens" else []
        assert got == want, "a bystander's text changed"
        until("all strangers are gone", lambda: c.call("status")["clients"] == 1)
        until("no fd leaks", lambda: len(fds_of(d.process.pid)) <= fds)
        assert SANITIZED or rss_kib(d.process.pid) < rss + 6 * 1024, f"memory grew from {rss} to {rss_kib(d.process.pid)} KiB"


def garbage():
    """Bytes of no protocol at all: an error about the connection, then the end."""
    with daemon() as d, bystander(d):
        rng = random.Random(1)
        for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 64, b"\x05\0\0\0\xdd\xff\xff\xff\xff", b"\x05\0\0\0hello",
                     *(struct.pack("<I", 40) + rng.randbytes(40) for _ in range(50))):
            s = raw(d)
            s.sendall(data)
            got = frames(read_all(s))
            assert len(got) == 1 and got[0][0] == ERROR and got[0][1] == 0, (data, got)
            assert got[0][3]["code"] in ("protocol", "too_large", "unknown_method", "bad_request"), got
            s.close()


def oversized_frames():
    """A claimed length over the limit is refused at once and costs no memory; many claims within it neither."""
    with daemon() as d, bystander(d):
        s = raw(d)
        hello(s)
        s.sendall(struct.pack("<I", 0xFFFFFFFF))
        got = frames(read_all(s))
        assert got[-1][3]["code"] == "too_large" and got[-1][3]["needed"] == 0xFFFFFFFF, got
        s.close()
        crowd = [raw(d) for _ in range(50)]
        for s in crowd:
            hello(s)
            s.sendall(struct.pack("<I", 16 << 20) + b"\x94")
        for s in crowd:
            s.close()


def half_frames():
    """A frame that comes byte by byte is served; one that ends in the middle is not."""
    with daemon() as d, bystander(d):
        s = raw(d)
        for b in pack(REQUEST, 1, "hello", {"version": 1}) + pack(REQUEST, 2, "ping", {}):
            s.sendall(bytes([b]))
        got = b""
        while got.count(b"ping") < 1:
            got += s.recv(4096)
        s.close()
        for cut in (1, 3, 4, 5, 20):
            s = raw(d)
            s.sendall(pack(REQUEST, 1, "hello", {"version": 1, "client": "a client with a name"})[:cut])
            s.shutdown(socket.SHUT_WR)
            assert all(f[0] == ERROR for f in frames(read_all(s)))
            s.close()


def wrong_versions():
    """Another protocol version is refused with both numbers; and nothing is served before hello."""
    with daemon() as d, bystander(d):
        for version in (0, 2, 4294967295):
            c = Client(d.path, greet=False)
            e = expect("version", lambda: c.call("hello", {"version": version}), version, "1")
            assert e.fields.get("needed") == 1
            try:
                c.call("ping")
                raise AssertionError("served after a refused hello")
            except (Closed, BrokenPipeError, ConnectionResetError):
                pass
            c.close()
        c = Client(d.path, greet=False)
        expect("protocol", lambda: c.call("ping"), "hello")
        c.close()


def id_zero():
    """A request with id 0, whose answer could not be told from the connection's own, closes it; also as hello."""
    with daemon() as d, bystander(d):
        for greet, method, fields in ((True, "generate", {"model": "tiny", "prompt": "x"}), (False, "hello", {"version": 1})):
            c = Client(d.path, greet=greet)
            c.send(REQUEST, 0, method, fields)
            kind, ident, _, f = c.receive()
            assert (kind, ident, f["code"]) == (ERROR, 0, "protocol") and "id" in f["message"], (kind, ident, f)
            try:
                c.receive()
                raise AssertionError("the connection goes on after a request with id 0")
            except Closed:
                pass
            c.close()


def wrong_messages():
    """Well-framed messages that are wrong in themselves are answered, and the connection goes on."""
    with daemon() as d, bystander(d), Client(d.path) as c:
        expect("unknown_method", lambda: c.call("frobnicate"), "frobnicate")
        expect("bad_request", lambda: c.call("load", {}), "model")
        expect("bad_request", lambda: c.call("generate", {"model": "tiny", "prompt": 7}), "prompt")
        expect("bad_request", lambda: c.call("generate", {"model": "tiny", "prompt": "x", "temperature": -1.0}), "temperature")
        expect("bad_request", lambda: c.call("generate", {"model": "tiny", "prompt": "x", "kind": "sing"}), "kind", "sing")
        expect("bad_request", lambda: c.call("hello", {"version": 1}), "hello")
        expect("bad_request", lambda: c.call("generate", {"model": "tiny", "prompt": "x", "must": ["telepathy"]}), "telepathy")
        expect("bad_request", lambda: c.call("load", {"model": "x", "n_fds": 2}), "n_fds", "2")
        c.send(REPLY, 77, "ping", {})
        kind, ident, _, f = c.receive()
        assert (kind, ident, f["code"]) == (ERROR, 77, "bad_request"), f
        one = long_answer(c, 50, credits=1)
        c.send(REQUEST, one, "ping", {})  # whatever it asks: two answers of one id could not be told apart
        c.send(REQUEST, one, "generate", {"model": "tiny", "prompt": "x"})
        c.cancel(one)
        answers = []
        while len(answers) < 3:
            kind, ident, method, f = c.receive()
            if kind in (REPLY, ERROR):
                answers.append((kind, method, f.get("code", f.get("finish"))))
        assert sorted(answers) == [(REPLY, "generate", "cancelled")] + 2 * [(ERROR, "error", "bad_request")], answers
        assert c.call("ping") == {}


def bad_utf8_is_refused():
    """Text that is not UTF-8 is refused with the field's name; bytes as bin too."""
    with daemon() as d, bystander(d), Client(d.path) as c:
        body = msgpack.packb([REQUEST, 5, "generate", {"model": "tiny"}])
        bad = body.replace(b"\x81\xa5model", b"\x82\xa6prompt\xa3a\xff\xfe\xa5model")
        c.send_raw(struct.pack("<I", len(bad)) + bad)
        expect("bad_utf8", lambda: list(c.events(5)), "prompt")
        c.next_id = 6
        assert c.call("ping") == {}


def fds_nobody_asked_for():
    """Descriptors with messages that take none are closed, also hundreds of them."""
    with daemon() as d, bystander(d), Client(d.path) as c:
        null = os.open("/dev/null", os.O_RDONLY)
        for n in (1, 5, 100, 253):
            i = c.next_id
            c.next_id += 1
            data = pack(REQUEST, i, "ping", {})
            c.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * n))])
            assert list(c.events(i))[-1][0] == REPLY
        expect("model_not_found", lambda: c.call("load", {"model": "dev", "n_fds": 1}, [null]), "dev", "regular file")
        r, w = os.pipe()
        expect("model_not_found", lambda: c.call("load", {"model": "pipe", "n_fds": 1}, [r]), "pipe")
        expect("bad_request", lambda: c.call("load", {"model": "x", "n_fds": 3}, [r]), "n_fds")
        for fd in (null, r, w):
            os.close(fd)
        wr = os.open(d.models / "w.gguf", os.O_WRONLY | os.O_CREAT)
        expect("bad_request", lambda: c.call("load", {"model": "w", "n_fds": 1}, [wr]), "reading")
        os.close(wr)


def floods():
    """A hundred thousand pings nobody reads the answers of: that client is paused, and lets go on when it reads."""
    with daemon() as d, bystander(d) as c:
        s = raw(d)
        hello(s)
        ping, sent = pack(REQUEST, 9, "ping", {}) * 200, 0
        s.setblocking(False)
        stuck = 0
        while sent < 500 and stuck < 50:
            try:
                n = s.send(ping)
                sent, stuck = sent + n / len(ping), 0
            except BlockingIOError:
                stuck += 1
                c.call("ping")
        s.close()


def many_connections():
    """Ten thousand connects, most of them gone at once; five hundred idle ones cost little."""
    with daemon(config="[limits]\nconnections_per_user = 600\n") as d, bystander(d) as c:
        for n in range(10_000):
            raw(d).close()
            if n % 100 == 0:
                c.go_on()
        until("they are gone", lambda: c.call("status")["clients"] == 1)
        before = rss_kib(d.process.pid)
        idle = [Client(d.path) for _ in range(500)]
        each = (rss_kib(d.process.pid) - before) / 500
        print(f"      500 idle connections: {rss_kib(d.process.pid) - before} KiB")
        assert SANITIZED or each * 500 < 8192, f"{each} KiB per idle connection"
        more = []
        for _ in range(120):
            s = raw(d)
            more.append(s)
        refused = 0
        for s in more:
            with contextlib.suppress(BrokenPipeError):  # it may be closed already; the reason lies in the socket
                hello(s)
            f = frames(s.recv(65536))[0]
            refused += f[0] == ERROR and f[3]["code"] == "quota"
        assert refused == 120 - 99, refused
        for s in more:
            s.close()
        for i in idle:
            i.close()


def random_frames():
    """Valid frames in any order, mutated in bytes, cut, glued together: whatever comes, the daemon stays and serves the next."""
    with daemon(config="[limits]\nhello_timeout = 2s\n") as d, bystander(d) as c:
        rng = random.Random(7)
        seeds = [pack(REQUEST, 2, "ping", {}), pack(REQUEST, 3, "status", {}), pack(REQUEST, 4, "models", {}), pack(CANCEL, 3, "cancel", {}),
                 pack(REQUEST, 5, "generate", {"model": "tiny", "prompt": "x", "max_tokens": 3, "stop": ["a", "b"], "deadline_ms": 50}),
                 pack(REQUEST, 6, "load", {"model": "nothing"}), pack(REQUEST, 7, "tokenize", {"model": "tiny", "text": "abc"}),
                 pack(REQUEST, 8, "unload", {"model": "none"}), pack(REQUEST, 9, "credit", {"request": 5, "n": 3}),
                 pack(REQUEST, 10, "embed", {"model": "tiny", "texts": ["a"]}),
                 pack(REQUEST, 11, "resume", {"request": 1, "seed": 2, "ids": ids_blob([40, 41, 42]), "roles": ids_blob([1, 1, 1]), "identity": "0/f16/1/0/x/y",
                      "generate": pack(REQUEST, 1, "generate", {"model": "tiny", "prompt": "the", "max_tokens": 5, "credits": 2})[4:]}),
                 pack(REQUEST, 12, "hello", {"version": 1, "client": "again"}), pack(REQUEST, 13, "ps", {}), pack(REPLY, 5, "generate", {"finish": "stop"}),
                 pack(EVENT, 5, "tokens", {"text": "x"}), pack(ERROR, 5, "error", {"code": "internal", "message": "x"})]
        for _ in range(300):
            s = raw(d)
            s.settimeout(10)
            hello(s)
            try:
                for _ in range(rng.randrange(1, 6)):
                    data = bytearray(rng.choice(seeds))
                    for _ in range(rng.choice((0, 0, 1, 2, 8))):
                        at = rng.randrange(4 if rng.random() < 0.9 else 0, len(data))
                        data[at] = rng.randrange(256)
                    if rng.random() < 0.1:
                        data = data[: rng.randrange(len(data))]
                    if rng.random() < 0.1:
                        data += rng.choice(seeds)[: rng.randrange(40)]
                    s.sendall(data)
                select.select([s], [], [], 0.01)
            except (BrokenPipeError, ConnectionResetError):
                pass
            s.close()


def half_closed():
    """A client that says it will send no more is taken to be gone, whatever it asked; one that shuts its reading side too."""
    with daemon() as d, bystander(d) as c:
        for how in (socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR):
            for ask in (pack(REQUEST, 2, "ping", {}), pack(REQUEST, 2, "generate", {"model": "tiny", "prompt": "x", "max_tokens": 400, **NO_END}),
                        pack(REQUEST, 2, "models", {}), pack(REQUEST, 2, "load", {"model": "nothing"}), b"\x10\0\0\0half"):
                s = raw(d)
                hello(s)
                with contextlib.suppress(BrokenPipeError):
                    s.sendall(ask)
                    s.shutdown(how)
                c.go_on()
                if how == socket.SHUT_WR:
                    read_all(s)  # it ends
                s.close()
        until("their requests are ended", lambda: len(c.call("ps").get("requests", [])) == 1)


def never_reading():
    """Forty streams without end that nobody reads: each pauses itself, holds a bounded amount, and the others keep their pace."""
    with daemon(config="[models]\nslots = 48\ncontext = 512\n") as d, bystander(d) as c:
        silent, before = [], rss_kib(d.process.pid)
        for n in range(40):
            s = raw(d)
            hello(s)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(pack(REQUEST, 2, "generate", {"model": "tiny", "prompt": f"the cat {n}", "max_tokens": 480, "logprobs": 20, "temperature": 1.0, **NO_END}))
            silent.append(s)
            c.go_on()
        for _ in range(40):
            c.go_on()
        grown = rss_kib(d.process.pid) - before
        print(f"      40 streams that nobody reads: {grown} KiB")
        assert SANITIZED or grown < 40 * 512, f"{grown} KiB for 40 streams that nobody reads"
        for s in silent:
            s.close()


def out_of_order():
    """Cancels before their requests, credits for nobody, answers from a client, ids again and again, hello last."""
    with daemon() as d, bystander(d) as c, Client(d.path) as o:
        for n in range(60):
            for i in (5, 6, 7):
                o.send(CANCEL, i, "cancel", {})
                o.send(REQUEST, 900 + n, "credit", {"request": i, "n": 1})
            o.send(REQUEST, 5, "generate", {"model": "tiny", "prompt": "x", "max_tokens": 50, "credits": 1, **NO_END})
            o.send(REQUEST, 5, "generate", {"model": "tiny", "prompt": "x", "max_tokens": 50, "credits": 1, **NO_END})
            o.send(CANCEL, 5, "cancel", {})
            o.send(CANCEL, 5, "cancel", {})
            o.send(EVENT, 5, "tokens", {"text": "x"})
            o.send(REQUEST, 5, "unload", {"model": "tiny"})
            o.send(REQUEST, 6, "hello", {"version": 1})
            c.go_on()
        o.send(REQUEST, 77, "ping", {})
        seen = []
        while not seen or seen[-1][1] != 77:
            seen.append(o.receive())
        codes = {f.get("code") for k, _, _, f in seen if k == ERROR}
        assert codes <= {"bad_request", "busy"} and "bad_request" in codes, codes


def silence():
    """A connection that says nothing is closed after hello_timeout; one that has said hello may be silent."""
    with daemon(config="[limits]\nhello_timeout = 500ms\n") as d, Client(d.path) as c:
        s = raw(d)
        assert read_all(s) == b""
        assert c.call("ping") == {}


def send_fds(s, data, n):
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * n))])
    finally:
        os.close(null)


def descriptors_unclaimed():
    """Half messages, each with 128 open files: a user's limit holds, what is over it is closed at once, and so is what is never completed."""
    config = "[limits]\nfiles_per_user = 300\nframe_timeout = 3s\n"
    with daemon(config=config) as d, bystander(d) as c:
        before, half = len(fds_of(d.process.pid)), pack(REQUEST, 2, "generate", {"model": "tiny", "prompt": "x" * 100, "n_fds": 128})[:20]
        crowd, most = [], 0
        for _ in range(40):
            s = raw(d)
            hello(s)
            send_fds(s, half, 128)
            crowd.append(s)
            c.go_on()
            most = max(most, len(fds_of(d.process.pid)))
        assert before + 128 <= most <= before + 40 + 300, (before, most)
        for s in crowd:
            last = frames(read_all(s))[-1]
            assert last[0] == ERROR and last[1] == 0, last
            assert last[3]["code"] == "protocol" and "frame_timeout" in last[3]["message"], last
        until("nothing of theirs is open", lambda: len(fds_of(d.process.pid)) <= before)
        for s in crowd:
            s.close()
        # Whole messages have the same limit, and their descriptors count no longer than they are held.
        with Client(d.path) as o, open(d.models / "tiny.gguf", "rb") as f:
            o.call("ping")
            for _ in range(10):
                expect("model_invalid", lambda: o.call("load", {"model": "many", "n_fds": 128}, [f.fileno()] * 128))
            # More than a message may bring never comes to be open here.
            expect("too_large", lambda: o.call("load", {"model": "many", "n_fds": 128}, [f.fileno()] * 200), "too many")
    with daemon(config="[limits]\nfiles_per_user = 20\n") as d, bystander(d) as c, Client(d.path) as o, open(TINY, "rb") as f:
        for _ in range(5):
            expect("quota", lambda: o.call("load", {"model": "x", "n_fds": 21}, [f.fileno()] * 21), "files_per_user", "21")
            expect("model_invalid", lambda: o.call("load", {"model": "x", "n_fds": 20}, [f.fileno()] * 20))


def half_sent():
    """A message that is begun and never ended closes its connection after frame_timeout, also one that trickles; others go on."""
    with daemon(config="[limits]\nframe_timeout = 2s\n") as d, bystander(d) as c:
        for begun in (b"\x50", struct.pack("<I", 1 << 20) + b"\x94\x00"):
            s = raw(d)
            hello(s)
            s.sendall(begun)
            got = frames(read_all(s))[-1]
            assert got[0] == ERROR and got[1] == 0 and got[3]["code"] == "protocol" and "frame_timeout" in got[3]["message"], got
            s.close()
        s = raw(d)
        hello(s)
        s.sendall(struct.pack("<I", 1 << 20))
        s.settimeout(0.2)
        data = b""
        for _ in range(300):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                s.sendall(b"\x94")
            try:
                got = s.recv(65536)
            except (TimeoutError, ConnectionResetError):  # reset: it left bytes unread; what it said comes after that
                continue
            if not got:
                break
            data += got
        assert frames(data)[-1][3]["code"] == "protocol", frames(data)
        s.close()
        assert c.call("ping") == {}


def no_descriptor_left():
    """Without a free descriptor connections wait in the backlog: the log says so once, nobody spins, and they are served afterwards."""
    with daemon() as d, Client(d.path) as c:
        pid = d.process.pid
        c.generate(model="tiny", prompt="x", max_tokens=3)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 1 << 20), "the soft limit is not raised"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(fds_of(pid)), hard))
        late = [raw(d) for _ in range(5)]
        for s in late:
            hello(s)
        waits = lambda: d.messages().count("new connections wait")
        until("it says that they wait", waits)
        ticks = lambda: int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11])
        was = ticks()
        for _ in range(20):
            assert c.call("ping") == {}
            time.sleep(0.1)
        assert waits() == 1, d.messages()
        assert ticks() - was < 50, "it spins"  # hundredths of a second of processor time in two seconds
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for s in late:
            assert frames(s.recv(65536))[0][0] == REPLY
            s.close()
        until("it says that they are taken", lambda: d.messages().count("are taken again") == 1)
        assert waits() == 1, d.messages()


def too_few_descriptors():
    """With a limit of open files that is too low to serve it does not start, and says what is needed."""
    with private_dir() as home:
        got = subprocess.run([HEARTHD, "--user", "--model-dir", home], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "XDG_RUNTIME_DIR": home},
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)))
    assert got.returncode == 75 and all(w in got.stderr for w in ("is 100", "192", "LimitNOFILE")), (got.returncode, got.stderr)


def socket_deleted():
    """The socket's file under a live daemon: deleted, with its directory, it is made again; what else lies there is left alone."""
    with daemon() as d, Client(d.path) as c:
        path = pathlib.Path(d.path)
        found = lambda: path.is_socket() and connect(d)
        mode = path.stat().st_mode
        path.unlink()
        with until("it is made again", found) as o:
            assert o.call("ping") == {} and c.call("ping") == {}
        assert path.stat().st_mode == mode
        assert d.messages().count("was deleted") == 1
        fds = len(fds_of(d.process.pid))
        shutil.rmtree(path.parent)
        with until("with its directory", found):
            pass
        until("no fd leaks", lambda: len(fds_of(d.process.pid)) <= fds)
        second = subprocess.run([HEARTHD, "--user", "--model-dir", str(d.models)], capture_output=True, text=True, timeout=60,
                                env={**os.environ, "XDG_RUNTIME_DIR": str(d.home)})
        assert second.returncode == 75 and f"pid {d.process.pid}" in second.stderr, second
        path.unlink()
        path.write_text("somebody's")
        until("it says so", lambda: "something else lies at" in d.messages())
        until("a few turns more", lambda: c.call("ping") == {} and (time.sleep(2.5) or True))
        assert d.messages().count("something else lies at") == 1 and path.read_text() == "somebody's"
        path.unlink()
        with until("it is free again", found):
            pass


def quotas():
    """Requests and bytes of a user are limited; the refusal names the limit and its key."""
    config = "[limits]\nrequests_per_user = 3\nbytes_per_user = 300K\n"
    with daemon(config=config) as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        running = [long_answer(c, 500, credits=1) for _ in range(3)]
        expect("quota", lambda: c.generate(model="tiny", prompt="x"), "3 requests", "requests_per_user")
        for i in running:
            c.cancel(i)
            list(c.events(i))
        expect("quota", lambda: c.generate(model="tiny", prompt="x" * 250_000), "bytes_per_user")
        assert c.call("ping") == {}


sys.exit(run_tests([garbage, oversized_frames, half_frames, wrong_versions, id_zero, wrong_messages, bad_utf8_is_refused, fds_nobody_asked_for,
                    floods, many_connections, random_frames, half_closed, never_reading, out_of_order, silence, descriptors_unclaimed,
                    half_sent, no_descriptor_left, too_few_descriptors, socket_deleted, quotas]))
