/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hearth-worker: the program that touches models. Started by hearthd with its
 * channel as fd 3; --inspect and --calibrate are for people and the CLI.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "base/stdfds.h"
#include "daemon/worker/worker.h"

static bool has_channel(void) {
        int type;
        socklen_t n = sizeof(type);
        return getsockopt(3, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM;
}

/* [--json] [--verify] FILE, in any order. The CLI runs it under its own name. */
static int inspect(const struct log *log, int n, char **words) {
        bool json = false, verify = false;
        const char *path = NULL;

        for (int i = 0; i < n; i++) {
                if (strcmp(words[i], "--json") == 0)
                        json = true;
                else if (strcmp(words[i], "--verify") == 0)
                        verify = true;
                else if (!path)
                        path = words[i];
                else
                        path = "";
        }
        if (!path || !*path) {
                fprintf(stderr, "%s: --inspect takes one file\n", log->program);
                return 64;
        }
        return worker_inspect(log, path, json, verify);
}

/* Out of memory, we end before the broker, which starts another one, and before other programs. */
static void first_in_line(void) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

        if (fd >= 0) {
                (void)!write(fd, "500", 3);
                close(fd);
        }
}

/* [--json] [--quick] [--backend NAME] [--threads N] [--types LIST] DIR: likewise. */
static int calibrate(const struct log *log, int n, char **words) {
        struct calibrate_wish w = {};
        bool bad = false;

        for (int i = 0; i < n && !bad; i++) {
                const char *next = i + 1 < n ? words[i + 1] : "";
                char *end;

                if (strcmp(words[i], "--json") == 0)
                        w.json = true;
                else if (strcmp(words[i], "--quick") == 0)
                        w.quick = true;
                else if (strcmp(words[i], "--backend") == 0) {
                        w.backend = strcmp(next, "cuda") == 0 ? CALIBRATE_CUDA : CALIBRATE_CPU;
                        bad = w.backend == CALIBRATE_CPU && strcmp(next, "cpu") != 0;
                        i++;
                } else if (strcmp(words[i], "--threads") == 0) {
                        unsigned long v = strtoul(next, &end, 10);
                        bad = *next < '0' || *next > '9' || *end || v > 4096;
                        w.threads = (uint32_t)v;
                        i++;
                } else if (strcmp(words[i], "--types") == 0) {
                        w.types = next;
                        i++;
                } else if (!w.dir)
                        w.dir = words[i];
                else
                        bad = true;
        }
        if (bad || !w.dir || !*w.dir) {
                fprintf(stderr, "%s: --calibrate takes a directory; --backend is cpu or cuda, --threads at most 4096\n", log->program);
                return 64;
        }
        return worker_calibrate(log, &w);
}

int main(int argc, char **argv) {
        struct log log = { .level = LOG_LEVEL_INFO, .program = "hearth-worker" };
        enum sandbox_wish wish;
        bool ahead;

        standard_fds_open();
        log.journal = log_stream_is_journal(getenv("JOURNAL_STREAM"));
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* memory files are files: their size may be limited, which is an error to tell */
        if (argc >= 3 && strcmp(argv[1], "--inspect") == 0)
                return inspect(&(struct log){ .level = LOG_LEVEL_INFO, .program = strcmp(argv[0], "hearth") == 0 ? "hearth" : "hearth-worker" },
                               argc - 2, argv + 2);
        if (argc >= 3 && strcmp(argv[1], "--calibrate") == 0) {
                setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* as when serving */
                return calibrate(&(struct log){ .level = LOG_LEVEL_INFO, .program = strcmp(argv[0], "hearth") == 0 ? "hearth" : "hearth-worker" },
                                 argc - 2, argv + 2);
        }
        if (argc == 2 && strcmp(argv[1], "--version") == 0) {
                puts("hearth-worker " HEARTH_VERSION);
                return 0;
        }
        ahead = argc == 4 && strcmp(argv[1], "--serve") == 0 && strcmp(argv[3], "--ahead") == 0;
        if ((argc != 3 && !ahead) || (strcmp(argv[1], "--fill") != 0 && strcmp(argv[1], "--serve") != 0) ||
            !sandbox_wish_parse(argv[2], &wish) || !has_channel()) {
                fputs("Usage: hearth-worker --inspect [--json] [--verify] FILE\n"
                      "       hearth-worker --calibrate [--json] [--quick] [--backend cpu|cuda] [--threads N]\n                     [--types LIST] DIR\n"
                      "hearthd starts it with --serve or --fill and a socket as descriptor 3.\n"
                      "With --serve ... --ahead, steps are begun ahead on the CPU too, where that only delays tokens: for tests.\n", stderr);
                return 64;
        }
        /* Whatever becomes of the broker, we don't outlive it: the channel's end says so too, but a hung thread can't hear it. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        first_in_line();
        signal(SIGINT, SIG_IGN); /* Ctrl-C on hearthd's terminal is for hearthd, which ends us */
        /* CUDA: all code onto the card when the device opens; a module that loads itself in the middle of a step stops every stream. */
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
        prctl(PR_SET_TIMERSLACK, 1000ul); /* of all threads to come: naps beside a step end when they should */
        prctl(PR_SET_NAME, strcmp(argv[1], "--fill") == 0 ? "hearth-fill" : "hearth-worker");
        return strcmp(argv[1], "--fill") == 0 ? worker_fill(&log, wish) : worker_serve(&log, wish, ahead);
}
