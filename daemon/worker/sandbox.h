/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a worker process gives up before it looks at untrusted bytes, for good.
 *
 *   fill, inspect   an allowlist: threads, memory that is not executable, reading descriptors that are open, writing
 *                   the one memory file and the channel (inspect: the terminal). No file can be opened.
 *   serve, CPU      an allowlist of the same kind
 *   serve, CUDA     a denylist: the driver's ways are its own. Its device nodes stay open to it.
 *
 * All: no new privileges; Landlock where the kernel has it. Starting a program
 * or tracing one ends the process (under CUDA it is refused); sockets, opening
 * files and everything else that is not listed is refused with EPERM.
 *
 * What the kernel lacks is said; with 'required' it is an error.
 */

#include "base/error.h"
#include "base/sandbox.h"
#include "daemon/common/log.h"

enum sandbox_kind { SANDBOX_FILL, SANDBOX_INSPECT, SANDBOX_SERVE_CPU, SANDBOX_SERVE_DEVICE };

struct sandbox_bounds {
        int memfd;            /* fill: the only descriptor that can be written to by position, sized, and mapped; else -1 */
        uint64_t memory;      /* bytes of address space; 0: no bound */
        uint64_t cpu_seconds; /* 0: no bound */
};

/* Says what holds or lacks: all of it if 'tell', else only what lacks. The calling thread's files, everybody's system calls. */
int sandbox_enter(enum sandbox_kind kind, enum sandbox_wish wish, const struct sandbox_bounds *b, const struct log *log, bool tell,
                  struct h_error *err);
