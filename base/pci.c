/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pci.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/types.h"

static bool begins(int bus, const char *device, const char *file, const char *with) {
        char path[128], text[16] = "";
        ssize_t n;
        int fd;

        snprintf(path, sizeof(path), "%.63s/%s", device, file);
        fd = openat(bus, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return false;
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
        return n > 0 && strncmp(text, with, strlen(with)) == 0;
}

bool pci_find_display(const char *root, const char *vendor, char ret[64]) {
        char path[512];
        struct dirent *e;
        bool found = false;
        DIR *bus;

        if ((size_t)snprintf(path, sizeof(path), "%s/sys/bus/pci/devices", root) >= sizeof(path))
                return false;
        bus = opendir(path);
        if (!bus)
                return false;
        while (!found && (e = readdir(bus))) {
                if (e->d_name[0] == '.' || strlen(e->d_name) >= 64)
                        continue;
                found = begins(dirfd(bus), e->d_name, "vendor", vendor) && begins(dirfd(bus), e->d_name, "class", "0x03");
                if (found)
                        memcpy(ret, e->d_name, strlen(e->d_name) + 1);
        }
        closedir(bus);
        return found;
}
