/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/shown.h"
#include "client/cli/cli.h"

enum { PROGRESS_AFTER_US = 500000, BAR = 12 };

uint64_t cli_now_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int cli_fail(struct cli *c, int status, const char *fmt, ...) {
        char text[6000];
        va_list ap;

        cli_progress_clear(c);
        fflush(stdout);
        fprintf(stderr, "%shearth:%s ", c->colour ? "\x1b[1;31m" : "", c->colour ? "\x1b[0m" : "");
        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        cli_write_clean(stderr, text);
        fputc('\n', stderr);
        return status;
}

int cli_report(struct cli *c, const struct hearth_error *e) {
        /* The message may quote what others wrote (a template's own error): it goes through the same filter as answers. */
        cli_progress_clear(c);
        fflush(stdout);
        fprintf(stderr, "%shearth:%s ", c->colour ? "\x1b[1;31m" : "", c->colour ? "\x1b[0m" : "");
        cli_write_clean(stderr, e->message);
        if (e->n_nearest > 0 && !strstr(e->message, "Did you mean")) {
                fprintf(stderr, " Did you mean ");
                for (size_t i = 0; i < e->n_nearest; i++) {
                        fputs(i ? ", " : "", stderr);
                        cli_write_clean(stderr, e->nearest[i]);
                }
                fprintf(stderr, "?");
        }
        fputc('\n', stderr);
        for (size_t i = 0; i < e->n_holders; i++) {
                fputs(i ? " · " : "  held: ", stderr);
                cli_write_clean(stderr, e->holders[i]);
                fputs(i + 1 == e->n_holders ? "\n" : "", stderr);
        }
        if (e->retry_after_ms > 0) {
                char t[16];
                cli_human_time(e->retry_after_ms, t);
                fprintf(stderr, "  trying again may succeed in %s\n", t);
        }
        if (strcmp(e->code, "template_missing") == 0)
                fprintf(stderr, "  to continue a plain text with this model: hearth run --raw ...\n");
        return e->exit_status ? e->exit_status : EX_SOFTWARE;
}

void cli_progress(struct cli *c, const char *doing, const char *what, uint64_t done, uint64_t total) {
        char bytes[16];
        uint64_t us = cli_now_us() - c->started_us;
        unsigned fill = total ? (unsigned)(done * BAR / total) : 0;

        if (!c->err_tty || us < PROGRESS_AFTER_US)
                return;
        cli_human_bytes(total, bytes);
        fprintf(stderr, "\r\x1b[K%s ", doing);
        cli_write_clean(stderr, what);
        if (total > 0) {
                fprintf(stderr, "  ▕");
                for (unsigned i = 0; i < BAR; i++)
                        fputs(i < fill ? "█" : " ", stderr);
                fprintf(stderr, "▏ %s", bytes);
        }
        fprintf(stderr, "  %.1f s", (double)us / 1e6);
        fflush(stderr);
        c->progress_shown = true;
}

void cli_progress_clear(struct cli *c) {
        if (c->progress_shown) {
                fputs("\r\x1b[K", stderr);
                fflush(stderr);
                c->progress_shown = false;
        }
}

static bool is_terminal(struct cli *c, FILE *f) {
        return f == stdout ? c->out_tty : c->err_tty;
}

/*
 * An answer is someone else's text. Escape sequences could retitle the window,
 * rewrite what stands above, or answer the terminal's queries into the shell. C1
 * controls (c2 80 .. c2 9f) do the same on terminals that know them. Its layout
 * is its own: right to left needs marks.
 */
static void write_filtered(FILE *f, const char *p, size_t n) {
        size_t start = 0;

        for (size_t i = 0, len; i < n; i += len) {
                if (shown_next(p + i, n - i, &len) != SHOWN_CONTROL || p[i] == '\n' || p[i] == '\t')
                        continue;
                fwrite(p + start, 1, i - start, f);
                fputs("\xef\xbf\xbd", f); /* U+FFFD */
                start = i + len;
        }
        fwrite(p + start, 1, n - start, f);
}

int cli_write_text(struct cli *c, FILE *f, const char *p, size_t n) {
        if (is_terminal(c, f)) {
                write_filtered(f, p, n);
                return ferror(f) ? -EIO : 0;
        }
        if (n == 0 || fwrite(p, 1, n, f) == n)
                return 0;
        if (f == stdout && !c->out_errno)
                c->out_errno = errno;
        return -errno;
}

void cli_write_clean(FILE *f, const char *s) {
        shown_write(f, s, strlen(s), SIZE_MAX, SHOWN_LINES);
}

void cli_print_json(json_t *o, size_t flags) {
        char *s = o ? json_dumps(o, JSON_COMPACT | flags) : NULL;

        if (s) {
                shown_write(stdout, s, strlen(s), SIZE_MAX, SHOWN_JSON);
                putchar('\n');
        }
        free(s);
        json_decref(o);
}

bool cli_push(struct cli *c) {
        bool failed = fflush(stdout) != 0;

        if (failed && !c->out_errno)
                c->out_errno = errno;
        if (ferror(stdout) && !c->out_errno) { /* in an earlier printf(), whose reason is gone */
                struct pollfd p = { .fd = STDOUT_FILENO };
                c->out_errno = poll(&p, 1, 0) == 1 && p.revents & POLLERR ? EPIPE : EIO;
        }
        return c->out_errno == 0;
}

int cli_flush(struct cli *c) {
        if (cli_push(c))
                return 0;
        if (c->out_errno == EPIPE)
                return 128 + SIGPIPE; /* the reader has seen enough: no message, as any filter */
        return cli_fail(c, EX_IOERR, "writing to standard output: %s", strerror(c->out_errno));
}

void cli_human_bytes(uint64_t n, char out[16]) {
        static const char units[] = "kMGTPE";
        double v = (double)n;
        int u = -1;

        if (n < 1000) {
                snprintf(out, 16, "%u B", (unsigned)n);
                return;
        }
        while (v >= 999.5 && u < 5) {
                v /= 1000;
                u++;
        }
        snprintf(out, 16, v < 9.95 ? "%.1f %cB" : "%.0f %cB", v, units[u]);
}

void cli_human_count(uint64_t n, char out[32]) {
        char digits[24];
        int len = snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;

        for (int i = 0; i < len; i++) {
                if (i && (len - i) % 3 == 0)
                        out[at++] = ',';
                out[at++] = digits[i];
        }
        out[at] = 0;
}

void cli_human_time(uint64_t ms, char out[16]) {
        if (ms < 60000)
                snprintf(out, 16, "%.1fs", (double)ms / 1e3);
        else if (ms < 3600000)
                snprintf(out, 16, "%um", (unsigned)(ms / 60000));
        else if (ms < 48ull * 3600000)
                snprintf(out, 16, "%uh", (unsigned)(ms / 3600000));
        else
                snprintf(out, 16, "%ud", (unsigned)MIN(ms / 86400000, (uint64_t)99999));
}
