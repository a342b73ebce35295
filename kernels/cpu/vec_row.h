/* SPDX-License-Identifier: Apache-2.0 */
/* Template: loops over one row. Included once by each vec_<isa>.c after vec.h and vec_ops.h. */

/* The last n < VW elements; absent lanes are 'fill' and never stored. */
static inline vf tail_load(const float *p, uint32_t n, float fill) {
        float t[VW];
        for (uint32_t i = 0; i < VW; i++)
                t[i] = i < n ? p[i] : fill;
        return vf_load(t);
}

static inline void tail_store(float *p, vf x, uint32_t n) {
        float t[VW];
        vf_store(t, x);
        memcpy(p, t, n * sizeof(float));
}

static float row_sum(const float *x, uint32_t n) {
        vf a = vf_set1(0), b = vf_set1(0);
        uint32_t i = 0;

        for (; i + 2 * VW <= n; i += 2 * VW) {
                a = vf_add(a, vf_load(x + i));
                b = vf_add(b, vf_load(x + i + VW));
        }
        for (; i + VW <= n; i += VW)
                a = vf_add(a, vf_load(x + i));
        if (i < n)
                b = vf_add(b, tail_load(x + i, n - i, 0));
        return vf_sum(vf_add(a, b));
}

static float row_sum_squares(const float *x, uint32_t n, float mean) {
        vf a = vf_set1(0), b = vf_set1(0), m = vf_set1(mean), d;
        uint32_t i = 0;

        for (; i + 2 * VW <= n; i += 2 * VW) {
                d = vf_sub(vf_load(x + i), m);
                a = vf_fma(d, d, a);
                d = vf_sub(vf_load(x + i + VW), m);
                b = vf_fma(d, d, b);
        }
        for (; i < n; i += VW) {
                d = vf_sub(i + VW <= n ? vf_load(x + i) : tail_load(x + i, n - i, mean), m);
                a = vf_fma(d, d, a);
        }
        return vf_sum(vf_add(a, b));
}

static void row_norm(float *y, const float *x, uint32_t n, float mean, float scale, const float *w, const float *b) {
        vf m = vf_set1(mean), s = vf_set1(scale), v;
        uint32_t i = 0;

        for (; i + VW <= n; i += VW) {
                v = vf_mul(vf_sub(vf_load(x + i), m), s);
                if (w)
                        v = vf_mul(v, vf_load(w + i));
                if (b)
                        v = vf_add(v, vf_load(b + i));
                vf_store(y + i, v);
        }
        for (; i < n; i++) {
                float f = (x[i] - mean) * scale;
                if (w)
                        f *= w[i];
                if (b)
                        f += b[i];
                y[i] = f;
        }
}

/* One vector function over a row: y = f(y, x). */
#define ROW_LOOP(expr)                                                          \
        do {                                                                    \
                uint32_t i = 0;                                                 \
                for (; i + VW <= n; i += VW) {                                  \
                        vf Y = vf_load(y + i), X = vf_load(x + i);              \
                        (void)Y;                                                \
                        (void)X;                                                \
                        vf_store(y + i, expr);                                  \
                }                                                               \
                if (i < n) {                                                    \
                        vf Y = tail_load(y + i, n - i, 0), X = tail_load(x + i, n - i, 0); \
                        (void)Y;                                                \
                        (void)X;                                                \
                        tail_store(y + i, expr, n - i);                         \
                }                                                               \
        } while (0)

static void row_axpy(float *y, const float *x, uint32_t n, float a, float b) {
        vf va = vf_set1(a), vb = vf_set1(b);
        ROW_LOOP(vf_add(vf_mul(va, Y), vf_mul(vb, X)));
}

static void row_scale(float *y, const float *x, uint32_t n, float a) {
        vf va = vf_set1(a);
        ROW_LOOP(vf_mul(va, X));
}

static void row_mul(float *y, const float *x, uint32_t n) {
        ROW_LOOP(vf_mul(Y, X));
}

static void row_mul_sigmoid(float *y, const float *x, uint32_t n) {
        ROW_LOOP(vf_mul(Y, vf_sigmoid(X)));
}

static void row_mul_silu(float *y, const float *x, uint32_t n) {
        ROW_LOOP(vf_mul(Y, vf_mul(X, vf_sigmoid(X))));
}

static void row_softcap(float *y, uint32_t n, float a, float b) {
        const float *x = y;
        vf va = vf_set1(a / b), vb = vf_set1(b);
        ROW_LOOP(vf_mul(vb, vf_tanh(vf_mul(va, X))));
}

/* Hendrycks and Gimpel, arXiv:1606.08415: the tanh form. */
static inline vf gelu_tanh(vf g) {
        vf c = vf_mul(vf_set1(0.79788456f), vf_fma(vf_mul(vf_mul(g, g), g), vf_set1(0.044715f), g));
        return vf_mul(vf_mul(vf_set1(0.5f), g), vf_add(vf_set1(1.0f), vf_tanh(c)));
}

static inline vf gelu_erf(vf g) {
        float t[VW];
        vf_store(t, g);
        for (uint32_t i = 0; i < VW; i++)
                t[i] = 0.5f * t[i] * (1.0f + erff(t[i] * 0.70710678f));
        return vf_load(t);
}

static inline vf activate(enum k_glu act, vf g, float alpha, float limit) {
        vf r;

        switch (act) {
        case K_GLU_SILU:
                return vf_mul(g, vf_sigmoid(g));
        case K_GLU_GELU_TANH:
                return gelu_tanh(g);
        case K_GLU_GELU_ERF:
                return gelu_erf(g);
        case K_GLU_RELU2:
                r = vf_max(g, vf_set1(0));
                return vf_mul(r, r);
        case K_GLU_SWIGLU_OAI:
                r = vf_min(g, vf_set1(limit));
                return vf_mul(r, vf_sigmoid(vf_mul(vf_set1(alpha), r)));
        case K_GLU_NONE:
                break;
        }
        return g;
}

static inline __attribute__((always_inline)) void glu_loop(enum k_glu act, float *y, const float *gate, const float *up, uint32_t n,
                                                           float alpha, float limit) {
        vf one = vf_set1(1.0f), hi = vf_set1(limit), lo = vf_set1(-limit);

        for (uint32_t i = 0; i < n; i += VW) {
                uint32_t left = n - i;
                vf g = left >= VW ? vf_load((gate ? gate : up) + i) : tail_load((gate ? gate : up) + i, left, 0), u;

                g = activate(act, g, alpha, limit);
                if (gate) {
                        u = left >= VW ? vf_load(up + i) : tail_load(up + i, left, 0);
                        if (act == K_GLU_SWIGLU_OAI)
                                u = vf_add(vf_max(vf_min(u, hi), lo), one);
                        g = vf_mul(g, u);
                }
                if (left >= VW)
                        vf_store(y + i, g);
                else
                        tail_store(y + i, g, left);
        }
}

static void row_glu(enum k_glu act, float *y, const float *gate, const float *up, uint32_t n, float alpha, float limit) {
        switch (act) { /* so that each loop is compiled for its function */
        case K_GLU_SILU:
                glu_loop(K_GLU_SILU, y, gate, up, n, alpha, limit);
                break;
        case K_GLU_GELU_TANH:
                glu_loop(K_GLU_GELU_TANH, y, gate, up, n, alpha, limit);
                break;
        case K_GLU_SWIGLU_OAI:
                glu_loop(K_GLU_SWIGLU_OAI, y, gate, up, n, alpha, limit);
                break;
        case K_GLU_GELU_ERF:
        case K_GLU_RELU2:
        case K_GLU_NONE:
                glu_loop(act, y, gate, up, n, alpha, limit);
                break;
        }
}

static void row_softmax(float *x, uint32_t n) {
        float *y = x, top = -INFINITY, s;
        vf m;

        for (uint32_t i = 0; i < n; i++)
                top = x[i] > top ? x[i] : top;
        m = vf_set1(top);
        ROW_LOOP(vf_exp(vf_sub(X, m)));
        s = row_sum(x, n);
        row_scale(x, x, n, 1.0f / s);
}

static void row_rope(enum k_rope kind, float *x, uint32_t n_dims, const float *cs) {
        uint32_t h = n_dims / 2, i = 0;
        const float *sn = cs + h;

        if (kind == K_ROPE_ADJACENT) {
                for (; i < h; i++) {
                        float a = x[2 * i], b = x[2 * i + 1];
                        x[2 * i] = a * cs[i] - b * sn[i];
                        x[2 * i + 1] = a * sn[i] + b * cs[i];
                }
                return;
        }
        for (; i + VW <= h; i += VW) {
                vf a = vf_load(x + i), b = vf_load(x + h + i), c = vf_load(cs + i), s = vf_load(sn + i);
                vf_store(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
                vf_store(x + h + i, vf_add(vf_mul(a, s), vf_mul(b, c)));
        }
        for (; i < h; i++) {
                float a = x[i], b = x[h + i];
                x[i] = a * cs[i] - b * sn[i];
                x[h + i] = a * sn[i] + b * cs[i];
        }
}

#define ROW_BLOCK 32u /* of the block types that keys and values are kept in */

/* The last n < ROW_BLOCK elements of a row, whose block is filled up with zeros. */
static void tail_decode(enum k_type t, float *dst, const void *src, uint32_t n) {
        float x[ROW_BLOCK];

        k_decode(t, src, x, ROW_BLOCK);
        memcpy(dst, x, n * sizeof(float));
}

static void tail_encode(enum k_type t, void *dst, const float *src, uint32_t n) {
        float x[ROW_BLOCK] = { 0 };

        memcpy(x, src, n * sizeof(float));
        k_encode(t, x, dst, ROW_BLOCK);
}

static void row_to_float(enum k_type t, float *dst, const void *src, uint32_t n) {
        const uint16_t *h = src;
        uint32_t i = 0, whole = n - n % ROW_BLOCK;

        switch ((int)t) {
        case K_F32:
                memcpy(dst, src, n * sizeof(float));
                return;
#if VF_F16
        case K_F16:
                for (; i + VW <= n; i += VW)
                        vf_store(dst + i, vf_load_f16(h + i));
                for (; i < n; i++)
                        dst[i] = k_f16_to_f32(h[i]);
                return;
#endif
        case K_BF16:
                for (; i + VW <= n; i += VW)
                        vf_store(dst + i, vf_load_bf16(h + i));
                for (; i < n; i++)
                        dst[i] = k_bf16_to_f32(h[i]);
                return;
        case K_Q8_0:
                for (const uint8_t *b = src; i < whole; b += 34) {
                        const int8_t *q = (const int8_t *)b + 2;
                        uint16_t d;
                        vf s;

                        memcpy(&d, b, 2);
                        s = vf_set1(k_f16_to_f32(d));
                        for (uint32_t j = 0; j < 32; j += VW, i += VW)
                                vf_store(dst + i, vf_mul(s, vf_load_i8(q + j)));
                }
                if (whole < n)
                        tail_decode(t, dst + whole, (const uint8_t *)src + whole / ROW_BLOCK * 34, n - whole);
                return;
        case K_Q4_0:
                k_decode(t, src, dst, whole);
                if (whole < n)
                        tail_decode(t, dst + whole, (const uint8_t *)src + whole / ROW_BLOCK * 18, n - whole);
                return;
        default:
                k_decode(t, src, dst, n);
        }
}

static void row_from_float(enum k_type t, void *dst, const float *src, uint32_t n) {
#if VF_F16
        if (t == K_F16) {
                uint16_t *h = dst;
                uint32_t i = 0;

                for (; i + VW <= n; i += VW)
                        vf_store_f16(h + i, vf_load(src + i));
                for (; i < n; i++)
                        h[i] = k_f32_to_f16(src[i]);
                return;
        }
#endif
        if ((t == K_Q8_0 || t == K_Q4_0) && n % ROW_BLOCK) {
                uint32_t whole = n - n % ROW_BLOCK;

                k_encode(t, src, dst, whole);
                tail_encode(t, (uint8_t *)dst + whole / ROW_BLOCK * (t == K_Q8_0 ? 34 : 18), src + whole, n - whole);
                return;
        }
        k_encode(t, src, dst, n);
}
