/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim_scenarios.c - runs a scenario in one simulated network, or in two, one after the other
 * (sim_scenarios.h).
 */
#include <stdbool.h>
#include <string.h>

#include "sim_scenarios.h"

static void run_scenario(const struct sim_program *program, const char *name, uint64_t seed)
{
	for (size_t i = 0; i < program->n; i++) {
		struct siw_sim_stats stats;

		if (strcmp(program->scenarios[i].name, name) != 0)
			continue;
		if (program->init)
			program->init();
		must(!siw_sim_open(seed, ""));
		program->scenarios[i].run();
		siw_sim_stats(&stats);
		printf("hash=%016" PRIx64 "\n", siw_sim_trace_hash());
		printf("now=%" PRIu64 "\n", siw_sim_now());
		program->print_stats(&stats);
		must(!siw_sim_close_world());
		return;
	}
	fprintf(stderr, "no scenario %s\n", name);
	exit(2);
}

int sim_run_program(const struct sim_program *program, int argc, char **argv)
{
	bool twice = argc > 1 && !strcmp(argv[1], "twice");
	const char *self = argv[0];

	argv += twice;
	argc -= twice;
	if (argc != 3) {
		fprintf(stderr, "usage: %s [twice] SCENARIO SEED\n", self);
		return 2;
	}
	for (int i = 0; i < (twice ? 2 : 1); i++)
		run_scenario(program, argv[1], strtoull(argv[2], NULL, 0));
	return 0;
}

struct siw_wc sim_poll_one_completion(struct siw_cq *cq)
{
	struct siw_wc wc;
	int n;

	while (!(n = siw_poll_cq(cq, 1, &wc)))
		;
	must(n == 1);
	return wc;
}
