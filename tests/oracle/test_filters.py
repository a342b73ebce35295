#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jinja's filters pprint, striptags, urlize and wordwrap, against Jinja2 itself, on fixed and on random values: the whole list of HTML's
character references, addresses of all kinds, hyphens and dashes, nested values with mixed keys.

usage: test_filters.py HEARTH_PROBE [SEED]
"""
import html.entities
import json
import random
import subprocess
import sys
import tempfile

import jinja2

TEMPLATES = {
    "striptags": ["{{ v|striptags }}"],
    "urlize": ["{{ v|urlize }}", "{{ v|urlize(10, true) }}", "{{ v|urlize(-3, rel='z a noopener', target='_blank') }}",
               "{{ v|urlize(extra_schemes=['tel:', 'ftp://', 'x+y:']) }}", "{{ v|safe|urlize(trim_url_limit=0) }}"],
    "wordwrap": ["{{ v|wordwrap }}", "{{ v|wordwrap(10) }}", "{{ v|wordwrap(7, false) }}", "{{ v|wordwrap(5, true, '|') }}", "{{ v|wordwrap(12, true, none, false) }}",
                 "{{ v|wordwrap(9, break_on_hyphens=1) }}", "{{ v|wordwrap(1) }}", "{{ v|wordwrap(6, break_long_words=false, wrapstring='\\r\\n', break_on_hyphens=false) }}"],
    "pprint": ["{{ v|pprint }}", "{{ [v, v]|pprint }}", "{{ (v,)|pprint }}", "{{ {'k': v, 1: v, none: 2, true: 3, 2.5: [v], (1, 'a'): 1, (1, 'B'): 0}|pprint }}"],
}
FIXED = {
    "striptags": ["", "a<b>c</b>d", "a <!-- x <b> --> b", "<!-->x-->y", "<!--->x-->y", "<!<!-- a -->-- b -->c", "a <!-- b <i>c", "x<y", "x<y>z<", " \t a \n\n b \u00a0 c ", "&lt;b&gt;", "&amp;lt;", "&notit;",
                  "&notin;", "&copy2", "&#65;&#x41;&#X41", "&#0;&#13;&#128;&#x9f;&#xd800;&#x110000;&#99999999999;&#11;&#xfdd0;&#x1ffff;", "&#;&#x;&;& &a", "&" + "a" * 40 + ";", "&é;&euro", "Main &raquo;\t<em>About</em>",
                  "&lt<b>;</b>", 5, None, ["<a>", 1.5], "<<a>>b", "a>b", "<!--", "-->", "&#", "&#x", "&", "&ngE;&NotEqualTilde;&nbsp"],
    "urlize": ["", "see http://example.com.", "(www.example.com)", "<http://a.b.com/x(y)>", "http://a.com/(x)", "http://a.com/(x", "((http://a.com/x))", "https://1.2.3.4:80/x", "http://[::1]/", "http://[1:2:3:4:5:6:7:8]:99999",
               "http://[1:2:3:4:5:6:7:8]:123456", "mailto:a@b.c", "mailto:a@b", "a@b.com", "@a@b.com", "a@b@c.de", "www.a@b.com", "x.com", "a.com", "ab.com", "ab.xyz", "ab.com:8080/q?x=1#y", "HTTP://Example.COM/", "WWW.EXAMPLE.COM",
               "http://localhost", "http://localhost:5000/", "http://xn--80ak6aa92e.com", "http://a.xn--p1ai", "https://x.y%20z.com/ü", "www.exa\u017fmple.\u212aom", "a.b@c-d.ef.", "tel:123", "tel:", "ftp://x", "x+y:1", "a&b <c> 'd' \"e\"",
               "http://a.com/?a=1&b=2", "<a@b.cd>,", "&lt;http://a.com&gt;", "http://a.com\nhttp://b.com\u3000www.c.com", "http://", "www.", "http://a..com", "http://-.com", "http://a.c", "http://a.com.", "http://a.com..,)", "\u0661.com",
               "http://\u0661.2.3.4", "ab-cd.info,", "http://a.com&#39;", 5, None, ["http://a.com"], "x" * 70 + ".com", "http://" + "l" * 70, "ab.comx", "https://a.com:", "a.b.c@d.e-f", "a@1.2"],
    "wordwrap": ["", "a", "a b c d e f g h i j k l m n o p", "Look, goof-ball -- use the -b option!", "well-known state-of-the-art x-ray e-mail a-b-c-d", "this--is--a test--", "----", "a----b", "word" * 10, "aaa-bbb-ccc-ddd-eee",
                 "  lead  and   trail   ", "one\ntwo three four\r\nfive\x0bsix\u2028seven", "\n\n", "tab\there\tand there", "é-à-ü ñandú-écrit mañana", "1-2-3-4 12-34-56 a1-b2", "x \u00a0 y \u00a0\u00a0\u00a0\u00a0\u00a0\u00a0\u00a0 z",
                 "-------------- a", "a -------------- b", "foo--bar,--baz'--qux", "abc  " * 6, "a" * 5 + " " * 12 + "b", "日本語 のテキスト-です", "_a-b_c-d_"],
    "pprint": ["", "x", 1, None, True, 1.5, [], {}, [1, 2, 3], {"b": 1, "a": [1, {"z": None, "y": "q"}]}, "word " * 30, "a" * 100, "line one\nline two is longer " * 5, {"key": "text with many words in it " * 6},
               [list(range(60))], {"k%d" % i: "v" * i for i in range(12)}, [["x" * 30, "y" * 30, "z" * 30]], {"a": {"b": {"c": {"d": ["long text here"] * 5}}}}, "it's \"quoted\" " * 9, "\u00a0\t\x00\x7fé\ud7ff" * 20, [[[]] * 40],
               [{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The city's name, as people write it " * 3}}}}]],
}


def words(r):
    kind = r.choice([" ", "-", "--", "<", ">", "&", ";", "\n", "\t", ".", ",", "(", ")", "@", ":", "/", "a", "bc", "x1", "é", "日", "'", "\"", "_", "%", "#", "?", "\u00a0", "www.", "http://", "https://", "com", ".org", "mailto:",
                     "&lt;", "&gt;", "&amp", "&#6", "&not", "<!--", "-->", "tel:", "7", "[", "]", "::1"])
    return kind


def random_text(r):
    return "".join(words(r) for _ in range(r.choice([1, 3, 8, 20, 60])))


def random_value(r, depth=0):
    kind = r.randrange(9 if depth < 4 else 5)
    if kind < 3:
        return random_text(r)
    if kind == 3:
        return r.choice([None, True, False, 0, -7, 10 ** 15, 0.1, 1e30])
    if kind == 4:
        return "lorem ipsum " * r.randrange(12)
    if kind < 7:
        return [random_value(r, depth + 1) for _ in range(r.randrange(6))]
    return {random_text(r)[:12]: random_value(r, depth + 1) for _ in range(r.randrange(6))}


def render(tool, template, values):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as t, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        t.write(template)
        t.flush()
        f.write("".join(json.dumps({"vars": {"v": v}}) + "\n" for v in values))
        f.flush()
        p = subprocess.run([tool, "render", "--template", t.name, "--jsonl", f.name], capture_output=True, timeout=300)
    if p.returncode:
        return [{"error": p.stderr.decode().strip()}] * len(values)
    return [json.loads(line) for line in p.stdout.decode().split("\n") if line]


def main():
    tool, rnd = sys.argv[1], random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    env = jinja2.Environment()
    total = bad = 0
    for name, templates in TEMPLATES.items():
        values = list(FIXED[name])
        if name == "striptags":
            values += ["&%s" % n for n in html.entities.html5] + ["&%sx" % n.rstrip(";") for n in html.entities.html5] + ["&#%d;" % n for n in list(range(300)) + list(range(0xfd00, 0xfe00))]
        values += [random_value(rnd) if name == "pprint" else random_text(rnd) for _ in range(400)]
        for template in templates:
            compiled = env.from_string(template)
            for value, got in zip(values, render(tool, template, values)):
                try:
                    want = {"text": compiled.render(v=value)}
                except Exception as e:  # what Python refuses is refused here, in other words
                    want = {"error": str(e)}
                total += 1
                if list(got) != list(want) or ("text" in want and got != want):
                    bad += 1
                    if bad <= 20:
                        print(f"{template} of {value!r:.300}:\n   expected {want!r:.400}\n   got      {got!r:.400}")
    print(f"{total} renderings, {bad} wrong")
    return 1 if bad or total < 10000 else 0


if __name__ == "__main__":
    sys.exit(main())
