/* SPDX-License-Identifier: Apache-2.0 */
/* Prints hearthd(8) or hearth.conf(5) for scdoc, from the daemon's own tables. A build-time program, not installed. */
#include <string.h>

#include "daemon/broker/options.h"
#include "docs/scdoc.h"

/* ---- hearthd(8) ---- */

static const char about[] =
        "hearthd(8)\n\n# NAME\n\nhearthd - keeps language models resident and serves local programs\n\n# SYNOPSIS\n\n"
        "*hearthd* \\[--user | --system] \\[OPTION...]\n\n# DESCRIPTION\n\n"
        "Listens on a Unix socket. Models are read once into sealed memory and stay there across requests and, under systemd, across "
        "restarts of the daemon. What computes is a second process, hearth-worker, which hearthd starts, watches and replaces: requests "
        "that run when it ends go on with the same tokens.\n\n"
        "Usually the service manager starts it with the first connection; without one, *hearth*(1) starts it for its user.\n\n# OPTIONS\n";

static const char rest[] =
        "\n# SIGNALS\n\n"
        "*SIGHUP*\n\treads the configuration again. What may change while it runs changes at once, what needs a restart is told in the "
        "log; a file with a mistake changes nothing.\n\n"
        "*SIGTERM*, *SIGINT*\n\tend it. Running requests end with the error shutting\\_down; clients of libhearth resume them with the next "
        "daemon.\n\n"
        "# SYSTEMD\n\n"
        "The socket may come from the service manager (ListenStream= of a Unix stream socket). hearthd says READY=1 when it serves, feeds "
        "the watchdog from its event loop, says RELOADING=1 around a reload, and puts the models' memory into the file descriptor store: "
        "*systemctl restart* and a crash read no model again, a full *stop* gives them up. *systemctl reload* checks the file first and "
        "fails with the place of a mistake.\n\n"
        "# JOURNAL\n\n"
        "Lines carry PRIORITY and SYSLOG\\_IDENTIFIER; those about a model its name, those about a connection or a request whose it is. The end of "
        "each request is one line with the fields\n\n"
        "*HEARTH\\_REQUEST*\n\tid of the request, as in *hearth ps*\n\n"
        "*HEARTH\\_UID*\n\tits user\n\n"
        "*HEARTH\\_CLIENT*\n\tid of its connection\n\n"
        "*HEARTH\\_METHOD*\n\tgenerate, embed, load, ...\n\n"
        "*HEARTH\\_MODEL*\n\tits model\n\n"
        "*HEARTH\\_CODE*\n\thow it ended: a finish (stop, length, cancelled, ...), done, or the code of an error\n\n"
        "*HEARTH\\_TOTAL\\_MS*, *HEARTH\\_QUEUE\\_MS*, *HEARTH\\_FIRST\\_TOKEN\\_MS*\n\tfrom its arrival to its end, until the worker had it, "
        "to its first token\n\n"
        "*HEARTH\\_PROMPT\\_TOKENS*, *HEARTH\\_CACHED\\_TOKENS*, *HEARTH\\_GENERATED\\_TOKENS*\n\tits size, and what of the prompt was "
        "evaluated earlier\n\n"
        "The end of a worker is a line with HEARTH\\_CODE worker\\_lost, or no\\_memory where the kernel ended it for want of memory; then, unless it "
        "was the machine's memory that was used up,\n\n"
        "*HEARTH\\_CGROUP*, *HEARTH\\_LIMIT*\n\tthe control group whose limit was reached, and the limit in bytes\n\n"
        "A request's text is never logged; errors that quote it go to its client alone.\n\n"
        "```\njournalctl -u hearthd HEARTH_UID=1000 -o verbose\n```\n\n"
        "# EXIT STATUS\n\n"
        "0 after SIGTERM; else as in sysexits: 64 wrong usage or a mistake in the configuration, 74 reading or writing failed, 75 "
        "another daemon serves that socket, 77 no permission.\n\n"
        "# ENVIRONMENT\n\n"
        "*HOME*, *XDG\\_CONFIG\\_HOME*, *XDG\\_DATA\\_HOME*, *XDG\\_RUNTIME\\_DIR*\n\tplaces of a user's daemon\n\n"
        "*LISTEN\\_FDS*, *NOTIFY\\_SOCKET*, *WATCHDOG\\_USEC*, *JOURNAL\\_STREAM*\n\tset by the service manager\n\n"
        "# FILES\n\n"
        "/etc/hearth/hearth.conf, ~/.config/hearth/hearth.conf\n\tthe configuration, see *hearth.conf*(5)\n\n"
        "/run/hearth/hearth.sock, $XDG\\_RUNTIME\\_DIR/hearth/hearth.sock\n\tthe socket\n\n"
        "/var/lib/hearth/models, ~/.local/share/hearth/models\n\tmodels\n\n"
        "# SEE ALSO\n\n*hearth*(1), *hearth.conf*(5), *hearth-protocol*(7), *hearth-doctor*(1)\n";

static void hearthd(void) {
        const struct option_doc *o;
        size_t n = options_docs(&o);

        fputs(about, stdout);
        for (size_t i = 0; i < n; i++) {
                printf("\n*--");
                scdoc_option(o[i].name);
                printf("*");
                if (o[i].arg)
                        printf(" %s", o[i].arg);
                printf("\n\t");
                scdoc_text(o[i].doc);
                printf("\n");
        }
        fputs(rest, stdout);
}

/* ---- hearth.conf(5) ---- */

static const char conf_about[] =
        "hearth.conf(5)\n\n# NAME\n\nhearth.conf - configuration of the Hearth daemon\n\n# SYNOPSIS\n\n"
        "/etc/hearth/hearth.conf++\n~/.config/hearth/hearth.conf\n\n# DESCRIPTION\n\n"
        "Sections in brackets, lines key = value, comments with # or ;. An unknown key is a mistake, not ignored: a misspelt limit must "
        "not be no limit. The file is UTF-8 text of at most 1 MiB; one that is empty, damaged, no regular file, or gone since it was read last is a "
        "mistake too, and leaves the rules in effect as they are. *hearthd --check-config* says what is wrong, with file, line and key.\n\n"
        "Sizes are numbers with K, M, G, T (powers of 1024) or kB, MB, GB; times have ms, s, min or h, or are the word never.\n\n"
        "Where nothing else is said, a changed value takes effect with a reload (SIGHUP, *systemctl reload*).\n";

static const char who[] =
        "\n## Users and groups\n\n"
        "The values of *\\[access]* are lists, separated by blanks or commas: a user's name or number, a group as @name or @number, or \\* "
        "for everybody. Nothing: nobody. Names are looked up when the file is read; where that needs the network, which the system's unit does "
        "not have, numbers serve. root and the daemon's own user may always do everything. Who a client is comes from the kernel "
        "when it connects: its user, its group and its supplementary groups. A refusal has the error permission and names the uid, the "
        "rule and the key.\n";

static const char conf_rest[] =
        "\n# EXAMPLE\n\n```\n[access]\nload = @hearth-admins, ada\nunload = @hearth-admins\npin = @hearth-admins\nsee_others = @hearth-admins\n\n"
        "[limits]\nrequests_per_user = 16\nslots_per_user = 2\n\n[models]\nslots = 8\n\n[model code-7b]\ncontext = 32768\npinned = yes\n```\n\n"
        "# SEE ALSO\n\n*hearthd*(8), *hearth*(1)\n";

static const char *effect(const struct config_doc *d) {
        if (d->reloads)
                return "";
        return strcmp(d->section, "models") == 0 ? " For models loaded from then on." : " Needs a restart.";
}

static void conf(void) {
        const struct config_doc *d;
        size_t n = config_docs(&d);
        const char *section = "";

        fputs(conf_about, stdout);
        printf("\n# KEYS\n");
        for (size_t i = 0; i < n; i++) {
                if (strcmp(section, d[i].section) != 0) {
                        section = d[i].section;
                        printf("\n## [%s]%s\n", section, strcmp(section, "models") == 0 ? ", and [model NAME] for one model" : "");
                }
                printf("\n*");
                scdoc_text(d[i].key);
                printf("*\n\t");
                scdoc_text(d[i].doc);
                if (d[i].max && d[i].max < INT32_MAX)
                        printf(" At most %u.", d[i].max);
                printf("%s Default: ", effect(&d[i]));
                scdoc_text(*d[i].deflt ? d[i].deflt : "nobody");
                printf(".\n");
        }
        fputs(who, stdout);
        fputs(conf_rest, stdout);
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], "hearthd") == 0)
                hearthd();
        else if (argc == 2 && strcmp(argv[1], "hearth.conf") == 0)
                conf();
        else {
                fputs("usage: hearthd-man hearthd | hearth.conf\n", stderr);
                return 64;
        }
        return fflush(stdout) != 0;
}
