/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over a description: embedding, layers, logits.
 *
 * After the mixer of the last layer that keeps anything of a row (keys and values,
 * a state) only the rows whose logits are wanted continue: nothing reads the others
 * any more (unless 'hidden' is asked for). Where layers share the KV of an earlier
 * one, that is long before the last: of 35 layers of gemma-4-e2b after the 15th.
 */
#include "engine/forward_int.h"

static int copy_rows(struct eng_forward *f, float *y, const float *x, uint32_t cols, const uint32_t *gather) {
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_COPY, .y = y, .y_stride = cols, .cols = cols, .x = x,
                                                                 .x_stride = cols, .gather = gather, .n = f->io->n_out });
}

/* From here on only the wanted rows; mixing: in layers that read what earlier ones have kept, too. */
static int keep_rows(struct eng_forward *f, bool mixing) {
        const struct eng_forward_io *io = f->io;
        uint32_t P = f->d->n_ple * f->d->n_layer;
        struct k_act t;

        f->sub = *f->bt;
        f->sub.n = io->n_out;
        f->sub.n_d = io->n_out_d;
        if (io->n_out) {
                TRY(fwd_flush(f));
                TRY(copy_rows(f, f->x2.f, f->x.f, f->d->n_embd, io->out_rows));
                if (P) {
                        TRY(copy_rows(f, f->wide, f->ple.f, P, io->out_rows));
                        TRY(copy_rows(f, f->ple.f, f->wide, P, NULL));
                }
                t = f->x;
                f->x = f->x2;
                f->x2 = t;
                f->x.q_kind = 0;
        }
        if (io->n_out && mixing) {
                f->sub.token = f->sub.state_out = NULL; /* of what is before */
                f->sub.seq = f->sub_seq;
                f->sub.pos = f->sub_pos;
                for (uint32_t i = 0; i < io->n_out; i++) {
                        f->sub_seq[i] = f->bt->seq[io->out_rows[i]];
                        f->sub_pos[i] = f->bt->pos[io->out_rows[i]];
                }
                TRY(f->ops->batch_end(f->dev, f->bt));
                TRY(f->ops->batch_begin(f->dev, &f->sub));
        }
        f->bt = &f->sub;
        return 0;
}

/* The last layer that keeps something of its rows. */
static uint32_t last_keeper(const struct eng_desc *d) {
        uint32_t i = d->n_layer - 1;

        while (i > 0 && d->layer[i].mixer == ENG_MIX_ATTENTION && d->layer[i].attn.kv_shared)
                i--;
        return i;
}

/* last: none that follows keeps anything of its rows. */
static int layer(struct eng_forward *f, uint32_t i, bool last) {
        const struct eng_layer *l = &f->d->layer[i];
        uint32_t E = f->d->n_embd;

        if (f->d->n_altup)
                return fwd_altup_layer(f, l, i);
        TRY(fwd_mixer(f, l));
        if (last && !f->io->hidden && f->io->n_out < f->bt->n && !l->parallel)
                TRY(keep_rows(f, i + 1 < f->d->n_layer));
        if (f->bt->n == 0)
                return 0;
        TRY(fwd_feed_forward(f, l));
        if (f->d->n_ple && k_weight_present(&l->ple_gate))
                TRY(fwd_ple_apply(f, l, i));
        if (l->out_scale != 1) {
                TRY(fwd_flush(f));
                f->x.q_kind = 0;
                TRY(f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = f->x.f, .y_stride = E, .cols = E,
                                                                      .a = l->out_scale, .n = f->bt->n }));
        }
        return 0;
}

static int logits(struct eng_forward *f, const struct k_weight *head, const float *w, const float *b) {
        const struct eng_desc *d = f->d;
        const struct eng_forward_io *io = f->io;
        uint32_t n = io->n_out, V = head->rows;
        struct k_linear_args l = { .x = &f->h, .n_rows = n, .n_d = io->n_out_d };

        if (n == 0 || !k_weight_present(head))
                return 0;
        if (n == f->bt->n) {
                TRY(fwd_norm(f, w, b, fwd_use(&f->h, d->n_embd), 0));
        } else {
                TRY(fwd_flush(f));
                TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){
                        .x = &f->x, .kind = d->norm, .w = w, .b = b, .eps = d->norm_eps, .out_scale = 1, .gather = io->out_rows,
                        .n_rows = n, .out = fwd_use(&f->h, d->n_embd) }));
        }
        fwd_add_out(&l, head, d->output_b, io->logits);
        TRY(f->ops->linear(f->dev, f->bt, &l));
        if (d->logit_softcap != 0)
                return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SOFTCAP, .y = io->logits, .y_stride = V,
                                                                         .cols = V, .a = d->logit_scale, .b = d->logit_softcap,
                                                                         .n = n });
        if (d->logit_scale != 1)
                return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_SCALE, .y = io->logits, .y_stride = V,
                                                                         .cols = V, .a = d->logit_scale, .n = n });
        return 0;
}

/* The output norm of every row, for whoever asked; absent: the residual itself. */
static int hidden(struct eng_forward *f, const float *w, const float *b) {
        struct k_act out = { .f = f->io->hidden, .cols = f->d->n_embd };
        uint32_t E = f->d->n_embd;

        if (!out.f)
                return 0;
        if (w && k_weight_present(&f->d->dense[0])) {
                struct k_act mid = { .f = f->wide, .cols = f->d->dense[0].rows };

                TRY(fwd_norm(f, w, b, fwd_use(&f->h, E), 0));
                TRY(fwd_linear(f, &f->h, &f->d->dense[0], NULL, mid.f));
                return fwd_linear(f, &mid, &f->d->dense[1], NULL, out.f);
        }
        if (w)
                return fwd_norm(f, w, b, &out, 0);
        TRY(fwd_flush(f));
        return f->ops->elem(f->dev, f->bt, &(struct k_elem_args){ .op = K_ELEM_COPY, .y = out.f, .y_stride = E, .cols = E,
                                                                 .x = f->x.f, .x_stride = E, .n = f->bt->n });
}

static void begin(struct eng_forward *f, const struct eng_forward_io *io) {
        f->io = io;
        f->bt = io->batch;
        f->pend = (struct pending){ 0 };
        fwd_use(&f->x, f->d->n_embd);
        fwd_use(&f->h, f->d->n_embd);
        fwd_use(&f->h2, f->d->n_embd);
}

static int embed(struct eng_forward *f) {
        const struct eng_desc *d = f->d;
        struct k_embed_args e = { .w = &d->embed, .index = K_EMBED_TOKEN, .scale = d->embed_scale, .out = &f->x };

        TRY(f->ops->embed(f->dev, f->bt, &e));
        e.add = true;
        e.scale = 1;
        if (k_weight_present(&d->embed_type)) {
                e.w = &d->embed_type;
                e.index = K_EMBED_ZERO;
                TRY(f->ops->embed(f->dev, f->bt, &e));
        }
        if (k_weight_present(&d->embed_pos)) {
                e.w = &d->embed_pos;
                e.index = K_EMBED_POS;
                TRY(f->ops->embed(f->dev, f->bt, &e));
        }
        return d->embed_norm ? fwd_norm(f, d->embed_norm, d->embed_norm_b, &f->x, 0) : 0;
}

int eng_forward_run(struct eng_forward *f, const struct eng_forward_io *io) {
        const struct eng_desc *d = f->d;
        uint32_t keeper;

        if (io->batch->n == 0 || io->batch->n > f->lim.n_rows || io->n_out > io->batch->n)
                return -EINVAL;
        begin(f, io);
        TRY(embed(f));
        if (d->n_ple)
                TRY(fwd_ple_prepare(f));
        if (d->n_altup)
                TRY(fwd_altup_begin(f));
        keeper = last_keeper(d);
        for (uint32_t i = 0; i < d->n_layer && f->bt->n; i++)
                TRY(layer(f, i, i == keeper));
        if (d->n_altup)
                TRY(fwd_altup_end(f));
        TRY(hidden(f, d->out_norm, d->out_norm_b));
        return logits(f, &d->output, d->out_norm, d->out_norm_b);
}

int eng_forward_mtp(struct eng_forward *f, uint32_t k, const struct eng_forward_io *io) {
        const struct eng_desc *d = f->d;
        const struct eng_mtp *m;
        struct k_act h = { .f = (float *)io->h_prev, .cols = d->n_embd };

        if (k >= d->n_mtp || io->batch->n == 0 || io->batch->n > f->lim.n_rows || io->n_out > io->batch->n || !io->h_prev)
                return -EINVAL;
        m = &d->mtp[k];
        begin(f, io);
        TRY(f->ops->embed(f->dev, f->bt, &(struct k_embed_args){ .w = &m->embed, .index = K_EMBED_TOKEN, .scale = d->embed_scale,
                                                                .out = &f->x }));
        TRY(fwd_norm(f, m->enorm, NULL, fwd_use(&f->cat, 2 * d->n_embd), 0));
        TRY(f->ops->norm(f->dev, f->bt, &(struct k_norm_args){ .x = &h, .kind = d->norm, .w = m->hnorm, .eps = d->norm_eps,
                                                              .out_scale = 1, .out = &f->cat, .out_col = d->n_embd }));
        TRY(fwd_linear(f, &f->cat, &m->eh_proj, NULL, fwd_use(&f->x, d->n_embd)->f));
        TRY(layer(f, m->layer, true));
        TRY(hidden(f, m->head_norm, NULL));
        return logits(f, &m->head, m->head_norm, NULL);
}
