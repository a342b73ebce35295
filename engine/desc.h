/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A model's description: what its layers are, as data. engine/arch/ fills it
 * from the metadata and the tensors (engine/tensors.h); engine/forward.c walks
 * it; the context reads from it which KV pages and recurrent states to keep.
 *
 * Ownership: the description owns its arrays only; weights and vectors belong
 * to the model whose tensors filled it and must outlive it.
 *
 * Invariants after arch_describe() returned 0: every tensor that is present has
 * the shape the walk needs; heads divide; windows, groups, KV, state and rope
 * indexes are in range; every number from the file is finite and bounded.
 * A vector that is absent is NULL; a matrix that is absent has data NULL.
 */

#include "base/error.h"
#include "engine/gguf.h"
#include "engine/tensors.h"
#include "kernels/kernels.h"

/* Page tables: layers of one group read the same positions, so they share a table. */
struct eng_kv_group {
        uint32_t window; /* 0: all positions; else only the last 'window' positions are ever read */
};

/* The KV cache of one layer that owns one. */
struct eng_kv_need {
        uint32_t layer, group;
        uint32_t n_head_kv, dk, dv;
        bool v_in_k;  /* values are the first dv columns of the key row: no V pages (MLA) */
        bool mtp;     /* belongs to an MTP layer */
};

/* The state of one recurrent layer. */
struct eng_state_need {
        uint32_t layer;
        size_t conv_floats;            /* of a slot */
        uint32_t n_k, n_v, s_k, s_v;   /* of a delta net, whose slots take what the backend says (ops->delta_slot); 0: a short convolution */
};

enum eng_mixer { ENG_MIX_ATTENTION, ENG_MIX_MLA, ENG_MIX_DELTA, ENG_MIX_SHORTCONV };

struct eng_attn {
        uint32_t n_head, n_head_kv, dk, dv;
        uint32_t window;          /* 0: all; else visible if pos_q - pos_k < window */
        int32_t rope;             /* index into desc->rope, -1: none */
        float scale, softcap;
        struct k_weight wqkv;     /* fused [q | k | v] rows; then wq, wk, wv are absent */
        struct k_weight wq, wk, wv, wo;
        const float *bqkv, *bq, *bk, *bv, *bo;
        const float *q_norm, *k_norm;
        bool norm_full;           /* q/k norms span all heads (olmo2) */
        bool v_norm;              /* weightless RMS norm of V (gemma4) */
        bool v_from_k;            /* V is the raw K projection (gemma4) */
        bool gated;               /* wq rows are [q, gate] per head; output *= sigmoid(gate) */
        const float *sinks;       /* [n_head] */
        const float *sub_norm;    /* RMS norm of the attention output before wo (bitnet) */
        uint32_t kv;              /* index into desc->kv */
        bool kv_shared;           /* reads another layer's pages and writes none */
        /* MLA: q = [latent kv_rank | rope], key row = [latent | rope], dk = kv_rank + d_rope, dv = kv_rank */
        uint32_t d_nope, d_rope, kv_rank, q_rank, d_v;
        struct k_weight wq_a, wq_b, wkv_a, wk_b, wv_b; /* wq_a absent: wq_b acts on the layer's input */
        const float *q_a_norm, *kv_a_norm;
};

struct eng_delta {
        uint32_t n_k, n_v, s_k, s_v, conv;
        bool k_head_blocked;
        uint32_t ba_run;          /* see struct k_delta_args */
        struct k_weight wqkv, wz, wbeta, walpha, wba, wout; /* wba: beta and alpha in one product */
        const float *conv_w, *a, *dt_bias, *norm;
        uint32_t state;           /* index into desc->state */
};

struct eng_shortconv {
        uint32_t d, conv;
        struct k_weight win, wout;
        const float *conv_w;
        uint32_t state;
};

struct eng_ffn {
        enum k_glu act;
        float alpha, limit;
        /* the dense part */
        uint32_t n_ff;            /* 0: none */
        bool fused_gate_up;       /* up has 2*n_ff rows, gate first (phi3) */
        struct k_weight gate, up, down; /* gate absent and not fused: no gating */
        const float *gate_b, *up_b, *down_b;
        const float *sub_norm;        /* RMS norm before down (bitnet) */
        float sparse_std;             /* gates below mean + this many deviations of their row are 0 (gemma3n); 0: off */
        const float *dense_out_norm;  /* norm of the dense part before the sum (gemma4 MoE) */
        /* the experts */
        uint32_t n_expert, n_used, n_ff_exp; /* n_expert 0: none */
        enum k_gating gating;
        bool norm_weights;
        float weight_scale;
        uint32_t n_group, n_group_used;
        struct k_weight router;
        const float *router_b, *select_bias;
        const float *router_norm;     /* router input is rms(residual)/sqrt(n_embd) * this (gemma4) */
        const float *exp_in_norm, *exp_out_norm; /* experts read a norm of the residual of their own; norm of their sum */
        struct k_weight exp_gate, exp_up, exp_down; /* exp_gate absent: exp_up holds [gate | up] */
        const float *exp_gate_b, *exp_up_b, *exp_down_b;
        /* the shared expert, added to the experts' sum */
        uint32_t n_ff_shexp;
        struct k_weight sh_gate, sh_up, sh_down, sh_router; /* sh_router: a sigmoid gate per token, may be absent */
};

/* A branch of the residual stream: x = res(x + scale * out(f(pre(x)))), absent norms left out. b: layer-norm biases. */
struct eng_branch {
        const float *pre, *pre_b, *out, *out_b, *res, *res_b;
};

/*
 * A layer of a model with several residual streams (desc->n_altup, gemma3n):
 * what the streams predict, how they are corrected, and a low-rank branch
 * beside the mixer (LAuReL, arXiv:2411.07501). See forward_altup.c.
 */
struct eng_altup {
        struct k_weight router, predict, correct; /* [n, n_embd], [n * n, n], [n, n] */
        const float *router_norm, *out_scale;
        struct k_weight laurel_l, laurel_r;
        const float *laurel_norm;
};

struct eng_layer {
        enum eng_mixer mixer;
        union {
                struct eng_attn attn; /* ENG_MIX_ATTENTION, ENG_MIX_MLA */
                struct eng_delta delta;
                struct eng_shortconv sconv;
        };
        struct eng_branch mix_norm, ffn_norm;
        bool parallel;                /* both branches read the mixer's normed input; ffn_norm is empty (cohere, phi2) */
        struct eng_ffn ffn;
        /* per-layer embedding: x += norm(proj(act(gate x) * ple[layer])) */
        struct k_weight ple_gate, ple_proj;
        const float *ple_norm;
        float out_scale;              /* multiplies the whole residual at the layer's end; 1: none */
        struct eng_altup altup;
};

/* Multi-token prediction: desc->layer[layer] on eh_proj [enorm(embedding) | hnorm(h)]. */
struct eng_mtp {
        uint32_t layer;
        struct k_weight eh_proj;
        const float *enorm, *hnorm, *head_norm;
        struct k_weight embed, head;  /* its own tables, or the trunk's */
};

enum eng_pooling { ENG_POOL_NONE, ENG_POOL_MEAN, ENG_POOL_CLS, ENG_POOL_LAST };

struct eng_desc {
        char arch[64];
        uint32_t n_embd, n_vocab, n_ctx_train;
        uint32_t n_layer;             /* trunk layers */
        uint32_t n_mtp;               /* MTP layers, in layer[] after the trunk's */
        struct eng_layer *layer;      /* [n_layer + n_mtp] */
        struct eng_mtp *mtp;          /* [n_mtp] */

        enum k_norm norm;             /* RMS or LAYER */
        float norm_eps;

        struct k_weight embed, output; /* output absent: no logits (encoders) */
        const float *out_norm, *out_norm_b, *output_b;
        float embed_scale;
        struct k_weight embed_type, embed_pos; /* encoders: token types (type 0 is used) and positions */
        const float *embed_norm, *embed_norm_b;
        float residual_scale;         /* multiplies every branch (granite) */
        float logit_scale, logit_softcap; /* logits * scale, then cap * tanh(l / cap); softcap 0: off */
        float temp_scale;             /* attention temperature (mistral3), 0: off; see forward.c */
        uint32_t temp_len;

        uint32_t n_ple;               /* per-layer embedding width, 0: none */
        struct k_weight ple_embed, ple_proj;
        const float *ple_norm;

        uint32_t n_altup, altup_active; /* residual streams, and the one that layers compute on; 0: a plain residual */
        struct k_weight altup_in[K_ALTUP_MAX - 1], altup_out[K_ALTUP_MAX - 1]; /* of the streams after the first */

        struct k_rope_params *rope;
        uint32_t n_rope;
        const float *rope_long;       /* LongRoPE: host factors of rope[0] where a context exceeds its n_ctx_orig, or NULL */
        struct eng_kv_group *group;
        uint32_t n_group;
        struct eng_kv_need *kv;
        uint32_t n_kv;
        struct eng_state_need *state;
        uint32_t n_state;

        bool encoder;                 /* every token sees every other (but for windows); one run holds the whole text; no generation */
        struct k_weight dense[2];     /* applied to what an encoder's output norm gives, one after the other; may be absent */
        enum eng_pooling pooling;
};

/*
 * Describes the model. Refuses an unknown architecture by name with the list of
 * those known (unknown_arch), and missing or misshapen tensors and contradictory
 * keys with the name, what was expected and what was found (model_invalid).
 */
int arch_describe(const struct gguf *g, struct tensors *t, struct eng_desc **ret, struct h_error *err);
struct eng_desc *arch_desc_free(struct eng_desc *d); /* NULL ok; returns NULL */

/* Writes the names of the architectures known, comma separated, as far as they fit. */
void arch_known(char *buf, size_t n);
bool arch_is_known(const char *name, size_t n);
