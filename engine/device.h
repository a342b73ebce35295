/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An open device, inside the engine. */

#include "engine/engine.h"
#include "kernels/kernels.h"

struct profile; /* engine/profile.h */

struct eng_device {
        struct k_dev *k;
        struct eng_device_options o; /* 'variant' isn't kept */
        /* Bytes per second, measured when a model first lay in both memories; 0: not yet. By the loader's thread or under its gate. */
        double bus_rate, host_rate;
        struct profile *profile;     /* what was measured of it before; NULL: nothing that holds. Set before models are opened */
};
