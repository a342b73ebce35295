/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two roles of tokens (kernels/kernels.h): a prompt's logits have the same
 * bits however it is cut into steps; a generated token's have the same bits
 * alone, in a draft, beside other sequences and beside a prompt; a shared
 * prefix gives the bits of recomputing it.
 *
 *   test_roles DIR...   every model in DIR/models, three KV types
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/open_model.h"

#define PROMPT 45u /* crosses what a backend may treat as a block, and no multiple of one */
#define OTHERS 15u

static const char *const kv_names[] = { "f16", "f32", "bf16", "q8_0", "q4_0" };

struct run {
        const char *name;
        enum eng_kv_type kv;
        struct opened m;
        struct eng_context *c;
        uint32_t n_vocab;
        unsigned failed, runs;
};

static void fail(struct run *x, const char *what, uint32_t detail) {
        if (x->failed++ < 4)
                printf("FAIL %s, KV %s: %s (%u)\n", x->name, kv_names[x->kv], what, detail);
}

static uint32_t token(const struct run *x, uint32_t seed, uint32_t i) {
        return (seed * 7919 + i * 37 + i / 5 * 3 + 11) % x->n_vocab;
}

static void die(const char *what, const struct h_error *err, int r) {
        printf("%s: %d: %s\n", what, r, err->message);
        exit(1);
}

static void step(struct run *x, const struct eng_item *it, size_t n, struct eng_result *res) {
        struct h_error err = { 0 };
        int r = eng_step(x->c, it, n, res, &err);
        if (r)
                die(x->name, &err, r);
}

static eng_seq new_seq(struct run *x) {
        struct h_error none = { 0 };
        eng_seq s = { 0 };
        if (eng_seq_new(x->c, &s) < 0)
                die("no place", &none, 0);
        return s;
}

/* Feeds n tokens of text 'seed' from position 'at' in chunks; logits of every position to out if not NULL. */
static void feed(struct run *x, eng_seq s, uint32_t seed, uint32_t at, uint32_t n, uint32_t chunk, enum eng_role role,
                 float *out) {
        uint32_t ids[512];

        while (n > 0) {
                uint32_t k = n < chunk ? n : chunk;
                struct eng_item it = { .seq = s, .tokens = ids, .n = k, .role = role,
                                       .want = out ? ENG_WANT_LOGITS_ALL : ENG_WANT_NONE };
                struct eng_result res;
                for (uint32_t i = 0; i < k; i++)
                        ids[i] = token(x, seed, at + i);
                step(x, &it, 1, &res);
                if (out) {
                        memcpy(out, res.logits, (size_t)k * x->n_vocab * sizeof(float));
                        out += (size_t)k * x->n_vocab;
                }
                at += k;
                n -= k;
        }
}

static bool same(const struct run *x, const float *a, const float *b, uint32_t rows) {
        return memcmp(a, b, (size_t)rows * x->n_vocab * sizeof(float)) == 0;
}

/* ---- the checks ------------------------------------------------------------------- */

static void check_chunks(struct run *x, float *whole, float *got) {
        static const uint32_t chunks[] = { 1, 3, 7, 16 };
        eng_seq s = new_seq(x);

        feed(x, s, 1, 0, PROMPT, PROMPT, ENG_ROLE_PROMPT, whole);
        eng_seq_free(x->c, s);
        for (size_t i = 0; i < ELEMENTSOF(chunks); i++) {
                s = new_seq(x);
                feed(x, s, 1, 0, PROMPT, chunks[i], ENG_ROLE_PROMPT, got);
                if (!same(x, whole, got, PROMPT))
                        fail(x, "other bits for a prompt in chunks", chunks[i]);
                eng_seq_free(x->c, s);
        }
}

/* Four generated tokens one by one; then as rows of one draft, kept in part, and continued. */
static void check_draft(struct run *x, float *alone, float *got) {
        eng_seq s = new_seq(x);
        uint32_t n;

        feed(x, s, 1, 0, PROMPT, PROMPT, ENG_ROLE_PROMPT, NULL);
        feed(x, s, 2, PROMPT, 6, 1, ENG_ROLE_GENERATED, alone);
        eng_seq_free(x->c, s);
        for (uint32_t keep = 1; keep <= 4; keep++) {
                s = new_seq(x);
                feed(x, s, 1, 0, PROMPT, PROMPT, ENG_ROLE_PROMPT, NULL);
                feed(x, s, 2, PROMPT, 4, 4, ENG_ROLE_DRAFT, got);
                if (!same(x, alone, got, 4))
                        fail(x, "other bits for the rows of a draft", 4);
                if (eng_seq_trim(x->c, s, PROMPT + keep, &n) < 0 || n != PROMPT + keep)
                        fail(x, "a draft can't be taken back to", keep);
                feed(x, s, 2, PROMPT + keep, 2, 2, ENG_ROLE_DRAFT, got);
                if (!same(x, alone + (size_t)keep * x->n_vocab, got, 2))
                        fail(x, "other bits after taking back a draft to", keep);
                eng_seq_free(x->c, s);
        }
}

/* The same generated token beside k other sequences and a prompt's chunk, D rows in different places. */
static void check_company(struct run *x, float *want, float *got) {
        struct eng_item it[OTHERS + 2];
        struct eng_result res[OTHERS + 2];
        uint32_t chunk[9], id[OTHERS + 1], back;
        eng_seq base = new_seq(x), others[OTHERS], prompt = new_seq(x), s;

        feed(x, base, 1, 0, PROMPT, PROMPT, ENG_ROLE_PROMPT, NULL);
        for (uint32_t i = 0; i < OTHERS; i++) {
                others[i] = new_seq(x);
                feed(x, others[i], 10 + i, 0, 3 + 5 * i, 64, ENG_ROLE_PROMPT, NULL);
                id[i] = token(x, 30, i);
        }
        for (uint32_t i = 0; i < 9; i++)
                chunk[i] = token(x, 40, i);
        for (uint32_t k = 0; k <= OTHERS; k++) {
                uint32_t n = 0, mine = k / 2;

                if (eng_seq_fork(x->c, base, PROMPT, &s, &back) < 0 || back != PROMPT) {
                        fail(x, "a whole sequence can't be shared", PROMPT);
                        return;
                }
                id[OTHERS] = token(x, 2, PROMPT);
                it[n++] = (struct eng_item){ .seq = prompt, .tokens = chunk, .n = k ? 9 : 1, .want = ENG_WANT_LOGITS_LAST };
                for (uint32_t i = 0; i < k; i++) {
                        if (i == mine)
                                it[n++] = (struct eng_item){ .seq = s, .tokens = &id[OTHERS], .n = 1,
                                                             .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST };
                        it[n++] = (struct eng_item){ .seq = others[i], .tokens = &id[i], .n = 1, .role = ENG_ROLE_GENERATED,
                                                     .want = i % 2 ? ENG_WANT_LOGITS_LAST : ENG_WANT_NONE };
                }
                if (k == 0)
                        it[0] = (struct eng_item){ .seq = s, .tokens = &id[OTHERS], .n = 1, .role = ENG_ROLE_GENERATED,
                                                   .want = ENG_WANT_LOGITS_LAST };
                step(x, it, k ? n : 1, res);
                memcpy(got, res[k ? 1 + mine : 0].logits, x->n_vocab * sizeof(float));
                if (k == 0)
                        memcpy(want, got, x->n_vocab * sizeof(float));
                else if (!same(x, want, got, 1))
                        fail(x, "other bits beside a prompt and other sequences", k);
                eng_seq_free(x->c, s);
                eng_seq_trim(x->c, prompt, 0, &back);
        }
        for (uint32_t i = 0; i < OTHERS; i++)
                eng_seq_free(x->c, others[i]);
        eng_seq_free(x->c, base);
        eng_seq_free(x->c, prompt);
}

/* A prompt's rows beside generated rows. */
static void check_prompt_company(struct run *x, const float *whole) {
        uint32_t ids[PROMPT], one = token(x, 3, 3);
        eng_seq a = new_seq(x), b = new_seq(x);
        struct eng_item it[2] = {
                { .seq = a, .tokens = ids, .n = PROMPT, .want = ENG_WANT_LOGITS_ALL },
                { .seq = b, .tokens = &one, .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST },
        };
        struct eng_result res[2];

        for (uint32_t i = 0; i < PROMPT; i++)
                ids[i] = token(x, 1, i);
        step(x, it, 2, res);
        if (!same(x, whole, res[0].logits, PROMPT))
                fail(x, "other bits for a prompt beside a generated token", 1);
        eng_seq_free(x->c, a);
        eng_seq_free(x->c, b);
}

/* The last row's logits alone: rows that nobody asks for may end early. Beside a generated row, and by themselves. */
static void check_last(struct run *x, const float *whole) {
        static const uint32_t last[] = { 1, 7, PROMPT };
        uint32_t ids[PROMPT], one = token(x, 3, 3);
        float *alone = NULL;

        for (uint32_t i = 0; i < PROMPT; i++)
                ids[i] = token(x, 1, i);
        for (size_t i = 0; i < 2 * ELEMENTSOF(last); i++) {
                const uint32_t n = last[i / 2], n_items = 2 - (uint32_t)(i % 2);
                eng_seq a = new_seq(x), b = new_seq(x);
                struct eng_item it[2] = {
                        { .seq = a, .tokens = ids + PROMPT - n, .n = n, .want = ENG_WANT_LOGITS_LAST },
                        { .seq = b, .tokens = &one, .n = 1, .role = ENG_ROLE_GENERATED, .want = ENG_WANT_LOGITS_LAST },
                };
                struct eng_result res[2];

                feed(x, a, 1, 0, PROMPT - n, 16, ENG_ROLE_PROMPT, NULL);
                step(x, it, n_items, res);
                if (!same(x, whole + (size_t)(PROMPT - 1) * x->n_vocab, res[0].logits, 1))
                        fail(x, "other bits for the last of rows of which only it is wanted", n);
                if (n_items == 2 && !alone) {
                        alone = malloc(x->n_vocab * sizeof(float));
                        memcpy(alone, res[1].logits, x->n_vocab * sizeof(float));
                } else if (n_items == 2 && !same(x, alone, res[1].logits, 1)) {
                        fail(x, "other bits beside a prompt of which one row is wanted", n);
                }
                eng_seq_free(x->c, a);
                eng_seq_free(x->c, b);
        }
        free(alone);
}

/* Forks at several places, then the rest of the prompt: what is shared must not show. */
static void check_prefix(struct run *x, const float *whole, float *got) {
        static const uint32_t at[] = { PROMPT / 3, 32, PROMPT - 1 };

        for (size_t i = 0; i < ELEMENTSOF(at); i++) {
                eng_seq s = new_seq(x), f;
                uint32_t n;

                /* Ends at[i], then goes on elsewhere: with recurrent states the fork point is the checkpoint there. */
                feed(x, s, 1, 0, at[i], 64, ENG_ROLE_PROMPT, NULL);
                feed(x, s, 9, at[i], 5, 1, ENG_ROLE_GENERATED, NULL);
                if (eng_seq_fork(x->c, s, at[i], &f, &n) < 0) {
                        fail(x, "no fork", at[i]);
                        return;
                }
                if (n != at[i])
                        fail(x, "the prompt's end can't be shared, only", n);
                feed(x, f, 1, n, PROMPT - n, 7, ENG_ROLE_PROMPT, got);
                if (!same(x, whole + (size_t)n * x->n_vocab, got, PROMPT - n))
                        fail(x, "other bits after a shared prefix of", n);
                eng_seq_free(x->c, s);
                eng_seq_free(x->c, f);
        }
}

/* ---- all models ---------------------------------------------------------------------- */

static void check_kv(struct run *x) {
        struct eng_limits l = { .n_places = OTHERS + 2, .n_ctx = 160, .n_rows = 96, .kv = x->kv, .n_draft = 3, .n_prefix = 2,
                                .n_outputs = PROMPT + 1 };
        struct h_error err = { 0 };
        size_t bytes = (size_t)PROMPT * x->n_vocab * sizeof(float);
        float *whole = malloc(bytes), *got = malloc(bytes);
        int r = eng_context_new(x->m.model, &l, &x->c, &err);

        /* A backend may refuse a quantized KV for odd head sizes, and says so; f16 it has always. */
        if (r < 0 && err.code == HEARTH_E_unsupported && x->kv != ENG_KV_F16) {
                printf("%s: %s\n", x->name, err.message);
                free(whole);
                free(got);
                return;
        }
        if (r < 0)
                die(x->name, &err, r);
        x->runs++;
        check_chunks(x, whole, got);
        check_prompt_company(x, whole);
        check_last(x, whole);
        check_prefix(x, whole, got);
        check_draft(x, got, got + (size_t)8 * x->n_vocab);
        check_company(x, whole, got);
        eng_context_free(x->c);
        free(whole);
        free(got);
}

static unsigned check_model(const char *path, const char *name, bool cuda) {
        static const enum eng_kv_type kvs[] = { ENG_KV_F16, ENG_KV_Q8_0, ENG_KV_Q4_0 };
        struct eng_device_options o = { .backend = cuda ? ENG_CUDA : ENG_CPU, .threads = 2 };
        struct run x = { .name = name };

        if (open_model(path, &o, &x.m) < 0)
                return 1;
        x.n_vocab = eng_model_info(x.m.model)->n_vocab;
        for (size_t i = 0; i < ELEMENTSOF(kvs); i++) {
                x.kv = kvs[i];
                check_kv(&x);
        }
        close_model(&x.m);
        printf("%-24s %u KV types%s\n", strrchr(name, '/') ? strrchr(name, '/') + 1 : name, x.runs, x.failed ? ": FAILED" : "");
        return x.failed + (x.runs == 0);
}

static int check_folder(const char *dir, bool cuda, unsigned *models) {
        struct dirent **e;
        char path[4096];
        unsigned failed = 0;
        int n;

        snprintf(path, sizeof(path), "%s/models", dir);
        n = scandir(path, &e, NULL, alphasort);
        if (n < 0) {
                printf("skipped: %s is not there\n", path);
                return 77;
        }
        for (int i = 0; i < n; i++) {
                if (strstr(e[i]->d_name, ".gguf")) {
                        snprintf(path, sizeof(path), "%s/models/%s", dir, e[i]->d_name);
                        failed += check_model(path, e[i]->d_name, cuda);
                        (*models)++;
                }
                free(e[i]);
        }
        free(e);
        return failed != 0;
}

int main(int argc, char **argv) {
        unsigned models = 0;
        bool cuda = false;
        int r = 0;

        setvbuf(stdout, NULL, _IOLBF, 0);
        for (int i = 1; i < argc && r == 0; i++)
                if (strcmp(argv[i], "--cuda") == 0)
                        cuda = true;
                else
                        r = strstr(argv[i], ".gguf") ? (models++, check_model(argv[i], argv[i], cuda) != 0)
                                                     : check_folder(argv[i], cuda, &models);
        printf("%u models\n", models);
        return r ? r : models == 0;
}
