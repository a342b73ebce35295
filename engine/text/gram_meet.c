/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unions, meets and disjointness of schema alternatives. A meet of unions is
 * the union of the pairwise meets; nested values meet as nodes, so that
 * recursive schemas stay finite.
 */
#include <string.h>

#include "engine/text/gram_schema.h"

#define MAX_LOOK 6

static void work(struct gs *g) {
        if (++g->work > GS_MAX_WORK)
                t_fail(g->c, "the schema's combinations are too many to work out");
}

void gs_union(struct gs *g, struct gs_alts *to, const struct gs_alts *from) {
        if (to->any)
                return;
        if (from->any) {
                *to = *from;
                return;
        }
        to->words |= from->words;
        for (size_t i = 0; i < from->n_str; i++)
                GS_PUSH(g, to, str, from->str[i]);
        for (size_t i = 0; i < from->n_num; i++)
                GS_PUSH(g, to, num, from->num[i]);
        for (size_t i = 0; i < from->n_obj; i++)
                GS_PUSH(g, to, obj, from->obj[i]);
        for (size_t i = 0; i < from->n_arr; i++)
                GS_PUSH(g, to, arr, from->arr[i]);
}

static const struct gs_string *meet_string(struct gs *g, const struct gs_string *a, const struct gs_string *b) {
        struct gs_string *s = t_alloc(g->c, sizeof(*s));
        size_t min = MAX(a->min, b->min), max = MIN(a->max, b->max);

        s->dfa = dfa_meet(g->c, a->dfa, b->dfa);
        s->max = SIZE_MAX;
        if (s->dfa->any) {
                s->min = min;
                s->max = max;
        } else if (min > 0 || max != SIZE_MAX) {
                s->dfa = dfa_length(g->c, s->dfa, min, max);
        }
        return s->dfa->n_state && min <= max ? s : NULL;
}

/* What an object says about a key: its property's node, its class's, or none. */
static uint32_t node_for(const struct gs_object *o, const char *name, size_t n, bool *ret_required) {
        *ret_required = false;
        for (size_t i = 0; i < o->n_prop; i++)
                if (o->prop[i].n == n && memcmp(o->prop[i].name, name, n) == 0) {
                        *ret_required = o->prop[i].required;
                        return o->prop[i].node;
                }
        for (size_t i = 0; i < o->n_cls; i++)
                if (dfa_accepts(o->cls[i].keys, name, n))
                        return o->cls[i].node;
        return GS_NONE_NODE;
}

static bool has_prop(const struct gs_object *o, const char *name, size_t n) {
        for (size_t i = 0; i < o->n_prop; i++)
                if (o->prop[i].n == n && memcmp(o->prop[i].name, name, n) == 0)
                        return true;
        return false;
}

static struct gs_object *meet_object(struct gs *g, const struct gs_object *a, const struct gs_object *b) {
        struct gs_object *o = t_alloc(g->c, sizeof(*o));
        size_t cap = 0;

        o->min = MAX(a->min, b->min);
        o->max = MIN(a->max, b->max);
        o->prop = t_array(g->c, a->n_prop + b->n_prop, sizeof(*o->prop));
        for (int side = 0; side < 2; side++) {
                const struct gs_object *x = side ? b : a, *y = side ? a : b;
                for (size_t i = 0; i < x->n_prop; i++) {
                        struct gs_prop p = x->prop[i];
                        bool required;
                        uint32_t other;
                        if (side && has_prop(a, p.name, p.n))
                                continue;
                        work(g);
                        other = node_for(y, p.name, p.n, &required);
                        p.node = gs_meet_node(g, p.node, other);
                        p.required = p.required || required;
                        o->n_required += p.required;
                        o->prop[o->n_prop++] = p;
                }
        }
        for (size_t i = 0; i < a->n_cls; i++)
                for (size_t k = 0; k < b->n_cls; k++) {
                        const struct dfa *keys = dfa_meet(g->c, a->cls[i].keys, b->cls[k].keys);
                        uint32_t node = gs_meet_node(g, a->cls[i].node, b->cls[k].node);
                        work(g);
                        if (keys->n_state == 0 || node == GS_NONE_NODE)
                                continue;
                        o->cls = t_grow(g->c, o->cls, o->n_cls, &cap, o->n_cls + 1, sizeof(*o->cls));
                        o->cls[o->n_cls++] = (struct gs_class){ keys, node };
                }
        return o->min <= o->max && o->n_required <= o->max ? o : NULL;
}

static uint32_t item_node(const struct gs_array *a, size_t i) {
        return i < a->n_prefix ? a->prefix[i] : a->items;
}

static struct gs_array *meet_array(struct gs *g, const struct gs_array *a, const struct gs_array *b) {
        struct gs_array *r = t_alloc(g->c, sizeof(*r));

        r->min = MAX(a->min, b->min);
        r->max = MIN(a->max, b->max);
        r->n_prefix = MAX(a->n_prefix, b->n_prefix);
        r->prefix = t_array(g->c, r->n_prefix, sizeof(*r->prefix));
        for (size_t i = 0; i < r->n_prefix; i++)
                r->prefix[i] = gs_meet_node(g, item_node(a, i), item_node(b, i));
        r->items = gs_meet_node(g, a->items, b->items);
        r->path = (a->has_contains || (a->unique && !b->has_contains) || (!b->has_contains && !b->unique) ? a : b)->path; /* whose keyword it will be about */
        r->unique = a->unique || b->unique ? GS_UNIQUE : GS_REPEAT;
        if (a->has_contains && b->has_contains && a->contains != b->contains)
                t_fail(g->c, "two different contains at once are not supported");
        r->has_contains = a->has_contains || b->has_contains;
        r->contains = a->has_contains ? a->contains : b->contains;
        r->c_min = MAX(a->c_min, b->c_min);
        r->c_max = MIN(a->c_max, b->c_max);
        return r->min <= r->max && r->c_min <= r->c_max && r->c_min <= r->max ? r : NULL;
}

void gs_meet(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, struct gs_alts *ret) {
        struct gs_alts r = { 0 };

        if (a->any || b->any) {
                gs_union(g, &r, a->any ? b : a);
                *ret = r;
                return;
        }
        r.words = a->words & b->words;
        for (size_t i = 0; i < a->n_str; i++)
                for (size_t k = 0; k < b->n_str; k++) {
                        const struct gs_string *s = meet_string(g, a->str[i], b->str[k]);
                        work(g);
                        if (s)
                                GS_PUSH(g, &r, str, s);
                }
        for (size_t i = 0; i < a->n_num; i++)
                for (size_t k = 0; k < b->n_num; k++) {
                        const struct gs_number *n = gs_number_meet(g, a->num[i], b->num[k]);
                        work(g);
                        if (n)
                                GS_PUSH(g, &r, num, n);
                }
        for (size_t i = 0; i < a->n_obj; i++)
                for (size_t k = 0; k < b->n_obj; k++) {
                        struct gs_object *o = meet_object(g, a->obj[i], b->obj[k]);
                        work(g);
                        if (o)
                                GS_PUSH(g, &r, obj, o);
                }
        for (size_t i = 0; i < a->n_arr; i++)
                for (size_t k = 0; k < b->n_arr; k++) {
                        struct gs_array *x = meet_array(g, a->arr[i], b->arr[k]);
                        work(g);
                        if (x)
                                GS_PUSH(g, &r, arr, x);
                }
        *ret = r;
}

/* ---- disjointness: true only if certain ---- */

static bool nodes_disjoint(struct gs *g, uint32_t a, uint32_t b, unsigned depth) {
        if (a == GS_NONE_NODE || b == GS_NONE_NODE)
                return true;
        if (a == b || a == GS_ANY_NODE || b == GS_ANY_NODE || depth > MAX_LOOK)
                return false;
        if (g->node[a]->status == GS_BUSY || g->node[b]->status == GS_BUSY)
                return false;
        return gs_disjoint(g, gs_ensure(g, a), gs_ensure(g, b), depth + 1);
}

static bool objects_disjoint(struct gs *g, const struct gs_object *a, const struct gs_object *b, unsigned depth) {
        if (a->min > b->max || b->min > a->max)
                return true;
        for (int side = 0; side < 2; side++) {
                const struct gs_object *x = side ? b : a, *y = side ? a : b;
                for (size_t i = 0; i < x->n_prop; i++) { /* there in every x, and then with a value no y has */
                        bool required;
                        if (x->prop[i].required &&
                            nodes_disjoint(g, x->prop[i].node, node_for(y, x->prop[i].name, x->prop[i].n, &required), depth))
                                return true;
                }
        }
        return false;
}

static bool arrays_disjoint(struct gs *g, const struct gs_array *a, const struct gs_array *b, unsigned depth) {
        if (a->min > b->max || b->min > a->max)
                return true;
        for (size_t i = 0; i < MIN(MAX(a->min, b->min), (size_t)16); i++)
                if (nodes_disjoint(g, item_node(a, i), item_node(b, i), depth))
                        return true;
        return false;
}

bool gs_disjoint(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, unsigned depth) {
        if (a->words & b->words)
                return false;
        work(g);
        for (size_t i = 0; i < a->n_str; i++)
                for (size_t k = 0; k < b->n_str; k++)
                        if (meet_string(g, a->str[i], b->str[k]))
                                return false;
        for (size_t i = 0; i < a->n_num; i++)
                for (size_t k = 0; k < b->n_num; k++)
                        if (gs_number_meet(g, a->num[i], b->num[k]))
                                return false;
        for (size_t i = 0; i < a->n_obj; i++)
                for (size_t k = 0; k < b->n_obj; k++)
                        if (!objects_disjoint(g, a->obj[i], b->obj[k], depth))
                                return false;
        for (size_t i = 0; i < a->n_arr; i++)
                for (size_t k = 0; k < b->n_arr; k++)
                        if (!arrays_disjoint(g, a->arr[i], b->arr[k], depth))
                                return false;
        return true;
}

/* ---- what no value satisfies goes ---- */

static size_t min_count(const struct gs_object *o) {
        return MAX(o->min, o->n_required);
}

static bool object_possible(const struct gs *g, const struct gs_object *o) {
        size_t possible = 0;
        bool open = false;

        for (size_t i = 0; i < o->n_prop; i++) {
                bool ok = g->node[o->prop[i].node]->nonempty;
                if (o->prop[i].required && !ok)
                        return false;
                possible += ok;
        }
        for (size_t i = 0; i < o->n_cls; i++)
                open = open || g->node[o->cls[i].node]->nonempty;
        return (open || possible >= min_count(o)) && o->n_required <= o->max;
}

static bool possible(const struct gs *g, const struct gs_alts *a) {
        if (a->any || a->words || a->n_str || a->n_num)
                return true;
        for (size_t i = 0; i < a->n_obj; i++)
                if (object_possible(g, a->obj[i]))
                        return true;
        for (size_t i = 0; i < a->n_arr; i++)
                if (gs_array_possible(g, a->arr[i]))
                        return true;
        return false;
}

/* The automaton of an object's keys, labelled, with what each state can still become. */
static void finish_object(struct gs *g, struct gs_object *o) {
        struct dfa_text *t = t_array(g->c, o->n_prop, sizeof(*t));
        bool again = true;

        if (o->keys)
                return;
        for (size_t i = 0; i < o->n_prop; i++)
                t[i] = (struct dfa_text){ o->prop[i].name, o->prop[i].n };
        o->keys = dfa_literals(g->c, t, o->n_prop, true);
        for (size_t i = 0; i < o->n_cls; i++)
                o->keys = dfa_join(g->c, o->keys, o->cls[i].keys, (int32_t)(o->n_prop + i));
        o->n_label = o->n_prop + o->n_cls;
        o->distinct = o->min > 0 && o->n_cls > 0;
        o->words = DIV_ROUND_UP(o->n_label, 64);
        o->reach = t_array(g->c, (size_t)o->keys->n_state * o->words + 1, sizeof(*o->reach));
        for (uint32_t s = 0; s < o->keys->n_state; s++)
                if (o->keys->state[s].label >= 0)
                        o->reach[s * o->words + (size_t)o->keys->state[s].label / 64] |= UINT64_C(1) << (o->keys->state[s].label % 64);
        while (again) {
                again = false;
                for (uint32_t s = o->keys->n_state; s-- > 0;)
                        for (uint32_t k = 0; k < o->keys->state[s].n_edge; k++) {
                                uint32_t to = o->keys->state[s].edge[k].to;
                                for (size_t w = 0; w < o->words; w++) {
                                        uint64_t add = o->reach[to * o->words + w] & ~o->reach[s * o->words + w];
                                        o->reach[s * o->words + w] |= add;
                                        again = again || add;
                                }
                        }
        }
}

/* Keys that no value may follow are like keys that are not allowed. Objects may share a list, so it is made anew. */
static void drop_classes(struct gs *g, struct gs_object *o) {
        struct gs_class *cls = o->n_cls ? t_array(g->c, o->n_cls, sizeof(*cls)) : NULL;
        size_t n = 0;

        for (size_t i = 0; i < o->n_cls; i++)
                if (g->node[o->cls[i].node]->nonempty)
                        cls[n++] = o->cls[i];
        o->cls = cls;
        o->n_cls = n;
}

void gs_prune(struct gs *g) {
        bool again = true;

        while (again) {
                again = false;
                for (size_t i = 0; i < g->n_node; i++)
                        if (!g->node[i]->nonempty && possible(g, &g->node[i]->alts))
                                g->node[i]->nonempty = again = true;
        }
        if (!g->node[GS_ROOT_NODE]->nonempty) {
                g->c->where = "/";
                t_fail(g->c, "no value satisfies the schema");
        }
        for (size_t i = 0; i < g->n_node; i++) {
                struct gs_alts *a = &g->node[i]->alts;
                struct gs_object **obj = a->n_obj ? t_array(g->c, a->n_obj, sizeof(*obj)) : NULL;
                struct gs_array **arr = a->n_arr ? t_array(g->c, a->n_arr, sizeof(*arr)) : NULL;
                size_t n_obj = 0, n_arr = 0;

                g->c->where = g->node[i]->path;
                for (size_t k = 0; k < a->n_obj; k++) {
                        if (!object_possible(g, a->obj[k]))
                                continue;
                        for (size_t q = 0; q < a->obj[k]->n_prop; q++)
                                a->obj[k]->prop[q].never = !g->node[a->obj[k]->prop[q].node]->nonempty;
                        if (!a->obj[k]->keys)
                                drop_classes(g, a->obj[k]);
                        finish_object(g, a->obj[k]);
                        obj[n_obj++] = a->obj[k];
                }
                for (size_t k = 0; k < a->n_arr; k++) {
                        if (!gs_array_possible(g, a->arr[k]))
                                continue;
                        for (size_t q = 0; !a->arr[k]->unique && q <= a->arr[k]->n_prefix; q++)
                                if (!g->node[item_node(a->arr[k], q)]->nonempty)
                                        a->arr[k]->max = MIN(a->arr[k]->max, q);
                        if (a->arr[k]->has_contains)
                                gs_array_table(g, a->arr[k]);
                        arr[n_arr++] = a->arr[k];
                }
                a->obj = obj;
                a->n_obj = n_obj;
                a->arr = arr;
                a->n_arr = n_arr;
        }
}
