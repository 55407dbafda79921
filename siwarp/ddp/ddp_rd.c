/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rd.c - DDP streams over reliable datagrams. The lower layer (rd) delivers each peer's
 * segments intact, exactly once and in order. It also stores the message sequence numbers of peers
 * that have no stream at the moment.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/os.h"
#include "base/pieces.h"
#include "base/source.h"
#include "ddp/ddp_lower.h"
#include "llp/llp.h"
#include "rd/rd.h"

struct siw_ddp_rd {
	struct siw_mem *mem;
	struct siw_rd *lower;
	/* Protected by the progress lock: */
	struct siw_link held; /* list of paused streams */
	bool lacks_receive;   /* a stream is paused because no receive was posted */
	/* a stream is paused because it has used up its share of the receives */
	bool lacks_share;
	/* values of the free receives and of parts when lacks_share was set */
	uint32_t seen_free, seen_parts;
	struct siw_ddp_stream *served; /* the stream that received the last segment */
	/* partially received multi-segment messages that hold a receive: in total, and by source */
	uint32_t parts, parts_of[SIW_SOURCES];
	uint64_t key; /* hash key for the index of parts_of */
};

/* ---- endpoints ------------------------------------------------------------------------------- */

int siw_ddp_rd_open(struct siw_mem *mem, struct siw_rd *lower, struct siw_ddp_rd **out)
{
	struct siw_ddp_rd *rd = calloc(1, sizeof(*rd));

	if (!rd)
		return -ENOMEM;
	rd->mem = mem;
	rd->lower = lower;
	siw_link_init(&rd->held);
	rd->key = siw_source_key();
	*out = rd;
	return 0;
}

void siw_ddp_rd_close(struct siw_ddp_rd *rd)
{
	free(rd);
}

void siw_ddp_rd_reschedule(struct siw_ddp_rd *rd)
{
	siw_llp_resume(siw_rd_sock(rd->lower));
}

/* ---- peers and their streams ----------------------------------------------------------------- */

/* A struct siw_ddp_rd_peer is a struct siw_rd_peer under an opaque name. */
static struct siw_rd_peer *lower_peer(const struct siw_ddp_rd_peer *peer)
{
	return (struct siw_rd_peer *)(uintptr_t)peer;
}

int siw_ddp_rd_peer(struct siw_ddp_rd *rd, const struct siw_addr *addr,
		    struct siw_ddp_rd_peer **out)
{
	return siw_rd_peer(rd->lower, addr, (struct siw_rd_peer **)out);
}

void *siw_ddp_rd_user(const struct siw_ddp_rd_peer *peer)
{
	const struct siw_ddp_stream *stream = siw_rd_upper(lower_peer(peer));

	return stream ? stream->user : NULL;
}

/*
 * Data stored in rd's peer record while the peer has no stream: the last MSN sent and received on
 * each queue, and the note. All are 0 for a new peer.
 */
struct saved {
	uint32_t sent[SIW_DDP_QUEUES], received[SIW_DDP_QUEUES];
	uint32_t note;
};
_Static_assert(sizeof(struct saved) <= SIW_RD_ROOM, "SIW_RD_ROOM holds struct saved");

int siw_ddp_rd_stream(struct siw_ddp_rd *rd, struct siw_ddp_rd_peer *peer, void *user,
		      struct siw_ddp_stream **out)
{
	struct siw_ddp_stream *stream = siw_ddp_stream_new(rd->mem);
	const struct saved *saved = siw_rd_upper_data(lower_peer(peer));

	if (!stream)
		return -ENOMEM;
	stream->responses = calloc(1, sizeof(*stream->responses));
	if (!stream->responses) {
		siw_ddp_stream_close(stream);
		return -ENOMEM;
	}
	stream->rd = lower_peer(peer);
	stream->endpoint = rd;
	stream->user = user;
	siw_link_init(&stream->rd_rx.held);
	for (int qn = 0; qn < SIW_DDP_QUEUES; qn++) {
		stream->tx.msn[qn] += saved->sent[qn];
		stream->responses->msn[qn] = stream->tx.msn[qn];
		stream->rx.q[qn].msn += saved->received[qn];
	}
	*out = stream;
	return 0;
}

void siw_ddp_rd_publish(struct siw_ddp_stream *stream)
{
	siw_rd_set_upper(stream->rd, stream);
}

/* ---- shares of the receives ------------------------------------------------------------------ */

/* Updates the counts of partially received messages that hold a receive. */
static void update_partial_count(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rd *rd = stream->endpoint;
	bool part = stream->rx.q[0].begun;
	uint32_t source;

	if (part == stream->rd_rx.part)
		return;
	stream->rd_rx.part = part;
	source = siw_source_index(rd->key, siw_rd_peer_addr(stream->rd));
	rd->parts += part ? 1 : -1u;
	rd->parts_of[source] += part ? 1 : -1u;
}

static void update_served_count(struct siw_ddp_rd *rd)
{
	if (rd->served)
		update_partial_count(rd->served);
	rd->served = NULL;
}

bool siw_ddp_rd_lacks_share(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rd *rd = stream->endpoint;
	uint32_t left = siw_mem_queue_used(stream->rx.q[0].queue), all = rd->parts + left;
	uint32_t source = siw_source_index(rd->key, siw_rd_peer_addr(stream->rd));
	bool lacks_receive = rd->lacks_receive;

	if (!rd->parts || (4 * (rd->parts + 1) <= 3 * all && 2 * (rd->parts_of[source] + 1) <= all))
		return false;
	siw_ddp_rd_pause(stream, true);
	rd->lacks_receive = lacks_receive;
	rd->lacks_share = true;
	rd->seen_free = left;
	rd->seen_parts = rd->parts;
	return true;
}

bool siw_ddp_rd_may_resume(struct siw_ddp_rd *rd, const struct siw_mem_queue *recvs)
{
	uint32_t left = siw_mem_queue_used(recvs);

	update_served_count(rd);
	return left && (rd->lacks_receive ||
			(rd->lacks_share && (left > rd->seen_free || rd->parts < rd->seen_parts)));
}

/* ---- closing a stream ------------------------------------------------------------------------ */

/* Puts back the buffers of unfinished messages: their remaining segments will not arrive. */
static void return_rx_buffers(struct siw_ddp_rx *rx)
{
	for (int qn = 0; qn < SIW_DDP_QUEUES; qn++)
		if (rx->q[qn].begun && !siw_mem_queue_return(rx->q[qn].queue, rx->q[qn].user_data,
							     rx->q[qn].sgl, rx->q[qn].nsge))
			rx->q[qn].begun = false;
}

/* The send state for the messages of a queue. */
static const struct siw_ddp_tx *tx_of_queue(const struct siw_ddp_stream *stream, uint32_t qn)
{
	return siw_ddp_is_response_queue(qn) ? stream->responses : &stream->tx;
}

void siw_ddp_rd_end(struct siw_ddp_stream *stream, enum siw_ddp_rd_ending how)
{
	struct saved *saved = siw_rd_upper_data(stream->rd);

	return_rx_buffers(&stream->rx);
	stream->rx.q[0].begun = false;
	update_partial_count(stream);
	if (stream->endpoint->served == stream)
		stream->endpoint->served = NULL;
	for (uint32_t qn = 0; how == SIW_DDP_RD_KEEP && qn < SIW_DDP_QUEUES; qn++) {
		saved->sent[qn] = tx_of_queue(stream, qn)->msn[qn] - siw_initial_sequence(1);
		saved->received[qn] = stream->rx.q[qn].msn - siw_initial_sequence(1);
	}
	siw_link_del(&stream->rd_rx.held);
	siw_rd_set_upper(stream->rd, NULL);
	if (how == SIW_DDP_RD_RESET || how == SIW_DDP_RD_SEQUENCE)
		siw_rd_reset(stream->rd,
			     how == SIW_DDP_RD_RESET ? SIW_RD_CLOSED_END : SIW_RD_SEQUENCE);
	siw_ddp_stream_close(stream);
}

void siw_ddp_rd_set_note(struct siw_ddp_stream *stream, uint32_t note)
{
	((struct saved *)siw_rd_upper_data(stream->rd))->note = note;
}

uint32_t siw_ddp_rd_note(const struct siw_ddp_stream *stream)
{
	return ((const struct saved *)siw_rd_upper_data(stream->rd))->note;
}

bool siw_ddp_rd_receiving(const struct siw_ddp_stream *stream)
{
	for (int qn = 0; qn < SIW_DDP_QUEUES; qn++)
		if (stream->rx.q[qn].begun)
			return true;
	return stream->rd_rx.skip[SIW_RD_REQUESTS].on || stream->rd_rx.skip[SIW_RD_RESPONSES].on;
}

bool siw_ddp_rd_idle(struct siw_ddp_stream *stream)
{
	return !stream->tx.active && siw_ddp_tx_accepted(stream) >= stream->tx.framed &&
	       !stream->responses->active &&
	       siw_rd_accepted(stream->rd, SIW_RD_RESPONSES) >= stream->responses->framed &&
	       !stream->rd_rx.data && siw_link_empty(&stream->rd_rx.held) &&
	       !siw_ddp_rd_receiving(stream);
}

const struct siw_addr *siw_ddp_rd_peer_addr(const struct siw_ddp_stream *stream)
{
	return siw_rd_peer_addr(stream->rd);
}

uint8_t siw_ddp_rd_peer_ird(const struct siw_ddp_stream *stream)
{
	return siw_rd_peer_ird(stream->rd);
}

void siw_ddp_rd_expect(struct siw_ddp_stream *stream, bool expected)
{
	siw_rd_expect(stream->rd, expected);
}

/* ---- responses ------------------------------------------------------------------------------- */

int siw_ddp_rd_response_more(struct siw_ddp_stream *stream, struct siw_wire_err *err)
{
	return siw_ddp_tx_continue(stream, stream->responses, err);
}

uint64_t siw_ddp_rd_response_abandon(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = stream->responses;
	uint64_t framed = tx->active ? tx->offset : 0;

	tx->active = false;
	return framed;
}

bool siw_ddp_rd_has_tx_room(const struct siw_ddp_stream *stream, bool requests, bool responses)
{
	return (responses && !siw_rd_blocked(stream->rd, SIW_RD_RESPONSES)) ||
	       (requests && !siw_rd_blocked(stream->rd, SIW_RD_REQUESTS));
}

bool siw_ddp_rd_in_responses(const struct siw_ddp_stream *stream)
{
	return stream->rd_rx.space == SIW_RD_RESPONSES;
}

/* ---- receiving ------------------------------------------------------------------------------- */

int siw_ddp_rd_recv(struct siw_ddp_rd *rd, struct siw_ddp_rd_event *event)
{
	struct siw_rd_event news;

	/*
	 * Bounded, because events of peers without a stream are skipped: a flood of them must not
	 * starve other sockets.
	 */
	for (int tries = 0; tries < 64; tries++) {
		struct siw_ddp_stream *stream;

		update_served_count(rd);
		if (siw_rd_recv(rd->lower, &news) != 1)
			return 0;
		stream = siw_rd_upper(news.peer);
		event->peer = (struct siw_ddp_rd_peer *)news.peer;
		event->user = stream ? stream->user : NULL;
		event->status = 0;
		if (news.kind == SIW_RD_SEGMENT) {
			event->kind = SIW_DDP_RD_SEGMENT;
			if (stream) {
				stream->rd_rx.data = news.data;
				stream->rd_rx.len = news.len;
				stream->rd_rx.space = (uint8_t)news.space;
				rd->served = stream;
			}
			return 1;
		}
		if (!stream) /* the peer has no stream, so the event is of no interest */
			continue;
		if (news.kind == SIW_RD_ACKED) {
			event->kind = SIW_DDP_RD_ACKED;
			return 1;
		}
		if (news.kind != SIW_RD_NEW_PEER) {
			event->kind = SIW_DDP_RD_LOST;
			event->status = news.kind == SIW_RD_RESTARTED  ? -ECONNRESET
					: news.kind == SIW_RD_GONE     ? -ETIMEDOUT
					: news.kind == SIW_RD_REPLACED ? -ESTALE
								       : -ENOBUFS;
			return 1;
		}
	}
	siw_llp_resume(siw_rd_sock(rd->lower));
	return 0;
}

int siw_ddp_rd_rx(struct siw_ddp_stream *stream, const uint8_t **head, size_t *head_len,
		  size_t *seg_len, bool *whole)
{
	if (!stream->rd_rx.data)
		return 0;
	*head = stream->rd_rx.data;
	*head_len = *seg_len = stream->rd_rx.len;
	*whole = true;
	return 1;
}

int siw_ddp_rd_payload(struct siw_ddp_stream *stream, size_t skip, const struct iovec *iov, int n)
{
	const uint8_t *from = stream->rd_rx.data + skip;

	if (siw_iov_scatter(iov, n, from))
		return -EFAULT;
	stream->rd_rx.data = NULL;
	siw_rd_segment_accepted(stream->rd);
	return 1;
}

void siw_ddp_rd_headed(struct siw_ddp_stream *stream, uint16_t set)
{
	stream->rd_rx.headed = set;
}

bool siw_ddp_rd_is_headed(const struct siw_ddp_stream *stream)
{
	const struct siw_ddp_rd_rx *rd = &stream->rd_rx;

	return rd->data && rd->space == SIW_RD_REQUESTS && rd->len > 1 &&
	       siw_ddp_head_len(rd->data[0]) == SIW_DDP_TAGGED &&
	       rd->headed >> (rd->data[1] & 15) & 1;
}

const uint8_t *siw_ddp_rd_octets(const struct siw_ddp_stream *stream)
{
	return stream->rd_rx.data + stream->rx.seg.head_len;
}

void siw_ddp_rd_pause(struct siw_ddp_stream *stream, bool no_receive)
{
	stream->rd_rx.data = NULL;
	stream->endpoint->lacks_receive |= no_receive;
	if (siw_link_empty(&stream->rd_rx.held))
		siw_link_add(&stream->endpoint->held, &stream->rd_rx.held);
	siw_rd_pause(stream->rd, stream->rd_rx.space, no_receive);
}

bool siw_ddp_rd_paused(const struct siw_ddp_stream *stream)
{
	return !siw_link_empty(&stream->rd_rx.held);
}

void siw_ddp_rd_resume(struct siw_ddp_rd *rd)
{
	rd->lacks_receive = rd->lacks_share = false;
	while (!siw_link_empty(&rd->held)) {
		struct siw_ddp_stream *stream =
			siw_container(rd->held.next, struct siw_ddp_stream, rd_rx.held);

		siw_link_del(&stream->rd_rx.held);
		siw_rd_resume(stream->rd, SIW_RD_REQUESTS);
		siw_rd_resume(stream->rd, SIW_RD_RESPONSES);
	}
}

void siw_ddp_rd_unclaim(struct siw_ddp_rd_peer *peer)
{
	siw_rd_set_upper(lower_peer(peer), NULL);
}

void siw_ddp_rd_reject(struct siw_ddp_rd_peer *peer)
{
	siw_rd_reset(lower_peer(peer), SIW_RD_CLOSED_END);
}

/* ---- refused segments ------------------------------------------------------------------------ */

/* Returns the queue whose current message this segment belongs to, or NULL. */
static struct siw_ddp_rxq *find_receiving_queue(struct siw_ddp_rx *rx,
						const struct siw_ddp_seg *seg)
{
	if (seg->tagged || seg->qn >= SIW_DDP_QUEUES || !rx->q[seg->qn].queue ||
	    rx->q[seg->qn].msn != seg->msn)
		return NULL;
	return &rx->q[seg->qn];
}

/* Whether the error affects a buffer that the message was entitled to. */
static bool spoils_buffer(const struct siw_wire_err *err)
{
	return err->layer == SIW_LAYER_DDP &&
	       (err->type == SIW_DDP_LOCAL_CATASTROPHIC ||
		(err->type == SIW_DDP_UNTAGGED_BUFFER && err->code == SIW_DDP_TOO_LONG));
}

/*
 * Abandons the message that is being received. On queue 0 the message uses up a buffer, which
 * completes with an error; on other queues the buffer is put back.
 */
static void abandon_rx_message(struct siw_ddp_stream *stream, struct siw_ddp_rxq *q, uint32_t qn)
{
	struct siw_ddp_rd_rx *rd = &stream->rd_rx;

	if (!q->begun && !qn && spoils_buffer(&stream->rx.err))
		siw_ddp_rxq_take_buffer(q);
	if (q->begun && (!qn || siw_mem_queue_return(q->queue, q->user_data, q->sgl, q->nsge))) {
		rd->blamed = !qn;
		rd->user_data = q->user_data;
	}
	q->begun = false;
	q->placed = 0;
}

int siw_ddp_rd_refusal(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_rd_rx *rd = &stream->rd_rx;
	struct siw_ddp_rxq *q;

	rx->refusing = rx->have = false;
	rx->err = rx->why_err;
	rd->blamed = false;
	siw_ddp_rd_payload(stream, 0, NULL, 0);
	if (!rx->seg.head_len)
		return rx->why;
	q = find_receiving_queue(rx, &rx->seg);
	if (q)
		abandon_rx_message(stream, q, rx->seg.qn);
	if (q && rx->seg.last)
		q->msn++;
	rd->skip[rd->space].on = !rx->seg.last;
	rd->skip[rd->space].last = rx->seg;
	return rx->why;
}

bool siw_ddp_rd_skips(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_rd_rx *rd = &stream->rd_rx;
	const struct siw_ddp_seg *seg = &rx->seg, *last = &rd->skip[rd->space].last;
	uint32_t head = siw_ddp_tagged_octets(rd, last);
	struct siw_ddp_rxq *q;

	if (!rd->skip[rd->space].on)
		return false;
	rd->skip[rd->space].on = false;
	if (seg->tagged != last->tagged || seg->ulp_octet != last->ulp_octet)
		return false;
	if (seg->tagged ? seg->stag != last->stag || seg->to + head != last->to + last->payload
			: seg->qn != last->qn || seg->msn != last->msn ||
				  seg->mo != last->mo + last->payload)
		return false;
	rd->skip[rd->space].on = !seg->last;
	q = find_receiving_queue(rx, seg);
	if (q && seg->last)
		q->msn++;
	rd->skip[rd->space].last = *seg;
	siw_ddp_rd_payload(stream, 0, NULL, 0);
	return true;
}

int siw_ddp_rd_refused_buffer(struct siw_ddp_stream *stream, uint64_t *user_data)
{
	if (!stream->rd_rx.blamed)
		return 0;
	stream->rd_rx.blamed = false;
	*user_data = stream->rd_rx.user_data;
	return 1;
}
