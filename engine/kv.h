/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The paged KV cache: per group of layers one page table per sequence, pages
 * reference-counted and shared by prefix, copied when a sharer writes.
 *
 * Invariants, per group
 * - ref[p] is the number of table entries that hold p; free pages have 0.
 * - Sequence s holds exactly the pages [first[s], end[s]) of its table.
 * - A page is written only by a sequence that is its only holder.
 * Positions of a page: p / KV_PAGE. No allocation after kv_open().
 */

#include "engine/desc.h"

#define KV_PAGE 64u
#define KV_NONE UINT32_MAX

struct kv_group {
        uint32_t window;        /* 0: all positions */
        uint32_t n_pages, stride;
        uint32_t n_free;
        uint32_t *free;         /* [n_pages], a stack */
        uint32_t *ref;          /* [n_pages] */
        uint32_t *table;        /* [n_seq][stride] */
        uint32_t *first, *end;  /* [n_seq] */
        uint32_t *step_table;   /* [n_seq][stride]: the rows of a step's sequences, in its order */
};

struct kv {
        struct k_dev *dev;
        uint32_t n_seq, n_group, n_layer;
        struct kv_group *group;
        struct k_kv *layer;     /* [n_layer], desc->kv order */
};

/* Tables must be zeroed; fills the free stacks. */
void kv_init(struct kv *kv);
/* Pages of each group that writing positions [len, len + n) of s takes, copies of shared ones included. */
uint32_t kv_need(const struct kv *kv, uint32_t g, uint32_t s, uint32_t len, uint32_t n);
/* Takes them; kv_need() says there are enough. -EIO: a copy failed. */
int kv_extend(struct kv *kv, uint32_t s, uint32_t len, uint32_t n);
/* Gives back pages that no later position reads. */
void kv_release_behind(struct kv *kv, uint32_t s, uint32_t len);
/* True if a sequence with these pages can go on from position n. */
bool kv_usable(const struct kv *kv, uint32_t s, uint32_t n);
void kv_trim(struct kv *kv, uint32_t s, uint32_t n);
/* An empty sequence 'to' takes part in the first n positions of 'from'. */
void kv_share(struct kv *kv, uint32_t from, uint32_t to, uint32_t n);
/* Copies the table row of s to row i of the step's table, up to position 'end'. */
void kv_step_row(struct kv *kv, uint32_t g, uint32_t i, uint32_t s, uint32_t end);

/* Table entries of a sequence, and pages of a group for n_seq sequences and steps of n_rows. */
uint32_t kv_stride(uint32_t n_ctx);
uint64_t kv_pages(uint32_t window, uint32_t n_ctx, uint32_t n_seq, uint32_t n_rows);
