/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An open model, inside the engine: tensors on a device, their description, the text side. */

#include "engine/desc.h"
#include "engine/device.h"
#include "engine/image.h"

struct eng_model {
        struct eng_device *d;
        struct eng_image *im;
        struct tensors *t;
        struct eng_desc *desc;
        struct eng_model_info info;
        struct tok *tok;         /* NULL: none */
        struct tmpl *tmpl;       /* NULL: none, or unusable (tmpl_err) */
        struct h_error tmpl_err;
};

/* The tensor table: takes the weights to the device. */
int tensors_open(struct eng_device *d, const struct eng_image *im, struct tensors **ret, struct h_error *err);
struct tensors *tensors_close(struct tensors *t);
uint64_t tensors_own_bytes(const struct tensors *t);
