/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* UTF-8 and the Unicode properties that tokenizers need (Unicode 15, from utf8proc). */

#include "base/buf.h"

#define U8_INVALID 0x110000u

/* Code point at p (n > 0) and its length; U8_INVALID and length 1 where p is not valid UTF-8. */
uint32_t u8_next(const char *p, size_t n, unsigned *ret_len);
unsigned u8_put(uint32_t cp, char out[4]);
/*
 * For streams: bytes of p that are one complete character (> 0), or 0 if more
 * bytes may complete it, or -k if the first k bytes are a maximal invalid part.
 */
int u8_scan(const uint8_t *p, size_t n);
/* Appends p in Unicode normalization form C. Invalid bytes pass unchanged. */
int u8_nfc(const char *p, size_t n, struct buf *out);
bool u8_is_space(uint32_t cp); /* White_Space */
