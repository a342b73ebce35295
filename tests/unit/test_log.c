/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: what the journal is sent, and what goes to stderr where it can't. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/common/log.h"

static char dir[] = "/tmp/hth-log-XXXXXX", path[64];

static int journal(void) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        unlink(path);
        strcpy(sa.sun_path, path);
        assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
        return fd;
}

static void receive(int fd, char text[8192]) {
        ssize_t n = recv(fd, text, 8191, 0);
        assert_true(n > 0);
        text[n] = 0;
}

static bool has_line(const char *text, const char *line) {
        const char *p = strstr(text, line);
        return p && (p == text || p[-1] == '\n') && p[strlen(line)] == '\n';
}

static void test_fields(void **state) {
        struct log l = { .level = LOG_LEVEL_INFO, .program = "hearthd", .journal = true };
        const char *fields[] = { "HEARTH_UID=1000", "HEARTH_MODEL=a\nHEARTH_UID=0" };
        char text[8192];
        int fd = journal();

        assert_int_equal(log_journal_open(&l, path), 0);
        log_event(&l, LOG_LEVEL_WARNING, fields, 2, "request %d: %s", 7, "first\nMESSAGE=forged");
        receive(fd, text);
        assert_true(has_line(text, "MESSAGE=request 7: first\\nMESSAGE=forged"));
        assert_true(has_line(text, "PRIORITY=4"));
        assert_true(has_line(text, "SYSLOG_IDENTIFIER=hearthd"));
        assert_true(has_line(text, "HEARTH_UID=1000"));
        assert_true(has_line(text, "HEARTH_MODEL=a\\nHEARTH_UID=0"));
        log_debug(&l, "not at this level");
        assert_true(recv(fd, text, sizeof(text), 0) < 0);
        /* A journal that was restarted: a new socket of the same name. */
        close(fd);
        fd = journal();
        log_error(&l, "again");
        receive(fd, text);
        assert_true(has_line(text, "MESSAGE=again") && has_line(text, "PRIORITY=3"));
        close(fd);
        log_journal_close(&l);
}

/* What goes to stderr meanwhile. */
static void captured(const struct log *l, const char *message, char ret[4096]) {
        char name[80];
        int saved = dup(STDERR_FILENO), fd;
        ssize_t n;

        snprintf(name, sizeof(name), "%s/err", dir);
        fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        dup2(fd, STDERR_FILENO);
        log_info(l, "%s", message);
        dup2(saved, STDERR_FILENO);
        close(saved);
        n = pread(fd, ret, 4095, 0);
        ret[n > 0 ? n : 0] = 0;
        close(fd);
        unlink(name);
}

static void test_without_journal(void **state) {
        struct log l = { .level = LOG_LEVEL_INFO, .program = "hearthd" };
        char text[4096], longer[3000];

        captured(&l, "hello\x1b[2J", text);
        assert_string_equal(text, "hearthd: hello\\x1b[2J\n");
        /* It is the journal's, but the socket is not there, or its queue is full: through stderr. */
        l.journal = true;
        unlink(path);
        assert_int_equal(log_journal_open(&l, path), 0);
        captured(&l, "hello", text);
        assert_string_equal(text, "<6>hello\n");
        int fd = journal();
        for (int i = 0; i < 10000 && log_journal_send(&l, LOG_LEVEL_INFO, "fill it", NULL, 0); i++)
                ;
        captured(&l, "hello", text);
        assert_string_equal(text, "<6>hello\n");
        close(fd);
        log_journal_close(&l);
        memset(longer, 'x', sizeof(longer) - 1);
        longer[sizeof(longer) - 1] = 0;
        captured(&l, longer, text);
        assert_true(strlen(text) < 1200 && text[strlen(text) - 1] == '\n' && !memchr(text, '\n', strlen(text) - 1));
}

static void test_stream(void **state) {
        char text[64];
        struct stat st;

        assert_int_equal(fstat(STDERR_FILENO, &st), 0);
        snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
        assert_true(log_stream_is_journal(text));
        snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino + 1);
        assert_false(log_stream_is_journal(text));
        assert_false(log_stream_is_journal(NULL));
        assert_false(log_stream_is_journal("nonsense"));
}

/* Nobody reads what stderr leads to: lines are lost, and whoever writes them goes on. */
static void test_full(void **state) {
        struct log l = { .level = LOG_LEVEL_INFO, .program = "test" };
        int saved = dup(STDERR_FILENO), fds[2];
        char buf[4096];

        for (int k = 0; k < 2; k++) {
                assert_int_equal(k ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds), 0);
                dup2(fds[1], STDERR_FILENO);
                alarm(30); /* ends a test that waits */
                for (int i = 0; i < 20000; i++)
                        log_line(&l, LOG_LEVEL_INFO, "line %d of %0*d", i, i % 1000, 0);
                alarm(0);
                dup2(saved, STDERR_FILENO);
                close(fds[1]);
                assert_true(read(fds[0], buf, sizeof(buf)) > 14);
                assert_memory_equal(buf, "test: line 0 of", 15);
                close(fds[0]);
        }
        close(saved);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_fields), cmocka_unit_test(test_without_journal), cmocka_unit_test(test_stream),
                                            cmocka_unit_test(test_full) };
        int r;

        if (!mkdtemp(dir))
                return 1;
        snprintf(path, sizeof(path), "%s/journal", dir);
        r = cmocka_run_group_tests(tests, NULL, NULL);
        unlink(path);
        rmdir(dir);
        return r;
}
