/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The sampler's parts, inside the engine. eng_sample() (engine.h) is the whole. */

#include "engine/engine.h"

#define SAMPLE_BLOCK 1024u
/*
 * Masses are sums of weights, whole numbers of 2^-42: sums of them have no order,
 * so that a GPU's thousand threads and one processor find the same cut and draw
 * the same token. What weighs less than half of that is never drawn. No overflow
 * up to SAMPLE_MAX_VOCAB tokens, each of at most MASS_ONE.
 */
#define MASS_BITS 42
#define MASS_ONE ((uint64_t)1 << MASS_BITS)
#define SAMPLE_MAX_VOCAB (1u << 21)

struct sampler_scratch {
        float *work;       /* [n_vocab] adjusted logits */
        uint32_t *id;      /* [n_vocab] candidates */
        uint32_t *count;   /* [n_vocab] occurrences in the history; zero between calls */
        uint64_t *block;   /* [DIV_ROUND_UP(n_vocab, SAMPLE_BLOCK)] masses */
};

/* As eng_sample(), with scratch; allocates nothing. */
uint32_t sample_with(struct sampler_scratch *w, const float *logits, uint32_t n_vocab, const struct eng_sampling *s,
                     const uint32_t *history, uint32_t n_history, uint32_t pos, struct eng_result *ret);

/* Passes over a vocabulary. NaN counts as -infinity. The same bits on every processor. */
float vec_max(const float *x, uint32_t n);
uint32_t vec_find(const float *x, uint32_t n, float value); /* lowest index with x == value; n if none */
/* Mass of exp((x - shift) * scale), no x above shift; block[i]: the part of SAMPLE_BLOCK values, if not NULL. */
uint64_t vec_mass(const float *x, uint32_t n, float shift, float scale, uint64_t *block);
uint64_t vec_weight(float x); /* the same for one value: exp(x); x <= 0 */
float vec_exp(float x); /* x <= 0 */
/* Writes the indices with x >= least, ascending, at most max of them; returns how many there are (>= max: cut). */
uint32_t vec_gather(const float *x, uint32_t n, float least, uint32_t *idx, uint32_t max);

/* 53 random bits, a function of seed and position only; the number (bits + 1/2) / 2^53 in (0, 1) they stand for. */
uint64_t sample_noise(uint64_t seed, uint32_t pos);
double sample_uniform(uint64_t seed, uint32_t pos);
/* The part of a mass that lies below that number. */
static inline uint64_t sample_target(uint64_t mass, uint64_t noise) {
        return (uint64_t)(((unsigned __int128)mass * ((2 * noise + 1) << 10)) >> 64);
}
static inline bool sample_penalizes(const struct eng_sampling *s) {
        return (s->repeat_penalty > 0 && s->repeat_penalty != 1) || s->presence_penalty != 0 || s->frequency_penalty != 0;
}
/* A cut at top_p of a mass. */
static inline uint64_t sample_need(float top_p, uint64_t mass) {
        return (uint64_t)((double)top_p * (double)mass);
}
/* The log of the sum of exp(logits). */
double sample_norm(float max, uint64_t mass);
