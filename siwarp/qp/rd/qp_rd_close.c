/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An RD endpoint whose queue pair was destroyed or got another socket. It remains open until the
 * peers have received everything that was sent, including responses, and have answered the BYE, for
 * at most linger_ms. If a new RD queue pair needs its port, the endpoint is closed at once.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "rd/rd.h"
#include "qp/rd/qp_rd.h"

struct rd_linger {
	struct siw_io_handler handler;
	struct siw_context *ctx;
	struct siw_rd *endpoint;
	uint64_t deadline_ns;
	struct siw_timed timed;
	struct siw_link link; /* in ctx->partings */
};

static void parting_end(struct rd_linger *rd_linger)
{
	siw_device_timed_del(rd_linger->ctx, &rd_linger->timed);
	siw_link_del(&rd_linger->link);
	atomic_fetch_sub(&rd_linger->ctx->n_linger, 1);
	siw_rd_close(rd_linger->endpoint);
	free(rd_linger);
}

static int parting_serve(struct siw_io_handler *self)
{
	struct rd_linger *rd_linger = siw_container(self, struct rd_linger, handler);

	if (siw_rd_shutdown_done(rd_linger->endpoint))
		parting_end(rd_linger);
	return 0;
}

static void parting_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct rd_linger *rd_linger = siw_container(timed, struct rd_linger, timed);

	if (siw_rd_shutdown_done(rd_linger->endpoint) || now_ns >= rd_linger->deadline_ns)
		parting_end(rd_linger);
}

void siw_qp_rd_linger(struct siw_context *ctx, struct siw_rd *endpoint)
{
	uint64_t linger_ns = (uint64_t)siw_settings()->linger_ms * 1000000;
	struct rd_linger *rd_linger = NULL;

	siw_rd_shutdown(endpoint);
	if (linger_ns && !siw_rd_shutdown_done(endpoint))
		rd_linger = calloc(1, sizeof(*rd_linger));
	if (!rd_linger) { /* without memory to linger: each peer has been sent one BYE */
		siw_rd_close(endpoint);
		return;
	}
	rd_linger->handler.serve = parting_serve;
	rd_linger->ctx = ctx;
	rd_linger->endpoint = endpoint;
	rd_linger->deadline_ns = siw_now_ns() + linger_ns;
	rd_linger->timed.tick = parting_tick;
	siw_link_init(&rd_linger->timed.link);
	siw_link_add(&ctx->partings, &rd_linger->link);
	siw_llp_set_handler(siw_rd_sock(endpoint), &rd_linger->handler);
	siw_llp_resume(siw_rd_sock(endpoint));
	siw_device_timed_add(ctx, &rd_linger->timed, rd_linger->deadline_ns);
	atomic_fetch_add(&ctx->n_linger, 1);
}

bool siw_qp_rd_free_port(struct siw_context *ctx, const struct siw_addr *addr)
{
	struct siw_addr bound;

	for (struct siw_link *l = ctx->partings.next; l != &ctx->partings; l = l->next) {
		struct rd_linger *rd_linger = siw_container(l, struct rd_linger, link);

		if (siw_llp_local(siw_rd_sock(rd_linger->endpoint), &bound) ||
		    bound.port_be != addr->port_be)
			continue;
		parting_end(rd_linger);
		return true;
	}
	return false;
}
