/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A router's product and the experts behind it, run as one (moe.cu); what record.cu needs to know of it. */

#include "kernels/cuda/cuda.cuh"

/* Counters of blocks that have ended, each back at 0 when the launch that used it ends. They lie behind the rope tables. */
enum { MOE_COUNTERS = CUDA_ROPE_DIMS };
static inline uint32_t *moe_counters(const struct cuda_dev *d) { return (uint32_t *)(d->rope_dev + CUDA_ROPE_MAX * (CUDA_ROPE_DIMS / 2)); }

/* Whether the product's only use is to be this op's router, in a form that runs with it. */
bool cuda_moe_takes(const struct cuda_dev *, const struct cmd_linear *, const struct cmd_moe *);
/* router: that product; NULL: the logits are there. */
int cuda_run_moe_with(struct cuda_dev *, const struct cmd_moe *, const struct cmd_linear *router);
