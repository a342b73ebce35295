/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that a client keeps for good: its memory is charged to that user,
 * from the moment its size is known and with what is added to it, until it
 * leaves. What the configuration pins is charged to nobody.
 */
#include "daemon/broker/model.h"
#include "daemon/broker/model_internal.h"
#include "daemon/broker/user.h"

static uint64_t bytes_of(const struct model *m) {
        return (m->content ? m->content->bytes : m->total) + m->context.bytes + m->device_bytes;
}

int model_pin_recount(struct model *m, struct h_error *err) {
        uint64_t now = bytes_of(m);
        int r = 0;

        if (!m->pinned_by)
                return 0;
        if (now > m->pinned_bytes)
                r = user_charge_pinned(&m->server->users, m->pinned_by, now - m->pinned_bytes, err);
        else
                m->pinned_by->pinned_bytes -= m->pinned_bytes - now;
        if (r == 0)
                m->pinned_bytes = now;
        return r;
}

void model_unpin(struct model *m) {
        if (!m->pinned_by)
                return;
        m->pinned_by->pinned_bytes -= m->pinned_bytes;
        m->pinned_bytes = 0;
        m->pinned_by = user_unref(m->pinned_by);
}

int model_pin(struct model *m, struct user *u, struct h_error *err) {
        int r;

        if (m->profile.pinned)
                return 0;
        m->pinned_by = u;
        u->refs++;
        r = model_pin_recount(m, err);
        if (r < 0)
                model_unpin(m);
        else
                m->profile.pinned = true;
        if (r == 0 && m->state == MODEL_READY)
                model_note_use(m);
        return r;
}
