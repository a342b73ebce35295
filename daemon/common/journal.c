/* SPDX-License-Identifier: Apache-2.0 */
/*
 * systemd's journal, by its own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a
 * datagram of KEY=value lines. Not sd_journal_sendv(): that waits for a journal
 * that stands still, and the loop that calls us feeds the watchdog.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/shown.h"
#include "daemon/common/log.h"

bool log_stream_is_journal(const char *journal_stream) {
        unsigned long long dev, ino;
        struct stat st;

        /* DEVICE:INODE of what the service manager connected stderr to; somebody may have put something else there since. */
        return journal_stream && sscanf(journal_stream, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
               st.st_dev == dev && st.st_ino == ino;
}

int log_journal_open(struct log *l, const char *path) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        if (strlen(path) >= sizeof(sa.sun_path))
                return -ENAMETOOLONG;
        l->journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->journal_fd < 0)
                return -errno;
        l->journal_path = path;
        return 0;
}

void log_journal_close(struct log *l) {
        if (l->journal_fd > 0)
                close(l->journal_fd);
        l->journal_fd = -1;
}

/* One line: a newline within a value would begin another field. */
static size_t put(char *to, size_t room, const char *key, const char *value) {
        size_t n = strlen(key);

        if (n + strlen(value) + 2 > room)
                return 0;
        memcpy(to, key, n);
        shown_copy(value, strlen(value), SHOWN_LINE, to + n, room - n - 1);
        n += strlen(to + n);
        to[n++] = '\n';
        return n;
}

bool log_journal_send(const struct log *l, enum log_level level, const char *message, const char *const *fields, size_t n_fields) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        char text[4096], priority[8];
        size_t n = 0;

        if (l->journal_fd <= 0)
                return false;
        snprintf(priority, sizeof(priority), "%d", (int)level);
        n += put(text + n, sizeof(text) - n, "MESSAGE=", message);
        n += put(text + n, sizeof(text) - n, "PRIORITY=", priority);
        n += put(text + n, sizeof(text) - n, "SYSLOG_IDENTIFIER=", l->program);
        for (size_t i = 0; i < n_fields; i++)
                n += put(text + n, sizeof(text) - n, "", fields[i]);
        strcpy(sa.sun_path, l->journal_path);
        /* Unconnected: a journal that was restarted has a new socket under the same name. */
        return sendto(l->journal_fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&sa, sizeof(sa)) == (ssize_t)n;
}
