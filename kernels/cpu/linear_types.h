/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a wide variant's file (linear_avx2.c, linear_avx512.c): which of its tiles each type uses, the same for
 * all of them. Included after the tiles (PANEL, PLANES), PANEL_FNS(t) and plain() are defined.
 */
#pragma once

#define PLANES_FNS(t) { PANEL_FNS(t), .packed = { t##_k1, t##_k2 }, .head = t##_head, .codes = t##_codes }
static const struct type_fns fns[_K_TYPE_MAX] = {
        [K_Q4_0] = PLANES_FNS(Q4_0),
        [K_Q4_1] = PLANES_FNS(Q4_1),
        [K_Q5_0] = PLANES_FNS(Q5_0),
        [K_Q5_1] = PLANES_FNS(Q5_1),
        [K_Q8_0] = PLANES_FNS(Q8_0),
        [K_IQ4_NL] = PLANES_FNS(IQ4_NL),
        [K_MXFP4] = PLANES_FNS(MXFP4),
        [K_NVFP4] = PLANES_FNS(NVFP4),
        [K_Q2_K] = PLANES_FNS(Q2_K),
        [K_Q3_K] = PLANES_FNS(Q3_K),
        [K_Q4_K] = PLANES_FNS(Q4_K),
        [K_Q5_K] = PLANES_FNS(Q5_K),
        [K_Q6_K] = PLANES_FNS(Q6_K),
        [K_IQ4_XS] = PLANES_FNS(IQ4_XS),
        [K_TQ1_0] = PLANES_FNS(TQ2_0),
        [K_TQ2_0] = PLANES_FNS(TQ2_0),
        [K_IQ1_S] = { PANEL_FNS(IQ1_S) },
        [K_IQ1_M] = { PANEL_FNS(IQ1_M) },
        [K_IQ2_XXS] = { PANEL_FNS(IQ2_XXS) },
        [K_IQ2_XS] = { PANEL_FNS(IQ2_XS) },
        [K_IQ2_S] = { PANEL_FNS(IQ2_XS) },    /* the same scales per 16 */
        [K_IQ3_XXS] = { PANEL_FNS(IQ2_XXS) }, /* and per 32 */
        [K_IQ3_S] = { PANEL_FNS(IQ3_S) },
};

static void rows(const struct k_cpu_gemm *job, uint32_t kind, uint8_t *scratch, uint32_t row0, uint32_t row1) {
        struct work *wk = (struct work *)(void *)scratch;
        if (kind && job->n <= FEW && is_lattice(job->w->type))
                rows_few(job, row0, row1);
        else if (kind)
                rows_codes(&fns[job->w->type], job, kind, wk, row0, row1);
        else
                rows_floats(plain, job, wk, row0, row1);
}
