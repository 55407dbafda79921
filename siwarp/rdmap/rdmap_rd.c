/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_rd.c - RDMAP on reliable datagrams: an endpoint, with a stream to each peer while
 * work is in progress with that peer.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "rdmap/rdmap_impl.h"

/* ---- endpoints ------------------------------------------------------------------------------- */

int siw_rdmap_rd_open(struct siw_mem *mem, struct siw_ddp_rd *ddp, uint32_t user_octets,
		      struct siw_rdmap_rd **out)
{
	struct siw_rdmap_rd *rd = calloc(1, sizeof(*rd));

	if (!rd)
		return -ENOMEM;
	rd->mem = mem;
	rd->ddp = ddp;
	rd->user_octets = user_octets;
	rd->record_id = siw_rdmap_record_first_id();
	siw_lock_init(&rd->lock);
	siw_link_init(&rd->streams);
	*out = rd;
	return 0;
}

void siw_rdmap_rd_close(struct siw_rdmap_rd *rd)
{
	while (!siw_link_empty(&rd->streams))
		siw_rdmap_rd_end(siw_container(rd->streams.next, struct siw_rdmap_stream,
					       of_rd.in_rd),
				 SIW_RDMAP_RD_RESET);
	siw_ddp_rd_close(rd->ddp);
	siw_lock_destroy(&rd->lock);
	free(rd->records);
	free(rd);
}

void siw_rdmap_rd_start(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
			const struct siw_rdmap_start *start)
{
	siw_lock(&rd->lock);
	rd->mode = mode;
	rd->start = *start;
	/* on reliable datagrams, neither end waits for the other's first FPDU */
	rd->start.initiator = true;
	rd->start.private = true; /* every implementation of this protocol is siwarp */
	for (struct siw_link *l = rd->streams.next; l != &rd->streams; l = l->next)
		siw_rdmap_deny(siw_container(l, struct siw_rdmap_stream, of_rd.in_rd),
			       start->denied);
	siw_unlock(&rd->lock);
	siw_rdmap_rd_resume(rd);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void free_reports(struct siw_rdmap_stream *stream)
{
	while (!siw_link_empty(&stream->of_rd.reports)) {
		struct siw_link *l = stream->of_rd.reports.next;

		siw_link_del(l);
		free(siw_container(l, struct siw_rdmap_send_count, link));
	}
}

static int rd_stream_create(struct siw_rdmap_rd *rd, struct siw_ddp_rd_peer *peer,
			    struct siw_rdmap_stream **out)
{
	struct siw_rdmap_stream *stream = siw_rdmap_stream_new(rd->user_octets);
	int r;

	if (!stream)
		return -ENOMEM;
	stream->mem = rd->mem;
	siw_link_init(&stream->of_rd.reports);
	siw_link_init(&stream->of_rd.in_rd);
	r = siw_ddp_rd_stream(rd->ddp, peer, stream, &stream->ddp);
	if (r) {
		siw_rdmap_stream_free(stream);
		return r;
	}
	r = siw_rdmap_start(stream, &rd->start);
	if (r) {
		siw_ddp_rd_end(stream->ddp, SIW_DDP_RD_KEEP);
		siw_rdmap_stream_free(stream);
		return r;
	}
	stream->of_rd.rd = rd;
	stream->of_rd.peer = siw_ddp_rd_peer_addr(stream->ddp);
	stream->rx.written = siw_ddp_rd_note(stream->ddp);
	siw_ddp_rd_headed(stream->ddp, 1u << SIW_RDMAP_PRIVATE);
	atomic_store_explicit(&stream->of_rd.used, true, memory_order_relaxed);
	siw_link_add(&rd->streams, &stream->of_rd.in_rd);
	atomic_fetch_add(&rd->n_streams, 1);
	siw_ddp_rd_publish(stream->ddp);
	*out = stream;
	return 0;
}

/*
 * Returns the peer's stream, which is created if there is none. The other side (sending or
 * receiving) may be creating it at the same time.
 */
static int rd_peer_stream(struct siw_rdmap_rd *rd, struct siw_ddp_rd_peer *peer,
			  struct siw_rdmap_stream **out)
{
	int r = 0;

	siw_lock(&rd->lock);
	*out = siw_ddp_rd_user(peer);
	if (!*out)
		r = rd_stream_create(rd, peer, out);
	if (r)
		siw_ddp_rd_unclaim(peer); /* otherwise the peer's record could never be evicted */
	siw_unlock(&rd->lock);
	return r;
}

int siw_rdmap_rd_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
			struct siw_rdmap_stream **out)
{
	struct siw_ddp_rd_peer *peer;
	int r;

	if (rd->last && siw_addr_same(&rd->last_addr, addr)) {
		*out = rd->last;
		atomic_store_explicit(&rd->last->of_rd.used, true, memory_order_relaxed);
		return 0;
	}
	r = siw_ddp_rd_peer(rd->ddp, addr, &peer);
	if (r)
		return r;
	r = rd_peer_stream(rd, peer, out);
	if (r)
		return r;
	atomic_store_explicit(&(*out)->of_rd.used, true, memory_order_relaxed);
	rd->last = *out;
	rd->last_addr = *addr;
	return 0;
}

struct siw_ddp_stream *siw_rdmap_rd_ddp(const struct siw_rdmap_stream *stream)
{
	return stream->ddp;
}

void *siw_rdmap_rd_user(struct siw_rdmap_stream *stream)
{
	return stream->user;
}

const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream)
{
	return stream->of_rd.peer;
}

uint32_t siw_rdmap_rd_ord(const struct siw_rdmap_stream *stream)
{
	uint32_t ird = siw_ddp_rd_peer_ird(stream->ddp);

	/*
	 * The IRD of a peer that has never sent anything is unknown; one Read is allowed until it
	 * is known.
	 */
	if (!ird)
		ird = 1;
	return ird < stream->ord ? ird : stream->ord;
}

uint32_t siw_rdmap_rd_sends(const struct siw_rdmap_stream *stream)
{
	/* Includes the immediate data that follows the current Write. */
	return siw_ddp_tx_msn(stream->ddp, SIW_RDMAP_QN_SEND) + stream->tx.imm_due;
}

bool siw_rdmap_rd_is_torn(const struct siw_rdmap_stream *stream)
{
	return stream->tx.torn;
}

struct siw_rdmap_stream *siw_rdmap_rd_first_torn(struct siw_rdmap_rd *rd)
{
	for (struct siw_link *l = rd->streams.next; l != &rd->streams; l = l->next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		if (stream->tx.torn)
			return stream;
	}
	return NULL;
}

static void rd_stream_end(struct siw_rdmap_stream *stream, enum siw_ddp_rd_ending how)
{
	struct siw_rdmap_rd *rd = stream->of_rd.rd;

	siw_rdmap_traffic_report(&stream->traffic);
	siw_lock(&rd->lock);
	siw_link_del(&stream->of_rd.in_rd);
	atomic_fetch_sub(&rd->n_streams, 1);
	free_reports(stream);
	siw_unlock(&rd->lock);
	if (rd->last == stream)
		rd->last = NULL;
	if (rd->served == stream)
		rd->served = NULL;
	siw_rdmap_read_free_all(stream);
	if (how == SIW_DDP_RD_KEEP)
		siw_ddp_rd_set_note(stream->ddp, stream->rx.written);
	siw_ddp_rd_end(stream->ddp, how);
	siw_rdmap_stream_free(stream);
}

void siw_rdmap_rd_end(struct siw_rdmap_stream *stream, enum siw_rdmap_rd_ending how)
{
	static const enum siw_ddp_rd_ending as[] = {
		[SIW_RDMAP_RD_LOST_PEER] = SIW_DDP_RD_LOST_PEER,
		[SIW_RDMAP_RD_RESET] = SIW_DDP_RD_RESET,
		[SIW_RDMAP_RD_SEQUENCE] = SIW_DDP_RD_SEQUENCE,
	};

	rd_stream_end(stream, as[how]);
}

static bool rd_stream_is_idle(struct siw_rdmap_stream *stream)
{
	return !stream->tx.active && !stream->of_rd.responding && !stream->rx.seg_pending &&
	       !stream->rx.writing && !stream->tx.torn &&
	       stream->rx.requests_in ==
		       atomic_load_explicit(&stream->requests_done, memory_order_relaxed) &&
	       atomic_load_explicit(&stream->reads_begun, memory_order_relaxed) ==
		       atomic_load_explicit(&stream->reads_done, memory_order_relaxed) &&
	       !atomic_load_explicit(&stream->of_rd.n_reports, memory_order_relaxed) &&
	       !stream->of_rd.recording.on && siw_ddp_rd_idle(stream->ddp);
}

static bool rd_stream_awaits_response(struct siw_rdmap_stream *stream)
{
	return atomic_load(&stream->reads_begun) !=
	       atomic_load_explicit(&stream->reads_done, memory_order_relaxed);
}

/*
 * Watches a peer that has sent part of a message: the peer must send the rest, and is declared lost
 * otherwise, because the receive would stay in use for ever.
 */
static void rd_stream_watch_partial(struct siw_rdmap_stream *stream)
{
	bool half = siw_ddp_rd_receiving(stream->ddp);

	if (half == stream->of_rd.partly_received)
		return;
	stream->of_rd.partly_received = half;
	siw_ddp_rd_expect(stream->ddp, half || rd_stream_awaits_response(stream));
}

uint32_t siw_rdmap_rd_sweep(struct siw_rdmap_rd *rd, bool (*busy)(void *user))
{
	struct siw_link *l = rd->streams.next, *next;

	/*
	 * No stream can be created meanwhile: that needs one of the two locks, and both are held
	 * here.
	 */
	for (; l != &rd->streams; l = next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		next = l->next;
		rd_stream_watch_partial(stream);
		if (atomic_exchange_explicit(&stream->of_rd.used, false, memory_order_relaxed))
			continue;
		if (!busy(stream->user) && rd_stream_is_idle(stream))
			rd_stream_end(stream, SIW_DDP_RD_KEEP);
	}
	return siw_rdmap_rd_streams(rd);
}

void siw_rdmap_rd_abandon(struct siw_rdmap_rd *rd)
{
	struct siw_link *l = rd->streams.next, *next;

	for (; l != &rd->streams; l = next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		next = l->next;
		rd_stream_end(stream,
			      rd_stream_is_idle(stream) ? SIW_DDP_RD_KEEP : SIW_DDP_RD_RESET);
	}
}

uint32_t siw_rdmap_rd_streams(const struct siw_rdmap_rd *rd)
{
	return atomic_load_explicit(&rd->n_streams, memory_order_relaxed);
}

/* ---- events ---------------------------------------------------------------------------------- */

void siw_rdmap_rd_resume(struct siw_rdmap_rd *rd)
{
	if (!rd->paused)
		return;
	rd->paused = false;
	siw_ddp_rd_resume(rd->ddp);
	siw_ddp_rd_reschedule(rd->ddp);
}

/*
 * Sets the stream being served. The traffic of a stream is added to the shared counters when the
 * next stream is served, that of the last one when there are no more events.
 */
static void rd_set_served(struct siw_rdmap_rd *rd, struct siw_rdmap_stream *stream)
{
	if (rd->served == stream)
		return;
	if (rd->served)
		siw_rdmap_traffic_report(&rd->served->traffic);
	rd->served = stream;
}

static int rd_report_paused(struct siw_rdmap_rd *rd, struct siw_rdmap_event *event)
{
	rd->paused = true;
	event->kind = SIW_RDMAP_PAUSED;
	return 1;
}

/* Handles a segment of a stream: 1 and *event; 0: no event. */
static int rd_handle_segment(struct siw_rdmap_rd *rd, struct siw_rdmap_stream *stream,
			     struct siw_rdmap_event *event)
{
	event->kind = SIW_RDMAP_NONE;
	if (__builtin_expect(rd->mode != SIW_RDMAP_RD_ON, 0)) {
		siw_ddp_rd_pause(stream->ddp, false);
		return rd_report_paused(rd, event);
	}
	if (__builtin_expect(rd->records != NULL, 0) && siw_rdmap_rd_record_waits(stream)) {
		siw_ddp_rd_pause(stream->ddp, false);
		event->status = -EBUSY;
		return rd_report_paused(rd, event);
	}
	if (siw_rdmap_recv(stream, event) == 1)
		return 1;
	return siw_ddp_rd_paused(stream->ddp) ? rd_report_paused(rd, event) : 0;
}

/* The stream that an event concerns; NULL: the event needs no stream and was handled. */
static struct siw_rdmap_stream *rd_event_stream(struct siw_rdmap_rd *rd,
						const struct siw_ddp_rd_event *news)
{
	struct siw_rdmap_stream *stream = news->user;

	if (stream)
		return stream;
	if (rd->mode == SIW_RDMAP_RD_REJECT || rd_peer_stream(rd, news->peer, &stream))
		siw_ddp_rd_reject(news->peer);
	return NULL; /* the segment is delivered again, now that the stream exists */
}

int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **out,
		      struct siw_rdmap_event *event)
{
	struct siw_ddp_rd_event news;

	for (int tries = 0; tries < 64; tries++) {
		struct siw_rdmap_stream *stream;
		int r = 1;

		if (!siw_ddp_rd_recv(rd->ddp, &news)) {
			rd_set_served(rd, NULL);
			return 0;
		}
		stream = rd_event_stream(rd, &news);
		if (!stream)
			continue;
		rd_set_served(rd, stream);
		*out = stream;
		event->status = news.status;
		event->source = *stream->of_rd.peer;
		event->src_qpn = siw_addr_port(&event->source);
		event->dest = NULL;
		if (news.kind == SIW_DDP_RD_SEGMENT)
			r = rd_handle_segment(rd, stream, event);
		else
			event->kind = news.kind == SIW_DDP_RD_ACKED ? SIW_RDMAP_ACKED
								    : SIW_RDMAP_LOST;
		if (r)
			return 1;
	}
	/* Segments without an event must not starve other sockets, so the rest is served later. */
	siw_ddp_rd_reschedule(rd->ddp);
	return 0;
}

void siw_rdmap_rd_response_done(struct siw_rdmap_stream *stream)
{
	if (rd_stream_awaits_response(stream) || stream->of_rd.partly_received)
		return;
	siw_ddp_rd_expect(stream->ddp, false);
	/*
	 * The sending side may have begun another request meanwhile, and called siw_ddp_rd_expect()
	 * with true before the call above.
	 */
	if (rd_stream_awaits_response(stream))
		siw_ddp_rd_expect(stream->ddp, true);
}
