/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A router's product and the experts behind it, run as one (moe.cu); what record.cu needs to know of it. */

#include "kernels/cuda/cuda.cuh"

/* Counters of blocks that have ended, each back at 0 when the launch that used it ends. They lie behind the rope tables. */
enum { MOE_COUNTERS = CUDA_ROPE_DIMS };
static inline uint32_t *moe_counters(const struct cuda_dev *d) { return (uint32_t *)(d->rope_dev + CUDA_ROPE_MAX * (CUDA_ROPE_DIMS / 2)); }

enum { MOE_ROUTE_NORM_COLS = 4096 /* most of a row whose norm a router's blocks make */ };

/* Whether the product's only use is to be this op's router, in a form that runs with it. */
bool cuda_moe_takes(const struct cuda_dev *, const struct cmd_linear *, const struct cmd_moe *);
/* The product can make this norm, of what its command says but for the addition; its x's squares are in d->squares. */
bool cuda_moe_norms(const struct cuda_dev *, const struct cmd_linear *, const struct cmd_moe *, const struct cmd_norm *);
/* What runs with the experts. */
struct moe_with {
        const struct cmd_linear *router; /* that product, not yet run, or NULL: the logits are there */
        const struct cmd_norm *norm;     /* the norm before the router, not yet run, or NULL */
        const struct cmd_norm *add;      /* the next command, if it adds the result to its x, or NULL */
        bool add_done;                   /* and d->squares has those of the sums */
};
int cuda_run_moe_with(struct cuda_dev *, const struct cmd_moe *, struct moe_with *);
