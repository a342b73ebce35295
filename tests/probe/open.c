/* SPDX-License-Identifier: Apache-2.0 */
/* From a file's name to a context: the image goes into a memfd, as in the daemon. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/calibrate.h"
#include "engine/image.h"
#include "engine/sample.h"
#include "probe.h"
#include "tests/bench/synth/synth_image.h"

double now_seconds(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

uint64_t peak_bytes(void) {
        struct rusage u;
        getrusage(RUSAGE_SELF, &u);
        return (uint64_t)u.ru_maxrss << 10;
}

int probe_fail(const struct h_error *err, int r) {
        if (err && err->code != HEARTH_OK) {
                fprintf(stderr, "hearth-probe: %s: %s\n", hearth_code_name(err->code), err->message);
                return hearth_code_exit(err->code) ? hearth_code_exit(err->code) : 70;
        }
        fprintf(stderr, "hearth-probe: %s\n", r < 0 ? strerror(-r) : "no pages");
        return 70;
}

/* "dir/name-00002-of-00003.gguf" beside the first part. */
static int open_part(void *ud, uint32_t part, uint32_t n_parts, int *ret_fd, struct h_error *err) {
        const char *first = ud, *mark = strstr(first, "-00001-of-");
        char path[4096];
        int fd;

        if (!mark)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   "%s is part 1 of %u, but its name has no \"-00001-of-\"", first, n_parts);
        snprintf(path, sizeof(path), "%.*s-%05u-of-%s", (int)(mark - first), first, part + 1, mark + 10);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return h_error_set(err, HEARTH_E_model_not_found, "part %u of %u: %s: %s", part + 1, n_parts, path,
                                   strerror(errno));
        *ret_fd = fd;
        return 0;
}

static int fill(const struct options *o, struct probe *p, struct h_error *err) {
        struct eng_image_options io = { .backend = o->backend };
        struct eng_source src = { .n_fds = 1, .name = o->model, .open_part = open_part, .ud = (void *)o->model };
        uint64_t bytes;
        int fd, r;

        if (strncmp(o->model, SYNTH_PREFIX, strlen(SYNTH_PREFIX)) == 0)
                return synth_image(o->model, &io, &p->memfd, &p->image, err);
        fd = open(o->model, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return h_error_set(err, HEARTH_E_model_not_found, "%s: %s", o->model, strerror(errno));
        src.fds = &fd;
        p->memfd = memfd_create("model", MFD_CLOEXEC);
        r = p->memfd < 0 ? h_error_from_errno(err, -errno, "memfd_create")
                         : eng_image_check(&src, &io, NULL, err);
        if (r >= 0)
                r = eng_image_build(&src, &io, p->memfd, &bytes, err);
        fd_close(fd);
        return r < 0 ? r : eng_image_open(p->memfd, false, &p->image, err);
}

/* With --turn another program is measured meanwhile: two cores stay free of filling, where there are more than that. */
static int fill_beside(const struct options *o, struct probe *p, struct h_error *err) {
        cpu_set_t all, some;
        int r;

        if (!o->turn || sched_getaffinity(0, sizeof(all), &all) < 0 || CPU_COUNT(&all) < 4)
                return fill(o, p, err);
        some = all;
        for (int cpu = CPU_SETSIZE - 1, left = 2; cpu >= 0 && left > 0; cpu--)
                if (CPU_ISSET(cpu, &some)) {
                        CPU_CLR(cpu, &some);
                        left--;
                }
        r = sched_setaffinity(0, sizeof(some), &some);
        if (r < 0)
                return h_error_from_errno(err, -errno, "leaving two cores free");
        r = fill(o, p, err);
        if (sched_setaffinity(0, sizeof(all), &all) < 0 && r >= 0)
                r = h_error_from_errno(err, -errno, "taking all cores again");
        return r;
}

/* --turn: several programs may fill their images at once, one has the device. The lock ends with the process. */
static int take_turn(const char *path, struct h_error *err) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), r;

        if (fd < 0)
                return h_error_from_errno(err, -errno, path);
        do
                r = flock(fd, LOCK_EX);
        while (r < 0 && errno == EINTR);
        return r < 0 ? h_error_from_errno(err, -errno, path) : 0;
}

/* hearth-worker measures for itself; for a comparison its choices are ours, if the card and its driver are. */
static int use_profile(const struct options *o, struct eng_device *d, struct h_error *err) {
        _cleanup_(freep) struct profile *pr = h_new0(struct profile, 1);
        _cleanup_(buf_free) struct buf text = { 0 };
        int r = pr ? read_file(o->profile, &text) : -ENOMEM;

        if (r > 0)
                return h_error_set(err, HEARTH_E_io, "no profile");
        if (r == 0)
                r = profile_parse(text.data ? text.data : "", text.len, o->profile, pr, err);
        if (r == 0)
                build_id(pr->key.build);
        return r < 0 ? r : eng_device_use_profile(d, pr, o->profile, err);
}

int probe_open(const struct options *o, struct probe *p) {
        return probe_open_for(o, NULL, p);
}

int probe_open_for(const struct options *o, const struct eng_limits *l, struct probe *p) {
        struct eng_device_options d = { .backend = o->backend, .threads = o->threads, .exact = o->exact,
                                        .variant = o->variant, .vram_budget = o->vram_budget, .host_launches = o->host_launches };
        struct eng_load load = { .limits = l, .gpu_layers = o->gpu_layers, .rest = o->rest };
        struct h_error err = { 0 };
        double t0 = now_seconds();
        int r;

        p->memfd = -1;
        if (!o->model) {
                fprintf(stderr, "hearth-probe: --model is missing\n");
                return 64;
        }
        r = fill_beside(o, p, &err);
        if (r >= 0 && o->turn)
                r = take_turn(o->turn, &err);
        if (r >= 0)
                r = eng_device_open(&d, &p->device, &err);
        if (r >= 0 && o->profile)
                r = use_profile(o, p->device, &err);
        if (r >= 0)
                r = eng_model_load(p->device, p->image, o->placed ? &load : NULL, &p->model, &err);
        if (r < 0) {
                r = probe_fail(&err, r);
                probe_close(p);
                return r;
        }
        p->load_seconds = now_seconds() - t0;
        return 0;
}

int probe_open_text(const struct options *o, struct probe *p, const struct tok **ret) {
        struct eng_source src = { .n_fds = 1, .name = o->model, .open_part = open_part, .ud = (void *)o->model };
        struct h_error err = { 0 };
        struct tok *t = NULL;
        int fd, r;

        p->memfd = -1;
        if (!o->model) {
                fprintf(stderr, "hearth-probe: --model is missing\n");
                return 64;
        }
        fd = open(o->model, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return probe_fail(NULL, -errno);
        src.fds = &fd;
        p->source = h_new0(struct image_source, 1);
        r = p->source ? image_source_open(&src, p->source, &err) : -ENOMEM;
        if (r >= 0)
                r = tok_open(p->source->part[0].g, &t, &err);
        if (r >= 0 && !t)
                r = h_error_set(&err, HEARTH_E_unknown_tokenizer, "%s has no vocabulary", o->model);
        fd_close(fd);
        *ret = t;
        return r < 0 ? probe_fail(&err, r) : 0;
}

void probe_close_text(struct probe *p, const struct tok *t) {
        tok_free((struct tok *)t);
        if (p->source)
                image_source_close(p->source);
        free(p->source);
        p->source = NULL;
}

int probe_context(struct probe *p, const struct eng_limits *l) {
        struct h_error err = { 0 };
        int r = eng_context_new(p->model, l, &p->context, &err);

        while (r >= 0 && (r = eng_context_warm(p->context, &err)) > 0)
                ;
        return r < 0 ? probe_fail(&err, r) : 0;
}

void probe_close(struct probe *p) {
        p->context = eng_context_free(p->context);
        p->model = eng_model_close(p->model);
        p->image = eng_image_close(p->image);
        p->device = eng_device_close(p->device);
        p->memfd = fd_close(p->memfd);
}

int feed(struct probe *p, const struct options *o, eng_seq s, const uint32_t *ids, uint32_t n, enum eng_role role,
         bool all, row_fn fn, void *ud) {
        const struct eng_limits *l = eng_context_limits(p->context);
        uint32_t n_vocab = eng_model_info(p->model)->n_vocab, chunk = o->chunk ? o->chunk : l->n_rows;

        chunk = MIN(chunk, l->n_rows);
        if (all)
                chunk = MIN(chunk, l->n_outputs);
        for (uint32_t at = 0; at < n;) {
                uint32_t pos = eng_seq_len(p->context, s), k = MIN(chunk, n - at);
                bool last = at + k == n;
                struct eng_item it = {
                        .seq = s, .tokens = ids + at, .n = k, .role = role,
                        .want = all ? ENG_WANT_LOGITS_ALL : last && fn ? ENG_WANT_LOGITS_LAST : ENG_WANT_NONE,
                };
                struct eng_result res;
                struct h_error err = { 0 };
                int r = eng_step(p->context, &it, 1, &res, &err);

                if (r != 0)
                        return probe_fail(&err, r);
                for (uint32_t i = 0; fn && i < res.n_logits; i++) {
                        r = fn(ud, pos + k - res.n_logits + i, res.logits + (size_t)i * n_vocab);
                        if (r)
                                return r;
                }
                at += k;
        }
        return 0;
}

int greedy_take(void *ud, uint32_t pos, const float *logits) {
        struct greedy *g = ud;

        (void)pos;
        g->id = vec_find(logits, g->n_vocab, vec_max(logits, g->n_vocab));
        return 0;
}
