/* SPDX-License-Identifier: Apache-2.0 */
/* render: chat templates, one conversation a line. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "engine/text/template.h"
#include "probe.h"

/* Seconds since the epoch, or "YYYY-MM-DDTHH:MM:SS" in UTC. */
static int64_t parse_now(const json_t *j) {
        struct tm tm = { 0 };

        if (json_is_string(j) && strptime(json_string_value(j), "%Y-%m-%dT%H:%M:%S", &tm))
                return (int64_t)timegm(&tm);
        return json_integer_value(j);
}

static int render_line(void *ud, const char *line, size_t n) {
        const struct tmpl *t = ud;
        json_error_t je;
        json_t *root = json_loadb(line, n, JSON_ALLOW_NUL, &je), *reply = NULL;
        struct tmpl_input in = { 0 };
        struct tmpl_output out = { 0 };
        struct h_error err = { 0 };
        char *text;
        int r;

        if (!json_is_object(root)) {
                fprintf(stderr, "hearth-probe: a line must be an object: %.*s\n", (int)MIN(n, (size_t)80), line);
                json_decref(root);
                return 65;
        }
        in.messages = json_object_get(root, "messages");
        if (json_is_null(in.messages))
                in.messages = NULL;
        in.tools = json_object_get(root, "tools");
        if (json_is_null(in.tools))
                in.tools = NULL;
        in.vars = json_object_get(root, "vars");
        if (json_is_null(in.vars))
                in.vars = NULL;
        in.now = parse_now(json_object_get(root, "now"));
        r = tmpl_render(t, &in, &out, &err);
        if (r >= 0) {
                reply = json_object();
                json_object_set_new(reply, "text", json_stringn(out.text.data ? out.text.data : "", out.text.len));
        } else {
                h_error_from_errno(&err, r, "rendering");
                reply = json_pack("{s:s}", "error", err.message);
        }
        text = json_dumps(reply, JSON_ENSURE_ASCII | JSON_COMPACT);
        if (text)
                puts(text);
        free(text);
        json_decref(reply);
        json_decref(root);
        tmpl_output_free(&out);
        return text ? 0 : 70;
}

int cmd_render(const struct options *o) {
        struct h_error err = { 0 };
        struct buf src = { 0 };
        struct tmpl *t = NULL;
        int r;

        if (!o->template_file) {
                fprintf(stderr, "hearth-probe: --template is missing\n");
                return 64;
        }
        r = read_file(o->template_file, &src);
        if (r == 0) {
                r = tmpl_compile(src.data ? src.data : "", src.len, &t, &err);
                r = r < 0 ? probe_fail(&err, r) : for_each_line(o->jsonl, render_line, t);
        }
        tmpl_free(t);
        buf_free(&src);
        return r;
}
