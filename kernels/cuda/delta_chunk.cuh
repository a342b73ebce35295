/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The gated delta net in blocks of 16 rows, for rows of role P and heads of 128 (arXiv:2412.06464, with the inverse of
 * arXiv:2406.06484). With S the state before the block, rows i of it with keys k, values v, beta, and G_i the sum of the
 * logarithms of their decays up to i:
 *
 *   A[i][j] = beta_i exp(G_i - G_j) k_i.k_j for j < i        T = (I + A)^-1 diag(beta)
 *   R_i = v_i - exp(G_i) S^T k_i                             U = T R
 *   P[i][j] = exp(G_i - G_j) q_i.k_j for j <= i              o_i = exp(G_i) S^T q_i + (P U)_i
 *   S <- exp(G_15) S + sum over j of exp(G_15 - G_j) k_j U_j^T
 *
 * T, P and the factors are made for all blocks at once; the walk over blocks holds S^T in the accumulators of products of
 * tf32. Only exponents of at most 0 are taken.
 *
 * A block ends at a position that is a multiple of 16, and a row's arithmetic is a function of S and of the block's rows up
 * to it: products with rows that are not there yet, or that don't count for it, add zeros. (Of what is no number they don't:
 * it reaches the earlier rows of its block that are computed with it, though not what they leave in slots.) A prompt that ends within a
 * block leaves S as it was before the block, and its rows pending in the slot; they are computed again, to the same bits,
 * with the rest of the block. A row of role D takes the pending rows into the state before its own, one by one. A block that
 * begins behind a D row has no rows before it.
 */

#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/ptx.cuh"

enum {
        HD = 128,           /* columns of a head */
        BLOCK = CUDA_DELTA_BLOCK,
        PENDING = CUDA_DELTA_PENDING,
        SCAN_WARPS = 4, SCAN_THREADS = 32 * SCAN_WARPS,
        SCAN_COLS = 16 * SCAN_WARPS,
        SCAN_STAGES = 3,
};

/* Whether sequence s of the batch is of role D: its rows are all of one role. */
static __device__ __forceinline__ bool seq_is_d(const dbatch &b, const uint32_t *rows) { return rows[0] < b.n_d; }

/* ---- slots ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float *slot_state(const delta_args &g, uint32_t slot, uint32_t h) {
        return g.a.state + slot * g.slot + (size_t)h * HD * HD;
}
static __device__ __forceinline__ float *pending_k(const delta_args &g, uint32_t slot, uint32_t kh) {
        return slot_state(g, slot, g.a.n_v) + (size_t)kh * PENDING * HD;
}
static __device__ __forceinline__ float *pending_v(const delta_args &g, uint32_t slot, uint32_t h) { return pending_k(g, slot, g.a.n_k + h); }
/* (logarithm of the decay, beta) of the pending rows. */
static __device__ __forceinline__ float2 *pending_gate(const delta_args &g, uint32_t slot, uint32_t h) {
        return (float2 *)pending_k(g, slot, g.a.n_k + g.a.n_v) + (size_t)h * BLOCK;
}
/* How many rows are pending; each head has it, since blocks of threads that share nothing write it. */
static __device__ __forceinline__ uint32_t *pending_count(const delta_args &g, uint32_t slot, uint32_t h) {
        return (uint32_t *)(pending_gate(g, slot, h) + PENDING);
}

/* ---- heads and gates --------------------------------------------------------------------------------- */

struct head_of { uint32_t kh, ba; float ah, dt; };
static __device__ __forceinline__ head_of head_args(const delta_args &g, uint32_t h) {
        head_of r;
        r.kh = g.a.k_head_blocked ? h / (g.a.n_v / g.a.n_k) : h % g.a.n_k;
        r.ba = g.a.ba_run ? h / g.a.ba_run * 2 * g.a.ba_run + h % g.a.ba_run : h;
        r.ah = g.a.a[h];
        r.dt = g.a.dt_bias[h];
        return r;
}

/* Asked for here, and not behind a branch that needs another one first. */
static __device__ __forceinline__ float load_here(const float *p) {
        float v;
        asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
        return v;
}

/* (logarithm of the decay, beta) of a row and head. */
static __device__ __forceinline__ float2 gates_of(const head_of &p, float alpha, float beta) {
        const float t = __fadd_rn(alpha, p.dt);
        return make_float2(__fmul_rn(p.ah, t > 20 ? t : log1pf(expf(t))), sigmoid(beta));
}
static __device__ __forceinline__ float2 row_gates(const delta_args &g, uint32_t row, const head_of &p) {
        const size_t at = row * g.a.ba_stride + p.ba;
        return gates_of(p, g.a.alpha[at], g.a.beta[at]);
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

/* What the products of a block with one value head need of its rows among themselves. */
struct scan_block {
        float t[BLOCK * BLOCK], p[BLOCK * BLOCK]; /* T and P as the right side of a product: pair_at() */
        float from[BLOCK], to[BLOCK];             /* exp(G_i), exp(G_15 - G_i) */
};
static __device__ __forceinline__ uint32_t pair_at(uint32_t i, uint32_t j) {
        return ((i >> 3) * 32 + (i & 7) * 4 + ((j & 7) >> 1)) * 4 + (j >> 3) * 2 + (j & 1);
}

/* The blocks of a sequence's rows: row i of block b is number 16 b + i - off of the sequence's rows in this batch. */
struct seq_blocks {
        uint32_t s, row0, n, off, slot;
        bool zero;
        __device__ __forceinline__ uint32_t blocks() const { return (off + n + BLOCK - 1) / BLOCK; }
        __device__ __forceinline__ int32_t row(uint32_t b, uint32_t i) const { return (int32_t)(b * BLOCK + i) - (int32_t)off; }
        __device__ __forceinline__ bool has(int32_t j) const { return j >= 0 && j < (int32_t)n; }
};
static __device__ __forceinline__ seq_blocks seq_blocks_of(const dbatch &b, uint32_t s) {
        seq_blocks q;
        q.s = s;
        q.n = b.seq_start[s + 1] - b.seq_start[s];
        q.row0 = q.n ? b.seq_rows[b.seq_start[s]] : 0; /* a sequence's rows are adjacent */
        if (q.row0 < b.n_d)
                q.n = 0;
        q.off = q.n ? (uint32_t)b.pos[q.row0] % BLOCK : 0;
        q.slot = b.state_in[s];
        q.zero = b.state_zero[s];
        return q;
}
/* How many of the first block's rows [0, off) are pending: the last ones. */
static __device__ __forceinline__ uint32_t seq_pending(const delta_args &g, const seq_blocks &q, uint32_t h) {
        return q.zero ? 0 : min(*pending_count(g, q.slot, h), q.off);
}
/* Where a sequence's blocks begin in scratch; a sequence of n rows has at most n / 16 + 2. */
static __device__ __forceinline__ uint32_t block_base(const dbatch &b, uint32_t s) { return b.seq_start[s] / BLOCK + 2 * s; }
static inline uint32_t blocks_most(const dbatch &b) { return b.n / BLOCK + 2 * b.n_seq; }

/*
 * Where chunk c of four floats of row r of a block lies in shared memory: a product's lanes, which read two or four neighbours of eight
 * rows or one of every other row, then meet every bank once.
 */
static __device__ __forceinline__ uint32_t chunk_at(uint32_t r, uint32_t c) { return r * HD + (c ^ (r & 6) ^ (r & 1) << 2) * 4; }

/* Block (block of rows, key head): T, P and factors for its value heads among [h0, h0 + n_h). */
__global__ void __launch_bounds__(128) block_kernel(const delta_args g, scan_block *ret, uint32_t h0, uint32_t n_h) {
        __shared__ __align__(16) float k[BLOCK * HD], q[BLOCK * HD];
        __shared__ __align__(16) float kk[BLOCK][BLOCK], qk[BLOCK][BLOCK], amat[4][BLOCK][BLOCK];
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, lg = lane >> 2, lt = lane & 3, kh = blockIdx.y;

        pdl_next();
        pdl_wait();
        uint32_t s = 0, end = g.b.n_seq;
        while (end - s > 1) { /* the last sequence that begins here or before */
                const uint32_t mid = (s + end) / 2;
                if (block_base(g.b, mid) <= blockIdx.x)
                        s = mid;
                else
                        end = mid;
        }
        const seq_blocks w = seq_blocks_of(g.b, s);
        const uint32_t b = blockIdx.x - block_base(g.b, s), per = g.a.n_v / g.a.n_k;
        if (b >= w.blocks())
                return;
        const uint32_t before = b == 0 ? seq_pending(g, w, 0) : 0;
        auto is_pending = [&](uint32_t i) { return b == 0 && i < w.off && i + before >= w.off; };
#pragma unroll
        for (uint32_t u = 0; u < BLOCK * HD / 4 / 128; u++) {
                const uint32_t i = (u * 128 + tid) / (HD / 4), c = (u * 128 + tid) % (HD / 4);
                const int32_t j = w.row(b, i);
                float4 kv = make_float4(0, 0, 0, 0), qv = kv;
                if (w.has(j)) {
                        const float4 *x = (const float4 *)(g.x + (size_t)(w.row0 + (uint32_t)j) * g.channels);
                        qv = x[kh * (HD / 4) + c];
                        kv = x[(g.a.n_k + kh) * (HD / 4) + c];
                } else if (is_pending(i)) {
                        kv = ((const float4 *)pending_k(g, w.slot, kh))[i * (HD / 4) + c];
                }
                *(float4 *)&k[chunk_at(i, c)] = kv;
                *(float4 *)&q[chunk_at(i, c)] = qv;
        }
        __syncthreads();
        { /* a warp: 16 rows of k or q times 8 rows of k; two sums side by side */
                const float *left = warp & 2 ? q : k;
                const uint32_t n0 = (warp & 1) * 8;
                float c[2][4] = {};
#pragma unroll
                for (uint32_t p = 0; p < HD / 16; p++) {
                        const float4 x = *(const float4 *)&left[chunk_at(lg, 4 * p + lt)], y = *(const float4 *)&left[chunk_at(lg + 8, 4 * p + lt)];
                        const float4 z = *(const float4 *)&k[chunk_at(n0 + lg, 4 * p + lt)];
                        const float a0[4] = {x.x, y.x, x.z, y.z}, a1[4] = {x.y, y.y, x.w, y.w};
                        mma_tf32(c[0], a0, z.x, z.z);
                        mma_tf32(c[1], a1, z.y, z.w);
                }
                float(*to)[BLOCK] = warp & 2 ? qk : kk;
#pragma unroll
                for (int i = 0; i < 4; i++)
                        to[lg + 8 * (i >> 1)][n0 + 2 * lt + (i & 1)] = __fadd_rn(c[0][i], c[1][i]);
        }
        __syncthreads();
        for (uint32_t m = warp; m < per; m += 4) { /* a value head each */
                const uint32_t h = g.a.k_head_blocked ? kh * per + m : kh + m * g.a.n_k, j = lane & 15, half = lane >> 4;
                if (h < h0 || h - h0 >= n_h)
                        continue;
                scan_block *to = ret + (size_t)blockIdx.x * n_h + (h - h0);
                float2 gate = make_float2(0, 0);
                if (w.has(w.row(b, j)))
                        gate = row_gates(g, w.row0 + (uint32_t)w.row(b, j), head_args(g, h));
                else if (is_pending(j))
                        gate = pending_gate(g, w.slot, h)[j];
                const float beta = gate.y;
                float sum = gate.x < -90.0f ? -90.0f : gate.x; /* e^-90 is nothing; differences of sums stay good */
#pragma unroll
                for (uint32_t o = 1; o < BLOCK; o *= 2) {
                        const float left = __shfl_up_sync(~0u, sum, o, BLOCK);
                        if (j >= o)
                                sum = __fadd_rn(sum, left);
                }
                const float last = __shfl_sync(~0u, sum, BLOCK - 1, BLOCK);
                if (half == 0) {
                        to->from[j] = expf(sum);
                        to->to[j] = expf(__fsub_rn(last, sum));
                }
                float(*A)[BLOCK] = amat[warp];
                __syncwarp();
#pragma unroll
                for (uint32_t u = 0; u < BLOCK / 2; u++) { /* lane: column j of row i */
                        const uint32_t i = 2 * u + half;
                        const float e = expf(__fsub_rn(__shfl_sync(~0u, sum, i, BLOCK), sum)), bi = __shfl_sync(~0u, beta, i, BLOCK);
                        A[i][j] = j < i ? __fmul_rn(__fmul_rn(bi, e), kk[i][j]) : 0;
                        to->p[pair_at(i, j)] = j <= i ? to_tf32(__fmul_rn(e, qk[i][j])) : 0;
                }
                __syncwarp();
                float x[BLOCK]; /* column j of (I + A)^-1 */
#pragma unroll
                for (uint32_t i = 0; i < BLOCK; i++) {
                        float v = i == j ? 1 : 0;
#pragma unroll
                        for (uint32_t l = 0; l < i; l++)
                                v = __fmaf_rn(-A[i][l], x[l], v);
                        x[i] = v;
                }
#pragma unroll
                for (uint32_t i = 0; i < BLOCK / 2; i++)
                        to->t[pair_at(8 * half + i, j)] = to_tf32(__fmul_rn(half ? x[8 + i] : x[i], beta));
        }
}

struct scan_stage {
        float k[BLOCK * HD], q[BLOCK * HD], v[BLOCK][SCAN_COLS + 4]; /* v's rows apart so that four of them are in different banks */
        scan_block m;
        uint32_t out[BLOCK];
};

/*
 * Block (64 value columns, value head of [h0, ...), sequence): a warp has 16 columns of S^T, whose
 * accumulators are the left side of the next block's products, if these take keys 2 t and 2 t + 1 for t and t + 4; so are those of
 * R and U with rows. Blocks of rows come two ahead.
 */
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const delta_args g, const scan_block *made, uint32_t h0) {
        extern __shared__ __align__(16) uint8_t raw[];
        scan_stage *stage = (scan_stage *)raw; /* [SCAN_STAGES] */
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, lg = lane >> 2, lt = lane & 3;
        const uint32_t c0 = blockIdx.x * SCAN_COLS, col = c0 + warp * 16 + lg, h = h0 + blockIdx.y, n_h = gridDim.y;

        pdl_next();
        pdl_wait();
        const seq_blocks w = seq_blocks_of(g.b, blockIdx.z);
        if (w.n == 0)
                return;
        const uint32_t kh = head_args(g, h).kh, n_block = w.blocks(), before = seq_pending(g, w, h);
        made += (size_t)block_base(g.b, w.s) * n_h + blockIdx.y;

        /* what this thread copies: of k and q a chunk of rows warp, warp + 4, ...; of v one of rows tid / 16, tid / 16 + 8 */
        const int32_t first = (int32_t)w.row0 - (int32_t)w.off; /* row 0 of the first block; may be before the batch */
        const uint32_t vr = tid / (SCAN_COLS / 4), vc = tid % (SCAN_COLS / 4) * 4;
        const float *const xk = g.x + (ptrdiff_t)(first + (int32_t)warp) * g.channels + kh * HD + lane * 4;
        const float *const xv = g.x + (ptrdiff_t)(first + (int32_t)vr) * g.channels + (2 * g.a.n_k + h) * HD + c0 + vc;
        auto ask = [&](uint32_t b, scan_stage &to, bool begins) {
                const size_t down = (size_t)b * BLOCK * g.channels;
#pragma unroll
                for (uint32_t u = 0; u < BLOCK / 4; u++) {
                        const uint32_t i = 4 * u + warp;
                        const bool row = w.has(w.row(b, i)), old = begins && i < w.off && i + before >= w.off;
                        const float *x = xk + down + (size_t)(4 * u) * g.channels;
                        copy16_or_zero(&to.q[chunk_at(i, lane)], x, row);
                        copy16_or_zero(&to.k[chunk_at(i, lane)], old ? pending_k(g, w.slot, kh) + i * HD + lane * 4 : x + g.a.n_k * HD, row || old);
                }
#pragma unroll
                for (uint32_t u = 0; u < BLOCK / 8; u++) {
                        const uint32_t i = 8 * u + vr;
                        const bool row = w.has(w.row(b, i)), old = begins && i < w.off && i + before >= w.off;
                        copy16_or_zero(&to.v[i][vc], old ? pending_v(g, w.slot, h) + i * HD + c0 + vc : xv + down + (size_t)(8 * u) * g.channels, row || old);
                }
                const float4 *m = (const float4 *)(made + (size_t)b * n_h);
                copy16_or_zero((float4 *)&to.m + tid, m + tid, true);
                if (tid < sizeof(scan_block) / 16 - SCAN_THREADS)
                        copy16_or_zero((float4 *)&to.m + SCAN_THREADS + tid, m + SCAN_THREADS + tid, true);
                if (tid < BLOCK)
                        copy4_or_zero(&to.out[tid], g.b.state_out + first + (int32_t)(b * BLOCK + tid), w.has(w.row(b, tid)));
        };
        static_assert(SCAN_THREADS == 128 && SCAN_COLS == 64 && sizeof(scan_block) / 16 > SCAN_THREADS && sizeof(scan_block) / 16 < 2 * SCAN_THREADS, "copies");
#pragma unroll
        for (uint32_t b = 0; b < SCAN_STAGES - 1; b++) {
                if (b < n_block)
                        ask(b, stage[b], b == 0);
                copies_end();
        }

        float S[HD / 8][4];
        auto key = [&](uint32_t n, uint32_t c) { return 8 * n + 2 * lt + (c & 1); };
        {
                const float *from = slot_state(g, w.slot, h);
#pragma unroll
                for (uint32_t n = 0; n < HD / 8; n++)
#pragma unroll
                        for (uint32_t c = 0; c < 4; c++)
                                S[n][c] = w.zero ? 0 : from[(size_t)key(n, c) * HD + col + 8 * (c >> 1)];
        }
        auto keep = [&](uint32_t slot) {
                float *to = slot_state(g, slot, h);
#pragma unroll
                for (uint32_t n = 0; n < HD / 8; n++)
#pragma unroll
                        for (uint32_t c = 0; c < 4; c++)
                                to[(size_t)key(n, c) * HD + col + 8 * (c >> 1)] = S[n][c];
        };

        /* where this lane reads rows of keys, 8 keys a tile: what rows 0 to 7 and tiles 0 to 3 say of it, the others are constants away */
        uint32_t pair[4], even[4], odd[4];
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
                pair[n] = chunk_at(lg, 2 * n + (lt >> 1)) + 2 * (lt & 1);
                even[n] = chunk_at(2 * lt, 2 * n + (lg >> 2)) + (lg & 3);
                odd[n] = chunk_at(2 * lt + 1, 2 * n + (lg >> 2)) + (lg & 3);
        }
        const uint32_t vd = g.a.n_v * HD;
        float *const out = g.out + (ptrdiff_t)(first + (int32_t)(2 * lt)) * vd + h * HD + col;
        for (uint32_t b = 0, turn = 0; b < n_block; b++, turn = turn + 1 == SCAN_STAGES ? 0 : turn + 1) {
                copies_wait<SCAN_STAGES - 2>();
                __syncthreads(); /* this block is there, the one before it read */
                if (b + SCAN_STAGES - 1 < n_block)
                        ask(b + SCAN_STAGES - 1, stage[turn == 0 ? SCAN_STAGES - 1 : turn - 1], false);
                copies_end();
                const scan_stage &st = stage[turn];

                /* rows whose state is kept within the block: S as it is, with what conv_keep_kernel leaves pending */
                const uint32_t slot = lane < BLOCK && w.has(w.row(b, lane)) ? st.out[lane] : UINT32_MAX;
                const uint32_t kept = __ballot_sync(~0u, slot != UINT32_MAX);
                for (uint32_t left = kept & ((1u << PENDING) - 1); left; left &= left - 1)
                        keep(__shfl_sync(~0u, slot, __ffs((int)left) - 1));

                float x[4][4] = {}; /* S^T k of rows 0 to 7, 8 to 15, then S^T q */
#pragma unroll
                for (uint32_t n = 0; n < HD / 8; n++) {
                        const float a[4] = {round_tf32(S[n][0]), round_tf32(S[n][2]), round_tf32(S[n][1]), round_tf32(S[n][3])};
#pragma unroll
                        for (uint32_t m = 0; m < 4; m++) {
                                const float2 y = *(const float2 *)&(m < 2 ? st.k : st.q)[pair[n & 3] + n / 4 * 32 + (m & 1) * 8 * HD];
                                mma_tf32(x[m], a, y.x, y.y);
                        }
                }
                float r[2][4], u[2][4] = {};
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
#pragma unroll
                        for (uint32_t c = 0; c < 4; c++) {
                                const uint32_t row = 8 * i + 2 * lt + (c & 1);
                                r[i][c] = round_tf32(__fmaf_rn(-st.m.from[row], x[i][c], st.v[row][warp * 16 + lg + 8 * (c >> 1)]));
                                x[2 + i][c] = __fmul_rn(x[2 + i][c], st.m.from[row]);
                        }
                const float r0[4] = {r[0][0], r[0][2], r[0][1], r[0][3]}, r1[4] = {r[1][0], r[1][2], r[1][1], r[1][3]};
                const float4 t0 = ((const float4 *)st.m.t)[lane], t1 = ((const float4 *)st.m.t)[32 + lane];
                mma_tf32(u[0], r0, t0.x, t0.y);
                mma_tf32(u[1], r0, t1.x, t1.y);
                mma_tf32(u[1], r1, t1.z, t1.w);
                {
                        const float u0[4] = {round_tf32(u[0][0]), round_tf32(u[0][2]), round_tf32(u[0][1]), round_tf32(u[0][3])};
                        const float u1[4] = {round_tf32(u[1][0]), round_tf32(u[1][2]), round_tf32(u[1][1]), round_tf32(u[1][3])};
                        const float4 p0 = ((const float4 *)st.m.p)[lane], p1 = ((const float4 *)st.m.p)[32 + lane];
                        mma_tf32(x[2], u0, p0.x, p0.y);
                        mma_tf32(x[3], u0, p1.x, p1.y);
                        mma_tf32(x[3], u1, p1.z, p1.w);
                }
                float *o = out + (size_t)b * BLOCK * vd;
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
#pragma unroll
                        for (uint32_t c = 0; c < 4; c++) {
                                const int32_t j = w.row(b, 8 * i + 2 * lt + (c & 1));
                                if (w.has(j))
                                        o[(size_t)(8 * i + (c & 1)) * vd + 8 * (c >> 1)] = x[2 + i][c];
                        }
                if (!w.has(w.row(b, BLOCK - 1))) /* the block stays open */
                        break;

                const float2 s0 = *(const float2 *)&st.m.to[2 * lt], s1 = *(const float2 *)&st.m.to[8 + 2 * lt];
                const float decay = st.m.from[BLOCK - 1];
                const float u0[4] = {round_tf32(__fmul_rn(u[0][0], s0.x)), round_tf32(__fmul_rn(u[0][2], s0.x)), round_tf32(__fmul_rn(u[0][1], s0.y)),
                                     round_tf32(__fmul_rn(u[0][3], s0.y))};
                const float u1[4] = {round_tf32(__fmul_rn(u[1][0], s1.x)), round_tf32(__fmul_rn(u[1][2], s1.x)), round_tf32(__fmul_rn(u[1][1], s1.y)),
                                     round_tf32(__fmul_rn(u[1][3], s1.y))};
#pragma unroll
                for (uint32_t n = 0; n < HD / 8; n++) {
                        const float *k0 = &st.k[even[n & 3] + n / 4 * 32], *k1 = &st.k[odd[n & 3] + n / 4 * 32];
#pragma unroll
                        for (uint32_t c = 0; c < 4; c++)
                                S[n][c] = __fmul_rn(S[n][c], decay);
                        mma_tf32(S[n], u0, k0[0], k1[0]);
                        mma_tf32(S[n], u1, k0[8 * HD], k1[8 * HD]);
                }
                if (kept >> PENDING & 1)
                        keep(__shfl_sync(~0u, slot, PENDING));
        }
}

/*
 * What a row of role P that keeps its state leaves pending in slot 'to': by the threads of a head, which have a column each. The
 * other blocks of threads still read from state_in what was pending before, but only before this launch.
 */
static __device__ __forceinline__ void keep_pending(const delta_args &g, const seq_blocks &w, uint32_t head, uint32_t j, uint32_t before, uint32_t to) {
        const uint32_t i = (w.off + j) % BLOCK, c = threadIdx.x, h = head - 2 * g.a.n_k;
        if (head < g.a.n_k) /* of queries nothing is needed */
                return;
        const bool is_k = head < 2 * g.a.n_k;
        const bool first = i > j; /* the block began before this batch */
        if (i == PENDING) {
                if (!is_k && c == 0)
                        *pending_count(g, to, h) = 0;
                return;
        }
        float *rows = is_k ? pending_k(g, to, head - g.a.n_k) : pending_v(g, to, h);
        const float *old = is_k ? pending_k(g, w.slot, head - g.a.n_k) : pending_v(g, w.slot, h);
        for (uint32_t r = 0; r <= i; r++) {
                const int32_t at = (int32_t)(j + r) - (int32_t)i; /* of this batch, or before */
                if (at >= 0)
                        rows[r * HD + c] = g.x[(size_t)(w.row0 + (uint32_t)at) * g.channels + head * HD + c];
                else if (!w.zero && to != w.slot)
                        rows[r * HD + c] = old[r * HD + c];
        }
        if (is_k || c >= BLOCK)
                return;
        const int32_t at = (int32_t)(j + c) - (int32_t)i;
        if (c <= i && at >= 0)
                pending_gate(g, to, h)[c] = row_gates(g, w.row0 + (uint32_t)at, head_args(g, h));
        else if (c <= i && !w.zero && to != w.slot)
                pending_gate(g, to, h)[c] = pending_gate(g, w.slot, h)[c];
        if (c == PENDING)
                *pending_count(g, to, h) = first ? before + j + 1 : i + 1;
}
