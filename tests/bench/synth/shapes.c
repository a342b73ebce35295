/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of published models, from their configuration files, and the tensors and
 * keys that GGUF files of their architectures have. Every matrix has the type asked
 * for, the output layer too; norms, biases, routers and the small vectors of
 * recurrent layers are f32. The vocabulary is "none": ids work, text doesn't.
 */
#include "tests/bench/synth/synth.h"

#include <string.h>

enum kind { LLAMA, QWEN2, QWEN3, QWEN3MOE, GPT_OSS, GEMMA3, GEMMA4, BITNET, QWEN35, QWEN35MOE };
static const char *const arch_name[] = { "llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "gemma3", "gemma4", "bitnet", "qwen35",
                                         "qwen35moe" };

struct synth_model {
        const char *name;
        enum kind kind;
        uint32_t layers, embd, ff, heads, kv, head, vocab, ctx;
        float rope_base, eps;
        bool tied;
        uint32_t experts, used, expert_ff, shared_ff;
        uint32_t window;
        uint32_t mtp;                         /* draft layers behind the others */
        uint32_t k_heads, v_heads;            /* delta net, heads of 128 */
        uint32_t ple, head_swa, shared_kv, every; /* gemma4; every: one full layer in so many (gemma3's is 6) */
        uint32_t ff_shared;                   /* gemma4: middle width of the layers that share KV */
};

static const struct synth_model models[] = {
        /* under 4B */
        { "qwen3-0.6b", QWEN3, 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6f, 1e-6f, .tied = true },
        { "llama-3.2-1b", LLAMA, 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5f, 1e-5f, .tied = true },
        { "gemma-3-1b", GEMMA3, 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6f, 1e-6f, .tied = true, .window = 512 },
        { "qwen3-1.7b", QWEN3, 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6f, 1e-6f, .tied = true },
        { "bitnet-2b", BITNET, 30, 2560, 6912, 20, 5, 128, 128256, 4096, 5e5f, 1e-5f, .tied = true },
        { "gemma-4-e2b", GEMMA4, 35, 1536, 6144, 8, 1, 512, 262144, 131072, 1e6f, 1e-6f, .tied = true, .window = 512, .ple = 256,
          .head_swa = 256, .shared_kv = 20, .every = 5, .ff_shared = 12288 },
        { "llama-3.2-3b", LLAMA, 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5f, 1e-5f, .tied = true },
        { "qwen3-4b", QWEN3, 36, 2560, 9728, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f, .tied = true },
        { "gemma-3-4b", GEMMA3, 34, 2560, 10240, 8, 4, 256, 262208, 131072, 1e6f, 1e-6f, .tied = true, .window = 1024 },
        { "gemma-4-e4b", GEMMA4, 42, 2560, 10240, 8, 2, 512, 262144, 131072, 1e6f, 1e-6f, .tied = true, .window = 512, .ple = 256,
          .head_swa = 256, .shared_kv = 18, .every = 6, .ff_shared = 10240 },
        /* 7B to 9B */
        { "mistral-7b", LLAMA, 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6f, 1e-5f },
        { "qwen2.5-7b", QWEN2, 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6f, 1e-6f },
        { "llama-3.1-8b", LLAMA, 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5f, 1e-5f },
        { "qwen3-8b", QWEN3, 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6f, 1e-6f },
        { "qwen3.5-9b", QWEN35, 32, 4096, 12288, 16, 4, 256, 248320, 262144, 1e7f, 1e-6f, .mtp = 1, .k_heads = 16, .v_heads = 32 },
        /* 20B to 35B */
        { "gpt-oss-20b", GPT_OSS, 24, 2880, 2880, 64, 8, 64, 201088, 131072, 1.5e5f, 1e-5f, .experts = 32, .used = 4, .expert_ff = 2880,
          .window = 128 },
        { "mistral-small-24b", LLAMA, 40, 5120, 32768, 32, 8, 128, 131072, 32768, 1e8f, 1e-5f },
        { "gemma-4-26b-a4b", GEMMA4, 30, 2816, 2112, 16, 8, 512, 262144, 131072, 1e6f, 1e-6f, .tied = true, .experts = 128, .used = 8,
          .expert_ff = 704, .window = 1024, .head_swa = 256, .every = 6 },
        { "gemma-3-27b", GEMMA3, 62, 5376, 21504, 32, 16, 128, 262208, 131072, 1e6f, 1e-6f, .tied = true, .window = 1024 },
        { "qwen3.5-27b", QWEN35, 64, 5120, 17408, 24, 4, 256, 248320, 262144, 1e7f, 1e-6f, .mtp = 1, .k_heads = 16, .v_heads = 48 },
        { "qwen3-30b-a3b", QWEN3MOE, 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6f, 1e-6f, .experts = 128, .used = 8, .expert_ff = 768 },
        { "qwen3-32b", QWEN3, 64, 5120, 25600, 64, 8, 128, 151936, 40960, 1e6f, 1e-6f },
        { "qwen3.5-35b-a3b", QWEN35MOE, 40, 2048, 512, 16, 2, 256, 248320, 262144, 1e7f, 1e-6f, .experts = 256, .used = 8, .expert_ff = 512,
          .shared_ff = 512, .mtp = 1, .k_heads = 16, .v_heads = 32 },
        /* over 64B */
        { "llama-3.3-70b", LLAMA, 80, 8192, 28672, 64, 8, 128, 128256, 131072, 5e5f, 1e-5f },
        { "gpt-oss-120b", GPT_OSS, 36, 2880, 2880, 64, 8, 64, 201088, 131072, 1.5e5f, 1e-5f, .experts = 128, .used = 4, .expert_ff = 2880,
          .window = 128 },
};
enum { N_MODELS = sizeof(models) / sizeof(*models), HEAD_SSM = 128 };

const char *synth_model_name(uint32_t i) { return i < N_MODELS ? models[i].name : NULL; }

struct build {
        struct synth *s;
        struct synth_model m;
        const struct synth_type *q, *exp, *embd, *f32;
        uint32_t n_blocks; /* with the draft layers */
        bool draft;        /* in one of those */
        char prefix[32];
};

static void add(struct build *b, const char *name, const struct synth_type *t, enum synth_init init, enum synth_use use, uint64_t x, uint64_t y,
                uint64_t z) {
        char full[96];
        snprintf(full, sizeof(full), "%s%s", b->prefix, name);
        synth_add(b->s, full, t, init, b->draft ? SYNTH_DRAFT : use, x, y, z);
}
static void mat(struct build *b, const char *name, uint64_t in, uint64_t out) { add(b, name, b->q, SYNTH_QUANT, SYNTH_DENSE, in, out, 0); }
static void vec(struct build *b, const char *name, enum synth_init init, uint64_t n) { add(b, name, b->f32, init, SYNTH_DENSE, n, 0, 0); }
static void norm(struct build *b, const char *name, uint64_t n) { vec(b, name, SYNTH_NORM, n); }
static void layer(struct build *b, uint32_t i) {
        snprintf(b->prefix, sizeof(b->prefix), "blk.%u.", i);
        b->draft = i >= b->m.layers;
}

enum attn { BIAS = 1, OUT_BIAS = 2, QK_NORM = 4, GATED = 8, NO_KV = 16, NO_V = 32 };

static void attention(struct build *b, unsigned flags, uint32_t kv, uint32_t head) {
        uint64_t e = b->m.embd, q = (uint64_t)b->m.heads * head, k = (uint64_t)kv * head;

        mat(b, "attn_q.weight", e, flags & GATED ? 2 * q : q);
        if (!(flags & NO_KV)) {
                mat(b, "attn_k.weight", e, k);
                if (!(flags & NO_V))
                        mat(b, "attn_v.weight", e, k);
        }
        mat(b, "attn_output.weight", q, e);
        if (flags & BIAS) {
                vec(b, "attn_q.bias", SYNTH_BIAS, q);
                vec(b, "attn_k.bias", SYNTH_BIAS, k);
                vec(b, "attn_v.bias", SYNTH_BIAS, k);
        }
        if (flags & OUT_BIAS)
                vec(b, "attn_output.bias", SYNTH_BIAS, e);
        if (flags & QK_NORM) {
                norm(b, "attn_q_norm.weight", head);
                if (!(flags & NO_KV))
                        norm(b, "attn_k_norm.weight", head);
        }
}

static void dense(struct build *b, const char *suffix, uint32_t ff) {
        char n[48];
        snprintf(n, sizeof(n), "ffn_gate%s.weight", suffix);
        mat(b, n, b->m.embd, ff);
        snprintf(n, sizeof(n), "ffn_up%s.weight", suffix);
        mat(b, n, b->m.embd, ff);
        snprintf(n, sizeof(n), "ffn_down%s.weight", suffix);
        mat(b, n, ff, b->m.embd);
}

static void experts(struct build *b, bool bias, bool fused) {
        uint64_t e = b->m.embd, f = b->m.expert_ff, x = b->m.experts;

        add(b, "ffn_gate_inp.weight", b->f32, SYNTH_ROUTER, SYNTH_DENSE, e, x, 0);
        if (bias)
                vec(b, "ffn_gate_inp.bias", SYNTH_BIAS, x);
        if (fused) {
                add(b, "ffn_gate_up_exps.weight", b->exp, SYNTH_QUANT, SYNTH_EXPERT, e, 2 * f, x);
        } else {
                add(b, "ffn_gate_exps.weight", b->exp, SYNTH_QUANT, SYNTH_EXPERT, e, f, x);
                add(b, "ffn_up_exps.weight", b->exp, SYNTH_QUANT, SYNTH_EXPERT, e, f, x);
        }
        add(b, "ffn_down_exps.weight", b->exp, SYNTH_QUANT, SYNTH_EXPERT, f, e, x);
        if (bias) {
                add(b, "ffn_gate_exps.bias", b->f32, SYNTH_BIAS, SYNTH_EXPERT, f, x, 0);
                add(b, "ffn_up_exps.bias", b->f32, SYNTH_BIAS, SYNTH_EXPERT, f, x, 0);
                add(b, "ffn_down_exps.bias", b->f32, SYNTH_BIAS, SYNTH_EXPERT, e, x, 0);
        }
}

/* ---- layers, by family ------------------------------------------------------------ */

static void layer_llama(struct build *b, uint32_t i) {
        static const unsigned flags[] = { [LLAMA] = 0, [QWEN2] = BIAS, [QWEN3] = QK_NORM, [QWEN3MOE] = QK_NORM };

        norm(b, "attn_norm.weight", b->m.embd);
        attention(b, flags[b->m.kind], b->m.kv, b->m.head);
        norm(b, "ffn_norm.weight", b->m.embd);
        if (b->m.experts)
                experts(b, false, false);
        else
                dense(b, "", b->m.ff);
}

static void layer_bitnet(struct build *b, uint32_t i) {
        norm(b, "attn_norm.weight", b->m.embd);
        norm(b, "attn_sub_norm.weight", b->m.embd);
        attention(b, 0, b->m.kv, b->m.head);
        norm(b, "ffn_norm.weight", b->m.embd);
        norm(b, "ffn_sub_norm.weight", b->m.ff);
        dense(b, "", b->m.ff);
}

static void layer_gpt_oss(struct build *b, uint32_t i) {
        norm(b, "attn_norm.weight", b->m.embd);
        attention(b, BIAS | OUT_BIAS, b->m.kv, b->m.head);
        vec(b, "attn_sinks.weight", SYNTH_SINK, b->m.heads);
        norm(b, "post_attention_norm.weight", b->m.embd);
        experts(b, true, false);
}

static void layer_gemma3(struct build *b, uint32_t i) {
        norm(b, "attn_norm.weight", b->m.embd);
        attention(b, QK_NORM, b->m.kv, b->m.head);
        norm(b, "post_attention_norm.weight", b->m.embd);
        norm(b, "ffn_norm.weight", b->m.embd);
        dense(b, "", b->m.ff);
        norm(b, "post_ffw_norm.weight", b->m.embd);
}

static bool slides(const struct synth_model *m, uint32_t i) { return i % m->every != m->every - 1; }

static void layer_gemma4(struct build *b, uint32_t i) {
        const struct synth_model *m = &b->m;
        bool swa = slides(m, i), shared = i >= m->layers - m->shared_kv;

        norm(b, "attn_norm.weight", m->embd);
        attention(b, QK_NORM | (shared ? NO_KV : 0), m->kv, swa ? m->head_swa : m->head);
        norm(b, "post_attention_norm.weight", m->embd);
        norm(b, "ffn_norm.weight", m->embd);
        dense(b, "", shared && m->ff_shared ? m->ff_shared : m->ff);
        norm(b, "post_ffw_norm.weight", m->embd);
        if (m->experts) {
                experts(b, false, true);
                norm(b, "ffn_gate_inp.scale", m->embd);
                norm(b, "pre_ffw_norm_2.weight", m->embd);
                norm(b, "post_ffw_norm_1.weight", m->embd);
                norm(b, "post_ffw_norm_2.weight", m->embd);
                norm(b, "ffn_down_exps.scale", m->experts);
        }
        if (m->ple) {
                mat(b, "inp_gate.weight", m->embd, m->ple);
                mat(b, "proj.weight", m->ple, m->embd);
                norm(b, "post_norm.weight", m->embd);
        }
        norm(b, "layer_output_scale.weight", 1);
}

static void layer_hybrid(struct build *b, uint32_t i) {
        const struct synth_model *m = &b->m;
        uint64_t kd = (uint64_t)m->k_heads * HEAD_SSM, vd = (uint64_t)m->v_heads * HEAD_SSM;

        norm(b, "attn_norm.weight", m->embd);
        norm(b, "post_attention_norm.weight", m->embd);
        if (i >= m->layers || i % 4 == 3) {
                attention(b, QK_NORM | GATED, m->kv, m->head);
        } else {
                mat(b, "attn_qkv.weight", m->embd, 2 * kd + vd);
                mat(b, "attn_gate.weight", m->embd, vd);
                add(b, "ssm_conv1d.weight", b->f32, SYNTH_CONV, SYNTH_DENSE, 4, 2 * kd + vd, 0);
                vec(b, "ssm_dt.bias", SYNTH_DT, m->v_heads);
                vec(b, "ssm_a", SYNTH_DECAY, m->v_heads);
                mat(b, "ssm_beta.weight", m->embd, m->v_heads);
                mat(b, "ssm_alpha.weight", m->embd, m->v_heads);
                norm(b, "ssm_norm.weight", HEAD_SSM);
                mat(b, "ssm_out.weight", vd, m->embd);
        }
        if (m->experts) {
                experts(b, false, false);
                vec(b, "ffn_gate_inp_shexp.weight", SYNTH_ROUTER, m->embd);
                dense(b, "_shexp", m->shared_ff);
        } else {
                dense(b, "", m->ff);
        }
        if (i >= m->layers) {
                mat(b, "nextn.eh_proj.weight", 2 * (uint64_t)m->embd, m->embd);
                norm(b, "nextn.enorm.weight", m->embd);
                norm(b, "nextn.hnorm.weight", m->embd);
                norm(b, "nextn.shared_head_norm.weight", m->embd);
        }
}

/* ---- files -------------------------------------------------------------------------- */

static void keys(struct build *b) {
        const struct synth_model *m = &b->m;
        struct synth *s = b->s;
        bool pattern[128];

        synth_str(s, "general.architecture", arch_name[m->kind]);
        synth_str(s, "general.name", m->name);
        synth_u32(s, "general.file_type", b->exp->ftype);
        synth_u32(s, "general.quantization_version", 2);
        synth_u32(s, ".context_length", m->ctx);
        synth_u32(s, ".embedding_length", m->embd);
        synth_u32(s, ".block_count", b->n_blocks);
        synth_u32(s, ".vocab_size", m->vocab);
        synth_u32(s, ".attention.head_count", m->heads);
        synth_u32(s, ".attention.head_count_kv", m->kv);
        synth_u32(s, ".attention.key_length", m->head);
        synth_u32(s, ".attention.value_length", m->head);
        synth_f32(s, ".attention.layer_norm_rms_epsilon", m->eps);
        synth_f32(s, ".rope.freq_base", m->rope_base);
        synth_str(s, "tokenizer.ggml.model", "none");
        if (m->ff_shared && m->ff_shared != m->ff) {
                int32_t ff[128];
                for (uint32_t i = 0; i < m->layers; i++)
                        ff[i] = (int32_t)(i >= m->layers - m->shared_kv ? m->ff_shared : m->ff);
                synth_i32s(s, ".feed_forward_length", ff, m->layers);
        } else {
                synth_u32(s, ".feed_forward_length", m->ff);
        }
        if (m->experts) {
                synth_u32(s, ".expert_count", m->experts);
                synth_u32(s, ".expert_used_count", m->used);
                synth_u32(s, ".expert_feed_forward_length", m->expert_ff);
        }
        if (m->shared_ff)
                synth_u32(s, ".expert_shared_feed_forward_length", m->shared_ff);
        if (m->window)
                synth_u32(s, ".attention.sliding_window", m->window);
        switch (m->kind) {
        case LLAMA:
                synth_u32(s, ".rope.dimension_count", m->head);
                break;
        case GPT_OSS:
                synth_str(s, ".rope.scaling.type", "yarn");
                synth_f32(s, ".rope.scaling.factor", 32);
                synth_u32(s, ".rope.scaling.original_context_length", 4096);
                break;
        case GEMMA3:
                synth_str(s, ".rope.scaling.type", "linear");
                synth_f32(s, ".rope.scaling.factor", 8);
                break;
        case GEMMA4:
                for (uint32_t i = 0; i < m->layers; i++)
                        pattern[i] = slides(m, i);
                synth_bools(s, ".attention.sliding_window_pattern", pattern, m->layers);
                synth_u32(s, ".attention.shared_kv_layers", m->shared_kv);
                synth_u32(s, ".embedding_length_per_layer_input", m->ple);
                synth_u32(s, ".attention.key_length_swa", m->head_swa);
                synth_u32(s, ".attention.value_length_swa", m->head_swa);
                synth_u32(s, ".rope.dimension_count_swa", m->head_swa);
                synth_f32(s, ".rope.freq_base_swa", 10000);
                synth_f32(s, ".final_logit_softcapping", 30);
                break;
        case QWEN35:
        case QWEN35MOE: {
                static const int32_t sections[4] = { 11, 11, 10, 0 };
                synth_u32(s, ".rope.dimension_count", 64);
                synth_i32s(s, ".rope.dimension_sections", sections, 4);
                synth_u32(s, ".full_attention_interval", 4);
                synth_u32(s, ".ssm.conv_kernel", 4);
                synth_u32(s, ".ssm.inner_size", m->v_heads * HEAD_SSM);
                synth_u32(s, ".ssm.state_size", HEAD_SSM);
                synth_u32(s, ".ssm.time_step_rank", m->v_heads);
                synth_u32(s, ".ssm.group_count", m->k_heads);
                if (m->mtp)
                        synth_u32(s, ".nextn_predict_layers", m->mtp);
                break;
        }
        case QWEN2:
        case QWEN3:
        case QWEN3MOE:
        case BITNET:
                break;
        }
}

static void shrink(struct synth_model *m) {
        static const uint32_t cycle[] = { [LLAMA] = 1, [QWEN2] = 1, [QWEN3] = 1, [QWEN3MOE] = 1, [GPT_OSS] = 2, [GEMMA3] = 2, [GEMMA4] = 4,
                                          [BITNET] = 1, [QWEN35] = 4, [QWEN35MOE] = 4 };
        m->layers = cycle[m->kind];
        m->heads = m->kind == BITNET ? 2 : 4; /* bitnet: heads fill the width */
        m->kv = m->kv > 1 ? 2 : 1;
        if (m->kind == BITNET) {
                m->kv = 1;
                m->heads = 4;
                m->head = 64;
        }
        m->embd = 256;
        m->ff = 256;
        m->ff_shared = m->ff_shared ? 512 : 0;
        m->expert_ff = m->expert_ff ? 256 : 0;
        m->shared_ff = m->shared_ff ? 256 : 0;
        m->vocab = 512;
        m->ple = m->ple ? 256 : 0;
        m->shared_kv = m->shared_kv ? 2 : 0;
        m->every = m->every ? 2 : 0;
        m->k_heads = m->k_heads ? 2 : 0;
        m->v_heads = m->v_heads ? 4 : 0;
        if (m->experts) {
                m->experts = 8;
                m->used = 4;
        }
}

void synth_describe(struct synth *s, const char *name, const struct synth_type *t, uint32_t layers, bool tiny, uint32_t *ret_used,
                    uint32_t *ret_experts) {
        struct build b = { .s = s, .q = t, .exp = t, .embd = t, .f32 = synth_type_find("f32") };
        uint32_t at = 0;

        while (at < N_MODELS && strcmp(models[at].name, name) != 0)
                at++;
        if (at == N_MODELS) {
                synth_fail(s, "\"%s\": no such model (synth_gguf without arguments lists them)", name);
                return;
        }
        b.m = models[at];
        if (tiny)
                shrink(&b.m);
        if (layers)
                b.m.layers = layers;
        if (b.m.layers > 120 || b.m.layers <= b.m.shared_kv) {
                synth_fail(s, "%s has %u to 120 layers, %u are asked for", name, b.m.shared_kv + 1, b.m.layers);
                return;
        }
        b.n_blocks = b.m.layers + b.m.mtp;
        if (b.m.kind == GPT_OSS) { /* as published: experts MXFP4, the rest q8_0 */
                if (strcmp(t->name, "mxfp4") != 0)
                        synth_fail(s, "%s comes in mxfp4 (its experts; the rest is q8_0)", name);
                b.q = b.embd = synth_type_find("q8_0");
        }
        /* What the usual quantizer makes of a table that is also the output layer; ternary files keep it in halves. */
        if (b.m.kind == BITNET)
                b.embd = synth_type_find("f16");
        else if (b.m.tied && (strcmp(t->name, "q4_0") == 0 || strcmp(t->name, "q4_k") == 0) && b.m.embd % 256 == 0)
                b.embd = synth_type_find("q6_k");
        synth_set_arch(s, arch_name[b.m.kind]);
        keys(&b);
        add(&b, "token_embd.weight", b.embd, SYNTH_QUANT, b.m.tied ? SYNTH_DENSE : SYNTH_ROW, b.m.embd, b.m.vocab, 0);
        norm(&b, "output_norm.weight", b.m.embd);
        if (!b.m.tied)
                mat(&b, "output.weight", b.m.embd, b.m.vocab);
        if (b.m.kind == LLAMA || b.m.kind == GEMMA4)
                vec(&b, "rope_freqs.weight", SYNTH_ONE, b.m.head / 2);
        if (b.m.ple) {
                add(&b, "per_layer_token_embd.weight", b.embd, SYNTH_QUANT, SYNTH_ROW, (uint64_t)b.m.ple * b.m.layers, b.m.vocab, 0);
                mat(&b, "per_layer_model_proj.weight", b.m.embd, (uint64_t)b.m.ple * b.m.layers);
                norm(&b, "per_layer_proj_norm.weight", b.m.ple);
        }
        for (uint32_t i = 0; i < b.n_blocks; i++) {
                layer(&b, i);
                switch (b.m.kind) {
                case LLAMA:
                case QWEN2:
                case QWEN3:
                case QWEN3MOE: layer_llama(&b, i); break;
                case GPT_OSS: layer_gpt_oss(&b, i); break;
                case GEMMA3: layer_gemma3(&b, i); break;
                case GEMMA4: layer_gemma4(&b, i); break;
                case BITNET: layer_bitnet(&b, i); break;
                case QWEN35:
                case QWEN35MOE: layer_hybrid(&b, i); break;
                }
        }
        *ret_used = b.m.used;
        *ret_experts = b.m.experts;
}
