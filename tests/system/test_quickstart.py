#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart.sh and tools/cuda.sh on machines made of files: which GPU, driver, permission and compiler give which build, or
which reason. Nothing is installed, fetched or built: meson, ninja, dpkg-query, nvidia-smi, nvcc and pip are scripts, the driver's
library is a shared object made here, /dev, /proc and /sys are folders.

usage: test_quickstart.py SOURCE
"""
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
NOBODY = 65534
TOOLS = ["sh", "cat", "sed", "grep", "head", "tr", "sort", "stat", "id", "dirname", "basename", "readlink", "rm", "env", "mkdir", "tail", "uname"]
failures = []

LIBRARY = """
static const int caps[] = {%s};
int cuInit(unsigned f) { (void)f; return %d; }
int cuDeviceGetCount(int *n) { *n = sizeof(caps) / sizeof(caps[0]); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? caps[d] / 10 : a == 76 ? caps[d] %% 10 : -1; return 0; }
"""


class Machine:
    """pci: drivers of NVIDIA cards on the bus ('' none); proc: the loaded driver's version; nodes: name -> mode; smi: what it answers, None: it is
    not installed, an int: its exit status; library: compute capabilities by libcuda; nvcc: (version, architectures)."""

    def __init__(self, tmp, pci=(), proc=None, nodes=(), smi=None, smi_driver="580.65.06", library=None, library_rc=0, nvcc=None, network=True):
        self.tmp = pathlib.Path(tmp)
        self.tmp.chmod(0o755)
        self.root = self.tmp / "root"
        self.bin = self.tmp / "bin"
        self.tree = self.tmp / "tree"
        self.calls = self.tmp / "calls"
        self.calls.mkdir(mode=0o777)
        self.calls.chmod(0o777)
        self.bin.mkdir()
        shutil.copytree(SOURCE / "tools", self.tree / "tools")
        cuda = self.tree / "tools" / "cuda.sh"
        cuda.write_text("cuda_root=%s\n" % self.root + cuda.read_text())
        for d in ("build", "build/hearth/client"):
            (self.tree / d).mkdir(parents=True)
        for d in [self.tree, *self.tree.rglob("*")]:
            d.chmod(0o777)
        for t in TOOLS:
            os.symlink(shutil.which(t), self.bin / t)
        for i, driver in enumerate(pci):
            d = self.root / "sys/bus/pci/devices" / ("0000:%02d:00.0" % i)
            d.mkdir(parents=True)
            (d / "vendor").write_text("0x10de\n")
            (d / "class").write_text("0x030200\n")
            if driver:
                (self.root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
                os.symlink(self.root / "drivers" / driver, d / "driver")
        if proc:
            p = self.root / "proc/driver/nvidia"
            p.mkdir(parents=True)
            (p / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Sat May  3 12:00:00 UTC 2026\nGCC version: 12\n" % proc)
        for n, mode in dict(nodes).items():
            p = self.root / "dev" / n
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_text("")
            p.chmod(mode)
        self.program("python3", 'case "$*" in *pip*) echo "$@" >%s/pip; %s ;; *) exec %s "$@" ;; esac'
                     % (self.calls, "mkdir -p build/cuda-toolkit" if network else "exit 1", sys.executable))
        if smi is not None:
            self.program("nvidia-smi", 'case "$*" in\n*compute_cap*) %s ;;\n*driver_version*) %s ;;\n*) echo "Failed to initialize NVML: Unknown Error"; exit 255 ;;\nesac'
                         % (("exit %d" % smi, "exit %d" % smi) if isinstance(smi, int) else
                            ("printf '%%s\\n' %s" % " ".join("'%s'" % x for x in smi), "echo %s" % smi_driver)))
        if nvcc:
            self.program("nvcc", 'case "$1" in\n--version) echo "Cuda compilation tools, release %s, V%s.1" ;;\n--list-gpu-arch) printf "%%s\\n" %s ;;\nesac'
                         % (nvcc[0], nvcc[0], " ".join("compute_%d" % a for a in nvcc[1])))
        self.library = str(self.tmp / "no-such-library.so")
        if library is not None:
            c = self.tmp / "cu.c"
            c.write_text(LIBRARY % (", ".join(map(str, library)), library_rc))
            self.library = str(self.tmp / "libcuda.so.1")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", self.library, str(c)], check=True, timeout=60)
        self.program("dpkg-query", "echo installed")
        self.program("meson", 'echo "$@" >>%s/meson; mkdir -p build/hearth; : >build/hearth/build.ninja' % self.calls)
        self.program("ninja", "exit 0")
        answer = self.tree / "build/hearth/client/hearth"
        answer.write_text("#!/bin/sh\necho Because.\n")
        answer.chmod(0o755)

    def program(self, name, text):
        p = self.bin / name
        p.write_text("#!/bin/sh\n" + text + "\n")
        p.chmod(0o755)

    def run(self, *options, terminal=None, user=None):
        """(status, stdout, stderr, what meson was called with); terminal: what a person types."""
        model = self.tree / "model.gguf"
        model.write_text("x")
        model.chmod(0o644)
        env = {"PATH": str(self.bin), "HOME": str(self.tmp), "CUDA_DRIVER_LIBRARY": self.library, "LC_ALL": "C"}
        more = {"user": user, "group": user, "extra_groups": []} if user is not None else {}
        command = ["/bin/sh", str(self.tree / "tools/quickstart.sh"), "--model", str(model), *options, "Why?"]
        if terminal is None:
            p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, timeout=60, **more)
            rc, out, err = p.returncode, p.stdout, p.stderr
        else:
            master, slave = pty.openpty()
            os.write(master, terminal.encode())
            p = subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True, env=env, **more)
            os.close(slave)
            out, err = "", b""
            while True:
                try:
                    b = os.read(master, 4096)
                except OSError:
                    break
                if not b:
                    break
                err += b
            out = p.communicate(timeout=60)[0]
            rc, err = p.returncode, err.decode()
            os.close(master)
        log = self.calls / "meson"
        return rc, out, err, log.read_text() if log.exists() else ""


def case(what, expect_rc, said, built=None, absent=(), options=(), terminal=None, user=None, pip=None, **machine):
    with tempfile.TemporaryDirectory(prefix="hth-quick-") as tmp:
        m = Machine(tmp, **machine)
        rc, out, err, meson = m.run(*options, terminal=terminal, user=user)
        wrong = []
        if rc != expect_rc:
            wrong.append("status %d, expected %d" % (rc, expect_rc))
        if out != ("Because.\n" if expect_rc == 0 else ""):
            wrong.append("stdout is %r" % out)
        wrong += ["it does not say %r" % s for s in said if s not in err]
        wrong += ["it says %r" % s for s in absent if s in err]
        if built is None and meson:
            wrong.append("meson was run: %s" % meson)
        wrong += ["meson has no %s: %s" % (b, meson) for b in built or () if b not in meson]
        got = (m.calls / "pip").exists()
        if pip is not None and got != pip:
            wrong.append("pip was %srun" % ("" if got else "not "))
        if wrong:
            failures.append(what)
        print("%s %s" % ("not ok" if wrong else "ok", what), *("  " + w for w in wrong + ([err] if wrong else [])), sep="\n" if wrong else " ", flush=True)


ALL = (80, 86, 89, 90, 100, 120)
NODES = {"nvidiactl": 0o666, "nvidia0": 0o666, "nvidia-uvm": 0o666}
WORKS = dict(pci=["nvidia"], proc="580.65.06", nodes=NODES)

# No card.
case("no card: for the CPU, and said", 0, ["no NVIDIA GPU here"], ["-Dcuda=disabled"], pip=False)
# A card that works: the compiler there is, or the one that is fetched.
case("card and compiler", 0, ["compute capability 89", "driver 580.65.06", "CUDA 13.0"], ["-Dcuda=enabled", "-Dcuda-archs=89 ", "/bin/nvcc"], pip=False,
     smi=["8.9"], nvcc=("13.0", ALL), **WORKS)
case("Hopper has its own architecture", 0, ["compute capability 90a"], ["-Dcuda-archs=90a "], smi=["9.0"], nvcc=("12.8", ALL), **WORKS)
case("no compiler: fetched as wheels", 0, ["getting the CUDA compiler"], ["-Dcuda=enabled", "build/cuda-toolkit/nvidia/cu13/bin/nvcc"], pip=True, smi=["8.6"], **WORKS)
case("the wheels can't be had", 1, ["pip could not get the CUDA compiler", "--cpu"], pip=True, network=False, smi=["8.6"], **WORKS)
case("a compiler too old is passed over", 0, ["is not used: its version is 11.8", "getting the CUDA compiler"], ["cu13/bin/nvcc"], pip=True, smi=["8.6"],
     nvcc=("11.8", ALL), **WORKS)
case("so is one that does not know the card", 0, ["is not used: its version is 12.8", "knows 121"], ["-Dcuda-archs=121 ", "cu13/bin/nvcc"], pip=True,
     smi=["12.1"], nvcc=("12.8", ALL), **WORKS)
case("several cards: one build for all", 0, ["86,90a"], ["-Dcuda-archs=86,90a "], smi=["9.0", "8.6", "8.6"], nvcc=("13.0", ALL), **WORKS)
case("one of them too old: left out", 0, ["capability 61 is left out"], ["-Dcuda-archs=86 "], smi=["6.1", "8.6"], nvcc=("13.0", ALL), **WORKS)
case("no nvidia-smi: the driver's library is asked", 0, ["capability 86"], ["-Dcuda-archs=86 "], library=[86], nvcc=("13.0", ALL), **WORKS)
case("an nvidia-smi that knows no compute_cap", 0, ["capability 86"], ["-Dcuda-archs=86 "], smi=['Field "compute_cap" is not a valid field to query.'],
     library=[86], nvcc=("13.0", ALL), **WORKS)
case("asked for the CPU", 0, ["for the CPU, as asked"], ["-Dcuda=disabled"], options=["--cpu"], pip=False, smi=["8.6"], **WORKS)
# A card that can't be used: the reason, and no build.
case("no driver", 1, ["no NVIDIA driver is loaded", "580 or later", "--cpu"], pip=False, pci=[""])
case("another driver has the card", 1, ['gave the card to "nouveau"', "--cpu"], pci=["nouveau"])
case("nodes and no driver", 1, ["no NVIDIA driver is loaded"], nodes=NODES)
case("a driver too old for any toolkit", 1, ["too old: found 470.256.02, needed 580 or later", "--cpu"], pip=False, pci=["nvidia"], proc="470.256.02", nodes=NODES, smi=["8.6"])
case("a driver too old for the compiler that would be fetched", 1, ["too old: found 570.10, needed 580", "12.8 or 12.9"], pip=False, pci=["nvidia"], proc="570.10",
     nodes=NODES, smi=["8.6"])
case("a driver too old for the compiler there is", 1, ["found 570.10, needed 580 or later, for CUDA 13.0", "/bin/nvcc"], pci=["nvidia"], proc="570.10", nodes=NODES,
     smi=["8.6"], nvcc=("13.0", ALL))
case("a driver that suits CUDA 12", 0, ["CUDA 12.8"], ["-Dcuda-archs=86 "], pci=["nvidia"], proc="570.10", nodes=NODES, smi=["8.6"], nvcc=("12.8", ALL))
case("the version from nvidia-smi where /proc has none", 1, ["found 550.54, needed 580"], pci=["nvidia"], smi=["8.6"], smi_driver="550.54")
case("a card too old", 1, ["too old: found 6.1, needed 8.0 or later", "--cpu"], pip=False, smi=["6.1"], nvcc=("13.0", ALL), **WORKS)
case("Turing: the kernels need 8.0", 1, ["found 7.5, needed 8.0"], smi=["7.5"], nvcc=("13.0", ALL), **WORKS)
case("no node", 1, ["nvidiactl is not there", "nvidia-modprobe"], pci=["nvidia"], proc="580.65.06")
case("a driver that shows no card", 1, ["580.65.06 is loaded, but it shows no GPU", "Failed to initialize NVML", "--cpu"], smi=9, library=[86], library_rc=999, **WORKS)
case("and no nvidia-smi to say why", 1, ["shows no GPU: nvidia-smi is not there"], **WORKS)
ROOT = os.geteuid() == 0  # may open anything: then as somebody else
OTHER = NOBODY if ROOT else None
CLOSED = 0o600 if ROOT else 0
DRIVER = dict(pci=["nvidia"], proc="580.65.06")
for n in NODES:
    case("no permission for %s" % n, 1, ["no permission for", "/dev/%s:" % n, "may not read and write it", "usermod -aG", "--cpu"], user=OTHER,
         nodes=dict(NODES, **{n: CLOSED}), smi=15, **DRIVER)
case("nvidia-smi answers without nvidia-uvm, CUDA does not", 1, ["no permission for", "/dev/nvidia-uvm:"], user=OTHER, pip=False,
     nodes=dict(NODES, **{"nvidia-uvm": CLOSED}), smi=["8.6"], nvcc=("13.0", ALL), **DRIVER)
case("a card of another number", 1, ["no permission for", "/dev/nvidia3:"], absent=["nvidia0"], user=OTHER, smi=15,
     nodes={"nvidiactl": 0o666, "nvidia3": CLOSED, "nvidia-uvm": 0o666}, **DRIVER)
case("none of several cards", 1, ["/dev/nvidia0 ", "/dev/nvidia1 ", "/dev/nvidia12:", "may not read and write any of them"], user=OTHER, smi=15,
     nodes=dict(NODES, nvidia0=CLOSED, nvidia1=CLOSED, nvidia12=CLOSED), **DRIVER)
case("one of several cards: it is left out", 0, ["/dev/nvidia1 is left out", "may not read and write it"], ["-Dcuda-archs=86 "],
     absent=["no permission", "nvidia0", "nvidia-caps"], user=OTHER, nodes=dict(NODES, **{"nvidia1": CLOSED, "nvidia-caps": CLOSED, "nvidia0x": CLOSED}),
     smi=["8.6"], nvcc=("13.0", ALL), **DRIVER)
case("no nodes at all, but cards that answer", 0, ["capability 86"], ["-Dcuda-archs=86 "], smi=["8.6"], nvcc=("13.0", ALL), **DRIVER)
# At a terminal the CPU may be agreed to.
case("not agreed to", 1, ["shows no GPU", "Build for the CPU instead? [y/N]"], terminal="\n", **WORKS)
case("agreed to", 0, ["no NVIDIA driver is loaded", "Build for the CPU instead?"], ["-Dcuda=disabled"], terminal="y\n", pci=[""])

print("%d failed" % len(failures))
sys.exit(1 if failures else 0)
