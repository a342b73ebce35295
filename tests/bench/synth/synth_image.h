/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A synthetic model's image without its file: the weights are made while the image is filled. */

#include "engine/image.h"

#define SYNTH_PREFIX "synth:"

/* path: SYNTH_PREFIX and a SPEC (synth.h). ret_memfd: the image's memory, the caller's to close. Below 0: err says why. */
int synth_image(const char *path, const struct eng_image_options *io, int *ret_memfd, struct eng_image **ret, struct h_error *err);
