/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the next token of a request with a grammar may be, worked out beside
 * the engine: a grammar may make this as slow as it likes, so the engine goes
 * on with the others, and the request joins the step after its mask is there.
 *
 * While a mask is being computed the job owns the grammar's state and the
 * bitset and holds a reference to the task; otherwise the engine thread owns
 * both. Every mask is tried in the quick lane first, with a small bound of
 * work; one that needs more goes to the slow lane, whose threads yield to all
 * others. So a costly grammar delays cheap ones by one such bound at most, and
 * one user's costly ones leave a thread for another's.
 * Which lane it was changes nothing about the mask.
 */

#include <stdatomic.h>

#include "daemon/worker/jobs.h"

struct task;
struct wmodel;
struct worker;

enum mask_state { MASK_IDLE, MASK_QUICK, MASK_SLOW, MASK_READY, MASK_FAILED };

struct mask_job {
        struct job job;
        _Atomic(enum mask_state) state;
        const uint32_t *tokens; /* to be accepted first */
        size_t n_tokens;
        uint32_t token;         /* tokens points here when there is one */
        uint64_t left;          /* tokens that may still come */
        int error;              /* if failed */
};

int masks_start(struct worker *w);
/* Engine thread, with the state its own: accepts these tokens, then computes the mask for the one after them. */
void mask_begin(struct task *t, const uint32_t *tokens, size_t n);
void mask_next(struct task *t, uint32_t token);
/* Waits a little for masks of the quick lane, so that their rows keep in step with the others. */
void masks_await(struct worker *w, struct wmodel *m);
