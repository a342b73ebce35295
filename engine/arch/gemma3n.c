/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3n: several residual streams (AltUp, arXiv:2301.13310), a low-rank
 * branch beside attention (LAuReL, arXiv:2411.07501), gates of which only the
 * largest count, per-layer embeddings, and last layers that read the keys and
 * values of earlier ones.
 */
#include "engine/arch/arch.h"

#include <math.h>

#define SPARSE_LAYERS 10        /* where the file does not say: the first ten keep a twentieth of the gates */
#define SPARSE_STD 1.6448534f

static void streams(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t A = key_range(c, "%s.altup.num_inputs", 4, 2, K_ALTUP_MAX), E = d->n_embd;
        struct k_weight in = { 0 }, out = { 0 };

        d->altup_active = key_range(c, "%s.altup.active_idx", 0, 0, A - 1);
        mats(c, &in, E, E, A - 1, "altup_proj.weight", 0);
        mats(c, &out, E, E, A - 1, "altup_unembd_proj.weight", 0);
        if (c->r)
                return;
        d->n_altup = A;
        for (uint32_t i = 0; i < A - 1; i++) {
                d->altup_in[i] = k_weight_nth(&in, i);
                d->altup_out[i] = k_weight_nth(&out, i);
        }
}

static void layer_extras(struct arch_ctx *c, uint32_t i) {
        struct eng_desc *d = c->d;
        struct eng_layer *l = &d->layer[i];
        struct eng_altup *u = &l->altup;
        uint32_t A = d->n_altup, E = d->n_embd, P = d->n_ple;

        mat(c, &u->router, A, E, "blk.%u.altup_router.weight", i);
        vec(c, &u->router_norm, E, "blk.%u.altup_router_norm.weight", i);
        mat(c, &u->predict, A * A, A, "blk.%u.altup_predict_coef.weight", i);
        mat(c, &u->correct, A, A, "blk.%u.altup_correct_coef.weight", i);
        vec(c, &u->out_scale, E, "blk.%u.altup_correct_scale.weight", i);
        mat(c, &u->laurel_l, 0, E, "blk.%u.laurel_l.weight", i);
        mat(c, &u->laurel_r, E, c->r ? 1 : u->laurel_l.rows, "blk.%u.laurel_r.weight", i);
        vec(c, &u->laurel_norm, E, "blk.%u.laurel_post_norm.weight", i);
        mat(c, &l->ple_gate, P, E, "blk.%u.inp_gate.weight", i);
        mat(c, &l->ple_proj, E, P, "blk.%u.proj.weight", i);
        vec(c, &l->ple_norm, E, "blk.%u.post_norm.weight", i);
}

/* Where layer i, which has no keys of its own, finds them: the last layer before 'start' with the same window. */
static void borrow(struct arch_ctx *c, uint32_t i, uint32_t start) {
        struct eng_attn *a = &c->d->layer[i].attn;

        for (uint32_t k = start; k-- > 0;)
                if (c->d->layer[k].attn.window == a->window) {
                        a->kv = c->d->layer[k].attn.kv;
                        a->kv_shared = true;
                        return;
                }
        arch_fail(c, "layer %u shares the KV cache of a layer before %u with a window of %u, but there is none", i, start, a->window);
}

static int gemma3n(struct arch_ctx *c) {
        struct eng_desc *d = c->d;
        uint32_t window = key_u32(c, "%s.attention.sliding_window", 0), n_std = 0;
        uint32_t shared = key_range(c, "%s.attention.shared_kv_layers", 0, 0, d->n_layer - 1), start = d->n_layer - shared;
        bool swa[ARCH_MAX_LAYERS] = { false };
        float std[ARCH_MAX_LAYERS];
        int32_t rope, rope_swa;

        arch_gemma_head(c);
        d->logit_softcap = key_f32(c, "%s.final_logit_softcapping", 30);
        arch_gemma_ple(c);
        if (!c->r && d->n_ple == 0)
                arch_fail(c, "key %s.embedding_length_per_layer_input is missing or 0", d->arch);
        streams(c);
        for (uint32_t i = 0; i < d->n_layer; i++)
                std[i] = i < SPARSE_LAYERS ? SPARSE_STD : 0;
        arch_windows(c, 5, swa);
        if (!c->r)
                c->r = gguf_f32_array(c->g, "%s.activation_sparsity_scale", d->n_layer, std, &n_std, c->err);
        if (!c->r && n_std && n_std != d->n_layer)
                arch_fail(c, "key %s.activation_sparsity_scale: %u values, expected one for each of %u layers", d->arch, n_std,
                          d->n_layer);
        rope = arch_rope(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base", 1e6f));
        rope_swa = arch_rope_plain(c, K_ROPE_HALVES, c->n_rot, key_f32(c, "%s.rope.freq_base_swa", 10000));
        for (uint32_t i = 0; i < d->n_layer && !c->r; i++) {
                bool s = window && swa[i];
                struct eng_attn *a = arch_attn_init(c, i, s ? rope_swa : rope);

                a->window = s ? window : 0;
                a->scale = key_f32(c, "%s.attention.scale", 1);
                a->v_norm = true;
                arch_attn_tensors(c, i, ATTN_QK_NORM, i < start ? KV_OWN : KV_SHARED);
                if (i < start)
                        arch_kv(c, i);
                else
                        borrow(c, i, start);
                arch_gemma_norms(c, i, true);
                arch_ffn_dense(c, i, c->n_ff[i], K_GLU_GELU_TANH);
                if (!c->r && !isfinite(std[i]))
                        arch_fail(c, "key %s.activation_sparsity_scale is not a finite number for layer %u", d->arch, i);
                d->layer[i].ffn.sparse_std = std[i];
                layer_extras(c, i);
        }
        return c->r;
}

const struct arch arch_gemma3n[] = {
        { "gemma3n", gemma3n },
        { NULL, NULL },
};
