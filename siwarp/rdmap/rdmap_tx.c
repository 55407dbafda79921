/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_tx.c - sends the user's operations as messages (RFC 5040 section 5). DDP frames one
 * message at a time.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- immediate data -------------------------------------------------------------------------- */

/* Makes the message of a Send with immediate data a private message. */
static __attribute__((cold, noinline)) void tx_put_imm_header(struct siw_rdmap_op *op,
							      struct siw_ddp_msg *msg)
{
	siw_rdmap_put_send_imm(op->imm_room, op->imm_opcode == SIW_RDMAP_IMMEDIATE_SE, op->imm);
	msg->ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE);
	msg->head = op->imm_room;
}

/*
 * Begins the Immediate Data message that follows a Write with immediate data. Returns the same
 * values as siw_ddp_tx().
 */
static int tx_begin_immediate(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
	struct siw_wire_err err;
	int r;

	if (!msg)
		return -EBUSY;
	*msg = (struct siw_ddp_msg){
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(tx->imm_opcode),
		.qn = SIW_RDMAP_QN_SEND, /* RFC7306-6.3-05 */
		.sgl = &tx->imm_sge,
		.nsge = 1,
		.length = SIW_RDMAP_IMM_LEN,
		.end = tx->imm_end,
	};
	r = siw_ddp_tx(stream->ddp, msg, &err);
	tx->imm_due = false;
	tx->active = r == 0;
	return r;
}

/*
 * Sends the Immediate Data of a Write that has begun. framed: result of siw_ddp_tx() for the Write.
 * Returns the result for both messages.
 */
static __attribute__((cold, noinline)) int
tx_send_immediate_after_write(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op, int framed)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_rdmap_wire_imm wire = { .data = op->imm };

	memcpy(op->imm_room, &wire, sizeof(wire));
	tx->imm_sge = (struct siw_sge){ (uintptr_t)op->imm_room, SIW_RDMAP_IMM_LEN, 0 };
	tx->imm_opcode = op->imm_opcode;
	tx->imm_end = &op->stamp.end;
	/*
	 * tx->active stays set, so that no other message is sent between the Write and its
	 * Immediate Data
	 */
	tx->imm_due = true;
	return framed ? tx_begin_immediate(stream) : 0;
}

/* ---- operations ------------------------------------------------------------------------------ */

/*
 * Builds the message of a Send or a Write. Returns false if the operation is neither a Send nor a
 * Write.
 */
static bool tx_build_msg(struct siw_rdmap_op *op, struct siw_ddp_msg *msg)
{
	*msg = (struct siw_ddp_msg){
		.internal = op->internal,
		.more = op->more,
		.ulp_octet = siw_rdmap_ctrl(op->opcode),
		.sgl = op->sgl,
		.nsge = op->nsge,
		.length = op->length,
		.end = &op->stamp.end,
	};
	switch (op->opcode) {
	case SIW_RDMAP_SEND_INV: /* RFC5040-5.3-12 */
	case SIW_RDMAP_SEND_SE_INV:
		msg->ulp_word = op->rkey;
		/* fall through */
	case SIW_RDMAP_SEND:
	case SIW_RDMAP_SEND_SE:
		msg->qn = SIW_RDMAP_QN_SEND;
		if (__builtin_expect(op->imm_opcode, 0))
			tx_put_imm_header(op, msg);
		return true;
	case SIW_RDMAP_WRITE:
		msg->tagged = true;
		msg->stag = op->rkey;
		msg->to = op->remote_to;
		return true;
	default:
		return false;
	}
}

/* Begins an operation other than a Send or a Write. Returns the same values as siw_ddp_tx(). */
static int tx_begin_read_atomic_or_private(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op)
{
	switch (op->opcode) {
	case SIW_RDMAP_PRIVATE:
		return stream->type->begin_private(stream, op);
	case SIW_RDMAP_READ_REQUEST:
		return siw_rdmap_begin_read(stream, op, SIW_RDMAP_READ_USERS);
	case SIW_RDMAP_ATOMIC_REQUEST:
		return siw_rdmap_begin_atomic(stream, op);
	default:
		return -EINVAL;
	}
}

/* Whether the operation is a Read or an atomic, whose sgl is a sink and not a source. */
static bool op_awaits_response(const struct siw_rdmap_op *op)
{
	return op->opcode == SIW_RDMAP_READ_REQUEST || op->opcode == SIW_RDMAP_ATOMIC_REQUEST;
}

/* Returns 0 if a message may begin now, or -EAGAIN or -EPIPE. */
static int tx_check_message_can_begin(struct siw_rdmap_tx *tx,
				      const struct siw_rdmap_stream *stream)
{
	if (!stream->started || tx->term ||
	    atomic_load_explicit(&stream->closing, memory_order_relaxed))
		return -EPIPE;
	if (!tx->active)
		return 0;
	tx->waiting = tx->response;
	return -EAGAIN;
}

/* Updates the send state after a user's message has begun. framed: result of siw_ddp_tx(). */
static void tx_note_message_begun(struct siw_rdmap_tx *tx, int framed)
{
	tx->waiting = tx->response = false;
	tx->active = framed == 0;
}

int siw_rdmap_begin_op(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_ddp_msg *msg;
	struct siw_wire_err err;
	int r = tx_check_message_can_begin(tx, stream);

	if (r)
		return r;
	r = siw_rdmap_send_tagged_private_msgs(stream);
	if (r != 1)
		return r ? r : -EAGAIN;
	msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
	if (__builtin_expect(!msg, 0))
		return -EBUSY;
	op->stamp = (struct siw_rdmap_stamp){ UINT64_MAX, siw_ddp_tx_framed_position(stream->ddp) };
	if (tx_build_msg(op, msg))
		r = siw_ddp_tx(stream->ddp, msg, &err);
	else
		r = tx_begin_read_atomic_or_private(stream, op);
	if (r < 0) {
		/*
		 * If DDP has begun the message, a key became invalid after the first segments were
		 * framed, and the message cannot be finished.
		 */
		if ((r == -EACCES || r == -EMSGSIZE) &&
		    siw_ddp_has_tx_message_in_progress(stream->ddp))
			return stream->type->send_failed(stream);
		return r;
	}
	tx_note_message_begun(tx, r);
	if (__builtin_expect(op->imm_opcode && op->opcode == SIW_RDMAP_WRITE, 0)) {
		r = tx_send_immediate_after_write(stream, op, r);
		/*
		 * The Immediate Data fails only if the peer is lost; the Write has begun already.
		 */
		if (r < 0 && !stream->type->loss_is_event)
			return r;
	}
	siw_rdmap_traffic_count_sent(&stream->traffic, 1, op_awaits_response(op) ? 0 : op->length);
	return 0;
}

int siw_rdmap_send_confirming_read(struct siw_rdmap_stream *stream, uint64_t user_data)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	/* The STag of an empty Read is unused, like the STag of an RTR (RFC5040-5.2.1-16). */
	struct siw_rdmap_op read = {
		.opcode = SIW_RDMAP_READ_REQUEST,
		.user_data = user_data,
		.rkey = 1,
		.remote_to = stream->offers ? SIW_RDMAP_ASKS_COUNTS : 0,
	};
	int r = tx_check_message_can_begin(tx, stream);

	if (!r)
		r = siw_rdmap_begin_read(stream, &read, SIW_RDMAP_READ_CONFIRM);
	if (r < 0)
		return r;
	tx_note_message_begun(tx, r);
	if (stream->offers)
		atomic_store_explicit(&stream->asked, true, memory_order_relaxed);
	siw_count(SIW_COUNTER_confirm_reads, 1);
	return 0;
}

uint32_t siw_rdmap_begun_read_count(const struct siw_rdmap_stream *stream)
{
	return atomic_load_explicit(&stream->reads_begun, memory_order_relaxed);
}

int siw_rdmap_tx_continue(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_ddp_tx_continue_msg(stream->ddp, &err);

	if (r == -EACCES || r == -EMSGSIZE)
		return stream->type->send_failed(stream);
	if (r == 1) {
		tx->active = false;
		if (__builtin_expect(tx->imm_due, 0))
			return tx_begin_immediate(stream);
	}
	return r;
}

/* Returns 0 if data may be framed and sent, or the -errno that siw_rdmap_flush_tx() returns. */
static int tx_check_flush_allowed(const struct siw_rdmap_stream *stream)
{
	if (!stream->started || stream->tx.term)
		return -EPIPE;
	return stream->tx.torn || siw_rdmap_fault_is_set(stream) ? -EACCES : 0;
}

void siw_rdmap_frame_responses(struct siw_rdmap_stream *stream)
{
	if (!tx_check_flush_allowed(stream))
		stream->type->frame(stream);
}

int siw_rdmap_flush_tx(struct siw_rdmap_stream *stream, uint64_t *accepted)
{
	int framed = tx_check_flush_allowed(stream), r;

	if (!framed)
		framed = stream->type->frame(stream);
	if (framed < 0) {
		*accepted = siw_ddp_tx_accepted_position(stream->ddp);
		return framed;
	}
	r = siw_ddp_tx_flush(stream->ddp, accepted);
	return r < 0 ? r : r && framed;
}
