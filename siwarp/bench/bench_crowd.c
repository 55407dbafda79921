/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Latency with 1,000 more QPs that do nothing; the run "alone" is the same without them. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "bench/bench_ours.h"

#define IDLE  1000
#define OTHER 100 /* descriptors that a process has beside its QPs */

void siw_bench_need_fds(uint32_t n)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "getrlimit: %s", strerror(errno));
	if (limit.rlim_max < n + OTHER)
		siw_bench_die(SIW_BENCH_EXIT_ERROR,
			      "%u descriptors are needed, and `ulimit -Hn` is %llu: raise it",
			      n + OTHER, (unsigned long long)limit.rlim_max);
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "setrlimit: %s", strerror(errno));
}

void siw_bench_crowd(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct siw_bench_opts crowded = *o;

	if (strcmp(o->run, "alone"))
		crowded.idle = IDLE;
	siw_bench_need_fds(IDLE);
	siw_bench_ours_lat(&crowded, result);
}
