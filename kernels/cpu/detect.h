/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which instruction sets this process may use: the processor has them and the kernel keeps their registers. */

#include "base/types.h"

bool k_cpu_has_avx2(void);   /* AVX2, FMA, F16C */
bool k_cpu_has_avx512(void); /* and AVX-512 F, BW, VL, DQ, VNNI */
/*
 * And AMX tiles of bytes. Their 8 KiB of registers are kept only for a process that has asked: this asks, for
 * all its threads, with a system call that a closed sandbox may refuse; a process that will want them calls it before.
 * It is asked once, and what was answered holds: a device opened later is of the same kind.
 */
bool k_cpu_has_amx(void);
