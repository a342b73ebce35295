/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of strings, the map from text to token, and the map from a pair of
 * tokens to their merge. Both maps are open-addressed, at most half full and
 * hashed with a random seed, so that lookups stay constant in time for any
 * vocabulary. They are filled once and then only read.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "engine/text/tok_internal.h"

void tok_strings_free(struct tok_strings *s) {
        free(s->data);
        free(s->off);
        *s = (struct tok_strings){ 0 };
}

/* Multiplies to 128 bits and folds: every input bit reaches every output bit. */
static uint64_t fold(uint64_t a, uint64_t b) {
        __uint128_t m = (__uint128_t)a * b;
        return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t hash(uint64_t seed, const char *p, size_t n) {
        uint64_t h = seed ^ n, w;

        for (; n >= 8; p += 8, n -= 8) {
                memcpy(&w, p, 8);
                h = fold(h ^ w, 0x9e3779b97f4a7c15u);
        }
        w = 0;
        if (n)
                memcpy(&w, p, n);
        return fold(fold(h ^ w, 0xd1b54a32d192ed03u) ^ seed, 0x9e3779b97f4a7c15u);
}

static uint64_t new_seed(void) {
        uint64_t seed;
        if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed))
                seed = (uint64_t)(uintptr_t)&seed; /* early boot: address space layout is what there is */
        return seed | 1;
}

static uint32_t table_size(uint32_t n) {
        uint32_t size = 64;
        while (size < 2 * (uint64_t)n)
                size *= 2;
        return size;
}

int tok_map_init(struct tok_map *m, uint32_t n) {
        uint32_t size = table_size(n);

        m->slot = h_new0(struct tok_slot, size);
        if (!m->slot)
                return -ENOMEM;
        m->mask = size - 1;
        m->seed = new_seed();
        return 0;
}

void tok_map_free(struct tok_map *m) {
        free(m->slot);
        m->slot = NULL;
}

/* The slot of that text: taken by an equal one, or empty. */
static struct tok_slot *find_slot(const struct tok_map *m, const struct tok_strings *s, const char *p, size_t n,
                                  uint32_t *ret_tag) {
        uint64_t h = hash(m->seed, p, n);
        uint32_t i = (uint32_t)h & m->mask, tag = (uint32_t)(h >> 32);

        *ret_tag = tag;
        for (;; i = (i + 1) & m->mask) {
                struct tok_slot *slot = &m->slot[i];
                struct gguf_str t;
                if (slot->id1 == 0)
                        return slot;
                if (slot->tag != tag)
                        continue;
                t = tok_str(s, slot->id1 - 1);
                if (t.n == n && memcmp(t.p, p, n) == 0)
                        return slot;
        }
}

void tok_map_add(struct tok_map *m, const struct tok_strings *s, uint32_t id) {
        struct gguf_str t = tok_str(s, id);
        uint32_t tag;
        struct tok_slot *slot = find_slot(m, s, t.p, t.n, &tag);

        if (slot->id1 == 0)
                *slot = (struct tok_slot){ id + 1, tag };
}

uint32_t tok_map_find(const struct tok_map *m, const struct tok_strings *s, const char *p, size_t n) {
        uint32_t tag;
        return find_slot(m, s, p, n, &tag)->id1 - 1; /* 0 - 1 is TOK_NONE */
}

int tok_pairs_init(struct tok_pairs *p, uint32_t n) {
        uint32_t size = table_size(n);

        p->slot = h_malloc(size * sizeof(*p->slot));
        if (!p->slot)
                return -ENOMEM;
        for (uint32_t i = 0; i < size; i++)
                p->slot[i].left = TOK_NONE;
        p->mask = size - 1;
        p->seed = new_seed();
        return 0;
}

static struct tok_pair *pair_slot(const struct tok_pairs *p, uint32_t left, uint32_t right) {
        uint32_t i = (uint32_t)fold(((uint64_t)left << 32 | right) ^ p->seed, 0x9e3779b97f4a7c15u) & p->mask;

        while (p->slot[i].left != TOK_NONE && (p->slot[i].left != left || p->slot[i].right != right))
                i = (i + 1) & p->mask;
        return &p->slot[i];
}

void tok_pairs_add(struct tok_pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t result) {
        struct tok_pair *s = pair_slot(p, left, right);
        if (s->left == TOK_NONE)
                *s = (struct tok_pair){ left, right, rank, result };
}

const struct tok_pair *tok_pairs_find(const struct tok_pairs *p, uint32_t left, uint32_t right) {
        const struct tok_pair *s;

        if (left == TOK_NONE || right == TOK_NONE)
                return NULL;
        s = pair_slot(p, left, right);
        return s->left == TOK_NONE ? NULL : s;
}

/* ---- the byte alphabet --------------------------------------------------- */

/*
 * GPT-2's alphabet: the printable bytes 0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF stand
 * for themselves as code points; the other 68, in ascending order, are U+0100,
 * U+0101, ...
 */
static bool self_standing(unsigned b) {
        return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t tok_alphabet_char(uint8_t byte) {
        if (self_standing(byte))
                return byte;
        if (byte <= 0x20)
                return 0x100u + byte;
        if (byte <= 0xa0)
                return 0x100u + 33 + (byte - 0x7fu);
        return 0x143; /* 0xad, the last */
}

int tok_alphabet_byte(uint32_t cp) {
        if (cp <= 0xff)
                return self_standing(cp) ? (int)cp : -1;
        if (cp <= 0x120)
                return (int)(cp - 0x100);
        if (cp <= 0x142)
                return (int)(cp - 0x121 + 0x7f);
        return cp == 0x143 ? 0xad : -1;
}
