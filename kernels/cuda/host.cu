/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host work within a step: copies out, a function of the host, copies back, on
 * a side stream that forks from the step's stream and joins it again. All of it
 * can be part of a step's graph: the function's argument lies in the command,
 * and a graph keeps its commands.
 */
#include <errno.h>
#include <stdio.h>

#include "kernels/cuda/cuda.cuh"

int cuda_op_host_begin(struct k_dev *kd, const struct k_host_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);

        if (a->n_in > K_HOST_MAX || a->n_out > K_HOST_MAX)
                return -EINVAL;
        if (!d->side) {
                CUDA_TRY(d, cudaStreamCreateWithFlags(&d->side, cudaStreamNonBlocking), "side stream");
                CUDA_TRY(d, cudaEventCreateWithFlags(&d->side_fork, cudaEventDisableTiming), "event");
                CUDA_TRY(d, cudaEventCreateWithFlags(&d->side_join, cudaEventDisableTiming), "event");
        }
        struct cmd_host *c = (struct cmd_host *)cuda_cmd_new(d, CMD_HOST, sizeof(*c) + a->arg_bytes);
        if (!c)
                return -EIO;
        for (uint32_t i = 0; i < a->n_in; i++)
                c->in[i] = a->in[i];
        for (uint32_t i = 0; i < a->n_out; i++)
                c->out[i] = a->out[i];
        c->n_in = a->n_in;
        c->n_out = a->n_out;
        c->fn = a->fn;
        c->ud = a->ud;
        c->failed = &d->side_failed;
        memcpy(c + 1, a->arg, a->arg_bytes);
        d->has_host = true;
        return cuda_cmd_done(d);
}

int cuda_op_host_end(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);
        return cuda_cmd_new(d, CMD_HOST_END, 0) ? cuda_cmd_done(d) : -EIO;
}

static void CUDART_CB call(void *p) {
        struct cmd_host *c = (struct cmd_host *)p;
        int r = c->fn(c->ud, c + 1);

        if (r < 0)
                __atomic_store_n(c->failed, r, __ATOMIC_RELEASE);
}

static int copy(struct cuda_dev *d, const struct k_host_copy *c, enum cudaMemcpyKind kind) {
        if (c->rows == 1 || (c->dst_stride == c->bytes && c->src_stride == c->bytes))
                CUDA_TRY(d, cudaMemcpyAsync(c->dst, c->src, c->bytes * c->rows, kind, d->side), "host work");
        else
                CUDA_TRY(d, cudaMemcpy2DAsync(c->dst, c->dst_stride, c->src, c->src_stride, c->bytes, c->rows, kind, d->side), "host work");
        return 0;
}

int cuda_run_host(struct cuda_dev *d, struct cmd_host *c) {
        int r;

        CUDA_TRY(d, cudaEventRecord(d->side_fork, d->stream), "host work");
        CUDA_TRY(d, cudaStreamWaitEvent(d->side, d->side_fork, 0), "host work");
        for (uint32_t i = 0; i < c->n_in; i++)
                if ((r = copy(d, &c->in[i], cudaMemcpyDeviceToHost)) < 0)
                        return r;
        CUDA_TRY(d, cudaLaunchHostFunc(d->side, call, c), "host work");
        for (uint32_t i = 0; i < c->n_out; i++)
                if ((r = copy(d, &c->out[i], cudaMemcpyHostToDevice)) < 0)
                        return r;
        return 0;
}

int cuda_run_host_end(struct cuda_dev *d) {
        CUDA_TRY(d, cudaEventRecord(d->side_join, d->side), "host work");
        CUDA_TRY(d, cudaStreamWaitEvent(d->stream, d->side_join, 0), "host work");
        return 0;
}

/* After a step: did the host's part of it fail? */
int cuda_host_check(struct cuda_dev *d) {
        int r = __atomic_exchange_n(&d->side_failed, 0, __ATOMIC_ACQUIRE);

        if (r == 0)
                return 0;
        snprintf(d->error, sizeof(d->error), "the host's part of a step failed: %s", strerror(-r));
        d->lost = true; /* what follows was computed from nothing */
        return -EIO;
}

void cuda_host_close(struct cuda_dev *d) {
        if (d->side_fork)
                cudaEventDestroy(d->side_fork);
        if (d->side_join)
                cudaEventDestroy(d->side_join);
        if (d->side)
                cudaStreamDestroy(d->side);
}
