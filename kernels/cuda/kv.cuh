/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* KV pages: where a token's row lies, and its elements in each KV type. */

#include "kernels/cuda/cuda.cuh"

/* Row index of position p of sequence s among all tokens of the pages; UINT32_MAX: not resident. */
static __device__ __forceinline__ uint32_t kv_slot(const struct dbatch &b, const struct k_kv &kv, uint32_t s, uint32_t p) {
        uint32_t page = b.table[kv.group].at[s * b.table[kv.group].stride + p / kv.page_tokens];
        return page == UINT32_MAX ? page : page * kv.page_tokens + p % kv.page_tokens;
}

static __device__ __forceinline__ float kv_get(enum k_type type, const uint8_t *row, uint32_t c) {
        switch (type) {
        case K_F32: return ((const float *)row)[c];
        case K_F16: return __half2float(((const __half *)row)[c]);
        case K_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[c] << 16);
        case K_Q8_0: {
                const uint8_t *b = row + (c >> 5) * 34;
                return __half2float(*(const __half *)b) * (float)(int8_t)b[2 + (c & 31)];
        }
        case K_Q4_0: {
                const uint8_t *b = row + (c >> 5) * 18;
                uint32_t q = b[2 + (c & 15)];
                return __half2float(*(const __half *)b) * (float)((int)((c & 16 ? q >> 4 : q) & 15) - 8);
        }
        default: return 0;
        }
}

/*
 * A warp writes 32 consecutive columns (a multiple of 32 first), one per lane;
 * ok: this column exists. Encoding as k_encode().
 */
static __device__ __forceinline__ void kv_put(enum k_type type, uint8_t *row, uint32_t c, float v, bool ok) {
        const uint32_t lane = threadIdx.x & 31;
        switch (type) {
        case K_F32:
                if (ok)
                        ((float *)row)[c] = v;
                break;
        case K_F16:
                if (ok)
                        ((__half *)row)[c] = __float2half_rn(v);
                break;
        case K_BF16:
                if (ok) {
                        uint32_t u = __float_as_uint(v);
                        ((uint16_t *)row)[c] = (u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : (u + 0x7fff + (u >> 16 & 1)) >> 16;
                }
                break;
        case K_Q8_0: {
                float amax = warp_max(ok ? fabsf(v) : 0), inv = amax > 0 ? 127.0f / amax : 0;
                uint8_t *b = row + (c >> 5) * 34;
                if (ok)
                        b[2 + lane] = (uint8_t)(int8_t)max(-127, min(127, __float2int_rn(v * inv)));
                if (ok && lane == 0)
                        *(__half *)b = __float2half_rn(amax / 127.0f);
                break;
        }
        case K_Q4_0: {
                float amax = warp_max(ok ? fabsf(v) : 0);
                uint32_t who = __ffs(__ballot_sync(~0u, ok && fabsf(v) == amax)) - 1;
                float top = __shfl_sync(~0u, v, who & 31), inv = top != 0 ? -8.0f / top : 0;
                int q = max(0, min(15, __float2int_rn(v * inv) + 8));
                int hi = __shfl_down_sync(~0u, q, 16);
                uint8_t *b = row + (c >> 5) * 18;
                if (ok && lane < 16)
                        b[2 + lane] = (uint8_t)(q | hi << 4);
                if (ok && lane == 0)
                        *(__half *)b = __float2half_rn(top / -8.0f);
                break;
        }
        default:
                break;
        }
}
