/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Attention of role D on the f16 tensor cores: one row, up to 8 of the heads that
 * share a KV head, one split of CUDA_SPLIT positions a block.
 *
 * A warp has one tile of the split, 32 tokens (64 where heads have 256 columns):
 * its scores, its softmax, its sums of V. The tiles of a split go side by side,
 * straight on from their loads, in code without a loop. They meet once, in shared
 * memory, and are merged in order. The block that ends last of a row's splits
 * merges these in order, with natural exponents.
 *
 * Joined with the command before it (a.turn), the block does its heads' norms and
 * rope too, and the one of the last split writes the new K and V: then all that is
 * read of the pages is older than the step, and is asked for before the wait. The
 * own position's K and V are taken from what was written (shared memory), not from
 * the pages.
 *
 * Tokens are the MMA's 16 rows, heads its 8 columns. Within 32 columns of K, lane
 * (g, t) holds columns 8t .. 8t+7 of tokens g and g+8 of 16; Q is permuted alike.
 * V in f16 goes by way of shared memory, copied there while K comes to registers.
 * Otherwise, of V a lane holds columns 8g .. 8g+7 (of 64) of tokens 2t, 2t+1, 2t+8,
 * 2t+9: rows g and g+8 of the j-th MMA are columns 8g+2j and 8g+2j+1.
 *
 * A token that the row doesn't see is scored and added like any other, with the
 * weight 0: in its place the nearest that it sees is read, so that what is
 * multiplied by 0 is a number.
 */

#include "kernels/cuda/attention_mma.cuh"

enum { ATT_ROWS = 8 }; /* query rows of a block: heads */

template <int D, int T> struct att_d {
        static constexpr uint32_t GROUPS = D == 256 ? 4 : 2, TILE = GROUPS * 16; /* a warp's tokens, 16 at a time */
        static constexpr uint32_t HELD = 2;                                      /* groups of K, later of V, that its registers hold */
        static constexpr uint32_t HELD_V = D == 256 && T != K_F16 ? 1 : 2;
        static constexpr bool V_SHARED = D <= 128 && T == K_F16;
        static constexpr bool L2 = !V_SHARED && T == K_F16;                      /* pages are asked for in L2, see page_to_l2() */
        static constexpr uint32_t WARPS = CUDA_SPLIT / TILE, THREADS = WARPS * 32;
        static constexpr uint32_t PIECES = D == 256 ? 4 : 1, AHEAD = D == 256 ? 8 : 16; /* of the merge: four warps have eight heads */
        static constexpr uint32_t HEAD = D + 4;     /* floats of a head in shared memory */
        static constexpr uint32_t OWN = 2 * D;      /* bytes of a head's K or V, at most */
        static constexpr uint32_t V_ROW = OWN + 16; /* of a token of V: eight of them meet all banks */
        static constexpr uint32_t L2_BYTES = 16 * 32 * (D / 128) * GROUPS; /* what a warp's pieces of pages take */
        /* Shared memory, in bytes from its start. At its end each warp's V or pieces, and in their place, later, its sums. */
        static constexpr uint32_t TURNS_AT = 0, NORMS_AT = D * 4, OWN_AT = NORMS_AT + 2 * D * 4, HEADS_AT = OWN_AT + 2 * OWN,
                                  ENDS_AT = HEADS_AT + (ATT_ROWS + 2) * HEAD * 4, SINKS_AT = ENDS_AT + WARPS * ATT_ROWS * 8,
                                  SUMS_AT = SINKS_AT + ATT_ROWS * 4;
        static constexpr __host__ __device__ uint32_t sums_bytes(uint32_t n_q) { /* a warp's */
                const uint32_t sums = n_q * HEAD * 4;
                return V_SHARED ? TILE * V_ROW : L2 && sums < L2_BYTES ? L2_BYTES : sums;
        }
        static constexpr uint32_t bytes(uint32_t n_q) { return SUMS_AT + WARPS * sums_bytes(n_q); }
        static_assert(!V_SHARED || TILE * V_ROW >= ATT_ROWS * HEAD * 4, "sums are larger than V");
};

/* 8 columns of a token as they are stored, and as f16. STEP: bytes of 32 columns. */
template <int T> struct kv_raw {
        static constexpr uint32_t STEP = T == K_Q8_0 ? 34 : 18;
        uint16_t q[4], d;

        /* in: the first column within its block, a multiple of 8 */
        __device__ __forceinline__ void load(const uint8_t *block, uint32_t in) {
                const uint16_t *p = (const uint16_t *)block;
                d = p[0];
#pragma unroll
                for (int i = 0; i < 4; i++)
                        q[i] = p[1 + (T == K_Q8_0 ? in : in & 15) / 2 + i];
        }
        __device__ __forceinline__ void load_page(const uint8_t *block, uint32_t in) {
                const unsigned short *p = (const unsigned short *)block;
                d = __ldcg(p);
#pragma unroll
                for (int i = 0; i < 4; i++)
                        q[i] = __ldcg(p + 1 + (T == K_Q8_0 ? in : in & 15) / 2 + i);
        }
        __device__ __forceinline__ uint4 get(uint32_t in) const {
                const float f = __half2float(__ushort_as_half(d));
                uint32_t r[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                        const uint32_t x = T == K_Q4_0 && (in & 16) ? q[i] >> 4 : q[i];
                        r[i] = T == K_Q8_0 ? pack2(f * (float)(int8_t)(x & 255), f * (float)(int8_t)(x >> 8))
                                           : pack2(f * (float)((int)(x & 15) - 8), f * (float)((int)((x >> 8) & 15) - 8));
                }
                return make_uint4(r[0], r[1], r[2], r[3]);
        }
};
template <> struct kv_raw<K_F16> {
        static constexpr uint32_t STEP = 64;
        uint4 q;

        __device__ __forceinline__ void load(const uint8_t *block, uint32_t in) { q = *(const uint4 *)(block + in * 2); }
        /* Past L1; issued where it stands: the compiler must not put it off. */
        __device__ __forceinline__ void load_page(const uint8_t *block, uint32_t in) {
                asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(block + in * 2));
        }
        __device__ __forceinline__ uint4 get(uint32_t) const { return q; }
};

/*
 * The 256 bytes around p come to L2: 16 of them are copied to a place that nobody reads, for a plain load without a use is none.
 * Each lane has a place for each copy: where later the warp's sums go, once the copies have come.
 */
static __device__ __forceinline__ void page_to_l2(const uint8_t *p, uint8_t *piece) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" : : "r"((uint32_t)__cvta_generic_to_shared(piece)), "l"(p));
}

/* The same by four of them, wherever p is. */
static __device__ __forceinline__ void page_word_to_l2(const uint8_t *p, uint8_t *word) {
        asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 4;"
                     :
                     : "r"((uint32_t)__cvta_generic_to_shared(word)), "l"((uintptr_t)p & ~(uintptr_t)3));
}

static __device__ __forceinline__ void page_to_shared(uint8_t *to, const uint8_t *p) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(p));
}
/* Four 8 x 8 of f16, of which lane i has row i % 8 of number i / 8, each as two rows of a column. */
static __device__ __forceinline__ void transposed4(uint32_t (&r)[4], const uint8_t *p) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"((uint32_t)__cvta_generic_to_shared(p))
                     : "memory");
}

/* 8 x 8 of f16: a lane has two columns of a row, then two rows of a column. */
static __device__ __forceinline__ uint32_t transposed(uint32_t x) {
        uint32_t r;
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
        return r;
}
static __device__ __forceinline__ float ex2(float x) {
        float r;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
        return r;
}

/* Two columns of a head of a row by each lane of a warp: gate, result, image. */
static __device__ __forceinline__ void att_d_out(const attn_args &a, uint32_t row, uint32_t head, uint32_t c, float2 v) {
        const uint32_t at = head * a.kv.dv + c;
        if (a.gate) {
                const float *gate = a.gate + row * a.gate_stride + (size_t)head * a.gate_head + c;
                v = make_float2(v.x * sigmoid(gate[0]), v.y * sigmoid(gate[1]));
        }
        if (a.merge_image && row < a.img.n_d)
                image_put2(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, at, v, a.mail_to);
        *(float2 *)(a.out + (size_t)row * a.n_head * a.kv.dv + at) = v;
}

/* Of a row's image, what lies behind its last head. */
static __device__ __forceinline__ void att_d_image_end(const attn_args &a, uint32_t row, uint32_t cols) {
        for (uint32_t c = cols + threadIdx.x; c < a.img.kpad; c += blockDim.x) {
                if (mail_box(a.mail_to))
                        mail_image32(a.mail_to, a.img.kpad, c >> 5, image_quant{0, 0, 0});
                image_put32(a.img.slots + row * image_slot(a.img.kpad), a.img.kpad, c >> 5, image_quant{0, 0, 0});
        }
}

/* One more of the row's n splits is done; whether it was the last, and all of their results are to be seen. */
static __device__ __forceinline__ bool att_d_ended(const attn_args &a, uint32_t n) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(a.ended + (size_t)blockIdx.z * gridDim.x + blockIdx.x), "r"(n - 1)
                     : "memory");
        return before == n - 1;
}

/*
 * Splits [s0, s1) of the block's heads, in order: a warp has PIECES times 64 columns of a head, a lane two of each; of a head there
 * are per such pieces, from column c0 on. AHEAD splits are asked for before the first is needed.
 */
template <int D, uint32_t WARPS, uint32_t PIECES, uint32_t AHEAD>
static __device__ __forceinline__ void att_d_merge(const attn_args &a, const float *part, uint32_t row, uint32_t head0, uint32_t n_q, uint32_t s0, uint32_t s1,
                                                   uint32_t c0, uint32_t per) {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll 1
        for (uint32_t i = threadIdx.x / 32; i < n_q * per; i += WARPS) {
                const uint32_t q = i / per, c = c0 + i % per * (64 * PIECES) + lane * 2, head = head0 + q;
                const float *p = part + (size_t)q * a.n_split * (D + 2);
                const float2 *ends = (const float2 *)p, *o = (const float2 *)(p + 2 * a.n_split + (size_t)s0 * D + c);
                asm("" : "+l"(ends), "+l"(o)); /* sums made here, not kept for all heads */
                const float sink = a.sinks ? a.sinks[head] : -INFINITY;
                float2 e[PIECES][AHEAD], sum[PIECES];
                auto ask = [&](uint32_t k, uint32_t left) {
#pragma unroll
                        for (uint32_t n = 0; n < PIECES; n++)
                                e[n][k] = k < left ? __ldcg(o + k * (D / 2) + n * 32) : make_float2(0, 0);
                };
#pragma unroll
                for (uint32_t k = 0; k < AHEAD; k++)
                        ask(k, s1 - s0);
                /* this lane's split's weight and denominator, for all lanes */
                auto end_of = [&](uint32_t s) { return s < s1 ? __ldcg(ends + s) : make_float2(-INFINITY, 0); };
                float2 own = end_of(s0 + lane % AHEAD);
                float m = sink;
#pragma unroll 1
                for (uint32_t s = s0 + lane; s < s1; s += 64)
                        m = fmaxf(m, fmaxf(end_of(s).x, end_of(s + 32).x));
                m = warp_max(m);
                float l = 0;
#pragma unroll
                for (uint32_t n = 0; n < PIECES; n++)
                        sum[n] = make_float2(0, 0);
#pragma unroll 1
                for (uint32_t from = s0; from < s1; from += AHEAD) {
                        const float fs = own.x == -INFINITY ? 0 : expf(own.x - m), ds = own.y;
                        const uint32_t left = from + AHEAD < s1 ? s1 - from - AHEAD : 0;
                        own = end_of(from + AHEAD + lane % AHEAD);
                        o += AHEAD * (D / 2);
#pragma unroll
                        for (uint32_t k = 0; k < AHEAD; k++) {
                                const float f = __shfl_sync(~0u, fs, k), den = __shfl_sync(~0u, ds, k);
                                l = __fmaf_rn(den, f, l);
#pragma unroll
                                for (uint32_t n = 0; n < PIECES; n++) {
                                        sum[n].x = __fmaf_rn(f, e[n][k].x, sum[n].x);
                                        sum[n].y = __fmaf_rn(f, e[n][k].y, sum[n].y);
                                }
                                ask(k, left);
                        }
                }
                if (a.sinks)
                        l += expf(sink - m);
                const float inv = l > 0 ? 1.0f / l : 0;
#pragma unroll
                for (uint32_t n = 0; n < PIECES; n++)
                        att_d_out(a, row, head, c + n * 64, make_float2(sum[n].x * inv, sum[n].y * inv));
        }
}

/*
 * A split's sums of columns c and c + 1 of the block's h-th head, with the maximum (the merge of the splits works with natural
 * exponents) and the denominator, which one of all that have the head leaves, too. Where there is one split, what the merge would do is done here.
 */
template <int D>
static __device__ __forceinline__ void att_d_put(const attn_args &a, float *part, uint32_t row, uint32_t head0, uint32_t h, uint32_t c, uint32_t split, bool whole, bool leaves,
                                                 const float *sinks, float m, float l, float2 sum) {
        if (whole) {
                const float sink = sinks[h], most = fmaxf(sink, m), f = expf(m - most);
                l = __fmul_rn(l, f);
                if (a.sinks)
                        l += expf(sink - most);
                const float inv = l > 0 ? 1.0f / l : 0;
                att_d_out(a, row, head0 + h, c, make_float2(__fmul_rn(__fmul_rn(f, sum.x), inv), __fmul_rn(__fmul_rn(f, sum.y), inv)));
        } else {
                float *to_part = part + (size_t)h * a.n_split * (D + 2);
                *(float2 *)(to_part + 2 * a.n_split + (size_t)split * D + c) = sum;
                if (leaves)
                        ((float2 *)to_part)[split] = make_float2(m, l);
        }
}

/* A block's end, once it has put its sums: the merge of the row's splits by the block that is the last of them, the end of the row's image. */
template <int D, uint32_t WARPS, uint32_t PIECES, uint32_t AHEAD>
static __device__ __forceinline__ void att_d_end(const attn_args &a, const float *part, uint32_t row, uint32_t head0, uint32_t n_q, uint32_t s0, uint32_t s1, uint32_t c0,
                                                 uint32_t per) {
        __shared__ uint32_t ended_last;

        if (s1 - s0 != 1) {
                /* Partial results, then the count of those that are there; the block that completes it, back to 0, sees all. */
                __syncthreads();
                if (threadIdx.x == 0)
                        ended_last = att_d_ended(a, s1 - s0);
                __syncthreads();
                if (!ended_last)
                        return;
                att_d_merge<D, WARPS, PIECES, AHEAD>(a, part, row, head0, n_q, s0, s1, c0, per);
        }
        if (a.merge_image && row < a.img.n_d && blockIdx.x == gridDim.x - 1)
                att_d_image_end(a, row, a.n_head * D);
}

/*
 * What the command before attention does: the block's heads' norms and rope, one a warp at a time, to shared memory (S); where the
 * block has the own position, K and V too, to shared memory and, by the first block of their heads, to the pages. With the wait.
 */
template <int D, int T, class S> static __device__ __forceinline__ void att_d_turn(const attn_args &a, uint8_t *sm, uint32_t row, int32_t pos, uint32_t kvh, uint32_t first,
                                                                                   uint32_t n_q, bool own, uint32_t own_slot) {
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, head0 = kvh * (a.n_head / a.kv.n_head_kv) + first;
        const att_turn &u = a.turn;
        float2 *turns = (float2 *)(sm + S::TURNS_AT);
        float *norms = (float *)(sm + S::NORMS_AT), *heads = (float *)(sm + S::HEADS_AT);
        uint8_t *own_k = sm + S::OWN_AT, *own_v = own_k + S::OWN;

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
                        if (first == 0 && own_slot != UINT32_MAX)
                                head_put((enum k_type)T, (uint8_t *)a.kv.v + (size_t)own_slot * a.kv.v_row_bytes, kvh * D, buf, D, f);
                        head_put((enum k_type)T, own_v, 0, buf, D, f);
                        continue;
                }
                const bool is_k = i == n_q;
                head_turn(u.rules, buf, D, is_k ? (u.k_norm ? norms + D : NULL) : u.q_norm ? norms : NULL, is_k ? u.k_norm_cols : D, NULL, turns,
                          is_k ? 1 : head_q_scale(u.rules, pos));
                if (is_k) {
                        if (first == 0 && own_slot != UINT32_MAX)
                                head_put((enum k_type)T, (uint8_t *)a.kv.k + (size_t)own_slot * a.kv.k_row_bytes, kvh * D, buf, D, 1);
                        head_put((enum k_type)T, own_k, 0, buf, D, 1);
                }
        }
}

/* Grid: (KV heads times their parts of ATT_ROWS heads, splits, rows). */
template <int D, int T> __global__ void __launch_bounds__(att_d<D, T>::THREADS, T == K_F16 ? 2 : 1) att_d_kernel(const __grid_constant__ attn_args a) {
        typedef att_d<D, T> S;
        typedef kv_raw<T> raw;
        constexpr int C = D / 32, CV = D / 64, G = S::GROUPS, HELD = S::HELD, HELD_V = S::HELD_V;
        extern __shared__ __align__(16) uint8_t sm[];
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
        const uint32_t group = a.n_head / a.kv.n_head_kv, parts = (group + ATT_ROWS - 1) / ATT_ROWS, kvh = blockIdx.x / parts;
        const uint32_t first = (blockIdx.x - kvh * parts) * ATT_ROWS, head0 = kvh * group + first, n_q = min(group - first, (uint32_t)ATT_ROWS);
        const uint32_t split = blockIdx.y, row = a.row0 + blockIdx.z;
        float2 *turns = (float2 *)(sm + S::TURNS_AT), *ends = (float2 *)(sm + S::ENDS_AT); /* ends: [warp][head] maximum (base 2), denominator */
        float *norms = (float *)(sm + S::NORMS_AT), *heads = (float *)(sm + S::HEADS_AT), *sinks = (float *)(sm + S::SINKS_AT);
        const uint32_t sums_bytes = S::sums_bytes(n_q);
        uint8_t *sums = sm + S::SUMS_AT, *tile_v = sums + warp * sums_bytes; /* V, or floats [n_q][HEAD] */
        uint8_t *own_k = sm + S::OWN_AT, *own_v = own_k + S::OWN;
        const bool joined = a.joined;

        pdl_next();
        /* The step's own data and what earlier steps wrote are there before a step's second kernel begins. */
        const uint32_t seq = a.b.seq[row];
        const int32_t pos = a.b.pos[row], hi = (a.causal ? pos : a.b.seq_last[seq]) + 1, lo = a.window ? max(0, pos - (int32_t)a.window + 1) : 0;
        const uint32_t s0 = (uint32_t)lo / CUDA_SPLIT, s1 = (uint32_t)(hi - 1) / CUDA_SPLIT + 1;
        if (split < s0 || split >= s1)
                return; /* sees nothing. No wait: others of this row have one, and this place is wanted */
        const bool own = joined && split == s1 - 1; /* this block has the own position */
        /* Of this warp's tile: what the row sees, [from, to); what of it comes from pages, [from, stored); the own token, or none. */
        const int32_t base = (int32_t)(split * CUDA_SPLIT + warp * S::TILE);
        const int32_t from = max(lo - base, 0), to = min(hi - base, (int32_t)S::TILE), stored = joined ? min(to, pos - base) : to;
        const int32_t own_at = own && pos >= base ? pos - base : -1;
        const bool seen = from < to, here = own_at >= 0 && own_at < (int32_t)S::TILE;
        const uint32_t k_bytes = (uint32_t)a.kv.k_row_bytes, v_bytes = (uint32_t)a.kv.v_row_bytes, k_in = t * 8, v_in = (g & 3) * 8;
        const uint8_t *k_from = (const uint8_t *)a.kv.k + kvh * (C * raw::STEP), *v_from = (const uint8_t *)a.kv.v + (kvh * C + (S::V_SHARED ? 0 : g >> 2)) * raw::STEP;
        const uint32_t own_slot = own ? kv_slot(a.b, a.kv, seq, (uint32_t)pos) : UINT32_MAX;
        const uint32_t slot = from < stored ? kv_slot(a.b, a.kv, seq, (uint32_t)base) : UINT32_MAX; /* a tile lies in one page */
        const bool some = slot != UINT32_MAX;

        raw k[HELD][2][C], v[HELD_V][CV][4];
        auto row_of = [&](int32_t in) { return slot + (uint32_t)min(max(in, from), stored - 1); };
        auto load_k = [&](int i) {
                if (some)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                                const uint8_t *p = k_from + (size_t)row_of(i * 16 + h * 8 + (int32_t)g) * k_bytes;
#pragma unroll
                                for (int c = 0; c < C; c++)
                                        k[i % HELD][h][c].load_page(p + c * raw::STEP, k_in);
                        }
        };
        auto load_v = [&](int i) {
                if (some)
#pragma unroll
                        for (int h = 0; h < 4; h++) {
                                const uint8_t *p = v_from + (size_t)row_of(i * 16 + 2 * (int32_t)t + (h & 1) + (h >> 1) * 8) * v_bytes;
#pragma unroll
                                for (int c = 0; c < CV; c++)
                                        v[i % HELD_V][c][h].load_page(p + 2 * c * raw::STEP, v_in);
                        }
        };
        if (S::L2 && some) { /* the step may be writing some of it: nobody reads the copies */
                uint8_t *piece = tile_v + lane * 16;
#pragma unroll
                for (int i = 0; i < G / 2; i++) {
                        const uint32_t r = row_of((int32_t)lane + 32 * i);
#pragma unroll
                        for (int c = 0; c < D / 128; c++) {
                                page_to_l2((const uint8_t *)a.kv.k + kvh * (D * 2) + (size_t)r * k_bytes + c * 256, piece);
                                page_to_l2((const uint8_t *)a.kv.v + kvh * (D * 2) + (size_t)r * v_bytes + c * 256, piece + 32 * 16);
                                piece += 2 * 32 * 16;
                        }
                }
        }
        if (!joined)
                pdl_wait();
#pragma unroll
        for (int i = 0; i < HELD; i++)
                load_k(i);
        if constexpr (S::V_SHARED) {
                constexpr uint32_t PER = D / 8, ROWS = 32 / PER; /* lanes of a row, rows at a time */
                if (some)
#pragma unroll
                        for (uint32_t i = 0; i < S::TILE; i += ROWS) {
                                const uint32_t in = i + lane / PER, at = lane % PER * 16;
                                page_to_shared(tile_v + in * S::V_ROW + at, v_from + (size_t)row_of((int32_t)in) * v_bytes + at);
                        }
        }
        if (tid < n_q)
                sinks[tid] = a.sinks ? a.sinks[head0 + tid] : -INFINITY;

        if (joined) {
                att_d_turn<D, T, S>(a, sm, row, pos, kvh, first, n_q, own, own_slot);
                __syncthreads();
        }

        if (seen) {
                /* Q: lane (g, t), step 2c + h: columns 32c + 8t + 4h .. + 3 of head g. */
                uint2 q[2 * C];
#pragma unroll
                for (int c = 0; c < C; c++) {
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
                        q[2 * c] = make_uint2(pack2(f[0], f[1]), pack2(f[2], f[3]));
                        q[2 * c + 1] = make_uint2(pack2(f[4], f[5]), pack2(f[6], f[7]));
                }
                /* Scores: of token g (+ 8) of 16, heads 2t and 2t + 1. Two sums each: a chain of MMAs is what a tile waits for. */
                float s[G][4];
#pragma unroll
                for (int i0 = 0; i0 < G; i0 += 2) {
                        float x[2][2][4] = {};
                        if (here)
#pragma unroll
                                for (int i = i0; i < i0 + 2; i++)
#pragma unroll
                                        for (int h = 0; h < 2; h++)
                                                if (i * 16 + h * 8 + (int32_t)g == own_at)
#pragma unroll
                                                        for (int c = 0; c < C; c++)
                                                                k[i % HELD][h][c].load(own_k + c * raw::STEP, k_in);
                        __syncwarp();
#pragma unroll
                        for (int c = 0; c < C; c++)
#pragma unroll
                                for (int i = 0; i < 2; i++) {
                                        const uint4 y = k[(i0 + i) % HELD][0][c].get(k_in), z = k[(i0 + i) % HELD][1][c].get(k_in);
                                        const uint32_t even[4] = {y.x, z.x, y.y, z.y}, odd[4] = {y.z, z.z, y.w, z.w};
                                        mma_att(x[i][0], even, q[2 * c].x, q[2 * c].y);
                                        mma_att(x[i][1], odd, q[2 * c + 1].x, q[2 * c + 1].y);
                                }
#pragma unroll
                        for (int i = 0; i < 2; i++)
#pragma unroll
                                for (int e = 0; e < 4; e++)
                                        s[i0 + i][e] = x[i][0][e] + x[i][1][e];
#pragma unroll
                        for (int i = i0; i < i0 + 2; i++)
                                if (i + HELD < G)
                                        load_k(i + HELD);
                                else if (!S::V_SHARED && i + HELD - G < HELD_V)
                                        load_v(i + HELD - G);
                }
                if (S::V_SHARED && here) { /* in the own token's place; in all where none is of the pages */
                        asm volatile("cp.async.wait_all;" : : : "memory");
                        __syncwarp();
                        const uint32_t end = some ? (uint32_t)own_at + 1 : S::TILE;
#pragma unroll 1
                        for (uint32_t in = some ? (uint32_t)own_at : 0; in < end; in++)
                                if (lane < D / 8)
                                        *(uint4 *)(tile_v + in * S::V_ROW + lane * 16) = *(const uint4 *)(own_v + lane * 16);
                }
                const float scale = a.softcap != 0 ? 2 * 1.4426950408889634f * a.scale / a.softcap : a.scale * 1.4426950408889634f;
                float top[2] = {-INFINITY, -INFINITY}, den[2] = {0, 0};
#pragma unroll
                for (int i = 0; i < G; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                                s[i][e] = __fmul_rn(s[i][e], scale);
                if (a.softcap != 0) /* tanh */
#pragma unroll
                        for (int i = 0; i < G; i++)
#pragma unroll
                                for (int e = 0; e < 4; e++)
                                        s[i][e] = a.softcap * 1.4426950408889634f * (1 - __fdividef(2, 1 + ex2(s[i][e])));
#pragma unroll
                for (int i = 0; i < G; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                                const int32_t in = i * 16 + (e >> 1) * 8 + (int32_t)g;
                                s[i][e] = in >= from && in < to ? s[i][e] : -INFINITY;
                                top[e & 1] = fmaxf(top[e & 1], s[i][e]);
                        }
#pragma unroll
                for (int e = 0; e < 2; e++) {
#pragma unroll
                        for (int x = 4; x < 32; x *= 2)
                                top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], x));
                        if (top[e] == -INFINITY) /* nothing but what is no number */
                                top[e] = 0;
                }
                uint32_t p[G][2]; /* weights of tokens 2t and 2t + 1 (+ 8) of 16, head g */
#pragma unroll
                for (int i = 0; i < G; i++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                                s[i][e] = ex2(__fadd_rn(s[i][e], -top[e & 1]));
                                den[e & 1] += s[i][e];
                        }
                        p[i][0] = transposed(pack2(s[i][0], s[i][1]));
                        p[i][1] = transposed(pack2(s[i][2], s[i][3]));
                }
                float o[CV * 4][4] = {};
                if constexpr (S::V_SHARED) {
                        asm volatile("cp.async.wait_all;" : : : "memory");
                        __syncwarp();
                        const uint8_t *from_v = tile_v + ((lane & 7) + (lane >> 4) * 8) * S::V_ROW + (lane >> 3 & 1) * 16;
#pragma unroll
                        for (int i = 0; i < G; i++)
#pragma unroll
                                for (int j = 0; j < CV * 4; j++) { /* rows g and g + 8: columns 16j + g and 16j + 8 + g */
                                        uint32_t f[4];
                                        transposed4(f, from_v + i * 16 * S::V_ROW + j * 32);
                                        mma_att(o[j], f, p[i][0], p[i][1]);
                                }
                        __syncwarp(); /* sums go where V was */
                } else {
#pragma unroll
                        for (int i = 0; i < G; i++) {
                                if (here)
#pragma unroll
                                        for (int h = 0; h < 4; h++)
                                                if (!some || i * 16 + 2 * (int32_t)t + (h & 1) + (h >> 1) * 8 == own_at)
#pragma unroll
                                                        for (int c = 0; c < CV; c++)
                                                                v[i % HELD_V][c][h].load(own_v + (2 * c + (g >> 2)) * raw::STEP, v_in);
                                __syncwarp();
#pragma unroll
                                for (int c = 0; c < CV; c++) {
                                        uint4 x[4];
#pragma unroll
                                        for (int h = 0; h < 4; h++)
                                                x[h] = v[i % HELD_V][c][h].get(v_in);
#pragma unroll
                                        for (int j = 0; j < 4; j++) {
                                                const uint32_t f[4] = {v_pair(x[0], x[1], 2 * j), v_pair(x[0], x[1], 2 * j + 1), v_pair(x[2], x[3], 2 * j),
                                                                       v_pair(x[2], x[3], 2 * j + 1)};
                                                mma_att(o[c * 4 + j], f, p[i][0], p[i][1]);
                                        }
                                }
                                if (i + HELD_V < G)
                                        load_v(i + HELD_V);
                        }
                        if (S::L2) { /* sums go where pieces of pages are: they have come, all of them have been loaded since */
                                asm volatile("cp.async.wait_all;" : : : "memory");
                                __syncwarp();
                        }
                }
#pragma unroll
                for (int x = 4; x < 32; x *= 2)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                                den[e] += __shfl_xor_sync(~0u, den[e], x);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                        const uint32_t h = 2 * t + (uint32_t)e;
                        if (h >= n_q)
                                continue;
                        if (g == 0)
                                ends[warp * ATT_ROWS + h] = make_float2(top[e], den[e]);
                        float *sum = (float *)tile_v + h * S::HEAD;
                        if constexpr (S::V_SHARED) {
#pragma unroll
                                for (int j = 0; j < CV * 4; j++) {
                                        sum[16 * j + g] = o[j][e];
                                        sum[16 * j + 8 + g] = o[j][2 + e];
                                }
                        } else {
#pragma unroll
                                for (int c = 0; c < CV; c++)
#pragma unroll
                                        for (int j = 0; j < 4; j += 2) {
                                                const float *x = o[c * 4 + j], *y = o[c * 4 + j + 1];
                                                *(float4 *)(sum + 64 * c + 8 * g + 2 * j) = make_float4(x[e], x[2 + e], y[e], y[2 + e]);
                                        }
                        }
                }
        }
        __syncthreads();

        /* Tiles in order; a warp has 64 columns of a head, a lane two. */
        const bool whole = s1 - s0 == 1;
        const int32_t split_at = (int32_t)(split * CUDA_SPLIT);
        float *part = a.part + ((size_t)blockIdx.z * a.n_head + head0) * a.n_split * (D + 2);
#pragma unroll 1
        for (uint32_t i = warp; i < n_q * (D / 64); i += S::WARPS) {
                const uint32_t h = i / (D / 64), c = i % (D / 64) * 64 + lane * 2;
                float2 end[S::WARPS], x[S::WARPS], sum = make_float2(0, 0);
                float m = -INFINITY, l = 0;
#pragma unroll
                for (int w = 0; w < (int)S::WARPS; w++) {
                        const bool has = lo < split_at + (w + 1) * (int32_t)S::TILE && hi > split_at + w * (int32_t)S::TILE;
                        end[w] = has ? ends[w * ATT_ROWS + h] : make_float2(-INFINITY, 0);
                        x[w] = has ? *(const float2 *)(sums + w * sums_bytes + (h * S::HEAD + c) * 4) : make_float2(0, 0);
                        m = fmaxf(m, end[w].x);
                }
#pragma unroll
                for (int w = 0; w < (int)S::WARPS; w++) {
                        const float f = ex2(__fadd_rn(end[w].x, -m)); /* 0 of a tile that is not seen */
                        l = __fmaf_rn(f, end[w].y, l);
                        sum.x = __fmaf_rn(f, x[w].x, sum.x);
                        sum.y = __fmaf_rn(f, x[w].y, sum.y);
                }
                att_d_put<D>(a, part, row, head0, h, c, split, whole, c == 0, sinks, __fmul_rn(m, 0.6931471805599453f), l, sum);
        }
        att_d_end<D, S::WARPS, S::PIECES, S::AHEAD>(a, part, row, head0, n_q, s0, s1, 0, D / 64 / S::PIECES);
}

template <int D, int T> static int att_d_run(struct cuda_dev *d, const attn_args &a, uint32_t rows) {
        typedef att_d<D, T> S;
        const uint32_t group = a.n_head / a.kv.n_head_kv, smem = S::bytes(MIN(group, (uint32_t)ATT_ROWS));
        const dim3 grid(a.kv.n_head_kv * DIV_ROUND_UP(group, (uint32_t)ATT_ROWS), a.n_split, rows);

        static_assert(S::bytes(ATT_ROWS) + 16 <= 99 << 10, "more than every card has");
        if (S::bytes(ATT_ROWS) + 16 > 48 << 10)
                CUDA_TRY(d, cudaFuncSetAttribute(att_d_kernel<D, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes(ATT_ROWS)), "attention");
        return launch(d, "attention (role D)", att_d_kernel<D, T>, grid, S::THREADS, smem, a);
}

/* n_d_rows rows of role D, or, if 0, all of role P. */
template <int D, int T> static int att_run(struct cuda_dev *d, const attn_args &a, uint32_t n_d_rows, uint32_t n_d, uint32_t n) {
        return n_d_rows ? att_d_run<D, T>(d, a, n_d_rows) : att_p_run<D, T>(d, a, n_d, n);
}
