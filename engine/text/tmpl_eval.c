/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expressions. Attribute and item access follow Jinja: x.name asks for an
 * attribute first (methods of dicts come before their keys), x['name'] for an
 * item first; what is missing is undefined, and any use of undefined beyond
 * printing, truth, iteration and tests is an error.
 */
#include "engine/text/tmpl_int.h"

void t_step(struct t_run *r, size_t n) {
        r->steps += n;
        if (r->steps > r->max_steps)
                t_fail(&r->c, "the template took more than %llu steps", (unsigned long long)r->max_steps);
}

void t_enter(struct t_run *r) {
        if (++r->depth > T_MAX_EVAL_DEPTH)
                t_fail(&r->c, "the template recurses too deeply (more than %d levels)", T_MAX_EVAL_DEPTH);
}

void t_leave(struct t_run *r) {
        r->depth--;
}

struct t_scope *t_scope_new(struct t_run *r, struct t_scope *up) {
        struct t_scope *s = t_alloc(&r->c, sizeof(*s));
        s->up = up;
        return s;
}

bool t_lookup(struct t_scope *s, uint32_t name, struct t_val *ret) {
        for (; s; s = s->up)
                for (size_t i = 0; i < s->n; i++)
                        if (s->var[i].name == name) {
                                *ret = s->var[i].v;
                                return true;
                        }
        return false;
}

void t_bindvar(struct t_run *r, struct t_scope *s, uint32_t name, struct t_val v) {
        for (size_t i = 0; i < s->n; i++)
                if (s->var[i].name == name) {
                        s->var[i].v = v;
                        return;
                }
        s->var = t_grow(&r->c, s->var, s->n, &s->cap, s->n + 1, sizeof(*s->var));
        s->var[s->n++] = (struct t_var){ .name = name, .v = v };
}

static struct t_val name_value(struct t_run *r, struct t_scope *s, uint32_t name) {
        const struct t_str *str = r->t->names[name];
        const struct t_func *f;
        struct t_val v;

        if (t_lookup(s, name, &v))
                return v;
        f = t_func_find(str->p, str->n);
        if (f)
                return (struct t_val){ .kind = V_FUNC, .func = f };
        return (struct t_val){ .kind = V_UNDEF, .s = str };
}

_Noreturn static void fail_undefined(struct t_run *r, struct t_val v) {
        if (v.kind == V_UNDEF && v.s)
                t_fail(&r->c, "'%.*s' is undefined", (int)MIN(v.s->n, (size_t)100), v.s->p);
        t_fail(&r->c, "an undefined value is used");
}

static struct t_val undef_named(const struct t_str *name) {
        return (struct t_val){ .kind = V_UNDEF, .s = name };
}

struct t_val t_getattr(struct t_run *r, struct t_val v, const struct t_str *name) {
        const struct t_method *m;
        bool found;

        if (v.kind == V_UNDEF)
                fail_undefined(r, v);
        m = t_method_find(v.kind, name->p, name->n);
        if (m) {
                struct t_method_ref *ref = t_alloc(&r->c, sizeof(*ref));
                *ref = (struct t_method_ref){ .self = v, .m = m };
                return (struct t_val){ .kind = V_METHOD, .method = ref };
        }
        if (v.kind == V_DICT || v.kind == V_NS) {
                struct t_val *e = t_dict_find(&r->c, v.d, t_strv(name));
                return e ? *e : undef_named(name);
        }
        if (v.kind == V_LOOP) {
                struct t_val a = t_loop_attr(r, v.loop, name, &found);
                return found ? a : undef_named(name);
        }
        if (v.kind == V_TUPLE && v.l->group) {
                if (t_str_is(name, "grouper"))
                        return v.l->v[0];
                if (t_str_is(name, "list"))
                        return v.l->v[1];
        }
        if (v.kind == V_CYCLER && t_str_is(name, "current"))
                return v.cycler->items->v[v.cycler->pos];
        if (v.kind == V_MACRO && t_str_is(name, "name"))
                return t_strv(v.macro->name);
        if (v.kind == V_MACRO && t_str_is(name, "arguments")) {
                const struct t_callargs *sig = v.macro->def->call;
                struct t_list *l = t_list_new(&r->c, sig->n_pos);
                for (size_t i = 0; i < sig->n_pos; i++)
                        t_list_push(&r->c, l, t_strv(r->t->names[sig->pos[i]->name]));
                return t_listv(V_TUPLE, l);
        }
        return undef_named(name);
}

static bool hashable(struct t_val k) {
        if (k.kind == V_TUPLE) {
                for (size_t i = 0; i < k.l->n; i++)
                        if (!hashable(k.l->v[i]))
                                return false;
                return true;
        }
        return k.kind == V_STR || k.kind == V_NONE || t_is_num(k);
}

/* Python's index into n items; false if there is none. */
static bool index_of(struct t_val key, size_t n, size_t *ret) {
        int64_t i;

        if (!t_is_int(key))
                return false;
        i = t_as_int(key);
        if (i < 0)
                i += (int64_t)n;
        if (i < 0 || (uint64_t)i >= n)
                return false;
        *ret = (size_t)i;
        return true;
}

struct t_val t_getitem(struct t_run *r, struct t_val v, struct t_val key) {
        struct t_val *e;
        size_t i, n;

        switch (v.kind) {
        case V_ABSENT:
        case V_UNDEF:
                fail_undefined(r, v);
        case V_DICT:
                e = hashable(key) ? t_dict_find(&r->c, v.d, key) : NULL;
                if (e)
                        return *e;
                break;
        case V_LIST:
        case V_TUPLE:
                if (index_of(key, v.l->n, &i))
                        return v.l->v[i];
                break;
        case V_STR:
                t_step(r, v.s->n / 16);
                if (t_is_int(key) && index_of(key, t_cp_len(v.s), &i)) {
                        size_t off = t_cp_off(v.s, i);
                        int32_t cp;
                        n = t_cp(v.s->p + off, v.s->n - off, &cp);
                        return t_strv(t_str_sub(&r->c, v.s, off, n));
                }
                break;
        case V_RANGE:
                if (index_of(key, v.r->n, &i))
                        return t_int(v.r->start + (int64_t)i * v.r->step);
                break;
        case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_GEN: case V_VIEW: case V_NS: case V_MACRO: case V_FUNC:
        case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                break;
        }
        if (key.kind == V_STR)
                return t_getattr(r, v, key.s);
        return undef_named(NULL);
}

static int64_t slice_bound(struct t_run *r, struct t_val v, int64_t n, int64_t step, int64_t dflt) {
        int64_t i;

        if (v.kind == V_NONE || v.kind == V_ABSENT)
                return dflt;
        if (v.kind == V_UNDEF)
                fail_undefined(r, v);
        if (!t_is_int(v))
                t_fail(&r->c, "slice indices must be integers or None, not %s", t_type_name(v));
        i = t_as_int(v);
        if (i < 0)
                i = i < -n ? (step < 0 ? -1 : 0) : i + n;
        else if (i >= n)
                i = step < 0 ? n - 1 : n;
        return i;
}

struct t_val t_slice(struct t_run *r, struct t_val v, struct t_val start, struct t_val stop, struct t_val step) {
        int64_t n, by = 1, a, z;
        size_t count;

        if (v.kind == V_UNDEF)
                fail_undefined(r, v);
        if (v.kind != V_LIST && v.kind != V_TUPLE && v.kind != V_STR && v.kind != V_RANGE)
                t_fail(&r->c, "'%s' object can't be sliced", t_type_name(v));
        if (step.kind != V_NONE && step.kind != V_ABSENT) {
                if (!t_is_int(step))
                        t_fail(&r->c, "slice step must be an integer or None, not %s", t_type_name(step));
                by = t_as_int(step);
                if (by == 0)
                        t_fail(&r->c, "slice step cannot be zero");
                if (by < -INT32_MAX || by > INT32_MAX)
                        by = by < 0 ? -INT32_MAX : INT32_MAX;
        }
        t_length(v, &count);
        n = (int64_t)count;
        a = slice_bound(r, start, n, by, by < 0 ? n - 1 : 0);
        z = slice_bound(r, stop, n, by, by < 0 ? -1 : n);
        count = by > 0 ? (z > a ? (size_t)((z - a + by - 1) / by) : 0) : (a > z ? (size_t)((a - z - by - 1) / -by) : 0);
        t_step(r, 1 + (v.kind == V_STR ? v.s->n / 16 + count / 4 : count));
        if (v.kind == V_RANGE) {
                struct t_range *x = t_alloc(&r->c, sizeof(*x));
                *x = (struct t_range){ .start = v.r->start + a * v.r->step, .step = v.r->step * by, .n = count };
                x->stop = v.r->start + z * v.r->step;
                return (struct t_val){ .kind = V_RANGE, .r = x };
        }
        if (v.kind == V_STR) {
                struct t_sb b;
                if (by == 1) {
                        size_t from = t_cp_off(v.s, (size_t)a), to = z > a ? t_cp_off(v.s, (size_t)z) : from;
                        return t_strv(t_str_sub(&r->c, v.s, from, to - from));
                }
                /* other steps: remember where each code point begins */
                size_t *off = t_array(&r->c, (size_t)n + 1, sizeof(*off));
                int32_t cp;
                for (size_t i = 0, k = 0; i < v.s->n; off[++k] = i)
                        i += t_cp(v.s->p + i, v.s->n - i, &cp);
                t_sb_init(&b, &r->c);
                for (size_t k = 0; k < count; k++, a += by)
                        t_sb_sub(&b, v.s, off[a], off[a + 1] - off[a]);
                return t_strv(t_sb_done(&b));
        }
        struct t_list *l = t_list_new(&r->c, count);
        for (size_t k = 0; k < count; k++, a += by)
                t_list_push(&r->c, l, v.l->v[a]);
        return t_listv(v.kind, l);
}

static void eval_args(struct t_run *r, struct t_scope *s, const struct t_callargs *ca, struct t_args *ret) {
        size_t cap = ca->n_pos, cap_kw = ca->n_kw, cap_name = ca->n_kw;

        *ret = (struct t_args){ 0 };
        ret->pos = ca->n_pos ? t_array(&r->c, ca->n_pos, sizeof(*ret->pos)) : NULL;
        for (size_t i = 0; i < ca->n_pos; i++)
                ret->pos[ret->n++] = t_eval(r, s, ca->pos[i]);
        if (ca->n_kw) {
                ret->kw = t_array(&r->c, ca->n_kw, sizeof(*ret->kw));
                ret->kw_name = t_array(&r->c, ca->n_kw, sizeof(*ret->kw_name));
                for (size_t i = 0; i < ca->n_kw; i++) {
                        ret->kw_name[ret->n_kw] = ca->kw_name[i];
                        ret->kw[ret->n_kw++] = t_eval(r, s, ca->kw[i]);
                }
        }
        if (ca->star) {
                struct t_val v;
                struct t_iter it = t_iter_begin(r, t_eval(r, s, ca->star));
                while (t_iter_next(r, &it, &v)) {
                        ret->pos = t_grow(&r->c, ret->pos, ret->n, &cap, ret->n + 1, sizeof(*ret->pos));
                        ret->pos[ret->n++] = v;
                }
        }
        if (ca->star2) {
                struct t_val d = t_eval(r, s, ca->star2);
                if (d.kind != V_DICT)
                        t_fail(&r->c, "the argument after ** must be a mapping, not %s", t_type_name(d));
                for (size_t i = 0; i < d.d->used; i++) {
                        if (d.d->e[i].dead)
                                continue;
                        if (d.d->e[i].k.kind != V_STR)
                                t_fail(&r->c, "keywords must be strings");
                        ret->kw = t_grow(&r->c, ret->kw, ret->n_kw, &cap_kw, ret->n_kw + 1, sizeof(*ret->kw));
                        ret->kw_name = t_grow(&r->c, ret->kw_name, ret->n_kw, &cap_name, ret->n_kw + 1, sizeof(*ret->kw_name));
                        ret->kw_name[ret->n_kw] = d.d->e[i].k.s;
                        ret->kw[ret->n_kw++] = d.d->e[i].v;
                }
        }
}

void t_bind(struct t_run *r, const char *what, const char *params, const struct t_args *a, struct t_val *ret) {
        const char *p = params;
        size_t n = 0;

        for (size_t i = 0; i < T_MAX_PARAMS; i++)
                ret[i] = (struct t_val){ .kind = V_ABSENT };
        for (; *p; n++) {
                const struct t_str name = { .p = p, .n = strcspn(p, " ") };
                p += name.n + strspn(p + name.n, " ");
                if (n < a->n)
                        ret[n] = a->pos[n];
                for (size_t k = 0; k < a->n_kw; k++)
                        if (t_str_eq(a->kw_name[k], &name)) {
                                if (n < a->n)
                                        t_fail(&r->c, "'%s' got two values for its argument '%.*s'", what, (int)name.n, name.p);
                                ret[n] = a->kw[k];
                        }
        }
        if (a->n > n)
                t_fail(&r->c, "'%s' takes at most %zu argument(s), found %zu", what, n, a->n);
        for (size_t k = 0; k < a->n_kw; k++) { /* each name must be a parameter */
                const struct t_str *kw = a->kw_name[k];
                bool known = false;
                for (p = params; *p && !known;) {
                        const struct t_str name = { .p = p, .n = strcspn(p, " ") };
                        p += name.n + strspn(p + name.n, " ");
                        known = t_str_eq(kw, &name);
                }
                if (!known)
                        t_fail(&r->c, "'%s' has no argument '%.*s'", what, (int)MIN(kw->n, (size_t)60), kw->p);
        }
}

struct t_val t_apply_filter(struct t_run *r, const struct t_filter *f, struct t_val in, const struct t_args *a) {
        struct t_val b[T_MAX_PARAMS];

        t_step(r, 1);
        if (f->params)
                t_bind(r, f->name, f->params, a, b);
        return f->fn(r, in, b, a);
}

bool t_apply_test(struct t_run *r, const struct t_test *f, struct t_val in, const struct t_args *a) {
        t_step(r, 1);
        if (a->n != f->n_args || a->n_kw)
                t_fail(&r->c, "the test '%s' takes %u argument(s), found %zu", f->name, f->n_args, a->n + a->n_kw);
        return f->fn(r, in, a->pos);
}

static struct t_val call_method(struct t_run *r, const struct t_method *m, struct t_val self, const struct t_args *a) {
        struct t_val b[T_MAX_PARAMS];

        if (m->params)
                t_bind(r, m->name, m->params, a, b);
        return m->fn(r, self, b, a);
}

struct t_val t_call(struct t_run *r, struct t_val f, const struct t_args *a) {
        struct t_val b[T_MAX_PARAMS];

        t_step(r, 1);
        switch (f.kind) {
        case V_FUNC:
                if (f.func->params)
                        t_bind(r, f.func->name, f.func->params, a, b);
                return f.func->fn(r, b, a);
        case V_METHOD:
                return call_method(r, f.method->m, f.method->self, a);
        case V_MACRO:
                return t_call_macro(r, f.macro, a);
        case V_LOOP:
                if (a->n != 1 || a->n_kw)
                        t_fail(&r->c, "loop() takes one argument");
                if (!f.loop->node->flag)
                        t_fail(&r->c, "loop() needs a loop with the 'recursive' modifier");
                return t_run_loop(r, f.loop->scope, f.loop->node, a->pos[0], f.loop->depth0 + 1);
        case V_JOINER: {
                bool first = f.cycler->pos++ == 0;
                return t_strv(first ? t_str_lit(&r->c, "") : f.cycler->sep);
        }
        case V_UNDEF:
                fail_undefined(r, f);
        case V_ABSENT: case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_STR: case V_LIST: case V_TUPLE:
        case V_DICT: case V_GEN: case V_VIEW: case V_RANGE: case V_NS: case V_CYCLER:
                break;
        }
        t_fail(&r->c, "'%s' object is not callable", t_type_name(f));
}

static struct t_val eval_call(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_val self, f;
        struct t_args a;

        if (n->a->op == N_ATTR) { /* obj.method(...), without making a bound method */
                const struct t_str *name = n->a->val.s;
                const struct t_method *m;
                self = t_eval(r, s, n->a->a);
                r->c.line = n->line;
                if (self.kind == V_UNDEF)
                        fail_undefined(r, self);
                m = t_method_find(self.kind, name->p, name->n);
                if (m) {
                        eval_args(r, s, n->call, &a);
                        r->c.line = n->line;
                        return call_method(r, m, self, &a);
                }
                f = t_getattr(r, self, name);
                if (f.kind == V_UNDEF)
                        t_fail(&r->c, "'%s' object has no method '%.*s'", t_type_name(self), (int)name->n, name->p);
        } else {
                f = t_eval(r, s, n->a);
        }
        eval_args(r, s, n->call, &a);
        r->c.line = n->line;
        return t_call(r, f, &a);
}

static struct t_val eval_compare(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_val a = t_eval(r, s, n->a);

        for (size_t i = 0; i < n->n_kids; i++) {
                struct t_val b = t_eval(r, s, n->kids[i]->a);
                bool ok = false;
                int c;
                r->c.line = n->line;
                switch ((enum t_cmp_op)n->kids[i]->flag) {
                case C_EQ: ok = t_eq(r, a, b); break;
                case C_NE: ok = !t_eq(r, a, b); break;
                case C_LT: c = t_cmp(r, "<", a, b); ok = c < 0; break;
                case C_LE: c = t_cmp(r, "<=", a, b); ok = c <= 0; break;
                case C_GT: c = t_cmp(r, ">", a, b); ok = c > 0 && c != 2; break;
                case C_GE: c = t_cmp(r, ">=", a, b); ok = c >= 0 && c != 2; break;
                case C_IN: ok = t_contains(r, b, a); break;
                case C_NOTIN: ok = !t_contains(r, b, a); break;
                }
                if (!ok)
                        return t_bool(false);
                a = b;
        }
        return t_bool(true);
}

static struct t_val eval(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_val a, b, c;
        struct t_args args;

        switch ((enum t_op)n->op) {
        case N_CONST:
                return n->val;
        case N_NAME:
                return name_value(r, s, n->name);
        case N_LIST:
        case N_TUPLE: {
                struct t_list *l = t_list_new(&r->c, n->n_kids);
                for (size_t i = 0; i < n->n_kids; i++)
                        t_list_push(&r->c, l, t_eval(r, s, n->kids[i]));
                return t_listv(n->op == N_LIST ? V_LIST : V_TUPLE, l);
        }
        case N_DICT: {
                struct t_dict *d = t_dict_new(&r->c);
                for (size_t i = 0; i + 1 < n->n_kids; i += 2) {
                        a = t_eval(r, s, n->kids[i]);
                        t_dict_set(&r->c, d, a, t_eval(r, s, n->kids[i + 1]));
                }
                return (struct t_val){ .kind = V_DICT, .d = d };
        }
        case N_ATTR:
                a = t_eval(r, s, n->a);
                r->c.line = n->line;
                return t_getattr(r, a, n->val.s);
        case N_ITEM:
                a = t_eval(r, s, n->a);
                if (n->b->op == N_SLICE) {
                        struct t_val absent = { .kind = V_ABSENT }, step;
                        b = n->b->a ? t_eval(r, s, n->b->a) : absent;
                        c = n->b->b ? t_eval(r, s, n->b->b) : absent;
                        step = n->b->c ? t_eval(r, s, n->b->c) : absent;
                        r->c.line = n->line;
                        return t_slice(r, a, b, c, step);
                }
                b = t_eval(r, s, n->b);
                r->c.line = n->line;
                return t_getitem(r, a, b);
        case N_SLICE:
                t_fail(&r->c, "a slice among several indices is not supported");
        case N_CALL:
                return eval_call(r, s, n);
        case N_FILTER:
                a = t_eval(r, s, n->a);
                eval_args(r, s, n->call, &args);
                r->c.line = n->line;
                return t_apply_filter(r, n->impl, a, &args);
        case N_TEST:
                a = t_eval(r, s, n->a);
                eval_args(r, s, n->call, &args);
                r->c.line = n->line;
                return t_bool(t_apply_test(r, n->impl, a, &args) != (n->flag != 0));
        case N_NOT:
                return t_bool(!t_truth(t_eval(r, s, n->a)));
        case N_NEG:
        case N_POS:
                a = t_eval(r, s, n->a);
                r->c.line = n->line;
                if (a.kind == V_UNDEF)
                        fail_undefined(r, a);
                if (!t_is_num(a))
                        t_fail(&r->c, "bad operand type for unary %c: '%s'", n->op == N_NEG ? '-' : '+', t_type_name(a));
                if (a.kind == V_FLOAT)
                        return t_float(n->op == N_NEG ? -a.f : a.f);
                return n->op == N_NEG ? t_binary(r, N_SUB, t_int(0), a) : t_int(t_as_int(a));
        case N_AND:
                a = t_eval(r, s, n->a);
                return t_truth(a) ? t_eval(r, s, n->b) : a;
        case N_OR:
                a = t_eval(r, s, n->a);
                return t_truth(a) ? a : t_eval(r, s, n->b);
        case N_COND:
                if (t_truth(t_eval(r, s, n->b)))
                        return t_eval(r, s, n->a);
                return n->c ? t_eval(r, s, n->c) : t_undef();
        case N_CONCAT: {
                struct t_sb sb;
                t_sb_init(&sb, &r->c);
                for (size_t i = 0; i < n->n_kids; i++)
                        t_print(r, &sb, t_eval(r, s, n->kids[i]));
                return t_strv(t_sb_done(&sb));
        }
        case N_ADD: case N_SUB: case N_MUL: case N_DIV: case N_FLOORDIV: case N_MOD: case N_POW:
                a = t_eval(r, s, n->a);
                b = t_eval(r, s, n->b);
                r->c.line = n->line;
                if (a.kind == V_UNDEF)
                        fail_undefined(r, a);
                if (b.kind == V_UNDEF)
                        fail_undefined(r, b);
                return t_binary(r, n->op, a, b);
        case N_COMPARE:
                return eval_compare(r, s, n);
        case N_TEXT: case N_PRINT: case N_IF: case N_FOR: case N_SET: case N_SETBLOCK: case N_MACRO: case N_CALLBLOCK:
        case N_FILTERBLOCK: case N_WITH: case N_BLOCK: case N_BREAK: case N_CONTINUE: case N_NSREF:
                break;
        }
        t_fail(&r->c, "a statement where an expression is expected");
}

struct t_val t_eval(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_val v;

        t_step(r, 1);
        t_enter(r);
        r->c.line = n->line;
        v = eval(r, s, n);
        t_leave(r);
        return v;
}
