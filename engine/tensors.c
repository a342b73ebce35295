/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of an image on a device. On the CPU they are the image's mapped
 * bytes, with no copy; elsewhere each is uploaded once, in one allocation.
 */
#include "engine/tensors.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model.h"

#define SLAB ((size_t)64 << 10) /* own vectors are small: take memory for many at once */

struct own {
        struct own *next;
        void *mem;
        size_t used, size;
};

struct tensors {
        const struct eng_image *im;
        struct k_dev *dev;
        const uint8_t *base;  /* device address of the image's data region */
        void *mem;            /* what to free: NULL when mapped */
        struct own *own;
        uint64_t own_bytes;
};

int tensors_open(struct eng_device *d, const struct eng_image *im, struct tensors **ret, struct h_error *err) {
        const struct k_ops *ops = d->k->ops;
        uint64_t bytes = im->header->bytes - im->header->data_off;
        struct tensors *t;
        int r;

        if (im->header->backend != d->o.backend)
                return h_error_set(err, HEARTH_E_bad_request, "the image was packed for another backend than %s",
                                   ops->name);
        t = h_new0(struct tensors, 1);
        if (!t)
                return h_error_from_errno(err, -ENOMEM, "opening a model");
        t->im = im;
        t->dev = d->k;
        t->base = im->map + im->header->data_off;
        if (d->o.backend == ENG_CPU) {
                *ret = t;
                return 0;
        }
        t->mem = ops->mem_alloc(d->k, bytes);
        if (!t->mem) {
                struct k_mem_info info = { 0 };
                (void)ops->mem_info(d->k, &info);
                free(t);
                return h_error_counts(err, HEARTH_E_model_no_memory, bytes, info.free_now,
                                      "the weights need %llu bytes of device memory, %llu are free",
                                      (unsigned long long)bytes, (unsigned long long)info.free_now);
        }
        r = ops->upload(d->k, t->mem, t->base, bytes);
        if (r < 0) {
                ops->mem_free(d->k, t->mem);
                free(t);
                return h_error_set(err, HEARTH_E_device_lost, "uploading the weights: %s", ops->last_error(d->k));
        }
        t->base = t->mem;
        *ret = t;
        return 0;
}

struct tensors *tensors_close(struct tensors *t) {
        if (!t)
                return NULL;
        while (t->own) {
                struct own *o = t->own;
                t->own = o->next;
                t->dev->ops->mem_free(t->dev, o->mem);
                free(o);
        }
        if (t->mem)
                t->dev->ops->mem_free(t->dev, t->mem);
        free(t);
        return NULL;
}

uint64_t tensors_own_bytes(const struct tensors *t) {
        return t->own_bytes;
}

static const void *device_address(const struct tensors *t, const struct image_row *r) {
        return t->base + (r->offset - t->im->header->data_off);
}

/* The row of a formatted name; the name stays in buf for messages. */
static const struct image_row *find(const struct tensors *t, char buf[IMAGE_NAME], const char *fmt, va_list ap) {
        int n = vsnprintf(buf, IMAGE_NAME, fmt, ap);
        return n < 0 || n >= (int)IMAGE_NAME ? NULL : image_find(t->im, buf);
}

static int missing(const char *name, struct h_error *err) {
        return h_error_set(err, HEARTH_E_model_invalid, "tensor %s is missing", name);
}

/* "[64, 32, 4]": dim[0] first, as the file has it. */
static const char *shape(const struct image_row *r, char buf[96]) {
        size_t at = 0;
        for (unsigned i = 0; i < r->n_dims; i++)
                at += (size_t)snprintf(buf + at, 96 - at, "%s%llu", i ? ", " : "[", (unsigned long long)r->dim[i]);
        snprintf(buf + at, 96 - at, "]");
        return buf;
}

/* Finds "X.scale" for "X.weight". */
static int find_scale(const struct tensors *t, const char *name, uint32_t n, struct k_weight *w, struct h_error *err) {
        char scale[IMAGE_NAME + 8], buf[96];
        const struct image_row *r;
        size_t len = strlen(name);

        if (len < 7 || strcmp(name + len - 7, ".weight") != 0)
                return 0;
        /* A router's ".scale" belongs to the norm of its input (gemma4), not to its product. */
        if (strstr(name, "ffn_gate_inp.weight"))
                return 0;
        snprintf(scale, sizeof(scale), "%.*s.scale", (int)(len - 7), name);
        r = image_find(t->im, scale);
        if (!r)
                return 0;
        if (r->type != K_F32 || r->dim[0] * r->dim[1] * r->dim[2] * r->dim[3] != MAX(n, 1u))
                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: %u values expected, found %s", scale,
                                   MAX(n, 1u), shape(r, buf));
        w->scale = device_address(t, r);
        return 0;
}

int tensors_matrix(struct tensors *t, enum tensor_need need, uint32_t rows, uint32_t cols, uint32_t n_expert,
                   struct k_weight *ret, struct h_error *err, const char *fmt, ...) {
        char name[IMAGE_NAME], buf[96];
        const struct image_row *r;
        struct k_weight w = { 0 };
        uint64_t got_rows, got_cols, got_n;
        va_list ap;
        int e;

        va_start(ap, fmt);
        r = find(t, name, fmt, ap);
        va_end(ap);
        if (!r) {
                if (need == TENSOR_REQUIRED)
                        return missing(name, err);
                *ret = w;
                return 0;
        }
        image_row_shape(r, &got_rows, &got_cols, &got_n);
        if ((rows && got_rows != rows) || (cols && got_cols != cols) || got_n != MAX(n_expert, 1u) || r->type == K_I32)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   "tensor %s: a matrix of %u outputs, %u inputs%s%.0u expected (0: any), found %s %s",
                                   name, rows, cols, n_expert > 1 ? ", experts " : "", n_expert > 1 ? n_expert : 0,
                                   k_type_name((enum k_type)r->type), shape(r, buf));
        w = (struct k_weight){
                .type = (enum k_type)r->type, .layout = (enum k_layout)r->layout, .rows = (uint32_t)got_rows,
                .cols = (uint32_t)got_cols, .n_expert = n_expert, .expert_stride = r->stride,
                .data = device_address(t, r),
        };
        e = find_scale(t, name, n_expert, &w, err);
        if (e < 0)
                return e;
        *ret = w;
        return 0;
}

static int vector(struct tensors *t, enum tensor_need need, uint64_t n, const char *name, const struct image_row *r,
                  struct h_error *err) {
        char buf[96];

        if (!r)
                return need == TENSOR_REQUIRED ? missing(name, err) : 0;
        if (r->dim[0] * r->dim[1] * r->dim[2] * r->dim[3] != n)
                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: %llu values expected, found %s", name,
                                   (unsigned long long)n, shape(r, buf));
        if (r->type != K_F32 || r->layout != K_LAYOUT_FILE)
                return h_error_set(err, HEARTH_E_model_invalid, "tensor %s: float values expected, found %s %s", name,
                                   k_type_name((enum k_type)r->file_type), shape(r, buf));
        return 1;
}

int tensors_vector(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                   const char *fmt, ...) {
        char name[IMAGE_NAME];
        const struct image_row *row;
        va_list ap;
        int r;

        va_start(ap, fmt);
        row = find(t, name, fmt, ap);
        va_end(ap);
        r = vector(t, need, n, name, row, err);
        if (r < 0)
                return r;
        *ret = r ? device_address(t, row) : NULL;
        return 0;
}

int tensors_host(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                 const char *fmt, ...) {
        char name[IMAGE_NAME];
        const struct image_row *row;
        va_list ap;
        int r;

        va_start(ap, fmt);
        row = find(t, name, fmt, ap);
        va_end(ap);
        r = vector(t, need, n, name, row, err);
        if (r < 0)
                return r;
        *ret = r ? image_data(t->im, row) : NULL;
        return 0;
}

bool tensors_shape(struct tensors *t, uint64_t ret_dim[4], const char *fmt, ...) {
        char name[IMAGE_NAME];
        const struct image_row *r;
        va_list ap;

        va_start(ap, fmt);
        r = find(t, name, fmt, ap);
        va_end(ap);
        if (r)
                memcpy(ret_dim, r->dim, sizeof(r->dim));
        return r != NULL;
}

int tensors_own(struct tensors *t, const float *values, uint64_t n, const float **ret, struct h_error *err) {
        struct own *o = t->own;
        size_t bytes;
        void *at;
        int r;

        if (!size_mul(n, sizeof(float), &bytes) || !size_align(bytes, 256, &bytes))
                return h_error_from_errno(err, -EOVERFLOW, "a vector of the model");
        if (!o || bytes > o->size - o->used) {
                o = h_new0(struct own, 1);
                if (!o)
                        return h_error_from_errno(err, -ENOMEM, "a vector of the model");
                o->size = MAX(bytes, SLAB);
                o->mem = t->dev->ops->mem_alloc(t->dev, o->size);
                if (!o->mem) {
                        free(o);
                        return h_error_from_errno(err, -ENOMEM, "a vector of the model");
                }
                o->next = t->own;
                t->own = o;
                t->own_bytes += o->size;
        }
        at = (uint8_t *)o->mem + o->used;
        r = t->dev->ops->upload(t->dev, at, values, n * sizeof(float));
        if (r < 0)
                return h_error_set(err, HEARTH_E_device_lost, "uploading a vector: %s", t->dev->ops->last_error(t->dev));
        o->used += bytes;
        *ret = at;
        return 0;
}
