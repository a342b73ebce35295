/* SPDX-License-Identifier: Apache-2.0 */
/* The card profile as text and back. */
#include "engine/profile.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define MAX_RATE 1e18 /* what no device reaches */
#define MAX_SECONDS 10.0

static int set_number(json_t *o, const char *name, double v) {
        return json_object_set_new(o, name, json_real(v));
}

static json_t *rate_json(const struct profile_rate *r) {
        return json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f}", "type", k_type_name(r->type), "role", r->prompt ? "prompt" : "generated",
                         "batch", (int)r->batch, "rows", (int)r->rows, "cols", (int)r->cols, "bytes_per_s", r->bytes_s, "flop_per_s", r->flop_s);
}

static json_t *choice_json(const struct profile_choice *c) {
        return json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:f, s:f}", "family", k_tune_family_name(c->key.family), "type",
                         k_type_name(c->key.type), "rows", (int)c->key.rows, "cols", (int)c->key.cols, "batch", (int)c->key.batch, "variant",
                         c->variant, "left_out", c->left_out, "plain_s", c->plain_s, "chosen_s", c->chosen_s);
}

int profile_write(const struct profile *p, struct buf *out) {
        const struct profile_key *k = &p->key;
        json_t *o = json_pack("{s:i, s:b, s:s, s:s, s:s, s:s, s:s}", "version", PROFILE_VERSION, "quick", (int)p->quick, "backend", k->backend, "card", k->card, "uuid", k->uuid,
                              "driver", k->driver, "build", k->build);
        json_t *cpu = json_array(), *rates = json_array(), *choices = json_array();
        char *text = NULL;
        int r = -ENOMEM;

        if (!o || !cpu || !rates || !choices) {
                json_decref(cpu);
                json_decref(rates);
                json_decref(choices);
                goto out;
        }
        for (uint32_t i = 0; i < p->n_cpu; i++)
                json_array_append_new(cpu, json_pack("{s:i, s:f}", "threads", (int)p->cpu[i].threads, "bytes_per_s", p->cpu[i].bytes_s));
        for (uint32_t i = 0; i < p->n_rate; i++)
                json_array_append_new(rates, rate_json(&p->rate[i]));
        for (uint32_t i = 0; i < p->n_choice; i++)
                json_array_append_new(choices, choice_json(&p->choice[i]));
        if (set_number(o, "memory_read_bytes_per_s", p->memory_read) < 0 || set_number(o, "upload_bytes_per_s", p->upload) < 0 ||
            set_number(o, "download_bytes_per_s", p->download) < 0 || set_number(o, "host_read_bytes_per_s", p->host_read) < 0 ||
            set_number(o, "launch_s", p->launch_s) < 0)
                goto lists;
        r = json_array_size(cpu) == p->n_cpu && json_array_size(rates) == p->n_rate && json_array_size(choices) == p->n_choice ? 0 : -ENOMEM;
lists:
        if (json_object_set_new(o, "host_memory_read", cpu) < 0) /* each is taken, also by a failure */
                r = -ENOMEM;
        if (json_object_set_new(o, "products", rates) < 0)
                r = -ENOMEM;
        if (json_object_set_new(o, "choices", choices) < 0)
                r = -ENOMEM;
        text = r == 0 ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
        r = text ? buf_puts(out, text) : -ENOMEM;
        if (r == 0)
                r = buf_putc(out, '\n');
out:
        free(text);
        json_decref(o);
        return r;
}

/* ---- reading ---- */

struct reader {
        const char *name, *within; /* the file; "" or which element */
        struct h_error *err;
};

static int wrong(const struct reader *rd, const char *key, const char *want) {
        return h_error_set(rd->err, HEARTH_E_bad_request, "card profile %s: %s\"%s\" must be %s; `hearth calibrate` writes it anew", rd->name,
                           rd->within, key, want);
}

static int get_text(const struct reader *rd, json_t *o, const char *key, char *out, size_t size) {
        json_t *v = json_object_get(o, key);
        const char *s = json_string_value(v);

        if (!s || strlen(s) != json_string_length(v) || strlen(s) >= size)
                return wrong(rd, key, "a text, not too long");
        for (const char *c = s; *c; c++)
                if ((unsigned char)*c < ' ' || *c == 0x7f)
                        return wrong(rd, key, "a text without control characters");
        memcpy(out, s, strlen(s) + 1);
        return 0;
}

static int get_real(const struct reader *rd, json_t *o, const char *key, double most, double *ret) {
        json_t *v = json_object_get(o, key);
        double d = json_number_value(v);

        if (!json_is_number(v) || !isfinite(d) || d < 0 || d > most)
                return wrong(rd, key, "a number that is neither negative nor beyond all devices");
        *ret = d;
        return 0;
}

static int get_u32(const struct reader *rd, json_t *o, const char *key, uint32_t *ret) {
        json_t *v = json_object_get(o, key);
        json_int_t i = json_integer_value(v);

        if (!json_is_integer(v) || i < 1 || i > 1 << 24)
                return wrong(rd, key, "a whole number from 1 to 2^24");
        *ret = (uint32_t)i;
        return 0;
}

static int get_list(const struct reader *rd, json_t *o, const char *key, size_t most, json_t **ret) {
        json_t *v = json_object_get(o, key);

        if (!json_is_array(v) || json_array_size(v) > most)
                return wrong(rd, key, "a list, not too long");
        *ret = v;
        return 0;
}

static int get_rate(const struct reader *rd, json_t *o, struct profile_rate *r) {
        char type[32], role[16];

        if (get_text(rd, o, "type", type, sizeof(type)) < 0 || get_text(rd, o, "role", role, sizeof(role)) < 0)
                return -EHEARTH;
        if (!k_type_parse(type, &r->type))
                return wrong(rd, "type", "a tensor type");
        if (strcmp(role, "prompt") != 0 && strcmp(role, "generated") != 0)
                return wrong(rd, "role", "\"prompt\" or \"generated\"");
        r->prompt = role[0] == 'p';
        if (get_u32(rd, o, "batch", &r->batch) < 0 || get_u32(rd, o, "rows", &r->rows) < 0 || get_u32(rd, o, "cols", &r->cols) < 0 ||
            get_real(rd, o, "bytes_per_s", MAX_RATE, &r->bytes_s) < 0 || get_real(rd, o, "flop_per_s", MAX_RATE, &r->flop_s) < 0)
                return -EHEARTH;
        return 0;
}

static int get_choice(const struct reader *rd, json_t *o, struct profile_choice *c) {
        char family[16], type[32];

        if (get_text(rd, o, "family", family, sizeof(family)) < 0 || get_text(rd, o, "type", type, sizeof(type)) < 0 ||
            get_text(rd, o, "variant", c->variant, sizeof(c->variant)) < 0 || get_text(rd, o, "left_out", c->left_out, sizeof(c->left_out)) < 0)
                return -EHEARTH;
        if (!k_tune_family_parse(family, &c->key.family))
                return wrong(rd, "family", "\"product\" or \"experts\"");
        if (!k_type_parse(type, &c->key.type))
                return wrong(rd, "type", "a tensor type");
        if (get_u32(rd, o, "rows", &c->key.rows) < 0 || get_u32(rd, o, "cols", &c->key.cols) < 0 || get_u32(rd, o, "batch", &c->key.batch) < 0 ||
            get_real(rd, o, "plain_s", MAX_SECONDS, &c->plain_s) < 0 || get_real(rd, o, "chosen_s", MAX_SECONDS, &c->chosen_s) < 0)
                return -EHEARTH;
        return k_tune_bucket(c->key.batch) == c->key.batch ? 0 : wrong(rd, "batch", "1, 4, 8, 16, 32 or 64");
}

static int get_choices(struct reader *rd, json_t *o, struct profile *p) {
        json_t *list = NULL, *e;
        size_t i;

        if (get_list(rd, o, "choices", PROFILE_MAX_CHOICES, &list) < 0)
                return -EHEARTH;
        rd->within = "in \"choices\" ";
        json_array_foreach(list, i, e) {
                if (get_choice(rd, e, &p->choice[i]) < 0)
                        return -EHEARTH;
                for (size_t j = 0; j < i; j++)
                        if (memcmp(&p->choice[i].key, &p->choice[j].key, sizeof(p->choice[i].key)) == 0)
                                return wrong(rd, "rows", "of another product than an entry before it");
                p->n_choice++;
        }
        return 0;
}

static int get_lists(struct reader *rd, json_t *o, struct profile *p) {
        json_t *cpu = NULL, *rates = NULL, *e;
        size_t i;

        if (get_list(rd, o, "host_memory_read", PROFILE_MAX_CPU, &cpu) < 0 || get_list(rd, o, "products", PROFILE_MAX_RATES, &rates) < 0)
                return -EHEARTH;
        rd->within = "in \"host_memory_read\" ";
        json_array_foreach(cpu, i, e) {
                if (get_u32(rd, e, "threads", &p->cpu[i].threads) < 0 || get_real(rd, e, "bytes_per_s", MAX_RATE, &p->cpu[i].bytes_s) < 0)
                        return -EHEARTH;
                p->n_cpu++;
        }
        rd->within = "in \"products\" ";
        json_array_foreach(rates, i, e) {
                if (get_rate(rd, e, &p->rate[i]) < 0)
                        return -EHEARTH;
                p->n_rate++;
        }
        rd->within = "";
        return get_choices(rd, o, p);
}

static int get_all(struct reader *rd, json_t *o, struct profile *p) {
        struct profile_key *k = &p->key;
        uint32_t version = 0;

        if (get_u32(rd, o, "version", &version) < 0)
                return -EHEARTH;
        if (version != PROFILE_VERSION)
                return h_error_counts(rd->err, HEARTH_E_version, PROFILE_VERSION, version,
                                      "card profile %s has version %u, this program reads %u; `hearth calibrate` writes it anew", rd->name, version,
                                      PROFILE_VERSION);
        if (get_text(rd, o, "backend", k->backend, sizeof(k->backend)) < 0 || get_text(rd, o, "card", k->card, sizeof(k->card)) < 0 ||
            get_text(rd, o, "uuid", k->uuid, sizeof(k->uuid)) < 0 || get_text(rd, o, "driver", k->driver, sizeof(k->driver)) < 0 ||
            get_text(rd, o, "build", k->build, sizeof(k->build)) < 0 ||
            get_real(rd, o, "memory_read_bytes_per_s", MAX_RATE, &p->memory_read) < 0 ||
            get_real(rd, o, "upload_bytes_per_s", MAX_RATE, &p->upload) < 0 ||
            get_real(rd, o, "download_bytes_per_s", MAX_RATE, &p->download) < 0 ||
            get_real(rd, o, "host_read_bytes_per_s", MAX_RATE, &p->host_read) < 0 || get_real(rd, o, "launch_s", MAX_SECONDS, &p->launch_s) < 0)
                return -EHEARTH;
        if (!json_is_boolean(json_object_get(o, "quick")))
                return wrong(rd, "quick", "true or false");
        p->quick = json_is_true(json_object_get(o, "quick"));
        return get_lists(rd, o, p);
}

int profile_parse(const void *text, size_t n, const char *name, struct profile *ret, struct h_error *err) {
        _cleanup_(freep) struct profile *p = h_new0(struct profile, 1);
        struct reader rd = { .name = name, .within = "", .err = err };
        json_error_t je;
        json_t *o;
        int r;

        if (!p)
                return h_error_from_errno(err, -ENOMEM, "reading the card profile");
        if (n > PROFILE_MAX_BYTES)
                return h_error_counts(err, HEARTH_E_too_large, n, PROFILE_MAX_BYTES, "card profile %s has %zu bytes, at most %u are read", name, n,
                                      PROFILE_MAX_BYTES);
        o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
        if (!o)
                return h_error_set(err, HEARTH_E_bad_request, "card profile %s: line %d: %.100s; `hearth calibrate` writes it anew", name, je.line, je.text);
        r = json_is_object(o) ? get_all(&rd, o, p) : h_error_set(err, HEARTH_E_bad_request, "card profile %s is no JSON object", name);
        json_decref(o);
        if (r == 0)
                *ret = *p;
        return r;
}

int profile_check(const struct profile *p, const struct profile_key *now, const char *name, struct h_error *err) {
        const struct { const char *what, *was, *is; } parts[] = {
                { "backend", p->key.backend, now->backend }, { "device", p->key.card, now->card }, { "device with UUID", p->key.uuid, now->uuid },
                { "driver", p->key.driver, now->driver }, { "build of hearth-worker", p->key.build, now->build },
        };

        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                if (strcmp(parts[i].was, parts[i].is) != 0)
                        return h_error_set(err, HEARTH_E_unsupported,
                                           "card profile %s is of another %s (\"%s\", now \"%s\") and is not used; `hearth calibrate` measures anew", name,
                                           parts[i].what, parts[i].was, parts[i].is);
        if (p->quick)
                return h_error_set(err, HEARTH_E_unsupported, "card profile %s was measured with --quick, which is too rough, and is not used; "
                                   "`hearth calibrate` measures anew", name);
        return 0;
}

const struct profile_rate *profile_find(const struct profile *p, enum k_type t, bool prompt, uint32_t batch) {
        for (uint32_t i = 0; i < p->n_rate; i++)
                if (p->rate[i].type == t && p->rate[i].prompt == prompt && p->rate[i].batch == batch)
                        return &p->rate[i];
        return NULL;
}
