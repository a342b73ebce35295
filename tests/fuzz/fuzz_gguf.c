/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GGUF parser on hostile bytes. What it accepts must be true: tensors inside
 * the file, keys found by their own names.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct gguf *g, size_t size) {
        uint32_t u, many[8];
        int32_t ints[8];
        float f, floats[8];
        bool y, bools[8];
        struct gguf_str s;

        for (size_t i = 0; i < g->n_tensors; i++) {
                const struct gguf_tensor *t = &g->tensors[i];
                if (t->offset > size || t->bytes > size - t->offset)
                        abort();
        }
        for (size_t i = 0; i < g->n_kv; i++) {
                char key[256];
                struct h_error err = { 0 };
                if (g->kv[i].key.n >= sizeof(key) || memchr(g->kv[i].key.p, 0, g->kv[i].key.n) ||
                    memmem(g->kv[i].key.p, g->kv[i].key.n, "%s", 2))
                        continue;
                memcpy(key, g->kv[i].key.p, g->kv[i].key.n);
                key[g->kv[i].key.n] = 0;
                if (gguf_find(g, key) != &g->kv[i])
                        abort();
                (void)gguf_u32(g, key, 0, &u, &err);
                (void)gguf_f32(g, key, 0, &f, &err);
                (void)gguf_bool(g, key, 0, &y, &err);
                (void)gguf_string(g, key, &s, &err);
                (void)gguf_u32_per_layer(g, key, 8, many, &err);
                (void)gguf_bool_per_layer(g, key, 8, bools, &err);
                (void)gguf_f32_array(g, key, 8, floats, &u, &err);
                (void)gguf_i32_array(g, key, 8, ints, &u, &err);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct h_error err = { 0 };
        struct gguf *g = NULL;
        int r = gguf_parse(data, size, size, &g, &err);

        if (r == 0)
                check(g, size);
        else if (r != -EHEARTH || err.code == HEARTH_OK || g)
                abort();
        gguf_free(g);
        /* As a beginning of something longer. */
        g = NULL;
        memset(&err, 0, sizeof(err));
        r = gguf_parse(data, size, (uint64_t)size + 1000, &g, &err);
        if (r == -EAGAIN && err.code != HEARTH_OK)
                abort();
        gguf_free(g);
        return 0;
}
