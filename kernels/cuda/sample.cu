/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler of engine/sample.c on the device: the same token for the same
 * logits, bit for bit. What decides is either a comparison, or a sum of integers
 * (masses), or a single IEEE operation that is done here as it is there.
 *
 *   scan   penalties, bias and mask; the maxima of each chunk of the vocabulary
 *   mass   with the maxima known: the mass of each chunk; where a cut is asked
 *          for, a histogram over max - x
 *   pick   one block a row: finds the cut within its bin, draws, reports
 *
 * A bin never falls as x falls, so what lies certainly above a cut is known from
 * the histogram alone. Lists of candidates are kept per warp, each warp having a
 * run of the vocabulary: in ascending order of ids without any sorting.
 */
#include <errno.h>

#include "kernels/cuda/sample.cuh"

CUDA_FAMILY(sample)

/* ---- scan ------------------------------------------------------------------------ */

__global__ void __launch_bounds__(SCAN_THREADS) sample_scan_kernel(const sample_args a) {
        __shared__ float value[CHUNK], red[33];
        __shared__ uint32_t count[CHUNK];
        const uint32_t tid = threadIdx.x, base = blockIdx.x * CHUNK, n = min((uint32_t)CHUNK, a.n_vocab - base);

        pdl_next();
        pdl_wait();
        const struct k_sample_row r = a.rows[blockIdx.y];
        const float *x = raw_of(a, r) + base;
        struct part *part = a.part + (size_t)blockIdx.y * a.n_chunk + blockIdx.x;
        float raw = -INFINITY, most;

        if (blockIdx.x == 0)
                for (uint32_t i = tid; i < BINS; i += SCAN_THREADS) {
                        a.bin_mass[(size_t)blockIdx.y * BINS + i] = 0;
                        a.bin_n[(size_t)blockIdx.y * BINS + i] = a.bin_raw[(size_t)blockIdx.y * BINS + i] = 0;
                }
#pragma unroll 4
        for (uint32_t i = tid; i < n; i += SCAN_THREADS) {
                value[i] = x[i];
                count[i] = 0;
                raw = fmaxf(raw, value[i]); /* leaves NaN out */
        }
        raw = block_max(raw, red);
        most = raw;
        if (changes(r)) {
                const uint32_t *h = a.history + r.place * a.history_stride + (r.n_history - r.n_penalty);
                float *w = a.work + (size_t)blockIdx.y * a.n_vocab + base;
                __syncthreads();
                for (uint32_t i = tid; i < r.n_penalty; i += SCAN_THREADS) {
                        uint32_t t = h[i] - base;
                        if (t < n)
                                atomicAdd(&count[t], 1u);
                }
                __syncthreads();
                for (uint32_t i = tid; i < n; i += SCAN_THREADS)
                        if (count[i]) {
                                float l = value[i];
                                if (r.repeat > 0 && r.repeat != 1)
                                        l = l > 0 ? __fdiv_rn(l, r.repeat) : __fmul_rn(l, r.repeat);
                                value[i] = __fsub_rn(l, __fadd_rn(r.presence, __fmul_rn(r.frequency, (float)count[i])));
                        }
                __syncthreads();
                for (uint32_t i = tid; i < r.n_bias; i += SCAN_THREADS) {
                        const uint32_t t = r.bias[i].token;
                        bool first = t - base < n;
                        for (uint32_t j = 0; first && j < i; j++)
                                first = r.bias[j].token != t;
                        if (!first)
                                continue;
                        float l = value[t - base];
                        for (uint32_t j = i; j < r.n_bias; j++) /* in order, as they came */
                                if (r.bias[j].token == t)
                                        l = __fadd_rn(l, r.bias[j].bias);
                        value[t - base] = l;
                }
                __syncthreads();
                most = -INFINITY;
                for (uint32_t i = tid; i < n; i += SCAN_THREADS) {
                        float l = value[i];
                        if (r.mask && !(r.mask[(base + i) >> 6] >> ((base + i) & 63) & 1))
                                l = -INFINITY;
                        w[i] = l;
                        most = fmaxf(most, l);
                }
                most = block_max(most, red);
        }
        if (tid == 0) {
                part->max_raw = raw;
                part->max = most;
        }
}

/* ---- mass -------------------------------------------------------------------------- */

/* The row's maxima, from its chunks; every thread of the block. */
static __device__ void row_max(const struct part *p, uint32_t n_chunk, float *red, float *ret_raw, float *ret_max) {
        float raw = -INFINITY, most = -INFINITY;
        for (uint32_t i = threadIdx.x; i < n_chunk; i += blockDim.x) {
                raw = fmaxf(raw, p[i].max_raw);
                most = fmaxf(most, p[i].max);
        }
        *ret_raw = block_max(raw, red);
        *ret_max = block_max(most, red);
}

__global__ void __launch_bounds__(SCAN_THREADS) sample_mass_kernel(const sample_args a) {
        __shared__ float red[33];
        __shared__ uint64_t bin_mass[BINS], sum[2][SCAN_THREADS / 32];
        __shared__ uint32_t bin_n[BINS], bin_raw[BINS], lowest;
        const uint32_t tid = threadIdx.x, base = blockIdx.x * CHUNK, n = min((uint32_t)CHUNK, a.n_vocab - base);

        pdl_next();
        pdl_wait();
        const struct k_sample_row r = a.rows[blockIdx.y];
        const float *raw = raw_of(a, r) + base, *x = changed_of(a, r, blockIdx.y) + base;
        struct part *part = a.part + (size_t)blockIdx.y * a.n_chunk;
        float max_raw, max;

        row_max(part, a.n_chunk, red, &max_raw, &max);
        const bool best = !(r.scale > 0) || isinf(max), cut = cuts(r) && !best, tops = r.n_top > 0;
        const float least = __fadd_rn(max, r.log_min_p);
        uint64_t mass_raw = 0, mass = 0;
        uint32_t first = UINT32_MAX;

        if (tid == 0)
                lowest = UINT32_MAX;
        for (uint32_t i = tid; i < BINS; i += SCAN_THREADS) {
                bin_mass[i] = 0;
                bin_n[i] = bin_raw[i] = 0;
        }
        __syncthreads();
#pragma unroll 4
        for (uint32_t i = tid; i < n; i += SCAN_THREADS) {
                const float v = raw[i], w = x[i];
                mass_raw += weight_at(v, max_raw, 1.0f);
                if (tops && v >= -INFINITY)
                        atomicAdd(&bin_raw[bin_of(v, max_raw)], 1u);
                if (best) {
                        if (w == max)
                                first = min(first, base + i);
                } else if (!cut) {
                        if (w >= least)
                                mass += weight_at(w, max, r.scale);
                } else if (w >= -INFINITY) {
                        const uint32_t b = bin_of(w, max);
                        atomicAdd(&bin_n[b], 1u);
                        atomicAdd((unsigned long long *)&bin_mass[b], (unsigned long long)weight_at(w, max, 1.0f));
                }
        }
        mass_raw = warp_sum64(mass_raw);
        mass = warp_sum64(mass);
        if ((tid & 31) == 0) {
                sum[0][tid >> 5] = mass_raw;
                sum[1][tid >> 5] = mass;
        }
        if (first != UINT32_MAX)
                atomicMin(&lowest, first);
        __syncthreads();
        if (tid == 0) {
                for (uint32_t w = 1; w < SCAN_THREADS / 32; w++) {
                        sum[0][0] += sum[0][w];
                        sum[1][0] += sum[1][w];
                }
                part[blockIdx.x].mass_raw = sum[0][0];
                part[blockIdx.x].mass = sum[1][0];
                part[blockIdx.x].first = lowest;
        }
        if (cut || tops)
                for (uint32_t i = tid; i < BINS; i += SCAN_THREADS) {
                        const size_t at = (size_t)blockIdx.y * BINS + i;
                        if (bin_n[i]) {
                                atomicAdd(&a.bin_n[at], bin_n[i]);
                                atomicAdd((unsigned long long *)&a.bin_mass[at], (unsigned long long)bin_mass[i]);
                        }
                        if (bin_raw[i])
                                atomicAdd(&a.bin_raw[at], bin_raw[i]);
                }
}

/* ---- pick --------------------------------------------------------------------------- */

/* What a warp has: ids, or, without a list, a run of the vocabulary. */
struct run {
        const uint32_t *ids;
        uint32_t base, n;
        __device__ uint32_t id(uint32_t i) const { return ids ? ids[i] : base + i; }
};

struct pick_shared {
        uint64_t acc[256];
        uint64_t warp[PICK_WARPS];
        uint64_t prefix, need;
        uint32_t bin, token;
        float red[33];
};

/*
 * The first bin at which the sum over bins from 0 on reaches 'need'; *ret_before: the sum of those before it. BINS: not reached.
 * Of 64-bit or 32-bit sums; every thread of the block, each has one bin.
 */
template <class T>
static __device__ uint32_t find_bin(struct pick_shared &s, const T *bins, uint64_t need, uint64_t *ret_before) {
        const uint32_t warp = threadIdx.x >> 5;
        const uint64_t mine = bins[threadIdx.x];
        uint64_t upto = warp_scan64(mine);

        static_assert((uint32_t)BINS == (uint32_t)PICK_THREADS, "a bin a thread");
        __syncthreads();
        if (threadIdx.x == 0)
                s.bin = BINS;
        if ((threadIdx.x & 31) == 31)
                s.warp[warp] = upto;
        __syncthreads();
        for (uint32_t w = 0; w < warp; w++)
                upto += s.warp[w];
        if (upto >= need && upto - mine < need) {
                s.bin = threadIdx.x;
                s.prefix = upto - mine;
        }
        __syncthreads();
        *ret_before = s.bin < BINS ? s.prefix : 0;
        return s.bin;
}

/*
 * Of the candidates in bin b with keys not below 'floor': the key at which the sum of weights (or, by_count, their number) in
 * descending order reaches 'need', a digit of the key at a time.
 */
static __device__ uint64_t select_key(struct pick_shared &s, const float *x, const struct run &run, float max, uint32_t b,
                                      uint64_t floor, bool by_count, uint64_t need) {
        const uint32_t lane = threadIdx.x & 31;
        uint64_t prefix = 0;

        for (int shift = 56; shift >= 0; shift -= 8) {
                __syncthreads();
                if (threadIdx.x < 256)
                        s.acc[threadIdx.x] = 0;
                __syncthreads();
                for (uint32_t i = lane; i < run.n; i += 32) {
                        const uint32_t id = run.id(i);
                        const float v = x[id];
                        const uint64_t key = key_of(v, id);
                        if (bin_of(v, max) != b || key < floor || (shift < 56 && key >> (shift + 8) != prefix))
                                continue;
                        atomicAdd((unsigned long long *)&s.acc[key >> shift & 255], by_count ? 1ull : (unsigned long long)weight_at(v, max, 1.0f));
                }
                __syncthreads();
                if (threadIdx.x < 32) { /* lane l has the digits 255 - 8 l downwards */
                        uint64_t mine = 0, before;
                        for (int k = 0; k < 8; k++)
                                mine += s.acc[255 - 8 * lane - k];
                        before = warp_scan64(mine) - mine;
                        if (before < need && before + mine >= need)
                                for (int k = 0; k < 8; k++) {
                                        const uint32_t digit = 255 - 8 * lane - k;
                                        if (before + s.acc[digit] >= need) {
                                                s.prefix = prefix << 8 | digit;
                                                s.need = need - before;
                                                break;
                                        }
                                        before += s.acc[digit];
                                }
                }
                __syncthreads();
                prefix = s.prefix;
                need = s.need;
        }
        return prefix;
}

/* The id at which the mass of what is kept, in ascending order of ids, passes the noise's part of it (less 'skip'). */
static __device__ uint32_t draw(struct pick_shared &s, const float *x, const struct run &run, float max, float scale, float least,
                                uint64_t cut, bool whole, uint64_t target_or_noise) {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        auto weigh = [&](uint32_t i) -> uint64_t {
                const uint32_t id = run.id(i);
                const float v = x[id];
                return v >= least && key_of(v, id) >= cut ? weight_at(v, max, scale) : 0;
        };
        uint64_t mine = 0, total = 0, before = 0, target;

        for (uint32_t i = lane; i < run.n; i += 32)
                mine += weigh(i);
        mine = warp_sum64(mine);
        __syncthreads();
        if (threadIdx.x == 0)
                s.token = UINT32_MAX;
        if (lane == 0)
                s.warp[warp] = mine;
        __syncthreads();
        for (uint32_t w = 0; w < PICK_WARPS; w++) {
                before += w < warp ? s.warp[w] : 0;
                total += s.warp[w];
        }
        target = whole ? __umul64hi(total, (2 * target_or_noise + 1) << 10) : target_or_noise;
        if (before <= target && before + mine > target)
                for (uint32_t i0 = 0; i0 < run.n; i0 += 32) {
                        const uint64_t upto = before + warp_scan64(i0 + lane < run.n ? weigh(i0 + lane) : 0);
                        const uint32_t past = __ballot_sync(~0u, upto > target);
                        if (past) {
                                if (lane == 0)
                                        s.token = run.id(i0 + __ffs(past) - 1);
                                break;
                        }
                        before = __shfl_sync(~0u, upto, 31);
                }
        __syncthreads();
        return s.token;
}

/* The ids in bins up to b, each warp those of its run, in order. */
static __device__ struct run gather(const sample_args &a, const float *x, float max, uint32_t b) {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const uint32_t per = DIV_ROUND_UP(DIV_ROUND_UP(a.n_vocab, (uint32_t)PICK_WARPS), 32u) * 32;
        const uint32_t lo = min(warp * per, a.n_vocab), hi = min(lo + per, a.n_vocab);
        uint32_t *ids = a.cand + (size_t)blockIdx.x * a.n_vocab + lo, n = 0;

#pragma unroll 4
        for (uint32_t i = lo; i < hi; i += 32) {
                const float v = i + lane < hi ? x[i + lane] : NAN;
                const bool in = v >= -INFINITY && bin_of(v, max) <= b;
                const uint32_t all = __ballot_sync(~0u, in);
                if (in)
                        ids[n + __popc(all & ((1u << lane) - 1))] = i + lane;
                n += __popc(all);
        }
        __syncwarp();
        return {ids, 0, n};
}

static __device__ uint32_t pick_cut(const sample_args &a, struct pick_shared &s, const struct k_sample_row &r, const float *x,
                                    float max) {
        const uint64_t *bin_mass = a.bin_mass + (size_t)blockIdx.x * BINS;
        const uint32_t *bin_n = a.bin_n + (size_t)blockIdx.x * BINS;
        uint64_t before = 0, cut = 0, need;
        uint32_t kbin = BINS, pbin = BINS;

        if (r.top_k)
                kbin = find_bin(s, bin_n, r.top_k, &before); /* fewer than that: no cut there */
        if (kbin == BINS && r.top_p < 1) { /* of everything; its sum comes from the bins */
                uint64_t total = warp_sum64(bin_mass[threadIdx.x]);
                __syncthreads();
                if ((threadIdx.x & 31) == 0)
                        s.warp[threadIdx.x >> 5] = total;
                __syncthreads();
                total = 0;
                for (uint32_t w = 0; w < PICK_WARPS; w++)
                        total += s.warp[w];
                need = __double2ull_rz(__dmul_rn((double)r.top_p, __ull2double_rn(total)));
                need = need ? need : 1;
                pbin = find_bin(s, bin_mass, need, &before);
                const struct run run = gather(a, x, max, pbin);
                cut = select_key(s, x, run, max, pbin, 0, false, need - before);
                return draw(s, x, run, max, r.scale, __fadd_rn(max, r.log_min_p), cut, true, r.noise);
        }
        const struct run run = gather(a, x, max, MIN(kbin, BINS - 1u));
        if (kbin < BINS)
                cut = select_key(s, x, run, max, kbin, 0, true, r.top_k - before);
        if (kbin < BINS && r.top_p < 1) {
                uint64_t total = 0;
                for (uint32_t i = threadIdx.x & 31; i < run.n; i += 32) {
                        const uint32_t id = run.id(i);
                        total += key_of(x[id], id) >= cut ? weight_at(x[id], max, 1.0f) : 0;
                }
                total = warp_sum64(total);
                __syncthreads();
                if ((threadIdx.x & 31) == 0)
                        s.warp[threadIdx.x >> 5] = total;
                __syncthreads();
                total = 0;
                for (uint32_t w = 0; w < PICK_WARPS; w++)
                        total += s.warp[w];
                need = __double2ull_rz(__dmul_rn((double)r.top_p, __ull2double_rn(total)));
                need = need ? need : 1;
                /* It lies in a bin before the cut's one, or among those of that bin that are kept. */
                pbin = find_bin(s, bin_mass, need, &before);
                cut = select_key(s, x, run, max, pbin, cut, false, need - before);
        }
        return draw(s, x, run, max, r.scale, __fadd_rn(max, r.log_min_p), cut, true, r.noise);
}

/* The n_top largest, best first: few, among the candidates that a histogram leaves. */
static __device__ void pick_tops(const sample_args &a, struct pick_shared &s, const struct k_sample_row &r, const float *raw, float max) {
        uint64_t before, last = UINT64_MAX;
        const uint32_t b = find_bin(s, a.bin_raw + (size_t)blockIdx.x * BINS, r.n_top, &before);
        __syncthreads(); /* the lists of the draw are done with */
        const struct run run = gather(a, raw, max, MIN(b, BINS - 1u));
        uint32_t n = 0;

        for (; n < r.n_top; n++) {
                uint64_t most = 0;
                for (uint32_t i = threadIdx.x & 31; i < run.n; i += 32) {
                        const uint32_t id = run.id(i);
                        const uint64_t key = key_of(raw[id], id);
                        if (key < last && key > most)
                                most = key;
                }
                for (int o = 16; o; o >>= 1) {
                        const uint64_t u = __shfl_xor_sync(~0u, most, o);
                        most = u > most ? u : most;
                }
                __syncthreads();
                if ((threadIdx.x & 31) == 0)
                        s.warp[threadIdx.x >> 5] = most;
                __syncthreads();
                for (uint32_t w = 0; w < PICK_WARPS; w++)
                        most = s.warp[w] > most ? s.warp[w] : most;
                if (most == 0)
                        break;
                last = most;
                if (threadIdx.x == 0) {
                        const uint32_t id = UINT32_MAX - (uint32_t)most;
                        r.out->top[n] = {id, raw[id]};
                }
        }
        if (threadIdx.x == 0)
                r.out->n_top = n;
}

__global__ void __launch_bounds__(PICK_THREADS) sample_pick_kernel(const sample_args a) {
        __shared__ struct pick_shared s;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

        pdl_next();
        pdl_wait();
        const struct k_sample_row r = a.rows[blockIdx.x];
        const struct part *part = a.part + (size_t)blockIdx.x * a.n_chunk;
        const float *raw = raw_of(a, r), *x = changed_of(a, r, blockIdx.x);
        float max_raw, max;
        uint64_t mass = 0;
        uint32_t token;

        row_max(part, a.n_chunk, s.red, &max_raw, &max);
        if (max == -INFINITY) {
                token = UINT32_MAX;
        } else if (!(r.scale > 0) || isinf(max)) {
                uint32_t first = UINT32_MAX;
                if (warp == 0) {
                        for (uint32_t i = lane; i < a.n_chunk; i += 32)
                                first = min(first, part[i].first);
                        first = __reduce_min_sync(~0u, first);
                        if (lane == 0)
                                s.token = first;
                }
                __syncthreads();
                token = s.token;
        } else if (!cuts(r)) {
                /* The chunk in which the target lies, then the value in it: a warp has CHUNK / PICK_WARPS of them. */
                if (warp == 0) {
                        uint64_t total = 0, before = 0, target;
                        for (uint32_t i = lane; i < a.n_chunk; i += 32)
                                total += part[i].mass;
                        total = warp_sum64(total);
                        target = __umul64hi(total, (2 * r.noise + 1) << 10);
                        for (uint32_t i0 = 0; i0 < a.n_chunk; i0 += 32) {
                                const uint64_t mine = i0 + lane < a.n_chunk ? part[i0 + lane].mass : 0, upto = before + warp_scan64(mine);
                                if (upto > target && upto - mine <= target) {
                                        s.bin = i0 + lane;
                                        s.need = target - (upto - mine);
                                }
                                before = __shfl_sync(~0u, upto, 31);
                        }
                }
                __syncthreads();
                const uint32_t per = CHUNK / PICK_WARPS, lo = min(s.bin * CHUNK + warp * per, a.n_vocab);
                const struct run run = {NULL, lo, min(per, a.n_vocab - lo)};
                token = draw(s, x, run, max, r.scale, __fadd_rn(max, r.log_min_p), 0, false, s.need);
        } else {
                token = pick_cut(a, s, r, x, max);
        }
        if (warp == 0) {
                for (uint32_t i = lane; i < a.n_chunk; i += 32)
                        mass += part[i].mass_raw;
                mass = warp_sum64(mass);
                if (lane == 0) {
                        a.sampled[r.place] = token;
                        r.out->token = token;
                        r.out->logit = token < a.n_vocab ? raw[token] : 0;
                        r.out->max = max_raw;
                        r.out->mass = mass;
                        r.out->n_top = 0;
                }
        }
        if (r.n_top)
                pick_tops(a, s, r, raw, max_raw);
        __syncthreads();
        if (threadIdx.x == 0) {
                uint64_t ns;
                asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
                r.out->ns = ns;
                if (a.count && blockIdx.x == 0) {
                        const uint64_t n = *a.count + 1;
                        *a.count = n;
                        *(volatile uint64_t *)a.done = n;
                }
                __threadfence_system();
                *(volatile uint64_t *)&r.out->stamp = r.stamp;
        }
}

/* ---- the op ---------------------------------------------------------------------------- */

struct sample_plan {
        size_t work, cand, part, bin_mass, bin_n, bin_raw, total;
};

static void sample_plan(uint32_t n, uint32_t n_vocab, struct sample_plan *p) {
        const size_t rows = ((size_t)n * n_vocab * sizeof(float) + 255) & ~(size_t)255, bins = (size_t)n * BINS;
        p->work = 0;
        p->cand = rows;
        p->part = p->cand + rows;
        p->bin_mass = (p->part + (size_t)n * DIV_ROUND_UP(n_vocab, (uint32_t)CHUNK) * sizeof(struct part) + 255) & ~(size_t)255;
        p->bin_n = p->bin_mass + bins * sizeof(uint64_t);
        p->bin_raw = p->bin_n + bins * sizeof(uint32_t);
        p->total = p->bin_raw + bins * sizeof(uint32_t);
}

size_t cuda_sample_scratch(uint32_t n, uint32_t n_vocab) {
        struct sample_plan p;
        sample_plan(n, n_vocab, &p);
        return p.total;
}

int cuda_run_sample(struct cuda_dev *d, const struct dbatch *b, const struct cmd_sample *c) {
        struct sample_plan p;
        sample_args a = {};
        uint8_t *s = (uint8_t *)c->scratch;
        int r;

        sample_plan(c->n, c->n_vocab, &p);
        a.logits = c->logits;
        a.n_vocab = c->n_vocab;
        a.n_chunk = DIV_ROUND_UP(c->n_vocab, (uint32_t)CHUNK);
        a.rows = c->rows;
        a.sampled = b->sampled;
        a.history = b->history;
        a.history_stride = b->history_stride;
        a.work = (float *)(s + p.work);
        a.cand = (uint32_t *)(s + p.cand);
        a.part = (struct part *)(s + p.part);
        a.bin_mass = (uint64_t *)(s + p.bin_mass);
        a.bin_n = (uint32_t *)(s + p.bin_n);
        a.bin_raw = (uint32_t *)(s + p.bin_raw);
        a.count = c->count;
        a.done = c->done;
        if (a.n_chunk == 0 || a.n_chunk > MAX_CHUNKS)
                return -EINVAL;
        if ((r = launch(d, "sampling, maxima", sample_scan_kernel, dim3(a.n_chunk, c->n), SCAN_THREADS, 0, a)) < 0 ||
            (r = launch(d, "sampling, masses", sample_mass_kernel, dim3(a.n_chunk, c->n), SCAN_THREADS, 0, a)) < 0)
                return r;
        return launch(d, "sampling, choice", sample_pick_kernel, c->n, PICK_THREADS, 0, a);
}
