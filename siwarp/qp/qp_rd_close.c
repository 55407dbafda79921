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
#include "qp/qp_rd.h"

struct parting {
	struct siw_io_handler handler;
	struct siw_context *ctx;
	struct siw_rd *endpoint;
	uint64_t deadline_ns;
	struct siw_timed timed;
	struct siw_link link; /* in ctx->partings */
};

static void end(struct parting *parting)
{
	siw_verbs_timed_del(parting->ctx, &parting->timed);
	siw_link_del(&parting->link);
	atomic_fetch_sub(&parting->ctx->n_linger, 1);
	siw_rd_close(parting->endpoint);
	free(parting);
}

static int serve(struct siw_io_handler *self)
{
	struct parting *parting = siw_container(self, struct parting, handler);

	if (siw_rd_left(parting->endpoint))
		end(parting);
	return 0;
}

static void tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct parting *parting = siw_container(timed, struct parting, timed);

	if (siw_rd_left(parting->endpoint) || now_ns >= parting->deadline_ns)
		end(parting);
}

void siw_qp_rd_part(struct siw_context *ctx, struct siw_rd *endpoint)
{
	uint64_t linger_ns = (uint64_t)siw_settings()->linger_ms * 1000000;
	struct parting *parting = NULL;

	siw_rd_leave(endpoint);
	if (linger_ns && !siw_rd_left(endpoint))
		parting = calloc(1, sizeof(*parting));
	if (!parting) { /* without memory to linger: each peer has been sent one BYE */
		siw_rd_close(endpoint);
		return;
	}
	parting->handler.serve = serve;
	parting->ctx = ctx;
	parting->endpoint = endpoint;
	parting->deadline_ns = siw_now_ns() + linger_ns;
	parting->timed.tick = tick;
	siw_link_init(&parting->timed.link);
	siw_link_add(&ctx->partings, &parting->link);
	siw_llp_set_handler(siw_rd_sock(endpoint), &parting->handler);
	siw_llp_resume(siw_rd_sock(endpoint));
	siw_verbs_timed_add(ctx, &parting->timed, parting->deadline_ns);
	atomic_fetch_add(&ctx->n_linger, 1);
}

bool siw_qp_rd_yield(struct siw_context *ctx, const struct siw_addr *addr)
{
	struct siw_addr bound;

	for (struct siw_link *l = ctx->partings.next; l != &ctx->partings; l = l->next) {
		struct parting *parting = siw_container(l, struct parting, link);

		if (siw_llp_local(siw_rd_sock(parting->endpoint), &bound) ||
		    bound.port_be != addr->port_be)
			continue;
		end(parting);
		return true;
	}
	return false;
}
