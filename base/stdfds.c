/* SPDX-License-Identifier: Apache-2.0 */
#include "base/stdfds.h"

#include <fcntl.h>
#include <unistd.h>

void standard_fds_open(void) {
        int fd;

        do
                fd = open("/dev/null", O_RDONLY); /* the lowest number that is free; children have it, too */
        while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd > STDERR_FILENO)
                close(fd);
}
