/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * For the tests of the CPU ops: a device of each instruction set this machine
 * has, counted random numbers, buffers fenced by poison, and comparison with
 * references computed in double by the tests themselves.
 */

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define FENCE 64 /* floats of NaN after every buffer */

static uint64_t rng_state = 1;

static inline double rnd(void) { /* uniform in [-1, 1) */
        uint64_t x = rng_state += 0x9E3779B97F4A7C15ull;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        x ^= x >> 31;
        return (double)(x >> 11) / 4503599627370496.0 - 1.0;
}

/* n floats and a fence. 64-byte aligned. */
static inline float *floats(size_t n) {
        float *p = aligned_alloc(64, (n + FENCE + 15) / 16 * 64);

        assert_non_null(p);
        for (size_t i = 0; i < n + FENCE; i++)
                p[i] = NAN;
        return p;
}

static inline float *randoms(size_t n, double scale) {
        float *p = floats(n);

        for (size_t i = 0; i < n; i++)
                p[i] = (float)(rnd() * scale);
        return p;
}

static inline float *copy_of(const float *x, size_t n) {
        float *p = floats(n);

        memcpy(p, x, n * sizeof(float));
        return p;
}

static inline void done(float *p, size_t n) {
        for (size_t i = n; i < n + FENCE; i++)
                if (!isnan(p[i]))
                        fail_msg("wrote %zu floats past the end of %zu", i - n, n);
        free(p);
}

static inline void near(const char *what, size_t i, double got, double want, double tol) {
        if (!(fabs(got - want) <= tol * (1 + fabs(want))))
                fail_msg("%s: element %zu is %.9g, expected %.9g", what, i, got, want);
}

static inline void all_near(const char *what, const float *got, const double *want, size_t n, double tol) {
        for (size_t i = 0; i < n; i++)
                near(what, i, (double)got[i], want[i], tol);
}

static inline double sigmoid(double x) {
        return 1 / (1 + exp(-x));
}

/* Each instruction set this processor has, with 1 and 3 workers. */
static const struct { enum k_isa isa; uint32_t threads; } devices[] = {
        { K_ISA_SCALAR, 1 }, { K_ISA_SCALAR, 3 }, { K_ISA_AVX2, 1 }, { K_ISA_AVX2, 3 }, { K_ISA_AVX512, 3 },
};

#define FOR_EACH_DEVICE(dev)                                                                                     \
        for (size_t _i = 0; _i < ELEMENTSOF(devices); _i++)                                                      \
                for (struct k_dev *dev = device_open(_i); dev; dev->ops->close(dev), dev = NULL)

static inline struct k_dev *device_open(size_t i) {
        struct k_cpu_options o = { .threads = devices[i].threads, .isa = devices[i].isa, .exact = true };
        struct k_dev *dev;
        int r = k_cpu_open(&o, &dev);

        if (r == -EOPNOTSUPP)
                return NULL;
        assert_int_equal(r, 0);
        assert_int_equal(dev->ops->reserve(dev, 700, 2048, 32, 2048), 0);
        rng_state = 1;
        return dev;
}

/* A batch over sequences, each n rows from pos0; rows of earlier sequences come first. */
struct seqs {
        struct k_batch b;
        uint32_t token[700], seq[700], out[700], in[16];
        int32_t pos[700];
        uint8_t zero[16];
        uint32_t table[16 * 256];
        const uint32_t *tables[1];
        uint32_t stride[1];
};

static inline void seqs_init(struct seqs *s, uint32_t n_pages_each) {
        memset(s, 0, sizeof(*s));
        s->b = (struct k_batch){ .token = s->token, .pos = s->pos, .seq = s->seq, .state_in = s->in, .state_out = s->out,
                                 .state_zero = s->zero, .n_group = 1, .table = s->tables, .table_stride = s->stride };
        s->tables[0] = s->table;
        s->stride[0] = n_pages_each;
        for (uint32_t i = 0; i < ELEMENTSOF(s->table); i++) /* pages of a sequence lie scattered */
                s->table[i] = UINT32_MAX;
}

static inline void seqs_add(struct seqs *s, uint32_t seq, int32_t pos0, uint32_t n) {
        for (uint32_t i = 0; i < n; i++) {
                uint32_t r = s->b.n++;

                s->seq[r] = seq;
                s->pos[r] = pos0 + (int32_t)i;
                s->out[r] = UINT32_MAX;
        }
        s->b.n_seq = MAX(s->b.n_seq, seq + 1);
}
