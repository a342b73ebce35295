/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU device: opening (processor variant, pool, fixed scratch), host memory
 * and the table of operations. The device owns its pool and scratch; memory
 * from mem_alloc() belongs to the caller. One thread uses a device at a time.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/detect.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"
#include "kernels/mixed.h"

#include "base/alloc.h"
#include "base/meminfo.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

static void cpu_close(struct k_dev *dev) {
        struct k_cpu *cpu = k_cpu(dev);
        if (!cpu)
                return;
        k_pool_free(cpu->pool);
        k_cpu_ops_free(cpu);
        free(cpu->scratch);
        free(cpu->image);
        free(cpu->panel);
        free(cpu);
}

static const char *cpu_describe(struct k_dev *dev) {
        return k_cpu(dev)->describe;
}

static const char *cpu_last_error(struct k_dev *dev) {
        return k_cpu(dev)->error;
}

/* What the kernel thinks a program can still take without swapping. */
static int cpu_mem_info(struct k_dev *dev, struct k_mem_info *ret) {
        struct meminfo m;

        (void)dev;
        if (meminfo_read("", &m) < 0) { /* files may be out of reach: the kernel's call knows less of what could be given back */
                struct sysinfo s;
                if (sysinfo(&s) < 0)
                        return -errno;
                *ret = (struct k_mem_info){ .total = s.totalram * s.mem_unit, .free_now = (s.freeram + s.bufferram) * s.mem_unit };
                return 0;
        }
        if (!m.total)
                return -EIO;
        *ret = (struct k_mem_info){ .total = (size_t)m.total, .free_now = (size_t)m.available };
        return 0;
}

static void *cpu_mem_alloc(struct k_dev *dev, size_t bytes) {
        const size_t huge = 2u << 20;
        void *p;

        (void)dev;
        if (bytes < huge)
                return h_aligned_alloc(256, bytes);
        p = h_aligned_alloc(huge, bytes);
        if (p) /* a wish: fewer TLB misses when streaming weights */
                (void)madvise(p, bytes, MADV_HUGEPAGE);
        return p;
}

static void cpu_mem_free(struct k_dev *dev, void *p) {
        (void)dev;
        free(p);
}

static int cpu_copy(struct k_dev *dev, void *dst, const void *src, size_t bytes) {
        (void)dev;
        memcpy(dst, src, bytes);
        return 0;
}

/*
 * Large ranges are given back to the kernel, which hands out zeroed pages when
 * they are touched: a KV cache then takes memory as it fills, not at once.
 */
static int cpu_zero(struct k_dev *dev, void *dst, size_t bytes) {
        const uintptr_t page = 4096, begin = (uintptr_t)dst, end = begin + bytes;
        uintptr_t first = (begin + page - 1) & ~(page - 1), last = end & ~(page - 1);

        (void)dev;
        if (bytes < 2u << 20 || madvise((void *)first, last - first, MADV_DONTNEED) < 0) {
                memset(dst, 0, bytes); /* small, or locked in memory */
                return 0;
        }
        memset(dst, 0, first - begin);
        memset((void *)last, 0, end - last);
        return 0;
}

static int cpu_sync(struct k_dev *dev) {
        (void)dev;
        return 0;
}

static int cpu_batch(struct k_dev *dev, struct k_batch *batch) {
        (void)dev;
        (void)batch;
        return 0;
}

/* Room for one image of the widest activations, and what the ops take for each worker. */
static size_t cpu_dev_scratch(struct k_dev *dev, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        return k_cpu_image_bytes(max_rows, max_cols) +
               k_cpu_ops_bytes(k_cpu(dev)->n_workers, max_rows, max_cols, n_head, n_ctx);
}

static int cpu_reserve(struct k_dev *dev, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        struct k_cpu *cpu = k_cpu(dev);
        size_t image = k_cpu_image_bytes(max_rows, max_cols);

        if (image > cpu->image_bytes) {
                uint8_t *p = h_aligned_alloc(64, image);
                if (!p)
                        return -ENOMEM;
                free(cpu->image);
                cpu->image = p;
                cpu->image_bytes = image;
        }
        return k_cpu_ops_reserve(cpu, max_rows, max_cols, n_head, n_ctx);
}

/* Here the host's work in a step is a call: device memory is host memory. */
static void copy_runs(const struct k_host_copy *c) {
        for (size_t i = 0; i < c->rows; i++)
                memcpy((uint8_t *)c->dst + i * c->dst_stride, (const uint8_t *)c->src + i * c->src_stride, c->bytes);
}

static int cpu_host_begin(struct k_dev *dev, const struct k_host_args *a) {
        int r;

        (void)dev;
        for (uint32_t i = 0; i < a->n_in; i++)
                copy_runs(&a->in[i]);
        r = a->fn(a->ud, a->arg);
        for (uint32_t i = 0; i < a->n_out; i++)
                copy_runs(&a->out[i]);
        return r;
}

static const struct k_ops cpu_ops = {
        .name = "cpu",
        .kv_part_blocks = true,
        .max_ctx = 1u << 27,
        .most = { .experts = UINT32_MAX, .experts_used = UINT32_MAX, .expert_groups = K_CPU_EXPERT_GROUPS, .head = K_ATT_WIDEST,
                  .rope = UINT32_MAX, .windows = UINT32_MAX, .taps = K_CPU_TAPS, .delta_key = UINT32_MAX },
        .close = cpu_close,
        .describe = cpu_describe,
        .last_error = cpu_last_error,
        .mem_info = cpu_mem_info,
        .mem_alloc = cpu_mem_alloc,
        .mem_free = cpu_mem_free,
        .upload = cpu_copy,
        .download = cpu_copy,
        .zero = cpu_zero,
        .copy = cpu_copy,
        .sync = cpu_sync,
        .layout_pick = k_cpu_layout_pick,
        .layout_bytes = k_cpu_layout_bytes,
        .repack = k_cpu_repack,
        .act_q_bytes = k_cpu_image_bytes,
        .dev_scratch = cpu_dev_scratch,
        .reserve = cpu_reserve,
        .batch_begin = k_cpu_batch_begin,
        .batch_end = cpu_batch,
        .moe_scratch = k_cpu_moe_scratch,
        .delta_slot = k_cpu_delta_slot,
        .embed = k_cpu_embed,
        .norm = k_cpu_norm,
        .linear = k_cpu_linear,
        .head_linear = k_cpu_head_linear,
        .glu = k_cpu_glu,
        .qkv = k_cpu_qkv,
        .attention = k_cpu_attention,
        .delta = k_cpu_delta,
        .shortconv = k_cpu_shortconv,
        .moe = k_cpu_moe,
        .elem = k_cpu_elem,
        .altup = k_cpu_altup,
        .variants = k_cpu_variants,
        .tune = k_cpu_tune,
        .host_alloc = cpu_mem_alloc,
        .host_free = cpu_mem_free,
        .host_begin = cpu_host_begin,
        .host_end = cpu_sync,
};

void k_cpu_between_device_ops(struct k_dev *dev) {
        k_pool_spin(k_cpu(dev)->pool, 400);
}

const struct k_ops *k_cpu_ops(void) {
        return &cpu_ops;
}

/* The variants built for this architecture; those of other processors are absent. */
static const struct k_cpu_linear_isa *variant(enum k_isa isa) {
        switch (isa) {
        case K_ISA_SCALAR:
                return &k_cpu_linear_scalar;
#if defined(HAVE_CPU_AVX2)
        case K_ISA_AVX2:
                return k_cpu_has_avx2() ? &k_cpu_linear_avx2 : NULL;
#else
        case K_ISA_AVX2:
#endif
#if defined(HAVE_CPU_AVX512)
        case K_ISA_AVX512:
                return k_cpu_has_avx512() ? &k_cpu_linear_avx512 : NULL;
#else
        case K_ISA_AVX512:
#endif
#if defined(HAVE_CPU_AMX)
        case K_ISA_AMX:
                return k_cpu_has_amx() ? &k_cpu_linear_amx : NULL;
#else
        case K_ISA_AMX:
#endif
        case K_ISA_AUTO:
                break;
        }
        return NULL;
}

int k_cpu_open(const struct k_cpu_options *opt, struct k_dev **ret) {
        struct k_cpu *cpu;
        enum k_isa isa = opt->isa;
        int r;

        if (isa == K_ISA_AUTO)
                for (isa = K_ISA_AMX; isa > K_ISA_SCALAR && !variant(isa);)
                        isa--;
        if (!variant(isa))
                return -EOPNOTSUPP;

        cpu = h_calloc(1, sizeof(*cpu));
        if (!cpu)
                return -ENOMEM;
        cpu->base.ops = &cpu_ops;
        cpu->isa = isa;
        cpu->exact = opt->exact;
        cpu->linear = variant(isa);
        r = k_pool_new(opt->threads, &cpu->pool);
        if (r == 0) {
                cpu->n_workers = k_pool_workers(cpu->pool);
                cpu->panel = h_aligned_alloc(64, (size_t)cpu->n_workers * cpu->linear->scratch);
                if (!cpu->panel)
                        r = -ENOMEM;
        }
        if (r < 0) {
                cpu_close(&cpu->base);
                return r;
        }
        snprintf(cpu->describe, sizeof(cpu->describe), "cpu, %s, %u thread%s%s", cpu->linear->name, cpu->n_workers,
                 cpu->n_workers == 1 ? "" : "s", cpu->exact ? ", exact" : "");
        *ret = &cpu->base;
        return 0;
}
