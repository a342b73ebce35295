/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template: one block of keys against the few queries of generated tokens. A
 * score is a sum of lanes over columns, then across lanes in one fixed tree;
 * keys come in fours, padded, so that a score's bits depend on its key alone.
 */

static inline __attribute__((always_inline)) vf few_load(const void *p, uint32_t i, const bool half) {
#if VF_F16
        if (half)
                return vf_load_f16((const uint16_t *)p + i);
#endif
        return vf_load((const float *)p + i);
}

/* Scores of four keys for 'heads' queries. */
static inline __attribute__((always_inline)) void few_score(const struct k_att_few *t, uint32_t key, uint32_t q, const int heads,
                                                            const bool half) {
        const void *k[4];
        vf acc[3][4];

        for (uint32_t i = 0; i < 4; i++)
                k[i] = t->k[key + i < t->n_keys ? key + i : t->n_keys - 1];
        for (int h = 0; h < heads; h++)
                for (int i = 0; i < 4; i++)
                        acc[h][i] = vf_set1(0);
        for (uint32_t d = 0; d < t->dk; d += VW) {
                vf x[4];
                for (int i = 0; i < 4; i++)
                        x[i] = few_load(k[i], d, half);
                for (int h = 0; h < heads; h++) {
                        vf w = vf_load(t->q + (size_t)(q + (uint32_t)h) * t->dk + d);
                        for (int i = 0; i < 4; i++)
                                acc[h][i] = vf_fma(w, x[i], acc[h][i]);
                }
        }
        for (int h = 0; h < heads; h++)
                vf_sum4(t->s + (size_t)(q + (uint32_t)h) * K_ATT_KEYS + key, acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
}

static inline __attribute__((always_inline)) void few_scores(const struct k_att_few *t, const bool half) {
        for (uint32_t key = 0; key < t->n_keys; key += 4) {
                uint32_t q = 0;

                for (; q + 3 <= t->m; q += 3)
                        few_score(t, key, q, 3, half);
                for (; q + 2 <= t->m; q += 2)
                        few_score(t, key, q, 2, half);
                for (; q < t->m; q++)
                        few_score(t, key, q, 1, half);
        }
}

/* Scores to weights of one query; what o is to be multiplied by. */
static float few_weigh(const struct k_att_few *t, uint32_t q) {
        float *s = t->s + (size_t)q * K_ATT_KEYS, step[VW], old = t->max[q], m, use, corr[VW];
        const vf none = vf_set1(-INFINITY), lo = vf_set1(t->lo[q]), hi = vf_set1(t->hi[q]);
        vf top = none, sum = vf_set1(0), iota;

        for (int i = 0; i < VW; i++)
                step[i] = (float)i;
        iota = vf_load(step);
        for (uint32_t i = 0; i < K_ATT_KEYS; i += VW) {
                vf x = i < t->n_keys ? vf_load(s + i) : none;

                if (t->softcap != 0)
                        x = vf_mul(vf_set1(t->softcap), vf_tanh(vf_div(x, vf_set1(t->softcap))));
                x = vf_between(vf_add(vf_set1(t->base + (float)i), iota), lo, hi, x, none);
                vf_store(s + i, x);
                top = vf_max(x, top);
        }
        m = vf_top(top);
        m = m > old ? m : old;
        use = m == -INFINITY ? 0 : m;
        for (uint32_t i = 0; i < K_ATT_KEYS; i += VW) {
                vf e = vf_exp(vf_sub(vf_load(s + i), vf_set1(use)));

                sum = vf_add(sum, e);
                vf_store(s + i, e);
        }
        vf_store(corr, vf_exp(vf_set1(old - use)));
        t->max[q] = m;
        t->sum[q] = t->sum[q] * corr[0] + vf_sum(sum);
        return corr[0];
}

static inline __attribute__((always_inline)) void few_value(const struct k_att_few *t, uint32_t q, uint32_t c, const int heads,
                                                            const int vecs, const bool half) {
        vf acc[3][4];

        for (int h = 0; h < heads; h++)
                for (int j = 0; j < vecs; j++)
                        acc[h][j] = vf_load(t->o + (size_t)(q + (uint32_t)h) * t->dv + c + (uint32_t)j * VW);
        for (uint32_t key = 0; key < t->n_keys; key++) {
                vf x[4];
                for (int j = 0; j < vecs; j++)
                        x[j] = few_load(t->v[key], c + (uint32_t)j * VW, half);
                for (int h = 0; h < heads; h++) {
                        vf p = vf_set1(t->s[(size_t)(q + (uint32_t)h) * K_ATT_KEYS + key]);
                        for (int j = 0; j < vecs; j++)
                                acc[h][j] = vf_fma(p, x[j], acc[h][j]);
                }
        }
        for (int h = 0; h < heads; h++)
                for (int j = 0; j < vecs; j++)
                        vf_store(t->o + (size_t)(q + (uint32_t)h) * t->dv + c + (uint32_t)j * VW, acc[h][j]);
}

static inline __attribute__((always_inline)) void few_values(const struct k_att_few *t, uint32_t q, const int heads, const bool half) {
        uint32_t c = 0;

        for (; c + 4 * VW <= t->dv; c += 4 * VW)
                few_value(t, q, c, heads, 4, half);
        for (; c < t->dv; c += VW)
                few_value(t, q, c, heads, 1, half);
}

static inline __attribute__((always_inline)) void few_block(const struct k_att_few *t, const bool half) {
        uint32_t q = 0;

        few_scores(t, half);
        for (q = 0; q < t->m; q++) {
                float corr = few_weigh(t, q);
                if (corr != 1)
                        row_scale(t->o + (size_t)q * t->dv, t->o + (size_t)q * t->dv, t->dv, corr);
        }
        for (q = 0; q + 3 <= t->m; q += 3)
                few_values(t, q, 3, half);
        for (; q + 2 <= t->m; q += 2)
                few_values(t, q, 2, half);
        for (; q < t->m; q++)
                few_values(t, q, 1, half);
}

static void attend_few(const struct k_att_few *t) {
#if VF_F16
        if (t->half) {
                few_block(t, true);
                return;
        }
#endif
        few_block(t, false);
}
