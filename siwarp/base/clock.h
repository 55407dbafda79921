/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/clock.h - the time source of all code: CLOCK_MONOTONIC in nanoseconds; CPU time. */
#ifndef SIW_BASE_CLOCK_H
#define SIW_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t siw_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The CPU time of all threads of the process in nanoseconds. */
static inline uint64_t siw_process_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
