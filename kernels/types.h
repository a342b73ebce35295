/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tensor types and layouts: names, block shapes, sizes, scalar decoding. */

#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum k_type {
#define KT(name, id, block, bytes) K_##name,
#include "kernels/types.def"
#undef KT
        _K_TYPE_MAX,
};

/*
 * How a matrix lies in memory. FILE is the GGUF row-major block order. The
 * others are versioned repacks made once at fill; values are identical.
 */
enum k_layout {
        K_LAYOUT_FILE,
        K_LAYOUT_CPU,  /* kernels/cpu/repack: rows interleaved for wide SIMD */
        K_LAYOUT_CUDA, /* kernels/cuda: scales and quants in aligned planes */
        _K_LAYOUT_MAX,
};

const char *k_type_name(enum k_type t);                 /* "Q4_K" */
bool k_type_parse(const char *name, enum k_type *ret);  /* case-insensitive */
bool k_type_from_gguf(uint32_t id, enum k_type *ret);   /* false: unknown */
uint32_t k_type_gguf(enum k_type t);
uint32_t k_type_block(enum k_type t);                   /* weights per block */
uint32_t k_type_bytes(enum k_type t);                   /* bytes per block */
/* Bytes of one row of 'cols' weights; false if cols is no multiple of the block or it overflows. */
bool k_type_row_bytes(enum k_type t, uint64_t cols, size_t *ret);

/*
 * Scalar decoding, the reference for every other kernel: n weights (a multiple
 * of the block) from src in FILE layout. Bit-equal to the format's definition.
 */
void k_decode(enum k_type t, const void *src, float *dst, size_t n);
/* Encodes for the types the engine writes itself (F32 F16 BF16 Q8_0 Q4_0); false for others. */
bool k_encode(enum k_type t, const float *src, void *dst, size_t n);

float k_f16_to_f32(uint16_t h);
uint16_t k_f32_to_f16(float f); /* round to nearest even */
float k_bf16_to_f32(uint16_t h);
uint16_t k_f32_to_bf16(float f);

#ifdef __cplusplus
}
#endif
