/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --calibrate DIR: measures a device, prints what was found and writes its
 * profile into DIR, whole or not at all. No model and no request is near.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "daemon/worker/worker.h"
#include "engine/calibrate.h"

static int write_all(int fd, const char *p, size_t n) {
        while (n) {
                ssize_t w = write(fd, p, n);

                if (w < 0 && errno == EINTR)
                        continue;
                if (w < 0)
                        return -errno;
                p += w;
                n -= (size_t)w;
        }
        return 0;
}

/* Under another name first: a reader sees the old profile or the new one. */
static int save(const char *path, const struct buf *text) {
        _cleanup_(freep) char *part = NULL;
        int fd, r;

        if (asprintf(&part, "%s.XXXXXX", path) < 0) {
                part = NULL;
                return -ENOMEM;
        }
        fd = mkostemp(part, O_CLOEXEC);
        if (fd < 0)
                return -errno;
        r = write_all(fd, text->data, text->len);
        if (r == 0 && fchmod(fd, 0644) < 0)
                r = -errno;
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        close(fd);
        if (r == 0 && rename(part, path) < 0)
                r = -errno;
        if (r < 0)
                (void)unlink(part);
        return r;
}

/* ---- the table ---- */

static void print_rate(const char *what, double v) {
        if (v > 0)
                printf("%-34s %9.1f GB/s\n", what, v * 1e-9);
}

static void print_products(const struct profile *p) {
        puts("\nproducts     generated, GB/s of weights by rows at once    prompt");
        printf("%-12s", "type");
        for (uint32_t i = 0; i < p->n_rate && p->rate[i].type == p->rate[0].type; i++)
                if (p->rate[i].prompt)
                        printf("%10s %u rows, TFLOP/s", "", p->rate[i].batch);
                else
                        printf("%10u", p->rate[i].batch);
        for (uint32_t i = 0; i < p->n_rate; i++) {
                const struct profile_rate *r = &p->rate[i];

                if (i == 0 || r->type != p->rate[i - 1].type)
                        printf("\n%-12s", k_type_name(r->type));
                if (r->prompt)
                        printf("%18.3f", r->flop_s * 1e-12);
                else
                        printf("%10.1f", r->bytes_s * 1e-9);
        }
        putchar('\n');
}

/* Where there was something to choose. */
static void print_choices(const struct profile *p) {
        if (p->n_choice)
                printf("\n%-9s %-9s %7s %7s %5s %12s   %-16s %12s %7s\n", "launches", "type", "rows", "cols", "batch", "plain, us", "chosen", "us", "");
        for (uint32_t i = 0; i < p->n_choice; i++) {
                const struct profile_choice *c = &p->choice[i];

                printf("%-9s %-9s %7u %7u %5u %12.2f   %-16s %12.2f %6.2fx%s%s\n", k_tune_family_name(c->key.family), k_type_name(c->key.type),
                       c->key.rows, c->key.cols, c->key.batch, c->plain_s * 1e6, c->variant, c->chosen_s * 1e6,
                       c->chosen_s > 0 ? c->plain_s / c->chosen_s : 1, c->left_out[0] ? "  left out, other bits: " : "", c->left_out);
        }
}

static void print_table(const struct profile *p) {
        printf("%s\n", p->key.card);
        if (p->key.driver[0])
                printf("driver %s, %s\n", p->key.driver, p->key.uuid);
        printf("build %s\n\n", p->key.build);
        print_rate("memory, read", p->memory_read);
        print_rate("host to device", p->upload);
        print_rate("device to host", p->download);
        print_rate("host memory, read by the device", p->host_read);
        for (uint32_t i = 0; i < p->n_cpu; i++)
                printf("host memory, read by %4u thread%s %9.1f GB/s\n", p->cpu[i].threads, p->cpu[i].threads == 1 ? "  " : "s ",
                       p->cpu[i].bytes_s * 1e-9);
        if (p->launch_s > 0)
                printf("%-34s %9.2f us\n", "launch of a kernel", p->launch_s * 1e6);
        print_products(p);
        print_choices(p);
}

/* ---- */

static int open_device(const struct log *log, const struct calibrate_wish *w, struct eng_device **ret, bool *ret_cuda, struct h_error *err) {
        struct eng_device_options o = { .backend = ENG_CUDA, .threads = w->threads };
        struct h_error none = {};
        int r = -ENODEV;

        *ret_cuda = w->backend != CALIBRATE_CPU;
        if (*ret_cuda) {
                r = eng_device_open(&o, ret, &none);
                if (r < 0 && w->backend == CALIBRATE_ANY)
                        fprintf(stderr, "%s: the processor is measured: %s\n", log->program, none.message);
                else if (r < 0)
                        *err = none;
        }
        if (r < 0 && w->backend != CALIBRATE_CUDA) {
                *ret_cuda = false;
                o.backend = ENG_CPU;
                r = eng_device_open(&o, ret, err);
        }
        return r;
}

/* "Q4_0,Q6_K": bits of them. */
static bool parse_types(const char *list, uint64_t *ret) {
        char name[32];
        enum k_type t;

        for (const char *p = list; *p;) {
                size_t n = strcspn(p, ",");

                if (n == 0 || n >= sizeof(name))
                        return false;
                memcpy(name, p, n);
                name[n] = 0;
                if (!k_type_parse(name, &t) || t == K_I32)
                        return false;
                *ret |= 1ull << t;
                p += n;
                if (*p == ',' && !*++p)
                        return false;
        }
        return *list;
}

static void on_progress(void *ud, const char *what) {
        if (isatty(STDERR_FILENO))
                fprintf(stderr, "\r\033[Kmeasuring %s", what);
        (void)ud;
}

int worker_calibrate(const struct log *log, const struct calibrate_wish *w) {
        _cleanup_(freep) struct profile *p = h_new0(struct profile, 1);
        _cleanup_(buf_free) struct buf text = {};
        _cleanup_(freep) char *path = NULL, *as_dir = NULL;
        struct eng_calibrate o = { .quick = w->quick, .progress = on_progress };
        struct eng_device *d = NULL;
        struct h_error err = {};
        bool cuda;
        int r;

        if (w->types && !parse_types(w->types, &o.types)) {
                fprintf(stderr, "%s: --types takes tensor types separated by commas, like Q4_0,Q6_K, not '%s'\n", log->program, w->types);
                return 64;
        }
        r = p ? open_device(log, w, &d, &cuda, &err) : -ENOMEM;

        if (r == 0)
                r = worker_profile_path(w->dir, cuda, &path);
        /* Before minutes of work. The slash: a file is no directory, whoever may write it. */
        if (r == 0 && asprintf(&as_dir, "%s/", w->dir) < 0) {
                as_dir = NULL;
                r = -ENOMEM;
        }
        if (r == 0 && access(as_dir, W_OK | X_OK) < 0)
                r = h_error_set(&err, errno == EACCES ? HEARTH_E_permission : HEARTH_E_io, "%s, where the profile goes: %s; --profile-dir names another "
                                "directory", w->dir, strerror(errno));
        if (r == 0)
                r = eng_device_calibrate(d, &o, p, &err);
        if (isatty(STDERR_FILENO))
                fputs("\r\033[K", stderr);
        if (r == 0)
                r = profile_write(p, &text);
        if (r == 0) {
                r = save(path, &text);
                if (r < 0)
                        r = h_error_set(&err, HEARTH_E_io, "writing %s: %s", path, strerror(-r));
        }
        eng_device_close(d);
        if (r < 0) {
                h_error_from_errno(&err, r, "calibrating");
                fprintf(stderr, "%s: %s\n", log->program, err.message);
                return hearth_code_exit(err.code);
        }
        if (w->json)
                fputs(text.data, stdout);
        else
                print_table(p);
        if (fflush(stdout) != 0)
                return 74;
        fprintf(stderr, "written to %s; %s\n", path,
                w->quick ? "too rough to be used, measure without --quick" : "a daemon uses it from its worker's next start");
        return 0;
}
