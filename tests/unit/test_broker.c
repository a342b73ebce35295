/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's parts that need no loop: configuration, names, the ledger, quotas, the socket's rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/broker/cache.h"
#include "daemon/broker/card.h"
#include "daemon/broker/config.h"
#include "daemon/broker/files.h"
#include "daemon/broker/ledger.h"
#include "daemon/broker/registry.h"
#include "daemon/broker/user.h"
#include "ipc/worker.h"

static char *dir(void) {
        static char path[64];

        strcpy(path, "/tmp/hth-unit-XXXXXX");
        assert_non_null(mkdtemp(path));
        return path;
}

static void put(const char *d, const char *name, const char *text) {
        char path[256];
        FILE *f;

        snprintf(path, sizeof(path), "%s/%s", d, name);
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

static void erase(const char *d) {
        char cmd[128];

        snprintf(cmd, sizeof(cmd), "rm -r %s", d);
        assert_int_equal(system(cmd), 0);
}

/* ---- configuration ---- */

static void test_sizes_and_times(void **state) {
        static const struct { const char *s; bool ok; uint64_t v; } sizes[] = {
                { "0", true, 0 }, { "512", true, 512 }, { "3K", true, 3072 }, { "2 MiB", true, 2 << 20 }, { "1GB", true, 1000000000 },
                { "16384T", true, UINT64_C(1) << 54 }, { "99999999999999999999", false, 0 }, { "18446744073709551615K", false, 0 },
                { "", false, 0 }, { "-1", false, 0 }, { "1.5G", false, 0 }, { "1 parsec", false, 0 },
        }, times[] = {
                { "250ms", true, 250 }, { "90s", true, 90000 }, { "5 min", true, 300000 }, { "2h", true, 7200000 }, { "never", true, 0 },
                { "5", false, 0 }, { "s", false, 0 }, { "1d", false, 0 }, { "0s", false, 0 }, { "0ms", false, 0 },
        };
        uint64_t v;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                v = 0;
                assert_int_equal(config_parse_bytes(sizes[i].s, &v), sizes[i].ok);
                if (sizes[i].ok)
                        assert_int_equal(v, sizes[i].v);
        }
        for (size_t i = 0; i < ELEMENTSOF(times); i++) {
                v = 0;
                assert_int_equal(config_parse_time(times[i].s, &v), times[i].ok);
                if (times[i].ok)
                        assert_int_equal(v, times[i].v);
        }
}

static int load_text(struct config *c, const char *text, struct h_error *err) {
        char path[128], *d = dir();
        int r;

        put(d, "c", text);
        snprintf(path, sizeof(path), "%s/c", d);
        config_init(c);
        r = config_load(c, path, err);
        erase(d);
        return r;
}

static void test_config(void **state) {
        struct h_error err = {};
        struct config c;

        assert_int_equal(load_text(&c, "[daemon]\nmodel_dir = /a\nmodel_dir = /b\nhost_budget = 2G\n"
                                       "[models]\nslots = 6\n[model x]\npinned = yes\ncontext = 99\n", &err), 0);
        assert_int_equal(c.dirs->n, 2);
        assert_string_equal(c.dirs->v[1], "/b");
        assert_int_equal(c.host_budget, UINT64_C(2) << 30);
        assert_true(config_model_of(&c, "x")->pinned);
        assert_int_equal(config_model_of(&c, "x")->slots, 6);
        assert_int_equal(config_model_of(&c, "x")->context, 99);
        assert_false(config_model_of(&c, "y")->pinned);
        config_done(&c);

        /* Comments, blanks, both separators, no newline at the end. */
        assert_int_equal(load_text(&c, "\xef\xbb\xbf; one\r\n  # two\n[models] ; three\n\t slots:6 ; four\n\n[ model a b ]\ncontext=\t9", &err), 0);
        assert_int_equal(config_model_of(&c, "a b")->slots, 6);
        assert_int_equal(config_model_of(&c, "a b")->context, 9);
        config_done(&c);
}

/* The first mistake is told with its line, also if later lines are good. */
static void test_config_mistakes(void **state) {
        static const struct { const char *text, *names; } rows[] = {
                { "[limits]\nconections = 3\nconnections = 4\n", ":2: [limits] has no key \"conections\"" },
                { "[limit]\nconnections = 3\n", "[limit] has no key" },
                { "[daemon]\nlog_level = loud\n", "log_level is one of" },
                { "\n\n[models]\nslots = 0\n", ":4: slots is a number from 1 to 1024, not \"0\"" },
                { "[models]\nslots = 2000\n", ":2: slots is a number from 1 to 1024, not \"2000\"" },
                { "[model x]\n\nslots = 4294967297\n", ":3: slots is a number from 1 to 1024, not \"4294967297\"" },
                { "[models]\ncontext = 134217729\n", ":2: context is a number from 0 to 134217728, not" },
                { "[worker]\nthreads = 100000\n", ":2: threads is a number from 0 to 4096, not \"100000\"" },
                { "[worker]\nthreads = -1\n", ":2: threads is a number from 0 to 4096, not \"-1\"" },
                { "[limits]\nconnections = 3000000000\n", ":2: connections is a number from 1 to 2147483647, not" },
                { "[models]\npinned = perhaps\n", "yes or no" },
                { "[worker]\nhang_timeout = 250ms\n", ":2: hang_timeout is at least 1000ms, or never, not \"250ms\"" },
                { "[models]\nidle_timeout = 0s\n", ":2: idle_timeout is a time like 250ms, 90s, 5min or never, not \"0s\"" },
                { "[daemon]\nhost_budget = much\n", "host_budget is a size" },
                { "nonsense\n", ":1: expected [section] or key = value" },
                { "", "it is empty" },
                { "[access\n", ":1: a section's name ends with ]" },
                { "[access] use = root\n", ":1: behind [access] nothing may stand" },
                { "[access]\nuse = root\x01\n", ":2: byte 11 of the line is 0x01" },
                { "[access]\nuse = \xc3\n", ":2: byte 7 of the line is 0xc3, which is not UTF-8" },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                struct h_error err = {};
                struct config c;

                assert_int_equal(load_text(&c, rows[i].text, &err), -EHEARTH);
                assert_int_equal(err.code, HEARTH_E_bad_request);
                if (!strstr(err.message, rows[i].names))
                        fail_msg("\"%s\" does not say \"%s\"", err.message, rows[i].names);
                config_done(&c);
        }
}

/* What the file allows the worker takes: its greatest value goes into the message, and one more does not. */
static void test_config_bounds(void **state) {
        struct wk_hello hello;
        struct wk_open open;
        const struct { const char *key; int type; void *body; uint32_t *field; } rows[] = {
                { "threads", WK_hello, &hello, &hello.threads },
                { "slots", WK_open, &open, &open.slots },
        };
        const struct config_doc *docs;
        const size_t n = config_docs(&docs);

        wk_init_hello(&hello);
        hello.backend = "cpu";
        wk_init_open(&open);
        open.model = 1;
        open.name = "x";
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                _cleanup_(buf_free) struct buf out = {};
                struct h_error err = {};
                size_t k = 0;

                while (k < n && strcmp(docs[k].key, rows[i].key) != 0)
                        k++;
                assert_true(k < n);
                *rows[i].field = docs[k].max;
                assert_int_equal(schema_encode(&wk_schema, rows[i].type, 1, rows[i].body, &out, &err), 0);
                *rows[i].field = docs[k].max + 1;
                assert_int_equal(schema_encode(&wk_schema, rows[i].type, 1, rows[i].body, &out, &err), -EHEARTH);
                assert_non_null(strstr(err.message, rows[i].key));
                *rows[i].field = docs[k].max;
        }
}

/* The shipped file names every default in a comment: with the comment signs gone it is still right, and changes nothing. */
static void test_shipped_file(void **state) {
        struct h_error err = {};
        struct config c, d;
        char line[256], text[8192] = "";
        FILE *f = fopen(SHIPPED_CONF, "r");

        assert_non_null(f);
        while (fgets(line, sizeof(line), f)) {
                bool setting = line[0] == '#' && line[1] != ' ' && strchr(line, '=') && !strstr(line, "host_budget");
                strcat(text, setting ? line + 1 : line);
        }
        fclose(f);
        if (load_text(&c, text, &err) < 0)
                fail_msg("%s", err.message);
        config_init(&d);
        assert_int_equal(c.dirs->n, 1);
        assert_int_equal(c.log_level, d.log_level);
        assert_int_equal(c.cuda, d.cuda);
        assert_int_equal(c.threads, d.threads);
        assert_int_equal(c.hang_timeout, d.hang_timeout);
        assert_int_equal(c.stall_timeout, d.stall_timeout);
        assert_int_equal(c.hello_timeout, d.hello_timeout);
        assert_int_equal(c.yield_timeout, d.yield_timeout);
        assert_int_equal(c.max_connections, d.max_connections);
        assert_int_equal(c.max_connections_per_uid, d.max_connections_per_uid);
        assert_int_equal(c.max_requests_per_uid, d.max_requests_per_uid);
        assert_int_equal(c.max_bytes_per_uid, d.max_bytes_per_uid);
        assert_int_equal(c.max_slots_per_uid, d.max_slots_per_uid);
        assert_int_equal(c.model.context, d.model.context);
        assert_int_equal(c.model.slots, d.model.slots);
        assert_int_equal(c.model.idle_timeout, d.model.idle_timeout);
        assert_int_equal(c.model.pinned, d.model.pinned);
        assert_int_equal(c.max_pinned_per_uid, d.max_pinned_per_uid);
        for (int i = 0; i < _ACCESS_MAX; i++) {
                assert_int_equal(c.access[i].everybody, d.access[i].everybody);
                assert_int_equal(c.access[i].n_uids + c.access[i].n_gids, 0);
        }
        config_done(&c);
        config_done(&d);
}

/* ---- names ---- */

static void test_distance(void **state) {
        assert_int_equal(registry_distance("smollm2", "smollm2", 3), 0);
        assert_int_equal(registry_distance("smolm2", "smollm2", 3), 1);
        assert_int_equal(registry_distance("SMOLLM2", "smollm2", 3), 0);
        assert_int_equal(registry_distance("smolml2", "smollm2", 3), 1); /* neighbours swapped */
        assert_int_equal(registry_distance("", "abc", 5), 3);
        assert_int_equal(registry_distance("abc", "", 5), 3);
        assert_int_equal(registry_distance("kitten", "sitting", 9), 3);
        assert_int_equal(registry_distance("kitten", "sitting", 1), 2); /* not further than asked */
}

static void test_scan(void **state) {
        const char *d = dir(), *dirs[] = { "/nonexistent", d };
        struct registry_list l;

        put(d, "b.gguf", "12345");
        put(d, "a-00001-of-00002.gguf", "123");
        put(d, "a-00002-of-00002.gguf", "1234");
        put(d, ".hidden.gguf", "");
        put(d, "readme.txt", "");
        put(d, "C.GGUF", "1");
        assert_int_equal(registry_scan(dirs, 2, &l), 0);
        assert_int_equal(l.n, 3);
        assert_string_equal(l.v[0].name, "C");
        assert_string_equal(l.v[1].name, "a");
        assert_int_equal(l.v[1].n_parts, 2);
        assert_int_equal(l.v[1].bytes, 7);
        assert_string_equal(l.v[2].name, "b");
        registry_list_free(&l);

        /* What can't be loaded is told; a name that is no text is shown escaped and spoils nothing. */
        put(d, "empty.gguf", "");
        put(d, "good.gguf", "GGUF....");
        put(d, "half-00001-of-00003.gguf", "GGUF");
        put(d, "half-00003-of-00003.gguf", "GGUF");
        put(d, "z\xff\x1b[1m\xc3\xa9\xc2\x9b\x80.gguf", "GGUF");
        assert_int_equal(registry_scan(dirs, 2, &l), 0);
        assert_int_equal(l.n, 7);
        for (size_t i = 0; i < l.n; i++) {
                static const struct { const char *name, *fault; } want[] = {
                        { "C", "it is no GGUF file" }, { "a", "it is no GGUF file" }, { "b", "it is no GGUF file" }, { "empty", "its file is empty" },
                        { "good", "" }, { "half", "only 2 of its 3 parts are there" },
                        { "z\\xff\\x1b[1m\xc3\xa9\\xc2\\x9b\\x80", "its file's name has control characters" },
                };
                assert_string_equal(l.v[i].name, want[i].name);
                assert_int_equal(strncmp(l.v[i].fault, want[i].fault, strlen(want[i].fault)), 0);
                assert_int_equal(l.v[i].fault[0] == 0, want[i].fault[0] == 0);
                assert_int_equal(l.v[i].odd, i == 6);
        }
        registry_list_free(&l);
        erase(d);
}

static void test_open(void **state) {
        const char *d = dir(), *dirs[] = { d };
        struct source *s = NULL;
        struct names near = {};
        struct h_error err = {};

        put(d, "one.gguf", "12345");
        put(d, "two-00001-of-00002.gguf", "1");
        put(d, "two-00002-of-00002.gguf", "22");
        assert_int_equal(registry_open(dirs, 1, "one", &s, NULL, &err), 0);
        assert_int_equal(s->n, 1);
        assert_int_equal(s->keys[0].size, 5);
        source_free(s);
        assert_int_equal(registry_open(dirs, 1, "two", &s, NULL, &err), 0);
        assert_int_equal(s->n, 2);
        assert_int_equal(s->bytes, 3);
        source_free(s);
        assert_int_equal(registry_open(dirs, 1, "tow", &s, &near, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_unknown_model);
        assert_true(near.n >= 1);
        assert_string_equal(near.v[0], "two");
        names_free(&near);
        err = (struct h_error){};
        assert_int_equal(registry_open(dirs, 1, "../one", &s, NULL, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_bad_request);
        erase(d);
}

/* ---- memory and quotas ---- */

static void test_ledger(void **state) {
        struct reservation a = {}, b = {}, c = {};
        struct h_error err = {};
        struct ledger l;
        char held[128];

        ledger_init(&l, 1000);
        assert_int_equal(ledger_reserve(&l, &a, 600, "first", &err), 0);
        assert_int_equal(ledger_reserve(&l, &b, 401, "second", &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_model_no_memory);
        assert_int_equal(err.needed, 401);
        assert_int_equal(err.available, 400);
        assert_non_null(strstr(err.message, "first 600 B"));
        assert_int_equal(l.used, 600);
        assert_int_equal(ledger_reserve(&l, &b, UINT64_MAX, "huge", NULL), -EHEARTH);
        assert_int_equal(ledger_reserve(&l, &b, 400, "first", &err), 0);
        ledger_holders(&l, NULL, held, sizeof(held));
        assert_string_equal(held, "first 1.0 kB"); /* one holder's parts are one sum */
        ledger_move(&a, &c);
        ledger_release(&a);
        assert_int_equal(l.used, 1000);
        ledger_release(&c);
        ledger_release(&c);
        ledger_release(&b);
        assert_int_equal(l.used, 0);
}

static void test_cache_knows_a_copy(void **state) {
        struct source one = { .n = 1, .keys = { { .dev = 1, .ino = 2, .size = 3, .mtime_ns = 4, .ctime_ns = 5 } } }, other = one;
        struct fill_result r = { .memfd = -1, .bytes = 10, .hash = { 7 } }, again = r;
        struct reservation held = {};
        struct content *a, *b;
        struct ledger l;
        struct cache c;
        bool known;

        ledger_init(&l, 0);
        cache_init(&c);
        other.keys[0].ino = 99;
        assert_null(cache_find(&c, &one));
        assert_int_equal(ledger_reserve(&l, &held, 10, "a", NULL), 0);
        a = cache_add(&c, &one, &r, &held, &known);
        assert_non_null(a);
        assert_false(known);
        assert_null(cache_find(&c, &other));
        assert_int_equal(ledger_reserve(&l, &held, 10, "a", NULL), 0);
        b = cache_add(&c, &other, &again, &held, &known);
        assert_true(known);
        assert_ptr_equal(a, b);
        assert_int_equal(l.used, 10); /* the second copy was given back */
        content_unref(&c, b);
        b = cache_find(&c, &other);
        assert_ptr_equal(a, b);
        content_unref(&c, b);
        one.keys[0].mtime_ns++;
        assert_null(cache_find(&c, &one)); /* touched: may be anything */
        content_unref(&c, a);
        assert_int_equal(l.used, 0);
        assert_null(cache_find(&c, &other));
        cache_done(&c);
}

/* What is noted for the next daemon comes back as it was; junk is refused line by line. */
static void test_cache_outlives(void **state) {
        static const char *const junk[] = {
                "", "files", "files ", "files 12", "content", "files zz00000000000000000000000000000000000000000000000000000000000000 1:2:3:4:5",
                "files 0700000000000000000000000000000000000000000000000000000000000000",
                "files 0700000000000000000000000000000000000000000000000000000000000000 1:2:3:4",
                "files 0700000000000000000000000000000000000000000000000000000000000000 1:2:3:4:5 x",
        };
        struct source one = { .n = 2, .keys = { { .dev = 1, .ino = UINT64_MAX, .size = 3, .mtime_ns = -4, .ctime_ns = 5 }, { .ino = 9 } } };
        struct content left = { .memfd = -1, .bytes = 10, .hash = { 7, 255 } }, *c;
        struct fill_result r = { .memfd = -1, .bytes = 10, .hash = { 7, 255 } };
        struct cache a, b;
        struct reservation held = {};
        struct ledger l;
        struct buf text = {};
        bool known;

        ledger_init(&l, 0);
        cache_init(&a);
        c = cache_add(&a, &one, &r, &held, &known);
        assert_int_equal(cache_describe(&a, &text), 0);
        content_unref(&a, c);
        cache_done(&a);

        cache_init(&b);
        text.data[text.len - 1] = 0; /* one line, without its end */
        assert_true(cache_parse_identity(&b, text.data));
        for (size_t i = 0; i < ELEMENTSOF(junk); i++)
                assert_false(cache_parse_identity(&b, junk[i]));
        assert_null(cache_find(&b, &one));
        assert_int_equal(ledger_reserve(&l, &left.held, 10, "left", NULL), 0);
        assert_true(cache_restore(&b, &left));
        assert_int_equal(l.used, 10);
        c = cache_find(&b, &one);
        assert_non_null(c);
        assert_false(c->restored);
        content_unref(&b, c); /* the only reference: used once, it goes like any other */
        assert_int_equal(l.used, 0);
        assert_int_equal(ledger_reserve(&l, &left.held, 10, "left", NULL), 0);
        assert_true(cache_restore(&b, &left));
        cache_drop_restored(&b); /* not used at all */
        assert_int_equal(l.used, 0);
        cache_done(&b);
        buf_free(&text);
}

/* A copy whose model left the device stays, charged as before, for who asks next, until its time is over or the room is needed. */
static void test_cache_keeps(void **state) {
        struct source one = { .n = 1, .keys = { { .ino = 1, .size = 3 } } };
        struct fill_result r = { .memfd = -1, .bytes = 10, .hash = { 1 } };
        struct reservation held = {};
        struct content *a, *b;
        struct ledger l;
        struct cache c;
        bool known;

        ledger_init(&l, 100);
        cache_init(&c);
        assert_int_equal(ledger_reserve(&l, &held, 10, "a", NULL), 0);
        a = cache_add(&c, &one, &r, &held, &known);
        b = cache_find(&c, &one);
        assert_null(cache_keep(&c, b, 50)); /* another model still has it: nothing to keep */
        assert_null(cache_keep(&c, a, 100));
        assert_int_equal(l.used, 10);
        cache_drop_kept(&c, 100);
        assert_ptr_equal(cache_find(&c, &one), a);
        assert_null(cache_keep(&c, a, 100));
        cache_drop_kept(&c, 101);
        assert_int_equal(l.used, 0);
        assert_null(cache_find(&c, &one));
        cache_done(&c);
}

static void test_quotas(void **state) {
        struct h_error err = {};
        struct config c;
        struct users us;
        struct user *u, *other;

        config_init(&c);
        c.max_connections_per_uid = 2;
        c.max_requests_per_uid = 1;
        c.max_bytes_per_uid = 100;
        users_init(&us, &c);
        u = user_get(&us, 7);
        assert_ptr_equal(user_get(&us, 7), u);
        user_unref(u);
        assert_int_equal(user_charge_connection(&us, u, &err), 0);
        assert_int_equal(user_charge_connection(&us, u, &err), 0);
        assert_int_equal(user_charge_connection(&us, u, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_quota);
        assert_int_equal(user_charge_request(&us, u, 101, NULL), -EHEARTH);
        assert_int_equal(u->bytes, 0);
        assert_int_equal(user_charge_request(&us, u, 60, NULL), 0);
        assert_int_equal(user_charge_request(&us, u, 1, NULL), -EHEARTH);
        assert_int_equal(user_charge_bytes(&us, u, SIZE_MAX, NULL), -EHEARTH);
        assert_int_equal(user_charge_bytes(&us, u, 40, NULL), 0);
        assert_int_equal(u->bytes, 100);

        /* Descriptors: the user's limit, then that of all. */
        c.max_files_per_uid = 10;
        us.max_files = 12;
        assert_int_equal(user_charge_files(&us, u, 11, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_quota);
        assert_int_equal(user_charge_files(&us, u, 10, NULL), 0);
        assert_int_equal(user_charge_files(&us, u, 1, NULL), -EHEARTH);
        assert_int_equal(user_charge_files(&us, u, UINT32_MAX, NULL), -EHEARTH);
        other = user_get(&us, 8);
        err.code = HEARTH_OK;
        assert_int_equal(user_charge_files(&us, other, 3, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_busy);
        assert_int_equal(user_charge_files(&us, other, 2, NULL), 0);
        user_return_files(other, 2);
        user_return_files(u, 10);
        assert_int_equal(u->n_files + other->n_files + us.n_files, 0);
        assert_null(user_unref(other));
        assert_null(user_unref(u));
        config_done(&c);
}

static void test_files_share(void **state) {
        struct files_share share = { 1, 1, 1 };
        struct h_error err = {};

        assert_int_equal(files_share(191, &share, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_quota);
        assert_int_equal(share.passed, 1);
        for (uint64_t n = 192; n; n *= 2) { /* to infinity and over it */
                assert_int_equal(files_share(n, &share, NULL), 0);
                assert_true(share.passed >= 16 && share.connections >= 16 && share.models >= 48);
                assert_true((uint64_t)share.passed + share.connections + share.models + 48 <= n);
        }
}

/* ---- access ---- */

static void test_access(void **state) {
        struct access_rule rules[_ACCESS_MAX] = {};
        struct h_error err = {};
        static const uint32_t groups[] = { 5, 100 };

        assert_int_equal(access_parse("7,  root @100", &rules[ACCESS_LOAD], &err), 0);
        assert_int_equal(access_parse("*", &rules[ACCESS_USE], &err), 0);
        assert_int_equal(access_parse("", &rules[ACCESS_PIN], &err), 0);
        assert_int_equal(rules[ACCESS_LOAD].n_uids, 2);
        assert_int_equal(access_of(rules, 7, NULL, 0), 1u << ACCESS_USE | 1u << ACCESS_LOAD);
        assert_int_equal(access_of(rules, 8, groups, 2), 1u << ACCESS_USE | 1u << ACCESS_LOAD);
        assert_int_equal(access_of(rules, 8, groups, 1), 1u << ACCESS_USE);
        assert_int_equal(access_of(rules, 100, NULL, 0), 1u << ACCESS_USE); /* a uid is no gid */
        assert_int_equal(access_of(rules, 0, NULL, 0), (1u << _ACCESS_MAX) - 1);
        assert_int_equal(access_of(rules, (uint32_t)geteuid(), NULL, 0), (1u << _ACCESS_MAX) - 1);
        assert_int_equal(access_check(rules, access_of(rules, 8, groups, 1), ACCESS_LOAD, 8, "m", &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_permission);
        assert_non_null(strstr(err.message, "uid 8 may not load models (m): [access] load in hearth.conf allows it to 7,  root @100"));
        /* What can't be understood leaves the rule as it was. */
        static const char *const wrong[] = { "no-such-user-here", "@no-such-group", "@", "4294967295", "99999999999", "1x" };
        for (size_t i = 0; i < ELEMENTSOF(wrong); i++) {
                err = (struct h_error){};
                assert_int_equal(access_parse(wrong[i], &rules[ACCESS_LOAD], &err), -EHEARTH);
                assert_string_equal(rules[ACCESS_LOAD].text, "7,  root @100");
        }
        for (int i = 0; i < _ACCESS_MAX; i++)
                access_rule_done(&rules[i]);
}

static char told[2000];

static void on_changed(void *ud, const char *section, const char *key, const char *was, const char *is, const char *effect) {
        size_t n = strlen(told);
        snprintf(told + n, sizeof(told) - n, "%s.%s:%s>%s:%s\n", section, key, was, is, effect);
}

/* What a reload takes, what it leaves, and what it says. */
static void test_apply(void **state) {
        struct h_error err = {};
        struct config a, b;

        assert_int_equal(load_text(&a, "[daemon]\nhost_budget = 1G\nmodel_dir = /a\n[models]\nslots = 2\n[model old]\npinned = yes\n", &err), 0);
        assert_int_equal(load_text(&b, "[daemon]\nhost_budget = 2G\nmodel_dir = /b\nlog_level = debug\n[access]\nunload = 7\n"
                                       "[limits]\nslots_per_user = 3\n[models]\nslots = 2\n[model new]\nidle_timeout = 1s\n", &err), 0);
        told[0] = 0;
        config_apply(&a, &b, on_changed, NULL);
        config_done(&b);
        assert_string_equal(told, "daemon.model_dir:/a>/b:in effect now\ndaemon.log_level:info>debug:in effect now\n"
                                  "daemon.host_budget:1073741824>2147483648:after a restart only\naccess.unload:>7:in effect now\n"
                                  "limits.slots_per_user:0>3:in effect now\nmodel new.idle_timeout:1800000ms>1000ms:in effect now\n"
                                  "model old.pinned:yes>no:in effect now\n");
        assert_int_equal(a.host_budget, UINT64_C(1) << 30);
        assert_string_equal(a.dirs->v[0], "/b");
        assert_int_equal(a.max_slots_per_uid, 3);
        assert_int_equal(a.access[ACCESS_UNLOAD].uids[0], 7);
        assert_int_equal(config_model_of(&a, "new")->idle_timeout, 1000);
        assert_false(config_model_of(&a, "old")->pinned);
        config_done(&a);
}

/* "auto" asks what is in the machine, in each way that it shows; cpu and cuda do not ask. */
static void test_card(void **state) {
        static const struct { const char *at, *file, *text; } signs[] = {
                { "dev", "nvidiactl", "" }, { "dev", "nvidia0", "" }, { "proc/driver/nvidia", "version", "NVRM version: x\n" },
        };
        char *d, at[160], cmd[400];

        for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
                d = dir();
                assert_false(card_present(d));
                snprintf(at, sizeof(at), "%s/%s", d, signs[i].at);
                snprintf(cmd, sizeof(cmd), "mkdir -p %s", at);
                assert_int_equal(system(cmd), 0);
                assert_false(card_present(d));
                put(at, signs[i].file, signs[i].text);
                assert_true(card_present(d));
                erase(d);
        }
        d = dir();
        snprintf(at, sizeof(at), "%s/sys/bus/pci/devices/0000:01:00.0", d);
        snprintf(cmd, sizeof(cmd), "mkdir -p %s", at);
        assert_int_equal(system(cmd), 0);
        put(at, "vendor", "0x8086\n");
        put(at, "class", "0x030000\n");
        assert_false(card_present(d)); /* another maker's */
        put(at, "vendor", "0x10de\n");
        put(at, "class", "0x0c0330\n");
        assert_false(card_present(d)); /* its USB controller */
        put(at, "class", "0x030200\n");
        assert_true(card_present(d));
        assert_true(card_wanted(BACKEND_AUTO, true, d));
        assert_false(card_wanted(BACKEND_AUTO, false, d)); /* a build for the CPU was asked for */
        assert_false(card_wanted(BACKEND_CPU, true, d));
        erase(d);
        d = dir();
        assert_false(card_wanted(BACKEND_AUTO, true, d));
        assert_true(card_wanted(BACKEND_CUDA, true, d)); /* then it is an error that it is not there */
        assert_true(card_wanted(BACKEND_CUDA, false, d));
        erase(d);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_sizes_and_times), cmocka_unit_test(test_config), cmocka_unit_test(test_config_mistakes),
                cmocka_unit_test(test_config_bounds), cmocka_unit_test(test_shipped_file),
                cmocka_unit_test(test_distance), cmocka_unit_test(test_scan), cmocka_unit_test(test_open),
                cmocka_unit_test(test_ledger), cmocka_unit_test(test_cache_knows_a_copy), cmocka_unit_test(test_cache_outlives), cmocka_unit_test(test_cache_keeps), cmocka_unit_test(test_quotas), cmocka_unit_test(test_files_share),
                cmocka_unit_test(test_access), cmocka_unit_test(test_card), cmocka_unit_test(test_apply),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
