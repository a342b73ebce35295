/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What goes into a step: a row for every sequence that decodes and may send,
 * and of the prompts as many rows as the time budget allows, shared out evenly
 * between users and then between their requests. Engine thread only.
 */

#include "daemon/worker/worker.h"

/*
 * Into m->items and m->in_step. Sequences count as they will be after the steps in
 * flight; a token that is sampled in one of them is fed without being known.
 */
void compose_step(struct wmodel *m, struct step_plan *ret);
/*
 * Whether the next step may be begun before the one in flight is finished: both only generate, no mask needs the token, nobody
 * begins or is cancelled.
 */
bool compose_ahead(const struct wmodel *m);
/* What it took, for the next budget. */
void compose_learn(struct wmodel *m, const struct step_plan *p, uint64_t us);
