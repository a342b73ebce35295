/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEARTH_H
#define HEARTH_H

/*
 * libhearth: a client of the Hearth daemon.
 *
 * One file descriptor, one dispatch function, no threads, no signals, nothing
 * read from the environment. Put hearth_client_get_fd() into your loop with
 * hearth_client_get_events() and hearth_client_get_timeout(), call
 * hearth_client_dispatch() when it is ready or due, and read events and timeout
 * again afterwards. Programs without a loop call hearth_client_wait().
 *
 * Callbacks run only inside dispatch and wait. They may call anything here,
 * hearth_client_unref() included. What a callback is given is valid until it
 * returns.
 *
 * Functions return 0 or a negative errno, which tells of a local fault only. What
 * the daemon says about a request, refusals included, arrives in 'done'.
 *
 * A client and its calls belong to one thread at a time.
 *
 * Structs that a caller fills begin with 'size' and are prepared by their _init
 * function. Structs that the library fills grow at the end.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HEARTH_PUBLIC __attribute__((visibility("default")))
#else
#define HEARTH_PUBLIC
#endif

typedef struct hearth_client hearth_client;
typedef struct hearth_call hearth_call;

/* ---- errors ------------------------------------------------------------ */

struct hearth_error {
        const char *code;           /* "unknown_model", ...: docs/errors.md */
        const char *message;        /* what, why and the next step, for people */
        uint64_t needed, available; /* bytes, tokens or places; 0 if the code has none */
        int exit_status;            /* as for sysexits(3) */
        uint64_t retry_after_ms;    /* 0: not said */
        const char *field;          /* the request's field that was refused, or NULL */
        const char *const *nearest; /* names close to the one not found */
        size_t n_nearest;
        const char *const *holders; /* who holds what was needed */
        size_t n_holders;
};

/* ---- connection -------------------------------------------------------- */

/*
 * Where the daemon listens. Pass getenv("HEARTH_SOCKET") and
 * getenv("XDG_RUNTIME_DIR") or NULL. In order: the first if not empty; the user's
 * own socket if it exists; the system's, /run/hearth/hearth.sock, if it exists;
 * else the user's, where it would be. *ret_path is the caller's to free().
 * -EPERM: the fallback directory in /tmp belongs to someone else.
 */
HEARTH_PUBLIC int hearth_socket_path(const char *hearth_socket, const char *xdg_runtime_dir, char **ret_path);

/*
 * Connects and sends the greeting; requests may be made at once. 'name' (may be
 * NULL) is what `hearth ps` shows. -ENOENT or -ECONNREFUSED: no daemon listens
 * there. -EACCES: no permission. -EAGAIN: too many connections wait.
 */
HEARTH_PUBLIC int hearth_connect(const char *path, const char *name, hearth_client **ret_client);
/* The same over a connected stream socket, which is taken over on success and made non-blocking. */
HEARTH_PUBLIC int hearth_connect_fd(int fd, const char *name, hearth_client **ret_client);

HEARTH_PUBLIC hearth_client *hearth_client_ref(hearth_client *c);
/* The last one closes the connection; calls still open end without a callback. NULL is fine. Returns NULL. */
HEARTH_PUBLIC hearth_client *hearth_client_unref(hearth_client *c);

HEARTH_PUBLIC int hearth_client_get_fd(const hearth_client *c);
/* POLLIN, and POLLOUT while something waits to be sent. */
HEARTH_PUBLIC int hearth_client_get_events(const hearth_client *c);
/* Microseconds from now until dispatch wants to be called in any case; UINT64_MAX: never. */
HEARTH_PUBLIC int hearth_client_get_timeout(const hearth_client *c, uint64_t *ret_usec);
/*
 * Sends and receives what is possible now, runs callbacks, never blocks. > 0:
 * something happened; 0: nothing; < 0: the connection is over (every open call
 * has got its 'done'); see hearth_client_get_error().
 */
HEARTH_PUBLIC int hearth_client_dispatch(hearth_client *c);
/* Waits up to 'usec' (UINT64_MAX: as long as it takes) for something to happen, then dispatches. 0: the time is over, or a signal came. */
HEARTH_PUBLIC int hearth_client_wait(hearth_client *c, uint64_t usec);

/*
 * Survive the daemon. With this set (before requests are made), a connection that
 * is lost because the daemon restarts, crashes or is replaced is made again, with
 * back-off, and the open calls with it: generations are resumed behind the tokens
 * that have arrived ('paused' tells of the pause, 'accepted' does not come twice),
 * other requests are asked again; unload and credit are not. The same build, model
 * and load profile give the same tokens as without the loss; when they are others,
 * 'paused' comes with 'changed', and struct hearth_generated says it too.
 *
 * The library keeps each open request, its files, and the ids received for it.
 * Requests made while there is no connection wait for the next one.
 *
 * The descriptor changes: while there is none, hearth_client_get_fd() is -1 (which
 * poll() skips) and the timeout says when dispatch is due. Read it again, like
 * events and timeout, after each dispatch, or take 'changed'. A closed descriptor
 * has left an epoll set by itself, and the new one may have the same number.
 */
struct hearth_reconnect {
        size_t size;
        const char *path;           /* copied; NULL: where hearth_connect() connected */
        uint64_t give_up_usec;      /* after this long without a daemon; 0: 30 s; UINT64_MAX: never */
        void (*changed)(void *ud, hearth_client *c, int fd); /* within dispatch; -1: none for now. May be NULL */
        void *ud;
};
HEARTH_PUBLIC void hearth_reconnect_init(struct hearth_reconnect *r, size_t size);
/* NULL: a lost connection is the end, as it is without this function. -EINVAL: no path is known. */
HEARTH_PUBLIC int hearth_client_set_reconnect(hearth_client *c, const struct hearth_reconnect *r);

/* Why the connection is over, or NULL while it is not. Valid until the client is gone. */
HEARTH_PUBLIC const struct hearth_error *hearth_client_get_error(const hearth_client *c);
/* The daemon's program version once it answered the greeting, else NULL. */
HEARTH_PUBLIC const char *hearth_client_get_daemon_version(const hearth_client *c);

/* ---- what arrives ------------------------------------------------------ */

struct hearth_progress {
        const char *stage, *model;
        uint64_t done, total;       /* bytes; total 0: not yet known */
};

struct hearth_accepted {
        uint64_t request, seed;
        const char *model;
        uint32_t slot, n_prompt, n_cached, reused_generated;
        const char *cache_miss;     /* why no more came from the cache, or NULL */
        const char *identity;       /* build, model and load profile that compute the answer: for hearth_resume() */
        const uint32_t *roles;      /* for hearth_resume(); NULL: nothing of the prompt was evaluated as generated */
        size_t n_roles;
};

struct hearth_top {                 /* the likeliest tokens at one position, best first */
        const uint32_t *ids;
        const float *logprobs;
        const char *const *texts;   /* or NULL */
        size_t n;
};

struct hearth_tokens {
        const char *text;           /* whole characters, never NULL, NUL-terminated */
        size_t n_text;
        const char *reasoning;      /* the model's thinking, where its template marks it */
        size_t n_reasoning;
        const uint32_t *ids;        /* sampled since the last event */
        size_t n_ids;
        const float *logprobs;      /* n_ids, or NULL */
        const struct hearth_top *top; /* n_ids, or NULL */
};

struct hearth_tool_call {
        const char *id, *name, *arguments; /* arguments: JSON */
};

struct hearth_generated {
        const char *finish;         /* "stop", "length", "cancelled", ...: PROTOCOL.md */
        const char *stop_string;    /* or NULL */
        uint32_t n_prompt, n_cached, n_generated, n_drafted, n_accepted;
        uint64_t queue_us, prefill_us, first_token_us, decode_us;
        uint64_t seed;
        const struct hearth_tool_call *tool_calls;
        size_t n_tool_calls;
        bool changed;               /* another build or load profile continued the answer: it may differ from an undisturbed one */
};

struct hearth_vectors { const float *values; uint32_t n, dim, n_tokens; };
struct hearth_ids { const uint32_t *ids; size_t n; const char *const *pieces; size_t n_pieces; };
struct hearth_bytes { const char *data; size_t n; };

struct hearth_loaded {
        const char *model;
        uint32_t n_ctx, slots;
        uint64_t bytes, load_us;
        bool cached;
        const char *placement;      /* on a GPU: which part is where and what to expect, for people; never NULL */
        uint32_t n_layers, gpu_layers;
        uint64_t device_bytes, host_weights;
};

struct hearth_model {
        const char *name, *where, *type, *arch, *hash, *note; /* strings never NULL */
        uint64_t bytes, n_params, idle_ms;
        uint32_t n_ctx, n_ctx_train, slots, in_use, n_parts;
        bool pinned, is_default, can_embed, can_chat;
        const char *placement;      /* as in struct hearth_loaded */
        uint64_t device_bytes;
};

struct hearth_request {
        uint64_t request;
        const char *client, *user, *model, *phase;
        uint32_t pid, uid, slot, position, n_prompt, n_cached, n_generated;
        double tokens_per_s;
        uint64_t age_ms, wait_ms;
};

struct hearth_metric { const char *name; double value; };

struct hearth_status {
        const char *daemon, *socket, *worker, *device;
        uint32_t protocol, pid, worker_pid, worker_restarts, clients, running, waiting, models_resident;
        uint64_t uptime_ms, host_bytes, host_budget, device_bytes, device_budget;
        const struct hearth_metric *metrics;
        size_t n_metrics;
        const char *worker_end; /* how the last worker that ended did; empty: none has */
};

/* The end of a call: 'error', or the member of its kind (others NULL). Lists are arrays of pointers. */
struct hearth_result {
        const struct hearth_error *error;
        const struct hearth_generated *generated;
        const struct hearth_vectors *vectors;
        const struct hearth_ids *ids;
        const struct hearth_bytes *bytes;
        const struct hearth_loaded *loaded;
        const struct hearth_model *const *models;
        size_t n_models;
        const struct hearth_request *const *requests;
        size_t n_requests;
        const struct hearth_status *status;
        uint64_t freed_bytes;       /* of unload */
        const char *const *dirs;    /* of models: the directories searched */
        size_t n_dirs;
        uint32_t more;              /* of models and requests: as many further ones had no room in the answer */
};

/* Any may be NULL. 'done' comes once and last; the call is gone when it returns. */
struct hearth_events {
        size_t size;                /* sizeof(struct hearth_events) */
        void (*progress)(void *ud, hearth_call *call, const struct hearth_progress *p);
        void (*queued)(void *ud, hearth_call *call, uint32_t position);
        void (*accepted)(void *ud, hearth_call *call, const struct hearth_accepted *a);
        void (*tokens)(void *ud, hearth_call *call, const struct hearth_tokens *t);
        void (*paused)(void *ud, hearth_call *call, const char *reason, bool changed); /* changed: what follows may differ */
        void (*done)(void *ud, hearth_call *call, const struct hearth_result *r);
};

/* ---- requests ---------------------------------------------------------- */
/*
 * All of them queue the request and return at once; strings are copied.
 * ret_call may be NULL; the call stays the library's and is valid until 'done'
 * returns. -EINVAL: a field is out of its bounds (hearth_client_get_refusal() says
 * which); -ENOTCONN: the connection is over.
 */

/* A model: by name, or as open files (all parts of a split model in order) with the path to show. Zeroed: the daemon's default. */
struct hearth_source {
        const char *name;
        const int *fds;             /* duplicated; stay the caller's */
        uint32_t n_fds;
};

enum hearth_kind { HEARTH_COMPLETE, HEARTH_CHAT, HEARTH_FIM };

struct hearth_generate {
        size_t size;
        struct hearth_source model;
        enum hearth_kind kind;
        const char *prompt; size_t n_prompt;         /* n 0: up to the NUL, as for all text here */
        const uint32_t *prompt_ids; size_t n_prompt_ids; /* instead of prompt */
        const char *messages, *tools, *template_vars; /* chat: JSON */
        const char *system;
        const char *prefix, *suffix;                 /* fim */
        uint32_t max_tokens;                         /* 0: as many as the context holds */
        double temperature, top_p, min_p;            /* negative: the daemon's default */
        int64_t top_k, penalty_last;                 /* negative: the daemon's default */
        double repeat_penalty;                       /* 0 or negative: the daemon's default */
        double presence_penalty, frequency_penalty;
        const uint32_t *bias_ids; const float *bias_values; size_t n_bias;
        uint64_t seed;                               /* 0: the daemon chooses and tells */
        const char *const *stop; size_t n_stop;
        uint32_t logprobs;                           /* of the n likeliest tokens */
        uint32_t deadline_ms;                        /* 0: none */
        const char *supersedes;                      /* ends this connection's running request of the same key */
        const char *json_schema, *grammar;
        uint32_t credits;                            /* tokens sent before hearth_call_credit(); 0: no limit */
        bool special, no_bos, prewarm, exact;        /* see PROTOCOL.md */
};
HEARTH_PUBLIC void hearth_generate_init(struct hearth_generate *g, size_t size);

HEARTH_PUBLIC int hearth_generate(hearth_client *c, const struct hearth_generate *g, const struct hearth_events *ev,
                                  void *ud, hearth_call **ret_call);
/*
 * Continues a generation whose connection was lost, also one of another process or
 * of another daemon's. (hearth_client_set_reconnect() does it by itself.) The
 * tokens given are not sent again; those that follow are as without the loss.
 * hearth_result.generated speaks of the whole answer, its times of the continuation.
 */
struct hearth_resume {
        size_t size;
        const struct hearth_generate *generate; /* as it was asked */
        uint64_t request, seed;                 /* from 'accepted', as all that follows */
        const char *model, *identity;           /* model: meant if 'generate' names none */
        const uint32_t *roles; size_t n_roles;
        const uint32_t *ids; size_t n_ids;      /* the tokens received */
};
HEARTH_PUBLIC void hearth_resume_init(struct hearth_resume *r, size_t size);
HEARTH_PUBLIC int hearth_resume(hearth_client *c, const struct hearth_resume *r, const struct hearth_events *ev, void *ud,
                                hearth_call **ret_call);

enum { HEARTH_SPECIAL = 1, HEARTH_BOS = 2 };
HEARTH_PUBLIC int hearth_tokenize(hearth_client *c, const struct hearth_source *model, const char *text, size_t n_text,
                                  unsigned flags, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
HEARTH_PUBLIC int hearth_detokenize(hearth_client *c, const struct hearth_source *model, const uint32_t *ids, size_t n_ids,
                                    unsigned flags, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
enum { HEARTH_NOT_NORMALIZED = 1 };
HEARTH_PUBLIC int hearth_embed(hearth_client *c, const struct hearth_source *model, const char *const *texts, size_t n_texts,
                               unsigned flags, const struct hearth_events *ev, void *ud, hearth_call **ret_call);

struct hearth_load {
        size_t size;
        struct hearth_source model;
        uint32_t n_ctx, slots;      /* 0: the daemon's choice */
        const char *kv;             /* NULL, "f16", "q8_0", ... */
        bool pin;
        int32_t gpu_layers;         /* layers whole in device memory; 0: the daemon's choice; -1: none */
        uint64_t vram_budget;       /* most device memory, in bytes; 0: the daemon's choice */
};
HEARTH_PUBLIC void hearth_load_init(struct hearth_load *l, size_t size);
HEARTH_PUBLIC int hearth_load(hearth_client *c, const struct hearth_load *l, const struct hearth_events *ev, void *ud,
                              hearth_call **ret_call);
HEARTH_PUBLIC int hearth_unload(hearth_client *c, const char *model, bool force, const struct hearth_events *ev, void *ud,
                                hearth_call **ret_call);
HEARTH_PUBLIC int hearth_models(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
HEARTH_PUBLIC int hearth_ps(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
HEARTH_PUBLIC int hearth_status(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
/* Figures for monitoring, as Prometheus' text, in the result's bytes. */
HEARTH_PUBLIC int hearth_metrics(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);
HEARTH_PUBLIC int hearth_ping(hearth_client *c, const struct hearth_events *ev, void *ud, hearth_call **ret_call);

/* Asks the daemon to end the call; 'done' still comes. Repeating it does nothing. */
HEARTH_PUBLIC int hearth_call_cancel(hearth_call *call);
/* Lets a generation with 'credits' send n further tokens. */
HEARTH_PUBLIC int hearth_call_credit(hearth_call *call, uint32_t n);
HEARTH_PUBLIC hearth_client *hearth_call_get_client(hearth_call *call);

/* Why the last request function on this client returned -EINVAL, or NULL. */
HEARTH_PUBLIC const struct hearth_error *hearth_client_get_refusal(const hearth_client *c);

#ifdef __cplusplus
}
#endif
#endif
