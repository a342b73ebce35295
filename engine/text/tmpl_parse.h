/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parser's state and the pieces its two files share. */

#include "engine/text/tmpl_int.h"

struct parser {
        struct t_ctx *c;
        struct tmpl *tmpl;
        const struct t_token *t; /* the current token; the last one is K_EOF and never passed */
        unsigned depth;
        unsigned loops;          /* for-loops around us, for break and continue */
        unsigned uses;           /* P_USES_*: special names the macro being read refers to */
        struct p_site { uint32_t name; int line; } *calls, *bound; /* names called; names the template binds */
        size_t n_calls, cap_calls, n_bound, cap_bound;
};

enum { P_USES_CALLER = 1, P_USES_VARARGS = 2, P_USES_KWARGS = 4 };
enum { P_COND = 1 /* "a if b" allowed */, P_PARENS = 2 /* may be empty */ };

_Noreturn void p_fail(struct parser *p, const char *expected);
bool p_is_op(const struct parser *p, const char *op);
bool p_is_name(const struct parser *p, const char *name);
bool p_skip_op(struct parser *p, const char *op);
bool p_skip_name(struct parser *p, const char *name);
void p_want_op(struct parser *p, const char *op);
const struct t_str *p_want_name(struct parser *p, const char *what);
struct t_node *p_node(struct parser *p, int op, struct t_node *a, struct t_node *b, struct t_node *c);
void p_add(struct parser *p, struct t_node *n, struct t_node *kid);
void p_binds(struct parser *p, uint32_t name);
void p_enter(struct parser *p);
void p_leave(struct parser *p);

struct t_node *p_expr(struct parser *p);
struct t_node *p_tuple(struct parser *p, unsigned flags, const char *end_name);
struct t_node *p_primary(struct parser *p);
struct t_node *p_postfix(struct parser *p, struct t_node *n);
struct t_node *p_filter(struct parser *p, struct t_node *of);
