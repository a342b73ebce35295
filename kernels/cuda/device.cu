/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a card, saying why it can't be opened, memory, copies.
 *
 * Memory is taken here only (mem_alloc, reserve and open); steps take none.
 * Everything is ordered by one stream; calls that hand bytes to the host wait
 * for it.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/norm.cuh"

/*
 * The crumbs' place is in the kernels' own constants, of which a process has one set: devices that are open at once share it,
 * and it is there as long as one of them is. They are opened and closed by one thread.
 */
static volatile uint32_t *crumbs;
static uint32_t n_crumbs;

static int crumbs_take(struct cuda_dev *d) {
        if (n_crumbs == 0) {
                CUDA_TRY(d, cudaHostAlloc((void **)&crumbs, 64, cudaHostAllocPortable), "crumbs");
                *crumbs = 0;
        }
        n_crumbs++;
        d->crumb = crumbs;
        int r = 0;
#define X(name) r = r ? r : cuda_crumbs_##name(d);
        CUDA_FAMILIES(X)
#undef X
        return r;
}

static void crumbs_give(struct cuda_dev *d) {
        if (!d->crumb || --n_crumbs > 0)
                return;
        cudaFreeHost((void *)crumbs);
        crumbs = NULL;
}

/* The source file and line of the last kernel begun, or "". */
static const char *dev_where(struct k_dev *kd, char buf[64]) {
        const struct cuda_dev *d = cuda_dev_of(kd);
        static const char *const files[] = {
                "altup.cu", "attention.cu", "attention_d.cuh", "attention_mma.cuh", "attention_wide.cuh", "delta.cu", "delta_128.cu", "delta_chunk.cuh", "dequant.cu", "embed.cu", "graph.cu",
                "linear.cu", "loop.cu", "matmul.cu", "matmul_direct.cu", "matmul_sm90.cu", "matvec_few.cuh", "matvec_float.cu", "matvec_half.cu", "matvec_iq.cuh", "matvec_many.cuh", "matvec_one.cuh", "measure.cu",
                "moe.cu", "moe_product.cuh", "moe_route.cu", "qkv.cu", "rows.cu", "sample.cu",
                "fault.cu", /* tests/fault: kernels that fail */
        };
        const uint32_t c = d->crumb ? *d->crumb : 0;

        buf[0] = 0;
        for (size_t i = 0; c && i < ELEMENTSOF(files); i++)
                if (crumb_file(files[i]) == c >> 16)
                        snprintf(buf, 64, "%s:%u", files[i], c & 0xffff);
        return buf;
}

int cuda_fail(struct cuda_dev *d, cudaError_t e, const char *what) {
        char at[64];
        const char *kernel = e == cudaErrorMemoryAllocation ? "" : dev_where(&d->base, at);

        if (!d->lost)
                snprintf(d->error, sizeof(d->error), "%s: %s (%s)%s%s", what, cudaGetErrorName(e), cudaGetErrorString(e),
                         *kernel ? "; near the kernel at " : "", kernel);
        if (e == cudaErrorMemoryAllocation)
                return -ENOMEM;
        d->lost = true;
        return -EIO;
}

static void set_why(char why[256], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void set_why(char why[256], const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(why, 256, fmt, ap);
        va_end(ap);
}

/* Why the runtime found no usable driver or device, from what the machine shows. */
static void explain(cudaError_t e, char why[256]) {
        int need = 0, have = 0;
        bool node = access("/dev/nvidiactl", F_OK) == 0, refused = false;

        cudaRuntimeGetVersion(&need);
        if (node) {
                int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
                refused = fd < 0 && errno == EACCES;
                fd_close(fd);
        }
        cudaDriverGetVersion(&have);
        if (refused)
                set_why(why, "no permission for the NVIDIA device nodes (/dev/nvidia*): add this user to the group that owns them");
        else if (have && have < need && (e == cudaErrorInsufficientDriver || e == cudaErrorCompatNotSupportedOnDevice))
                set_why(why, "the NVIDIA driver is too old: it supports CUDA %d.%d, this build needs %d.%d; update the driver",
                        have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10);
        else if (!have)
                set_why(why, "no NVIDIA driver found%s", node ? " (device nodes exist, but libcuda.so.1 can't be loaded)" : "");
        else if (e == cudaErrorNoDevice)
                set_why(why, "the NVIDIA driver is loaded but shows no device (CUDA_VISIBLE_DEVICES, cgroup rules or a failed card)");
        else
                set_why(why, "CUDA can't start: %s (%s)", cudaGetErrorName(e), cudaGetErrorString(e));
}

static void dev_close(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);

        if (!d)
                return;
        if (d->stream)
                cudaStreamSynchronize(d->stream);
        for (int i = 0; i < 2; i++) {
                if (d->stage_done[i])
                        cudaEventDestroy(d->stage_done[i]);
                if (d->stage_host[i])
                        cudaFreeHost(d->stage_host[i]);
        }
        cuda_graph_close(d);
        cuda_host_close(d);
        cuda_ring_close(d);
        cuda_memory_close(d);
        cudaFree(d->stage_dev);
        cudaFree(d->rope_dev);
        cudaFree(d->squares);
        crumbs_give(d);
        for (int i = 0; i < CUDA_MAX_SCRATCH; i++)
                cudaFree(d->scratch[i].mem);
        if (d->stream)
                cudaStreamDestroy(d->stream);
        free(d->arena);
        free(d);
}

enum : size_t { STAGE_BYTES = 4 << 20, ARENA_BYTES = 4 << 20 };

static int dev_init(struct cuda_dev *d) {
        CUDA_TRY(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "stream");
        int rm = cuda_memory_init(d);
        if (rm < 0)
                return rm;
        d->stage_bytes = STAGE_BYTES;
        for (int i = 0; i < 2; i++) {
                CUDA_TRY(d, cudaHostAlloc((void **)&d->stage_host[i], d->stage_bytes, cudaHostAllocDefault), "staging");
                CUDA_TRY(d, cudaEventCreateWithFlags(&d->stage_done[i], cudaEventDisableTiming), "event");
        }
        d->stage_to = d->stage_host[0];
        CUDA_TRY(d, cudaMalloc((void **)&d->stage_dev, d->stage_bytes), "staging");
        /* One table more than there are: moe_counters(), zero between launches. */
        CUDA_TRY(d, cudaMalloc((void **)&d->rope_dev, sizeof(double) * (CUDA_ROPE_MAX + 1) * (CUDA_ROPE_DIMS / 2)), "rope tables");
        CUDA_TRY(d, cudaMemset(d->rope_dev + CUDA_ROPE_MAX * (CUDA_ROPE_DIMS / 2), 0, sizeof(double) * (CUDA_ROPE_DIMS / 2)), "counters");
        CUDA_TRY(d, cudaMalloc((void **)&d->squares, norm_groups(NORM_COLS) * sizeof(float)), "norm");
        int r = crumbs_take(d);
        if (r == 0)
                r = cuda_tables_dequant(d);
        if (r == 0)
                r = cuda_tables_embed(d);
        if (r == 0)
                r = cuda_tables_iq(d);
        if (r < 0)
                return r;
        if ((r = cuda_graph_open(d)) < 0)
                return r;
        d->arena_bytes = ARENA_BYTES;
        d->arena = (uint8_t *)malloc(d->arena_bytes);
        if (!d->arena)
                return -ENOMEM;
#if CUDART_VERSION >= 12050
        cudaDriverEntryPointQueryResult q;
        void *fn = NULL;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &q) == cudaSuccess &&
            q == cudaDriverEntryPointSuccess)
                d->tma_encode = fn;
#endif
        cudaGetLastError();
        return 0;
}

extern "C" int k_cuda_open(const struct k_cuda_options *o, struct k_dev **ret, char why[256]) {
        struct cudaDeviceProp p;
        cudaFuncAttributes fa;
        int n = 0, driver = 0, r;
        uint64_t used_before = 0, used_after = 0;
        cudaError_t e = cudaGetDeviceCount(&n);

        why[0] = 0;
        if (e != cudaSuccess || n == 0) {
                explain(e == cudaSuccess ? cudaErrorNoDevice : e, why);
                return -ENODEV;
        }
        if (o->ordinal < 0 || o->ordinal >= n) {
                set_why(why, "there is no GPU %d: the driver shows %d (0 to %d)", o->ordinal, n, n - 1);
                return -ENODEV;
        }
        bool nvml = cuda_nvml_used(o->ordinal, &used_before);
        if ((e = cudaGetDeviceProperties(&p, o->ordinal)) != cudaSuccess || (e = cudaSetDevice(o->ordinal)) != cudaSuccess) {
                explain(e, why);
                return -ENODEV;
        }
        if (p.major < 8) {
                set_why(why, "%s has compute capability %d.%d; 8.0 or later is needed", p.name, p.major, p.minor);
                return -ENODEV;
        }
        e = cuda_kernel_probe(&fa);
        if (e != cudaSuccess) {
                set_why(why, "this build has no code for %s (compute capability %d.%d): rebuild with -Dcuda-archs=%d%d", p.name,
                        p.major, p.minor, p.major, p.minor);
                return -ENODEV;
        }
        struct cuda_dev *d = (struct cuda_dev *)calloc(1, sizeof(*d));
        if (!d)
                return -ENOMEM;
        d->base.ops = &cuda_ops_table;
        d->ordinal = o->ordinal;
        d->exact = o->exact;
        d->post.off = o->host_launches;
        d->n_sm = (uint32_t)p.multiProcessorCount;
        d->smem_sm = p.sharedMemPerMultiprocessor;
        d->smem_block = p.sharedMemPerBlockOptin;
        d->sm90 = p.major == 9 && o->variant != k_cuda_options::K_CUDA_VARIANT_PORTABLE;
        if (o->variant == k_cuda_options::K_CUDA_VARIANT_PORTABLE) { /* as on the cards that it is for (sm_86, 89, 120) */
                d->smem_sm = MIN(d->smem_sm, (size_t)100 << 10);
                d->smem_block = MIN(d->smem_block, (size_t)99 << 10);
        }
        d->pdl = p.major >= 9;
        d->mem.budget = o->vram_budget;
        r = dev_init(d);
        if (nvml && cuda_nvml_used(o->ordinal, &used_after))
                cuda_memory_measure(d, used_before, used_after);
        if (r < 0) {
                set_why(why, "%s: %s", p.name, d->error[0] ? d->error : "out of memory");
                dev_close(&d->base);
                return r;
        }
        if (!d->tma_encode)
                d->sm90 = false;
        cudaDriverGetVersion(&driver);
        snprintf(d->describe, sizeof(d->describe), "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver CUDA %d.%d%s%s",
                 p.name, p.major, p.minor, p.multiProcessorCount, (double)p.totalGlobalMem / (1 << 30), driver / 1000,
                 driver % 1000 / 10, d->sm90 ? ", Hopper kernels" : ", portable kernels", d->exact ? ", exact" : "");
        *ret = &d->base;
        return 0;
}

static const char *dev_describe(struct k_dev *kd) { return cuda_dev_of(kd)->describe; }

static const char *dev_last_error(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);
        return d->error[0] ? d->error : "no error";
}

/* Asked on the loading stream: the steps' own may be in the middle of being captured. */
static const char *dev_lost(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);
        cudaError_t e = d->lost ? cudaSuccess : cudaStreamQuery(d->mem.stream);

        if (e != cudaSuccess && e != cudaErrorNotReady)
                (void)cuda_fail(d, e, "step");
        return d->lost ? d->error : NULL;
}

static int dev_upload(struct k_dev *kd, void *dst, const void *src, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        if (r < 0)
                return r;
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, d->stream), "upload");
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "upload");
        return 0;
}

static int dev_download(struct k_dev *kd, void *dst, const void *src, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        if (r < 0)
                return r;
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->stream), "download");
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "step");
        return cuda_host_check(d);
}

static int dev_zero(struct k_dev *kd, void *dst, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        if (r < 0)
                return r;
        CUDA_TRY(d, cudaMemsetAsync(dst, 0, bytes, d->stream), "zero");
        return 0;
}

static int dev_copy(struct k_dev *kd, void *dst, const void *src, size_t bytes) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        if (r < 0)
                return r;
        CUDA_TRY(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy");
        return 0;
}

static int dev_sync(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);
        int r = cuda_flush(d);
        if (r < 0)
                return r;
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "step");
        return cuda_host_check(d);
}

/* ---- scratch ----------------------------------------------------------------- */

struct scratch_plan {
        size_t image, attn, row, dequant, total;
};

/* For a graph's mail: 25 KB a layer of 4,096 columns. What finds no room any more waits as kernels without mail do. */
enum : size_t { MAIL_BYTES = 8 << 20 };

enum : size_t { DEQUANT_BYTES = 64 << 20, ATTN_BYTES_MIN = 16 << 20, ATTN_BYTES_MAX = 256 << 20 };

static void scratch_plan(uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx, struct scratch_plan *p) {
        size_t kpad = kpad_of(max_cols), splits = 1, one, attn;

        while (splits * CUDA_SPLIT < n_ctx) /* as a step counts them */
                splits *= 2;
        one = (size_t)n_head * splits * (576 + 2) * sizeof(float);
        attn = MIN(max_rows, 64u) * one;
        p->image = (image_bytes(max_rows, max_cols) + 255) & ~(size_t)255;
        p->attn = MAX(MIN(MAX(attn, (size_t)ATTN_BYTES_MIN), (size_t)ATTN_BYTES_MAX), one); /* one row at least */
        p->row = ((size_t)max_rows * max_cols * sizeof(float) + 255) & ~(size_t)255;
        p->dequant = MAX(MAX((size_t)DEQUANT_BYTES, kpad * 16 * sizeof(float)), cuda_delta_scratch(max_rows));
        p->total = p->image + p->attn + p->row + p->dequant + CUDA_ENDED * sizeof(uint32_t) + MAIL_BYTES;
}

size_t cuda_scratch_bytes(const struct cuda_dev *d) {
        size_t sum = 0;
        for (int i = 0; i < CUDA_MAX_SCRATCH; i++)
                sum += d->scratch[i].bytes;
        return sum;
}

/* Whether what is there serves; else *ret_bytes is what a larger area takes. */
static bool scratch_serves(const struct cuda_dev *d, uint32_t *max_rows, uint32_t *max_cols, uint32_t n_head, uint32_t n_ctx,
                           struct scratch_plan *p) {
        const struct scratch *last = &d->scratch[d->last_scratch];

        scratch_plan(*max_rows, *max_cols, n_head, n_ctx, p);
        if (last->mem && p->total <= last->bytes && p->attn <= d->s_attn_bytes && *max_rows <= d->max_rows && *max_cols <= d->max_cols)
                return true;
        *max_rows = MAX(*max_rows, d->max_rows);
        *max_cols = MAX(*max_cols, d->max_cols);
        scratch_plan(*max_rows, *max_cols, n_head, n_ctx, p);
        p->total -= p->attn;
        p->attn = MAX(p->attn, d->s_attn_bytes);
        p->total += p->attn;
        return false;
}

static size_t dev_scratch(struct k_dev *kd, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        struct scratch_plan p;
        return scratch_serves(cuda_dev_of(kd), &max_rows, &max_cols, n_head, n_ctx, &p) ? 0 : p.total;
}

void cuda_scratch_unused(struct cuda_dev *d, uint32_t i) {
        if (d->scratch[i].n_graph || (i == d->last_scratch && d->n_reserved))
                return;
        cudaFree(d->scratch[i].mem);
        d->scratch[i].mem = NULL;
        d->scratch[i].bytes = 0;
        if (i == d->last_scratch)
                d->max_rows = d->max_cols = 0, d->s_attn_bytes = 0;
}

static int dev_reserve(struct k_dev *kd, uint32_t max_rows, uint32_t max_cols, uint32_t n_head, uint32_t n_ctx) {
        struct cuda_dev *d = cuda_dev_of(kd);
        const uint32_t before = d->last_scratch;
        struct scratch_plan p;
        uint32_t at = 0;
        int r = cuda_flush(d);

        if (r < 0)
                return r;
        if (scratch_serves(d, &max_rows, &max_cols, n_head, n_ctx, &p)) {
                d->n_reserved++;
                return 0;
        }
        while (at < CUDA_MAX_SCRATCH && d->scratch[at].mem)
                at++;
        if (at == CUDA_MAX_SCRATCH) {
                snprintf(d->error, sizeof(d->error), "%d models of ever larger layers hold scratch areas: close one", CUDA_MAX_SCRATCH);
                return -ENOSPC;
        }
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "reserve");
        struct scratch *s = &d->scratch[at];
        cudaError_t e = cudaMalloc((void **)&s->mem, p.total);
        if (e != cudaSuccess) {
                cudaGetLastError(); /* out of memory is not sticky */
                s->mem = NULL;
                return cuda_fail(d, e, "scratch");
        }
        CUDA_TRY(d, cudaMemsetAsync(s->mem, 0, p.total, d->stream), "scratch");
        s->bytes = p.total;
        d->last_scratch = at;
        if (before != at && d->scratch[before].mem)
                cuda_scratch_unused(d, before);
        d->s_image = s->mem;
        d->s_attn = (float *)(d->s_image + p.image);
        d->s_attn_bytes = p.attn;
        d->s_row = (float *)((uint8_t *)d->s_attn + p.attn);
        d->s_dequant = (uint8_t *)d->s_row + p.row;
        d->s_dequant_bytes = p.dequant;
        d->s_ended = (uint32_t *)(d->s_dequant + p.dequant);
        d->mail.mem = d->s_ended + CUDA_ENDED;
        d->mail.words = MAIL_BYTES / sizeof(uint32_t);
        d->max_rows = max_rows;
        d->max_cols = max_cols;
        d->n_reserved++;
        return 0;
}

static void dev_release(struct k_dev *kd) {
        struct cuda_dev *d = cuda_dev_of(kd);

        if (--d->n_reserved > 0)
                return;
        cuda_graph_hold(d);
        cudaStreamSynchronize(d->stream);
        cuda_scratch_unused(d, d->last_scratch);
        cuda_graph_unhold(d);
}

static size_t dev_act_q_bytes(uint32_t n, uint32_t cols) { return image_bytes(n, cols); }

/* ---- the table ------------------------------------------------------------------ */
#define OP(name) extern int cuda_op_##name
OP(embed)(struct k_dev *, const struct k_batch *, const struct k_embed_args *);
OP(norm)(struct k_dev *, const struct k_batch *, const struct k_norm_args *);
OP(linear)(struct k_dev *, const struct k_batch *, const struct k_linear_args *);
OP(head_linear)(struct k_dev *, const struct k_batch *, const struct k_head_linear_args *);
OP(glu)(struct k_dev *, const struct k_batch *, const struct k_glu_args *);
OP(qkv)(struct k_dev *, const struct k_batch *, const struct k_qkv_args *);
OP(attention)(struct k_dev *, const struct k_batch *, const struct k_attention_args *);
OP(delta)(struct k_dev *, const struct k_batch *, const struct k_delta_args *);
OP(shortconv)(struct k_dev *, const struct k_batch *, const struct k_shortconv_args *);
OP(moe)(struct k_dev *, const struct k_batch *, const struct k_moe_args *);
OP(elem)(struct k_dev *, const struct k_batch *, const struct k_elem_args *);
OP(altup)(struct k_dev *, const struct k_batch *, const struct k_altup_args *);
OP(host_begin)(struct k_dev *, const struct k_host_args *);
OP(host_end)(struct k_dev *);
#undef OP
extern int cuda_mem_info(struct k_dev *, struct k_mem_info *);
extern void *cuda_mem_alloc(struct k_dev *, size_t);
extern void cuda_mem_free(struct k_dev *, void *);
extern int cuda_pin(struct k_dev *, const void *, size_t, const void **);
extern void cuda_unpin(struct k_dev *, const void *);
extern int cuda_load(struct k_dev *, void *, const void *, size_t);
extern int cuda_load_wait(struct k_dev *);
extern const char *cuda_load_error(struct k_dev *);
extern int cuda_stream_reserve(struct k_dev *, size_t);
extern void *cuda_host_alloc(struct k_dev *, size_t);
extern void cuda_host_free(struct k_dev *, void *);

const struct k_ops cuda_ops_table = {
        .name = "cuda",
        .max_ctx = CUDA_MAX_CTX,
        .most = { .experts = CUDA_EXPERTS, .experts_used = CUDA_EXPERTS_USED, .expert_groups = CUDA_EXPERT_GROUPS, .head = CUDA_HEAD,
                  .rope = CUDA_ROPE_DIMS, .windows = CUDA_MAX_GROUP, .taps = CUDA_TAPS, .delta_key = CUDA_DELTA_KEY },
        .close = dev_close,
        .describe = dev_describe,
        .last_error = dev_last_error,
        .mem_info = cuda_mem_info,
        .mem_alloc = cuda_mem_alloc,
        .mem_free = cuda_mem_free,
        .upload = dev_upload,
        .download = dev_download,
        .zero = dev_zero,
        .copy = dev_copy,
        .sync = dev_sync,
        .lost = dev_lost,
        .where = dev_where,
        .layout_pick = cuda_layout_pick,
        .layout_bytes = cuda_layout_bytes,
        .repack = cuda_layout_repack,
        .act_q_bytes = dev_act_q_bytes,
        .moe_scratch = cuda_moe_scratch,
        .delta_slot = cuda_delta_slot,
        .dev_scratch = dev_scratch,
        .reserve = dev_reserve,
        .release = dev_release,
        .batch_begin = cuda_op_batch_begin,
        .batch_end = cuda_op_batch_end,
        .embed = cuda_op_embed,
        .norm = cuda_op_norm,
        .linear = cuda_op_linear,
        .head_linear = cuda_op_head_linear,
        .glu = cuda_op_glu,
        .qkv = cuda_op_qkv,
        .attention = cuda_op_attention,
        .delta = cuda_op_delta,
        .shortconv = cuda_op_shortconv,
        .moe = cuda_op_moe,
        .elem = cuda_op_elem,
        .altup = cuda_op_altup,
        .pin = cuda_pin,
        .unpin = cuda_unpin,
        .load = cuda_load,
        .load_wait = cuda_load_wait,
        .load_error = cuda_load_error,
        .stream_reserve = cuda_stream_reserve,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .host_begin = cuda_op_host_begin,
        .host_end = cuda_op_host_end,
        .sample_scratch = cuda_sample_scratch,
        .sample = cuda_op_sample,
        .sample_wait = cuda_sample_wait,
        .event_new = cuda_event_new,
        .event_free = cuda_event_free,
        .event_record = cuda_event_record,
        .event_wait = cuda_event_wait,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_run = cuda_graph_run,
        .graph_free = cuda_graph_free,
        .graph_bytes = cuda_graph_bytes,
        .graph_launches = cuda_graph_launches,
        .variants = cuda_variants,
        .tune = cuda_tune,
};

extern "C" const struct k_ops *k_cuda_ops(void) { return &cuda_ops_table; }
