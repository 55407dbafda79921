/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * wan/wan.h - a relay of IP packets between two network namespaces, a and b, that impairs them by a
 * plan of faults (base/faults.h): tx: is from a to b, rx: from b to a, a peer is b's end of the
 * packet. Without root everything is in a user namespace of its own.
 *
 * What this program does NOT do: look into packets beyond addresses and ports. Reset and short are
 * of streams and mean nothing here.
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

/* Where another process finds the namespaces of a relay: /proc/PID/fd/... */
#define WAN_FD_A 200
#define WAN_FD_B 201

enum { WAN_A, WAN_B };

/* ---- wan_space.c: namespaces. 0 or a descriptor, or -1 and a message on stderr --------------- */

struct wan_space {
	int ns;	 /* descriptor of the network namespace */
	int tun; /* of its interface wan0; packets without a header */
};

/* Makes both namespaces, up and with addresses. This process ends up in b. */
int wan_spaces_open(struct wan_space spaces[2], int mtu);
/* Starts a program in a namespace; in a process group of its own if `apart`. Its PID or -1. */
pid_t wan_start(const struct wan_space *space, char *const argv[], bool apart);
/* Becomes a program in namespace which of the relay `pid`; returns an exit status if it cannot. */
int wan_enter(pid_t pid, int which, char *const argv[]);

/* ---- wan_relay.c ----------------------------------------------------------------------------- */

struct wan_stats {
	uint64_t packets, octets; /* that came to the relay */
	uint64_t passed;	  /* that left it, copies too */
	uint64_t lost, blackout, full, copies, reordered, corrupted, marked;
};

struct wan_relay;
struct wan_relay *wan_relay_new(const struct siw_faults *plan, const struct wan_space spaces[2]);
void wan_relay_free(struct wan_relay *relay);
/*
 * Moves packets until other_fd (or -1) is readable or so many ns are over (-1: none).
 * 0, or -1 and a message.
 */
int wan_relay_run(struct wan_relay *relay, int other_fd, int64_t ns);
/* From a to b, and from b to a. */
const struct wan_stats *wan_relay_stats(const struct wan_relay *relay, int from);

#endif
