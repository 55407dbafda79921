/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The part of a process's heap that siwarp's libraries hold. A program that is linked with
 * mpi_held.c overrides malloc and free for all libraries of the process, and counts the calls of
 * siwarp's libraries.
 */
#ifndef SIW_BENCH_MPI_HELD_H
#define SIW_BENCH_MPI_HELD_H

#include <stdint.h>

/* Start counting. Without siwarp in the process nothing is counted. */
void held_begin(void);

/*
 * Octets that siwarp's libraries hold: the requested sizes, rounded up as the C library does. 0 in
 * a build with a sanitizer, or with a C library other than glibc.
 */
int64_t held_now(void);

#endif
