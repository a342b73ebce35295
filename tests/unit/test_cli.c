/* SPDX-License-Identifier: Apache-2.0 */
/* The CLI's tables and helpers, without a daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/cli/commands.h"

static const struct cli_command *command(const char *name) {
        for (const struct cli_command *const *c = cli_commands; *c; c++)
                if (strcmp((*c)->name, name) == 0)
                        return *c;
        fail_msg("no command %s", name);
        return NULL;
}

/* Rules that --help, completions and the manual rely on. */
static void test_tables(void **state) {
        for (const struct cli_command *const *c = cli_commands; *c; c++) {
                bool help = false;
                assert_true(strlen((*c)->name) < 12);
                assert_non_null((*c)->summary);
                assert_non_null((*c)->synopsis);
                assert_non_null((*c)->run);
                for (const enum opt_id *a = (*c)->options; *a != O_END; a++) {
                        const struct cli_option *o = &cli_options[*a];
                        help |= *a == O_help;
                        assert_true((o->type == OPT_FLAG) == (o->arg == NULL));
                        for (const enum opt_id *b = (*c)->options; b != a; b++) {
                                assert_int_not_equal(*a, *b);
                                if (o->letter)
                                        assert_int_not_equal(o->letter, cli_options[*b].letter);
                        }
                }
                if (!help)
                        fail_msg("%s has no --help", (*c)->name);
        }
        for (int i = 0; i < _O_MAX; i++)
                assert_true(strlen(cli_options[i].doc) > 8);
}

/* Parses the words for 'run'. Errors go to stderr; their text is checked by the system tests. */
static int parse(struct cli *c, const char *name, int n, ...) {
        static char copies[16][64];
        static char *argv[16];
        va_list ap;

        *c = (struct cli){ .command = command(name), .signal_fd = -1 };
        va_start(ap, n);
        for (int i = 0; i < n; i++) {
                snprintf(copies[i], sizeof(copies[i]), "%s", va_arg(ap, const char *));
                argv[i] = copies[i];
        }
        va_end(ap);
        return cli_parse(c, n, argv);
}

static void test_parse(void **state) {
        struct cli c;

        assert_int_equal(parse(&c, "run", 7, "m", "--temperature", "0.5", "hello", "-n", "12", "world"), 0);
        assert_int_equal(c.n_words, 3);
        assert_string_equal(c.words[0], "m");
        assert_string_equal(c.words[1], "hello");
        assert_string_equal(c.words[2], "world");
        assert_true(c.args.has_temperature && c.args.temperature == 0.5);
        assert_true(c.args.has_max_tokens && c.args.max_tokens == 12);
        assert_false(c.args.has_top_k);

        assert_int_equal(parse(&c, "run", 4, "--top-k=7", "-n3", "--stop=a", "--stop=b=c"), 0);
        assert_int_equal(c.args.top_k, 7);
        assert_int_equal(c.args.max_tokens, 3);
        assert_int_equal(c.args.stop.n, 2);
        assert_string_equal(c.args.stop.v[1], "b=c");

        /* What follows -- is no option; a lone - is a word. */
        assert_int_equal(parse(&c, "run", 4, "-", "--", "--stats", "-x"), 0);
        assert_int_equal(c.n_words, 3);
        assert_false(c.args.stats);
        assert_int_equal(parse(&c, "run", 1, "--seed=18446744073709551615"), 0);
        assert_true(c.args.seed == UINT64_MAX);

        assert_int_equal(parse(&c, "run", 1, "--nonsense"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "-x"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--top_k=7"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--stats=1"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--top-k"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--top-k=-1"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--top-k=4294967296"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--temperature=nan"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--temperature=1x"), EX_USAGE);
        assert_int_equal(parse(&c, "run", 1, "--seed=18446744073709551616"), EX_USAGE);
        assert_int_equal(parse(&c, "ps", 1, "--temperature=1"), EX_USAGE);
}

static void test_nearest(void **state) {
        static const char *const names[] = { "run", "chat", "status", "tokenize", "detokenize" };
        assert_string_equal(cli_nearest("rnu", names, 5), "run");
        assert_string_equal(cli_nearest("stauts", names, 5), "status");
        assert_string_equal(cli_nearest("tokenise", names, 5), "tokenize");
        assert_null(cli_nearest("completely different", names, 5));
        assert_null(cli_nearest("xyz", names, 5));
        assert_null(cli_nearest("run", names, 0));
}

static void test_numbers(void **state) {
        char b[16], n[32];
        static const struct { uint64_t v; const char *text; } bytes[] = {
                { 0, "0 B" }, { 999, "999 B" }, { 1000, "1.0 kB" }, { 94000000, "94 MB" }, { 999600, "1.0 MB" },
                { 15000000000, "15 GB" }, { UINT64_MAX, "18 EB" } };

        for (size_t i = 0; i < ELEMENTSOF(bytes); i++) {
                cli_human_bytes(bytes[i].v, b);
                assert_string_equal(b, bytes[i].text);
        }
        cli_human_count(0, n);
        assert_string_equal(n, "0");
        cli_human_count(1204, n);
        assert_string_equal(n, "1,204");
        cli_human_count(UINT64_MAX, n);
        assert_string_equal(n, "18,446,744,073,709,551,615");
        cli_human_time(1100, b);
        assert_string_equal(b, "1.1s");
        cli_human_time(UINT64_MAX, b);
        assert_string_equal(b, "99999d");
}

static void filtered(bool tty, const char *in, const char *want) {
        struct cli c = { .err_tty = tty };
        char *out = NULL;
        size_t n;
        FILE *f = open_memstream(&out, &n);

        assert_int_equal(cli_write_text(&c, f, in, strlen(in)), 0);
        fclose(f);
        assert_string_equal(out, want);
        free(out);
}

/* A model must not drive the terminal; what is piped stays as it is. */
static void test_filter(void **state) {
        filtered(true, "plain\n\ttext \xc3\xa9", "plain\n\ttext \xc3\xa9");
        filtered(true, "a\x1b[2Jb\x07", "a\xef\xbf\xbd[2Jb\xef\xbf\xbd");
        filtered(true, "\xc2\x9b" "31m\x7f", "\xef\xbf\xbd" "31m\xef\xbf\xbd");
        filtered(true, "\xc2\xa0", "\xc2\xa0");
        filtered(true, "\xd7\x90\xe2\x80\x8f!", "\xd7\x90\xe2\x80\x8f!");
        filtered(true, "", "");
        filtered(false, "a\x1b[2Jb", "a\x1b[2Jb");
}

/* A table of names: each is one cell of one row, and steers nothing. */
static void test_table(void **state) {
        struct cli_table t = { .n_columns = 2 };
        char *out = NULL;
        size_t n;
        FILE *was = stdout;
        struct cli c = {};

        cli_table_add(&t, "%s", "a\x1b[31m\nb\xe2\x80\xae" "c");
        cli_table_add(&t, "%s", "\xc2\x9b\xff\x7f");
        cli_table_add(&t, "%s", "\xc3\xa9");
        cli_table_add(&t, "%s", "d");
        stdout = open_memstream(&out, &n);
        cli_table_print(&c, &t);
        fclose(stdout);
        stdout = was;
        assert_string_equal(out, "a\\x1b[31m\\nb\\xe2\\x80\\xaec  \\xc2\\x9b\\xff\\x7f\n\xc3\xa9                          d\n");
        free(out);
}

static void test_json_line(void **state) {
        char *out = NULL;
        size_t n;
        FILE *was = stdout;

        stdout = open_memstream(&out, &n);
        cli_print_json(json_pack("{s:s}", "n", "a\x1b\x7f\xc2\x9b\xe2\x81\xa6\xc3\xa9"), 0);
        cli_print_json(NULL, 0);
        fclose(stdout);
        stdout = was;
        assert_string_equal(out, "{\"n\":\"a\\u001B\\u007f\\u009b\\u2066\xc3\xa9\"}\n");
        free(out);
}

static void test_paths(void **state) {
        assert_true(cli_is_path("./m"));
        assert_true(cli_is_path("m.gguf"));
        assert_true(cli_is_path("/a/b"));
        assert_false(cli_is_path("smollm2"));
        assert_false(cli_is_path(".gguf"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tables), cmocka_unit_test(test_parse), cmocka_unit_test(test_nearest),
                cmocka_unit_test(test_numbers), cmocka_unit_test(test_filter), cmocka_unit_test(test_table), cmocka_unit_test(test_json_line), cmocka_unit_test(test_paths),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
