/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of strings, as Python's str has them. Not here, and so refused at
 * load: encode, format_map, maketrans, translate, isidentifier, isprintable.
 */
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

#define METHOD(name) static struct t_val name(struct t_run *r, struct t_val self, const struct t_val *b, const struct t_args *a)

static const struct t_str *opt_str(struct t_run *r, const char *what, struct t_val v) {
        return v.kind == V_ABSENT || v.kind == V_NONE ? NULL : t_arg_str(r, what, v);
}

METHOD(m_upper) { return t_strv(t_recase(&r->c, self.s, T_UPPER)); }
METHOD(m_lower) { return t_strv(t_recase(&r->c, self.s, T_LOWER)); }
METHOD(m_title) { return t_strv(t_recase(&r->c, self.s, T_TITLE)); }
METHOD(m_capitalize) { return t_strv(t_recase(&r->c, self.s, T_CAPITALIZE)); }
METHOD(m_swapcase) { return t_strv(t_recase(&r->c, self.s, T_SWAPCASE)); }
METHOD(m_casefold) { return t_strv(t_recase(&r->c, self.s, T_CASEFOLD)); }
METHOD(m_strip) { return t_strv(t_strip(&r->c, self.s, opt_str(r, "strip: chars", b[0]), 3)); }
METHOD(m_lstrip) { return t_strv(t_strip(&r->c, self.s, opt_str(r, "lstrip: chars", b[0]), 1)); }
METHOD(m_rstrip) { return t_strv(t_strip(&r->c, self.s, opt_str(r, "rstrip: chars", b[0]), 2)); }

METHOD(m_replace) {
        const struct t_str *from = t_arg_str(r, "replace: old", b[0]), *to = t_arg_str(r, "replace: new", b[1]);
        t_step(r, self.s->n / 8);
        return t_strv(t_replace(&r->c, self.s, from, to, t_arg_int(r, "replace: count", b[2], -1)));
}

METHOD(m_removeprefix) {
        const struct t_str *x = t_arg_str(r, "removeprefix", b[0]);
        return t_strv(t_str_starts(self.s, x) ? t_str_sub(&r->c, self.s, x->n, self.s->n - x->n) : self.s);
}

METHOD(m_removesuffix) {
        const struct t_str *x = t_arg_str(r, "removesuffix", b[0]);
        return t_strv(x->n && t_str_ends(self.s, x) ? t_str_sub(&r->c, self.s, 0, self.s->n - x->n) : self.s);
}

/* [start, end) arguments as byte offsets */
static void range_of(struct t_run *r, const struct t_str *s, struct t_val start, struct t_val end, size_t *ret_from, size_t *ret_to) {
        int64_t n = (int64_t)t_cp_len(s), a, z;

        a = start.kind == V_NONE ? 0 : t_arg_int(r, "start", start, 0);
        z = end.kind == V_NONE ? n : t_arg_int(r, "end", end, n);
        a = a < 0 ? MAX(a + n, (int64_t)0) : a;
        z = z < 0 ? MAX(z + n, (int64_t)0) : MIN(z, n);
        *ret_from = a > n ? s->n + 1 : t_cp_off(s, (size_t)a);
        *ret_to = t_cp_off(s, (size_t)z);
}

static bool affix(struct t_run *r, struct t_val self, const struct t_val *b, bool (*test)(const struct t_str *, const struct t_str *)) {
        const struct t_str *s;
        size_t from, to;

        range_of(r, self.s, b[1], b[2], &from, &to);
        if (from > to)
                return false;
        s = t_str_sub(&r->c, self.s, from, to - from);
        if (b[0].kind == V_TUPLE) {
                for (size_t i = 0; i < b[0].l->n; i++)
                        if (test(s, t_arg_str(r, "a prefix or suffix", b[0].l->v[i])))
                                return true;
                return false;
        }
        return test(s, t_arg_str(r, "a prefix or suffix", b[0]));
}

METHOD(m_startswith) { return t_bool(affix(r, self, b, t_str_starts)); }
METHOD(m_endswith) { return t_bool(affix(r, self, b, t_str_ends)); }

static int64_t find(struct t_run *r, struct t_val self, const struct t_val *b, bool last) {
        const struct t_str *x = t_arg_str(r, "find", b[0]);
        size_t from, to;
        ptrdiff_t at;

        t_step(r, self.s->n / 8);
        range_of(r, self.s, b[1], b[2], &from, &to);
        if (from > to)
                return -1;
        at = last ? t_str_rfind(self.s, x, from, to) : t_str_find(self.s, x, from, to);
        return at < 0 ? -1 : (int64_t)t_cp_len(t_str_sub(&r->c, self.s, 0, (size_t)at));
}

METHOD(m_find) { return t_int(find(r, self, b, false)); }
METHOD(m_rfind) { return t_int(find(r, self, b, true)); }

static struct t_val index_of(struct t_run *r, struct t_val self, const struct t_val *b, bool last) {
        int64_t at = find(r, self, b, last);
        if (at < 0)
                t_fail(&r->c, "substring not found");
        return t_int(at);
}

METHOD(m_index) { return index_of(r, self, b, false); }
METHOD(m_rindex) { return index_of(r, self, b, true); }

METHOD(m_count) {
        const struct t_str *x = t_arg_str(r, "count", b[0]);
        size_t from, to;
        int64_t n = 0;

        t_step(r, self.s->n / 8);
        range_of(r, self.s, b[1], b[2], &from, &to);
        if (from > to)
                return t_int(0);
        if (x->n == 0)
                return t_int((int64_t)t_cp_len(t_str_sub(&r->c, self.s, from, to - from)) + 1);
        for (ptrdiff_t at; (at = t_str_find(self.s, x, from, to)) >= 0; n++)
                from = (size_t)at + x->n;
        return t_int(n);
}

static void push_sub(struct t_run *r, struct t_list *l, const struct t_str *s, size_t from, size_t to) {
        t_step(r, 1);
        t_list_push(&r->c, l, t_strv(t_str_sub(&r->c, s, from, to - from)));
}

static size_t skip_space(const struct t_str *s, size_t i, bool space) {
        while (i < s->n) {
                int32_t cp;
                size_t k = t_cp(s->p + i, s->n - i, &cp);
                if (t_is_space(cp) != space)
                        break;
                i += k;
        }
        return i;
}

METHOD(m_split) {
        struct t_list *l = t_list_new(&r->c, 0);
        const struct t_str *s = self.s, *sep = opt_str(r, "split: sep", b[0]);
        int64_t max = t_arg_int(r, "split: maxsplit", b[1], -1);
        size_t at = 0;

        t_step(r, s->n / 8);
        if (!sep) {
                for (at = skip_space(s, 0, true); at < s->n;) {
                        size_t end = skip_space(s, at, false);
                        if (max >= 0 && (int64_t)l->n == max)
                                end = s->n;
                        push_sub(r, l, s, at, end);
                        at = skip_space(s, end, true);
                }
                return t_listv(V_LIST, l);
        }
        if (sep->n == 0)
                t_fail(&r->c, "empty separator");
        for (ptrdiff_t p; (max < 0 || (int64_t)l->n < max) && (p = t_str_find(s, sep, at, s->n)) >= 0;) {
                push_sub(r, l, s, at, (size_t)p);
                at = (size_t)p + sep->n;
        }
        push_sub(r, l, s, at, s->n);
        return t_listv(V_LIST, l);
}

METHOD(m_rsplit) {
        struct t_list *l = t_list_new(&r->c, 0);
        const struct t_str *s = self.s, *sep = opt_str(r, "rsplit: sep", b[0]);
        int64_t max = t_arg_int(r, "rsplit: maxsplit", b[1], -1);
        size_t end = s->n;

        t_step(r, s->n / 8);
        if (max < 0)
                return m_split(r, self, b, a);
        if (!sep) {
                struct t_list *all = m_split(r, self, (struct t_val[]){ t_none(), t_int(-1) }, a).l;
                size_t head = all->n > (size_t)max ? all->n - (size_t)max : 0;
                if (head) { /* what is left of the last 'max' words stays in one piece */
                        const struct t_str *last = all->v[head - 1].s;
                        push_sub(r, l, s, 0, (size_t)(last->p - s->p) + last->n);
                }
                for (size_t i = head; i < all->n; i++)
                        t_list_push(&r->c, l, all->v[i]);
                return t_listv(V_LIST, l);
        }
        if (sep->n == 0)
                t_fail(&r->c, "empty separator");
        for (ptrdiff_t p; (int64_t)l->n < max && (p = t_str_rfind(s, sep, 0, end)) >= 0; end = (size_t)p)
                push_sub(r, l, s, (size_t)p + sep->n, end);
        push_sub(r, l, s, 0, end);
        for (size_t i = 0; i < l->n / 2; i++) {
                struct t_val v = l->v[i];
                l->v[i] = l->v[l->n - 1 - i];
                l->v[l->n - 1 - i] = v;
        }
        return t_listv(V_LIST, l);
}

METHOD(m_splitlines) {
        struct t_list *l = t_list_new(&r->c, 0);
        bool keep = t_arg_bool(b[0], false);
        const struct t_str *s = self.s;
        size_t from = 0;

        t_step(r, s->n / 8);
        for (size_t i = 0; i < s->n;) {
                int32_t cp;
                size_t end = i;
                i += t_cp(s->p + i, s->n - i, &cp);
                if (!((cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029))
                        continue;
                if (cp == '\r' && i < s->n && s->p[i] == '\n')
                        i++;
                push_sub(r, l, s, from, keep ? i : end);
                from = i;
        }
        if (from < s->n)
                push_sub(r, l, s, from, s->n);
        return t_listv(V_LIST, l);
}

static struct t_val partition(struct t_run *r, struct t_val self, const struct t_val *b, bool last) {
        const struct t_str *s = self.s, *sep = t_arg_str(r, "partition: sep", b[0]);
        struct t_list *l = t_list_new(&r->c, 3);
        ptrdiff_t at;

        if (sep->n == 0)
                t_fail(&r->c, "empty separator");
        t_step(r, s->n / 8);
        at = last ? t_str_rfind(s, sep, 0, s->n) : t_str_find(s, sep, 0, s->n);
        if (at < 0) {
                push_sub(r, l, s, 0, last ? 0 : s->n);
                push_sub(r, l, s, 0, 0);
                push_sub(r, l, s, 0, last ? s->n : 0);
        } else {
                push_sub(r, l, s, 0, (size_t)at);
                push_sub(r, l, s, (size_t)at, (size_t)at + sep->n);
                push_sub(r, l, s, (size_t)at + sep->n, s->n);
        }
        return t_listv(V_TUPLE, l);
}

METHOD(m_partition) { return partition(r, self, b, false); }
METHOD(m_rpartition) { return partition(r, self, b, true); }

METHOD(m_join) {
        struct t_iter it = t_iter_begin(r, b[0]);
        struct t_val v;
        bool first = true;
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        while (t_iter_next(r, &it, &v)) {
                if (v.kind != V_STR)
                        t_fail(&r->c, "join: expected str instances, %s found", t_type_name(v));
                if (!first)
                        t_sb_str(&sb, self.s);
                first = false;
                t_sb_str(&sb, v.s);
        }
        return t_strv(t_sb_done(&sb));
}

/* side: -1 pads on the right (ljust), 1 on the left (rjust), 0 both (center) */
static struct t_val pad(struct t_run *r, struct t_val self, const struct t_val *b, int side) {
        const struct t_str *fill = opt_str(r, "the fill character", b[1]);
        int64_t width = t_arg_int(r, "the width", b[0], 0), n = (int64_t)t_cp_len(self.s), total = width - n, left;
        struct t_sb sb;

        if (fill && t_cp_len(fill) != 1)
                t_fail(&r->c, "the fill character must be exactly one character long");
        if (total <= 0)
                return self;
        if (total > (1 << 20))
                t_fail(&r->c, "a width of %lld is too large", (long long)width);
        t_step(r, (size_t)total / 8);
        left = side < 0 ? 0 : side > 0 ? total : total / 2 + (total & width & 1); /* Python's rounding */
        if (!fill)
                fill = t_str_lit(&r->c, " ");
        t_sb_init(&sb, &r->c);
        for (int64_t i = 0; i < left; i++)
                t_sb_str(&sb, fill);
        t_sb_str(&sb, self.s);
        for (int64_t i = left; i < total; i++)
                t_sb_str(&sb, fill);
        return t_strv(t_sb_done(&sb));
}

METHOD(m_ljust) { return pad(r, self, b, -1); }
METHOD(m_rjust) { return pad(r, self, b, 1); }
METHOD(m_center) { return pad(r, self, b, 0); }

METHOD(m_zfill) {
        struct t_val zero[2] = { b[0], t_strv(t_str_lit(&r->c, "0")) };
        bool sign = self.s->n && (self.s->p[0] == '-' || self.s->p[0] == '+');
        struct t_val rest = t_strv(t_str_sub(&r->c, self.s, sign, self.s->n - sign));

        zero[0] = t_int(t_arg_int(r, "zfill: width", b[0], 0) - sign);
        rest = pad(r, rest, zero, 1);
        return t_strv(sign ? t_str_cat(&r->c, t_str_sub(&r->c, self.s, 0, 1), rest.s) : rest.s);
}

METHOD(m_expandtabs) {
        int64_t size = t_arg_int(r, "expandtabs: tabsize", b[0], 8), col = 0;
        struct t_sb sb;

        if (size > 10000)
                t_fail(&r->c, "expandtabs: a tab size of %lld is too large", (long long)size);
        t_sb_init(&sb, &r->c);
        for (size_t i = 0; i < self.s->n;) {
                int32_t cp;
                size_t k = t_cp(self.s->p + i, self.s->n - i, &cp);
                if (cp == '\t') {
                        int64_t n = size > 0 ? size - col % size : 0;
                        t_step(r, (size_t)n / 8 + 1);
                        for (int64_t x = 0; x < n; x++)
                                t_sb_as(&sb, " ", 1, self.s, i);
                        col += n;
                } else {
                        t_sb_sub(&sb, self.s, i, k);
                        col = cp == '\n' || cp == '\r' ? 0 : col + 1;
                }
                i += k;
        }
        return t_strv(t_sb_done(&sb));
}

METHOD(m_format) { return t_str_format(r, self.s, a); }

/* is...(): every code point in the class and at least one */
static bool is_alpha(int32_t cp) {
        utf8proc_category_t c = utf8proc_category(cp);
        return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND; }
static bool is_digit(int32_t cp) {
        return is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || (cp >= 0x2070 && cp <= 0x2079 && cp != 0x2071) ||
               (cp >= 0x2080 && cp <= 0x2089);
}
static bool is_numeric(int32_t cp) {
        utf8proc_category_t c = utf8proc_category(cp);
        return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}
static bool is_alnum(int32_t cp) { return is_alpha(cp) || is_numeric(cp); }
static bool is_ascii(int32_t cp) { return cp < 0x80; }

static struct t_val all(struct t_run *r, struct t_val self, bool (*test)(int32_t), bool of_empty) {
        bool ok = self.s->n > 0 || of_empty;

        t_step(r, self.s->n / 8);
        for (size_t i = 0; i < self.s->n && ok;) {
                int32_t cp;
                i += t_cp(self.s->p + i, self.s->n - i, &cp);
                ok = test(cp);
        }
        return t_bool(ok);
}

METHOD(m_isalpha) { return all(r, self, is_alpha, false); }
METHOD(m_isdigit) { return all(r, self, is_digit, false); }
METHOD(m_isdecimal) { return all(r, self, is_decimal, false); }
METHOD(m_isnumeric) { return all(r, self, is_numeric, false); }
METHOD(m_isalnum) { return all(r, self, is_alnum, false); }
METHOD(m_isspace) { return all(r, self, t_is_space, false); }
METHOD(m_isascii) { return all(r, self, is_ascii, true); }

METHOD(m_isupper) {
        const struct t_str *u = t_recase(&r->c, self.s, T_UPPER), *l = t_recase(&r->c, self.s, T_LOWER);
        return t_bool(t_str_eq(self.s, u) && !t_str_eq(u, l));
}
METHOD(m_islower) {
        const struct t_str *u = t_recase(&r->c, self.s, T_UPPER), *l = t_recase(&r->c, self.s, T_LOWER);
        return t_bool(t_str_eq(self.s, l) && !t_str_eq(u, l));
}
METHOD(m_istitle) {
        const struct t_str *t = t_recase(&r->c, self.s, T_TITLE), *u = t_recase(&r->c, t, T_UPPER), *l = t_recase(&r->c, t, T_LOWER);
        return t_bool(t_str_eq(self.s, t) && !t_str_eq(u, l));
}

const struct t_method t_methods_str[] = {
        { V_STR, "capitalize", "", m_capitalize },
        { V_STR, "casefold", "", m_casefold },
        { V_STR, "center", "width fillchar", m_center },
        { V_STR, "count", "sub start end", m_count },
        { V_STR, "endswith", "suffix start end", m_endswith },
        { V_STR, "expandtabs", "tabsize", m_expandtabs },
        { V_STR, "find", "sub start end", m_find },
        { V_STR, "format", NULL, m_format },
        { V_STR, "index", "sub start end", m_index },
        { V_STR, "isalnum", "", m_isalnum },
        { V_STR, "isalpha", "", m_isalpha },
        { V_STR, "isascii", "", m_isascii },
        { V_STR, "isdecimal", "", m_isdecimal },
        { V_STR, "isdigit", "", m_isdigit },
        { V_STR, "islower", "", m_islower },
        { V_STR, "isnumeric", "", m_isnumeric },
        { V_STR, "isspace", "", m_isspace },
        { V_STR, "istitle", "", m_istitle },
        { V_STR, "isupper", "", m_isupper },
        { V_STR, "join", "iterable", m_join },
        { V_STR, "ljust", "width fillchar", m_ljust },
        { V_STR, "lower", "", m_lower },
        { V_STR, "lstrip", "chars", m_lstrip },
        { V_STR, "partition", "sep", m_partition },
        { V_STR, "removeprefix", "prefix", m_removeprefix },
        { V_STR, "removesuffix", "suffix", m_removesuffix },
        { V_STR, "replace", "old new count", m_replace },
        { V_STR, "rfind", "sub start end", m_rfind },
        { V_STR, "rindex", "sub start end", m_rindex },
        { V_STR, "rjust", "width fillchar", m_rjust },
        { V_STR, "rpartition", "sep", m_rpartition },
        { V_STR, "rsplit", "sep maxsplit", m_rsplit },
        { V_STR, "rstrip", "chars", m_rstrip },
        { V_STR, "split", "sep maxsplit", m_split },
        { V_STR, "splitlines", "keepends", m_splitlines },
        { V_STR, "startswith", "prefix start end", m_startswith },
        { V_STR, "strip", "chars", m_strip },
        { V_STR, "swapcase", "", m_swapcase },
        { V_STR, "title", "", m_title },
        { V_STR, "upper", "", m_upper },
        { V_STR, "zfill", "width", m_zfill },
        { V_ABSENT, NULL, NULL, NULL },
};
