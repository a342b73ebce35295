/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <string.h>

/* The only mutable global of base: the fault hook, zero (off) outside fault tests. */
static struct {
        _Atomic uint64_t nth, seen;
} faults[_FAULT_MAX];

void fault_arm(enum fault_kind kind, uint64_t nth) {
        atomic_store(&faults[kind].seen, 0);
        atomic_store(&faults[kind].nth, nth);
}

uint64_t fault_count(enum fault_kind kind) {
        return atomic_load(&faults[kind].seen);
}

bool fault_hit(enum fault_kind kind) {
        uint64_t nth = atomic_load_explicit(&faults[kind].nth, memory_order_relaxed);
        if (__builtin_expect(nth == 0, 1))
                return false;
        return atomic_fetch_add(&faults[kind].seen, 1) + 1 == nth;
}

void *h_malloc(size_t n) {
        return fault_hit(FAULT_ALLOC) ? NULL : malloc(n ? n : 1);
}

void *h_calloc(size_t n, size_t size) {
        return fault_hit(FAULT_ALLOC) ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *h_realloc(void *p, size_t n) {
        return fault_hit(FAULT_ALLOC) ? NULL : realloc(p, n ? n : 1);
}

void *h_memdup(const void *p, size_t n) {
        void *r = h_malloc(n);
        if (r && n)
                memcpy(r, p, n);
        return r;
}

char *h_strndup(const char *s, size_t n) {
        size_t len = strnlen(s, n);
        char *r = h_malloc(len + 1);
        if (r) {
                memcpy(r, s, len);
                r[len] = 0;
        }
        return r;
}

char *h_strdup(const char *s) {
        return h_strndup(s, strlen(s));
}

void *h_aligned_alloc(size_t align, size_t n) {
        size_t size;
        if (fault_hit(FAULT_ALLOC) || !size_align(n ? n : 1, align, &size))
                return NULL;
        return aligned_alloc(align, size);
}
