/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Characters byte by byte: UTF-8 as RFC 3629 has it, and within JSON strings
 * every spelling RFC 8259 allows (raw, \n and the like, \uXXXX, pairs of
 * surrogates; a lone surrogate is no character). Between bytes, 'sub' holds
 * what was read; its possible outcomes are ranges of code points.
 *
 * sub: bits 0-2 the mode, 3-5 bytes or digits still to come, 6-7 the length of
 * a UTF-8 sequence less one, from 8 on the bits read; for a low surrogate also
 * the high one's 10 bits above the low one's 12.
 */
#include <string.h>

#include "engine/text/gram_machine.h"

static uint32_t pack(uint32_t mode, uint32_t left, uint32_t len, uint32_t bits) {
        return mode | (left & 7) << 3 | len << 6 | bits << 8;
}

static enum ch_result whole(uint32_t *sub, uint32_t cp, struct ch_range r[3], size_t *ret_n) {
        *sub = CH_IDLE;
        r[0] = (struct ch_range){ cp, cp };
        *ret_n = 1;
        return CH_WHOLE;
}

static void add(struct ch_range r[3], size_t *n, uint32_t lo, uint32_t hi, uint32_t min, uint32_t max) {
        lo = MAX(lo, min);
        hi = MIN(hi, max);
        if (lo <= hi)
                r[(*n)++] = (struct ch_range){ lo, hi };
}

static enum ch_result part(uint32_t *sub, uint32_t next, size_t n, size_t *ret_n) {
        *sub = next;
        *ret_n = n;
        return n ? CH_PART : CH_BAD;
}

/* Ranges of a UTF-8 sequence of 'len' bytes with 'left' to come. */
static size_t utf8_ranges(uint32_t len, uint32_t left, uint32_t bits, struct ch_range r[3]) {
        static const uint32_t min[] = { 0, 0, 0x80, 0x800, 0x10000 }, max[] = { 0, 0x7f, 0x7ff, 0xffff, 0x10ffff };
        uint32_t lo = bits << (6 * left), hi = lo | ((1u << (6 * left)) - 1);
        size_t n = 0;

        if (len == 3) {
                add(r, &n, lo, hi, min[3], 0xd7ff);
                add(r, &n, lo, hi, 0xe000, 0xffff);
        } else {
                add(r, &n, lo, hi, min[len], max[len]);
        }
        return n;
}

enum ch_result ch_utf8(uint32_t *sub, uint8_t b, struct ch_range r[3], size_t *ret_n) {
        uint32_t len = (*sub >> 6) & 3, left = (*sub >> 3) & 7, bits = *sub >> 8;
        size_t n;

        if (*sub == CH_IDLE) {
                if (b < 0x80)
                        return whole(sub, b, r, ret_n);
                len = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
                if (b < 0xc2 || b > 0xf4)
                        return CH_BAD;
                left = len - 1;
                bits = b & (0x7fu >> len);
        } else {
                len++;
                if ((b & 0xc0) != 0x80)
                        return CH_BAD;
                left--;
                bits = bits << 6 | (b & 0x3f);
        }
        n = utf8_ranges(len, left, bits, r);
        if (n && left == 0)
                return whole(sub, bits, r, ret_n);
        return part(sub, pack(CH_UTF8, left, len - 1, bits), n, ret_n);
}

static int hex_value(uint8_t b) {
        return b >= '0' && b <= '9' ? b - '0' : (b | 32) >= 'a' && (b | 32) <= 'f' ? (b | 32) - 'a' + 10 : -1;
}

/* Code points that \u and the digits so far may lead to, surrogate pairs included. */
static size_t hex_ranges(uint32_t bits, uint32_t left, struct ch_range r[3]) {
        uint32_t lo = bits << (4 * left), hi = lo | ((1u << (4 * left)) - 1);
        size_t n = 0;

        add(r, &n, lo, hi, 0, 0xd7ff);
        add(r, &n, lo, hi, 0xe000, 0xffff);
        if (lo <= 0xdbff && hi >= 0xd800)
                r[n++] = (struct ch_range){ 0x10000 + ((MAX(lo, 0xd800u) - 0xd800) << 10),
                                            0x10000 + ((MIN(hi, 0xdbffu) - 0xd800) << 10) + 0x3ff };
        return n;
}

/* The low half of a pair: 'left' digits to come behind those in 'low'. */
static bool low_range(uint32_t high, uint32_t low, uint32_t left, struct ch_range *ret) {
        uint32_t lo = MAX(low << (4 * left), 0xdc00u), hi = MIN(low << (4 * left) | ((1u << (4 * left)) - 1), 0xdfffu);

        *ret = (struct ch_range){ 0x10000 + (high << 10) + (lo - 0xdc00), 0x10000 + (high << 10) + (hi - 0xdc00) };
        return lo <= hi;
}

enum ch_result ch_json(uint32_t *sub, uint8_t b, struct ch_range r[3], size_t *ret_n) {
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        uint32_t mode = *sub & 7, left = (*sub >> 3) & 7, bits = *sub >> 8;
        int h = hex_value(b);
        const char *e;
        size_t n;

        switch (mode) {
        case CH_IDLE:
                if (b == '"')
                        return CH_END;
                if (b < 0x20)
                        return CH_BAD;
                if (b != '\\')
                        return ch_utf8(sub, b, r, ret_n);
                r[0] = (struct ch_range){ 0, DFA_MAX_CP };
                return part(sub, pack(CH_ESCAPE, 0, 0, 0), 1, ret_n);
        case CH_UTF8:
                return ch_utf8(sub, b, r, ret_n);
        case CH_ESCAPE:
                if (b == 'u') {
                        r[0] = (struct ch_range){ 0, DFA_MAX_CP };
                        return part(sub, pack(CH_HEX, 4, 0, 0), 1, ret_n);
                }
                e = b ? memchr(from, b, sizeof(from) - 1) : NULL;
                return e ? whole(sub, (uint8_t)to[e - from], r, ret_n) : CH_BAD;
        case CH_HEX:
                if (h < 0)
                        return CH_BAD;
                bits = bits << 4 | (uint32_t)h;
                n = hex_ranges(bits, --left, r);
                if (n && left == 0 && (bits < 0xd800 || bits > 0xdbff))
                        return whole(sub, bits, r, ret_n);
                return part(sub, left ? pack(CH_HEX, left, 0, bits) : pack(CH_PAIR_SLASH, 0, 0, bits - 0xd800), n, ret_n);
        case CH_PAIR_SLASH:
        case CH_PAIR_U:
                if (b != (mode == CH_PAIR_SLASH ? '\\' : 'u'))
                        return CH_BAD;
                r[0] = (struct ch_range){ 0x10000 + (bits << 10), 0x10000 + (bits << 10) + 0x3ff };
                return part(sub, mode == CH_PAIR_SLASH ? pack(CH_PAIR_U, 0, 0, bits) : pack(CH_PAIR_HEX, 4, 0, bits << 12), 1, ret_n);
        default: { /* CH_PAIR_HEX: the high one's 10 bits, then up to 12 bits of the low one's first three digits */
                uint32_t high = bits >> 12, low = (bits & 0xfff) << 4 | (h < 0 ? 0 : (uint32_t)h);
                if (h < 0)
                        return CH_BAD;
                if (!low_range(high, low, --left, r))
                        return CH_BAD;
                if (left == 0)
                        return whole(sub, r[0].lo, r, ret_n);
                return part(sub, pack(CH_PAIR_HEX, left, 0, high << 12 | low), 1, ret_n);
        }
        }
}

size_t ch_outcomes(uint32_t sub, struct ch_range r[CH_OUTCOMES], uint32_t bytes[CH_OUTCOMES]) {
        /* the short escapes: quote, solidus, reverse solidus, \b \t \n, \f \r */
        static const struct ch_range one[] = { { '"', '"' }, { '/', '/' }, { '\\', '\\' }, { '\b', '\n' }, { '\f', '\r' } };
        uint32_t mode = sub & 7, left = (sub >> 3) & 7, bits = sub >> 8;
        size_t n = 0;

        switch (mode) {
        case CH_IDLE:
                return 0;
        case CH_UTF8:
                n = utf8_ranges(((sub >> 6) & 3) + 1, left, bits, r);
                bytes[0] = bytes[1] = left;
                return n;
        case CH_ESCAPE:
                n = hex_ranges(0, 4, r);
                for (size_t i = 0; i < n; i++)
                        bytes[i] = r[i].lo >= 0x10000 ? 11 : 5;
                for (size_t i = 0; i < ELEMENTSOF(one); i++, n++) {
                        r[n] = one[i];
                        bytes[n] = 1;
                }
                return n;
        case CH_HEX:
                n = hex_ranges(bits, left, r);
                for (size_t i = 0; i < n; i++)
                        bytes[i] = r[i].lo >= 0x10000 ? left + 6 : left;
                return n;
        case CH_PAIR_SLASH:
        case CH_PAIR_U:
                bytes[0] = mode == CH_PAIR_SLASH ? 6 : 5;
                return low_range(bits, 0, 4, r);
        default:
                bytes[0] = left;
                return low_range(bits >> 12, bits & 0xfff, left, r);
        }
}
