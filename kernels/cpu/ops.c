/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and small services of the op_*.c files: see ops.h. */
#include "kernels/cpu/ops.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Work below this many elements is done by the caller: waking workers costs about as much. */
#define INLINE_COST 8192u

#define SCRATCH_MIN ((size_t)2 << 20)
#define PARTIAL_MAX ((size_t)16 << 20) /* bytes */

const struct k_cpu_vec *k_cpu_vec(const struct k_cpu *cpu) {
        switch (cpu->isa) {
        case K_ISA_AMX: /* products only */
#if defined(HAVE_VEC_AVX512)
        case K_ISA_AVX512:
                return &k_cpu_vec_avx512;
#else
        case K_ISA_AVX512:
#endif
#if defined(HAVE_VEC_AVX2)
        case K_ISA_AVX2:
                return &k_cpu_vec_avx2;
#else
        case K_ISA_AVX2:
#endif
        case K_ISA_SCALAR:
        case K_ISA_AUTO:
                break;
        }
        return &k_cpu_vec_base;
}

void k_cpu_tasks(struct k_cpu *cpu, k_pool_fn fn, void *arg, uint32_t n_tasks, uint64_t cost) {
        if (cost < INLINE_COST || n_tasks < 2 || cpu->n_workers < 2)
                for (uint32_t i = 0; i < n_tasks; i++)
                        fn(arg, i, 0);
        else
                k_pool_run(cpu->pool, fn, arg, n_tasks);
}

int k_cpu_refuse(struct k_cpu *cpu, const char *op, const char *why) {
        snprintf(cpu->error, sizeof(cpu->error), "%s: %s", op, why);
        return -EINVAL;
}

/* Blocks of keys and values in floats for the widest head, and a tile's queries, scores and results. */
size_t k_cpu_op_scratch(uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        size_t head = MIN(max_cols, K_ATT_WIDEST);

        (void)max_rows;
        (void)n_head;
        (void)n_ctx;
        return SCRATCH_MIN + 4 * (K_ATT_KEYS * 2 * head);
}

static size_t partial_bytes(uint32_t n_workers, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        size_t splits = n_ctx / 512 + 1, one = ((size_t)max_cols + 2 * n_head) * sizeof(float);

        return MIN(PARTIAL_MAX, one * splits * n_workers);
}

size_t k_cpu_ops_bytes(uint32_t n_workers, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        return n_workers * k_cpu_op_scratch(max_rows, max_cols, n_head, n_ctx) +
               max_rows * (sizeof(struct k_cpu_run) + sizeof(uint32_t) + K_ROPE_SLOTS * K_ROPE_DIMS * sizeof(float)) +
               partial_bytes(n_workers, max_cols, n_head, n_ctx);
}

int k_cpu_ops_reserve(struct k_cpu *cpu, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        struct k_cpu_ops *o = &cpu->ops, n = { 0 };
        size_t scratch = MAX(cpu->scratch_bytes, k_cpu_op_scratch(max_rows, max_cols, n_head, n_ctx));
        size_t partial = partial_bytes(cpu->n_workers, max_cols, n_head, n_ctx);
        uint8_t *s;

        n.max_rows = MAX(max_rows, o->max_rows);
        n.partial_floats = MAX(partial / sizeof(float), o->partial_floats);
        scratch = (scratch + 63) & ~(size_t)63;
        s = h_aligned_alloc(64, scratch * cpu->n_workers);
        n.run = h_new0(struct k_cpu_run, n.max_rows);
        n.tile = h_new0(uint32_t, (size_t)n.max_rows + 1);
        n.rope = h_aligned_alloc(64, (size_t)n.max_rows * K_ROPE_SLOTS * K_ROPE_DIMS * sizeof(float));
        n.partial = h_aligned_alloc(64, MAX(n.partial_floats, (size_t)16) * sizeof(float));
        n.zeros = h_new0(float, K_ATT_WIDEST);
        if (!s || !n.zeros || !n.run || !n.tile || !n.rope || !n.partial) {
                free(s);
                free(n.run);
                free(n.tile);
                free(n.rope);
                free(n.partial);
                free(n.zeros);
                return -ENOMEM;
        }
        k_cpu_ops_free(cpu);
        free(cpu->scratch);
        cpu->scratch = s;
        cpu->scratch_bytes = scratch;
        *o = n;
        return 0;
}

void k_cpu_ops_free(struct k_cpu *cpu) {
        free(cpu->ops.run);
        free(cpu->ops.tile);
        free(cpu->ops.rope);
        free(cpu->ops.partial);
        free(cpu->ops.zeros);
        cpu->ops = (struct k_cpu_ops){ 0 };
}

int k_cpu_batch_begin(struct k_dev *dev, struct k_batch *b) {
        struct k_cpu *cpu = k_cpu(dev);

        if (b->n > cpu->ops.max_rows)
                return k_cpu_refuse(cpu, "batch", "more rows than reserved");
        memset(cpu->ops.rope_of, 0, sizeof(cpu->ops.rope_of));
        return 0;
}

uint32_t k_cpu_runs(struct k_cpu *cpu, const struct k_batch *b, uint32_t row0, uint32_t row1) {
        struct k_cpu_run *run = cpu->ops.run;
        uint32_t n = 0;

        for (uint32_t r = row0; r < row1; r++) {
                if (n == 0 || run[n - 1].seq != b->seq[r])
                        run[n++] = (struct k_cpu_run){ .row0 = r, .seq = b->seq[r] };
                run[n - 1].n++;
                run[n - 1].last = b->pos[r];
        }
        return n;
}
