/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that are multiples of a decimal fraction, as prices are of 0.01.
 *
 * Validators divide doubles and look whether the quotient is whole, which for
 * some decimals it is not (0.07 / 0.01 is 7.000000000000001). Only what is a
 * multiple both in decimals and for them is written. So whether a prefix can
 * become one is found by trying: a few multiples of each length, the smallest
 * first.
 *
 * Spelled as plain decimals with no more digits behind the point than the step
 * has, and at most GS_STEP_WHOLE before it; no exponents.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/gram_schema.h"

#define TRIES 64

typedef __int128 steps_t; /* a multiple has up to GS_STEP_WHOLE and GS_STEP_DIGITS digits, which is more than int64_t holds */

struct prefix { bool neg, dot; unsigned n_int, n_frac; steps_t v; /* its digits */ };

static bool take(const char *t, size_t n, struct prefix *ret) {
        struct prefix p = { 0 };
        size_t i = 0;

        if (n && t[0] == '-')
                p.neg = t[i++] == '-';
        for (; i < n; i++) {
                if (t[i] == '.' && !p.dot && p.n_int) {
                        p.dot = true;
                        continue;
                }
                if (t[i] < '0' || t[i] > '9')
                        return false;
                if (p.dot)
                        p.n_frac++;
                else if (p.n_int++ && p.v == 0)
                        return false; /* 01 */
                if (p.n_int > GS_STEP_WHOLE || p.n_frac > GS_STEP_DIGITS)
                        return false;
                p.v = p.v * 10 + (t[i] - '0');
        }
        *ret = p;
        return true;
}

static int64_t power(unsigned n) {
        int64_t v = 1;
        while (n--)
                v *= 10;
        return v;
}

bool gs_step_divides(const struct gs_number *a, double value) {
        double quotient = value / ((double)a->step / (double)power(a->step_digits));

        return quotient == __builtin_trunc(quotient);
}

/* 'v' steps of the last digit: is that number one? */
static bool fits(const struct gs_number *a, bool neg, steps_t v) {
        int64_t unit = power(a->step_digits);
        char text[40];
        struct gs_dec d;
        int c, n;

        if (v % a->step || (a->integer && v % unit) || (a->multiple && v / unit % a->multiple))
                return false;
        n = snprintf(text, sizeof(text), "%s%lld.%0*lld", neg ? "-" : "", (long long)(v / unit), (int)a->step_digits, (long long)(v % unit));
        if (!gs_dec_parse(text, (size_t)n, &d))
                return false;
        if (a->has_lo && ((c = gs_dec_cmp(&d, &a->lo)) < 0 || (c == 0 && a->lo_excl)))
                return false;
        if (a->has_hi && ((c = gs_dec_cmp(&d, &a->hi)) > 0 || (c == 0 && a->hi_excl)))
                return false;
        return gs_step_divides(a, strtod(text, NULL));
}

/* The least of those in [from, to) that fits, of the few that are tried. */
static bool some(const struct gs_number *a, bool neg, steps_t from, steps_t to) {
        int64_t unit = power(a->step_digits), by = a->step;
        const struct gs_dec *near = neg ? a->has_hi ? &a->hi : NULL : a->has_lo ? &a->lo : NULL;

        /* up to the bound that lies nearer to zero, so that the tries are not wasted below it */
        if (near && near->n && near->neg == neg) {
                steps_t bound = 0;
                for (int i = 0; i < near->exp + (int)a->step_digits && bound < to; i++)
                        bound = bound * 10 + (i < near->n ? near->d[i] - '0' : 0);
                from = MAX(from, MIN(bound, to));
        }
        if (a->integer) { /* whole ones: every so many steps */
                int64_t x = by, y = unit;
                while (y) {
                        int64_t t = x % y;
                        x = y;
                        y = t;
                }
                by = by / x * unit;
        }
        from = (from + by - 1) / by * by;
        for (unsigned k = 0; k < TRIES && from < to; k++, from += by)
                if (fits(a, neg, from))
                        return true;
        return false;
}

static bool whole_fits(const struct gs_number *a, const struct prefix *p) {
        return p->n_int && (!p->dot || (p->n_frac && !a->integer)) && fits(a, p->neg, p->v * power(a->step_digits - p->n_frac));
}

unsigned gs_step_check(const struct gs_number *a, const char *text, size_t len, uint32_t *need) {
        int64_t unit = power(a->step_digits);
        struct prefix p;
        unsigned out = 0;

        *need = 0;
        if (!take(text, len, &p) || p.n_frac > a->step_digits || (a->integer && p.dot))
                return 0;
        if (whole_fits(a, &p))
                return GS_ACCEPT | GS_VIABLE;
        if (p.n_int && !p.dot && !a->integer && some(a, p.neg, p.v * unit, (p.v + 1) * unit)) {
                *need = a->step_digits + 1;
                return GS_VIABLE;
        }
        if (p.dot) {
                steps_t from = p.v * power(a->step_digits - p.n_frac), room = power(a->step_digits - p.n_frac);
                *need = a->step_digits - p.n_frac;
                return some(a, p.neg, from, from + room) ? GS_VIABLE : 0;
        }
        if (p.n_int && p.v == 0)
                return 0;
        for (unsigned j = p.n_int ? 1 : 0; p.n_int + j <= GS_STEP_WHOLE && !out; j++) {
                steps_t from = p.n_int ? p.v * power(j) : j ? power(j - 1) : 0, to = p.n_int ? (p.v + 1) * power(j) : power(j);
                if (some(a, p.neg, from * unit, to * unit)) {
                        *need = MAX(j, 1u) + (a->integer ? 0 : a->step_digits + 1);
                        out = GS_VIABLE;
                }
        }
        return out;
}

bool gs_step_parse(const struct gs_dec *d, int64_t *ret_step, uint8_t *ret_digits) {
        int digits = (int)d->n - d->exp;
        int64_t v = 0;

        if (d->neg || d->n == 0 || digits < 1 || digits > GS_STEP_DIGITS || d->n > 9)
                return false;
        for (int i = 0; i < d->n; i++)
                v = v * 10 + (d->d[i] - '0');
        *ret_step = v;
        *ret_digits = (uint8_t)digits;
        return true;
}
