/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A growing byte buffer with a hard limit. Always NUL-terminated one past
 * 'len' once anything was appended, so text can be read as a C string.
 * Zero-initialized is empty and usable; 'limit' 0 means BUF_LIMIT_DEFAULT.
 */

#include "base/types.h"

#define BUF_LIMIT_DEFAULT ((size_t)1 << 30)

struct buf {
        char *data;
        size_t len, cap, limit;
};

/* All return 0, -ENOMEM, or -E2BIG when the limit would be passed; the content is then unchanged. */
int buf_reserve(struct buf *b, size_t more);
int buf_append(struct buf *b, const void *p, size_t n);
int buf_puts(struct buf *b, const char *s);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) _printf_(2, 3);
/* Appends what fd gives until its end, or 'most' bytes (more may follow then). The above, or read(2)'s -errno; what came before it stays. */
int buf_read_fd(struct buf *b, int fd, size_t most);
void buf_clear(struct buf *b);              /* keeps the memory */
void buf_consume(struct buf *b, size_t n);  /* drops the first n bytes */
void buf_free(struct buf *b);               /* back to zero-initialized (limit kept) */
char *buf_steal(struct buf *b);             /* NUL-terminated, caller frees; NULL if empty */
