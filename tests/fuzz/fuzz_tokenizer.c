/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A vocabulary from hostile bytes, then text through it. The input is a GGUF
 * file; its last bytes also serve as text, beside texts of every kind. Whatever
 * opens must encode, give ids in range, and decode to valid UTF-8.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/text/tok_unicode.h"
#include "engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const struct buf *b) {
        for (size_t i = 0; i < b->len;) {
                int k = u8_scan((const uint8_t *)b->data + i, b->len - i);
                if (k <= 0)
                        abort();
                i += (size_t)k;
        }
}

static void run_text(const struct tok *t, const char *p, size_t n, unsigned flags) {
        struct tok_ids ids = { 0 };
        struct tok_stream s;
        struct buf b = { 0 };

        if (tok_encode(t, p, n, flags, &ids) == 0) {
                tok_stream_init(&s, t, flags);
                for (size_t i = 0; i < ids.n; i++) {
                        size_t len;
                        if (ids.ids[i] >= tok_n_vocab(t))
                                abort();
                        /* Ordinary text never becomes a control token, unless it is the one for the unknown. */
                        if (!(flags & TOK_SPECIAL) && tok_kind(t, ids.ids[i]) == TOK_CONTROL &&
                            (int64_t)ids.ids[i] != tok_special_id(t, TOK_ID_UNK))
                                abort();
                        tok_piece(t, ids.ids[i], &len);
                        if (tok_stream_push(&s, ids.ids[i], &b) < 0)
                                abort();
                        tok_is_eog(t, ids.ids[i]);
                }
                if (tok_stream_flush(&s, &b) < 0)
                        abort();
                check_text(&b);
        }
        tok_ids_free(&ids);
        buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char *const texts[] = {
                "Hello, world! It's 12345 o'clock.  \n\n\t x", "e\xcc\x81\xcc\xa7 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 \xff\xfe",
                "<|im_start|>user<|im_end|><think>a</think><s></s><unk>[CLS]", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "\xef\xbc\xa1\xef\xbd\x82\xe2\x91\xa0 \xef\xac\x81 x",
        };
        struct h_error err = { 0 };
        struct gguf *g = NULL;
        struct tok *t = NULL;

        if (gguf_parse(data, size, size, &g, &err) < 0)
                return 0;
        if (tok_open(g, &t, &err) == 0 && t) {
                size_t tail = MIN(size, (size_t)512);
                for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                        run_text(t, texts[i], strlen(texts[i]), 0);
                        run_text(t, texts[i], strlen(texts[i]), TOK_SPECIAL | TOK_BOS | TOK_EOS);
                }
                run_text(t, (const char *)data + size - tail, tail, 0);
                run_text(t, (const char *)data + size - tail, tail, TOK_SPECIAL);
        }
        tok_free(t);
        gguf_free(g);
        return 0;
}
