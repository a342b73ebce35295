/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of a whole exchange fails once: nothing leaks, and a call that was taken gets its 'done' once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "client/hearth.h"
#include "ipc/wire.h"

struct seen { unsigned done, tokens; char code[32]; };

static void on_tokens(void *ud, hearth_call *call, const struct hearth_tokens *t) {
        ((struct seen *)ud)->tokens++;
}

static void on_done(void *ud, hearth_call *call, const struct hearth_result *r) {
        struct seen *s = ud;
        s->done++;
        snprintf(s->code, sizeof(s->code), "%s", r->error ? r->error->code : r->generated ? "ok" : "nothing");
}

/* What a daemon would answer to hello (id 1) and generate (id 2). */
static void answers(struct buf *b) {
        struct wire_hello_reply hello;
        struct wire_tokens tokens;
        struct wire_top_logprobs top;
        struct wire_generate_reply reply;
        struct wire_tool_call call;
        uint32_t id = 5;
        float logprob = -1;

        wire_init_hello_reply(&hello);
        hello.version = WIRE_VERSION;
        hello.daemon = "x";
        assert_int_equal(wire_encode_hello_reply(b, 1, &hello, NULL), 0);
        wire_init_top_logprobs(&top);
        top.ids = &id;
        top.logprobs = &logprob;
        top.n_ids = top.n_logprobs = 4;
        wire_init_tokens(&tokens);
        tokens.text = "hello";
        tokens.ids = &id;
        tokens.n_ids = 4;
        tokens.top = &top;
        tokens.n_top = 1;
        assert_int_equal(wire_encode_tokens(b, 2, &tokens, NULL), 0);
        wire_init_tool_call(&call);
        call.name = "f";
        call.arguments = "{}";
        wire_init_generate_reply(&reply);
        reply.finish = "stop";
        reply.tool_calls = &call;
        reply.n_tool_calls = 1;
        assert_int_equal(wire_encode_generate_reply(b, 2, &reply, NULL), 0);
}

/* True if all went well. */
static bool exchange(const struct buf *daemon, uint64_t nth) {
        static const struct hearth_events events = { .size = sizeof(events), .tokens = on_tokens, .done = on_done };
        struct hearth_generate g;
        struct seen seen = {};
        hearth_client *c = NULL;
        int s[2], r;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
        assert_int_equal(send(s[1], daemon->data, daemon->len, 0), daemon->len);
        hearth_generate_init(&g, sizeof(g));
        g.prompt = "p";

        fault_arm(FAULT_ALLOC, nth);
        r = hearth_connect_fd(s[0], "t", &c);
        if (r < 0) {
                assert_int_equal(r, -ENOMEM);
                assert_null(c);
                close(s[0]);
        } else {
                r = hearth_generate(c, &g, &events, &seen, NULL);
                if (r < 0)
                        assert_int_equal(r, -ENOMEM);
                else {
                        for (int i = 0; i < 100 && !seen.done && (r = hearth_client_dispatch(c)) >= 0; i++)
                                ;
                        assert_int_equal(seen.done, 1);
                        assert_true(strcmp(seen.code, "ok") == 0 || strcmp(seen.code, "no_memory") == 0);
                        r = strcmp(seen.code, "ok") == 0 && seen.tokens == 1 ? 0 : -ENOMEM;
                }
                hearth_client_unref(c);
        }
        fault_arm(FAULT_ALLOC, 0);
        close(s[1]);
        return r == 0;
}

static void test_allocations(void **state) {
        struct buf daemon = {};
        uint64_t nth = 1;

        answers(&daemon);
        assert_true(exchange(&daemon, 0));
        while (!exchange(&daemon, nth))
                assert_true(++nth < 200);
        assert_true(nth > 8); /* that many allocations were really made to fail */
        buf_free(&daemon);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_allocations) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
