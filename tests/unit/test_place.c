/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models that lie in two memories: the planner's divisions add up, stay within
 * the room they are given and give more to the device the more there is; and a
 * divided model computes what the whole one computes, here with two CPU devices
 * in the roles of the device and its host. And models that a backend's operations don't go up to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/context.h"
#include "engine/place.h"
#include "tests/unit/open_model.h"

#define DENSE TEST_DATA "/oracle/models/llama-q4_k.gguf"
#define EXPERTS TEST_DATA "/oracle/models/gpt-oss-mxfp4.gguf"

static const struct eng_device_options cpu = { .backend = ENG_CPU, .threads = 2 };

static bool is_expert(const struct image_row *r) {
        return strstr(r->name, "_exps.") != NULL;
}

/* What every plan must hold. */
static void check_plan(const struct eng_image *im, const struct place *p, const struct place_wish *w) {
        uint64_t end = 0, host = 0, n = im->header->n_tensors;

        assert_true(p->device_bytes + p->ring_bytes <= w->room);
        for (uint32_t i = 0; i < n; i++) {
                const struct image_row *r = &im->rows[i];

                if (p->of[i] == K_PLACE_DEVICE) {
                        assert_true(p->at[i] % IMAGE_ALIGN == 0 && p->at[i] + r->bytes <= p->device_bytes);
                        end = MAX(end, p->at[i] + r->bytes);
                        continue;
                }
                assert_true(r->type != K_F32 && r->n_dims >= 2); /* vectors are the device's */
                assert_true(p->of[i] == w->rest || (p->of[i] == K_PLACE_READ && strcmp(r->name, "token_embd.weight") == 0));
                assert_int_equal(p->at[i], r->offset);
                host += r->bytes;
        }
        assert_int_equal(host, p->host_bytes);
        assert_true(end <= p->device_bytes);
        assert_int_equal(p->whole, host == 0);
        /* Of the device's tensors no two overlap. */
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = i + 1; k < n; k++)
                        if (p->of[i] == K_PLACE_DEVICE && p->of[k] == K_PLACE_DEVICE)
                                assert_true(p->at[i] + im->rows[i].bytes <= p->at[k] || p->at[k] + im->rows[k].bytes <= p->at[i]);
}

static void plans_of(const char *path) {
        struct place_wish w = { .room = UINT64_MAX, .gpu_layers = -1, .rest = K_PLACE_HOST };
        struct h_error err = { 0 };
        struct opened m;
        struct place p;
        uint64_t all, last_device = 0;
        uint32_t n_layer, last_layers = 0, refused = 0, divided = 0;
        bool experts;

        assert_int_equal(open_model(path, &cpu, &m), 0);
        assert_int_equal(place_plan(m.image, &w, &p, &err), 0);
        check_plan(m.image, &p, &w);
        assert_true(p.whole && p.ring_bytes == 0);
        n_layer = p.n_layer;
        all = p.device_bytes;
        experts = eng_model_info(m.model)->n_layer && image_find(m.image, "blk.0.ffn_gate_exps.weight");
        assert_int_equal(n_layer, eng_model_info(m.model)->n_layer);
        assert_int_equal(p.n_device, n_layer);
        place_free(&p);

        /* More and more room: never a worse division. */
        for (uint64_t room = all / 32; room < 2 * all; room += all / 32) {
                int r;

                w.room = room;
                err = (struct h_error){ 0 };
                r = place_plan(m.image, &w, &p, &err);
                if (r < 0) {
                        assert_int_equal(err.code, HEARTH_E_model_no_memory);
                        assert_true(err.needed > err.available && err.available == room);
                        assert_int_equal(last_device, 0);
                        refused++;
                        continue;
                }
                check_plan(m.image, &p, &w);
                assert_true(p.n_device >= last_layers);
                last_layers = p.n_device;
                last_device = p.device_bytes;
                divided += !p.whole;
                place_free(&p);
        }
        assert_true(refused > 0 && divided > 0 && last_layers == n_layer);

        w.room = UINT64_MAX;
        for (int32_t k = 0; k <= (int32_t)n_layer; k++) {
                w.gpu_layers = k;
                assert_int_equal(place_plan(m.image, &w, &p, &err), 0);
                check_plan(m.image, &p, &w);
                assert_int_equal(p.n_device, k);
                assert_true(p.step_device > 0 && (p.step_host > 0) == (k < (int32_t)n_layer));
                for (uint32_t i = 0; i < m.image->header->n_tensors; i++)
                        if (experts && p.of[i] == K_PLACE_HOST)
                                assert_true(is_expert(&m.image->rows[i]));
                place_free(&p);
        }
        w.gpu_layers = (int32_t)n_layer - 1;
        w.room = all / 2;
        assert_int_equal(place_plan(m.image, &w, &p, &err), -EHEARTH);
        assert_non_null(strstr(err.message, "layers"));
        close_model(&m);
}

static void test_plans(void **state) {
        (void)state;
        plans_of(DENSE);
        plans_of(EXPERTS);
}

/* Logits of a prompt in chunks, then of generated tokens, one sequence and then two side by side. */
static float *logits_of(struct eng_model *m, size_t *ret_n) {
        struct eng_limits l = { .n_places = 2, .n_ctx = 128, .n_rows = 24, .n_outputs = 2 };
        uint32_t V = eng_model_info(m)->n_vocab, ids[20];
        float *out = h_new0(float, (size_t)16 * V);
        struct eng_context *c = NULL;
        struct h_error err = { 0 };
        struct eng_result res[2];
        size_t n = 0;
        eng_seq s[2];

        assert_non_null(out);
        for (uint32_t i = 0; i < ELEMENTSOF(ids); i++)
                ids[i] = (i * 37 + 11) % V;
        assert_int_equal(eng_context_new(m, &l, &c, &err), 0);
        for (int k = 0; k < 2; k++) {
                struct eng_item it = { .tokens = ids + k, .n = 17, .role = ENG_ROLE_PROMPT, .want = ENG_WANT_LOGITS_LAST };

                assert_int_equal(eng_seq_new(c, &s[k]), 0);
                it.seq = s[k];
                assert_int_equal(eng_step(c, &it, 1, res, &err), 0);
                memcpy(out + n++ * V, res[0].logits, V * sizeof(float));
        }
        for (int step = 0; step < 4; step++) {
                struct eng_item it[2];
                size_t items = step < 2 ? 1 : 2;

                for (size_t k = 0; k < items; k++)
                        it[k] = (struct eng_item){ .seq = s[k], .tokens = ids + step, .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST };
                assert_int_equal(eng_step(c, it, items, res, &err), 0);
                for (size_t k = 0; k < items; k++)
                        memcpy(out + n++ * V, res[k].logits, V * sizeof(float));
        }
        eng_context_free(c);
        *ret_n = n * V;
        return out;
}

/* On one backend a division changes no bit: nothing but the way to the products differs. */
static void divided(const char *path) {
        static const enum eng_rest rests[] = { ENG_REST_HOST, ENG_REST_DEVICE };
        struct h_error err = { 0 };
        struct opened m;
        size_t n, n2;
        float *want;

        assert_int_equal(open_model(path, &cpu, &m), 0);
        want = logits_of(m.model, &n);
        close_model(&m);
        for (size_t i = 0; i < ELEMENTSOF(rests); i++)
                for (int32_t k = 0; k < 3; k++) {
                        struct eng_load load = { .gpu_layers = k, .rest = rests[i] };
                        struct eng_model *again = NULL;
                        struct eng_placement pl;
                        float *got;

                        assert_int_equal(open_model(path, &cpu, &m), 0);
                        assert_int_equal(eng_model_load(m.device, m.image, &load, &again, &err), 0);
                        eng_model_placement(again, &pl);
                        assert_int_equal(pl.n_device, MIN((uint32_t)k, pl.n_layer));
                        assert_int_equal(pl.host_computes, rests[i] == ENG_REST_HOST && pl.n_device < pl.n_layer);
                        assert_int_equal(strncmp(eng_device_host(m.device), "cpu, ", 5) == 0, pl.host_computes);
                        got = logits_of(again, &n2);
                        assert_int_equal(n, n2);
                        assert_memory_equal(want, got, n * sizeof(float));
                        free(got);
                        eng_model_close(again);
                        close_model(&m);
                }
        free(want);
}

static void test_divided(void **state) {
        (void)state;
        divided(DENSE);
        divided(EXPERTS);
}

/* What a backend's operations don't go up to is refused before a step of it would end the worker. */
static void test_most_of_backend(void **state) {
        struct h_error err = { 0 };
        struct k_ops less;
        struct eng_ffn *f;
        struct opened m;
        uint32_t groups;

        (void)state;
        assert_int_equal(open_model(EXPERTS, &cpu, &m), 0);
        less = *m.device->k->ops;
        f = &m.model->desc->layer[1].ffn;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), 0);
        less.name = "small";
        less.most.experts = f->n_expert - 1;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_unsupported);
        assert_string_equal(err.message, "layer 0 has 6 experts, the small backend goes up to 5");
        less.most.experts++;
        err = (struct h_error){ 0 };
        less.most.experts_used = f->n_used - 1;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_string_equal(err.message, "layer 0 has 2 experts for a token, the small backend goes up to 1");
        less.most.experts_used++;
        err = (struct h_error){ 0 };
        groups = f->n_group;
        f->n_group = less.most.expert_groups + 1;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_string_equal(err.message, "layer 1 has 257 groups of experts, the small backend goes up to 256");
        f->n_group--;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), 0);
        f->n_group = groups;
        less.most.head = 63;
        err = (struct h_error){ 0 };
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_string_equal(err.message, "layer 0 has 64 columns of a head, the small backend goes up to 63");
        less.most.head = 64;
        less.most.rope = 63;
        err = (struct h_error){ 0 };
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_string_equal(err.message, "layer 0 has 64 dimensions for rope, the small backend goes up to 63");
        less.most.rope = 64;
        less.most.windows = 1;
        err = (struct h_error){ 0 };
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), -EHEARTH);
        assert_string_equal(err.message, "the layers have 2 different windows, the small backend goes up to 1");
        less.most.windows = 2;
        assert_int_equal(model_check_backend(m.model->desc, &less, &err), 0);
        close_model(&m);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_plans), cmocka_unit_test(test_divided), cmocka_unit_test(test_most_of_backend) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
