/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The CPU backend's own header: the device, what its ops share, and one
 * prototype per op. dev.c owns the device and the table; each op lives in
 * op_<name>.c (linear: linear.c). Variants for an instruction set are chosen
 * once, in k_cpu_open(), never per call.
 *
 * Every op may use cpu->pool. Results never depend on the number of workers
 * or on which worker runs what: split work over outputs, not over sums.
 */

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

struct k_cpu_linear_isa; /* kernels/cpu/linear.h */
struct k_cpu_run;        /* kernels/cpu/ops.h */

#define K_ATT_WIDEST 4096u /* columns of a head of keys or values */
#define K_ROPE_SLOTS 2u
#define K_ROPE_DIMS 512u /* heads that rotate more have their angles computed per row */

/* Buffers of the op_*.c files, taken by k_cpu_ops_reserve(). */
struct k_cpu_ops {
        uint32_t max_rows;
        struct k_cpu_run *run;   /* [max_rows] */
        uint32_t *tile;          /* [max_rows + 1] attention: first row of each tile */
        float *rope;             /* [K_ROPE_SLOTS][max_rows][K_ROPE_DIMS] cos then sin of this batch's rows */
        const struct k_rope_params *rope_of[K_ROPE_SLOTS]; /* whose angles a slot holds; cleared by batch_begin */
        uint32_t rope_rows[K_ROPE_SLOTS];
        float *zeros;            /* [K_ATT_WIDEST] */
        float *partial;          /* attention over splits of keys */
        size_t partial_floats;
};

struct k_cpu {
        struct k_dev base;
        struct k_pool *pool;
        uint32_t n_workers;
        enum k_isa isa; /* resolved: SCALAR, AVX2, AVX512 or AMX */
        bool exact;     /* activations stay f32 in every linear product */
        const struct k_cpu_linear_isa *linear;

        /* Scratch of each worker, for ops that call k_cpu_scratch(); sized by reserve(). */
        uint8_t *scratch;
        size_t scratch_bytes; /* per worker */

        uint8_t *panel;       /* linear's own scratch, per worker, taken at open */
        uint8_t *image;       /* activation images where k_act has no q; sized by reserve() */
        size_t image_bytes;

        struct k_cpu_ops ops;
        struct k_tune_table tuned;

        char describe[128];
        char error[128];
};

static inline struct k_cpu *k_cpu(struct k_dev *dev) {
        return (struct k_cpu *)dev;
}

/* scratch_bytes bytes, 64-byte aligned, that only this worker uses during a task. NULL before reserve(). */
static inline void *k_cpu_scratch(struct k_cpu *cpu, uint32_t worker) {
        return cpu->scratch ? cpu->scratch + (size_t)worker * cpu->scratch_bytes : NULL;
}

/*
 * Products for callers inside the backend (moe, head_linear): y = scale * (W x) + bias
 * for n rows. The bits of y are those that ops->linear gives for the same rows.
 *
 * x rows: x_row[i], or i where x_row is NULL, of xf (float) and of xq (its image, made by
 * k_cpu_quantize() with k_cpu_image_kind() of the weight's type; NULL if that kind is 0).
 */
struct k_cpu_gemm {
        const struct k_weight *w;
        uint32_t expert;       /* which of the stacked matrices */
        const float *xf;
        size_t xf_stride;      /* floats */
        const void *xq;
        const uint32_t *x_row; /* [n] or NULL */
        uint32_t n;
        float *y;
        size_t y_stride;       /* floats */
        const uint32_t *y_row; /* [n] or NULL */
        const float *bias;     /* [w->rows], already this expert's, or NULL */
};

/* Which activation image products with this type read; 0: floats only. */
uint32_t k_cpu_image_kind(const struct k_cpu *cpu, enum k_type type);
size_t k_cpu_image_stride(uint32_t kind, uint32_t cols); /* bytes of one row; 0 for kind 0 */
size_t k_cpu_image_bytes(uint32_t n, uint32_t cols);     /* enough for any kind; = ops->act_q_bytes */
/* Makes the image of n rows of floats, on the pool. cols: a multiple of 32 (kind 1), of 256 (kind 2). */
void k_cpu_quantize(struct k_cpu *cpu, uint32_t kind, const float *x, size_t x_stride, uint32_t n, uint32_t cols,
                    void *image);
/* The same for one row on the calling thread, for use inside a task. */
void k_cpu_quantize_row(struct k_cpu *cpu, uint32_t kind, const float *x, uint32_t cols, void *image_row);

/* All jobs in one run of the pool, work split over their output rows. n_jobs of any number. */
void k_cpu_gemm(struct k_cpu *cpu, const struct k_cpu_gemm *jobs, uint32_t n_jobs);
/* Output rows [row0, row1) of one job on the calling thread, inside a task. row0: a multiple of 16. */
void k_cpu_gemm_rows(struct k_cpu *cpu, uint32_t worker, const struct k_cpu_gemm *job, uint32_t row0, uint32_t row1);

/* Decodes row 'row' of matrix 'expert' to w->cols floats, whatever the layout (for embed). */
void k_cpu_weight_row(const struct k_weight *w, uint32_t expert, uint32_t row, float *dst);

/* The ops. */
int k_cpu_embed(struct k_dev *, const struct k_batch *, const struct k_embed_args *);
int k_cpu_norm(struct k_dev *, const struct k_batch *, const struct k_norm_args *);
uint32_t k_cpu_variants(struct k_dev *, const struct k_tune_key *, const char *const **ret_names);
int k_cpu_tune(struct k_dev *, const struct k_tune_choice *, uint32_t n);
int k_cpu_linear(struct k_dev *, const struct k_batch *, const struct k_linear_args *);
int k_cpu_head_linear(struct k_dev *, const struct k_batch *, const struct k_head_linear_args *);
int k_cpu_glu(struct k_dev *, const struct k_batch *, const struct k_glu_args *);
int k_cpu_qkv(struct k_dev *, const struct k_batch *, const struct k_qkv_args *);
int k_cpu_attention(struct k_dev *, const struct k_batch *, const struct k_attention_args *);
int k_cpu_delta(struct k_dev *, const struct k_batch *, const struct k_delta_args *);
size_t k_cpu_delta_slot(uint32_t n_k, uint32_t n_v, uint32_t s_k, uint32_t s_v);
int k_cpu_shortconv(struct k_dev *, const struct k_batch *, const struct k_shortconv_args *);
int k_cpu_moe(struct k_dev *, const struct k_batch *, const struct k_moe_args *);
int k_cpu_elem(struct k_dev *, const struct k_batch *, const struct k_elem_args *);
int k_cpu_altup(struct k_dev *, const struct k_batch *, const struct k_altup_args *);
size_t k_cpu_moe_scratch(uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert);
/* Scratch per worker that attention and the other ops want (see k_cpu_scratch). */
size_t k_cpu_op_scratch(uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx);
