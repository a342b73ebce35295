/* SPDX-License-Identifier: Apache-2.0 */
/* Format: https://github.com/msgpack/msgpack/blob/master/spec.md */
#include "ipc/scan.h"

struct level { uint64_t left; bool map; };

static uint32_t be(const uint8_t *p, unsigned n) {
        uint32_t v = 0;
        while (n--)
                v = v << 8 | *p++;
        return v;
}

enum what { PAYLOAD, STRING, ARRAY, MAP, REFUSED };

/*
 * Classifies a first byte: how many bytes of size follow it, and the payload's
 * length if that is fixed by the byte itself (else in the size).
 */
static enum what classify(uint8_t c, unsigned *ret_size_bytes, uint32_t *ret_len) {
        *ret_size_bytes = 0;
        *ret_len = 0;
        if (c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3)
                return PAYLOAD;
        if (c <= 0x8f || (c >= 0x90 && c <= 0x9f)) {
                *ret_len = c & 0x0f;
                return c <= 0x8f ? MAP : ARRAY;
        }
        if (c <= 0xbf) {
                *ret_len = c & 0x1f;
                return STRING;
        }
        switch (c) {
        case 0xc4: case 0xc5: case 0xc6: /* bin 8, 16, 32 */
                *ret_size_bytes = 1u << (c - 0xc4);
                return PAYLOAD;
        case 0xca: /* float 32, 64 */
                *ret_len = 4;
                return PAYLOAD;
        case 0xcb:
                *ret_len = 8;
                return PAYLOAD;
        case 0xcc: case 0xcd: case 0xce: case 0xcf: /* uint 8..64 */
                *ret_len = 1u << (c - 0xcc);
                return PAYLOAD;
        case 0xd0: case 0xd1: case 0xd2: case 0xd3: /* int 8..64 */
                *ret_len = 1u << (c - 0xd0);
                return PAYLOAD;
        case 0xd9: case 0xda: case 0xdb: /* str 8, 16, 32 */
                *ret_size_bytes = 1u << (c - 0xd9);
                return STRING;
        case 0xdc: case 0xdd:
                *ret_size_bytes = 2u << (c - 0xdc);
                return ARRAY;
        case 0xde: case 0xdf:
                *ret_size_bytes = 2u << (c - 0xde);
                return MAP;
        default: /* c1: never used; c7..c9, d4..d8: ext */
                return REFUSED;
        }
}

int msgpack_scan(const void *data, size_t n, uint32_t max_depth, uint32_t max_elements, struct h_error *err) {
        const uint8_t *p = data;
        struct level stack[SCAN_DEPTH_MAX];
        uint32_t depth = 0, elements = 0;
        size_t i = 0;

        if (max_depth > SCAN_DEPTH_MAX)
                max_depth = SCAN_DEPTH_MAX;
        for (;;) {
                unsigned size_bytes;
                enum what what;
                uint32_t len;
                bool key = depth > 0 && stack[depth - 1].map && stack[depth - 1].left % 2 == 0;
                size_t at = i;

                if (i >= n)
                        return h_error_set(err, HEARTH_E_protocol, "the message ends early, at byte %zu", n);
                if (++elements > max_elements)
                        return h_error_counts(err, HEARTH_E_too_large, 0, max_elements,
                                              "the message has more than %u values", max_elements);
                what = classify(p[i], &size_bytes, &len);
                i++;
                if (what == REFUSED)
                        return h_error_set(err, HEARTH_E_protocol, "byte %zu: msgpack type 0x%02x is not used here", at, p[at]);
                if (key && what != STRING)
                        return h_error_set(err, HEARTH_E_protocol, "byte %zu: a map key is not a string", at);
                if (size_bytes) {
                        if (n - i < size_bytes)
                                return h_error_set(err, HEARTH_E_protocol, "the message ends early, at byte %zu", n);
                        len = be(p + i, size_bytes);
                        i += size_bytes;
                }
                if (what == ARRAY || what == MAP) {
                        /* Each value takes a byte at least: a count beyond the bytes left is a lie. */
                        uint64_t values = what == MAP ? 2 * (uint64_t)len : len;
                        if (values > n - i)
                                return h_error_set(err, HEARTH_E_protocol,
                                                   "byte %zu: %s of %u has only %zu bytes", at,
                                                   what == MAP ? "a map" : "an array", len, n - i);
                        if (values > 0) {
                                if (depth == max_depth)
                                        return h_error_counts(err, HEARTH_E_too_large, 0, max_depth,
                                                              "the message is nested deeper than %u", max_depth);
                                stack[depth++] = (struct level){ .left = values, .map = what == MAP };
                                continue;
                        }
                } else {
                        if (n - i < len)
                                return h_error_set(err, HEARTH_E_protocol,
                                                   "byte %zu: a value of %u bytes has only %zu", at, len, n - i);
                        i += len;
                }
                /* One value is complete; so may be what holds it. */
                while (depth > 0 && --stack[depth - 1].left == 0)
                        depth--;
                if (depth == 0)
                        break;
        }
        if (i != n)
                return h_error_set(err, HEARTH_E_protocol, "%zu bytes follow the message", n - i);
        return 0;
}
