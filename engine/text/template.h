/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Chat templates: an interpreter for the part of Jinja that real templates
 * use, bounded in steps, output, depth and memory. Compile once, render often;
 * a compiled template is immutable and may be shared between threads.
 *
 * Text that came from users or tools is marked, so that the caller tokenizes it
 * with special-token parsing off: rendering yields segments.
 */

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>

struct tmpl;

/* template_invalid names line and construct. */
int tmpl_compile(const char *src, size_t n, struct tmpl **ret, struct h_error *err);
struct tmpl *tmpl_free(struct tmpl *t);

struct tmpl_segment { size_t off, len; bool trusted; }; /* trusted: template's own text; may hold control tokens */
struct tmpl_output {
        struct buf text;
        struct tmpl_segment *seg; size_t n_seg; /* in order, covering text */
};
void tmpl_output_free(struct tmpl_output *o);

struct tmpl_input {
        const json_t *messages;  /* array, as in the OpenAI chat format */
        const json_t *tools;     /* array or NULL: undefined */
        const json_t *vars;      /* object or NULL: further variables (bos_token, add_generation_prompt, enable_thinking, ...) */
        int64_t now;             /* seconds since the epoch, for strftime_now (UTC) */
        uint64_t max_steps, max_output; /* 0: defaults (10 million steps, 16 MiB) */
};
/* template_raised: the template's own raise_exception message, verbatim in err->message. */
int tmpl_render(const struct tmpl *t, const struct tmpl_input *in, struct tmpl_output *out, struct h_error *err);
