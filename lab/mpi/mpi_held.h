/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How much of a process's heap siwarp's libraries use. mpi_held.c defines malloc and free for the
 * complete process, and counts the calls that come from siwarp's libraries.
 */
#ifndef SIW_BENCH_MPI_HELD_H
#define SIW_BENCH_MPI_HELD_H

#include <stdint.h>

/* Starts counting. Without siwarp in the process, nothing is counted. */
void heap_count_begin(void);

/*
 * Octets allocated by siwarp's libraries: the requested sizes, rounded up as the C library does. 0
 * in a build with a sanitizer, or with another C library than glibc.
 */
int64_t heap_count_now(void);

#endif
