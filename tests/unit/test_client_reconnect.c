/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libhearth and a daemon that comes and goes, both in this thread: what is sent
 * again, what the callbacks see, and that callbacks may do anything meanwhile.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "client/hearth.h"
#include "ipc/frame.h"
#include "ipc/wire.h"

struct fixture {
        char dir[32], path[48];
        int listener, fd;
        struct frame_reader in;
        struct frame_queue out;
        hearth_client *client;
        hearth_call *call;
        char log[4096];
        int told; /* the descriptor that 'changed' told last */
        enum { NOTHING, UNREF, NEST, ASK, CANCEL_IT } on_paused, on_changed;
        bool deaf; /* no feature `resume` */
};

static const struct hearth_events events;

static void note(struct fixture *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct fixture *f, const char *fmt, ...) {
        size_t at = strlen(f->log);
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(f->log + at, sizeof(f->log) - at, fmt, ap);
        va_end(ap);
}

static void expect_log(struct fixture *f, const char *want) {
        assert_string_equal(f->log, want);
        f->log[0] = 0;
}

static void act(struct fixture *f, hearth_call *call, int what) {
        switch (what) {
        case UNREF: f->client = hearth_client_unref(f->client); break;
        case NEST: (void)hearth_client_dispatch(f->client); break;
        case ASK: assert_int_equal(hearth_ping(f->client, &events, f, NULL), 0); break;
        case CANCEL_IT: assert_int_equal(hearth_call_cancel(call ? call : f->call), 0); break;
        }
}

static void on_accepted(void *ud, hearth_call *c, const struct hearth_accepted *a) { note(ud, "accepted;"); }
static void on_tokens(void *ud, hearth_call *c, const struct hearth_tokens *t) { note(ud, "tokens '%s';", t->text); }
static void on_paused(void *ud, hearth_call *c, const char *reason, bool changed) {
        struct fixture *f = ud;
        note(f, "paused %d;", changed);
        act(f, c, f->on_paused);
}
static void on_done(void *ud, hearth_call *c, const struct hearth_result *r) {
        if (r->error)
                note(ud, "error %s;", r->error->code);
        else if (r->generated)
                note(ud, "done %s %u%s;", r->generated->finish, r->generated->n_generated, r->generated->changed ? " changed" : "");
        else
                note(ud, "done;");
}
static const struct hearth_events events = { .size = sizeof(events), .accepted = on_accepted, .tokens = on_tokens,
                                             .paused = on_paused, .done = on_done };

static void on_changed(void *ud, hearth_client *c, int fd) {
        struct fixture *f = ud;
        f->told = fd;
        act(f, NULL, fd < 0 ? f->on_changed : NOTHING);
}

/* ---- the daemon ---- */

static void serve(struct fixture *f) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        strcpy(sa.sun_path, f->path);
        f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(f->listener, (struct sockaddr *)&sa, sizeof(sa)), 0);
        assert_int_equal(listen(f->listener, 8), 0);
}

static void hang_up(struct fixture *f) {
        f->fd = fd_close(f->fd);
        frame_reader_done(&f->in);
        frame_queue_done(&f->out);
        frame_reader_init(&f->in, WIRE_MAX_FRAME, 16);
}

static void leave(struct fixture *f) {
        f->listener = fd_close(f->listener);
        unlink(f->path);
        hang_up(f);
}

static struct schema_msg take(struct fixture *f, struct frame *ret_frame) {
        struct h_error err = {};
        struct schema_msg m = {};
        struct frame frame;
        int r;

        while ((r = frame_reader_next(&f->in, &frame, &err)) == 0)
                if (frame_reader_fill(&f->in, f->fd) <= 0)
                        fail_msg("the client sent nothing");
        assert_int_equal(r, 1);
        if (schema_decode(&wire_schema, frame.p, frame.n, &m, NULL, &err) < 0)
                fail_msg("the client's message: %s", err.message);
        if (ret_frame)
                *ret_frame = frame;
        return m;
}

static bool silent(struct fixture *f) {
        struct frame frame;
        return frame_reader_fill(&f->in, f->fd) == -EAGAIN && frame_reader_next(&f->in, &frame, NULL) == 0;
}

static uint32_t expect_request(struct fixture *f, int type) {
        struct schema_msg m = take(f, NULL);
        uint32_t id = m.id;
        assert_int_equal(m.type, type);
        schema_msg_free(&m);
        return id;
}

static void send_buf(struct fixture *f, struct buf *b) {
        assert_int_equal(frame_queue_push(&f->out, b, NULL, 0), 0);
        (void)frame_queue_flush(&f->out, f->fd);
}

/* Takes the client's connection and its greeting, and answers that. */
static void welcome(struct fixture *f) {
        const char *features[] = { "fds", "resume" };
        struct wire_hello_reply reply;
        struct buf b = {};

        f->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        assert_true(f->fd >= 0);
        wire_init_hello_reply(&reply);
        reply.version = WIRE_VERSION;
        reply.daemon = "9.9";
        reply.features = features;
        reply.n_features = f->deaf ? 1 : 2;
        assert_int_equal(wire_encode_hello_reply(&b, expect_request(f, WIRE_hello), &reply, NULL), 0);
        send_buf(f, &b);
}

static void send_accepted(struct fixture *f, uint32_t id, const char *identity) {
        uint32_t runs[3] = { 1, 1, 1 };
        struct wire_accepted a;
        struct buf b = {};

        wire_init_accepted(&a);
        a.request = 3;
        a.seed = 77;
        a.model = "m";
        a.identity = identity;
        a.roles = runs;
        a.n_roles = sizeof(runs);
        assert_int_equal(wire_encode_accepted(&b, id, &a, NULL), 0);
        send_buf(f, &b);
}

static void send_token(struct fixture *f, uint32_t id, const char *text, uint32_t token) {
        struct wire_tokens t;
        struct buf b = {};

        wire_init_tokens(&t);
        t.text = text;
        t.ids = &token;
        t.n_ids = 4;
        assert_int_equal(wire_encode_tokens(&b, id, &t, NULL), 0);
        send_buf(f, &b);
}

static void send_end(struct fixture *f, uint32_t id, bool resumed, uint32_t n) {
        struct wire_generate_reply g;
        struct wire_resume_reply r;
        struct buf b = {};

        wire_init_generate_reply(&g);
        wire_init_resume_reply(&r);
        g.finish = r.finish = "stop";
        g.n_generated = r.n_generated = n;
        r.changed = f->deaf;
        assert_int_equal(resumed ? wire_encode_resume_reply(&b, id, &r, NULL) : wire_encode_generate_reply(&b, id, &g, NULL), 0);
        send_buf(f, &b);
}

static void send_failure(struct fixture *f, uint32_t id, enum hearth_code code) {
        struct h_error e = {};
        struct buf b = {};

        h_error_set(&e, code, "no");
        assert_int_equal(wire_encode_failure(&b, id, &e), 0);
        send_buf(f, &b);
}

/* ---- the client ---- */

static int setup(void **state) {
        static struct fixture f;
        struct hearth_reconnect r;

        f = (struct fixture){ .fd = -1 };
        strcpy(f.dir, "/tmp/hth-re-XXXXXX");
        assert_non_null(mkdtemp(f.dir));
        snprintf(f.path, sizeof(f.path), "%s/s", f.dir);
        serve(&f);
        frame_reader_init(&f.in, WIRE_MAX_FRAME, 16);
        assert_int_equal(hearth_connect(f.path, "test", &f.client), 0);
        hearth_reconnect_init(&r, sizeof(r));
        r.give_up_usec = 20000000;
        r.changed = on_changed;
        r.ud = &f;
        assert_int_equal(hearth_client_set_reconnect(f.client, &r), 0);
        f.told = hearth_client_get_fd(f.client);
        *state = &f;
        return 0;
}

static int teardown(void **state) {
        struct fixture *f = *state;

        hearth_client_unref(f->client);
        leave(f);
        frame_reader_done(&f->in);
        rmdir(f->dir);
        return 0;
}

static void generate(struct fixture *f) {
        struct hearth_generate g;

        hearth_generate_init(&g, sizeof(g));
        g.model.name = "m";
        g.prompt = "p";
        g.credits = 5;
        assert_int_equal(hearth_generate(f->client, &g, &events, f, &f->call), 0);
}

static void dispatch(struct fixture *f) {
        assert_true(hearth_client_dispatch(f->client) >= 0);
        if (f->client)
                assert_int_equal(hearth_client_get_fd(f->client), f->told);
}

/* Until it has connected: as a loop would, by the timeout it gives. */
static void come_back(struct fixture *f) {
        for (int i = 0; hearth_client_get_fd(f->client) < 0; i++) {
                uint64_t usec;

                assert_true(i < 100);
                hearth_client_get_timeout(f->client, &usec);
                assert_true(usec < 2000000);
                poll(NULL, 0, (int)(usec / 1000) + 1);
                dispatch(f);
        }
        welcome(f);
        dispatch(f);
}

/* A stream of two tokens, then the end of the daemon. */
static uint32_t stream(struct fixture *f) {
        uint32_t id;

        generate(f);
        welcome(f);
        id = expect_request(f, WIRE_generate);
        send_accepted(f, id, "one");
        send_token(f, id, "a", 10);
        send_token(f, id, "b", 11);
        dispatch(f);
        expect_log(f, "accepted;tokens 'a';tokens 'b';");
        return id;
}

static void test_resume(void **state) {
        struct fixture *f = *state;
        struct schema_msg m, inner = {};
        const struct wire_resume *w;
        uint32_t id = stream(f);

        assert_int_equal(hearth_call_credit(f->call, 3), 0);
        assert_int_equal(expect_request(f, WIRE_credit), 2 + 1);
        leave(f);
        dispatch(f);
        expect_log(f, "paused 0;");
        assert_int_equal(f->told, -1);
        assert_int_equal(hearth_call_credit(f->call, 100), 0); /* noted */
        serve(f);
        come_back(f);
        m = take(f, NULL);
        assert_int_equal(m.type, WIRE_resume);
        assert_int_equal(m.id, id);
        w = m.body;
        assert_int_equal(w->seed, 77);
        assert_int_equal(w->request, 3);
        assert_int_equal(w->n_ids, 8);
        assert_memory_equal(w->ids, ((uint32_t[]){ 10, 11 }), 8);
        assert_int_equal(w->n_roles, 12);
        assert_string_equal(w->identity, "one");
        assert_string_equal(w->model, "m");
        assert_int_equal(w->credits, 5 + 3 + 100 - 2);
        assert_int_equal(schema_decode(&wire_schema, w->generate, w->n_generate, &inner, NULL, NULL), 0);
        assert_int_equal(inner.type, WIRE_generate);
        assert_string_equal(((struct wire_generate *)inner.body)->prompt, "p");
        schema_msg_free(&inner);
        schema_msg_free(&m);
        send_accepted(f, id, "two"); /* known already: not told */
        send_token(f, id, "c", 12);
        dispatch(f);
        expect_log(f, "tokens 'c';");
        /* Lost once more: what is new counts too. */
        hang_up(f);
        dispatch(f);
        expect_log(f, "paused 0;");
        come_back(f);
        m = take(f, NULL);
        w = m.body;
        assert_int_equal(w->n_ids, 12);
        assert_string_equal(w->identity, "two");
        schema_msg_free(&m);
        send_end(f, id, true, 3);
        dispatch(f);
        expect_log(f, "done stop 3;");
        assert_true(silent(f));
}

/* An orderly stop: each request is told, and that is no answer yet. */
static void test_shutting_down(void **state) {
        struct fixture *f = *state;
        uint32_t id = stream(f);

        send_failure(f, id, HEARTH_E_shutting_down);
        dispatch(f);
        expect_log(f, "paused 0;");
        hang_up(f);
        come_back(f);
        assert_int_equal(expect_request(f, WIRE_resume), id);
        /* Any other error is one. */
        send_failure(f, id, HEARTH_E_worker_lost);
        dispatch(f);
        expect_log(f, "error worker_lost;");
}

/* What was not accepted is asked again, with what is left of its limits; other requests too; credit and unload are not. */
static void test_others(void **state) {
        struct fixture *f = *state;
        uint32_t ids[5];

        generate(f);
        assert_int_equal(hearth_ping(f->client, &events, f, NULL), 0);
        assert_int_equal(hearth_unload(f->client, "m", false, &events, f, NULL), 0);
        welcome(f);
        dispatch(f);
        hang_up(f);
        dispatch(f);
        expect_log(f, "error disconnected;"); /* unload */
        assert_int_equal(hearth_status(f->client, &events, f, NULL), 0); /* waits */
        assert_int_equal(hearth_unload(f->client, "m", false, &events, f, NULL), -ENOTCONN);
        come_back(f);
        ids[0] = expect_request(f, WIRE_resume);
        ids[1] = expect_request(f, WIRE_ping);
        ids[2] = expect_request(f, WIRE_status);
        assert_true(ids[0] < ids[1] && ids[1] < ids[2]);
        assert_true(silent(f));
        send_end(f, ids[0], true, 0);
        dispatch(f);
        expect_log(f, "done stop 0;");
}

/* Made between the connection and the daemon's greeting: sent once. */
static void test_before_the_greeting(void **state) {
        struct fixture *f = *state;
        const char *none[] = { "resume" };
        struct wire_hello_reply reply;
        struct buf b = {};
        uint32_t id = stream(f);

        hang_up(f);
        dispatch(f);
        while (hearth_client_get_fd(f->client) < 0) {
                poll(NULL, 0, 5);
                dispatch(f);
        }
        assert_int_equal(hearth_ping(f->client, &events, f, NULL), 0);
        f->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        wire_init_hello_reply(&reply);
        reply.version = WIRE_VERSION;
        reply.daemon = "10";
        reply.features = none;
        reply.n_features = 1;
        assert_int_equal(wire_encode_hello_reply(&b, expect_request(f, WIRE_hello), &reply, NULL), 0);
        assert_true(silent(f));
        send_buf(f, &b);
        dispatch(f);
        assert_int_equal(expect_request(f, WIRE_resume), id);
        (void)expect_request(f, WIRE_ping);
        assert_true(silent(f));
        assert_string_equal(hearth_client_get_daemon_version(f->client), "10");
}

static void test_cancelled(void **state) {
        struct fixture *f = *state;

        stream(f);
        assert_int_equal(hearth_call_cancel(f->call), 0);
        hang_up(f);
        dispatch(f);
        expect_log(f, "done cancelled 2;"); /* hanging up has ended it there */
}

static void test_cancel_while_down(void **state) {
        struct fixture *f = *state;
        uint64_t usec;

        stream(f);
        hang_up(f);
        dispatch(f);
        expect_log(f, "paused 0;");
        assert_int_equal(hearth_call_cancel(f->call), 0);
        hearth_client_get_timeout(f->client, &usec);
        assert_true(usec == 0);
        dispatch(f);
        expect_log(f, "done cancelled 2;");
        come_back(f);
        assert_true(silent(f));
}

static void test_callbacks(void **state) {
        struct fixture *f = *state;
        uint32_t id = stream(f);

        f->on_paused = ASK;
        hang_up(f);
        dispatch(f);
        f->on_paused = NEST;
        come_back(f);
        assert_int_equal(expect_request(f, WIRE_resume), id);
        (void)expect_request(f, WIRE_ping);
        hang_up(f);
        dispatch(f);
        f->on_paused = CANCEL_IT;
        come_back(f);
        assert_int_equal(expect_request(f, WIRE_resume), id);
        (void)expect_request(f, WIRE_ping);
        f->log[0] = 0;
        hang_up(f);
        dispatch(f);
        dispatch(f);
        expect_log(f, "paused 0;done cancelled 2;");
}

static void test_unref_when_paused(void **state) {
        struct fixture *f = *state;

        stream(f);
        f->on_paused = UNREF;
        hang_up(f);
        (void)hearth_client_dispatch(f->client);
        assert_null(f->client);
        expect_log(f, "paused 0;");
}

static void test_unref_when_changed(void **state) {
        struct fixture *f = *state;

        stream(f);
        f->on_changed = UNREF;
        hang_up(f);
        (void)hearth_client_dispatch(f->client);
        assert_null(f->client);
        expect_log(f, "");
}

/* An older daemon came back. */
static void test_cannot_resume(void **state) {
        struct fixture *f = *state;

        stream(f);
        hang_up(f);
        dispatch(f);
        f->deaf = true;
        come_back(f);
        expect_log(f, "paused 0;error unsupported;");
}

/* A request under which every daemon dies is not asked for ever. */
static void test_tries(void **state) {
        struct fixture *f = *state;
        int n = 0;

        stream(f);
        while (!strstr(f->log, "error")) {
                assert_true(n++ < 20);
                hang_up(f);
                dispatch(f);
                if (!strstr(f->log, "error"))
                        come_back(f);
        }
        assert_int_equal(n, 6);
        assert_non_null(strstr(f->log, "error disconnected;"));
        assert_null(hearth_client_get_error(f->client)); /* the client itself goes on */
}

static void test_gives_up(void **state) {
        struct fixture *f = *state;
        struct hearth_reconnect r;

        hearth_reconnect_init(&r, sizeof(r));
        r.give_up_usec = 50000;
        assert_int_equal(hearth_client_set_reconnect(f->client, &r), 0);
        stream(f);
        leave(f);
        assert_true(hearth_client_dispatch(f->client) >= 0);
        expect_log(f, "paused 0;");
        while (hearth_client_wait(f->client, UINT64_MAX) >= 0)
                ;
        expect_log(f, "error disconnected;");
        assert_string_equal(hearth_client_get_error(f->client)->code, "disconnected");
        assert_int_equal(hearth_ping(f->client, &events, f, NULL), -ENOTCONN);
}

/* Wrong version after an upgrade: the end, with the reason; too many connections: again, later. */
static void test_refused_greeting(void **state) {
        struct fixture *f = *state;

        stream(f);
        hang_up(f);
        dispatch(f);
        for (int i = 0; i < 2; i++) {
                while (hearth_client_get_fd(f->client) < 0) {
                        poll(NULL, 0, 10);
                        dispatch(f);
                }
                f->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                send_failure(f, 0, i ? HEARTH_E_version : HEARTH_E_busy);
                f->log[0] = 0;
                if (!i)
                        dispatch(f);
                else
                        assert_true(hearth_client_dispatch(f->client) < 0);
                hang_up(f);
        }
        expect_log(f, "error version;");
}

/* A model given as open files is given again. */
static void test_files(void **state) {
        struct fixture *f = *state;
        struct hearth_generate g;
        struct stat a, b;
        struct frame frame;
        struct schema_msg m;
        int p[2], fd;

        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        hearth_generate_init(&g, sizeof(g));
        g.model = (struct hearth_source){ .name = "./x.gguf", .fds = p, .n_fds = 2 };
        g.prompt = "p";
        assert_int_equal(hearth_generate(f->client, &g, &events, f, NULL), 0);
        welcome(f);
        (void)expect_request(f, WIRE_generate);
        hang_up(f);
        dispatch(f);
        come_back(f);
        m = take(f, &frame);
        assert_int_equal(m.type, WIRE_resume);
        assert_int_equal(frame.n_fds, 2);
        fd = frame_take_fd(&frame, 0);
        assert_true(fstat(fd, &a) == 0 && fstat(p[0], &b) == 0 && a.st_ino == b.st_ino);
        schema_msg_free(&m);
        close(fd);
        close(p[0]);
        close(p[1]);
}

static void test_settings(void **state) {
        struct fixture *f = *state;
        struct hearth_reconnect r;
        hearth_client *c;
        int s[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
        assert_int_equal(hearth_connect_fd(s[0], "t", &c), 0);
        hearth_reconnect_init(&r, sizeof(r));
        assert_int_equal(hearth_client_set_reconnect(c, &r), -EINVAL); /* nobody knows where */
        r.path = f->path;
        assert_int_equal(hearth_client_set_reconnect(c, &r), 0);
        hearth_client_unref(c);
        close(s[1]);
        /* Off again: a loss is the end. */
        stream(f);
        assert_int_equal(hearth_client_set_reconnect(f->client, NULL), 0);
        hang_up(f);
        assert_true(hearth_client_dispatch(f->client) < 0);
        expect_log(f, "error disconnected;");
}

/* ---- every allocation fails once ---- */

/* True if the answer came whole. In any case each call gets one 'done', if it was taken. */
static bool survive(struct fixture *f, uint64_t nth) {
        struct hearth_generate g;
        struct hearth_reconnect r;
        uint32_t id;
        int n = 0;

        f->log[0] = 0;
        fault_arm(FAULT_ALLOC, 0);
        assert_int_equal(hearth_connect(f->path, "test", &f->client), 0);
        hearth_reconnect_init(&r, sizeof(r));
        r.give_up_usec = 300000;
        assert_int_equal(hearth_client_set_reconnect(f->client, &r), 0);
        hearth_generate_init(&g, sizeof(g));
        g.prompt = "p";
        assert_int_equal(hearth_generate(f->client, &g, &events, f, &f->call), 0);
        welcome(f);
        id = expect_request(f, WIRE_generate);
        send_accepted(f, id, "one");
        send_token(f, id, "a", 10);
        fault_arm(FAULT_ALLOC, nth);
        (void)hearth_client_dispatch(f->client);
        hang_up(f);
        while (!strstr(f->log, "done") && !strstr(f->log, "error") && n++ < 200) {
                int fd;

                if (hearth_client_wait(f->client, 2000) < 0)
                        break;
                fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0) { /* the daemon's side never lacks memory */
                        uint64_t seen = fault_count(FAULT_ALLOC);
                        struct wire_hello_reply reply;
                        const char *features[] = { "resume" };
                        struct schema_msg m;
                        struct buf b = {};

                        fault_arm(FAULT_ALLOC, 0);
                        hang_up(f); /* it may have given up the one before */
                        f->fd = fd;
                        if (frame_reader_fill(&f->in, fd) <= 0) { /* it had no memory to greet */
                                hang_up(f);
                                fault_arm(FAULT_ALLOC, nth > seen ? nth - seen : 0);
                                continue;
                        }
                        m = take(f, NULL);
                        wire_init_hello_reply(&reply);
                        reply.version = WIRE_VERSION;
                        reply.daemon = "9";
                        reply.features = features;
                        reply.n_features = 1;
                        assert_int_equal(wire_encode_hello_reply(&b, m.id, &reply, NULL), 0);
                        schema_msg_free(&m);
                        send_buf(f, &b);
                        send_end(f, id, true, 1);
                        fault_arm(FAULT_ALLOC, nth > seen ? nth - seen : 0);
                }
        }
        fault_arm(FAULT_ALLOC, 0);
        if (!strstr(f->log, "done stop") && !strstr(f->log, "error"))
                fail_msg("allocation %u: no end, but \"%s\"", (unsigned)nth, f->log);
        f->client = hearth_client_unref(f->client);
        hang_up(f);
        return strstr(f->log, "done stop 1") != NULL && !strstr(f->log, "error");
}

static void test_allocations(void **state) {
        struct fixture *f = *state;
        uint64_t nth = 1, bad = 0;

        f->client = hearth_client_unref(f->client);
        f->listener = fd_close(f->listener);
        unlink(f->path);
        serve(f);
        assert_true(survive(f, 0));
        for (; nth < 60; nth++)
                bad += !survive(f, nth);
        print_message("%u of 60 ended with an error\n", (unsigned)bad);
        assert_true(bad > 3 && bad < 50);
}

#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_resume), T(test_shutting_down), T(test_others), T(test_before_the_greeting), T(test_cancelled),
                T(test_cancel_while_down), T(test_callbacks), T(test_unref_when_paused), T(test_unref_when_changed),
                T(test_cannot_resume), T(test_tries), T(test_gives_up), T(test_refused_greeting), T(test_files), T(test_settings),
                T(test_allocations),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
