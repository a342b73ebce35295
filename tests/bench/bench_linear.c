/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the CPU products per type: decode (one row, weights from memory:
 * enough copies of the matrix that none is in cache) in GB/s of weight bytes,
 * prefill (many rows) in GFLOP/s, two operations per weight and row. Best of
 * several rounds; no test, prints a table.
 *
 *   bench_linear [-i scalar|avx2|avx512|amx] [-t threads] [-r rows] [-c cols] [-n rows,rows,...] [-m MiB of weights] [-s seconds] [-u] [-p] [TYPE...]
 *
 * -p: weights as the card has them, as in a model that both compute.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "kernels/cuda/layout.h"
#include "kernels/kernels.h"

struct options {
        enum k_isa isa;
        uint32_t threads, rows, cols, mib;
        uint32_t batch[8], n_batch, most; /* widths of prefill; the widest */
        double seconds;
        bool cpu_time, planes;
};

/* With one thread, processor time is the steadier clock on a busy machine (-u). */
static double now(bool cpu_time) {
        struct timespec ts;
        clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Random codes with small scales; a block's scale fields are the same in all types only in that 0x2000 is a sane half. */
static void fill(enum k_type t, size_t n_blocks, uint8_t *dst) {
        uint32_t seed = 1, bytes = k_type_bytes(t);
        float v[256];
        for (size_t b = 0; b < n_blocks; b++, dst += bytes) {
                if (b >= 256) { /* then repeat */
                        memcpy(dst, dst - (size_t)256 * bytes, bytes);
                        continue;
                }
                bool ok = false;
                while (!ok) {
                        for (uint32_t i = 0; i < bytes; i++)
                                dst[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
                        k_decode(t, dst, v, k_type_block(t));
                        ok = true;
                        for (uint32_t i = 0; i < k_type_block(t); i++)
                                ok = ok && v[i] > -1e4f && v[i] < 1e4f;
                }
        }
}

/* Seconds of one product of n rows, best of the rounds that fit; 'copies' matrices in turn. */
static double best(struct k_dev *dev, const struct options *o, const struct k_weight *w, uint32_t copies, struct k_act *x,
                   uint32_t n, float *y) {
        double end = now(o->cpu_time) + o->seconds, least = 1e9;
        for (uint32_t i = 0; i < 3 || now(o->cpu_time) < end; i++) {
                double t = now(o->cpu_time);
                for (uint32_t c = 0; c < copies; c++) {
                        struct k_linear_args a = { .x = x, .n_out = 1, .n_rows = n };
                        a.out[0].w = &w[c];
                        a.out[0].y = y;
                        a.out[0].y_stride = w->rows;
                        x->q_kind = 0;
                        if (dev->ops->linear(dev, NULL, &a) < 0) {
                                fprintf(stderr, "linear: %s\n", dev->ops->last_error(dev));
                                exit(1);
                        }
                }
                t = (now(o->cpu_time) - t) / copies;
                least = t < least ? t : least;
        }
        return least;
}

static void bench_type(struct k_dev *dev, const struct options *o, enum k_type t) {
        const struct k_ops *ops = dev->ops;
        enum k_layout layout = o->planes ? K_LAYOUT_CUDA : ops->layout_pick(t, o->rows, o->cols, false);
        size_t row, bytes = o->planes ? cuda_layout_bytes(t, layout, o->rows, o->cols) : ops->layout_bytes(t, layout, o->rows, o->cols);
        uint32_t copies;

        if (t == K_I32 || !bytes || !k_type_row_bytes(t, o->cols, &row))
                return;
        bytes = (bytes + 255) & ~(size_t)255; /* where each copy begins */
        copies = (uint32_t)(((size_t)o->mib << 20) / bytes) + 1;
        copies = copies > 64 ? 64 : copies;
        uint8_t *file = h_malloc(row * o->rows), *data = ops->mem_alloc(dev, bytes * copies);
        float *xf = ops->mem_alloc(dev, (size_t)o->most * o->cols * 4), *y = ops->mem_alloc(dev, (size_t)o->most * o->rows * 4);
        void *xq = ops->mem_alloc(dev, ops->act_q_bytes(o->most, o->cols));
        struct k_weight w[64];

        if (!file || !data || !xf || !y || !xq) {
                fprintf(stderr, "out of memory\n");
                exit(1);
        }
        fill(t, (size_t)o->rows * o->cols / k_type_block(t), file);
        double repack = now(o->cpu_time);
        if (o->planes)
                (void)cuda_layout_repack(t, layout, o->rows, o->cols, file, data);
        else
                ops->repack(t, layout, o->rows, o->cols, file, data);
        repack = now(o->cpu_time) - repack;
        for (uint32_t c = 0; c < copies; c++) {
                if (c)
                        memcpy(data + c * bytes, data, bytes);
                w[c] = (struct k_weight){ .type = t, .layout = layout, .rows = o->rows, .cols = o->cols, .data = data + c * bytes };
        }
        for (size_t i = 0; i < (size_t)o->most * o->cols; i++)
                xf[i] = (float)(i * 2654435761u % 2048) / 1024 - 1;

        struct k_act x = { .f = xf, .q = xq, .cols = o->cols };
        double one = best(dev, o, w, copies, &x, 1, y), four = best(dev, o, w, copies, &x, 4, y);
        double flop = 2.0 * o->rows * o->cols;
        printf("%-8s %8.2f GB/s %8.1f us %8.1f GFLOP/s (4 rows)", k_type_name(t), (double)bytes / one * 1e-9, one * 1e6, flop * 4 / four * 1e-9);
        for (uint32_t i = 0; i < o->n_batch; i++)
                printf(" %8.1f GFLOP/s (%u rows)", flop * o->batch[i] / best(dev, o, w, 1, &x, o->batch[i], y) * 1e-9, o->batch[i]);
        printf(" repack %.2f GB/s\n", (double)bytes / repack * 1e-9);
        fflush(stdout);
        free(file);
        ops->mem_free(dev, data);
        ops->mem_free(dev, xf);
        ops->mem_free(dev, y);
        ops->mem_free(dev, xq);
}

int main(int argc, char **argv) {
        struct options o = { .rows = 4096, .cols = 4096, .batch = { 512 }, .n_batch = 1, .mib = 160, .seconds = 0.5 };
        struct k_dev *dev;
        int c;

        while ((c = getopt(argc, argv, "i:t:r:c:n:m:s:up")) != -1)
                switch (c) {
                case 'i':
                        o.isa = !strcmp(optarg, "scalar") ? K_ISA_SCALAR : !strcmp(optarg, "avx2") ? K_ISA_AVX2 :
                                !strcmp(optarg, "avx512") ? K_ISA_AVX512 : K_ISA_AMX;
                        break;
                case 't': o.threads = (uint32_t)atoi(optarg); break;
                case 'r': o.rows = (uint32_t)atoi(optarg); break;
                case 'c': o.cols = (uint32_t)atoi(optarg); break;
                case 'n':
                        o.n_batch = 0;
                        for (char *at = optarg, *end; o.n_batch < ELEMENTSOF(o.batch) && *at; at = *end ? end + 1 : end) {
                                o.batch[o.n_batch++] = (uint32_t)strtoul(at, &end, 10);
                                if (end == at)
                                        return 2;
                        }
                        break;
                case 'u': o.cpu_time = true; break;
                case 'p': o.planes = true; break;
                case 'm': o.mib = (uint32_t)atoi(optarg); break;
                case 's': o.seconds = atof(optarg); break;
                default: return 2;
                }
        o.most = 4;
        for (uint32_t i = 0; i < o.n_batch; i++)
                o.most = MAX(o.most, o.batch[i]);
        struct k_cpu_options cpu = { .threads = o.threads, .isa = o.isa };
        int r = k_cpu_open(&cpu, &dev);
        if (r < 0) {
                fprintf(stderr, "can't open the device: %s\n", strerror(-r));
                return 1;
        }
        printf("%s, %ux%u\n", dev->ops->describe(dev), o.rows, o.cols);
        for (unsigned t = 0; t < _K_TYPE_MAX; t++) {
                bool wanted = optind == argc;
                for (int i = optind; i < argc; i++)
                        wanted = wanted || !strcasecmp(argv[i], k_type_name((enum k_type)t));
                if (wanted)
                        bench_type(dev, &o, (enum k_type)t);
        }
        dev->ops->close(dev);
        return 0;
}
