/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Automata over code points: subset construction and products. All products
 * are built from pairs of states reached, then trimmed; their size is bounded
 * so that a schema can't make the daemon work for minutes.
 */
#include "engine/text/gram_dfa.h"

#include <string.h>
#include <utf8proc.h>

#define MAX_STATES 20000
#define MAX_EDGES 400000

uint32_t dfa_next(const struct dfa *d, uint32_t state, uint32_t cp) {
        const struct dfa_state *s = &d->state[state];
        uint32_t lo = 0, hi = s->n_edge;

        while (lo < hi) {
                uint32_t mid = (lo + hi) / 2;
                if (cp < s->edge[mid].lo)
                        hi = mid;
                else if (cp > s->edge[mid].hi)
                        lo = mid + 1;
                else
                        return s->edge[mid].to;
        }
        return DFA_DEAD;
}

/* ---- sets of code points ---- */

void nfa_set_add(struct t_ctx *c, struct nfa_set *s, uint32_t lo, uint32_t hi) {
        s->r = t_grow(c, s->r, s->n, &s->cap, s->n + 1, sizeof(*s->r));
        s->r[s->n++] = (struct nfa_range){ lo, hi };
}

static int by_lo(const void *a, const void *b) {
        const struct nfa_range *x = a, *y = b;
        return (x->lo > y->lo) - (x->lo < y->lo);
}

void nfa_set_normalize(struct nfa_set *s) {
        size_t k = 0;

        if (s->n == 0)
                return;
        qsort(s->r, s->n, sizeof(*s->r), by_lo);
        for (size_t i = 1; i < s->n; i++) {
                if (s->r[i].lo <= s->r[k].hi + 1)
                        s->r[k].hi = MAX(s->r[k].hi, s->r[i].hi);
                else
                        s->r[++k] = s->r[i];
        }
        s->n = k + 1;
}

struct nfa_set *nfa_set_complement(struct t_ctx *c, const struct nfa_set *s) {
        struct nfa_set *r = t_alloc(c, sizeof(*r));
        uint32_t at = 0;

        for (size_t i = 0; i < s->n; i++) {
                if (s->r[i].lo > at)
                        nfa_set_add(c, r, at, s->r[i].lo - 1);
                at = s->r[i].hi + 1;
        }
        if (at <= DFA_MAX_CP)
                nfa_set_add(c, r, at, DFA_MAX_CP);
        return r;
}

/* ---- nondeterministic ---- */

void nfa_init(struct nfa *n, struct t_ctx *c) {
        *n = (struct nfa){ .c = c };
}

uint32_t nfa_state(struct nfa *n) {
        size_t cap = n->cap_state;

        if (n->n_state >= MAX_STATES * 4)
                t_fail(n->c, "the pattern is too large (more than %d states)", MAX_STATES * 4);
        n->first = t_grow(n->c, n->first, n->n_state, &cap, n->n_state + 1, sizeof(*n->first));
        n->label = t_grow(n->c, n->label, n->n_state, &n->cap_label, n->n_state + 1, sizeof(*n->label));
        n->cap_state = cap;
        n->first[n->n_state] = 0;
        n->label[n->n_state] = -1;
        return (uint32_t)n->n_state++;
}

void nfa_add(struct nfa *n, uint32_t from, enum nfa_kind kind, const struct nfa_set *set, uint32_t to) {
        n->edge = t_grow(n->c, n->edge, n->n_edge, &n->cap_edge, n->n_edge + 1, sizeof(*n->edge));
        n->edge[n->n_edge] = (struct nfa_edge){ .kind = kind, .to = to, .set = set, .next = n->first[from] };
        n->first[from] = (uint32_t)++n->n_edge;
}

/* ---- a growing deterministic automaton, keyed by what a state stands for ---- */

struct build {
        struct t_ctx *c;
        struct dfa d;
        size_t cap;
        uint32_t *key;       /* n words per state, in one pool */
        size_t n_key, cap_key;
        size_t *key_at;      /* where a state's key begins; one more than states */
        size_t cap_at;
        uint32_t *index; size_t n_index;
        size_t n_edges;
};

static uint64_t hash_key(const uint32_t *k, size_t n) {
        uint64_t h = 14695981039346656037u;
        for (size_t i = 0; i < n; i++)
                h = (h ^ k[i]) * 1099511628211u;
        return h ^ (h >> 29);
}

static void reindex(struct build *b) {
        b->n_index = b->n_index ? b->n_index * 2 : 64;
        b->index = t_array(b->c, b->n_index, sizeof(*b->index));
        for (uint32_t s = 0; s < b->d.n_state; s++) {
                size_t i = hash_key(b->key + b->key_at[s], b->key_at[s + 1] - b->key_at[s]) & (b->n_index - 1);
                while (b->index[i])
                        i = (i + 1) & (b->n_index - 1);
                b->index[i] = s + 1;
        }
}

static uint32_t state_of(struct build *b, const uint32_t *key, size_t n, int32_t label) {
        size_t i;

        if ((b->d.n_state + 1) * 2 > b->n_index)
                reindex(b);
        for (i = hash_key(key, n) & (b->n_index - 1); b->index[i]; i = (i + 1) & (b->n_index - 1)) {
                uint32_t s = b->index[i] - 1;
                if (b->key_at[s + 1] - b->key_at[s] == n && memcmp(b->key + b->key_at[s], key, n * sizeof(*key)) == 0)
                        return s;
        }
        if (b->d.n_state >= MAX_STATES)
                t_fail(b->c, "the strings it allows need an automaton of more than %d states", MAX_STATES);
        b->d.state = t_grow(b->c, b->d.state, b->d.n_state, &b->cap, b->d.n_state + 1, sizeof(*b->d.state));
        b->key_at = t_grow(b->c, b->key_at, b->key_at ? b->d.n_state + 1 : 0, &b->cap_at, b->d.n_state + 2, sizeof(*b->key_at));
        b->key = t_grow(b->c, b->key, b->n_key, &b->cap_key, b->n_key + n, sizeof(*b->key));
        memcpy(b->key + b->n_key, key, n * sizeof(*key));
        b->key_at[b->d.n_state] = b->n_key;
        b->n_key += n;
        b->key_at[b->d.n_state + 1] = b->n_key;
        b->d.state[b->d.n_state] = (struct dfa_state){ .label = label };
        b->index[i] = b->d.n_state + 1;
        return b->d.n_state++;
}

static void edge_add(struct build *b, struct dfa_edge **e, size_t *n, size_t *cap, uint32_t lo, uint32_t hi, uint32_t to) {
        if (*n && (*e)[*n - 1].to == to && (*e)[*n - 1].hi + 1 == lo) {
                (*e)[*n - 1].hi = hi;
                return;
        }
        if (++b->n_edges > MAX_EDGES)
                t_fail(b->c, "the strings it allows need an automaton of more than %d edges", MAX_EDGES);
        *e = t_grow(b->c, *e, *n, cap, *n + 1, sizeof(**e));
        (*e)[(*n)++] = (struct dfa_edge){ lo, hi, to };
}

/* Drops states that lead nowhere; the rest keeps its order. */
static const struct dfa *trimmed(struct t_ctx *c, const struct dfa *in) {
        bool *live = t_alloc(c, in->n_state + 1), again = true;
        uint32_t *to = t_array(c, in->n_state + 1, sizeof(*to)), n = 0;
        struct dfa *d = t_alloc(c, sizeof(*d));

        for (uint32_t s = 0; s < in->n_state; s++)
                live[s] = in->state[s].label >= 0;
        while (again) {
                again = false;
                for (uint32_t s = in->n_state; s-- > 0;)
                        for (uint32_t k = 0; k < in->state[s].n_edge && !live[s]; k++)
                                if (live[in->state[s].edge[k].to])
                                        live[s] = again = true;
        }
        if (in->n_state == 0 || !live[0])
                return d;
        for (uint32_t s = 0; s < in->n_state; s++)
                to[s] = live[s] ? n++ : DFA_DEAD;
        d->state = t_array(c, n, sizeof(*d->state));
        d->n_state = n;
        for (uint32_t s = 0; s < in->n_state; s++) {
                struct dfa_state *x;
                if (!live[s])
                        continue;
                x = &d->state[to[s]];
                x->label = in->state[s].label;
                x->edge = in->state[s].n_edge ? t_array(c, in->state[s].n_edge, sizeof(*x->edge)) : NULL;
                for (uint32_t k = 0; k < in->state[s].n_edge; k++) {
                        struct dfa_edge e = in->state[s].edge[k];
                        if (!live[e.to])
                                continue;
                        e.to = to[e.to];
                        x->edge[x->n_edge++] = e;
                }
        }
        d->any = n == 1 && d->state[0].label >= 0 && d->state[0].n_edge == 1 && d->state[0].edge[0].lo == 0 &&
                 d->state[0].edge[0].hi == DFA_MAX_CP;
        return d;
}

/* ---- subset construction ---- */

struct subset { uint32_t *s; size_t n; uint32_t *mark; uint32_t stamp; };

static void close_over(const struct nfa *n, struct subset *set, bool bol, bool eol) {
        for (size_t i = 0; i < set->n; i++)
                for (uint32_t e = n->first[set->s[i]]; e; e = n->edge[e - 1].next) {
                        const struct nfa_edge *x = &n->edge[e - 1];
                        if (x->kind == NFA_SET || (x->kind == NFA_BOL && !bol) || (x->kind == NFA_EOL && !eol))
                                continue;
                        if (set->mark[x->to] == set->stamp)
                                continue;
                        set->mark[x->to] = set->stamp;
                        set->s[set->n++] = x->to;
                }
}

static int by_u32(const void *a, const void *b) {
        const uint32_t *x = a, *y = b;
        return (*x > *y) - (*x < *y);
}

static int32_t label_of(const struct nfa *n, const struct subset *set, struct subset *tmp) {
        int32_t best = -1;

        tmp->stamp++;
        tmp->n = 0;
        for (size_t i = 0; i < set->n; i++) {
                tmp->mark[set->s[i]] = tmp->stamp;
                tmp->s[tmp->n++] = set->s[i];
        }
        close_over(n, tmp, false, true); /* what the end of the text allows */
        for (size_t i = 0; i < tmp->n; i++)
                if (n->label[tmp->s[i]] >= 0 && (best < 0 || n->label[tmp->s[i]] < best))
                        best = n->label[tmp->s[i]];
        return best;
}

static struct subset subset_new(struct t_ctx *c, size_t n) {
        return (struct subset){ .s = t_array(c, n + 1, sizeof(uint32_t)), .mark = t_array(c, n + 1, sizeof(uint32_t)) };
}

const struct dfa *dfa_from_nfa(struct nfa *n) {
        struct t_ctx *c = n->c;
        struct build b = { .c = c };
        struct subset set = subset_new(c, n->n_state), tmp = subset_new(c, n->n_state);
        uint32_t *cut = NULL;
        size_t cap_cut = 0;

        set.stamp = 1;
        set.s[set.n++] = 0;
        set.mark[0] = 1;
        close_over(n, &set, true, false);
        /* the start may also end at once: "^$" needs both marks in one place */
        tmp.stamp++;
        tmp.n = 0;
        for (size_t i = 0; i < set.n; i++) {
                tmp.mark[set.s[i]] = tmp.stamp;
                tmp.s[tmp.n++] = set.s[i];
        }
        close_over(n, &tmp, true, true);
        int32_t start = -1;
        for (size_t i = 0; i < tmp.n; i++)
                if (n->label[tmp.s[i]] >= 0 && (start < 0 || n->label[tmp.s[i]] < start))
                        start = n->label[tmp.s[i]];
        qsort(set.s, set.n, sizeof(*set.s), by_u32);
        state_of(&b, set.s, set.n, start);
        /* a state reached later by the same set is not at the beginning: give the start a key of its own */
        if (b.n_key)
                b.key[0] |= 0x80000000u;
        reindex(&b);
        for (uint32_t s = 0; s < b.d.n_state; s++) {
                size_t n_cut = 0, from = b.key_at[s], n_from = b.key_at[s + 1] - from;
                struct dfa_edge *edges = NULL;
                size_t n_edges = 0, cap_edges = 0;

                /* the places where the set of reachable states changes */
                for (size_t i = 0; i < n_from; i++)
                        for (uint32_t e = n->first[b.key[from + i] & 0x7fffffffu]; e; e = n->edge[e - 1].next) {
                                const struct nfa_set *x = n->edge[e - 1].set;
                                if (n->edge[e - 1].kind != NFA_SET)
                                        continue;
                                cut = t_grow(c, cut, n_cut, &cap_cut, n_cut + x->n * 2, sizeof(*cut));
                                for (size_t k = 0; k < x->n; k++) {
                                        cut[n_cut++] = x->r[k].lo;
                                        cut[n_cut++] = x->r[k].hi + 1;
                                }
                        }
                if (n_cut)
                        qsort(cut, n_cut, sizeof(*cut), by_u32);
                for (size_t k = 0; k + 1 < n_cut; k++) {
                        uint32_t lo = cut[k], hi = cut[k + 1] - 1;
                        if (cut[k] == cut[k + 1])
                                continue;
                        set.stamp++;
                        set.n = 0;
                        for (size_t i = 0; i < n_from; i++)
                                for (uint32_t e = n->first[b.key[from + i] & 0x7fffffffu]; e; e = n->edge[e - 1].next) {
                                        const struct nfa_edge *x = &n->edge[e - 1];
                                        if (x->kind != NFA_SET || set.mark[x->to] == set.stamp)
                                                continue;
                                        for (size_t q = 0; q < x->set->n; q++)
                                                if (x->set->r[q].lo <= lo && lo <= x->set->r[q].hi) {
                                                        set.mark[x->to] = set.stamp;
                                                        set.s[set.n++] = x->to;
                                                        break;
                                                }
                                }
                        if (set.n == 0)
                                continue;
                        close_over(n, &set, false, false);
                        qsort(set.s, set.n, sizeof(*set.s), by_u32);
                        edge_add(&b, &edges, &n_edges, &cap_edges, lo, hi,
                                 state_of(&b, set.s, set.n, label_of(n, &set, &tmp)));
                }
                b.d.state[s].edge = edges;
                b.d.state[s].n_edge = (uint32_t)n_edges;
        }
        return trimmed(c, &b.d);
}

const struct dfa *dfa_any(struct t_ctx *c) {
        struct dfa *d = t_alloc(c, sizeof(*d));

        d->state = t_alloc(c, sizeof(*d->state));
        d->state[0].edge = t_alloc(c, sizeof(struct dfa_edge));
        d->state[0].edge[0] = (struct dfa_edge){ 0, DFA_MAX_CP, 0 };
        d->state[0].n_edge = 1;
        d->n_state = 1;
        d->any = true;
        return d;
}

const struct dfa *dfa_literals(struct t_ctx *c, const struct dfa_text *s, size_t n, bool labels) {
        struct nfa a;
        uint32_t start;

        nfa_init(&a, c);
        start = nfa_state(&a);
        for (size_t i = 0; i < n; i++) {
                uint32_t at = start;
                for (size_t k = 0; k < s[i].n;) {
                        struct nfa_set *set = t_alloc(c, sizeof(*set));
                        utf8proc_int32_t cp;
                        utf8proc_ssize_t len = utf8proc_iterate((const uint8_t *)s[i].p + k, (utf8proc_ssize_t)(s[i].n - k), &cp);
                        uint32_t to = nfa_state(&a);
                        if (len <= 0)
                                t_fail(c, "a string is not valid UTF-8");
                        nfa_set_add(c, set, (uint32_t)cp, (uint32_t)cp);
                        nfa_add(&a, at, NFA_SET, set, to);
                        at = to;
                        k += (size_t)len;
                }
                if (a.label[at] < 0)
                        a.label[at] = labels ? (int32_t)i : 0;
        }
        return dfa_from_nfa(&a);
}

/* ---- products ---- */

enum { MEET, MINUS, JOIN };

static int32_t product_label(int how, int32_t a, int32_t b, int32_t b_label) {
        switch (how) {
        case MEET: return a >= 0 && b >= 0 ? a : -1;
        case MINUS: return b >= 0 ? -1 : a;
        default: return a >= 0 ? a : b >= 0 ? b_label : -1;
        }
}

static const struct dfa *product(struct t_ctx *c, const struct dfa *a, const struct dfa *b, int how, int32_t b_label) {
        struct build out = { .c = c };
        uint32_t key[2] = { a->n_state ? 0 : DFA_DEAD, b->n_state ? 0 : DFA_DEAD };

#define LABEL(d, s) ((s) == DFA_DEAD ? -1 : (d)->state[s].label)
        state_of(&out, key, 2, product_label(how, LABEL(a, key[0]), LABEL(b, key[1]), b_label));
        for (uint32_t s = 0; s < out.d.n_state; s++) {
                static const struct dfa_state none;
                uint32_t pa = out.key[out.key_at[s]], pb = out.key[out.key_at[s] + 1], ia = 0, ib = 0;
                const struct dfa_state *sa = pa == DFA_DEAD ? &none : &a->state[pa], *sb = pb == DFA_DEAD ? &none : &b->state[pb];
                struct dfa_edge *edges = NULL;
                size_t n = 0, cap = 0;

                for (uint32_t at = 0; at <= DFA_MAX_CP && (ia < sa->n_edge || ib < sb->n_edge);) {
                        uint32_t ta = DFA_DEAD, tb = DFA_DEAD, end = DFA_MAX_CP;
                        while (ia < sa->n_edge && sa->edge[ia].hi < at)
                                ia++;
                        while (ib < sb->n_edge && sb->edge[ib].hi < at)
                                ib++;
                        if (ia < sa->n_edge) {
                                bool in = sa->edge[ia].lo <= at;
                                ta = in ? sa->edge[ia].to : DFA_DEAD;
                                end = MIN(end, in ? sa->edge[ia].hi : sa->edge[ia].lo - 1);
                        }
                        if (ib < sb->n_edge) {
                                bool in = sb->edge[ib].lo <= at;
                                tb = in ? sb->edge[ib].to : DFA_DEAD;
                                end = MIN(end, in ? sb->edge[ib].hi : sb->edge[ib].lo - 1);
                        }
                        if (how == MEET ? ta != DFA_DEAD && tb != DFA_DEAD : how == MINUS ? ta != DFA_DEAD : ta != DFA_DEAD || tb != DFA_DEAD) {
                                uint32_t k[2] = { ta, tb };
                                edge_add(&out, &edges, &n, &cap, at, end,
                                         state_of(&out, k, 2, product_label(how, LABEL(a, ta), LABEL(b, tb), b_label)));
                        }
                        at = end + 1;
                }
                out.d.state[s].edge = edges;
                out.d.state[s].n_edge = (uint32_t)n;
        }
#undef LABEL
        return trimmed(c, &out.d);
}

const struct dfa *dfa_meet(struct t_ctx *c, const struct dfa *a, const struct dfa *b) {
        return a->any && a->state[0].label == 0 ? b : b->any ? a : product(c, a, b, MEET, 0);
}

const struct dfa *dfa_minus(struct t_ctx *c, const struct dfa *a, const struct dfa *b) {
        return b->n_state == 0 ? a : product(c, a, b, MINUS, 0);
}

const struct dfa *dfa_join(struct t_ctx *c, const struct dfa *a, const struct dfa *b, int32_t b_label) {
        return product(c, a, b, JOIN, b_label);
}

const struct dfa *dfa_length(struct t_ctx *c, const struct dfa *d, size_t min, size_t max) {
        struct build out = { .c = c };
        size_t cap_len = max == SIZE_MAX ? min : max; /* counts past it are alike */
        uint32_t key[2] = { 0, 0 };

        if (d->n_state == 0 || min > max)
                return t_alloc(c, sizeof(struct dfa));
        if (cap_len > UINT32_MAX / 2)
                t_fail(c, "a length of %zu is out of range", cap_len);
        state_of(&out, key, 2, min == 0 ? d->state[0].label : -1);
        for (uint32_t s = 0; s < out.d.n_state; s++) {
                uint32_t q = out.key[out.key_at[s]], len = out.key[out.key_at[s] + 1], next = len < cap_len ? len + 1 : len;
                struct dfa_edge *edges = NULL;
                size_t n = 0, cap = 0;

                for (uint32_t k = 0; k < d->state[q].n_edge && (max == SIZE_MAX || len < max); k++) {
                        const struct dfa_edge *e = &d->state[q].edge[k];
                        uint32_t to[2] = { e->to, next };
                        edge_add(&out, &edges, &n, &cap, e->lo, e->hi,
                                 state_of(&out, to, 2, next >= min ? d->state[e->to].label : -1));
                }
                out.d.state[s].edge = edges;
                out.d.state[s].n_edge = (uint32_t)n;
        }
        return trimmed(c, &out.d);
}

bool dfa_accepts(const struct dfa *d, const char *p, size_t n) {
        uint32_t s = 0;

        if (d->n_state == 0)
                return false;
        for (size_t k = 0; k < n;) {
                utf8proc_int32_t cp;
                utf8proc_ssize_t len = utf8proc_iterate((const uint8_t *)p + k, (utf8proc_ssize_t)(n - k), &cp);
                if (len <= 0 || (s = dfa_next(d, s, (uint32_t)cp)) == DFA_DEAD)
                        return false;
                k += (size_t)len;
        }
        return d->state[s].label >= 0;
}
