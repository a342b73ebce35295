/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the plan's truth, steps that allocate nothing, pages, handles and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <malloc.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/context.h"
#include "tests/unit/make_gguf.h"
#include "tests/unit/open_model.h"

#define PLAIN TEST_DATA "/oracle/models/llama-q8_0.gguf"
#define WINDOWS TEST_DATA "/oracle/models/gpt-oss-mxfp4.gguf"

static struct opened m;

static int open_named(void **state, const char *path) {
        struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        return open_model(path, &o, &m);
}

static int open_plain(void **state) {
        return open_named(state, PLAIN);
}

static int open_windows(void **state) {
        return open_named(state, WINDOWS);
}

static int close_it(void **state) {
        close_model(&m);
        return 0;
}

static struct eng_context *context(const struct eng_limits *l) {
        struct eng_context *c = NULL;
        struct h_error err = { 0 };
        int r = eng_context_new(m.model, l, &c, &err);
        if (r < 0)
                print_error("%s\n", err.message);
        assert_int_equal(r, 0);
        return c;
}

static uint32_t token(uint32_t i) {
        return (i * 37 + i / 5 + 11) % eng_model_info(m.model)->n_vocab;
}

/* Feeds n tokens (token(seed), ...) as one item; the last logits' first values are a fingerprint. */
static void feed(struct eng_context *c, eng_seq s, uint32_t seed, uint32_t n, enum eng_role role, float *ret) {
        uint32_t ids[512], n_vocab = eng_model_info(m.model)->n_vocab;
        struct eng_item it = { .seq = s, .tokens = ids, .n = n, .role = role, .want = ENG_WANT_LOGITS_LAST };
        struct eng_result res;
        struct h_error err = { 0 };
        int r;

        for (uint32_t i = 0; i < n; i++)
                ids[i] = token(seed + i);
        r = eng_step(c, &it, 1, &res, &err);
        if (r)
                print_error("%s\n", err.message);
        assert_int_equal(r, 0);
        if (ret)
                memcpy(ret, res.logits, n_vocab * sizeof(float));
}

static eng_seq new_seq(struct eng_context *c) {
        eng_seq s;
        assert_int_equal(eng_seq_new(c, &s), 0);
        return s;
}

/* ---- the plan ----------------------------------------------------------------- */

/* Bytes that malloc has handed out; 0 where a sanitizer's own malloc doesn't say. */
static size_t handed_out(void) {
        struct mallinfo2 i = mallinfo2();
        return i.uordblks + i.hblkhd;
}

static void test_plan(void **state) {
        static const enum eng_kv_type kvs[] = { ENG_KV_F16, ENG_KV_F32, ENG_KV_BF16, ENG_KV_Q8_0, ENG_KV_Q4_0 };
        unsigned planned = 0;

        for (unsigned i = 0; i < 20; i++) {
                struct eng_limits l = { .n_places = 1 + i % 4, .n_ctx = 40 + 30 * i, .n_rows = 8 + i, .kv = kvs[i % 5],
                                        .n_draft = i % 3, .n_prefix = i % 2 };
                struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 + i % 2 };
                struct eng_device *d = NULL;
                struct eng_model *fresh = NULL;
                struct eng_context *c = NULL;
                struct eng_memory mem;
                struct h_error err = { 0 };
                size_t before, taken, sum, slack;
                int r;

                /* A device of its own, since a device keeps its scratch. */
                assert_int_equal(eng_device_open(&o, &d, &err), 0);
                assert_int_equal(eng_model_open(d, m.image, &fresh, &err), 0);
                r = eng_plan(fresh, &l, 0, &mem, &err);
                assert_int_equal(r, 0);
                sum = mem.weights + mem.kv + mem.state + mem.draft + mem.workspace + mem.graphs + mem.context;
                assert_int_equal(mem.total, sum);
                before = handed_out();
                r = eng_context_new(fresh, &l, &c, &err);
                assert_int_equal(r, 0);
                taken = handed_out() - before;
                sum -= mem.weights;
                /* malloc's own rounding; large blocks are aligned to huge pages, whose padding stays untouched. */
                slack = 24 * 4096 + (mem.kv >= 2u << 20 ? 2u << 20 : 0) + (mem.workspace >= 2u << 20 ? 2u << 20 : 0);
                if (before && (taken < sum || taken > sum + slack))
                        print_error("planned %zu, taken %zu\n", sum, taken);
                assert_true(!before || (taken >= sum && taken <= sum + slack));
                eng_context_free(c);
                /* One byte less is refused, with the counts. */
                memset(&err, 0, sizeof(err));
                assert_int_equal(eng_plan(fresh, &l, 1, &mem, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_model_no_memory);
                assert_int_equal(err.needed, sum);
                assert_int_equal(err.available, 1);
                assert_int_equal(eng_plan(fresh, &l, err.needed, &mem, NULL), 0);
                assert_int_equal(eng_plan(fresh, &l, err.needed - 1, &mem, NULL), -EHEARTH);
                eng_model_close(fresh);
                eng_device_close(d);
                planned++;
        }
        assert_true(planned >= 8);
}

/* What a backend's attention can't go over is refused by name before anything is planned by it. */
static void test_context_of_backend(void **state) {
        struct k_dev *dev = m.device->k;
        const struct k_ops *whole = dev->ops;
        struct k_ops less = *whole;
        struct eng_limits l = { .n_ctx = 100 };
        struct eng_memory mem;
        struct h_error err = { 0 };

        less.name = "small";
        less.max_ctx = 99;
        dev->ops = &less;
        assert_int_equal(eng_plan(m.model, &l, 0, &mem, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_unsupported);
        assert_int_equal(err.needed, 100);
        assert_int_equal(err.available, 99);
        assert_string_equal(err.message, "a context of 100 positions is asked for, attention on the small backend goes over at most 99");
        less.max_ctx = 100;
        assert_int_equal(eng_plan(m.model, &l, 0, &mem, NULL), 0);
        dev->ops = whole;
}

static void test_limits(void **state) {
        struct eng_limits l = { .n_ctx = 1u << 26 };
        struct eng_memory mem;
        struct h_error err = { 0 };
        const struct eng_limits *got;
        struct eng_context *c;

        assert_int_equal(eng_plan(m.model, &l, 0, &mem, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_bad_request);
        l = (struct eng_limits){ 0 };
        c = context(&l);
        got = eng_context_limits(c);
        assert_int_equal(got->n_places, 1);
        assert_int_equal(got->n_ctx, MIN(eng_model_info(m.model)->n_ctx_train, 8192u));
        assert_int_equal(got->n_rows, 513);
        eng_context_free(c);
}

/* The nth allocation fails: a typed error and no leak. */
static void test_no_memory(void **state) {
        for (uint64_t nth = 1;; nth++) {
                struct eng_limits l = { .n_places = 2, .n_ctx = 64, .n_rows = 16 };
                struct eng_context *c = NULL;
                struct h_error err = { 0 };
                int r;

                fault_arm(FAULT_ALLOC, nth);
                r = eng_context_new(m.model, &l, &c, &err);
                fault_arm(FAULT_ALLOC, 0);
                if (r == 0) {
                        assert_true(nth > 3);
                        eng_context_free(c);
                        break;
                }
                assert_int_equal(r, -EHEARTH);
                assert_true(err.code == HEARTH_E_no_memory || err.code == HEARTH_E_model_no_memory);
                assert_null(c);
        }
}

static void test_step_allocates_nothing(void **state) {
        struct eng_limits l = { .n_places = 3, .n_ctx = 300, .n_rows = 64, .n_draft = 3, .n_prefix = 1 };
        struct eng_context *c = context(&l);
        struct eng_sampling sampling = { .temperature = 1, .top_k = 40, .top_p = 0.9f, .repeat_penalty = 1.1f, .n_top = 5 };
        eng_seq s[3] = { new_seq(c), new_seq(c), new_seq(c) }, f;
        uint32_t ids[32], n;
        struct mallinfo2 before, after;

        for (uint32_t i = 0; i < 32; i++)
                ids[i] = token(i);
        for (unsigned round = 0; round < 3; round++) {
                if (round == 1) { /* the first round may start threads and the like */
                        fault_arm(FAULT_ALLOC, UINT64_MAX);
                        before = mallinfo2();
                }
                for (unsigned step = 0; step < 6; step++) {
                        struct eng_item it[3] = {
                                { .seq = s[0], .tokens = ids, .n = 17 + step, .want = ENG_WANT_LOGITS_LAST },
                                { .seq = s[1], .tokens = ids, .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_SAMPLE, .sampling = &sampling },
                                { .seq = s[2], .tokens = ids, .n = 4, .role = ENG_ROLE_DRAFT, .want = ENG_WANT_LOGITS_ALL },
                        };
                        struct eng_result res[3];
                        assert_int_equal(eng_step(c, it, 3, res, NULL), 0);
                        assert_int_equal(eng_seq_trim(c, s[2], eng_seq_len(c, s[2]) - 2, &n), 0);
                }
                assert_int_equal(eng_seq_fork(c, s[0], 70, &f, &n), 0);
                feed(c, f, 5, 3, ENG_ROLE_PROMPT, NULL);
                assert_int_equal(eng_seq_free(c, f), 0);
                assert_int_equal(eng_seq_trim(c, s[0], 0, &n), 0);
        }
        after = mallinfo2();
        assert_int_equal(fault_count(FAULT_ALLOC), 0);
        fault_arm(FAULT_ALLOC, 0);
        assert_int_equal(before.uordblks, after.uordblks);
        assert_int_equal(before.hblkhd, after.hblkhd);
        eng_context_free(c);
}

/* ---- pages ---------------------------------------------------------------------- */

/* Every page is free or held by exactly as many table entries as it counts. */
static void check_pages(const struct eng_context *c) {
        for (uint32_t g = 0; g < c->kv.n_group; g++) {
                const struct kv_group *gr = &c->kv.group[g];
                uint32_t *held = calloc(gr->n_pages, sizeof(*held)), n_free = 0;
                for (uint32_t s = 0; s < c->n_seq; s++)
                        for (uint32_t i = 0; i < gr->stride; i++) {
                                uint32_t p = gr->table[(size_t)s * gr->stride + i];
                                bool in = i >= gr->first[s] && i < gr->end[s];
                                assert_int_equal(p != KV_NONE, in);
                                if (in)
                                        held[p]++;
                        }
                for (uint32_t p = 0; p < gr->n_pages; p++) {
                        assert_int_equal(held[p], gr->ref[p]);
                        n_free += held[p] == 0;
                }
                assert_int_equal(n_free, gr->n_free);
                free(held);
        }
}

/* Forks share, copy when written, and neither side disturbs the other: same bits as alone. */
static void test_fork(void **state) {
        struct eng_limits l = { .n_places = 4, .n_ctx = 256, .n_rows = 200, .n_prefix = 2 };
        uint32_t n_vocab = eng_model_info(m.model)->n_vocab;
        struct eng_context *c = context(&l);
        float *a = malloc(n_vocab * 4), *b = malloc(n_vocab * 4), *want = malloc(n_vocab * 4);
        static const uint32_t at[] = { 1, 40, 63, 64, 65, 100, 128, 150 };

        for (size_t k = 0; k < ELEMENTSOF(at); k++) {
                eng_seq s = new_seq(c), f, alone;
                uint32_t n, used;

                feed(c, s, 0, 150, ENG_ROLE_PROMPT, NULL);
                used = c->kv.group[0].n_free;
                assert_int_equal(eng_seq_fork(c, s, at[k], &f, &n), 0);
                assert_int_equal(c->kv.group[0].n_free, used);
                assert_true(n <= at[k]);
                assert_int_equal(eng_seq_len(c, f), n);
                if (n)
                        assert_memory_equal(eng_seq_tokens(c, f), eng_seq_tokens(c, s), n * 4);
                check_pages(c);
                /* The fork goes another way; the original goes on. */
                feed(c, f, 1000, 20, ENG_ROLE_PROMPT, a);
                check_pages(c);
                feed(c, s, 2000, 20, ENG_ROLE_PROMPT, b);
                check_pages(c);
                alone = new_seq(c);
                if (n)
                        feed(c, alone, 0, n, ENG_ROLE_PROMPT, NULL);
                feed(c, alone, 1000, 20, ENG_ROLE_PROMPT, want);
                assert_memory_equal(a, want, n_vocab * 4);
                assert_int_equal(eng_seq_free(c, alone), 0);
                alone = new_seq(c);
                feed(c, alone, 0, 150, ENG_ROLE_PROMPT, NULL);
                feed(c, alone, 2000, 20, ENG_ROLE_PROMPT, want);
                assert_memory_equal(b, want, n_vocab * 4);
                /* Cut the original inside a shared page and write there: the fork must not see it. */
                assert_int_equal(eng_seq_trim(c, s, at[k] / 2, &n), 0);
                feed(c, s, 3000, 30, ENG_ROLE_PROMPT, NULL);
                check_pages(c);
                feed(c, f, 1100, 1, ENG_ROLE_GENERATED, a);
                assert_int_equal(eng_seq_free(c, alone), 0);
                alone = new_seq(c);
                n = eng_seq_len(c, f) - 21;
                if (n)
                        feed(c, alone, 0, n, ENG_ROLE_PROMPT, NULL);
                feed(c, alone, 1000, 20, ENG_ROLE_PROMPT, NULL);
                feed(c, alone, 1100, 1, ENG_ROLE_GENERATED, want);
                assert_memory_equal(a, want, n_vocab * 4);
                assert_int_equal(eng_seq_free(c, s), 0);
                assert_int_equal(eng_seq_free(c, f), 0);
                assert_int_equal(eng_seq_free(c, alone), 0);
                check_pages(c);
                assert_int_equal(c->kv.group[0].n_free, c->kv.group[0].n_pages);
        }
        free(a);
        free(b);
        free(want);
        eng_context_free(c);
}

/* Random life of many sequences: pages always add up, and there are always enough. */
static void test_pages_add_up(void **state) {
        struct eng_limits l = { .n_places = 5, .n_ctx = 250, .n_rows = 40, .n_draft = 2, .n_prefix = 3 };
        struct eng_context *c = context(&l);
        uint64_t rng = 12345;
        eng_seq s[8];
        bool live[8] = { 0 };

        for (unsigned step = 0; step < 400; step++) {
                uint32_t i = (uint32_t)((rng = rng * 6364136223846793005u + 1442695040888963407u) >> 33) % 8, n;
                uint32_t what = (uint32_t)(rng >> 40) % 8, amount = 1 + (uint32_t)(rng >> 45) % 39;

                if (!live[i]) {
                        live[i] = eng_seq_new(c, &s[i]) == 0;
                } else if (what == 0) {
                        assert_int_equal(eng_seq_free(c, s[i]), 0);
                        live[i] = false;
                } else if (what == 1) {
                        assert_int_equal(eng_seq_trim(c, s[i], eng_seq_len(c, s[i]) * amount / 40, &n), 0);
                } else if (what == 2) {
                        uint32_t k = (i + 1) % 8;
                        if (!live[k])
                                live[k] = eng_seq_fork(c, s[i], eng_seq_len(c, s[i]) * amount / 39, &s[k], &n) == 0;
                } else if (eng_seq_len(c, s[i]) + amount <= 250) {
                        feed(c, s[i], step, what == 3 ? 1 : amount, what == 3 ? ENG_ROLE_GENERATED : ENG_ROLE_PROMPT, NULL);
                }
                check_pages(c);
        }
        eng_context_free(c);
}

/* ---- handles and refusals --------------------------------------------------------- */

static void test_handles(void **state) {
        struct eng_limits l = { .n_places = 2, .n_ctx = 64, .n_rows = 16 };
        struct eng_context *c = context(&l);
        eng_seq a = new_seq(c), b = new_seq(c), x;
        uint32_t n;

        assert_int_equal(eng_seq_new(c, &x), -EBUSY);
        assert_int_equal(eng_seq_fork(c, a, 0, &x, &n), -EBUSY);
        assert_int_equal(eng_seq_free(c, a), 0);
        assert_int_equal(eng_seq_free(c, a), -ESTALE);
        x = new_seq(c);
        assert_int_equal(x.index, a.index);
        assert_int_equal(eng_seq_trim(c, a, 0, &n), -ESTALE);
        assert_int_equal(eng_seq_len(c, a), 0);
        assert_null(eng_seq_tokens(c, a));
        assert_int_equal(eng_seq_free(c, b), 0);
        eng_context_free(c);
}

static void refused(struct eng_context *c, const struct eng_item *it, size_t n, int r, enum hearth_code code) {
        struct eng_result res[4];
        struct h_error err = { 0 };
        assert_int_equal(eng_step(c, it, n, res, &err), r);
        if (code)
                assert_int_equal(err.code, code);
}

static void test_refusals(void **state) {
        struct eng_limits l = { .n_places = 2, .n_ctx = 100, .n_rows = 40, .n_outputs = 10, .n_draft = 2 };
        struct eng_context *c = context(&l);
        eng_seq a = new_seq(c), b = new_seq(c), old;
        uint32_t ids[128] = { 0 };
        struct eng_sampling sampling = { .n_top = 21 };
        struct eng_bias bias = { .token = eng_model_info(m.model)->n_vocab };
        struct eng_item it[3] = { { .seq = a, .tokens = ids, .n = 5 }, { .seq = b, .tokens = ids, .n = 5 } }, one;

        feed(c, a, 0, 30, ENG_ROLE_PROMPT, NULL);
        one = it[0];
        refused(c, it, 0, -EINVAL, HEARTH_E_bad_request);
        it[1].seq = a;
        refused(c, it, 2, -EINVAL, HEARTH_E_bad_request);
        it[1].seq = b;
        it[1].n = 36;
        refused(c, it, 2, -E2BIG, HEARTH_E_bad_request);
        one.n = 0;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        one.n = 41;
        refused(c, &one, 1, -E2BIG, HEARTH_E_bad_request);
        one.n = 11;
        one.want = ENG_WANT_LOGITS_ALL;
        refused(c, &one, 1, -E2BIG, HEARTH_E_bad_request);
        one.n = 4;
        one.role = ENG_ROLE_DRAFT;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        one = it[0];
        one.want = ENG_WANT_SAMPLE;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        one.sampling = &sampling;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        sampling = (struct eng_sampling){ .bias = &bias, .n_bias = 1 };
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        one.want = ENG_WANT_EMBEDDING;
        refused(c, &one, 1, -EINVAL, HEARTH_E_unsupported);
        one.want = 0;
        ids[3] = eng_model_info(m.model)->n_vocab;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        ids[3] = 0;
        old = b;
        assert_int_equal(eng_seq_free(c, b), 0);
        one.seq = old;
        refused(c, &one, 1, -EINVAL, HEARTH_E_bad_request);
        /* Past the context: the counts are in the error. */
        feed(c, a, 0, 40, ENG_ROLE_PROMPT, NULL);
        feed(c, a, 0, 28, ENG_ROLE_PROMPT, NULL);
        one.seq = a;
        one.n = 3;
        refused(c, &one, 1, -E2BIG, HEARTH_E_prompt_too_long);
        /* No pages: a positive answer, and nothing has changed. */
        assert_int_equal(eng_seq_len(c, a), 98);
        b = new_seq(c);
        one.seq = b;
        {
                uint32_t n_free = c->kv.group[0].n_free;
                c->kv.group[0].n_free = 0;
                refused(c, &one, 1, ENG_NO_PAGES, HEARTH_OK);
                c->kv.group[0].n_free = n_free;
        }
        assert_int_equal(eng_seq_len(c, b), 0);
        check_pages(c);
        feed(c, b, 0, 5, ENG_ROLE_PROMPT, NULL);
        eng_context_free(c);
}

/* ---- windows ------------------------------------------------------------------------ */

/* A long text in few pages, and the same bits as with all pages kept. */
static void test_window_pages(void **state) {
        struct eng_limits l = { .n_places = 1, .n_ctx = 0, .n_rows = 32 };
        struct eng_context *c = context(&l);
        uint32_t g = 0, n_ctx = MIN(eng_context_limits(c)->n_ctx, 500u), most = 0;
        eng_seq s = new_seq(c);

        while (g < c->kv.n_group && c->kv.group[g].window == 0)
                g++;
        assert_true(g < c->kv.n_group);
        for (uint32_t at = 0; at + 32 <= n_ctx; at += 32) {
                feed(c, s, at, 32, ENG_ROLE_PROMPT, NULL);
                check_pages(c);
                most = MAX(most, c->kv.group[g].n_pages - c->kv.group[g].n_free);
        }
        assert_true(most * KV_PAGE <= c->kv.group[g].window + 3 * KV_PAGE);
        /* What is planned for a window doesn't grow with the context. */
        assert_int_equal(kv_pages(1024, 131072, 1, 512), kv_pages(1024, 8192, 1, 512));
        assert_true(kv_pages(1024, 131072, 1, 512) * KV_PAGE <= 1024 + 512 + 4 * KV_PAGE);
        assert_int_equal(kv_pages(0, 131072, 1, 512) * KV_PAGE, 131072);
        /* Not far enough back any more: nothing is usable, and it says so. */
        {
                uint32_t n = 1;
                assert_int_equal(eng_seq_trim(c, s, c->kv.group[g].first[s.index] * KV_PAGE / 2 + 1, &n), 0);
                assert_int_equal(n, 0);
                assert_int_equal(eng_seq_len(c, s), 0);
                check_pages(c);
        }
        eng_context_free(c);
}

/* ---- embeddings ----------------------------------------------------------------------- */

/* The plain model with one more key, as a file in memory. */
static int pooled_file(uint32_t pooling) {
        int in = open(PLAIN, O_RDONLY | O_CLOEXEC), out = memfd_create("pooled", MFD_CLOEXEC);
        struct buf b = { 0 };
        size_t n = (size_t)lseek(in, 0, SEEK_END), n_data;
        char *p = malloc(n);
        struct gguf *g = NULL;

        assert_int_equal(pread(in, p, n, 0), (ssize_t)n);
        assert_int_equal(gguf_parse(p, n, n, &g, NULL), 0);
        put_header(&b, 3, g->n_tensors, g->n_kv + 1);
        put(&b, p + g->kv_offset, g->kv_end - g->kv_offset);
        kv_u32(&b, "llama.pooling_type", pooling);
        n_data = n - g->data_offset;
        /* The tensors' rows follow the keys and are relative to the data. */
        for (size_t i = 0; i < g->n_tensors; i++) {
                const struct gguf_tensor *t = &g->tensors[i];
                char name[128] = { 0 };
                memcpy(name, t->name.p, t->name.n);
                tensor_info(&b, name, t->n_dims, t->dim, k_type_gguf(t->type), t->offset - g->data_offset);
        }
        pad(&b, g->alignment);
        put(&b, p + g->data_offset, n_data);
        assert_int_equal(pwrite(out, b.data, b.len, 0), (ssize_t)b.len);
        gguf_free(g);
        free(p);
        buf_free(&b);
        close(in);
        return out;
}

/* Embeds token(0..n) in chunks; false if the step was refused. */
static bool embed(struct eng_context *c, uint32_t n, uint32_t chunk, float *ret) {
        struct eng_result res = { 0 };
        uint32_t ids[64];
        eng_seq s = new_seq(c);
        int r = 0;

        for (uint32_t i = 0; i < n; i++)
                ids[i] = token(i);
        for (uint32_t at = 0; r == 0 && at < n; at += chunk) {
                struct eng_item it = { .seq = s, .tokens = ids + at, .n = MIN(chunk, n - at), .want = ENG_WANT_EMBEDDING };
                r = eng_step(c, &it, 1, &res, NULL);
        }
        if (r == 0)
                memcpy(ret, res.embedding, eng_model_info(m.model)->n_embd * sizeof(float));
        eng_seq_free(c, s);
        return r == 0;
}

static void test_pooling(void **state) {
        static const uint32_t kinds[] = { 3, 1, 2 }; /* last, mean, cls */
        struct eng_limits l = { .n_places = 1, .n_ctx = 64, .n_rows = 64 };
        enum { N = 21 };
        uint32_t n_embd = eng_model_info(m.model)->n_embd;
        float *last = malloc(N * n_embd * 4), *a = malloc(n_embd * 4), *b = malloc(n_embd * 4);

        for (size_t k = 0; k < ELEMENTSOF(kinds); k++) {
                int fd = pooled_file(kinds[k]);
                char path[64];
                struct eng_context *c;

                close_model(&m);
                snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
                assert_int_equal(open_named(NULL, path), 0);
                assert_true(eng_model_info(m.model)->can_embed && eng_model_info(m.model)->can_generate);
                c = context(&l);
                assert_true(embed(c, N, N, a));
                if (kinds[k] == 3) {
                        for (uint32_t i = 0; i < N; i++)
                                assert_true(embed(c, i + 1, 64, last + i * n_embd));
                        assert_memory_equal(a, last + (N - 1) * n_embd, n_embd * 4);
                }
                if (kinds[k] == 1)
                        for (uint32_t j = 0; j < n_embd; j++) {
                                double sum = 0;
                                for (uint32_t i = 0; i < N; i++)
                                        sum += (double)last[i * n_embd + j];
                                assert_true(a[j] == (float)(sum / N));
                        }
                if (kinds[k] == 2) {
                        assert_memory_equal(a, last, n_embd * 4);
                        assert_false(embed(c, N, 5, b)); /* the first token is of an earlier step */
                } else {
                        assert_true(embed(c, N, 5, b));
                        assert_memory_equal(a, b, n_embd * 4);
                }
                eng_context_free(c);
                close(fd);
        }
        free(last);
        free(a);
        free(b);
}

int main(void) {
        const struct CMUnitTest plain[] = {
                cmocka_unit_test(test_plan), cmocka_unit_test(test_context_of_backend), cmocka_unit_test(test_limits), cmocka_unit_test(test_no_memory),
                cmocka_unit_test(test_step_allocates_nothing), cmocka_unit_test(test_fork),
                cmocka_unit_test(test_pages_add_up), cmocka_unit_test(test_handles), cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_pooling),
        };
        const struct CMUnitTest windows[] = {
                cmocka_unit_test(test_plan), cmocka_unit_test(test_step_allocates_nothing), cmocka_unit_test(test_fork),
                cmocka_unit_test(test_pages_add_up), cmocka_unit_test(test_window_pages),
        };
        return cmocka_run_group_tests_name("plain", plain, open_plain, close_it) +
               cmocka_run_group_tests_name("windows", windows, open_windows, close_it);
}
