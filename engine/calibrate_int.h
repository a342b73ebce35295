/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What calibrate.c (rates) and calibrate_tune.c (choices) share: a device under measurement, matrices on it, steps of products. */

#include "engine/calibrate.h"
#include "kernels/kernels.h"

#define CALIBRATE_COPIES 64u
#define CALIBRATE_BLOCKS 251u /* different ones of a matrix; prime: rows begin with different ones */
#define CALIBRATE_BLOCK_BYTES 256u /* no type's block is larger */

struct calibrate_shape {
        uint32_t rows, cols, prompt;
        size_t memory;                  /* bytes of weights to go through */
        double seconds;                 /* of a figure */
};

struct calibration {
        struct k_dev *k;
        const struct k_ops *ops;
        const struct eng_calibrate *o;
        struct profile *p;
        struct h_error *err;
        bool cuda;
        struct calibrate_shape s;       /* the largest: x, y and host_* have room for max_batch rows of it */
        uint32_t max_batch;
        float *x, *y, *host_x, *host_y;
        void *xq;
        enum k_type blocks_of;          /* the type whose random blocks are there, if n_block_bytes is not 0 */
        size_t n_block_bytes;
        uint8_t blocks[CALIBRATE_BLOCKS * CALIBRATE_BLOCK_BYTES];
        char what[48];
};

/* A matrix as the file has it, and equal copies of it on the device, together more than a cache holds. */
struct calibrate_matrix {
        uint32_t rows, cols, copies;
        size_t row_bytes, bytes;
        uint8_t *file, *dev;
        struct k_weight w[CALIBRATE_COPIES];
};

/* Experts of equal matrices; launches with other choices of experts, so that none comes from a cache. */
struct calibrate_experts {
        uint32_t ff, cols, n_set;       /* n_set: launches that go through all experts */
        struct calibrate_matrix gate, up, down; /* copies: the experts */
        float *router;                  /* [n_set][rows of a launch][experts] */
        void *scratch;
        size_t scratch_bytes;
};

double calibrate_now(void);
void calibrate_tell(const struct calibration *c, const char *what);
/* -EHEARTH; 'r' is the backend's. */
int calibrate_failed(const struct calibration *c, int r, const char *what);
/* 1: the type has no rows of so many columns. On failure there is nothing to free. */
int calibrate_matrix_new(struct calibration *c, enum k_type t, uint32_t rows, uint32_t cols, size_t memory, struct calibrate_matrix *ret);
void calibrate_matrix_free(struct calibration *c, struct calibrate_matrix *m);
/* Whether this type is wanted. */
bool calibrate_wanted(const struct calibration *c, enum k_type t);
/* A step of n rows with each of the first n_w copies; queue: does not wait for it. */
int calibrate_queue(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt);
int calibrate_step(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt);
/* Its result, left in host_y, against decoded weights; -EHEARTH: it is wrong, or the device failed. */
int calibrate_compare(struct calibration *c, const struct calibrate_matrix *m, uint32_t n, bool prompt);

/* calibrate_experts.c: the same of experts [ff, cols] and back, role D; at most CALIBRATE_EXPERT_ROWS rows. */
enum { CALIBRATE_EXPERT_ROWS = 32 };
int calibrate_experts_new(struct calibration *c, enum k_type t, uint32_t ff, uint32_t cols, struct calibrate_experts *ret);
void calibrate_experts_free(struct calibration *c, struct calibrate_experts *e);
int calibrate_experts_queue(struct calibration *c, const struct calibrate_experts *e, uint32_t n_launch, uint32_t n);
int calibrate_experts_compare(struct calibration *c, const struct calibrate_experts *e, uint32_t n);

/* calibrate_tune.c: times what the backend has to choose from, for every type. x, y, host_* are there. */
int calibrate_choices(struct calibration *c);
/* Hands a profile's choices to the backend; -EHEARTH: one it doesn't have. */
int calibrate_use_choices(struct k_dev *k, const struct profile *p, const char *name, struct h_error *err);
