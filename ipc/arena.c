/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/arena.h"

#include <errno.h>

#include "base/alloc.h"

struct schema_arena {
        struct schema_arena *next; /* earlier, full blocks; only the head's 'bytes' counts */
        size_t used, cap, bytes;
        uint64_t data[];
};

int schema_arena_new(size_t first, struct schema_arena **ret) {
        struct schema_arena *a;
        size_t n;

        if (!size_align(first, 8, &first) || !size_add(first, sizeof(*a), &n))
                return -ENOMEM;
        a = h_calloc(1, n);
        if (!a)
                return -ENOMEM;
        a->cap = first;
        a->bytes = n;
        *ret = a;
        return 0;
}

struct schema_arena *schema_arena_free(struct schema_arena *a) {
        while (a) {
                struct schema_arena *next = a->next;
                free(a);
                a = next;
        }
        return NULL;
}

void *schema_arena_alloc(struct schema_arena *a, size_t n) {
        void *p;

        if (!size_align(n ? n : 1, 8, &n))
                return NULL;
        if (n > a->cap - a->used) {
                /* The handle must stay what the caller holds, so the new block takes the place behind it. */
                struct schema_arena *b = a->next;
                if (!b || n > b->cap - b->used) {
                        if (schema_arena_new(MAX(n, (size_t)4096), &b) < 0)
                                return NULL;
                        b->next = a->next;
                        a->next = b;
                        a->bytes += b->bytes;
                }
                p = (char *)b->data + b->used;
                b->used += n;
                return p;
        }
        p = (char *)a->data + a->used;
        a->used += n;
        return p;
}

size_t schema_arena_bytes(const struct schema_arena *a) {
        return a ? a->bytes : 0;
}
