/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, sizes and scalar conversions of the tensor types, from types.def.
 * Blocks are read in quant/codes.c; what the engine writes itself is encoded
 * here: one scale per 32 weights, chosen so that the largest magnitude is
 * hit exactly.
 */
#include "kernels/types.h"

#include "kernels/quant/codes.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const struct {
        const char *name;
        uint32_t id, block, bytes;
} types[_K_TYPE_MAX] = {
#define KT(name, id, block, bytes) [K_##name] = { #name, id, block, bytes },
#include "kernels/types.def"
#undef KT
};

const char *k_type_name(enum k_type t) {
        return types[t].name;
}

bool k_type_parse(const char *name, enum k_type *ret) {
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                if (!strcasecmp(types[t].name, name)) {
                        *ret = (enum k_type)t;
                        return true;
                }
        return false;
}

bool k_type_from_gguf(uint32_t id, enum k_type *ret) {
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                if (types[t].id == id) {
                        *ret = (enum k_type)t;
                        return true;
                }
        return false;
}

uint32_t k_type_gguf(enum k_type t) {
        return types[t].id;
}

uint32_t k_type_block(enum k_type t) {
        return types[t].block;
}

uint32_t k_type_bytes(enum k_type t) {
        return types[t].bytes;
}

bool k_type_row_bytes(enum k_type t, uint64_t cols, size_t *ret) {
        return cols % types[t].block == 0 && size_mul(cols / types[t].block, types[t].bytes, ret);
}

static float f32_of(uint32_t u) {
        float f;
        memcpy(&f, &u, 4);
        return f;
}

static uint32_t bits_of(float f) {
        uint32_t u;
        memcpy(&u, &f, 4);
        return u;
}

float k_f16_to_f32(uint16_t h) {
        uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, man = h & 0x3ff;
        if (e == 31)
                return f32_of(sign | 0x7f800000 | man << 13);
        if (e == 0) /* subnormal: man * 2^-24 */
                return f32_of(sign | bits_of((float)man * 0x1p-24f));
        return f32_of(sign | (e + 112) << 23 | man << 13);
}

uint16_t k_f32_to_f16(float f) {
        uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff, r;
        if (a > 0x7f800000) /* a NaN stays one, quiet */
                return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
        if (a >= 0x47800000) /* 65536 and above */
                return (uint16_t)(sign | 0x7c00);
        if (a < 0x38800000) {
                /* Below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded to even, in the low bits. */
                return (uint16_t)(sign | (bits_of(f32_of(a) + 0.5f) - 0x3f000000));
        }
        r = a - 0x38000000; /* rebias by 112 */
        return (uint16_t)(sign | (r + 0xfff + (r >> 13 & 1)) >> 13);
}

float k_bf16_to_f32(uint16_t h) {
        return f32_of((uint32_t)h << 16);
}

uint16_t k_f32_to_bf16(float f) {
        uint32_t u = bits_of(f);
        if ((u & 0x7fffffff) > 0x7f800000)
                return (uint16_t)(u >> 16 | 0x40);
        return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void k_decode(enum k_type t, const void *src, float *dst, size_t n) {
        const uint8_t *s = src;
        struct k_codes c;

        if (t == K_F32) {
                memcpy(dst, src, n * 4);
        } else if (t == K_F16 || t == K_BF16) {
                for (size_t i = 0; i < n; i++) {
                        uint16_t h;
                        memcpy(&h, s + 2 * i, 2);
                        dst[i] = t == K_F16 ? k_f16_to_f32(h) : k_bf16_to_f32(h);
                }
        } else if (t == K_I32) {
                for (size_t i = 0; i < n; i++) {
                        int32_t v;
                        memcpy(&v, s + 4 * i, 4);
                        dst[i] = (float)v;
                }
        } else {
                for (size_t i = 0; i < n; i += types[t].block, s += types[t].bytes) {
                        k_codes_get(t, s, &c);
                        k_codes_values(t, &c, dst + i);
                }
        }
}

static int clamp_int(float v, int lo, int hi) {
        return v <= (float)lo ? lo : v >= (float)hi ? hi : (int)lrintf(v);
}

static void encode_q8_0(const float *x, uint8_t *b) {
        float max = 0, inv;
        for (unsigned i = 0; i < 32; i++)
                max = fmaxf(max, fabsf(x[i]));
        uint16_t h = k_f32_to_f16(max / 127.0f);
        memcpy(b, &h, 2);
        inv = max > 0 ? 127.0f / max : 0;
        for (unsigned i = 0; i < 32; i++)
                b[2 + i] = (uint8_t)(int8_t)clamp_int(x[i] * inv, -127, 127);
}

static void encode_q4_0(const float *x, uint8_t *b) {
        float max = 0, inv; /* the value of largest magnitude, with its sign: it becomes code 0, which stands for -8 */
        for (unsigned i = 0; i < 32; i++)
                if (fabsf(x[i]) > fabsf(max))
                        max = x[i];
        uint16_t h = k_f32_to_f16(max / -8.0f);
        memcpy(b, &h, 2);
        inv = max != 0 ? -8.0f / max : 0;
        for (unsigned i = 0; i < 16; i++) {
                int lo = clamp_int(x[i] * inv, -8, 7) + 8, hi = clamp_int(x[i + 16] * inv, -8, 7) + 8;
                b[2 + i] = (uint8_t)(lo | hi << 4);
        }
}

bool k_encode(enum k_type t, const float *src, void *dst, size_t n) {
        uint8_t *d = dst;
        if (t == K_F32) {
                memcpy(dst, src, n * 4);
        } else if (t == K_F16 || t == K_BF16) {
                for (size_t i = 0; i < n; i++) {
                        uint16_t h = t == K_F16 ? k_f32_to_f16(src[i]) : k_f32_to_bf16(src[i]);
                        memcpy(d + 2 * i, &h, 2);
                }
        } else if (t == K_Q8_0 || t == K_Q4_0) {
                for (size_t i = 0; i < n; i += 32, d += types[t].bytes)
                        (t == K_Q8_0 ? encode_q8_0 : encode_q4_0)(src + i, d);
        } else {
                return false;
        }
        return true;
}
