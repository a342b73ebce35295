/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of batches of one shape, and how a host that works beside the device
 * waits for it.
 *
 * Step data reaches a graph by its first kernel: what lies at addresses known
 * when the graph was made, and behind it lists of changing size, as many bytes as
 * the first word says. A buffer is filled again when the step two before is done.
 *
 * A graph belongs to whoever made it and holds addresses: of the weights, of the
 * maker's buffers, of the staging area and of the scratch area of its time. All
 * of them outlive it: the first by the maker's order of closing, the scratch area
 * by a count.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cuda/mail.cuh"

CUDA_FAMILY(graph)

struct graph {
        cudaGraphExec_t exec;
        uint8_t *arena;      /* its commands: host work within it has its arguments there */
        struct dbatch batch; /* every address and count of the step data */
        const struct k_sample_row *rows;
        uint32_t n_sample, n_vocab, scratch;
        size_t bytes;
};

/*
 * Of device memory for a graph's node, upwards: 400 kernels took 0.6 MB (H200, driver of CUDA 13, measured over 31 graphs;
 * docs/kernels/cuda-steps.md). The driver takes it in pieces of 2 MB, for many graphs together, and tells nobody.
 */
enum : size_t { NODE_BYTES = 1600 };

/* ---- sampling ---------------------------------------------------------------- */

int cuda_op_sample(struct k_dev *kd, const struct k_batch *kb, const struct k_sample_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        const struct k_sample_row *rows;
        int r;

        if (a->n == 0 || !kb->sampled || d->n_sample)
                return -EINVAL;
        r = cuda_stage_rows(d, a->rows, a->n, &rows);
        if (r == 0 && !d->taking_down)
                r = cuda_stage_lists(d, rows, a->rows, a->n, a->n_vocab);
        if (r < 0)
                return r;
        struct cmd_sample *c = (struct cmd_sample *)cuda_cmd_new(d, CMD_SAMPLE, sizeof(*c));
        if (!c)
                return -EIO;
        c->logits = a->logits;
        c->n_vocab = a->n_vocab;
        c->n = a->n;
        c->rows = rows;
        c->scratch = (uint8_t *)a->scratch;
        if (d->taking_down) {
                c->count = d->post.count;
                c->done = (uint64_t *)d->post.done;
        }
        d->sample_rows = rows;
        d->n_sample = a->n;
        d->n_vocab = a->n_vocab;
        return 0;
}

/* ---- step data ------------------------------------------------------------------ */

enum : size_t { POST_HEAD = 16 };
enum : uint32_t { POST_THREADS = 256 };

/* The first n_block blocks fetch step data; all others empty the boxes of mail (mail.cuh). */
__global__ void __launch_bounds__(POST_THREADS) post_kernel(const uint4 *a, const uint4 *b, const uint64_t *count, uint4 *to, uint32_t n,
                                                            uint32_t n_block, uint4 *mail, uint32_t n_mail) {
        const uint32_t i = blockIdx.x * POST_THREADS + threadIdx.x, step = n_block * POST_THREADS;

        if (blockIdx.x >= n_block) {
                pdl_wait();
                for (uint32_t k = i - step; k < n_mail; k += gridDim.x * POST_THREADS - step)
                        mail[k] = make_uint4(MAIL_NONE, MAIL_NONE, MAIL_NONE, MAIL_NONE);
                return;
        }
        const uint4 *from = *count & 1 ? b : a; /* steps done: the next one's buffer */
        const uint32_t all = *(const volatile uint32_t *)from;

        pdl_wait();
        if (i < n)
                to[i] = __ldcv(from + 1 + i);
        for (uint32_t k = n + i; k < all; k += step)
                to[k] = __ldcv(from + 1 + k);
}

int cuda_graph_open(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;

        for (int i = 0; i < 2; i++)
                CUDA_TRY(d, cudaHostAlloc((void **)&p->host[i], d->stage_bytes + POST_HEAD, cudaHostAllocDefault), "staging");
        CUDA_TRY(d, cudaHostAlloc((void **)&p->done, 64, cudaHostAllocDefault), "staging");
        CUDA_TRY(d, cudaMalloc((void **)&p->count, sizeof(*p->count)), "staging");
        CUDA_TRY(d, cudaMemsetAsync(p->count, 0, sizeof(*p->count), d->stream), "staging");
        *p->done = 0;
        return 0;
}

void cuda_graph_close(struct cuda_dev *d) {
        for (int i = 0; i < 2; i++)
                if (d->post.host[i])
                        cudaFreeHost(d->post.host[i]);
        if (d->post.done)
                cudaFreeHost((void *)d->post.done);
        cudaFree(d->post.count);
}

static void nap(uint64_t ns) {
        struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&ts, NULL);
}

/* Now and then: a lost device says so on any stream. Not on the steps' own, which another thread may be capturing. */
static int still_there(struct cuda_dev *d, uint32_t tries) {
        cudaError_t e = tries % 64 == 63 ? cudaStreamQuery(d->mem.stream) : cudaErrorNotReady;
        return e == cudaSuccess || e == cudaErrorNotReady ? 0 : cuda_fail(d, e, "step");
}

/* ---- graphs ------------------------------------------------------------------- */

int cuda_graph_begin(struct k_dev *kd, struct k_batch *kb) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_op_batch_begin(kd, kb);

        d->taking_down = r == 0;
        return r;
}

/* How much mail the commands leave is known when they are captured: the first kernel, already there, is told now. */
static int set_mail(struct cuda_dev *d, cudaGraph_t graph, uint32_t n_mail) {
        cudaGraphNode_t first;
        cudaKernelNodeParams p = {};
        void *args[8];
        size_t n = 1;

        CUDA_TRY(d, cudaGraphGetRootNodes(graph, &first, &n), "graph");
        CUDA_TRY(d, cudaGraphKernelNodeGetParams(first, &p), "graph");
        memcpy(args, p.kernelParams, sizeof(args));
        args[7] = &n_mail;
        p.func = (void *)post_kernel;
        p.kernelParams = args;
        p.gridDim.x += MIN(d->n_sm, DIV_ROUND_UP(n_mail, (uint32_t)POST_THREADS));
        CUDA_TRY(d, cudaGraphKernelNodeSetParams(first, &p), "graph");
        return 0;
}

static int capture(struct cuda_dev *d, struct graph *g) {
        const uint32_t n = (uint32_t)DIV_ROUND_UP(d->stage_used, sizeof(uint4)), n_block = DIV_ROUND_UP(n, (uint32_t)POST_THREADS);
        cudaGraph_t graph = NULL;
        size_t n_node = 0;
        cudaError_t e;
        int r;

        CUDA_TRY(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "graph capture");
        r = launch(d, "step data", post_kernel, dim3(n_block), POST_THREADS, 0, (const uint4 *)d->post.host[0],
                   (const uint4 *)d->post.host[1], d->post.count, (uint4 *)d->stage_dev, n, n_block, (uint4 *)d->mail.mem, 0);
        d->full_edge = true; /* kernels read step data before they wait for the one before them: no one may begin beside this one */
        d->mail.used = 0;
        d->mail.on = d->pdl && d->batch.n == 1; /* without: nobody begins before the whole grid has ended */
        if (r == 0)
                r = cuda_run_all(d, g->arena);
        d->mail.on = false;
        e = cudaStreamEndCapture(d->stream, &graph);
        if (r == 0 && e != cudaSuccess)
                r = cuda_fail(d, e, "graph capture");
        if (r == 0 && d->mail.used)
                r = set_mail(d, graph, (uint32_t)(d->mail.used / 4));
        if (r == 0 && (e = cudaGraphInstantiate(&g->exec, graph, 0)) != cudaSuccess)
                r = cuda_fail(d, e, "graph");
        if (r == 0 && (e = cudaGraphGetNodes(graph, NULL, &n_node)) != cudaSuccess)
                r = cuda_fail(d, e, "graph");
        g->bytes = n_node * NODE_BYTES;
        if (graph)
                cudaGraphDestroy(graph);
        return r;
}

static int make(struct cuda_dev *d, struct graph **ret) {
        struct graph *g;
        cudaError_t e;
        int r;

        if (!d->taking_down || d->stage_other || d->has_ring || !d->n_sample)
                return -ENOTSUP;
        g = (struct graph *)calloc(1, sizeof(*g));
        if (!g || !(g->arena = (uint8_t *)malloc(d->arena_used))) {
                free(g);
                return -ENOMEM;
        }
        memcpy(g->arena, d->arena, d->arena_used);
        r = capture(d, g);
        /* On the device now, not at its first launch. */
        if (r == 0 && (e = cudaGraphUpload(g->exec, d->stream)) != cudaSuccess)
                r = cuda_fail(d, e, "graph upload");
        if (r < 0) {
                cuda_graph_free(&d->base, g);
                return r;
        }
        g->batch = d->batch;
        g->rows = d->sample_rows;
        g->n_sample = d->n_sample;
        g->n_vocab = d->n_vocab;
        g->scratch = d->last_scratch;
        d->scratch[g->scratch].n_graph++;
        d->graph_bytes += g->bytes;
        *ret = g;
        return 0;
}

/* Also ends what failed on the way: nothing of it stays. */
int cuda_graph_end(struct k_dev *kd, struct k_batch *, void **ret) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct graph *g = NULL;
        int r = ret ? make(d, &g) : 0;

        d->arena_used = 0;
        d->recording = d->taking_down = d->stage_dirty = d->has_host = d->has_ring = false;
        if (r == 0 && ret)
                *ret = g;
        return r;
}

void cuda_graph_free(struct k_dev *kd, void *graph) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct graph *g = (struct graph *)graph;

        if (!g)
                return;
        if (g->exec) {
                cudaStreamSynchronize(d->stream);
                cudaGraphExecDestroy(g->exec);
        }
        if (g->batch.n)
                d->graph_bytes -= g->bytes;
        if (g->batch.n && --d->scratch[g->scratch].n_graph == 0)
                cuda_scratch_unused(d, g->scratch);
        free(g->arena);
        free(g);
}

size_t cuda_graph_bytes(struct k_dev *, void *graph, uint32_t n_ops) {
        return graph ? ((const struct graph *)graph)->bytes : n_ops * NODE_BYTES;
}

/* The buffer of the next graph step, once the step that used it last is done. */
static int post_room(struct cuda_dev *d, uint8_t **ret) {
        struct cuda_post *p = &d->post;

        for (uint32_t tries = 0; p->begun >= 2 && *p->done < p->begun - 1; tries++) {
                int r = still_there(d, tries);
                if (r < 0)
                        return r;
                nap(20000);
        }
        *ret = p->host[p->begun & 1];
        return 0;
}

int cuda_graph_run(struct k_dev *kd, void *graph, struct k_batch *kb, const struct k_sample_row *rows) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct graph *g = (struct graph *)graph;
        const struct k_sample_row *dev = NULL;
        struct dbatch b;
        uint8_t *to = NULL;
        int r = cuda_flush(d);

        if (r == 0)
                r = post_room(d, &to);
        if (r == 0)
                r = cuda_batch_stage(d, to + POST_HEAD, kb, &b);
        if (r == 0)
                r = cuda_stage_rows(d, rows, g->n_sample, &dev);
        if (r < 0)
                return r;
        if (b.n_split > g->batch.n_split)
                return -EINVAL;
        b.n_split = g->batch.n_split;
        if (memcmp(&b, &g->batch, sizeof(b)) != 0 || dev != g->rows)
                return -EINVAL; /* another shape */
        if ((r = cuda_stage_lists(d, dev, rows, g->n_sample, g->n_vocab)) < 0)
                return r;
        *(uint32_t *)to = (uint32_t)DIV_ROUND_UP(d->stage_used, sizeof(uint4));
        d->stage_dirty = false;
        CUDA_TRY(d, cudaGraphLaunch(g->exec, d->stream), "step graph");
        d->post.begun++;
        d->stage_to = d->stage_host[d->stage_turn];
        d->stage_used = 0;
        return 0;
}

/* ---- beside the host --------------------------------------------------------------- */

int cuda_event_new(struct k_dev *kd, void **ret) {
        struct cuda_dev *d = cuda_dev_of(kd);
        cudaEvent_t e;

        CUDA_TRY(d, cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync), "event");
        *ret = e;
        return 0;
}

void cuda_event_free(struct k_dev *, void *event) {
        if (event)
                cudaEventDestroy((cudaEvent_t)event);
}

int cuda_event_record(struct k_dev *kd, void *event) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);

        if (r < 0)
                return r;
        CUDA_TRY(d, cudaEventRecord((cudaEvent_t)event, d->stream), "step");
        return 0;
}

int cuda_event_wait(struct k_dev *kd, void *event) {
        struct cuda_dev *d = cuda_dev_of(kd);

        CUDA_TRY(d, cudaEventSynchronize((cudaEvent_t)event), "step");
        return cuda_host_check(d);
}

/*
 * Sleeps rather than spins or waits for an event: a wake-up costs less of the
 * thread's time than the driver's wait. The device is asked for its state now and
 * then: a lost one writes no stamps.
 */
int cuda_sample_wait(struct k_dev *kd, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns) {
        struct cuda_dev *d = cuda_dev_of(kd);
        uint32_t i = 0;

        if (after_ns)
                nap(after_ns);
        for (uint32_t tries = 0; i < n; tries++) {
                while (i < n && __atomic_load_n(&out[i].stamp, __ATOMIC_ACQUIRE) == stamp)
                        i++;
                if (i == n)
                        break;
                int r = still_there(d, tries);
                if (r < 0)
                        return r;
                nap(20000);
        }
        return cuda_host_check(d);
}
