/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lab/verbs/verbs.h - the runs of siwarp-lab-verbs: client or server of a measurement that
 * siwarp-bench does not have (runs.py). Each dies on failure, and fills in the result on the
 * client.
 */
#ifndef SIW_LAB_VERBS_H
#define SIW_LAB_VERBS_H

#include "bench/bench_siwarp.h"

siw_bench_fn siw_lab_fair;     /* verbs_fair.c */
siw_bench_fn siw_lab_onesided; /* verbs_onesided.c */

#endif
