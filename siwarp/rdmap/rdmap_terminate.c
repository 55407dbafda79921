/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_terminate.c - the Terminate Message (RFC 5040 sections 4.8, 5.4): sends one
 * Terminate, with the first error that this end has found, and parses the peer's Terminate, whose
 * contents are not trusted.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

void siw_rdmap_record_first_error(struct siw_rdmap_stream *stream, struct siw_wire_err err,
				  const struct siw_ddp_seg *seg,
				  const struct siw_rdmap_wire_read *wire)
{
	uint32_t none = SIW_RDMAP_FAULT_NONE;
	struct siw_rdmap_fault *fault = &stream->fault;

	/*
	 * Either the sending or the receiving side may find an error first; only the first error is
	 * sent (RFC5040-7.1-03).
	 */
	if (!atomic_compare_exchange_strong(&stream->fault_state, &none, SIW_RDMAP_FAULT_WRITING))
		return;
	fault->err = err;
	fault->has_seg = seg && seg->head_len;
	fault->has_read = wire;
	if (fault->has_seg)
		fault->seg = *seg;
	if (wire)
		fault->wire = *wire;
	atomic_store_explicit(&stream->closing, true, memory_order_relaxed);
	/* Memory ordering: pairs with the load in siw_rdmap_fault_is_set(). */
	atomic_store_explicit(&stream->fault_state, SIW_RDMAP_FAULT_SET, memory_order_release);
}

/* ---- sending --------------------------------------------------------------------------------- */

/*
 * Returns the HdrCt bits of a Terminate: the parts quoted with an error (RFC 5040 figure 10). The
 * segment's length and header are quoted, unless the error is an LLP or local error; the header of
 * the Read Request is quoted only with a protection error. On reliable datagrams, local errors
 * quote the segment, too, because the requester continues and must know which request failed.
 */
static uint8_t terminate_hdrct_bits(const struct siw_rdmap_fault *fault)
{
	uint8_t hdrct = 0;

	if (!fault->has_seg || fault->err.layer == SIW_LAYER_LLP ||
	    (fault->err.type == 0 && !fault->of_rd))
		return 0;
	hdrct = SIW_RDMAP_TERM_M | SIW_RDMAP_TERM_D;
	if (fault->has_read && fault->err.layer == SIW_LAYER_RDMAP &&
	    fault->err.type != SIW_RDMAP_REMOTE_OPERATION)
		hdrct |= SIW_RDMAP_TERM_R;
	return hdrct;
}

uint32_t siw_rdmap_terminate_build(const struct siw_rdmap_fault *fault, uint8_t *out)
{
	struct siw_rdmap_wire_terminate head = {
		.layer_etype = (uint8_t)(fault->err.layer << 4 | fault->err.type),
		.code = fault->err.code,
		.hdrct = terminate_hdrct_bits(fault),
	};
	uint8_t *at = out;

	memcpy(at, &head, sizeof(head));
	at += sizeof(head);
	if (head.hdrct & SIW_RDMAP_TERM_D) {
		uint16_t len = htobe16((uint16_t)fault->seg.seg_len);

		memcpy(at, &len, sizeof(len));
		at += sizeof(len);
		memcpy(at, fault->seg.head, fault->seg.head_len);
		at += fault->seg.head_len;
	}
	if (head.hdrct & SIW_RDMAP_TERM_R) {
		memcpy(at, &fault->wire, SIW_RDMAP_READ_LEN);
		at += SIW_RDMAP_READ_LEN;
	}
	return (uint32_t)(at - out);
}

void siw_rdmap_terminate_build_msg(struct siw_rdmap_stream *stream,
				   const struct siw_rdmap_fault *fault, struct siw_ddp_msg *msg)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint32_t length = siw_rdmap_terminate_build(fault, tx->term_out);

	tx->term_sge = (struct siw_sge){ (uintptr_t)tx->term_out, length, 0 };
	*msg = (struct siw_ddp_msg){
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_TERMINATE),
		.qn = SIW_RDMAP_QN_TERMINATE,
		.sgl = &tx->term_sge,
		.nsge = 1,
		.length = length,
	};
}

/*
 * Sends the delivery counts that were not sent yet, before the Terminate. The peer cannot derive
 * the counts from the error, because a Send may still wait for its receive. Returns 1 if all tagged
 * private messages are framed; 0 if some are left; -errno.
 */
static int send_delivery_counts_before_terminate(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	int r = tx->active ? siw_ddp_tx_continue_msg(stream->ddp, &err) : 1;

	if (r != 1)
		return r;
	tx->active = false;
	return siw_rdmap_send_tagged_private_msgs(stream);
}

int siw_rdmap_terminate(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	struct siw_wire_err err;
	struct siw_ddp_msg *msg;
	uint64_t accepted;
	int r;

	if (tx->term == SIW_RDMAP_TERM_NONE) {
		if (!stream->started || !siw_rdmap_fault_is_set(stream))
			return -EINVAL;
		/*
		 * The Terminate follows the last complete FPDU: the message being framed is
		 * abandoned.
		 */
		siw_ddp_tx_abandon(stream->ddp);
		tx->active = tx->imm_due = false;
		tx->term = SIW_RDMAP_TERM_COUNTS;
	}
	if (tx->term == SIW_RDMAP_TERM_COUNTS) {
		r = send_delivery_counts_before_terminate(stream);
		if (r != 1)
			return r;
		tx->term = SIW_RDMAP_TERM_DUE; /* RFC5040-5.4-08: nothing follows the Terminate */
	}
	if (tx->term == SIW_RDMAP_TERM_DUE) {
		if (tx->active) {
			r = siw_ddp_tx_continue_msg(stream->ddp, &err);
		} else {
			msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
			if (!msg)
				return -EBUSY;
			siw_rdmap_terminate_build_msg(stream, &stream->fault, msg);
			r = siw_ddp_tx(stream->ddp, msg, &err);
		}
		if (r < 0)
			return r;
		tx->active = r == 0;
		if (r == 0)
			return 0;
		tx->term = SIW_RDMAP_TERM_FRAMED;
	}
	if (tx->term == SIW_RDMAP_TERM_FRAMED) {
		r = siw_ddp_tx_flush(stream->ddp, &accepted);
		if (r != 1)
			return r;
		siw_count(SIW_COUNTER_terminate_tx, 1);
		tx->term = SIW_RDMAP_TERM_SENT;
	}
	return 1;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/*
 * Whether an error code is defined by RFC 5040 figure 9, RFC 5041 section 7.2 or RFC 5044 section
 * 8.
 */
static bool terminate_code_is_defined(uint8_t layer, uint8_t type, uint8_t code)
{
	switch (layer << 4 | type) {
	case SIW_LAYER_RDMAP << 4 | SIW_RDMAP_LOCAL_CATASTROPHIC:
		return true;
	case SIW_LAYER_RDMAP << 4 | SIW_RDMAP_REMOTE_PROTECTION:
		return code <= SIW_RDMAP_TO_WRAP || code == SIW_RDMAP_CANNOT_INVALIDATE ||
		       code == SIW_RDMAP_UNSPECIFIED;
	case SIW_LAYER_RDMAP << 4 | SIW_RDMAP_REMOTE_OPERATION:
		return (code >= SIW_RDMAP_VERSION && code <= SIW_RDMAP_CANNOT_INVALIDATE) ||
		       code == SIW_RDMAP_UNSPECIFIED;
	case SIW_LAYER_DDP << 4 | SIW_DDP_LOCAL_CATASTROPHIC:
		return code == 0;
	case SIW_LAYER_DDP << 4 | SIW_DDP_TAGGED_BUFFER:
		return code <= SIW_DDP_TAGGED_VERSION;
	case SIW_LAYER_DDP << 4 | SIW_DDP_UNTAGGED_BUFFER:
		return code >= SIW_DDP_INVALID_QN && code <= SIW_DDP_UNTAGGED_VERSION;
	case SIW_LAYER_LLP << 4:
		return code >= SIW_MPA_CLOSED && code <= SIW_MPA_NO_RTR_MATCH;
	default:
		return false;
	}
}

/*
 * Corrects a Terminate of Linux siw on a little-endian machine, which sends the four-bit fields of
 * the first octet swapped, and HdrCt in the low bits. If HdrCt is not 0, HdrCt shows whether the
 * fields are swapped; otherwise a swap is assumed only if the codes are undefined as received and
 * defined when swapped.
 */
static void terminate_correct_swapped_fields(struct siw_rdmap_wire_terminate *head)
{
	uint8_t high = head->layer_etype >> 4, low = head->layer_etype & 15;
	bool swapped;

	if (head->hdrct & (SIW_RDMAP_TERM_M | SIW_RDMAP_TERM_D | SIW_RDMAP_TERM_R))
		return;
	if (head->hdrct & 7)
		swapped = true;
	else
		swapped = !terminate_code_is_defined(high, low, head->code) &&
			  terminate_code_is_defined(low, high, head->code);
	if (!swapped)
		return;
	head->layer_etype = (uint8_t)(low << 4 | high);
	head->hdrct = (uint8_t)((head->hdrct & 1 ? SIW_RDMAP_TERM_M : 0) |
				(head->hdrct & 2 ? SIW_RDMAP_TERM_D : 0) |
				(head->hdrct & 4 ? SIW_RDMAP_TERM_R : 0));
}

/* Parses the DDP header quoted in a Terminate, if the header is complete. */
static void terminate_parse_quoted_header(const uint8_t *at, size_t len,
					  struct siw_rdmap_event *event)
{
	struct siw_ddp_seg seg;

	if (!siw_ddp_parse_quoted_header(at, len, &seg))
		return;
	event->quoted = true;
	event->quoted_tagged = seg.tagged;
	if (seg.tagged) {
		event->quoted_stag = seg.stag;
		event->quoted_to = seg.to;
	} else {
		event->quoted_qn = seg.qn;
		event->quoted_msn = seg.msn;
	}
}

void siw_rdmap_terminate_parse(const uint8_t *buf, size_t len, struct siw_rdmap_event *event)
{
	struct siw_rdmap_wire_terminate head;

	event->kind = SIW_RDMAP_TERMINATED;
	if (len < sizeof(head)) { /* the Terminate is too short to contain an error code */
		event->err =
			(struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_LOCAL_CATASTROPHIC, 0 };
		return;
	}
	memcpy(&head, buf, sizeof(head));
	terminate_correct_swapped_fields(&head);
	event->err =
		(struct siw_wire_err){ head.layer_etype >> 4, head.layer_etype & 15, head.code };
	if (head.hdrct & SIW_RDMAP_TERM_D && len > sizeof(head) + 2)
		terminate_parse_quoted_header(buf + sizeof(head) + 2, len - sizeof(head) - 2,
					      event);
}
