/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "client/cli/cli.h"

#define OFF_HAS_FLAG(f) 0
#define OFF_HAS_STR(f) 0
#define OFF_HAS_STRS(f) 0
#define OFF_HAS_U32(f) offsetof(struct cli_args, has_##f)
#define OFF_HAS_U64(f) offsetof(struct cli_args, has_##f)
#define OFF_HAS_F64(f) offsetof(struct cli_args, has_##f)

const struct cli_option cli_options[_O_MAX] = {
#define OPT(f, letter, type, arg, doc) { #f, letter, OPT_##type, arg, doc, offsetof(struct cli_args, f), OFF_HAS_##type(f) },
#include "client/cli/options.def"
#undef OPT
};

/* Names are spelt with '-'; the rows have '_' since they are C names. */
const char *cli_option_name(const struct cli_option *o, char out[32]) {
        size_t i;
        for (i = 0; o->field[i]; i++)
                out[i] = o->field[i] == '_' ? '-' : o->field[i];
        out[i] = 0;
        return out;
}

static bool same_name(const struct cli_option *o, const char *name, size_t n) {
        char own[32];
        return strlen(cli_option_name(o, own)) == n && memcmp(own, name, n) == 0;
}

const struct cli_option *cli_option_of(const struct cli_command *cmd, const char *name, size_t n, char letter) {
        const enum opt_id *ids = cmd->options;

        for (; *ids != O_END; ids++) {
                const struct cli_option *o = &cli_options[*ids];
                if (letter ? o->letter == letter : same_name(o, name, n))
                        return o;
        }
        return NULL;
}

static int unknown_option(struct cli *c, const char *word) {
        char names[_O_MAX][36], name[32];
        const char *list[_O_MAX], *near = NULL;
        size_t n = 0, len = strcspn(word, "=");
        char plain[64];

        for (const enum opt_id *id = c->command->options; *id != O_END; id++) {
                snprintf(names[n], sizeof(names[n]), "--%s", cli_option_name(&cli_options[*id], name));
                list[n] = names[n];
                n++;
        }
        snprintf(plain, sizeof(plain), "%.*s", (int)len, word);
        if (plain[1] == '-')
                near = cli_nearest(plain, list, n);
        if (near)
                return cli_fail(c, EX_USAGE, "%s has no option '%s'. Did you mean %s?", c->command->name, plain, near);
        return cli_fail(c, EX_USAGE, "%s has no option '%s'. All of them: hearth %s --help", c->command->name, plain,
                        c->command->name);
}

static int bad_value(struct cli *c, const struct cli_option *o, const char *v, const char *what) {
        char name[32];
        return cli_fail(c, EX_USAGE, "'%s' is no value for --%s: %s is expected", v, cli_option_name(o, name), what);
}

static bool parse_u64(const char *v, uint64_t *ret) {
        char *end;

        if (!isdigit((unsigned char)*v))
                return false;
        errno = 0;
        *ret = strtoull(v, &end, 0);
        return errno == 0 && *end == 0;
}

static int set_option(struct cli *c, const struct cli_option *o, const char *v) {
        void *at = (char *)&c->args + o->off;
        uint64_t u;
        double d;
        char *end, name[32];

        switch (o->type) {
        case OPT_FLAG:
                *(bool *)at = true;
                return 0;
        case OPT_STR:
                *(const char **)at = v;
                return 0;
        case OPT_STRS: {
                struct cli_strs *l = at;
                if (l->n == CLI_STRS_MAX)
                        return cli_fail(c, EX_USAGE, "--%s may be given at most %d times", cli_option_name(o, name), CLI_STRS_MAX);
                l->v[l->n++] = v;
                return 0;
        }
        case OPT_U32:
                if (!parse_u64(v, &u) || u > UINT32_MAX)
                        return bad_value(c, o, v, "a whole number from 0 to 4294967295");
                *(uint32_t *)at = (uint32_t)u;
                break;
        case OPT_U64:
                if (!parse_u64(v, &u))
                        return bad_value(c, o, v, "a whole number");
                *(uint64_t *)at = u;
                break;
        case OPT_F64:
                d = strtod(v, &end);
                if (end == v || *end || !isfinite(d))
                        return bad_value(c, o, v, "a number");
                *(double *)at = d;
                break;
        }
        *((bool *)((char *)&c->args + o->off_has)) = true;
        return 0;
}

int cli_parse(struct cli *c, int argc, char **argv) {
        size_t n = 0;
        int r;

        /* Positional words move to the front of argv itself; the options' values stay where they are. */
        for (int i = 0; i < argc; i++) {
                const struct cli_option *o;
                char *w = argv[i], *value = NULL, name[32];

                if (w[0] != '-' || !w[1]) {
                        argv[n++] = w;
                        continue;
                }
                if (strcmp(w, "--") == 0) {
                        for (i++; i < argc; i++)
                                argv[n++] = argv[i];
                        break;
                }
                if (w[1] == '-') {
                        size_t len = strcspn(w, "=") - 2;
                        o = cli_option_of(c->command, w + 2, len, 0);
                        if (o && w[2 + len] == '=')
                                value = w + 2 + len + 1;
                } else {
                        o = cli_option_of(c->command, NULL, 0, w[1]);
                        if (o && w[2])
                                value = w + 2;
                }
                if (!o)
                        return unknown_option(c, w);
                if (o->type == OPT_FLAG && value)
                        return cli_fail(c, EX_USAGE, "--%s takes no value", cli_option_name(o, name));
                if (o->type != OPT_FLAG && !value) {
                        if (i + 1 >= argc)
                                return cli_fail(c, EX_USAGE, "--%s needs a value: %s", cli_option_name(o, name), o->arg);
                        value = argv[++i];
                }
                r = set_option(c, o, value);
                if (r)
                        return r;
        }
        c->words = argv;
        c->n_words = n;
        return 0;
}
