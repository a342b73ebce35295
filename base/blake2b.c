/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BLAKE2b as RFC 7693 section 3 describes it. Chosen for the identity of cached
 * models: a cache shared between users needs a hash that nobody can collide,
 * and this one is fast without special instructions.
 */
#include "base/blake2b.h"

#include <string.h>

static const uint64_t iv[8] = {
        0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
        0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t sigma[12][16] = {
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
        { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
        { 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
        { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
        { 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
        { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
        { 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
        { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
        { 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
        { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
        { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
};

static inline uint64_t rotr(uint64_t x, unsigned n) {
        return x >> n | x << (64 - n);
}

static inline void mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y) {
        *a += *b + x;
        *d = rotr(*d ^ *a, 32);
        *c += *d;
        *b = rotr(*b ^ *c, 24);
        *a += *b + y;
        *d = rotr(*d ^ *a, 16);
        *c += *d;
        *b = rotr(*b ^ *c, 63);
}

static void compress(struct blake2b *s, const uint8_t *p, bool last) {
        uint64_t v[16], m[16];

        for (unsigned i = 0; i < 16; i++) {
                m[i] = 0;
                for (unsigned j = 0; j < 8; j++)
                        m[i] |= (uint64_t)p[8 * i + j] << (8 * j);
        }
        memcpy(v, s->h, sizeof(s->h));
        memcpy(v + 8, iv, sizeof(iv));
        v[12] ^= s->bytes;
        if (last)
                v[14] = ~v[14];
        /* Unrolled, so that the permutations become constants. */
#pragma GCC unroll 12
        for (unsigned r = 0; r < 12; r++) {
                const uint8_t *t = sigma[r];
                mix(&v[0], &v[4], &v[8], &v[12], m[t[0]], m[t[1]]);
                mix(&v[1], &v[5], &v[9], &v[13], m[t[2]], m[t[3]]);
                mix(&v[2], &v[6], &v[10], &v[14], m[t[4]], m[t[5]]);
                mix(&v[3], &v[7], &v[11], &v[15], m[t[6]], m[t[7]]);
                mix(&v[0], &v[5], &v[10], &v[15], m[t[8]], m[t[9]]);
                mix(&v[1], &v[6], &v[11], &v[12], m[t[10]], m[t[11]]);
                mix(&v[2], &v[7], &v[8], &v[13], m[t[12]], m[t[13]]);
                mix(&v[3], &v[4], &v[9], &v[14], m[t[14]], m[t[15]]);
        }
        for (unsigned i = 0; i < 8; i++)
                s->h[i] ^= v[i] ^ v[i + 8];
}

void blake2b_init(struct blake2b *s) {
        memset(s, 0, sizeof(*s));
        memcpy(s->h, iv, sizeof(iv));
        s->h[0] ^= 0x01010000u ^ BLAKE2B_DIGEST;
}

void blake2b_update(struct blake2b *s, const void *p, size_t n) {
        const uint8_t *in = p;

        while (n > 0) {
                size_t take;

                /* The last block is compressed in final(), so a full one waits for more input. */
                if (s->n == sizeof(s->block)) {
                        s->bytes += s->n;
                        compress(s, s->block, false);
                        s->n = 0;
                }
                if (s->n == 0)
                        for (; n > sizeof(s->block); in += sizeof(s->block), n -= sizeof(s->block)) {
                                s->bytes += sizeof(s->block);
                                compress(s, in, false);
                        }
                take = MIN(n, sizeof(s->block) - s->n);
                memcpy(s->block + s->n, in, take);
                s->n += take;
                in += take;
                n -= take;
        }
}

void blake2b_final(struct blake2b *s, uint8_t digest[BLAKE2B_DIGEST]) {
        s->bytes += s->n;
        memset(s->block + s->n, 0, sizeof(s->block) - s->n);
        compress(s, s->block, true);
        for (unsigned i = 0; i < BLAKE2B_DIGEST; i++)
                digest[i] = (uint8_t)(s->h[i / 8] >> (8 * (i % 8)));
}
