/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML, opened for a moment: what the card's memory holds in all, which the
 * runtime can't say before it has a context. The library comes with the driver
 * and is looked for at run time; without it the context's own size isn't known
 * and is said to be so.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/mixed.h"

/* As nvml.h declares them (NVML API reference, nvmlMemory_t). */
struct nvml_memory { unsigned long long total, free, used; };

bool cuda_nvml_used(int ordinal, uint64_t *ret) {
        char bus[32];
        void *lib, *dev = NULL;
        bool ok = false;

        if (cudaDeviceGetPCIBusId(bus, sizeof(bus), ordinal) != cudaSuccess) {
                cudaGetLastError();
                return false;
        }
        lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!lib)
                return false;
        auto init = (int (*)(void))dlsym(lib, "nvmlInit_v2");
        auto by_bus = (int (*)(const char *, void **))dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
        auto info = (int (*)(void *, struct nvml_memory *))dlsym(lib, "nvmlDeviceGetMemoryInfo");
        auto done = (int (*)(void))dlsym(lib, "nvmlShutdown");
        if (init && by_bus && info && done && init() == 0) {
                struct nvml_memory m = {};
                ok = by_bus(bus, &dev) == 0 && info(dev, &m) == 0;
                *ret = m.used;
                done();
        }
        dlclose(lib);
        return ok;
}

extern "C" double k_cuda_memory_rate(int ordinal) {
        int khz = 0, bits = 0;

        if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess ||
            cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal) != cudaSuccess) {
                cudaGetLastError();
                return 0;
        }
        return 2e3 * khz * (bits / 8); /* two transfers a clock */
}
