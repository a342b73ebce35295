/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values: lists, ordered dicts, truth, equality, order and printing, as Python
 * does them. Dicts hash by value, so that 1, 1.0 and true are one key.
 */
#include <math.h>
#include <stdio.h>
#include <utf8proc.h>

#include "engine/text/tmpl_int.h"

struct t_list *t_list_new(struct t_ctx *c, size_t cap) {
        struct t_list *l = t_alloc(c, sizeof(*l));
        if (cap)
                l->v = t_grow(c, NULL, 0, &l->cap, cap, sizeof(*l->v));
        return l;
}

void t_list_push(struct t_ctx *c, struct t_list *l, struct t_val v) {
        l->v = t_grow(c, l->v, l->n, &l->cap, l->n + 1, sizeof(*l->v));
        l->v[l->n++] = v;
}

struct t_dict *t_dict_new(struct t_ctx *c) {
        return t_alloc(c, sizeof(struct t_dict));
}

static uint64_t mix(uint64_t h) {
        h ^= h >> 32;
        h *= 0x9e3779b97f4a7c15u;
        return h ^ (h >> 29);
}

static uint64_t hash(struct t_ctx *c, struct t_val v, unsigned depth) {
        uint64_t h = 14695981039346656037u;

        if (depth > T_MAX_DEPTH)
                t_fail(c, "a value is nested more than %d deep", T_MAX_DEPTH);
        switch (v.kind) {
        case V_STR:
                for (size_t i = 0; i < v.s->n; i++)
                        h = (h ^ (uint8_t)v.s->p[i]) * 1099511628211u; /* FNV-1a */
                return mix(h);
        case V_NONE: return mix(1);
        case V_BOOL: return mix((uint64_t)v.b + 2);
        case V_INT: return mix((uint64_t)v.i + 2);
        case V_FLOAT:
                if (v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f))
                        return mix((uint64_t)(int64_t)v.f + 2);
                memcpy(&h, &v.f, sizeof(h));
                return mix(h);
        case V_TUPLE:
                for (size_t i = 0; i < v.l->n; i++)
                        h = mix(h ^ hash(c, v.l->v[i], depth + 1));
                return h;
        case V_ABSENT: case V_UNDEF: case V_LIST: case V_DICT: case V_GEN: case V_VIEW: case V_RANGE: case V_NS:
        case V_MACRO: case V_FUNC: case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                break;
        }
        t_fail(c, "unhashable type: '%s'", t_type_name(v));
}

static bool key_eq(struct t_val a, struct t_val b) {
        if (a.kind == V_STR || b.kind == V_STR)
                return a.kind == b.kind && t_str_eq(a.s, b.s);
        if (t_is_num(a) && t_is_num(b))
                return t_is_int(a) && t_is_int(b) ? t_as_int(a) == t_as_int(b) : t_as_float(a) == t_as_float(b);
        if (a.kind != b.kind)
                return false;
        if (a.kind == V_TUPLE) {
                if (a.l->n != b.l->n)
                        return false;
                for (size_t i = 0; i < a.l->n; i++)
                        if (!key_eq(a.l->v[i], b.l->v[i]))
                                return false;
        }
        return true;
}

static size_t slot(const struct t_dict *d, uint64_t h, struct t_val k, bool *ret_found) {
        size_t i = (size_t)h & (d->n_index - 1);

        for (;; i = (i + 1) & (d->n_index - 1)) {
                if (!d->index[i]) {
                        *ret_found = false;
                        return i;
                }
                if (!d->e[d->index[i] - 1].dead && key_eq(d->e[d->index[i] - 1].k, k)) {
                        *ret_found = true;
                        return i;
                }
        }
}

struct t_val *t_dict_find(struct t_ctx *c, const struct t_dict *d, struct t_val k) {
        uint64_t h = hash(c, k, 0);
        bool found;
        size_t i;

        if (!d->n_index)
                return NULL;
        i = slot(d, h, k, &found);
        return found ? &d->e[d->index[i] - 1].v : NULL;
}

struct t_val *t_dict_find_lit(struct t_ctx *c, const struct t_dict *d, const char *k) {
        struct t_str s = { .p = k, .n = strlen(k) };
        return t_dict_find(c, d, t_strv(&s));
}

static void reindex(struct t_ctx *c, struct t_dict *d) {
        size_t n = 8, live = 0;
        bool found;

        for (size_t i = 0; i < d->used; i++) /* drop the dead */
                if (!d->e[i].dead)
                        d->e[live++] = d->e[i];
        d->used = live;
        while (n < live * 4)
                n *= 2;
        d->index = t_array(c, n, sizeof(*d->index));
        d->n_index = n;
        for (size_t i = 0; i < live; i++)
                d->index[slot(d, hash(c, d->e[i].k, 0), d->e[i].k, &found)] = (uint32_t)i + 1;
}

void t_dict_set(struct t_ctx *c, struct t_dict *d, struct t_val k, struct t_val v) {
        uint64_t h = hash(c, k, 0);
        bool found = false;
        size_t i;

        if (d->used * 2 >= d->n_index)
                reindex(c, d);
        i = slot(d, h, k, &found);
        if (found) {
                d->e[d->index[i] - 1].v = v;
                return;
        }
        d->e = t_grow(c, d->e, d->used, &d->cap, d->used + 1, sizeof(*d->e));
        d->e[d->used] = (struct t_entry){ .k = k, .v = v };
        d->index[i] = (uint32_t)++d->used;
        d->n++;
}

bool t_dict_del(struct t_ctx *c, struct t_dict *d, struct t_val k, struct t_val *ret) {
        struct t_val *v = t_dict_find(c, d, k);
        if (!v)
                return false;
        *ret = *v;
        CONTAINER_OF(v, struct t_entry, v)->dead = true;
        d->n--;
        return true;
}

const char *t_type_name(struct t_val v) {
        switch (v.kind) {
        case V_ABSENT:
        case V_UNDEF: return "Undefined";
        case V_NONE: return "NoneType";
        case V_BOOL: return "bool";
        case V_INT: return "int";
        case V_FLOAT: return "float";
        case V_STR: return v.s->markup ? "Markup" : "str";
        case V_LIST: return "list";
        case V_TUPLE: return "tuple";
        case V_DICT: return "dict";
        case V_GEN:
        case V_VIEW: return v.l->type;
        case V_RANGE: return "range";
        case V_NS: return "Namespace";
        case V_MACRO: return "Macro";
        case V_FUNC: return "function";
        case V_METHOD: return "method";
        case V_LOOP: return "LoopContext";
        case V_CYCLER: return "Cycler";
        case V_JOINER: return "Joiner";
        }
        return "object";
}

bool t_length(struct t_val v, size_t *ret) {
        switch (v.kind) {
        case V_ABSENT:
        case V_UNDEF: *ret = 0; return true;
        case V_STR: *ret = t_cp_len(v.s); return true;
        case V_LIST: case V_TUPLE: case V_VIEW: *ret = v.l->n; return true;
        case V_DICT: *ret = v.d->n; return true;
        case V_RANGE: *ret = v.r->n; return true;
        case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_GEN: case V_NS: case V_MACRO: case V_FUNC:
        case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                break;
        }
        return false;
}

bool t_truth(struct t_val v) {
        size_t n;

        switch (v.kind) {
        case V_ABSENT: case V_UNDEF: case V_NONE: return false;
        case V_BOOL: return v.b;
        case V_INT: return v.i != 0;
        case V_FLOAT: return v.f != 0;
        case V_STR: return v.s->n > 0;
        case V_LIST: case V_TUPLE: case V_DICT: case V_VIEW: case V_RANGE: return t_length(v, &n) && n > 0;
        case V_GEN: case V_NS: case V_MACRO: case V_FUNC: case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                return true;
        }
        return true;
}

static bool eq(struct t_run *r, struct t_val a, struct t_val b) {
        t_step(r, 1);
        if (t_is_num(a) && t_is_num(b))
                return key_eq(a, b);
        if (a.kind != b.kind)
                return false;
        switch (a.kind) {
        case V_ABSENT: case V_UNDEF: case V_NONE: return true;
        case V_STR: return t_str_eq(a.s, b.s);
        case V_LIST: case V_TUPLE:
                if (a.l->n != b.l->n)
                        return false;
                for (size_t i = 0; i < a.l->n; i++)
                        if (!t_eq(r, a.l->v[i], b.l->v[i]))
                                return false;
                return true;
        case V_DICT:
                if (a.d->n != b.d->n)
                        return false;
                for (size_t i = 0; i < a.d->used; i++) {
                        const struct t_val *v;
                        if (a.d->e[i].dead)
                                continue;
                        v = t_dict_find(&r->c, b.d, a.d->e[i].k);
                        if (!v || !t_eq(r, a.d->e[i].v, *v))
                                return false;
                }
                return true;
        case V_RANGE:
                return a.r->n == b.r->n && (a.r->n == 0 || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
        case V_BOOL: case V_INT: case V_FLOAT: case V_GEN: case V_VIEW: case V_NS: case V_MACRO: case V_FUNC:
        case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                break;
        }
        return a.l == b.l; /* identity */
}

bool t_eq(struct t_run *r, struct t_val a, struct t_val b) {
        bool same;
        t_enter(r);
        same = eq(r, a, b);
        t_leave(r);
        return same;
}

int t_cmp(struct t_run *r, const char *op, struct t_val a, struct t_val b) {
        t_step(r, 1);
        if (t_is_num(a) && t_is_num(b)) {
                if (t_is_int(a) && t_is_int(b))
                        return (t_as_int(a) > t_as_int(b)) - (t_as_int(a) < t_as_int(b));
                if (isnan(t_as_float(a)) || isnan(t_as_float(b)))
                        return 2;
                return (t_as_float(a) > t_as_float(b)) - (t_as_float(a) < t_as_float(b));
        }
        if (a.kind == V_STR && b.kind == V_STR)
                return t_str_cmp(a.s, b.s);
        if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
                int c = 0;
                t_enter(r);
                for (size_t i = 0; c == 0 && i < MIN(a.l->n, b.l->n); i++)
                        if (!t_eq(r, a.l->v[i], b.l->v[i]))
                                c = t_cmp(r, op, a.l->v[i], b.l->v[i]);
                t_leave(r);
                return c ? c : (a.l->n > b.l->n) - (a.l->n < b.l->n);
        }
        if (a.kind == V_UNDEF || b.kind == V_UNDEF)
                t_fail(&r->c, "'%s' with an undefined value", op);
        t_fail(&r->c, "'%s' not supported between instances of '%s' and '%s'", op, t_type_name(a), t_type_name(b));
}

/* Python's repr of a float: the shortest digits that read back, plain from 1e-4 up to 1e16. */
void t_float_text(double f, char ret[40]) {
        char d[32], *e;
        int exp, n = 0;
        char digits[20];

        if (isnan(f) || isinf(f)) {
                strcpy(ret, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
                return;
        }
        for (int prec = 1; prec <= 17; prec++) {
                snprintf(d, sizeof(d), "%.*e", prec - 1, f);
                if (strtod(d, NULL) == f)
                        break;
        }
        e = strchr(d, 'e');
        exp = (int)strtol(e + 1, NULL, 10);
        for (char *p = d; p < e; p++)
                if (*p >= '0' && *p <= '9')
                        digits[n++] = *p;
        digits[n] = 0;
        if (signbit(f))
                *ret++ = '-';
        if (exp < -4 || exp >= 16) {
                snprintf(ret, 39, n > 1 ? "%c.%se%+03d" : "%c%se%+03d", digits[0], digits + 1, exp);
                return;
        }
        if (exp < 0) {
                *ret++ = '0';
                *ret++ = '.';
                for (int i = -1; i > exp; i--)
                        *ret++ = '0';
                strcpy(ret, digits);
                return;
        }
        for (int i = 0; i <= exp; i++)
                *ret++ = i < n ? digits[i] : '0';
        *ret++ = '.';
        strcpy(ret, n > exp + 1 ? digits + exp + 1 : "0");
}

static bool printable(int32_t cp) {
        if (cp < 0x7f)
                return cp >= 0x20;
        switch (utf8proc_category(cp)) {
        case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS: case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: case UTF8PROC_CATEGORY_ZS:
                return false;
        default:
                return true;
        }
}

static void repr_str(struct t_sb *b, const struct t_str *s) {
        char q = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';

        if (s->markup)
                t_sb_lit(b, "Markup(");
        t_sb_put(b, &q, 1, T_TRUSTED);
        for (size_t i = 0; i < s->n;) {
                char x[16] = "";
                int32_t cp;
                size_t k = t_cp(s->p + i, s->n - i, &cp);

                if (cp == q || cp == '\\')
                        snprintf(x, sizeof(x), "\\%c", (char)cp);
                else if (cp == '\n' || cp == '\r' || cp == '\t')
                        snprintf(x, sizeof(x), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
                else if (!printable(cp))
                        snprintf(x, sizeof(x), cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
                if (x[0])
                        t_sb_as(b, x, strlen(x), s, i);
                else
                        t_sb_sub(b, s, i, k);
                i += k;
        }
        t_sb_put(b, &q, 1, T_TRUSTED);
        if (s->markup)
                t_sb_lit(b, ")");
}

static void print_items(struct t_run *r, struct t_sb *b, const struct t_list *l, const char *open, const char *close) {
        t_sb_lit(b, open);
        for (size_t i = 0; i < l->n; i++) {
                if (i)
                        t_sb_lit(b, ", ");
                t_repr(r, b, l->v[i]);
        }
        t_sb_lit(b, close);
}

static void print_dict(struct t_run *r, struct t_sb *b, const struct t_dict *d) {
        bool first = true;

        t_sb_lit(b, "{");
        for (size_t i = 0; i < d->used; i++) {
                if (d->e[i].dead)
                        continue;
                if (!first)
                        t_sb_lit(b, ", ");
                first = false;
                t_repr(r, b, d->e[i].k);
                t_sb_lit(b, ": ");
                t_repr(r, b, d->e[i].v);
        }
        t_sb_lit(b, "}");
}

void t_repr(struct t_run *r, struct t_sb *b, struct t_val v) {
        char text[48];

        t_enter(r);
        t_step(r, v.kind == V_STR ? 1 + v.s->n / 16 : 1);
        switch (v.kind) {
        case V_ABSENT:
        case V_UNDEF: t_sb_lit(b, "Undefined"); break;
        case V_NONE: t_sb_lit(b, "None"); break;
        case V_BOOL: t_sb_lit(b, v.b ? "True" : "False"); break;
        case V_INT: t_sb_printf(b, "%lld", (long long)v.i); break;
        case V_FLOAT:
                t_float_text(v.f, text);
                t_sb_put(b, text, strlen(text), T_TRUSTED);
                break;
        case V_STR: repr_str(b, v.s); break;
        case V_LIST: print_items(r, b, v.l, "[", "]"); break;
        case V_TUPLE: print_items(r, b, v.l, "(", v.l->n == 1 ? ",)" : ")"); break;
        case V_DICT: print_dict(r, b, v.d); break;
        case V_NS:
                t_sb_lit(b, "<Namespace ");
                print_dict(r, b, v.d);
                t_sb_lit(b, ">");
                break;
        case V_VIEW:
                t_sb_lit(b, v.l->type);
                print_items(r, b, v.l, "([", "])");
                break;
        case V_RANGE:
                if (v.r->step == 1)
                        t_sb_printf(b, "range(%lld, %lld)", (long long)v.r->start, (long long)v.r->stop);
                else
                        t_sb_printf(b, "range(%lld, %lld, %lld)", (long long)v.r->start, (long long)v.r->stop, (long long)v.r->step);
                break;
        case V_MACRO:
                t_sb_lit(b, "<Macro ");
                repr_str(b, v.macro->name);
                t_sb_lit(b, ">");
                break;
        case V_GEN: case V_FUNC: case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                t_sb_printf(b, "<%s object>", t_type_name(v));
                break;
        }
        t_leave(r);
}

void t_print(struct t_run *r, struct t_sb *b, struct t_val v) {
        if (v.kind == V_STR) {
                t_step(r, v.s->n / 16);
                t_sb_str(b, v.s);
        } else if (v.kind != V_UNDEF && v.kind != V_ABSENT) {
                t_repr(r, b, v);
        }
}

const struct t_str *t_to_str(struct t_run *r, struct t_val v) {
        struct t_sb b;

        if (v.kind == V_STR)
                return v.s;
        t_sb_init(&b, &r->c);
        t_print(r, &b, v);
        return t_sb_done(&b);
}
