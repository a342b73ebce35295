/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns of JSON schemas (ECMA-262 syntax, searched for) to automata.
 * Where ECMA-262 and Python's re differ (\d \w \s and '.' beyond ASCII, '$'
 * before a last line end), only what both accept is accepted, so that every
 * validator agrees with the output. Look-around, back references and word
 * boundaries are not regular and are refused.
 */
#include <string.h>
#include <utf8proc.h>

#include "engine/text/gram_dfa.h"

#define MAX_NESTING 100
#define MAX_REPEAT 4096

struct frag { uint32_t in, out; };
struct regex {
        struct t_ctx *c;
        const char *p;
        size_t n, at;
        unsigned depth;
        struct nfa nfa;
};

static struct frag alternatives(struct regex *x);

static bool more(const struct regex *x) {
        return x->at < x->n;
}

static bool skip(struct regex *x, char ch) {
        if (!more(x) || x->p[x->at] != ch)
                return false;
        x->at++;
        return true;
}

static uint32_t code_point(struct regex *x) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t k = utf8proc_iterate((const uint8_t *)x->p + x->at, (utf8proc_ssize_t)(x->n - x->at), &cp);

        if (k <= 0)
                t_fail(x->c, "the pattern is not valid UTF-8 at byte %zu", x->at);
        x->at += (size_t)k;
        return (uint32_t)cp;
}

static struct frag frag_set(struct regex *x, const struct nfa_set *s) {
        struct frag f = { nfa_state(&x->nfa), nfa_state(&x->nfa) };
        nfa_add(&x->nfa, f.in, NFA_SET, s, f.out);
        return f;
}

/* ---- classes ---- */

static bool unicode_digit(utf8proc_int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND; }
static bool unicode_word(utf8proc_int32_t cp) {
        utf8proc_category_t cat = utf8proc_category(cp);
        return cp == '_' || (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) ||
               (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO);
}

/* Everything but what 'test' finds anywhere in Unicode: the negated classes. */
static void add_outside(struct regex *x, struct nfa_set *s, bool (*test)(utf8proc_int32_t)) {
        uint32_t from = 0;

        for (uint32_t cp = 0; cp <= DFA_MAX_CP + 1; cp++) {
                if (cp <= DFA_MAX_CP && !test((utf8proc_int32_t)cp))
                        continue;
                if (cp > from)
                        nfa_set_add(x->c, s, from, cp - 1);
                from = cp + 1;
        }
}

static void add_ranges(struct regex *x, struct nfa_set *s, const struct nfa_range *r, size_t n) {
        for (size_t i = 0; i < n; i++)
                nfa_set_add(x->c, s, r[i].lo, r[i].hi);
}

/* White space of both ECMA-262 and Python; and of either. */
static const struct nfa_range space_both[] = { { 9, 13 }, { 32, 32 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200a },
        { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 } };
static const struct nfa_range space_either[] = { { 9, 13 }, { 0x1c, 0x20 }, { 0x85, 0x85 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 },
        { 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 }, { 0xfeff, 0xfeff } };
static const struct nfa_range digits[] = { { '0', '9' } };
static const struct nfa_range word[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };

/*
 * A class of what both accept. Within a negated bracket ('wide') of what either
 * accepts, so that what is left is again what both do.
 */
static bool add_class(struct regex *x, struct nfa_set *s, char ch, bool wide) {
        struct nfa_set either = { 0 }, in = { 0 };

        if (wide && strchr("dwsDWS", ch) && ch) { /* the complement of what both leave to the opposite class */
                add_class(x, &in, ch ^ 32, false);
                nfa_set_normalize(&in);
                in = *nfa_set_complement(x->c, &in);
                add_ranges(x, s, in.r, in.n);
                return true;
        }
        switch (ch) {
        case 'd': add_ranges(x, s, digits, ELEMENTSOF(digits)); return true;
        case 'w': add_ranges(x, s, word, ELEMENTSOF(word)); return true;
        case 's': add_ranges(x, s, space_both, ELEMENTSOF(space_both)); return true;
        case 'D': add_outside(x, s, unicode_digit); return true;
        case 'W': add_outside(x, s, unicode_word); return true;
        case 'S':
                add_ranges(x, &either, space_either, ELEMENTSOF(space_either));
                nfa_set_normalize(&either);
                either = *nfa_set_complement(x->c, &either);
                add_ranges(x, s, either.r, either.n);
                return true;
        }
        return false;
}

static uint32_t hex(struct regex *x, unsigned digits_wanted) {
        uint32_t v = 0;

        for (unsigned i = 0; i < digits_wanted; i++) {
                char ch = more(x) ? x->p[x->at] : 0;
                int d = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
                if (d < 0)
                        t_fail(x->c, "a hexadecimal escape in the pattern is too short");
                v = v * 16 + (uint32_t)d;
                x->at++;
        }
        return v;
}

/* An escape that stands for one character; x->at is behind the backslash. */
static uint32_t escape_char(struct regex *x) {
        static const char from[] = "fnrtv0", to[] = "\f\n\r\t\v";
        char ch = x->p[x->at];
        const char *e = strchr(from, ch);
        uint32_t hi, lo;

        if (e && ch) {
                x->at++;
                return ch == '0' ? 0 : (uint32_t)to[e - from];
        }
        if (ch == 'x') {
                x->at++;
                return hex(x, 2);
        }
        if (ch == 'u') {
                x->at++;
                if (skip(x, '{')) {
                        uint32_t v = 0;
                        while (more(x) && x->p[x->at] != '}' && v <= DFA_MAX_CP)
                                v = v * 16 + hex(x, 1);
                        if (!skip(x, '}') || v > DFA_MAX_CP)
                                t_fail(x->c, "a \\u{...} escape in the pattern is broken");
                        return v;
                }
                hi = hex(x, 4);
                if (hi >= 0xd800 && hi < 0xdc00 && x->n - x->at >= 6 && x->p[x->at] == '\\' && x->p[x->at + 1] == 'u') {
                        x->at += 2;
                        lo = hex(x, 4);
                        return 0x10000 + ((hi - 0xd800) << 10) + ((lo - 0xdc00) & 0x3ff);
                }
                return hi;
        }
        if (ch == 'c' && x->at + 1 < x->n) {
                x->at += 2;
                return (uint32_t)x->p[x->at - 1] & 31;
        }
        if ((ch >= '1' && ch <= '9') || ch == 'k')
                t_fail(x->c, "back references in a pattern are not supported");
        if (ch == 'b' || ch == 'B')
                t_fail(x->c, "'\\%c' in a pattern is not supported", ch);
        if (ch == 'p' || ch == 'P')
                t_fail(x->c, "'\\%c{...}' in a pattern is not supported", ch);
        if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'))
                t_fail(x->c, "unknown escape '\\%c' in the pattern", ch);
        return code_point(x);
}

static const struct nfa_set *bracket(struct regex *x) {
        struct nfa_set *s = t_alloc(x->c, sizeof(*s));
        bool negated = skip(x, '^');

        for (bool first = true;; first = false) {
                uint32_t lo, hi;
                bool is_class = false;
                if (!more(x))
                        t_fail(x->c, "']' is missing in the pattern");
                if (skip(x, ']')) {
                        if (first && !negated)
                                t_fail(x->c, "an empty class in the pattern matches nothing");
                        break;
                }
                if (skip(x, '\\')) {
                        if (!more(x))
                                t_fail(x->c, "the pattern ends with a backslash");
                        is_class = add_class(x, s, x->p[x->at], negated);
                        if (is_class) {
                                x->at++;
                                continue;
                        }
                        if (x->p[x->at] == 'b') {
                                x->at++;
                                lo = 8;
                        } else {
                                lo = escape_char(x);
                        }
                } else {
                        lo = code_point(x);
                }
                hi = lo;
                if (x->at + 1 < x->n && x->p[x->at] == '-' && x->p[x->at + 1] != ']') {
                        size_t back = x->at++;
                        if (skip(x, '\\')) {
                                if (more(x) && strchr("dDwWsS", x->p[x->at])) {
                                        x->at = back; /* "a-\d" is three things */
                                        nfa_set_add(x->c, s, lo, lo);
                                        nfa_set_add(x->c, s, '-', '-');
                                        x->at++;
                                        continue;
                                }
                                hi = escape_char(x);
                        } else {
                                hi = code_point(x);
                        }
                        if (hi < lo)
                                t_fail(x->c, "a range in the pattern is out of order");
                }
                nfa_set_add(x->c, s, lo, hi);
        }
        nfa_set_normalize(s);
        return negated ? nfa_set_complement(x->c, s) : s;
}

/* ---- structure ---- */

static struct frag atom(struct regex *x) {
        static const struct nfa_range ends[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };
        struct nfa_set *s = t_alloc(x->c, sizeof(*s));
        struct frag f;

        switch (x->p[x->at]) {
        case '(':
                x->at++;
                if (skip(x, '?')) {
                        if (skip(x, '<') || skip(x, 'P')) {
                                if (more(x) && (x->p[x->at] == '=' || x->p[x->at] == '!'))
                                        t_fail(x->c, "look-around in a pattern is not supported");
                                while (more(x) && x->p[x->at] != '>')
                                        x->at++;
                                if (!skip(x, '>'))
                                        t_fail(x->c, "a group's name in the pattern has no end");
                        } else if (!skip(x, ':')) {
                                t_fail(x->c, "'(?%c' in a pattern is not supported", more(x) ? x->p[x->at] : ' ');
                        }
                }
                f = alternatives(x);
                if (!skip(x, ')'))
                        t_fail(x->c, "')' is missing in the pattern");
                return f;
        case '[':
                x->at++;
                return frag_set(x, bracket(x));
        case '.':
                x->at++;
                add_ranges(x, s, ends, ELEMENTSOF(ends));
                return frag_set(x, nfa_set_complement(x->c, s));
        case '^':
        case '$':
                f = (struct frag){ nfa_state(&x->nfa), nfa_state(&x->nfa) };
                nfa_add(&x->nfa, f.in, x->p[x->at++] == '^' ? NFA_BOL : NFA_EOL, NULL, f.out);
                return f;
        case '*':
        case '+':
        case '?':
                t_fail(x->c, "'%c' in the pattern has nothing to repeat", x->p[x->at]);
        case '\\':
                x->at++;
                if (!more(x))
                        t_fail(x->c, "the pattern ends with a backslash");
                if (add_class(x, s, x->p[x->at], false)) {
                        x->at++;
                        nfa_set_normalize(s);
                        return frag_set(x, s);
                }
                {
                        uint32_t cp = escape_char(x);
                        nfa_set_add(x->c, s, cp, cp);
                        return frag_set(x, s);
                }
        default: {
                uint32_t cp = code_point(x);
                nfa_set_add(x->c, s, cp, cp);
                return frag_set(x, s);
        }
        }
}

/* {m}, {m,} or {m,n}; false if the brace is an ordinary character */
static bool counts(struct regex *x, size_t *ret_min, size_t *ret_max) {
        size_t i = x->at + 1, v[2] = { 0, 0 };
        bool comma = false, second = false;

        if (i >= x->n || x->p[i] < '0' || x->p[i] > '9')
                return false;
        for (; i < x->n && x->p[i] != '}'; i++) {
                if (x->p[i] == ',' && !comma) {
                        comma = true;
                } else if (x->p[i] >= '0' && x->p[i] <= '9') {
                        v[comma] = v[comma] * 10 + (size_t)(x->p[i] - '0');
                        second = comma;
                        if (v[comma] > MAX_REPEAT)
                                t_fail(x->c, "a repetition in the pattern is over %d", MAX_REPEAT);
                } else {
                        return false;
                }
        }
        if (i >= x->n)
                return false;
        x->at = i + 1;
        *ret_min = v[0];
        *ret_max = !comma ? v[0] : second ? v[1] : SIZE_MAX;
        if (*ret_max < *ret_min)
                t_fail(x->c, "a repetition in the pattern is out of order");
        return true;
}

static struct frag join(struct regex *x, struct frag a, struct frag b) {
        nfa_add(&x->nfa, a.out, NFA_EPS, NULL, b.in);
        return (struct frag){ a.in, b.out };
}

static struct frag empty(struct regex *x) {
        uint32_t s = nfa_state(&x->nfa);
        return (struct frag){ s, s };
}

static struct frag repeated(struct regex *x) {
        size_t start = x->at, end, min = 1, max = 1;
        struct frag f = atom(x), r;

        end = x->at;
        if (!more(x))
                return f;
        if (skip(x, '*')) {
                min = 0;
                max = SIZE_MAX;
        } else if (skip(x, '+')) {
                max = SIZE_MAX;
        } else if (skip(x, '?')) {
                min = 0;
        } else if (x->p[x->at] != '{' || !counts(x, &min, &max)) {
                return f;
        }
        skip(x, '?'); /* lazy: the same language */
        if (more(x) && (x->p[x->at] == '*' || x->p[x->at] == '+'))
                t_fail(x->c, "'%c' in the pattern has nothing to repeat", x->p[x->at]);
        size_t after = x->at;
        uint32_t done = nfa_state(&x->nfa);
        r = empty(x);
        /* the atom is read again for each copy */
        for (size_t i = 0; i < (max == SIZE_MAX ? min + 1 : max); i++) {
                struct frag one = f;
                if (i > 0) {
                        x->at = start;
                        one = atom(x);
                        if (x->at != end)
                                t_fail(x->c, "the pattern can't be read twice");
                }
                if (max == SIZE_MAX && i == min)
                        nfa_add(&x->nfa, one.out, NFA_EPS, NULL, one.in);
                if (i >= min) /* leaving out one leaves out all behind it */
                        nfa_add(&x->nfa, r.out, NFA_EPS, NULL, done);
                r = join(x, r, one);
        }
        nfa_add(&x->nfa, r.out, NFA_EPS, NULL, done);
        x->at = after;
        return (struct frag){ r.in, done };
}

static struct frag sequence(struct regex *x) {
        struct frag f = empty(x);
        while (more(x) && x->p[x->at] != '|' && x->p[x->at] != ')')
                f = join(x, f, repeated(x));
        return f;
}

static struct frag alternatives(struct regex *x) {
        struct frag f = { 0, 0 };

        if (++x->depth > MAX_NESTING)
                t_fail(x->c, "the pattern is nested more than %d deep", MAX_NESTING);
        f.in = nfa_state(&x->nfa);
        f.out = nfa_state(&x->nfa);
        do {
                struct frag s = sequence(x);
                nfa_add(&x->nfa, f.in, NFA_EPS, NULL, s.in);
                nfa_add(&x->nfa, s.out, NFA_EPS, NULL, f.out);
        } while (skip(x, '|'));
        x->depth--;
        return f;
}

const struct dfa *dfa_pattern(struct t_ctx *c, const char *p, size_t n) {
        struct regex x = { .c = c, .p = p, .n = n };
        struct nfa_set *all = t_alloc(c, sizeof(*all));
        uint32_t start;
        struct frag f;

        nfa_init(&x.nfa, c);
        start = nfa_state(&x.nfa);
        nfa_set_add(c, all, 0, DFA_MAX_CP);
        f = alternatives(&x);
        if (more(&x))
                t_fail(c, "unexpected ')' in the pattern");
        /* anything before and after: a search. '^' only holds before the first character, '$' after the last. */
        uint32_t loop = nfa_state(&x.nfa), tail = nfa_state(&x.nfa);
        nfa_add(&x.nfa, start, NFA_EPS, NULL, f.in);
        nfa_add(&x.nfa, start, NFA_SET, all, loop);
        nfa_add(&x.nfa, loop, NFA_SET, all, loop);
        nfa_add(&x.nfa, loop, NFA_EPS, NULL, f.in);
        nfa_add(&x.nfa, f.out, NFA_SET, all, tail);
        nfa_add(&x.nfa, tail, NFA_SET, all, tail);
        x.nfa.label[f.out] = 0;
        x.nfa.label[tail] = 0;
        return dfa_from_nfa(&x.nfa);
}
