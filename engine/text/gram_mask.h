/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One walk over the vocabulary's tree: which tokens can follow, and how many
 * bytes remain after them.
 */

#include "engine/text/gram_vocab.h"

/*
 * A deterministic automaton made as far as the walk needs it: most of a
 * vocabulary leads from a set of places to the same few sets again, which are
 * then looked up instead of worked out. Lives for one walk; the memory stays.
 */
struct gm_lazy {
        struct gm_lset { uint32_t off, n, chain, need; uint64_t hash; bool any; } *set; size_t n, cap;
        uint32_t (*next)[256];    /* by set: the set behind a byte */
        uint32_t *id; size_t n_id, cap_id;
        uint32_t *head;           /* chains by hash */
};
void gm_lazy_free(struct gm_lazy *l);

struct gm_walk {
        struct gm *m;
        const struct grammar_vocab *v;
        struct gm_lazy *lazy;
        uint64_t *mask, *nearest;
        bool skip_plain;
        uint32_t far;          /* more bytes than this must not remain after a token; NEED_UNKNOWN: it doesn't matter */
        uint32_t most, least;  /* of what remains after the tokens in 'mask', in 'nearest' */
        bool left_out;
        size_t nodes;          /* the machine may keep so many: past them nothing new is kept, */
        bool full;             /* and what a step makes is dropped again */
};

/* m->error says how it ended. The machine keeps nodes until it is gone back to a mark. */
void gm_walk(struct gm_walk *w, const uint32_t *id, size_t n);
