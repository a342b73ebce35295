/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step costs the engine's thread on this side of the backend: checks, page
 * tables, step data, results; none of the driver's part and none of a kernel's.
 * The device is one that works beside its host and is done at once: the CPU's,
 * whose recorded steps do nothing but write the stamp that says so.
 *
 *   bench_step MODEL.gguf [STEPS [SEQUENCES [CONTEXT]]]
 *
 * Of the thread's own CPU time, the best of ten rounds each: other processes
 * only ever add to it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/device.h"
#include "tests/unit/open_model.h"

#define ROUNDS 10

/* ---- a device without work ---- */

static size_t done_scratch(uint32_t n, uint32_t n_vocab) {
        (void)n;
        (void)n_vocab;
        return 256;
}

static void *done_host_alloc(struct k_dev *d, size_t bytes) {
        (void)d;
        return h_new0(uint8_t, bytes);
}

static void done_host_free(struct k_dev *d, void *p) {
        (void)d;
        free(p);
}

static int done_sample(struct k_dev *d, const struct k_batch *b, const struct k_sample_args *a) {
        (void)d;
        (void)b;
        for (uint32_t i = 0; i < a->n; i++) {
                a->rows[i].out->token = 1;
                __atomic_store_n(&a->rows[i].out->stamp, a->rows[i].stamp, __ATOMIC_RELEASE);
        }
        return 0;
}

static int done_sample_wait(struct k_dev *d, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns) {
        (void)d;
        (void)after_ns;
        for (uint32_t i = 0; i < n; i++)
                if (__atomic_load_n(&out[i].stamp, __ATOMIC_ACQUIRE) != stamp)
                        return -EIO;
        return 0;
}

static int done_event_new(struct k_dev *d, void **ret) {
        *ret = d;
        return 0;
}

static void done_event_free(struct k_dev *d, void *e) {
        (void)d;
        (void)e;
}

static int done_event(struct k_dev *d, void *e) {
        (void)d;
        (void)e;
        return 0;
}

static int done_batch(struct k_dev *d, struct k_batch *b) {
        (void)d;
        (void)b;
        return 0;
}

static int done_graph_end(struct k_dev *d, struct k_batch *b, void **ret) {
        (void)b;
        if (ret)
                *ret = d;
        return 0;
}

/* What a step is made of: nothing of it is computed. */
#define DONE_OP(op)                                                                                     \
        static int done_##op(struct k_dev *d, const struct k_batch *b, const struct k_##op##_args *a) { \
                (void)d;                                                                                \
                (void)b;                                                                                \
                (void)a;                                                                                \
                return 0;                                                                               \
        }
#define EACH_OP(X) X(embed) X(norm) X(linear) X(head_linear) X(glu) X(qkv) X(attention) X(delta) X(shortconv) X(moe) X(elem) X(altup)
EACH_OP(DONE_OP)
#define USE_OP(op) ops.op = done_##op;

static int done_graph_run(struct k_dev *d, void *graph, struct k_batch *b, const struct k_sample_row *rows) {
        (void)graph;
        return done_sample(d, b, &(struct k_sample_args){ .rows = rows, .n = b->n });
}

static size_t done_graph_bytes(struct k_dev *d, void *graph, uint32_t n_ops) {
        (void)d;
        (void)graph;
        (void)n_ops;
        return 0;
}

/* ---- */

static double cpu_us(void) {
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int fail(const struct h_error *err, const char *what) {
        fprintf(stderr, "bench_step: %s: %s\n", what, err->message);
        return 1;
}

/* Steps of n sequences, each begun before the one before it is finished. */
static int round_of(struct eng_context *c, uint32_t n, uint32_t steps, double *ret_us, struct h_error *err) {
        static const struct eng_sampling greedy = { .repeat_penalty = 1 };
        static const uint32_t token = 1;
        _cleanup_(freep) struct eng_item *items = h_new0(struct eng_item, n);
        _cleanup_(freep) struct eng_result *res = h_new0(struct eng_result, n);
        double t = 0;
        int r = items && res ? 0 : -ENOMEM;

        for (uint32_t i = 0; r == 0 && i < n; i++) {
                items[i] = (struct eng_item){ .tokens = &token, .n = 1, .role = ENG_ROLE_GENERATED, .sampling = &greedy, .want = ENG_WANT_SAMPLE };
                r = eng_seq_new(c, &items[i].seq);
        }
        for (uint32_t s = 0; r == 0 && s < steps; s++) {
                if (s == 1) {
                        t = cpu_us(); /* the first step opens pages and tables */
                        for (uint32_t i = 0; i < n; i++)
                                items[i].tokens = NULL;
                }
                r = eng_step_begin(c, items, n, err);
                if (r == 0 && s > 0)
                        r = eng_step_finish(c, res, NULL, err);
        }
        t = cpu_us() - t;
        if (r == 0)
                r = eng_step_finish(c, res, NULL, err);
        for (uint32_t i = 0; r == 0 && i < n; i++)
                eng_seq_free(c, items[i].seq);
        *ret_us = t / (steps - 1);
        return r;
}

int main(int argc, char **argv) {
        uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1000, n = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1,
                 n_ctx = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1024;
        struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        struct eng_limits l = { .n_ctx = n_ctx, .n_places = n, .n_rows = MAX(n, 16u), .ahead = true };
        struct eng_context *c = NULL;
        struct h_error err = {};
        struct opened m = {};
        struct k_ops ops;
        double best = 0, us;
        int r;

        if (argc < 2 || steps < 2 || n == 0 || steps > n_ctx) {
                fprintf(stderr, "usage: bench_step MODEL.gguf [STEPS [SEQUENCES [CONTEXT]]]; at most CONTEXT steps\n");
                return 64;
        }
        r = open_model(argv[1], &o, &m);
        if (r < 0)
                return 1;
        ops = *m.device->k->ops;
        ops.sample_scratch = done_scratch;
        ops.host_alloc = done_host_alloc;
        ops.host_free = done_host_free;
        ops.sample = done_sample;
        ops.sample_wait = done_sample_wait;
        ops.event_new = done_event_new;
        ops.event_free = done_event_free;
        ops.event_record = ops.event_wait = done_event;
        ops.batch_begin = ops.batch_end = ops.graph_begin = done_batch;
        EACH_OP(USE_OP)
        ops.graph_end = done_graph_end;
        ops.graph_run = done_graph_run;
        ops.graph_free = done_event_free;
        ops.graph_bytes = done_graph_bytes;
        m.device->k->ops = &ops;
        m.device->o.backend = ENG_CUDA; /* what a context keeps beside its device */
        r = eng_context_new(m.model, &l, &c, &err);
        if (r < 0)
                return fail(&err, "a context");
        while ((r = eng_context_warm(c, &err)) == 1)
                ;
        for (int i = 0; r == 0 && i < ROUNDS; i++) {
                r = round_of(c, n, steps, &us, &err);
                best = i == 0 || us < best ? us : best;
        }
        if (r < 0)
                return fail(&err, "a step");
        printf("%u sequence%s, context of %u: %.2f us of this thread per step (best of %d times %u steps)\n", n, n == 1 ? "" : "s", n_ctx, best, ROUNDS,
               steps);
        eng_context_free(c);
        close_model(&m);
        return 0;
}
