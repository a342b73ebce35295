/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Every quantized format, seen as integers. A block holds integer codes q and
 * either float scales (K_CODES_FLOAT: one per 32 or 16 weights)
 *        value = d[i / 16] * q[i] + m
 * or one float scale over integer scales (K_CODES_INT: 256 weights)
 *        value = (d[0] * sc[i / 16]) * q[i] + m * mn[i / 16]
 * where the m terms exist only for types with minimums. All products are exact
 * in float32 (11 + 7 + 6 bits at most), so this equals the format's definition
 * bit for bit, whatever order that is written in.
 *
 * Scalar decoding, the scalar products, the repack and the wide kernels' panels
 * all read blocks through here: there is one reader of each format.
 */

#include "kernels/types.h"

enum k_codes_kind {
        K_CODES_NONE, /* F32 F16 BF16 I32: no codes */
        K_CODES_FLOAT,
        K_CODES_INT,
};

struct k_codes {
        int8_t q[256];
        int16_t sc[16]; /* per 16 weights */
        int16_t mn[16]; /* per 16 weights */
        float d[4];     /* FLOAT: per 16 weights; INT: d[0] */
        float m;
};

struct k_codes_traits {
        uint8_t kind;   /* enum k_codes_kind */
        bool min;       /* the m terms exist */
        uint8_t center; /* q + center is never negative */
        uint8_t bits;   /* that sum fits this many bits */
        uint8_t group;  /* weights per scale: 16 or 32 */
};

const struct k_codes_traits *k_codes_traits(enum k_type t);

/* One block in FILE layout. k_codes_head() reads all but q. */
void k_codes_get(enum k_type t, const void *block, struct k_codes *c);
void k_codes_head(enum k_type t, const void *block, struct k_codes *c);
/* Values of one block. */
void k_codes_values(enum k_type t, const struct k_codes *c, float *dst);

extern const int8_t k_lut_iq4[16];  /* IQ4_NL, IQ4_XS */
extern const int8_t k_lut_e2m1[16]; /* MXFP4, NVFP4: twice the value */

/* The IQ1, IQ2, IQ3 types; for codes.c. */
void k_codes_iq(enum k_type t, const uint8_t *b, struct k_codes *c);
void k_codes_iq_head(enum k_type t, const uint8_t *b, struct k_codes *c);
