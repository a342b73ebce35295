# SPDX-License-Identifier: Apache-2.0
"""What a restart keeps and what it refuses: the fd store, played by fdstore.py. (test_systemd.py has the real one.)"""
import random
import re
import socket

from daemonlib import *
from fdstore import Manager

STATE = "hearth-state"


@contextlib.contextmanager
def managed(config=""):
    with private_dir() as home:
        where = pathlib.Path(home) / "models"
        where.mkdir()
        shutil.copy(TINY, where / "tiny.gguf")
        conf = pathlib.Path(home) / "hearth.conf"
        conf.write_text(on_backend(config) or "# the defaults\n")
        with Manager(home, HEARTHD, "--model-dir", str(where), "--config", str(conf)) as m:
            m.models = where
            yield m


def stored(m, n=1):
    """The copies, once n of them and their description are handed over."""
    until("the copies are stored", lambda: len(m.copies()) == n and m.fds.get(STATE))
    time.sleep(0.05)  # the description follows each of them
    return m.copies()


def answer(c, **more):
    return c.generate(model="tiny", prompt="the cat", max_tokens=30, temperature=0.0, **{**NO_END, **more})


def everything_comes_back():
    """After a crash and after a stop: copies, load profile, pin, default model; no byte of a file is read."""
    with managed() as m:
        m.start()
        with Client(m.path) as c:
            c.call("load", {"model": "tiny", "n_ctx": 300, "slots": 3, "kv": "q8_0", "pin": True})
            want = answer(c)
        stored(m)
        for crash in (True, False, True):
            m.end(crash)
            m.start()
            with Client(m.path) as c:
                text, tokens, reply = c.generate(prompt="the cat", max_tokens=30, temperature=0.0, **NO_END)  # the default model
                assert tokens == want[1] and text == want[0], "another profile?"
                model = c.call("models")["models"][0]
                assert (model["n_ctx"], model["slots"], model["pinned"]) == (300, 3, True), model
                seen = metrics(c)
                assert seen["bytes_read"] == 0 and seen["fills"] == 0 and seen["loads"] == 1, seen
                assert m.copies() == stored(m)
        with Client(m.path) as c:
            c.call("unload", {"model": "tiny"})
            until("the copy is given up", lambda: not m.copies())
            assert c.call("status").get("host_bytes", 0) == 0


def a_pinned_copy_is_not_dropped():
    """Idle time ends the stay of a copy that nobody uses after a restart; of a pinned one it does not."""
    for pin in (False, True):
        with managed("[models]\nidle_timeout = 1200ms\n") as m:
            m.start()
            with Client(m.path) as c:
                c.call("load", {"model": "tiny", "pin": pin})
            stored(m)
            m.end(crash=True)
            m.start()
            with Client(m.path) as c:
                held = lambda: c.call("status").get("host_bytes", 0)
                assert held() > 0
                if not pin:
                    until("it is dropped", lambda: held() == 0 and not m.copies())
                else:
                    time.sleep(3)
                    assert held() > 0 and m.copies()


def another_layout_is_read_again():
    """A copy of another layout version, for another backend, of an architecture that this build does not know, or one whose manifest is
    damaged: refused, the file is read again, and it is said."""
    rng = random.Random(3)
    # A build that knows the other backend also sees that its tensors are not laid out for it.
    for what, change in (("layout version 77", lambda b: b[:8] + struct.pack("<I", 77) + b[12:]),
                         ("another backend|no CUDA backend|shape and layout", lambda b: b[:12] + struct.pack("<I", BACKEND != "cuda") + b[16:]),
                         ("llamo", lambda b: b.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"llamo", 1)),
                         ("", lambda b: b[:64] + rng.randbytes(4000) + b[4064:])):
        with managed() as m:
            m.start()
            with Client(m.path) as c:
                c.call("load", {"model": "tiny"})
                want = answer(c, exact=True)[1]
            name, = stored(m)
            m.end(crash=True)
            m.replace(name, change)
            m.start()
            with Client(m.path) as c:
                assert answer(c, exact=True)[1] == want
                seen = metrics(c)
                assert seen["fills"] == 1 and seen["bytes_read"] >= TINY.stat().st_size, seen
                assert c.call("status")["models_resident"] == 1
                assert re.search(what, m.text()) and "files are read again" in m.text(), m.text()
                stored(m)
                copies = [os.readlink(f"/proc/{m.process.pid}/fd/{fd}") for fd in fds_of(m.process.pid)]
                assert sum("memfd:hearth:tiny" in x for x in copies) == 1 and not any("memfd:test" in x for x in copies), copies


def a_changed_file_is_read_again():
    """A file that was replaced, or touched, while no daemon ran: its copy is given up, the file is read, and it is said."""
    for change in (lambda p: shutil.copy(MODELS / "llama-q8_0.gguf", p), lambda p: os.utime(p, (1, 1))):
        with managed() as m:
            m.start()
            with Client(m.path) as c:
                c.call("load", {"model": "tiny"})
                held = c.call("status")["host_bytes"]
            stored(m)
            m.end(crash=True)
            change(m.models / "tiny.gguf")
            m.start()
            with Client(m.path) as c:
                assert not c.call("load", {"model": "tiny"}).get("cached")
                assert metrics(c)["fills"] == 1
                assert "its file is not the one" in m.text(), m.text()
                stored(m)
                assert c.call("status")["host_bytes"] < held * 2, "the outdated copy is still there"


def what_cannot_be_trusted():
    """Descriptions of another version, cut, or of random bytes; copies unsealed, of another size, or of no content at all; strange
    descriptors: the daemon starts, gives them up, and reads the file."""
    rng = random.Random(5)
    cases = [(STATE, lambda b: b.replace(b"state 1", b"state 2"), True, "another version"),
             (STATE, lambda b: b[: len(b) // 2], True, ""), (STATE, lambda b: rng.randbytes(3000), True, ""),
             (STATE, lambda b: b.replace(b"use ", b"use x"), True, "not understood"), (STATE, lambda b: b.replace(b" 4 ", b" 4000000000 "), True, ""),
             (STATE, lambda b: b"hearth-state 1\n" + b"files 00\n" * 1000 + b"default \xff\n" + b"content\n\n", True, "not understood"),
             ("copy", lambda b: b, False, "not sealed"), ("copy", lambda b: b[:-4096], True, "another size"), ("copy", lambda b: b"\0", True, ""),
             (None, None, None, "")]
    for which, change, seal, words in cases:
        with managed() as m:
            m.start()
            with Client(m.path) as c:
                c.call("load", {"model": "tiny"})
            name, = stored(m)
            m.end(crash=True)
            if which:
                m.replace(STATE if which == STATE else name, change, seal)
            else:
                for n in ("hearth-copy-" + "0" * 64, "hearth-copy-x", "hearth-unheard-of"):
                    m.fds[n] = [os.open("/dev/null", os.O_RDONLY)]
                m.fds["hearth-socket"] = list(os.pipe())
            m.start()
            assert words in m.text(), (words, m.text())
            with Client(m.path) as c:
                c.call("load", {"model": "tiny"})
                assert answer(c)[2]["n_generated"] == 30
                stored(m)
                if not which:
                    assert "hearth-copy-x" in m.removed and metrics(c)["fills"] == 0, m.removed


def a_known_file_s_copy_is_given_up_at_once():
    """The file of a model that is in memory, copied: while it is read its memory is reserved, then it is given back; one copy stays."""
    with managed() as m:
        shutil.copy(TINY, m.models / "second.gguf")
        m.start()
        with Client(m.path) as c:
            c.call("load", {"model": "tiny"})
            held, fds = c.call("status")["host_bytes"], len(fds_of(m.process.pid))
            c.call("load", {"model": "second"})
            assert c.call("status")["host_bytes"] == held
            until("its descriptor is closed", lambda: len(fds_of(m.process.pid)) <= fds)
            stored(m)
            size = os.fstat(m.fds[m.copies()[0]][0]).st_size
    # Its memory is accounted for while it is there: with room for one copy and a half it is refused, and that is said.
    with managed(f"[daemon]\nhost_budget = {held + size // 2}\n") as m:
        shutil.copy(TINY, m.models / "second.gguf")
        m.start()
        with Client(m.path) as c:
            c.call("load", {"model": "tiny", "pin": True})
            expect("model_no_memory", lambda: c.call("load", {"model": "second"}), "tiny")
            assert c.call("status")["host_bytes"] == held


sys.exit(run_tests([everything_comes_back, a_pinned_copy_is_not_dropped, another_layout_is_read_again, a_changed_file_is_read_again,
                    what_cannot_be_trusted, a_known_file_s_copy_is_given_up_at_once]))
