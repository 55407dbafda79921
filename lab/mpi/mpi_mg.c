/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <math.h>

#include "lab/mpi/mpi_kernels.h"
#include "lab/mpi/mpi_util.h"

#define CYCLES	 12
#define SMOOTHS	 3  /* smoothing steps before and after each coarser level */
#define COARSEST 40 /* smoothing steps on the coarsest level */
#define MOST	 12 /* maximum number of levels */
#define WEIGHT	 (6.0 / 7.0)
#define TAG_UP	 1
#define TAG_DOWN 2

/*
 * A level of the cube: n points per side, periodic. This rank has some planes of the level, and on
 * each side a copy of one plane of the neighbouring rank.
 */
struct level {
	int n;
	int planes;
	double scale; /* 1 / h^2, where h is the grid spacing of the level */
	double *x;
	double *b;
	double *r;
};

struct mg {
	int rank;
	int ranks;
	int levels;
	struct level level[MOST];
};

static size_t mg_points_per_plane(const struct level *l)
{
	return (size_t)l->n * (size_t)l->n;
}

static size_t mg_index_of_point(const struct level *l, int z, int y, int x)
{
	int n = l->n;

	return ((size_t)z * n + (size_t)((y + n) % n)) * n + (size_t)((x + n) % n);
}

/*
 * Exchanges planes with both neighbouring ranks: receives their adjacent planes as plane 0 and
 * plane `planes` + 1, and sends this rank's first and last plane.
 */
static void mg_exchange_planes(const struct mg *m, const struct level *l, double *v)
{
	int up = (m->rank + 1) % m->ranks, down = (m->rank + m->ranks - 1) % m->ranks;
	int octets = (int)(mg_points_per_plane(l) * sizeof(*v));
	MPI_Request requests[4];

	MPI_Irecv(v, octets, MPI_BYTE, down, TAG_UP, MPI_COMM_WORLD, &requests[0]);
	MPI_Irecv(v + (l->planes + 1) * mg_points_per_plane(l), octets, MPI_BYTE, up, TAG_DOWN,
		  MPI_COMM_WORLD, &requests[1]);
	MPI_Isend(v + l->planes * mg_points_per_plane(l), octets, MPI_BYTE, up, TAG_UP,
		  MPI_COMM_WORLD, &requests[2]);
	MPI_Isend(v + mg_points_per_plane(l), octets, MPI_BYTE, down, TAG_DOWN, MPI_COMM_WORLD,
		  &requests[3]);
	MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

/* r = b - A x, where A is the seven-point Laplacian plus the identity. */
static void mg_compute_residual(const struct mg *m, const struct level *l)
{
	mg_exchange_planes(m, l, l->x);
	for (int z = 1; z <= l->planes; z++)
		for (int y = 0; y < l->n; y++)
			for (int x = 0; x < l->n; x++) {
				size_t i = mg_index_of_point(l, z, y, x);
				double around = l->x[i - mg_points_per_plane(l)] +
						l->x[i + mg_points_per_plane(l)] +
						l->x[mg_index_of_point(l, z, y - 1, x)] +
						l->x[mg_index_of_point(l, z, y + 1, x)] +
						l->x[mg_index_of_point(l, z, y, x - 1)] +
						l->x[mg_index_of_point(l, z, y, x + 1)];

				l->r[i] = l->b[i] - (l->scale * (6 * l->x[i] - around) + l->x[i]);
			}
}

static void mg_smooth(const struct mg *m, const struct level *l, int times)
{
	double step = WEIGHT / (6 * l->scale + 1);

	for (; times > 0; times--) {
		mg_compute_residual(m, l);
		for (size_t i = mg_points_per_plane(l);
		     i < (size_t)(l->planes + 1) * mg_points_per_plane(l); i++)
			l->x[i] += step * l->r[i];
	}
}

/* Sets b of the coarser level: each value is the mean of eight residuals of the finer level. */
static void mg_restrict_residual(const struct level *fine, const struct level *coarse)
{
	for (int z = 0; z < coarse->planes; z++)
		for (int y = 0; y < coarse->n; y++)
			for (int x = 0; x < coarse->n; x++) {
				double mean = 0;

				for (int k = 0; k < 8; k++)
					mean += fine->r[mg_index_of_point(fine, 2 * z + 1 + (k & 1),
									  2 * y + (k >> 1 & 1),
									  2 * x + (k >> 2))];
				coarse->b[mg_index_of_point(coarse, z + 1, y, x)] = mean / 8;
			}
}

/* Adds the solution of the coarser level to each point of the finer level. */
static void mg_add_coarse_correction(const struct level *coarse, const struct level *fine)
{
	for (int z = 0; z < fine->planes; z++)
		for (int y = 0; y < fine->n; y++)
			for (int x = 0; x < fine->n; x++)
				fine->x[mg_index_of_point(fine, z + 1, y, x)] +=
					coarse->x[mg_index_of_point(coarse, z / 2 + 1, y / 2,
								    x / 2)];
}

static void mg_run_v_cycle(const struct mg *m, int depth)
{
	const struct level *l = &m->level[depth];

	if (depth + 1 == m->levels) {
		mg_smooth(m, l, COARSEST);
		return;
	}
	mg_smooth(m, l, SMOOTHS);
	mg_compute_residual(m, l);
	mg_restrict_residual(l, l + 1);
	memset(l[1].x, 0, (size_t)(l[1].planes + 2) * mg_points_per_plane(l + 1) * sizeof(*l[1].x));
	mg_run_v_cycle(m, depth + 1);
	mg_add_coarse_correction(l + 1, l);
	mg_smooth(m, l, SMOOTHS);
}

static double mg_norm(const struct level *l, const double *v)
{
	double own = 0, all;

	for (size_t i = mg_points_per_plane(l);
	     i < (size_t)(l->planes + 1) * mg_points_per_plane(l); i++)
		own += v[i] * v[i];
	MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return sqrt(all);
}

static void mg_create_levels(struct mg *m, int n)
{
	/*
	 * Each rank has complete planes of every level, and twice as many planes as on the next
	 * coarser level.
	 */
	for (; m->levels < MOST && n % m->ranks == 0 && n >= 4; n /= 2) {
		struct level *l = &m->level[m->levels++];
		size_t points;

		l->n = n;
		l->planes = n / m->ranks;
		l->scale = (double)n * n / 1000;
		points = (size_t)(l->planes + 2) * mg_points_per_plane(l);
		l->x = alloc_zeroed(points, sizeof(double));
		l->b = alloc_zeroed(points, sizeof(double));
		l->r = alloc_zeroed(points, sizeof(double));
	}
}

double run_mg_kernel_and_return_residual(int n)
{
	struct mg m = { .rank = own_rank(), .ranks = all_ranks() };
	const struct level *top = &m.level[0];
	double off;

	mg_create_levels(&m, n);
	for (size_t i = mg_points_per_plane(top);
	     i < (size_t)(top->planes + 1) * mg_points_per_plane(top); i++)
		top->b[i] = sin(0.11 * (double)(i + (size_t)m.rank * top->planes *
							    mg_points_per_plane(top)));
	for (int i = 0; i < CYCLES; i++)
		mg_run_v_cycle(&m, 0);
	mg_compute_residual(&m, top);
	off = mg_norm(top, top->r) / mg_norm(top, top->b);
	for (int i = 0; i < m.levels; i++) {
		free(m.level[i].x);
		free(m.level[i].b);
		free(m.level[i].r);
	}
	return off;
}
