# SPDX-License-Identifier: Apache-2.0
"""SIGHUP: what changed in hearth.conf takes effect, what can't is said, a mistake changes nothing. Without systemd."""
import signal
import subprocess

from daemonlib import *


def reload(d, text, *want):
    """The file becomes this, the daemon reads it; waits for these in its log, behind what was there."""
    at = len(d.messages())
    (d.home / "hearth.conf").write_text(text)
    d.process.send_signal(signal.SIGHUP)
    for w in ("the configuration",) + want:
        until(f"it says {w!r}", lambda: w in d.messages()[at:])
    return d.messages()[at:]


def limits_and_levels():
    """Limits, log level and times change at once; open connections and streams stay."""
    with daemon(config="[daemon]\nlog_level = info\n") as d, Client(d.path) as c:
        i = long_answer(c, 500, credits=3)
        until("it runs", lambda: c.next_of(i)[1] == "tokens")
        said = reload(d, "[limits]\nconnections_per_user = 1\nrequests_per_user = 1\n[models]\nslots = 7\n[worker]\nthreads = 1\n[daemon]\nhost_budget = 7G\n",
                      '[limits] connections_per_user is "1", was "1024": in effect now', '[models] slots is "7", was "4": for models loaded from now on',
                      '[worker] threads is "1", was "0": after a restart only', "[daemon] host_budget is", "was read again")
        assert "requests_per_user" in said
        expect("quota", lambda: Client(d.path), "connections_per_user")
        expect("quota", lambda: c.generate(model="tiny", prompt="x"), "requests_per_user")
        assert c.call("status")["host_budget"] != 7 << 30
        c.call("credit", {"request": i, "n": 1000})
        assert list(c.events(i))[-1][2]["n_generated"] == 500
        # What is resident keeps its size; what is loaded from then on has the new one.
        assert c.call("load", {"model": "tiny"})["slots"] == 4
        c.call("unload", {"model": "tiny"})
        assert c.call("load", {"model": "tiny"})["slots"] == 7
        # The level: the next reload is told at info, which error leaves out.
        at = len(d.messages())
        (d.home / "hearth.conf").write_text("[daemon]\nlog_level = error\n")
        d.process.send_signal(signal.SIGHUP)
        until("the limit is the default again", lambda: connect(d))
        c.generate(model="tiny", prompt="x", max_tokens=1)
        assert "generate" not in d.messages()[at:], "a line of the level info"


def idle_times_of_resident_models():
    """idle_timeout and pinned count for what is resident, too."""
    with daemon(config="[models]\nidle_timeout = never\n", models=("tiny", "kept")) as d, Client(d.path) as c:
        shutil.copy(MODELS / "llama-q8_0.gguf", d.models / "kept.gguf")
        for m in ("tiny", "kept"):
            c.call("load", {"model": m})
        reload(d, "[models]\nidle_timeout = 100ms\n[model kept]\npinned = yes\n", "was read again")
        until("the idle one left", lambda: c.call("status")["models_resident"] == 1)
        assert [(m["name"], m["pinned"]) for m in c.call("models")["models"] if m["where"] == RESIDENT] == [("kept", True)]
        reload(d, "[models]\nidle_timeout = 100ms\n", "was read again")
        until("the other one left", lambda: c.call("status").get("models_resident", 0) == 0)


def model_directories():
    """Directories are looked into from then on; one that is gone, no more."""
    with private_dir() as other:
        shutil.copy(TINY, pathlib.Path(other) / "new.gguf")
        file = pathlib.Path(other) / "hearth.conf"
        file.write_text("# nothing\n")
        d2 = Daemon(HEARTHD, other, "--config", str(file))
        with d2, Client(d2.path) as c2:
            expect("unknown_model", lambda: c2.call("load", {"model": "new"}))
            file.write_text(f"[daemon]\nmodel_dir = {other}\n")
            d2.process.send_signal(signal.SIGHUP)
            until("it is found", lambda: any(m["name"] == "new" for m in c2.call("models").get("models", [])))
            assert c2.call("load", {"model": "new"})["model"] == "new"
            # While look-ups are under way.
            for _ in range(30):
                c2.start("models")
                d2.process.send_signal(signal.SIGHUP)
            file.write_text("# nothing\n")
            d2.process.send_signal(signal.SIGHUP)
            until("what is on disk only is gone", lambda: other not in c2.call("models").get("dirs", []))


def a_mistake_changes_nothing():
    """File, line and key are named; the configuration before stays, also for the next good reload."""
    with daemon(config="[limits]\nrequests_per_user = 1\n") as d, Client(d.path) as c:
        for text, told in (("[limits]\nrequests_per_user = 5\nconnections = none\n", "hearth.conf:3: connections is a number from 1"),
                           ("[limits]\nrequests_per_user = 5\n\nbogus = 1\n", 'hearth.conf:4: [limits] has no key "bogus"'),
                           ("[access]\nuse = *\npin = @no-such-group-here\n", 'hearth.conf:3: pin: there is no group named "no-such-group-here"'),
                           ("nonsense\n", "hearth.conf:1: ")):
            reload(d, text, told, "the configuration stays as it was")
            i = long_answer(c, 100, credits=1)
            expect("quota", lambda: c.generate(model="tiny", prompt="x"), "requests_per_user")
            c.cancel(i)
            list(c.events(i))
        os.unlink(d.home / "hearth.conf")
        d.process.send_signal(signal.SIGHUP)
        until("a file that is gone is told", lambda: "hearth.conf: No such file" in d.messages())
        text = c.call("metrics")["text"]
        assert "hearth_reloads_failed_total 5" in text, text
        reload(d, "[limits]\nrequests_per_user = 2\n", "was read again")


def what_is_no_configuration():
    """A damaged file opens no access rule: each is refused on a reload, by --check-config and at the start, and never hangs."""
    NUL = b"\0"
    damaged = (
        (b"", "hearth.conf: it is empty"), (NUL * 4096, "hearth.conf:1: byte 1 of the line is 0x00"), (b"\0\xff[[[", "hearth.conf:1: byte 1"),
        (NUL * (40 << 20), "a configuration at most 1048576"), (b"#" * (1 << 20) + b"\n", "a configuration at most"),
        (b"[access]\nuse = \xff\n", "hearth.conf:2: byte 7 of the line is 0xff, which is not UTF-8"),
        (b"[access]\n\x1b[1m\n", "hearth.conf:2: byte 1 of the line is 0x1b"), (b"[access\nuse = root\n", "hearth.conf:1: a section's name ends with ]"),
        (b"[access] use = root\n", "hearth.conf:1: behind [access] nothing may stand"), (b"[access]\nuse root\n", "hearth.conf:2: expected [section] or key"),
        ("directory", "hearth.conf: it is a directory"), ("fifo", "hearth.conf: it is a pipe"), ("gone", "hearth.conf: No such file"),
        ("dangling", "hearth.conf: No such file"),
    )
    good = "[access]\nuse = root\nload = " + "root, " * 300 + "root\n"  # a line may be long
    with daemon(config=good) as d, Client(d.path) as c:
        file = d.home / "hearth.conf"
        for n, (content, told) in enumerate(damaged):
            at = len(d.messages())
            file.unlink()
            if isinstance(content, bytes):
                file.write_bytes(content)
            elif content == "directory":
                file.mkdir()
            elif content == "fifo":
                os.mkfifo(file)
            elif content == "dangling":
                file.symlink_to("nowhere")
            d.process.send_signal(signal.SIGHUP)
            until(f"{told!r} is said", lambda: told in d.messages()[at:] and "stays as it was" in d.messages()[at:])
            assert f"hearth_reloads_failed_total {n + 1}\n" in c.call("metrics")["text"]
            for more in (["--check-config"], []):
                r = subprocess.run([HEARTHD, "--user", "--config", str(file), "--socket", f"{d.home}/other/s", *more], capture_output=True, text=True,
                                   timeout=60, env={"HOME": str(d.home), "PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL)
                assert r.returncode in (64, 74, 78) and told.removeprefix("hearth.conf") in r.stderr, (content[:20], r)
            if content == "directory":
                file.rmdir()
                file.touch()
            elif content == "gone":
                file.touch()
        file.unlink()
        # None of them changed the rule: only now it is told to change.
        file.write_text("[access]\nuse = *\n")
        d.process.send_signal(signal.SIGHUP)
        until("a good one is taken", lambda: '[access] use is "*", was "root"' in d.messages())


def a_default_file_that_vanishes():
    """Without --config too: what was there at the start must be there at a reload."""
    with private_dir() as home:
        file = pathlib.Path(home) / "config/hearth/hearth.conf"
        file.parent.mkdir(parents=True)
        file.write_text("[access]\nuse = root\n")
        old = os.environ.get("XDG_CONFIG_HOME")
        os.environ["XDG_CONFIG_HOME"] = f"{home}/config"
        try:
            d = Daemon(HEARTHD, home, "--user")
        finally:
            if old is None:
                del os.environ["XDG_CONFIG_HOME"]
            else:
                os.environ["XDG_CONFIG_HOME"] = old
        with d:
            file.unlink()
            d.process.send_signal(signal.SIGHUP)
            until("it is told", lambda: "hearth.conf is gone" in d.messages())
            assert 'use is "*"' not in d.messages()


def check_config():
    """--check-config says what a start would say, and serves nothing."""
    with private_dir() as home:
        file = pathlib.Path(home) / "c"
        for text, status, told in (("[limits]\nconnections = 3\n", 0, "no mistakes"), ("[limits]\nconnections = 0\n", 64, "c:2: connections is a number from 1")):
            file.write_text(text)
            r = subprocess.run([HEARTHD, "--user", "--check-config", "--config", str(file)], capture_output=True, text=True, timeout=60,
                               env={"HOME": home, "PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL)
            assert r.returncode == status and told in r.stdout + r.stderr, r
        assert sorted(os.listdir(home)) == ["c"]


sys.exit(run_tests([limits_and_levels, idle_times_of_resident_models, model_directories, a_mistake_changes_nothing, what_is_no_configuration,
                    a_default_file_that_vanishes, check_config]))
