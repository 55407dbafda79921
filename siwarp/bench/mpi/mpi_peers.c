/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpi_peers SIZE: what a rank's memory is once it has exchanged checked messages of SIZE octets
 * with every other rank. Rank 0 prints the sums over all ranks.
 */
#include <dirent.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/mpi/mpi_held.h"
#include "bench/mpi/mpi_util.h"

#define LAPS 3

enum { PSS, HELD, UDP, TCP, KERNEL, SECONDS_US, FIGURES };

static const char *const names[FIGURES] = { "pss", "held", "udp", "tcp", "kernel", "us" };

static unsigned char octet(int from, int to, int lap, int at)
{
	return (unsigned char)(from * 31 + to * 7 + lap * 3 + at * 13);
}

/* One message to a rank and one from another; each octet is looked at. */
static void exchange(int to, int from, int lap, unsigned char *out, unsigned char *in, int size)
{
	int rank = own_rank();

	for (int at = 0; at < size; at++)
		out[at] = octet(rank, to, lap, at);
	memset(in, 0, (size_t)size);
	MPI_Sendrecv(out, size, MPI_BYTE, to, lap, in, size, MPI_BYTE, from, lap, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (int at = 0; at < size; at++)
		if (in[at] != octet(from, rank, lap, at))
			give_up("from %d to %d: octet %d is wrong", from, rank, at);
}

/* Octets of this process: its own, and its share of what it has in common with others. */
static long long own_pss(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	long long kib = -1;
	char line[256];

	if (!file)
		give_up("/proc/self/smaps_rollup cannot be read");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %lld kB", &kib) == 1)
			break;
	fclose(file);
	return kib * 1024;
}

/* Octets that the kernel has allocated for what a socket sent and received. */
static long long of_socket(int fd)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };
	socklen_t size = sizeof(info);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &size))
		return 0;
	return (long long)info[SK_MEMINFO_RMEM_ALLOC] + info[SK_MEMINFO_WMEM_ALLOC] +
	       info[SK_MEMINFO_FWD_ALLOC] + info[SK_MEMINFO_WMEM_QUEUED] + info[SK_MEMINFO_OPTMEM] +
	       info[SK_MEMINFO_BACKLOG];
}

/* The sockets of UDP and TCP that this process has. */
static void of_sockets(long long *figures)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;

	if (!fds)
		give_up("/proc/self/fd cannot be read");
	while ((entry = readdir(fds))) {
		int fd = atoi(entry->d_name), domain, type;
		socklen_t size = sizeof(int);

		if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) ||
		    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) ||
		    (domain != AF_INET && domain != AF_INET6))
			continue;
		figures[type == SOCK_DGRAM ? UDP : TCP]++;
		figures[KERNEL] += of_socket(fd);
	}
	closedir(fds);
}

int main(int argc, char **argv)
{
	long long figures[FIGURES] = { 0 }, sums[FIGURES] = { 0 };
	int size = argc > 1 ? atoi(argv[1]) : 0, rank, ranks;
	unsigned char *out, *in;
	double began;

	held_begin();
	MPI_Init(&argc, &argv);
	if (size < 1)
		give_up("mpi_peers SIZE");
	rank = own_rank();
	ranks = all_ranks();
	out = made(1, (size_t)size);
	in = made(1, (size_t)size);
	began = MPI_Wtime();
	for (int lap = 0; lap < LAPS; lap++)
		for (int step = 1; step < ranks; step++)
			exchange((rank + step) % ranks, (rank + ranks - step) % ranks, lap, out, in,
				 size);
	MPI_Barrier(MPI_COMM_WORLD);
	figures[SECONDS_US] = (long long)((MPI_Wtime() - began) * 1e6);
	figures[PSS] = own_pss();
	figures[HELD] = held_now();
	of_sockets(figures);
	/* Nobody ends before all have looked. */
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Reduce(figures, sums, FIGURES, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("{\"ranks\": %d", ranks);
		for (int i = 0; i < FIGURES; i++)
			printf(", \"%s\": %lld", names[i], sums[i]);
		printf("}\n");
	}
	finish();
	return 0;
}
