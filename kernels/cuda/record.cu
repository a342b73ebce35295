/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops as the table has them: they check, copy and append; cuda_flush() runs
 * what was appended (cuda.cuh says why).
 *
 * A k_act's q_kind here is 1 + (number of D rows its image was made for), so an
 * image is never read in the other role's form.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/mail.cuh"
#include "kernels/cuda/moe_router.cuh"

/* ---- running ------------------------------------------------------------------- */

/* Matrices in host memory pass through the ring on their way to prompt rows. */
static int run_linear(struct cuda_dev *d, const struct dbatch *b, const struct cmd_head *h, struct linear_with *with) {
        const struct cmd_linear *p = (const struct cmd_linear *)(h + 1);
        struct cmd_linear c;
        int r;

        if (!cuda_ring_wanted(d, h))
                return cuda_run_linear(d, b, p, with);
        c = *p;
        for (uint32_t i = 0; i < c.n_out; i++)
                if ((r = cuda_ring_enter(d, &c.out[i].w)) < 0)
                        return r;
        r = cuda_run_linear(d, b, &c, with);
        return r < 0 ? r : cuda_ring_leave(d);
}

static int run_moe(struct cuda_dev *d, const struct cmd_head *h, struct moe_with *with) {
        const struct cmd_moe *p = (const struct cmd_moe *)(h + 1);
        struct cmd_moe c;
        int r;

        if (!cuda_ring_wanted(d, h))
                return cuda_run_moe_with(d, p, with);
        c = *p;
        if ((r = cuda_ring_enter(d, &c.gate)) < 0 || (r = cuda_ring_enter(d, &c.up)) < 0 || (r = cuda_ring_enter(d, &c.down)) < 0 ||
            (r = cuda_run_moe_with(d, &c, with)) < 0)
                return r;
        return cuda_ring_leave(d);
}

static int run_one(struct cuda_dev *d, struct dbatch *b, const struct cmd_head *h, struct linear_with *with) {
        void *p = (void *)(h + 1);
        switch ((enum cmd_kind)h->kind) {
        case CMD_BATCH:
                *b = *(const struct dbatch *)p;
                return 0;
        case CMD_EMBED: return cuda_run_embed(d, b, (const struct cmd_embed *)p);
        case CMD_NORM: return cuda_run_norm(d, b, (const struct cmd_norm *)p);
        case CMD_LINEAR: return run_linear(d, b, h, with);
        case CMD_HEAD_LINEAR: return cuda_run_head_linear(d, b, (const struct cmd_head_linear *)p);
        case CMD_GLU: return cuda_run_glu(d, b, (const struct cmd_glu *)p);
        case CMD_QKV: return cuda_run_qkv(d, b, (const struct cmd_qkv *)p);
        case CMD_ATTENTION: return cuda_run_attention(d, b, (const struct cmd_attention *)p, NULL);
        case CMD_DELTA: return cuda_run_delta(d, b, (const struct cmd_delta *)p);
        case CMD_SHORTCONV: return cuda_run_shortconv(d, b, (const struct cmd_shortconv *)p);
        case CMD_MOE: {
                struct moe_with alone = {};
                alone.add = with->add;
                const int r = run_moe(d, h, &alone);
                with->add_done = with->squares_done = alone.add_done;
                return r;
        }
        case CMD_ELEM: return cuda_run_elem(d, b, (const struct cmd_elem *)p);
        case CMD_ALTUP: return cuda_run_altup(d, &((const struct cmd_altup *)p)->a);
        case CMD_HOST: return cuda_run_host(d, (struct cmd_host *)p);
        case CMD_HOST_END: return cuda_run_host_end(d);
        case CMD_SAMPLE: return cuda_run_sample(d, b, (const struct cmd_sample *)p);
        }
        return -EINVAL;
}

static const struct cmd_head *cmd_at(const struct cuda_dev *d, const uint8_t *arena, size_t at) {
        return at < d->arena_used ? (const struct cmd_head *)(arena + at) : NULL;
}
static const struct cmd_glu *glu_of(const struct cmd_head *h) { return h && h->kind == CMD_GLU ? (const struct cmd_glu *)(h + 1) : NULL; }
static const struct cmd_norm *norm_of(const struct cmd_head *h) { return h && h->kind == CMD_NORM ? (const struct cmd_norm *)(h + 1) : NULL; }
static bool is_router(const struct cuda_dev *d, const struct cmd_head *h, const struct cmd_head *moe) {
        return h && moe && h->kind == CMD_LINEAR && moe->kind == CMD_MOE && !cuda_ring_wanted(d, h) &&
               cuda_moe_takes(d, (const struct cmd_linear *)(h + 1), (const struct cmd_moe *)(moe + 1));
}

uint32_t *cuda_mail_box(struct cuda_dev *d, uint32_t kpad) {
        struct cuda_mail *m = &d->mail;
        const size_t words = (mail_image_words(kpad) + 31) & ~(size_t)31; /* lines of its own */

        if (!m->on || words > m->words - m->used)
                return NULL;
        m->used += words;
        return m->mem + m->used - words;
}
void cuda_mail_sent(struct cuda_dev *d, const uint8_t *image, uint32_t kpad, const uint32_t *box) { d->mail.out = {image, kpad, box}; }
const uint32_t *cuda_mail_of(const struct cuda_dev *d, const uint8_t *image, uint32_t kpad) {
        const struct cuda_letter *l = &d->mail.in;

        return l->image && l->image == image && l->kpad == kpad ? l->box : NULL;
}
/* What a command left is for the next one only: whatever came between might change what it was a copy of. */
static void mail_turn(struct cuda_mail *m) {
        m->in = m->out;
        m->out = {};
}

/*
 * A product and the GLU of it, or a product or experts and the addition that the
 * next norm begins with, that norm and the product of what it makes, a router and
 * its experts, or rope and attention: in one kernel where it can be (linear.cu,
 * moe.cu and attention.cu decide). Commands stay as they were recorded.
 */
int cuda_run_all(struct cuda_dev *d, uint8_t *arena) {
        struct dbatch b = d->batch;
        bool added = false, squares = false; /* the addition of the next command is done; d->squares has those of its x */

        d->mail.out = {};
        if (d->has_ring)
                cuda_ring_begin(d);
        for (size_t at = 0; at < d->arena_used;) {
                const struct cmd_head *h = cmd_at(d, arena, at), *next = cmd_at(d, arena, at + h->bytes);
                const struct cmd_head *after = next ? cmd_at(d, arena, at + h->bytes + next->bytes) : NULL;
                struct linear_with with = {};
                struct moe_with moe = {};
                int r = 0;

                mail_turn(&d->mail);
                at += h->bytes;
                if (is_router(d, h, next)) {
                        moe.router = (const struct cmd_linear *)(h + 1);
                        moe.add = norm_of(after);
                        r = run_moe(d, next, &moe);
                        at += next->bytes;
                } else if (h->kind == CMD_QKV && next && next->kind == CMD_ATTENTION &&
                           cuda_attention_takes(d, &b, (const struct cmd_qkv *)(h + 1), (const struct cmd_attention *)(next + 1))) {
                        r = cuda_run_attention(d, &b, (const struct cmd_attention *)(next + 1), (const struct cmd_qkv *)(h + 1));
                        at += next->bytes;
                } else if (h->kind == CMD_NORM && added) {
                        struct cmd_norm n = *norm_of(h);
                        n.has_add = 0;
                        if (squares && is_router(d, next, after) &&
                            cuda_moe_norms(d, (const struct cmd_linear *)(next + 1), (const struct cmd_moe *)(after + 1), &n)) {
                                at += next->bytes + after->bytes;
                                moe.router = (const struct cmd_linear *)(next + 1);
                                moe.norm = &n;
                                moe.add = norm_of(cmd_at(d, arena, at));
                                r = run_moe(d, after, &moe);
                        } else if (squares && next && next->kind == CMD_LINEAR && !cuda_ring_wanted(d, next) &&
                                   cuda_linear_norms(d, (const struct cmd_linear *)(next + 1), &n)) {
                                at += next->bytes;
                                with.norm = &n;
                                with.glu = glu_of(after);
                                r = run_one(d, &b, next, &with);
                                if (with.glu_done)
                                        at += after->bytes;
                        } else if (n.has_out) {
                                r = cuda_run_norm(d, &b, &n);
                        }
                } else {
                        with.glu = glu_of(next);
                        with.add = norm_of(next);
                        r = run_one(d, &b, h, &with);
                        if (with.glu_done)
                                at += next->bytes;
                }
                if (r < 0)
                        return r;
                added = with.add_done || moe.add_done;
                squares = with.squares_done || moe.add_done;
        }
        return 0;
}

int cuda_flush(struct cuda_dev *d) {
        int r;

        if (d->lost)
                return -EIO;
        r = cuda_graph_settle(d);
        if (r < 0 || d->arena_used == 0)
                return r;
        if (d->taking_down) {
                snprintf(d->error, sizeof(d->error), "a step with more than %zu bytes of commands, or one that waits, has no graph",
                         d->arena_bytes);
                return -ENOTSUP;
        }
        r = cuda_stage_send(d);
        if (r == 0)
                r = cuda_run_all(d, d->arena);
        if (r == 0 && d->has_host) /* it reads its arguments from the arena, which is about to be reused */
                CUDA_TRY(d, cudaStreamSynchronize(d->stream), "step");
        d->arena_used = 0;
        d->has_host = d->has_ring = false;
        return r;
}

/* Appends a zeroed command of 'bytes'; NULL after running a full arena fails. */
void *cuda_cmd_new(struct cuda_dev *d, enum cmd_kind kind, size_t bytes) {
        size_t all = (sizeof(struct cmd_head) + bytes + 15) & ~(size_t)15;
        if (d->lost || (d->arena_used + all > d->arena_bytes && cuda_flush(d) < 0))
                return NULL;
        struct cmd_head *h = (struct cmd_head *)(d->arena + d->arena_used);
        memset((void *)h, 0, all);
        h->kind = kind;
        h->bytes = (uint32_t)all;
        d->arena_used += all;
        return h + 1;
}
/* Takes the last command back: what fails after CMD_NEW must not be run by the next flush. Passes r on. */
static int cmd_undo(struct cuda_dev *d, void *c, int r) {
        const size_t at = (size_t)((uint8_t *)((struct cmd_head *)c - 1) - d->arena);

        d->arena_used = MIN(d->arena_used, at);
        return r;
}
#define CMD_NEW(d, kind, type) ((struct type *)cuda_cmd_new((d), (kind), sizeof(struct type)))
/* Outside a batch a command runs at once. */
int cuda_cmd_done(struct cuda_dev *d) { return d->recording ? 0 : cuda_flush(d); }

/* ---- ops --------------------------------------------------------------------------- */

static struct act act_of(const struct k_act *a) {
        struct act r;
        memset((void *)&r, 0, sizeof(r));
        if (a) {
                r.f = a->f;
                r.q = (uint8_t *)a->q;
                r.cols = a->cols;
                r.image = a->q ? a->q_kind : 0;
        }
        return r;
}
/* An op that writes 'out' makes its image too, unless products are exact. */
static uint32_t image_wanted(const struct cuda_dev *d, struct k_act *out, uint32_t n_d) {
        out->q_kind = !d->exact && out->q ? 1 + n_d : 0;
        out->q_rows = UINT32_MAX; /* every row that the op writes */
        return out->q_kind != 0;
}
static struct k_weight weight_of(const struct k_weight *w) {
        struct k_weight r;
        memset((void *)&r, 0, sizeof(r));
        if (k_weight_present(w)) {
                r.type = w->type;
                r.layout = w->layout;
                r.rows = w->rows;
                r.cols = w->cols;
                r.n_expert = w->n_expert;
                r.expert_stride = w->expert_stride;
                r.data = w->data;
                r.scale = w->scale;
                r.place = w->place;
        }
        return r;
}

int cuda_op_embed(struct k_dev *kd, const struct k_batch *kb, const struct k_embed_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_embed *c = CMD_NEW(d, CMD_EMBED, cmd_embed);
        if (!c)
                return -EIO;
        c->w = weight_of(a->w);
        c->index = a->index;
        c->scale = a->scale;
        c->add = a->add;
        c->n = kb->n;
        a->out->q_kind = 0;
        c->out = act_of(a->out);
        return cuda_cmd_done(d);
}

int cuda_op_norm(struct k_dev *kd, const struct k_batch *kb, const struct k_norm_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_norm *c = CMD_NEW(d, CMD_NORM, cmd_norm);
        if (!c)
                return -EIO;
        c->x = act_of(a->x);
        c->add = act_of(a->add);
        c->has_add = a->add != NULL;
        c->has_out = a->out != NULL;
        c->add_norm_w = a->add_norm_w;
        c->add_norm_b = a->add_norm_b;
        c->w = a->w;
        c->b = a->b;
        c->add_scale = a->add_scale;
        c->eps = a->eps;
        c->out_scale = a->out_scale;
        c->kind = a->kind;
        c->group = a->group;
        c->out_col = a->out_col;
        c->n = a->gather ? a->n_rows : kb->n;
        c->n_d = kb->n_d;
        if (a->gather) {
                const void *p;
                int r = cuda_stage(d, a->gather, a->n_rows * sizeof(uint32_t), &p);
                if (r < 0)
                        return cmd_undo(d, c, r);
                c->gather = (const uint32_t *)p;
                c->n_d = 0;
                while (c->n_d < a->n_rows && a->gather[c->n_d] < kb->n_d)
                        c->n_d++;
        }
        if (a->add && a->x)
                ((struct k_act *)a->x)->q_kind = 0;
        if (a->out) {
                bool whole = a->out_col == 0 && a->out->cols == a->x->cols;
                if (whole)
                        c->write_image = image_wanted(d, a->out, c->n_d);
                else
                        a->out->q_kind = 0;
                c->out = act_of(a->out);
        }
        return cuda_cmd_done(d);
}

int cuda_op_linear(struct k_dev *kd, const struct k_batch *kb, const struct k_linear_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        if (a->n_out < 1 || a->n_out > K_LINEAR_MAX || a->n_d > a->n_rows)
                return -EINVAL;
        if (a->n_rows == 0)
                return 0;
        struct cmd_linear *c = CMD_NEW(d, CMD_LINEAR, cmd_linear);
        if (!c)
                return -EIO;
        c->n_out = a->n_out;
        c->row0 = a->row0;
        c->n_rows = a->n_rows;
        c->n_d = a->n_d;
        c->x = act_of(a->x);
        uint32_t split = c->x.image ? c->x.image - 1 : 0;
        if (c->x.image && !a->gather && a->row0 + a->n_rows > a->x->q_rows)
                c->x.image = 0;
        if (a->gather) {
                const void *p;
                int r = cuda_stage(d, a->gather, a->n_rows * sizeof(uint32_t), &p);
                if (r < 0)
                        return cmd_undo(d, c, r);
                c->gather = (const uint32_t *)p;
                for (uint32_t i = 0; i < a->n_rows && c->x.image; i++)
                        if ((i < a->n_d) != (a->gather[i] < split) || a->gather[i] >= a->x->q_rows)
                                c->x.image = 0;
        } else if (c->x.image && a->n_d && a->row0 + a->n_d > split) {
                c->x.image = 0;
        } else if (c->x.image && a->n_d < a->n_rows && a->row0 + a->n_d < split) {
                c->x.image = 0;
        }
        for (uint32_t i = 0; i < a->n_out; i++) {
                c->out[i].w = weight_of(a->out[i].w);
                c->out[i].bias = a->out[i].bias;
                c->out[i].y = a->out[i].y;
                c->out[i].y_stride = a->out[i].y_stride;
        }
        if (!c->x.image && c->x.q && !a->gather && a->row0 == 0 && cuda_linear_wants_image(d, c)) {
                c->make_image = 1; /* once, for whoever reads x next too */
                a->x->q_kind = 1 + a->n_d;
                a->x->q_rows = a->n_rows;
        }
        d->has_ring |= cuda_ring_wanted(d, (const struct cmd_head *)c - 1);
        return cuda_cmd_done(d);
}

int cuda_op_head_linear(struct k_dev *kd, const struct k_batch *kb, const struct k_head_linear_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_head_linear *c = CMD_NEW(d, CMD_HEAD_LINEAR, cmd_head_linear);
        if (!c)
                return -EIO;
        c->a.tail = a->tail;
        c->a.x = a->x;
        c->a.x_stride = a->x_stride;
        c->a.x_head = a->x_head;
        c->a.y = a->y;
        c->a.y_stride = a->y_stride;
        c->a.y_head = a->y_head;
        c->a.n = a->n;
        c->a.n_d = a->n_d;
        c->w = weight_of(a->w);
        return cuda_cmd_done(d);
}

int cuda_op_glu(struct k_dev *kd, const struct k_batch *kb, const struct k_glu_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_glu *c = CMD_NEW(d, CMD_GLU, cmd_glu);
        if (!c)
                return -EIO;
        c->a.gate = a->gate;
        c->a.up = a->up;
        c->a.gate_stride = a->gate_stride;
        c->a.up_stride = a->up_stride;
        c->a.act = a->act;
        c->a.alpha = a->alpha;
        c->a.limit = a->limit;
        c->a.sparse_std = a->gate ? a->sparse_std : 0;
        c->a.n = a->n;
        c->n_d = MIN(kb->n_d, a->n);
        c->write_image = image_wanted(d, a->out, c->n_d);
        c->out = act_of(a->out);
        return cuda_cmd_done(d);
}

static struct k_kv kv_of(const struct k_kv *kv) {
        struct k_kv r;
        memset((void *)&r, 0, sizeof(r));
        if (kv) {
                r.k = kv->k;
                r.v = kv->v;
                r.type_k = kv->type_k;
                r.type_v = kv->type_v;
                r.page_tokens = kv->page_tokens;
                r.n_head_kv = kv->n_head_kv;
                r.dk = kv->dk;
                r.dv = kv->dv;
                r.k_row_bytes = kv->k_row_bytes;
                r.v_row_bytes = kv->v_row_bytes;
                r.group = kv->group;
        }
        return r;
}

int cuda_op_qkv(struct k_dev *kd, const struct k_batch *kb, const struct k_qkv_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_qkv *c = CMD_NEW(d, CMD_QKV, cmd_qkv);
        if (!c)
                return -EIO;
        c->a.q = a->q;
        c->a.q_stride = a->q_stride;
        c->a.q_head = a->q_head;
        c->a.k = a->k;
        c->a.k_stride = a->k_stride;
        c->a.k_head = a->k_head;
        c->a.v = a->v;
        c->a.v_stride = a->v_stride;
        c->a.v_head = a->v_head;
        c->a.n_head = a->n_head;
        c->a.n_head_kv = a->n_head_kv;
        c->a.dk = a->dk;
        c->a.dv = a->dv;
        c->a.rope_off = a->rope_off;
        c->a.q_norm = a->q_norm;
        c->a.k_norm = a->k_norm;
        c->a.k_norm_cols = a->k_norm_cols;
        c->a.v_norm = a->v_norm;
        c->a.norm_full = a->norm_full;
        c->a.norm_eps = a->norm_eps;
        c->a.q_temp = a->q_temp;
        c->a.q_temp_len = a->q_temp_len;
        c->has_kv = a->kv != NULL;
        c->kv = kv_of(a->kv);
        if (a->rope && a->rope->kind != K_ROPE_NONE && a->rope->n_dims) {
                int r = cuda_rope(d, a->rope, &c->freq, &c->mscale);
                if (r < 0)
                        return cmd_undo(d, c, r);
                c->rope_kind = a->rope->kind;
                c->n_dims = a->rope->n_dims;
        }
        return cuda_cmd_done(d);
}

int cuda_op_attention(struct k_dev *kd, const struct k_batch *kb, const struct k_attention_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_attention *c = CMD_NEW(d, CMD_ATTENTION, cmd_attention);
        if (!c)
                return -EIO;
        c->a.q = a->q;
        c->a.q_stride = a->q_stride;
        c->a.q_head = a->q_head;
        c->a.n_head = a->n_head;
        c->a.scale = a->scale;
        c->a.softcap = a->softcap;
        c->a.window = a->window;
        c->a.causal = a->causal;
        c->a.sinks = a->sinks;
        c->a.gate = a->gate;
        c->a.gate_stride = a->gate_stride;
        c->a.gate_head = a->gate_head;
        c->kv = kv_of(a->kv);
        c->write_image = image_wanted(d, a->out, kb->n_d);
        c->out = act_of(a->out);
        return cuda_cmd_done(d);
}

int cuda_op_delta(struct k_dev *kd, const struct k_batch *kb, const struct k_delta_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_delta *c = CMD_NEW(d, CMD_DELTA, cmd_delta);
        if (!c)
                return -EIO;
        c->a.qkv = a->qkv;
        c->a.qkv_stride = a->qkv_stride;
        c->a.z = a->z;
        c->a.z_stride = a->z_stride;
        c->a.beta = a->beta;
        c->a.alpha = a->alpha;
        c->a.ba_stride = a->ba_stride;
        c->a.ba_run = a->ba_run;
        c->a.n_k = a->n_k;
        c->a.n_v = a->n_v;
        c->a.s_k = a->s_k;
        c->a.s_v = a->s_v;
        c->a.k_head_blocked = a->k_head_blocked;
        c->a.conv = a->conv;
        c->a.conv_w = a->conv_w;
        c->a.a = a->a;
        c->a.dt_bias = a->dt_bias;
        c->a.norm_w = a->norm_w;
        c->a.eps = a->eps;
        c->a.conv_state = a->conv_state;
        c->a.state = a->state;
        c->write_image = image_wanted(d, a->out, kb->n_d);
        c->out = act_of(a->out);
        return cuda_cmd_done(d);
}

int cuda_op_shortconv(struct k_dev *kd, const struct k_batch *kb, const struct k_shortconv_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_shortconv *c = CMD_NEW(d, CMD_SHORTCONV, cmd_shortconv);
        if (!c)
                return -EIO;
        c->a.bcx = a->bcx;
        c->a.stride = a->stride;
        c->a.d = a->d;
        c->a.conv = a->conv;
        c->a.conv_w = a->conv_w;
        c->a.conv_state = a->conv_state;
        c->write_image = image_wanted(d, a->out, kb->n_d);
        c->out = act_of(a->out);
        return cuda_cmd_done(d);
}

int cuda_op_moe(struct k_dev *kd, const struct k_batch *kb, const struct k_moe_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        if (a->n_used == 0 || a->n_used > CUDA_EXPERTS_USED || a->n_expert > CUDA_EXPERTS || a->n_used > a->n_expert)
                return -EINVAL;
        struct cmd_moe *c = CMD_NEW(d, CMD_MOE, cmd_moe);
        if (!c)
                return -EIO;
        c->a.router = a->router;
        c->a.router_stride = a->router_stride;
        c->a.select_bias = a->select_bias;
        c->a.n_expert = a->n_expert;
        c->a.n_used = a->n_used;
        c->a.n_group = a->n_group;
        c->a.n_group_used = a->n_group_used;
        c->a.gating = a->gating;
        c->a.norm_weights = a->norm_weights;
        c->a.weight_scale = a->weight_scale;
        c->a.gate_b = a->gate_b;
        c->a.up_b = a->up_b;
        c->a.down_b = a->down_b;
        c->a.act = a->act;
        c->a.alpha = a->alpha;
        c->a.limit = a->limit;
        c->a.scratch = a->scratch;
        c->a.scratch_bytes = a->scratch_bytes;
        c->a.y = a->y;
        c->a.y_stride = a->y_stride;
        c->a.n = a->n;
        c->a.n_d = a->n_d;
        c->x = act_of(a->x);
        c->gate = weight_of(a->gate);
        c->up = weight_of(a->up);
        c->down = weight_of(a->down);
        d->has_ring |= cuda_ring_wanted(d, (const struct cmd_head *)c - 1);
        return cuda_cmd_done(d);
}

int cuda_op_elem(struct k_dev *kd, const struct k_batch *kb, const struct k_elem_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);
        struct cmd_elem *c = CMD_NEW(d, CMD_ELEM, cmd_elem);
        if (!c)
                return -EIO;
        c->a.op = a->op;
        c->a.y = a->y;
        c->a.y_stride = a->y_stride;
        c->a.cols = a->cols;
        c->a.x = a->x;
        c->a.x_stride = a->x_stride;
        c->a.a = a->a;
        c->a.b = a->b;
        c->a.n = a->n;
        if (a->op == K_ELEM_COPY && a->gather) {
                const void *p;
                int r = cuda_stage(d, a->gather, a->n * sizeof(uint32_t), &p);
                if (r < 0)
                        return cmd_undo(d, c, r);
                c->gather = (const uint32_t *)p;
        }
        return cuda_cmd_done(d);
}

/* ---- rope tables -------------------------------------------------------------------- */

/*
 * Angle per position of each pair, as k_rope_params defines it; YaRN's blend of
 * the scaled and the plain angle is linear in the position, so it fits in the
 * same number (arXiv:2309.00071, section 3.2).
 */
static float yarn_dim(float n_dims, float n_ctx, float beta, float base) {
        return n_dims * logf(n_ctx / (beta * 2 * (float)M_PI)) / (2 * logf(base));
}

static bool rope_same(const struct k_rope_params *a, const struct k_rope_params *b) {
        return a->n_dims == b->n_dims && a->base == b->base && a->freq_scale == b->freq_scale && a->ext_factor == b->ext_factor &&
               a->attn_factor == b->attn_factor && a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
               a->n_ctx_orig == b->n_ctx_orig;
}

int cuda_rope(struct cuda_dev *d, const struct k_rope_params *p, const double **ret_freq, float *ret_mscale) {
        double table[CUDA_ROPE_DIMS / 2];
        float low = 0, high = 0;
        uint32_t half = p->n_dims / 2, at;
        uint64_t hash = 0;

        if (p->n_dims > CUDA_ROPE_DIMS || p->n_dims % 2)
                return -EINVAL;
        /* The factors' content is part of the key: another model's may come to lie at the same address. */
        for (uint32_t i = 0; p->factors && i < half; i++) {
                uint32_t bits;
                memcpy(&bits, &p->factors[i], 4);
                hash = (hash ^ bits) * 0x9e3779b97f4a7c15u + 1;
        }
        for (at = 0; at < d->n_rope; at++)
                if (d->rope[at].hash == hash && rope_same(&d->rope[at].p, p))
                        break;
        *ret_freq = d->rope_dev + (size_t)at * (CUDA_ROPE_DIMS / 2);
        *ret_mscale = p->attn_factor;
        if (at < d->n_rope)
                return 0;
        if (at == CUDA_ROPE_MAX) {
                snprintf(d->error, sizeof(d->error), "more than %d different rope tables", CUDA_ROPE_MAX);
                return -E2BIG;
        }
        if (p->ext_factor != 0) {
                low = fmaxf(0, floorf(yarn_dim(p->n_dims, p->n_ctx_orig, p->beta_fast, p->base)));
                high = fminf(p->n_dims - 1, ceilf(yarn_dim(p->n_dims, p->n_ctx_orig, p->beta_slow, p->base)));
        }
        for (uint32_t i = 0; i < half; i++) {
                double plain = pow((double)p->base, -2.0 * i / p->n_dims) / (p->factors ? (double)p->factors[i] : 1.0), mix = 0;
                if (p->ext_factor != 0) {
                        double y = ((double)i - low) / fmax(0.001, (double)high - low);
                        mix = (1 - fmin(1, fmax(0, y))) * p->ext_factor;
                }
                table[i] = plain * p->freq_scale * (1 - mix) + plain * mix;
        }
        /* Once per table: during a model's first step, before any graph. */
        CUDA_TRY(d, cudaMemcpyAsync((void *)*ret_freq, table, half * sizeof(double), cudaMemcpyHostToDevice, d->stream), "rope table");
        CUDA_TRY(d, cudaStreamSynchronize(d->stream), "rope table");
        d->rope[at].hash = hash;
        d->rope[at].p = *p;
        d->n_rope++;
        return 0;
}

int cuda_op_altup(struct k_dev *kd, const struct k_batch *, const struct k_altup_args *a) {
        struct cuda_dev *d = cuda_dev_of(kd);

        if (a->n_stream > K_ALTUP_MAX || a->active >= a->n_stream)
                return -EINVAL;
        struct cmd_altup *c = CMD_NEW(d, CMD_ALTUP, cmd_altup);
        if (!c)
                return -EIO;
        c->a = *a;
        return cuda_cmd_done(d);
}
