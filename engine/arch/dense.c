/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dense families further from llama: layer norms, feed-forwards without a gate,
 * both branches at once, norms behind the branches.
 */
#include "engine/arch/arch.h"

/* Biases everywhere, layer norms, GELU or squared ReLU between two products. */
static int ungated(struct arch_ctx *c, enum k_glu act, enum arch_norms norms, bool learned) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .norm = K_NORM_LAYER, .norms = norms, .act = act,
                                                   .ungated = true, .learned_positions = learned });
}

static int starcoder2(struct arch_ctx *c) {
        return ungated(c, K_GLU_GELU_TANH, NORMS_BEFORE, false);
}

static int nemotron(struct arch_ctx *c) {
        return ungated(c, K_GLU_RELU2, NORMS_BEFORE, false);
}

static int gpt2(struct arch_ctx *c) {
        return ungated(c, K_GLU_GELU_TANH, NORMS_BEFORE, true);
}

static int phi2(struct arch_ctx *c) {
        return ungated(c, K_GLU_GELU_TANH, NORMS_ONCE, false);
}

static int arcee(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT, .act = K_GLU_RELU2, .ungated = true });
}

/* Norms of queries and keys that are layer norms over each head have no place in the description. */
static void refuse_head_norms(struct arch_ctx *c) {
        if (has_tensor(c, "blk.%u.attn_q_norm.weight", 0))
                arch_fail(c, "tensor blk.0.attn_q_norm.weight: architecture %s is known without norms of queries and keys only",
                          c->d->arch);
}

static int stablelm(struct arch_ctx *c) {
        enum arch_norms norms = has_tensor(c, FFN_NORM, 0) ? NORMS_BEFORE : NORMS_ONCE;

        refuse_head_norms(c);
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .norm = K_NORM_LAYER, .norms = norms });
}

static int command_r(struct arch_ctx *c) {
        refuse_head_norms(c);
        c->d->logit_scale = key_f32(c, "%s.logit_scale", 1);
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT, .norm = K_NORM_LAYER, .norms = NORMS_ONCE,
                                                   .full_every = 4, .rope_where = ROPE_WINDOWED });
}

static int glm4(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_ADJACENT, .norms = NORMS_AROUND });
}

static int exaone4(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .attn = ATTN_QK_NORM, .norms = NORMS_AFTER,
                                                   .full_every = 4, .rope_where = ROPE_WINDOWED });
}

static int seed_oss(struct arch_ctx *c) {
        return arch_plain(c, &(struct arch_plain){ .rope = K_ROPE_HALVES, .ffn_pre = "blk.%u.post_attention_norm.weight" });
}

const struct arch arch_dense[] = {
        { "starcoder2", starcoder2 },
        { "nemotron", nemotron },
        { "gpt2", gpt2 },
        { "starcoder", gpt2 },
        { "phi2", phi2 },
        { "arcee", arcee },
        { "stablelm", stablelm },
        { "command-r", command_r },
        { "cohere2", command_r },
        { "glm4", glm4 },
        { "exaone4", exaone4 },
        { "seed_oss", seed_oss },
        { NULL, NULL },
};
