/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choices of a card profile (kernels/tune.h): for every type, a few shapes
 * and buckets of generated rows, whatever launches the backend has to choose
 * from. The plain one is compared with the weights decoded in full, every other
 * with the plain one's bits, at the bucket's fewest and most rows, over a result
 * made of zeros before: one that wrote nothing is not equal.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/calibrate_int.h"

struct tuning {
        struct calibration *c;
        const struct calibrate_matrix *m;
        struct k_tune_key key;
        uint32_t fewest, copies;
        float *want;            /* [key.batch][rows] the plain one's */
};

struct dims { uint32_t rows, cols; };
static const struct dims shapes_cpu[] = { { 4096, 4096 }, { 1024, 4096 } }, shapes_card[] = { { 14336, 4096 }, { 4096, 4096 }, { 1024, 4096 }, { 2048, 2048 } },
                         shapes_quick[] = { { 256, 512 } };
static const uint32_t buckets[] = { 1, 4, 8, 16, 32 }; /* ascending, as k_tune_bucket() has them */

static int use(struct tuning *t, uint32_t variant) {
        return t->c->ops->tune(t->c->k, &(struct k_tune_choice){ t->key, variant }, 1);
}

/* The step's n rows in c->host_y. */
static int result(struct tuning *t, uint32_t n) {
        struct calibration *c = t->c;
        size_t bytes = (size_t)n * t->m->rows * sizeof(float);
        int r = c->ops->zero(c->k, c->y, bytes);

        if (r >= 0)
                r = calibrate_step(c, t->m, 1, n, false);
        return r < 0 ? r : c->ops->download(c->k, c->host_y, c->y, bytes);
}

static int check_rows(struct tuning *t, uint32_t variant, uint32_t n, float *want) {
        size_t bytes = (size_t)n * t->m->rows * sizeof(float);
        int r;

        if (variant == 0) {
                r = calibrate_compare(t->c, t->m, n, false);
                if (r == 0)
                        memcpy(want, t->c->host_y, bytes);
                return r < 0 ? r : K_TUNE_TIMED;
        }
        r = result(t, n);
        if (r == -ENOTSUP)
                return K_TUNE_CANT;
        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        return memcmp(t->c->host_y, want, bytes) == 0 ? K_TUNE_TIMED : K_TUNE_DIFFERS;
}

static int check(void *ud, uint32_t variant) {
        struct tuning *t = ud;
        int r = use(t, variant);

        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        r = check_rows(t, variant, t->key.batch, t->want);
        if (r == K_TUNE_TIMED && t->fewest < t->key.batch)
                r = check_rows(t, variant, t->fewest, t->want + (size_t)t->key.batch * t->m->rows);
        return r;
}

static int time_round(void *ud, uint32_t variant, double *ret_s) {
        struct tuning *t = ud;
        double s = 0;
        int r = use(t, variant);

        for (int i = 0; r >= 0 && i < 2; i++) { /* the first one meets what the variant before left */
                s = calibrate_now();
                r = calibrate_step(t->c, t->m, t->copies, t->key.batch, false);
                s = calibrate_now() - s;
        }
        if (r < 0)
                return calibrate_failed(t->c, r, t->c->what);
        *ret_s = (s > 0 ? s : 1e-9) / t->copies;
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
        t->want = h_malloc((size_t)(t->key.batch + t->fewest) * t->m->rows * sizeof(float));
        if (!t->want)
                return calibrate_failed(c, -ENOMEM, c->what);
        r = k_tune_choose(&run, &res);
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

static int tune_shape(struct calibration *c, enum k_type type, const struct dims *s) {
        struct calibrate_matrix m = {};
        uint32_t fewest = 1;
        int r;

        snprintf(c->what, sizeof(c->what), "launches of %s", k_type_name(type));
        calibrate_tell(c, c->what);
        /* A processor's ways differ in how a product is cut, not in what it reads: less than for a rate will do. */
        r = calibrate_matrix_new(c, type, s->rows, s->cols, c->cuda ? c->s.memory : c->s.memory / 4, &m);
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(buckets); i++) {
                struct tuning t = { .c = c, .m = &m, .key = { K_TUNE_LINEAR, type, s->rows, s->cols, buckets[i] }, .fewest = fewest };

                /* Wide products are not bound by memory; on a card a step's own cost must not hide them. */
                t.copies = c->cuda ? m.copies : MAX(m.copies / buckets[i], 1u);
                r = tune_one(&t);
                fewest = buckets[i] + 1;
        }
        calibrate_matrix_free(c, &m);
        return MIN(r, 0);
}

int calibrate_choices(struct calibration *c) {
        const struct dims *s = c->o->quick ? shapes_quick : c->cuda ? shapes_card : shapes_cpu;
        size_t n = c->o->quick ? ELEMENTSOF(shapes_quick) : c->cuda ? ELEMENTSOF(shapes_card) : ELEMENTSOF(shapes_cpu);
        const char *const *names;
        int r = 0, e;

        if (!c->ops->variants)
                return 0;
        for (unsigned t = 0; r == 0 && t < _K_TYPE_MAX; t++)
                for (size_t i = 0; r == 0 && t != K_I32 && i < n; i++) {
                        struct k_tune_key key = { K_TUNE_LINEAR, (enum k_type)t, s[i].rows, s[i].cols, 1 };
                        if (c->ops->variants(c->k, &key, &names) > 1)
                                r = tune_shape(c, (enum k_type)t, &s[i]);
                }
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
