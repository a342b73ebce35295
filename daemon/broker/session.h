/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One client connection: who it is, what it may hold, its frames in and out.
 * Freed when its channel is released; its requests are ended before.
 */

#include "daemon/broker/channel.h"
#include "daemon/broker/server.h"

/* A session with more unsent bytes than this gets no more credits until it has drained. */
#define SESSION_HIGH_WATER (256u << 10)
/* With more than this, which only floods of requests reach, it is not read from either: cancels are heard before that. */
#define SESSION_DEAF_WATER (1u << 20)

struct request;

struct session {
        struct channel channel; /* first */
        struct server *server;
        struct list link;
        struct user *user;
        struct list requests;
        uint64_t id;
        uint64_t since_ms;
        uint32_t pid, gid;
        uint32_t rights;        /* bit 1 << enum access_right */
        char client[65];        /* from hello */
        bool hello, closing;
        uint32_t n_files;       /* descriptors charged to the user for what no request has taken yet */
        struct h_error *files_refused; /* why those of the message that is coming were closed; or NULL */
        uint64_t begun_at, begun_ms; /* the message that was half there at the last tick, and since when */
        size_t charged;         /* bytes charged to the user for this connection's buffers */
};

/* Takes fd. Refusals are told to the client where that needs no memory of ours. */
void session_accept(struct server *s, int fd);
/* Those refused a moment ago. */
void session_close_refused(struct server *s);
void session_close(struct session *se);
/* With a last word. */
void session_refuse(struct session *se, const struct h_error *err);
/* What its peer may do as the configuration is now. */
void session_find_rights(struct session *se);
/* Descriptors of this session that a request took: it answers for them from now on. */
void session_hand_files(struct session *se, struct request *rq, uint32_t n);
/* Once a second: cuts off who says nothing, or does not end what was begun. */
void sessions_tick(struct server *s);
/* Sends the frames in *b (emptied). A client over its quota is cut off. */
void session_send(struct session *se, struct buf *b);
void session_fail(struct session *se, uint32_t id, const struct h_error *err);
/* Memory of what was not sent yet: small messages cost more than their bytes. */
static inline size_t session_unsent(const struct session *se) {
        return se->channel.out.bytes + (size_t)se->channel.out.frames * 128;
}

/* Room for more tokens? */
static inline bool session_drained(const struct session *se) {
        return session_unsent(se) < SESSION_HIGH_WATER;
}
