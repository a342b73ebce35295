/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that fail, for tests of what happens then: linked into the tests' worker only. */
#include "kernels/cuda/cuda.cuh"
#include "tests/fault/worker_fault.h"

CUDA_FAMILY(fault)
int cuda_crumbs_fault(struct cuda_dev *);

static __device__ __forceinline__ uint64_t clock_ns(void) {
        uint64_t ns;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
        return ns;
}

__global__ void address_kernel(volatile uint32_t *wild) {
        pdl_wait();
        *wild = 1;
}

__global__ void trap_kernel(void) {
        pdl_wait();
        __trap();
}

/* Bounded, so that a device is free again whatever becomes of its process. */
__global__ void endless_kernel(uint64_t ns) {
        pdl_wait();
        for (const uint64_t t0 = clock_ns(); clock_ns() - t0 < ns;)
                ;
}

extern "C" int fault_device_open(struct k_dev *kd) { return cuda_crumbs_fault(cuda_dev_of(kd)); }

extern "C" int fault_device_launch(struct k_dev *kd, enum fault fault, uint32_t endless_s) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_graph_settle(d); /* it comes next */

        if (r < 0)
                return r;
        switch (fault) {
        case FAULT_ADDRESS: return launch(d, "a wild address", address_kernel, 1, 1, 0, (volatile uint32_t *)4096);
        case FAULT_TRAP: return launch(d, "a trap", trap_kernel, 1, 1, 0);
        case FAULT_ENDLESS: return launch(d, "an endless kernel", endless_kernel, 1, 1, 0, endless_s * (uint64_t)1000000000);
        }
        return -1;
}
