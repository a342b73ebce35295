/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suite: one model's figures, a JSON line each as soon as it is there, so that a
 * run that is cut short has given what it measured: memory by kind, prefill of 512
 * and 2,048, decode alone at depth 0 and 8,192 (less if the model's context ends
 * before: the line has the depth), decode of 4, 8, 16 and 32 sequences, each with
 * tokens of its own ("different": as many at every position).
 * tests/bench/synth/run asks for it; medians of --repeat runs after one to warm up.
 */
#include <string.h>

#include "base/alloc.h"
#include "probe.h"

enum { MAX_BATCH = 32, MAX_REPEAT = 64, CHUNK = 2048, WARM = 8 };

struct suite {
        const struct options *o;
        struct probe *p;
        uint32_t *ids, n_ids; /* [MAX_BATCH][n_ids], by own_tokens() */
        eng_seq seq[MAX_BATCH];
        struct eng_item item[MAX_BATCH];
        struct eng_result res[MAX_BATCH];
};

static int double_compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static const uint32_t *ids_of(const struct suite *s, uint32_t place) { return s->ids + (size_t)place * s->n_ids; }

static int no_row(void *ud, uint32_t pos, const float *logits) { return 0; }

/* Prefill of n tokens into each of 'places' new sequences; ret_seconds may be NULL. */
static int fill(struct suite *s, uint32_t places, uint32_t n, double *ret_seconds) {
        double t0;
        int r = 0;

        for (uint32_t i = 0; i < places; i++)
                if (eng_seq_new(s->p->context, &s->seq[i]) < 0)
                        return 70;
        t0 = now_seconds();
        for (uint32_t i = 0; r == 0 && n && i < places; i++)
                r = feed(s->p, s->o, s->seq[i], ids_of(s, i), n, ENG_ROLE_PROMPT, false, no_row, NULL);
        if (ret_seconds)
                *ret_seconds = now_seconds() - t0;
        return r;
}

static void drop(struct suite *s, uint32_t places) {
        for (uint32_t i = 0; i < places; i++)
                eng_seq_free(s->p->context, s->seq[i]);
}

static int steps(struct suite *s, uint32_t places, uint32_t n, double *ret_seconds) {
        double t0 = now_seconds();
        int r = 0;

        for (uint32_t k = 0; r == 0 && k < n; k++) {
                struct h_error err = { 0 };
                for (uint32_t i = 0; i < places; i++)
                        s->item[i] = (struct eng_item){ .seq = s->seq[i], .tokens = ids_of(s, i) + k % s->n_ids, .n = 1,
                                                        .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST };
                r = eng_step(s->p->context, s->item, places, s->res, &err);
                if (r != 0)
                        r = probe_fail(&err, r);
        }
        *ret_seconds = now_seconds() - t0;
        return r;
}

static void print(const char *what, uint32_t n, double tokens, double *seconds, uint32_t k, uint32_t different) {
        qsort(seconds, k, sizeof(*seconds), double_compare);
        printf("{\"what\": \"%s\", \"n\": %u, \"tok_s\": %.2f, \"slowest\": %.2f, \"fastest\": %.2f, \"different\": %u}\n", what, n,
               tokens / (k % 2 ? seconds[k / 2] : (seconds[k / 2 - 1] + seconds[k / 2]) / 2), tokens / seconds[k - 1], tokens / seconds[0],
               different);
        fflush(stdout);
}

static uint32_t repeats(const struct suite *s) { return MIN(MAX(s->o->repeat, 1u), (uint32_t)MAX_REPEAT); }

static int prefill(struct suite *s, uint32_t n) {
        double t[MAX_REPEAT], warm;
        int r = fill(s, 1, n, &warm);

        drop(s, 1);
        for (uint32_t i = 0; r == 0 && i < repeats(s); i++) {
                r = fill(s, 1, n, &t[i]);
                drop(s, 1);
        }
        if (r == 0)
                print("prefill", n, n, t, repeats(s), 1);
        return r;
}

/* The first run warms up (graphs are made when a step comes again). */
static int decode(struct suite *s, const char *what, uint32_t n, uint32_t places, uint32_t depth) {
        double t[MAX_REPEAT], warm;
        uint32_t different;
        int r = fill(s, places, depth, NULL);

        if (r == 0)
                r = steps(s, places, MIN(s->o->decode, (uint32_t)WARM), &warm);
        for (uint32_t i = 0; r == 0 && i < repeats(s); i++)
                r = steps(s, places, s->o->decode, &t[i]);
        different = r == 0 ? count_different(s->p, s->seq, places) : 0;
        drop(s, places);
        if (r == 0)
                print(what, n, (double)places * s->o->decode, t, repeats(s), different);
        return r;
}

/* A context for these limits, and what it holds by kind. */
static int context(struct suite *s, uint32_t places, uint32_t n_ctx) {
        struct eng_limits l = { .n_places = places, .n_ctx = n_ctx, .n_rows = CHUNK, .kv = s->o->kv };
        struct eng_memory m = { 0 };
        int r;

        s->p->context = eng_context_free(s->p->context);
        r = probe_context(s->p, &l);
        if (r == 0 && eng_plan(s->p->model, eng_context_limits(s->p->context), UINT64_MAX, &m, NULL) == 0)
                printf("{\"what\": \"memory\", \"places\": %u, \"n_ctx\": %u, \"weights\": %llu, \"kv\": %llu, \"state\": %llu, \"draft\": %llu, "
                       "\"workspace\": %llu, \"graphs\": %llu, \"context\": %llu, \"total\": %llu}\n", places, n_ctx, (unsigned long long)m.weights,
                       (unsigned long long)m.kv, (unsigned long long)m.state, (unsigned long long)m.draft, (unsigned long long)m.workspace,
                       (unsigned long long)m.graphs, (unsigned long long)m.context, (unsigned long long)m.total);
        fflush(stdout);
        return r;
}

int cmd_suite(const struct options *o) {
        static const uint32_t batches[] = { 4, 8, 16, 32 };
        const uint32_t room = o->decode * (MIN(MAX(o->repeat, 1u), (uint32_t)MAX_REPEAT)) + 2 * WARM;
        uint32_t depth = o->depth ? o->depth : 8192;
        struct options with = *o;
        struct probe p = { 0 };
        struct suite s = { .o = &with, .p = &p };
        const struct eng_model_info *info;
        int r;

        with.chunk = o->chunk ? o->chunk : CHUNK;
        r = probe_open(o, &p);
        if (r)
                return r;
        info = eng_model_info(p.model);
        if (info->n_ctx_train > room)
                depth = MIN(depth, info->n_ctx_train - room);
        s.n_ids = MAX(depth, 2048u);
        s.ids = h_new0(uint32_t, (size_t)MAX_BATCH * s.n_ids);
        r = s.ids ? 0 : 71;
        if (r == 0)
                own_tokens(info->n_vocab, MAX_BATCH, s.n_ids, s.ids);
        if (r == 0)
                printf("{\"what\": \"model\", \"name\": \"%s\", \"type\": \"%s\", \"device\": \"%s\", \"load_s\": %.3f, \"bytes\": %llu}\n", info->name,
                       info->type, eng_device_describe(p.device), p.load_seconds, (unsigned long long)info->bytes);
        fflush(stdout);
        if (r == 0)
                r = context(&s, 1, MAX(depth, 2048u) + room);
        if (r == 0)
                r = decode(&s, "decode", 0, 1, 0);
        if (r == 0)
                r = prefill(&s, 512);
        if (r == 0)
                r = prefill(&s, 2048);
        if (r == 0)
                r = decode(&s, "decode", depth, 1, depth);
        if (r == 0)
                r = context(&s, MAX_BATCH, room);
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(batches); i++)
                r = decode(&s, "batch", batches[i], batches[i], 0);
        free(s.ids);
        probe_close(&p);
        return r;
}
