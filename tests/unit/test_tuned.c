/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logits bit for bit before and after a device was told to launch its products
 * another way (kernels/tune.h): each way it has, for every type and shape of the
 * models, one sequence and five, prompts and generated tokens.
 *
 *   test_tuned [--cuda] DIR...   every model in DIR/models
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/device.h"
#include "tests/unit/open_model.h"

#define PLACES 5u
#define PROMPT 12u
#define STEPS 4u

/* Within a factor of two of these lies every matrix of the small models. */
static const uint32_t rows[] = { 96, 384, 1536 }, cols[] = { 96, 384 }, batches[] = { 1, 4, 8 };
enum { KEYS = ELEMENTSOF(rows) * ELEMENTSOF(cols) * ELEMENTSOF(batches) };

static unsigned told;

static int use(struct k_dev *k, uint32_t variant) {
        struct k_tune_choice *c = h_new0(struct k_tune_choice, K_TUNE_MAX);
        const char *const *names;
        uint32_t n = 0;
        int r;

        if (!c)
                return -ENOMEM;
        for (unsigned t = 0; t < _K_TYPE_MAX; t++)
                for (size_t i = 0; i < KEYS * _K_TUNE_FAMILY_MAX; i++) {
                        struct k_tune_key key = { (enum k_tune_family)(i / KEYS), (enum k_type)t, rows[i % 3], cols[i / 3 % 2], batches[i % KEYS / 6] };
                        if (variant < k->ops->variants(k, &key, &names))
                                c[n++] = (struct k_tune_choice){ key, variant };
                }
        r = k->ops->tune(k, c, n);
        told += variant ? n : 0;
        free(c);
        return r;
}

/* All logits of a prompt and STEPS tokens of each of n sequences, one behind the other. */
static int run(struct opened *m, uint32_t n, float *out) {
        const struct eng_limits l = { .n_places = PLACES, .n_ctx = 64, .n_rows = PLACES * PROMPT, .n_outputs = PLACES * PROMPT };
        uint32_t n_vocab = eng_model_info(m->model)->n_vocab, ids[PROMPT];
        struct eng_item items[PLACES] = {};
        struct eng_result res[PLACES];
        struct eng_context *c = NULL;
        struct h_error err = {};
        int r = eng_context_new(m->model, &l, &c, &err);

        for (uint32_t i = 0; i < PROMPT; i++)
                ids[i] = (i * 37 + 11) % n_vocab;
        for (uint32_t i = 0; r == 0 && i < n; i++) {
                items[i] = (struct eng_item){ .tokens = ids, .n = PROMPT - i, .role = ENG_ROLE_PROMPT, .want = ENG_WANT_LOGITS_ALL };
                r = eng_seq_new(c, &items[i].seq);
        }
        for (uint32_t s = 0; r == 0 && s <= STEPS; s++) {
                r = eng_step(c, items, n, res, &err);
                for (uint32_t i = 0; r == 0 && i < n; i++) {
                        memcpy(out, res[i].logits, (size_t)res[i].n_logits * n_vocab * sizeof(float));
                        out += (size_t)res[i].n_logits * n_vocab;
                        items[i].tokens = &ids[(s + i) % PROMPT];
                        items[i].n = 1;
                        items[i].role = ENG_ROLE_GENERATED;
                }
        }
        if (r < 0)
                printf("FAIL a step: %s\n", err.message);
        eng_context_free(c);
        return r;
}

static int one(const char *path, enum eng_backend backend) {
        const struct eng_device_options o = { .backend = backend, .threads = 2 };
        float *was = NULL, *is = NULL;
        struct opened m;
        size_t bytes;
        int r = open_model(path, &o, &m);

        if (r < 0)
                return r;
        if (!eng_model_info(m.model)->can_generate || !m.device->k->ops->tune) {
                close_model(&m);
                return 0;
        }
        bytes = (size_t)PLACES * (PROMPT + STEPS) * eng_model_info(m.model)->n_vocab * sizeof(float);
        was = h_malloc(bytes);
        is = h_malloc(bytes);
        for (uint32_t n = 1; was && is && r == 0 && n <= PLACES; n += 4) {
                memset(was, 0, bytes);
                r = use(m.device->k, 0);
                r = r ? r : run(&m, n, was);
                for (uint32_t v = 1; r == 0 && v < K_TUNE_VARIANTS; v++) {
                        memset(is, 0, bytes);
                        r = use(m.device->k, v);
                        r = r ? r : run(&m, n, is);
                        if (r == 0 && memcmp(was, is, bytes) != 0) {
                                printf("FAIL %s: %u sequences: other bits with variant %u\n", path, n, v);
                                r = -EBADMSG;
                        }
                }
        }
        free(was);
        free(is);
        close_model(&m);
        return was && is ? r : -ENOMEM;
}

int main(int argc, char **argv) {
        enum eng_backend backend = ENG_CPU;
        unsigned n = 0, failed = 0;

        for (int i = 1; i < argc; i++) {
                char path[512];
                struct dirent *e;
                DIR *d;

                if (strcmp(argv[i], "--cuda") == 0) {
                        backend = ENG_CUDA;
                        continue;
                }
                snprintf(path, sizeof(path), "%s/models", argv[i]);
                d = opendir(path);
                while (d && (e = readdir(d))) {
                        if (!strstr(e->d_name, ".gguf"))
                                continue;
                        snprintf(path, sizeof(path), "%s/models/%s", argv[i], e->d_name);
                        failed += one(path, backend) < 0;
                        n++;
                }
                if (d)
                        closedir(d);
        }
        printf("%u models, %u failed, %u choices told\n", n, failed, told);
        return n == 0 ? 77 : failed || told == 0;
}
