/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/methods.h"

#include <string.h>

#include "daemon/broker/metrics.h"
#include "daemon/broker/report.h"
#include "daemon/broker/request.h"
#include "daemon/broker/version.h"

typedef int (*method_fn)(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err);

static int do_hello(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        static const char *features[] = { "fds", "payload", "resume" };
        const struct wire_hello *b = m->body;
        _cleanup_(buf_free) struct buf out = {};
        struct wire_hello_reply reply;
        int r;

        if (se->hello)
                return h_error_set(err, HEARTH_E_bad_request, "hello was said already on this connection");
        r = wire_check_version(b->version, "the client", err);
        if (r < 0)
                return r;
        if (b->client)
                memcpy(se->client, b->client, MIN(b->n_client, sizeof(se->client) - 1));
        wire_init_hello_reply(&reply);
        reply.version = WIRE_VERSION;
        reply.daemon = DAEMON_VERSION;
        reply.session = se->id;
        reply.max_frame = wire_schema.max_frame;
        reply.features = features;
        reply.n_features = ELEMENTSOF(features);
        r = wire_encode_hello_reply(&out, m->id, &reply, err);
        if (r < 0)
                return r;
        se->hello = true;
        session_send(se, &out);
        return 0;
}

static int do_ping(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        _cleanup_(buf_free) struct buf out = {};
        struct wire_ping_reply reply;
        int r;

        wire_init_ping_reply(&reply);
        r = wire_encode_ping_reply(&out, m->id, &reply, err);
        if (r == 0)
                session_send(se, &out);
        return r;
}

/* Answered by the request's own end; one that has ended already is no error: messages cross. */
static int do_cancel(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        struct request *rq = request_of_client(se, m->id);

        if (rq)
                request_cancel(rq, "cancelled");
        return 0;
}

static int do_credit(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        const struct wire_credit *b = m->body;
        _cleanup_(buf_free) struct buf out = {};
        struct wire_credit_reply reply;
        struct request *rq = request_of_client(se, b->request);
        int r = 0;

        if (rq)
                r = request_add_credit(rq, b->n, err);
        if (r < 0)
                return r;
        wire_init_credit_reply(&reply);
        r = wire_encode_credit_reply(&out, m->id, &reply, err);
        if (r == 0)
                session_send(se, &out);
        return r;
}

static const method_fn methods[WIRE__MAX] = {
        [WIRE_hello] = do_hello,
        [WIRE_ping] = do_ping,
        [WIRE_cancel] = do_cancel,
        [WIRE_credit] = do_credit,
        [WIRE_resume] = request_resume,
        [WIRE_status] = report_status,
        [WIRE_ps] = report_ps,
        [WIRE_models] = report_models,
        [WIRE_metrics] = report_metrics,
        [WIRE_generate] = request_new,
        [WIRE_tokenize] = request_new,
        [WIRE_detokenize] = request_new,
        [WIRE_embed] = request_new,
        [WIRE_load] = request_new,
        [WIRE_unload] = request_new,
};

int methods_dispatch(struct session *se, struct schema_msg *m, struct frame *f, struct h_error *err) {
        method_fn fn = methods[m->type];

        if (!se->hello && m->type != WIRE_hello)
                return h_error_set(err, HEARTH_E_protocol, "the first message of a connection must be hello with a version");
        /* An answer with id 0 speaks of the connection: there is none that could be given to this request alone. */
        if (m->kind == KIND_REQUEST && m->id == 0)
                return h_error_set(err, HEARTH_E_protocol, "a request's id must not be 0");
        if (m->kind == KIND_REQUEST && request_of_client(se, m->id))
                return h_error_set(err, HEARTH_E_bad_request, "id %u is in use by a request of this connection that has not ended", m->id);
        if (!fn)
                return h_error_set(err, HEARTH_E_bad_request, "a %s message is for clients, not for the daemon",
                                   wire_schema.descs[m->type].name);
        return fn(se, m, f, err);
}
