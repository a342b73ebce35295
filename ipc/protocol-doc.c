/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints PROTOCOL.md from the schema table and errors.def; with --seeds DIR
 * writes every message, sparse and full, as a corpus file for fuzz_frame; with
 * --man prints hearth-protocol(7) for scdoc.
 *   ninja -C build protocol      writes ipc/PROTOCOL.md
 * A test fails if the committed file differs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "docs/scdoc.h"
#include "ipc/sample.h"
#include "ipc/wire.h"
#include "ipc/worker.h"

static const char intro[] =
        "# The Hearth protocol, version %u\n"
        "\n"
        "Generated from `ipc/wire.def` by `ninja -C build protocol`; don't edit.\n"
        "\n"
        "## Connection\n"
        "A Unix stream socket. Per user: `$XDG_RUNTIME_DIR/hearth/hearth.sock`; without that variable\n"
        "`/run/user/UID/hearth/hearth.sock` if `/run/user/UID` exists, else `/tmp/hearth-UID/hearth.sock` (the directory\n"
        "belongs to the user, mode 0700). System service: `/run/hearth/hearth.sock`. `$HEARTH_SOCKET` overrides.\n"
        "\n"
        "## Frames\n"
        "A frame is a u32 little-endian length, then that many bytes: one msgpack array of four.\n"
        "\n"
        "```\n"
        "[kind, id, method, {field: value, ...}]\n"
        "```\n"
        "\n"
        "| element | meaning |\n"
        "|---|---|\n"
        "| kind | 0 request, 1 reply, 2 event, 3 error, 4 cancel |\n"
        "| id | u32, chosen by the client, not 0, not that of a request still open. Replies, events and errors carry the id of their request |\n"
        "| method | the message's name, as below; `error` for kind 3, `cancel` for kind 4 |\n"
        "| fields | a map; keys are strings |\n"
        "\n"
        "- The first message is the request `hello`. A daemon that speaks another version answers with the error `version`,\n"
        "  which names both, and closes.\n"
        "- Every request is answered by any number of events and then exactly one reply or error. Several requests may be open;\n"
        "  their answers interleave. The id of one that is open is refused (`bad_request`) for another request of any kind.\n"
        "- `[4, id, \"cancel\", {}]` ends request `id`; so does closing the connection. The request's final answer still comes\n"
        "  (`finish` is `cancelled`, or the error `cancelled` if it had not begun).\n"
        "- A refused request (errors bad_request, bad_utf8, unknown_method, too_large and so on) leaves the connection\n"
        "  usable. What is no frame of this form (error `protocol`, or a length over the limit) closes it, after an error with id 0.\n"
        "- Unknown keys are skipped. A sender that depends on a key lists its name in the field `must` (a list of strings): a\n"
        "  receiver that does not know it refuses the message instead of skipping it.\n"
        "- A key twice, a missing required key, a wrong type, a value out of bounds, text that is not UTF-8 are refused with\n"
        "  the field's name. A float is no integer, whatever its value; an integer is fine where f64 is expected.\n"
        "- Limits: frame %u bytes, nesting %u, values in one frame %u, descriptors with one frame %u. Ext types are refused, map\n"
        "  keys must be strings.\n"
        "- `bin` fields hold little-endian arrays: u32 token ids, f32 values.\n"
        "- File descriptors travel by SCM_RIGHTS with the first byte of the frame whose field `n_fds` counts them. A model named\n"
        "  by path is opened by the client and passed so, all its parts in order. A large text may come as a sealed memfd: see\n"
        "  `payload` of `generate`. A user may have so many open at the daemon at once (error `quota`).\n"
        "- A frame that has begun must be there whole within a time (10 s unless hearth.conf says otherwise), or the connection is\n"
        "  closed with the error `protocol`.\n"
        "\n"
        "## Types\n"
        "str: UTF-8; in names without NUL bytes; bounds count bytes. bin: bytes. bool. u32, u64, i64: msgpack integers.\n"
        "f64: any msgpack number, finite. list of str, list of maps: arrays; bounds count entries. A field not sent has its default.\n";

static void print_bounds(const struct schema_field *f) {
        switch (f->type) {
        case TYPE_flag:
                break;
        case TYPE_f64:
                printf("%g..%g", f->min.d, f->max.d);
                break;
        case TYPE_i64:
                printf("%" PRIi64 "..%" PRIi64, f->min.i, f->max.i);
                break;
        case TYPE_u32: case TYPE_u64:
                if (f->min.u == 0 && f->max.u == (f->type == TYPE_u32 ? UINT32_MAX : UINT64_MAX))
                        break;
                printf("%" PRIu64 "..%" PRIu64, f->min.u, f->max.u);
                break;
        case TYPE_str: case TYPE_text: case TYPE_bin: case TYPE_strs: case TYPE_list:
                printf("%" PRIu64 "..%" PRIu64 "%s", f->min.u, f->max.u,
                       f->type == TYPE_strs || f->type == TYPE_list ? "" : " bytes");
                break;
        }
}

static void print_default(const struct schema_field *f) {
        if (f->presence == REQUIRED) {
                printf("required");
                return;
        }
        switch (f->type) {
        case TYPE_flag: printf("%s", f->def.u ? "true" : "false"); break;
        case TYPE_u32: case TYPE_u64: printf("%" PRIu64, f->def.u); break;
        case TYPE_i64: printf("%" PRIi64, f->def.i); break;
        case TYPE_f64: printf("%g", f->def.d); break;
        case TYPE_str: case TYPE_text: case TYPE_bin: case TYPE_strs: case TYPE_list: printf("none"); break;
        }
}

static void print_message(const struct schema *s, const struct schema_desc *d) {
        if (d->kind == KIND_ITEM)
                printf("\n### map `%s`\n", d->name);
        else
                printf("\n### %s `%s`: kind %d\n", schema_kind_name(d->kind), d->name, (int)d->kind);
        if (*d->doc)
                printf("%s.\n", d->doc);
        if (d->n_fields == 0) {
                printf("\nNo fields.\n");
                return;
        }
        printf("\n| field | type | default | bounds | meaning |\n|---|---|---|---|---|\n");
        for (uint32_t i = 0; i < d->n_fields; i++) {
                const struct schema_field *f = &d->fields[i];
                printf("| %s | ", f->name);
                if (f->type == TYPE_list)
                        printf("list of `%s`", s->descs[f->sub].name);
                else
                        printf("%s", schema_type_name(f->type));
                printf(" | ");
                print_default(f);
                printf(" | ");
                print_bounds(f);
                printf(" | %s |\n", f->doc);
        }
}

static void print_hex(const char *title, struct buf *b) {
        printf("\n%s\n```\n", title);
        for (size_t i = 0; i < b->len; i++)
                printf("%02x%s", (unsigned char)b->data[i], i + 1 == b->len || i % 24 == 23 ? "\n" : " ");
        printf("```\n");
        buf_free(b);
}

static int print_examples(void) {
        struct wire_hello hello;
        struct wire_generate g;
        struct buf b = {};
        int r;

        printf("\n## Examples\nBytes of whole frames, the length included.\n");
        wire_init_hello(&hello);
        hello.version = WIRE_VERSION;
        hello.client = "example";
        r = wire_encode_hello(&b, 1, &hello, NULL);
        if (r < 0)
                return r;
        print_hex("`[0, 1, \"hello\", {\"version\": 1, \"client\": \"example\"}]`", &b);
        wire_init_generate(&g);
        g.kind = "chat";
        g.prompt = "Hi";
        g.temperature = 0;
        r = wire_encode_generate(&b, 2, &g, NULL);
        if (r < 0)
                return r;
        print_hex("`[0, 2, \"generate\", {\"kind\": \"chat\", \"prompt\": \"Hi\", \"temperature\": 0.0}]`", &b);
        return 0;
}

static int print_doc(void) {
        printf(intro, WIRE_VERSION, wire_schema.max_frame, wire_schema.max_depth, wire_schema.max_elements, WIRE_MAX_FDS);
        printf("\n## Messages\n");
        for (uint32_t i = 0; i < wire_schema.n_descs; i++)
                print_message(&wire_schema, &wire_schema.descs[i]);
        printf("\n## Error codes\n\n| code | meaning |\n|---|---|\n");
        for (int i = 1; i < _HEARTH_E_MAX; i++)
                printf("| %s | %s |\n", hearth_code_name((enum hearth_code)i), hearth_code_doc((enum hearth_code)i));
        return print_examples();
}

static int write_seeds(const struct schema *s, const char *dir) {
        for (int type = 0; type < (int)s->n_descs; type++)
                for (int full = 0; full < 2; full++) {
                        struct schema_arena *arena = NULL;
                        struct buf b = {};
                        char path[4096];
                        FILE *f;
                        int r;

                        if (s->descs[type].kind == KIND_ITEM)
                                continue;
                        r = schema_encode(s, type, 1, schema_sample(s, type, full, &arena), &b, NULL);
                        schema_sample_free(arena);
                        if (r < 0)
                                return r;
                        snprintf(path, sizeof(path), "%s/%s-%s-%s", dir, s->name, s->descs[type].ident, full ? "full" : "sparse");
                        f = fopen(path, "wb");
                        if (!f) {
                                perror(path);
                                return -1;
                        }
                        r = fwrite(b.data, 1, b.len, f) == b.len ? 0 : -1;
                        if (fclose(f) != 0 || r < 0) {
                                perror(path);
                                return -1;
                        }
                        buf_free(&b);
                }
        return 0;
}

/* ---- the manual page, for scdoc ---- */

static void man_message(const struct schema *s, const struct schema_desc *d) {
        if (d->kind == KIND_ITEM)
                printf("\n## MAP ");
        else
                printf("\n## %s ", schema_kind_name(d->kind));
        scdoc_text(d->name);
        printf("\n\n");
        if (*d->doc) {
                scdoc_text(d->doc);
                printf(".\n");
        }
        for (uint32_t i = 0; i < d->n_fields; i++) {
                const struct schema_field *f = &d->fields[i];
                printf("\n*");
                scdoc_text(f->name);
                printf("*: ");
                if (f->type == TYPE_list) {
                        printf("list of ");
                        scdoc_text(s->descs[f->sub].name);
                } else
                        printf("%s", schema_type_name(f->type));
                printf(", %s", f->presence == REQUIRED ? "required" : "default ");
                if (f->presence != REQUIRED)
                        print_default(f);
                printf("\n\t");
                scdoc_text(*f->doc ? f->doc : "see the name");
                printf("\n");
        }
}

static int print_man(void) {
        printf("hearth-protocol(7)\n\n# NAME\n\nhearth-protocol - how programs talk to the Hearth daemon\n\n# DESCRIPTION\n\n"
               "Version %u. A frame is a u32 little-endian length (at most %u), then a msgpack array of four: kind (0 request, 1 reply, "
               "2 event, 3 error, 4 cancel), id (u32), method, and a map of fields. The first request is hello. Every request is answered by "
               "any number of events and then one reply or error with its id. The same text with all bounds and examples is PROTOCOL.md in "
               "the documentation folder.\n\n# MESSAGES\n",
               WIRE_VERSION, wire_schema.max_frame);
        for (uint32_t i = 0; i < wire_schema.n_descs; i++)
                man_message(&wire_schema, &wire_schema.descs[i]);
        printf("\n# ERROR CODES\n");
        for (int i = 1; i < _HEARTH_E_MAX; i++) {
                printf("\n*");
                scdoc_text(hearth_code_name((enum hearth_code)i));
                printf("*\n\t");
                scdoc_text(hearth_code_doc((enum hearth_code)i));
                printf("\n");
        }
        printf("\n# SEE ALSO\n\n*hearth*(1), *hearthd*(8), *libhearth*(3)\n");
        return 0;
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], "--man") == 0)
                return print_man() < 0 || fflush(stdout) != 0;
        if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
                return write_seeds(&wire_schema, argv[2]) < 0 || write_seeds(&wk_schema, argv[2]) < 0;
        if (argc != 1) {
                fprintf(stderr, "usage: protocol-doc [--man | --seeds DIR]\n");
                return 64;
        }
        return print_doc() < 0 || fflush(stdout) != 0;
}
