/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random blocks. Codes are uniform bits; scales are a nominal value times 0.75 to
 * 1.25, chosen so that weights spread near 0.02, and minima centre them, so that
 * activations and logits stay finite at full depth.
 */
#include "tests/bench/synth/synth.h"

#include <math.h>
#include <string.h>

/* Numbers and block sizes: the GGUF format's. */
static const struct synth_type types[] = {
        { "f32", 0, 1, 4, 0 },        { "f16", 1, 1, 2, 1 },         { "q4_0", 2, 32, 18, 2 },    { "q8_0", 8, 32, 34, 7 },
        { "q2_k", 10, 256, 84, 10 },  { "q3_k", 11, 256, 110, 12 },  { "q4_k", 12, 256, 144, 14 }, { "q5_k", 13, 256, 176, 16 },
        { "q6_k", 14, 256, 210, 18 }, { "tq1_0", 34, 256, 54, 36 },  { "tq2_0", 35, 256, 66, 37 }, { "mxfp4", 39, 32, 17, 38 },
        { "iq2_xxs", 16, 256, 66, 19 }, { "iq2_xs", 17, 256, 74, 20 }, { "iq2_s", 22, 256, 82, 28 }, { "iq3_xxs", 18, 256, 98, 23 },
        { "iq3_s", 21, 256, 110, 26 }, { "iq1_s", 19, 256, 50, 24 }, { "iq1_m", 29, 256, 56, 31 },
};
enum { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39,
       IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ3_S = 21, IQ2_S = 22, IQ1_M = 29 };

const struct synth_type *synth_type_find(const char *name) {
        for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
                if (strcmp(types[i].name, name) == 0)
                        return &types[i];
        return NULL;
}

/* splitmix64 (public domain, Vigna) */
static uint64_t mix(uint64_t x) {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

/* Eight xorshift64 lanes side by side, for the vectorizer. */
static void random_bytes(uint64_t seed, uint8_t *dst, size_t n) {
        uint64_t s[8], out[8];

        for (unsigned i = 0; i < 8; i++)
                s[i] = mix(seed * 8 + i) | 1;
        while (n) {
                size_t k = n < sizeof(out) ? n : sizeof(out);
                for (unsigned i = 0; i < 8; i++) {
                        s[i] ^= s[i] << 13;
                        s[i] ^= s[i] >> 7;
                        s[i] ^= s[i] << 17;
                        out[i] = s[i] + (s[i] >> 32);
                }
                memcpy(dst, out, k);
                dst += k;
                n -= k;
        }
}

static void put16(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)v;
        p[1] = (uint8_t)(v >> 8);
}

/* Half precision of a normal or subnormal positive number. */
static uint32_t half_bits(float v) {
        int e;
        float f;

        if (v < 6.103515625e-5f)
                return (uint32_t)lrintf(v * 16777216.0f);
        f = frexpf(v, &e);
        return ((uint32_t)(e + 14) << 10) + (uint32_t)lrintf((f * 2 - 1) * 1024);
}

/* nominal * (0.75 .. 1.25) from a random byte */
static void scale(uint8_t *p, float nominal, uint8_t r) {
        put16(p, half_bits(nominal * (0.75f + 0.5f * (float)(r & 63) / 63)));
}

static float plain(enum synth_init init, uint32_t bits) {
        float x = (float)(bits >> 8) * (1.0f / 8388608.0f) - 1; /* -1 .. 1 */

        switch (init) {
        case SYNTH_QUANT: return 0.035f * x;
        case SYNTH_NORM: return 1 + 0.05f * x;
        case SYNTH_BIAS: return 0.02f * x;
        case SYNTH_ROUTER: return 0.035f * x; /* experts are picked about evenly */
        case SYNTH_SINK: return x;
        case SYNTH_CONV: return 0.5f * x;
        case SYNTH_DECAY: return -expf(x);
        case SYNTH_DT: return -2.5f + 1.5f * x;
        case SYNTH_ONE: return 1;
        }
        return 0;
}

static void block(const struct synth_tensor *t, uint8_t *p) {
        uint32_t bits;
        float v;

        switch (t->type->id) {
        case F32:
                memcpy(&bits, p, 4);
                v = plain(t->init, bits);
                memcpy(p, &v, 4);
                break;
        case F16:
                v = 0.035f * ((float)(p[0] | (uint32_t)(p[1] & 127) << 8) / 32768);
                put16(p, half_bits(v) | (uint32_t)(p[1] & 128) << 8);
                break;
        case Q4_0: /* codes average -0.5, so the scale's sign varies */
                bits = p[1] & 128u;
                scale(p, 0.0043f, p[0]);
                p[1] = (uint8_t)(p[1] | bits);
                break;
        case Q8_0: scale(p, 0.00027f, p[0]); break;
        case Q2_K:
                scale(p + 82, 0.0036f, p[80]);
                scale(p + 80, 0.0024f, p[80]);
                break;
        case Q3_K: scale(p + 108, 0.00047f, p[108]); break;
        case Q4_K:
        case Q5_K:
                scale(p + 2, 0.00105f, p[0]);
                scale(p, t->type->id == Q4_K ? 0.00014f : 0.00007f, p[0]);
                break;
        case Q6_K:
                for (unsigned k = 192; k < 208; k++)
                        p[k] = (uint8_t)(16 + (p[k] & 31));
                scale(p + 208, 0.000035f, p[208]);
                break;
        case TQ1_0: scale(p + 52, 0.024f, p[52]); break; /* every byte holds five digits */
        case TQ2_0:
                for (unsigned k = 0; k < 64; k++) /* 3 is no code: make it 2 */
                        p[k] = (uint8_t)(p[k] ^ (p[k] & (p[k] >> 1) & 0x55));
                scale(p + 64, 0.024f, p[64]);
                break;
        case MXFP4: p[0] = (uint8_t)(119 + (p[0] & 1)); break;
        case IQ2_XXS:
        case IQ2_XS:
        case IQ2_S: scale(p, 0.00043f, p[0]); break;
        case IQ3_XXS: scale(p, 0.000144f, p[0]); break;
        case IQ3_S: scale(p, 0.000126f, p[0]); break;
        case IQ1_S: scale(p, 0.0026f, p[0]); break;
        case IQ1_M: { /* a quarter of it in the top bits of each word of scales */
                uint8_t d[2];
                scale(d, 0.0026f, p[0]);
                for (unsigned k = 0; k < 4; k++)
                        p[49 + 2 * k] = (uint8_t)((p[49 + 2 * k] & 15) | (d[k / 2] >> k % 2 * 4 & 15) << 4);
                break;
        }
        default: break;
        }
}

void synth_fill(const struct synth_tensor *t, uint64_t chunk, uint64_t n_blocks, uint8_t *dst, uint64_t seed, uint64_t index) {
        random_bytes(mix(seed ^ mix(index << 32 ^ chunk)), dst, n_blocks * t->type->bytes);
        for (uint64_t i = 0; i < n_blocks; i++)
                block(t, dst + i * t->type->bytes);
}
