/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture-of-experts families with plain attention: routers by softmax or sigmoid, a bias for the choice, shared experts. */
#include "engine/arch/arch.h"

static int glm4moe(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_BIAS | ATTN_QK_NORM_OPT,
                                                   .ffn_pre = "blk.%u.post_attention_norm.weight", .gating = K_GATE_SIGMOID,
                                                   .no_norm_weights = true });
}

static int ernie(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT });
}

static int deepseek(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT, .no_norm_weights = true });
}

static int olmoe(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM_FULL, .no_norm_weights = true });
}

static int dots1(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM, .gating = K_GATE_SIGMOID,
                                                   .no_norm_weights = true });
}

static int bailingmoe2(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM, .gating = K_GATE_SIGMOID,
                                                   .no_norm_weights = true });
}

static int minimax_m2(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM_FULL, .gating = K_GATE_SIGMOID });
}

const struct arch arch_moe_table[] = {
        { "glm4moe", glm4moe },
        { "ernie4_5-moe", ernie },
        { "deepseek", deepseek },
        { "olmoe", olmoe },
        { "dots1", dots1 },
        { "bailingmoe2", bailingmoe2 },
        { "minimax-m2", minimax_m2 },
        { NULL, NULL },
};
