/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Mail: an activation image that a kernel leaves for the next one word by word, so that the next one need not wait until the
 * whole grid has ended and its stores are flushed. In a captured step of one row, who makes the image stores it a second time, in
 * a box, whose words are all ones until they are stored; who reads it asks again until no word is. A word says itself that it is
 * there: no fence, no counter.
 *
 * A box has the form of a D slot. Floats are as they are there (a NaN of all ones would be stored as another one; arithmetic makes
 * none such). Of each code all bits but the highest are turned: a byte of ones would be a code of -128, which there is none of.
 * The four codes of a word are stored at once.
 *
 * Why it is safe:
 * - Nobody waits for a block that has no place. All kernels of the step say pdl_next(), so a block of kernel n + 1 begins when
 *   all blocks of kernel n have a place or are done, and the same held when those of n began.
 * - A box is filled once a step and emptied by the graph's first kernel, which has full edges on both sides (graph.cu): no
 *   reader of the step before is left, none of this one has begun.
 * - Ordinary memory is used as ever. Warps of a kernel that reads mail may go without pdl_wait() if they read nothing else of the
 *   step and write no memory; what their block reads or writes beyond is some other warp's, which has pdl_wait(). So all older
 *   kernels are done when a block is, and completion stays transitive.
 * - A word that never comes ends the kernel by a trap after many seconds of asking: the device is lost then, as by any fault,
 *   and the crumb says near which kernel.
 *
 * Without programmatic launches no kernel begins before the one before it has ended, and there is no mail.
 */

#include "kernels/cuda/cuda.cuh"

enum : uint32_t {
        MAIL_NONE = 0xffffffff,
        MAIL_CODES = 0x7f7f7f7f, /* codes are stored xor this */
        MAIL_NAP = 500,          /* ns between two looks at the same words */
        MAIL_TRIES = 1 << 24,
};

/* In words of a box: where scales and sums begin, and its end. */
static inline __host__ __device__ uint32_t mail_d_at(uint32_t kpad) { return kpad / 4; }
static inline __host__ __device__ uint32_t mail_s_at(uint32_t kpad) { return kpad / 4 + kpad / 32; }
static inline uint32_t mail_image_words(uint32_t kpad) { return mail_s_at(kpad) + kpad / 16; }

#ifdef __CUDACC__
/* A kernel's box; none where there are no programmatic launches, and then no code for it. */
template <class T> static __device__ __forceinline__ T *mail_box(T *box) {
#if __CUDA_ARCH__ >= 900
        return box;
#else
        return NULL;
#endif
}
/* Past L1, whatever was there before. */
static __device__ __forceinline__ uint32_t mail_look(const uint32_t *p) {
        uint32_t v;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
        return v;
}
static __device__ __forceinline__ uint4 mail_look4(const void *p) {
        uint4 v;
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
        return v;
}
static __device__ __forceinline__ bool mail_there(uint4 v) { return max(max(v.x, v.y), max(v.z, v.w)) != MAIL_NONE; }
static __device__ __forceinline__ void mail_word(uint32_t *to, uint32_t v) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
static __device__ __forceinline__ void mail_float(uint32_t *to, float v) {
        const uint32_t bits = __float_as_uint(v);
        mail_word(to, bits == MAIL_NONE ? 0x7fffffff : bits);
}
/* Before the same words are looked at again. */
static __device__ __forceinline__ void mail_again(uint32_t &tries) {
        __nanosleep(MAIL_NAP);
        if (++tries == MAIL_TRIES)
                __trap();
}
/* A whole warp, until this word is there. */
static __device__ __forceinline__ void mail_wait(const uint32_t *p, uint32_t &tries) {
        while (mail_look(p) == MAIL_NONE)
                mail_again(tries);
        __syncwarp();
}

/* A warp, one column of block kb of an image by each lane: q as image_quant32() has it. */
static __device__ __forceinline__ void mail_image32(uint32_t *to, uint32_t kpad, uint32_t kb, const image_quant &q) {
        const uint32_t lane = threadIdx.x & 31;
        uint32_t w = (uint32_t)q.q & 255;

        w |= __shfl_down_sync(~0u, w, 1) << 8;
        w |= __shfl_down_sync(~0u, w, 2) << 16;
        if ((lane & 3) == 0)
                mail_word(to + image_code_at(kb * 32 + lane) / 4, w ^ MAIL_CODES);
        if ((lane & 15) == 0)
                mail_float(to + mail_s_at(kpad) + kb * 2 + (lane >> 4), q.d * (float)q.s);
        if (lane == 0)
                mail_float(to + mail_d_at(kpad) + kb, q.d);
}
/* Four columns from c on by each lane, as image_put4() has them. */
static __device__ __forceinline__ void mail_put4(uint32_t *to, uint32_t kpad, uint32_t c, const quant4 &q) {
        mail_word(to + image_code_at(c) / 4, q.codes ^ MAIL_CODES);
        if ((c & 15) == 0)
                mail_float(to + mail_s_at(kpad) + (c >> 4), q.d * (float)q.sum);
        if ((c & 31) == 0)
                mail_float(to + mail_d_at(kpad) + (c >> 5), q.d);
}
/* A block's row, as image_row4() has it. */
template <int V> static __device__ __forceinline__ void mail_row4(uint32_t *to, uint32_t kpad, const float4 (&v)[V]) {
#pragma unroll
        for (int i = 0; i < V; i++) {
                const uint32_t c = (i * blockDim.x + threadIdx.x) * 4;
                const quant4 q = quantize4(v[i]);
                if (c < kpad)
                        mail_put4(to, kpad, c, q);
        }
}
#endif
