/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Attention of role D on the f16 tensor cores: one row, up to 8 of the heads that
 * share a KV head, one split of CUDA_SPLIT positions a block, tile by tile.
 *
 * All warps work on one tile. Each scores its own tokens; scores meet in shared
 * memory; each warp then knows the softmax of the whole tile and sums up 32 columns
 * of V. K and V go from their pages straight to the registers they are multiplied
 * from, two tiles ahead. A tile starts afresh; a split is its tiles merged in order.
 * The block that ends last of a row's splits merges these in order, with natural
 * exponents.
 *
 * Joined with the command before it (a.turn), the block does its heads' norms and
 * rope too, and the one of the last split writes the new K and V: then all that is
 * read of the pages is older than the step, and is asked for before the wait. The
 * own position's K and V are taken from what was written (shared memory), not from
 * the pages.
 *
 * Fragments: as in attention_mma.cuh for K; of V, lane (g, t) of a warp holds
 * columns 4g .. 4g+3 of tokens 2t, 2t+1, 2t+8, 2t+9; output column 4g+j is column g of
 * the j-th MMA.
 */

#include "kernels/cuda/attention_mma.cuh"

enum { ATT_ROWS = 8 }; /* query rows of a block: heads */

template <int D> struct att_d {
        static constexpr uint32_t WARPS = D == 256 ? 8 : 4, THREADS = WARPS * 32;
        static constexpr uint32_t NI = ATT_TILE / 8 / WARPS; /* groups of 8 tokens that a warp scores */
        static constexpr uint32_t OUT = D / 32;              /* warps with columns of V */
        static constexpr uint32_t HEAD = D + 4;              /* floats of a head in shared memory */
        static constexpr uint32_t SCORES = ATT_TILE + 8;     /* floats of a query row's scores */
        static constexpr uint32_t OWN = 2 * D;               /* bytes of a head's K or V, at most */
        /* Shared memory, in bytes from its start, behind Q's fragments. */
        static constexpr uint32_t TURNS_AT = D / 16 * 32 * 8, NORMS_AT = TURNS_AT + D * 4, OWN_AT = NORMS_AT + 2 * D * 4,
                                  SLOTS_AT = OWN_AT + 2 * OWN, HEADS_AT = SLOTS_AT + CUDA_SPLIT * 4; /* heads, later scores, two tiles in turn */
        static constexpr uint32_t BYTES = HEADS_AT + 4 * ((ATT_ROWS + 2) * HEAD > 2 * ATT_ROWS * SCORES ? (ATT_ROWS + 2) * HEAD : 2 * ATT_ROWS * SCORES);
};

/* 16 or 8 bytes at p + OFF, past L1, or zeros where slot is UINT32_MAX. Issued where they stand: the compiler must not put them off. */
template <int OFF> static __device__ __forceinline__ uint4 page_get16(const uint8_t *p, uint32_t slot) {
        uint4 v;
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0xffffffff; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
                     "@p ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4 + %6]; }"
                     : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                     : "l"(p), "r"(slot), "n"(OFF));
        return v;
}
static __device__ __forceinline__ uint2 page_get8(const uint8_t *p, uint32_t slot) {
        uint2 v;
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0xffffffff; mov.b32 %0, 0; mov.b32 %1, 0;\n"
                     "@p ld.global.cg.v2.b32 {%0, %1}, [%2]; }"
                     : "=&r"(v.x), "=&r"(v.y)
                     : "l"(p), "r"(slot));
        return v;
}
/* A token's f16 columns 32c + 8t, t by the address. */
template <int D> static __device__ __forceinline__ void page_row(uint4 (&to)[D / 32], const uint8_t *p, uint32_t slot) {
        to[0] = page_get16<0>(p, slot);
        to[1] = page_get16<64>(p, slot);
        if constexpr (D >= 128) {
                to[2] = page_get16<128>(p, slot);
                to[3] = page_get16<192>(p, slot);
        }
        if constexpr (D == 256) {
                to[4] = page_get16<256>(p, slot);
                to[5] = page_get16<320>(p, slot);
                to[6] = page_get16<384>(p, slot);
                to[7] = page_get16<448>(p, slot);
        }
}
/* 4 columns from c (a multiple of 4) as f16. */
template <int T> static __device__ __forceinline__ uint2 kv_load4(const uint8_t *row, uint32_t c) {
        if (T == K_F16)
                return *(const uint2 *)(row + c * 2);
        const uint8_t *b = row + (c >> 5) * (T == K_Q8_0 ? 34 : 18);
        const float d = __half2float(*(const __half *)b);
        const uint16_t *q = (const uint16_t *)(b + 2 + (c & (T == K_Q8_0 ? 31 : 15)));
        uint32_t r[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
                const uint32_t v = T == K_Q4_0 && (c & 16) ? q[i] >> 4 : q[i];
                r[i] = T == K_Q8_0 ? pack2(d * (float)(int8_t)(v & 255), d * (float)(int8_t)(v >> 8))
                                   : pack2(d * (float)((int)(v & 15) - 8), d * (float)((int)((v >> 8) & 15) - 8));
        }
        return make_uint2(r[0], r[1]);
}
/* Element j of 4 columns of two tokens. */
static __device__ __forceinline__ uint32_t v_pair4(uint2 a, uint2 b, int j) {
        return __byte_perm(j < 2 ? a.x : a.y, j < 2 ? b.x : b.y, j & 1 ? 0x7632 : 0x5410);
}

/* What the merge of the splits ends with: 8 columns of a row's head by each lane of a quad, together one block of an image. */
static __device__ __forceinline__ void att_d_image(const attn_args &a, uint32_t row, uint32_t c, const float v[8], bool on) {
        float m = 0;
#pragma unroll
        for (int k = 0; k < 8; k++)
                m = fmaxf(m, fabsf(v[k]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        const float d = m / 127.0f, id = m > 0 ? 127.0f / m : 0.0f;
        uint32_t codes[2] = {0, 0};
        int sum = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) {
                const int q = max(-127, min(127, __float2int_rn(v[k] * id)));
                sum += q;
                codes[k >> 2] |= (uint32_t)(q & 255) << (8 * (k & 3));
        }
        sum += __shfl_xor_sync(~0u, sum, 1); /* 16 columns */
        if (!on)
                return;
        uint8_t *slot = a.img.slots + row * image_slot(a.img.kpad);
        *(uint32_t *)(slot + image_code_at(c)) = codes[0];
        *(uint32_t *)(slot + image_code_at(c + 4)) = codes[1];
        if ((c & 15) == 0)
                image_s(slot, a.img.kpad)[c >> 4] = d * (float)sum;
        if ((c & 31) == 0)
                image_d(slot, a.img.kpad)[c >> 5] = d;
}
/* Of a row's image, what lies behind its last head. */
static __device__ __forceinline__ void att_d_image_end(const attn_args &a, uint32_t row, uint32_t cols) {
        for (uint32_t c = cols + threadIdx.x; c < a.img.kpad; c += blockDim.x)
                image_put32(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, c >> 5, 0);
}

/* Splits [s0, s1) of the block's heads, in order; bits as of attention_merge_kernel. W lanes have a head, 4 columns each. */
template <int D> static __device__ __forceinline__ void att_d_merge(const attn_args &a, const float *part, uint32_t row, uint32_t head0, uint32_t n_q,
                                                                   uint32_t s0, uint32_t s1) {
        constexpr uint32_t W = D / 4 < 32 ? D / 4 : 32, AHEAD = 16;
        const uint32_t lane = threadIdx.x & 31, sub = lane % W;
        for (uint32_t i0 = threadIdx.x - lane; i0 < n_q * (D / 4); i0 += att_d<D>::THREADS) { /* whole warps: maxima are shared */
                const bool on = i0 + lane < n_q * (D / 4);
                const uint32_t i = on ? i0 + lane : sub, q = i / (D / 4), c = i % (D / 4) * 4, head = head0 + q;
                const float *p = part + (size_t)q * a.n_split * (D + 2);
                const float2 *ml = (const float2 *)p;
                const float4 *o = (const float4 *)(p + 2 * a.n_split + c);
                const float sink = a.sinks ? a.sinks[head] : -INFINITY;
                float4 e[AHEAD];
                auto ahead = [&](uint32_t from) {
#pragma unroll
                        for (uint32_t k = 0; k < AHEAD; k++)
                                e[k] = from + k < s1 ? __ldcg(o + (size_t)(from + k) * (D / 4)) : make_float4(0, 0, 0, 0);
                };
                ahead(s0);
                float m = sink;
                for (uint32_t s = s0 + sub; s < s1; s += W)
                        m = fmaxf(m, __ldcg(ml + s).x);
#pragma unroll
                for (uint32_t x = 1; x < W; x *= 2)
                        m = fmaxf(m, __shfl_xor_sync(~0u, m, x));
                float l = 0, v[4] = {0, 0, 0, 0};
                for (uint32_t from = s0; from < s1; from += AHEAD) {
                        if (from > s0)
                                ahead(from);
                        /* this lane's split's weight and denominator, for all lanes of the head */
                        const uint32_t s = from + sub % AHEAD;
                        const float2 own = s < s1 ? __ldcg(ml + s) : make_float2(-INFINITY, 0);
                        const float fs = own.x == -INFINITY ? 0 : expf(own.x - m);
#pragma unroll
                        for (uint32_t k = 0; k < AHEAD; k++) {
                                const float f = __shfl_sync(~0u, fs, k, W), den = __shfl_sync(~0u, own.y, k, W);
                                if (f != 0) {
                                        l = __fmaf_rn(den, f, l);
                                        v[0] = __fmaf_rn(f, e[k].x, v[0]);
                                        v[1] = __fmaf_rn(f, e[k].y, v[1]);
                                        v[2] = __fmaf_rn(f, e[k].z, v[2]);
                                        v[3] = __fmaf_rn(f, e[k].w, v[3]);
                                }
                        }
                }
                if (a.sinks)
                        l += expf(sink - m);
                const float inv = l > 0 ? 1.0f / l : 0;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                        v[k] *= inv;
                        if (a.gate)
                                v[k] *= sigmoid(a.gate[row * a.gate_stride + (size_t)head * a.gate_head + c + k]);
                }
                const float4 r = make_float4(v[0], v[1], v[2], v[3]);
                if (on)
                        *(float4 *)(a.out + ((size_t)row * a.n_head + head) * D + c) = r;
                if (a.merge_image && row < a.img.n_d)
                        image_put4(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, head * D + c, r, on);
        }
}

/* Grid: (KV heads times their parts of ATT_ROWS heads, splits, rows). */
template <int D, int T> __global__ void __launch_bounds__(att_d<D>::THREADS) att_d_kernel(const __grid_constant__ attn_args a) {
        typedef att_d<D> S;
        extern __shared__ __align__(16) uint8_t sm[];
        __shared__ uint32_t ended_last;
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
        const uint32_t group = a.n_head / a.kv.n_head_kv, parts = (group + ATT_ROWS - 1) / ATT_ROWS, kvh = blockIdx.x / parts;
        const uint32_t first = (blockIdx.x - kvh * parts) * ATT_ROWS, head0 = kvh * group + first, n_q = min(group - first, (uint32_t)ATT_ROWS);
        const uint32_t split = blockIdx.y, row = a.row0 + blockIdx.z;
        uint2 *qf = (uint2 *)sm; /* [D / 16][32]: rows 8 to 15 are none */
        float2 *turns = (float2 *)(sm + S::TURNS_AT);
        float *norms = (float *)(sm + S::NORMS_AT), *heads = (float *)(sm + S::HEADS_AT), *scores = heads;
        uint8_t *own_k = sm + S::OWN_AT, *own_v = own_k + S::OWN;
        uint32_t *slot = (uint32_t *)(sm + S::SLOTS_AT);
        const bool joined = a.joined;

        pdl_next();
        if (!joined)
                pdl_wait();
        /* The step's own data and what earlier steps wrote are there before a step's second kernel begins. */
        const uint32_t seq = a.b.seq[row];
        const int32_t pos = a.b.pos[row], hi = (a.causal ? pos : a.b.seq_last[seq]) + 1, lo = a.window ? max(0, pos - (int32_t)a.window + 1) : 0;
        const uint32_t s0 = (uint32_t)lo / CUDA_SPLIT, s1 = (uint32_t)(hi - 1) / CUDA_SPLIT + 1;
        if (split < s0 || split >= s1)
                return; /* sees nothing. No wait: others of this row have one, and this place is wanted */
        const int32_t base = (int32_t)split * CUDA_SPLIT, end = joined ? pos : hi; /* of what comes from pages */
        const uint32_t t0 = (uint32_t)max(lo - base, 0) / ATT_TILE, t1 = ((uint32_t)min(hi - base, (int32_t)CUDA_SPLIT) + ATT_TILE - 1) / ATT_TILE;
        const uint32_t own_slot = joined && split == s1 - 1 ? kv_slot(a.b, a.kv, seq, (uint32_t)pos) : UINT32_MAX;
        const bool own = own_slot != UINT32_MAX;
        const uint32_t own_at = own ? (uint32_t)(pos - base) : UINT32_MAX;
        const uint8_t *k_from = (const uint8_t *)a.kv.k, *v_from = (const uint8_t *)a.kv.v; /* f16: this lane's columns of row 0 */
        const uint32_t k_bytes = (uint32_t)a.kv.k_row_bytes, v_bytes = (uint32_t)a.kv.v_row_bytes;

        if (T == K_F16) {
                k_from += (kvh * D + t * 8) * 2;
                v_from += (kvh * D + warp * 32 + g * 4) * 2;
        }
        asm("" : "+l"(k_from), "+l"(v_from)); /* kept, not added up again for every load */
        for (uint32_t i = tid; i < CUDA_SPLIT; i += S::THREADS) {
                const int32_t p = base + (int32_t)i;
                slot[i] = i >= t0 * ATT_TILE && p < end ? kv_slot(a.b, a.kv, seq, (uint32_t)p) : UINT32_MAX;
        }
        __syncthreads();

        uint4 k[2][S::NI][D / 32];
        uint2 v[2][ATT_TILE / 16][4];
        auto load_k = [&](uint32_t tile, uint4 (&to)[S::NI][D / 32]) {
#pragma unroll
                for (uint32_t i = 0; i < S::NI; i++) {
                        const uint32_t sl = slot[tile * ATT_TILE + (warp * S::NI + i) * 8 + g];
                        const uint8_t *p = k_from + (size_t)sl * k_bytes;
                        if (T == K_F16)
                                page_row<D>(to[i], p, sl);
                        else
#pragma unroll
                                for (uint32_t c = 0; c < D / 32; c++)
                                        to[i][c] = sl == UINT32_MAX ? make_uint4(0, 0, 0, 0) : kv_load8<T>(p, kvh * D + c * 32 + t * 8);
                }
        };
        auto load_v = [&](uint32_t tile, uint2 (&to)[ATT_TILE / 16][4]) {
#pragma unroll
                for (uint32_t i = 0; i < ATT_TILE / 16; i++)
#pragma unroll
                        for (uint32_t h = 0; h < 4; h++) {
                                const uint2 two = *(const uint2 *)(slot + tile * ATT_TILE + i * 16 + (h >> 1) * 8 + 2 * t);
                                const uint32_t sl = h & 1 ? two.y : two.x;
                                const uint8_t *p = v_from + (size_t)sl * v_bytes;
                                if (T == K_F16)
                                        to[i][h] = page_get8(p, sl);
                                else
                                        to[i][h] = sl == UINT32_MAX ? make_uint2(0, 0) : kv_load4<T>(p, kvh * D + warp * 32 + g * 4);
                        }
        };
        const bool sums = warp < S::OUT;
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
                const uint32_t tile = t0 + ((t0 ^ e) & 1);
                if (tile < t1) {
                        load_k(tile, k[e]);
                        if (sums)
                                load_v(tile, v[e]);
                }
        }
        const float sink = a.sinks && g < n_q ? a.sinks[head0 + g] : -INFINITY;

        if (joined) {
                const att_turn &u = a.turn;
                for (uint32_t i = tid; i < u.rules.n_dims / 2; i += S::THREADS)
                        turns[i] = head_angle(u.rules, pos, i);
                for (uint32_t i = tid; i < D; i += S::THREADS) {
                        if (u.q_norm)
                                norms[i] = u.q_norm[i];
                        if (u.k_norm && i < u.k_norm_cols)
                                norms[D + i] = u.k_norm[i];
                }
                __syncthreads();
                pdl_wait();
                constexpr uint32_t ROUNDS = (ATT_ROWS + 2 + S::WARPS - 1) / S::WARPS;
                const uint32_t n_item = n_q + (own ? 2 : 0); /* query heads, K, V */
                float x[ROUNDS][D / 32];
#pragma unroll
                for (uint32_t n = 0; n < ROUNDS; n++) {
                        const uint32_t i = warp + n * S::WARPS;
                        const float *src = i < n_q ? a.q + row * a.q_stride + (size_t)(head0 + i) * a.q_head
                                           : i == n_q ? u.k + row * u.k_stride + (size_t)kvh * u.k_head
                                                        : u.v + row * u.v_stride + (size_t)kvh * u.v_head;
#pragma unroll
                        for (uint32_t c = 0; c < D / 32; c++)
                                x[n][c] = i < n_item ? src[lane + 32 * c] : 0;
                }
#pragma unroll
                for (uint32_t n = 0; n < ROUNDS; n++)
#pragma unroll
                        for (uint32_t c = 0; c < D / 32; c++)
                                if (warp + n * S::WARPS < n_item)
                                        heads[(warp + n * S::WARPS) * S::HEAD + lane + 32 * c] = x[n][c];
                __syncwarp();
#pragma unroll 1
                for (uint32_t i = warp; i < n_item; i += S::WARPS) {
                        float *buf = heads + i * S::HEAD;
                        if (i > n_q) {
                                const float f = u.v_norm ? head_rms(buf, D, u.rules.norm_eps) : 1;
                                if (first == 0)
                                        head_put((enum k_type)T, (uint8_t *)a.kv.v + (size_t)own_slot * a.kv.v_row_bytes, kvh * D, buf, D, f);
                                head_put((enum k_type)T, own_v, 0, buf, D, f);
                                continue;
                        }
                        const bool is_k = i == n_q;
                        head_turn(u.rules, buf, D, is_k ? (u.k_norm ? norms + D : NULL) : u.q_norm ? norms : NULL, is_k ? u.k_norm_cols : D, NULL, turns,
                                  is_k ? 1 : head_q_scale(u.rules, pos));
                        if (is_k) {
                                if (first == 0)
                                        head_put((enum k_type)T, (uint8_t *)a.kv.k + (size_t)own_slot * a.kv.k_row_bytes, kvh * D, buf, D, 1);
                                head_put((enum k_type)T, own_k, 0, buf, D, 1);
                        }
                }
                __syncthreads();
        }
        /* Q to fragments: lane (g, t), step 2c + h: columns 32c + 8t + 4h .. + 3 of row g. */
        for (uint32_t c = warp; c < D / 32; c += S::WARPS) {
                float f[8] = {};
                if (g < n_q && joined) {
                        const float4 *src = (const float4 *)(heads + g * S::HEAD + c * 32 + t * 8), x = src[0], y = src[1];
                        f[0] = x.x, f[1] = x.y, f[2] = x.z, f[3] = x.w;
                        f[4] = y.x, f[5] = y.y, f[6] = y.z, f[7] = y.w;
                } else if (g < n_q) {
                        const float *src = a.q + row * a.q_stride + (size_t)(head0 + g) * a.q_head + c * 32 + t * 8;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                f[i] = src[i];
                }
#pragma unroll
                for (int i = 0; i < 8; i++)
                        f[i] = clamp16(f[i]);
#pragma unroll
                for (int h = 0; h < 2; h++)
                        qf[(c * 2 + h) * 32 + lane] = make_uint2(pack2(f[4 * h], f[4 * h + 1]), pack2(f[4 * h + 2], f[4 * h + 3]));
        }
        __syncthreads();

        /* Each tile's sums of V, maximum (base 2) and denominator, of row g. */
        float o4[4][8], m4[4], l4[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
                m4[w] = -INFINITY;
                l4[w] = 0;
#pragma unroll
                for (int j = 0; j < 8; j++)
                        o4[w][j] = 0;
        }
        auto tile = [&](uint32_t w, uint32_t parity, uint4 (&kt)[S::NI][D / 32], uint2 (&vt)[ATT_TILE / 16][4], float (&ot)[8], float &mt, float &lt) {
                float *sc = scores + (parity * ATT_ROWS + g) * S::SCORES;
                const bool here = own_at / ATT_TILE == w;
                const uint32_t own_in = own_at % ATT_TILE;
                float s[S::NI][4];
                if (here)
#pragma unroll
                        for (uint32_t i = 0; i < S::NI; i++)
                                if ((warp * S::NI + i) * 8 + g == own_in)
#pragma unroll
                                        for (uint32_t c = 0; c < D / 32; c++)
                                                kt[i][c] = kv_load8<T>(own_k, c * 32 + t * 8);
                __syncwarp();
#pragma unroll
                for (uint32_t i = 0; i < S::NI; i++)
                        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
                for (uint32_t c = 0; c < D / 32; c++)
#pragma unroll
                        for (uint32_t h = 0; h < 2; h++) {
                                const uint2 x = qf[(c * 2 + h) * 32 + lane];
                                const uint32_t f[4] = {x.x, 0, x.y, 0};
#pragma unroll
                                for (uint32_t i = 0; i < S::NI; i++)
                                        mma_att(s[i], f, h ? kt[i][c].z : kt[i][c].x, h ? kt[i][c].w : kt[i][c].y);
                        }
                if (w + 2 < t1)
                        load_k(w + 2, kt);
#pragma unroll
                for (uint32_t i = 0; i < S::NI; i++) {
                        const uint32_t in = (warp * S::NI + i) * 8 + 2 * t;
                        const int32_t p = base + (int32_t)(w * ATT_TILE + in);
                        float2 *to = (float2 *)(sc + in), x = make_float2(s[i][0] * a.scale, s[i][1] * a.scale);
                        if (a.softcap != 0) {
                                *to = x;
#pragma unroll 1
                                for (float *y = &to->x; y <= &to->y; y++) /* by way of memory: the code of one tanh */
                                        *y = a.softcap * tanhf(*y / a.softcap);
                                x = *to;
                        }
                        *to = make_float2(p >= lo && p < hi ? x.x * 1.4426950408889634f : -INFINITY,
                                          p + 1 >= lo && p + 1 < hi ? x.y * 1.4426950408889634f : -INFINITY);
                }
                __syncthreads(); /* the one of a tile: its scores lie where those of two tiles before did */
                uint32_t pf[ATT_TILE / 16][4] = {};
                float2 x[ATT_TILE / 8];
                float mx = -INFINITY, sum = 0;
#pragma unroll
                for (int i = 0; i < ATT_TILE / 8; i++) {
                        x[i] = *(const float2 *)(sc + i * 8 + 2 * t);
                        mx = fmaxf(mx, fmaxf(x[i].x, x[i].y));
                }
                mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
                mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2));
                if (mx == -INFINITY) /* nothing seen */
                        mx = 0;
#pragma unroll
                for (int i = 0; i < ATT_TILE / 8; i++) {
                        const float e0 = exp2f(x[i].x - mx), e1 = exp2f(x[i].y - mx);
                        sum += e0;
                        sum += e1;
                        pf[i >> 1][(i & 1) * 2] = pack2(e0, e1);
                }
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                lt = sum;
                mt = mx == 0 && sum == 0 ? -INFINITY : mx;
                float o[4][4] = {};
                if (sums) {
                        if (here)
#pragma unroll
                                for (uint32_t i = 0; i < ATT_TILE / 16; i++)
#pragma unroll
                                        for (uint32_t h = 0; h < 4; h++)
                                                if (i * 16 + 2 * t + (h & 1) + (h >> 1) * 8 == own_in)
                                                        vt[i][h] = kv_load4<T>(own_v, warp * 32 + g * 4);
                        __syncwarp();
#pragma unroll
                        for (int i = 0; i < ATT_TILE / 16; i++)
#pragma unroll
                                for (int j = 0; j < 4; j++)
                                        mma_att(o[j], pf[i], v_pair4(vt[i][0], vt[i][1], j), v_pair4(vt[i][2], vt[i][3], j));
                        if (w + 2 < t1)
                                load_v(w + 2, vt);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                        ot[j] = o[j][0];
                        ot[4 + j] = o[j][1];
                }
        };
#pragma unroll 1
        for (uint32_t w0 = 0; w0 < 4; w0 += 2) /* compact code: most of it runs once */
#pragma unroll
                for (uint32_t e = 0; e < 2; e++) {
                        float o[8], m, l;
                        if (w0 + e < t0 || w0 + e >= t1)
                                continue;
                        tile(w0 + e, e, k[e], v[e], o, m, l);
                        m4[e] = w0 ? m4[e] : m;
                        l4[e] = w0 ? l4[e] : l;
                        m4[2 + e] = w0 ? m : m4[2 + e];
                        l4[2 + e] = w0 ? l : l4[2 + e];
#pragma unroll
                        for (int j = 0; j < 8; j++) {
                                o4[e][j] = w0 ? o4[e][j] : o[j];
                                o4[2 + e][j] = w0 ? o[j] : o4[2 + e][j];
                        }
                }

        /*
         * Tiles in order. The merge of the splits works with natural exponents; where there is one split, what the merge
         * would do is done here.
         */
        const bool whole = s1 - s0 == 1, on = g < n_q && sums;
        const uint32_t head = head0 + g, c = warp * 32 + 8 * t;
        float *part = a.part + ((size_t)blockIdx.z * a.n_head + head0) * a.n_split * (D + 2);
        float mm = -INFINITY, ll = 0, x[8] = {};
#pragma unroll
        for (int w = 0; w < 4; w++)
                mm = fmaxf(mm, m4[w]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
                const float f = m4[w] == -INFINITY ? 0 : exp2f(m4[w] - mm);
                ll = __fmaf_rn(f, l4[w], ll);
#pragma unroll
                for (int j = 0; j < 8; j++)
                        x[j] = __fmaf_rn(f, o4[w][j], x[j]);
        }
        const float ms = mm == -INFINITY ? mm : __fmul_rn(mm, 0.6931471805599453f);
        if (whole) {
                const float top = fmaxf(sink, ms), f = ms == -INFINITY ? 0 : expf(ms - top);
                float den = f != 0 ? __fmaf_rn(ll, f, 0.0f) : 0;
                if (a.sinks)
                        den += expf(sink - top);
                const float inv = den > 0 ? 1.0f / den : 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                        x[i] = (f != 0 ? __fmaf_rn(f, x[i], 0.0f) : 0) * inv;
                if (a.gate && on)
#pragma unroll
                        for (int i = 0; i < 8; i++)
                                x[i] *= sigmoid(a.gate[row * a.gate_stride + (size_t)head * a.gate_head + c + i]);
                if (on) {
                        float *to = a.out + ((size_t)row * a.n_head + head) * D + c;
                        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
                        *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
                }
                if (a.merge_image && row < a.img.n_d)
                        att_d_image(a, row, head * D + c, x, on);
        } else if (on) {
                float *p = part + (size_t)g * a.n_split * (D + 2), *to = p + 2 * a.n_split + (size_t)split * D + c;
                *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
                *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
                if (c == 0)
                        ((float2 *)p)[split] = make_float2(ms, ll);
        }
        if (!whole) {
                /* Partial results, then the count of those that are there; the block that completes it, back to 0, sees all. */
                __syncthreads();
                if (tid == 0) {
                        uint32_t before, most = s1 - s0 - 1;
                        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                                     : "=r"(before)
                                     : "l"(a.ended + (size_t)blockIdx.z * gridDim.x + blockIdx.x), "r"(most)
                                     : "memory");
                        ended_last = before == most;
                }
                __syncthreads();
                if (!ended_last)
                        return;
                att_d_merge<D>(a, part, row, head0, n_q, s0, s1);
        }
        if (a.merge_image && row < a.img.n_d && blockIdx.x == gridDim.x - 1)
                att_d_image_end(a, row, a.n_head * D);
}

template <int D, int T> static int att_d_run(struct cuda_dev *d, const attn_args &a, uint32_t rows) {
        const dim3 grid(a.kv.n_head_kv * DIV_ROUND_UP(a.n_head / a.kv.n_head_kv, (uint32_t)ATT_ROWS), a.n_split, rows);

        static_assert(att_d<D>::BYTES <= 48 << 10, "more than a kernel may have unasked");
        return launch(d, "attention (role D)", att_d_kernel<D, T>, grid, att_d<D>::THREADS, att_d<D>::BYTES, a);
}

/* n_d_rows rows of role D, or, if 0, all of role P. */
template <int D, int T> static int att_run(struct cuda_dev *d, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n) {
        return n_d_rows ? att_d_run<D, T>(d, a, n_d_rows) : att_p_run<D, T>(d, a, n_d, n);
}
