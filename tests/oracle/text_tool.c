/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Python tests of tool calls and grammars drive: text alone, no model.
 *
 *   text_tool toolcall TEMPLATE    lines {"text", "prompt", "tools", "chunk"} in;
 *                                  {"family", "content", "reasoning", "calls"} out
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/text/toolcall.h"

static int slurp(const char *path, struct buf *ret) {
        FILE *f = fopen(path, "rbe");
        char block[65536];
        size_t n;
        int r = 0;

        if (!f) {
                fprintf(stderr, "text_tool: %s: %s\n", path, strerror(errno));
                return -errno;
        }
        while (r == 0 && (n = fread(block, 1, sizeof(block), f)) > 0)
                r = buf_append(ret, block, n);
        fclose(f);
        return r;
}

static void answer(json_t *o) {
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(o);
}

/* The whole text at once ("chunk" 0) or so many bytes at a time. */
static json_t *read_calls(struct toolcall_style style, const json_t *line) {
        const json_t *text = json_object_get(line, "text"), *prompt = json_object_get(line, "prompt"), *tools = json_object_get(line, "tools");
        size_t n = json_string_length(text), chunk = (size_t)json_integer_value(json_object_get(line, "chunk"));
        struct toolcall_parser *p = NULL;
        struct toolcall_out out = { 0 };
        json_t *o = json_object(), *calls = json_array();
        int r = toolcall_parser_new(style, json_string_value(prompt), json_string_length(prompt), json_is_array(tools) ? tools : NULL, 1, &p);

        if (chunk == 0)
                chunk = n + 1;
        for (size_t at = 0; r == 0 && at < n; at += chunk)
                r = toolcall_push(p, json_string_value(text) + at, MIN(chunk, n - at), &out);
        if (r == 0)
                r = toolcall_finish(p, &out);
        if (r < 0)
                json_object_set_new(o, "error", json_string(strerror(-r)));
        json_object_set_new(o, "family", json_string(toolcall_family_name(style)));
        json_object_set_new(o, "content", json_stringn(out.content.data ? out.content.data : "", out.content.len));
        json_object_set_new(o, "reasoning", json_stringn(out.reasoning.data ? out.reasoning.data : "", out.reasoning.len));
        for (size_t i = 0; i < out.n_calls; i++)
                json_array_append_new(calls, json_pack("{s:s,s:s,s:s}", "id", out.calls[i].id, "name", out.calls[i].name,
                                                       "args", out.calls[i].args));
        json_object_set_new(o, "calls", calls);
        toolcall_out_free(&out);
        toolcall_parser_free(p);
        return o;
}

static int cmd_toolcall(const char *path) {
        struct buf src = { 0 };
        struct toolcall_style style;
        char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        if (slurp(path, &src) < 0)
                return 66;
        style = toolcall_detect(src.data ? src.data : "", src.len);
        while ((n = getline(&line, &cap, stdin)) > 0) {
                json_error_t je;
                json_t *j = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &je);
                if (!j) {
                        fprintf(stderr, "text_tool: a line is not JSON: %s\n", je.text);
                        return 65;
                }
                answer(read_calls(style, j));
                json_decref(j);
        }
        free(line);
        buf_free(&src);
        return 0;
}

int main(int argc, char **argv) {
        if (argc == 3 && strcmp(argv[1], "toolcall") == 0)
                return cmd_toolcall(argv[2]);
        fprintf(stderr, "usage: text_tool toolcall TEMPLATE < JSONL\n");
        return 64;
}
