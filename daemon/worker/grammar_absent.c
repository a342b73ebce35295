/* SPDX-License-Identifier: Apache-2.0 */
/* Used only while engine/text has no grammar.c: such requests are refused as unsupported. */
#include <errno.h>

#include "engine/text/grammar.h"

static int refuse(struct h_error *err) {
        return h_error_set(err, HEARTH_E_unsupported, "this build can't constrain the answer by a schema or a grammar");
}

int grammar_from_json_schema(const char *json, size_t n, struct grammar **ret, struct h_error *err) { return refuse(err); }
int grammar_from_gbnf(const char *src, size_t n, struct grammar **ret, struct h_error *err) { return refuse(err); }
struct grammar *grammar_free(struct grammar *g) { return NULL; }
int grammar_vocab_new(const struct tok *t, struct grammar_vocab **ret, struct h_error *err) { return refuse(err); }
struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v) { return NULL; }
int grammar_state_new(const struct grammar *g, const struct grammar_vocab *v, struct grammar_state **ret) { return -EOPNOTSUPP; }
struct grammar_state *grammar_state_free(struct grammar_state *s) { return NULL; }
int grammar_state_mask(struct grammar_state *s, uint64_t *mask) { return -EOPNOTSUPP; }
int grammar_state_accept(struct grammar_state *s, uint32_t token) { return -EOPNOTSUPP; }
bool grammar_state_done(const struct grammar_state *s) { return true; }
