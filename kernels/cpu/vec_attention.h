/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template: one block of keys against one tile of queries, with the online
 * softmax of Milakov and Gimelshein (arXiv:1805.02867). Lanes are queries while
 * scores are made, so nothing is summed across lanes and a query's bits depend
 * on its own row and the absolute grid of blocks only:
 *   s[key][q] = sum over d, in order, of k[key][d] * qt[d][q]
 *   max, exp, sum over keys, in order, per lane
 *   o[q][c]   = o * corr + sum over keys, in order, of p[key][q] * v[key][c]
 */

static inline __attribute__((always_inline)) void score_part(const struct k_att_tile *t, uint32_t key, uint32_t q, const int keys,
                                                             const int vecs) {
        const float *k = t->k + (size_t)key * t->dk, *qt = t->qt + q;
        vf acc[12][2];

        for (int i = 0; i < keys; i++)
                for (int j = 0; j < vecs; j++)
                        acc[i][j] = vf_set1(0);
        for (uint32_t d = 0; d < t->dk; d++, qt += t->mp) {
                vf x[2];
                for (int j = 0; j < vecs; j++)
                        x[j] = vf_load(qt + j * VW);
                for (int i = 0; i < keys; i++) {
                        vf b = vf_set1(k[(size_t)i * t->dk + d]);
                        for (int j = 0; j < vecs; j++)
                                acc[i][j] = vf_fma(b, x[j], acc[i][j]);
                }
        }
        for (int i = 0; i < keys; i++)
                for (int j = 0; j < vecs; j++)
                        vf_store(t->s + (size_t)(key + i) * t->mp + q + j * VW, acc[i][j]);
}

static void score(const struct k_att_tile *t) {
        uint32_t q = 0, key;

        for (; q + VW < t->m; q += 2 * VW) {
                for (key = 0; key + 6 <= t->n_keys; key += 6)
                        score_part(t, key, q, 6, 2);
                for (; key < t->n_keys; key++)
                        score_part(t, key, q, 1, 2);
        }
        if (q < t->m) {
                for (key = 0; key + 8 <= t->n_keys; key += 8)
                        score_part(t, key, q, 8, 1);
                for (; key < t->n_keys; key++)
                        score_part(t, key, q, 1, 1);
        }
}

/* Scores to weights for VW queries; updates max and sum, leaves the factor for o in corr. */
static void weigh(const struct k_att_tile *t, uint32_t q) {
        const vf none = vf_set1(-INFINITY), lo = vf_load(t->lo + q), hi = vf_load(t->hi + q);
        vf m = vf_load(t->max + q), use, sum = vf_set1(0), corr;
        vf old = m;

        for (uint32_t i = 0; i < t->n_keys; i++) {
                float *p = t->s + (size_t)i * t->mp + q;
                vf s = vf_load(p);

                if (t->softcap != 0)
                        s = vf_mul(vf_set1(t->softcap), vf_tanh(vf_div(s, vf_set1(t->softcap))));
                s = vf_between(vf_set1(t->base + (float)i), lo, hi, s, none);
                vf_store(p, s);
                m = vf_max(s, m);
        }
        /* nothing visible yet: any finite maximum gives weights of 0 */
        use = vf_between(m, vf_set1(-3.0e38f), vf_set1(INFINITY), m, vf_set1(0));
        for (uint32_t i = 0; i < t->n_keys; i++) {
                float *p = t->s + (size_t)i * t->mp + q;
                vf e = vf_exp(vf_sub(vf_load(p), use));

                sum = vf_add(sum, e);
                vf_store(p, e);
        }
        corr = vf_exp(vf_sub(old, use));
        vf_store(t->max + q, m);
        vf_store(t->sum + q, vf_fma(vf_load(t->sum + q), corr, sum));
        vf_store(t->corr + q, corr);
}

static inline __attribute__((always_inline)) void value_part(const struct k_att_tile *t, uint32_t q, uint32_t c, const int rows,
                                                             const int vecs) {
        const float *v = t->v + c, *p = t->s + q;
        vf acc[6][2];

        for (int i = 0; i < rows; i++)
                for (int j = 0; j < vecs; j++)
                        acc[i][j] = vf_mul(vf_load(t->o + (size_t)(q + (uint32_t)i) * t->dv + c + j * VW),
                                           vf_set1(t->corr[q + (uint32_t)i]));
        for (uint32_t key = 0; key < t->n_keys; key++, v += t->v_stride, p += t->mp) {
                vf x[2];
                for (int j = 0; j < vecs; j++)
                        x[j] = vf_load(v + j * VW);
                for (int i = 0; i < rows; i++) {
                        vf b = vf_set1(p[i]);
                        for (int j = 0; j < vecs; j++)
                                acc[i][j] = vf_fma(b, x[j], acc[i][j]);
                }
        }
        for (int i = 0; i < rows; i++)
                for (int j = 0; j < vecs; j++)
                        vf_store(t->o + (size_t)(q + (uint32_t)i) * t->dv + c + j * VW, acc[i][j]);
}

static void value_tail(const struct k_att_tile *t, uint32_t q, uint32_t c) {
        float *o = t->o + (size_t)q * t->dv + c, acc = *o * t->corr[q];

        for (uint32_t key = 0; key < t->n_keys; key++)
                acc = fmaf(t->s[(size_t)key * t->mp + q], t->v[(size_t)key * t->v_stride + c], acc);
        *o = acc;
}

static void values(const struct k_att_tile *t) {
        uint32_t c = 0, q;

        for (; c + 2 * VW <= t->dv; c += 2 * VW) {
                for (q = 0; q + 6 <= t->m; q += 6)
                        value_part(t, q, c, 6, 2);
                for (; q + 3 <= t->m; q += 3)
                        value_part(t, q, c, 3, 2);
                for (; q < t->m; q++)
                        value_part(t, q, c, 1, 2);
        }
        for (; c + VW <= t->dv; c += VW) {
                for (q = 0; q + 6 <= t->m; q += 6)
                        value_part(t, q, c, 6, 1);
                for (; q < t->m; q++)
                        value_part(t, q, c, 1, 1);
        }
        for (; c < t->dv; c++)
                for (q = 0; q < t->m; q++)
                        value_tail(t, q, c);
}

static void attend(const struct k_att_tile *t) {
        score(t);
        for (uint32_t q = 0; q < t->m; q += VW)
                weigh(t, q);
        values(t);
}
