/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench: tokens per second with fixed tokens and no sampling, medians of
 * --repeat runs after one that isn't counted. 'depth' tokens are in the cache
 * before prefill and decode are timed; 'batch' sequences decode side by side,
 * each with tokens of its own ("different": as many at every position).
 * --halves: prompts of half the length are timed too, of a quarter and so on.
 */
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "base/alloc.h"
#include "probe.h"

#define LOOK_EVERY 16u /* steps of which one's halves are told apart: the clock of a thread's time is a system call, dear behind a sleep */

struct bench {
        const struct options *o;
        struct probe *p;
        uint32_t *ids, n_ids; /* [batch][n_ids], by own_tokens(); enough for depth, prefill or decode */
        eng_seq *seq;    /* [batch] */
        struct eng_item *items;
        struct eng_result *res;
        double cpu, begin; /* seconds of this thread's CPU time: of all decoding, and until so many of its steps were queued */
        uint64_t steps, looks, sleeps, launches;
        uint32_t different; /* tokens among the sequences of a step */
};

static int double_compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double median(double *v, uint32_t n) {
        qsort(v, n, sizeof(*v), double_compare);
        return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static const uint32_t *ids_of(const struct bench *b, uint32_t place) { return b->ids + (size_t)place * b->n_ids; }

static int new_sequences(struct bench *b, uint32_t n) {
        for (uint32_t i = 0; i < n; i++)
                if (eng_seq_new(b->p->context, &b->seq[i]) < 0)
                        return 70;
        return 0;
}

static int ignore_row(void *ud, uint32_t pos, const float *logits) {
        (void)ud;
        (void)pos;
        (void)logits;
        return 0;
}

/* Asks for the last logits: without a result to fetch, a GPU would still be filling when the clock starts. */
static int fill_depth(struct bench *b, uint32_t n) {
        int r = 0;
        for (uint32_t i = 0; r == 0 && b->o->depth && i < n; i++)
                r = feed(b->p, b->o, b->seq[i], ids_of(b, i), b->o->depth, ENG_ROLE_PROMPT, false, ignore_row, NULL);
        return r;
}

static void drop_sequences(struct bench *b, uint32_t n) {
        for (uint32_t i = 0; i < n; i++)
                eng_seq_free(b->p->context, b->seq[i]);
}

static int time_prefill(struct bench *b, uint32_t n, double *ret) {
        double t0;
        int r = new_sequences(b, 1);

        if (r == 0)
                r = fill_depth(b, 1);
        t0 = now_seconds();
        if (r == 0)
                r = feed(b->p, b->o, b->seq[0], b->ids, n, ENG_ROLE_PROMPT, false, ignore_row, NULL);
        *ret = n / (now_seconds() - t0);
        drop_sequences(b, 1);
        return r;
}

static double cpu_seconds(void) {
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static uint64_t sleeps_so_far(void) {
        struct rusage u;

        getrusage(RUSAGE_THREAD, &u);
        return (uint64_t)u.ru_nvcsw;
}

/* What asking costs, when nothing slept: behind a sleep it can be four times that. */
static double cpu_clock_cost(void) {
        double t = cpu_seconds();

        for (int i = 0; i < 999; i++)
                (void)cpu_seconds();
        return (cpu_seconds() - t) / 1000;
}

/*
 * Tokens are fixed, so that two programs do the same work. A device that works
 * beside its host samples each row (the result isn't fed) and has its next step
 * begun before the last one is finished, as a server does it.
 */
static int decode_step(struct bench *b, uint32_t step, uint32_t n, bool ahead) {
        static const struct eng_sampling greedy = { .repeat_penalty = 1 };
        struct h_error err = { 0 };
        const bool look = step % LOOK_EVERY == 0 && step < b->o->decode;
        double t = look ? cpu_seconds() : 0;
        int r = 0;

        if (step < b->o->decode) {
                for (uint32_t i = 0; i < n; i++)
                        b->items[i] = (struct eng_item){ .seq = b->seq[i], .tokens = ids_of(b, i) + step % 64, .n = 1,
                                                         .role = ENG_ROLE_GENERATED, .sampling = &greedy,
                                                         .want = ahead ? ENG_WANT_SAMPLE : ENG_WANT_LOGITS_LAST };
                r = eng_step_begin(b->p->context, b->items, n, &err);
        }
        if (look) {
                b->begin += cpu_seconds() - t;
                b->looks++;
        }
        if (r == 0 && (step > 0 || !ahead) && step < b->o->decode + ahead)
                r = eng_step_finish(b->p->context, b->res, NULL, &err);
        return r != 0 ? probe_fail(&err, r) : 0;
}

static int time_decode(struct bench *b, double *ret) {
        bool ahead = eng_context_ahead(b->p->context);
        uint32_t n = b->o->batch;
        double t0, cpu;
        uint64_t sleeps, launches;
        const char *why;
        int r = new_sequences(b, n);

        if (r == 0)
                r = fill_depth(b, n);
        t0 = now_seconds();
        sleeps = sleeps_so_far();
        launches = eng_device_launches(b->p->device, &why);
        cpu = cpu_seconds();
        for (uint32_t step = 0; r == 0 && step < b->o->decode + ahead; step++)
                r = decode_step(b, step, n, ahead);
        *ret = (double)b->o->decode * n / (now_seconds() - t0);
        b->cpu += cpu_seconds() - cpu;
        b->sleeps += sleeps_so_far() - sleeps;
        b->launches += eng_device_launches(b->p->device, &why) - launches;
        b->steps += b->o->decode;
        b->different = r == 0 ? count_different(b->p, b->seq, n) : 0;
        drop_sequences(b, n);
        return r;
}

static int run(struct bench *b, double *ret_prefill, double *ret_decode) {
        uint32_t k = MAX(b->o->repeat, 1u);
        double *pre = h_new0(double, k), *dec = h_new0(double, k), warm;
        int r = pre && dec ? 0 : 71;

        if (r == 0 && b->o->prefill)
                r = time_prefill(b, b->o->prefill, &warm);
        for (uint32_t i = 0; r == 0 && i < k; i++) {
                if (b->o->prefill)
                        r = time_prefill(b, b->o->prefill, &pre[i]);
                if (r == 0 && b->o->decode)
                        r = time_decode(b, &dec[i]);
        }
        if (r == 0) {
                *ret_prefill = median(pre, k);
                *ret_decode = median(dec, k);
        }
        for (uint32_t n = b->o->prefill / 2; r == 0 && b->o->halves && n >= 16; n /= 2) {
                r = time_prefill(b, n, &warm);
                for (uint32_t i = 0; r == 0 && i < k; i++)
                        r = time_prefill(b, n, &pre[i]);
                if (r == 0)
                        printf("prefill %u at depth %u: %.1f tok/s\n", n, b->o->depth, median(pre, k));
        }
        free(pre);
        free(dec);
        return r;
}

/* Where the weights are, if not all are where the device computes. */
static void report_place(const struct probe *p) {
        struct eng_placement pl;

        eng_model_placement(p->model, &pl);
        if (pl.upload_us)
                printf("upload %.2f GB in %.3f s, of which pinning %.3f s: %.1f GB/s\n", (double)pl.device_bytes / 1e9,
                       (double)pl.upload_us / 1e6, (double)pl.pin_us / 1e6, (double)pl.device_bytes / 1e3 / (double)pl.upload_us);
        if (pl.host_bytes)
                printf("%u of %u layers on the device; weights: %.2f GB on the device, %.2f GB in host memory (%s%s), ring %.2f GB\n",
                       pl.n_device, pl.n_layer, (double)pl.device_bytes / 1e9, (double)pl.host_bytes / 1e9,
                       pl.host_computes ? "generated tokens: " : "read in place",
                       pl.host_computes ? eng_device_host(p->device) : "", (double)pl.ring_bytes / 1e9);
        if (pl.decode_tok_s > 0)
                printf("expected: decode %.4g tok/s, prefill %.4g tok/s (0: not known)\n", pl.decode_tok_s, pl.prefill_tok_s);
}

static void report(const struct bench *b, const struct eng_memory *mem, double pre, double dec) {
        const struct options *o = b->o;
        const struct probe *p = b->p;
        const struct eng_model_info *info = eng_model_info(p->model);
        const double steps = (double)MAX(b->steps, 1u), looks = (double)MAX(b->looks, 1u), clock = b->looks ? cpu_clock_cost() : 0;
        const double all_us = MAX(b->cpu - 2 * (double)b->looks * clock, 0.0) / steps * 1e6;
        const double begin_us = MIN(MAX(b->begin / looks - clock, 0.0) * 1e6, all_us), finish_us = all_us - begin_us;
        const double sleeps = (double)b->sleeps / steps, launches = (double)b->launches / steps;
        const char *why;

        (void)eng_device_launches(p->device, &why);
        if (o->json)
                printf("{\"model\": \"%s\", \"type\": \"%s\", \"device\": \"%s\", \"prefill\": %u, \"decode\": %u, "
                       "\"depth\": %u, \"batch\": %u, \"different\": %u, \"repeat\": %u, \"prefill_tok_s\": %.2f, \"decode_tok_s\": %.2f, "
                       "\"load_s\": %.3f, \"peak_bytes\": %llu, \"planned_bytes\": %llu, \"cpu_us_per_step\": %.2f, "
                       "\"cpu_us_begin\": %.2f, \"cpu_us_finish\": %.2f, \"sleeps_per_step\": %.3f, \"launches_per_step\": %.3f, \"launched_by_host\": \"%s\"}\n",
                       info->name, info->type, eng_device_describe(p->device), o->prefill, o->decode, o->depth,
                       o->batch, b->different, o->repeat, pre, dec, p->load_seconds, (unsigned long long)peak_bytes(),
                       (unsigned long long)mem->total, all_us, begin_us, finish_us, sleeps, launches, why);
        else
                printf("%s %s, %s\nprefill %u at depth %u: %.1f tok/s\ndecode %u at depth %u, batch %u (%u different tokens a step): %.1f tok/s\n"
                       "cpu_us_per_step %.2f (this thread, mean of %llu; %.2f until the step is queued, %.2f waiting for one and reading it, %.2f sleeps, %.3f launches%s%s)\nload %.2f s, peak %.1f MB, planned %.1f MB (graphs %.1f MB)\n", info->name, info->type,
                       eng_device_describe(p->device), o->prefill, o->depth, pre, o->decode, o->depth, o->batch, b->different, dec,
                       all_us, (unsigned long long)b->steps, begin_us, finish_us, sleeps, launches, *why ? ": " : "", why, p->load_seconds, (double)peak_bytes() / 1e6, (double)mem->total / 1e6,
                       (double)mem->graphs / 1e6);
        if (!o->json)
                report_place(p);
}

int cmd_bench(const struct options *o) {
        uint32_t n_ids = MAX(MAX(o->depth, o->prefill), 64u), rows = o->chunk ? o->chunk : 512;
        struct eng_limits l = { .n_places = MAX(o->batch, 1u), .n_ctx = o->depth + MAX(MAX(o->prefill, o->decode), 1u),
                                .n_rows = MAX(rows, o->batch), .kv = o->kv, .ahead = true };
        struct probe p = { 0 };
        struct bench b = { .o = o, .p = &p, .n_ids = n_ids };
        struct eng_memory mem = { 0 };
        double pre = 0, dec = 0;
        int r;

        (void)prctl(PR_SET_TIMERSLACK, 1000ul); /* the engine's naps end when they should */
        r = probe_open_for(o, &l, &p);
        if (r)
                return r;
        r = probe_context(&p, &l);
        b.ids = h_new0(uint32_t, (size_t)l.n_places * n_ids);
        b.seq = h_new0(eng_seq, l.n_places);
        b.items = h_new0(struct eng_item, l.n_places);
        b.res = h_new0(struct eng_result, l.n_places);
        if (r == 0 && (!b.ids || !b.seq || !b.items || !b.res))
                r = 71;
        if (r == 0)
                own_tokens(eng_model_info(p.model)->n_vocab, l.n_places, n_ids, b.ids);
        if (r == 0)
                r = run(&b, &pre, &dec);
        if (r == 0) {
                eng_context_memory(p.context, &mem);
                report(&b, &mem, pre, dec);
        }
        free(b.ids);
        free(b.seq);
        free(b.items);
        free(b.res);
        probe_close(&p);
        return r;
}
