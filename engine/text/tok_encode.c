/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding: special tokens are cut out of the text first, at each place the
 * longest one, then each part in between is encoded on its own. Without
 * TOK_SPECIAL only user-defined tokens are cut out, so control tokens can't be
 * written in text. Also the questions about single tokens.
 *
 * Bounds: what was given out is never taken back across a check, so a count over
 * the limit is certain; and where every byte becomes part of some token, so is
 * the text's length by the longest token's.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

void tok_ids_free(struct tok_ids *v) {
        free(v->ids);
        *v = (struct tok_ids){ 0 };
}

int tok_ids_push(struct tok_ids *v, uint32_t id) {
        if (v->n == v->cap) {
                size_t cap = v->cap ? 2 * v->cap : 64, bytes;
                uint32_t *p;
                if (!size_mul(cap, sizeof(*p), &bytes))
                        return -E2BIG;
                p = h_realloc(v->ids, bytes);
                if (!p)
                        return -ENOMEM;
                v->ids = p;
                v->cap = cap;
        }
        v->ids[v->n++] = id;
        return 0;
}

#define STOP_EVERY 64u /* checks; stop() may be a call into another library */

int tok_work_check(struct tok_work *w) {
        struct tok_bounds *b = w->bounds;

        if (!b)
                return 0;
        if (w->out->n > b->max_ids) {
                b->at_least = w->out->n;
                return -ENOSPC;
        }
        return b->stop && w->n_checks++ % STOP_EVERY == 0 && b->stop(b->userdata) ? -ECANCELED : 0;
}

/* No text is left out, and none but single characters become an unknown token. */
static bool all_bytes_count(const struct tok *t) {
        if (t->model == TOK_WORDPIECE || t->pre.flags & PRE_DROP_GAPS)
                return false;
        for (unsigned i = 0; i < 256; i++)
                if (t->byte_id[i] == TOK_NONE)
                        return false;
        return true;
}

int tok_work_check_text(const struct tok *t, struct tok_work *w, size_t n) {
        size_t longest = MAX(t->max_len, (uint32_t)4), least = n / longest;
        struct tok_bounds *b = w->bounds;

        if (b && least && w->out->n + least > b->max_ids && all_bytes_count(t)) {
                b->at_least = w->out->n + least;
                return -ENOSPC;
        }
        return tok_work_check(w);
}

static int encode_part(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        if (n == 0)
                return 0;
        w->out_part = w->out->n;
        switch (t->model) {
        case TOK_BPE: return tok_encode_bpe(t, w, p, n);
        case TOK_SPM: return tok_encode_spm(t, w, p, n);
        case TOK_UNIGRAM: return tok_encode_unigram(t, w, p, n);
        case TOK_WORDPIECE: return tok_encode_wordpiece(t, w, p, n);
        }
        return -EINVAL;
}

static int encode_spans(const struct tok *t, struct tok_work *w, const char *p, const struct tok_span *spans, size_t n_spans) {
        size_t part = 0, i = 0, end = 0;
        int r = 0;

        for (size_t k = 0; k < n_spans && r == 0; k++) {
                bool special = spans[k].flags & TOK_SPECIAL;
                const struct tok_trie *trie = special ? &t->special : &t->user;
                const bool *first = special ? t->special_first : t->user_first;

                end += spans[k].len;
                while (i < end && r == 0) {
                        uint32_t id = 0;
                        size_t len = first[(uint8_t)p[i]] ? tok_trie_longest(trie, p + i, end - i, &id) : 0;
                        if (len == 0) {
                                if (tok_work_due(i))
                                        r = tok_work_check(w);
                                i++;
                                continue;
                        }
                        r = encode_part(t, w, p + part, i - part);
                        if (r == 0)
                                r = tok_ids_push(w->out, id);
                        if (r == 0)
                                r = tok_work_check(w);
                        i += len;
                        part = i;
                }
        }
        return r < 0 ? r : encode_part(t, w, p + part, end - part);
}

int tok_encode_bounded(const struct tok *t, const char *text, const struct tok_span *spans, size_t n_spans, unsigned flags,
                       struct tok_bounds *bounds, struct tok_ids *out) {
        struct tok_work w = { .out = out, .bounds = bounds, .text.limit = 4 * TOK_MAX_TEXT, .word.limit = TOK_MAX_TEXT };
        size_t before = out->n, n = 0;
        int r = 0;

        for (size_t k = 0; k < n_spans; k++)
                if (!size_add(n, spans[k].len, &n) || n > TOK_MAX_TEXT)
                        return -E2BIG;
        if (flags & TOK_BOS && t->first_id >= 0)
                r = tok_ids_push(out, (uint32_t)t->first_id);
        if (r == 0)
                r = encode_spans(t, &w, text, spans, n_spans);
        if (r == 0 && flags & TOK_EOS && t->last_id >= 0)
                r = tok_ids_push(out, (uint32_t)t->last_id);
        if (r == 0)
                r = tok_work_check(&w);
        if (r < 0)
                out->n = before;
        tok_work_free(&w);
        return r;
}

int tok_encode_spans(const struct tok *t, const char *text, const struct tok_span *spans, size_t n_spans, unsigned flags,
                     struct tok_ids *out) {
        return tok_encode_bounded(t, text, spans, n_spans, flags, NULL, out);
}

int tok_encode(const struct tok *t, const char *text, size_t n, unsigned flags, struct tok_ids *out) {
        return tok_encode_spans(t, text, &(struct tok_span){ .len = n, .flags = flags }, 1, flags, out);
}

/* ---- single tokens ------------------------------------------------------- */

const char *tok_piece(const struct tok *t, uint32_t id, size_t *ret_n) {
        struct gguf_str s;

        *ret_n = 0;
        if (id >= t->n_vocab)
                return NULL;
        s = tok_str(&t->piece, id);
        if (s.n == 0)
                return NULL;
        *ret_n = s.n;
        return s.p;
}

enum tok_kind tok_kind(const struct tok *t, uint32_t id) {
        return id < t->n_vocab ? (enum tok_kind)t->kind[id] : TOK_UNUSED;
}

uint32_t tok_n_vocab(const struct tok *t) {
        return t->n_vocab;
}

bool tok_is_eog(const struct tok *t, uint32_t id) {
        return id < t->n_vocab && (t->eog[id / 64] >> (id % 64) & 1);
}

int64_t tok_special_id(const struct tok *t, enum tok_special which) {
        return (unsigned)which < _TOK_ID_MAX ? t->special_id[which] : -1;
}
