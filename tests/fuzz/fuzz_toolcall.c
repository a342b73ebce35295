/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first byte chooses a notation, the second how the text is cut into
 * pieces; the rest is the answer. Read whole and in pieces, it must give the
 * same.
 */
#include <string.h>

#include "base/types.h"
#include "engine/text/toolcall.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const templates[] = {
        "plain", "<tool_call><think>", "<function=x><parameter=y><think>", "<arg_key></think>", "<|start_header_id|> \"parameters\"",
        "[TOOL_CALLS][THINK]", "<|tool_list_start|>", "<|tool_call|>", "functools[", "<|tool_call><|channel>thought", "<|tools_prefix|>",
        "<|START_ACTION|>", "<|tool_call_argument_begin|>", "<｜tool▁call▁begin｜>", "｜DSML｜", ">>>all<|start_header_id|>",
        "<|channel|><|message|>", "function call<|role_sep|>", "<use_mcp_tool>", "Action:\\n```json",
};

static void read_back(struct toolcall_style style, const char *p, size_t n, size_t chunk, struct toolcall_out *out) {
        struct toolcall_parser *t = NULL;
        int r = toolcall_parser_new(style, "x>>>", 4, NULL, 1, &t);

        for (size_t at = 0; r == 0 && at < n; at += chunk)
                r = toolcall_push(t, p + at, MIN(chunk, n - at), out);
        if (r == 0)
                toolcall_finish(t, out);
        toolcall_parser_free(t);
}

static bool same(const struct buf *a, const struct buf *b) {
        return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct toolcall_out whole = { 0 }, pieces = { 0 };
        struct toolcall_style style;
        const char *src;

        if (size < 2 || size > 8192)
                return 0;
        src = templates[data[0] % ELEMENTSOF(templates)];
        style = toolcall_detect(src, strlen(src));
        read_back(style, (const char *)data + 2, size - 2, size, &whole);
        read_back(style, (const char *)data + 2, size - 2, 1 + data[1] % 16, &pieces);
        if (!same(&whole.content, &pieces.content) || !same(&whole.reasoning, &pieces.reasoning) || whole.n_calls != pieces.n_calls)
                __builtin_trap();
        for (size_t i = 0; i < whole.n_calls; i++)
                if (strcmp(whole.calls[i].name, pieces.calls[i].name) || strcmp(whole.calls[i].args, pieces.calls[i].args))
                        __builtin_trap();
        toolcall_out_free(&whole);
        toolcall_out_free(&pieces);
        return 0;
}
