/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* BLAKE2b (RFC 7693) with a 32-byte digest and no key. */

#include "base/types.h"

#define BLAKE2B_DIGEST 32

struct blake2b {
        uint64_t h[8];
        uint64_t bytes;   /* hashed so far; inputs stay below 2^64 */
        uint8_t block[128];
        size_t n;         /* bytes waiting in 'block' */
};

void blake2b_init(struct blake2b *s);
void blake2b_update(struct blake2b *s, const void *p, size_t n);
void blake2b_final(struct blake2b *s, uint8_t digest[BLAKE2B_DIGEST]);
