/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families that mix attention with recurrent layers: Qwen3-Next and Qwen3.5
 * (gated delta net, arXiv:2412.06464, and gated attention, with MTP layers),
 * LFM2 (short convolutions).
 */
#include "engine/arch/arch.h"

#include <string.h>

static void delta(struct arch_ctx *c, uint32_t i, bool next) {
        struct eng_layer *l = &c->d->layer[i];
        struct eng_delta *x = &l->delta;
        uint32_t E = c->d->n_embd, S, kd, vd, inner;

        l->mixer = ENG_MIX_DELTA;
        S = key_range_req(c, "%s.ssm.state_size", 1, ARCH_MAX_STATE_DIM);
        x->n_k = key_range_req(c, "%s.ssm.group_count", 1, ARCH_MAX_HEADS);
        x->n_v = key_range_req(c, "%s.ssm.time_step_rank", 1, ARCH_MAX_HEADS);
        x->conv = key_range_req(c, "%s.ssm.conv_kernel", 1, 64);
        inner = key_range_req(c, "%s.ssm.inner_size", 1, ARCH_MAX_DIM);
        if (c->r)
                return;
        if (x->n_v % x->n_k) {
                arch_fail(c, "%s.ssm.time_step_rank %u is no multiple of %s.ssm.group_count %u", c->d->arch, x->n_v, c->d->arch,
                          x->n_k);
                return;
        }
        if (inner % x->n_v) {
                arch_fail(c, "%s.ssm.inner_size %u is no multiple of %s.ssm.time_step_rank %u", c->d->arch, inner, c->d->arch,
                          x->n_v);
                return;
        }
        x->s_k = S;
        x->s_v = inner / x->n_v;
        if (x->s_v > ARCH_MAX_STATE_DIM) {
                arch_fail(c, "%s.ssm.inner_size %u over %s.ssm.time_step_rank %u heads: expected at most %u each", c->d->arch, inner,
                          c->d->arch, x->n_v, ARCH_MAX_STATE_DIM);
                return;
        }
        x->k_head_blocked = next;
        kd = x->n_k * S;
        vd = inner;
        mat(c, &x->wqkv, 2 * kd + vd, E, "blk.%u.attn_qkv.weight", i);
        mat(c, &x->wz, vd, E, "blk.%u.attn_gate.weight", i);
        vec(c, &x->conv_w, (uint64_t)x->conv * (2 * kd + vd), "blk.%u.ssm_conv1d.weight", i);
        vec(c, &x->dt_bias, x->n_v, "blk.%u.ssm_dt.bias", i);
        vec(c, &x->a, x->n_v, "blk.%u.ssm_a", i);
        if (next) {
                x->ba_run = x->n_v / x->n_k;
                mat(c, &x->wba, 2 * x->n_v, E, "blk.%u.ssm_ba.weight", i);
        } else {
                mat(c, &x->wbeta, x->n_v, E, "blk.%u.ssm_beta.weight", i);
                mat(c, &x->walpha, x->n_v, E, "blk.%u.ssm_alpha.weight", i);
        }
        vec(c, &x->norm, x->s_v, "blk.%u.ssm_norm.weight", i);
        mat(c, &x->wout, E, vd, "blk.%u.ssm_out.weight", i);
        x->state = arch_state(c, i, (size_t)(x->conv - 1) * (2 * kd + vd), x);
}

static int qwen_hybrid(struct arch_ctx *c, bool next, bool moe) {
        struct eng_desc *d = c->d;
        bool recurrent[ARCH_MAX_LAYERS] = { false };
        uint32_t every = key_range(c, "%s.full_attention_interval", 4, 1, ARCH_MAX_LAYERS);
        int32_t rope;
        int r;

        d->n_mtp = key_range(c, "%s.nextn_predict_layers", 0, 0, c->n_block - 1);
        d->n_layer -= d->n_mtp;
        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < d->n_layer; i++)
                recurrent[i] = (i + 1) % every != 0;
        if (key_present(c, "%s.attention.recurrent_layers")) {
                r = gguf_bool_per_layer(c->g, "%s.attention.recurrent_layers", c->n_block, recurrent, c->err);
                if (r < 0)
                        return c->r = r;
        }
        for (uint32_t i = 0; i < d->n_layer + d->n_mtp && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];

                if (i < d->n_layer && recurrent[i]) {
                        delta(c, i, next);
                } else {
                        arch_attn_init(c, i, rope);
                        arch_attn_tensors(c, i, ATTN_GATED | ATTN_QK_NORM, KV_OWN);
                        arch_kv(c, i);
                }
                vec(c, &l->mix_norm.pre, d->n_embd, "blk.%u.attn_norm.weight", i);
                vec(c, &l->ffn_norm.pre, d->n_embd, "blk.%u.post_attention_norm.weight", i);
                if (moe) {
                        arch_moe(c, i, K_GLU_SILU, K_GATE_SOFTMAX, true);
                        arch_shared_expert(c, i, key_range(c, "%s.expert_shared_feed_forward_length", l->ffn.n_ff_exp, 1,
                                                           ARCH_MAX_DIM));
                } else {
                        arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
                }
                if (i >= d->n_layer)
                        arch_mtp(c, i - d->n_layer);
        }
        return c->r;
}

static int qwen35(struct arch_ctx *c) {
        return qwen_hybrid(c, false, false);
}

static int qwen35moe(struct arch_ctx *c) {
        return qwen_hybrid(c, false, true);
}

static int qwen3next(struct arch_ctx *c) {
        return qwen_hybrid(c, true, true);
}

/* Layers without KV heads are gated short convolutions. The final norm is stored as the embedding's. */
static int lfm2(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t conv = key_range_req(c, "%s.shortconv.l_cache", 1, 64), E = d->n_embd;
        uint32_t n_dense = key_range(c, "%s.leading_dense_block_count", 0, 0, c->n_block);
        int32_t rope;

        arch_eps(c, K_NORM_RMS);
        mat(c, &d->embed, 0, E, "token_embd.weight", 0);
        d->n_vocab = c->r ? 0 : d->embed.rows;
        vec(c, &d->out_norm, E, has_tensor(c, "output_norm.weight", 0) ? "output_norm.weight" : "token_embd_norm.weight", 0);
        mat_opt(c, &d->output, d->n_vocab, E, "output.weight", 0);
        if (!k_weight_present(&d->output))
                d->output = d->embed;
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];

                if (c->n_head_kv[i] == 0) {
                        struct eng_shortconv *x = &l->sconv;

                        l->mixer = ENG_MIX_SHORTCONV;
                        x->d = E;
                        x->conv = conv;
                        mat(c, &x->win, 3 * E, E, "blk.%u.shortconv.in_proj.weight", i);
                        mat(c, &x->wout, E, E, "blk.%u.shortconv.out_proj.weight", i);
                        vec(c, &x->conv_w, (uint64_t)conv * E, "blk.%u.shortconv.conv.weight", i);
                        x->state = arch_state(c, i, (size_t)(conv - 1) * E, NULL);
                } else {
                        arch_attn_init(c, i, rope);
                        arch_attn_tensors(c, i, ATTN_QK_NORM, KV_OWN);
                        arch_kv(c, i);
                }
                vec(c, &l->mix_norm.pre, E, "blk.%u.attn_norm.weight", i);
                vec(c, &l->ffn_norm.pre, E, "blk.%u.ffn_norm.weight", i);
                if (i >= n_dense && has_tensor(c, "blk.%u.ffn_gate_inp.weight", i))
                        arch_moe(c, i, K_GLU_SILU, K_GATE_SIGMOID, true);
                else
                        arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
        }
        return c->r;
}

const struct arch arch_hybrid[] = {
        { "qwen35", qwen35 },
        { "qwen35moe", qwen35moe },
        { "qwen3next", qwen3next },
        { "lfm2", lfm2 },
        { "lfm2moe", lfm2 },
        { NULL, NULL },
};
