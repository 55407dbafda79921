/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Memory and sockets of the calling process, as reported by the kernel. */
#ifndef SIW_BENCH_MPI_PROCESS_H
#define SIW_BENCH_MPI_PROCESS_H

struct process_sockets {
	long long udp, tcp; /* numbers of UDP and TCP sockets */
	long long kernel;   /* octets that the kernel has allocated for data sent and received */
};

/* Returns the proportional set size of the calling process in octets, or -1 if it is unknown. */
long long read_pss_of_own_process(void);
/*
 * Counts the UDP and TCP sockets of the calling process. Returns 0, or -1 if /proc is unreadable.
 */
int process_count_sockets(struct process_sockets *sockets);

#endif
