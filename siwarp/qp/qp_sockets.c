/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sockets at every address of a device, on one port. A single UDP socket at the wildcard address
 * would need fewer descriptors, but would not report the destination address of a datagram without
 * a control message for each, nor let the sender choose its source address.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "qp/qp_sockets.h"

/* ---- one port at every address --------------------------------------------------------------- */

/*
 * Maximum number of ports tried, because another program may use a port at one of the device's
 * addresses.
 */
#define TRIES 64

static int open_socket_at_addr(struct siw_every_addr *every, struct siw_addr addr)
{
	int err;

	addr.port_be = htons(every->port);
	err = every->open(every, &addr);
	if (err)
		return err;
	every->port = siw_addr_port(&addr);
	addr.port_be = 0;
	every->addrs[every->n++] = addr;
	return 0;
}

static int every_addr_try_port(struct siw_every_addr *every, uint16_t port)
{
	struct siw_device_info now;
	int err = -EADDRNOTAVAIL;

	siw_device_get_current_info(every->lane->ctx, &now);
	every->port = port;
	every->n = 0;
	for (uint32_t i = 0; i < now.n_addrs; i++) {
		err = open_socket_at_addr(every, now.addrs[i]);
		if (err && err != -EADDRNOTAVAIL)
			break;
	}
	if (err == -EADDRNOTAVAIL && every->n)
		err = 0;
	if (err)
		every->undo(every);
	return err;
}

static bool addr_array_contains(const struct siw_addr *addrs, uint32_t n,
				const struct siw_addr *addr)
{
	for (uint32_t i = 0; i < n; i++)
		if (siw_addr_same_host(&addrs[i], addr))
			return true;
	return false;
}

/* Opens sockets at the addresses that have none: the member update of struct siw_addr_follower. */
static void every_addr_open_missing_sockets(struct siw_addr_follower *follower)
{
	struct siw_every_addr *every = siw_container(follower, struct siw_every_addr, follower);
	struct siw_device_info now;

	siw_device_get_current_info(every->lane->ctx, &now);
	for (uint32_t i = 0; i < now.n_addrs && every->n < SIW_MAX_ADDRS; i++) {
		int err = 0;

		if (!addr_array_contains(every->addrs, every->n, &now.addrs[i]))
			err = open_socket_at_addr(every, now.addrs[i]);
		/*
		 * An IPv6 address that is still under duplicate address detection cannot be bound.
		 * That is no error, because the kernel announces the address again later.
		 */
		if (err && err != -EADDRNOTAVAIL)
			siw_count(SIW_COUNTER_addrs_unbound, 1);
	}
	if (every->updated)
		every->updated(every);
}

int siw_every_addr_open_sockets(struct siw_every_addr *every, struct siw_lane *lane, uint16_t port)
{
	int tries = port ? 1 : TRIES, err;

	every->lane = lane;
	do {
		err = every_addr_try_port(every, port);
	} while (err == -EADDRINUSE && --tries);
	if (err)
		return err;
	every->follower.update = every_addr_open_missing_sockets;
	siw_link_add(&lane->addr_followers, &every->follower.link);
	return 0;
}

void siw_every_addr_stop_handling_addr_changes(struct siw_every_addr *every)
{
	siw_link_del(&every->follower.link);
}

/* ---- the sockets ----------------------------------------------------------------------------- */

static int addr_sock_handle_event(struct siw_io_handler *self)
{
	struct siw_addr_sock *end = siw_container(self, struct siw_addr_sock, handler);

	return end->socks->serve(end);
}

static uint32_t addr_socks_count(const struct siw_addr_socks *ends)
{
	return atomic_load_explicit(&ends->n, memory_order_acquire);
}

/*
 * Returns the index of a destination's kind (IPv4, IPv6, or IPv6 link-local) in the member first of
 * struct siw_addr_socks.
 */
static inline int addr_kind_index(const struct siw_addr *addr)
{
	return addr->family == AF_INET ? 0 : siw_addr_is_link_local(addr) ? 2 : 1;
}

static void addr_socks_choose_default(struct siw_addr_socks *ends)
{
	struct siw_addr_sock *first[3] = { NULL };

	/*
	 * Prefer a socket whose address the device still has; the network refuses datagrams from a
	 * lost address.
	 */
	for (int lost = 1; lost >= 0; lost--)
		for (uint32_t i = addr_socks_count(ends); i-- > 0;)
			if (atomic_load(&ends->at[i]->lost) == lost)
				first[addr_kind_index(&ends->at[i]->addr)] = ends->at[i];
	/*
	 * A source address of the other IPv6 kind (link-local or not) is better than none: the
	 * kernel may have a route.
	 */
	if (!first[1])
		first[1] = first[2];
	if (!first[2])
		first[2] = first[1];
	for (int i = 0; i < 3; i++)
		atomic_store(&ends->first[i], first[i]);
}

static int addr_sock_open(struct siw_every_addr *every, struct siw_addr *addr)
{
	struct siw_addr_socks *ends = siw_container(every, struct siw_addr_socks, every);
	struct siw_addr_sock *end = calloc(1, sizeof(*end));
	int err;

	if (!end)
		return -ENOMEM;
	end->handler.serve = addr_sock_handle_event;
	end->socks = ends;
	err = siw_llp_udp_open(every->lane->poller, addr, &end->handler, &end->sock);
	if (err)
		goto free_end;
	err = siw_llp_local_addr(end->sock, &end->addr);
	if (err)
		goto close_sock;
	if (ends->shared)
		siw_llp_allow_concurrent_sends(end->sock);
	*addr = end->addr;
	ends->at[addr_socks_count(ends)] = end;
	/* Memory ordering: pairs with the load in addr_socks_count(). */
	atomic_store_explicit(&ends->n, addr_socks_count(ends) + 1, memory_order_release);
	return 0;

close_sock:
	siw_llp_close(end->sock);
free_end:
	free(end);
	return err;
}

static void addr_socks_close_all(struct siw_every_addr *every)
{
	struct siw_addr_socks *ends = siw_container(every, struct siw_addr_socks, every);

	for (uint32_t i = 0; i < addr_socks_count(ends); i++) {
		siw_llp_close(ends->at[i]->sock);
		free(ends->at[i]);
	}
	atomic_store(&ends->n, 0);
}

static void addr_socks_handle_addr_change(struct siw_every_addr *every)
{
	struct siw_addr_socks *ends = siw_container(every, struct siw_addr_socks, every);
	struct siw_device_info now;

	siw_device_get_current_info(every->lane->ctx, &now);
	for (uint32_t i = 0; i < addr_socks_count(ends); i++)
		atomic_store(&ends->at[i]->lost,
			     !addr_array_contains(now.addrs, now.n_addrs, &ends->at[i]->addr));
	addr_socks_choose_default(ends);
}

int siw_per_addr_sockets_open(struct siw_lane *lane, uint16_t port, void *server,
			      int (*how)(struct siw_addr_sock *end), struct siw_addr_socks **out)
{
	struct siw_addr_socks *ends = calloc(1, sizeof(*ends));
	int err;

	if (!ends)
		return -ENOMEM;
	ends->every = (struct siw_every_addr){
		.open = addr_sock_open,
		.undo = addr_socks_close_all,
		.updated = addr_socks_handle_addr_change,
	};
	ends->server = server;
	ends->serve = how;
	err = siw_every_addr_open_sockets(&ends->every, lane, port);
	if (err) {
		free(ends);
		return err;
	}
	addr_socks_choose_default(ends);
	*out = ends;
	return 0;
}

void siw_addr_socks_close(struct siw_addr_socks *ends)
{
	siw_every_addr_stop_handling_addr_changes(&ends->every);
	addr_socks_close_all(&ends->every);
	free(ends);
}

void siw_addr_socks_enable_concurrent_sends(struct siw_addr_socks *ends)
{
	ends->shared = true;
	for (uint32_t i = 0; i < addr_socks_count(ends); i++)
		siw_llp_allow_concurrent_sends(ends->at[i]->sock);
}

/* Returns the socket bound to the address, or NULL. */
static struct siw_addr_sock *addr_socks_find_addr(const struct siw_addr_socks *ends,
						  const struct siw_addr *addr)
{
	for (uint32_t i = 0; i < addr_socks_count(ends); i++)
		if (siw_addr_same_host(&ends->at[i]->addr, addr))
			return ends->at[i];
	return NULL;
}

struct siw_addr_sock *siw_addr_socks_find(const struct siw_addr_socks *ends,
					  const struct siw_addr *dest,
					  const struct siw_addr *source)
{
	if (!source->family)
		return atomic_load_explicit(&ends->first[addr_kind_index(dest)],
					    memory_order_acquire);
	return source->family == dest->family ? addr_socks_find_addr(ends, source) : NULL;
}
