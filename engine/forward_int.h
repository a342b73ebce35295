/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Inside the forward pass. One residual stream x [n, n_embd]; each branch reads
 * a norm of it (or itself), leaves its result in y, and the addition waits in
 * 'pend' until the next norm can carry it in the same pass.
 *
 *   forward.c        runs: embedding, layers, logits
 *   forward_space.c  buffers cut from the caller's workspace
 *   forward_steps.c  single ops with the pass's habits
 *   forward_mix.c    attention, latent attention, delta net, short convolution
 *   forward_ffn.c    dense, experts, shared expert, per-layer embeddings
 *   forward_altup.c  several residual streams
 */

#include "engine/forward.h"

#include <string.h>

struct pending {
        bool set;
        const float *norm, *norm_b; /* of the branch, or NULL */
};

struct eng_forward {
        const struct eng_desc *d;
        struct k_dev *dev;
        const struct k_ops *ops;
        struct eng_forward_limits lim;
        struct k_rope_params *rope; /* the description's, LongRoPE factors chosen */

        /* acts: with room for a quantized image */
        struct k_act x, x2;         /* the residual stream, and where its surviving rows go */
        struct k_act h, h2;         /* normed inputs of branches */
        struct k_act a, b;          /* results of attention, delta net, GLU; inputs of second products */
        struct k_act cat;           /* MTP: [n, 2 n_embd] */
        struct k_act ple;           /* [n, n_ple * n_layer] */
        float *alt;                 /* residual streams, alt_stride() apart */
        struct k_act modes;         /* [n, n_altup] */
        float *coef;                /* [n, n_altup^2] */
        /* branch results */
        struct k_act y, y2;
        float *wide;                /* projections of one layer */
        float *route, *gate1;       /* [n, n_expert], [n] */
        void *moe;
        size_t moe_bytes;

        /* one run */
        const struct eng_forward_io *io;
        struct k_batch *bt;         /* the rows in flight */
        struct k_batch sub;         /* the rows that are kept, and their places */
        uint32_t *sub_seq;          /* [n_rows] */
        int32_t *sub_pos;
        struct pending pend;
};

#define TRY(call)               \
        do {                    \
                int _r = (call); \
                if (_r)         \
                        return _r; \
        } while (0)

/* Floats between streams of n rows: each begins on a cache line. */
static inline size_t alt_stride(const struct eng_desc *d, uint32_t n) {
        return ((size_t)n * d->n_embd + 15) & ~(size_t)15;
}

/* Buffers: without a base only measures. False on overflow. */
bool fwd_cut(struct eng_forward *f, uint8_t *base, size_t *ret);

/* An act with another width, its quantized image void. */
struct k_act *fwd_use(struct k_act *a, uint32_t cols);
/* A part of f->wide: [n, cols], the next one behind it. */
float *fwd_part(struct eng_forward *f, size_t *at, size_t cols);
/* out = norm(x) after the pending addition; out NULL: only the addition. */
int fwd_norm(struct eng_forward *f, const float *w, const float *b, struct k_act *out, uint32_t out_col);
int fwd_flush(struct eng_forward *f);
/* A norm in place outside the residual stream. */
int fwd_norm_self(struct eng_forward *f, struct k_act *a, const float *w);
int fwd_linear(struct eng_forward *f, struct k_act *x, const struct k_weight *w, const float *bias, float *y);
void fwd_add_out(struct k_linear_args *l, const struct k_weight *w, const float *bias, float *y);
int fwd_axpy(struct eng_forward *f, float *y, const float *x, float b, uint32_t cols);
/* The input of a branch; its result, which is in y, put on its way. */
int fwd_branch_in(struct eng_forward *f, const struct eng_branch *b, struct k_act **ret);
int fwd_branch_out(struct eng_forward *f, const struct eng_branch *b);

int fwd_mixer(struct eng_forward *f, const struct eng_layer *l);
int fwd_feed_forward(struct eng_forward *f, const struct eng_layer *l);
int fwd_ple_prepare(struct eng_forward *f);
int fwd_ple_apply(struct eng_forward *f, const struct eng_layer *l, uint32_t i);

/* Models with several residual streams: they replace a layer's walk; x becomes the mean of the streams at the end. */
int fwd_altup_begin(struct eng_forward *f);
int fwd_altup_layer(struct eng_forward *f, const struct eng_layer *l, uint32_t i);
int fwd_altup_end(struct eng_forward *f);
