/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens to tree: expressions here, statements in tmpl_stmt.c. Precedence is
 * Jinja's: or, and, not, comparisons, + -, ~, * / // %, **, unary, then postfix
 * and filters; 'is' binds as tightly as a filter. Names of filters, tests,
 * functions and methods are resolved now, so that an unknown one is refused
 * when the template is loaded, even in a branch that never runs.
 */
#include <stdio.h>

#include "engine/text/tmpl_parse.h"

_Noreturn void p_fail(struct parser *p, const char *what) {
        const struct t_token *t = p->t;
        char found[64];

        p->c->line = t->line;
        switch (t->kind) {
        case K_EOF: snprintf(found, sizeof(found), "the end of the template"); break;
        case K_TEXT: snprintf(found, sizeof(found), "text"); break;
        case K_VAR_BEGIN: snprintf(found, sizeof(found), "'{{'"); break;
        case K_VAR_END: snprintf(found, sizeof(found), "'}}'"); break;
        case K_BLOCK_BEGIN: snprintf(found, sizeof(found), "'{%%'"); break;
        case K_BLOCK_END: snprintf(found, sizeof(found), "'%%}'"); break;
        case K_NAME: snprintf(found, sizeof(found), "'%.*s'", (int)MIN(t->val.s->n, (size_t)50), t->val.s->p); break;
        case K_STRING: snprintf(found, sizeof(found), "a string"); break;
        case K_INT:
        case K_FLOAT: snprintf(found, sizeof(found), "a number"); break;
        case K_OP: snprintf(found, sizeof(found), "'%s'", t->op); break;
        }
        t_fail(p->c, "expected %s, found %s", what, found);
}

bool p_is_op(const struct parser *p, const char *op) {
        return p->t->kind == K_OP && strcmp(p->t->op, op) == 0;
}

bool p_is_name(const struct parser *p, const char *name) {
        return p->t->kind == K_NAME && t_str_is(p->t->val.s, name);
}

bool p_skip_op(struct parser *p, const char *op) {
        if (!p_is_op(p, op))
                return false;
        p->t++;
        return true;
}

bool p_skip_name(struct parser *p, const char *name) {
        if (!p_is_name(p, name))
                return false;
        p->t++;
        return true;
}

void p_want_op(struct parser *p, const char *op) {
        char what[8];
        snprintf(what, sizeof(what), "'%s'", op);
        if (!p_skip_op(p, op))
                p_fail(p, what);
}

const struct t_str *p_want_name(struct parser *p, const char *what) {
        if (p->t->kind != K_NAME)
                p_fail(p, what);
        return (p->t++)->val.s;
}

static void deepen(struct parser *p, struct t_node *n, const struct t_node *kid) {
        if (kid && kid->depth + 1 > n->depth)
                n->depth = kid->depth + 1;
        if (n->depth > T_MAX_DEPTH) {
                p->c->line = n->line;
                t_fail(p->c, "the expression is nested more than %d deep", T_MAX_DEPTH);
        }
}

struct t_node *p_node(struct parser *p, int op, struct t_node *a, struct t_node *b, struct t_node *c) {
        struct t_node *n = t_alloc(p->c, sizeof(*n));

        n->op = (uint16_t)op;
        n->line = a ? a->line : p->t->line;
        n->a = a;
        n->b = b;
        n->c = c;
        deepen(p, n, a);
        deepen(p, n, b);
        deepen(p, n, c);
        return n;
}

void p_add(struct parser *p, struct t_node *n, struct t_node *kid) {
        /* capacity is the next power of two, so only grow when n_kids is one */
        if ((n->n_kids & (n->n_kids - 1)) == 0) {
                struct t_node **k = t_array(p->c, n->n_kids ? n->n_kids * 2 : 1, sizeof(*k));
                if (n->n_kids)
                        memcpy(k, n->kids, n->n_kids * sizeof(*k));
                n->kids = k;
        }
        n->kids[n->n_kids++] = kid;
        deepen(p, n, kid);
}

void p_enter(struct parser *p) {
        p->c->line = p->t->line;
        if (++p->depth > T_MAX_DEPTH / 2)
                t_fail(p->c, "the template is nested more than %d deep", T_MAX_DEPTH / 2);
}

void p_leave(struct parser *p) {
        p->depth--;
}

static struct t_node *constant(struct parser *p, struct t_val v) {
        struct t_node *n = p_node(p, N_CONST, NULL, NULL, NULL);
        n->val = v;
        return n;
}

static struct t_callargs *call_args(struct parser *p, struct t_node *owner) {
        struct t_callargs *ca = t_alloc(p->c, sizeof(*ca));
        size_t cap_pos = 0, cap_kw = 0, cap_name = 0;

        p_want_op(p, "(");
        while (!p_is_op(p, ")")) {
                struct t_node *e;
                if (p_skip_op(p, "*")) {
                        if (ca->star || ca->star2)
                                p_fail(p, "one '*' argument at most, before '**'");
                        e = ca->star = p_expr(p);
                } else if (p_skip_op(p, "**")) {
                        if (ca->star2)
                                p_fail(p, "one '**' argument at most");
                        e = ca->star2 = p_expr(p);
                } else if (p->t->kind == K_NAME && p->t[1].kind == K_OP && strcmp(p->t[1].op, "=") == 0) {
                        const struct t_str *key = p->t->val.s;
                        p->t += 2;
                        e = p_expr(p);
                        ca->kw = t_grow(p->c, ca->kw, ca->n_kw, &cap_kw, ca->n_kw + 1, sizeof(*ca->kw));
                        ca->kw_name = t_grow(p->c, ca->kw_name, ca->n_kw, &cap_name, ca->n_kw + 1, sizeof(*ca->kw_name));
                        ca->kw_name[ca->n_kw] = key;
                        ca->kw[ca->n_kw++] = e;
                } else {
                        if (ca->n_kw || ca->star || ca->star2)
                                p_fail(p, "arguments without a name before those with one");
                        e = p_expr(p);
                        ca->pos = t_grow(p->c, ca->pos, ca->n_pos, &cap_pos, ca->n_pos + 1, sizeof(*ca->pos));
                        ca->pos[ca->n_pos++] = e;
                }
                deepen(p, owner, e);
                if (!p_skip_op(p, ","))
                        break;
        }
        p_want_op(p, ")");
        return ca;
}

static struct t_node *subscribed(struct parser *p) {
        struct t_node *a = NULL, *b = NULL, *c = NULL, *n;

        if (!p_is_op(p, ":")) {
                a = p_expr(p);
                if (!p_is_op(p, ":"))
                        return a;
        }
        p_want_op(p, ":");
        if (!p_is_op(p, ":") && !p_is_op(p, "]") && !p_is_op(p, ","))
                b = p_expr(p);
        if (p_skip_op(p, ":") && !p_is_op(p, "]") && !p_is_op(p, ","))
                c = p_expr(p);
        n = p_node(p, N_SLICE, NULL, NULL, NULL);
        n->line = p->t->line;
        n->a = a;
        n->b = b;
        n->c = c;
        deepen(p, n, a);
        deepen(p, n, b);
        deepen(p, n, c);
        return n;
}

static struct t_node *subscript(struct parser *p, struct t_node *of) {
        struct t_node *n, *key, *tuple = NULL;

        if (p_skip_op(p, ".")) {
                if (p->t->kind == K_INT) {
                        key = constant(p, p->t->val);
                        p->t++;
                        return p_node(p, N_ITEM, of, key, NULL);
                }
                n = p_node(p, N_ATTR, of, NULL, NULL);
                n->val = t_strv(p_want_name(p, "a name or number after '.'"));
                return n;
        }
        p_want_op(p, "[");
        if (p_is_op(p, "]"))
                p_fail(p, "an index");
        key = subscribed(p);
        while (p_skip_op(p, ",")) {
                if (!tuple) {
                        tuple = p_node(p, N_TUPLE, NULL, NULL, NULL);
                        p_add(p, tuple, key);
                        key = tuple;
                }
                if (p_is_op(p, "]"))
                        break;
                p_add(p, tuple, subscribed(p));
        }
        p_want_op(p, "]");
        return p_node(p, N_ITEM, of, key, NULL);
}

static struct t_node *call(struct parser *p, struct t_node *f) {
        struct t_node *n = p_node(p, N_CALL, f, NULL, NULL);

        if (f->op == N_ATTR && !t_method_known(f->val.s->p, f->val.s->n)) {
                p->c->line = f->line;
                t_fail(p->c, "unknown method '.%.*s()'", (int)f->val.s->n, f->val.s->p);
        }
        if (f->op == N_NAME) { /* whether anything has that name is known at the end */
                p->calls = t_grow(p->c, p->calls, p->n_calls, &p->cap_calls, p->n_calls + 1, sizeof(*p->calls));
                p->calls[p->n_calls++] = (struct p_site){ .name = f->name, .line = f->line };
        }
        n->call = call_args(p, n);
        return n;
}

struct t_node *p_filter(struct parser *p, struct t_node *of) {
        struct t_node *n = p_node(p, N_FILTER, of, NULL, NULL);
        const struct t_str *name;

        n->line = p->t->line;
        name = p_want_name(p, "a filter's name");
        n->impl = t_filter_find(name->p, name->n);
        n->val = t_strv(name);
        if (!n->impl || p_is_op(p, ".")) {
                p->c->line = n->line;
                t_fail(p->c, "unknown filter '%.*s'", (int)name->n, name->p);
        }
        if (p_is_op(p, "("))
                n->call = call_args(p, n);
        else
                n->call = t_alloc(p->c, sizeof(*n->call));
        /* map('name'), select('test') ... name their filter or test in a string: check it as well */
        if (n->call->n_pos && n->call->pos[0]->op == N_CONST && n->call->pos[0]->val.kind == V_STR) {
                const struct t_str *arg = n->call->pos[0]->val.s;
                p->c->line = n->line;
                if (t_str_is(name, "map") && !t_filter_find(arg->p, arg->n))
                        t_fail(p->c, "unknown filter '%.*s' in |map", (int)arg->n, arg->p);
                if ((t_str_is(name, "select") || t_str_is(name, "reject")) && !t_test_find(arg->p, arg->n))
                        t_fail(p->c, "unknown test '%.*s' in |%.*s", (int)arg->n, arg->p, (int)name->n, name->p);
        }
        if (n->call->n_pos > 1 && n->call->pos[1]->op == N_CONST && n->call->pos[1]->val.kind == V_STR &&
            (t_str_is(name, "selectattr") || t_str_is(name, "rejectattr"))) {
                const struct t_str *arg = n->call->pos[1]->val.s;
                if (!t_test_find(arg->p, arg->n))
                        t_fail(p->c, "unknown test '%.*s' in |%.*s", (int)arg->n, arg->p, (int)name->n, name->p);
        }
        return n;
}

static struct t_node *test(struct parser *p, struct t_node *of) {
        struct t_node *n = p_node(p, N_TEST, of, NULL, NULL);
        const struct t_test *impl;
        const struct t_str *name;

        n->line = p->t->line;
        n->flag = p_skip_name(p, "not");
        name = p_want_name(p, "a test's name");
        n->impl = impl = t_test_find(name->p, name->n);
        p->c->line = n->line;
        if (!impl)
                t_fail(p->c, "unknown test '%.*s'", (int)name->n, name->p);
        if (p_is_op(p, "(")) {
                n->call = call_args(p, n);
        } else {
                bool arg = impl->n_args == 0 ? false :
                           (p->t->kind == K_NAME && !p_is_name(p, "else") && !p_is_name(p, "or") && !p_is_name(p, "and")) ||
                           p->t->kind == K_STRING || p->t->kind == K_INT || p->t->kind == K_FLOAT ||
                           p_is_op(p, "[") || p_is_op(p, "{");
                if (p_is_name(p, "is"))
                        p_fail(p, "no second 'is': tests can't be chained");
                n->call = t_alloc(p->c, sizeof(*n->call));
                /* what follows is an argument for the parser, as in "x is divisibleby 3" */
                if (arg) {
                        n->call->pos = t_alloc(p->c, sizeof(*n->call->pos));
                        n->call->pos[n->call->n_pos++] = p_postfix(p, p_primary(p));
                        deepen(p, n, n->call->pos[0]);
                }
        }
        if (n->call->n_pos != impl->n_args && !n->call->star)
                t_fail(p->c, "the test '%s' takes %u argument(s), found %zu", impl->name, impl->n_args, n->call->n_pos);
        return n;
}

struct t_node *p_postfix(struct parser *p, struct t_node *n) {
        for (;;) {
                if (p_is_op(p, ".") || p_is_op(p, "["))
                        n = subscript(p, n);
                else if (p_is_op(p, "("))
                        n = call(p, n);
                else
                        return n;
        }
}

static struct t_node *filter_expr(struct parser *p, struct t_node *n) {
        for (;;) {
                if (p_skip_op(p, "|"))
                        n = p_filter(p, n);
                else if (p_skip_name(p, "is"))
                        n = test(p, n);
                else if (p_is_op(p, "("))
                        n = call(p, n);
                else
                        return n;
        }
}

static struct t_node *sequence(struct parser *p, int op, const char *close) {
        struct t_node *n = p_node(p, op, NULL, NULL, NULL);

        p->t++;
        while (!p_is_op(p, close)) {
                p_add(p, n, p_expr(p));
                if (op == N_DICT) {
                        p_want_op(p, ":");
                        p_add(p, n, p_expr(p));
                }
                if (!p_skip_op(p, ","))
                        break;
        }
        p_want_op(p, close);
        return n;
}

struct t_node *p_primary(struct parser *p) {
        const struct t_token *t = p->t;
        struct t_node *n;

        switch (t->kind) {
        case K_NAME:
                p->t++;
                if (t_str_is(t->val.s, "true") || t_str_is(t->val.s, "True"))
                        return constant(p, t_bool(true));
                if (t_str_is(t->val.s, "false") || t_str_is(t->val.s, "False"))
                        return constant(p, t_bool(false));
                if (t_str_is(t->val.s, "none") || t_str_is(t->val.s, "None"))
                        return constant(p, t_none());
                n = p_node(p, N_NAME, NULL, NULL, NULL);
                n->line = t->line;
                n->name = t_intern(p->tmpl, t->val.s->p, t->val.s->n);
                p->uses |= n->name == p->tmpl->id_caller    ? P_USES_CALLER
                           : n->name == p->tmpl->id_varargs ? P_USES_VARARGS
                           : n->name == p->tmpl->id_kwargs  ? P_USES_KWARGS
                                                            : 0;
                return n;
        case K_STRING: {
                const struct t_str *s = t->val.s;
                for (p->t++; p->t->kind == K_STRING; p->t++) /* 'a' 'b' is one string */
                        s = t_str_cat(p->c, s, p->t->val.s);
                return constant(p, t_strv(s));
        }
        case K_INT:
        case K_FLOAT:
                p->t++;
                return constant(p, t->val);
        case K_OP:
                if (p_is_op(p, "(")) {
                        p->t++;
                        p_enter(p);
                        n = p_tuple(p, P_COND | P_PARENS, NULL);
                        p_leave(p);
                        p_want_op(p, ")");
                        return n;
                }
                if (p_is_op(p, "["))
                        return sequence(p, N_LIST, "]");
                if (p_is_op(p, "{"))
                        return sequence(p, N_DICT, "}");
                break;
        case K_EOF: case K_TEXT: case K_VAR_BEGIN: case K_VAR_END: case K_BLOCK_BEGIN: case K_BLOCK_END:
                break;
        }
        p_fail(p, "an expression");
}

static struct t_node *unary(struct parser *p, bool with_filter) {
        struct t_node *n;

        p_enter(p);
        if (p_skip_op(p, "-"))
                n = p_node(p, N_NEG, unary(p, false), NULL, NULL);
        else if (p_skip_op(p, "+"))
                n = p_node(p, N_POS, unary(p, false), NULL, NULL);
        else
                n = p_primary(p);
        n = p_postfix(p, n);
        if (with_filter)
                n = filter_expr(p, n);
        p_leave(p);
        return n;
}

static struct t_node *power(struct parser *p) {
        struct t_node *n = unary(p, true);
        while (p_skip_op(p, "**"))
                n = p_node(p, N_POW, n, unary(p, true), NULL);
        return n;
}

static struct t_node *math2(struct parser *p) {
        struct t_node *n = power(p);
        for (;;) {
                int op = p_is_op(p, "*") ? N_MUL : p_is_op(p, "/") ? N_DIV : p_is_op(p, "//") ? N_FLOORDIV : p_is_op(p, "%") ? N_MOD : -1;
                if (op < 0)
                        return n;
                p->t++;
                n = p_node(p, op, n, power(p), NULL);
        }
}

static struct t_node *concat(struct parser *p) {
        struct t_node *n = math2(p), *cat;

        if (!p_is_op(p, "~"))
                return n;
        cat = p_node(p, N_CONCAT, NULL, NULL, NULL);
        p_add(p, cat, n);
        while (p_skip_op(p, "~"))
                p_add(p, cat, math2(p));
        return cat;
}

static struct t_node *math1(struct parser *p) {
        struct t_node *n = concat(p);
        for (;;) {
                int op = p_is_op(p, "+") ? N_ADD : p_is_op(p, "-") ? N_SUB : -1;
                if (op < 0)
                        return n;
                p->t++;
                n = p_node(p, op, n, concat(p), NULL);
        }
}

static int compare_op(struct parser *p) {
        static const struct { const char *op; int code; } ops[] = {
                { "==", C_EQ }, { "!=", C_NE }, { "<", C_LT }, { "<=", C_LE }, { ">", C_GT }, { ">=", C_GE } };

        for (size_t i = 0; i < ELEMENTSOF(ops); i++)
                if (p_skip_op(p, ops[i].op))
                        return ops[i].code;
        if (p_skip_name(p, "in"))
                return C_IN;
        if (p_is_name(p, "not") && p->t[1].kind == K_NAME && t_str_is(p->t[1].val.s, "in")) {
                p->t += 2;
                return C_NOTIN;
        }
        return -1;
}

/* N_COMPARE: a is the first operand; each kid is a node whose flag is the operator and a the operand. */
static struct t_node *compare(struct parser *p) {
        struct t_node *n = math1(p), *cmp = NULL;

        for (int op; (op = compare_op(p)) >= 0;) {
                struct t_node *kid;
                if (!cmp)
                        cmp = p_node(p, N_COMPARE, n, NULL, NULL);
                kid = p_node(p, N_COMPARE, math1(p), NULL, NULL);
                kid->flag = (uint16_t)op;
                p_add(p, cmp, kid);
        }
        return cmp ? cmp : n;
}

static struct t_node *not_expr(struct parser *p) {
        struct t_node *n;

        if (!p_skip_name(p, "not"))
                return compare(p);
        p_enter(p);
        n = p_node(p, N_NOT, not_expr(p), NULL, NULL);
        p_leave(p);
        return n;
}

static struct t_node *and_expr(struct parser *p) {
        struct t_node *n = not_expr(p);
        while (p_skip_name(p, "and"))
                n = p_node(p, N_AND, n, not_expr(p), NULL);
        return n;
}

static struct t_node *or_expr(struct parser *p) {
        struct t_node *n = and_expr(p);
        while (p_skip_name(p, "or"))
                n = p_node(p, N_OR, n, and_expr(p), NULL);
        return n;
}

/* N_COND: a if b else c; c NULL is undefined */
static struct t_node *cond_expr(struct parser *p) {
        struct t_node *n = or_expr(p);

        while (p_skip_name(p, "if")) {
                struct t_node *cond = or_expr(p), *other = NULL;
                if (p_skip_name(p, "else")) {
                        p_enter(p);
                        other = cond_expr(p);
                        p_leave(p);
                }
                n = p_node(p, N_COND, n, cond, other);
        }
        return n;
}

struct t_node *p_expr(struct parser *p) {
        struct t_node *n;

        p_enter(p);
        n = cond_expr(p);
        p_leave(p);
        return n;
}

struct t_node *p_tuple(struct parser *p, unsigned flags, const char *end_name) {
        struct t_node *first = NULL, *tuple = NULL;

        for (;;) {
                struct t_node *e;
                if (p->t->kind == K_VAR_END || p->t->kind == K_BLOCK_END || p_is_op(p, ")") || (end_name && p_is_name(p, end_name)))
                        break;
                e = flags & P_COND ? p_expr(p) : or_expr(p);
                if (tuple)
                        p_add(p, tuple, e);
                else
                        first = e;
                if (!p_skip_op(p, ","))
                        break;
                if (!tuple) {
                        tuple = p_node(p, N_TUPLE, NULL, NULL, NULL);
                        p_add(p, tuple, first);
                }
        }
        if (tuple)
                return tuple;
        if (first)
                return first;
        if (!(flags & P_PARENS))
                p_fail(p, "an expression");
        return p_node(p, N_TUPLE, NULL, NULL, NULL);
}
