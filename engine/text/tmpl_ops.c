/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic, membership and iteration. Integers have 64 bits; a result that
 * does not fit is an error, never a wrap.
 */
#include <math.h>

#include "engine/text/tmpl_int.h"

_Noreturn static void overflow(struct t_run *r) {
        t_fail(&r->c, "an integer does not fit 64 bits");
}

static struct t_val repeat(struct t_run *r, struct t_val v, int64_t times) {
        size_t n = times > 0 ? (size_t)times : 0, total;

        if (!size_mul(v.kind == V_STR ? v.s->n : v.l->n, n, &total) || total > T_MAX_MEMORY)
                t_fail(&r->c, "a repetition is too long");
        t_step(r, 1 + total / 8);
        if (v.kind == V_STR) {
                struct t_sb b;
                t_sb_init(&b, &r->c);
                for (size_t i = 0; v.s->n && i < n; i++)
                        t_sb_str(&b, v.s);
                return t_strv(t_sb_done(&b));
        }
        struct t_list *l = t_list_new(&r->c, total);
        for (size_t i = 0; v.l->n && i < n; i++)
                for (size_t k = 0; k < v.l->n; k++)
                        t_list_push(&r->c, l, v.l->v[k]);
        return t_listv(v.kind, l);
}

static struct t_val add(struct t_run *r, struct t_val a, struct t_val b) {
        if (a.kind == V_STR && b.kind == V_STR) {
                struct t_str *s;
                bool markup = a.s->markup || b.s->markup;
                t_step(r, (a.s->n + b.s->n) / 16);
                if (!markup)
                        return t_strv(t_str_cat(&r->c, a.s, b.s));
                s = (struct t_str *)t_str_cat(&r->c, t_escape(&r->c, a.s), t_escape(&r->c, b.s));
                s->markup = true; /* Markup + str escapes the other side */
                return t_strv(s);
        }
        if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
                struct t_list *l = t_list_new(&r->c, a.l->n + b.l->n);
                t_step(r, a.l->n + b.l->n);
                for (size_t i = 0; i < a.l->n; i++)
                        t_list_push(&r->c, l, a.l->v[i]);
                for (size_t i = 0; i < b.l->n; i++)
                        t_list_push(&r->c, l, b.l->v[i]);
                return t_listv(a.kind, l);
        }
        if (a.kind == V_STR)
                t_fail(&r->c, "can only concatenate str (not \"%s\") to str", t_type_name(b));
        if (a.kind == V_LIST || a.kind == V_TUPLE)
                t_fail(&r->c, "can only concatenate %s (not \"%s\") to %s", t_type_name(a), t_type_name(b), t_type_name(a));
        t_fail(&r->c, "unsupported operand type(s) for +: '%s' and '%s'", t_type_name(a), t_type_name(b));
}

static struct t_val int_op(struct t_run *r, int op, int64_t a, int64_t b) {
        int64_t v, q;

        switch (op) {
        case N_ADD:
                if (__builtin_add_overflow(a, b, &v))
                        overflow(r);
                return t_int(v);
        case N_SUB:
                if (__builtin_sub_overflow(a, b, &v))
                        overflow(r);
                return t_int(v);
        case N_MUL:
                if (__builtin_mul_overflow(a, b, &v))
                        overflow(r);
                return t_int(v);
        case N_POW:
                if (b < 0)
                        return t_float(pow((double)a, (double)b));
                if (a == 0 || a == 1 || a == -1) /* the only bases whose powers stay small */
                        return t_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
                for (v = 1; b > 0; b--)
                        if (__builtin_mul_overflow(v, a, &v))
                                overflow(r);
                return t_int(v);
        default: /* N_FLOORDIV, N_MOD: toward minus infinity */
                if (b == 0)
                        t_fail(&r->c, "integer division or modulo by zero");
                if (b == -1) {
                        if (op == N_MOD)
                                return t_int(0);
                        return int_op(r, N_SUB, 0, a);
                }
                q = a / b;
                v = a % b;
                if (v != 0 && (v < 0) != (b < 0)) {
                        q--;
                        v += b;
                }
                return t_int(op == N_MOD ? v : q);
        }
}

static struct t_val float_op(struct t_run *r, int op, double a, double b) {
        double m;

        switch (op) {
        case N_ADD: return t_float(a + b);
        case N_SUB: return t_float(a - b);
        case N_MUL: return t_float(a * b);
        case N_POW: return t_float(pow(a, b));
        case N_DIV:
                if (b == 0)
                        t_fail(&r->c, "division by zero");
                return t_float(a / b);
        default:
                if (b == 0)
                        t_fail(&r->c, "float floor division or modulo by zero");
                m = fmod(a, b);
                if (m != 0 && (m < 0) != (b < 0))
                        m += b;
                return t_float(op == N_MOD ? m : floor((a - m) / b + 0.5));
        }
}

struct t_val t_binary(struct t_run *r, int op, struct t_val a, struct t_val b) {
        static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };

        if (t_is_num(a) && t_is_num(b)) {
                if (t_is_int(a) && t_is_int(b) && op != N_DIV)
                        return int_op(r, op, t_as_int(a), t_as_int(b));
                return float_op(r, op, t_as_float(a), t_as_float(b));
        }
        if (op == N_ADD)
                return add(r, a, b);
        if (op == N_MUL && t_is_int(b) && (a.kind == V_STR || a.kind == V_LIST || a.kind == V_TUPLE))
                return repeat(r, a, t_as_int(b));
        if (op == N_MUL && t_is_int(a) && (b.kind == V_STR || b.kind == V_LIST || b.kind == V_TUPLE))
                return repeat(r, b, t_as_int(a));
        if (op == N_MOD && a.kind == V_STR)
                return t_percent(r, a.s, b, NULL);
        t_fail(&r->c, "unsupported operand type(s) for %s: '%s' and '%s'", names[op - N_ADD], t_type_name(a), t_type_name(b));
}

bool t_contains(struct t_run *r, struct t_val in, struct t_val x) {
        struct t_val v;
        struct t_iter it;

        if (in.kind == V_STR) {
                if (x.kind == V_UNDEF)
                        t_fail(&r->c, "'in <string>' with an undefined value");
                if (x.kind != V_STR)
                        t_fail(&r->c, "'in <string>' requires string as left operand, not %s", t_type_name(x));
                t_step(r, in.s->n / 16);
                return t_str_find(in.s, x.s, 0, in.s->n) >= 0;
        }
        if (in.kind == V_DICT)
                return t_dict_find(&r->c, in.d, x) != NULL;
        if (in.kind == V_RANGE && t_is_int(x)) {
                int64_t d;
                return in.r->n && !__builtin_sub_overflow(t_as_int(x), in.r->start, &d) && d % in.r->step == 0 &&
                       d / in.r->step >= 0 && (uint64_t)(d / in.r->step) < in.r->n;
        }
        if (in.kind == V_NONE || t_is_num(in))
                t_fail(&r->c, "argument of type '%s' is not iterable", t_type_name(in));
        it = t_iter_begin(r, in);
        while (t_iter_next(r, &it, &v))
                if (t_eq(r, v, x))
                        return true;
        return false;
}

struct t_iter t_iter_begin(struct t_run *r, struct t_val v) {
        switch (v.kind) {
        case V_ABSENT: case V_UNDEF: case V_STR: case V_LIST: case V_TUPLE: case V_DICT: case V_GEN: case V_VIEW: case V_RANGE:
                return (struct t_iter){ .v = v };
        case V_LOOP: case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_NS: case V_MACRO: case V_FUNC: case V_METHOD:
        case V_CYCLER: case V_JOINER:
                break;
        }
        t_fail(&r->c, "'%s' object is not iterable", t_type_name(v));
}

bool t_iter_next(struct t_run *r, struct t_iter *it, struct t_val *ret) {
        int32_t cp;
        size_t n;

        t_step(r, 1);
        switch (it->v.kind) {
        case V_STR:
                if (it->pos >= it->v.s->n)
                        return false;
                n = t_cp(it->v.s->p + it->pos, it->v.s->n - it->pos, &cp);
                *ret = t_strv(t_str_sub(&r->c, it->v.s, it->pos, n));
                it->pos += n;
                return true;
        case V_GEN:
                if (it->v.l->pos >= it->v.l->n)
                        return false;
                *ret = it->v.l->v[it->v.l->pos++];
                return true;
        case V_LIST: case V_TUPLE: case V_VIEW: /* the length is looked at each time: lists may grow meanwhile */
                if (it->pos >= it->v.l->n)
                        return false;
                *ret = it->v.l->v[it->pos++];
                return true;
        case V_DICT:
                while (it->pos < it->v.d->used && it->v.d->e[it->pos].dead)
                        it->pos++;
                if (it->pos >= it->v.d->used)
                        return false;
                *ret = it->v.d->e[it->pos++].k;
                return true;
        case V_RANGE:
                if (it->pos >= it->v.r->n)
                        return false;
                *ret = t_int(it->v.r->start + (int64_t)it->pos++ * it->v.r->step);
                return true;
        case V_ABSENT: case V_UNDEF: case V_NONE: case V_BOOL: case V_INT: case V_FLOAT: case V_NS: case V_MACRO: case V_FUNC:
        case V_METHOD: case V_LOOP: case V_CYCLER: case V_JOINER:
                break;
        }
        return false;
}

struct t_list *t_to_list(struct t_run *r, struct t_val v) {
        struct t_iter it = t_iter_begin(r, v);
        struct t_list *l = t_list_new(&r->c, 0);
        struct t_val x;

        while (t_iter_next(r, &it, &x))
                t_list_push(&r->c, l, x);
        return l;
}
