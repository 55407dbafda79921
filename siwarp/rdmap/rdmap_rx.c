/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_rx.c - checks, places and delivers one segment of an RDMAP stream. rdmap_connection.c
 * and rdmap_rd.c find the next segment.
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

static bool rx_set_remote_operation_error(struct siw_wire_err *err, uint8_t code)
{
	*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION, code };
	return false;
}

static bool op_is_send_with_invalidate(uint8_t op)
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
 * Checks a received segment with an opcode of RFC 7306 or the private opcode. Returns false with
 * *err if the segment is invalid.
 */
static __attribute__((cold, noinline)) bool rx_check_extension(struct siw_rdmap_stream *stream,
							       struct siw_ddp_seg *seg,
							       struct siw_wire_err *err)
{
	uint8_t op = siw_rdmap_opcode_of(seg);
	uint64_t end = (uint64_t)seg->mo + seg->payload;

	if (op == SIW_RDMAP_ATOMIC_RESPONSE)
		return siw_rdmap_check_atomic_response(stream, seg, err);
	if (op == SIW_RDMAP_PRIVATE &&
	    (!stream->private || !stream->type->knows_private(stream, seg)))
		/* the peer does not use the experimental opcode as siwarp does */
		return rx_set_remote_operation_error(err, SIW_RDMAP_OPCODE);
	/*
	 * The Immediate Data is refused if the Write before it was refused, because both are one
	 * operation.
	 */
	if (siw_rdmap_is_immediate(op) && stream->rx.write_refused)
		return rx_set_remote_operation_error(err, SIW_RDMAP_UNSPECIFIED);
	/* RFC7306-6.3-08; no RFC defines the error code. */
	if (siw_rdmap_is_immediate(op) &&
	    (seg->last ? end != SIW_RDMAP_IMM_LEN : end > SIW_RDMAP_IMM_LEN))
		return rx_set_remote_operation_error(err, SIW_RDMAP_UNSPECIFIED);
	seg->note = stream->rx.written;
	if (seg->last && !seg->qn)
		siw_rdmap_forget_write(&stream->rx);
	return true;
}

bool siw_rdmap_rx_check_segment(struct siw_rdmap_stream *stream, struct siw_wire_err *err)
{
	struct siw_ddp_seg *seg = &stream->rx.seg;
	uint8_t op = siw_rdmap_opcode_of(seg);

	/* RFC5040-4.1-08: RDMAP versions 0 and 1 are valid */
	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT > SIW_RDMAP_RV)
		return rx_set_remote_operation_error(err, SIW_RDMAP_VERSION);
	if (!shape[op].known || shape[op].tagged != seg->tagged ||
	    (!seg->tagged && shape[op].qn != seg->qn)) {
		if (op == SIW_RDMAP_PRIVATE && seg->tagged)
			return stream->type->private_expects(stream, seg, err);
		return rx_set_remote_operation_error(err, SIW_RDMAP_OPCODE);
	}
	if (seg->tagged && !stream->type->tagged_expects(stream, op))
		return rx_set_remote_operation_error(err, SIW_RDMAP_OPCODE);
	if (op == SIW_RDMAP_WRITE && seg->payload && stream->denied & SIW_MEM_REMOTE_WRITE) {
		*err = NO_RIGHT;
		return false;
	}
	if (op == SIW_RDMAP_READ_RESPONSE)
		return siw_rdmap_check_read_response(stream, seg, err);
	/*
	 * The length of a Read Request must be checked, because the buffers of the Read queue have
	 * the size of an Atomic Request, which is longer.
	 */
	if (op == SIW_RDMAP_READ_REQUEST && (uint64_t)seg->mo + seg->payload > SIW_RDMAP_READ_LEN) {
		*err = TOO_LONG;
		return false;
	}
	if (op >= SIW_RDMAP_IMMEDIATE)
		return rx_check_extension(stream, seg, err);
	if (!seg->tagged && !seg->qn)
		siw_rdmap_forget_write(&stream->rx);
	/*
	 * RFC5040-7.2-04, -05: the STag to invalidate is checked before any segment is placed, and
	 * invalidated with the last segment.
	 */
	if (op_is_send_with_invalidate(op) &&
	    !siw_mem_peer_may_invalidate_stag(stream->mem, seg->ulp_word,
					      siw_ddp_stream_get_stag_identity(stream->ddp))) {
		*err = CANNOT_INVALIDATE;
		return false;
	}
	return true;
}

/* ---- delivery -------------------------------------------------------------------------------- */

/*
 * Completes a Send with Invalidate: the STag is invalidated before the user gets the completion
 * (RFC5040-5.3-13). If the STag's owner has invalidated the STag in the meantime, the receive
 * completes with an error.
 */
static __attribute__((cold, noinline)) void
rx_complete_send_with_invalidate(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				 struct siw_rdmap_event *event)
{
	if (siw_mem_stag_invalidate(stream->mem, seg->ulp_word,
				    siw_ddp_stream_get_stag_identity(stream->ddp)) == 0) {
		event->invalidated = true;
		event->inv_stag = seg->ulp_word;
		return;
	}
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = -EACCES;
	stream->type->delivery_failed(stream, event, CANNOT_INVALIDATE, seg);
}

/* Parses the header of a message with immediate data. Returns false if the header is invalid. */
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
	/* The invalid message has consumed a receive, which completes with an error. */
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = -EPROTO;
	stream->type->delivery_failed(stream, event, unknown, seg);
}

void siw_rdmap_fill_received_send_event(struct siw_rdmap_stream *stream,
					const struct siw_ddp_seg *seg,
					const struct siw_ddp_delivery *delivery,
					struct siw_rdmap_event *event)
{
	event->kind = SIW_RDMAP_RECV;
	event->user_data = delivery->user_data;
	event->length = delivery->length;
	event->solicited = siw_rdmap_opcode_of(seg) == SIW_RDMAP_SEND_SE ||
			   siw_rdmap_opcode_of(seg) == SIW_RDMAP_SEND_SE_INV;
	event->msn = seg->msn;
	if (__builtin_expect(siw_rdmap_opcode_of(seg) >= SIW_RDMAP_IMMEDIATE, 0))
		rx_handle_imm_header(stream, seg, delivery, event);
	else if (__builtin_expect(op_is_send_with_invalidate(siw_rdmap_opcode_of(seg)), 0))
		rx_complete_send_with_invalidate(stream, seg, event);
	siw_rdmap_traffic_count(&stream->traffic.received, 1, delivery->length);
	if (event->kind == SIW_RDMAP_RECV)
		siw_rdmap_count_update(stream);
}

static int rx_handle_received_request(struct siw_rdmap_stream *stream,
				      const struct siw_ddp_delivery *delivery,
				      struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	bool atomic = siw_rdmap_opcode_of(&rx->seg) == SIW_RDMAP_ATOMIC_REQUEST;
	uint32_t size = be32toh(stream->read_bufs[delivery->user_data].read.rdmardsz);

	/* A Read that is an RTR must be empty. */
	if (rx->rtr && delivery->length == SIW_RDMAP_READ_LEN && size)
		return stream->type->segment_failed(stream, event, siw_rdmap_no_rtr_match, NULL);
	if (!siw_rdmap_store_request(stream, &rx->seg, delivery))
		return siw_rdmap_fill_first_error_event(stream, event);
	if (siw_rdmap_release_waiting_responses(stream))
		event->kind = SIW_RDMAP_REQUESTED;
	stream->type->request_received(stream, event);
	event->length = atomic ? sizeof(uint64_t) : size;
	return 1;
}

/* Handles the received response to an atomic of this end. */
static int rx_handle_atomic_response(struct siw_rdmap_stream *stream, uint32_t length,
				     struct siw_rdmap_event *event)
{
	struct siw_wire_err err;

	if (siw_rdmap_complete_atomic(stream, length, event, &err))
		return 1;
	return stream->type->segment_failed(stream, event, err, &stream->rx.seg);
}

/* Handles a placed segment. done: whether the segment completes its message. */
static int rx_handle_placed_segment(struct siw_rdmap_stream *stream, bool done,
				    const struct siw_ddp_delivery *delivery,
				    struct siw_rdmap_event *event)
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
		rx->write_refused = false;
		rx->writing = !done;
		event->of_write = done;
		event->length = rx->written;
		if (done && !rx->rtr) {
			rx->writes++;
			siw_rdmap_count_update(stream);
		}
		break;
	case SIW_RDMAP_READ_RESPONSE:
		siw_rdmap_count_read_octets(stream, &rx->seg, event);
		break;
	case SIW_RDMAP_READ_REQUEST:
	case SIW_RDMAP_ATOMIC_REQUEST:
		if (done)
			r = rx_handle_received_request(stream, delivery, event);
		break;
	case SIW_RDMAP_ATOMIC_RESPONSE:
		if (done)
			r = rx_handle_atomic_response(stream, delivery->length, event);
		break;
	case SIW_RDMAP_TERMINATE:
		if (done) {
			siw_count(SIW_COUNTER_terminate_rx, 1);
			siw_rdmap_terminate_parse(stream->term_in, delivery->length, event);
			return stream->type->terminate_received(stream, event);
		}
		break;
	default:
		if (rx->seg.tagged)
			stream->type->private_placed(stream, done, event);
		else if (done && !rx->rtr) /* an RTR consumes no receive */
			siw_rdmap_fill_received_send_event(stream, &rx->seg, delivery, event);
	}
	if (rx->rtr && r == 1 && event->kind != SIW_RDMAP_ERROR) {
		rx->rtr = false;
		event->kind = SIW_RDMAP_STARTED;
	}
	return r;
}

/*
 * Clears the fields of *event that a caller may read in every event. Clearing the complete struct
 * would be a slow string instruction.
 */
void siw_rdmap_reset_event_fields(struct siw_rdmap_event *event)
{
	event->kind = SIW_RDMAP_NONE;
	event->status = 0;
	event->user_data = 0;
	event->length = event->placed = 0;
	event->solicited = event->invalidated = event->quoted = false;
	event->with_imm = event->of_write = false;
	event->err = (struct siw_wire_err){ 0 };
}

/* Handles a segment of a Send for which no receive is posted. */
static int rx_handle_unexpected_send(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;

	rx->seg_pending = false;
	event->kind = rx->unexpected ? SIW_RDMAP_PROGRESS : SIW_RDMAP_UNEXPECTED;
	rx->unexpected = true;
	return 1;
}

int siw_rdmap_rx_place_segment(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_ddp_delivery delivery;
	uint32_t right;
	int r;

	right = siw_rdmap_opcode_of(&rx->seg) != SIW_RDMAP_READ_RESPONSE ? SIW_MEM_REMOTE_WRITE
		: rx->discard						 ? 0
									 : SIW_MEM_READ_SINK;
	r = siw_ddp_rx_place(stream->ddp, &rx->seg, right, &delivery);
	if (r <= 0)
		return r;
	if (__builtin_expect(r == 3, 0))
		return rx_handle_unexpected_send(stream, event);
	return rx_handle_placed_segment(stream, r == 1, &delivery, event);
}
