/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gated delta net with heads of 128, whose prompt rows go in blocks of 16 positions: whatever the chunks of a prompt, its rows
 * have the same bits; so have rows of every role behind them, from every row whose state was kept.
 */
#include "check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"

enum { HEAD = 128, TAPS = 4, LEN = 96, SLOTS = 10, MOST = 160, NONE = -1 };

struct net {
        struct rig *r;
        const struct k_ops *o;
        const char *what;
        uint32_t n_k, n_v, ch, vd;
        bool blocked;
        size_t in_row;                     /* [q | k | v | z | beta | alpha] */
        float *seq[4];                     /* [LEN][in_row] */
        struct pair in, w, small, conv, state;
        struct acts out;
};

struct item { /* rows [pos, pos + n) of a sequence, in role P or D, state from slot 'in' (NONE: zero) */
        uint32_t seq, pos, n;
        bool d;
        int in;
        int out[MOST]; /* slot of each row, plus 1; 0: none */
};

static void net_new(struct rig *r, struct net *n, const char *what, uint32_t n_k, uint32_t n_v, bool blocked) {
        float *f;

        *n = (struct net){ .r = r, .o = r->gpu->ops, .what = what, .n_k = n_k, .n_v = n_v, .blocked = blocked, .ch = (2 * n_k + n_v) * HEAD, .vd = n_v * HEAD };
        n->in_row = n->ch + n->vd + 2 * n_v;
        for (uint32_t s = 0; s < 4; s++)
                n->seq[s] = random_floats(LEN * n->in_row, 20 + s);
        /* slow decay; then gates at their ends, one key again and again; then what is no number */
        for (uint32_t i = 0; i < LEN; i++)
                for (uint32_t h = 0; h < n_v; h++) {
                        float *g = n->seq[0] + i * n->in_row + n->ch + n->vd;
                        g[n_v + h] -= 4;
                        g = n->seq[1] + i * n->in_row + n->ch + n->vd;
                        g[h] *= 30;
                        g[n_v + h] = g[n_v + h] > 0 ? -30 : 40;
                        g = n->seq[2] + i * n->in_row + n->ch + n->vd;
                        g[h] = 20;
                        g[n_v + h] = -30;
                }
        for (uint32_t i = 1; i < LEN; i++)
                memcpy(n->seq[2] + i * n->in_row, n->seq[2], 2 * (size_t)n_k * HEAD * sizeof(float));
        for (uint32_t i = 0; i < LEN; i++)
                n->seq[3][i * n->in_row + i * 37 % n->ch] = i & 1 ? NAN : INFINITY;
        f = random_floats((size_t)n->ch * TAPS, 24);
        n->w = both(r, f, (size_t)n->ch * TAPS * sizeof(float));
        free(f);
        f = random_floats(512, 25);
        for (uint32_t i = 0; i < 64; i++)
                f[i] = -0.5f - fabsf(f[i]) * 0.2f;
        n->small = both(r, f, 512 * sizeof(float));
        free(f);
        f = calloc(SLOTS * n->o->delta_slot(n_k, n_v, HEAD, HEAD) + SLOTS * (TAPS - 1) * (size_t)n->ch, sizeof(float));
        n->state = both(r, f, SLOTS * n->o->delta_slot(n_k, n_v, HEAD, HEAD) * sizeof(float));
        n->conv = both(r, f, SLOTS * (TAPS - 1) * (size_t)n->ch * sizeof(float));
        free(f);
        n->in = both_poison(r, MOST * n->in_row);
        n->out = acts_new(r, NULL, MOST, n->vd);
}

static void net_free(struct net *n) {
        both_free(n->r, &n->in);
        both_free(n->r, &n->w);
        both_free(n->r, &n->small);
        both_free(n->r, &n->conv);
        both_free(n->r, &n->state);
        acts_free(n->r, &n->out);
        for (int s = 0; s < 4; s++)
                free(n->seq[s]);
}

static struct k_delta_args args_of(struct net *n, bool gpu) {
        float *base = gpu ? n->in.g : n->in.c, *ba = base + (size_t)MOST * (n->ch + n->vd);
        const float *small = gpu ? n->small.g : n->small.c;

        return (struct k_delta_args){
                .qkv = base, .qkv_stride = n->ch, .z = base + (size_t)MOST * n->ch, .z_stride = n->vd, .beta = ba, .alpha = ba + n->n_v,
                .ba_stride = 2 * n->n_v, .n_k = n->n_k, .n_v = n->n_v, .s_k = HEAD, .s_v = HEAD, .k_head_blocked = n->blocked, .conv = TAPS,
                .conv_w = gpu ? n->w.g : n->w.c, .a = small, .dt_bias = small + 64, .norm_w = small + 128, .eps = 1e-6f,
                .conv_state = gpu ? n->conv.g : n->conv.c, .state = gpu ? n->state.g : n->state.c, .out = gpu ? &n->out.g : &n->out.c,
        };
}

/* The items as one batch, those of role D first. Returns all rows' results (malloc). */
static float *run(struct net *n, struct k_dev *dev, const struct item *it, uint32_t n_it) {
        const bool gpu = dev == n->r->gpu;
        uint32_t token[MOST] = { 0 }, seq[MOST], in[8], out[MOST], rows = 0, n_d = 0;
        int32_t pos[MOST];
        uint8_t zero[8];
        float *x = calloc(MOST * n->in_row, sizeof(float)), *z = x + (size_t)MOST * n->ch, *ba = z + (size_t)MOST * n->vd, *base, *ret;

        for (uint32_t i = 0; i < n_it; i++) {
                in[i] = it[i].in == NONE ? 0 : (uint32_t)it[i].in;
                zero[i] = it[i].in == NONE;
                for (uint32_t j = 0; j < it[i].n; j++, rows++) {
                        const float *from = n->seq[it[i].seq] + (it[i].pos + j) * n->in_row;
                        memcpy(x + (size_t)rows * n->ch, from, n->ch * sizeof(float));
                        memcpy(z + (size_t)rows * n->vd, from + n->ch, n->vd * sizeof(float));
                        memcpy(ba + (size_t)rows * 2 * n->n_v, from + n->ch + n->vd, 2 * n->n_v * sizeof(float));
                        seq[rows] = i;
                        pos[rows] = (int32_t)(it[i].pos + j);
                        out[rows] = (uint32_t)(it[i].out[j] - 1);
                        n_d += it[i].d;
                }
        }
        base = gpu ? n->in.g : n->in.c;
        dev->ops->upload(dev, base, x, MOST * n->in_row * sizeof(float));
        struct k_batch b = { .n = rows, .n_d = n_d, .n_seq = n_it, .token = token, .pos = pos, .seq = seq, .state_in = in, .state_out = out, .state_zero = zero };
        struct k_delta_args a = args_of(n, gpu);
        if (dev->ops->batch_begin(dev, &b) < 0 || dev->ops->delta(dev, &b, &a) < 0 || dev->ops->batch_end(dev, &b) < 0)
                expect(n->r, false, "%s: %s", n->what, dev->ops->last_error(dev));
        free(x);
        ret = malloc((size_t)rows * n->vd * sizeof(float) + 1);
        if (gpu) {
                dev->ops->download(dev, ret, n->out.g.f, (size_t)rows * n->vd * sizeof(float));
        } else {
                memcpy(ret, n->out.c.f, (size_t)rows * n->vd * sizeof(float));
        }
        return ret;
}

static float *one(struct net *n, struct k_dev *dev, uint32_t seq, bool d, uint32_t pos, uint32_t rows, int in, int last) {
        struct item it = { .seq = seq, .pos = pos, .n = rows, .d = d, .in = in };

        it.out[rows - 1] = last + 1;
        return run(n, dev, &it, 1);
}

static void same(struct net *n, const float *a, const float *b, uint32_t rows, const char *what, uint32_t i, uint32_t j) {
        const bool ok = memcmp(a, b, (size_t)rows * n->vd * sizeof(float)) == 0;

        expect(n->r, ok, "%s: %s (%u, %u)", n->what, what, i, j);
}

static void near(struct net *n, const float *g, const float *c, uint32_t rows, double limit, const char *what, uint32_t i) {
        double e = 0, m = 0;

        for (size_t k = 0; k < (size_t)rows * n->vd; k++) {
                e += ((double)g[k] - c[k]) * ((double)g[k] - c[k]);
                m += (double)c[k] * c[k];
        }
        e = sqrt(e / m);
        expect(n->r, e <= limit, "%s: %s (%u): |gpu - cpu| / |cpu| = %.2e, limit %.0e", n->what, what, i, e, limit);
}

/* A prompt of 53 rows in two chunks, cut everywhere; what comes behind has the same bits too. */
static void cut_anywhere(struct net *n) {
        struct k_dev *gpu = n->r->gpu;
        float *whole = one(n, gpu, 0, false, 0, 53, NONE, 0), *next = one(n, gpu, 0, false, 53, 20, 0, 1), *d = one(n, gpu, 0, true, 53, 1, 0, 1), *a, *b;

        for (uint32_t k = 1; k < 53; k += n->r->tiny ? 20 : 1) {
                a = one(n, gpu, 0, false, 0, k, NONE, 2);
                b = one(n, gpu, 0, false, k, 53 - k, 2, k & 1 ? 2 : 3);
                same(n, whole, a, k, "before the cut", k, 0);
                same(n, whole + (size_t)k * n->vd, b, 53 - k, "behind the cut", k, 0);
                free(a);
                free(b);
                a = one(n, gpu, 0, false, 53, 20, k & 1 ? 2 : 3, 4);
                b = one(n, gpu, 0, true, 53, 1, k & 1 ? 2 : 3, 4);
                same(n, next, a, 20, "further prompt rows", k, 0);
                same(n, d, b, 1, "a generated token", k, 0);
                free(a);
                free(b);
        }
        for (uint32_t k = 1; k < 12; k += 3) { /* many chunks */
                for (uint32_t at = 0, rows; at < 53; at += rows) {
                        rows = at + k < 53 ? k : 53 - at;
                        a = one(n, gpu, 0, false, at, rows, at ? 5 : NONE, 5);
                        same(n, whole + (size_t)at * n->vd, a, rows, "chunks", k, at);
                        free(a);
                }
        }
        free(whole);
        free(next);
        free(d);
}

/* States kept behind rows anywhere within blocks, several of a launch, also where rows were pending before and in place. */
static void kept_anywhere(struct net *n) {
        static const struct { uint32_t row; int slot; } keep[] = { { 2, 1 }, { 14, 2 }, { 15, 3 }, { 16, 4 }, { 30, 5 }, { 52, 0 } },
                                                        later[] = { { 1, 7 }, { 4, 6 }, { 6, 8 }, { 19, 9 } };
        struct k_dev *gpu = n->r->gpu;
        struct item it = { .n = 53, .in = NONE }, second = { .pos = 21, .n = 20, .in = 6 };
        float *whole, *a, *b;

        for (size_t i = 0; i < sizeof(keep) / sizeof(*keep); i++)
                it.out[keep[i].row] = keep[i].slot + 1;
        for (size_t i = 0; i < sizeof(later) / sizeof(*later); i++)
                second.out[later[i].row] = later[i].slot + 1;
        whole = run(n, gpu, &it, 1);
        free(one(n, gpu, 0, false, 0, 21, NONE, 6));
        free(run(n, gpu, &second, 1));
        for (size_t i = 0; i < 9; i++) {
                const uint32_t row = i < 5 ? keep[i].row : 21 + later[i - 5].row;
                const int slot = i < 5 ? keep[i].slot : later[i - 5].slot;

                b = one(n, gpu, 0, true, row + 1, 1, slot, -1);
                a = one(n, gpu, 0, false, row + 1, 52 - row, slot, slot);
                same(n, whole + (size_t)(row + 1) * n->vd, a, 52 - row, "behind a row that kept its state", row, 0);
                free(a);
                free(one(n, gpu, 0, false, 0, row + 1, NONE, 0));
                a = one(n, gpu, 0, true, row + 1, 1, 0, 0);
                same(n, a, b, 1, "a generated token behind such a row", row, 0);
                free(a);
                free(b);
        }
        free(whole);
}

/* Generated tokens behind a prompt of every length, at any width; then prompt rows again, in one chunk and in two. */
static void roles(struct net *n) {
        struct k_dev *gpu = n->r->gpu, *cpu = n->r->cpu;

        for (uint32_t len = 1; len < 36; len += n->r->tiny ? 17 : len < 14 ? 4 : 1) {
                struct item draft = { .pos = len, .n = 3, .d = true, .in = 0, .out = { 2, 3, 1 } }, draft_cpu = draft;
                float *a, *b, *c;

                free(one(n, gpu, 0, false, 0, len, NONE, 0));
                free(one(n, gpu, 0, false, 0, len, NONE, 4));
                free(one(n, cpu, 0, false, 0, len, NONE, 0));
                a = run(n, gpu, &draft, 1);
                c = run(n, cpu, &draft_cpu, 1);
                near(n, a, c, 3, 1e-3, "generated tokens behind a prompt", len);
                free(c);
                for (uint32_t i = 0; i < 3; i++) {
                        b = one(n, gpu, 0, true, len + i, 1, i ? 5 : 4, 5);
                        same(n, a + (size_t)i * n->vd, b, 1, "a draft and one by one", len, i);
                        free(b);
                }
                free(a);
                c = one(n, cpu, 0, false, len + 3, 40, 0, 0);
                a = one(n, gpu, 0, false, len + 3, 40, 0, 6);
                near(n, a, c, 40, 1e-3, "prompt rows behind generated ones", len);
                for (uint32_t k = 1; k < 40; k += 6) {
                        b = one(n, gpu, 0, false, len + 3, k, 5, 7);
                        same(n, a, b, k, "prompt rows behind generated ones, first chunk", len, k);
                        free(b);
                        b = one(n, gpu, 0, false, len + 3 + k, 40 - k, 7, 7);
                        same(n, a + (size_t)k * n->vd, b, 40 - k, "prompt rows behind generated ones, second chunk", len, k);
                        free(b);
                }
                free(a);
                free(c);
        }
}

/* Sequences of both roles in one batch, one without rows and one of values that are no numbers: each has the bits that it has alone. */
static void together(struct net *n) {
        struct k_dev *gpu = n->r->gpu;
        struct item it[6] = {
                { .seq = 0, .pos = 19, .n = 2, .d = true, .in = 0, .out = { 0, 10 } },
                { .seq = 0, .pos = 5, .n = 0, .in = 0 },
                { .seq = 1, .pos = 33, .n = 20, .in = 1 },
                { .seq = 3, .pos = 20, .n = 20, .in = 2 },
                { .seq = 1, .pos = 0, .n = 1, .in = NONE },
                { .seq = 2, .pos = 0, .n = 37, .in = NONE },
        };
        float *all, *a;
        uint32_t row = 0;

        free(one(n, gpu, 0, false, 0, 19, NONE, 0));
        free(one(n, gpu, 1, false, 0, 33, NONE, 1));
        free(one(n, gpu, 3, false, 0, 20, NONE, 2));
        for (int i = 2; i < 6; i++)
                it[i].out[it[i].n - 1] = 4 + i;
        all = run(n, gpu, it, 6);
        for (int i = 0; i < 6; row += it[i++].n) {
                if (it[i].n == 0 || it[i].seq == 3)
                        continue;
                a = run(n, gpu, &it[i], 1);
                same(n, all + (size_t)row * n->vd, a, it[i].n, "in company and alone", (uint32_t)i, 0);
                free(a);
        }
        free(all);
}

/* Gates at their ends, and one key again and again. */
static void extremes(struct net *n) {
        for (uint32_t s = 0; s < 3; s++) {
                float *a = one(n, n->r->gpu, s, false, 0, LEN, NONE, 0), *c = one(n, n->r->cpu, s, false, 0, LEN, NONE, 0);
                near(n, a, c, LEN, 2e-3, "whole prompt", s);
                free(a);
                free(c);
        }
}

/* What these kernels could not read goes through no others, whose slots are different. */
static void refused(struct net *n) {
        struct k_dev *gpu = n->r->gpu;
        const uint32_t zero_u = 0;
        const int32_t pos = 0;
        const uint8_t fresh = 1;
        struct { const char *what; size_t z, stride, norm; bool placeless; } of[] = {
                { "a gate that is not aligned", 1, 0, 0, false }, { "gates with rows that are not aligned", 0, 2, 0, false },
                { "a norm that is not aligned", 0, 0, 3, false }, { "rows without positions", 0, 0, 0, true },
        };

        for (size_t i = 0; !n->r->exact && i < ELEMENTSOF(of); i++) {
                struct k_batch b = { .n = 1, .n_d = 1, .n_seq = 1, .token = &zero_u, .pos = of[i].placeless ? NULL : &pos, .seq = &zero_u, .state_in = &zero_u,
                                     .state_out = &zero_u, .state_zero = &fresh };
                struct k_delta_args a = args_of(n, true);
                int e = gpu->ops->batch_begin(gpu, &b), end;

                a.z += of[i].z;
                a.z_stride += of[i].stride;
                a.norm_w += of[i].norm;
                e = e ? e : gpu->ops->delta(gpu, &b, &a);
                end = gpu->ops->batch_end(gpu, &b);
                expect(n->r, e == 0 && end == -EINVAL, "%s: %s is refused (%d, %d)", n->what, of[i].what, e, end);
        }
        free(one(n, gpu, 0, false, 0, 5, NONE, 0)); /* and the next step runs */
}

void check_delta(struct rig *r) {
        static const struct { const char *what; uint32_t n_k, n_v; bool blocked; } nets[] = {
                { "delta net in blocks, 2/4 heads", 2, 4, false }, { "delta net in blocks, 2/6 heads", 2, 6, true }, { "delta net in blocks, 1/1 heads", 1, 1, false },
        };
        for (size_t i = 0; i < sizeof(nets) / sizeof(*nets); i++) {
                struct net n;

                net_new(r, &n, nets[i].what, nets[i].n_k, nets[i].n_v, nets[i].blocked);
                cut_anywhere(&n);
                kept_anywhere(&n);
                roles(&n);
                together(&n);
                extremes(&n);
                refused(&n);
                net_free(&n);
                if (r->tiny)
                        break;
        }
}
