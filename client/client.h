/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the library's files share. */

#include "client/hearth.h"
#include "ipc/frame.h"
#include "ipc/wire.h"

struct hearth_call {
        struct hearth_call *next;
        hearth_client *client;
        uint32_t id;
        int request;          /* WIRE_generate, ... */
        bool cancelled;
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
        struct kept_error over, refusal;
        bool has_over, has_refusal;
};

/*
 * Sends message 'type' as a new call. fds may be NULL. On -EINVAL the client's
 * refusal says why.
 */
int client_request(hearth_client *c, int type, const void *body, const int *fds, uint32_t n_fds,
                   const struct hearth_events *ev, void *ud, hearth_call **ret_call);
/* A message that belongs to no call of its own (cancel). */
int client_send(hearth_client *c, int type, uint32_t id, const void *body);
/* Remembers why a request was refused here; -EINVAL. */
int client_refuse(hearth_client *c, const struct h_error *e);

void kept_error_set(struct kept_error *k, const struct h_error *e);

/* result.c: hand a message to the call's callbacks. 'm' is an event, or the final reply or error. */
int call_deliver_event(hearth_call *call, const struct schema_msg *m);
int call_deliver_final(hearth_call *call, const struct schema_msg *m);
void call_deliver_error(hearth_call *call, const struct hearth_error *e);
/* The type of the reply that answers a request of this type; -1: none. */
int reply_of(int request);
