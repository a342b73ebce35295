/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A JSON schema in the form the machine runs: nodes, each a union of
 * alternatives by JSON type. References, allOf and the like are gone: they
 * were resolved into nodes. Everything lives in the grammar's arena and is
 * immutable once compiled. Alternatives that no value satisfies are not there,
 * so that an output begun can always be finished.
 */

#include <jansson.h>

#include "engine/text/gram_dfa.h"

/* A schema's document. What it has of whole numbers beyond 64 bits are reals there; 'big' has their digits. */
struct gs_big { const json_t *number; const char *digits; size_t n; };
struct gs_source {
        json_t *doc, *marked;
        struct gs_big *big; size_t n_big;
};
/* -EBADMSG: *ret_error says why it is no JSON; -ENOMEM. Freed by the caller in any case. */
int gs_source_read(struct gs_source *s, const char *text, size_t n, json_error_t *ret_error);
const struct gs_big *gs_source_big(const struct gs_source *s, const json_t *number); /* NULL: it is none */
void gs_source_free(struct gs_source *s);

/* A decimal number, exact: 0.d1d2d3... * 10^exp; n 0 is zero. 'rounded': the shortest that reads back as a double beyond 10^18 does. */
struct gs_dec { bool neg, rounded; uint8_t n; int exp; char d[64]; };
bool gs_dec_parse(const char *p, size_t n, struct gs_dec *ret);
int gs_dec_cmp(const struct gs_dec *a, const struct gs_dec *b);

struct gs_number {
        bool integer;
        bool free;                 /* no bounds, no multiple: no arithmetic needed */
        bool big;                  /* one whole number beyond 10^18 */
        bool has_lo, has_hi, lo_excl, hi_excl;
        struct gs_dec lo, hi;
        double lo_double, hi_double;
        int64_t multiple;          /* 0: none; then integer is set */
        int64_t step; uint8_t step_digits; /* a multiple of step / 10^step_digits; 0: none */
        int64_t ilo, ihi;          /* for integers: inclusive, within +-10^18, where has_lo, has_hi */
};
struct gs_string {
        const struct dfa *dfa;
        size_t min, max;           /* counted only if dfa->any; max SIZE_MAX: no bound */
        bool hashed;               /* an item that must differ from those before it */
};
struct gs_prop { const char *name; size_t n; uint32_t node; bool required, never; uint32_t cost; /* bytes of the key */ };
struct gs_class { const struct dfa *keys; uint32_t node; }; /* of keys that are not declared */
struct gs_object {
        struct gs_prop *prop; size_t n_prop;
        struct gs_class *cls; size_t n_cls;
        size_t min, max, n_required;
        bool distinct;             /* undeclared keys must differ for the count to hold */
        /* made last: labels are declared properties, then classes */
        const struct dfa *keys;
        uint64_t *reach;           /* per state of 'keys': the labels that can still be reached */
        size_t n_label, words;
        uint32_t *dist;            /* [state, label]: bytes to the key's end; NULL: too large a table */
        uint32_t fill;             /* bytes of a key nobody demands by name, and its value */
};
/*
 * Items. With 'contains' each is read as one that counts ('hit') or one that
 * doesn't ('miss'; without a most it may be any); 'ok' says by place and count
 * whether the array can still be closed. Items that must differ are one of a
 * few values, each used once, or texts whose hashes are kept.
 */
enum gs_unique { GS_REPEAT, GS_UNIQUE, GS_UNIQUE_FEW, GS_UNIQUE_TEXT }; /* GS_UNIQUE: wanted, before it is finished */
struct gs_array {
        uint32_t *prefix; size_t n_prefix;
        uint32_t items;
        size_t min, max;
        const char *path;
        bool has_contains;
        uint32_t contains; size_t c_min, c_max;
        enum gs_unique unique;
        /* made when all nodes are known (gram_array.c) */
        bool finished;
        uint32_t *hit, *miss;      /* [n_prefix + 1] nodes; the last for the items behind the prefix */
        size_t n_place, n_count;   /* places and counts beyond these are like the last */
        uint8_t *ok;               /* [n_place, n_count] */
        uint32_t *need;            /* the same, in bytes (gram_need.c) */
        uint32_t *value; size_t n_value; /* GS_UNIQUE_FEW: nodes of one value; GS_UNIQUE_TEXT: one node */
};
static inline size_t gs_item(const struct gs_array *a, size_t i) { return i < a->n_prefix ? i : a->n_prefix; }

enum { GS_NULL = 1, GS_TRUE = 2, GS_FALSE = 4 };
struct gs_alts {
        bool any;                  /* every value: as good as the alternatives, but cheaper to see */
        unsigned words;
        const struct gs_string **str; size_t n_str, cap_str;
        const struct gs_number **num; size_t n_num, cap_num;
        struct gs_object **obj; size_t n_obj, cap_obj;
        struct gs_array **arr; size_t n_arr, cap_arr;
};
/* Appends to one of the lists of struct gs_alts. */
#define GS_PUSH(g, alts, list, x)                                                                                                \
        do {                                                                                                                     \
                (alts)->list = t_grow((g)->c, (alts)->list, (alts)->n_##list, &(alts)->cap_##list, (alts)->n_##list + 1,         \
                                      sizeof(*(alts)->list));                                                                    \
                (alts)->list[(alts)->n_##list++] = (x);                                                                          \
        } while (0)
enum gs_status { GS_PENDING, GS_BUSY, GS_DONE };
struct gs_node {
        enum gs_status status;
        const json_t *schema;      /* the source: a schema at a path, or the meet of two nodes */
        const char *path;
        uint32_t a, b;
        struct gs_alts alts;
        bool nonempty;
        uint32_t least;            /* bytes of its shortest value */
};
struct gs {
        struct t_ctx *c;
        const struct gs_source *source;
        const json_t *root;
        struct gs_node **node;
        size_t n_node, cap_node;
        uint32_t *by_source; size_t n_index; /* open addressing over nodes */
        size_t work;                         /* alternatives met so far, bounded */
        struct gs_anchor *anchor; size_t n_anchor, cap_anchor; /* by resource and name, once one was asked for */
        bool anchors_known;
};
#define GS_MAX_WORK 200000
#define GS_COMPLEMENT (UINT32_MAX - 1) /* as a node's b: what 'a' does not allow */
enum { GS_ANY_NODE = 0, GS_NONE_NODE = 1, GS_ROOT_NODE = 2 };

/* Fails by t_fail with c->where set to the keyword's path. */
void gs_compile(struct gs *g, struct t_ctx *c, const struct gs_source *source);

/* ---- between the files ---- */
uint32_t gs_schema_node(struct gs *g, const json_t *schema, const char *path);
uint32_t gs_meet_node(struct gs *g, uint32_t a, uint32_t b);
const struct gs_alts *gs_ensure(struct gs *g, uint32_t id); /* compiles it if need be */
void gs_schema_alts(struct gs *g, const json_t *schema, const char *path, struct gs_alts *ret);
void gs_meet(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, struct gs_alts *ret);
void gs_union(struct gs *g, struct gs_alts *to, const struct gs_alts *from);
bool gs_disjoint(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, unsigned depth);
void gs_value_alts(struct gs *g, const json_t *value, struct gs_alts *ret); /* exactly this value */
bool gs_to_dec(struct gs *g, const json_t *number, struct gs_dec *ret);
bool gs_number_inside(const struct gs_number *n, const struct gs_dec *d); /* of its bounds */
int64_t gs_dec_modulo(const struct gs_dec *d, int64_t m); /* of a whole number's magnitude */
/* A schema's own enum or const, value by value (gram_fits.c). */
struct gs_values { const json_t **v; size_t n; };
bool gs_values_of(struct gs *g, const json_t *s, struct gs_values *ret); /* false: it has neither */
void gs_values_alts(struct gs *g, const struct gs_values *values, struct gs_alts *ret);
bool gs_fits(struct gs *g, const json_t *value, const struct gs_alts *a);
bool gs_refers(const json_t *schema); /* a reference may lead to a schema that is being compiled: its values are not looked at then */
/* Those of s's values that fit 'schema' (compiled: 'by'), and the others. False: it has none, or they can't be looked at one by one. */
bool gs_split(struct gs *g, const json_t *s, const json_t *schema, const struct gs_alts *by, struct gs_alts *ret_fit, struct gs_alts *ret_rest);
void gs_prune(struct gs *g);
uint32_t gs_not_node(struct gs *g, uint32_t a, const char *path);
/* What a allows and b does not; false if no alternatives say that: *ret_why. */
bool gs_minus(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, struct gs_alts *ret, const char **ret_why);
/* not, if, dependent*: 'base' loses what they forbid. */
void gs_conditions(struct gs *g, const json_t *s, const char *path, struct gs_alts *base);
void gs_array_alt(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret);
void gs_array_finish(struct gs *g, struct gs_array *a); /* may add nodes */
bool gs_array_possible(const struct gs *g, const struct gs_array *a);
void gs_array_table(struct gs *g, struct gs_array *a);  /* 'ok', once it is known which nodes are empty */
bool gs_array_may(const struct gs_array *a, size_t place, size_t count);
uint32_t gs_made_node(struct gs *g, const struct gs_alts *alts); /* a node of its own, done */
/* Of a keyword: its value, with errors pointing there from now on. */
const json_t *gs_get(struct gs *g, const json_t *s, const char *path, const char *key);
bool gs_get_size(struct gs *g, const json_t *s, const char *path, const char *key, size_t *ret);
void gs_at(struct gs *g, const char *path, const char *key);
uint32_t gs_resolve(struct gs *g, const char *ref, const char *from); /* of the schema at the path 'from' (gram_ref.c) */
const struct gs_number *gs_number_new(struct gs *g, const struct gs_number *proto); /* NULL: no number fits */
const struct gs_number *gs_number_meet(struct gs *g, const struct gs_number *a, const struct gs_number *b);
const char *gs_path(struct gs *g, const char *path, const char *key); /* path/key, escaped */
const char *gs_path_index(struct gs *g, const char *path, size_t i);

/* ---- numbers as text ---- */
enum { GS_VIABLE = 1, GS_ACCEPT = 2 };
/* Multiples of a fraction (gram_step.c). */
#define GS_STEP_DIGITS 4
#define GS_STEP_WHOLE 15 /* digits before the point */
bool gs_step_parse(const struct gs_dec *d, int64_t *ret_step, uint8_t *ret_digits);
/* Is it a multiple, as validators see it: they divide doubles. */
bool gs_step_divides(const struct gs_number *a, double value);
unsigned gs_step_check(const struct gs_number *a, const char *text, size_t len, uint32_t *need);
/* Bytes until it is one, for a viable prefix: as few as were found. */
uint32_t gs_number_need(const struct gs_number *n, const char *text, size_t len);
unsigned gs_number_check(const struct gs_number *n, const char *text, size_t len);
/* Free numbers need no text: a small state instead; 0 is the start, UINT32_MAX dead. */
uint32_t gs_free_next(bool integer, uint32_t state, uint8_t ch);
bool gs_free_accept(uint32_t state);
uint32_t gs_free_need(uint32_t state);
