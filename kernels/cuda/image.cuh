/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writing activation images four columns a lane; the form and the arithmetic are cuda.cuh's. */

#include "kernels/cuda/cuda.cuh"

#ifdef __CUDACC__
/* Four columns of a D image by each lane of a warp: eight lanes make a block of 32. */
static __device__ __forceinline__ void image_put4(uint8_t *slot, uint32_t kpad, uint32_t c, float4 x) {
        float m = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
        for (int o = 1; o < 8; o *= 2)
                m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        const float d = m / 127.0f, id = m > 0 ? 127.0f / m : 0.0f;
        const float v[4] = {x.x, x.y, x.z, x.w};
        uint32_t pack = 0;
        int s = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
                int q = max(-127, min(127, __float2int_rn(v[k] * id)));
                s += q;
                pack |= (uint32_t)(q & 255) << (8 * k);
        }
        s += __shfl_xor_sync(~0u, s, 1);
        s += __shfl_xor_sync(~0u, s, 2);
        *(uint32_t *)(slot + image_code_at(c)) = pack;
        if ((threadIdx.x & 3) == 0)
                image_s(slot, kpad)[c >> 4] = d * (float)s;
        if ((threadIdx.x & 7) == 0)
                image_d(slot, kpad)[c >> 5] = d;
}
/* The same with two columns a lane, of which 16 make a block; a warp's are 64 in a row. */
static __device__ __forceinline__ void image_put2(uint8_t *slot, uint32_t kpad, uint32_t c, float2 x) {
        float m = fmaxf(fabsf(x.x), fabsf(x.y));
#pragma unroll
        for (int o = 1; o < 16; o *= 2)
                m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        const float d = m / 127.0f, id = m > 0 ? 127.0f / m : 0.0f;
        const int q0 = max(-127, min(127, __float2int_rn(x.x * id))), q1 = max(-127, min(127, __float2int_rn(x.y * id)));
        int s = q0 + q1;
#pragma unroll
        for (int o = 1; o < 8; o *= 2)
                s += __shfl_xor_sync(~0u, s, o);
        *(uint16_t *)(slot + image_code_at(c)) = (uint16_t)((q0 & 255) | (q1 & 255) << 8);
        if ((threadIdx.x & 7) == 0)
                image_s(slot, kpad)[c >> 4] = d * (float)s;
        if ((threadIdx.x & 15) == 0)
                image_d(slot, kpad)[c >> 5] = d;
}
#endif
