/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Special token ids. A key of the file decides; where it is absent, some ids are
 * known by the text of a control or user-defined token, in the order below
 * (tables 'known'). Ordinary tokens of such a text are never taken.
 *
 * The generation ends at EOS, EOT and EOM, at the FIM tokens that begin another
 * piece of text (pad, repository, file separator), and at control tokens with
 * the texts in 'ends'. In the harmony format, known by its <|return|> and
 * <|call|>, <|end|> closes a message but not the turn, so there it is not one.
 */
#include <stdio.h>
#include <string.h>

#include "engine/text/tok_internal.h"

#define MAX_TEXTS 10
static const struct {
        const char *key, *old_key; /* after "tokenizer.ggml." */
        const char *known[MAX_TEXTS];
} rows[_TOK_ID_MAX] = {
        [TOK_ID_BOS] = { "bos_token_id", NULL, { NULL } },
        [TOK_ID_EOS] = { "eos_token_id", NULL, { NULL } },
        [TOK_ID_EOT] = { "eot_token_id", NULL,
                         { "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>",
                           "<|end_of_text|>", "<EOT>", "[EOT]", "<｜end▁of▁sentence｜>" } },
        [TOK_ID_UNK] = { "unknown_token_id", NULL, { "[UNK]", "<unk>" } },
        [TOK_ID_SEP] = { "seperator_token_id", "separator_token_id", { "[SEP]" } },
        [TOK_ID_PAD] = { "padding_token_id", NULL, { "[PAD]", "<pad>" } },
        [TOK_ID_CLS] = { "cls_token_id", NULL, { "[CLS]" } },
        [TOK_ID_MASK] = { "mask_token_id", NULL, { "[MASK]", "<mask>" } },
        [TOK_ID_FIM_PRE] = { "fim_pre_token_id", "prefix_token_id",
                             { "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                               "<|code_prefix|>", "<|prefix|>", "[PREFIX]" } },
        [TOK_ID_FIM_SUF] = { "fim_suf_token_id", "suffix_token_id",
                             { "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                               "<|code_suffix|>", "<|suffix|>", "[SUFFIX]" } },
        [TOK_ID_FIM_MID] = { "fim_mid_token_id", "middle_token_id",
                             { "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                               "<|code_middle|>", "<|middle|>", "[MIDDLE]" } },
        [TOK_ID_FIM_PAD] = { "fim_pad_token_id", NULL, { "<|fim_pad|>", "<fim-pad>", "<fim_pad>" } },
        [TOK_ID_FIM_REP] = { "fim_rep_token_id", NULL,
                             { "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<repo_name>", "<reponame>" } },
        [TOK_ID_FIM_SEP] = { "fim_sep_token_id", NULL, { "<|file_sep|>", "<file_sep>" } },
};

static const char *const ends[] = {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "[EOT]", "[EOS]", "<eos>",
        "<end_of_utterance>", "<｜end▁of▁sentence｜>",
};

static int64_t find_marker(const struct tok *t, const char *text) {
        uint32_t id = tok_map_find(&t->map, &t->text, text, strlen(text));

        if (id == TOK_NONE || (t->kind[id] != TOK_CONTROL && t->kind[id] != TOK_USER && t->kind[id] != TOK_UNKNOWN))
                return -1;
        return id;
}

static int read_key(const struct tok *t, const struct gguf *g, const char *name, int64_t *ret, struct h_error *err) {
        char key[64];
        uint32_t id;
        int r;

        snprintf(key, sizeof(key), "tokenizer.ggml.%s", name);
        if (!gguf_find(g, key))
                return 0;
        r = gguf_u32_req(g, key, &id, err);
        if (r < 0)
                return r;
        if (id >= t->n_vocab)
                return h_error_set(err, HEARTH_E_model_invalid, "%s: token %u is out of range, the vocabulary has %u tokens",
                                   key, id, t->n_vocab);
        *ret = id;
        return 0;
}

static void set_end(struct tok *t, int64_t id) {
        if (id >= 0)
                t->eog[id / 64] |= (uint64_t)1 << (id % 64);
}

static int read_ends(struct tok *t, const struct gguf *g, bool harmony, struct h_error *err) {
        int64_t eom = -1;
        int r;

        t->eog = h_new0(uint64_t, DIV_ROUND_UP((size_t)t->n_vocab, 64));
        if (!t->eog)
                return -ENOMEM;
        r = read_key(t, g, "eom_token_id", &eom, err);
        if (r < 0)
                return r;
        set_end(t, eom);
        set_end(t, t->special_id[TOK_ID_EOS]);
        set_end(t, t->special_id[TOK_ID_EOT]);
        set_end(t, t->special_id[TOK_ID_FIM_PAD]);
        set_end(t, t->special_id[TOK_ID_FIM_REP]);
        set_end(t, t->special_id[TOK_ID_FIM_SEP]);
        for (size_t i = 0; i < ELEMENTSOF(ends); i++)
                if (!harmony || strcmp(ends[i], "<|end|>") != 0)
                        set_end(t, find_marker(t, ends[i]));
        return 0;
}

/* Which ids go in front and behind where the caller asks for it. */
static int read_additions(struct tok *t, const struct gguf *g, struct h_error *err) {
        bool first, last;
        int r;

        first = t->model == TOK_SPM || t->model == TOK_WORDPIECE ||
                (t->model == TOK_BPE && t->pre.flags & (PRE_ADD_BOS | PRE_ADD_BOS_EOS));
        last = t->model == TOK_UNIGRAM || t->model == TOK_WORDPIECE ||
               (t->model == TOK_BPE && t->pre.flags & PRE_ADD_BOS_EOS);
        r = gguf_bool(g, "tokenizer.ggml.add_bos_token", first, &first, err);
        if (r == 0 && t->model == TOK_WORDPIECE) /* BERT ends with SEP; files for it say add_sep or nothing */
                r = gguf_bool(g, "tokenizer.ggml.add_sep_token", last, &last, err);
        else if (r == 0)
                r = gguf_bool(g, "tokenizer.ggml.add_eos_token", last, &last, err);
        if (r < 0)
                return r;
        t->first_id = t->special_id[TOK_ID_BOS];
        t->last_id = t->special_id[TOK_ID_EOS];
        if (t->model == TOK_WORDPIECE) {
                if (t->special_id[TOK_ID_CLS] >= 0)
                        t->first_id = t->special_id[TOK_ID_CLS];
                if (t->special_id[TOK_ID_SEP] >= 0)
                        t->last_id = t->special_id[TOK_ID_SEP];
        }
        if (!first)
                t->first_id = -1;
        if (!last)
                t->last_id = -1;
        return 0;
}

int tok_read_ids(struct tok *t, const struct gguf *g, struct h_error *err) {
        bool harmony = find_marker(t, "<|return|>") >= 0 && find_marker(t, "<|call|>") >= 0;
        int r;

        for (unsigned i = 0; i < _TOK_ID_MAX; i++) {
                t->special_id[i] = -1;
                if (rows[i].old_key) {
                        r = read_key(t, g, rows[i].old_key, &t->special_id[i], err);
                        if (r < 0)
                                return r;
                }
                r = read_key(t, g, rows[i].key, &t->special_id[i], err);
                if (r < 0)
                        return r;
                for (unsigned k = 0; k < MAX_TEXTS && rows[i].known[k] && t->special_id[i] < 0; k++)
                        if (!(harmony && i == TOK_ID_EOT && strcmp(rows[i].known[k], "<|end|>") == 0))
                                t->special_id[i] = find_marker(t, rows[i].known[k]);
        }
        for (uint32_t i = 0; i < t->n_vocab && t->special_id[TOK_ID_UNK] < 0; i++)
                if (t->kind[i] == TOK_UNKNOWN)
                        t->special_id[TOK_ID_UNK] = i;
        if (t->model == TOK_SPM || t->model == TOK_UNIGRAM) { /* SentencePiece's own names for them */
                if (t->special_id[TOK_ID_BOS] < 0)
                        t->special_id[TOK_ID_BOS] = find_marker(t, "<s>");
                if (t->special_id[TOK_ID_EOS] < 0)
                        t->special_id[TOK_ID_EOS] = find_marker(t, "</s>");
        }
        r = read_ends(t, g, harmony, err);
        return r < 0 ? r : read_additions(t, g, err);
}
