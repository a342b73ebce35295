/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "model/kv/context/placement/build/device", the first 32 digits of the content's hash. Placement: "whole", or how many
 * layers are whole in device memory and who computes with the rest, as both decide what a generated token's bits are.
 * The device comes last: it is free text.
 */
#include "daemon/broker/identity.h"

#include <stdio.h>
#include <string.h>

enum part { PART_MODEL, PART_KV, PART_CONTEXT, PART_PLACE, PART_BUILD, PART_DEVICE, _PART_MAX };

void identity_of(const struct model *m, char out[IDENTITY_MAX]) {
        char place[48] = "whole";
        size_t n = 0;

        for (size_t i = 0; i < 16; i++)
                n += (size_t)snprintf(out + n, IDENTITY_MAX - n, "%02x", m->content->hash[i]);
        if (m->host_weights)
                snprintf(place, sizeof(place), "%u of %u, %s", m->gpu_layers, m->n_layers, m->host_computes ? "host" : "device");
        snprintf(out + n, IDENTITY_MAX - n, "/%s/%u/%s/%.160s", m->profile.kv[0] ? m->profile.kv : "f16", m->n_ctx, place,
                 m->server->worker.numerics);
}

/* Part i as (pointer, length); what is not there is empty. */
static size_t part(const char *s, enum part which, const char **ret) {
        for (int i = 0; i < (int)which; i++) {
                const char *slash = strchr(s, '/');
                s = slash ? slash + 1 : s + strlen(s);
        }
        *ret = s;
        return which == PART_DEVICE ? strlen(s) : strcspn(s, "/");
}

enum identity_diff identity_compare(const char *before, const char *now, char ret_what[96]) {
        static const char *const names[] = { [PART_MODEL] = "model", [PART_KV] = "KV type", [PART_CONTEXT] = "context length", [PART_PLACE] = "placement",
                                             [PART_BUILD] = "build", [PART_DEVICE] = "device" };
        enum identity_diff diff = IDENTITY_SAME;
        size_t at = 0;

        ret_what[0] = 0;
        for (int i = 0; i < _PART_MAX; i++) {
                const char *a, *b;
                size_t na = part(before, (enum part)i, &a), nb = part(now, (enum part)i, &b);

                if (na == nb && memcmp(a, b, na) == 0)
                        continue;
                if (i == PART_MODEL)
                        diff = IDENTITY_OTHER_MODEL;
                else if (diff == IDENTITY_SAME)
                        diff = IDENTITY_CHANGED;
                at += (size_t)snprintf(ret_what + at, 96 - at, "%s%s", at ? ", " : "", names[i]);
        }
        return diff;
}
