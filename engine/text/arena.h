/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One struct t_ctx carries an arena and one landing place. Whatever goes wrong
 * in compiling or rendering (bad syntax, a type error in the template, a bound
 * exceeded, no memory) fills the error and jumps there: nothing but the arena
 * is ever owned in between, so nothing can leak, and no value needs an error
 * twin. Who sets 'jmp' releases the arena. An arena has a limit that counts
 * every byte asked for.
 */

#include <setjmp.h>

#include "base/error.h"

#define T_MAX_MEMORY ((size_t)512 << 20)

struct t_chunk;
struct t_ctx {
        struct t_chunk *chunks;
        size_t used, limit;
        const char *what;      /* whose memory this is, for messages: "the template" */
        struct h_error *err;
        enum hearth_code code; /* for failures that have no code of their own */
        int line;              /* where we are, for messages; 0: no lines here */
        const char *where;     /* the same as a path, or NULL */
        int rc;
        jmp_buf jmp;
};

void *t_alloc(struct t_ctx *c, size_t n); /* zeroed; fails by jumping */
void *t_array(struct t_ctx *c, size_t n, size_t size);
/* Grows an arena array to hold at least 'need' elements; contents kept. */
void *t_grow(struct t_ctx *c, void *p, size_t n, size_t *cap, size_t need, size_t size);
void t_ctx_release(struct t_ctx *c);
_Noreturn void t_fail(struct t_ctx *c, const char *fmt, ...) _printf_(2, 3); /* "line N: ..." */
_Noreturn void t_fail_code(struct t_ctx *c, enum hearth_code code, const char *fmt, ...) _printf_(3, 4);
_Noreturn void t_fail_errno(struct t_ctx *c, int r);
