/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpi_peers SIZE: the memory of a rank after it has exchanged checked messages of SIZE octets with
 * every other rank. Rank 0 prints the sums over all ranks.
 */
#include "lab/mpi/mpi_held.h"
#include "lab/mpi/mpi_process.h"
#include "lab/mpi/mpi_util.h"

#define LAPS 3

enum { PSS, HELD, UDP, TCP, KERNEL, SECONDS_US, FIGURES };

static const char *const names[FIGURES] = { "pss", "held", "udp", "tcp", "kernel", "us" };

static unsigned char peers_expected_octet(int from, int to, int lap, int at)
{
	return (unsigned char)(from * 31 + to * 7 + lap * 3 + at * 13);
}

/* Sends a message to one rank and receives a message from another; checks each received octet. */
static void peers_exchange_and_check_messages(int to, int from, int lap, unsigned char *out,
					      unsigned char *in, int size)
{
	int rank = own_rank();

	for (int at = 0; at < size; at++)
		out[at] = peers_expected_octet(rank, to, lap, at);
	memset(in, 0, (size_t)size);
	MPI_Sendrecv(out, size, MPI_BYTE, to, lap, in, size, MPI_BYTE, from, lap, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (int at = 0; at < size; at++)
		if (in[at] != peers_expected_octet(from, rank, lap, at))
			abort_job("from %d to %d: octet %d is wrong", from, rank, at);
}

int main(int argc, char **argv)
{
	long long figures[FIGURES] = { 0 }, sums[FIGURES] = { 0 };
	int size = argc > 1 ? atoi(argv[1]) : 0, rank, ranks;
	struct process_sockets sockets;
	unsigned char *out, *in;
	double began;

	heap_start_counting();
	MPI_Init(&argc, &argv);
	if (size < 1)
		abort_job("mpi_peers SIZE");
	rank = own_rank();
	ranks = all_ranks();
	out = alloc_zeroed(1, (size_t)size);
	in = alloc_zeroed(1, (size_t)size);
	began = MPI_Wtime();
	for (int lap = 0; lap < LAPS; lap++)
		for (int step = 1; step < ranks; step++)
			peers_exchange_and_check_messages((rank + step) % ranks,
							  (rank + ranks - step) % ranks, lap, out,
							  in, size);
	MPI_Barrier(MPI_COMM_WORLD);
	figures[SECONDS_US] = (long long)((MPI_Wtime() - began) * 1e6);
	figures[PSS] = read_pss_of_own_process();
	figures[HELD] = heap_octets_of_siwarp();
	if (figures[PSS] < 0 || process_count_sockets(&sockets))
		abort_job("/proc/self cannot be read");
	figures[UDP] = sockets.udp;
	figures[TCP] = sockets.tcp;
	figures[KERNEL] = sockets.kernel;
	/* No rank may end before all ranks have measured their memory. */
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Reduce(figures, sums, FIGURES, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("{\"ranks\": %d", ranks);
		for (int i = 0; i < FIGURES; i++)
			printf(", \"%s\": %lld", names[i], sums[i]);
		printf("}\n");
	}
	finalize_job();
	return 0;
}
