/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A context, inside the engine: places for sequences, their KV pages and
 * recurrent states, and the arrays of a step. All of it is taken by
 * eng_context_new() and counted by eng_plan() with the same code; nothing is
 * allocated later.
 */

#include "engine/forward.h"
#include "engine/kv.h"
#include "engine/model.h"

#define MAX_DRAFT 32u

/*
 * Recurrent states. Each sequence has its own run of slots. One holds the
 * current state, one the state at the end of the last prompt chunk (the
 * checkpoint: generated rows never write there), and, for drafts, one per row of
 * the last draft step, so that taking drafts back is choosing another slot. A
 * context whose steps are begun ahead has one more, so that the last generated
 * row can be taken back the same way.
 */
struct seq_state {
        uint32_t cur;                /* slot within the run; meaningless at length 0 */
        uint32_t mark, mark_len;     /* the checkpoint; mark_len 0: none */
        uint32_t prev, prev_len;     /* before the last generated row, if that has a slot of its own; prev_len 0: none */
        uint32_t n_draft;            /* rows of the last draft step */
        struct { uint32_t slot, len; } draft[MAX_DRAFT + 1];
};

struct sequence {
        bool used;
        uint32_t gen, len;
        uint32_t *tokens;            /* [n_ctx] */
        struct seq_state state;
        double *pool;                /* [n_embd] sum of the first pool_len rows, for mean pooling; or NULL */
        uint32_t pool_len;           /* differs from len after a fork or a trim: no mean then */
        uint64_t stamp;              /* of the step that saw it last: finds duplicates */
        bool pending;                /* the token at len - 1 is not on the host yet */
};

/* A step that was begun: what finish needs of each item. */
#define MAX_FLIGHT 2u
struct flight_item {
        eng_seq seq;
        uint32_t n, len;             /* rows; the sequence's length after it */
        enum eng_role role;
        uint32_t want, row0, out0;   /* first row, first row of logits */
        uint32_t n_out, out;         /* rows of logits; which of the flight's results */
        struct eng_sampling sampling;
        bool on_device;              /* the device samples */
        bool fed;                    /* a later step was begun with its token */
};
struct flight {
        uint32_t n;
        bool done;                   /* the results are there */
        bool exclusive;              /* hands out logits or hidden states: no other step may begin */
        bool prompt;                 /* has prompt rows: it takes any time, and says nothing of the next one's */
        struct flight_item *item;    /* [n_places] */
        struct eng_result *result;   /* [n_places] */
        struct k_sample_out *out;    /* [n_places] written by the device */
        uint32_t n_sample;           /* of them, and the stamp that says so */
        uint64_t stamp, begun_ns;
        void *event;                 /* for steps with prompt rows, and those that sample nothing */
};

/*
 * What a device needs that works beside its host (k_ops.sample): the tokens of
 * all places, the sampler's room, and graphs of the steps that generate one token
 * for each of 1..n_width sequences, for positions up to length[i].
 */
#define MAX_WIDTH 64u
#define MAX_LENGTHS 12u
struct beside {
        uint32_t *place;             /* [n_places] of a step's sequences */
        struct k_sample_row *rows;   /* [n_places] */
        void *mem;                   /* device, all of the following three */
        uint32_t *sampled, *history; /* [n_seq], [n_seq][n_ctx] */
        void *scratch;
        struct k_sample_out *out;    /* pinned, [MAX_FLIGHT][n_places] */
        void **graph;                /* [n_length][n_width]; NULL: not made */
        uint32_t n_width, n_length, n_made, length[MAX_LENGTHS];
        uint64_t graph_bytes;
        /* For how long to sleep: the time of a step of generated rows; when the last one was seen to be done, and was by the device's clock; ours less that. */
        uint64_t step_ns, finished_ns, device_ns, offset_ns;
};

struct step_arrays {
        uint32_t *token, *seq, *state_out;  /* [n_rows] */
        int32_t *pos;                       /* [n_rows] */
        uint32_t *state_in;                 /* [n_seq] */
        uint8_t *state_zero;                /* [n_seq] */
        uint32_t *row0;                     /* [n_seq] first row of each item */
        uint32_t *out0;                     /* [n_seq] its first row of logits */
        uint32_t *out_rows;                 /* [n_out] */
        const uint32_t **table;             /* [n_group] */
        uint32_t *table_stride;             /* [n_group] */
};

struct sampler_scratch; /* engine/sample.h */

struct eng_context {
        struct eng_model *m;
        struct k_dev *dev;
        struct eng_limits l;         /* resolved */
        uint32_t n_seq, n_out;
        uint32_t slots;              /* state slots of a sequence; 0: no recurrent layers */
        bool keep_hidden;            /* the model has embeddings or MTP */

        struct eng_memory mem;       /* as planned */
        void *arena;                 /* all host memory */
        void *mem_kv, *mem_draft, *mem_state, *mem_work;
        bool reserved;               /* the backend's scratch */
        float *logits, *hidden, *h_prev; /* device, inside mem_work */
        float *logits_host, *hidden_host; /* = device memory on the CPU */

        struct kv kv;
        struct eng_state *state;     /* [desc->n_state] */
        struct eng_forward *forward;
        struct sequence *seq;        /* [n_seq] */
        uint64_t stamp;
        struct step_arrays a;
        struct sampler_scratch *sampler;
        float *pooled;               /* [n_places][n_embd] results */
        bool async;                  /* steps run beside the host */
        struct beside beside;
        struct flight flight[MAX_FLIGHT];
        uint32_t n_flight, first_flight; /* a ring, oldest first */
        bool lost;                   /* the device failed: every later step fails */
};

/* Bytes of a plan, and what context_carve() needs to know. */
struct context_plan {
        struct eng_limits l;
        uint32_t n_seq, n_out, slots;
        bool keep_hidden;
        uint64_t kv, draft, state;   /* device */
        uint64_t forward, logits, hidden; /* device; hidden is one of two equal buffers with MTP */
        uint64_t sampling;           /* device: tokens and the sampler's room */
        uint64_t scratch;            /* the backend's */
        uint64_t pinned;             /* host memory the device writes to */
        uint64_t arena;              /* host */
};

int context_plan(const struct eng_model *m, const struct eng_limits *l, struct context_plan *ret, struct h_error *err);
/* Fills the struct's host pointers from an arena; base NULL: only counts. */
bool context_carve(struct eng_context *c, void *base, uint64_t *ret_bytes);
enum k_type context_kv_type(enum eng_kv_type t);
/* Bytes of one token's keys and values; false: the head size doesn't fit the type. */
bool context_kv_row(const struct k_ops *ops, const struct eng_kv_need *n, enum k_type t, size_t *ret_k, size_t *ret_v);
static inline bool context_keeps_kv(const struct eng_limits *l, const struct eng_kv_need *n) {
        return !n->mtp || l->n_draft > 0;
}

/* Floats of a slot beside the convolution's; 0: a short convolution. */
static inline size_t context_state_floats(const struct k_ops *ops, const struct eng_state_need *n) {
        return n->n_v ? ops->delta_slot(n->n_k, n->n_v, n->s_k, n->s_v) : 0;
}

struct sequence *context_seq(const struct eng_context *c, eng_seq s); /* NULL: stale */

/* Slot of the whole state memory in which sequence s reads or writes its slot k. */
static inline uint32_t context_slot(const struct eng_context *c, uint32_t s, uint32_t k) {
        return s * c->slots + k;
}
/* Says where each of n rows of an item puts its state: rows [row0, row0 + n) of a.state_out. */
void seq_state_begin(struct eng_context *c, uint32_t s, uint32_t item, uint32_t row0, uint32_t n, enum eng_role role);
void seq_state_commit(struct eng_context *c, uint32_t s, uint32_t n, enum eng_role role);
/* Tokens whose ids the host has. */
static inline uint32_t seq_known(const struct sequence *q) {
        return q->len - q->pending;
}
/* step_check.c: everything that can be refused, before anything is touched. */
int step_check(struct eng_context *c, const struct eng_item *items, size_t n, uint32_t *ret_rows, struct h_error *err);
uint32_t step_outputs(const struct eng_item *it); /* rows of logits an item needs */
/* The item in flight whose token an item without tokens is fed; NULL: none. */
struct flight_item *step_source(struct eng_context *c, eng_seq s);
/* A step as the backend takes it. */
struct step {
        struct k_batch b;
        struct eng_forward_io io;
        uint32_t n_sample;           /* rows of beside.rows */
};
void step_empty(struct eng_context *c, struct step *st, uint32_t n_seq);
/* step_sample.c */
bool sample_on_device(const struct eng_context *c, const struct eng_sampling *s);
void sample_row(const struct eng_context *c, const struct eng_sampling *s, uint32_t place, uint32_t row, uint32_t n_history,
                uint64_t stamp, struct k_sample_out *out, struct k_sample_row *ret);
void sample_result(const struct eng_context *c, const struct k_sample_out *o, struct eng_result *ret);
/* beside.c */
uint64_t beside_bytes(const struct eng_model *m, const struct context_plan *p, uint64_t *ret_scratch_at);
int beside_open(struct eng_context *c, const struct context_plan *p);
void beside_close(struct eng_context *c);
uint64_t beside_graph_bytes(const struct eng_model *m, const struct context_plan *p); /* at most, of all graphs */
int beside_wait(struct eng_context *c, struct flight *f);
uint64_t beside_now(void);
void *beside_graph(const struct eng_context *c, uint32_t n, uint32_t pos); /* NULL: none */
/* The longest prefix <= n from which the sequence can go on. */
uint32_t seq_usable(const struct eng_context *c, const struct sequence *q, uint32_t n);
