/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The planner: which tensors of an image go into the device's memory and which
 * stay in the image's own, pinned host memory.
 *
 * Units are taken in this order while there is room: what is no layer (output,
 * norms), the layers one by one (of a mixture of experts first all that is no
 * expert), the tables of which a step reads single rows. Vectors and float32
 * matrices are always the device's: they are small and kernels take their
 * addresses. The rest of a layer that doesn't fit stays in host memory whole.
 */

#include "engine/image.h"

struct place_wish {
        uint64_t room;        /* bytes of device memory for weights and ring */
        int32_t gpu_layers;   /* layers whole in device memory; -1: as many as fit */
        enum k_place rest;    /* K_PLACE_READ or K_PLACE_HOST: what computes generated tokens of the others */
};

struct place {
        enum k_place *of;         /* [n_tensors], by row of the image */
        uint64_t *at;             /* [n_tensors] offset in the device's allocation, or in the image */
        uint64_t device_bytes, host_bytes, ring_bytes;
        uint64_t step_device, step_host; /* bytes that a generated token reads from each; experts counted as used */
        uint32_t n_layer, n_device;      /* layers; of them whole in device memory */
        bool whole;               /* everything is the device's; offsets are the image's own */
};

/* model_no_memory if what must be in device memory doesn't fit. */
int place_plan(const struct eng_image *im, const struct place_wish *w, struct place *ret, struct h_error *err);
/* Bytes of this tensor that a generated token reads; of experts those that are used. */
uint64_t place_step_bytes(const struct eng_image *im, const struct image_row *r);
void place_free(struct place *p);
