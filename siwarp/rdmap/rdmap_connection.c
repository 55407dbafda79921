/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_connection.c - streams on connections: finding the next segment, sending responses in
 * turns with the user's operations, and ending the stream with a Terminate at the first error.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- errors and the end of the stream -------------------------------------------------------- */

static int connection_end_receiving(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				    int kind)
{
	event->kind = kind;
	stream->rx.over = true;
	stream->rx.seg_pending = false;
	return 1;
}

/* Ends the receiving side, and fills *event from the stream's fault as event ERROR. */
static int connection_end_with_error_event(struct siw_rdmap_stream *stream,
					   struct siw_rdmap_event *event)
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
	return connection_end_receiving(stream, event, SIW_RDMAP_ERROR);
}

int siw_rdmap_fill_first_error_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	/*
	 * If no fault is set yet, the sending side is just setting one, which then counts as the
	 * first fault of the stream.
	 */
	return siw_rdmap_fault_is_set(stream) ? connection_end_with_error_event(stream, event) : 0;
}

static int connection_handle_invalid_segment(struct siw_rdmap_stream *stream,
					     struct siw_rdmap_event *event, struct siw_wire_err err,
					     const struct siw_ddp_seg *seg)
{
	siw_rdmap_record_first_error(stream, err, seg, NULL);
	return siw_rdmap_fill_first_error_event(stream, event);
}

static void connection_handle_failed_delivery(struct siw_rdmap_stream *stream,
					      struct siw_rdmap_event *event,
					      struct siw_wire_err err,
					      const struct siw_ddp_seg *seg)
{
	(void)event;
	siw_rdmap_record_first_error(stream, err, seg, NULL);
}

static bool connection_handle_invalid_request(struct siw_rdmap_stream *stream,
					      struct siw_rdmap_request *request,
					      struct siw_wire_err err,
					      const struct siw_rdmap_wire_read *wire)
{
	siw_rdmap_record_first_error(stream, err, &request->seg, wire);
	return false;
}

static int connection_handle_terminate(struct siw_rdmap_stream *stream,
				       struct siw_rdmap_event *event)
{
	atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
	return connection_end_receiving(stream, event, SIW_RDMAP_TERMINATED);
}

/* Adds the stream's traffic to the shared counters, when there is nothing to receive. Returns 0. */
static int connection_add_traffic_to_counters(struct siw_rdmap_stream *stream)
{
	siw_rdmap_traffic_report(&stream->traffic);
	return 0;
}

/*
 * Ends the receiving side after DDP has returned the end of the stream or an error, r. Returns 1
 * and *event, or 0 if stored segments are still to be placed after receives are posted.
 */
static int connection_handle_rx_end(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				    int r)
{
	struct siw_wire_err err;

	if (siw_ddp_rx_defer_stream_end(stream->ddp))
		return connection_add_traffic_to_counters(stream);
	/*
	 * An orderly close occurs between messages; if the stream ends in the middle of a message,
	 * the peer has failed.
	 */
	if (r == -ENOTCONN && (stream->rx.writing || siw_ddp_rx_has_partial_message(stream->ddp)))
		r = -ECONNRESET;
	if (r != -EPROTO && r != -EBADMSG && r != -EACCES) {
		event->status = r == -ENOTCONN ? 0 : r;
		return connection_end_receiving(stream, event, SIW_RDMAP_CLOSED);
	}
	err = siw_ddp_last_rx_error(stream->ddp);
	/* An LLP error concerns no particular segment (RFC 5040 figure 10). */
	return connection_handle_invalid_segment(
		stream, event, err, err.layer == SIW_LAYER_LLP ? NULL : &stream->rx.seg);
}

/* ---- a responder's first FPDU ---------------------------------------------------------------- */

const struct siw_wire_err siw_rdmap_no_rtr_match = { SIW_LAYER_LLP, 0, SIW_MPA_NO_RTR_MATCH };

/*
 * Whether a segment is a valid RTR. RFC 6581 describes the first kind of RTR as a zero-length
 * FULPDU and, in brackets, as a Send: both an empty FPDU and an empty Send are accepted.
 */
static bool segment_is_rtr(const struct siw_rdmap_rx *rx, const struct siw_ddp_seg *seg)
{
	uint8_t op = siw_rdmap_opcode_of(seg);
	bool empty = seg->last && !seg->payload;

	if (seg->tagged)
		return rx->want_rtr & SIW_MPA_RTR_WRITE && op == SIW_RDMAP_WRITE && empty;
	if (op == SIW_RDMAP_SEND)
		return rx->want_rtr & SIW_MPA_RTR_FPDU && empty;
	return rx->want_rtr & SIW_MPA_RTR_READ && op == SIW_RDMAP_READ_REQUEST;
}

/* Handles an empty FPDU, which is an RTR or has no meaning. Returns 1 if *event is filled. */
static int connection_handle_empty_fpdu(struct siw_rdmap_stream *stream,
					struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	event->kind = SIW_RDMAP_PROGRESS;
	if (rx->first_fpdu_seen)
		return 1;
	if (rx->want_rtr && !(rx->want_rtr & SIW_MPA_RTR_FPDU))
		return connection_handle_invalid_segment(stream, event, siw_rdmap_no_rtr_match,
							 NULL);
	rx->first_fpdu_seen = true;
	siw_ddp_stream_set_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	event->kind = SIW_RDMAP_STARTED;
	return 1;
}

/* ---- segments -------------------------------------------------------------------------------- */

/*
 * Finds and checks the next segment of the stream. Returns 1 if the segment is in rx->seg; 0 if no
 * segment has arrived; 2 if *event is filled; or -errno.
 */
static int connection_get_next_segment(struct siw_rdmap_stream *stream,
				       struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_wire_err err;
	int r = siw_ddp_rx_peek_segment(stream->ddp, &rx->seg);

	if (r == 2)
		return connection_handle_empty_fpdu(stream, event) ? 2 : 0;
	if (r <= 0)
		return r;
	if (!rx->first_fpdu_seen && rx->want_rtr) {
		if (!segment_is_rtr(rx, &rx->seg))
			return siw_ddp_rx_refuse_for_upper_layer(stream->ddp,
								 siw_rdmap_no_rtr_match);
		rx->first_fpdu_seen = rx->rtr = true;
		/* After the RTR, an empty Send is an ordinary message. */
		if (siw_rdmap_opcode_of(&rx->seg) != SIW_RDMAP_SEND)
			siw_ddp_stream_set_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	}
	if (!siw_rdmap_rx_check_segment(stream, &err))
		return siw_ddp_rx_refuse_for_upper_layer(stream->ddp, err);
	rx->seg_pending = true;
	if (rx->first_fpdu_seen)
		return 1;
	/*
	 * if no RTR is expected, any valid segment starts the connection; the segment itself is
	 * handled by the next call
	 */
	rx->first_fpdu_seen = true;
	event->kind = SIW_RDMAP_STARTED;
	return 2;
}

/* ---- Sends that arrived before their receives ------------------------------------------------ */

/*
 * Continues with Sends that waited for receives. Returns 1 if *event is filled; 0 if the Sends
 * still wait.
 */
static __attribute__((cold, noinline)) int
connection_place_unexpected(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_ddp_delivery delivery;
	struct siw_ddp_seg seg;
	int r;

	if (siw_rdmap_release_waiting_responses(stream)) {
		event->kind = SIW_RDMAP_REQUESTED;
		return 1;
	}
	r = siw_ddp_rx_place_stored_segment(stream->ddp, &seg, &delivery);
	if (r < 0)
		return connection_handle_invalid_segment(stream, event,
							 siw_ddp_last_rx_error(stream->ddp), &seg);
	rx->unexpected = siw_ddp_rx_unexpected_octets(stream->ddp) ||
			 rx->requests_in != atomic_load_explicit(&stream->requests_released,
								 memory_order_relaxed);
	if (r == 0)
		return 0;
	event->kind = SIW_RDMAP_PROGRESS;
	if (r == 1)
		siw_rdmap_fill_received_send_event(stream, &seg, &delivery, event);
	return 1;
}

bool siw_rdmap_has_unexpected_messages(const struct siw_rdmap_stream *stream)
{
	return stream->rx.unexpected;
}

bool siw_rdmap_received_send_awaits_buffer(const struct siw_rdmap_stream *stream, uint32_t *msn)
{
	struct siw_ddp_seg seg;

	if (stream->rx.over || !siw_ddp_rx_unexpected_segment_awaits_buffer(stream->ddp, &seg))
		return false;
	*msn = seg.msn;
	return true;
}

void siw_rdmap_fail_received_send_without_buffer(struct siw_rdmap_stream *stream)
{
	struct siw_ddp_seg seg;

	if (siw_ddp_rx_unexpected_segment_awaits_buffer(stream->ddp, &seg))
		siw_rdmap_record_first_error(stream,
					     (struct siw_wire_err){ SIW_LAYER_DDP,
								    SIW_DDP_UNTAGGED_BUFFER,
								    SIW_DDP_NO_BUFFER },
					     &seg, NULL);
}

/* ---- receiving ------------------------------------------------------------------------------- */

int siw_rdmap_next_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	int r;

	if (rx->over || !stream->started)
		return 0;
	siw_rdmap_reset_event_fields(event);
	if (siw_rdmap_fault_is_set(stream)) /* the sending side has found an error */
		return connection_end_with_error_event(stream, event);
	if (__builtin_expect(rx->unexpected, 0) && connection_place_unexpected(stream, event))
		return 1;
	if (!rx->seg_pending) {
		r = connection_get_next_segment(stream, event);
		if (r == 2)
			return 1;
		if (r <= 0)
			return r < 0 ? connection_handle_rx_end(stream, event, r)
				     : connection_add_traffic_to_counters(stream);
	}
	r = siw_rdmap_rx_place_segment(stream, event);
	return r < 0 ? connection_handle_rx_end(stream, event, r) : r;
}

bool siw_rdmap_is_next_received_read_request(const struct siw_rdmap_stream *stream)
{
	struct siw_ddp_seg seg;

	return !stream->rx.over && siw_ddp_rx_peek_already_read_segment(stream->ddp, &seg) &&
	       !seg.tagged && siw_rdmap_opcode_of(&seg) == SIW_RDMAP_READ_REQUEST;
}

/* On a connection, a tagged segment may have any tagged opcode. */
static bool connection_accepts_tagged_opcode(const struct siw_rdmap_stream *stream, uint8_t opcode)
{
	(void)stream;
	(void)opcode;
	return true;
}

/*
 * The subcode of a private message is checked later, because the payload of a segment may not have
 * arrived when the segment is checked.
 */
static bool connection_accepts_private_message_subcode(const struct siw_rdmap_stream *stream,
						       const struct siw_ddp_seg *seg)
{
	(void)stream;
	(void)seg;
	return true;
}

static void connection_handle_placed_private_segment(struct siw_rdmap_stream *stream, bool done,
						     struct siw_rdmap_event *event)
{
	(void)done;
	siw_rdmap_handle_tagged_private_msg(stream, &stream->rx.seg, event);
}

static void connection_ignore_received_read_request(struct siw_rdmap_stream *stream,
						    struct siw_rdmap_event *event)
{
	(void)stream;
	(void)event;
}

static void connection_do_nothing_on_received_response(struct siw_rdmap_stream *stream)
{
	(void)stream;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Number of octets of responses after which siw_rdmap_flush_tx() begins no more responses. */
#define TURN (1u << 20)

/* Refuses a private operation: only reliable datagrams have private operations. */
static int connection_refuse_private_operations(struct siw_rdmap_stream *stream,
						struct siw_rdmap_op *op)
{
	(void)stream;
	(void)op;
	return -EINVAL;
}

static int connection_send_read_request(struct siw_rdmap_stream *stream,
					struct siw_rdmap_read *read, struct siw_ddp_msg *msg)
{
	struct siw_wire_err err;
	int r = siw_ddp_tx(stream->ddp, msg, &err);

	if (r < 0)
		siw_rdmap_free_read_sink(stream, read);
	else /* in time for the response: the request reaches TCP only in a later flush */
		siw_rdmap_store_begun_read_count(stream);
	return r;
}

/* Ends the stream because an operation cannot be finished; the Terminate reports the error. */
static int connection_handle_failed_send(struct siw_rdmap_stream *stream)
{
	siw_ddp_tx_abandon(stream->ddp);
	stream->tx.active = stream->tx.imm_due = false;
	siw_rdmap_record_first_error(
		stream, (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_LOCAL_CATASTROPHIC, 0 },
		NULL, NULL);
	return -EACCES;
}

/* Ends the stream because the response to the oldest request of the peer cannot be finished. */
static int connection_handle_failed_response(struct siw_rdmap_stream *stream,
					     struct siw_wire_err err)
{
	struct siw_rdmap_request *request = siw_rdmap_oldest_request(stream);
	struct siw_rdmap_wire_read wire = request->wire.read;
	uint64_t sent = siw_ddp_tx_abandon(stream->ddp);

	siw_rdmap_advance_read_request(&wire, sent);
	siw_rdmap_record_first_error(stream, siw_rdmap_map_ddp_to_rdmap_error(err), &request->seg,
				     request->atomic ? NULL : &wire);
	return -EACCES;
}

static int connection_continue_response(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_ddp_tx_continue_msg(stream->ddp, &err);

	if (r == -EACCES || r == -EMSGSIZE) {
		tx->active = false;
		return connection_handle_failed_response(stream, err);
	}
	if (r == 1) {
		tx->active = false;
		siw_rdmap_finish_oldest_response(stream);
	}
	return r;
}

static int conn_begin_oldest_read_response(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_rdmap_begin_oldest_response(stream, &err);

	if (r == -EACCES)
		return connection_handle_failed_response(stream, err);
	tx->response = true;
	tx->active = r == 0;
	if (r == 1)
		siw_rdmap_finish_oldest_response(stream);
	return r;
}

/*
 * Frames as many messages and responses as possible. Returns 1 if all are framed; 0 if some are
 * left; -errno.
 */
static int connection_frame_messages(struct siw_rdmap_stream *stream)
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
		if (!siw_rdmap_has_responses_to_send(stream) ||
		    atomic_load_explicit(&stream->closing, memory_order_relaxed))
			return 1;
		/*
		 * If the previous message was a response, and an operation of the user waits to
		 * begin, the call begins no further response.
		 */
		if (tx->waiting || turn >= TURN) {
			tx->waiting = false;
			return 0;
		}
		r = siw_rdmap_send_tagged_private_msgs(stream);
		if (r != 1)
			return r;
		turn += siw_rdmap_oldest_response_octets(stream);
		r = conn_begin_oldest_read_response(stream);
		if (r != 1)
			return r;
	}
}

const struct siw_rdmap_stream_type siw_rdmap_connection = {
	.tagged_expects = connection_accepts_tagged_opcode,
	.knows_private = connection_accepts_private_message_subcode,
	.private_expects = siw_rdmap_check_tagged_private_msg,
	.private_placed = connection_handle_placed_private_segment,
	.segment_failed = connection_handle_invalid_segment,
	.delivery_failed = connection_handle_failed_delivery,
	.request_failed = connection_handle_invalid_request,
	.request_received = connection_ignore_received_read_request,
	.terminate_received = connection_handle_terminate,
	.response_received = connection_do_nothing_on_received_response,
	.begin_private = connection_refuse_private_operations,
	.request_send = connection_send_read_request,
	.frame = connection_frame_messages,
	.send_failed = connection_handle_failed_send,
};
