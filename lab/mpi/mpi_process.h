/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Memory and sockets of this process, as reported by the kernel. */
#ifndef SIW_BENCH_MPI_PROCESS_H
#define SIW_BENCH_MPI_PROCESS_H

struct process_sockets {
	long long udp, tcp; /* number of sockets */
	long long kernel;   /* octets that the kernel has allocated for sent and received data */
};

/* Octets of this process: private memory and its share of shared memory; -1: unknown. */
long long process_pss(void);
/* Count this process's UDP and TCP sockets; return 0, or -1 if they are unknown. */
int process_sockets(struct process_sockets *sockets);

#endif
