/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * GGUF files of published shapes with random weights, to measure speed and memory
 * where no real weights can be had. The text of such a model means nothing.
 *
 * A model is never held in memory: any range of its file can be asked for, from
 * several threads, and comes out the same each time (a stream per seed, tensor and
 * chunk). synth_gguf writes it to a file; hearth-probe reads "synth:SPEC" without one.
 *
 * SPEC is MODEL:TYPE and options, each behind a colon: layers=N, seed=N, tiny (the
 * same tensors and keys with small widths, few layers and a short vocabulary).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- tensor types ---------------------------------------------------------- */
struct synth_type {
        const char *name;
        uint32_t id, block, bytes; /* GGUF's number; weights and bytes of a block */
        uint32_t ftype;            /* general.file_type of a file of it */
};
const struct synth_type *synth_type_find(const char *name);

/* What a tensor's numbers look like. */
enum synth_init {
        SYNTH_QUANT,  /* spread near 0.02, for types with a minimum centred by it */
        SYNTH_NORM,   /* 1 +- 0.05 */
        SYNTH_BIAS, SYNTH_ROUTER, SYNTH_SINK, SYNTH_CONV, SYNTH_DECAY, SYNTH_DT, SYNTH_ONE,
};
/* How a generated token reads it: whole, a share of the experts, one row, only when drafting. */
enum synth_use { SYNTH_DENSE, SYNTH_EXPERT, SYNTH_ROW, SYNTH_DRAFT, SYNTH_USES };

struct synth_tensor {
        char name[64];
        const struct synth_type *type;
        enum synth_init init;
        enum synth_use use;
        uint32_t n_dims;
        uint64_t ne[3], offset, bytes; /* offset within the data */
};

/* Fills blocks [first, first + n) of a chunk: fill.c. A chunk is at most SYNTH_CHUNK bytes, whole blocks. */
enum { SYNTH_CHUNK = 64 << 10 };
static inline uint64_t synth_chunk_blocks(const struct synth_type *t) { return SYNTH_CHUNK / t->bytes; }
void synth_fill(const struct synth_tensor *t, uint64_t chunk, uint64_t n_blocks, uint8_t *dst, uint64_t seed, uint64_t index);

/* ---- models: shapes.c -------------------------------------------------------- */
struct synth_model;
const char *synth_model_name(uint32_t i); /* NULL behind the last */

/* ---- a file --------------------------------------------------------------------- */
struct synth_facts {
        char model[48], type[16];
        uint32_t n_layers, n_tensors, n_vocab;
        uint64_t file, total, by_use[SYNTH_USES]; /* bytes: the file, all tensors */
        uint64_t decode;                          /* that a generated token reads */
};
struct synth;
/* 0, or -EINVAL / -ENOMEM with the reason in 'why'. */
int synth_open(const char *spec, struct synth **ret, char why[256]);
struct synth *synth_close(struct synth *s);
const struct synth_facts *synth_facts(const struct synth *s);
/* Bytes of the file, as pread would give them; from any thread. */
ssize_t synth_read(const struct synth *s, void *buf, size_t n, uint64_t off);
void synth_facts_json(const struct synth_facts *f, FILE *to);

/* Used by shapes.c while a file is described; a failure sticks (synth.c). */
void synth_u32(struct synth *s, const char *key, uint32_t v); /* a key that begins with a dot gets the architecture before it */
void synth_f32(struct synth *s, const char *key, float v);
void synth_str(struct synth *s, const char *key, const char *v);
void synth_i32s(struct synth *s, const char *key, const int32_t *v, uint32_t n);
void synth_bools(struct synth *s, const char *key, const bool *v, uint32_t n);
void synth_add(struct synth *s, const char *name, const struct synth_type *t, enum synth_init init, enum synth_use use, uint64_t a,
               uint64_t b, uint64_t c);
void synth_fail(struct synth *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Describes MODEL in TYPE into s; ret_used, ret_experts: how many of the experts a token uses. */
void synth_describe(struct synth *s, const char *model, const struct synth_type *t, uint32_t layers, bool tiny, uint32_t *ret_used,
                    uint32_t *ret_experts);
void synth_set_arch(struct synth *s, const char *arch);
