/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The card's memory: the account agrees with the driver and gives back what was
 * taken; a budget is kept; pinned memory is copied whole, across pieces; a
 * matrix in host memory gives the bits of one in device memory, read in place
 * and through a ring that is too small for all of them; the host's part of a
 * step happens in its place, also in a graph, and a failing one fails the step.
 */
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "kernels/mixed.h"

enum { ROWS = 1024, COLS = 1024, N_W = 6 };

static struct k_mem_info info_of(struct k_dev *d) {
        struct k_mem_info i = { 0 };
        (void)d->ops->mem_info(d, &i);
        return i;
}

static void check_account(struct rig *r) {
        const size_t n = (size_t)256 << 20;
        struct k_mem_info a = info_of(r->gpu), b, c;
        void *p = r->gpu->ops->mem_alloc(r->gpu, n);

        b = info_of(r->gpu);
        r->gpu->ops->mem_free(r->gpu, p);
        c = info_of(r->gpu);
        expect(r, p && b.ours == a.ours + n, "the account counts %zu bytes: %zu before, %zu after", n, a.ours, b.ours);
        expect(r, b.free_now + n <= a.free_now + (4 << 20), "the driver has %zu bytes less", a.free_now - b.free_now);
        expect(r, c.ours == a.ours && c.free_now == a.free_now, "all of it comes back: %zu free before, %zu after", a.free_now, c.free_now);
}

static void check_budget(struct rig *r) {
        struct k_cuda_options o = { .vram_budget = (size_t)2 << 30 };
        struct k_dev *d;
        char why[256];
        void *p, *q;

        if (k_cuda_open(&o, &d, why) < 0) {
                expect(r, false, "a device with a budget: %s", why);
                return;
        }
        struct k_mem_info i = info_of(d);
        p = d->ops->mem_alloc(d, i.free_now);
        q = d->ops->mem_alloc(d, 1 << 20);
        expect(r, i.budget == o.vram_budget && i.free_now < i.budget && p, "all of a budget can be had: %zu of %zu", i.free_now, i.budget);
        expect(r, !q && d->ops->load_error(d)[0], "not more: %s", d->ops->load_error(d));
        d->ops->mem_free(d, p);
        expect(r, info_of(d).free_now == i.free_now, "a refusal takes nothing");
        d->ops->close(d);
}

/* A mapping like a model's: read-only, shared, pinned in pieces. */
struct mapping {
        uint8_t *p;
        size_t bytes, pinned;
};

static struct mapping map_new(struct rig *r, const void *from, size_t bytes) {
        int fd = memfd_create("check", MFD_CLOEXEC);
        struct mapping m = { .bytes = (bytes + 4095) & ~(size_t)4095 };
        const void *dev;

        if (fd < 0 || ftruncate(fd, (off_t)m.bytes) < 0 || pwrite(fd, from, bytes, 0) != (ssize_t)bytes)
                exit(70);
        m.p = mmap(NULL, m.bytes, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (m.p == MAP_FAILED)
                exit(70);
        for (size_t at = 0, n; at < m.bytes; at += n) {
                n = MIN(m.bytes - at, K_PIN_PIECE - ((uintptr_t)(m.p + at) & (K_PIN_PIECE - 1)));
                if (r->gpu->ops->pin(r->gpu, m.p + at, n, &dev) < 0 || dev != m.p + at) {
                        expect(r, false, "pinning %zu bytes at %zu: %s", n, at, r->gpu->ops->load_error(r->gpu));
                        return m;
                }
                m.pinned = at + n;
        }
        return m;
}

static void map_free(struct rig *r, struct mapping *m) {
        for (size_t at = 0; at < m->pinned; at += K_PIN_PIECE - ((uintptr_t)(m->p + at) & (K_PIN_PIECE - 1)))
                r->gpu->ops->unpin(r->gpu, m->p + at);
        munmap(m->p, m->bytes);
}

static void check_load(struct rig *r) {
        const size_t n = ((size_t)150 << 20) / sizeof(float);
        float *host = random_floats(n, 3), *back;
        struct mapping m = map_new(r, host, n * sizeof(float));
        void *dev = r->gpu->ops->mem_alloc(r->gpu, n * sizeof(float));
        int e = 0;

        for (size_t at = 0, k; e == 0 && at < n * sizeof(float); at += k) {
                k = MIN(n * sizeof(float) - at, K_PIN_PIECE - ((uintptr_t)(m.p + at) & (K_PIN_PIECE - 1)));
                e = r->gpu->ops->load(r->gpu, (uint8_t *)dev + at, m.p + at, k);
        }
        if (e == 0)
                e = r->gpu->ops->load_wait(r->gpu);
        back = fetch(r, dev, n);
        expect(r, e == 0 && memcmp(back, host, n * sizeof(float)) == 0, "150 MB from pinned memory arrive whole (%d)", e);
        r->gpu->ops->mem_free(r->gpu, dev);
        map_free(r, &m);
        free(back);
        free(host);
}

/* N_W products of the same rows, with the matrices where 'w' says. */
static float *products(struct rig *r, const struct k_weight *w, struct k_act *x, uint32_t n, uint32_t n_d, float *y) {
        uint32_t token[256] = { 0 }, seq[256] = { 0 };
        int32_t pos[256];
        struct k_batch b = { .n = n, .n_d = n_d, .n_seq = 1, .token = token, .pos = pos, .seq = seq };
        int e;

        for (uint32_t i = 0; i < n; i++)
                pos[i] = (int32_t)i;
        for (int turn = 0; turn < 3; turn++) { /* at once, as a graph is made, from the graph */
                e = r->gpu->ops->batch_begin(r->gpu, &b);
                for (uint32_t i = 0; e == 0 && i < N_W; i++) {
                        struct k_linear_args l = { .x = x, .n_out = 1, .n_rows = n, .n_d = n_d };

                        x->q_kind = 0;
                        l.out[0].w = &w[i];
                        l.out[0].y = y + (size_t)i * n * ROWS;
                        l.out[0].y_stride = ROWS;
                        e = r->gpu->ops->linear(r->gpu, &b, &l);
                }
                if (e == 0)
                        e = r->gpu->ops->batch_end(r->gpu, &b);
                if (e < 0) {
                        expect(r, false, "products: %s", r->gpu->ops->last_error(r->gpu));
                        exit(1);
                }
        }
        return fetch(r, y, (size_t)N_W * n * ROWS);
}

static void check_places(struct rig *r) {
        size_t one = r->gpu->ops->layout_bytes(K_Q4_K, K_LAYOUT_CUDA, ROWS, COLS);
        uint8_t *host = h_aligned_alloc(256, one * N_W);
        struct k_weight device[N_W], read[N_W];
        struct matrix m[N_W];
        struct mapping map;
        float *x = random_floats(256 * COLS, 11), *y;
        struct acts a = acts_new(r, x, 256, COLS);

        if (!host)
                exit(70);
        for (uint32_t i = 0; i < N_W; i++) {
                float *p;

                matrix_new(r, K_Q4_K, ROWS, COLS, 1, false, 100 + i, &m[i]);
                p = fetch(r, m[i].mem_g, one / sizeof(float));
                memcpy(host + i * one, p, one);
                free(p);
        }
        map = map_new(r, host, one * N_W);
        y = r->gpu->ops->mem_alloc(r->gpu, (size_t)N_W * 256 * ROWS * sizeof(float));
        for (uint32_t i = 0; i < N_W; i++) {
                device[i] = read[i] = m[i].g;
                read[i].data = map.p + i * one;
                read[i].place = K_PLACE_READ;
        }
        for (int ring = 0; ring < 2; ring++) {
                static const uint32_t shape[][2] = { { 1, 1 }, { 5, 5 }, { 40, 0 }, { 200, 0 }, { 200, 3 } };

                /* Room for two and a half: matrices wait for those before them to be read. */
                if (ring && r->gpu->ops->stream_reserve(r->gpu, one * 5 / 2) < 0)
                        expect(r, false, "the ring: %s", r->gpu->ops->last_error(r->gpu));
                for (size_t k = 0; k < ELEMENTSOF(shape); k++) {
                        float *want = products(r, device, &a.g, shape[k][0], shape[k][1], y), *got = products(r, read, &a.g, shape[k][0], shape[k][1], y);

                        expect(r, memcmp(want, got, (size_t)N_W * shape[k][0] * ROWS * sizeof(float)) == 0,
                               "%u rows, %u generated, matrices in host memory%s: the same bits", shape[k][0], shape[k][1],
                               ring ? ", through a ring" : "");
                        free(want);
                        free(got);
                }
        }
        r->gpu->ops->mem_free(r->gpu, y);
        map_free(r, &map);
        for (uint32_t i = 0; i < N_W; i++)
                matrix_free(r, &m[i]);
        acts_free(r, &a);
        free(host);
        free(x);
}

/* ---- the host within a step ---------------------------------------------------------- */

struct twice {
        float *p;
        uint64_t n;
        int64_t ret;
};

static int double_them(void *ud, const void *arg) {
        const struct twice *t = arg;

        ++*(uint32_t *)ud;
        for (uint64_t i = 0; i < t->n; i++)
                t->p[i] *= 2;
        return (int)t->ret;
}

static int host_step(struct k_dev *d, float *x, float *stage, uint32_t n, uint32_t *calls, int64_t ret) {
        uint32_t token[1] = { 0 }, seq[1] = { 0 };
        int32_t pos[1] = { 0 };
        struct k_batch b = { .n = 1, .n_d = 1, .n_seq = 1, .token = token, .pos = pos, .seq = seq };
        struct twice t = { stage, n, ret };
        struct k_host_args h = { .n_in = 1, .n_out = 1, .fn = double_them, .ud = calls, .arg = &t, .arg_bytes = sizeof(t) };
        struct k_elem_args scale = { .op = K_ELEM_SCALE, .y = x, .y_stride = n, .cols = n, .a = 3, .n = 1 };
        int e = d->ops->batch_begin(d, &b);

        h.in[0] = (struct k_host_copy){ stage, x, n * sizeof(float), n * sizeof(float), n * sizeof(float), 1 };
        h.out[0] = (struct k_host_copy){ x, stage, n * sizeof(float), n * sizeof(float), n * sizeof(float), 1 };
        if (e == 0)
                e = d->ops->elem(d, &b, &scale);
        if (e == 0)
                e = d->ops->host_begin(d, &h);
        if (e == 0)
                e = d->ops->host_end(d);
        if (e == 0)
                e = d->ops->elem(d, &b, &scale);
        return e == 0 ? d->ops->batch_end(d, &b) : e;
}

static void check_host(struct rig *r) {
        enum { N = 1000 };
        struct k_cuda_options o = { 0 };
        struct k_dev *d;
        float *x, *stage, one[N], got[N];
        uint32_t calls = 0;
        bool ok = true;
        char why[256];

        if (k_cuda_open(&o, &d, why) < 0) { /* one of its own: it will be lost */
                expect(r, false, "another device: %s", why);
                return;
        }
        x = d->ops->mem_alloc(d, N * sizeof(float));
        stage = d->ops->host_alloc(d, N * sizeof(float));
        for (int i = 0; i < N; i++)
                one[i] = 1;
        for (int turn = 0; turn < 5; turn++) {
                (void)d->ops->upload(d, x, one, sizeof(one));
                int e = host_step(d, x, stage, N, &calls, 0);
                e = e < 0 ? e : d->ops->download(d, got, x, sizeof(got));
                for (int i = 0; i < N; i++)
                        ok = ok && e == 0 && got[i] == 18;
        }
        expect(r, ok && calls == 5, "3 x, doubled by the host, 3 x: %g after %u calls", (double)got[0], calls);
        (void)host_step(d, x, stage, N, &calls, -EBADMSG);
        expect(r, d->ops->download(d, got, x, sizeof(got)) == -EIO && strstr(d->ops->last_error(d), "host"), "its failure is the step's: %s",
               d->ops->last_error(d));
        d->ops->host_free(d, stage);
        d->ops->close(d);
}

void check_memory(struct rig *r) {
        check_account(r);
        check_budget(r);
        check_load(r);
        check_places(r);
        check_host(r);
}
