/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template: the causal convolution and the gated delta rule (Yang et al.,
 * arXiv:2412.06464). Per head, with state S [s_k][s_v]:
 *   S = decay * S;  d = beta * (v - k^T S);  S = S + k d^T;  o = q^T S
 * Columns of S are independent of each other over all tokens, so a strip of
 * them stays in the first cache while the tokens pass. Sums over s_k run in two
 * halves, even and odd rows.
 */

static inline __attribute__((always_inline)) void delta_strip(const struct k_delta_run *r, uint32_t c, const int nv) {
        uint32_t rows = r->s_k & ~1u, sv = r->s_v;
        float *S = r->state + c;

        for (uint32_t t = 0; t < r->n; t++) {
                const float *k = r->k + (size_t)t * r->s_k, *q = r->q + (size_t)t * r->s_k;
                vf decay = vf_set1(r->decay[t]), beta = vf_set1(r->beta[t]);
                vf m0[4], m1[4], o0[4], o1[4], d[4];

                for (int j = 0; j < nv; j++)
                        m0[j] = m1[j] = o0[j] = o1[j] = vf_set1(0);
                for (uint32_t i = 0; i < rows; i += 2) {
                        vf k0 = vf_set1(k[i]), k1 = vf_set1(k[i + 1]);
                        for (int j = 0; j < nv; j++) {
                                m0[j] = vf_fma(k0, vf_load(S + (size_t)i * sv + j * VW), m0[j]);
                                m1[j] = vf_fma(k1, vf_load(S + (size_t)(i + 1) * sv + j * VW), m1[j]);
                        }
                }
                if (rows < r->s_k)
                        for (int j = 0; j < nv; j++)
                                m0[j] = vf_fma(vf_set1(k[rows]), vf_load(S + (size_t)rows * sv + j * VW), m0[j]);
                for (int j = 0; j < nv; j++) {
                        vf v = vf_load(r->v + t * r->v_stride + c + j * VW);
                        d[j] = vf_mul(beta, vf_sub(v, vf_mul(decay, vf_add(m0[j], m1[j]))));
                }
                for (uint32_t i = 0; i < rows; i += 2) {
                        vf k0 = vf_set1(k[i]), k1 = vf_set1(k[i + 1]), q0 = vf_set1(q[i]), q1 = vf_set1(q[i + 1]);
                        for (int j = 0; j < nv; j++) {
                                float *p0 = S + (size_t)i * sv + j * VW, *p1 = p0 + sv;
                                vf s0 = vf_fma(k0, d[j], vf_mul(decay, vf_load(p0)));
                                vf s1 = vf_fma(k1, d[j], vf_mul(decay, vf_load(p1)));
                                vf_store(p0, s0);
                                vf_store(p1, s1);
                                o0[j] = vf_fma(q0, s0, o0[j]);
                                o1[j] = vf_fma(q1, s1, o1[j]);
                        }
                }
                if (rows < r->s_k)
                        for (int j = 0; j < nv; j++) {
                                float *p = S + (size_t)rows * sv + j * VW;
                                vf s = vf_fma(vf_set1(k[rows]), d[j], vf_mul(decay, vf_load(p)));
                                vf_store(p, s);
                                o0[j] = vf_fma(vf_set1(q[rows]), s, o0[j]);
                        }
                for (int j = 0; j < nv; j++)
                        vf_store(r->o + t * r->o_stride + c + j * VW, vf_add(o0[j], o1[j]));
                if (r->keep[t])
                        for (uint32_t i = 0; i < r->s_k; i++)
                                for (int j = 0; j < nv; j++)
                                        vf_store(r->keep[t] + (size_t)i * sv + c + j * VW, vf_load(S + (size_t)i * sv + j * VW));
        }
}

/* One column, the same order of sums. */
static void delta_column(const struct k_delta_run *r, uint32_t c) {
        uint32_t rows = r->s_k & ~1u, sv = r->s_v;
        float *S = r->state + c;

        for (uint32_t t = 0; t < r->n; t++) {
                const float *k = r->k + (size_t)t * r->s_k, *q = r->q + (size_t)t * r->s_k;
                float m[2] = { 0, 0 }, o[2] = { 0, 0 }, d;

                for (uint32_t i = 0; i < r->s_k; i++)
                        m[i < rows ? i & 1 : 0] += k[i] * S[(size_t)i * sv];
                d = r->beta[t] * (r->v[t * r->v_stride + c] - r->decay[t] * (m[0] + m[1]));
                for (uint32_t i = 0; i < r->s_k; i++) {
                        float s = k[i] * d + r->decay[t] * S[(size_t)i * sv];
                        S[(size_t)i * sv] = s;
                        o[i < rows ? i & 1 : 0] += q[i] * s;
                        if (r->keep[t])
                                r->keep[t][(size_t)i * sv + c] = s;
                }
                r->o[t * r->o_stride + c] = o[0] + o[1];
        }
}

static void delta(const struct k_delta_run *r) {
        uint32_t c = 0;

        for (; c + 4 * VW <= r->s_v; c += 4 * VW)
                delta_strip(r, c, 4);
        for (; c + VW <= r->s_v; c += VW)
                delta_strip(r, c, 1);
        for (; c < r->s_v; c++)
                delta_column(r, c);
}

/*
 * In place, last token first, so that a token's inputs are still there:
 *   x[t][c] = sum over j of w[c][j] * x[t - (taps - 1) + j][c]
 * with the 'taps - 1' rows of prev before token 0.
 */
static void conv_lanes(float *x, size_t stride, uint32_t n, uint32_t lanes, uint32_t taps, const float *w, const float *prev,
                       size_t prev_stride, bool silu) {
        float wt[64][VW];

        for (uint32_t j = 0; j < taps; j++)
                for (uint32_t l = 0; l < VW; l++)
                        wt[j][l] = l < lanes ? w[(size_t)l * taps + j] : 0;
        for (uint32_t t = n; t-- > 0;) {
                vf acc = vf_set1(0);

                for (uint32_t j = 0; j < taps; j++) {
                        uint32_t at = t + j; /* row at - (taps - 1) */
                        const float *p = at < taps - 1 ? prev + at * prev_stride : x + (at - (taps - 1)) * stride;
                        acc = vf_fma(vf_load(wt[j]), lanes == VW ? vf_load(p) : tail_load(p, lanes, 0), acc);
                }
                if (silu)
                        acc = vf_mul(acc, vf_sigmoid(acc));
                if (lanes == VW)
                        vf_store(x + t * stride, acc);
                else
                        tail_store(x + t * stride, acc, lanes);
        }
}

/* Four taps, whole vectors: each input is loaded once and moves through registers. The same order of sums. */
static inline __attribute__((always_inline)) void conv4_strip(float *x, size_t stride, uint32_t n, const float *w, const float *prev,
                                                              size_t prev_stride, bool silu, const int nv) {
        float wt[4][2 * VW];
        vf r[4][2], t4[4][2];

        for (int j = 0; j < 4; j++)
                for (int l = 0; l < nv * VW; l++)
                        wt[j][l] = w[l * 4 + j];
        for (int j = 0; j < 4; j++)
                for (int v = 0; v < nv; v++)
                        t4[j][v] = vf_load(wt[j] + v * VW);
#define CONV_ROW(i) ((i) >= 3 ? x + (size_t)((i) - 3) * stride : prev + (size_t)(i) * prev_stride)
        for (uint32_t j = 1; j < 4; j++)
                for (int v = 0; v < nv; v++)
                        r[j - 1][v] = vf_load(CONV_ROW(n - 1 + j) + v * VW);
        for (uint32_t t = n; t-- > 0;) {
                const float *first = CONV_ROW(t);

                for (int v = 0; v < nv; v++) {
                        vf acc;

                        r[3][v] = r[2][v];
                        r[2][v] = r[1][v];
                        r[1][v] = r[0][v];
                        r[0][v] = vf_load(first + v * VW);
                        acc = vf_fma(t4[0][v], r[0][v], vf_set1(0));
                        acc = vf_fma(t4[1][v], r[1][v], acc);
                        acc = vf_fma(t4[2][v], r[2][v], acc);
                        acc = vf_fma(t4[3][v], r[3][v], acc);
                        if (silu)
                                acc = vf_mul(acc, vf_sigmoid(acc));
                        vf_store(x + t * stride + v * VW, acc);
                }
        }
#undef CONV_ROW
}

static void conv(float *x, size_t stride, uint32_t n, uint32_t channels, uint32_t taps, const float *w, const float *prev,
                 size_t prev_stride, bool silu) {
        uint32_t c = 0;

        if (taps == 4 && n) {
                for (; c + 2 * VW <= channels; c += 2 * VW)
                        conv4_strip(x + c, stride, n, w + (size_t)c * taps, prev + c, prev_stride, silu, 2);
                for (; c + VW <= channels; c += VW)
                        conv4_strip(x + c, stride, n, w + (size_t)c * taps, prev + c, prev_stride, silu, 1);
        }
        for (; c < channels; c += VW)
                conv_lanes(x + c, stride, n, channels - c < VW ? channels - c : VW, taps, w + (size_t)c * taps, prev + c,
                           prev_stride, silu);
}
