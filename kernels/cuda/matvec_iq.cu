/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the products of the lattice formats (matvec_iq.cuh). */
#include <errno.h>

#include "kernels/cuda/matvec_iq.cuh"

CUDA_FAMILY(matvec_iq)

template <int T, int COLS> static int iq_run(struct cuda_dev *d, const iq_args &a, const char *what) {
        typedef iq_plan<T> PL;
        constexpr uint32_t smem = PL::TABLES + IQ_SUMS * COLS + IQ_WARPS * PL::RING * PL::STAGE;
        static_assert(smem <= 99 * 1024, "every card's");
        const uint32_t jobs = a.jobs.expert || a.jobs.per_expert ? a.jobs.n_job : 1, passes = DIV_ROUND_UP(a.jobs.n, (uint32_t)COLS);
        const uint32_t per_sm = 2 * (smem + 1024) <= d->smem_sm ? 2 : 1, beside = MIN(passes, per_sm * d->n_sm);
        const uint32_t most = MAX(d->n_sm * per_sm / (jobs * (a.jobs.expert ? 1 : beside)), 1u);

        CUDA_TRY(d, cudaFuncSetAttribute(iq_kernel<T, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, iq_kernel<T, COLS>, dim3(MIN(a.n_unit, most), jobs, passes), a.teams * a.ks * 32, smem, a);
}

template <int T> static int iq_type(struct cuda_dev *d, const iq_args &a) {
        return a.jobs.n == 1 ? iq_run<T, 1>(d, a, "product (lattice, one column)") : iq_run<T, 8>(d, a, "product (lattice, 8 columns)");
}

static int iq_same_type(struct cuda_dev *d, const struct linear_out *const *out, uint32_t n_out, const uint8_t *image, uint32_t kpad, const struct jobs *jobs) {
        iq_args a = {};

        for (uint32_t i = 0; i < n_out; i++) {
                const struct k_weight *w = &out[i]->w;
                size_t row_bytes;
                if (!k_type_row_bytes(w->type, w->cols, &row_bytes))
                        return -EINVAL;
                a.out[i] = {(const uint8_t *)w->data, w->expert_stride, out[i]->bias, w->scale, out[i]->y, out[i]->y_stride, w->rows, a.n_rg,
                            (uint32_t)row_bytes, w->n_expert > 1};
                a.n_rg += DIV_ROUND_UP(w->rows, 16u);
        }
        a.n_out = n_out;
        a.n_sb = kpad / 256;
        a.per_warp = DIV_ROUND_UP(a.n_sb, (uint32_t)IQ_WARPS); /* by shape alone: it fixes the order of the sum */
        a.ks = DIV_ROUND_UP(a.n_sb, a.per_warp);
        a.teams = IQ_WARPS / a.ks;
        a.n_unit = DIV_ROUND_UP(a.n_rg, a.teams);
        a.image = image;
        a.kpad = kpad;
        a.jobs = *jobs;
        switch (out[0]->w.type) {
#define X(T) case T: return iq_type<T>(d, a);
                IQ_FOR_TYPES(X)
#undef X
        default: return -EINVAL;
        }
}

int cuda_matvec_iq(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad, const struct jobs *jobs) {
        if (jobs->n == 0)
                return 0;
        return cuda_each_type(out, n_out, [&](const struct linear_out *const *same, uint32_t n) { return iq_same_type(d, same, n, image, kpad, jobs); });
}

int cuda_tables_iq(struct cuda_dev *d) { return iq_upload(d); }
