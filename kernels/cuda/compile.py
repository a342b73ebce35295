#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs nvcc for one file and keeps what its assembler says about each kernel.

usage: compile.py REPORT COMMAND...

REPORT gets the lines of "ptxas info" (registers, stack frame, spills, shared memory); everything else, warnings above
all, goes to stderr as it came. tests/gpu/resources.py reads the reports.
"""
import subprocess
import sys


def main():
    report, command = sys.argv[1], sys.argv[2:]
    p = subprocess.run(command + ["-Xptxas", "-v"], stderr=subprocess.PIPE, text=True)
    keep, rest, indented = [], [], False
    for line in p.stderr.splitlines():
        info = line.startswith("ptxas info")
        if info or (indented and line.startswith("    ")):
            keep.append(line)
        else:
            rest.append(line)
        indented = info or (indented and line.startswith("    "))
    if rest:
        print("\n".join(rest), file=sys.stderr)
    if p.returncode == 0:
        with open(report, "w") as f:
            f.write("\n".join(keep) + "\n")
    return p.returncode


if __name__ == "__main__":
    sys.exit(main())
