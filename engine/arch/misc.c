/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families with parts of their own: gpt-oss (attention sinks, alternating
 * windows, clamped SwiGLU experts), bitnet (norms inside the branches),
 * deepseek2 (multi-head latent attention, arXiv:2405.04434).
 */
#include "engine/arch/arch.h"

#include <math.h>

static int gpt_oss(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t window = key_u32(c, "%s.attention.sliding_window", 0), E = d->n_embd;
        bool swa[ARCH_MAX_LAYERS] = { false };
        int32_t rope;

        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        arch_windows(c, 2, swa);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 150000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];
                struct eng_attn *a = arch_attn_init(c, i, rope);

                a->window = swa[i] ? window : 0;
                arch_attn_tensors(c, i, ATTN_BIAS | ATTN_OUT_BIAS, KV_OWN);
                vec(c, &a->sinks, a->n_head, "blk.%u.attn_sinks.weight", i);
                arch_kv(c, i);
                vec(c, &l->mix_norm.pre, E, "blk.%u.attn_norm.weight", i);
                vec(c, &l->ffn_norm.pre, E, "blk.%u.post_attention_norm.weight", i);
                arch_moe(c, i, K_GLU_SWIGLU_OAI, K_GATE_SOFTMAX_TOPK, false);
                l->ffn.alpha = 1.702f;
                l->ffn.limit = 7.0f;
                vec(c, &l->ffn.router_b, l->ffn.n_expert, "blk.%u.ffn_gate_inp.bias", i);
                vec(c, &l->ffn.exp_up_b, (uint64_t)l->ffn.n_expert * l->ffn.exp_up.rows,
                    k_weight_present(&l->ffn.exp_gate) ? "blk.%u.ffn_up_exps.bias" : "blk.%u.ffn_gate_up_exps.bias", i);
                vec(c, &l->ffn.exp_down_b, (uint64_t)l->ffn.n_expert * E, "blk.%u.ffn_down_exps.bias", i);
        }
        return c->r;
}

static int bitnet(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t E = d->n_embd;
        int32_t rope;

        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];
                struct eng_attn *a = arch_attn_init(c, i, rope);

                arch_attn_tensors(c, i, 0, KV_OWN);
                vec(c, &a->sub_norm, (uint64_t)a->n_head * a->dv, "blk.%u.attn_sub_norm.weight", i);
                arch_kv(c, i);
                vec(c, &l->mix_norm.pre, E, "blk.%u.attn_norm.weight", i);
                vec(c, &l->ffn_norm.pre, E, "blk.%u.ffn_norm.weight", i);
                arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
                vec(c, &l->ffn.sub_norm, c->n_ff[i], "blk.%u.ffn_sub_norm.weight", i);
        }
        return c->r;
}

/* ---- deepseek2 ----------------------------------------------------------- */

static void mla(struct arch_ctx *c, uint32_t i, int32_t rope) {
        struct eng_layer *l = &c->d->layer[i];
        struct eng_attn *a = &l->attn;
        uint32_t E = c->d->n_embd, H = c->n_head[i], dk_mla;
        float f, m;

        l->mixer = ENG_MIX_MLA;
        a->n_head = H;
        a->n_head_kv = 1;
        a->rope = rope;
        a->kv_rank = key_range_req(c, "%s.attention.kv_lora_rank", 1, ARCH_MAX_DIM);
        a->q_rank = key_range(c, "%s.attention.q_lora_rank", 0, 0, ARCH_MAX_DIM);
        a->d_rope = c->n_rot;
        dk_mla = key_range(c, "%s.attention.key_length_mla", c->dk, 1, ARCH_MAX_DIM);
        a->d_v = key_range(c, "%s.attention.value_length_mla", c->dv, 1, ARCH_MAX_DIM);
        if (!c->r && (a->d_rope == 0 || dk_mla <= a->d_rope))
                arch_fail(c, "%s.attention.key_length_mla %u must exceed %s.rope.dimension_count %u", c->d->arch, dk_mla, c->d->arch,
                          a->d_rope);
        if (!c->r && (H == 0 || (uint64_t)H * MAX(dk_mla, a->kv_rank + a->d_rope) > ARCH_MAX_DIM))
                arch_fail(c, "layer %u: %u heads of %u: expected 1 to %u in all", i, H, dk_mla, ARCH_MAX_DIM);
        if (c->r)
                return;
        a->d_nope = dk_mla - a->d_rope;
        a->dk = a->kv_rank + a->d_rope;
        a->dv = a->kv_rank;

        /* YaRN's attention factor, applied to q and k by the rope, enters the scale squared as well. */
        f = 1.0f / c->d->rope[rope].freq_scale;
        m = 1;
        if (c->d->rope[rope].ext_factor != 0)
                m = arch_yarn_scale(c) * (1 + key_f32(c, "%s.rope.scaling.yarn_log_multiplier", 0) * logf(f));
        a->scale = m * m / sqrtf((float)dk_mla);

        if (a->q_rank) {
                mat(c, &a->wq_a, a->q_rank, E, "blk.%u.attn_q_a.weight", i);
                vec(c, &a->q_a_norm, a->q_rank, "blk.%u.attn_q_a_norm.weight", i);
                mat(c, &a->wq_b, H * dk_mla, a->q_rank, "blk.%u.attn_q_b.weight", i);
        } else {
                mat(c, &a->wq_b, H * dk_mla, E, "blk.%u.attn_q.weight", i);
        }
        if (!has_tensor(c, "blk.%u.attn_k_b.weight", i) && has_tensor(c, "blk.%u.attn_kv_b.weight", i))
                arch_fail(c, "tensor blk.%u.attn_kv_b.weight is not split into attn_k_b and attn_v_b: the file comes from a converter "
                          "of before 2025-04; get or make a newer one", i);
        mat(c, &a->wkv_a, a->kv_rank + a->d_rope, E, "blk.%u.attn_kv_a_mqa.weight", i);
        vec(c, &a->kv_a_norm, a->kv_rank, "blk.%u.attn_kv_a_norm.weight", i);
        mats(c, &a->wk_b, a->kv_rank, a->d_nope, H, "blk.%u.attn_k_b.weight", i);
        mats(c, &a->wv_b, a->d_v, a->kv_rank, H, "blk.%u.attn_v_b.weight", i);
        mat(c, &a->wo, E, H * a->d_v, "blk.%u.attn_output.weight", i);
        arch_kv(c, i);
}

static int deepseek2(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t n_dense = key_range(c, "%s.leading_dense_block_count", 0, 0, d->n_layer), E = d->n_embd, gating, n_sh;
        bool norm = key_bool(c, "%s.expert_weights_norm", false);
        int32_t rope;

        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        gating = key_range(c, "%s.expert_gating_func", 1, 0, 2);
        n_sh = key_range(c, "%s.expert_shared_count", 0, 0, 256);
        rope = arch_rope(c, K_ROPE_ADJACENT, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                struct eng_layer *l = &d->layer[i];

                mla(c, i, rope);
                vec(c, &l->mix_norm.pre, E, "blk.%u.attn_norm.weight", i);
                vec(c, &l->ffn_norm.pre, E, "blk.%u.ffn_norm.weight", i);
                if (i < n_dense) {
                        arch_ffn_dense(c, i, c->n_ff[i], K_GLU_SILU);
                        continue;
                }
                arch_moe(c, i, K_GLU_SILU, gating == 2 ? K_GATE_SIGMOID : K_GATE_SOFTMAX, norm);
                if (n_sh)
                        arch_shared_expert(c, i, n_sh * l->ffn.n_ff_exp);
        }
        return c->r;
}

const struct arch arch_misc[] = {
        { "gpt-oss", gpt_oss },
        { "bitnet", bitnet },
        { "deepseek2", deepseek2 },
        { NULL, NULL },
};
