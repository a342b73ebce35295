/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Experts of role D, three launches a layer:
 *   route     logits of the router, and in the block that ends last the choice
 *   gate/up   both products of a block of 32 middle columns, GLU, the image
 *   down      the products and the weighted sum in order of rank
 *
 * A pair is (row, rank), number row * n_used + rank. No lists are in memory: each
 * block of the kernel for several rows (moe_product.cuh) sorts the pairs by expert
 * for itself, and goes through its share of all experts' units. With one row a
 * block has a pair instead, and with few rows the down product goes row by row,
 * which can sum at once.
 *
 * A row's sum has the same order in every form (one per shape: within a part of
 * the columns four sums, added as (0 + 1) + (2 + 3), then parts in order, then
 * ranks in order), so bits don't depend on company.
 */

#include <errno.h>

#include "kernels/cuda/moe_router.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/types.cuh"

enum {
        MOE_BLOCK_RG = 4,    /* row groups of 16 rows that a block computes */
        MOE_ROUTE_ROWS = 4,  /* rows that a routing block takes, one a warp in the end */
};

struct moe_side { /* one matrix of all experts */
        plane_base w;
        size_t expert_stride;
        uint32_t rg0, n_rg;  /* first row group of this side; how many there are */
        const float *bias, *scale; /* [n_expert][bias_stride], [n_expert] or one */
        uint32_t bias_stride, bias0, many_scales;
};

struct moe_product {     /* in the order of reading (matvec.cuh says why) */
        uint32_t pairs, n_used, n_expert;
        uint32_t kpad, n_sb, per_warp, ks;
        uint32_t rows;       /* of the result: middle columns, or the model's */
        const uint32_t *id;  /* [pairs] expert */
        const uint8_t *x;    /* images: of rows for gate/up, of pairs for down */
        moe_side side[2];    /* gate, up; down alone in [0] */
        const float *weight; /* [pairs] */
        uint32_t act;
        float alpha, limit;
        uint8_t *image;      /* gate/up: images of pairs, or NULL and ... */
        uint32_t image_kpad;
        float *y;            /* ... floats [pairs][rows]; down: [pairs][rows], or by row: [n][y_stride] */
        size_t y_stride;
        float *add_to, *squares; /* down and sum of one row: [rows] add_scale times it are added to, or NULL; of its groups (norm.cuh) */
        float add_scale;
};

/* MOE_FITS launches nothing: 0 if every form fits this card's shared memory for a product of this shape, else -ENOSPC. */
enum moe_form { MOE_GATE_UP, MOE_GATE_UP_ALONE /* each pair by itself */, MOE_DOWN, MOE_DOWN_SUM, MOE_FITS };
enum { MOE_PAIRS = 2048 }; /* D pairs of a launch: their list is in shared memory */

/* 1: not one of this file's types. */
int cuda_moe_a(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);
int cuda_moe_b(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);
int cuda_moe_c(struct cuda_dev *, enum k_type, enum moe_form, const moe_product &);

struct moe_route {
        const float *router, *select_bias; /* logits [n][stride] */
        size_t stride;
        uint32_t n, n_expert, n_used, n_group, n_group_used, gating, norm_weights;
        float scale;
        uint32_t *id;
        float *weight;
};
/* Choice from logits that are there. */
int cuda_moe_choose(struct cuda_dev *, const moe_route &);
/* Only logits, of P rows. */
int cuda_moe_logits(struct cuda_dev *, const moe_route &, const float *w, const float *bias, const float *x, uint32_t cols, float *logits);
/*
 * Logits of rows x [n][cols] and the choice in one launch; logits are written too. F32 weights of a multiple of 4 columns. norm: or
 * NULL; what makes x of another one row, of at most MOE_ROUTE_NORM_COLS columns, and is not done yet.
 */
int cuda_moe_route(struct cuda_dev *, const moe_route &, const float *w, const float *bias, const float *x, uint32_t cols, float *logits,
                   const struct norm_in *norm);
