/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints hearth(1), or hearth-COMMAND(1) for the command named, for scdoc, from
 * the commands' tables. A build-time program, not installed.
 */
#include <ctype.h>
#include <string.h>

#include "client/cli/commands.h"
#include "docs/scdoc.h"

static void paragraphs(const char *s) {
        while (*s) {
                size_t n = strcspn(s, "\n");
                char line[1024];

                snprintf(line, sizeof(line), "%.*s", (int)n, s);
                if (line[0] == ' ') { /* an example */
                        printf("\n```\n%s\n```\n\n", line + 2);
                } else {
                        scdoc_text(line);
                        printf("\n");
                }
                s += n + (s[n] == '\n');
        }
}

static void option(const struct cli_option *o) {
        char name[32];

        printf("\n*--%s*", cli_option_name(o, name));
        if (o->letter)
                printf(", *-%c*", o->letter);
        if (o->arg) {
                printf(" ");
                scdoc_text(o->arg);
        }
        printf("\n\t");
        scdoc_text(o->doc);
        printf("\n");
}

static void exit_status(void) {
        printf("\n# EXIT STATUS\n\n"
               "0 for success; else as in sysexits: 64 wrong usage, 65 the data or model is faulty, or an answer ends before "
               "what --json-schema or --grammar demands is complete, 66 no such file or model, 69 no daemon or "
               "not supported, or the connection broke and did not come back, 74 reading or writing failed (a full disk), 75 try again later, or the time "
               "of --deadline is over, 76 protocol error, 77 no permission, 78 something is wrong here (doctor); 130 after Ctrl-C.\n");
}

static int command_page(const char *name) {
        for (const struct cli_command *const *p = cli_commands; *p; p++) {
                const struct cli_command *cmd = *p;

                if (strcmp(cmd->name, name) != 0)
                        continue;
                printf("hearth-%s(1)\n\n# NAME\n\nhearth-%s - ", name, name);
                scdoc_text(cmd->summary);
                printf("\n\n# SYNOPSIS\n\n*hearth %s* \\[options]", name);
                if (*cmd->synopsis) {
                        printf(" ");
                        scdoc_text(cmd->synopsis);
                }
                printf("\n\n# DESCRIPTION\n\n%c", toupper((unsigned char)cmd->summary[0]));
                scdoc_text(cmd->summary + 1);
                printf(".\n\n");
                if (cmd->details)
                        paragraphs(cmd->details);
                printf("\n# OPTIONS\n");
                for (const enum opt_id *id = cmd->options; *id != O_END; id++)
                        option(&cli_options[*id]);
                exit_status();
                printf("\n# SEE ALSO\n\n*hearth*(1), *hearthd*(8)\n");
                return fflush(stdout) != 0;
        }
        fprintf(stderr, "hearth-man: no command %s\n", name);
        return EX_USAGE;
}

int main(int argc, char **argv) {
        if (argc > 1)
                return command_page(argv[1]);
        printf("hearth(1)\n\n# NAME\n\nhearth - ask the Hearth daemon, which keeps language models resident\n\n# SYNOPSIS\n\n"
               "*hearth* COMMAND \\[options] \\[arguments]\n\n*hearth help* \\[COMMAND]\n\n# DESCRIPTION\n\n"
               "The answer alone goes to standard output, everything else to standard error. If no daemon runs, most commands start one "
               "for this user.\n\n# COMMANDS\n");
        for (const struct cli_command *const *cmd = cli_commands; *cmd; cmd++) {
                printf("\n*hearth-%s*(1)\n\t", (*cmd)->name);
                scdoc_text((*cmd)->summary);
                printf("\n");
        }
        exit_status();
        printf("\n# ENVIRONMENT\n\n*HEARTH\\_SOCKET*\n\tthe daemon's socket\n\n*XDG\\_RUNTIME\\_DIR*\n\twhere this user's daemon listens, in "
               "hearth/hearth.sock\n\n*XDG\\_STATE\\_HOME*\n\twhere hearth chat keeps its history, in hearth/chat\\_history\n\n*NO\\_COLOR*\n\tno "
               "colours\n\n# FILES\n\n~/.local/share/hearth/models\n\tmodels that can be named\n\n~/.local/state/hearth/chat\\_history\n\tlines "
               "typed into hearth chat\n\n# SEE ALSO\n\n*hearthd*(8), *hearth.conf*(5), *hearth-protocol*(7), *libhearth*(3)\n");
        return fflush(stdout) != 0;
}
