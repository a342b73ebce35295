/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An open model, inside the engine: tensors on a device, their description, the text side. */

#include "engine/desc.h"
#include "engine/device.h"
#include "engine/image.h"
#include "engine/upload.h"

struct eng_model {
        struct eng_device *d;
        struct eng_image *im;
        struct tensors *t;
        struct eng_desc *desc;
        struct eng_model_info info;
        struct tok *tok;         /* NULL: none */
        struct tmpl *tmpl;       /* NULL: none, or unusable (tmpl_err) */
        struct h_error tmpl_err;
        struct eng_placement placement;
        uint64_t ring_bytes;     /* the device's ring must have at least this */
        struct k_mixed_shape *mixed; /* what the host's part of a step needs; NULL: it has none */
};

struct k_mixed_shape; /* kernels/mixed.h */

/* The tensor table: takes the weights to the device. */
struct tensors_how {
        struct place *place;     /* taken; NULL on a device that computes where things are mapped */
        bool dry;                /* only to describe the model: nothing goes to the device, no address is good for it */
        void (*progress)(void *ud, uint64_t done, uint64_t total);
        void *ud;
};
int tensors_open(struct eng_device *d, struct eng_image *im, const struct tensors_how *how, struct tensors **ret,
                 struct h_error *err);
const struct place *tensors_place(const struct tensors *t);
double tensors_bus_rate(const struct tensors *t); /* bytes per second of one copy to the device; 0: nothing large enough to tell */
const struct upload *tensors_upload(const struct tensors *t);
struct tensors *tensors_close(struct tensors *t);
uint64_t tensors_own_bytes(const struct tensors *t);

/* What a description and a backend or a vocabulary must agree on. */
int model_check_backend(const struct eng_desc *d, const struct k_ops *ops, struct h_error *err);
int model_check_vocab(const struct eng_desc *d, const struct tok *t, struct h_error *err);

/* load.c: decides where the tensors go (nothing on the CPU alone), and notes what became of it once they are there. */
int model_place(struct eng_model *m, const struct eng_load *l, struct place *ret, struct h_error *err);
int model_placed(struct eng_model *m, struct h_error *err);
void model_expect(struct eng_model *m);       /* fills in the rates that are expected, as far as they can be */
void model_measure_host(struct eng_model *m); /* between steps, when the host's part is ready for work */
