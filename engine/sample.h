/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The sampler's parts, inside the engine. eng_sample() (engine.h) is the whole. */

#include "engine/engine.h"

#define SAMPLE_BLOCK 1024u

struct sampler_scratch {
        float *work;       /* [n_vocab] adjusted logits */
        float *weight;     /* [n_vocab] of the candidates */
        uint32_t *id;      /* [n_vocab] candidates */
        uint32_t *count;   /* [n_vocab] occurrences in the history; zero between calls */
        double *block;     /* [DIV_ROUND_UP(n_vocab, SAMPLE_BLOCK)] sums */
};

/* As eng_sample(), with scratch; allocates nothing. */
uint32_t sample_with(struct sampler_scratch *w, const float *logits, uint32_t n_vocab, const struct eng_sampling *s,
                     const uint32_t *history, uint32_t n_history, uint32_t pos, struct eng_result *ret);

/* Passes over a vocabulary. NaN counts as -infinity. The same bits on every processor. */
float vec_max(const float *x, uint32_t n);
uint32_t vec_find(const float *x, uint32_t n, float value); /* lowest index with x == value; n if none */
/* Sum of exp((x - shift) * scale); block[i]: the part of SAMPLE_BLOCK values, if not NULL. */
double vec_exp_sum(const float *x, uint32_t n, float shift, float scale, double *block);
float vec_exp(float x); /* the same function for one value; x <= 0 */
/* Writes the indices with x >= least, ascending, at most max of them; returns how many there are (>= max: cut). */
uint32_t vec_gather(const float *x, uint32_t n, float least, uint32_t *idx, uint32_t max);

/* A number in (0, 1), a function of seed and position only. */
double sample_uniform(uint64_t seed, uint32_t pos);
