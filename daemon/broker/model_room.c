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

static uint64_t on_device(const struct model *m) {
        return m->device_bytes;
}

/*
 * Makes room by idle models, least recently used first, if together with what
 * is 'free' they have 'bytes': nothing is disturbed in vain. True: something was
 * freed, *ret (the caller closes it), or will be, *ret NULL, by one that is closing.
 */
static bool find_room(struct server *s, const struct model *for_whom, uint64_t free, uint64_t bytes, uint64_t (*has)(const struct model *),
                      struct model **ret) {
        struct model *oldest = NULL;
        uint64_t sum = free;

        *ret = NULL;
        list_foreach(m, &s->models, struct model, link) {
                if (m == for_whom || m->dead)
                        continue;
                if (m->state == MODEL_CLOSING)
                        return true;
                if (!model_idle(m))
                        continue;
                if (__builtin_add_overflow(sum, has(m), &sum))
                        sum = UINT64_MAX;
                if (!oldest || m->last_used_ms < oldest->last_used_ms)
                        oldest = m;
        }
        if (!oldest || sum < bytes)
                return false;
        *ret = oldest;
        return true;
}

/* Something was or will be freed: true. */
bool model_make_room(struct server *s, const struct model *for_whom, uint64_t bytes) {
        struct model *oldest;

        if (!find_room(s, for_whom, ledger_available(&s->ledger), bytes, held, &oldest))
                return false;
        if (oldest) {
                model_log(oldest, LOG_LEVEL_INFO, NULL, " is unloaded to make room for %s", for_whom->label);
                model_close(oldest);
        }
        return true;
}

/*
 * The same for the device's memory. The copies stay in host memory, from where
 * they come back at the bus's speed.
 */
bool model_make_device_room(struct server *s, const struct model *for_whom, uint64_t missing) {
        struct model *oldest;

        if (!find_room(s, for_whom, 0, missing, on_device, &oldest))
                return false;
        if (oldest) {
                model_log(oldest, LOG_LEVEL_INFO, NULL, " leaves the device to make room for %s; its copy stays in memory", for_whom->label);
                oldest->keep = true;
                model_close(oldest);
        }
        return true;
}

/* ---- descriptors ---- */

/* More than the reserve has over, where they leave slowly. */
#define MOST_LEAVING 16u

static uint32_t parts(const struct source *src) {
        return src && !src->payer ? (uint32_t)src->n : 0; /* a client's are charged to him */
}

/* What models hold, and what those that are leaving will give back of it. */
static uint32_t files_held(const struct server *s, uint32_t *ret_leaving) {
        uint32_t n = 0, leaving = 0;

        list_foreach(co, &s->cache.contents, struct content, link)
                n++;
        list_foreach(m, &s->models, struct model, link) {
                if (m->dead)
                        continue;
                n += (m->fill ? 1 : 0) + parts(m->source);
                if (m->state == MODEL_CLOSING)
                        leaving += (m->content && m->content->refs == 1 ? 1 : 0) + (m->fill ? 1 : 0) + parts(m->source);
        }
        *ret_leaving = leaving;
        return n;
}

int model_make_file_room(struct server *s, const struct source *src, const char *name, struct h_error *err) {
        uint32_t need = 1 + parts(src), max = s->users.max_model_files, leaving, n = files_held(s, &leaving);

        if (n + need > max) {
                cache_drop_restored(&s->cache); /* copies that nobody uses go first */
                n = files_held(s, &leaving);
        }
        while (n - leaving + need > max) {
                struct model *oldest = NULL;

                list_foreach(m, &s->models, struct model, link)
                        if (!m->dead && model_idle(m) && m->content->refs == 1 && (!oldest || m->last_used_ms < oldest->last_used_ms))
                                oldest = m;
                if (!oldest || need > max)
                        return h_error_counts(err, HEARTH_E_quota, need, max - MIN(max, n - leaving),
                                              "%s takes %u open files to load; of the %u that the limit of open files leaves for models (LimitNOFILE= "
                                              "in the daemon's unit) %u are taken by models in use or pinned", name, need, max, n - leaving);
                model_log(oldest, LOG_LEVEL_INFO, NULL, " is unloaded to make room for %s: the limit of open files leaves %u for models", name, max);
                model_close(oldest);
                n = files_held(s, &leaving);
        }
        if (n + need > max && leaving > MOST_LEAVING)
                return h_error_counts(err, HEARTH_E_busy, need, 0, "%s can't be loaded while %u open files of models that are leaving are not free yet; try again",
                                      name, leaving);
        return 0;
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
