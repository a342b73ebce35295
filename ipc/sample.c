/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/sample.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/check.h"

static void *take(struct schema_arena *a, size_t n) {
        void *p = schema_arena_alloc(a, n);
        if (!p)
                abort();
        return p;
}

/* Some length within the bounds, short where the bounds allow. */
static size_t some_length(const struct schema_field *f) {
        return (size_t)MIN(MAX(f->min.u, (uint64_t)8), f->max.u);
}

static void fill(const struct schema *s, int type, bool full, struct schema_arena *a, void *body) {
        const struct schema_desc *d = &s->descs[type];

        schema_init(s, type, body);
        for (uint32_t i = 0; i < d->n_fields; i++) {
                const struct schema_field *f = &d->fields[i];
                void *at = field_at(f, body);

                if (!full && f->presence != REQUIRED)
                        continue;
                *field_has(f, body) = true;
                switch (f->type) {
                case TYPE_str: case TYPE_text: case TYPE_bin: {
                        size_t n = some_length(f);
                        char *p = take(a, n + 1);
                        for (size_t k = 0; k < n; k++)
                                p[k] = (char)('a' + (k + i) % 26);
                        *(char **)at = p;
                        *field_n(f, body) = n;
                        break;
                }
                case TYPE_flag: *(bool *)at = f->def.u == 0; break;
                case TYPE_u32: *(uint32_t *)at = (uint32_t)f->max.u; break;
                case TYPE_u64: *(uint64_t *)at = f->max.u; break;
                case TYPE_i64: *(int64_t *)at = f->min.i; break;
                case TYPE_f64: *(double *)at = (f->min.d + f->max.d) / 2; break;
                case TYPE_strs: {
                        size_t n = (size_t)MIN(MAX(f->min.u, (uint64_t)2), f->max.u);
                        const char **list = take(a, n * sizeof(*list));
                        for (size_t k = 0; k < n; k++)
                                list[k] = k % 2 ? "" : "gr\xc3\xbc\xc3\x9f";
                        *(const char ***)at = list;
                        *field_n(f, body) = n;
                        break;
                }
                case TYPE_list: {
                        size_t n = (size_t)MIN(MAX(f->min.u, (uint64_t)2), f->max.u), size = s->descs[f->sub].size;
                        char *list = take(a, n * size);
                        for (size_t k = 0; k < n; k++)
                                fill(s, f->sub, k == 0, a, list + k * size);
                        *(void **)at = list;
                        *field_n(f, body) = n;
                        break;
                }
                }
        }
}

void *schema_sample(const struct schema *s, int type, bool full, struct schema_arena **arena) {
        void *body;

        if (!*arena && schema_arena_new(4096, arena) < 0)
                abort();
        body = take(*arena, s->descs[type].size);
        fill(s, type, full, *arena, body);
        return body;
}

void schema_sample_free(struct schema_arena *arena) {
        schema_arena_free(arena);
}
