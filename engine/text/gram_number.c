/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON numbers under bounds, read digit by digit. For a prefix two questions
 * are answered: is it a number within the bounds (accept), and can it become
 * one (viable)? Bounds are decimals and compared exactly.
 *
 * Which spellings count. Whole numbers (type integer, whole multiples, whole
 * constants): digits only. JSON schema calls 5.0 and 5e0 integers too, but most
 * programs that read an integer don't, and a model that has begun "5." could
 * only go on with zeros. Other numbers without bounds: any JSON number of up to
 * 64 characters with an exponent of up to 2 digits (3 if it begins with 1 or 2).
 * With bounds: plain decimals, and exponents only in the usual form with one
 * digit before the point (1.5e-7), because otherwise every number could be
 * brought into every range by an exponent and a model that wrote too many
 * digits would be forced into one. A single number: no more digits behind the
 * point than it needs; a double beyond 10^18 (1e25) with an exponent only, as
 * its digits written out are another number for those who read them as whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/gram_schema.h"

#define MAX_TEXT 64
#define MAX_EXP 300
#define MAX_POINT_EXP 330 /* of a single number: any double's */
#define MAX_FRAC 24
#define INT_CAP INT64_C(1000000000000000000) /* 10^18 */
#define MAX_BIG 60 /* digits */

/* ---- decimals ---- */

bool gs_dec_parse(const char *p, size_t n, struct gs_dec *ret) {
        struct gs_dec d = { 0 };
        bool point = false;
        long exp = 0, e = 0;
        size_t i = 0;

        if (n && (p[0] == '-' || p[0] == '+'))
                d.neg = p[i++] == '-';
        for (; i < n; i++) {
                if (p[i] == '.') {
                        point = true;
                } else if (p[i] >= '0' && p[i] <= '9') {
                        if (d.n || p[i] != '0') {
                                if (d.n == sizeof(d.d))
                                        return false;
                                d.d[d.n++] = p[i];
                                exp += !point;
                        } else {
                                exp -= point;
                        }
                } else {
                        break;
                }
        }
        if (i < n) {
                char *end, text[16];
                if ((p[i] != 'e' && p[i] != 'E') || n - i - 1 >= sizeof(text))
                        return false;
                memcpy(text, p + i + 1, n - i - 1);
                text[n - i - 1] = 0;
                e = strtol(text, &end, 10);
                if (*end)
                        return false;
        }
        while (d.n && d.d[d.n - 1] == '0')
                d.n--;
        d.exp = d.n ? (int)(exp + e) : 0;
        if (d.n == 0)
                d.neg = false;
        *ret = d;
        return true;
}

static int cmp_magnitude(const struct gs_dec *a, const struct gs_dec *b) {
        int r;

        if (!a->n || !b->n)
                return (a->n > 0) - (b->n > 0);
        if (a->exp != b->exp)
                return a->exp > b->exp ? 1 : -1;
        r = memcmp(a->d, b->d, MIN(a->n, b->n));
        return r ? (r > 0) - (r < 0) : (a->n > b->n) - (a->n < b->n);
}

int gs_dec_cmp(const struct gs_dec *a, const struct gs_dec *b) {
        if (a->neg != b->neg)
                return a->neg ? -1 : 1;
        return a->neg ? -cmp_magnitude(a, b) : cmp_magnitude(a, b);
}

/* ---- the pieces of a prefix ---- */

struct parts {
        bool neg, dot, exp, exp_neg, exp_sign;
        const char *ip, *fp, *ep;
        size_t n_int, n_frac, n_exp;
};

static bool split(const char *t, size_t n, struct parts *ret) {
        struct parts p = { 0 };
        size_t i = 0;

        if (n > MAX_TEXT)
                return false;
        if (n && t[0] == '-') {
                p.neg = true;
                i++;
        }
        p.ip = t + i;
        while (i < n && t[i] >= '0' && t[i] <= '9') {
                i++;
                p.n_int++;
        }
        if (p.n_int > 1 && p.ip[0] == '0')
                return false;
        if (i < n && t[i] == '.') {
                if (!p.n_int)
                        return false;
                p.dot = true;
                p.fp = t + ++i;
                while (i < n && t[i] >= '0' && t[i] <= '9') {
                        i++;
                        p.n_frac++;
                }
        }
        if (i < n && (t[i] == 'e' || t[i] == 'E')) {
                if (!p.n_int || (p.dot && !p.n_frac))
                        return false;
                p.exp = true;
                i++;
                if (i < n && (t[i] == '+' || t[i] == '-')) {
                        p.exp_sign = true;
                        p.exp_neg = t[i++] == '-';
                }
                p.ep = t + i;
                while (i < n && t[i] >= '0' && t[i] <= '9') {
                        i++;
                        p.n_exp++;
                }
                if (p.n_exp > 3)
                        return false;
        }
        if (i != n)
                return false;
        *ret = p;
        return true;
}

static bool complete(const struct parts *p) {
        return p->n_int && (!p->dot || p->n_frac) && (!p->exp || p->n_exp);
}

/* Exponents that can still come of the digits written, one after the other from *k; false when there are no more. */
static bool next_exponent(const struct parts *p, int *k, int max) {
        for (;;) {
                char text[8];
                int n;
                if (++*k > max)
                        return false;
                n = snprintf(text, sizeof(text), "%d", *k);
                /* leading zeros: "e05" is what some printers write */
                if (p->n_exp == 0)
                        return true;
                if ((size_t)n >= p->n_exp && memcmp(text, p->ep, p->n_exp) == 0)
                        return true;
                n = snprintf(text, sizeof(text), "%02d", *k);
                if ((size_t)n >= p->n_exp && memcmp(text, p->ep, p->n_exp) == 0)
                        return true;
        }
}

/* ---- integers ---- */

struct irange { bool has_hi; __int128 lo, hi; }; /* of magnitudes */

static bool magnitudes(const struct gs_number *a, bool neg, struct irange *ret) {
        struct irange r = { 0 };

        if (neg) {
                r.lo = a->has_hi && a->ihi < 0 ? -(__int128)a->ihi : 0;
                r.has_hi = a->has_lo;
                r.hi = -(__int128)a->ilo;
        } else {
                r.lo = a->has_lo && a->ilo > 0 ? a->ilo : 0;
                r.has_hi = a->has_hi;
                r.hi = a->ihi;
        }
        *ret = r;
        return !r.has_hi || r.lo <= r.hi;
}

/* A multiple of m in [from, to] and in the range? 'to' < 0: no end. */
static bool has_multiple(const struct irange *r, __int128 from, __int128 to, int64_t m) {
        if (from < r->lo)
                from = r->lo;
        if (r->has_hi && (to < 0 || to > r->hi))
                to = r->hi;
        if (m > 1)
                from = (from + m - 1) / m * m;
        return to < 0 || from <= to;
}

/* *need: digits until it is one. */
static unsigned check_integer(const struct gs_number *a, const struct parts *p, uint32_t *need) {
        int64_t m = a->multiple ? a->multiple : 1;
        __int128 v = 0;
        struct irange r;
        unsigned out = 0;
        bool huge = false;

        *need = 0;

        if (!magnitudes(a, p->neg, &r))
                return 0;
        if (p->dot || p->exp)
                return 0;
        if (p->n_int == 0) {
                __int128 end = 10;
                for (*need = 1; *need < MAX_TEXT - 4 && end < (__int128)INT_CAP * 1000000000 && !has_multiple(&r, *need == 1 ? 0 : end / 10, end - 1, m); end *= 10)
                        ++*need;
                return has_multiple(&r, 0, -1, m) ? GS_VIABLE : 0;
        }
        for (size_t i = 0; i < p->n_int; i++) {
                v = v * 10 + (p->ip[i] - '0');
                if (v > (__int128)INT_CAP * 1000000000) { /* past every bound; only its remainder matters */
                        huge = true;
                        v = (__int128)INT_CAP * 1000000000 / m * m + v % m;
                }
        }
        if (has_multiple(&r, v, v, m) && !(huge && r.has_hi))
                out |= GS_VIABLE | (complete(p) ? GS_ACCEPT : 0);
        if (p->ip[0] == '0')
                return out;
        if (huge)
                return r.has_hi || m > 1 ? out : out | GS_VIABLE;
        __int128 from = v, to = v + 1;
        for (size_t j = p->n_int; j < MAX_TEXT - 4; j++) {
                from *= 10;
                to *= 10;
                if (r.has_hi && from > r.hi)
                        break;
                if (has_multiple(&r, from, to - 1, m)) {
                        *need = out & GS_ACCEPT ? 0 : (uint32_t)(j - p->n_int + 1);
                        return out | GS_VIABLE;
                }
                if (from > (__int128)INT_CAP * 1000000000)
                        break;
        }
        return out;
}

/* ---- one whole number beyond 10^18 ---- */

static size_t big_text(const struct gs_number *a, char ret[MAX_BIG + 2]) {
        size_t n = 0;

        if (a->lo.neg)
                ret[n++] = '-';
        memcpy(ret + n, a->lo.d, a->lo.n);
        memset(ret + n + a->lo.n, '0', (size_t)a->lo.exp - a->lo.n);
        return n + (size_t)a->lo.exp;
}

static unsigned check_big(const struct gs_number *a, const char *text, size_t len, uint32_t *need) {
        char all[MAX_BIG + 2];
        size_t n = big_text(a, all);

        *need = (uint32_t)(n - MIN(len, n));
        return len > n || memcmp(all, text, len) != 0 ? 0 : len == n ? GS_VIABLE | GS_ACCEPT : GS_VIABLE;
}

int64_t gs_dec_modulo(const struct gs_dec *d, int64_t m) {
        __int128 v = 0;

        for (int i = 0; i < d->exp; i++)
                v = (v * 10 + (i < d->n ? d->d[i] - '0' : 0)) % m;
        return (int64_t)v;
}

/* ---- decimals ---- */

/* Does [lo, hi) of magnitudes, with the sign, meet the bounds? */
static bool meets(const struct gs_number *a, bool neg, struct gs_dec lo, const struct gs_dec *hi) {
        struct gs_dec h = *hi;
        int c;

        lo.neg = neg && lo.n;
        h.neg = neg && h.n;
        if (!neg) {
                if (a->has_hi && ((c = gs_dec_cmp(&lo, &a->hi)) > 0 || (c == 0 && a->hi_excl)))
                        return false;
                return !a->has_lo || gs_dec_cmp(&h, &a->lo) > 0;
        }
        if (a->has_lo && ((c = gs_dec_cmp(&lo, &a->lo)) < 0 || (c == 0 && a->lo_excl)))
                return false;
        return !a->has_hi || gs_dec_cmp(&h, &a->hi) < 0;
}

static bool inside(const struct gs_number *a, const struct gs_dec *v) {
        int c;

        if (a->has_lo && ((c = gs_dec_cmp(v, &a->lo)) < 0 || (c == 0 && a->lo_excl)))
                return false;
        return !a->has_hi || ((c = gs_dec_cmp(v, &a->hi)) < 0 || (c == 0 && !a->hi_excl));
}

bool gs_number_inside(const struct gs_number *n, const struct gs_dec *d) {
        return inside(n, d);
}

static double double_of(const struct gs_dec *d) {
        char t[sizeof(d->d) + 24];

        snprintf(t, sizeof(t), "%s0.%.*s0e%d", d->neg ? "-" : "", (int)d->n, d->d, d->exp);
        return strtod(t, NULL);
}

/* What is inside, also as the double that validators compare: it may be rounded to a bound. */
static bool inside_double(const struct gs_number *a, const struct gs_dec *v) {
        bool lo = a->has_lo && a->lo_excl, hi = a->has_hi && a->hi_excl;
        double x = lo || hi ? double_of(v) : 0;

        return (!lo || x > a->lo_double) && (!hi || x < a->hi_double);
}

/* The digits written as [lo, hi): what can follow changes only what comes behind them. */
static void interval(const struct parts *p, struct gs_dec *ret_lo, struct gs_dec *ret_hi) {
        char t[MAX_TEXT + 4];
        size_t n = 0;
        int i;

        t[n++] = '0';
        memcpy(t + n, p->ip, p->n_int);
        n += p->n_int;
        if (p->n_frac) {
                t[n++] = '.';
                memcpy(t + n, p->fp, p->n_frac);
                n += p->n_frac;
        }
        gs_dec_parse(t, n, ret_lo);
        for (i = (int)n - 1; i >= 0; i--) { /* plus one in the last place */
                if (t[i] == '.')
                        continue;
                if (t[i] != '9') {
                        t[i]++;
                        break;
                }
                t[i] = '0';
        }
        gs_dec_parse(t, n, ret_hi);
}

static struct gs_dec scaled(struct gs_dec d, int k) {
        if (d.n)
                d.exp += k;
        return d;
}

/* Magnitudes with so many digits behind the point at most: the nearest to d that is not above it (up: not below), 'step' further. */
static struct gs_dec on_grid(struct gs_dec d, int digits, bool up, int step) {
        char t[MAX_TEXT + MAX_FRAC + 8]; /* d is no more than what a text says, and one */
        const int places = d.exp + digits; /* of its digits */
        size_t n = 0;

        t[n++] = '0';
        for (int i = 0; i < places; i++)
                t[n++] = i < d.n ? d.d[i] : '0';
        step += up && d.n && d.n > places; /* what has no place */
        for (int i = (int)n - 1; step && i >= 0; i--) {
                int digit = t[i] - '0' + step;
                step = digit > 9 ? 1 : digit < 0 ? -1 : 0;
                t[i] = (char)('0' + (digit + 10) % 10);
        }
        if (step < 0) /* below zero: zero */
                memset(t, '0', n);
        gs_dec_parse(t, n, &d);
        if (d.n)
                d.exp -= digits;
        return d;
}

static bool fits(const struct gs_number *a, bool neg, const struct gs_dec *lo, const struct gs_dec *hi, struct gs_dec x) {
        if (gs_dec_cmp(&x, lo) < 0 || gs_dec_cmp(&x, hi) >= 0)
                return false;
        x.neg = neg && x.n;
        return inside(a, &x) && inside_double(a, &x);
}

/*
 * Is there a decimal with so many digits behind the point in [lo, hi), of magnitudes, that is within the bounds? The first
 * and the last that may be are tried: one of them is, unless there is hardly a double between the bounds.
 */
static bool some_fraction(const struct gs_number *a, bool neg, const struct gs_dec *lo, const struct gs_dec *hi, int digits) {
        struct gs_dec near = neg ? a->hi : a->lo, far = neg ? a->lo : a->hi, first = *lo, x;
        bool has_near = (neg ? a->has_hi : a->has_lo) && near.n && near.neg == neg, has_far = (neg ? a->has_lo : a->has_hi) && (!far.n || far.neg == neg);

        near.neg = far.neg = false;
        if (has_near && gs_dec_cmp(&near, hi) >= 0)
                return false;
        if (has_near && gs_dec_cmp(&near, &first) > 0)
                first = near;
        x = on_grid(first, digits, true, 0);
        if (fits(a, neg, lo, hi, x) || fits(a, neg, lo, hi, on_grid(x, digits, true, 1))) /* a bound may leave itself out */
                return true;
        x = has_far && gs_dec_cmp(&far, hi) < 0 ? on_grid(far, digits, false, 0) : on_grid(*hi, digits, false, -1);
        return fits(a, neg, lo, hi, x) || fits(a, neg, lo, hi, on_grid(x, digits, false, -1));
}

/* Exactly one number? */
static bool point(const struct gs_number *a) {
        return a->has_lo && a->has_hi && gs_dec_cmp(&a->lo, &a->hi) == 0;
}

/* Scales at which a mantissa of one digit before the point may meet the bounds on this side of zero. */
static bool some_scale(const struct gs_number *a, bool neg, const struct gs_dec *lo, const struct gs_dec *hi) {
        static const struct gs_dec zero;
        bool has_far = neg ? a->has_lo : a->has_hi, has_near = neg ? a->has_hi : a->has_lo;
        const struct gs_dec *far = neg ? &a->lo : &a->hi, *near = neg ? &a->hi : &a->lo;
        int from, to;

        if (has_far && (neg ? gs_dec_cmp(far, &zero) >= 0 : gs_dec_cmp(far, &zero) <= 0))
                return false; /* nothing on this side but perhaps zero */
        if (!has_near || (neg ? gs_dec_cmp(near, &zero) >= 0 : gs_dec_cmp(near, &zero) <= 0))
                return true; /* small enough is within */
        if (!has_far)
                return true; /* large enough is within */
        from = MAX(near->exp - 2, -(point(a) ? MAX_POINT_EXP : MAX_EXP));
        to = MIN(far->exp + 2, point(a) ? MAX_POINT_EXP : MAX_EXP);
        for (int k = from; k <= to; k++) {
                struct gs_dec h = scaled(*hi, k);
                struct gs_dec l = scaled(*lo, k);
                if (some_fraction(a, neg, &l, &h, MAX_FRAC - k))
                        return true;
        }
        return false;
}

static unsigned check_decimal(const struct gs_number *a, const struct parts *p, const char *text, size_t len) {
        struct gs_dec lo, hi, v;
        unsigned out = 0;
        bool one = p->n_int == 1 && p->ip[0] != '0', single = point(a);
        const int max_exp = single ? MAX_POINT_EXP : MAX_EXP, idle = single ? MAX(a->lo.n - 1, a->lo.n - a->lo.exp) : MAX_FRAC;

        if (p->n_frac > MAX_FRAC || (int)p->n_frac > idle || (p->dot && idle <= 0) || (single && a->lo.exp > 18 && p->n_int > 1))
                return 0;
        if (complete(p) && gs_dec_parse(text, len, &v) && inside(a, &v) && inside_double(a, &v))
                out |= GS_ACCEPT;
        if (p->n_int == 0) { /* "" or "-" */
                static const struct gs_dec zero;
                struct gs_dec far = { .n = 1, .exp = 400, .d = "1" };
                return meets(a, p->neg, zero, &far) ? out | GS_VIABLE : out;
        }
        if (p->exp) {
                int k = -1;
                if (!one)
                        return 0;
                interval(p, &lo, &hi);
                lo.neg = p->neg;
                if (p->n_exp >= 3)
                        return out | (out & GS_ACCEPT ? GS_VIABLE : 0);
                while (next_exponent(p, &k, max_exp)) {
                        struct gs_dec up = scaled(lo, k), down = scaled(lo, -k);
                        if ((!p->exp_neg && inside(a, &up) && inside_double(a, &up)) ||
                            ((p->exp_neg || (!p->exp_sign && !p->n_exp)) && inside(a, &down) && inside_double(a, &down)))
                                return out | GS_VIABLE;
                }
                return out;
        }
        interval(p, &lo, &hi);
        if (p->n_frac || p->dot || p->ip[0] == '0') {
                if ((p->n_frac < MAX_FRAC && some_fraction(a, p->neg, &lo, &hi, MAX_FRAC)) || (one && some_scale(a, p->neg, &lo, &hi)))
                        out |= GS_VIABLE;
                return out;
        }
        for (int j = 0; j + (int)p->n_int <= 40; j++) {
                struct gs_dec h = scaled(hi, j);
                if (meets(a, p->neg, scaled(lo, j), &h))
                        return out | GS_VIABLE;
        }
        if (one && some_scale(a, p->neg, &lo, &hi))
                out |= GS_VIABLE;
        return out;
}

unsigned gs_number_check(const struct gs_number *a, const char *text, size_t len) {
        struct parts p;
        unsigned r;

        if (a->step)
                return gs_step_check(a, text, len, &(uint32_t){ 0 });
        if (a->big)
                return check_big(a, text, len, &(uint32_t){ 0 });
        if (!split(text, len, &p))
                return 0;
        r = a->integer ? check_integer(a, &p, &(uint32_t){ 0 }) : check_decimal(a, &p, text, len);
        return r & GS_ACCEPT ? r | GS_VIABLE : r;
}

#define BEAM 8

/* A decimal's: the shortest of some ways tried side by side. */
static uint32_t decimal_need(const struct gs_number *a, const char *text, size_t len) {
        char way[2][BEAM][MAX_TEXT + 1];
        size_t n = 1;

        if (len > MAX_TEXT)
                return MAX_TEXT;
        memcpy(way[0][0], text, len);
        for (uint32_t more = 0; n && len + more < MAX_TEXT; more++) {
                char (*from)[MAX_TEXT + 1] = way[more & 1], (*to)[MAX_TEXT + 1] = way[~more & 1];
                size_t n_to = 0, at = len + more;
                for (size_t i = 0; i < n; i++)
                        if (gs_number_check(a, from[i], at) & GS_ACCEPT)
                                return more;
                for (size_t i = 0; i < n; i++)
                        for (const char *c = "1234567890.-e"; *c && n_to < BEAM; c++) {
                                memcpy(to[n_to], from[i], at);
                                to[n_to][at] = *c;
                                n_to += (gs_number_check(a, to[n_to], at + 1) & GS_VIABLE) != 0;
                        }
                n = n_to;
        }
        return MAX_TEXT;
}

uint32_t gs_number_need(const struct gs_number *a, const char *text, size_t len) {
        uint32_t need, other;
        struct parts p;

        if (a->step) {
                need = gs_step_check(a, text, len, &other) ? other : MAX_TEXT;
                if (len == 0 && gs_step_check(a, "-", 1, &other))
                        need = MIN(need, other + 1);
                return need;
        }
        if (a->big)
                return check_big(a, text, len, &need) ? need : MAX_TEXT;
        if (!a->integer)
                return decimal_need(a, text, len);
        if (!split(text, len, &p))
                return MAX_TEXT;
        if (!(check_integer(a, &p, &need) & (GS_VIABLE | GS_ACCEPT)))
                need = MAX_TEXT;
        if (len == 0) {
                p.neg = true;
                if (check_integer(a, &p, &other) & GS_VIABLE)
                        need = MIN(need, other + 1);
        }
        return need;
}

/* ---- numbers without bounds ---- */

enum { P_START, P_MINUS, P_ZERO, P_INT, P_DOT, P_FRAC, P_E, P_ESIGN, P_X1, P_X1SMALL, P_X2, P_X2SMALL, P_X3 };

uint32_t gs_free_next(bool integer, uint32_t state, uint8_t ch) {
        uint32_t phase = state & 15, len = state >> 4;
        bool digit = ch >= '0' && ch <= '9';
        int next = -1;

        if (len >= MAX_TEXT)
                return UINT32_MAX;
        switch (phase) {
        case P_START: next = ch == '-' ? P_MINUS : ch == '0' ? P_ZERO : digit ? P_INT : -1; break;
        case P_MINUS: next = ch == '0' ? P_ZERO : digit ? P_INT : -1; break;
        case P_ZERO:
        case P_INT:
                if (digit)
                        next = phase == P_INT ? P_INT : -1;
                else if (!integer)
                        next = ch == '.' ? P_DOT : ch == 'e' || ch == 'E' ? P_E : -1;
                break;
        case P_DOT:
        case P_FRAC:
                if (digit)
                        next = P_FRAC;
                else if (phase == P_FRAC && (ch == 'e' || ch == 'E'))
                        next = P_E;
                break;
        case P_E:
                if (ch == '+' || ch == '-') {
                        next = P_ESIGN;
                        break;
                }
                /* fall through */
        case P_ESIGN: next = !digit ? -1 : ch == '1' || ch == '2' ? P_X1SMALL : P_X1; break;
        case P_X1: next = digit ? P_X2 : -1; break;
        case P_X1SMALL: next = digit ? P_X2SMALL : -1; break;
        case P_X2SMALL: next = digit ? P_X3 : -1; break;
        default: break;
        }
        if (next < 0)
                return UINT32_MAX;
        /* what must or may follow has room: a digit behind a point, an exponent */
        if (len + (next == P_DOT ? 8 : next == P_INT || next == P_FRAC ? 6 : 0) >= MAX_TEXT)
                return UINT32_MAX;
        return (uint32_t)next | (len + 1) << 4;
}

bool gs_free_accept(uint32_t state) {
        uint32_t phase = state & 15;
        return phase == P_ZERO || phase == P_INT || phase == P_FRAC || phase >= P_X1;
}

uint32_t gs_free_need(uint32_t state) {
        return !gs_free_accept(state);
}

/* ---- making and meeting ---- */

static const struct gs_dec *tighter(const struct gs_dec *a, const struct gs_dec *b, int sign) {
        return gs_dec_cmp(a, b) * sign >= 0 ? a : b;
}

/* ceil (up) or floor of a decimal as an integer within +-10^18; *ret_exact if it is one */
static int64_t to_int(const struct gs_dec *d, bool up, bool *ret_exact) {
        int64_t v = 0;

        *ret_exact = d->n <= d->exp || d->n == 0;
        if (d->exp > 18)
                return d->neg ? -INT_CAP : INT_CAP;
        for (int i = 0; i < d->exp; i++)
                v = v * 10 + (i < d->n ? d->d[i] - '0' : 0);
        if (d->neg)
                v = -v;
        if (!*ret_exact && up && !d->neg)
                v++;
        if (!*ret_exact && !up && d->neg)
                v--;
        return v;
}

const struct gs_number *gs_number_new(struct gs *g, const struct gs_number *proto) {
        struct gs_number *n = t_alloc(g->c, sizeof(*n));
        bool exact;

        *n = *proto;
        n->lo_double = n->has_lo ? double_of(&n->lo) : 0;
        n->hi_double = n->has_hi ? double_of(&n->hi) : 0;
        if (n->multiple)
                n->integer = true;
        n->free = !n->has_lo && !n->has_hi && n->multiple <= 1 && !n->step;
        if (n->has_lo && n->has_hi) {
                int c = gs_dec_cmp(&n->lo, &n->hi);
                if (c > 0 || (c == 0 && (n->lo_excl || n->hi_excl)))
                        return NULL;
        }
        if (n->step && point(n)) { /* one number is a multiple or is none, wherever it lies */
                if (!gs_step_divides(n, n->lo_double))
                        return NULL;
                n->step = 0;
                n->step_digits = 0;
        }
        n->big = n->integer && !n->step && point(n) && n->lo.exp > 18;
        if (n->big) {
                if (n->lo.rounded || n->lo.exp > MAX_BIG)
                        t_fail(g->c, "a whole number beyond 10^18 is supported as digits, at most %d of them", MAX_BIG);
                return n->lo.n > n->lo.exp || (n->multiple && gs_dec_modulo(&n->lo, n->multiple)) ? NULL : n;
        }
        if (n->integer) {
                if ((n->has_lo && !n->lo.neg && n->lo.exp > 18) || (n->has_hi && n->hi.neg && n->hi.exp > 18))
                        t_fail(g->c, "whole numbers beyond 10^18 are not supported as bounds");
                n->ilo = n->has_lo ? to_int(&n->lo, true, &exact) : 0;
                if (n->has_lo && exact && n->lo_excl)
                        n->ilo++;
                n->ihi = n->has_hi ? to_int(&n->hi, false, &exact) : 0;
                if (n->has_hi && exact && n->hi_excl)
                        n->ihi--;
                if (n->has_lo && n->has_hi && n->ilo > n->ihi)
                        return NULL;
        }
        if ((n->integer || n->step) && !(gs_number_check(n, "", 0) & GS_VIABLE) && !(gs_number_check(n, "-", 1) & GS_VIABLE)) {
                if (n->step && (!n->has_lo || !n->has_hi || (n->lo.neg && n->lo.exp > GS_STEP_WHOLE) || (!n->hi.neg && n->hi.exp > GS_STEP_WHOLE)))
                        t_fail(g->c, "multiples of a fraction are supported with up to %d digits before the point", GS_STEP_WHOLE);
                return NULL;
        }
        return n;
}

const struct gs_number *gs_number_meet(struct gs *g, const struct gs_number *a, const struct gs_number *b) {
        struct gs_number n = { .integer = a->integer || b->integer };

        n.has_lo = a->has_lo || b->has_lo;
        if (n.has_lo) {
                n.lo = !b->has_lo ? a->lo : !a->has_lo ? b->lo : *tighter(&a->lo, &b->lo, 1);
                n.lo_excl = (a->has_lo && a->lo_excl && gs_dec_cmp(&a->lo, &n.lo) == 0) ||
                            (b->has_lo && b->lo_excl && gs_dec_cmp(&b->lo, &n.lo) == 0);
        }
        n.has_hi = a->has_hi || b->has_hi;
        if (n.has_hi) {
                n.hi = !b->has_hi ? a->hi : !a->has_hi ? b->hi : *tighter(&a->hi, &b->hi, -1);
                n.hi_excl = (a->has_hi && a->hi_excl && gs_dec_cmp(&a->hi, &n.hi) == 0) ||
                            (b->has_hi && b->hi_excl && gs_dec_cmp(&b->hi, &n.hi) == 0);
        }
        if (a->step && b->step && (a->step != b->step || a->step_digits != b->step_digits))
                t_fail(g->c, "two different fractions as multipleOf at once are not supported");
        n.step = a->step ? a->step : b->step;
        n.step_digits = a->step ? a->step_digits : b->step_digits;
        n.multiple = a->multiple ? a->multiple : b->multiple;
        if (a->multiple && b->multiple) {
                int64_t x = a->multiple, y = b->multiple, lcm;
                while (y) {
                        int64_t t = x % y;
                        x = y;
                        y = t;
                }
                if (__builtin_mul_overflow(a->multiple / x, b->multiple, &lcm) || lcm > 1000000000)
                        t_fail(g->c, "the least common multiple of %lld and %lld is too large", (long long)a->multiple,
                               (long long)b->multiple);
                n.multiple = lcm;
        }
        return gs_number_new(g, &n);
}
