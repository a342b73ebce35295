/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests, global functions, and the look-up of builtins by name. Jinja's tests
 * are all here; of its functions lipsum is not.
 */
#include "engine/text/tmpl_int.h"

#define TEST(name) static bool name(struct t_run *r, struct t_val v, const struct t_val *b)
#define FUNC(name) static struct t_val name(struct t_run *r, const struct t_val *b, const struct t_args *a)

static bool iterable(struct t_val v) {
        switch (v.kind) {
        case V_UNDEF: case V_STR: case V_LIST: case V_TUPLE: case V_DICT: case V_GEN: case V_VIEW: case V_RANGE: case V_LOOP:
                return true;
        case V_ABSENT: case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_NS: case V_MACRO: case V_FUNC: case V_METHOD:
        case V_CYCLER: case V_JOINER:
                break;
        }
        return false;
}

static int64_t mod(struct t_run *r, struct t_val v, struct t_val by) {
        struct t_val m = t_binary(r, N_MOD, v, by);
        return m.kind == V_FLOAT ? m.f != 0 : m.i;
}

TEST(is_boolean) { return v.kind == V_BOOL; }
TEST(is_callable) {
        return v.kind == V_MACRO || v.kind == V_FUNC || v.kind == V_METHOD || v.kind == V_LOOP || v.kind == V_JOINER ||
               v.kind == V_UNDEF; /* Undefined has a __call__ */
}
TEST(is_defined) { return v.kind != V_UNDEF; }
TEST(is_undefined) { return v.kind == V_UNDEF; }
TEST(is_divisibleby) { return mod(r, v, b[0]) == 0; }
TEST(is_eq) { return t_eq(r, v, b[0]); }
TEST(is_ne) { return !t_eq(r, v, b[0]); }
TEST(is_escaped) { return v.kind == V_STR && v.s->markup; }
TEST(is_even) { return mod(r, v, t_int(2)) == 0; }
TEST(is_odd) { return mod(r, v, t_int(2)) != 0; }
TEST(is_false) { return v.kind == V_BOOL && !v.b; }
TEST(is_true) { return v.kind == V_BOOL && v.b; }
TEST(is_filter) { return v.kind == V_STR && t_filter_find(v.s->p, v.s->n); }
TEST(is_test) { return v.kind == V_STR && t_test_find(v.s->p, v.s->n); }
TEST(is_float) { return v.kind == V_FLOAT; }
TEST(is_integer) { return v.kind == V_INT; }
TEST(is_number) { return t_is_num(v); }
TEST(is_none) { return v.kind == V_NONE; }
TEST(is_string) { return v.kind == V_STR; }
TEST(is_mapping) { return v.kind == V_DICT; }
TEST(is_iterable) { return iterable(v); }
TEST(is_sequence) { /* has a length and an item access */
        return v.kind == V_STR || v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_DICT || v.kind == V_RANGE || v.kind == V_UNDEF;
}
TEST(is_in) { return t_contains(r, b[0], v); }
TEST(is_lt) { return t_cmp(r, "<", v, b[0]) < 0; }
TEST(is_le) { return t_cmp(r, "<=", v, b[0]) <= 0; }
TEST(is_gt) { return t_cmp(r, ">", v, b[0]) == 1; }
TEST(is_ge) {
        int c = t_cmp(r, ">=", v, b[0]);
        return c == 0 || c == 1;
}
TEST(is_lower) { return t_method_find(V_STR, "islower", 7)->fn(r, t_strv(t_to_str(r, v)), NULL, NULL).b; }
TEST(is_upper) { return t_method_find(V_STR, "isupper", 7)->fn(r, t_strv(t_to_str(r, v)), NULL, NULL).b; }
TEST(is_sameas) {
        if (v.kind != b[0].kind)
                return false;
        switch (v.kind) {
        case V_LIST: case V_TUPLE: case V_GEN: case V_VIEW: return v.l == b[0].l;
        case V_DICT: case V_NS: return v.d == b[0].d;
        case V_ABSENT: case V_UNDEF: case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_STR: case V_RANGE: case V_MACRO:
        case V_FUNC: case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                return t_eq(r, v, b[0]);
        }
        return false;
}

static const struct t_test tests[] = {
        { "!=", 1, is_ne }, { "<", 1, is_lt }, { "<=", 1, is_le }, { "==", 1, is_eq }, { ">", 1, is_gt }, { ">=", 1, is_ge },
        { "boolean", 0, is_boolean }, { "callable", 0, is_callable }, { "defined", 0, is_defined },
        { "divisibleby", 1, is_divisibleby }, { "eq", 1, is_eq }, { "equalto", 1, is_eq }, { "escaped", 0, is_escaped },
        { "even", 0, is_even }, { "false", 0, is_false }, { "filter", 0, is_filter }, { "float", 0, is_float },
        { "ge", 1, is_ge }, { "greaterthan", 1, is_gt }, { "gt", 1, is_gt }, { "in", 1, is_in }, { "integer", 0, is_integer },
        { "iterable", 0, is_iterable }, { "le", 1, is_le }, { "lessthan", 1, is_lt }, { "lower", 0, is_lower },
        { "lt", 1, is_lt }, { "mapping", 0, is_mapping }, { "ne", 1, is_ne }, { "none", 0, is_none },
        { "number", 0, is_number }, { "odd", 0, is_odd }, { "sameas", 1, is_sameas }, { "sequence", 0, is_sequence },
        { "string", 0, is_string }, { "test", 0, is_test }, { "true", 0, is_true }, { "undefined", 0, is_undefined },
        { "upper", 0, is_upper },
};

/* ---- functions ---- */

FUNC(f_range) {
        int64_t start = 0, stop, step = 1, span;
        struct t_range *x = t_alloc(&r->c, sizeof(*x));

        if (a->n == 0 || a->n > 3 || a->n_kw)
                t_fail(&r->c, "range takes 1 to 3 arguments");
        stop = t_arg_int(r, "range: stop", a->pos[a->n > 1], 0);
        if (a->n > 1)
                start = t_arg_int(r, "range: start", a->pos[0], 0);
        if (a->n > 2)
                step = t_arg_int(r, "range: step", a->pos[2], 1);
        if (step == 0)
                t_fail(&r->c, "range() arg 3 must not be zero");
        if (__builtin_sub_overflow(stop, start, &span) || step < -INT32_MAX || step > INT32_MAX ||
            span > INT64_MAX / 2 || span < INT64_MIN / 2)
                t_fail(&r->c, "range: the numbers are too large");
        *x = (struct t_range){ .start = start, .stop = stop, .step = step };
        if ((step > 0 && span > 0) || (step < 0 && span < 0))
                x->n = (size_t)((span + step + (step > 0 ? -1 : 1)) / step);
        return (struct t_val){ .kind = V_RANGE, .r = x };
}

static struct t_dict *dict_of(struct t_run *r, const struct t_args *a) {
        struct t_dict *d = t_dict_new(&r->c);
        t_method_find(V_DICT, "update", 6)->fn(r, (struct t_val){ .kind = V_DICT, .d = d }, NULL, a);
        return d;
}

FUNC(f_dict) { return (struct t_val){ .kind = V_DICT, .d = dict_of(r, a) }; }
FUNC(f_namespace) { return (struct t_val){ .kind = V_NS, .d = dict_of(r, a) }; }

FUNC(f_cycler) {
        struct t_cycler *c = t_alloc(&r->c, sizeof(*c));
        if (a->n == 0 || a->n_kw)
                t_fail(&r->c, "cycler: at least one item has to be provided");
        c->items = t_list_new(&r->c, a->n);
        for (size_t i = 0; i < a->n; i++)
                t_list_push(&r->c, c->items, a->pos[i]);
        return (struct t_val){ .kind = V_CYCLER, .cycler = c };
}

FUNC(f_joiner) {
        struct t_cycler *c = t_alloc(&r->c, sizeof(*c));
        c->sep = b[0].kind == V_ABSENT ? t_str_lit(&r->c, ", ") : t_to_str(r, b[0]);
        return (struct t_val){ .kind = V_JOINER, .cycler = c };
}

FUNC(f_raise_exception) {
        const struct t_str *s = t_to_str(r, b[0]);
        t_fail_code(&r->c, HEARTH_E_template_raised, "%.*s", (int)MIN(s->n, (size_t)INT32_MAX), s->p);
}

FUNC(f_strftime_now) {
        return t_strv(t_strftime(r, t_arg_str(r, "strftime_now: the format", b[0])));
}

static const struct t_func funcs[] = {
        { "cycler", NULL, f_cycler },       { "dict", NULL, f_dict },           { "joiner", "sep", f_joiner },
        { "namespace", NULL, f_namespace }, { "raise_exception", "message", f_raise_exception },
        { "range", NULL, f_range },         { "strftime_now", "format", f_strftime_now },
};

static bool same(const char *name, const char *p, size_t n) {
        return strlen(name) == n && memcmp(name, p, n) == 0;
}

const struct t_filter *t_filter_find(const char *p, size_t n) {
        static const struct t_filter *const tables[] = { t_filters_text, t_filters_seq, t_filters_html, t_filters_wrap };

        for (size_t i = 0; i < ELEMENTSOF(tables); i++)
                for (const struct t_filter *f = tables[i]; f->name; f++)
                        if (same(f->name, p, n))
                                return f;
        return NULL;
}

const struct t_test *t_test_find(const char *p, size_t n) {
        for (size_t i = 0; i < ELEMENTSOF(tests); i++)
                if (same(tests[i].name, p, n))
                        return &tests[i];
        return NULL;
}

const struct t_func *t_func_find(const char *p, size_t n) {
        for (size_t i = 0; i < ELEMENTSOF(funcs); i++)
                if (same(funcs[i].name, p, n))
                        return &funcs[i];
        return NULL;
}

static const struct t_method *find_in(const struct t_method *m, enum t_kind kind, const char *p, size_t n) {
        for (; m->name; m++)
                if ((kind == V_ABSENT || m->kind == kind) && same(m->name, p, n))
                        return m;
        return NULL;
}

const struct t_method *t_method_find(enum t_kind kind, const char *p, size_t n) {
        if (kind == V_ABSENT || kind == V_UNDEF)
                return NULL;
        return find_in(kind == V_STR ? t_methods_str : t_methods_seq, kind, p, n);
}

bool t_method_known(const char *p, size_t n) {
        return find_in(t_methods_str, V_ABSENT, p, n) || find_in(t_methods_seq, V_ABSENT, p, n);
}
