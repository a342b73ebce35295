/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes still have to come before the output may end: for every place
 * of the machine an upper bound that a way of that length really keeps, and
 * that some next byte makes smaller. With it a generation that runs out of
 * tokens is led to a complete text (a byte is at least one token's worth, so
 * bytes bound tokens wherever the vocabulary has the single bytes).
 *
 * A value's least size is computed once per node of the schema, a string's per
 * state of its automaton, a key's per state and label, a rule's per state of
 * the grammar. A place then adds its own rest to its parent's, which is known
 * because parents are interned first. Numbers under bounds are looked at when
 * asked, by trying digits.
 *
 * Where a table would be too large (MAX_TABLE) the bound is NEED_FAR; then the
 * generation is not led, and may end at its limit as a prefix.
 */
#include <string.h>

#include "engine/text/gram_machine.h"

#define MAX_TABLE ((size_t)1 << 20)
#define MAX_ROUNDS 1000

uint32_t gn_add(uint32_t a, uint32_t b) {
        return MIN((uint64_t)a + b, (uint64_t)NEED_FAR);
}

static uint32_t times(uint32_t a, size_t n) {
        return a && n > NEED_FAR / a ? NEED_FAR : (uint32_t)(a * n);
}

/* ---- characters ---- */

static bool meets(uint32_t lo, uint32_t hi, uint32_t a, uint32_t b) {
        return lo <= b && hi >= a;
}

/* The fewest bytes a character of the range takes in a JSON string. */
static uint32_t json_bytes(uint32_t lo, uint32_t hi) {
        if (meets(lo, hi, 0x20, 0x21) || meets(lo, hi, 0x23, 0x5b) || meets(lo, hi, 0x5d, 0x7f))
                return 1;
        if (meets(lo, hi, '"', '"') || meets(lo, hi, '\\', '\\') || meets(lo, hi, '\b', '\n') || meets(lo, hi, '\f', '\r') ||
            meets(lo, hi, 0x80, 0x7ff))
                return 2;
        return meets(lo, hi, 0x800, 0xd7ff) || meets(lo, hi, 0xe000, 0xffff) ? 3 : meets(lo, hi, 0x10000, DFA_MAX_CP) ? 4 : 6;
}

static uint32_t utf8_bytes(uint32_t cp) {
        return cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
}

/* ---- automata ---- */

/* Bytes to an accepting state with this label (any if negative), per state. */
static void distances(const struct dfa *d, int32_t label, uint32_t *ret, size_t stride) {
        bool again = true;

        for (uint32_t s = 0; s < d->n_state; s++)
                ret[s * stride] = d->state[s].label >= 0 && (label < 0 || d->state[s].label == label) ? 0 : NEED_FAR;
        for (unsigned round = 0; again && round < MAX_ROUNDS; round++) {
                again = false;
                for (uint32_t s = d->n_state; s-- > 0;)
                        for (uint32_t k = 0; k < d->state[s].n_edge; k++) {
                                const struct dfa_edge *e = &d->state[s].edge[k];
                                uint32_t v = gn_add(ret[e->to * stride], json_bytes(e->lo, e->hi));
                                if (v < ret[s * stride]) {
                                        ret[s * stride] = v;
                                        again = true;
                                }
                        }
        }
}

static const uint32_t *dfa_need(struct t_ctx *c, const struct dfa *d) {
        if (!d->need && d->n_state) { /* the last touch of its making: nobody has looked at it yet */
                uint32_t *need = t_array(c, d->n_state, sizeof(*need));
                distances(d, -1, need, 1);
                ((struct dfa *)d)->need = need;
        }
        return d->need;
}

/* ---- least sizes ---- */

static uint32_t string_least(struct t_ctx *c, const struct gs_string *s) {
        if (s->dfa->any)
                return gn_add(2, (uint32_t)MIN(s->min, (size_t)NEED_FAR));
        return gn_add(2, dfa_need(c, s->dfa)[0]);
}

static uint32_t key_bytes(const char *p, size_t n) {
        uint32_t bytes = 3; /* quotes and colon */

        for (size_t i = 0; i < n; i++)
                bytes += (uint8_t)p[i] < 0x80 ? json_bytes((uint8_t)p[i], (uint8_t)p[i]) : 1;
        return bytes;
}

static uint32_t item_least(const struct gs *g, const struct gs_array *a, size_t i) {
        uint32_t most = 0;

        if (a->unique) { /* any of the values may be the one left; a text may have to be made different */
                for (size_t k = 0; k < a->n_value; k++)
                        most = MAX(most, g->node[a->value[k]]->least);
                return gn_add(most, a->unique == GS_UNIQUE_TEXT ? 2 : 0);
        }
        return g->node[i < a->n_prefix ? a->prefix[i] : a->items]->least;
}

/* Items from 'from' up to the minimum, each with a comma. */
static uint32_t items_least(const struct gs *g, const struct gs_array *a, size_t from) {
        uint32_t n = 0;
        size_t i = from;

        for (; i < a->min && i < a->n_prefix; i++)
                n = gn_add(n, gn_add(item_least(g, a, i), 1));
        if (i < a->min)
                n = gn_add(n, times(gn_add(item_least(g, a, i), 1), a->min - i));
        return n;
}

static uint32_t class_least(const struct gs *g, const struct gs_object *o, size_t i) {
        /* two more characters keep some thousand names apart */
        return gn_add(gn_add(o->cls[i].keys->need ? o->cls[i].keys->need[0] : 0, 5), g->node[o->cls[i].node]->least);
}

/* What one more key may cost that nobody demands by name. */
static uint32_t fill_cost(const struct gs *g, const struct gs_object *o) {
        uint32_t most = 0;

        for (size_t i = 0; i < o->n_prop; i++)
                if (!o->prop[i].required && !o->prop[i].never)
                        most = MAX(most, gn_add(key_bytes(o->prop[i].name, o->prop[i].n), g->node[o->prop[i].node]->least));
        for (size_t i = 0; i < o->n_cls; i++)
                most = MAX(most, class_least(g, o, i));
        return most;
}

static uint32_t object_least(const struct gs *g, const struct gs_object *o) {
        size_t n = o->n_required, fill = o->min > n ? o->min - n : 0;
        uint32_t bytes = 0;

        for (size_t i = 0; i < o->n_prop; i++)
                if (o->prop[i].required)
                        bytes = gn_add(bytes, gn_add(key_bytes(o->prop[i].name, o->prop[i].n) + 1, g->node[o->prop[i].node]->least));
        if (fill)
                bytes = gn_add(bytes, times(gn_add(fill_cost(g, o), 1), fill));
        return n + fill ? gn_add(bytes, 1) : 2; /* braces, and no comma before the first */
}

/* By place and count, as gs_array_table() does it: items with a comma each, and the bracket. */
static uint32_t contains_least(const struct gs *g, const struct gs_array *a) {
        for (size_t p = a->n_place; p-- > 0;)
                for (size_t c = a->n_count; c-- > 0;) {
                        uint32_t *at = &a->need[p * a->n_count + c];
                        size_t more = a->c_max == SIZE_MAX ? MIN(c + 1, a->n_count - 1) : c + 1, next = MIN(p + 1, a->n_place - 1);
                        *at = NEED_FAR;
                        if (p >= a->min && c >= a->c_min && c <= a->c_max) {
                                *at = 1;
                        } else if (a->max == SIZE_MAX || p < a->max) {
                                if (more < a->n_count && (more != c || next != p))
                                        *at = gn_add(g->node[a->hit[gs_item(a, p)]]->least + 1, a->need[next * a->n_count + more]);
                                if (next != p)
                                        *at = MIN(*at, gn_add(g->node[a->miss[gs_item(a, p)]]->least + 1, a->need[next * a->n_count + c]));
                        }
                }
        return a->need[0] > 1 ? a->need[0] : 2; /* no comma before the first, but the other bracket */
}

static uint32_t array_least(const struct gs *g, const struct gs_array *a) {
        if (a->has_contains)
                return contains_least(g, a);
        return a->min ? gn_add(items_least(g, a, 0), 1) : 2;
}

static void labels_need(struct gs *g, struct gs_object *o) {
        size_t n = (size_t)o->keys->n_state * o->n_label;

        o->fill = fill_cost(g, o);
        for (size_t i = 0; i < o->n_prop; i++)
                o->prop[i].cost = key_bytes(o->prop[i].name, o->prop[i].n);
        if (n == 0 || n > MAX_TABLE)
                return;
        o->dist = t_array(g->c, n, sizeof(*o->dist));
        for (size_t i = 0; i < o->n_label; i++)
                distances(o->keys, (int32_t)i, o->dist + i, o->n_label);
}

void gn_schema(struct gs *g) {
        uint32_t *base = t_array(g->c, g->n_node, sizeof(*base));
        bool again = true;

        for (size_t i = 0; i < g->n_node; i++) {
                const struct gs_alts *a = &g->node[i]->alts;
                uint32_t least = a->words & (GS_NULL | GS_TRUE) ? 4 : a->words ? 5 : NEED_FAR;
                for (size_t k = 0; k < a->n_str; k++)
                        least = MIN(least, string_least(g->c, a->str[k]));
                for (size_t k = 0; k < a->n_num; k++)
                        least = MIN(least, gs_number_need(a->num[k], "", 0));
                for (size_t k = 0; k < a->n_arr; k++)
                        if (a->arr[k]->has_contains && !a->arr[k]->need)
                                a->arr[k]->need = t_array(g->c, a->arr[k]->n_place * a->arr[k]->n_count, sizeof(uint32_t));
                for (size_t k = 0; k < a->n_obj; k++)
                        for (size_t q = 0; q < a->obj[k]->n_cls; q++)
                                (void)dfa_need(g->c, a->obj[k]->cls[q].keys);
                base[i] = least;
                g->node[i]->least = NEED_FAR;
        }
        for (unsigned round = 0; again && round < MAX_ROUNDS; round++) {
                again = false;
                for (size_t i = g->n_node; i-- > 0;) {
                        const struct gs_alts *a = &g->node[i]->alts;
                        uint32_t least = base[i];
                        for (size_t k = 0; k < a->n_obj; k++)
                                least = MIN(least, object_least(g, a->obj[k]));
                        for (size_t k = 0; k < a->n_arr; k++)
                                least = MIN(least, array_least(g, a->arr[k]));
                        if (least < g->node[i]->least) {
                                g->node[i]->least = least;
                                again = true;
                        }
                }
        }
        for (size_t i = 0; i < g->n_node; i++)
                for (size_t k = 0; k < g->node[i]->alts.n_obj; k++)
                        if (!g->node[i]->alts.obj[k]->dist)
                                labels_need(g, g->node[i]->alts.obj[k]);
}

/* Every character that a JSON string may hold as it is: those of plain tokens. */
static bool covers_plain(const struct nfa_set *s) {
        static const struct nfa_range plain[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0xd7ff }, { 0xe000, DFA_MAX_CP } };

        for (size_t i = 0; i < ELEMENTSOF(plain); i++) {
                uint32_t at = plain[i].lo;
                for (size_t k = 0; k < s->n && at <= plain[i].hi; k++) /* sorted */
                        if (s->r[k].lo <= at && s->r[k].hi >= at)
                                at = s->r[k].hi + 1;
                if (at <= plain[i].hi)
                        return false;
        }
        return true;
}

/* Without a character, in a few steps: *left of them. */
static bool leads_to(const struct nfa *a, uint32_t from, uint32_t to, unsigned *left) {
        if (from == to)
                return true;
        for (uint32_t e = a->first[from]; e && *left; e = a->edge[e - 1].next)
                if (a->edge[e - 1].kind == NFA_EPS && (*left)-- && leads_to(a, a->edge[e - 1].to, to, left))
                        return true;
        return false;
}

void gn_rules(struct grammar *g) {
        const struct nfa *a = &g->nfa;
        bool again = true;

        g->rest = t_array(&g->c, a->n_state, sizeof(*g->rest));
        g->loops = t_array(&g->c, a->n_state, sizeof(*g->loops));
        for (uint32_t s = 0; s < a->n_state; s++)
                for (uint32_t e = a->first[s]; e; e = a->edge[e - 1].next)
                        g->loops[s] = g->loops[s] || (a->edge[e - 1].kind == NFA_SET && covers_plain(a->edge[e - 1].set) && leads_to(a, a->edge[e - 1].to, s, &(unsigned){ 16 }));
        for (size_t s = 0; s < a->n_state; s++)
                g->rest[s] = a->label[s] >= 0 ? 0 : NEED_FAR;
        for (unsigned round = 0; again && round < MAX_ROUNDS; round++) {
                again = false;
                for (size_t s = a->n_state; s-- > 0;)
                        for (uint32_t e = a->first[s]; e; e = a->edge[e - 1].next) {
                                const struct nfa_edge *x = &a->edge[e - 1];
                                uint32_t step = x->kind == NFA_CALL ? g->rest[g->rule_start[x->rule]]
                                              : x->kind == NFA_SET && x->set->n ? utf8_bytes(x->set->r[0].lo) : 0;
                                uint32_t v = gn_add(g->rest[x->to], step);
                                if (v < g->rest[s]) {
                                        g->rest[s] = v;
                                        again = true;
                                }
                        }
        }
}

/* ---- a place ---- */

static uint32_t prop_cost(const struct gs *g, const struct gs_object *o, size_t i) {
        return gn_add(o->prop[i].cost + 1, g->node[o->prop[i].node]->least);
}

/* What must follow once 'seen' and the key with this label (SIZE_MAX: none) are there: ", key: value" each, and the brace. */
static uint32_t keys_rest(const struct gs *g, const struct gs_object *o, const struct gm_seen *s, size_t label) {
        size_t count = s->count + (label != SIZE_MAX), left = s->required_left;
        uint32_t bytes = 1;

        for (size_t i = 0; left && i < o->n_prop; i++)
                if (o->prop[i].required && i != label && !(s->bits[i / 64] >> (i % 64) & 1))
                        bytes = gn_add(bytes, prop_cost(g, o, i));
        if (label < o->n_prop && o->prop[label].required)
                left--;
        return count + left < o->min ? gn_add(bytes, times(gn_add(o->fill, 1), o->min - count - left)) : bytes;
}

/* From a state of the keys' automaton, within the key: its rest, the value and what follows. */
static uint32_t key_rest(const struct gs *g, const struct gs_object *o, const struct gm_seen *s, uint32_t q) {
        uint32_t best = NEED_FAR;

        if (!o->dist)
                return NEED_FAR;
        for (size_t w = 0; w < o->words; w++)
                for (uint64_t bits = o->reach[q * o->words + w]; bits; bits &= bits - 1) {
                        size_t label = w * 64 + (size_t)__builtin_ctzll(bits);
                        uint32_t node = label < o->n_prop ? o->prop[label].node : o->cls[label - o->n_prop].node, n;
                        if (!gm_label_ok(o, s, label))
                                continue;
                        n = gn_add(o->dist[q * o->n_label + label] + 2, g->node[node]->least);
                        if (n < best)
                                best = MIN(best, gn_add(n, keys_rest(g, o, s, label)));
                }
        return best;
}

static uint32_t object_rest(const struct gm *m, const struct gm_node *x) {
        const struct gs *g = &m->g->schema;
        const struct gs_object *o = x->ptr;
        const struct gm_seen *s = gm_blob_data(m, x->data);
        uint32_t node, rest;

        switch (x->phase) {
        case O_KEY:
                return gn_add(1, key_rest(g, o, s, 0));
        case O_COLON:
                node = x->q < o->n_prop ? o->prop[x->q].node : o->cls[x->q - o->n_prop].node;
                return gn_add(gn_add(1, g->node[node]->least), keys_rest(g, o, s, SIZE_MAX));
        default:
                rest = keys_rest(g, o, s, SIZE_MAX);
                return x->phase == O_FIRST && rest > 1 ? rest - 1 : rest; /* no comma before the first */
        }
}

/* Within a character: its shortest end, and on from where it leads. */
static uint32_t within_char(uint32_t sub, const struct dfa_state *s, uint32_t (*rest)(void *ud, uint32_t to), void *ud) {
        uint32_t best = NEED_FAR, bytes[CH_OUTCOMES];
        struct ch_range r[CH_OUTCOMES];
        size_t n = ch_outcomes(sub, r, bytes);

        for (uint32_t k = 0; k < s->n_edge; k++) {
                uint32_t least = NEED_FAR;
                for (size_t i = 0; i < n; i++)
                        if (meets(s->edge[k].lo, s->edge[k].hi, r[i].lo, r[i].hi))
                                least = MIN(least, bytes[i]);
                if (least < best)
                        best = MIN(best, gn_add(least, rest(ud, s->edge[k].to)));
        }
        return best;
}

struct key { const struct gs *g; const struct gs_object *o; const struct gm_seen *seen; };

static uint32_t after_key_char(void *ud, uint32_t to) {
        const struct key *k = ud;
        return key_rest(k->g, k->o, k->seen, to);
}

static uint32_t within_key(const struct gm *m, const struct gm_node *x) {
        struct key k = { &m->g->schema, x->ptr, gm_blob_data(m, x->data) };

        return x->sub ? within_char(x->sub, &k.o->keys->state[x->q], after_key_char, &k) : key_rest(k.g, k.o, k.seen, x->q);
}

static uint32_t after_string_char(void *ud, uint32_t to) {
        return ((const uint32_t *)ud)[to];
}

static uint32_t within_string(const struct gm *m, const struct gm_node *x) {
        const struct gs_string *s = x->ptr;
        struct ch_range r[CH_OUTCOMES];
        uint32_t bytes[CH_OUTCOMES] = { 0 };

        if (s->hashed && x->sub == 0 && gm_item_used(m, x))
                return gn_add(s->dfa->any && x->data < s->min ? (uint32_t)MIN(s->min - x->data, (size_t)NEED_FAR) : 0, 3);
        if (!s->dfa->any)
                return gn_add(x->sub ? within_char(x->sub, &s->dfa->state[x->q], after_string_char, (void *)s->dfa->need) : s->dfa->need[x->q], 1);
        for (size_t i = ch_outcomes(x->sub, r, bytes); i-- > 1;)
                bytes[0] = MIN(bytes[0], bytes[i]);
        /* the character begun counts when it is whole */
        return gn_add(bytes[0], (x->data < s->min ? (uint32_t)MIN(s->min - x->data - (x->sub != 0), (size_t)NEED_FAR) : 0) + 1);
}

static uint32_t within_rule(const struct gm *m, const struct gm_node *x) {
        const struct nfa *a = &m->g->nfa;
        uint32_t best = NEED_FAR, bytes[CH_OUTCOMES];
        struct ch_range r[CH_OUTCOMES];
        size_t n = ch_outcomes(x->sub, r, bytes);

        if (x->sub == 0)
                return m->g->rest[x->q];
        for (uint32_t e = a->first[x->q]; e; e = a->edge[e - 1].next)
                for (size_t i = 0; a->edge[e - 1].kind == NFA_SET && i < n; i++)
                        for (size_t k = 0; k < a->edge[e - 1].set->n; k++)
                                if (meets(r[i].lo, r[i].hi, a->edge[e - 1].set->r[k].lo, a->edge[e - 1].set->r[k].hi))
                                        best = MIN(best, gn_add(bytes[i], m->g->rest[a->edge[e - 1].to]));
        return best;
}

uint32_t gn_place(const struct gm *m, const struct gm_node *x) {
        const struct gs_number *num = x->ptr;
        const struct gs_array *a = x->ptr;
        uint32_t own = 0, up = x->parent == GM_NONE ? 0 : m->need[x->parent];

        switch ((enum gm_kind)x->kind) {
        case GM_DONE: return 0;
        case GM_VALUE: own = m->g->schema.node[x->q]->least; break;
        case GM_STR: own = within_string(m, x); break;
        case GM_NUM:
                own = num->free ? gs_free_need(x->q) : gs_number_need(num, gm_blob_data(m, x->data), m->blob[x->data].len);
                break;
        case GM_WORD: own = (uint32_t)strlen((const char *)x->ptr + x->q); break;
        case GM_OBJ: own = object_rest(m, x); break;
        case GM_KEY: own = within_key(m, x); break;
        case GM_ARR:
                own = a->has_contains ? a->need[MIN(x->q, a->n_place - 1) * a->n_count + x->data]
                                      : gn_add(items_least(&m->g->schema, a, x->phase == A_FIRST ? 0 : x->q), 1);
                own -= x->phase == A_FIRST && own > 1; /* no comma before the first */
                break;
        case GM_NFA: own = within_rule(m, x); break;
        }
        return gn_add(own, up);
}

uint32_t gn_set(struct gm *m, const uint32_t *id, size_t n) {
        uint32_t best = NEED_FAR;

        for (size_t i = 0; i < n; i++) {
                if (m->need[id[i]] == NEED_UNKNOWN) /* a number's */
                        m->need[id[i]] = gn_place(m, &m->node[id[i]]);
                best = MIN(best, m->need[id[i]]);
        }
        return best;
}
