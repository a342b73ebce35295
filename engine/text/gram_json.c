/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One byte of JSON under a schema. Properties come in any order; what an
 * object has seen is a blob: how many keys, which declared ones, and (where a
 * minimum makes it matter) the hashes of the others. A byte is allowed only if
 * the value it begins or continues can still be finished: the automata hold no
 * dead states, a key leads to a property that may still come, and a number can
 * still get within its bounds.
 *
 * White space is allowed wherever JSON allows it, but bounded, because weak
 * models go on in blanks for ever: in a row at most 32 + 8 * depth bytes and two
 * line ends, behind the whole value two bytes.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/text/gram_machine.h"

static bool is_space(uint8_t b) {
        return b == ' ' || b == '\n' || b == '\r' || b == '\t';
}

static void space(struct gm_out *out, struct gm_node n, uint8_t b) {
        if (n.ws >= (n.kind == GM_DONE ? 2 : 32 + 8 * n.depth))
                return;
        if ((b == '\n' && (n.lines & 0xff) == 2) || (b == '\r' && n.lines >> 8 == 2))
                return;
        n.ws++;
        n.lines += b == '\n' ? 1 : b == '\r' ? 0x100 : 0;
        gm_push(out, &n);
}

/* ---- objects: what was seen ---- */

static size_t prop_words(const struct gs_object *o) {
        return DIV_ROUND_UP(o->n_prop, 64);
}

static const struct gm_seen *seen_of(const struct gm *m, uint32_t blob) {
        return gm_blob_data(m, blob);
}

bool gm_label_ok(const struct gs_object *o, const struct gm_seen *s, size_t label) {
        bool room = s->count + s->required_left < o->max;

        if (label >= o->n_prop)
                return room;
        if (o->prop[label].never || (s->bits[label / 64] >> (label % 64) & 1))
                return false;
        return o->prop[label].required || room;
}

static bool any_ok(const struct gs_object *o, const struct gm_seen *s, const uint64_t *labels) {
        for (size_t w = 0; w < o->words; w++)
                for (uint64_t bits = labels[w]; bits; bits &= bits - 1)
                        if (gm_label_ok(o, s, w * 64 + (size_t)__builtin_ctzll(bits)))
                                return true;
        return false;
}

static bool key_ok(const struct gm *m, const struct gs_object *o, uint32_t data) {
        return o->keys->n_state && any_ok(o, seen_of(m, data), o->reach);
}

static bool may_close(const struct gm *m, const struct gs_object *o, uint32_t data) {
        const struct gm_seen *s = seen_of(m, data);
        return s->required_left == 0 && s->count >= o->min;
}

static uint32_t seen_new(struct gm *m, const struct gs_object *o) {
        size_t n = sizeof(struct gm_seen) + prop_words(o) * 8;
        struct gm_seen *s = h_calloc(1, n);
        uint32_t id;

        if (!s) {
                m->error = -ENOMEM;
                return GM_NONE;
        }
        s->required_left = (uint32_t)o->n_required;
        id = gm_blob(m, s, n);
        free(s);
        return id;
}

/* After a key with this label; GM_NONE if it may not come (again). */
static uint32_t seen_add(struct gm *m, const struct gs_object *o, uint32_t data, size_t label, uint64_t hash) {
        const struct gm_seen *old = seen_of(m, data);
        size_t n = m->blob[data].len, base = sizeof(*old) + prop_words(o) * 8;
        struct gm_seen *s;
        uint32_t id;

        if (!gm_label_ok(o, old, label))
                return GM_NONE;
        for (size_t at = base; label >= o->n_prop && o->distinct && old->count < o->min && at < n; at += 8)
                if (memcmp((const uint8_t *)old + at, &hash, 8) == 0)
                        return GM_NONE;
        s = h_calloc(1, n + 8);
        if (!s) {
                m->error = -ENOMEM;
                return GM_NONE;
        }
        memcpy(s, old, n);
        if (label < o->n_prop) {
                s->bits[label / 64] |= UINT64_C(1) << (label % 64);
                s->required_left -= o->prop[label].required;
        } else if (o->distinct && old->count < o->min) {
                memcpy((uint8_t *)s + n, &hash, 8);
                n += 8;
        }
        if (o->max != SIZE_MAX || s->count < o->min) /* past both, the count no longer matters */
                s->count++;
        id = gm_blob(m, s, n);
        free(s);
        return id;
}

/* ---- values ---- */

static void begin_number(struct gm_out *out, const struct gm_node *v, const struct gs_number *num, uint8_t b) {
        struct gm_node n = { .kind = GM_NUM, .parent = v->parent, .depth = v->depth, .ptr = num };

        if (num->free) {
                n.q = gs_free_next(num->integer, 0, b);
                if (n.q == UINT32_MAX)
                        return;
        } else {
                if (!(gs_number_check(num, (const char *)&b, 1) & GS_VIABLE))
                        return;
                n.data = gm_blob(out->m, &b, 1);
                if (n.data == GM_NONE)
                        return;
        }
        gm_push(out, &n);
}

static void value(struct gm_out *out, struct gm_node v, uint8_t b) {
        const struct gs_alts *a = &out->m->g->schema.node[v.q]->alts;

        if (is_space(b)) {
                space(out, v, b);
                return;
        }
        switch (b) {
        case '"':
                for (size_t i = 0; i < a->n_str; i++)
                        gm_push(out, &(struct gm_node){ .kind = GM_STR, .parent = v.parent, .depth = v.depth, .ptr = a->str[i] });
                return;
        case '{':
                for (size_t i = 0; i < a->n_obj && v.depth < GM_MAX_DEPTH; i++) {
                        uint32_t data = seen_new(out->m, a->obj[i]);
                        if (data != GM_NONE)
                                gm_push(out, &(struct gm_node){ .kind = GM_OBJ, .phase = O_FIRST, .parent = v.parent,
                                                                .depth = v.depth + 1, .ptr = a->obj[i], .data = data });
                }
                return;
        case '[':
                for (size_t i = 0; i < a->n_arr && v.depth < GM_MAX_DEPTH; i++)
                        gm_push(out, &(struct gm_node){ .kind = GM_ARR, .phase = A_FIRST, .parent = v.parent,
                                                        .depth = v.depth + 1, .ptr = a->arr[i],
                                                        .data = a->arr[i]->unique == GS_UNIQUE_TEXT ? gm_blob(out->m, "", 0) : 0 });
                return;
        case 'n':
        case 't':
        case 'f': {
                static const char *const words[] = { "null", "true", "false" };
                unsigned which = b == 'n' ? 0 : b == 't' ? 1 : 2;
                if (a->words & (1u << which))
                        gm_push(out, &(struct gm_node){ .kind = GM_WORD, .parent = v.parent, .q = 1, .ptr = words[which] });
                return;
        }
        default:
                if (b == '-' || (b >= '0' && b <= '9'))
                        for (size_t i = 0; i < a->n_num; i++)
                                begin_number(out, &v, a->num[i], b);
        }
}

static void number(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs_number *num = n.ptr;
        struct gm *m = out->m;
        bool accept;

        if (num->free) {
                uint32_t next = gs_free_next(num->integer, n.q, b);
                accept = gs_free_accept(n.q);
                if (next != UINT32_MAX) {
                        n.q = next;
                        gm_push(out, &n);
                }
        } else {
                char text[80];
                size_t len = m->blob[n.data].len;
                memcpy(text, gm_blob_data(m, n.data), len);
                accept = gs_number_check(num, text, len) & GS_ACCEPT;
                if (len < sizeof(text) - 1) {
                        text[len] = (char)b;
                        if (gs_number_check(num, text, len + 1) & GS_VIABLE) {
                                n.data = gm_blob(m, text, len + 1);
                                if (n.data != GM_NONE)
                                        gm_push(out, &n);
                        }
                }
        }
        if (accept)
                gm_json_step(out, n.parent, b);
}

static bool some_edge(const struct dfa *d, uint32_t q, const struct ch_range *r, size_t n) {
        const struct dfa_state *s = &d->state[q];

        for (size_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < s->n_edge; k++)
                        if (s->edge[k].lo <= r[i].hi && s->edge[k].hi >= r[i].lo)
                                return true;
        return false;
}

static void hash_char(const struct gs_string *s, struct gm_node *n, uint32_t cp) {
        if (s->hashed)
                n->hash = (n->hash ^ (cp + 1)) * 1099511628211u;
}

static enum gm_char string_char(struct gm_node *n, uint8_t b) {
        const struct gs_string *s = n->ptr;
        struct ch_range r[3];
        size_t n_r = 0;

        switch (ch_json(&n->sub, b, r, &n_r)) {
        case CH_BAD:
                return GM_STOP;
        case CH_END:
                return (s->dfa->any ? n->data >= s->min : s->dfa->state[n->q].label >= 0) ? GM_QUOTE : GM_STOP;
        case CH_PART:
                return (s->dfa->any ? n->data < s->max : some_edge(s->dfa, n->q, r, n_r)) ? GM_CHAR : GM_STOP;
        case CH_WHOLE:
                if (s->dfa->any) {
                        if (n->data >= s->max)
                                return GM_STOP;
                        if (s->max != SIZE_MAX || n->data < s->min)
                                n->data++;
                        hash_char(s, n, r[0].lo);
                        return GM_CHAR;
                }
                n->q = dfa_next(s->dfa, n->q, r[0].lo);
                hash_char(s, n, r[0].lo);
                return n->q == DFA_DEAD ? GM_STOP : GM_CHAR;
        }
        return GM_STOP;
}

static enum gm_char key_char(const struct gm *m, struct gm_node *n, uint8_t b) {
        const struct gs_object *o = n->ptr;
        const struct gm_seen *seen = seen_of(m, n->data);
        struct ch_range r[3];
        size_t n_r = 0;

        switch (ch_json(&n->sub, b, r, &n_r)) {
        case CH_BAD:
                return GM_STOP;
        case CH_END:
                return o->keys->state[n->q].label >= 0 ? GM_QUOTE : GM_STOP;
        case CH_PART:
                for (size_t i = 0; i < n_r; i++)
                        for (uint32_t k = 0; k < o->keys->state[n->q].n_edge; k++) {
                                const struct dfa_edge *e = &o->keys->state[n->q].edge[k];
                                if (e->lo <= r[i].hi && e->hi >= r[i].lo && any_ok(o, seen, o->reach + e->to * o->words))
                                        return GM_CHAR;
                        }
                return GM_STOP;
        case CH_WHOLE:
                n->q = dfa_next(o->keys, n->q, r[0].lo);
                if (n->q == DFA_DEAD || !any_ok(o, seen, o->reach + n->q * o->words))
                        return GM_STOP;
                if (o->distinct && seen->count < o->min)
                        n->hash = (n->hash ^ (r[0].lo + 1)) * 1099511628211u;
                return GM_CHAR;
        }
        return GM_STOP;
}

enum gm_char gm_char_step(const struct gm *m, struct gm_node *n, uint8_t b) {
        return n->kind == GM_STR ? string_char(n, b) : key_char(m, n, b);
}

bool gm_item_used(const struct gm *m, const struct gm_node *n) {
        const struct gm_node *up = &m->node[n->parent];
        const uint8_t *p = gm_blob_data(m, up->data);

        for (size_t i = 0; i < m->blob[up->data].len; i += 8)
                if (memcmp(p + i, &n->hash, 8) == 0)
                        return true;
        return false;
}

/* The end of an item that must differ from those before: the array remembers it. */
static void item_ends(struct gm_out *out, const struct gm_node *n) {
        struct gm *m = out->m;
        struct gm_node up = m->node[n->parent];
        size_t len = m->blob[up.data].len;
        uint8_t *p;

        if (gm_item_used(m, n))
                return;
        p = h_malloc(len + 8);
        if (!p) {
                m->error = -ENOMEM;
                return;
        }
        memcpy(p, gm_blob_data(m, up.data), len);
        memcpy(p + len, &n->hash, 8);
        up.data = gm_blob(m, p, len + 8);
        free(p);
        if (up.data != GM_NONE)
                gm_push(out, &up);
}

static void string(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs_string *s = n.ptr;

        switch (string_char(&n, b)) {
        case GM_STOP: return;
        case GM_CHAR: gm_push(out, &n); return;
        case GM_QUOTE:
                if (s->hashed)
                        item_ends(out, &n);
                else
                        gm_add(out, n.parent);
                return;
        }
}

static void key(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs_object *o = n.ptr;

        switch (key_char(out->m, &n, b)) {
        case GM_STOP:
                return;
        case GM_CHAR:
                gm_push(out, &n);
                return;
        case GM_QUOTE: {
                uint32_t label = (uint32_t)o->keys->state[n.q].label;
                n.data = seen_add(out->m, o, n.data, label, n.hash);
                if (n.data == GM_NONE)
                        return;
                n.kind = GM_OBJ;
                n.phase = O_COLON;
                n.q = label;
                n.hash = 0;
                gm_push(out, &n);
        }
        }
}

/* How many more characters of any kind the reading takes without changing what may follow; 0 if it depends on them. */
size_t gm_takes_any(const struct gm *m, const struct gm_node *n) {
        const struct gs_string *s = n->ptr;
        const struct gs_object *o = n->ptr;
        const struct dfa *d;

        if (n->sub != 0)
                return 0;
        if (n->kind == GM_NFA)
                return m->g->loops[n->q] ? SIZE_MAX : 0;
        if (n->kind == GM_STR && s->dfa->any)
                return s->max == SIZE_MAX ? SIZE_MAX : s->max - MIN(n->data, s->max);
        if (n->kind != GM_STR && n->kind != GM_KEY)
                return 0;
        d = n->kind == GM_STR ? s->dfa : o->keys;
        if (d->state[n->q].n_edge != 1 || d->state[n->q].edge[0].to != n->q || d->state[n->q].edge[0].lo != 0 ||
            d->state[n->q].edge[0].hi != DFA_MAX_CP)
                return 0;
        return n->kind == GM_STR || any_ok(o, seen_of(m, n->data), o->reach + n->q * o->words) ? SIZE_MAX : 0;
}

static void object(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs_object *o = n.ptr;
        struct gm *m = out->m;

        if (is_space(b)) {
                space(out, n, b);
                return;
        }
        n.ws = n.lines = 0;
        switch (n.phase) {
        case O_FIRST:
        case O_KEY:
                if (b == '"' && key_ok(m, o, n.data)) {
                        n.kind = GM_KEY;
                        n.phase = 0;
                        n.q = 0;
                        gm_push(out, &n);
                } else if (b == '}' && n.phase == O_FIRST && may_close(m, o, n.data)) {
                        gm_add(out, n.parent);
                }
                return;
        case O_COLON:
                if (b == ':') {
                        uint32_t node = n.q < o->n_prop ? o->prop[n.q].node : o->cls[n.q - o->n_prop].node;
                        n.phase = O_AFTER;
                        n.q = 0;
                        gm_push(out, &(struct gm_node){ .kind = GM_VALUE, .parent = gm_intern(m, &n), .depth = n.depth, .q = node });
                }
                return;
        default:
                if (b == ',' && key_ok(m, o, n.data)) {
                        n.phase = O_KEY;
                        gm_push(out, &n);
                } else if (b == '}' && may_close(m, o, n.data)) {
                        gm_add(out, n.parent);
                }
        }
}

/* ---- arrays ---- */

static size_t next_place(const struct gs_array *a, uint32_t place) {
        /* past everything that counts, places are alike */
        return a->max != SIZE_MAX || place < MAX(a->min, a->n_prefix) ? place + 1 : place;
}

static void item_of(struct gm_out *out, struct gm_node n, uint32_t node, uint8_t b) {
        const struct gs_array *a = n.ptr;
        struct gm_node v = { .kind = GM_VALUE, .depth = n.depth, .q = node };

        n.q = (uint32_t)next_place(a, n.q);
        n.phase = A_AFTER;
        n.ws = n.lines = 0;
        v.parent = gm_intern(out->m, &n);
        if (v.parent == GM_NONE)
                return;
        if (b)
                value(out, v, b);
        else
                gm_push(out, &v);
}

/* The next item; b is its first byte, 0 if it is still to come. */
static void item(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs *g = &out->m->g->schema;
        const struct gs_array *a = n.ptr;
        size_t which = gs_item(a, n.q), next = next_place(a, n.q);
        uint64_t used = n.hash;

        if (a->unique == GS_UNIQUE_FEW) {
                for (size_t i = 0; i < a->n_value; i++)
                        if (!(used >> i & 1)) {
                                n.hash = used | UINT64_C(1) << i;
                                item_of(out, n, a->value[i], b);
                        }
        } else if (a->unique == GS_UNIQUE_TEXT) {
                item_of(out, n, a->value[0], b);
        } else if (a->has_contains) {
                uint32_t count = n.data, more = (uint32_t)(a->c_max == SIZE_MAX ? MIN(count + 1, a->n_count - 1) : count + 1);
                if (g->node[a->hit[which]]->nonempty && gs_array_may(a, next, more)) {
                        n.data = more;
                        item_of(out, n, a->hit[which], b);
                }
                if (g->node[a->miss[which]]->nonempty && gs_array_may(a, next, count)) {
                        n.data = count;
                        item_of(out, n, a->miss[which], b);
                }
        } else {
                item_of(out, n, which < a->n_prefix ? a->prefix[which] : a->items, b);
        }
}

static bool may_end(const struct gs_array *a, const struct gm_node *n) {
        return n->q >= a->min && (!a->has_contains || (n->data >= a->c_min && n->data <= a->c_max));
}

static bool may_go_on(const struct gs *g, const struct gs_array *a, const struct gm_node *n) {
        size_t which = gs_item(a, n->q), next = next_place(a, n->q);
        uint32_t more = (uint32_t)(a->c_max == SIZE_MAX ? MIN(n->data + 1, a->n_count - 1) : n->data + 1);

        if (n->q >= a->max)
                return false;
        return !a->has_contains || (g->node[a->hit[which]]->nonempty && gs_array_may(a, next, more)) ||
               (g->node[a->miss[which]]->nonempty && gs_array_may(a, next, n->data));
}

static void array(struct gm_out *out, struct gm_node n, uint8_t b) {
        const struct gs_array *a = n.ptr;

        if (is_space(b)) {
                space(out, n, b);
                return;
        }
        if (b == ']') {
                if (may_end(a, &n))
                        gm_add(out, n.parent);
        } else if (n.phase == A_FIRST) {
                if (a->max > 0 && b)
                        item(out, n, b);
        } else if (b == ',' && may_go_on(&out->m->g->schema, a, &n)) {
                item(out, n, 0);
        }
}

void gm_json_step(struct gm_out *out, uint32_t id, uint8_t b) {
        struct gm_node n = out->m->node[id];

        switch ((enum gm_kind)n.kind) {
        case GM_DONE:
                if (is_space(b))
                        space(out, n, b);
                return;
        case GM_VALUE: value(out, n, b); return;
        case GM_STR: string(out, n, b); return;
        case GM_NUM: number(out, n, b); return;
        case GM_WORD: {
                const char *w = n.ptr;
                if (w[n.q] != (char)b || !b)
                        return;
                if (!w[++n.q])
                        gm_add(out, n.parent);
                else
                        gm_push(out, &n);
                return;
        }
        case GM_OBJ: object(out, n, b); return;
        case GM_KEY: key(out, n, b); return;
        case GM_ARR: array(out, n, b); return;
        case GM_NFA: return;
        }
}
