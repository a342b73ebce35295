/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The daemon's configuration: defaults, then hearth.conf (INI), then the
 * command line. Parsed once into this struct; every error names file, line,
 * key and what was expected. Unknown keys are errors: a misspelt limit must
 * not silently be no limit.
 */

#include "base/error.h"
#include "base/sandbox.h"
#include "daemon/broker/access.h"
#include "daemon/common/log.h"

#define CONFIG_MAX_DIRS 16

enum config_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };

/* Load profile and policy of one model; the [model NAME] section overrides [models]. */
struct config_model {
        char *name;             /* NULL: the default for all */
        uint32_t context;       /* positions per sequence; 0: the smaller of trained and 4096 */
        uint32_t slots;         /* requests that run at once */
        uint64_t idle_timeout;  /* ms without a lease until it is unloaded; 0: never */
        bool pinned;            /* never unloaded by need or idleness */
        uint32_t gpu_layers;    /* whole in device memory; UINT32_MAX: as many as fit */
        uint32_t rest;          /* index into config_rests */
};

/*
 * Shared by the configuration and look-ups under way on the thread pool, which
 * a reload must not pull it away from. Counted on the loop's thread alone.
 */
struct model_dirs {
        uint32_t refs;
        size_t n;
        char *v[CONFIG_MAX_DIRS];
};

struct config {
        bool user_mode;         /* --user: this user's daemon; else the system's */
        char *file;             /* configuration file that was read, or NULL */
        char *socket;           /* NULL: the default of the mode */
        struct model_dirs *dirs; /* never NULL after config_init() */
        char *worker;           /* path of hearth-worker */
        char *profile_dir;      /* NULL: nowhere */
        enum log_level log_level;

        uint64_t host_budget;   /* bytes of the model cache and of contexts in host memory; 0: derived */
        enum config_backend backend;
        bool cuda;              /* models live on the GPU; else on the CPU. Follows from backend once, at the start (card_wanted()); never changed silently */
        uint64_t vram_budget;   /* bytes of device memory; 0: what it has */
        enum sandbox_wish sandbox; /* of the processes that see models and requests */
        uint32_t threads;       /* worker's compute threads; 0: one per allowed core */
        uint64_t hang_timeout;  /* ms without a step or a loaded byte while there is work; 0: never */
        uint64_t quarantine;    /* ms that a model which ended its worker repeatedly is set aside; 0: not at all */
        uint64_t stall_timeout; /* ms that a client may keep its request paused by not reading; 0: for ever */
        uint64_t yield_timeout; /* ms until it gives its slot up while others wait for one; 0: it does not */
        uint64_t hello_timeout; /* ms until a connection must have said hello */
        uint64_t frame_timeout; /* ms until a message that has begun must be whole; 0: for ever */

        bool fd_store;          /* there is a service manager to keep copies for us */

        uint32_t max_connections;          /* in all */
        uint32_t max_connections_per_uid;
        uint32_t max_requests_per_uid;     /* queued and running */
        uint64_t max_bytes_per_uid;        /* request bodies and unsent replies held for one uid */
        uint32_t max_files_per_uid;        /* descriptors passed with messages, while they are held */
        uint32_t max_slots_per_uid;        /* 0: no limit but the model's */
        uint64_t max_pinned_per_uid;       /* bytes kept for good; 0: no limit */

        struct access_rule access[_ACCESS_MAX];

        struct config_model model;         /* defaults */
        struct config_model *models;
        size_t n_models;
};

/* Fills in the defaults. The caller frees with config_done() also after a failure. */
int config_init(struct config *c);
int config_load(struct config *c, const char *path, struct h_error *err);
int config_add_model_dir(struct config *c, const char *dir, struct h_error *err);
/* "auto", "host", "device", NULL: what computes with weights in host memory. */
extern const char *const config_rests[];

/* The profile of a model by name; never NULL. */
const struct config_model *config_model_of(const struct config *c, const char *name);
void config_done(struct config *c);
struct model_dirs *model_dirs_unref(struct model_dirs *d); /* NULL */

/*
 * Takes over from *fresh (which stays the caller's to free) what may change
 * while the daemon runs. 'changed' is called for each key whose value differs:
 * with both values as text and when the new one takes effect.
 */
void config_apply(struct config *c, struct config *fresh,
                  void (*changed)(void *ud, const char *section, const char *key, const char *was, const char *is, const char *effect), void *ud);

/* A row of config.def, for the manual. A number's bounds are 'min' and 'max'; of other kinds both are 0. */
struct config_doc { const char *section, *key, *kind, *deflt, *doc; uint32_t min, max; bool reloads; };
size_t config_docs(const struct config_doc **ret);

/* "512M", "3 GiB", "1000000": bytes; "90s", "5 min", "250ms", "never": milliseconds. */
bool config_parse_bytes(const char *s, uint64_t *ret);
bool config_parse_time(const char *s, uint64_t *ret_ms);
