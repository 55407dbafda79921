/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_rx.c - receives segments and returns events. Each call handles at most one segment,
 * so that the caller decides on the length of a turn.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- valid messages: RFC 5040 figure 4, RFC 7306 figure 2 ------------------------------------ */

static const struct {
	bool known, tagged;
	uint8_t qn;
} shape[16] = {
	[SIW_RDMAP_WRITE] = { true, true, 0 },
	[SIW_RDMAP_READ_REQUEST] = { true, false, SIW_RDMAP_QN_READ },
	[SIW_RDMAP_READ_RESPONSE] = { true, true, 0 },
	[SIW_RDMAP_SEND] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_SEND_INV] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_SEND_SE] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_SEND_SE_INV] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_TERMINATE] = { true, false, SIW_RDMAP_QN_TERMINATE },
	[SIW_RDMAP_IMMEDIATE] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_IMMEDIATE_SE] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_PRIVATE] = { true, false, SIW_RDMAP_QN_SEND },
	[SIW_RDMAP_ATOMIC_REQUEST] = { true, false, SIW_RDMAP_QN_READ },
	[SIW_RDMAP_ATOMIC_RESPONSE] = { true, false, SIW_RDMAP_QN_ATOMIC },
};

static bool op_error(struct siw_wire_err *err, uint8_t code)
{
	*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION, code };
	return false;
}

static bool op_invalidates(uint8_t op)
{
	return op == SIW_RDMAP_SEND_INV || op == SIW_RDMAP_SEND_SE_INV;
}

static const struct siw_wire_err CANNOT_INVALIDATE = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
						       SIW_RDMAP_CANNOT_INVALIDATE };
static const struct siw_wire_err TOO_LONG = { SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
					      SIW_DDP_TOO_LONG };
static const struct siw_wire_err NO_RIGHT = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					      SIW_RDMAP_ACCESS };

/*
 * Whether the subcode of a private message is known. It can be checked here only on reliable
 * datagrams, where a segment is complete when it is checked, and so is the message's header.
 */
static bool knows_private(const struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg)
{
	struct siw_rdmap_wire_send_imm wire;

	if (!siw_rdmap_is_rd(stream) || seg->mo)
		return true;
	if (seg->payload < sizeof(wire))
		return false;
	memcpy(&wire, siw_ddp_rd_octets(stream->ddp), sizeof(wire));
	return wire.subcode == SIW_RDMAP_SEND_IMM || wire.subcode == SIW_RDMAP_SEND_IMM_SE;
}

/* Checks segments with an opcode of RFC 7306 or the private opcode. */
static __attribute__((cold, noinline)) bool rx_check_extension(struct siw_rdmap_stream *stream,
							       struct siw_ddp_seg *seg,
							       struct siw_wire_err *err)
{
	uint8_t op = siw_rdmap_opcode_of(seg);
	uint64_t end = (uint64_t)seg->mo + seg->payload;

	if (op == SIW_RDMAP_ATOMIC_RESPONSE)
		return siw_rdmap_atomic_expects(stream, seg, err);
	if (op == SIW_RDMAP_PRIVATE && (!stream->private || !knows_private(stream, seg)))
		/* not siwarp's use of the experimental opcode */
		return op_error(err, SIW_RDMAP_OPCODE);
	/*
	 * On reliable datagrams: the Write before this Immediate Data was refused, and the two are
	 * one operation.
	 */
	if (siw_rdmap_is_immediate(op) && stream->rx.written == SIW_RDMAP_WRITE_REFUSED &&
	    siw_rdmap_is_rd(stream))
		return op_error(err, SIW_RDMAP_UNSPECIFIED);
	/* RFC7306-6.3-08; no RFC defines the error code. */
	if (siw_rdmap_is_immediate(op) &&
	    (seg->last ? end != SIW_RDMAP_IMM_LEN : end > SIW_RDMAP_IMM_LEN))
		return op_error(err, SIW_RDMAP_UNSPECIFIED);
	seg->note = stream->rx.written;
	if (seg->last && !seg->qn)
		stream->rx.written = 0;
	return true;
}

/* Checks a segment: RFC5040-7.2-02, -03, and the requirements of each opcode. */
static bool rx_check_segment(struct siw_rdmap_stream *stream, struct siw_ddp_seg *seg,
			     struct siw_wire_err *err)
{
	uint8_t op = siw_rdmap_opcode_of(seg);

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT > SIW_RDMAP_RV) /* RFC5040-4.1-08: 0 or 1 */
		return op_error(err, SIW_RDMAP_VERSION);
	if (!shape[op].known || shape[op].tagged != seg->tagged ||
	    (!seg->tagged && shape[op].qn != seg->qn)) {
		if (op == SIW_RDMAP_PRIVATE && seg->tagged)
			return siw_rdmap_is_rd(stream)
				       ? siw_rdmap_rd_record_expects(stream, seg, err)
				       : siw_rdmap_notice_expects(stream, seg, err);
		return op_error(err, SIW_RDMAP_OPCODE);
	}
	if (seg->tagged && siw_rdmap_is_rd(stream) &&
	    (op == SIW_RDMAP_READ_RESPONSE) != siw_ddp_rd_in_responses(stream->ddp))
		return op_error(err, SIW_RDMAP_OPCODE);
	if (op == SIW_RDMAP_WRITE && seg->payload && stream->denied & SIW_MEM_REMOTE_WRITE) {
		*err = NO_RIGHT;
		return false;
	}
	if (op == SIW_RDMAP_READ_RESPONSE)
		return siw_rdmap_read_expects(stream, seg, err);
	/*
	 * Buffers of the Read queue also fit an Atomic Request, which is longer, so the length is
	 * checked here.
	 */
	if (op == SIW_RDMAP_READ_REQUEST && (uint64_t)seg->mo + seg->payload > SIW_RDMAP_READ_LEN) {
		*err = TOO_LONG;
		return false;
	}
	if (op >= SIW_RDMAP_IMMEDIATE)
		return rx_check_extension(stream, seg, err);
	if (!seg->tagged && !seg->qn)
		stream->rx.written = 0; /* the next message does not directly follow a Write */
	/*
	 * RFC5040-7.2-04, -05: checked before anything is placed; the STag is invalidated with the
	 * last segment.
	 */
	if (op_invalidates(op) &&
	    !siw_mem_stag_may_invalidate(stream->mem, seg->ulp_word,
					 siw_ddp_stream_identity(stream->ddp))) {
		*err = CANNOT_INVALIDATE;
		return false;
	}
	return true;
}

/* ---- errors and the end of the stream -------------------------------------------------------- */

static int rx_end(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event, int kind)
{
	event->kind = kind;
	stream->rx.over = true;
	stream->rx.seg_pending = false;
	return 1;
}

/* Fills *event from the stream's fault. */
static int fill_error_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
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

static int rx_fault(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
		    struct siw_wire_err err, const struct siw_ddp_seg *seg)
{
	if (siw_rdmap_is_rd(stream))
		return siw_rdmap_rd_refused(stream, event, err, seg);
	siw_rdmap_fault_set(stream, err, seg, NULL);
	/* The sending side may be setting another fault, which is then the first one. */
	return siw_rdmap_fault_is_set(stream) ? fill_error_event(stream, event) : 0;
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
	if (siw_rdmap_is_rd(stream))
		stream->rx.seg_pending = false;
	/* An LLP error concerns no particular segment (figure 10). */
	return rx_fault(stream, event, err, err.layer == SIW_LAYER_LLP ? NULL : &stream->rx.seg);
}

/* ---- a responder's first FPDU ---------------------------------------------------------------- */

static const struct siw_wire_err NO_RTR_MATCH = { SIW_LAYER_LLP, 0, SIW_MPA_NO_RTR_MATCH };

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
		return rx_fault(stream, event, NO_RTR_MATCH, NULL);
	rx->first_fpdu_seen = true;
	siw_ddp_stream_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	event->kind = SIW_RDMAP_STARTED;
	return 1;
}

/* ---- delivery -------------------------------------------------------------------------------- */

/*
 * Completes a Send with Invalidate: its STag is invalidated before the user gets the completion
 * (RFC5040-5.3-13). If the STag's owner has invalidated it meanwhile, the receive completes with an
 * error.
 */
static __attribute__((cold, noinline)) void rx_invalidate(struct siw_rdmap_stream *stream,
							  const struct siw_ddp_seg *seg,
							  struct siw_rdmap_event *event)
{
	if (siw_mem_stag_invalidate(stream->mem, seg->ulp_word,
				    siw_ddp_stream_identity(stream->ddp)) == 0) {
		event->invalidated = true;
		event->inv_stag = seg->ulp_word;
		return;
	}
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = -EACCES;
	if (siw_rdmap_is_rd(stream))
		siw_rdmap_rd_delivery_failed(stream, event, CANNOT_INVALIDATE, seg);
	else
		siw_rdmap_fault_set(stream, CANNOT_INVALIDATE, seg, NULL);
}

/* Parses the header of a message with immediate data; false: it is invalid. */
static bool rx_read_imm_header(const struct siw_ddp_seg *seg,
			       const struct siw_ddp_delivery *delivery,
			       struct siw_rdmap_event *event)
{
	struct siw_rdmap_wire_send_imm wire;
	struct siw_rdmap_wire_imm imm;

	if (!delivery->head)
		return false;
	event->with_imm = true;
	if (siw_rdmap_is_immediate(siw_rdmap_opcode_of(seg))) {
		memcpy(&imm, delivery->head, sizeof(imm));
		event->imm = imm.data;
		event->of_write = true;
		event->length = seg->note;
		event->solicited = siw_rdmap_opcode_of(seg) == SIW_RDMAP_IMMEDIATE_SE;
		return true;
	}
	memcpy(&wire, delivery->head, sizeof(wire));
	event->imm = wire.data;
	event->solicited = wire.subcode == SIW_RDMAP_SEND_IMM_SE;
	return siw_rdmap_is_send_imm(&wire);
}

static __attribute__((cold, noinline)) void
rx_handle_imm_header(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
		     const struct siw_ddp_delivery *delivery, struct siw_rdmap_event *event)
{
	static const struct siw_wire_err unknown = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
						     SIW_RDMAP_OPCODE };

	if (rx_read_imm_header(seg, delivery, event))
		return;
	/* The message has consumed a receive, which completes with an error; the stream ends. */
	siw_rdmap_fault_set(stream, unknown, seg, NULL);
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = -EPROTO;
}

static void rx_send_received(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			     const struct siw_ddp_delivery *delivery, struct siw_rdmap_event *event)
{
	event->kind = SIW_RDMAP_RECV;
	event->user_data = delivery->user_data;
	event->length = delivery->length;
	event->solicited = siw_rdmap_opcode_of(seg) == SIW_RDMAP_SEND_SE ||
			   siw_rdmap_opcode_of(seg) == SIW_RDMAP_SEND_SE_INV;
	event->msn = seg->msn;
	if (__builtin_expect(siw_rdmap_opcode_of(seg) >= SIW_RDMAP_IMMEDIATE, 0))
		rx_handle_imm_header(stream, seg, delivery, event);
	else if (__builtin_expect(op_invalidates(siw_rdmap_opcode_of(seg)), 0))
		rx_invalidate(stream, seg, event);
	siw_rdmap_traffic_count(&stream->traffic.received, 1, delivery->length);
	if (event->kind == SIW_RDMAP_RECV)
		siw_rdmap_count_update(stream);
}

static int rx_request_received(struct siw_rdmap_stream *stream,
			       const struct siw_ddp_delivery *delivery,
			       struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	bool atomic = siw_rdmap_opcode_of(&rx->seg) == SIW_RDMAP_ATOMIC_REQUEST;
	uint32_t size = be32toh(stream->read_bufs[delivery->user_data].read.rdmardsz);

	/* A Read that is an RTR must be empty. */
	if (rx->rtr && delivery->length == SIW_RDMAP_READ_LEN && size)
		return rx_fault(stream, event, NO_RTR_MATCH, NULL);
	if (!siw_rdmap_request_in(stream, &rx->seg, delivery))
		return siw_rdmap_fault_is_set(stream) ? fill_error_event(stream, event) : 0;
	if (siw_rdmap_request_release(stream))
		event->kind = SIW_RDMAP_REQUESTED;
	if (siw_rdmap_is_rd(stream))
		siw_rdmap_rd_request_event(stream, event);
	event->length = atomic ? sizeof(uint64_t) : size;
	return 1;
}

/* Handles the response to an atomic of this end. */
static int atomic_response(struct siw_rdmap_stream *stream, uint32_t length,
			   struct siw_rdmap_event *event)
{
	struct siw_wire_err err;

	if (siw_rdmap_atomic_done(stream, length, event, &err))
		return 1;
	return rx_fault(stream, event, err, &stream->rx.seg);
}

/* Handles a placed segment; done: the segment completes its message. */
static int rx_placed(struct siw_rdmap_stream *stream, bool done,
		     const struct siw_ddp_delivery *delivery, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	int r = 1;

	rx->seg_pending = false;
	event->kind = SIW_RDMAP_PROGRESS;
	event->placed = rx->seg.payload;
	switch (siw_rdmap_opcode_of(&rx->seg)) {
	case SIW_RDMAP_WRITE: /* RFC5040-5.1-03: a Write is not delivered */
		siw_rdmap_traffic_count(&stream->traffic.received, done, rx->seg.payload);
		rx->written = (rx->writing ? rx->written : 0) + rx->seg.payload;
		rx->writing = !done;
		event->of_write = done;
		event->length = rx->written;
		if (done && !rx->rtr) {
			rx->writes++;
			siw_rdmap_count_update(stream);
		}
		break;
	case SIW_RDMAP_READ_RESPONSE:
		siw_rdmap_read_placed(stream, &rx->seg, event);
		break;
	case SIW_RDMAP_READ_REQUEST:
	case SIW_RDMAP_ATOMIC_REQUEST:
		if (done)
			r = rx_request_received(stream, delivery, event);
		break;
	case SIW_RDMAP_ATOMIC_RESPONSE:
		if (done)
			r = atomic_response(stream, delivery->length, event);
		break;
	case SIW_RDMAP_TERMINATE:
		if (done) {
			siw_count(SIW_COUNTER_terminate_rx, 1);
			if (siw_rdmap_is_rd(stream)) {
				siw_rdmap_terminate_parse(stream->term_in, delivery->length, event);
				return siw_rdmap_rd_reported(stream, event);
			}
			siw_rdmap_terminate_parse(stream->term_in, delivery->length, event);
			atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
			return rx_end(stream, event, SIW_RDMAP_TERMINATED);
		}
		break;
	default:
		if (rx->seg.tagged && !siw_rdmap_is_rd(stream))
			siw_rdmap_notice_in(stream, &rx->seg, event);
		else if (rx->seg.tagged)
			siw_rdmap_rd_record_placed(stream, done, event);
		else if (done && !rx->rtr) /* an RTR consumes no receive */
			rx_send_received(stream, &rx->seg, delivery, event);
	}
	if (rx->rtr && r == 1 && event->kind != SIW_RDMAP_ERROR) {
		rx->rtr = false;
		event->kind = SIW_RDMAP_STARTED;
	}
	return r;
}

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
		if (!is_rtr(rx, &rx->seg)) {
			siw_ddp_rx_refuse(stream->ddp, NO_RTR_MATCH);
			return siw_ddp_rx_head(stream->ddp, &rx->seg);
		}
		rx->first_fpdu_seen = rx->rtr = true;
		/* From now on an empty Send is not an RTR. */
		if (siw_rdmap_opcode_of(&rx->seg) != SIW_RDMAP_SEND)
			siw_ddp_stream_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND, false);
	}
	if (!rx_check_segment(stream, &rx->seg, &err)) {
		siw_ddp_rx_refuse(stream->ddp, err);
		return siw_ddp_rx_head(stream->ddp, &rx->seg);
	}
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

/* Handles a segment of a Send without a receive. */
static int rx_unexpected_send(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	rx->seg_pending = false;
	event->kind = rx->unexpected ? SIW_RDMAP_PROGRESS : SIW_RDMAP_UNEXPECTED;
	rx->unexpected = true;
	return 1;
}

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
		return rx_fault(stream, event, siw_ddp_error(stream->ddp), &seg);
	rx->unexpected = siw_ddp_rx_unexpected(stream->ddp) ||
			 rx->requests_in != atomic_load_explicit(&stream->requests_released,
								 memory_order_relaxed);
	if (r == 0)
		return 0;
	event->kind = SIW_RDMAP_PROGRESS;
	if (r == 1)
		rx_send_received(stream, &seg, &delivery, event);
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

/*
 * Clears the fields that a caller may read in every event. Clearing the complete struct would be a
 * slow string instruction.
 */
static void rx_clear_event(struct siw_rdmap_event *event)
{
	event->kind = SIW_RDMAP_NONE;
	event->status = 0;
	event->user_data = 0;
	event->length = event->placed = 0;
	event->solicited = event->invalidated = event->quoted = false;
	event->with_imm = event->of_write = false;
	event->err = (struct siw_wire_err){ 0 };
}

int siw_rdmap_recv(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_ddp_delivery delivery;
	uint32_t right;
	int r;

	if (rx->over || !stream->started)
		return 0;
	rx_clear_event(event);
	if (siw_rdmap_fault_is_set(stream)) /* the sending side has found an error */
		return fill_error_event(stream, event);
	if (__builtin_expect(rx->unexpected, 0) && place_unexpected(stream, event))
		return 1;
	if (!rx->seg_pending) {
		r = rx_next_segment(stream, event);
		if (r == 2)
			return 1;
		if (r <= 0)
			return r < 0 ? rx_stream_ended(stream, event, r) : rx_idle(stream);
	}
	right = siw_rdmap_opcode_of(&rx->seg) != SIW_RDMAP_READ_RESPONSE ? SIW_MEM_REMOTE_WRITE
		: rx->discard						 ? 0
									 : SIW_MEM_READ_SINK;
	r = siw_ddp_rx_place(stream->ddp, &rx->seg, right, &delivery);
	if (r <= 0)
		return r < 0 ? rx_stream_ended(stream, event, r) : 0;
	if (__builtin_expect(r == 3, 0))
		return rx_unexpected_send(stream, event);
	return rx_placed(stream, r == 1, &delivery, event);
}
