/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates of memory and copies, then each type's products: generated rows against
 * weights that come from memory (more copies of the matrix than a cache holds),
 * prompt rows against one. The best of several rounds counts: what disturbs a
 * round only ever makes it slower.
 */
#include "engine/calibrate_int.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/device.h"
#include "kernels/measure.h"

#define CHECKED_ROWS 16u
#define LARGEST 0.125f /* of a block's weights, or down to a quarter of it */
#define LIMIT 2e-2 /* of the error's norm: int8 activations are about 0.5e-2 off */

static const uint32_t batches[] = { 1, 8, 32 };

double calibrate_now(void) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void calibrate_tell(const struct calibration *c, const char *what) {
        if (c->o->progress)
                c->o->progress(c->o->ud, what);
}

bool calibrate_wanted(const struct calibration *c, enum k_type t) {
        return t != K_I32 && (!c->o->types || c->o->types & 1ull << t);
}

int calibrate_failed(const struct calibration *c, int r, const char *what) {
        return h_error_set(c->err, r == -ENOMEM ? HEARTH_E_no_memory : r == -EIO ? HEARTH_E_device_lost : HEARTH_E_internal, "measuring %s: %s", what,
                           r == -EIO ? c->ops->last_error(c->k) : strerror(-r));
}

/* ---- the host's memory ---- */

/* The readers start together, or, if one can't be had, leave together. */
struct gate {
        pthread_mutex_t lock;
        pthread_cond_t moved;
        enum { GATE_SHUT, GATE_GO, GATE_LEAVE } state;
};

struct reader {
        pthread_t thread;
        const uint64_t *p;
        size_t n;
        struct gate *gate;
        uint64_t sum;                   /* so that the reads are used */
};

#define READ_ROUNDS 3

static void *read_memory(void *arg) {
        struct reader *r = arg;
        uint64_t s[8] = {};
        bool go;

        pthread_mutex_lock(&r->gate->lock);
        while (r->gate->state == GATE_SHUT)
                pthread_cond_wait(&r->gate->moved, &r->gate->lock);
        go = r->gate->state == GATE_GO;
        pthread_mutex_unlock(&r->gate->lock);
        for (uint32_t k = 0; go && k < READ_ROUNDS; k++)
                for (size_t i = 0; i + 8 <= r->n; i += 8)
                        for (size_t j = 0; j < 8; j++)
                                s[j] += r->p[i + j] ^ k;
        for (int j = 0; j < 8; j++)
                r->sum += s[j];
        return NULL;
}

static int read_with(const uint64_t *mem, size_t words, uint32_t threads, double *ret_rate) {
        _cleanup_(freep) struct reader *r = h_new0(struct reader, threads);
        struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER };
        const size_t each = words / threads;
        uint32_t made = 0;
        double t;
        int e = 0;

        if (!r)
                return -ENOMEM;
        while (e == 0 && made < threads) {
                r[made] = (struct reader){ .p = mem + each * made, .n = each, .gate = &gate };
                e = -pthread_create(&r[made].thread, NULL, read_memory, &r[made]);
                made += e == 0;
        }
        pthread_mutex_lock(&gate.lock);
        t = calibrate_now();
        gate.state = e == 0 ? GATE_GO : GATE_LEAVE;
        pthread_cond_broadcast(&gate.moved);
        pthread_mutex_unlock(&gate.lock);
        for (uint32_t i = 0; i < made; i++)
                pthread_join(r[i].thread, NULL);
        t = calibrate_now() - t;
        if (e < 0)
                return e;
        *ret_rate = (double)(each * threads) * sizeof(uint64_t) * READ_ROUNDS / MAX(t, 1e-9);
        return 0;
}

static int measure_host(struct calibration *c) {
        size_t bytes = c->o->quick ? (size_t)4 << 20 : (size_t)256 << 20;
        uint64_t *mem = h_malloc(bytes);
        uint32_t cores, n = 1;
        cpu_set_t set;
        int r = 0;

        if (!mem)
                return calibrate_failed(c, -ENOMEM, "the host's memory");
        memset(mem, 1, bytes);
        cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
        calibrate_tell(c, "host memory");
        while (r == 0 && c->p->n_cpu < PROFILE_MAX_CPU) {
                struct profile_cpu *pc = &c->p->cpu[c->p->n_cpu];

                pc->threads = n;
                for (int i = 0; r == 0 && i < (c->o->quick ? 1 : 3); i++) {
                        double rate = 0;
                        r = read_with(mem, bytes / 8, n, &rate);
                        pc->bytes_s = rate > pc->bytes_s ? rate : pc->bytes_s;
                }
                c->p->n_cpu += r == 0;
                if (n == cores)
                        break;
                n = MIN(2 * n, cores);
        }
        free(mem);
        if (r < 0)
                return calibrate_failed(c, r, "the host's memory");
        for (uint32_t i = 0; !c->cuda && i < c->p->n_cpu; i++)
                c->p->memory_read = c->p->cpu[i].bytes_s > c->p->memory_read ? c->p->cpu[i].bytes_s : c->p->memory_read;
        return 0;
}

/* ---- the card's memory and the way there ---- */

static void keep_best(double *rate, size_t bytes, double seconds) {
        double v = (double)bytes / (seconds > 0 ? seconds : 1e-9);
        *rate = v > *rate ? v : *rate;
}

static int measure_copies(struct calibration *c, void *dev, void *host, size_t bytes) {
        struct profile *p = c->p;
        double t = 0;
        int r = 0;

        for (int i = 0; r >= 0 && i < (c->o->quick ? 2 : 6); i++) {
                t = calibrate_now();
                r = c->ops->load(c->k, dev, host, bytes);
                if (r >= 0)
                        r = c->ops->load_wait(c->k);
                if (r >= 0)
                        keep_best(&p->upload, bytes, calibrate_now() - t);
                t = calibrate_now();
                if (r >= 0)
                        r = c->ops->download(c->k, host, dev, bytes);
                if (r >= 0)
                        keep_best(&p->download, bytes, calibrate_now() - t);
                if (r >= 0)
                        r = k_cuda_read_time(c->k, host, bytes, &t);
                if (r >= 0)
                        keep_best(&p->host_read, bytes, t);
        }
        return r;
}

static int measure_card(struct calibration *c) {
        size_t device_bytes = c->o->quick ? (size_t)64 << 20 : (size_t)2 << 30, host_bytes = c->o->quick ? (size_t)16 << 20 : (size_t)256 << 20;
        void *dev = c->ops->mem_alloc(c->k, device_bytes), *host = c->ops->host_alloc(c->k, host_bytes);
        double t = 0;
        int r = dev && host ? 0 : -ENOMEM;

        calibrate_tell(c, "the card's memory");
        if (r == 0)
                memset(host, 1, host_bytes);
        if (r == 0)
                r = c->ops->zero(c->k, dev, device_bytes);
        for (int i = 0; r >= 0 && i < (c->o->quick ? 2 : 8); i++) {
                r = k_cuda_read_time(c->k, dev, device_bytes, &t);
                if (r >= 0)
                        keep_best(&c->p->memory_read, device_bytes, t);
        }
        if (r >= 0)
                r = measure_copies(c, dev, host, host_bytes);
        for (int i = 0; r >= 0 && i < 3; i++) {
                r = k_cuda_launch_time(c->k, 1000, &t);
                if (r >= 0 && (c->p->launch_s <= 0 || t < c->p->launch_s))
                        c->p->launch_s = t;
        }
        c->ops->mem_free(c->k, dev);
        if (host)
                c->ops->host_free(c->k, host);
        return r < 0 ? calibrate_failed(c, r, "the card's memory") : 0;
}

/* ---- products ---- */

#define KT(name, id, block, bytes) _Static_assert((bytes) <= CALIBRATE_BLOCK_BYTES, "a block of " #name);
#include "kernels/types.def"
#undef KT

/*
 * Random blocks of about equal size, the first CALIBRATE_BLOCKS again and again. Scales as random as the rest
 * would leave a row's sum to one or two of its blocks, and a fault in the others would be lost in their rounding.
 * They are made once a type: of NVFP4's, with four scales each, one in thousands will do.
 */
static const uint8_t *random_blocks(struct calibration *c, enum k_type t) {
        uint32_t seed = 1, bytes = k_type_bytes(t), block = k_type_block(t);
        uint8_t *dst = c->blocks;
        float v[256];

        if (c->n_block_bytes && c->blocks_of == t)
                return c->blocks;
        c->blocks_of = t;
        c->n_block_bytes = CALIBRATE_BLOCKS * bytes;
        for (size_t b = 0; b < CALIBRATE_BLOCKS; b++, dst += bytes) {
                float largest = 0;
                bool ok = false;

                while (!ok || largest < LARGEST / 4) {
                        for (uint32_t i = 0; i < bytes; i++)
                                dst[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
                        k_decode(t, dst, v, block);
                        ok = true;
                        largest = 0;
                        for (uint32_t i = 0; i < block; i++) {
                                ok = ok && fabsf(v[i]) <= LARGEST; /* no NaN is */
                                largest = fmaxf(largest, fabsf(v[i]));
                        }
                }
        }
        return c->blocks;
}

static void random_weights(struct calibration *c, enum k_type t, size_t n_bytes, uint8_t *dst) {
        const uint8_t *blocks = random_blocks(c, t);

        for (size_t n; n_bytes; n_bytes -= n, dst += n) {
                n = MIN(n_bytes, c->n_block_bytes);
                memcpy(dst, blocks, n);
        }
}

int calibrate_queue(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt) {
        struct k_batch b = { .n = n, .n_d = prompt ? 0 : n, .n_seq = 1 };
        struct k_act x = { .f = c->x, .q = c->xq, .cols = m->cols };
        int r = c->ops->batch_begin(c->k, &b), e;

        if (r < 0)
                return r;
        for (uint32_t i = 0; r >= 0 && i < n_w; i++) {
                struct k_linear_args a = { .x = &x, .n_out = 1, .n_rows = n, .n_d = b.n_d };

                a.out[0].w = &m->w[i];
                a.out[0].y = c->y;
                a.out[0].y_stride = m->rows;
                r = c->ops->linear(c->k, &b, &a);
        }
        e = c->ops->batch_end(c->k, &b);
        return r < 0 ? r : e;
}

int calibrate_step(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt) {
        int r = calibrate_queue(c, m, n_w, n, prompt);
        return r < 0 ? r : c->ops->sync(c->k);
}

/*
 * The product against decoded weights in float64. Rounding is measured by the
 * terms' norm, which their sum has on average: sums that happen to cancel don't count.
 */
int calibrate_compare(struct calibration *c, const struct calibrate_matrix *m, uint32_t n, bool prompt) {
        _cleanup_(freep) float *row = h_malloc((size_t)m->cols * sizeof(float));
        double off = 0, norm = 0;
        int r;

        if (!row)
                return calibrate_failed(c, -ENOMEM, c->what);
        r = calibrate_step(c, m, 1, n, prompt);
        if (r >= 0)
                r = c->ops->download(c->k, c->host_y, c->y, (size_t)n * m->rows * sizeof(float));
        if (r < 0)
                return calibrate_failed(c, r, c->what);
        for (uint32_t i = 0; i < CHECKED_ROWS; i++) {
                uint32_t at = (uint32_t)((uint64_t)i * (m->rows - 1) / (CHECKED_ROWS - 1));

                k_decode(m->w[0].type, m->file + at * m->row_bytes, row, m->cols);
                for (uint32_t k = 0; k < n; k++) {
                        double want = 0, is = c->host_y[(size_t)k * m->rows + at];

                        for (uint32_t j = 0; j < m->cols; j++) {
                                double v = (double)row[j] * c->host_x[(size_t)k * m->cols + j];

                                want += v;
                                norm += v * v;
                        }
                        off += (is - want) * (is - want);
                }
        }
        if (!(off <= LIMIT * LIMIT * norm))
                return h_error_set(c->err, HEARTH_E_internal, "%s of %u rows on this device are off by %.3g of their size (at most %g is rounding); "
                                   "nothing was kept", c->what, n, sqrt(off / norm), LIMIT);
        return 0;
}

static int best(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt, double *ret_s) {
        /* A card's step is recorded by the first runs and replayed by the later ones. */
        const uint32_t warm = c->cuda ? 3 : 1;
        double least = INFINITY, end = calibrate_now() + c->s.seconds;

        for (uint32_t i = 0; i < warm + 2 || calibrate_now() < end; i++) {
                double t = calibrate_now();
                int r = calibrate_step(c, m, n_w, n, prompt);

                if (r < 0)
                        return calibrate_failed(c, r, c->what);
                t = calibrate_now() - t;
                if (i >= warm && t < least)
                        least = t;
        }
        *ret_s = MAX(least, 1e-9) / n_w;
        return 0;
}

static int add_rate(struct calibration *c, const struct calibrate_matrix *m, uint32_t n_w, uint32_t n, bool prompt) {
        struct profile_rate *pr = &c->p->rate[c->p->n_rate];
        double s = 0;
        int r = best(c, m, n_w, n, prompt, &s);

        if (r < 0)
                return r;
        *pr = (struct profile_rate){ .type = m->w[0].type, .prompt = prompt, .batch = n, .rows = m->rows, .cols = m->cols,
                                     .bytes_s = (double)m->bytes / s, .flop_s = 2.0 * m->rows * m->cols * n / s };
        c->p->n_rate++;
        return 0;
}

static int measure_all(struct calibration *c, const struct calibrate_matrix *m) {
        int r = 0;

        for (size_t i = 0; r == 0 && i < ELEMENTSOF(batches); i++) {
                r = calibrate_compare(c, m, batches[i], false);
                if (r == 0)
                        r = add_rate(c, m, m->copies, batches[i], false);
        }
        if (r == 0)
                r = calibrate_compare(c, m, MIN(c->s.prompt, 32u), true);
        return r == 0 ? add_rate(c, m, 1, c->s.prompt, true) : r;
}

int calibrate_matrix_new(struct calibration *c, enum k_type t, uint32_t rows, uint32_t cols, size_t memory, struct calibrate_matrix *ret) {
        const struct k_ops *ops = c->ops;
        enum k_layout layout = ops->layout_pick(t, rows, cols, false);
        struct calibrate_matrix m = { .rows = rows, .cols = cols, .bytes = ops->layout_bytes(t, layout, rows, cols) };
        size_t stride = (m.bytes + 255) & ~(size_t)255;
        uint8_t *image = NULL;
        int r = 0;

        if (!k_type_row_bytes(t, cols, &m.row_bytes))
                return 1;
        m.copies = (uint32_t)MIN(memory / stride + 1, (size_t)CALIBRATE_COPIES);
        m.file = h_malloc(m.row_bytes * rows);
        image = h_malloc(m.bytes);
        m.dev = ops->mem_alloc(c->k, stride * m.copies);
        if (!m.file || !image || !m.dev)
                r = -ENOMEM;
        if (r == 0) {
                random_weights(c, t, m.row_bytes * rows, m.file);
                r = ops->repack(t, layout, rows, cols, m.file, image);
        }
        for (uint32_t i = 0; r >= 0 && i < m.copies; i++) {
                m.w[i] = (struct k_weight){ .type = t, .layout = layout, .rows = rows, .cols = cols, .data = m.dev + i * stride };
                r = i == 0 ? ops->upload(c->k, m.dev, image, m.bytes) : ops->copy(c->k, m.dev + i * stride, m.dev, m.bytes);
        }
        free(image);
        if (r < 0) {
                calibrate_matrix_free(c, &m);
                return calibrate_failed(c, r, c->what);
        }
        *ret = m;
        return 0;
}

void calibrate_matrix_free(struct calibration *c, struct calibrate_matrix *m) {
        free(m->file);
        if (m->dev)
                c->ops->mem_free(c->k, m->dev);
        *m = (struct calibrate_matrix){};
}

static int measure_type(struct calibration *c, enum k_type t) {
        struct calibrate_matrix m = {};
        int r;

        snprintf(c->what, sizeof(c->what), "products of %s", k_type_name(t));
        calibrate_tell(c, c->what);
        r = calibrate_matrix_new(c, t, c->s.rows, c->s.cols, c->s.memory, &m);
        if (r == 0)
                r = measure_all(c, &m);
        calibrate_matrix_free(c, &m);
        return MIN(r, 0);
}

static int measure_products(struct calibration *c) {
        const size_t in = (size_t)c->max_batch * c->s.cols, out = (size_t)c->max_batch * c->s.rows;
        int r = c->ops->reserve ? c->ops->reserve(c->k, c->max_batch, MAX(c->s.cols, c->s.rows), 1, 1) : 0;

        c->host_x = h_malloc(in * sizeof(float));
        c->host_y = h_malloc(out * sizeof(float));
        c->x = c->ops->mem_alloc(c->k, in * sizeof(float));
        c->y = c->ops->mem_alloc(c->k, out * sizeof(float));
        c->xq = c->ops->mem_alloc(c->k, c->ops->act_q_bytes(c->max_batch, c->s.cols));
        if (r >= 0 && (!c->host_x || !c->host_y || !c->x || !c->y || !c->xq))
                r = -ENOMEM;
        if (r >= 0) {
                for (size_t i = 0; i < in; i++)
                        c->host_x[i] = (float)((uint32_t)i * 2654435761u >> 16) / 32768 - 1;
                r = c->ops->upload(c->k, c->x, c->host_x, in * sizeof(float));
        }
        if (r < 0)
                r = calibrate_failed(c, r, "products");
        for (unsigned t = 0; r == 0 && t < _K_TYPE_MAX; t++)
                if (calibrate_wanted(c, (enum k_type)t))
                        r = measure_type(c, (enum k_type)t);
        if (r == 0)
                r = calibrate_choices(c);
        free(c->host_x);
        free(c->host_y);
        c->ops->mem_free(c->k, c->x);
        c->ops->mem_free(c->k, c->y);
        c->ops->mem_free(c->k, c->xq);
        return r;
}

/* ---- what it is known by ---- */

static void processor_name(char *out, size_t n) {
        char line[256];
        FILE *f = fopen("/proc/cpuinfo", "re");

        snprintf(out, n, "processor");
        while (f && fgets(line, sizeof(line), f)) {
                char *colon = strchr(line, ':');

                if (strncmp(line, "model name", 10) != 0 || !colon)
                        continue;
                line[strcspn(line, "\n")] = 0;
                snprintf(out, n, "%s", colon + 1 + strspn(colon + 1, " "));
                break;
        }
        if (f)
                fclose(f);
}

int eng_device_key(struct eng_device *d, struct profile_key *ret, struct h_error *err) {
        struct profile_key k = {};
        struct k_card_id id;
        char name[100];
        int r;

        build_id(k.build);
        snprintf(k.backend, sizeof(k.backend), "%s", d->o.backend == ENG_CPU ? "cpu" : "cuda");
        if (d->o.backend == ENG_CPU) {
                /* Instruction set and threads are in the backend's own words. */
                processor_name(name, sizeof(name));
                snprintf(k.card, sizeof(k.card), "%s (%.80s)", name, eng_device_describe(d));
        } else {
                r = k_cuda_card(d->k, &id);
                if (r < 0)
                        return h_error_from_errno(err, r, "asking the card who it is");
                snprintf(k.card, sizeof(k.card), "%s", id.name);
                snprintf(k.uuid, sizeof(k.uuid), "%s", id.uuid);
                snprintf(k.driver, sizeof(k.driver), "%s", id.driver);
        }
        for (char *c = k.card; *c; c++)
                if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
                        *c = '?';
        *ret = k;
        return 0;
}

int eng_device_calibrate(struct eng_device *d, const struct eng_calibrate *o, struct profile *ret, struct h_error *err) {
        static const struct calibrate_shape cpu = { 4096, 4096, 128, (size_t)96 << 20, 0.1 }, card = { 14336, 4096, 512, (size_t)512 << 20, 0.02 },
                                  quick = { 256, 512, 16, 0, 0 };
        _cleanup_(freep) struct profile *p = h_new0(struct profile, 1);
        struct calibration c = { .k = d->k, .ops = d->k->ops, .o = o, .p = p, .err = err, .cuda = d->o.backend == ENG_CUDA };
        int r;

        if (!p)
                return h_error_from_errno(err, -ENOMEM, "calibrating");
        p->quick = o->quick;
        c.s = o->quick ? quick : c.cuda ? card : cpu;
        c.max_batch = MAX(c.s.prompt, batches[ELEMENTSOF(batches) - 1]);
        r = eng_device_key(d, &p->key, err);
        if (r == 0)
                r = measure_host(&c);
        if (r == 0 && c.cuda)
                r = measure_card(&c);
        if (r == 0)
                r = measure_products(&c);
        if (r == 0)
                *ret = *p;
        return r;
}

/* Nothing of any profile is in use: launches are the plain ones. */
static void use_none(struct eng_device *d) {
        free(d->profile);
        d->profile = NULL;
        if (d->k->ops->tune)
                d->k->ops->tune(d->k, NULL, 0); /* a lost device can fail it; nothing is launched there */
}

int eng_device_use_profile(struct eng_device *d, const struct profile *p, const char *name, struct h_error *err) {
        struct profile *copy = h_malloc(sizeof(*copy));
        struct profile_key now;
        int r = copy ? eng_device_key(d, &now, err) : h_error_from_errno(err, -ENOMEM, "keeping the card profile");

        use_none(d);
        if (r == 0)
                r = profile_check(p, &now, name, err);
        if (r == 0)
                r = calibrate_use_choices(d->k, p, name, err);
        if (r < 0) {
                free(copy);
                return r;
        }
        *copy = *p;
        d->profile = copy;
        return 0;
}
