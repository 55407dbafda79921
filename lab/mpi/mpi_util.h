/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Functions shared by the MPI programs of `python -m lab.mpi`. Each program prints one line of JSON
 * from rank 0 and ends with status 0, or prints an error on stderr and aborts the complete job.
 */
#ifndef SIW_BENCH_MPI_UTIL_H
#define SIW_BENCH_MPI_UTIL_H

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints an error message and aborts the job; does not return. */
__attribute__((format(printf, 1, 2), noreturn)) static inline void abort_job(const char *format,
									     ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

/* Allocates zeroed memory for n objects of a size; aborts the job if there is no memory. */
static inline void *alloc_zeroed(size_t n, size_t size)
{
	void *memory = calloc(n ? n : 1, size);

	if (!memory)
		abort_job("no memory for %zu x %zu octets", n, size);
	return memory;
}

static inline int own_rank(void)
{
	int rank;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	return rank;
}

static inline int all_ranks(void)
{
	int ranks;

	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	return ranks;
}

/*
 * Calls MPI_Finalize after all ranks have made progress for some time after the last message. Over
 * UCX's UD, a rank whose own sends are acknowledged returns from MPI_Finalize, and ranks that still
 * wait for acknowledgements of this rank would retransmit for 30 s.
 */
static inline void finalize_job(void)
{
	double seconds = 0.2 + 0.02 * all_ranks(), began;
	int flag;

	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	while (MPI_Wtime() - began < seconds)
		MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
	MPI_Finalize();
}

#endif
