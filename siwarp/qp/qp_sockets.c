/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UDP sockets at every address of a device, on one port. A single socket at the wildcard address
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

static int open_at_each_addr(const struct siw_device_info *device, uint16_t *number,
			     struct siw_every_addr *how)
{
	int err = -EADDRNOTAVAIL;
	bool any = false;

	for (uint32_t i = 0; i < device->n_addrs; i++) {
		struct siw_addr addr = device->addrs[i];

		addr.port_be = htons(*number);
		err = how->open(how, &addr);
		if (err == -EADDRNOTAVAIL)
			continue;
		if (err)
			break;
		any = true;
		*number = siw_addr_port(&addr);
	}
	if (err == -EADDRNOTAVAIL && any)
		err = 0;
	if (err)
		how->undo(how);
	return err;
}

int siw_open_every_addr(const struct siw_context *ctx, uint16_t *number, struct siw_every_addr *how)
{
	int tries = *number ? 1 : TRIES, err;

	do {
		uint16_t port = *number;

		err = open_at_each_addr(&ctx->now, &port, how);
		if (!err)
			*number = port;
	} while (err == -EADDRINUSE && --tries);
	return err;
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
 * Returns the index in ends->first for the kind of a destination: IPv4, IPv6, or IPv6 link-local.
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

static int addr_sock_open(struct siw_every_addr *how, struct siw_addr *addr)
{
	struct siw_addr_socks *ends = siw_container(how, struct siw_addr_socks, how);
	struct siw_addr_sock *end = calloc(1, sizeof(*end));
	int err;

	if (!end)
		return -ENOMEM;
	end->handler.serve = addr_sock_handle_event;
	end->socks = ends;
	err = siw_llp_udp_open(ends->ctx->lane.port, addr, &end->handler, &end->sock);
	if (err)
		goto free_end;
	err = siw_llp_local(end->sock, &end->addr);
	if (err)
		goto close_sock;
	if (ends->shared)
		siw_llp_shared(end->sock);
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

static void addr_socks_close_all(struct siw_every_addr *how)
{
	struct siw_addr_socks *ends = siw_container(how, struct siw_addr_socks, how);

	for (uint32_t i = 0; i < addr_socks_count(ends); i++) {
		siw_llp_close(ends->at[i]->sock);
		free(ends->at[i]);
	}
	atomic_store(&ends->n, 0);
}

int siw_addr_socks_open(struct siw_context *ctx, uint16_t port, void *server,
			int (*how)(struct siw_addr_sock *end), struct siw_addr_socks **out)
{
	struct siw_addr_socks *ends = calloc(1, sizeof(*ends));
	int err;

	if (!ends)
		return -ENOMEM;
	ends->how = (struct siw_every_addr){ addr_sock_open, addr_socks_close_all };
	ends->ctx = ctx;
	ends->server = server;
	ends->serve = how;
	ends->port = port;
	err = siw_open_every_addr(ctx, &ends->port, &ends->how);
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
	addr_socks_close_all(&ends->how);
	free(ends);
}

void siw_addr_socks_share(struct siw_addr_socks *ends)
{
	ends->shared = true;
	for (uint32_t i = 0; i < addr_socks_count(ends); i++)
		siw_llp_shared(ends->at[i]->sock);
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

static void addr_socks_open_at(struct siw_addr_socks *ends, struct siw_addr addr)
{
	int err;

	addr.port_be = htons(ends->port);
	err = addr_sock_open(&ends->how, &addr);
	/*
	 * The failure for an IPv6 address that is still under duplicate address detection is
	 * ignored, because the kernel announces the address again later.
	 */
	if (err && err != -EADDRNOTAVAIL)
		siw_count(SIW_COUNTER_addrs_unbound, 1);
}

void siw_addr_socks_update(struct siw_addr_socks *ends)
{
	const struct siw_device_info *now = &ends->ctx->now;

	for (uint32_t i = 0; i < addr_socks_count(ends); i++)
		atomic_store(&ends->at[i]->lost, true);
	for (uint32_t i = 0; i < now->n_addrs; i++) {
		struct siw_addr_sock *end = addr_socks_find_addr(ends, &now->addrs[i]);

		if (end)
			atomic_store(&end->lost, false);
		else if (addr_socks_count(ends) < SIW_MAX_ADDRS)
			addr_socks_open_at(ends, now->addrs[i]);
	}
	addr_socks_choose_default(ends);
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
