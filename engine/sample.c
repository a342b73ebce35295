/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler. In order: penalties, bias and mask on the logits; then the set of
 * candidates, from the distribution at temperature 1: the top_k largest, of
 * those the smallest set with top_p of their mass, of those the ones with at
 * least min_p of the largest probability; then one candidate is drawn at the
 * temperature.
 *
 * Order is by value, then by lower id, so every step is defined on ties. A set
 * is a cut in that order, not a sorted list: only what may lie above a cut is
 * ever gathered, and nothing is sorted as a whole.
 *
 * The draw inverts the cumulative distribution over ascending ids with one
 * uniform number, a function of (seed, position) alone: same logits, seed and
 * position give the same token, whatever was sampled before or beside it.
 *
 * Every sum that decides is one of integers (sample.h), so the token is the same
 * whoever sums in whatever order: a GPU's sampler gives the tokens of this one.
 */
#include "engine/sample.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

/* splitmix64's finalizer (Steele, Lea, Flood 2014), applied twice to a counter. */
static uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
}

uint64_t sample_noise(uint64_t seed, uint32_t pos) {
        return mix(mix(seed + 0x9e3779b97f4a7c15u) + ((uint64_t)pos + 1) * 0x9e3779b97f4a7c15u) >> 11;
}

double sample_uniform(uint64_t seed, uint32_t pos) {
        return ((double)sample_noise(seed, pos) + 0.5) * 0x1p-53;
}

double sample_norm(float max, uint64_t mass) {
        return (double)max + log((double)mass * 0x1p-42);
}

/* ---- an order and heaps over it -------------------------------------------- */

struct cut { /* what is kept: x > value, or x == value with id <= this id */
        float value;
        uint32_t id;
};

static bool before(float a, uint32_t ia, float b, uint32_t ib) {
        return a > b || (a == b && ia < ib);
}

/* A heap of ids by their values; the root is the last in order (worst = true) or the first. */
static bool above(const float *x, uint32_t a, uint32_t b, bool worst) {
        return worst ? before(x[b], b, x[a], a) : before(x[a], a, x[b], b);
}

static void sift_down(const float *x, uint32_t *h, uint32_t n, uint32_t i, bool worst) {
        uint32_t v = h[i];
        for (;;) {
                uint32_t k = 2 * i + 1;
                if (k >= n)
                        break;
                if (k + 1 < n && above(x, h[k + 1], h[k], worst))
                        k++;
                if (!above(x, h[k], v, worst))
                        break;
                h[i] = h[k];
                i = k;
        }
        h[i] = v;
}

static void heapify(const float *x, uint32_t *h, uint32_t n, bool worst) {
        for (uint32_t i = n / 2; i-- > 0;)
                sift_down(x, h, n, i, worst);
}

/* The ids of the k first in order, as a heap whose root is the last of them. Returns how many (NaN never counts). */
static uint32_t select_top(const float *x, uint32_t n, uint32_t k, uint32_t *heap) {
        uint32_t found, i;

        found = vec_gather(x, n, -INFINITY, heap, k);
        if (found < k)
                return found;
        i = heap[k - 1] + 1;
        heapify(x, heap, k, true);
        /* Later ids must be larger to get in. Blocks without any are skipped. */
        while (i < n && x[heap[0]] < INFINITY) {
                uint32_t next;
                if (!vec_gather(x + i, n - i, nextafterf(x[heap[0]], INFINITY), &next, 1))
                        break;
                heap[0] = i + next;
                sift_down(x, heap, k, 0, true);
                i += next + 1;
        }
        return k;
}

/* ---- the logits ------------------------------------------------------------- */

static void penalize(struct sampler_scratch *w, uint32_t n_vocab, const struct eng_sampling *s, const uint32_t *history,
                     uint32_t n_history) {
        uint32_t n = s->penalty_last ? MIN(s->penalty_last, n_history) : n_history;
        const uint32_t *h = history + (n_history - n);

        for (uint32_t i = 0; i < n; i++)
                if (h[i] < n_vocab)
                        w->count[h[i]]++;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t t = h[i];
                float l;
                if (t >= n_vocab || w->count[t] == 0)
                        continue;
                l = w->work[t];
                if (s->repeat_penalty > 0 && s->repeat_penalty != 1)
                        l = l > 0 ? l / s->repeat_penalty : l * s->repeat_penalty;
                l -= s->presence_penalty + s->frequency_penalty * (float)w->count[t];
                w->work[t] = l;
                w->count[t] = 0;
        }
}

static void apply_mask(float *x, uint32_t n, const uint64_t *mask) {
        for (uint32_t i = 0; i < n; i += 64) {
                uint64_t off = ~mask[i / 64];
                if (n - i < 64)
                        off &= ((uint64_t)1 << (n - i)) - 1;
                if (off == UINT64_MAX) {
                        for (uint32_t j = 0; j < 64; j++)
                                x[i + j] = -INFINITY;
                        continue;
                }
                for (; off; off &= off - 1)
                        x[i + (uint32_t)__builtin_ctzll(off)] = -INFINITY;
        }
}

/* The logits after penalties, bias and mask; the given ones if there are none. */
static const float *adjust(struct sampler_scratch *w, const float *logits, uint32_t n_vocab,
                           const struct eng_sampling *s, const uint32_t *history, uint32_t n_history) {
        bool penalties = sample_penalizes(s);

        if (!penalties && s->n_bias == 0 && !s->mask)
                return logits;
        memcpy(w->work, logits, n_vocab * sizeof(float));
        if (penalties)
                penalize(w, n_vocab, s, history, n_history);
        for (size_t i = 0; i < s->n_bias; i++)
                if (s->bias[i].token < n_vocab)
                        w->work[s->bias[i].token] += s->bias[i].bias;
        if (s->mask)
                apply_mask(w->work, n_vocab, s->mask);
        return w->work;
}

/* ---- candidates -------------------------------------------------------------- */

#define BINS 512u

static uint32_t bin_of(float x, float max, float scale) {
        return MIN((uint32_t)((max - x) * scale), BINS - 1); /* never falls as x falls */
}

/*
 * Drops from id[0..n) what certainly lies above or below the point where 'need'
 * of mass is reached, by summing in bins of equal width. Returns how many are
 * left; *ret_mass is the mass of those above.
 */
static uint32_t narrow(const float *x, uint32_t *id, uint32_t n, float max, uint64_t need, uint64_t *ret_mass) {
        uint64_t bin[BINS] = { 0 };
        float widest = 0, scale;
        uint32_t kept = 0, b = 0;

        for (uint32_t i = 0; i < n; i++)
                widest = MAX(widest, max - x[id[i]]);
        if (!(widest > 0) || !isfinite(widest))
                return n;
        scale = (float)BINS / widest;
        if (!isfinite(scale))
                return n;
        for (uint32_t i = 0; i < n; i++)
                bin[bin_of(x[id[i]], max, scale)] += vec_weight(x[id[i]] - max);
        while (b + 1 < BINS && *ret_mass + bin[b] < need)
                *ret_mass += bin[b++];
        for (uint32_t i = 0; i < n; i++)
                if (bin_of(x[id[i]], max, scale) == b)
                        id[kept++] = id[i];
        return kept;
}

/* Takes in order until 'need' of mass is reached; the last one taken is the cut. */
static struct cut take_mass(const float *x, uint32_t *heap, uint32_t n, float max, uint64_t need) {
        struct cut cut = { -INFINITY, UINT32_MAX };
        uint64_t mass = 0;

        if (n > BINS)
                n = narrow(x, heap, n, max, need, &mass);
        heapify(x, heap, n, false);
        while (n > 0) {
                cut = (struct cut){ x[heap[0]], heap[0] };
                mass += vec_weight(x[heap[0]] - max);
                if (mass >= need)
                        break;
                heap[0] = heap[--n];
                sift_down(x, heap, n, 0, false);
        }
        return cut;
}

static uint64_t mass_of(const float *x, const uint32_t *id, uint32_t n, float max) {
        uint64_t mass = 0;
        for (uint32_t i = 0; i < n; i++)
                mass += vec_weight(x[id[i]] - max);
        return mass;
}

/* The cut that top_k and top_p make. */
static struct cut find_cut(struct sampler_scratch *w, const float *x, uint32_t n, float max,
                           const struct eng_sampling *s) {
        static const float reach[] = { 4, 12, INFINITY }; /* e^-reach: the least weight gathered, tried in turn */
        struct cut all = { -INFINITY, UINT32_MAX };
        bool top_p = s->top_p > 0 && s->top_p < 1;
        uint64_t need;

        if (s->top_k > 0 && s->top_k < n) {
                uint32_t k = select_top(x, n, s->top_k, w->id);
                struct cut cut = { x[w->id[0]], w->id[0] };
                if (k < s->top_k)
                        cut = all;
                if (!top_p)
                        return cut;
                return take_mass(x, w->id, k, max, sample_need(s->top_p, mass_of(x, w->id, k, max)));
        }
        if (!top_p)
                return all;
        need = sample_need(s->top_p, vec_mass(x, n, max, 1, NULL));
        for (size_t i = 0; i < ELEMENTSOF(reach); i++) {
                uint32_t k = vec_gather(x, n, max - reach[i], w->id, n);
                if (mass_of(x, w->id, k, max) >= need)
                        return take_mass(x, w->id, k, max, need);
        }
        return all;
}

/* Draws among all of the vocabulary: finds the block, then the value in it. */
static uint32_t draw_all(struct sampler_scratch *w, const float *x, uint32_t n, float max, float scale, uint64_t noise) {
        uint64_t target = sample_target(vec_mass(x, n, max, scale, w->block), noise), sum = 0;
        uint32_t b = 0, n_blocks = DIV_ROUND_UP(n, SAMPLE_BLOCK);

        while (b + 1 < n_blocks && sum + w->block[b] <= target)
                sum += w->block[b++];
        for (uint32_t i = b * SAMPLE_BLOCK; i < n; i++) {
                sum += vec_weight((x[i] - max) * scale);
                if (sum > target)
                        return i;
        }
        return vec_find(x, n, max); /* not reached: the largest weighs MASS_ONE */
}

static uint32_t draw_cut(struct sampler_scratch *w, const float *x, uint32_t n, float max, float scale, struct cut cut,
                         float least, uint64_t noise) {
        uint32_t k = vec_gather(x, n, MAX(cut.value, least), w->id, n), kept = 0;
        uint64_t total = 0, sum = 0, target;

        for (uint32_t i = 0; i < k; i++) {
                uint32_t id = w->id[i];
                if (x[id] == cut.value && id > cut.id)
                        continue;
                w->id[kept++] = id;
                total += vec_weight((x[id] - max) * scale);
        }
        target = sample_target(total, noise);
        for (uint32_t i = 0; i < kept; i++) {
                sum += vec_weight((x[w->id[i]] - max) * scale);
                if (sum > target)
                        return w->id[i];
        }
        return vec_find(x, n, max); /* not reached */
}

static uint32_t choose(struct sampler_scratch *w, const float *x, uint32_t n, float max, const struct eng_sampling *s,
                       uint32_t pos) {
        float least = -INFINITY, scale;
        struct cut cut;
        uint64_t noise;

        if (max == -INFINITY)
                return ENG_NO_TOKEN;
        scale = 1 / s->temperature;
        if (!(s->temperature > 0) || s->top_k == 1 || !isfinite(max) || !isfinite(scale))
                return vec_find(x, n, max);
        noise = sample_noise(s->seed, pos);
        cut = find_cut(w, x, n, max, s);
        if (s->min_p > 0)
                least = max + logf(MIN(s->min_p, 1.0f));
        if (cut.value == -INFINITY && least == -INFINITY)
                return draw_all(w, x, n, max, scale, noise);
        return draw_cut(w, x, n, max, scale, cut, least, noise);
}

/* ---- the whole ---------------------------------------------------------------- */

static void report(struct sampler_scratch *w, const float *logits, uint32_t n_vocab, float max,
                   const struct eng_sampling *s, struct eng_result *ret) {
        double norm = sample_norm(max, vec_mass(logits, n_vocab, max, 1, NULL));
        uint32_t n = MIN(MIN(s->n_top, (uint32_t)ELEMENTSOF(ret->top)), n_vocab), left;

        ret->logprob = ret->token < n_vocab ? (float)((double)logits[ret->token] - norm) : 0;
        ret->n_top = 0;
        if (n == 0)
                return;
        left = select_top(logits, n_vocab, n, w->id);
        heapify(logits, w->id, left, false);
        while (left > 0) {
                ret->top[ret->n_top++] = (struct eng_top){ w->id[0], (float)((double)logits[w->id[0]] - norm) };
                w->id[0] = w->id[--left];
                sift_down(logits, w->id, left, 0, false);
        }
}

uint32_t sample_with(struct sampler_scratch *w, const float *logits, uint32_t n_vocab, const struct eng_sampling *s,
                     const uint32_t *history, uint32_t n_history, uint32_t pos, struct eng_result *ret) {
        const float *x = adjust(w, logits, n_vocab, s, history, n_history);
        float max = vec_max(x, n_vocab);

        ret->token = choose(w, x, n_vocab, max, s, pos);
        report(w, logits, n_vocab, x == logits ? max : vec_max(logits, n_vocab), s, ret);
        return ret->token;
}

uint32_t eng_sample(const float *logits, uint32_t n_vocab, const struct eng_sampling *s, const uint32_t *history,
                    uint32_t n_history, uint32_t pos, struct eng_result *ret) {
        struct eng_result unused = { 0 };
        struct sampler_scratch w = {
                .work = h_malloc(n_vocab * sizeof(float)),
                .id = h_malloc(n_vocab * sizeof(uint32_t)), .count = h_new0(uint32_t, n_vocab),
                .block = h_malloc(DIV_ROUND_UP(n_vocab, SAMPLE_BLOCK) * sizeof(uint64_t)),
        };
        uint32_t token = ENG_NO_TOKEN;

        if (w.work && w.id && w.count && w.block && n_vocab > 0)
                token = sample_with(&w, logits, n_vocab, s, history, n_history, pos, ret ? ret : &unused);
        free(w.work);
        free(w.id);
        free(w.count);
        free(w.block);
        return token;
}
