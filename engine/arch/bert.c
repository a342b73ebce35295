/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoders for embeddings: bert (learned positions, biases, erf GELU) and
 * nomic-bert (rope, gated SiLU). Layer norms follow the residual additions;
 * every token sees every other.
 */
#include "engine/arch/arch.h"

static void bert_embeddings(struct arch_ctx *c, bool positions) {
        struct eng_desc *d = c->d;
        uint32_t E = d->n_embd;

        mat(c, &d->embed, 0, E, "token_embd.weight", 0);
        d->n_vocab = c->r ? 0 : d->embed.rows;
        mat_opt(c, &d->embed_type, 0, E, "token_types.weight", 0);
        if (positions) {
                mat(c, &d->embed_pos, 0, E, "position_embd.weight", 0);
                if (!c->r)
                        d->n_ctx_train = MIN(d->n_ctx_train, d->embed_pos.rows);
        }
        vec(c, &d->embed_norm, E, "token_embd_norm.weight", 0);
        vec_opt(c, &d->embed_norm_b, E, "token_embd_norm.bias", 0);
}

static void bert_ffn(struct arch_ctx *c, uint32_t i) {
        if (has_tensor(c, "blk.%u.ffn_gate.weight", i))
                arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
        else
                arch_ffn_ungated(c, i, c->n_ff[i], K_GLU_GELU_ERF);
}

static int encoder(struct arch_ctx *c, bool positions) {
        static const enum eng_pooling pool[] = { ENG_POOL_NONE, ENG_POOL_MEAN, ENG_POOL_CLS, ENG_POOL_LAST };
        struct eng_desc *d = c->d;
        uint32_t E = d->n_embd;
        int32_t rope = -1;

        d->encoder = true;
        d->pooling = pool[key_range(c, "%s.pooling_type", 1, 0, 3)];
        arch_eps(c, K_NORM_LAYER);
        bert_embeddings(c, positions);
        if (!positions)
                rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];

                arch_attn_init(c, i, rope);
                arch_attn_tensors(c, i, 0, KV_OWN);
                arch_kv(c, i);
                vec(c, &l->mix_norm.res, E, "blk.%u.attn_output_norm.weight", i);
                vec_opt(c, &l->mix_norm.res_b, E, "blk.%u.attn_output_norm.bias", i);
                bert_ffn(c, i);
                vec(c, &l->ffn_norm.res, E, "blk.%u.layer_output_norm.weight", i);
                vec_opt(c, &l->ffn_norm.res_b, E, "blk.%u.layer_output_norm.bias", i);
        }
        return c->r;
}

static int bert(struct arch_ctx *c) {
        return encoder(c, true);
}

static int nomic_bert(struct arch_ctx *c) {
        return encoder(c, false);
}

const struct arch arch_bert[] = {
        { "bert", bert },
        { "nomic-bert", nomic_bert },
        { NULL, NULL },
};
