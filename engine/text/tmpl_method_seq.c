/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of lists, tuples, dicts, numbers, loops and cyclers. Lists and dicts
 * are mutable; a render owns copies of its inputs, so nothing leaks out.
 */
#include <math.h>

#include "engine/text/tmpl_int.h"

#define METHOD(name) static struct t_val name(struct t_run *r, struct t_val self, const struct t_val *b, const struct t_args *a)

static void need(struct t_run *r, const char *what, struct t_val v) {
        if (v.kind == V_ABSENT)
                t_fail(&r->c, "%s needs an argument", what);
}

METHOD(l_append) {
        need(r, "append", b[0]);
        t_list_push(&r->c, self.l, b[0]);
        return t_none();
}

METHOD(l_extend) {
        struct t_list *more;
        need(r, "extend", b[0]);
        more = t_to_list(r, b[0]);
        for (size_t i = 0; i < more->n; i++)
                t_list_push(&r->c, self.l, more->v[i]);
        return t_none();
}

METHOD(l_insert) {
        int64_t at = t_arg_int(r, "insert: index", b[0], 0), n = (int64_t)self.l->n;
        need(r, "insert", b[1]);
        at = at < 0 ? MAX(at + n, (int64_t)0) : MIN(at, n);
        t_step(r, self.l->n / 8);
        t_list_push(&r->c, self.l, b[1]);
        memmove(self.l->v + at + 1, self.l->v + at, (size_t)(n - at) * sizeof(*self.l->v));
        self.l->v[at] = b[1];
        return t_none();
}

static struct t_val take(struct t_run *r, struct t_list *l, size_t at) {
        struct t_val v = l->v[at];
        t_step(r, (l->n - at) / 8);
        memmove(l->v + at, l->v + at + 1, (l->n - at - 1) * sizeof(*l->v));
        l->n--;
        return v;
}

METHOD(l_pop) {
        int64_t at = t_arg_int(r, "pop: index", b[0], -1), n = (int64_t)self.l->n;
        if (n == 0)
                t_fail(&r->c, "pop from empty list");
        if (at < 0)
                at += n;
        if (at < 0 || at >= n)
                t_fail(&r->c, "pop index out of range");
        return take(r, self.l, (size_t)at);
}

static struct t_val position(struct t_run *r, struct t_val self, const struct t_val *b, const char *what) {
        need(r, what, b[0]);
        for (size_t i = 0; i < self.l->n; i++)
                if (t_eq(r, self.l->v[i], b[0]))
                        return t_int((int64_t)i);
        t_fail(&r->c, "%s: the value is not in the %s", what, t_type_name(self));
}

METHOD(l_index) { return position(r, self, b, "index"); }

METHOD(l_remove) {
        take(r, self.l, (size_t)position(r, self, b, "remove").i);
        return t_none();
}

METHOD(l_count) {
        int64_t n = 0;
        need(r, "count", b[0]);
        for (size_t i = 0; i < self.l->n; i++)
                n += t_eq(r, self.l->v[i], b[0]);
        return t_int(n);
}

METHOD(l_clear) {
        self.l->n = 0;
        return t_none();
}

METHOD(l_copy) { return t_listv(V_LIST, t_to_list(r, self)); }

METHOD(l_reverse) {
        t_step(r, self.l->n);
        for (size_t i = 0; i < self.l->n / 2; i++) {
                struct t_val v = self.l->v[i];
                self.l->v[i] = self.l->v[self.l->n - 1 - i];
                self.l->v[self.l->n - 1 - i] = v;
        }
        return t_none();
}

METHOD(l_sort) {
        t_sort(r, self.l, self.l->v, t_arg_bool(b[0], false));
        return t_none();
}

enum { KEYS, VALUES, ITEMS };

static struct t_val view(struct t_run *r, struct t_val self, int what) {
        static const char *const types[] = { "dict_keys", "dict_values", "dict_items" };
        struct t_list *l = t_list_new(&r->c, self.d->n);

        t_step(r, self.d->used);
        l->type = types[what];
        for (size_t i = 0; i < self.d->used; i++) {
                const struct t_entry *e = &self.d->e[i];
                if (e->dead)
                        continue;
                if (what == ITEMS) {
                        struct t_list *pair = t_list_new(&r->c, 2);
                        t_list_push(&r->c, pair, e->k);
                        t_list_push(&r->c, pair, e->v);
                        t_list_push(&r->c, l, t_listv(V_TUPLE, pair));
                } else {
                        t_list_push(&r->c, l, what == KEYS ? e->k : e->v);
                }
        }
        return t_listv(V_VIEW, l);
}

METHOD(d_keys) { return view(r, self, KEYS); }
METHOD(d_values) { return view(r, self, VALUES); }
METHOD(d_items) { return view(r, self, ITEMS); }

METHOD(d_get) {
        struct t_val *v;
        need(r, "get", b[0]);
        v = t_dict_find(&r->c, self.d, b[0]);
        return v ? *v : b[1].kind == V_ABSENT ? t_none() : b[1];
}

METHOD(d_pop) {
        struct t_val v;
        need(r, "pop", b[0]);
        if (t_dict_del(&r->c, self.d, b[0], &v))
                return v;
        if (b[1].kind == V_ABSENT)
                t_fail(&r->c, "pop: the key is not in the dict");
        return b[1];
}

METHOD(d_popitem) {
        for (size_t i = self.d->used; i > 0; i--) {
                struct t_entry *e = &self.d->e[i - 1];
                struct t_list *pair;
                if (e->dead)
                        continue;
                pair = t_list_new(&r->c, 2);
                t_list_push(&r->c, pair, e->k);
                t_list_push(&r->c, pair, e->v);
                e->dead = true;
                self.d->n--;
                return t_listv(V_TUPLE, pair);
        }
        t_fail(&r->c, "popitem(): dictionary is empty");
}

METHOD(d_setdefault) {
        struct t_val *v;
        need(r, "setdefault", b[0]);
        v = t_dict_find(&r->c, self.d, b[0]);
        if (v)
                return *v;
        t_dict_set(&r->c, self.d, b[0], b[1].kind == V_ABSENT ? t_none() : b[1]);
        return b[1].kind == V_ABSENT ? t_none() : b[1];
}

/* What dict(...) and update(...) take: a mapping or pairs, then names. */
static void fill(struct t_run *r, struct t_dict *d, const struct t_args *a) {
        if (a->n > 1)
                t_fail(&r->c, "expected at most 1 argument, got %zu", a->n);
        if (a->n && a->pos[0].kind == V_DICT) {
                const struct t_dict *from = a->pos[0].d;
                t_step(r, from->used);
                for (size_t i = 0; i < from->used; i++)
                        if (!from->e[i].dead)
                                t_dict_set(&r->c, d, from->e[i].k, from->e[i].v);
        } else if (a->n) {
                struct t_iter it = t_iter_begin(r, a->pos[0]);
                struct t_val v;
                while (t_iter_next(r, &it, &v)) {
                        struct t_list *pair = t_to_list(r, v);
                        if (pair->n != 2)
                                t_fail(&r->c, "a dict's element has length %zu; 2 is required", pair->n);
                        t_dict_set(&r->c, d, pair->v[0], pair->v[1]);
                }
        }
        for (size_t i = 0; i < a->n_kw; i++)
                t_dict_set(&r->c, d, t_strv(a->kw_name[i]), a->kw[i]);
}

METHOD(d_update) {
        fill(r, self.d, a);
        return t_none();
}

METHOD(d_clear) {
        *self.d = (struct t_dict){ 0 };
        return t_none();
}

METHOD(d_copy) {
        struct t_dict *d = t_dict_new(&r->c);
        fill(r, d, &(struct t_args){ .pos = &self, .n = 1 });
        return (struct t_val){ .kind = V_DICT, .d = d };
}

METHOD(f_is_integer) { return t_bool(self.kind != V_FLOAT || (isfinite(self.f) && self.f == floor(self.f))); }

METHOD(loop_cycle) {
        if (a->n == 0 || a->n_kw)
                t_fail(&r->c, "no items for cycling given");
        return a->pos[self.loop->index0 % a->n];
}

METHOD(loop_changed) {
        struct t_list *l = t_list_new(&r->c, a->n);
        struct t_val now = t_listv(V_TUPLE, l);
        bool changed;

        for (size_t i = 0; i < a->n; i++)
                t_list_push(&r->c, l, a->pos[i]);
        changed = !self.loop->has_changed || !t_eq(r, self.loop->changed, now);
        self.loop->has_changed = true;
        self.loop->changed = now;
        return t_bool(changed);
}

METHOD(cycler_next) {
        struct t_val v = self.cycler->items->v[self.cycler->pos];
        self.cycler->pos = (self.cycler->pos + 1) % self.cycler->items->n;
        return v;
}

METHOD(cycler_reset) {
        self.cycler->pos = 0;
        return t_none();
}

const struct t_method t_methods_seq[] = {
        { V_LIST, "append", "object", l_append },
        { V_LIST, "clear", "", l_clear },
        { V_LIST, "copy", "", l_copy },
        { V_LIST, "count", "value", l_count },
        { V_LIST, "extend", "iterable", l_extend },
        { V_LIST, "index", "value", l_index },
        { V_LIST, "insert", "index object", l_insert },
        { V_LIST, "pop", "index", l_pop },
        { V_LIST, "remove", "value", l_remove },
        { V_LIST, "reverse", "", l_reverse },
        { V_LIST, "sort", "reverse", l_sort },
        { V_TUPLE, "count", "value", l_count },
        { V_TUPLE, "index", "value", l_index },
        { V_DICT, "clear", "", d_clear },
        { V_DICT, "copy", "", d_copy },
        { V_DICT, "get", "key default", d_get },
        { V_DICT, "items", "", d_items },
        { V_DICT, "keys", "", d_keys },
        { V_DICT, "pop", "key default", d_pop },
        { V_DICT, "popitem", "", d_popitem },
        { V_DICT, "setdefault", "key default", d_setdefault },
        { V_DICT, "update", NULL, d_update },
        { V_DICT, "values", "", d_values },
        { V_INT, "is_integer", "", f_is_integer },
        { V_FLOAT, "is_integer", "", f_is_integer },
        { V_LOOP, "changed", NULL, loop_changed },
        { V_LOOP, "cycle", NULL, loop_cycle },
        { V_CYCLER, "next", "", cycler_next },
        { V_CYCLER, "reset", "", cycler_reset },
        { V_ABSENT, NULL, NULL, NULL },
};
