/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <math.h>

#include "lab/mpi/mpi_kernels.h"
#include "lab/mpi/mpi_util.h"

#define SWEEPS	  30
#define TAG_FORE  1
#define TAG_BACK  2
#define TAG_SIDES 3

/*
 * A cube of n points per side, surrounded by zeros; this rank has the points of some columns y,
 * with all z and x.
 */
struct lu {
	int rank;
	int ranks;
	int n;
	int columns;
	double *x; /* the solution, with one additional point at both ends of each axis */
	double *b;
};

static size_t lu_index_of_point(const struct lu *l, int z, int y, int x)
{
	return ((size_t)z * (l->columns + 2) + y) * (l->n + 2) + x;
}

static double lu_sum_of_neighbour_cells(const struct lu *l, int z, int y, int x)
{
	return l->x[lu_index_of_point(l, z - 1, y, x)] + l->x[lu_index_of_point(l, z + 1, y, x)] +
	       l->x[lu_index_of_point(l, z, y - 1, x)] + l->x[lu_index_of_point(l, z, y + 1, x)] +
	       l->x[lu_index_of_point(l, z, y, x - 1)] + l->x[lu_index_of_point(l, z, y, x + 1)];
}

/* Sends one line of points to a neighbouring rank; does nothing if there is no such rank. */
static void lu_send_line_of_points(const struct lu *l, int z, int y, int to, int tag)
{
	if (to >= 0 && to < l->ranks)
		MPI_Send(&l->x[lu_index_of_point(l, z, y, 1)], l->n, MPI_DOUBLE, to, tag,
			 MPI_COMM_WORLD);
}

static void lu_receive_line_of_points(const struct lu *l, int z, int y, int from, int tag)
{
	if (from >= 0 && from < l->ranks)
		MPI_Recv(&l->x[lu_index_of_point(l, z, y, 1)], l->n, MPI_DOUBLE, from, tag,
			 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void lu_relax_point(const struct lu *l, int z, int y, int x)
{
	l->x[lu_index_of_point(l, z, y, x)] =
		(l->b[lu_index_of_point(l, z, y, x)] + lu_sum_of_neighbour_cells(l, z, y, x)) / 7;
}

/* Relaxes the points in ascending order; each plane needs a line of points of the previous rank. */
static void lu_sweep_forward(const struct lu *l)
{
	for (int z = 1; z <= l->n; z++) {
		lu_receive_line_of_points(l, z, 0, l->rank - 1, TAG_FORE);
		for (int y = 1; y <= l->columns; y++)
			for (int x = 1; x <= l->n; x++)
				lu_relax_point(l, z, y, x);
		lu_send_line_of_points(l, z, l->columns, l->rank + 1, TAG_FORE);
	}
}

/* Relaxes the points in descending order; each plane needs a line of points of the next rank. */
static void lu_sweep_backward(const struct lu *l)
{
	for (int z = l->n; z >= 1; z--) {
		lu_receive_line_of_points(l, z, l->columns + 1, l->rank + 1, TAG_BACK);
		for (int y = l->columns; y >= 1; y--)
			for (int x = l->n; x >= 1; x--)
				lu_relax_point(l, z, y, x);
		lu_send_line_of_points(l, z, 1, l->rank - 1, TAG_BACK);
	}
}

/* Exchanges the current values of the outermost columns with both neighbouring ranks. */
static void lu_exchange_borders(const struct lu *l)
{
	for (int z = 1; z <= l->n; z++) {
		lu_send_line_of_points(l, z, l->columns, l->rank + 1, TAG_SIDES);
		lu_receive_line_of_points(l, z, 0, l->rank - 1, TAG_SIDES);
		lu_send_line_of_points(l, z, 1, l->rank - 1, TAG_SIDES);
		lu_receive_line_of_points(l, z, l->columns + 1, l->rank + 1, TAG_SIDES);
	}
}

double run_lu_kernel_and_return_residual(int n)
{
	struct lu l = { .rank = own_rank(), .ranks = all_ranks(), .n = n };
	double own[2] = { 0, 0 }, all[2];
	size_t points;

	l.columns = n / l.ranks;
	points = (size_t)(n + 2) * (size_t)(l.columns + 2) * (size_t)(n + 2);
	l.x = alloc_zeroed(points, sizeof(double));
	l.b = alloc_zeroed(points, sizeof(double));
	for (int z = 1; z <= n; z++)
		for (int y = 1; y <= l.columns; y++)
			for (int x = 1; x <= n; x++)
				l.b[lu_index_of_point(&l, z, y, x)] =
					cos(0.3 * z + 0.7 * (l.rank * l.columns + y) + 1.1 * x);
	for (int i = 0; i < SWEEPS; i++) {
		lu_sweep_forward(&l);
		lu_sweep_backward(&l);
		lu_exchange_borders(&l);
	}
	for (int z = 1; z <= n; z++)
		for (int y = 1; y <= l.columns; y++)
			for (int x = 1; x <= n; x++) {
				double b = l.b[lu_index_of_point(&l, z, y, x)];
				double r = b - (7 * l.x[lu_index_of_point(&l, z, y, x)] -
						lu_sum_of_neighbour_cells(&l, z, y, x));

				own[0] += r * r;
				own[1] += b * b;
			}
	MPI_Allreduce(own, all, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	free(l.x);
	free(l.b);
	return sqrt(all[0] / all[1]);
}
