# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completions say what the programs say of themselves: nothing is missing, nothing is too much.

    test_docs.py HEARTH HEARTHD SOURCE_ROOT BUILD_ROOT"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from harness import run_tests

HEARTH, HEARTHD = (os.path.abspath(p) for p in sys.argv[1:3])
SOURCE, BUILD = (pathlib.Path(p) for p in sys.argv[3:5])
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def said(*argv, status=0):
    r = subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert r.returncode == status, (argv, r)
    return r.stdout + (r.stderr if status else "")


def options_in(help_text):
    """--name -> (letter or None, takes a value) of lines like '  -m, --model MODEL   meaning'."""
    out = {}
    for line in help_text.splitlines():
        m = re.match(r"^  (?:-(\w), | {0,4})--([a-z][a-z0-9-]*)(?: ([A-Z][A-Z=]*))?(?: |$)", line)
        if m:
            assert m[2] not in out, f"--{m[2]} twice"
            out[m[2]] = (m[1], bool(m[3]))
    assert out, help_text
    return out


def commands():
    return re.findall(r"^  ([a-z]+) {2,}\S", said(HEARTH, "--help"), flags=re.M)


def page(name):
    """A manual page's text as scdoc made it, without roff's own marks."""
    path = BUILD / "docs" / name
    if not path.exists() and not shutil.which("scdoc"):
        path = None
    assert path is None or path.exists(), f"there is no page {name}"
    if path is None:
        return None
    text = path.read_text()
    for a, b in ((r"\-", "-"), (r"\&", ""), (r"\(aq", "'"), (r"\e", "\\"), (r"\.", ".")):
        text = text.replace(a, b)
    return re.sub(r"\\f[BIRP]", "", text)


def entries(text, section):
    """The terms of a section's list: lines that something indented follows."""
    body = re.search(rf"^\.SH {section}$(.*?)(?=^\.SH |\Z)", text, flags=re.M | re.S)
    assert body, f"no section {section}"
    lines = body[1].splitlines()
    return [a for a, b in zip(lines, lines[1:]) if b.startswith(".RS") and not a.startswith(".")]


def option_entries(text, section="OPTIONS"):
    out = {}
    for line in entries(text, section):
        m = re.fullmatch(r"--([a-z0-9-]+)(?:, -(\w))?(?: ([A-Z][A-Z=]*))?", line)
        assert m, f"no option's entry: {line!r}"
        assert m[1] not in out, f"--{m[1]} twice"
        out[m[1]] = (m[2], bool(m[3]))
    return out


def same(what, got, want):
    assert got == want, f"{what}: missing {sorted(set(want) - set(got))}, too much {sorted(set(got) - set(want))}, differing " \
                        f"{sorted(k for k in set(got) & set(want) if isinstance(got, dict) and got[k] != want[k])}"


def commands_have_pages():
    """hearth(1) names every command; each has a page with exactly its options."""
    text = page("hearth.1")
    if text is None:
        print("scdoc is not installed: only the completions and the shipped configuration are tested")
        return
    all_of_them = commands()
    same("hearth(1)", sorted(re.match(r"hearth-([a-z]+)\(1\)", e)[1] for e in entries(text, "COMMANDS")), sorted(all_of_them))
    for c in all_of_them:
        same(f"hearth-{c}(1)", option_entries(page(f"hearth-{c}.1")), options_in(said(HEARTH, c, "--help")))
    pages = {p.name for p in (BUILD / "docs").glob("hearth-*.1")}
    same("pages", pages, {f"hearth-{c}.1" for c in all_of_them})


def daemon_has_its_page():
    """hearthd(8): exactly hearthd's options; what it names in the journal is what the source writes."""
    text = page("hearthd.8")
    if text is None:
        return
    same("hearthd(8)", option_entries(text), options_in(said(HEARTHD, "--help")))
    written = {f for c in (SOURCE / "daemon/broker").glob("*.c") for f in re.findall(r'"(HEARTH_[A-Z_]+)=', c.read_text())}
    same("journal fields", set(re.findall(r"HEARTH_[A-Z_]+", " ".join(entries(text, "JOURNAL")))), written)


def conf_keys():
    """(section, key) of the table."""
    table = (SOURCE / "daemon/broker/config.def").read_text()
    keys = re.findall(r"^CONF\((\w+), (\w+),", table, flags=re.M) + [("models", k) for k in re.findall(r"^CONF_MODEL\((\w+),", table, flags=re.M)]
    assert len(keys) > 20 and len(set(keys)) == len(keys)
    return keys


def configuration_has_its_page():
    """hearth.conf(5): exactly the keys that the daemon knows; the shipped file names no other."""
    keys = conf_keys()
    home = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"hth-docs-{os.getpid()}.conf"
    try:
        for section, key in keys:
            home.write_text(f"[{section}]\n{key} = \x01\n")
            r = subprocess.run([HEARTHD, "--check-config", "--config", str(home)], env=ENV, capture_output=True, text=True, timeout=60)
            assert f'has no key "{key}"' not in r.stderr, f"the daemon does not know [{section}] {key}: {r.stderr}"
        home.write_text((SOURCE / "systemd/hearth.conf").read_text().replace("\n#", "\n#"))
        assert "no mistakes" in said(HEARTHD, "--check-config", "--config", str(home))
    finally:
        home.unlink(missing_ok=True)
    shipped = (SOURCE / "systemd/hearth.conf").read_text()
    section, named = "", set()
    for line in shipped.splitlines():
        if m := re.match(r"^\[(\w+)\]$", line):
            section = m[1]
        elif m := re.match(r"^#?(\w+) =", line):
            named.add((section, m[1]))
    assert named <= set(keys), f"the shipped file names {named - set(keys)}"
    same("the shipped file (without places)", named, {k for k in keys if k not in (("daemon", "socket"), ("daemon", "worker"))})
    text = page("hearth.conf.5")
    if text is None:
        return
    body = re.search(r"^\.SH KEYS$(.*?)(?=^\.SH )", text, flags=re.M | re.S)[1]
    got, section, lines = [], None, body.splitlines()
    for a, b in zip(lines, lines[1:]):
        if m := re.match(r"^\.SS \[(\w+)\]", a):
            section = m[1]
        elif b.startswith(".RS") and not a.startswith("."):
            got.append((section, a))
    same("hearth.conf(5)", got, keys)


def library_has_its_page():
    """libhearth(3): exactly the functions that the library exports and the header declares."""
    exported = set(re.findall(r"^\s+(hearth_\w+);$", (SOURCE / "client/hearth.map").read_text(), flags=re.M))
    declared = set(re.findall(r"HEARTH_PUBLIC[^;]*?\b(hearth_\w+)\(", (SOURCE / "client/hearth.h").read_text()))
    same("hearth.h", declared, exported)
    text = page("libhearth.3")
    if text is not None:
        got = [n for e in entries(text, "FUNCTIONS") for n in re.findall(r"(hearth_\w+)\(\)", e)]
        same("libhearth(3)", sorted(got), sorted(exported))


def protocol_has_its_page():
    """hearth-protocol(7): exactly the messages and fields of PROTOCOL.md."""
    text = page("hearth-protocol.7")
    if text is None:
        return
    md = (SOURCE / "ipc/PROTOCOL.md").read_text().split("\n## Messages")[1].split("\n## Error codes")[0]
    want, got, name = [], [], None
    for line in md.splitlines():
        if m := re.match(r"^### (\w+) `([\w-]+)`", line):
            name = f"{m[1]} {m[2]}".upper() if m[1] == "map" else f"{m[1]} {m[2]}"
            want.append(name.lower())
        elif (m := re.match(r"^\| (\w+) \| ", line)) and not line.startswith("| field | type | default"):
            want.append(f"{name.lower()}.{m[1]}")
    body = re.search(r"^\.SH MESSAGES$(.*?)(?=^\.SH )", text, flags=re.M | re.S)[1]
    lines = body.splitlines()
    for a, b in zip(lines, lines[1:] + [""]):
        if m := re.match(r"^\.SS (\w+) ([\w\\-]+)", a):
            name = f"{m[1]} {m[2]}".replace("\\", "").lower()
            got.append(name)
        elif b.startswith(".RS") and (m := re.match(r"^(\w+): ", a)):
            got.append(f"{name}.{m[1]}")
    same("hearth-protocol(7)", got, want)


# ---- completions ----

def completion(shell):
    text = said(HEARTH, "completion", shell)
    made = BUILD / "completions" / {"bash": "hearth", "zsh": "_hearth", "fish": "hearth.fish"}[shell]
    assert made.read_text() == text, f"{made} is not what hearth completion {shell} prints"
    return text


def bash_completes():
    """bash: every command, and for each exactly its options; the script does what it says."""
    text = completion("bash")
    words = re.search(r"compgen -W '([^']*)'", text)[1].split()
    same("commands", sorted(w for w in words if not w.startswith("-")), sorted(commands()))
    for c in commands():
        got = re.search(rf"^    {c}\) words='([^']*)'", text, flags=re.M)[1].split()
        same(f"bash, {c}", sorted(got), sorted(f"--{o}" for o in options_in(said(HEARTH, c, "--help"))))
    for line, want in (("hearth run --temp", "--temperature"), ("hearth stat", "status"), ("hearth completion ", "zsh")):
        words = line.rstrip() + (" ''" if line.endswith(" ") else "")
        probe = f"{text}\nCOMP_WORDS=({words})\n" \
                'COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _hearth 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
        r = subprocess.run(["bash", "--norc"], input=probe, capture_output=True, text=True, timeout=60, env=ENV)
        assert want in r.stdout.split(), (line, r)


def fish_completes():
    """fish: the same."""
    text = completion("fish")
    same("commands", sorted(re.findall(r"__fish_use_subcommand -f -a (\w+) ", text)), sorted(commands()))
    for c in commands():
        got = {}
        for line in text.splitlines():
            if line.startswith(f"complete -c hearth -n '__fish_seen_subcommand_from {c}' -l "):
                name = re.search(r" -l (\S+)", line)[1]
                letter = re.search(r" -s (\w)", line)
                got[name] = (letter[1] if letter else None, bool(re.search(r" -[rx]\b", line.split(" -d ")[0])))
        same(f"fish, {c}", got, options_in(said(HEARTH, c, "--help")))
    if shutil.which("fish"):
        subprocess.run(["fish", "-n"], input=text, text=True, check=True, timeout=60)


def zsh_completes():
    """zsh: the same."""
    text = completion("zsh")
    listed = re.search(r"commands=\(\n(.*?)\n    \)", text, flags=re.S)[1]
    same("commands", sorted(re.findall(r"^        '(\w+):", listed, flags=re.M)), sorted(commands()))
    for c in commands():
        block = re.search(rf"^    {c}\) _arguments.*?;;$", text, flags=re.M | re.S)[0]
        got = {}
        for line in block.splitlines():
            if m := re.match(r"^        '\*?(?:\([^)]*\)'\{-(\w),--([a-z0-9-]+)\}'|--([a-z0-9-]+))\[(?:[^\\\]]|\\.)*\](:.*)?'", line):
                got[m[2] or m[3]] = (m[1], m[4] is not None)
        same(f"zsh, {c}", got, options_in(said(HEARTH, c, "--help")))
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=text, text=True, check=True, timeout=60)


def all_are_installed():
    """meson install puts pages, completions and units where their readers look."""
    plan = json.loads((BUILD / "meson-info/intro-installed.json").read_text())
    places = [str(p) for p in plan.values()]
    wanted = ["bash-completion/completions/hearth", "zsh/site-functions/_hearth", "fish/vendor_completions.d/hearth.fish",
              "systemd/system/hearthd.service", "systemd/system/hearthd.socket", "systemd/user/hearthd.service", "hearth/hearth.conf",
              "doc/hearth/errors.md", "doc/hearth/metrics.md", "doc/hearth/status.schema.json", "doc/hearth/PROTOCOL.md"]
    if page("hearth.1") is not None:
        wanted += ["man1/hearth.1", "man8/hearthd.8", "man5/hearth.conf.5", "man7/hearth-protocol.7", "man3/libhearth.3"]
        wanted += [f"man1/hearth-{c}.1" for c in commands()]
    for w in wanted:
        assert any(p.endswith("/" + w) for p in places), f"{w} is not installed"


sys.exit(run_tests([commands_have_pages, daemon_has_its_page, configuration_has_its_page, library_has_its_page, protocol_has_its_page,
                    bash_completes, fish_completes, zsh_completes, all_are_installed]))
