/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See mixed.h. Rows are treated at most ROWS at a time, through one staging
 * area of host memory: the host's work is done in the order of the ops
 * (host_begin), so the area is free again when the next op's begins.
 *
 * A job is copied into the main device's commands and compared byte by byte with
 * those of earlier steps, so jobs are zeroed and filled field by field.
 */
#include "kernels/mixed.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"

#define ROWS 32u

struct map {
        const uint8_t *dev, *host;
        size_t bytes;
};

/* A staging area that became too small: graphs made before have its address, so it stays as long as the devices. */
struct outgrown {
        struct outgrown *next;
        uint8_t *stage;
};

struct k_mixed {
        struct k_ops ops;            /* the main device's, three replaced */
        const struct k_ops *main;    /* as it was */
        struct k_dev *host;
        pthread_rwlock_t lock;       /* of the maps: models are loaded beside steps */
        struct map *maps;            /* sorted by 'dev' */
        size_t n_maps, max_maps;

        uint8_t *stage;              /* host_alloc(): inputs, then outputs */
        size_t in_bytes, out_bytes;
        struct outgrown *outgrown;
        void *moe;
        size_t moe_bytes;
};

/* ---- addresses ------------------------------------------------------------------ */

/* The first map that ends behind p. */
static size_t map_at(const struct k_mixed *m, const uint8_t *p) {
        size_t lo = 0, hi = m->n_maps;

        while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                if (m->maps[mid].dev + m->maps[mid].bytes > p)
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return lo;
}

static const void *host_of(struct k_mixed *m, const void *dev) {
        const uint8_t *p = dev, *r = NULL;
        size_t i;

        if (!p)
                return NULL;
        pthread_rwlock_rdlock(&m->lock);
        i = map_at(m, p);
        if (i < m->n_maps && m->maps[i].dev <= p)
                r = m->maps[i].host + (p - m->maps[i].dev);
        pthread_rwlock_unlock(&m->lock);
        return r;
}

int k_mixed_map(struct k_dev *main, const void *dev, const void *host, size_t bytes) {
        struct k_mixed *m = main->mixed;
        size_t i;
        int r = 0;

        pthread_rwlock_wrlock(&m->lock);
        if (m->n_maps == m->max_maps) {
                size_t n = MAX(m->max_maps * 2, (size_t)64);
                struct map *p = h_realloc(m->maps, n * sizeof(*p));
                if (p) {
                        m->maps = p;
                        m->max_maps = n;
                } else {
                        r = -ENOMEM;
                }
        }
        if (r == 0) {
                i = map_at(m, dev);
                memmove(m->maps + i + 1, m->maps + i, (m->n_maps - i) * sizeof(*m->maps));
                m->maps[i] = (struct map){ dev, host, bytes };
                m->n_maps++;
        }
        pthread_rwlock_unlock(&m->lock);
        return r;
}

void k_mixed_unmap(struct k_dev *main, const void *dev) {
        struct k_mixed *m = main->mixed;
        size_t i;

        pthread_rwlock_wrlock(&m->lock);
        i = map_at(m, dev);
        if (i < m->n_maps && m->maps[i].dev == dev) {
                m->n_maps--;
                memmove(m->maps + i, m->maps + i + 1, (m->n_maps - i) * sizeof(*m->maps));
        }
        pthread_rwlock_unlock(&m->lock);
}

/* The same matrix for the host's device; false: not all of it can be reached. */
static bool weight_of(struct k_mixed *m, const struct k_weight *w, struct k_weight *ret) {
        ret->type = w->type;
        ret->layout = w->layout;
        ret->rows = w->rows;
        ret->cols = w->cols;
        ret->n_expert = w->n_expert;
        ret->expert_stride = w->expert_stride;
        ret->place = K_PLACE_DEVICE;
        ret->data = host_of(m, w->data);
        ret->scale = host_of(m, w->scale);
        return ret->data && (ret->scale || !w->scale);
}

static bool bias_of(struct k_mixed *m, const float *dev, const float **ret) {
        *ret = host_of(m, dev);
        return *ret || !dev;
}

static int unreachable(void) {
        return -EFAULT; /* a matrix of K_PLACE_HOST that was never mapped: the caller's mistake */
}

/* ---- linear --------------------------------------------------------------------- */

struct linear_job {
        uint64_t n_out, n;
        float *x;
        uint64_t cols;
        struct { struct k_weight w; const float *bias; float *y; } out[K_LINEAR_MAX];
};

static int run_linear(void *ud, const void *arg) {
        struct k_mixed *m = ud;
        struct linear_job j;
        struct k_act x;
        struct k_linear_args a;

        memcpy(&j, arg, sizeof(j));
        x = (struct k_act){ .f = j.x, .cols = (uint32_t)j.cols };
        a = (struct k_linear_args){ .x = &x, .n_out = (uint32_t)j.n_out, .n_rows = (uint32_t)j.n, .n_d = (uint32_t)j.n };
        for (uint32_t i = 0; i < j.n_out; i++) {
                a.out[i].w = &j.out[i].w;
                a.out[i].bias = j.out[i].bias;
                a.out[i].y = j.out[i].y;
                a.out[i].y_stride = j.out[i].w.rows;
        }
        return m->host->ops->linear(m->host, NULL, &a);
}

/* Rows [row, row + n) of the host's matrices. Begins only: the caller may give the main device something to do meanwhile. */
static int begin_linear(struct k_mixed *m, struct k_dev *dev, const struct k_linear_args *a, const uint32_t *which, uint32_t n_which,
                        uint32_t row, uint32_t n) {
        struct linear_job j;
        struct k_host_args h = { .n_in = 1, .fn = run_linear, .ud = m, .arg = &j, .arg_bytes = sizeof(j) };
        float *y = (float *)(void *)(m->stage + m->in_bytes);
        size_t cols = a->x->cols;

        memset(&j, 0, sizeof(j));
        j.x = (float *)(void *)m->stage;
        j.cols = cols;
        j.n = n;
        j.n_out = n_which;
        h.in[0] = (struct k_host_copy){ j.x, a->x->f + row * cols, n * cols * sizeof(float), n * cols * sizeof(float),
                                        n * cols * sizeof(float), 1 };
        for (uint32_t i = 0; i < n_which; i++) {
                uint32_t o = which[i];
                size_t rows = a->out[o].w->rows;

                if (!weight_of(m, a->out[o].w, &j.out[i].w) || !bias_of(m, a->out[o].bias, &j.out[i].bias))
                        return unreachable();
                j.out[i].y = y;
                h.out[h.n_out++] = (struct k_host_copy){ a->out[o].y + row * a->out[o].y_stride, y, rows * sizeof(float),
                                                         a->out[o].y_stride * sizeof(float), rows * sizeof(float), n };
                y += n * rows;
        }
        return m->main->host_begin(dev, &h);
}

/* An act that begins at a later row. Its image is made anew: images are laid out for the whole batch. */
static struct k_act act_from(const struct k_act *x, uint32_t row) {
        return (struct k_act){ .f = x->f + (size_t)row * x->cols, .cols = x->cols };
}

static int mixed_linear(struct k_dev *dev, const struct k_batch *b, const struct k_linear_args *a) {
        struct k_mixed *m = dev->mixed;
        struct k_linear_args rest = *a, prompt = *a;
        uint32_t which[K_LINEAR_MAX], n_which = 0, at_once;
        size_t outputs = 0;
        struct k_act x;
        int r = 0;

        for (uint32_t i = 0; i < a->n_out && i < K_LINEAR_MAX; i++)
                if (a->out[i].w->place == K_PLACE_HOST) {
                        which[n_which++] = i;
                        outputs += a->out[i].w->rows;
                }
        at_once = outputs ? (uint32_t)MIN(m->out_bytes / (outputs * sizeof(float)), (size_t)ROWS) : 0;
        if (!at_once || a->n_d == 0 || a->gather || a->row0 || (size_t)a->x->cols * sizeof(float) * at_once > m->in_bytes)
                return m->main->linear(dev, b, a);

        rest.n_out = prompt.n_out = 0;
        for (uint32_t i = 0; i < a->n_out; i++)
                if (a->out[i].w->place == K_PLACE_HOST) {
                        prompt.out[prompt.n_out] = a->out[i];
                        prompt.out[prompt.n_out++].y += a->n_d * a->out[i].y_stride;
                } else {
                        rest.out[rest.n_out++] = a->out[i];
                }
        for (uint32_t row = 0; r == 0 && row < a->n_d; row += at_once) {
                r = begin_linear(m, dev, a, which, n_which, row, MIN(at_once, a->n_d - row));
                if (r == 0 && row == 0 && rest.n_out)
                        r = m->main->linear(dev, b, &rest);
                if (r == 0)
                        r = m->main->host_end(dev);
        }
        if (r == 0 && a->n_rows > a->n_d) {
                x = act_from(a->x, a->n_d);
                prompt.x = &x;
                prompt.n_rows = a->n_rows - a->n_d;
                prompt.n_d = 0;
                r = m->main->linear(dev, b, &prompt);
        }
        return r;
}

/* ---- experts -------------------------------------------------------------------- */

struct moe_job {
        struct k_weight gate, up, down;
        const float *gate_b, *up_b, *down_b, *select_bias;
        float *x, *router, *y;
        uint64_t cols, n, n_expert, n_used, n_group, n_group_used, gating, norm_weights, act;
        float weight_scale, alpha, limit, zero;
};

static int run_moe(void *ud, const void *arg) {
        struct k_mixed *m = ud;
        struct moe_job j;
        struct k_act x;
        struct k_moe_args a;

        memcpy(&j, arg, sizeof(j));
        x = (struct k_act){ .f = j.x, .cols = (uint32_t)j.cols };
        a = (struct k_moe_args){
                .x = &x, .router = j.router, .router_stride = j.n_expert, .select_bias = j.select_bias, .n_expert = (uint32_t)j.n_expert,
                .n_used = (uint32_t)j.n_used, .n_group = (uint32_t)j.n_group, .n_group_used = (uint32_t)j.n_group_used,
                .gating = (enum k_gating)j.gating, .norm_weights = j.norm_weights != 0, .weight_scale = j.weight_scale,
                .gate = j.gate.data ? &j.gate : NULL, .up = &j.up, .down = &j.down, .gate_b = j.gate_b, .up_b = j.up_b, .down_b = j.down_b,
                .act = (enum k_glu)j.act, .alpha = j.alpha, .limit = j.limit, .scratch = m->moe, .scratch_bytes = m->moe_bytes, .y = j.y,
                .y_stride = j.down.rows, .n = (uint32_t)j.n, .n_d = (uint32_t)j.n,
        };
        return m->host->ops->moe(m->host, NULL, &a);
}

static bool fill_moe(struct k_mixed *m, const struct k_moe_args *a, struct moe_job *j) {
        bool ok = weight_of(m, a->up, &j->up) && weight_of(m, a->down, &j->down) && (!a->gate || weight_of(m, a->gate, &j->gate));

        ok = ok && bias_of(m, a->gate_b, &j->gate_b) && bias_of(m, a->up_b, &j->up_b) && bias_of(m, a->down_b, &j->down_b) &&
             bias_of(m, a->select_bias, &j->select_bias);
        j->cols = a->x->cols;
        j->n_expert = a->n_expert;
        j->n_used = a->n_used;
        j->n_group = a->n_group;
        j->n_group_used = a->n_group_used;
        j->gating = a->gating;
        j->norm_weights = a->norm_weights;
        j->act = a->act;
        j->weight_scale = a->weight_scale;
        j->alpha = a->alpha;
        j->limit = a->limit;
        return ok;
}

static int begin_moe(struct k_mixed *m, struct k_dev *dev, const struct k_moe_args *a, uint32_t row, uint32_t n) {
        struct moe_job j;
        struct k_host_args h = { .n_in = 2, .n_out = 1, .fn = run_moe, .ud = m, .arg = &j, .arg_bytes = sizeof(j) };
        size_t xb = (size_t)a->x->cols * sizeof(float), rb = a->n_expert * sizeof(float), yb = (size_t)a->down->rows * sizeof(float);

        memset(&j, 0, sizeof(j));
        if (!fill_moe(m, a, &j))
                return unreachable();
        j.n = n;
        j.x = (float *)(void *)m->stage;
        j.router = (float *)(void *)(m->stage + ROWS * xb);
        j.y = (float *)(void *)(m->stage + m->in_bytes);
        h.in[0] = (struct k_host_copy){ j.x, a->x->f + (size_t)row * a->x->cols, xb, xb, xb, n };
        h.in[1] = (struct k_host_copy){ j.router, a->router + row * a->router_stride, rb, rb, a->router_stride * sizeof(float), n };
        h.out[0] = (struct k_host_copy){ a->y + row * a->y_stride, j.y, yb, a->y_stride * sizeof(float), yb, n };
        return m->main->host_begin(dev, &h);
}

static int mixed_moe(struct k_dev *dev, const struct k_batch *b, const struct k_moe_args *a) {
        struct k_mixed *m = dev->mixed;
        bool host = a->up->place == K_PLACE_HOST && a->down->place == K_PLACE_HOST && (!a->gate || a->gate->place == K_PLACE_HOST);
        struct k_moe_args prompt = *a;
        struct k_act x;
        int r = 0;

        if (!host || a->n_d == 0 || !m->moe || ROWS * ((size_t)a->x->cols + a->n_expert) * sizeof(float) > m->in_bytes ||
            ROWS * (size_t)a->down->rows * sizeof(float) > m->out_bytes)
                return m->main->moe(dev, b, a);
        for (uint32_t row = 0; r == 0 && row < a->n_d; row += ROWS) {
                r = begin_moe(m, dev, a, row, MIN(ROWS, a->n_d - row));
                if (r == 0)
                        r = m->main->host_end(dev);
        }
        if (r == 0 && a->n > a->n_d) {
                x = act_from(a->x, a->n_d);
                prompt.x = &x;
                prompt.router += a->n_d * a->router_stride;
                prompt.y += a->n_d * a->y_stride;
                prompt.n = a->n - a->n_d;
                prompt.n_d = 0;
                r = m->main->moe(dev, b, &prompt);
        }
        return r;
}

/* ---- life ----------------------------------------------------------------------- */

static void mixed_close(struct k_dev *dev) {
        struct k_mixed *m = dev->mixed;
        const struct k_ops *main = m->main;

        if (main->sync)
                (void)main->sync(dev);
        if (m->stage)
                main->host_free(dev, m->stage);
        while (m->outgrown) {
                struct outgrown *o = m->outgrown;
                m->outgrown = o->next;
                main->host_free(dev, o->stage);
                free(o);
        }
        m->host->ops->close(m->host);
        free(m->moe);
        free(m->maps);
        pthread_rwlock_destroy(&m->lock);
        dev->ops = main;
        dev->mixed = NULL;
        free(m);
        main->close(dev);
}

int k_mixed_attach(struct k_dev *main, struct k_dev *host) {
        struct k_mixed *m;

        if (main->mixed || !main->ops->host_begin || !main->ops->host_alloc) {
                host->ops->close(host);
                return main->mixed ? -EALREADY : -EOPNOTSUPP;
        }
        m = h_new0(struct k_mixed, 1);
        if (!m) {
                host->ops->close(host);
                return -ENOMEM;
        }
        m->main = main->ops;
        m->ops = *main->ops;
        m->ops.linear = mixed_linear;
        m->ops.moe = mixed_moe;
        m->ops.close = mixed_close;
        m->host = host;
        pthread_rwlock_init(&m->lock, NULL);
        k_cpu_between_device_ops(host);
        main->mixed = m;
        main->ops = &m->ops;
        return 0;
}

const char *k_mixed_host(struct k_dev *main) {
        return main->mixed->host->ops->describe(main->mixed->host);
}

struct sizes {
        size_t in, out, moe;
};

static bool measure(const struct k_mixed *m, const struct k_mixed_shape *s, struct sizes *ret) {
        size_t in, out;

        if (!size_mul((size_t)s->max_cols + s->n_expert, ROWS * sizeof(float), &in) ||
            !size_mul(MAX((size_t)s->max_out, (size_t)s->d), ROWS * sizeof(float), &out) || !size_align(in, 256, &in))
                return false;
        *ret = (struct sizes){ in, out, s->n_expert ? m->host->ops->moe_scratch(ROWS, s->n_used, s->d, s->ff, s->n_expert) : 0 };
        return true;
}

size_t k_mixed_bytes(struct k_dev *main, const struct k_mixed_shape *s) {
        struct k_mixed *m = main->mixed;
        struct sizes z;

        return measure(m, s, &z) ? z.in + z.out + z.moe + m->host->ops->dev_scratch(m->host, ROWS, s->max_cols, s->n_head, s->n_ctx) : SIZE_MAX;
}

int k_mixed_reserve(struct k_dev *main, const struct k_mixed_shape *s) {
        struct k_mixed *m = main->mixed;
        struct outgrown *old;
        struct sizes z;
        uint8_t *stage;
        int r;

        if (!measure(m, s, &z))
                return -EOVERFLOW;
        r = m->main->sync(main);
        if (r >= 0)
                r = m->host->ops->reserve(m->host, ROWS, s->max_cols, s->n_head, s->n_ctx);
        if (r < 0)
                return r;
        if (z.in > m->in_bytes || z.out > m->out_bytes) {
                z.in = MAX(z.in, m->in_bytes);
                z.out = MAX(z.out, m->out_bytes);
                stage = m->main->host_alloc(main, z.in + z.out);
                old = m->stage ? h_new0(struct outgrown, 1) : NULL;
                if (!stage || (m->stage && !old)) {
                        if (stage)
                                m->main->host_free(main, stage);
                        free(old);
                        return -ENOMEM;
                }
                if (old) {
                        *old = (struct outgrown){ m->outgrown, m->stage };
                        m->outgrown = old;
                }
                m->stage = stage;
                m->in_bytes = z.in;
                m->out_bytes = z.out;
        }
        if (z.moe > m->moe_bytes) {
                void *p = h_aligned_alloc(64, (z.moe + 63) & ~(size_t)63);
                if (!p)
                        return -ENOMEM;
                free(m->moe);
                m->moe = p;
                m->moe_bytes = z.moe;
        }
        return 0;
}

/* Each of the stacked matrices once; bytes read. */
static size_t read_once(struct k_mixed *m, const struct k_weight *w) {
        struct k_act x = { .f = (float *)(void *)m->stage, .cols = w->cols };
        struct k_linear_args a = { .x = &x, .n_out = 1, .n_rows = 1, .n_d = 1 };
        size_t bytes = m->main->layout_bytes(w->type, w->layout, w->rows, w->cols);
        struct k_weight one = { .type = K_F32 };
        uint32_t n = MAX(w->n_expert, 1u);

        if (!m->stage || w->cols * sizeof(float) > m->in_bytes || w->rows * sizeof(float) > m->out_bytes || !weight_of(m, w, &one))
                return 0;
        one.scale = NULL;
        one.n_expert = 0;
        a.out[0].w = &one;
        a.out[0].y = (float *)(void *)(m->stage + m->in_bytes);
        a.out[0].y_stride = w->rows;
        for (uint32_t i = 0; i < n; i++) {
                if (m->host->ops->linear(m->host, NULL, &a) < 0)
                        return 0;
                one.data = (const uint8_t *)one.data + w->expert_stride;
        }
        return n * bytes;
}

double k_mixed_rate(struct k_dev *main, const struct k_weight *w, uint32_t n) {
        struct k_mixed *m = main->mixed;
        struct timespec t0, t1;
        size_t bytes = 0;
        double s;

        if (m->stage)
                memset(m->stage, 0, m->in_bytes);
        (void)read_once(m, &w[n - 1]); /* wakes the threads */
        clock_gettime(CLOCK_MONOTONIC, &t0);
        for (uint32_t i = 0; i + 1 < n || i == 0; i++)
                bytes += read_once(m, &w[i]);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        s = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
        return s > 0 ? (double)bytes / s : 0;
}
