/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --fill: one model from open files into a memfd, then the end. It asks before
 * it takes memory, says how far it is, and checks at the end that the files are
 * still the ones it began with. Plain blocking reads and writes: there is
 * nothing else to attend to. If the broker goes away, a write fails and it ends.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "daemon/worker/worker.h"
#include "ipc/frame.h"
#include "ipc/worker.h"

#define CHANNEL_FD 3
#define MAX_FDS 129u
#define PROGRESS_US 40000u

struct filling {
        struct frame_reader in;
        struct frame_queue out;
        uint32_t id;
        char name[1024];
        int fds[MAX_FDS]; /* [0]: the memfd */
        uint32_t n_fds;
        enum eng_backend backend;
        atomic_uint_least64_t bytes_read;
        uint64_t last_us;
        bool broken;      /* nobody listens any more */
};

static int send_all(struct filling *f, struct buf *b) {
        int r = frame_queue_push(&f->out, b, NULL, 0);

        while (r == 0 && (r = frame_queue_flush(&f->out, CHANNEL_FD)) == 1) {
                struct pollfd p = { .fd = CHANNEL_FD, .events = POLLOUT };
                if (poll(&p, 1, -1) < 0 && errno != EINTR)
                        return -errno;
                r = 0;
        }
        return r;
}

/* Waits for one message of this type. */
static int receive(struct filling *f, int type, struct schema_msg *ret, struct frame *fr) {
        struct h_error err = {};
        int r;

        while ((r = frame_reader_next(&f->in, fr, &err)) == 0) {
                struct pollfd p = { .fd = CHANNEL_FD, .events = POLLIN };
                ssize_t n;

                if (poll(&p, 1, -1) < 0 && errno != EINTR)
                        return -errno;
                n = frame_reader_fill(&f->in, CHANNEL_FD);
                if (n == 0)
                        return -EPIPE;
                if (n < 0 && n != -EAGAIN)
                        return (int)n;
        }
        if (r < 0 || schema_decode(&wk_schema, fr->p, fr->n, ret, NULL, &err) < 0)
                return -EPROTO;
        if (ret->type != type) {
                schema_msg_free(ret);
                return -EPROTO;
        }
        return 0;
}

static ssize_t counted_pread(void *ud, int fd, void *buf, size_t n, uint64_t off) {
        struct filling *f = ud;
        ssize_t r;

        if (fault_hit(FAULT_READ)) {
                errno = EIO;
                return -1;
        }
        r = pread(fd, buf, n, (off_t)off);
        if (r > 0)
                atomic_fetch_add(&f->bytes_read, (uint64_t)r);
        return r;
}

static void on_progress(void *ud, uint64_t done, uint64_t total) {
        struct filling *f = ud;
        _cleanup_(buf_free) struct buf b = {};
        struct wk_fill_progress msg;
        uint64_t now = now_us();

        if (f->broken || (done < total && now - f->last_us < PROGRESS_US))
                return;
        f->last_us = now;
        wk_init_fill_progress(&msg);
        msg.done = done;
        msg.total = total;
        msg.bytes_read = atomic_load(&f->bytes_read);
        if (wk_encode_fill_progress(&b, 0, &msg, NULL) < 0 || send_all(f, &b) < 0)
                f->broken = true;
}

/* The files' states, to be compared at the end. */
static int look(const struct filling *f, struct stat *st, struct h_error *err) {
        for (uint32_t i = 1; i < f->n_fds; i++)
                if (fstat(f->fds[i], &st[i]) < 0)
                        return h_error_set(err, HEARTH_E_io, "%s: %s", f->name, strerror(errno));
        return 0;
}

static bool same(const struct stat *a, const struct stat *b) {
        return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
               a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static int ask(struct filling *f, uint64_t bytes, struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_fill_need need;
        struct schema_msg m = {};
        struct frame fr;
        int r;

        wk_init_fill_need(&need);
        need.bytes = bytes;
        r = wk_encode_fill_need(&b, f->id, &need, err);
        if (r == 0)
                r = send_all(f, &b);
        if (r == 0)
                r = receive(f, WK_fill_go, &m, &fr);
        schema_msg_free(&m);
        return r;
}

static int describe(struct filling *f, uint64_t bytes, struct buf *b, struct h_error *err) {
        struct eng_model_info info;
        struct wk_fill_reply msg;
        struct eng_image *im;
        int r;

        r = eng_image_open(f->fds[0], false, &im, err);
        if (r < 0)
                return r;
        eng_image_info(im, &info);
        wk_init_fill_reply(&msg);
        msg.bytes = bytes;
        msg.hash = eng_image_hash(im);
        msg.n_hash = 32;
        msg.bytes_read = atomic_load(&f->bytes_read);
        msg.title = info.name;
        msg.arch = info.arch;
        msg.type = info.type;
        msg.n_params = info.n_params;
        msg.n_ctx_train = info.n_ctx_train;
        msg.can_embed = info.can_embed;
        msg.can_chat = info.has_template;
        r = wk_encode_fill_reply(b, f->id, &msg, err);
        if (r == -EHEARTH) {
                /* A name that is no UTF-8 is no reason to refuse a model. */
                msg.title = "";
                r = wk_encode_fill_reply(b, f->id, &msg, err);
        }
        eng_image_close(im);
        return r;
}

static int fill(struct filling *f, struct buf *b, struct h_error *err) {
        struct eng_source src = { .fds = f->fds + 1, .n_fds = f->n_fds - 1, .name = f->name, .ud = f, .pread = counted_pread,
                                  .parallel = true };
        struct eng_image_options o = { .backend = f->backend, .progress = on_progress, .ud = f };
        struct stat before[MAX_FDS], after[MAX_FDS];
        uint64_t bytes;
        int r;

        r = look(f, before, err);
        if (r == 0)
                r = eng_image_check(&src, &o, &bytes, err);
        if (r == 0)
                r = ask(f, bytes, err);
        if (r < 0)
                return r;
        o.max_bytes = bytes;
        r = eng_image_build(&src, &o, f->fds[0], &bytes, err);
        if (r < 0)
                return r;
        r = look(f, after, err);
        if (r < 0)
                return r;
        for (uint32_t i = 1; i < f->n_fds; i++)
                if (!same(&before[i], &after[i]))
                        return h_error_set(err, HEARTH_E_model_changed,
                                           "%s: the file changed while it was read; load it again when it is complete", f->name);
        return describe(f, bytes, b, err);
}

/* The broker can't be told, or can't be heard: the exit status (sysexits) says what it was. */
static int failed(int r) {
        return r >= 0 ? 0 : r == -ENOMEM ? 71 : 74;
}

/*
 * The bounds: an image is about as large as its files; threads reserve address
 * space for their heaps. Reading and repacking a byte takes a few nanoseconds.
 */
static int enter_sandbox(const struct filling *f, enum sandbox_wish wish, const struct log *log, struct h_error *err) {
        struct sandbox_bounds b = { .memfd = f->fds[0] };
        struct stat st;
        uint64_t files = 0;

        for (uint32_t i = 1; i < f->n_fds; i++)
                if (fstat(f->fds[i], &st) == 0 && st.st_size > 0)
                        files += MIN((uint64_t)st.st_size, UINT64_C(1) << 46);
        b.memory = files * 2 + (UINT64_C(16) << 30);
        b.cpu_seconds = 120 + files / 4000000;
        return sandbox_enter(SANDBOX_FILL, wish, &b, log, false, err);
}

int worker_fill(const struct log *log, enum sandbox_wish wish) {
        _cleanup_(buf_free) struct buf b = {};
        struct filling f = {};
        struct schema_msg m = {};
        struct h_error err = {};
        struct frame fr;
        struct wk_error e;
        int r;

        frame_reader_init(&f.in, wk_schema.max_frame, MAX_FDS);
        r = receive(&f, WK_fill, &m, &fr);
        if (r < 0) {
                log_error(log, "--fill is for hearthd: %s", strerror(-r));
                return failed(r);
        }
        f.id = m.id;
        snprintf(f.name, sizeof(f.name), "%s", ((const struct wk_fill *)m.body)->name);
        f.backend = strcmp(((const struct wk_fill *)m.body)->backend, "cuda") == 0 ? ENG_CUDA : ENG_CPU;
        f.n_fds = MIN(fr.n_fds, MAX_FDS);
        for (uint32_t i = 0; i < f.n_fds; i++)
                f.fds[i] = frame_take_fd(&fr, i);
        schema_msg_free(&m);
        if (fr.fds_lost)
                h_error_set(&err, HEARTH_E_no_memory, "%s: its open files were lost on the way: no memory, or too many files are open", f.name);
        else if (f.n_fds < 2)
                h_error_set(&err, HEARTH_E_internal, "the fill process got %u descriptors, at least 2 are needed", f.n_fds);
        r = err.code ? -EHEARTH : enter_sandbox(&f, wish, log, &err);
        if (r == 0)
                r = fill(&f, &b, &err);
        if (r < 0 && err.code == HEARTH_OK)
                h_error_from_errno(&err, r, f.name);
        if (r < 0) {
                buf_clear(&b);
                wk_init_error(&e);
                e.code = hearth_code_name(err.code);
                e.message = err.message;
                e.needed = err.needed;
                e.available = err.available;
                r = wk_encode_error(&b, f.id, &e, NULL);
                if (r < 0) {
                        e.message = "the model's file can't be used, and the reason can't be written as UTF-8";
                        r = wk_encode_error(&b, f.id, &e, NULL);
                }
        }
        if (r == 0)
                r = send_all(&f, &b);
        for (uint32_t i = 0; i < f.n_fds; i++)
                fd_close(f.fds[i]);
        frame_reader_done(&f.in);
        frame_queue_done(&f.out);
        return failed(r);
}
