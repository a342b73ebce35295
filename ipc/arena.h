/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/types.h"

/* Everything one decoded message points to. Freed at once; blocks never move. */
struct schema_arena;

int schema_arena_new(size_t first, struct schema_arena **ret);
struct schema_arena *schema_arena_free(struct schema_arena *a); /* NULL ok; returns NULL */
void *schema_arena_alloc(struct schema_arena *a, size_t n);     /* zeroed, aligned to 8; NULL: no memory */
size_t schema_arena_bytes(const struct schema_arena *a);
