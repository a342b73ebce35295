/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-check [PART] [--exact] [--portable] [--host-launches] [--tiny] [--share K/N] [--verbose]: see check.h; --share: the K-th of N
 * processes that divide the cases, from 1; --device only says what there is. Exit status 77 where there is no device, with the reason. */
#include "check.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { GUARD = 64 };

uint32_t rnd(uint32_t *seed) {
        *seed = *seed * 1664525 + 1013904223;
        return *seed >> 8;
}

float rnd_float(uint32_t *seed) {
        return (float)rnd(seed) / 8388608.0f - 1.0f;
}

static void *must(void *p) {
        if (!p) {
                fprintf(stderr, "gpu-check: out of memory\n");
                exit(70);
        }
        return p;
}

float *random_floats(size_t n, uint32_t seed) {
        float *p = must(h_malloc(n * sizeof(float)));
        for (size_t i = 0; i < n; i++)
                p[i] = rnd_float(&seed) * (i % 61 == 3 ? 4.0f : 1.0f);
        return p;
}

static void *device(struct k_dev *d, const void *host, size_t bytes) {
        void *p = must(d->ops->mem_alloc(d, bytes));
        if (host && d->ops->upload(d, p, host, bytes) < 0) {
                fprintf(stderr, "gpu-check: upload: %s\n", d->ops->last_error(d));
                exit(70);
        }
        return p;
}

struct pair both(struct rig *r, const void *host, size_t bytes) {
        return (struct pair){ device(r->cpu, host, bytes), device(r->gpu, host, bytes), bytes, false };
}

struct pair both_poison(struct rig *r, size_t floats) {
        float *p = must(h_malloc((floats + GUARD) * sizeof(float)));
        struct pair ret;
        for (size_t i = 0; i < floats + GUARD; i++)
                p[i] = i < floats ? NAN : 12345.0f;
        ret = both(r, p, (floats + GUARD) * sizeof(float));
        free(p);
        ret.guarded = true;
        return ret;
}

void both_free(struct rig *r, struct pair *p) {
        r->cpu->ops->mem_free(r->cpu, p->c);
        r->gpu->ops->mem_free(r->gpu, p->g);
        *p = (struct pair){ 0 };
}

/* So many are made, in blocks; behind them come the same in another order, or large matrices would take most of a run. */
enum { DIFFERENT_WEIGHTS = 1 << 19 };

static void random_blocks(enum k_type t, size_t n_weights, uint8_t *dst, uint32_t seed) {
        const uint32_t block = k_type_block(t), bytes = k_type_bytes(t);
        const uint8_t *made = dst;
        float v[256];

        for (size_t i = 0; i < n_weights; i += block, dst += bytes) {
                if (block > 1 && i >= DIFFERENT_WEIGHTS) {
                        memcpy(dst, made + (size_t)(rnd(&seed) % (DIFFERENT_WEIGHTS / block)) * bytes, bytes);
                        continue;
                }
                if (block == 1) {
                        float f = rnd_float(&seed);
                        k_encode(t, &f, dst, 1);
                        continue;
                }
                for (float top = 0; !(top > 1e-2f && top < 8);) {
                        top = 0;
                        for (uint32_t b = 0; b < bytes; b++)
                                dst[b] = (uint8_t)(rnd(&seed) >> 7);
                        k_decode(t, dst, v, block);
                        for (uint32_t k = 0; k < block; k++)
                                top = isfinite(v[k]) ? fmaxf(top, fabsf(v[k])) : 1e9f;
                }
        }
}

static void *pack(struct k_dev *d, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool embedding, const uint8_t *file,
                  size_t file_bytes, struct k_weight *w) {
        enum k_layout l = d->ops->layout_pick(t, rows, cols, embedding);
        size_t one = d->ops->layout_bytes(t, l, rows, cols), stride = (one + 255) & ~(size_t)255;
        uint8_t *host = must(h_aligned_alloc(256, stride * n_expert));
        void *mem;

        for (uint32_t e = 0; e < n_expert; e++)
                if (d->ops->repack(t, l, rows, cols, file + e * file_bytes, host + e * stride) < 0)
                        exit(70);
        mem = device(d, host, stride * n_expert);
        free(host);
        *w = (struct k_weight){ .type = t, .layout = l, .rows = rows, .cols = cols, .n_expert = n_expert, .expert_stride = stride, .data = mem };
        return mem;
}

int matrix_new(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool embedding, uint32_t seed,
               struct matrix *ret) {
        size_t row;
        if (!k_type_row_bytes(t, cols, &row))
                return -1;
        uint8_t *file = must(h_malloc(row * rows * n_expert));
        random_blocks(t, (size_t)rows * cols * n_expert, file, seed);
        matrix_of(r, t, rows, cols, n_expert, embedding, file, ret);
        free(file);
        return 0;
}

void matrix_of(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool embedding, const uint8_t *file,
               struct matrix *ret) {
        size_t row = 0;
        k_type_row_bytes(t, cols, &row);
        ret->mem_c = pack(r->cpu, t, rows, cols, n_expert, embedding, file, row * rows, &ret->c);
        ret->mem_g = pack(r->gpu, t, rows, cols, n_expert, embedding, file, row * rows, &ret->g);
}

/* Bytes whose bits 6 (f16) or 7 (exponent) say that a block's scale is 2 or more. */
static void tame(enum k_type t, uint8_t *block) {
        switch (t) {
        case K_Q4_0: case K_Q8_0:
        case K_IQ2_XXS: case K_IQ2_XS: case K_IQ2_S: case K_IQ3_XXS: case K_IQ3_S: case K_IQ1_S: block[1] &= 0xbf; break;
        case K_IQ1_M: block[55] &= 0xbf; break;
        case K_MXFP4: block[0] &= 0x7f; break;
        case K_Q4_K: block[1] &= 0xbf; block[3] &= 0xbf; break;
        case K_Q6_K: block[209] &= 0xbf; break;
        case K_TQ2_0: block[65] &= 0xbf; break;
        case K_TQ1_0: block[53] &= 0xbf; break;
        default: break;
        }
}

int matrix_twins(struct rig *r, enum k_type t, uint32_t rows, uint32_t cols, uint32_t n_expert, bool wild, uint32_t seed, struct matrix *ret,
                 struct matrix *twin) {
        const uint32_t block = k_type_block(t), bytes = k_type_bytes(t);
        const size_t n = (size_t)rows * cols * n_expert;
        size_t row;

        if (!k_type_row_bytes(t, cols, &row))
                return -1;
        uint8_t *file = must(h_malloc(row * rows * n_expert)), *half = must(h_malloc(n * 2));
        for (size_t i = 0, b = 0; i < n; i += block, b += bytes) {
                float v[256];
                for (uint32_t k = 0; k < bytes; k++)
                        file[b + k] = (uint8_t)(rnd(&seed) >> 7);
                if (!wild || i / block % 3)
                        tame(t, file + b);
                k_decode(t, file + b, v, block);
                for (uint32_t k = 0; k < block; k++)
                        v[k] = fminf(fmaxf(v[k], -65504.0f), 65504.0f);
                k_encode(K_F16, v, half + 2 * i, block);
        }
        matrix_of(r, t, rows, cols, n_expert, false, file, ret);
        matrix_of(r, K_F16, rows, cols, n_expert, false, half, twin);
        free(file);
        free(half);
        return 0;
}

void matrix_free(struct rig *r, struct matrix *m) {
        r->cpu->ops->mem_free(r->cpu, m->mem_c);
        r->gpu->ops->mem_free(r->gpu, m->mem_g);
}

struct acts acts_new(struct rig *r, const float *host, uint32_t n, uint32_t cols) {
        struct acts a;
        size_t qc = r->cpu->ops->act_q_bytes(n, cols), qg = r->gpu->ops->act_q_bytes(n, cols);
        memset(&a, 0, sizeof(a));
        a.f = host ? both(r, host, (size_t)n * cols * sizeof(float)) : both_poison(r, (size_t)n * cols);
        a.q.c = qc ? device(r->cpu, NULL, qc) : NULL;
        a.q.g = qg ? device(r->gpu, NULL, qg) : NULL;
        a.c = (struct k_act){ .f = a.f.c, .q = a.q.c, .cols = cols };
        a.g = (struct k_act){ .f = a.f.g, .q = a.q.g, .cols = cols };
        return a;
}

void acts_free(struct rig *r, struct acts *a) {
        both_free(r, &a->f);
        both_free(r, &a->q);
}

float *fetch(struct rig *r, const void *g, size_t floats) {
        float *p = must(h_malloc(floats * sizeof(float)));
        if (r->gpu->ops->download(r->gpu, p, g, floats * sizeof(float)) < 0) {
                printf("FAIL  %s\n", r->gpu->ops->last_error(r->gpu));
                exit(1);
        }
        return p;
}

void expect(struct rig *r, bool ok, const char *fmt, ...) {
        va_list ap;
        if (ok) {
                r->passed++;
                if (!r->verbose)
                        return;
        } else {
                r->failed++;
        }
        printf(ok ? "ok    " : "FAIL  ");
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf("\n");
        fflush(stdout);
}

bool compare(struct rig *r, const char *what, struct pair p, uint32_t n, uint32_t cols, size_t stride, double limit) {
        const float *c = p.c;
        float *g = fetch(r, p.g, p.bytes / sizeof(float));
        double diff = 0, norm = 0;
        size_t bad = SIZE_MAX;
        bool guard = true, ok, guarded = p.guarded;

        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < cols; k++) {
                        size_t at = i * stride + k;
                        double e = (double)g[at] - c[at];
                        if (!isfinite(g[at]) && bad == SIZE_MAX)
                                bad = at;
                        diff += e * e;
                        norm += (double)c[at] * c[at];
                }
        for (size_t i = guarded ? p.bytes / sizeof(float) - GUARD : SIZE_MAX; i < p.bytes / sizeof(float); i++)
                guard = guard && g[i] == 12345.0f;
        diff = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
        ok = diff <= limit && bad == SIZE_MAX && guard;
        if (bad != SIZE_MAX)
                expect(r, false, "%s: value %zu (row %zu, column %zu) is %g", what, bad, bad / stride, bad % stride, (double)g[bad]);
        else
                expect(r, ok, "%s: |gpu - cpu| / |cpu| = %.2e, limit %.0e%s", what, diff, limit, guard ? "" : "; wrote behind its result");
        free(g);
        return ok;
}

static const struct { const char *name; void (*run)(struct rig *); } parts[] = {
        { "linear", check_linear }, { "rows", check_rows }, { "attention", check_attention }, { "recurrent", check_recurrent },
        { "moe", check_moe }, { "memory", check_memory }, { "sample", check_sample }, { "tune", check_tune }, { "loop", check_loop },
};

/* A wild address ends the context; the error names the kernel's place in the source. Nothing can follow. */
static int check_fault(struct rig *r) {
        uint32_t token = 0, seq = 0;
        int32_t pos = 0;
        struct k_batch b = { .n = 1, .n_d = 1, .n_seq = 1, .token = &token, .pos = &pos, .seq = &seq };
        struct k_act x = { .f = device(r->gpu, NULL, 512 * sizeof(float)), .cols = 512 }, out = { .f = (float *)4096, .cols = 512 };
        struct k_norm_args n = { .x = &x, .kind = K_NORM_RMS, .eps = 1e-5f, .out_scale = 1, .out = &out };
        const struct k_ops *ops = r->gpu->ops;
        int e = ops->batch_begin(r->gpu, &b);

        if (e == 0)
                e = ops->norm(r->gpu, &b, &n);
        if (e == 0)
                e = ops->batch_end(r->gpu, &b);
        if (e == 0)
                e = ops->sync(r->gpu);
        printf("%d: %s\n", e, ops->last_error(r->gpu));
        expect(r, e == -EIO && strstr(ops->last_error(r->gpu), "rows.cu:"), "a fault names its kernel");
        expect(r, ops->sync(r->gpu) == -EIO && ops->norm(r->gpu, &b, &n) == -EIO, "a lost device stays lost");
        printf("%u passed, %u failed, 0 skipped\n", r->passed, r->failed);
        return r->failed ? 1 : 0;
}

int main(int argc, char **argv) {
        struct k_cpu_options oc = { .isa = K_ISA_AUTO, .exact = true }, oi = { .isa = K_ISA_AUTO };
        struct rig r = { 0 };
        const char *part = NULL;
        bool device_only = false;
        bool fault = false;
        struct k_cuda_options og = { 0 };
        char why[256];
        int e, n = 0;

        for (int i = 1; i < argc; i++) {
                if (strcmp(argv[i], "--device") == 0)
                        device_only = true;
                else if (strcmp(argv[i], "--verbose") == 0)
                        r.verbose = true;
                else if (strcmp(argv[i], "--fault") == 0)
                        fault = true;
                else if (strcmp(argv[i], "--portable") == 0)
                        og.variant = K_CUDA_VARIANT_PORTABLE;
                else if (strcmp(argv[i], "--tiny") == 0)
                        r.tiny = true;
                else if (strcmp(argv[i], "--exact") == 0)
                        og.exact = r.exact = true;
                else if (strcmp(argv[i], "--host-launches") == 0)
                        og.host_launches = r.host_launches = true;
                else if (strcmp(argv[i], "--share") == 0) {
                        if (i + 1 == argc || sscanf(argv[++i], "%u/%u%n", &r.share, &r.shares, &n) != 2 || argv[i][n] || strchr(argv[i], '-') || r.share < 1 ||
                            r.share > r.shares) {
                                fprintf(stderr, "gpu-check: --share is K/N, from 1/N to N/N\n");
                                return 64;
                        }
                        r.share--;
                }
                else
                        part = argv[i];
        }
        e = k_cuda_open(&og, &r.gpu, why);
        if (e < 0) {
                printf("skipped: %s\n", why);
                return 77;
        }
        printf("%s\n", r.gpu->ops->describe(r.gpu));
        if (device_only) {
                r.gpu->ops->close(r.gpu);
                return 0;
        }
        if (fault)
                return check_fault(&r);
        if (k_cpu_open(&oc, &r.cpu) < 0 || k_cpu_open(&oi, &r.int8) < 0)
                return 70;
        if (r.cpu->ops->reserve(r.cpu, 512, 16384, 64, 4096) < 0 || r.int8->ops->reserve(r.int8, 512, 16384, 64, 4096) < 0 ||
            r.gpu->ops->reserve(r.gpu, 512, 16384, 64, 4096) < 0) {
                printf("FAIL  reserve: %s\n", r.gpu->ops->last_error(r.gpu));
                return 1;
        }
        bool known = !part;
        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                known = known || strcmp(part, parts[i].name) == 0;
        if (!known) {
                fprintf(stderr, "gpu-check: \"%s\" is no part; there are:", part);
                for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                        fprintf(stderr, " %s", parts[i].name);
                fprintf(stderr, "\n");
                return 64;
        }
        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                if (!part || strcmp(part, parts[i].name) == 0) {
                        uint32_t p = r.passed, f = r.failed;
                        parts[i].run(&r);
                        printf("%-10s %u passed, %u failed\n", parts[i].name, r.passed - p, r.failed - f);
                        fflush(stdout);
                }
        printf("%u passed, %u failed, 0 skipped\n", r.passed, r.failed);
        r.gpu->ops->close(r.gpu);
        r.cpu->ops->close(r.cpu);
        r.int8->ops->close(r.int8);
        return r.failed ? 1 : 0;
}
