/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for a model that loads: idle ones leave, least recently used first,
 * and only if that will be enough. Host memory and the device's are apart; who
 * leaves the device stays in host memory.
 */
#include <stdio.h>

#include "daemon/broker/model.h"
#include "daemon/broker/model_internal.h"

bool model_idle(const struct model *m) {
        return m->state == MODEL_READY && m->n_leases == 0 && !m->profile.pinned;
}

static uint64_t held(const struct model *m) {
        /* A content shared with another model stays. */
        return m->context.bytes + (m->content && m->content->refs == 1 ? m->content->bytes : 0);
}

/* Something was or will be freed: true. Nothing is disturbed in vain. */
bool model_make_room(struct server *s, const struct model *for_whom, uint64_t bytes) {
        uint64_t sum = ledger_available(&s->ledger);
        struct model *oldest = NULL;

        list_foreach(m, &s->models, struct model, link) {
                if (m == for_whom || m->dead)
                        continue;
                if (m->state == MODEL_CLOSING)
                        return true;
                if (!model_idle(m))
                        continue;
                if (__builtin_add_overflow(sum, held(m), &sum))
                        sum = UINT64_MAX;
                if (!oldest || m->last_used_ms < oldest->last_used_ms)
                        oldest = m;
        }
        if (!oldest || sum < bytes)
                return false;
        model_log(oldest, LOG_LEVEL_INFO, NULL, " is unloaded to make room for %s", for_whom->label);
        model_close(oldest);
        return true;
}

/*
 * The same for the device's memory: idle models leave it, least recently used
 * first, if together they free what is missing. Their copies stay in host
 * memory, from where they come back at the bus's speed.
 */
bool model_make_device_room(struct server *s, const struct model *for_whom, uint64_t missing) {
        struct model *oldest = NULL;
        uint64_t sum = 0;

        list_foreach(m, &s->models, struct model, link) {
                if (m == for_whom || m->dead)
                        continue;
                if (m->state == MODEL_CLOSING)
                        return true;
                if (!model_idle(m))
                        continue;
                sum += m->device_bytes;
                if (!oldest || m->last_used_ms < oldest->last_used_ms)
                        oldest = m;
        }
        if (!oldest || sum < missing)
                return false;
        model_log(oldest, LOG_LEVEL_INFO, NULL, " leaves the device to make room for %s; its copy stays in memory", for_whom->label);
        oldest->keep = true;
        model_close(oldest);
        return true;
}

/* Who has the device's memory, and who would have to go for this one: the least recently used first. */
void model_say_device_holders(struct server *s, const struct model *for_whom, const struct h_error *why, struct h_error *ret) {
        uint64_t missing = why->needed > why->available ? why->needed - why->available : 0, sum = 0, after = 0;
        char held[256], go[128] = "", holder[64];
        size_t n = 0;

        if (!ledger_holders(&s->device, NULL, held, sizeof(held))) {
                *ret = *why;
                return;
        }
        while (sum < missing) {
                struct model *next = NULL;

                list_foreach(m, &s->models, struct model, link)
                        if (m != for_whom && m->state == MODEL_READY && m->last_used_ms >= after && m->device_bytes &&
                            (!next || m->last_used_ms < next->last_used_ms))
                                next = m;
                if (!next)
                        break;
                sum += next->device_bytes;
                after = next->last_used_ms + 1;
                n += (size_t)snprintf(go + n, sizeof(go) - n, "%s%s", n ? ", " : "", model_holder(next, holder));
                if (n >= sizeof(go))
                        break;
        }
        if (sum >= missing && go[0])
                h_error_counts(ret, why->code, why->needed, why->available, "%s; held: %s; it would fit without %s: hearth unload NAME", why->message,
                               held, go);
        else
                h_error_counts(ret, why->code, why->needed, why->available, "%s; held: %s; it would not fit without them either", why->message, held);
}
