/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which code computes with the card's layout. Where there is none for a type or
 * a processor, rows are brought back to the file's blocks, a few at a time, and
 * the products made from those: right on every machine, fast on none.
 */
#include "kernels/cpu/planes.h"

#include <string.h>

#include "kernels/cpu/detect.h"
#include "kernels/cuda/layout_file.h"
#include "kernels/mixed.h"

#define ROW_BYTES (96u * 1024)

static void from_file(const struct k_cpu *cpu, const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1) {
        _Alignas(64) uint8_t block[ROW_BYTES];
        const struct k_weight *w = job->w;
        size_t row_bytes = 0;
        uint32_t n;

        (void)k_type_row_bytes(w->type, w->cols, &row_bytes);
        n = (uint32_t)MIN(ROW_BYTES / row_bytes, (size_t)K_PANEL);
        for (uint32_t r = row0; r < row1; r += n) {
                struct k_weight part = *w;
                struct k_cpu_gemm one = *job;

                n = MIN(n, row1 - r);
                for (uint32_t i = 0; i < n; i++)
                        (void)cuda_layout_to_file(w->type, w->rows, w->cols, k_gemm_weights(job), r + i, block + i * row_bytes);
                part.layout = K_LAYOUT_FILE;
                part.rows = n;
                part.data = block;
                part.scale = w->scale ? w->scale + (w->n_expert > 1 ? job->expert : 0) : NULL;
                part.n_expert = 0;
                one.w = &part;
                one.expert = 0;
                one.bias = job->bias ? job->bias + r : NULL;
                one.y = job->y + r;
                cpu->linear->rows(&one, kind, scratch, 0, n);
        }
}

void k_cpu_planes_rows(const struct k_cpu *cpu, const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0,
                       uint32_t row1) {
#if defined(HAVE_CPU_AMX)
        if (cpu->isa == K_ISA_AMX && k_cpu_amx_planes(job, kind)) {
                cpu->linear->rows(job, kind, scratch, row0, row1);
                return;
        }
#endif
#if defined(HAVE_CPU_AVX512)
        if (cpu->isa >= K_ISA_AVX512 && k_planes_avx512(job, kind, row0, row1))
                return;
#endif
        from_file(cpu, job, kind, scratch, row0, row1);
}

bool k_cpu_planes_fast(void) {
#if defined(HAVE_CPU_AVX512)
        return k_cpu_has_avx512();
#else
        return false;
#endif
}
