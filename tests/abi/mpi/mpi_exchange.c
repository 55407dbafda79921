/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests MPI communication patterns with checked data: mpi_exchange hello|ring|alltoall [OCTETS
 * [LAPS of the ring]]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the octet at offset `at` of a message from rank `from` to rank `to`. */
static unsigned char message_octet(int from, int to, size_t at)
{
	return (unsigned char)(from * 31 + to * 7 + at * 13 + (at >> 8));
}

static void fill_message(unsigned char *to_send, int from, int to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to_send[i] = message_octet(from, to, i);
}

static int report_first_difference(const unsigned char *came, int from, int to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (came[i] != message_octet(from, to, i)) {
			fprintf(stderr, "from %d to %d: octet %zu is wrong\n", from, to, i);
			return 1;
		}
	return 0;
}

static int check_allreduce(int rank, int ranks)
{
	int sum = 0;

	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	return sum != ranks * (ranks - 1) / 2;
}

static int check_exchange_with_ring_neighbours(int rank, int ranks, size_t size, long laps)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, bad = 0;
	unsigned char *out = malloc(size), *in = malloc(size);

	for (long lap = 0; lap < laps && !bad; lap++) {
		fill_message(out, rank, next, size);
		memset(in, 0, size);
		MPI_Sendrecv(out, (int)size, MPI_BYTE, next, 1, in, (int)size, MPI_BYTE, before, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		bad = report_first_difference(in, before, rank, size);
	}
	free(out);
	free(in);
	return bad;
}

static int check_alltoall(int rank, int ranks, size_t size)
{
	unsigned char *out = malloc(size * ranks), *in = calloc(ranks, size);
	int bad = 0;

	for (int to = 0; to < ranks; to++)
		fill_message(out + to * size, rank, to, size);
	MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		bad += report_first_difference(in + from * size, from, rank, size);
	free(out);
	free(in);
	return bad;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	size_t size = argc > 2 ? strtoul(argv[2], NULL, 10) : 1024;
	long laps = argc > 3 ? strtol(argv[3], NULL, 10) : 10;
	int rank, ranks, bad, all = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (strcmp(what, "ring") == 0)
		bad = check_exchange_with_ring_neighbours(rank, ranks, size, laps);
	else if (strcmp(what, "alltoall") == 0)
		bad = check_alltoall(rank, ranks, size);
	else
		bad = check_allreduce(rank, ranks);
	MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && !all)
		printf("%s of %d ranks: data correct\n", what, ranks);
	MPI_Finalize();
	return all != 0;
}
