/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_tx.c - operations out (RFC 5040 section 5): one message at a time is with ddp,
 * either the user's next or the response to the peer's oldest Read Request, in turns.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/*
 * The ring has, for each operation, the number of its last ddp message; with this, the one before is its own
 * as well.
 */
#define TWO (1ull << 63)

/* Octets of responses that one flush begins at most. */
#define TURN (1u << 20)

static void refresh_accepted(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t messages = siw_ddp_tx_accepted(stream->ddp);

	while (tx->accepted != tx->begun &&
	       (tx->ring[tx->accepted & tx->ring_mask] & ~TWO) <= messages)
		tx->accepted++;
}

/* Twice the room for operations that are not accepted: false if that is more than there may be. */
static __attribute__((cold, noinline)) bool grow(struct siw_rdmap_tx *tx)
{
	uint32_t size = (tx->ring_mask + 1) * 2;
	uint64_t *ring;

	if (size > SIW_RDMAP_INFLIGHT)
		return false;
	ring = malloc(size * sizeof(*ring));
	if (!ring)
		return false;
	for (uint64_t i = tx->accepted; i != tx->begun; i++)
		ring[i & (size - 1)] = tx->ring[i & tx->ring_mask];
	free(tx->ring);
	tx->ring = ring;
	tx->ring_mask = size - 1;
	return true;
}

/* An error in what this end sends: the stream is over, and the Terminate says why. */
static int broken(struct siw_rdmap_stream *stream)
{
	siw_ddp_tx_abandon(stream->ddp);
	stream->tx.active = stream->tx.imm_due = false;
	if (siw_rdmap_is_rd(stream)) {
		stream->tx.torn = true;
		atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
		return -EACCES;
	}
	siw_rdmap_fault_set(
		stream, (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_LOCAL_CATASTROPHIC, 0 },
		NULL, NULL);
	return -EACCES;
}

/* ---- immediate data -------------------------------------------------------------------------- */

/* A Send becomes a private message. */
static __attribute__((cold, noinline)) void put_send_imm(const struct siw_rdmap_op *op,
							 struct siw_ddp_msg *msg)
{
	siw_rdmap_put_send_imm(op->imm_room, op->imm_opcode == SIW_RDMAP_IMMEDIATE_SE, op->imm);
	msg->ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE);
	msg->head = op->imm_room;
}

/* The message behind a Write: as siw_ddp_tx. */
static int begin_imm(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_ddp_msg msg = {
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(tx->imm_opcode),
		.qn = SIW_RDMAP_QN_SEND, /* RFC7306-6.3-05 */
		.sgl = &tx->imm_sge,
		.nsge = 1,
		.length = SIW_RDMAP_IMM_LEN,
	};
	struct siw_wire_err err;
	int r = siw_ddp_tx(stream->ddp, &msg, &err);

	tx->imm_due = false;
	tx->active = r == 0;
	return r;
}

/* Behind a Write that was begun: what siw_ddp_tx gave it, or gives the message now. */
static __attribute__((cold, noinline)) int follow_write(struct siw_rdmap_stream *stream,
							const struct siw_rdmap_op *op, int framed)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_rdmap_wire_imm wire = { .data = op->imm };

	memcpy(op->imm_room, &wire, sizeof(wire));
	tx->imm_sge = (struct siw_sge){ (uintptr_t)op->imm_room, SIW_RDMAP_IMM_LEN, 0 };
	tx->imm_opcode = op->imm_opcode;
	tx->imm_due = true; /* nothing comes in between: the message in the works stays so */
	return framed ? begin_imm(stream) : 0;
}

/* ---- operations ------------------------------------------------------------------------------ */

static int begin(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op)
{
	struct siw_ddp_msg msg = {
		.internal = op->internal,
		.ulp_octet = siw_rdmap_ctrl(op->opcode),
		.sgl = op->sgl,
		.nsge = op->nsge,
		.length = op->length,
	};
	struct siw_wire_err err;

	switch (op->opcode) {
	case SIW_RDMAP_SEND_INV: /* RFC5040-5.3-12 */
	case SIW_RDMAP_SEND_SE_INV:
		msg.ulp_word = op->rkey;
		/* fall through */
	case SIW_RDMAP_SEND:
	case SIW_RDMAP_SEND_SE:
		msg.qn = SIW_RDMAP_QN_SEND;
		if (__builtin_expect(op->imm_opcode, 0))
			put_send_imm(op, &msg);
		break;
	case SIW_RDMAP_WRITE:
		msg.tagged = true;
		msg.stag = op->rkey;
		msg.to = op->remote_to;
		break;
	case SIW_RDMAP_PRIVATE:
		return siw_rdmap_is_rd(stream) ? siw_rdmap_rd_record_begin(stream, op) : -EINVAL;
	case SIW_RDMAP_READ_REQUEST:
		return siw_rdmap_read_begin(stream, op, SIW_RDMAP_READ_USERS);
	case SIW_RDMAP_ATOMIC_REQUEST:
		return siw_rdmap_atomic_begin(stream, op);
	default:
		return -EINVAL;
	}
	return siw_ddp_tx(stream->ddp, &msg, &err);
}

/* Its sgl is no source but a sink. */
static bool asks(const struct siw_rdmap_op *op)
{
	return op->opcode == SIW_RDMAP_READ_REQUEST || op->opcode == SIW_RDMAP_ATOMIC_REQUEST;
}

int siw_rdmap_send(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t before, last;
	int r;

	if (!stream->started || tx->term ||
	    atomic_load_explicit(&stream->closing, memory_order_relaxed))
		return -EPIPE;
	if (tx->active) {
		tx->waiting = tx->response;
		return -EAGAIN;
	}
	if (tx->begun - tx->accepted > tx->ring_mask) {
		refresh_accepted(stream);
		if (tx->begun - tx->accepted > tx->ring_mask && !grow(tx))
			return -EAGAIN;
	}
	before = siw_ddp_tx_begun(stream->ddp);
	r = begin(stream, op);
	if (r < 0) {
		/* A key that died behind the first segments; or it never was begun. */
		if ((r == -EACCES || r == -EMSGSIZE) && siw_ddp_tx_begun(stream->ddp) != before)
			return broken(stream);
		return r;
	}
	tx->waiting = false;
	tx->active = r == 0;
	tx->response = false;
	last = siw_ddp_tx_begun(stream->ddp);
	if (__builtin_expect(op->imm_opcode && op->opcode == SIW_RDMAP_WRITE, 0)) {
		last = (last + 1) | TWO;
		r = follow_write(stream, op, r);
		/* Over reliable datagrams only a peer that is lost fails it; the Write is begun. */
		if (r < 0 && !siw_rdmap_is_rd(stream))
			return r;
	}
	tx->ring[tx->begun++ & tx->ring_mask] = last;
	siw_rdmap_traffic_count(&stream->traffic.sent, 1, asks(op) ? 0 : op->length);
	return 0;
}

int siw_rdmap_confirm(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	/* An STag that names nothing, as the RTR's: nobody looks at it (RFC5040-5.2.1-16). */
	struct siw_rdmap_op read = {
		.opcode = SIW_RDMAP_READ_REQUEST,
		.user_data = tx->begun,
		.rkey = 1,
	};
	int r;

	if (!stream->started || tx->term ||
	    atomic_load_explicit(&stream->closing, memory_order_relaxed))
		return -EPIPE;
	if (tx->active) {
		tx->waiting = tx->response;
		return -EAGAIN;
	}
	r = siw_rdmap_read_begin(stream, &read, SIW_RDMAP_READ_CONFIRM);
	if (r < 0)
		return r;
	tx->waiting = false;
	tx->active = r == 0;
	tx->response = false;
	siw_count(SIW_COUNTER_confirm_reads, 1);
	return 0;
}

uint32_t siw_rdmap_reads(const struct siw_rdmap_stream *stream)
{
	return atomic_load_explicit(&stream->issued, memory_order_relaxed);
}

/* Goes on with the message in the works: 1 it is framed, 0 not yet, -errno. */
static int go_on(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_ddp_tx_more(stream->ddp, &err);

	if (r == -EACCES || r == -EMSGSIZE) {
		if (!tx->response)
			return broken(stream);
		tx->active = false;
		return siw_rdmap_response_failed(stream, err);
	}
	if (r == 1) {
		tx->active = false;
		if (tx->response)
			siw_rdmap_response_done(stream);
		else if (__builtin_expect(tx->imm_due, 0))
			return begin_imm(stream);
	}
	return r;
}

static int answer(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = siw_rdmap_response_begin(stream, &err);

	if (r == -EACCES)
		return siw_rdmap_response_failed(stream, err);
	tx->response = true;
	tx->active = r == 0;
	if (r == 1)
		siw_rdmap_response_done(stream);
	return r;
}

/* Frames what there is to frame: 1 all of it, 0 some is left, -errno. */
static int frame(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t turn = 0;

	for (;;) {
		int r = tx->active ? go_on(stream) : 1;

		if (r != 1)
			return r;
		if (siw_rdmap_is_rd(stream)) {
			r = siw_rdmap_rd_send_report(stream);
			if (r != 1)
				return r;
		}
		if (!siw_rdmap_responses_pending(stream) ||
		    atomic_load_explicit(&stream->closing, memory_order_relaxed))
			return 1;
		if (tx->waiting || turn >= TURN) { /* a response was last: the user's turn */
			tx->waiting = false;
			return 0;
		}
		turn += siw_rdmap_response_size(stream);
		r = answer(stream);
		if (r != 1)
			return r;
	}
}

int siw_rdmap_flush(struct siw_rdmap_stream *stream)
{
	int framed, r;

	if (!stream->started || stream->tx.term)
		return -EPIPE;
	if (siw_rdmap_is_rd(stream) && stream->tx.torn)
		return -EACCES;
	if (siw_rdmap_fault_is_set(stream))
		return -EACCES;
	framed = frame(stream);
	if (framed < 0)
		return framed;
	r = siw_ddp_tx_flush(stream->ddp);
	/*
	 * What waits there for credit, window or pace goes by itself when it may: to flush it again before
	 * that would change nothing.
	 */
	if (siw_rdmap_is_rd(stream) && r >= 0)
		return framed;
	return r < 0 ? r : r && framed;
}

uint64_t siw_rdmap_faulty(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t choked, last;

	refresh_accepted(stream);
	if (tx->accepted == tx->begun)
		return 0;
	/* What TCP choked on is the first message that it has not taken. */
	choked = siw_ddp_tx_accepted(stream->ddp) + 1;
	last = tx->ring[tx->accepted & tx->ring_mask];
	if ((last & ~TWO) == choked || last == ((choked + 1) | TWO))
		return tx->accepted + 1;
	return 0;
}

bool siw_rdmap_blocked(const struct siw_rdmap_stream *stream)
{
	return siw_ddp_tx_blocked(stream->ddp);
}

uint64_t siw_rdmap_begun(const struct siw_rdmap_stream *stream)
{
	return stream->tx.begun;
}

uint64_t siw_rdmap_accepted(struct siw_rdmap_stream *stream)
{
	refresh_accepted(stream);
	return stream->tx.accepted;
}
