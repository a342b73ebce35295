/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte trie in arrays: nodes are numbered level by level, so that the
 * children of a node are neighbours, ordered by byte. Built from the sorted
 * strings in one pass; memory is about nine bytes a node.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

static int compare(const void *a, const void *b, void *userdata) {
        const struct tok_strings *s = userdata;
        uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
        struct gguf_str x = tok_str(s, i), y = tok_str(s, j);
        int r = memcmp(x.p, y.p, MIN(x.n, y.n));

        if (r == 0)
                r = (x.n > y.n) - (x.n < y.n);
        return r ? r : (i > j) - (i < j); /* equal texts: the lowest id first */
}

struct range { uint32_t lo, hi, depth; }; /* sorted strings below a node, and the node's depth */

int tok_trie_build(struct tok_trie *t, const struct tok_strings *s, const uint32_t *ids, uint32_t n) {
        _cleanup_(freep) uint32_t *sorted = h_memdup(ids, n * sizeof(*ids));
        _cleanup_(freep) struct range *queue = NULL;
        size_t total = 1, cap;
        uint32_t n_nodes = 1;

        if (!sorted)
                return -ENOMEM;
        qsort_r(sorted, n, sizeof(*sorted), compare, (void *)s);
        /* Nodes are the distinct prefixes: each string adds what it doesn't share with the one before. */
        for (uint32_t i = 0; i < n; i++) {
                struct gguf_str b = tok_str(s, sorted[i]);
                size_t shared = 0;
                if (i > 0) {
                        struct gguf_str a = tok_str(s, sorted[i - 1]);
                        while (shared < a.n && shared < b.n && a.p[shared] == b.p[shared])
                                shared++;
                }
                total += b.n - shared;
        }
        if (total >= TOK_NONE)
                return -E2BIG;
        cap = total;
        t->first = h_new0(uint32_t, cap + 1);
        t->label = h_new0(uint8_t, cap);
        t->value = h_malloc(cap * sizeof(*t->value));
        queue = h_malloc(cap * sizeof(*queue));
        if (!t->first || !t->label || !t->value || !queue) {
                tok_trie_free(t);
                return -ENOMEM;
        }
        queue[0] = (struct range){ 0, n, 0 };
        for (uint32_t node = 0; node < n_nodes; node++) {
                struct range q = queue[node];
                uint32_t i = q.lo;

                t->first[node] = n_nodes;
                t->value[node] = TOK_NONE;
                for (; i < q.hi && tok_str(s, sorted[i]).n == q.depth; i++)
                        if (t->value[node] == TOK_NONE && node != 0)
                                t->value[node] = sorted[i];
                while (i < q.hi) {
                        char c = tok_str(s, sorted[i]).p[q.depth];
                        uint32_t end = i + 1;
                        while (end < q.hi && tok_str(s, sorted[end]).p[q.depth] == c)
                                end++;
                        t->label[n_nodes] = (uint8_t)c;
                        if (node == 0)
                                t->root[(uint8_t)c] = n_nodes;
                        queue[n_nodes++] = (struct range){ i, end, q.depth + 1 };
                        i = end;
                }
        }
        t->first[n_nodes] = n_nodes;
        t->n_nodes = n_nodes;
        return 0;
}

void tok_trie_free(struct tok_trie *t) {
        free(t->first);
        free(t->label);
        free(t->value);
        *t = (struct tok_trie){ 0 };
}

uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, uint8_t c) {
        uint32_t lo, hi;

        if (node == 0)
                return t->root[c];
        lo = t->first[node];
        hi = t->first[node + 1];
        while (lo < hi) {
                uint32_t mid = lo + (hi - lo) / 2;
                if (t->label[mid] == c)
                        return mid;
                if (t->label[mid] < c)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return 0;
}

size_t tok_trie_longest(const struct tok_trie *t, const char *p, size_t n, uint32_t *ret_id) {
        size_t best = 0;
        uint32_t node = 0;

        for (size_t i = 0; i < n; i++) {
                node = tok_trie_step(t, node, (uint8_t)p[i]);
                if (node == 0)
                        break;
                if (t->value[node] != TOK_NONE) {
                        best = i + 1;
                        *ret_id = t->value[node];
                }
        }
        return best;
}
