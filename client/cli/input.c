/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/cli/cli.h"

enum { INPUT_MAX = 15 << 20, PARTS_MAX = 128, STDIN_PATIENCE_MS = 2000 };

int cli_read_fd(int fd, struct buf *ret) {
        ret->limit = INPUT_MAX;
        return buf_read_fd(ret, fd, SIZE_MAX);
}

int cli_read_file(struct cli *c, const char *path, struct buf *ret) {
        bool use_stdin = strcmp(path, "-") == 0;
        int fd = use_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY), r;

        if (fd < 0)
                return cli_fail(c, EX_NOINPUT, "%s: %s", path, strerror(errno));
        if (use_stdin && c->err_tty) { /* a person who wonders why nothing happens */
                struct pollfd p = { .fd = fd, .events = POLLIN };
                if (poll(&p, 1, STDIN_PATIENCE_MS) == 0)
                        fprintf(stderr, "hearth: reading standard input until its end (Ctrl-D; </dev/null for none)\n");
        }
        r = cli_read_fd(fd, ret);
        if (!use_stdin)
                close(fd);
        if (r == -E2BIG)
                return cli_fail(c, EX_DATAERR, "%s has more than %d MB, the most a request can carry",
                                use_stdin ? "standard input" : path, INPUT_MAX >> 20);
        if (r < 0)
                return cli_fail(c, EX_IOERR, "%s: %s", use_stdin ? "standard input" : path, strerror(-r));
        return 0;
}

bool cli_stdin_has_data(void) {
        struct stat st;
        return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

bool cli_is_path(const char *model) {
        size_t n = strlen(model);
        return strchr(model, '/') || (n > 5 && strcmp(model + n - 5, ".gguf") == 0);
}

/* NAME-00002-of-00003.gguf: the length of NAME, the part, the count. */
static bool split_name(const char *path, size_t *ret_stem, unsigned *ret_part, unsigned *ret_parts) {
        size_t n = strlen(path);
        unsigned part, parts;
        int end = 0;

        if (n < 20)
                return false;
        if (sscanf(path + n - 20, "-%5u-of-%5u.gguf%n", &part, &parts, &end) != 2 || end != 20 || part < 1 || part > parts)
                return false;
        *ret_stem = n - 20;
        *ret_part = part;
        *ret_parts = parts;
        return true;
}

static int open_model_file(struct cli *c, const char *path, const char *why, int *ret) {
        struct stat st;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

        if (fd < 0)
                return cli_fail(c, errno == EACCES ? EX_NOPERM : EX_NOINPUT, "%s%s: %s", path, why, strerror(errno));
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
                close(fd);
                return cli_fail(c, EX_NOINPUT, "%s is not a regular file; a model is a GGUF file", path);
        }
        *ret = fd;
        return 0;
}

void cli_source_close(struct cli_source *s) {
        for (uint32_t i = 0; i < s->src.n_fds; i++)
                fd_close(s->fds[i]);
        free(s->fds);
        free(s->path);
        *s = (struct cli_source){};
}

int cli_open_source(struct cli *c, const char *model, struct cli_source *ret) {
        unsigned part = 1, parts = 1;
        struct cli_source s = {};
        size_t stem = 0;
        int r = 0;

        if (model && !*model) /* an unset variable of a shell: not a wish for the default */
                return cli_fail(c, EX_USAGE, "the model's name is empty: name one (see: hearth models), or leave it out for the default");
        if (!model || !cli_is_path(model)) {
                *ret = (struct cli_source){ .src.name = model };
                return 0;
        }
        if (split_name(model, &stem, &part, &parts) && parts > PARTS_MAX)
                return cli_fail(c, EX_USAGE, "%s: a model may have at most %d parts", model, PARTS_MAX);
        /* The whole path, so that the daemon shows the same model the same way whoever asks. */
        s.path = realpath(model, NULL);
        s.src.name = s.path ? s.path : model;
        s.fds = h_calloc(parts, sizeof(int));
        if (!s.fds) {
                cli_source_close(&s);
                return cli_fail(c, EX_OSERR, "out of memory");
        }
        for (unsigned i = 1; i <= parts && r == 0; i++) {
                char path[PATH_MAX], why[64] = "";
                if (parts > 1) {
                        snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)stem, model, i, parts);
                        if (i != part)
                                snprintf(why, sizeof(why), " (part %u of %u)", i, parts);
                } else
                        snprintf(path, sizeof(path), "%s", model);
                r = open_model_file(c, path, why, &s.fds[s.src.n_fds]);
                if (r == 0)
                        s.src.n_fds++;
        }
        if (r) {
                cli_source_close(&s);
                return r;
        }
        s.src.fds = s.fds;
        *ret = s;
        return 0;
}
