/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON in and out. Out follows Python's json.dumps as chat templates see it:
 * ", " and ": " between, keys in insertion order, non-ASCII as it is unless
 * ensure_ascii is given.
 */
#include <math.h>
#include <stdio.h>

#include "engine/text/tmpl_int.h"

struct t_val t_from_json(struct t_ctx *c, const json_t *j, int trust, unsigned depth) {
        if (depth > T_MAX_DEPTH)
                t_fail_code(c, HEARTH_E_bad_request, "the conversation's JSON is nested more than %d deep", T_MAX_DEPTH);
        switch (json_typeof(j)) {
        case JSON_NULL: return t_none();
        case JSON_TRUE: return t_bool(true);
        case JSON_FALSE: return t_bool(false);
        case JSON_INTEGER: return t_int(json_integer_value(j));
        case JSON_REAL: return t_float(json_real_value(j));
        case JSON_STRING:
                return t_strv(t_str_new(c, json_string_value(j), json_string_length(j), trust));
        case JSON_ARRAY: {
                struct t_list *l = t_list_new(c, json_array_size(j));
                for (size_t i = 0; i < json_array_size(j); i++)
                        t_list_push(c, l, t_from_json(c, json_array_get(j, i), trust, depth + 1));
                return t_listv(V_LIST, l);
        }
        case JSON_OBJECT: {
                struct t_dict *d = t_dict_new(c);
                for (void *it = json_object_iter((json_t *)j); it; it = json_object_iter_next((json_t *)j, it)) {
                        const char *k = json_object_iter_key(it);
                        t_dict_set(c, d, t_strv(t_str_new(c, k, json_object_iter_key_len(it), trust)),
                                   t_from_json(c, json_object_iter_value(it), trust, depth + 1));
                }
                return (struct t_val){ .kind = V_DICT, .d = d };
        }
        }
        return t_none();
}

struct dumper {
        struct t_run *r;
        struct t_sb *b;
        bool ascii, sort, pretty;
        const struct t_str *indent, *item_sep, *key_sep;
        unsigned depth;
};

static void dump_str(struct dumper *d, const struct t_str *s) {
        t_step(d->r, 1 + s->n / 16);
        t_sb_lit(d->b, "\"");
        for (size_t i = 0; i < s->n;) {
                char x[16] = "";
                int32_t cp;
                size_t k = t_cp(s->p + i, s->n - i, &cp);

                switch (cp) {
                case '"': strcpy(x, "\\\""); break;
                case '\\': strcpy(x, "\\\\"); break;
                case '\n': strcpy(x, "\\n"); break;
                case '\r': strcpy(x, "\\r"); break;
                case '\t': strcpy(x, "\\t"); break;
                case '\b': strcpy(x, "\\b"); break;
                case '\f': strcpy(x, "\\f"); break;
                default:
                        if (cp >= 0x10000 && d->ascii)
                                snprintf(x, sizeof(x), "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                                         (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
                        else if (cp < 0x20 || (cp >= 0x7f && d->ascii))
                                snprintf(x, sizeof(x), "\\u%04x", (unsigned)cp);
                }
                if (x[0])
                        t_sb_as(d->b, x, strlen(x), s, i);
                else
                        t_sb_sub(d->b, s, i, k);
                i += k;
        }
        t_sb_lit(d->b, "\"");
}

static void newline(struct dumper *d) {
        if (!d->pretty)
                return;
        t_sb_lit(d->b, "\n");
        for (unsigned i = 0; i < d->depth; i++)
                t_sb_str(d->b, d->indent);
}

static void dump(struct dumper *d, struct t_val v);

static void dump_float(struct dumper *d, double f) {
        char text[48];
        if (isnan(f) || isinf(f)) {
                t_sb_lit(d->b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
                return;
        }
        t_float_text(f, text);
        t_sb_put(d->b, text, strlen(text), T_TRUSTED);
}

static void dump_key(struct dumper *d, struct t_val k) {
        if (k.kind == V_STR) {
                dump_str(d, k.s);
        } else if (k.kind == V_NONE || t_is_num(k)) {
                t_sb_lit(d->b, "\"");
                dump(d, k);
                t_sb_lit(d->b, "\"");
        } else {
                t_fail(&d->r->c, "keys must be str, int, float, bool or None, not %s", t_type_name(k));
        }
}

static void dump_dict(struct dumper *d, struct t_dict *src) {
        struct t_list *keys = t_list_new(&d->r->c, src->n);
        bool first = true;

        for (size_t i = 0; i < src->used; i++)
                if (!src->e[i].dead)
                        t_list_push(&d->r->c, keys, src->e[i].k);
        if (d->sort)
                t_sort(d->r, keys, keys->v, false);
        if (keys->n == 0) {
                t_sb_lit(d->b, "{}");
                return;
        }
        t_sb_lit(d->b, "{");
        d->depth++;
        for (size_t i = 0; i < keys->n; i++) {
                if (!first)
                        t_sb_str(d->b, d->item_sep);
                first = false;
                newline(d);
                dump_key(d, keys->v[i]);
                t_sb_str(d->b, d->key_sep);
                dump(d, *t_dict_find(&d->r->c, src, keys->v[i]));
        }
        d->depth--;
        newline(d);
        t_sb_lit(d->b, "}");
}

static void dump(struct dumper *d, struct t_val v) {
        t_enter(d->r);
        t_step(d->r, 1);
        switch (v.kind) {
        case V_NONE: t_sb_lit(d->b, "null"); break;
        case V_BOOL: t_sb_lit(d->b, v.b ? "true" : "false"); break;
        case V_INT: t_sb_printf(d->b, "%lld", (long long)v.i); break;
        case V_FLOAT: dump_float(d, v.f); break;
        case V_STR: dump_str(d, v.s); break;
        case V_LIST:
        case V_TUPLE:
                if (v.l->n == 0) {
                        t_sb_lit(d->b, "[]");
                        break;
                }
                t_sb_lit(d->b, "[");
                d->depth++;
                for (size_t i = 0; i < v.l->n; i++) {
                        if (i)
                                t_sb_str(d->b, d->item_sep);
                        newline(d);
                        dump(d, v.l->v[i]);
                }
                d->depth--;
                newline(d);
                t_sb_lit(d->b, "]");
                break;
        case V_DICT: dump_dict(d, v.d); break;
        case V_ABSENT: case V_UNDEF: case V_GEN: case V_VIEW: case V_RANGE: case V_NS: case V_MACRO: case V_FUNC: case V_METHOD:
        case V_LOOP: case V_CYCLER: case V_JOINER:
                t_fail(&d->r->c, "Object of type %s is not JSON serializable", t_type_name(v));
        }
        t_leave(d->r);
}

void t_tojson(struct t_run *r, struct t_sb *b, struct t_val v, const struct t_val *opt) {
        struct dumper d = { .r = r, .b = b, .ascii = t_arg_bool(opt[0], false), .sort = t_arg_bool(opt[3], false) };

        if (opt[1].kind == V_STR) {
                d.pretty = true;
                d.indent = opt[1].s;
        } else if (t_is_int(opt[1])) {
                int64_t n = t_as_int(opt[1]);
                struct t_sb pad;
                if (n > 1000)
                        t_fail(&r->c, "tojson: an indent of %lld is too wide", (long long)n);
                t_sb_init(&pad, &r->c);
                for (int64_t i = 0; i < n; i++)
                        t_sb_lit(&pad, " ");
                d.pretty = true;
                d.indent = t_sb_done(&pad);
        } else if (opt[1].kind != V_NONE && opt[1].kind != V_ABSENT) {
                t_fail(&r->c, "tojson: indent must be a number or a string, not %s", t_type_name(opt[1]));
        }
        d.item_sep = t_str_lit(&r->c, d.pretty ? "," : ", ");
        d.key_sep = t_str_lit(&r->c, ": ");
        if (opt[2].kind == V_TUPLE || opt[2].kind == V_LIST) {
                if (opt[2].l->n != 2 || opt[2].l->v[0].kind != V_STR || opt[2].l->v[1].kind != V_STR)
                        t_fail(&r->c, "tojson: separators must be two strings");
                d.item_sep = opt[2].l->v[0].s;
                d.key_sep = opt[2].l->v[1].s;
        } else if (opt[2].kind != V_NONE && opt[2].kind != V_ABSENT) {
                t_fail(&r->c, "tojson: separators must be two strings, not %s", t_type_name(opt[2]));
        }
        dump(&d, v);
}
