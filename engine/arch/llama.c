/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families built from plain decoder layers: full attention and a dense or MoE
 * feed-forward, norms before each branch. What differs is in struct plain.
 */
#include "engine/arch/arch.h"

#include <math.h>

struct plain {
        enum k_rope rope;
        unsigned attn;              /* ATTN_* */
        const char *ffn_pre;        /* name of the norm before the feed-forward */
        bool post_only;             /* norms follow the branches instead of preceding them (olmo2) */
        uint32_t no_rope_every;     /* every n-th layer has no rope (smollm3) */
        bool no_norm_weights;       /* expert weights are not renormalized (qwen2moe) */
};

static int32_t layer_rope(struct arch_ctx *c, const struct plain *p, uint32_t i, int32_t rope) {
        return p->no_rope_every && (i + 1) % p->no_rope_every == 0 ? -1 : rope;
}

/* A window on three of four layers; those rotate without the file's scaling (olmo 3). */
static bool slides(struct arch_ctx *c, const struct plain *p, uint32_t window, uint32_t i) {
        return p->post_only && window && (i + 1) % 4 != 0;
}

static void plain_ffn(struct arch_ctx *c, const struct plain *p, uint32_t i, uint32_t n_dense) {
        uint32_t sh;

        if (i < n_dense || !has_tensor(c, "blk.%u.ffn_gate_inp.weight", i)) {
                arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
                return;
        }
        arch_moe(c, i, K_GLU_SILU, K_GATE_SOFTMAX, key_bool(c, "%s.expert_weights_norm", !p->no_norm_weights));
        if (has_tensor(c, "blk.%u.ffn_gate_shexp.weight", i)) {
                sh = key_range(c, "%s.expert_shared_feed_forward_length", 0, 0, ARCH_MAX_DIM);
                if (sh == 0)
                        sh = key_range(c, "%s.expert_shared_count", 1, 1, 256) * c->d->layer[i].ffn.n_ff_exp;
                arch_shared_expert(c, i, sh);
        }
}

static int plain(struct arch_ctx *c, const struct plain *p) {
        struct eng_desc *d = c->d;
        float base = key_f32(c, "%s.rope.freq_base", 10000);
        uint32_t window = p->post_only ? key_u32(c, "%s.attention.sliding_window", 0) : 0;
        uint32_t n_dense = key_range(c, "%s.leading_dense_block_count", 0, 0, c->n_block);
        int32_t rope, rope_swa;

        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        rope = arch_rope(c, p->rope, c->n_rot, base);
        rope_swa = window ? arch_rope_plain(c, p->rope, c->n_rot, base) : rope;
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];
                bool swa = slides(c, p, window, i);
                struct eng_attn *a = arch_attn_init(c, i, layer_rope(c, p, i, swa ? rope_swa : rope));

                a->window = swa ? window : 0;
                arch_attn_tensors(c, i, p->attn, KV_OWN);
                arch_kv(c, i);
                if (p->post_only) {
                        vec(c, &l->mix_norm.out, d->n_embd, "blk.%u.post_attention_norm.weight", i);
                        vec(c, &l->ffn_norm.out, d->n_embd, "blk.%u.post_ffw_norm.weight", i);
                } else {
                        vec(c, &l->mix_norm.pre, d->n_embd, "blk.%u.attn_norm.weight", i);
                        vec(c, &l->ffn_norm.pre, d->n_embd, p->ffn_pre, i);
                }
                plain_ffn(c, p, i, n_dense);
        }
        return c->r;
}

#define FFN_NORM "blk.%u.ffn_norm.weight"

static int llama(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_ADJACENT, .ffn_pre = FFN_NORM });
}

/* Queries grow with the logarithm of the position beyond the original context. */
static int mistral3(struct arch_ctx *c) {
        c->d->temp_scale = key_f32(c, "%s.attention.temperature_scale", 0);
        if (c->d->temp_scale != 0)
                c->d->temp_len = key_range_req(c, "%s.rope.scaling.original_context_length", 1, INT32_MAX);
        return llama(c);
}

static int qwen2(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .attn = ATTN_BIAS, .ffn_pre = FFN_NORM });
}

static int qwen2moe(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .attn = ATTN_BIAS, .ffn_pre = FFN_NORM,
                                         .no_norm_weights = true });
}

static int qwen3(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM, .ffn_pre = FFN_NORM });
}

static int smollm3(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_ADJACENT, .ffn_pre = FFN_NORM, .no_rope_every = 4 });
}

static int olmo2(struct arch_ctx *c) {
        return plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM_FULL, .post_only = true });
}

static int granite(struct arch_ctx *c) {
        float ls = key_f32(c, "%s.logit_scale", 1), es = key_f32(c, "%s.embedding_scale", 1),
              rs = key_f32(c, "%s.residual_scale", 1);

        c->d->logit_scale = ls != 0 ? 1.0f / ls : 1;
        c->d->embed_scale = es != 0 ? es : 1;
        c->d->residual_scale = rs != 0 ? rs : 1;
        return llama(c);
}

/* Fused QKV and gate|up; LongRoPE factors, one set within and one beyond the original context. */
static int phi3(struct arch_ctx *c) {
        struct eng_desc *d = c->d;

        if (plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .ffn_pre = FFN_NORM }))
                return c->r;
        d->rope[0].factors = host_opt(c, c->n_rot / 2, "rope_factors_short.weight", 0);
        d->rope_long = host_opt(c, c->n_rot / 2, "rope_factors_long.weight", 0);
        if (!c->r && !d->rope[0].factors != !d->rope_long)
                arch_fail(c, "rope_factors_short.weight and rope_factors_long.weight must come together");
        return c->r;
}

/* block_count includes the MTP layers, which are not used here. */
static int glm4moe(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t gating;

        d->n_layer -= key_range(c, "%s.nextn_predict_layers", 0, 0, c->n_block - 1);
        plain(c, &(struct plain){ .rope = K_ROPE_HALVES, .attn = ATTN_BIAS | ATTN_QK_NORM_OPT,
                                  .ffn_pre = "blk.%u.post_attention_norm.weight" });
        gating = key_range(c, "%s.expert_gating_func", 2, 1, 2);
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++)
                d->layer[i].ffn.gating = gating == 2 ? K_GATE_SIGMOID : K_GATE_SOFTMAX;
        return c->r;
}

const struct arch arch_llama[] = {
        { "llama", llama },
        { "mistral3", mistral3 },
        { "qwen2", qwen2 },
        { "qwen2moe", qwen2moe },
        { "qwen3", qwen3 },
        { "qwen3moe", qwen3 },
        { "smollm3", smollm3 },
        { "olmo2", olmo2 },
        { "granite", granite },
        { "granitemoe", granite },
        { "phi3", phi3 },
        { "glm4moe", glm4moe },
        { NULL, NULL },
};
