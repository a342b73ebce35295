/* SPDX-License-Identifier: Apache-2.0 */
/* Frames and descriptors over a real socketpair. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cmocka.h>

#include "ipc/frame.h"

struct pair { int a, b; };

static int setup(void **state) {
        static struct pair p;
        int s[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s), 0);
        p = (struct pair){ s[0], s[1] };
        *state = &p;
        return 0;
}

static int teardown(void **state) {
        struct pair *p = *state;
        fd_close(p->a);
        fd_close(p->b);
        return 0;
}

static int open_fds(void) {
        int n = 0;
        for (int fd = 0; fd < 1024; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void put(struct buf *b, const char *payload, uint32_t n) {
        uint8_t h[4] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24) };
        assert_int_equal(buf_append(b, h, 4), 0);
        assert_int_equal(buf_append(b, payload, n), 0);
}

/* Frames of several sizes, sent in pieces of every size: each arrives whole. */
static void test_pieces(void **state) {
        char payload[300];

        for (size_t i = 0; i < sizeof(payload); i++)
                payload[i] = (char)i;
        for (size_t piece = 1; piece < 40; piece++) {
                struct frame_reader r;
                struct buf b = {};
                struct frame f;
                struct h_error err = {};
                uint32_t got = 0;

                frame_reader_init(&r, 1000, 4);
                for (uint32_t n = 0; n < 300; n += 37)
                        put(&b, payload, n);
                for (size_t at = 0; at < b.len; at += piece) {
                        assert_int_equal(frame_reader_feed(&r, b.data + at, MIN(piece, b.len - at), NULL, 0), 0);
                        while (frame_reader_next(&r, &f, &err) == 1) {
                                assert_int_equal(f.n, 37 * got);
                                assert_memory_equal(f.p, payload, f.n);
                                got++;
                        }
                }
                assert_int_equal(got, 9);
                assert_false(frame_reader_in_frame(&r));
                assert_int_equal(frame_reader_next(&r, &f, &err), 0);
                assert_int_equal(frame_reader_bytes(&r), 0); /* idle: holds nothing */
                frame_reader_done(&r);
                buf_free(&b);
        }
}

static void test_oversize(void **state) {
        struct pair *p = *state;
        struct frame_reader r;
        struct h_error err = {};
        struct frame f;

        frame_reader_init(&r, 1000, 4);
        assert_int_equal(send(p->a, "\xff\xff\xff\xff", 4, 0), 4);
        assert_int_equal(frame_reader_fill(&r, p->b), 4);
        assert_int_equal(frame_reader_next(&r, &f, &err), -EHEARTH);
        assert_int_equal(err.code, HEARTH_E_too_large);
        assert_true(frame_reader_bytes(&r) < 10000);
        frame_reader_done(&r);
}

static void test_half_frame(void **state) {
        struct pair *p = *state;
        struct frame_reader r;
        struct h_error err = {};
        struct frame f;

        frame_reader_init(&r, 16 << 20, 4);
        assert_int_equal(send(p->a, "\xff\xff\x0f\x00" "abc", 7, 0), 7);
        assert_int_equal(frame_reader_fill(&r, p->b), 7);
        assert_int_equal(frame_reader_next(&r, &f, &err), 0);
        assert_true(frame_reader_in_frame(&r));
        assert_int_equal(frame_reader_fill(&r, p->b), -EAGAIN);
        p->a = fd_close(p->a);
        assert_int_equal(frame_reader_fill(&r, p->b), 0);
        assert_true(frame_reader_bytes(&r) < (1u << 20)); /* not what it claimed */
        frame_reader_done(&r);
}

static ino_t inode(int fd) {
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        return st.st_ino;
}

/* Descriptors reach the frame they were sent with, wherever the reads fall. */
static void test_fds(void **state) {
        struct pair *p = *state;
        struct frame_queue q = {};
        struct frame_reader r;
        struct h_error err = {};
        struct frame f;
        struct buf b = {};
        int before = open_fds(), pipe_fds[2], other[2];

        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        assert_int_equal(pipe2(other, O_CLOEXEC), 0);
        put(&b, "one", 3);
        assert_int_equal(frame_queue_push(&q, &b, NULL, 0), 0);
        put(&b, "two", 3);
        assert_int_equal(frame_queue_push(&q, &b, pipe_fds, 2), 0);
        put(&b, "three", 5);
        assert_int_equal(frame_queue_push(&q, &b, NULL, 0), 0);
        put(&b, "four", 4);
        assert_int_equal(frame_queue_push(&q, &b, other, 1), 0);
        assert_int_equal(q.bytes, 4 * 4 + 3 + 3 + 5 + 4);
        assert_int_equal(frame_queue_flush(&q, p->a), 0);
        assert_int_equal(q.bytes, 0);

        frame_reader_init(&r, 1000, 8);
        for (unsigned got = 0; got < 4;) {
                assert_true(frame_reader_fill(&r, p->b) > 0);
                while (frame_reader_next(&r, &f, &err) == 1) {
                        assert_int_equal(f.n_fds, got == 1 ? 2 : got == 3 ? 1 : 0);
                        assert_false(f.fds_lost);
                        if (got == 1) {
                                int fd = frame_take_fd(&f, 0);
                                assert_int_equal(inode(fd), inode(pipe_fds[0]));
                                assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
                                assert_int_equal(frame_take_fd(&f, 0), -1);
                                close(fd);
                                /* the second one is not taken: the reader closes it */
                        }
                        if (got == 3)
                                assert_int_equal(inode(f.fds[0]), inode(other[0]));
                        got++;
                }
        }
        frame_reader_done(&r);
        for (int i = 0; i < 2; i++) {
                close(pipe_fds[i]);
                close(other[i]);
        }
        assert_int_equal(open_fds(), before);
}

/* More descriptors than allowed: all closed, and the frame says so. */
static void test_surplus_fds(void **state) {
        struct pair *p = *state;
        struct frame_queue q = {};
        struct frame_reader r;
        struct h_error err = {};
        struct frame f;
        struct buf b = {};
        int before = open_fds(), fds[5] = { 0, 1, 2, 0, 1 };

        put(&b, "x", 1);
        assert_int_equal(frame_queue_push(&q, &b, fds, 5), 0);
        assert_int_equal(frame_queue_flush(&q, p->a), 0);
        frame_reader_init(&r, 1000, 4);
        assert_true(frame_reader_fill(&r, p->b) > 0);
        assert_int_equal(frame_reader_next(&r, &f, &err), 1);
        assert_int_equal(f.n_fds, 0);
        assert_true(f.fds_lost);
        frame_reader_done(&r);
        assert_int_equal(open_fds(), before);

        /* Those of a half frame are counted, closed when the caller won't keep them, and the frame says so. */
        put(&b, "zzzz", 4);
        b.len -= 2;
        assert_int_equal(frame_queue_push(&q, &b, fds, 3), 0);
        assert_int_equal(frame_queue_flush(&q, p->a), 0);
        frame_reader_init(&r, 1000, 4);
        assert_int_equal(frame_reader_begun(&r), 0);
        assert_true(frame_reader_fill(&r, p->b) > 0);
        assert_int_equal(frame_reader_files(&r), 3);
        assert_int_equal(frame_reader_begun(&r), 1);
        assert_int_equal(open_fds(), before + 3);
        frame_reader_drop_files(&r);
        assert_int_equal(frame_reader_files(&r), 0);
        assert_int_equal(open_fds(), before);
        assert_int_equal(frame_reader_feed(&r, "zz", 2, NULL, 0), 0);
        assert_int_equal(frame_reader_begun(&r), 0);
        assert_int_equal(frame_reader_next(&r, &f, &err), 1);
        assert_true(f.fds_lost && f.n_fds == 0 && f.n == 4);
        frame_reader_done(&r);

        /* Descriptors with half a frame, then the end: nothing leaks. */
        put(&b, "yyyy", 4);
        b.len -= 2;
        assert_int_equal(frame_queue_push(&q, &b, fds, 2), 0);
        assert_int_equal(frame_queue_flush(&q, p->a), 0);
        frame_reader_init(&r, 1000, 4);
        assert_true(frame_reader_fill(&r, p->b) > 0);
        assert_int_equal(frame_reader_next(&r, &f, &err), 0);
        frame_reader_done(&r);
        assert_int_equal(open_fds(), before);
}

/* A slow reader: the queue keeps count, order and content. */
static void test_backpressure(void **state) {
        struct pair *p = *state;
        struct frame_queue q = {};
        struct frame_reader r;
        struct h_error err = {};
        struct frame f;
        static char big[100000];
        unsigned got = 0;
        int more;

        for (unsigned i = 0; i < 20; i++) {
                struct buf b = {};
                memset(big, (int)('a' + i), sizeof(big));
                put(&b, big, (uint32_t)(i % 3 ? 10 : sizeof(big)));
                assert_int_equal(frame_queue_push(&q, &b, NULL, 0), 0);
        }
        assert_int_equal(frame_queue_flush(&q, p->a), 1);
        assert_true(q.bytes > 0);
        frame_reader_init(&r, 200000, 4);
        do {
                ssize_t n;
                while ((n = frame_reader_fill(&r, p->b)) > 0)
                        while (frame_reader_next(&r, &f, &err) == 1) {
                                assert_int_equal(f.n, got % 3 ? 10 : sizeof(big));
                                assert_int_equal(f.p[f.n - 1], 'a' + got);
                                got++;
                        }
                assert_int_equal(n, -EAGAIN);
                more = frame_queue_flush(&q, p->a);
        } while (more == 1 || got < 20);
        assert_int_equal(more, 0);
        assert_int_equal(q.frames, 0);
        frame_reader_done(&r);

        p->b = fd_close(p->b);
        struct buf b = {};
        put(&b, "x", 1);
        assert_int_equal(frame_queue_push(&q, &b, NULL, 0), 0);
        assert_int_equal(frame_queue_flush(&q, p->a), -EPIPE); /* and no SIGPIPE */
        frame_queue_done(&q);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pieces),
                cmocka_unit_test_setup_teardown(test_oversize, setup, teardown),
                cmocka_unit_test_setup_teardown(test_half_frame, setup, teardown),
                cmocka_unit_test_setup_teardown(test_fds, setup, teardown),
                cmocka_unit_test_setup_teardown(test_surplus_fds, setup, teardown),
                cmocka_unit_test_setup_teardown(test_backpressure, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
