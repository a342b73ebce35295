/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Inside of the template interpreter; nobody outside tmpl_*.c includes this.
 *
 * Failures of all kinds jump (arena.h); tmpl_compile() and tmpl_render() are
 * the only two landing places.
 *
 * A compiled template's arena is read-only after tmpl_compile(); a render has
 * its own. Render values may point into the template's arena, never the other
 * way round.
 *
 * Text carries provenance: a string is trusted (template source, vars),
 * untrusted (messages, tools) or mixed, then with one mark byte per text byte.
 * Every operation that makes text builds it through t_sb, which keeps marks.
 */

#include <string.h>

#include "engine/text/arena.h"
#include "engine/text/template.h"

#define T_MAX_DEPTH 400       /* nesting of a template's source, of values */
#define T_MAX_EVAL_DEPTH 1500 /* nesting of evaluation, macro calls included */
#define T_MAX_SOURCE ((size_t)4 << 20)

/* ---- strings ---- */

enum { T_TRUSTED, T_UNTRUSTED, T_MIXED };
struct t_str {
        const char *p;
        const uint8_t *mark; /* T_MIXED only: 1 = untrusted, per byte */
        size_t n;
        uint8_t trust;
        bool markup;         /* Jinja's Markup: already escaped */
};

struct t_sb {
        struct t_ctx *c;
        char *p;
        uint8_t *mark;
        size_t n, cap, max; /* max 0: only the arena's limit */
        uint8_t trust;
};
void t_sb_init(struct t_sb *b, struct t_ctx *c);
void t_sb_put(struct t_sb *b, const char *p, size_t n, int trust);
void t_sb_str(struct t_sb *b, const struct t_str *s);
void t_sb_sub(struct t_sb *b, const struct t_str *s, size_t off, size_t n);
/* n bytes of new text standing for s[off..]: takes that byte's mark. */
void t_sb_as(struct t_sb *b, const char *p, size_t n, const struct t_str *s, size_t off);
void t_sb_lit(struct t_sb *b, const char *s); /* trusted */
void t_sb_printf(struct t_sb *b, const char *fmt, ...) _printf_(2, 3);
const struct t_str *t_sb_done(struct t_sb *b);

const struct t_str *t_str_new(struct t_ctx *c, const char *p, size_t n, int trust); /* copies */
const struct t_str *t_str_lit(struct t_ctx *c, const char *s);
const struct t_str *t_str_sub(struct t_ctx *c, const struct t_str *s, size_t off, size_t n);
const struct t_str *t_str_cat(struct t_ctx *c, const struct t_str *a, const struct t_str *b);
bool t_str_eq(const struct t_str *a, const struct t_str *b);
bool t_str_is(const struct t_str *a, const char *lit);
int t_str_cmp(const struct t_str *a, const struct t_str *b);
bool t_str_starts(const struct t_str *s, const struct t_str *x);
bool t_str_ends(const struct t_str *s, const struct t_str *x);
/* First/last place of x in s[from, to); -1: none. */
ptrdiff_t t_str_find(const struct t_str *s, const struct t_str *x, size_t from, size_t to);
ptrdiff_t t_str_rfind(const struct t_str *s, const struct t_str *x, size_t from, size_t to);

/* One code point at p (n >= 1 bytes left); a broken byte counts as one. */
size_t t_cp(const char *p, size_t n, int32_t *ret);
size_t t_cp_len(const struct t_str *s);                 /* length in code points */
size_t t_cp_off(const struct t_str *s, size_t index);   /* byte offset of a code point; s->n past the end */
bool t_is_space(int32_t cp);                            /* str.isspace() */
bool t_is_word(int32_t cp);                             /* \w of Python's re */
const struct t_str *t_strip(struct t_ctx *c, const struct t_str *s, const struct t_str *chars, int sides); /* 1 left, 2 right */
enum t_case { T_UPPER, T_LOWER, T_CAPITALIZE, T_TITLE, T_SWAPCASE, T_TITLE_FILTER, T_CASEFOLD };
const struct t_str *t_recase(struct t_ctx *c, const struct t_str *s, enum t_case how);
const struct t_str *t_replace(struct t_ctx *c, const struct t_str *s, const struct t_str *from, const struct t_str *to, int64_t count);
const struct t_str *t_escape(struct t_ctx *c, const struct t_str *s);

/* ---- values ---- */

enum t_kind { V_ABSENT, V_UNDEF, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STR, V_LIST, V_TUPLE, V_DICT,
              V_GEN,    /* single-pass iterator over a list made beforehand */
              V_VIEW,   /* dict.keys() and friends: iterable and sized, no index */
              V_RANGE, V_NS, V_MACRO, V_FUNC, V_METHOD, V_LOOP, V_CYCLER, V_JOINER };

struct t_list;
struct t_dict;
struct t_range { int64_t start, step; size_t n; int64_t stop; };
struct t_val {
        enum t_kind kind;
        union {
                bool b;
                int64_t i;
                double f;
                const struct t_str *s;   /* V_STR; V_UNDEF: its name or NULL */
                struct t_list *l;        /* V_LIST V_TUPLE V_GEN V_VIEW */
                struct t_dict *d;        /* V_DICT V_NS */
                const struct t_range *r;
                struct t_macro *macro;
                const struct t_func *func;
                const struct t_method_ref *method;
                struct t_loop *loop;
                struct t_cycler *cycler;
        };
};
struct t_list {
        struct t_val *v;
        size_t n, cap, pos;   /* pos: V_GEN's place */
        const char *type;     /* V_GEN, V_VIEW: Python's name, for printing */
        bool group;           /* tuple of |groupby: .grouper, .list */
};
struct t_entry { struct t_val k, v; bool dead; };
struct t_dict {
        struct t_entry *e;
        uint32_t *index;      /* open addressing, entry number + 1 */
        size_t n, used, cap, n_index;
};
struct t_cycler { struct t_list *items; size_t pos; const struct t_str *sep; };
struct t_method_ref { struct t_val self; const struct t_method *m; };

static inline struct t_val t_undef(void) { return (struct t_val){ .kind = V_UNDEF, .s = NULL }; }
static inline struct t_val t_none(void) { return (struct t_val){ .kind = V_NONE }; }
static inline struct t_val t_bool(bool b) { return (struct t_val){ .kind = V_BOOL, .b = b }; }
static inline struct t_val t_int(int64_t i) { return (struct t_val){ .kind = V_INT, .i = i }; }
static inline struct t_val t_float(double f) { return (struct t_val){ .kind = V_FLOAT, .f = f }; }
static inline struct t_val t_strv(const struct t_str *s) { return (struct t_val){ .kind = V_STR, .s = s }; }
static inline struct t_val t_listv(enum t_kind k, struct t_list *l) { return (struct t_val){ .kind = k, .l = l }; }
static inline bool t_is_num(struct t_val v) { return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL; }
static inline bool t_is_int(struct t_val v) { return v.kind == V_INT || v.kind == V_BOOL; }
static inline int64_t t_as_int(struct t_val v) { return v.kind == V_BOOL ? v.b : v.i; }
static inline double t_as_float(struct t_val v) { return v.kind == V_FLOAT ? v.f : (double)t_as_int(v); }

struct t_list *t_list_new(struct t_ctx *c, size_t cap);
void t_list_push(struct t_ctx *c, struct t_list *l, struct t_val v);
struct t_dict *t_dict_new(struct t_ctx *c);
struct t_val *t_dict_find(struct t_ctx *c, const struct t_dict *d, struct t_val k); /* NULL: none */
struct t_val *t_dict_find_lit(struct t_ctx *c, const struct t_dict *d, const char *k);
void t_dict_set(struct t_ctx *c, struct t_dict *d, struct t_val k, struct t_val v);
bool t_dict_del(struct t_ctx *c, struct t_dict *d, struct t_val k, struct t_val *ret);

struct t_run;
const char *t_type_name(struct t_val v);  /* Python's */
bool t_truth(struct t_val v);
bool t_eq(struct t_run *r, struct t_val a, struct t_val b);
int t_cmp(struct t_run *r, const char *op, struct t_val a, struct t_val b); /* <0 0 >0; fails on types without order; NaN: 2 */
void t_print(struct t_run *r, struct t_sb *b, struct t_val v);     /* str() */
void t_repr(struct t_run *r, struct t_sb *b, struct t_val v);
const struct t_str *t_to_str(struct t_run *r, struct t_val v);
void t_float_text(double f, char ret[40]); /* Python's repr of a float */
bool t_length(struct t_val v, size_t *ret);
struct t_val t_from_json(struct t_ctx *c, const json_t *j, int trust, unsigned depth);

/* ---- the compiled form ---- */

enum t_op {
        /* expressions: a, b, c are operands */
        N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST,
        N_NOT, N_NEG, N_POS, N_AND, N_OR, N_COND, N_CONCAT,
        N_ADD, N_SUB, N_MUL, N_DIV, N_FLOORDIV, N_MOD, N_POW, N_COMPARE,
        /* statements: kids is the body, other the else body */
        N_TEXT, N_PRINT, N_IF, N_FOR, N_SET, N_SETBLOCK, N_MACRO, N_CALLBLOCK, N_FILTERBLOCK, N_WITH,
        N_BLOCK, N_BREAK, N_CONTINUE, N_NSREF,
};
enum t_cmp_op { C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_IN, C_NOTIN };

struct t_node {
        uint16_t op;
        uint16_t flag;              /* N_TEST: negated; N_FOR: recursive; N_COMPARE kid: its operator */
        int line;
        uint32_t name;              /* N_NAME, N_NSREF, N_MACRO: interned */
        unsigned depth;
        struct t_node *a, *b, *c;
        struct t_node **kids, **other;
        size_t n_kids, n_other;
        struct t_callargs *call;    /* N_CALL, N_FILTER, N_TEST; N_MACRO, N_CALLBLOCK: the signature; N_WITH: names and values */
        struct t_val val;           /* N_CONST; N_ATTR: the name */
        const void *impl;           /* N_FILTER: struct t_filter, N_TEST: struct t_test */
};
struct t_callargs {
        struct t_node **pos; size_t n_pos;
        const struct t_str **kw_name; struct t_node **kw; size_t n_kw;
        struct t_node *star, *star2;
};
struct tmpl {
        struct t_ctx ctx;
        const struct t_str **names; size_t n_names, cap_names;
        struct t_node **body; size_t n_body;
        uint32_t id_loop, id_caller, id_varargs, id_kwargs;
};

/* Both fail by jumping. */
void t_parse(struct tmpl *t, const char *src, size_t n);
uint32_t t_intern(struct tmpl *t, const char *p, size_t n);

/* ---- lexer ---- */

enum t_tok { K_EOF, K_TEXT, K_VAR_BEGIN, K_VAR_END, K_BLOCK_BEGIN, K_BLOCK_END, K_NAME, K_STRING, K_INT, K_FLOAT, K_OP };
struct t_token {
        enum t_tok kind;
        int line;
        struct t_val val;     /* TEXT, NAME, STRING, numbers */
        char op[3];           /* OP: its one or two characters */
};
/* The whole source as tokens, ending with K_EOF. */
struct t_token *t_lex(struct t_ctx *c, const char *src, size_t n, size_t *ret_n);

/* ---- running ---- */

struct t_scope {
        struct t_scope *up;
        struct t_var { uint32_t name; struct t_val v; } *var;
        size_t n, cap;
};
struct t_macro { const struct t_node *def; struct t_scope *scope; const struct t_str *name; };

struct t_args {
        struct t_val *pos; size_t n;
        const struct t_str **kw_name; struct t_val *kw; size_t n_kw;
};
struct t_run {
        struct t_ctx c;          /* first: the render's arena and landing place */
        const struct tmpl *t;
        const struct tmpl_input *in;
        struct t_scope *globals;
        struct t_sb *out;        /* where text goes now */
        uint64_t steps, max_steps;
        unsigned depth;
        json_t *held;            /* JSON being taken over: freed with the render, should it jump meanwhile */
        uint64_t n_closures;     /* macros made: while none is, a loop's scope can serve its next round */
};

void t_step(struct t_run *r, size_t n); /* charges n steps; fails past the limit */
void t_enter(struct t_run *r);          /* one level deeper; pair with t_leave */
void t_leave(struct t_run *r);
enum t_flow { F_NEXT, F_BREAK, F_CONTINUE };
struct t_val t_eval(struct t_run *r, struct t_scope *s, const struct t_node *n);
enum t_flow t_exec(struct t_run *r, struct t_scope *s, struct t_node *const *body, size_t n);
struct t_val t_call(struct t_run *r, struct t_val f, const struct t_args *a);
struct t_val t_call_macro(struct t_run *r, const struct t_macro *m, const struct t_args *a);
struct t_val t_getattr(struct t_run *r, struct t_val v, const struct t_str *name);
struct t_val t_getitem(struct t_run *r, struct t_val v, struct t_val key);
struct t_val t_slice(struct t_run *r, struct t_val v, struct t_val start, struct t_val stop, struct t_val step);
bool t_contains(struct t_run *r, struct t_val in, struct t_val x);
struct t_val t_binary(struct t_run *r, int op, struct t_val a, struct t_val b);
struct t_val t_percent(struct t_run *r, const struct t_str *fmt, struct t_val arg, const struct t_args *named);
bool t_lookup(struct t_scope *s, uint32_t name, struct t_val *ret);
void t_bindvar(struct t_run *r, struct t_scope *s, uint32_t name, struct t_val v);
struct t_scope *t_scope_new(struct t_run *r, struct t_scope *up);

/* Iteration over any iterable value; fails for others. */
struct t_iter { struct t_val v; size_t pos; };
struct t_iter t_iter_begin(struct t_run *r, struct t_val v);
bool t_iter_next(struct t_run *r, struct t_iter *it, struct t_val *ret);
struct t_list *t_to_list(struct t_run *r, struct t_val v); /* a new list of its items */

struct t_loop { /* the variable 'loop' */
        struct t_iter it;
        const struct t_node *node;
        struct t_scope *scope;     /* where the loop stands */
        struct t_val prev, cur, next;
        bool has_prev, has_next, peeked, ended;
        size_t index0;
        size_t length; bool has_length;
        unsigned depth0;
        bool has_changed;
        struct t_val changed;
};
struct t_val t_run_loop(struct t_run *r, struct t_scope *s, const struct t_node *n, struct t_val iterable, unsigned depth0);
struct t_val t_loop_attr(struct t_run *r, struct t_loop *l, const struct t_str *name, bool *ret_found);

/* ---- builtins: tables by name ---- */

/* Parameters are a space-separated list of names; NULL: takes args as they come. b holds them, V_ABSENT if not given. */
struct t_filter {
        const char *name, *params;
        struct t_val (*fn)(struct t_run *r, struct t_val in, const struct t_val *b, const struct t_args *a);
};
struct t_test {
        const char *name;
        unsigned n_args;
        bool (*fn)(struct t_run *r, struct t_val in, const struct t_val *b);
};
struct t_func {
        const char *name, *params;
        struct t_val (*fn)(struct t_run *r, const struct t_val *b, const struct t_args *a);
};
struct t_method {
        enum t_kind kind;
        const char *name, *params;
        struct t_val (*fn)(struct t_run *r, struct t_val self, const struct t_val *b, const struct t_args *a);
};
#define T_MAX_PARAMS 8
extern const struct t_filter t_filters_text[], t_filters_seq[], t_filters_html[], t_filters_wrap[]; /* end with a NULL name */
extern const struct t_method t_methods_str[], t_methods_seq[];
const struct t_filter *t_filter_find(const char *p, size_t n);
const struct t_test *t_test_find(const char *p, size_t n);
const struct t_func *t_func_find(const char *p, size_t n);
const struct t_method *t_method_find(enum t_kind kind, const char *p, size_t n);
bool t_method_known(const char *p, size_t n); /* of any kind */
void t_bind(struct t_run *r, const char *what, const char *params, const struct t_args *a, struct t_val *ret);
struct t_val t_apply_filter(struct t_run *r, const struct t_filter *f, struct t_val in, const struct t_args *a);
bool t_apply_test(struct t_run *r, const struct t_test *f, struct t_val in, const struct t_args *a);

/* Argument helpers: the value of a bound parameter or a default; fail on another type. */
int64_t t_arg_int(struct t_run *r, const char *what, struct t_val v, int64_t dflt);
bool t_arg_bool(struct t_val v, bool dflt);
const struct t_str *t_arg_str(struct t_run *r, const char *what, struct t_val v);

void t_tojson(struct t_run *r, struct t_sb *b, struct t_val v, const struct t_val *opt); /* ensure_ascii indent separators sort_keys */
struct t_val t_str_format(struct t_run *r, const struct t_str *fmt, const struct t_args *a); /* str.format */
const struct t_str *t_strftime(struct t_run *r, const struct t_str *fmt);
struct t_list *t_lines(struct t_run *r, const struct t_str *s, bool keep_ends); /* str.splitlines() */
bool t_parse_int(const struct t_str *s, int base, int64_t *ret);
bool t_parse_float(const struct t_str *s, double *ret);
void t_sort(struct t_run *r, struct t_list *l, const struct t_val *keys, bool reverse); /* stable */
