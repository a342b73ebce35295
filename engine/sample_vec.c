/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler's passes over a whole vocabulary, written on vectors of eight so
 * that any processor can run them and every one gives the same bits: single
 * operations in a fixed order, no fused multiply-add, and sums of integers. The
 * AVX2 copies are the same code for another target; kernels/cuda/sample.cu does
 * the same operations.
 */
#include <math.h>
#include <string.h>

#include "engine/sample.h"

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef uint64_t v4u __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

#define LOG2E 1.44269504088896340736f
#define LN2_HI 0.693145751953125f /* 15 bits: n * LN2_HI is exact */
#define LN2_LO 1.42860677e-6f
#define ROUND 12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds to an integer */
#define EXP_MIN -87.0f

/* exp(r) for |r| <= ln(2)/2 by its Taylor series to r^7: the rest is below 6e-9. */
#define EXP_POLY(r) \
        (1.0f + (r) * (1.0f + (r) * (0.5f + (r) * (1.0f / 6 + (r) * (1.0f / 24 + (r) * (1.0f / 120 + (r) * \
        (1.0f / 720 + (r) * (1.0f / 5040))))))))

float vec_exp(float x) {
        float n, r, p, two;
        int32_t bits;

        if (!(x > EXP_MIN))
                return 0;
        n = (x * LOG2E + ROUND) - ROUND;
        r = (x - n * LN2_HI) - n * LN2_LO;
        p = EXP_POLY(r);
        bits = ((int32_t)n + 127) << 23;
        memcpy(&two, &bits, 4);
        return p * two;
}

/*
 * 1024 + p, for p in [0, 1], has steps of 2^-42: its bits less those of 1024 are
 * p in units of MASS_ONE, rounded to the nearest (ties to even).
 */
#define SHIFT_BITS ((uint64_t)0x4090000000000000)

uint64_t vec_weight(float x) {
        double d = (double)vec_exp(x) + 1024;
        uint64_t bits;

        memcpy(&bits, &d, sizeof(bits));
        return bits - SHIFT_BITS;
}

/* Adds the bits of 1024 + exp((x - shift) * scale) of eight values to acc. */
INLINE void mass_add(const float *x, float shift, float scale, v4u acc[2]) {
        struct { v4 half[2]; } h;
        v8 v, n, r, p;
        v8i bits, keep;

        memcpy(&v, x, sizeof(v));
        v = (v - shift) * scale;
        keep = v > EXP_MIN;
        v = (v8)((v8i)v & keep); /* what is dropped is computed as exp(0), so never NaN or too small */
        n = (v * LOG2E + ROUND) - ROUND;
        r = (v - n * LN2_HI) - n * LN2_LO;
        p = EXP_POLY(r);
        bits = (__builtin_convertvector(n, v8i) + 127) << 23;
        p = p * (v8)bits;
        p = (v8)((v8i)p & keep);
        memcpy(&h, &p, sizeof(h));
        for (unsigned k = 0; k < 2; k++)
                acc[k] += (v4u)(__builtin_convertvector(h.half[k], v4d) + 1024.0);
}

INLINE uint64_t mass_block(const float *x, uint32_t n, float shift, float scale) {
        v4u acc[2] = { 0 };
        uint64_t sum = 0;
        uint32_t i = 0;

        for (; i + 8 <= n; i += 8)
                mass_add(x + i, shift, scale, acc);
        if (i < n) {
                float tail[8];
                for (uint32_t j = 0; j < 8; j++)
                        tail[j] = i + j < n ? x[i + j] : -INFINITY;
                mass_add(tail, shift, scale, acc);
                i += 8;
        }
        for (unsigned j = 0; j < 8; j++)
                sum += acc[j / 4][j % 4];
        return sum - i * SHIFT_BITS;
}

INLINE uint64_t mass_body(const float *x, uint32_t n, float shift, float scale, uint64_t *block) {
        uint64_t sum = 0;

        for (uint32_t b = 0; (uint64_t)b * SAMPLE_BLOCK < n; b++) {
                uint32_t at = b * SAMPLE_BLOCK;
                uint64_t s = mass_block(x + at, MIN(SAMPLE_BLOCK, n - at), shift, scale);
                if (block)
                        block[b] = s;
                sum += s;
        }
        return sum;
}

INLINE float max_body(const float *x, uint32_t n) {
        v8 m[2];
        float r = -INFINITY;
        uint32_t i = 0;

        for (uint32_t j = 0; j < 8; j++)
                m[0][j] = m[1][j] = -INFINITY;
        for (; i + 16 <= n; i += 16)
                for (unsigned k = 0; k < 2; k++) {
                        v8 v;
                        v8i more;
                        memcpy(&v, x + i + 8 * k, sizeof(v));
                        more = v > m[k]; /* false for NaN */
                        m[k] = (v8)(((v8i)v & more) | ((v8i)m[k] & ~more));
                }
        for (unsigned k = 0; k < 2; k++)
                for (unsigned j = 0; j < 8; j++)
                        r = m[k][j] > r ? m[k][j] : r;
        for (; i < n; i++)
                r = x[i] > r ? x[i] : r;
        return r;
}

/* Whether any of 32 values is at least 'least'. */
INLINE bool any_body(const float *x, float least) {
        v8i any = { 0 };
        int64_t w[4];

        for (unsigned k = 0; k < 4; k++) {
                v8 v;
                memcpy(&v, x + 8 * k, sizeof(v));
                any |= v >= least;
        }
        memcpy(w, &any, sizeof(w));
        return (w[0] | w[1] | w[2] | w[3]) != 0;
}

INLINE uint32_t gather_body(const float *x, uint32_t n, float least, uint32_t *idx, uint32_t max) {
        uint32_t found = 0, i = 0;

        while (i < n && found < max) {
                uint32_t end = MIN(i + 32, n);
                if (end - i == 32 && !any_body(x + i, least)) {
                        i = end;
                        continue;
                }
                for (; i < end && found < max; i++)
                        if (x[i] >= least)
                                idx[found++] = i;
        }
        return found;
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 static uint64_t mass_avx2(const float *x, uint32_t n, float shift, float scale, uint64_t *block) {
        return mass_body(x, n, shift, scale, block);
}
AVX2 static float max_avx2(const float *x, uint32_t n) {
        return max_body(x, n);
}
AVX2 static uint32_t gather_avx2(const float *x, uint32_t n, float least, uint32_t *idx, uint32_t max) {
        return gather_body(x, n, least, idx, max);
}
#define DISPATCH(name, ...) \
        do { \
                if (__builtin_cpu_supports("avx2")) \
                        return name##_avx2(__VA_ARGS__); \
        } while (0)
#else
#define DISPATCH(name, ...)
#endif

uint64_t vec_mass(const float *x, uint32_t n, float shift, float scale, uint64_t *block) {
        DISPATCH(mass, x, n, shift, scale, block);
        return mass_body(x, n, shift, scale, block);
}

float vec_max(const float *x, uint32_t n) {
        DISPATCH(max, x, n);
        return max_body(x, n);
}

uint32_t vec_gather(const float *x, uint32_t n, float least, uint32_t *idx, uint32_t max) {
        DISPATCH(gather, x, n, least, idx, max);
        return gather_body(x, n, least, idx, max);
}

uint32_t vec_find(const float *x, uint32_t n, float value) {
        uint32_t i;
        return vec_gather(x, n, value, &i, 1) && x[i] == value ? i : n;
}
