/* SPDX-License-Identifier: Apache-2.0 */
/* Images: what they hold, and every way in which filling or opening one must fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/image.h"
#include "tests/unit/make_gguf.h"

static int memfd(void) {
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_true(fd >= 0);
        return fd;
}

static int file_of(const struct buf *b) {
        int fd = memfd();
        assert_int_equal(pwrite(fd, b->data, b->len, 0), (ssize_t)b->len);
        return fd;
}

static uint8_t byte_at(size_t i) {
        return (uint8_t)(i * 131 + (i >> 8) * 17 + 5);
}

static const uint64_t vec[1] = { 32 }, mat[2] = { 64, 40 }, experts[3] = { 64, 16, 3 }, conv[2] = { 4, 8 };

/* Five tensors; 'which' bits choose some of them, for split models. */
static void model(struct buf *b, unsigned which, int no, int count) {
        struct { const char *name; uint32_t n_dims; const uint64_t *dim; uint32_t type; size_t bytes; } t[] = {
                { "token_embd.weight", 2, mat, 2, 40 * 2 * 18 }, { "blk.0.attn_norm.weight", 1, vec, 1, 64 },
                { "blk.0.ffn_up_exps.weight", 3, experts, 8, 3 * 16 * 2 * 34 },
                { "blk.0.ssm_conv1d.weight", 2, conv, 1, 64 }, { "output.weight", 2, mat, 8, 40 * 2 * 34 },
        };
        uint64_t at = 0;
        uint16_t v;

        put_header(b, 3, (uint64_t)__builtin_popcount(which), count ? 4 : 1);
        kv_str(b, "general.architecture", "test");
        if (count) {
                v = (uint16_t)no;
                kv_raw(b, "split.no", GGUF_U16, &v, 2);
                v = (uint16_t)count;
                kv_raw(b, "split.count", GGUF_U16, &v, 2);
                kv_u32(b, "split.tensors.count", 5);
        }
        for (size_t i = 0; i < ELEMENTSOF(t); i++)
                if (which >> i & 1) {
                        tensor_info(b, t[i].name, t[i].n_dims, t[i].dim, t[i].type, at);
                        at = (at + t[i].bytes + 31) & ~(uint64_t)31;
                }
        pad(b, 32);
        for (size_t i = 0; i < ELEMENTSOF(t); i++)
                if (which >> i & 1) {
                        for (size_t k = 0; k < t[i].bytes; k++) {
                                /* Halves stay finite: their high bytes are small. */
                                uint8_t c = byte_at(k + i * 1000);
                                buf_putc(b, (char)(k % 2 ? c & 0x3f : c));
                        }
                        pad(b, 32);
                }
}

struct reader {
        uint64_t told, total, times; /* progress */
        uint64_t reads, bytes, fail_at, short_at;
        int touch; /* a file to change at the third read */
        bool truncate;
};

static ssize_t reading(void *ud, int fd, void *buf, size_t n, uint64_t off) {
        struct reader *r = ud;
        ssize_t k;

        r->reads++;
        if (r->reads == r->fail_at) {
                errno = EIO;
                return -1;
        }
        if (r->reads == r->short_at)
                return 0;
        if (r->touch > 0 && r->reads == 3) {
                struct timespec ts[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
                futimens(r->touch, ts);
        }
        k = pread(fd, buf, n > 100 ? n / 2 + 1 : n, (off_t)off); /* short reads are normal */
        r->bytes += k > 0 ? (uint64_t)k : 0;
        return k;
}

static void progress(void *ud, uint64_t done, uint64_t total) {
        struct reader *r = ud;
        assert_true(done >= r->told && done <= total && total > 0);
        r->told = done;
        r->total = total;
        r->times++;
}

static int build(const int *fds, size_t n, struct reader *r, uint64_t max, int out, struct h_error *err) {
        struct eng_source src = { .fds = fds, .n_fds = n, .name = "m.gguf", .pread = r ? reading : NULL, .ud = r };
        struct eng_image_options o = { .backend = ENG_CPU, .max_bytes = max, .progress = r ? progress : NULL, .ud = r };
        uint64_t bytes = 0;
        int e;

        memset(err, 0, sizeof(*err));
        e = eng_image_build(&src, &o, out, &bytes, err);
        if (e == 0) {
                struct stat st;
                uint64_t size;
                assert_int_equal(fstat(out, &st), 0);
                assert_int_equal((uint64_t)st.st_size, bytes);
                assert_int_equal(eng_image_size(&src, &o, &size, err), 0);
                assert_int_equal(size, bytes);
        }
        return e;
}

static struct eng_image *open_image(int fd) {
        struct h_error err = { 0 };
        struct eng_image *im = NULL;
        int r = eng_image_open(fd, false, &im, &err);
        if (r < 0)
                print_error("%s\n", err.message);
        assert_int_equal(r, 0);
        return im;
}

static void test_content(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        struct eng_image *im;
        const struct image_row *row;
        struct gguf_str arch;
        int fd, out = memfd();

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        assert_int_equal(build(&fd, 1, NULL, 0, out, &err), 0);
        im = open_image(out);
        assert_int_equal(im->header->n_tensors, 5);
        assert_int_equal(im->header->n_params, 2 * 64 * 40 + 32 + 3 * 64 * 16 + 32);
        assert_int_equal(gguf_string(im->g, "general.architecture", &arch, &err), 0);
        assert_memory_equal(arch.p, "test", 4);

        /* A lookup table keeps the file's rows. */
        row = image_find(im, "token_embd.weight");
        assert_int_equal(row->layout, K_LAYOUT_FILE);
        for (size_t k = 0; k < row->bytes; k++)
                assert_int_equal(((const uint8_t *)image_data(im, row))[k], k % 2 ? byte_at(k) & 0x3f : byte_at(k));

        /* Vectors and convolution taps are float32. */
        for (unsigned i = 0; i < 2; i++) {
                row = image_find(im, i ? "blk.0.ssm_conv1d.weight" : "blk.0.attn_norm.weight");
                assert_int_equal(row->type, K_F32);
                assert_int_equal(row->file_type, K_F16);
                for (size_t k = 0; k < 32; k++) {
                        size_t at = (i ? 3000 : 1000) + 2 * k;
                        uint16_t h = (uint16_t)(byte_at(at) | (byte_at(at + 1) & 0x3f) << 8);
                        assert_true(((const float *)image_data(im, row))[k] == k_f16_to_f32(h));
                }
        }

        /* Matrices are what the backend's own packing of the whole makes of them, each expert apart. */
        row = image_find(im, "blk.0.ffn_up_exps.weight");
        if (row->layout != K_LAYOUT_FILE) {
                const struct k_ops *ops = k_cpu_ops();
                size_t one = ops->layout_bytes(row->type, row->layout, 16, 64);
                uint8_t *src = malloc(16 * 2 * 34), *want = malloc(one);
                for (size_t e = 0; e < 3; e++) {
                        for (size_t k = 0; k < 16 * 2 * 34; k++) {
                                uint8_t c = byte_at(k + e * 16 * 2 * 34 + 2000);
                                src[k] = k % 2 ? c & 0x3f : c;
                        }
                        assert_int_equal(ops->repack(row->type, row->layout, 16, 64, src, want), 0);
                        assert_memory_equal((const uint8_t *)image_data(im, row) + e * row->stride, want, one);
                }
                free(src);
                free(want);
        }
        assert_null(image_find(im, "absent"));
        eng_image_close(im);
        close(out);
        close(fd);
        buf_free(&b);
}

/* The hash is of the content: the same for a copy and any reader, another for any changed byte. */
static void test_hash(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        struct reader r = { 0 };
        uint8_t hash[IMAGE_HASH];
        struct eng_image *im;
        int fd, out = memfd();
        size_t end;

        model(&b, 31, 0, 0);
        end = b.len;
        fd = file_of(&b);
        assert_int_equal(build(&fd, 1, NULL, 0, out, &err), 0);
        im = open_image(out);
        memcpy(hash, eng_image_hash(im), IMAGE_HASH);
        eng_image_close(im);
        close(out);
        out = memfd();
        assert_int_equal(build(&fd, 1, &r, 0, out, &err), 0);
        assert_true(r.bytes >= end - 32 && r.reads > 5);
        assert_true(r.times >= 5 && r.told == r.total);
        im = open_image(out);
        assert_memory_equal(hash, eng_image_hash(im), IMAGE_HASH);
        eng_image_close(im);
        close(out);
        close(fd);
        for (unsigned i = 0; i < 20; i++) {
                size_t at = end - 64 - i * 97;
                b.data[at] ^= 1;
                fd = file_of(&b);
                out = memfd();
                assert_int_equal(build(&fd, 1, NULL, 0, out, &err), 0);
                im = open_image(out);
                assert_memory_not_equal(hash, eng_image_hash(im), IMAGE_HASH);
                eng_image_close(im);
                close(out);
                close(fd);
                b.data[at] ^= 1;
        }
        buf_free(&b);
}

static void fails(int fd, struct reader *r, uint64_t max, enum hearth_code code, const char *part) {
        struct h_error err;
        int out = memfd(), e = build(&fd, 1, r, max, out, &err);

        if (e != -EHEARTH || err.code != code || !strstr(err.message, part))
                print_error("r %d, %s: %s; expected %s with \"%s\"\n", e, hearth_code_name(err.code), err.message,
                            hearth_code_name(code), part);
        assert_int_equal(e, -EHEARTH);
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, part));
        assert_non_null(strstr(err.message, "m.gguf"));
        close(out);
}

static void test_failures(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        struct reader r;
        int fd, out;

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        for (uint64_t at = 1; at < 6; at++) {
                r = (struct reader){ .fail_at = at };
                fails(fd, &r, 0, HEARTH_E_io, "Input/output error");
                r = (struct reader){ .short_at = at };
                fails(fd, &r, 0, HEARTH_E_model_truncated, "ended at offset");
        }
        r = (struct reader){ .touch = fd };
        fails(fd, &r, 0, HEARTH_E_model_changed, "changed while it was read");
        fails(fd, NULL, 5000, HEARTH_E_model_no_memory, "5000 are available");
        out = memfd();
        assert_int_equal(build(&fd, 1, NULL, 5000, out, &err), -EHEARTH);
        assert_true(err.needed > 5000 && err.available == 5000);
        assert_int_equal(lseek(out, 0, SEEK_END), 0); /* before anything was written */
        close(out);
        assert_int_equal(ftruncate(fd, (off_t)b.len - 100), 0);
        fails(fd, NULL, 0, HEARTH_E_model_truncated, "ends at offset");
        assert_int_equal(ftruncate(fd, 10), 0);
        fails(fd, NULL, 0, HEARTH_E_model_truncated, "offset 8");
        assert_int_equal(ftruncate(fd, 0), 0);
        fails(fd, NULL, 0, HEARTH_E_model_truncated, "offset 0");
        close(fd);
        fd = open("/", O_RDONLY | O_CLOEXEC);
        fails(fd, NULL, 0, HEARTH_E_model_invalid, "not a regular file");
        close(fd);
        buf_free(&b);
}

static int no_part(void *ud, uint32_t part, uint32_t n, int *ret, struct h_error *err) {
        return -ENOENT;
}

static void split_fails(struct buf *parts, size_t n, enum hearth_code code, const char *text) {
        struct h_error err;
        int fds[4], out = memfd();

        for (size_t i = 0; i < n; i++)
                fds[i] = file_of(&parts[i]);
        assert_int_equal(build(fds, n, NULL, 0, out, &err), -EHEARTH);
        if (err.code != code || !strstr(err.message, text))
                print_error("%s: %s; expected \"%s\"\n", hearth_code_name(err.code), err.message, text);
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, text));
        for (size_t i = 0; i < n; i++)
                close(fds[i]);
        close(out);
}

static void test_split(void **state) {
        struct buf whole = { 0 }, p[3] = { { 0 } }, bad[3];
        struct h_error err;
        struct eng_image *a, *b;
        struct eng_source src = { .n_fds = 1, .name = "m.gguf", .open_part = no_part };
        struct eng_image_options o = { .backend = ENG_CPU };
        uint64_t bytes;
        int fds[3], out1 = memfd(), out2 = memfd(), fd;

        model(&whole, 31, 0, 0);
        model(&p[0], 1, 0, 3);
        model(&p[1], 2 + 4, 1, 3);
        model(&p[2], 8 + 16, 2, 3);
        fd = file_of(&whole);
        for (size_t i = 0; i < 3; i++)
                fds[i] = file_of(&p[i]);
        assert_int_equal(build(&fd, 1, NULL, 0, out1, &err), 0);
        assert_int_equal(build(fds, 3, NULL, 0, out2, &err), 0);
        a = open_image(out1);
        b = open_image(out2);
        assert_int_equal(a->header->n_tensors, b->header->n_tensors);
        for (uint32_t i = 0; i < a->header->n_tensors; i++) {
                assert_string_equal(a->rows[i].name, b->rows[i].name);
                assert_memory_equal(image_data(a, &a->rows[i]), image_data(b, &b->rows[i]), a->rows[i].bytes);
        }
        eng_image_close(a);
        eng_image_close(b);

        src.fds = fds;
        memset(&err, 0, sizeof(err));
        assert_int_equal(eng_image_build(&src, &o, out1, &bytes, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_model_not_found);
        assert_non_null(strstr(err.message, "part 2 of 3 is missing"));
        split_fails(p, 2, HEARTH_E_model_not_found, "part 3 of 3 is missing");
        split_fails(p + 1, 2, HEARTH_E_model_invalid, "is part 2 of 3 of a split model");
        bad[0] = p[0], bad[1] = p[2], bad[2] = p[1];
        split_fails(bad, 3, HEARTH_E_model_invalid, "(part 2 of 3): foreign part");
        bad[1] = whole;
        split_fails(bad, 3, HEARTH_E_model_invalid, "foreign part: it says it is part 1 of 1");
        bad[1] = (struct buf){ 0 };
        bad[2] = p[2];
        model(&bad[1], 2 + 8, 1, 3); /* has a tensor of part 3, lacks one */
        split_fails(bad, 3, HEARTH_E_model_invalid, "is in part 2 and in part 3");
        buf_free(&bad[1]);
        model(&bad[1], 2, 1, 3);
        split_fails(bad, 3, HEARTH_E_model_invalid, "split.tensors.count says 5");
        buf_free(&bad[1]);
        model(&bad[1], 2 + 4 + 8, 1, 3); /* cut elsewhere: more tensors than there are */
        split_fails(bad, 3, HEARTH_E_model_invalid, "(part 3 of 3): foreign part, or part 2 is: both hold tensor");
        buf_free(&bad[1]);
        for (size_t i = 0; i < 3; i++) {
                close(fds[i]);
                buf_free(&p[i]);
        }
        close(fd);
        close(out1);
        close(out2);
        buf_free(&whole);
}

/* Any byte of the manifest may be anything: refused, or still true. */
static void test_hostile_manifest(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        int fd, out = memfd();
        uint8_t *map;
        size_t n, size;
        unsigned refused = 0;

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        assert_int_equal(build(&fd, 1, NULL, 0, out, &err), 0);
        size = (size_t)lseek(out, 0, SEEK_END);
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
        assert_true(map != MAP_FAILED);
        n = IMAGE_PAGE + 5 * sizeof(struct image_row) + 60;
        for (size_t i = 0; i < n; i++) {
                static const uint8_t change[] = { 0x01, 0x80, 0xff };
                if (i >= sizeof(struct image_header) && i < IMAGE_PAGE)
                        continue;
                for (unsigned k = 0; k < 3; k++) {
                        struct eng_image *im = NULL;
                        int r;
                        memset(&err, 0, sizeof(err));
                        map[i] ^= change[k];
                        r = eng_image_open(out, false, &im, &err);
                        if (r < 0) {
                                assert_int_equal(r, -EHEARTH);
                                assert_true(err.code != HEARTH_OK && err.code != HEARTH_E_internal);
                                refused++;
                        } else {
                                for (uint32_t t = 0; t < im->header->n_tensors; t++)
                                        assert_true(im->rows[t].offset + im->rows[t].bytes + IMAGE_TAIL <= size);
                                eng_image_close(im);
                        }
                        map[i] ^= change[k];
                }
        }
        assert_true(refused > 1000);
        munmap(map, size);
        /* Shorter than it says. */
        for (size_t cut = 0; cut < size; cut += 1777) {
                struct eng_image *im = NULL;
                int copy = memfd();
                assert_int_equal(ftruncate(copy, (off_t)cut), 0);
                if (cut) {
                        map = mmap(NULL, size, PROT_READ, MAP_SHARED, out, 0);
                        assert_int_equal(pwrite(copy, map, cut, 0), (ssize_t)cut);
                        munmap(map, size);
                }
                memset(&err, 0, sizeof(err));
                assert_int_equal(eng_image_open(copy, false, &im, &err), -EHEARTH);
                close(copy);
        }
        close(out);
        close(fd);
        buf_free(&b);
}

static void test_seals(void **state) {
        struct buf b = { 0 };
        struct h_error err;
        struct eng_image *im = NULL;
        int fd, out = memfd();

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        assert_int_equal(build(&fd, 1, NULL, 0, out, &err), 0);
        memset(&err, 0, sizeof(err));
        assert_int_equal(eng_image_open(out, true, &im, &err), -EHEARTH);
        assert_non_null(strstr(err.message, "sealed"));
        assert_int_equal(fcntl(out, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
        memset(&err, 0, sizeof(err));
        assert_int_equal(eng_image_open(out, true, &im, &err), 0);
        eng_image_close(im);
        close(out);
        close(fd);
        buf_free(&b);
}

/* A value that is not finite is found wherever it is, by tensor and index. */
static void test_verify(void **state) {
        static const struct { const char *name; uint64_t byte, index, count; } bad[] = {
                { "blk.0.attn_norm.weight", 10, 5, 1 },                          /* one half */
                { "blk.0.ffn_up_exps.weight", 34 * 70, 32 * 70, 32 },            /* a block's scale */
                { "output.weight", 34 * 79, 32 * 79, 32 },                       /* the last block */
        };
        struct eng_source src = { .n_fds = 1, .name = "m.gguf" };
        struct h_error err = { 0 };
        struct buf b = { 0 };
        struct gguf *g = NULL;
        int fd;

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        src.fds = &fd;
        assert_int_equal(eng_source_verify(&src, NULL, &err), 0);
        assert_int_equal(gguf_parse(b.data, b.len, b.len, &g, NULL), 0);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                uint64_t at = gguf_find_tensor(g, bad[i].name)->offset + bad[i].byte;
                uint16_t inf = 0x7c00, old;
                char want[64];

                memcpy(&old, b.data + at, 2);
                assert_int_equal(pwrite(fd, &inf, 2, (off_t)at), 2);
                memset(&err, 0, sizeof(err));
                assert_int_equal(eng_source_verify(&src, NULL, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_model_invalid);
                assert_non_null(strstr(err.message, bad[i].name));
                snprintf(want, sizeof(want), "index %llu;", (unsigned long long)bad[i].index);
                assert_non_null(strstr(err.message, want));
                snprintf(want, sizeof(want), "holds %llu values", (unsigned long long)bad[i].count);
                assert_non_null(strstr(err.message, want));
                assert_int_equal(pwrite(fd, &old, 2, (off_t)at), 2);
        }
        gguf_free(g);
        close(fd);
        buf_free(&b);
}

/* The nth allocation, read, reservation or mapping fails: a typed error, nothing leaked. */
static void test_faults(void **state) {
        static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_READ, FAULT_WRITE, FAULT_MMAP };
        struct buf b = { 0 };
        int fd;

        model(&b, 31, 0, 0);
        fd = file_of(&b);
        for (size_t k = 0; k < ELEMENTSOF(kinds); k++)
                for (uint64_t nth = 1;; nth++) {
                        struct eng_source src = { .fds = &fd, .n_fds = 1, .name = "m.gguf" };
                        struct eng_image_options o = { .backend = ENG_CPU };
                        struct eng_image *im = NULL;
                        struct h_error err = { 0 };
                        uint64_t bytes;
                        int out = memfd(), r;

                        fault_arm(kinds[k], nth);
                        r = eng_image_build(&src, &o, out, &bytes, &err);
                        if (r == 0)
                                r = eng_image_open(out, false, &im, &err);
                        fault_arm(kinds[k], 0);
                        close(out);
                        eng_image_close(im);
                        if (r == 0) {
                                assert_true(nth > 1);
                                break;
                        }
                        assert_int_equal(r, -EHEARTH);
                        assert_true(err.code == HEARTH_E_no_memory || err.code == HEARTH_E_io);
                }
        close(fd);
        buf_free(&b);
}

/* The look at a model before its weights: the size that the image will have, little read, every failure typed. */
static void test_check(void **state) {
        int fd = open(TEST_DATA "/oracle/models/llama-q4_0.gguf", O_RDONLY | O_CLOEXEC);
        struct reader r = { 0 };
        struct eng_source src = { .fds = &fd, .n_fds = 1, .name = "m.gguf", .pread = reading, .ud = &r };
        struct eng_image_options o = { .backend = ENG_CPU };
        struct h_error err = { 0 };
        uint64_t size, bytes = 0;
        struct buf b = { 0 };
        int fd2;

        assert_true(fd >= 0);
        assert_int_equal(eng_image_check(&src, &o, &bytes, &err), 0);
        assert_int_equal(eng_image_size(&src, &o, &size, &err), 0);
        assert_int_equal(size, bytes);
        src.pread = NULL;
        for (uint64_t nth = 1; bytes; nth++) {
                bytes = 0;
                memset(&err, 0, sizeof(err));
                fault_arm(FAULT_ALLOC, nth);
                if (eng_image_check(&src, &o, &bytes, &err) == 0)
                        break;
                fault_arm(FAULT_ALLOC, 0);
                assert_int_equal(err.code, HEARTH_E_no_memory);
                bytes = 1;
        }
        fault_arm(FAULT_ALLOC, 0);
        assert_int_equal(size, bytes);
        close(fd);

        model(&b, 31, 0, 0); /* tensors of an architecture that lacks others */
        fd2 = file_of(&b);
        src.fds = &fd2;
        memset(&err, 0, sizeof(err));
        assert_int_equal(eng_image_check(&src, &o, &bytes, &err), -EHEARTH);
        assert_true(err.code == HEARTH_E_model_invalid || err.code == HEARTH_E_unknown_arch);
        assert_non_null(strstr(err.message, "m.gguf: "));
        close(fd2);
        buf_free(&b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_content), cmocka_unit_test(test_hash), cmocka_unit_test(test_failures),
                cmocka_unit_test(test_split), cmocka_unit_test(test_hostile_manifest), cmocka_unit_test(test_seals),
                cmocka_unit_test(test_faults), cmocka_unit_test(test_verify),
                cmocka_unit_test(test_check),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
