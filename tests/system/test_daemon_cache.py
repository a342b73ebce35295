# SPDX-License-Identifier: Apache-2.0
"""The model cache: what is read, when, and who holds memory."""
import socket

from daemonlib import *

SIZE = TINY.stat().st_size


def pss(pids):
    """Own memory and copies. Not files: how many share a library's pages changes with what else runs, a driver's above all."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            for line in open(f"/proc/{pid}/smaps_rollup"):
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1])
    return total


def a_second_load_reads_nothing():
    """The same content again, by name, by another name and by path: no byte read, no memory taken."""
    with daemon() as d, Client(d.path) as c:
        os.link(d.models / "tiny.gguf", d.models / "linked.gguf")
        first = c.call("load", {"model": "tiny"})
        assert not first.get("cached") and first["load_us"] > 0
        before = metrics(c)
        assert before["fills"] == 1 and before["bytes_read"] >= SIZE
        pids = [d.process.pid, *children(d.process.pid)]
        held, used = pss(pids), c.call("status")["host_bytes"]
        assert c.call("load", {"model": "tiny"})["cached"]
        assert c.call("load", {"model": "linked"})["cached"]
        fd = os.open(d.models / "tiny.gguf", os.O_RDONLY)
        assert c.call("load", {"model": str(d.models / "tiny.gguf"), "n_fds": 1}, [fd])["cached"]
        os.close(fd)
        after = metrics(c)
        assert after["bytes_read"] == before["bytes_read"] and after["fills"] == 1, after
        assert after["cache_hits"] == before["cache_hits"] + 2
        assert c.call("status")["host_bytes"] == used
        assert pss(pids) < held + 512, f"memory grew from {held} to {pss(pids)} KiB"


def another_profile_shares_the_bytes():
    """Another context length is another context over the same copy: nothing is read, the old one ends."""
    with daemon() as d, Client(d.path) as c:
        assert c.call("load", {"model": "tiny"})["n_ctx"] == N_CTX
        before = metrics(c)
        reply = c.call("load", {"model": "tiny", "n_ctx": 256, "slots": 2})
        assert reply["n_ctx"] == 256 and reply["slots"] == 2 and reply["cached"]
        assert metrics(c)["bytes_read"] == before["bytes_read"]
        until("the old profile is gone", lambda: c.call("status")["models_resident"] == 1)
        reply = c.generate(model="tiny", prompt="the", **NO_END)[2]
        assert reply["n_prompt"] + reply["n_generated"] == 257
        # A request without wishes takes what is there.
        assert c.call("load", {"model": "tiny"})["n_ctx"] == 256


def a_copy_is_recognized():
    """A copy elsewhere is read once, found to be known, and not read again: also after an unload."""
    with daemon(models=("tiny", "copy")) as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        used, before = c.call("status")["host_bytes"], metrics(c)
        reply = c.call("load", {"model": "copy"})
        after = metrics(c)
        assert not reply.get("cached") and after["bytes_read"] > before["bytes_read"]
        assert after["cache_hits"] == before["cache_hits"] + 1
        assert c.call("status")["host_bytes"] == used and c.call("status")["models_resident"] == 1
        assert c.call("load", {"model": "copy"})["cached"]
        assert c.generate(model="copy", prompt="a", max_tokens=2, **NO_END)[2]["n_generated"] == 2
        c.call("unload", {"model": "tiny"})
        assert not c.call("load", {"model": "copy"}).get("cached")
        read = metrics(c)["bytes_read"]
        assert c.call("load", {"model": "tiny"})["cached"] and metrics(c)["bytes_read"] == read


def a_changed_file_is_read_again():
    """A file that was replaced under its name is another model once the old one is unloaded."""
    with daemon() as d, Client(d.path) as c:
        one = c.call("load", {"model": "tiny"})
        hashes = [m["hash"] for m in c.call("models")["models"]]
        c.call("unload", {"model": "tiny"})
        other = MODELS / "llama-q8_0.gguf"
        shutil.copy(other, d.models / "new")
        os.rename(d.models / "new", d.models / "tiny.gguf")
        c.call("load", {"model": "tiny"})
        assert [m["hash"] for m in c.call("models")["models"]] != hashes


def a_replaced_file_is_noticed():
    """While the old content is resident and in use: the next load, and the next run, take the new one; the old one serves until its requests end."""
    with daemon() as d, Client(d.path) as c:
        def replace(by):
            shutil.copy(MODELS / by, d.models / "new")
            os.rename(d.models / "new", d.models / "tiny.gguf")
        def hashes():
            return {m["hash"] for m in c.call("models")["models"] if "hash" in m}
        c.call("load", {"model": "tiny"})
        first = hashes()
        def says_changed():
            return "changed since it was loaded" in next(m for m in c.call("models")["models"] if m["name"] == "tiny").get("note", "")
        assert not says_changed()
        i = long_answer(c, 60, credits=3)
        until("it runs", lambda: c.next_of(i)[1] == "tokens")
        replace("llama-q8_0.gguf")
        assert says_changed()
        assert not c.call("load", {"model": "tiny"}).get("cached")
        assert not says_changed()
        assert "its file has changed since it was loaded" in d.messages()
        second = hashes()
        assert second and second != first
        c.call("credit", {"request": i, "n": 1000})
        assert list(c.events(i))[-1][2]["n_generated"] == 60
        until("the old one left", lambda: c.call("status")["models_resident"] == 1)
        replace(TINY.name)
        fills = metrics(c)["fills"]
        until("a run notices", lambda: c.generate(model="tiny", prompt="x", max_tokens=1) and metrics(c)["fills"] == fills + 1)
        assert hashes() == first
        # A file that is gone takes nothing away.
        os.unlink(d.models / "tiny.gguf")
        assert c.call("load", {"model": "tiny"})["model"] == "tiny"
        assert c.generate(model="tiny", prompt="x", max_tokens=1)[2]["n_generated"] == 1


def by_path():
    """The client opens a file the daemon need not reach, and passes it; its name is the client's own."""
    with daemon() as d, Client(d.path) as c, private_dir() as elsewhere:
        path = f"{elsewhere}/mine.gguf"
        shutil.copy(MODELS / "llama-q8_0.gguf", path)
        fd = os.open(path, os.O_RDONLY)
        os.unlink(path)
        i = c.start("generate", {"model": path, "n_fds": 1, "prompt": "the", "max_tokens": 5, **NO_END}, [fd])
        os.close(fd)
        got = list(c.events(i))
        assert got[-1][2]["n_generated"] == 5
        assert next(f for _, m, f in got if m == "accepted")["model"] == path
        assert c.generate(model=path, prompt="x", max_tokens=1)[2]["n_generated"] == 1
        assert path in {m["name"] for m in c.call("models")["models"]}
        # Everybody's default is never one user's own file.
        expect("unknown_model", lambda: c.generate(prompt="x", max_tokens=1))


def split_models():
    """The parts of a split model are one model, by name and by path."""
    split = next(iter(sorted(MODELS.glob("*-00001-of-*.gguf"))), None)
    if not split:
        return make_split()
    raise AssertionError("the oracle has split models now: use them here")


def make_split():
    """Cut a model at a tensor boundary into two parts with gguf-split's keys."""
    from splitgguf import split_in_two
    with daemon(models=()) as d, Client(d.path) as c:
        parts = split_in_two(TINY, d.models, "tiny")
        whole = [m for m in c.call("models")["models"]]
        assert len(whole) == 1 and whole[0]["name"] == "tiny" and whole[0]["n_parts"] == 2, whole
        shutil.copy(TINY, d.models / "single.gguf")
        ask = dict(prompt="the cat", max_tokens=20, temperature=0.0, **NO_END)
        assert c.generate(model="tiny", **ask)[1] == c.generate(model="single", **ask)[1]
        fds = [os.open(p, os.O_RDONLY) for p in parts]
        assert c.call("load", {"model": "elsewhere", "n_fds": 2}, fds)["cached"]
        for fd in fds:
            os.close(fd)
        c.call("unload", {"model": "tiny", "force": True})
        os.unlink(parts[1])
        expect("model_not_found", lambda: c.call("load", {"model": "tiny"}), "part 2 of 2", "tiny-00002-of-00002.gguf")


def loads_beside_streams():
    """Models come and go beside a stream, which comes out as if alone."""
    with daemon() as d, Client(d.path) as c, Client(d.path) as other:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "second.gguf")
        want = c.generate(model="tiny", prompt="the cat", max_tokens=900, temperature=0.0, **NO_END)[1]
        streams = [long_answer(c, 900) for _ in range(3)]
        for n in (64, 1000, 128, 512, 1024, 256):  # each takes another context, and more scratch or less
            other.call("load", {"model": "second", "n_ctx": n, "slots": 1 + n % 7})
            other.generate(model="second", prompt="a", max_tokens=3, **NO_END)
            other.call("unload", {"model": "second", "force": True})
        for i in streams:
            assert [t for _, m, f in c.events(i) if m == "tokens" for t in ids(f["ids"])] == want


def unload_gives_back():
    """Unload frees all memory; refused while in use, unless forced, which ends the requests."""
    with daemon() as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        assert c.call("unload", {"model": "tiny"})["bytes"] > SIZE
        assert c.call("status").get("host_bytes", 0) == 0 and c.call("status").get("models_resident", 0) == 0
        i = long_answer(c, 500, credits=2)
        while c.next_of(i)[1] != "tokens":
            pass
        expect("busy", lambda: c.call("unload", {"model": "tiny"}), "tiny", "1 requests", "--force")
        c.call("unload", {"model": "tiny", "force": True})
        assert list(c.events(i))[-1][2]["finish"] == "cancelled"
        assert c.call("status").get("host_bytes", 0) == 0
        expect("unknown_model", lambda: c.call("unload", {"model": "tiny"}), "tiny")


def idle_models_leave():
    """Idle time ends a model's stay, counted from its last request; a pinned one stays."""
    config = "[models]\nidle_timeout = 1500ms\n[model keep]\npinned = yes\n"
    with daemon(config=config, models=("tiny",)) as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "keep.gguf")
        c.call("load", {"model": "keep"})
        i = long_answer(c, 500, credits=2)
        while c.next_of(i)[1] != "tokens":
            pass
        time.sleep(3.2)  # longer than the timeout: a leased model is not idle
        assert {m["name"] for m in c.call("models")["models"] if m["where"] == RESIDENT} == {"tiny", "keep"}
        c.cancel(i)
        until("tiny left", lambda: {m["name"] for m in c.call("models")["models"] if m["where"] == RESIDENT} == {"keep"})


def need_ends_idle_models():
    """A load that does not fit ends idle models, least recently used first, if that is enough; else nothing is touched."""
    with daemon() as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "second.gguf")
        used = []
        for m in ("tiny", "second"):  # on a card without what else a context takes, so of different sizes
            c.call("load", {"model": m})
            used.append(c.call("status")["host_bytes"])
            c.call("unload", {"model": m})
    budget = sum(used) - min(used) // 8
    with daemon(config=f"[daemon]\nhost_budget = {budget}\n") as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "second.gguf")
        c.call("load", {"model": "tiny"})
        i = long_answer(c, 500, credits=2)
        while c.next_of(i)[1] != "tokens":
            pass
        e = expect("model_no_memory", lambda: c.call("load", {"model": "second"}), "second", "tiny", "available")
        assert e.fields["needed"] > e.fields["available"] > 0, e.fields
        assert c.call("status")["host_bytes"] <= budget
        c.cancel(i)
        list(c.events(i))
        c.call("load", {"model": "second"})
        assert {m["name"] for m in c.call("models")["models"] if m["where"] == RESIDENT} == {"second"}
        assert c.call("status")["host_bytes"] <= budget


def more_models_than_files():
    """Each copy is an open file: with a low limit idle models leave for new ones; where none may leave, the load is refused. Connections,
    a stream and a worker's replacement are as ever."""
    data, limit, room = TINY.read_bytes(), 192, 48  # of these one for the file that is read
    assert data.count(b"tiny-llama-q") == 1
    with with_files(limit), daemon(config="[models]\ncontext = 64\n[model tiny]\ncontext = 1024\n") as d, Client(d.path) as c, Client(d.path) as other:
        for n in range(60):
            (d.models / f"m{n}.gguf").write_bytes(data.replace(b"tiny-llama-q", b"tiny-%07d" % n))
        want = c.generate(model="tiny", prompt="the cat", max_tokens=300, temperature=0.0, exact=True, **NO_END)[1]
        i = long_answer(c, 300, credits=20, exact=True)
        got = read_tokens(c, i, 20)[0]
        for n in range(60):
            other.call("load", {"model": f"m{n}"})
            assert len(fds_of(d.process.pid)) < limit - 16, n
        there = [m["name"] for m in other.call("models")["models"] if m["where"] != "disk"]
        assert len(there) == room - 1 and "tiny" in there and "m59" in there and "m0" not in there, there
        worker = other.call("status")["worker_pid"]
        os.kill(worker, 9)
        until("another serves", lambda: (s := other.call("status"))["worker"] == "ready" and s["worker_pid"] != worker)
        until("all are back", lambda: len([m for m in other.call("models")["models"] if m["where"] in ("memory", "vram")]) == room - 1)
        # Those that stay for good leave for nobody.
        for n in range(room - 2):
            other.call("load", {"model": f"m{n}", "pin": True})
        e = expect("quota", lambda: other.call("load", {"model": "m59"}), "m59", f"of the {room}", "LimitNOFILE")
        assert (e.fields["needed"], e.fields["available"]) == (2, 1), e.fields
        with contextlib.ExitStack() as more:
            for _ in range(40):
                more.enter_context(Client(d.path)).call("ping")
            c.call("credit", {"request": i, "n": 1000})
            assert got + finish(c, i)[0] == want, "another text"
        for n in range(2):
            other.call("unload", {"model": f"m{n}", "force": True})
        other.call("load", {"model": "m59"})


def the_copy_is_sealed():
    """The copy that the daemon keeps is a memory file that nobody can change, grow or shrink."""
    import fcntl
    with daemon() as d, Client(d.path) as c:
        c.call("load", {"model": "tiny"})
        copies = [f"/proc/{d.process.pid}/fd/{fd}" for fd in fds_of(d.process.pid)
                  if "memfd:hearth" in os.readlink(f"/proc/{d.process.pid}/fd/{fd}")]
        assert len(copies) == 1, copies
        fd = os.open(copies[0], os.O_RDONLY)
        seals = fcntl.fcntl(fd, 1034)  # F_GET_SEALS
        os.close(fd)
        assert seals & 0xF == 0xF, hex(seals)
        for attempt in (lambda fd: os.pwrite(fd, b"x", 100), lambda fd: os.ftruncate(fd, 10), lambda fd: os.ftruncate(fd, 1 << 30)):
            try:
                fd = os.open(copies[0], os.O_RDWR)  # root may; the seals hold even so
            except PermissionError:
                continue
            try:
                attempt(fd)
                raise AssertionError("the copy can be changed")
            except PermissionError:
                pass
            finally:
                os.close(fd)


sys.exit(run_tests([a_second_load_reads_nothing, another_profile_shares_the_bytes, a_copy_is_recognized, a_changed_file_is_read_again, a_replaced_file_is_noticed,
                    by_path, split_models, loads_beside_streams, unload_gives_back, idle_models_leave, need_ends_idle_models, more_models_than_files, the_copy_is_sealed]))
