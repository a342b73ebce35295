/* SPDX-License-Identifier: Apache-2.0 */
/* See tune.h. No device, no clock and no allocation: both are the caller's. */
#include "kernels/tune.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"

static const char *const families[_K_TUNE_FAMILY_MAX] = { [K_TUNE_LINEAR] = "product", [K_TUNE_EXPERTS] = "experts" };

const char *k_tune_family_name(enum k_tune_family f) {
        return families[f];
}

bool k_tune_family_parse(const char *s, enum k_tune_family *ret) {
        for (unsigned i = 0; i < _K_TUNE_FAMILY_MAX; i++)
                if (strcmp(s, families[i]) == 0) {
                        *ret = (enum k_tune_family)i;
                        return true;
                }
        return false;
}

uint32_t k_tune_bucket(uint32_t n) {
        static const uint32_t buckets[] = { 1, 4, 8, 16, 32, 64 };

        for (size_t i = 0; n && i < ELEMENTSOF(buckets); i++)
                if (n <= buckets[i])
                        return buckets[i];
        return 0;
}

/* ---- the table ---- */

static int order(uint32_t a, uint32_t b) {
        return (a > b) - (a < b);
}

/* Family, type, bucket: what must agree. */
static int compare_kind(const struct k_tune_key *a, const struct k_tune_key *b) {
        int r = order(a->family, b->family);

        r = r ? r : order(a->type, b->type);
        return r ? r : order(a->batch, b->batch);
}

static int compare_choice(const void *a, const void *b) {
        const struct k_tune_key *x = &((const struct k_tune_choice *)a)->key, *y = &((const struct k_tune_choice *)b)->key;
        int r = compare_kind(x, y);

        r = r ? r : order(x->rows, y->rows);
        return r ? r : order(x->cols, y->cols);
}

static bool is_key(const struct k_tune_key *k) {
        return k->family < _K_TUNE_FAMILY_MAX && k->type < _K_TYPE_MAX && k->rows && k->cols && k->batch && k_tune_bucket(k->batch) == k->batch;
}

int k_tune_table_set(struct k_tune_table *t, const struct k_tune_choice *c, uint32_t n) {
        if (n > K_TUNE_MAX)
                return -E2BIG;
        for (uint32_t i = 0; i < n; i++) {
                if (!is_key(&c[i].key) || c[i].variant >= K_TUNE_VARIANTS)
                        return -EINVAL;
                for (uint32_t j = 0; j < i; j++)
                        if (compare_choice(&c[i], &c[j]) == 0)
                                return -EINVAL;
        }
        if (n)
                memcpy(t->at, c, n * sizeof(*c));
        t->n = n;
        qsort(t->at, n, sizeof(*c), compare_choice);
        return 0;
}

/* How far apart two sizes are: their ratio, at least 1. More than 2: too far, 0. */
static double apart(uint32_t a, uint32_t b) {
        double r = a > b ? (double)a / b : (double)b / a;
        return r > 2 ? 0 : r;
}

uint32_t k_tune_find(const struct k_tune_table *t, enum k_tune_family f, enum k_type type, uint32_t rows, uint32_t cols, uint32_t n) {
        const struct k_tune_key key = { .family = f, .type = type, .rows = rows, .cols = cols, .batch = k_tune_bucket(n) };
        uint32_t from = 0, to = t->n, variant = 0;
        double nearest = INFINITY;

        if (to == 0 || !is_key(&key))
                return 0;
        while (from < to) { /* the first of its kind */
                uint32_t mid = from + (to - from) / 2;
                if (compare_kind(&t->at[mid].key, &key) < 0)
                        from = mid + 1;
                else
                        to = mid;
        }
        for (; from < t->n && compare_kind(&t->at[from].key, &key) == 0; from++) {
                double far = apart(t->at[from].key.rows, rows) * apart(t->at[from].key.cols, cols);
                if (far > 0 && far < nearest) {
                        nearest = far;
                        variant = t->at[from].variant;
                }
        }
        return variant;
}

/* ---- the choice ---- */

static int compare_double(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* How often of so many fair throws one side comes up at most once in fifty: 9 of 9 and 8 of 9, 7 of 7; fewer say little. */
static bool nearly_all(uint32_t faster, uint32_t rounds) {
        return rounds >= 9 ? faster + 1 >= rounds : faster == rounds;
}

static int check_all(const struct k_tune_run *run, struct k_tune_result *res) {
        for (uint32_t v = 0; v < run->n; v++) {
                int r = run->check(run->ud, v);

                if (r < 0)
                        return r;
                if (v == 0 && r != K_TUNE_TIMED)
                        return -EBADMSG;
                res->of[v].fate = (enum k_tune_fate)r;
        }
        return 0;
}

static void sum_up(const struct k_tune_run *run, double (*t)[K_TUNE_ROUNDS], struct k_tune_result *res) {
        double sorted[K_TUNE_ROUNDS], least = INFINITY;
        bool better[K_TUNE_VARIANTS] = { false };

        for (uint32_t v = 0; v < run->n; v++) {
                uint32_t faster = 0;

                if (res->of[v].fate != K_TUNE_TIMED)
                        continue;
                memcpy(sorted, t[v], run->rounds * sizeof(double));
                qsort(sorted, run->rounds, sizeof(double), compare_double);
                res->of[v].median = sorted[run->rounds / 2];
                res->of[v].least = sorted[0];
                res->of[v].most = sorted[run->rounds - 1];
                for (uint32_t i = 0; i < run->rounds; i++)
                        faster += t[v][i] < t[0][i];
                better[v] = v > 0 && res->of[v].median < res->of[0].median * (1 - K_TUNE_MARGIN) && nearly_all(faster, run->rounds);
                if (better[v] && res->of[v].median < least)
                        least = res->of[v].median;
        }
        res->variant = 0;
        for (uint32_t v = run->n - 1; v > 0; v--)
                if (better[v] && res->of[v].median * (1 - K_TUNE_MARGIN) <= least)
                        res->variant = v;
}

int k_tune_choose(const struct k_tune_run *run, struct k_tune_result *ret) {
        struct k_tune_result res = { 0 };
        double t[K_TUNE_VARIANTS][K_TUNE_ROUNDS];
        int r;

        if (run->n == 0 || run->n > K_TUNE_VARIANTS || run->rounds == 0 || run->rounds > K_TUNE_ROUNDS || run->rounds % 2 == 0)
                return -EINVAL;
        r = check_all(run, &res);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i < run->rounds; i++)
                for (uint32_t k = 0; k < run->n; k++) {
                        uint32_t v = (i % 2 ? run->n - 1 - k : k); /* there and back: none is always behind the same one */

                        v = (v + i / 2) % run->n;
                        if (res.of[v].fate != K_TUNE_TIMED)
                                continue;
                        r = run->time(run->ud, v, &t[v][i]);
                        if (r < 0)
                                return r;
                        if (!(t[v][i] > 0 && isfinite(t[v][i])))
                                return -EDOM;
                }
        sum_up(run, t, &res);
        *ret = res;
        return 0;
}
