/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What only a backend itself can say or measure of its device, for the card
 * profile (engine/profile.h). Between steps; a CUDA device, opened. In a build
 * without CUDA there is no such device and these return -ENOSYS.
 */

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The card and its driver: what a measurement holds for. */
struct k_card_id { char name[128], uuid[48], driver[64]; };
int k_cuda_card(struct k_dev *, struct k_card_id *ret);

/* Seconds for all multiprocessors to read 'bytes' (a multiple of 16) at an address of the device, or of host_alloc(). */
int k_cuda_read_time(struct k_dev *, const void *p, size_t bytes, double *ret_s);
/* Seconds from one to the next of n kernels that do nothing, launched one by one. */
int k_cuda_launch_time(struct k_dev *, uint32_t n, double *ret_s);
/*
 * Seconds of the device for a step: 'step' queues it and doesn't wait. The device begins only when all of it is queued, so
 * that what the host takes isn't in it. Negative: step's, or the device failed.
 */
int k_cuda_step_time(struct k_dev *, int (*step)(void *ud), void *ud, double *ret_s);

#ifdef __cplusplus
}
#endif
