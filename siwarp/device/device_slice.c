/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/device_impl.h"

#define SLICE_NS 100000 /* time slice in ns: the minimum that the kernel accepts */

/*
 * A program that watches its memory and never polls keeps a CPU busy, perhaps every CPU. On such a
 * CPU a woken thread with a short time slice is scheduled sooner. Kernels from 6.12 on support a
 * slice per thread; older kernels refuse the call, and nothing changes.
 */
void siw_device_short_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime_ns, deadline_ns, period_ns;
	} attr = { .size = sizeof(attr), .policy = SCHED_OTHER, .runtime_ns = SLICE_NS };

	if (sched_getscheduler(0) == SCHED_OTHER) {
		attr.nice = getpriority(PRIO_PROCESS, 0);
		syscall(SYS_sched_setattr, 0, &attr, 0);
	}
}
