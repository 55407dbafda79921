/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_sockets.h - sockets on one port at all addresses of a device, which follow the addresses:
 * for listeners, and for the UDP sockets of a queue pair. The lock of their lane is held unless
 * stated otherwise.
 */
#ifndef SIW_QP_SOCKETS_H
#define SIW_QP_SOCKETS_H

#include "device/device.h"

#define SIW_MAX_ADDRS (sizeof(((struct siw_device_info *)0)->addrs) / sizeof(struct siw_addr))

/* Sockets or listeners on one port, one at each address of a device. */
struct siw_every_addr {
	/*
	 * Opens a socket or listener at *addr. If the port is 0, any free port is used and stored
	 * in *addr. Returns 0 or -errno.
	 */
	int (*open)(struct siw_every_addr *self, struct siw_addr *addr);
	/* Closes all sockets or listeners that the member open has opened. */
	void (*undo)(struct siw_every_addr *self);
	/* NULL, or called when sockets have been opened at the addresses that the device has now */
	void (*updated)(struct siw_every_addr *self);
	/* The members below belong to qp_sockets.c. */
	struct siw_addr_follower follower;
	struct siw_lane *lane;
	uint16_t port;
	uint32_t n;
	struct siw_addr addrs[SIW_MAX_ADDRS]; /* addresses of the n open sockets; ports are 0 */
};
/*
 * Calls every->open for each address of the device with this port. 0: a port that is free at all
 * addresses; every->port is then the port. An address that cannot be bound yet, for example an IPv6
 * address still under duplicate address detection, is skipped. When the device has new addresses,
 * or an address can be bound, every->open is called for it, if there is room in the table. Sockets
 * of removed addresses are kept, because the device may get the address again. Returns 0; or
 * -EADDRINUSE, -EADDRNOTAVAIL (the device has no address) or another -errno, with no socket left
 * open.
 */
int siw_every_addr_open_sockets(struct siw_every_addr *every, struct siw_lane *lane, uint16_t port);
/* Stops following the device's addresses. The caller closes the sockets. */
void siw_every_addr_stop_handling_addr_changes(struct siw_every_addr *every);

struct siw_addr_socks;

/* A UDP socket at one address of a device, which exists as long as its struct siw_addr_socks. */
struct siw_addr_sock {
	struct siw_io_handler handler; /* must be the first member of the struct */
	struct siw_addr_socks *socks;
	struct siw_llp_sock *sock;
	struct siw_addr addr;
	_Atomic bool lost;	      /* the device does not have the address at present */
	_Atomic bool sends_to_groups; /* the socket was set up to send to multicast groups */
};

/*
 * The UDP sockets, one per address of the device, of a UD or UC queue pair, or of several queue
 * pairs that share the sockets.
 */
struct siw_addr_socks {
	struct siw_every_addr every; /* must be the first member of the struct */
	/*
	 * the object of the caller of siw_per_addr_sockets_open() that the member serve uses; under the
	 * progress lock
	 */
	void *server;
	int (*serve)(struct siw_addr_sock *end);
	bool shared; /* several queue pairs send on the sockets */
	/*
	 * number of sockets; written with the progress lock held; any thread may read the first n
	 * entries of at
	 */
	_Atomic uint32_t n;
	struct siw_addr_sock *at[SIW_MAX_ADDRS];
	/*
	 * default source sockets for datagrams to IPv4, IPv6 and IPv6 link-local destinations;
	 * NULL: none
	 */
	struct siw_addr_sock *_Atomic first[3];
};

/*
 * Opens a UDP socket at each address of the device; port 0: any port. serve: as in struct
 * siw_io_handler; end->socks->server is the caller's server. Returns 0, -ENOMEM or a value of
 * siw_every_addr_open_sockets().
 */
int siw_per_addr_sockets_open(struct siw_lane *lane, uint16_t port, void *server,
			      int (*serve)(struct siw_addr_sock *end), struct siw_addr_socks **out);
void siw_addr_socks_close(struct siw_addr_socks *ends);
/* Prepares the sockets for several queue pairs that send on them. */
void siw_addr_socks_enable_concurrent_sends(struct siw_addr_socks *ends);
/*
 * Returns the socket that a datagram to dest is sent from: the socket at source (whose port is
 * ignored), or, if source has no family, the socket at the device's first address of dest's family
 * (a link-local address if dest is link-local). Returns NULL if there is no such socket. May be
 * called by any thread.
 */
struct siw_addr_sock *siw_addr_socks_find(const struct siw_addr_socks *ends,
					  const struct siw_addr *dest,
					  const struct siw_addr *source);

#endif
