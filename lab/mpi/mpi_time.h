/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Seconds that a rank spends in MPI's communication calls, by MPI's profiling interface: a program
 * that is linked with mpi_time.c calls its functions instead of MPI's, and they call MPI's (PMPI_).
 * Blocking and non-blocking sends and receives, waits, and collective operations count.
 */
#ifndef SIW_BENCH_MPI_TIME_H
#define SIW_BENCH_MPI_TIME_H

/* Reset both counters. */
void time_reset(void);

/* Seconds in such calls, and number of calls, since time_reset. */
double time_seconds(void);
long long time_calls(void);

#endif
