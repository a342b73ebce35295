/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA backend's names mean in a build without it. */
#include <errno.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "kernels/measure.h"
#include "kernels/mixed.h"

const struct k_ops *k_cuda_ops(void) {
        return NULL;
}

int k_cuda_open(const struct k_cuda_options *o, struct k_dev **ret, char why[256]) {
        snprintf(why, 256, "this build has no CUDA backend");
        return -ENOSYS;
}

double k_cuda_memory_rate(int ordinal) {
        (void)ordinal;
        return 0;
}

int k_cuda_card(struct k_dev *d, struct k_card_id *ret) {
        (void)d;
        (void)ret;
        return -ENOSYS;
}

int k_cuda_read_time(struct k_dev *d, const void *p, size_t bytes, double *ret_s) {
        (void)d;
        (void)p;
        (void)bytes;
        (void)ret_s;
        return -ENOSYS;
}

int k_cuda_launch_time(struct k_dev *d, uint32_t n, double *ret_s) {
        (void)d;
        (void)n;
        (void)ret_s;
        return -ENOSYS;
}

int k_cuda_step_time(struct k_dev *d, int (*step)(void *ud), void *ud, double *ret_s) {
        (void)d;
        (void)step;
        (void)ud;
        (void)ret_s;
        return -ENOSYS;
}
