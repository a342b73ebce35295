/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/cli/cli.h"

enum { WIDTH = 100, COLUMN = 30 };

/* Words of 'text' from column 'indent' on; the cursor is already there. */
static void wrap(FILE *f, const char *text, int indent) {
        int at = indent;

        while (*text) {
                size_t n = strcspn(text, " ");
                if (at > indent && at + 1 + (int)n > WIDTH) {
                        fprintf(f, "\n%*s", indent, "");
                        at = indent;
                }
                at += fprintf(f, "%s%.*s", at > indent ? " " : "", (int)n, text);
                text += n;
                while (*text == ' ')
                        text++;
        }
        fputc('\n', f);
}

static void print_option(FILE *f, const struct cli_option *o) {
        char name[32], left[96];

        snprintf(left, sizeof(left), "  %c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                 o->letter ? "," : " ", cli_option_name(o, name), o->arg ? " " : "", o->arg ? o->arg : "");
        if (strlen(left) >= COLUMN)
                fprintf(f, "%s\n%*s", left, COLUMN, "");
        else
                fprintf(f, "%-*s", COLUMN, left);
        wrap(f, o->doc, COLUMN);
}

void cli_print_help(const struct cli_command *cmd, FILE *f) {
        fprintf(f, "usage: hearth %s [options]%s%s\n\n", cmd->name, *cmd->synopsis ? " " : "", cmd->synopsis);
        wrap(f, cmd->summary, 0);
        if (cmd->details) {
                const char *p = cmd->details;
                while (*p) { /* paragraphs; a line that begins with blanks stays as it is */
                        size_t n = strcspn(p, "\n");
                        char line[1024];
                        snprintf(line, sizeof(line), "%.*s", (int)n, p);
                        if (line[0] == ' ')
                                fprintf(f, "%s\n", line);
                        else
                                wrap(f, line, 0);
                        p += n + (p[n] == '\n');
                }
        }
        fprintf(f, "\n");
        for (const enum opt_id *id = cmd->options; *id != O_END; id++)
                print_option(f, &cli_options[*id]);
}

void cli_print_overview(FILE *f) {
        fprintf(f, "usage: hearth COMMAND [options] [arguments]\n\n"
                   "Asks the Hearth daemon, which keeps language models resident for all programs of this machine.\n\n");
        for (const struct cli_command *const *cmd = cli_commands; *cmd; cmd++)
                if ((*cmd)->summary)
                        fprintf(f, "  %-12s%s\n", (*cmd)->name, (*cmd)->summary);
        fprintf(f, "\nMore on each: hearth COMMAND --help\n"
                   "  hearth run smollm2 \"Name three colours.\"\n"
                   "  git diff | hearth run smollm2 \"Write a commit message.\"\n");
}
