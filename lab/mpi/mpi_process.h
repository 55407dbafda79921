/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Memory and sockets of this process, as reported by the kernel. */
#ifndef SIW_BENCH_MPI_PROCESS_H
#define SIW_BENCH_MPI_PROCESS_H

struct process_sockets {
	long long udp, tcp; /* numbers of UDP and TCP sockets */
	long long kernel;   /* octets that the kernel has allocated for data sent and received */
};

/* Proportional set size of this process in octets; -1: unknown. */
long long process_pss(void);
/* Counts the UDP and TCP sockets of this process. Returns 0, or -1 if they are unknown. */
int process_sockets(struct process_sockets *sockets);

#endif
