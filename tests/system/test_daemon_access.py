# SPDX-License-Identifier: Apache-2.0
"""Who may do what, and what of one user another can see. Needs root, to be several users.

The daemon runs as root (--system) on a socket that everybody may connect to; rules are then what decides."""
import json
import subprocess
import tempfile

from daemonlib import *

HEARTH = os.path.abspath(sys.argv[3])
ADA, BOB, GROUP, OTHER = 23001, 23002, 23100, 23101
SECRET = "the walrus keeps the ledger in the lower drawer "


def rules():
    """use, load, unload, pin, see_others: by uid and by supplementary group; refusals name uid, rule and key."""
    config = f"[access]\nuse = @{GROUP}, {BOB}\nload = @{OTHER}\npin = {ADA}\n"
    with open_daemon(config, models=("tiny", "second")) as d, Client(d.path) as root:
        e = expect("permission", lambda: client_as(d, ADA), f"uid {ADA}", "[access] use", f"@{GROUP}, {BOB}")
        with client_as(d, ADA, GROUP) as ada, client_as(d, BOB) as bob, client_as(d, ADA, 5, OTHER, GROUP) as loader:
            ask = lambda c, m="tiny": lambda: c.generate(model=m, prompt="the", max_tokens=3, **NO_END)
            expect("permission", ask(ada), f"uid {ADA}", "[access] load", f"@{OTHER}", "tiny")
            expect("permission", lambda: bob.call("load", {"model": "tiny"}), f"uid {BOB}", "[access] load")
            fd = os.open(d.models / "tiny.gguf", os.O_RDONLY)
            expect("permission", lambda: bob.call("load", {"model": "./t.gguf", "n_fds": 1}, [fd]), "[access] load")
            expect("unknown_model", ask(ada, "tny"))
            loader.call("load", {"model": "tiny"})
            assert ask(ada)()[2]["n_generated"] == 3, "what is resident may be used"
            assert bob.call("load", {"model": "tiny"})["model"] == "tiny", "it is there: nothing is loaded"
            # Another profile of it would be another one.
            expect("permission", lambda: bob.call("load", {"model": "tiny", "n_ctx": 300}), "[access] load")
            expect("permission", lambda: bob.call("unload", {"model": "tiny"}), f"uid {BOB}", "[access] unload", "nobody")
            expect("permission", lambda: bob.call("load", {"model": "tiny", "pin": True}), "[access] pin", f"to {ADA}")
            ada.call("load", {"model": "tiny", "pin": True})
            assert [m["pinned"] for m in root.call("models")["models"] if m["name"] == "tiny"] == [True]
            # The same file under one's own name is there already.
            assert bob.call("load", {"model": "./t.gguf", "n_fds": 1}, [fd])["model"] == "./t.gguf"
            os.close(fd)
            root.call("unload", {"model": "tiny"})


def own_file():
    """A file that only its user has a name for may be unloaded by him; nobody else learns its name."""
    with open_daemon() as d, Client(d.path) as root, client_as(d, ADA) as ada, client_as(d, BOB) as bob:
        fd = os.open(TINY, os.O_RDONLY)
        ada.call("load", {"model": "/home/ada/diary.gguf", "n_fds": 1}, [fd])
        assert "/home/ada/diary.gguf" in [m["name"] for m in ada.call("models")["models"]]
        for c in (bob, root):
            assert not any("diary" in json.dumps(m) for m in c.call("models")["models"])
        expect("unknown_model", lambda: bob.call("unload", {"model": "/home/ada/diary.gguf"}), "is resident")
        ada.call("unload", {"model": "/home/ada/diary.gguf"})
        os.close(fd)
    # Who holds the memory is told without the name.
    with open_daemon("[daemon]\nhost_budget = 20M\n[models]\nslots = 1\n") as d, client_as(d, ADA) as ada, client_as(d, BOB) as bob:
        fd = os.open(TINY, os.O_RDONLY)
        i = ada.start("generate", {"model": "/home/ada/diary.gguf", "n_fds": 1, "prompt": "a", "max_tokens": 900, "credits": 1, **NO_END}, [fd])
        assert any(e[1] == "tokens" for e in iter(lambda: ada.next_of(i), None))
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "big.gguf")
        e = expect("model_no_memory", lambda: bob.call("load", {"model": "big", "n_ctx": 1024, "slots": 64}))
        assert "diary" not in e.message and f"a file of uid {ADA}" in e.message, e.message
        os.close(fd)


def pinned_bytes():
    """What one user keeps for good is counted and limited; it is his again when the model leaves."""
    # The least that one may take: what a first daemon says it takes.
    config = "[access]\npin = *\n[models]\nslots = 1\ncontext = 64\n"
    with open_daemon(config) as d, Client(d.path) as root:
        root.call("load", {"model": "tiny", "pin": True})
        size = root.call("status")["host_bytes"]
    with open_daemon(config + f"[limits]\npinned_per_user = {size - 1}\n") as d, client_as(d, ADA) as ada, Client(d.path) as root:
        e = expect("quota", lambda: ada.call("load", {"model": "tiny", "pin": True}), f"uid {ADA}", "pinned_per_user")
        assert e.fields["needed"] > e.fields["available"], e.fields
        assert ada.call("load", {"model": "tiny"})["model"] == "tiny", "not for good it may"
        expect("quota", lambda: ada.call("load", {"model": "tiny", "pin": True}), f"uid {ADA}", "pinned_per_user")
    with open_daemon(config + f"[limits]\npinned_per_user = {size}\n") as d, Client(d.path) as root, client_as(d, ADA) as ada, client_as(d, BOB) as bob:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "big.gguf")
        ada.call("load", {"model": "tiny", "pin": True})
        expect("quota", lambda: ada.call("load", {"model": "big", "pin": True}), f"uid {ADA}", "pinned_per_user")
        assert bob.call("load", {"model": "tiny", "pin": True})["model"] == "tiny", "it stays already, at another's expense"
        root.call("unload", {"model": "tiny"})
        ada.call("load", {"model": "tiny", "pin": True})  # again, so the first one was given back


def one_sees_ones_own():
    """ps, status, models, metrics, the prefix cache and the log show one user's text to nobody else."""
    with open_daemon() as d, Client(d.path) as root, client_as(d, ADA, name="ada's diary") as ada, client_as(d, BOB) as bob:
        ada.call("load", {"model": "tiny"})
        prompt = SECRET * 4
        first = ada.generate(model="tiny", prompt=prompt, max_tokens=8, temperature=0, **NO_END)
        assert first[2].get("n_cached", 0) == 0
        again = ada.generate(model="tiny", prompt=prompt, max_tokens=8, temperature=0, **NO_END)
        assert again[2]["n_cached"] > 10, "its own prefix is used"
        for c in (bob, root):
            other = c.generate(model="tiny", prompt=prompt, max_tokens=8, temperature=0, **NO_END)
            assert other[2].get("n_cached", 0) == 0, "another user's prefix was used"
        # While it runs, too: bob's request beside ada's shares nothing with it.
        i = ada.start("generate", {"model": "tiny", "prompt": prompt, "max_tokens": 500, "credits": 2, **NO_END})
        assert any(e[1] == "tokens" for e in iter(lambda: ada.next_of(i), None))
        assert bob.generate(model="tiny", prompt=prompt + "x", max_tokens=1, **NO_END)[2].get("n_cached", 0) > 10, "its own of a moment ago"
        fresh = "a second secret of one who sits beside " * 4
        j = ada.start("generate", {"model": "tiny", "prompt": fresh, "max_tokens": 500, "credits": 2, **NO_END})
        assert any(e[1] == "tokens" for e in iter(lambda: ada.next_of(j), None))
        assert bob.generate(model="tiny", prompt=fresh, max_tokens=1, **NO_END)[2].get("n_cached", 0) == 0
        assert [p["request"] for p in ada.call("ps")["requests"]] and bob.call("ps").get("requests", []) == []
        assert len(root.call("ps")["requests"]) == 2
        shown = json.dumps([c.call(m) for c in (bob, root) for m in ("status", "models", "ps")])
        assert "walrus" not in shown and "secret" not in shown
        assert "diary" not in json.dumps([bob.call(m) for m in ("status", "models", "ps")])
        # Ids of another connection mean nothing here.
        bob.cancel(i)
        with contextlib.suppress(RemoteError):
            bob.call("credit", {"request": i, "n": 5})
        assert len(root.call("ps")["requests"]) == 2
        for r in (i, j):
            ada.cancel(r)
            list(ada.events(r))
        # What is wrong with a request is told to its client alone.
        expect("bad_request", lambda: ada.generate(model="tiny", kind="walrus", prompt="walrus"))
        expect("grammar_invalid", lambda: ada.generate(model="tiny", prompt="walrus", json_schema='{"type": "walrus"}'))
        assert "walrus" not in d.messages() and "secret" not in d.messages(), d.messages()


def see_others():
    """Who may see others' requests sees them, with their client."""
    with open_daemon(f"[access]\nsee_others = {BOB}\n") as d, client_as(d, ADA, name="editor") as ada, client_as(d, BOB) as bob, Client(d.path) as root:
        i = ada.start("generate", {"model": "tiny", "prompt": "a", "max_tokens": 500, "credits": 1, **NO_END})
        assert any(e[1] == "tokens" for e in iter(lambda: ada.next_of(i), None))
        for c in (bob, root):
            assert [(p["uid"], p["client"]) for p in c.call("ps")["requests"]] == [(ADA, "editor")]
        ada.cancel(i)


def per_user():
    """Limits count one user's connections, not another's."""
    config = "[limits]\nconnections_per_user = 2\nrequests_per_user = 1\nslots_per_user = 1\n"
    with open_daemon(config) as d:
        ada = [client_as(d, ADA) for _ in range(2)]
        expect("quota", lambda: client_as(d, ADA), f"uid {ADA}", "connections_per_user")
        with client_as(d, BOB) as bob:
            i = ada[0].start("generate", {"model": "tiny", "prompt": "a", "max_tokens": 500, "credits": 1, **NO_END})
            assert any(e[1] == "tokens" for e in iter(lambda: ada[0].next_of(i), None))
            expect("quota", lambda: ada[1].generate(model="tiny", prompt="a", max_tokens=1), f"uid {ADA}", "requests_per_user")
            assert bob.generate(model="tiny", prompt="a", max_tokens=2, **NO_END)[2]["n_generated"] == 2
        for c in ada:
            c.close()


def slow_grammars_of_another():
    """One user's schemas take seconds to compile, as many as there are threads: another's is compiled meanwhile."""
    letters = "cdefghijklmnop"
    slow = json.dumps({"type": "array", "prefixItems": [{"type": "string", "pattern": f"^[ab{x}]*a[ab{x}]{{12}}$"} for x in letters]})
    with open_daemon("[models]\nslots = 8\n") as d, client_as(d, ADA) as ada, client_as(d, BOB) as bob, Client(d.path) as root:
        ask = dict(model="tiny", prompt="the", max_tokens=4)
        root.call("load", {"model": "tiny"})
        long = [ada.start("generate", {**ask, "json_schema": slow}) for _ in range(3)]
        until("all are with the worker", lambda: [p["phase"] for p in root.call("ps").get("requests", [])] == ["prefill"] * 3)
        for _ in range(3):
            assert bob.generate(json_schema='{"enum": ["yes", "no"]}', **ask)[2]["n_generated"] > 0
        left = root.call("ps").get("requests", [])
        assert [(p["uid"], p.get("n_generated", 0)) for p in left] == [(ADA, 0)] * 3, f"another's came first: {left}"
        for i in long:
            ada.cancel(i)
        for i in long:
            assert finish(ada, i)[2]["finish"] == "cancelled"


def reload_rights():
    """A reload changes what connections that are open may do; who may not use it any more is told and disconnected."""
    with open_daemon("[access]\nunload = *\n") as d, Client(d.path) as root:
        ada, bob = client_as(d, ADA), client_as(d, BOB)
        ada.call("load", {"model": "tiny"})
        (d.home / "hearth.conf").write_text(f"[access]\nuse = {BOB}\n")
        d.process.send_signal(1)
        e = expect("permission", lambda: list(ada.events(0)), f"uid {ADA}", "[access] use")
        expect("permission", lambda: bob.call("unload", {"model": "tiny"}), "[access] unload")
        expect("permission", lambda: client_as(d, ADA), "[access] use")
        ada.close()
        bob.close()


def a_home_the_daemon_cant_read():
    """The daemon as one user, the file under a home of another's that only he can read: hearth opens it and passes it."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="hth-", dir="/tmp"))
    try:
        os.chmod(home, 0o755)
        for name, uid in (("srv", BOB), ("ada", ADA)):
            os.mkdir(home / name, 0o700)
            os.chown(home / name, uid, uid)
        shutil.copy(TINY, home / "ada" / "mine.gguf")
        os.chown(home / "ada" / "mine.gguf", ADA, ADA)
        os.chmod(home / "ada" / "mine.gguf", 0o600)
        os.makedirs(home / "srv" / "run", 0o755)
        os.chown(home / "srv" / "run", BOB, BOB)
        sock = str(home / "srv" / "run" / "s")
        try:
            subprocess.run([HEARTHD, "--version"], user=BOB, group=BOB, extra_groups=[], capture_output=True, check=True, timeout=60)
        except (PermissionError, subprocess.CalledProcessError):
            print("not tried: another user can't reach the programs here")
            return
        with open(home / "log", "wb") as log:
            p = subprocess.Popen([HEARTHD, "--system", "--socket", sock, "--model-dir", str(home / "srv")], user=BOB, group=BOB,
                                 extra_groups=[], env={"HOME": "/", "PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            until("it serves", lambda: os.path.exists(sock))
            os.chmod(home / "srv", 0o755)
            os.chmod(sock, 0o666)
            run = lambda *a: subprocess.run([HEARTH, *a, "--socket", sock], user=ADA, group=ADA, extra_groups=[], capture_output=True,
                                            text=True, timeout=120, stdin=subprocess.DEVNULL, cwd=home / "ada",
                                            env={"HOME": str(home / "ada"), "PATH": os.environ["PATH"]})
            r = run("run", "./mine.gguf", "--raw", "the cat", "-n", "5", "-t", "0")
            assert r.returncode == 0 and r.stdout, (r, (home / "log").read_text())
            r = run("load", "mine")
            assert r.returncode == 66, r  # by name it is not the daemon's
            p.terminate()
            assert p.wait(60) == 0
    finally:
        shutil.rmtree(home)


if os.getuid() != 0:
    skip("root is needed to be several users")
sys.exit(run_tests([rules, own_file, pinned_bytes, one_sees_ones_own, see_others, per_user, slow_grammars_of_another, reload_rights, a_home_the_daemon_cant_read]))
