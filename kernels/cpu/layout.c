/* SPDX-License-Identifier: Apache-2.0 */
/* The repack between FILE order and K_LAYOUT_CPU; layout.h has the format. */
#include "kernels/cpu/layout.h"

#include <errno.h>
#include <string.h>

#define Q(bits_, lut_, unit_, head_, ...) \
        { true, bits_, lut_, unit_, K_PANEL * (head_), K_PANEL * (unit_) * (bits_) / 8, { __VA_ARGS__ } }
static const struct k_layout_type layouts[_K_TYPE_MAX] = {
        [K_F32]    = { true, 0, NULL, 1, 0, K_PANEL * 4, { { 0 } } },
        [K_F16]    = { true, 0, NULL, 1, 0, K_PANEL * 2, { { 0 } } },
        [K_BF16]   = { true, 0, NULL, 1, 0, K_PANEL * 2, { { 0 } } },
        [K_Q4_0]   = Q(4, NULL, 32, 2, { 0, 2, 1 }),
        [K_Q4_1]   = Q(4, NULL, 32, 4, { 0, 2, 1 }, { 2, 2, 1 }),
        [K_Q5_0]   = Q(5, NULL, 32, 2, { 0, 2, 1 }),
        [K_Q5_1]   = Q(5, NULL, 32, 4, { 0, 2, 1 }, { 2, 2, 1 }),
        [K_Q8_0]   = Q(8, NULL, 32, 2, { 0, 2, 1 }),
        [K_IQ4_NL] = Q(4, k_lut_iq4, 32, 2, { 0, 2, 1 }),
        [K_MXFP4]  = Q(4, k_lut_e2m1, 32, 1, { 0, 1, 1 }),
        [K_NVFP4]  = Q(4, k_lut_e2m1, 64, 4, { 0, 1, 4 }),
        [K_Q2_K]   = Q(2, NULL, 256, 20, { 80, 2, 1 }, { 82, 2, 1 }, { 0, 1, 16 }),
        [K_Q3_K]   = Q(3, NULL, 256, 14, { 108, 2, 1 }, { 96, 1, 12 }),
        [K_Q4_K]   = Q(4, NULL, 256, 16, { 0, 2, 1 }, { 2, 2, 1 }, { 4, 1, 12 }),
        [K_Q5_K]   = Q(5, NULL, 256, 16, { 0, 2, 1 }, { 2, 2, 1 }, { 4, 1, 12 }),
        [K_Q6_K]   = Q(6, NULL, 256, 18, { 208, 2, 1 }, { 192, 1, 16 }),
        [K_IQ4_XS] = Q(4, k_lut_iq4, 256, 8, { 0, 2, 1 }, { 2, 2, 1 }, { 4, 1, 4 }),
        [K_TQ1_0]  = Q(2, NULL, 256, 2, { 52, 2, 1 }), /* 5 trits a byte become 2 bits each */
        [K_TQ2_0]  = Q(2, NULL, 256, 2, { 64, 2, 1 }),
};
#undef Q

const struct k_layout_type *k_layout_type(enum k_type t) {
        return &layouts[t];
}

size_t k_layout_codes_off(enum k_type t, uint32_t cols) {
        const struct k_layout_type *l = &layouts[t];
        return ((size_t)cols / l->unit * l->head + 63) & ~(size_t)63;
}

size_t k_layout_panel_bytes(enum k_type t, uint32_t cols) {
        const struct k_layout_type *l = &layouts[t];
        return (k_layout_codes_off(t, cols) + (size_t)cols / l->unit * l->codes + 63) & ~(size_t)63;
}

enum k_layout k_cpu_layout_pick(enum k_type t, uint32_t rows, uint32_t cols, bool is_embedding) {
        /* Tables that are only looked up keep their rows together. */
        return !is_embedding && layouts[t].present && rows >= K_PANEL && cols % layouts[t].unit == 0 ? K_LAYOUT_CPU : K_LAYOUT_FILE;
}

size_t k_cpu_layout_bytes(enum k_type t, enum k_layout layout, uint32_t rows, uint32_t cols) {
        size_t row;
        if (layout == K_LAYOUT_CPU)
                return layouts[t].present ? DIV_ROUND_UP((size_t)rows, K_PANEL) * k_layout_panel_bytes(t, cols) : 0;
        return layout == K_LAYOUT_FILE && k_type_row_bytes(t, cols, &row) ? row * rows : 0;
}

static void put_head(const struct k_layout_type *l, const uint8_t *block, unsigned r, uint8_t *head) {
        for (const struct k_layout_field *f = l->field; f < l->field + ELEMENTSOF(l->field) && f->count; f++)
                for (unsigned i = 0; i < f->count; i++, head += K_PANEL * f->width)
                        memcpy(head + r * f->width, block + f->off + i * f->width, f->width);
}

static void get_head(const struct k_layout_type *l, const uint8_t *head, unsigned r, uint8_t *block) {
        for (const struct k_layout_field *f = l->field; f < l->field + ELEMENTSOF(l->field) && f->count; f++)
                for (unsigned i = 0; i < f->count; i++, head += K_PANEL * f->width)
                        memcpy(block + f->off + i * f->width, head + r * f->width, f->width);
}

/* 32 bytes of a plane of 1, 2 or 4 bits, taken from bit 'done' of the codes; four columns of a row at a time. */
static void plane_32(const uint8_t u[K_PANEL][256], unsigned step, unsigned done, unsigned bits, uint8_t *dst) {
        const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
        uint32_t out[8] = { 0 };

        for (unsigned k = 0; k < 8 / bits; k++)
                for (unsigned r = 0; r < 8; r++) {
                        uint32_t four;
                        memcpy(&four, &u[k % 2 * 8 + r][4 * (step + k / 2)], 4);
                        out[r] |= (four >> done & mask) << k * bits;
                }
        memcpy(dst, out, 32);
}

/* u[row][column] of one unit into its planes. */
static void put_codes(const struct k_layout_type *l, const uint8_t u[K_PANEL][256], uint8_t *dst) {
        unsigned steps = l->unit / 4u, low = l->bits >= 4 ? 4 : 2;

        if (l->bits == 8) {
                for (unsigned s = 0; s < steps; s++)
                        for (unsigned r = 0; r < K_PANEL; r++)
                                memcpy(dst + 64 * s + 4 * r, &u[r][4 * s], 4);
                return;
        }
        for (unsigned done = 0, bits = low; done < l->bits; done += bits, bits = l->bits - done)
                for (unsigned s = 0, per = 4 / bits; s < steps; s += per, dst += 32)
                        plane_32(u, s, done, bits, dst);
}

static unsigned get_code(const struct k_layout_type *l, const uint8_t *src, unsigned r, unsigned col) {
        unsigned steps = l->unit / 4u, s = col / 4, i = r % 8 * 4 + col % 4, v = 0;
        unsigned low = l->bits >= 4 ? 4 : 2;

        if (l->bits == 8)
                return src[64 * s + 4 * r + col % 4];
        for (unsigned done = 0, bits = low; done < l->bits; done += bits, bits = l->bits - done) {
                unsigned per = 4 / bits;
                v |= (src[s / per * 32 + i] >> (s % per * 2 + r / 8) * bits & ((1u << bits) - 1)) << done;
                src += steps / per * 32;
        }
        return v;
}

static void repack_panel(enum k_type t, uint32_t cols, uint32_t n_rows, size_t row_bytes, const uint8_t *src, uint8_t *dst) {
        const struct k_layout_type *l = &layouts[t];
        uint8_t u[K_PANEL][256], inverse[256] = { 0 };
        int center = l->bits == 8 ? 0 : k_codes_traits(t)->center;
        uint8_t *codes = dst + k_layout_codes_off(t, cols);
        struct k_codes c;

        for (unsigned i = 16; l->lut && i-- > 0;) /* downwards: of two codes for zero the first wins */
                inverse[(uint8_t)l->lut[i]] = (uint8_t)i;
        memset(dst, 0, k_layout_panel_bytes(t, cols));
        for (uint32_t unit = 0; unit < cols / l->unit; unit++) {
                if (n_rows < K_PANEL)
                        memset(u, 0, sizeof(u));
                for (unsigned r = 0; r < n_rows; r++) {
                        const uint8_t *block = src + r * row_bytes + (size_t)unit * k_type_bytes(t);
                        put_head(l, block, r, dst + (size_t)unit * l->head);
                        k_codes_get(t, block, &c);
                        if (l->lut)
                                for (unsigned i = 0; i < l->unit; i++)
                                        u[r][i] = inverse[(uint8_t)c.q[i]];
                        else
                                for (unsigned i = 0; i < l->unit; i++)
                                        u[r][i] = (uint8_t)(c.q[i] + center);
                }
                put_codes(l, u, codes + (size_t)unit * l->codes);
        }
}

static void repack_floats(uint32_t width, uint32_t cols, uint32_t n_rows, const uint8_t *src, uint8_t *dst) {
        if (n_rows < K_PANEL)
                memset(dst, 0, (size_t)K_PANEL * cols * width);
        for (uint32_t i = 0; i < cols; i++)
                for (unsigned r = 0; r < n_rows; r++)
                        memcpy(dst + ((size_t)i * K_PANEL + r) * width, src + ((size_t)r * cols + i) * width, width);
}

int k_cpu_repack(enum k_type t, enum k_layout layout, uint32_t rows, uint32_t cols, const void *src, void *dst) {
        const uint8_t *s = src;
        uint8_t *d = dst;
        size_t row_bytes, panel;

        if (!k_type_row_bytes(t, cols, &row_bytes))
                return -EINVAL;
        if (layout == K_LAYOUT_FILE) {
                memcpy(dst, src, row_bytes * rows);
                return 0;
        }
        if (layout != K_LAYOUT_CPU || !layouts[t].present)
                return -EINVAL;
        panel = k_layout_panel_bytes(t, cols);
        for (uint32_t r = 0; r < rows; r += K_PANEL, s += K_PANEL * row_bytes, d += panel) {
                uint32_t n = MIN(rows - r, K_PANEL);
                if (layouts[t].bits == 0)
                        repack_floats(k_type_bytes(t), cols, n, s, d);
                else
                        repack_panel(t, cols, n, row_bytes, s, d);
        }
        return 0;
}

void k_layout_codes(enum k_type t, const void *data, uint32_t cols, uint32_t row, uint32_t unit, struct k_codes *c) {
        const struct k_layout_type *l = &layouts[t];
        const uint8_t *panel = (const uint8_t *)data + row / K_PANEL * k_layout_panel_bytes(t, cols);
        const uint8_t *codes = panel + k_layout_codes_off(t, cols) + (size_t)unit * l->codes;
        int center = l->bits == 8 ? 0 : k_codes_traits(t)->center;
        unsigned r = row % K_PANEL;
        uint8_t block[256] = { 0 };

        get_head(l, panel + (size_t)unit * l->head, r, block);
        k_codes_head(t, block, c);
        for (unsigned i = 0; i < l->unit; i++) {
                unsigned u = get_code(l, codes, r, i);
                c->q[i] = (int8_t)(l->lut ? l->lut[u] : (int)u - center);
        }
}
