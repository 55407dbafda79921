/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpi_pingpong lat|bw OCTETS MESSAGES: latency or bandwidth between two ranks of an MPI, compiled
 * by `siwarp bench all` with the MPI's own mpicc.
 *
 * lat: the median of half a round trip, in us. bw: GB/s of 10^9 octets of a stream with WINDOW
 * messages outstanding. Rank 0 prints the figure.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 16

static char *buffer;
static int rank, size, count;

static int compare_times(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void exchange_messages(int n, double *times)
{
	for (int i = 0; i < n; i++) {
		double start = MPI_Wtime();

		if (rank == 0)
			MPI_Send(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(buffer, size, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
		if (times)
			times[i] = MPI_Wtime() - start;
	}
}

static double measure_latency(void)
{
	double *times = calloc((size_t)count, sizeof(*times)), median;

	if (!times)
		MPI_Abort(MPI_COMM_WORLD, 1);
	exchange_messages(count / 10 + 1, NULL);
	exchange_messages(count, times);
	qsort(times, (size_t)count, sizeof(*times), compare_times);
	median = times[count / 2];
	free(times);
	return median / 2 * 1e6;
}

/* Transfer n windows of messages; the peer answers the last one. */
static void transfer_windows_of_messages(int n)
{
	MPI_Request requests[WINDOW];

	for (int i = 0; i < n; i++) {
		for (int j = 0; j < WINDOW; j++)
			if (rank == 0)
				MPI_Isend(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD,
					  &requests[j]);
			else
				MPI_Irecv(buffer + (size_t)j * (size_t)size, size, MPI_CHAR, 0, 0,
					  MPI_COMM_WORLD, &requests[j]);
		MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	}
	if (rank == 0)
		MPI_Recv(NULL, 0, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(NULL, 0, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
}

static double measure_bandwidth(void)
{
	int windows = (count + WINDOW - 1) / WINDOW;
	double start;

	transfer_windows_of_messages(windows / 10 + 1);
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	transfer_windows_of_messages(windows);
	return (double)windows * WINDOW * size / (MPI_Wtime() - start) / 1e9;
}

int main(int argc, char **argv)
{
	double figure;
	int ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc == 4) {
		size = atoi(argv[2]);
		count = atoi(argv[3]);
	}
	if (ranks != 2 || size <= 0 || count <= 0) {
		fprintf(stderr, "two ranks run mpi_pingpong lat|bw OCTETS MESSAGES\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	buffer = calloc(WINDOW, (size_t)size);
	if (!buffer)
		MPI_Abort(MPI_COMM_WORLD, 1);
	figure = strcmp(argv[1], "bw") ? measure_latency() : measure_bandwidth();
	if (rank == 0)
		printf("figure %.6g\n", figure);
	free(buffer);
	MPI_Finalize();
	return 0;
}
