/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Retries of connects. A connect is retried for a limited time if it was refused, because nothing
 * listens at the address yet, or reset, because the listener already has as many start-ups from
 * this source as it admits.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "connect/connect_impl.h"

#define FIRST_WAIT_US 1000
#define LAST_WAIT_US  64000

int siw_conn_retry_enable(struct siw_conn *conn, const struct siw_addr *dest,
			  const struct siw_addr *source, const struct siw_mpa_params *params,
			  int timeout_ms, int refused_ms)
{
	struct siw_conn_retry *again = calloc(1, sizeof(*again));

	if (!again)
		return -ENOMEM;
	again->dest = *dest;
	if (source)
		again->source = *source;
	again->params = *params;
	again->until_ns = siw_now_ns() + (uint64_t)refused_ms * 1000000;
	again->reset_until_ns =
		siw_now_ns() +
		(uint64_t)(timeout_ms > 0 ? timeout_ms : siw_settings()->mpa_timeout_ms) * 1000000;
	again->wait_us = FIRST_WAIT_US;
	again->timeout_ms = timeout_ms;
	conn->again = again;
	return 0;
}

/* The time until which a connect that failed with status is retried; 0: it is not retried. */
static uint64_t retry_deadline(const struct siw_conn_retry *again, int status)
{
	switch (status) {
	case -ECONNREFUSED:
		return again->until_ns;
	case -ECONNRESET:
		return again->reset_until_ns;
	default:
		return 0;
	}
}

bool siw_conn_retry_schedule(struct siw_conn *conn, int status)
{
	struct siw_conn_retry *again = conn->again;
	uint64_t next = siw_now_ns(), end = again ? retry_deadline(again, status) : 0;

	if (next >= end)
		return false;
	next += (uint64_t)again->wait_us * 1000;
	if (next > end)
		next = end;
	if (again->wait_us < LAST_WAIT_US)
		again->wait_us *= 2;
	siw_mpa_close(conn->mpa, false);
	conn->mpa = NULL;
	siw_device_timed_del(conn->user->ctx, &conn->timed);
	conn->deadline_ns = next;
	siw_device_timed_at(conn->user->ctx, &conn->timed, next);
	return true;
}

int siw_conn_retry_start(struct siw_conn *conn)
{
	struct siw_conn_retry *again = conn->again;
	const struct siw_addr *source = again->source.family ? &again->source : NULL;
	int err = siw_mpa_connect(conn->user->ctx->port, &again->dest, source, &again->params,
				  &conn->handler, &conn->mpa);

	siw_device_timed_del(conn->user->ctx, &conn->timed);
	if (!err && again->tos)
		siw_llp_tcp_tos(siw_mpa_sock(conn->mpa), again->tos);
	return err;
}

void siw_conn_tos(struct siw_conn *conn, int tos)
{
	struct siw_context *ctx = conn->user->ctx;

	siw_lock(&ctx->progress);
	if (conn->again)
		conn->again->tos = tos;
	if (conn->mpa)
		siw_llp_tcp_tos(siw_mpa_sock(conn->mpa), tos);
	siw_unlock(&ctx->progress);
}
