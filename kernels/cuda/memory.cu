/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The card's memory: an account of what this process holds against its budget,
 * and what is filled while steps run (pin, load).
 *
 * Account: 'fixed' is what the context and the backend's tables took, measured
 * when the device was opened; then every mem_alloc(), the scratch and the ring.
 * Allocations are listed so that freeing one takes off what it counted.
 *
 * pin, unpin, load and load_wait belong to whichever thread loads models; they
 * use their own stream and error text and touch nothing of a step. A copy is
 * cut into pieces and few are under way at once, so that a step's own small
 * copies never stand behind more than a fraction of a millisecond of them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.cuh"

enum : size_t { LOAD_PIECE = 16 << 20 };

static size_t held(const struct cuda_dev *d) { return d->mem.fixed + d->mem.used + cuda_scratch_bytes(d) + d->ring.bytes + d->graph_bytes; }

void cuda_memory_measure(struct cuda_dev *d, uint64_t nvml_before, uint64_t nvml_after) {
        if (nvml_after > nvml_before)
                d->mem.fixed = nvml_after - nvml_before;
}

int cuda_mem_info(struct k_dev *kd, struct k_mem_info *ret) {
        struct cuda_dev *d = cuda_dev_of(kd);
        size_t free_now, total, ours = held(d);

        CUDA_TRY(d, cudaMemGetInfo(&free_now, &total), "memory information");
        ret->total = total;
        ret->budget = d->mem.budget ? MIN(d->mem.budget, total) : total;
        ret->ours = ours;
        ret->fixed = d->mem.fixed;
        ret->others = total - free_now > ours ? total - free_now - ours : 0;
        ret->free_now = MIN(free_now, ret->budget > ours ? ret->budget - ours : 0);
        return 0;
}

void *cuda_mem_alloc(struct k_dev *kd, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cuda_block *b = (struct cuda_block *)malloc(sizeof(*b));
        cudaError_t e;

        if (!b)
                return NULL;
        bytes = MAX(bytes, (size_t)1);
        pthread_mutex_lock(&d->mem.lock);
        if (d->mem.budget && (held(d) > d->mem.budget || bytes > d->mem.budget - held(d))) {
                snprintf(d->mem.error, sizeof(d->mem.error), "%zu bytes are over the budget of %zu, of which %zu are held", bytes,
                         d->mem.budget, held(d));
                e = cudaErrorMemoryAllocation;
        } else {
                cudaSetDevice(d->ordinal); /* any thread may come */
                cuda_graph_hold(d);
                e = cudaMalloc(&b->p, bytes);
                cuda_graph_unhold(d);
                if (e != cudaSuccess) {
                        cudaGetLastError(); /* out of memory is not sticky */
                        snprintf(d->mem.error, sizeof(d->mem.error), "%zu bytes: %s", bytes, cudaGetErrorString(e));
                }
        }
        if (e == cudaSuccess) {
                b->bytes = bytes;
                b->next = d->mem.blocks;
                d->mem.blocks = b;
                d->mem.used += bytes;
        }
        pthread_mutex_unlock(&d->mem.lock);
        if (e == cudaSuccess)
                return b->p;
        free(b);
        return NULL;
}

void cuda_mem_free(struct k_dev *kd, void *p) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cuda_block **at, *b;

        if (!p)
                return;
        /*
         * Nothing that is recorded reads it: memory is freed between batches, or by a load that failed, whose memory no step has
         * seen. That one comes from another thread than the steps': what they record is not to be touched.
         */
        cudaSetDevice(d->ordinal);
        cuda_graph_hold(d);
        cudaStreamSynchronize(d->stream);
        pthread_mutex_lock(&d->mem.lock);
        for (at = &d->mem.blocks; (b = *at) != NULL; at = &b->next)
                if (b->p == p) {
                        *at = b->next;
                        d->mem.used -= b->bytes;
                        free(b);
                        break;
                }
        pthread_mutex_unlock(&d->mem.lock);
        cudaFree(p);
        cuda_graph_unhold(d);
}

void cuda_memory_close(struct cuda_dev *d) {
        while (d->mem.blocks) {
                struct cuda_block *b = d->mem.blocks;
                d->mem.blocks = b->next;
                cudaFree(b->p);
                free(b);
        }
        for (int i = 0; i < CUDA_LOADS; i++)
                if (d->mem.done[i])
                        cudaEventDestroy(d->mem.done[i]);
        if (d->mem.stream)
                cudaStreamDestroy(d->mem.stream);
        pthread_mutex_destroy(&d->mem.lock);
}

int cuda_memory_init(struct cuda_dev *d) {
        int least = 0, greatest = 0;

        pthread_mutex_init(&d->mem.lock, NULL);
        cudaDeviceGetStreamPriorityRange(&least, &greatest);
        CUDA_TRY(d, cudaStreamCreateWithPriority(&d->mem.stream, cudaStreamNonBlocking, least), "loading stream");
        for (int i = 0; i < CUDA_LOADS; i++)
                CUDA_TRY(d, cudaEventCreateWithFlags(&d->mem.done[i], cudaEventDisableTiming | cudaEventBlockingSync), "event");
        return 0;
}

/* ---- beside the steps --------------------------------------------------------- */

static int load_fail(struct cuda_dev *d, cudaError_t e, const char *what) {
        cudaGetLastError();
        snprintf(d->mem.error, sizeof(d->mem.error), "%s: %s (%s)", what, cudaGetErrorName(e), cudaGetErrorString(e));
        return e == cudaErrorMemoryAllocation ? -ENOMEM : e == cudaErrorNotSupported ? -EOPNOTSUPP : -EIO;
}
#define LOAD_TRY(d, expr, what)                               \
        do {                                                  \
                cudaError_t _e = (expr);                      \
                if (_e != cudaSuccess)                        \
                        return load_fail((d), _e, (what));    \
        } while (0)

int cuda_pin(struct k_dev *kd, const void *host, size_t bytes, const void **ret_dev) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int same = 0, ro = 0;
        void *dev;

        LOAD_TRY(d, cudaSetDevice(d->ordinal), "pinning memory");
        cudaDeviceGetAttribute(&ro, cudaDevAttrHostRegisterReadOnlySupported, d->ordinal);
        cuda_graph_hold(d);
        const cudaError_t e = cudaHostRegister((void *)host, bytes, cudaHostRegisterMapped | (ro ? cudaHostRegisterReadOnly : 0));
        cuda_graph_unhold(d);
        LOAD_TRY(d, e, "pinning memory");
        if (cudaHostGetDevicePointer(&dev, (void *)host, 0) != cudaSuccess) {
                cudaGetLastError();
                dev = NULL;
        }
        /* Pieces must lie side by side for the device too; where its addresses differ from ours nobody promises that. */
        cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, d->ordinal);
        *ret_dev = same && dev == host ? dev : NULL;
        return 0;
}

void cuda_unpin(struct k_dev *kd, const void *host) {
        struct cuda_dev *d = cuda_dev_of(kd);

        cudaSetDevice(d->ordinal);
        cuda_graph_hold(d);
        if (cudaHostUnregister((void *)host) != cudaSuccess)
                cudaGetLastError();
        cuda_graph_unhold(d);
}

int cuda_load(struct k_dev *kd, void *dst, const void *src, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);

        LOAD_TRY(d, cudaSetDevice(d->ordinal), "upload");
        for (size_t at = 0; at < bytes;) {
                size_t n = MIN(bytes - at, (size_t)LOAD_PIECE);
                uint32_t turn = d->mem.turn++ % CUDA_LOADS;

                LOAD_TRY(d, cudaEventSynchronize(d->mem.done[turn]), "upload");
                LOAD_TRY(d, cudaMemcpyAsync((uint8_t *)dst + at, (const uint8_t *)src + at, n, cudaMemcpyHostToDevice, d->mem.stream), "upload");
                LOAD_TRY(d, cudaEventRecord(d->mem.done[turn], d->mem.stream), "upload");
                at += n;
        }
        return 0;
}

int cuda_load_wait(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);

        LOAD_TRY(d, cudaSetDevice(d->ordinal), "upload");
        LOAD_TRY(d, cudaStreamSynchronize(d->mem.stream), "upload");
        return 0;
}

const char *cuda_load_error(struct k_dev *kd) { return cuda_dev_of(kd)->mem.error; }

void *cuda_host_alloc(struct k_dev *kd, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        void *p = NULL;

        cudaSetDevice(d->ordinal);
        cuda_graph_hold(d);
        if (cudaHostAlloc(&p, MAX(bytes, (size_t)1), cudaHostAllocDefault) != cudaSuccess) {
                cudaGetLastError();
                p = NULL;
        }
        cuda_graph_unhold(d);
        return p;
}

void cuda_host_free(struct k_dev *kd, void *p) {
        if (!p)
                return;
        cuda_graph_hold(cuda_dev_of(kd));
        cudaFreeHost(p);
        cuda_graph_unhold(cuda_dev_of(kd));
}
