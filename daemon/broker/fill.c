/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fill is over when both its process has exited and its channel is closed and
 * released: only then is the memfd free of writable mappings, and only then may
 * the struct go. The outcome is what was first known: an abort, an error reply,
 * a good reply; none of them: the process died.
 */
#include "daemon/broker/fill.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/seal.h"
#include "daemon/broker/server.h"
#include "daemon/broker/spawn.h"
#include "ipc/worker.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

enum { REQUEST_FILL = 1 };

struct fill {
        struct channel channel; /* first */
        uv_process_t process;
        struct server *server;
        const struct fill_ops *ops;
        void *ud;
        char name[256];
        int memfd;
        bool exited, released, replied, need_open, killed;
        uint32_t need_id;
        uint64_t bytes_read, heard_ms;
        struct fill_result result;
        struct h_error err;
};

static int make_memfd(const char *name) {
        char label[64];
        int fd;

        if (fault_hit(FAULT_MEMFD)) {
                errno = ENFILE;
                return -1;
        }
        snprintf(label, sizeof(label), "hearth:%.50s", name);
        fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
                fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return fd;
}

/*
 * Nothing can change the bytes any more, not even we. The lasting fd is a second,
 * read-only opening: who is lent it can't even ask for a writable mapping.
 */
static int seal(struct fill *f, struct h_error *err) {
        struct stat st;
        char path[40];
        int fd, seals, r = memfd_seal(f->memfd, SEALS);

        if (r < 0)
                return h_error_set(err, HEARTH_E_internal, "%s: the copy in memory can't be sealed: %s", f->name, strerror(-r));
        seals = fcntl(f->memfd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
                return h_error_set(err, HEARTH_E_internal, "%s: the copy in memory has seals 0x%x, expected 0x%x", f->name,
                                   (unsigned)seals, (unsigned)SEALS);
        if (fstat(f->memfd, &st) < 0 || (uint64_t)st.st_size != f->result.bytes)
                return h_error_set(err, HEARTH_E_internal, "%s: the copy in memory has another size than the fill process said",
                                   f->name);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", f->memfd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return h_error_set(err, HEARTH_E_io, "%s: the copy in memory can't be reopened read-only: %s", f->name,
                                   strerror(errno));
        f->result.memfd = fd;
        return 0;
}

static void finish(struct fill *f) {
        if (!f->exited || !f->released)
                return;
        f->result.memfd = -1;
        if (f->err.code == HEARTH_OK)
                (void)seal(f, &f->err);
        f->memfd = fd_close(f->memfd);
        if (f->err.code == HEARTH_OK)
                f->ops->on_done(f->ud, FILL_DONE, &f->result, f->bytes_read, NULL);
        else
                f->ops->on_done(f->ud, f->killed ? FILL_KILLED : FILL_FAILED, NULL, f->bytes_read, &f->err);
        free(f);
}

static void copy_text(char *dst, size_t n, const char *src) {
        snprintf(dst, n, "%s", src ? src : "");
}

static void on_frame(struct channel *c, struct frame *fr) {
        struct fill *f = CONTAINER_OF(c, struct fill, channel);
        struct schema_msg m = {};
        struct h_error err = {};

        if (schema_decode(&wk_schema, fr->p, fr->n, &m, NULL, &err) < 0) {
                h_error_prefix(&err, "the fill process sent nonsense");
                fill_abort(f, &err);
                return;
        }
        f->heard_ms = server_now(f->server);
        switch (m.type) {
        case WK_fill_need: {
                const struct wk_fill_need *b = m.body;
                if (f->need_open)
                        break;
                f->need_id = m.id;
                f->need_open = true;
                f->ops->on_need(f->ud, b->bytes);
                break;
        }
        case WK_fill_progress: {
                const struct wk_fill_progress *b = m.body;
                f->bytes_read = b->bytes_read;
                f->ops->on_progress(f->ud, b->done, b->total);
                break;
        }
        case WK_fill_reply: {
                const struct wk_fill_reply *b = m.body;
                f->replied = true;
                f->bytes_read = b->bytes_read;
                f->result.bytes = b->bytes;
                f->result.bytes_read = b->bytes_read;
                memcpy(f->result.hash, b->hash, sizeof(f->result.hash));
                copy_text(f->result.title, sizeof(f->result.title), b->title);
                copy_text(f->result.arch, sizeof(f->result.arch), b->arch);
                copy_text(f->result.type, sizeof(f->result.type), b->type);
                f->result.n_params = b->n_params;
                f->result.n_ctx_train = b->n_ctx_train;
                f->result.can_embed = b->can_embed;
                f->result.can_chat = b->can_chat;
                break;
        }
        case WK_error: {
                const struct wk_error *b = m.body;
                f->replied = true;
                h_error_counts(&f->err, hearth_code_parse(b->code), b->needed, b->available, "%s", b->message);
                break;
        }
        default:
                break;
        }
        schema_msg_free(&m);
}

static void on_gone(struct channel *c, const struct h_error *err) {
        channel_close(c);
}

static void on_released(struct channel *c) {
        struct fill *f = CONTAINER_OF(c, struct fill, channel);
        f->released = true;
        finish(f);
}

static const struct channel_ops ops = { .on_frame = on_frame, .on_gone = on_gone, .on_released = on_released };

static void on_process_closed(uv_handle_t *h) {
        struct fill *f = h->data;
        f->exited = true;
        finish(f);
}

static void on_process_exit(uv_process_t *p, int64_t status, int sig) {
        struct fill *f = p->data;
        struct server *s = f->server;
        enum oom_answer oom = OOM_NO;
        struct oom_cause cause;
        char how[192];

        /* What it sent before its end is still in the socket. */
        if (f->channel.open) {
                while (f->channel.open && frame_reader_fill(&f->channel.in, f->channel.fd) > 0) {
                        struct h_error err = {};
                        struct frame fr;
                        while (f->channel.open && frame_reader_next(&f->channel.in, &fr, &err) == 1)
                                on_frame(&f->channel, &fr);
                }
                channel_close(&f->channel);
        }
        format_exit(status, sig, how);
        if (!f->replied && f->err.code == HEARTH_OK) {
                if (sig == SIGKILL)
                        oom = oom_ended(&s->oom, server_now(s), &cause);
                /* Its limit of time and what its sandbox forbids it would meet again, and what needs more memory than there is, too. */
                f->killed = sig && oom != OOM_YES && sig != SIGXCPU && sig != SIGSYS;
                if (oom == OOM_YES) {
                        oom_text(&cause, how);
                        s->count.oom_kills++;
                }
                h_error_set(&f->err, oom != OOM_NO || status == 71 ? HEARTH_E_no_memory : status == 74 || (status == 0 && !sig) ? HEARTH_E_io : HEARTH_E_internal,
                            "%s: the process that reads it %s%s", f->name, how,
                            oom == OOM_UNKNOWN ? ": probably the machine ran out of memory" : "");
        }
        uv_close((uv_handle_t *)p, on_process_closed);
}

static void on_never_started(uv_handle_t *h) {
        free(h->data);
}

int fill_start(struct server *s, const char *name, const struct source *src, const struct fill_ops *o, void *ud,
               struct fill **ret, struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_fill msg;
        struct fill *f;
        int fds[MODEL_MAX_PARTS + 1], fd, r;

        f = h_new0(struct fill, 1);
        if (!f)
                return -ENOMEM;
        f->server = s;
        f->ops = o;
        f->ud = ud;
        f->process.data = f;
        snprintf(f->name, sizeof(f->name), "%s", name);
        wk_init_fill(&msg);
        msg.name = f->name;
        msg.backend = s->config.cuda ? "cuda" : "cpu";
        r = wk_encode_fill(&b, REQUEST_FILL, &msg, err);
        if (r < 0)
                goto fail;
        f->memfd = make_memfd(name);
        if (f->memfd < 0) {
                r = h_error_set(err, HEARTH_E_io, "%s: a memory file can't be made: %s", name, strerror(errno));
                goto fail;
        }
        fds[0] = f->memfd;
        memcpy(fds + 1, src->fds, src->n * sizeof(*fds));
        r = spawn_worker(s, "--fill", &f->process, on_process_exit, &fd, err);
        if (r < 0) {
                r = -EHEARTH; /* who asked is told; trying again is his business */
                f->memfd = fd_close(f->memfd);
                if (f->process.loop) {
                        uv_close((uv_handle_t *)&f->process, on_never_started);
                        return r;
                }
                goto fail;
        }
        r = channel_open(&f->channel, &s->loop, fd, wk_schema.max_frame, 0, &ops);
        if (r < 0)
                f->released = true;
        else
                r = channel_send(&f->channel, &b, fds, (uint32_t)src->n + 1);
        f->heard_ms = server_now(s);
        *ret = f;
        if (r < 0) {
                struct h_error e = {};
                h_error_from_errno(&e, r, "talking to the fill process");
                fill_abort(f, &e);
        }
        return 0; /* from here on everything is told by on_done */
fail:
        free(f);
        return r;
}

void fill_go(struct fill *f) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_fill_go msg;
        struct h_error err = {};
        int r;

        if (!f->need_open || !f->channel.open)
                return;
        f->need_open = false;
        f->heard_ms = server_now(f->server);
        wk_init_fill_go(&msg);
        r = wk_encode_fill_go(&b, f->need_id, &msg, &err);
        if (r == 0)
                r = channel_send(&f->channel, &b, NULL, 0);
        if (r < 0) {
                h_error_from_errno(&err, r, "talking to the fill process");
                fill_abort(f, &err);
        }
}

void fill_abort(struct fill *f, const struct h_error *why) {
        if (f->err.code == HEARTH_OK)
                f->err = *why;
        if (!f->exited)
                uv_process_kill(&f->process, SIGKILL);
}

void fill_check(struct fill *f) {
        uint64_t limit = f->server->config.hang_timeout, silent = server_now(f->server) - f->heard_ms;
        struct h_error err = {};

        if (!limit || silent < limit || f->need_open || f->exited)
                return;
        h_error_set(&err, HEARTH_E_io, "%s: nothing was read for %llu ms (after %llu bytes); is its disk or network there?", f->name,
                    (unsigned long long)silent, (unsigned long long)f->bytes_read);
        fill_abort(f, &err);
}
