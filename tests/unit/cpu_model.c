/* SPDX-License-Identifier: Apache-2.0 */
/* What a processor has that cpu_model.h makes up for; in place of kernels/cpu/detect.c. */
#include "kernels/cpu/detect.h"
#include "tests/unit/cpu_model_detect.h"

bool cpu_model_refuses_amx;

bool k_cpu_has_avx2(void) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool k_cpu_has_avx512(void) {
        return k_cpu_has_avx2();
}

bool k_cpu_has_amx(void) {
        return k_cpu_has_avx2() && !cpu_model_refuses_amx;
}
