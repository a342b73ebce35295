/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block layouts of the GGUF quantized types (the gguf specification and its
 * reference package define them), one pair of readers per family: the head
 * (scales, minimums) and the codes. Offsets are byte offsets in a block.
 */
#include "kernels/quant/codes.h"

#include <string.h>

const int8_t k_lut_iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t k_lut_e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static const struct k_codes_traits traits[_K_TYPE_MAX] = {
        /*              kind          min   center bits group */
        [K_Q4_0]    = { K_CODES_FLOAT, false,   8, 4, 32 },
        [K_Q4_1]    = { K_CODES_FLOAT, true,    0, 4, 32 },
        [K_Q5_0]    = { K_CODES_FLOAT, false,  16, 5, 32 },
        [K_Q5_1]    = { K_CODES_FLOAT, true,    0, 5, 32 },
        [K_Q8_0]    = { K_CODES_FLOAT, false, 128, 8, 32 },
        [K_IQ4_NL]  = { K_CODES_FLOAT, false, 128, 8, 32 },
        [K_MXFP4]   = { K_CODES_FLOAT, false,  12, 5, 32 },
        [K_NVFP4]   = { K_CODES_FLOAT, false,  12, 5, 16 },
        [K_Q2_K]    = { K_CODES_INT,   true,    0, 2, 16 },
        [K_Q3_K]    = { K_CODES_INT,   false,   4, 3, 16 },
        [K_Q4_K]    = { K_CODES_INT,   true,    0, 4, 32 },
        [K_Q5_K]    = { K_CODES_INT,   true,    0, 5, 32 },
        [K_Q6_K]    = { K_CODES_INT,   false,  32, 6, 16 },
        [K_IQ4_XS]  = { K_CODES_INT,   false, 128, 8, 32 },
        [K_TQ1_0]   = { K_CODES_INT,   false,   1, 2, 32 },
        [K_TQ2_0]   = { K_CODES_INT,   false,   1, 2, 32 },
        [K_IQ1_S]   = { K_CODES_INT,   false,   9, 5, 32 },
        [K_IQ1_M]   = { K_CODES_INT,   false,   9, 5, 16 },
        [K_IQ2_XXS] = { K_CODES_INT,   false, 128, 8, 32 },
        [K_IQ2_XS]  = { K_CODES_INT,   false, 128, 8, 16 },
        [K_IQ2_S]   = { K_CODES_INT,   false, 128, 8, 16 },
        [K_IQ3_XXS] = { K_CODES_INT,   false, 128, 8, 32 },
        [K_IQ3_S]   = { K_CODES_INT,   false, 128, 8, 32 },
};

const struct k_codes_traits *k_codes_traits(enum k_type t) {
        return &traits[t];
}

static float f16_at(const uint8_t *p) {
        uint16_t h;
        memcpy(&h, p, 2);
        return k_f16_to_f32(h);
}

/* 2^(e - 127) / 2, without special codes: the OCP MX scale, halved because the E2M1 table is doubled. */
static float e8m0_half(uint8_t e) {
        uint32_t u = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
        float f;
        memcpy(&f, &u, 4);
        return f;
}

/* Unsigned E4M3 (bias 7), halved likewise; 0x7f stands for zero. */
static float ue4m3_half(uint8_t x) {
        uint32_t e = x >> 3 & 15, man = x & 7, u;
        float f;
        if (x == 0x7f)
                return 0;
        if (e == 0)
                return (float)man * 0x1p-10f;
        u = (e + 127 - 8) << 23 | man << 20;
        memcpy(&f, &u, 4);
        return f;
}

/* The twelve bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums. */
static void scales_6bit(const uint8_t *b, struct k_codes *c) {
        for (unsigned j = 0; j < 8; j++) {
                unsigned sc, mn;
                if (j < 4) {
                        sc = b[j] & 63;
                        mn = b[j + 4] & 63;
                } else {
                        sc = (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
                        mn = b[j + 4] >> 4 | b[j] >> 6 << 4;
                }
                c->sc[2 * j] = c->sc[2 * j + 1] = (int16_t)sc;
                c->mn[2 * j] = c->mn[2 * j + 1] = (int16_t)mn;
        }
}

static void flat_scales(struct k_codes *c, float d) {
        c->d[0] = d;
        for (unsigned g = 0; g < 16; g++)
                c->sc[g] = 1;
}

void k_codes_head(enum k_type t, const void *block, struct k_codes *c) {
        const uint8_t *b = block;
        c->m = 0;
        switch (t) {
        case K_Q4_0:
        case K_Q5_0:
        case K_Q8_0:
        case K_IQ4_NL:
                c->d[0] = c->d[1] = f16_at(b);
                break;
        case K_Q4_1:
        case K_Q5_1:
                c->d[0] = c->d[1] = f16_at(b);
                c->m = f16_at(b + 2);
                break;
        case K_MXFP4:
                c->d[0] = c->d[1] = e8m0_half(b[0]);
                break;
        case K_NVFP4:
                for (unsigned g = 0; g < 4; g++)
                        c->d[g] = ue4m3_half(b[g]);
                break;
        case K_Q2_K:
                for (unsigned g = 0; g < 16; g++) {
                        c->sc[g] = b[g] & 15;
                        c->mn[g] = b[g] >> 4;
                }
                c->d[0] = f16_at(b + 80);
                c->m = -f16_at(b + 82);
                break;
        case K_Q3_K:
                for (unsigned g = 0; g < 16; g++)
                        c->sc[g] = (int16_t)((b[96 + g % 8] >> g / 8 * 4 & 15) | (b[104 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
                c->d[0] = f16_at(b + 108);
                break;
        case K_Q4_K:
        case K_Q5_K:
                c->d[0] = f16_at(b);
                c->m = -f16_at(b + 2);
                scales_6bit(b + 4, c);
                break;
        case K_Q6_K:
                for (unsigned g = 0; g < 16; g++)
                        c->sc[g] = (int8_t)b[192 + g];
                c->d[0] = f16_at(b + 208);
                break;
        case K_IQ4_XS:
                for (unsigned j = 0; j < 8; j++) {
                        unsigned lo = b[4 + j / 2] >> j % 2 * 4 & 15, hi = (b[2] | b[3] << 8) >> 2 * j & 3;
                        c->sc[2 * j] = c->sc[2 * j + 1] = (int16_t)((lo | hi << 4) - 32);
                }
                c->d[0] = f16_at(b);
                break;
        case K_TQ1_0:
                flat_scales(c, f16_at(b + 52));
                break;
        case K_TQ2_0:
                flat_scales(c, f16_at(b + 64));
                break;
        case K_IQ1_S:
        case K_IQ1_M:
        case K_IQ2_XXS:
        case K_IQ2_XS:
        case K_IQ2_S:
        case K_IQ3_XXS:
        case K_IQ3_S:
                k_codes_iq_head(t, b, c);
                break;
        case K_F32:
        case K_F16:
        case K_BF16:
        case K_I32:
        case _K_TYPE_MAX:
                break;
        }
}

/* n / 2 bytes: low nibbles are the first half of n codes, high nibbles the second. */
static void nibbles(const uint8_t *b, int8_t *q, unsigned n, int center) {
        for (unsigned i = 0; i < n / 2; i++) {
                q[i] = (int8_t)((b[i] & 15) - center);
                q[i + n / 2] = (int8_t)((b[i] >> 4) - center);
        }
}

static void nibbles_lut(const uint8_t *b, int8_t *q, unsigned n, const int8_t *lut) {
        for (unsigned i = 0; i < n / 2; i++) {
                q[i] = lut[b[i] & 15];
                q[i + n / 2] = lut[b[i] >> 4];
        }
}

static void quants_5(const uint8_t *qh, const uint8_t *qs, int8_t *q, int center) {
        uint32_t high;
        memcpy(&high, qh, 4);
        for (unsigned i = 0; i < 16; i++) {
                q[i] = (int8_t)((int)((qs[i] & 15) | (high >> i & 1) << 4) - center);
                q[i + 16] = (int8_t)((int)(qs[i] >> 4 | (high >> (i + 16) & 1) << 4) - center);
        }
}

/* Two-bit fields of Q2_K, Q3_K, TQ2_0: each 32 bytes hold four runs of 32 codes. */
static void pair_bits(const uint8_t *b, int8_t *q, int center) {
        for (unsigned half = 0; half < 2; half++, b += 32)
                for (unsigned k = 0; k < 4; k++, q += 32)
                        for (unsigned i = 0; i < 32; i++)
                                q[i] = (int8_t)((b[i] >> 2 * k & 3) - center);
}

/* Bit k of 32 bytes belongs to codes 32 k to 32 k + 31. */
static void add_bits(const uint8_t *b, int8_t *q, unsigned bit) {
        for (unsigned k = 0; k < 8; k++, q += 32)
                for (unsigned i = 0; i < 32; i++)
                        q[i] = (int8_t)(q[i] + ((b[i] >> k & 1) << bit));
}

static void quants_q6(const uint8_t *b, int8_t *q) {
        for (unsigned half = 0; half < 2; half++, b += 64, q += 128) {
                const uint8_t *h = b + 128 - half * 32; /* high bits: 32 bytes per half, low: 64 */
                for (unsigned i = 0; i < 32; i++) {
                        q[i] = (int8_t)(((b[i] & 15) | (h[i] & 3) << 4) - 32);
                        q[i + 32] = (int8_t)(((b[i + 32] & 15) | (h[i] >> 2 & 3) << 4) - 32);
                        q[i + 64] = (int8_t)((b[i] >> 4 | (h[i] >> 4 & 3) << 4) - 32);
                        q[i + 96] = (int8_t)((b[i + 32] >> 4 | h[i] >> 6 << 4) - 32);
                }
        }
}

/* Base-3 digits, most significant first, of byte / 256: digit k is the integer part of 3 * (byte * 3^k mod 256) / 256. */
static int8_t trit(uint8_t byte, unsigned k) {
        static const uint8_t pow3[5] = { 1, 3, 9, 27, 81 };
        uint8_t x = (uint8_t)(byte * pow3[k]);
        return (int8_t)((x * 3 >> 8) - 1);
}

static void quants_tq1(const uint8_t *b, int8_t *q) {
        for (unsigned k = 0; k < 5; k++) {
                for (unsigned i = 0; i < 32; i++)
                        q[32 * k + i] = trit(b[i], k);
                for (unsigned i = 0; i < 16; i++)
                        q[160 + 16 * k + i] = trit(b[32 + i], k);
        }
        for (unsigned i = 0; i < 16; i++)
                q[240 + i] = trit(b[48 + i % 4], i / 4);
}

void k_codes_get(enum k_type t, const void *block, struct k_codes *c) {
        const uint8_t *b = block;
        int8_t *q = c->q;

        k_codes_head(t, block, c);
        switch (t) {
        case K_Q4_0:
                nibbles(b + 2, q, 32, 8);
                break;
        case K_Q4_1:
                nibbles(b + 4, q, 32, 0);
                break;
        case K_Q5_0:
                quants_5(b + 2, b + 6, q, 16);
                break;
        case K_Q5_1:
                quants_5(b + 4, b + 8, q, 0);
                break;
        case K_Q8_0:
                memcpy(q, b + 2, 32);
                break;
        case K_IQ4_NL:
                nibbles_lut(b + 2, q, 32, k_lut_iq4);
                break;
        case K_MXFP4:
                nibbles_lut(b + 1, q, 32, k_lut_e2m1);
                break;
        case K_NVFP4:
                for (unsigned g = 0; g < 4; g++)
                        nibbles_lut(b + 4 + 8 * g, q + 16 * g, 16, k_lut_e2m1);
                break;
        case K_Q2_K:
                pair_bits(b + 16, q, 0);
                break;
        case K_Q3_K:
                pair_bits(b + 32, q, 4);
                add_bits(b, q, 2);
                break;
        case K_Q4_K:
                for (unsigned g = 0; g < 4; g++)
                        nibbles(b + 16 + 32 * g, q + 64 * g, 64, 0);
                break;
        case K_Q5_K:
                for (unsigned g = 0; g < 4; g++)
                        nibbles(b + 48 + 32 * g, q + 64 * g, 64, 0);
                add_bits(b + 16, q, 4);
                break;
        case K_Q6_K:
                quants_q6(b, q);
                break;
        case K_IQ4_XS:
                for (unsigned g = 0; g < 8; g++)
                        nibbles_lut(b + 8 + 16 * g, q + 32 * g, 32, k_lut_iq4);
                break;
        case K_TQ1_0:
                quants_tq1(b, q);
                break;
        case K_TQ2_0:
                pair_bits(b, q, 1);
                break;
        case K_IQ1_S:
        case K_IQ1_M:
        case K_IQ2_XXS:
        case K_IQ2_XS:
        case K_IQ2_S:
        case K_IQ3_XXS:
        case K_IQ3_S:
                k_codes_iq(t, b, c);
                break;
        case K_F32:
        case K_F16:
        case K_BF16:
        case K_I32:
        case _K_TYPE_MAX:
                break;
        }
}

void k_codes_values(enum k_type t, const struct k_codes *c, float *dst) {
        const struct k_codes_traits *tr = &traits[t];
        uint32_t n = k_type_block(t);

        for (uint32_t i = 0; i < n; i++) {
                float v;
                if (tr->kind == K_CODES_FLOAT) {
                        v = c->d[i / 16] * (float)c->q[i];
                        if (tr->min)
                                v += c->m;
                } else {
                        v = c->d[0] * (float)c->sc[i / 16] * (float)c->q[i];
                        if (tr->min)
                                v += c->m * (float)c->mn[i / 16];
                }
                dst[i] = v;
        }
}
