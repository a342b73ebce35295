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

#include <stdio.h>
#include <unistd.h>

#include "base/pci.h"
#include "base/types.h"

bool card_present(const char *root) {
        static const char *const signs[] = { "/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version" };
        char path[512], address[64];

        for (size_t i = 0; i < ELEMENTSOF(signs); i++)
                if ((size_t)snprintf(path, sizeof(path), "%s%s", root, signs[i]) < sizeof(path) && access(path, F_OK) == 0)
                        return true;
        return pci_find_display(root, "0x10de", address);
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
