/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Register and deregister a large region, including the check of its pages. One process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/bench_ours.h"

static void reg_run_pairs(struct siw_pd *pd, char *memory, size_t size, uint32_t n, uint64_t *ns)
{
	int access = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();
		struct siw_mr *mr = siw_reg_mr(pd, memory, size, access);
		int r;

		if (!mr)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "registering: %s", strerror(errno));
		r = siw_dereg_mr(mr);
		if (r)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "deregistering: %s", strerror(-r));
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

void siw_bench_reg(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	uint64_t *ns = calloc(o->iters, sizeof(*ns));
	struct siw_context *context;
	struct siw_addr loopback;
	struct siw_pd *pd;
	char *memory;

	memory = mmap(NULL, o->size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED || !ns)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for %llu octets",
			      (unsigned long long)o->size);
	memory[0] = memory[o->size - 1] = 1;
	siw_addr_parse("127.0.0.1", 0, &loopback);
	context = siw_open_device_by_addr(&loopback);
	pd = context ? siw_alloc_pd(context) : NULL;
	if (!pd)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "opening the device: %s", strerror(errno));
	siw_bench_pin(o->cpu);
	reg_run_pairs(pd, memory, o->size, o->warmup, NULL);
	reg_run_pairs(pd, memory, o->size, o->iters, ns);
	siw_bench_summarize_samples(ns, o->iters, 1, result);
	siw_dealloc_pd(pd);
	siw_close_device(context);
	munmap(memory, o->size);
	free(ns);
}
