/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Choosing among ways to launch one product that give the same bits.
 *
 * A backend names them for a product's kind (k_ops.variants); number 0 is the
 * plain one, which is always there and is what runs where nothing was chosen. A
 * choice is made by k_tune_choose() from what the caller checks and times, kept in
 * the card profile by name, and given back to the backend with k_ops.tune.
 *
 * A choice can't change a result: what doesn't give the plain one's bits is left
 * out whatever its time, and what changes rounding is fixed by shape in the code,
 * never timed. So a choice may be approximate: a product takes that of the nearest
 * shape that was timed.
 */

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Products of generated rows: a matrix, or a token's experts. */
enum k_tune_family { K_TUNE_LINEAR, K_TUNE_EXPERTS, _K_TUNE_FAMILY_MAX };
const char *k_tune_family_name(enum k_tune_family f);
bool k_tune_family_parse(const char *s, enum k_tune_family *ret);

struct k_tune_key {
        enum k_tune_family family;
        enum k_type type;
        uint32_t rows, cols; /* of the matrix, of one expert's */
        uint32_t batch;      /* a bucket */
};
/* The bucket of so many generated rows: 1, 4, 8, 16, 32, 64; 0: more, which nobody times. */
uint32_t k_tune_bucket(uint32_t n);

struct k_tune_choice { struct k_tune_key key; uint32_t variant; };

/* The backend's own copy; sorted by k_tune_table_set(). */
enum { K_TUNE_MAX = 1024 };
struct k_tune_table { uint32_t n; struct k_tune_choice at[K_TUNE_MAX]; };
int k_tune_table_set(struct k_tune_table *t, const struct k_tune_choice *c, uint32_t n); /* -E2BIG; -EINVAL: a key twice or none. Then as before */
/* The variant of the nearest shape of the same family, type and bucket, at most twice or half in rows and in columns; 0: none. */
uint32_t k_tune_find(const struct k_tune_table *t, enum k_tune_family f, enum k_type type, uint32_t rows, uint32_t cols, uint32_t n);

/* ---- the choice ---- */

enum { K_TUNE_VARIANTS = 8, K_TUNE_ROUNDS = 9 };

enum k_tune_fate { K_TUNE_TIMED, K_TUNE_DIFFERS, K_TUNE_CANT };

struct k_tune_run {
        uint32_t n;      /* variants, 1..K_TUNE_VARIANTS */
        uint32_t rounds; /* odd, 1..K_TUNE_ROUNDS */
        void *ud;
        /*
         * check, of every variant once and before anything is timed, 0 first: K_TUNE_TIMED if its result is right: number
         * 0's as the reference says, another's number 0's bit for bit; K_TUNE_DIFFERS: not; K_TUNE_CANT: it can't run on
         * this shape or card; negative: the device failed.
         */
        int (*check)(void *ud, uint32_t variant);
        int (*time)(void *ud, uint32_t variant, double *ret_s); /* one round */
};
struct k_tune_result {
        uint32_t variant;
        struct { enum k_tune_fate fate; double median, least, most; } of[K_TUNE_VARIANTS]; /* seconds, where fate is TIMED */
};
/*
 * Rounds are interleaved, each in another order, so that what drifts meets all. A variant is chosen over the plain one if
 * its median is K_TUNE_MARGIN less and it was the faster of the two in nearly all rounds (a sign test at 2% where there are
 * nine); of several, the least median, and of such as lie within the margin of it the lowest number. -EBADMSG: the plain
 * one is wrong or can't run; -EDOM: a time that is none.
 */
#define K_TUNE_MARGIN 0.02
int k_tune_choose(const struct k_tune_run *run, struct k_tune_result *ret);

#ifdef __cplusplus
}
#endif
