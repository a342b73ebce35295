/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Inside of engine/arch: how a family's file reads keys and tensors.
 *
 * A struct arch_ctx carries the first error (sticky): after it every helper is
 * a no-op that returns its default, so a family reads like a table and checks
 * once, at the end. Loops must still be bounded by checked numbers, which is
 * why arch_header() runs first and refuses absurd sizes.
 */

#include "engine/desc.h"

#define ARCH_MAX_LAYERS 1024
#define ARCH_MAX_HEADS 4096
#define ARCH_MAX_DIM (1u << 20)
#define ARCH_MAX_EXPERTS 4096
#define ARCH_MAX_HEAD_DIM 4096  /* keys or values of a head: what the backends' tiles are made for */
#define ARCH_MAX_STATE_DIM 512  /* either side of a delta-net state */

struct arch_ctx {
        const struct gguf *g;
        struct tensors *t;
        struct eng_desc *d;
        struct h_error *err;
        int r;                       /* first error, else 0 */

        /* What arch_header() read; per layer where files may say so. */
        uint32_t n_block;            /* block_count: trunk and MTP layers */
        uint32_t *n_head, *n_head_kv, *n_ff; /* [n_block] */
        uint32_t dk, dv;             /* attention.key_length, value_length, or n_embd / n_head */
        uint32_t n_rot;              /* rope.dimension_count, or dk */
};

/* A row of a family's table; the tables end with name NULL. */
struct arch {
        const char *name;
        int (*describe)(struct arch_ctx *c);
};

extern const struct arch arch_llama[], arch_dense[], arch_moe_table[], arch_gemma[], arch_gemma3n[], arch_hybrid[], arch_misc[],
        arch_bert[];

/* keys.c: metadata. '%s' in a key is the architecture. */
uint32_t key_u32(struct arch_ctx *c, const char *key, uint32_t def);
uint32_t key_u32_req(struct arch_ctx *c, const char *key);
/* As key_u32 / _req, refusing values outside [lo, hi] with the key named. */
uint32_t key_range(struct arch_ctx *c, const char *key, uint32_t def, uint32_t lo, uint32_t hi);
uint32_t key_range_req(struct arch_ctx *c, const char *key, uint32_t lo, uint32_t hi);
float key_f32(struct arch_ctx *c, const char *key, float def);
bool key_bool(struct arch_ctx *c, const char *key, bool def);
bool key_present(struct arch_ctx *c, const char *key);
/* Compares a string value; an absent key equals NULL only. */
bool key_is(struct arch_ctx *c, const char *key, const char *value);
/* Sets the sticky error model_invalid; returns its value. */
int arch_fail(struct arch_ctx *c, const char *fmt, ...) _printf_(2, 3);

/* keys.c: tensors. The name is a format whose only argument is the layer (ignored by names without one). */
void mat(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, const char *fmt, uint32_t layer);
void mat_opt(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, const char *fmt, uint32_t layer);
void mats(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, uint32_t n, const char *fmt, uint32_t layer);
void mats_opt(struct arch_ctx *c, struct k_weight *w, uint32_t rows, uint32_t cols, uint32_t n, const char *fmt,
              uint32_t layer);
void vec(struct arch_ctx *c, const float **v, uint64_t n, const char *fmt, uint32_t layer);
void vec_opt(struct arch_ctx *c, const float **v, uint64_t n, const char *fmt, uint32_t layer);
bool has_tensor(struct arch_ctx *c, const char *fmt, uint32_t layer);
/* How many inputs the tensor's rows have; false without the tensor or beyond ARCH_MAX_DIM. */
bool tensor_dim0(struct arch_ctx *c, const char *fmt, uint32_t layer, uint32_t *ret);
/* A host-readable vector, absent: NULL. */
const float *host_opt(struct arch_ctx *c, uint64_t n, const char *fmt, uint32_t layer);

/* common.c: what every family needs. */
int arch_header(struct arch_ctx *c);                 /* sizes, head counts, the layer array */
void arch_eps(struct arch_ctx *c, enum k_norm norm); /* the norm kind and its epsilon key */
void arch_embeddings(struct arch_ctx *c);            /* token_embd, output_norm, output (or tied) */
/* A row of desc->rope with the file's scaling; plain: without. */
int32_t arch_rope(struct arch_ctx *c, enum k_rope kind, uint32_t n_dims, float base);
int32_t arch_rope_plain(struct arch_ctx *c, enum k_rope kind, uint32_t n_dims, float base);
/* The factor YaRN puts on cos and sin, before rope.scaling.attn_factor; 1 without YaRN. */
float arch_yarn_scale(struct arch_ctx *c);
/*
 * Which layers slide, for families with a window: the key attention.sliding_window_pattern is an array of flags, or
 * a period n of which the last layer sees everything, or absent, which is a period of 'every'.
 */
void arch_windows(struct arch_ctx *c, uint32_t every, bool swa[ARCH_MAX_LAYERS]);
uint32_t arch_group(struct arch_ctx *c, uint32_t window);
/* Gives the layer's attention pages of its own; checks head counts. */
void arch_kv(struct arch_ctx *c, uint32_t layer);
/* delta: NULL for a short convolution. */
uint32_t arch_state(struct arch_ctx *c, uint32_t layer, size_t conv_floats, const struct eng_delta *delta);

/* common.c: pieces of layers. */
enum {
        ATTN_BIAS = 1,         /* q, k, v biases required (else optional) */
        ATTN_OUT_BIAS = 2,     /* the output's required */
        ATTN_QK_NORM = 4,      /* required; without any of the three: refused nowhere, not read */
        ATTN_QK_NORM_OPT = 8,
        ATTN_QK_NORM_FULL = 16,
        ATTN_GATED = 32,
};
/* Head counts, sizes, scale and rope of layer i as plain full attention; no tensors, no pages yet. */
struct eng_attn *arch_attn_init(struct arch_ctx *c, uint32_t i, int32_t rope);
/* Its projections (fused attn_qkv where the file has it), biases, norms. */
enum arch_kv_from { KV_OWN, KV_SHARED };
void arch_attn_tensors(struct arch_ctx *c, uint32_t i, unsigned flags, enum arch_kv_from from);
void arch_ffn_dense(struct arch_ctx *c, uint32_t i, uint32_t n_ff, enum k_glu act);
/* The expert_* keys and the stacked tensors of layer i. */
void arch_moe(struct arch_ctx *c, uint32_t i, enum k_glu act, enum k_gating gating, bool norm_weights);
void arch_shared_expert(struct arch_ctx *c, uint32_t i, uint32_t n_ff);
/* gemma.c: what Gemma's generations share. */
void arch_gemma_head(struct arch_ctx *c);
void arch_gemma_norms(struct arch_ctx *c, uint32_t i, bool post);
void arch_gemma_ple(struct arch_ctx *c); /* the tables of per-layer embeddings, if the file has them */

/* plain.c: families of plain decoder layers. Zero is the commonest: norms before both branches, RMS, SiLU with a gate. */
struct arch_plain {
        enum k_rope rope;
        unsigned attn;                  /* ATTN_* */
        enum k_norm norm;               /* K_NORM_RMS or K_NORM_LAYER (biases optional) */
        enum arch_norms {
                NORMS_BEFORE,           /* attn_norm, ffn_norm */
                NORMS_AFTER,            /* post_attention_norm, post_ffw_norm */
                NORMS_AROUND,           /* all four */
                NORMS_ONCE,             /* attn_norm for both branches, which are added at once */
        } norms;
        const char *ffn_pre;            /* another name of the norm before the feed-forward */
        enum k_glu act;
        bool ungated;                   /* feed-forward without a gate */
        uint32_t full_every;            /* where there is a window: every n-th layer sees everything */
        enum arch_rope_where {
                ROPE_EVERYWHERE,
                ROPE_NOT_NTH,           /* no rope on every 4th layer */
                ROPE_WINDOWED,          /* where there is a window: rope on layers with one only */
                ROPE_PLAIN_WINDOWED,    /* layers with a window rotate without the file's scaling */
        } rope_where;
        enum k_gating gating;           /* if the file does not say */
        bool no_norm_weights;           /* expert weights are not renormalized, if the file does not say */
        bool learned_positions;         /* position_embd instead of rope */
};
int arch_plain(struct arch_ctx *c, const struct arch_plain *p);
#define FFN_NORM "blk.%u.ffn_norm.weight"

/* The k-th MTP layer's own parts; its layer is described like any other. */
void arch_mtp(struct arch_ctx *c, uint32_t k);
/* Up, activation, down: no gate. */
void arch_ffn_ungated(struct arch_ctx *c, uint32_t i, uint32_t n_ff, enum k_glu act);
