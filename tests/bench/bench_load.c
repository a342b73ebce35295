/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load does to a stream: one model generates token after token while
 * another is loaded beside it and leaves again, as in the worker (a gate keeps
 * context making and freeing apart from steps; uploads run beside them).
 * Prints the time between tokens (median and largest) before, while the weights
 * are uploaded, while the context is made, while the model leaves; the rate of
 * the first upload and of one from memory that was pinned before; and what the
 * driver says is free before and after.
 *
 *     bench_load --stream A.gguf --load B.gguf [--gpu-layers N] [--backend cuda|cpu]
 *
 * Either may be synth:MODEL:TYPE (tests/bench/synth). On the processor nothing is uploaded: that way only proves the program.
 */
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "tests/bench/synth/synth_image.h"

enum phase { PHASE_QUIET, PHASE_UPLOAD, PHASE_CONTEXT, PHASE_BESIDE, PHASE_LEAVE, PHASE_AGAIN, _PHASE_MAX };
static const char *const phase_names[] = { "nothing else", "upload", "context", "it is there", "leaving", "upload, pinned before" };

#define MAX_GAPS 200000

struct bench {
        enum eng_backend backend;
        struct eng_device *device;
        struct eng_context *stream;
        pthread_mutex_t gate;
        _Atomic bool wanted;     /* the loader waits for the gate: it goes first, as in the worker */
        _Atomic enum phase phase;
        _Atomic bool stop;
        double *gap[_PHASE_MAX];
        size_t n[_PHASE_MAX];
        int r; /* the stream's; others look when its thread has ended */
};

static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const struct h_error *err, const char *what) {
        fprintf(stderr, "bench_load: %s: %s\n", what, err->message);
        return 1;
}

static int open_image(enum eng_backend backend, const char *path, struct eng_image **ret) {
        struct eng_image_options io = { .backend = backend };
        struct eng_source src = { .n_fds = 1, .name = path };
        struct h_error err = { 0 };
        int fd = -1, memfd = -1, r;
        uint64_t bytes;

        if (strncmp(path, SYNTH_PREFIX, strlen(SYNTH_PREFIX)) == 0) {
                r = synth_image(path, &io, &memfd, ret, &err);
        } else {
                fd = open(path, O_RDONLY | O_CLOEXEC);
                memfd = memfd_create("model", MFD_CLOEXEC);
                src.fds = &fd;
                r = fd < 0 || memfd < 0 ? h_error_from_errno(&err, -errno, path) : eng_image_build(&src, &io, memfd, &bytes, &err);
                if (r >= 0)
                        r = eng_image_open(memfd, false, ret, &err);
        }
        fd_close(fd);
        fd_close(memfd);
        return r < 0 ? fail(&err, path) : 0;
}

/* Sampled on the device, the next step begun before the last one is finished: as the worker serves a stream. */
static int begin(struct bench *b, eng_seq s, struct h_error *err) {
        static const struct eng_sampling greedy = { .repeat_penalty = 1 };
        static const uint32_t token = 7;
        struct eng_item it = { .seq = s, .tokens = &token, .n = 1, .role = ENG_ROLE_GENERATED, .sampling = &greedy, .want = ENG_WANT_SAMPLE };

        return eng_step_begin(b->stream, &it, 1, err);
}

static void gap_add(struct bench *b, double *last) {
        enum phase p = atomic_load(&b->phase);
        double t = now();

        if (b->n[p] < MAX_GAPS)
                b->gap[p][b->n[p]++] = t - *last;
        *last = t;
}

static void *stream_main(void *arg) {
        struct bench *b = arg;
        struct h_error err = { 0 };
        uint32_t n_ctx = eng_context_limits(b->stream)->n_ctx, ahead = eng_context_ahead(b->stream), flights = 0;
        double last = now();
        eng_seq s;

        b->r = eng_seq_new(b->stream, &s);
        if (b->r)
                h_error_from_errno(&err, b->r, "a sequence");
        while (b->r == 0 && !atomic_load(&b->stop)) {
                struct eng_result res;
                uint32_t kept;
                bool pause;

                while (flights == 0 && atomic_load(&b->wanted))
                        sched_yield();
                pthread_mutex_lock(&b->gate);
                /* Nothing in flight when somebody else wants the device, or the sequence is to be cut. */
                pause = atomic_load(&b->wanted) || eng_seq_len(b->stream, s) + 1 >= n_ctx;
                if (pause && flights == 0) {
                        if (eng_seq_len(b->stream, s) + 1 >= n_ctx)
                                b->r = eng_seq_trim(b->stream, s, 1, &kept);
                } else if (!pause) {
                        b->r = begin(b, s, &err);
                        flights += b->r == 0;
                }
                if (b->r == 0 && flights > (pause ? 0 : ahead)) {
                        b->r = eng_step_finish(b->stream, &res, NULL, &err);
                        flights--;
                        gap_add(b, &last);
                }
                pthread_mutex_unlock(&b->gate);
        }
        if (b->r)
                fail(&err, "a step");
        while (flights-- && eng_step_finish(b->stream, &(struct eng_result){ 0 }, NULL, &err) == 0)
                ;
        return NULL;
}

static int double_compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static void take(struct bench *b) {
        atomic_store(&b->wanted, true);
        pthread_mutex_lock(&b->gate);
        atomic_store(&b->wanted, false);
}

static uint64_t free_now(struct bench *b) {
        uint64_t total = 0, n = 0;
        (void)eng_device_memory(b->device, &total, &n);
        return n;
}

static uint32_t context_of(const struct eng_image *im, uint32_t most) {
        struct eng_model_info info;
        eng_image_info(im, &info);
        return MIN(most, info.n_ctx_train);
}

/* One stay of the other model on the device. */
static int visit(struct bench *b, struct eng_image *im, int32_t layers, enum phase upload) {
        struct eng_limits l = { .n_places = 4, .n_ctx = context_of(im, 2048) };
        struct eng_load load = { .limits = &l, .gpu_layers = layers };
        struct eng_context *c = NULL;
        struct eng_model *m = NULL;
        struct eng_placement pl;
        struct h_error err = { 0 };
        double t0 = now();
        int r = 0;

        atomic_store(&b->phase, upload);
        if (eng_model_load(b->device, im, &load, &m, &err) < 0)
                return fail(&err, "loading");
        eng_model_placement(m, &pl);
        printf("%s: %.2f GB to the device, %.2f GB stay in host memory, %.3f s, of which %.3f s pinning: %.1f GB/s\n", phase_names[upload],
               (double)pl.device_bytes / 1e9, (double)pl.host_bytes / 1e9, now() - t0, (double)pl.pin_us / 1e6,
               pl.upload_us ? (double)pl.device_bytes / 1e3 / (double)pl.upload_us : 0);
        atomic_store(&b->phase, PHASE_CONTEXT);
        take(b);
        if (eng_context_new(m, &l, &c, &err) < 0)
                r = fail(&err, "the context");
        pthread_mutex_unlock(&b->gate);
        atomic_store(&b->phase, PHASE_BESIDE);
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        atomic_store(&b->phase, PHASE_LEAVE);
        take(b);
        eng_context_free(c);
        eng_model_close(m);
        pthread_mutex_unlock(&b->gate);
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        printf("free on the device: %llu bytes\n", (unsigned long long)free_now(b));
        return r;
}

static void report(struct bench *b) {
        for (int p = 0; p < _PHASE_MAX; p++) {
                double *v = b->gap[p];
                size_t n = b->n[p];

                if (n == 0) {
                        printf("%-22s no token within it\n", phase_names[p]);
                        continue;
                }
                qsort(v, n, sizeof(*v), double_compare);
                printf("%-22s %6zu tokens, between tokens: median %.2f ms, largest %.2f ms\n", phase_names[p], n, v[n / 2] * 1e3, v[n - 1] * 1e3);
        }
}

static bool number(const char *text, int32_t *ret) {
        char *end;
        long v = strtol(text, &end, 10);

        *ret = (int32_t)v;
        return end != text && !*end && v >= -1 && v <= INT32_MAX;
}

static int run(struct bench *b, const char *stream, const char *other, int32_t layers) {
        struct eng_limits l = { .n_places = 1 };
        struct eng_device_options o = { .backend = b->backend };
        struct eng_image *a = NULL, *im = NULL;
        struct eng_model *m = NULL;
        struct h_error err = { 0 };
        pthread_t thread;
        int r = open_image(b->backend, stream, &a);

        if (r == 0)
                r = open_image(b->backend, other, &im);
        if (r == 0)
                l.n_ctx = context_of(a, 1024);
        if (r == 0 && (eng_device_open(&o, &b->device, &err) < 0 || eng_model_open(b->device, a, &m, &err) < 0 ||
                       eng_context_new(m, &l, &b->stream, &err) < 0))
                r = fail(&err, "the stream's model");
        if (r == 0) {
                struct timespec second = { .tv_sec = 1 };

                pthread_create(&thread, NULL, stream_main, b);
                nanosleep(&second, NULL);
                printf("free on the device: %llu bytes\n", (unsigned long long)free_now(b));
                r = visit(b, im, layers, PHASE_UPLOAD);
                if (r == 0)
                        r = visit(b, im, layers, PHASE_AGAIN);
                atomic_store(&b->phase, PHASE_QUIET);
                nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
                atomic_store(&b->stop, true);
                pthread_join(thread, NULL);
                report(b);
        }
        eng_context_free(b->stream);
        eng_model_close(m);
        eng_image_close(a);
        eng_image_close(im);
        eng_device_close(b->device);
        return r || b->r;
}

int main(int argc, char **argv) {
        static const struct option longs[] = { { "stream", 1, NULL, 's' }, { "load", 1, NULL, 'l' }, { "gpu-layers", 1, NULL, 'g' },
                                               { "backend", 1, NULL, 'b' }, { 0 } };
        const char *stream = NULL, *other = NULL;
        struct bench b = { .gate = PTHREAD_MUTEX_INITIALIZER, .backend = ENG_CUDA };
        int32_t layers = -1;
        bool bad = false;
        int k, r;

        setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* as the worker does */
        while ((k = getopt_long(argc, argv, "", longs, NULL)) != -1)
                if (k == 's')
                        stream = optarg;
                else if (k == 'l')
                        other = optarg;
                else if (k == 'g')
                        bad |= !number(optarg, &layers);
                else if (k == 'b' && (strcmp(optarg, "cpu") == 0 || strcmp(optarg, "cuda") == 0))
                        b.backend = optarg[1] == 'p' ? ENG_CPU : ENG_CUDA;
                else
                        bad = true;
        if (bad || optind < argc || !stream || !other) {
                fprintf(stderr, "Usage: bench_load --stream A.gguf --load B.gguf [--gpu-layers N] [--backend cuda|cpu]\n");
                return 64;
        }
        for (int p = 0; p < _PHASE_MAX; p++)
                if (!(b.gap[p] = h_new0(double, MAX_GAPS)))
                        return 71;
        r = run(&b, stream, other, layers);
        for (int p = 0; p < _PHASE_MAX; p++)
                free(b.gap[p]);
        return r;
}
