/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills an image: reads every tensor once, hashes what was read, rearranges it
 * into its place. Several threads take tensors in the order of the files; each
 * tensor's place is its own, so they share nothing but a counter.
 *
 * Identity: BLAKE2b-256 over the metadata bytes of every part and the digests
 * of all tensors' bytes (in pieces of HASH_PIECE, so that the work can spread),
 * in file order. It doesn't depend on the layout or on the number of threads.
 *
 * The header, and with it the magic, is written last: an image that broke off
 * is no image. All pages are reserved before the mapping is touched, so that a
 * lack of memory is an error and not a signal.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <blake2.h>

#include "base/alloc.h"
#include "engine/image.h"

#define HASH_PIECE ((uint64_t)4 << 20)
#define STRIPE_BYTES ((uint64_t)1 << 20)
#define MAX_THREADS 16u

struct fill {
        const struct image_source *s;
        const struct image_plan *p;
        const struct eng_image_options *o;
        uint8_t *map;
        uint8_t (*digest)[IMAGE_HASH]; /* one per tensor */
        _Atomic uint32_t next;
        _Atomic uint64_t done;
        uint64_t total;
        _Atomic bool failed;
        pthread_t caller;     /* the only thread that reports progress */
        pthread_mutex_t lock; /* of 'err' and 'r' */
        struct h_error err;
        int r;
};

/* Digest of a tensor: the digest of its pieces' digests. Bytes may come in any portions. */
struct tensor_hash {
        blake2b_state all, piece;
        uint64_t n; /* bytes in the piece */
};

static void hash_begin(struct tensor_hash *h) {
        blake2b_init(&h->all, IMAGE_HASH);
        blake2b_init(&h->piece, IMAGE_HASH);
        h->n = 0;
}

static void hash_end_piece(struct tensor_hash *h) {
        uint8_t d[IMAGE_HASH];

        blake2b_final(&h->piece, d, IMAGE_HASH);
        blake2b_update(&h->all, d, sizeof(d));
        blake2b_init(&h->piece, IMAGE_HASH);
        h->n = 0;
}

static void hash_add(struct tensor_hash *h, const uint8_t *p, uint64_t n) {
        while (n > 0) {
                uint64_t k = MIN(n, HASH_PIECE - h->n);
                blake2b_update(&h->piece, p, k);
                p += k;
                n -= k;
                h->n += k;
                if (h->n == HASH_PIECE)
                        hash_end_piece(h);
        }
}

static void hash_finish(struct tensor_hash *h, uint8_t digest[IMAGE_HASH]) {
        if (h->n > 0)
                hash_end_piece(h);
        blake2b_final(&h->all, digest, IMAGE_HASH);
}

static void advance(struct fill *f, uint64_t n) {
        uint64_t done = atomic_fetch_add(&f->done, n) + n;
        if (f->o->progress && pthread_equal(pthread_self(), f->caller))
                f->o->progress(f->o->ud, done, f->total);
}

/* In the file's own layout the bytes go straight to their place. */
static int fill_verbatim(struct fill *f, const struct image_tensor_plan *t, struct tensor_hash *h, struct h_error *err) {
        uint8_t *dst = f->map + t->row.offset;

        for (uint64_t at = 0; at < t->src->bytes; at += HASH_PIECE) {
                uint64_t n = MIN(HASH_PIECE, t->src->bytes - at);
                int r = image_source_read(f->s, t->src->part, dst + at, n, t->src->offset + at, err);
                if (r < 0)
                        return r;
                hash_add(h, dst + at, n);
                advance(f, n);
        }
        return 0;
}

/*
 * Through a buffer. K_LAYOUT_CPU is a run of panels of rows (kernels/cpu), so a
 * matrix can be packed in stripes; other layouts take a whole matrix at a time.
 */
static int fill_packed(struct fill *f, const struct image_tensor_plan *t, struct tensor_hash *h, struct h_error *err) {
        uint64_t rows, cols, n, row_bytes, stripe;
        _cleanup_(freep) uint8_t *buf = NULL;

        image_row_shape(&t->row, &rows, &cols, &n);
        row_bytes = t->src->bytes / n / rows;
        stripe = t->decode || t->row.layout == K_LAYOUT_CPU ? MAX(STRIPE_BYTES / row_bytes / 64 * 64, 64u) : rows;
        stripe = MIN(stripe, rows);
        buf = h_malloc(stripe * row_bytes);
        if (!buf)
                return h_error_counts(err, HEARTH_E_no_memory, stripe * row_bytes, 0,
                                      "tensor %s: no memory to rearrange %llu bytes", t->row.name,
                                      (unsigned long long)(stripe * row_bytes));
        for (uint64_t i = 0; i < n; i++) {
                uint8_t *dst = f->map + t->row.offset + i * t->row.stride;
                for (uint64_t at = 0; at < rows; at += stripe) {
                        uint64_t k = MIN(stripe, rows - at);
                        int r = image_source_read(f->s, t->src->part, buf, k * row_bytes,
                                                  t->src->offset + (i * rows + at) * row_bytes, err);
                        if (r < 0)
                                return r;
                        hash_add(h, buf, k * row_bytes);
                        advance(f, k * row_bytes);
                        if (t->decode) {
                                k_decode(t->src->type, buf, (float *)dst + at * cols, k * cols);
                                continue;
                        }
                        r = f->p->ops->repack(t->row.type, t->row.layout, (uint32_t)k, (uint32_t)cols, buf, dst);
                        if (r < 0)
                                return h_error_set(err, HEARTH_E_internal, "tensor %s: can't be packed: %s",
                                                   t->row.name, strerror(-r));
                        dst += f->p->ops->layout_bytes(t->row.type, t->row.layout, (uint32_t)k, (uint32_t)cols);
                }
        }
        return 0;
}

static int fill_tensor(struct fill *f, uint32_t i, struct h_error *err) {
        const struct image_tensor_plan *t = &f->p->tensor[i];
        struct tensor_hash h;
        int r;

        hash_begin(&h);
        r = t->decode || t->row.layout != K_LAYOUT_FILE ? fill_packed(f, t, &h, err) : fill_verbatim(f, t, &h, err);
        if (r < 0)
                return r;
        hash_finish(&h, f->digest[i]);
        return 0;
}

static void fill_some(struct fill *f) {
        for (;;) {
                struct h_error err = { 0 };
                uint32_t i = atomic_fetch_add(&f->next, 1);
                int r;

                if (i >= f->p->header.n_tensors || atomic_load(&f->failed))
                        return;
                r = fill_tensor(f, i, &err);
                if (r < 0) {
                        pthread_mutex_lock(&f->lock);
                        if (f->r == 0) {
                                f->r = r;
                                f->err = err;
                        }
                        atomic_store(&f->failed, true);
                        pthread_mutex_unlock(&f->lock);
                        return;
                }
        }
}

static void *fill_thread(void *arg) {
        fill_some(arg);
        return NULL;
}

static uint32_t count_threads(const struct image_source *s, uint32_t n_tensors) {
        cpu_set_t set;
        uint32_t n = 1;

        if (s->src->pread && !s->src->parallel)
                return 1;
        if (sched_getaffinity(0, sizeof(set), &set) == 0)
                n = (uint32_t)CPU_COUNT(&set);
        return MAX(1u, MIN(MIN(n, MAX_THREADS), n_tensors));
}

/* Progress and errors come from the calling thread only. */
static int fill_tensors(struct fill *f, struct h_error *err) {
        uint32_t n = count_threads(f->s, f->p->header.n_tensors), started = 0;
        pthread_t thread[MAX_THREADS];

        for (uint32_t i = 1; i < n; i++)
                if (pthread_create(&thread[started], NULL, fill_thread, f) == 0)
                        started++;
        fill_some(f);
        for (uint32_t i = 0; i < started; i++)
                pthread_join(thread[i], NULL);
        if (f->r < 0) {
                if (err && err->code == HEARTH_OK)
                        *err = f->err;
                return f->r;
        }
        if (f->o->progress)
                f->o->progress(f->o->ud, f->total, f->total);
        return 0;
}

static void write_metadata(struct fill *f) {
        const struct image_header *h = &f->p->header;
        const struct image_part *p0 = &f->s->part[0];
        uint8_t *meta = f->map + h->meta_off;

        for (uint32_t i = 0; i < h->n_tensors; i++)
                memcpy(f->map + h->rows_off + (uint64_t)i * sizeof(struct image_row),
                       &f->p->tensor[f->p->by_name[i]].row, sizeof(struct image_row));
        memcpy(meta, "GGUF\x03\0\0\0\0\0\0\0\0\0\0", 16); /* version 3, no tensors */
        for (unsigned i = 0; i < 8; i++)
                meta[16 + i] = (uint8_t)((uint64_t)p0->g->n_kv >> (8 * i));
        memcpy(meta + 24, p0->mem + p0->g->kv_offset, p0->g->kv_end - p0->g->kv_offset);
}

static void write_header(struct fill *f) {
        struct image_header h = f->p->header;
        blake2b_state b;

        blake2b_init(&b, IMAGE_HASH);
        for (uint32_t i = 0; i < f->s->n_parts; i++) {
                const struct image_part *p = &f->s->part[i];
                blake2b_update(&b, p->mem, MIN((uint64_t)p->mem_bytes, p->g->data_offset));
        }
        blake2b_update(&b, &f->digest[0][0], (size_t)h.n_tensors * IMAGE_HASH);
        blake2b_final(&b, h.hash, IMAGE_HASH);
        memcpy(f->map, &h, sizeof(h));
        memcpy(f->map, IMAGE_MAGIC, 8);
}

static int check_memory(const struct image_source *s, const struct image_plan *p, const struct eng_image_options *o,
                        struct h_error *err) {
        uint64_t total, available = UINT64_MAX;

        if (host_memory(&total, &available) < 0)
                available = UINT64_MAX;
        if (o->max_bytes)
                available = MIN(available, o->max_bytes);
        if (p->header.bytes > available)
                return h_error_counts(err, HEARTH_E_model_no_memory, p->header.bytes, available,
                                      "%s needs %llu bytes of memory, %llu are available%s",
                                      s->src->name ? s->src->name : "the model", (unsigned long long)p->header.bytes,
                                      (unsigned long long)available,
                                      available == o->max_bytes ? " (the configured budget)" : "");
        return 0;
}

/* Sizes memfd, reserves its pages and maps it. */
static int map_target(int memfd, uint64_t bytes, uint8_t **ret, struct h_error *err) {
        void *map;
        int r;

        if (fault_hit(FAULT_WRITE))
                return h_error_set(err, HEARTH_E_no_memory, "reserving %llu bytes for the model: %s",
                                   (unsigned long long)bytes, strerror(ENOSPC));
        if (ftruncate(memfd, (off_t)bytes) < 0)
                return h_error_from_errno(err, -errno, "sizing the model's memory file");
        do
                r = fallocate(memfd, 0, 0, (off_t)bytes);
        while (r < 0 && errno == EINTR);
        if (r < 0 && errno != EOPNOTSUPP)
                return h_error_counts(err, HEARTH_E_model_no_memory, bytes, 0,
                                      "reserving %llu bytes for the model: %s", (unsigned long long)bytes,
                                      strerror(errno));
        map = fault_hit(FAULT_MMAP) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        if (map == MAP_FAILED)
                return h_error_set(err, HEARTH_E_no_memory, "mapping %llu bytes for the model: %s",
                                   (unsigned long long)bytes, strerror(errno ? errno : ENOMEM));
        *ret = map;
        return 0;
}

static int fill_image(struct fill *f, int memfd, struct h_error *err) {
        int r;

        r = map_target(memfd, f->p->header.bytes, &f->map, err);
        if (r < 0)
                return r;
        f->digest = h_calloc(f->p->header.n_tensors, IMAGE_HASH);
        if (!f->digest)
                return h_error_from_errno(err, -ENOMEM, "filling a model's image");
        for (uint32_t i = 0; i < f->p->header.n_tensors; i++)
                f->total += f->p->tensor[i].src->bytes;
        f->caller = pthread_self();
        r = fill_tensors(f, err);
        if (r < 0)
                return r;
        r = image_source_unchanged(f->s, err);
        if (r < 0)
                return r;
        write_metadata(f);
        write_header(f);
        return 0;
}

int eng_image_build(const struct eng_source *src, const struct eng_image_options *o, int memfd, uint64_t *ret_bytes,
                    struct h_error *err) {
        struct image_source s = { 0 };
        struct image_plan p = { 0 };
        struct fill f = { .s = &s, .p = &p, .o = o, .lock = PTHREAD_MUTEX_INITIALIZER };
        int r;

        r = image_source_open(src, &s, err);
        if (r >= 0)
                r = image_plan_make(&s, o->backend, &p, err);
        if (r >= 0)
                r = check_memory(&s, &p, o, err);
        if (r >= 0)
                r = fill_image(&f, memfd, err);
        if (r >= 0)
                *ret_bytes = p.header.bytes;
        if (f.map)
                munmap(f.map, p.header.bytes);
        free(f.digest);
        image_plan_free(&p);
        image_source_close(&s);
        return r;
}

int eng_image_size(const struct eng_source *src, const struct eng_image_options *o, uint64_t *ret_bytes,
                   struct h_error *err) {
        struct image_source s = { 0 };
        struct image_plan p = { 0 };
        int r;

        r = image_source_open(src, &s, err);
        if (r >= 0)
                r = image_plan_make(&s, o->backend, &p, err);
        if (r >= 0)
                *ret_bytes = p.header.bytes;
        image_plan_free(&p);
        image_source_close(&s);
        return r;
}
