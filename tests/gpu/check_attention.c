/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rope, KV pages and attention: prompts of several sequences through shuffled
 * pages, then generated rows, against the CPU; and the same bits for any
 * chunking (P) and any company (D), in results and in the pages: rows of which no
 * two are of one sequence may have rope and attention in one kernel. Then rows at
 * the end of a long context, whose splits are merged.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 3, PAGE = 64, PAGES = 80, FAR_PAGES = 260 /* of the only sequence */ };

struct attn {
        const char *name;
        uint32_t n_head, n_head_kv, dk, dv;
        enum k_type kv;
        enum k_rope rope;
        uint32_t window;
        bool sinks, gate, qk_norm, full, yarn, mla, encoder, v_norm;
        float softcap, q_temp;
        double limit;
};

static const struct attn cases[] = {
        { .name = "llama", .n_head = 8, .n_head_kv = 2, .dk = 128, .dv = 128, .kv = K_F16, .rope = K_ROPE_ADJACENT },
        { .name = "f32", .n_head = 4, .n_head_kv = 4, .dk = 64, .dv = 64, .kv = K_F32, .rope = K_ROPE_HALVES },
        { .name = "q8_0", .n_head = 8, .n_head_kv = 1, .dk = 128, .dv = 128, .kv = K_Q8_0, .rope = K_ROPE_HALVES },
        { .name = "q4_0", .n_head = 4, .n_head_kv = 2, .dk = 64, .dv = 64, .kv = K_Q4_0, .rope = K_ROPE_HALVES, .limit = 0.12 },
        { .name = "bf16", .n_head = 6, .n_head_kv = 2, .dk = 96, .dv = 96, .kv = K_BF16, .rope = K_ROPE_HALVES },
        { .name = "gpt-oss", .n_head = 16, .n_head_kv = 2, .dk = 64, .dv = 64, .kv = K_F16, .rope = K_ROPE_HALVES, .window = 100, .sinks = true,
          .yarn = true },
        { .name = "qwen35", .n_head = 4, .n_head_kv = 2, .dk = 256, .dv = 256, .kv = K_F16, .rope = K_ROPE_HALVES, .gate = true, .qk_norm = true },
        { .name = "olmo2", .n_head = 4, .n_head_kv = 4, .dk = 32, .dv = 32, .kv = K_F16, .rope = K_ROPE_HALVES, .qk_norm = true, .full = true },
        { .name = "gemma", .n_head = 4, .n_head_kv = 1, .dk = 256, .dv = 256, .kv = K_F16, .rope = K_ROPE_HALVES, .softcap = 5, .window = 300,
          .v_norm = true },
        { .name = "tiny", .n_head = 4, .n_head_kv = 2, .dk = 16, .dv = 16, .kv = K_F16, .rope = K_ROPE_ADJACENT, .q_temp = 0.1f },
        { .name = "mla", .n_head = 8, .n_head_kv = 1, .dk = 192, .dv = 128, .kv = K_F16, .rope = K_ROPE_ADJACENT, .mla = true },
        { .name = "encoder", .n_head = 4, .n_head_kv = 4, .dk = 64, .dv = 64, .kv = K_F16, .rope = K_ROPE_HALVES, .encoder = true },
        { .name = "encoder, window", .n_head = 3, .n_head_kv = 1, .dk = 256, .dv = 256, .kv = K_F16, .rope = K_ROPE_HALVES, .window = 40, .encoder = true },
        { .name = "encoder, long window", .n_head = 4, .n_head_kv = 2, .dk = 96, .dv = 96, .kv = K_F32, .rope = K_ROPE_HALVES, .window = 150, .encoder = true },
        { .name = "wide", .n_head = 2, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES },
        { .name = "gemma4", .n_head = 8, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_Q8_0, .rope = K_ROPE_HALVES, .window = 70, .qk_norm = true,
          .v_norm = true },
        { .name = "wide, 8 heads of 1", .n_head = 8, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES, .qk_norm = true, .v_norm = true },
        { .name = "wide, gate", .n_head = 8, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_ADJACENT, .window = 100, .sinks = true, .gate = true },
        { .name = "wide, 10 heads of 1", .n_head = 10, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_Q4_0, .rope = K_ROPE_HALVES, .softcap = 5, .limit = 0.12 },
        { .name = "wide, apart", .n_head = 8, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_Q8_0, .rope = K_ROPE_HALVES, .qk_norm = true, .full = true },
        { .name = "latent", .n_head = 12, .n_head_kv = 1, .dk = 576, .dv = 512, .kv = K_F16, .rope = K_ROPE_ADJACENT, .mla = true },
        { .name = "latent, q8_0", .n_head = 16, .n_head_kv = 1, .dk = 576, .dv = 512, .kv = K_Q8_0, .rope = K_ROPE_ADJACENT, .mla = true },
        { .name = "80", .n_head = 4, .n_head_kv = 2, .dk = 80, .dv = 80, .kv = K_F16, .rope = K_ROPE_HALVES, .window = 200, .sinks = true },
};

struct world {
        const struct attn *t;
        struct k_kv c, g;
        struct pair k, v, w, sinks;
        uint32_t table[SEQ * PAGES > FAR_PAGES ? SEQ * PAGES : FAR_PAGES];
        const uint32_t *tables[1];
        uint32_t stride, n_seq;
        struct k_rope_params rope;
};

/* One step: rows of sequences at positions; inputs are functions of (sequence, position). Results to 'out'. */
static void step(struct rig *r, struct world *w, uint32_t n, uint32_t n_d, const uint32_t *seq, const int32_t *pos, bool cpu, struct acts *out) {
        const struct attn *t = w->t;
        uint32_t qd = t->n_head * t->dk * (t->gate ? 2 : 1), kd = t->n_head_kv * t->dk, vd = t->n_head_kv * t->dv, all = qd + kd + vd;
        float *h = malloc((size_t)n * all * sizeof(float));
        uint32_t token[512] = { 0 }, state_in[SEQ] = { 0 }, state_out[512];
        uint8_t zero[SEQ] = { 0 };
        struct k_batch b = { .n = n, .n_d = n_d, .n_seq = w->n_seq, .token = token, .pos = pos, .seq = seq, .state_in = state_in,
                             .state_out = state_out, .state_zero = zero, .n_group = 1, .table = w->tables, .table_stride = &w->stride }, bg;

        memset(state_out, 0xff, sizeof(state_out));
        for (uint32_t i = 0; i < n; i++) {
                uint32_t s = seq[i] * 7919 + (uint32_t)pos[i] * 104729 + 1;
                for (uint32_t c = 0; c < all; c++)
                        h[(size_t)i * all + c] = rnd_float(&s);
        }
        struct pair in = both(r, h, (size_t)n * all * sizeof(float));
        struct k_qkv_args q = { .q_stride = all, .k_stride = all, .v_stride = all, .q_head = t->dk * (t->gate ? 2 : 1), .k_head = t->dk,
                                .v_head = t->dv, .n_head = t->n_head, .n_head_kv = t->n_head_kv, .dk = t->dk, .dv = t->dv,
                                .norm_full = t->full, .norm_eps = 1e-5f, .q_temp = t->q_temp, .q_temp_len = 64, .rope = &w->rope,
                                .v_norm = t->v_norm, .rope_off = t->mla ? t->dk - 64 : 0, .k_norm_cols = t->mla ? t->dk - 64 : 0 }, g;
        struct k_attention_args a = { .q_stride = all, .q_head = q.q_head, .n_head = t->n_head, .scale = 0.125f, .softcap = t->softcap,
                                      .window = t->window, .causal = !t->encoder, .gate_stride = all, .gate_head = q.q_head }, ag;

        g = q;
        q.q = in.c;
        g.q = in.g;
        q.k = q.q + qd;
        g.k = g.q + qd;
        q.v = t->mla ? NULL : q.k + kd;
        g.v = t->mla ? NULL : g.k + kd;
        if (t->qk_norm) {
                q.q_norm = q.k_norm = w->w.c;
                g.q_norm = g.k_norm = w->w.g;
        }
        if (t->mla) {
                q.k_norm = w->w.c;
                g.k_norm = w->w.g;
        }
        q.kv = &w->c;
        g.kv = &w->g;
        ag = a;
        a.q = q.q;
        ag.q = g.q;
        a.kv = &w->c;
        ag.kv = &w->g;
        if (t->sinks) {
                a.sinks = w->sinks.c;
                ag.sinks = w->sinks.g;
        }
        if (t->gate) {
                a.gate = q.q + t->dk;
                ag.gate = g.q + t->dk;
        }
        a.out = &out->c;
        ag.out = &out->g;
        bg = b;
        if (cpu) {
                r->cpu->ops->batch_begin(r->cpu, &b);
                if (r->cpu->ops->qkv(r->cpu, &b, &q) < 0 || r->cpu->ops->attention(r->cpu, &b, &a) < 0)
                        expect(r, false, "cpu attention: %s", r->cpu->ops->last_error(r->cpu));
                r->cpu->ops->batch_end(r->cpu, &b);
        }
        if (r->gpu->ops->batch_begin(r->gpu, &bg) < 0 || r->gpu->ops->qkv(r->gpu, &bg, &g) < 0 ||
            r->gpu->ops->attention(r->gpu, &bg, &ag) < 0 || r->gpu->ops->batch_end(r->gpu, &bg) < 0)
                expect(r, false, "attention %s: %s", t->name, r->gpu->ops->last_error(r->gpu));
        both_free(r, &in);
        free(h);
}

static size_t row_bytes(const struct attn *t, uint32_t cols) {
        size_t n = 0;
        k_type_row_bytes(t->kv, (uint64_t)t->n_head_kv * cols, &n);
        return n;
}

/* Pages in random order, in memory that the caller has; fields of w that depend on the case alone. */
static void world_open(struct rig *r, const struct attn *t, uint32_t n_seq, uint32_t n_pages, struct world *w) {
        size_t kr = row_bytes(t, t->dk), vr = row_bytes(t, t->dv);
        uint32_t seed = 11;

        w->t = t;
        w->stride = n_pages;
        w->n_seq = n_seq;
        w->tables[0] = w->table;
        for (uint32_t i = 0; i < n_seq * n_pages; i++)
                w->table[i] = i;
        for (uint32_t i = n_seq * n_pages - 1; i > 0; i--) {
                uint32_t j = rnd(&seed) % (i + 1), x = w->table[i];
                w->table[i] = w->table[j];
                w->table[j] = x;
        }
        float *hw = random_floats(4096, 5);
        w->w = both(r, hw, 4096 * sizeof(float));
        w->sinks = both(r, hw, t->n_head * sizeof(float));
        free(hw);
        w->c = (struct k_kv){ .k = w->k.c, .v = t->mla ? NULL : w->v.c, .type_k = t->kv, .type_v = t->kv, .page_tokens = PAGE,
                              .n_head_kv = t->n_head_kv, .dk = t->dk, .dv = t->dv, .k_row_bytes = kr, .v_row_bytes = vr };
        w->g = w->c;
        w->g.k = w->k.g;
        w->g.v = t->mla ? NULL : w->v.g;
        w->rope = (struct k_rope_params){ .kind = t->rope, .n_dims = t->mla ? 64 : t->dk, .base = 10000, .freq_scale = t->yarn ? 1.0f / 32 : 1,
                                          .ext_factor = t->yarn ? 1 : 0, .attn_factor = t->yarn ? 1.3466f : 1, .beta_fast = 32, .beta_slow = 1,
                                          .n_ctx_orig = 4096 };
}

static void world_close(struct rig *r, struct world *w) {
        both_free(r, &w->k);
        both_free(r, &w->v);
        both_free(r, &w->w);
        both_free(r, &w->sinks);
}

static double limit_of(const struct rig *r, const struct attn *t) {
        if (t->kv == K_Q8_0)
                return 1e-2;
        return t->limit != 0 ? t->limit : t->kv == K_F32 ? (r->exact ? 1e-5 : 2e-3) : r->exact ? 2e-4 : 3e-3;
}

/* All pages of the GPU, K then V. */
static float *pages(struct rig *r, const struct world *w, size_t *ret_bytes) {
        const size_t k = w->k.bytes / 4, v = w->v.bytes / 4;
        float *a = fetch(r, w->k.g, k), *b = fetch(r, w->v.g, v);

        a = realloc(a, (k + v) * 4);
        memcpy(a + k, b, v * 4);
        free(b);
        *ret_bytes = (k + v) * 4;
        return a;
}

/*
 * Generated rows: alone, then together with rows of their own sequence, then, of
 * every sequence the last one, in a step of their own. Rows come in the order of
 * their positions.
 */
static void check_generated(struct rig *r, struct world *w, uint32_t n, const uint32_t *seq, const int32_t *pos, const char *what) {
        const uint32_t cols = w->t->n_head * w->t->dv;
        struct acts d = acts_new(r, NULL, n, cols), one = acts_new(r, NULL, 1, cols);
        float *alone = malloc((size_t)n * cols * sizeof(float)), *first, *then, *x;
        uint32_t last[SEQ], n_last = 0, s[SEQ];
        int32_t p[SEQ];
        size_t bytes;

        for (uint32_t i = 0; i < n; i++) {
                step(r, w, 1, 1, seq + i, pos + i, false, &one);
                x = fetch(r, one.f.g, cols);
                memcpy(alone + (size_t)i * cols, x, cols * sizeof(float));
                free(x);
        }
        first = pages(r, w, &bytes);
        step(r, w, n, n, seq, pos, true, &d);
        compare(r, what, d.f, n, cols, cols, limit_of(r, w->t));
        x = fetch(r, d.f.g, (size_t)n * cols);
        expect(r, memcmp(alone, x, (size_t)n * cols * sizeof(float)) == 0, "%s: alone = in company", what);
        then = pages(r, w, &bytes);
        expect(r, memcmp(first, then, bytes) == 0, "%s: pages alone = in company", what);
        free(x);
        free(then);
        for (uint32_t i = 0; i < n; i++)
                if (i + 1 == n || seq[i + 1] != seq[i]) {
                        s[n_last] = seq[i];
                        p[n_last] = pos[i];
                        last[n_last++] = i;
                }
        struct acts each = acts_new(r, NULL, n_last, cols);
        bool same = true;
        step(r, w, n_last, n_last, s, p, false, &each);
        x = fetch(r, each.f.g, (size_t)n_last * cols);
        for (uint32_t i = 0; i < n_last; i++)
                same = same && memcmp(x + (size_t)i * cols, alone + (size_t)last[i] * cols, cols * sizeof(float)) == 0;
        then = pages(r, w, &bytes);
        expect(r, same && memcmp(first, then, bytes) == 0, "%s: one of each sequence", what);
        free(x);
        free(then);
        free(first);
        free(alone);
        acts_free(r, &d);
        acts_free(r, &one);
        acts_free(r, &each);
}

static void check_case(struct rig *r, const struct attn *t) {
        static uint32_t seq[512];
        static int32_t pos[512];
        struct world w = { .k = both_poison(r, (size_t)SEQ * PAGES * PAGE * row_bytes(t, t->dk) / 4 + 1),
                           .v = both_poison(r, (size_t)SEQ * PAGES * PAGE * row_bytes(t, t->dv) / 4 + 1) };
        char what[120];
        double limit = limit_of(r, t);
        uint32_t cols = t->n_head * t->dv, n = 0;

        world_open(r, t, SEQ, PAGES, &w);
        /* prompts: 400, 37 and 1 tokens side by side; an encoder must have each sequence whole */
        const int32_t len[SEQ] = { r->tiny ? 70 : 400, r->tiny ? 20 : 37, 1 };
        for (uint32_t s = 0; s < SEQ; s++)
                for (int32_t p = 0; p < len[s]; p++) {
                        seq[n] = s;
                        pos[n++] = p;
                }
        struct acts o = acts_new(r, NULL, n, cols);
        step(r, &w, n, 0, seq, pos, true, &o);
        snprintf(what, sizeof(what), "attention %s, prompt", t->name);
        compare(r, what, o.f, n, cols, cols, limit);
        float *whole = fetch(r, o.f.g, (size_t)n * cols);
        if (!t->encoder) {
                /* the same prompts in odd chunks */
                bool same = true;
                for (uint32_t i = 0, c = 1; i < n; i += c, c = c * 3 + 1) {
                        uint32_t m = c < n - i ? c : n - i;
                        struct acts part = acts_new(r, NULL, m, cols);
                        step(r, &w, m, 0, seq + i, pos + i, false, &part);
                        float *x = fetch(r, part.f.g, (size_t)m * cols);
                        same = same && memcmp(x, whole + (size_t)i * cols, (size_t)m * cols * sizeof(float)) == 0;
                        free(x);
                        acts_free(r, &part);
                }
                expect(r, same, "%s: in chunks", what);
                /* generated rows: four of the first sequence, one of each other */
                uint32_t dn = 0;
                for (int32_t i = 0; i < 4; i++) {
                        seq[dn] = 0;
                        pos[dn++] = len[0] + i;
                }
                for (uint32_t s = 1; s < SEQ; s++) {
                        seq[dn] = s;
                        pos[dn++] = len[s];
                }
                snprintf(what, sizeof(what), "attention %s, generated", t->name);
                check_generated(r, &w, dn, seq, pos, what);
        }
        free(whole);
        acts_free(r, &o);
        world_close(r, &w);
}

/* Pages full of moderate numbers of the type. */
static struct pair random_pages(struct rig *r, const struct attn *t, uint32_t n_pages, uint32_t cols, uint32_t seed) {
        const size_t bytes = ((size_t)n_pages * PAGE * row_bytes(t, cols) + 3) & ~(size_t)3;
        const size_t block = t->kv == K_Q8_0 ? 34 : t->kv == K_Q4_0 ? 18 : 2;
        uint8_t *h = malloc(bytes);

        for (size_t i = 0; i < bytes; i++)
                h[i] = (uint8_t)rnd(&seed);
        for (size_t i = 0; i + block <= bytes; i += block) /* its f16, or the block's: between 1/16 and 1/8, or a hundredth of that; of either sign */
                h[i + 1] = (uint8_t)((h[i + 1] & 0x83) | (block == 34 ? 0x14 : 0x2c));
        struct pair p = both(r, h, bytes);
        free(h);
        return p;
}

static const struct attn deep[] = {
        { .name = "llama", .n_head = 8, .n_head_kv = 2, .dk = 128, .dv = 128, .kv = K_F16, .rope = K_ROPE_ADJACENT },
        { .name = "eight heads a KV head", .n_head = 16, .n_head_kv = 2, .dk = 128, .dv = 128, .kv = K_F16, .rope = K_ROPE_HALVES, .qk_norm = true },
        { .name = "twelve", .n_head = 12, .n_head_kv = 1, .dk = 128, .dv = 128, .kv = K_Q8_0, .rope = K_ROPE_HALVES },
        { .name = "sinks", .n_head = 16, .n_head_kv = 1, .dk = 64, .dv = 64, .kv = K_F16, .rope = K_ROPE_HALVES, .sinks = true },
        { .name = "three", .n_head = 3, .n_head_kv = 1, .dk = 64, .dv = 64, .kv = K_Q4_0, .rope = K_ROPE_HALVES, .limit = 0.12 },
        { .name = "gate", .n_head = 4, .n_head_kv = 2, .dk = 256, .dv = 256, .kv = K_F16, .rope = K_ROPE_HALVES, .gate = true, .qk_norm = true },
        { .name = "window", .n_head = 4, .n_head_kv = 1, .dk = 256, .dv = 256, .kv = K_F16, .rope = K_ROPE_HALVES, .window = 1000, .softcap = 5 },
        { .name = "wide, 8 heads of 1", .n_head = 8, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES, .qk_norm = true, .v_norm = true },
        { .name = "wide, 16 heads of 2", .n_head = 16, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES, .sinks = true },
        { .name = "wide, window", .n_head = 8, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_Q8_0, .rope = K_ROPE_HALVES, .window = 1000, .sinks = true },
        { .name = "wide, gate", .n_head = 4, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_Q4_0, .rope = K_ROPE_HALVES, .gate = true, .limit = 0.12 },
        { .name = "latent", .n_head = 9, .n_head_kv = 1, .dk = 576, .dv = 512, .kv = K_F16, .rope = K_ROPE_ADJACENT, .mla = true },
        { .name = "latent, q4_0", .n_head = 3, .n_head_kv = 1, .dk = 576, .dv = 512, .kv = K_Q4_0, .rope = K_ROPE_ADJACENT, .mla = true, .limit = 0.12 },
        { .name = "96", .n_head = 6, .n_head_kv = 2, .dk = 96, .dv = 96, .kv = K_BF16, .rope = K_ROPE_HALVES },
};

/*
 * Far ends of sequences: nearly all their splits; the last positions of a split and of a tile, and the first ones of the next. Wide
 * heads have as many slices as a card has room for: alone 4 with one KV head and 2 with two, in company 1.
 */
static void check_deep(struct rig *r, const struct attn *t) {
        const uint32_t seq[] = { 0, 0, 0, 0, 1, 1, 2 };
        const int32_t pos[] = { 4862, 4863, 4864, 4865, 1087, 1088, 5119 };
        struct world w = { .k = random_pages(r, t, SEQ * PAGES, t->dk, 3), .v = random_pages(r, t, SEQ * PAGES, t->dv, 4) };
        char what[120];

        world_open(r, t, SEQ, PAGES, &w);
        snprintf(what, sizeof(what), "attention %s, far on", t->name);
        check_generated(r, &w, 7, seq, pos, what);
        world_close(r, &w);
}

/* Wide heads whose blocks, one or two a row and split, have no room for slices on any card once a launch has 64 splits or 128. */
static const struct attn far[] = {
        { .name = "wide, 8 heads of 1", .n_head = 8, .n_head_kv = 1, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES, .qk_norm = true, .v_norm = true },
        { .name = "wide, 8 heads of 2", .n_head = 8, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_Q8_0, .rope = K_ROPE_HALVES, .sinks = true },
        { .name = "wide, window", .n_head = 4, .n_head_kv = 2, .dk = 512, .dv = 512, .kv = K_F16, .rope = K_ROPE_HALVES, .window = 1000 },
        { .name = "latent", .n_head = 9, .n_head_kv = 1, .dk = 576, .dv = 512, .kv = K_F16, .rope = K_ROPE_ADJACENT, .mla = true },
};

/*
 * Where a launch has 32, 64 and 128 splits (a power of two), whose merges two blocks share from 64 for each row on (attention_wide.cuh):
 * rows one at a time, as two that have it, as four that have not; and rows of a prompt there, together and one at a time.
 */
static void check_far(struct rig *r, const struct attn *t) {
        static const uint32_t seq[4];
        static const int32_t pos[4] = { 8190, 8191, 8192, 8193 }, further[4] = { 16382, 16383, 16384, 16385 }, prompt[3] = { 16637, 16638, 16639 };
        const uint32_t cols = t->n_head * t->dv;
        struct world w = { .k = random_pages(r, t, FAR_PAGES, t->dk, 5), .v = random_pages(r, t, FAR_PAGES, t->dv, 6) };
        struct acts o = acts_new(r, NULL, 3, cols), one = acts_new(r, NULL, 1, cols);
        bool same = true;
        char what[120];
        float *x, *y;

        world_open(r, t, 1, FAR_PAGES, &w);
        snprintf(what, sizeof(what), "attention %s, very far on", t->name);
        check_generated(r, &w, 4, seq, pos, what);
        snprintf(what, sizeof(what), "attention %s, further on", t->name);
        check_generated(r, &w, 4, seq, further, what);
        snprintf(what, sizeof(what), "attention %s, two further on", t->name);
        check_generated(r, &w, 2, seq, further + 1, what);
        step(r, &w, 3, 0, seq, prompt, true, &o);
        snprintf(what, sizeof(what), "attention %s, a prompt further on", t->name);
        compare(r, what, o.f, 3, cols, cols, limit_of(r, t));
        x = fetch(r, o.f.g, (size_t)3 * cols);
        for (uint32_t i = 0; i < 3; i++) {
                step(r, &w, 1, 0, seq, prompt + i, false, &one);
                y = fetch(r, one.f.g, cols);
                same = same && memcmp(x + (size_t)i * cols, y, cols * sizeof(float)) == 0;
                free(y);
        }
        expect(r, same, "%s, one at a time", what);
        free(x);
        acts_free(r, &o);
        acts_free(r, &one);
        world_close(r, &w);
}

void check_attention(struct rig *r) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
                if (mine(r, cases[i].dk / 8)) /* heads of a size share their kernels */
                        check_case(r, &cases[i]);
        for (size_t i = 0; i < sizeof(deep) / sizeof(*deep) && !r->tiny; i++)
                check_deep(r, &deep[i]);
        for (size_t i = 0; i < sizeof(far) / sizeof(*far) && !r->tiny; i++)
                check_far(r, &far[i]);
}
