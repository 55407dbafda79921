/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UDP sockets at every address of a device, on one port. A single socket at the wildcard address
 * would need fewer descriptors, but would not report the destination address of a datagram without
 * a control message for each, nor let the sender choose its source address.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "qp/qp_everywhere.h"

static int serve(struct siw_io_handler *self)
{
	struct siw_end *end = siw_container(self, struct siw_end, handler);

	return end->ends->serve(end);
}

static uint32_t count(const struct siw_ends *ends)
{
	return atomic_load_explicit(&ends->n, memory_order_acquire);
}

/* The index in ends->first for this kind of destination: IPv4, IPv6, or IPv6 link-local. */
static inline int kind_of(const struct siw_addr *addr)
{
	return addr->family == AF_INET ? 0 : siw_addr_is_link_local(addr) ? 2 : 1;
}

static void choose_first(struct siw_ends *ends)
{
	struct siw_end *first[3] = { NULL };

	/*
	 * Prefers a socket whose address is not lost; with a lost address the network refuses the
	 * datagrams.
	 */
	for (int lost = 1; lost >= 0; lost--)
		for (uint32_t i = count(ends); i-- > 0;)
			if (atomic_load(&ends->at[i]->lost) == lost)
				first[kind_of(&ends->at[i]->addr)] = ends->at[i];
	/*
	 * A source address of the other IPv6 kind is better than none: the kernel may have a route.
	 */
	if (!first[1])
		first[1] = first[2];
	if (!first[2])
		first[2] = first[1];
	for (int i = 0; i < 3; i++)
		atomic_store(&ends->first[i], first[i]);
}

static int open_end(struct siw_everywhere *how, struct siw_addr *addr)
{
	struct siw_ends *ends = siw_container(how, struct siw_ends, how);
	struct siw_end *end = calloc(1, sizeof(*end));
	int err;

	if (!end)
		return -ENOMEM;
	end->handler.serve = serve;
	end->ends = ends;
	err = siw_llp_udp_open(ends->ctx->port, addr, &end->handler, &end->sock);
	if (err)
		goto free_end;
	err = siw_llp_local(end->sock, &end->addr);
	if (err)
		goto close_sock;
	if (ends->shared)
		siw_llp_shared(end->sock);
	*addr = end->addr;
	ends->at[count(ends)] = end;
	/* Pairs with the load in count(). */
	atomic_store_explicit(&ends->n, count(ends) + 1, memory_order_release);
	return 0;

close_sock:
	siw_llp_close(end->sock);
free_end:
	free(end);
	return err;
}

static void close_all(struct siw_everywhere *how)
{
	struct siw_ends *ends = siw_container(how, struct siw_ends, how);

	for (uint32_t i = 0; i < count(ends); i++) {
		siw_llp_close(ends->at[i]->sock);
		free(ends->at[i]);
	}
	atomic_store(&ends->n, 0);
}

int siw_ends_open(struct siw_context *ctx, uint16_t port, void *server,
		  int (*how)(struct siw_end *end), struct siw_ends **out)
{
	struct siw_ends *ends = calloc(1, sizeof(*ends));
	int err;

	if (!ends)
		return -ENOMEM;
	ends->how = (struct siw_everywhere){ open_end, close_all };
	ends->ctx = ctx;
	ends->server = server;
	ends->serve = how;
	ends->port = port;
	err = siw_qp_everywhere(ctx, &ends->port, &ends->how);
	if (err) {
		free(ends);
		return err;
	}
	choose_first(ends);
	*out = ends;
	return 0;
}

void siw_ends_close(struct siw_ends *ends)
{
	close_all(&ends->how);
	free(ends);
}

void siw_ends_share(struct siw_ends *ends)
{
	ends->shared = true;
	for (uint32_t i = 0; i < count(ends); i++)
		siw_llp_shared(ends->at[i]->sock);
}

/* The socket at this address, or NULL. */
static struct siw_end *find(const struct siw_ends *ends, const struct siw_addr *addr)
{
	for (uint32_t i = 0; i < count(ends); i++)
		if (siw_addr_same_host(&ends->at[i]->addr, addr))
			return ends->at[i];
	return NULL;
}

static void add(struct siw_ends *ends, struct siw_addr addr)
{
	int err;

	addr.port_be = htons(ends->port);
	err = open_end(&ends->how, &addr);
	/* An IPv6 address still under duplicate address detection is announced again later. */
	if (err && err != -EADDRNOTAVAIL)
		siw_count(SIW_COUNTER_addrs_unbound, 1);
}

void siw_ends_follow(struct siw_ends *ends)
{
	const struct siw_device_info *now = &ends->ctx->now;

	for (uint32_t i = 0; i < count(ends); i++)
		atomic_store(&ends->at[i]->lost, true);
	for (uint32_t i = 0; i < now->n_addrs; i++) {
		struct siw_end *end = find(ends, &now->addrs[i]);

		if (end)
			atomic_store(&end->lost, false);
		else if (count(ends) < SIW_MAX_ADDRS)
			add(ends, now->addrs[i]);
	}
	choose_first(ends);
}

struct siw_end *siw_ends_for(const struct siw_ends *ends, const struct siw_addr *dest,
			     const struct siw_addr *source)
{
	if (!source->family)
		return atomic_load_explicit(&ends->first[kind_of(dest)], memory_order_acquire);
	return source->family == dest->family ? find(ends, source) : NULL;
}
