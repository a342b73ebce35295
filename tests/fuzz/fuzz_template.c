/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a template: compiled, and if that works rendered over a conversation with small bounds. */
#include "engine/text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char input[] =
                "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\","
                " \"text\": \"h\\u00e9 <|x|>\"}]}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\","
                " \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true, null]}}}]}, {\"role\": \"tool\", \"content\": \"r\"}],"
                " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {}}}}],"
                " \"vars\": {\"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"xs\": [3, 1, 2], \"d\": {\"k\": 1}, \"s\": \" a b \"}}";
        json_t *j = json_loads(input, 0, NULL);
        struct tmpl_input in = { .messages = json_object_get(j, "messages"), .tools = json_object_get(j, "tools"),
                                 .vars = json_object_get(j, "vars"), .now = 1700000000, .max_steps = 20000, .max_output = 65536 };
        struct tmpl_output out = { 0 };
        struct h_error err = { 0 };
        struct tmpl *t = NULL;

        if (tmpl_compile((const char *)data, size, &t, &err) == 0 && tmpl_render(t, &in, &out, &err) == 0) {
                size_t at = 0;
                for (size_t i = 0; i < out.n_seg; i++) {
                        if (out.seg[i].off != at || out.seg[i].len == 0)
                                __builtin_trap();
                        at += out.seg[i].len;
                }
                if (at != out.text.len)
                        __builtin_trap();
        }
        tmpl_output_free(&out);
        tmpl_free(t);
        json_decref(j);
        return 0;
}
