/* SPDX-License-Identifier: Apache-2.0 */
/* Reading answers back: each notation, thoughts, what is no call after all, and any split of the stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/text/toolcall.h"

static const char tools_json[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\":"
        " {\"s\": {\"type\": \"string\"}, \"i\": {\"type\": \"integer\"}}}}}]";

struct row { const char *template, *family, *prompt, *text, *expected; };

/* "content|reasoning|name args|..." of an answer read in pieces of 'chunk' bytes */
static char *read_back(const struct row *row, size_t chunk, bool clear) {
        json_t *tools = json_loads(tools_json, 0, NULL);
        struct toolcall_style style = toolcall_detect(row->template, strlen(row->template));
        struct toolcall_parser *p = NULL;
        struct toolcall_out out = { 0 };
        struct buf b = { 0 }, content = { 0 };
        size_t n = strlen(row->text);

        assert_string_equal(toolcall_family_name(style), row->family);
        assert_int_equal(toolcall_parser_new(style, row->prompt, strlen(row->prompt), tools, 7, &p), 0);
        for (size_t at = 0; at < n; at += chunk) {
                assert_int_equal(toolcall_push(p, row->text + at, MIN(chunk, n - at), &out), 0);
                if (clear && out.n_calls == 0) { /* what came out may be taken at any time */
                        buf_append(&content, out.content.data, out.content.len);
                        buf_clear(&out.content);
                }
        }
        assert_int_equal(toolcall_finish(p, &out), 0);
        buf_printf(&b, "%s%s|%s", content.len ? content.data : "", out.content.len ? out.content.data : "",
                   out.reasoning.len ? out.reasoning.data : "");
        for (size_t i = 0; i < out.n_calls; i++) {
                assert_true(strlen(out.calls[i].id) > 0);
                buf_printf(&b, "|%s %s", out.calls[i].name, out.calls[i].args);
        }
        toolcall_out_free(&out);
        toolcall_parser_free(p);
        json_decref(tools);
        buf_free(&content);
        return buf_steal(&b);
}

static const char hermes[] = "{{ '<tool_call>' }}<think></think>";
static const char llama[] = "<|start_header_id|> {\"name\": x, \"parameters\": y}";
static const char harmony[] = "<|channel|><|message|><|call|>";

static const struct row rows[] = {
        { "plain", "none", "", "Hello <b>there</b> \n", "Hello <b>there</b> \n|" },
        { hermes, "hermes", "", "Hi.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}\n</tool_call>",
          "Hi.||f {\"s\": \"</tool_call>\"}" },
        { hermes, "hermes", "", "<think>\nhm\n</think>\n\nYes.", "Yes.|hm" },
        { hermes, "hermes", "x<think>\n", "hm\nhm</think>\n\nYes. ", "Yes. |hm\nhm" },
        { hermes, "hermes", "x<think>\n\n</think>\n\n", "\nYes.", "Yes.|" },
        { hermes, "hermes", "", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
          "||f {}|g {}" },
        { hermes, "hermes", "", "Use <tool_call> so.", "Use <tool_call> so.|" },
        { hermes, "hermes", "", "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}|" },
        { hermes, "hermes", "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {", "<tool_call>\n{\"name\": \"f\", \"arguments\": {|" },
        { hermes, "hermes", "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "||f {}" },
        { hermes, "hermes", "", "a < b <tool", "a < b <tool|" },
        { hermes, "hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"i\\\": 1}\"}</tool_call>", "||f {\"i\": 1}" },
        { "<function=x><parameter=y>", "function-xml", "",
          "Ok\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=i>\n12\n</parameter>\n<parameter=z>\n[1]\n</parameter>\n"
          "</function>\n</tool_call>", "Ok||f {\"s\":\"12\",\"i\":12,\"z\":[1]}" },
        { "<function=x>", "function-json", "", "<function=f>{\"i\": 1}</function>", "||f {\"i\": 1}" },
        { "<arg_key>", "glm", "", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>i</arg_key>\n"
          "<arg_value>1</arg_value>\n</tool_call>", "||f {\"s\":\"1\",\"i\":1}" },
        { llama, "llama3", "", "{\"name\": \"f\", \"parameters\": {\"i\": 1}}", "||f {\"i\": 1}" },
        { llama, "llama3", "", " {\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "||f {}|g {}" },
        { llama, "llama3", "", "{\"a\": 1} is JSON", "{\"a\": 1} is JSON|" },
        { llama, "llama3", "", "It is {\"name\": \"f\", \"parameters\": {}}", "It is {\"name\": \"f\", \"parameters\": {}}|" },
        { llama, "llama3", "", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "||f {}" },
        { llama, "llama3", "", "<|python_tag|>search.call(query=\"a b\", n=2)", "||search {\"query\":\"a b\",\"n\":2}" },
        { llama, "llama3", "", "<|python_tag|>print(1)\nx", "||code_interpreter {\"code\":\"print(1)\\nx\"}" },
        { "[TOOL_CALLS]", "mistral", "", "So:[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"i\": 1}, \"id\": \"abc\"}]", "So:||f {\"i\": 1}" },
        { "[TOOL_CALLS]", "mistral", "", "[TOOL_CALLS]f[ARGS]{\"i\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}", "||f {\"i\": 1}|g {}" },
        { "[TOOL_CALLS][THINK]", "mistral", "", "[THINK]hm[/THINK]Yes", "Yes|hm" },
        { "<|tool_list_start|>", "lfm2", "", "<|tool_call_start|>[f(s='it\\'s', i=2, l=[1, 'a', None, True], d={'k': (1, 2)})]<|tool_call_end|>Done.",
          "Done.||f {\"s\":\"it's\",\"i\":2,\"l\":[1,\"a\",null,true],\"d\":{\"k\":[1,2]}}" },
        { "<|tool_list_start|>", "lfm2", "",
          "<|tool_call_start|>[f(a='\\x41\\xe9', b='\\u20ac\\ud83d\\ude00', c='\\U0001F600\\ud83d.', d='\\xg\\u12')]<|tool_call_end|>",
          "||f {\"a\":\"Aé\",\"b\":\"€😀\",\"c\":\"😀�.\",\"d\":\"xgu12\"}" },
        /* beyond 64 bits: still a number */
        { "<|tool_list_start|>", "lfm2", "", "<|tool_call_start|>[f(i=20000000000000000000, l=[-20000000000000000000, 1])]<|tool_call_end|>",
          "||f {\"i\":2e19,\"l\":[-2e19,1]}" },
        { "<arg_key>", "glm", "", "<tool_call>f\n<arg_key>i</arg_key>\n<arg_value>20000000000000000000</arg_value>\n</tool_call>",
          "||f {\"i\":2e19}" },
        { "<|tool_list_start|>", "lfm2", "", "<|tool_call_start|>[f(), g(a=1)]<|tool_call_end|>", "||f {}|g {\"a\":1}" },
        { "<|tool_list_start|>", "lfm2", "", "<|tool_call_start|>no call<|tool_call_end|>", "<|tool_call_start|>no call|" },
        { "<|tool_call|>", "granite", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"i\": 1}}]", "||f {\"i\": 1}" },
        { "functools[", "functools", "", " functools[{\"name\": \"f\", \"arguments\": {}}]", "||f {}" },
        { "<|tool_call>", "gemma", "", "<|tool_call>call:f{s:<|\"|>a, {b}<|\"|>,i:3,l:[<|\"|>x<|\"|>,1],o:{k:true}}<tool_call|>",
          "||f {\"s\":\"a, {b}\",\"i\":3,\"l\":[\"x\",1],\"o\":{\"k\":true}}" },
        { "<start_function_call>", "functiongemma", "", "<start_function_call>call:f{s:<escape>a<escape>}<end_function_call>", "||f {\"s\":\"a\"}" },
        { "<|tools_prefix|>", "apertus", "", "A<|tools_prefix|>[{\"f\": {\"i\": 1}}, {\"g\": {}}]<|tools_suffix|>", "A||f {\"i\": 1}|g {}" },
        { "<|START_ACTION|><|START_THINKING|>", "command-r", "", "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[{\"tool_call_id\": \"0\","
          " \"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>", "|hm|f {}" },
        { "<|tool_call_argument_begin|>", "kimi", "", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
          "{\"i\": 1}<|tool_call_end|><|tool_calls_section_end|>", "||f {\"i\": 1}" },
        { "<｜tool▁call▁begin｜>", "deepseek", "", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"i\": 1}\n```"
          "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "||f {\"i\": 1}" },
        { "<｜tool▁call▁begin｜>", "deepseek", "", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
          "<｜tool▁calls▁end｜>", "||f {}" },
        { "｜DSML｜", "dsml", "", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">5"
          "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"i\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
          "||f {\"s\":\"5\",\"i\":5}" },
        { "<minimax:tool_call>", "minimax", "", "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">5</parameter>\n</invoke>\n"
          "</minimax:tool_call>", "||f {\"s\":\"5\"}" },
        { "<minimax:tool_call>", "minimax", "", "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"z\">{\"a\": \"</b>\"}</parameter>\n"
          "</invoke>\n</minimax:tool_call>", "||f {\"z\":{\"a\":\"</b>\"}}" },
        { "<use_mcp_tool>", "mcp", "", "So:\n<use_mcp_tool>\n<server_name>x</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{\"i\": 1}\n"
          "</arguments>\n</use_mcp_tool>", "So:||f {\"i\": 1}" },
        { "Action:\\n```json", "action-json", "", "Hm.\nAction:\n```json\n[\n {\"tool_name\": \"f\", \"parameters\": {}}\n]```", "Hm.||f {}" },
        { "<|function_call|>", "function-call", "", "A<|function_call|>{\"name\": \"f\", \"arguments\": {}}<|message_sep|>", "A||f {}" },
        { "<seed:tool_call><seed:think>", "seed", "", "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=z>{'a': [None, 'x']}"
          "</parameter>\n</function>\n</seed:tool_call>", "|hm|f {\"z\":{\"a\":[null,\"x\"]}}" },
        { "[BEGIN FINAL RESPONSE]", "none", "Here are my reasoning steps:\n", "hm\n[BEGIN FINAL RESPONSE]\nYes", "Yes|hm" },
        { ">>>all<|start_header_id|>", "recipient", "x>>>", "all\nHello\n>>>f\n{\"i\": 1}", "Hello||f {\"i\": 1}" },
        { ">>>all<|start_header_id|>", "recipient", "x>>>", "python\nprint(1)", "||python {\"code\":\"print(1)\"}" },
        { "function call<|role_sep|>", "gigachat", "", "Hm<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}",
          "Hm||f {}" },
        { harmony, "harmony", "<|start|>assistant", "<|channel|>analysis<|message|>hm <|end|><|start|>assistant<|channel|>final<|message|>Yes.",
          "Yes.|hm " },
        { harmony, "harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"i\": 1}<|call|>",
          "||f {\"i\": 1}" },
        { harmony, "harmony", "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{\"i\": 1}", "||f {\"i\": 1}" },
        { harmony, "harmony", "<|start|>assistant", "<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant<|channel|>commentary"
          " to=functions.f<|message|>{}", "Let me.||f {}" },
};

static void test_notations(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                for (size_t chunk = 1; chunk < 200; chunk += chunk < 12 ? 1 : 61) {
                        for (int clear = 0; clear < 2; clear++) {
                                char *got = read_back(&rows[i], chunk, clear);
                                if (strcmp(got, rows[i].expected) != 0)
                                        fail_msg("%s in pieces of %zu: '%s', expected '%s'", rows[i].text, chunk, got, rows[i].expected);
                                free(got);
                        }
                }
}

/* Text goes out as it comes, not at the end. */
static void test_streaming(void **state) {
        static const char call[] = "<tool_call>{\"name\":\"f\",\"arguments\":{}}";
        struct toolcall_style style = toolcall_detect(hermes, strlen(hermes));
        struct toolcall_parser *p = NULL;
        struct toolcall_out out = { 0 };

        assert_int_equal(toolcall_parser_new(style, "", 0, NULL, 1, &p), 0);
        assert_int_equal(toolcall_push(p, "Hello wor", 9, &out), 0);
        assert_string_equal(out.content.data, "Hello wor");
        assert_int_equal(toolcall_push(p, "ld <too", 7, &out), 0);
        assert_string_equal(out.content.data, "Hello world");
        assert_int_equal(toolcall_push(p, "k>", 2, &out), 0);
        assert_string_equal(out.content.data, "Hello world <took>");
        assert_int_equal(toolcall_push(p, call, strlen(call), &out), 0);
        assert_int_equal(out.n_calls, 1);
        assert_int_equal(strlen(out.calls[0].id), 9);
        toolcall_parser_free(p);
        toolcall_out_free(&out);
}

static void test_ids_differ(void **state) {
        static const char text[] = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>";
        struct toolcall_style style = toolcall_detect(hermes, strlen(hermes));
        struct toolcall_out a = { 0 }, b = { 0 };

        for (int i = 0; i < 2; i++) {
                struct toolcall_parser *p = NULL;
                assert_int_equal(toolcall_parser_new(style, "", 0, NULL, (uint64_t)i + 1, &p), 0);
                assert_int_equal(toolcall_push(p, text, strlen(text), i ? &b : &a), 0);
                assert_int_equal(toolcall_finish(p, i ? &b : &a), 0);
                toolcall_parser_free(p);
        }
        assert_int_equal(a.n_calls, 2);
        assert_string_not_equal(a.calls[0].id, a.calls[1].id);
        assert_string_not_equal(a.calls[0].id, b.calls[0].id);
        toolcall_out_free(&a);
        toolcall_out_free(&b);
}

static void test_alloc_failures(void **state) {
        for (uint64_t nth = 1; nth < 200; nth++) {
                static const char text[] = "Hi <tool_call>{\"name\":\"f\",\"arguments\":{\"i\":1}}</tool_call>";
                struct toolcall_style style = toolcall_detect(hermes, strlen(hermes));
                struct toolcall_parser *p = NULL;
                struct toolcall_out out = { 0 };
                int r;

                fault_arm(FAULT_ALLOC, nth);
                r = toolcall_parser_new(style, "", 0, NULL, 1, &p);
                if (r == 0)
                        r = toolcall_push(p, text, strlen(text), &out);
                if (r == 0)
                        r = toolcall_finish(p, &out);
                fault_arm(FAULT_ALLOC, 0);
                toolcall_parser_free(p);
                toolcall_out_free(&out);
                if (r == 0) {
                        assert_true(nth > 4);
                        return;
                }
                assert_int_equal(r, -ENOMEM);
        }
        fail_msg("never succeeded");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_notations), cmocka_unit_test(test_streaming), cmocka_unit_test(test_ids_differ),
                cmocka_unit_test(test_alloc_failures),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
