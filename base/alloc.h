/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Allocation and the one hook through which faults are injected. Code calls
 * h_malloc() and friends instead of libc's; tests arm fault_arm() to make the
 * nth call of a kind fail. The hook is per process and off unless armed.
 */

#include "base/types.h"

void *h_malloc(size_t n);
void *h_calloc(size_t n, size_t size);
void *h_realloc(void *p, size_t n);
char *h_strdup(const char *s);
char *h_strndup(const char *s, size_t n);
void *h_memdup(const void *p, size_t n);
void *h_aligned_alloc(size_t align, size_t n); /* release with free() */

/* Typed array allocation with checked arithmetic; zeroed. */
#define h_new0(type, n) ((type *)h_calloc((n), sizeof(type)))

enum fault_kind { FAULT_ALLOC, FAULT_READ, FAULT_WRITE, FAULT_MEMFD, FAULT_MMAP, FAULT_SOCKETPAIR, FAULT_FORK, _FAULT_MAX };

/* Fails call number 'nth' (1-based) of 'kind' from now on once; 0 disarms. */
void fault_arm(enum fault_kind kind, uint64_t nth);
/* Calls of that kind seen since it was armed. */
uint64_t fault_count(enum fault_kind kind);
/* True if this call must fail; the caller then reports its usual error. */
bool fault_hit(enum fault_kind kind);
