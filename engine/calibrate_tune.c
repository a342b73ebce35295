/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choices of a card profile (kernels/tune.h): for every type, a few shapes
 * and buckets of generated rows, whatever launches the backend has to choose
 * from. The plain one is compared with the weights decoded in full, every other
 * with the plain one's bits, at the bucket's fewest and most rows, over a result
 * made of zeros before: one that wrote nothing is not equal.
 *
 * A product is timed as a step of a model has it, because what a launch is worth
 * depends on its neighbours: a kernel of a few blocks before it (a norm, attention)
 * is time in which its first weights come, as many as the launch has room for, and
 * gate and up end in GLU, for which their units are cut another way. A product right
 * behind itself has neither.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/calibrate_int.h"
#include "kernels/measure.h"

/* What a step has before and behind such a product. */
enum form {
        BEHIND_PRODUCT, /* down: nothing between it and the product that made its x */
        BEHIND_NORM,
        GATE_UP,        /* two of it behind a norm, GLU of both behind them */
};

struct tuning {
        struct calibration *c;
        const struct calibrate_matrix *m;   /* of products, or NULL */
        enum form form;                     /* of products */
        struct k_act normed, h;             /* [most rows]: what a norm made; what GLU made */
        float *up;                          /* of GATE_UP, where the backend writes it */
        const struct calibrate_experts *e;  /* of experts */
        struct k_tune_key key;
        uint32_t fewest, copies, out;       /* copies: launches of a round; out: floats of a row of the result */
        float *is, *want;                   /* want: [key.batch][out] the plain one's, then [fewest][out] */
};

#define GLU_LIMIT 1e-4 /* of the error's norm: f32 and whatever a backend takes for exp() */

struct dims { uint32_t rows, cols; enum form form; };
static const struct dims shapes_cpu[] = { { 4096, 4096, BEHIND_PRODUCT }, { 1024, 4096, BEHIND_PRODUCT } },
                         shapes_card[] = { { 14336, 4096, GATE_UP }, { 4096, 14336, BEHIND_PRODUCT }, { 4096, 4096, BEHIND_NORM }, { 1024, 4096, BEHIND_NORM }, { 2048, 2048, BEHIND_NORM } },
                         shapes_quick[] = { { 256, 512, GATE_UP } }, experts_card[] = { { 768, 2048 }, { 1536, 4096 }, { 2880, 2880 } }, experts_quick[] = { { 256, 256 } };
static const uint32_t buckets[] = { 1, 4, 8, 16, 32 }; /* ascending, as k_tune_bucket() has them */

static int use(struct tuning *t, uint32_t variant) {
        return t->c->ops->tune(t->c->k, &(struct k_tune_choice){ t->key, variant }, 1);
}

/* The i-th launch of this product in a step that is open; x has what it multiplies. */
static int queue_product(struct tuning *t, const struct k_batch *b, struct k_act *x, uint32_t i) {
        const struct calibrate_matrix *m = t->m;
        struct k_linear_args a = { .x = x, .n_out = t->form == GATE_UP ? 2 : 1, .n_rows = b->n, .n_d = b->n };
        const struct k_glu_args g = { .gate = t->c->y, .up = t->up, .gate_stride = m->rows, .up_stride = m->rows, .act = K_GLU_SILU, .out = &t->h, .n = b->n };
        int r;

        for (uint32_t k = 0; k < a.n_out; k++) {
                a.out[k].w = &m->w[(i * a.n_out + k) % m->copies];
                a.out[k].y = k ? t->up : t->c->y;
                a.out[k].y_stride = m->rows;
        }
        r = t->c->ops->linear(t->c->k, b, &a);
        return r < 0 || t->form != GATE_UP ? r : t->c->ops->glu(t->c->k, b, &g);
}

/* With one row a norm is made by the product behind it (docs/kernels/cuda-products.md), so that there is none between. */
static int queue_products(struct tuning *t, uint32_t launches, uint32_t n, bool norms) {
        struct calibration *c = t->c;
        struct k_batch b = { .n = n, .n_d = n, .n_seq = 1 };
        struct k_act x = { .f = c->x, .q = c->xq, .cols = t->m->cols };
        const struct k_norm_args norm = { .x = &x, .kind = K_NORM_RMS, .eps = 1e-5f, .out_scale = 1, .out = &t->normed };
        int r = c->ops->batch_begin(c->k, &b), e;

        if (r < 0)
                return r;
        norms = norms && t->form != BEHIND_PRODUCT && n > 1;
        for (uint32_t i = 0; r >= 0 && i < launches; i++) {
                if (norms)
                        r = c->ops->norm(c->k, &b, &norm);
                if (r >= 0)
                        r = queue_product(t, &b, norms ? &t->normed : &x, i);
        }
        e = c->ops->batch_end(c->k, &b);
        return r < 0 ? r : e;
}

/* One launch's n rows in t->is: a product's, and behind them GLU's; experts'. */
static int result(struct tuning *t, uint32_t n) {
        struct calibration *c = t->c;
        const size_t bytes = (size_t)n * (t->m ? t->m->rows : t->out) * sizeof(float);
        int r = c->ops->zero(c->k, c->y, bytes);

        if (r >= 0)
                r = t->m ? calibrate_queue(c, t->m, 1, n, false) : calibrate_experts_queue(c, t->e, 1, n);
        if (r >= 0)
                r = c->ops->download(c->k, t->is, c->y, bytes);
        if (r < 0 || !t->m || t->form != GATE_UP)
                return r;
        r = c->ops->zero(c->k, t->h.f, bytes);
        if (r >= 0)
                r = queue_products(t, 1, n, false);
        return r < 0 ? r : c->ops->download(c->k, t->is + (size_t)n * t->m->rows, t->h.f, bytes);
}

/* GLU of a product with itself (all copies are equal), from its rows that were found right. */
static int compare_glu(struct tuning *t, uint32_t n) {
        const size_t all = (size_t)n * t->m->rows;
        double off = 0, norm = 0;

        for (size_t i = 0; i < all; i++) {
                const double v = t->is[i], want = v * v / (1 + exp(-v));

                off += (t->is[all + i] - want) * (t->is[all + i] - want);
                norm += want * want;
        }
        if (!(off <= GLU_LIMIT * GLU_LIMIT * norm))
                return h_error_set(t->c->err, HEARTH_E_internal, "%s of %u rows with GLU on this device are off by %.3g of their size (at most %g is "
                                   "rounding); nothing was kept", t->c->what, n, sqrt(off / norm), GLU_LIMIT);
        return 0;
}

static int check_plain(struct tuning *t, uint32_t n) {
        int r = t->m ? calibrate_compare(t->c, t->m, n, false) : calibrate_experts_compare(t->c, t->e, n);

        if (r < 0)
                return r;
        r = result(t, n);
        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        return t->m && t->form == GATE_UP ? compare_glu(t, n) : 0;
}

static int check_rows(struct tuning *t, uint32_t variant, uint32_t n, float *want) {
        const size_t bytes = (size_t)n * t->out * sizeof(float);
        int r;

        if (variant == 0) {
                r = check_plain(t, n);
                if (r < 0)
                        return r;
                memcpy(want, t->is, bytes);
                return K_TUNE_TIMED;
        }
        r = result(t, n);
        if (r == -ENOTSUP)
                return K_TUNE_CANT;
        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        return memcmp(t->is, want, bytes) == 0 ? K_TUNE_TIMED : K_TUNE_DIFFERS;
}

static int check(void *ud, uint32_t variant) {
        struct tuning *t = ud;
        int r = use(t, variant);

        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        r = check_rows(t, variant, t->key.batch, t->want);
        if (r == K_TUNE_TIMED && t->fewest < t->key.batch)
                r = check_rows(t, variant, t->fewest, t->want + (size_t)t->key.batch * t->out);
        return r;
}

static int queue_round(void *ud) {
        struct tuning *t = ud;
        return t->m ? queue_products(t, t->copies, t->key.batch, true) : calibrate_experts_queue(t->c, t->e, t->copies, t->key.batch);
}

/* By the device's own clock where it has one. */
static int time_step(struct tuning *t, double *ret_s) {
        double from = calibrate_now();
        int r;

        if (t->c->cuda)
                return k_cuda_step_time(t->c->k, queue_round, t, ret_s);
        r = queue_round(t);
        if (r >= 0)
                r = t->c->ops->sync(t->c->k);
        *ret_s = MAX(calibrate_now() - from, 1e-9);
        return r;
}

static int time_round(void *ud, uint32_t variant, double *ret_s) {
        struct tuning *t = ud;
        double s = 0;
        int r = use(t, variant);

        for (int i = 0; r >= 0 && i < 2; i++) /* the first one meets what the variant before left */
                r = time_step(t, &s);
        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        *ret_s = s / t->copies;
        return 0;
}

static void name_left_out(const struct k_tune_result *res, const char *const *names, uint32_t n, char *out, size_t size) {
        size_t at = 0;

        out[0] = 0;
        for (uint32_t i = 1; i < n && at < size; i++)
                if (res->of[i].fate == K_TUNE_DIFFERS)
                        at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", names[i]);
}

static int tune_one(struct tuning *t) {
        struct calibration *c = t->c;
        struct profile_choice *pc = &c->p->choice[c->p->n_choice];
        const char *const *names = NULL;
        struct k_tune_run run = { .rounds = c->o->quick ? 3 : K_TUNE_ROUNDS, .ud = t, .check = check, .time = time_round };
        struct k_tune_result res;
        int r;

        run.n = c->ops->variants(c->k, &t->key, &names);
        if (run.n < 2 || c->p->n_choice == PROFILE_MAX_CHOICES)
                return 0; /* nothing to choose: what is nowhere chosen is plain */
        t->is = h_malloc((size_t)t->key.batch * t->out * sizeof(float));
        t->want = h_malloc((size_t)(t->key.batch + t->fewest) * t->out * sizeof(float));
        r = t->is && t->want ? k_tune_choose(&run, &res) : -ENOMEM;
        free(t->is);
        free(t->want);
        if (r == -EHEARTH)
                return r;
        if (r < 0)
                return calibrate_failed(c, r, c->what);
        *pc = (struct profile_choice){ .key = t->key, .plain_s = res.of[0].median, .chosen_s = res.of[res.variant].median };
        snprintf(pc->variant, sizeof(pc->variant), "%s", names[res.variant]);
        name_left_out(&res, names, run.n, pc->left_out, sizeof(pc->left_out));
        c->p->n_choice++;
        return 0;
}

static int tune_buckets(struct tuning t) {
        int r = 0;

        t.fewest = 1;
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(buckets); i++) {
                t.key.batch = buckets[i];
                /* Wide products are not bound by memory; on a card a step's own cost must not hide them. */
                t.copies = t.e ? t.e->n_set : t.c->cuda ? t.m->copies : MAX(t.m->copies / buckets[i], 1u);
                if (t.m && t.form == GATE_UP)
                        t.copies = MAX(t.copies / 2, 1u);
                r = tune_one(&t);
                t.fewest = buckets[i] + 1;
        }
        return r;
}

static struct k_act act_new(struct calibration *c, uint32_t cols) {
        const uint32_t rows = buckets[ELEMENTSOF(buckets) - 1];

        return (struct k_act){ .f = c->ops->mem_alloc(c->k, (size_t)rows * cols * sizeof(float)), .q = c->ops->mem_alloc(c->k, c->ops->act_q_bytes(rows, cols)), .cols = cols };
}

static void act_free(struct calibration *c, struct k_act *a) {
        c->ops->mem_free(c->k, a->f);
        c->ops->mem_free(c->k, a->q);
}

static int tune_product(struct calibration *c, enum k_type type, const struct dims *s) {
        const uint32_t both = s->form == GATE_UP ? 2 : 1;
        struct calibrate_matrix m = {};
        struct tuning t = { .c = c, .m = &m, .form = s->form, .key = { K_TUNE_LINEAR, type, s->rows * both, s->cols, 0 }, .out = s->rows * both };
        /* A processor's ways differ in how a product is cut, not in what it reads: less than for a rate will do. */
        int r = calibrate_matrix_new(c, type, s->rows, s->cols, c->cuda ? c->s.memory : c->s.memory / 4, &m);

        if (r != 0)
                return MIN(r, 0);
        t.normed = act_new(c, s->cols);
        t.h = act_new(c, s->rows);
        t.up = c->ops->mem_alloc(c->k, (size_t)buckets[ELEMENTSOF(buckets) - 1] * s->rows * sizeof(float));
        r = t.normed.f && t.normed.q && t.h.f && t.h.q && t.up ? tune_buckets(t) : calibrate_failed(c, -ENOMEM, c->what);
        act_free(c, &t.normed);
        act_free(c, &t.h);
        c->ops->mem_free(c->k, t.up);
        calibrate_matrix_free(c, &m);
        return r;
}

static int tune_experts(struct calibration *c, enum k_type type, const struct dims *s) {
        struct calibrate_experts e = {};
        struct tuning t = { .c = c, .e = &e, .key = { K_TUNE_EXPERTS, type, s->rows, s->cols, 0 }, .out = s->cols };
        int r = calibrate_experts_new(c, type, s->rows, s->cols, &e);

        if (r == 0)
                r = tune_buckets(t);
        calibrate_experts_free(c, &e);
        return MIN(r, 0);
}

static int tune_family(struct calibration *c, enum k_tune_family family, const struct dims *s, size_t n) {
        const char *const *names;
        int r = 0;

        for (unsigned t = 0; r == 0 && t < _K_TYPE_MAX; t++)
                for (size_t i = 0; r == 0 && calibrate_wanted(c, (enum k_type)t) && i < n; i++) {
                        struct k_tune_key key = { family, (enum k_type)t, s[i].rows, s[i].cols, 1 };

                        if (c->ops->variants(c->k, &key, &names) < 2)
                                continue;
                        snprintf(c->what, sizeof(c->what), "%s of %s", family == K_TUNE_LINEAR ? "launches" : "experts", k_type_name((enum k_type)t));
                        calibrate_tell(c, c->what);
                        r = family == K_TUNE_LINEAR ? tune_product(c, (enum k_type)t, &s[i]) : tune_experts(c, (enum k_type)t, &s[i]);
                }
        return r;
}

int calibrate_choices(struct calibration *c) {
        int r, e;

        if (!c->ops->variants)
                return 0;
        if (c->o->quick)
                r = tune_family(c, K_TUNE_LINEAR, shapes_quick, ELEMENTSOF(shapes_quick));
        else if (c->cuda)
                r = tune_family(c, K_TUNE_LINEAR, shapes_card, ELEMENTSOF(shapes_card));
        else
                r = tune_family(c, K_TUNE_LINEAR, shapes_cpu, ELEMENTSOF(shapes_cpu));
        if (r == 0)
                r = c->o->quick ? tune_family(c, K_TUNE_EXPERTS, experts_quick, ELEMENTSOF(experts_quick))
                                : tune_family(c, K_TUNE_EXPERTS, experts_card, ELEMENTSOF(experts_card));
        e = c->ops->tune(c->k, NULL, 0);
        return r < 0 ? r : e < 0 ? calibrate_failed(c, e, "launches") : 0;
}

/* ---- what was chosen, used ---- */

static int find_variant(struct k_dev *k, const struct profile_choice *pc, uint32_t *ret) {
        const char *const *names;
        uint32_t n = k->ops->variants ? k->ops->variants(k, &pc->key, &names) : 0;

        for (uint32_t i = 0; i < n; i++)
                if (strcmp(names[i], pc->variant) == 0) {
                        *ret = i;
                        return 0;
                }
        return -ENOENT;
}

int calibrate_use_choices(struct k_dev *k, const struct profile *p, const char *name, struct h_error *err) {
        _cleanup_(freep) struct k_tune_choice *c = NULL;
        int r;

        if (p->n_choice == 0)
                return k->ops->tune ? k->ops->tune(k, NULL, 0) : 0;
        c = h_new0(struct k_tune_choice, p->n_choice);
        if (!c)
                return h_error_from_errno(err, -ENOMEM, "using the card profile");
        for (uint32_t i = 0; i < p->n_choice; i++) {
                const struct profile_choice *pc = &p->choice[i];

                c[i].key = pc->key;
                if (find_variant(k, pc, &c[i].variant) < 0)
                        return h_error_set(err, HEARTH_E_unsupported, "card profile %s chooses \"%s\" for %s of %s, %u x %u, which this program "
                                           "does not have, and is not used; `hearth calibrate` measures anew", name, pc->variant,
                                           pc->key.family == K_TUNE_LINEAR ? "products" : "experts", k_type_name(pc->key.type), pc->key.rows, pc->key.cols);
        }
        r = k->ops->tune(k, c, p->n_choice);
        return r < 0 ? h_error_set(err, HEARTH_E_unsupported, "card profile %s: its choices are refused (%s), and it is not used; `hearth calibrate` "
                                   "measures anew", name, strerror(-r)) : 0;
}
