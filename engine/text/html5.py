#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The named character references of HTML 5 (WHATWG's list, as Python has it), as rows of a C table sorted by name, without the '&'.

usage: html5.py > html5.inc
"""
import html.entities

for name, text in sorted(html.entities.html5.items()):
    print('{ "%s", "%s" },' % (name, "".join("\\%03o" % b for b in text.encode())))
