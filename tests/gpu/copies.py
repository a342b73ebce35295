#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the assembler made sound code of the copies to shared memory. Needs no GPU.

usage: copies.py DIR

DIR holds the build's objects (kernels/cuda/*.cu.o). nvcc 13.0's assembler, given a copy with a cache policy (ptx.cuh) whose
address is the lane's plus what all lanes have, takes that sum and the policy from one pair of registers: LDGSTS [R10+UR0],
desc[UR1][...], an illegal instruction. This says whether any copy in the build is one, by whichever release of nvcc. Exit 1
if one is; 77 without objects, or without cuobjdump and nvdisasm (tests/requirements.txt).
"""
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys

FUNCTION = re.compile(r"Function : (\S+)")
COPY = re.compile(r"\bLDGSTS\S*\s")
WRONG = re.compile(r"\bLDGSTS\S*\s+\[(?:R\d+(?:\.\w+)*\+)?UR\d+[^\]]*\], desc\[")
SAMPLES = (
    ("LDGSTS.E.BYPASS.LTC128B.128 [R10+UR0+0x200], desc[UR1][R18.64+0x200] ;", True),
    ("@!P3 LDGSTS.E.BYPASS.LTC128B.128 [R17+UR0+-0x800], desc[UR1][R2.64], !P3 ;", True),
    ("LDGSTS.E.BYPASS.LTC128B.128 [UR4+0x200], desc[UR5][R18.64] ;", True),
    ("LDGSTS.E.BYPASS.LTC128B.128 [R19+0x400], desc[UR6][R16.64+0x400] ;", False),
    ("LDGSTS.E.BYPASS.128 [R13], desc[UR8][R2.64], !P0 ;", False),
)


def tool():
    found = [f for where in sys.path for f in sorted(glob.glob(os.path.join(where, "nvidia", "*", "bin", "cuobjdump")))]
    found += [f for f in [shutil.which("cuobjdump")] if f]
    return next((f for f in found if os.path.exists(os.path.join(os.path.dirname(f), "nvdisasm")) or shutil.which("nvdisasm")), None)


def look(cuobjdump, path):
    """How many copies a file has, and those that are wrong."""
    env = dict(os.environ, PATH=os.path.dirname(cuobjdump) + ":" + os.environ.get("PATH", ""))
    p = subprocess.run([cuobjdump, "-sass", path], env=env, capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(f"{cuobjdump} -sass {path}: {p.stderr.strip() or p.returncode}")
    function, copies, wrong = "", 0, []
    for line in p.stdout.splitlines():
        m = FUNCTION.search(line)
        function = m[1] if m else function
        copies += COPY.search(line) is not None
        if WRONG.search(line):
            wrong.append((function, line.split("/*")[1].split("*/")[1].strip() if line.count("/*") > 1 else line.strip()))
    return copies, wrong


def main():
    for line, want in SAMPLES:
        if bool(WRONG.search(line)) != want:
            sys.exit(f"FAIL this script takes '{line}' for the other kind")
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    objects = sorted(glob.glob(os.path.join(sys.argv[1], "*.cu.o")))
    cuobjdump = tool()
    if not objects:
        print(f"skipped: no objects in {sys.argv[1]} (built without CUDA)")
        return 77
    if not cuobjdump:
        print("skipped: no cuobjdump with nvdisasm; pip install -r tests/requirements.txt has it")
        return 77
    copies, failed = 0, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for path, (n, wrong) in zip(objects, pool.map(lambda o: look(cuobjdump, o), objects)):
            copies += n
            for function, line in wrong[:3]:
                print(f"FAIL {os.path.basename(path)}: {function}: {line}")
            failed += len(wrong)
    print(f"{len(objects)} files, {copies} copies to shared memory, {failed} of them wrong")
    if not copies:
        print("FAIL no copy was found at all: what this script looks for has another name now")
    return 1 if failed or not copies else 0


if __name__ == "__main__":
    sys.exit(main())
