/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the library's files share. */

#include "client/hearth.h"
#include "ipc/frame.h"
#include "ipc/wire.h"

/*
 * What a call needs to be made again on another connection: the message, its
 * files, and of a generation what has arrived. Only with reconnecting on.
 */
struct kept_call {
        struct buf frame;     /* as sent, with its length */
        int *fds;
        uint32_t n_fds;
        bool accepted;        /* the caller was told; what follows is from there */
        bool broken;          /* no memory to note what arrived: it can't be resumed */
        uint64_t request, seed;
        char *model, *identity;
        struct buf ids, roles;
        uint64_t credits;     /* allowed in all */
        bool has_credits;
        uint32_t deadline_ms;
        uint64_t began_us;
        unsigned tries;       /* connections since the last token */
        bool resend, tell;    /* to be sent on this connection; its caller to be told of the loss */
};

struct hearth_call {
        struct hearth_call *next;
        hearth_client *client;
        uint32_t id;
        int request;          /* WIRE_generate, ... */
        int reply;            /* the type that answers it; a generation sent again as `resume` has another one */
        bool cancelled;
        struct kept_call *kept; /* NULL: it ends with the connection */
        struct hearth_events events;
        void *ud;
};

/* An error as a caller sees it, with storage of its own: outlives the message it came in. */
struct kept_error {
        struct hearth_error pub;
        struct h_error e;
};

struct hearth_client {
        unsigned refs;
        bool gone;            /* the user's last reference is away; memory stays while dispatch runs */
        bool greeted;         /* the daemon answered hello */
        unsigned in_dispatch;
        int fd;               /* -1 once the connection is over */
        uint32_t next_id;
        uint64_t greeting_due;/* CLOCK_MONOTONIC, microseconds */
        struct frame_reader in;
        struct frame_queue out;
        struct hearth_call *calls;
        char *daemon_version;
        char *path, *name;    /* where and as whom it connected; path may be NULL */
        struct reconnect {
                bool on, down;        /* down: no descriptor now, another connection is tried at retry_us */
                bool can_resume;      /* the daemon says so */
                uint64_t give_up_us, retry_us, wait_us;
                uint64_t lost_us;     /* since when nothing can be asked: from the loss to the next greeting; 0: it can */
                void (*changed)(void *ud, hearth_client *c, int fd);
                void *ud;
                struct h_error why;   /* the last one */
        } re;
        struct kept_error over, refusal;
        bool has_over, has_refusal;
};

/*
 * Sends message 'type' as a new call. fds may be NULL. On -EINVAL the client's
 * refusal says why.
 */
int client_request(hearth_client *c, int type, const void *body, const int *fds, uint32_t n_fds,
                   const struct hearth_events *ev, void *ud, hearth_call **ret_call);
/* Makes a call without sending anything; the caller links it with client_add_call() or frees it. */
hearth_call *client_new_call(hearth_client *c, int type, const struct hearth_events *ev, void *ud);
void client_add_call(hearth_client *c, hearth_call *call);
void client_free_call(hearth_call *call);
/* Queues one encoded frame and sends what goes. */
int client_push(hearth_client *c, struct buf *b, const int *fds, uint32_t n_fds);
/* (Re)starts the connection's state over this descriptor and says hello. */
int client_greet(hearth_client *c, int fd);
int client_dial(const char *path, int *ret_fd);
uint64_t client_now_us(void);
/* The connection is over for good: every open call is told, in the order the requests were made. */
void client_end(hearth_client *c, const struct h_error *e);

/* reconnect.c */
/* Is the connection's end, for this reason, one that another connection mends? */
bool reconnect_mends(const hearth_client *c, const struct h_error *why);
/* The connection is lost; calls that can't be made again end. */
void reconnect_lost(hearth_client *c, const struct h_error *why);
/* While down: connects if it is time. 0, or -EHEARTH (err): given up. */
int reconnect_dispatch(hearth_client *c, struct h_error *err);
uint64_t reconnect_timeout(const hearth_client *c);
/* The daemon greeted: makes the open calls again. */
void reconnect_resend(hearth_client *c);
int reconnect_keep(hearth_call *call, const struct buf *frame, const int *fds, uint32_t n_fds);
int reconnect_send_resume(hearth_call *call, struct h_error *err);
/* Notes what an event tells; false: the caller knows it already. */
bool reconnect_note(hearth_call *call, const struct schema_msg *m);
struct kept_call *kept_free(struct kept_call *k);

/* A message that belongs to no call of its own (cancel). */
int client_send(hearth_client *c, int type, uint32_t id, const void *body);
/* Remembers why a request was refused here; -EINVAL. */
int client_refuse(hearth_client *c, const struct h_error *e);

void kept_error_set(struct kept_error *k, const struct h_error *e);

/* result.c: hand a message to the call's callbacks. 'm' is an event, or the final reply or error. */
int call_deliver_event(hearth_call *call, const struct schema_msg *m);
int call_deliver_final(hearth_call *call, const struct schema_msg *m);
void call_deliver_error(hearth_call *call, const struct hearth_error *e);
void call_deliver_cancelled(hearth_call *call);
/* The type of the reply that answers a request of this type; -1: none. */
int reply_of(int request);
