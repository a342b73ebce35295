/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Constrained decoding: a JSON schema or a GBNF-like grammar becomes an
 * automaton over bytes; with a tokenizer it yields, for the current state, the
 * set of tokens that keep the output inside the language.
 */

#include "base/error.h"
#include "engine/text/tokenizer.h"

struct grammar;       /* compiled, immutable */
struct grammar_state; /* one generation's position */

/* grammar_invalid: the path of the offending keyword ("/properties/a/minimum: ...") or line and column. */
int grammar_from_json_schema(const char *json, size_t n, struct grammar **ret, struct h_error *err);
int grammar_from_gbnf(const char *src, size_t n, struct grammar **ret, struct h_error *err);
struct grammar *grammar_free(struct grammar *g);

/* Per-vocabulary index (a byte trie), built once per model. */
struct grammar_vocab;
int grammar_vocab_new(const struct tok *t, struct grammar_vocab **ret, struct h_error *err);
struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v);

int grammar_state_new(const struct grammar *g, const struct grammar_vocab *v, struct grammar_state **ret);
struct grammar_state *grammar_state_free(struct grammar_state *s);
/* What one mask may cost, who may call it off, and how much may follow. All zero: no bounds. */
struct grammar_limit {
        uint64_t work;                       /* steps of the automaton; 0: as many as it takes */
        bool (*stopped)(void *ud); void *ud; /* asked every few thousand steps, in the caller's thread */
        /*
         * Tokens that may still come, this one included; 0: any number. Then only those are allowed after which the
         * text can still be completed, as far as that is known; if none is left, those that come nearest to it.
         */
        uint64_t left;
};
/* Fills the bitset [DIV_ROUND_UP(n_vocab, 64)]: allowed next tokens; EOG tokens are allowed iff the output may end here. */
int grammar_state_mask(struct grammar_state *s, uint64_t *mask);
/* The same, or -EAGAIN past the work, -ECANCELED when stopped; the state is as before, and the mask must be asked for anew. */
int grammar_state_mask_within(struct grammar_state *s, const struct grammar_limit *l, uint64_t *mask);
/* Advances by one sampled token; -EINVAL if it was not allowed (state unchanged). */
int grammar_state_accept(struct grammar_state *s, uint32_t token);
/* For tests: the bytes alone. */
int grammar_state_accept_bytes(struct grammar_state *s, const char *p, size_t n);
/* Bytes within which the output can be brought to its end; from 2^29 on: not known. */
uint32_t grammar_state_need(struct grammar_state *s);
bool grammar_state_done(const struct grammar_state *s); /* output may end here */
