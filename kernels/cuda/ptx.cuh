/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Instructions without a name in CUDA C++, of sm_80 and later: products of tf32 fragments, copies to shared memory on their way. */

#include <stdint.h>

/* Rounded to the 11 bits that a product of tf32 reads; what is no number stays that. */
static __device__ __forceinline__ float to_tf32(float v) {
        uint32_t r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
        return __uint_as_float(r);
}

/*
 * The same in three additions and products (T. J. Dekker's split) where cvt takes four slower instructions; to even in the middle, and
 * from 2^114 on it is no number.
 */
static __device__ __forceinline__ float round_tf32(float v) {
        const float c = __fmul_rn(v, 8193.0f);
        return __fsub_rn(c, __fsub_rn(c, v));
}

/*
 * c[16][8] += a[16][8] b[8][8]. With g = lane / 4, t = lane % 4 a lane has of c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1); of
 * a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); of b: (t, g), (t + 4, g).
 */
static __device__ __forceinline__ void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
              "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/* 16 bytes on their way to shared memory, or zeros; from is not read then. */
static __device__ __forceinline__ void copy16_or_zero(void *to, const void *from, bool on) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(on ? 16 : 0)
                     : "memory");
}
static __device__ __forceinline__ void copy4_or_zero(void *to, const void *from, bool on) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(on ? 4 : 0)
                     : "memory");
}
static __device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All but the last LEFT groups are there. */
template <int LEFT> static __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
