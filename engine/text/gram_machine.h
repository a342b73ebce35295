/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The machine that follows an output byte by byte: a set of stacks, each the
 * place where one reading of the output stands. Stacks are linked nodes that
 * share their tails and are interned, so that equal places are one number and
 * a set of numbers names a state (masks are cached by it). Nodes made while
 * looking ahead are dropped again by going back to a mark.
 */

#include "engine/text/gram_schema.h"
#include "engine/text/grammar.h"

#define GM_NONE UINT32_MAX
#define GM_MAX_SET 2048
#define GM_BLOB_HEADS 256
#define GM_MAX_DEPTH 128 /* nesting of JSON values */

struct grammar {
        struct t_ctx c;
        struct gs_source source; /* the schema's document; its strings are borrowed */
        struct gs schema;     /* JSON: nodes */
        bool is_gbnf;
        struct nfa nfa;       /* GBNF: all rules */
        uint32_t root;        /* GBNF: the root rule's first state */
        uint32_t *rule_start; /* by rule */
        uint32_t *rest;       /* GBNF: by state, bytes to its rule's end */
        bool *loops;          /* GBNF: by state, any plain character leads (also) back to it */
};

enum gm_kind { GM_DONE, GM_VALUE, GM_STR, GM_NUM, GM_WORD, GM_OBJ, GM_KEY, GM_ARR, GM_NFA };
enum { O_FIRST, O_KEY, O_COLON, O_AFTER, A_FIRST = 0, A_AFTER };

struct gm_node {
        uint32_t parent;
        uint8_t kind, phase;
        uint16_t ws;       /* white space just read */
        uint16_t depth;
        uint16_t lines;    /* line ends in it: \n in the low byte, \r in the high one */
        uint32_t q;        /* automaton state, label, count, position */
        uint32_t sub;      /* within a character: see gram_string.c */
        uint32_t data;     /* blob: an object's keys so far, a number's text; or a string's length */
        uint64_t hash;     /* GM_KEY: of the undeclared key being read */
        const void *ptr;   /* the alternative */
};

struct gm {
        const struct grammar *g;
        struct gm_node *node; uint32_t *chain, *need; size_t n, cap; /* need: see gram_need.c */
        uint32_t *head; size_t n_head;
        struct gm_blob { uint64_t hash; uint32_t off, len, chain; } *blob; size_t n_blob, cap_blob;
        uint32_t blob_head[GM_BLOB_HEADS];
        uint8_t *pool; size_t n_pool, cap_pool;
        int error; /* -ENOMEM, -E2BIG, -EAGAIN or -ECANCELED: sticky until the mark is gone back to */
        uint64_t work;            /* steps that may still be taken: -EAGAIN past them */
        uint32_t unasked;         /* steps since 'stopped' was asked */
        bool (*stopped)(void *ud); void *ud; /* NULL: nobody stops it */
};
struct gm_mark { size_t n, n_blob, n_pool; };

void gm_init(struct gm *m, const struct grammar *g);
void gm_release(struct gm *m);
struct gm_mark gm_mark(const struct gm *m);
void gm_back(struct gm *m, struct gm_mark to);
uint32_t gm_intern(struct gm *m, const struct gm_node *n); /* GM_NONE on error */
uint32_t gm_blob(struct gm *m, const void *p, size_t n);
static inline const void *gm_blob_data(const struct gm *m, uint32_t id) { return m->pool + m->blob[id].off; }

/* Drops everything but what the set needs; the set's ids become new ones. 0 or -ENOMEM (nothing changed). */
int gm_compact(struct gm *m, uint32_t *id, size_t n);

/* A set being filled: sorted, without doubles. */
struct gm_out { struct gm *m; uint32_t id[GM_MAX_SET]; size_t n; };
void gm_add(struct gm_out *o, uint32_t id);
void gm_push(struct gm_out *o, const struct gm_node *n);

/* Counts n steps against the bound and now and then asks whether to go on. False: m->error says why not. */
bool gm_work(struct gm *m, uint64_t n);

void gm_start(struct gm *m, struct gm_out *out);
/* Where the readings in 'in' can go by byte b; an empty set: nowhere. */
void gm_step(struct gm *m, const uint32_t *in, size_t n, uint8_t b, struct gm_out *out);
bool gm_done(const struct gm *m, const uint32_t *id, size_t n);

/* For whole vocabularies: a string's or key's node moved by one byte, without interning it. GM_QUOTE: the node is as before. */
enum gm_char { GM_STOP, GM_CHAR, GM_QUOTE };
enum gm_char gm_char_step(const struct gm *m, struct gm_node *n, uint8_t b);
size_t gm_takes_any(const struct gm *m, const struct gm_node *n);

void gm_json_step(struct gm_out *out, uint32_t id, uint8_t b);
/* GS_UNIQUE_TEXT: was the text read so far an item before? */
bool gm_item_used(const struct gm *m, const struct gm_node *n);
void gm_nfa_add(struct gm_out *out, uint32_t state, uint32_t parent);
void gm_nfa_step(struct gm_out *out, uint32_t id, uint8_t b);

/* ---- characters of a JSON string, byte by byte ---- */
enum { CH_IDLE, CH_UTF8, CH_ESCAPE, CH_HEX, CH_PAIR_SLASH, CH_PAIR_U, CH_PAIR_HEX }; /* modes, in the low bits of 'sub' */
enum ch_result { CH_BAD, CH_PART, CH_WHOLE, CH_END };
struct ch_range { uint32_t lo, hi; };
/* CH_PART: what it may become, in up to 3 ranges; CH_WHOLE: range 0 is the code point. */
enum ch_result ch_json(uint32_t *sub, uint8_t b, struct ch_range r[3], size_t *ret_n);
/* What a character begun may become, in up to 3 ranges, and the bytes each takes to its end at most; 0 within none. */
#define CH_OUTCOMES 8
size_t ch_outcomes(uint32_t sub, struct ch_range r[CH_OUTCOMES], uint32_t bytes[CH_OUTCOMES]);
/* The same for plain UTF-8 (GBNF). */
enum ch_result ch_utf8(uint32_t *sub, uint8_t b, struct ch_range r[3], size_t *ret_n);

/* ---- what an object has seen: a blob ---- */
struct gm_seen { uint32_t count, required_left; uint64_t bits[]; /* declared properties, then hashes */ };
bool gm_label_ok(const struct gs_object *o, const struct gm_seen *s, size_t label);

/* ---- how far the end is, in bytes ---- */
#define NEED_FAR 0x3fffffffu     /* or not known */
#define NEED_UNKNOWN UINT32_MAX  /* not computed yet */
void gn_schema(struct gs *g);    /* the tables, once compiled */
void gn_rules(struct grammar *g);
uint32_t gn_add(uint32_t a, uint32_t b);
uint32_t gn_place(const struct gm *m, const struct gm_node *x);
uint32_t gn_set(struct gm *m, const uint32_t *id, size_t n); /* the nearest of a set's places */

void gbnf_parse(struct grammar *g, const char *src, size_t n);
