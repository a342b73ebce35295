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

static void grid8(int8_t *q, uint16_t g, unsigned signs) {
        static const int8_t mag[4] = { 8, 25, 43, 0 };
        for (unsigned i = 0; i < 8; i++) {
                int8_t v = mag[g >> 2 * i & 3];
                q[i] = signs >> i & 1 ? (int8_t)-v : v;
        }
}

static void grid4(int8_t *q, uint16_t g, const int8_t mag[8], unsigned signs) {
        for (unsigned i = 0; i < 4; i++) {
                int8_t v = mag[g >> 3 * i & 7];
                q[i] = signs >> i & 1 ? (int8_t)-v : v;
        }
}

/* Ternary values plus or minus an eighth, times eight. */
static void grid1(int8_t *q, uint16_t g, bool minus) {
        for (unsigned i = 0; i < 8; i++)
                q[i] = (int8_t)(((int)(g >> 2 * i & 3) - 1) * 8 + (minus ? -1 : 1));
}

void k_codes_iq_head(enum k_type t, const uint8_t *b, struct k_codes *c) {
        float d = k_f16_to_f32(u16_at(b));
        unsigned g;

        for (g = 0; g < 16; g++) {
                unsigned s;
                if (t == K_IQ2_XXS)
                        s = u32_at(b + 2 + g / 2 * 8 + 4) >> 28;
                else if (t == K_IQ2_XS)
                        s = b[66 + g / 2] >> g % 2 * 4 & 15;
                else if (t == K_IQ2_S)
                        s = b[74 + g / 2] >> g % 2 * 4 & 15;
                else if (t == K_IQ3_XXS)
                        s = u32_at(b + 66 + g / 2 * 4) >> 28;
                else if (t == K_IQ3_S)
                        s = b[106 + g / 4] >> g / 2 % 2 * 4 & 15;
                else if (t == K_IQ1_S)
                        s = u16_at(b + 34 + g / 2 * 2) >> 12 & 7;
                else /* IQ1_M: four 3-bit scales a word; its top nibble is a quarter of d */
                        s = u16_at(b + 48 + g / 4 * 2) >> g % 4 * 3 & 7;
                c->sc[g] = (int16_t)(2 * s + 1);
        }
        if (t == K_IQ1_M) {
                unsigned h = 0;
                for (g = 0; g < 4; g++)
                        h |= (unsigned)(u16_at(b + 48 + 2 * g) >> 12) << 4 * g;
                d = k_f16_to_f32((uint16_t)h);
        }
        if (t == K_IQ3_XXS)
                d *= 0.25f;
        else if (t != K_IQ3_S)
                d *= 0.125f;
        c->d[0] = d;
}

void k_codes_iq(enum k_type t, const uint8_t *b, struct k_codes *c) {
        static const int8_t mag3[8] = { 4, 12, 20, 28, 36, 44, 52, 62 };
        static const int8_t mag3s[8] = { 1, 3, 5, 7, 9, 11, 13, 15 };
        int8_t *q = c->q;

        /* i counts runs of 8 weights */
        for (unsigned i = 0; i < 32; i++, q += 8) {
                if (t == K_IQ2_XXS) {
                        const uint8_t *p = b + 2 + i / 4 * 8;
                        grid8(q, k_grid_iq2_xxs[p[i % 4]], even_signs(u32_at(p + 4) >> 7 * (i % 4) & 127));
                } else if (t == K_IQ2_XS) {
                        unsigned v = u16_at(b + 2 + 2 * i);
                        grid8(q, k_grid_iq2_xs[v & 511], even_signs(v >> 9));
                } else if (t == K_IQ2_S) {
                        unsigned hi = b[66 + i / 4] >> 2 * (i % 4) & 3;
                        grid8(q, k_grid_iq2_s[b[2 + i] | hi << 8], b[34 + i]);
                } else if (t == K_IQ3_XXS) {
                        unsigned s = even_signs(u32_at(b + 66 + i / 4 * 4) >> 7 * (i % 4) & 127);
                        grid4(q, k_grid_iq3_xxs[b[2 + 2 * i]], mag3, s);
                        grid4(q + 4, k_grid_iq3_xxs[b[3 + 2 * i]], mag3, s >> 4);
                } else if (t == K_IQ3_S) {
                        unsigned hi = b[66 + i / 4] >> 2 * (i % 4), s = b[74 + i];
                        grid4(q, k_grid_iq3_s[b[2 + 2 * i] | (hi & 1) << 8], mag3s, s);
                        grid4(q + 4, k_grid_iq3_s[b[3 + 2 * i] | (hi & 2) << 7], mag3s, s >> 4);
                } else if (t == K_IQ1_S) {
                        unsigned h = u16_at(b + 34 + i / 4 * 2);
                        grid1(q, k_grid_iq1_s[b[2 + i] | (h >> 3 * (i % 4) & 7) << 8], h >> 15);
                } else { /* IQ1_M */
                        unsigned h = b[32 + i / 2] >> i % 2 * 4;
                        grid1(q, k_grid_iq1_s[b[i] | (h & 7) << 8], h >> 3 & 1);
                }
        }
}
