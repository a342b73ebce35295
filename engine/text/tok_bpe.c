/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BPE by rank. Byte-level: a word's bytes are the first symbols, each spelled
 * by its character of the byte alphabet. Raw (gemma4 and its kind): characters
 * are, with <0xNN> tokens for those that are no token.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

struct bpe {
        const struct tok *t;
        struct tok_work *w;
};

static int byte_level_word(void *userdata, const char *p, size_t n) {
        struct bpe *b = userdata;
        const struct tok *t = b->t;
        struct tok_work *w = b->w;
        int r = tok_work_check_text(t, w, n);

        if (r < 0)
                return r;
        if (t->pre.flags & PRE_IGNORE_MERGES && n <= t->max_len) {
                uint32_t id;
                buf_clear(&w->word);
                for (size_t i = 0; i < n && r == 0; i++) {
                        char c[4];
                        r = buf_append(&w->word, c, u8_put(tok_alphabet_char((uint8_t)p[i]), c));
                }
                if (r < 0)
                        return r;
                id = tok_ordinary(t, w->word.data, w->word.len);
                if (id != TOK_NONE)
                        return tok_ids_push(w->out, id);
        }
        w->n_sym = 0;
        for (size_t i = 0; i < n && r == 0; i++) {
                r = tok_work_symbol(w, (uint32_t)i, 1, t->byte_id[(uint8_t)p[i]]);
                if (r == 0 && tok_work_due(i))
                        r = tok_work_check(w);
        }
        if (r == 0)
                r = tok_merge(t, w, p);
        return r < 0 ? r : tok_emit_symbols(t, w, p);
}

static int raw_word(void *userdata, const char *p, size_t n) {
        struct bpe *b = userdata;
        int r = tok_work_check(b->w);

        /* A run of line ends that is a token is one, whatever the merges say. */
        if (r == 0 && b->t->pre.flags & PRE_ESCAPE_SPACE && *p == '\n') {
                uint32_t id = tok_ordinary(b->t, p, n);
                if (id != TOK_NONE)
                        return tok_ids_push(b->w->out, id);
        }
        while (n > 0 && r == 0) {
                size_t k = tok_word_end(b->t, p, n);
                r = tok_encode_chars(b->t, b->w, p, k);
                p += k;
                n -= k;
        }
        return r;
}

int tok_encode_bpe(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        struct bpe b = { t, w };
        int r = 0;

        if (t->pre.flags & (PRE_NFC | PRE_ESCAPE_SPACE)) {
                buf_clear(&w->text);
                r = t->pre.flags & PRE_NFC ? u8_nfc(p, n, &w->text) : tok_escape_spaces(&w->text, p, n);
                if (r < 0)
                        return r;
                p = w->text.data;
                n = w->text.len;
        }
        r = tok_work_check_text(t, w, n);
        if (r < 0)
                return r;
        return tok_pre_split(&t->pre, p, n, t->pre.flags & PRE_RAW ? raw_word : byte_level_word, &b);
}
