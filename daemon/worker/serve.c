/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread: the broker's messages in, everybody's messages out. It
 * takes no lock for longer than a memcpy and waits for nothing but its poll().
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buildid.h"
#include "base/latency.h"
#include "daemon/worker/reply.h"
#include "daemon/worker/worker.h"
#include "ipc/frame.h"
#include "ipc/worker.h"

#define CHANNEL_FD 3
#define PROTOCOL 1u
#define BEAT_MS 500
#define TEXT_THREADS 2
#define COMPILING_THREADS 3
#define COMPILING_OWNED 2
#define COMPILING_NICE 5
#define LENGTHY_BYTES (256u << 10) /* of a request: its text may take a thread for seconds */
#define MODEL_BIT 0x80000000u

struct control {
        struct worker w; /* first */
        struct frame_reader in;
        struct frame_queue out;
        uint64_t last_beat_us;
        bool beat_idle; /* the last beat said so */
};

static void push(struct worker *w, struct buf *b, int r) {
        if (r == 0)
                outbox_push(&w->out, b);
        else
                outbox_fail(&w->out);
}

static void send_error(struct worker *w, uint32_t id, const struct h_error *err) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_error msg;

        wk_init_error(&msg);
        msg.code = hearth_code_name(err->code);
        msg.message = err->message;
        push(w, &b, wk_encode_error(&b, id, &msg, NULL));
}

/* ---- messages ---- */

/* Of the CPU only its instruction set: how many threads share the work changes no bit. */
static void describe_numerics(const char *device, bool cuda, char out[160]) {
        char build[BUILD_ID_TEXT];
        size_t n = strlen(device);
        const char *comma = cuda ? NULL : strrchr(device, ',');

        build_id(build);
        snprintf(out, 160, "%s/%.*s", build, (int)MIN(comma ? (size_t)(comma - device) : n, (size_t)100), device);
}

static int start_threads(struct worker *w) {
        int r = jobs_start(&w->text, TEXT_THREADS, TEXT_THREADS, "text", 0);

        if (r == 0)
                r = jobs_start(&w->compiling, COMPILING_THREADS, COMPILING_OWNED, "compiling", COMPILING_NICE);
        if (r == 0)
                r = masks_start(w);
        if (r == 0)
                r = jobs_start(&w->loader, 1, 1, "loader", 0);
        if (r == 0)
                r = -pthread_create(&w->engine, NULL, engine_main, w);
        return r;
}

/* The device first: its driver opens files and nodes. Then no more rights than serving takes, and only then anybody's bytes. */
static int begin(struct worker *w, const struct eng_device_options *o, const char *profile_dir, struct h_error *err) {
        int r = eng_device_open(o, &w->device, err);

        if (r == 0 && profile_dir[0])
                worker_use_profile(&w->log, w->device, profile_dir, o->backend == ENG_CUDA);
        if (r == 0)
                r = sandbox_enter(o->backend == ENG_CPU ? SANDBOX_SERVE_CPU : SANDBOX_SERVE_DEVICE, w->wish, &(struct sandbox_bounds){ .memfd = -1 },
                                  &w->log, true, err);
        if (r == 0)
                r = start_threads(w);
        w->started = r == 0;
        return r;
}

static void on_hello(struct worker *w, uint32_t id, const struct wk_hello *m) {
        bool cuda = strcmp(m->backend, "cuda") == 0;
        struct eng_device_options o = { .backend = cuda ? ENG_CUDA : ENG_CPU, .threads = m->threads, .vram_budget = m->vram_budget };
        _cleanup_(buf_free) struct buf b = {};
        struct wk_hello_reply reply;
        struct h_error err = {};
        char numerics[160];
        int r = 0;

        if (m->version != PROTOCOL)
                r = h_error_counts(&err, HEARTH_E_version, PROTOCOL, m->version,
                                   "hearthd speaks version %u of the worker's protocol, hearth-worker %u; install both together",
                                   m->version, PROTOCOL);
        else if (!cuda && strcmp(m->backend, "cpu") != 0)
                r = h_error_set(&err, HEARTH_E_no_device, "this worker has no backend \"%s\"", m->backend);
        else if (!w->device)
                r = begin(w, &o, m->profile_dir ? m->profile_dir : "", &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "opening the device");
                send_error(w, id, &err);
                return;
        }
        wk_init_hello_reply(&reply);
        reply.version = PROTOCOL;
        reply.device = eng_device_describe(w->device);
        w->on_gpu = cuda;
        if (cuda && eng_device_budget(w->device, &reply.device_budget) < 0)
                reply.device_budget = 0;
        describe_numerics(reply.device, cuda, numerics);
        reply.numerics = numerics;
        push(w, &b, wk_encode_hello_reply(&b, id, &reply, NULL));
}

static struct wmodel *find_model(struct worker *w, uint32_t key) {
        list_foreach(m, &w->models, struct wmodel, known) {
                if (atomic_load(&m->closing)) { /* gone or going: no longer known here */
                        list_remove(&m->known);
                        wmodel_unref(m);
                } else if (m->key == key)
                        return m;
        }
        return NULL;
}

static int parse_kv(const char *name, enum eng_kv_type *ret, struct h_error *err) {
        static const struct { const char *name; enum eng_kv_type type; } types[] = {
                { "", ENG_KV_F16 }, { "f16", ENG_KV_F16 }, { "f32", ENG_KV_F32 }, { "bf16", ENG_KV_BF16 },
                { "q8_0", ENG_KV_Q8_0 }, { "q4_0", ENG_KV_Q4_0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                if (strcmp(types[i].name, name) == 0) {
                        *ret = types[i].type;
                        return 0;
                }
        return h_error_set(err, HEARTH_E_bad_request, "kv is one of f16, f32, bf16, q8_0, q4_0, not \"%s\"", name);
}

static void on_open(struct worker *w, const struct wk_open *msg, int fd) {
        struct wmodel *m = h_new0(struct wmodel, 1);
        struct h_error err = {};
        int r = 0;

        if (m) {
                m->worker = w;
                m->key = msg->model;
                m->fd = fd;
                m->name = h_strdup(msg->name);
                m->want_ctx = msg->n_ctx;
                m->slots = msg->slots;
                m->available = msg->available;
                m->gpu_layers = msg->whole ? INT32_MAX : msg->gpu_layers;
                m->vram_budget = msg->vram_budget;
                atomic_store(&m->refs, 2); /* ours and the pipeline's */
                pthread_mutex_init(&m->text_lock, NULL);
                list_init(&m->tasks);
                list_init(&m->kept);
                list_init(&m->link);
                m->job.run = wmodel_open;
        }
        if (!m || !m->name)
                r = -ENOMEM;
        else if (fd < 0)
                r = h_error_set(&err, HEARTH_E_internal, "no descriptor came with the model");
        else
                r = parse_kv(msg->kv ? msg->kv : "", &m->kv, &err);
        if (m && msg->rest)
                m->rest = strcmp(msg->rest, "host") == 0 ? ENG_REST_HOST : strcmp(msg->rest, "device") == 0 ? ENG_REST_DEVICE : ENG_REST_AUTO;
        if (r < 0) {
                h_error_from_errno(&err, r, "opening a model");
                send_error(w, MODEL_BIT | msg->model, &err);
                if (m) {
                        atomic_store(&m->refs, 1);
                        wmodel_unref(m);
                } else
                        fd_close(fd);
                return;
        }
        list_append(&w->models, &m->known);
        jobs_push(&w->loader, &m->job);
}

static void on_close(struct worker *w, const struct wk_close *msg) {
        _cleanup_(buf_free) struct buf b = {};
        struct wmodel *m = find_model(w, msg->model);
        struct wk_close_reply reply;

        if (m) {
                list_remove(&m->known);
                atomic_store(&m->keep, msg->keep);
                m->asked = true;
                atomic_fetch_add(&w->leaving, 1);
                atomic_store(&m->closing, true);
                wmodel_unref(m);
                engine_wake(w);
                return;
        }
        wk_init_close_reply(&reply);
        push(w, &b, wk_encode_close_reply(&b, MODEL_BIT | msg->model, &reply, NULL));
}

static int copy_u32(const void *p, size_t n, uint32_t **ret, size_t *ret_n) {
        if (n < 4)
                return 0;
        *ret = h_memdup(p, n / 4 * 4);
        *ret_n = n / 4;
        return *ret ? 0 : -ENOMEM;
}

/* Takes payload (-1: none). */
static void on_start(struct worker *w, uint32_t id, const struct wk_start *msg, int payload) {
        struct wmodel *m = find_model(w, msg->model);
        struct h_error err = {};
        struct task *t = NULL;
        int r;

        if (!m) {
                h_error_set(&err, HEARTH_E_internal, "the worker does not have the request's model");
                send_error(w, id, &err);
                fd_close(payload);
                return;
        }
        t = h_new0(struct task, 1);
        if (!t) {
                h_error_set(&err, HEARTH_E_no_memory, "no memory for a request");
                send_error(w, id, &err);
                fd_close(payload);
                return;
        }
        t->worker = w;
        t->model = m;
        t->payload = payload;
        atomic_fetch_add(&m->refs, 1);
        atomic_fetch_add(&m->n_tasks, 1);
        atomic_store(&t->refs, 2); /* ours and the pipeline's */
        list_init(&t->link);
        t->id = id;
        t->uid = msg->uid;
        t->slot = msg->slot;
        t->seed = msg->seed;
        t->waited_us = msg->waited_us;
        t->arrived_us = now_us();
        t->job.run = task_prepare;
        t->job.owner = msg->uid;
        t->job.lengthy = payload >= 0 || msg->n_request > LENGTHY_BYTES;
        t->name = h_strdup(msg->name && msg->name[0] ? msg->name : m->name);
        r = t->name ? copy_u32(msg->resume, msg->n_resume, &t->resume, &t->n_resume) : -ENOMEM;
        if (r == 0)
                r = copy_u32(msg->roles, msg->n_roles, &t->runs, &t->n_runs);
        atomic_store(&t->credits, t->n_resume + (uint64_t)msg->credits);
        if (r == 0 && msg->identity && !(t->identity = h_strdup(msg->identity)))
                r = -ENOMEM;
        t->resumed = msg->resumed;
        t->changed = msg->changed;
        if (r == 0)
                r = schema_decode(&wire_schema, msg->request, msg->n_request, &t->msg, NULL, &err);
        if (r == 0 && msg->client_id)
                t->msg.id = msg->client_id;
        if (r < 0) {
                h_error_from_errno(&err, r, "reading the request");
                send_error(w, id, &err);
                atomic_store(&t->refs, 1);
                task_unref(t);
                return;
        }
        list_append(&w->tasks, &t->known);
        jobs_push(&w->text, &t->job);
}

static struct task *find_task(struct worker *w, uint32_t id) {
        list_foreach(t, &w->tasks, struct task, known)
                if (t->id == id && !atomic_load(&t->done)) /* one that was parked comes again under its id */
                        return t;
        return NULL;
}

/* As atomics are read by other threads for as long as a task lives, the reason must be a constant. */
static const char *constant_reason(const char *reason) {
        static const char *const reasons[] = { "cancelled", "deadline", "superseded", "parked" };

        for (size_t i = 0; i < ELEMENTSOF(reasons); i++)
                if (strcmp(reasons[i], reason) == 0)
                        return reasons[i];
        return reasons[0];
}

static void forget_done(struct worker *w) {
        list_foreach(t, &w->tasks, struct task, known)
                if (atomic_load(&t->done)) {
                        list_remove(&t->known);
                        task_unref(t);
                }
}

static int on_frame(struct control *c, struct frame *f) {
        struct worker *w = &c->w;
        struct schema_msg m = {};
        struct h_error err = {};
        _cleanup_(buf_free) struct buf b = {};
        struct task *t;
        int r = schema_decode(&wk_schema, f->p, f->n, &m, NULL, &err);

        if (r < 0) {
                log_error(&w->log, "hearthd sent a message that can't be read: %s", err.message);
                return -EPROTO;
        }
        if (m.type != WK_hello && !w->started) { /* nothing is looked at before the sandbox */
                schema_msg_free(&m);
                return -EPROTO;
        }
        if (f->fds_lost) { /* as bad as a lost message: another worker is told everything anew */
                schema_msg_free(&m);
                return -ENOMEM;
        }
        switch (m.type) {
        case WK_hello: on_hello(w, m.id, m.body); break;
        case WK_open: on_open(w, m.body, frame_take_fd(f, 0)); break;
        case WK_close: on_close(w, m.body); break;
        case WK_forget: park_forget(w, ((const struct wk_forget *)m.body)->hash); break;
        case WK_start: on_start(w, m.id, m.body, ((const struct wk_start *)m.body)->payload ? frame_take_fd(f, 0) : -1); break;
        case WK_credit:
                t = find_task(w, m.id);
                if (t) {
                        atomic_fetch_add(&t->credits, ((const struct wk_credit *)m.body)->n);
                        engine_wake(w);
                }
                break;
        case WK_cancel:
                t = find_task(w, m.id);
                if (t) {
                        atomic_store(&t->cancel, constant_reason(((const struct wk_cancel *)m.body)->reason));
                        engine_wake(w);
                }
                break;
        case WK_ping: {
                struct wk_ping_reply reply;
                wk_init_ping_reply(&reply);
                push(w, &b, wk_encode_ping_reply(&b, m.id, &reply, NULL));
                break;
        }
        default:
                break;
        }
        schema_msg_free(&m);
        return 0;
}

/* ---- the loop ---- */

static void beat(struct control *c) {
        struct worker *w = &c->w;
        _cleanup_(buf_free) struct buf b = {};
        struct wk_beat msg;
        uint64_t now = now_us();
        bool busy = atomic_load(&w->busy);
        char at[64];

        /* One more when the work is done, then silence. A model that leaves is work too: it waits for the device. */
        if (now - c->last_beat_us < BEAT_MS * 1000u ||
            (!busy && c->beat_idle && list_empty(&w->tasks) && !atomic_load(&w->opening) && !atomic_load(&w->leaving)))
                return;
        c->last_beat_us = now;
        c->beat_idle = !busy;
        wk_init_beat(&msg);
        msg.steps = atomic_load(&w->steps);
        msg.rows = atomic_load(&w->rows);
        msg.busy = busy;
        msg.at = w->started ? eng_device_where(w->device, at) : "";
        push(w, &b, wk_encode_beat(&b, 0, &msg, NULL));
}

static int receive(struct control *c) {
        struct h_error err = {};
        struct frame f;
        ssize_t n = frame_reader_fill(&c->in, c->w.fd);
        int r;

        if (n == -EAGAIN)
                return 0;
        if (n <= 0)
                return n < 0 ? (int)n : -EPIPE;
        while ((r = frame_reader_next(&c->in, &f, &err)) == 1)
                if ((r = on_frame(c, &f)) < 0)
                        return r;
        return r;
}

static int run(struct control *c) {
        struct worker *w = &c->w;
        bool more = false;

        for (;;) {
                bool last;
                struct pollfd p[2] = {
                        { .fd = w->fd, .events = (short)(POLLIN | (more ? POLLOUT : 0)) },
                        { .fd = w->out.wake, .events = POLLIN },
                };
                struct buf b = {};
                int r;

                if (poll(p, 2, BEAT_MS) < 0 && errno != EINTR)
                        return -errno;
                if (p[0].revents & (POLLIN | POLLHUP | POLLERR)) {
                        r = receive(c);
                        if (r < 0)
                                return r;
                }
                beat(c);
                last = atomic_load(&w->said);
                if (!outbox_take(&w->out, &b))
                        return -ENOMEM;
                r = b.len ? frame_queue_push(&c->out, &b, NULL, 0) : 0;
                buf_free(&b);
                if (r == 0 && c->out.bytes)
                        r = frame_queue_flush(&c->out, w->fd);
                if (r < 0)
                        return r;
                more = r == 1;
                if (last && !more)
                        return -ENODEV;
                forget_done(w);
        }
}

int worker_serve(const struct log *log, enum sandbox_wish wish, bool ahead) {
        struct control *c = h_new0(struct control, 1);
        struct worker *w;
        int r;

        if (!c)
                return 71;
        w = &c->w;
        w->log = *log;
        w->wish = wish;
        w->ahead = ahead;
        w->fd = CHANNEL_FD;
        fcntl(w->fd, F_SETFL, O_NONBLOCK);
        fcntl(w->fd, F_SETFD, FD_CLOEXEC);
        list_init(&w->models);
        list_init(&w->tasks);
        list_init(&w->new_models);
        list_init(&w->new_tasks);
        list_init(&w->parked);
        pthread_mutex_init(&w->park_lock, NULL);
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->some, NULL);
        pthread_mutex_init(&w->device_lock, NULL);
        pthread_cond_init(&w->device_free, NULL);
        frame_reader_init(&c->in, wk_schema.max_frame, 1);
        r = outbox_init(&w->out);
        if (r == 0) {
                thread_wake_soon(); /* this one alone: the threads that compute exist already or get the usual slice */
                r = run(c);
        }
        if (r != -EPIPE && r != -ECONNRESET && r != -ENODEV)
                log_error(log, "ends: %s", strerror(-r));
        /* The broker is gone or ends us; the other threads may be in the middle of a step. Nothing of ours needs an end. */
        _exit(r == -EPIPE || r == -ECONNRESET ? 0 : r == -ENODEV ? WORKER_DEVICE_LOST : 70);
}
