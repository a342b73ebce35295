/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model: the image's tensors on a device and what engine/arch says they are.
 * Immutable once open, so it may be shared between threads and contexts.
 */
#include "engine/model.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

/* What the operations don't go up to would be found by a step, and end the worker. */
int model_check_backend(const struct eng_desc *d, const struct k_ops *ops, struct h_error *err) {
        const struct k_most *m = &ops->most;

        for (uint32_t i = 0; i < d->n_layer + d->n_mtp; i++) {
                const struct eng_layer *l = &d->layer[i];
                bool attends = l->mixer == ENG_MIX_ATTENTION || l->mixer == ENG_MIX_MLA, delta = l->mixer == ENG_MIX_DELTA;
                const struct { const char *what; uint32_t has, most; } parts[] = {
                        { "experts", l->ffn.n_expert, m->experts },
                        { "experts for a token", l->ffn.n_used, m->experts_used },
                        { "groups of experts", l->ffn.n_group, m->expert_groups },
                        { "columns of a head", attends ? MAX(l->attn.dk, l->attn.dv) : 0, m->head },
                        { "dimensions for rope", attends && l->attn.rope >= 0 ? d->rope[l->attn.rope].n_dims : 0, m->rope },
                        { "taps of its convolution", delta ? l->delta.conv : l->mixer == ENG_MIX_SHORTCONV ? l->sconv.conv : 0, m->taps },
                        { "columns of a key", delta ? l->delta.s_k : 0, m->delta_key },
                };

                for (size_t k = 0; k < ELEMENTSOF(parts); k++)
                        if (parts[k].has > parts[k].most)
                                return h_error_counts(err, HEARTH_E_unsupported, parts[k].has, parts[k].most, "layer %u has %u %s, the %s backend "
                                                      "goes up to %u", i, parts[k].has, parts[k].what, ops->name, parts[k].most);
        }
        if (d->n_group > m->windows)
                return h_error_counts(err, HEARTH_E_unsupported, d->n_group, m->windows, "the layers have %u different windows, the %s backend "
                                      "goes up to %u", d->n_group, ops->name, m->windows);
        return 0;
}

int model_check_vocab(const struct eng_desc *d, const struct tok *t, struct h_error *err) {
        if (t && tok_n_vocab(t) > d->n_vocab)
                return h_error_counts(err, HEARTH_E_model_invalid, tok_n_vocab(t), d->n_vocab,
                                      "key tokenizer.ggml.tokens has %u entries, tensor token_embd.weight has %u rows",
                                      tok_n_vocab(t), d->n_vocab);
        return 0;
}

static int open_text(struct eng_model *m, struct h_error *err) {
        struct gguf_str s;
        int r;

        r = tok_open(m->im->g, &m->tok, err);
        if (r < 0)
                return r == -EHEARTH ? r : h_error_from_errno(err, r, "opening the tokenizer");
        r = model_check_vocab(m->desc, m->tok, err);
        if (r < 0)
                return r;
        r = gguf_string(m->im->g, "tokenizer.chat_template", &s, err);
        if (r < 0)
                return r;
        if (s.n == 0) {
                h_error_set(&m->tmpl_err, HEARTH_E_template_missing, "the model has no chat template");
                return 0;
        }
        /* Unusable templates don't stop plain completion; asking for the template gives this error. */
        r = tmpl_compile(s.p, s.n, &m->tmpl, &m->tmpl_err);
        if (r < 0)
                h_error_from_errno(&m->tmpl_err, r, "compiling the chat template");
        return 0;
}

static void refine_info(struct eng_model *m) {
        struct eng_model_info *f = &m->info;
        const struct eng_desc *d = m->desc;

        *f = m->im->info;
        f->bytes += tensors_own_bytes(m->t);
        f->n_ctx_train = d->n_ctx_train;
        f->n_layer = d->n_layer;
        f->n_embd = d->n_embd;
        f->n_vocab = d->n_vocab;
        f->can_generate = !d->encoder && k_weight_present(&d->output);
        f->can_embed = d->encoder || d->pooling != ENG_POOL_NONE;
        f->has_mtp = d->n_mtp > 0;
        f->has_recurrent_state = d->n_state > 0;
        f->has_template = m->tmpl != NULL;
        f->has_fim = m->tok && tok_special_id(m->tok, TOK_ID_FIM_PRE) >= 0 && tok_special_id(m->tok, TOK_ID_FIM_SUF) >= 0;
}

int eng_model_open(struct eng_device *d, struct eng_image *im, struct eng_model **ret, struct h_error *err) {
        return eng_model_load(d, im, NULL, ret, err);
}

int eng_model_load(struct eng_device *d, struct eng_image *im, const struct eng_load *l, struct eng_model **ret, struct h_error *err) {
        struct eng_model *m = h_new0(struct eng_model, 1);
        struct place place = { 0 };
        struct tensors_how how = { .place = &place, .progress = l ? l->progress : NULL, .ud = l ? l->ud : NULL };
        int r;

        if (!m)
                return h_error_from_errno(err, -ENOMEM, "opening a model");
        m->d = d;
        m->im = im;
        r = model_place(m, l, &place, err);
        if (r >= 0)
                r = tensors_open(d, im, &how, &m->t, err);
        place_free(&place);
        if (r >= 0)
                r = arch_describe(im->g, m->t, &m->desc, err);
        if (r >= 0)
                r = model_check_backend(m->desc, d->k->ops, err);
        if (r >= 0)
                r = model_placed(m, err);
        if (r >= 0)
                r = open_text(m, err);
        if (r < 0) {
                eng_model_close(m);
                return r == -EHEARTH ? r : h_error_from_errno(err, r, "opening a model");
        }
        refine_info(m);
        *ret = m;
        return 0;
}

struct eng_model *eng_model_close(struct eng_model *m) {
        if (!m)
                return NULL;
        tmpl_free(m->tmpl);
        tok_free(m->tok);
        arch_desc_free(m->desc);
        tensors_close(m->t);
        free(m->mixed);
        free(m);
        return NULL;
}

void eng_model_placement(const struct eng_model *m, struct eng_placement *ret) {
        *ret = m->placement;
}

const struct eng_model_info *eng_model_info(const struct eng_model *m) {
        return &m->info;
}

const struct tok *eng_model_tokenizer(const struct eng_model *m) {
        return m->tok;
}

const struct tmpl *eng_model_template(const struct eng_model *m, struct h_error *err) {
        if (!m->tmpl && err && err->code == HEARTH_OK)
                *err = m->tmpl_err;
        return m->tmpl;
}

const char *eng_model_template_source(const struct eng_model *m, size_t *ret_n) {
        struct gguf_str s;

        if (gguf_string(m->im->g, "tokenizer.chat_template", &s, NULL) < 0 || s.n == 0)
                return NULL;
        *ret_n = s.n;
        return s.p;
}
