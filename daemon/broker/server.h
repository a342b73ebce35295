/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The broker's state, one struct, passed everywhere. One thread, one loop;
 * only registry.c and what it needs runs on libuv's thread pool.
 *
 * Ownership: the server owns sessions, requests, models, contents and the
 * worker. A request belongs to the server's list and points to its session
 * (NULL once the client is gone) and its model (NULL until found); whoever
 * frees one of those ends or detaches its requests first.
 */

#include "daemon/broker/cache.h"
#include "daemon/broker/channel.h"
#include "daemon/broker/config.h"
#include "daemon/broker/ledger.h"
#include "daemon/broker/listen.h"
#include "daemon/broker/metrics.h"
#include "daemon/broker/oom.h"
#include "daemon/broker/options.h"
#include "daemon/broker/user.h"
#include "daemon/broker/worker.h"
#include "daemon/common/list.h"
#include "daemon/common/log.h"
#include "ipc/wire.h"

/* Counted since the start; shown by `status`. */
struct counters {
        uint64_t connections, connections_refused;
        uint64_t requests, requests_failed, requests_cancelled;
        uint64_t tokens_generated, tokens_prompt, tokens_cached;
        uint64_t loads;      /* models made resident */
        uint64_t fills;      /* copies made from files */
        uint64_t cache_hits; /* loads that needed no read, or whose content was there already */
        uint64_t bytes_read; /* from model files */
        uint64_t worker_restarts, replays, quarantined;
        uint64_t oom_kills;  /* workers and fills that the kernel ended for want of memory */
        uint64_t reloads_failed;
        uint64_t parked;     /* slots given up for others */
};

#define SERVER_REFUSED 32

enum reload_state { RELOAD_NONE, RELOAD_RUNNING, RELOAD_AGAIN };

struct server {
        uv_loop_t loop;
        const struct options *options;
        struct config config;
        enum reload_state reload;
        struct log log;
        struct listener listener;
        uv_poll_t accept_poll;
        uv_timer_t accept_again; /* while no descriptor is free for a connection */
        bool socket_lost;     /* its file is gone and can't be made again: said */
        uint64_t accept_stuck_ms; /* since when; 0: they are taken */
        uv_prepare_t turn;    /* what must not happen within a callback */
        uv_timer_t tick;      /* once a second: idle models, silent connections */
        uv_timer_t watchdog;
        uv_signal_t sigterm, sigint, sighup;
        bool stopping;

        struct users users;
        struct list sessions;
        uint32_t n_sessions;
        uint64_t last_session;
        int refused[SERVER_REFUSED]; /* a ring: refused connections that have not been closed yet */
        uint32_t n_refused;

        struct list requests; /* oldest first */
        uint32_t n_requests, last_request;

        struct list models, dead_models;
        bool room_changed;    /* memory was freed in this turn of the loop */
        uint32_t last_model;
        char *default_model;  /* taken when a request names none: the last loaded */

        struct cache cache;
        struct ledger device; /* an account of the GPU's memory: the worker decides what fits, this says who has it */
        struct ledger ledger;
        struct worker worker;
        struct oom oom;
        struct list quarantine;
        uint32_t n_suspects;  /* requests that are to run alone */
        struct counters count;
        struct metrics metrics;
        uint64_t started_ms, last_tick_ms;
};

static inline uint64_t server_now(const struct server *s) {
        return uv_now(&s->loop); /* ms; as of this turn of the loop */
}
