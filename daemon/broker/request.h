/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One request that needs a model, from its frame to its final reply. Everything
 * a new worker needs to go on with it is here: the message as it came, the seed,
 * the ids of the tokens sent. A client whose connection broke brings the same
 * again, to this daemon or another: nothing is kept for who hung up.
 *
 * Life: RESOLVING (its model is looked up) -> WAITING (in its model's queue or
 * pending list: the model loads, or no slot is free) -> RUNNING (the worker has
 * it) -> gone; RUNNING -> PARKED -> WAITING where its client lets others wait
 * (park.c). Every request gets exactly one final message, unless its client
 * is gone; request_end_*() send it and free the request.
 */

#include "daemon/broker/fairq.h"
#include "daemon/broker/session.h"
#include "ipc/worker.h"

/* Tokens the worker may be ahead of what the client's socket took. */
#define REQUEST_WINDOW 32u

enum request_state { REQUEST_RESOLVING, REQUEST_WAITING, REQUEST_RUNNING, REQUEST_PARKED };

struct model;
struct resolve;

struct request {
        struct list link;         /* server->requests */
        struct list session_link;
        struct list model_link;   /* model->pending, running or parked */
        struct fairq_item queued; /* in model->queue */

        struct server *server;
        struct session *session;  /* NULL: nobody listens any more */
        struct user *user;
        struct model *model;
        char *name;               /* of the model, as its client asked for it; one content may have several */
        struct resolve *resolve;  /* while RESOLVING */
        uint64_t session_id;
        uint32_t rights;          /* of its client when it came */
        bool pin;                 /* its model is to stay for good */
        uint32_t id, client_id;
        int type;                 /* WIRE_generate, ... */
        enum request_state state;

        uint8_t *raw;             /* the client's message */
        size_t n_raw, charged;
        uint32_t n_files;         /* descriptors charged to its user and held by it */
        int payload;              /* memfd with a text of it, or -1 */
        char *supersedes;
        uint32_t cost;            /* for the fair queue */
        uint64_t seed;
        struct buf ids;           /* u32le: generated and sent */
        struct buf roles;         /* of the prompt's tokens, as the first worker evaluated them */
        char *identity;           /* of what began it: a client that resumes brings it, else as it first ran; NULL: not known */
        bool resumed;             /* came as `resume`; raw is the `generate` message in it */
        bool changed;             /* what runs it now is not what began it, and that was said */
        bool endless_credit;
        uint64_t client_credit;   /* tokens the client allowed in all, unless endless */
        uint64_t granted;         /* tokens the worker may have sent in all */

        uint32_t slot;
        bool parking;             /* the worker was told to give it back */
        bool in_slot, accepted, started, paused_told;
        uint32_t crashes, position; /* crashes: ends of a worker that had it */
        uint32_t beside, crashes_beside; /* the model (its key) that was being opened at the last of them; how many of them that was at */
        bool suspect;             /* see suspect.h; of these only: */
        uint64_t crashed_at, suspect_ms;
        const char *cancel;       /* reason, once it is to end */
        bool broken;              /* tokens are missing in what its client got: it ends with an error */
        uint32_t n_prompt, n_cached, n_done;
        uint64_t n_brought;       /* of the ids: a resuming client brought them */
        uint64_t arrived_ms, started_ms, first_ms, last_ms, stalled_ms;

        char outcome[33];         /* how it ended, for the log: "stop", ... */
        const struct h_error *fault; /* or the error it ends with; while it ends */
        uint32_t company;         /* the most that ran beside it on its model */

        bool load_waited;         /* its model was not ready when it came */
        bool model_read;          /* and its files were read */

        uv_timer_t deadline;
        uint32_t deadline_ms;
        bool dead;                /* ended; the memory waits for the timer's close */
};

/*
 * Starts serving m (a request with a model). Takes what it needs out of f (its
 * fds and a copy of its bytes). On failure nothing is left behind and the
 * caller answers.
 */
int request_new(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
/* The same for a `resume`: a generation that goes on after the ids that the client has. */
int request_resume(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);
struct request *request_by_id(struct server *s, uint32_t id);
struct request *request_of_client(struct session *se, uint32_t client_id);
/* The model's name to show to its client; NULL: none. */
const char *request_model_name(const struct request *rq);
bool request_needs_slot(const struct request *rq);
uint64_t request_n_generated(const struct request *rq);
/* Nothing can be sent to it now: its client does not read, or gave no credit. */
bool request_stalled(const struct request *rq);

/* Gives it to the worker, in this slot (if it needs one). */
int request_run(struct request *rq, uint32_t slot, struct h_error *err);
/* More tokens may be sent: told to the worker when worthwhile. */
void request_grant(struct request *rq);
int request_add_credit(struct request *rq, uint32_t n, struct h_error *err);
/* Ends it with this reason as 'finish': at once if it waits, within a step if it runs. */
void request_cancel(struct request *rq, const char *reason);

/* A message for its client, if there is one. */
void request_send(struct request *rq, struct buf *b);
void request_progress(struct request *rq, const char *model, uint64_t done, uint64_t total);
void request_tell_position(struct request *rq, uint32_t position);
void request_end_error(struct request *rq, const struct h_error *err);
/* What a broken one ends with. */
int request_broken(const struct request *rq, struct h_error *err);
/* Sends *b as the final message. */
void request_end(struct request *rq, struct buf *b);

/* From the worker. */
void request_on_out(struct request *rq, const struct wk_out *m);
void request_on_reply(struct request *rq, const struct wk_start_reply *m);
void request_on_error(struct request *rq, const struct h_error *err);
/*
 * The worker died while it had this request. 'how' for messages; blamed: it may have been the cause, or the model
 * that was being opened (its key; 0: none was).
 */
void request_on_worker_lost(struct request *rq, const char *how, bool blamed, uint32_t opening);

/* park.c: gives its slot up (the worker answers: request_on_parked()); goes on when its client can be sent something. */
void request_park(struct request *rq);
void request_on_parked(struct request *rq);
void request_unpark(struct request *rq);
void requests_park_stalled(struct server *s);

/* Ends who keeps a slot without reading for longer than allowed. */
void requests_tick(struct server *s);
void requests_of_session_gone(struct session *se);
void requests_of_session_drained(struct session *se);
