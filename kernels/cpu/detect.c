/* SPDX-License-Identifier: Apache-2.0 */
/* CPUID, and the kernel's leave to use AMX (Documentation/arch/x86/xstate.rst). */
#include "kernels/cpu/detect.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
        LEAF7_AMX_TILE = 1u << 24, /* EDX */
        LEAF7_AMX_INT8 = 1u << 25,
        XCR0_TILES = 3u << 17,     /* their configuration and their contents */
        REQ_XCOMP_PERM = 0x1023,   /* ARCH_REQ_XCOMP_PERM of asm/prctl.h, which older headers lack */
        XFEATURE_TILEDATA = 18,
};

/* clang 14 can't name this feature in __builtin_cpu_supports() */
static bool has_f16c(void) {
        unsigned a, b, c, d;
        return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static unsigned xcr0(void) {
        unsigned a, b, c, d;

        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
                return 0;
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        return a;
}

bool k_cpu_has_avx2(void) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool k_cpu_has_avx512(void) {
        return k_cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

static bool ask_amx(void) {
        const unsigned want = LEAF7_AMX_TILE | LEAF7_AMX_INT8;
        unsigned a, b, c, d;

        return k_cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & want) == want &&
               (xcr0() & XCR0_TILES) == XCR0_TILES && syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
}

bool k_cpu_has_amx(void) {
        static _Atomic int known; /* 1: yes, -1: no; two threads at once ask twice and hear the same */

        if (!known)
                known = ask_amx() ? 1 : -1;
        return known > 0;
}
#else
bool k_cpu_has_avx2(void) {
        return false;
}

bool k_cpu_has_avx512(void) {
        return false;
}

bool k_cpu_has_amx(void) {
        return false;
}
#endif
