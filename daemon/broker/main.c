/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearthd: arguments and environment, then the loop. The environment is read
 * here and nowhere else.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <systemd/sd-daemon.h>

#include "base/alloc.h"
#include "base/latency.h"
#include "base/stdfds.h"
#include "daemon/broker/accept.h"
#include "daemon/broker/card.h"
#include "daemon/broker/files.h"
#include "daemon/broker/model.h"
#include "daemon/broker/options.h"
#include "daemon/broker/privileges.h"
#include "daemon/broker/quarantine.h"
#include "daemon/broker/reload.h"
#include "daemon/broker/request.h"
#include "daemon/broker/server.h"
#include "daemon/broker/session.h"
#include "daemon/broker/store.h"
#include "daemon/broker/threads.h"
#include "ipc/sockpath.h"

/* Set by the build: whether the worker beside this has a CUDA backend. */
#ifdef HEARTH_HAVE_CUDA
#define CAN_CUDA true
#else
#define CAN_CUDA false
#endif

/* ---- the loop ---- */

#define TICK_MS 1000u

static void on_turn(uv_prepare_t *h) {
        models_turn(h->data);
}

static void on_tick(uv_timer_t *h) {
        struct server *s = h->data;
        uint64_t now = server_now(s);

        if (s->last_tick_ms && now - s->last_tick_ms > TICK_MS)
                s->metrics.late_max_ms = MAX(s->metrics.late_max_ms, now - s->last_tick_ms - TICK_MS);
        s->last_tick_ms = now;
        oom_look(&s->oom, s->worker.pid, now);
        models_tick(s);
        if (s->config.model.idle_timeout && now - s->started_ms >= s->config.model.idle_timeout)
                cache_drop_kept(&s->cache, now - s->config.model.idle_timeout);
        session_close_refused(s);
        sessions_tick(s);
        accept_tick(s);
        requests_tick(s);
}

static void on_watchdog(uv_timer_t *h) {
        sd_notify(0, "WATCHDOG=1");
}

static void on_closed_walk(uv_handle_t *h, void *ud) {
        if (!uv_is_closing(h) && h->type != UV_PROCESS && h->type != UV_POLL)
                uv_close(h, NULL);
}

static void stop(struct server *s, const char *why) {
        if (s->stopping)
                return;
        s->stopping = true;
        log_info(&s->log, "stopping: %s", why);
        sd_notify(0, "STOPPING=1");
        accept_stop(s);
        models_done(s);
        list_foreach(rq, &s->requests, struct request, link) {
                struct h_error err = {};
                h_error_set(&err, HEARTH_E_shutting_down, "the daemon is stopping");
                request_end_error(rq, &err);
        }
        list_foreach(se, &s->sessions, struct session, link)
                session_close(se);
        worker_stop(s);
        listener_close(&s->listener);
        session_close_refused(s);
        uv_close((uv_handle_t *)&s->turn, NULL);
        uv_close((uv_handle_t *)&s->tick, NULL);
        uv_close((uv_handle_t *)&s->watchdog, NULL);
        uv_close((uv_handle_t *)&s->worker.timer, NULL);
        uv_close((uv_handle_t *)&s->sigterm, NULL);
        uv_close((uv_handle_t *)&s->sigint, NULL);
        uv_close((uv_handle_t *)&s->sighup, NULL);
}

static void on_signal(uv_signal_t *h, int sig) {
        struct server *s = h->data;

        if (sig == SIGHUP)
                reload_start(s);
        else
                stop(s, strsignal(sig));
}

static void on_content_free(void *ud, const struct content *c) {
        store_remove(ud, c);
        worker_forget(ud, c->hash);
}

/* The service manager's descriptors: a listening socket, and what an earlier daemon left in its store. */
static int take_activated(struct server *s, char **names, size_t n, int *ret_socket) {
        _cleanup_(freep) int *fds = h_new0(int, n);
        _cleanup_(freep) char **stored = h_new0(char *, n);
        size_t n_stored = 0;

        if (!fds || !stored)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                int fd = SD_LISTEN_FDS_START + (int)i;

                if (strncmp(names[i], STORE_PREFIX, strlen(STORE_PREFIX)) == 0 && sd_is_socket(fd, AF_UNSPEC, 0, -1) == 0) {
                        fcntl(fd, F_SETFD, FD_CLOEXEC);
                        fds[n_stored] = fd;
                        stored[n_stored++] = names[i];
                } else if (*ret_socket < 0)
                        *ret_socket = fd;
                else
                        close(fd);
        }
        if (n_stored)
                store_restore(s, fds, stored, n_stored);
        return 0;
}

static int open_listener(struct server *s, struct h_error *err) {
        _cleanup_(freep) char *path = NULL;
        char **names = NULL;
        int n = sd_listen_fds_with_names(1, &names), r, listening = -1;

        if (n > 0) {
                r = take_activated(s, names, (size_t)n, &listening);
                for (int i = 0; i < n; i++)
                        free(names[i]);
                free(names);
                if (r < 0)
                        return r;
                if (listening >= 0)
                        return listener_adopt(listening, &s->listener, err);
        }
        if (s->config.socket)
                return listener_bind(s->config.socket, !s->config.user_mode, &s->listener, err);
        if (!s->config.user_mode)
                return listener_bind(SOCKPATH_SYSTEM, true, &s->listener, err);
        r = sockpath_user(getenv("XDG_RUNTIME_DIR"), SOCKPATH_CREATE_DIR, &path, err);
        return r < 0 ? r : listener_bind(path, false, &s->listener, err);
}

static void setup_loop(struct server *s) {
        uint64_t usec;

        accept_start(s);
        uv_prepare_init(&s->loop, &s->turn);
        s->turn.data = s;
        uv_prepare_start(&s->turn, on_turn);
        uv_timer_init(&s->loop, &s->tick);
        s->tick.data = s;
        uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
        uv_timer_init(&s->loop, &s->watchdog);
        if (sd_watchdog_enabled(0, &usec) > 0)
                uv_timer_start(&s->watchdog, on_watchdog, 0, MAX(usec / 3000, (uint64_t)1));
        struct { uv_signal_t *h; int sig; } signals[] = { { &s->sigterm, SIGTERM }, { &s->sigint, SIGINT }, { &s->sighup, SIGHUP } };
        for (size_t i = 0; i < ELEMENTSOF(signals); i++) {
                uv_signal_init(&s->loop, signals[i].h);
                signals[i].h->data = s;
                uv_signal_start(signals[i].h, on_signal, signals[i].sig);
        }
        worker_init(s);
}

/* --check-config; the unit's ExecReload, so that a mistake is told to who asked for the reload. */
static int check_config(struct options *o) {
        struct log log = { .level = LOG_LEVEL_INFO, .program = "hearthd" };
        struct h_error err = {};
        struct config c;
        int r = options_load(o, &c, &err);

        if (r < 0) {
                h_error_from_errno(&err, r, "reading the configuration");
                log_error(&log, "%s", err.message);
        } else
                printf("%s: no mistakes\n", c.file ? c.file : "no configuration file, the defaults hold");
        config_done(&c);
        options_done(o);
        return r < 0 ? hearth_code_exit(err.code) : fflush(stdout) ? 74 : 0;
}

int main(int argc, char **argv) {
        struct options o = {};
        struct server s = {};
        struct h_error err = {};
        struct cgroup_bound bound = {};
        int r, status = 0;

        standard_fds_open();
        o.home = getenv("HOME");
        o.xdg_config_home = getenv("XDG_CONFIG_HOME");
        o.xdg_data_home = getenv("XDG_DATA_HOME");
        o.xdg_state_home = getenv("XDG_STATE_HOME");
        r = options_parse(&o, argc, argv);
        if (r) {
                options_done(&o);
                return r - 1;
        }
        if (o.check)
                return check_config(&o);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is an error of the write that meets it */
        s.log = (struct log){ .level = LOG_LEVEL_INFO, .program = "hearthd", .journal = log_stream_is_journal(getenv("JOURNAL_STREAM")) };
        if (s.log.journal)
                (void)log_journal_open(&s.log, LOG_JOURNAL_SOCKET); /* else its lines go through stderr */
        s.options = &o;
        r = options_load(&o, &s.config, &err);
        if (r == 0)
                s.log.level = s.config.log_level;
        s.config.cuda = card_wanted(s.config.backend, CAN_CUDA, "");
        list_init(&s.sessions);
        list_init(&s.requests);
        list_init(&s.models);
        list_init(&s.quarantine);
        list_init(&s.dead_models);
        memset(s.refused, 0xff, sizeof(s.refused)); /* -1 each */
        users_init(&s.users, &s.config);
        cache_init(&s.cache);
        s.cache.on_free = on_content_free;
        s.cache.ud = &s;
        s.config.fd_store = getenv("NOTIFY_SOCKET") != NULL;
        ledger_init(&s.device, 0);
        oom_init(&s.oom, "");
        ledger_init(&s.ledger, s.config.host_budget ? s.config.host_budget : ledger_default_budget("", &bound));
        if (r == 0)
                r = files_raise(&s.users, &err);
        if (r == 0)
                r = open_listener(&s, &err);
        if (r == 0)
                r = privileges_drop(s.config.sandbox, &s.log, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "starting");
                log_error(&s.log, "%s", err.message);
                config_done(&s.config);
                options_done(&o);
                return hearth_code_exit(err.code);
        }
        r = uv_loop_init(&s.loop) < 0 ? h_error_set(&err, HEARTH_E_internal, "the event loop can't be made") : threads_start(&s.loop, &err);
        if (r < 0) {
                h_error_from_errno(&err, r, "starting");
                log_error(&s.log, "%s", err.message);
                listener_close(&s.listener);
                config_done(&s.config);
                options_done(&o);
                return hearth_code_exit(err.code);
        }
        setup_loop(&s);
        s.started_ms = server_now(&s);
        if (bound.limit)
                log_info(&s.log, "the control group %s bounds host memory: its limit is %llu bytes, %llu are left", cgroup_name(&bound.group),
                         (unsigned long long)bound.limit, (unsigned long long)bound.left);
        log_info(&s.log, "serving on %s, host memory budget %llu bytes, worker %s, computing on the %s", s.listener.path ? s.listener.path : "(activated)",
                 (unsigned long long)s.ledger.budget, s.config.worker, s.config.cuda ? "GPU" : "CPU");
        sd_notifyf(0, "READY=1\nSTATUS=Serving on %s", s.listener.path ? s.listener.path : "the activated socket");
        thread_wake_soon();
        uv_run(&s.loop, UV_RUN_DEFAULT);

        models_turn(&s);
        cache_done(&s.cache);
        quarantine_done(&s);
        free(s.default_model);
        if (uv_loop_close(&s.loop) < 0) {
                log_warning(&s.log, "handles were left open");
                uv_walk(&s.loop, on_closed_walk, NULL);
                uv_run(&s.loop, UV_RUN_NOWAIT);
                status = 70;
        }
        config_done(&s.config);
        options_done(&o);
        log_journal_close(&s.log);
        return status;
}
