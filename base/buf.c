/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

int buf_reserve(struct buf *b, size_t more) {
        size_t limit = b->limit ? b->limit : BUF_LIMIT_DEFAULT, need, cap;
        char *p;

        if (!size_add(b->len, more, &need) || need > limit)
                return -E2BIG;
        if (need < b->cap)
                return 0;
        cap = b->cap ? b->cap : 64;
        while (cap <= need)
                cap *= 2;
        p = h_realloc(b->data, cap);
        if (!p)
                return -ENOMEM;
        b->data = p;
        b->cap = cap;
        b->data[b->len] = 0;
        return 0;
}

int buf_append(struct buf *b, const void *p, size_t n) {
        int r = buf_reserve(b, n);
        if (r < 0)
                return r;
        if (n)
                memcpy(b->data + b->len, p, n);
        b->len += n;
        b->data[b->len] = 0;
        return 0;
}

int buf_puts(struct buf *b, const char *s) {
        return buf_append(b, s, strlen(s));
}

int buf_putc(struct buf *b, char c) {
        return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...) {
        va_list ap;
        int n, r;

        va_start(ap, fmt);
        n = vsnprintf(NULL, 0, fmt, ap);
        va_end(ap);
        if (n < 0)
                return -EINVAL;
        r = buf_reserve(b, (size_t)n);
        if (r < 0)
                return r;
        va_start(ap, fmt);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        va_end(ap);
        b->len += (size_t)n;
        return 0;
}

int buf_read_fd(struct buf *b, int fd, size_t most) {
        char piece[65536];

        for (size_t got = 0; got < most;) {
                ssize_t n = read(fd, piece, MIN(sizeof(piece), most - got));
                int r;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return 0;
                r = buf_append(b, piece, (size_t)n);
                if (r < 0)
                        return r;
                got += (size_t)n;
        }
        return 0;
}

void buf_clear(struct buf *b) {
        b->len = 0;
        if (b->data)
                b->data[0] = 0;
}

void buf_consume(struct buf *b, size_t n) {
        if (n >= b->len) {
                buf_clear(b);
                return;
        }
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
        b->data[b->len] = 0;
}

void buf_free(struct buf *b) {
        free(b->data);
        b->data = NULL;
        b->len = b->cap = 0;
}

char *buf_steal(struct buf *b) {
        char *p = b->data;
        b->data = NULL;
        b->len = b->cap = 0;
        return p;
}
