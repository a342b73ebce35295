/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writing activation images four columns a lane; the form and the arithmetic are cuda.cuh's. */

#include "kernels/cuda/mail.cuh"

#ifdef __CUDACC__
/* Four columns of a D image by each lane of a warp: eight lanes make a block of 32. mail_to: also to this box, or NULL. */
static __device__ __forceinline__ void image_put4(uint8_t *slot, uint32_t kpad, uint32_t c, float4 x, uint32_t *mail_to) {
        const quant4 q = quantize4(x);
        if (mail_box(mail_to)) /* first: somebody waits for it */
                mail_put4(mail_to, kpad, c, q);
        image_put4(slot, kpad, c, q);
}
/* The same with two columns a lane, of which 16 make a block; a warp's are 64 in a row. */
static __device__ __forceinline__ void image_put2(uint8_t *slot, uint32_t kpad, uint32_t c, float2 x, uint32_t *mail_to) {
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
        const uint32_t two = (uint32_t)(q0 & 255) | (uint32_t)(q1 & 255) << 8;
        if (mail_box(mail_to)) {
                const uint32_t next = __shfl_down_sync(~0u, two, 1);
                if ((threadIdx.x & 1) == 0)
                        mail_word(mail_to + image_code_at(c) / 4, (two | next << 16) ^ MAIL_CODES);
                if ((threadIdx.x & 7) == 0)
                        mail_float(mail_to + mail_s_at(kpad) + (c >> 4), d * (float)s);
                if ((threadIdx.x & 15) == 0)
                        mail_float(mail_to + mail_d_at(kpad) + (c >> 5), d);
        }
        *(uint16_t *)(slot + image_code_at(c)) = (uint16_t)two;
        if ((threadIdx.x & 7) == 0)
                image_s(slot, kpad)[c >> 4] = d * (float)s;
        if ((threadIdx.x & 15) == 0)
                image_d(slot, kpad)[c >> 5] = d;
}
#endif
