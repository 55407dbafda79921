/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* siwarp-bench: client or server of a run, see bench.h. Started by `siwarp bench`. */
#include <string.h>

#include "bench/bench.h"

static siw_bench_fn *bench_select_run(const struct siw_bench_opts *o)
{
	if (!strcmp(o->kind, "threads"))
		return siw_bench_measure_threads;
	if (strcmp(o->kind, "lat") && strcmp(o->kind, "bw") && strcmp(o->kind, "rate"))
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "unknown kind: %s", o->kind);
	if (strcmp(o->run, "ours"))
		return o->rc ? siw_bench_measure_raw_tcp : siw_bench_measure_raw_udp;
	return strcmp(o->kind, "lat") ? siw_bench_measure_siwarp_stream
				      : siw_bench_measure_siwarp_latency;
}

int main(int argc, char **argv)
{
	return siw_bench_main(argc, argv, bench_select_run);
}
