/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's sampler against the host's (engine/sample.c): the same token, the
 * same best tokens and the same sums, bit for bit, for random, tied, flat, peaked
 * and poisoned logits, every kind of parameter, and vocabularies of all sizes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "check.h"
#include "engine/sample.h"

#define ROWS 12u
#define HISTORY 300u

static float uniform(uint32_t *seed) {
        return (float)(rnd(seed) >> 8) / (float)(1 << 24);
}

/* One row of logits of a kind. */
static void fill(float *x, uint32_t n, uint32_t kind, uint32_t *seed) {
        for (uint32_t i = 0; i < n; i++) {
                float v = (uniform(seed) + uniform(seed) + uniform(seed) - 1.5f) * 8;
                switch (kind) {
                case 0: x[i] = v; break;
                case 1: x[i] = roundf(v); break;                       /* ties */
                case 2: x[i] = 0.25f; break;                           /* flat */
                case 3: x[i] = v * 0.001f - 40; break;                 /* nearly flat */
                case 4: x[i] = i == n / 2 ? 60 : v; break;             /* one peak */
                case 5: x[i] = v * 1e30f; break;
                case 6: x[i] = rnd(seed) % 7 ? v : rnd(seed) % 2 ? NAN : -INFINITY; break;
                case 7: x[i] = rnd(seed) % 50 ? v : INFINITY; break;
                case 8: x[i] = NAN; break;
                case 9: x[i] = -INFINITY; break;
                case 10: x[i] = rnd(seed) % 2 ? 0.0f : -0.0f; break;
                default: x[i] = v < 0 ? v * 20 : v; break;             /* a long tail */
                }
        }
}

static void parameters(struct eng_sampling *s, uint32_t n, uint32_t round, struct eng_bias *bias, uint64_t *mask, uint32_t *seed) {
        *s = (struct eng_sampling){ .temperature = rnd(seed) % 5 ? 0.05f + 2 * uniform(seed) : 0, .repeat_penalty = 1,
                                    .seed = rnd(seed), .n_top = rnd(seed) % 3 ? 0 : rnd(seed) % 21 };
        if (rnd(seed) % 2)
                s->top_k = 1 + rnd(seed) % (rnd(seed) % 2 ? 50 : n + 10);
        if (rnd(seed) % 2)
                s->top_p = rnd(seed) % 8 ? 0.02f + uniform(seed) : 1e-6f;
        if (rnd(seed) % 3 == 0)
                s->min_p = uniform(seed) * 0.3f;
        if (rnd(seed) % 3 == 0) {
                s->repeat_penalty = 0.5f + uniform(seed) * 2;
                s->presence_penalty = uniform(seed) - 0.5f;
                s->frequency_penalty = uniform(seed) - 0.5f;
                s->penalty_last = rnd(seed) % 2 ? rnd(seed) % 400 : 0;
        }
        if (rnd(seed) % 4 == 0) {
                s->bias = bias;
                s->n_bias = 1 + rnd(seed) % K_SAMPLE_BIAS;
                for (size_t i = 0; i < s->n_bias; i++) /* few of them: tokens come twice */
                        bias[i] = (struct eng_bias){ rnd(seed) % MIN(n, 300u), rnd(seed) % 9 ? 10 * uniform(seed) - 5 : -INFINITY };
        }
        if (rnd(seed) % 4 == 0) {
                s->mask = mask;
                for (uint32_t i = 0; i < DIV_ROUND_UP(n, 64u); i++) {
                        mask[i] = ((uint64_t)rnd(seed) << 32 | rnd(seed)) & ((uint64_t)rnd(seed) << 32 | rnd(seed));
                        if (round % 3 == 0)
                                mask[i] &= rnd(seed) % 16 ? 0 : UINT64_MAX;
                }
        }
}

/* As engine/step_sample.c makes it, written apart. */
static struct k_sample_row row_of(const struct eng_sampling *s, uint32_t n, uint32_t i, uint32_t len, struct k_sample_out *out) {
        struct k_sample_row r = { .row = i, .place = ROWS - 1 - i, .n_history = len, .repeat = s->repeat_penalty,
                                  .presence = s->presence_penalty, .frequency = s->frequency_penalty,
                                  .top_k = s->top_k < n ? s->top_k : 0, .top_p = s->top_p > 0 && s->top_p < 1 ? s->top_p : 1,
                                  .log_min_p = s->min_p > 0 ? logf(fminf(s->min_p, 1)) : -INFINITY, .n_top = MIN(s->n_top, n),
                                  .noise = sample_noise(s->seed, len), .n_bias = (uint32_t)s->n_bias,
                                  .bias = (const struct k_sample_bias *)s->bias, .mask = s->mask, .out = out };
        r.scale = s->temperature > 0 && s->top_k != 1 ? 1 / s->temperature : 0;
        if (sample_penalizes(s))
                r.n_penalty = s->penalty_last ? MIN(s->penalty_last, len) : len;
        return r;
}

static bool same_bits(float a, float b) {
        return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

static const char *differs(const struct k_sample_out *o, const struct eng_result *want, uint32_t n) {
        double norm = sample_norm(o->max, o->mass);

        if (o->token != want->token)
                return "token";
        if (!same_bits(o->token < n ? (float)((double)o->logit - norm) : 0, want->logprob))
                return "log-probability";
        if (o->n_top != want->n_top)
                return "number of best tokens";
        for (uint32_t i = 0; i < o->n_top; i++)
                if (o->top[i].token != want->top[i].token || !same_bits((float)((double)o->top[i].logit - norm), want->top[i].logprob))
                        return "best tokens";
        return NULL;
}

static void check_vocab(struct rig *r, uint32_t n, uint32_t rounds) {
        const struct k_ops *ops = r->gpu->ops;
        uint32_t seed = n * 77 + 5, place[ROWS], token[ROWS], seq[ROWS], bad = 0, sampled[ROWS];
        int32_t pos[ROWS];
        float *x = h_malloc((size_t)ROWS * n * sizeof(float));
        uint32_t *history = h_malloc((size_t)ROWS * HISTORY * sizeof(uint32_t));
        struct eng_bias *bias = h_malloc(ROWS * K_SAMPLE_BIAS * sizeof(*bias));
        size_t words = DIV_ROUND_UP(n, 64u);
        uint64_t *mask = h_malloc(ROWS * words * sizeof(uint64_t));
        void *logits = ops->mem_alloc(r->gpu, (size_t)ROWS * n * sizeof(float)), *scratch = ops->mem_alloc(r->gpu, ops->sample_scratch(ROWS, n));
        uint32_t *tokens = ops->mem_alloc(r->gpu, ROWS * sizeof(uint32_t)), *hist = ops->mem_alloc(r->gpu, (size_t)ROWS * HISTORY * sizeof(uint32_t));
        struct k_sample_out *out = ops->host_alloc(r->gpu, ROWS * sizeof(*out));
        struct k_batch b = { .n = ROWS, .n_d = ROWS, .n_seq = ROWS, .token = token, .pos = pos, .seq = seq, .place = place,
                             .sampled = tokens, .history = hist, .history_stride = HISTORY };

        for (uint32_t round = 0; round < rounds; round++) {
                struct eng_sampling s[ROWS];
                struct k_sample_row rows[ROWS];
                uint32_t len[ROWS];

                for (uint32_t i = 0; i < ROWS; i++) {
                        fill(x + (size_t)i * n, n, (i + round) % 12, &seed);
                        parameters(&s[i], n, round, bias + i * K_SAMPLE_BIAS, mask + i * words, &seed);
                        len[i] = 1 + rnd(&seed) % HISTORY;
                        rows[i] = row_of(&s[i], n, i, len[i], &out[i]);
                        place[i] = ROWS - 1 - i;
                        token[i] = pos[i] = 0;
                        seq[i] = i;
                        for (uint32_t k = 0; k < HISTORY; k++) /* by place; few different ones */
                                history[rows[i].place * HISTORY + k] = rnd(&seed) % 5 ? rnd(&seed) % MIN(n, 40u) : rnd(&seed) % n;
                }
                memset(out, 0xff, ROWS * sizeof(*out));
                ops->upload(r->gpu, logits, x, (size_t)ROWS * n * sizeof(float));
                ops->upload(r->gpu, hist, history, (size_t)ROWS * HISTORY * sizeof(uint32_t));
                struct k_sample_args a = { .logits = logits, .n_vocab = n, .rows = rows, .n = ROWS, .scratch = scratch };
                if (ops->batch_begin(r->gpu, &b) < 0 || ops->sample(r->gpu, &b, &a) < 0 || ops->batch_end(r->gpu, &b) < 0 ||
                    ops->download(r->gpu, sampled, tokens, sizeof(sampled)) < 0) {
                        expect(r, false, "sampling from %u: %s", n, ops->last_error(r->gpu));
                        exit(1);
                }
                for (uint32_t i = 0; i < ROWS; i++) {
                        struct eng_result want;
                        const char *what;

                        eng_sample(x + (size_t)i * n, n, &s[i], history + rows[i].place * HISTORY, len[i], len[i], &want);
                        what = differs(&out[i], &want, n);
                        if (!what && sampled[rows[i].place] != want.token)
                                what = "token for the next step";
                        if (what && bad++ < 3)
                                printf("FAIL  vocabulary %u, round %u, logits of kind %u: other %s: %u, want %u (T %g k %u p %g min %g top %u, "
                                       "penalties %u, biases %zu, mask %d)\n", n, round, (i + round) % 12, what, out[i].token, want.token,
                                       (double)s[i].temperature, s[i].top_k, (double)s[i].top_p, (double)s[i].min_p, s[i].n_top,
                                       rows[i].n_penalty, s[i].n_bias, s[i].mask != NULL);
                }
        }
        expect(r, bad == 0, "sampling from %u tokens: %u of %u rows differ", n, bad, rounds * ROWS);
        ops->mem_free(r->gpu, logits);
        ops->mem_free(r->gpu, scratch);
        ops->mem_free(r->gpu, tokens);
        ops->mem_free(r->gpu, hist);
        ops->host_free(r->gpu, out);
        free(x);
        free(history);
        free(bias);
        free(mask);
}

void check_sample(struct rig *r) {
        static const uint32_t sizes[] = { 1, 2, 31, 33, 257, 1000, 4095, 4096, 4097, 32003, 128256, 151936, 262144 };

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++)
                if (!r->tiny)
                        check_vocab(r, sizes[i], sizes[i] > 100000 ? 6 : 24);
                else if (sizes[i] < 4095 || sizes[i] == 4097) /* one of those around a chunk's end: the kernels' many atomics take a racecheck longest */
                        check_vocab(r, sizes[i], sizes[i] < 1000 ? 2 : 1);
}
