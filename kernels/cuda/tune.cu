/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to launch products of role D that give the same bits (kernels/tune.h), and
 * the one that a product gets. They change who computes a row and what is on its
 * way meanwhile, never the parts of a row's sum or their order: those go by shape
 * alone (matvec_split() in matvec.cu, split() in moe.cu).
 */
#include <errno.h>

#include "kernels/cuda/cuda.cuh"

enum { LINEAR_MOST = 8, EXPERTS_MOST = 4 };

struct linear_ways { uint32_t n; const char *name[LINEAR_MOST]; struct matvec_choice way[LINEAR_MOST]; };
struct experts_ways { uint32_t n; const char *name[EXPERTS_MOST]; struct moe_choice way[EXPERTS_MOST]; };

static constexpr cuda_grid RESIDENT = CUDA_GRID_RESIDENT, EVEN = CUDA_GRID_EVEN, UNITS = CUDA_GRID_UNITS;
static constexpr cuda_many RULE = CUDA_MANY_RULE, ONE = CUDA_MANY_8, TWO = CUDA_MANY_2X8;

/*
 * By the bucket's most columns. From 3 on other kernels are among them: the rule is the one of few columns up to 4 (Q4_0: of two, then 8
 * columns), then 2 x 8, or 8 where units are few, then 2 x 16; and as many row groups as matvec_many.cuh says.
 */
static const struct linear_ways linear_1 = {
        7,
        {"plain", "1 block", "1 deep block", "2 row groups", "4 row groups", "even rounds", "a block a unit"},
        {{0, 0, RESIDENT, 0, RULE}, {0, 1, RESIDENT, 0, RULE}, {0, 1, RESIDENT, 1, RULE}, {2, 0, RESIDENT, 0, RULE}, {4, 0, RESIDENT, 0, RULE},
         {0, 0, EVEN, 0, RULE}, {0, 0, UNITS, 0, RULE}},
};
static const struct linear_ways linear_4 = {
        8,
        {"plain", "1 block", "2 row groups", "4 row groups", "even rounds", "a block a unit", "8 columns", "2 x 8 columns"},
        {{0, 0, RESIDENT, 0, RULE}, {0, 1, RESIDENT, 0, RULE}, {2, 0, RESIDENT, 0, RULE}, {4, 0, RESIDENT, 0, RULE}, {0, 0, EVEN, 0, RULE},
         {0, 0, UNITS, 0, RULE}, {0, 0, RESIDENT, 0, ONE}, {0, 0, RESIDENT, 0, TWO}},
};
static const struct linear_ways linear_8 = {
        8,
        {"plain", "1 block", "2 row groups", "4 row groups", "even rounds", "a block a unit", "8 columns", "2 x 8 columns"},
        {{0, 0, RESIDENT, 0, RULE}, {0, 1, RESIDENT, 0, RULE}, {2, 0, RESIDENT, 0, RULE}, {4, 0, RESIDENT, 0, RULE}, {0, 0, EVEN, 0, RULE},
         {0, 0, UNITS, 0, RULE}, {0, 0, RESIDENT, 0, ONE}, {0, 0, RESIDENT, 0, TWO}},
};
/* A multiprocessor has one block of 2 x 16 columns, but two of 2 x 8: each for other columns. */
static const struct linear_ways linear_wide = {
        7,
        {"plain", "1 row group", "2 row groups", "4 row groups", "even rounds", "a block a unit", "2 x 8 columns"},
        {{0, 0, RESIDENT, 0, RULE}, {1, 0, RESIDENT, 0, RULE}, {2, 0, RESIDENT, 0, RULE}, {4, 0, RESIDENT, 0, RULE}, {0, 0, EVEN, 0, RULE},
         {0, 0, UNITS, 0, RULE}, {0, 0, RESIDENT, 0, TWO}},
};

/* A pair of row and expert by itself, or all rows of an expert together; of down the former sums a row's experts at once. */
static const struct experts_ways experts_1 = { 2, {"plain", "down by expert"}, {{1, 1}, {1, 0}} };
static const struct experts_ways experts_4 = {
        4, {"plain", "up by row", "down by expert", "up row down expert"}, {{0, 1}, {1, 1}, {0, 0}, {1, 0}},
};
static const struct experts_ways experts_wide = {
        4, {"plain", "up by row", "down by row", "both by row"}, {{0, 0}, {1, 0}, {0, 1}, {1, 1}},
};

static const struct linear_ways *linear_ways_of(uint32_t n) {
        return n == 1 ? &linear_1 : n <= 4 ? &linear_4 : n <= 8 ? &linear_8 : &linear_wide;
}
static const struct experts_ways *experts_ways_of(uint32_t n) {
        return n == 1 ? &experts_1 : n <= MOE_SUM_ROWS ? &experts_4 : &experts_wide;
}

uint32_t cuda_variants(struct k_dev *kd, const struct k_tune_key *key, const char *const **ret_names) {
        const struct cuda_dev *d = cuda_dev_of(kd);

        if (key->family == K_TUNE_EXPERTS) {
                const struct experts_ways *w = experts_ways_of(key->batch);
                *ret_names = w->name;
                return !d->exact && cuda_layout_supported(key->type) ? w->n : 1;
        }
        const struct linear_ways *w = linear_ways_of(key->batch);
        *ret_names = w->name;
        return !d->exact && cuda_layout_supported(key->type) ? w->n : 1;
}

int cuda_tune(struct k_dev *kd, const struct k_tune_choice *c, uint32_t n) {
        const char *const *names;
        int r = cuda_flush(cuda_dev_of(kd));

        for (uint32_t i = 0; i < n; i++)
                if (c[i].variant >= cuda_variants(kd, &c[i].key, &names))
                        return -EINVAL;
        return r < 0 ? r : k_tune_table_set(&cuda_dev_of(kd)->tuned, c, n);
}

struct matvec_choice cuda_matvec_choice(const struct cuda_dev *d, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n) {
        const struct linear_ways *w = linear_ways_of(n);
        const uint32_t v = k_tune_find(&d->tuned, K_TUNE_LINEAR, t, rows, cols, n);

        const struct matvec_choice *c = &w->way[v < w->n ? v : 0];

        /* What was timed with four goes for two, but not that of another kernel than theirs, whether it was chosen or is the rule's for four. */
        return n == 2 && (c->many != RULE || !cuda_few_takes(t, 4)) ? w->way[0] : *c;
}

struct moe_choice cuda_moe_choice(const struct cuda_dev *d, enum k_type t, uint32_t ff, uint32_t cols, uint32_t n) {
        const struct experts_ways *w = experts_ways_of(n);
        const uint32_t v = k_tune_find(&d->tuned, K_TUNE_EXPERTS, t, ff, cols, n);

        return w->way[v < w->n ? v : 0];
}
