/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Small solvers with the communication patterns of three NAS Parallel Benchmarks. Each solver
 * builds and solves a problem, and returns the relative residual |b - A x| / |b|, computed from the
 * solution; mpi_kernels compares the residual with a limit.
 */
#ifndef SIW_BENCH_MPI_KERNELS_H
#define SIW_BENCH_MPI_KERNELS_H

/*
 * CG: conjugate gradients on a sparse matrix with entries everywhere, so that each rank sends its
 * part of the vector to every other rank; sums are computed over all ranks. rows: number of rows of
 * the matrix, a multiple of the number of ranks.
 */
double run_cg_kernel_and_return_residual(int rows);

/*
 * MG: V-cycles on a cube of n points per side, divided into slabs: each rank sends planes to two
 * neighbours on every level, with fewer octets on each coarser level. n: a power of two and a
 * multiple of the number of ranks.
 */
double run_mg_kernel_and_return_residual(int n);

/*
 * LU: symmetric Gauss-Seidel on a cube of n points per side, divided into columns: each rank sends
 * a short message to the next rank for each plane. n: a multiple of the number of ranks.
 */
double run_lu_kernel_and_return_residual(int n);

#endif
