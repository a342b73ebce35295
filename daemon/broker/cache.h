/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The model cache: one sealed memfd per content. A content is found by what its
 * files are (device, inode, size, times: nothing is read then) or, after a copy
 * elsewhere was read once, by its hash. Contents are reference-counted by the
 * models made of them and freed with the last; what was learnt about files
 * outlives them, so that a copy is recognized also after an unload.
 */

#include "base/buf.h"
#include "daemon/broker/fill.h"
#include "daemon/broker/ledger.h"
#include "daemon/common/list.h"

/* As what it was last open: taken up by the daemon after this one. */
struct content_use {
        bool known;
        uint32_t n_ctx, slots;
        char kv[17];
        uint32_t gpu_layers; /* UINT32_MAX: as many as fit */
        uint64_t vram_budget;
        bool pinned;
        uint32_t pinned_by;  /* uid it is charged to; UINT32_MAX: nobody */
        char name[256];      /* everybody's name for it; empty: none */
};

struct content {
        struct list link;
        uint32_t refs;
        int memfd;
        uint64_t bytes;
        uint8_t hash[32];
        struct reservation held;
        char title[129], arch[65], type[65];
        uint64_t n_params;
        uint32_t n_ctx_train;
        bool can_embed, can_chat;
        struct content_use use;
        uint64_t kept_ms;    /* when cache_keep() took it; 0: restored */
        bool restored;       /* of an earlier daemon, not used yet: the cache itself holds the reference */
};

struct cache {
        struct list contents;
        struct list identities; /* most recently used first */
        uint32_t n_identities;
        uint64_t bytes;
        void (*on_free)(void *ud, const struct content *c); /* before a content goes; may be NULL */
        void *ud;
};

void cache_init(struct cache *c);
void cache_done(struct cache *c);
/* A new reference to the content of these files, if it is in memory; else NULL. */
struct content *cache_find(struct cache *c, const struct source *src);
/*
 * Takes a fill's result and its reservation (moved): a new reference to a new
 * content, or to the one with the same bytes that was there already (*ret_known;
 * the new copy is given back then). NULL: no memory, the result is freed.
 */
struct content *cache_add(struct cache *c, const struct source *src, struct fill_result *r, struct reservation *held,
                          bool *ret_known);
/* A copy that an earlier daemon left (moved; its reservation too). False: no memory, nothing was taken but the reservation. */
bool cache_restore(struct cache *c, struct content *from);
/* The owner gives it up, but it stays for who may ask for it again, until cache_drop_restored(). Returns NULL. */
struct content *cache_keep(struct cache *cache, struct content *c, uint64_t now_ms);
/* The same for those that were kept or restored before this time. */
void cache_drop_kept(struct cache *c, uint64_t before_ms);
/* Gives up restored copies that nobody has used and that are not to stay for good. */
void cache_drop_restored(struct cache *c);
/* The one that was known by this name: its file is another one now. True: there was one. */
bool cache_drop_outdated(struct cache *c, const char *name);
/* The hash of what these files hold, if it is known; the content need not be in memory. */
bool cache_find_hash(struct cache *c, const struct source *src, uint8_t ret[32]);
/* The same from its first part's key alone, as a listing has it. */
bool cache_find_hash_first(struct cache *c, const struct source_key *first, size_t n_parts, uint8_t ret[32]);
struct content *cache_by_hash(struct cache *c, const uint8_t hash[32]); /* no reference */
/* What is known about files, as lines of text, and back. */
int cache_describe(struct cache *c, struct buf *b);
bool cache_parse_identity(struct cache *c, const char *line);
struct content *content_ref(struct content *c);
struct content *content_unref(struct cache *cache, struct content *c); /* NULL */
