/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpi_kernels cg|mg|lu SIZE: the time of a solver, and the part of this time that the ranks spent
 * in communication. The residual must be small: a message with wrong octets, or a message that
 * arrives too late, makes the residual large.
 */
#include <math.h>

#include "lab/mpi/mpi_kernels.h"
#include "lab/mpi/mpi_time.h"
#include "lab/mpi/mpi_util.h"

static const struct kernel {
	const char *name;
	double (*solve)(int size);
	double most; /* largest acceptable residual */
} kernels[] = {
	{ "cg", run_cg_kernel_and_return_residual, 1e-9 },
	{ "mg", run_mg_kernel_and_return_residual, 1e-6 },
	{ "lu", run_lu_kernel_and_return_residual, 1e-6 },
};

static void mpi_kernel_measure_and_print_times(const struct kernel *k, int size)
{
	double began, residual, own[2], longest[2], sums[2];
	long long calls, all_calls;

	MPI_Barrier(MPI_COMM_WORLD);
	communication_reset_statistics();
	began = PMPI_Wtime();
	residual = k->solve(size);
	own[0] = PMPI_Wtime() - began;
	own[1] = communication_seconds();
	calls = communication_call_count();
	if (!(residual <= k->most))
		abort_job("%s of %d: the residual is %g, more than %g", k->name, size, residual,
			  k->most);
	PMPI_Reduce(own, longest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	PMPI_Reduce(own, sums, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	PMPI_Reduce(&calls, &all_calls, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (own_rank() == 0)
		printf("{\"kernel\": \"%s\", \"size\": %d, \"ranks\": %d, \"seconds\": %.6f, "
		       "\"communication\": %.6f, \"calls\": %lld, \"residual\": %.3g}\n",
		       k->name, size, all_ranks(), longest[0], sums[1] / all_ranks(), all_calls,
		       residual);
}

int main(int argc, char **argv)
{
	int size = argc == 3 ? atoi(argv[2]) : 0;
	const struct kernel *found = NULL;

	MPI_Init(&argc, &argv);
	for (size_t i = 0; argc == 3 && i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(argv[1], kernels[i].name) == 0)
			found = &kernels[i];
	if (!found || size < 8 || size % all_ranks())
		abort_job("mpi_kernels cg|mg|lu SIZE, a multiple of the ranks");
	mpi_kernel_measure_and_print_times(found, size);
	finalize_job();
	return 0;
}
