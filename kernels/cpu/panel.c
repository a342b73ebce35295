/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels by way of the scalar readers: for matrices in FILE layout, and floats
 * for exact mode. Fast paths from K_LAYOUT_CPU are in unpack_avx2.h, for the
 * IQ1, IQ2 and IQ3 types, which have FILE layout only, in unpack_iq_avx2.h.
 */
#include "kernels/cpu/panel.h"

#include <string.h>

/* Scales and minimums of an integer-scaled block. */
static void put_scales(struct k_panel *p, enum k_type t, const struct k_codes_traits *tr, const struct k_codes *c, uint32_t r) {
        p->d0[r] = c->d[0];
        p->m0[r] = c->m;
        /* Q5_K's codes overflow 16 bits over 32 columns, so its scales come per 16. */
        uint32_t step = t == K_Q5_K || tr->group == 16 ? 1 : 2;
        for (uint32_t g = 0; g < 16; g += step)
                p->sc[g / step][r][0] = p->sc[g / step][r][1] = c->sc[g];
        step = tr->group / 16;
        for (uint32_t g = 0; g < 16 && tr->min; g += 2 * step) {
                p->mn[g / (2 * step)][r][0] = c->mn[g];
                p->mn[g / (2 * step)][r][1] = c->mn[g + step];
        }
}

static void put_block(struct k_panel *p, enum k_type t, const struct k_codes *c, uint32_t r, uint32_t col, uint32_t n) {
        const struct k_codes_traits *tr = k_codes_traits(t);
        const uint32_t top = 0x80808080, add = tr->bits == 8 ? 0 : tr->center * 0x01010101u;

        for (uint32_t i = 0; i < n; i += 4) {
                uint32_t v; /* four bytes added at once: the top bits apart, so that nothing carries over */
                memcpy(&v, c->q + i, 4);
                v = ((v & ~top) + (add & ~top)) ^ ((v ^ add) & top);
                memcpy(p->q + (size_t)(col + i) * K_PANEL + 4 * r, &v, 4);
        }
        if (tr->kind == K_CODES_FLOAT) {
                for (uint32_t i = 0; i < n; i += tr->group)
                        p->d[(col + i) / tr->group][r] = c->d[i / 16];
                if (tr->min)
                        p->m[col / 32][r] = c->m;
                return;
        }
        put_scales(p, t, tr, c, r);
}

void k_panel_from_file(struct k_panel *p, const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col,
                       uint32_t cols) {
        uint32_t block = k_type_block(w->type), bytes = k_type_bytes(w->type), n = MIN(w->rows - row0, K_PANEL);
        size_t row_bytes = (size_t)(w->cols / block) * bytes;
        struct k_codes c;

        if (n < K_PANEL)
                memset(p, 0, sizeof(*p));
        for (uint32_t r = 0; r < n; r++) {
                const uint8_t *src = data + (row0 + r) * row_bytes + (size_t)(col / block) * bytes;
                for (uint32_t i = 0; i < cols; i += block, src += bytes) {
                        k_codes_get(w->type, src, &c);
                        put_block(p, w->type, &c, r, i, block);
                }
        }
}

void k_panel_floats(float *dst, const struct k_weight *w, const uint8_t *data, uint32_t row0, uint32_t col, uint32_t cols) {
        uint32_t block = k_type_block(w->type), n = MIN(w->rows - row0, K_PANEL);
        size_t bytes = k_type_bytes(w->type);
        float v[PANEL_COLS];
        struct k_codes c;

        if (n < K_PANEL)
                memset(dst, 0, (size_t)cols * K_PANEL * sizeof(float));
        for (uint32_t r = 0; r < n; r++) {
                uint32_t row = row0 + r;
                if (w->layout != K_LAYOUT_CPU) {
                        k_decode(w->type, data + ((size_t)row * (w->cols / block) + col / block) * bytes, v, cols);
                } else if (k_layout_type(w->type)->bits == 0) {
                        const uint8_t *p = data + row / K_PANEL * k_layout_panel_bytes(w->type, w->cols);
                        for (uint32_t i = 0; i < cols; i++)
                                k_decode(w->type, p + ((size_t)(col + i) * K_PANEL + row % K_PANEL) * bytes, v + i, 1);
                } else {
                        for (uint32_t i = 0; i < cols; i += block) {
                                k_layout_codes(w->type, data, w->cols, row, (col + i) / block, &c);
                                k_codes_values(w->type, &c, v + i);
                        }
                }
                for (uint32_t i = 0; i < cols; i++)
                        dst[i * K_PANEL + r] = v[i];
        }
}
