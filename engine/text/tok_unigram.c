/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece unigram (Kudo, ACL 2018): the segmentation with the highest sum
 * of scores, by dynamic programming over the ends of tokens. At a character that
 * is no token of its own an unknown step is possible, at 10 below the lowest
 * score; runs of unknown characters come out as one unknown token, or as byte
 * tokens where the vocabulary has them. Of equal sums the one found first stays:
 * earlier starts before later ones, shorter tokens before longer.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

struct best { double score; uint32_t start, id; }; /* of the text up to here; id TOK_NONE: unknown */

static int emit_path(const struct tok *t, struct tok_work *w, const char *p, const struct best *best, size_t n) {
        size_t first = w->out->n, k;
        int r = 0;

        /* From the end: starts are gathered as ids, turned around, then replaced. */
        for (size_t i = n; i > 0 && r == 0; i = best[i].start)
                r = tok_ids_push(w->out, (uint32_t)i);
        if (r < 0)
                return r;
        k = w->out->n - first;
        _cleanup_(freep) uint32_t *ends = h_memdup(w->out->ids + first, k * sizeof(uint32_t));
        if (!ends)
                return -ENOMEM;
        w->out->n = first;
        while (k > 0 && r == 0) {
                const struct best *b = &best[ends[--k]];
                if (b->id != TOK_NONE)
                        r = tok_ids_push(w->out, b->id);
                else
                        r = tok_emit_bytes(t, w, p + b->start, ends[k] - b->start);
        }
        return r;
}

int tok_encode_unigram(const struct tok *t, struct tok_work *w, const char *p, size_t n) {
        _cleanup_(freep) struct best *best = NULL;
        size_t bytes;
        int r = tok_normalize_sp(t, w, p, n);

        if (r < 0 || w->text.len == 0)
                return r;
        p = w->text.data;
        n = w->text.len;
        r = tok_work_check_text(t, w, n);
        if (r < 0)
                return r;
        if (!size_mul(n + 1, sizeof(*best), &bytes))
                return -E2BIG;
        best = h_malloc(bytes);
        if (!best)
                return -ENOMEM;
        for (size_t i = 0; i <= n; i++)
                best[i] = (struct best){ .start = TOK_NONE, .id = TOK_NONE };
        for (size_t i = 0, n_steps = 0; i < n;) {
                unsigned len;
                bool single = false;
                uint32_t node = 0;

                if (tok_work_due(n_steps++) && (r = tok_work_check(w)) < 0)
                        return r;
                u8_next(p + i, n - i, &len);
                for (size_t end = i; end < n;) {
                        uint32_t id;
                        node = tok_trie_step(&t->pieces, node, (uint8_t)p[end++]);
                        if (node == 0)
                                break;
                        id = t->pieces.value[node];
                        if (id == TOK_NONE)
                                continue;
                        double score = best[i].score + (double)t->score[id];
                        if (best[end].start == TOK_NONE || score > best[end].score)
                                best[end] = (struct best){ score, (uint32_t)i, id };
                        single |= end - i == len;
                }
                if (!single) {
                        double score = best[i].score + t->unk_score;
                        if (best[i + len].start == TOK_NONE || score > best[i + len].score)
                                best[i + len] = (struct best){ score, (uint32_t)i, TOK_NONE };
                }
                i += len;
        }
        return emit_path(t, w, p, best, n);
}
