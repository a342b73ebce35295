/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An open device, inside the engine. */

#include "engine/engine.h"
#include "kernels/kernels.h"

struct eng_device {
        struct k_dev *k;
        struct eng_device_options o; /* 'variant' isn't kept */
};
