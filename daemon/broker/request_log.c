/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/request_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/broker/model.h"

/* Errors whose messages are made of names and numbers of ours; others may quote the request, a template or a schema. */
static bool tellable(enum hearth_code code) {
        switch (code) {
        case HEARTH_E_internal: case HEARTH_E_no_memory: case HEARTH_E_io: case HEARTH_E_version: case HEARTH_E_unknown_model:
        case HEARTH_E_model_not_found: case HEARTH_E_model_truncated: case HEARTH_E_model_invalid: case HEARTH_E_model_changed:
        case HEARTH_E_unknown_arch: case HEARTH_E_unknown_type: case HEARTH_E_unknown_tokenizer: case HEARTH_E_template_missing:
        case HEARTH_E_model_no_memory: case HEARTH_E_prompt_too_long: case HEARTH_E_busy: case HEARTH_E_quota: case HEARTH_E_permission:
        case HEARTH_E_worker_lost: case HEARTH_E_quarantined: case HEARTH_E_no_device: case HEARTH_E_device_lost:
        case HEARTH_E_shutting_down: case HEARTH_E_cancelled: case HEARTH_E_deadline: case HEARTH_E_superseded:
                return true;
        default:
                return false;
        }
}

/* What somebody who looks after the machine should see. */
static enum log_level level_of(const struct request *rq) {
        switch (rq->fault ? rq->fault->code : HEARTH_OK) {
        case HEARTH_E_internal: case HEARTH_E_no_memory: case HEARTH_E_io: case HEARTH_E_worker_lost: case HEARTH_E_quarantined:
        case HEARTH_E_no_device: case HEARTH_E_device_lost:
                return LOG_LEVEL_WARNING;
        default:
                return LOG_LEVEL_INFO;
        }
}

#define FIELD_MAX 320

void request_log_end(const struct request *rq) {
        const struct server *s = rq->server;
        uint64_t now = server_now(s), n = request_n_generated(rq);
        uint64_t total = now - rq->arrived_ms, queued = (rq->started_ms ? rq->started_ms : now) - rq->arrived_ms;
        uint64_t first = rq->first_ms ? rq->first_ms - rq->arrived_ms : 0;
        const char *code = rq->fault ? hearth_code_name(rq->fault->code) : rq->outcome[0] ? rq->outcome : "done";
        const char *method = wire_schema.descs[rq->type].name, *model = rq->model ? rq->model->label : "";
        char text[12][FIELD_MAX], tail[500] = "";
        const char *fields[ELEMENTSOF(text)];
        size_t k = 0;

#define PUT(...) (fields[k] = text[k], snprintf(text[k++], FIELD_MAX, __VA_ARGS__))
        PUT("HEARTH_REQUEST=%u", rq->id);
        PUT("HEARTH_UID=%u", rq->user->uid);
        PUT("HEARTH_CLIENT=%llu", (unsigned long long)rq->session_id);
        PUT("HEARTH_METHOD=%s", method);
        PUT("HEARTH_CODE=%s", code);
        if (*model)
                PUT("HEARTH_MODEL=%s", model);
        PUT("HEARTH_TOTAL_MS=%llu", (unsigned long long)total);
        if (request_needs_slot(rq)) {
                PUT("HEARTH_PROMPT_TOKENS=%u", rq->n_prompt);
                PUT("HEARTH_CACHED_TOKENS=%u", rq->n_cached);
                PUT("HEARTH_GENERATED_TOKENS=%llu", (unsigned long long)n);
                PUT("HEARTH_QUEUE_MS=%llu", (unsigned long long)queued);
                PUT("HEARTH_FIRST_TOKEN_MS=%llu", (unsigned long long)first);
                snprintf(tail, sizeof(tail), ": %u prompt tokens (%u cached), %llu generated; queued %llu ms, first token after %llu, %llu in "
                         "all; beside %u others", rq->n_prompt, rq->n_cached, (unsigned long long)n, (unsigned long long)queued,
                         (unsigned long long)first, (unsigned long long)total, rq->company);
        } else
                snprintf(tail, sizeof(tail), ": %llu ms", (unsigned long long)total);
#undef PUT
        log_event(&s->log, level_of(rq), fields, k, "request %u (%s, uid %u, client %llu%s%s): %s%s%s%s", rq->id, method, rq->user->uid,
                  (unsigned long long)rq->session_id, *model ? ", " : "", model, code, tail, rq->fault && tellable(rq->fault->code) ? ": " : "",
                  rq->fault && tellable(rq->fault->code) ? rq->fault->message : "");
}

void request_log(const struct request *rq, enum log_level level, const char *fmt, ...) {
        char message[900], text[3][64];
        const char *fields[] = { text[0], text[1], text[2] };
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(message, sizeof(message), fmt, ap);
        va_end(ap);
        snprintf(text[0], sizeof(text[0]), "HEARTH_REQUEST=%u", rq->id);
        snprintf(text[1], sizeof(text[1]), "HEARTH_UID=%u", rq->user->uid);
        snprintf(text[2], sizeof(text[2]), "HEARTH_CLIENT=%llu", (unsigned long long)rq->session_id);
        log_event(&rq->server->log, level, fields, ELEMENTSOF(fields), "request %u (uid %u, client %llu): %s", rq->id, rq->user->uid,
                  (unsigned long long)rq->session_id, message);
}
