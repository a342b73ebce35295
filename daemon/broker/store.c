/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description is text, one line for each thing, and checked like any input:
 * whoever may write to the service manager could have put it there. A copy
 * itself is checked again by the worker that maps it.
 */
#include "daemon/broker/store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <systemd/sd-daemon.h>

#include "base/alloc.h"
#include "base/seal.h"
#include "base/utf8.h"
#include "daemon/broker/server.h"

#define STATE_NAME STORE_PREFIX "state"
#define VERSION_LINE "hearth-state 1\n"
#define MAX_STATE (4u << 20)
#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void hex_of(const uint8_t hash[32], char out[65]) {
        for (size_t i = 0; i < 32; i++)
                snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

static bool hex_parse(const char *s, uint8_t out[32]) {
        for (size_t i = 0; i < 32; i++) {
                unsigned v;
                if (sscanf(s + 2 * i, "%2x", &v) != 1)
                        return false;
                out[i] = (uint8_t)v;
        }
        return true;
}

/* FDNAME takes at most 255 characters and no colon. */
static void name_of(const uint8_t hash[32], char out[80]) {
        strcpy(out, STORE_PREFIX "copy-");
        hex_of(hash, out + strlen(out));
}

void store_put(struct server *s, const struct content *c) {
        char name[80], text[160];

        if (!s->config.fd_store)
                return;
        name_of(c->hash, name);
        /* FDPOLL=0: a memory file never hangs up. */
        snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
        (void)sd_pid_notify_with_fds(0, 0, text, &c->memfd, 1);
        store_describe(s);
}

void store_remove(struct server *s, const struct content *c) {
        char name[80];

        if (!s->config.fd_store || s->stopping)
                return; /* a stop leaves everything in the store: a start may follow */
        name_of(c->hash, name);
        (void)sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
        store_describe(s);
}

/* ---- what is stored ---- */

static int describe(struct cache *c, const char *default_model, struct buf *b) {
        char hex[65];
        int r = buf_puts(b, VERSION_LINE);

        list_foreach(co, &c->contents, struct content, link) {
                hex_of(co->hash, hex);
                if (r == 0)
                        r = buf_printf(b, "content %s %" PRIu64 " %" PRIu64 " %u %d %d %s\t%s\t%s\n", hex, co->bytes, co->n_params,
                                       co->n_ctx_train, co->can_embed, co->can_chat, co->arch, co->type, co->title);
        }
        list_foreach(co, &c->contents, struct content, link) {
                hex_of(co->hash, hex);
                if (r == 0 && co->use.known)
                        r = buf_printf(b, "use %s %u %u %s %d %u %s\n", hex, co->use.n_ctx, co->use.slots, co->use.kv[0] ? co->use.kv : "-",
                                       co->use.pinned, co->use.pinned_by, co->use.name);
                if (r == 0 && co->use.known && (co->use.gpu_layers != UINT32_MAX || co->use.vram_budget))
                        r = buf_printf(b, "place %s %u %" PRIu64 "\n", hex, co->use.gpu_layers, co->use.vram_budget);
        }
        if (r == 0 && default_model && !strchr(default_model, '\n'))
                r = buf_printf(b, "default %s\n", default_model);
        return r < 0 ? r : cache_describe(c, b);
}

void store_describe(struct server *s) {
        _cleanup_(fd_closep) int fd = -1;
        _cleanup_(buf_free) struct buf b = {};

        if (!s->config.fd_store)
                return;
        fd = memfd_create("hearth:state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || describe(&s->cache, s->default_model, &b) < 0 || write(fd, b.data, b.len) != (ssize_t)b.len || memfd_seal(fd, SEALS) < 0) {
                log_warning(&s->log, "what the model cache holds can't be noted for the next start");
                return;
        }
        (void)sd_notify(0, "FDSTOREREMOVE=1\nFDNAME=" STATE_NAME);
        (void)sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=" STATE_NAME "\nFDPOLL=0", &fd, 1);
}

/* ---- coming back ---- */

static bool sealed(int fd, uint64_t *ret_size) {
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);

        if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0 || st.st_size <= 0)
                return false;
        *ret_size = (uint64_t)st.st_size;
        return true;
}

static bool copy_field(char *dst, size_t size, const char *p, size_t n) {
        if (n >= size || !utf8_valid(p, n, NULL))
                return false;
        memcpy(dst, p, n);
        dst[n] = 0;
        return true;
}

static bool parse_content(const char *line, struct content *c) {
        const char *arch, *type, *title;
        int embed, chat, used = 0;
        char hex[65];

        if (sscanf(line, "content %64s %" SCNu64 " %" SCNu64 " %u %d %d %n", hex, &c->bytes, &c->n_params, &c->n_ctx_train, &embed, &chat,
                   &used) != 6 || !used || strlen(hex) != 64 || !hex_parse(hex, c->hash))
                return false;
        c->can_embed = embed != 0;
        c->can_chat = chat != 0;
        arch = line + used;
        type = strchr(arch, '\t');
        title = type ? strchr(type + 1, '\t') : NULL;
        return title && copy_field(c->arch, sizeof(c->arch), arch, (size_t)(type - arch)) &&
               copy_field(c->type, sizeof(c->type), type + 1, (size_t)(title - type - 1)) &&
               copy_field(c->title, sizeof(c->title), title + 1, strlen(title + 1));
}

static bool restore_content(struct server *s, const char *line, int *fds, char *const *names, size_t n) {
        struct content c = { .memfd = -1 };
        struct h_error err = {};
        uint64_t size;
        char name[80];

        if (!parse_content(line, &c))
                return false;
        name_of(c.hash, name);
        for (size_t i = 0; i < n; i++) {
                if (fds[i] < 0 || strcmp(names[i], name) != 0)
                        continue;
                if (!sealed(fds[i], &size) || size != c.bytes) {
                        log_warning(&s->log, "a stored copy of %s is not sealed or has another size; it is given up", c.title);
                        return true;
                }
                if (ledger_reserve(&s->ledger, &c.held, size, c.title[0] ? c.title : c.arch, &err) < 0) {
                        log_warning(&s->log, "a stored copy is given up: %s", err.message);
                        return true;
                }
                c.memfd = fds[i];
                if (cache_restore(&s->cache, &c))
                        fds[i] = -1;
                log_info(&s->log, "%s is still in memory (%" PRIu64 " bytes)", c.title[0] ? c.title : c.arch, size);
                return true;
        }
        return true;
}

static bool restore_use(struct server *s, const char *line) {
        struct content_use u = { .known = true, .gpu_layers = UINT32_MAX };
        struct content *c;
        uint8_t hash[32];
        char hex[65];
        int pinned, used = 0;

        if (sscanf(line, "use %64s %u %u %16s %d %u%n", hex, &u.n_ctx, &u.slots, u.kv, &pinned, &u.pinned_by, &used) != 6 || !used ||
            strlen(hex) != 64 || !hex_parse(hex, hash) || u.slots == 0 || u.slots > 1024 || line[used] != ' ' ||
            !copy_field(u.name, sizeof(u.name), line + used + 1, strlen(line + used + 1)))
                return false;
        if (strcmp(u.kv, "-") == 0)
                u.kv[0] = 0;
        u.pinned = pinned != 0;
        c = cache_by_hash(&s->cache, hash);
        if (c)
                c->use = u;
        return true;
}

/* After its "use": what of it was in device memory. */
static bool restore_place(struct server *s, const char *line) {
        uint32_t gpu_layers;
        uint64_t budget;
        uint8_t hash[32];
        struct content *c;
        char hex[65];
        int used = 0;

        if (sscanf(line, "place %64s %u %" SCNu64 "%n", hex, &gpu_layers, &budget, &used) != 3 || !used || line[used] || strlen(hex) != 64 ||
            !hex_parse(hex, hash))
                return false;
        c = cache_by_hash(&s->cache, hash);
        if (c && c->use.known) {
                c->use.gpu_layers = gpu_layers;
                c->use.vram_budget = budget;
        }
        return true;
}

static bool restore_default(struct server *s, const char *line) {
        line += strlen("default ");
        if (!*line || !utf8_valid(line, strlen(line), NULL))
                return false;
        free(s->default_model);
        s->default_model = h_strdup(line);
        return true;
}

static bool restore_line(struct server *s, const char *line, int *fds, char *const *names, size_t n) {
        if (strncmp(line, "content ", 8) == 0)
                return restore_content(s, line, fds, names, n);
        if (strncmp(line, "use ", 4) == 0)
                return restore_use(s, line);
        if (strncmp(line, "place ", 6) == 0)
                return restore_place(s, line);
        if (strncmp(line, "default ", 8) == 0)
                return restore_default(s, line);
        return cache_parse_identity(&s->cache, line);
}

static void restore_all(struct server *s, char *text, int *fds, char *const *names, size_t n) {
        char *save = NULL, *line = strtok_r(text, "\n", &save);
        bool ok = line && strcmp(line, "hearth-state 1") == 0;

        if (!ok) {
                log_warning(&s->log, "the stored model cache is of another version (\"%.40s\"); models are read again", line ? line : "");
                return;
        }
        while ((line = strtok_r(NULL, "\n", &save)))
                if (!restore_line(s, line, fds, names, n))
                        log_warning(&s->log, "a line of the stored model cache's description is not understood; it is left out");
}

void store_restore(struct server *s, const int *given, char *const *names, size_t n) {
        _cleanup_(freep) int *fds = h_memdup(given, n * sizeof(*given));
        char name[80];

        for (size_t i = 0; fds && i < n; i++) {
                _cleanup_(freep) char *text = NULL;
                uint64_t size;

                if (strcmp(names[i], STATE_NAME) != 0 || !sealed(fds[i], &size) || size > MAX_STATE)
                        continue;
                text = h_malloc(size + 1);
                if (!text || pread(fds[i], text, size, 0) != (ssize_t)size)
                        continue;
                text[size] = 0;
                restore_all(s, text, fds, names, n);
                break;
        }
        for (size_t i = 0; i < n; i++) {
                int fd = fds ? fds[i] : given[i];
                if (fd < 0)
                        continue;
                if (strcmp(names[i], STATE_NAME) != 0) { /* not taken: nobody else should keep its memory */
                        snprintf(name, sizeof(name), "%.79s", names[i]);
                        (void)sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
                }
                close(fd);
        }
}
