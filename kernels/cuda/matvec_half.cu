/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of role D with F16 and BF16 weights: tensor cores (mma.m16n8k16), f32 sums.
 *
 * An MMA's operands: of activations 16 rows, 8 columns of x in two pieces each, hi and lo; of weights 8 rows as the file has them.
 * Which columns an MMA calls which is free, so lane (g, t) has the weights 8t..8t+7 of every 32 of row g, 16 bytes, and the same
 * eight columns of activation g; two MMAs multiply them, of their first and of their last four columns. The lane then has the
 * products of activation g, both pieces, and rows 2t and 2t + 1.
 *
 * - f16: an activation's 32 columns are scaled by a power of two that brings the largest into [2^13, 2^14); hi and lo have 11
 *   bits each. The product of 32 columns is scaled back when it is added.
 * - bf16: hi and lo have 8 bits each and the range of f32. No scale.
 * An infinite activation or weight makes its row's results NaN: the piece that is left over is none.
 *
 * One order of a row's sum, by its columns alone: up to eight slices of equal length (half_slices()), a warp each; within a slice
 * 32 columns at a time: two MMAs, one after the other, from zero; hi's product and lo's; these sums in f32, one after the other;
 * then the slices, in order. No column takes part in another's sum, so how many columns there are, and which kernel has
 * them, change no bit; nor does how the operands come.
 *
 * Weights come through a ring of each warp's own in shared memory, across the units of rows that the block goes through; a lane
 * reads what it asked for itself. Activations go from L2 or L1 to registers, a step ahead, and are split by every warp for itself:
 * 46 instructions for 32 x 32 weights, which memory takes 430 issue slots of a multiprocessor for.
 */
#include <errno.h>

#include "kernels/cuda/job.cuh"
#include "kernels/cuda/ptx.cuh"

CUDA_FAMILY(matvec_half)

enum { HALF_SLICES = 8, HALF_STEP = 32 /* columns */ };

struct half_out {
        const uint8_t *w; /* rows of cols weights, one behind the other */
        size_t expert_stride; /* bytes */
        uint32_t rows, many_scales;
        const float *bias, *scale;
        float *y;
        size_t y_stride;
};

struct half_args { /* first what comes before a block's first weights: it waits for each line of parameters */
        uint32_t cols, steps, per; /* steps of 32 columns; per: of a slice */
        uint32_t late;             /* lists: the kernel before says which weights */
        uint32_t by_head;          /* jobs.per_expert */
        uint32_t n_unit, n_out;
        uint32_t unit0[K_LINEAR_MAX]; /* first unit of each, in the grid's order */
        half_out out[K_LINEAR_MAX];
        const float *x;
        size_t x_stride;
        uint32_t slices;
        struct jobs jobs;
};

/* ---- the two types ------------------------------------------------------------------------ */

struct half_f16 {
        static constexpr bool SCALED = true;
        static __device__ __forceinline__ uint32_t pack(float a, float b) {
                const __half2 h = __floats2half2_rn(a, b);
                return *(const uint32_t *)&h;
        }
        static __device__ __forceinline__ float2 unpack(uint32_t v) { return __half22float2(*(const __half2 *)&v); }
        static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
                asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
        }
};
struct half_bf16 {
        static constexpr bool SCALED = false;
        static __device__ __forceinline__ uint32_t pack(float a, float b) {
                uint32_t r;
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
                return r;
        }
        static __device__ __forceinline__ float2 unpack(uint32_t v) { return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)); }
        static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
        }
};

/* Eight columns of an activation, of the 32 that lanes t = 0..3 have. down: 1 / the scale of the 32. */
template <class T> struct half_pieces {
        uint32_t a[2][4]; /* operands of the two MMAs: hi, lo of two columns, hi, lo of two more */
        float down;

        __device__ __forceinline__ half_pieces(const float (&x)[8]) {
                float up = 1;
                down = 1;
                if constexpr (T::SCALED) {
                        float m = 0;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                m = fmaxf(m, fabsf(x[i]));
                        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
                        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
                        /* Exponents with their bias; what is no number stays that under any scale. */
                        const uint32_t e = min(267 - (__float_as_uint(m) >> 23), 253u);
                        up = __uint_as_float(e << 23);
                        down = __uint_as_float((254 - e) << 23);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                        const float v = T::SCALED ? __fmul_rn(x[2 * i], up) : x[2 * i], u = T::SCALED ? __fmul_rn(x[2 * i + 1], up) : x[2 * i + 1];
                        const uint32_t hi = T::pack(v, u);
                        const float2 h = T::unpack(hi);
                        a[i >> 1][2 * (i & 1)] = hi;
                        a[i >> 1][2 * (i & 1) + 1] = T::pack(__fsub_rn(v, h.x), __fsub_rn(u, h.y));
                }
        }
};

/* ---- which activation, whose rows --------------------------------------------------------------- */

static __device__ __forceinline__ const float *x_of(const half_args &a, const job &j, uint32_t col) {
        return a.x + job_x_row(a.jobs, a.by_head, j, col) * a.x_stride;
}
/* Whose unit it is; from there on 'unit' counts. */
static __device__ __forceinline__ const half_out &out_of(const half_args &a, uint32_t *unit) {
        uint32_t o = 0;
        while (o + 1 < a.n_out && *unit >= a.unit0[o + 1])
                o++;
        *unit -= a.unit0[o];
        return a.out[o];
}

/* ---- weights ----------------------------------------------------------------------------------- */

/* A unit has 16 RT rows, of which each warp has its slice: the more rows, the less is read of the activations. */
template <int RT, int NT> struct half_shape {
        static constexpr uint32_t ROWS = 16 * RT, COLS = 8 * NT;
        static constexpr uint32_t STAGE = RT * 1024; /* of a warp: [2 RT][lane] 16 bytes */
        static constexpr uint32_t RING = RT == 1 ? 6 : NT > 2 ? 3 : 4;
        static constexpr uint32_t COL = ROWS + 8; /* floats of a column's sums: the lanes of a warp then write to all banks */
        static constexpr uint32_t SUMS = HALF_SLICES * COLS * COL; /* floats */
        static constexpr uint32_t BLOCKS = NT > 2 ? 1 : 2; /* on a multiprocessor, by registers */
        static constexpr bool TWO = NT == 1; /* sums of two units: one barrier each instead of two */
        static constexpr uint32_t SMEM = HALF_SLICES * RING * STAGE + SUMS * 4 * (TWO ? 2 : 1);
};

/* A warp's ring: its slice of the rows of one unit after the other. FAST: rows begin at 16 bytes, and a lane's eight columns are all there, or none. */
template <int RT, int NT, bool FAST> struct half_ring {
        typedef half_shape<RT, NT> S;
        uint8_t *base; /* this lane's */
        uint32_t shared, place; /* the same, a shared address; that of what is asked for next */
        const uint8_t *from; /* this lane's weights of the next step, row g */
        uint32_t last; /* rows behind row g that there are */
        uint32_t unit, step;
        bool more;

        __device__ __forceinline__ void rows(const half_args &a, uint32_t expert, uint32_t s0, uint32_t lane) {
                more = unit < a.n_unit;
                if (!more)
                        return;
                uint32_t u = unit;
                const half_out &o = out_of(a, &u);
                const uint32_t first = min(u * S::ROWS + (lane >> 2), o.rows - 1), row = 2 * a.cols;
                from = o.w + expert * o.expert_stride + (size_t)first * row + (s0 * HALF_STEP + (lane & 3) * 8) * 2;
                last = o.rows - 1 - first;
                step = 0;
        }
        __device__ __forceinline__ void ask(const half_args &a, uint32_t expert, uint32_t s0, uint32_t lane, uint32_t mine) {
                if (more) {
                        const uint32_t k = (s0 + step) * HALF_STEP + (lane & 3) * 8;
                        if constexpr (FAST) {
                                const int n = k < a.cols ? 16 : 0;
                                const uint8_t *p = k < a.cols ? from : from - step * (HALF_STEP * 2); /* not read */
#pragma unroll
                                for (uint32_t i = 0; i < 2 * RT; i++)
                                        copy16_once(place + i * 512, p + min(8 * i, last) * (2 * a.cols), n);
                        } else {
#pragma unroll
                                for (uint32_t i = 0; i < 2 * RT; i++) {
                                        uint8_t *to = base + (place - shared);
                                        const uint16_t *p = (const uint16_t *)(from + min(8 * i, last) * (2 * a.cols));
#pragma unroll 1
                                        for (uint32_t c = 0; c < 8; c++)
                                                ((uint16_t *)(to + i * 512))[c] = k + c < a.cols ? p[c] : 0;
                                }
                        }
                        from += HALF_STEP * 2;
                        if (++step == mine) {
                                unit += gridDim.y;
                                rows(a, expert, s0, lane);
                        }
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                place = place == shared + (S::RING - 1) * S::STAGE ? shared : place + S::STAGE;
        }
        __device__ __forceinline__ void start(const half_args &a, uint32_t expert, uint32_t s0, uint32_t lane, uint32_t mine) {
                unit = blockIdx.y;
                place = shared;
                more = false;
                if (mine)
                        rows(a, expert, s0, lane);
#pragma unroll 1
                for (uint32_t i = 0; i + 1 < S::RING; i++)
                        ask(a, expert, s0, lane, mine);
        }
};

/* Columns k..k+7 of an activation; zeros behind its end. */
template <bool FAST> static __device__ __forceinline__ void x_load(const half_args &a, const float *x, uint32_t k, float (&v)[8]) {
        x += k;
        if constexpr (FAST) {
                const bool ok = k < a.cols;
                *(float4 *)v = ok ? *(const float4 *)x : make_float4(0, 0, 0, 0);
                *(float4 *)(v + 4) = ok ? *(const float4 *)(x + 4) : make_float4(0, 0, 0, 0);
        } else {
#pragma unroll
                for (uint32_t c = 0; c < 8; c++)
                        v[c] = k + c < a.cols ? x[c] : 0;
        }
}

/* ---- results ------------------------------------------------------------------------------------- */

/* The slices' sums in order, then the output's scale and bias. */
template <int RT, int NT>
static __device__ __forceinline__ void half_put(const half_args &a, const job &j, const float *red, uint32_t unit, uint32_t cb) {
        typedef half_shape<RT, NT> S;
        const half_out &o = out_of(a, &unit);
        const uint32_t row0 = unit * S::ROWS, n = min(S::COLS, j.n - cb);

        for (uint32_t e = threadIdx.x; e < S::ROWS * n; e += 32 * HALF_SLICES) {
                const uint32_t c = e / S::ROWS, r = e % S::ROWS, row = row0 + r;
                const float *p = red + c * S::COL + r;
                float part[HALF_SLICES];
                if (row >= o.rows)
                        continue;
#pragma unroll
                for (uint32_t s = 0; s < HALF_SLICES; s++)
                        part[s] = p[s * (S::COLS * S::COL)]; /* without a slice: 0 */
                float v = part[0];
#pragma unroll
                for (uint32_t s = 1; s < HALF_SLICES; s++)
                        v = s < a.slices ? __fadd_rn(v, part[s]) : v;
                if (o.scale)
                        v = __fmul_rn(v, o.scale[o.many_scales ? j.expert : 0]);
                if (o.bias)
                        v = __fadd_rn(v, o.bias[(size_t)j.expert * o.rows + row]);
                o.y[job_y_row(a.jobs, j, cb + c) * o.y_stride + (a.by_head ? j.expert * a.jobs.y_job : 0) + row] = v;
        }
}

/* ---- the kernel ----------------------------------------------------------------------------------- */

template <class T, int RT, int NT, bool FAST>
__global__ void __launch_bounds__(32 * HALF_SLICES, (half_shape<RT, NT>::BLOCKS)) half_kernel(const __grid_constant__ half_args a) {
        typedef half_shape<RT, NT> S;
        extern __shared__ __align__(16) uint8_t sm[]; /* [warps] rings, [TWO ? 2 : 1][warps][COLS][COL] sums */
        const uint32_t lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), g = lane >> 2, t = lane & 3;
        const uint32_t s0 = warp * a.per, mine = s0 < a.steps ? min(a.per, a.steps - s0) : 0;
        uint8_t *const base = sm + warp * (S::RING * S::STAGE) + lane * 16;
        float *const sums = (float *)(sm + HALF_SLICES * S::RING * S::STAGE);
        half_ring<RT, NT, FAST> ring;
        bool started = false;
        uint32_t turn = 0;

        pdl_next();
        ring.base = base;
        ring.shared = (uint32_t)__cvta_generic_to_shared(base);
        if (!a.late) { /* weights: before the wait */
                ring.start(a, a.by_head ? blockIdx.z : 0, s0, lane, mine);
                started = true;
        }
        pdl_wait();
        const job j = job_of(a.jobs, a.by_head, blockIdx.z);
        for (uint32_t cb = blockIdx.x * S::COLS; cb < j.n; cb += gridDim.x * S::COLS) {
                const float *x[NT]; /* of column cb + 8i + g; behind the last of the last, whose sums nobody reads */
                float next[NT][8];
#pragma unroll
                for (int i = 0; i < NT; i++) {
                        x[i] = x_of(a, j, min(cb + 8 * i + g, j.n - 1));
                        x_load<FAST>(a, x[i], s0 * HALF_STEP + t * 8, next[i]);
                }
                if (!started)
                        ring.start(a, j.expert, s0, lane, mine);
                started = false;
                uint32_t get = 0;
                for (uint32_t unit = blockIdx.y; unit < a.n_unit; unit += gridDim.y) {
                        float acc[NT][2 * RT][2] = {}; /* of column 8i + g: rows 8r + 2t, and the next */
#pragma unroll 1
                        for (uint32_t k = 0; k < mine; k++) {
                                const uint32_t k_next = (s0 + (k + 1 < mine ? k + 1 : 0)) * HALF_STEP + t * 8;
                                uint4 w[2 * RT]; /* row 8r + g, columns 8t.. of 32 */
                                asm volatile("cp.async.wait_group %0;" ::"n"(S::RING - 2) : "memory");
#pragma unroll
                                for (int r = 0; r < 2 * RT; r++)
                                        w[r] = *(const uint4 *)(base + get + r * 512);
                                ring.ask(a, j.expert, s0, lane, mine); /* into the place of the step before */
                                get = get == (S::RING - 1) * S::STAGE ? 0 : get + S::STAGE;
#pragma unroll
                                for (int i = 0; i < NT; i++) {
                                        const half_pieces<T> p(next[i]);
                                        x_load<FAST>(a, x[i], k_next, next[i]);
#pragma unroll
                                        for (int r = 0; r < 2 * RT; r++) {
                                                float c[4] = {};
                                                T::mma(c, p.a[0], w[r].x, w[r].y);
                                                T::mma(c, p.a[1], w[r].z, w[r].w);
#pragma unroll
                                                for (int e = 0; e < 2; e++) {
                                                        const float both = __fadd_rn(c[e], c[2 + e]);
                                                        acc[i][r][e] = T::SCALED ? __fmaf_rn(both, p.down, acc[i][r][e]) : __fadd_rn(both, acc[i][r][e]);
                                                }
                                        }
                                }
                        }
                        float *const red = sums + turn * S::SUMS, *const to = red + warp * (S::COLS * S::COL);
                        turn ^= S::TWO ? 1 : 0;
#pragma unroll
                        for (int i = 0; i < NT; i++)
#pragma unroll
                                for (int r = 0; r < 2 * RT; r++)
                                        *(float2 *)(to + (8 * i + g) * S::COL + 8 * r + 2 * t) = make_float2(acc[i][r][0], acc[i][r][1]);
                        __syncthreads(); /* with two places: the sums of the unit before have been read, too */
                        half_put<RT, NT>(a, j, red, unit, cb);
                        if (!S::TWO)
                                __syncthreads();
                }
        }
}

/* ---- which ------------------------------------------------------------------------------------------- */

/* By the columns alone: it fixes the order of the sum. Slices begin at 128 bytes of a row. */
static void half_slices(half_args *a) {
        a->steps = DIV_ROUND_UP(a->cols, (uint32_t)HALF_STEP);
        a->per = 2 * DIV_ROUND_UP(DIV_ROUND_UP(a->steps, 2u), (uint32_t)HALF_SLICES);
        a->slices = DIV_ROUND_UP(a->steps, a->per);
}

template <class T, int RT, int NT, bool FAST> static int half_run(struct cuda_dev *d, half_args a, uint32_t jobs) {
        typedef half_shape<RT, NT> S;
        const uint32_t per_sm = S::BLOCKS > 1 && S::SMEM <= d->smem_sm / 2 - 1024 ? 2 : 1;
        void (*const kernel)(half_args) = half_kernel<T, RT, NT, FAST>;

        for (uint32_t i = 0; i < a.n_out; i++) {
                a.unit0[i] = a.n_unit;
                a.n_unit += DIV_ROUND_UP(a.out[i].rows, S::ROWS);
        }
        /* Blocks that share the columns are side by side: what one has read of the weights the other finds in L2. */
        const uint32_t groups = a.jobs.expert ? 1 : DIV_ROUND_UP(a.jobs.n, S::COLS);
        const uint32_t most = a.jobs.expert ? 65535 : MAX(d->n_sm * per_sm / (jobs * groups), 1u);
        CUDA_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::SMEM), "product");
        return launch(d, FAST ? "product (16 bits)" : "product (16 bits, rows anywhere)", kernel, dim3(groups, MIN(a.n_unit, most), jobs),
                      32 * HALF_SLICES, S::SMEM, a);
}

template <class T> static int half_type(struct cuda_dev *d, const half_args &a, uint32_t jobs, bool fast) {
        const uint32_t n = a.jobs.n;
        const bool few = n <= 8 || (a.jobs.expert && n <= 64); /* of so many rows an expert has few */
        size_t units = 0; /* of 32 rows */

        if (!fast)
                return few ? half_run<T, 1, 1, false>(d, a, jobs) : half_run<T, 1, 4, false>(d, a, jobs);
        for (uint32_t i = 0; i < a.n_out; i++)
                units += DIV_ROUND_UP(a.out[i].rows, 32u);
        if (units * jobs < d->n_sm * 3 / 4) /* more blocks, of 16 rows, then */
                return few ? half_run<T, 1, 1, true>(d, a, jobs) : n <= 16 ? half_run<T, 1, 2, true>(d, a, jobs) : half_run<T, 1, 4, true>(d, a, jobs);
        return few ? half_run<T, 2, 1, true>(d, a, jobs) : n <= 16 ? half_run<T, 2, 2, true>(d, a, jobs) : half_run<T, 2, 4, true>(d, a, jobs);
}

static int half_same_type(struct cuda_dev *d, const struct linear_out *const *out, uint32_t n_out, const float *x, size_t x_stride, const struct jobs *jobs) {
        const uint32_t n_job = jobs->expert || jobs->per_expert ? jobs->n_job : 1;
        half_args a = {};

        a.n_out = n_out;
        a.cols = out[0]->w.cols;
        a.x = x;
        a.x_stride = x_stride;
        a.late = jobs->expert != NULL;
        a.by_head = jobs->per_expert;
        a.jobs = *jobs;
        half_slices(&a);
        bool fast = a.cols % 8 == 0 && ((uintptr_t)x | x_stride * sizeof(float)) % 16 == 0;
        for (uint32_t i = 0; i < n_out; i++) {
                const struct k_weight *w = &out[i]->w;
                a.out[i] = {(const uint8_t *)w->data, w->expert_stride, w->rows, w->n_expert > 1, out[i]->bias, w->scale, out[i]->y, out[i]->y_stride};
                fast = fast && ((uintptr_t)w->data | (n_job > 1 || jobs->expert ? w->expert_stride : 0)) % 16 == 0;
        }
        if (n_job == 0)
                return 0;
        return out[0]->w.type == K_F16 ? half_type<half_f16>(d, a, n_job, fast) : half_type<half_bf16>(d, a, n_job, fast);
}

int cuda_matvec_half(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const float *x, size_t x_stride, const struct jobs *jobs) {
        if (jobs->n == 0)
                return 0;
        return cuda_each_type(out, n_out, [&](const struct linear_out *const *same, uint32_t n) { return half_same_type(d, same, n, x, x_stride, jobs); });
}
