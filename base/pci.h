/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

/*
 * A display controller (class 03) of this vendor ("0x10de") on the PCI bus, as
 * sysfs below 'root' has it ("", or a test's), whether or not a driver holds it.
 * ret: its address, "0000:01:00.0".
 */
bool pci_find_display(const char *root, const char *vendor, char ret[64]);
