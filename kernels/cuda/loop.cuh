/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What host and device tell each other about a graph's steps, in pinned memory. */

#include "kernels/cuda/cuda.cuh"

struct post_head { /* of a buffer of step data */
        uint32_t units, zero; /* of 16 bytes that follow */
        uint64_t step;        /* its number, if it is posted; else an older one's */
};
struct post_said {
        uint64_t done;        /* graph steps done */
        uint64_t verdict;     /* loop.h */
        uint64_t refused;     /* a cudaError_t: the device would not launch its graph */
};

/* As the last kernel of the graph being captured. */
int cuda_loop_kernel(struct cuda_dev *d);
