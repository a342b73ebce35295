/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a model is loaded: what its context will take is counted on a dry
 * description of it, the rest of the budget is for weights, and the planner
 * (place.c) divides them. Nothing is taken here but the host's compute device,
 * once, when it is needed for the first time.
 */
#include "engine/context.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/place.h"
#include "engine/profile.h"
#include "kernels/mixed.h"

#define GRAPH_BYTES ((uint64_t)64 << 20) /* for step graphs of a context, at least, */
#define SPARE_BYTES ((uint64_t)32 << 20) /* and beside them: the driver takes its memory in pieces */

static int add(uint64_t *acc, uint64_t v) {
        return __builtin_add_overflow(*acc, v, acc) ? -EOVERFLOW : 0;
}

/* Device memory that the model will need besides its weights. */
static int count_rest(struct eng_model *m, const struct eng_load *l, uint64_t *ret, struct h_error *err) {
        struct tensors_how how = { .dry = true };
        struct context_plan p = { 0 };
        uint64_t n = GRAPH_BYTES;
        int r;

        r = tensors_open(m->d, m->im, &how, &m->t, err);
        if (r >= 0)
                r = arch_describe(m->im->g, m->t, &m->desc, err);
        if (r >= 0 && l->limits) {
                r = context_plan(m, l->limits, &p, err);
                if (r >= 0)
                        n = MAX(n, beside_graph_bytes(m, &p) + SPARE_BYTES);
        }
        if (r >= 0 && (add(&n, p.kv) < 0 || add(&n, p.draft) < 0 || add(&n, p.state) < 0 || add(&n, p.forward) < 0 || add(&n, p.logits) < 0 ||
                       add(&n, p.hidden) < 0 || add(&n, p.hidden) < 0 || add(&n, p.sampling) < 0 || add(&n, p.scratch) < 0 ||
                       add(&n, tensors_own_bytes(m->t)) < 0))
                r = h_error_set(err, HEARTH_E_model_no_memory, "the context's size overflows");
        m->desc = arch_desc_free(m->desc);
        m->t = tensors_close(m->t);
        *ret = n;
        return r;
}

static const char *human(uint64_t n, char buf[32]) {
        snprintf(buf, 32, n >= 1000000000 ? "%.1f GB" : "%.1f MB", n >= 1000000000 ? (double)n / 1e9 : (double)n / 1e6);
        return buf;
}

static int refuse(const struct k_mem_info *i, uint64_t need, uint64_t room, const char *what, struct h_error *err) {
        char a[32], b[32], c[32], d[32], e[32];

        return h_error_counts(err, HEARTH_E_model_no_memory, need, room,
                              "%s needs %s of device memory, %s are available: of a budget of %s this daemon's models and its context hold %s, "
                              "other programs use %s of the card%s; fewer slots, a shorter context or a smaller KV type would fit", what,
                              human(need, a), human(room, b), human(i->budget ? i->budget : i->total, c), human(i->ours, d), human(i->others, e),
                              i->fixed ? "" : " (or the driver's context does: NVML, which would tell, is not there)");
}

/* The processor joins the device. */
static int need_host(struct eng_device *d, struct h_error *err) {
        struct k_cpu_options o = { .threads = d->o.threads, .exact = d->o.exact };
        struct k_dev *cpu;
        cpu_set_t set;
        int r;

        if (d->k->mixed)
                return 0;
        /* Two cores for the engine's thread and the driver's: the host's part is as fast as its slowest thread. */
        if (o.threads == 0 && sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 3)
                o.threads = (uint32_t)CPU_COUNT(&set) - 2;
        r = k_cpu_open(&o, &cpu);
        if (r >= 0)
                r = k_mixed_attach(d->k, cpu);
        return r < 0 ? h_error_from_errno(err, r, "opening the processor beside the device") : 0;
}

int model_place(struct eng_model *m, const struct eng_load *l, struct place *ret, struct h_error *err) {
        static const struct eng_load whole = { .gpu_layers = -1 };
        struct place_wish w = { .room = UINT64_MAX };
        struct k_mem_info info = { 0 };
        uint64_t rest;
        int r;

        if (m->d->o.backend == ENG_CPU && (!l || l->gpu_layers < 0))
                return 0;
        w.gpu_layers = l ? l->gpu_layers : whole.gpu_layers;
        w.rest = l && l->rest == ENG_REST_DEVICE ? K_PLACE_READ : K_PLACE_HOST;
        if (l && l->rest == ENG_REST_AUTO && !k_cpu_planes_fast())
                w.rest = K_PLACE_READ;
        if (l && m->d->o.backend != ENG_CPU) {
                r = count_rest(m, l, &rest, err);
                if (r >= 0)
                        r = m->d->k->ops->mem_info(m->d->k, &info);
                if (r < 0)
                        return r;
                w.room = info.free_now;
                if (l->vram_budget)
                        w.room = MIN(w.room, l->vram_budget);
                if (rest > w.room)
                        return refuse(&info, rest, w.room, "the context", err);
                w.room -= rest;
        }
        r = place_plan(m->im, &w, ret, err);
        if (r >= 0 && ret->host_bytes && w.rest == K_PLACE_HOST)
                r = need_host(m->d, err);
        return r;
}

static void max_u32(uint32_t *v, uint32_t n) {
        *v = MAX(*v, n);
}

/* The shapes that the host may meet. */
static void mixed_shape(const struct eng_desc *d, struct k_mixed_shape *s) {
        eng_forward_extent(d, &s->max_cols, &s->n_head);
        max_u32(&s->max_out, d->n_vocab);
        max_u32(&s->max_out, 4 * s->max_cols);
        s->d = d->n_embd;
        for (uint32_t i = 0; i < d->n_layer + d->n_mtp; i++) {
                const struct eng_ffn *f = &d->layer[i].ffn;

                if (!f->n_expert)
                        continue;
                max_u32(&s->n_expert, f->n_expert);
                max_u32(&s->n_used, f->n_used);
                max_u32(&s->ff, f->n_ff_exp);
        }
}

/*
 * Seconds that the device takes for the matrices of one generated token: at the
 * rates of their types in the card profile, else at six tenths of its memory's
 * rate. 0: not known.
 */
static double device_seconds(const struct eng_model *m, const struct place *p) {
        const struct profile *pr = m->d->profile;
        double memory = pr && pr->memory_read > 0 ? pr->memory_read : m->d->o.backend == ENG_CUDA ? k_cuda_memory_rate(m->d->o.ordinal) : 0, t = 0;

        if (memory <= 0)
                return 0;
        if (!pr)
                return (double)p->step_device / (0.6 * memory);
        for (uint32_t i = 0; i < m->im->header->n_tensors; i++) {
                const struct image_row *r = &m->im->rows[i];
                const struct profile_rate *rate = profile_find(pr, (enum k_type)r->type, false, 1);

                if (!p->of || p->of[i] == K_PLACE_DEVICE)
                        t += (double)place_step_bytes(m->im, r) / (rate && rate->bytes_s > 0 ? rate->bytes_s : 0.6 * memory);
        }
        return t;
}

/*
 * What one generated token costs without context: what the device multiplies
 * with, what lies in host memory at the measured rates, and a layer's launches.
 * Prompts: 512 rows against one passage of the rest. Of a processor alone only
 * its profile says something.
 */
void model_expect(struct eng_model *m) {
        const struct place *p = tensors_place(m->t);
        double t = device_seconds(m, p), host = m->placement.host_computes ? m->d->host_rate : m->d->bus_rate;

        if (m->d->o.backend == ENG_CPU && !p->of) {
                m->placement.decode_tok_s = t > 0 ? 1 / t : 0;
                return;
        }
        if (!p->of || m->d->o.backend != ENG_CUDA || t <= 0 || (p->step_host && host <= 0))
                return;
        t += m->desc->n_layer * 15e-6;
        if (p->step_host)
                t += (double)p->step_host / host + (m->desc->n_layer - m->placement.n_device) * (m->placement.host_computes ? 200e-6 : 0);
        m->placement.decode_tok_s = 1 / t;
        if (p->host_bytes && m->d->bus_rate > 0)
                m->placement.prefill_tok_s = 512 / ((double)p->host_bytes / m->d->bus_rate);
}

/* Matrices that the host multiplies with, more of them than its caches hold: the rate of a step, which meets each once. */
#define MEASURED ((uint64_t)512 << 20)
static uint32_t host_matrices(const struct eng_model *m, struct k_weight *ret, uint32_t max) {
        const struct place *p = tensors_place(m->t);
        uint64_t bytes = 0, rows, cols, n;
        uint32_t k = 0;

        for (uint32_t i = 0; k < max && bytes < MEASURED && i < m->im->header->n_tensors; i++) {
                const struct image_row *r = &m->im->rows[i];

                if (p->of[i] != K_PLACE_HOST)
                        continue;
                image_row_shape(r, &rows, &cols, &n);
                ret[k++] = (struct k_weight){ .type = (enum k_type)r->type, .layout = (enum k_layout)r->layout, .rows = (uint32_t)rows,
                                              .cols = (uint32_t)cols, .n_expert = (uint32_t)n, .expert_stride = r->stride,
                                              .data = m->im->map + r->offset };
                bytes += r->bytes;
        }
        return k;
}

void model_measure_host(struct eng_model *m) {
        struct k_weight w[64];
        uint32_t n = m->d->host_rate <= 0 ? host_matrices(m, w, ELEMENTSOF(w)) : 0;

        if (n)
                m->d->host_rate = k_mixed_rate(m->d->k, w, n);
        model_expect(m);
}

int model_placed(struct eng_model *m, struct h_error *err) {
        const struct place *p = tensors_place(m->t);
        const struct upload *u = tensors_upload(m->t);
        bool host = false;

        for (uint32_t i = 0; p->of && i < m->im->header->n_tensors; i++)
                host |= p->of[i] == K_PLACE_HOST;
        m->placement = (struct eng_placement){
                .n_layer = m->desc->n_layer, .n_device = p->of ? MIN(p->n_device, m->desc->n_layer) : 0,
                .device_bytes = p->device_bytes + (m->d->o.backend != ENG_CPU ? tensors_own_bytes(m->t) : 0),
                .host_bytes = p->host_bytes, .ring_bytes = p->ring_bytes, .pin_us = u->pin_us, .upload_us = u->all_us,
                .host_computes = host,
        };
        m->ring_bytes = p->ring_bytes;
        if (p->host_bytes && m->d->bus_rate <= 0)
                m->d->bus_rate = tensors_bus_rate(m->t);
        model_expect(m);
        if (!host)
                return 0;
        m->mixed = h_new0(struct k_mixed_shape, 1);
        if (!m->mixed)
                return h_error_from_errno(err, -ENOMEM, "opening a model");
        mixed_shape(m->desc, m->mixed);
        return 0;
}
