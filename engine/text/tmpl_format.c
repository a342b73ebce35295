/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "%s" % values, "{}".format(...) and strftime, as Python does them:
 * https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting
 * https://docs.python.org/3/library/string.html#format-specification-mini-language
 */
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

#define MAX_WIDTH 10000

struct spec {
        const struct t_str *fill; /* one code point, or NULL: ' ' */
        char align, sign, type;   /* 0: not given */
        bool alt, zero, comma;
        int width, prec;          /* -1: not given */
};

static void pad_to(struct t_run *r, struct t_sb *b, const struct t_str *s, const struct spec *f, char dflt_align) {
        int64_t n = f->width - (int64_t)t_cp_len(s), left;
        char align = f->align ? f->align : dflt_align;

        t_step(r, s->n / 16);
        left = n <= 0 ? 0 : align == '<' ? 0 : align == '^' ? n / 2 : n;
        for (int64_t i = 0; i < n; i++) {
                if (i == left)
                        t_sb_str(b, s);
                if (f->fill)
                        t_sb_str(b, f->fill);
                else
                        t_sb_lit(b, f->zero && align == '=' ? "0" : " ");
        }
        if (n <= 0 || left == n)
                t_sb_str(b, s);
}

/* Digits in a base with an optional sign, prefix and zero padding. */
static const struct t_str *int_text(struct t_run *r, int64_t v, const struct spec *f) {
        char digits[80], text[160];
        uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v;
        unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
        const char *set = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
        int n = 0, k = 0, count = 0;

        do {
                if (f->comma && count && count % 3 == 0)
                        digits[n++] = ',';
                digits[n++] = set[u % base];
                u /= base;
                count++;
        } while (u);
        if (v < 0 || f->sign == '+' || f->sign == ' ')
                text[k++] = v < 0 ? '-' : f->sign;
        if (f->alt && base != 10) {
                text[k++] = '0';
                text[k++] = f->type;
        }
        for (int i = n; i < f->prec && k < 60; i++)
                text[k++] = '0';
        if (f->zero && !f->fill)
                for (int width = k + n; width < f->width && k < 60; width++)
                        text[k++] = '0';
        while (n)
                text[k++] = digits[--n];
        return t_str_new(&r->c, text, (size_t)k, T_TRUSTED);
}

static const struct t_str *float_text(struct t_run *r, double v, const struct spec *f) {
        char fmt[24], text[512];
        char type = f->type ? f->type : 'g';
        int prec = f->prec < 0 ? 6 : MIN(f->prec, 100), n;
        bool percent = type == '%';

        snprintf(fmt, sizeof(fmt), "%%%s%s%s.*%c", f->alt ? "#" : "", f->sign == '+' ? "+" : f->sign == ' ' ? " " : "",
                 f->zero && !f->fill ? "0*" : "", percent ? 'f' : type);
        if (f->zero && !f->fill)
                n = snprintf(text, sizeof(text), fmt, MIN(f->width < 0 ? 0 : f->width, 100), prec, percent ? v * 100 : v);
        else
                n = snprintf(text, sizeof(text), fmt, prec, percent ? v * 100 : v);
        if (n < 0 || (size_t)n >= sizeof(text) - 1)
                t_fail(&r->c, "a formatted number is too long");
        if (percent)
                text[n++] = '%';
        if (f->comma) { /* groups of three in front of the point */
                char grouped[700];
                int start = text[0] == '-' || text[0] == '+', end = start, k = 0;
                while (end < n && text[end] >= '0' && text[end] <= '9')
                        end++;
                for (int i = 0; i < n; i++) {
                        if (i > start && i < end && (end - i) % 3 == 0)
                                grouped[k++] = ',';
                        grouped[k++] = text[i];
                }
                return t_str_new(&r->c, grouped, (size_t)k, T_TRUSTED);
        }
        return t_str_new(&r->c, text, (size_t)n, T_TRUSTED);
}

static const struct t_str *repr_of(struct t_run *r, struct t_val v) {
        struct t_sb b;
        t_sb_init(&b, &r->c);
        t_repr(r, &b, v);
        return t_sb_done(&b);
}

static const struct t_str *cut(struct t_run *r, const struct t_str *s, int prec) {
        return prec < 0 ? s : t_str_sub(&r->c, s, 0, t_cp_off(s, (size_t)prec));
}

static int number(struct t_run *r, const struct t_str *s, size_t *at) {
        int v = 0;
        while (*at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9') {
                v = v * 10 + (s->p[(*at)++] - '0');
                if (v > MAX_WIDTH)
                        t_fail(&r->c, "a width or precision in a format is over %d", MAX_WIDTH);
        }
        return v;
}

static struct t_val next_arg(struct t_run *r, struct t_val args, size_t *n) {
        if (args.kind != V_TUPLE) {
                if ((*n)++)
                        t_fail(&r->c, "not enough arguments for format string");
                return args;
        }
        if (*n >= args.l->n)
                t_fail(&r->c, "not enough arguments for format string");
        return args.l->v[(*n)++];
}

struct t_val t_percent(struct t_run *r, const struct t_str *fmt, struct t_val arg, const struct t_args *named) {
        size_t used = 0;
        bool by_name = named != NULL;
        struct t_sb b;

        t_sb_init(&b, &r->c);
        t_step(r, 1 + fmt->n / 8);
        for (size_t i = 0; i < fmt->n;) {
                struct spec f = { .width = -1, .prec = -1 };
                struct t_val v = { .kind = V_ABSENT };
                const char *pc = memchr(fmt->p + i, '%', fmt->n - i);
                size_t at = pc ? (size_t)(pc - fmt->p) : fmt->n;

                t_sb_sub(&b, fmt, i, at - i);
                if (at == fmt->n)
                        break;
                at++;
                if (at < fmt->n && fmt->p[at] == '%') {
                        t_sb_sub(&b, fmt, at, 1);
                        i = at + 1;
                        continue;
                }
                if (at < fmt->n && fmt->p[at] == '(') {
                        const char *close = memchr(fmt->p + at, ')', fmt->n - at);
                        const struct t_str *key;
                        if (!close)
                                t_fail(&r->c, "incomplete format key");
                        key = t_str_sub(&r->c, fmt, at + 1, (size_t)(close - fmt->p) - at - 1);
                        at = (size_t)(close - fmt->p) + 1;
                        by_name = true;
                        if (named) {
                                for (size_t k = 0; k < named->n_kw; k++)
                                        if (t_str_eq(named->kw_name[k], key))
                                                v = named->kw[k];
                        } else if (arg.kind == V_DICT) {
                                struct t_val *e = t_dict_find(&r->c, arg.d, t_strv(key));
                                if (e)
                                        v = *e;
                        } else {
                                t_fail(&r->c, "format requires a mapping");
                        }
                        if (v.kind == V_ABSENT)
                                t_fail(&r->c, "format: there is no key '%.*s'", (int)MIN(key->n, (size_t)60), key->p);
                }
                for (; at < fmt->n && fmt->p[at] && strchr("#0- +", fmt->p[at]); at++) {
                        switch (fmt->p[at]) {
                        case '#': f.alt = true; break;
                        case '0': f.zero = true; break;
                        case '-': f.align = '<'; break;
                        default: f.sign = f.sign == '+' ? '+' : fmt->p[at];
                        }
                }
                if (at < fmt->n && fmt->p[at] >= '0' && fmt->p[at] <= '9')
                        f.width = number(r, fmt, &at);
                if (at < fmt->n && fmt->p[at] == '.') {
                        at++;
                        f.prec = number(r, fmt, &at);
                }
                if (at >= fmt->n)
                        t_fail(&r->c, "incomplete format");
                f.type = fmt->p[at++];
                if (v.kind == V_ABSENT)
                        v = next_arg(r, arg, &used);
                if (f.align == '<')
                        f.zero = false;
                switch (f.type) {
                case 's': pad_to(r, &b, cut(r, t_to_str(r, v), f.prec), &(struct spec){ .width = f.width, .align = f.align }, '>'); break;
                case 'r':
                case 'a': pad_to(r, &b, cut(r, repr_of(r, v), f.prec), &(struct spec){ .width = f.width, .align = f.align }, '>'); break;
                case 'c':
                        if (t_is_int(v) && t_as_int(v) >= 0 && t_as_int(v) <= 0x10ffff) {
                                char c[4];
                                v = t_strv(t_str_new(&r->c, c, (size_t)utf8proc_encode_char((utf8proc_int32_t)t_as_int(v), (utf8proc_uint8_t *)c), T_UNTRUSTED));
                        }
                        if (v.kind != V_STR || t_cp_len(v.s) != 1)
                                t_fail(&r->c, "%%c requires a single character");
                        pad_to(r, &b, v.s, &(struct spec){ .width = f.width, .align = f.align }, '>');
                        break;
                case 'd': case 'i': case 'u': case 'x': case 'X': case 'o':
                        if (!t_is_num(v) || (v.kind == V_FLOAT && strchr("xXo", f.type)))
                                t_fail(&r->c, "%%%c format: %s is required, not %s", f.type,
                                       strchr("xXo", f.type) ? "an integer" : "a real number", t_type_name(v));
                        if (v.kind == V_FLOAT && !(fabs(v.f) < 0x1p63))
                                t_fail(&r->c, "%%%c format: %g does not fit 64 bits", f.type, v.f);
                        pad_to(r, &b, int_text(r, v.kind == V_FLOAT ? (int64_t)v.f : t_as_int(v), &f), &f, '>');
                        break;
                case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
                        if (!t_is_num(v))
                                t_fail(&r->c, "must be real number, not %s", t_type_name(v));
                        pad_to(r, &b, float_text(r, t_as_float(v), &f), &f, '>');
                        break;
                default:
                        t_fail(&r->c, "unsupported format character '%c'", f.type);
                }
                i = at;
        }
        if (!by_name && ((arg.kind == V_TUPLE && used < arg.l->n) || (arg.kind != V_TUPLE && arg.kind != V_DICT && used == 0)))
                t_fail(&r->c, "not all arguments converted during string formatting");
        return t_strv(t_sb_done(&b));
}

/* ---- str.format ---- */

static void parse_spec(struct t_run *r, const struct t_str *s, struct spec *f) {
        size_t at = 0, k;
        int32_t cp;

        *f = (struct spec){ .width = -1, .prec = -1 };
        if (s->n == 0)
                return;
        k = t_cp(s->p, s->n, &cp);
        if (k < s->n && s->p[k] && strchr("<>^=", s->p[k])) {
                f->fill = t_str_sub(&r->c, s, 0, k);
                f->align = s->p[k];
                at = k + 1;
        } else if (strchr("<>^=", s->p[0]) && s->p[0]) {
                f->align = s->p[at++];
        }
        if (at < s->n && s->p[at] && strchr("+- ", s->p[at]))
                f->sign = s->p[at++];
        if (at < s->n && s->p[at] == '#') {
                f->alt = true;
                at++;
        }
        if (at < s->n && s->p[at] == '0') {
                f->zero = true;
                at++;
        }
        if (at < s->n && s->p[at] >= '0' && s->p[at] <= '9')
                f->width = number(r, s, &at);
        if (at < s->n && (s->p[at] == ',' || s->p[at] == '_')) {
                if (s->p[at] == '_')
                        t_fail(&r->c, "format: grouping with '_' is not supported");
                f->comma = true;
                at++;
        }
        if (at < s->n && s->p[at] == '.') {
                at++;
                f->prec = number(r, s, &at);
        }
        if (at < s->n)
                f->type = s->p[at++];
        if (at != s->n || (f->type && !strchr("sdxXobeEfFgG%", f->type)))
                t_fail(&r->c, "invalid format specifier '%.*s'", (int)MIN(s->n, (size_t)40), s->p);
}

static void put_formatted(struct t_run *r, struct t_sb *b, struct t_val v, const struct t_str *spec_text) {
        struct spec f;

        parse_spec(r, spec_text, &f);
        if (v.kind == V_STR || v.kind == V_UNDEF || (!t_is_num(v)) || (v.kind == V_BOOL && !f.type)) {
                if (f.type && f.type != 's')
                        t_fail(&r->c, "unknown format code '%c' for object of type '%s'", f.type, t_type_name(v));
                if (spec_text->n && v.kind != V_STR && v.kind != V_BOOL)
                        t_fail(&r->c, "unsupported format string passed to %s.__format__", t_type_name(v));
                pad_to(r, b, cut(r, t_to_str(r, v), f.prec), &f, '<');
                return;
        }
        if (t_is_int(v) && (!f.type || strchr("dxXob", f.type))) {
                pad_to(r, b, int_text(r, t_as_int(v), &f), &f, '>');
                return;
        }
        if (f.type == 's' || (f.type && strchr("dxXob", f.type)))
                t_fail(&r->c, "unknown format code '%c' for object of type '%s'", f.type, t_type_name(v));
        if (!f.type && f.prec < 0)
                pad_to(r, b, t_to_str(r, v), &f, '>');
        else
                pad_to(r, b, float_text(r, t_as_float(v), &f), &f, '>');
}

/* name, 0, name.attr, name[key] ...; auto numbering for an empty one */
static struct t_val field_value(struct t_run *r, const struct t_str *name, const struct t_args *a, size_t *autonum) {
        size_t at = strcspn(name->n ? name->p : "", ".[");
        const struct t_str *head;
        struct t_val v = { .kind = V_ABSENT };
        int64_t i;

        at = 0;
        while (at < name->n && name->p[at] != '.' && name->p[at] != '[')
                at++;
        head = t_str_sub(&r->c, name, 0, at);
        if (head->n == 0)
                i = (int64_t)(*autonum)++;
        else if (!t_parse_int(head, 10, &i))
                i = -1;
        if (i >= 0 && (size_t)i < a->n)
                v = a->pos[i];
        for (size_t k = 0; i < 0 && k < a->n_kw; k++)
                if (t_str_eq(a->kw_name[k], head))
                        v = a->kw[k];
        if (v.kind == V_ABSENT)
                t_fail(&r->c, "format: there is no argument '%.*s'", (int)MIN(head->n, (size_t)60), head->p);
        while (at < name->n) {
                size_t end = at + 1;
                bool item = name->p[at] == '[';
                const struct t_str *key;
                while (end < name->n && (item ? name->p[end] != ']' : name->p[end] != '.' && name->p[end] != '['))
                        end++;
                key = t_str_sub(&r->c, name, at + 1, end - at - 1);
                v = item ? t_getitem(r, v, t_parse_int(key, 10, &i) ? t_int(i) : t_strv(key)) : t_getattr(r, v, key);
                at = end + item;
        }
        return v;
}

struct t_val t_str_format(struct t_run *r, const struct t_str *fmt, const struct t_args *a) {
        size_t autonum = 0;
        struct t_sb b;

        t_sb_init(&b, &r->c);
        t_step(r, 1 + fmt->n / 8);
        for (size_t i = 0; i < fmt->n; i++) {
                char ch = fmt->p[i];
                size_t end, name_end;
                const struct t_str *field, *spec;
                struct t_val v;
                char conv = 0;

                if (ch != '{' && ch != '}') {
                        t_sb_sub(&b, fmt, i, 1);
                        continue;
                }
                if (i + 1 < fmt->n && fmt->p[i + 1] == ch) {
                        t_sb_sub(&b, fmt, i++, 1);
                        continue;
                }
                if (ch == '}')
                        t_fail(&r->c, "Single '}' encountered in format string");
                for (end = i + 1; end < fmt->n && fmt->p[end] != '}'; end++)
                        if (fmt->p[end] == '{')
                                t_fail(&r->c, "format: a field within a field is not supported");
                if (end == fmt->n)
                        t_fail(&r->c, "Single '{' encountered in format string");
                field = t_str_sub(&r->c, fmt, i + 1, end - i - 1);
                name_end = 0;
                while (name_end < field->n && field->p[name_end] != ':' && field->p[name_end] != '!')
                        name_end++;
                v = field_value(r, t_str_sub(&r->c, field, 0, name_end), a, &autonum);
                if (name_end < field->n && field->p[name_end] == '!') {
                        if (name_end + 1 >= field->n)
                                t_fail(&r->c, "format: a conversion is missing after '!'");
                        conv = field->p[name_end + 1];
                        name_end += 2;
                        if (name_end < field->n && field->p[name_end] != ':')
                                t_fail(&r->c, "format: expected ':' after the conversion");
                }
                if (conv == 's')
                        v = t_strv(t_to_str(r, v));
                else if (conv == 'r')
                        v = t_strv(repr_of(r, v));
                else if (conv)
                        t_fail(&r->c, "format: unknown conversion '%c'", conv);
                spec = name_end < field->n ? t_str_sub(&r->c, field, name_end + 1, field->n - name_end - 1) : t_str_lit(&r->c, "");
                put_formatted(r, &b, v, spec);
                i = end;
        }
        return t_strv(t_sb_done(&b));
}

/* strftime of the request's time, in UTC and the C locale. As with Python's naive times there is no zone to name: %Z is "". */
const struct t_str *t_strftime(struct t_run *r, const struct t_str *fmt) {
        time_t now = (time_t)r->in->now;
        char one[4] = "%x", text[128];
        struct t_sb b;
        struct tm tm;

        if (!gmtime_r(&now, &tm))
                t_fail(&r->c, "strftime_now: the time is out of range");
        t_sb_init(&b, &r->c);
        for (size_t i = 0; i < fmt->n; i++) {
                size_t n;
                if (fmt->p[i] != '%' || i + 1 == fmt->n) {
                        t_sb_sub(&b, fmt, i, 1);
                        continue;
                }
                i++;
                one[1] = fmt->p[i];
                one[2] = 0;
                if (fmt->p[i] == '-' && i + 1 < fmt->n) { /* glibc: no padding */
                        one[2] = fmt->p[++i];
                        one[3] = 0;
                }
                if (!strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%", one[strlen(one) - 1]))
                        t_fail(&r->c, "strftime_now: unknown directive '%s'", one);
                if (one[1] == 'Z')
                        continue;
                n = strftime(text, sizeof(text), one, &tm);
                t_sb_put(&b, text, n, T_TRUSTED);
                if (one[1] == 'f')
                        t_sb_lit(&b, "000000");
        }
        return t_sb_done(&b);
}
