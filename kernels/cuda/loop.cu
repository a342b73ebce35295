/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last kernel of a step's graph: it launches the graph again if the next step is posted (loop.h). By itself in this file,
 * which is the only one that needs the device's runtime, and so the only one that is compiled to be linked for the device.
 */
#include "kernels/cuda/loop.cuh"

CUDA_FAMILY(loop)

static __device__ __forceinline__ uint64_t posted(const struct post_head *h) {
        uint64_t v;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(&h->step) : "memory");
        return v;
}

static __device__ bool again(struct post_said *said) {
        const cudaError_t e = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);

        if (e != cudaSuccess)
                *(volatile uint64_t *)&said->refused = (uint64_t)e;
        return e == cudaSuccess;
}

/*
 * A post that came in time, as nearly all do, is found beside the kernel before this one: neither the way over the bus nor the
 * launch then takes time of its own. One that came later is found behind it. step: written by the graph's first kernel,
 * beside which none begins.
 */
static __global__ void __launch_bounds__(1) loop_kernel(const volatile uint64_t *step, const struct post_head *a, const struct post_head *b,
                                                         struct post_said *said) {
        const uint64_t n = *step;
        const struct post_head *next = loop_buffer(n + 1) ? b : a;
        const bool tried = loop_goes_on(posted(next), n);
        bool on = tried && again(said);

        pdl_wait();
        if (!tried && loop_goes_on(posted(next), n))
                on = again(said);
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&said->verdict), "l"(loop_verdict(n, on)) : "memory");
}

int cuda_loop_kernel(struct cuda_dev *d) {
        const struct cuda_post *p = &d->post;

        return launch(d, "the step's end", loop_kernel, 1, 1, 0, (const volatile uint64_t *)(p->count + 1), (const struct post_head *)p->host[0],
                      (const struct post_head *)p->host[1], p->said);
}
