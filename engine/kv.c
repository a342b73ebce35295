/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages behind a window are given back once no row can read them, with one page
 * of slack, so that rejected drafts can be taken back.
 */
#include "engine/kv.h"

#include <string.h>

uint32_t kv_stride(uint32_t n_ctx) {
        return DIV_ROUND_UP(n_ctx, KV_PAGE);
}

/*
 * Full groups: every sequence can be full. Window groups: at a step's end a
 * sequence keeps window + KV_PAGE - 1 positions at most; a step adds n_rows
 * positions over all sequences; each run of L positions touches at most
 * (L + 2 (KV_PAGE - 1)) / KV_PAGE pages.
 */
uint64_t kv_pages(uint32_t window, uint32_t n_ctx, uint32_t n_seq, uint32_t n_rows) {
        uint64_t full = (uint64_t)n_seq * kv_stride(n_ctx), kept;

        if (window == 0)
                return full;
        kept = ((uint64_t)window + KV_PAGE - 1 + 2 * (KV_PAGE - 1)) / KV_PAGE + 1;
        return MIN(full, n_seq * kept + DIV_ROUND_UP((uint64_t)n_rows, KV_PAGE));
}

void kv_init(struct kv *kv) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                struct kv_group *gr = &kv->group[g];

                for (uint32_t i = 0; i < gr->n_pages; i++)
                        gr->free[i] = gr->n_pages - 1 - i;
                gr->n_free = gr->n_pages;
                memset(gr->table, 0xff, (size_t)kv->n_seq * gr->stride * sizeof(uint32_t));
        }
}

static uint32_t *row(const struct kv *kv, uint32_t g, uint32_t s) {
        const struct kv_group *gr = &kv->group[g];
        return gr->table + (size_t)s * gr->stride;
}

static uint32_t page_take(struct kv_group *g) {
        uint32_t p = g->free[--g->n_free];
        g->ref[p] = 1;
        return p;
}

static void page_drop(struct kv_group *g, uint32_t p) {
        if (--g->ref[p] == 0)
                g->free[g->n_free++] = p;
}

/* The page that position len continues, if it is shared and so must be copied first; else KV_NONE. */
static uint32_t shared_tail(const struct kv *kv, uint32_t g, uint32_t s, uint32_t len) {
        const struct kv_group *gr = &kv->group[g];
        uint32_t i = len / KV_PAGE, p;

        if (len % KV_PAGE == 0 || i < gr->first[s] || i >= gr->end[s])
                return KV_NONE;
        p = row(kv, g, s)[i];
        return gr->ref[p] > 1 ? p : KV_NONE;
}

uint32_t kv_need(const struct kv *kv, uint32_t g, uint32_t s, uint32_t len, uint32_t n) {
        const struct kv_group *gr = &kv->group[g];
        uint32_t end = DIV_ROUND_UP(len + n, KV_PAGE);
        uint32_t need = end > gr->end[s] ? end - MAX(gr->end[s], len / KV_PAGE) : 0;

        return need + (shared_tail(kv, g, s, len) != KV_NONE);
}

/* Copies the first n positions of a page in every layer of the group. */
static int copy_page(struct kv *kv, uint32_t g, uint32_t from, uint32_t to, uint32_t n) {
        const struct k_ops *ops = kv->dev->ops;

        for (uint32_t i = 0; i < kv->n_layer; i++) {
                struct k_kv *l = &kv->layer[i];
                size_t kp = (size_t)KV_PAGE * l->k_row_bytes, vp = (size_t)KV_PAGE * l->v_row_bytes;
                int r;

                if (l->group != g || !l->k)
                        continue;
                r = ops->copy(kv->dev, (uint8_t *)l->k + to * kp, (uint8_t *)l->k + from * kp, n * l->k_row_bytes);
                if (r >= 0 && l->v)
                        r = ops->copy(kv->dev, (uint8_t *)l->v + to * vp, (uint8_t *)l->v + from * vp,
                                      n * l->v_row_bytes);
                if (r < 0)
                        return r;
        }
        return 0;
}

int kv_extend(struct kv *kv, uint32_t s, uint32_t len, uint32_t n) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                struct kv_group *gr = &kv->group[g];
                uint32_t *t = row(kv, g, s), end = DIV_ROUND_UP(len + n, KV_PAGE);
                uint32_t shared = shared_tail(kv, g, s, len);

                if (shared != KV_NONE) {
                        uint32_t own = page_take(gr);
                        int r = copy_page(kv, g, shared, own, len % KV_PAGE);

                        page_drop(gr, shared);
                        t[len / KV_PAGE] = own;
                        if (r < 0)
                                return r;
                }
                /* Nothing held (all behind the window, or new): begin where the rows begin. */
                if (gr->first[s] == gr->end[s])
                        gr->first[s] = gr->end[s] = len / KV_PAGE;
                while (gr->end[s] < end)
                        t[gr->end[s]++] = page_take(gr);
        }
        return 0;
}

void kv_release_behind(struct kv *kv, uint32_t s, uint32_t len) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                struct kv_group *gr = &kv->group[g];
                uint32_t *t = row(kv, g, s);
                uint64_t reach = (uint64_t)gr->window + KV_PAGE; /* position len - window + 1 is the last one read */

                if (gr->window == 0 || len + 1 <= reach)
                        continue;
                for (uint32_t keep = (uint32_t)((len + 1 - reach) / KV_PAGE);
                     gr->first[s] < MIN(keep, gr->end[s]); gr->first[s]++) {
                        page_drop(gr, t[gr->first[s]]);
                        t[gr->first[s]] = KV_NONE;
                }
        }
}

bool kv_usable(const struct kv *kv, uint32_t s, uint32_t n) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                const struct kv_group *gr = &kv->group[g];
                if (gr->first[s] > 0 && n + 1 < (uint64_t)gr->window + (uint64_t)gr->first[s] * KV_PAGE)
                        return false;
        }
        return true;
}

void kv_trim(struct kv *kv, uint32_t s, uint32_t n) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                struct kv_group *gr = &kv->group[g];
                uint32_t *t = row(kv, g, s), end = DIV_ROUND_UP(n, KV_PAGE);

                while (gr->end[s] > MAX(end, gr->first[s])) {
                        page_drop(gr, t[--gr->end[s]]);
                        t[gr->end[s]] = KV_NONE;
                }
                if (n == 0)
                        gr->first[s] = gr->end[s] = 0;
        }
}

void kv_share(struct kv *kv, uint32_t from, uint32_t to, uint32_t n) {
        for (uint32_t g = 0; g < kv->n_group; g++) {
                struct kv_group *gr = &kv->group[g];
                uint32_t *a = row(kv, g, from), *b = row(kv, g, to), end = MIN(DIV_ROUND_UP(n, KV_PAGE), gr->end[from]);

                gr->first[to] = MIN(gr->first[from], end);
                gr->end[to] = end;
                for (uint32_t i = gr->first[to]; i < end; i++) {
                        b[i] = a[i];
                        gr->ref[a[i]]++;
                }
        }
}

void kv_step_row(struct kv *kv, uint32_t g, uint32_t i, uint32_t s, uint32_t end) {
        struct kv_group *gr = &kv->group[g];
        memcpy(gr->step_table + (size_t)i * gr->stride, row(kv, g, s), DIV_ROUND_UP(end, KV_PAGE) * sizeof(uint32_t));
}
