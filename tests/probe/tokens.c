/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of measurements: see own_tokens() in probe.h. */
#include "probe.h"

void own_tokens(uint32_t n_vocab, uint32_t n_seq, uint32_t n, uint32_t *ret) {
        for (uint32_t i = 0; i < n_seq; i++)
                for (uint32_t k = 0; k < n; k++) /* the second factor is a prime above any vocabulary: multiples of it differ there */
                        ret[(size_t)i * n + k] = (uint32_t)(((uint64_t)(k * 2654435761u + 12345u) + (uint64_t)i * 2246822519u) % n_vocab);
}

uint32_t count_different(const struct probe *p, const eng_seq *s, uint32_t n) {
        uint32_t len = n ? UINT32_MAX : 0, least = n;

        for (uint32_t i = 0; i < n; i++)
                len = MIN(len, eng_seq_len(p->context, s[i]));
        for (uint32_t k = 0; k < len; k++) {
                uint32_t different = 0;

                for (uint32_t i = 0; i < n; i++) {
                        uint32_t j = 0;

                        while (j < i && eng_seq_tokens(p->context, s[j])[k] != eng_seq_tokens(p->context, s[i])[k])
                                j++;
                        different += j == i;
                }
                least = MIN(least, different);
        }
        return least;
}
