/* SPDX-License-Identifier: Apache-2.0 */
/* Llama and what differs from it by a rope, a bias, a norm or a factor. */
#include "engine/arch/arch.h"

static int llama(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT });
}

static int halves(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES });
}

/* Queries grow with the logarithm of the position beyond the original context. */
static int mistral3(struct arch_ctx *c) {
        c->d->temp_scale = key_f32(c, "%s.attention.temperature_scale", 0);
        if (c->d->temp_scale != 0)
                c->d->temp_len = key_range(c, "%s.rope.scaling.original_context_length", c->d->n_ctx_train, 1, INT32_MAX);
        return llama(c);
}

/* Some of the family's descendants have no biases; a file has all of them or none. */
static unsigned qwen2_biases(struct arch_ctx *c) {
        static const char *const names[] = { "blk.%u.attn_q.bias", "blk.%u.attn_k.bias", "blk.%u.attn_v.bias", "blk.%u.attn_qkv.bias" };

        for (uint32_t i = 0; i < c->n_block; i++)
                for (unsigned k = 0; k < ELEMENTSOF(names); k++)
                        if (has_tensor(c, names[k], i))
                                return ATTN_BIAS;
        return 0;
}

static int qwen2(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = qwen2_biases(c) });
}

static int qwen2moe(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = qwen2_biases(c), .no_norm_weights = true });
}

static int qwen3(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM });
}

/* The text part of a vision model: the sections of its rope are equal for text, so it is the plain one. */
static int qwen3vl(struct arch_ctx *c) {
        return qwen3(c);
}

static int smollm3(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT, .rope_where = ROPE_NOT_NTH });
}

static int olmo2(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM_FULL, .norms = NORMS_AFTER,
                                                   .full_every = 4, .rope_where = ROPE_PLAIN_WINDOWED });
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

        if (halves(c))
                return c->r;
        d->rope[0].factors = host_opt(c, c->n_rot / 2, "rope_factors_short.weight", 0);
        d->rope_long = host_opt(c, c->n_rot / 2, "rope_factors_long.weight", 0);
        if (!c->r && !d->rope[0].factors != !d->rope_long)
                arch_fail(c, "rope_factors_short.weight and rope_factors_long.weight must come together");
        return c->r;
}

static int orion(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .norm = K_NORM_LAYER });
}

const struct arch arch_llama[] = {
        { "llama", llama },
        { "mistral3", mistral3 },
        { "internlm2", llama },
        { "exaone", halves },
        { "ernie4_5", llama },
        { "qwen2", qwen2 },
        { "qwen2moe", qwen2moe },
        { "qwen2vl", qwen2 },
        { "qwen3", qwen3 },
        { "qwen3moe", qwen3 },
        { "qwen3vl", qwen3vl },
        { "qwen3vlmoe", qwen3vl },
        { "smollm3", smollm3 },
        { "olmo2", olmo2 },
        { "granite", granite },
        { "granitemoe", granite },
        { "minicpm", granite },
        { "phi3", phi3 },
        { "chatglm", llama },
        { "xverse", llama },
        { "orion", orion },
        { NULL, NULL },
};
