/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The command line and the environment, and the configuration that they and the
 * file make together. Kept as long as the daemon runs: a reload makes the
 * configuration anew from them.
 */

#include <stdio.h>

#include "daemon/broker/config.h"

struct options {
        bool user, system, check;
        char *config;      /* absolute; NULL: the default place */
        const char *socket, *worker, *log_level;
        const char *dirs[CONFIG_MAX_DIRS];
        size_t n_dirs;
        const char *home, *xdg_config_home, *xdg_data_home, *xdg_state_home; /* of the environment */
};

/* 0: go on; otherwise the exit status plus 1. */
int options_parse(struct options *o, int argc, char **argv);
void options_done(struct options *o);
/* Fills *c (config_init() included; config_done() also after a failure). May block: off the loop, once there is one. */
int options_load(const struct options *o, struct config *c, struct h_error *err);

struct option_doc { const char *name, *arg, *doc; };
size_t options_docs(const struct option_doc **ret);
