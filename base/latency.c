/* SPDX-License-Identifier: Apache-2.0 */
#include "base/latency.h"

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in linux/sched/types.h, whose name clashes with glibc's on some systems. */
struct attr {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
};

#define RESET_ON_FORK 0x01u
#define SLICE_NS 100000u

void thread_wake_soon(void) {
        struct attr a = { .size = sizeof(a) };

        /* The nice value must be told again, or it would be set to 0. */
        if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) < 0 || a.policy != SCHED_OTHER)
                return;
        a.size = sizeof(a);
        a.flags |= RESET_ON_FORK;
        a.runtime = SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &a, 0);
}
