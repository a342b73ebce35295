/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters that make text or numbers, as Jinja's builtins of the same names,
 * and tojson(ensure_ascii, indent, separators, sort_keys) as chat templates
 * know it, and from_json. Not here, and so refused at load: random.
 */
#include <math.h>
#include <stdio.h>

#include "engine/text/tmpl_int.h"

#define FILTER(name) static struct t_val name(struct t_run *r, struct t_val in, const struct t_val *b, const struct t_args *a)

int64_t t_arg_int(struct t_run *r, const char *what, struct t_val v, int64_t dflt) {
        if (v.kind == V_ABSENT)
                return dflt;
        if (!t_is_int(v))
                t_fail(&r->c, "%s must be an integer, not %s", what, t_type_name(v));
        return t_as_int(v);
}

bool t_arg_bool(struct t_val v, bool dflt) {
        return v.kind == V_ABSENT ? dflt : t_truth(v);
}

const struct t_str *t_arg_str(struct t_run *r, const char *what, struct t_val v) {
        if (v.kind != V_STR)
                t_fail(&r->c, "%s must be a string, not %s", what, v.kind == V_ABSENT ? "missing" : t_type_name(v));
        return v.s;
}

static struct t_val recase(struct t_run *r, struct t_val in, enum t_case how) {
        const struct t_str *s = t_to_str(r, in);
        t_step(r, s->n / 4);
        return t_strv(t_recase(&r->c, s, how));
}

FILTER(f_upper) { return recase(r, in, T_UPPER); }
FILTER(f_lower) { return recase(r, in, T_LOWER); }
FILTER(f_capitalize) { return recase(r, in, T_CAPITALIZE); }
FILTER(f_title) { return recase(r, in, T_TITLE_FILTER); }
FILTER(f_string) { return t_strv(t_to_str(r, in)); }

FILTER(f_trim) {
        const struct t_str *chars = b[0].kind == V_NONE || b[0].kind == V_ABSENT ? NULL : t_arg_str(r, "trim: chars", b[0]);
        return t_strv(t_strip(&r->c, t_to_str(r, in), chars, 3));
}

FILTER(f_replace) {
        const struct t_str *s = t_to_str(r, in);
        if (b[0].kind == V_ABSENT || b[1].kind == V_ABSENT)
                t_fail(&r->c, "replace needs what to replace and with what");
        t_step(r, s->n / 8);
        return t_strv(t_replace(&r->c, s, t_to_str(r, b[0]), t_to_str(r, b[1]),
                                b[2].kind == V_NONE ? -1 : t_arg_int(r, "replace: count", b[2], -1)));
}

FILTER(f_escape) {
        const struct t_str *s = t_to_str(r, in);
        t_step(r, s->n / 4);
        return t_strv(t_escape(&r->c, s));
}

FILTER(f_forceescape) {
        struct t_str s = *t_to_str(r, in);
        s.markup = false;
        return f_escape(r, t_strv(&s), b, a);
}

FILTER(f_safe) {
        struct t_str *s = t_alloc(&r->c, sizeof(*s));
        *s = *t_to_str(r, in);
        s->markup = true;
        return t_strv(s);
}

bool t_parse_int(const struct t_str *s, int base, int64_t *ret) {
        char text[80], *end;
        size_t i = 0, z = s->n, n = 0;
        int64_t v;

        while (i < z && t_is_space((unsigned char)s->p[i]))
                i++;
        while (z > i && t_is_space((unsigned char)s->p[z - 1]))
                z--;
        for (size_t k = i; k < z; k++) {
                if (s->p[k] == '_' && k > i && k + 1 < z && s->p[k - 1] != '_')
                        continue;
                if (n == sizeof(text) - 1 || !strchr("+-0123456789abcdefghijklmnopqrstuvwxyz", s->p[k] | 32) || !s->p[k])
                        return false;
                text[n++] = s->p[k];
        }
        text[n] = 0;
        if (n == 0)
                return false;
        const char *p = text + (text[0] == '+' || text[0] == '-');
        if (p[0] == '0' && p[1] && ((base == 2 && (p[1] | 32) == 'b') || (base == 8 && (p[1] | 32) == 'o'))) {
                char *q = text + (p - text);
                memmove(q, q + 2, strlen(q + 2) + 1);
        }
        errno = 0;
        v = strtoll(text, &end, base);
        if (*end || errno || end == text)
                return false;
        *ret = v;
        return true;
}

bool t_parse_float(const struct t_str *s, double *ret) {
        char text[400], *end;
        size_t i = 0, z = s->n;
        bool word = false;

        while (i < z && t_is_space((unsigned char)s->p[i]))
                i++;
        while (z > i && t_is_space((unsigned char)s->p[z - 1]))
                z--;
        if (z == i || z - i >= sizeof(text))
                return false;
        memcpy(text, s->p + i, z - i);
        text[z - i] = 0;
        for (char *p = text; *p; p++) {
                if (!strchr("+-.0123456789eE", *p))
                        word = true;
        }
        if (word) { /* only these spellings, no hexadecimal */
                const char *w = text + (text[0] == '+' || text[0] == '-');
                if (strcasecmp(w, "inf") && strcasecmp(w, "infinity") && strcasecmp(w, "nan"))
                        return false;
        }
        *ret = strtod(text, &end);
        return *end == 0 && end != text;
}

FILTER(f_int) {
        int64_t base = t_arg_int(r, "int: base", b[1], 10), i;
        double f;

        if (in.kind == V_UNDEF)
                t_fail(&r->c, "int of an undefined value");
        if (base != 0 && (base < 2 || base > 36))
                t_fail(&r->c, "int: base must be 0 or 2 to 36, not %lld", (long long)base);
        if (t_is_int(in))
                return t_int(t_as_int(in));
        if (in.kind == V_STR && t_parse_int(in.s, (int)base, &i))
                return t_int(i);
        if (in.kind == V_FLOAT)
                f = in.f;
        else if (in.kind != V_STR || !t_parse_float(in.s, &f))
                f = NAN;
        if (f > -0x1p63 && f < 0x1p63)
                return t_int((int64_t)f);
        if (isfinite(f)) /* a number, so not the default */
                t_fail(&r->c, "int: %g does not fit 64 bits", f);
        if (isinf(f) && in.kind == V_FLOAT)
                t_fail(&r->c, "cannot convert float infinity to integer");
        return b[0].kind == V_ABSENT ? t_int(0) : b[0];
}

FILTER(f_float) {
        double f;

        if (in.kind == V_UNDEF)
                t_fail(&r->c, "float of an undefined value");
        if (t_is_num(in))
                return t_float(t_as_float(in));
        if (in.kind == V_STR && t_parse_float(in.s, &f))
                return t_float(f);
        return b[0].kind == V_ABSENT ? t_float(0) : b[0];
}

FILTER(f_abs) {
        if (in.kind == V_FLOAT)
                return t_float(fabs(in.f));
        if (!t_is_int(in))
                t_fail(&r->c, "bad operand type for abs: '%s'", t_type_name(in));
        return t_as_int(in) < 0 ? t_binary(r, N_SUB, t_int(0), in) : t_int(t_as_int(in));
}

FILTER(f_round) {
        int64_t digits = t_arg_int(r, "round: precision", b[0], 0);
        const struct t_str *how = b[1].kind == V_ABSENT ? t_str_lit(&r->c, "common") : t_arg_str(r, "round: method", b[1]);
        double v, scale;
        char text[400];

        if (!t_is_num(in))
                t_fail(&r->c, "round of %s, which is not a number", t_type_name(in));
        if (digits < -300 || digits > 300)
                t_fail(&r->c, "round: a precision of %lld is out of range", (long long)digits);
        v = t_as_float(in);
        if (t_str_is(how, "common")) {
                if (t_is_int(in) && digits >= 0)
                        return t_int(t_as_int(in));
                if (!isfinite(v))
                        return t_float(v);
                if (digits >= 0) { /* the decimal expansion, rounded half to even: what Python does */
                        snprintf(text, sizeof(text), "%.*f", (int)digits, v);
                        v = strtod(text, NULL);
                } else {
                        scale = pow(10, (double)-digits);
                        v = nearbyint(v / scale) * scale;
                }
                return t_is_int(in) ? t_int((int64_t)v) : t_float(v);
        }
        scale = pow(10, (double)digits);
        if (t_str_is(how, "ceil"))
                return t_float(ceil(v * scale) / scale);
        if (t_str_is(how, "floor"))
                return t_float(floor(v * scale) / scale);
        t_fail(&r->c, "round: method must be common, ceil or floor");
}

struct t_list *t_lines(struct t_run *r, const struct t_str *s, bool keep_ends) {
        struct t_list *l = t_list_new(&r->c, 0);
        size_t from = 0;

        for (size_t i = 0; i < s->n;) {
                int32_t cp;
                size_t k = t_cp(s->p + i, s->n - i, &cp), end = i;
                i += k;
                if (!((cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029))
                        continue;
                if (cp == '\r' && i < s->n && s->p[i] == '\n')
                        i++;
                t_list_push(&r->c, l, t_strv(t_str_sub(&r->c, s, from, (keep_ends ? i : end) - from)));
                from = i;
        }
        if (from < s->n)
                t_list_push(&r->c, l, t_strv(t_str_sub(&r->c, s, from, s->n - from)));
        t_step(r, l->n + s->n / 8);
        return l;
}

FILTER(f_indent) {
        const struct t_str *s = t_to_str(r, in), *pad;
        bool first = t_arg_bool(b[1], false), blank = t_arg_bool(b[2], false);
        struct t_list *l;
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        if (b[0].kind == V_STR) {
                pad = b[0].s;
        } else {
                int64_t n = t_arg_int(r, "indent: width", b[0], 4);
                if (n > 10000)
                        t_fail(&r->c, "indent: a width of %lld is too large", (long long)n);
                for (int64_t i = 0; i < n; i++)
                        t_sb_lit(&sb, " ");
                pad = t_sb_done(&sb);
        }
        l = t_lines(r, t_str_cat(&r->c, s, t_str_lit(&r->c, "\n")), false);
        t_sb_init(&sb, &r->c);
        for (size_t i = 0; i < l->n; i++) {
                if (i)
                        t_sb_lit(&sb, "\n");
                if (i == 0 ? first : blank || l->v[i].s->n)
                        t_sb_str(&sb, pad);
                t_sb_str(&sb, l->v[i].s);
        }
        return t_strv(t_sb_done(&sb));
}

FILTER(f_center) {
        return t_method_find(V_STR, "center", 6)->fn(r, t_strv(t_to_str(r, in)),
                        (struct t_val[]){ b[0].kind == V_ABSENT ? t_int(80) : b[0], { .kind = V_ABSENT } }, a);
}

FILTER(f_truncate) {
        const struct t_str *s = t_to_str(r, in), *end = b[2].kind == V_ABSENT ? t_str_lit(&r->c, "...") : t_to_str(r, b[2]);
        int64_t length = t_arg_int(r, "truncate: length", b[0], 255), leeway, n_end = (int64_t)t_cp_len(end);
        size_t cut;

        leeway = b[3].kind == V_NONE ? 5 : t_arg_int(r, "truncate: leeway", b[3], 5);
        if (length < n_end || leeway < 0)
                t_fail(&r->c, "truncate: expected a length of at least %lld and a leeway of at least 0", (long long)n_end);
        if ((int64_t)t_cp_len(s) <= length || (int64_t)t_cp_len(s) - length <= leeway)
                return t_strv(s);
        cut = t_cp_off(s, (size_t)(length - n_end));
        if (!t_arg_bool(b[1], false)) {
                const char *p = memrchr(s->p, ' ', cut);
                if (p)
                        cut = (size_t)(p - s->p);
        }
        return t_strv(t_str_cat(&r->c, t_str_sub(&r->c, s, 0, cut), end));
}

FILTER(f_wordcount) {
        const struct t_str *s = t_to_str(r, in);
        bool inside = false;
        int64_t n = 0;

        t_step(r, s->n / 4);
        for (size_t i = 0; i < s->n;) {
                int32_t cp;
                i += t_cp(s->p + i, s->n - i, &cp);
                bool word = t_is_word(cp);
                n += word && !inside;
                inside = word;
        }
        return t_int(n);
}

FILTER(f_filesizeformat) {
        static const char *const dec[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
        static const char *const bin[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" };
        bool binary = t_arg_bool(b[0], false);
        double bytes, base = binary ? 1024 : 1000, unit = base * base;
        struct t_sb sb;
        unsigned i = 0;

        if (t_is_num(in))
                bytes = t_as_float(in);
        else if (in.kind != V_STR || !t_parse_float(in.s, &bytes))
                t_fail(&r->c, "filesizeformat of %s, which is not a number", t_type_name(in));
        t_sb_init(&sb, &r->c);
        if (bytes == 1) {
                t_sb_lit(&sb, "1 Byte");
        } else if (bytes < base) {
                t_sb_printf(&sb, "%.0f Bytes", trunc(bytes));
        } else {
                for (; i < 7 && bytes >= unit; i++)
                        unit *= base;
                t_sb_printf(&sb, "%.1f %s", base * bytes / unit, binary ? bin[i] : dec[i]);
        }
        return t_strv(t_sb_done(&sb));
}

/* urllib's quote(), or quote_plus() for the parts of a query: then '/' is quoted and a blank becomes '+' */
static void quote(struct t_sb *sb, const struct t_str *s, bool query) {
        for (size_t i = 0; i < s->n; i++) {
                unsigned char ch = (unsigned char)s->p[i];
                char x[4];
                bool plain = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
                             (ch && strchr("_.-~", ch)) || (ch == '/' && !query);
                if (plain) {
                        t_sb_sub(sb, s, i, 1);
                        continue;
                }
                snprintf(x, sizeof(x), "%%%02X", ch);
                t_sb_as(sb, ch == ' ' && query ? "+" : x, ch == ' ' && query ? 1 : 3, s, i);
        }
}

FILTER(f_urlencode) {
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        if (in.kind == V_DICT) {
                bool first = true;
                for (size_t i = 0; i < in.d->used; i++) {
                        if (in.d->e[i].dead)
                                continue;
                        if (!first)
                                t_sb_lit(&sb, "&");
                        first = false;
                        quote(&sb, t_to_str(r, in.d->e[i].k), true);
                        t_sb_lit(&sb, "=");
                        quote(&sb, t_to_str(r, in.d->e[i].v), true);
                }
        } else {
                const struct t_str *s = t_to_str(r, in);
                t_step(r, s->n / 4);
                quote(&sb, s, false);
        }
        return t_strv(t_sb_done(&sb));
}

FILTER(f_xmlattr) {
        struct t_str *s;
        struct t_sb sb;

        if (in.kind != V_DICT)
                t_fail(&r->c, "xmlattr of %s, which is not a mapping", t_type_name(in));
        t_sb_init(&sb, &r->c);
        for (size_t i = 0; i < in.d->used; i++) {
                const struct t_entry *e = &in.d->e[i];
                if (e->dead || e->v.kind == V_NONE || e->v.kind == V_UNDEF)
                        continue;
                if (sb.n || t_arg_bool(b[0], true))
                        t_sb_lit(&sb, " ");
                t_sb_str(&sb, t_escape(&r->c, t_to_str(r, e->k)));
                t_sb_lit(&sb, "=\"");
                t_sb_str(&sb, t_escape(&r->c, t_to_str(r, e->v)));
                t_sb_lit(&sb, "\"");
        }
        s = (struct t_str *)t_sb_done(&sb);
        s->markup = true;
        return t_strv(s);
}

FILTER(f_tojson) {
        struct t_sb sb;
        t_sb_init(&sb, &r->c);
        t_tojson(r, &sb, in, b);
        return t_strv(t_sb_done(&sb));
}

/* Not Jinja's own, but some templates take arguments given as text apart with it. */
FILTER(f_from_json) {
        struct t_val v;

        if (in.kind != V_STR)
                t_fail(&r->c, "the JSON object must be str, not %s", t_type_name(in));
        t_step(r, in.s->n / 4);
        r->held = json_loadb(in.s->p, in.s->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!r->held)
                t_fail(&r->c, "from_json: the text is not JSON");
        v = t_from_json(&r->c, r->held, in.s->trust == T_TRUSTED ? T_TRUSTED : T_UNTRUSTED, 0);
        json_decref(r->held);
        r->held = NULL;
        return v;
}

FILTER(f_format) {
        struct t_list *l = t_list_new(&r->c, a->n);
        if (a->n && a->n_kw)
                t_fail(&r->c, "format takes arguments with names or without, not both");
        for (size_t i = 0; i < a->n; i++)
                t_list_push(&r->c, l, a->pos[i]);
        return t_percent(r, t_to_str(r, in), t_listv(V_TUPLE, l), a->n_kw ? a : NULL);
}

const struct t_filter t_filters_text[] = {
        { "abs", "", f_abs },
        { "capitalize", "", f_capitalize },
        { "center", "width", f_center },
        { "e", "", f_escape },
        { "escape", "", f_escape },
        { "filesizeformat", "binary", f_filesizeformat },
        { "float", "default", f_float },
        { "forceescape", "", f_forceescape },
        { "format", NULL, f_format },
        { "from_json", "", f_from_json },
        { "indent", "width first blank", f_indent },
        { "int", "default base", f_int },
        { "lower", "", f_lower },
        { "replace", "old new count", f_replace },
        { "round", "precision method", f_round },
        { "safe", "", f_safe },
        { "string", "", f_string },
        { "title", "", f_title },
        { "tojson", "ensure_ascii indent separators sort_keys", f_tojson },
        { "trim", "chars", f_trim },
        { "truncate", "length killwords end leeway", f_truncate },
        { "upper", "", f_upper },
        { "urlencode", "", f_urlencode },
        { "wordcount", "", f_wordcount },
        { "xmlattr", "autospace", f_xmlattr },
        { NULL, NULL, NULL },
};
