/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * From the image's mapping to the device: pages are pinned piece by piece while
 * the piece before is copied, beside running steps. What was pinned stays so
 * with the image: a model that left the device comes back at the bus's speed.
 */

#include "engine/place.h"

struct upload {
        uint64_t pin_us, all_us; /* pinning alone; pinning and copying */
        bool pinned;             /* all of the mapping */
};

struct upload_args {
        struct k_dev *dev;
        struct eng_image *im;
        const struct place *place;
        uint8_t *mem;            /* the device's allocation of place->device_bytes */
        void (*progress)(void *ud, uint64_t done, uint64_t total);
        void *ud;
};

int upload_run(const struct upload_args *a, struct upload *ret, struct h_error *err);
