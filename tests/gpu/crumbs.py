#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every file whose kernels leave a crumb (pdl_wait() in kernels/cuda/cuda.cuh) is among the names that dev_where() knows, so that
a lost device's last kernel can be named; and each of these names is such a file. And CUDA_FAMILIES has what the files call themselves:
without the address that it gives out, a file's kernels leave no crumbs.

usage: crumbs.py SOURCE_ROOT
"""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1])
    names = re.search(r"dev_where\(.*?files\[\] = \{(.*?)\};", (root / "kernels/cuda/device.cu").read_text(), re.S)
    known = set(re.findall(r'"([\w.]+)"', names[1])) if names else set()
    files = sorted((root / "kernels/cuda").glob("*.cu*")) + [root / "tests/fault/fault.cu"]
    leave = {f.name for f in files if re.search(r"^\s+(if \(.*\) )?pdl_wait\(\);", f.read_text(), re.M)}
    for f in sorted(leave - known):
        print("%s: leaves crumbs that dev_where() has no name for" % f)
    for f in sorted(known - leave):
        print("%s: dev_where() has it, but no kernel there leaves a crumb" % f)
    header = (root / "kernels/cuda/cuda.cuh").read_text()
    told = set(re.findall(r"\bX\((\w+)\)", re.search(r"#define CUDA_FAMILIES\(X\)(.*?)\n#define", header, re.S)[1]))
    families = {n for f in files[:-1] for n in re.findall(r"^CUDA_FAMILY\((\w+)\)", f.read_text(), re.M)}
    for n in sorted(families ^ told):
        print("%s: a file's family or one of CUDA_FAMILIES, not both" % n)
    print("%d files with kernels, %d families" % (len(leave), len(families)))
    return 1 if leave != known or families != told or not leave or not families else 0


if __name__ == "__main__":
    sys.exit(main())
