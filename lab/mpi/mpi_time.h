/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time that a rank spends in MPI's communication calls, by MPI's profiling interface: mpi_time.c
 * defines communication functions of MPI, which measure the time and call MPI's implementation by
 * its second name (PMPI_). Blocking and non-blocking sends and receives, waits, and collective
 * operations are counted.
 */
#ifndef SIW_BENCH_MPI_TIME_H
#define SIW_BENCH_MPI_TIME_H

/* Resets the communication time and the count of calls to 0. */
void communication_reset_statistics(void);

/* Return the seconds in communication calls, and the number of calls, since the last reset. */
double communication_seconds(void);
long long communication_call_count(void);

#endif
