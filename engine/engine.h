/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The engine's only public header: device, image (a model as packed bytes in a
 * memfd), model, context (places and KV pages), sequence, step.
 *
 * Threads: an eng_model may be shared; an eng_context and its sequences belong
 * to one thread at a time. Nothing here knows sockets, msgpack or libuv.
 * Errors: 0, or -EHEARTH with 'err' filled (base/error.h), or a negative errno.
 * Memory: eng_plan() says every byte a context will take before it is taken;
 * a step allocates nothing.
 */

#include "base/error.h"
#include "base/types.h"

#include <sys/types.h>

struct tok;  /* engine/text/tokenizer.h */
struct tmpl; /* engine/text/template.h */

/* ---- device ---------------------------------------------------------- */
struct eng_device;
enum eng_backend { ENG_CPU, ENG_CUDA };
struct eng_device_options {
        enum eng_backend backend;
        uint32_t threads;     /* CPU: 0 = one per allowed core */
        int ordinal;          /* CUDA */
        uint64_t vram_budget; /* CUDA: 0 = what is free */
        bool exact;           /* reference arithmetic: activations stay f32 */
        bool host_launches;   /* CUDA: k_cuda_options has it */
        const char *variant;  /* NULL/"auto", "portable", "scalar", "avx2", "avx512", "amx" */
};
int eng_device_open(const struct eng_device_options *o, struct eng_device **ret, struct h_error *err);
struct eng_device *eng_device_close(struct eng_device *d); /* NULL ok; returns NULL */
const char *eng_device_describe(struct eng_device *d);
/* The same of the processor that computes beside the device; "" before a model needs it. */
const char *eng_device_host(struct eng_device *d);
/* Bytes of memory the device could still give now (host: MemAvailable and cgroup limit). */
int eng_device_memory(struct eng_device *d, uint64_t *ret_total, uint64_t *ret_free);
int eng_device_budget(struct eng_device *d, uint64_t *ret); /* device memory that may be used in all, as configured or as it has */
/*
 * How often the host launched a graph of a step so far: with a device that goes on by itself, for a few of many steps only.
 * *ret_why: why it doesn't, or "". 0 and "" where nothing is launched.
 */
uint64_t eng_device_launches(struct eng_device *d, const char **ret_why);
/* Why nothing can be done with it any more in this process; NULL: it works. From any thread. */
const char *eng_device_lost(struct eng_device *d);
/* The kernel begun last, as file:line; "" where that is not known. From any thread, also while it runs. */
const char *eng_device_where(struct eng_device *d, char buf[64]);

/* ---- image: GGUF -> one flat, sealed, position-independent copy -------- */
/* A source of one or more open files (split models: all parts in order). fds stay the caller's. */
struct eng_source {
        const int *fds;
        size_t n_fds;
        const char *name; /* for messages */
        /* Optional: called when the first file says it is part 1 of n; fills fds for the rest. NULL: error names the missing part. */
        int (*open_part)(void *ud, uint32_t part, uint32_t n_parts, int *ret_fd, struct h_error *err);
        void *ud;
        /* Reads go through this (count them, fail them); NULL: pread. */
        ssize_t (*pread)(void *ud, int fd, void *buf, size_t n, uint64_t off);
        bool parallel; /* pread may be called from several threads at once (NULL may) */
};
struct eng_image_options {
        enum eng_backend backend;                       /* whose layout to pack for */
        void (*progress)(void *ud, uint64_t done, uint64_t total); /* bytes packed */
        void *ud;
        uint64_t max_bytes;                             /* host budget; 0: none. Checked before anything is written */
};
/*
 * Parses (bounded, checked), then writes manifest and tensors to 'memfd' (an
 * empty, writable, seekable fd; sized with ftruncate, written with pwrite or a
 * mapping that is gone on return). On error memfd's content is undefined.
 */
int eng_image_build(const struct eng_source *src, const struct eng_image_options *o, int memfd, uint64_t *ret_bytes,
                    struct h_error *err);
/* Only the size that eng_image_build would write (reads metadata only). */
int eng_image_size(const struct eng_source *src, const struct eng_image_options *o, uint64_t *ret_bytes, struct h_error *err);
/*
 * The same, and whether eng_model_open() would take the model: architecture, keys, the tensors' names and shapes, vocabulary.
 * What only the weights' bytes can show comes later. 'ret_bytes' may be NULL.
 */
int eng_image_check(const struct eng_source *src, const struct eng_image_options *o, uint64_t *ret_bytes, struct h_error *err);

/*
 * Reads every weight and looks for values that are not finite: model_invalid
 * names the first tensor that has any. Of 'o' only progress is used; may be NULL.
 */
int eng_source_verify(const struct eng_source *src, const struct eng_image_options *o, struct h_error *err);

struct eng_image; /* a mapped image */
/* Maps read-only and checks the manifest as untrusted input; 'fd' stays the caller's. require_seals: refuse unless sealed. */
int eng_image_open(int fd, bool require_seals, struct eng_image **ret, struct h_error *err);
struct eng_image *eng_image_close(struct eng_image *im); /* before the device that a model of it was on */
void eng_image_file(const struct eng_image *im, dev_t *ret_dev, ino_t *ret_ino); /* the memory file that is mapped */
const uint8_t *eng_image_hash(const struct eng_image *im); /* 32 bytes: content hash of the source */

struct eng_model_info {
        char name[128], arch[64], type[64];  /* general.name, architecture, "Q4_1" or "Q4_K + Q6_K" by bytes */
        uint64_t n_params, bytes;            /* weights' bytes in the image */
        uint32_t n_ctx_train, n_layer, n_embd, n_vocab;
        bool can_generate, can_embed, has_mtp, has_recurrent_state, has_template, has_fim;
};
void eng_image_info(const struct eng_image *im, struct eng_model_info *ret);

/* ---- model ------------------------------------------------------------- */
struct eng_model;
int eng_model_open(struct eng_device *d, struct eng_image *im, struct eng_model **ret, struct h_error *err); /* image must outlive it */

/*
 * Loading with a plan: what of the model goes into the device's memory, with
 * room left for the context to come. May be called beside steps of other models.
 * The rest stays in the image, pinned: a prompt's tokens pass it through the
 * device's memory; a generated token's products are made by 'rest'. Which is
 * part of the load profile: the same placement gives the same bits.
 */
enum eng_rest {
        ENG_REST_AUTO,      /* the host's processor where it has fast code for it, else the device */
        ENG_REST_HOST,      /* the host's processor */
        ENG_REST_DEVICE,    /* the device, reading over the bus */
};
struct eng_limits; /* below */
struct eng_load {
        const struct eng_limits *limits; /* of the context to come; NULL: none is counted */
        int32_t gpu_layers;     /* layers whole in device memory; -1: as many as fit. Of a mixture of experts, what is no expert is there anyway */
        uint64_t vram_budget;   /* device memory for this model and its context; 0: what the device has left */
        enum eng_rest rest;
        void (*progress)(void *ud, uint64_t done, uint64_t total); /* bytes uploaded */
        void *ud;
};
int eng_model_load(struct eng_device *d, struct eng_image *im, const struct eng_load *l, struct eng_model **ret, struct h_error *err);
struct eng_placement {
        uint32_t n_layer, n_device;         /* layers; of them whole in device memory */
        uint64_t device_bytes, host_bytes;  /* of the weights */
        uint64_t ring_bytes;                /* device memory through which the rest passes */
        uint64_t pin_us, upload_us;         /* upload: pinning included */
        bool host_computes;                 /* generated tokens' products with host_bytes are the host processor's */
        double decode_tok_s, prefill_tok_s; /* expected of one sequence without context; 0: not known */
};
void eng_model_placement(const struct eng_model *m, struct eng_placement *ret);
struct eng_model *eng_model_close(struct eng_model *m);
const struct eng_model_info *eng_model_info(const struct eng_model *m);
const struct tok *eng_model_tokenizer(const struct eng_model *m);  /* NULL: vocabulary "none" */
/* NULL and err filled if there is none or it can't be used. */
const struct tmpl *eng_model_template(const struct eng_model *m, struct h_error *err);
/* Its source, as the file has it; not NUL-terminated. NULL if there is none. */
const char *eng_model_template_source(const struct eng_model *m, size_t *ret_n);

/* ---- context ----------------------------------------------------------- */
enum eng_kv_type { ENG_KV_F16, ENG_KV_F32, ENG_KV_BF16, ENG_KV_Q8_0, ENG_KV_Q4_0 };
struct eng_limits {
        uint32_t n_places;   /* sequences resident at once */
        uint32_t n_ctx;      /* positions per sequence; 0: min(trained, 8192) */
        uint32_t n_rows;     /* most rows in one step (decode + prefill); 0: 512 + n_places */
        enum eng_kv_type kv;
        uint32_t n_draft;    /* draft depth reserved; 0: none */
        uint32_t n_outputs;  /* most rows of logits in one step; 0: n_places * (1 + n_draft) */
        uint32_t n_prefix;   /* extra places for cached prefixes (recurrent states included) */
        bool ahead;          /* a step may be begun before the one before it is finished: keeps one more recurrent state */
};
struct eng_memory { /* bytes on the device */
        uint64_t weights, kv, state, draft, workspace, graphs, context, total;
};
/* What eng_context_new will take; fails with model_no_memory (needed/available) if 'available' (0: ask device) is less. */
int eng_plan(const struct eng_model *m, const struct eng_limits *l, uint64_t available, struct eng_memory *ret,
             struct h_error *err);
struct eng_context;
int eng_context_new(struct eng_model *m, const struct eng_limits *l, struct eng_context **ret, struct h_error *err);
/*
 * Makes the next of what steps want to have ready (graphs), so that none is made while it serves. 1: there is more, call
 * again; 0: all is made. Steps are right without it, and slower.
 */
int eng_context_warm(struct eng_context *c, struct h_error *err);
struct eng_context *eng_context_free(struct eng_context *c);
/* What it has taken; the plan's numbers, and of graphs what was measured. */
void eng_context_memory(const struct eng_context *c, struct eng_memory *ret);
const struct eng_limits *eng_context_limits(const struct eng_context *c); /* with defaults filled in */

/* ---- sequences --------------------------------------------------------- */
typedef struct { uint32_t index, gen; } eng_seq; /* stale handles are refused (-ESTALE) */
int eng_seq_new(struct eng_context *c, eng_seq *ret);           /* -EBUSY: no place free */
int eng_seq_free(struct eng_context *c, eng_seq s);
uint32_t eng_seq_len(const struct eng_context *c, eng_seq s);   /* tokens evaluated */
const uint32_t *eng_seq_tokens(const struct eng_context *c, eng_seq s);
/*
 * Keeps the first n tokens. With recurrent state n must be a checkpoint; *ret_n is what was kept (<= n). With
 * eng_limits.ahead the last generated token can always be taken back, also while its step is in flight.
 */
int eng_seq_trim(struct eng_context *c, eng_seq s, uint32_t n, uint32_t *ret_n);
/*
 * Prefix reuse: a new sequence that shares s's pages for the longest usable
 * prefix <= n tokens (pages are reference-counted). *ret_n: tokens shared.
 */
int eng_seq_fork(struct eng_context *c, eng_seq s, uint32_t n, eng_seq *ret, uint32_t *ret_n);

/* ---- step -------------------------------------------------------------- */
enum eng_role { ENG_ROLE_PROMPT, ENG_ROLE_GENERATED, ENG_ROLE_DRAFT };
enum { ENG_WANT_NONE = 0, ENG_WANT_SAMPLE = 1, ENG_WANT_LOGITS_LAST = 2, ENG_WANT_LOGITS_ALL = 4, ENG_WANT_EMBEDDING = 8 };

struct eng_bias { uint32_t token; float bias; };
struct eng_sampling {
        float temperature;      /* 0: greedy (lowest id on ties) */
        uint32_t top_k;         /* 0: off */
        float top_p, min_p;     /* 1 / 0: off */
        float repeat_penalty;   /* 1: off */
        float presence_penalty, frequency_penalty;
        uint32_t penalty_last;  /* tokens looked back on; 0: all */
        const struct eng_bias *bias; size_t n_bias;
        uint64_t seed;
        uint32_t n_top;         /* logprobs of the n best, <= 20 */
        const uint64_t *mask;   /* bitset of n_vocab allowed tokens, or NULL */
};
struct eng_item {
        eng_seq seq;
        const uint32_t *tokens; uint32_t n; /* fed at positions eng_seq_len() .. + n; NULL, see eng_step_begin() */
        enum eng_role role;
        uint32_t want;
        const struct eng_sampling *sampling; /* for ENG_WANT_SAMPLE: next token after the last fed one */
};
struct eng_top { uint32_t token; float logprob; };
struct eng_result {
        uint32_t token; float logprob;          /* ENG_WANT_SAMPLE; logprob before temperature and penalties */
        struct eng_top top[20]; uint32_t n_top;
        const float *logits; uint32_t n_logits; /* [n_logits, n_vocab], valid until the next step */
        const float *embedding;                 /* [n_embd] pooled */
};
/*
 * Evaluates all items in one step and fills ret[0..n). Items of one step are of
 * different sequences; total tokens <= n_rows. Refuses before touching anything:
 * -EINVAL (bad handle, duplicate, token id out of range), -E2BIG (rows or context),
 * positive ENG_NO_PAGES. -EIO: the device is lost.
 */
enum { ENG_NO_PAGES = 1, ENG_WAIT = 2 };
#define ENG_NO_TOKEN UINT32_MAX /* sampled when the mask allows nothing */
int eng_step(struct eng_context *c, const struct eng_item *items, size_t n, struct eng_result *ret, struct h_error *err);
/*
 * The same in two halves, so that a device need not wait for its host. Steps run in the order in which they were begun;
 * two may be in flight. Sequences are as after the step once it has begun: eng_seq_len() counts its tokens, and what is
 * trimmed or freed is taken back, while finish still fills in the result of its item.
 *
 * An item with 'tokens' NULL (n 1, role GENERATED) is fed what the step in flight samples for its sequence, whatever that
 * will be; if it is ENG_NO_TOKEN, the item's result means nothing. Bias and mask must stay until the step is finished.
 *
 * begin: as eng_step(); ENG_WAIT: nothing was touched, the step in flight must be finished first (it hands out logits or
 * embeddings, or the host samples a token that this one needs, or two are in flight). finish: the oldest one; -EINVAL if
 * none is in flight. *ret_n, if not NULL: its items.
 */
int eng_step_begin(struct eng_context *c, const struct eng_item *items, size_t n, struct h_error *err);
int eng_step_finish(struct eng_context *c, struct eng_result *ret, size_t *ret_n, struct h_error *err);
bool eng_context_ahead(const struct eng_context *c); /* steps run beside the caller: beginning the next one early pays */
/* The sampler alone, for tests and for callers with their own logits. history: all tokens so far. pos: position being sampled. */
uint32_t eng_sample(const float *logits, uint32_t n_vocab, const struct eng_sampling *s, const uint32_t *history,
                    uint32_t n_history, uint32_t pos, struct eng_result *ret);

/* Logits of the MTP layer for every position of 'tokens' (see FORMATS): out [n, n_vocab]. -EHEARTH unsupported if it has none. */
int eng_mtp_logits(struct eng_context *c, const uint32_t *tokens, uint32_t n, float *out, struct h_error *err);
