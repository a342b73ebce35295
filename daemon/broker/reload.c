/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/reload.h"

#include <string.h>
#include <time.h>

#include <systemd/sd-daemon.h>

#include "base/alloc.h"
#include "daemon/broker/model.h"
#include "daemon/broker/session.h"

struct reload {
        uv_work_t work;
        struct server *server;
        struct config fresh;
        struct h_error err;
        int r;
};

static void work(uv_work_t *w) {
        struct reload *rl = w->data;
        rl->r = options_load(rl->server->options, &rl->fresh, &rl->err);
}

static void on_changed(void *ud, const char *section, const char *key, const char *was, const char *is, const char *effect) {
        struct server *s = ud;

        log_info(&s->log, "configuration: [%s] %s is \"%s\", was \"%s\": %s", section, key, is, was, effect);
}

/* Resident models follow what their name's section says of their staying; their size is what they were loaded with. */
static void apply_to_model(struct server *s, struct model *m) {
        const struct config_model *cm = NULL;

        list_foreach(n, &m->names, struct model_name, link)
                if (n->everybody && !cm)
                        cm = config_model_of(&s->config, n->text);
        if (!cm)
                cm = &s->config.model;
        m->profile.idle_timeout = cm->idle_timeout;
        m->profile.pinned = cm->pinned || m->pinned_by;
}

static void apply(struct server *s, struct config *fresh) {
        struct h_error err = {};

        config_apply(&s->config, fresh, on_changed, s);
        s->log.level = s->config.log_level;
        list_foreach(m, &s->models, struct model, link)
                if (!m->dead)
                        apply_to_model(s, m);
        list_foreach(se, &s->sessions, struct session, link) {
                if (se->closing)
                        continue;
                session_find_rights(se);
                if (access_check(s->config.access, se->rights, ACCESS_USE, se->user->uid, NULL, &err) < 0) {
                        session_refuse(se, &err);
                        err = (struct h_error){};
                }
        }
        /* A limit may have grown. */
        list_foreach(m, &s->models, struct model, link)
                if (!m->dead)
                        model_dispatch(m);
}

static void after(uv_work_t *w, int status) {
        struct reload *rl = w->data;
        struct server *s = rl->server;
        bool again = s->reload == RELOAD_AGAIN;

        s->reload = RELOAD_NONE;
        if (rl->r == 0 && s->config.file && !rl->fresh.file)
                rl->r = h_error_set(&rl->err, HEARTH_E_io, "%s is gone; for the defaults restart the daemon, or leave a file with a comment (#)",
                                    s->config.file);
        if (rl->r < 0) {
                h_error_from_errno(&rl->err, rl->r, "reading the configuration");
                s->count.reloads_failed++;
                log_error(&s->log, "%s; the configuration stays as it was", rl->err.message);
        } else if (!s->stopping) {
                apply(s, &rl->fresh);
                log_info(&s->log, "the configuration was read again (%s)", s->config.file ? s->config.file : "there is no file");
        }
        if (!s->stopping)
                sd_notifyf(0, "READY=1\nSTATUS=Serving on %s%s%s", s->listener.path ? s->listener.path : "the activated socket",
                           rl->r < 0 ? "; configuration not taken: " : "", rl->r < 0 ? rl->err.message : "");
        config_done(&rl->fresh);
        free(rl);
        if (again && !s->stopping)
                reload_start(s);
}

void reload_start(struct server *s) {
        struct reload *rl;
        struct timespec t;

        if (s->stopping)
                return;
        if (s->reload != RELOAD_NONE) { /* one more when it is done: the file may have changed after it was read */
                s->reload = RELOAD_AGAIN;
                return;
        }
        clock_gettime(CLOCK_MONOTONIC, &t);
        sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000);
        rl = h_new0(struct reload, 1);
        if (rl) {
                rl->server = s;
                rl->work.data = rl;
                s->reload = RELOAD_RUNNING;
                if (uv_queue_work(&s->loop, &rl->work, work, after) == 0)
                        return;
                s->reload = RELOAD_NONE;
                free(rl);
        }
        log_error(&s->log, "no memory to read the configuration again; it stays as it was");
        sd_notify(0, "READY=1");
}
