/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A valid instance of any message, from its table alone: required fields only, or all of them. */

#include "ipc/arena.h"
#include "ipc/schema.h"

/* Aborts if memory runs out: for tests and generators. */
void *schema_sample(const struct schema *s, int type, bool full, struct schema_arena **arena);
void schema_sample_free(struct schema_arena *arena);
