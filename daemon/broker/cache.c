/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/cache.h"

#include <inttypes.h>
#include <stdio.h>
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

/* If nobody has used it. */
static bool drop(struct cache *c, struct content *co) {
        if (!co->restored)
                return false;
        co->restored = false;
        content_unref(c, co);
        return true;
}

void cache_done(struct cache *c) {
        c->on_free = NULL; /* what is stored stays stored */
        list_foreach(co, &c->contents, struct content, link)
                drop(c, co);
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

struct content *cache_by_hash(struct cache *c, const uint8_t hash[32]) {
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
                if (cache->on_free)
                        cache->on_free(cache->ud, c);
                cache->bytes -= c->bytes;
                fd_close(c->memfd);
                ledger_release(&c->held);
                free(c);
        }
        return NULL;
}

struct content *cache_keep(struct cache *cache, struct content *c, uint64_t now_ms) {
        if (!c || c->refs > 1)
                return content_unref(cache, c);
        c->restored = true;
        c->kept_ms = now_ms;
        return NULL;
}

struct content *cache_find(struct cache *c, const struct source *src) {
        struct identity *id = identity_find(c, src);
        struct content *co = id ? cache_by_hash(c, id->hash) : NULL;

        if (co && co->restored) {
                co->restored = false; /* the cache's own reference becomes the caller's */
                return co;
        }
        return co ? content_ref(co) : NULL;
}

bool cache_find_hash(struct cache *c, const struct source *src, uint8_t ret[32]) {
        struct identity *id = identity_find(c, src);

        if (id)
                memcpy(ret, id->hash, 32);
        return id != NULL;
}

bool cache_find_hash_first(struct cache *c, const struct source_key *first, size_t n_parts, uint8_t ret[32]) {
        list_foreach(id, &c->identities, struct identity, link)
                if (id->n == n_parts && key_equal(&id->keys[0], first)) {
                        memcpy(ret, id->hash, 32);
                        return true;
                }
        return false;
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
        struct content *co = cache_by_hash(c, r->hash);

        remember(c, src, r->hash);
        *ret_known = co != NULL;
        if (co) {
                r->memfd = fd_close(r->memfd);
                ledger_release(held);
                if (co->restored) {
                        co->restored = false;
                        return co;
                }
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

/* ---- what outlives the daemon ---- */

bool cache_restore(struct cache *c, struct content *from) {
        struct content *co = cache_by_hash(c, from->hash) ? NULL : h_new0(struct content, 1);

        if (!co) {
                ledger_release(&from->held);
                return false;
        }
        *co = *from;
        co->held = (struct reservation){};
        ledger_move(&from->held, &co->held);
        co->refs = 1;
        co->restored = true;
        list_append(&c->contents, &co->link);
        c->bytes += co->bytes;
        return true;
}

void cache_drop_kept(struct cache *c, uint64_t before_ms) {
        list_foreach(co, &c->contents, struct content, link)
                if (!co->use.pinned && co->kept_ms < before_ms)
                        drop(c, co);
}

void cache_drop_restored(struct cache *c) {
        list_foreach(co, &c->contents, struct content, link)
                if (!co->use.pinned)
                        drop(c, co);
}

bool cache_drop_outdated(struct cache *c, const char *name) {
        bool any = false;

        list_foreach(co, &c->contents, struct content, link)
                if (co->use.name[0] && strcmp(co->use.name, name) == 0)
                        any |= drop(c, co);
        return any;
}

int cache_describe(struct cache *c, struct buf *b) {
        int r = 0;

        /* Most recently used last, so that reading them in order restores the order. */
        for (struct list *l = c->identities.prev; l != &c->identities && r == 0; l = l->prev) {
                const struct identity *id = CONTAINER_OF(l, struct identity, link);

                r = buf_puts(b, "files ");
                for (size_t i = 0; i < 32 && r == 0; i++)
                        r = buf_printf(b, "%02x", id->hash[i]);
                for (size_t i = 0; i < id->n && r == 0; i++)
                        r = buf_printf(b, " %" PRIx64 ":%" PRIx64 ":%" PRIx64 ":%" PRIx64 ":%" PRIx64, id->keys[i].dev, id->keys[i].ino,
                                       id->keys[i].size, (uint64_t)id->keys[i].mtime_ns, (uint64_t)id->keys[i].ctime_ns);
                if (r == 0)
                        r = buf_putc(b, '\n');
        }
        return r;
}

bool cache_parse_identity(struct cache *c, const char *line) {
        struct source *src;
        uint8_t hash[32];
        int used = 0;

        if (strncmp(line, "files ", 6) != 0)
                return false;
        line += 6;
        for (size_t i = 0; i < 32; i++, line += 2) {
                unsigned v;
                if (sscanf(line, "%2x", &v) != 1)
                        return false;
                hash[i] = (uint8_t)v;
        }
        src = h_new0(struct source, 1);
        if (!src)
                return false;
        while (*line && src->n < MODEL_MAX_PARTS) {
                struct source_key *k = &src->keys[src->n];
                uint64_t mtime, ctime;

                if (sscanf(line, " %" SCNx64 ":%" SCNx64 ":%" SCNx64 ":%" SCNx64 ":%" SCNx64 "%n", &k->dev, &k->ino, &k->size, &mtime, &ctime,
                           &used) != 5)
                        break;
                k->mtime_ns = (int64_t)mtime;
                k->ctime_ns = (int64_t)ctime;
                src->n++;
                line += used;
        }
        if (*line == 0 && src->n > 0)
                remember(c, src, hash);
        used = *line == 0 && src->n > 0;
        free(src); /* it owns no descriptors */
        return used;
}
