/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * From the image's mapping to the device: pages are pinned piece by piece while
 * the piece before is copied, beside running steps. What was pinned stays so
 * until upload_free(), which comes before the image is unmapped.
 */

#include "engine/place.h"

struct upload {
        struct k_dev *dev;
        const uint8_t *base;     /* of the pinned pieces: the image's mapping */
        size_t pinned;           /* bytes from base on */
        uint64_t pin_us, all_us; /* pinning alone; pinning and copying */
};

struct upload_args {
        struct k_dev *dev;
        const struct eng_image *im;
        const struct place *place;
        uint8_t *mem;            /* the device's allocation of place->device_bytes */
        void (*progress)(void *ud, uint64_t done, uint64_t total);
        void *ud;
};

/* On failure nothing stays pinned. */
int upload_run(const struct upload_args *a, struct upload *ret, struct h_error *err);
void upload_free(struct upload *u);
