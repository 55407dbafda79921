/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Small solvers that communicate as three of the NAS Parallel Benchmarks do. Each builds its
 * problem, solves it, and returns the relative residual |b - A x| / |b|, computed anew from the
 * solution; mpi_kernels compares it with what it must reach.
 */
#ifndef SIW_BENCH_MPI_KERNELS_H
#define SIW_BENCH_MPI_KERNELS_H

/*
 * CG: conjugate gradients on a sparse matrix with entries everywhere, so that each rank sends its
 * part of the vector to every other one, and sums. rows: of the matrix, a multiple of the ranks.
 */
double kernel_cg(int rows);

/*
 * MG: V-cycles on a cube of n points a side, in slabs: planes to two neighbours on every level, of
 * fewer and fewer octets. n: a power of two and a multiple of the ranks.
 */
double kernel_mg(int n);

/*
 * LU: symmetric Gauss-Seidel on a cube of n points a side, in columns: a wave that sends short
 * messages to the next rank for each plane. n: a multiple of the ranks.
 */
double kernel_lu(int n);

#endif
