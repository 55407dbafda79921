/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Send requests of the QP types that use RDMAP on streams of messages: the properties of each
 * opcode, and the RDMAP operation of a request.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/*
 * The properties of the opcodes of send requests, indexed by enum siw_wr_opcode. Entries without
 * flags are not RDMAP requests.
 */
static const struct {
	uint8_t flags;
	uint8_t rdmap, rdmap_solicited; /* enum siw_rdmap_opcode */
	uint8_t wc;			/* enum siw_wc_opcode */
} ops[] = {
	[SIW_WR_RDMA_WRITE] = { SIW_OP_KNOWN | SIW_OP_WRITES, SIW_RDMAP_WRITE, SIW_RDMAP_WRITE,
				SIW_WC_RDMA_WRITE },
	[SIW_WR_RDMA_WRITE_WITH_IMM] = { SIW_OP_KNOWN | SIW_OP_WRITES | SIW_OP_SENDS | SIW_OP_IMM,
					 SIW_RDMAP_WRITE, SIW_RDMAP_WRITE, SIW_WC_RDMA_WRITE },
	[SIW_WR_SEND] = { SIW_OP_KNOWN | SIW_OP_SENDS, SIW_RDMAP_SEND, SIW_RDMAP_SEND_SE,
			  SIW_WC_SEND },
	[SIW_WR_SEND_WITH_IMM] = { SIW_OP_KNOWN | SIW_OP_SENDS | SIW_OP_IMM | SIW_OP_PRIVATE,
				   SIW_RDMAP_SEND, SIW_RDMAP_SEND, SIW_WC_SEND },
	[SIW_WR_RDMA_READ] = { SIW_OP_KNOWN | SIW_OP_AWAITS_RESPONSE, SIW_RDMAP_READ_REQUEST,
			       SIW_RDMAP_READ_REQUEST, SIW_WC_RDMA_READ },
	[SIW_WR_ATOMIC_CMP_AND_SWP] = { SIW_OP_KNOWN | SIW_OP_AWAITS_RESPONSE | SIW_OP_ATOMIC,
					SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					SIW_WC_COMP_SWAP },
	[SIW_WR_ATOMIC_FETCH_AND_ADD] = { SIW_OP_KNOWN | SIW_OP_AWAITS_RESPONSE | SIW_OP_ATOMIC,
					  SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					  SIW_WC_FETCH_ADD },
	/* Local requests have no flags; qp_mw.c checks them. */
	[SIW_WR_LOCAL_INV] = { .wc = SIW_WC_LOCAL_INV },
	[SIW_WR_BIND_MW] = { .wc = SIW_WC_BIND_MW },
	[SIW_WR_SEND_WITH_INV] = { SIW_OP_KNOWN | SIW_OP_SENDS, SIW_RDMAP_SEND_INV,
				   SIW_RDMAP_SEND_SE_INV, SIW_WC_SEND },
	[SIW_WR_MASKED_ATOMIC_CMP_AND_SWP] = { SIW_OP_KNOWN | SIW_OP_AWAITS_RESPONSE |
						       SIW_OP_ATOMIC,
					       SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					       SIW_WC_COMP_SWAP },
	[SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD] = { SIW_OP_KNOWN | SIW_OP_AWAITS_RESPONSE |
							 SIW_OP_ATOMIC,
						 SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
						 SIW_WC_FETCH_ADD },
};

uint8_t siw_qp_flags_of_opcode(int wr_opcode)
{
	if ((unsigned int)wr_opcode < sizeof(ops) / sizeof(ops[0]))
		return ops[wr_opcode].flags;
	return wr_opcode == SIW_WR_RDMA_WRITE_RECORD ? SIW_OP_KNOWN | SIW_OP_WRITES | SIW_OP_RECORD
						     : 0;
}

int siw_qp_wc_opcode_of_wr_opcode(int wr_opcode)
{
	if (wr_opcode == SIW_WR_RDMA_WRITE_RECORD)
		return SIW_WC_RDMA_WRITE;
	return ops[wr_opcode].wc;
}

int siw_qp_refuse_opcode(const struct siw_base_qp *base, int opcode)
{
	if (!siw_qp_flags_of_opcode(opcode) && !siw_qp_is_local(opcode))
		return siw_refuse_value("opcode", opcode, "siw_wr_opcode");
	switch (siw_class_of(base)->type) {
	case SIW_QPT_UD:
		return siw_refuse(UD_OPCODE);
	case SIW_QPT_UC:
		return siw_refuse(UC_OPCODE);
	case SIW_QPT_RD:
		return siw_refuse(RD_LOCAL);
	default:
		return siw_refuse(RC_RECORD);
	}
}

int siw_qp_refuse_send_in_state(const struct siw_base_qp *base, int state)
{
	bool by_cm = siw_class_of(base)->type == SIW_QPT_RC && !siw_rc_qp_of(base)->pairs;

	if (siw_teardown_of(base) == SIW_DEAD)
		return siw_refuse(DESTROYED);
	return by_cm ? siw_refuse(SEND_STATE_RC, (uint64_t)state)
		     : siw_refuse(SEND_STATE, (uint64_t)state);
}

int siw_qp_refuse_full_sq(const struct siw_base_qp *base)
{
	/*
	 * A UD QP without slots is out of memory: its slots are allocated when the first request
	 * needs a slot.
	 */
	return base->sq ? siw_refuse_full(SEND_FULL, base->cap.max_send_wr) : siw_refuse(NO_MEMORY);
}

int siw_qp_refuse_type(const struct siw_base_qp *base, const char *types)
{
	return siw_refuse_type("this function", types, siw_class_of(base)->type);
}

int64_t siw_qp_check_length(const struct siw_base_qp *base, const struct siw_send_wr *wr,
			    uint64_t length)
{
	if (length > SIW_MAX_RC_MSG)
		return siw_refuse(MESSAGE_LENGTH, length, SIW_MAX_RC_MSG);
	if ((wr->send_flags & SIW_SEND_INLINE) && length > base->cap.max_inline_data)
		return siw_refuse(INLINE_LENGTH, length, base->cap.max_inline_data);
	return (int64_t)length;
}

static int op_refuse_read(const struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	if (wr->send_flags & SIW_SEND_INLINE)
		return siw_refuse(READ_INLINE);
	return siw_class_of(base)->type == SIW_QPT_RD ? siw_refuse(NO_READS_RD)
						      : siw_refuse(NO_READS);
}

static bool op_is_supported(const struct siw_qp_class *class, int opcode)
{
	return opcode == SIW_WR_RDMA_WRITE_RECORD ? class->has_records
						  : class->opcodes >> opcode & 1;
}

int64_t siw_qp_op_check(const struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED |
				   SIW_SEND_INLINE;
	uint8_t flags = siw_qp_flags_of_opcode(wr->opcode);
	uint64_t length;

	if (!flags || !op_is_supported(siw_class_of(base), wr->opcode))
		return siw_qp_refuse_opcode(base, wr->opcode);
	if (wr->send_flags & ~known)
		return siw_refuse_flags("send_flags", wr->send_flags, "siw_send_flags");
	if ((flags & SIW_OP_AWAITS_RESPONSE) &&
	    (!base->granted_ord || (wr->send_flags & SIW_SEND_INLINE)))
		return op_refuse_read(base, wr);
	if ((flags & SIW_OP_PRIVATE) && !base->private)
		return siw_refuse(PRIVATE_MESSAGE);
	length = siw_qp_octets(wr);
	if ((flags & SIW_OP_ATOMIC) && length != sizeof(uint64_t))
		return siw_refuse(ATOMIC_LENGTH, length);
	return siw_qp_check_length(base, wr, length);
}

static void op_store_atomic_operands(struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	bool swap = wr->opcode == SIW_WR_ATOMIC_CMP_AND_SWP ||
		    wr->opcode == SIW_WR_MASKED_ATOMIC_CMP_AND_SWP;
	bool masked = wr->opcode == SIW_WR_MASKED_ATOMIC_CMP_AND_SWP ||
		      wr->opcode == SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	wqe->op.remote_to = wr->wr.atomic.remote_addr;
	wqe->op.rkey = wr->wr.atomic.rkey;
	wqe->op.atomic = &wqe->atomic;
	wqe->atomic = (struct siw_rdmap_atomic){
		.kind = SIW_RDMAP_FETCH_ADD,
		.data = wr->wr.atomic.compare_add,
		.mask = masked ? wr->masked.compare_add_mask : 0,
	};
	if (swap)
		wqe->atomic = (struct siw_rdmap_atomic){
			.kind = SIW_RDMAP_CMP_SWAP,
			.data = wr->wr.atomic.swap,
			.mask = masked ? wr->masked.swap_mask : UINT64_MAX,
			.compare = wr->wr.atomic.compare_add,
			.compare_mask = masked ? wr->masked.compare_add_mask : UINT64_MAX,
		};
}

static uint8_t op_rdmap_opcode(int wr_opcode, bool solicited)
{
	if (__builtin_expect(wr_opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
		return SIW_RDMAP_PRIVATE;
	return solicited ? ops[wr_opcode].rdmap_solicited : ops[wr_opcode].rdmap;
}

void siw_qp_op_store_in_wqe(struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	uint8_t flags = siw_qp_flags_of_opcode(wr->opcode);
	bool solicited = wr->send_flags & SIW_SEND_SOLICITED;
	struct siw_rdmap_op *op = &wqe->op;

	op->opcode = op_rdmap_opcode(wr->opcode, solicited);
	op->imm_opcode = 0;
	op->solicited = solicited;
	op->internal = wr->send_flags & SIW_SEND_INLINE;
	op->user_data = (uintptr_t)wqe;
	if (flags & SIW_OP_ATOMIC) {
		op_store_atomic_operands(wqe, wr);
		return;
	}
	if (__builtin_expect(flags & SIW_OP_IMM, 0)) {
		op->imm_opcode = solicited ? SIW_RDMAP_IMMEDIATE_SE : SIW_RDMAP_IMMEDIATE;
		op->imm = wr->imm_data;
	}
	op->remote_to = wr->wr.rdma.remote_addr;
	op->rkey = wr->opcode == SIW_WR_SEND_WITH_INV ? wr->invalidate_rkey : wr->wr.rdma.rkey;
}

/*
 * Maps an error that a peer reports (RFC 5040 section 4.8) to the completion status of the request.
 */
enum siw_wc_status siw_qp_wc_status_of_peer_error(const struct siw_wire_err *err)
{
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_PROTECTION)
		return SIW_WC_REM_ACCESS_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_TAGGED_BUFFER)
		return SIW_WC_REM_ACCESS_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_UNTAGGED_BUFFER)
		return err->code == SIW_DDP_NO_BUFFER ? SIW_WC_RNR_RETRY_EXC_ERR
						      : SIW_WC_REM_INV_REQ_ERR;
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_OPERATION &&
	    err->code == SIW_RDMAP_OPCODE)
		return SIW_WC_REM_INV_REQ_ERR;
	return SIW_WC_REM_OP_ERR;
}

/*
 * Compares the request with the header that a peer's error report quotes. If several Writes to the
 * same memory match, the caller chooses the first, so that no request is reported as delivered that
 * may not have been delivered.
 */
bool siw_qp_is_request_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev)
{
	uint64_t last = wqe->op.length ? wqe->op.length - 1 : 0;

	if (wqe->state != SIW_WQE_BEGUN)
		return false;
	if (ev->quoted_tagged)
		return (siw_qp_flags_of_opcode(wqe->opcode) & SIW_OP_WRITES) &&
		       ev->quoted_stag == wqe->op.rkey && ev->quoted_to - wqe->op.remote_to <= last;
	return (siw_qp_flags_of_opcode(wqe->opcode) & (SIW_OP_SENDS | SIW_OP_AWAITS_RESPONSE)) &&
	       ev->quoted_msn == wqe->msn && ev->quoted_qn == siw_qp_awaits_response(wqe);
}
