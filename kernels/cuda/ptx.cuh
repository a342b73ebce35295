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
/* 16 bytes that others read, too, with the 128 around them to L2; to: a shared address. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/*
 * What a step reads once, its weights, leaves L2 before anything else does: gigabytes of them then go by while parameters, code, norms and rows,
 * which every step reads again, stay there (cuda-one-column.md, "What stays in L2"). The policy is what createpolicy.fractional.L2::evict_first
 * makes of 1.0 (PTX ISA). On the cards where it was measured; elsewhere plain.
 *
 * 'to' is best an address that a lane carries on, not one that is made of the lane's and what all lanes have (a place in a ring): of such, nvcc
 * 13.0's assembler may take the second part and the policy from one register, and the card ends with an illegal instruction.
 * tests/gpu/copies.py looks for that in what was built; the rings of lattice types and experts are made so, and it adds them up first.
 */
#define READ_ONCE 0x12f0000000000000ull
#if __CUDA_ARCH__ == 900
#define COPY_HAS_POLICY true
#define COPY_ONCE(to, bytes) "cp.async.cg.shared.global.L2::cache_hint.L2::128B [" to "], [%1], " bytes ", %3;"
#else
#define COPY_HAS_POLICY false
#define COPY_ONCE(to, bytes) "cp.async.cg.shared.global.L2::128B [" to "], [%1], " bytes ";"
#endif
/* 16 bytes, to a shared address OFF bytes behind 'to'. */
template <int OFF> static __device__ __forceinline__ void copy16_once(uint32_t to, const void *from) {
        asm volatile(COPY_ONCE("%0 + %2", "16") ::"r"(to), "l"(from), "n"(OFF), "l"(READ_ONCE));
}
/* The first n of them, then zeros. */
static __device__ __forceinline__ void copy16_once(uint32_t to, const void *from, uint32_t n) {
        asm volatile(COPY_ONCE("%0", "16, %2") ::"r"(to), "l"(from), "r"(n), "l"(READ_ONCE) : "memory");
}
/* 16 bytes to registers, past L1. */
static __device__ __forceinline__ uint4 load16_once(const void *from) {
        uint4 v;
#if __CUDA_ARCH__ == 900
        asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(READ_ONCE));
#else
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
#endif
        return v;
}
static __device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All but the last LEFT groups are there. */
template <int LEFT> static __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
