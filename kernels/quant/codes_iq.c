/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lattice formats. A code indexes a table of 4 or 8 magnitudes; signs come
 * apart, either 8 bits or 7 with the eighth making their parity even. Scales
 * are odd integers (2 s + 1) times d and a power of two, which goes into d.
 */
#include "kernels/quant/codes.h"
#include "kernels/quant/grids.h"

#include <string.h>

static uint16_t u16_at(const uint8_t *p) {
        uint16_t v;
        memcpy(&v, p, 2);
        return v;
}

static uint32_t u32_at(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return v;
}

static unsigned even_signs(unsigned s7) {
        return s7 | (unsigned)__builtin_parity(s7) << 7;
}

/*
 * Eight codes at a time, as the bytes of a word. No byte's arithmetic below
 * carries into the next: magnitudes stay under 128, and -v is ~v + 1 with v > 0.
 */
#define BYTES(b) ((b) * UINT64_C(0x0101010101010101))

/* Eight 2-bit fields to bytes. */
static uint64_t spread2(uint64_t g) {
        g = (g | g << 24) & UINT64_C(0x000000ff000000ff);
        g = (g | g << 12) & UINT64_C(0x000f000f000f000f);
        return (g | g << 6) & BYTES(3);
}

/* Four 3-bit fields to bytes. */
static uint64_t spread3(uint64_t g) {
        return (g & 7) | (g & 0x38) << 5 | (g & 0x1c0) << 10 | (g & 0xe00) << 15;
}

static void put_signed(int8_t *q, uint64_t v, unsigned signs) {
        uint64_t m = BYTES(signs) & UINT64_C(0x8040201008040201); /* bit i in byte i */
        m = (m + BYTES(0x7f)) | m;                                /* to the top bit of its byte */
        m = (m >> 7 & BYTES(1)) * 0xff;
        v = (v ^ m) + (m & BYTES(1));
        memcpy(q, &v, 8);
}

/* Magnitudes 8, 25, 43. */
static void grid8(int8_t *q, uint16_t g, unsigned signs) {
        uint64_t x = spread2(g);
        put_signed(q, BYTES(8) + x * 17 + (x >> 1 & BYTES(1)), signs);
}

/* Two entries of four magnitudes each: 4 + 8 i, but 62 for the last. */
static void grid4(int8_t *q, uint16_t g0, uint16_t g1, unsigned signs) {
        uint64_t x = spread3(g0) | spread3(g1) << 32;
        put_signed(q, BYTES(4) + x * 8 + (x & x >> 1 & x >> 2 & BYTES(1)) * 2, signs);
}

/* Odd magnitudes 2 i + 1. */
static void grid4s(int8_t *q, uint16_t g0, uint16_t g1, unsigned signs) {
        uint64_t x = spread3(g0) | spread3(g1) << 32;
        put_signed(q, BYTES(1) + x * 2, signs);
}

/* Ternary values plus or minus an eighth, times eight. */
static void grid1(int8_t *q, uint16_t g, bool minus) {
        uint64_t v = (spread2(g) * 8 + BYTES((uint64_t)(minus ? 0x80 - 9 : 0x80 - 7))) ^ BYTES(0x80);
        memcpy(q, &v, 8);
}

/* Nibbles of n bytes, each the scale of 'each' groups of 16. */
static void nibble_scales(const uint8_t *b, int16_t sc[16], unsigned each) {
        for (unsigned g = 0; g < 16; g++)
                sc[g] = (int16_t)(2 * (b[g / each / 2] >> g / each % 2 * 4 & 15) + 1);
}

void k_codes_iq_head(enum k_type t, const uint8_t *b, struct k_codes *c) {
        float d = k_f16_to_f32(u16_at(b));
        unsigned h = 0;

        if (t == K_IQ2_XXS || t == K_IQ3_XXS) {
                const uint8_t *top = t == K_IQ2_XXS ? b + 2 + 7 : b + 66 + 3; /* top nibble of each word of signs */
                unsigned step = t == K_IQ2_XXS ? 8 : 4;
                for (unsigned g = 0; g < 8; g++)
                        c->sc[2 * g] = c->sc[2 * g + 1] = (int16_t)(2 * (top[step * g] >> 4) + 1);
        } else if (t == K_IQ2_XS) {
                nibble_scales(b + 66, c->sc, 1);
        } else if (t == K_IQ2_S) {
                nibble_scales(b + 74, c->sc, 1);
        } else if (t == K_IQ3_S) {
                nibble_scales(b + 106, c->sc, 2);
        } else if (t == K_IQ1_S) {
                for (unsigned g = 0; g < 8; g++)
                        c->sc[2 * g] = c->sc[2 * g + 1] = (int16_t)(2 * (u16_at(b + 34 + 2 * g) >> 12 & 7) + 1);
        } else { /* IQ1_M: four 3-bit scales a word; its top nibble is a quarter of d */
                for (unsigned g = 0; g < 16; g++)
                        c->sc[g] = (int16_t)(2 * (u16_at(b + 48 + g / 4 * 2) >> g % 4 * 3 & 7) + 1);
                for (unsigned g = 0; g < 4; g++)
                        h |= (unsigned)(u16_at(b + 48 + 2 * g) >> 12) << 4 * g;
                d = k_f16_to_f32((uint16_t)h);
        }
        if (t == K_IQ3_XXS)
                d *= 0.25f;
        else if (t != K_IQ3_S)
                d *= 0.125f;
        c->d[0] = d;
}

/* i counts runs of 8 weights. */
void k_codes_iq(enum k_type t, const uint8_t *b, struct k_codes *c) {
        int8_t *q = c->q;

        if (t == K_IQ2_XXS)
                for (unsigned i = 0; i < 32; i++) {
                        const uint8_t *p = b + 2 + i / 4 * 8;
                        grid8(q + 8 * i, k_grid_iq2_xxs[p[i % 4]], even_signs(u32_at(p + 4) >> 7 * (i % 4) & 127));
                }
        else if (t == K_IQ2_XS)
                for (unsigned i = 0; i < 32; i++) {
                        unsigned v = u16_at(b + 2 + 2 * i);
                        grid8(q + 8 * i, k_grid_iq2_xs[v & 511], even_signs(v >> 9));
                }
        else if (t == K_IQ2_S)
                for (unsigned i = 0; i < 32; i++) {
                        unsigned hi = b[66 + i / 4] >> 2 * (i % 4) & 3;
                        grid8(q + 8 * i, k_grid_iq2_s[b[2 + i] | hi << 8], b[34 + i]);
                }
        else if (t == K_IQ3_XXS)
                for (unsigned i = 0; i < 32; i++) {
                        unsigned s = even_signs(u32_at(b + 66 + i / 4 * 4) >> 7 * (i % 4) & 127);
                        grid4(q + 8 * i, k_grid_iq3_xxs[b[2 + 2 * i]], k_grid_iq3_xxs[b[3 + 2 * i]], s);
                }
        else if (t == K_IQ3_S)
                for (unsigned i = 0; i < 32; i++) {
                        unsigned hi = b[66 + i / 4] >> 2 * (i % 4);
                        grid4s(q + 8 * i, k_grid_iq3_s[b[2 + 2 * i] | (hi & 1) << 8],
                               k_grid_iq3_s[b[3 + 2 * i] | (hi & 2) << 7], b[74 + i]);
                }
        else if (t == K_IQ1_S)
                for (unsigned i = 0; i < 32; i++) {
                        unsigned h = u16_at(b + 34 + i / 4 * 2);
                        grid1(q + 8 * i, k_grid_iq1_s[b[2 + i] | (h >> 3 * (i % 4) & 7) << 8], h >> 15);
                }
        else /* IQ1_M */
                for (unsigned i = 0; i < 32; i++) {
                        unsigned h = b[32 + i / 2] >> i % 2 * 4;
                        grid1(q + 8 * i, k_grid_iq1_s[b[i] | (h & 7) << 8], h >> 3 & 1);
                }
}
