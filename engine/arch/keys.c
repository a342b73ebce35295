/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata and tensors for engine/arch with a sticky error: see arch.h. A
 * helper that runs after the first error returns its default and touches
 * nothing, so the error that a user reads is the first one.
 */
#include "engine/arch/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int arch_fail(struct arch_ctx *c, const char *fmt, ...) {
        char buf[400];
        va_list ap;

        if (c->r)
                return c->r;
        va_start(ap, fmt);
        vsnprintf(buf, sizeof(buf), fmt, ap);
        va_end(ap);
        return c->r = h_error_set(c->err, HEARTH_E_model_invalid, "%s", buf);
}

/* "%s.x" for people, with the architecture put in. */
static const char *shown(struct arch_ctx *c, const char *key, char buf[160]) {
        if (strncmp(key, "%s", 2) == 0)
                snprintf(buf, 160, "%s%s", c->d->arch, key + 2);
        else
                snprintf(buf, 160, "%s", key);
        return buf;
}

uint32_t key_u32(struct arch_ctx *c, const char *key, uint32_t def) {
        uint32_t v = def;

        if (!c->r)
                c->r = gguf_u32(c->g, key, def, &v, c->err);
        return c->r ? def : v;
}

uint32_t key_u32_req(struct arch_ctx *c, const char *key) {
        uint32_t v = 0;

        if (!c->r)
                c->r = gguf_u32_req(c->g, key, &v, c->err);
        return c->r ? 0 : v;
}

static uint32_t ranged(struct arch_ctx *c, const char *key, uint32_t v, uint32_t lo, uint32_t hi) {
        char buf[160];

        if (!c->r && (v < lo || v > hi))
                arch_fail(c, "key %s is %u, expected %u to %u", shown(c, key, buf), v, lo, hi);
        return c->r ? lo : v;
}

uint32_t key_range(struct arch_ctx *c, const char *key, uint32_t def, uint32_t lo, uint32_t hi) {
        return ranged(c, key, key_u32(c, key, def), lo, hi);
}

uint32_t key_range_req(struct arch_ctx *c, const char *key, uint32_t lo, uint32_t hi) {
        return ranged(c, key, key_u32_req(c, key), lo, hi);
}

float key_f32(struct arch_ctx *c, const char *key, float def) {
        float v = def;
        char buf[160];

        if (!c->r)
                c->r = gguf_f32(c->g, key, def, &v, c->err);
        if (!c->r && !isfinite(v))
                arch_fail(c, "key %s is not a finite number", shown(c, key, buf));
        return c->r ? def : v;
}

bool key_bool(struct arch_ctx *c, const char *key, bool def) {
        bool v = def;

        if (!c->r)
                c->r = gguf_bool(c->g, key, def, &v, c->err);
        return c->r ? def : v;
}

bool key_present(struct arch_ctx *c, const char *key) {
        return !c->r && gguf_find(c->g, key);
}

bool key_is(struct arch_ctx *c, const char *key, const char *value) {
        struct gguf_str s = { 0 };

        if (c->r || (c->r = gguf_string(c->g, key, &s, c->err)))
                return false;
        if (!s.p || !value)
                return !s.p && !value;
        return s.n == strlen(value) && memcmp(s.p, value, s.n) == 0;
}

/* Names hold at most one %u, the layer; every format is a constant of this folder. */
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static const char *named(const char *fmt, uint32_t layer, char buf[96]) {
        snprintf(buf, 96, fmt, layer);
        return buf;
}

static void any_mat(struct arch_ctx *c, enum tensor_need need, struct k_weight *w, uint32_t rows, uint32_t cols, uint32_t n,
                    const char *fmt, uint32_t layer) {
        char name[96];

        if (!c->r)
                c->r = tensors_matrix(c->t, need, rows, cols, n, w, c->err, "%s", named(fmt, layer, name));
}

void mat(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, const char *fmt, uint32_t layer) {
        any_mat(c, TENSOR_REQUIRED, w, rows, cols, 0, fmt, layer);
}

void mat_opt(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, const char *fmt, uint32_t layer) {
        any_mat(c, TENSOR_OPTIONAL, w, rows, cols, 0, fmt, layer);
}

void mats(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, uint32_t n, const char *fmt, uint32_t layer) {
        any_mat(c, TENSOR_REQUIRED, w, rows, cols, n, fmt, layer);
}

void mats_opt(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, uint32_t n, const char *fmt,
              uint32_t layer) {
        any_mat(c, TENSOR_OPTIONAL, w, rows, cols, n, fmt, layer);
}

void vec(struct arch_ctx *c, const float **v, uint64_t n, const char *fmt, uint32_t layer) {
        char name[96];

        if (!c->r)
                c->r = tensors_vector(c->t, TENSOR_REQUIRED, n, v, c->err, "%s", named(fmt, layer, name));
}

void vec_opt(struct arch_ctx *c, const float **v, uint64_t n, const char *fmt, uint32_t layer) {
        char name[96];

        if (!c->r)
                c->r = tensors_vector(c->t, TENSOR_OPTIONAL, n, v, c->err, "%s", named(fmt, layer, name));
}

const float *host_opt(struct arch_ctx *c, uint64_t n, const char *fmt, uint32_t layer) {
        const float *v = NULL;
        char name[96];

        if (!c->r)
                c->r = tensors_host(c->t, TENSOR_OPTIONAL, n, &v, c->err, "%s", named(fmt, layer, name));
        return c->r ? NULL : v;
}

bool has_tensor(struct arch_ctx *c, const char *fmt, uint32_t layer) {
        uint64_t dim[4];
        char name[96];

        return !c->r && tensors_shape(c->t, dim, "%s", named(fmt, layer, name));
}

bool tensor_dim0(struct arch_ctx *c, const char *fmt, uint32_t layer, uint32_t *ret) {
        uint64_t dim[4];
        char name[96];

        if (c->r || !tensors_shape(c->t, dim, "%s", named(fmt, layer, name)) || dim[0] == 0 || dim[0] > ARCH_MAX_DIM)
                return false;
        *ret = (uint32_t)dim[0];
        return true;
}
