/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One struct worker_process for each process ever started; the current one is
 * worker->process. A dead one's frames that were still in the socket are read
 * first: what the client was sent and what we know to be sent must be the same,
 * or a replay would repeat or skip tokens.
 */
#include "daemon/broker/worker.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/model.h"
#include "daemon/broker/request.h"
#include "daemon/broker/server.h"
#include "daemon/broker/spawn.h"
#include "daemon/broker/suspect.h"
#include "ipc/worker.h"

#define PROTOCOL 1u
#define BACKOFF_MIN_MS 20u
#define BACKOFF_MAX_MS 5000u
#define CHECK_MS 500u
#define MAX_STILLBORN 5u         /* ends in a row before it was ready, until the waiting are told */
#define SERVED_MS 10000u         /* this long in service: its end is no failure to start */
#define START_MS 30000u          /* that opening a device may take at least, however short the configured time */

struct worker_process {
        struct channel channel; /* first */
        uv_process_t process;
        struct server *server;
        bool exited, released, gone;
        bool deaf; /* something it said was lost: what follows would leave a gap */
};

static void start(struct server *s);
static void ends(struct worker *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static struct worker_process *of(struct channel *c) {
        return CONTAINER_OF(c, struct worker_process, channel);
}

static bool current(const struct worker_process *p) {
        return p->server->worker.process == p;
}

static void free_if_done(struct worker_process *p) {
        if (p->exited && p->released)
                free(p);
}

const char *worker_state_name(const struct server *s) {
        switch (s->worker.state) {
        case WORKER_NONE: return "none";
        case WORKER_STARTING: return "starting";
        case WORKER_READY: return "ready";
        case WORKER_BACKOFF: return s->worker.stillborn >= MAX_STILLBORN ? "failed" : "starting";
        case WORKER_STOPPED: return "none";
        }
        return "none";
}

bool worker_ready(const struct server *s) {
        return s->worker.state == WORKER_READY;
}

void worker_touch(struct server *s) {
        s->worker.progress_ms = s->worker.beat_ms = server_now(s);
}

/* What is known first of a worker's end is the reason; the rest follows from it. */
static void ends(struct worker *w, const char *fmt, ...) {
        va_list ap;

        if (w->why[0])
                return;
        va_start(ap, fmt);
        vsnprintf(w->why, sizeof(w->why), fmt, ap);
        va_end(ap);
}

/* ---- frames ---- */

static void on_error(struct server *s, uint32_t id, const struct wk_error *b) {
        struct h_error err = {};
        struct request *rq;
        struct model *m;

        h_error_counts(&err, hearth_code_parse(b->code), b->needed, b->available, "%s", b->message);
        if (id & WORKER_MODEL_BIT) {
                m = model_by_key(s, id & ~WORKER_MODEL_BIT);
                if (m)
                        model_on_open_failed(m, &err);
        } else if (id == 0) {
                /* It can't serve at all. Who waits is told; the next load tries another one. */
                log_error(&s->log, "worker: %s", err.message);
                models_worker_hopeless(s, &err);
                ends(&s->worker, "could not open its device");
                if (s->worker.process)
                        uv_process_kill(&s->worker.process->process, SIGKILL);
        } else {
                rq = request_by_id(s, id);
                if (rq && rq->state == REQUEST_RUNNING)
                        request_on_error(rq, &err);
        }
}

static void on_frame(struct channel *c, struct frame *f) {
        struct worker_process *p = of(c);
        struct server *s = p->server;
        struct worker *w = &s->worker;
        struct schema_msg m = {};
        struct h_error err = {};
        struct request *rq;
        struct model *mo;

        if (!current(p) || p->deaf)
                return;
        if (schema_decode(&wk_schema, f->p, f->n, &m, NULL, &err) < 0) {
                log_error(&s->log, "worker %u sent a message that can't be taken (%s); it is ended", w->pid, err.message);
                ends(w, "%s", err.code == HEARTH_E_no_memory ? "was ended since hearthd had no memory to hear it" : "sent a message that breaks the protocol");
                p->deaf = true;
                uv_process_kill(&p->process, SIGKILL);
                return;
        }
        if (m.type != WK_beat)
                w->progress_ms = w->beat_ms = server_now(s);
        switch (m.type) {
        case WK_hello_reply: {
                const struct wk_hello_reply *b = m.body;
                if (w->state != WORKER_STARTING)
                        break;
                snprintf(w->device, sizeof(w->device), "%s", b->device ? b->device : "");
                snprintf(w->numerics, sizeof(w->numerics), "%s", b->numerics ? b->numerics : "");
                s->device.budget = b->device_budget;
                w->state = WORKER_READY;
                w->fault = (struct h_error){};
                w->ready_ms = server_now(s);
                log_info(&s->log, "worker %u serves on %s", w->pid, w->device);
                models_worker_ready(s);
                break;
        }
        case WK_beat: {
                const struct wk_beat *b = m.body;
                w->beat_ms = server_now(s);
                if (b->steps != w->steps || (b->busy && !w->busy))
                        w->progress_ms = w->beat_ms;
                w->steps = b->steps;
                w->rows = b->rows;
                w->busy = b->busy;
                snprintf(w->at, sizeof(w->at), "%s", b->at ? b->at : "");
                suspects_go_on(s);
                break;
        }
        case WK_device_lost:
                ends(w, "lost its device (%s)", ((const struct wk_device_lost *)m.body)->why);
                break;
        case WK_open_progress: {
                const struct wk_open_progress *b = m.body;
                mo = model_by_key(s, b->model);
                if (mo)
                        model_on_open_progress(mo, b->done, b->total);
                break;
        }
        case WK_open_reply: {
                const struct wk_open_reply *b = m.body;
                mo = model_by_key(s, m.id & ~WORKER_MODEL_BIT);
                if (mo)
                        model_on_opened(mo, b);
                break;
        }
        case WK_close_reply:
                mo = model_by_key(s, m.id & ~WORKER_MODEL_BIT);
                if (mo)
                        model_on_closed(mo);
                break;
        case WK_out:
                rq = request_by_id(s, m.id);
                if (rq && rq->state == REQUEST_RUNNING)
                        request_on_out(rq, m.body);
                break;
        case WK_start_reply:
                rq = request_by_id(s, m.id);
                if (rq && rq->state == REQUEST_RUNNING)
                        request_on_reply(rq, m.body);
                break;
        case WK_error:
                on_error(s, m.id, m.body);
                break;
        default:
                break;
        }
        schema_msg_free(&m);
}

static void on_gone(struct channel *c, const struct h_error *err) {
        struct worker_process *p = of(c);

        /* The process ends or is ended; on_process_exit does the rest. */
        channel_close(c);
        if (!p->exited)
                uv_process_kill(&p->process, SIGKILL);
}

static void on_released(struct channel *c) {
        struct worker_process *p = of(c);

        p->released = true;
        free_if_done(p);
}

static const struct channel_ops ops = { .on_frame = on_frame, .on_gone = on_gone, .on_released = on_released };

void worker_forget(struct server *s, const uint8_t hash[32]) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_forget msg;

        if (!s->config.cuda || !worker_ready(s))
                return;
        wk_init_forget(&msg);
        msg.hash = hash;
        msg.n_hash = 32;
        if (wk_encode_forget(&b, 0, &msg, NULL) == 0)
                (void)worker_send(s, &b, NULL, 0);
}

int worker_send(struct server *s, struct buf *b, const int *fds, uint32_t n_fds) {
        struct worker *w = &s->worker;
        int r;

        if (!w->process || !w->process->channel.open) {
                buf_clear(b);
                return -EPIPE;
        }
        r = channel_send(&w->process->channel, b, fds, n_fds);
        if (r < 0) {
                log_error(&s->log, "worker %u can't be told something (%s); it is ended", w->pid, strerror(-r));
                ends(w, "could not be told something");
                uv_process_kill(&w->process->process, SIGKILL);
        }
        return r;
}

/* ---- life and death ---- */

static void on_backoff(uv_timer_t *t) {
        start(t->data);
}

/* Ends a worker that has work and gets nowhere: a kernel that never ends, a deadlock. */
static void on_check(uv_timer_t *t) {
        struct server *s = t->data;
        struct worker *w = &s->worker;
        uint64_t now = server_now(s), limit = s->config.hang_timeout;
        bool starting = w->state == WORKER_STARTING, moving = false, working; /* moving: models come or go */

        list_foreach(m, &s->models, struct model, link) /* one that is still being read is not the worker's to close */
                moving |= (m->state == MODEL_OPENING && m->open_sent) || (m->state == MODEL_CLOSING && !m->fill);
        working = starting || moving;
        list_foreach(rq, &s->requests, struct request, link)
                working |= rq->state == REQUEST_RUNNING && !request_stalled(rq);
        if (!limit || !w->process || !working) {
                w->progress_ms = w->beat_ms = now;
                return;
        }
        if (!w->busy && !starting && !moving) /* no step can be made: for how long is not held against the next one */
                w->progress_ms = now;
        if (starting)
                limit = MAX(limit, START_MS);
        if (now - w->beat_ms > limit || now - w->progress_ms > limit) {
                log_error(&s->log, "worker %u made no step for %llu ms%s%s; it is ended", w->pid,
                          (unsigned long long)(now - MIN(w->progress_ms, w->beat_ms)), w->at[0] ? ", the last kernel it began is at " : "", w->at);
                ends(w, "hung%s%s and was ended", w->at[0] ? " near the kernel at " : "", w->at);
                w->progress_ms = w->beat_ms = now;
                uv_process_kill(&w->process->process, SIGKILL);
        }
}

static void log_end(struct server *s, const char *how, const struct oom_cause *oom) {
        char fields[3][128];
        const char *list[] = { fields[0], fields[1], fields[2] };

        snprintf(fields[0], sizeof(fields[0]), "HEARTH_CODE=%s", hearth_code_name(oom ? HEARTH_E_no_memory : HEARTH_E_worker_lost));
        if (oom && oom->limit) {
                snprintf(fields[1], sizeof(fields[1]), "HEARTH_CGROUP=%s", oom->group);
                snprintf(fields[2], sizeof(fields[2]), "HEARTH_LIMIT=%llu", (unsigned long long)oom->limit);
        }
        log_event(&s->log, LOG_LEVEL_WARNING, list, oom && oom->limit ? 3 : 1, "worker %s", how);
}

/* oom: the kernel ended it for want of memory; NULL: something else did. */
static void lost(struct worker_process *p, const char *how, const struct oom_cause *oom) {
        struct server *s = p->server;
        struct worker *w = &s->worker;
        bool served = w->ready_ms && server_now(s) - w->ready_ms >= SERVED_MS;
        struct h_error err = {};
        uint64_t wait;

        if (!current(p))
                return;
        w->process = NULL;
        w->pid = 0;
        w->busy = false;
        w->steps = 0;
        w->at[0] = w->why[0] = 0;
        uv_timer_stop(&w->timer);
        if (w->state == WORKER_STOPPED)
                return;
        log_end(s, how, oom);
        snprintf(w->end, sizeof(w->end), "%s", how);
        s->count.oom_kills += oom != NULL;
        w->failures = served ? 1 : w->failures + 1;
        w->stillborn = w->ready_ms ? 0 : w->stillborn + 1;
        s->count.worker_restarts++;
        wait = MIN((uint64_t)BACKOFF_MIN_MS << MIN(w->failures - 1, 16u), (uint64_t)BACKOFF_MAX_MS);
        w->state = WORKER_BACKOFF;
        w->ready_ms = 0;
        models_worker_lost(s, how);
        if (w->stillborn >= MAX_STILLBORN) {
                h_error_set(&err, HEARTH_E_worker_lost, "the worker can't be kept running: %s, %u times in a row; the daemon's log says more",
                            how, w->stillborn);
                models_worker_hopeless(s, &err);
        }
        uv_timer_start(&w->timer, on_backoff, wait, 0);
}

static void on_process_closed(uv_handle_t *h) {
        struct worker_process *p = h->data;

        p->exited = true;
        free_if_done(p);
}

static void on_process_exit(uv_process_t *h, int64_t status, int sig) {
        struct worker_process *p = h->data;
        struct server *s = p->server;
        struct oom_cause cause;
        char end[96], how[sizeof(s->worker.end)];
        bool oom;

        /* What it sent before its end counts. */
        while (p->channel.open && frame_reader_fill(&p->channel.in, p->channel.fd) > 0) {
                struct h_error err = {};
                struct frame f;
                while (p->channel.open && frame_reader_next(&p->channel.in, &f, &err) == 1)
                        on_frame(&p->channel, &f);
        }
        channel_close(&p->channel);
        format_exit(status, sig, end);
        /* Also where we sent a signal, for a message that did not reach it any more. */
        oom = sig == SIGKILL && current(p) && oom_ended(&s->oom, server_now(s), &cause) == OOM_YES;
        if (oom)
                oom_text(&cause, how);
        else
                snprintf(how, sizeof(how), "%s", current(p) && s->worker.why[0] ? s->worker.why : end);
        uv_close((uv_handle_t *)h, on_process_closed);
        lost(p, how, oom ? &cause : NULL);
}

static void on_never_started(uv_handle_t *h) {
        free(h->data);
}

/* may_pass: another moment may be better; who waits is told only when it has been tried for a second. */
static void start_failed(struct server *s, const struct h_error *err, bool may_pass) {
        struct worker *w = &s->worker;

        log_error(&s->log, "%s", err->message);
        w->fault = *err;
        w->failures++;
        w->unstarted++;
        w->state = WORKER_BACKOFF;
        if (!may_pass || w->unstarted >= MAX_STILLBORN)
                models_worker_hopeless(s, err);
        uv_timer_start(&w->timer, on_backoff, MIN((uint64_t)BACKOFF_MIN_MS << MIN(w->failures, 16u), (uint64_t)BACKOFF_MAX_MS), 0);
}

static void start(struct server *s) {
        _cleanup_(buf_free) struct buf b = {};
        struct worker *w = &s->worker;
        struct worker_process *p = NULL;
        struct wk_hello msg;
        struct h_error err = {};
        int fd, r;

        /* After a failure only for somebody who waits. */
        if (w->state == WORKER_BACKOFF && list_empty(&s->models)) {
                w->state = WORKER_NONE;
                return;
        }
        wk_init_hello(&msg);
        msg.version = PROTOCOL;
        msg.backend = s->config.cuda ? "cuda" : "cpu";
        msg.threads = s->config.threads;
        msg.vram_budget = s->config.vram_budget;
        msg.profile_dir = s->config.profile_dir ? s->config.profile_dir : "";
        r = wk_encode_hello(&b, 0, &msg, &err);
        if (r == 0 && !(p = h_new0(struct worker_process, 1)))
                r = -ENOMEM;
        if (r < 0) {
                h_error_from_errno(&err, r, "starting the worker");
                start_failed(s, &err, false);
                return;
        }
        p->server = s;
        p->process.data = p;
        r = spawn_worker(s, "--serve", &p->process, on_process_exit, &fd, &err);
        if (r < 0) {
                if (p->process.loop)
                        uv_close((uv_handle_t *)&p->process, on_never_started);
                else
                        free(p);
                start_failed(s, &err, r == -EAGAIN);
                return;
        }
        w->unstarted = 0;
        w->process = p;
        w->pid = (uint32_t)p->process.pid;
        w->state = WORKER_STARTING;
        worker_touch(s);
        if (channel_open(&p->channel, &s->loop, fd, wk_schema.max_frame, 0, &ops) < 0) {
                p->released = true;
                uv_process_kill(&p->process, SIGKILL);
                return;
        }
        worker_send(s, &b, NULL, 0);
        uv_timer_start(&w->timer, on_check, CHECK_MS, CHECK_MS);
}

void worker_init(struct server *s) {
        s->worker = (struct worker){};
        uv_timer_init(&s->loop, &s->worker.timer);
        s->worker.timer.data = s;
}

void worker_need(struct server *s) {
        if (s->worker.state == WORKER_NONE)
                start(s);
}

void worker_stop(struct server *s) {
        struct worker *w = &s->worker;

        w->state = WORKER_STOPPED;
        uv_timer_stop(&w->timer);
        if (w->process) {
                channel_close(&w->process->channel);
                uv_process_kill(&w->process->process, SIGKILL); /* it has nothing to tidy up, and one that stands still would not end by less */
        }
}
