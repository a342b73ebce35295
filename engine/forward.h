/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The one forward pass: walks a description (engine/desc.h) over a batch.
 *
 * Ownership: the caller owns description, workspace (device memory of
 * eng_forward_bytes()), KV pages, recurrent states, page tables and outputs;
 * all outlive the eng_forward. A run allocates nothing. One run at a time.
 *
 * A row's result depends on its own sequence and position only (kernels.h).
 */

#include "engine/desc.h"

struct eng_state { /* one recurrent layer's slots, device memory, in desc->state order */
        float *conv;   /* [slots][conv_floats] */
        float *state;  /* [slots][context_state_floats()], NULL for a short convolution */
};

struct eng_forward_limits {
        uint32_t n_rows;  /* most rows in a run */
        uint32_t n_ctx;   /* most positions of a sequence */
};

struct eng_forward_io {
        struct k_batch *batch;         /* batch_begin() done by the caller; a run may end it and begin one with fewer rows */
        const struct k_kv *kv;         /* [desc->n_kv] */
        const struct eng_state *state; /* [desc->n_state] */
        /* Rows whose logits are wanted, ascending (so D rows first). n_out 0: none. */
        const uint32_t *out_rows;
        uint32_t n_out, n_out_d;
        float *logits;                 /* device [n_out, n_vocab] */
        float *hidden;                 /* device [n, n_embd] or NULL: after the output norm, every row (MTP, embeddings) */
        const float *h_prev;           /* eng_forward_mtp: device [n, n_embd], row i: 'hidden' of the position before row i's */
};

struct eng_forward;

/* Workspace bytes for these limits; false on overflow. The backend's own scratch (ops->reserve) is apart. */
bool eng_forward_bytes(const struct eng_desc *d, const struct k_ops *ops, const struct eng_forward_limits *l, size_t *ret);
/* Widest activation and most heads, for ops->reserve(). */
void eng_forward_extent(const struct eng_desc *d, uint32_t *ret_max_cols, uint32_t *ret_max_heads);
int eng_forward_new(const struct eng_desc *d, struct k_dev *dev, const struct eng_forward_limits *l, void *workspace,
                    struct eng_forward **ret);
struct eng_forward *eng_forward_free(struct eng_forward *f); /* NULL ok; returns NULL; workspace stays the caller's */

/* 0 or a negative errno (-EIO: the device is lost). */
int eng_forward_run(struct eng_forward *f, const struct eng_forward_io *io);
/* The k-th MTP layer: tokens and positions from the batch, h_prev from io; 'hidden' is taken after its head norm. */
int eng_forward_mtp(struct eng_forward *f, uint32_t k, const struct eng_forward_io *io);
