/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/types.h"

/*
 * True if [p, p + n) is well-formed UTF-8 (Unicode 15, table 3-7: no overlong
 * forms, no surrogates, nothing above U+10FFFF). Otherwise *ret_at (may be
 * NULL) is the offset of the first byte that breaks it.
 */
bool utf8_valid(const char *p, size_t n, size_t *ret_at);
