/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes and gives back what a plan counted: five device allocations and one
 * host arena.
 */
#include "engine/context.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/sample.h"
#include "kernels/mixed.h"

/* Takes from an arena, or only counts when base is NULL. Everything is aligned to 64. */
struct arena {
        uint8_t *base;
        uint64_t used;
        bool overflow;
};

static void *take(struct arena *a, uint64_t n, uint64_t size) {
        uint64_t at = a->used, bytes, end;

        if (__builtin_mul_overflow(n, size, &bytes) || !size_align(bytes, 64, &bytes) ||
            __builtin_add_overflow(at, bytes, &end)) {
                a->overflow = true;
                return NULL;
        }
        a->used = end;
        return a->base ? a->base + at : NULL;
}

#define TAKE(arena, type, n) ((type *)take(arena, n, sizeof(type)))

static void carve_kv(struct eng_context *c, struct arena *a) {
        const struct eng_desc *d = c->m->desc;
        struct kv *kv = &c->kv;

        kv->n_seq = c->n_seq;
        kv->n_group = d->n_group;
        kv->n_layer = d->n_kv;
        kv->group = TAKE(a, struct kv_group, d->n_group);
        kv->layer = TAKE(a, struct k_kv, d->n_kv);
        for (uint32_t g = 0; g < d->n_group; g++) {
                struct kv_group count = { .window = d->group[g].window, .stride = kv_stride(c->l.n_ctx) };
                struct kv_group *gr = a->base ? &kv->group[g] : &count;

                *gr = count;
                gr->n_pages = (uint32_t)kv_pages(gr->window, c->l.n_ctx, c->n_seq, c->l.n_rows);
                gr->free = TAKE(a, uint32_t, gr->n_pages);
                gr->ref = TAKE(a, uint32_t, gr->n_pages);
                gr->table = TAKE(a, uint32_t, (uint64_t)c->n_seq * gr->stride);
                gr->step_table = TAKE(a, uint32_t, (uint64_t)c->n_seq * gr->stride);
                gr->first = TAKE(a, uint32_t, c->n_seq);
                gr->end = TAKE(a, uint32_t, c->n_seq);
                if (a->base) {
                        c->a.table[g] = gr->step_table;
                        c->a.table_stride[g] = gr->stride;
                }
        }
}

bool context_carve(struct eng_context *c, void *base, uint64_t *ret_bytes) {
        const struct eng_desc *d = c->m->desc;
        struct arena a = { .base = base };
        uint32_t n_vocab = d->n_vocab, n_rows = c->l.n_rows;
        bool cpu = c->m->d->o.backend == ENG_CPU;

        c->a.token = TAKE(&a, uint32_t, n_rows);
        c->a.seq = TAKE(&a, uint32_t, n_rows);
        c->a.state_out = TAKE(&a, uint32_t, n_rows);
        c->a.pos = TAKE(&a, int32_t, n_rows);
        c->a.state_in = TAKE(&a, uint32_t, c->n_seq);
        c->a.state_zero = TAKE(&a, uint8_t, c->n_seq);
        c->a.row0 = TAKE(&a, uint32_t, c->n_seq);
        c->a.out0 = TAKE(&a, uint32_t, c->n_seq);
        c->a.out_rows = TAKE(&a, uint32_t, c->n_out);
        c->a.table = TAKE(&a, const uint32_t *, d->n_group);
        c->a.table_stride = TAKE(&a, uint32_t, d->n_group);
        carve_kv(c, &a);
        c->state = TAKE(&a, struct eng_state, d->n_state);

        c->seq = TAKE(&a, struct sequence, c->n_seq);
        for (uint32_t i = 0; i < c->n_seq; i++) {
                uint32_t *tokens = TAKE(&a, uint32_t, c->l.n_ctx);
                double *pool = c->keep_hidden && d->pooling == ENG_POOL_MEAN ? TAKE(&a, double, d->n_embd) : NULL;
                if (base) {
                        c->seq[i].tokens = tokens;
                        c->seq[i].pool = pool;
                }
        }
        for (uint32_t i = 0; i < MAX_FLIGHT; i++) {
                c->flight[i].item = TAKE(&a, struct flight_item, c->l.n_places);
                c->flight[i].result = TAKE(&a, struct eng_result, c->l.n_places);
        }
        if (!cpu && c->n_out) {
                c->beside.place = TAKE(&a, uint32_t, c->l.n_places);
                c->beside.rows = TAKE(&a, struct k_sample_row, c->l.n_places);
                c->beside.graph = TAKE(&a, void *, (uint64_t)MIN(c->l.n_places, MAX_WIDTH) * MAX_LENGTHS);
        }
        if (c->keep_hidden)
                c->pooled = TAKE(&a, float, (uint64_t)c->l.n_places * d->n_embd);
        if (!cpu) {
                c->logits_host = TAKE(&a, float, (uint64_t)c->n_out * n_vocab);
                if (c->keep_hidden)
                        c->hidden_host = TAKE(&a, float, (uint64_t)n_rows * d->n_embd);
        }
        if (c->n_out) {
                struct sampler_scratch *w = TAKE(&a, struct sampler_scratch, 1);
                struct sampler_scratch s = {
                        .work = TAKE(&a, float, n_vocab),
                        .id = TAKE(&a, uint32_t, n_vocab), .count = TAKE(&a, uint32_t, n_vocab),
                        .block = TAKE(&a, uint64_t, DIV_ROUND_UP(n_vocab, SAMPLE_BLOCK)),
                };
                if (base)
                        *w = s;
                c->sampler = w;
        }
        *ret_bytes = a.used;
        return !a.overflow;
}

/* Device memory, or a typed error. 0 bytes: nothing. */
static int take_device(struct eng_context *c, uint64_t bytes, const char *what, void **ret, struct h_error *err) {
        struct k_mem_info info = { 0 };

        if (bytes == 0)
                return 0;
        *ret = c->dev->ops->mem_alloc(c->dev, bytes);
        if (*ret)
                return 0;
        (void)c->dev->ops->mem_info(c->dev, &info);
        return h_error_counts(err, HEARTH_E_model_no_memory, bytes, info.free_now,
                              "%s: allocating %llu bytes on the device failed, %llu are free", what,
                              (unsigned long long)bytes, (unsigned long long)info.free_now);
}

static uint8_t *step_at(uint8_t **at, uint64_t n, uint64_t size) {
        uint8_t *p = *at;
        *at += (n * size + 255) & ~(uint64_t)255; /* as plan.c counted */
        return p;
}

static void place_kv(struct eng_context *c) {
        const struct eng_desc *d = c->m->desc;
        enum k_type t = context_kv_type(c->l.kv);
        uint8_t *at_kv = c->mem_kv, *at_draft = c->mem_draft;

        for (uint32_t i = 0; i < d->n_kv; i++) {
                const struct eng_kv_need *n = &d->kv[i];
                struct k_kv *l = &c->kv.layer[i];
                uint8_t **at = n->mtp ? &at_draft : &at_kv;
                uint64_t rows = (uint64_t)c->kv.group[n->group].n_pages * KV_PAGE;

                *l = (struct k_kv){
                        .type_k = t, .type_v = t, .page_tokens = KV_PAGE, .n_head_kv = n->n_head_kv, .dk = n->dk,
                        .dv = n->dv, .group = n->group,
                };
                if (!context_keeps_kv(&c->l, n))
                        continue;
                (void)context_kv_row(c->dev->ops, n, t, &l->k_row_bytes, &l->v_row_bytes); /* checked by the plan */
                l->k = step_at(at, rows, l->k_row_bytes);
                if (!n->v_in_k)
                        l->v = step_at(at, rows, l->v_row_bytes);
        }
}

static void place_state(struct eng_context *c) {
        const struct eng_desc *d = c->m->desc;
        uint8_t *at = c->mem_state;

        for (uint32_t i = 0; i < d->n_state; i++) {
                uint64_t slots = (uint64_t)c->n_seq * c->slots;
                c->state[i].conv = (float *)step_at(&at, slots, (uint64_t)d->state[i].conv_floats * 4);
                if (d->state[i].n_v)
                        c->state[i].state = (float *)step_at(&at, slots, (uint64_t)context_state_floats(c->dev->ops, &d->state[i]) * 4);
        }
}

/*
 * A device's memory may hold anything, and a masked position times a NaN is a
 * NaN. Host memory is left untouched: pages that no position reaches stay
 * unused, and the CPU's kernels read no position that wasn't written.
 */
static int clear_device(struct eng_context *c, const struct context_plan *p) {
        const struct k_ops *ops = c->dev->ops;
        int r = 0;

        if (c->m->d->o.backend == ENG_CPU)
                return 0;
        if (c->mem_kv)
                r = ops->zero(c->dev, c->mem_kv, p->kv);
        if (r >= 0 && c->mem_draft)
                r = ops->zero(c->dev, c->mem_draft, p->draft);
        if (r >= 0 && c->mem_state)
                r = ops->zero(c->dev, c->mem_state, p->state);
        return r;
}

/* For models that lie partly in host memory. */
static int reserve_paths(struct eng_context *c, const struct context_plan *p, struct h_error *err) {
        const struct k_ops *ops = c->dev->ops;
        struct k_mixed_shape s;
        struct k_mem_info info = { 0 };
        int r = 0;

        if (c->m->ring_bytes && ops->stream_reserve)
                r = ops->stream_reserve(c->dev, c->m->ring_bytes);
        if (r == -ENOMEM) {
                (void)ops->mem_info(c->dev, &info);
                return h_error_counts(err, HEARTH_E_model_no_memory, c->m->ring_bytes, info.free_now,
                                      "the way of host weights through the device needs %llu bytes of its memory, %llu are free",
                                      (unsigned long long)c->m->ring_bytes, (unsigned long long)info.free_now);
        }
        if (r < 0 || !c->m->mixed)
                return r;
        s = *c->m->mixed;
        s.n_rows = p->l.n_rows;
        s.n_ctx = p->l.n_ctx;
        r = k_mixed_reserve(c->dev, &s);
        if (r >= 0)
                model_measure_host(c->m);
        return r;
}

static int open_context(struct eng_context *c, const struct context_plan *p, struct h_error *err) {
        const struct eng_desc *d = c->m->desc;
        struct eng_forward_limits fl = { .n_rows = p->l.n_rows, .n_ctx = p->l.n_ctx };
        bool mtp = d->n_mtp > 0 && p->l.n_draft > 0;
        uint32_t cols, heads;
        uint64_t bytes;
        uint8_t *work;
        int r;

        c->arena = h_calloc(1, p->arena);
        if (!c->arena)
                return -ENOMEM;
        if (!context_carve(c, c->arena, &bytes) || bytes != p->arena)
                return h_error_set(err, HEARTH_E_internal, "the plan counted %llu bytes of host memory, %llu are needed",
                                   (unsigned long long)p->arena, (unsigned long long)bytes);
        c->kv.dev = c->dev;
        kv_init(&c->kv);
        if ((r = take_device(c, p->kv, "KV pages", &c->mem_kv, err)) < 0 ||
            (r = take_device(c, p->draft, "the draft layer's KV pages", &c->mem_draft, err)) < 0 ||
            (r = take_device(c, p->state, "recurrent states", &c->mem_state, err)) < 0 ||
            (r = take_device(c, p->forward + p->logits + p->hidden * (mtp ? 2 : 1), "workspace", &c->mem_work, err)) < 0)
                return r;
        place_kv(c);
        place_state(c);
        r = clear_device(c, p);
        if (r < 0)
                return r;
        work = c->mem_work;
        c->logits = (float *)(work + p->forward);
        if (p->hidden) {
                c->hidden = (float *)(work + p->forward + p->logits);
                c->h_prev = mtp ? (float *)(work + p->forward + p->logits + p->hidden) : NULL;
        }
        if (c->m->d->o.backend == ENG_CPU) {
                c->logits_host = c->logits;
                c->hidden_host = c->hidden;
        }
        eng_forward_extent(d, &cols, &heads);
        if (c->dev->ops->reserve) {
                r = c->dev->ops->reserve(c->dev, p->l.n_rows, cols, heads, p->l.n_ctx);
                if (r < 0)
                        return r;
                c->reserved = true;
        }
        r = reserve_paths(c, p, err);
        if (r < 0)
                return r;
        r = beside_open(c, p);
        if (r < 0)
                return r;
        return eng_forward_new(d, c->dev, &fl, c->mem_work, &c->forward);
}

int eng_context_new(struct eng_model *m, const struct eng_limits *l, struct eng_context **ret, struct h_error *err) {
        struct context_plan p;
        struct eng_memory mem;
        struct eng_context *c;
        int r;

        r = eng_plan(m, l, 0, &mem, err);
        if (r >= 0)
                r = context_plan(m, l, &p, err);
        if (r < 0)
                return r;
        c = h_new0(struct eng_context, 1);
        if (!c)
                return h_error_from_errno(err, -ENOMEM, "a new context");
        c->m = m;
        c->dev = m->d->k;
        c->l = p.l;
        c->n_seq = p.n_seq;
        c->n_out = p.n_out;
        c->slots = p.slots;
        c->keep_hidden = p.keep_hidden;
        c->mem = mem;
        r = open_context(c, &p, err);
        if (r < 0) {
                eng_context_free(c);
                return h_error_from_errno(err, r, "a new context");
        }
        *ret = c;
        return 0;
}

struct eng_context *eng_context_free(struct eng_context *c) {
        const struct k_ops *ops;
        void *mem[4];

        if (!c)
                return NULL;
        ops = c->dev->ops;
        beside_close(c);
        mem[0] = c->mem_kv;
        mem[1] = c->mem_draft;
        mem[2] = c->mem_state;
        mem[3] = c->mem_work;
        eng_forward_free(c->forward);
        for (size_t i = 0; i < ELEMENTSOF(mem); i++)
                if (mem[i])
                        ops->mem_free(c->dev, mem[i]);
        if (c->reserved && ops->release)
                ops->release(c->dev);
        free(c->arena);
        free(c);
        return NULL;
}

const struct eng_limits *eng_context_limits(const struct eng_context *c) {
        return &c->l;
}

void eng_context_memory(const struct eng_context *c, struct eng_memory *ret) {
        *ret = c->mem;
        ret->total += c->beside.graph_bytes - ret->graphs;
        ret->graphs = c->beside.graph_bytes;
}
