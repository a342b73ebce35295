/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each tensor of a source goes in an image, in which type and layout,
 * decided from metadata alone. Values never change: a matrix keeps its type and
 * is at most rearranged; what kernels read as plain numbers (norms, biases,
 * scales, convolution taps) is decoded to float32.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/image.h"

int image_backend(enum eng_backend backend, const struct k_ops **ret, struct h_error *err) {
        const struct k_ops *ops = backend == ENG_CPU ? k_cpu_ops() : backend == ENG_CUDA ? k_cuda_ops() : NULL;
        if (!ops)
                return h_error_set(err, HEARTH_E_unsupported, "this build has no %s backend",
                                   backend == ENG_CUDA ? "CUDA" : "such");
        *ret = ops;
        return 0;
}

void image_row_shape(const struct image_row *r, uint64_t *ret_rows, uint64_t *ret_cols, uint64_t *ret_n) {
        *ret_cols = r->dim[0];
        *ret_rows = r->dim[1];
        *ret_n = r->dim[2] * r->dim[3]; /* the parser made sure that products fit */
}

bool image_row_bytes(const struct image_row *r, const struct k_ops *ops, uint64_t *ret_stride, uint64_t *ret_bytes) {
        uint64_t rows, cols, n, one, stride, all;
        size_t row;

        image_row_shape(r, &rows, &cols, &n);
        if (rows == 0 || cols == 0 || n == 0 || rows > UINT32_MAX || cols > UINT32_MAX || n > UINT32_MAX ||
            !k_type_row_bytes(r->type, cols, &row))
                return false;
        if (r->layout == K_LAYOUT_FILE) {
                if (__builtin_mul_overflow(rows, (uint64_t)row, &one))
                        return false;
        } else {
                one = ops->layout_bytes(r->type, r->layout, (uint32_t)rows, (uint32_t)cols);
                if (one == 0)
                        return false;
        }
        /* Experts stay packed in file order: their stride is what the source has. */
        stride = one;
        if (r->layout != K_LAYOUT_FILE && n > 1 && !size_align(one, IMAGE_ALIGN, &stride))
                return false;
        if (__builtin_mul_overflow(stride, n - 1, &all) || __builtin_add_overflow(all, one, &all))
                return false;
        *ret_stride = stride;
        *ret_bytes = all;
        return true;
}

static bool ends_with(struct gguf_str s, const char *suffix) {
        size_t n = strlen(suffix);
        return s.n >= n && memcmp(s.p + s.n - n, suffix, n) == 0;
}

static bool is_vector(const struct gguf_tensor *t) {
        static const char *const suffixes[] = { ".bias", ".scale", "conv1d.weight", "conv.weight" };

        if (t->type == K_I32)
                return false;
        if (t->n_dims == 1)
                return true;
        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++)
                if (ends_with(t->name, suffixes[i]))
                        return true;
        return false;
}

static bool is_embedding(const struct gguf_tensor *t, bool has_output) {
        if (ends_with(t->name, "per_layer_token_embd.weight") || ends_with(t->name, "position_embd.weight") ||
            ends_with(t->name, "token_types.weight"))
                return true;
        /* Tied tables are read by the output product, so they get a matrix's layout. */
        return has_output && ends_with(t->name, "token_embd.weight");
}

static int plan_tensor(const struct gguf_tensor *t, const struct k_ops *ops, bool has_output,
                       struct image_tensor_plan *p, struct h_error *err) {
        struct image_row *r = &p->row;
        uint64_t rows, cols, n;

        p->src = t;
        memcpy(r->name, t->name.p, t->name.n); /* the parser's limit is below IMAGE_NAME */
        r->file_type = t->type;
        r->n_dims = t->n_dims;
        memcpy(r->dim, t->dim, sizeof(r->dim));
        p->decode = is_vector(t) && t->type != K_F32;
        r->type = p->decode ? K_F32 : t->type;
        r->layout = K_LAYOUT_FILE;
        image_row_shape(r, &rows, &cols, &n);
        if (rows > UINT32_MAX || cols > UINT32_MAX || n > UINT32_MAX)
                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: a dimension passes 2^32-1", r->name);
        if (!is_vector(t) && t->type != K_I32)
                r->layout = ops->layout_pick(t->type, (uint32_t)rows, (uint32_t)cols, is_embedding(t, has_output));
        if (!image_row_bytes(r, ops, &r->stride, &r->bytes))
                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: the size overflows", r->name);
        return 0;
}

static int name_compare(const void *a, const void *b, void *tensors) {
        const struct image_tensor_plan *t = tensors;
        return strcmp(t[*(const uint32_t *)a].row.name, t[*(const uint32_t *)b].row.name);
}

static int plan_all(const struct image_source *s, struct image_plan *p, struct h_error *err) {
        struct image_header *h = &p->header;
        const struct gguf *g0 = s->part[0].g;
        uint64_t at, k = 0;
        bool has_output = false;
        int r;

        p->tensor = h_new0(struct image_tensor_plan, s->n_tensors);
        p->by_name = h_new0(uint32_t, s->n_tensors);
        if (!p->tensor || !p->by_name)
                return -ENOMEM;
        h->version = IMAGE_VERSION;
        h->n_tensors = (uint32_t)s->n_tensors;
        h->row_bytes = sizeof(struct image_row);
        h->rows_off = IMAGE_PAGE;
        h->meta_off = h->rows_off + s->n_tensors * sizeof(struct image_row);
        h->meta_bytes = 24 + (g0->kv_end - g0->kv_offset);
        at = h->data_off = (h->meta_off + h->meta_bytes + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);

        for (uint32_t i = 0; i < s->n_parts; i++)
                has_output |= gguf_find_tensor(s->part[i].g, "output.weight") != NULL;
        for (uint32_t i = 0; i < s->n_parts; i++)
                for (size_t j = 0; j < s->part[i].g->n_tensors; j++, k++) {
                        const struct gguf_tensor *t = &s->part[i].g->tensors[j];
                        struct image_row *row = &p->tensor[k].row;
                        uint64_t n = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];

                        r = plan_tensor(t, p->ops, has_output, &p->tensor[k], err);
                        if (r < 0)
                                return r;
                        row->offset = at;
                        if (__builtin_add_overflow(at, row->bytes, &at) || !size_align(at, IMAGE_ALIGN, &at) ||
                            __builtin_add_overflow(h->n_params, n, &h->n_params))
                                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: the model's size overflows",
                                                   row->name);
                        p->by_name[k] = (uint32_t)k;
                }
        if (__builtin_add_overflow(at, (uint64_t)IMAGE_TAIL, &at) || !size_align(at, IMAGE_PAGE, &at) || at > INT64_MAX)
                return h_error_set(err, HEARTH_E_model_invalid, "the model's size overflows");
        h->bytes = at;

        qsort_r(p->by_name, h->n_tensors, sizeof(uint32_t), name_compare, p->tensor);
        for (uint32_t i = 1; i < h->n_tensors; i++) {
                const struct image_tensor_plan *a = &p->tensor[p->by_name[i - 1]], *b = &p->tensor[p->by_name[i]];
                if (strcmp(a->row.name, b->row.name) == 0)
                        return h_error_set(err, HEARTH_E_model_invalid,
                                           "tensor %s is in part %u and in part %u of the split model", a->row.name,
                                           MIN(a->src->part, b->src->part) + 1, MAX(a->src->part, b->src->part) + 1);
        }
        return 0;
}

int image_plan_make(const struct image_source *s, enum eng_backend backend, struct image_plan *ret,
                    struct h_error *err) {
        struct image_plan p = { .header.backend = backend };
        int r;

        r = image_backend(backend, &p.ops, err);
        if (r < 0)
                return r;
        r = plan_all(s, &p, err);
        if (r < 0) {
                image_plan_free(&p);
                if (r == -EHEARTH)
                        return h_error_prefix(err, "%s", s->src->name ? s->src->name : "model");
                return h_error_from_errno(err, r, "planning a model's image");
        }
        *ret = p;
        return 0;
}

void image_plan_free(struct image_plan *p) {
        free(p->tensor);
        free(p->by_name);
        memset(p, 0, sizeof(*p));
}
