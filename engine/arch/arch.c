/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of architectures and the entry point: finds the family by
 * general.architecture, lets it fill a description, checks what every family
 * must hold, and releases everything on the first error.
 */
#include "engine/arch/arch.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

static const struct arch *const families[] = { arch_llama, arch_dense, arch_moe_table, arch_gemma, arch_gemma3n,
                                               arch_hybrid, arch_misc, arch_bert };

static const struct arch *find(const char *name, size_t n) {
        for (size_t f = 0; f < ELEMENTSOF(families); f++)
                for (const struct arch *a = families[f]; a->name; a++)
                        if (strlen(a->name) == n && memcmp(a->name, name, n) == 0)
                                return a;
        return NULL;
}

bool arch_is_known(const char *name, size_t n) {
        return find(name, n);
}

void arch_known(char *buf, size_t n) {
        size_t len = 0;

        if (n)
                buf[0] = '\0';
        for (size_t f = 0; f < ELEMENTSOF(families); f++)
                for (const struct arch *a = families[f]; a->name; a++) {
                        int w = snprintf(buf + len, n - len, "%s%s", len ? ", " : "", a->name);
                        if (w < 0 || (size_t)w >= n - len)
                                return;
                        len += (size_t)w;
                }
}

/* What the walk relies on whatever the family did. */
static int check(struct arch_ctx *c) {
        struct eng_desc *d = c->d;

        for (uint32_t i = 0; i < d->n_layer + d->n_mtp && !c->r; i++) {
                const struct eng_layer *l = &d->layer[i];
                const struct eng_attn *a = &l->attn;

                if (l->mixer == ENG_MIX_ATTENTION || l->mixer == ENG_MIX_MLA) {
                        if (a->dk > ARCH_MAX_HEAD_DIM || a->dv > ARCH_MAX_HEAD_DIM)
                                return arch_fail(c, "layer %u: heads of %u and %u, expected at most %u", i, a->dk, a->dv,
                                                 ARCH_MAX_HEAD_DIM);
                        if (a->kv >= d->n_kv)
                                return arch_fail(c, "layer %u has no KV pages", i);
                        if (d->kv[a->kv].dk != a->dk || d->kv[a->kv].dv != a->dv || d->kv[a->kv].n_head_kv != a->n_head_kv)
                                return arch_fail(c, "layer %u reads the KV pages of layer %u, whose heads have another shape", i,
                                                 d->kv[a->kv].layer);
                        if (d->group[d->kv[a->kv].group].window != a->window)
                                return arch_fail(c, "layer %u reads the KV pages of layer %u, whose window is another", i,
                                                 d->kv[a->kv].layer);
                }
                if (!l->ffn.n_ff && !l->ffn.n_expert)
                        return arch_fail(c, "layer %u has no feed-forward part", i);
        }
        return c->r;
}

int arch_describe(const struct gguf *g, struct tensors *t, struct eng_desc **ret, struct h_error *err) {
        struct arch_ctx c = { .g = g, .t = t, .err = err };
        const struct arch *a;
        struct gguf_str s;
        char known[800];
        int r;

        r = gguf_string(g, "general.architecture", &s, err);
        if (r < 0)
                return r;
        if (!s.p)
                return h_error_set(err, HEARTH_E_model_invalid, "key general.architecture is missing");
        a = find(s.p, s.n);
        if (!a) {
                arch_known(known, sizeof(known));
                return h_error_set(err, HEARTH_E_unknown_arch, "unknown architecture \"%.*s\"; known: %s", (int)MIN(s.n, (size_t)60),
                                   s.p, known);
        }
        c.d = h_new0(struct eng_desc, 1);
        if (!c.d)
                return -ENOMEM;
        snprintf(c.d->arch, sizeof(c.d->arch), "%s", a->name);
        r = arch_header(&c);
        if (!r)
                r = a->describe(&c);
        if (!r)
                r = c.r;
        if (!r)
                r = check(&c);
        free(c.n_head);
        free(c.n_head_kv);
        free(c.n_ff);
        if (r) {
                arch_desc_free(c.d);
                return r;
        }
        *ret = c.d;
        return 0;
}

struct eng_desc *arch_desc_free(struct eng_desc *d) {
        if (!d)
                return NULL;
        free(d->layer);
        free(d->mtp);
        free(d->kv);
        free(d->state);
        free(d->group);
        free(d->rope);
        free(d);
        return NULL;
}
