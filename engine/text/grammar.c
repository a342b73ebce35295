/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grammars for callers: compiling, a generation's state, masks. A state owns
 * its machine; the grammar and the vocabulary are shared and must outlive it.
 * Masks are cached by state, so that the tokens within one string cost one
 * walk over the vocabulary.
 */
#include "engine/text/grammar.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/text/gram_mask.h"

#define CACHE 48
#define COMPACT_NODES 50000
#define MAX_SCHEMA ((size_t)4 << 20)
#define MAX_GRAMMAR_MEMORY ((size_t)256 << 20)

struct cached { uint32_t *id; size_t n; uint64_t *mask; uint64_t used; uint32_t most; /* bytes after any of its tokens */ };
struct grammar_state {
        const struct grammar_vocab *v;
        struct gm m;
        uint32_t id[GM_MAX_SET];
        size_t n;
        bool ended;            /* an end-of-generation token came */
        uint64_t *nearest;     /* room for a mask */
        struct gm_lazy lazy;
        struct cached cache[CACHE];
        uint64_t clock;
};

/* ---- compiling ---- */

static int compile(const char *src, size_t n, bool gbnf, struct grammar **ret, struct h_error *err) {
        struct grammar *g;
        int r;

        if (n > MAX_SCHEMA)
                return h_error_counts(err, HEARTH_E_grammar_invalid, n, MAX_SCHEMA, "the %s has %zu bytes, more than %zu",
                                      gbnf ? "grammar" : "schema", n, MAX_SCHEMA);
        g = h_new0(struct grammar, 1);
        if (!g)
                return -ENOMEM;
        g->c = (struct t_ctx){ .limit = MAX_GRAMMAR_MEMORY, .what = gbnf ? "the grammar" : "the schema", .err = err,
                               .code = HEARTH_E_grammar_invalid };
        if (!gbnf) {
                json_error_t je;
                r = gs_source_read(&g->source, src, n, &je);
                if (r < 0) {
                        grammar_free(g);
                        return r == -EBADMSG ? h_error_set(err, HEARTH_E_grammar_invalid, "the schema is not JSON: line %d, column %d: %s", je.line,
                                                           je.column, je.text)
                                             : r;
                }
        }
        if (setjmp(g->c.jmp)) {
                r = g->c.rc;
                grammar_free(g);
                return r;
        }
        if (gbnf)
                gbnf_parse(g, src, n);
        else
                gs_compile(&g->schema, &g->c, &g->source);
        if (gbnf)
                gn_rules(g);
        else
                gn_schema(&g->schema);
        g->c.err = NULL;
        *ret = g;
        return 0;
}

int grammar_from_json_schema(const char *json, size_t n, struct grammar **ret, struct h_error *err) {
        return compile(json, n, false, ret, err);
}

int grammar_from_gbnf(const char *src, size_t n, struct grammar **ret, struct h_error *err) {
        return compile(src, n, true, ret, err);
}

struct grammar *grammar_free(struct grammar *g) {
        if (g) {
                t_ctx_release(&g->c);
                gs_source_free(&g->source);
                free(g);
        }
        return NULL;
}

/* ---- a generation ---- */

static void forget_masks(struct grammar_state *s) {
        for (size_t i = 0; i < CACHE; i++) {
                free(s->cache[i].id);
                free(s->cache[i].mask);
                s->cache[i] = (struct cached){ 0 };
        }
}

static void take(struct grammar_state *s, const struct gm_out *o) {
        memcpy(s->id, o->id, o->n * sizeof(*s->id));
        s->n = o->n;
}

int grammar_state_new(const struct grammar *g, const struct grammar_vocab *v, struct grammar_state **ret) {
        struct grammar_state *s = h_new0(struct grammar_state, 1);
        struct gm_out out;
        int r;

        if (!s)
                return -ENOMEM;
        s->v = v;
        gm_init(&s->m, g);
        s->nearest = h_new0(uint64_t, v->words);
        if (!s->nearest) {
                grammar_state_free(s);
                return -ENOMEM;
        }
        gm_start(&s->m, &out);
        r = s->m.error;
        if (r < 0) {
                grammar_state_free(s);
                return r;
        }
        take(s, &out);
        *ret = s;
        return 0;
}

struct grammar_state *grammar_state_free(struct grammar_state *s) {
        if (s) {
                forget_masks(s);
                gm_release(&s->m);
                free(s->nearest);
                gm_lazy_free(&s->lazy);
                free(s);
        }
        return NULL;
}

bool grammar_state_done(const struct grammar_state *s) {
        return s->ended || gm_done(&s->m, s->id, s->n);
}

/* ---- masks ---- */

/* If a reading is within a string that takes any characters, or so many of them: those plain tokens. True: all were set. */
static bool set_plain(struct grammar_state *s, uint64_t *mask, struct gm_walk *w) {
        size_t most = 0;

        for (size_t i = 0; i < s->n; i++) {
                size_t k = gm_takes_any(&s->m, &s->m.node[s->id[i]]);
                uint32_t need = k && w->far != NEED_UNKNOWN ? gn_set(&s->m, &s->id[i], 1) : 0; /* no character makes it more */
                if (k == 0 || need > w->far)
                        continue;
                most = MAX(most, k);
                w->most = MAX(w->most, need);
        }
        if (most >= s->v->max_chars && most > 0) {
                memcpy(mask, s->v->plain_mask, s->v->words * sizeof(*mask));
                return true;
        }
        for (uint32_t i = 0; i < s->v->plain_upto[most]; i++)
                mask[s->v->plain[i] / 64] |= UINT64_C(1) << (s->v->plain[i] % 64);
        return most > 0 && s->n == 1; /* longer ones are then not allowed; with other readings they may be */
}

static const uint64_t *cached_mask(struct grammar_state *s, uint32_t far) {
        for (size_t i = 0; i < CACHE; i++)
                if (s->cache[i].mask && s->cache[i].n == s->n && s->cache[i].most <= far && memcmp(s->cache[i].id, s->id, s->n * sizeof(*s->id)) == 0) {
                        s->cache[i].used = ++s->clock;
                        return s->cache[i].mask;
                }
        return NULL;
}

static void remember(struct grammar_state *s, const uint64_t *mask, uint32_t most) {
        struct cached *c = &s->cache[0];
        uint32_t *id = h_memdup(s->id, s->n * sizeof(*s->id));
        uint64_t *copy = h_memdup(mask, s->v->words * sizeof(*mask));

        for (size_t i = 1; i < CACHE; i++)
                if (s->cache[i].used < c->used)
                        c = &s->cache[i];
        if (!id || !copy) { /* works without */
                free(id);
                free(copy);
                return;
        }
        free(c->id);
        free(c->mask);
        *c = (struct cached){ .id = id, .n = s->n, .mask = copy, .used = ++s->clock, .most = most };
}

int grammar_state_mask(struct grammar_state *s, uint64_t *mask) {
        static const struct grammar_limit none;
        return grammar_state_mask_within(s, &none, mask);
}

int grammar_state_mask_within(struct grammar_state *s, const struct grammar_limit *l, uint64_t *mask) {
        uint32_t far = l->left ? (uint32_t)MIN(l->left - 1, (uint64_t)NEED_FAR - 1) : NEED_UNKNOWN;
        struct gm_walk w = { .m = &s->m, .v = s->v, .lazy = &s->lazy, .mask = mask, .nearest = s->nearest, .far = far, .least = UINT32_MAX };
        struct gm_mark mark = gm_mark(&s->m);
        const uint64_t *old = s->ended ? NULL : cached_mask(s, far);
        bool done, some = false;
        int r;

        if (s->ended) { /* nothing but the end may follow the end */
                memcpy(mask, s->v->eog, s->v->words * sizeof(*mask));
                return 0;
        }
        if (old) {
                memcpy(mask, old, s->v->words * sizeof(*mask));
                return 0;
        }
        memset(mask, 0, s->v->words * sizeof(*mask));
        s->m.work = l->work ? l->work : UINT64_MAX;
        s->m.stopped = l->stopped;
        s->m.ud = l->ud;
        w.skip_plain = set_plain(s, mask, &w);
        gm_walk(&w, s->id, s->n);
        s->m.work = UINT64_MAX;
        s->m.stopped = NULL;
        r = s->m.error;
        gm_back(&s->m, mark);
        if (r < 0)
                return r;
        done = gm_done(&s->m, s->id, s->n);
        for (size_t i = 0; w.left_out && !done && i < s->v->words && !some; i++)
                some = mask[i];
        if (w.left_out && !done && !some)
                memcpy(mask, s->nearest, s->v->words * sizeof(*mask));
        for (size_t i = 0; done && i < s->v->words; i++)
                mask[i] |= s->v->eog[i];
        if (!w.left_out)
                remember(s, mask, far == NEED_UNKNOWN ? NEED_UNKNOWN : w.most);
        return 0;
}

uint32_t grammar_state_need(struct grammar_state *s) {
        return s->ended ? 0 : gn_set(&s->m, s->id, s->n);
}

int grammar_state_accept_bytes(struct grammar_state *s, const char *p, size_t n) {
        struct gm_mark mark = gm_mark(&s->m);
        struct gm_out *out;
        uint32_t id[GM_MAX_SET];
        size_t n_id = s->n;
        int r = 0;

        if (s->ended)
                return n ? -EINVAL : 0;
        out = h_malloc(sizeof(*out));
        if (!out)
                return -ENOMEM;
        memcpy(id, s->id, n_id * sizeof(*id));
        for (size_t i = 0; i < n && r == 0; i++) {
                gm_step(&s->m, id, n_id, (uint8_t)p[i], out);
                r = s->m.error ? s->m.error : out->n == 0 ? -EINVAL : 0;
                memcpy(id, out->id, out->n * sizeof(*id));
                n_id = out->n;
        }
        free(out);
        if (r < 0) {
                gm_back(&s->m, mark);
                return r;
        }
        memcpy(s->id, id, n_id * sizeof(*id));
        s->n = n_id;
        if (s->m.n > COMPACT_NODES && gm_compact(&s->m, s->id, s->n) == 0)
                forget_masks(s); /* they were kept by number */
        return 0;
}

int grammar_state_accept(struct grammar_state *s, uint32_t token) {
        const char *p;
        size_t n;

        if (token >= s->v->n_vocab)
                return -EINVAL;
        if (s->v->eog[token / 64] >> (token % 64) & 1) {
                if (!grammar_state_done(s))
                        return -EINVAL;
                s->ended = true;
                return 0;
        }
        p = tok_piece(s->v->tok, token, &n);
        if (!p || n == 0 || n > GRAMMAR_MAX_TOKEN)
                return -EINVAL;
        switch (tok_kind(s->v->tok, token)) {
        case TOK_NORMAL:
        case TOK_USER:
        case TOK_BYTE:
                return grammar_state_accept_bytes(s, p, n);
        case TOK_UNKNOWN:
        case TOK_CONTROL:
        case TOK_UNUSED:
                break;
        }
        return -EINVAL;
}
