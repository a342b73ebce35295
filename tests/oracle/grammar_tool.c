/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grammars for the Python property test. Lines in, one line out for each:
 *
 *   {"schema": TEXT} or {"gbnf": TEXT}     {"ok": true} or {"error": MESSAGE}
 *   {"text": TEXT}                         {"accepted": bytes, "done": bool}
 *   {"walk": SEED, "limit": N}             {"text": ...}, null if not finished: random tokens the masks allow
 *   {"led": SEED, "extra": N}              {"text": ..., "done": bool}: at most so many tokens more than the shortest output has bytes
 */
#include <stdio.h>

#include "tests/oracle/fake_tok.h"

#include <jansson.h>

#include "base/error.h"
#include "engine/text/grammar.h"

static uint64_t next(uint64_t *s) {
        *s ^= *s << 13;
        *s ^= *s >> 7;
        *s ^= *s << 17;
        return *s;
}

static void answer(json_t *o) {
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(o);
}

/* One random walk; past the limit, tokens that close something are preferred. */
static json_t *walk(const struct grammar *g, const struct grammar_vocab *v, uint64_t seed, size_t limit) {
        static const char closers[] = "\"}]0";
        const struct tok *t = NULL;
        uint32_t n_vocab = tok_n_vocab(t), allowed[512];
        uint64_t mask[16], rng = seed * 0x9e3779b97f4a7c15u + 1;
        struct grammar_state *s = NULL;
        struct buf out = { 0 };
        json_t *o = json_object();
        bool finished = false;
        int r = grammar_state_new(g, v, &s);

        for (size_t step = 0; r == 0 && step < limit * 4 && !finished; step++) {
                size_t n = 0, n_close = 0;
                uint32_t pick, close[512];
                const char *p;
                size_t len;

                r = grammar_state_mask(s, mask);
                for (uint32_t id = 0; r == 0 && id < n_vocab; id++) {
                        if (!(mask[id / 64] >> (id % 64) & 1))
                                continue;
                        allowed[n++] = id;
                        if (id == FAKE_EOG || (id < 256 && strchr(closers, (int)id) && id))
                                close[n_close++] = id;
                }
                if (n == 0) {
                        json_object_set_new(o, "dead", json_stringn_nocheck(out.data ? out.data : "", out.len));
                        break;
                }
                if (step > limit && n_close)
                        pick = close[next(&rng) % n_close];
                else if ((mask[FAKE_EOG / 64] >> (FAKE_EOG % 64) & 1) && next(&rng) % 4 == 0)
                        pick = FAKE_EOG;
                else
                        pick = allowed[next(&rng) % n];
                r = grammar_state_accept(s, pick);
                if (r < 0)
                        json_object_set_new(o, "refused", json_integer(pick));
                finished = pick == FAKE_EOG;
                p = tok_piece(t, pick, &len);
                if (!finished)
                        buf_append(&out, p, len);
        }
        if (r < 0)
                json_object_set_new(o, "error", json_string(strerror(-r)));
        json_object_set_new(o, "text", finished ? json_stringn_nocheck(out.data ? out.data : "", out.len) : json_null());
        buf_free(&out);
        grammar_state_free(s);
        return o;
}

/* A random walk that has only so many tokens, and whose masks know it. */
static json_t *led(const struct grammar *g, const struct grammar_vocab *v, uint64_t seed, uint64_t extra) {
        uint64_t mask[16], rng = seed * 0x9e3779b97f4a7c15u + 1, left;
        uint32_t allowed[512], n_vocab = tok_n_vocab(NULL);
        struct grammar_state *s = NULL;
        struct buf out = { 0 };
        bool ended = false, done;
        json_t *o;
        int r = grammar_state_new(g, v, &s);

        if (r < 0 || grammar_state_need(s) >= 1u << 29) {
                grammar_state_free(s);
                return json_pack("{s:s}", "error", "the least size is not known");
        }
        for (left = MAX(grammar_state_need(s) + extra, (uint64_t)1); r == 0 && left && !ended; left--) {
                size_t n = 0, len;
                uint32_t pick;
                const char *p;

                r = grammar_state_mask_within(s, &(struct grammar_limit){ .left = left }, mask);
                for (uint32_t id = 0; r == 0 && id < n_vocab; id++)
                        if (mask[id / 64] >> (id % 64) & 1)
                                allowed[n++] = id;
                if (r < 0 || n == 0)
                        break;
                pick = allowed[next(&rng) % n];
                r = grammar_state_accept(s, pick);
                ended = pick == FAKE_EOG;
                p = tok_piece(NULL, pick, &len);
                if (!ended)
                        buf_append(&out, p, len);
        }
        done = r == 0 && grammar_state_done(s);
        o = json_pack("{s:o,s:b}", "text", json_stringn_nocheck(out.data ? out.data : "", out.len), "done", (int)done);
        buf_free(&out);
        grammar_state_free(s);
        return o;
}

static json_t *accept_text(const struct grammar *g, const struct grammar_vocab *v, const char *p, size_t n) {
        struct grammar_state *s = NULL;
        size_t at = 0;
        json_t *o;

        if (grammar_state_new(g, v, &s) < 0)
                return json_pack("{s:s}", "error", "no state");
        while (at < n && grammar_state_accept_bytes(s, p + at, 1) == 0)
                at++;
        o = json_pack("{s:I,s:b}", "accepted", (json_int_t)at, "done", (int)(at == n && grammar_state_done(s)));
        grammar_state_free(s);
        return o;
}

int main(void) {
        struct grammar_vocab *v = NULL;
        struct grammar *g = NULL;
        char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        if (grammar_vocab_new(NULL, &v, NULL) < 0)
                return 71;
        while ((n = getline(&line, &cap, stdin)) > 0) {
                json_t *j = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *x;
                if (!j)
                        return 65;
                if ((x = json_object_get(j, "schema")) || (x = json_object_get(j, "gbnf"))) {
                        bool gbnf = json_object_get(j, "gbnf") != NULL;
                        struct h_error err = { 0 };
                        int r;
                        g = grammar_free(g);
                        r = gbnf ? grammar_from_gbnf(json_string_value(x), json_string_length(x), &g, &err)
                                 : grammar_from_json_schema(json_string_value(x), json_string_length(x), &g, &err);
                        answer(r < 0 ? json_pack("{s:s}", "error", r == -EHEARTH ? err.message : strerror(-r)) : json_pack("{s:b}", "ok", 1));
                } else if ((x = json_object_get(j, "text")) && g) {
                        answer(accept_text(g, v, json_string_value(x), json_string_length(x)));
                } else if ((x = json_object_get(j, "walk")) && g) {
                        answer(walk(g, v, (uint64_t)json_integer_value(x), (size_t)json_integer_value(json_object_get(j, "limit"))));
                } else if ((x = json_object_get(j, "led")) && g) {
                        answer(led(g, v, (uint64_t)json_integer_value(x), (uint64_t)json_integer_value(json_object_get(j, "extra"))));
                } else {
                        answer(json_pack("{s:s}", "error", "no grammar"));
                }
                json_decref(j);
        }
        free(line);
        grammar_free(g);
        grammar_vocab_free(v);
        return 0;
}
