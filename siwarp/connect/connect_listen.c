/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Listening for a connection manager, at one address or at every address of the device. */
#include <errno.h>

#include "base/addr.h"
#include "connect/connect_impl.h"
#include "qp/qp_sockets.h"

/* The state of a listen call in progress: its listeners, chained by also. */
struct listening {
	struct siw_every_addr how; /* must be first */
	const struct siw_conn_user *user;
	int backlog;
	struct siw_conn *first, *last;
};

static int open_listener(struct siw_every_addr *how, struct siw_addr *addr)
{
	struct listening *l = siw_container(how, struct listening, how);
	struct siw_conn *conn;
	int err = siw_conn_listen(l->user, addr, l->backlog, NULL, &conn);

	if (err)
		return err;
	if (l->last)
		l->last->also = conn;
	else
		l->first = conn;
	l->last = conn;
	return siw_llp_local(conn->lsock, addr);
}

static void close_listeners(struct siw_every_addr *how)
{
	struct listening *l = siw_container(how, struct listening, how);

	if (l->first)
		siw_conn_free(l->first);
	l->first = l->last = NULL;
}

/* Progress lock held. */
static int listen_everywhere(struct listening *l, uint16_t port, struct siw_conn **out)
{
	int err;

	l->how = (struct siw_every_addr){ open_listener, close_listeners };
	err = siw_open_every_addr(l->user->ctx, &port, &l->how);
	if (!err)
		*out = l->first;
	return err;
}

int siw_connect_listen(struct siw_reporter *reporter, const struct siw_addr *addr, int backlog,
		       struct siw_conn **out)
{
	struct listening l = { .user = &reporter->user, .backlog = backlog };
	struct siw_context *ctx = reporter->user.ctx;
	int err;

	/*
	 * *out is set under the lock, because another thread may take the listener's first event
	 * and use *out.
	 */
	siw_lock(&ctx->progress);
	err = addr->family ? siw_conn_listen(l.user, addr, backlog, NULL, out)
			   : listen_everywhere(&l, siw_addr_port(addr), out);
	siw_unlock(&ctx->progress);
	return err;
}

int siw_connect_reserve_addr(struct siw_reserved_addr *place, const struct siw_addr *addr, bool udp,
			     bool v6_only)
{
	struct siw_addr kept = *addr;
	int fd = udp ? siw_llp_udp_reserve(&kept, v6_only) : siw_llp_tcp_reserve(&kept, v6_only);

	if (fd < 0)
		return fd;
	place->fd = fd;
	place->addr = kept;
	return 0;
}

void siw_connect_release_addr(struct siw_reserved_addr *place)
{
	if (place->fd >= 0)
		siw_llp_event_close(place->fd);
	place->fd = -1;
}
