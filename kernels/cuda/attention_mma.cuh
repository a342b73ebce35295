/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Attention of role P on the f16 tensor cores, K and V read in place from their
 * pages in any supported type; and what role D (attention_d.cuh) shares with it.
 *
 * A warp has 16 query rows: (position, head) pairs of one sequence whose heads
 * share a KV head, position by position. It walks tiles of TILE tokens on the
 * absolute grid with a running maximum (arXiv:2205.14135). A tile in which a row
 * sees nothing leaves that row's bits alone, so they do not depend on the
 * warp's other rows.
 *
 * The block walks all tiles that any of its warps sees; tiles are copied to
 * shared memory for all of them, one ahead.
 *
 * Fragments: within 32 columns of K, lane t of a quad holds columns 8t .. 8t+7
 * (one 16-byte load); Q is permuted alike. Of V, lane (g, t) holds columns
 * 8g .. 8g+7 of tokens 2t, 2t+1, 2t+8, 2t+9; output column 8g+j is column g of
 * the j-th MMA.
 */

#include "kernels/cuda/attention.cuh"

enum { ATT_WARPS = 4 };

/*
 * How a block is made. Heads of more than 256 columns go to a pair of warps: each has half of the columns of Q and K, whose
 * sums of products they exchange, and the same half of V and of the results. A card with too little shared memory for
 * tiles of 64 has smaller ones: a row's bits depend on the card, never on the step.
 *
 * Where a token's row lies among the pages is looked up by the block's first threads for all. Pairs have barriers of their own
 * beside the block's; there each warp looks up the rows that it copies, every ROUND-th of a tile, so that nothing small goes
 * from warp to warp between one kind and the other.
 */
template <int D, int TILE, int WARPS> struct att_shape {
        static constexpr int HALVES = D > 256 ? 2 : 1, H = D / HALVES; /* columns of a warp */
        static constexpr int ROWS = WARPS / HALVES * 16;               /* query rows of a block */
        static constexpr int K = 2 * D + 64, V = 2 * D + 16, STAGE = TILE * (K + V); /* bytes, see below */
        static constexpr int PER = D / 8, ROUND = WARPS * 32 / PER;    /* pieces of 16 bytes of a row; rows that the block copies at once */
        static constexpr int Q = WARPS * (H / 16) * 32 * 16, SLOTS = HALVES == 2 ? 0 : 2 * TILE * 4, EXCHANGE = HALVES == 2 ? WARPS * TILE * 64 : 0;
        static constexpr size_t BYTES = Q + SLOTS + 2 * STAGE + EXCHANGE;
        static_assert(HALVES == 1 || (PER == 64 && TILE / ROUND <= 32), "a lane has one of its warp's rows, two warps have the same");
};

static __device__ __forceinline__ void mma_att(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ uint32_t pack2(float x, float y) {
        __half2 h = __floats2half2_rn(x, y);
        return *(uint32_t *)&h;
}
static __device__ __forceinline__ float clamp16(float v) { return fminf(fmaxf(v, -65504.0f), 65504.0f); }

/* 8 columns from c (a multiple of 8) as f16. */
template <int T> static __device__ __forceinline__ uint4 kv_load8(const uint8_t *row, uint32_t c);
template <> __device__ __forceinline__ uint4 kv_load8<K_F16>(const uint8_t *row, uint32_t c) { return *(const uint4 *)(row + c * 2); }
template <> __device__ __forceinline__ uint4 kv_load8<K_Q8_0>(const uint8_t *row, uint32_t c) {
        const uint8_t *b = row + (c >> 5) * 34;
        const float d = __half2float(*(const __half *)b);
        const uint16_t *q = (const uint16_t *)(b + 2 + (c & 31));
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
                uint32_t v = q[i];
                r[i] = pack2(d * (float)(int8_t)(v & 255), d * (float)(int8_t)(v >> 8));
        }
        return make_uint4(r[0], r[1], r[2], r[3]);
}
template <> __device__ __forceinline__ uint4 kv_load8<K_Q4_0>(const uint8_t *row, uint32_t c) {
        const uint8_t *b = row + (c >> 5) * 18;
        const float d = __half2float(*(const __half *)b);
        const uint16_t *q = (const uint16_t *)(b + 2 + (c & 15));
        const uint32_t sh = c & 16 ? 4 : 0;
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
                uint32_t v = q[i] >> sh;
                r[i] = pack2(d * (float)((int)(v & 15) - 8), d * (float)((int)((v >> 8) & 15) - 8));
        }
        return make_uint4(r[0], r[1], r[2], r[3]);
}

/* Element j of V's 8 columns for two tokens: (token a, token b). */
static __device__ __forceinline__ uint32_t v_pair(const uint4 &a, const uint4 &b, int j) {
        uint32_t x = j < 2 ? a.x : j < 4 ? a.y : j < 6 ? a.z : a.w, y = j < 2 ? b.x : j < 4 ? b.y : j < 6 ? b.z : b.w;
        return __byte_perm(x, y, j & 1 ? 0x7632 : 0x5410);
}

struct att_rows { /* what a thread's two rows (g, g + 8) see */
        int32_t lo[2], hi[2]; /* positions [lo, hi) */
};

/*
 * The block's threads copy a tile for all its warps, converting other types on the way. Row strides in bytes keep the
 * fragment loads (8 tokens x 64 bytes of K; 4 pairs of tokens x 128 of V) free of bank conflicts. slot(row): of the tile's row.
 */
template <int D, int T, int TILE, int WARPS, class F>
static __device__ __forceinline__ void att_stage_block(const attn_args &a, uint32_t kvh, uint8_t *st, F slot) {
        typedef att_shape<D, TILE, WARPS> A;
        constexpr uint32_t per = A::PER;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < 2 * TILE * per; i += WARPS * 32) {
                const uint32_t v = i / (TILE * per), row = i / per % TILE, c = i % per, sl = slot(row);
                uint8_t *to = st + (v ? TILE * A::K + row * A::V : row * A::K) + c * 16;
                const uint8_t *from = (const uint8_t *)(v ? a.kv.v : a.kv.k) + (sl == UINT32_MAX ? 0 : (size_t)sl * (v ? a.kv.v_row_bytes : a.kv.k_row_bytes));
                if (T == K_F16) {
                        int n = sl == UINT32_MAX ? 0 : 16;
                        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                                     "l"(from + (size_t)kvh * D * 2 + c * 16), "r"(n));
                } else {
                        *(uint4 *)to = sl == UINT32_MAX ? make_uint4(0, 0, 0, 0) : kv_load8<T>(from, kvh * D + c * 8);
                }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
}

/* One tile: S = Q K^T, running softmax, O += P V. st: this warp's columns of the tile's first K row. */
template <int D, int TILE, int WARPS>
static __device__ __forceinline__ void att_tile(const attn_args &a, const uint4 *qf, int32_t p0, const att_rows &rows, float m[2], float l[2],
                                                float o[att_shape<D, TILE, WARPS>::H / 8][4], const uint8_t *st, float4 *exchange) {
        typedef att_shape<D, TILE, WARPS> A;
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        float s[TILE / 8][4];
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
                s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
        for (int c = 0; c < A::H / 32; c++) {
                uint4 k[TILE / 8];
#pragma unroll
                for (int i = 0; i < TILE / 8; i++)
                        k[i] = *(const uint4 *)(st + (i * 8 + g) * A::K + c * 64 + t * 16);
                uint4 a0 = qf[(c * 2) * 32 + lane], a1 = qf[(c * 2 + 1) * 32 + lane];
                uint32_t f0[4] = {a0.x, a0.y, a0.z, a0.w}, f1[4] = {a1.x, a1.y, a1.z, a1.w};
#pragma unroll
                for (int i = 0; i < TILE / 8; i++) {
                        mma_att(s[i], f0, k[i].x, k[i].y);
                        mma_att(s[i], f1, k[i].z, k[i].w);
                }
        }
        if (A::HALVES == 2) {
                const uint32_t warp = threadIdx.x >> 5;
                float4 *own = exchange + warp * (TILE / 8) * 32 + lane;
                const float4 *other = exchange + (warp ^ 1) * (TILE / 8) * 32 + lane;
#pragma unroll
                for (int i = 0; i < TILE / 8; i++)
                        own[i * 32] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
                /* the pair's; that both have read is sure by the block's barrier before the next tile */
                asm volatile("bar.sync %0, 64;" ::"r"(1 + (warp >> 1)) : "memory");
#pragma unroll
                for (int i = 0; i < TILE / 8; i++) {
                        const float4 v = other[i * 32];
                        s[i][0] += v.x;
                        s[i][1] += v.y;
                        s[i][2] += v.z;
                        s[i][3] += v.w;
                }
        }
        float mx[2] = {m[0], m[1]};
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                        const int r = e >> 1;
                        int32_t p = p0 + i * 8 + 2 * (int32_t)t + (e & 1);
                        float v = s[i][e] * a.scale;
                        if (a.softcap != 0)
                                v = a.softcap * tanhf(v / a.softcap);
                        v = p >= rows.lo[r] && p < rows.hi[r] ? v * 1.4426950408889634f : -INFINITY;
                        s[i][e] = v;
                        mx[r] = fmaxf(mx[r], v);
                }
        float corr[2], sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) {
                mx[r] = fmaxf(mx[r], __shfl_xor_sync(~0u, mx[r], 1));
                mx[r] = fmaxf(mx[r], __shfl_xor_sync(~0u, mx[r], 2));
                if (mx[r] == -INFINITY) /* nothing seen yet */
                        mx[r] = 0;
                corr[r] = exp2f(m[r] - mx[r]);
        }
        uint32_t pf[TILE / 16][4];
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
                float e[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                        e[k] = exp2f(s[i][k] - mx[k >> 1]);
                        sum[k >> 1] += e[k];
                }
                pf[i >> 1][(i & 1) * 2] = pack2(e[0], e[1]);
                pf[i >> 1][(i & 1) * 2 + 1] = pack2(e[2], e[3]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
                sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
                sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
                l[r] = __fmaf_rn(l[r], corr[r], sum[r]);
                /* a row that has seen nothing keeps -infinity, so that the first tile it sees starts afresh */
                m[r] = mx[r] == 0 && sum[r] == 0 && m[r] == -INFINITY ? -INFINITY : mx[r];
        }
#pragma unroll
        for (int j = 0; j < A::H / 8; j++) {
                o[j][0] *= corr[0];
                o[j][1] *= corr[0];
                o[j][2] *= corr[1];
                o[j][3] *= corr[1];
        }
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
#pragma unroll
                for (int c = 0; c < A::H / 64; c++) {
                        uint4 v[4];
#pragma unroll
                        for (int i = 0; i < 4; i++)
                                v[i] = *(const uint4 *)(st + TILE * A::K + (k * 16 + 2 * t + (i & 1) + (i >> 1) * 8) * A::V +
                                                        c * 128 + g * 16);
#pragma unroll
                        for (int j = 0; j < 8; j++)
                                mma_att(o[c * 8 + j], pf[k], v_pair(v[0], v[1], j), v_pair(v[2], v[3], j));
                }
}

/* Grid: (tiles of the block's query rows over all sequences, KV heads); blockIdx.x counts the tiles of P sequences in order. */
template <int D, int T, int TILE, int WARPS> __global__ void __launch_bounds__(WARPS * 32) att_kernel(const attn_args a) {
        typedef att_shape<D, TILE, WARPS> A;
        extern __shared__ __align__(16) uint8_t sm[];
        uint4 *qf_all = (uint4 *)sm;                   /* [warps][H / 16][32] */
        uint32_t *slot_all = (uint32_t *)(sm + A::Q);  /* two tiles'; none for a pair's heads */
        uint8_t *staged = sm + A::Q + A::SLOTS;        /* two tiles */
        float4 *exchange = (float4 *)(staged + 2 * A::STAGE);
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
        const uint32_t group = a.n_head / a.kv.n_head_kv, kvh = blockIdx.y;
        const uint32_t col = warp % A::HALVES * A::H; /* the warp's first */
        uint4 *qf = qf_all + warp * (A::H / 16) * 32;

        pdl_next();
        pdl_wait();
        /* The sequence, and the first of the warp's query rows within it. */
        uint32_t seq, tile = blockIdx.x;
        for (seq = 0; seq < a.b.n_seq; seq++) {
                uint32_t s0 = a.b.seq_start[seq], n = a.b.seq_start[seq + 1] - s0;
                if (n == 0 || a.b.seq_rows[s0] < a.row0)
                        continue;
                uint32_t nt = (n * group + A::ROWS - 1) / A::ROWS;
                if (tile < nt)
                        break;
                tile -= nt;
        }
        if (seq == a.b.n_seq)
                return;
        const uint32_t n_q = (a.b.seq_start[seq + 1] - a.b.seq_start[seq]) * group;
        /* late tiles see most: start them first */
        const uint32_t n_tile = (n_q + A::ROWS - 1) / A::ROWS, q0 = (n_tile - 1 - tile) * A::ROWS + warp / A::HALVES * 16;
        const uint32_t *seq_rows = a.b.seq_rows + a.b.seq_start[seq];
        auto row_of = [&](uint32_t q) { return seq_rows[q / group]; };

        att_rows rows;
        int32_t lo = INT32_MAX, hi = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
                uint32_t q = q0 + g + 8 * r;
                rows.lo[r] = rows.hi[r] = 0;
                if (q < n_q) {
                        int32_t pos = a.b.pos[row_of(q)];
                        rows.hi[r] = (a.causal ? pos : a.b.seq_last[seq]) + 1;
                        rows.lo[r] = a.window ? max(0, pos - (int32_t)a.window + 1) : 0;
                        lo = min(lo, rows.lo[r]);
                        hi = max(hi, rows.hi[r]);
                }
        }
#pragma unroll
        for (int s = 4; s < 32; s *= 2) {
                lo = min(lo, __shfl_xor_sync(~0u, lo, s));
                hi = max(hi, __shfl_xor_sync(~0u, hi, s));
        }
        /* Q to fragments: lane (g, t), step 2c + h: columns 32c + 8t + 4h .. + 3 of rows g and g + 8. */
        for (int c = 0; c < A::H / 32; c++) {
                float f[2][8];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                        uint32_t q = q0 + g + 8 * r;
                        const float *src = a.q + row_of(q < n_q ? q : 0) * a.q_stride + (size_t)(kvh * group + q % group) * a.q_head +
                                           col + c * 32 + t * 8;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                f[r][i] = q < n_q ? clamp16(src[i]) : 0;
                }
#pragma unroll
                for (int h = 0; h < 2; h++)
                        qf[(c * 2 + h) * 32 + lane] = make_uint4(pack2(f[0][4 * h], f[0][4 * h + 1]), pack2(f[1][4 * h], f[1][4 * h + 1]),
                                                                 pack2(f[0][4 * h + 2], f[0][4 * h + 3]),
                                                                 pack2(f[1][4 * h + 2], f[1][4 * h + 3]));
        }
        float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, o[A::H / 8][4];
#pragma unroll
        for (int j = 0; j < A::H / 8; j++)
                o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;

        /* The block's range, then two tiles in turn: one is read while the next one comes. */
        __shared__ int32_t range[2];
        if (threadIdx.x == 0) {
                range[0] = INT32_MAX;
                range[1] = 0;
        }
        __syncthreads();
        if (lane == 0 && lo < hi) {
                atomicMin(&range[0], lo);
                atomicMax(&range[1], hi);
        }
        __syncthreads();
        const int32_t first_p = range[0] / TILE * TILE, end = range[1];
        uint32_t own = UINT32_MAX; /* a pair's heads: slot of row lane * ROUND + warp / 2 */
        auto slots_of = [&](int32_t p0, uint32_t turn) {
                const uint32_t in = A::HALVES == 2 ? lane * A::ROUND + warp / 2 : threadIdx.x;
                if (in < TILE) {
                        const int32_t p = p0 + (int32_t)in;
                        const uint32_t slot = p < end ? kv_slot(a.b, a.kv, seq, (uint32_t)p) : UINT32_MAX;
                        if (A::HALVES == 2)
                                own = slot;
                        else
                                slot_all[turn * TILE + in] = slot;
                }
        };
        auto stage = [&](uint32_t turn) {
                att_stage_block<D, T, TILE, WARPS>(a, kvh, staged + turn * A::STAGE, [&](uint32_t row) {
                        return A::HALVES == 2 ? __shfl_sync(~0u, own, row / A::ROUND) : slot_all[turn * TILE + row];
                });
        };
        slots_of(first_p, 0);
        if (A::HALVES == 1)
                __syncthreads();
        stage(0);
        uint32_t turn = 0;
        for (int32_t p0 = first_p; p0 < end; p0 += TILE, turn ^= 1) {
                const bool more = p0 + TILE < end;
                if (more)
                        slots_of(p0 + TILE, turn ^ 1);
                asm volatile("cp.async.wait_group 0;" ::: "memory");
                __syncthreads();
                if (more)
                        stage(turn ^ 1);
                if (p0 < hi && p0 + TILE > lo)
                        att_tile<D, TILE, WARPS>(a, qf, p0, rows, m, l, o, staged + turn * A::STAGE + col * 2, exchange);
        }
        if (q0 >= n_q)
                return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
                uint32_t q = q0 + g + 8 * r;
                if (q >= n_q)
                        continue;
                const uint32_t head = kvh * group + q % group, row = row_of(q);
                float f = 1;
                if (a.sinks) {
                        float sink = a.sinks[head] * 1.4426950408889634f, mn = fmaxf(m[r], sink);
                        f = exp2f(m[r] - mn);
                        l[r] = __fmaf_rn(l[r], f, exp2f(sink - mn));
                }
                f = l[r] > 0 ? f / l[r] : 0;
                float *to = a.out + ((size_t)row * a.n_head + head) * D;
                const float *gate = a.gate ? a.gate + row * a.gate_stride + (size_t)head * a.gate_head : NULL;
#pragma unroll
                for (int j = 0; j < A::H / 8; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                                uint32_t c = col + (j >> 3) * 64 + (2 * t + e) * 8 + (j & 7);
                                float v = o[j][2 * r + e] * f;
                                to[c] = gate ? v * sigmoid(gate[c]) : v;
                        }
        }
}

template <int D, int T, int TILE, int WARPS> static int att_p_launch(struct cuda_dev *d, attn_args a, uint32_t n_d, uint32_t n) {
        typedef att_shape<D, TILE, WARPS> A;
        const uint32_t group = a.n_head / a.kv.n_head_kv;
        const dim3 grid(DIV_ROUND_UP((n - n_d) * group, (uint32_t)A::ROWS) + a.b.n_seq, a.kv.n_head_kv);

        a.row0 = n_d; /* rows before are of role D */
        CUDA_TRY(d, cudaFuncSetAttribute(att_kernel<D, T, TILE, WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)A::BYTES), "attention");
        return launch(d, "attention (role P)", att_kernel<D, T, TILE, WARPS>, grid, WARPS * 32, A::BYTES, a);
}

/* 1: this card has too little shared memory for it. */
template <int D, int T> static int att_p_run(struct cuda_dev *d, const attn_args &a, uint32_t n_d, uint32_t n) {
        constexpr int TILE = D > 256 ? 32 : ATT_TILE, WARPS = D > 256 ? 8 : ATT_WARPS;

        if (att_shape<D, TILE, WARPS>::BYTES <= d->smem_block)
                return att_p_launch<D, T, TILE, WARPS>(d, a, n_d, n);
        if (D >= 256 && att_shape<D, TILE / 2, 2>::BYTES <= d->smem_block) /* 99 KB of shared memory */
                return att_p_launch<D, T, D >= 256 ? TILE / 2 : TILE, D >= 256 ? 2 : WARPS>(d, a, n_d, n);
        return 1;
}
