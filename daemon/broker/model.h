/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A resident model: a content (the cache's) with a load profile, open in the
 * worker, with its slots and its queue. Identity is content and profile; names
 * point to it. It is leased by its requests; idle time starts when the last one
 * ends.
 *
 * Life: FILLING (a fill process makes the content) -> OPENING (the worker maps
 * it; again after each death of the worker) -> READY -> CLOSING (the worker
 * unmaps it) -> gone. In CLOSING it has no requests and no names.
 */

#include "daemon/broker/cache.h"
#include "daemon/broker/fairq.h"
#include "daemon/broker/server.h"

enum model_state { MODEL_FILLING, MODEL_OPENING, MODEL_READY, MODEL_CLOSING };

/* Models in the model directories are everybody's; one passed as an fd has its name for its user only. */
struct model_name {
        struct list link;
        bool everybody;
        uint32_t uid;
        char text[];
};

struct model_profile {
        uint32_t n_ctx;   /* 0: the default */
        uint32_t slots;
        char kv[17];
        bool pinned;
        uint64_t idle_timeout;
        uint32_t gpu_layers;  /* UINT32_MAX: as many as fit */
        uint64_t vram_budget; /* 0: what is left */
        uint32_t rest;        /* index into config_rests */
};

struct model {
        struct list link, dead_link;
        struct server *server;
        uint32_t key;
        enum model_state state;
        struct list names;
        char label[256];        /* for messages and the log: its first name */
        struct model_profile profile;

        struct source *source;  /* while FILLING */
        struct fill *fill;
        uint64_t needs;         /* bytes the fill waits for; 0: none */
        struct reservation filling;
        uint64_t done, total, last_progress_ms;

        struct content *content;
        struct reservation context;
        uint64_t device_bytes;  /* on a GPU: weights and context */
        struct reservation device; /* the same, in the device's account */
        char placement[200];    /* for people; empty: where the device computes */
        uint32_t n_layers, gpu_layers;
        uint64_t host_weights;
        bool host_computes;
        bool refilled;          /* the process that reads it was killed once and started anew */
        bool divided;           /* it doesn't fit whole, whoever leaves: as many layers as fit then */
        bool keep;              /* it leaves the device only: its copy stays in memory while nobody needs the room */
        bool insist;            /* somebody wants it loaded although it is set aside */
        bool open_sent, open_waits; /* told to the worker; or memory must be freed first */
        bool dispatching, again, any_profile, dead;
        uint32_t open_crashes, beside_ends, n_deaths; /* ends of the worker that were, or may have been, its fault: see quarantine.h */
        bool doubtful, tried; /* it is to be opened alone; it was, and is being closed again */
        uint64_t first_death_ms;
        bool blamed, died_opening; /* of the last one */
        uint32_t n_ctx;         /* in effect */
        char note[513];

        struct user *pinned_by; /* whom its memory is charged to while it stays for good; NULL: nobody, or the configuration says so */
        uint64_t pinned_bytes;

        struct fairq queue;     /* want a slot */
        struct list pending;    /* want no slot: load, tokenize, ... */
        struct list running;
        struct list parked;     /* gave their slots up; wait for their clients */
        struct list unloads;
        uint32_t n_leases;
        uint8_t *slots;         /* taken? */
        uint32_t n_running;
        uint64_t loading_since_ms, last_used_ms;
        uint64_t looked_ms;     /* when its file was looked at last: is it still the one that was read? */
};

struct request;

/* A model of that name that this user may use; NULL: none resident. */
struct model *model_by_name(struct server *s, const char *name, uint32_t uid);
struct model *model_by_key(struct server *s, uint32_t key);
/* Of the model directories by that name for this user, and ready: its file may have been replaced. */
bool model_is_of_file(const struct model *m, const char *name, uint32_t uid);
/* The name to show to this user; NULL: he may not know of it. */
const char *model_name_for(const struct model *m, uint32_t uid);

/* It has names of this user only: nobody else can mean it. */
bool model_is_only(const struct model *m, uint32_t uid);

/*
 * The model of these files with this profile: one that is there, or a new one
 * that begins to load. Takes src (also on failure). 'name' becomes a name of it.
 * -EPERM: one would have to be loaded, and may_load is false.
 * 'insist': also one that is set aside.
 */
int model_get(struct server *s, struct source *src, const char *name, bool everybody, uint32_t uid, bool may_load, bool insist,
              const struct model_profile *p, bool any_profile, struct model **ret, struct h_error *err);
/* The request joins (lease taken); it is served, now or when the model is ready. */
int model_attach(struct model *m, struct request *rq, struct h_error *err);
/* It leaves, wherever it is. model_left() follows when the request is gone: others get its slot, or the model its end. */
void model_detach(struct model *m, struct request *rq);
void model_left(struct model *m);
/* It stays for good, at this user's expense. quota: it does not. */
int model_pin(struct model *m, struct user *u, struct h_error *err);
/* Its size has changed. */
int model_pin_recount(struct model *m, struct h_error *err);
void model_unpin(struct model *m);
/* Who holds its memory, for messages to anybody: a name that is one user's own is not told to others. */
const char *model_holder(const struct model *m, char buf[64]);
/* A line about it, with HEARTH_MODEL and, if not NULL, HEARTH_CODE. */
void model_log(const struct model *m, enum log_level level, const char *code, const char *fmt, ...) _printf_(4, 5);
/* Gives free slots to waiting requests. */
void model_dispatch(struct model *m);
/* Out of its slot; and into the queue again, behind those that wait already. */
void model_park(struct model *m, struct request *rq);
int model_unpark(struct model *m, struct request *rq);
/* Back to the front: the worker died. */
int model_requeue(struct model *m, struct request *rq);
/* Ends its requests with this error and unloads it. */
void model_fail(struct model *m, const struct h_error *err);
void model_close(struct model *m);

void models_tick(struct server *s);
void models_worker_ready(struct server *s);
void models_worker_lost(struct server *s, const char *how);
void models_worker_hopeless(struct server *s, const struct h_error *err);
/* Answers of the worker to open and close. */
struct wk_open_reply;
void model_on_opened(struct model *m, const struct wk_open_reply *b);
void model_on_open_progress(struct model *m, uint64_t done, uint64_t total);
void model_on_open_failed(struct model *m, const struct h_error *err);
void model_on_closed(struct model *m);
/* Once in each turn of the loop: frees the dead, serves who waited for memory. */
void models_turn(struct server *s);
void models_done(struct server *s);
