/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A device and the host's processor as one: products of D rows with matrices of
 * K_PLACE_HOST are computed by a second device (the CPU backend), on the same
 * bytes, while their activations and results travel; everything else is the
 * main device's. Attaching replaces the main device's linear, moe and close in
 * a copy of its table, so every other op stays exactly what it was.
 *
 * Bits: a row's result depends on its role and on the matrix's place only. D
 * rows go to the host at any width, P rows never do.
 */

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes 'host' (a CPU device; closed with the main one, also when this fails). Once per main device. */
int k_mixed_attach(struct k_dev *main, struct k_dev *host);
const char *k_mixed_host(struct k_dev *main); /* the host's describe(); after attach */

/*
 * What lies at these addresses of the main device lies at 'host' for the host's
 * device: matrices of K_PLACE_HOST, their scales and biases. Unmap with the same
 * 'dev' when no step can use it.
 */
int k_mixed_map(struct k_dev *main, const void *dev, const void *host, size_t bytes);
void k_mixed_unmap(struct k_dev *main, const void *dev);

/* For mixed.c: a CPU device's threads stay awake for as long as a device takes between two of its turns. */
void k_cpu_between_device_ops(struct k_dev *cpu);
bool k_cpu_planes_fast(void); /* this processor has fast products of K_LAYOUT_CUDA (others have slow ones) */

struct k_mixed_shape {
        uint32_t n_rows;              /* most rows of a step */
        uint32_t max_cols, max_out;   /* widest input; most outputs of one linear op */
        uint32_t n_head, n_ctx;
        uint32_t n_used, n_expert, d, ff; /* experts; n_expert 0: none */
};
/* Bytes of host memory for these shapes, and taking them. Between steps; grows only. */
size_t k_mixed_bytes(struct k_dev *main, const struct k_mixed_shape *s);
int k_mixed_reserve(struct k_dev *main, const struct k_mixed_shape *s);

/* Bytes per second at which the host makes products of one row with these matrices (mapped), once each; between steps, after reserve. 0: it can't. */
double k_mixed_rate(struct k_dev *main, const struct k_weight *w, uint32_t n);
/* The same of the card's own memory, by its clock and width, whatever runs; 0: not known. */
double k_cuda_memory_rate(int ordinal);

#ifdef __cplusplus
}
#endif
