/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The serving worker's threads and what they share.
 *
 *   control   fd 3, the outbox; tables of models and tasks; never waits
 *   text (2)  templates, tokenizing: users take turns, one long text at a time
 *   compiling (3)  schemas and grammars: two of one user at a time
 *   mask (2), slow-mask (3)  what the next token may be (masks.h)
 *   loader    opens models
 *   engine    contexts and sequences; runs steps back to back
 *
 * The engine's inbox is guarded by 'lock'; everything else a thread touches is
 * its own, atomic, or immutable while shared (device, model, tokenizer).
 */

#include <time.h>

#include "daemon/common/log.h"
#include "daemon/worker/jobs.h"
#include "daemon/worker/outbox.h"
#include "daemon/worker/sandbox.h"
#include "daemon/worker/task.h"

struct kept; /* prefix.h */

/* A step that was begun, and whose it is: each of its tasks is kept until it is finished. */
struct step_plan {
        size_t n;                /* items */
        uint32_t generated, prompt; /* rows */
};
struct begun {
        struct step_plan plan;
        struct eng_item *items;  /* [slots] */
        struct task **in_step;
        uint64_t us;
};

struct wmodel {
        struct list link;        /* in the engine's list */
        struct list known;       /* in the control thread's list */
        struct job job;
        struct worker *worker;
        uint32_t key;
        char *name;
        int fd;                  /* the sealed copy, until it is mapped */
        uint32_t want_ctx, slots, gpu_layers;
        uint64_t vram_budget;
        enum eng_rest rest;
        enum eng_kv_type kv;
        uint64_t available;

        struct eng_image *image;
        struct eng_model *model;
        struct eng_context *context;
        const struct tok *tok;
        const struct tmpl *tmpl; /* NULL: none that can be used; why is in tmpl_err */
        struct h_error tmpl_err;
        struct toolcall_style style;
        struct grammar_vocab *vocab; /* made by the first request with a grammar; under text_lock */
        pthread_mutex_t text_lock;
        struct eng_model_info info;
        uint32_t n_ctx, n_rows;

        atomic_int refs;         /* of the struct: the control thread's table, the engine or the loader, each task */
        atomic_bool closing;
        atomic_int n_tasks;      /* alive in any thread */
        bool failed;             /* never opened; nobody waits for its close */
        bool asked;              /* control thread: to close, and counted as leaving until it is freed */
        atomic_bool keep;        /* its image is parked when it closes */
        uint64_t progress_us;    /* of the last progress sent */

        /* engine thread */
        struct list tasks;
        struct list kept;        /* sequences of requests that have ended, most recently used first */
        uint32_t n_kept, max_kept;
        double us_per_row;       /* of prompt rows, measured */
        double us_decode;        /* of a step with decode rows only */
        uint32_t turn;           /* rotates whose prompt goes first */
        struct eng_item *items;  /* [slots] of the step being composed */
        struct task **in_step;
        struct eng_result *results;
        struct begun begun[2];   /* steps in flight, a ring; the one after them is composed in the next place */
        uint32_t first, n_begun;
        uint64_t finished_us;    /* the last step */
};

struct worker {
        struct log log;
        enum sandbox_wish wish;
        bool started;            /* the device is open, the sandbox closed, the other threads run */
        struct eng_device *device;
        bool on_gpu;
        char launches_why[120];  /* said in the log, by the loader */
        struct outbox out;
        struct jobs text, compiling, quick_masks, slow_masks, loader;

        pthread_t engine;
        pthread_mutex_t lock;
        pthread_cond_t some;
        struct list new_models;  /* wmodel.link */
        struct list new_tasks;   /* task.link */
        bool changed;

        /*
         * A device serves one thread at a time: the engine's steps, or the
         * loader making a context, which goes first when it wants to.
         */
        pthread_mutex_t device_lock;
        pthread_cond_t device_free;
        unsigned device_wanted;
        bool device_busy;
        atomic_bool ends, said;  /* the device is lost; the broker has been told, as soon as the outbox is sent */

        /* Images of models that left the device, still pinned: park.c. */
        pthread_mutex_t park_lock;
        struct list parked;

        atomic_uint_least64_t steps, rows;
        atomic_bool busy;        /* a step could be made */
        atomic_int opening, leaving; /* models: the loader has them; the broker waits for their end */
        struct buf event, frame; /* engine thread: messages in the making, their memory kept from token to token */
        bool ahead;              /* steps are begun ahead even where it doesn't pay */

        /* control thread */
        int fd;
        struct list models, tasks;
};

int worker_serve(const struct log *log, enum sandbox_wish wish, bool ahead); /* --serve */
int worker_fill(const struct log *log, enum sandbox_wish wish);  /* --fill */
int worker_inspect(const struct log *log, const char *path, bool json, bool verify); /* --inspect */
struct calibrate_wish { const char *dir; enum { CALIBRATE_ANY, CALIBRATE_CPU, CALIBRATE_CUDA } backend; uint32_t threads; const char *types; bool json, quick; };
int worker_calibrate(const struct log *log, const struct calibrate_wish *wish); /* --calibrate */

/* profile.c: the file of a device's profile in this directory. */
int worker_profile_path(const char *dir, bool cuda, char **ret);
/* Uses it if it is there and holds; else says why not. */
void worker_use_profile(const struct log *log, struct eng_device *d, const char *dir, bool cuda);

/* model.c: the loader's job; afterwards the engine has it, or the broker an error. */
void wmodel_open(struct job *j);
/* Unmaps it and answers 'close', unless it failed. Engine thread, without tasks. */
void wmodel_close(struct wmodel *m);
struct wmodel *wmodel_unref(struct wmodel *m); /* NULL; from any thread */
/* The grammar index of its vocabulary, made when first asked for. */
int wmodel_vocab(struct wmodel *m, const struct grammar_vocab **ret, struct h_error *err);

/* device.c: exclusive use of the device; 'urgent' ones come before the engine's next step. */
void device_take(struct worker *w, bool urgent);
void device_give(struct worker *w);
/* Ends this process, with its last words to the broker. */
_Noreturn void device_is_lost(struct worker *w, const char *why);
/* Something went wrong: does so if it was the device. */
void device_check(struct worker *w);
enum { WORKER_DEVICE_LOST = 70 }; /* exit status */

/* park.c: keeps an image (taken), hands a kept one out again, drops one. Any thread but the control thread may wait here. */
void park_keep(struct worker *w, struct eng_image *im);
struct eng_image *park_take(struct worker *w, int fd); /* of the file behind fd; NULL: none */
void park_forget(struct worker *w, const uint8_t hash[32]);

/* engine.c */
void *engine_main(void *worker);
void engine_add_model(struct worker *w, struct wmodel *m);
void engine_add_task(struct worker *w, struct task *t);
void engine_wake(struct worker *w); /* something atomic changed */

static inline uint64_t now_us(void) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}
