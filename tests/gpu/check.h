/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Kernels on a GPU against the CPU backend's reference: two devices, buffers on
 * both from one host copy, comparison by norm of the difference. Every result
 * buffer is poisoned with NaN before a run and has a guard behind it.
 */

#include "kernels/kernels.h"

struct rig {
        struct k_dev *cpu;   /* scalar, exact: the reference */
        struct k_dev *int8;  /* the CPU's int8 products, a scale for 32 columns or, by types in blocks of 256, for 256; reads cpu's buffers */
        struct k_dev *gpu;   /* what is tested */
        bool exact;          /* the GPU opened exact */
        bool host_launches;  /* it launches no step by itself */
        bool tiny;           /* small shapes only: every kernel, but soon done (a sanitizer makes each a hundred times slower) */
        uint32_t share, shares; /* of the cases this process has every 'shares'-th kind; 0: all */
        uint32_t passed, failed;
        bool verbose;
};

/* A sanitizer takes longest where it meets a kernel for the first time: all cases that have this kind's kernels are one process's. */
static inline bool mine(const struct rig *r, uint32_t kind) {
        return r->shares == 0 || kind % r->shares == r->share;
}

struct pair { /* one buffer on each device */
        void *c, *g;
        size_t bytes;
        bool guarded; /* the last floats are the guard */
};

uint32_t rnd(uint32_t *seed);
float rnd_float(uint32_t *seed);         /* [-1, 1) */
struct pair both(struct rig *r, const void *host, size_t bytes);
struct pair both_poison(struct rig *r, size_t floats);
void both_free(struct rig *r, struct pair *p);
float *random_floats(size_t n, uint32_t seed);

/* A matrix in each device's own layout. Random blocks with moderate finite values. */
struct matrix {
        struct k_weight c, g;
        void *mem_c, *mem_g;
};
int matrix_new(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool embedding, uint32_t seed, struct matrix *ret);
/* The same from blocks as a file has them, one matrix behind the other. */
void matrix_of(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool embedding, const uint8_t *file,
               struct matrix *ret);
/*
 * Random bytes as blocks of t, any scale: with wild all, without it those below 2 (a power of two that no type's products bring out of
 * f16's range). twin: the same weights, rounded to f16 and clamped to its range.
 */
int matrix_twins(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool wild, uint32_t seed, struct matrix *ret,
                 struct matrix *twin);
void matrix_free(struct rig *r, struct matrix *m);

/* An activation of n rows on both, from host values (NULL: poison). */
struct acts {
        struct k_act c, g;
        struct pair f, q;
};
struct acts acts_new(struct rig *r, const float *host, uint32_t n, uint32_t cols);
void acts_free(struct rig *r, struct acts *a);

/* Compares n x cols floats (stride floats apart) and counts the result. limit: of |g - c| / |c|. */
bool compare(struct rig *r, const char *what, struct pair p, uint32_t n, uint32_t cols, size_t stride, double limit);
/* Copies the GPU's floats to the host (malloc). */
float *fetch(struct rig *r, const void *g, size_t floats);
void expect(struct rig *r, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Runs on both devices; a refusal counts as a failure. */
#define RUN(r, op, bc, bg, ac, ag, what)                                                                     \
        do {                                                                                                 \
                int _a = (r)->cpu->ops->op((r)->cpu, bc, ac), _b = (r)->gpu->ops->op((r)->gpu, bg, ag);      \
                if (_a < 0 || _b < 0)                                                                        \
                        expect(r, false, "%s: cpu %d (%s), gpu %d (%s)", what, _a,                           \
                               _a < 0 ? (r)->cpu->ops->last_error((r)->cpu) : "", _b,                        \
                               _b < 0 ? (r)->gpu->ops->last_error((r)->gpu) : "");                           \
        } while (0)

void check_linear(struct rig *r);
void check_rows(struct rig *r);
void check_between(struct rig *r); /* of check_rows() */
void check_between_moe(struct rig *r); /* of check_moe() */
void check_mail(struct rig *r);    /* too */
void check_attention(struct rig *r);
void check_recurrent(struct rig *r);
void check_delta(struct rig *r);   /* of check_recurrent() */
void check_moe(struct rig *r);
void check_memory(struct rig *r);
void check_sample(struct rig *r);
void check_tune(struct rig *r);
void check_loop(struct rig *r);
