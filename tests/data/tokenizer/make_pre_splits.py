#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pre_splits.json: how pre-tokenizers cut texts, by the 'regex' module of PyPI.

usage: make_pre_splits.py OUT.json [N_RANDOM [SEED]]

The patterns are spelled here as the tokenizer.json files of the models spell them (independently of the table in
engine/text/tok_pre.c), except that case-insensitive contractions list both cases: (?i:'s) would also match U+017F.
A step may also be ("punctuation", ...) and the like, for pre-tokenizers that are no patterns.
"""
import json
import random
import sys

import regex

C = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
QWEN2 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
QWEN35 = C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + END
O200K = (r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+" + C + "?|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*" + C +
         r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END)
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW +
          r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END)
KUP, KLOW = r"[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]", r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + KUP + "*" + KLOW + "+" + C + r"?|[^\r\n\p{L}\p{N}]?" + KUP + "+" + KLOW +
        "*" + C + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END)
DS3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
       + END)
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK2 = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"

RULES = {
    "default": [r"[\p{P}\$\+<=>\^\~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "gpt-4o": [O200K],
    "tekken": [TEKKEN],
    "kimi-k2": [KIMI],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*(?![\p{L}\p{M}\p{Nd}\p{Pc}]))", O200K],  # \b after a digit
    "deepseek-llm": ["[\r\n]",
                     r"\s?[A-Za-z" + "".join(c for c in map(chr, range(0x80, 0x1e944)) if regex.match(r"[\p{Lu}\p{Ll}\p{Lt}]", c)) + "]+",
                     r"\s?[!-/:-\~！-／：-～‘-‟\u3000-\u3002]+", r"\s+$", CJK2, r"\p{N}"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK2, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, DS3],
    "falcon": [r"[\p{P}$+<=>^\~|`]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
                   r"\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + END],
    "exaone-moe": [C + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|"
                   r"\s+(?!\S)|\s+"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-\~]", GPT2],
    "jais-2": [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|"
               r"\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"],
    "minicpm5": [r"\p{N}{1,3}", C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END],
}

TEXTS = [
    "Hello, world! It's 12345 o'clock; THEY'LL say we've 'd 's.", "  two  spaces   three\t\ttabs \n\n new  line \r\n end  ",
    "naïve façade Straße ΑΒΓαβγ Привет МИР fooBarBAZqux HTTPServer", "e\u0301 a\u0308o\u0308 \u0915\u094d\u0937\u093f \u0e01\u0e33\u0e25\u0e31\u0e07",
    "中文字符，测试。かなカナ漢字 한국어 조선말 ㄱㄴ 々〇", "3.14159 1,234,567 ½ ²³ Ⅷ 四 ١٢٣٤٥ 1234abc 12345 1234567 a1b22c333d4444",
    "def f(x):\n    return {'a': x ** 2}  # ok\n\n\n\tif x != y:\r\n\t\tpass\n", "$x = <div class=\"a\">&nbsp;</div>; //c\n/* d */ ~`^|=+<>",
    "😀👍🏽 👨‍👩‍👧 ™ © ∑ → ‘quoted’ “text” … — –", "\u00a0\u2003x\u3000y\u0085z\u2028w\ufeffv\u200bu", "a\u0300\u0301b\u0327 \u0301 \u20dd",
    "<sentinel:12> IMGIMGABCZ [INST] <<SYS>>", "!!!wow #tag @user ...and/or http://a.b/c?d=e&f=g%20h", "x" * 40 + " " * 37 + "y", "'S'T'RE'VE'M'LL'D 's't're",
    " ", "\n", " \n ", "\n \n  \n", "a \n b", "12 34  567   8", "ǅ ǈ ǋ ǲ ªº ʰ ᴬ Ა ა Ꭰ ꭰ", "", "A", "1", "\x00\x01\x7f", " a b c  d e", "ab cd ef",
]


def steps(rule, text):
    parts = [text]
    for pattern in rule:
        compiled = regex.compile(pattern, regex.V1)
        after = []
        for part in parts:
            at = 0
            for m in compiled.finditer(part):
                if m.start() > at:
                    after.append(part[at:m.start()])
                if m.end() > m.start():
                    after.append(m.group())
                at = m.end()
            if at < len(part):
                after.append(part[at:])
        parts = after
    return parts


def random_texts(n, seed):
    r = random.Random(seed)
    atoms = [" ", " ", "  ", "\n", "\r\n", "\t", "'s", "'Re", "'", "a", "b", "Z", "Q", "é", "Ж", "ж", "ß", "中", "文", "か", "カ", "한",
             "1", "22", "333", "4444", "½", "٣", "!", ".", ",", "/", "-", "_", "$", "+", "<", "(", ")", "。", "，", "“", "\u0301", "\u093f",
             "😀", "\u200d", "\u00a0", "\u3000", "\u0085", "ǅ", "ʰ", "々", "™", "\\", "~", "^", "|", "`"]
    return ["".join(r.choice(atoms) for _ in range(r.randint(1, 24))) for _ in range(n)]


def main():
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    texts = TEXTS + random_texts(n, seed)
    with open(sys.argv[1], "w") as f:
        json.dump({"texts": texts, "words": {name: [steps(rule, t) for t in texts] for name, rule in RULES.items()}}, f,
                  separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
