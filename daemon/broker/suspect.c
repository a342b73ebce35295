/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who was let go runs on until it has used up its credit and gets no more while
 * the next one is alone: so several suspects take turns by their dangerous
 * places, not by their whole answers.
 *
 * Running alone must not become a way to stop everybody: a suspect is let go
 * when it is past the place, when it waits for a client that gives no credit or
 * does not read, and when its model can't be opened.
 */
#include "daemon/broker/suspect.h"

#include "daemon/broker/model.h"
#include "daemon/broker/request_log.h"
#include "daemon/broker/worker.h"

/* Tokens that may have been on their way when the worker ended; so many further, and it is past the place. */
#define PAST REQUEST_WINDOW
#define WAIT_MS 60000u

/* It computes nothing until it is given more credit, and that waits for us or for its client. */
static bool held(const struct request *rq) {
        return rq->type == WIRE_generate && request_n_generated(rq) >= rq->granted && !rq->server->worker.busy;
}

bool suspect_alone(const struct request *rq) {
        list_foreach(o, &rq->server->requests, struct request, link)
                if (o != rq && o->state == REQUEST_RUNNING && !o->dead && !held(o))
                        return false;
        return true;
}

struct request *suspect_first(struct server *s) {
        list_foreach(rq, &s->requests, struct request, link)
                if (rq->suspect && !rq->dead && rq->model)
                        return rq;
        return NULL;
}

bool suspect_excludes(struct server *s, const struct model *m) {
        struct request *rq = s->n_suspects ? suspect_first(s) : NULL;
        return rq && rq->model != m;
}

void suspect_note(struct request *rq) {
        rq->crashed_at = request_n_generated(rq);
        rq->suspect_ms = server_now(rq->server);
        if (rq->suspect)
                return;
        rq->suspect = true;
        rq->server->n_suspects++;
        request_log(rq, LOG_LEVEL_WARNING, "was there at %u ends of the worker; it runs alone", rq->crashes);
}

void suspect_clear(struct request *rq) {
        if (!rq->suspect)
                return;
        rq->suspect = false;
        rq->server->n_suspects--;
        rq->server->room_changed = true; /* models_turn() lets the others go on */
}

void suspect_progress(struct request *rq) {
        if (!rq->suspect || request_n_generated(rq) < rq->crashed_at + PAST)
                return;
        suspect_clear(rq);
        rq->crashes = rq->crashes_beside = 0;
}

void suspects_tick(struct server *s) {
        uint64_t now = server_now(s);

        if (!s->n_suspects)
                return;
        list_foreach(rq, &s->requests, struct request, link)
                if (rq->suspect && !rq->dead &&
                    (rq->state == REQUEST_PARKED || (rq->state == REQUEST_RUNNING && rq->stalled_ms && now - rq->stalled_ms >= 1000 && !s->worker.busy) ||
                     (rq->state != REQUEST_RUNNING && now - rq->suspect_ms >= WAIT_MS)))
                        suspect_clear(rq); /* its count stays: one more end, and it ends */
}
