/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair merging, for both kinds of vocabulary: the pair with the lowest
 * rank is merged first, the leftmost of equal ones. For byte-level BPE (Sennrich
 * et al. 2016) a pair's rank is its place in the list of merges; for
 * SentencePiece BPE (Kudo, Richardson 2018) any two neighbours whose joined text
 * is a token may merge, and the rank orders the tokens by score.
 *
 * Symbols are a linked list in an array. Each keeps the rank of merging with
 * its right neighbour. Short words are searched from end to end; long ones keep
 * a heap of (rank, symbol), where entries that no longer agree with their symbol
 * are dropped when they come up. A merge adds at most two entries, so a word of
 * n symbols costs O(n log n) whatever it holds.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

#define SCAN_MAX 24 /* symbols up to which searching beats a heap (bench_tokenizer) */

void tok_work_free(struct tok_work *w) {
        free(w->sym);
        free(w->heap);
        free(w->split);
        free(w->rest);
        buf_free(&w->text);
        buf_free(&w->word);
}

static int grow(void **p, size_t *cap, size_t need, size_t size) {
        size_t n = *cap ? *cap : 64, bytes;
        void *q;

        while (n < need)
                n *= 2;
        if (!size_mul(n, size, &bytes))
                return -E2BIG;
        q = h_realloc(*p, bytes);
        if (!q)
                return -ENOMEM;
        *p = q;
        *cap = n;
        return 0;
}

int tok_work_symbol(struct tok_work *w, uint32_t pos, uint32_t len, uint32_t id) {
        size_t i = w->n_sym;

        if (i == w->cap_sym) {
                int r = grow((void **)&w->sym, &w->cap_sym, i + 1, sizeof(*w->sym));
                if (r < 0)
                        return r;
        }
        w->sym[i] = (struct tok_symbol){ .pos = pos, .len = len, .id = id, 
                                         .next = TOK_NONE, .rank = TOK_NONE, .split = TOK_NONE,
                                         .prev = i ? (uint32_t)i - 1 : TOK_NONE };
        if (i)
                w->sym[i - 1].next = (uint32_t)i;
        w->n_sym++;
        return 0;
}

int tok_work_rest(struct tok_work *w, struct tok_part part) {
        if (w->n_rest == w->cap_rest) {
                int r = grow((void **)&w->rest, &w->cap_rest, w->n_rest + 1, sizeof(*w->rest));
                if (r < 0)
                        return r;
        }
        w->rest[w->n_rest++] = part;
        return 0;
}

static void rank_pair(const struct tok *t, struct tok_work *w, const char *text, uint32_t i) {
        struct tok_symbol *a = &w->sym[i], *b;

        a->rank = TOK_NONE;
        if (a->next == TOK_NONE)
                return;
        b = &w->sym[a->next];
        if (t->model == TOK_BPE) {
                const struct tok_pair *p = tok_pairs_find(&t->pairs, a->id, b->id);
                if (p) {
                        a->rank = p->rank;
                        a->result = p->result;
                }
        } else if (a->len + b->len <= t->max_len) {
                a->result = tok_ordinary(t, text + a->pos, a->len + b->len);
                if (a->result != TOK_NONE)
                        a->rank = t->order[a->result];
        }
}

static int heap_push(struct tok_work *w, uint64_t v) {
        size_t i = w->n_heap;

        if (i == w->cap_heap) {
                int r = grow((void **)&w->heap, &w->cap_heap, i + 1, sizeof(*w->heap));
                if (r < 0)
                        return r;
        }
        w->n_heap++;
        for (; i > 0 && w->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
                w->heap[i] = w->heap[(i - 1) / 2];
        w->heap[i] = v;
        return 0;
}

static uint64_t heap_pop(struct tok_work *w) {
        uint64_t top = w->heap[0], v = w->heap[--w->n_heap];
        size_t i = 0, k;

        while ((k = 2 * i + 1) < w->n_heap) {
                if (k + 1 < w->n_heap && w->heap[k + 1] < w->heap[k])
                        k++;
                if (w->heap[k] >= v)
                        break;
                w->heap[i] = w->heap[k];
                i = k;
        }
        w->heap[i] = v;
        return top;
}

/* Merges symbol i with its right neighbour and ranks the two new pairs. */
static int merge_at(const struct tok *t, struct tok_work *w, const char *text, uint32_t i) {
        struct tok_symbol *a = &w->sym[i], *b = &w->sym[a->next];
        uint32_t split = TOK_NONE;

        if (t->kind[a->result] == TOK_UNUSED) { /* taken apart again at the end */
                if (w->n_split == w->cap_split) {
                        int r = grow((void **)&w->split, &w->cap_split, w->n_split + 1, sizeof(*w->split));
                        if (r < 0)
                                return r;
                }
                split = (uint32_t)w->n_split++;
                w->split[split] = (struct tok_split){ { a->id, a->pos, a->len, a->split },
                                                      { b->id, b->pos, b->len, b->split } };
        }
        a->split = split;
        a->id = a->result;
        a->len += b->len;
        a->next = b->next;
        b->len = 0;
        b->rank = TOK_NONE;
        if (a->next != TOK_NONE)
                w->sym[a->next].prev = i;
        rank_pair(t, w, text, i);
        if (a->prev != TOK_NONE)
                rank_pair(t, w, text, a->prev);
        return 0;
}

int tok_merge(const struct tok *t, struct tok_work *w, const char *text) {
        size_t n_merges = 0;
        int r = 0;

        for (uint32_t i = 0; i < w->n_sym && r == 0; i++) {
                rank_pair(t, w, text, i);
                if (tok_work_due(i))
                        r = tok_work_check(w);
        }
        if (r < 0)
                return r;

        if (w->n_sym <= SCAN_MAX) {
                for (;;) {
                        uint32_t best = TOK_NONE, rank = TOK_NONE;
                        for (uint32_t i = w->n_sym ? 0 : TOK_NONE; i != TOK_NONE; i = w->sym[i].next)
                                if (w->sym[i].rank < rank) {
                                        rank = w->sym[i].rank;
                                        best = i;
                                }
                        if (best == TOK_NONE)
                                return 0;
                        r = merge_at(t, w, text, best);
                        if (r < 0)
                                return r;
                }
        }

        w->n_heap = 0;
        for (uint32_t i = 0; i < w->n_sym && r == 0; i++)
                if (w->sym[i].rank != TOK_NONE)
                        r = heap_push(w, (uint64_t)w->sym[i].rank << 32 | i);
        while (r == 0 && w->n_heap > 0) {
                uint64_t v = heap_pop(w);
                uint32_t i = (uint32_t)v, prev;

                if (tok_work_due(n_merges++) && (r = tok_work_check(w)) < 0)
                        return r;
                if (w->sym[i].rank != v >> 32)
                        continue;
                r = merge_at(t, w, text, i);
                if (r == 0 && w->sym[i].rank != TOK_NONE)
                        r = heap_push(w, (uint64_t)w->sym[i].rank << 32 | i);
                prev = w->sym[i].prev;
                if (r == 0 && prev != TOK_NONE && w->sym[prev].rank != TOK_NONE)
                        r = heap_push(w, (uint64_t)w->sym[prev].rank << 32 | prev);
        }
        return r;
}
