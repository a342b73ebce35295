/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters over sequences and mappings, as Jinja's builtins of the same names.
 * Those that give an iterator in Jinja give a single-pass one here (V_GEN).
 * Sorting, grouping and uniqueness ignore case unless told otherwise.
 */
#include "engine/text/tmpl_int.h"

#define FILTER(name) static struct t_val name(struct t_run *r, struct t_val in, const struct t_val *b, const struct t_args *a)

static struct t_val generator(struct t_list *l, const char *type) {
        l->type = type ? type : "generator";
        return t_listv(V_GEN, l);
}

/* attribute: None, an index, or a dotted path whose numeric parts are indices */
static struct t_val attribute_of(struct t_run *r, struct t_val v, struct t_val attr, struct t_val dflt) {
        const struct t_str *s = attr.s;

        if (attr.kind == V_NONE || attr.kind == V_ABSENT)
                return v;
        if (attr.kind != V_STR)
                return t_getitem(r, v, attr);
        for (size_t at = 0; at <= s->n;) {
                ptrdiff_t dot = t_str_find(s, &(struct t_str){ .p = ".", .n = 1 }, at, s->n);
                size_t end = dot < 0 ? s->n : (size_t)dot;
                const struct t_str *part = t_str_sub(&r->c, s, at, end - at);
                int64_t i;
                bool number = part->n > 0 && strspn(part->p, "0123456789") >= part->n && t_parse_int(part, 10, &i);

                v = t_getitem(r, v, number ? t_int(i) : t_strv(part));
                if (v.kind == V_UNDEF && dflt.kind != V_ABSENT && dflt.kind != V_NONE)
                        v = dflt;
                at = end + 1;
        }
        return v;
}

static struct t_val sort_key(struct t_run *r, struct t_val v, bool case_sensitive) {
        return v.kind == V_STR && !case_sensitive ? t_strv(t_recase(&r->c, v.s, T_LOWER)) : v;
}

/* Stable merge sort of l->v by keys (same length; may be l->v itself). */
void t_sort(struct t_run *r, struct t_list *l, const struct t_val *keys, bool reverse) {
        size_t n = l->n, *idx = t_array(&r->c, n + 1, sizeof(*idx)), *tmp = t_array(&r->c, n + 1, sizeof(*tmp));
        struct t_val *out = t_array(&r->c, n + 1, sizeof(*out));

        for (size_t i = 0; i < n; i++)
                idx[i] = i;
        for (size_t w = 1; w < n; w *= 2) {
                for (size_t lo = 0; lo < n; lo += 2 * w) {
                        size_t mid = MIN(lo + w, n), hi = MIN(lo + 2 * w, n), i = lo, j = mid, k = lo;
                        while (i < mid && j < hi) {
                                /* reverse keeps equal elements in their order, as Python's does */
                                bool take_right = reverse ? t_cmp(r, "<", keys[idx[i]], keys[idx[j]]) < 0
                                                          : t_cmp(r, "<", keys[idx[j]], keys[idx[i]]) < 0;
                                tmp[k++] = take_right ? idx[j++] : idx[i++];
                        }
                        while (i < mid)
                                tmp[k++] = idx[i++];
                        while (j < hi)
                                tmp[k++] = idx[j++];
                }
                memcpy(idx, tmp, n * sizeof(*idx));
        }
        for (size_t i = 0; i < n; i++)
                out[i] = l->v[idx[i]];
        l->v = out;
        l->cap = n + 1;
}

FILTER(f_length) {
        size_t n;
        if (!t_length(in, &n))
                t_fail(&r->c, "object of type '%s' has no len()", t_type_name(in));
        t_step(r, in.kind == V_STR ? n / 16 : 0);
        return t_int((int64_t)n);
}

FILTER(f_list) { return t_listv(V_LIST, t_to_list(r, in)); }

FILTER(f_default) {
        if (in.kind == V_UNDEF || (t_arg_bool(b[1], false) && !t_truth(in)))
                return b[0].kind == V_ABSENT ? t_strv(t_str_lit(&r->c, "")) : b[0];
        return in;
}

FILTER(f_first) {
        struct t_iter it = t_iter_begin(r, in);
        struct t_val v;
        return t_iter_next(r, &it, &v) ? v : t_undef();
}

FILTER(f_last) {
        struct t_list *l;
        if (in.kind == V_GEN)
                t_fail(&r->c, "'%s' object is not reversible", t_type_name(in));
        l = t_to_list(r, in);
        return l->n ? l->v[l->n - 1] : t_undef();
}

FILTER(f_join) {
        struct t_iter it = t_iter_begin(r, in);
        const struct t_str *sep = b[0].kind == V_ABSENT ? t_str_lit(&r->c, "") : t_to_str(r, b[0]);
        struct t_val v, none = { .kind = V_ABSENT };
        bool first = true;
        struct t_sb sb;

        t_sb_init(&sb, &r->c);
        while (t_iter_next(r, &it, &v)) {
                if (!first)
                        t_sb_str(&sb, sep);
                first = false;
                t_print(r, &sb, attribute_of(r, v, b[1], none));
        }
        return t_strv(t_sb_done(&sb));
}

FILTER(f_items) {
        struct t_list *l = t_list_new(&r->c, 0);

        if (in.kind != V_UNDEF && in.kind != V_DICT)
                t_fail(&r->c, "Can only get item pairs from a mapping.");
        for (size_t i = 0; in.kind == V_DICT && i < in.d->used; i++) {
                struct t_list *pair;
                if (in.d->e[i].dead)
                        continue;
                t_step(r, 1);
                pair = t_list_new(&r->c, 2);
                t_list_push(&r->c, pair, in.d->e[i].k);
                t_list_push(&r->c, pair, in.d->e[i].v);
                t_list_push(&r->c, l, t_listv(V_TUPLE, pair));
        }
        return generator(l, NULL);
}

FILTER(f_dictsort) {
        bool by_value = false, cs = t_arg_bool(b[0], false);
        struct t_list *l, *keys;

        if (b[1].kind != V_ABSENT) {
                const struct t_str *by = t_arg_str(r, "dictsort: by", b[1]);
                by_value = t_str_is(by, "value");
                if (!by_value && !t_str_is(by, "key"))
                        t_fail(&r->c, "dictsort: by must be \"key\" or \"value\"");
        }
        if (in.kind != V_DICT)
                t_fail(&r->c, "dictsort of %s, which is not a mapping", t_type_name(in));
        l = f_items(r, in, b, a).l;
        keys = t_list_new(&r->c, l->n);
        for (size_t i = 0; i < l->n; i++)
                t_list_push(&r->c, keys, sort_key(r, l->v[i].l->v[by_value], cs));
        t_sort(r, l, keys->v, t_arg_bool(b[2], false));
        return t_listv(V_LIST, l);
}

/* Keys of a sort: several attributes, separated by commas, make a tuple. */
static struct t_list *sort_keys(struct t_run *r, const struct t_list *l, struct t_val attr, bool cs) {
        struct t_list *keys = t_list_new(&r->c, l->n);
        struct t_val none = { .kind = V_ABSENT };

        for (size_t i = 0; i < l->n; i++) {
                if (attr.kind == V_STR && memchr(attr.s->p, ',', attr.s->n)) {
                        struct t_list *parts = t_list_new(&r->c, 2);
                        for (size_t at = 0; at <= attr.s->n;) {
                                const char *comma = memchr(attr.s->p + at, ',', attr.s->n - at);
                                size_t end = comma ? (size_t)(comma - attr.s->p) : attr.s->n;
                                struct t_val part = t_strv(t_str_sub(&r->c, attr.s, at, end - at));
                                t_list_push(&r->c, parts, sort_key(r, attribute_of(r, l->v[i], part, none), cs));
                                at = end + 1;
                        }
                        t_list_push(&r->c, keys, t_listv(V_TUPLE, parts));
                } else {
                        t_list_push(&r->c, keys, sort_key(r, attribute_of(r, l->v[i], attr, none), cs));
                }
        }
        return keys;
}

FILTER(f_sort) {
        struct t_list *l = t_to_list(r, in);
        t_sort(r, l, sort_keys(r, l, b[2], t_arg_bool(b[1], false))->v, t_arg_bool(b[0], false));
        return t_listv(V_LIST, l);
}

FILTER(f_unique) {
        struct t_list *l = t_to_list(r, in), *out = t_list_new(&r->c, 0);
        struct t_list *keys = sort_keys(r, l, b[1], t_arg_bool(b[0], false));
        struct t_dict *seen = t_dict_new(&r->c);

        for (size_t i = 0; i < l->n; i++) {
                if (t_dict_find(&r->c, seen, keys->v[i]))
                        continue;
                t_dict_set(&r->c, seen, keys->v[i], t_none());
                t_list_push(&r->c, out, l->v[i]);
        }
        return generator(out, NULL);
}

static struct t_val extreme(struct t_run *r, struct t_val in, const struct t_val *b, int sign) {
        struct t_list *l = t_to_list(r, in), *keys = sort_keys(r, l, b[1], t_arg_bool(b[0], false));
        size_t best = 0;

        for (size_t i = 1; i < l->n; i++) {
                int c = t_cmp(r, sign < 0 ? "<" : ">", keys->v[i], keys->v[best]);
                if (sign < 0 ? c < 0 : c > 0 && c != 2)
                        best = i;
        }
        return l->n ? l->v[best] : t_undef();
}

FILTER(f_min) { return extreme(r, in, b, -1); }
FILTER(f_max) { return extreme(r, in, b, 1); }

FILTER(f_sum) {
        struct t_val none = { .kind = V_ABSENT }, sum = b[1].kind == V_ABSENT ? t_int(0) : b[1], v;
        struct t_iter it = t_iter_begin(r, in);

        while (t_iter_next(r, &it, &v))
                sum = t_binary(r, N_ADD, sum, attribute_of(r, v, b[0], none));
        return sum;
}

FILTER(f_groupby) {
        struct t_list *l = t_to_list(r, in), *keys = t_list_new(&r->c, l->n), *shown = t_list_new(&r->c, l->n);
        struct t_list *out = t_list_new(&r->c, 0), *order = t_list_new(&r->c, l->n), *group = NULL;
        bool cs = t_arg_bool(b[2], false);

        if (b[0].kind == V_ABSENT)
                t_fail(&r->c, "groupby needs an attribute");
        for (size_t i = 0; i < l->n; i++) {
                t_list_push(&r->c, shown, attribute_of(r, l->v[i], b[0], b[1]));
                t_list_push(&r->c, keys, sort_key(r, shown->v[i], cs));
                t_list_push(&r->c, order, t_int((int64_t)i));
        }
        t_sort(r, order, keys->v, false);
        for (size_t i = 0; i < l->n; i++) {
                size_t at = (size_t)order->v[i].i;
                if (i == 0 || !t_eq(r, keys->v[at], keys->v[order->v[i - 1].i])) {
                        struct t_list *pair = t_list_new(&r->c, 2);
                        group = t_list_new(&r->c, 0);
                        pair->group = true;
                        t_list_push(&r->c, pair, shown->v[at]);
                        t_list_push(&r->c, pair, t_listv(V_LIST, group));
                        t_list_push(&r->c, out, t_listv(V_TUPLE, pair));
                }
                t_list_push(&r->c, group, l->v[at]);
        }
        return t_listv(V_LIST, out);
}

FILTER(f_reverse) {
        struct t_val absent = { .kind = V_ABSENT };
        struct t_list *l;

        if (in.kind == V_STR)
                return t_slice(r, in, absent, absent, t_int(-1));
        l = t_to_list(r, in);
        for (size_t i = 0; i < l->n / 2; i++) {
                struct t_val v = l->v[i];
                l->v[i] = l->v[l->n - 1 - i];
                l->v[l->n - 1 - i] = v;
        }
        return in.kind == V_GEN ? t_listv(V_LIST, l) : generator(l, "list_reverseiterator");
}

FILTER(f_batch) {
        struct t_iter it = t_iter_begin(r, in);
        struct t_list *out = t_list_new(&r->c, 0), *row = NULL;
        int64_t n = t_arg_int(r, "batch: linecount", b[0], 0);
        struct t_val v;

        if (n < 1 || n > 1000000)
                t_fail(&r->c, "batch: linecount must be from 1 to 1000000");
        while (t_iter_next(r, &it, &v)) {
                if (!row || row->n == (size_t)n) {
                        row = t_list_new(&r->c, 0);
                        t_list_push(&r->c, out, t_listv(V_LIST, row));
                }
                t_list_push(&r->c, row, v);
        }
        while (row && row->n < (size_t)n && b[1].kind != V_ABSENT && b[1].kind != V_NONE) {
                t_step(r, 1);
                t_list_push(&r->c, row, b[1]);
        }
        return generator(out, NULL);
}

FILTER(f_slice) {
        struct t_list *l = t_to_list(r, in), *out = t_list_new(&r->c, 0);
        int64_t n = t_arg_int(r, "slice: slices", b[0], 0);
        size_t at = 0;

        if (n < 1 || n > 1000000)
                t_fail(&r->c, "slice: slices must be from 1 to 1000000");
        for (size_t i = 0; i < (size_t)n; i++) {
                bool longer = i < l->n % (size_t)n;
                struct t_list *row = t_list_new(&r->c, 0);
                t_step(r, 1);
                for (size_t k = l->n / (size_t)n + longer; k > 0; k--)
                        t_list_push(&r->c, row, l->v[at++]);
                if (!longer && b[1].kind != V_ABSENT && b[1].kind != V_NONE)
                        t_list_push(&r->c, row, b[1]);
                t_list_push(&r->c, out, t_listv(V_LIST, row));
        }
        return generator(out, NULL);
}

FILTER(f_attr) {
        const struct t_str *name = t_arg_str(r, "attr: name", b[0]);
        /* attributes only: the keys of a mapping are not */
        if (in.kind == V_DICT && !t_method_find(V_DICT, name->p, name->n))
                return t_undef();
        return t_getattr(r, in, name);
}

/* map(attribute=..., default=...) or map('filter', arguments...) */
FILTER(f_map) {
        struct t_list *out = t_list_new(&r->c, 0);
        struct t_val attr = { .kind = V_ABSENT }, dflt = { .kind = V_ABSENT }, v;
        const struct t_filter *f = NULL;
        struct t_args rest = *a;
        struct t_iter it;

        if (a->n == 0) {
                for (size_t i = 0; i < a->n_kw; i++) {
                        if (t_str_is(a->kw_name[i], "attribute"))
                                attr = a->kw[i];
                        else if (t_str_is(a->kw_name[i], "default"))
                                dflt = a->kw[i];
                        else
                                t_fail(&r->c, "map has no argument '%.*s'", (int)a->kw_name[i]->n, a->kw_name[i]->p);
                }
                if (attr.kind == V_ABSENT)
                        t_fail(&r->c, "map requires a filter argument");
        } else {
                const struct t_str *name = t_arg_str(r, "map: the filter", a->pos[0]);
                f = t_filter_find(name->p, name->n);
                if (!f)
                        t_fail(&r->c, "unknown filter '%.*s' in |map", (int)name->n, name->p);
                rest.pos++;
                rest.n--;
        }
        if (!t_truth(in))
                return generator(out, NULL);
        it = t_iter_begin(r, in);
        while (t_iter_next(r, &it, &v))
                t_list_push(&r->c, out, f ? t_apply_filter(r, f, v, &rest) : attribute_of(r, v, attr, dflt));
        return generator(out, NULL);
}

/* select, reject (first = 0); selectattr, rejectattr (first = 1: an attribute, then the test) */
static struct t_val select_by(struct t_run *r, struct t_val in, const struct t_args *a, size_t first, bool keep) {
        struct t_list *out = t_list_new(&r->c, 0);
        struct t_val v, none = { .kind = V_ABSENT };
        const struct t_test *test = NULL;
        struct t_args rest = { 0 };
        struct t_iter it;

        if (a->n < first)
                t_fail(&r->c, "selectattr and rejectattr need an attribute");
        if (a->n > first) {
                const struct t_str *name = t_arg_str(r, "the test", a->pos[first]);
                test = t_test_find(name->p, name->n);
                if (!test)
                        t_fail(&r->c, "unknown test '%.*s'", (int)name->n, name->p);
                rest = *a;
                rest.pos += first + 1;
                rest.n -= first + 1;
        }
        if (!t_truth(in))
                return generator(out, NULL);
        it = t_iter_begin(r, in);
        while (t_iter_next(r, &it, &v)) {
                struct t_val x = first ? attribute_of(r, v, a->pos[0], none) : v;
                if ((test ? t_apply_test(r, test, x, &rest) : t_truth(x)) == keep)
                        t_list_push(&r->c, out, v);
        }
        return generator(out, NULL);
}

FILTER(f_select) { return select_by(r, in, a, 0, true); }
FILTER(f_reject) { return select_by(r, in, a, 0, false); }
FILTER(f_selectattr) { return select_by(r, in, a, 1, true); }
FILTER(f_rejectattr) { return select_by(r, in, a, 1, false); }

const struct t_filter t_filters_seq[] = {
        { "attr", "name", f_attr },
        { "batch", "linecount fill_with", f_batch },
        { "count", "", f_length },
        { "d", "default_value boolean", f_default },
        { "default", "default_value boolean", f_default },
        { "dictsort", "case_sensitive by reverse", f_dictsort },
        { "first", "", f_first },
        { "groupby", "attribute default case_sensitive", f_groupby },
        { "items", "", f_items },
        { "join", "d attribute", f_join },
        { "last", "", f_last },
        { "length", "", f_length },
        { "list", "", f_list },
        { "map", NULL, f_map },
        { "max", "case_sensitive attribute", f_max },
        { "min", "case_sensitive attribute", f_min },
        { "reject", NULL, f_reject },
        { "rejectattr", NULL, f_rejectattr },
        { "reverse", "", f_reverse },
        { "select", NULL, f_select },
        { "selectattr", NULL, f_selectattr },
        { "slice", "slices fill_with", f_slice },
        { "sort", "reverse case_sensitive attribute", f_sort },
        { "sum", "attribute start", f_sum },
        { "unique", "case_sensitive attribute", f_unique },
        { NULL, NULL, NULL },
};
