/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first byte chooses between a JSON schema and GBNF; the rest is compiled.
 * What compiles must then be usable: masks that agree with accepting, no dead
 * start.
 */
#include "tests/oracle/fake_tok.h"

#include "base/error.h"
#include "engine/text/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct grammar *g) {
        struct grammar_vocab *v = NULL;
        struct grammar_state *s = NULL;
        uint64_t mask[16], rng = 88172645463325252u;
        uint32_t n_vocab = tok_n_vocab(NULL);

        if (grammar_vocab_new(NULL, &v, NULL) == 0 && grammar_state_new(g, v, &s) == 0) {
                for (int step = 0; step < 12; step++) {
                        uint32_t n = 0, pick;
                        /* half of the time with an end in sight */
                        struct grammar_limit limit = { .left = rng >> 60 & 1 ? 12u - (unsigned)step : 0 };
                        if (grammar_state_mask_within(s, &limit, mask) < 0)
                                break;
                        for (uint32_t id = 0; id < n_vocab; id++)
                                n += mask[id / 64] >> (id % 64) & 1;
                        if (n == 0 && step == 0)
                                __builtin_trap();
                        if (n == 0)
                                break;
                        rng ^= rng << 13;
                        rng ^= rng >> 7;
                        rng ^= rng << 17;
                        pick = (uint32_t)(rng % n);
                        for (uint32_t id = 0; id < n_vocab; id++)
                                if ((mask[id / 64] >> (id % 64) & 1) && pick-- == 0) {
                                        int r = grammar_state_accept(s, id);
                                        if (r == -EINVAL)
                                                __builtin_trap();
                                        break;
                                }
                }
        }
        grammar_state_free(s);
        grammar_vocab_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct h_error err = { 0 };
        struct grammar *g = NULL;
        int r;

        if (size == 0 || size > 4096)
                return 0;
        r = data[0] & 1 ? grammar_from_gbnf((const char *)data + 1, size - 1, &g, &err)
                        : grammar_from_json_schema((const char *)data + 1, size - 1, &g, &err);
        if (r == 0)
                use(g);
        grammar_free(g);
        return 0;
}
