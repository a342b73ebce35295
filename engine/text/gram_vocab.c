/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A vocabulary as a byte trie, so that a state's mask costs one step of the
 * machine per distinct prefix, not per token. Nodes are in depth-first order;
 * the tokens below a node are one range of the list sorted by bytes.
 *
 * Most time would go into strings, where nearly every token is allowed. So
 * tokens that are nothing but whole characters a JSON string may hold as they
 * are ("plain") are listed by length, and subtrees with only such tokens are
 * skipped.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/text/gram_vocab.h"

struct text { const char *p; uint32_t n, id; };

static int by_bytes(const void *a, const void *b) {
        const struct text *x = a, *y = b;
        int r = memcmp(x->p, y->p, MIN(x->n, y->n));
        return r ? r : (x->n > y->n) - (x->n < y->n);
}

/* Characters if the bytes are whole ones and none is special in a string; else 0. */
static uint32_t plain_chars(const char *p, size_t n) {
        uint32_t sub = 0, chars = 0;
        struct ch_range r[3];
        size_t n_r;

        for (size_t i = 0; i < n; i++) {
                if (p[i] == '"' || p[i] == '\\' || (uint8_t)p[i] < 0x20)
                        return 0;
                switch (ch_utf8(&sub, (uint8_t)p[i], r, &n_r)) {
                case CH_WHOLE: chars++; break;
                case CH_PART: break;
                case CH_BAD:
                case CH_END: return 0;
                }
        }
        return sub == 0 ? chars : 0;
}

struct builder { struct grammar_vocab *v; const struct text *t; size_t cap; bool failed; };

/* The node for tokens [lo, hi), which share 'depth' bytes; returns its number. */
static uint32_t build(struct builder *b, size_t lo, size_t hi, uint32_t depth) {
        uint32_t me = (uint32_t)b->v->n_node, *link;
        struct vocab_node *n;
        size_t i = lo;

        if (b->v->n_node == b->cap) {
                size_t cap = b->cap ? b->cap * 2 : 1024;
                n = h_realloc(b->v->node, cap * sizeof(*n));
                if (!n) {
                        b->failed = true;
                        return 0;
                }
                b->v->node = n;
                b->cap = cap;
        }
        b->v->node[b->v->n_node++] = (struct vocab_node){ .lo = (uint32_t)lo, .hi = (uint32_t)hi, .plain = true };
        while (i < hi && b->t[i].n == depth)
                i++;
        b->v->node[me].own = (uint32_t)i;
        for (size_t k = lo; k < i; k++)
                if (!plain_chars(b->t[k].p, b->t[k].n))
                        b->v->node[me].plain = false;
        uint32_t last = 0;
        while (i < hi && !b->failed) {
                uint8_t byte = (uint8_t)b->t[i].p[depth];
                size_t end = i;
                uint32_t child;
                while (end < hi && (uint8_t)b->t[end].p[depth] == byte)
                        end++;
                child = build(b, i, end, depth + 1);
                if (b->failed)
                        return 0;
                b->v->node[child].byte = byte;
                if (!b->v->node[child].plain)
                        b->v->node[me].plain = false;
                link = last ? &b->v->node[last].next : &b->v->node[me].child;
                *link = child;
                last = child;
                i = end;
        }
        return me;
}

static bool usable(const struct tok *t, uint32_t id) {
        enum tok_kind k = tok_kind(t, id);
        return (k == TOK_NORMAL || k == TOK_USER || k == TOK_BYTE) && !tok_is_eog(t, id);
}

int grammar_vocab_new(const struct tok *t, struct grammar_vocab **ret, struct h_error *err) {
        uint32_t n_vocab = tok_n_vocab(t);
        struct grammar_vocab *v = h_new0(struct grammar_vocab, 1);
        struct text *text = h_new0(struct text, n_vocab + 1);
        struct builder b = { .v = v, .t = text };
        size_t n = 0;

        if (!v || !text)
                goto oom;
        v->tok = t;
        v->n_vocab = n_vocab;
        v->words = DIV_ROUND_UP(n_vocab, 64);
        v->eog = h_new0(uint64_t, v->words);
        v->plain_mask = h_new0(uint64_t, v->words);
        v->plain = h_new0(uint32_t, n_vocab + 1);
        v->plain_upto = h_new0(uint32_t, GRAMMAR_MAX_TOKEN + 2);
        v->ids = h_new0(uint32_t, n_vocab + 1);
        if (!v->eog || !v->plain_mask || !v->plain || !v->plain_upto || !v->ids)
                goto oom;
        for (uint32_t id = 0; id < n_vocab; id++) {
                size_t len;
                const char *p;
                if (tok_is_eog(t, id))
                        v->eog[id / 64] |= UINT64_C(1) << (id % 64);
                if (!usable(t, id))
                        continue;
                p = tok_piece(t, id, &len);
                if (!p || len == 0 || len > GRAMMAR_MAX_TOKEN)
                        continue;
                text[n++] = (struct text){ p, (uint32_t)len, id };
                uint32_t chars = plain_chars(p, len);
                if (chars) {
                        v->plain_mask[id / 64] |= UINT64_C(1) << (id % 64);
                        v->plain_upto[chars]++;
                        v->max_chars = MAX(v->max_chars, chars);
                }
        }
        uint32_t at[GRAMMAR_MAX_TOKEN + 2] = { 0 };
        for (uint32_t k = 1; k <= v->max_chars; k++) {
                at[k] = v->plain_upto[k - 1];
                v->plain_upto[k] += v->plain_upto[k - 1];
        }
        for (size_t i = 0; i < n; i++) {
                uint32_t chars = plain_chars(text[i].p, text[i].n);
                if (chars)
                        v->plain[at[chars]++] = text[i].id;
        }
        qsort(text, n, sizeof(*text), by_bytes);
        for (size_t i = 0; i < n; i++)
                v->ids[i] = text[i].id;
        build(&b, 0, n, 0);
        if (b.failed)
                goto oom;
        free(text);
        *ret = v;
        return 0;
oom:
        free(text);
        grammar_vocab_free(v);
        return -ENOMEM;
}

struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v) {
        if (v) {
                free(v->node);
                free(v->ids);
                free(v->eog);
                free(v->plain);
                free(v->plain_upto);
                free(v->plain_mask);
                free(v);
        }
        return NULL;
}
