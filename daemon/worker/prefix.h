/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Reuse of what was evaluated before: sequences of requests that have ended are
 * kept, least recently used ones dropped first, and a new request begins with
 * the longest beginning it shares with one of them, or with a running one, token
 * by token. Only within a model, its context, and one uid. Engine thread only.
 */

#include "daemon/worker/worker.h"

struct kept {
        struct list link;
        eng_seq seq;
        uint32_t uid;
        uint8_t *roles; /* of its tokens */
};

/* How feed[i] must be evaluated if it is not shared, and how many from there on in that role. */
uint32_t prefix_run(const struct task *t, uint32_t i, enum eng_role *ret);
/* Gives t its sequence, n_cached, reused_generated, miss and roles. */
int prefix_begin(struct wmodel *m, struct task *t);
/* Takes its sequence when it ends. */
void prefix_keep(struct wmodel *m, struct task *t);
bool prefix_drop_oldest(struct wmodel *m);
