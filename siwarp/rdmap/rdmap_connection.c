/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_connection.c - streams on connections: finding the next segment, responses in turns
 * with the user's operations, and errors, the first of which ends the stream with a Terminate.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- errors and the end of the stream -------------------------------------------------------- */

static int rx_end(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event, int kind)
{
	event->kind = kind;
	stream->rx.over = true;
	stream->rx.seg_pending = false;
	return 1;
}

/* Fills *event from the stream's fault. */
static int connection_error(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	const struct siw_rdmap_fault *fault = &stream->fault;

	event->err = fault->err;
	event->quoted = fault->has_seg;
	event->of_response = false;
	if (fault->has_seg) {
		event->of_response = siw_rdmap_opcode_of(&fault->seg) == SIW_RDMAP_READ_RESPONSE ||
				     siw_rdmap_opcode_of(&fault->seg) == SIW_RDMAP_ATOMIC_RESPONSE;
		event->quoted_tagged = fault->seg.tagged;
		event->quoted_qn = fault->seg.tagged ? 0 : fault->seg.qn;
		event->quoted_msn = fault->seg.tagged ? 0 : fault->seg.msn;
	}
	return rx_end(stream, event, SIW_RDMAP_ERROR);
}

int siw_rdmap_fault_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	/* The sending side may be setting another fault, which is then the first one. */
	return siw_rdmap_fault_is_set(stream) ? connection_error(stream, event) : 0;
}

static int connection_segment_failed(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				     struct siw_wire_err err, const struct siw_ddp_seg *seg)
{
	siw_rdmap_fault_set(stream, err, seg, NULL);
	return siw_rdmap_fault_event(stream, event);
}

static void connection_delivery_failed(struct siw_rdmap_stream *stream,
				       struct siw_rdmap_event *event, struct siw_wire_err err,
				       const struct siw_ddp_seg *seg)
{
	(void)event;
	siw_rdmap_fault_set(stream, err, seg, NULL);
}

static bool connection_request_failed(struct siw_rdmap_stream *stream,
				      struct siw_rdmap_request *request, struct siw_wire_err err,
				      const struct siw_rdmap_wire_read *wire)
{
	siw_rdmap_fault_set(stream, err, &request->seg, wire);
	return false;
}

static int connection_terminate_received(struct siw_rdmap_stream *stream,
					 struct siw_rdmap_event *event)
{
	atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
	return rx_end(stream, event, SIW_RDMAP_TERMINATED);
}

/* There is nothing to receive: adds the traffic to the shared counters. */
static int rx_idle(struct siw_rdmap_stream *stream)
{
	siw_rdmap_traffic_report(&stream->traffic);
	return 0;
}

/* ddp has no more segments. 0: there will be more after receives are posted. */
static int rx_stream_ended(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event, int r)
{
	struct siw_wire_err err;

	if (siw_ddp_rx_defers_end(stream->ddp))
		return rx_idle(stream);
	/*
	 * An orderly close occurs between messages; in the middle of a message, the peer has
	 * failed.
	 */
	if (r == -ENOTCONN && (stream->rx.writing || siw_ddp_rx_unfinished(stream->ddp)))
		r = -ECONNRESET;
	if (r != -EPROTO && r != -EBADMSG && r != -EACCES) {
		event->status = r == -ENOTCONN ? 0 : r;
		return rx_end(stream, event, SIW_RDMAP_CLOSED);
	}
	err = siw_ddp_error(stream->ddp);
	/* An LLP error concerns no particular segment (figure 10). */
	return connection_segment_failed(stream, event, err,
					 err.layer == SIW_LAYER_LLP ? NULL : &stream->rx.seg);
}

/* ---- a responder's first FPDU ---------------------------------------------------------------- */

const struct siw_wire_err siw_rdmap_no_rtr_match = { SIW_LAYER_LLP, 0, SIW_MPA_NO_RTR_MATCH };

/*
 * Whether a segment is a valid RTR. RFC 6581 describes the first kind as a zero-length FULPDU and,
 * in brackets, as a Send: both an empty FPDU and an empty Send are accepted.
 */
static bool is_rtr(const struct siw_rdmap_rx *rx, const struct siw_ddp_seg *seg)
{
	uint8_t op = siw_rdmap_opcode_of(seg);
	bool empty = seg->last && !seg->payload;

	if (seg->tagged)
		return rx->want_rtr & SIW_MPA_RTR_WRITE && op == SIW_RDMAP_WRITE && empty;
	if (op == SIW_RDMAP_SEND)
		return rx->want_rtr & SIW_MPA_RTR_FPDU && empty;
	return rx->want_rtr & SIW_MPA_RTR_READ && op == SIW_RDMAP_READ_REQUEST;
}

/* Handles an empty FPDU, which is an RTR or has no meaning. 1: *event is filled. */
static int rx_empty_fpdu(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	event->kind = SIW_RDMAP_PROGRESS;
	if (rx->first_fpdu_seen)
		return 1;
	if (rx->want_rtr && !(rx->want_rtr & SIW_MPA_RTR_FPDU))
		return connection_segment_failed(stream, event, siw_rdmap_no_rtr_match, NULL);
	rx->first_fpdu_seen = true;
	siw_ddp_stream_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	event->kind = SIW_RDMAP_STARTED;
	return 1;
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Finds and checks the next segment. 1: it is in rx->seg; 0: none; 2: *event is filled; -errno. */
static int rx_next_segment(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_wire_err err;
	int r = siw_ddp_rx_head(stream->ddp, &rx->seg);

	if (r == 2)
		return rx_empty_fpdu(stream, event) ? 2 : 0;
	if (r <= 0)
		return r;
	if (!rx->first_fpdu_seen && rx->want_rtr) {
		if (!is_rtr(rx, &rx->seg))
			return siw_ddp_rx_refuse(stream->ddp, siw_rdmap_no_rtr_match);
		rx->first_fpdu_seen = rx->rtr = true;
		/* From now on an empty Send is not an RTR. */
		if (siw_rdmap_opcode_of(&rx->seg) != SIW_RDMAP_SEND)
			siw_ddp_stream_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	}
	if (!siw_rdmap_rx_check(stream, &err))
		return siw_ddp_rx_refuse(stream->ddp, err);
	rx->seg_pending = true;
	if (rx->first_fpdu_seen)
		return 1;
	/*
	 * without RTR, any valid segment starts the connection; the segment itself is handled next
	 */
	rx->first_fpdu_seen = true;
	event->kind = SIW_RDMAP_STARTED;
	return 2;
}

/* ---- Sends that arrived before their receives ------------------------------------------------ */

/* Continues with Sends that waited for receives. 1: *event is filled; 0: they still wait. */
static __attribute__((cold, noinline)) int place_unexpected(struct siw_rdmap_stream *stream,
							    struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_ddp_delivery delivery;
	struct siw_ddp_seg seg;
	int r;

	if (siw_rdmap_request_release(stream)) {
		event->kind = SIW_RDMAP_REQUESTED;
		return 1;
	}
	r = siw_ddp_rx_place_unexpected(stream->ddp, &seg, &delivery);
	if (r < 0)
		return connection_segment_failed(stream, event, siw_ddp_error(stream->ddp), &seg);
	rx->unexpected = siw_ddp_rx_unexpected(stream->ddp) ||
			 rx->requests_in != atomic_load_explicit(&stream->requests_released,
								 memory_order_relaxed);
	if (r == 0)
		return 0;
	event->kind = SIW_RDMAP_PROGRESS;
	if (r == 1)
		siw_rdmap_send_received(stream, &seg, &delivery, event);
	return 1;
}

bool siw_rdmap_unexpected(const struct siw_rdmap_stream *stream)
{
	return stream->rx.unexpected;
}

bool siw_rdmap_send_waits(const struct siw_rdmap_stream *stream, uint32_t *msn)
{
	struct siw_ddp_seg seg;

	if (stream->rx.over || !siw_ddp_rx_starved(stream->ddp, &seg))
		return false;
	*msn = seg.msn;
	return true;
}

void siw_rdmap_expire(struct siw_rdmap_stream *stream)
{
	struct siw_ddp_seg seg;

	if (siw_ddp_rx_starved(stream->ddp, &seg))
		siw_rdmap_fault_set(stream,
				    (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
							   SIW_DDP_NO_BUFFER },
				    &seg, NULL);
}

/* ---- receiving ------------------------------------------------------------------------------- */

int siw_rdmap_recv(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	int r;

	if (rx->over || !stream->started)
		return 0;
	siw_rdmap_clear_event(event);
	if (siw_rdmap_fault_is_set(stream)) /* the sending side has found an error */
		return connection_error(stream, event);
	if (__builtin_expect(rx->unexpected, 0) && place_unexpected(stream, event))
		return 1;
	if (!rx->seg_pending) {
		r = rx_next_segment(stream, event);
		if (r == 2)
			return 1;
		if (r <= 0)
			return r < 0 ? rx_stream_ended(stream, event, r) : rx_idle(stream);
	}
	r = siw_rdmap_rx_place(stream, event);
	return r < 0 ? rx_stream_ended(stream, event, r) : r;
}

/* A tagged segment may have any tagged opcode. */
static bool connection_tagged_expects(const struct siw_rdmap_stream *stream, uint8_t opcode)
{
	(void)stream;
	(void)opcode;
	return true;
}

/* The octets of a segment may be missing when it is checked, so the subcode is checked later. */
static bool connection_knows_private(const struct siw_rdmap_stream *stream,
				     const struct siw_ddp_seg *seg)
{
	(void)stream;
	(void)seg;
	return true;
}

static void connection_private_placed(struct siw_rdmap_stream *stream, bool done,
				      struct siw_rdmap_event *event)
{
	(void)done;
	siw_rdmap_notice_in(stream, &stream->rx.seg, event);
}

static void connection_request_received(struct siw_rdmap_stream *stream,
					struct siw_rdmap_event *event)
{
	(void)stream;
	(void)event;
}

static void connection_response_received(struct siw_rdmap_stream *stream)
{
	(void)stream;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A flush begins no more responses after this many octets. */
#define TURN (1u << 20)

/* Only reliable datagrams have private operations. */
static int connection_begin_private(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op)
{
	(void)stream;
	(void)op;
	return -EINVAL;
}

static int connection_request_send(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
				   struct siw_ddp_msg *msg)
{
	struct siw_wire_err err;
	int r = siw_ddp_tx(stream->ddp, msg, &err);

	if (r < 0)
		siw_rdmap_read_free_sink(stream, read);
	else /* in time: on TCP the request is sent by a later flush */
		siw_rdmap_read_publish(stream);
	return r;
}

/* The stream ends, and the Terminate reports the error. */
static int connection_send_failed(struct siw_rdmap_stream *stream)
{
	siw_ddp_tx_abandon(stream->ddp);
	stream->tx.active = stream->tx.imm_due = false;
	siw_rdmap_fault_set(
		stream, (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_LOCAL_CATASTROPHIC, 0 },
		NULL, NULL);
	return -EACCES;
}

/* The response to the oldest request cannot be finished. */
static int connection_response_failed(struct siw_rdmap_stream *stream, struct siw_wire_err err)
{
	struct siw_rdmap_request *request = siw_rdmap_oldest_request(stream);
	struct siw_rdmap_wire_read wire = request->wire.read;
	uint64_t sent = siw_ddp_tx_abandon(stream->ddp);

	siw_rdmap_request_skip(&wire, sent);
	siw_rdmap_fault_set(stream, siw_rdmap_request_error(err), &request->seg,
			    request->atomic ? NULL : &wire);
	return -EACCES;
}

static int connection_continue_response(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_ddp_tx_more(stream->ddp, &err);

	if (r == -EACCES || r == -EMSGSIZE) {
		tx->active = false;
		return connection_response_failed(stream, err);
	}
	if (r == 1) {
		tx->active = false;
		siw_rdmap_response_done(stream);
	}
	return r;
}

static int connection_begin_response(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_rdmap_response_begin(stream, &err);

	if (r == -EACCES)
		return connection_response_failed(stream, err);
	tx->response = true;
	tx->active = r == 0;
	if (r == 1)
		siw_rdmap_response_done(stream);
	return r;
}

/* Frames as much as possible: 1: everything is framed; 0: some is left; -errno. */
static int connection_frame(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t turn = 0;

	for (;;) {
		int r = 1;

		if (tx->active)
			r = tx->response ? connection_continue_response(stream)
					 : siw_rdmap_tx_continue(stream);
		if (r != 1)
			return r;
		if (!siw_rdmap_responses_pending(stream) ||
		    atomic_load_explicit(&stream->closing, memory_order_relaxed))
			return 1;
		/*
		 * The message before was a response, and an operation of the user waits to begin:
		 * this call begins no further response.
		 */
		if (tx->waiting || turn >= TURN) {
			tx->waiting = false;
			return 0;
		}
		r = siw_rdmap_send_notices(stream);
		if (r != 1)
			return r;
		turn += siw_rdmap_response_size(stream);
		r = connection_begin_response(stream);
		if (r != 1)
			return r;
	}
}

const struct siw_rdmap_stream_type siw_rdmap_connection = {
	.tagged_expects = connection_tagged_expects,
	.knows_private = connection_knows_private,
	.private_expects = siw_rdmap_notice_expects,
	.private_placed = connection_private_placed,
	.segment_failed = connection_segment_failed,
	.delivery_failed = connection_delivery_failed,
	.request_failed = connection_request_failed,
	.request_received = connection_request_received,
	.terminate_received = connection_terminate_received,
	.response_received = connection_response_received,
	.begin_private = connection_begin_private,
	.request_send = connection_request_send,
	.frame = connection_frame,
	.send_failed = connection_send_failed,
};
