#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the dependency direction between the folders.

    kernels <- engine <- daemon/worker -> ipc <- daemon/broker, client

Reads every #include and compares it with the table below: a project header from
a folder that is not listed, or a library header that a folder must not know,
is an error.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()
ALLOWED = {  # folder: project folders it may include from
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "engine": {"base", "kernels", "engine"},
    "ipc": {"base", "ipc"},
    "client": {"base", "ipc", "client"},
    "daemon/broker": {"base", "ipc", "daemon/broker", "daemon/common"},
    "daemon/worker": {"base", "ipc", "kernels", "engine", "daemon/worker", "daemon/common"},
    "daemon/common": {"base", "ipc", "daemon/common"},
}
LIBRARIES = {  # header prefix: folders that may know it
    "uv.h": {"daemon/broker", "daemon/worker"},
    "msgpack": {"ipc"},
    "systemd/": {"daemon/broker", "daemon/common"},
    "cuda": {"kernels"},
    "jansson.h": {"engine", "client", "daemon/worker", "daemon/broker"},
    "sys/socket.h": {"ipc", "client", "daemon/broker", "daemon/worker", "daemon/common"},
    "histedit.h": {"client"},
    "editline/": {"client"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def folder_of(rel):
    for f in sorted(ALLOWED, key=len, reverse=True):
        if rel == f or rel.startswith(f + "/"):
            return f
    return None


def main():
    bad, files = [], 0
    for top in sorted({f.split("/")[0] for f in ALLOWED}):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in {".c", ".h", ".cu", ".cuh"}:
                continue
            rel = path.relative_to(ROOT).as_posix()
            me = folder_of(rel)
            files += 1
            if me is None:
                bad.append(f"{rel}: in no known folder ({', '.join(sorted(ALLOWED))})")
                continue
            for kind, inc in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if kind == '"':
                    target = inc if (ROOT / inc).exists() else (pathlib.PurePosixPath(rel).parent / inc).as_posix()
                    other = folder_of(target)
                    if other is not None and other not in ALLOWED[me]:
                        bad.append(f"{rel}: includes {inc}; {me} may include only from {', '.join(sorted(ALLOWED[me]))}")
                else:
                    for lib, who in LIBRARIES.items():
                        if inc.startswith(lib) and me not in who:
                            bad.append(f"{rel}: includes <{inc}>, which only {', '.join(sorted(who))} may know")
    for b in bad:
        print(b)
    print(f"{files} files checked, {len(bad)} wrong edges")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
