/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The hot loops of the ops other than linear, compiled once per instruction
 * set from the same templates (vec_row.h, vec_attention.h, vec_delta.h) and
 * chosen at k_cpu_open(). The ops (op_*.c) do shapes, batches and threads;
 * these see plain arrays.
 */

#include "kernels/cpu/cpu.h"

#define K_ATT_KEYS 64u   /* keys per block, on the absolute position grid */
#define K_DELTA_ROWS 64u /* tokens a delta-net task normalizes at a time */

/* One tile of attention: m queries (rows x heads of one KV head) over one block of keys. */
struct k_att_tile {
        uint32_t m, mp;          /* queries; rounded up to the vector width (K_ATT_M_ALIGN) */
        uint32_t dk, dv;
        float softcap;
        const float *qt;         /* [dk][mp] queries, scaled, transposed */
        const float *lo, *hi;    /* [mp] visible positions: lo <= p < hi, as floats relative to the tile's first block */
        float *s;                /* [K_ATT_KEYS][mp] */
        float *o;                /* [m][dv] */
        float *max, *sum;        /* [mp] running */
        float *corr;             /* [mp] scratch */
        const float *k, *v;      /* the block in floats: [K_ATT_KEYS][dk], rows v_stride apart */
        uint32_t v_stride;
        float base;              /* the block's first position, relative as lo and hi */
        uint32_t n_keys;         /* keys that any query of the tile sees: beyond, k and v are not read */
};
#define K_ATT_M_ALIGN 16u

/*
 * The same for few queries (generated tokens): keys and values are read where
 * they lie, lanes are columns. Needs dk and dv to be multiples of K_ATT_LANES.
 */
struct k_att_few {
        uint32_t m, dk, dv;
        float softcap;
        bool half;                /* rows are f16, else float */
        const float *q;           /* [m][dk], scaled */
        const float *lo, *hi;     /* [m], relative to base */
        float *s;                 /* [m][K_ATT_KEYS] */
        float *o;                 /* [m][dv] */
        float *max, *sum;         /* [m] running */
        const void *const *k, *const *v; /* [K_ATT_KEYS] rows, all readable; not visible ones finite */
        float base;
        uint32_t n_keys;
};
#define K_ATT_LANES 16u

/* The recurrence of one head over some tokens: see vec_delta.h. */
struct k_delta_run {
        uint32_t n, s_k, s_v;
        const float *q, *k;      /* [n][s_k] normalized */
        const float *v;          /* token i at v + i * v_stride */
        size_t v_stride;
        const float *decay, *beta; /* [n] */
        float *state;            /* [s_k][s_v], updated */
        float *const *keep;      /* [n] where to copy the state after a token, NULL: nowhere */
        float *o;                /* token i at o + i * o_stride */
        size_t o_stride;
};

struct k_cpu_vec {
        const char *name;
        float (*sum)(const float *x, uint32_t n);
        float (*sum_squares)(const float *x, uint32_t n, float mean); /* of x - mean */
        /* y = (x - mean) * scale * w + b; w, b may be NULL */
        void (*norm)(float *y, const float *x, uint32_t n, float mean, float scale, const float *w, const float *b);
        void (*axpy)(float *y, const float *x, uint32_t n, float a, float b); /* y = a y + b x; a = 1 and 0 exact */
        void (*scale)(float *y, const float *x, uint32_t n, float a);
        void (*mul)(float *y, const float *x, uint32_t n);
        void (*mul_sigmoid)(float *y, const float *x, uint32_t n);
        void (*mul_silu)(float *y, const float *x, uint32_t n);
        void (*softcap)(float *y, uint32_t n, float a, float b);
        void (*glu)(enum k_glu act, float *y, const float *gate, const float *up, uint32_t n, float alpha, float limit);
        void (*softmax)(float *x, uint32_t n);
        void (*rope)(enum k_rope kind, float *x, uint32_t n_dims, const float *cs); /* cs: [n_dims/2] cos, then sin */
        void (*to_float)(enum k_type t, float *dst, const void *src, uint32_t n);
        void (*from_float)(enum k_type t, void *dst, const float *src, uint32_t n);
        void (*attend)(const struct k_att_tile *t);
        void (*attend_few)(const struct k_att_few *t);
        bool half; /* attend_few reads f16 */
        void (*conv)(float *x, size_t stride, uint32_t n, uint32_t channels, uint32_t taps, const float *w, const float *prev,
                     size_t prev_stride, bool silu);
        void (*delta)(const struct k_delta_run *r);
};

extern const struct k_cpu_vec k_cpu_vec_base, k_cpu_vec_avx2, k_cpu_vec_avx512;

/* The table for the device's instruction set. */
const struct k_cpu_vec *k_cpu_vec(const struct k_cpu *cpu);
