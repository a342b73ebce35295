/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is there a card? "backend = auto" is decided here, once, before the first worker
 * starts, by what the machine has and not by what works at that moment: a driver
 * that loads later than the daemon, or a node that may not be opened, must give an
 * error that says so and not a model on the processor. So any of these counts: the
 * device's node, the driver's entry in /proc, a display controller (class 03) of
 * vendor 10de on the PCI bus.
 */
#include "daemon/broker/card.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool begins(int dir, const char *device, const char *file, const char *with) {
        char path[300], text[16] = "";
        int fd;
        ssize_t n;

        if ((size_t)snprintf(path, sizeof(path), "%s/%s", device, file) >= sizeof(path))
                return false;
        fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return false;
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
        return n > 0 && strncmp(text, with, strlen(with)) == 0;
}

static bool on_bus(const char *root) {
        char path[512];
        struct dirent *e;
        bool found = false;
        DIR *d;

        if ((size_t)snprintf(path, sizeof(path), "%s/sys/bus/pci/devices", root) >= sizeof(path))
                return false;
        d = opendir(path);
        if (!d)
                return false;
        while (!found && (e = readdir(d)))
                found = e->d_name[0] != '.' && begins(dirfd(d), e->d_name, "vendor", "0x10de") && begins(dirfd(d), e->d_name, "class", "0x03");
        closedir(d);
        return found;
}

bool card_present(const char *root) {
        static const char *const signs[] = { "/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version" };
        char path[512];

        for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
                if ((size_t)snprintf(path, sizeof(path), "%s%s", root, signs[i]) < sizeof(path) && access(path, F_OK) == 0)
                        return true;
        return on_bus(root);
}

bool card_wanted(enum config_backend backend, bool can, const char *root) {
        switch (backend) {
        case BACKEND_CPU:
                return false;
        case BACKEND_CUDA:
                return true;
        case BACKEND_AUTO:
                return can && card_present(root);
        }
        return false;
}
