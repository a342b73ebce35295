/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/cache.h"

#include <string.h>

#include "base/alloc.h"

#define MAX_IDENTITIES 1024

/* Files of which we know what they hold. */
struct identity {
        struct list link;
        uint8_t hash[32];
        size_t n;
        struct source_key keys[];
};

void cache_init(struct cache *c) {
        *c = (struct cache){};
        list_init(&c->contents);
        list_init(&c->identities);
}

static void identity_free(struct cache *c, struct identity *id) {
        list_remove(&id->link);
        c->n_identities--;
        free(id);
}

void cache_done(struct cache *c) {
        list_foreach(id, &c->identities, struct identity, link)
                identity_free(c, id);
}

static bool key_equal(const struct source_key *a, const struct source_key *b) {
        return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns &&
               a->ctime_ns == b->ctime_ns;
}

static struct identity *identity_find(struct cache *c, const struct source *src) {
        list_foreach(id, &c->identities, struct identity, link) {
                size_t i = 0;
                if (id->n != src->n)
                        continue;
                while (i < id->n && key_equal(&id->keys[i], &src->keys[i]))
                        i++;
                if (i == id->n) {
                        list_remove(&id->link);
                        list_prepend(&c->identities, &id->link);
                        return id;
                }
        }
        return NULL;
}

static struct content *by_hash(struct cache *c, const uint8_t hash[32]) {
        list_foreach(co, &c->contents, struct content, link)
                if (memcmp(co->hash, hash, 32) == 0)
                        return co;
        return NULL;
}

struct content *content_ref(struct content *c) {
        c->refs++;
        return c;
}

struct content *content_unref(struct cache *cache, struct content *c) {
        if (c && --c->refs == 0) {
                list_remove(&c->link);
                cache->bytes -= c->bytes;
                fd_close(c->memfd);
                ledger_release(&c->held);
                free(c);
        }
        return NULL;
}

struct content *cache_find(struct cache *c, const struct source *src) {
        struct identity *id = identity_find(c, src);
        struct content *co = id ? by_hash(c, id->hash) : NULL;

        return co ? content_ref(co) : NULL;
}

/* Best effort: without it the file is read again next time. */
static void remember(struct cache *c, const struct source *src, const uint8_t hash[32]) {
        struct identity *id = identity_find(c, src);

        if (!id) {
                if (c->n_identities >= MAX_IDENTITIES)
                        identity_free(c, CONTAINER_OF(c->identities.prev, struct identity, link));
                id = h_malloc(sizeof(*id) + src->n * sizeof(id->keys[0]));
                if (!id)
                        return;
                id->n = src->n;
                memcpy(id->keys, src->keys, src->n * sizeof(id->keys[0]));
                list_prepend(&c->identities, &id->link);
                c->n_identities++;
        }
        memcpy(id->hash, hash, 32);
}

struct content *cache_add(struct cache *c, const struct source *src, struct fill_result *r, struct reservation *held,
                          bool *ret_known) {
        struct content *co = by_hash(c, r->hash);

        remember(c, src, r->hash);
        *ret_known = co != NULL;
        if (co) {
                r->memfd = fd_close(r->memfd);
                ledger_release(held);
                return content_ref(co);
        }
        co = h_new0(struct content, 1);
        if (!co) {
                r->memfd = fd_close(r->memfd);
                ledger_release(held);
                return NULL;
        }
        co->refs = 1;
        co->memfd = fd_steal(&r->memfd);
        co->bytes = r->bytes;
        memcpy(co->hash, r->hash, 32);
        memcpy(co->title, r->title, sizeof(co->title));
        memcpy(co->arch, r->arch, sizeof(co->arch));
        memcpy(co->type, r->type, sizeof(co->type));
        co->n_params = r->n_params;
        co->n_ctx_train = r->n_ctx_train;
        co->can_embed = r->can_embed;
        co->can_chat = r->can_chat;
        ledger_move(held, &co->held);
        list_append(&c->contents, &co->link);
        c->bytes += co->bytes;
        return co;
}
