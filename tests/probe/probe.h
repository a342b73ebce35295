/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * hearth-probe: one job per run over the engine, for tests and comparisons. The
 * options are an interface: later checks use them, so rows are only added.
 */

#include <stdio.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

struct ids {
        uint32_t *v;
        uint32_t n;
};

struct options {
        const char *model, *tokens, *positions, *out, *in, *type, *text_file, *jsonl, *template_file, *variant, *profile, *turn;
        enum eng_backend backend;
        enum eng_kv_type kv;
        uint64_t vram_budget;
        int32_t gpu_layers;      /* -1: as many as fit */
        enum eng_rest rest;
        bool placed;             /* any of the three was given */
        uint32_t threads, chunk, n, window, n_windows, prefill, decode, depth, batch, ctx, prompt, repeat;
        bool exact, no_special, json, normalize, halves, host_launches;
};

/* An open model and what it stands on. Zero-initialize; probe_close() takes any state. */
struct probe {
        struct eng_device *device;
        int memfd;
        struct eng_image *image;
        struct eng_model *model;
        struct eng_context *context;
        struct image_source *source; /* of probe_open_text() */
        double load_seconds;
};

/* All print their error to stderr and return nonzero (an exit status) on failure. */
int probe_open(const struct options *o, struct probe *p);
/* With room left for this context, as a server loads. */
int probe_open_for(const struct options *o, const struct eng_limits *l, struct probe *p);
/* Only a file's vocabulary: works for files without tensors. */
int probe_open_text(const struct options *o, struct probe *p, const struct tok **ret);
void probe_close_text(struct probe *p, const struct tok *t);
int probe_context(struct probe *p, const struct eng_limits *l);
void probe_close(struct probe *p);
int probe_fail(const struct h_error *err, int r);

int parse_ids(const char *text, struct ids *ret); /* "1,2,3" or "@file" */
int read_file(const char *path, struct buf *ret);
/* Calls fn for every line of a file; stops at the first nonzero result. */
int for_each_line(const char *path, int (*fn)(void *ud, const char *line, size_t n), void *ud);
double now_seconds(void);
uint64_t peak_bytes(void);

/* Float32 [rows, cols], written as rows come. */
struct npy {
        FILE *f;
        uint64_t rows, cols;
};
int npy_create(struct npy *n, const char *path, uint64_t rows, uint64_t cols);
int npy_write(struct npy *n, const float *row, uint64_t n_rows);
int npy_close(struct npy *n);

/*
 * Feeds ids[at, at + n) as one role in chunks of the option's size; 'all': calls
 * fn for every position with its logits, else only for the last.
 */
typedef int (*row_fn)(void *ud, uint32_t pos, const float *logits);
int feed(struct probe *p, const struct options *o, eng_seq s, const uint32_t *ids, uint32_t n, enum eng_role role,
         bool all, row_fn fn, void *ud);
/*
 * What a measurement feeds to the sequences of a batch, [n_seq][n]: fixed tokens, so that two programs do the same work, and
 * at every position another one for each sequence (as far as the vocabulary goes). With the same tokens all rows of a mixture
 * choose the same experts, and a batch reads no more of them than one row: a figure that no server of several users has.
 */
void own_tokens(uint32_t n_vocab, uint32_t n_seq, uint32_t n, uint32_t *ret);
/* The smallest number of different tokens that the engine has of these sequences at a position that all of them have. */
uint32_t count_different(const struct probe *p, const eng_seq *s, uint32_t n);
/* A row_fn whose ud is a struct greedy: id becomes the token with the largest logit. */
struct greedy {
        uint32_t n_vocab, id;
};
int greedy_take(void *ud, uint32_t pos, const float *logits);

int cmd_logits(const struct options *o);
int cmd_greedy(const struct options *o);
int cmd_perplexity(const struct options *o);
int cmd_tokenize(const struct options *o);
int cmd_detokenize(const struct options *o);
int cmd_render(const struct options *o);
int cmd_dequant(const struct options *o);
int cmd_bench(const struct options *o);
int cmd_suite(const struct options *o);
int cmd_mtp(const struct options *o);
int cmd_embed(const struct options *o);
int cmd_generate(const struct options *o);
