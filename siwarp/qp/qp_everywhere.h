/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_everywhere.h - one port at all addresses of a device: listeners, and the UDP sockets of a
 * queue pair. progress held, unless said otherwise.
 */
#ifndef SIW_QP_EVERYWHERE_H
#define SIW_QP_EVERYWHERE_H

#include "verbs/verbs.h"

#define SIW_MAX_ADDRS (sizeof(((struct siw_device_info *)0)->addrs) / sizeof(struct siw_addr))

/* ---- qp_everywhere.c ------------------------------------------------------------------------- */

struct siw_everywhere {
	/* Opens one at *addr. Port 0: at any, which it then puts into *addr. 0 or -errno. */
	int (*open)(struct siw_everywhere *self, struct siw_addr *addr);
	/* Closes what was opened. */
	void (*undo)(struct siw_everywhere *self);
};
/*
 * Opens one at each address of the device, all at port *number; 0: at one that is free at all of
 * them, which *number becomes. An address that cannot be bound yet, such as an IPv6 one that is
 * still being tried for duplicates, is left out. 0; or -EADDRINUSE, -EADDRNOTAVAIL (there is no
 * address) or another -errno, and nothing is open.
 */
int siw_qp_everywhere(const struct siw_context *ctx, uint16_t *number, struct siw_everywhere *how);

/* ---- qp_ends.c ------------------------------------------------------------------------------- */

struct siw_ends;

/* A UDP socket at one address. It lives as long as its struct siw_ends. */
struct siw_end {
	struct siw_io_handler handler; /* first */
	struct siw_ends *ends;
	struct siw_llp_sock *sock;
	struct siw_addr addr;
	_Atomic bool lost;	      /* the device does not have the address now */
	_Atomic bool sends_to_groups; /* it is set up for sending to groups */
};

/* The sockets of a UD or UC queue pair, or of those that share them, at every address. */
struct siw_ends {
	struct siw_everywhere how; /* first */
	struct siw_context *ctx;
	void *server; /* who serves them; progress */
	int (*serve)(struct siw_end *end);
	uint16_t port;
	bool shared; /* several queue pairs send on them */
	/* progress to write; any thread may read the first n */
	_Atomic uint32_t n;
	struct siw_end *at[SIW_MAX_ADDRS];
	/* Where those send from that do not say: IPv4, IPv6, IPv6 on the link alone; or NULL. */
	struct siw_end *_Atomic first[3];
};

/*
 * Opens them; port: 0: any. serve: as that of struct siw_io_handler; the end's ends->server is the
 * caller's. 0, -ENOMEM or as siw_qp_everywhere.
 */
int siw_ends_open(struct siw_context *ctx, uint16_t port, void *server,
		  int (*serve)(struct siw_end *end), struct siw_ends **out);
void siw_ends_close(struct siw_ends *ends);
/* From now on several queue pairs send on them. */
void siw_ends_share(struct siw_ends *ends);
/*
 * The device's addresses may have changed: new ones get a socket, as far as there is room for them
 * and the port is free there; the sockets of those that are gone stay, in case they come back.
 */
void siw_ends_follow(struct siw_ends *ends);
/*
 * Where a datagram to dest leaves: at source (its port is ignored), or, if that has no family, at
 * the device's first address of dest's family, on the link alone as dest is or not. NULL: there is
 * no such end. Any thread.
 */
struct siw_end *siw_ends_for(const struct siw_ends *ends, const struct siw_addr *dest,
			     const struct siw_addr *source);

#endif
