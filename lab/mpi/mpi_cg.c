/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <math.h>

#include "lab/mpi/mpi_kernels.h"
#include "lab/mpi/mpi_util.h"

#define ENTRIES 12 /* entries of a matrix row besides the diagonal entry, which exceeds their sum */
#define STEPS	50

struct cg {
	int rank;
	int ranks;
	int rows; /* number of matrix rows of this rank */
	int whole;
	double *whole_p; /* the complete vector p, with the parts of all ranks */
	MPI_Request *requests;
};

/* Returns the k-th row that is coupled to a row of the matrix; the coupling is symmetric. */
static int cg_index_of_coupled_row(int whole, int row, int k)
{
	int distance = 1 + (int)((unsigned int)(k / 2) * 7919u % (unsigned int)(whole / 2 - 1));

	return k % 2 ? (row + distance) % whole : (row + whole - distance) % whole;
}

static double cg_global_sum(double own)
{
	double all;

	MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

static double cg_dot_product(const struct cg *g, const double *a, const double *b)
{
	double own = 0;

	for (int i = 0; i < g->rows; i++)
		own += a[i] * b[i];
	return cg_global_sum(own);
}

/* Sends this rank's part of a vector to all ranks and receives the parts of all other ranks. */
static void cg_gather_vector(const struct cg *g, const double *p)
{
	int n = 0;

	memcpy(g->whole_p + (size_t)g->rank * g->rows, p, g->rows * sizeof(*p));
	for (int step = 1; step < g->ranks; step++) {
		int from = (g->rank + g->ranks - step) % g->ranks;

		MPI_Irecv(g->whole_p + (size_t)from * g->rows, g->rows, MPI_DOUBLE, from, step,
			  MPI_COMM_WORLD, &g->requests[n++]);
		MPI_Isend(p, g->rows, MPI_DOUBLE, (g->rank + step) % g->ranks, step, MPI_COMM_WORLD,
			  &g->requests[n++]);
	}
	MPI_Waitall(n, g->requests, MPI_STATUSES_IGNORE);
}

static void cg_multiply_by_matrix(const struct cg *g, const double *p, double *result)
{
	cg_gather_vector(g, p);
	for (int i = 0; i < g->rows; i++) {
		int row = g->rank * g->rows + i;
		double of_row = (ENTRIES + 1.0) * g->whole_p[row];

		for (int k = 0; k < ENTRIES; k++)
			of_row -= g->whole_p[cg_index_of_coupled_row(g->whole, row, k)];
		result[i] = of_row;
	}
}

/* Solves A x = b with a fixed number of steps; the vectors have only the rows of this rank. */
static void cg_solve(const struct cg *g, const double *b, double *x)
{
	double *r = alloc_zeroed((size_t)g->rows, sizeof(*r)),
	       *p = alloc_zeroed((size_t)g->rows, sizeof(*p)),
	       *q = alloc_zeroed((size_t)g->rows, sizeof(*q)), rho, before, alpha;

	memcpy(r, b, g->rows * sizeof(*r));
	memcpy(p, b, g->rows * sizeof(*p));
	rho = cg_dot_product(g, r, r);
	for (int step = 0; step < STEPS; step++) {
		cg_multiply_by_matrix(g, p, q);
		alpha = rho / cg_dot_product(g, p, q);
		for (int i = 0; i < g->rows; i++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[i];
		}
		before = rho;
		rho = cg_dot_product(g, r, r);
		for (int i = 0; i < g->rows; i++)
			p[i] = r[i] + rho / before * p[i];
	}
	free(r);
	free(p);
	free(q);
}

double run_cg_kernel_and_return_residual(int rows)
{
	struct cg g = { .rank = own_rank(), .ranks = all_ranks(), .whole = rows };
	double *b, *x, *product, off;

	g.rows = rows / g.ranks;
	g.whole_p = alloc_zeroed((size_t)rows, sizeof(double));
	g.requests = alloc_zeroed((size_t)g.ranks * 2, sizeof(*g.requests));
	b = alloc_zeroed((size_t)g.rows, sizeof(*b));
	x = alloc_zeroed((size_t)g.rows, sizeof(*x));
	product = alloc_zeroed((size_t)g.rows, sizeof(*product));
	for (int i = 0; i < g.rows; i++)
		b[i] = sin(0.37 * (g.rank * g.rows + i)) + 0.1;
	cg_solve(&g, b, x);
	cg_multiply_by_matrix(&g, x, product);
	for (int i = 0; i < g.rows; i++)
		product[i] -= b[i];
	off = sqrt(cg_dot_product(&g, product, product) / cg_dot_product(&g, b, b));
	free(g.whole_p);
	free(g.requests);
	free(b);
	free(x);
	free(product);
	return off;
}
