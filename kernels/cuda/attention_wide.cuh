/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Attention of role D on the f16 tensor cores for heads of 512 columns and more: as
 * in attention_d.cuh one row, up to 8 of the heads that share a KV head, one split
 * of CUDA_SPLIT positions a block, joined with the command before it or not. V may
 * be the first columns of K (latent attention). Joined or not, pages are asked for
 * in L2 before the wait.
 *
 * A warp's registers and a block's shared memory don't hold a whole head for every
 * tile, so scores and sums are shared out differently: of the scores a warp has 32
 * tokens and all columns, 64 at a time; of the sums 64 columns and all tokens or
 * some quarters of them. In between the warps meet twice, for the maximum of the
 * split and for the weights, which are f16 in shared memory.
 *
 * A model with few KV heads has fewer splits than a card has multiprocessors, so
 * the columns of V may be sliced among 2 or 4 blocks, each of which makes all of
 * the split's scores: K comes from memory once and from L2 for each, and the merge
 * of splits is sliced, too. A sum has four chains, a quarter of the tokens each,
 * added as (0 + 1) + (2 + 3) by whoever has them: its bits don't depend on how many
 * slices there are, which a launch may choose as it likes.
 */

#include "kernels/cuda/attention_d.cuh"

template <int DK, int DV, int T> struct att_wide {
        static constexpr uint32_t WARPS = DV / 64, THREADS = WARPS * 32, TILE = CUDA_SPLIT / WARPS; /* a warp's tokens */
        static constexpr uint32_t STEPS = DK / 64, GROUPS = CUDA_SPLIT / 16;                        /* of K's columns; of V's tokens */
        static constexpr uint32_t HELD = 2, HELD_V = GROUPS / 4;                                    /* of these, what registers hold: of V's, a quarter */
        static constexpr uint32_t HEAD = (DK > DV ? DK : DV) + 4; /* floats of a head in shared memory */
        static constexpr uint32_t OWN = 2 * DK;                   /* bytes of a head's K or V, at most */
        static constexpr uint32_t Q_ROW = 2 * DK + 64;            /* of a head's queries in f16: two of them meet all banks */
        /* Shared memory, in bytes from its start. */
        static constexpr uint32_t TURNS_AT = 0, NORMS_AT = DK * 4, OWN_AT = NORMS_AT + 2 * DK * 4, HEADS_AT = OWN_AT + 2 * OWN,
                                  Q_AT = HEADS_AT + (ATT_ROWS + 2) * HEAD * 4, WEIGHTS_AT = Q_AT + ATT_ROWS * Q_ROW,
                                  TOPS_AT = WEIGHTS_AT + GROUPS * 32 * 8, DENS_AT = TOPS_AT + WARPS * ATT_ROWS * 4,
                                  SINKS_AT = DENS_AT + WARPS * ATT_ROWS * 4, ENDS_AT = SINKS_AT + ATT_ROWS * 4;
        /*
         * What is only copied to come to L2 has a word for each copy of each thread: K behind the rest, V where the weights will be; where
         * keys hold the values, in what joined blocks have.
         */
        static constexpr uint32_t K_HEAD = DK / 32 * kv_raw<T>::STEP, V_HEAD = DV / 32 * kv_raw<T>::STEP; /* bytes of a head in a row */
        static constexpr uint32_t K_COPIES = (K_HEAD + 255) / 256, V_COPIES = DK != DV ? 0 : (V_HEAD + 255) / 256;
        static constexpr uint32_t SCRAP_AT = DK != DV ? TURNS_AT : ENDS_AT, BYTES = DK != DV ? ENDS_AT : ENDS_AT + THREADS * K_COPIES * 4;
        static_assert(DK == DV || THREADS * K_COPIES * 4 <= HEADS_AT, "the places of a joined block");
        static_assert(THREADS * V_COPIES * 4 <= GROUPS * 32 * 8, "the weights' place");
        static_assert(TILE == 32 && WARPS >= ATT_ROWS && WARPS == 8, "a lane a token, a warp a head, slices are powers of two");
        /* Of a slice's sums, in place of the queries: [pieces of the tokens, as many as slices][head][its columns]. */
        static constexpr __host__ __device__ uint32_t sum_row(uint32_t bits) { return (DV >> bits) + 4; }
        static_assert((sum_row(2) << 2) * ATT_ROWS <= (ATT_ROWS + 2) * HEAD, "sums are larger than queries, K and V");
};

/* Grid: (KV heads times their parts of ATT_ROWS heads times slices, splits, rows). */
template <int DK, int DV, int T> __global__ void __launch_bounds__(att_wide<DK, DV, T>::THREADS, T == K_F16 ? 2 : 1) att_wide_kernel(const __grid_constant__ attn_args a) {
        typedef att_wide<DK, DV, T> S;
        typedef kv_raw<T> raw;
        constexpr bool V_IN_K = DK != DV;
        constexpr int HELD = S::HELD, HELD_V = S::HELD_V, STEPS = S::STEPS, TILE = S::TILE;
        constexpr uint32_t K_HEAD = S::K_HEAD, V_HEAD = V_IN_K ? K_HEAD : S::V_HEAD;
        extern __shared__ __align__(16) uint8_t sm[];
        const uint32_t tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
        const uint32_t group = a.n_head / a.kv.n_head_kv, parts = (group + ATT_ROWS - 1) / ATT_ROWS;
        const uint32_t block = blockIdx.x >> a.slice_bits, kvh = block / parts;
        const uint32_t first = (block - kvh * parts) * ATT_ROWS, head0 = kvh * group + first, n_q = min(group - first, (uint32_t)ATT_ROWS);
        const uint32_t split = blockIdx.y, row = a.row0 + blockIdx.z;
        float *heads = (float *)(sm + S::HEADS_AT), *sinks = (float *)(sm + S::SINKS_AT); /* heads: queries, later sums */
        float *tops = (float *)(sm + S::TOPS_AT), *dens = (float *)(sm + S::DENS_AT);     /* [warp][head] maximum (base 2), denominator */
        uint8_t *q16 = sm + S::Q_AT;
        uint2 *weights = (uint2 *)(sm + S::WEIGHTS_AT); /* [16 tokens][lane] */
        const uint8_t *own_k = sm + S::OWN_AT, *own_v = own_k + S::OWN;
        const bool joined = !V_IN_K && a.joined;
        auto slice_of = [&](uint32_t bits) { return blockIdx.x & ((1u << bits) - 1); };

        pdl_next();
        /* The step's own data and what earlier steps wrote are there before a step's second kernel begins. */
        const uint32_t seq = a.b.seq[row];
        const int32_t pos = a.b.pos[row], hi = (a.causal ? pos : a.b.seq_last[seq]) + 1, lo = a.window ? max(0, pos - (int32_t)a.window + 1) : 0;
        const uint32_t s0 = (uint32_t)lo / CUDA_SPLIT, s1 = (uint32_t)(hi - 1) / CUDA_SPLIT + 1;
        if (split < s0 || split >= s1)
                return; /* sees nothing. No wait: others of this row have one, and this place is wanted */
        const bool own = joined && split == s1 - 1; /* this block has the own position */
        /* Of the split: what the row sees, [from, to); what of it comes from pages, [from, stored); the own token, or none. */
        const int32_t base = (int32_t)(split * CUDA_SPLIT);
        const int32_t from = max(lo - base, 0), to = min(hi - base, (int32_t)CUDA_SPLIT), stored = joined ? min(to, pos - base) : to;
        const int32_t own_in = own ? pos - base : -1;
        const uint32_t k_in = t * 8, v_in = (g & 3) * 8, k_bytes = (uint32_t)a.kv.k_row_bytes, v_bytes = V_IN_K ? k_bytes : (uint32_t)a.kv.v_row_bytes;
        const uint8_t *k_head = (const uint8_t *)a.kv.k + kvh * K_HEAD, *v_head = (const uint8_t *)(V_IN_K ? a.kv.k : a.kv.v) + kvh * V_HEAD;
        const uint32_t own_slot = own && slice_of(a.slice_bits) == 0 ? kv_slot(a.b, a.kv, seq, (uint32_t)pos) : UINT32_MAX;
        /* Where the tile of each warp begins, by lane; a tile lies in one page. UINT32_MAX: nothing of it comes from pages. */
        const int32_t tile_at = (int32_t)(lane % S::WARPS * TILE);
        const uint32_t slots = max(from, tile_at) < min(stored, tile_at + TILE) ? kv_slot(a.b, a.kv, seq, (uint32_t)(base + tile_at)) : UINT32_MAX;
        /* A token of a tile, or the nearest that is in the pages and seen. */
        auto row_of = [&](uint32_t slot, int32_t at, int32_t in) { return slot + (uint32_t)min(max(in, from - at), min(stored - at, TILE) - 1); };

        /* This warp's tile, for its scores. */
        const int32_t at = (int32_t)(warp * TILE), own_at = own_in - at;
        const bool seen = max(from, at) < min(to, at + TILE), here = own && own_at >= 0 && own_at < TILE;
        const uint32_t slot = __shfl_sync(~0u, slots, warp);
        const bool some = slot != UINT32_MAX;
        raw k[HELD][2][2][2], v[HELD_V][4]; /* k: [][16 tokens][8 tokens][32 columns] */
        uint32_t k_row[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                        k_row[i][h] = row_of(slot, at, i * 16 + h * 8 + (int32_t)g);
        auto load_k = [&](int to_k, int n) {
                if (some)
#pragma unroll
                        for (int i = 0; i < 2; i++)
#pragma unroll
                                for (int h = 0; h < 2; h++) {
                                        const uint8_t *p = k_head + (size_t)k_row[i][h] * k_bytes + 2 * n * raw::STEP;
#pragma unroll
                                        for (int c = 0; c < 2; c++)
                                                k[to_k][i][h][c].load_page(p + c * raw::STEP, k_in);
                                }
        };
        if (some) { /* the split comes to L2, of K to each slice its share. The step may be writing some of it: nobody reads the copies */
                const uint32_t bits = a.slice_bits, slice = slice_of(bits);
                const size_t r = row_of(slot, at, (int32_t)lane);
                uint8_t *word = sm + S::SCRAP_AT + tid * 4;
                for (uint32_t c = slice * 256; c < K_HEAD; c += 256u << bits, word += S::THREADS * 4)
                        page_word_to_l2(k_head + r * k_bytes + c, word);
                if constexpr (!V_IN_K) {
                        const uint8_t *p = v_head + r * v_bytes + slice * (V_HEAD >> bits);
                        word = sm + S::WEIGHTS_AT + tid * 4;
                        for (uint32_t c = 0; c < V_HEAD >> bits; c += 256, word += S::THREADS * 4)
                                page_word_to_l2(p + c, word);
                }
        }
        if (!joined)
                pdl_wait();
        load_k(0, 0);
        if (tid < n_q)
                sinks[tid] = a.sinks ? a.sinks[head0 + tid] : -INFINITY;

        if constexpr (!V_IN_K)
                if (joined)
                        att_d_turn<DK, T, S>(a, sm, row, pos, kvh, first, n_q, own, own_slot);
#pragma unroll
        for (int i = 1; i < HELD; i++) /* no sooner: registers */
                load_k(i, i);
        if (warp < n_q) { /* the queries of a head in f16 */
                const float *q = joined ? heads + warp * S::HEAD : a.q + row * a.q_stride + (size_t)(head0 + warp) * a.q_head;
#pragma unroll
                for (int c = 0; c < DK / 32; c++)
                        ((__half *)(q16 + warp * S::Q_ROW))[lane + 32 * c] = __float2half_rn(clamp16(q[lane + 32 * c]));
        }
        __syncthreads();

        /* Scores: of token g (+ 8) of 16, heads 2t and 2t + 1. Two sums each: a chain of MMAs is what a tile waits for. */
        float s[2][4] = {}, top[2] = {-INFINITY, -INFINITY}, den[2] = {0, 0};
        if (seen) {
                float x[2][2][4] = {};
#pragma unroll 1
                for (int n0 = 0; n0 < STEPS; n0 += HELD)
#pragma unroll
                        for (int j = 0; j < HELD; j++) {
                                const int n = n0 + j;
                                if (STEPS % HELD != 0 && n >= STEPS)
                                        break;
                                if (here)
#pragma unroll
                                        for (int i = 0; i < 2; i++)
#pragma unroll
                                                for (int h = 0; h < 2; h++)
                                                        if (i * 16 + h * 8 + (int32_t)g == own_at)
#pragma unroll
                                                                for (int c = 0; c < 2; c++)
                                                                        k[j][i][h][c].load(own_k + (2 * n + c) * raw::STEP, k_in);
                                __syncwarp();
#pragma unroll
                                for (int c = 0; c < 2; c++) {
                                        const uint4 q = g < n_q ? *(const uint4 *)(q16 + g * S::Q_ROW + (2 * n + c) * 64 + t * 16) : make_uint4(0, 0, 0, 0);
#pragma unroll
                                        for (int i = 0; i < 2; i++) {
                                                const uint4 y = k[j][i][0][c].get(k_in), z = k[j][i][1][c].get(k_in);
                                                const uint32_t even[4] = {y.x, z.x, y.y, z.y}, odd[4] = {y.z, z.z, y.w, z.w};
                                                mma_att(x[i][0], even, q.x, q.y);
                                                mma_att(x[i][1], odd, q.z, q.w);
                                        }
                                }
                                if (n + HELD < STEPS)
                                        load_k(j, n + HELD);
                        }
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                                s[i][e] = x[i][0][e] + x[i][1][e];
        }
        /*
         * Of the sums, a warp has number col64 of its slice's 64 columns and [quarter0, quarter1) of the tokens' quarters. Made here: K
         * has had the registers until now.
         */
        uint32_t bits = a.slice_bits;
        asm volatile("" : "+r"(bits));
        const uint32_t slice = slice_of(bits), per = S::WARPS >> bits, col64 = warp & (per - 1), piece = warp >> (3 - bits);
        const int32_t quarter0 = (int32_t)(piece << (2 - bits)), quarter1 = quarter0 + (4 >> bits);
        const uint32_t v_at = ((slice * per + col64) * 2 + (g >> 2)) * raw::STEP; /* this lane's of a head's V */
        auto load_v = [&](int to_v, int32_t n) {
                const uint32_t v_slot = __shfl_sync(~0u, slots, n / 2);
                if (v_slot != UINT32_MAX)
#pragma unroll
                        for (int h = 0; h < 4; h++)
                                v[to_v][h].load_page(v_head + v_at + (size_t)row_of(v_slot, n / 2 * TILE, n % 2 * 16 + 2 * (int32_t)t + (h & 1) + (h >> 1) * 8) * v_bytes,
                                                     v_in);
        };
        /* V, for the sums: the first groups of 16 tokens, on their way while the weights are made. */
        const int32_t n0 = from / 16, n1 = (to + 15) / 16;
#pragma unroll
        for (int i = 0; i < HELD_V; i++) {
                const int32_t n = quarter0 * HELD_V + i;
                if (n >= n0 && n < n1)
                        load_v(i, n);
        }
        const float scale = a.softcap != 0 ? 2 * 1.4426950408889634f * a.scale / a.softcap : a.scale * 1.4426950408889634f;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                        const int32_t in = at + i * 16 + (e >> 1) * 8 + (int32_t)g;
                        s[i][e] = __fmul_rn(s[i][e], scale);
                        if (a.softcap != 0) /* tanh */
                                s[i][e] = a.softcap * 1.4426950408889634f * (1 - __fdividef(2, 1 + ex2(s[i][e])));
                        s[i][e] = in >= from && in < to ? s[i][e] : -INFINITY;
                        top[e & 1] = fmaxf(top[e & 1], s[i][e]);
                }
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int x = 4; x < 32; x *= 2)
                        top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], x));
                if (g == 0)
                        tops[warp * ATT_ROWS + 2 * t + e] = top[e];
        }
        asm volatile("cp.async.wait_all;" : : : "memory"); /* what was copied for L2's sake came long ago; the weights take some of its place */
        __syncthreads();
        auto top_of = [&](uint32_t h) { /* of the split */
                float m = -INFINITY;
#pragma unroll
                for (uint32_t w = 0; w < S::WARPS; w++)
                        m = fmaxf(m, tops[w * ATT_ROWS + h]);
                return m == -INFINITY ? 0 : m; /* nothing but what is no number */
        };
#pragma unroll
        for (int e = 0; e < 2; e++)
                top[e] = top_of(2 * t + e);
        if (seen)
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                                s[i][e] = ex2(__fadd_rn(s[i][e], -top[e & 1]));
                                den[e & 1] += s[i][e];
                        }
                        /* of tokens 2t and 2t + 1 (+ 8) of 16, head g */
                        weights[(warp * 2 + i) * 32 + lane] = make_uint2(transposed(pack2(s[i][0], s[i][1])), transposed(pack2(s[i][2], s[i][3])));
                }
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int x = 4; x < 32; x *= 2)
                        den[e] += __shfl_xor_sync(~0u, den[e], x);
                if (g == 0)
                        dens[warp * ATT_ROWS + 2 * t + e] = den[e];
        }
        __syncthreads();

        /* Sums: rows g and g + 8 of the j-th MMA are columns 8g + 2j and 8g + 2j + 1 of the warp's 64. */
        const uint32_t sum_row = S::sum_row(bits);
        float even[4][4] = {};
#pragma unroll 1
        for (int32_t quarter = quarter0; quarter < quarter1; quarter++) {
                float o[4][4] = {};
#pragma unroll
                for (int i = 0; i < HELD_V; i++) {
                        const int32_t n = quarter * HELD_V + i, next = n + HELD_V;
                        if (n >= n0 && n < n1) {
                                if (own && own_in / TILE == n / 2) {
                                        const bool none = __shfl_sync(~0u, slots, n / 2) == UINT32_MAX;
#pragma unroll
                                        for (int h = 0; h < 4; h++)
                                                if (none || n * 16 + 2 * (int32_t)t + (h & 1) + (h >> 1) * 8 == own_in)
                                                        v[i][h].load(own_v + v_at, v_in);
                                }
                                __syncwarp();
                                const uint2 p = weights[n * 32 + (int32_t)lane];
                                uint4 x[4];
#pragma unroll
                                for (int h = 0; h < 4; h++)
                                        x[h] = v[i][h].get(v_in);
#pragma unroll
                                for (int j = 0; j < 4; j++) {
                                        const uint32_t f[4] = {v_pair(x[0], x[1], 2 * j), v_pair(x[0], x[1], 2 * j + 1), v_pair(x[2], x[3], 2 * j),
                                                               v_pair(x[2], x[3], 2 * j + 1)};
                                        mma_att(o[j], f, p.x, p.y);
                                }
                        }
                        if (quarter + 1 < quarter1 && next >= n0 && next < n1)
                                load_v(i, next);
                }
                if (bits < 2 && quarter % 2 == 0) { /* the next one is the warp's, too */
#pragma unroll
                        for (int j = 0; j < 4; j++)
#pragma unroll
                                for (int e = 0; e < 4; e++)
                                        even[j][e] = o[j][e];
                        continue;
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                                o[j][e] = bits < 2 ? __fadd_rn(even[j][e], o[j][e]) : o[j][e];
#pragma unroll
                for (int e = 0; e < 2; e++)
                        if (2 * t + e < n_q)
#pragma unroll
                                for (int j = 0; j < 4; j += 2) {
                                        float4 *to_sum = (float4 *)(heads + (piece * ATT_ROWS + 2 * t + e) * sum_row + 64 * col64 + 8 * g + 2 * j);
                                        float4 x = make_float4(o[j][e], o[j][2 + e], o[j + 1][e], o[j + 1][2 + e]);
                                        if (quarter - quarter0 == 3) { /* this lane's own of the first two */
                                                const float4 y = *to_sum;
                                                x = make_float4(__fadd_rn(y.x, x.x), __fadd_rn(y.y, x.y), __fadd_rn(y.z, x.z), __fadd_rn(y.w, x.w));
                                        }
                                        *to_sum = x;
                                }
        }
        __syncthreads();

        /* A warp has 64 columns of a head at a time, a lane two. */
        const bool whole = s1 - s0 == 1;
        float *part = a.part + ((size_t)blockIdx.z * a.n_head + head0) * a.n_split * (DV + 2);
#pragma unroll 1
        for (uint32_t i = warp; i < n_q * per; i += S::WARPS) {
                const uint32_t h = i >> (3 - bits), in = (i & (per - 1)) * 64 + 2 * lane, c = slice * per * 64 + in;
                auto piece_of = [&](uint32_t n) { return *(const float2 *)(heads + (n * ATT_ROWS + h) * sum_row + in); };
                auto both_of = [&](uint32_t n) {
                        const float2 x = piece_of(n), y = piece_of(n + 1);
                        return make_float2(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y));
                };
                float2 sum = bits ? both_of(0) : piece_of(0);
                if (bits == 2) {
                        const float2 y = both_of(2);
                        sum = make_float2(__fadd_rn(sum.x, y.x), __fadd_rn(sum.y, y.y));
                }
                const float m = __fmul_rn(top_of(h), 0.6931471805599453f);
                float l = 0;
#pragma unroll
                for (uint32_t w = 0; w < S::WARPS; w++)
                        l = __fadd_rn(l, dens[w * ATT_ROWS + h]);
                att_d_put<DV>(a, part, row, head0, h, c, split, whole, in == 0, sinks, m, l, sum); /* the same bits by each slice: its merge waits for no other one */
        }
        att_d_end<DV, S::WARPS, 2, 16>(a, part, row, head0, n_q, s0, s1, slice * per * 64, per / 2);
}

/*
 * Rows of role D from a.row0 on. Slices: as many as find a multiprocessor each, and two where one block would merge a row's many
 * splits longer than they take.
 */
template <int DK, int DV, int T> static int att_wide_run(struct cuda_dev *d, const attn_args &a, uint32_t rows) {
        typedef att_wide<DK, DV, T> S;
        const uint32_t parts = a.kv.n_head_kv * DIV_ROUND_UP(a.n_head / a.kv.n_head_kv, (uint32_t)ATT_ROWS);
        const size_t blocks = (size_t)parts * rows;
        attn_args sliced = a;

        while (sliced.slice_bits < 2 && (blocks << (sliced.slice_bits + 1)) * a.n_split <= d->n_sm)
                sliced.slice_bits++;
        if (sliced.slice_bits == 0 && a.n_split >= 64 * rows && 2 * blocks <= CUDA_ENDED)
                sliced.slice_bits = 1;
        static_assert(S::BYTES + 16 <= 48 << 10, "more than every launch may have");
        return launch(d, "attention (role D)", att_wide_kernel<DK, DV, T>, dim3(parts << sliced.slice_bits, a.n_split, rows), S::THREADS, S::BYTES, sliced);
}
