/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming detokenization. A token may end inside a character; its first bytes
 * wait in 'tail' (at most three) until the next token completes the character or
 * proves it invalid. Invalid bytes become U+FFFD, one for each maximal invalid
 * part (the Unicode standard, 3.9, "U+FFFD Substitution of Maximal Subparts").
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

#define REPLACEMENT "\xef\xbf\xbd"

void tok_stream_init(struct tok_stream *s, const struct tok *t, unsigned flags) {
        *s = (struct tok_stream){ .tok = t, .flags = flags, .started = (flags & TOK_CONTINUE) != 0 };
}

/* Puts out what is complete in p; returns the bytes used, or an error. What is left begins a character. */
static ssize_t put_complete(const uint8_t *p, size_t n, struct buf *out) {
        size_t i = 0, done = 0;
        int r;

        while (i < n) {
                int k = p[i] < 0x80 ? 1 : u8_scan(p + i, n - i);
                if (k == 0)
                        break;
                if (k > 0) {
                        i += (size_t)k;
                        continue;
                }
                r = buf_append(out, p + done, i - done);
                if (r == 0)
                        r = buf_append(out, REPLACEMENT, 3);
                if (r < 0)
                        return r;
                i += (size_t)-k;
                done = i;
        }
        r = buf_append(out, p + done, i - done);
        return r < 0 ? r : (ssize_t)i;
}

int tok_stream_push(struct tok_stream *s, uint32_t id, struct buf *out) {
        const struct tok *t = s->tok;
        size_t n, used = 0, before = out->len;
        const char *p = tok_piece(t, id, &n);
        enum tok_kind kind = tok_kind(t, id);
        ssize_t k;

        if (id >= t->n_vocab)
                return -EINVAL;
        if (!p || ((kind == TOK_CONTROL || kind == TOK_UNKNOWN) && !(s->flags & TOK_SPECIAL)))
                return 0;
        if (!s->started && kind == TOK_NORMAL && *p == ' ' && (t->add_space_prefix || t->model == TOK_WORDPIECE)) {
                p++;
                n--;
        }
        /* The tail takes bytes one by one until it is a character or can't become one. */
        uint8_t tail[4];
        size_t n_tail = s->n_tail;
        memcpy(tail, s->tail, sizeof(tail));
        while (n_tail > 0 && used < n) {
                tail[n_tail++] = (uint8_t)p[used++];
                k = put_complete(tail, n_tail, out);
                if (k < 0) {
                        out->len = before;
                        return (int)k;
                }
                n_tail -= (size_t)k;
                memmove(tail, tail + k, n_tail);
        }
        k = put_complete((const uint8_t *)p + used, n - used, out);
        if (k < 0) {
                out->len = before;
                return (int)k;
        }
        used += (size_t)k;
        memcpy(tail + n_tail, p + used, n - used); /* one of both is empty */
        s->n_tail = (uint8_t)(n_tail + n - used);
        memcpy(s->tail, tail, sizeof(tail));
        s->started |= kind != TOK_CONTROL;
        return 0;
}

int tok_stream_flush(struct tok_stream *s, struct buf *out) {
        int r = s->n_tail > 0 ? buf_append(out, REPLACEMENT, 3) : 0; /* the beginning of one character */

        if (r == 0)
                s->n_tail = 0;
        return r;
}
