/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Products with 8 NT activations side by side; matvec.cuh says how. */

#include "kernels/cuda/matvec_few.cuh"

/* Where this lane reads activations: of column g its codes, of columns 2t and 2t + 1 scales and sums; a tile's are in a row. */
template <class Q, int NT> struct many_x {
        const uint8_t *codes[NT], *dx[NT][2], *sx[NT][2];
        __device__ __forceinline__ void move(int tiles) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        codes[nt] += tiles * 256;
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                                dx[nt][j] += tiles * 32;
                                if (Q::HAS_MIN)
                                        sx[nt][j] += tiles * 64;
                        }
                }
        }
};

/* What a lane has of 64 columns of a tile: both blocks' codes, scales (of four blocks: read with the first of two such pairs), sums of halves. */
template <class Q, int NT> struct many_in {
        uint4 b[NT];
        float4 dx[NT][2], sx[NT][2];
        __device__ __forceinline__ void load(const many_x<Q, NT> &x, int q) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        b[nt] = *(const uint4 *)(x.codes[nt] + q * 64);
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                                if (q % 2 == 0)
                                        dx[nt][j] = *(const float4 *)(x.dx[nt][j] + q * 8);
                                if (Q::HAS_MIN)
                                        sx[nt][j] = *(const float4 *)(x.sx[nt][j] + q * 16);
                        }
                }
        }
        __device__ __forceinline__ float scale(int nt, int j, int kb) const {
                const float4 &v = dx[nt][j];
                return kb % 4 == 0 ? v.x : kb % 4 == 1 ? v.y : kb % 4 == 2 ? v.z : v.w;
        }
        __device__ __forceinline__ float sum(int nt, int j, int k1, int h) const {
                const float s0 = k1 ? sx[nt][j].z : sx[nt][j].x, s1 = k1 ? sx[nt][j].w : sx[nt][j].y;
                return !Q::N16 ? __fadd_rn(s0, s1) : h ? s1 : s0;
        }
};

/* 16 rows x 64 columns of a tile, from its number q, against 8 NT activations. acc: [row, column] of each eight. */
template <class Q, int NT>
static __device__ __forceinline__ void many_quarter(const tile_src &src, Q &w, uint32_t lane, int q, float (*acc)[4][4], const many_in<Q, NT> &in) {
        float sc[2][4], mn[2][4];
        w.template load_codes<true>(src, lane, q);
#pragma unroll
        for (int r = 0; r < 2; r++)
                Q::template pair<true>(src, lane >> 2, q, r, sc[r], mn[r]);
#pragma unroll
        for (int k1 = 0; k1 < 2; k1++) {
                uint32_t a[4];
                tile_codes(w, q * 2 + k1, a);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        const uint32_t b0 = k1 ? in.b[nt].z : in.b[nt].x, b1 = k1 ? in.b[nt].w : in.b[nt].y;
                        float *to = acc[nt][q];
#pragma unroll
                        for (int h = 0; h < (Q::N16 ? 2 : 1); h++) {
                                const int at = Q::N16 ? 2 * k1 + h : k1;
                                int c[4];
                                if (Q::N16)
                                        mma_k16<Q::FIELDS>(c, a[h * 2], a[h * 2 + 1], h ? b1 : b0, INT_BIAS);
                                else
                                        mma_s8_k32(c, a, b0, b1, INT_BIAS);
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                        const int r = i >> 1, j = i & 1;
                                        to[i] = __fmaf_rn(sc[r][at], __fmul_rn(int_sum(c[i], tile_field<Q>(k1, h)), in.scale(nt, j, q * 2 + k1)), to[i]);
                                        if (Q::HAS_MIN)
                                                to[i] = __fmaf_rn(-mn[r][at], in.sum(nt, j, k1, h), to[i]);
                                }
                        }
                }
        }
}

/* NT: columns are in NT eights; SIDE: row groups that a warp has side by side, for which it reads activations once. */
template <int TYPE, int NT, int SIDE> struct many_shape {
        static constexpr bool HAS_MIN = qtype<TYPE>::HAS_MIN;
        static constexpr int STAGE = tile_stage<TYPE>::BYTES * SIDE;
        static constexpr int RING = STAGE > 3500 || NT * SIDE > 1 ? 2 : STAGE > 2000 ? 3 : 4;
        static constexpr int COLS = 8 * NT;
        static constexpr uint32_t COL = 20; /* floats of a column's 16 rows: lanes that write and lanes that read four rows then use all banks */
        static constexpr int BLOCKS = NT * SIDE > 2 ? 1 : 2; /* on a multiprocessor */
        static constexpr bool TWO = NT * SIDE < 2; /* sums of two units: one barrier each instead of two */
        static constexpr size_t red(uint32_t per_unit, uint32_t ks) { return (size_t)per_unit * ks * COLS * COL * sizeof(float) * (TWO ? 2 : 1); }
        static size_t smem(const matvec_args &a, uint32_t warps, uint32_t per_unit) { return (size_t)warps * RING * STAGE + red(per_unit, a.ks); }
        static uint32_t per_sm(const struct cuda_dev *d, const matvec_args &a, size_t smem) {
                return BLOCKS > 1 && a.how.per_sm != 1 && smem <= matvec_budget(d, 2) ? 2 : 1;
        }
};

/* Rows r .. r + 3 of a row group's column: the warps' sums, in order. at: of the first warp; to the next: 'part' floats. */
static __device__ __forceinline__ float4 many_sum(const float *at, uint32_t ks, uint32_t part) {
        float4 v = *(const float4 *)at;
#pragma unroll 7
        for (uint32_t k = 1; k < ks; k++) {
                const float4 u = *(const float4 *)(at + k * part);
                v = make_float4(__fadd_rn(v.x, u.x), __fadd_rn(v.y, u.y), __fadd_rn(v.z, u.z), __fadd_rn(v.w, u.w));
        }
        return v;
}
/* Four rows of a column of a unit to where they belong. */
static __device__ __forceinline__ void many_put(const matvec_args &a, const float *sums, uint32_t part, uint32_t unit, uint32_t s, uint32_t r,
                                                uint32_t expert, uint32_t col) {
        uint32_t o, rg;
        if (!matvec_group(a, unit, s, o, rg))
                return;
        const matvec_out &mo = a.out[o];
        const uint32_t row = rg * 16 + r, yr = a.jobs.y_row ? a.jobs.y_row[col] : col;
        const float4 v4 = many_sum(sums, a.ks, part);
        const float v[4] = {v4.x, v4.y, v4.z, v4.w};
        float *y = mo.y + yr * mo.y_stride + (a.jobs.per_expert ? expert * a.jobs.y_job : 0) + row;
        float *to = a.add_to ? a.add_to + (size_t)yr * mo.rows + row : NULL;
#pragma unroll
        for (int i = 0; i < 4; i++)
                if (row + i < mo.rows) {
                        const float f = matvec_finish(mo, expert, row + i, v[i]);
                        y[i] = f;
                        if (to)
                                to[i] = __fmaf_rn(a.add_scale, f, to[i]);
                }
}

/* grid.z: the columns' groups of 8 NT side by side, so that a tile is read from memory for the first and from L2 for the others. */
template <int TYPE, int NT, int SIDE> __global__ void __launch_bounds__(256, many_shape<TYPE, NT, SIDE>::BLOCKS) matvec_kernel(const __grid_constant__ matvec_args a) {
        typedef qtype<TYPE> Q;
        typedef many_shape<TYPE, NT, SIDE> SH;
        extern __shared__ __align__(16) uint8_t sm[]; /* [warps] rings, [TWO ? 2 : 1][per_unit][ks][COLS][COL] sums */
        const uint32_t warps = blockDim.x >> 5;
        const matvec_place p(a, warps);
        const uint32_t g = p.lane >> 2, t = p.lane & 3;
        float *red_all = (float *)(sm + warps * SH::RING * SH::STAGE);
        const uint8_t *base = sm + p.warp * SH::RING * SH::STAGE;
        uint32_t expert = 0, c0 = 0, n = a.jobs.n, turn = 0;
        matvec_ring<TYPE, SH::RING, SIDE> ring;

        pdl_next();
        const bool lists = a.jobs.expert || a.jobs.per_expert;
        if (!lists)
                ring.start(a, p, base, 0); /* weights: before the wait */
        pdl_wait();
        if (lists) {
                if (!matvec_job(a, expert, c0, n) || blockIdx.z * SH::COLS >= n)
                        return;
                ring.start(a, p, base, expert);
        }

        for (uint32_t cb = blockIdx.z * SH::COLS; cb < n; cb += gridDim.z * SH::COLS) {
                many_x<Q, NT> x;
                if (cb >= gridDim.z * SH::COLS) {
                        __syncthreads(); /* sums of the columns before */
                        asm volatile("cp.async.wait_all;" ::: "memory");
                        __syncwarp();
                        ring.start(a, p, base, expert);
                }
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                        const uint32_t col[3] = {cb + nt * 8 + g, cb + nt * 8 + 2 * t, cb + nt * 8 + 2 * t + 1};
                        const uint8_t *at[3];
#pragma unroll
                        for (int j = 0; j < 3; j++)
                                at[j] = a.image + matvec_slot(a, expert, c0 + min(col[j], n - 1)); /* behind the last: it again, for nobody */
                        x.codes[nt] = at[0] + p.sb0 * 256 + t * 16;
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                                x.dx[nt][j] = at[1 + j] + a.kpad + p.sb0 * 32;
                                x.sx[nt][j] = at[1 + j] + a.kpad + a.kpad / 8 + p.sb0 * 64;
                        }
                }
                for (uint32_t unit = blockIdx.x; unit < a.n_unit; unit += gridDim.x) {
                        const uint32_t end = a.glu ? a.per_unit : min(a.per_unit, a.n_rg - unit * a.per_unit), part = SH::COLS * SH::COL;
                        float *red = red_all + (SH::TWO ? turn * a.per_unit * a.ks * part : 0);
                        turn ^= 1;
                        for (uint32_t s = p.team * SIDE; s < end; s += p.teams * SIDE) {
                                float acc[SIDE][NT][4][4];
#pragma unroll
                                for (int u = 0; u < SIDE; u++)
#pragma unroll
                                        for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                                for (int k = 0; k < 16; k++)
                                                        acc[u][nt][k >> 2][k & 3] = 0;
#pragma unroll 1
                                for (uint32_t k = 0; k < p.tiles; k++) {
                                        many_in<Q, NT> in;
                                        Q w[SIDE];
                                        tile_src src[SIDE];
                                        in.load(x, 0); /* it takes its time: before the tile is waited for */
                                        src[0] = ring.next(base);
#pragma unroll
                                        for (int u = 1; u < SIDE; u++)
                                                src[u] = ring.source(src[0].code + u * tile_stage<TYPE>::BYTES);
#pragma unroll
                                        for (int q = 0; q < 4; q++) {
                                                if (q > 0)
                                                        in.load(x, q);
#pragma unroll
                                                for (int u = 0; u < SIDE; u++)
                                                        many_quarter<Q, NT>(src[u], w[u], p.lane, q, acc[u], in);
                                        }
                                        x.move(1);
                                        __syncwarp();
                                        ring.ask(a, p, expert); /* into the place just read: not before, for registers' sake */
                                }
                                x.move(-(int)p.tiles);
                                constexpr float INV = Q::SUPER ? 1.0f : 1.0f / Q::MUL; /* a power of two: exact at the end too */
#pragma unroll
                                for (int u = 0; u < SIDE; u++) {
                                        float *to = red + ((s + u) * a.ks + p.part) * part + 2 * t * SH::COL + g;
#pragma unroll
                                        for (int nt = 0; nt < NT; nt++)
#pragma unroll
                                                for (int k = 0; k < 4; k++)
                                                        to[(nt * 8 + (k & 1)) * SH::COL + 8 * (k >> 1)] =
                                                                __fmul_rn(__fadd_rn(__fadd_rn(acc[u][nt][0][k], acc[u][nt][1][k]),
                                                                                    __fadd_rn(acc[u][nt][2][k], acc[u][nt][3][k])), INV);
                                }
                        }
                        __syncthreads();
                        if (a.glu) {
                                for (uint32_t c = p.warp; c < SH::COLS && cb + c < n; c += warps)
                                        matvec_put_glu(a, red + c * SH::COL, part, unit, expert, c0 + cb + c);
                        } else {
                                for (uint32_t e = threadIdx.x; e < end * SH::COLS * 4; e += blockDim.x) {
                                        const uint32_t r = (e & 3) * 4, c = (e >> 2) % SH::COLS, s = (e >> 2) / SH::COLS;
                                        if (cb + c < n)
                                                many_put(a, red + s * a.ks * part + c * SH::COL + r, part, unit, s, r, expert, c0 + cb + c);
                                }
                        }
                        if (!SH::TWO)
                                __syncthreads();
                }
        }
}

/*
 * How many row groups (or pairs side by side) a team has in a unit, where nothing was chosen: the more, the seldomer the warps meet;
 * as many as give no block more than an eighth more of them in all, as long as as many blocks are resident, and as what their sums
 * take leaves L1 (28 KB, and what shared memory leaves) room for the images of the columns.
 */
template <class SH> static uint32_t many_groups(const struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        const uint32_t per_sm = SH::per_sm(d, a, SH::smem(a, warps, a.per_unit));
        const uint32_t beside = a.jobs.expert ? 1 : MIN(DIV_ROUND_UP(a.jobs.n, (uint32_t)SH::COLS), per_sm);
        const uint32_t blocks = MAX(d->n_sm * per_sm / (jobs * beside), 1u);
        const size_t image = (size_t)MIN(a.jobs.n, beside * (uint32_t)SH::COLS) * (a.kpad + a.kpad / 8 + (SH::HAS_MIN ? a.kpad / 4 : 0));

        for (uint32_t groups = 4; groups > 1; groups /= 2) {
                const size_t smem = SH::smem(a, warps, a.per_unit * groups);
                const uint32_t work = DIV_ROUND_UP(DIV_ROUND_UP(a.n_rg, a.per_unit * groups), blocks) * groups;
                if (work * 8 <= DIV_ROUND_UP(DIV_ROUND_UP(a.n_rg, a.per_unit), blocks) * 9 && smem <= matvec_budget(d, 1) && SH::per_sm(d, a, smem) == per_sm &&
                    per_sm * (smem + 1024) + image <= d->smem_sm + (28 << 10))
                        return groups;
        }
        return 1;
}

/* 1: this card's shared memory is too small for it. */
template <int TYPE, int NT, int SIDE> static int matvec_run(struct cuda_dev *d, matvec_args a, uint32_t warps, uint32_t jobs, const char *what) {
        typedef many_shape<TYPE, NT, SIDE> SH;
        if (SIDE > 1) {
                a.n_rg = 0;
                for (uint32_t i = 0; i < a.n_out; i++) {
                        a.out[i].rg0 = a.n_rg;
                        a.n_rg += DIV_ROUND_UP(a.out[i].rows, (uint32_t)CUDA_TILE_ROWS * SIDE) * SIDE;
                }
                if (a.glu) {
                        warps = MIN(warps, a.per_unit / SIDE * a.ks);
                } else {
                        a.per_unit *= SIDE;
                        a.n_unit = DIV_ROUND_UP(a.n_rg, a.per_unit);
                }
        }
        if (!a.glu && !a.how.groups) {
                a.per_unit *= many_groups<SH>(d, a, warps, jobs);
                a.n_unit = DIV_ROUND_UP(a.n_rg, a.per_unit);
        }
        const size_t smem = SH::smem(a, warps, a.per_unit);
        const uint32_t per_sm = SH::per_sm(d, a, smem);
        const uint32_t beside = a.jobs.expert ? 1 : MIN(DIV_ROUND_UP(a.jobs.n, (uint32_t)SH::COLS), per_sm);
        if (smem > matvec_budget(d, 1))
                return 1;
        CUDA_TRY(d, cudaFuncSetAttribute(matvec_kernel<TYPE, NT, SIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), what);
        return launch(d, what, matvec_kernel<TYPE, NT, SIDE>, matvec_grid(d, a, per_sm, jobs, beside), warps * 32, smem, a);
}

/*
 * Row groups side by side, whose units are twice as large, or one by one: these where the blocks that a card holds take all of their units
 * at once (a second round of few units costs a whole one), and of short rows, whose units are cheap, also where fewer than three units
 * of two groups come to two multiprocessors. Of GLU a unit is the same either way.
 */
template <int TYPE> static enum cuda_many many_rule(const struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        typedef many_shape<TYPE, 1, 1> SH;

        if (a.jobs.n > 8)
                return CUDA_MANY_2X16;
        if (a.jobs.n <= 4)
                return CUDA_MANY_8;
        if (a.glu)
                return CUDA_MANY_2X8;
        const uint64_t one = (uint64_t)DIV_ROUND_UP(a.n_rg, a.per_unit) * jobs, two = (uint64_t)DIV_ROUND_UP(a.n_rg, 2 * a.per_unit) * jobs;
        const uint64_t blocks = (uint64_t)d->n_sm * SH::per_sm(d, a, SH::smem(a, warps, a.per_unit));
        return one <= blocks || (a.per_warp <= 2 && two * 2 < (uint64_t)d->n_sm * 3) ? CUDA_MANY_8 : CUDA_MANY_2X8;
}

/*
 * Up to 4 columns memory is the limit, so columns that nobody has are not scaled. Beyond, reading and scaling activations is, so row
 * groups side by side; where a card's shared memory has no room for their tiles, one by one. What was chosen and takes more room
 * than that doesn't shrink: it is 1, and matvec_launch() does as if nothing was. A norm is made, squares are left and mail is
 * written with one column only; mail's image lies in memory, too.
 */
template <int TYPE> static int matvec_type(struct cuda_dev *d, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        const uint32_t n = a.jobs.n;
        const bool as_chosen = a.how.deep || a.how.groups > 1 || a.how.many != CUDA_MANY_RULE;
        const enum cuda_many many = a.how.many != CUDA_MANY_RULE ? a.how.many : many_rule<TYPE>(d, a, warps, jobs);
        int r;

        if (n == 1) {
                r = a.how.deep ? matvec_one_run<TYPE, true>(d, a, warps, jobs) : matvec_one_run<TYPE, false>(d, a, warps, jobs);
                if (r <= 0 || as_chosen || a.norm.x || a.squares || a.mail_to)
                        return r;
        } else if (cuda_few_takes((enum k_type)TYPE, n) && a.how.many == CUDA_MANY_RULE) {
                r = n == 2 ? matvec_few_run<TYPE, 2>(d, a, warps, jobs, "product (int8, 2 columns)")
                           : matvec_few_run<TYPE, 4>(d, a, warps, jobs, "product (int8, 4 columns)");
                if (r <= 0 || as_chosen)
                        return r;
        }
        if (many == CUDA_MANY_2X16) {
                r = matvec_run<TYPE, 2, 2>(d, a, warps, jobs, "product (int8, 2 x 16 columns)");
                if (r <= 0 || as_chosen)
                        return r;
        }
        if (many != CUDA_MANY_8) {
                r = matvec_run<TYPE, 1, 2>(d, a, warps, jobs, "product (int8, 2 x 8 columns)");
                if (r <= 0 || as_chosen)
                        return r;
        }
        return matvec_run<TYPE, 1, 1>(d, a, warps, jobs, "product (int8, 8 columns)");
}
