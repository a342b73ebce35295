/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the int8 products (matvec.cuh): shape to launch. */
#include <errno.h>

#include "kernels/cuda/matvec.cuh"

int cuda_matvec_a(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);
int cuda_matvec_b(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);
int cuda_matvec_c(struct cuda_dev *, enum k_type, const matvec_args &, uint32_t warps, uint32_t jobs);

/* How many warps share a row, and how many tiles each takes: by shape alone, since it fixes the order of the sum. */
static void matvec_split(uint32_t n_sb, uint32_t *ret_ks, uint32_t *ret_per_warp) {
        *ret_per_warp = DIV_ROUND_UP(n_sb, 8u);
        *ret_ks = DIV_ROUND_UP(n_sb, *ret_per_warp);
}

static void matvec_fill(matvec_args *a, const struct linear_out *const *out, uint32_t n_out, const uint8_t *image, uint32_t kpad,
                        const struct jobs *jobs, const struct matvec_with *with) {
        uint32_t rg = 0;

        if (with) {
                a->add_to = with->add_to;
                a->add_scale = with->add_scale;
                a->squares = with->squares;
                a->mail = with->mail;
                if (with->norm)
                        a->norm = *with->norm;
        }
        for (uint32_t i = 0; i < n_out; i++) {
                const struct k_weight *w = &out[i]->w;
                const plane_base from = planes_of(w->type, w->data, w->rows, w->cols);
                memcpy(a->out[i].p, from.p, sizeof(from.p));
                a->out[i].expert_stride = w->expert_stride;
                a->out[i].bias = out[i]->bias;
                a->out[i].bias_stride = w->rows;
                a->out[i].scale = w->scale;
                a->out[i].many_scales = w->n_expert > 1;
                a->out[i].y = out[i]->y;
                a->out[i].y_stride = out[i]->y_stride;
                a->out[i].rows = w->rows;
                a->out[i].rg0 = rg;
                rg += DIV_ROUND_UP(w->rows, (uint32_t)CUDA_TILE_ROWS);
        }
        a->n_out = n_out;
        a->n_rg = rg;
        a->n_sb = kpad / CUDA_TILE_COLS;
        a->image = image;
        a->kpad = kpad;
        a->jobs = *jobs;
        a->lists = jobs->expert || jobs->per_expert;
        a->listed = a->lists || jobs->x_row || jobs->y_row;
        matvec_split(a->n_sb, &a->ks, &a->per_warp);
        a->ks_inverse = DIV_ROUND_UP(65536u, a->ks);
}

static int matvec_try(struct cuda_dev *d, enum k_type t, const matvec_args &a, uint32_t warps, uint32_t jobs) {
        int r;

        if ((r = cuda_matvec_a(d, t, a, warps, jobs)) <= 0)
                return r;
        if ((r = cuda_matvec_b(d, t, a, warps, jobs)) <= 0)
                return r;
        return cuda_matvec_c(d, t, a, warps, jobs);
}

static const struct matvec_choice plain = {0, 0, CUDA_GRID_RESIDENT, 0, CUDA_MANY_RULE};
static bool is_plain(const struct matvec_choice &c) {
        return c.groups == plain.groups && c.per_sm == plain.per_sm && c.grid == plain.grid && c.deep == plain.deep && c.many == plain.many;
}

/* As was chosen for a product of its shape (kernels/tune.h), or, where this one's tiles then don't fit, as if nothing was. */
static int matvec_launch(struct cuda_dev *d, const struct k_weight *w, matvec_args *a, uint32_t teams) {
        const bool lists = a->lists;
        const uint32_t jobs = lists ? a->jobs.n_job : 1;
        uint32_t rows = 0;
        int r;

        if (jobs == 0 || a->jobs.n == 0)
                return 0;
        for (uint32_t i = 0; i < a->n_out; i++)
                rows += a->out[i].rows;
        a->how = lists ? plain : cuda_matvec_choice(d, w->type, rows, w->cols, a->jobs.n);
        for (;; a->how = plain) {
                if (!a->glu) {
                        a->per_unit = teams * MAX(a->how.groups, 1u);
                        a->n_unit = DIV_ROUND_UP(a->n_rg, a->per_unit);
                }
                r = matvec_try(d, w->type, *a, teams * a->ks, jobs);
                if (r <= 0 || is_plain(a->how))
                        return r;
        }
}

static int matvec_same_type(struct cuda_dev *d, const struct linear_out *const *out, uint32_t n_out, const uint8_t *image,
                            uint32_t kpad, const struct jobs *jobs, const struct matvec_with *with) {
        matvec_args a = {};
        int r;

        matvec_fill(&a, out, n_out, image, kpad, jobs, with);
        r = matvec_launch(d, &out[0]->w, &a, MAX(1u, 8 / a.ks));
        return r > 0 && !a.squares && !a.norm.x ? -EINVAL : r;
}

int cuda_matvec(struct cuda_dev *d, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad,
                const struct jobs *jobs, const struct matvec_with *with) {
        struct matvec_with w = {};

        if (with)
                w = *with;
        if (w.add_to && n_out != 1)
                return -EINVAL;

        return cuda_each_type(out, n_out, [&](const struct linear_out *const *same, uint32_t n) {
                const int r = matvec_same_type(d, same, n, image, kpad, jobs, &w);
                w.norm = NULL; /* the first launch leaves its image */
                return r;
        });
}

int cuda_matvec_glu(struct cuda_dev *d, const struct linear_out *gate, const struct linear_out *up, const uint8_t *image, uint32_t kpad,
                    const struct jobs *jobs, const struct matvec_with *with, const struct glu_out *to) {
        const struct linear_out *out[2] = {gate, up};
        matvec_args a = {};

        if (gate->w.type != up->w.type || gate->w.rows != up->w.rows || gate->w.rows % 32 || jobs->per_expert)
                return 1;
        matvec_fill(&a, out, 2, image, kpad, jobs, with);
        a.glu = 1;
        a.act = to->act;
        a.alpha = to->alpha;
        a.limit = to->limit;
        a.h = to->h;
        a.h_image = to->image;
        a.mail_to = to->mail_to;
        a.per_unit = 4;
        a.n_unit = gate->w.rows / 32;
        return matvec_launch(d, &gate->w, &a, MAX(1u, MIN(8 / a.ks, 4u)));
}
