#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run and resources.py without a GPU: their bookkeeping, with programs that only say what a device would have said.

usage: test_run.py GPU_CHECK

Counts add up; a unit that fails is named and makes the status 1; what is done is not done again, by another build it is;
results of two runs merge; a machine without a device gives 77; a unit that the clock cut is left for the next run.
"""
import json
import os
import subprocess
import sys
import tempfile

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
CHECK = """#!/bin/sh
# %s
echo "$@" >>%s
case "$*" in
*--device*) echo "A card"; exit %d ;;
moe*--exact*) echo "FAIL  moe is wrong"; echo "4 passed, %d failed, 0 skipped"; exit %d ;;
rows*--exact*) [ %d = 0 ] || { sleep 30 & echo $! >"$0.child"; wait; }; echo "2 passed, 0 failed, 0 skipped" ;;
*) echo "3 passed, 0 failed, 0 skipped" ;;
esac
"""


class Rig:
    def __init__(self, tmp):
        self.build, self.log = os.path.join(tmp, "build"), os.path.join(tmp, "log")
        for d in ("gpu", "probe"):
            os.makedirs(os.path.join(self.build, "tests", d))
        self.empty = os.path.join(tmp, "empty")
        os.makedirs(self.empty)
        self.program(os.path.join("tests", "probe", "hearth-probe"), "#!/bin/sh\nexit 1\n")

    def program(self, name, text):
        path = os.path.join(self.build, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def check(self, tag="one", device=0, moe=0, sleep=0):
        self.program(os.path.join("tests", "gpu", "gpu-check"), CHECK % (tag, self.log, device, moe, 1 if moe else 0, sleep))

    def run(self, *options):
        if os.path.exists(self.log):
            os.unlink(self.log)
        p = subprocess.run([sys.executable, RUN, "--build", self.build, "--oracle", self.empty, "--hybrid", self.empty, *options],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        calls = open(self.log).read().splitlines() if os.path.exists(self.log) else []
        return p.returncode, p.stdout, [c for c in calls if c != "--device"]


RES = """ptxas info    : Compiling entry function '%s' for 'sm_90a'
ptxas info    : Function properties for %s
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 16 bytes smem
"""
HOT = ["moe_kernel", "moe_down_sum_kernel", "moe_route_kernel", "choose_kernel", "matmul_kernel", "scan_kernel", "step_kernel", "conv_d_kernel",
       "conv_p_kernel", "out_p_kernel", "matvec_kernel"]


def resources(expect, tmp):
    """resources.py: hot kernels may spill what is known and no more; others may."""
    script = os.path.join(os.path.dirname(RUN), "resources.py")

    def report(spills):
        folder = tempfile.mkdtemp(dir=tmp)
        with open(os.path.join(folder, "a.cu.res"), "w") as f:
            for name in HOT + ["plain_kernel"]:
                symbol = "_Z%d%sILi9ELb1EEv4args" % (len(name), name)
                f.write(RES % (symbol, symbol, 8 if name in spills else 0, spills.get(name, 0), 0))
        p = subprocess.run([sys.executable, script, folder, "--all"], stdout=subprocess.PIPE, text=True)
        return p.returncode, p.stdout

    rc, out = report({})
    expect(rc == 0 and "moe_kernel<9, true>" in out and "0 hot kernels spill" in out, "no spills: %d, %r" % (rc, out))
    rc, out = report({"step_kernel": 4})
    expect(rc == 1 and "1 hot kernels spill" in out, "a hot kernel spills: %d, %r" % (rc, out))
    rc, out = report({"plain_kernel": 400, "matvec_kernel": 100})
    expect(rc == 0, "known and cold spills: %d, %r" % (rc, out))
    rc, out = report({"matvec_kernel": 100000})
    expect(rc == 1, "more than known: %d, %r" % (rc, out))
    p = subprocess.run([sys.executable, script, tmp], stdout=subprocess.PIPE, text=True)
    expect(p.returncode == 77, "no reports: %d" % p.returncode)


def gone(pid):
    """A process that has ended, whether it has been waited for or not."""
    try:
        with open("/proc/%s/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def main():
    failed = 0

    def expect(ok, text):
        nonlocal failed
        if not ok:
            failed += 1
            print("FAIL " + text)

    with tempfile.TemporaryDirectory() as tmp:
        resources(expect, tmp)
        for share in ("1/2x", "-1/-1", "0/2", "3/2", "1", ""):  # a share that is none would check nothing
            p = subprocess.run([sys.argv[1], "--share", share], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            expect(p.returncode == 64 and "--share is K/N" in p.stdout, "--share %r: %d, %r" % (share, p.returncode, p.stdout))
        rig = Rig(tmp)
        rig.check(device=77)
        rc, out, calls = rig.run("--part", "ops")
        expect(rc == 77 and "A card" in out and not calls, "no device: status %d, %r" % (rc, out))
        rig.check()
        rc, out, calls = rig.run("--part", "ops")
        expect(rc == 0 and out.strip().split("\n")[-1] == "51 passed, 0 failed, 0 skipped" and "ok   ops/moe portable" in out and len(calls) == 17, "ops: %d, %r, %d calls" % (rc, out, len(calls)))
        rc, out, calls = rig.run("--part", "ops")
        expect(rc == 0 and "51 passed" in out and not calls, "done before: %d, %r, %d calls" % (rc, out, len(calls)))
        rc, out, calls = rig.run("--part", "ops", "--fresh")
        expect(rc == 0 and len(calls) == 17, "--fresh: %d, %d calls" % (rc, len(calls)))
        state = os.path.join(rig.build, "gpu-results.json")
        with open(state) as f:
            first = json.load(f)

        rig.check("two")
        rc, out, calls = rig.run("--part", "ops")
        expect(rc == 0 and len(calls) == 17, "another build: %d, %d calls" % (rc, len(calls)))
        rc, out, calls = rig.run("--merge", state)
        expect("51 passed" in out and rc == 3, "merged with itself: %d, %r" % (rc, out))
        with open(os.path.join(tmp, "old.json"), "w") as f:
            json.dump(first, f)
        for options, why in ((("--build", os.path.join(tmp, "none")), "build there first"), (("--merge", os.path.join(tmp, "none.json")), "none.json")):
            rc, out, calls = rig.run(*options)
            expect(rc in (1, 2) and why in out and "Traceback" not in out, "%s: %d, %r" % (options, rc, out))
        damaged = os.path.join(tmp, "damaged.json")
        for text in ("", "{", "[]", "null", "{}", '{"units": []}', '{"units": {"ops/linear auto": {}}}', '{"units": {"ops/linear auto": 1}}'):
            with open(damaged, "w") as f:
                f.write(text)
            for options in (("--table", "--state", damaged), ("--part", "ops", "--state", damaged), ("--merge", damaged)):
                rc, out, calls = rig.run(*options)
                expect(rc == 1 and damaged in out and "Traceback" not in out and not calls, "%s of %r: %d, %r" % (options, text, rc, out))
        rc, out, calls = rig.run("--table", "--fresh", "--state", damaged)
        expect(rc == 3 and "0 passed" in out, "--fresh beside a damaged one: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--jobs", "0")
        expect(rc == 2 and "--jobs is 1 or more" in out, "no jobs: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--merge", os.path.join(tmp, "old.json"))
        expect("left out" in out and "51 passed" in out, "another build's results: %r" % out)

        rig.check("three", moe=1)
        rc, out, calls = rig.run("--part", "exact")
        expect(rc == 1 and "FAIL exact/moe" in out and "moe is wrong" in out and "24 passed, 1 failed" in out,
               "a failing unit: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--part", "perplexity")
        expect(rc == 0 and "0 passed, 0 failed, 4 skipped" in out, "no model: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--table")
        expect("| exact |" in out and "moe is wrong" in out and rc == 1, "table: %d, %r" % (rc, out))

        tools = os.path.join(tmp, "bin")
        os.mkdir(tools)
        with open(os.path.join(tools, "compute-sanitizer"), "w") as f:
            f.write('#!/bin/sh\necho "$@ cores $(nproc)" >>%s\necho "========= ERROR SUMMARY: 0 errors"\n' % rig.log)
        os.chmod(f.name, 0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = tools + ":" + before
        n = len(os.sched_getaffinity(0))
        rc, out, calls = rig.run("--part", "initcheck", "--jobs", str(n))
        expect(rc == 0 and "44 passed, 0 failed" in out and len(calls) == 44 and all(c.startswith("--tool initcheck") and c.endswith(" cores 1") for c in calls),
               "a core for each: %d, %r, %r" % (rc, out, calls))
        expect(not any("--host-launches" in c for c in calls), "initcheck with the host's launches: %r" % calls)
        rc, out, calls = rig.run("--part", "racecheck")
        expect(rc == 0 and "42 passed, 0 failed, 2 skipped" in out and len(calls) == 42 and all("--host-launches" in c and " loop " not in c for c in calls),
               "racecheck launches by the host: %d, %r, %r" % (rc, out, calls))
        rc, out, calls = rig.run("--table")
        expect("racecheck/loop auto 1/1: racecheck can't follow graphs" in out, "why loop was left out: %r" % out)
        os.environ["PATH"] = before

        rig.check("four", sleep=1)
        rc, out, calls = rig.run("--part", "exact", "--minutes", "0.1")
        expect(rc == 3 and "0 failed" in out and "cut  exact/rows" in out, "cut by the clock: %d, %r" % (rc, out))
        with open(os.path.join(rig.build, "tests", "gpu", "gpu-check.child")) as f:
            child = f.read().strip()
        expect(gone(child), "what a cut unit started runs on: %s" % child)
        with open(state) as f:
            s = json.load(f)
        s["cut"]["exact/rows"] = 499.0  # so much of earlier runs
        with open(state, "w") as f:
            json.dump(s, f)
        rc, out, calls = rig.run("--part", "exact", "--minutes", "0.1")
        expect(rc == 1 and "no end within 50" in out, "a unit that never ends: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--part", "nothing")
        expect(rc == 2 and "there are: ops" in out, "unknown part: %d, %r" % (rc, out))
        rc, out, calls = rig.run("--pack", os.path.join(tmp, "p.tar.xz"))
        expect(rc == 0 and os.path.getsize(os.path.join(tmp, "p.tar.xz")) > 0, "pack: %d, %r" % (rc, out))
    print("%d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
