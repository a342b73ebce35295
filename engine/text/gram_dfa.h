/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Deterministic automata over Unicode code points: what a JSON schema says
 * about strings (pattern, format, enum, property names) becomes one of these,
 * and sets of strings are intersected, subtracted and tested for emptiness as
 * automata. Immutable once made; states from which nothing can be accepted are
 * not there. Memory is the context's arena.
 */

#include "engine/text/arena.h"

#define DFA_MAX_CP 0x10ffffu
#define DFA_DEAD UINT32_MAX

struct dfa_edge { uint32_t lo, hi, to; }; /* sorted, disjoint */
struct dfa_state {
        struct dfa_edge *edge;
        uint32_t n_edge;
        int32_t label; /* -1: not accepting; else what was recognized (0 for plain languages) */
};
struct dfa {
        struct dfa_state *state; /* state 0 is the start; n_state 0: the empty language */
        uint32_t n_state;
        bool any;                /* accepts everything: one state with one loop */
        const uint32_t *need;    /* bytes to an accepting state; of those that strings use (gram_need.c) */
};

uint32_t dfa_next(const struct dfa *d, uint32_t state, uint32_t cp); /* DFA_DEAD: none */

/* ---- building: a nondeterministic automaton first ---- */

struct nfa_range { uint32_t lo, hi; };
struct nfa_set { struct nfa_range *r; size_t n, cap; };
enum nfa_kind { NFA_EPS, NFA_SET, NFA_BOL, NFA_EOL /* only at the beginning, only at the end */, NFA_CALL /* a rule, in grammars */ };
struct nfa_edge { enum nfa_kind kind; uint32_t to; const struct nfa_set *set; uint32_t rule; uint32_t next; };
struct nfa {
        struct t_ctx *c;
        uint32_t *first;          /* per state: its first edge + 1 */
        int32_t *label;
        size_t n_state, cap_state, cap_label;
        struct nfa_edge *edge;
        size_t n_edge, cap_edge;
};
void nfa_init(struct nfa *n, struct t_ctx *c);
uint32_t nfa_state(struct nfa *n);
void nfa_add(struct nfa *n, uint32_t from, enum nfa_kind kind, const struct nfa_set *set, uint32_t to);

void nfa_set_add(struct t_ctx *c, struct nfa_set *s, uint32_t lo, uint32_t hi);
void nfa_set_normalize(struct nfa_set *s);                        /* sorted, disjoint, merged */
struct nfa_set *nfa_set_complement(struct t_ctx *c, const struct nfa_set *s);

/* State 0 is the start. Labels of accepting states: the smallest wins. Fails (t_fail) past a bound on states. */
const struct dfa *dfa_from_nfa(struct nfa *n);

const struct dfa *dfa_any(struct t_ctx *c);
/* The strings given; string i is accepted with label i (or 0 for all). */
struct dfa_text { const char *p; size_t n; };
const struct dfa *dfa_literals(struct t_ctx *c, const struct dfa_text *s, size_t n, bool labels);
const struct dfa *dfa_meet(struct t_ctx *c, const struct dfa *a, const struct dfa *b);     /* intersection; a's labels */
const struct dfa *dfa_minus(struct t_ctx *c, const struct dfa *a, const struct dfa *b);
/* Both languages; where both accept, a's label wins. b's labels are b_label. */
const struct dfa *dfa_join(struct t_ctx *c, const struct dfa *a, const struct dfa *b, int32_t b_label);
/* Only strings of min..max code points. max SIZE_MAX: no bound. */
const struct dfa *dfa_length(struct t_ctx *c, const struct dfa *d, size_t min, size_t max);
bool dfa_accepts(const struct dfa *d, const char *p, size_t n);

/* ECMA-262 pattern, searched for as JSON schema says (unanchored). Fails with what is wrong in it. */
const struct dfa *dfa_pattern(struct t_ctx *c, const char *p, size_t n);
/* A format's language; NULL if unknown. */
const struct dfa *dfa_format(struct t_ctx *c, const char *name);
