/* SPDX-License-Identifier: Apache-2.0 */
/* libhearth against a scripted daemon on the other end of a socketpair, in the same thread. */
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

#include <cmocka.h>

#include "client/hearth.h"
#include "ipc/frame.h"
#include "ipc/wire.h"

/* The daemon's side, and what the client's callbacks saw. */
struct fixture {
        int fd;
        struct frame_reader in;
        struct frame_queue out;
        hearth_client *client;
        char log[4096];
        bool in_dispatch;
        /* what to do within the next tokens callback */
        enum { NOTHING, UNREF, CANCEL, NESTED_WAIT } action;
};

static void note(struct fixture *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct fixture *f, const char *fmt, ...) {
        size_t at = strlen(f->log);
        va_list ap;
        assert_true(f->in_dispatch); /* callbacks only run there */
        va_start(ap, fmt);
        vsnprintf(f->log + at, sizeof(f->log) - at, fmt, ap);
        va_end(ap);
}

static int dispatch(struct fixture *f) {
        bool outer = f->in_dispatch;
        int r;
        f->in_dispatch = true;
        r = hearth_client_dispatch(f->client);
        f->in_dispatch = outer;
        return r;
}

static void expect_log(struct fixture *f, const char *want) {
        assert_string_equal(f->log, want);
        f->log[0] = 0;
}

static void on_progress(void *ud, hearth_call *c, const struct hearth_progress *p) {
        note(ud, "progress %s %u/%u;", p->stage, (unsigned)p->done, (unsigned)p->total);
}
static void on_queued(void *ud, hearth_call *c, uint32_t position) {
        note(ud, "queued %u;", position);
}
static void on_accepted(void *ud, hearth_call *c, const struct hearth_accepted *a) {
        note(ud, "accepted %s seed %u prompt %u;", a->model, (unsigned)a->seed, a->n_prompt);
}
static void on_tokens(void *ud, hearth_call *c, const struct hearth_tokens *t) {
        struct fixture *f = ud;
        note(f, "tokens '%s' %zu ids;", t->text, t->n_ids);
        switch (f->action) {
        case NOTHING: break;
        case UNREF: f->client = hearth_client_unref(f->client); break;
        case CANCEL: assert_int_equal(hearth_call_cancel(c), 0); break;
        case NESTED_WAIT: f->action = NOTHING; dispatch(f); note(f, "back;"); break;
        }
}
static void on_done(void *ud, hearth_call *c, const struct hearth_result *r) {
        if (r->error)
                note(ud, "error %s: %s;", r->error->code, r->error->message);
        else if (r->generated)
                note(ud, "done %s;", r->generated->finish);
        else if (r->models)
                note(ud, "models %zu %s %s;", r->n_models, r->models[0]->name, r->models[1]->where);
        else if (r->vectors)
                note(ud, "vectors %ux%u %g;", r->vectors->n, r->vectors->dim, (double)r->vectors->values[3]);
        else
                note(ud, "done;");
}
static const struct hearth_events events = { .size = sizeof(events), .progress = on_progress, .queued = on_queued,
                                             .accepted = on_accepted, .tokens = on_tokens, .done = on_done };

/* Reads the client's next message. */
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

static uint32_t expect_request(struct fixture *f, int type) {
        struct schema_msg m = take(f, NULL);
        uint32_t id = m.id;
        assert_int_equal(m.type, type);
        schema_msg_free(&m);
        return id;
}

static void send_buf(struct fixture *f, struct buf *b) {
        assert_int_equal(frame_queue_push(&f->out, b, NULL, 0), 0);
        assert_int_equal(frame_queue_flush(&f->out, f->fd), 0);
}

static void greet(struct fixture *f, uint32_t version) {
        struct wire_hello_reply reply;
        struct buf b = {};
        uint32_t id = expect_request(f, WIRE_hello);

        wire_init_hello_reply(&reply);
        reply.version = version;
        reply.daemon = "9.9";
        assert_int_equal(wire_encode_hello_reply(&b, id, &reply, NULL), 0);
        send_buf(f, &b);
}

static int setup(void **state) {
        static struct fixture f;
        int s[2];

        f = (struct fixture){};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
        f.fd = s[1];
        assert_int_equal(fcntl(s[1], F_SETFL, O_NONBLOCK), 0);
        frame_reader_init(&f.in, WIRE_MAX_FRAME, 16);
        assert_int_equal(hearth_connect_fd(s[0], "test", &f.client), 0);
        *state = &f;
        return 0;
}

static int teardown(void **state) {
        struct fixture *f = *state;
        hearth_client_unref(f->client);
        frame_reader_done(&f->in);
        frame_queue_done(&f->out);
        fd_close(f->fd);
        return 0;
}

static void send_tokens(struct fixture *f, uint32_t id, const char *text, uint32_t token) {
        struct wire_tokens t;
        struct buf b = {};
        wire_init_tokens(&t);
        t.text = text;
        t.ids = &token;
        t.n_ids = 4;
        assert_int_equal(wire_encode_tokens(&b, id, &t, NULL), 0);
        send_buf(f, &b);
}

static void send_finish(struct fixture *f, uint32_t id, const char *finish) {
        struct wire_generate_reply g;
        struct buf b = {};
        wire_init_generate_reply(&g);
        g.finish = finish;
        assert_int_equal(wire_encode_generate_reply(&b, id, &g, NULL), 0);
        send_buf(f, &b);
}

static hearth_call *generate(struct fixture *f) {
        struct hearth_generate g;
        hearth_call *call;
        hearth_generate_init(&g, sizeof(g));
        g.model.name = "m";
        g.prompt = "p";
        assert_int_equal(hearth_generate(f->client, &g, &events, f, &call), 0);
        return call;
}

static void test_greeting(void **state) {
        struct fixture *f = *state;
        uint64_t usec;

        assert_null(hearth_client_get_daemon_version(f->client));
        hearth_client_get_timeout(f->client, &usec);
        assert_true(usec > 0 && usec <= 10000000);
        assert_int_equal(dispatch(f), 0);
        greet(f, WIRE_VERSION);
        assert_true(dispatch(f) > 0);
        assert_string_equal(hearth_client_get_daemon_version(f->client), "9.9");
        hearth_client_get_timeout(f->client, &usec);
        assert_true(usec == UINT64_MAX);
        assert_int_equal(hearth_client_get_events(f->client), POLLIN);
        assert_int_equal(hearth_client_wait(f->client, 1000), 0);
        assert_null(hearth_client_get_error(f->client));
}

static void test_wrong_version(void **state) {
        struct fixture *f = *state;

        generate(f);
        greet(f, WIRE_VERSION + 3);
        assert_true(dispatch(f) < 0);
        assert_string_equal(hearth_client_get_error(f->client)->code, "version");
        expect_log(f, "error version: the daemon speaks protocol version 4, this side speaks 1; install matching versions;");
        assert_int_equal(dispatch(f), -ENOTCONN);
        assert_int_equal(hearth_ping(f->client, &events, f, NULL), -ENOTCONN);
}

static void test_stream(void **state) {
        struct fixture *f = *state;
        struct wire_accepted a;
        struct wire_progress p;
        struct wire_queued q;
        struct schema_msg m;
        struct buf b = {};
        uint32_t id;

        generate(f);
        greet(f, WIRE_VERSION);
        m = take(f, NULL);
        assert_int_equal(m.type, WIRE_generate);
        assert_string_equal(((struct wire_generate *)m.body)->kind, "complete");
        assert_false(((struct wire_generate *)m.body)->has_temperature);
        id = m.id;
        schema_msg_free(&m);

        wire_init_progress(&p);
        p.stage = "load";
        p.done = 5;
        p.total = 9;
        assert_int_equal(wire_encode_progress(&b, id, &p, NULL), 0);
        wire_init_queued(&q);
        q.position = 2;
        assert_int_equal(wire_encode_queued(&b, id, &q, NULL), 0);
        wire_init_accepted(&a);
        a.model = "m";
        a.seed = 77;
        a.n_prompt = 3;
        assert_int_equal(wire_encode_accepted(&b, id, &a, NULL), 0);
        send_buf(f, &b);
        send_tokens(f, id, "Hel", 1);
        send_tokens(f, id, "lo", 2);
        send_finish(f, id, "stop");
        assert_string_equal(f->log, "");
        assert_true(dispatch(f) > 0);
        expect_log(f, "progress load 5/9;queued 2;accepted m seed 77 prompt 3;tokens 'Hel' 1 ids;tokens 'lo' 1 ids;done stop;");
}

/* Two calls at once: answers interleave and find their way. */
static void test_interleaved(void **state) {
        struct fixture *f = *state;
        uint32_t a, b;

        generate(f);
        generate(f);
        greet(f, WIRE_VERSION);
        a = expect_request(f, WIRE_generate);
        b = expect_request(f, WIRE_generate);
        assert_int_not_equal(a, b);
        send_tokens(f, b, "2", 1);
        send_tokens(f, a, "1", 1);
        send_finish(f, b, "length");
        send_tokens(f, a, "1", 1);
        send_finish(f, a, "stop");
        assert_true(dispatch(f) > 0);
        expect_log(f, "tokens '2' 1 ids;tokens '1' 1 ids;done length;tokens '1' 1 ids;done stop;");
}

static void test_cancel(void **state) {
        struct fixture *f = *state;
        hearth_call *call = generate(f);
        uint32_t id;

        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        f->action = CANCEL;
        send_tokens(f, id, "x", 1);
        send_tokens(f, id, "y", 1);
        assert_true(dispatch(f) > 0);
        assert_int_equal(expect_request(f, WIRE_cancel), id); /* once, though asked for twice */
        assert_true(frame_reader_fill(&f->in, f->fd) == -EAGAIN);
        assert_int_equal(hearth_call_cancel(call), 0);
        send_finish(f, id, "cancelled");
        assert_true(dispatch(f) > 0);
        expect_log(f, "tokens 'x' 1 ids;tokens 'y' 1 ids;done cancelled;");
}

/* Every call is told, oldest first, once; then the client says so itself. */
static void test_disconnect(void **state) {
        struct fixture *f = *state;
        uint32_t id;

        generate(f);
        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        send_tokens(f, id, "x", 1);
        f->fd = fd_close(f->fd);
        assert_true(dispatch(f) < 0);
        expect_log(f, "tokens 'x' 1 ids;error disconnected: the daemon closed the connection;"
                      "error disconnected: the daemon closed the connection;");
        assert_string_equal(hearth_client_get_error(f->client)->code, "disconnected");
        assert_int_equal(hearth_client_get_error(f->client)->exit_status, 69);
        assert_int_equal(hearth_client_get_fd(f->client), -1);
        assert_int_equal(hearth_client_wait(f->client, 0), -ENOTCONN);
}

static void test_half_frame(void **state) {
        struct fixture *f = *state;

        generate(f);
        greet(f, WIRE_VERSION);
        assert_int_equal(send(f->fd, "\x40\0\0\0\x94", 5, 0), 5);
        f->fd = fd_close(f->fd);
        assert_true(dispatch(f) < 0);
        expect_log(f, "error disconnected: the daemon went away in the middle of a message;");
}

static void test_garbage(void **state) {
        struct fixture *f = *state;

        generate(f);
        greet(f, WIRE_VERSION);
        assert_int_equal(send(f->fd, "\x05\0\0\0\xdd\xff\xff\xff\xff", 9, 0), 9);
        assert_true(dispatch(f) < 0);
        assert_string_equal(hearth_client_get_error(f->client)->code, "protocol");
}

static void test_answer_to_nobody(void **state) {
        struct fixture *f = *state;

        greet(f, WIRE_VERSION);
        send_finish(f, 99, "stop");
        assert_true(dispatch(f) < 0);
        assert_string_equal(hearth_client_get_error(f->client)->code, "protocol");
}

static void test_unref_in_callback(void **state) {
        struct fixture *f = *state;
        uint32_t id;
        char c;

        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        f->action = UNREF;
        send_tokens(f, id, "x", 1);
        send_tokens(f, id, "never seen", 1);
        send_finish(f, id, "stop");
        dispatch(f);
        assert_null(f->client);
        expect_log(f, "tokens 'x' 1 ids;");
        assert_int_equal(recv(f->fd, &c, 1, 0), 0); /* closed */
}

static void test_nested_wait(void **state) {
        struct fixture *f = *state;
        uint32_t id;

        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        f->action = NESTED_WAIT;
        send_tokens(f, id, "x", 1);
        send_tokens(f, id, "y", 1);
        send_finish(f, id, "stop");
        assert_true(dispatch(f) > 0);
        expect_log(f, "tokens 'x' 1 ids;tokens 'y' 1 ids;done stop;back;");
}

static void test_refusal(void **state) {
        struct fixture *f = *state;
        struct hearth_generate g;

        hearth_generate_init(&g, sizeof(g));
        g.prompt = "a\xff";
        assert_int_equal(hearth_generate(f->client, &g, &events, f, NULL), -EINVAL);
        assert_string_equal(hearth_client_get_refusal(f->client)->code, "bad_utf8");
        g.prompt = "a";
        g.top_p = 7;
        assert_int_equal(hearth_generate(f->client, &g, &events, f, NULL), -EINVAL);
        assert_string_equal(hearth_client_get_refusal(f->client)->message, "generate.top_p is 7, but must be 0 to 1");
        g.top_p = 1;
        g.top_k = (int64_t)1 << 33;
        assert_int_equal(hearth_generate(f->client, &g, &events, f, NULL), -EINVAL);
        assert_int_equal(hearth_ping(f->client, NULL, NULL, NULL), 0);
        assert_null(hearth_client_get_refusal(f->client));
}

static void test_remote_error(void **state) {
        struct fixture *f = *state;
        struct h_error e = {};
        struct buf b = {};
        uint32_t id;

        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        h_error_set(&e, HEARTH_E_unknown_model, "no model named \"m\"");
        assert_int_equal(wire_encode_failure(&b, id, &e), 0);
        send_buf(f, &b);
        assert_true(dispatch(f) > 0);
        expect_log(f, "error unknown_model: no model named \"m\";");
        assert_null(hearth_client_get_error(f->client)); /* the connection goes on */
}

static void test_model_as_fd(void **state) {
        struct fixture *f = *state;
        struct hearth_load l;
        struct frame frame;
        struct schema_msg m;
        struct stat a, b;
        int p[2], fd;

        greet(f, WIRE_VERSION);
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        hearth_load_init(&l, sizeof(l));
        l.model = (struct hearth_source){ .name = "./x.gguf", .fds = p, .n_fds = 2 };
        assert_int_equal(hearth_load(f->client, &l, &events, f, NULL), 0);
        m = take(f, &frame);
        assert_int_equal(((struct wire_load *)m.body)->n_fds, 2);
        assert_int_equal(frame.n_fds, 2);
        fd = frame_take_fd(&frame, 1);
        assert_true(fstat(fd, &a) == 0 && fstat(p[1], &b) == 0 && a.st_ino == b.st_ino);
        schema_msg_free(&m);
        close(fd);
        close(p[0]);
        close(p[1]);
}

static void test_lists(void **state) {
        struct fixture *f = *state;
        struct wire_model_info infos[2];
        struct wire_models_reply reply;
        struct wire_embed_reply vectors;
        float values[4] = { 1, 2, 3, 4 };
        const char *text = "t";
        struct buf b = {};
        uint32_t id;

        hearth_models(f->client, &events, f, NULL);
        hearth_embed(f->client, NULL, &text, 1, 0, &events, f, NULL);
        hearth_embed(f->client, NULL, &text, 1, 0, &events, f, NULL);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_models);
        for (int i = 0; i < 2; i++) {
                wire_init_model_info(&infos[i]);
                infos[i].name = i ? "b" : "a";
                infos[i].where = i ? "disk" : "memory";
        }
        wire_init_models_reply(&reply);
        reply.models = infos;
        reply.n_models = 2;
        assert_int_equal(wire_encode_models_reply(&b, id, &reply, NULL), 0);
        send_buf(f, &b);
        for (uint32_t dim = 2; dim < 4; dim++) { /* the second one lies about its size */
                id = expect_request(f, WIRE_embed);
                wire_init_embed_reply(&vectors);
                vectors.n = 2;
                vectors.dim = dim;
                vectors.vectors = values;
                vectors.n_vectors = sizeof(values);
                assert_int_equal(wire_encode_embed_reply(&b, id, &vectors, NULL), 0);
                send_buf(f, &b);
        }
        assert_true(dispatch(f) > 0);
        expect_log(f, "models 2 a disk;vectors 2x2 4;error protocol: the daemon's reply to 'embed' has sizes that don't fit together;");
}

/* An event this library does not know is passed over. */
static void test_new_event(void **state) {
        struct fixture *f = *state;
        uint32_t id;
        char raw[] = "\x0c\0\0\0\x94\x02\x00\xa7" "novelty" "\x80";

        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        assert_true(id < 128);
        raw[6] = (char)id;
        assert_int_equal(send(f->fd, raw, sizeof(raw) - 1, 0), sizeof(raw) - 1);
        send_finish(f, id, "stop");
        assert_true(dispatch(f) > 0);
        expect_log(f, "done stop;");
}

/* More than dispatch takes at once: the timeout says that there is work though the socket is silent. */
static void test_burst(void **state) {
        struct fixture *f = *state;
        struct buf b = {};
        uint64_t usec;
        unsigned n = 0;
        uint32_t id;

        generate(f);
        greet(f, WIRE_VERSION);
        id = expect_request(f, WIRE_generate);
        for (int i = 0; i < 2000; i++) {
                struct wire_queued q;
                wire_init_queued(&q);
                assert_int_equal(wire_encode_queued(&b, id, &q, NULL), 0);
        }
        send_buf(f, &b);
        send_finish(f, id, "stop");
        do {
                assert_true(++n < 100);
                assert_true(dispatch(f) > 0);
                hearth_client_get_timeout(f->client, &usec);
                if (!strstr(f->log, "done"))
                        assert_true(usec == 0 || usec == UINT64_MAX);
                if (!strstr(f->log, "done"))
                        f->log[0] = 0;
        } while (!strstr(f->log, "done stop"));
        assert_true(n > 2);
}

static void test_socket_path(void **state) {
        char *path;

        assert_int_equal(hearth_socket_path("/x/y.sock", "/run/user/1", &path), 0);
        assert_string_equal(path, "/x/y.sock");
        free(path);
        if (access("/run/hearth/hearth.sock", F_OK) < 0) {
                assert_int_equal(hearth_socket_path("", "/nonexistent", &path), 0);
                assert_string_equal(path, "/nonexistent/hearth/hearth.sock");
                free(path);
        }
}

#define ON_PAIR(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                ON_PAIR(test_greeting), ON_PAIR(test_wrong_version), ON_PAIR(test_stream), ON_PAIR(test_interleaved),
                ON_PAIR(test_cancel), ON_PAIR(test_disconnect), ON_PAIR(test_half_frame), ON_PAIR(test_garbage),
                ON_PAIR(test_answer_to_nobody), ON_PAIR(test_unref_in_callback), ON_PAIR(test_nested_wait),
                ON_PAIR(test_refusal), ON_PAIR(test_remote_error), ON_PAIR(test_model_as_fd), ON_PAIR(test_lists),
                ON_PAIR(test_new_event), ON_PAIR(test_burst), cmocka_unit_test(test_socket_path),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
