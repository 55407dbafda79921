/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_rd.c - RDMAP on reliable datagrams: an endpoint has a stream to each peer with which
 * messages are in progress.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "rdmap/rdmap_impl.h"

/*
 * The note that DDP stores with each stream is the length in octets of the last Write, or
 * WRITE_REFUSED if the Write was refused.
 */
#define WRITE_REFUSED UINT32_MAX

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
	rd->record_id = siw_rdmap_write_record_choose_first_id();
	siw_lock_init(&rd->lock);
	siw_link_init(&rd->streams);
	siw_ddp_rd_set_receiving_enabled(ddp, false);
	*out = rd;
	return 0;
}

void siw_rdmap_rd_close(struct siw_rdmap_rd *rd)
{
	while (!siw_link_empty(&rd->streams))
		siw_rdmap_rd_end_stream(siw_container(rd->streams.next, struct siw_rdmap_stream,
						      of_rd.in_rd),
					SIW_RDMAP_RD_RESET);
	siw_ddp_rd_close(rd->ddp);
	siw_lock_destroy(&rd->lock);
	free(rd->records);
	free(rd);
}

void siw_rdmap_rd_configure_receiving(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
				      const struct siw_rdmap_start *start)
{
	siw_lock(&rd->lock);
	rd->mode = mode;
	siw_ddp_rd_set_receiving_enabled(rd->ddp, mode == SIW_RDMAP_RD_ON);
	rd->start = *start;
	/* on reliable datagrams, neither end waits for the peer's first message before it sends */
	rd->start.initiator = true;
	rd->start.private = true; /* every implementation of the RD protocol is siwarp */
	for (struct siw_link *l = rd->streams.next; l != &rd->streams; l = l->next)
		siw_rdmap_deny_access_rights(siw_container(l, struct siw_rdmap_stream, of_rd.in_rd),
					     start->denied);
	siw_unlock(&rd->lock);
	siw_rdmap_rd_resume_paused_streams(rd);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void rd_free_error_reports(struct siw_rdmap_stream *stream)
{
	while (!siw_link_empty(&stream->of_rd.reports)) {
		struct siw_link *l = stream->of_rd.reports.next;

		siw_link_del(l);
		free(siw_container(l, struct siw_rdmap_error_report, link));
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
	stream->type = &siw_rdmap_rd_type;
	siw_link_init(&stream->of_rd.reports);
	siw_link_init(&stream->of_rd.in_rd);
	r = siw_ddp_rd_stream_create(rd->ddp, peer, stream, &stream->ddp);
	if (r) {
		siw_rdmap_stream_free(stream);
		return r;
	}
	r = siw_rdmap_start(stream, &rd->start);
	if (r) {
		siw_ddp_rd_end_stream(stream->ddp, SIW_DDP_RD_KEEP);
		siw_rdmap_stream_free(stream);
		return r;
	}
	stream->of_rd.rd = rd;
	stream->of_rd.peer = siw_ddp_rd_peer_addr(stream->ddp);
	stream->rx.write_refused = siw_ddp_rd_upper_layer_value(stream->ddp) == WRITE_REFUSED;
	if (!stream->rx.write_refused)
		stream->rx.written = siw_ddp_rd_upper_layer_value(stream->ddp);
	siw_ddp_rd_set_opcodes_with_ulp_header(stream->ddp, 1u << SIW_RDMAP_PRIVATE);
	atomic_store_explicit(&stream->of_rd.used, true, memory_order_relaxed);
	siw_link_add(&rd->streams, &stream->of_rd.in_rd);
	atomic_fetch_add(&rd->n_streams, 1);
	siw_ddp_rd_publish_stream(stream->ddp);
	*out = stream;
	return 0;
}

/*
 * Returns the peer's stream, which is created if there is none. The sending and the receiving side
 * may create the stream at the same time.
 */
static int rd_get_or_create_stream(struct siw_rdmap_rd *rd, struct siw_ddp_rd_peer *peer,
				   struct siw_rdmap_stream **out)
{
	int r = 0;

	siw_lock(&rd->lock);
	*out = siw_ddp_rd_upper_layer_object(peer);
	if (!*out)
		r = rd_stream_create(rd, peer, out);
	if (r)
		/* the peer has no stream, so its record may be evicted from now on */
		siw_ddp_rd_release_unused_peer(peer);
	siw_unlock(&rd->lock);
	return r;
}

int siw_rdmap_rd_get_or_create_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
				      struct siw_rdmap_stream **out)
{
	struct siw_ddp_rd_peer *peer;
	int r;

	if (rd->last && siw_addr_same(&rd->last_addr, addr)) {
		*out = rd->last;
		atomic_store_explicit(&rd->last->of_rd.used, true, memory_order_relaxed);
		return 0;
	}
	r = siw_ddp_rd_find_or_create_peer(rd->ddp, addr, &peer);
	if (r)
		return r;
	r = rd_get_or_create_stream(rd, peer, out);
	if (r)
		return r;
	atomic_store_explicit(&(*out)->of_rd.used, true, memory_order_relaxed);
	rd->last = *out;
	rd->last_addr = *addr;
	return 0;
}

struct siw_ddp_stream *siw_rdmap_rd_ddp_stream(const struct siw_rdmap_stream *stream)
{
	return stream->ddp;
}

void *siw_rdmap_rd_user_memory(struct siw_rdmap_stream *stream)
{
	return stream->user;
}

const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream)
{
	return stream->of_rd.peer;
}

uint32_t siw_rdmap_rd_max_outstanding_reads(const struct siw_rdmap_stream *stream)
{
	uint32_t ird = siw_ddp_rd_peer_ird(stream->ddp);

	/*
	 * The IRD of a peer that has never sent a datagram is unknown; one Read is allowed until
	 * the IRD is known.
	 */
	if (!ird)
		ird = 1;
	return ird < stream->ord ? ird : stream->ord;
}

uint32_t siw_rdmap_rd_last_send_msn(const struct siw_rdmap_stream *stream)
{
	/*
	 * Immediate Data that will follow the current Write is also a message on the Send queue, so
	 * its MSN is included.
	 */
	return siw_ddp_last_tx_msn(stream->ddp, SIW_RDMAP_QN_SEND) + stream->tx.imm_due;
}

bool siw_rdmap_rd_has_unfinishable_message(const struct siw_rdmap_stream *stream)
{
	return stream->tx.torn;
}

struct siw_rdmap_stream *siw_rdmap_rd_first_unfinishable_stream(struct siw_rdmap_rd *rd)
{
	for (struct siw_link *l = rd->streams.next; l != &rd->streams; l = l->next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		if (stream->tx.torn)
			return stream;
	}
	return NULL;
}

static void rd_end_rdmap_stream(struct siw_rdmap_stream *stream, enum siw_ddp_rd_ending how)
{
	struct siw_rdmap_rd *rd = stream->of_rd.rd;

	siw_rdmap_traffic_report(&stream->traffic);
	siw_lock(&rd->lock);
	siw_link_del(&stream->of_rd.in_rd);
	atomic_fetch_sub(&rd->n_streams, 1);
	rd_free_error_reports(stream);
	siw_unlock(&rd->lock);
	if (rd->last == stream)
		rd->last = NULL;
	if (rd->served == stream)
		rd->served = NULL;
	siw_rdmap_free_all_reads(stream);
	if (how == SIW_DDP_RD_KEEP)
		siw_ddp_rd_set_upper_layer_value(
			stream->ddp, stream->rx.write_refused ? WRITE_REFUSED : stream->rx.written);
	siw_ddp_rd_end_stream(stream->ddp, how);
	siw_rdmap_stream_free(stream);
}

void siw_rdmap_rd_end_stream(struct siw_rdmap_stream *stream, enum siw_rdmap_rd_ending how)
{
	static const enum siw_ddp_rd_ending as[] = {
		[SIW_RDMAP_RD_LOST_PEER] = SIW_DDP_RD_LOST_PEER,
		[SIW_RDMAP_RD_RESET] = SIW_DDP_RD_RESET,
		[SIW_RDMAP_RD_SEQUENCE] = SIW_DDP_RD_SEQUENCE,
	};

	rd_end_rdmap_stream(stream, as[how]);
}

static bool rd_stream_is_idle(struct siw_rdmap_stream *stream)
{
	return !stream->tx.active && !stream->of_rd.responding && !stream->rx.writing &&
	       !stream->tx.torn &&
	       stream->rx.requests_in ==
		       atomic_load_explicit(&stream->requests_done, memory_order_relaxed) &&
	       atomic_load_explicit(&stream->reads_begun, memory_order_relaxed) ==
		       atomic_load_explicit(&stream->reads_done, memory_order_relaxed) &&
	       !atomic_load_explicit(&stream->of_rd.n_reports, memory_order_relaxed) &&
	       !stream->of_rd.recording.on && siw_ddp_rd_stream_is_idle(stream->ddp);
}

static bool rd_stream_awaits_response(struct siw_rdmap_stream *stream)
{
	return atomic_load(&stream->reads_begun) !=
	       atomic_load_explicit(&stream->reads_done, memory_order_relaxed);
}

/*
 * Watches a peer that has sent part of a message: a peer that does not send the rest is declared
 * lost, because the receive would otherwise stay in use forever.
 */
static void rd_stream_watch_partial_message(struct siw_rdmap_stream *stream)
{
	bool half = siw_ddp_rd_has_partial_message(stream->ddp);

	if (half == stream->of_rd.partly_received)
		return;
	stream->of_rd.partly_received = half;
	siw_ddp_rd_set_datagram_expected(stream->ddp, half || rd_stream_awaits_response(stream));
}

uint32_t siw_rdmap_rd_end_idle_streams(struct siw_rdmap_rd *rd, bool (*busy)(void *user))
{
	struct siw_link *l = rd->streams.next, *next;

	/*
	 * No stream can be created during the loop, because creating a stream requires one of the
	 * two locks, and the caller holds both.
	 */
	for (; l != &rd->streams; l = next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		next = l->next;
		rd_stream_watch_partial_message(stream);
		if (atomic_exchange_explicit(&stream->of_rd.used, false, memory_order_relaxed))
			continue;
		if (!busy(stream->user) && rd_stream_is_idle(stream))
			rd_end_rdmap_stream(stream, SIW_DDP_RD_KEEP);
	}
	return siw_rdmap_rd_stream_count(rd);
}

void siw_rdmap_rd_end_all_streams(struct siw_rdmap_rd *rd)
{
	struct siw_link *l = rd->streams.next, *next;

	for (; l != &rd->streams; l = next) {
		struct siw_rdmap_stream *stream =
			siw_container(l, struct siw_rdmap_stream, of_rd.in_rd);

		next = l->next;
		rd_end_rdmap_stream(stream,
				    rd_stream_is_idle(stream) ? SIW_DDP_RD_KEEP : SIW_DDP_RD_RESET);
	}
}

uint32_t siw_rdmap_rd_stream_count(const struct siw_rdmap_rd *rd)
{
	return atomic_load_explicit(&rd->n_streams, memory_order_relaxed);
}

/* ---- events ---------------------------------------------------------------------------------- */

void siw_rdmap_rd_resume_paused_streams(struct siw_rdmap_rd *rd)
{
	if (!rd->paused)
		return;
	rd->paused = false;
	siw_ddp_rd_resume_paused_streams(rd->ddp);
	siw_ddp_rd_schedule_receiving_again(rd->ddp);
}

/*
 * Sets the stream whose event is being handled. The traffic of a stream is added to the shared
 * counters when an event of another stream is handled, or when there are no more events.
 */
static void rd_set_current_stream(struct siw_rdmap_rd *rd, struct siw_rdmap_stream *stream)
{
	if (rd->served == stream)
		return;
	if (rd->served)
		siw_rdmap_traffic_report(&rd->served->traffic);
	rd->served = stream;
}

static int rd_handle_refused_segment(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	return siw_rdmap_rd_handle_refused_segment(
		stream, event, siw_ddp_last_rx_error(stream->ddp), &stream->rx.seg);
}

/* Handles a segment that DDP has checked. Returns 1 and *event. */
static int rd_handle_segment(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_wire_err err;

	if (!siw_rdmap_rx_check_segment(stream, &err)) {
		siw_ddp_rx_refuse_for_upper_layer(stream->ddp, err);
		return rd_handle_refused_segment(stream, event);
	}
	if (siw_rdmap_rx_place_segment(stream, event) < 0)
		return rd_handle_refused_segment(stream, event);
	return 1;
}

static int rd_handle_event(struct siw_rdmap_rd *rd, struct siw_rdmap_stream *stream,
			   const struct siw_ddp_rd_event *news, struct siw_rdmap_event *event)
{
	siw_rdmap_reset_event_fields(event);
	event->acked = news->acked;
	event->source = *stream->of_rd.peer;
	event->src_qpn = siw_addr_port(&event->source);
	event->dest = NULL;
	switch (news->kind) {
	case SIW_DDP_RD_SEGMENT:
		stream->rx.seg = *news->seg;
		return rd_handle_segment(stream, event);
	case SIW_DDP_RD_REFUSED:
		stream->rx.seg = *news->seg;
		return rd_handle_refused_segment(stream, event);
	case SIW_DDP_RD_PAUSED:
		rd->paused = true;
		event->kind = SIW_RDMAP_PAUSED;
		event->status = news->status;
		return 1;
	case SIW_DDP_RD_ACKED:
		event->kind = SIW_RDMAP_ACKED;
		return 1;
	default:
		event->kind = SIW_RDMAP_LOST;
		event->status = news->status;
		return 1;
	}
}

/*
 * Creates a stream for a peer that has sent a segment but has no stream, or rejects the peer. DDP
 * returns the segment again for the new stream.
 */
static void rd_accept_or_reject_peer(struct siw_rdmap_rd *rd, struct siw_ddp_rd_peer *peer)
{
	struct siw_rdmap_stream *stream;

	if (rd->mode == SIW_RDMAP_RD_REJECT || rd_get_or_create_stream(rd, peer, &stream))
		siw_ddp_rd_reject_peer(peer);
}

int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **out,
		      struct siw_rdmap_event *event)
{
	struct siw_ddp_rd_event news;

	for (int tries = 0; tries < 64; tries++) {
		if (!siw_ddp_rd_recv(rd->ddp, &news)) {
			rd_set_current_stream(rd, NULL);
			return 0;
		}
		if (__builtin_expect(news.kind == SIW_DDP_RD_NO_STREAM, 0)) {
			rd_accept_or_reject_peer(rd, news.peer);
			continue;
		}
		*out = news.user;
		rd_set_current_stream(rd, *out);
		return rd_handle_event(rd, *out, &news, event);
	}
	/*
	 * Segments without an event must not starve other sockets, so the remaining segments are
	 * handled later.
	 */
	siw_ddp_rd_schedule_receiving_again(rd->ddp);
	return 0;
}

/* ---- the type -------------------------------------------------------------------------------- */

static bool rd_accepts_tagged_opcode(const struct siw_rdmap_stream *stream, uint8_t opcode)
{
	return (opcode == SIW_RDMAP_READ_RESPONSE) ==
	       siw_ddp_rd_is_segment_in_response_space(stream->ddp);
}

/*
 * On RD, a segment is complete when it is checked, so the subcode in the header of a private
 * message can be checked, too.
 */
static bool rd_accepts_private_subcode(const struct siw_rdmap_stream *stream,
				       const struct siw_ddp_seg *seg)
{
	struct siw_rdmap_wire_send_imm wire;

	if (seg->mo)
		return true;
	if (seg->payload < sizeof(wire))
		return false;
	memcpy(&wire, siw_ddp_rd_segment_payload(stream->ddp), sizeof(wire));
	return wire.subcode == SIW_RDMAP_SEND_IMM || wire.subcode == SIW_RDMAP_SEND_IMM_SE;
}

/*
 * Publishes the request before sending it, because a reliable datagram is sent immediately, and the
 * response may arrive before the sending thread continues. If sending fails, the peer is lost with
 * all its requests, so the publication need not be undone.
 */
static int rd_publish_and_send_request(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
				       struct siw_ddp_msg *msg)
{
	struct siw_wire_err err;

	(void)read;
	siw_rdmap_store_begun_read_count(stream);
	siw_ddp_rd_set_datagram_expected(stream->ddp, true);
	return siw_ddp_tx(stream->ddp, msg, &err);
}

/*
 * Marks the stream as torn (siw_rdmap_rd_has_unfinishable_message()), because the rest of a message
 * cannot be sent to the peer.
 */
static int rd_handle_failed_send(struct siw_rdmap_stream *stream)
{
	siw_ddp_tx_abandon(stream->ddp);
	stream->tx.active = stream->tx.imm_due = false;
	stream->tx.torn = true;
	atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
	return -EACCES;
}

static void rd_handle_response_received(struct siw_rdmap_stream *stream)
{
	if (rd_stream_awaits_response(stream) || stream->of_rd.partly_received)
		return;
	siw_ddp_rd_set_datagram_expected(stream->ddp, false);
	/*
	 * The sending side may have begun another request in the meantime, and announced a
	 * response before the call above. That call would cancel the announcement, so it is
	 * repeated.
	 */
	if (rd_stream_awaits_response(stream))
		siw_ddp_rd_set_datagram_expected(stream->ddp, true);
}

const struct siw_rdmap_stream_type siw_rdmap_rd_type = {
	.tagged_expects = rd_accepts_tagged_opcode,
	.knows_private = rd_accepts_private_subcode,
	.private_expects = siw_rdmap_rd_write_record_check_segment,
	.private_placed = siw_rdmap_rd_handle_placed_write_record,
	.segment_failed = siw_rdmap_rd_handle_refused_segment,
	.delivery_failed = siw_rdmap_rd_handle_failed_delivery,
	.request_failed = siw_rdmap_rd_handle_failed_request,
	.request_received = siw_rdmap_rd_fill_refused_request_event,
	.terminate_received = siw_rdmap_rd_handle_peer_error,
	.response_received = rd_handle_response_received,
	.begin_private = siw_rdmap_rd_write_record_begin_send,
	.request_send = rd_publish_and_send_request,
	.frame = siw_rdmap_rd_frame_messages,
	.send_failed = rd_handle_failed_send,
	.loss_is_event = true,
};
