/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rd.c - DDP streams over reliable datagrams. The lower layer (rd) delivers each peer's
 * segments intact, exactly once and in order, and stores the message sequence numbers of peers that
 * have no stream at the moment.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/os.h"
#include "base/pieces.h"
#include "base/source.h"
#include "ddp/ddp_lower.h"
#include "ddp/ddp_rd.h"
#include "llp/llp.h"
#include "rd/rd.h"

struct siw_ddp_rd {
	struct siw_mem *mem;
	struct siw_rd *lower;
	/* The members below are protected by the progress lock. */
	bool receiving;	      /* see siw_ddp_rd_set_receiving_enabled */
	bool pause_headed;    /* see siw_ddp_rd_set_pause_at_ulp_header */
	struct siw_link held; /* list of paused streams */
	bool lacks_receive;   /* a stream is paused because no receive was posted */
	/* a stream is paused because it has used up its share of the receives */
	bool lacks_share;
	/* number of free receives, and value of the member `parts`, when lacks_share was set */
	uint32_t seen_free, seen_parts;
	struct siw_ddp_stream *served; /* the stream that received the last segment */
	/*
	 * number of partially received multi-segment messages that hold a receive, in total and by
	 * source
	 */
	uint32_t parts, parts_of[SIW_SOURCES];
	uint64_t key; /* hash key for the index of parts_of */
};

static const struct siw_ddp_lower lower_rd;

/* ---- sending: siw_ddp_lower ------------------------------------------------------------------ */

/* Returns the PSN space in which the send state tx sends. */
static enum siw_rd_space psn_space_of_tx(const struct siw_ddp_stream *stream,
					 const struct siw_ddp_tx *tx)
{
	return tx == &stream->tx ? SIW_RD_REQUESTS : SIW_RD_RESPONSES;
}

static size_t rd_lower_layer_mulpdu(const struct siw_ddp_stream *stream,
				    const struct siw_ddp_tx *tx)
{
	return siw_rd_mulpdu(stream->rd, psn_space_of_tx(stream, tx));
}

static int64_t rd_lower_layer_tx_segment(struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx,
					 const void *head, size_t head_len, const struct iovec *iov,
					 int n)
{
	return siw_rd_tx(stream->rd, psn_space_of_tx(stream, tx), head, head_len, iov, n,
			 tx->msg.more);
}

/*
 * Flushes the RD peer. Segments that wait for credit, for the congestion window or for pacing are
 * sent later, without another flush.
 */
static int rd_lower_layer_flush(struct siw_ddp_stream *stream, uint64_t *accepted)
{
	siw_rd_flush(stream->rd, accepted);
	return 1;
}

static bool rd_lower_layer_tx_is_blocked(const struct siw_ddp_stream *stream)
{
	return siw_rd_is_send_queue_full(stream->rd, SIW_RD_REQUESTS);
}

static uint64_t rd_total_segments_accepted_below(const struct siw_ddp_stream *stream)
{
	return siw_rd_total_accepted_segments(stream->rd, SIW_RD_REQUESTS);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

int siw_ddp_rd_open(struct siw_mem *mem, struct siw_rd *lower, struct siw_ddp_rd **out)
{
	struct siw_ddp_rd *rd = calloc(1, sizeof(*rd));

	if (!rd)
		return -ENOMEM;
	rd->mem = mem;
	rd->lower = lower;
	siw_link_init(&rd->held);
	rd->receiving = true;
	rd->key = siw_source_make_hash_key();
	*out = rd;
	return 0;
}

void siw_ddp_rd_close(struct siw_ddp_rd *rd)
{
	free(rd);
}

void siw_ddp_rd_schedule_receiving_again(struct siw_ddp_rd *rd)
{
	siw_llp_sock_resume(siw_rd_sock(rd->lower));
}

void siw_ddp_rd_set_receiving_enabled(struct siw_ddp_rd *rd, bool on)
{
	rd->receiving = on;
}

void siw_ddp_rd_set_pause_at_ulp_header(struct siw_ddp_rd *rd, bool on)
{
	rd->pause_headed = on;
}

/* ---- peers and their streams ----------------------------------------------------------------- */

/* Converts the type of a peer: struct siw_ddp_rd_peer is an opaque name of struct siw_rd_peer. */
static struct siw_rd_peer *rd_peer_from_opaque(const struct siw_ddp_rd_peer *peer)
{
	return (struct siw_rd_peer *)(uintptr_t)peer;
}

int siw_ddp_rd_find_or_create_peer(struct siw_ddp_rd *rd, const struct siw_addr *addr,
				   struct siw_ddp_rd_peer **out)
{
	return siw_rd_get_or_create_peer(rd->lower, addr, (struct siw_rd_peer **)out);
}

void *siw_ddp_rd_upper_layer_object(const struct siw_ddp_rd_peer *peer)
{
	const struct siw_ddp_stream *stream = siw_rd_upper_layer_object(rd_peer_from_opaque(peer));

	return stream ? stream->user : NULL;
}

/*
 * Data stored in rd's peer record while the peer has no stream: the last MSN sent and received on
 * each queue, and the upper layer's value (siw_ddp_rd_set_upper_layer_value). All members are 0 for
 * a new peer.
 */
struct saved {
	uint32_t sent[SIW_DDP_QUEUES], received[SIW_DDP_QUEUES];
	uint32_t note;
};
_Static_assert(sizeof(struct saved) <= SIW_RD_ROOM, "SIW_RD_ROOM holds struct saved");

int siw_ddp_rd_stream_create(struct siw_ddp_rd *rd, struct siw_ddp_rd_peer *peer, void *user,
			     struct siw_ddp_stream **out)
{
	struct siw_ddp_stream *stream = siw_ddp_stream_new(rd->mem);
	const struct saved *saved = siw_rd_peer_upper_data(rd_peer_from_opaque(peer));

	if (!stream)
		return -ENOMEM;
	stream->responses = calloc(1, sizeof(*stream->responses));
	if (!stream->responses) {
		siw_ddp_stream_close(stream);
		return -ENOMEM;
	}
	stream->lower = &lower_rd;
	stream->rd = rd_peer_from_opaque(peer);
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

void siw_ddp_rd_publish_stream(struct siw_ddp_stream *stream)
{
	siw_rd_set_upper_layer_object(stream->rd, stream);
}

/* ---- pausing --------------------------------------------------------------------------------- */

void siw_ddp_rd_set_opcodes_with_ulp_header(struct siw_ddp_stream *stream, uint16_t set)
{
	stream->rd_rx.headed = set;
}

/*
 * Pauses the stream: the segment at the head of the stream, and later segments of the same PSN
 * space, wait for siw_ddp_rd_resume_paused_streams. no_receive: see siw_rd_pause_delivery.
 */
static void rd_pause_stream(struct siw_ddp_stream *stream, bool no_receive)
{
	stream->rd_rx.data = NULL;
	stream->endpoint->lacks_receive |= no_receive;
	if (siw_link_empty(&stream->rd_rx.held))
		siw_link_add(&stream->endpoint->held, &stream->rd_rx.held);
	siw_rd_pause_delivery(stream->rd, stream->rd_rx.space, no_receive);
}

void siw_ddp_rd_resume_paused_streams(struct siw_ddp_rd *rd)
{
	rd->lacks_receive = rd->lacks_share = false;
	while (!siw_link_empty(&rd->held)) {
		struct siw_ddp_stream *stream =
			siw_container(rd->held.next, struct siw_ddp_stream, rd_rx.held);

		siw_link_del(&stream->rd_rx.held);
		siw_rd_resume_delivery(stream->rd, SIW_RD_REQUESTS);
		siw_rd_resume_delivery(stream->rd, SIW_RD_RESPONSES);
	}
}

/* ---- shares of the receives ------------------------------------------------------------------ */

/* Updates the counts of partially received messages that hold a receive. */
static void update_partial_message_count(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rd *rd = stream->endpoint;
	bool part = stream->rx.q[0].begun;
	uint32_t source;

	if (part == stream->rd_rx.part)
		return;
	stream->rd_rx.part = part;
	source = siw_source_table_index(rd->key, siw_rd_peer_addr(stream->rd));
	rd->parts += part ? 1 : -1u;
	rd->parts_of[source] += part ? 1 : -1u;
}

static void update_partial_message_count_of_last_stream(struct siw_ddp_rd *rd)
{
	if (rd->served)
		update_partial_message_count(rd->served);
	rd->served = NULL;
}

/*
 * Pauses the stream if a multi-segment message is about to use a receive, and the peer has used up
 * its share of the receives. Returns whether the stream was paused. Multi-segment messages may use
 * three quarters of the receives, and the multi-segment messages of one source (base/source.h) half
 * of the receives. A message is always admitted if no other message is partially received.
 */
static bool rd_pause_delivery_if_recv_share_used_up(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rd *rd = stream->endpoint;
	uint32_t left = siw_mem_buffer_queue_posted_count(stream->rx.q[0].queue),
		 all = rd->parts + left;
	uint32_t source = siw_source_table_index(rd->key, siw_rd_peer_addr(stream->rd));
	bool lacks_receive = rd->lacks_receive;

	if (!rd->parts || (4 * (rd->parts + 1) <= 3 * all && 2 * (rd->parts_of[source] + 1) <= all))
		return false;
	rd_pause_stream(stream, true);
	rd->lacks_receive = lacks_receive;
	rd->lacks_share = true;
	rd->seen_free = left;
	rd->seen_parts = rd->parts;
	return true;
}

bool siw_ddp_rd_can_resume_paused_stream(struct siw_ddp_rd *rd,
					 const struct siw_mem_buffer_queue *recvs)
{
	uint32_t left = siw_mem_buffer_queue_posted_count(recvs);

	update_partial_message_count_of_last_stream(rd);
	return left && (rd->lacks_receive ||
			(rd->lacks_share && (left > rd->seen_free || rd->parts < rd->seen_parts)));
}

/* ---- closing a stream ------------------------------------------------------------------------ */

/*
 * Returns the buffers of unfinished messages to their queues, because the remaining segments of
 * these messages will not arrive.
 */
static void give_back_buffers_of_partial_messages(struct siw_ddp_rx *rx)
{
	for (int qn = 0; qn < SIW_DDP_QUEUES; qn++)
		if (rx->q[qn].begun &&
		    !siw_mem_buffer_queue_put_back(rx->q[qn].queue, &rx->q[qn].buf))
			rx->q[qn].begun = false;
}

/* Returns the send state that sends the messages of a queue number. */
static const struct siw_ddp_tx *tx_state_of_queue(const struct siw_ddp_stream *stream, uint32_t qn)
{
	return siw_ddp_is_response_queue(qn) ? stream->responses : &stream->tx;
}

void siw_ddp_rd_end_stream(struct siw_ddp_stream *stream, enum siw_ddp_rd_ending how)
{
	struct saved *saved = siw_rd_peer_upper_data(stream->rd);

	give_back_buffers_of_partial_messages(&stream->rx);
	stream->rx.q[0].begun = false;
	update_partial_message_count(stream);
	if (stream->endpoint->served == stream)
		stream->endpoint->served = NULL;
	for (uint32_t qn = 0; how == SIW_DDP_RD_KEEP && qn < SIW_DDP_QUEUES; qn++) {
		saved->sent[qn] = tx_state_of_queue(stream, qn)->msn[qn] - siw_initial_sequence(1);
		saved->received[qn] = stream->rx.q[qn].msn - siw_initial_sequence(1);
	}
	siw_link_del(&stream->rd_rx.held);
	siw_rd_set_upper_layer_object(stream->rd, NULL);
	if (how == SIW_DDP_RD_RESET || how == SIW_DDP_RD_SEQUENCE)
		siw_rd_end_peer_incarnation(stream->rd, how == SIW_DDP_RD_RESET ? SIW_RD_CLOSED_END
										: SIW_RD_SEQUENCE);
	siw_ddp_stream_close(stream);
}

void siw_ddp_rd_set_upper_layer_value(struct siw_ddp_stream *stream, uint32_t note)
{
	((struct saved *)siw_rd_peer_upper_data(stream->rd))->note = note;
}

uint32_t siw_ddp_rd_upper_layer_value(const struct siw_ddp_stream *stream)
{
	return ((const struct saved *)siw_rd_peer_upper_data(stream->rd))->note;
}

bool siw_ddp_rd_has_partial_message(const struct siw_ddp_stream *stream)
{
	for (int qn = 0; qn < SIW_DDP_QUEUES; qn++)
		if (stream->rx.q[qn].begun)
			return true;
	return stream->rd_rx.skip[SIW_RD_REQUESTS].on || stream->rd_rx.skip[SIW_RD_RESPONSES].on;
}

bool siw_ddp_rd_stream_is_idle(struct siw_ddp_stream *stream)
{
	return !stream->tx.active && siw_ddp_tx_accepted_position(stream) >= stream->tx.framed &&
	       !stream->responses->active &&
	       siw_rd_total_accepted_segments(stream->rd, SIW_RD_RESPONSES) >=
		       stream->responses->framed &&
	       !stream->rd_rx.data && siw_link_empty(&stream->rd_rx.held) &&
	       !siw_ddp_rd_has_partial_message(stream);
}

const struct siw_addr *siw_ddp_rd_peer_addr(const struct siw_ddp_stream *stream)
{
	return siw_rd_peer_addr(stream->rd);
}

uint8_t siw_ddp_rd_peer_ird(const struct siw_ddp_stream *stream)
{
	return siw_rd_peer_ird(stream->rd);
}

void siw_ddp_rd_set_datagram_expected(struct siw_ddp_stream *stream, bool expected)
{
	siw_rd_set_response_expected(stream->rd, expected);
}

/* ---- responses ------------------------------------------------------------------------------- */

int siw_ddp_rd_continue_response(struct siw_ddp_stream *stream, struct siw_wire_err *err)
{
	return siw_ddp_tx_continue(stream, stream->responses, err);
}

uint64_t siw_ddp_rd_abandon_response(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = stream->responses;
	uint64_t framed = tx->active ? tx->offset : 0;

	tx->active = false;
	return framed;
}

bool siw_ddp_rd_has_tx_room(const struct siw_ddp_stream *stream, bool requests, bool responses)
{
	return (responses && !siw_rd_is_send_queue_full(stream->rd, SIW_RD_RESPONSES)) ||
	       (requests && !siw_rd_is_send_queue_full(stream->rd, SIW_RD_REQUESTS));
}

/* ---- the segment at the head of a stream ----------------------------------------------------- */

bool siw_ddp_rd_is_segment_in_response_space(const struct siw_ddp_stream *stream)
{
	return stream->rd_rx.space == SIW_RD_RESPONSES;
}

const uint8_t *siw_ddp_rd_segment_payload(const struct siw_ddp_stream *stream)
{
	return stream->rd_rx.data + stream->rx.seg.head_len;
}

static int rd_lower_layer_scatter_payload(struct siw_ddp_stream *stream, size_t skip,
					  const struct iovec *iov, int n)
{
	const uint8_t *from = stream->rd_rx.data + skip;

	if (siw_iov_scatter(iov, n, from))
		return -EFAULT;
	stream->rd_rx.data = NULL;
	siw_rd_mark_segment_accepted(stream->rd);
	return 1;
}

static int rd_lower_layer_refuse_unmapped_memory(struct siw_ddp_stream *stream, int err)
{
	(void)err; /* rd_lower_layer_scatter_payload can only fail with -EFAULT */
	return siw_ddp_rx_refuse_segment(stream, -EACCES, siw_ddp_local_catastrophic);
}

/* ---- refused segments ------------------------------------------------------------------------ */

/* Returns the receive queue whose current message contains the segment, or NULL. */
static struct siw_ddp_rxq *find_queue_of_segment(struct siw_ddp_rx *rx,
						 const struct siw_ddp_seg *seg)
{
	if (seg->tagged || seg->qn >= SIW_DDP_QUEUES || !rx->q[seg->qn].queue ||
	    rx->q[seg->qn].msn != seg->msn)
		return NULL;
	return &rx->q[seg->qn];
}

/* Whether a message that is refused with the error *err uses up a buffer. */
static bool error_uses_up_buffer(const struct siw_wire_err *err)
{
	return err->layer == SIW_LAYER_DDP &&
	       (err->type == SIW_DDP_LOCAL_CATASTROPHIC ||
		(err->type == SIW_DDP_UNTAGGED_BUFFER && err->code == SIW_DDP_TOO_LONG));
}

/*
 * Whether the message has not used the buffer that rd_check_segment took for it from a shared
 * queue, because the message is refused before its first octet was placed.
 */
static bool is_shared_buffer_unused(const struct siw_ddp_rxq *q, const struct siw_wire_err *err)
{
	return q->begun && q->queue->shared && !q->placed && !error_uses_up_buffer(err);
}

/*
 * Abandons the message that is being received. On queue 0 the message uses up a buffer, which
 * completes with an error; on other queues the buffer is returned to the queue.
 */
static void abandon_rx_message(struct siw_ddp_stream *stream, struct siw_ddp_rxq *q, uint32_t qn)
{
	struct siw_ddp_rd_rx *rd = &stream->rd_rx;

	if (!q->begun && !qn && error_uses_up_buffer(&stream->rx.err))
		siw_ddp_rxq_take_buffer(q);
	if (__builtin_expect(is_shared_buffer_unused(q, &stream->rx.err), 0) &&
	    !siw_mem_buffer_queue_put_back(q->queue, &q->buf))
		q->begun = false;
	if (q->begun && (!qn || siw_mem_buffer_queue_put_back(q->queue, &q->buf))) {
		rd->consumed_buffer = !qn;
		rd->user_data = q->buf.user_data;
	}
	q->begun = false;
	q->placed = 0;
}

static int rd_lower_layer_drop_refused_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_rd_rx *rd = &stream->rd_rx;
	struct siw_ddp_rxq *q;

	rx->refusing = rx->have = false;
	rx->err = rx->why_err;
	rd->consumed_buffer = false;
	rd_lower_layer_scatter_payload(stream, 0, NULL, 0);
	if (!rx->seg.head_len)
		return rx->why;
	q = find_queue_of_segment(rx, &rx->seg);
	if (q)
		abandon_rx_message(stream, q, rx->seg.qn);
	if (q && rx->seg.last)
		q->msn++;
	rd->skip[rd->space].on = !rx->seg.last;
	rd->skip[rd->space].last = rx->seg;
	return rx->why;
}

/*
 * Drops the segment at the head of the stream if the segment belongs to a refused message. Returns
 * whether the segment was dropped.
 */
static bool rd_drop_segment_if_message_refused(struct siw_ddp_stream *stream)
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
	q = find_queue_of_segment(rx, seg);
	if (q && seg->last)
		q->msn++;
	rd->skip[rd->space].last = *seg;
	rd_lower_layer_scatter_payload(stream, 0, NULL, 0);
	return true;
}

int siw_ddp_rd_buffer_of_refused_message(struct siw_ddp_stream *stream, uint64_t *user_data)
{
	if (!stream->rd_rx.consumed_buffer)
		return 0;
	stream->rd_rx.consumed_buffer = false;
	*user_data = stream->rd_rx.user_data;
	return 1;
}

static const struct siw_ddp_lower lower_rd = {
	.mulpdu = rd_lower_layer_mulpdu,
	.tx = rd_lower_layer_tx_segment,
	.flush = rd_lower_layer_flush,
	.blocked = rd_lower_layer_tx_is_blocked,
	.accepted = rd_total_segments_accepted_below,
	.copies = true,
	.payload = rd_lower_layer_scatter_payload,
	.failed = rd_lower_layer_refuse_unmapped_memory,
	.refuse = rd_lower_layer_drop_refused_segment,
};

/* ---- receiving ------------------------------------------------------------------------------- */

/*
 * Whether the payload of the segment at the head of the stream begins with octets for the upper
 * layer.
 */
static bool rd_segment_has_ulp_header(const struct siw_ddp_stream *stream)
{
	const struct siw_ddp_rd_rx *rd = &stream->rd_rx;

	return rd->space == SIW_RD_REQUESTS && rd->len > 1 &&
	       siw_ddp_head_len(rd->data[0]) == SIW_DDP_TAGGED &&
	       rd->headed >> (rd->data[1] & 15) & 1;
}

/*
 * Takes a buffer for a new message if the queue is shared. After this check the upper layer may
 * have changed its state for the segment, and then the segment cannot be paused any more; but until
 * the segment is placed, other queue pairs could take the last buffer. Returns false if the queue
 * is empty.
 */
static bool rd_take_buffer_of_shared_queue(struct siw_ddp_rxq *q)
{
	return __builtin_expect(!q->queue->shared, 1) || q->begun || siw_ddp_rxq_take_buffer(q);
}

/*
 * Checks the segment at the head of the stream. Returns 1 if the segment is valid; 0 if the stream
 * was paused; 2 if the segment was dropped, because its message was refused earlier; or -errno if
 * the segment was refused.
 */
static int rd_check_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	const struct siw_ddp_seg *seg = &rx->seg;
	uint8_t code;
	int r = siw_ddp_rx_parse(stream, stream->rd_rx.data, stream->rd_rx.len);

	if (r != 1)
		return r;
	if (rd_drop_segment_if_message_refused(stream))
		return 2;
	r = siw_ddp_rx_check_version(stream);
	if (r != 1)
		return r;
	if (!seg->tagged) {
		code = siw_ddp_rx_check_untagged(rx, seg);
		if (siw_ddp_is_response_queue(seg->qn) !=
		    siw_ddp_rd_is_segment_in_response_space(stream))
			code = SIW_DDP_INVALID_QN;
		if (code == SIW_DDP_NO_BUFFER && !seg->qn) {
			rd_pause_stream(stream, true);
			return 0;
		}
		if (code)
			return siw_ddp_rx_refuse_untagged(stream, code);
		if (!seg->qn && !seg->last && !rx->q[0].begun &&
		    rd_pause_delivery_if_recv_share_used_up(stream))
			return 0;
		if (!seg->qn && !rd_take_buffer_of_shared_queue(&rx->q[0])) {
			rd_pause_stream(stream, true);
			return 0;
		}
	}
	rx->have = true;
	return 1;
}

static bool set_rd_event(struct siw_ddp_rd_event *event, enum siw_ddp_rd_event_kind kind,
			 int status)
{
	event->kind = kind;
	event->status = status;
	return true;
}

/*
 * Receives a segment of a stream. Returns true and sets *event, or returns false if the segment
 * causes no event.
 */
static bool rd_receive_segment(struct siw_ddp_stream *stream, const struct siw_rd_event *news,
			       struct siw_ddp_rd_event *event)
{
	struct siw_ddp_rd *rd = stream->endpoint;
	int r;

	stream->rd_rx.data = news->data;
	stream->rd_rx.len = news->len;
	stream->rd_rx.space = (uint8_t)news->space;
	rd->served = stream;
	if (__builtin_expect(
		    !rd->receiving || (rd->pause_headed && rd_segment_has_ulp_header(stream)), 0)) {
		rd_pause_stream(stream, false);
		return set_rd_event(event, SIW_DDP_RD_PAUSED, rd->receiving ? -EBUSY : 0);
	}
	if (__builtin_expect(!news->len, 0)) { /* the datagram contains no segment */
		rd_lower_layer_scatter_payload(stream, 0, NULL, 0);
		return false;
	}
	r = rd_check_segment(stream);
	event->seg = &stream->rx.seg;
	if (__builtin_expect(r < 0, 0))
		return set_rd_event(event, SIW_DDP_RD_REFUSED, r);
	if (__builtin_expect(r == 2, 0))
		return false;
	return set_rd_event(event, r ? SIW_DDP_RD_SEGMENT : SIW_DDP_RD_PAUSED, 0);
}

/* Returns the status of event SIW_DDP_RD_LOST for the given kind of rd event. */
static int status_of_lost_peer(int kind)
{
	return kind == SIW_RD_RESTARTED	 ? -ECONNRESET
	       : kind == SIW_RD_GONE	 ? -ETIMEDOUT
	       : kind == SIW_RD_REPLACED ? -ESTALE
					 : -ENOBUFS;
}

int siw_ddp_rd_recv(struct siw_ddp_rd *rd, struct siw_ddp_rd_event *event)
{
	struct siw_rd_event news;

	/*
	 * The number of attempts is limited, because events of peers without a stream are skipped,
	 * and a flood of skipped events must not starve other sockets.
	 */
	for (int tries = 0; tries < SIW_DDP_TRIES; tries++) {
		struct siw_ddp_stream *stream;

		update_partial_message_count_of_last_stream(rd);
		if (siw_rd_recv(rd->lower, &news) != 1)
			return 0;
		stream = siw_rd_upper_layer_object(news.peer);
		event->peer = (struct siw_ddp_rd_peer *)news.peer;
		event->user = stream ? stream->user : NULL;
		event->acked = news.kind == SIW_RD_SEGMENT && news.acked;
		if (!stream) {
			/* for a peer without a stream, only the arrival of a segment is an event */
			if (news.kind == SIW_RD_SEGMENT)
				return set_rd_event(event, SIW_DDP_RD_NO_STREAM, 0);
			continue;
		}
		if (__builtin_expect(news.kind == SIW_RD_SEGMENT, 1)) {
			if (rd_receive_segment(stream, &news, event))
				return 1;
			if (!event->acked)
				continue;
			event->acked = false;
			return set_rd_event(event, SIW_DDP_RD_ACKED, 0);
		}
		if (news.kind == SIW_RD_ACKED)
			return set_rd_event(event, SIW_DDP_RD_ACKED, 0);
		if (news.kind != SIW_RD_NEW_PEER)
			return set_rd_event(event, SIW_DDP_RD_LOST, status_of_lost_peer(news.kind));
	}
	siw_ddp_rd_schedule_receiving_again(rd);
	return 0;
}

/* ---- peers without a stream ------------------------------------------------------------------ */

void siw_ddp_rd_release_unused_peer(struct siw_ddp_rd_peer *peer)
{
	siw_rd_set_upper_layer_object(rd_peer_from_opaque(peer), NULL);
}

void siw_ddp_rd_reject_peer(struct siw_ddp_rd_peer *peer)
{
	siw_rd_end_peer_incarnation(rd_peer_from_opaque(peer), SIW_RD_CLOSED_END);
}
