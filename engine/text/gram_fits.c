/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether one value is allowed: what 'not' and 'if' do to an enum needs no
 * alternatives that say the opposite, as each of its values can be looked at.
 */
#include <string.h>

#include "engine/text/gram_schema.h"

enum { TEXT = 64, PARTS = 16 }; /* so many bytes, so many properties or items are as much work as one value */

static void work(struct gs *g, size_t n) {
        g->work += n;
        if (g->work > GS_MAX_WORK)
                t_fail(g->c, "the schema's combinations are too many to work out");
}

static bool node_fits(struct gs *g, const json_t *v, uint32_t node) {
        return node == GS_ANY_NODE || (node != GS_NONE_NODE && gs_fits(g, v, gs_ensure(g, node)));
}

static size_t characters(const char *p, size_t n) {
        size_t chars = 0;

        for (size_t i = 0; i < n; i++)
                chars += ((unsigned char)p[i] & 0xc0) != 0x80;
        return chars;
}

static bool string_fits(struct gs *g, const json_t *v, const struct gs_string *s) {
        const char *p = json_string_value(v);
        size_t n = json_string_length(v), chars;

        work(g, n / TEXT);
        chars = characters(p, n);
        return dfa_accepts(s->dfa, p, n) && chars >= s->min && chars <= s->max;
}

static bool number_fits(struct gs *g, const json_t *v, const struct gs_number *n) {
        struct gs_dec d;

        return gs_to_dec(g, v, &d) && gs_number_inside(n, &d) && (!n->step || gs_step_divides(n, json_number_value(v))) &&
               (!n->integer || d.n <= d.exp || d.n == 0) && (!n->multiple || gs_dec_modulo(&d, n->multiple) == 0);
}

/* Equal as JSON schema has it: 1 and 1.0 are. */
static bool same(struct gs *g, const json_t *a, const json_t *b) {
        struct gs_dec x, y;
        const char *key;
        const json_t *v;
        size_t i;

        work(g, 1 + json_string_length(a) / TEXT);
        if (json_is_number(a) && json_is_number(b))
                return gs_to_dec(g, a, &x) && gs_to_dec(g, b, &y) && gs_dec_cmp(&x, &y) == 0;
        if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) || json_object_size(a) != json_object_size(b))
                return false;
        if (!json_is_array(a) && !json_is_object(a))
                return json_equal((json_t *)a, (json_t *)b);
        json_array_foreach(a, i, v)
                if (!same(g, v, json_array_get(b, i)))
                        return false;
        json_object_foreach((json_t *)a, key, v)
                if (!json_object_get(b, key) || !same(g, v, json_object_get(b, key)))
                        return false;
        return true;
}

static bool array_fits(struct gs *g, const json_t *v, const struct gs_array *a) {
        size_t n = json_array_size(v), hits = 0;

        if (n < a->min || n > a->max)
                return false;
        work(g, n / PARTS);
        for (size_t i = 0; i < n; i++) {
                const json_t *item = json_array_get(v, i);

                if (!node_fits(g, item, i < a->n_prefix ? a->prefix[i] : a->items))
                        return false;
                hits += a->has_contains && node_fits(g, item, a->contains);
                for (size_t k = 0; k < i && a->unique; k++)
                        if (same(g, item, json_array_get(v, k)))
                                return false;
        }
        return !a->has_contains || (hits >= a->c_min && hits <= a->c_max);
}

static bool object_fits(struct gs *g, const json_t *v, const struct gs_object *o) {
        size_t n = json_object_size(v);
        const char *key;
        const json_t *x;

        if (n < o->min || n > o->max)
                return false;
        work(g, o->n_prop / PARTS);
        for (size_t i = 0; i < o->n_prop; i++) {
                x = json_object_getn(v, o->prop[i].name, o->prop[i].n);
                if (x ? !node_fits(g, x, o->prop[i].node) : o->prop[i].required)
                        return false;
        }
        json_object_foreach((json_t *)v, key, x) {
                const size_t len = strlen(key);
                uint32_t node = GS_NONE_NODE;
                bool declared = false;

                work(g, 1 + o->n_prop / PARTS + o->n_cls * len / TEXT);
                for (size_t i = 0; i < o->n_prop && !declared; i++)
                        declared = o->prop[i].n == len && memcmp(o->prop[i].name, key, len) == 0;
                for (size_t i = 0; i < o->n_cls && !declared && node == GS_NONE_NODE; i++)
                        if (dfa_accepts(o->cls[i].keys, key, len))
                                node = o->cls[i].node;
                if (!declared && !node_fits(g, x, node))
                        return false;
        }
        return true;
}

bool gs_fits(struct gs *g, const json_t *v, const struct gs_alts *a) {
        bool yes = a->any;

        work(g, 1);
        switch (json_typeof(v)) {
        case JSON_NULL: return yes || a->words & GS_NULL;
        case JSON_TRUE: return yes || a->words & GS_TRUE;
        case JSON_FALSE: return yes || a->words & GS_FALSE;
        case JSON_STRING:
                for (size_t i = 0; i < a->n_str && !yes; i++)
                        yes = string_fits(g, v, a->str[i]);
                return yes;
        case JSON_INTEGER:
        case JSON_REAL:
                for (size_t i = 0; i < a->n_num && !yes; i++)
                        yes = number_fits(g, v, a->num[i]);
                return yes;
        case JSON_ARRAY:
                for (size_t i = 0; i < a->n_arr && !yes; i++)
                        yes = array_fits(g, v, a->arr[i]);
                return yes;
        case JSON_OBJECT:
                for (size_t i = 0; i < a->n_obj && !yes; i++)
                        yes = object_fits(g, v, a->obj[i]);
                return yes;
        }
        return false;
}

bool gs_values_of(struct gs *g, const json_t *s, struct gs_values *ret) {
        const json_t *list = json_object_get(s, "enum"), *one = json_object_get(s, "const");
        struct gs_values r = { .n = one ? 1 : json_array_size(list) };

        if (!one && !json_is_array(list))
                return false;
        r.v = t_array(g->c, r.n + 1, sizeof(*r.v));
        for (size_t i = 0; i < r.n; i++)
                r.v[i] = one ? one : json_array_get(list, i);
        *ret = r;
        return true;
}

bool gs_refers(const json_t *j) {
        const json_t *v;
        const char *key;
        size_t i;

        if (json_object_get(j, "$ref"))
                return true;
        json_object_foreach((json_t *)j, key, v)
                if (gs_refers(v))
                        return true;
        json_array_foreach(j, i, v)
                if (gs_refers(v))
                        return true;
        return false;
}

bool gs_split(struct gs *g, const json_t *s, const json_t *schema, const struct gs_alts *by, struct gs_alts *ret_fit, struct gs_alts *ret_rest) {
        struct gs_values all, fit, rest;

        if (gs_refers(schema) || !gs_values_of(g, s, &all))
                return false;
        fit = rest = (struct gs_values){ 0 };
        fit.v = t_array(g->c, all.n + 1, sizeof(*fit.v));
        rest.v = t_array(g->c, all.n + 1, sizeof(*rest.v));
        for (size_t i = 0; i < all.n; i++)
                if (gs_fits(g, all.v[i], by))
                        fit.v[fit.n++] = all.v[i];
                else
                        rest.v[rest.n++] = all.v[i];
        gs_values_alts(g, &fit, ret_fit);
        gs_values_alts(g, &rest, ret_rest);
        return true;
}
