/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one schema allows and another does not, as alternatives: for 'not',
 * 'if', the dependent keywords, and a oneOf whose schemas overlap. Strings are
 * subtracted as automata, numbers as intervals; an object or array fails to
 * fit by one of a few faults (a key is missing, or there with a wrong value;
 * too few, too many; a wrong item), each of which is an alternative again.
 * Where no alternative says it ("some key that is not declared", "a number
 * with a fraction") the schema is refused.
 */
#include <string.h>

#include "engine/text/gram_schema.h"

#define MAX_FAULTS 4096

/* ---- strings ---- */

static void push_string(struct gs *g, struct gs_alts *ret, const struct dfa *d, size_t min, size_t max) {
        struct gs_string *s;

        if (d->n_state == 0 || min > max)
                return;
        s = t_alloc(g->c, sizeof(*s));
        *s = (struct gs_string){ .dfa = d, .min = min, .max = max };
        GS_PUSH(g, ret, str, s);
}

static const struct dfa *folded(struct gs *g, const struct gs_string *s) {
        return s->min > 0 || s->max != SIZE_MAX ? dfa_length(g->c, s->dfa, s->min, s->max) : s->dfa;
}

static void minus_string(struct gs *g, const struct gs_string *a, const struct gs_string *b, struct gs_alts *ret) {
        if (b->dfa->any && a->dfa->any) { /* lengths alone */
                if (b->min > 0)
                        push_string(g, ret, a->dfa, a->min, MIN(a->max, b->min - 1));
                if (b->max != SIZE_MAX)
                        push_string(g, ret, a->dfa, MAX(a->min, b->max + 1), a->max);
                return;
        }
        push_string(g, ret, dfa_minus(g->c, folded(g, a), folded(g, b)), 0, SIZE_MAX);
}

/* ---- numbers ---- */

static void push_number(struct gs *g, struct gs_alts *ret, const struct gs_number *a, const struct gs_number *part) {
        const struct gs_number *n = gs_number_meet(g, a, part);
        if (n)
                GS_PUSH(g, ret, num, n);
}

static bool minus_number(struct gs *g, const struct gs_number *a, const struct gs_number *b, struct gs_alts *ret, const char **why) {
        bool point = b->has_lo && b->has_hi && gs_dec_cmp(&b->lo, &b->hi) == 0;

        if (!gs_number_meet(g, a, b)) {
                GS_PUSH(g, ret, num, a);
                return true;
        }
        if (b->step || (b->multiple > 1 && !point && (!a->multiple || a->multiple % b->multiple))) {
                *why = "numbers that are not multiples";
                return false;
        }
        if (b->integer && !point && !a->integer) {
                *why = "numbers with a fraction, without the whole ones";
                return false;
        }
        if (b->has_lo)
                push_number(g, ret, a, &(struct gs_number){ .has_hi = true, .hi = b->lo, .hi_excl = !b->lo_excl });
        if (b->has_hi)
                push_number(g, ret, a, &(struct gs_number){ .has_lo = true, .lo = b->hi, .lo_excl = !b->hi_excl });
        return true;
}

/* ---- objects ---- */

static struct gs_object *any_object(struct gs *g, const struct gs_prop *p) {
        struct gs_object *o = t_alloc(g->c, sizeof(*o));

        o->max = SIZE_MAX;
        o->cls = t_alloc(g->c, sizeof(*o->cls));
        o->cls[0] = (struct gs_class){ dfa_any(g->c), GS_ANY_NODE };
        o->n_cls = 1;
        if (p) {
                o->prop = t_alloc(g->c, sizeof(*o->prop));
                o->prop[0] = *p;
                o->n_prop = 1;
                o->n_required = p->required;
        }
        return o;
}

/* Alternatives of 'a' (one object) that also have this fault. */
static void with_alts(struct gs *g, const struct gs_alts *a, const struct gs_alts *fault, struct gs_alts *ret) {
        struct gs_alts met = { 0 };

        gs_meet(g, a, fault, &met);
        gs_union(g, ret, &met);
}

static void with_fault(struct gs *g, const struct gs_alts *a, struct gs_object *fault, struct gs_alts *ret) {
        with_alts(g, a, &(struct gs_alts){ .obj = &fault, .n_obj = 1 }, ret);
}

static const struct gs_prop *prop_of(const struct gs_object *o, const char *name, size_t n) {
        for (size_t i = 0; i < o->n_prop; i++)
                if (o->prop[i].n == n && memcmp(o->prop[i].name, name, n) == 0)
                        return &o->prop[i];
        return NULL;
}

static bool minus_object(struct gs *g, struct gs_object *a, const struct gs_object *b, struct gs_alts *ret, const char **why) {
        struct gs_alts one = { .obj = &a, .n_obj = 1 };
        const char *path = g->c->where;

        /* keys that neither declares */
        for (size_t i = 0; i < a->n_cls; i++) {
                const struct dfa *open = a->cls[i].keys;
                for (size_t k = 0; k < b->n_cls && open->n_state; k++)
                        if (b->cls[k].node == GS_ANY_NODE || b->cls[k].node == a->cls[i].node)
                                open = dfa_minus(g->c, open, b->cls[k].keys);
                for (size_t k = 0; k < a->n_prop + b->n_prop && open->n_state; k++) { /* looked at below */
                        const struct gs_prop *p = k < a->n_prop ? &a->prop[k] : &b->prop[k - a->n_prop];
                        struct dfa_text t = { p->name, p->n };
                        open = dfa_minus(g->c, open, dfa_literals(g->c, &t, 1, false));
                }
                if (open->n_state) {
                        *why = "objects with some key that is not declared";
                        return false;
                }
        }
        for (size_t i = 0; i < a->n_prop; i++) { /* those only 'a' declares */
                struct gs_prop p = a->prop[i];
                if (prop_of(b, p.name, p.n))
                        continue;
                p.node = GS_NONE_NODE;
                for (size_t k = 0; k < b->n_cls; k++)
                        if (dfa_accepts(b->cls[k].keys, p.name, p.n))
                                p.node = b->cls[k].node;
                p.node = gs_not_node(g, p.node, path);
                p.required = true;
                if (p.node != GS_NONE_NODE)
                        with_fault(g, &one, any_object(g, &p), ret);
        }
        for (size_t i = 0; i < b->n_prop; i++) {
                struct gs_prop p = b->prop[i];
                if (p.required) {
                        struct gs_prop gone = { .name = p.name, .n = p.n, .node = GS_NONE_NODE };
                        with_fault(g, &one, any_object(g, &gone), ret);
                }
                p.node = gs_not_node(g, p.node, path);
                p.required = true;
                if (p.node != GS_NONE_NODE)
                        with_fault(g, &one, any_object(g, &p), ret);
        }
        if (b->min > 0) {
                struct gs_object *few = any_object(g, NULL);
                few->max = b->min - 1;
                with_fault(g, &one, few, ret);
        }
        if (b->max != SIZE_MAX) {
                struct gs_object *many = any_object(g, NULL);
                many->min = b->max + 1;
                with_fault(g, &one, many, ret);
        }
        return true;
}

/* ---- arrays ---- */

static struct gs_array *any_array(struct gs *g, const char *path) {
        struct gs_array *a = t_alloc(g->c, sizeof(*a));

        *a = (struct gs_array){ .items = GS_ANY_NODE, .max = SIZE_MAX, .c_max = SIZE_MAX, .path = path };
        return a;
}

static void with_array_fault(struct gs *g, const struct gs_alts *a, struct gs_array *fault, struct gs_alts *ret) {
        with_alts(g, a, &(struct gs_alts){ .arr = &fault, .n_arr = 1 }, ret);
}

static bool minus_array(struct gs *g, struct gs_array *a, const struct gs_array *b, struct gs_alts *ret, const char **why) {
        struct gs_alts one = { .arr = &a, .n_arr = 1 };
        const char *path = g->c->where;

        if (b->unique) {
                *why = "arrays with equal items";
                return false;
        }
        if (b->min > 0) {
                struct gs_array *few = any_array(g, path);
                few->max = b->min - 1;
                with_array_fault(g, &one, few, ret);
        }
        if (b->max != SIZE_MAX) {
                struct gs_array *many = any_array(g, path);
                many->min = b->max + 1;
                with_array_fault(g, &one, many, ret);
        }
        for (size_t i = 0; i < b->n_prefix; i++) {
                struct gs_array *wrong = any_array(g, path);
                if (b->prefix[i] == GS_ANY_NODE)
                        continue;
                wrong->n_prefix = wrong->min = i + 1;
                wrong->prefix = t_array(g->c, i + 1, sizeof(*wrong->prefix)); /* any */
                wrong->prefix[i] = gs_not_node(g, b->prefix[i], path);
                with_array_fault(g, &one, wrong, ret);
        }
        if (b->items == GS_NONE_NODE && b->max > b->n_prefix) {
                struct gs_array *longer = any_array(g, path);
                longer->min = b->n_prefix + 1;
                with_array_fault(g, &one, longer, ret);
        } else if (b->items != GS_ANY_NODE && b->items != a->items && MIN(a->max, b->max) > b->n_prefix) {
                struct gs_array *some = any_array(g, path);
                if (b->n_prefix) {
                        *why = "arrays with some wrong item behind the prefix";
                        return false;
                }
                some->has_contains = true;
                some->contains = gs_not_node(g, b->items, path);
                some->c_min = 1;
                with_array_fault(g, &one, some, ret);
        }
        if (b->has_contains && b->c_min > 0) {
                struct gs_array *few = any_array(g, path);
                if (b->c_min == 1) {
                        few->items = gs_not_node(g, b->contains, path);
                } else {
                        few->has_contains = true;
                        few->contains = b->contains;
                        few->c_max = b->c_min - 1;
                }
                with_array_fault(g, &one, few, ret);
        }
        if (b->has_contains && b->c_max != SIZE_MAX) {
                struct gs_array *many = any_array(g, path);
                many->has_contains = true;
                many->contains = b->contains;
                many->c_min = b->c_max + 1;
                with_array_fault(g, &one, many, ret);
        }
        return true;
}

/* ---- alternatives ---- */

/* From every alternative of 'from' the ones of b's list, one after the other. */
#define MINUS_ALL(list, call)                                                                                                    \
        do {                                                                                                                     \
                for (size_t k = 0; k < b->n_##list; k++) {                                                                       \
                        struct gs_alts next = { 0 };                                                                             \
                        for (size_t i = 0; i < r.n_##list; i++)                                                                  \
                                if (!(call))                                                                                     \
                                        return false;                                                                            \
                        if (next.n_##list > MAX_FAULTS)                                                                          \
                                t_fail(g->c, "the schema's combinations are too many to work out");                             \
                        r.list = next.list;                                                                                      \
                        r.n_##list = next.n_##list;                                                                              \
                        r.cap_##list = next.cap_##list;                                                                          \
                }                                                                                                                \
        } while (0)

bool gs_minus(struct gs *g, const struct gs_alts *a, const struct gs_alts *b, struct gs_alts *ret, const char **ret_why) {
        struct gs_alts r = *a;

        if (b->any) {
                *ret = (struct gs_alts){ 0 };
                return true;
        }
        r.any = r.any && !b->words && !b->n_str && !b->n_num && !b->n_obj && !b->n_arr;
        r.words &= ~b->words;
        MINUS_ALL(str, (minus_string(g, r.str[i], b->str[k], &next), true));
        MINUS_ALL(num, minus_number(g, r.num[i], b->num[k], &next, ret_why));
        MINUS_ALL(obj, minus_object(g, r.obj[i], b->obj[k], &next, ret_why));
        MINUS_ALL(arr, minus_array(g, r.arr[i], b->arr[k], &next, ret_why));
        *ret = r;
        return true;
}

/* ---- the keywords ---- */

static void subtract(struct gs *g, struct gs_alts *base, const struct gs_alts *what) {
        struct gs_alts r = { 0 };
        const char *why = NULL;

        if (!gs_minus(g, base, what, &r, &why))
                t_fail(g->c, "what it excludes can't be worked out: %s", why);
        *base = r;
}

static void meet(struct gs *g, struct gs_alts *base, const struct gs_alts *with) {
        struct gs_alts r = { 0 };

        gs_meet(g, base, with, &r);
        *base = r;
}

static const struct gs_alts *schema_alts(struct gs *g, const json_t *schema, const char *path) {
        return gs_ensure(g, gs_schema_node(g, schema, path));
}

/* Objects without the key, and objects with it that also fit 'with'; everything that is no object stays. */
static void dependent(struct gs *g, const char *key, const struct gs_alts *with, struct gs_alts *base) {
        const struct gs_alts *any = &g->node[GS_ANY_NODE]->alts;
        struct gs_alts r = *any, has = { 0 };
        struct gs_object *without = any_object(g, &(struct gs_prop){ .name = key, .n = strlen(key), .node = GS_NONE_NODE });
        struct gs_object *present = any_object(g, &(struct gs_prop){ .name = key, .n = strlen(key), .node = GS_ANY_NODE, .required = true });
        struct gs_alts p = { .obj = &present, .n_obj = 1 };

        r.any = false;
        r.obj = NULL;
        r.n_obj = r.cap_obj = 0;
        GS_PUSH(g, &r, obj, without);
        gs_meet(g, &p, with, &has);
        gs_union(g, &r, &has);
        meet(g, base, &r);
}

static void dependent_required(struct gs *g, const char *key, const json_t *names, struct gs_alts *base) {
        struct gs_object *o = any_object(g, NULL);
        struct gs_alts a = { .obj = &o, .n_obj = 1 };
        const json_t *v;
        size_t i;

        if (!json_is_array(names))
                t_fail(g->c, "must be an array of names");
        o->prop = t_array(g->c, json_array_size(names), sizeof(*o->prop));
        json_array_foreach(names, i, v) {
                if (!json_is_string(v))
                        t_fail(g->c, "must be an array of names");
                if (!prop_of(o, json_string_value(v), json_string_length(v)))
                        o->prop[o->n_prop++] = (struct gs_prop){ .name = json_string_value(v), .n = json_string_length(v),
                                                                 .node = GS_ANY_NODE, .required = true };
        }
        o->n_required = o->n_prop;
        dependent(g, key, &a, base);
}

static void dependencies(struct gs *g, const json_t *s, const char *path, const char *keyword, struct gs_alts *base) {
        const json_t *all = gs_get(g, s, path, keyword), *v;
        const char *key;

        if (all && !json_is_object(all))
                t_fail(g->c, "must be an object");
        json_object_foreach((json_t *)all, key, v) {
                const char *p = gs_path(g, gs_path(g, path, keyword), key);
                gs_at(g, p, NULL);
                if (strcmp(keyword, "dependentRequired") == 0 || (strcmp(keyword, "dependencies") == 0 && json_is_array(v))) {
                        dependent_required(g, key, v, base);
                } else {
                        const struct gs_alts *with = schema_alts(g, v, p);
                        gs_at(g, p, NULL);
                        dependent(g, key, with, base);
                }
        }
}

void gs_conditions(struct gs *g, const json_t *s, const char *path, struct gs_alts *base) {
        const json_t *cond = gs_get(g, s, path, "if"), *then = gs_get(g, s, path, "then"), *other = gs_get(g, s, path, "else"), *j;

        dependencies(g, s, path, "dependentRequired", base);
        dependencies(g, s, path, "dependentSchemas", base);
        dependencies(g, s, path, "dependencies", base);
        if (cond && (then || other)) {
                const struct gs_alts *c = schema_alts(g, cond, gs_path(g, path, "if"));
                struct gs_alts yes = *base, no = *base, fit = { 0 }, rest = { 0 };
                gs_at(g, path, "if");
                if (gs_split(g, s, cond, c, &fit, &rest)) {
                        meet(g, &yes, &fit);
                        meet(g, &no, &rest);
                } else {
                        meet(g, &yes, c);
                        subtract(g, &no, c);
                }
                if (then) {
                        const struct gs_alts *t = schema_alts(g, then, gs_path(g, path, "then"));
                        gs_at(g, path, "then");
                        meet(g, &yes, t);
                }
                if (other) {
                        const struct gs_alts *e = schema_alts(g, other, gs_path(g, path, "else"));
                        gs_at(g, path, "else");
                        meet(g, &no, e);
                }
                *base = (struct gs_alts){ 0 };
                gs_union(g, base, &yes);
                gs_union(g, base, &no);
        }
        j = gs_get(g, s, path, "not");
        if (j) {
                const struct gs_alts *n = schema_alts(g, j, gs_path(g, path, "not"));
                struct gs_alts fit = { 0 }, rest = { 0 };
                gs_at(g, path, "not");
                if (gs_split(g, s, j, n, &fit, &rest))
                        meet(g, base, &rest);
                else
                        subtract(g, base, n);
        }
        gs_at(g, path, NULL);
}
