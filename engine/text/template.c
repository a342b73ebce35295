/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two entries: compile and render. Both are the landing places of
 * failures (tmpl_int.h); both give back everything on failure.
 */
#include <utf8proc.h>

#include "base/alloc.h"
#include "engine/text/tmpl_int.h"

#define DEFAULT_STEPS 10000000u
#define DEFAULT_OUTPUT ((size_t)16 << 20)

static bool valid_utf8(const char *p, size_t n, size_t *ret_at) {
        utf8proc_int32_t cp;

        for (size_t i = 0; i < n;) {
                utf8proc_ssize_t k = utf8proc_iterate((const uint8_t *)p + i, (utf8proc_ssize_t)(n - i), &cp);
                if (k <= 0) {
                        *ret_at = i;
                        return false;
                }
                i += (size_t)k;
        }
        return true;
}

int tmpl_compile(const char *src, size_t n, struct tmpl **ret, struct h_error *err) {
        struct tmpl *t;
        size_t at;
        int r;

        if (n > T_MAX_SOURCE)
                return h_error_counts(err, HEARTH_E_template_invalid, n, T_MAX_SOURCE,
                                      "the template has %zu bytes, more than %zu", n, T_MAX_SOURCE);
        if (!valid_utf8(src, n, &at))
                return h_error_set(err, HEARTH_E_template_invalid, "the template is not valid UTF-8 at byte %zu", at);
        t = h_new0(struct tmpl, 1);
        if (!t)
                return -ENOMEM;
        t->ctx = (struct t_ctx){ .limit = T_MAX_MEMORY, .what = "the template", .err = err,
                                   .code = HEARTH_E_template_invalid, .line = 1 };
        if (setjmp(t->ctx.jmp)) {
                r = t->ctx.rc;
                tmpl_free(t);
                return r;
        }
        t_parse(t, src, n);
        t->ctx.err = NULL;
        *ret = t;
        return 0;
}

struct tmpl *tmpl_free(struct tmpl *t) {
        if (t) {
                t_ctx_release(&t->ctx);
                free(t);
        }
        return NULL;
}

void tmpl_output_free(struct tmpl_output *o) {
        buf_free(&o->text);
        free(o->seg);
        o->seg = NULL;
        o->n_seg = 0;
}

/*
 * The variables: messages and tools as given, then vars for every name the
 * template mentions. Top-level strings of vars (bos_token, a date) are the
 * caller's own and trusted; what is nested in lists and objects (documents,
 * further tools) is data like the messages.
 */
static void bind_inputs(struct t_run *r) {
        struct t_ctx *c = &r->c;

        for (uint32_t i = 0; i < r->t->n_names; i++) {
                const struct t_str *name = r->t->names[i];
                json_t *j = r->in->vars ? json_object_getn(r->in->vars, name->p, name->n) : NULL;
                bool nested = json_is_array(j) || json_is_object(j);

                if (t_str_is(name, "messages") && r->in->messages)
                        t_bindvar(r, r->globals, i, t_from_json(c, r->in->messages, T_UNTRUSTED, 0));
                else if (t_str_is(name, "tools") && r->in->tools)
                        t_bindvar(r, r->globals, i, t_from_json(c, r->in->tools, T_UNTRUSTED, 0));
                else if (j)
                        t_bindvar(r, r->globals, i, t_from_json(c, j, nested ? T_UNTRUSTED : T_TRUSTED, 0));
        }
}

static int output(const struct t_sb *b, struct tmpl_output *out) {
        struct tmpl_segment *seg = NULL;
        struct buf text = { .limit = out->text.limit };
        size_t n = 0, cap = 0;
        int r = buf_append(&text, b->p, b->n);

        for (size_t i = 0, k; r == 0 && i < b->n; i = k) {
                uint8_t mark = b->trust == T_MIXED ? b->mark[i] : b->trust;
                k = b->trust == T_MIXED ? i + 1 : b->n;
                while (k < b->n && b->mark[k] == mark)
                        k++;
                if (n == cap) {
                        struct tmpl_segment *p;
                        cap = cap ? cap * 2 : 8;
                        p = h_realloc(seg, cap * sizeof(*seg));
                        if (!p) {
                                r = -ENOMEM;
                                break;
                        }
                        seg = p;
                }
                seg[n++] = (struct tmpl_segment){ .off = i, .len = k - i, .trusted = mark == T_TRUSTED };
        }
        if (r < 0) {
                buf_free(&text);
                free(seg);
                return r;
        }
        *out = (struct tmpl_output){ .text = text, .seg = seg, .n_seg = n };
        return 0;
}

int tmpl_render(const struct tmpl *t, const struct tmpl_input *in, struct tmpl_output *out, struct h_error *err) {
        struct t_run *r = h_new0(struct t_run, 1);
        struct t_sb b;
        int rc;

        if (!r)
                return -ENOMEM;
        r->c = (struct t_ctx){ .limit = T_MAX_MEMORY, .what = "the template", .err = err, .code = HEARTH_E_template_invalid,
                              .line = 1 };
        r->t = t;
        r->in = in;
        r->max_steps = in->max_steps ? in->max_steps : DEFAULT_STEPS;
        if (setjmp(r->c.jmp) == 0) {
                t_sb_init(&b, &r->c);
                b.max = in->max_output ? (size_t)in->max_output : DEFAULT_OUTPUT;
                r->out = &b;
                r->globals = t_scope_new(r, NULL);
                bind_inputs(r);
                t_exec(r, r->globals, t->body, t->n_body);
                rc = output(&b, out);
        } else {
                rc = r->c.rc;
        }
        json_decref(r->held);
        t_ctx_release(&r->c);
        free(r);
        return rc;
}
