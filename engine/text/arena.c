/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena and the way out of failures: see arena.h. Memory is only ever
 * released as a whole.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/text/arena.h"

#define CHUNK ((size_t)64 << 10)

struct t_chunk {
        struct t_chunk *next;
        size_t n, cap;
        max_align_t data[];
};

void *t_alloc(struct t_ctx *c, size_t n) {
        struct t_chunk *k = c->chunks;
        size_t size, cap, total;
        void *p;

        if (!size_align(n ? n : 1, _Alignof(max_align_t), &size) || !size_add(c->used, size, &total) || total > c->limit)
                t_fail(c, "%s needs more than %zu MiB of memory", c->what, c->limit >> 20);
        if (!k || k->cap - k->n < size) {
                cap = size > CHUNK / 4 ? size : CHUNK;
                k = h_malloc(sizeof(*k) + cap);
                if (!k)
                        t_fail_errno(c, -ENOMEM);
                k->n = 0;
                k->cap = cap;
                if (cap == CHUNK || !c->chunks) {
                        k->next = c->chunks;
                        c->chunks = k;
                } else { /* a big one goes behind, so that the open chunk stays in use */
                        k->next = c->chunks->next;
                        c->chunks->next = k;
                }
        }
        p = (char *)k->data + k->n;
        k->n += size;
        c->used = total;
        return memset(p, 0, size);
}

void *t_array(struct t_ctx *c, size_t n, size_t size) {
        size_t bytes;
        if (!size_mul(n, size, &bytes))
                t_fail_errno(c, -ENOMEM);
        return t_alloc(c, bytes);
}

void *t_grow(struct t_ctx *c, void *p, size_t n, size_t *cap, size_t need, size_t size) {
        size_t want = *cap ? *cap : 4;
        void *q;

        if (need <= *cap)
                return p;
        while (want < need)
                if (!size_mul(want, 2, &want))
                        t_fail_errno(c, -ENOMEM);
        q = t_array(c, want, size);
        if (n)
                memcpy(q, p, n * size);
        *cap = want;
        return q;
}

void t_ctx_release(struct t_ctx *c) {
        while (c->chunks) {
                struct t_chunk *k = c->chunks;
                c->chunks = k->next;
                free(k);
        }
        c->used = 0;
}

void t_fail_errno(struct t_ctx *c, int r) {
        c->rc = r;
        longjmp(c->jmp, 1);
}

static void fail_v(struct t_ctx *c, enum hearth_code code, const char *fmt, va_list ap) {
        char text[sizeof(c->err->message)];

        vsnprintf(text, sizeof(text), fmt, ap);
        c->rc = h_error_set(c->err, code, "%s", text);
}

void t_fail_code(struct t_ctx *c, enum hearth_code code, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        fail_v(c, code, fmt, ap);
        va_end(ap);
        longjmp(c->jmp, 1);
}

void t_fail(struct t_ctx *c, const char *fmt, ...) {
        char text[sizeof(c->err->message)];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        if (c->line)
                t_fail_code(c, c->code, "line %d: %s", c->line, text);
        if (c->where)
                t_fail_code(c, c->code, "%s: %s", c->where, text);
        t_fail_code(c, c->code, "%s", text);
}
