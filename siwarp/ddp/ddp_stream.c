/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_stream.c - DDP streams as objects: start-up and teardown, which are mpa's and only
 * handed down (RFC5041-6.2-01), and what a stream is told once: its queues and its domain.
 */
#include <errno.h>
#include <stdlib.h>

#include "ddp/ddp_impl.h"
#include "mpa/mpa.h"

struct siw_ddp_listener {
	struct siw_ddp_port *port;
	struct siw_mpa_listener *mpa;
};

int siw_ddp_listen(struct siw_ddp_port *port, const struct siw_addr *local, int backlog,
		   void *token, struct siw_ddp_listener **out)
{
	struct siw_ddp_listener *listener = malloc(sizeof(*listener));
	int r;

	if (!listener)
		return -ENOMEM;
	listener->port = port;
	r = siw_mpa_listen(port->llp, local, backlog, token, &listener->mpa);
	if (r) {
		free(listener);
		return r;
	}
	*out = listener;
	return 0;
}

int siw_ddp_listener_addr(struct siw_ddp_listener *listener, struct siw_addr *out)
{
	return siw_mpa_listener_addr(listener->mpa, out);
}

void siw_ddp_listener_hold(struct siw_ddp_listener *listener, bool hold)
{
	siw_mpa_listener_hold(listener->mpa, hold);
}

void siw_ddp_listener_close(struct siw_ddp_listener *listener)
{
	siw_mpa_listener_close(listener->mpa);
	free(listener);
}

void siw_ddp_stream_free(struct siw_ddp_stream *stream)
{
	siw_ddp_park_free(stream);
	free(stream->tx.ring);
	free(stream);
}

struct siw_ddp_stream *siw_ddp_stream_new(struct siw_ddp_port *port, uint32_t inflight)
{
	struct siw_ddp_stream *stream;
	int qn;

	if (posix_memalign((void **)&stream, 64, sizeof(*stream)))
		return NULL;
	memset(stream, 0, sizeof(*stream));
	stream->port = port;
	stream->identity = stream;
	stream->tx.ring_mask = inflight - 1;
	stream->tx.ring = malloc(inflight * sizeof(*stream->tx.ring));
	if (!stream->tx.ring) {
		free(stream);
		return NULL;
	}
	for (qn = 0; qn < SIW_DDP_QUEUES; qn++) /* RFC5041-4.3-09 */
		stream->rx.q[qn].msn = stream->tx.msn[qn] = 1;
	return stream;
}

int siw_ddp_accept(struct siw_ddp_listener *listener, void *token, struct siw_ddp_stream **out)
{
	struct siw_ddp_stream *stream = siw_ddp_stream_new(listener->port, SIW_DDP_INFLIGHT);
	int r;

	if (!stream)
		return -ENOMEM;
	r = siw_mpa_accept(listener->mpa, token, &stream->mpa);
	if (r) {
		siw_ddp_stream_free(stream);
		return r;
	}
	*out = stream;
	return 0;
}

int siw_ddp_connect(struct siw_ddp_port *port, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params, void *token,
		    struct siw_ddp_stream **out)
{
	struct siw_ddp_stream *stream = siw_ddp_stream_new(port, SIW_DDP_INFLIGHT);
	int r;

	if (!stream)
		return -ENOMEM;
	r = siw_mpa_connect(port->llp, dest, source, params, token, &stream->mpa);
	if (r) {
		siw_ddp_stream_free(stream);
		return r;
	}
	*out = stream;
	return 0;
}

int siw_ddp_startup(struct siw_ddp_stream *stream, struct siw_mpa_params *peer)
{
	int r = siw_mpa_startup(stream->mpa, peer);

	if (r == -EPROTO)
		stream->rx.err = siw_mpa_error(stream->mpa);
	return r;
}

int siw_ddp_reply(struct siw_ddp_stream *stream, const struct siw_mpa_params *params)
{
	return siw_mpa_reply(stream->mpa, params);
}

int siw_ddp_addrs(struct siw_ddp_stream *stream, struct siw_addr *local, struct siw_addr *peer)
{
	return siw_mpa_addrs(stream->mpa, local, peer);
}

void siw_ddp_set_token(struct siw_ddp_stream *stream, void *token)
{
	siw_mpa_set_token(stream->mpa, token);
}

void siw_ddp_again(struct siw_ddp_stream *stream)
{
	siw_mpa_again(stream->mpa);
}

bool siw_ddp_staged(const struct siw_ddp_stream *stream)
{
	return siw_mpa_staged(stream->mpa);
}

void siw_ddp_hold(struct siw_ddp_stream *stream)
{
	siw_mpa_hold(stream->mpa);
}

bool siw_ddp_crc_on(const struct siw_ddp_stream *stream)
{
	return siw_mpa_crc_on(stream->mpa);
}

int siw_ddp_shutdown(struct siw_ddp_stream *stream)
{
	return siw_mpa_shutdown(stream->mpa);
}

int siw_ddp_drain(struct siw_ddp_stream *stream)
{
	/* What waited for a buffer will get none, and the rest of the stream need not wait for it. */
	if (stream->rx.park.full)
		siw_mpa_again(stream->mpa);
	siw_ddp_park_free(stream);
	return siw_mpa_drain(stream->mpa);
}

void siw_ddp_close(struct siw_ddp_stream *stream, bool abort)
{
	siw_mpa_close(stream->mpa, abort);
	siw_ddp_stream_free(stream);
}

struct siw_ddp_port *siw_ddp_stream_port(const struct siw_ddp_stream *stream)
{
	return stream->port;
}

void siw_ddp_stream_queue(struct siw_ddp_stream *stream, uint32_t qn, struct siw_ddp_queue *queue)
{
	if (qn < SIW_DDP_QUEUES)
		stream->rx.q[qn].queue = queue;
}

void siw_ddp_stream_pd(struct siw_ddp_stream *stream, uint32_t pd)
{
	stream->pd = pd;
}

void siw_ddp_stream_spare(struct siw_ddp_stream *stream, uint32_t qn, bool on)
{
	if (qn < SIW_DDP_QUEUES)
		stream->rx.q[qn].spare = on;
}

void siw_ddp_stream_headed(struct siw_ddp_stream *stream, uint16_t set)
{
	stream->rx.headed = set;
}

void siw_ddp_stream_bind(struct siw_ddp_stream *stream, const void *identity)
{
	stream->identity = identity;
}

const void *siw_ddp_stream_identity(const struct siw_ddp_stream *stream)
{
	return stream->identity;
}

int siw_ddp_stream_take(struct siw_ddp_stream *stream, uint32_t qn, uint64_t *cookie)
{
	struct siw_ddp_rxq *q;

	if (qn >= SIW_DDP_QUEUES || !stream->rx.q[qn].begun)
		return 0;
	q = &stream->rx.q[qn];
	q->begun = false;
	*cookie = q->cookie;
	return 1;
}

void siw_ddp_test_set_msn(struct siw_ddp_stream *stream, uint32_t qn, uint32_t msn)
{
	stream->rx.q[qn].msn = stream->tx.msn[qn] = msn;
}
