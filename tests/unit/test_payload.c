/* SPDX-License-Identifier: Apache-2.0 */
/* Texts in sealed memfds: making one, taking it, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/seal.h"
#include "ipc/payload.h"
#include "ipc/wire.h"

static int made(const char *text, int seals) {
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        if (seals)
                assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
        return fd;
}

/* A generate message as it is after decoding. */
static void message(const char *prompt, struct schema_msg *ret) {
        struct wire_generate g;
        struct buf b = {};

        wire_init_generate(&g);
        g.prompt = prompt;
        assert_int_equal(wire_encode_generate(&b, 1, &g, NULL), 0);
        assert_int_equal(schema_decode(&wire_schema, b.data + 4, b.len - 4, ret, NULL, NULL), 0);
        buf_free(&b);
}

static void test_round_trip(void **state) {
        static char text[3 << 20];
        struct schema_msg m = {};
        struct h_error err = {};
        const struct wire_generate *g;
        uint64_t n;
        int fd;

        memset(text, 'x', sizeof(text));
        assert_int_equal(payload_make(text, sizeof(text), &fd), 0);
        assert_int_equal(payload_check(fd, &n, &err), 0);
        assert_int_equal(n, sizeof(text));
        /* It is what it is from now on. */
        assert_true(pwrite(fd, "y", 1, 0) < 0 && ftruncate(fd, 1) < 0 && ftruncate(fd, 4 << 20) < 0);
        assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
        message(NULL, &m);
        assert_int_equal(payload_take(&wire_schema, &m, "prompt", fd, &err), 0);
        g = m.body;
        assert_int_equal(g->n_prompt, sizeof(text));
        assert_true(g->has_prompt && memcmp(g->prompt, text, sizeof(text)) == 0 && g->prompt[sizeof(text)] == 0);
        /* Twice is once too often, and a message that is full stays as it is. */
        assert_int_equal(payload_take(&wire_schema, &m, "prompt", fd, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_bad_request);
        schema_msg_free(&m);
        close(fd);
}

static void refused(int fd, const char *field, const char *prompt, enum hearth_code code, const char *says) {
        struct schema_msg m = {};
        struct h_error err = {};
        const struct wire_generate *g;

        message(prompt, &m);
        assert_int_equal(payload_take(&wire_schema, &m, field, fd, &err), -EHEARTH);
        assert_int_equal(err.code, code);
        if (!strstr(err.message, says))
                fail_msg("\"%s\" does not say \"%s\"", err.message, says);
        g = m.body;
        assert_true(prompt ? strcmp(g->prompt, prompt) == 0 : !g->prompt && !g->has_prompt);
        schema_msg_free(&m);
        close(fd);
}

static void test_refused(void **state) {
        const int all = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
        int pipes[2], fd;

        refused(made("x", 0), "prompt", NULL, HEARTH_E_bad_request, "not sealed against writing shrinking growing");
        refused(made("x", all & ~F_SEAL_SHRINK), "prompt", NULL, HEARTH_E_bad_request, "not sealed against shrinking:");
        refused(made("x", all & ~F_SEAL_WRITE), "prompt", NULL, HEARTH_E_bad_request, "not sealed against writing:");
        refused(made("", all), "prompt", NULL, HEARTH_E_bad_request, "0 bytes");
        refused(made("a\xff", all), "prompt", NULL, HEARTH_E_bad_utf8, "offset 1");
        refused(made("x", all), "prompt", "here", HEARTH_E_bad_request, "generate.prompt is there");
        refused(made("x", all), "temperature", NULL, HEARTH_E_bad_request, "no text field");
        refused(made("x", all), "", NULL, HEARTH_E_bad_request, "no text field");
        refused(open("/dev/null", O_RDONLY | O_CLOEXEC), "prompt", NULL, HEARTH_E_bad_request, "no memfd");
        refused(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "prompt", NULL, HEARTH_E_bad_request, "no memfd");
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        close(pipes[1]);
        refused(pipes[0], "prompt", NULL, HEARTH_E_bad_request, "no memfd");
        fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fd, (off_t)PAYLOAD_MAX + 1), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, all), 0);
        refused(fd, "prompt", NULL, HEARTH_E_too_large, "67108865");
        refused(-1, "prompt", NULL, HEARTH_E_bad_request, "no memfd");
}

/* Lets go of the page that a pipe holds, when the kernel has given up on it once. */
static void *let_go(void *arg) {
        char c[64];

        usleep(200000);
        assert_true(read(*(int *)arg, c, sizeof(c)) > 0);
        return NULL;
}

/* A page that somebody holds for a moment is waited for; one that stays held is an error. */
static void test_held_page(void **state) {
        const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
        int p[2];

        for (int goes = 0; goes < 2; goes++) {
                int fd = made("some text", 0);
                loff_t at = 0;
                pthread_t t;

                assert_int_equal(pipe(p), 0);
                assert_int_equal(splice(fd, &at, p[1], NULL, 9, 0), 9);
                if (goes)
                        assert_int_equal(pthread_create(&t, NULL, let_go, p), 0);
                assert_int_equal(memfd_seal(fd, seals), goes ? 0 : -EBUSY);
                if (goes)
                        pthread_join(t, NULL);
                assert_int_equal(fcntl(fd, F_GET_SEALS) & seals, goes ? seals : 0);
                close(p[0]);
                close(p[1]);
                close(fd);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refused), cmocka_unit_test(test_held_page) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
