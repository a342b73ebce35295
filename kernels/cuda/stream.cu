/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: matrices in host memory on their way to prompt rows. The commands
 * of a step are known before the first of them runs, so the copies run ahead of
 * the products on a stream of their own, as far as the ring has room: while one
 * layer is computed the next one comes over the bus.
 *
 * A matrix's life here: issued (space taken, copy begun) -> entered (the step's
 * stream waits for the copy; products read it) -> left (an event behind the
 * products; who overwrites the space waits for it). Issue, entry and exit are in
 * the order of the commands, so two queues of events suffice. A matrix larger
 * than the ring, or than what a command's other matrices leave of it, is read in
 * place.
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

static size_t weight_bytes(const struct k_weight *w) {
        return w->n_expert > 1 ? w->n_expert * w->expert_stride : cuda_layout_bytes(w->type, w->layout, w->rows, w->cols);
}

static bool passes(const struct k_weight *w) { return w->data && w->place != K_PLACE_DEVICE; }

/* The command's matrices that pass through the ring, in their order. */
static uint32_t wanted(const struct cmd_head *h, const struct k_weight *ret[K_LINEAR_MAX]) {
        const void *p = h + 1;
        uint32_t n = 0;

        if (h->kind == CMD_LINEAR) {
                const struct cmd_linear *c = (const struct cmd_linear *)p;
                for (uint32_t i = 0; c->n_rows > c->n_d && i < c->n_out; i++)
                        if (passes(&c->out[i].w))
                                ret[n++] = &c->out[i].w;
        } else if (h->kind == CMD_MOE) {
                const struct cmd_moe *c = (const struct cmd_moe *)p;
                const struct k_weight *w[3] = {&c->gate, &c->up, &c->down};
                for (int i = 0; c->a.n > c->a.n_d && i < 3; i++)
                        if (passes(w[i]))
                                ret[n++] = w[i];
        }
        return n;
}

bool cuda_ring_wanted(const struct cuda_dev *d, const struct cmd_head *h) {
        const struct k_weight *w[K_LINEAR_MAX];
        return d->ring.bytes && wanted(h, w) > 0;
}

void cuda_ring_begin(struct cuda_dev *d) {
        struct cuda_ring *g = &d->ring;
        g->scan = 0;
        g->scan_weight = 0;
        g->first = g->entered = g->next; /* nothing is issued and not yet entered */
}

static bool overlap(const struct ring_item *a, size_t at, size_t bytes) { return a->at < at + bytes && at < a->at + a->bytes; }

/* Begins copies while there is room. */
static int issue(struct cuda_dev *d) {
        struct cuda_ring *g = &d->ring;
        const struct k_weight *w[K_LINEAR_MAX];

        while (g->scan < d->arena_used) {
                const struct cmd_head *h = (const struct cmd_head *)(d->arena + g->scan);
                uint32_t n = wanted(h, w);

                for (; g->scan_weight < n; g->scan_weight++) {
                        const struct k_weight *k = w[g->scan_weight];
                        size_t bytes = weight_bytes(k), at = g->at, step;
                        struct ring_item *item = &g->item[g->next % CUDA_RING_ITEMS];

                        if (g->next - g->first == CUDA_RING_ITEMS / 2)
                                return 0;
                        item->direct = bytes > g->bytes;
                        item->bytes = item->direct ? 0 : bytes;
                        if (item->direct) {
                                item->at = 0;
                                g->next++;
                                continue;
                        }
                        if (at + bytes > g->bytes)
                                at = 0;
                        for (uint64_t i = g->first; i < g->next; i++)
                                if (overlap(&g->item[i % CUDA_RING_ITEMS], at, bytes))
                                        return 0;
                        /* Of those that left, the latest one that lies here is behind all others; the oldest still listed will do. */
                        for (uint64_t i = g->first, back = 1; i > 0; back++)
                                if (overlap(&g->item[--i % CUDA_RING_ITEMS], at, bytes) || back == CUDA_RING_ITEMS / 2) {
                                        CUDA_TRY(d, cudaStreamWaitEvent(g->stream, g->out[i % CUDA_RING_ITEMS], 0), "weights on their way");
                                        break;
                                }
                        for (size_t done = 0; done < bytes; done += step) {
                                const uint8_t *src = (const uint8_t *)k->data + done;
                                step = MIN(bytes - done, K_PIN_PIECE - ((uintptr_t)src & (K_PIN_PIECE - 1)));
                                CUDA_TRY(d, cudaMemcpyAsync(g->mem + at + done, src, step, cudaMemcpyHostToDevice, g->stream), "weights on their way");
                        }
                        CUDA_TRY(d, cudaEventRecord(g->in[g->next % CUDA_RING_ITEMS], g->stream), "weights on their way");
                        item->at = at;
                        g->at = (at + bytes + 255) & ~(size_t)255;
                        g->next++;
                }
                g->scan_weight = 0;
                g->scan += h->bytes;
        }
        return 0;
}

int cuda_ring_enter(struct cuda_dev *d, struct k_weight *w) {
        struct cuda_ring *g = &d->ring;
        int r;

        if (!passes(w))
                return 0;
        r = issue(d);
        if (r < 0)
                return r;
        struct ring_item *item = &g->item[g->entered % CUDA_RING_ITEMS];
        if (g->entered == g->next) { /* the other matrices of this command leave no room for it: read in place */
                item->direct = true;
                item->at = item->bytes = 0;
                g->next++;
                g->scan_weight++;
        }
        if (!item->direct) {
                CUDA_TRY(d, cudaStreamWaitEvent(d->stream, g->in[g->entered % CUDA_RING_ITEMS], 0), "weights on their way");
                w->data = g->mem + item->at;
        }
        g->entered++;
        return 0;
}

/* All that entered has been read by what was launched since. */
int cuda_ring_leave(struct cuda_dev *d) {
        struct cuda_ring *g = &d->ring;

        for (; g->first < g->entered; g->first++)
                CUDA_TRY(d, cudaEventRecord(g->out[g->first % CUDA_RING_ITEMS], d->stream), "weights on their way");
        return issue(d);
}

int cuda_stream_reserve(struct k_dev *kd, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cuda_ring *g = &d->ring;
        const size_t before = g->bytes;
        int r = cuda_flush(d);

        if (r < 0 || bytes <= before)
                return r;
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "ring");
        if (!g->stream) {
                CUDA_TRY(d, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "ring");
                for (int i = 0; i < CUDA_RING_ITEMS; i++) {
                        CUDA_TRY(d, cudaEventCreateWithFlags(&g->in[i], cudaEventDisableTiming), "event");
                        CUDA_TRY(d, cudaEventCreateWithFlags(&g->out[i], cudaEventDisableTiming), "event");
                }
        }
        cudaStreamSynchronize(g->stream);
        cudaFree(g->mem);
        g->mem = NULL;
        g->bytes = g->at = 0;
        g->first = g->entered = g->next = 0;
        if (cudaMalloc((void **)&g->mem, bytes) == cudaSuccess) {
                g->bytes = bytes;
                return 0;
        }
        cudaGetLastError(); /* out of memory is not sticky */
        g->mem = NULL;
        if (before) { /* the models that have one keep it */
                CUDA_TRY(d, cudaMalloc((void **)&g->mem, before), "ring");
                g->bytes = before;
        }
        return -ENOMEM;
}

void cuda_ring_close(struct cuda_dev *d) {
        struct cuda_ring *g = &d->ring;

        for (int i = 0; i < CUDA_RING_ITEMS; i++) {
                if (g->in[i])
                        cudaEventDestroy(g->in[i]);
                if (g->out[i])
                        cudaEventDestroy(g->out[i]);
        }
        if (g->stream)
                cudaStreamDestroy(g->stream);
        cudaFree(g->mem);
}
