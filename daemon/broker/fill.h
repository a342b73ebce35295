/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One run of the fill process: `hearth-worker --fill` reads a model's files
 * through open fds and writes the packed copy into a memfd. It parses what
 * nobody has checked yet, so it holds nothing else: no sockets but ours, no
 * other model, nobody's text. When it has ended, the memfd is sealed here.
 */

#include "base/error.h"
#include "daemon/broker/registry.h"

struct server;
struct fill;

struct fill_result {
        int memfd;              /* sealed, read-only, close-on-exec; whoever gets the result owns it */
        uint64_t bytes, bytes_read;
        uint8_t hash[32];
        char title[129], arch[65], type[65];
        uint64_t n_params;
        uint32_t n_ctx_train;
        bool can_embed, can_chat;
};

enum fill_end {
        FILL_DONE,
        FILL_FAILED, /* it was said why, or it would be so again */
        FILL_KILLED, /* a signal ended it that may have nothing to do with what it read */
};

struct fill_ops {
        /* How much memory it needs: answered with fill_go() or fill_abort(), now or later. */
        void (*on_need)(void *ud, uint64_t bytes);
        void (*on_progress)(void *ud, uint64_t done, uint64_t total);
        /* Once, last, also after fill_abort(); then the fill is gone. r is NULL on failure. */
        void (*on_done)(void *ud, enum fill_end end, struct fill_result *r, uint64_t bytes_read, const struct h_error *err);
};

/* The source stays the caller's until on_done. */
int fill_start(struct server *s, const char *name, const struct source *src, const struct fill_ops *ops, void *ud,
               struct fill **ret, struct h_error *err);
void fill_go(struct fill *f);
/* Called now and then: ends one that has made no progress for longer than hang_timeout (a dead network disk). */
void fill_check(struct fill *f);
/* Ends the process; on_done follows with this error. */
void fill_abort(struct fill *f, const struct h_error *why);
