/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/upload.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/alloc.h"

#define FAULT_THREADS 4u
#define GIVE_WAY_US   50u
#define GIVE_WAY_MOST 40u

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

/* Bytes that are neighbours in the image and on the device. */
struct run {
        uint64_t src, dst, bytes;
};

static uint64_t now_us(void) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static int run_compare(const void *a, const void *b) {
        const struct run *x = a, *y = b;
        return (x->src > y->src) - (x->src < y->src);
}

/* What goes to the device, in the order of the image. */
static uint32_t make_runs(const struct eng_image *im, const struct place *p, struct run *v) {
        uint32_t n = 0, k = 0;

        if (p->whole) {
                v[0] = (struct run){ im->header->data_off, 0, im->header->bytes - im->header->data_off };
                return 1;
        }
        for (uint32_t i = 0; i < im->header->n_tensors; i++)
                if (p->of[i] == K_PLACE_DEVICE)
                        v[n++] = (struct run){ im->rows[i].offset, p->at[i], im->rows[i].bytes };
        qsort(v, n, sizeof(*v), run_compare);
        for (uint32_t i = 1; i < n; i++) {
                struct run *a = &v[k];
                uint64_t gap = v[i].src - (a->src + a->bytes);

                /* Alignment gaps are the same on both sides: copied along. */
                if (gap < IMAGE_ALIGN && v[i].src - a->src == v[i].dst - a->dst)
                        a->bytes += gap + v[i].bytes;
                else
                        v[++k] = v[i];
        }
        return n ? k + 1 : 0;
}

/* ---- page tables ---------------------------------------------------------------- */

/* Pinning a page is several times faster if the mapping has it already, and that can be made in parallel. */
struct faulter {
        const uint8_t *base;
        size_t bytes;
        uint32_t index;
        pthread_t thread;
};

static void *fault_main(void *arg) {
        const struct faulter *f = arg;

        for (size_t at = f->index * K_PIN_PIECE; at < f->bytes; at += FAULT_THREADS * K_PIN_PIECE)
                if (madvise((void *)(f->base + at), MIN(K_PIN_PIECE, f->bytes - at), MADV_POPULATE_READ) < 0)
                        break; /* an older kernel: pinning does it */
        return NULL;
}

static uint32_t fault_start(struct faulter f[FAULT_THREADS], const uint8_t *base, size_t bytes) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < FAULT_THREADS && i * K_PIN_PIECE < bytes; i++) {
                f[n] = (struct faulter){ base, bytes, i, 0 };
                if (pthread_create(&f[n].thread, NULL, fault_main, &f[n]) == 0)
                        n++;
        }
        return n;
}

/* ---- pieces --------------------------------------------------------------------- */

/*
 * Pinning and unpinning hold the driver's lock, which is not fair: a thread that
 * takes it again at once keeps it from one that sleeps for it: a stream beside a
 * load of 40 GB had a token every 148 ms. So between two pieces whoever is there
 * for a step goes first; not for ever, since a device may be given steps without
 * end.
 */
static void give_way(const struct k_dev *dev) {
        const struct timespec nap = { .tv_nsec = GIVE_WAY_US * 1000 };

        for (uint32_t i = 0; i < GIVE_WAY_MOST && __atomic_load_n(&dev->stepping, __ATOMIC_RELAXED); i++)
                nanosleep(&nap, NULL);
}

static int fail(const struct upload_args *a, int r, const char *what, struct h_error *err) {
        const char *why = a->dev->ops->load_error(a->dev);

        return h_error_set(err, r == -ENOMEM ? HEARTH_E_model_no_memory : HEARTH_E_device_lost, "%s: %s", what, why && *why ? why : strerror(-r));
}

/* The parts of runs that lie in [from, to) of the image; *at is the first run that may. */
static int copy_piece(const struct upload_args *a, const struct run *v, uint32_t n, uint32_t *at, uint64_t from, uint64_t to, uint64_t *done) {
        for (uint32_t i = *at; i < n && v[i].src < to; i++) {
                uint64_t lo = MAX(v[i].src, from), hi = MIN(v[i].src + v[i].bytes, to);

                if (hi > lo) {
                        int r = a->dev->ops->load(a->dev, a->mem + v[i].dst + (lo - v[i].src), a->im->map + lo, hi - lo);
                        if (r < 0)
                                return r;
                        *done += hi - lo;
                }
                if (v[i].src + v[i].bytes <= to)
                        *at = i + 1;
        }
        return 0;
}

static int pieces(const struct upload_args *a, const struct run *v, uint32_t n, struct upload *u, struct h_error *err) {
        const struct k_ops *ops = a->dev->ops;
        const uint8_t *base = a->im->map;
        struct image_pins *pins = &a->im->pins;
        uint64_t bytes = (a->im->map_bytes + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1), total = 0, done = 0, next;
        bool pin = ops->pin, in_place = !a->place->whole;
        uint32_t run = 0;
        int r;

        for (uint32_t i = 0; i < n; i++)
                total += v[i].bytes;
        for (uint64_t at = 0; at < bytes; at = next) {
                const void *dev = NULL;
                uint64_t t0 = now_us();

                next = MIN(bytes, at + K_PIN_PIECE - ((uintptr_t)(base + at) & (K_PIN_PIECE - 1)));
                r = 0;
                if (pin && next <= pins->bytes)
                        dev = base + at; /* since an earlier time on the device */
                else if (pin) {
                        give_way(a->dev);
                        r = ops->pin(a->dev, base + at, next - at, &dev);
                        if (r == 0)
                                pins->bytes = next;
                }
                u->pin_us += now_us() - t0;
                if (in_place && r < 0)
                        return fail(a, r, "pinning the model's memory for the device", err);
                if (in_place && pin && dev != base + at)
                        return h_error_set(err, HEARTH_E_unsupported, "this driver gives pinned memory other addresses on the device: a model "
                                           "can't lie partly in host memory; raise vram_budget or take a smaller model");
                pin = pin && r == 0; /* copies from other memory are slower, no more */
                r = copy_piece(a, v, n, &run, at, next, &done);
                if (r < 0)
                        return fail(a, r, "uploading the weights", err);
                if (a->progress)
                        a->progress(a->ud, done, total);
        }
        u->pinned = pin;
        r = ops->load_wait(a->dev);
        return r < 0 ? fail(a, r, "uploading the weights", err) : 0;
}

int upload_run(const struct upload_args *a, struct upload *ret, struct h_error *err) {
        struct image_pins *pins = &a->im->pins;
        struct upload u = { 0 };
        _cleanup_(freep) struct run *v = h_new0(struct run, MAX(a->im->header->n_tensors, 1u));
        struct faulter f[FAULT_THREADS];
        uint64_t t0 = now_us();
        uint32_t n_fault = 0;
        int r;

        if (!v)
                return h_error_from_errno(err, -ENOMEM, "uploading the weights");
        if (pins->dev != a->dev)
                image_unpin(a->im);
        pins->dev = a->dev;
        if (pins->bytes == 0)
                n_fault = fault_start(f, a->im->map, a->im->map_bytes);
        r = pieces(a, v, make_runs(a->im, a->place, v), &u, err);
        for (uint32_t i = 0; i < n_fault; i++)
                pthread_join(f[i].thread, NULL);
        if (r < 0) {
                (void)a->dev->ops->load_wait(a->dev);
                return r;
        }
        u.all_us = now_us() - t0;
        *ret = u;
        return 0;
}

void image_unpin(struct eng_image *im) {
        for (size_t at = 0; at < im->pins.bytes;) {
                give_way(im->pins.dev);
                im->pins.dev->ops->unpin(im->pins.dev, im->map + at);
                at += K_PIN_PIECE - ((uintptr_t)(im->map + at) & (K_PIN_PIECE - 1));
        }
        im->pins = (struct image_pins){ 0 };
}
