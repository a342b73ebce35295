# SPDX-License-Identifier: Apache-2.0
"""hearth.h, hearth.map and the built library name the same functions.

    check_exports.py HEADER MAP LIBRARY
"""
import pathlib
import re
import subprocess
import sys

header, symbol_map, library = (pathlib.Path(p) for p in sys.argv[1:4])
declared = set(re.findall(r"HEARTH_PUBLIC\s[^;]*?\b(hearth_\w+)\(", header.read_text(encoding="utf-8")))
mapped = set(re.findall(r"^\s+(hearth_\w+);", symbol_map.read_text(encoding="utf-8"), re.M))
try:
    nm = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
except FileNotFoundError:
    print("SKIP: no nm here")
    sys.exit(77)
exported = {m for m in re.findall(r"\s[A-Za-z]\s(\w+)@@", nm)} - {"HEARTH_1"}
bad = 0
for what, names in (("declared, but not in the map", declared - mapped), ("in the map, but not declared", mapped - declared),
                    ("declared, but not exported", declared - exported), ("exported, but not declared", exported - declared)):
    for n in sorted(names):
        print(f"{n}: {what}")
        bad += 1
print(f"{len(declared)} functions")
sys.exit(1 if bad or not declared else 0)
