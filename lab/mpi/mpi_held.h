/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The part of a process's heap that siwarp's libraries use. mpi_held.c defines malloc and free for
 * the complete process, and counts the octets of calls that siwarp's libraries make.
 */
#ifndef SIW_BENCH_MPI_HELD_H
#define SIW_BENCH_MPI_HELD_H

#include <stdint.h>

/* Starts counting heap octets. Without siwarp in the process, nothing is counted. */
void heap_start_counting(void);

/*
 * Returns the octets that siwarp's libraries have allocated: the requested sizes, rounded up as the
 * C library does. Returns 0 in a build with a sanitizer, or with another C library than glibc.
 */
int64_t heap_octets_of_siwarp(void);

#endif
