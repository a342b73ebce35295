/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma: embeddings scaled by sqrt(n_embd), norms around both branches, tanh
 * GELU, sliding windows on most layers with a rope of their own. Gemma 4 adds
 * per-layer embeddings, shared KV, V norms, and experts beside the dense part.
 */
#include "engine/arch/arch.h"

#include <math.h>

#define GELU K_GLU_GELU_TANH

void arch_gemma_head(struct arch_ctx *c) {
        arch_eps(c, K_NORM_RMS);
        arch_embeddings(c);
        c->d->embed_scale = sqrtf((float)c->d->n_embd);
        c->d->logit_softcap = key_f32(c, "%s.final_logit_softcapping", 0);
}

void arch_gemma_norms(struct arch_ctx *c, uint32_t i, bool post) {
        struct eng_layer *l = &c->d->layer[i];
        uint32_t E = c->d->n_embd;

        vec(c, &l->mix_norm.pre, E, "blk.%u.attn_norm.weight", i);
        vec(c, &l->ffn_norm.pre, E, "blk.%u.ffn_norm.weight", i);
        if (post) {
                vec(c, &l->mix_norm.out, E, "blk.%u.post_attention_norm.weight", i);
                vec(c, &l->ffn_norm.out, E, "blk.%u.post_ffw_norm.weight", i);
        }
}

static int gemma(struct arch_ctx *c) {
        int32_t rope;

        arch_gemma_head(c);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        for (uint32_t i = 0; i < c->d->n_layer && !c->r; i++) {
                arch_attn_init(c, i, rope);
                arch_attn_tensors(c, i, 0, KV_OWN);
                arch_kv(c, i);
                arch_gemma_norms(c, i, false);
                arch_ffn_dense(c, i, c->n_ff[i], GELU);
        }
        return c->r;
}

/*
 * Of 'every' layers one sees everything, if the file does not say which; 'wide' is the layer count of the member that scales by
 * its model width.
 */
static int windowed(struct arch_ctx *c, uint32_t every, uint32_t window, uint32_t wide, unsigned flags, float softcap,
                    float base_swa) {
        struct eng_desc *d = c->d;
        bool slides[ARCH_MAX_LAYERS] = { false };
        int32_t rope, rope_swa;

        arch_gemma_head(c);
        arch_windows(c, every, slides);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 10000));
        rope_swa = arch_rope_plain(c, K_ROPE_HALVES, c->n_rot, base_swa);
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                bool swa = window && slides[i];
                struct eng_attn *a = arch_attn_init(c, i, swa ? rope_swa : rope);

                a->window = swa ? window : 0;
                a->softcap = softcap;
                if (d->n_layer == wide && !key_present(c, "%s.attention.scale"))
                        a->scale = 1.0f / sqrtf((float)d->n_embd / (float)a->n_head);
                arch_attn_tensors(c, i, flags, KV_OWN);
                arch_kv(c, i);
                arch_gemma_norms(c, i, true);
                arch_ffn_dense(c, i, c->n_ff[i], GELU);
        }
        return c->r;
}

/* Files of the first days after its release have no keys for the caps; every member of the family has these two. */
static int gemma2(struct arch_ctx *c) {
        float softcap = key_f32(c, "%s.attn_logit_softcapping", 50);

        if (windowed(c, 2, key_u32(c, "%s.attention.sliding_window", 4096), 46, 0, softcap,
                     key_f32(c, "%s.rope.freq_base", 10000)))
                return c->r;
        c->d->logit_softcap = key_f32(c, "%s.final_logit_softcapping", 30);
        return c->r;
}

static int gemma3(struct arch_ctx *c) {
        return windowed(c, 6, key_u32(c, "%s.attention.sliding_window", 0), 62, ATTN_QK_NORM,
                        key_f32(c, "%s.attn_logit_softcapping", 0), key_f32(c, "%s.rope.freq_base_swa", 10000));
}

/*
 * Gemma 3 as an encoder: tokens see each other within half a window before and behind; two products, of which the mean over
 * the positions commutes, give the embedding.
 */
static int gemma_embedding(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t window = key_u32(c, "%s.attention.sliding_window", 0);

        if (windowed(c, 6, window ? window / 2 + 1 : 0, 0, ATTN_QK_NORM, 0, key_f32(c, "%s.rope.freq_base_swa", 10000)))
                return c->r;
        d->encoder = true;
        d->output = (struct k_weight){ 0 };
        if (has_tensor(c, "dense_2.weight", 0)) {
                if (d->pooling != ENG_POOL_MEAN)
                        return arch_fail(c, "key %s.pooling_type must be 1 (mean) with the tensor dense_2.weight", d->arch);
                mat(c, &d->dense[0], 0, d->n_embd, "dense_2.weight", 0);
                mat(c, &d->dense[1], d->n_embd, c->r ? 1 : d->dense[0].rows, "dense_3.weight", 0);
        }
        return c->r;
}

/* ---- gemma4 ------------------------------------------------------------ */

static void gemma4_experts(struct arch_ctx *c, uint32_t i) {
        struct eng_layer *l = &c->d->layer[i];
        uint32_t E = c->d->n_embd;

        if (key_u32(c, "%s.expert_count", 0) == 0)
                return;
        arch_moe(c, i, GELU, K_GATE_SOFTMAX, true);
        vec(c, &l->ffn.router_norm, E, "blk.%u.ffn_gate_inp.scale", i);
        vec(c, &l->ffn.dense_out_norm, E, "blk.%u.post_ffw_norm_1.weight", i);
        vec(c, &l->ffn.exp_in_norm, E, "blk.%u.pre_ffw_norm_2.weight", i);
        vec(c, &l->ffn.exp_out_norm, E, "blk.%u.post_ffw_norm_2.weight", i);
}

static void gemma4_layer_extras(struct arch_ctx *c, uint32_t i) {
        struct eng_desc *d = c->d;
        struct eng_layer *l = &d->layer[i];
        const float *s;

        if (d->n_ple) {
                mat(c, &l->ple_gate, d->n_ple, d->n_embd, "blk.%u.inp_gate.weight", i);
                mat(c, &l->ple_proj, d->n_embd, d->n_ple, "blk.%u.proj.weight", i);
                vec(c, &l->ple_norm, d->n_embd, "blk.%u.post_norm.weight", i);
        }
        s = host_opt(c, 1, "blk.%u.layer_output_scale.weight", i);
        if (s) {
                l->out_scale = *s;
                if (!isfinite(*s))
                        arch_fail(c, "tensor blk.%u.layer_output_scale.weight is not a finite number", i);
        }
}

void arch_gemma_ple(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t P = key_range(c, "%s.embedding_length_per_layer_input", 0, 0, ARCH_MAX_DIM / ARCH_MAX_LAYERS);

        d->n_ple = P;
        if (!P)
                return;
        mat(c, &d->ple_embed, d->n_vocab, P * d->n_layer, "per_layer_token_embd.weight", 0);
        mat(c, &d->ple_proj, P * d->n_layer, d->n_embd, "per_layer_model_proj.weight", 0);
        vec(c, &d->ple_norm, P, "per_layer_proj_norm.weight", 0);
}

static int gemma4(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t window = key_u32(c, "%s.attention.sliding_window", 0);
        uint32_t shared = key_range(c, "%s.attention.shared_kv_layers", 0, 0, d->n_layer - 1);
        uint32_t dk_swa = key_range(c, "%s.attention.key_length_swa", c->dk, 1, ARCH_MAX_DIM),
                 dv_swa = key_range(c, "%s.attention.value_length_swa", dk_swa, 1, ARCH_MAX_DIM),
                 rot_swa = key_range(c, "%s.rope.dimension_count_swa", dk_swa, 2, ARCH_MAX_DIM);
        uint32_t start = d->n_layer - shared;
        bool swa[ARCH_MAX_LAYERS] = { false };
        int32_t rope, rope_swa;

        arch_gemma_head(c);
        d->logit_softcap = key_f32(c, "%s.final_logit_softcapping", 30); /* as every member has it */
        arch_gemma_ple(c);
        if (c->r)
                return c->r;
        if (window && !key_present(c, "%s.attention.sliding_window_pattern"))
                return arch_fail(c, "key %s.attention.sliding_window_pattern is missing beside %s.attention.sliding_window", d->arch,
                                 d->arch);
        arch_windows(c, 1, swa);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 1e6f));
        rope_swa = arch_rope_plain(c, K_ROPE_HALVES, rot_swa, key_f32(c, "%s.rope.freq_base_swa", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                bool s = window && swa[i];
                struct eng_attn *a = arch_attn_init(c, i, -1);

                if (s) {
                        a->dk = dk_swa;
                        a->dv = dv_swa;
                }
                a->rope = s ? rope_swa : rope;
                a->window = s ? window : 0;
                a->scale = key_f32(c, "%s.attention.scale", 1);
                a->v_norm = true;
                a->v_from_k = i < start && !has_tensor(c, "blk.%u.attn_v.weight", i);
                if (!c->r && d->rope[a->rope].n_dims > a->dk)
                        return arch_fail(c, "layer %u: rope over %u dimensions of heads of %u", i, d->rope[a->rope].n_dims, a->dk);
                if (!c->r && a->v_from_k && a->dk != a->dv)
                        return arch_fail(c, "layer %u: without attn_v, key_length %u and value_length %u must be equal", i, a->dk,
                                         a->dv);
                arch_attn_tensors(c, i, ATTN_QK_NORM, i < start ? KV_OWN : KV_SHARED);
                if (i < start) {
                        arch_kv(c, i);
                } else {
                        if (start < (s ? 2u : 1u))
                                return arch_fail(c, "layer %u shares a KV cache, but only %u layers have one", i, start);
                        a->kv = d->layer[s ? start - 2 : start - 1].attn.kv;
                        a->kv_shared = true;
                }
                arch_gemma_norms(c, i, true);
                arch_ffn_dense(c, i, c->n_ff[i], GELU);
                gemma4_experts(c, i);
                gemma4_layer_extras(c, i);
        }
        return c->r;
}

const struct arch arch_gemma[] = {
        { "gemma", gemma },
        { "gemma2", gemma2 },
        { "gemma3", gemma3 },
        { "gemma4", gemma4 },
        { "gemma-embedding", gemma_embedding },
        { NULL, NULL },
};
