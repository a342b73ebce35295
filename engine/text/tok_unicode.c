/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8 (RFC 3629) and normalization form C (UAX #15). utf8proc has the tables;
 * decomposition, ordering and composition are driven from here because its own
 * canonical ordering exchanges neighbours, which is quadratic in the length of
 * a run of combining marks. Here a run is ordered by counting, so 1 MB of marks
 * costs what 1 MB of letters costs.
 */
#include "engine/text/tok_unicode.h"

#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

/* The table of well-formed sequences in the Unicode standard, 3.9: the second byte's range decides. */
static unsigned lead_length(uint8_t c, uint8_t *lo, uint8_t *hi) {
        *lo = 0x80;
        *hi = 0xbf;
        if (c < 0x80)
                return 1;
        if (c >= 0xc2 && c <= 0xdf)
                return 2;
        if (c >= 0xe0 && c <= 0xef) {
                if (c == 0xe0)
                        *lo = 0xa0;
                if (c == 0xed)
                        *hi = 0x9f;
                return 3;
        }
        if (c >= 0xf0 && c <= 0xf4) {
                if (c == 0xf0)
                        *lo = 0x90;
                if (c == 0xf4)
                        *hi = 0x8f;
                return 4;
        }
        return 0;
}

int u8_scan(const uint8_t *p, size_t n) {
        uint8_t lo, hi;
        unsigned len = lead_length(p[0], &lo, &hi);

        if (len == 0)
                return -1;
        for (unsigned i = 1; i < len; i++) {
                if (i >= n)
                        return 0;
                if (p[i] < lo || p[i] > hi)
                        return -(int)i;
                lo = 0x80;
                hi = 0xbf;
        }
        return (int)len;
}

uint32_t u8_next(const char *s, size_t n, unsigned *ret_len) {
        const uint8_t *p = (const uint8_t *)s;
        int len = p[0] < 0x80 ? 1 : u8_scan(p, n);

        *ret_len = len > 0 ? (unsigned)len : 1;
        switch (len) {
        case 1: return p[0];
        case 2: return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
        case 3: return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        case 4: return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
        }
        return U8_INVALID;
}

unsigned u8_put(uint32_t cp, char out[4]) {
        if (cp < 0x80) {
                out[0] = (char)cp;
                return 1;
        }
        if (cp < 0x800) {
                out[0] = (char)(0xc0 | cp >> 6);
                out[1] = (char)(0x80 | (cp & 0x3f));
                return 2;
        }
        if (cp < 0x10000) {
                out[0] = (char)(0xe0 | cp >> 12);
                out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
                out[2] = (char)(0x80 | (cp & 0x3f));
                return 3;
        }
        out[0] = (char)(0xf0 | cp >> 18);
        out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
        out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[3] = (char)(0x80 | (cp & 0x3f));
        return 4;
}

bool u8_is_space(uint32_t cp) {
        return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
               (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
               cp == 0x3000;
}

/* ---- NFC ---------------------------------------------------------------- */

/* Puts a run of characters with combining class != 0 in canonical order: a stable counting sort. */
static void order_run(utf8proc_int32_t *cps, size_t n, utf8proc_int32_t *tmp) {
        size_t count[257] = { 0 };

        for (size_t i = 0; i < n; i++)
                count[(utf8proc_get_property(cps[i])->combining_class & 0xff) + 1]++;
        for (unsigned c = 0; c < 256; c++)
                count[c + 1] += count[c];
        for (size_t i = 0; i < n; i++)
                tmp[count[utf8proc_get_property(cps[i])->combining_class & 0xff]++] = cps[i];
        memcpy(cps, tmp, n * sizeof(*cps));
}

/* A valid stretch that may change. */
static int nfc_stretch(const char *p, size_t n, struct buf *out) {
        _cleanup_(freep) utf8proc_int32_t *cps = NULL, *tmp = NULL;
        size_t len = 0, cap, bytes, run;
        utf8proc_ssize_t m;
        int r;

        /* A character of k bytes decomposes into at most 4 (Unicode 15). */
        if (!size_mul(n, 4, &cap) || !size_mul(cap, sizeof(*cps), &bytes))
                return -E2BIG;
        cps = h_malloc(bytes);
        tmp = h_malloc(bytes);
        if (!cps || !tmp)
                return -ENOMEM;
        for (size_t i = 0; i < n;) {
                unsigned k;
                uint32_t cp = u8_next(p + i, n - i, &k);
                int last = 0;

                m = utf8proc_decompose_char((utf8proc_int32_t)cp, cps + len, (utf8proc_ssize_t)(cap - len),
                                            UTF8PROC_DECOMPOSE, &last);
                if (m < 0 || (size_t)m > cap - len)
                        return -EINVAL;
                len += (size_t)m;
                i += k;
        }
        for (size_t i = 0; i < len; i = run + 1) {
                for (run = i; run < len && utf8proc_get_property(cps[run])->combining_class != 0; run++)
                        ;
                if (run - i > 1)
                        order_run(cps + i, run - i, tmp);
        }
        m = utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)len, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (m < 0)
                return -EINVAL;
        r = buf_reserve(out, (size_t)m * 4);
        if (r < 0)
                return r;
        for (utf8proc_ssize_t i = 0; i < m; i++) {
                char c[4];
                r = buf_append(out, c, u8_put((uint32_t)cps[i], c));
                if (r < 0)
                        return r;
        }
        return 0;
}

/*
 * Characters below U+0300 are in form C and never compose with what comes
 * before them, so text is cut before such a character: only stretches with a
 * higher character, begun one character earlier, go through the tables.
 */
int u8_nfc(const char *p, size_t n, struct buf *out) {
        size_t done = 0, prev = 0, i = 0;
        int r;

        while (i < n) {
                unsigned k;
                uint32_t cp = u8_next(p + i, n - i, &k);

                if (cp < 0x300 || cp == U8_INVALID) {
                        prev = i;
                        i += k;
                        if (cp == U8_INVALID)
                                prev = i; /* never part of a stretch */
                        continue;
                }
                r = buf_append(out, p + done, prev - done);
                if (r < 0)
                        return r;
                while (i < n) {
                        cp = u8_next(p + i, n - i, &k);
                        if (cp < 0x300 || cp == U8_INVALID)
                                break;
                        i += k;
                }
                r = nfc_stretch(p + prev, i - prev, out);
                if (r < 0)
                        return r;
                done = prev = i;
        }
        return buf_append(out, p + done, n - done);
}
