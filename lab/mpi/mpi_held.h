/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How much of a process's heap siwarp's libraries hold. A program that is linked with mpi_held.c
 * has malloc and free of its own, which count what these libraries ask of them; they are those of
 * every library of the process.
 */
#ifndef SIW_BENCH_MPI_HELD_H
#define SIW_BENCH_MPI_HELD_H

#include <stdint.h>

/* From here on it is counted. No siwarp in the process: nothing will be. */
void held_begin(void);

/*
 * Octets that siwarp's libraries hold: those asked for, rounded up as the C library does. 0 in a
 * build with a sanitizer, or for another C library than glibc.
 */
int64_t held_now(void);

#endif
