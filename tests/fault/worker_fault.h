/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The worker that fails: what it does on a device, for worker_fault.c. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct k_dev;

/* The order is the test's too: FAULTS in test_daemon_faults.py. */
enum fault { FAULT_ADDRESS, FAULT_TRAP, FAULT_ENDLESS };

int fault_device_open(struct k_dev *); /* before the sandbox: the kernels learn where to leave their place */
/* Queues a kernel that does it, behind what the device was given before. An endless one ends by itself after so many seconds. */
int fault_device_launch(struct k_dev *, enum fault, uint32_t endless_s);

#ifdef __cplusplus
}
#endif
