/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of an image on a device. On the CPU they are the image's mapped
 * bytes, with no copy; elsewhere what the plan gives to the device is uploaded
 * into one allocation, and the rest is read where it is mapped.
 */
#include "engine/tensors.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/model.h"
#include "kernels/mixed.h"

#define SLAB ((size_t)64 << 10) /* own vectors are small: take memory for many at once */

struct own {
        struct own *next;
        void *mem;            /* the device's; of a dry run: ours */
        uint8_t *host;        /* the same bytes, where the host computes too */
        size_t used, size;
};

struct tensors {
        struct eng_image *im;
        struct k_dev *dev;
        struct place place;   /* 'of' NULL: all where it is mapped */
        uint8_t *mem;         /* the device's allocation, or NULL */
        struct upload up;
        bool dry, mixed;
        struct own *own;
        uint64_t own_bytes;
};

static int no_memory(struct k_dev *dev, uint64_t bytes, struct h_error *err) {
        struct k_mem_info info = { 0 };

        (void)dev->ops->mem_info(dev, &info);
        return h_error_counts(err, HEARTH_E_model_no_memory, bytes, info.free_now,
                              "the weights need %llu bytes of device memory, %llu are free", (unsigned long long)bytes,
                              (unsigned long long)info.free_now);
}

/* The host's device must find what lies in the main one's memory: vectors there, everything else where it is mapped. */
static int map_all(struct tensors *t) {
        const struct eng_image *im = t->im;
        int r = k_mixed_map(t->dev, im->map, im->map, im->map_bytes);

        t->mixed = r == 0;
        for (uint32_t i = 0; r == 0 && t->mem && i < im->header->n_tensors; i++)
                if (t->place.of[i] == K_PLACE_DEVICE && im->rows[i].type == K_F32)
                        r = k_mixed_map(t->dev, t->mem + t->place.at[i], im->map + im->rows[i].offset, im->rows[i].bytes);
        return r;
}

static void unmap_all(struct tensors *t) {
        const struct eng_image *im = t->im;

        if (!t->mixed)
                return;
        k_mixed_unmap(t->dev, im->map);
        for (uint32_t i = 0; t->mem && i < im->header->n_tensors; i++)
                if (t->place.of[i] == K_PLACE_DEVICE && im->rows[i].type == K_F32)
                        k_mixed_unmap(t->dev, t->mem + t->place.at[i]);
}

static int to_device(struct tensors *t, const struct tensors_how *how, struct h_error *err) {
        struct upload_args a = { .dev = t->dev, .im = t->im, .place = &t->place, .progress = how->progress, .ud = how->ud };

        a.mem = t->mem = t->dev->ops->mem_alloc(t->dev, t->place.device_bytes);
        if (!t->mem)
                return no_memory(t->dev, t->place.device_bytes, err);
        return upload_run(&a, &t->up, err);
}

int tensors_open(struct eng_device *d, struct eng_image *im, const struct tensors_how *how, struct tensors **ret,
                 struct h_error *err) {
        struct tensors *t;
        int r = 0;

        if (im->header->backend != d->o.backend)
                return h_error_set(err, HEARTH_E_unsupported, "the image was packed for another backend than %s",
                                   d->k->ops->name);
        t = h_new0(struct tensors, 1);
        if (!t)
                return h_error_from_errno(err, -ENOMEM, "opening a model");
        t->im = im;
        t->dev = d->k;
        t->dry = how->dry;
        if (how->place) {
                t->place = *how->place;
                *how->place = (struct place){ 0 };
        }
        if (!t->dry && d->o.backend != ENG_CPU)
                r = to_device(t, how, err);
        if (r >= 0 && !t->dry && t->dev->mixed && t->place.host_bytes)
                r = map_all(t);
        if (r < 0) {
                tensors_close(t);
                return h_error_from_errno(err, r, "opening a model");
        }
        *ret = t;
        return 0;
}

struct tensors *tensors_close(struct tensors *t) {
        if (!t)
                return NULL;
        unmap_all(t);
        while (t->own) {
                struct own *o = t->own;
                t->own = o->next;
                if (o->host && t->mixed)
                        k_mixed_unmap(t->dev, o->mem);
                if (t->dry)
                        free(o->mem);
                else
                        t->dev->ops->mem_free(t->dev, o->mem);
                free(o->host);
                free(o);
        }
        if (t->mem)
                t->dev->ops->mem_free(t->dev, t->mem);
        place_free(&t->place);
        free(t);
        return NULL;
}

uint64_t tensors_own_bytes(const struct tensors *t) {
        return t->own_bytes;
}

const struct place *tensors_place(const struct tensors *t) {
        return &t->place;
}

/* The largest of the device's tensors comes once more: the same bytes to the same place, before anybody reads it. */
double tensors_bus_rate(const struct tensors *t) {
        const struct image_row *rows = t->im->rows;
        uint32_t n = t->im->header->n_tensors, best = 0;
        struct timespec t0, t1;
        uint64_t bytes;
        double s;

        for (uint32_t i = 1; t->mem && i < n; i++)
                if (t->place.of[i] == K_PLACE_DEVICE && (t->place.of[best] != K_PLACE_DEVICE || rows[i].bytes > rows[best].bytes))
                        best = i;
        if (!t->mem || !t->up.pinned || t->place.of[best] != K_PLACE_DEVICE)
                return 0;
        /* Within one pinned piece. */
        bytes = MIN(rows[best].bytes, (uint64_t)(K_PIN_PIECE - ((uintptr_t)(t->im->map + rows[best].offset) & (K_PIN_PIECE - 1))));
        if (bytes < (uint64_t)4 << 20)
                return 0;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        if (t->dev->ops->load(t->dev, t->mem + t->place.at[best], t->im->map + rows[best].offset, bytes) < 0 || t->dev->ops->load_wait(t->dev) < 0)
                return 0;
        clock_gettime(CLOCK_MONOTONIC, &t1);
        s = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
        return (double)bytes / s;
}

const struct upload *tensors_upload(const struct tensors *t) {
        return &t->up;
}

static enum k_place place_of(const struct tensors *t, const struct image_row *r) {
        return t->place.of && !t->dry ? t->place.of[r - t->im->rows] : K_PLACE_DEVICE;
}

static const void *device_address(const struct tensors *t, const struct image_row *r) {
        return t->mem && place_of(t, r) == K_PLACE_DEVICE ? t->mem + t->place.at[r - t->im->rows] : t->im->map + r->offset;
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
                .data = device_address(t, r), .place = place_of(t, r),
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

/* The row of a vector by its name, or NULL where an optional one is missing. */
static int find_vector(struct tensors *t, enum tensor_need need, uint64_t n, const struct image_row **ret, struct h_error *err,
                       const char *fmt, va_list ap) {
        char name[IMAGE_NAME];
        const struct image_row *row = find(t, name, fmt, ap);
        int r = vector(t, need, n, name, row, err);

        if (r < 0)
                return r;
        *ret = r ? row : NULL;
        return 0;
}

int tensors_vector(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                   const char *fmt, ...) {
        const struct image_row *row;
        va_list ap;
        int r;

        va_start(ap, fmt);
        r = find_vector(t, need, n, &row, err, fmt, ap);
        va_end(ap);
        if (r == 0)
                *ret = row ? device_address(t, row) : NULL;
        return r;
}

int tensors_host(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                 const char *fmt, ...) {
        const struct image_row *row;
        va_list ap;
        int r;

        va_start(ap, fmt);
        r = find_vector(t, need, n, &row, err, fmt, ap);
        va_end(ap);
        if (r == 0)
                *ret = row ? image_data(t->im, row) : NULL;
        return r;
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

static struct own *new_slab(struct tensors *t, size_t bytes) {
        struct own *o = h_new0(struct own, 1);

        if (!o)
                return NULL;
        o->size = MAX(bytes, SLAB);
        o->mem = t->dry ? h_malloc(o->size) : t->dev->ops->mem_alloc(t->dev, o->size);
        if (o->mem && t->mixed) {
                o->host = h_malloc(o->size);
                if (!o->host || k_mixed_map(t->dev, o->mem, o->host, o->size) < 0) {
                        t->dev->ops->mem_free(t->dev, o->mem);
                        o->mem = NULL;
                        free(o->host);
                }
        }
        if (!o->mem) {
                free(o);
                return NULL;
        }
        o->next = t->own;
        t->own = o;
        t->own_bytes += o->size;
        return o;
}

/* Another thread may be in the middle of a step: only what may be called beside one. */
static int put(struct tensors *t, void *dst, const void *src, size_t bytes) {
        const struct k_ops *ops = t->dev->ops;
        int r;

        if (t->dry || !ops->load) {
                memcpy(dst, src, bytes);
                return 0;
        }
        r = ops->load(t->dev, dst, src, bytes);
        return r < 0 ? r : ops->load_wait(t->dev);
}

int tensors_own(struct tensors *t, const float *values, uint64_t n, const float **ret, struct h_error *err) {
        struct own *o = t->own;
        size_t bytes;
        void *at;
        int r;

        if (!size_mul(n, sizeof(float), &bytes) || !size_align(bytes, 256, &bytes))
                return h_error_from_errno(err, -EOVERFLOW, "a vector of the model");
        if (!o || bytes > o->size - o->used)
                o = new_slab(t, bytes);
        if (!o)
                return h_error_from_errno(err, -ENOMEM, "a vector of the model");
        at = (uint8_t *)o->mem + o->used;
        r = put(t, at, values, n * sizeof(float));
        if (r < 0)
                return h_error_set(err, HEARTH_E_device_lost, "uploading a vector: %s", t->dev->ops->load_error(t->dev));
        if (o->host)
                memcpy(o->host + o->used, values, n * sizeof(float));
        o->used += bytes;
        *ret = at;
        return 0;
}
