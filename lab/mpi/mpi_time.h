/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time that a rank spends in MPI's communication calls, by MPI's profiling interface: a program
 * linked with mpi_time.c calls its functions instead of MPI's, and they call MPI's own (PMPI_).
 * Blocking and non-blocking sends and receives, waits, and collective operations are counted.
 */
#ifndef SIW_BENCH_MPI_TIME_H
#define SIW_BENCH_MPI_TIME_H

/* Resets time and count to 0. */
void time_reset(void);

/* Seconds spent in such calls, and the number of calls, since time_reset. */
double time_seconds(void);
long long time_calls(void);

#endif
