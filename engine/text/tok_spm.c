/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece BPE (model type BPE of sentencepiece_model.proto, what GGUF
 * calls "llama"), and SentencePiece's normalization, which the unigram model
 * shares. Rules: the sentencepiece project's documentation and paper.
 *
 * Unused tokens take part in merging but are never given out: they are taken
 * apart again into what they were merged from.
 *
 * Where no token has U+2581 after the byte before it, no merge can reach across
 * such a place, and the text is merged word by word: the result is the same and
 * the heaps stay small.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

int tok_emit_bytes(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        int64_t unk = t->special_id[TOK_ID_UNK];
        size_t i = 0;
        int r = 0;

        while (i < n && t->byte_id[(uint8_t)p[i]] != TOK_NONE)
                i++;
        if (i == n) {
                for (i = 0; i < n && r == 0; i++)
                        r = tok_ids_push(w->out, t->byte_id[(uint8_t)p[i]]);
                return r;
        }
        /*
         * Byte-level vocabularies know no "unknown": a byte without a token is left out, as the tokenizer.json
         * libraries do. (The file may name an unknown token all the same, often the one that ends a text.)
         */
        if (t->model == TOK_BPE && !(t->pre.flags & PRE_RAW))
                return 0;
        if (unk < 0)
                return -EILSEQ;
        /* SentencePiece gives a run of unknown characters as one unknown token. */
        if (t->model != TOK_BPE && w->out->n > w->out_part && w->out->ids[w->out->n - 1] == unk)
                return 0;
        return tok_ids_push(w->out, (uint32_t)unk);
}

/* Gives out a symbol; an unused token's parts instead, left before right, to whatever depth. */
static int emit_part(const struct tok *t, struct tok_work *w, const char *p, struct tok_part part) {
        size_t below = w->n_rest;
        int r = 0;

        for (;;) {
                if (part.id != TOK_NONE && t->kind[part.id] != TOK_UNUSED)
                        r = tok_ids_push(w->out, part.id);
                else if (part.split == TOK_NONE) /* a character that is no token, or an unused one */
                        r = tok_emit_bytes(t, w, p + part.pos, part.len);
                else {
                        const struct tok_split *s = &w->split[part.split];
                        r = tok_work_rest(w, s->right);
                        part = s->left;
                        if (r == 0)
                                continue;
                }
                if (r < 0 || w->n_rest == below)
                        break;
                part = w->rest[--w->n_rest];
        }
        w->n_rest = below;
        return r;
}

int tok_emit_symbols(const struct tok *t, struct tok_work *w, const char *p) {
        int r = 0;

        for (uint32_t i = w->n_sym ? 0 : TOK_NONE; i != TOK_NONE && r == 0; i = w->sym[i].next) {
                r = emit_part(t, w, p, (struct tok_part){ w->sym[i].id, w->sym[i].pos, w->sym[i].len, w->sym[i].split });
                if (r == 0 && tok_work_due(i))
                        r = tok_work_check(w);
        }
        return r;
}

int tok_encode_chars(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        int r = tok_work_check(w);

        w->n_sym = w->n_split = 0;
        for (size_t i = 0; i < n && r == 0;) {
                unsigned k;
                u8_next(p + i, n - i, &k);
                r = tok_work_symbol(w, (uint32_t)i, k, tok_ordinary(t, p + i, k));
                if (r == 0 && tok_work_due(w->n_sym))
                        r = tok_work_check(w);
                i += k;
        }
        if (r == 0)
                r = tok_merge(t, w, p);
        return r < 0 ? r : tok_emit_symbols(t, w, p);
}

size_t tok_word_end(const struct tok *t, const char *p, size_t n) {
        size_t i = 1;

        while (i < n) {
                const char *q = memchr(p + i, TOK_SPACE[0], n - i);
                if (!q)
                        return n;
                i = (size_t)(q - p);
                if (n - i >= 3 && memcmp(q, TOK_SPACE, 3) == 0 && !t->joins_space[(uint8_t)q[-1]])
                        return i;
                i++;
        }
        return n;
}

int tok_escape_spaces(struct buf *out, const char *p, size_t n) {
        int r = 0;

        while (n > 0 && r == 0) {
                const char *q = memchr(p, ' ', n);
                size_t k = q ? (size_t)(q - p) : n;
                r = buf_append(out, p, k);
                if (r == 0 && q) {
                        r = buf_append(out, TOK_SPACE, 3);
                        k++;
                }
                p += k;
                n -= k;
        }
        return r;
}

/*
 * The character map first, then spaces: an optional one in front, runs reduced
 * to one and dropped at both ends if the model says so, all as U+2581. At the
 * end SentencePiece drops the text's own U+2581 as well.
 */
int tok_normalize_sp(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        struct buf *out = &w->text;
        bool pending = t->add_space_prefix, squeeze = t->remove_extra_whitespaces, begun = false;
        size_t n_steps = 0;
        int r = 0;

        buf_clear(out);
        if (!squeeze && t->charsmap.n_units == 0) {
                if (n > 0 && t->add_space_prefix)
                        r = buf_append(out, TOK_SPACE, 3);
                return r < 0 ? r : tok_escape_spaces(out, p, n);
        }
        while (n > 0 && r == 0) {
                const char *s;
                size_t len, k = tok_charsmap_next(&t->charsmap, p, n, &s, &len);

                for (size_t i = 0; i < len && r == 0; i++) {
                        if (s[i] == ' ' && squeeze) {
                                pending |= begun;
                                continue;
                        }
                        if (pending)
                                r = buf_append(out, TOK_SPACE, 3);
                        pending = false;
                        begun = true;
                        if (r == 0)
                                r = s[i] == ' ' ? buf_append(out, TOK_SPACE, 3) : buf_putc(out, s[i]);
                }
                p += k;
                n -= k;
                if (r == 0 && tok_work_due(n_steps++))
                        r = tok_work_check(w);
        }
        while (squeeze && out->len >= 3 && memcmp(out->data + out->len - 3, TOK_SPACE, 3) == 0)
                out->len -= 3;
        return r;
}

int tok_encode_spm(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        int r = tok_normalize_sp(t, w, p, n);

        p = w->text.data;
        n = w->text.len;
        if (r == 0)
                r = tok_work_check_text(t, w, n);
        while (n > 0 && r == 0) {
                size_t k = tok_word_end(t, p, n);
                r = tok_encode_chars(t, w, p, k);
                p += k;
                n -= k;
        }
        return r;
}
