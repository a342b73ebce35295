/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What most families share: sizes, rope rows, KV groups, and the plain pieces
 * of a layer (attention projections, dense feed-forward, experts). Tensor and
 * key names are those of the GGUF converter.
 */
#include "engine/arch/arch.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define MAX_ROPE 8

static void *array(struct arch_ctx *c, size_t n, size_t size) {
        void *p = c->r ? NULL : h_calloc(n ? n : 1, size);

        if (!p && !c->r)
                c->r = -ENOMEM;
        return p;
}

static void per_layer(struct arch_ctx *c, const char *key, uint32_t *v, uint32_t hi, bool required) {
        int r;

        if (c->r)
                return;
        r = gguf_u32_per_layer(c->g, key, c->n_block, v, c->err);
        if (r < 0) {
                c->r = r;
                return;
        }
        if (r == 0 && required)
                key_u32_req(c, key);
        for (uint32_t i = 0; !c->r && i < c->n_block; i++)
                if (v[i] > hi)
                        arch_fail(c, "key %s%s is %u for layer %u, expected at most %u", c->d->arch, key + 2, v[i], i, hi);
}

int arch_header(struct arch_ctx *c) {
        /* none, mean, cls, last, rank: a model that ranks gives no embedding here */
        static const enum eng_pooling pools[] = { ENG_POOL_NONE, ENG_POOL_MEAN, ENG_POOL_CLS, ENG_POOL_LAST, ENG_POOL_NONE };
        struct eng_desc *d = c->d;

        d->n_embd = key_range_req(c, "%s.embedding_length", 1, ARCH_MAX_DIM);
        c->n_block = key_range_req(c, "%s.block_count", 1, ARCH_MAX_LAYERS);
        d->n_ctx_train = key_range(c, "%s.context_length", 2048, 1, INT32_MAX);
        if (c->r)
                return c->r;
        d->n_layer = c->n_block;
        d->layer = array(c, c->n_block, sizeof(*d->layer));
        d->kv = array(c, c->n_block, sizeof(*d->kv));
        d->state = array(c, c->n_block, sizeof(*d->state));
        d->mtp = array(c, c->n_block, sizeof(*d->mtp));
        d->group = array(c, c->n_block, sizeof(*d->group));
        d->rope = array(c, MAX_ROPE, sizeof(*d->rope));
        c->n_head = array(c, c->n_block, sizeof(uint32_t));
        c->n_head_kv = array(c, c->n_block, sizeof(uint32_t));
        c->n_ff = array(c, c->n_block, sizeof(uint32_t));
        if (c->r)
                return c->r;
        for (uint32_t i = 0; i < c->n_block; i++)
                d->layer[i].out_scale = 1.0f;

        per_layer(c, "%s.attention.head_count", c->n_head, ARCH_MAX_HEADS, true);
        if (c->r)
                return c->r;
        memcpy(c->n_head_kv, c->n_head, c->n_block * sizeof(uint32_t));
        per_layer(c, "%s.attention.head_count_kv", c->n_head_kv, ARCH_MAX_HEADS, false);
        per_layer(c, "%s.feed_forward_length", c->n_ff, ARCH_MAX_DIM, false);

        c->dk = key_range(c, "%s.attention.key_length", 0, 0, ARCH_MAX_DIM);
        if (!c->r && c->dk == 0) {
                uint32_t h = c->n_head[0];
                for (uint32_t i = 0; h == 0 && i < c->n_block; i++)
                        h = c->n_head[i];
                if (h == 0 || d->n_embd % h)
                        return arch_fail(c, "%s.embedding_length %u is no multiple of %s.attention.head_count %u, and there is no "
                                         "%s.attention.key_length", d->arch, d->n_embd, d->arch, h, d->arch);
                c->dk = d->n_embd / h;
        }
        c->dv = key_range(c, "%s.attention.value_length", c->dk, 1, ARCH_MAX_DIM);
        c->n_rot = key_range(c, "%s.rope.dimension_count", c->dk, 0, ARCH_MAX_DIM);
        d->embed_scale = d->residual_scale = d->logit_scale = 1.0f;
        d->norm_eps = 1e-6f;
        d->pooling = pools[key_range(c, "%s.pooling_type", 0, 0, 4)];
        return c->r;
}

void arch_eps(struct arch_ctx *c, enum k_norm norm) {
        const char *key = norm == K_NORM_LAYER ? "%s.attention.layer_norm_epsilon" : "%s.attention.layer_norm_rms_epsilon";

        c->d->norm = norm;
        c->d->norm_eps = key_f32(c, key, norm == K_NORM_LAYER ? 1e-5f : 1e-6f);
        if (!c->r && (c->d->norm_eps < 0 || c->d->norm_eps > 1))
                arch_fail(c, "key %s%s is %g, expected 0 to 1", c->d->arch, key + 2, (double)c->d->norm_eps);
}

void arch_embeddings(struct arch_ctx *c) {
        struct eng_desc *d = c->d;

        mat(c, &d->embed, 0, d->n_embd, "token_embd.weight", 0);
        d->n_vocab = c->r ? 0 : d->embed.rows;
        vec(c, &d->out_norm, d->n_embd, "output_norm.weight", 0);
        vec_opt(c, &d->out_norm_b, d->n_embd, "output_norm.bias", 0);
        mat_opt(c, &d->output, d->n_vocab, d->n_embd, "output.weight", 0);
        if (!c->r && !k_weight_present(&d->output))
                d->output = d->embed;
        vec_opt(c, &d->output_b, d->n_vocab, "output.bias", 0);
}

static float rope_factor(struct arch_ctx *c) {
        float f = key_f32(c, "%s.rope.scaling.factor", 0);

        if (f == 0)
                f = key_f32(c, "%s.rope.scale_linear", 1);
        if (!c->r && !(f > 0))
                arch_fail(c, "key %s.rope.scaling.factor is %g, expected more than 0", c->d->arch, (double)f);
        return c->r ? 1 : f;
}

static float mscale(float factor, float m) {
        return factor <= 1 ? 1 : 0.1f * m * logf(factor) + 1;
}

/* YaRN (arXiv:2309.00071) scales attention by 0.1 ln(s) + 1; DeepSeek's variant divides by the part moved into the softmax. */
float arch_yarn_scale(struct arch_ctx *c) {
        float f = rope_factor(c), all = key_f32(c, "%s.rope.scaling.yarn_log_multiplier", 0);
        bool deepseek = strcmp(c->d->arch, "deepseek2") == 0;

        if (!key_is(c, "%s.rope.scaling.type", "yarn") || key_f32(c, "%s.rope.scaling.yarn_ext_factor", 1) == 0)
                return 1;
        if (deepseek)
                all *= 10; /* the converter stores a tenth */
        if (all == 0)
                return mscale(f, 1);
        return mscale(f, deepseek && all != 1 ? all : 1) / mscale(f, all);
}

int32_t arch_rope_plain(struct arch_ctx *c, enum k_rope kind, uint32_t n_dims, float base) {
        struct eng_desc *d = c->d;

        if (c->r)
                return -1;
        if (n_dims < 2 || n_dims % 2 || !(base > 0)) {
                arch_fail(c, "rope over %u dimensions with base %g: expected an even number and a base above 0", n_dims,
                          (double)base);
                return -1;
        }
        if (d->n_rope >= MAX_ROPE) {
                c->r = -E2BIG;
                return -1;
        }
        d->rope[d->n_rope] = (struct k_rope_params){
                .kind = kind, .n_dims = n_dims, .base = base, .freq_scale = 1, .attn_factor = 1,
                .beta_fast = 32, .beta_slow = 1, .n_ctx_orig = d->n_ctx_train,
        };
        return (int32_t)d->n_rope++;
}

int32_t arch_rope(struct arch_ctx *c, enum k_rope kind, uint32_t n_dims, float base) {
        int32_t i = arch_rope_plain(c, kind, n_dims, base);
        struct k_rope_params *p;

        if (i < 0)
                return i;
        p = &c->d->rope[i];
        p->factors = host_opt(c, n_dims / 2, "rope_freqs.weight", 0);
        p->n_ctx_orig = key_range(c, "%s.rope.scaling.original_context_length", c->d->n_ctx_train, 1, INT32_MAX);
        p->attn_factor = key_f32(c, "%s.rope.scaling.attn_factor", 1);
        if (key_is(c, "%s.rope.scaling.type", "none"))
                return i;
        p->freq_scale = 1.0f / rope_factor(c);
        if (key_is(c, "%s.rope.scaling.type", "yarn")) {
                p->ext_factor = key_f32(c, "%s.rope.scaling.yarn_ext_factor", 1);
                p->beta_fast = key_f32(c, "%s.rope.scaling.yarn_beta_fast", 32);
                p->beta_slow = key_f32(c, "%s.rope.scaling.yarn_beta_slow", 1);
                p->attn_factor *= arch_yarn_scale(c) * key_f32(c, "%s.rope.scaling.yarn_attn_factor", 1);
        } else if (!c->r && !key_is(c, "%s.rope.scaling.type", NULL) && !key_is(c, "%s.rope.scaling.type", "linear") &&
                   !key_is(c, "%s.rope.scaling.type", "longrope")) {
                arch_fail(c, "key %s.rope.scaling.type is not one of none, linear, yarn, longrope", c->d->arch);
        }
        return i;
}

void arch_windows(struct arch_ctx *c, uint32_t every, bool swa[ARCH_MAX_LAYERS]) {
        static const char key[] = "%s.attention.sliding_window_pattern";
        const struct gguf_kv *kv = c->r ? NULL : gguf_find(c->g, key);

        if (kv && kv->type == GGUF_ARRAY) {
                c->r = MIN(gguf_bool_per_layer(c->g, key, c->n_block, swa, c->err), 0);
                return;
        }
        every = key_range(c, key, every, 0, ARCH_MAX_LAYERS);
        for (uint32_t i = 0; !c->r && i < c->n_block; i++)
                swa[i] = every == 0 || i % every < every - 1;
}

uint32_t arch_group(struct arch_ctx *c, uint32_t window) {
        struct eng_desc *d = c->d;
        uint32_t i;

        for (i = 0; i < d->n_group; i++)
                if (d->group[i].window == window)
                        return i;
        d->group[i].window = window;
        d->n_group++;
        return i;
}

void arch_kv(struct arch_ctx *c, uint32_t layer) {
        struct eng_desc *d = c->d;
        struct eng_layer *l = &d->layer[layer];
        struct eng_attn *a = &l->attn;

        if (c->r)
                return;
        a->kv = d->n_kv;
        d->kv[d->n_kv++] = (struct eng_kv_need){
                .layer = layer, .group = arch_group(c, a->window), .n_head_kv = a->n_head_kv, .dk = a->dk, .dv = a->dv,
                .v_in_k = l->mixer == ENG_MIX_MLA, .mtp = layer >= d->n_layer,
        };
}

uint32_t arch_state(struct arch_ctx *c, uint32_t layer, size_t conv_floats, const struct eng_delta *delta) {
        struct eng_desc *d = c->d;

        if (c->r)
                return 0;
        d->state[d->n_state] = (struct eng_state_need){ .layer = layer, .conv_floats = conv_floats };
        if (delta) {
                d->state[d->n_state].n_k = delta->n_k;
                d->state[d->n_state].n_v = delta->n_v;
                d->state[d->n_state].s_k = delta->s_k;
                d->state[d->n_state].s_v = delta->s_v;
        }
        return d->n_state++;
}

struct eng_attn *arch_attn_init(struct arch_ctx *c, uint32_t i, int32_t rope) {
        struct eng_layer *l = &c->d->layer[i];
        struct eng_attn *a = &l->attn;

        l->mixer = ENG_MIX_ATTENTION;
        a->n_head = c->n_head[i];
        a->n_head_kv = c->n_head_kv[i];
        a->dk = c->dk;
        a->dv = c->dv;
        a->rope = rope;
        a->scale = key_f32(c, "%s.attention.scale", 0);
        if (a->scale == 0)
                a->scale = 1.0f / sqrtf((float)a->dk);
        if (!c->r && (a->n_head == 0 || a->n_head_kv == 0 || a->n_head % a->n_head_kv))
                arch_fail(c, "layer %u: %s.attention.head_count %u is no multiple of %s.attention.head_count_kv %u", i,
                          c->d->arch, a->n_head, c->d->arch, a->n_head_kv);
        if (!c->r && rope >= 0 && c->d->rope[rope].n_dims > a->dk)
                arch_fail(c, "%s.rope.dimension_count %u exceeds the head size %u", c->d->arch, c->d->rope[rope].n_dims, a->dk);
        return a;
}

static void bias(struct arch_ctx *c, const float **v, uint64_t n, const char *fmt, uint32_t i, bool required) {
        if (required)
                vec(c, v, n, fmt, i);
        else
                vec_opt(c, v, n, fmt, i);
}

void arch_attn_tensors(struct arch_ctx *c, uint32_t i, unsigned flags, enum arch_kv_from from) {
        struct eng_attn *a = &c->d->layer[i].attn;
        uint32_t E = c->d->n_embd;
        uint64_t q = (uint64_t)a->n_head * a->dk * (flags & ATTN_GATED ? 2 : 1), k = (uint64_t)a->n_head_kv * a->dk,
                 v = (uint64_t)a->n_head_kv * a->dv, o = (uint64_t)a->n_head * a->dv;
        bool b = flags & ATTN_BIAS;

        if (!c->r && q + k + v > ARCH_MAX_DIM * 4u)
                arch_fail(c, "layer %u: %u heads of %u are too many", i, a->n_head, a->dk);
        if (c->r)
                return;
        a->gated = flags & ATTN_GATED;
        if (from == KV_OWN && !a->gated && has_tensor(c, "blk.%u.attn_qkv.weight", i)) {
                mat(c, &a->wqkv, (uint32_t)(q + k + v), E, "blk.%u.attn_qkv.weight", i);
                bias(c, &a->bqkv, q + k + v, "blk.%u.attn_qkv.bias", i, b);
        } else {
                mat(c, &a->wq, (uint32_t)q, E, "blk.%u.attn_q.weight", i);
                bias(c, &a->bq, q, "blk.%u.attn_q.bias", i, b);
                if (from == KV_OWN) {
                        mat(c, &a->wk, (uint32_t)k, E, "blk.%u.attn_k.weight", i);
                        bias(c, &a->bk, k, "blk.%u.attn_k.bias", i, b);
                        if (!a->v_from_k) {
                                mat(c, &a->wv, (uint32_t)v, E, "blk.%u.attn_v.weight", i);
                                bias(c, &a->bv, v, "blk.%u.attn_v.bias", i, b);
                        }
                }
        }
        mat(c, &a->wo, E, (uint32_t)o, "blk.%u.attn_output.weight", i);
        bias(c, &a->bo, E, "blk.%u.attn_output.bias", i, flags & ATTN_OUT_BIAS);
        if (flags & ATTN_QK_NORM_FULL) {
                a->norm_full = true;
                vec(c, &a->q_norm, q, "blk.%u.attn_q_norm.weight", i);
                vec(c, &a->k_norm, k, "blk.%u.attn_k_norm.weight", i);
        } else if (flags & (ATTN_QK_NORM | ATTN_QK_NORM_OPT)) {
                bias(c, &a->q_norm, a->dk, "blk.%u.attn_q_norm.weight", i, flags & ATTN_QK_NORM);
                if (from == KV_OWN)
                        bias(c, &a->k_norm, a->dk, "blk.%u.attn_k_norm.weight", i, flags & ATTN_QK_NORM);
        }
}

void arch_ffn_dense(struct arch_ctx *c, uint32_t i, uint32_t n_ff, enum k_glu act) {
        struct eng_ffn *f = &c->d->layer[i].ffn;
        uint32_t E = c->d->n_embd;

        f->act = act;
        f->n_ff = n_ff;
        if (!c->r && n_ff == 0)
                arch_fail(c, "key %s.feed_forward_length is missing or 0 for layer %u", c->d->arch, i);
        if (c->r)
                return;
        f->fused_gate_up = !has_tensor(c, "blk.%u.ffn_gate.weight", i);
        if (!f->fused_gate_up) {
                mat(c, &f->gate, n_ff, E, "blk.%u.ffn_gate.weight", i);
                vec_opt(c, &f->gate_b, n_ff, "blk.%u.ffn_gate.bias", i);
        }
        mat(c, &f->up, f->fused_gate_up ? 2 * n_ff : n_ff, E, "blk.%u.ffn_up.weight", i);
        vec_opt(c, &f->up_b, f->up.rows, "blk.%u.ffn_up.bias", i);
        mat(c, &f->down, E, n_ff, "blk.%u.ffn_down.weight", i);
        vec_opt(c, &f->down_b, E, "blk.%u.ffn_down.bias", i);
}

void arch_ffn_ungated(struct arch_ctx *c, uint32_t i, uint32_t n_ff, enum k_glu act) {
        struct eng_ffn *f = &c->d->layer[i].ffn;
        uint32_t E = c->d->n_embd;

        if (!c->r && n_ff == 0)
                arch_fail(c, "key %s.feed_forward_length is missing or 0 for layer %u", c->d->arch, i);
        f->n_ff = n_ff;
        f->act = act;
        mat(c, &f->up, n_ff, E, "blk.%u.ffn_up.weight", i);
        vec_opt(c, &f->up_b, n_ff, "blk.%u.ffn_up.bias", i);
        mat(c, &f->down, E, n_ff, "blk.%u.ffn_down.weight", i);
        vec_opt(c, &f->down_b, E, "blk.%u.ffn_down.bias", i);
}

void arch_moe(struct arch_ctx *c, uint32_t i, enum k_glu act, enum k_gating gating, bool norm_weights) {
        struct eng_ffn *f = &c->d->layer[i].ffn;
        uint32_t E = c->d->n_embd, X, F;

        X = f->n_expert = key_range_req(c, "%s.expert_count", 1, ARCH_MAX_EXPERTS);
        f->n_used = key_range_req(c, "%s.expert_used_count", 1, X);
        /* Old files say the width of all experts that are used together (qwen2moe), or have one width only (mixtral). */
        if (!key_present(c, "%s.expert_feed_forward_length") && tensor_dim0(c, "blk.%u.ffn_down_exps.weight", i, &F))
                f->n_ff_exp = F;
        else
                F = f->n_ff_exp = key_range(c, "%s.expert_feed_forward_length", c->n_ff[i], 1, ARCH_MAX_DIM);
        f->act = act;
        f->gating = gating;
        f->norm_weights = norm_weights;
        f->weight_scale = key_f32(c, "%s.expert_weights_scale", 1);
        if (f->weight_scale == 0)
                f->weight_scale = 1;
        f->n_group = key_range(c, "%s.expert_group_count", 0, 0, X);
        f->n_group_used = key_range(c, "%s.expert_group_used_count", 0, 0, f->n_group);
        if (f->n_group <= 1 || f->n_group_used == 0 || f->n_group_used == f->n_group)
                f->n_group = f->n_group_used = 0;
        if (!c->r && f->n_group && X % f->n_group)
                arch_fail(c, "%s.expert_count %u is no multiple of %s.expert_group_count %u", c->d->arch, X, c->d->arch, f->n_group);
        if (!c->r && f->n_group && X / f->n_group * f->n_group_used < f->n_used)
                arch_fail(c, "%u groups of %u experts can't give %u experts", f->n_group_used, X / f->n_group, f->n_used);
        mat(c, &f->router, X, E, "blk.%u.ffn_gate_inp.weight", i);
        vec_opt(c, &f->router_b, X, "blk.%u.ffn_gate_inp.bias", i);
        vec_opt(c, &f->select_bias, X, "blk.%u.exp_probs_b.bias", i);
        if (has_tensor(c, "blk.%u.ffn_gate_up_exps.weight", i)) {
                mats(c, &f->exp_up, 2 * F, E, X, "blk.%u.ffn_gate_up_exps.weight", i);
                vec_opt(c, &f->exp_up_b, (uint64_t)2 * F * X, "blk.%u.ffn_gate_up_exps.bias", i);
        } else {
                mats(c, &f->exp_gate, F, E, X, "blk.%u.ffn_gate_exps.weight", i);
                mats(c, &f->exp_up, F, E, X, "blk.%u.ffn_up_exps.weight", i);
                vec_opt(c, &f->exp_gate_b, (uint64_t)F * X, "blk.%u.ffn_gate_exps.bias", i);
                vec_opt(c, &f->exp_up_b, (uint64_t)F * X, "blk.%u.ffn_up_exps.bias", i);
        }
        mats(c, &f->exp_down, E, F, X, "blk.%u.ffn_down_exps.weight", i);
        vec_opt(c, &f->exp_down_b, (uint64_t)E * X, "blk.%u.ffn_down_exps.bias", i);
}

void arch_shared_expert(struct arch_ctx *c, uint32_t i, uint32_t n_ff) {
        struct eng_ffn *f = &c->d->layer[i].ffn;
        uint32_t E = c->d->n_embd;

        f->n_ff_shexp = n_ff;
        mat_opt(c, &f->sh_router, 1, E, "blk.%u.ffn_gate_inp_shexp.weight", i);
        mat(c, &f->sh_gate, n_ff, E, "blk.%u.ffn_gate_shexp.weight", i);
        mat(c, &f->sh_up, n_ff, E, "blk.%u.ffn_up_shexp.weight", i);
        mat(c, &f->sh_down, E, n_ff, "blk.%u.ffn_down_shexp.weight", i);
}

void arch_mtp(struct arch_ctx *c, uint32_t k) {
        struct eng_desc *d = c->d;
        struct eng_mtp *m = &d->mtp[k];
        uint32_t i = d->n_layer + k, E = d->n_embd;

        m->layer = i;
        mat(c, &m->eh_proj, E, 2 * E, "blk.%u.nextn.eh_proj.weight", i);
        vec(c, &m->enorm, E, "blk.%u.nextn.enorm.weight", i);
        vec(c, &m->hnorm, E, "blk.%u.nextn.hnorm.weight", i);
        vec_opt(c, &m->head_norm, E, "blk.%u.nextn.shared_head_norm.weight", i);
        mat_opt(c, &m->embed, d->n_vocab, E, "blk.%u.nextn.embed_tokens.weight", i);
        mat_opt(c, &m->head, d->n_vocab, E, "blk.%u.nextn.shared_head_head.weight", i);
        if (!m->head_norm)
                m->head_norm = d->out_norm;
        if (!k_weight_present(&m->embed))
                m->embed = d->embed;
        if (!k_weight_present(&m->head))
                m->head = d->output;
}
