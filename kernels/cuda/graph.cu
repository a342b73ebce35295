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

#include "kernels/cuda/loop.cuh"
#include "kernels/cuda/mail.cuh"

CUDA_FAMILY(graph)

struct graph {
        bool again; /* the device may launch it once more by itself */
        cudaGraphExec_t exec;
        uint8_t *arena;      /* its commands: host work within it has its arguments there */
        struct dbatch batch; /* every address and count of the step data */
        const struct k_sample_row *rows;
        uint32_t n_sample, n_vocab, scratch;
        size_t bytes;
};

/*
 * Of device memory for a graph's node, upwards: 32 graphs of 400 kernels took 39.8 MB, the first 8 of them 6.3, whether the device or the host
 * launches them (H200, driver of CUDA 13; docs/kernels/cuda-steps.md). The driver takes it in pieces of 2 MB, for many graphs together, and tells
 * nobody.
 */
enum : size_t { NODE_BYTES = 3600 };

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
                c->done = &d->post.said->done;
        }
        d->sample_rows = rows;
        d->n_sample = a->n;
        d->n_vocab = a->n_vocab;
        return 0;
}

/* ---- step data ------------------------------------------------------------------ */

enum : size_t { POST_HEAD = sizeof(struct post_head) };
static_assert(POST_HEAD == sizeof(uint4), "what follows is fetched in units");
enum : uint32_t {
        POST_THREADS = 256,
        MOST_POSTS = 256, /* then a launch again: whatever waits for the stream, and wherever in the driver, does so for so many steps at most */
        LOOKS = 4000,    /* for a word that is about to come: some tenth of a millisecond in all */
};

/* The first n_block blocks fetch step data; all others empty the boxes of mail (mail.cuh). */
__global__ void __launch_bounds__(POST_THREADS) post_kernel(const uint4 *a, const uint4 *b, uint64_t *count, uint4 *to, uint32_t n,
                                                            uint32_t n_block, uint4 *mail, uint32_t n_mail) {
        const uint32_t i = blockIdx.x * POST_THREADS + threadIdx.x, stride = n_block * POST_THREADS;

        if (blockIdx.x >= n_block) {
                pdl_wait();
                for (uint32_t k = i - stride; k < n_mail; k += gridDim.x * POST_THREADS - stride)
                        mail[k] = make_uint4(MAIL_NONE, MAIL_NONE, MAIL_NONE, MAIL_NONE);
                return;
        }
        const uint64_t step = *count + 1; /* steps done, and this one */
        const uint4 *from = loop_buffer(step) ? b : a;
        const uint32_t all = *(const volatile uint32_t *)from;

        pdl_wait();
        if (i == 0)
                count[1] = step;
        if (i < n)
                to[i] = __ldcv(from + 1 + i);
        for (uint32_t k = n + i; k < all; k += stride)
                to[k] = __ldcv(from + 1 + k);
}

/* A graph of nothing but the last kernel: what this driver refuses shows when the device is opened, and is said with the device's name. */
static int try_again(struct cuda_dev *d) {
        cudaGraphExec_t exec = NULL;
        cudaGraph_t graph = NULL;
        cudaError_t e;
        int r;

        CUDA_TRY(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "graph capture");
        r = cuda_loop_kernel(d);
        e = cudaStreamEndCapture(d->stream, &graph);
        if (r == 0 && e != cudaSuccess)
                r = cuda_fail(d, e, "graph capture");
        if (r == 0 && (e = cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch)) != cudaSuccess) {
                cudaGetLastError();
                d->post.off = true;
                snprintf(d->post.why_off, sizeof(d->post.why_off), "this driver makes no graphs that the device launches (%s)", cudaGetErrorName(e));
        }
        if (exec)
                cudaGraphExecDestroy(exec);
        if (graph)
                cudaGraphDestroy(graph);
        return r;
}

int cuda_graph_open(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;

        for (int i = 0; i < 2; i++) {
                CUDA_TRY(d, cudaHostAlloc((void **)&p->host[i], d->stage_bytes + POST_HEAD, cudaHostAllocDefault), "staging");
                memset(p->host[i], 0, POST_HEAD);
        }
        CUDA_TRY(d, cudaHostAlloc((void **)&p->said, 64, cudaHostAllocDefault), "staging");
        memset(p->said, 0, 64);
        CUDA_TRY(d, cudaMalloc((void **)&p->count, 2 * sizeof(*p->count)), "staging");
        CUDA_TRY(d, cudaMemsetAsync(p->count, 0, 2 * sizeof(*p->count), d->stream), "staging");
        pthread_mutex_init(&p->lock, NULL);
        if (!p->off)
                return try_again(d);
        snprintf(p->why_off, sizeof(p->why_off), "the host launches each step, as it was told to");
        return 0;
}

void cuda_graph_close(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;

        if (p->count)
                pthread_mutex_destroy(&p->lock);
        for (int i = 0; i < 2; i++)
                if (p->host[i])
                        cudaFreeHost(p->host[i]);
        if (p->said)
                cudaFreeHost(p->said);
        cudaFree(p->count);
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

/* ---- whose turn it is to launch (loop.h) ----------------------------------------- */

static uint64_t steps_done(const struct cuda_dev *d) { return __atomic_load_n(&d->post.said->done, __ATOMIC_ACQUIRE); }

static int launch_graph(struct cuda_dev *d, const struct graph *g) {
        CUDA_TRY(d, cudaGraphLaunch(g->exec, d->stream), "step graph");
        d->post.launches++;
        return 0;
}

/* Locked. 1: what becomes of a posted step is not known yet. */
static int look(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;
        enum loop_state s;

        if (d->lost)
                return -EIO;
        while ((s = loop_look(&p->loop, __atomic_load_n(&p->said->verdict, __ATOMIC_ACQUIRE))) == LOOP_LAUNCH) {
                if (launch_graph(d, (const struct graph *)p->loop.graph) < 0) {
                        d->lost = true; /* also for want of memory: it has its number, and can't be taken back */
                        return -EIO;
                }
                loop_launched(&p->loop);
        }
        return s == LOOP_UNKNOWN;
}

/* Whenever a step is waited for: one that the device didn't go on to is launched. If its word is due, it is waited for. */
static int look_again(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;
        bool due = true;
        int r = 1;

        for (uint32_t i = 0; r == 1 && due && i < LOOKS; i++) {
                pthread_mutex_lock(&p->lock);
                r = look(d);
                due = steps_done(d) >= p->loop.sure;
                pthread_mutex_unlock(&p->lock);
        }
        return MIN(r, 0);
}

int cuda_graph_settle(struct cuda_dev *d) {
        struct cuda_post *p = &d->post;
        int r = 1;

        for (uint32_t tries = 0; r == 1; tries++) {
                pthread_mutex_lock(&p->lock);
                r = look(d);
                if (r == 0)
                        loop_leave(&p->loop);
                pthread_mutex_unlock(&p->lock);
                if (r == 1 && tries > LOOKS) {
                        int t = still_there(d, tries);
                        if (t < 0)
                                return t;
                        nap(20000);
                }
        }
        return r;
}

void cuda_graph_hold(struct cuda_dev *d) { __atomic_fetch_add(&d->post.held, 1, __ATOMIC_RELAXED); }
void cuda_graph_unhold(struct cuda_dev *d) { __atomic_fetch_sub(&d->post.held, 1, __ATOMIC_RELAXED); }

/* The step in its buffer, by one of the two ways. */
static int hand_over(struct cuda_dev *d, const struct graph *g, uint8_t *to) {
        struct cuda_post *p = &d->post;
        bool post;
        int r = 0;

        pthread_mutex_lock(&p->lock);
        if (p->said->refused && !p->off) {
                p->off = true;
                snprintf(p->why_off, sizeof(p->why_off), "the device would not launch its graph (%s)", cudaGetErrorName((cudaError_t)p->said->refused));
        }
        post = !p->off && __atomic_load_n(&p->held, __ATOMIC_RELAXED) == 0 && loop_may_post(&p->loop, g, MOST_POSTS);
        if (post) {
                __atomic_store_n(&((struct post_head *)to)->step, loop_post(&p->loop), __ATOMIC_RELEASE);
                r = look(d);
        }
        pthread_mutex_unlock(&p->lock);
        if (post)
                return MIN(r, 0);
        r = cuda_graph_settle(d);
        pthread_mutex_lock(&p->lock);
        if (r == 0)
                r = launch_graph(d, g);
        if (r == 0)
                loop_begin(&p->loop, g->again ? g : NULL);
        pthread_mutex_unlock(&p->lock);
        return r;
}

uint64_t cuda_graph_launches(struct k_dev *kd, const char **ret_why) {
        const struct cuda_post *p = &cuda_dev_of(kd)->post;

        *ret_why = p->why_off;
        return p->launches;
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

/* So that the device can launch it, if it may be (again) and the driver does that. */
static int instantiate(struct cuda_dev *d, struct graph *g, cudaGraph_t graph, bool again) {
        cudaError_t e = again ? cudaGraphInstantiate(&g->exec, graph, cudaGraphInstantiateFlagDeviceLaunch) : cudaErrorNotSupported;

        g->again = e == cudaSuccess;
        if (g->again)
                d->post.why_off[0] = 0;
        else if (e != cudaErrorMemoryAllocation) {
                if (again) {
                        cudaGetLastError();
                        snprintf(d->post.why_off, sizeof(d->post.why_off), "the driver makes no graph of these steps that the device launches (%s)",
                                 cudaGetErrorName(e));
                } else if (!d->post.off && d->has_host) {
                        snprintf(d->post.why_off, sizeof(d->post.why_off), "the host computes a part of these steps");
                }
                e = cudaGraphInstantiate(&g->exec, graph, 0);
        }
        if (e == cudaSuccess)
                return 0;
        g->exec = NULL;
        return cuda_fail(d, e, "graph");
}

static int capture(struct cuda_dev *d, struct graph *g) {
        const bool again = !d->post.off && !d->has_host; /* a device's own launches do no host work */
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
        if (r == 0 && again)
                r = cuda_loop_kernel(d);
        e = cudaStreamEndCapture(d->stream, &graph);
        if (r == 0 && e != cudaSuccess)
                r = cuda_fail(d, e, "graph capture");
        if (r == 0 && d->mail.used)
                r = set_mail(d, graph, (uint32_t)(d->mail.used / 4));
        if (r == 0)
                r = instantiate(d, g, graph, again);
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
        if (d->post.loop.graph == g)
                (void)cuda_graph_settle(d); /* of a lost device nobody asks any more what became of the steps */
        if (g->exec) {
                cuda_graph_hold(d);
                cudaStreamSynchronize(d->stream);
                cudaGraphExecDestroy(g->exec);
                cuda_graph_unhold(d);
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
        const uint64_t begun = p->loop.begun; /* changed by us alone: who begins steps */

        for (uint32_t tries = 0; steps_done(d) + 1 < begun; tries++) {
                int r = look_again(d);
                if (r == 0)
                        r = still_there(d, tries);
                if (r < 0)
                        return r;
                nap(20000);
        }
        *ret = p->host[loop_buffer(begun + 1)];
        return 0;
}

int cuda_graph_run(struct k_dev *kd, void *graph, struct k_batch *kb, const struct k_sample_row *rows) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct graph *g = (struct graph *)graph;
        const struct k_sample_row *dev = NULL;
        struct dbatch b;
        uint8_t *to = NULL;
        int r = d->lost ? -EIO : d->arena_used ? cuda_flush(d) : 0;

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
        ((struct post_head *)to)->units = (uint32_t)DIV_ROUND_UP(d->stage_used, sizeof(uint4));
        d->stage_dirty = false;
        r = hand_over(d, g, to);
        d->stage_to = d->stage_host[d->stage_turn];
        d->stage_used = 0;
        return r;
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
 * then: a lost one writes no stamps. Before each sleep a step that it didn't go on to is launched.
 */
int cuda_sample_wait(struct k_dev *kd, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns) {
        struct cuda_dev *d = cuda_dev_of(kd);
        uint32_t i = 0;
        int r = look_again(d);

        if (r == 0 && after_ns)
                nap(after_ns);
        for (uint32_t tries = 0; r == 0 && i < n; tries++) {
                while (i < n && __atomic_load_n(&out[i].stamp, __ATOMIC_ACQUIRE) == stamp)
                        i++;
                if (i == n)
                        break;
                r = look_again(d);
                if (r == 0)
                        r = still_there(d, tries);
                if (r == 0)
                        nap(20000);
        }
        return r < 0 ? r : cuda_host_check(d);
}
