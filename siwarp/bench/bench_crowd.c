/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Latency with 1,000 additional idle QPs; the run "alone" is the same without them. */
#include <string.h>

#include "bench/bench_ours.h"

#define IDLE 1000

void siw_bench_idle_qps(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct siw_bench_opts crowded = *o;

	if (strcmp(o->run, "alone"))
		crowded.idle = IDLE;
	siw_bench_need_fds(IDLE);
	siw_bench_ours_lat(&crowded, result);
}
