/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The daemon's configuration: defaults, then hearth.conf (INI), then the
 * command line. Parsed once into this struct; every error names file, line,
 * key and what was expected. Unknown keys are errors: a misspelt limit must
 * not silently be no limit.
 */

#include "base/error.h"
#include "daemon/common/log.h"

#define CONFIG_MAX_DIRS 16

/* Load profile and policy of one model; the [model NAME] section overrides [models]. */
struct config_model {
        char *name;             /* NULL: the default for all */
        uint32_t context;       /* positions per sequence; 0: the smaller of trained and 4096 */
        uint32_t slots;         /* requests that run at once */
        uint64_t idle_timeout;  /* ms without a lease until it is unloaded; 0: never */
        bool pinned;            /* never unloaded by need or idleness */
};

struct config {
        bool user_mode;         /* --user: this user's daemon; else the system's */
        char *file;             /* configuration file that was read, or NULL */
        char *socket;           /* NULL: the default of the mode */
        char *model_dirs[CONFIG_MAX_DIRS];
        size_t n_model_dirs;
        char *worker;           /* path of hearth-worker */
        enum log_level log_level;

        uint64_t host_budget;   /* bytes of the model cache and of contexts in host memory; 0: derived */
        bool cuda;              /* models live on the GPU; else on the CPU. Never changed silently */
        uint32_t threads;       /* worker's compute threads; 0: one per allowed core */
        uint64_t hang_timeout;  /* ms without a step or a loaded byte while there is work; 0: never */
        uint64_t stall_timeout; /* ms that a client may keep its request paused by not reading; 0: for ever */
        uint64_t hello_timeout; /* ms until a connection must have said hello */

        bool fd_store;          /* there is a service manager to keep copies for us */

        uint32_t max_connections;          /* in all */
        uint32_t max_connections_per_uid;
        uint32_t max_requests_per_uid;     /* queued and running */
        uint64_t max_bytes_per_uid;        /* request bodies and unsent replies held for one uid */
        uint32_t max_slots_per_uid;        /* 0: no limit but the model's */

        struct config_model model;         /* defaults */
        struct config_model *models;
        size_t n_models;
};

/* Fills in the defaults. The caller frees with config_done() also after a failure. */
void config_init(struct config *c);
int config_load(struct config *c, const char *path, struct h_error *err);
int config_add_model_dir(struct config *c, const char *dir, struct h_error *err);
/* The profile of a model by name; never NULL. */
const struct config_model *config_model_of(const struct config *c, const char *name);
void config_done(struct config *c);

/* "512M", "3 GiB", "1000000": bytes; "90s", "5 min", "250ms", "never": milliseconds. */
bool config_parse_bytes(const char *s, uint64_t *ret);
bool config_parse_time(const char *s, uint64_t *ret_ms);
