/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lab/verbs/verbs.h - the runs of siwarp-lab-verbs: client or server of a measurement that
 * siwarp-bench does not have (runs.py). Each function exits with an error message on failure, and
 * on the client fills in the result.
 */
#ifndef SIW_LAB_VERBS_H
#define SIW_LAB_VERBS_H

#include "bench/bench_siwarp.h"

siw_bench_fn siw_lab_measure_connections;	     /* verbs_connect.c */
siw_bench_fn siw_lab_measure_latency_among_idle_qps; /* verbs_crowd.c */
siw_bench_fn siw_lab_measure_fairness;		     /* verbs_fair.c */
siw_bench_fn siw_lab_measure_onesided;		     /* verbs_onesided.c */

/*
 * Opens an idle queue pair of type UD or RD in RTS with a posted receive, as if it waited for
 * messages (verbs_crowd.c).
 */
struct siw_qp *siw_lab_open_unused_qp(struct siw_bench_side *e, int type, struct siw_cq *cq);

#endif
