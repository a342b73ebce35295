/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that follow each other: graphs that the device goes on with by itself (kernels/cuda/loop.h). Two graphs that add to a counter,
 * begun by a host that is early, late or just in time, with copies of the counter queued between: each step runs once, with its own data,
 * in its place in the stream. Meanwhile another thread takes and gives back memory, and is not kept waiting.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "check.h"

enum { VOCAB = 64, BUSY_COLS = 1 << 18, AHEAD = 2, SNAPS = 1024 };

struct loop_rig {
        struct rig *r;
        float *counter, *ones, *busy, *logits, *snap; /* device */
        uint32_t *dev;
        void *scratch, *graph[2];
        struct k_sample_out *out;                     /* [AHEAD + 1] */
        uint64_t begun, finished, total;
        float want[SNAPS];
        uint32_t n_snap, wrong;
        int e;
};

static uint64_t now_ns(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static const uint32_t zero_u;
static const int32_t zero_i;

static struct k_batch batch_of(const struct loop_rig *l) {
        return (struct k_batch){ .n = 1, .n_d = 1, .n_seq = 1, .token = &zero_u, .pos = &zero_i, .seq = &zero_u, .place = &zero_u, .sampled = l->dev,
                                 .history = l->dev + 1, .history_stride = 8 };
}

static struct k_sample_row row_of(const struct loop_rig *l, uint64_t step, const struct k_sample_bias *bias) {
        return (struct k_sample_row){ .n_history = 1, .repeat = 1, .top_p = 1, .log_min_p = -INFINITY, .n_bias = 1, .bias = bias,
                                      .out = &l->out[step % (AHEAD + 1)], .stamp = step };
}

static void *graph_new(struct loop_rig *l, uint32_t n_busy, float amount) {
        const struct k_ops *o = l->r->gpu->ops;
        const struct k_sample_bias bias = { 0, 1 };
        const struct k_sample_row row = row_of(l, 0, &bias);
        const struct k_elem_args busy = { .op = K_ELEM_SCALE, .y = l->busy, .y_stride = BUSY_COLS, .cols = BUSY_COLS, .a = 1, .n = 1 };
        const struct k_elem_args add = { .op = K_ELEM_AXPY, .y = l->counter, .y_stride = 1, .cols = 1, .x = l->ones, .x_stride = 1, .a = 1, .b = amount,
                                         .n = 1 };
        const struct k_sample_args a = { .logits = l->logits, .n_vocab = VOCAB, .rows = &row, .n = 1, .scratch = l->scratch };
        struct k_batch b = batch_of(l);
        void *g = NULL;
        int e = o->graph_begin(l->r->gpu, &b), end;

        for (uint32_t i = 0; e == 0 && i < n_busy; i++)
                e = o->elem(l->r->gpu, &b, &busy);
        e = e ? e : o->elem(l->r->gpu, &b, &add);
        e = e ? e : o->sample(l->r->gpu, &b, &a);
        end = o->graph_end(l->r->gpu, &b, e ? NULL : &g);
        expect(l->r, e == 0 && end == 0 && g, "a graph of %u kernels: %s", n_busy, o->last_error(l->r->gpu));
        return g;
}

static void begin(struct loop_rig *l, uint32_t which, float amount) {
        const struct k_sample_bias bias = { (uint32_t)((l->begun + 1) % VOCAB), 8 };
        struct k_sample_row row = row_of(l, l->begun + 1, &bias);
        struct k_batch b = batch_of(l);

        l->e = l->e ? l->e : l->r->gpu->ops->graph_run(l->r->gpu, l->graph[which], &b, &row);
        l->begun++;
        l->total += (uint64_t)amount;
}

static void finish(struct loop_rig *l) {
        const uint64_t step = ++l->finished;
        const struct k_sample_out *out = &l->out[step % (AHEAD + 1)];

        l->e = l->e ? l->e : l->r->gpu->ops->sample_wait(l->r->gpu, out, 1, step, 0);
        l->wrong += l->e == 0 && out->token != step % VOCAB;
}

static void snap(struct loop_rig *l) {
        if (l->n_snap == SNAPS)
                return;
        l->want[l->n_snap] = (float)l->total;
        l->e = l->e ? l->e : l->r->gpu->ops->copy(l->r->gpu, l->snap + l->n_snap++, l->counter, sizeof(float));
}

/* Steps, and how often the host launched one. */
static uint64_t run(struct loop_rig *l, uint32_t steps, uint64_t most_late_ns, uint32_t others, uint32_t *seed) {
        const struct k_ops *o = l->r->gpu->ops;
        const char *why;
        const uint64_t launches = o->graph_launches(l->r->gpu, &why);
        float zero = 0, *got = h_malloc(SNAPS * sizeof(float));
        uint32_t which = 0, bad = 0;

        l->e = o->upload(l->r->gpu, l->counter, &zero, sizeof(zero));
        l->total = l->n_snap = l->wrong = 0;
        for (uint32_t i = 0; l->e == 0 && i < steps; i++) {
                if (others && rnd(seed) % others == 0)
                        which ^= 1;
                if (others && rnd(seed) % others == 0)
                        snap(l);
                if (most_late_ns)
                        for (const uint64_t until = now_ns() + rnd(seed) % most_late_ns; now_ns() < until;)
                                ;
                begin(l, which, which ? 100 : 1);
                while (l->begun - l->finished > (others && rnd(seed) % 4 == 0 ? 0 : AHEAD - 1))
                        finish(l);
        }
        while (l->e == 0 && l->finished < l->begun)
                finish(l);
        snap(l);
        if (l->e == 0)
                l->e = o->download(l->r->gpu, got, l->snap, SNAPS * sizeof(float));
        for (uint32_t i = 0; l->e == 0 && i < l->n_snap; i++)
                bad += got[i] != l->want[i];
        expect(l->r, l->e == 0, "%u steps that follow each other: %s", steps, o->last_error(l->r->gpu));
        expect(l->r, l->wrong == 0, "%u steps: %u with another's data", steps, l->wrong);
        expect(l->r, bad == 0, "%u steps: %u of %u copies of the counter are those of another place in the stream", steps, bad, l->n_snap);
        free(got);
        return o->graph_launches(l->r->gpu, &why) - launches;
}

struct other { struct k_dev *d; bool stop; uint32_t times, failed; uint64_t longest_ns; };

static void *beside(void *ud) {
        struct other *t = ud;

        while (!__atomic_load_n(&t->stop, __ATOMIC_RELAXED)) {
                const uint64_t from = now_ns();
                void *p = t->d->ops->mem_alloc(t->d, 1 << 20), *h = t->d->ops->host_alloc(t->d, 1 << 20);

                t->failed += !p || !h;
                t->d->ops->mem_free(t->d, p);
                t->d->ops->host_free(t->d, h);
                t->longest_ns = MAX(t->longest_ns, now_ns() - from);
                t->times++;
                usleep(2000);
        }
        return NULL;
}

static uint64_t used(struct k_dev *d) {
        struct k_mem_info i = { 0 };

        (void)d->ops->mem_info(d, &i);
        return i.ours + i.others;
}

/* What the driver takes for graphs of as many kernels as a large model's step has, against the account. */
static void check_bytes(struct loop_rig *l) {
        enum { KERNELS = 400, MANY = 32 };
        const struct k_ops *o = l->r->gpu->ops;
        void *g[MANY] = { NULL };
        uint64_t before = used(l->r->gpu), account = 0;

        for (uint32_t i = 0; i < MANY && l->r->failed == 0; i++) {
                g[i] = graph_new(l, KERNELS, 1);
                account += o->graph_bytes(l->r->gpu, g[i], 0);
                o->sync(l->r->gpu);
                if (i == 0 || i == 7 || i == MANY - 1)
                        printf("  %u graphs of %u kernels: %.2f MB by the account, %.2f MB of the device\n", i + 1, (unsigned)KERNELS, (double)account / 1e6,
                               (double)(int64_t)(used(l->r->gpu) - before) / 1e6);
        }
        const uint64_t took = used(l->r->gpu) - before;
        expect(l->r, took <= account + (4 << 20), "%u graphs take %llu bytes of the device, %llu by the account", (unsigned)MANY, (unsigned long long)took,
               (unsigned long long)account);
        for (uint32_t i = 0; i < MANY; i++)
                o->graph_free(l->r->gpu, g[i]);
}

void check_loop(struct rig *r) {
        const struct k_ops *o = r->gpu->ops;
        struct loop_rig l = { .r = r };
        struct other other = { .d = r->gpu };
        const float one = 1;
        const uint32_t steps = r->tiny ? 200 : 4000;
        uint32_t seed = 7;
        uint64_t launches;
        pthread_t thread;
        const char *why;

        l.counter = o->mem_alloc(r->gpu, 256);
        l.ones = o->mem_alloc(r->gpu, 256);
        l.busy = o->mem_alloc(r->gpu, BUSY_COLS * sizeof(float));
        l.logits = o->mem_alloc(r->gpu, VOCAB * sizeof(float));
        l.snap = o->mem_alloc(r->gpu, SNAPS * sizeof(float));
        l.dev = o->mem_alloc(r->gpu, 256);
        l.scratch = o->mem_alloc(r->gpu, o->sample_scratch(1, VOCAB));
        l.out = o->host_alloc(r->gpu, (AHEAD + 1) * sizeof(*l.out));
        if (!l.counter || !l.ones || !l.busy || !l.logits || !l.snap || !l.dev || !l.scratch || !l.out || o->upload(r->gpu, l.ones, &one, sizeof(one)) < 0 ||
            o->zero(r->gpu, l.logits, VOCAB * sizeof(float)) < 0 || o->zero(r->gpu, l.snap, SNAPS * sizeof(float)) < 0 ||
            o->zero(r->gpu, l.busy, BUSY_COLS * sizeof(float)) < 0)
                exit(70);
        memset(l.out, 0, (AHEAD + 1) * sizeof(*l.out));
        l.graph[0] = graph_new(&l, 40, 1);
        l.graph[1] = graph_new(&l, 20, 100);
        if (r->failed == 0) {
                const uint64_t t0 = now_ns();
                launches = run(&l, steps, 0, 0, &seed);
                const uint64_t step_ns = (now_ns() - t0) / steps;
                (void)o->graph_launches(r->gpu, &why);
                printf("  %u steps of %.1f us, %llu launches%s%s\n", steps, (double)step_ns / 1e3, (unsigned long long)launches, *why ? ": " : "", why);
                expect(r, r->host_launches ? *why && launches == steps : *why || launches <= steps / 8, "%u steps in a row: the host launched %llu", steps,
                       (unsigned long long)launches);
                /* Just at the end of a step, more or less: what is posted is taken, or not. */
                launches = run(&l, steps, 2 * step_ns, 0, &seed);
                printf("  of steps posted at any time: %llu launches\n", (unsigned long long)launches);
                if (pthread_create(&thread, NULL, beside, &other) != 0)
                        exit(70);
                launches = run(&l, steps, 2 * step_ns, 20, &seed);
                launches += run(&l, steps, 0, 200, &seed);
                __atomic_store_n(&other.stop, true, __ATOMIC_RELAXED);
                pthread_join(thread, NULL);
                printf("  among other work: %llu launches of %u; beside them memory was had %u times, the longest took %.2f ms\n", (unsigned long long)launches,
                       2 * steps, other.times, (double)other.longest_ns / 1e6);
                expect(r, other.times > 0 && other.failed == 0, "memory beside them: %u of %u times not", other.failed, other.times);
        }
        for (int i = 0; i < 2; i++)
                o->graph_free(r->gpu, l.graph[i]);
        if (!r->tiny)
                check_bytes(&l);
        o->host_free(r->gpu, l.out);
        o->mem_free(r->gpu, l.scratch);
        o->mem_free(r->gpu, l.dev);
        o->mem_free(r->gpu, l.snap);
        o->mem_free(r->gpu, l.logits);
        o->mem_free(r->gpu, l.busy);
        o->mem_free(r->gpu, l.ones);
        o->mem_free(r->gpu, l.counter);
}
