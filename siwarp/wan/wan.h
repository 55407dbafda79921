/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * wan/wan.h - a relay of IP packets between two network namespaces, a and b, that applies a fault
 * plan (base/faults.h) to the packets: tx: clauses apply from a to b, rx: clauses from b to a, and
 * peer= is compared with a packet's address in b. Without root privileges the namespaces are
 * created in a new user namespace.
 *
 * The relay does not inspect packets beyond addresses and ports. The clauses reset= and short=,
 * which apply to streams, are refused.
 */
#ifndef SIW_WAN_H
#define SIW_WAN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/faults.h"

#define WAN_ADDR_A  "10.77.0.1"
#define WAN_ADDR_B  "10.77.0.2"
#define WAN_ADDR6_A "fd77::1"
#define WAN_ADDR6_B "fd77::2"

/* Descriptors of the relay's namespaces, which other processes open as /proc/PID/fd/... */
#define WAN_FD_A 200
#define WAN_FD_B 201

enum { WAN_A, WAN_B };

/* ---- wan_space.c: namespaces. 0 or a descriptor, or -1 and a message on stderr --------------- */

struct wan_space {
	int ns;	 /* descriptor of the network namespace */
	int tun; /* descriptor of the TUN interface wan0; packets have no TUN header */
};

/*
 * Creates both namespaces, sets their interfaces up and their addresses, and leaves the process in
 * b.
 */
int wan_namespaces_create(struct wan_space spaces[2], int mtu);
/*
 * Starts a program in a namespace, and in a new process group if `apart` is set. Returns the PID or
 * -1.
 */
pid_t wan_fork_and_exec_command(const struct wan_space *space, char *const argv[], bool apart);
/*
 * Replaces the calling process by a program in namespace `which` of the relay process `pid`.
 * Returns only on failure, with an exit status.
 */
int wan_exec_in_namespace(pid_t pid, int which, char *const argv[]);

/* ---- wan_relay.c ----------------------------------------------------------------------------- */

struct wan_stats {
	uint64_t packets, octets; /* packets and octets that the relay has received */
	uint64_t passed;	  /* packets that the relay has sent, including duplicates */
	uint64_t lost, blackout, full, copies, reordered, corrupted, marked;
};

struct wan_relay;
struct wan_relay *wan_relay_new(const struct siw_faults *plan, const struct wan_space spaces[2]);
void wan_relay_free(struct wan_relay *relay);
/*
 * Relays packets until other_fd (-1: none) is readable and all packets that were sent before that
 * are relayed, or for ns nanoseconds (-1: no limit). Returns 0, or -1 after a message on stderr.
 */
int wan_relay_run(struct wan_relay *relay, int other_fd, int64_t ns);
/* Returns the statistics of one direction; from: WAN_A for a to b, WAN_B for b to a. */
const struct wan_stats *wan_relay_stats(const struct wan_relay *relay, int from);

#endif
