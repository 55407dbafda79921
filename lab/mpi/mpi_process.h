/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What this process has of memory and of sockets, as the kernel tells it. */
#ifndef SIW_BENCH_MPI_PROCESS_H
#define SIW_BENCH_MPI_PROCESS_H

struct process_sockets {
	long long udp, tcp; /* how many */
	long long kernel; /* octets that the kernel has allocated for what they sent and received */
};

/* Octets of this process: its own, and its share of what it has in common; -1: not known. */
long long process_pss(void);
/* The sockets of UDP and TCP that this process has: 0, or -1 if that is not known. */
int process_sockets(struct process_sockets *sockets);

#endif
