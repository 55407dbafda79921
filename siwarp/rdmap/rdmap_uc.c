/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_uc.c - RDMAP on unreliable connections (UC): assembles segments into operations, and
 * delivers complete operations. If a datagram of an operation is missing, the operation is not
 * delivered; octets of a Write that have arrived stay in place.
 *
 * Invalid messages are dropped and counted, and not reported to the peer, as on InfiniBand's UC.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/capture.h"
#include "ddp/ddp_uc.h"
#include "rdmap/rdmap_impl.h"
#include "rdmap/rdmap_uc.h"

/* The kind of the UC operation that is being received, according to its last segment. */
enum uc_op {
	UC_NOTHING,
	UC_SEND,
	UC_WRITE,
	UC_IMMEDIATE, /* Immediate Data, separate or after a complete Write */
};

struct siw_rdmap_uc {
	struct siw_ddp_uc *ddp;
	struct siw_rdmap_traffic traffic;
	/* The receive queue and the denied rights are written with both locks held. */
	struct siw_mem_buffer_queue *recvs;
	uint32_t denied;
	/*
	 * The members from op to octets describe the operation that is being received; under the
	 * progress lock.
	 */
	enum uc_op op;
	uint8_t ulp_octet;
	bool ended;  /* the message is complete; Immediate Data may follow */
	bool headed; /* the operation is a Send with Immediate; solicited and imm are valid */
	bool solicited;
	uint32_t imm;
	uint32_t octets; /* octets of the current Write received so far */
	/* The Immediate Data to send after its Write is framed; under the send lock. */
	uint8_t due_opcode; /* opcode of the Immediate Data; 0: none */
	uint32_t due_imm;
};

int siw_rdmap_uc_open(struct siw_ddp_uc *ddp, struct siw_rdmap_uc **out)
{
	struct siw_rdmap_uc *uc = calloc(1, sizeof(*uc));

	if (!uc)
		return -ENOMEM;
	uc->ddp = ddp;
	*out = uc;
	return 0;
}

void siw_rdmap_uc_close(struct siw_rdmap_uc *uc)
{
	siw_rdmap_traffic_report(&uc->traffic);
	siw_ddp_uc_close(uc->ddp);
	free(uc);
}

int siw_rdmap_uc_connect(struct siw_rdmap_uc *uc, const struct siw_addr *peer, uint32_t psn,
			 uint32_t payload)
{
	struct siw_ddp_uc_path path = { .peer = *peer, .psn = psn, .payload = payload };

	uc->op = UC_NOTHING;
	return siw_ddp_uc_connect(uc->ddp, &path);
}

void siw_rdmap_uc_configure_receiving(struct siw_rdmap_uc *uc,
				      const struct siw_rdmap_uc_start *start)
{
	uc->recvs = start->recvs;
	uc->denied = start->denied;
	siw_ddp_uc_set_qkey_pd_and_identity(uc->ddp, start->qkey, start->pd, start->owner);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void uc_put_imm_header(const struct siw_rdmap_op *op, struct siw_ddp_uc_msg *msg)
{
	msg->ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE);
	msg->head_len = SIW_RDMAP_IMM_LEN;
	siw_rdmap_put_send_imm(msg->head, op->imm_opcode == SIW_RDMAP_IMMEDIATE_SE, op->imm);
}

/*
 * Sends the Immediate Data of a framed Write. Returns the same values as siw_ddp_uc_tx(), or
 * -EAGAIN.
 */
static int uc_send_immediate(struct siw_rdmap_uc *uc)
{
	struct siw_rdmap_wire_imm wire = { .data = uc->due_imm };
	struct siw_ddp_uc_msg *msg = siw_ddp_uc_tx_get_msg_to_fill(uc->ddp);
	int r;

	if (!msg)
		return -EAGAIN;
	*msg = (struct siw_ddp_uc_msg){
		.ulp_octet = siw_rdmap_ctrl(uc->due_opcode),
		.qn = SIW_RDMAP_QN_SEND,
		.head_len = sizeof(wire),
	};
	memcpy(msg->head, &wire, sizeof(wire));
	r = siw_ddp_uc_tx(uc->ddp);
	if (r >= 0)
		uc->due_opcode = 0;
	return r;
}

int siw_rdmap_uc_begin_op(struct siw_rdmap_uc *uc, struct siw_rdmap_op *op)
{
	struct siw_ddp_uc_msg *msg = uc->due_opcode ? NULL : siw_ddp_uc_tx_get_msg_to_fill(uc->ddp);
	int r;

	if (!msg)
		return -EAGAIN;
	*msg = (struct siw_ddp_uc_msg){
		.first = true,
		.tagged = op->opcode == SIW_RDMAP_WRITE,
		.internal = op->internal,
		.ulp_octet = siw_rdmap_ctrl(op->opcode),
		.qn = SIW_RDMAP_QN_SEND,
		.stag = op->rkey,
		.to = op->remote_to,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.length = op->length,
	};
	if (__builtin_expect(op->imm_opcode && !msg->tagged, 0))
		uc_put_imm_header(op, msg);
	r = siw_ddp_uc_tx(uc->ddp);
	if (r >= 0 && op->imm_opcode && op->opcode == SIW_RDMAP_WRITE) {
		uc->due_opcode = op->imm_opcode;
		uc->due_imm = op->imm;
		if (r == 1)
			/*
			 * if the Write is not completely framed yet, siw_rdmap_uc_flush_tx() sends
			 * the Immediate Data
			 */
			uc_send_immediate(uc);
	}
	op->stamp.end = siw_rdmap_uc_begun_count(uc);
	if (r >= 0)
		siw_rdmap_traffic_count_sent(&uc->traffic, 1, op->length);
	return r < 0 ? r : 0;
}

int siw_rdmap_uc_flush_tx(struct siw_rdmap_uc *uc)
{
	int r = siw_ddp_uc_tx_continue_msg(uc->ddp), flushed;

	if (r < 0)
		uc->due_opcode = 0;
	if (r == 1 && uc->due_opcode)
		r = uc_send_immediate(uc) == 1;
	/*
	 * Pass the batch to UDP even if the turn has sent its maximum, because a batch must not
	 * wait for the next turn.
	 */
	flushed = siw_ddp_uc_tx_flush(uc->ddp);
	return r < 0 ? r : r && flushed;
}

uint64_t siw_rdmap_uc_begun_count(const struct siw_rdmap_uc *uc)
{
	return siw_ddp_uc_begun_tx_message_count(uc->ddp) + (uc->due_opcode != 0);
}

int siw_rdmap_uc_pop_refused_message_range(struct siw_rdmap_uc *uc, uint64_t *first, uint64_t *last)
{
	int r = siw_ddp_uc_pop_refused_message_range(uc->ddp, first, last);

	if (r && uc->due_opcode) { /* the Immediate Data belongs to the refused operation */
		uc->due_opcode = 0;
		++*last;
	}
	return r;
}

void siw_rdmap_uc_drop_unsent(struct siw_rdmap_uc *uc)
{
	uc->due_opcode = 0;
	siw_ddp_uc_reset_tx(uc->ddp);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Drops the current UC segment and abandons its operation. Returns 0. */
static int uc_drop_operation(struct siw_rdmap_uc *uc, enum siw_counter why)
{
	siw_ddp_uc_abandon_rx_op(uc->ddp);
	return siw_drop(why);
}

/*
 * Returns the kind of operation that a UC segment belongs to, or UC_NOTHING if the segment was
 * dropped.
 */
static enum uc_op uc_check_segment_and_get_op_kind(struct siw_rdmap_uc *uc,
						   const struct siw_ddp_seg *seg)
{
	uint8_t opcode = seg->ulp_octet & SIW_RDMAP_OP_MASK;

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT != SIW_RDMAP_RV) {
		uc_drop_operation(uc, SIW_COUNTER_drop_version);
		return UC_NOTHING;
	}
	if (seg->tagged && opcode == SIW_RDMAP_WRITE)
		return UC_WRITE;
	if (!seg->tagged && seg->qn != SIW_RDMAP_QN_SEND) {
		uc_drop_operation(uc, SIW_COUNTER_drop_qn);
		return UC_NOTHING;
	}
	if (!seg->tagged && (opcode == SIW_RDMAP_SEND || opcode == SIW_RDMAP_SEND_SE ||
			     opcode == SIW_RDMAP_PRIVATE))
		return UC_SEND;
	if (!seg->tagged && (opcode == SIW_RDMAP_IMMEDIATE || opcode == SIW_RDMAP_IMMEDIATE_SE))
		return UC_IMMEDIATE;
	uc_drop_operation(uc, SIW_COUNTER_drop_opcode);
	return UC_NOTHING;
}

/*
 * Whether the UC segment continues the current operation, or begins a new operation. Makes the
 * segment the last segment of the current operation.
 */
static bool uc_accept_segment_into_op(struct siw_rdmap_uc *uc, const struct siw_ddp_uc_seg *s,
				      enum uc_op kind)
{
	bool good = s->first ||
		    (uc->op == kind && !uc->ended && uc->ulp_octet == s->seg.ulp_octet) ||
		    (uc->op == UC_WRITE && uc->ended && kind == UC_IMMEDIATE);

	if (s->first)
		uc->octets = 0;
	uc->op = kind;
	uc->ulp_octet = s->seg.ulp_octet;
	uc->ended = s->seg.last;
	return good;
}

/* Places a segment of a UC Write. Returns 1 and *event if the Write is complete, or 0. */
static int uc_place_write(struct siw_rdmap_uc *uc, const struct siw_ddp_uc_seg *s,
			  struct siw_rdmap_event *event)
{
	struct siw_wire_err err;
	bool done;
	int r = -EACCES;

	if (!(uc->denied & SIW_MEM_REMOTE_WRITE))
		r = siw_ddp_uc_place_tagged(uc->ddp, uc->recvs, SIW_MEM_REMOTE_WRITE, &err);
	if (r < 0)
		return uc_drop_operation(uc, SIW_COUNTER_drop_access);
	uc->octets += s->seg.payload;
	done = r == 1 && s->whole;
	siw_rdmap_traffic_count(&uc->traffic.received, done, s->seg.payload);
	if (!done)
		return 0;
	memset(event, 0, sizeof(*event));
	event->kind = SIW_RDMAP_PROGRESS;
	event->of_write = true;
	event->length = uc->octets;
	return 1;
}

static int uc_fill_recv_event(struct siw_rdmap_uc *uc, const struct siw_ddp_seg *seg,
			      const struct siw_ddp_delivery *delivery, int status,
			      struct siw_rdmap_event *event)
{
	memset(event, 0, sizeof(*event));
	event->kind = status ? SIW_RDMAP_BAD_RECV : SIW_RDMAP_RECV;
	event->status = status;
	event->user_data = delivery->user_data;
	event->length = delivery->length;
	event->solicited = uc->headed ? uc->solicited
				      : (seg->ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_SEND_SE;
	event->with_imm = uc->headed;
	event->imm = uc->imm;
	event->msn = seg->msn;
	if (status)
		siw_ddp_uc_abandon_rx_op(uc->ddp);
	else
		siw_rdmap_traffic_count(&uc->traffic.received, 1, delivery->length);
	return 1;
}

/*
 * Parses the header of a UC Send that is a private message. Returns false if the Send was dropped.
 */
static bool uc_read_imm_header(struct siw_rdmap_uc *uc, const struct siw_ddp_seg *seg)
{
	struct siw_rdmap_wire_send_imm wire;

	if (seg->mo)
		return true;
	uc->headed = (seg->ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_PRIVATE;
	if (__builtin_expect(!uc->headed, 1))
		return true;
	if (siw_ddp_uc_peek_payload(uc->ddp, &wire, sizeof(wire)) != sizeof(wire) ||
	    !siw_rdmap_is_send_imm(&wire))
		return uc_drop_operation(uc, SIW_COUNTER_drop_opcode);
	uc->solicited = wire.subcode == SIW_RDMAP_SEND_IMM_SE;
	uc->imm = wire.data;
	return true;
}

/* Handles a UC Immediate Data segment. Returns 1 and *event, or 0 if there is no event. */
static int uc_handle_immediate(struct siw_rdmap_uc *uc, const struct siw_ddp_uc_seg *s,
			       struct siw_rdmap_event *event)
{
	struct siw_ddp_delivery delivery;
	struct siw_rdmap_wire_imm wire;

	if (s->seg.payload != sizeof(wire) || !s->seg.last || s->seg.mo)
		return uc_drop_operation(uc, SIW_COUNTER_drop_header);
	siw_ddp_uc_peek_payload(uc->ddp, &wire, sizeof(wire));
	if (siw_ddp_uc_use_up_receive_buffer(uc->ddp, uc->recvs, &delivery) < 0)
		return uc_drop_operation(uc, SIW_COUNTER_drop_no_buffer);
	memset(event, 0, sizeof(*event));
	event->kind = SIW_RDMAP_RECV;
	event->user_data = delivery.user_data;
	event->length = uc->octets;
	event->with_imm = event->of_write = true;
	event->imm = wire.data;
	event->solicited = (s->seg.ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_IMMEDIATE_SE;
	event->msn = s->seg.msn;
	siw_rdmap_traffic_count(&uc->traffic.received, 1, 0);
	return 1;
}

/* Handles a segment of a UC Send. Returns 1 and *event, or 0 if there is no event. */
static int uc_place_send(struct siw_rdmap_uc *uc, const struct siw_ddp_uc_seg *s,
			 struct siw_rdmap_event *event)
{
	struct siw_ddp_delivery delivery;
	int r;

	if (!uc_read_imm_header(uc, &s->seg))
		return 0;
	r = siw_ddp_uc_place(uc->ddp, uc->recvs, uc->headed ? SIW_RDMAP_IMM_LEN : 0, &delivery);
	switch (r) {
	case 2:
		return 0;
	case -ENOBUFS:
		return uc_drop_operation(uc, SIW_COUNTER_drop_no_buffer);
	case -EPROTO:
		return uc_drop_operation(uc, SIW_COUNTER_drop_header);
	case -EMSGSIZE:
		siw_drop(SIW_COUNTER_drop_too_long);
		return uc_fill_recv_event(uc, &s->seg, &delivery, r, event);
	default:
		return uc_fill_recv_event(uc, &s->seg, &delivery, r < 0 ? r : 0, event);
	}
}

static int uc_handle_segment(struct siw_rdmap_uc *uc, const struct siw_ddp_uc_seg *s,
			     struct siw_rdmap_event *event)
{
	enum uc_op kind;

	if (!uc->recvs) /* the endpoint has no receive queue before RTR and in ERR */
		return uc_drop_operation(uc, SIW_COUNTER_drop_no_buffer);
	kind = uc_check_segment_and_get_op_kind(uc, &s->seg);
	if (kind == UC_NOTHING)
		return 0;
	if (s->whole && !uc_accept_segment_into_op(uc, s, kind))
		return uc_drop_operation(uc, SIW_COUNTER_drop_header);
	if (kind == UC_WRITE)
		return uc_place_write(uc, s, event);
	if (s->whole)
		return kind == UC_SEND ? uc_place_send(uc, s, event)
				       : uc_handle_immediate(uc, s, event);
	siw_drop(SIW_COUNTER_drop_partial);
	return 0;
}

int siw_rdmap_uc_recv(struct siw_rdmap_uc *uc, struct siw_rdmap_event *event, uint32_t *octets)
{
	struct siw_ddp_uc_seg s;
	int tries;

	*octets = 0;
	for (tries = 0; siw_ddp_uc_continue_or_resume_rx(uc->ddp, tries, *octets); tries++) {
		if (!siw_ddp_uc_rx(uc->ddp, &s)) {
			siw_rdmap_traffic_report(&uc->traffic);
			return 0;
		}
		*octets += s.seg.payload;
		if (uc_handle_segment(uc, &s, event))
			return 1;
	}
	return 0;
}
