/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling parameters as a device takes them, and its results as callers get
 * them. What depends on the C library's functions (exponent of min_p, logarithm
 * of the norm) is computed here, as engine/sample.c does it.
 *
 * Rows with more than K_SAMPLE_BIAS biased tokens are sampled on the host, from
 * logits copied for them; nothing else falls back.
 */
#include <math.h>
#include <stddef.h>

#include "engine/context.h"
#include "engine/sample.h"

_Static_assert((int)K_SAMPLE_TOP == (int)ELEMENTSOF(((struct eng_result *)0)->top), "as many best tokens");
_Static_assert(sizeof(struct k_sample_bias) == sizeof(struct eng_bias) &&
              offsetof(struct k_sample_bias, bias) == offsetof(struct eng_bias, bias), "the same biases");

bool sample_on_device(const struct eng_context *c, const struct eng_sampling *s) {
        return c->async && s->n_bias <= K_SAMPLE_BIAS;
}

void sample_row(const struct eng_context *c, const struct eng_sampling *s, uint32_t place, uint32_t row, uint32_t n_history,
                uint64_t stamp, struct k_sample_out *out, struct k_sample_row *ret) {
        uint32_t n_vocab = c->m->desc->n_vocab;
        float scale = 1 / s->temperature;
        bool penalties = sample_penalizes(s);

        *ret = (struct k_sample_row){
                .row = row, .place = place, .n_history = n_history, .repeat = s->repeat_penalty, .presence = s->presence_penalty,
                .frequency = s->frequency_penalty, .top_k = s->top_k < n_vocab ? s->top_k : 0,
                .top_p = s->top_p > 0 && s->top_p < 1 ? s->top_p : 1,
                .log_min_p = s->min_p > 0 ? logf(MIN(s->min_p, 1.0f)) : -INFINITY,
                .n_top = MIN(s->n_top, n_vocab), .noise = sample_noise(s->seed, n_history), .n_bias = (uint32_t)s->n_bias,
                .bias = (const struct k_sample_bias *)s->bias, .mask = s->mask, .out = out, .stamp = stamp,
        };
        if (s->temperature > 0 && s->top_k != 1 && isfinite(scale))
                ret->scale = scale;
        if (penalties)
                ret->n_penalty = s->penalty_last ? MIN(s->penalty_last, n_history) : n_history;
}

void sample_result(const struct eng_context *c, const struct k_sample_out *o, struct eng_result *ret) {
        double norm = sample_norm(o->max, o->mass);

        ret->token = o->token;
        ret->logprob = o->token < c->m->desc->n_vocab ? (float)((double)o->logit - norm) : 0;
        ret->n_top = o->n_top;
        for (uint32_t i = 0; i < o->n_top; i++)
                ret->top[i] = (struct eng_top){ o->top[i].token, (float)((double)o->top[i].logit - norm) };
}
