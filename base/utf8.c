/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <string.h>

bool utf8_valid(const char *text, size_t n, size_t *ret_at) {
        const uint8_t *p = (const uint8_t *)text;
        size_t i = 0;

        while (i < n) {
                uint8_t c = p[i], low = 0x80, high = 0xbf;
                unsigned more;

                if (c < 0x80) {
                        /* Eight ASCII bytes at a time: prompts are mostly that. */
                        uint64_t w;
                        while (n - i >= 8 && (memcpy(&w, p + i, 8), !(w & 0x8080808080808080u)))
                                i += 8;
                        while (i < n && p[i] < 0x80)
                                i++;
                        continue;
                }
                if (c >= 0xc2 && c <= 0xdf)
                        more = 1;
                else if (c >= 0xe0 && c <= 0xef) {
                        more = 2;
                        if (c == 0xe0)
                                low = 0xa0;
                        else if (c == 0xed)
                                high = 0x9f;
                } else if (c >= 0xf0 && c <= 0xf4) {
                        more = 3;
                        if (c == 0xf0)
                                low = 0x90;
                        else if (c == 0xf4)
                                high = 0x8f;
                } else
                        goto bad;
                if (n - i <= more || p[i + 1] < low || p[i + 1] > high)
                        goto bad;
                for (unsigned k = 2; k <= more; k++)
                        if ((p[i + k] & 0xc0) != 0x80)
                                goto bad;
                i += more + 1;
        }
        return true;
bad:
        if (ret_at)
                *ret_at = i;
        return false;
}
