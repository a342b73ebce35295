/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References within a schema's document: '#', '#/a/b' and the plain names that
 * "$anchor" gives ("$dynamicAnchor" too, which is one as well; before 2019-09
 * "$id": "#name"). A schema with an "$id" of its own begins a resource: references
 * within it, pointers and names alike, are relative to it, and its names are no
 * names outside (JSON schema 2020-12 core, 8.2). Names are those of schemas where
 * the standard has schemas: an "$anchor" in an enum's value is a value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/gram_schema.h"

struct gs_anchor { const json_t *base, *schema; const char *name, *path; };

/* Does a new resource begin here? */
static bool is_resource(const json_t *j) {
        const char *id = json_string_value(json_object_get(j, "$id"));
        return id && id[0] != '#';
}

static int hex(char ch) {
        return ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
}

/* One token of a pointer, without its '/'; returns what follows it. 'uri': with percent signs as a fragment has them. */
static const char *token_of(struct gs *g, const char *p, bool uri, const char **ret) {
        char *token = t_alloc(g->c, strcspn(p + 1, "/") + 1);
        size_t n = 0;

        for (p++; *p && *p != '/'; p++) {
                char ch = *p;
                if (uri && ch == '%' && hex(p[1]) >= 0 && hex(p[2]) >= 0 && hex(p[1]) + hex(p[2]) > 0) { /* no key has a zero byte */
                        ch = (char)(hex(p[1]) * 16 + hex(p[2]));
                        p += 2;
                }
                if (ch == '~' && (p[1] == '0' || p[1] == '1')) {
                        ch = p[1] == '0' ? '~' : '/';
                        p++;
                }
                token[n++] = ch;
        }
        *ret = token;
        return p;
}

static const json_t *member(const json_t *j, const char *token) {
        if (!json_is_array(j))
                return json_object_get(j, token);
        /* digits, none of them idle (RFC 6901, 4) */
        return token[0] && token[strspn(token, "0123456789")] == 0 && (token[0] != '0' || !token[1]) ? json_array_get(j, strtoul(token, NULL, 10)) : NULL;
}

/* The resource that the schema at this path is in; *ret_path: its own. */
static const json_t *resource_of(struct gs *g, const char *path, const char **ret_path) {
        const json_t *j = g->root, *base = g->root;
        const char *token;
        size_t n = 0;
        char *own;

        for (const char *p = path; *p && j;) {
                p = token_of(g, p, false, &token);
                j = member(j, token);
                if (j && is_resource(j)) {
                        base = j;
                        n = (size_t)(p - path);
                }
        }
        own = t_alloc(g->c, n + 1);
        memcpy(own, path, n);
        *ret_path = own;
        return base;
}

/* ---- names ---- */

static void find(struct gs *g, const json_t *base, const json_t *j, const char *path);

static void find_within(struct gs *g, const json_t *base, const json_t *j, const char *path, const char *key) {
        static const char *const maps[] = { "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies" };
        const json_t *v = json_object_get(j, key), *x;
        const char *name, *at = v ? gs_path(g, path, key) : NULL;
        size_t i;

        for (i = 0; i < ELEMENTSOF(maps); i++)
                if (strcmp(key, maps[i]) == 0) {
                        json_object_foreach((json_t *)v, name, x)
                                find(g, base, x, gs_path(g, at, name));
                        return;
                }
        if (json_is_object(v))
                find(g, base, v, at);
        json_array_foreach(v, i, x)
                find(g, base, x, gs_path_index(g, at, i));
}

static void name(struct gs *g, const json_t *base, const json_t *j, const char *path, const char *text) {
        if (!text)
                return;
        g->anchor = t_grow(g->c, g->anchor, g->n_anchor, &g->cap_anchor, g->n_anchor + 1, sizeof(*g->anchor));
        g->anchor[g->n_anchor++] = (struct gs_anchor){ base, j, text, path };
}

static void find(struct gs *g, const json_t *base, const json_t *j, const char *path) {
        static const char *const keys[] = { "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies", "items",
                "prefixItems", "additionalItems", "additionalProperties", "contains", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else" };
        const char *id = json_string_value(json_object_get(j, "$id")), *dynamic = json_string_value(json_object_get(j, "$dynamicAnchor"));
        const char *anchor = json_string_value(json_object_get(j, "$anchor"));

        if (!json_is_object(j))
                return;
        if (is_resource(j))
                base = j;
        name(g, base, j, path, anchor);
        if (!anchor || !dynamic || strcmp(anchor, dynamic) != 0)
                name(g, base, j, path, dynamic);
        name(g, base, j, path, id && id[0] == '#' && id[1] ? id + 1 : NULL);
        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                find_within(g, base, j, path, keys[i]);
}

static int by_name(const void *x, const void *y) {
        const struct gs_anchor *a = x, *b = y;

        if (a->base != b->base)
                return (uintptr_t)a->base < (uintptr_t)b->base ? -1 : 1;
        return strcmp(a->name, b->name);
}

static uint32_t named(struct gs *g, const json_t *base, const char *text) {
        struct gs_anchor key = { .base = base, .name = text }, *a;

        if (!g->anchors_known) {
                find(g, g->root, g->root, "");
                if (g->n_anchor)
                        qsort(g->anchor, g->n_anchor, sizeof(*g->anchor), by_name);
                g->anchors_known = true;
        }
        a = g->n_anchor ? bsearch(&key, g->anchor, g->n_anchor, sizeof(*g->anchor), by_name) : NULL;
        if (!a)
                t_fail(g->c, "there is no \"$anchor\": \"%.100s\" here", text);
        if ((a > g->anchor && by_name(a - 1, a) == 0) || (a + 1 < g->anchor + g->n_anchor && by_name(a, a + 1) == 0))
                t_fail(g->c, "there is more than one \"$anchor\": \"%.100s\"", text);
        return gs_schema_node(g, a->schema, a->path);
}

/* ---- */

uint32_t gs_resolve(struct gs *g, const char *ref, const char *from) {
        const char *path;
        const json_t *j;

        if (ref[0] != '#')
                t_fail(g->c, "'%.100s' is not supported: only references within this document, '#', '#/...' and '#name'", ref);
        j = resource_of(g, from, &path);
        if (ref[1] && ref[1] != '/')
                return named(g, j, ref + 1);
        for (ref++; *ref;) {
                const char *token;

                ref = token_of(g, ref, true, &token);
                path = gs_path(g, path, token);
                j = member(j, token);
                if (!j)
                        t_fail(g->c, "there is nothing at '#%.100s'", path);
        }
        return gs_schema_node(g, j, path);
}
