/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generation whose client does not read, or gives no credits, while others
 * wait for its slot: it gives the slot up and goes on later, with the same
 * tokens, as after a worker's death. What the client has is in rq->ids; the
 * worker is told to end its part, and what still comes from there is dropped.
 *
 *   RUNNING -> (parking: the worker's answer is awaited) -> PARKED -> in the
 *   queue again, as any other, once its client can be sent something
 */
#include "daemon/broker/model.h"
#include "daemon/broker/request.h"
#include "daemon/broker/worker.h"

void request_park(struct request *rq) {
        _cleanup_(buf_free) struct buf b = {};
        struct wk_cancel msg;

        if (rq->state != REQUEST_RUNNING || rq->parking || rq->cancel || rq->type != WIRE_generate)
                return;
        wk_init_cancel(&msg);
        msg.reason = "parked";
        if (wk_encode_cancel(&b, rq->id, &msg, NULL) == 0 && worker_send(rq->server, &b, NULL, 0) == 0)
                rq->parking = true;
}

void request_on_parked(struct request *rq) {
        _cleanup_(buf_free) struct buf b = {};
        struct server *s = rq->server;
        struct model *m = rq->model;
        struct wire_paused msg;

        rq->parking = false;
        if (rq->cancel) { /* meanwhile it was to end */
                const char *reason = rq->cancel;

                rq->cancel = NULL;
                rq->state = REQUEST_WAITING;
                request_cancel(rq, reason);
                return;
        }
        s->count.parked++;
        model_park(m, rq);
        rq->state = REQUEST_PARKED;
        if (rq->session && session_drained(rq->session)) { /* who does not read gets no more to read */
                wire_init_paused(&msg);
                msg.reason = "others wait for the slot; the stream continues with the same tokens when there are credits again";
                if (wire_encode_paused(&b, rq->client_id, &msg, NULL) == 0)
                        request_send(rq, &b);
        }
        if (!rq->dead)
                request_unpark(rq); /* its client may have woken up meanwhile */
        model_dispatch(m);
}

void request_unpark(struct request *rq) {
        struct h_error err = {};
        struct model *m = rq->model;

        if (rq->state != REQUEST_PARKED || request_stalled(rq))
                return;
        rq->position = 0;
        if (model_unpark(m, rq) < 0) {
                h_error_set(&err, HEARTH_E_no_memory, "no memory to go on with the request");
                request_end_error(rq, &err);
                return;
        }
        model_dispatch(m);
}

/* Somebody waits for a slot of its model: his is the better use of it. */
void requests_park_stalled(struct server *s) {
        uint64_t now = server_now(s), limit = s->config.yield_timeout;

        list_foreach(m, &s->models, struct model, link) {
                size_t n = m->queue.n;

                if (!limit || m->dead || !n)
                        continue;
                list_foreach(rq, &m->running, struct request, model_link)
                        if (n && rq->in_slot && rq->stalled_ms && now - rq->stalled_ms >= limit) {
                                request_park(rq);
                                n -= rq->parking;
                        }
        }
}
