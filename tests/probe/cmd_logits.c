/* SPDX-License-Identifier: Apache-2.0 */
/* logits, greedy, mtp, embed: what a model computes for a list of token ids. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "probe.h"

static uint32_t context_for(const struct options *o, uint32_t need) {
        return o->ctx ? o->ctx : need;
}

/* ---- logits ---------------------------------------------------------------- */

struct wanted {
        struct npy npy;
        bool *at; /* [n] */
        uint32_t n;
};

static int write_wanted(void *ud, uint32_t pos, const float *logits) {
        struct wanted *w = ud;
        return pos < w->n && w->at[pos] ? npy_write(&w->npy, logits, 1) : 0;
}

static int parse_positions(const char *text, uint32_t n, bool *at, uint32_t *ret_rows) {
        uint32_t rows = 0;

        if (!text || strcmp(text, "last") == 0) {
                at[n - 1] = true;
        } else if (strcmp(text, "all") == 0) {
                memset(at, 1, n);
        } else {
                struct ids v;
                int r = parse_ids(text, &v);
                if (r)
                        return r;
                for (uint32_t i = 0; i < v.n; i++) {
                        if (v.v[i] >= n) {
                                fprintf(stderr, "hearth-probe: position %u, there are %u tokens\n", v.v[i], n);
                                free(v.v);
                                return 64;
                        }
                        at[v.v[i]] = true;
                }
                free(v.v);
        }
        for (uint32_t i = 0; i < n; i++)
                rows += at[i];
        *ret_rows = rows;
        return 0;
}

static int run_logits(const struct options *o, struct probe *p, const struct ids *ids, struct wanted *w) {
        uint32_t prompt = o->prompt && o->prompt < ids->n ? o->prompt : ids->n, chunk = o->chunk ? o->chunk : 512;
        struct eng_limits l = { .n_places = 1, .n_ctx = context_for(o, ids->n), .n_rows = MAX(chunk, 2u), .kv = o->kv };
        bool all = false;
        eng_seq s;
        int r;

        for (uint32_t i = 0; i + 1 < ids->n; i++)
                all |= w->at[i];
        l.n_outputs = all ? MIN(chunk, prompt) : 1;
        r = probe_context(p, &l);
        if (r)
                return r;
        if (eng_seq_new(p->context, &s) < 0)
                return 70;
        r = feed(p, o, s, ids->v, prompt, ENG_ROLE_PROMPT, all, write_wanted, w);
        for (uint32_t i = prompt; r == 0 && i < ids->n; i++)
                r = feed(p, o, s, ids->v + i, 1, ENG_ROLE_GENERATED, false, write_wanted, w);
        return r;
}

int cmd_logits(const struct options *o) {
        struct probe p = { 0 };
        struct wanted w = { 0 };
        struct ids ids = { 0 };
        uint32_t rows = 0;
        int r;

        r = parse_ids(o->tokens, &ids);
        if (r)
                return r;
        w.n = ids.n;
        w.at = h_new0(bool, ids.n);
        r = w.at ? parse_positions(o->positions, ids.n, w.at, &rows) : 71;
        if (r == 0)
                r = probe_open(o, &p);
        if (r == 0) {
                r = npy_create(&w.npy, o->out, rows, eng_model_info(p.model)->n_vocab);
                if (r == 0)
                        r = run_logits(o, &p, &ids, &w);
                r = npy_close(&w.npy) ? 74 : r;
                probe_close(&p);
        }
        free(w.at);
        free(ids.v);
        return r;
}

/* ---- greedy ------------------------------------------------------------------ */

int cmd_greedy(const struct options *o) {
        struct probe p = { 0 };
        struct ids ids = { 0 };
        struct greedy k = { 0 };
        eng_seq s;
        int r;

        r = parse_ids(o->tokens, &ids);
        if (r == 0)
                r = probe_open(o, &p);
        if (r == 0) {
                struct eng_limits l = { .n_places = 1, .n_ctx = context_for(o, ids.n + o->n), .kv = o->kv };
                k.n_vocab = eng_model_info(p.model)->n_vocab;
                r = probe_context(&p, &l);
                if (r == 0 && eng_seq_new(p.context, &s) < 0)
                        r = 70;
                if (r == 0)
                        r = feed(&p, o, s, ids.v, ids.n, ENG_ROLE_PROMPT, false, greedy_take, &k);
                for (uint32_t i = 0; r == 0 && i < o->n; i++) {
                        uint32_t id = k.id;
                        printf("%s%u", i ? "," : "", id);
                        if (i + 1 < o->n)
                                r = feed(&p, o, s, &id, 1, ENG_ROLE_GENERATED, false, greedy_take, &k);
                }
                if (r == 0)
                        printf("\n");
                probe_close(&p);
        }
        free(ids.v);
        return r;
}

/* ---- mtp ----------------------------------------------------------------------- */

int cmd_mtp(const struct options *o) {
        struct h_error err = { 0 };
        struct probe p = { 0 };
        struct npy npy = { 0 };
        struct ids ids = { 0 };
        float *out = NULL;
        int r;

        r = parse_ids(o->tokens, &ids);
        if (r == 0)
                r = probe_open(o, &p);
        if (r == 0) {
                uint32_t chunk = o->chunk ? o->chunk : 512, n_vocab = eng_model_info(p.model)->n_vocab;
                struct eng_limits l = { .n_places = 1, .n_ctx = context_for(o, ids.n), .n_rows = MAX(chunk, 2u), .kv = o->kv,
                                        .n_draft = 1, .n_outputs = MIN(chunk, ids.n) };
                r = probe_context(&p, &l);
                out = h_malloc((size_t)ids.n * n_vocab * sizeof(float));
                if (r == 0 && !out)
                        r = 71;
                if (r == 0) {
                        r = eng_mtp_logits(p.context, ids.v, ids.n, out, &err);
                        r = r < 0 ? probe_fail(&err, r) : 0;
                }
                if (r == 0)
                        r = npy_create(&npy, o->out, ids.n, n_vocab);
                if (r == 0)
                        r = npy_write(&npy, out, ids.n);
                r = npy_close(&npy) ? 74 : r;
                free(out);
                probe_close(&p);
        }
        free(ids.v);
        return r;
}

/* ---- embed --------------------------------------------------------------------- */

static int embed(const struct options *o, struct probe *p, const struct ids *ids) {
        uint32_t n_embd = eng_model_info(p->model)->n_embd, chunk = o->chunk ? o->chunk : 512;
        struct eng_limits l = { .n_places = 1, .n_ctx = context_for(o, ids->n), .n_rows = MAX(chunk, 2u), .kv = o->kv };
        const float *e = NULL;
        struct npy npy = { 0 };
        double norm = 0;
        eng_seq s;
        int r = probe_context(p, &l);

        if (r)
                return r;
        if (eng_seq_new(p->context, &s) < 0)
                return 70;
        chunk = eng_context_limits(p->context)->n_rows;
        for (uint32_t at = 0; at < ids->n; at += chunk) {
                struct eng_item it = { .seq = s, .tokens = ids->v + at, .n = MIN(chunk, ids->n - at),
                                       .role = ENG_ROLE_PROMPT, .want = ENG_WANT_EMBEDDING };
                struct eng_result res;
                struct h_error err = { 0 };
                r = eng_step(p->context, &it, 1, &res, &err);
                if (r != 0)
                        return probe_fail(&err, r);
                e = res.embedding;
        }
        for (uint32_t i = 0; i < n_embd; i++)
                norm += (double)e[i] * e[i];
        r = npy_create(&npy, o->out, 1, n_embd);
        for (uint32_t i = 0; r == 0 && i < n_embd; i++) {
                float v = o->normalize && norm > 0 ? (float)(e[i] / sqrt(norm)) : e[i];
                r = fwrite(&v, sizeof(v), 1, npy.f) == 1 ? 0 : 74;
        }
        return npy_close(&npy) ? 74 : r;
}

int cmd_embed(const struct options *o) {
        struct probe p = { 0 };
        struct ids ids = { 0 };
        int r;

        r = parse_ids(o->tokens, &ids);
        if (r == 0)
                r = probe_open(o, &p);
        if (r == 0) {
                r = embed(o, &p, &ids);
                probe_close(&p);
        }
        free(ids.v);
        return r;
}
