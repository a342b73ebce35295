/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/quarantine.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "daemon/broker/request.h"
#include "daemon/broker/suspect.h"

#define MAX_ENTRIES 64u

struct quarantine {
        struct list link;
        uint8_t hash[32];
        char name[256];   /* everybody's; empty: it has none */
        uint64_t until_ms;
        uint32_t ends;
        const char *when; /* "", or ... */
        char how[400], note[600];
};

#define WHILE_OPENED " while it was opened"
#define BESIDE_OTHERS " while it was opened beside other models (alone it can be)"

static bool busy(const struct model *m) {
        if (m->dead)
                return false;
        if (m->state == MODEL_OPENING)
                return m->open_sent;
        return m->state == MODEL_READY && !list_empty(&m->running);
}

struct model *quarantine_note(struct server *s, struct model *only) {
        uint64_t now = server_now(s);
        struct model *one = NULL, *opening = NULL;
        uint32_t n = 0;

        list_foreach(m, &s->models, struct model, link) {
                m->blamed = m->died_opening = false;
                if (only ? m != only : !busy(m))
                        continue;
                n++;
                one = m;
                if (m->state == MODEL_OPENING) /* there is one at most */
                        opening = m;
        }
        if (!one)
                return NULL;
        if (opening && !opening->doubtful)
                model_log(opening, LOG_LEVEL_WARNING, NULL, " was being opened when the worker ended; it is opened first and alone");
        if (opening)
                opening->doubtful = true;
        if (n > 1) { /* each of them may be it: requests will be told apart by running alone */
                if (!opening)
                        return NULL;
                opening->blamed = true;
                opening->beside_ends++;
                return opening;
        }
        one->blamed = true;
        one->died_opening = one == opening;
        one->open_crashes = one->died_opening ? one->open_crashes + 1 : 0;
        if (one->died_opening)
                return NULL;
        if (one->n_deaths && now - one->first_death_ms > QUARANTINE_WINDOW_MS)
                one->n_deaths = 0;
        if (!one->n_deaths++)
                one->first_death_ms = now;
        return NULL;
}

bool quarantine_excuses(const struct model *opening, const struct request *rq) {
        return opening && (opening->beside_ends >= QUARANTINE_BESIDE || request_stalled(rq));
}

/* Found guilty: those that were there lose nothing by it. */
static void excuse(struct model *m) {
        list_foreach(rq, &m->server->requests, struct request, link) {
                if (rq->dead || rq->beside != m->key)
                        continue;
                rq->crashes -= MIN(rq->crashes, rq->crashes_beside);
                rq->crashes_beside = 0;
                if (rq->crashes < SUSPECT_CRASHES)
                        suspect_clear(rq);
        }
}

struct model *quarantine_doubtful(struct server *s) {
        list_foreach(m, &s->models, struct model, link)
                if (m->doubtful && m->state == MODEL_OPENING && !m->open_waits)
                        return m;
        return NULL;
}

void quarantine_opened(struct model *m) {
        m->open_crashes = m->beside_ends = 0;
        m->doubtful = false;
}

static struct quarantine *find(struct server *s, const uint8_t hash[32]) {
        list_foreach(q, &s->quarantine, struct quarantine, link)
                if (memcmp(q->hash, hash, 32) == 0)
                        return q;
        return NULL;
}

static void release(struct quarantine *q) {
        list_remove(&q->link);
        free(q);
}

static const char *left(const struct server *s, const struct quarantine *q, char buf[32]) {
        uint64_t sec = (q->until_ms - server_now(s) + 999) / 1000;

        if (sec >= 120)
                snprintf(buf, 32, "%llu min", (unsigned long long)((sec + 59) / 60));
        else
                snprintf(buf, 32, "%llu s", (unsigned long long)sec);
        return buf;
}

static int refuse(struct server *s, const struct quarantine *q, const char *name, struct h_error *err) {
        char buf[32];
        int r = h_error_counts(err, HEARTH_E_quarantined, q->ends, 0,
                               "%s ended its worker %u times%s (the last time it %s) and is set aside for %s; to try it all the same: "
                               "hearth load %s", name, q->ends, q->when, q->how, left(s, q, buf), name);

        err->retry_after_ms = q->until_ms - server_now(s);
        return r;
}

static void set_aside(struct model *m, uint32_t ends, const char *when, const char *how) {
        const char *shared = model_name_for(m, UINT32_MAX);
        struct server *s = m->server;
        struct h_error err = {};
        struct quarantine *q = NULL;
        uint32_t n = 0;

        excuse(m);
        list_foreach(o, &s->quarantine, struct quarantine, link)
                if (++n > MAX_ENTRIES || o->until_ms <= server_now(s))
                        release(o);
        if (s->config.quarantine)
                q = h_new0(struct quarantine, 1);
        if (!q) {
                h_error_set(&err, HEARTH_E_quarantined, "%s ended its worker %u times%s (the last time it %s)", m->label, ends, when, how);
                model_fail(m, &err);
                return;
        }
        memcpy(q->hash, m->content->hash, 32);
        snprintf(q->name, sizeof(q->name), "%s", shared ? shared : "");
        snprintf(q->how, sizeof(q->how), "%s", how);
        q->ends = ends;
        q->when = when;
        q->until_ms = server_now(s) + s->config.quarantine;
        list_prepend(&s->quarantine, &q->link);
        s->count.quarantined++;
        refuse(s, q, m->label, &err);
        model_fail(m, &err);
}

void quarantine_worker_lost(struct server *s, const char *how) {
        list_foreach(m, &s->models, struct model, link) {
                if (m->dead || !m->blamed || !m->content || m->state == MODEL_CLOSING)
                        continue;
                if (m->died_opening && m->open_crashes + m->beside_ends >= QUARANTINE_OPENING)
                        set_aside(m, m->open_crashes + m->beside_ends, WHILE_OPENED, how);
                else if (m->beside_ends >= QUARANTINE_BESIDE)
                        set_aside(m, m->beside_ends, BESIDE_OTHERS, how);
                else if (m->n_deaths >= QUARANTINE_SERVING)
                        set_aside(m, m->n_deaths, "", how);
        }
}

int quarantine_check(struct server *s, const uint8_t hash[32], const char *name, bool insist, struct h_error *err) {
        struct quarantine *q = find(s, hash);

        if (!q)
                return 0;
        if (insist || q->until_ms <= server_now(s)) {
                log_info(&s->log, "model %s is tried again%s", name, insist ? ", as was asked for" : "");
                release(q);
                return 0;
        }
        return refuse(s, q, name, err);
}

const char *quarantine_of(struct server *s, const char *name) {
        char t[32];

        list_foreach(q, &s->quarantine, struct quarantine, link)
                if (strcmp(q->name, name) == 0 && q->until_ms > server_now(s)) {
                        snprintf(q->note, sizeof(q->note), "set aside for %s: it ended its worker %u times%s, the last time it %s", left(s, q, t),
                                 q->ends, q->when, q->how);
                        return q->note;
                }
        return NULL;
}

void quarantine_done(struct server *s) {
        list_foreach(q, &s->quarantine, struct quarantine, link)
                release(q);
}
