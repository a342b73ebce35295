/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families built from plain decoder layers: attention and a dense or MoE
 * feed-forward. What differs between them is in struct arch_plain; the layers
 * of multi-token prediction (nextn) are such layers too.
 */
#include "engine/arch/arch.h"

#include <string.h>

static void norm(struct arch_ctx *c, const float **w, const float **b, enum k_norm kind, const char *weight, uint32_t i) {
        size_t n = strlen(weight) - strlen("weight");
        char bias[96];

        vec(c, w, c->d->n_embd, weight, i);
        if (kind != K_NORM_LAYER || n + sizeof("bias") > sizeof(bias))
                return;
        memcpy(bias, weight, n);
        memcpy(bias + n, "bias", sizeof("bias"));
        vec_opt(c, b, c->d->n_embd, bias, i);
}

static void norms(struct arch_ctx *c, const struct arch_plain *p, uint32_t i) {
        struct eng_layer *l = &c->d->layer[i];

        if (p->norms != NORMS_AFTER)
                norm(c, &l->mix_norm.pre, &l->mix_norm.pre_b, p->norm, "blk.%u.attn_norm.weight", i);
        if (p->norms == NORMS_BEFORE || p->norms == NORMS_AROUND)
                norm(c, &l->ffn_norm.pre, &l->ffn_norm.pre_b, p->norm, p->ffn_pre ? p->ffn_pre : FFN_NORM, i);
        if (p->norms == NORMS_AFTER || p->norms == NORMS_AROUND) {
                norm(c, &l->mix_norm.out, &l->mix_norm.out_b, p->norm, "blk.%u.post_attention_norm.weight", i);
                norm(c, &l->ffn_norm.out, &l->ffn_norm.out_b, p->norm, "blk.%u.post_ffw_norm.weight", i);
        }
        l->parallel = p->norms == NORMS_ONCE;
}

static void experts(struct arch_ctx *c, const struct arch_plain *p, uint32_t i) {
        uint32_t gating = key_range(c, "%s.expert_gating_func", p->gating == K_GATE_SIGMOID ? 2 : 1, 0, 2), sh;

        arch_moe(c, i, p->act, gating == 2 || (gating == 0 && p->gating == K_GATE_SIGMOID) ? K_GATE_SIGMOID : K_GATE_SOFTMAX,
                 key_bool(c, "%s.expert_weights_norm", !p->no_norm_weights));
        if (!has_tensor(c, "blk.%u.ffn_gate_shexp.weight", i))
                return;
        sh = key_range(c, "%s.expert_shared_feed_forward_length", 0, 0, ARCH_MAX_DIM);
        if (sh == 0)
                sh = key_range(c, "%s.expert_shared_count", 1, 1, 256) * c->d->layer[i].ffn.n_ff_exp;
        arch_shared_expert(c, i, sh);
}

static void feed_forward(struct arch_ctx *c, const struct arch_plain *p, uint32_t i, uint32_t n_dense) {
        if (i >= n_dense && has_tensor(c, "blk.%u.ffn_gate_inp.weight", i))
                experts(c, p, i);
        else if (p->ungated)
                arch_ffn_ungated(c, i, c->n_ff[i], p->act);
        else
                arch_ffn_dense(c, i, c->n_ff[i], p->act);
}

/* Layers of multi-token prediction count as blocks. Files that keep the count but left the layers out have none. */
static void mtp_count(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t n = key_range(c, "%s.nextn_predict_layers", 0, 0, c->n_block - 1);

        if (c->r || n == 0)
                return;
        d->n_layer -= n;
        if (has_tensor(c, "blk.%u.attn_norm.weight", d->n_layer))
                d->n_mtp = n;
}

static int32_t rope_of(const struct arch_plain *p, bool windows, bool swa, uint32_t i, int32_t rope, int32_t rope_swa) {
        switch (p->rope_where) {
        case ROPE_NOT_NTH:
                return (i + 1) % 4 == 0 ? -1 : rope;
        case ROPE_WINDOWED:
                return windows && !swa ? -1 : rope;
        case ROPE_PLAIN_WINDOWED:
                return swa ? rope_swa : rope;
        case ROPE_EVERYWHERE:
                break;
        }
        return rope;
}

int arch_plain(struct arch_ctx *c, const struct arch_plain *p) {
        struct eng_desc *d = c->d;
        float base = key_f32(c, "%s.rope.freq_base", 10000);
        uint32_t window = p->full_every ? key_u32(c, "%s.attention.sliding_window", 0) : 0;
        uint32_t n_dense = key_range(c, "%s.leading_dense_block_count", 0, 0, c->n_block);
        bool slides[ARCH_MAX_LAYERS] = { false };
        int32_t rope = -1, rope_swa = -1;

        mtp_count(c);
        arch_eps(c, p->norm);
        arch_embeddings(c);
        if (window)
                arch_windows(c, p->full_every, slides);
        if (p->learned_positions) {
                mat(c, &d->embed_pos, 0, d->n_embd, "position_embd.weight", 0);
                if (!c->r)
                        d->n_ctx_train = MIN(d->n_ctx_train, d->embed_pos.rows);
        } else {
                rope = arch_rope(c, p->rope, c->n_rot, base);
        }
        if (p->rope_where == ROPE_PLAIN_WINDOWED)
                rope_swa = arch_rope_plain(c, p->rope, c->n_rot, base);
        for (uint32_t i = 0; i < d->n_layer + d->n_mtp && !c->r; i++) {
                bool swa = window && i < d->n_layer && slides[i];
                struct eng_attn *a = arch_attn_init(c, i, rope_of(p, window, swa, i, rope, rope_swa));

                a->window = swa ? window : 0;
                arch_attn_tensors(c, i, p->attn, KV_OWN);
                arch_kv(c, i);
                norms(c, p, i);
                feed_forward(c, p, i, n_dense);
                if (i >= d->n_layer)
                        arch_mtp(c, i - d->n_layer);
        }
        return c->r;
}
