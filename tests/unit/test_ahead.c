/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps begun before the one before them is finished give the text, the
 * log-probabilities and the logit bits of steps made one after the other, and
 * what turns out to be too much is taken back without a trace: also beside
 * prompts, with recurrent states, and when sequences end and others take their
 * pages while a step is in flight. And the tokens of one sequence are those of
 * the same one among thirty-two, beside a prompt, and in a context made anew.
 *
 *   test_ahead [--cuda] DIR...   every model in DIR/models
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/open_model.h"

#define STREAMS 5u
#define ROUNDS 12u   /* tokens of the longest stream */
#define PROMPT 20u

struct stream {
        eng_seq seq;
        struct eng_sampling s;
        struct eng_bias bias;
        uint32_t n_prompt, stop;      /* tokens until it is told to stop */
        uint32_t fed;                 /* of the prompt */
        uint32_t out[ROUNDS + 2];
        float logprob[ROUNDS + 2];
        uint32_t n, in_flight;
        bool open, dead;
};

struct run {
        const char *name;
        enum eng_backend backend;
        struct opened m;
        struct eng_context *c;
        uint32_t n_vocab;
        unsigned failed;
};

static void fail(struct run *x, const char *what, uint32_t detail) {
        if (x->failed++ < 6)
                printf("FAIL %s: %s (%u)\n", x->name, what, detail);
}

static uint32_t token(const struct run *x, uint32_t seed, uint32_t i) {
        return (seed * 7919 + i * 37 + i / 5 * 3 + 11) % x->n_vocab;
}

static void start(struct run *x, struct stream *v, bool stops) {
        for (uint32_t i = 0; i < STREAMS; i++) {
                struct stream *t = &v[i];
                *t = (struct stream){ .n_prompt = PROMPT - 3 * i, .stop = stops ? 3 + 2 * i : ROUNDS };
                t->s = (struct eng_sampling){ .temperature = i == 0 ? 0 : 0.9f, .seed = 11 * i, .repeat_penalty = i == 2 ? 1.3f : 1,
                                              .top_k = i == 3 ? 7 : 0, .top_p = i == 4 ? 0.8f : 1, .n_top = i,
                                              .presence_penalty = i == 1 ? 0.4f : 0, .penalty_last = i == 2 ? 9 : 0 };
                if (i == 4) {
                        t->bias = (struct eng_bias){ token(x, 3, 3), 2.5f };
                        t->s.bias = &t->bias;
                        t->s.n_bias = 1;
                }
                if (eng_seq_new(x->c, &t->seq) < 0)
                        exit(1);
                t->open = true;
        }
}

static void end(struct run *x, struct stream *v) {
        for (uint32_t i = 0; i < STREAMS; i++)
                if (v[i].open)
                        eng_seq_free(x->c, v[i].seq);
}

/* One item per stream that has something to feed; a prompt goes in pieces of 8. */
static uint32_t compose(struct run *x, struct stream *v, struct eng_item *it, uint32_t *who, uint32_t ids[][8]) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < STREAMS; i++) {
                struct stream *t = &v[i];
                struct eng_item *e = &it[n];

                if (t->dead || t->n + t->in_flight > ROUNDS)
                        continue;
                *e = (struct eng_item){ .seq = t->seq, .tokens = ids[i], .sampling = &t->s };
                if (t->fed < t->n_prompt) {
                        e->n = MIN(8u, t->n_prompt - t->fed);
                        for (uint32_t k = 0; k < e->n; k++)
                                ids[i][k] = token(x, i, t->fed + k);
                        t->fed += e->n;
                        e->want = t->fed == t->n_prompt ? ENG_WANT_SAMPLE : ENG_WANT_NONE;
                } else {
                        e->n = 1;
                        e->role = ENG_ROLE_GENERATED;
                        e->want = ENG_WANT_SAMPLE;
                        if (t->in_flight)
                                e->tokens = NULL;
                        else
                                ids[i][0] = t->out[t->n - 1];
                }
                t->in_flight += e->want == ENG_WANT_SAMPLE;
                who[n++] = i;
        }
        return n;
}

static void take(struct run *x, struct stream *v, const uint32_t *who, const struct eng_item *it, uint32_t n,
                 const struct eng_result *res) {
        for (uint32_t i = 0; i < n; i++) {
                struct stream *t = &v[who[i]];
                uint32_t kept;

                if (it[i].want != ENG_WANT_SAMPLE)
                        continue;
                t->in_flight--;
                if (t->dead)
                        continue;
                t->out[t->n] = res[i].token;
                t->logprob[t->n++] = res[i].logprob;
                if (res[i].n_top != t->s.n_top)
                        fail(x, "other number of best tokens", who[i]);
                if (t->n == t->stop) {
                        uint32_t len = t->n_prompt + t->n - 1; /* the last token was sampled, not fed */
                        t->dead = true;
                        if (eng_seq_trim(x->c, t->seq, len, &kept) < 0 || kept != len || eng_seq_len(x->c, t->seq) != len)
                                fail(x, "a token too many can't be taken back; kept", kept);
                }
        }
}

static void check(struct run *x, int r, const struct h_error *err) {
        if (r == 0)
                return;
        printf("FAIL %s: %d: %s\n", x->name, r, err->message);
        exit(1);
}

static void generate(struct run *x, struct stream *v, bool ahead) {
        struct eng_item it[2][STREAMS];
        struct eng_result res[STREAMS];
        uint32_t who[2][STREAMS], ids[2][STREAMS][8], n[2], turn = 0;
        struct h_error err = { 0 };

        n[0] = compose(x, v, it[0], who[0], ids[0]);
        if (!ahead) {
                for (; n[0]; n[0] = compose(x, v, it[0], who[0], ids[0])) {
                        check(x, eng_step(x->c, it[0], n[0], res, &err), &err);
                        take(x, v, who[0], it[0], n[0], res);
                }
                return;
        }
        check(x, eng_step_begin(x->c, it[0], n[0], &err), &err);
        for (;; turn ^= 1) {
                size_t got = 0;
                n[turn ^ 1] = compose(x, v, it[turn ^ 1], who[turn ^ 1], ids[turn ^ 1]);
                if (n[turn ^ 1])
                        check(x, eng_step_begin(x->c, it[turn ^ 1], n[turn ^ 1], &err), &err);
                check(x, eng_step_finish(x->c, res, &got, &err), &err);
                if (got != n[turn])
                        fail(x, "other number of results", (uint32_t)got);
                take(x, v, who[turn], it[turn], n[turn], res);
                if (!n[turn ^ 1])
                        return;
        }
}

/* The bits of what follows: everything that was kept is read again. */
static void probe(struct run *x, struct stream *v, float *out) {
        for (uint32_t i = 0; i < STREAMS; i++) {
                uint32_t id = token(x, 50, i);
                struct eng_item it = { .seq = v[i].seq, .tokens = &id, .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST };
                struct eng_result res;
                struct h_error err = { 0 };

                check(x, eng_step(x->c, &it, 1, &res, &err), &err);
                memcpy(out + (size_t)i * x->n_vocab, res.logits, x->n_vocab * sizeof(float));
        }
}

static void check_same(struct run *x, bool stops) {
        struct stream a[STREAMS], b[STREAMS];
        size_t bytes = (size_t)STREAMS * x->n_vocab * sizeof(float);
        float *want = malloc(bytes), *got = malloc(bytes);

        start(x, a, stops);
        generate(x, a, false);
        probe(x, a, want);
        end(x, a);
        start(x, b, stops);
        generate(x, b, true);
        for (uint32_t i = 0; i < STREAMS; i++) {
                uint32_t len = eng_seq_len(x->c, b[i].seq);
                const uint32_t *tokens = eng_seq_tokens(x->c, b[i].seq);

                if (a[i].n != b[i].n || memcmp(a[i].out, b[i].out, a[i].n * sizeof(uint32_t)) != 0)
                        fail(x, "other tokens", i);
                if (memcmp(a[i].logprob, b[i].logprob, a[i].n * sizeof(float)) != 0)
                        fail(x, "other log-probabilities", i);
                if (len != a[i].n_prompt + a[i].n - 1)
                        fail(x, "another length", len);
                else if (memcmp(tokens + b[i].n_prompt, b[i].out, (b[i].n - 1) * sizeof(uint32_t)) != 0)
                        fail(x, "the sequence has other tokens than were given out", i);
        }
        probe(x, b, got);
        if (memcmp(want, got, bytes) != 0)
                fail(x, "other logit bits after going on from what was kept", stops);
        end(x, b);
        free(want);
        free(got);
}

/* What may be begun, and what must wait. */
static void check_rules(struct run *x) {
        struct eng_sampling s = { .repeat_penalty = 1 };
        uint32_t id = 1;
        eng_seq q = { 0 };
        struct eng_item first = { .seq = q, .tokens = &id, .n = 1, .want = ENG_WANT_SAMPLE, .sampling = &s };
        struct eng_item next = { .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_SAMPLE, .sampling = &s };
        struct eng_result res;
        struct h_error err = { 0 };

        if (eng_step_finish(x->c, &res, NULL, &err) != -EINVAL)
                fail(x, "a step was finished that was not begun", 0);
        if (eng_seq_new(x->c, &q) < 0)
                exit(1);
        first.seq = next.seq = q;
        if (eng_step_begin(x->c, &next, 1, &err) != -EINVAL)
                fail(x, "a token was fed that no step samples", 0);
        check(x, eng_step_begin(x->c, &first, 1, &err), &err);
        if (eng_step(x->c, &next, 1, &res, &err) != -EBUSY)
                fail(x, "a whole step beside one in flight", 0);
        check(x, eng_step_begin(x->c, &next, 1, &err), &err);
        if (eng_step_begin(x->c, &next, 1, &err) != ENG_WAIT)
                fail(x, "three steps in flight", 0);
        check(x, eng_step_finish(x->c, &res, NULL, &err), &err);
        id = 2;
        first.role = ENG_ROLE_GENERATED;
        first.want = ENG_WANT_LOGITS_LAST;
        check(x, eng_step_finish(x->c, &res, NULL, &err), &err);
        check(x, eng_step_begin(x->c, &first, 1, &err), &err);
        if (eng_step_begin(x->c, &first, 1, &err) != ENG_WAIT)
                fail(x, "logits that were not read yet can be overwritten", 0);
        check(x, eng_step_finish(x->c, &res, NULL, &err), &err);
        /* Freed in flight: the result still comes, the place is another's. */
        first.want = ENG_WANT_SAMPLE;
        check(x, eng_step_begin(x->c, &first, 1, &err), &err);
        check(x, eng_step_begin(x->c, &next, 1, &err), &err);
        eng_seq_free(x->c, q);
        check(x, eng_step_finish(x->c, &res, NULL, &err), &err);
        check(x, eng_step_finish(x->c, &res, NULL, &err), &err);
}

/* ---- company ------------------------------------------------------------------- */

#define MANY 32u
#define TOKENS 6u

struct text { uint32_t id[TOKENS]; float logprob[TOKENS]; };

static const struct eng_sampling greedy = { .repeat_penalty = 1, .n_top = 2 };

static eng_seq begin_text(struct run *x, uint32_t i) {
        uint32_t ids[24], n = 5 + i % 19;
        eng_seq s;
        struct eng_item it = { .tokens = ids, .n = n };
        struct eng_result res;
        struct h_error err = { 0 };

        if (eng_seq_new(x->c, &s) < 0)
                exit(1);
        it.seq = s;
        for (uint32_t k = 0; k < n; k++)
                ids[k] = token(x, 60 + i, k);
        check(x, eng_step(x->c, &it, 1, &res, &err), &err);
        return s;
}

/* Sequences [i0, i0 + n) together, with a prompt's chunks beside them if there is room for its sequence. */
static void generate_company(struct run *x, uint32_t i0, uint32_t n, bool prompt, struct text *out) {
        struct eng_item it[MANY + 1];
        struct eng_result res[MANY + 1];
        struct h_error err = { 0 };
        uint32_t first[MANY], chunk[7];
        eng_seq s[MANY], p = { 0 };

        for (uint32_t i = 0; i < n; i++)
                s[i] = begin_text(x, i0 + i);
        if (prompt)
                p = begin_text(x, 99);
        for (uint32_t k = 0; k < 7; k++)
                chunk[k] = token(x, 7, k);
        for (uint32_t step = 0; step <= TOKENS; step++) {
                if (step < TOKENS) {
                        for (uint32_t i = 0; i < n; i++) {
                                first[i] = token(x, 40, i0 + i);
                                it[i] = (struct eng_item){ .seq = s[i], .tokens = step ? NULL : &first[i], .n = 1,
                                                           .role = ENG_ROLE_GENERATED, .want = ENG_WANT_SAMPLE, .sampling = &greedy };
                        }
                        if (prompt)
                                it[n] = (struct eng_item){ .seq = p, .tokens = chunk, .n = 7 };
                        check(x, eng_step_begin(x->c, it, n + prompt, &err), &err);
                }
                if (step > 0) {
                        check(x, eng_step_finish(x->c, res, NULL, &err), &err);
                        for (uint32_t i = 0; i < n; i++) {
                                out[i].id[step - 1] = res[i].token;
                                out[i].logprob[step - 1] = res[i].logprob;
                        }
                }
        }
        for (uint32_t i = 0; i < n; i++)
                eng_seq_free(x->c, s[i]);
        if (prompt)
                eng_seq_free(x->c, p);
}

static void open_context(struct run *x) {
        struct eng_limits l = { .n_places = MANY + 1, .n_ctx = 96, .n_rows = 64, .ahead = true };
        struct h_error err = { 0 };
        int r;

        check(x, eng_context_new(x->m.model, &l, &x->c, &err), &err);
        while ((r = eng_context_warm(x->c, &err)) > 0)
                ;
        check(x, r, &err);
}

static void check_company(struct run *x) {
        struct eng_limits larger = { .n_places = 2, .n_ctx = 128, .n_rows = 256 };
        struct text alone[MANY], got[MANY];
        struct eng_context *other = NULL;
        struct h_error err = { 0 };

        open_context(x);
        for (uint32_t i = 0; i < MANY; i++)
                generate_company(x, i, 1, false, &alone[i]);
        /* Another model's coming and going leaves this one's graphs and memory alone. */
        check(x, eng_context_new(x->m.model, &larger, &other, &err), &err);
        for (int prompt = 0; prompt < 2; prompt++) {
                memset(got, 0, sizeof(got));
                generate_company(x, 0, MANY, prompt, got);
                if (memcmp(alone, got, sizeof(alone)) != 0)
                        fail(x, prompt ? "other tokens among 32 and beside a prompt" : "other tokens among 32", 0);
                other = eng_context_free(other);
        }
        eng_context_free(x->c);
        open_context(x);
        generate_company(x, 3, 9, true, got);
        if (memcmp(alone + 3, got, 9 * sizeof(*got)) != 0)
                fail(x, "other tokens in a context made anew", 0);
        eng_context_free(x->c);
}

static unsigned check_model(const char *path, const char *name, enum eng_backend backend) {
        struct eng_device_options o = { .backend = backend, .threads = 2 };
        struct eng_limits l = { .n_places = STREAMS, .n_ctx = 96, .n_rows = 64, .ahead = true };
        struct run x = { .name = name, .backend = backend };
        struct h_error err = { 0 };
        int r;

        if (open_model(path, &o, &x.m) < 0)
                return 1;
        x.n_vocab = eng_model_info(x.m.model)->n_vocab;
        check(&x, eng_context_new(x.m.model, &l, &x.c, &err), &err);
        while ((r = eng_context_warm(x.c, &err)) > 0)
                ;
        check(&x, r, &err);
        check_rules(&x);
        check_same(&x, false);
        check_same(&x, true);
        eng_context_free(x.c);
        check_company(&x);
        close_model(&x.m);
        printf("%-24s %s\n", name, x.failed ? "FAILED" : "ok");
        fflush(stdout);
        return x.failed;
}

int main(int argc, char **argv) {
        enum eng_backend backend = ENG_CPU;
        unsigned failed = 0, models = 0;

        for (int a = 1; a < argc; a++) {
                struct dirent **e;
                char path[4096];
                int n;

                if (strcmp(argv[a], "--cuda") == 0) {
                        backend = ENG_CUDA;
                        continue;
                }
                snprintf(path, sizeof(path), "%s/models", argv[a]);
                n = scandir(path, &e, NULL, alphasort);
                if (n < 0) {
                        printf("skipped: %s is not there\n", path);
                        return 77;
                }
                for (int i = 0; i < n; i++) {
                        if (strstr(e[i]->d_name, ".gguf")) {
                                snprintf(path, sizeof(path), "%s/models/%s", argv[a], e[i]->d_name);
                                failed += check_model(path, e[i]->d_name, backend) != 0;
                                models++;
                        }
                        free(e[i]);
                }
                free(e);
        }
        printf("%u passed, %u failed, 0 skipped\n", models - failed, failed);
        return failed || !models;
}
