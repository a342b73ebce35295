/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recurrent ops against double references: the gated delta net and the short
 * convolution, over several sequences, states kept after any row, continued in
 * place, started from zero; and the bits of a token in any chunking.
 */
#include "ops_test.h"

enum { SLOTS = 8, MAXROWS = 200 };

struct net {
        uint32_t n_k, n_v, s_k, s_v, conv;
        bool blocked, packed;
};

static const struct net nets[] = {
        { 2, 4, 128, 128, 4, false, false }, { 2, 6, 64, 64, 4, true, true }, { 1, 1, 1, 1, 1, false, false },
        { 3, 3, 17, 5, 3, false, false },    { 2, 2, 33, 40, 2, true, false }, { 1, 3, 16, 24, 4, true, true },
};

struct inputs { /* of MAXROWS tokens of one sequence */
        float *qkv, *z, *beta, *alpha, *ba;
};

struct model {
        const struct net *t;
        uint32_t channels;
        size_t conv_floats, state_floats;
        float *conv_w, *a, *dt, *norm;
        struct inputs in[2];
        float *conv_state, *state; /* [SLOTS] */
};

static void model_init(struct model *m, const struct net *t) {
        m->t = t;
        m->channels = 2 * t->n_k * t->s_k + t->n_v * t->s_v;
        m->conv_floats = (size_t)(t->conv - 1) * m->channels;
        m->state_floats = (size_t)t->n_v * t->s_k * t->s_v;
        m->conv_w = randoms((size_t)m->channels * t->conv, 0.7);
        m->a = randoms(t->n_v, 0.5);
        for (uint32_t h = 0; h < t->n_v; h++)
                m->a[h] = -fabsf(m->a[h]) - 0.01f;
        m->dt = randoms(t->n_v, 1);
        m->norm = randoms(t->s_v, 1);
        for (int s = 0; s < 2; s++) {
                m->in[s].qkv = randoms((size_t)MAXROWS * m->channels, 1);
                m->in[s].z = randoms((size_t)MAXROWS * t->n_v * t->s_v, 2);
                m->in[s].beta = randoms((size_t)MAXROWS * t->n_v, 2);
                m->in[s].alpha = randoms((size_t)MAXROWS * t->n_v, 2);
                m->in[s].ba = floats((size_t)MAXROWS * 2 * t->n_v);
                for (uint32_t i = 0; i < MAXROWS; i++)
                        for (uint32_t h = 0; h < t->n_v; h++) {
                                uint32_t run = t->n_v / t->n_k, at = h / run * 2 * run + h % run;
                                m->in[s].ba[(size_t)i * 2 * t->n_v + at] = m->in[s].beta[(size_t)i * t->n_v + h];
                                m->in[s].ba[(size_t)i * 2 * t->n_v + at + run] = m->in[s].alpha[(size_t)i * t->n_v + h];
                        }
        }
        m->conv_state = floats(MAX(m->conv_floats, (size_t)1) * SLOTS);
        m->state = floats(m->state_floats * SLOTS);
}

static void model_free(struct model *m) {
        done(m->conv_state, MAX(m->conv_floats, (size_t)1) * SLOTS);
        done(m->state, m->state_floats * SLOTS);
        free(m->conv_w);
        free(m->a);
        free(m->dt);
        free(m->norm);
        for (int s = 0; s < 2; s++) {
                free(m->in[s].qkv);
                free(m->in[s].z);
                free(m->in[s].beta);
                free(m->in[s].alpha);
                free(m->in[s].ba);
        }
}

/* Rows of the batch by (sequence, position). The result is the caller's. */
static float *run(struct k_dev *dev, const struct model *m, const struct seqs *b) {
        const struct net *t = m->t;
        uint32_t n = b->b.n, vd = t->n_v * t->s_v;
        float *qkv = floats((size_t)n * m->channels), *z = floats((size_t)n * vd), *ba = floats((size_t)n * 2 * t->n_v),
              *out = floats((size_t)n * vd);
        struct k_act ao = { .f = out, .cols = vd, .q_kind = 1 };
        struct k_delta_args a = {
                .qkv = qkv, .qkv_stride = m->channels, .z = z, .z_stride = vd, .n_k = t->n_k, .n_v = t->n_v, .s_k = t->s_k,
                .s_v = t->s_v, .k_head_blocked = t->blocked, .conv = t->conv, .conv_w = m->conv_w, .a = m->a, .dt_bias = m->dt,
                .norm_w = m->norm, .eps = 1e-6f, .conv_state = m->conv_state, .state = m->state, .out = &ao,
                .ba_run = t->packed ? t->n_v / t->n_k : 0, .ba_stride = 2 * t->n_v, .beta = ba,
                .alpha = ba + (t->packed ? t->n_v / t->n_k : t->n_v),
        };

        for (uint32_t i = 0; i < n; i++) {
                const struct inputs *in = &m->in[b->seq[i]];
                size_t p = (size_t)b->pos[i];

                memcpy(qkv + (size_t)i * m->channels, in->qkv + p * m->channels, m->channels * sizeof(float));
                memcpy(z + (size_t)i * vd, in->z + p * vd, vd * sizeof(float));
                if (t->packed) {
                        memcpy(ba + (size_t)i * 2 * t->n_v, in->ba + p * 2 * t->n_v, 2 * t->n_v * sizeof(float));
                } else {
                        memcpy(ba + (size_t)i * 2 * t->n_v, in->beta + p * t->n_v, t->n_v * sizeof(float));
                        memcpy(ba + (size_t)i * 2 * t->n_v + t->n_v, in->alpha + p * t->n_v, t->n_v * sizeof(float));
                }
        }
        assert_int_equal(dev->ops->delta(dev, &b->b, &a), 0);
        assert_int_equal(ao.q_kind, 0);
        done(qkv, (size_t)n * m->channels);
        done(z, (size_t)n * vd);
        done(ba, (size_t)n * 2 * t->n_v);
        return out;
}

/* Tokens 0..n-1 of a sequence from a zero state, in double. out [n][n_v * s_v]; state after the last, if wanted. */
static void reference(const struct model *m, uint32_t seq, uint32_t n, double *out, double *state) {
        const struct net *t = m->t;
        const struct inputs *in = &m->in[seq];
        double *x = calloc((size_t)n * m->channels, sizeof(double)), *S = calloc(m->state_floats, sizeof(double));

        for (uint32_t i = 0; i < n; i++)
                for (uint32_t c = 0; c < m->channels; c++) {
                        double s = 0;
                        for (uint32_t j = 0; j < t->conv; j++)
                                if (i + j >= t->conv - 1)
                                        s += (double)m->conv_w[(size_t)c * t->conv + j] *
                                             (double)in->qkv[(size_t)(i + j - (t->conv - 1)) * m->channels + c];
                        x[(size_t)i * m->channels + c] = s * sigmoid(s);
                }
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t h = 0; h < t->n_v; h++) {
                        uint32_t kh = t->blocked ? h / (t->n_v / t->n_k) : h % t->n_k;
                        const double *q = x + (size_t)i * m->channels + (size_t)kh * t->s_k, *k = q + (size_t)t->n_k * t->s_k,
                                     *v = x + (size_t)i * m->channels + (size_t)2 * t->n_k * t->s_k + (size_t)h * t->s_v;
                        double qq = 0, kk = 0, al = (double)in->alpha[(size_t)i * t->n_v + h] + (double)m->dt[h], ss = 0;
                        double decay = exp((double)m->a[h] * log1p(exp(al))), beta = sigmoid((double)in->beta[(size_t)i * t->n_v + h]);
                        double *H = S + (size_t)h * t->s_k * t->s_v, *o = out + ((size_t)i * t->n_v + h) * t->s_v;

                        for (uint32_t d = 0; d < t->s_k; d++) {
                                qq += q[d] * q[d];
                                kk += k[d] * k[d];
                        }
                        qq = 1 / sqrt(qq + 1e-6) / sqrt(t->s_k);
                        kk = 1 / sqrt(kk + 1e-6);
                        for (uint32_t c = 0; c < t->s_v; c++) {
                                double mem = 0, diff;

                                for (uint32_t d = 0; d < t->s_k; d++)
                                        mem += (H[(size_t)d * t->s_v + c] *= decay) * k[d] * kk;
                                diff = (v[c] - mem) * beta;
                                o[c] = 0;
                                for (uint32_t d = 0; d < t->s_k; d++) {
                                        H[(size_t)d * t->s_v + c] += k[d] * kk * diff;
                                        o[c] += H[(size_t)d * t->s_v + c] * q[d] * qq;
                                }
                                ss += o[c] * o[c];
                        }
                        ss = 1 / sqrt(ss / t->s_v + 1e-6);
                        for (uint32_t c = 0; c < t->s_v; c++) {
                                double z = (double)in->z[((size_t)i * t->n_v + h) * t->s_v + c];
                                o[c] *= ss * (double)m->norm[c] * z * sigmoid(z);
                        }
                }
        if (state)
                memcpy(state, S, m->state_floats * sizeof(double));
        free(x);
        free(S);
}

/* Two sequences in one batch, from zero, one of them longer than a task's block; states kept along the way. */
static void test_delta(void **state) {
        static struct seqs b;
        struct model m;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(nets); k++) {
                        uint32_t n[2] = { 150, 5 }, vd;
                        double *ref, *S;
                        float *out;

                        model_init(&m, &nets[k]);
                        vd = nets[k].n_v * nets[k].s_v;
                        ref = calloc((size_t)n[0] * vd, sizeof(double));
                        S = calloc(m.state_floats, sizeof(double));
                        seqs_init(&b, 1);
                        seqs_add(&b, 0, 0, n[0]);
                        seqs_add(&b, 1, 0, n[1]);
                        b.zero[0] = b.zero[1] = 1;
                        b.out[99] = 2;
                        b.out[n[0] - 1] = 0;
                        b.out[n[0] + n[1] - 1] = 1;
                        out = run(dev, &m, &b);
                        reference(&m, 0, n[0], ref, S);
                        all_near("delta", out, ref, (size_t)n[0] * vd, 2e-4);
                        all_near("state", m.state, S, m.state_floats, 2e-5);
                        reference(&m, 0, 100, ref, S);
                        all_near("state kept", m.state + 2 * m.state_floats, S, m.state_floats, 2e-5);
                        reference(&m, 1, n[1], ref, S);
                        all_near("second", out + (size_t)n[0] * vd, ref, (size_t)n[1] * vd, 2e-4);
                        all_near("second state", m.state + m.state_floats, S, m.state_floats, 2e-5);
                        for (size_t i = 0; i < m.state_floats; i++)
                                assert_true(isnan(m.state[3 * m.state_floats + i]));
                        done(out, (size_t)b.b.n * vd);
                        free(ref);
                        free(S);
                        model_free(&m);
                }
}

/* The same bits for any chunking, in company, from the slot it continues in, and back to a kept state. */
static void test_delta_bits(void **state) {
        static const uint32_t chunks[] = { 1, 2, 7, 64, 65 };
        static struct seqs b;
        struct model m;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(nets); k++) {
                        uint32_t vd = nets[k].n_v * nets[k].s_v, n = 140;
                        float *all, *part, *last;

                        model_init(&m, &nets[k]);
                        seqs_init(&b, 1);
                        seqs_add(&b, 0, 0, n);
                        b.zero[0] = 1;
                        b.out[n - 1] = 7;
                        all = run(dev, &m, &b);
                        last = copy_of(m.state + 7 * m.state_floats, m.state_floats);
                        for (size_t c = 0; c < ELEMENTSOF(chunks); c++)
                                for (uint32_t p = 0; p < n; p += chunks[c]) {
                                        uint32_t r = MIN(chunks[c], n - p), other = p % 2;

                                        seqs_init(&b, 1);
                                        if (other) { /* a stranger's row before */
                                                seqs_add(&b, 1, 3, 1);
                                                b.zero[1] = 1;
                                        }
                                        seqs_add(&b, 0, (int32_t)p, r);
                                        b.zero[0] = p == 0;
                                        b.in[0] = 4;
                                        b.out[b.b.n - 1] = 4;
                                        part = run(dev, &m, &b);
                                        assert_memory_equal(part + other * vd, all + (size_t)p * vd, (size_t)r * vd * sizeof(float));
                                        done(part, (size_t)b.b.n * vd);
                                }
                        assert_memory_equal(m.state + 4 * m.state_floats, last, m.state_floats * sizeof(float));
                        done(last, m.state_floats);
                        done(all, (size_t)n * vd);

                        /* drafts: a state after each row; the third is rejected, so the second is continued */
                        seqs_init(&b, 1);
                        seqs_add(&b, 0, 0, 3);
                        b.zero[0] = 1;
                        for (uint32_t i = 0; i < 3; i++)
                                b.out[i] = i;
                        all = run(dev, &m, &b);
                        done(all, (size_t)3 * vd);
                        seqs_init(&b, 1);
                        seqs_add(&b, 0, 0, 5);
                        b.zero[0] = 1;
                        all = run(dev, &m, &b);
                        seqs_init(&b, 1);
                        seqs_add(&b, 0, 2, 3);
                        b.in[0] = 1;
                        part = run(dev, &m, &b);
                        assert_memory_equal(part, all + (size_t)2 * vd, (size_t)3 * vd * sizeof(float));
                        done(part, (size_t)3 * vd);
                        done(all, (size_t)5 * vd);
                        model_free(&m);
                }
}

static void test_shortconv(void **state) {
        static const uint32_t ds[] = { 1, 7, 64, 300 }, chunks[] = { 1, 4, 30 };
        static struct seqs b;

        FOR_EACH_DEVICE(dev)
                for (size_t k = 0; k < ELEMENTSOF(ds); k++)
                        for (uint32_t taps = 1; taps < 5; taps++)
                                for (size_t c = 0; c < ELEMENTSOF(chunks); c++) {
                                        uint32_t d = ds[k], n = 30;
                                        size_t slot = MAX((size_t)(taps - 1) * d, (size_t)1);
                                        float *in = randoms((size_t)n * 3 * d, 1), *w = randoms((size_t)d * taps, 1), *st = floats(slot * 2);

                                        for (uint32_t p = 0; p < n; p += chunks[c]) {
                                                uint32_t r = MIN(chunks[c], n - p);
                                                float *x = copy_of(in + (size_t)p * 3 * d, (size_t)r * 3 * d), *out = floats((size_t)r * d);
                                                struct k_act ao = { .f = out, .cols = d };

                                                seqs_init(&b, 1);
                                                seqs_add(&b, 0, (int32_t)p, r);
                                                b.zero[0] = p == 0;
                                                b.in[0] = 1;
                                                b.out[r - 1] = 1;
                                                assert_int_equal(dev->ops->shortconv(dev, &b.b, &(struct k_shortconv_args){
                                                        .bcx = x, .stride = (size_t)3 * d, .d = d, .conv = taps, .conv_w = w, .conv_state = st,
                                                        .out = &ao }), 0);
                                                for (uint32_t i = 0; i < r; i++)
                                                        for (uint32_t ch = 0; ch < d; ch++) {
                                                                double s = 0;

                                                                for (uint32_t j = 0; j < taps; j++) {
                                                                        const float *u = in + (size_t)(p + i + j - (taps - 1)) * 3 * d;
                                                                        if (p + i + j >= taps - 1)
                                                                                s += (double)w[ch * taps + j] * (double)u[ch] * (double)u[2 * d + ch];
                                                                }
                                                                near("shortconv", ch, (double)out[(size_t)i * d + ch],
                                                                     s * (double)in[(size_t)(p + i) * 3 * d + d + ch], 3e-6);
                                                        }
                                                done(x, (size_t)r * 3 * d);
                                                done(out, (size_t)r * d);
                                        }
                                        done(in, (size_t)n * 3 * d);
                                        done(w, (size_t)d * taps);
                                        done(st, slot * 2);
                                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_delta),
                cmocka_unit_test(test_delta_bits),
                cmocka_unit_test(test_shortconv),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
