/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a JSON schema (drafts 4 to 2020-12, as far as a generator can keep it)
 * to nodes. A node is compiled when something needs its alternatives; its
 * children only get numbers then, so that recursion through properties and
 * items ends. A schema that refers to itself without a value in between means
 * nothing and is refused.
 *
 * Unknown keywords are annotations, as the standard says; those known and not
 * supported are refused with their path.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/gram_schema.h"

#define MAX_NODES 50000
#define MAX_DEPTH 200
#define MAX_PATTERNS 6

static const char *const refused[] = { "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "extends", "disallow",
        "divisibleBy" };

/* ---- paths ---- */

const char *gs_path(struct gs *g, const char *path, const char *key) {
        size_t n = strlen(path), k = n;
        char *p = t_alloc(g->c, n + 2 * strlen(key) + 2);

        memcpy(p, path, n);
        p[k++] = '/';
        for (; *key; key++) {
                if (*key == '~' || *key == '/') {
                        p[k++] = '~';
                        p[k++] = *key == '~' ? '0' : '1';
                } else {
                        p[k++] = *key;
                }
        }
        p[k] = 0;
        return p;
}

const char *gs_path_index(struct gs *g, const char *path, size_t i) {
        char text[24];
        snprintf(text, sizeof(text), "%zu", i);
        return gs_path(g, path, text);
}

/* Where messages point to from now on. */
void gs_at(struct gs *g, const char *path, const char *key) {
        g->c->where = key ? gs_path(g, path, key) : *path ? path : "/";
}

/* ---- nodes ---- */

static size_t source_hash(const json_t *schema, uint32_t a, uint32_t b) {
        uint64_t h = (uint64_t)(uintptr_t)schema * 0x9e3779b97f4a7c15u;
        h ^= ((uint64_t)a << 32 | b) * 0xbf58476d1ce4e5b9u;
        return (size_t)(h ^ (h >> 31));
}

static uint32_t node_of(struct gs *g, const json_t *schema, const char *path, uint32_t a, uint32_t b) {
        struct gs_node *n;
        size_t i;

        if ((g->n_node + 1) * 2 > g->n_index) {
                size_t n_index = g->n_index ? g->n_index * 2 : 64;
                uint32_t *index = t_array(g->c, n_index, sizeof(*index));
                for (uint32_t k = 0; k < g->n_node; k++) {
                        for (i = source_hash(g->node[k]->schema, g->node[k]->a, g->node[k]->b) & (n_index - 1); index[i];)
                                i = (i + 1) & (n_index - 1);
                        index[i] = k + 1;
                }
                g->by_source = index;
                g->n_index = n_index;
        }
        for (i = source_hash(schema, a, b) & (g->n_index - 1); g->by_source[i]; i = (i + 1) & (g->n_index - 1)) {
                n = g->node[g->by_source[i] - 1];
                if (n->schema == schema && n->a == a && n->b == b)
                        return g->by_source[i] - 1;
        }
        if (g->n_node >= MAX_NODES)
                t_fail(g->c, "the schema unfolds into more than %d parts", MAX_NODES);
        n = t_alloc(g->c, sizeof(*n));
        *n = (struct gs_node){ .schema = schema, .path = path, .a = a, .b = b };
        g->node = t_grow(g->c, g->node, g->n_node, &g->cap_node, g->n_node + 1, sizeof(*g->node));
        g->node[g->n_node] = n;
        g->by_source[i] = (uint32_t)++g->n_node;
        return (uint32_t)g->n_node - 1;
}

uint32_t gs_schema_node(struct gs *g, const json_t *schema, const char *path) {
        if (json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0))
                return GS_ANY_NODE;
        if (json_is_false(schema))
                return GS_NONE_NODE;
        return node_of(g, schema, path, 0, 0);
}

uint32_t gs_not_node(struct gs *g, uint32_t a, const char *path) {
        return a == GS_ANY_NODE ? GS_NONE_NODE : a == GS_NONE_NODE ? GS_ANY_NODE : node_of(g, NULL, path, a, GS_COMPLEMENT);
}

uint32_t gs_made_node(struct gs *g, const struct gs_alts *alts) {
        uint32_t id = node_of(g, NULL, "", (uint32_t)g->n_node, UINT32_MAX); /* no other has this source */

        g->node[id]->alts = *alts;
        g->node[id]->status = GS_DONE;
        return id;
}

uint32_t gs_meet_node(struct gs *g, uint32_t a, uint32_t b) {
        if (a == b || b == GS_ANY_NODE)
                return a;
        if (a == GS_ANY_NODE)
                return b;
        if (a == GS_NONE_NODE || b == GS_NONE_NODE)
                return GS_NONE_NODE;
        return node_of(g, NULL, g->c->where ? g->c->where : "", MIN(a, b), MAX(a, b));
}

const struct gs_alts *gs_ensure(struct gs *g, uint32_t id) {
        struct gs_node *n = g->node[id];
        const char *where = g->c->where;

        if (n->status == GS_DONE)
                return &n->alts;
        if (n->status == GS_BUSY) {
                gs_at(g, n->path, NULL);
                t_fail(g->c, "the schema refers to itself without a value in between");
        }
        n->status = GS_BUSY;
        if (n->schema && n->a == UINT32_MAX) { /* a value within a const or enum */
                gs_value_alts(g, n->schema, &n->alts);
        } else if (n->schema) {
                gs_schema_alts(g, n->schema, n->path, &n->alts);
        } else if (n->b == GS_COMPLEMENT) {
                const char *why = NULL;
                const struct gs_alts *a = gs_ensure(g, n->a);
                g->c->where = n->path;
                if (!gs_minus(g, &g->node[GS_ANY_NODE]->alts, a, &n->alts, &why))
                        t_fail(g->c, "what it excludes can't be worked out: %s", why);
        } else {
                const struct gs_alts *a = gs_ensure(g, n->a), *b = gs_ensure(g, n->b);
                g->c->where = n->path;
                gs_meet(g, a, b, &n->alts);
        }
        n->status = GS_DONE;
        g->c->where = where;
        return &n->alts;
}

/* ---- keywords ---- */

const json_t *gs_get(struct gs *g, const json_t *s, const char *path, const char *key) {
        gs_at(g, path, key);
        return json_object_get(s, key);
}

bool gs_get_size(struct gs *g, const json_t *s, const char *path, const char *key, size_t *ret) {
        const json_t *j = gs_get(g, s, path, key);

        if (!j)
                return false;
        if (json_is_real(j) && json_real_value(j) >= 0 && json_real_value(j) < 1e15 && json_real_value(j) == floor(json_real_value(j)))
                *ret = (size_t)json_real_value(j);
        else if (json_is_integer(j) && json_integer_value(j) >= 0)
                *ret = (size_t)json_integer_value(j);
        else
                t_fail(g->c, "must be a whole number from 0");
        return true;
}

bool gs_to_dec(struct gs *g, const json_t *j, struct gs_dec *ret) {
        const struct gs_big *big = gs_source_big(g->source, j);
        char text[64];
        int n = 0;

        if (big)
                return gs_dec_parse(big->digits, big->n, ret);
        if (json_is_integer(j))
                n = snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(j));
        else if (fabs(json_real_value(j)) < 1e18 && json_real_value(j) == floor(json_real_value(j)))
                n = snprintf(text, sizeof(text), "%.0f", json_real_value(j)); /* as whole numbers compare with it */
        else
                for (int prec = 0; prec < 17; prec++) { /* the shortest that reads back */
                        n = snprintf(text, sizeof(text), "%.*e", prec, json_real_value(j));
                        if (strtod(text, NULL) == json_real_value(j))
                                break;
                }
        if (!gs_dec_parse(text, (size_t)n, ret))
                return false;
        ret->rounded = json_is_real(j) && ret->exp > 18;
        return true;
}

static bool get_dec(struct gs *g, const json_t *s, const char *path, const char *key, struct gs_dec *ret) {
        const json_t *j = gs_get(g, s, path, key);

        if (!j)
                return false;
        if (!json_is_number(j))
                t_fail(g->c, "must be a number");
        if (!gs_to_dec(g, j, ret))
                t_fail(g->c, "a number has more than 64 digits");
        return true;
}

static void number_alt(struct gs *g, const json_t *s, const char *path, bool integer, struct gs_alts *ret) {
        struct gs_number n = { .integer = integer };
        const struct gs_number *made;
        const json_t *j;
        struct gs_dec d;

        n.has_lo = get_dec(g, s, path, "minimum", &n.lo);
        n.has_hi = get_dec(g, s, path, "maximum", &n.hi);
        j = gs_get(g, s, path, "exclusiveMinimum");
        if (json_is_boolean(j)) {
                n.lo_excl = json_is_true(j);
        } else if (get_dec(g, s, path, "exclusiveMinimum", &d) && (!n.has_lo || gs_dec_cmp(&d, &n.lo) >= 0)) {
                n.lo = d;
                n.has_lo = n.lo_excl = true;
        }
        j = gs_get(g, s, path, "exclusiveMaximum");
        if (json_is_boolean(j)) {
                n.hi_excl = json_is_true(j);
        } else if (get_dec(g, s, path, "exclusiveMaximum", &d) && (!n.has_hi || gs_dec_cmp(&d, &n.hi) <= 0)) {
                n.hi = d;
                n.has_hi = n.hi_excl = true;
        }
        j = gs_get(g, s, path, "multipleOf");
        if (j) {
                double m = json_number_value(j);
                if (!json_is_number(j) || m <= 0)
                        t_fail(g->c, "must be a number above 0");
                if (m == floor(m) && m <= 1e9) {
                        n.multiple = (int64_t)m;
                        n.integer = true;
                } else if (!gs_to_dec(g, j, &d) || !gs_step_parse(&d, &n.step, &n.step_digits)) {
                        t_fail(g->c, "only whole numbers up to 10^9 are supported, and fractions of at most %d digits behind the point", GS_STEP_DIGITS);
                }
        }
        gs_at(g, path, NULL);
        made = gs_number_new(g, &n);
        if (made) {
                ret->num = t_grow(g->c, ret->num, ret->n_num, &ret->cap_num, ret->n_num + 1, sizeof(*ret->num));
                ret->num[ret->n_num++] = made;
        }
}

static void string_alt(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret) {
        struct gs_string *str = t_alloc(g->c, sizeof(*str));
        const json_t *j;
        size_t min = 0, max = SIZE_MAX;

        str->dfa = dfa_any(g->c);
        j = gs_get(g, s, path, "pattern");
        if (j) {
                if (!json_is_string(j))
                        t_fail(g->c, "must be a string");
                str->dfa = dfa_pattern(g->c, json_string_value(j), json_string_length(j));
        }
        j = gs_get(g, s, path, "format");
        if (j) {
                const struct dfa *f = json_is_string(j) ? dfa_format(g->c, json_string_value(j)) : NULL;
                if (!f)
                        t_fail(g->c, "the format '%.60s' is not supported (date, time, date-time, duration, uuid, email, hostname, ipv4, "
                               "ipv6, uri, uri-reference, json-pointer)", json_is_string(j) ? json_string_value(j) : "?");
                str->dfa = dfa_meet(g->c, str->dfa, f);
        }
        gs_get_size(g, s, path, "minLength", &min);
        gs_get_size(g, s, path, "maxLength", &max);
        gs_at(g, path, max == SIZE_MAX ? "minLength" : "maxLength");
        str->min = str->dfa->any ? min : 0;
        str->max = str->dfa->any ? max : SIZE_MAX;
        if (!str->dfa->any && (min > 0 || max != SIZE_MAX))
                str->dfa = dfa_length(g->c, str->dfa, min, max);
        if (str->dfa->n_state == 0 || str->min > str->max)
                return;
        ret->str = t_grow(g->c, ret->str, ret->n_str, &ret->cap_str, ret->n_str + 1, sizeof(*ret->str));
        ret->str[ret->n_str++] = str;
}

/* ---- objects ---- */

static void add_class(struct gs *g, struct gs_object *o, size_t *cap, const struct dfa *keys, uint32_t node) {
        if (keys->n_state == 0 || node == GS_NONE_NODE)
                return;
        o->cls = t_grow(g->c, o->cls, o->n_cls, cap, o->n_cls + 1, sizeof(*o->cls));
        o->cls[o->n_cls++] = (struct gs_class){ keys, node };
}

/* Undeclared keys by the patterns they match: each class has the meet of its patterns' schemas, or 'additional'. */
static void classes(struct gs *g, const json_t *s, const char *path, struct gs_object *o, const struct dfa *names) {
        const json_t *patterns = gs_get(g, s, path, "patternProperties"), *add = gs_get(g, s, path, "additionalProperties"), *v;
        uint32_t additional = add ? gs_schema_node(g, add, gs_path(g, path, "additionalProperties")) : GS_ANY_NODE;
        struct gs_class *cls = t_array(g->c, (size_t)1 << MAX_PATTERNS, sizeof(*cls));
        bool *matched = t_alloc(g->c, (size_t)1 << MAX_PATTERNS);
        size_t n = 1, cap = 0;
        const char *key;

        gs_at(g, path, "patternProperties");
        if (patterns && !json_is_object(patterns))
                t_fail(g->c, "must be an object");
        if (json_object_size(patterns) > MAX_PATTERNS)
                t_fail(g->c, "more than %d patterns are not supported", MAX_PATTERNS);
        cls[0] = (struct gs_class){ names, GS_ANY_NODE };
        json_object_foreach((json_t *)patterns, key, v) {
                const char *p = gs_path(g, gs_path(g, path, "patternProperties"), key);
                const struct dfa *d;
                uint32_t node = gs_schema_node(g, v, p);
                size_t before = n;
                gs_at(g, p, NULL);
                d = dfa_pattern(g->c, key, strlen(key));
                for (size_t i = 0; i < before; i++) {
                        const struct dfa *in = dfa_meet(g->c, cls[i].keys, d);
                        if (in->n_state == 0)
                                continue;
                        cls[n] = (struct gs_class){ in, gs_meet_node(g, cls[i].node, node) };
                        matched[n++] = true;
                        cls[i].keys = dfa_minus(g->c, cls[i].keys, d);
                }
        }
        for (size_t i = 0; i < n; i++)
                add_class(g, o, &cap, cls[i].keys, matched[i] ? cls[i].node : additional);
}

static void object_alt(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret) {
        const json_t *props = gs_get(g, s, path, "properties"), *required = gs_get(g, s, path, "required"), *names_schema, *v;
        struct gs_object *o = t_alloc(g->c, sizeof(*o));
        const struct dfa *names = dfa_any(g->c);
        const char *key;
        size_t i;

        o->max = SIZE_MAX;
        names_schema = gs_get(g, s, path, "propertyNames");
        if (names_schema) {
                const struct gs_alts *a = gs_ensure(g, gs_schema_node(g, names_schema, gs_path(g, path, "propertyNames")));
                const struct dfa *any = NULL;
                gs_at(g, path, "propertyNames");
                for (i = 0; i < a->n_str; i++) {
                        const struct gs_string *x = a->str[i];
                        const struct dfa *d = x->min > 0 || x->max != SIZE_MAX ? dfa_length(g->c, x->dfa, x->min, x->max) : x->dfa;
                        any = any ? dfa_join(g->c, any, d, 0) : d;
                }
                names = any ? any : t_alloc(g->c, sizeof(*any));
        }
        gs_at(g, path, "properties");
        if (props && !json_is_object(props))
                t_fail(g->c, "must be an object");
        gs_at(g, path, "required");
        if (required && !json_is_array(required) && !json_is_boolean(required))
                t_fail(g->c, "must be an array of names");
        classes(g, s, path, o, names);
        o->prop = t_array(g->c, json_object_size(props) + json_array_size(required), sizeof(*o->prop));
        json_object_foreach((json_t *)props, key, v) {
                struct gs_prop *p = &o->prop[o->n_prop++];
                const json_t *pat;
                const char *pk;
                *p = (struct gs_prop){ .name = key, .n = strlen(key),
                                       .node = gs_schema_node(g, v, gs_path(g, gs_path(g, path, "properties"), key)) };
                json_object_foreach(json_object_get(s, "patternProperties"), pk, pat)
                        if (dfa_accepts(dfa_pattern(g->c, pk, strlen(pk)), key, p->n))
                                p->node = gs_meet_node(g, p->node, gs_schema_node(g, pat, gs_path(g, gs_path(g, path, "patternProperties"), pk)));
                if (!dfa_accepts(names, key, p->n))
                        p->node = GS_NONE_NODE;
        }
        json_array_foreach(required, i, v) {
                size_t k = 0, n = json_string_length(v);
                gs_at(g, path, "required");
                if (!json_is_string(v))
                        t_fail(g->c, "must be an array of names");
                while (k < o->n_prop && (o->prop[k].n != n || memcmp(o->prop[k].name, json_string_value(v), n) != 0))
                        k++;
                if (k == o->n_prop) {
                        uint32_t node = GS_NONE_NODE;
                        for (size_t q = 0; q < o->n_cls; q++)
                                if (dfa_accepts(o->cls[q].keys, json_string_value(v), n))
                                        node = o->cls[q].node;
                        o->prop[o->n_prop++] = (struct gs_prop){ .name = json_string_value(v), .n = n, .node = node };
                }
                o->n_required += !o->prop[k].required;
                o->prop[k].required = true;
        }
        gs_get_size(g, s, path, "minProperties", &o->min);
        gs_get_size(g, s, path, "maxProperties", &o->max);
        if (o->min > o->max || o->n_required > o->max)
                return;
        ret->obj = t_grow(g->c, ret->obj, ret->n_obj, &ret->cap_obj, ret->n_obj + 1, sizeof(*ret->obj));
        ret->obj[ret->n_obj++] = o;
}

/* ---- exactly one value ---- */

void gs_value_alts(struct gs *g, const json_t *v, struct gs_alts *ret) {
        switch (json_typeof(v)) {
        case JSON_NULL: ret->words |= GS_NULL; return;
        case JSON_TRUE: ret->words |= GS_TRUE; return;
        case JSON_FALSE: ret->words |= GS_FALSE; return;
        case JSON_STRING: {
                struct gs_string *s = t_alloc(g->c, sizeof(*s));
                struct dfa_text t = { json_string_value(v), json_string_length(v) };
                *s = (struct gs_string){ .dfa = dfa_literals(g->c, &t, 1, false), .max = SIZE_MAX };
                ret->str = t_grow(g->c, ret->str, ret->n_str, &ret->cap_str, ret->n_str + 1, sizeof(*ret->str));
                ret->str[ret->n_str++] = s;
                return;
        }
        case JSON_INTEGER:
        case JSON_REAL: {
                struct gs_number n = { .has_lo = true, .has_hi = true };
                const struct gs_number *made;
                if (!gs_to_dec(g, v, &n.lo))
                        t_fail(g->c, "a number has more than 64 digits");
                n.hi = n.lo;
                n.integer = (n.lo.n <= n.lo.exp || n.lo.n == 0) && !n.lo.rounded;
                made = gs_number_new(g, &n);
                if (!made)
                        return;
                ret->num = t_grow(g->c, ret->num, ret->n_num, &ret->cap_num, ret->n_num + 1, sizeof(*ret->num));
                ret->num[ret->n_num++] = made;
                return;
        }
        case JSON_ARRAY: {
                struct gs_array *a = t_alloc(g->c, sizeof(*a));
                a->n_prefix = a->min = a->max = json_array_size(v);
                a->c_max = SIZE_MAX;
                a->path = g->c->where;
                a->prefix = t_array(g->c, a->n_prefix, sizeof(*a->prefix));
                a->items = GS_NONE_NODE;
                for (size_t i = 0; i < a->n_prefix; i++) {
                        uint32_t id = node_of(g, json_array_get(v, i), "const", UINT32_MAX, 0);
                        a->prefix[i] = id;
                }
                ret->arr = t_grow(g->c, ret->arr, ret->n_arr, &ret->cap_arr, ret->n_arr + 1, sizeof(*ret->arr));
                ret->arr[ret->n_arr++] = a;
                return;
        }
        case JSON_OBJECT: {
                struct gs_object *o = t_alloc(g->c, sizeof(*o));
                const char *key;
                json_t *x;
                o->max = SIZE_MAX;
                o->prop = t_array(g->c, json_object_size(v), sizeof(*o->prop));
                json_object_foreach((json_t *)v, key, x)
                        o->prop[o->n_prop++] = (struct gs_prop){ .name = key, .n = strlen(key), .required = true,
                                                                 .node = node_of(g, x, "const", UINT32_MAX, 0) };
                o->n_required = o->n_prop;
                ret->obj = t_grow(g->c, ret->obj, ret->n_obj, &ret->cap_obj, ret->n_obj + 1, sizeof(*ret->obj));
                ret->obj[ret->n_obj++] = o;
                return;
        }
        }
}

/* All strings of an enum make one automaton. */
void gs_values_alts(struct gs *g, const struct gs_values *values, struct gs_alts *ret) {
        struct dfa_text *t = t_array(g->c, values->n + 1, sizeof(*t));
        size_t n = 0;

        for (size_t i = 0; i < values->n; i++) {
                const json_t *v = values->v[i];
                if (json_is_string(v))
                        t[n++] = (struct dfa_text){ json_string_value(v), json_string_length(v) };
                else
                        gs_value_alts(g, v, ret);
        }
        if (n) {
                struct gs_string *s = t_alloc(g->c, sizeof(*s));
                *s = (struct gs_string){ .dfa = dfa_literals(g->c, t, n, false), .max = SIZE_MAX };
                ret->str = t_grow(g->c, ret->str, ret->n_str, &ret->cap_str, ret->n_str + 1, sizeof(*ret->str));
                ret->str[ret->n_str++] = s;
        }
}

/* ---- a schema ---- */

static const json_t **enum_values(struct gs *g, const json_t *list) {
        const json_t **v = t_array(g->c, json_array_size(list) + 1, sizeof(*v));

        for (size_t i = 0; i < json_array_size(list); i++)
                v[i] = json_array_get(list, i);
        return v;
}

static void meet_into(struct gs *g, struct gs_alts *base, const struct gs_alts *with) {
        struct gs_alts r = { 0 };
        gs_meet(g, base, with, &r);
        *base = r;
}

static const struct gs_alts *child(struct gs *g, const json_t *list, const char *path, size_t i) {
        return gs_ensure(g, gs_schema_node(g, json_array_get(list, i), gs_path_index(g, path, i)));
}

/* Of each schema what none of the others allows. */
static void exactly_one(struct gs *g, const json_t *list, const char *path, struct gs_alts *ret) {
        size_t n = json_array_size(list);
        struct gs_alts all = { 0 };
        const char *why = NULL;

        for (size_t i = 0; i < n; i++) {
                struct gs_alts left = *child(g, list, path, i);
                for (size_t k = 0; k < n; k++) {
                        struct gs_alts less = { 0 };
                        if (k == i)
                                continue;
                        gs_at(g, path, NULL);
                        if (!gs_minus(g, &left, child(g, list, path, k), &less, &why))
                                t_fail(g->c, "schemas %zu and %zu are not known to exclude each other, and what only one of them allows can't "
                                       "be worked out (%s); use anyOf, or give both a required property with different constants",
                                       MIN(i, k), MAX(i, k), why);
                        left = less;
                }
                gs_union(g, &all, &left);
        }
        *ret = all;
}

/* The same of an enum: its values that exactly one schema allows. */
static bool one_of_values(struct gs *g, const json_t *s, const json_t *list, const char *path, struct gs_alts *ret) {
        struct gs_values all, kept = { 0 };
        struct gs_alts r = { 0 };

        if (gs_refers(list) || !gs_values_of(g, s, &all))
                return false;
        kept.v = t_array(g->c, all.n + 1, sizeof(*kept.v));
        for (size_t i = 0; i < all.n; i++) {
                size_t n = 0;
                for (size_t k = 0; k < json_array_size(list); k++)
                        n += gs_fits(g, all.v[i], child(g, list, path, k));
                if (n == 1)
                        kept.v[kept.n++] = all.v[i];
        }
        gs_values_alts(g, &kept, &r);
        *ret = r;
        return true;
}

static void combine(struct gs *g, const json_t *s, const char *path, const char *key, struct gs_alts *base) {
        const json_t *list = gs_get(g, s, path, key);
        const char *lp;

        if (!list)
                return;
        if (!json_is_array(list) || json_array_size(list) == 0)
                t_fail(g->c, "must be an array with at least one schema");
        lp = gs_path(g, path, key);
        if (strcmp(key, "allOf") == 0) {
                for (size_t i = 0; i < json_array_size(list); i++) {
                        const struct gs_alts *a = child(g, list, lp, i);
                        gs_at(g, lp, NULL);
                        meet_into(g, base, a);
                }
                return;
        }
        struct gs_alts all = { 0 };
        bool overlap = false;
        for (size_t i = 0; i < json_array_size(list); i++) {
                const struct gs_alts *a = child(g, list, lp, i);
                for (size_t k = 0; strcmp(key, "oneOf") == 0 && k < i; k++) {
                        const struct gs_alts *b = child(g, list, lp, k);
                        gs_at(g, lp, NULL);
                        overlap = overlap || !gs_disjoint(g, b, a, 0);
                }
                gs_at(g, lp, NULL);
                gs_union(g, &all, a);
        }
        if (overlap && !one_of_values(g, s, list, lp, &all))
                exactly_one(g, list, lp, &all);
        meet_into(g, base, &all);
}

static void base_alts(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret) {
        static const char *const types[] = { "null", "boolean", "string", "number", "integer", "object", "array" };
        static const char *const particular[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
                "pattern", "format", "minLength", "maxLength", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
                "uniqueItems", "contains", "properties", "patternProperties", "additionalProperties", "propertyNames", "required",
                "minProperties", "maxProperties" };
        const json_t *type = gs_get(g, s, path, "type");
        bool want[ELEMENTSOF(types)] = { 0 }, constrained = false;
        size_t n = json_is_array(type) ? json_array_size(type) : 1;

        for (size_t i = 0; i < ELEMENTSOF(particular); i++)
                constrained = constrained || json_object_get(s, particular[i]);
        if (!type && !constrained) {
                *ret = g->node[GS_ANY_NODE]->alts;
                return;
        }
        for (size_t i = 0; type && i < n; i++) {
                const json_t *t = json_is_array(type) ? json_array_get(type, i) : type;
                size_t k = 0;
                while (k < ELEMENTSOF(types) && (!json_is_string(t) || strcmp(json_string_value(t), types[k]) != 0))
                        k++;
                if (k == ELEMENTSOF(types))
                        t_fail(g->c, "unknown type '%.60s'", json_is_string(t) ? json_string_value(t) : "?");
                want[k] = true;
        }
        if (!type)
                memset(want, 1, sizeof(want));
        if (want[0])
                ret->words |= GS_NULL;
        if (want[1])
                ret->words |= GS_TRUE | GS_FALSE;
        if (want[2])
                string_alt(g, s, path, ret);
        if (want[3] || want[4])
                number_alt(g, s, path, !want[3], ret);
        if (want[5])
                object_alt(g, s, path, ret);
        if (want[6])
                gs_array_alt(g, s, path, ret);
}

void gs_schema_alts(struct gs *g, const json_t *s, const char *path, struct gs_alts *ret) {
        struct gs_alts a = { 0 };
        const json_t *j;

        gs_at(g, path, NULL);
        if (!json_is_object(s))
                t_fail(g->c, "a schema must be an object or a boolean");
        for (size_t i = 0; i < ELEMENTSOF(refused); i++)
                if (gs_get(g, s, path, refused[i]))
                        t_fail(g->c, "the keyword is not supported");
        base_alts(g, s, path, &a);
        j = gs_get(g, s, path, "$ref");
        if (j) {
                if (!json_is_string(j))
                        t_fail(g->c, "must be a string");
                meet_into(g, &a, gs_ensure(g, gs_resolve(g, json_string_value(j), path)));
        }
        combine(g, s, path, "allOf", &a);
        combine(g, s, path, "anyOf", &a);
        combine(g, s, path, "oneOf", &a);
        j = gs_get(g, s, path, "enum");
        if (j) {
                struct gs_alts e = { 0 };
                if (!json_is_array(j))
                        t_fail(g->c, "must be an array");
                gs_values_alts(g, &(struct gs_values){ enum_values(g, j), json_array_size(j) }, &e);
                meet_into(g, &a, &e);
        }
        j = gs_get(g, s, path, "const");
        if (j) {
                struct gs_alts e = { 0 };
                gs_value_alts(g, j, &e);
                meet_into(g, &a, &e);
        }
        gs_conditions(g, s, path, &a);
        *ret = a;
}

struct use { bool *seen; uint32_t *list; size_t n; };

static void use(struct use *u, uint32_t node) {
        if (!u->seen[node]) {
                u->seen[node] = true;
                u->list[u->n++] = node;
        }
}

/* Compiles what the root leads to. Other nodes were looked at only, as the halves of a meet or as what a value must not fit: they have no alternatives. */
static void finish(struct gs *g) {
        struct use u = { t_array(g->c, MAX_NODES, sizeof(*u.seen)), t_array(g->c, MAX_NODES, sizeof(*u.list)), 0 };

        use(&u, GS_ANY_NODE);
        use(&u, GS_NONE_NODE);
        use(&u, GS_ROOT_NODE);
        for (size_t i = 0; i < u.n; i++) { /* compiling one may add others */
                const struct gs_alts *a = gs_ensure(g, u.list[i]);

                for (size_t k = 0; k < a->n_obj; k++) {
                        for (size_t q = 0; q < a->obj[k]->n_prop; q++)
                                use(&u, a->obj[k]->prop[q].node);
                        for (size_t q = 0; q < a->obj[k]->n_cls; q++)
                                use(&u, a->obj[k]->cls[q].node);
                }
                for (size_t k = 0; k < a->n_arr; k++) {
                        const struct gs_array *x = a->arr[k];

                        gs_array_finish(g, a->arr[k]);
                        for (size_t q = 0; q < x->n_prefix; q++)
                                use(&u, x->prefix[q]);
                        use(&u, x->items);
                        for (size_t q = 0; x->has_contains && q <= x->n_prefix; q++) {
                                use(&u, x->hit[q]);
                                use(&u, x->miss[q]);
                        }
                        for (size_t q = 0; q < x->n_value; q++)
                                use(&u, x->value[q]);
                }
        }
        for (size_t i = 0; i < g->n_node; i++)
                if (!u.seen[i])
                        g->node[i]->alts = (struct gs_alts){ 0 };
}

void gs_compile(struct gs *g, struct t_ctx *c, const struct gs_source *source) {
        const json_t *root = source->doc;
        struct gs_alts *any;

        *g = (struct gs){ .c = c, .source = source, .root = root };
        c->where = "/";
        node_of(g, NULL, "", UINT32_MAX, 1);
        node_of(g, NULL, "", UINT32_MAX, 2);
        any = &g->node[GS_ANY_NODE]->alts;
        any->any = true;
        any->words = GS_NULL | GS_TRUE | GS_FALSE;
        number_alt(g, NULL, "", false, any);
        string_alt(g, NULL, "", any);
        object_alt(g, NULL, "", any);
        gs_array_alt(g, NULL, "", any);
        g->node[GS_ANY_NODE]->status = g->node[GS_NONE_NODE]->status = GS_DONE;
        if (json_is_boolean(root) || (json_is_object(root) && json_object_size(root) == 0)) {
                node_of(g, NULL, "", UINT32_MAX, 3);
                g->node[GS_ROOT_NODE]->status = GS_DONE;
                if (!json_is_false(root))
                        g->node[GS_ROOT_NODE]->alts = *any;
        } else {
                node_of(g, root, "", 0, 0);
        }
        finish(g);
        gs_prune(g);
        c->where = NULL;
}
