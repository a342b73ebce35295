/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts every byte of a context before any is taken. The numbers are used for
 * the allocations themselves, so plan and truth can't part.
 */
#include <stdio.h>

#include "engine/context.h"
#include "engine/sample.h"

#define DEFAULT_CTX 8192u
#define DEFAULT_ROWS 512u

enum k_type context_kv_type(enum eng_kv_type t) {
        switch (t) {
        case ENG_KV_F32: return K_F32;
        case ENG_KV_BF16: return K_BF16;
        case ENG_KV_Q8_0: return K_Q8_0;
        case ENG_KV_Q4_0: return K_Q4_0;
        case ENG_KV_F16: break;
        }
        return K_F16;
}

bool context_kv_row(const struct k_ops *ops, const struct eng_kv_need *n, enum k_type t, size_t *ret_k, size_t *ret_v) {
        uint64_t block = ops->kv_part_blocks ? k_type_block(t) : 1;
        uint64_t dk = (n->dk + block - 1) / block * block, dv = (n->dv + block - 1) / block * block;
        size_t k, v;

        if (!k_type_row_bytes(t, dk, &k) || !k_type_row_bytes(t, dv, &v) || !size_mul(k, n->n_head_kv, &k) ||
            !size_mul(v, n->n_head_kv, &v))
                return false;
        *ret_k = k;
        *ret_v = n->v_in_k ? 0 : v;
        return true;
}

static int resolve(const struct eng_model *m, const struct eng_limits *in, struct eng_limits *l, struct h_error *err) {
        const struct eng_desc *d = m->desc;
        /* A card's launches have rows in a dimension of at most so many blocks. */
        const uint32_t max_rows = m->d->o.backend == ENG_CPU ? 1u << 20 : 65535, max_ctx = m->d->k->ops->max_ctx;

        *l = *in;
        if (l->n_places == 0)
                l->n_places = 1;
        if (l->n_ctx == 0)
                l->n_ctx = d->n_ctx_train ? MIN(d->n_ctx_train, DEFAULT_CTX) : DEFAULT_CTX;
        if (d->n_ctx_train && l->n_ctx > d->n_ctx_train)
                return h_error_counts(err, HEARTH_E_bad_request, l->n_ctx, d->n_ctx_train,
                                      "a context of %u positions is asked for, the model was trained for %u", l->n_ctx,
                                      d->n_ctx_train);
        if (l->n_ctx > max_ctx)
                return h_error_counts(err, HEARTH_E_unsupported, l->n_ctx, max_ctx,
                                      "a context of %u positions is asked for, attention on the %s backend goes over at most %u",
                                      l->n_ctx, m->d->k->ops->name, max_ctx);
        if (d->n_vocab > SAMPLE_MAX_VOCAB)
                return h_error_counts(err, HEARTH_E_unsupported, d->n_vocab, SAMPLE_MAX_VOCAB,
                                      "a vocabulary of %u tokens: at most %u can be sampled from", d->n_vocab,
                                      SAMPLE_MAX_VOCAB);
        if (l->n_rows == 0)
                l->n_rows = DEFAULT_ROWS + l->n_places;
        if (d->encoder)
                l->n_rows = MAX(l->n_rows, l->n_ctx); /* a text is evaluated in one piece */
        if (l->n_draft > MAX_DRAFT)
                return h_error_counts(err, HEARTH_E_bad_request, l->n_draft, MAX_DRAFT,
                                      "a draft depth of %u is asked for, at most %u are possible", l->n_draft, MAX_DRAFT);
        if (l->n_outputs == 0)
                l->n_outputs = l->n_places * (1 + l->n_draft);
        l->n_outputs = MIN(l->n_outputs, l->n_rows);
        if (l->n_places > 4096 || l->n_prefix > 65536 || l->n_rows > max_rows)
                return h_error_set(err, HEARTH_E_bad_request,
                                   "limits out of range: places %u (4096), prefixes %u (65536), rows %u (%u)", l->n_places,
                                   l->n_prefix, l->n_rows, max_rows);
        if (l->n_rows < l->n_places)
                return h_error_counts(err, HEARTH_E_bad_request, l->n_places, l->n_rows,
                                      "a step of %u rows can't hold one row for each of %u places", l->n_rows,
                                      l->n_places);
        return 0;
}

/* acc += n * size, rounded up to 256. */
static bool add(uint64_t *acc, uint64_t n, uint64_t size) {
        uint64_t b;
        return !__builtin_mul_overflow(n, size, &b) && size_align(b, 256, &b) &&
               !__builtin_add_overflow(*acc, b, acc);
}

static int count_kv(const struct eng_desc *d, const struct k_ops *ops, struct context_plan *p, struct h_error *err) {
        enum k_type t = context_kv_type(p->l.kv);

        for (uint32_t i = 0; i < d->n_kv; i++) {
                const struct eng_kv_need *n = &d->kv[i];
                uint64_t pages = kv_pages(d->group[n->group].window, p->l.n_ctx, p->n_seq, p->l.n_rows);
                uint64_t *acc = n->mtp ? &p->draft : &p->kv;
                size_t k, v;

                if (!context_keeps_kv(&p->l, n))
                        continue;
                if (!context_kv_row(ops, n, t, &k, &v))
                        return h_error_set(err, HEARTH_E_unsupported,
                                           "KV type %s needs head sizes that are multiples of %u on the %s backend; layer %u "
                                           "has keys of %u and values of %u: use f16", k_type_name(t), k_type_block(t),
                                           ops->name, n->layer, n->dk, n->dv);
                if (pages >= KV_NONE || !add(acc, pages * KV_PAGE, k) || !add(acc, pages * KV_PAGE, v))
                        return -EOVERFLOW;
        }
        return 0;
}

static int count_all(const struct eng_model *m, struct context_plan *p, struct h_error *err) {
        const struct eng_desc *d = m->desc;
        const struct k_ops *ops = m->d->k->ops;
        struct eng_forward_limits fl = { .n_rows = p->l.n_rows, .n_ctx = p->l.n_ctx };
        struct eng_context c = { .m = (struct eng_model *)m };
        uint32_t cols, heads;
        size_t bytes;
        int r;

        p->n_seq = p->l.n_places + p->l.n_prefix;
        p->n_out = k_weight_present(&d->output) ? p->l.n_outputs : 0;
        p->slots = d->n_state == 0 ? 0 : p->l.n_draft ? p->l.n_draft + 3 : p->l.ahead ? 3 : 2;
        p->keep_hidden = d->encoder || d->pooling != ENG_POOL_NONE || (d->n_mtp > 0 && p->l.n_draft > 0);
        r = count_kv(d, ops, p, err);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i < d->n_state; i++) {
                uint64_t slots = (uint64_t)p->n_seq * p->slots;
                if (!add(&p->state, slots, (uint64_t)d->state[i].conv_floats * 4) ||
                    !add(&p->state, slots, (uint64_t)context_state_floats(ops, &d->state[i]) * 4))
                        return -EOVERFLOW;
        }
        if (!eng_forward_bytes(d, ops, &fl, &bytes))
                return -EOVERFLOW;
        if (!add(&p->forward, 1, bytes) || !add(&p->logits, p->n_out, (uint64_t)d->n_vocab * 4))
                return -EOVERFLOW;
        if (p->keep_hidden && !add(&p->hidden, p->l.n_rows, (uint64_t)d->n_embd * 4))
                return -EOVERFLOW;
        eng_forward_extent(d, &cols, &heads);
        p->scratch = ops->dev_scratch ? ops->dev_scratch(m->d->k, p->l.n_rows, cols, heads, p->l.n_ctx) : 0;

        p->sampling = beside_bytes(m, p, NULL);
        p->pinned = p->sampling ? (uint64_t)MAX_FLIGHT * p->l.n_places * sizeof(struct k_sample_out) : 0;

        c.l = p->l;
        c.n_seq = p->n_seq;
        c.n_out = p->n_out;
        c.slots = p->slots;
        c.keep_hidden = p->keep_hidden;
        return context_carve(&c, NULL, &p->arena) ? 0 : -EOVERFLOW;
}

int context_plan(const struct eng_model *m, const struct eng_limits *l, struct context_plan *ret, struct h_error *err) {
        struct context_plan p = { 0 };
        int r;

        r = resolve(m, l, &p.l, err);
        if (r >= 0)
                r = count_all(m, &p, err);
        if (r < 0)
                return r == -EHEARTH ? r : h_error_set(err, HEARTH_E_model_no_memory, "the context's size overflows");
        *ret = p;
        return 0;
}

/* "1.2 GB" for people. */
static const char *human(uint64_t n, char buf[32]) {
        if (n >= 1000000000)
                snprintf(buf, 32, "%.1f GB", (double)n / 1e9);
        else
                snprintf(buf, 32, "%.1f MB", (double)n / 1e6);
        return buf;
}

int eng_plan(const struct eng_model *m, const struct eng_limits *l, uint64_t available, struct eng_memory *ret,
             struct h_error *err) {
        struct context_plan p;
        struct eng_memory mem = { 0 };
        uint64_t total, taken, hidden, host;
        char a[32], b[32];
        int r;

        r = context_plan(m, l, &p, err);
        if (r < 0)
                return r;
        hidden = p.hidden * (m->desc->n_mtp > 0 && p.l.n_draft > 0 ? 2 : 1);
        mem.weights = m->placement.host_bytes ? m->placement.device_bytes : m->info.bytes;
        mem.kv = p.kv;
        mem.draft = p.draft;
        mem.state = p.state;
        if (__builtin_add_overflow(p.forward, p.logits, &mem.workspace) ||
            __builtin_add_overflow(mem.workspace, hidden, &mem.workspace) ||
            __builtin_add_overflow(mem.workspace, p.scratch, &mem.workspace) ||
            __builtin_add_overflow(mem.workspace, p.sampling, &mem.workspace) ||
            __builtin_add_overflow(p.kv, p.draft, &taken) || __builtin_add_overflow(taken, p.state, &taken) ||
            __builtin_add_overflow(taken, mem.workspace, &taken) || __builtin_add_overflow(taken, beside_graph_bytes(m, &p), &taken))
                return h_error_set(err, HEARTH_E_model_no_memory, "the context's size overflows");
        mem.context = p.arena + p.pinned;
        mem.graphs = beside_graph_bytes(m, &p);
        /* A card's memory has nothing to do with what its host keeps. */
        host = m->d->o.backend == ENG_CPU ? 0 : mem.context;
        if (__builtin_add_overflow(taken, mem.context - host, &taken) || __builtin_add_overflow(taken, host, &mem.total) ||
            __builtin_add_overflow(mem.total, mem.weights, &mem.total))
                return h_error_set(err, HEARTH_E_model_no_memory, "the context's size overflows");
        if (available == 0 && eng_device_memory(m->d, &total, &available) < 0)
                available = UINT64_MAX;
        /* The weights are already there. */
        if (taken > available)
                return h_error_counts(err, HEARTH_E_model_no_memory, taken, available,
                                      "a context of %u positions for %u sequences needs %s, %s are available; a smaller "
                                      "context, fewer places or a smaller KV type would fit", p.l.n_ctx, p.n_seq,
                                      human(taken, a), human(available, b));
        *ret = mem;
        return 0;
}
