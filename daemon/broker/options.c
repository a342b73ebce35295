/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/broker/options.h"

#include <getopt.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "daemon/broker/version.h"

#ifndef WORKER_PATH
#define WORKER_PATH "/usr/lib/hearth/hearth-worker"
#endif

enum { EXIT_USAGE = 64 };

enum option_id {
#define OPTION(name, arg, doc) OPT_##name,
#include "daemon/broker/options.def"
#undef OPTION
        _OPT_MAX,
};

static const struct option_doc docs[_OPT_MAX] = {
#define OPTION(name, arg, doc) { #name, arg, doc },
#include "daemon/broker/options.def"
#undef OPTION
};

size_t options_docs(const struct option_doc **ret) {
        *ret = docs;
        return ELEMENTSOF(docs);
}

static void spelt(const char *name, char ret[32]) {
        snprintf(ret, 32, "%s", name);
        for (char *p = ret; *p; p++)
                if (*p == '_')
                        *p = '-';
}

static void usage(FILE *f) {
        char name[32], left[64];

        fputs("Usage: hearthd [--user | --system] [OPTION...]\n"
              "\n"
              "Keeps language models resident and serves local programs over a Unix socket.\n"
              "\n", f);
        for (size_t i = 0; i < ELEMENTSOF(docs); i++) {
                spelt(docs[i].name, name);
                snprintf(left, sizeof(left), "--%s%s%s", name, docs[i].arg ? " " : "", docs[i].arg ? docs[i].arg : "");
                fprintf(f, "  %-18s %s\n", left, docs[i].doc);
        }
        fputs("\n"
              "The default socket of --user is $XDG_RUNTIME_DIR/hearth/hearth.sock, of --system\n"
              "/run/hearth/hearth.sock. SIGHUP reads the configuration again. See hearthd(8), hearth.conf(5).\n", f);
}

static int bad(const char *what) {
        fprintf(stderr, "hearthd: %s\n", what);
        return EXIT_USAGE + 1;
}

static int set_option(struct options *o, int id, const char *arg) {
        switch ((enum option_id)id) {
        case OPT_user: o->user = true; break;
        case OPT_system: o->system = true; break;
        case OPT_check_config: o->check = true; break;
        case OPT_socket: o->socket = arg; break;
        case OPT_worker: o->worker = arg; break;
        case OPT_log_level: o->log_level = arg; break;
        case OPT_config:
                free(o->config);
                o->config = realpath(arg, NULL); /* what it means must not depend on where we are at a reload */
                if (!o->config)
                        o->config = h_strdup(arg);
                if (!o->config)
                        return bad("out of memory");
                break;
        case OPT_model_dir:
                if (o->n_dirs == CONFIG_MAX_DIRS) {
                        fprintf(stderr, "hearthd: more than %d model directories\n", CONFIG_MAX_DIRS);
                        return EXIT_USAGE + 1;
                }
                o->dirs[o->n_dirs++] = arg;
                break;
        case OPT_help: usage(stdout); return 0 + 1;
        case OPT_version: puts("hearthd " DAEMON_VERSION); return 0 + 1;
        case _OPT_MAX: break;
        }
        return 0;
}

int options_parse(struct options *o, int argc, char **argv) {
        struct option table[_OPT_MAX + 1] = {};
        char names[_OPT_MAX][32];
        int c, r;

        for (size_t i = 0; i < ELEMENTSOF(docs); i++) {
                spelt(docs[i].name, names[i]);
                table[i] = (struct option){ names[i], docs[i].arg ? required_argument : no_argument, NULL, 256 + (int)i };
        }
        while ((c = getopt_long(argc, argv, "", table, NULL)) >= 0) {
                r = c >= 256 ? set_option(o, c - 256, optarg) : bad("see hearthd --help");
                if (r)
                        return r;
        }
        if (optind < argc) {
                fprintf(stderr, "hearthd: unexpected argument \"%s\"; see hearthd --help\n", argv[optind]);
                return EXIT_USAGE + 1;
        }
        return o->user && o->system ? bad("--user and --system exclude each other") : 0;
}

void options_done(struct options *o) {
        free(o->config);
        *o = (struct options){};
}

/* ---- the configuration ---- */

static int set_string(char **p, const char *v) {
        char *copy = h_strdup(v);
        if (!copy)
                return -ENOMEM;
        free(*p);
        *p = copy;
        return 0;
}

/* A path built of the environment's; NULL if its variable is unset. */
static char *join(const char *dir, const char *rest) {
        char *p;
        return dir && dir[0] == '/' && asprintf(&p, "%s%s", dir, rest) >= 0 ? p : NULL;
}

/* Beside this program (a build tree, or a private installation), else where it is installed. */
static int find_worker(struct config *c) {
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        _cleanup_(freep) char *beside = NULL;
        char *slash;

        if (c->worker)
                return 0;
        if (n > 0) {
                self[n] = 0;
                slash = strrchr(self, '/');
                if (slash) {
                        *slash = 0;
                        beside = join(self, "/hearth-worker");
                        if (beside && access(beside, X_OK) == 0)
                                return set_string(&c->worker, beside);
                }
        }
        return set_string(&c->worker, WORKER_PATH);
}

/* Only what is certainly not there means the defaults: they let everybody in. */
static int load_if_there(struct config *c, const char *path, struct h_error *err) {
        struct stat st;

        if (lstat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
                return 0;
        return config_load(c, path, err);
}

static int load_file(const struct options *o, struct config *c, struct h_error *err) {
        _cleanup_(freep) char *own = NULL;

        if (o->config)
                return config_load(c, o->config, err);
        if (!c->user_mode)
                return load_if_there(c, "/etc/hearth/hearth.conf", err);
        own = join(o->xdg_config_home, "/hearth/hearth.conf");
        if (!own)
                own = join(o->home, "/.config/hearth/hearth.conf");
        return own ? load_if_there(c, own, err) : 0;
}

static int default_dir(const struct options *o, struct config *c, struct h_error *err) {
        _cleanup_(freep) char *data = NULL;

        if (!c->user_mode)
                return config_add_model_dir(c, "/var/lib/hearth/models", err);
        data = join(o->xdg_data_home, "/hearth/models");
        if (!data)
                data = join(o->home, "/.local/share/hearth/models");
        return data ? config_add_model_dir(c, data, err) : 0;
}

static int default_profile_dir(const struct options *o, struct config *c) {
        _cleanup_(freep) char *dir = NULL;

        if (c->profile_dir)
                return 0;
        if (!c->user_mode)
                return set_string(&c->profile_dir, "/var/lib/hearth");
        dir = join(o->xdg_state_home, "/hearth");
        if (!dir)
                dir = join(o->home, "/.local/state/hearth");
        return dir ? set_string(&c->profile_dir, dir) : 0;
}

int options_load(const struct options *o, struct config *c, struct h_error *err) {
        int r = config_init(c);

        if (r < 0)
                return r;
        c->user_mode = o->user || (!o->system && geteuid() != 0);
        r = load_file(o, c, err);
        for (size_t i = 0; i < o->n_dirs && r == 0; i++)
                r = config_add_model_dir(c, o->dirs[i], err);
        if (r == 0 && c->dirs->n == 0)
                r = default_dir(o, c, err);
        if (r == 0 && o->socket)
                r = set_string(&c->socket, o->socket);
        if (r == 0 && o->worker)
                r = set_string(&c->worker, o->worker);
        if (r == 0 && o->log_level && !log_level_parse(o->log_level, &c->log_level))
                r = h_error_set(err, HEARTH_E_bad_request, "--log-level is one of error, warning, info, debug, not \"%s\"", o->log_level);
        if (r == 0)
                r = default_profile_dir(o, c);
        return r == 0 ? find_worker(c) : r;
}
