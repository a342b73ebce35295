/* SPDX-License-Identifier: Apache-2.0 */
/* Prints hearth(1) for scdoc from the commands' tables. A build-time program, not installed. */
#include <string.h>

#include "client/cli/commands.h"

/* scdoc takes _ and * for emphasis. */
static void text(const char *s) {
        for (; *s; s++) {
                if (strchr("_*\\<#[", *s))
                        putchar('\\');
                putchar(*s);
        }
}

static void paragraphs(const char *s) {
        while (*s) {
                size_t n = strcspn(s, "\n");
                char line[1024];
                snprintf(line, sizeof(line), "%.*s", (int)n, s);
                if (line[0] == ' ') { /* an example */
                        printf("```\n%s\n```\n", line + 2);
                } else {
                        text(line);
                        printf("\n");
                }
                s += n + (s[n] == '\n');
        }
}

static void command(const struct cli_command *cmd) {
        printf("\n## hearth %s", cmd->name);
        if (*cmd->synopsis) {
                printf(" ");
                text(cmd->synopsis);
        }
        printf("\n\n");
        text(cmd->summary);
        printf(".\n");
        if (cmd->details) {
                printf("\n");
                paragraphs(cmd->details);
        }
        for (const enum opt_id *id = cmd->options; *id != O_END; id++) {
                const struct cli_option *o = &cli_options[*id];
                char name[32];
                if (*id == O_help)
                        continue;
                printf("\n*--%s*", cli_option_name(o, name));
                if (o->letter)
                        printf(", *-%c*", o->letter);
                if (o->arg) {
                        printf(" ");
                        text(o->arg);
                }
                printf("\n\t");
                text(o->doc);
                printf("\n");
        }
}

int main(void) {
        printf("hearth(1)\n\n# NAME\n\nhearth - ask the Hearth daemon, which keeps language models resident\n\n# SYNOPSIS\n\n"
               "*hearth* COMMAND \\[options] \\[arguments]\n\n# DESCRIPTION\n\n"
               "The answer alone goes to standard output, everything else to standard error. If no daemon runs, most commands start one "
               "for this user.\n\n# COMMANDS\n");
        for (const struct cli_command *const *cmd = cli_commands; *cmd; cmd++)
                command(*cmd);
        printf("\n# EXIT STATUS\n\n"
               "0 for success; else as in sysexits: 64 wrong usage, 65 the data or model is faulty, 66 no such file or model, 69 no daemon or "
               "not supported, 75 try again later, 76 protocol error, 77 no permission; 130 after Ctrl-C.\n\n"
               "# ENVIRONMENT\n\n*HEARTH\\_SOCKET*\n\tthe daemon's socket\n\n*XDG\\_RUNTIME\\_DIR*\n\twhere this user's daemon listens, in "
               "hearth/hearth.sock\n\n*NO\\_COLOR*\n\tno colours\n\n# FILES\n\n~/.local/share/hearth/models\n\tmodels that can be named\n\n"
               "~/.local/state/hearth/chat\\_history\n\tlines typed into hearth chat\n\n# SEE ALSO\n\n*hearth-protocol*(7), *libhearth*(3)\n");
        return fflush(stdout) != 0;
}
