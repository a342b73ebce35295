/* SPDX-License-Identifier: Apache-2.0 */
/* Gated delta net and short convolution: states in and out of slots, chunking. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 3, SLOTS = 8 };

struct shape { uint32_t n_k, n_v, s_k, s_v, conv; bool blocked; uint32_t ba_run; };

/* The image that the op wrote with its result, against one made of the result alone: the same product from either. */
static void image_case(struct rig *r, const char *what, struct acts *o, uint32_t cols) {
        enum { N = 26, ROWS = 20 };
        struct matrix m;
        struct pair y[2] = { both_poison(r, N * ROWS), both_poison(r, N * ROWS) };
        struct k_act plain = { .f = o->g.f, .cols = cols };
        struct k_batch b = { .n = N, .n_d = 0 };

        matrix_new(r, K_Q4_0, ROWS, cols, 1, false, 3, &m);
        for (int i = 0; i < 2; i++) {
                struct k_linear_args a = { .x = i ? &plain : &o->g, .n_out = 1, .n_rows = N };
                a.out[0].w = &m.g;
                a.out[0].y = y[i].g;
                a.out[0].y_stride = ROWS;
                if (r->gpu->ops->linear(r->gpu, &b, &a) < 0)
                        expect(r, false, "%s: linear: %s", what, r->gpu->ops->last_error(r->gpu));
        }
        float *with = fetch(r, y[0].g, N * ROWS), *without = fetch(r, y[1].g, N * ROWS);
        expect(r, memcmp(with, without, N * ROWS * sizeof(float)) == 0, "%s: the image is the result's", what);
        free(with);
        free(without);
        both_free(r, &y[0]);
        both_free(r, &y[1]);
        matrix_free(r, &m);
}

static void delta_case(struct rig *r, const struct shape *t) {
        const uint32_t ch = 2 * t->n_k * t->s_k + t->n_v * t->s_v, vd = t->n_v * t->s_v;
        static const uint32_t len[SEQ] = { 21, 1, 4 };
        enum { N = 26 };
        uint32_t seq[N], out[N], in[SEQ] = { 0, 1, 2 }, token[N] = { 0 };
        int32_t pos[N];
        uint8_t zero[SEQ] = { 1, 0, 0 };
        struct k_batch b = { .n = N, .n_d = 0, .n_seq = SEQ, .token = token, .pos = pos, .seq = seq, .state_in = in, .state_out = out,
                             .state_zero = zero }, g;
        float *x = random_floats((size_t)N * (ch + vd + 2 * t->n_v), 3), *w = random_floats((size_t)ch * t->conv, 4),
              *st = random_floats((size_t)SLOTS * vd * t->s_k, 5), *cs = random_floats((size_t)SLOTS * (t->conv - 1) * ch, 6),
              *small = random_floats(512, 7);
        char what[120];

        for (uint32_t i = 0; i < 64; i++)
                small[i] = -0.5f - (small[i] > 0 ? small[i] : -small[i]) * 0.2f;
        for (size_t i = 0; i < (size_t)SLOTS * vd * t->s_k; i++)
                st[i] *= 0.1f;
        for (uint32_t s = 0, i = 0; s < SEQ; s++)
                for (uint32_t p = 0; p < len[s]; p++, i++) {
                        seq[i] = s;
                        pos[i] = (int32_t)p;
                        out[i] = p + 1 == len[s] ? (s == 1 ? 1 : 3 + s) : s == 2 && p == 1 ? 6 : UINT32_MAX; /* one in place */
                }
        const size_t state = (size_t)vd * t->s_k, slot = r->gpu->ops->delta_slot(t->n_k, t->n_v, t->s_k, t->s_v);
        const bool blocks = slot > state && !r->exact; /* P rows in blocks: their bits are not those of D rows, and what is pending is not in the state */
        float *gst = calloc(SLOTS * slot, sizeof(float));
        for (size_t i = 0; i < SLOTS; i++)
                memcpy(gst + i * slot, st + i * state, state * sizeof(float));
        struct pair px, pw = both(r, w, (size_t)ch * t->conv * 4), ps[2], pc[2], pa = both(r, small, 512 * 4);
        struct acts o[2];
        for (int pass = 0; pass < 2; pass++) { /* whole against the CPU; then each row its own step */
                ps[pass] = both(r, gst, SLOTS * slot * 4);
                memcpy(ps[pass].c, st, SLOTS * state * 4);
                pc[pass] = both(r, cs, (size_t)SLOTS * (t->conv - 1) * ch * 4);
                o[pass] = acts_new(r, NULL, N, vd);
        }
        px = both(r, x, (size_t)N * (ch + vd + 2 * t->n_v) * 4);
        struct k_delta_args c = { .qkv_stride = ch, .z_stride = vd, .ba_stride = t->ba_run ? 2 * t->n_v : t->n_v, .n_k = t->n_k, .n_v = t->n_v,
                                  .s_k = t->s_k, .s_v = t->s_v, .k_head_blocked = t->blocked, .ba_run = t->ba_run, .conv = t->conv, .eps = 1e-6f };
        for (int side = 0; side < 2; side++) {
                struct k_delta_args a = c;
                float *base = side ? px.g : px.c;
                a.qkv = base;
                a.z = base + (size_t)N * ch;
                a.beta = a.z + (size_t)N * vd;
                a.alpha = t->ba_run ? a.beta + t->ba_run : a.beta + (size_t)N * t->n_v;
                a.a = side ? pa.g : pa.c;
                a.dt_bias = a.a + 64;
                a.norm_w = a.a + 128;
                a.conv_w = side ? pw.g : pw.c;
                a.conv_state = side ? pc[0].g : pc[0].c;
                a.state = side ? ps[0].g : ps[0].c;
                a.out = side ? &o[0].g : &o[0].c;
                struct k_dev *d = side ? r->gpu : r->cpu;
                g = b;
                if (d->ops->batch_begin(d, &g) < 0 || d->ops->delta(d, &g, &a) < 0 || d->ops->batch_end(d, &g) < 0)
                        expect(r, false, "delta on %s: %s", d->ops->name, d->ops->last_error(d));
        }
        snprintf(what, sizeof(what), "delta %u/%u heads of %u/%u, %u taps", t->n_k, t->n_v, t->s_k, t->s_v, t->conv);
        compare(r, what, o[0].f, N, vd, vd, blocks ? 1e-3 : 2e-5);
        image_case(r, what, &o[0], vd);
        float *gs = fetch(r, ps[0].g, SLOTS * slot);
        double e = 0, m = 0;
        for (size_t i = 0; i < SLOTS * state; i++) {
                double d = (double)gs[i / state * slot + i % state] - ((float *)ps[0].c)[i];
                e += d * d;
                m += (double)((float *)ps[0].c)[i] * ((float *)ps[0].c)[i];
        }
        expect(r, blocks || e <= m * 1e-9, "%s: states (%.2e)", what, m > 0 ? e / m : e);
        float *gc = fetch(r, pc[0].g, (size_t)SLOTS * (t->conv - 1) * ch);
        expect(r, memcmp(gc, pc[0].c, (size_t)SLOTS * (t->conv - 1) * ch * 4) == 0, "%s: convolution states", what);
        free(gs);
        free(gc);

        /* row by row, role D, continuing in slot 5 + sequence... same bits as the whole */
        both_free(r, &px);
        px = both(r, x, (size_t)N * (ch + vd + 2 * t->n_v) * 4);
        float *whole = fetch(r, o[0].f.g, (size_t)N * vd);
        bool same = true;
        for (uint32_t i = 0; i < N; i++) {
                uint32_t s0 = 0, from = in[seq[i]], to = seq[i];
                uint8_t z = pos[i] == 0 ? zero[seq[i]] : 0;
                struct k_delta_args a = c;
                g = (struct k_batch){ .n = 1, .n_d = 1, .n_seq = 1, .token = token, .pos = pos + i, .seq = &s0, .state_in = &from,
                                      .state_out = &to, .state_zero = &z };
                a.qkv = (float *)px.g + (size_t)i * ch;
                a.z = (float *)px.g + (size_t)N * ch + (size_t)i * vd;
                a.beta = (float *)px.g + (size_t)N * (ch + vd) + (size_t)i * c.ba_stride;
                a.alpha = t->ba_run ? a.beta + t->ba_run : a.beta + (size_t)N * t->n_v;
                a.a = pa.g;
                a.dt_bias = a.a + 64;
                a.norm_w = a.a + 128;
                a.conv_w = pw.g;
                a.conv_state = pc[1].g;
                a.state = ps[1].g;
                struct k_act one = { .f = (float *)o[1].f.g + (size_t)i * vd, .cols = vd };
                a.out = &one;
                if (r->gpu->ops->batch_begin(r->gpu, &g) < 0 || r->gpu->ops->delta(r->gpu, &g, &a) < 0 || r->gpu->ops->batch_end(r->gpu, &g) < 0)
                        expect(r, false, "delta: %s", r->gpu->ops->last_error(r->gpu));
        }
        float *rows = fetch(r, o[1].f.g, (size_t)N * vd);
        same = memcmp(whole, rows, (size_t)N * vd * sizeof(float)) == 0;
        expect(r, same || blocks, "%s: row by row", what);
        free(rows);
        free(whole);
        for (int pass = 0; pass < 2; pass++) {
                both_free(r, &ps[pass]);
                both_free(r, &pc[pass]);
                acts_free(r, &o[pass]);
        }
        both_free(r, &px);
        both_free(r, &pw);
        both_free(r, &pa);
        free(x);
        free(w);
        free(st);
        free(gst);
        free(cs);
        free(small);
}

static void short_case(struct rig *r, uint32_t d, uint32_t taps) {
        enum { N = 9 };
        uint32_t seq[N] = { 0, 0, 0, 0, 0, 0, 1, 1, 2 }, out[N], in[SEQ] = { 0, 1, 2 }, token[N] = { 0 };
        int32_t pos[N] = { 0, 1, 2, 3, 4, 5, 7, 8, 3 };
        uint8_t zero[SEQ] = { 1, 0, 0 };
        struct k_batch b = { .n = N, .n_d = 0, .n_seq = SEQ, .token = token, .pos = pos, .seq = seq, .state_in = in, .state_out = out,
                             .state_zero = zero };
        float *x = random_floats((size_t)N * 3 * d, 3), *w = random_floats((size_t)d * taps, 4), *cs = random_floats((size_t)SLOTS * (taps - 1) * d, 6);
        struct pair px = both(r, x, (size_t)N * 3 * d * 4), pw = both(r, w, (size_t)d * taps * 4), pc = both(r, cs, (size_t)SLOTS * (taps - 1) * d * 4);
        struct acts o = acts_new(r, NULL, N, d);

        memset(out, 0xff, sizeof(out));
        out[5] = 4;
        out[7] = 1;
        out[8] = 5;
        for (int side = 0; side < 2; side++) {
                struct k_dev *dev = side ? r->gpu : r->cpu;
                struct k_batch g = b;
                struct k_shortconv_args a = { .bcx = side ? px.g : px.c, .stride = 3 * (size_t)d, .d = d, .conv = taps, .conv_w = side ? pw.g : pw.c,
                                              .conv_state = side ? pc.g : pc.c, .out = side ? &o.g : &o.c };
                if (dev->ops->batch_begin(dev, &g) < 0 || dev->ops->shortconv(dev, &g, &a) < 0 || dev->ops->batch_end(dev, &g) < 0)
                        expect(r, false, "short convolution on %s: %s", dev->ops->name, dev->ops->last_error(dev));
        }
        compare(r, "short convolution", o.f, N, d, d, 2e-6);
        float *g = fetch(r, pc.g, (size_t)SLOTS * (taps - 1) * d);
        expect(r, memcmp(g, pc.c, (size_t)SLOTS * (taps - 1) * d * 4) == 0, "short convolution: states");
        free(g);
        acts_free(r, &o);
        both_free(r, &px);
        both_free(r, &pw);
        both_free(r, &pc);
        free(x);
        free(w);
        free(cs);
}

void check_recurrent(struct rig *r) {
        static const struct shape shapes[] = {
                { 2, 4, 16, 16, 4, false, 0 }, { 4, 12, 128, 128, 4, false, 0 }, { 2, 6, 64, 48, 3, true, 0 }, { 2, 4, 32, 32, 4, true, 2 },
        };
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
                delta_case(r, &shapes[i]);
        check_delta(r);
        short_case(r, 200, 3);
}
