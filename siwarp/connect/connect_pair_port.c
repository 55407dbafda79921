/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The TCP ports in the low 16 bits of RC QPNs. Each port serves up to 255 queue pairs of one device
 * and process; the kernel ensures that no other process uses the same port.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "connect/connect_pair.h"

#define BACKLOG 1024

_Static_assert(sizeof(((struct siw_pair_port *)0)->listeners) / sizeof(struct siw_conn *) ==
		       SIW_MAX_ADDRS,
	       "one listener for each address");

struct siw_pair *siw_pair_port_find(const struct siw_pair_port *port, uint32_t qpn)
{
	uint32_t index = qpn >> SIW_QPN_INDEX_BIT;

	return (qpn & 0xffff) == port->port && index <= SIW_PAIR_INDEXES ? port->pairs[index]
									 : NULL;
}

static void pair_port_close_listeners(struct siw_every_addr *how)
{
	struct siw_pair_port *port = siw_container(how, struct siw_pair_port, how);

	for (uint32_t i = 0; i < port->n_listeners; i++)
		siw_conn_free(port->listeners[i]);
	port->n_listeners = 0;
}

static int pair_port_listen_at(struct siw_every_addr *how, struct siw_addr *addr)
{
	struct siw_pair_port *port = siw_container(how, struct siw_pair_port, how);
	struct siw_conn **listener = &port->listeners[port->n_listeners];
	int err = siw_conn_listen(&port->user, addr, BACKLOG, port, listener);

	if (err)
		return err;
	port->n_listeners++;
	return siw_llp_local((*listener)->lsock, addr);
}

/*
 * Opens listeners at a port. Settings rc_port_first and rc_port_last restrict the port, for
 * firewalls; 0: any port.
 */
static int pair_port_listen(struct siw_pair_port *port)
{
	int64_t first = siw_settings()->rc_port_first, last = siw_settings()->rc_port_last;
	int err;

	do {
		port->port = (uint16_t)first;
		err = siw_open_every_addr(port->user.ctx, &port->port, &port->how);
	} while (err == -EADDRINUSE && first && ++first <= last);
	return err;
}

static int pair_port_open(struct siw_context *ctx, const struct siw_conn_user *user,
			  struct siw_pair_port **out)
{
	struct siw_pair_port *port = calloc(1, sizeof(*port));
	int err;

	if (!port)
		return -ENOMEM;
	port->user = *user;
	port->user.ctx = ctx;
	port->how = (struct siw_every_addr){ pair_port_listen_at, pair_port_close_listeners };
	err = pair_port_listen(port);
	if (err) {
		free(port);
		return err;
	}
	siw_link_add(&ctx->pair_ports, &port->link);
	*out = port;
	return 0;
}

/* A free index of this port whose QPN is unused, or 0: there is none. */
static uint8_t pair_port_free_index(const struct siw_context *ctx, const struct siw_pair_port *port)
{
	for (uint32_t i = 0, index = port->last; i < SIW_PAIR_INDEXES; i++) {
		uint32_t qpn;

		index = index % SIW_PAIR_INDEXES + 1;
		qpn = index << SIW_QPN_INDEX_BIT | port->port;
		if (!port->pairs[index] && qpn <= SIW_LAST_RC_QPN && !siw_qp_qpn_taken(ctx, qpn))
			return (uint8_t)index;
	}
	return 0;
}

static void pair_port_assign(struct siw_pair_port *port, uint8_t index, struct siw_pair *pair)
{
	port->pairs[index] = pair;
	port->last = index;
	port->n_pairs++;
	pair->at = port;
	pair->index = index;
	pair->own.qpn = (uint32_t)index << SIW_QPN_INDEX_BIT | port->port;
	port->user.ctx->n_high += pair->own.qpn >= SIW_FIRST_RC_QPN;
}

int siw_pair_port_join(struct siw_context *ctx, const struct siw_conn_user *user,
		       struct siw_pair *pair)
{
	struct siw_pair_port *port = NULL;
	uint8_t index = 0;
	int err;

	for (struct siw_link *l = ctx->pair_ports.next; l != &ctx->pair_ports && !index;
	     l = l->next) {
		port = siw_container(l, struct siw_pair_port, link);
		index = port->n_pairs < SIW_PAIR_INDEXES ? pair_port_free_index(ctx, port) : 0;
	}
	if (!index) {
		err = pair_port_open(ctx, user, &port);
		if (err)
			return err;
		index = pair_port_free_index(ctx, port);
	}
	if (!index)
		return -EADDRINUSE;
	pair_port_assign(port, index, pair);
	return 0;
}

void siw_pair_port_leave(struct siw_pair *pair)
{
	struct siw_pair_port *port = pair->at;

	port->pairs[pair->index] = NULL;
	port->user.ctx->n_high -= pair->own.qpn >= SIW_FIRST_RC_QPN;
	if (--port->n_pairs)
		return;
	pair_port_close_listeners(&port->how);
	siw_link_del(&port->link);
	free(port);
}
