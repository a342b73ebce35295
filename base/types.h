/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Small helpers that need nothing but libc: cleanup attributes, checked size
 * arithmetic, array and container macros. No state, no allocation.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(a, b) __attribute__((format(printf, a, b)))
#define _unused_ __attribute__((unused))

#define ELEMENTSOF(a) (sizeof(a) / sizeof((a)[0]))
#undef MIN /* sys/param.h has its own, which evaluate twice */
#undef MAX
#define MIN(a, b) ({ __typeof__(a) _a = (a); __typeof__(b) _b = (b); _a < _b ? _a : _b; })
#define MAX(a, b) ({ __typeof__(a) _a = (a); __typeof__(b) _b = (b); _a > _b ? _a : _b; })
#define CONTAINER_OF(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))

/* All three return false on overflow and leave *ret untouched then. */
static inline bool size_add(size_t a, size_t b, size_t *ret) {
        size_t r;
        if (__builtin_add_overflow(a, b, &r))
                return false;
        *ret = r;
        return true;
}

static inline bool size_mul(size_t a, size_t b, size_t *ret) {
        size_t r;
        if (__builtin_mul_overflow(a, b, &r))
                return false;
        *ret = r;
        return true;
}

/* Rounds up to a power of two 'align'. */
static inline bool size_align(size_t a, size_t align, size_t *ret) {
        size_t r;
        if (__builtin_add_overflow(a, align - 1, &r))
                return false;
        *ret = r & ~(align - 1);
        return true;
}

static inline void freep(void *p) {
        free(*(void **)p);
}

static inline int fd_close(int fd) {
        if (fd >= 0)
                close(fd);
        return -1;
}

static inline void fd_closep(int *fd) {
        *fd = fd_close(*fd);
}

/* An fd not owned is -1; stealing leaves -1 behind. */
static inline int fd_steal(int *fd) {
        int r = *fd;
        *fd = -1;
        return r;
}

#define ptr_steal(p) ({ __typeof__(*(p)) _r = *(p); *(p) = NULL; _r; })
