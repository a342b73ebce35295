/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See gram_mask.h. A single reading within a string or key that counts or hashes
 * is moved byte by byte without being interned. Everything else goes from set to set of places:
 * by a table, while that is small (GM_MAX_SETS, MAX_NODES); past it, sets are
 * worked out and dropped again, so that memory stays bounded and the result is
 * the same.
 */
#include "engine/text/gram_mask.h"

#include <string.h>

#include "base/alloc.h"

#ifndef GM_MAX_SETS /* a test makes it small */
#define GM_MAX_SETS 2048u
#endif
#define MAX_NODES ((size_t)1 << 17)
#define HEADS 4096u
enum { DEAD = 0xfffffffe, UNSEEN = 0xffffffff }; /* in 'next' */

void gm_lazy_free(struct gm_lazy *l) {
        free(l->set);
        free(l->next);
        free(l->id);
        free(l->head);
        *l = (struct gm_lazy){ 0 };
}

/* The tokens that end here, with so many bytes to come after them. */
static void set_bits(struct gm_walk *w, const struct vocab_node *n, uint32_t need) {
        uint64_t *mask = w->mask;

        if (need <= w->far || need == NEED_FAR) { /* not known: not led */
                w->most = MAX(w->most, need == NEED_FAR ? 0 : need);
        } else {
                w->left_out = true;
                if (need > w->least)
                        return;
                mask = w->nearest;
                if (need < w->least)
                        memset(mask, 0, w->v->words * sizeof(*mask));
                w->least = need;
        }
        for (uint32_t i = n->lo; i < n->own; i++)
                mask[w->v->ids[i] / 64] |= UINT64_C(1) << (w->v->ids[i] % 64);
}

/* Where any characters may follow, at 'need' bytes from the end at most: a tree of plain tokens is allowed as a whole. */
static bool set_plain_tree(struct gm_walk *w, const struct vocab_node *n, uint32_t need) {
        if (!n->plain || need > w->far)
                return false;
        w->most = MAX(w->most, need);
        for (uint32_t i = n->lo; i < n->hi; i++)
                w->mask[w->v->ids[i] / 64] |= UINT64_C(1) << (w->v->ids[i] % 64);
        return true;
}

/* ---- sets ---- */

static bool room(struct gm_walk *w, size_t n) {
        struct gm_lazy *l = w->lazy;

        if (!l->head) {
                l->head = h_malloc(HEADS * sizeof(*l->head));
                if (!l->head)
                        return false;
                memset(l->head, 0xff, HEADS * sizeof(*l->head));
        }
        if (l->n == l->cap) {
                size_t cap = l->cap ? l->cap * 2 : 16;
                struct gm_lset *set = h_realloc(l->set, cap * sizeof(*set));
                uint32_t (*next)[256];
                if (!set)
                        return false;
                l->set = set;
                next = h_realloc(l->next, cap * sizeof(*next));
                if (!next)
                        return false;
                l->next = next;
                l->cap = cap;
        }
        if (l->n_id + n > l->cap_id) {
                size_t cap = MAX(l->cap_id * 2, l->n_id + n + 256);
                uint32_t *id = h_realloc(l->id, cap * sizeof(*id));
                if (!id)
                        return false;
                l->id = id;
                l->cap_id = cap;
        }
        return true;
}

/* The number of a set; UNSEEN: the table is full, or there is no memory for more. */
static uint32_t set_of(struct gm_walk *w, const uint32_t *id, size_t n) {
        struct gm_lazy *l = w->lazy;
        uint64_t h = 14695981039346656037u;
        struct gm_lset *s;

        for (size_t i = 0; i < n; i++)
                h = (h ^ id[i]) * 1099511628211u;
        for (uint32_t i = l->n ? l->head[h % HEADS] : UNSEEN; i != UNSEEN; i = l->set[i].chain)
                if (l->set[i].hash == h && l->set[i].n == n && memcmp(l->id + l->set[i].off, id, n * sizeof(*id)) == 0)
                        return i;
        w->full = w->full || l->n >= GM_MAX_SETS || w->m->n > w->nodes || !room(w, n);
        if (w->full)
                return UNSEEN;
        s = &l->set[l->n];
        *s = (struct gm_lset){ .off = (uint32_t)l->n_id, .n = (uint32_t)n, .chain = l->head[h % HEADS], .hash = h,
                               .need = w->far == NEED_UNKNOWN ? 0 : gn_set(w->m, id, n) };
        for (size_t i = 0; i < n && !s->any; i++)
                s->any = gm_takes_any(w->m, &w->m->node[id[i]]) == SIZE_MAX && (w->far == NEED_UNKNOWN || gn_set(w->m, &id[i], 1) <= s->need);
        memcpy(l->id + l->n_id, id, n * sizeof(*id));
        l->n_id += n;
        memset(l->next[l->n], 0xff, sizeof(*l->next));
        l->head[h % HEADS] = (uint32_t)l->n;
        return (uint32_t)l->n++;
}

static void forget_sets(struct gm_lazy *l) {
        if (l->n)
                memset(l->head, 0xff, HEADS * sizeof(*l->head));
        l->n = l->n_id = 0;
}

/* ---- walking ---- */

static void walk_ids(struct gm_walk *w, uint32_t node, const uint32_t *id, size_t n);
static void walk_set(struct gm_walk *w, uint32_t node, uint32_t set);

/* One step by the machine, and on from there. *ret: the set's number, if it could be kept. */
static void step_and_walk(struct gm_walk *w, uint32_t child, const uint32_t *id, size_t n, uint32_t *ret) {
        const struct vocab_node *v = &w->v->node[child];
        struct gm_out *out = h_malloc(sizeof(*out));
        struct gm_mark mark = gm_mark(w->m);
        bool full = w->full;

        *ret = UNSEEN;
        if (!out) {
                w->m->error = -ENOMEM;
                return;
        }
        gm_step(w->m, id, n, v->byte, out);
        if (!w->m->error && out->n == 0) {
                *ret = DEAD;
        } else if (!w->m->error && (*ret = set_of(w, out->id, out->n)) == UNSEEN) {
                if (v->own > v->lo)
                        set_bits(w, v, w->far == NEED_UNKNOWN ? 0 : gn_set(w->m, out->id, out->n));
                if (v->child)
                        walk_ids(w, child, out->id, out->n);
        }
        if (!w->m->error && (*ret == DEAD || full))
                gm_back(w->m, mark); /* no set was kept since */
        free(out);
}

static void enter(struct gm_walk *w, uint32_t child, uint32_t set) {
        const struct vocab_node *v = &w->v->node[child];

        if (w->lazy->set[set].any && set_plain_tree(w, v, w->lazy->set[set].need))
                return;
        if (v->own > v->lo)
                set_bits(w, v, w->lazy->set[set].need);
        if (v->child)
                walk_set(w, child, set);
}

/* One reading, within a string or key: no need to intern the places in between. */
static void walk_chars(struct gm_walk *w, uint32_t node, const struct gm_node *at) {
        for (uint32_t c = w->v->node[node].child; c && !w->m->error; c = w->v->node[c].next) {
                struct gm_node x = *at;

                if (w->skip_plain && w->v->node[c].plain)
                        continue;
                if (!gm_work(w->m, 1))
                        return;
                switch (gm_char_step(w->m, &x, w->v->node[c].byte)) {
                case GM_STOP:
                        break;
                case GM_CHAR:
                        if (w->v->node[c].plain && gm_takes_any(w->m, &x) == SIZE_MAX &&
                            set_plain_tree(w, &w->v->node[c], w->far == NEED_UNKNOWN ? 0 : gn_place(w->m, &x)))
                                break;
                        if (w->v->node[c].own > w->v->node[c].lo)
                                set_bits(w, &w->v->node[c], w->far == NEED_UNKNOWN ? 0 : gn_place(w->m, &x));
                        if (w->v->node[c].child)
                                walk_chars(w, c, &x);
                        break;
                case GM_QUOTE: {
                        struct gm_mark mark = gm_mark(w->m);
                        bool full = w->full;
                        uint32_t id = gm_intern(w->m, at), set;
                        if (id == GM_NONE)
                                return;
                        step_and_walk(w, c, &id, 1, &set);
                        if (set != UNSEEN && set != DEAD)
                                enter(w, c, set);
                        if (full && !w->m->error)
                                gm_back(w->m, mark);
                }
                }
        }
}

/* One whose places are too many for a table: it counts or hashes what it reads. */
static bool single_string(const struct gm_walk *w, const uint32_t *id, size_t n) {
        const struct gm_node *x = &w->m->node[id[0]];
        const struct gs_string *s = x->ptr;
        const struct gs_object *o = x->ptr;

        return n == 1 && ((x->kind == GM_STR && (s->dfa->any || s->hashed)) || (x->kind == GM_KEY && o->distinct));
}

static void walk_ids(struct gm_walk *w, uint32_t node, const uint32_t *id, size_t n) {
        if (single_string(w, id, n)) {
                struct gm_node at = w->m->node[id[0]];
                walk_chars(w, node, &at);
                return;
        }
        for (uint32_t c = w->v->node[node].child, set; c && !w->m->error; c = w->v->node[c].next)
                if (!w->skip_plain || !w->v->node[c].plain) {
                        step_and_walk(w, c, id, n, &set);
                        if (set != UNSEEN && set != DEAD)
                                enter(w, c, set);
                }
}

static void walk_set(struct gm_walk *w, uint32_t node, uint32_t set) {
        struct gm_lazy *l = w->lazy;

        if (single_string(w, l->id + l->set[set].off, l->set[set].n)) {
                struct gm_node at = w->m->node[l->id[l->set[set].off]];
                walk_chars(w, node, &at);
                return;
        }
        for (uint32_t c = w->v->node[node].child; c && !w->m->error; c = w->v->node[c].next) {
                uint8_t byte = w->v->node[c].byte;
                uint32_t to = l->next[set][byte];

                if (w->skip_plain && w->v->node[c].plain)
                        continue;
                if (!gm_work(w->m, 1))
                        return;
                if (l->set[set].any && set_plain_tree(w, &w->v->node[c], l->set[set].need))
                        continue;
                if (to == UNSEEN) {
                        uint32_t n = l->set[set].n, *id = h_memdup(l->id + l->set[set].off, n * sizeof(*id)); /* the table may move */
                        if (!id) {
                                w->m->error = -ENOMEM;
                                return;
                        }
                        step_and_walk(w, c, id, n, &to);
                        free(id);
                        l->next[set][byte] = to;
                }
                if (to != UNSEEN && to != DEAD)
                        enter(w, c, to);
        }
}

void gm_walk(struct gm_walk *w, const uint32_t *id, size_t n) {
        uint32_t set;

        forget_sets(w->lazy);
        w->nodes = w->m->n + MAX_NODES;
        set = set_of(w, id, n);
        if (set == UNSEEN)
                walk_ids(w, 0, id, n);
        else
                walk_set(w, 0, set);
}
