/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The card profile: written and read back, every way of being broken refused
 * with its place, stale ones told apart; and a run over the CPU backend, whose
 * figures are for every type and add up. And how that backend is opened by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/calibrate.h"
#include "engine/device.h"

static struct profile sample(void) {
        struct profile p = {
                .key = { "cuda", "Some Card", "00000000-1111-2222-3333-444444444444", "580.1, CUDA 13.0", "abcdef0123" },
                .memory_read = 4.25e12, .upload = 5.5e10, .download = 5e10, .host_read = 4.5e10, .launch_s = 2.5e-6,
                .n_cpu = 2, .cpu = { { 1, 1e10 }, { 16, 1.5e11 } },
                .n_choice = 2, .choice = { { { K_TUNE_LINEAR, K_Q4_0, 4096, 4096, 1 }, "one block", "two, three", 2e-5, 1.5e-5 },
                                           { { K_TUNE_EXPERTS, K_Q4_0, 4096, 4096, 1 }, "plain", "", 3e-5, 3e-5 } },
                .n_rate = 2, .rate = { { K_Q4_0, false, 1, 14336, 4096, 3e12, 1.2e13 }, { K_Q4_0, true, 512, 14336, 4096, 1e11, 4e14 } },
        };
        return p;
}

static void test_round_trip(void **state) {
        struct profile p = sample(), q = { 0 };
        struct h_error err = { 0 };
        struct buf text = { 0 };
        const struct profile_rate *r;

        (void)state;
        assert_int_equal(profile_write(&p, &text), 0);
        assert_true(text.len < PROFILE_MAX_BYTES);
        assert_int_equal(profile_parse(text.data, text.len, "x", &q, &err), 0);
        assert_memory_equal(&p.key, &q.key, sizeof(p.key));
        assert_true(q.memory_read == p.memory_read && q.upload == p.upload && q.download == p.download && q.host_read == p.host_read &&
                    q.launch_s == p.launch_s && !q.quick);
        assert_int_equal(q.n_cpu, 2);
        assert_true(q.cpu[1].threads == 16 && q.cpu[1].bytes_s == 1.5e11);
        assert_int_equal(q.n_rate, 2);
        r = profile_find(&q, K_Q4_0, true, 512);
        assert_non_null(r);
        assert_true(r->flop_s == 4e14 && r->rows == 14336 && r->cols == 4096);
        assert_int_equal(q.n_choice, 2);
        assert_memory_equal(&q.choice[0].key, &p.choice[0].key, sizeof(p.choice[0].key));
        assert_string_equal(q.choice[0].variant, "one block");
        assert_string_equal(q.choice[0].left_out, "two, three");
        assert_true(q.choice[0].plain_s == 2e-5 && q.choice[0].chosen_s == 1.5e-5);
        assert_int_equal(q.choice[1].key.family, K_TUNE_EXPERTS);
        assert_string_equal(q.choice[1].left_out, "");
        assert_null(profile_find(&q, K_Q4_0, true, 1));
        assert_null(profile_find(&q, K_Q8_0, false, 1));
        buf_free(&text);
}

static void refused(const char *text, size_t n, enum hearth_code code, const char *says) {
        struct profile p, was;
        struct h_error err = { 0 };

        memset(&p, 0x5a, sizeof(p));
        was = p;
        assert_int_equal(profile_parse(text, n, "the-file", &p, &err), -EHEARTH);
        assert_int_equal(err.code, code);
        assert_non_null(strstr(err.message, "the-file"));
        if (!strstr(err.message, says))
                fail_msg("\"%s\" is not in \"%s\"", says, err.message);
        assert_memory_equal(&p, &was, sizeof(p)); /* untouched */
}

/* The sample with one piece of text replaced. */
static void refused_with(const char *old, const char *new, enum hearth_code code, const char *says) {
        struct profile p = sample();
        struct buf text = { 0 }, broken = { 0 };
        char *at;

        assert_int_equal(profile_write(&p, &text), 0);
        at = strstr(text.data, old);
        assert_non_null(at);
        assert_int_equal(buf_append(&broken, text.data, (size_t)(at - text.data)), 0);
        assert_int_equal(buf_puts(&broken, new), 0);
        assert_int_equal(buf_puts(&broken, at + strlen(old)), 0);
        refused(broken.data, broken.len, code, says);
        buf_free(&text);
        buf_free(&broken);
}

static void test_broken(void **state) {
        struct profile p = sample(), q;
        struct buf text = { 0 };
        struct h_error err = { 0 };
        char *big = calloc(1, PROFILE_MAX_BYTES + 1);

        (void)state;
        assert_non_null(big);
        refused("", 0, HEARTH_E_bad_request, "line");
        refused("[]", 2, HEARTH_E_bad_request, "no JSON object");
        refused("{}", 2, HEARTH_E_bad_request, "\"version\"");
        refused(big, PROFILE_MAX_BYTES + 1, HEARTH_E_too_large, "at most 524288");
        refused_with("\"version\": 2", "\"version\": 3", HEARTH_E_version, "version 3");
        refused_with("\"version\": 2", "\"version\": \"1\"", HEARTH_E_bad_request, "\"version\"");
        refused_with("\"version\": 2", "\"version\": 1, \"version\": 1", HEARTH_E_bad_request, "duplicate");
        refused_with("\"quick\": false", "\"quick\": 0", HEARTH_E_bad_request, "\"quick\"");
        refused_with("Some Card", "Some\\nCard", HEARTH_E_bad_request, "\"card\"");
        refused_with("\"cuda\"", "\"a backend of a long name\"", HEARTH_E_bad_request, "\"backend\"");
        refused_with("\"uuid\"", "\"guid\"", HEARTH_E_bad_request, "\"uuid\"");
        refused_with("4.25e12", "-1", HEARTH_E_bad_request, "\"memory_read_bytes_per_s\"");
        refused_with("4.25e12", "1e300", HEARTH_E_bad_request, "\"memory_read_bytes_per_s\"");
        refused_with("4.25e12", "true", HEARTH_E_bad_request, "\"memory_read_bytes_per_s\"");
        refused_with("\"Q4_0\"", "\"Q4_9\"", HEARTH_E_bad_request, "in \"products\" \"type\"");
        refused_with("\"generated\"", "\"made\"", HEARTH_E_bad_request, "\"role\"");
        refused_with("\"batch\": 1,", "\"batch\": 0,", HEARTH_E_bad_request, "\"batch\"");
        refused_with("\"threads\": 16", "\"threads\": 1.5", HEARTH_E_bad_request, "in \"host_memory_read\" \"threads\"");
        refused_with("\"choices\"", "\"choice\"", HEARTH_E_bad_request, "\"choices\" must be a list");
        refused_with("\"product\"", "\"sum\"", HEARTH_E_bad_request, "in \"choices\" \"family\"");
        refused_with("\"experts\"", "\"product\"", HEARTH_E_bad_request, "in \"choices\" \"rows\" must be of another product");
        refused_with("one block", "a name of a variant that nobody has", HEARTH_E_bad_request, "in \"choices\" \"variant\"");
        refused_with("\"batch\": 1,\n   \"variant\"", "\"batch\": 3,\n   \"variant\"", HEARTH_E_bad_request, "in \"choices\" \"batch\" must be 1, 4");
        refused_with("\"plain_s\": 2", "\"plain_s\": -2", HEARTH_E_bad_request, "in \"choices\" \"plain_s\"");
        /* cut anywhere it is no profile */
        assert_int_equal(profile_write(&p, &text), 0);
        for (size_t n = 0; n + 2 < text.len; n++)
                assert_int_equal(profile_parse(text.data, n, "x", &q, &err), -EHEARTH);
        buf_free(&text);
        free(big);
}

static void stale(const struct profile *p, const struct profile_key *now, const char *says) {
        struct h_error err = { 0 };

        assert_int_equal(profile_check(p, now, "the-file", &err), -EHEARTH);
        if (!strstr(err.message, says) || !strstr(err.message, "not used"))
                fail_msg("\"%s\" is not in \"%s\"", says, err.message);
}

static void test_stale(void **state) {
        struct profile p = sample();
        struct profile_key now = p.key;
        struct h_error err = { 0 };

        (void)state;
        assert_int_equal(profile_check(&p, &now, "the-file", &err), 0);
        strcpy(now.driver, "590");
        stale(&p, &now, "another driver (\"580.1, CUDA 13.0\", now \"590\")");
        now = p.key;
        strcpy(now.build, "123");
        stale(&p, &now, "another build of hearth-worker");
        now = p.key;
        now.uuid[0] = '9';
        stale(&p, &now, "another device with UUID");
        now = p.key;
        strcpy(now.card, "Some other");
        stale(&p, &now, "another device (");
        p.quick = true;
        stale(&p, &p.key, "--quick");
}

static void count(void *ud, const char *what) {
        (void)what;
        ++*(unsigned *)ud;
}

static void test_cpu(void **state) {
        static const struct eng_device_options o = { .backend = ENG_CPU, .threads = 2 };
        struct profile *p = h_new0(struct profile, 1), *q = h_new0(struct profile, 1);
        unsigned told = 0;
        struct eng_calibrate c = { .quick = true, .progress = count, .ud = &told };
        struct eng_device *d = NULL;
        struct h_error err = { 0 };
        struct profile_key now;
        struct buf text = { 0 };

        (void)state;
        assert_true(p && q);
        assert_int_equal(eng_device_open(&o, &d, &err), 0);
        if (eng_device_calibrate(d, &c, p, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(told, 1 + 2 * (_K_TYPE_MAX - 1)); /* host memory, and products and launches of all types but I32 */
        assert_true(p->quick && p->n_cpu >= 1 && p->memory_read > 0 && p->cpu[0].threads == 1);
        assert_true(p->upload == 0 && p->launch_s == 0);
        assert_int_equal(p->n_rate, 4 * (_K_TYPE_MAX - 1));
        for (uint32_t i = 0; i < p->n_rate; i++) {
                const struct profile_rate *r = &p->rate[i];
                double per_weight = r->bytes_s / (r->flop_s / (2.0 * r->batch));

                assert_true(r->bytes_s > 0 && r->flop_s > 0);
                assert_true(per_weight > 0.15 && per_weight < 4.7); /* bytes: from 1.6 bits to 4 bytes, with a layout's padding */
        }
        assert_int_equal(p->n_choice, 5 * (_K_TYPE_MAX - 1));
        for (uint32_t i = 0; i < p->n_choice; i++) {
                assert_string_equal(p->choice[i].left_out, ""); /* all give the plain one's bits */
                assert_true(p->choice[i].chosen_s > 0 && p->choice[i].chosen_s <= p->choice[i].plain_s);
        }
        assert_non_null(profile_find(p, K_Q4_K, false, 1));
        assert_non_null(profile_find(p, K_Q4_K, false, 8));
        /* the same device knows it again, and only the care it was made with is missing */
        assert_int_equal(eng_device_key(d, &now, &err), 0);
        assert_memory_equal(&now, &p->key, sizeof(now));
        assert_int_equal(profile_write(p, &text), 0);
        assert_int_equal(profile_parse(text.data, text.len, "x", q, &err), 0);
        assert_int_equal(eng_device_use_profile(d, q, "x", &err), -EHEARTH);
        q->quick = false;
        assert_int_equal(eng_device_use_profile(d, q, "x", &err), 0);
        strcpy(q->choice[3].variant, "no such");
        err = (struct h_error){ 0 };
        assert_int_equal(eng_device_use_profile(d, q, "x", &err), -EHEARTH);
        assert_non_null(strstr(err.message, "\"no such\""));
        strcpy(q->choice[3].variant, "plain");
        q->key.build[0] ^= 1;
        assert_int_equal(eng_device_use_profile(d, q, "x", &err), -EHEARTH);
        eng_device_close(d);
        buf_free(&text);
        free(p);
        free(q);
}

/* ---- a device whose products of eight generated rows are a little wrong ---- */

static const struct k_ops *right;

static int wrong_linear(struct k_dev *d, const struct k_batch *b, const struct k_linear_args *a) {
        int r = right->linear(d, b, a);

        for (uint32_t i = 0; r >= 0 && a->n_d == 8 && i < a->out[0].w->rows; i++)
                a->out[0].y[7 * a->out[0].y_stride + i] *= 1.2f;
        return r;
}

static void test_wrong_products(void **state) {
        static const struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        struct eng_calibrate c = { .quick = true };
        struct profile *p = h_new0(struct profile, 1);
        struct eng_device *d = NULL;
        struct h_error err = { 0 };
        struct k_ops ops;

        (void)state;
        assert_int_equal(eng_device_open(&o, &d, &err), 0);
        right = d->k->ops;
        ops = *right;
        ops.linear = wrong_linear;
        d->k->ops = &ops;
        assert_int_equal(eng_device_calibrate(d, &c, p, &err), -EHEARTH);
        if (!strstr(err.message, "products of F32 of 8 rows"))
                fail_msg("%s", err.message);
        assert_int_equal(p->n_rate, 0);
        d->k->ops = right;
        eng_device_close(d);
        free(p);
}

/* ---- a device with two more launches, one of them wrong in the last bit where there are five rows ---- */

static uint32_t asked;
static uint64_t have_more = 1ull << K_Q8_0; /* types that have them */
static struct k_tune_choice told;

static uint32_t some_variants(struct k_dev *d, const struct k_tune_key *key, const char *const **ret) {
        static const char *const names[] = { "plain", "off by a bit", "same" };

        (void)d;
        asked++;
        *ret = names;
        return have_more >> key->type & 1 ? 3 : 1;
}

static int some_tune(struct k_dev *d, const struct k_tune_choice *c, uint32_t n) {
        (void)d;
        told = n == 1 ? *c : (struct k_tune_choice){};
        return 0;
}

static int some_linear(struct k_dev *d, const struct k_batch *b, const struct k_linear_args *a) {
        int r = right->linear(d, b, a);
        uint32_t bits;

        if (r < 0 || told.variant != 1 || a->n_d != 5) /* the fewest of a bucket, whose most are right */
                return r;
        memcpy(&bits, &a->out[0].y[5], sizeof(bits));
        bits ^= 1;
        memcpy(&a->out[0].y[5], &bits, sizeof(bits));
        return 0;
}

static int some_moe(struct k_dev *d, const struct k_batch *b, const struct k_moe_args *a) {
        int r = right->moe(d, b, a);
        uint32_t bits;

        if (r < 0 || told.variant != 1 || a->n_d != 5)
                return r;
        memcpy(&bits, &a->y[5], sizeof(bits));
        bits ^= 1;
        memcpy(&a->y[5], &bits, sizeof(bits));
        return 0;
}

static int wrong_moe(struct k_dev *d, const struct k_batch *b, const struct k_moe_args *a) {
        int r = right->moe(d, b, a);

        for (size_t i = 0; i < 256; i++) /* of the last row */
                a->y[a->y_stride * (a->n - 1) + i] *= 2;
        return r;
}

static int lazy_linear(struct k_dev *d, const struct k_batch *b, const struct k_linear_args *a) {
        return told.variant == 2 ? 0 : right->linear(d, b, a); /* very fast: does nothing */
}

static int wrong_glu(struct k_dev *d, const struct k_batch *b, const struct k_glu_args *a) {
        int r = right->glu(d, b, a);

        for (uint32_t i = 0; i < a->n * a->out->cols; i++)
                a->out->f[i] *= 1.001f;
        return r;
}

static int some_glu(struct k_dev *d, const struct k_batch *b, const struct k_glu_args *a) {
        int r = right->glu(d, b, a);

        if (told.variant == 1 && b->n == 4)
                a->out->f[3] = -a->out->f[3];
        return r;
}
static int (*glu)(struct k_dev *, const struct k_batch *, const struct k_glu_args *); /* or NULL */

static int calibrate_with(int (*linear)(struct k_dev *, const struct k_batch *, const struct k_linear_args *),
                          int (*moe)(struct k_dev *, const struct k_batch *, const struct k_moe_args *), struct profile *p, struct h_error *err) {
        static const struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        struct eng_calibrate c = { .quick = true, .types = have_more | 1ull << K_Q4_K };
        struct eng_device *d = NULL;
        struct k_ops ops;
        int r;

        assert_int_equal(eng_device_open(&o, &d, err), 0);
        right = d->k->ops;
        ops = *right;
        ops.linear = linear;
        ops.moe = moe;
        ops.glu = glu ? glu : right->glu;
        ops.variants = some_variants;
        ops.tune = some_tune;
        d->k->ops = &ops;
        memset(&told, 0xff, sizeof(told));
        told.variant = 0;
        asked = 0;
        r = eng_device_calibrate(d, &c, p, err);
        d->k->ops = right;
        eng_device_close(d);
        return r;
}

static void test_left_out(void **state) {
        struct profile *p = h_new0(struct profile, 1);
        struct h_error err = { 0 };

        (void)state;
        assert_int_equal(calibrate_with(some_linear, some_moe, p, &err), 0);
        assert_true(asked > 0);
        assert_int_equal(told.key.rows, 0); /* nothing stays chosen behind a calibration */
        assert_int_equal(p->n_rate, 2 * 4); /* of the types that were wanted */
        assert_int_equal(p->n_choice, 10);
        for (uint32_t i = 0; i < p->n_choice; i++) {
                assert_int_equal(p->choice[i].key.type, K_Q8_0);
                assert_int_equal(p->choice[i].key.family, i < 5 ? K_TUNE_LINEAR : K_TUNE_EXPERTS);
                assert_string_equal(p->choice[i].left_out, p->choice[i].key.batch == 8 ? "off by a bit" : "");
        }
        assert_int_equal(calibrate_with(lazy_linear, some_moe, p, &err), 0);
        for (uint32_t i = 0; i < 5; i++) {
                assert_string_equal(p->choice[i].left_out, "same");
                assert_true(strcmp(p->choice[i].variant, "same") != 0);
        }
        free(p);
}

/* gate and up are timed with GLU behind them, so what comes of that is compared, too. */
static void test_glu(void **state) {
        struct profile *p = h_new0(struct profile, 1);
        struct h_error err = { 0 };

        (void)state;
        glu = some_glu;
        assert_int_equal(calibrate_with(some_linear, some_moe, p, &err), 0);
        for (uint32_t i = 0; i < 5; i++)
                assert_string_equal(p->choice[i].left_out, p->choice[i].key.batch == 8 || p->choice[i].key.batch == 4 ? "off by a bit" : "");
        memset(p, 0, sizeof(*p));
        glu = wrong_glu;
        assert_int_equal(calibrate_with(some_linear, some_moe, p, &err), -EHEARTH);
        if (!strstr(err.message, "launches of Q8_0 of 1 rows with GLU") || !strstr(err.message, "nothing was kept"))
                fail_msg("%s", err.message);
        assert_int_equal(p->n_choice, 0);
        glu = NULL;
        free(p);
}

static void test_wrong_experts(void **state) {
        struct profile *p = h_new0(struct profile, 1);
        struct h_error err = { 0 };

        (void)state;
        assert_int_equal(calibrate_with(right->linear, wrong_moe, p, &err), -EHEARTH);
        if (!strstr(err.message, "experts of Q8_0 with 1 rows") || !strstr(err.message, "nothing was kept"))
                fail_msg("%s", err.message);
        assert_int_equal(p->n_choice, 0);
        free(p);
}

/* Rounding alone is no error: of each of these a middle value that cancels carries most of some row's result. */
static void test_rounded_experts(void **state) {
        struct profile *p = h_new0(struct profile, 1);
        struct h_error err = { 0 };
        int r;

        (void)state;
        have_more = 1ull << K_MXFP4 | 1ull << K_Q2_K | 1ull << K_Q4_K;
        r = calibrate_with(right->linear, right->moe, p, &err);
        have_more = 1ull << K_Q8_0;
        if (r < 0)
                fail_msg("%s", err.message);
        assert_int_equal(p->n_choice, 3 * 10);
        free(p);
}

/* ---- a profile that is refused takes the choices of the one before it along ---- */

static void test_refused(void **state) {
        static const struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        struct profile good = { .memory_read = 1e10, .n_choice = 1, .choice = { { { K_TUNE_LINEAR, K_Q8_0, 256, 512, 1 }, "same", "", 2e-5, 1e-5 } } };
        struct eng_device *d = NULL;
        struct h_error err = { 0 };
        struct k_ops ops;

        (void)state;
        assert_int_equal(eng_device_open(&o, &d, &err), 0);
        assert_int_equal(eng_device_key(d, &good.key, &err), 0);
        right = d->k->ops;
        ops = *right;
        ops.variants = some_variants;
        ops.tune = some_tune;
        d->k->ops = &ops;
        for (int i = 0; i < 5; i++) {
                struct profile bad = good;

                if (eng_device_use_profile(d, &good, "good", &err) < 0)
                        fail_msg("%s", err.message);
                assert_true(told.variant == 2 && told.key.rows == 256 && d->profile);
                if (i == 0)
                        bad.quick = true;
                else if (i == 1)
                        bad.key.build[0] ^= 1;
                else if (i == 2)
                        strcpy(bad.key.driver, "another");
                else if (i == 3)
                        strcpy(bad.choice[0].variant, "no such");
                else
                        fault_arm(FAULT_ALLOC, 1);
                assert_int_equal(eng_device_use_profile(d, &bad, "bad", &err), -EHEARTH);
                fault_arm(FAULT_ALLOC, 0);
                assert_int_equal(told.key.rows, 0);
                assert_null(d->profile);
        }
        bool one_more = eng_device_use_profile(d, &good, "good", &err) == 0 && told.variant == 2;
        good.n_choice = 0; /* one without choices: neither those of the one before */
        assert_true(one_more && eng_device_use_profile(d, &good, "good", &err) == 0 && told.key.rows == 0 && d->profile);
        d->k->ops = right;
        eng_device_close(d);
}

/* A variant that isn't there is never another one: the error says what it needs, and what to ask for. */
static void test_variants(void **state) {
        static const char *const names[] = { "scalar", "portable", "avx2", "avx512", "amx", "nonsense", "" };

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                struct eng_device_options o = { .backend = ENG_CPU, .threads = 1, .variant = names[i] };
                struct eng_device *d = NULL;
                struct h_error err = { 0 };

                if (eng_device_open(&o, &d, &err) == 0) {
                        assert_true(i < 5);
                        assert_non_null(strstr(eng_device_describe(d), i < 2 ? "scalar" : names[i]));
                        eng_device_close(d);
                } else if (i < 5) {
                        assert_true(i >= 2);
                        assert_int_equal(err.code, HEARTH_E_no_device);
                        assert_non_null(strstr(err.message, names[i]));
                        assert_non_null(strstr(err.message, i == 2 ? "(AVX2" : "(AVX-512"));
                        assert_non_null(strstr(err.message, "\"auto\" takes"));
                } else {
                        assert_int_equal(err.code, HEARTH_E_bad_request);
                        assert_non_null(strstr(err.message, "known: auto"));
                }
        }
}

/* Memory that runs out anywhere is an error, and nothing is kept of it. */
static void test_no_memory(void **state) {
        struct profile p = sample();
        struct h_error err = { 0 };
        static const struct eng_device_options o = { .backend = ENG_CPU, .threads = 1 };
        struct eng_calibrate c = { .quick = true };
        struct profile *ret = h_new0(struct profile, 1);
        struct eng_device *d = NULL;
        int r;

        (void)state;
        assert_int_equal(eng_device_open(&o, &d, &err), 0);
        for (uint64_t n = 1; n < 12; n++) {
                err = (struct h_error){ 0 };
                fault_arm(FAULT_ALLOC, n);
                r = eng_device_calibrate(d, &c, ret, &err);
                fault_arm(FAULT_ALLOC, 0);
                assert_true(r == -EHEARTH && err.code == HEARTH_E_no_memory);
                assert_int_equal(ret->n_rate, 0);
        }
        assert_int_equal(eng_device_use_profile(d, &p, "x", &err), -EHEARTH);
        eng_device_close(d);
        free(ret);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip), cmocka_unit_test(test_broken), cmocka_unit_test(test_stale), cmocka_unit_test(test_cpu),
                cmocka_unit_test(test_no_memory), cmocka_unit_test(test_variants), cmocka_unit_test(test_wrong_products),
                cmocka_unit_test(test_left_out), cmocka_unit_test(test_glu),
                cmocka_unit_test(test_wrong_experts), cmocka_unit_test(test_rounded_experts), cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
