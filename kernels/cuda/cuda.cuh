/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The CUDA backend's own header: device, step data on the device, commands and
 * one launch function per kernel family.
 *
 * How a step runs: ops->X() of an open batch only append a command (a deep copy
 * of the arguments, no host pointers) to an arena. The arena runs at batch_end,
 * or earlier when the caller needs a result (download, sync, ...). Between
 * graph_begin and graph_end it is captured into a CUDA graph instead, which
 * graph_run replays: what changes from step to step (tokens, positions, page
 * tables, parameters of sampling) is staged to fixed addresses, in one copy. A
 * step like the one before need not even be launched: the device goes on (loop.h).
 *
 * Roles: rows [0, n_d) of a product go through the int8 tensor-core kernel
 * (matvec.cu), the others through the f16 one (matmul.cu). Neither looks at how
 * many rows there are, so a row's bits depend on its role and shape alone.
 */

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/layout.h"
#include "kernels/cuda/loop.h"
#include "kernels/kernels.h"

enum {
        CUDA_MAX_GROUP = 16,   /* KV groups (page tables) of a model */
        CUDA_SPLIT = 256,      /* tokens per KV split, on absolute positions */
        /* The merge keeps two floats for each of a row's splits, counted as a power of two, in the 48 KB of shared memory that any launch has. */
        CUDA_MAX_CTX = 4096 * CUDA_SPLIT,
        CUDA_EXPERTS = 1024, CUDA_EXPERTS_USED = 32, CUDA_EXPERT_GROUPS = 256, /* a warp chooses: 32 experts a lane, a rank each */
        CUDA_HEAD = 1024, CUDA_TAPS = 8, CUDA_DELTA_KEY = 256,
        CUDA_MAX_SCRATCH = 8,  /* scratch areas of different sizes alive at once */
        CUDA_ROPE_MAX = 512,   /* different rope tables, of all models that a process has seen: none is given back, graphs have their addresses */
        CUDA_ROPE_DIMS = 512,
        CUDA_CRUMB_GO = 8,
        CUDA_ENDED = 16384,    /* (row, head) pairs of one launch of attention, upwards */
};

/* ---- activation images ---------------------------------------------------- *
 * One slot of 2 * kpad + 128 bytes per row, kpad = cols rounded up to 256.
 * D rows: int8 codes[kpad] in fragment order (image_code_at), float d[kpad/32],
 *         float s[kpad/16] (d * sum of the 16 codes).
 * P rows: f16[kpad], scaled by a power of two so that no value overflows; then
 *         the inverse as a float.
 */
static inline __host__ __device__ uint32_t kpad_of(uint32_t cols) {
        return (cols + CUDA_TILE_COLS - 1) & ~(uint32_t)(CUDA_TILE_COLS - 1);
}
static inline __host__ __device__ size_t image_slot(uint32_t kpad) { return 2 * (size_t)kpad + 128; }
static inline size_t image_bytes(uint32_t n, uint32_t cols) { return n * image_slot(kpad_of(cols)); }

struct image { /* what a kernel needs to write or read images of n rows */
        uint8_t *slots;
        uint32_t kpad, n_d; /* rows below n_d get the D form */
};

struct dbatch { /* step data on the device; a parameter of kernels: what each reads comes first (matvec.cuh says why) */
        const int32_t *pos;
        const uint32_t *seq;
        const int32_t *seq_last;              /* [n_seq] last position of the sequence in this batch */
        const uint32_t *state_in, *state_out, *state_zero;
        const uint32_t *row_at;               /* [n] the row's number within its sequence */
        uint32_t n, n_d, n_seq, n_split;      /* n_split: KV splits covering the longest sequence, rounded up to a power of two */
        struct { const uint32_t *at; size_t stride; } table[CUDA_MAX_GROUP];
        const uint32_t *seq_start, *seq_rows; /* rows of sequence s: seq_rows[seq_start[s] .. seq_start[s+1]) */
        const uint32_t *token;
        const uint32_t *place;                /* [n_seq]; NULL: no tokens are kept */
        uint32_t *sampled, *history;
        size_t history_stride;
        uint32_t one_each, zero;              /* no sequence has two rows; zero: graphs compare all bytes, so none is left over */
};
static_assert(sizeof(struct dbatch) == 14 * 8 + 6 * 4 + CUDA_MAX_GROUP * 16, "a gap");

/* ---- device ---------------------------------------------------------------- */
enum cmd_kind : uint32_t {
        CMD_BATCH, CMD_EMBED, CMD_NORM, CMD_LINEAR, CMD_HEAD_LINEAR, CMD_GLU, CMD_QKV, CMD_ATTENTION, CMD_DELTA,
        CMD_SHORTCONV, CMD_MOE, CMD_ELEM, CMD_ALTUP, CMD_HOST, CMD_HOST_END, CMD_SAMPLE,
};

struct cmd_head {
        uint32_t kind, bytes; /* of the whole command, a multiple of 16 */
        uint64_t zero;
};

/*
 * Scratch: reserve() takes a larger area when the last one is too small. Graphs
 * hold addresses within the area that was the last one when they were made, so an
 * older one stays until its graphs are gone; the last one, until every reserve()
 * was released.
 */
struct scratch {
        uint8_t *mem;
        size_t bytes;
        uint32_t n_graph;
};

struct rope_entry {
        uint64_t hash;
        struct k_rope_params p;
};

/* Memory that was taken with mem_alloc(). */
struct cuda_block {
        struct cuda_block *next;
        void *p;
        size_t bytes;
};

enum { CUDA_LOADS = 3, CUDA_RING_ITEMS = 64 };

struct cuda_memory { /* memory.cu */
        pthread_mutex_t lock; /* of blocks and used */
        struct cuda_block *blocks;
        size_t budget, fixed, used; /* budget 0: none */
        cudaStream_t stream;        /* loading */
        cudaEvent_t done[CUDA_LOADS];
        uint32_t turn;
        char error[200];
};

struct ring_item {
        size_t at, bytes;
        bool direct; /* too large: read in place */
};

struct cuda_ring { /* stream.cu */
        uint8_t *mem;
        size_t bytes, at;
        cudaStream_t stream;
        struct ring_item item[CUDA_RING_ITEMS];
        cudaEvent_t in[CUDA_RING_ITEMS], out[CUDA_RING_ITEMS];
        uint64_t first, entered, next; /* [first, entered) are being read, [entered, next) on their way */
        size_t scan;                   /* command looked at next, and its matrix */
        uint32_t scan_weight;
};

/*
 * Step data of graphs: the host leaves it in one of two pinned buffers, a graph's
 * first kernel fetches it. Which one, the device counts by itself: a launch needs
 * no copy beside the graph's own, and a step like the one before no launch (loop.h).
 */
struct post_said;                 /* loop.cuh */
struct cuda_post {
        uint8_t *host[2];
        uint64_t *count;          /* device: graph steps done, and the number of the one under way */
        struct post_said *said;   /* pinned: what the host is told */
        pthread_mutex_t lock;     /* of what follows: who waits for a step may have to launch one, beside another thread's gate */
        struct loop loop;
        uint64_t launches;
        uint32_t held;            /* threads that wait for the device beside the steps (atomic): no step is posted then */
        bool off;                 /* graphs are made to be launched by the host alone */
        char why_off[120];        /* for that, or "" */
};

/*
 * Boxes of mail (mail.cuh) for the graph being made, and the letter that the command before left in one, if any: an activation
 * image, for the very next command.
 */
struct cuda_letter {
        const uint8_t *image; /* where it lies in ordinary memory, too; NULL: there is no letter */
        uint32_t kpad;
        const uint32_t *box;
};
struct cuda_mail {
        uint32_t *mem;      /* in the scratch area */
        size_t words, used; /* used: by the graph's boxes, which its first kernel empties */
        bool on;            /* a step of one row is being taken down */
        struct cuda_letter in, out; /* from the command before; of the one that runs */
};

struct cuda_dev {
        struct k_dev base;
        int ordinal;
        bool exact, sm90, pdl;
        uint32_t n_sm;
        size_t smem_sm, smem_block; /* shared memory of a multiprocessor, and the most of a block */
        cudaStream_t stream;
        char describe[400], error[300];
        struct k_tune_table tuned; /* tune.cu */
        bool lost, full_edge; /* full_edge: the next launch begins only when all before it is done */
        volatile uint32_t *crumb; /* pinned: the last kernel begun; [CUDA_CRUMB_GO] is measure.cu's */

        uint8_t *stage_host[2], *stage_dev; /* step data: pinned, twice, and the device's copy */
        uint8_t *stage_to; /* where this step's is gathered: one of the two, or one of post's */
        size_t stage_bytes, stage_used;
        cudaEvent_t stage_done[2];
        uint32_t stage_turn;

        uint8_t *arena;
        size_t arena_bytes, arena_used;
        bool recording, taking_down; /* a batch is open; it is for a graph */
        bool stage_dirty, stage_other; /* other: an op staged data of its own */
        bool has_host, has_ring; /* among the commands recorded */
        struct dbatch batch;
        const struct k_sample_row *sample_rows; /* where the batch's op has them staged */
        uint32_t n_sample, n_vocab;
        struct cuda_post post;
        size_t graph_bytes; /* of all graphs */

        struct rope_entry rope[CUDA_ROPE_MAX];
        uint32_t n_rope;
        double *rope_dev; /* [CUDA_ROPE_MAX][CUDA_ROPE_DIMS / 2] angle per position */

        struct scratch scratch[CUDA_MAX_SCRATCH];
        uint32_t last_scratch, n_reserved;
        uint8_t *s_image;   /* activation image where k_act has none */
        float *s_attn;      /* partial results of KV splits */
        size_t s_attn_bytes;
        uint32_t *s_ended;  /* [CUDA_ENDED] counts of splits done, 0 between launches */
        float *squares;     /* norm.cuh: of the groups of the row that a product added to, until the next product does */
        struct cuda_mail mail;
        float *s_row;       /* [max_rows][max_cols] floats */
        uint8_t *s_dequant; /* decoded weights, a slice at a time */
        size_t s_dequant_bytes;
        uint32_t max_rows, max_cols;
        void *tma_encode; /* cuTensorMapEncodeTiled */

        struct cuda_memory mem;
        struct cuda_ring ring;
        cudaStream_t side; /* host.cu */
        cudaEvent_t side_fork, side_join;
        int side_failed;
};

static inline struct cuda_dev *cuda_dev_of(struct k_dev *d) { return (struct cuda_dev *)d; }

/* Turns a CUDA error into -EIO (or -ENOMEM) and remembers what it was about. */
int cuda_fail(struct cuda_dev *d, cudaError_t e, const char *what);
#define CUDA_TRY(d, expr, what)                              \
        do {                                                 \
                cudaError_t _e = (expr);                     \
                if (_e != cudaSuccess)                       \
                        return cuda_fail((d), _e, (what));   \
        } while (0)

/* Asks the runtime for one of our kernels: fails when this build has no code for the current card. */
cudaError_t cuda_kernel_probe(cudaFuncAttributes *ret);
int cuda_tables_dequant(struct cuda_dev *d); /* constant tables, once per device */
int cuda_tables_embed(struct cuda_dev *d);
int cuda_tables_iq(struct cuda_dev *d);

/* record.cu: the ops that the table points to, and running what they recorded. */
int cuda_flush(struct cuda_dev *d);
int cuda_run_all(struct cuda_dev *d, uint8_t *arena); /* every command in it, an equal copy of the device's own */
/* A box for the image that a launch is to leave; NULL: it leaves none. When it was launched: cuda_mail_sent(). */
uint32_t *cuda_mail_box(struct cuda_dev *d, uint32_t kpad);
void cuda_mail_sent(struct cuda_dev *d, const uint8_t *image, uint32_t kpad, const uint32_t *box);
const uint32_t *cuda_mail_of(const struct cuda_dev *d, const uint8_t *image, uint32_t kpad); /* NULL: none came */
/* batch.cu: step data to its place. 'to': where the host gathers it. */
int cuda_batch_stage(struct cuda_dev *d, uint8_t *to, const struct k_batch *kb, struct dbatch *ret);
int cuda_stage_rows(struct cuda_dev *d, const struct k_sample_row *rows, uint32_t n, const struct k_sample_row **ret_dev);
int cuda_stage_lists(struct cuda_dev *d, const struct k_sample_row *dev, const struct k_sample_row *rows, uint32_t n, uint32_t n_vocab);
int cuda_stage_send(struct cuda_dev *d);
void *cuda_cmd_new(struct cuda_dev *d, enum cmd_kind kind, size_t bytes);
int cuda_op_batch_begin(struct k_dev *, struct k_batch *);
int cuda_op_batch_end(struct k_dev *, struct k_batch *);
/* graph.cu */
int cuda_op_sample(struct k_dev *, const struct k_batch *, const struct k_sample_args *);
int cuda_graph_open(struct cuda_dev *d);
void cuda_graph_close(struct cuda_dev *d);
int cuda_sample_wait(struct k_dev *, const struct k_sample_out *out, uint32_t n, uint64_t stamp, uint64_t after_ns);
int cuda_graph_begin(struct k_dev *, struct k_batch *);
int cuda_graph_end(struct k_dev *, struct k_batch *, void **ret);
int cuda_graph_run(struct k_dev *, void *graph, struct k_batch *, const struct k_sample_row *rows);
void cuda_graph_free(struct k_dev *, void *graph);
size_t cuda_graph_bytes(struct k_dev *, void *graph, uint32_t n_ops);
int cuda_event_new(struct k_dev *, void **ret);
void cuda_event_free(struct k_dev *, void *event);
int cuda_event_record(struct k_dev *, void *event);
int cuda_event_wait(struct k_dev *, void *event);
/*
 * What was handed over so far is in the stream, and no step is posted behind it: before anything else is put there. cuda_flush() does it.
 */
int cuda_graph_settle(struct cuda_dev *d);
/* Around whatever may wait for the device's work to end, by any thread: a graph that goes on and on ends after the step under way. */
void cuda_graph_hold(struct cuda_dev *d);
void cuda_graph_unhold(struct cuda_dev *d);
uint64_t cuda_graph_launches(struct k_dev *, const char **ret_why);
/* device.cu */
size_t cuda_scratch_bytes(const struct cuda_dev *d);
void cuda_scratch_unused(struct cuda_dev *d, uint32_t i);
extern const struct k_ops cuda_ops_table;
/* Copies host data into this step's staging; *ret_dev is where the device will see it. */
int cuda_stage(struct cuda_dev *d, const void *src, size_t bytes, const void **ret_dev);
int cuda_rope(struct cuda_dev *d, const struct k_rope_params *p, const double **ret_freq, float *ret_mscale);
/* Appends a zeroed command; NULL: the device failed. After it is filled: cuda_cmd_done(). */
void *cuda_cmd_new(struct cuda_dev *d, enum cmd_kind kind, size_t bytes);
int cuda_cmd_done(struct cuda_dev *d);

/* memory.cu, nvml.cu */
int cuda_memory_init(struct cuda_dev *d);
void cuda_memory_close(struct cuda_dev *d);
void cuda_memory_measure(struct cuda_dev *d, uint64_t nvml_before, uint64_t nvml_after);
bool cuda_nvml_used(int ordinal, uint64_t *ret); /* false: not to be had */

/* stream.cu: cuda_ring_begin() before a step's commands run; enter and leave around a command's launches, for each of its matrices. */
bool cuda_ring_wanted(const struct cuda_dev *d, const struct cmd_head *h);
void cuda_ring_begin(struct cuda_dev *d);
int cuda_ring_enter(struct cuda_dev *d, struct k_weight *w);
int cuda_ring_leave(struct cuda_dev *d);
void cuda_ring_close(struct cuda_dev *d);

/* tune.cu: how a product of role D is launched. What doesn't fit the card's shared memory is launched as if nothing was chosen. */
enum cuda_grid : uint32_t {
        CUDA_GRID_RESIDENT, /* as many blocks as are resident */
        CUDA_GRID_EVEN,     /* no more of them than are needed for as many rounds: all have the same work */
        CUDA_GRID_UNITS,    /* one for each unit of work */
};
enum cuda_many : uint32_t { CUDA_MANY_RULE, CUDA_MANY_8, CUDA_MANY_2X8, CUDA_MANY_2X16 }; /* row groups side by side x columns */
struct matvec_choice {
        uint32_t groups;    /* row groups of 16 (or two, side by side) that a team of warps has in a unit; 0: by rule */
        uint32_t per_sm;    /* most blocks of a multiprocessor; 0: what fits */
        cuda_grid grid;
        uint32_t deep;      /* a ring of more tiles */
        cuda_many many;
};
struct moe_choice { uint32_t up_alone, down_alone; }; /* pairs one by one */
enum { MOE_SUM_ROWS = 4 }; /* with at most so many rows down's are, if nothing is chosen */
uint32_t cuda_variants(struct k_dev *, const struct k_tune_key *, const char *const **ret_names);
int cuda_tune(struct k_dev *, const struct k_tune_choice *, uint32_t n);
/*
 * Columns spread over an MMA's eight (matvec_few.cuh), unless something else was chosen. Not three or four of Q4_0, whose scaling was little:
 * 3,591 tok/s where eight columns have 3,692 (8B cut to 16 layers).
 */
static constexpr bool cuda_few_takes(enum k_type t, uint32_t n) { return n == 2 || ((n == 3 || n == 4) && t != K_Q4_0); }
struct matvec_choice cuda_matvec_choice(const struct cuda_dev *, enum k_type, uint32_t rows, uint32_t cols, uint32_t n);
struct moe_choice cuda_moe_choice(const struct cuda_dev *, enum k_type, uint32_t ff, uint32_t cols, uint32_t n);

/* host.cu */
int cuda_host_check(struct cuda_dev *d); /* after a synchronization */
void cuda_host_close(struct cuda_dev *d);

/* ---- commands (deep copies) -------------------------------------------------- */
struct act { float *f; uint8_t *q; uint32_t cols; uint32_t image; /* q_kind: q holds the rows' images */ };

struct cmd_embed { struct k_weight w; uint32_t index; float scale; uint32_t add; struct act out; uint32_t n; };
struct cmd_norm {
        struct act x, add, out;
        const float *add_norm_w, *add_norm_b, *w, *b;
        float add_scale, eps, out_scale;
        uint32_t kind, group, out_col, n, n_d;
        uint32_t write_image, has_add, has_out;
        const uint32_t *gather;
};
struct linear_out { struct k_weight w; const float *bias; float *y; size_t y_stride; };
struct cmd_linear {
        struct act x;
        uint32_t make_image, n_out, row0, n_rows, n_d;
        const uint32_t *gather;
        struct linear_out out[K_LINEAR_MAX];
};
struct cmd_head_linear { struct k_head_linear_args a; struct k_weight w; };
struct cmd_glu { struct k_glu_args a; struct act out; uint32_t n_d, write_image; };
struct cmd_qkv { struct k_qkv_args a; struct k_kv kv; const double *freq; float mscale; uint32_t has_kv, rope_kind, n_dims; };
struct cmd_attention { struct k_attention_args a; struct k_kv kv; struct act out; uint32_t write_image; };
struct cmd_delta { struct k_delta_args a; struct act out; uint32_t write_image; };
struct cmd_shortconv { struct k_shortconv_args a; struct act out; uint32_t write_image; };
struct cmd_moe { struct k_moe_args a; struct act x; struct k_weight gate, up, down; };
struct cmd_elem { struct k_elem_args a; const uint32_t *gather; };
struct cmd_altup { struct k_altup_args a; };
struct cmd_host { /* the function's argument follows */
        struct k_host_copy in[K_HOST_MAX], out[K_HOST_MAX];
        uint64_t n_in, n_out;
        int (*fn)(void *, const void *);
        void *ud;
        int *failed;
};
struct cmd_sample { const float *logits; const struct k_sample_row *rows; uint8_t *scratch; uint32_t n_vocab, n; uint64_t *count, *done; };

int cuda_run_embed(struct cuda_dev *, const struct dbatch *, const struct cmd_embed *);
int cuda_run_norm(struct cuda_dev *, const struct dbatch *, const struct cmd_norm *);
/* What runs together with a product, one kernel for all; bits are those of the commands one by one. */
struct linear_with {
        const struct cmd_glu *glu;   /* the next command, or NULL */
        const struct cmd_norm *add;  /* the next command, if it adds the product to its x, or NULL */
        const struct cmd_norm *norm; /* the command before, not yet run, whose x's squares are in d->squares, or NULL: cuda_linear_norms() */
        bool glu_done, add_done, squares_done; /* squares: d->squares has those of what was added to */
};
int cuda_run_linear(struct cuda_dev *, const struct dbatch *, const struct cmd_linear *, struct linear_with *);
/* Whether any of its matrices is multiplied by x's image. */
bool cuda_linear_wants_image(const struct cuda_dev *, const struct cmd_linear *);
/* The product can make this norm, of what its command says but for the addition. */
bool cuda_linear_norms(const struct cuda_dev *, const struct cmd_linear *, const struct cmd_norm *);
int cuda_run_head_linear(struct cuda_dev *, const struct dbatch *, const struct cmd_head_linear *);
int cuda_run_glu(struct cuda_dev *, const struct dbatch *, const struct cmd_glu *);
int cuda_run_qkv(struct cuda_dev *, const struct dbatch *, const struct cmd_qkv *);
bool cuda_attention_takes(const struct cuda_dev *, const struct dbatch *, const struct cmd_qkv *, const struct cmd_attention *);
int cuda_run_attention(struct cuda_dev *, const struct dbatch *, const struct cmd_attention *, const struct cmd_qkv *turn);
int cuda_run_delta(struct cuda_dev *, const struct dbatch *, const struct cmd_delta *);
int cuda_run_shortconv(struct cuda_dev *, const struct dbatch *, const struct cmd_shortconv *);
int cuda_run_moe(struct cuda_dev *, const struct dbatch *, const struct cmd_moe *);
int cuda_run_elem(struct cuda_dev *, const struct dbatch *, const struct cmd_elem *);
int cuda_run_altup(struct cuda_dev *, const struct k_altup_args *);
int cuda_run_host(struct cuda_dev *, struct cmd_host *);
int cuda_run_host_end(struct cuda_dev *);
int cuda_run_sample(struct cuda_dev *, const struct dbatch *, const struct cmd_sample *);
size_t cuda_sample_scratch(uint32_t n, uint32_t n_vocab);
size_t cuda_moe_scratch(uint32_t n, uint32_t n_used, uint32_t d, uint32_t ff, uint32_t n_expert);
size_t cuda_delta_slot(uint32_t n_k, uint32_t n_v, uint32_t s_k, uint32_t s_v);
size_t cuda_delta_scratch(uint32_t max_rows); /* what a head needs of s_dequant */

/* ---- products (shared by linear, head_linear and moe) --------------------------- */

/*
 * Rows of a product in jobs: a job is one matrix (expert) and the columns
 * [start, start + count) of the lists below. Without lists there is one job:
 * matrix 0, all n columns, x row = y row = column.
 */
struct jobs {
        uint32_t n_job;               /* upper bound, the grid's size */
        const uint32_t *expert;       /* [n_job], UINT32_MAX: nothing */
        const uint32_t *start, *count;
        const uint32_t *x_row, *y_row; /* per column, or NULL: the column itself */
        uint32_t n;                   /* columns in all; without lists, of the one job */
        uint32_t per_expert;          /* head_linear: job = expert = head; x row = column * n_job + job, y += job * y_job */
        size_t y_job;
};

/* A norm of one row that the product behind it makes (norm.cuh). */
struct norm_in {
        const float *x, *squares, *w; /* squares: [norm_groups(cols)]; w may be NULL */
        float *out;                   /* also written, as is the image: others may read them */
        uint8_t *image;
        uint32_t cols, kind;
        float eps, scale;
};
struct matvec_with {
        float *add_to;               /* [][rows]: rows of y, add_scale times, are added here too */
        float add_scale;
        float *squares;              /* one column: of the groups of add_to's row, or NULL */
        const struct norm_in *norm;  /* one column: the image is not there yet but of this, or NULL */
        const uint32_t *mail;        /* one column: the image also comes in this box, sooner, or NULL */
};
/* A launch has one type: run(same, n) for the outputs of each, in order, until it returns something else than 0, which is returned. */
template <class F> static inline int cuda_each_type(const struct linear_out *out, uint32_t n_out, F run) {
        bool done[K_LINEAR_MAX] = {};
        int r = 0;

        for (uint32_t i = 0; i < n_out && r == 0; i++) {
                const struct linear_out *same[K_LINEAR_MAX];
                uint32_t n = 0;
                for (uint32_t j = i; j < n_out; j++)
                        if (!done[j] && out[j].w.type == out[i].w.type) {
                                same[n++] = &out[j];
                                done[j] = true;
                        }
                if (n)
                        r = run(same, n);
        }
        return r;
}
/* D: y = scale * W x + bias from D images; all types with planes. with: may be NULL. 1: not with squares or a norm. */
int cuda_matvec(struct cuda_dev *, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad,
                const struct jobs *, const struct matvec_with *with);
/* The same of the lattice formats, from blocks in FILE layout. */
int cuda_matvec_iq(struct cuda_dev *, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad, const struct jobs *);
static inline bool cuda_is_iq(enum k_type t) {
        return t == K_IQ2_XXS || t == K_IQ2_XS || t == K_IQ2_S || t == K_IQ3_XXS || t == K_IQ3_S || t == K_IQ1_S || t == K_IQ1_M;
}
/* Whether D rows are multiplied from int8 images. */
static inline bool cuda_int8(const struct cuda_dev *d, const struct k_weight *w) { return !d->exact && (w->layout == K_LAYOUT_CUDA || cuda_is_iq(w->type)); }
/*
 * Matrices of which that is so: by cuda_matvec() and, of a lattice format, cuda_matvec_iq(); planes first, since a norm that they make is
 * read by the others. with: for planes, may be NULL. 1: as of cuda_matvec(), and nothing was launched.
 */
int cuda_linear_int8(struct cuda_dev *, const struct linear_out *out, uint32_t n_out, const uint8_t *image, uint32_t kpad, const struct jobs *,
                     const struct matvec_with *with);
/*
 * cuda_matvec() of a gate and of up, then GLU: rows of h and, unless slots is NULL, their D images; row and slot are the column's
 * y row. gate's and up's own y stay as they are. Bits as of cuda_matvec() and cuda_glu_rows(). with: a norm or mail at most.
 * 1: not these matrices, or not with a norm or mail.
 */
struct glu_out {
        uint32_t act;
        float alpha, limit;
        float *h; /* [][rows of gate] */
        struct image image;
        uint32_t *mail_to; /* one column: the box that the image also goes to, or NULL */
};
int cuda_matvec_glu(struct cuda_dev *, const struct linear_out *gate, const struct linear_out *up, const uint8_t *image, uint32_t kpad,
                    const struct jobs *, const struct matvec_with *with, const struct glu_out *to);
/* f32 activations x (dense rows of x_stride floats) with F32/F16/BF16 rows of w_stride elements, in f32; any role. Bits by type and cols alone. */
struct float_weight { const void *data; enum k_type type; size_t stride; uint32_t rows, cols; const float *scale; size_t expert_stride; uint32_t many_scales; };
int cuda_matvec_float(struct cuda_dev *, const struct float_weight *w, const float *bias, float *y, size_t y_stride,
                      const float *x, size_t x_stride, const struct jobs *);
/*
 * F16 and BF16 on tensor cores, from f32 activations in two pieces each; not for exact. Bits by type and cols alone; n_out matrices
 * of the same cols.
 */
int cuda_matvec_half(struct cuda_dev *, const struct linear_out *out, uint32_t n_out, const float *x, size_t x_stride, const struct jobs *);
static inline bool cuda_is_half(const struct cuda_dev *d, const struct k_weight *w) { return !d->exact && (w->type == K_F16 || w->type == K_BF16); }
/* y rows from float activations: by cuda_matvec_half() or in f32, weights of any type (lists of jobs only for float weights). */
int cuda_linear_float(struct cuda_dev *, const struct linear_out *o, const float *x, size_t x_stride, const struct jobs *);
/* Decodes rows [row0, row0 + n) of one matrix to dense rows of 'stride' elements of type 'to' (K_F16 or K_F32). */
int cuda_dequant(struct cuda_dev *, const struct k_weight *w, uint32_t expert, uint32_t row0, uint32_t n, void *dst,
                 enum k_type to, uint32_t stride);
/* f16, whole experts [e0, e0 + n), side by side; first: [n_expert + 1], experts without rows are left out. */
int cuda_dequant_experts(struct cuda_dev *, const struct k_weight *w, uint32_t e0, uint32_t n, const uint32_t *first, void *dst,
                         uint32_t stride);
/* Quantizes n rows of floats to images (rows below img.n_d in D form). src rows: gather[i] or i. */
int cuda_quantize(struct cuda_dev *, const float *x, size_t x_stride, const uint32_t *gather, uint32_t n, uint32_t cols,
                  struct image img);
int cuda_sparse_gate(struct cuda_dev *, const float *gate, size_t stride, float *out, uint32_t cols, float n_std, uint32_t n); /* altup.cu */
int cuda_glu_rows(struct cuda_dev *, const float *gate, size_t gate_stride, const float *up, size_t up_stride, uint32_t act,
                  float alpha, float limit, float *out, uint32_t cols, uint32_t n, bool write_image, struct image img);
/* P: y[m, n] = x16[m, k] w16[n, k]^T * row scale[m] * *w_scale + bias[n]. */
struct matmul {
        const uint8_t *x;            /* P images, one slot a row; k = their kpad */
        const __half *w; size_t w_stride;
        uint32_t m, n, k, k_image;   /* k <= k_image */
        uint32_t w_cols;             /* <= k: that w's rows have, a multiple of 8; beyond them they count as 0 */
        const float *w_scale, *bias;
        float *y; size_t y_stride;
        const uint32_t *y_row; /* NULL: row itself */
        /* grouped (moe): rows of x are sorted by expert */
        uint32_t n_group, m_all;     /* 0: plain; rows of x of all experts */
        uint32_t group0;             /* first expert of this launch */
        const uint32_t *group_start; /* [n_expert + 1] first row of each expert, device */
        size_t w_group, bias_group;  /* elements between experts */
};
int cuda_matmul(struct cuda_dev *, const struct matmul *);
/*
 * F16 as the file has it can be m's w: in the card's memory, since blocks read it again, rows that begin at 16 bytes, experts one
 * behind the other. Sets w, w_stride and w_cols.
 */
bool cuda_matmul_in_place(struct matmul *m, const struct k_weight *w);
int cuda_matmul_sm90(struct cuda_dev *, const struct matmul *); /* d->sm90 only */
/*
 * The same bits from the packed matrices themselves, one type and n_out of them, or the experts of one. m has what they
 * share; w, n, w_scale, bias and y are those of 'out'. For matrices that cuda_direct_takes(): with more rows (of an expert:
 * on average) decoding once is cheaper.
 */
bool cuda_direct_takes(const struct cuda_dev *, const struct k_weight *w, uint32_t n_rows);
int cuda_matmul_direct(struct cuda_dev *, const struct linear_out *out, uint32_t n_out, const struct matmul *m);

/*
 * Which kernel a lost device was in: nothing of the device can be read then. So
 * the first thread of every kernel leaves its file and line in pinned memory, just
 * before it waits for the kernel before it. The last crumb is thus of the kernel
 * that failed or, since they overlap, of its neighbour.
 */
constexpr __host__ __device__ uint32_t crumb_file(const char *path) {
        uint32_t h = 2166136261u; /* FNV-1a of the name without its folder */
        for (const char *p = path; *p; p++)
                h = *p == '/' ? 2166136261u : (h ^ (uint8_t)*p) * 16777619u;
        return (h ^ h >> 16) & 0xffff;
}
/* Files with kernels: each has its own copy of the crumbs' address, set when the device is opened. */
#define CUDA_FAMILIES(X)                                                                                                  \
        X(altup) X(attention) X(attention_mma_64) X(attention_mma_128) X(attention_mma_256) X(attention_mma_512) X(attention_wide) X(delta) X(dequant) X(embed) \
        X(graph) X(linear) X(loop) X(matmul) X(matmul_direct) X(matmul_sm90) X(matvec_a) X(matvec_b) X(matvec_c) X(matvec_float) X(matvec_half) X(matvec_iq) X(moe) X(moe_a) X(moe_b) X(moe_c) X(moe_route) \
        X(delta_128) X(measure) X(qkv) X(rows) X(sample)
#define X(name) int cuda_crumbs_##name(struct cuda_dev *);
CUDA_FAMILIES(X)
#undef X

#ifdef __CUDACC__
static __constant__ volatile uint32_t *crumb_at;
#define CUDA_FAMILY(name)                                                                                   \
        int cuda_crumbs_##name(struct cuda_dev *d) {                                                        \
                CUDA_TRY(d, cudaMemcpyToSymbol(crumb_at, (void *)&d->crumb, sizeof(d->crumb)), "crumbs");   \
                return 0;                                                                                   \
        }
/*
 * Programmatic dependent launch: a kernel may start while its predecessor ends.
 * Every kernel of this backend calls pdl_wait() before it touches anything that
 * a step computes (weights may be read before, and so may step data and pages of
 * earlier steps: nothing begins beside the kernel that fetches step data), also
 * where it has nothing to read: completion must stay transitive. A block may end
 * without it if another of its grid waits.
 */
template <uint32_t CRUMB> static __device__ __forceinline__ void crumb_leave() {
        if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && crumb_at)
                *crumb_at = CRUMB;
}
template <uint32_t CRUMB> static __device__ __forceinline__ void pdl_wait_at() {
        crumb_leave<CRUMB>();
#if __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#define pdl_wait() pdl_wait_at<crumb_file(__FILE__) << 16 | __LINE__>()
#define pdl_crumb() crumb_leave<crumb_file(__FILE__) << 16 | __LINE__>() /* where a warp reads mail instead (mail.cuh) */
static __device__ __forceinline__ void pdl_next() {
#if __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class... P, class... A>
static inline int launch(struct cuda_dev *d, const char *what, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, A... args) {
        if (grid.x == 0 || grid.y == 0 || grid.z == 0)
                return 0;
        cudaLaunchAttribute at[1];
        cudaLaunchConfig_t c = {};
        c.gridDim = grid;
        c.blockDim = block;
        c.dynamicSmemBytes = smem;
        c.stream = d->stream;
        at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at[0].val.programmaticStreamSerializationAllowed = 1;
        c.attrs = at;
        c.numAttrs = d->pdl && !d->full_edge ? 1 : 0;
        d->full_edge = false;
        CUDA_TRY(d, cudaLaunchKernelEx(&c, kernel, P(args)...), what);
        return 0;
}

/* ---- device helpers ------------------------------------------------------------ */

/* Where code column c lies in a D image: [c / 64][t][kb & 1][half][4]; one 16-byte load gives a lane both halves of two kb. */
static __device__ __forceinline__ uint32_t image_code_at(uint32_t c) {
        uint32_t in = c & 31;
        return (c & ~63u) + ((in & 15) >> 2) * 16 + ((c >> 5) & 1) * 8 + (in >> 4) * 4 + (in & 3);
}
static __device__ __forceinline__ float *image_d(uint8_t *slot, uint32_t kpad) { return (float *)(slot + kpad); }
static __device__ __forceinline__ float *image_s(uint8_t *slot, uint32_t kpad) { return (float *)(slot + kpad + kpad / 8); }

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
        for (int o = 16; o; o >>= 1)
                v += __shfl_xor_sync(~0u, v, o);
        return v;
}
static __device__ __forceinline__ float warp_max(float v) {
#pragma unroll
        for (int o = 16; o; o >>= 1)
                v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
        return v;
}
/* All threads of the block get the result; red: 33 floats of shared memory. Fixed order. */
static __device__ __forceinline__ float block_sum(float v, float *red) {
        int w = threadIdx.x >> 5, nw = (blockDim.x + 31) >> 5;
        v = warp_sum(v);
        __syncthreads();
        if ((threadIdx.x & 31) == 0)
                red[w] = v;
        __syncthreads();
        float r = 0;
        for (int i = 0; i < nw; i++)
                r += red[i];
        return r;
}
static __device__ __forceinline__ float block_max(float v, float *red) {
        int w = threadIdx.x >> 5, nw = (blockDim.x + 31) >> 5;
        v = warp_max(v);
        __syncthreads();
        if ((threadIdx.x & 31) == 0)
                red[w] = v;
        __syncthreads();
        float r = red[0];
        for (int i = 1; i < nw; i++)
                r = fmaxf(r, red[i]);
        return r;
}

static __device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
/* enum k_glu's functions; tanh GELU as in arXiv:1606.08415. */
static __device__ __forceinline__ float glu_value(uint32_t act, float g, float u, bool gated, float alpha, float limit) {
        float x = gated ? g : u, v;
        if (act == K_GLU_SILU) { /* not by the table that the others' jump goes through: it is constants that are not at hand */
                v = x * sigmoid(x);
                return gated ? v * u : v;
        }
        switch (act) {
        case K_GLU_GELU_TANH: v = 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * x * (1.0f + 0.044715f * x * x))); break;
        case K_GLU_GELU_ERF: v = 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); break;
        case K_GLU_RELU2: v = x > 0 ? x * x : 0; break;
        case K_GLU_SWIGLU_OAI: {
                float m = fminf(x, limit);
                v = m * sigmoid(alpha * m);
                return gated ? v * (fminf(fmaxf(u, -limit), limit) + 1.0f) : v;
        }
        default: v = x; break;
        }
        return gated ? v * u : v;
}

/*
 * A warp quantizes 32 columns, one per lane, for a D slot: this lane's code, the
 * scale, the sum of the codes of its half. Values beyond the row's end come in as 0.
 */
struct image_quant {
        int q, s;
        float d;
};
static __device__ __forceinline__ image_quant image_quant32(float v) {
        image_quant r;
        float amax = warp_max(fabsf(v));
        float id = amax > 0 ? 127.0f / amax : 0.0f;
        r.d = amax / 127.0f;
        r.q = __float2int_rn(v * id);
        r.s = r.q = max(-127, min(127, r.q));
#pragma unroll
        for (int o = 8; o; o >>= 1)
                r.s += __shfl_xor_sync(~0u, r.s, o);
        return r;
}
static __device__ __forceinline__ void image_put32(uint8_t *slot, uint32_t kpad, uint32_t kb, const image_quant &r) {
        const uint32_t lane = threadIdx.x & 31;
        slot[image_code_at(kb * 32 + lane)] = (uint8_t)(int8_t)r.q;
        if ((lane & 15) == 0)
                image_s(slot, kpad)[kb * 2 + (lane >> 4)] = r.d * (float)r.s;
        if (lane == 0)
                image_d(slot, kpad)[kb] = r.d;
}
static __device__ __forceinline__ void image_put32(uint8_t *slot, uint32_t kpad, uint32_t kb, float v) {
        image_put32(slot, kpad, kb, image_quant32(v));
}
/* Power of two that brings amax into [2^13, 2^14); 1 for 0 and for what is no number. */
static __device__ __forceinline__ float image_pow2(float amax) {
        if (!(amax > 0) || !(amax < INFINITY))
                return 1.0f;
        int e = (int)((__float_as_uint(amax) >> 23) & 255) - 127;
        e = max(-100, min(100, 13 - e));
        return __uint_as_float((uint32_t)(e + 127) << 23);
}
/*
 * A block (a multiple of 32 threads) writes the image of row 'row' from
 * 'get(col)'; every thread calls it. red as for block_sum.
 */
template <class F>
static __device__ __forceinline__ void image_row(const image &img, uint32_t row, uint32_t cols, float *red, F get) {
        uint8_t *slot = img.slots + row * image_slot(img.kpad);
        if (row < img.n_d) {
                for (uint32_t c0 = (threadIdx.x >> 5) * 32; c0 < img.kpad; c0 += blockDim.x) {
                        uint32_t c = c0 + (threadIdx.x & 31);
                        image_put32(slot, img.kpad, c0 >> 5, c < cols ? get(c) : 0.0f);
                }
                return;
        }
        float amax = 0;
        for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
                amax = fmaxf(amax, fabsf(get(c)));
        amax = block_max(amax, red);
        float up = image_pow2(amax);
        __half2 *h = (__half2 *)slot;
        for (uint32_t c = threadIdx.x * 2; c < img.kpad; c += blockDim.x * 2)
                h[c >> 1] = __floats2half2_rn(c < cols ? get(c) * up : 0.0f, c + 1 < cols ? get(c + 1) * up : 0.0f);
        if (threadIdx.x == 0)
                *(float *)(slot + 2 * (size_t)img.kpad) = 1.0f / up;
}
/* Threads of a block that holds a row in registers, two float4 each where that fits. */
static inline uint32_t row4_threads(uint32_t cols) {
        uint32_t t = kpad_of(cols) / 8;
        return MIN(MAX(t & ~31u, 64u), 1024u);
}
/* Eight lanes quantize 32 columns, four each: this lane's codes, the block's scale, the sum of the codes of its half. */
struct quant4 {
        uint32_t codes;
        float d;
        int sum;
};
static __device__ __forceinline__ quant4 quantize4(float4 x) {
        quant4 r;
        float m = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
        for (int o = 1; o < 8; o *= 2)
                m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        r.d = m / 127.0f;
        const float id = m > 0 ? 127.0f / m : 0.0f;
        int q[4] = {__float2int_rn(x.x * id), __float2int_rn(x.y * id), __float2int_rn(x.z * id), __float2int_rn(x.w * id)};
        r.codes = 0;
        r.sum = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
                q[k] = max(-127, min(127, q[k]));
                r.sum += q[k];
                r.codes |= (uint32_t)(q[k] & 255) << (8 * k);
        }
        r.sum += __shfl_xor_sync(~0u, r.sum, 1);
        r.sum += __shfl_xor_sync(~0u, r.sum, 2);
        return r;
}
/* Into a D slot: column c, a multiple of 4. */
static __device__ __forceinline__ void image_put4(uint8_t *slot, uint32_t kpad, uint32_t c, const quant4 &q) {
        *(uint32_t *)(slot + image_code_at(c)) = q.codes;
        if ((c & 15) == 0)
                image_s(slot, kpad)[c >> 4] = q.d * (float)q.sum;
        if ((c & 31) == 0)
                image_d(slot, kpad)[c >> 5] = q.d;
}
/*
 * The image of a row of which thread i holds float4 number i, i + blockDim, ...
 * (zeros behind the end; together at least kpad columns). amax: this thread's.
 */
template <int V>
static __device__ __forceinline__ void image_row4(const image &img, uint32_t row, float amax, float *red, const float4 (&v)[V]) {
        uint8_t *slot = img.slots + row * image_slot(img.kpad);
        if (row < img.n_d) {
#pragma unroll
                for (int i = 0; i < V; i++) {
                        uint32_t c = (i * blockDim.x + threadIdx.x) * 4;
                        const quant4 q = quantize4(v[i]);
                        if (c < img.kpad) /* whole groups of 8 threads */
                                image_put4(slot, img.kpad, c, q);
                }
                return;
        }
        float up = image_pow2(block_max(amax, red));
#pragma unroll
        for (int i = 0; i < V; i++) {
                uint32_t c = (i * blockDim.x + threadIdx.x) * 4;
                __half2 a = __floats2half2_rn(v[i].x * up, v[i].y * up), b = __floats2half2_rn(v[i].z * up, v[i].w * up);
                if (c < img.kpad)
                        *(uint2 *)(slot + 2 * c) = make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
        }
        if (threadIdx.x == 0)
                *(float *)(slot + 2 * (size_t)img.kpad) = 1.0f / up;
}
#endif
