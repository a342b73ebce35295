/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The compute interface: one table of operations (struct k_ops) that each
 * backend implements, with one typed argument struct per operation. Kernels
 * know no engine, no model, no file: they get pointers in the device's address
 * space, shapes and enums.
 *
 * Vocabulary
 *   row     one token's activations in a step; a step has n rows. Rows of role
 *           D (generated, draft) come first: [0, n_d) is D, [n_d, n) is P.
 *   act     float32 activations [n, cols] plus room for a quantized image that
 *           the backend fills when a linear op first needs it (k_act).
 *   weight  a matrix [rows = outputs, cols = inputs] of any type and layout.
 *
 * Arithmetic follows a row's role, never its company: an output element of a D
 * row has the same bits at every width and beside any P rows; of a P row, for
 * any chunking. A backend may use different arithmetic for the two roles.
 *
 * Nothing here allocates after set-up; every buffer is the caller's, taken with
 * mem_alloc() at load time. Functions return 0 or a negative errno (-EIO: the
 * device is lost; ops->last_error says which kernel).
 */

#include "kernels/tune.h"
#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct k_dev;

/*
 * Where a matrix lies and who multiplies with it. Whatever the place, 'data' is an address that the device can read.
 * Prompt rows (P) of a matrix outside the device's memory are computed by the device: the matrix passes through its
 * ring (stream_reserve), or is read in place without one.
 */
enum k_place {
        K_PLACE_DEVICE, /* the device's own memory */
        K_PLACE_READ,   /* host memory, read in place by the device */
        K_PLACE_HOST,   /* host memory; products of D rows are the host processor's (kernels/mixed.h) */
};

struct k_weight {
        enum k_type type;
        enum k_layout layout;
        uint32_t rows, cols;   /* outputs, inputs */
        uint32_t n_expert;     /* 0 or 1: a plain matrix; else that many stacked, expert_stride bytes apart */
        size_t expert_stride;
        const void *data;      /* device address; NULL: absent */
        const float *scale;    /* optional, [1] or [n_expert]: multiplies the product (".scale" tensors) */
        enum k_place place;
};
static inline bool k_weight_present(const struct k_weight *w) { return w && w->data; }
/* One of the stacked matrices as a plain one. */
static inline struct k_weight k_weight_nth(const struct k_weight *w, uint32_t i) {
        struct k_weight one = *w;

        one.data = (const unsigned char *)w->data + i * w->expert_stride;
        one.scale = w->scale && w->n_expert > 1 ? w->scale + i : w->scale;
        one.n_expert = 0;
        one.expert_stride = 0;
        return one;
}

struct k_act {
        float *f;        /* [n, cols], row-major and dense: rows are cols floats apart; f itself is 64-byte aligned */
        void *q;         /* k_act_q_bytes(max_n, cols) bytes, or NULL: backend uses its own scratch */
        uint32_t cols;
        uint32_t q_kind; /* which image q holds (backend's own numbering), 0: none. Whoever writes f sets 0. */
        uint32_t q_rows; /* of the first q_rows rows; meaningless while q_kind is 0 */
};

#define K_TOKEN_SAMPLED UINT32_MAX

/* Per-step data. Host arrays; a backend that needs them on the device copies them in batch_begin(). */
struct k_batch {
        uint32_t n, n_d;           /* rows, of which the first n_d are role D */
        uint32_t n_seq;            /* sequences in this batch */
        const uint32_t *token;     /* [n] ids */
        const int32_t *pos;        /* [n] absolute positions */
        const uint32_t *seq;       /* [n] index into the per-sequence arrays below; rows of one sequence are adjacent */
        const uint32_t *state_in;  /* [n_seq] recurrent-state slot each sequence continues from */
        const uint32_t *state_out; /* [n] slot each row's new state is written to, UINT32_MAX: none kept.
                                      Rows of one sequence are in position order; row i+1 continues from row i. */
        const uint8_t *state_zero; /* [n_seq] 1: start from a zero state instead of state_in */
        /* Page tables: for KV group g, pages of sequence s are table[g][s * table_stride[g] + p / page_tokens];
         * UINT32_MAX: not resident (outside the window). */
        uint32_t n_group;
        const uint32_t *const *table;
        const uint32_t *table_stride;
        /* Optional (sampled NULL: none): sequence s is place[s] of a set whose tokens the device keeps. */
        const uint32_t *place;     /* [n_seq] */
        uint32_t *sampled;         /* device [places]: what sample() chose last; token[i] K_TOKEN_SAMPLED: fed from there */
        uint32_t *history;         /* device [places][history_stride]: every token fed, by position */
        size_t history_stride;
        void *dev;                 /* backend's copy, set by batch_begin */
};

/*
 * The KV pages of one layer. K of token t of page p starts at k + (p * page_tokens + t) * k_row_bytes. Heads whose size is
 * no multiple of the type's block end in a block whose rest is 0 (ops->kv_part_blocks).
 */
struct k_kv {
        void *k, *v;           /* v NULL: values are the first dv columns of the key row (MLA) */
        enum k_type type_k, type_v;
        uint32_t page_tokens;
        uint32_t n_head_kv, dk, dv;
        size_t k_row_bytes, v_row_bytes; /* bytes of one token, all kv heads */
        uint32_t group;        /* which page table */
};

/* Table look-up: out[r] = (add ? out[r] : 0) + scale * w[index of row r]. */
enum k_embed_index { K_EMBED_TOKEN, K_EMBED_POS, K_EMBED_ZERO /* row 0 (token type 0) */ };
struct k_embed_args {
        const struct k_weight *w;
        enum k_embed_index index;
        float scale;
        bool add;
        struct k_act *out;
};

/*
 * The residual stream's step, one pass over a row:
 *   if add:  a = add_norm_w ? norm(add) * add_norm_w + add_norm_b : add;  x += add_scale * a  (x is stored)
 *   if out:  out = (norm(x) * w + b) * out_scale
 */
enum k_norm { K_NORM_RMS, K_NORM_LAYER, K_NORM_L2 };
struct k_norm_args {
        const struct k_act *x;
        const struct k_act *add;   /* optional; a residual branch */
        const float *add_norm_w, *add_norm_b; /* norm of the branch before it is added; same kind and eps */
        float add_scale;
        enum k_norm kind;
        uint32_t group;            /* 0: whole row; else normalize each run of 'group' columns (w has 'group' entries) */
        const float *w, *b;        /* may be NULL */
        float eps;
        float out_scale;           /* multiplies the result; 1 normally */
        struct k_act *out;         /* may alias x; NULL: only the addition */
        uint32_t out_col;          /* first column of out written; out->cols >= out_col + x->cols */
        const uint32_t *gather;    /* optional host [n_rows]: treat only these rows; out rows are then 0..n_rows-1 */
        uint32_t n_rows;           /* with gather */
};

#define K_LINEAR_MAX 4
struct k_linear_args {
        struct k_act *x;           /* quantized once for all outputs */
        uint32_t n_out;            /* 1..K_LINEAR_MAX weights sharing x */
        struct {
                const struct k_weight *w;
                const float *bias; /* [w->rows] or NULL */
                float *y;          /* [n, y_stride] float32 */
                size_t y_stride;   /* in floats */
        } out[K_LINEAR_MAX];
        uint32_t row0, n_rows;     /* which rows of the batch: [row0, row0 + n_rows) */
        uint32_t n_d;              /* of those, how many (at the front) are role D */
        const uint32_t *gather;    /* optional host [n_rows]: x rows to use; y rows are then 0..n_rows-1 */
};

/* Per-head block-diagonal product (MLA absorb): y[h] = W[h] x[h], W stacked as experts. */
struct k_head_linear_args {
        uint32_t tail; /* columns that follow x's inputs within a head, copied behind y's outputs (MLA: the rope part) */
        const float *x; size_t x_stride; uint32_t x_head;  /* floats between rows, between heads */
        const struct k_weight *w;                           /* n_expert = heads */
        float *y; size_t y_stride; uint32_t y_head;
        uint32_t n, n_d;
};

enum k_glu { K_GLU_SILU, K_GLU_GELU_TANH, K_GLU_GELU_ERF, K_GLU_RELU2, K_GLU_SWIGLU_OAI, K_GLU_NONE };
struct k_glu_args {
        const float *gate, *up;    /* gate NULL: out = act(up) (no gating) */
        size_t gate_stride, up_stride;
        enum k_glu act;
        float alpha, limit;        /* SWIGLU_OAI: min(g,limit)*sigmoid(alpha g)*(clamp(u)+1) */
        float sparse_std;          /* g becomes max(g - (mean + sparse_std * deviation), 0) over its row first; 0: off, as without gates */
        struct k_act *out;
        uint32_t n;
};

enum k_rope { K_ROPE_NONE, K_ROPE_ADJACENT, K_ROPE_HALVES };
struct k_rope_params {
        enum k_rope kind;
        uint32_t n_dims;           /* rotated dimensions of each head */
        float base, freq_scale;    /* theta_i = pos * freq_scale * base^(-2i/n_dims) / factors[i] */
        const float *factors;      /* host [n_dims/2] or NULL */
        float ext_factor, attn_factor, beta_fast, beta_slow; /* YaRN; ext_factor 0: off */
        uint32_t n_ctx_orig;
};

/* After the QKV product: optional per-head q/k norm, rope, optional v norm, K and V written to their pages. */
struct k_qkv_args {
        float *q; size_t q_stride; uint32_t q_head;   /* in place; floats between rows, between heads */
        float *k; size_t k_stride; uint32_t k_head;   /* clobbered; NULL: the layer reads another layer's KV, only q is treated */
        const float *v; size_t v_stride; uint32_t v_head; /* may be k itself (V = raw K): read before k is touched;
                                                             NULL if kv->v is NULL (MLA) */
        uint32_t n_head, n_head_kv, dk, dv;
        uint32_t rope_off;                             /* first rotated column within a head */
        const float *q_norm, *k_norm;                  /* [dk] RMS weights or NULL */
        uint32_t k_norm_cols;                          /* k_norm covers only the first columns of a head (MLA latent); 0: dk */
        bool v_norm;                                   /* weightless RMS norm of v (gemma4) */
        bool norm_full;                                /* q_norm/k_norm span all heads (olmo2): [n_head*dk] */
        float norm_eps;
        float q_temp; uint32_t q_temp_len;             /* q *= 1 + q_temp * ln(1 + floor(pos / q_temp_len)); 0: off */
        const struct k_rope_params *rope;
        const struct k_kv *kv;
};

struct k_attention_args {
        const float *q; size_t q_stride; uint32_t q_head;
        uint32_t n_head;
        const struct k_kv *kv;
        float scale, softcap;      /* softcap 0: off */
        uint32_t window;           /* 0: all; else key visible if pos_q - pos_k < window; not causal: if |pos_q - pos_k| < window */
        bool causal;               /* false: a row sees every position up to the last of its sequence in this batch (encoders) */
        const float *sinks;        /* [n_head] or NULL: joins the softmax denominator only */
        const float *gate; size_t gate_stride; uint32_t gate_head; /* optional: out *= sigmoid(gate), [n, n_head, dv] with strides */
        struct k_act *out;         /* [n, n_head*dv] */
};

struct k_delta_args { /* gated delta net, one layer: conv, silu, norms, recurrence, gated norm */
        float *qkv; size_t qkv_stride;       /* [q | k | v] channels before the convolution; clobbered */
        const float *z; size_t z_stride;     /* output gate [n, n_v*S_v]; with s_v a multiple of 4 its rows are 16-byte aligned */
        const float *beta, *alpha; size_t ba_stride; /* [n, n_v] raw projections; head h at column h, or if ba_run is set */
        uint32_t ba_run;                     /* at (h / ba_run) * 2 * ba_run + h % ba_run (beta and alpha in one product) */
        uint32_t n_k, n_v, s_k, s_v;         /* heads and head sizes */
        bool k_head_blocked;                 /* V head h uses K head h/(n_v/n_k) instead of h % n_k */
        uint32_t conv;                       /* taps */
        const float *conv_w;                 /* [channels, conv], last tap on the current token */
        const float *a, *dt_bias;            /* [n_v]; a is already -exp(A_log) */
        const float *norm_w; float eps;      /* [s_v], 16-byte aligned; gated RMS norm: norm(o) * silu(z) */
        float *conv_state;                   /* [slots][(conv-1)][channels] */
        float *state;                        /* [slots] of delta_slot() floats: [n_v][s_k][s_v], then what else the backend keeps there */
        struct k_act *out;                   /* [n, n_v*s_v] */
};

struct k_shortconv_args { /* lfm2: gated short convolution; bcx = [b | c | x] each d wide */
        float *bcx; size_t stride; uint32_t d, conv; /* clobbered */
        const float *conv_w; float *conv_state; /* as above with channels = d */
        struct k_act *out;
};

enum k_gating { K_GATE_SOFTMAX, K_GATE_SIGMOID, K_GATE_SOFTMAX_TOPK /* softmax over the selected */ };
struct k_moe_args {
        struct k_act *x;                 /* expert input */
        const float *router; size_t router_stride; /* logits [n, n_expert], bias already added */
        const float *select_bias;        /* [n_expert] added for the choice only, or NULL */
        uint32_t n_expert, n_used;
        uint32_t n_group, n_group_used;  /* group-limited choice; 0: off */
        enum k_gating gating;            /* ties go to the lowest index, NaN comes last; a softmax takes NaN, and inf - inf, for the least */
        bool norm_weights; float weight_scale;
        const struct k_weight *gate, *up, *down; /* stacked; gate NULL with up holding [gate|up] fused rows */
        const float *gate_b, *up_b, *down_b;     /* [n_expert, rows] or NULL */
        enum k_glu act; float alpha, limit;
        void *scratch; size_t scratch_bytes; /* k_moe_scratch() */
        float *y; size_t y_stride;       /* [n, d] = sum in order of rank, fixed */
        uint32_t n, n_d;
};

/* Elementwise over [n, cols]; sigmoid(v) = 1 / (1 + exp(-v)). */
enum k_elem {
        K_ELEM_AXPY,            /* y = a * y + b * x */
        K_ELEM_COPY,            /* y[i] = x[gather ? gather[i] : i]; no overlap */
        K_ELEM_SCALE,           /* y *= a */
        K_ELEM_SOFTCAP,         /* y = b * tanh(a * y / b) */
        K_ELEM_MUL,             /* y *= x */
        K_ELEM_MUL_SIGMOID,     /* y *= sigmoid(x) */
        K_ELEM_MUL_SILU,        /* y *= x * sigmoid(x) */
        K_ELEM_MUL_SIGMOID_ROW, /* y[i][c] *= sigmoid(x[i][0]) */
        K_ELEM_MUL_VEC,         /* y[i][c] *= x[c] */
};
struct k_elem_args {
        enum k_elem op;
        float *y; size_t y_stride; uint32_t cols;
        const float *x; size_t x_stride;
        float a, b;
        const uint32_t *gather; /* host; COPY only */
        uint32_t n;
};

/*
 * Several residual streams side by side (AltUp, arXiv:2301.13310): stream s begins
 * at h + s * stream_stride, [n, cols] each. c: coefficients of a row, dense.
 */
#define K_ALTUP_MAX 8
enum k_altup {
        K_ALTUP_PREDICT, /* every h[j] += sum over i of c[j * n_stream + i] * h[i], all of the old values */
        K_ALTUP_CORRECT, /* every h[i] += (1 + c[i]) * (x - h[active]), of the old value */
        K_ALTUP_MATCH,   /* x *= rms(h[active]) / sqrt(max(mean(x^2), eps)) */
};
struct k_altup_args {
        enum k_altup op;
        float *h; size_t stream_stride; /* floats */
        uint32_t n_stream, active, cols;
        const float *c; size_t c_stride;
        float *x;                       /* [n, cols] dense; written by MATCH only */
        float eps;
        uint32_t n;
};

/*
 * The device's memory. free_now: what could still be taken, within the budget. ours: all that this process holds, the
 * context included (0: not known). others: what other programs hold. Host backends fill total and free_now only.
 */
struct k_mem_info { size_t total, free_now, budget, ours, others, fixed; };

/* Work of the host in the middle of a step: see host_begin. */
#define K_HOST_MAX 5
struct k_host_copy {
        void *dst; const void *src;  /* one of the two is host memory from host_alloc() */
        size_t bytes, dst_stride, src_stride, rows; /* 'rows' runs of 'bytes' */
};
struct k_host_args {
        struct k_host_copy in[K_HOST_MAX], out[K_HOST_MAX]; /* device to host, then fn, then host to device */
        uint32_t n_in, n_out;
        int (*fn)(void *ud, const void *arg); /* on a thread of the backend's; it must not call the device */
        void *ud;
        const void *arg; size_t arg_bytes;    /* copied */
};

/* Registered host memory is cut at multiples of this address; a piece is registered as a whole. */
#define K_PIN_PIECE ((size_t)16 << 20)

/*
 * Sampling: for each row the token that engine/sample.c chooses from these logits,
 * whatever they are. Its masses are integers, so no order of summation is asked
 * for; its single operations are IEEE, none fused.
 */
enum { K_SAMPLE_TOP = 20, K_SAMPLE_BIAS = 512 /* most of a row */ };
struct k_sample_bias { uint32_t token; float bias; };
struct k_sample_top { uint32_t token; float logit; };
struct k_sample_out {
        uint32_t token;              /* UINT32_MAX: nothing is allowed */
        float logit, max;            /* its own and the largest one, before any change */
        uint32_t n_top;
        uint64_t mass;               /* of exp(logit - max), see engine/sample.h */
        uint64_t ns;                 /* the device's clock */
        uint64_t stamp;              /* the row's, written last */
        struct k_sample_top top[K_SAMPLE_TOP]; /* best first */
};
struct k_sample_row {
        uint32_t row;                /* of the logits */
        uint32_t place;              /* in the batch's set of places */
        uint32_t n_history;          /* tokens so far, the batch's included */
        uint32_t n_penalty;          /* how many of the last ones are penalized; 0: none */
        float repeat, presence, frequency;
        float scale;                 /* 1 / temperature; 0: the best one */
        uint32_t top_k;              /* 0: off */
        float top_p;                 /* 1: off */
        float log_min_p;             /* -infinity: off */
        uint32_t n_top, n_bias;
        uint64_t noise;              /* 53 bits */
        const struct k_sample_bias *bias; /* host [n_bias]; a token may come twice */
        const uint64_t *mask;        /* host bitset of allowed tokens, or NULL */
        struct k_sample_out *out;    /* from host_alloc() */
        uint64_t stamp;              /* differs from step to step */
};
struct k_sample_args {
        const float *logits;         /* device [rows, n_vocab] */
        uint32_t n_vocab;
        const struct k_sample_row *rows; /* host [n] */
        uint32_t n;
        void *scratch;               /* device, sample_scratch() */
};

/* Up to what a backend's operations go. */
struct k_most {
        uint32_t experts, experts_used, expert_groups;
        uint32_t head;        /* columns of a head of keys or values */
        uint32_t rope;        /* rotated dimensions */
        uint32_t windows;     /* different ones: groups of page tables */
        uint32_t taps;        /* of a convolution over positions */
        uint32_t delta_key;   /* columns of a key of a delta net */
};

struct k_ops {
        const char *name; /* "cpu", "cuda" */
        bool kv_part_blocks; /* takes KV types whose blocks don't divide a head */
        uint32_t max_ctx;     /* positions that attention can go over */
        struct k_most most;   /* a model with more is refused when it is loaded */
        void (*close)(struct k_dev *);
        const char *(*describe)(struct k_dev *);          /* one line for people */
        const char *(*last_error)(struct k_dev *);
        int (*mem_info)(struct k_dev *, struct k_mem_info *ret);
        void *(*mem_alloc)(struct k_dev *, size_t bytes);  /* set-up only; NULL: out of memory. 256-byte aligned */
        void (*mem_free)(struct k_dev *, void *);
        int (*upload)(struct k_dev *, void *dst, const void *src, size_t bytes);
        int (*download)(struct k_dev *, void *dst, const void *src, size_t bytes);
        int (*zero)(struct k_dev *, void *dst, size_t bytes);
        int (*copy)(struct k_dev *, void *dst, const void *src, size_t bytes); /* within the device, in step order */
        int (*sync)(struct k_dev *);
        /*
         * Of a device that can fail by itself, from any thread; else NULL. lost: why nothing can be done with it any more, NULL while it
         * works. where: the kernel begun last, as file:line, also while it runs; "" if that is not known.
         */
        const char *(*lost)(struct k_dev *);
        const char *(*where)(struct k_dev *, char buf[64]);

        /* Layout: which repack this backend wants for a matrix, its size, and the repack itself (host to host). */
        enum k_layout (*layout_pick)(enum k_type, uint32_t rows, uint32_t cols, bool is_embedding);
        size_t (*layout_bytes)(enum k_type, enum k_layout, uint32_t rows, uint32_t cols);
        int (*repack)(enum k_type, enum k_layout, uint32_t rows, uint32_t cols, const void *src, void *dst);
        size_t (*act_q_bytes)(uint32_t n, uint32_t cols);
        size_t (*moe_scratch)(uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert);
        size_t (*delta_slot)(uint32_t n_k, uint32_t n_v, uint32_t s_k, uint32_t s_v); /* floats; all zero: a slot that may be continued from */
        size_t (*dev_scratch)(struct k_dev *, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx); /* taken by reserve() */
        int (*reserve)(struct k_dev *, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx);
        void (*release)(struct k_dev *); /* one reserve() less: the last one gives the scratch back. NULL: nothing to give back */

        int (*batch_begin)(struct k_dev *, struct k_batch *);
        int (*batch_end)(struct k_dev *, struct k_batch *);

        int (*embed)(struct k_dev *, const struct k_batch *, const struct k_embed_args *);
        int (*norm)(struct k_dev *, const struct k_batch *, const struct k_norm_args *);
        int (*linear)(struct k_dev *, const struct k_batch *, const struct k_linear_args *);
        int (*head_linear)(struct k_dev *, const struct k_batch *, const struct k_head_linear_args *);
        int (*glu)(struct k_dev *, const struct k_batch *, const struct k_glu_args *);
        int (*qkv)(struct k_dev *, const struct k_batch *, const struct k_qkv_args *);
        int (*attention)(struct k_dev *, const struct k_batch *, const struct k_attention_args *);
        int (*delta)(struct k_dev *, const struct k_batch *, const struct k_delta_args *);
        int (*shortconv)(struct k_dev *, const struct k_batch *, const struct k_shortconv_args *);
        int (*moe)(struct k_dev *, const struct k_batch *, const struct k_moe_args *);
        int (*elem)(struct k_dev *, const struct k_batch *, const struct k_elem_args *);
        int (*altup)(struct k_dev *, const struct k_batch *, const struct k_altup_args *);

        /*
         * Filling the device while another thread runs its steps: these may be called beside everything above, by one
         * thread at a time. NULL in backends whose memory is the host's.
         * pin: makes host memory (read-only is enough) readable by the device at *ret_dev and fast to copy from; not
         * across a multiple of K_PIN_PIECE. unpin: the same range, before it is unmapped, when no step can read it.
         * load: begins a copy into device memory; load_wait: all copies begun are done. load_error: why one failed.
         */
        int (*pin)(struct k_dev *, const void *host, size_t bytes, const void **ret_dev);
        void (*unpin)(struct k_dev *, const void *host);
        int (*load)(struct k_dev *, void *dst, const void *src, size_t bytes);
        int (*load_wait)(struct k_dev *);
        const char *(*load_error)(struct k_dev *);

        /* Memory through which matrices of other places pass on their way to prompt rows; grows only. As reserve(). */
        int (*stream_reserve)(struct k_dev *, size_t bytes);

        /*
         * Within a batch: what host_begin describes happens after the ops before it, beside those that follow, and
         * before those that follow host_end. One at a time. A failing fn fails the step. NULL: mixed.c can't be used.
         */
        void *(*host_alloc)(struct k_dev *, size_t bytes);
        void (*host_free)(struct k_dev *, void *);
        int (*host_begin)(struct k_dev *, const struct k_host_args *);
        int (*host_end)(struct k_dev *);

        /*
         * All of what follows, or none of it: a device that works beside its host. Ops are then only queued, in order; batch_end()
         * doesn't wait; host memory of host_alloc() can be written by them.
         */
        size_t (*sample_scratch)(uint32_t n, uint32_t n_vocab);
        int (*sample)(struct k_dev *, const struct k_batch *, const struct k_sample_args *);
        /* Until the device has written this stamp to each of them. after_ns: not before that, as far as the caller can tell. */
        int (*sample_wait)(struct k_dev *, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns);
        int (*event_new)(struct k_dev *, void **ret);
        void (*event_free)(struct k_dev *, void *);
        int (*event_record)(struct k_dev *, void *event);
        int (*event_wait)(struct k_dev *, void *event); /* sleeps */
        /*
         * A batch of one shape, recorded once: between graph_begin() and graph_end() ops are taken down, not run. Of the batch only
         * counts, strides, device addresses and the largest position matter; sample() at most once, as the last op. graph_run() does
         * it with the content of another batch of that shape, whose positions are not beyond that largest one. -ENOTSUP: an op
         * needs other data of a step. Nothing is allocated by graph_run().
         */
        int (*graph_begin)(struct k_dev *, struct k_batch *);
        int (*graph_end)(struct k_dev *, struct k_batch *, void **ret_graph);
        int (*graph_run)(struct k_dev *, void *graph, struct k_batch *, const struct k_sample_row *rows);
        void (*graph_free)(struct k_dev *, void *graph);
        size_t (*graph_bytes)(struct k_dev *, void *graph, uint32_t n_ops); /* what it takes of the device; NULL: what one of n_ops ops may take */
        /* How often the host launched one so far. Not each graph_run() does: a device may go on to the next step by itself. *ret_why: why it doesn't, or "". */
        uint64_t (*graph_launches)(struct k_dev *, const char **ret_why);

        /*
         * Ways to launch one product that give the same bits: kernels/tune.h. NULL: there is but one of each. variants: how many
         * for products of that kind, 1..K_TUNE_VARIANTS, and their names, the plain one first. tune: which to use from the next
         * batch on instead of those it was told before; what was recorded stays as it is. -EINVAL: no such key or variant.
         */
        uint32_t (*variants)(struct k_dev *, const struct k_tune_key *, const char *const **ret_names);
        int (*tune)(struct k_dev *, const struct k_tune_choice *, uint32_t n);
};

/* A backend's own struct begins with this. */
struct k_dev {
        const struct k_ops *ops;
        struct k_mixed *mixed; /* kernels/mixed.h; NULL: none */
        uint32_t stepping;     /* threads at the driver for a step just now: whoever calls it beside them gives way (atomic) */
};

enum k_isa { K_ISA_AUTO, K_ISA_SCALAR, K_ISA_AVX2, K_ISA_AVX512, K_ISA_AMX };
struct k_cpu_options {
        uint32_t threads;  /* 0: one per allowed core */
        enum k_isa isa;    /* AUTO: the best that this processor has and the kernel lets it use */
        bool exact;        /* activations stay f32: products of exactly decoded weights (reference mode) */
};
int k_cpu_open(const struct k_cpu_options *, struct k_dev **ret);

/*
 * A backend's table without a device, for the process that fills images: only
 * layout_pick, layout_bytes and repack may be called. NULL: not in this build.
 */
const struct k_ops *k_cpu_ops(void);
const struct k_ops *k_cuda_ops(void);

struct k_cuda_options {
        int ordinal;
        size_t vram_budget;      /* 0: what is free */
        enum { K_CUDA_VARIANT_AUTO, K_CUDA_VARIANT_PORTABLE } variant;
        bool exact;              /* f32 activations and f32 accumulate, for oracles */
        bool host_launches;      /* steps are launched one by one by the host, for tools that can't follow graphs which the device launches */
};
/* -ENOSYS: built without CUDA; -ENODEV and 'why' filled: no driver, too old, no permission, ... */
int k_cuda_open(const struct k_cuda_options *, struct k_dev **ret, char why[256]);

#ifdef __cplusplus
}
#endif
