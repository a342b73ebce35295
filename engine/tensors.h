/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Tensors by name, as an architecture's loader asks for them: checked shapes,
 * device addresses. The table belongs to an eng_model; everything returned
 * lives as long as the model.
 *
 * Matrices are [rows = outputs, cols = inputs], stacked n_expert times (0 or 1:
 * plain). A sibling "NAME.scale" ([1] or [n_expert]) of "NAME.weight" is found
 * here and put into k_weight.scale. Everything with one dimension, biases,
 * scales and convolution taps are float32 in an image, whatever the file held.
 */

#include "base/error.h"
#include "kernels/kernels.h"

struct tensors;

enum tensor_need { TENSOR_REQUIRED, TENSOR_OPTIONAL };

/*
 * 0 and *ret filled; optional and absent: 0 and a zeroed *ret (data NULL).
 * Error model_invalid names the tensor, the shape expected and the shape found.
 * rows or cols 0: any (read them from *ret). The name is a printf format.
 */
int tensors_matrix(struct tensors *t, enum tensor_need need, uint32_t rows, uint32_t cols, uint32_t n_expert,
                   struct k_weight *ret, struct h_error *err, const char *fmt, ...) _printf_(8, 9);
/* A float32 vector of exactly n values (any shape with that many elements) on the device; absent: NULL. */
int tensors_vector(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                   const char *fmt, ...) _printf_(6, 7);
/* The same, readable by the host (rope factors, things the loader computes with). */
int tensors_host(struct tensors *t, enum tensor_need need, uint64_t n, const float **ret, struct h_error *err,
                 const char *fmt, ...) _printf_(6, 7);
/* A tensor's dimensions (dim[0] is the row length), unused are 1; false if absent. */
bool tensors_shape(struct tensors *t, uint64_t ret_dim[4], const char *fmt, ...) _printf_(3, 4);
/*
 * A float32 vector the loader computed itself, put on the device and owned by
 * the model (counted with the weights).
 */
int tensors_own(struct tensors *t, const float *values, uint64_t n, const float **ret, struct h_error *err);
