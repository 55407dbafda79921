/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Seconds that a rank spends in MPI's calls that communicate, by MPI's profiling interface: whoever
 * is linked with mpi_time.c calls its functions in place of MPI's, and they call MPI's own
 * (PMPI_). Blocking and non-blocking sends and receives, waits, and collective operations count.
 */
#ifndef SIW_BENCH_MPI_TIME_H
#define SIW_BENCH_MPI_TIME_H

/* Begin anew. */
void time_reset(void);

/* Seconds in such calls, and how many there were, since time_reset. */
double time_seconds(void);
long long time_calls(void);

#endif
