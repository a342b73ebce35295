/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Measuring a device for its card profile. It takes memory and the device's
 * whole attention for seconds: for `hearth calibrate`, never beside models.
 * Every product is compared with the formats' definition before it is timed.
 */

#include "engine/engine.h"
#include "engine/profile.h"

struct eng_calibrate {
        uint64_t types;                         /* only these, 1 << enum k_type each; 0: all */
        bool quick;                             /* small shapes, each timed once: rough figures, for looking at how it works */
        void (*progress)(void *ud, const char *what); /* may be NULL */
        void *ud;
};
/* What a profile of this device, driver and program is known by. */
int eng_device_key(struct eng_device *d, struct profile_key *ret, struct h_error *err);
int eng_device_calibrate(struct eng_device *d, const struct eng_calibrate *o, struct profile *ret, struct h_error *err);
/* Before models are opened. Copied, instead of the one used before; -EHEARTH: it was measured elsewhere, and none is used. */
int eng_device_use_profile(struct eng_device *d, const struct profile *p, const char *name, struct h_error *err);
