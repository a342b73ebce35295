/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads every weight of a model's files and looks for values that are not
 * finite. One NaN in a matrix makes every answer nonsense without an error, and
 * damaged downloads and broken converters do write them.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/image.h"

#define PIECE_WEIGHTS 65536u

struct verify {
        const struct image_source *s;
        uint8_t *raw;
        float *value;          /* [PIECE_WEIGHTS] */
        uint64_t done, total;
        uint64_t n_bad;        /* tensors */
        char first[IMAGE_NAME];
        uint64_t first_at, first_count; /* in that tensor: index of the first, how many */
};

static int verify_tensor(struct verify *v, const struct gguf_tensor *t, struct h_error *err) {
        uint64_t block = k_type_block(t->type), bytes = k_type_bytes(t->type), per = PIECE_WEIGHTS / block;
        uint64_t n = t->bytes / bytes, bad = 0, bad_at = 0;

        for (uint64_t at = 0; at < n; at += per) {
                uint64_t k = MIN(per, n - at);
                int r = image_source_read(v->s, t->part, v->raw, k * bytes, t->offset + at * bytes, err);
                if (r < 0)
                        return r;
                k_decode(t->type, v->raw, v->value, k * block);
                for (uint64_t i = 0; i < k * block; i++)
                        if (!isfinite(v->value[i]) && bad++ == 0)
                                bad_at = at * block + i;
                v->done += k * bytes;
        }
        if (bad && v->n_bad++ == 0) {
                memcpy(v->first, t->name.p, t->name.n); /* shorter than IMAGE_NAME: the parser's limit */
                v->first_at = bad_at;
                v->first_count = bad;
        }
        return 0;
}

static int verify_all(struct verify *v, const struct eng_image_options *o, struct h_error *err) {
        for (uint32_t p = 0; p < v->s->n_parts; p++)
                for (size_t i = 0; i < v->s->part[p].g->n_tensors; i++)
                        v->total += v->s->part[p].g->tensors[i].bytes;
        for (uint32_t p = 0; p < v->s->n_parts; p++)
                for (size_t i = 0; i < v->s->part[p].g->n_tensors; i++) {
                        const struct gguf_tensor *t = &v->s->part[p].g->tensors[i];
                        int r = t->type == K_I32 ? 0 : verify_tensor(v, t, err);
                        if (r < 0)
                                return r;
                        if (o && o->progress)
                                o->progress(o->ud, v->done, v->total);
                }
        if (v->n_bad == 0)
                return 0;
        return h_error_counts(err, HEARTH_E_model_invalid, 0, v->n_bad,
                              "%s: tensor %s holds %llu values that are not finite, the first at index %llu%s; the file is "
                              "damaged or was converted wrongly: get it again", v->s->src->name ? v->s->src->name : "model",
                              v->first, (unsigned long long)v->first_count, (unsigned long long)v->first_at,
                              v->n_bad > 1 ? ", and other tensors do too" : "");
}

int eng_source_verify(const struct eng_source *src, const struct eng_image_options *o, struct h_error *err) {
        struct image_source s = { 0 };
        struct verify v = { .s = &s };
        int r;

        r = image_source_open(src, &s, err);
        if (r < 0)
                return r;
        v.raw = h_malloc((size_t)PIECE_WEIGHTS * sizeof(float)); /* no type takes more than 4 bytes a weight */
        v.value = h_malloc((size_t)PIECE_WEIGHTS * sizeof(float));
        r = v.raw && v.value ? verify_all(&v, o, err) : h_error_from_errno(err, -ENOMEM, "verifying a model");
        free(v.raw);
        free(v.value);
        image_source_close(&s);
        return r;
}
