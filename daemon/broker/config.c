/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearth.conf. One table row per key says how it is parsed and where it goes;
 * the man page's option table follows the same rows.
 */
#include "daemon/broker/config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "daemon/broker/config_text.h"

enum kind { KIND_BACKEND, KIND_SANDBOX, KIND_STRING, KIND_DIRS, KIND_LEVEL, KIND_BYTES, KIND_TIME, KIND_U32, KIND_BOOL, KIND_WHO, KIND_REST };
/* When a changed value takes effect: on a reload, for models loaded from then on, or when the daemon starts anew. */
enum when { WHEN_RELOAD, WHEN_LOAD, WHEN_RESTART };

static const char *const backends[] = { [BACKEND_AUTO] = "auto", [BACKEND_CPU] = "cpu", [BACKEND_CUDA] = "cuda" };

const char *const config_rests[] = { "auto", "host", "device", NULL };

struct row {
        const char *section, *key;
        enum kind kind;
        size_t offset;
        uint32_t min, max; /* of KIND_U32; min also of KIND_TIME, in ms */
        enum when when;
};

static const struct row rows[] = {
#define CONF(section, key, kind, place, min, max, when, deflt, doc) \
        { #section, #key, KIND_##kind, offsetof(struct config, place), min, max, WHEN_##when },
#define CONF_MODEL(key, kind, place, min, max, when, deflt, doc)
#include "daemon/broker/config.def"
#undef CONF
#undef CONF_MODEL
};

static const struct row model_rows[] = {
#define CONF(section, key, kind, place, min, max, when, deflt, doc)
#define CONF_MODEL(key, kind, place, min, max, when, deflt, doc) \
        { "models", #key, KIND_##kind, offsetof(struct config_model, place), min, max, WHEN_##when },
#include "daemon/broker/config.def"
#undef CONF
#undef CONF_MODEL
};

size_t config_docs(const struct config_doc **ret) {
        static const struct config_doc docs[] = {
#define CONF(section, key, kind, place, min, max, when, deflt, doc) { #section, #key, #kind, deflt, doc, min, max, WHEN_##when == WHEN_RELOAD },
#define CONF_MODEL(key, kind, place, min, max, when, deflt, doc) { "models", #key, #kind, deflt, doc, min, max, WHEN_##when == WHEN_RELOAD },
#include "daemon/broker/config.def"
#undef CONF
#undef CONF_MODEL
        };

        *ret = docs;
        return ELEMENTSOF(docs);
}

int config_init(struct config *c) {
        *c = (struct config){
                .log_level = LOG_LEVEL_INFO,
                .hang_timeout = 120 * 1000,
                .quarantine = 10 * 60 * 1000,
                .stall_timeout = 10 * 60 * 1000,
                .yield_timeout = 5 * 1000,
                .hello_timeout = 10 * 1000,
                .frame_timeout = 10 * 1000,
                .max_connections = 4096,
                .max_connections_per_uid = 1024,
                .max_requests_per_uid = 256,
                .max_files_per_uid = 512,
                .max_bytes_per_uid = UINT64_C(256) << 20,
                .access = { [ACCESS_USE] = { .everybody = true }, [ACCESS_LOAD] = { .everybody = true } },
                .model = { .slots = 4, .idle_timeout = 30 * 60 * 1000, .gpu_layers = UINT32_MAX },
        };
        c->dirs = h_new0(struct model_dirs, 1);
        if (!c->dirs)
                return -ENOMEM;
        c->dirs->refs = 1;
        return 0;
}

struct model_dirs *model_dirs_unref(struct model_dirs *d) {
        if (d && --d->refs == 0) {
                for (size_t i = 0; i < d->n; i++)
                        free(d->v[i]);
                free(d);
        }
        return NULL;
}

static void free_models(struct config_model *v, size_t n) {
        for (size_t i = 0; i < n; i++)
                free(v[i].name);
        free(v);
}

void config_done(struct config *c) {
        free(c->file);
        free(c->socket);
        free(c->worker);
        free(c->profile_dir);
        model_dirs_unref(c->dirs);
        for (int i = 0; i < _ACCESS_MAX; i++)
                access_rule_done(&c->access[i]);
        free_models(c->models, c->n_models);
        *c = (struct config){};
}

static bool parse_number(const char **s, uint64_t *ret) {
        uint64_t v = 0;

        while (isspace((unsigned char)**s))
                (*s)++;
        if (!isdigit((unsigned char)**s))
                return false;
        for (; isdigit((unsigned char)**s); (*s)++)
                if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**s - '0'), &v))
                        return false;
        while (isspace((unsigned char)**s))
                (*s)++;
        *ret = v;
        return true;
}

static bool apply_unit(const char *s, uint64_t v, const char *const *names, const uint64_t *factors, size_t n,
                       uint64_t *ret) {
        for (size_t i = 0; i < n; i++)
                if (strcasecmp(s, names[i]) == 0)
                        return !__builtin_mul_overflow(v, factors[i], ret);
        return false;
}

bool config_parse_bytes(const char *s, uint64_t *ret) {
        static const char *const names[] = { "", "B", "K", "KiB", "M", "MiB", "G", "GiB", "T", "TiB", "kB", "MB", "GB" };
        static const uint64_t factors[] = { 1, 1, 1 << 10, 1 << 10, 1 << 20, 1 << 20, 1 << 30, 1 << 30,
                                            UINT64_C(1) << 40, UINT64_C(1) << 40, 1000, 1000000, 1000000000 };
        uint64_t v;

        return parse_number(&s, &v) && apply_unit(s, v, names, factors, ELEMENTSOF(names), ret);
}

bool config_parse_time(const char *s, uint64_t *ret_ms) {
        static const char *const names[] = { "ms", "s", "sec", "min", "m", "h" };
        static const uint64_t factors[] = { 1, 1000, 1000, 60000, 60000, 3600000 };
        uint64_t v;

        if (strcasecmp(s, "never") == 0) {
                *ret_ms = 0;
                return true;
        }
        /* 0 would be read as never, and is as likely to mean at once. */
        return parse_number(&s, &v) && v && apply_unit(s, v, names, factors, ELEMENTSOF(names), ret_ms);
}

int config_add_model_dir(struct config *c, const char *dir, struct h_error *err) {
        char *full;

        if (c->dirs->n == CONFIG_MAX_DIRS)
                return h_error_set(err, HEARTH_E_bad_request, "more than %d model directories", CONFIG_MAX_DIRS);
        if (dir[0] != '/') {
                full = realpath(dir, NULL);
                if (!full)
                        return h_error_set(err, HEARTH_E_bad_request, "model directory %s: %s", dir, strerror(errno));
        } else {
                full = h_strdup(dir);
                if (!full)
                        return -ENOMEM;
        }
        c->dirs->v[c->dirs->n++] = full;
        return 0;
}

const struct config_model *config_model_of(const struct config *c, const char *name) {
        for (size_t i = 0; i < c->n_models; i++)
                if (strcmp(c->models[i].name, name) == 0)
                        return &c->models[i];
        return &c->model;
}

struct loading {
        struct config *c;
        struct h_error *err;
};

static int set(struct loading *l, const struct row *row, void *base, const char *value) {
        void *p = (char *)base + row->offset;
        uint64_t v;

        switch (row->kind) {
        case KIND_STRING: {
                char *s = h_strdup(value);
                if (!s)
                        return -ENOMEM;
                free(*(char **)p);
                *(char **)p = s;
                return 0;
        }
        case KIND_BACKEND:
                for (size_t i = 0; i < ELEMENTSOF(backends); i++)
                        if (strcmp(value, backends[i]) == 0) {
                                *(enum config_backend *)p = (enum config_backend)i;
                                return 0;
                        }
                return h_error_set(l->err, HEARTH_E_bad_request, "%s is auto, cpu or cuda, not \"%s\"", row->key, value);
        case KIND_SANDBOX:
                return sandbox_wish_parse(value, (enum sandbox_wish *)p)
                               ? 0
                               : h_error_set(l->err, HEARTH_E_bad_request, "%s is auto, required or off, not \"%s\"", row->key, value);
        case KIND_DIRS:
                return config_add_model_dir(l->c, value, l->err);
        case KIND_LEVEL:
                return log_level_parse(value, (enum log_level *)p)
                               ? 0
                               : h_error_set(l->err, HEARTH_E_bad_request,
                                             "%s is one of error, warning, info, debug, not \"%s\"", row->key, value);
        case KIND_BYTES:
                return config_parse_bytes(value, (uint64_t *)p)
                               ? 0
                               : h_error_set(l->err, HEARTH_E_bad_request,
                                             "%s is a size like 512M or 3GiB, not \"%s\"", row->key, value);
        case KIND_TIME:
                if (!config_parse_time(value, &v))
                        return h_error_set(l->err, HEARTH_E_bad_request,
                                           "%s is a time like 250ms, 90s, 5min or never, not \"%s\"", row->key, value);
                if (v && v < row->min)
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is at least %ums, or never, not \"%s\"", row->key, row->min, value);
                *(uint64_t *)p = v;
                return 0;
        case KIND_U32: {
                const char *s = value;
                if (!parse_number(&s, &v) || *s || v > row->max || v < row->min)
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is a number from %u to %u, not \"%s\"",
                                           row->key, row->min, row->max, value);
                *(uint32_t *)p = (uint32_t)v;
                return 0;
        }
        case KIND_REST:
                for (uint32_t i = 0; config_rests[i]; i++)
                        if (strcmp(value, config_rests[i]) == 0) {
                                *(uint32_t *)p = i;
                                return 0;
                        }
                return h_error_set(l->err, HEARTH_E_bad_request, "%s is auto, host or device, not \"%s\"", row->key, value);
        case KIND_BOOL:
                if (strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0)
                        *(bool *)p = true;
                else if (strcasecmp(value, "no") == 0 || strcasecmp(value, "false") == 0)
                        *(bool *)p = false;
                else
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is yes or no, not \"%s\"", row->key, value);
                return 0;
        case KIND_WHO: {
                int r = access_parse(value, p, l->err);
                return r == -EHEARTH ? h_error_prefix(l->err, "%s", row->key) : r;
        }
        }
        return -EINVAL;
}

/* The [model NAME] section, created on first use with the defaults as they are then: [models] comes first in a file. */
static struct config_model *model_section(struct config *c, const char *name) {
        struct config_model *m;

        for (size_t i = 0; i < c->n_models; i++)
                if (strcmp(c->models[i].name, name) == 0)
                        return &c->models[i];
        m = h_realloc(c->models, (c->n_models + 1) * sizeof(*m));
        if (!m)
                return NULL;
        c->models = m;
        m += c->n_models;
        *m = c->model;
        m->name = h_strdup(name);
        if (!m->name)
                return NULL;
        c->n_models++;
        return m;
}

static int on_pair(void *ud, const char *section, const char *key, const char *value) {
        struct loading *l = ud;
        bool model = strncmp(section, "model ", 6) == 0;

        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                if (strcmp(rows[i].section, section) == 0 && strcmp(rows[i].key, key) == 0)
                        return set(l, &rows[i], l->c, value);
        if (model || strcmp(section, "models") == 0)
                for (size_t i = 0; i < ELEMENTSOF(model_rows); i++)
                        if (strcmp(model_rows[i].key, key) == 0) {
                                struct config_model *m = model ? model_section(l->c, section + 6) : &l->c->model;
                                return m ? set(l, &model_rows[i], m, value) : -ENOMEM;
                        }
        return h_error_set(l->err, HEARTH_E_bad_request, "[%s] has no key \"%s\"", section, key);
}

int config_load(struct config *c, const char *path, struct h_error *err) {
        struct loading l = { .c = c, .err = err };
        _cleanup_(freep) char *text = NULL;
        size_t n;
        int r = config_text_read(path, &text, &n, err);

        if (r == 0)
                r = config_text_parse(path, text, n, on_pair, &l, err);
        if (r < 0)
                return r;
        free(c->file);
        c->file = h_strdup(path);
        return c->file ? 0 : -ENOMEM;
}

/* ---- a changed file ---- */

/* A value for people. */
static void show(const struct row *row, const void *base, char *ret, size_t n) {
        const void *p = (const char *)base + row->offset;

        switch (row->kind) {
        case KIND_STRING:
                snprintf(ret, n, "%s", *(char *const *)p ? *(char *const *)p : "");
                break;
        case KIND_BACKEND:
                snprintf(ret, n, "%s", backends[*(const enum config_backend *)p]);
                break;
        case KIND_SANDBOX:
                snprintf(ret, n, "%s", sandbox_wish_name(*(const enum sandbox_wish *)p));
                break;
        case KIND_DIRS: {
                const struct model_dirs *d = ((const struct config *)base)->dirs;
                size_t at = 0;
                ret[0] = 0;
                for (size_t i = 0; i < d->n && at < n; i++)
                        at += (size_t)snprintf(ret + at, n - at, "%s%s", i ? " " : "", d->v[i]);
                break;
        }
        case KIND_LEVEL:
                snprintf(ret, n, "%s", log_level_name(*(const enum log_level *)p));
                break;
        case KIND_BYTES:
                snprintf(ret, n, "%llu", (unsigned long long)*(const uint64_t *)p);
                break;
        case KIND_TIME:
                if (*(const uint64_t *)p)
                        snprintf(ret, n, "%llums", (unsigned long long)*(const uint64_t *)p);
                else
                        snprintf(ret, n, "never");
                break;
        case KIND_U32:
                snprintf(ret, n, "%u", *(const uint32_t *)p);
                break;
        case KIND_REST:
                snprintf(ret, n, "%s", config_rests[*(const uint32_t *)p]);
                break;
        case KIND_BOOL:
                snprintf(ret, n, "%s", *(const bool *)p ? "yes" : "no");
                break;
        case KIND_WHO: {
                const struct access_rule *r = p;
                snprintf(ret, n, "%s", r->text ? r->text : r->everybody ? "*" : "");
                break;
        }
        }
}

/* What the row says moves from one to the other; the old value goes the other way and is freed with it. */
static void swap(const struct row *row, void *a, void *b) {
        char keep[sizeof(struct access_rule)];
        size_t n = 0;

        switch (row->kind) {
        case KIND_STRING: n = sizeof(char *); break;
        case KIND_DIRS: n = sizeof(struct model_dirs *); break;
        case KIND_LEVEL: n = sizeof(enum log_level); break;
        case KIND_BYTES: case KIND_TIME: n = sizeof(uint64_t); break;
        case KIND_U32: case KIND_REST: n = sizeof(uint32_t); break;
        case KIND_BACKEND: n = sizeof(enum config_backend); break;
        case KIND_BOOL: n = sizeof(bool); break;
        case KIND_SANDBOX: n = sizeof(enum sandbox_wish); break;
        case KIND_WHO: n = sizeof(struct access_rule); break;
        }
        memcpy(keep, (char *)a + row->offset, n);
        memcpy((char *)a + row->offset, (char *)b + row->offset, n);
        memcpy((char *)b + row->offset, keep, n);
}

static void swap_models(struct config *a, struct config *b) {
        struct config_model model = a->model, *models = a->models;
        size_t n = a->n_models;

        a->model = b->model;
        a->models = b->models;
        a->n_models = b->n_models;
        b->model = model;
        b->models = models;
        b->n_models = n;
}

void config_apply(struct config *c, struct config *fresh,
                  void (*changed)(void *ud, const char *section, const char *key, const char *was, const char *is, const char *effect), void *ud) {
        static const char *const effects[] = { [WHEN_RELOAD] = "in effect now", [WHEN_LOAD] = "for models loaded from now on",
                                               [WHEN_RESTART] = "after a restart only" };
        char was[512], is[512], section[128];

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                show(&rows[i], c, was, sizeof(was));
                show(&rows[i], fresh, is, sizeof(is));
                if (strcmp(was, is) != 0)
                        changed(ud, rows[i].section, rows[i].key, was, is, effects[rows[i].when]);
                /* Also if it reads the same: a group may have got another number. */
                if (rows[i].when != WHEN_RESTART)
                        swap(&rows[i], c, fresh);
        }
        for (size_t i = 0; i < ELEMENTSOF(model_rows); i++) {
                const struct row *row = &model_rows[i];

                show(row, &c->model, was, sizeof(was));
                show(row, &fresh->model, is, sizeof(is));
                if (strcmp(was, is) != 0)
                        changed(ud, "models", row->key, was, is, effects[row->when]);
                /* Sections that are there now, then those that are gone. */
                for (size_t k = 0; k < fresh->n_models + c->n_models; k++) {
                        const char *name = k < fresh->n_models ? fresh->models[k].name : c->models[k - fresh->n_models].name;

                        if (k >= fresh->n_models && config_model_of(fresh, name) != &fresh->model)
                                continue;
                        show(row, config_model_of(c, name), was, sizeof(was));
                        show(row, config_model_of(fresh, name), is, sizeof(is));
                        snprintf(section, sizeof(section), "model %.100s", name);
                        if (strcmp(was, is) != 0)
                                changed(ud, section, row->key, was, is, effects[row->when]);
                }
        }
        swap_models(c, fresh);
        if (fresh->file) {
                char *file = c->file;
                c->file = fresh->file;
                fresh->file = file;
        }
}
