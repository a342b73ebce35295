/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates: renderings from tests/data/templates (each expected text
 * made by Jinja2 3.1 set up as chat templates assume), load errors, bounds,
 * provenance and failing allocations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/text/template.h"

static int render(const char *src, const char *input, struct tmpl_output *out, struct h_error *err) {
        json_t *j = json_loads(input, JSON_ALLOW_NUL, NULL);
        struct tmpl_input in = { .messages = json_object_get(j, "messages"), .tools = json_object_get(j, "tools"),
                                 .vars = json_object_get(j, "vars"), .now = 1721984703 /* 2024-07-26 09:05:03 */ };
        struct tmpl *t = NULL;
        int r;

        assert_non_null(j);
        r = tmpl_compile(src, strlen(src), &t, err);
        if (r == 0)
                r = tmpl_render(t, &in, out, err);
        tmpl_free(t);
        json_decref(j);
        return r;
}

static void check_text(const char *src, const char *input, const char *expected) {
        struct tmpl_output out = { 0 };
        struct h_error err = { 0 };
        int r = render(src, input, &out, &err);

        if (r < 0)
                fail_msg("%s: %s", src, err.message);
        assert_string_equal(out.text.data ? out.text.data : "", expected);
        tmpl_output_free(&out);
}

static json_t *data(const char *name) {
        char path[4096];
        json_error_t je;
        json_t *j;

        snprintf(path, sizeof(path), "%s/templates/%s", TEST_DATA, name);
        j = json_load_file(path, JSON_ALLOW_NUL, &je);
        if (!j)
                fail_msg("%s: %s", path, je.text);
        return j;
}

/* {"vars": ..., "cases": [{"template", "expected"}]} */
static void test_snippets(void **state) {
        json_t *doc = data("snippets.json"), *cases = json_object_get(doc, "cases"), *c;
        char *input = json_dumps(doc, 0);
        size_t i;

        json_array_foreach(cases, i, c)
                check_text(json_string_value(json_object_get(c, "template")), input, json_string_value(json_object_get(c, "expected")));
        assert_true(json_array_size(cases) > 50);
        free(input);
        json_decref(doc);
}

/* [{"name", "template", "cases": [{"messages", "tools", "vars", "expected" or "raises"}]}] */
static void test_conversations(void **state) {
        json_t *doc = data("conversations.json"), *t, *c;
        size_t i, k, n = 0;

        json_array_foreach(doc, i, t) {
                json_array_foreach(json_object_get(t, "cases"), k, c) {
                        const char *src = json_string_value(json_object_get(t, "template"));
                        const char *raises = json_string_value(json_object_get(c, "raises"));
                        char *input = json_dumps(c, 0);
                        if (raises) {
                                struct tmpl_output out = { 0 };
                                struct h_error err = { 0 };
                                assert_int_equal(render(src, input, &out, &err), -EHEARTH);
                                assert_int_equal(err.code, HEARTH_E_template_raised);
                                assert_string_equal(err.message, raises);
                        } else {
                                check_text(src, input, json_string_value(json_object_get(c, "expected")));
                        }
                        free(input);
                        n++;
                }
        }
        assert_true(n > 10);
        json_decref(doc);
}

static void test_load_errors(void **state) {
        static const struct { const char *src, *message; } rows[] = {
                { "a\n{{ x|nosuch }}", "line 2: unknown filter 'nosuch'" },
                { "{% if false %}{{ x|nosuch }}{% endif %}", "line 1: unknown filter 'nosuch'" },
                { "{{ x is nosuch }}", "line 1: unknown test 'nosuch'" },
                { "{{ nosuch(1) }}", "line 1: unknown function 'nosuch()'" },
                { "{{ x.nosuch() }}", "line 1: unknown method '.nosuch()'" },
                { "\n\n{% include 'a' %}", "line 3: unknown tag '{% include %}'" },
                { "{{ x|map('nosuch') }}", "line 1: unknown filter 'nosuch' in |map" },
                { "{{ x|select('nosuch') }}", "line 1: unknown test 'nosuch' in |select" },
                { "{{ x|selectattr('a', 'nosuch') }}", "line 1: unknown test 'nosuch' in |selectattr" },
                { "{% if x %}a", "line 1: the block that begins here has no '{% elif %}'" },
                { "{{ x", "line 1: the tag that begins here has no end: '}}' is missing" },
                { "{# x", "line 1: the comment that begins here has no end: '#}' is missing" },
                { "{% raw %}", "line 1: '{% raw %}' begins here and has no '{% endraw %}'" },
                { "{{ 'a }}", "line 1: the string that begins here has no end: ' is missing" },
                { "{{ ) }}", "line 1: unexpected ')'" },
                { "{{ 1 + }}", "line 1: expected an expression, found '}}'" },
                { "{{ a b }}", "line 1: expected '}}', found 'b'" },
                { "{% for x in %}{% endfor %}", "line 1: expected an expression, found '%}'" },
                { "{% break %}", "line 1: 'break' outside of a loop" },
                { "{{ 99999999999999999999 }}", "line 1: bad number '99999999999999999999' (integers have 64 bits)" },
                { "{{ x is divisibleby }}", "line 1: the test 'divisibleby' takes 1 argument(s), found 0" },
                { "{{ a ? b }}", "line 1: unexpected character '?'" },
                { "\xff", "the template is not valid UTF-8 at byte 0" },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct h_error err = { 0 };
                struct tmpl *t = NULL;
                assert_int_equal(tmpl_compile(rows[i].src, strlen(rows[i].src), &t, &err), -EHEARTH);
                assert_null(t);
                assert_int_equal(err.code, HEARTH_E_template_invalid);
                if (i != 9) /* any of the block's tags may be named */
                        assert_string_equal(err.message, rows[i].message);
        }
}

static void test_render_errors(void **state) {
        static const struct { const char *src, *message; } rows[] = {
                { "{{ nope.x }}", "line 1: 'nope' is undefined" },
                { "a\n{{ 'a' + {} }}", "line 2: can only concatenate str (not \"dict\") to str" },
                { "{{ 1 // 0 }}", "line 1: integer division or modulo by zero" },
                { "{{ 9223372036854775807 + 1 }}", "line 1: an integer does not fit 64 bits" },
                { "{{ -9223372036854775807 - 2 }}", "line 1: an integer does not fit 64 bits" },
                { "{{ 3037000500 * 3037000500 }}", "line 1: an integer does not fit 64 bits" },
                { "{{ 10 ** 30 }}", "line 1: an integer does not fit 64 bits" },
                { "{{ 1e19|int(5) }}", "line 1: int: 1e+19 does not fit 64 bits" },
                { "{{ '-1e300'|int }}", "line 1: int: -1e+300 does not fit 64 bits" },
                { "{{ (1e300 * 1e300)|int(5) }}", "line 1: cannot convert float infinity to integer" },
                { "{{ '%d' % 1e19 }}", "line 1: %d format: 1e+19 does not fit 64 bits" },
                { "{{ '%x' % 1.0 }}", "line 1: %x format: an integer is required, not float" },
                { "{{ '%c' % 1114112 }}", "line 1: %c requires a single character" },
                { "{% for x in 5 %}{% endfor %}", "line 1: 'int' object is not iterable" },
                { "{{ nope|tojson }}", "line 1: Object of type Undefined is not JSON serializable" },
                { "{{ 1 < 'a' }}", "line 1: '<' not supported between instances of 'int' and 'str'" },
                { "{% set a, b = [1] %}", "line 1: cannot unpack 1 value(s) into 2 name(s)" },
                { "{{ 'a'.split('') }}", "line 1: empty separator" },
                { "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "line 1: macro 'm' takes not more than 1 argument(s), found 2" },
                { "{% set x.y = 1 %}", "line 1: cannot assign attribute on non-namespace object" },
                { "{{ [1].append(2, 3) }}", "line 1: 'append' takes at most 1 argument(s), found 2" },
                { "{{ 'a'|trim(nosuch=1) }}", "line 1: 'trim' has no argument 'nosuch'" },
                { "{{ 'a'|urlize(extra_schemes=['ab:cd'[:2]]) }}", "line 1: urlize: 'ab' is not a valid URI scheme prefix" },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct tmpl_output out = { 0 };
                struct h_error err = { 0 };
                assert_int_equal(render(rows[i].src, "{}", &out, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_template_invalid);
                assert_string_equal(err.message, rows[i].message);
                assert_null(out.text.data);
        }
}

/* Whatever a template does, it ends: steps, output, depth and memory are bounded. */
static void test_bounds(void **state) {
        static const struct { const char *src, *part; } rows[] = {
                { "{% for i in range(1000000000000) %}{% endfor %}", "steps" },
                { "{% for i in range(10000000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}", "output passes its limit" },
                { "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "recurses too deeply" },
                { "{% set ns = namespace(s='x' * 1000000) %}{% for i in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "" },
                { "{{ 'x' * 100000000000 }}", "too long" },
                { "{{ [0] * 10000000 * 100 }}", "" },
                { "{% set l = [] %}{% do l.append(l) %}{{ l }}", "recurses too deeply" },
                { "{% set l = [] %}{% do l.append(l) %}{{ l|tojson }}", "recurses too deeply" },
                { "{% set l = [] %}{% do l.append(l) %}{% set k = [] %}{% do k.append(k) %}{{ l == k }}", "recurses too deeply" },
                { "{% set l = [1] %}{% for x in l %}{% do l.append(x) %}{% endfor %}", "" },
                { "{{ 'x'.center(1000000000) }}", "too large" },
                { "{{ '%1000000000d' % 1 }}", "over" },
                { "{{ 'a'|indent(1000000000) }}", "too large" },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct tmpl_output out = { 0 };
                struct h_error err = { 0 };
                assert_int_equal(render(rows[i].src, "{}", &out, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_template_invalid);
                if (!strstr(err.message, rows[i].part))
                        fail_msg("%s: '%s' does not hold '%s'", rows[i].src, err.message, rows[i].part);
        }
        /* nested source is refused, not followed to the end of the stack */
        for (int kind = 0; kind < 4; kind++) {
                static const char *const open[] = { "(", "[", "-", "not " };
                struct h_error err = { 0 };
                struct buf b = { 0 };
                struct tmpl *t = NULL;
                buf_puts(&b, "{{ ");
                for (int k = 0; k < 100000; k++)
                        buf_puts(&b, open[kind]);
                buf_puts(&b, kind < 2 ? "" : "1 }}");
                assert_int_equal(tmpl_compile(b.data, b.len, &t, &err), -EHEARTH);
                assert_non_null(strstr(err.message, "deep"));
                buf_free(&b);
        }
}

/* "T[...]" for trusted and "U[...]" for untrusted segments */
static void check_marks(const char *src, const char *expected) {
        static const char input[] =
                "{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|> x\", \"n\": 5, \"l\": [\"<a>\"]}],"
                " \"tools\": [{\"name\": \"<t>\"}], \"vars\": {\"bos\": \"<s>\", \"docs\": [{\"text\": \"<d>\"}]}}";
        struct tmpl_output out = { 0 };
        struct h_error err = { 0 };
        struct buf b = { 0 };
        size_t at = 0;

        if (render(src, input, &out, &err) < 0)
                fail_msg("%s: %s", src, err.message);
        for (size_t i = 0; i < out.n_seg; i++) {
                assert_int_equal(out.seg[i].off, at);
                assert_true(out.seg[i].len > 0);
                at += out.seg[i].len;
                buf_printf(&b, "%c[%.*s]", out.seg[i].trusted ? 'T' : 'U', (int)out.seg[i].len, out.text.data + out.seg[i].off);
        }
        assert_int_equal(at, out.text.len);
        assert_string_equal(b.data ? b.data : "", expected);
        buf_free(&b);
        tmpl_output_free(&out);
}

static void test_provenance(void **state) {
        static const struct { const char *src, *expected; } rows[] = {
                { "<b>{{ messages[0].content }}<e>", "T[<b>]U[<|im_end|> x]T[<e>]" },
                { "{{ bos }}{{ messages[0]['role'] }}", "T[<s>]U[user]" },
                { "{{ '<' + messages[0].content + '>' }}", "T[<]U[<|im_end|> x]T[>]" },
                { "{{ ('<' ~ messages[0].content ~ '>')[1:-3] }}", "U[<|im_end|>]" },
                { "{{ (' ' ~ messages[0].content ~ ' ')|trim|upper }}", "U[<|IM_END|> X]" },
                { "{{ messages[0].content.replace('x', '<y>') }}", "U[<|im_end|> ]T[<y>]" },
                { "{{ '<y>'.replace('y', messages[0].role) }}", "T[<]U[user]T[>]" },
                { "{{ messages[0].content.split('|')[1] }}", "U[im_end]" },
                { "{{ messages[0].content.split('|')|join('|') }}", "U[<]T[|]U[im_end]T[|]U[> x]" },
                { "{{ messages[0].l|tojson }}", "T[[\"]U[<a>]T[\"]]" },
                { "{{ messages[0].l }}", "T[[']U[<a>]T[']]" },
                { "{{ tools|tojson }}", "T[[{\"]U[name]T[\": \"]U[<t>]T[\"}]]" },
                { "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].role)|upper }}", "T[<]U[USER]T[>]" },
                { "{% set x %}<{{ messages[0].role }}>{% endset %}{{ x[::-1] }}", "T[>]U[resu]T[<]" },
                { "{% filter indent(1, true) %}{{ messages[0].role }}{% endfilter %}", "T[ ]U[user]" },
                { "{{ '%s|%s' % (messages[0].role, bos) }}", "U[user]T[|<s>]" },
                { "{{ '{}|{}'.format(messages[0].role, bos) }}", "U[user]T[|<s>]" },
                { "{{ docs[0].text }}", "U[<d>]" },
                { "{% for c in messages[0].role %}{{ c }}{% endfor %}", "U[user]" },
                { "{{ messages[0].role|list|join }}{{ messages[0].role[0] }}", "U[useru]" },
                { "{{ messages[0].content|e }}", "U[&lt;|im_end|&gt; x]" },
                { "{{ messages[0].n }}{{ messages[0].keys()|list|join }}", "T[5]U[rolecontentnl]" },
                { "{{ (messages[0].content ~ bos).rsplit('>', 2) }}", "T[[']U[<|im_end|]T[', ']U[ x]T[<s', '']]" },
                { "{{ messages[0].content|urlize }}", "U[&lt;|im_end|&gt; x]" },
                { "{{ ('&a' ~ messages[0].content[3] ~ 'p;&lt;')|striptags }}", "U[&]T[<]" }, /* one byte of a reference is enough */
                { "{{ (messages[0].content ~ '<!-- x -->y')|striptags }}", "U[x]T[y]" },
                { "{{ (bos ~ ' ' ~ messages[0].content)|wordwrap(4) }}", "T[<s> \n]U[<|im]T[\n]U[_end]T[\n]U[|> x]" },
                { "{{ messages[0].l|pprint }}", "T[[']U[<a>]T[']]" },
                { "{{ 'a<x>b'|replace('<x>', messages[0].content|string)|title }}", "T[A]U[<|im_end|> X]T[b]" },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                check_marks(rows[i].src, rows[i].expected);
}

/* Inputs are copied: a template that changes its lists changes nothing outside, and renders the same again. */
static void test_inputs_untouched(void **state) {
        json_t *in_json = json_loads("{\"messages\": [{\"a\": [1]}]}", 0, NULL);
        struct tmpl_input in = { .messages = json_object_get(in_json, "messages") };
        static const char src[] = "{% set m = messages.pop() %}{% do m.a.append(2) %}{{ messages|length }}{{ m }}";
        struct tmpl *t = NULL;

        assert_int_equal(tmpl_compile(src, strlen(src), &t, NULL), 0);
        for (int i = 0; i < 2; i++) {
                struct tmpl_output out = { 0 };
                assert_int_equal(tmpl_render(t, &in, &out, NULL), 0);
                assert_string_equal(out.text.data, "0{'a': [1, 2]}");
                tmpl_output_free(&out);
        }
        tmpl_free(t);
        json_decref(in_json);
}

/* Each allocation in turn fails: -ENOMEM, nothing leaks (sanitizers tell), and then it works. */
static void test_alloc_failures(void **state) {
        static const char src[] = "{% for m in messages %}{{ m.content|upper ~ 'x' * 300000 }}{% endfor %}{{ messages|tojson }}";

        for (uint64_t nth = 1; nth < 1000; nth++) {
                json_t *j = json_loads("{\"messages\": [{\"content\": \"a\"}, {\"content\": \"b\"}]}", 0, NULL);
                struct tmpl_input in = { .messages = json_object_get(j, "messages") };
                struct tmpl_output out = { 0 };
                struct tmpl *t = NULL;
                int r;

                fault_arm(FAULT_ALLOC, nth);
                r = tmpl_compile(src, strlen(src), &t, NULL);
                if (r == 0)
                        r = tmpl_render(t, &in, &out, NULL);
                fault_arm(FAULT_ALLOC, 0);
                tmpl_free(t);
                tmpl_output_free(&out);
                json_decref(j);
                if (r == 0) {
                        assert_true(nth > 5);
                        return;
                }
                assert_int_equal(r, -ENOMEM);
        }
        fail_msg("never succeeded");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_snippets),          cmocka_unit_test(test_conversations), cmocka_unit_test(test_load_errors),
                cmocka_unit_test(test_render_errors),     cmocka_unit_test(test_bounds),        cmocka_unit_test(test_provenance),
                cmocka_unit_test(test_inputs_untouched),  cmocka_unit_test(test_alloc_failures),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
