/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the op_*.c files share: the table of hot loops for the device's
 * processor, buffers taken once by reserve(), runs of rows, and the choice
 * between doing small work here and waking the pool.
 */

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec_ops.h"

#define K_CPU_EXPERT_GROUPS 256u
#define K_CPU_TAPS          64u

struct k_cpu_run { /* consecutive rows of one sequence */
        uint32_t row0, n, seq;
        int32_t last; /* the sequence's last position in the batch */
};

/* reserve()'s part for the ops; the old buffers stay if it fails. */
int k_cpu_ops_reserve(struct k_cpu *cpu, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx);
size_t k_cpu_ops_bytes(uint32_t n_workers, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx);
void k_cpu_ops_free(struct k_cpu *cpu);
int k_cpu_batch_begin(struct k_dev *dev, struct k_batch *b);

/* Cuts rows [row0, row1) into runs; returns their number. */
uint32_t k_cpu_runs(struct k_cpu *cpu, const struct k_batch *b, uint32_t row0, uint32_t row1);

/* fn for every task; on the pool only if 'cost' (elements touched) is worth the waking. */
void k_cpu_tasks(struct k_cpu *cpu, k_pool_fn fn, void *arg, uint32_t n_tasks, uint64_t cost);

/* Rows per task so that every worker gets a few. */
static inline uint32_t k_cpu_rows_per_task(const struct k_cpu *cpu, uint32_t n) {
        uint32_t per = n / (cpu->n_workers * 4);
        return per ? per : 1;
}

/* -EINVAL with the reason in last_error. */
int k_cpu_refuse(struct k_cpu *cpu, const char *op, const char *why);
