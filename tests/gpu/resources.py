#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each kernel of the build takes: registers, stack, spills, shared memory. Needs no GPU.

usage: resources.py DIR [--all] [--csv FILE]

DIR holds the reports that the build wrote (kernels/cuda/*.res). Exit 1 if a hot kernel spills registers or keeps an array
in local memory: one that every step runs, for every type and width. resources.known has those that do, with a limit each. Exit 77 if the build has none (-Dcuda-report=true; tools/test.sh builds with it).
--all prints every kernel, not only the hot ones.
"""
import argparse
import csv
import glob
import os
import re
import sys

# Kernels of every step and of every prompt. The general ones beside them (any head size, any type) are not among them.
HOT = ("matvec_kernel", "matvec_one_kernel", "matvec_few_kernel", "moe_kernel", "moe_alone_kernel", "moe_down_sum_kernel", "moe_route_kernel", "moe_route_norm_kernel", "choose_kernel", "moe_sum_kernel", "gather_slots_kernel", "matmul_kernel", "matmul_sm90_kernel", "matmul_direct_kernel", "dequant_kernel", "dequant_halves_kernel", "float_one_kernel", "float_many_kernel", "half_kernel", "iq_kernel", "dequant_iq_kernel", "norm_fast_kernel", "glu_kernel", "qkv_kernel",
       "step_kernel", "scan_kernel", "block_kernel", "conv_d_kernel", "conv_p_kernel", "out_p_kernel", "att_kernel", "att_d_kernel", "att_wide_kernel", "attention_merge_kernel",
       "quantize_kernel", "elem_kernel")

# Hot kernels that do spill, and the most bytes (stores and loads) each may: only ever less, and no others.
KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "resources.known")


def name_of(mangled):
    """The kernel's own name and what its template was made with, as _Z says them."""
    m = re.match(r"_Z(?:L|N[0-9A-Za-z_]*?)?(\d+)", mangled)
    if not m:
        return mangled
    at, n = m.end(), int(m.group(1))
    name, rest = mangled[at:at + n], mangled[at + n:]
    args = []
    if rest.startswith("I"):
        for kind, value in re.findall(r"L([a-z]|N?\d+[A-Za-z_]\w*?)(n?\d+)E", rest.split("EEv")[0] + "E"):
            args.append({"0": "false", "1": "true"}.get(value, value) if kind == "b" else value.replace("n", "-"))
    return name + ("<%s>" % ", ".join(args) if args else "")


def read(path):
    """Kernels of one report."""
    out, cur, of = [], None, None
    with open(path) as f:
        for line in f:
            m = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
            if m:
                cur = {"file": os.path.basename(path)[:-len(".res")], "kernel": name_of(m.group(1)), "symbol": m.group(1), "arch": m.group(2),
                       "registers": None, "stack": 0, "spill_store": 0, "spill_load": 0, "smem": 0}
                out.append(cur)
            if not cur:
                continue
            m = re.search(r"Function properties for (\S+)", line)
            if m:
                of = m.group(1)
            m = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
            if m and of == cur["symbol"]:
                cur["stack"], cur["spill_store"], cur["spill_load"] = (int(x) for x in m.groups())
            m = re.search(r"Used (\d+) registers", line)
            if m:
                cur["registers"] = int(m.group(1))
                s = re.search(r"(\d+) bytes smem", line)
                cur["smem"] = int(s.group(1)) if s else 0
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--all", action="store_true")
    p.add_argument("--csv")
    args = p.parse_args()
    files = sorted(glob.glob(os.path.join(args.dir, "*.res")))
    if not files:
        print("no reports in %s: built without CUDA, or without -Dcuda-report=true" % args.dir)
        return 77
    kernels = [k for f in files for k in read(f)]
    broken = [k for k in kernels if k["registers"] is None]
    if not kernels or broken:
        print("FAIL the reports in %s can't be read: %d kernels, %d of them without a register count" % (args.dir, len(kernels), len(broken)))
        return 1
    if args.csv:
        with open(args.csv, "w", newline="") as f:
            w = csv.DictWriter(f, fieldnames=list(kernels[0]))
            w.writeheader()
            w.writerows(kernels)
    known = {}
    with open(KNOWN) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                n, limit = line.split()
                known[n] = int(limit)
    bad = 0
    seen = set()
    print("%-58s %-7s %9s %6s %6s %6s" % ("kernel", "arch", "registers", "stack", "spills", "smem"))
    for k in sorted(kernels, key=lambda k: (k["file"], k["kernel"], k["symbol"], k["arch"])):
        hot = k["kernel"].split("<")[0] in HOT
        spill = k["spill_store"] + k["spill_load"]
        fail = hot and (spill or k["stack"]) > known.get(k["kernel"].split("<")[0], 0)
        seen.add(k["kernel"].split("<")[0])
        bad += bool(fail)
        if hot or args.all or k["spill_store"]:
            print("%-58s %-7s %9d %6d %6d %6d%s" % (k["kernel"][:58], k["arch"], k["registers"], k["stack"], k["spill_store"] + k["spill_load"],
                                                 k["smem"], "  FAIL" if fail else "" if hot else "  (not hot)"))
    hot_seen = len([n for n in HOT if n in seen])
    print("%d kernels in %d files, %d of the hot names, %d hot kernels spill" % (len(kernels), len(files), hot_seen, bad))
    if hot_seen < 10:
        print("FAIL only %d of the hot kernels' names are in this build: the list in this script is out of date" % hot_seen)
        return 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
