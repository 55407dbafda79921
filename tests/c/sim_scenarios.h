/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim_scenarios.h - the common parts of the programs that run scenarios in the simulator.
 */
#ifndef SIM_SCENARIOS_H
#define SIM_SCENARIOS_H

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/sim.h"
#include <siwarp/siw_ext.h>

#define must(condition)                                                                      \
	do {                                                                                 \
		if (!(condition)) {                                                          \
			fprintf(stderr, "%s:%d: not so: %s (at %" PRIu64 " ns)\n", __FILE__, \
				__LINE__, #condition, siw_sim_now());                        \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

struct sim_scenario {
	const char *name;
	void (*run)(void);
};

struct sim_program {
	const struct sim_scenario *scenarios;
	size_t n;
	void (*init)(void); /* called before each run of a scenario; may be NULL */
	void (*print_stats)(const struct siw_sim_stats *stats); /* prints NAME=VALUE words */
};

/*
 * Runs the scenario that the arguments of main() name, and prints the hash of the trace, the
 * virtual time and the statistics. Returns the exit status of the program.
 */
int sim_run_program(const struct sim_program *program, int argc, char **argv);

/* Polls until there is one completion, and returns that completion. */
struct siw_wc sim_poll_one_completion(struct siw_cq *cq);

#endif
