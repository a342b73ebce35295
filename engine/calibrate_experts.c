/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of a made-up mixture, for their choices in a card profile. All have the
 * same matrices, so what comes out doesn't depend on which ones a row takes, and
 * row i of launch s takes other ones than its neighbours: a step goes through all
 * of them, from memory, as a model's layers do.
 */
#include "engine/calibrate_int.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define EXPERTS 64u
#define USED 8u
#define CHECKED 16u
#define BLOCK 256u      /* the most activations that share a scale */
#define UNIFORM 0.577   /* the norm of numbers between -1 and 1, as x has them */
#define LIMIT 4e-2      /* of the error's norm: int8 activations are about 0.5e-2 off, 1.5e-2 with weights that share an offset */

static int upload_router(struct calibration *c, struct calibrate_experts *e) {
        const size_t n = (size_t)e->n_set * CALIBRATE_EXPERT_ROWS * EXPERTS;
        _cleanup_(freep) float *logits = h_malloc(n * sizeof(float));

        e->router = c->ops->mem_alloc(c->k, n * sizeof(float));
        if (!logits || !e->router)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++)
                logits[i] = -100;
        for (uint32_t row = 0; row < e->n_set * CALIBRATE_EXPERT_ROWS; row++)
                for (uint32_t k = 0; k < USED; k++) { /* of a launch's rows some share an expert, as in a model */
                        uint32_t set = row / CALIBRATE_EXPERT_ROWS, i = row % CALIBRATE_EXPERT_ROWS;
                        logits[(size_t)row * EXPERTS + (set * USED + i * 5 + k) % EXPERTS] = (float)(USED - k) * 0.25f;
                }
        return c->ops->upload(c->k, e->router, logits, n * sizeof(float));
}

int calibrate_experts_new(struct calibration *c, enum k_type t, uint32_t ff, uint32_t cols, struct calibrate_experts *ret) {
        struct calibrate_experts e = { .ff = ff, .cols = cols, .n_set = EXPERTS / USED };
        int r = calibrate_matrix_new(c, t, ff, cols, SIZE_MAX / 2, &e.gate);

        if (r == 0)
                r = calibrate_matrix_new(c, t, ff, cols, SIZE_MAX / 2, &e.up);
        if (r == 0)
                r = calibrate_matrix_new(c, t, cols, ff, SIZE_MAX / 2, &e.down);
        if (r == 0) {
                e.scratch_bytes = c->ops->moe_scratch(CALIBRATE_EXPERT_ROWS, USED, cols, ff, EXPERTS);
                e.scratch = c->ops->mem_alloc(c->k, e.scratch_bytes);
                r = e.scratch ? upload_router(c, &e) : -ENOMEM;
                r = r < 0 ? calibrate_failed(c, r, c->what) : 0;
        }
        if (r != 0) {
                calibrate_experts_free(c, &e);
                return r;
        }
        *ret = e;
        return 0;
}

void calibrate_experts_free(struct calibration *c, struct calibrate_experts *e) {
        calibrate_matrix_free(c, &e->gate);
        calibrate_matrix_free(c, &e->up);
        calibrate_matrix_free(c, &e->down);
        c->ops->mem_free(c->k, e->router);
        c->ops->mem_free(c->k, e->scratch);
        *e = (struct calibrate_experts){};
}

static struct k_weight stacked(const struct calibrate_matrix *m) {
        struct k_weight w = m->w[0];

        w.n_expert = m->copies;
        w.expert_stride = (size_t)((const uint8_t *)m->w[1].data - (const uint8_t *)m->w[0].data);
        return w;
}

int calibrate_experts_queue(struct calibration *c, const struct calibrate_experts *e, uint32_t n_launch, uint32_t n) {
        const struct k_weight gate = stacked(&e->gate), up = stacked(&e->up), down = stacked(&e->down);
        struct k_batch b = { .n = n, .n_d = n, .n_seq = 1 };
        struct k_act x = { .f = c->x, .q = c->xq, .cols = e->cols };
        int r = c->ops->batch_begin(c->k, &b), end;

        if (r < 0)
                return r;
        for (uint32_t i = 0; r >= 0 && i < n_launch; i++) {
                const struct k_moe_args a = { .x = &x, .router = e->router + (size_t)(i % e->n_set) * CALIBRATE_EXPERT_ROWS * EXPERTS,
                                              .router_stride = EXPERTS, .n_expert = EXPERTS, .n_used = USED, .gating = K_GATE_SOFTMAX_TOPK,
                                              .weight_scale = 1, .gate = &gate, .up = &up, .down = &down, .act = K_GLU_SILU, .scratch = e->scratch,
                                              .scratch_bytes = e->scratch_bytes, .y = c->y, .y_stride = e->cols, .n = n, .n_d = n };
                r = c->ops->moe(c->k, &b, &a);
        }
        end = c->ops->batch_end(c->k, &b);
        return r < 0 ? r : end;
}

/*
 * What every expert makes of a row, in float64, [ff]; two rows of scratch. And the
 * size that its rounding is measured by: a sum's is its terms' norm, however much of
 * it cancels (a few of them carry most of a result, and one that cancels is off by far
 * more than its share), an int8 activation's is the largest beside it.
 */
static void middle(const struct calibrate_experts *e, const float *x, float *g, float *u, double *ret, double *ret_size) {
        for (uint32_t i = 0; i < e->ff; i++) {
                double vg = 0, vu = 0, ng = 0, nu = 0, s;

                k_decode(e->gate.w[0].type, e->gate.file + i * e->gate.row_bytes, g, e->cols);
                k_decode(e->up.w[0].type, e->up.file + i * e->up.row_bytes, u, e->cols);
                for (uint32_t j = 0; j < e->cols; j++) {
                        double of_g = (double)g[j] * x[j], of_u = (double)u[j] * x[j];

                        vg += of_g;
                        vu += of_u;
                        ng += of_g * of_g;
                        nu += of_u * of_u;
                }
                s = 1 / (1 + exp(-vg));
                ret[i] = vg * s * vu;
                ret_size[i] = hypot(s * (1 + vg * (1 - s)) * vu * sqrt(ng), vg * s * sqrt(nu)); /* by either's derivative */
        }
        for (uint32_t i = 0; i < e->ff; i += BLOCK) {
                const uint32_t end = MIN(i + BLOCK, e->ff);
                double largest = 0;

                for (uint32_t j = i; j < end; j++)
                        largest = fmax(largest, fabs(ret[j]));
                for (uint32_t j = i; j < end; j++)
                        ret_size[j] = hypot(ret_size[j], largest * UNIFORM);
        }
}

/* The result of one launch in host_y, its first and last row against decoded weights; the weights of a row's experts add up to 1. */
int calibrate_experts_compare(struct calibration *c, const struct calibrate_experts *e, uint32_t n) {
        _cleanup_(freep) float *g = h_malloc(MAX(e->cols, e->ff) * sizeof(float)), *u = h_malloc(e->cols * sizeof(float));
        _cleanup_(freep) double *h = h_malloc(e->ff * sizeof(double)), *size = h_malloc(e->ff * sizeof(double));
        double off = 0, norm = 0;
        int r = g && u && h && size ? calibrate_experts_queue(c, e, 1, n) : -ENOMEM;

        if (r >= 0)
                r = c->ops->download(c->k, c->host_y, c->y, (size_t)n * e->cols * sizeof(float));
        if (r < 0)
                return calibrate_failed(c, r, c->what);
        for (uint32_t row = 0; row < n; row += MAX(n - 1, 1u)) {
                middle(e, c->host_x + (size_t)row * e->cols, g, u, h, size);
                for (uint32_t i = 0; i < CHECKED; i++) {
                        uint32_t at = (uint32_t)((uint64_t)i * (e->cols - 1) / (CHECKED - 1));
                        double want = 0, is = c->host_y[(size_t)row * e->cols + at];

                        k_decode(e->down.w[0].type, e->down.file + at * e->down.row_bytes, g, e->ff);
                        for (uint32_t j = 0; j < e->ff; j++) {
                                double rounds = (double)g[j] * size[j];

                                want += (double)g[j] * h[j];
                                norm += rounds * rounds;
                        }
                        off += (is - want) * (is - want);
                }
        }
        if (!(off <= LIMIT * LIMIT * norm))
                return h_error_set(c->err, HEARTH_E_internal, "%s with %u rows on this device are off by %.3g of their size (at most %g is rounding); "
                                   "nothing was kept", c->what, n, sqrt(off / norm), LIMIT);
        return 0;
}
