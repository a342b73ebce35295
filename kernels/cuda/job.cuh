/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a job of a product with float activations multiplies (struct jobs, cuda.cuh). Where there are lists, behind the wait: they are an earlier kernel's. */

#include "kernels/cuda/cuda.cuh"

struct job { uint32_t expert, c0, n; }; /* its matrix; its columns c0 .. c0 + n - 1 of all; n 0: nothing */

/* by_head: jobs.per_expert, wherever the kernel has it at hand. */
static __device__ __forceinline__ job job_of(const struct jobs &jobs, bool by_head, uint32_t number) {
        job j = {0, 0, jobs.n};
        if (jobs.expert) {
                j.expert = jobs.expert[number];
                j.n = 0;
                if (j.expert != UINT32_MAX) {
                        j.c0 = jobs.start[number];
                        j.n = jobs.count[number];
                }
        } else if (by_head) {
                j.expert = number;
        }
        return j;
}
/* The row of x, and that of y, of the job's column 'col'. */
static __device__ __forceinline__ uint32_t job_x_row(const struct jobs &jobs, bool by_head, const job &j, uint32_t col) {
        const uint32_t row = jobs.x_row ? jobs.x_row[j.c0 + col] : j.c0 + col;
        return by_head ? row * jobs.n_job + j.expert : row;
}
static __device__ __forceinline__ uint32_t job_y_row(const struct jobs &jobs, const job &j, uint32_t col) {
        return jobs.y_row ? jobs.y_row[j.c0 + col] : j.c0 + col;
}
