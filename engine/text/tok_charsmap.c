/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece's precompiled character map (NormalizerSpec.precompiled_charsmap):
 * u32 size of a Darts-clone double array in bytes, the array, then replacement
 * strings, each ended by a NUL; a key's value is the offset of its replacement.
 * A unit of the array: bits 0-7 label (with bit 31: "a value", never equal to a
 * byte), bit 8 "a value hangs here", bits 10-30 offset, shifted by 8 if bit 9 is
 * set; a value unit has the value in bits 0-30.
 *
 * The map comes from a file: every index is checked, keys longer than MAX_KEY
 * are not looked for and replacements longer than MAX_REPLACEMENT are refused,
 * so that text can grow by a bounded factor only.
 */
#include <errno.h>
#include <string.h>

#include "engine/text/tok_internal.h"

#define KEY "tokenizer.ggml.precompiled_charsmap"
#define MAX_KEY 96u
#define MAX_REPLACEMENT 255u

static uint32_t le32(const uint8_t *p) {
        return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int tok_charsmap_open(struct tok_charsmap *c, const uint8_t *p, size_t n, struct h_error *err) {
        size_t size, run = 0;

        if (n == 0)
                return 0;
        if (n < 4 || n > UINT32_MAX)
                return h_error_set(err, HEARTH_E_model_invalid, KEY ": %zu bytes, at least 4 are needed", n);
        size = le32(p);
        if (size % 4 != 0 || size == 0 || size > n - 4)
                return h_error_set(err, HEARTH_E_model_invalid,
                                   KEY ": an array of %zu bytes is announced, %zu follow (a multiple of 4 is needed)",
                                   size, n - 4);
        p += 4;
        n -= 4;
        for (size_t i = size; i < n; i++) {
                run = p[i] ? run + 1 : 0;
                if (run > MAX_REPLACEMENT)
                        return h_error_set(err, HEARTH_E_model_invalid,
                                           KEY ": a replacement at byte %zu is longer than %u", i + 4, MAX_REPLACEMENT);
        }
        c->unit = h_malloc(size);
        c->text = h_malloc(n - size + 1);
        if (!c->unit || !c->text) {
                tok_charsmap_free(c);
                return -ENOMEM;
        }
        c->n_units = (uint32_t)(size / 4);
        for (uint32_t i = 0; i < c->n_units; i++)
                c->unit[i] = le32(p + 4 * (size_t)i);
        c->n_text = (uint32_t)(n - size);
        memcpy(c->text, p + size, c->n_text);
        c->text[c->n_text] = 0;
        return 0;
}

void tok_charsmap_free(struct tok_charsmap *c) {
        free(c->unit);
        free(c->text);
        *c = (struct tok_charsmap){ 0 };
}

static uint32_t unit_offset(uint32_t u) {
        return (u >> 10 & 0x1fffff) << ((u & 0x200) >> 6);
}

size_t tok_charsmap_next(const struct tok_charsmap *c, const char *p, size_t n, const char **ret_p, size_t *ret_n) {
        size_t best = 0;
        uint32_t value = 0, at;
        unsigned len;

        if (c->n_units > 0) {
                at = unit_offset(c->unit[0]);
                for (size_t i = 0; i < n && i < MAX_KEY; i++) {
                        uint32_t u;
                        at ^= (uint8_t)p[i];
                        if (at >= c->n_units)
                                break;
                        u = c->unit[at];
                        if ((u & 0x800000ffu) != (uint8_t)p[i])
                                break;
                        at ^= unit_offset(u);
                        if (at >= c->n_units)
                                break;
                        if (u & 0x100) {
                                best = i + 1;
                                value = c->unit[at] & 0x7fffffffu;
                        }
                }
                if (best > 0 && value < c->n_text) {
                        *ret_p = c->text + value;
                        *ret_n = strlen(*ret_p);
                        return best;
                }
        }
        if (u8_next(p, n, &len) == U8_INVALID && c->n_units > 0) {
                *ret_p = "\xef\xbf\xbd";
                *ret_n = 3;
        } else {
                *ret_p = p;
                *ret_n = len;
        }
        return len;
}
