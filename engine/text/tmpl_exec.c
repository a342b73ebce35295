/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statements. Scopes as in Jinja: a for body, macro, with, call, filter and
 * set block have their own, if has not; a for body's is new in each round.
 * A macro sees the scope it was defined in, as it is when the macro runs.
 */
#include "engine/text/tmpl_parse.h"

static void assign(struct t_run *r, struct t_scope *s, const struct t_node *target, struct t_val v) {
        r->c.line = target->line;
        switch (target->op) {
        case N_NAME:
                t_bindvar(r, s, target->name, v);
                return;
        case N_NSREF: {
                struct t_val ns;
                if (!t_lookup(s, target->name, &ns) || ns.kind != V_NS)
                        t_fail(&r->c, "cannot assign attribute on non-namespace object");
                t_dict_set(&r->c, ns.d, target->val, v);
                return;
        }
        default: { /* N_TUPLE */
                struct t_list *l = t_to_list(r, v);
                if (l->n != target->n_kids)
                        t_fail(&r->c, "cannot unpack %zu value(s) into %zu name(s)", l->n, target->n_kids);
                for (size_t i = 0; i < l->n; i++)
                        assign(r, s, target->kids[i], l->v[i]);
        }
        }
}

/* Runs statements with their output captured. */
static const struct t_str *capture(struct t_run *r, struct t_scope *s, struct t_node *const *body, size_t n) {
        struct t_sb b, *out = r->out;

        t_sb_init(&b, &r->c);
        b.max = out->max;
        r->out = &b;
        t_exec(r, s, body, n);
        r->out = out;
        return t_sb_done(&b);
}

/* The text of a block through its filters. */
static struct t_val filtered(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_scope *inner = t_scope_new(r, s);
        const struct t_str *text = capture(r, inner, n->kids, n->n_kids);
        const struct t_node *leaf = n->b;

        while (leaf->op == N_FILTER)
                leaf = leaf->a;
        inner = t_scope_new(r, s);
        t_bindvar(r, inner, leaf->name, t_strv(text));
        return t_eval(r, inner, n->b);
}

/* ---- loops ---- */

/* The next item that passes the loop's condition. */
static bool pull(struct t_run *r, struct t_loop *l, struct t_val *ret) {
        while (!l->ended && t_iter_next(r, &l->it, ret)) {
                struct t_scope *s;
                if (!l->node->c)
                        return true;
                s = t_scope_new(r, l->scope);
                assign(r, s, l->node->a, *ret);
                if (t_truth(t_eval(r, s, l->node->c)))
                        return true;
        }
        l->ended = true;
        return false;
}

static void peek(struct t_run *r, struct t_loop *l) {
        if (l->peeked)
                return;
        l->peeked = true;
        l->has_next = pull(r, l, &l->next);
}

static bool advance(struct t_run *r, struct t_loop *l) {
        bool first = l->index0 == SIZE_MAX;
        struct t_val v;

        if (l->peeked) {
                l->peeked = false;
                if (!l->has_next)
                        return false;
                v = l->next;
        } else if (!pull(r, l, &v)) {
                return false;
        }
        if (!first) {
                l->prev = l->cur;
                l->has_prev = true;
        }
        l->cur = v;
        l->index0++;
        return true;
}

/* Items in all. With a condition or a generator, what is left is collected first. */
static size_t length(struct t_run *r, struct t_loop *l) {
        size_t n;

        if (l->has_length)
                return l->length;
        if (l->node->c || !t_length(l->it.v, &n)) {
                struct t_list *rest = t_list_new(&r->c, 0);
                struct t_val v;
                if (l->peeked && l->has_next)
                        t_list_push(&r->c, rest, l->next);
                while (pull(r, l, &v))
                        t_list_push(&r->c, rest, v);
                l->peeked = true;
                l->has_next = rest->n > 0;
                if (l->has_next)
                        l->next = rest->v[0];
                /* the rest has passed the condition: wrap it so that it is not asked again */
                l->it = (struct t_iter){ .v = t_listv(V_LIST, rest), .pos = 1 };
                l->ended = false;
                struct t_node *plain = t_alloc(&r->c, sizeof(*plain));
                *plain = *l->node;
                plain->c = NULL;
                l->node = plain;
                n = l->index0 + 1 + rest->n;
        }
        l->length = n;
        l->has_length = true;
        return n;
}

struct t_val t_loop_attr(struct t_run *r, struct t_loop *l, const struct t_str *name, bool *ret_found) {
        *ret_found = true;
        if (t_str_is(name, "index"))
                return t_int((int64_t)l->index0 + 1);
        if (t_str_is(name, "index0"))
                return t_int((int64_t)l->index0);
        if (t_str_is(name, "first"))
                return t_bool(l->index0 == 0);
        if (t_str_is(name, "last")) {
                peek(r, l);
                return t_bool(!l->has_next);
        }
        if (t_str_is(name, "length"))
                return t_int((int64_t)length(r, l));
        if (t_str_is(name, "revindex"))
                return t_int((int64_t)length(r, l) - (int64_t)l->index0);
        if (t_str_is(name, "revindex0"))
                return t_int((int64_t)length(r, l) - (int64_t)l->index0 - 1);
        if (t_str_is(name, "previtem"))
                return l->has_prev ? l->prev : t_undef();
        if (t_str_is(name, "nextitem")) {
                peek(r, l);
                return l->has_next ? l->next : t_undef();
        }
        if (t_str_is(name, "depth"))
                return t_int((int64_t)l->depth0 + 1);
        if (t_str_is(name, "depth0"))
                return t_int((int64_t)l->depth0);
        *ret_found = false;
        return t_undef();
}

static enum t_flow loop_rounds(struct t_run *r, struct t_scope *s, const struct t_node *n, struct t_val iterable, unsigned depth0) {
        struct t_loop *l = t_alloc(&r->c, sizeof(*l));
        struct t_scope *inner = NULL;
        uint64_t closures = 0;
        bool any = false;

        *l = (struct t_loop){ .it = t_iter_begin(r, iterable), .node = n, .scope = s, .index0 = SIZE_MAX, .depth0 = depth0 };
        while (advance(r, l)) {
                if (inner && closures == r->n_closures)
                        inner->n = 0;
                else
                        inner = t_scope_new(r, s);
                closures = r->n_closures;
                any = true;
                t_bindvar(r, inner, r->t->id_loop, (struct t_val){ .kind = V_LOOP, .loop = l });
                assign(r, inner, n->a, l->cur);
                if (t_exec(r, inner, n->kids, n->n_kids) == F_BREAK)
                        break;
        }
        return any ? F_NEXT : t_exec(r, t_scope_new(r, s), n->other, n->n_other);
}

struct t_val t_run_loop(struct t_run *r, struct t_scope *s, const struct t_node *n, struct t_val iterable, unsigned depth0) {
        struct t_sb b, *out = r->out;

        t_enter(r);
        t_sb_init(&b, &r->c);
        b.max = out->max;
        r->out = &b;
        loop_rounds(r, s, n, iterable, depth0);
        r->out = out;
        t_leave(r);
        return t_strv(t_sb_done(&b));
}

/* ---- macros ---- */

struct t_val t_call_macro(struct t_run *r, const struct t_macro *m, const struct t_args *a) {
        const struct t_callargs *sig = m->def->call;
        struct t_scope *s = t_scope_new(r, m->scope);
        struct t_list *rest = t_list_new(&r->c, 0);
        struct t_dict *named = t_dict_new(&r->c);
        size_t first_default = sig->n_pos - sig->n_kw;
        const struct t_str *text;
        bool *given = t_alloc(&r->c, sig->n_pos + 1);
        bool has_caller = false;

        for (size_t i = 0; i < a->n; i++) {
                if (i < sig->n_pos) {
                        t_bindvar(r, s, sig->pos[i]->name, a->pos[i]);
                        given[i] = true;
                } else {
                        t_list_push(&r->c, rest, a->pos[i]);
                }
        }
        if (rest->n && !(m->def->flag & P_USES_VARARGS))
                t_fail(&r->c, "macro '%.*s' takes not more than %zu argument(s), found %zu", (int)m->name->n, m->name->p,
                       sig->n_pos, a->n);
        for (size_t k = 0; k < a->n_kw; k++) {
                size_t i = 0;
                while (i < sig->n_pos && !t_str_eq(r->t->names[sig->pos[i]->name], a->kw_name[k]))
                        i++;
                if (i < sig->n_pos) {
                        if (given[i])
                                t_fail(&r->c, "macro '%.*s' got two values for its argument '%.*s'", (int)m->name->n, m->name->p,
                                       (int)a->kw_name[k]->n, a->kw_name[k]->p);
                        t_bindvar(r, s, sig->pos[i]->name, a->kw[k]);
                        given[i] = true;
                } else if (t_str_is(a->kw_name[k], "caller") &&
                           (m->def->flag & (P_USES_CALLER | P_USES_KWARGS)) != P_USES_KWARGS) {
                        has_caller = true;
                        t_bindvar(r, s, r->t->id_caller, a->kw[k]);
                } else if (m->def->flag & P_USES_KWARGS) {
                        t_dict_set(&r->c, named, t_strv(a->kw_name[k]), a->kw[k]);
                } else {
                        t_fail(&r->c, "macro '%.*s' takes no keyword argument '%.*s'", (int)m->name->n, m->name->p,
                               (int)MIN(a->kw_name[k]->n, (size_t)60), a->kw_name[k]->p);
                }
        }
        if (has_caller && !(m->def->flag & P_USES_CALLER))
                t_fail(&r->c, "macro '%.*s' takes no keyword argument 'caller'", (int)m->name->n, m->name->p);
        if (!has_caller && (m->def->flag & P_USES_CALLER) && m->def->op == N_MACRO)
                t_bindvar(r, s, r->t->id_caller, (struct t_val){ .kind = V_UNDEF, .s = r->t->names[r->t->id_caller] });
        if (m->def->flag & P_USES_VARARGS)
                t_bindvar(r, s, r->t->id_varargs, t_listv(V_TUPLE, rest));
        if (m->def->flag & P_USES_KWARGS)
                t_bindvar(r, s, r->t->id_kwargs, (struct t_val){ .kind = V_DICT, .d = named });
        for (size_t i = 0; i < sig->n_pos; i++) {
                struct t_val v = { .kind = V_UNDEF, .s = r->t->names[sig->pos[i]->name] };
                if (given[i])
                        continue;
                if (i >= first_default)
                        v = t_eval(r, s, sig->kw[i - first_default]);
                t_bindvar(r, s, sig->pos[i]->name, v);
        }
        t_enter(r);
        text = capture(r, s, m->def->kids, m->def->n_kids);
        t_leave(r);
        return t_strv(text);
}

static struct t_val macro_value(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_macro *m = t_alloc(&r->c, sizeof(*m));

        r->n_closures++;
        *m = (struct t_macro){ .def = n, .scope = s, .name = r->t->names[n->name] };
        return (struct t_val){ .kind = V_MACRO, .macro = m };
}

/* {% call(args) f(...) %}: the call, with the body as its argument 'caller' */
static void call_block(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_node call = *n->a;
        struct t_callargs ca = *call.call;
        struct t_node caller = { .op = N_CONST, .line = n->line, .val = macro_value(r, s, n) };
        static const struct t_str name = { .p = "caller", .n = 6 };

        ca.kw = t_array(&r->c, ca.n_kw + 1, sizeof(*ca.kw));
        ca.kw_name = t_array(&r->c, ca.n_kw + 1, sizeof(*ca.kw_name));
        if (ca.n_kw) {
                memcpy(ca.kw, n->a->call->kw, ca.n_kw * sizeof(*ca.kw));
                memcpy(ca.kw_name, n->a->call->kw_name, ca.n_kw * sizeof(*ca.kw_name));
        }
        ca.kw_name[ca.n_kw] = &name;
        ca.kw[ca.n_kw++] = &caller;
        call.call = &ca;
        t_print(r, r->out, t_eval(r, s, &call));
}

/* ---- statements ---- */

static enum t_flow exec_one(struct t_run *r, struct t_scope *s, const struct t_node *n) {
        struct t_scope *inner;

        switch ((enum t_op)n->op) {
        case N_TEXT:
                t_sb_str(r->out, n->val.s);
                return F_NEXT;
        case N_PRINT:
                for (size_t i = 0; i < n->n_kids; i++) {
                        struct t_val v = t_eval(r, s, n->kids[i]);
                        r->c.line = n->line;
                        t_print(r, r->out, v);
                }
                return F_NEXT;
        case N_IF:
                if (t_truth(t_eval(r, s, n->a)))
                        return t_exec(r, s, n->kids, n->n_kids);
                return t_exec(r, s, n->other, n->n_other);
        case N_FOR:
                return loop_rounds(r, s, n, t_eval(r, s, n->b), 0);
        case N_SET: {
                struct t_val v = t_eval(r, s, n->b);
                if (n->a)
                        assign(r, s, n->a, v);
                return F_NEXT;
        }
        case N_SETBLOCK:
                assign(r, s, n->a, filtered(r, s, n));
                return F_NEXT;
        case N_FILTERBLOCK:
                t_print(r, r->out, filtered(r, s, n));
                return F_NEXT;
        case N_MACRO:
                t_bindvar(r, s, n->name, macro_value(r, s, n));
                return F_NEXT;
        case N_CALLBLOCK:
                call_block(r, s, n);
                return F_NEXT;
        case N_WITH:
                inner = t_scope_new(r, s);
                for (size_t i = 0; i < n->call->n_pos; i++) /* values see the outer scope */
                        assign(r, inner, n->call->pos[i], t_eval(r, s, n->call->kw[i]));
                return t_exec(r, inner, n->kids, n->n_kids);
        case N_BLOCK: /* {% block %} sees the top level only, {% generation %} is not there at all */
                return t_exec(r, n->flag ? t_scope_new(r, r->globals) : s, n->kids, n->n_kids);
        case N_BREAK:
                return F_BREAK;
        case N_CONTINUE:
                return F_CONTINUE;
        case N_CONST: case N_NAME: case N_LIST: case N_TUPLE: case N_DICT: case N_ATTR: case N_ITEM: case N_SLICE: case N_CALL:
        case N_FILTER: case N_TEST: case N_NOT: case N_NEG: case N_POS: case N_AND: case N_OR: case N_COND: case N_CONCAT:
        case N_ADD: case N_SUB: case N_MUL: case N_DIV: case N_FLOORDIV: case N_MOD: case N_POW: case N_COMPARE: case N_NSREF:
                break;
        }
        t_fail(&r->c, "an expression where a statement is expected");
}

enum t_flow t_exec(struct t_run *r, struct t_scope *s, struct t_node *const *body, size_t n) {
        enum t_flow flow = F_NEXT;

        t_enter(r);
        for (size_t i = 0; i < n && flow == F_NEXT; i++) {
                t_step(r, 1);
                r->c.line = body[i]->line;
                flow = exec_one(r, s, body[i]);
        }
        t_leave(r);
        return flow;
}
