/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statements of a template and the entry to the parser. Every tag is listed
 * here; one that is not is refused with its line.
 */
#include "base/alloc.h"
#include "engine/text/tmpl_parse.h"

static void body(struct parser *p, struct t_node *owner, struct t_node ***ret, size_t *ret_n, const char *const *ends);

uint32_t t_intern(struct tmpl *t, const char *p, size_t n) {
        const struct t_str key = { .p = p, .n = n };

        for (size_t i = 0; i < t->n_names; i++)
                if (t_str_eq(t->names[i], &key))
                        return (uint32_t)i;
        t->names = t_grow(&t->ctx, t->names, t->n_names, &t->cap_names, t->n_names + 1, sizeof(*t->names));
        t->names[t->n_names] = t_str_new(&t->ctx, p, n, T_TRUSTED);
        return (uint32_t)t->n_names++;
}

void p_binds(struct parser *p, uint32_t name) {
        p->bound = t_grow(p->c, p->bound, p->n_bound, &p->cap_bound, p->n_bound + 1, sizeof(*p->bound));
        p->bound[p->n_bound++] = (struct p_site){ .name = name };
}

static struct t_node *target_one(struct parser *p, bool with_ns) {
        const struct t_str *s;
        struct t_node *n;

        if (p_is_op(p, "(")) {
                p_enter(p);
                p->t++;
                n = p_node(p, N_TUPLE, NULL, NULL, NULL);
                while (!p_is_op(p, ")")) {
                        p_add(p, n, target_one(p, with_ns));
                        if (!p_skip_op(p, ","))
                                break;
                }
                p_want_op(p, ")");
                p_leave(p);
                return n;
        }
        s = p_want_name(p, "a name to assign to");
        if (t_str_is(s, "true") || t_str_is(s, "false") || t_str_is(s, "none") || t_str_is(s, "True") ||
            t_str_is(s, "False") || t_str_is(s, "None") || t_str_is(s, "loop"))
                t_fail(p->c, "can't assign to '%.*s'", (int)s->n, s->p);
        n = p_node(p, N_NAME, NULL, NULL, NULL);
        n->name = t_intern(p->tmpl, s->p, s->n);
        if (with_ns && p_skip_op(p, ".")) {
                n->op = N_NSREF;
                n->val = t_strv(p_want_name(p, "an attribute's name"));
        } else {
                p_binds(p, n->name);
        }
        return n;
}

static struct t_node *target(struct parser *p, bool with_ns) {
        struct t_node *n = target_one(p, with_ns), *tuple;

        if (!p_is_op(p, ","))
                return n;
        tuple = p_node(p, N_TUPLE, NULL, NULL, NULL);
        p_add(p, tuple, n);
        while (p_skip_op(p, ",")) {
                if (p_is_op(p, "=") || p_is_name(p, "in") || p->t->kind == K_BLOCK_END)
                        break;
                p_add(p, tuple, target_one(p, with_ns));
        }
        return tuple;
}

static void block_end(struct parser *p) {
        if (p->t->kind != K_BLOCK_END)
                p_fail(p, "'%}'");
        p->t++;
}

static struct t_node *parse_if(struct parser *p) {
        static const char *const ends[] = { "elif", "else", "endif", NULL }, *const end[] = { "endif", NULL };
        struct t_node *n;

        p_enter(p);
        n = p_node(p, N_IF, p_tuple(p, 0, NULL), NULL, NULL);
        body(p, n, &n->kids, &n->n_kids, ends);
        if (p_skip_name(p, "elif")) {
                n->other = t_alloc(p->c, sizeof(*n->other));
                n->other[0] = parse_if(p); /* takes the endif */
                n->n_other = 1;
                p_leave(p);
                return n;
        }
        if (p_skip_name(p, "else"))
                body(p, n, &n->other, &n->n_other, end);
        p->t++;
        block_end(p);
        p_leave(p);
        return n;
}

static struct t_node *parse_for(struct parser *p) {
        static const char *const ends[] = { "else", "endfor", NULL }, *const end[] = { "endfor", NULL };
        struct t_node *n = p_node(p, N_FOR, NULL, NULL, NULL), *e;

        n->a = target(p, false);
        if (!p_skip_name(p, "in"))
                p_fail(p, "'in'");
        e = p_tuple(p, 0, "recursive");
        n->b = e;
        n->depth = e->depth + 1;
        if (p_skip_name(p, "if")) {
                n->c = p_expr(p);
                n->depth = MAX(n->depth, n->c->depth + 1);
        }
        n->flag = p_skip_name(p, "recursive");
        p->loops++;
        body(p, n, &n->kids, &n->n_kids, ends);
        p->loops--;
        if (p_skip_name(p, "else"))
                body(p, n, &n->other, &n->n_other, end);
        p->t++;
        block_end(p);
        return n;
}

/* [| filter | filter ...] over the text the statement captures, which the name "" stands for. */
static struct t_node *filter_chain(struct parser *p) {
        struct t_node *n = p_node(p, N_NAME, NULL, NULL, NULL);

        n->name = t_intern(p->tmpl, "", 0);
        while (p_skip_op(p, "|"))
                n = p_filter(p, n);
        return n;
}

static struct t_node *parse_set(struct parser *p) {
        static const char *const end[] = { "endset", NULL };
        struct t_node *n = p_node(p, N_SET, NULL, NULL, NULL);

        n->a = target(p, true);
        if (p_skip_op(p, "=")) {
                n->b = p_tuple(p, P_COND, NULL);
                n->depth = n->b->depth + 1;
                block_end(p);
                return n;
        }
        n->op = N_SETBLOCK;
        n->b = filter_chain(p);
        body(p, n, &n->kids, &n->n_kids, end);
        p->t++;
        block_end(p);
        return n;
}

/* (a, b=default ...): names into call->pos, defaults into call->kw */
static void signature(struct parser *p, struct t_node *n) {
        struct t_callargs *ca = n->call = t_alloc(p->c, sizeof(*ca));
        size_t cap_pos = 0, cap_kw = 0;

        if (!p_skip_op(p, "("))
                return;
        while (!p_is_op(p, ")")) {
                struct t_node *name = target_one(p, false);
                if (name->op != N_NAME)
                        p_fail(p, "a parameter's name");
                ca->pos = t_grow(p->c, ca->pos, ca->n_pos, &cap_pos, ca->n_pos + 1, sizeof(*ca->pos));
                ca->pos[ca->n_pos++] = name;
                if (p_skip_op(p, "=")) {
                        ca->kw = t_grow(p->c, ca->kw, ca->n_kw, &cap_kw, ca->n_kw + 1, sizeof(*ca->kw));
                        ca->kw[ca->n_kw++] = p_expr(p);
                } else if (ca->n_kw) {
                        p_fail(p, "'=': a parameter without a default can't follow one with it");
                }
                if (!p_skip_op(p, ","))
                        break;
        }
        p_want_op(p, ")");
}

static void macro_body(struct parser *p, struct t_node *n, const char *const *end) {
        unsigned loops = p->loops, uses = p->uses;

        p->loops = 0;
        p->uses = 0;
        body(p, n, &n->kids, &n->n_kids, end);
        n->flag = (uint16_t)p->uses;
        p->loops = loops;
        p->uses = uses;
        p->t++;
        block_end(p);
}

static struct t_node *parse_macro(struct parser *p) {
        static const char *const end[] = { "endmacro", NULL };
        struct t_node *n = p_node(p, N_MACRO, NULL, NULL, NULL);
        const struct t_str *name = p_want_name(p, "the macro's name");

        n->name = t_intern(p->tmpl, name->p, name->n);
        p_binds(p, n->name);
        if (!p_is_op(p, "("))
                p_fail(p, "'('");
        signature(p, n);
        macro_body(p, n, end);
        return n;
}

static struct t_node *parse_call(struct parser *p) {
        static const char *const end[] = { "endcall", NULL };
        struct t_node *n = p_node(p, N_CALLBLOCK, NULL, NULL, NULL);

        signature(p, n);
        n->a = p_expr(p);
        if (n->a->op != N_CALL)
                p_fail(p, "a call");
        n->name = t_intern(p->tmpl, "caller", 6);
        macro_body(p, n, end);
        return n;
}

static struct t_node *parse_filter_block(struct parser *p) {
        static const char *const end[] = { "endfilter", NULL };
        struct t_node *n = p_node(p, N_FILTERBLOCK, NULL, NULL, NULL), *text = p_node(p, N_NAME, NULL, NULL, NULL);

        text->name = t_intern(p->tmpl, "", 0);
        n->b = p_filter(p, text);
        while (p_skip_op(p, "|"))
                n->b = p_filter(p, n->b);
        body(p, n, &n->kids, &n->n_kids, end);
        p->t++;
        block_end(p);
        return n;
}

static struct t_node *parse_with(struct parser *p) {
        static const char *const end[] = { "endwith", NULL };
        struct t_node *n = p_node(p, N_WITH, NULL, NULL, NULL);
        struct t_callargs *ca = n->call = t_alloc(p->c, sizeof(*ca));
        size_t cap_pos = 0, cap_kw = 0;

        while (p->t->kind != K_BLOCK_END) {
                if (ca->n_pos)
                        p_want_op(p, ",");
                ca->pos = t_grow(p->c, ca->pos, ca->n_pos, &cap_pos, ca->n_pos + 1, sizeof(*ca->pos));
                ca->pos[ca->n_pos++] = target_one(p, false);
                p_want_op(p, "=");
                ca->kw = t_grow(p->c, ca->kw, ca->n_kw, &cap_kw, ca->n_kw + 1, sizeof(*ca->kw));
                ca->kw[ca->n_kw++] = p_expr(p);
        }
        body(p, n, &n->kids, &n->n_kids, end);
        p->t++;
        block_end(p);
        return n;
}

/* Blocks without inheritance: the body, in place. {% generation %} marks the assistant's text for training. */
static struct t_node *parse_block(struct parser *p, bool named) {
        static const char *const end_block[] = { "endblock", NULL }, *const end_gen[] = { "endgeneration", NULL };
        struct t_node *n = p_node(p, N_BLOCK, NULL, NULL, NULL);
        const struct t_str *name = NULL;

        if (named) {
                name = p_want_name(p, "the block's name");
                p_skip_name(p, "scoped");
                n->flag = 1;
        }
        body(p, n, &n->kids, &n->n_kids, named ? end_block : end_gen);
        p->t++;
        if (name && p->t->kind == K_NAME && t_str_eq(p->t->val.s, name))
                p->t++;
        block_end(p);
        return n;
}

static struct t_node *parse_print(struct parser *p) {
        struct t_node *n = p_node(p, N_PRINT, NULL, NULL, NULL);

        do
                p_add(p, n, p_expr(p));
        while (p_skip_op(p, ","));
        block_end(p);
        return n;
}

/* {% do expr %}: evaluated, prints nothing */
static struct t_node *parse_do(struct parser *p) {
        struct t_node *n = p_node(p, N_SET, NULL, NULL, NULL);

        n->b = p_tuple(p, P_COND, NULL);
        n->depth = n->b->depth + 1;
        block_end(p);
        return n;
}

static struct t_node *statement(struct parser *p) {
        const struct t_token *tag = p->t;
        struct t_node *n;

        p->c->line = tag->line;
        if (p_skip_name(p, "if"))
                return parse_if(p);
        if (p_skip_name(p, "for"))
                return parse_for(p);
        if (p_skip_name(p, "set"))
                return parse_set(p);
        if (p_skip_name(p, "macro"))
                return parse_macro(p);
        if (p_skip_name(p, "call"))
                return parse_call(p);
        if (p_skip_name(p, "filter"))
                return parse_filter_block(p);
        if (p_skip_name(p, "with"))
                return parse_with(p);
        if (p_skip_name(p, "block"))
                return parse_block(p, true);
        if (p_skip_name(p, "generation"))
                return parse_block(p, false);
        if (p_skip_name(p, "print"))
                return parse_print(p);
        if (p_skip_name(p, "do"))
                return parse_do(p);
        if (p_is_name(p, "break") || p_is_name(p, "continue")) {
                if (!p->loops)
                        t_fail(p->c, "'%.*s' outside of a loop", (int)tag->val.s->n, tag->val.s->p);
                n = p_node(p, p_is_name(p, "break") ? N_BREAK : N_CONTINUE, NULL, NULL, NULL);
                p->t++;
                block_end(p);
                return n;
        }
        if (tag->kind != K_NAME)
                p_fail(p, "a tag's name");
        t_fail(p->c, "unknown tag '{%% %.*s %%}'", (int)MIN(tag->val.s->n, (size_t)100), tag->val.s->p);
}

/* Statements until a tag named in 'ends' (then the current token is its name), or, without ends, the end of the template. */
static void statements(struct parser *p, struct t_node *list, const char *const *ends) {
        int line = p->t->line;

        for (;;) {
                struct t_node *n = NULL;
                switch (p->t->kind) {
                case K_EOF:
                        if (!ends)
                                return;
                        p->c->line = line;
                        t_fail(p->c, "the block that begins here has no '{%% %s %%}'", ends[0]);
                case K_TEXT:
                        n = p_node(p, N_TEXT, NULL, NULL, NULL);
                        n->val = p->t->val;
                        p->t++;
                        break;
                case K_VAR_BEGIN:
                        p->t++;
                        n = p_node(p, N_PRINT, NULL, NULL, NULL);
                        p_add(p, n, p_tuple(p, P_COND, NULL));
                        if (p->t->kind != K_VAR_END)
                                p_fail(p, "'}}'");
                        p->t++;
                        break;
                case K_BLOCK_BEGIN:
                        p->t++;
                        for (size_t i = 0; ends && ends[i]; i++)
                                if (p_is_name(p, ends[i]))
                                        return;
                        n = statement(p);
                        break;
                case K_VAR_END: case K_BLOCK_END: case K_NAME: case K_STRING: case K_INT: case K_FLOAT: case K_OP:
                        p_fail(p, "text or a tag");
                }
                p_add(p, list, n);
        }
}

static void body(struct parser *p, struct t_node *owner, struct t_node ***ret, size_t *ret_n, const char *const *ends) {
        struct t_node *list = p_node(p, N_BLOCK, NULL, NULL, NULL);

        p_enter(p);
        p_skip_op(p, ":");
        block_end(p);
        statements(p, list, ends);
        p_leave(p);
        if (list->depth > owner->depth)
                owner->depth = list->depth;
        *ret = list->kids;
        *ret_n = list->n_kids;
}

/* A call of a name that nothing can give a value with a meaning for calls. */
static void check_calls(const struct parser *p) {
        for (size_t i = 0; i < p->n_calls; i++) {
                const struct t_str *s = p->tmpl->names[p->calls[i].name];
                bool known = p->calls[i].name == p->tmpl->id_loop || p->calls[i].name == p->tmpl->id_caller ||
                             t_func_find(s->p, s->n);
                for (size_t k = 0; !known && k < p->n_bound; k++)
                        known = p->bound[k].name == p->calls[i].name;
                if (known)
                        continue;
                p->c->line = p->calls[i].line;
                t_fail(p->c, "unknown function '%.*s()'", (int)s->n, s->p);
        }
}

void t_parse(struct tmpl *t, const char *src, size_t n) {
        struct parser p = { .c = &t->ctx, .tmpl = t };
        struct t_node *list;
        size_t n_tok;

        t->id_loop = t_intern(t, "loop", 4);
        t->id_caller = t_intern(t, "caller", 6);
        t->id_varargs = t_intern(t, "varargs", 7);
        t->id_kwargs = t_intern(t, "kwargs", 6);
        p.t = t_lex(&t->ctx, src, n, &n_tok);
        list = p_node(&p, N_BLOCK, NULL, NULL, NULL);
        statements(&p, list, NULL);
        check_calls(&p);
        t->body = list->kids;
        t->n_body = list->n_kids;
}
