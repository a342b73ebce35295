/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Reads a model's answer back into what a chat protocol shows: content,
 * reasoning and tool calls. Which notation a model uses follows from its chat
 * template's source (toolcall_detect). Works on a stream: text goes out as soon
 * as it can't be the beginning of a marker; a call goes out when it is whole.
 * Nothing is lost: what looks like a call but is none comes out as content.
 *
 * The text must hold the control tokens' text (tok_stream with TOK_SPECIAL),
 * without the token that ended the generation.
 */

#include "base/buf.h"

#include <jansson.h>

struct toolcall_style {
        const struct tc_family *family;  /* NULL: this template knows no tool calls */
        const struct tc_think *think;    /* NULL: no thinking */
};

/* What the template's source tells; never fails. Points into static tables. */
struct toolcall_style toolcall_detect(const char *template_src, size_t n);
const char *toolcall_family_name(struct toolcall_style s); /* "hermes", "harmony", ...; "none" */

struct toolcall {
        char *id;   /* the model's own, or made: 9 letters and digits, different within one seed */
        char *name;
        char *args; /* JSON text of an object */
};

/* Appended to by push and finish; the reader takes what it likes and clears. */
struct toolcall_out {
        struct buf content, reasoning;
        struct toolcall *calls; size_t n_calls, cap_calls;
};
void toolcall_out_clear(struct toolcall_out *o); /* keeps the buffers' memory */
void toolcall_out_free(struct toolcall_out *o);

struct toolcall_parser;

/*
 * 'prompt' is the rendered prompt (its end tells whether the answer begins
 * within a thought or a header); 'tools' the request's tools or NULL (their
 * schemas tell strings from numbers where the notation does not; borrowed).
 * 'seed' varies the ids made.
 */
int toolcall_parser_new(struct toolcall_style style, const char *prompt, size_t n_prompt, const json_t *tools, uint64_t seed,
                        struct toolcall_parser **ret);
struct toolcall_parser *toolcall_parser_free(struct toolcall_parser *p);

/* 0, -ENOMEM or -E2BIG. */
int toolcall_push(struct toolcall_parser *p, const char *text, size_t n, struct toolcall_out *out);
/* The answer is over: what was held back comes out; a call whose end marker never came still counts if it is whole. */
int toolcall_finish(struct toolcall_parser *p, struct toolcall_out *out);
