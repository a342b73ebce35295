/* SPDX-License-Identifier: Apache-2.0 */
#include "base/seal.h"

#include <errno.h>
#include <fcntl.h>

enum { TRIES = 6 };

int memfd_seal(int fd, int seals) {
        for (int i = 1;; i++) {
                if (fcntl(fd, F_ADD_SEALS, seals) == 0)
                        return 0;
                if (errno != EBUSY || i == TRIES)
                        return -errno;
        }
}
