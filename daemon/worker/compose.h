/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What goes into a step: a row for every sequence that decodes and may send,
 * and of the prompts as many rows as the time budget allows, shared out evenly
 * between users and then between their requests. Engine thread only.
 */

#include "daemon/worker/worker.h"

struct step_plan {
        size_t n;                /* items; m->items, m->in_step */
        uint32_t generated, prompt; /* rows */
};

void compose_step(struct wmodel *m, struct step_plan *ret);
/* What it took, for the next budget. */
void compose_learn(struct wmodel *m, const struct step_plan *p, uint64_t us);
