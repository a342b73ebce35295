/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Inside of the tool call reader: tables of notations, payload readers. */

#include <errno.h>
#include <string.h>

#include "engine/text/toolcall.h"

enum tc_payload {
        TC_JSON,      /* an object or array of {"name", "arguments"} and kin */
        TC_FUNCTION,  /* <function=NAME> <parameter=K>V</parameter>... or a JSON object </function> */
        TC_INVOKE,    /* <invoke name="N"> <parameter name="K">V</parameter> ... </invoke> */
        TC_ARG_KEY,   /* NAME <arg_key>K</arg_key> <arg_value>V</arg_value> ... (GLM) */
        TC_KIMI,      /* functions.NAME:INDEX <|tool_call_argument_begin|> JSON */
        TC_DEEPSEEK,  /* [function<sep>]NAME <sep> or fence, JSON */
        TC_MISTRAL,   /* JSON array, or NAME[CALL_ID]ID[ARGS]JSON */
        TC_GEMMA,     /* call:NAME{k:<|"|>v<|"|>, ...} */
        TC_PYTHONIC,  /* [name(k='v', ...), ...] */
        TC_MCP,       /* <server_name>S</server_name> <tool_name>N</tool_name> <arguments>JSON</arguments> (MiroThinker) */
        TC_LLAMA,     /* bare {"name", "parameters"}, or after <|python_tag|> */
        TC_RECIPIENT, /* >>>NAME\nJSON (functionary) */
        TC_HARMONY,   /* <|channel|>commentary to=functions.NAME ... <|message|>JSON (gpt-oss) */
};

struct tc_family {
        const char *name;
        const char *detect[3];  /* all of these in the template's source */
        enum tc_payload payload;
        const char *open;       /* what begins a payload; its last 'keep' bytes belong to it */
        size_t keep;
        const char *close;      /* where it ends; NULL: where its JSON does */
        const char *drop[6];    /* markers around calls and content that say nothing further */
};
struct tc_think { const char *open, *close; };

/* ---- values: JSON text by hand, because slices and partial input matter ---- */

enum tc_scan { TC_WHOLE, TC_PARTIAL, TC_BROKEN };
/* One JSON value at p (after white space): where it ends. A number counts as whole only if something follows it. */
enum tc_scan tc_json_scan(const char *p, size_t n, size_t *ret_end);

struct tc_slice { const char *p; size_t n; };
static inline struct tc_slice tc_slice(const char *p, size_t n) { return (struct tc_slice){ p, n }; }
struct tc_slice tc_trim(struct tc_slice s);
bool tc_is(struct tc_slice s, const char *lit);
ptrdiff_t tc_find(struct tc_slice s, const char *lit); /* -1: not there */

/* The declared type of a tool's parameter, or NULL. */
const char *tc_param_type(const json_t *tools, struct tc_slice fn, struct tc_slice param);
/* Raw text of a parameter to JSON: a string if declared or if it is no JSON. */
json_t *tc_typed_value(const json_t *tools, struct tc_slice fn, struct tc_slice param, struct tc_slice raw);
/* Python or Gemma literal at *at: strings in ' " <|"|> <escape>, lists, dicts with or without quoted keys, numbers, True... */
json_t *tc_literal(struct tc_slice s, size_t *at);

/* ---- payloads ---- */

struct tc_sink { /* collects the calls of one payload */
        struct toolcall_out *out;
        const json_t *tools;
        uint64_t seed;
        unsigned *n_made;
};
/* Adds a call; args becomes "{}" when empty. 0, -EINVAL if name or arguments are no good, -ENOMEM. */
int tc_add(struct tc_sink *s, struct tc_slice name, struct tc_slice id, struct tc_slice args_json);
int tc_add_object(struct tc_sink *s, struct tc_slice name, json_t *args); /* takes args */
/* A payload without its markers; 0, -EINVAL (not a call: nothing was added) or -ENOMEM. */
int tc_payload(const struct tc_family *f, struct tc_sink *s, struct tc_slice text);
/* A payload as it comes in: where it ends. */
enum tc_scan tc_extent(const struct tc_family *f, const char *p, size_t n, size_t *ret_end);
