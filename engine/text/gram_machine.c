/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's tables: interned nodes and blobs, marks, sets. See gram_machine.h. */
#include "engine/text/gram_machine.h"

#include <string.h>

#include "base/alloc.h"

#define MAX_NODES (1u << 20)
#define MAX_POOL ((size_t)64 << 20)
#define ASK_EVERY 4096 /* steps: well under a millisecond */

void gm_init(struct gm *m, const struct grammar *g) {
        *m = (struct gm){ .g = g, .work = UINT64_MAX };
        memset(m->blob_head, 0xff, sizeof(m->blob_head));
}

void gm_release(struct gm *m) {
        free(m->node);
        free(m->chain);
        free(m->need);
        free(m->head);
        free(m->blob);
        free(m->pool);
        *m = (struct gm){ 0 };
}

struct gm_mark gm_mark(const struct gm *m) {
        return (struct gm_mark){ m->n, m->n_blob, m->n_pool };
}

static uint64_t hash_node(const struct gm_node *n) {
        uint64_t h = (uint64_t)n->parent << 32 | (uint64_t)n->kind << 24 | (uint64_t)n->phase << 16 | n->ws;
        h = (h ^ (uint64_t)n->lines << 8 ^ (uint64_t)n->q << 32 ^ n->sub) * 0x9e3779b97f4a7c15u;
        h = (h ^ h >> 29 ^ n->data ^ n->hash ^ (uint64_t)(uintptr_t)n->ptr) * 0xbf58476d1ce4e5b9u;
        return h ^ h >> 32;
}

/* Nodes are taken out in the reverse order of coming in, so each is the first of its chain. */
void gm_back(struct gm *m, struct gm_mark to) {
        while (m->n > to.n) {
                m->n--;
                m->head[hash_node(&m->node[m->n]) & (m->n_head - 1)] = m->chain[m->n];
        }
        while (m->n_blob > to.n_blob) {
                m->n_blob--;
                m->blob_head[m->blob[m->n_blob].hash % GM_BLOB_HEADS] = m->blob[m->n_blob].chain;
        }
        m->n_pool = to.n_pool;
        m->error = 0;
}

static bool grow(struct gm *m) {
        size_t cap = m->cap ? m->cap * 2 : 256;
        struct gm_node *node;
        uint32_t *chain, *need, *head;

        if (cap > MAX_NODES) {
                m->error = -E2BIG;
                return false;
        }
        node = h_realloc(m->node, cap * sizeof(*node));
        if (node)
                m->node = node;
        chain = node ? h_realloc(m->chain, cap * sizeof(*chain)) : NULL;
        if (chain)
                m->chain = chain;
        need = chain ? h_realloc(m->need, cap * sizeof(*need)) : NULL;
        if (need)
                m->need = need;
        head = need ? h_malloc(cap * 2 * sizeof(*head)) : NULL;
        if (!head) {
                m->error = -ENOMEM;
                return false;
        }
        free(m->head);
        m->head = head;
        m->n_head = cap * 2;
        m->cap = cap;
        memset(head, 0xff, m->n_head * sizeof(*head));
        for (uint32_t i = 0; i < m->n; i++) {
                uint32_t *h = &head[hash_node(&m->node[i]) & (m->n_head - 1)];
                m->chain[i] = *h;
                *h = i;
        }
        return true;
}

static bool same(const struct gm_node *a, const struct gm_node *b) {
        return a->parent == b->parent && a->kind == b->kind && a->phase == b->phase && a->ws == b->ws && a->lines == b->lines && a->depth == b->depth &&
               a->q == b->q && a->sub == b->sub && a->data == b->data && a->hash == b->hash && a->ptr == b->ptr;
}

uint32_t gm_intern(struct gm *m, const struct gm_node *n) {
        uint64_t h = hash_node(n);
        struct gm_node copy = *n; /* n may point into the table */

        if (m->n == m->cap && !grow(m))
                return GM_NONE;
        for (uint32_t i = m->head[h & (m->n_head - 1)]; i != GM_NONE; i = m->chain[i])
                if (same(&m->node[i], &copy))
                        return i;
        m->node[m->n] = copy;
        /* a number's is found by trying digits: not before it is asked for */
        m->need[m->n] = copy.kind == GM_NUM ? NEED_UNKNOWN : gn_place(m, &copy);
        m->chain[m->n] = m->head[h & (m->n_head - 1)];
        m->head[h & (m->n_head - 1)] = (uint32_t)m->n;
        return (uint32_t)m->n++;
}

uint32_t gm_blob(struct gm *m, const void *p, size_t n) {
        uint64_t h = 14695981039346656037u;

        for (size_t i = 0; i < n; i++)
                h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211u;
        for (uint32_t i = m->blob_head[h % GM_BLOB_HEADS]; i != GM_NONE; i = m->blob[i].chain)
                if (m->blob[i].hash == h && m->blob[i].len == n && memcmp(m->pool + m->blob[i].off, p, n) == 0)
                        return i;
        if (m->n_pool + n + 8 > MAX_POOL) {
                m->error = -E2BIG;
                return GM_NONE;
        }
        if (m->n_blob == m->cap_blob) {
                size_t cap = m->cap_blob ? m->cap_blob * 2 : 64;
                struct gm_blob *b = h_realloc(m->blob, cap * sizeof(*b));
                if (!b) {
                        m->error = -ENOMEM;
                        return GM_NONE;
                }
                m->blob = b;
                m->cap_blob = cap;
        }
        m->n_pool = (m->n_pool + 7) & ~(size_t)7;
        if (!m->pool || m->n_pool + n > m->cap_pool) {
                size_t cap = m->cap_pool ? m->cap_pool : 1024;
                uint8_t *q;
                while (cap < m->n_pool + n)
                        cap *= 2;
                q = h_realloc(m->pool, cap);
                if (!q) {
                        m->error = -ENOMEM;
                        return GM_NONE;
                }
                m->pool = q;
                m->cap_pool = cap;
        }
        memcpy(m->pool + m->n_pool, p, n);
        m->blob[m->n_blob] = (struct gm_blob){ .hash = h, .off = (uint32_t)m->n_pool, .len = (uint32_t)n,
                                               .chain = m->blob_head[h % GM_BLOB_HEADS] };
        m->blob_head[h % GM_BLOB_HEADS] = (uint32_t)m->n_blob;
        m->n_pool += n;
        return (uint32_t)m->n_blob++;
}

static bool has_blob(const struct gm_node *n) {
        return n->kind == GM_OBJ || n->kind == GM_KEY || (n->kind == GM_ARR && ((const struct gs_array *)n->ptr)->unique == GS_UNIQUE_TEXT) || (n->kind == GM_NUM && !((const struct gs_number *)n->ptr)->free);
}

int gm_compact(struct gm *m, uint32_t *id, size_t n) {
        uint32_t *to = h_calloc(m->n + 1, sizeof(*to)); /* 0: not needed; else new id + 1 */
        struct gm fresh;
        int r = to ? 0 : -ENOMEM;

        gm_init(&fresh, m->g);
        for (size_t i = 0; r == 0 && i < n; i++)
                for (uint32_t k = id[i]; k != GM_NONE && !to[k]; k = m->node[k].parent)
                        to[k] = 1;
        for (uint32_t i = 0; r == 0 && i < m->n; i++) { /* parents come before their children */
                struct gm_node x = m->node[i];
                if (!to[i])
                        continue;
                if (x.parent != GM_NONE)
                        x.parent = to[x.parent] - 1;
                if (has_blob(&x))
                        x.data = gm_blob(&fresh, gm_blob_data(m, x.data), m->blob[x.data].len);
                to[i] = gm_intern(&fresh, &x) + 1;
                r = fresh.error;
        }
        if (r == 0) {
                for (size_t i = 0; i < n; i++)
                        id[i] = to[id[i]] - 1;
                gm_release(m);
                *m = fresh;
        } else {
                gm_release(&fresh);
        }
        free(to);
        return r;
}

void gm_add(struct gm_out *o, uint32_t id) {
        size_t i = o->n;

        if (id == GM_NONE)
                return;
        while (i > 0 && o->id[i - 1] > id)
                i--;
        if (i > 0 && o->id[i - 1] == id)
                return;
        if (o->n == GM_MAX_SET) {
                o->m->error = -E2BIG;
                return;
        }
        memmove(o->id + i + 1, o->id + i, (o->n - i) * sizeof(*o->id));
        o->id[i] = id;
        o->n++;
}

void gm_push(struct gm_out *o, const struct gm_node *n) {
        gm_add(o, gm_intern(o->m, n));
}

bool gm_work(struct gm *m, uint64_t n) {
        if (m->error)
                return false;
        if (n > m->work) {
                m->error = -EAGAIN;
                return false;
        }
        if (m->work != UINT64_MAX)
                m->work -= n;
        m->unasked += (uint32_t)MIN(n, (uint64_t)ASK_EVERY);
        if (m->unasked >= ASK_EVERY) {
                m->unasked = 0;
                if (m->stopped && m->stopped(m->ud))
                        m->error = -ECANCELED;
        }
        return !m->error;
}

void gm_start(struct gm *m, struct gm_out *out) {
        struct gm_node done = { .kind = GM_DONE, .parent = GM_NONE };
        uint32_t bottom = gm_intern(m, &done);

        *out = (struct gm_out){ .m = m };
        if (bottom == GM_NONE)
                return;
        if (m->g->is_gbnf)
                gm_nfa_add(out, m->g->root, bottom);
        else
                gm_push(out, &(struct gm_node){ .kind = GM_VALUE, .parent = bottom, .q = GS_ROOT_NODE });
}

void gm_step(struct gm *m, const uint32_t *in, size_t n, uint8_t b, struct gm_out *out) {
        out->m = m;
        out->n = 0;
        for (size_t i = 0; i < n && gm_work(m, 1); i++) {
                if (m->g->is_gbnf)
                        gm_nfa_step(out, in[i], b);
                else
                        gm_json_step(out, in[i], b);
        }
        if (!gm_work(m, out->n))
                out->n = 0;
}

bool gm_done(const struct gm *m, const uint32_t *id, size_t n) {
        for (size_t i = 0; i < n; i++) {
                const struct gm_node *x = &m->node[id[i]];
                const struct gs_number *num = x->ptr;

                if (x->kind == GM_DONE)
                        return true;
                if (x->kind != GM_NUM || m->node[x->parent].kind != GM_DONE)
                        continue;
                /* a number ends with the output */
                if (num->free ? gs_free_accept(x->q)
                              : (gs_number_check(num, gm_blob_data(m, x->data), m->blob[x->data].len) & GS_ACCEPT) != 0)
                        return true;
        }
        return false;
}
