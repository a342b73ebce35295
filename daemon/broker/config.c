/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearth.conf. One table row per key says how it is parsed and where it goes;
 * the man page's option table follows the same rows.
 */
#include "daemon/broker/config.h"

#include <ctype.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"

enum kind { KIND_BACKEND, KIND_STRING, KIND_DIRS, KIND_LEVEL, KIND_BYTES, KIND_TIME, KIND_U32, KIND_BOOL };

struct row {
        const char *section, *key;
        enum kind kind;
        size_t offset;
        uint32_t min; /* of KIND_U32 */
};

#define AT(field) offsetof(struct config, field)
static const struct row rows[] = {
        { "daemon", "socket", KIND_STRING, AT(socket), 0 },
        { "daemon", "model_dir", KIND_DIRS, 0, 0 },
        { "daemon", "worker", KIND_STRING, AT(worker), 0 },
        { "daemon", "log_level", KIND_LEVEL, AT(log_level), 0 },
        { "daemon", "host_budget", KIND_BYTES, AT(host_budget), 0 },
        { "worker", "backend", KIND_BACKEND, AT(cuda), 0 },
        { "worker", "threads", KIND_U32, AT(threads), 0 },
        { "worker", "hang_timeout", KIND_TIME, AT(hang_timeout), 0 },
        { "limits", "stall_timeout", KIND_TIME, AT(stall_timeout), 0 },
        { "limits", "hello_timeout", KIND_TIME, AT(hello_timeout), 0 },
        { "limits", "connections", KIND_U32, AT(max_connections), 1 },
        { "limits", "connections_per_user", KIND_U32, AT(max_connections_per_uid), 1 },
        { "limits", "requests_per_user", KIND_U32, AT(max_requests_per_uid), 1 },
        { "limits", "bytes_per_user", KIND_BYTES, AT(max_bytes_per_uid), 0 },
        { "limits", "slots_per_user", KIND_U32, AT(max_slots_per_uid), 0 },
};
#undef AT

#define AT(field) offsetof(struct config_model, field)
static const struct row model_rows[] = {
        { "models", "context", KIND_U32, AT(context), 0 },
        { "models", "slots", KIND_U32, AT(slots), 1 },
        { "models", "idle_timeout", KIND_TIME, AT(idle_timeout), 0 },
        { "models", "pinned", KIND_BOOL, AT(pinned), 0 },
};
#undef AT

void config_init(struct config *c) {
        *c = (struct config){
                .log_level = LOG_LEVEL_INFO,
                .hang_timeout = 120 * 1000,
                .stall_timeout = 10 * 60 * 1000,
                .hello_timeout = 10 * 1000,
                .max_connections = 4096,
                .max_connections_per_uid = 1024,
                .max_requests_per_uid = 256,
                .max_bytes_per_uid = UINT64_C(256) << 20,
                .model = { .slots = 4, .idle_timeout = 30 * 60 * 1000 },
        };
}

void config_done(struct config *c) {
        free(c->file);
        free(c->socket);
        free(c->worker);
        for (size_t i = 0; i < c->n_model_dirs; i++)
                free(c->model_dirs[i]);
        for (size_t i = 0; i < c->n_models; i++)
                free(c->models[i].name);
        free(c->models);
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
        return parse_number(&s, &v) && apply_unit(s, v, names, factors, ELEMENTSOF(names), ret_ms);
}

int config_add_model_dir(struct config *c, const char *dir, struct h_error *err) {
        if (c->n_model_dirs == CONFIG_MAX_DIRS)
                return h_error_set(err, HEARTH_E_bad_request, "more than %d model directories", CONFIG_MAX_DIRS);
        if (dir[0] != '/') {
                char *full = realpath(dir, NULL); /* the daemon changes to / later */
                if (!full)
                        return h_error_set(err, HEARTH_E_bad_request, "model directory %s: %s", dir, strerror(errno));
                c->model_dirs[c->n_model_dirs++] = full;
                return 0;
        }
        c->model_dirs[c->n_model_dirs] = h_strdup(dir);
        if (!c->model_dirs[c->n_model_dirs])
                return -ENOMEM;
        c->n_model_dirs++;
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
        const char *path;
        struct h_error *err;
        int r;
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
                if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is cpu or cuda, not \"%s\"", row->key, value);
                *(bool *)p = strcmp(value, "cuda") == 0;
                return 0;
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
                return config_parse_time(value, (uint64_t *)p)
                               ? 0
                               : h_error_set(l->err, HEARTH_E_bad_request,
                                             "%s is a time like 250ms, 90s, 5min or never, not \"%s\"", row->key, value);
        case KIND_U32: {
                const char *s = value;
                if (!parse_number(&s, &v) || *s || v > INT32_MAX || v < row->min)
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is a number from %u to %d, not \"%s\"",
                                           row->key, row->min, INT32_MAX, value);
                *(uint32_t *)p = (uint32_t)v;
                return 0;
        }
        case KIND_BOOL:
                if (strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0)
                        *(bool *)p = true;
                else if (strcasecmp(value, "no") == 0 || strcasecmp(value, "false") == 0)
                        *(bool *)p = false;
                else
                        return h_error_set(l->err, HEARTH_E_bad_request, "%s is yes or no, not \"%s\"", row->key, value);
                return 0;
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

        if (l->r < 0)
                return 1; /* the parser goes on after an error; the first one counts */
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                if (strcmp(rows[i].section, section) == 0 && strcmp(rows[i].key, key) == 0) {
                        l->r = set(l, &rows[i], l->c, value);
                        return l->r == 0;
                }
        if (model || strcmp(section, "models") == 0)
                for (size_t i = 0; i < ELEMENTSOF(model_rows); i++)
                        if (strcmp(model_rows[i].key, key) == 0) {
                                struct config_model *m = model ? model_section(l->c, section + 6) : &l->c->model;
                                l->r = m ? set(l, &model_rows[i], m, value) : -ENOMEM;
                                return l->r == 0;
                        }
        l->r = h_error_set(l->err, HEARTH_E_bad_request, "[%s] has no key \"%s\"", section, key);
        return 0;
}

int config_load(struct config *c, const char *path, struct h_error *err) {
        struct loading l = { .c = c, .path = path, .err = err };
        int line;

        errno = 0;
        line = ini_parse(path, on_pair, &l);
        if (line == -1)
                return h_error_set(err, HEARTH_E_io, "%s: %s", path, errno ? strerror(errno) : "can't be read");
        if (line == -2 || l.r == -ENOMEM)
                return -ENOMEM;
        if (line > 0) {
                if (l.r == 0)
                        h_error_set(err, HEARTH_E_bad_request, "expected [section] or key = value");
                return h_error_prefix(err, "%s:%d", path, line);
        }
        free(c->file);
        c->file = h_strdup(path);
        return c->file ? 0 : -ENOMEM;
}
