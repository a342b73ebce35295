/* SPDX-License-Identifier: Apache-2.0 */
/* What fault.cu's names mean in a build without CUDA: there is no device that they could be asked of. */
#include <errno.h>

#include "tests/fault/worker_fault.h"

int fault_device_open(struct k_dev *d) {
        (void)d;
        return -ENOSYS;
}

int fault_device_launch(struct k_dev *d, enum fault fault, uint32_t endless_s) {
        (void)d;
        (void)fault;
        (void)endless_s;
        return -ENOSYS;
}
