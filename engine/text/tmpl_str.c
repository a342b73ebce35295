/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strings with provenance: building, searching, slicing by code point, case.
 * Text is UTF-8; a byte that is not part of a valid sequence counts as one
 * code point, so that no input can make an index run out of step.
 * Case and white space follow Python's str (Unicode simple mappings plus the
 * sharp s), with utf8proc's tables.
 */
#include <stdarg.h>
#include <stdio.h>
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

void t_sb_init(struct t_sb *b, struct t_ctx *c) {
        *b = (struct t_sb){ .c = c };
}

static void sb_room(struct t_sb *b, size_t n) {
        size_t need, old = b->cap, cap2 = b->cap;

        if (!size_add(b->n, n, &need) || (b->max && need > b->max))
                t_fail_code(b->c, HEARTH_E_template_invalid, "line %d: the template's output passes its limit of %zu bytes",
                            b->c->line, b->max);
        if (need <= old)
                return;
        b->p = t_grow(b->c, b->p, b->n, &b->cap, need < 64 ? 64 : need, 1);
        if (b->trust == T_MIXED)
                b->mark = t_grow(b->c, b->mark, b->n, &cap2, b->cap, 1);
}

void t_sb_put(struct t_sb *b, const char *p, size_t n, int trust) {
        if (n == 0)
                return;
        sb_room(b, n);
        if (b->n == 0) {
                b->trust = (uint8_t)trust;
        } else if (b->trust != T_MIXED && b->trust != trust) {
                b->mark = t_alloc(b->c, b->cap);
                memset(b->mark, b->trust, b->n);
                b->trust = T_MIXED;
        }
        memcpy(b->p + b->n, p, n);
        if (b->trust == T_MIXED)
                memset(b->mark + b->n, trust, n);
        b->n += n;
}

void t_sb_sub(struct t_sb *b, const struct t_str *s, size_t off, size_t n) {
        if (s->trust != T_MIXED) {
                t_sb_put(b, s->p + off, n, s->trust);
                return;
        }
        for (size_t i = off, end = off + n; i < end;) { /* runs of equal marks */
                size_t k = i + 1;
                while (k < end && s->mark[k] == s->mark[i])
                        k++;
                t_sb_put(b, s->p + i, k - i, s->mark[i]);
                i = k;
        }
}

void t_sb_str(struct t_sb *b, const struct t_str *s) {
        t_sb_sub(b, s, 0, s->n);
}

void t_sb_as(struct t_sb *b, const char *p, size_t n, const struct t_str *s, size_t off) {
        t_sb_put(b, p, n, s->trust == T_MIXED ? s->mark[off] : s->trust);
}

void t_sb_lit(struct t_sb *b, const char *s) {
        t_sb_put(b, s, strlen(s), T_TRUSTED);
}

void t_sb_printf(struct t_sb *b, const char *fmt, ...) {
        char text[512]; /* numbers and type names only */
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        t_sb_lit(b, text);
}

const struct t_str *t_sb_done(struct t_sb *b) {
        struct t_str *s = t_alloc(b->c, sizeof(*s));

        *s = (struct t_str){ .p = b->n ? b->p : "", .n = b->n, .trust = b->trust,
                             .mark = b->trust == T_MIXED ? b->mark : NULL };
        return s;
}

const struct t_str *t_str_new(struct t_ctx *c, const char *p, size_t n, int trust) {
        struct t_sb b;
        t_sb_init(&b, c);
        t_sb_put(&b, p, n, trust);
        return t_sb_done(&b);
}

const struct t_str *t_str_lit(struct t_ctx *c, const char *s) {
        struct t_str *r = t_alloc(c, sizeof(*r));
        *r = (struct t_str){ .p = s, .n = strlen(s) };
        return r;
}

const struct t_str *t_str_sub(struct t_ctx *c, const struct t_str *s, size_t off, size_t n) {
        struct t_str *r;

        if (off == 0 && n == s->n)
                return s;
        r = t_alloc(c, sizeof(*r));
        *r = *s;
        r->p += off;
        r->n = n;
        if (r->mark)
                r->mark += off;
        return r;
}

const struct t_str *t_str_cat(struct t_ctx *c, const struct t_str *a, const struct t_str *b) {
        struct t_sb sb;
        t_sb_init(&sb, c);
        sb_room(&sb, a->n + b->n);
        t_sb_str(&sb, a);
        t_sb_str(&sb, b);
        return t_sb_done(&sb);
}

bool t_str_eq(const struct t_str *a, const struct t_str *b) {
        return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

bool t_str_is(const struct t_str *a, const char *lit) {
        return a->n == strlen(lit) && memcmp(a->p, lit, a->n) == 0;
}

int t_str_cmp(const struct t_str *a, const struct t_str *b) {
        int r = memcmp(a->p, b->p, MIN(a->n, b->n)); /* UTF-8 sorts as code points do */
        return r ? (r > 0) - (r < 0) : (a->n > b->n) - (a->n < b->n);
}

bool t_str_starts(const struct t_str *s, const struct t_str *x) {
        return s->n >= x->n && memcmp(s->p, x->p, x->n) == 0;
}

bool t_str_ends(const struct t_str *s, const struct t_str *x) {
        return s->n >= x->n && memcmp(s->p + s->n - x->n, x->p, x->n) == 0;
}

ptrdiff_t t_str_find(const struct t_str *s, const struct t_str *x, size_t from, size_t to) {
        const char *p;

        if (from > to || to - from < x->n)
                return -1;
        if (x->n == 0)
                return (ptrdiff_t)from;
        p = memmem(s->p + from, to - from, x->p, x->n);
        return p ? p - s->p : -1;
}

ptrdiff_t t_str_rfind(const struct t_str *s, const struct t_str *x, size_t from, size_t to) {
        if (from > to || to - from < x->n)
                return -1;
        for (size_t i = to - x->n;; i--) {
                if (memcmp(s->p + i, x->p, x->n) == 0)
                        return (ptrdiff_t)i;
                if (i == from)
                        return -1;
        }
}

size_t t_cp(const char *p, size_t n, int32_t *ret) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t k;

        if ((unsigned char)p[0] < 0x80) {
                *ret = (unsigned char)p[0];
                return 1;
        }
        k = utf8proc_iterate((const uint8_t *)p, n > 4 ? 4 : (utf8proc_ssize_t)n, &cp);
        if (k <= 0) {
                *ret = 0xfffd;
                return 1;
        }
        *ret = cp;
        return (size_t)k;
}

size_t t_cp_len(const struct t_str *s) {
        size_t n = 0;
        int32_t cp;

        for (size_t i = 0; i < s->n; n++)
                i += t_cp(s->p + i, s->n - i, &cp);
        return n;
}

size_t t_cp_off(const struct t_str *s, size_t index) {
        size_t i = 0;
        int32_t cp;

        while (index-- > 0 && i < s->n)
                i += t_cp(s->p + i, s->n - i, &cp);
        return i;
}

bool t_is_space(int32_t cp) {
        if (cp < 0x80)
                return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
        return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
               cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool t_is_word(int32_t cp) {
        utf8proc_category_t cat = utf8proc_category(cp);
        return cp == '_' || (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) || (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO);
}

static bool strip_char(const struct t_str *chars, const char *p, size_t n, int32_t cp) {
        if (!chars)
                return t_is_space(cp);
        for (size_t i = 0; i < chars->n;) {
                int32_t x;
                size_t k = t_cp(chars->p + i, chars->n - i, &x);
                if (k == n && memcmp(chars->p + i, p, n) == 0)
                        return true;
                i += k;
        }
        return false;
}

const struct t_str *t_strip(struct t_ctx *c, const struct t_str *s, const struct t_str *chars, int sides) {
        size_t a = 0, z = s->n;
        int32_t cp;

        while ((sides & 1) && a < z) {
                size_t k = t_cp(s->p + a, z - a, &cp);
                if (!strip_char(chars, s->p + a, k, cp))
                        break;
                a += k;
        }
        while ((sides & 2) && z > a) {
                size_t k = z - 1;
                while (k > a && z - k < 4 && ((unsigned char)s->p[k] & 0xc0) == 0x80)
                        k--;
                if (t_cp(s->p + k, z - k, &cp) != z - k) {
                        k = z - 1;
                        cp = 0xfffd;
                }
                if (!strip_char(chars, s->p + k, z - k, cp))
                        break;
                z = k;
        }
        return t_str_sub(c, s, a, z - a);
}

static void put_cp(struct t_sb *b, int32_t cp, const struct t_str *s, size_t off) {
        utf8proc_uint8_t u[4];
        utf8proc_ssize_t n = utf8proc_encode_char(cp, u);
        t_sb_as(b, (const char *)u, (size_t)n, s, off);
}

const struct t_str *t_recase(struct t_ctx *c, const struct t_str *s, enum t_case how) {
        bool start = true; /* the next letter begins a word */
        struct t_sb b;

        t_sb_init(&b, c);
        for (size_t i = 0; i < s->n;) {
                int32_t cp;
                size_t k = t_cp(s->p + i, s->n - i, &cp);
                int32_t up = utf8proc_toupper(cp), lo = utf8proc_tolower(cp), to = lo;
                bool cased = up != cp || lo != cp, upper = false;

                switch (how) {
                case T_UPPER: to = up; upper = true; break;
                case T_LOWER: break;
                case T_CAPITALIZE:
                        upper = i == 0;
                        to = upper ? utf8proc_totitle(cp) : lo;
                        break;
                case T_TITLE: /* after anything without case */
                        upper = start;
                        to = start ? utf8proc_totitle(cp) : lo;
                        start = !cased;
                        break;
                case T_TITLE_FILTER: /* Jinja: after white space and - ( { [ < only */
                        upper = start;
                        to = start ? up : lo;
                        start = t_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", cp));
                        break;
                case T_SWAPCASE:
                        upper = lo == cp;
                        to = lo != cp ? lo : up;
                        break;
                case T_CASEFOLD:
                        if (cp == 0xdf) {
                                t_sb_as(&b, "ss", 2, s, i);
                                i += k;
                                continue;
                        }
                        break;
                }
                if (cp == 0xdf && upper) {
                        bool title = how == T_CAPITALIZE || how == T_TITLE;
                        t_sb_as(&b, title ? "Ss" : "SS", 2, s, i);
                } else if (to == cp) {
                        t_sb_sub(&b, s, i, k); /* broken bytes stay as they are */
                } else {
                        put_cp(&b, to, s, i);
                }
                i += k;
        }
        return t_sb_done(&b);
}

const struct t_str *t_replace(struct t_ctx *c, const struct t_str *s, const struct t_str *from, const struct t_str *to,
                              int64_t count) {
        struct t_sb b;
        size_t at = 0;

        t_sb_init(&b, c);
        if (from->n == 0) { /* between all code points, as Python does */
                for (size_t i = 0; count != 0; count--) {
                        int32_t cp;
                        size_t k;
                        t_sb_str(&b, to);
                        if (i >= s->n)
                                return t_sb_done(&b);
                        k = t_cp(s->p + i, s->n - i, &cp);
                        t_sb_sub(&b, s, i, k);
                        at = i += k;
                }
                t_sb_sub(&b, s, at, s->n - at);
                return t_sb_done(&b);
        }
        while (count != 0) {
                ptrdiff_t p = t_str_find(s, from, at, s->n);
                if (p < 0)
                        break;
                t_sb_sub(&b, s, at, (size_t)p - at);
                t_sb_str(&b, to);
                at = (size_t)p + from->n;
                count--;
        }
        if (at == 0)
                return s;
        t_sb_sub(&b, s, at, s->n - at);
        return t_sb_done(&b);
}

/* markupsafe's escape(): & < > ' " */
const struct t_str *t_escape(struct t_ctx *c, const struct t_str *s) {
        struct t_str *r;
        struct t_sb b;

        if (s->markup)
                return s;
        t_sb_init(&b, c);
        for (size_t i = 0; i < s->n; i++) {
                const char *e = NULL;
                switch (s->p[i]) {
                case '&': e = "&amp;"; break;
                case '<': e = "&lt;"; break;
                case '>': e = "&gt;"; break;
                case '\'': e = "&#39;"; break;
                case '"': e = "&#34;"; break;
                }
                if (e)
                        t_sb_as(&b, e, strlen(e), s, i);
                else
                        t_sb_sub(&b, s, i, 1);
        }
        r = (struct t_str *)t_sb_done(&b);
        r->markup = true;
        return r;
}
