/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/place.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#define MAX_LAYERS 1024u

enum unit_kind { UNIT_FIXED, UNIT_HEAD, UNIT_LAYER, UNIT_EXPERTS, UNIT_TABLE };

struct unit {
        enum unit_kind kind;
        uint32_t layer;
};

/* "blk.12.ffn_up.weight": 12. */
static bool layer_of(const char *name, uint32_t *ret) {
        unsigned n;
        int end = 0;

        if (sscanf(name, "blk.%u.%n", &n, &end) != 1 || end == 0 || n >= MAX_LAYERS)
                return false;
        *ret = n;
        return true;
}

static uint64_t row_bytes(const struct image_row *r) {
        return (r->bytes + IMAGE_ALIGN - 1) & ~(uint64_t)(IMAGE_ALIGN - 1);
}

static struct unit unit_of(const struct eng_image *im, const struct image_row *r) {
        struct unit u = { UNIT_HEAD, 0 };

        if (layer_of(r->name, &u.layer))
                u.kind = strstr(r->name, "_exps.") ? UNIT_EXPERTS : UNIT_LAYER;
        else if (strcmp(r->name, "per_layer_token_embd.weight") == 0 ||
                 (strcmp(r->name, "token_embd.weight") == 0 && image_find(im, "output.weight")))
                u.kind = UNIT_TABLE;
        if (r->type == K_F32 || r->n_dims < 2)
                u.kind = UNIT_FIXED;
        return u;
}

struct sums {
        uint64_t fixed, head, table;
        uint64_t layer[MAX_LAYERS], experts[MAX_LAYERS];
        uint64_t largest;       /* matrix of a layer */
        uint32_t n_layer;
        bool moe;
};

static void add_up(const struct eng_image *im, struct sums *s) {
        for (uint32_t i = 0; i < im->header->n_tensors; i++) {
                const struct image_row *r = &im->rows[i];
                struct unit u = unit_of(im, r);
                uint64_t b = row_bytes(r);
                uint32_t n;

                switch (u.kind) {
                case UNIT_FIXED: s->fixed += b; break;
                case UNIT_HEAD: s->head += b; break;
                case UNIT_TABLE: s->table += b; break;
                case UNIT_LAYER: s->layer[u.layer] += b; break;
                case UNIT_EXPERTS:
                        s->experts[u.layer] += b;
                        s->moe = true;
                        break;
                }
                if (u.kind == UNIT_LAYER || u.kind == UNIT_EXPERTS)
                        s->largest = MAX(s->largest, b);
                if (layer_of(r->name, &n))
                        s->n_layer = MAX(s->n_layer, n + 1);
        }
}

/* Two layers' worth, so that one is computed while the next one comes; never less than three of the largest matrices: one op takes up to three. */
static uint64_t ring_for(const struct sums *s, uint64_t room) {
        uint64_t layer = 0, least = 3 * s->largest;

        for (uint32_t i = 0; i < s->n_layer; i++)
                layer = MAX(layer, s->moe ? s->experts[i] : s->layer[i]);
        return MAX(least, MIN(2 * layer, room / 8));
}

/* How many units are the device's. */
struct cut {
        bool head, table;
        uint32_t layers, experts; /* [0, n) */
};

static uint64_t cut_bytes(const struct sums *s, const struct cut *c) {
        uint64_t n = s->fixed + (c->head ? s->head : 0) + (c->table ? s->table : 0);

        for (uint32_t i = 0; i < c->layers; i++)
                n += s->layer[i];
        for (uint32_t i = 0; i < c->experts; i++)
                n += s->experts[i];
        return n;
}

static int choose(const struct sums *s, const struct place_wish *w, struct cut *c, uint64_t *ret_ring, struct h_error *err) {
        struct cut all = { true, true, s->n_layer, s->n_layer }, next;
        uint64_t need = cut_bytes(s, &all) + IMAGE_TAIL, room = w->room;
        bool every = w->gpu_layers < 0 || (uint32_t)w->gpu_layers >= s->n_layer;

        *ret_ring = 0;
        if (every && need <= room) {
                *c = all;
                return 0;
        }
        *c = (struct cut){ 0 };
        *ret_ring = ring_for(s, room);
        if (w->gpu_layers >= 0) {
                c->head = true;
                c->layers = s->moe ? s->n_layer : MIN((uint32_t)w->gpu_layers, s->n_layer);
                c->experts = MIN((uint32_t)w->gpu_layers, s->n_layer);
                need = cut_bytes(s, c) + IMAGE_TAIL + *ret_ring;
                if (need > room)
                        return h_error_counts(err, HEARTH_E_model_no_memory, need, room,
                                              "%d of %u layers in device memory need %llu bytes there with the rest of the model, %llu are "
                                              "available; give fewer (--gpu-layers) or leave the number out", (int)MIN((uint32_t)w->gpu_layers, s->n_layer), s->n_layer,
                                              (unsigned long long)need, (unsigned long long)room);
                return 0;
        }
        need = s->fixed + IMAGE_TAIL + *ret_ring;
        if (need > room)
                return h_error_counts(err, HEARTH_E_model_no_memory, need, room,
                                      "the smallest part of the model that must be in device memory needs %llu bytes, %llu are available",
                                      (unsigned long long)need, (unsigned long long)room);
        room -= *ret_ring + IMAGE_TAIL;
        next = *c;
        next.head = true;
        if (cut_bytes(s, &next) > room)
                return 0;
        for (*c = next; next.layers < s->n_layer; *c = next) {
                next.layers++;
                if (!s->moe)
                        next.experts++;
                if (cut_bytes(s, &next) > room)
                        return 0;
        }
        for (*c = next; next.experts < s->n_layer; *c = next) {
                next.experts++;
                if (cut_bytes(s, &next) > room)
                        return 0;
        }
        return 0;
}

static bool on_device(const struct unit *u, const struct cut *c) {
        switch (u->kind) {
        case UNIT_FIXED: return true;
        case UNIT_HEAD: return c->head;
        case UNIT_TABLE: return c->table;
        case UNIT_LAYER: return u->layer < c->layers;
        case UNIT_EXPERTS: return u->layer < c->experts;
        }
        return true;
}

/* Of each expert stack a token reads as many as are used. */
static uint64_t step_bytes(const struct eng_image *im, const struct image_row *r, const struct unit *u) {
        char key[96];
        uint64_t rows, cols, n;
        uint32_t used = 0;

        if (u->kind == UNIT_TABLE)
                return 0;
        if (u->kind != UNIT_EXPERTS)
                return r->bytes;
        image_row_shape(r, &rows, &cols, &n);
        snprintf(key, sizeof(key), "%s.expert_used_count", im->info.arch);
        if (gguf_u32(im->g, key, 0, &used, NULL) < 0 || used == 0 || used > n)
                return r->bytes;
        return r->bytes / n * used;
}

uint64_t place_step_bytes(const struct eng_image *im, const struct image_row *r) {
        struct unit u = unit_of(im, r);
        return step_bytes(im, r, &u);
}

/* The tensors of the device, in the order of the image, one behind the other. */
static int assign(const struct eng_image *im, const struct place_wish *w, const struct sums *s, const struct cut *c, struct place *p) {
        uint32_t n = im->header->n_tensors;
        uint64_t at = 0;

        p->of = h_new0(enum k_place, n);
        p->at = h_new0(uint64_t, n);
        if (!p->of || !p->at)
                return -ENOMEM;
        p->n_layer = s->n_layer;
        p->n_device = MIN(c->layers, s->moe ? c->experts : c->layers);
        p->whole = c->table;
        for (uint32_t i = 0; i < n; i++) {
                const struct image_row *r = &im->rows[i];
                struct unit u = unit_of(im, r);

                if (p->whole) {
                        p->at[i] = r->offset - im->header->data_off;
                } else if (on_device(&u, c)) {
                        p->at[i] = at;
                        at += row_bytes(r);
                } else {
                        p->of[i] = u.kind == UNIT_TABLE ? K_PLACE_READ : w->rest;
                        p->at[i] = r->offset;
                        p->host_bytes += r->bytes;
                }
                *(p->of[i] == K_PLACE_DEVICE ? &p->step_device : &p->step_host) += step_bytes(im, r, &u);
        }
        p->device_bytes = p->whole ? im->header->bytes - im->header->data_off : at + IMAGE_TAIL;
        return 0;
}

int place_plan(const struct eng_image *im, const struct place_wish *w, struct place *ret, struct h_error *err) {
        _cleanup_(freep) struct sums *s = h_new0(struct sums, 1);
        struct place p = { 0 };
        struct cut c;
        int r;

        if (!s)
                return h_error_from_errno(err, -ENOMEM, "planning where a model goes");
        add_up(im, s);
        r = choose(s, w, &c, &p.ring_bytes, err);
        if (r >= 0)
                r = assign(im, w, s, &c, &p);
        if (r < 0) {
                place_free(&p);
                return r == -EHEARTH ? r : h_error_from_errno(err, r, "planning where a model goes");
        }
        *ret = p;
        return 0;
}

void place_free(struct place *p) {
        free(p->of);
        free(p->at);
        *p = (struct place){ 0 };
}
