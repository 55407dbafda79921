/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_sockets.h - opens sockets on one port at all addresses of a device: for listeners, and
 * for the UDP sockets of a queue pair. Progress lock held unless stated otherwise.
 */
#ifndef SIW_QP_SOCKETS_H
#define SIW_QP_SOCKETS_H

#include "device/device.h"

#define SIW_MAX_ADDRS (sizeof(((struct siw_device_info *)0)->addrs) / sizeof(struct siw_addr))

struct siw_every_addr {
	/*
	 * Opens a socket or listener at *addr. Port 0: at any free port, which is stored in *addr.
	 * 0 or -errno.
	 */
	int (*open)(struct siw_every_addr *self, struct siw_addr *addr);
	/* Closes everything that open has opened. */
	void (*undo)(struct siw_every_addr *self);
};
/*
 * Calls how->open for each address of the device with port *number. 0: a port that is free at all
 * of them, which is stored in *number. An address that cannot be bound yet, for example an IPv6
 * address still under duplicate address detection, is left out. 0; or -EADDRINUSE, -EADDRNOTAVAIL
 * (there is no address) or another -errno, with nothing left open.
 */
int siw_open_every_addr(const struct siw_context *ctx, uint16_t *number,
			struct siw_every_addr *how);

struct siw_addr_socks;

/* A UDP socket at one address. It lives as long as its struct siw_addr_socks. */
struct siw_addr_sock {
	struct siw_io_handler handler; /* must be first */
	struct siw_addr_socks *socks;
	struct siw_llp_sock *sock;
	struct siw_addr addr;
	_Atomic bool lost;	      /* the device does not have the address at present */
	_Atomic bool sends_to_groups; /* the socket is set up for sending to multicast groups */
};

/* The sockets, one per address, of a UD or UC queue pair or of the queue pairs that share them. */
struct siw_addr_socks {
	struct siw_every_addr how; /* must be first */
	struct siw_context *ctx;
	/* passed on to serve by the caller of siw_addr_socks_open(); under the progress lock */
	void *server;
	int (*serve)(struct siw_addr_sock *end);
	uint16_t port;
	bool shared; /* several queue pairs send on them */
	/* written with the progress lock held; any thread may read the first n entries of at */
	_Atomic uint32_t n;
	struct siw_addr_sock *at[SIW_MAX_ADDRS];
	/*
	 * Default sources for datagrams to IPv4, IPv6 and IPv6 link-local destinations; NULL: none.
	 */
	struct siw_addr_sock *_Atomic first[3];
};

/*
 * Opens the sockets; port 0: any. serve: as in struct siw_io_handler; end->ends->server is the
 * caller's server. 0, -ENOMEM or as siw_open_every_addr().
 */
int siw_addr_socks_open(struct siw_context *ctx, uint16_t port, void *server,
			int (*serve)(struct siw_addr_sock *end), struct siw_addr_socks **out);
void siw_addr_socks_close(struct siw_addr_socks *ends);
/* Called when several queue pairs start to send on the sockets. */
void siw_addr_socks_share(struct siw_addr_socks *ends);
/*
 * Follows a change of the device's addresses: opens sockets at new addresses, as far as there is
 * room in the table and the port is free there. Sockets of addresses that are gone are kept,
 * because the address may return.
 */
void siw_addr_socks_update(struct siw_addr_socks *ends);
/*
 * The socket that a datagram to dest is sent from: the socket at source (whose port is ignored),
 * or, if source has no family, the socket at the device's first address of dest's family,
 * link-local if dest is. NULL: there is none. May be called by any thread.
 */
struct siw_addr_sock *siw_addr_socks_find(const struct siw_addr_socks *ends,
					  const struct siw_addr *dest,
					  const struct siw_addr *source);

#endif
