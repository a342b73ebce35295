/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of a schema: items and their prefix, numbers of them, 'contains' as a
 * second count, items that must differ. See struct gs_array.
 */
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/text/gram_schema.h"

#define MAX_TABLE ((size_t)1 << 20)
#define MAX_VALUES 64

void gs_array_alt(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret) {
        struct gs_array *a = t_alloc(g->c, sizeof(*a));
        const json_t *items = gs_get(g, s, path, "items"), *prefix = gs_get(g, s, path, "prefixItems"), *rest = items, *j;
        const char *prefix_key = "prefixItems", *rest_key = "items";

        a->path = path;
        a->max = a->c_max = SIZE_MAX;
        if (json_is_array(items) && !prefix) { /* before 2020-12 */
                prefix = items;
                prefix_key = "items";
                rest = gs_get(g, s, path, "additionalItems");
                rest_key = "additionalItems";
        }
        if (prefix) {
                const char *base = gs_path(g, path, prefix_key);
                gs_at(g, path, prefix_key);
                if (!json_is_array(prefix))
                        t_fail(g->c, "must be an array");
                a->n_prefix = json_array_size(prefix);
                a->prefix = t_array(g->c, a->n_prefix, sizeof(*a->prefix));
                for (size_t i = 0; i < a->n_prefix; i++)
                        a->prefix[i] = gs_schema_node(g, json_array_get(prefix, i), gs_path_index(g, base, i));
        }
        a->items = rest ? gs_schema_node(g, rest, gs_path(g, path, rest_key)) : GS_ANY_NODE;
        gs_get_size(g, s, path, "minItems", &a->min);
        gs_get_size(g, s, path, "maxItems", &a->max);
        j = gs_get(g, s, path, "contains");
        if (j) {
                a->has_contains = true;
                a->contains = gs_schema_node(g, j, gs_path(g, path, "contains"));
                a->c_min = 1;
                gs_get_size(g, s, path, "minContains", &a->c_min);
                gs_get_size(g, s, path, "maxContains", &a->c_max);
        }
        j = gs_get(g, s, path, "uniqueItems");
        if (j && !json_is_boolean(j))
                t_fail(g->c, "must be true or false");
        if (json_is_true(j) && a->max > 1)
                a->unique = GS_UNIQUE;
        if (a->min > a->max || a->c_min > a->c_max || a->c_min > a->max)
                return;
        ret->arr = t_grow(g->c, ret->arr, ret->n_arr, &ret->cap_arr, ret->n_arr + 1, sizeof(*ret->arr));
        ret->arr[ret->n_arr++] = a;
}

/* ---- items that must differ ---- */

struct values { struct gs *g; struct gs_array *a; const struct gs_number *num[MAX_VALUES]; size_t n_num; };

static void add_value(struct values *v, const struct gs_alts *alts, const char *what) {
        if (v->a->n_value == MAX_VALUES)
                t_fail(v->g->c, "is supported for at most %d different values, or for strings of any length; there are more %s", MAX_VALUES, what);
        v->a->value[v->a->n_value++] = gs_made_node(v->g, alts);
}

static void add_number(struct values *v, const struct gs_number *n) {
        struct gs_alts alts = { .num = t_alloc(v->g->c, sizeof(*alts.num)), .n_num = 1 };

        for (size_t i = 0; i < v->n_num; i++)
                if (gs_dec_cmp(&v->num[i]->lo, &n->lo) == 0)
                        return;
        alts.num[0] = n;
        add_value(v, &alts, "numbers");
        v->num[v->n_num++] = n;
}

static void add_numbers(struct values *v, const struct gs_number *n) {
        if (n->has_lo && n->has_hi && gs_dec_cmp(&n->lo, &n->hi) == 0) {
                add_number(v, n);
                return;
        }
        if (!n->integer || n->step || !n->has_lo || !n->has_hi || n->ihi - n->ilo >= MAX_VALUES * (n->multiple ? n->multiple : 1))
                t_fail(v->g->c, "is supported for at most %d different values, or for strings of any length, not for any numbers", MAX_VALUES);
        for (int64_t x = n->ilo; x <= n->ihi; x++) {
                struct gs_number one = { .integer = true, .has_lo = true, .has_hi = true };
                const struct gs_number *made;
                char text[24];
                if (n->multiple && x % n->multiple)
                        continue;
                gs_dec_parse(text, (size_t)snprintf(text, sizeof(text), "%lld", (long long)x), &one.lo);
                one.hi = one.lo;
                made = gs_number_new(v->g, &one);
                if (made)
                        add_number(v, made);
        }
}

/* Strings of the automaton from this state on, one by one; false: there are too many. */
static bool add_strings(struct values *v, const struct dfa *d, uint32_t state, char *text, size_t n, size_t cap, unsigned *left) {
        const struct dfa_state *s = &d->state[state];

        if (s->label >= 0) {
                struct gs_alts alts = { .str = t_alloc(v->g->c, sizeof(*alts.str)), .n_str = 1 };
                struct gs_string *str = t_alloc(v->g->c, sizeof(*str));
                struct dfa_text t = { text, n };
                if (!(*left)--)
                        return false;
                *str = (struct gs_string){ .dfa = dfa_literals(v->g->c, &t, 1, false), .max = SIZE_MAX };
                alts.str[0] = str;
                add_value(v, &alts, "strings");
        }
        for (uint32_t k = 0; k < s->n_edge; k++)
                for (uint32_t cp = s->edge[k].lo; cp <= s->edge[k].hi; cp++) {
                        size_t len = (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)text + n);
                        if (n + len + 4 > cap || !add_strings(v, d, s->edge[k].to, text, n + len, cap, left))
                                return false;
                }
        return true;
}

static bool endless(const struct dfa *d) {
        /* from every state more than a few strings: whichever were used, another can still be made */
        for (uint32_t s = 0; s < d->n_state; s++) {
                bool loop = false;
                for (uint32_t k = 0; k < d->state[s].n_edge; k++)
                        loop = loop || d->state[s].edge[k].to == s;
                if (!loop)
                        return false;
        }
        return d->n_state > 0;
}

static void finish_unique(struct gs *g, struct gs_array *a) {
        const struct gs_alts *x = gs_ensure(g, a->items);
        struct values v = { .g = g, .a = a };
        const struct dfa *all = NULL;
        char text[512];
        unsigned left = MAX_VALUES;

        gs_at(g, a->path, "uniqueItems");
        if (a->n_prefix || a->has_contains)
                t_fail(g->c, "is not supported together with prefixItems or contains");
        if (x->any || x->n_obj || x->n_arr)
                t_fail(g->c, "is not supported for items that may be objects or arrays: a generator would have to compare each with all before it");
        a->value = t_array(g->c, MAX_VALUES, sizeof(*a->value));
        for (size_t i = 0; i < x->n_str; i++)
                if ((x->str[i]->dfa->any && x->str[i]->max == SIZE_MAX) || (!x->str[i]->dfa->any && endless(x->str[i]->dfa))) {
                        struct gs_alts alts = { .str = t_alloc(g->c, sizeof(*alts.str)), .n_str = 1 };
                        struct gs_string *s = t_alloc(g->c, sizeof(*s));
                        if (x->words || x->n_num || x->n_str > 1)
                                t_fail(g->c, "is supported for strings alone or for a few values, not for both");
                        *s = *x->str[i];
                        s->hashed = true;
                        alts.str[0] = s;
                        a->value[a->n_value++] = gs_made_node(g, &alts);
                        a->unique = GS_UNIQUE_TEXT;
                        return;
                } else {
                        const struct gs_string *s = x->str[i];
                        const struct dfa *d = s->min > 0 || s->max != SIZE_MAX ? dfa_length(g->c, s->dfa, s->min, s->max) : s->dfa;
                        all = all ? dfa_join(g->c, all, d, 0) : d;
                }
        a->unique = GS_UNIQUE_FEW;
        for (unsigned bit = GS_NULL; bit <= GS_FALSE; bit <<= 1)
                if (x->words & bit)
                        add_value(&v, &(struct gs_alts){ .words = bit }, "words");
        for (size_t i = 0; i < x->n_num; i++)
                add_numbers(&v, x->num[i]);
        if (all && all->n_state && !add_strings(&v, all, 0, text, 0, sizeof(text), &left))
                t_fail(g->c, "is supported for at most %d different values, or for strings that can always be longer; there are more strings",
                       MAX_VALUES);
        a->max = MIN(a->max, a->n_value);
}

/* ---- contains ---- */

void gs_array_finish(struct gs *g, struct gs_array *a) {
        const char *where = g->c->where, *path;

        if (a->finished)
                return;
        a->finished = true;
        if (a->unique)
                finish_unique(g, a);
        if (a->has_contains) {
                path = gs_path(g, a->path, "contains");
                g->c->where = path;
                a->hit = t_array(g->c, a->n_prefix + 1, sizeof(*a->hit));
                a->miss = t_array(g->c, a->n_prefix + 1, sizeof(*a->miss));
                for (size_t i = 0; i <= a->n_prefix; i++) {
                        uint32_t item = i < a->n_prefix ? a->prefix[i] : a->items;
                        a->hit[i] = gs_meet_node(g, item, a->contains);
                        a->miss[i] = a->c_max == SIZE_MAX ? item : gs_meet_node(g, item, gs_not_node(g, a->contains, path));
                }
                a->n_place = (a->max != SIZE_MAX ? a->max : MAX(a->min, a->n_prefix)) + 1;
                a->n_count = (a->c_max != SIZE_MAX ? a->c_max : a->c_min) + 1;
                if (a->n_place > MAX_TABLE || a->n_count > MAX_TABLE || a->n_place * a->n_count > MAX_TABLE)
                        t_fail(g->c, "so many items of which so many count are not supported (places times counts up to 2^20)");
                a->ok = t_alloc(g->c, a->n_place * a->n_count);
        }
        g->c->where = where;
}

static bool count_fits(const struct gs_array *a, size_t count) {
        return count >= a->c_min && count <= a->c_max;
}

bool gs_array_may(const struct gs_array *a, size_t place, size_t count) {
        return count < a->n_count && a->ok[MIN(place, a->n_place - 1) * a->n_count + count];
}

/* Backwards: a place is good if the array may end there, or goes on to a good one. */
void gs_array_table(struct gs *g, struct gs_array *a) {
        bool open = a->max == SIZE_MAX;

        for (size_t p = a->n_place; p-- > 0;)
                for (size_t c = a->n_count; c-- > 0;) {
                        bool hit = g->node[a->hit[gs_item(a, p)]]->nonempty, miss = g->node[a->miss[gs_item(a, p)]]->nonempty;
                        size_t more = a->c_max == SIZE_MAX ? MIN(c + 1, a->n_count - 1) : c + 1;
                        bool last = p + 1 == a->n_place, ok = p >= a->min && p <= a->max && count_fits(a, c);
                        if (!ok && (open || p < a->max)) {
                                size_t next = last ? p : p + 1;
                                /* the last place of an open array leads to itself: only more hits get it anywhere */
                                ok = (hit && more < a->n_count && (more != c || !last) && a->ok[next * a->n_count + more]) ||
                                     (miss && !last && a->ok[next * a->n_count + c]);
                        }
                        a->ok[p * a->n_count + c] = ok;
                }
}

bool gs_array_possible(const struct gs *g, const struct gs_array *a) {
        if (a->unique)
                return a->unique == GS_UNIQUE_TEXT || a->min <= a->n_value;
        if (a->has_contains) {
                gs_array_table((struct gs *)g, (struct gs_array *)a);
                return a->ok[0];
        }
        for (size_t i = 0; i < a->min && i <= a->n_prefix; i++)
                if (!g->node[i < a->n_prefix ? a->prefix[i] : a->items]->nonempty)
                        return false;
        return true;
}
