/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Send requests of queue pairs that speak RDMAP on a stream of messages: what each opcode takes, and
 * which operation it becomes.
 */
#include <errno.h>

#include "verbs/verbs_impl.h"

/* By enum siw_wr_opcode; without flags: there is no such request. */
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
	[SIW_WR_RDMA_READ] = { SIW_OP_KNOWN | SIW_OP_ASKS, SIW_RDMAP_READ_REQUEST,
			       SIW_RDMAP_READ_REQUEST, SIW_WC_RDMA_READ },
	[SIW_WR_ATOMIC_CMP_AND_SWP] = { SIW_OP_KNOWN | SIW_OP_ASKS | SIW_OP_ATOMIC,
					SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					SIW_WC_COMP_SWAP },
	[SIW_WR_ATOMIC_FETCH_AND_ADD] = { SIW_OP_KNOWN | SIW_OP_ASKS | SIW_OP_ATOMIC,
					  SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					  SIW_WC_FETCH_ADD },
	/* Without flags: these are not for RDMAP, and checked elsewhere. */
	[SIW_WR_LOCAL_INV] = { .wc = SIW_WC_LOCAL_INV },
	[SIW_WR_BIND_MW] = { .wc = SIW_WC_BIND_MW },
	[SIW_WR_SEND_WITH_INV] = { SIW_OP_KNOWN | SIW_OP_SENDS, SIW_RDMAP_SEND_INV,
				   SIW_RDMAP_SEND_SE_INV, SIW_WC_SEND },
	[SIW_WR_MASKED_ATOMIC_CMP_AND_SWP] = { SIW_OP_KNOWN | SIW_OP_ASKS | SIW_OP_ATOMIC,
					       SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
					       SIW_WC_COMP_SWAP },
	[SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD] = { SIW_OP_KNOWN | SIW_OP_ASKS | SIW_OP_ATOMIC,
						 SIW_RDMAP_ATOMIC_REQUEST, SIW_RDMAP_ATOMIC_REQUEST,
						 SIW_WC_FETCH_ADD },
};

uint8_t siw_verbs_op_flags(int wr_opcode)
{
	if ((unsigned int)wr_opcode < sizeof(ops) / sizeof(ops[0]))
		return ops[wr_opcode].flags;
	return wr_opcode == SIW_WR_RDMA_WRITE_RECORD ? SIW_OP_KNOWN | SIW_OP_WRITES | SIW_OP_RECORD
						     : 0;
}

int siw_verbs_op_wc(int wr_opcode)
{
	if (wr_opcode == SIW_WR_RDMA_WRITE_RECORD)
		return SIW_WC_RDMA_WRITE;
	return ops[wr_opcode].wc;
}

int64_t siw_verbs_op_check(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED |
				   SIW_SEND_INLINE;
	uint8_t flags = siw_verbs_op_flags(wr->opcode);
	uint64_t length = 0;

	if (wr->send_flags & ~known || !flags)
		return -EINVAL;
	if ((flags & SIW_OP_ASKS) && (!qp->granted_ord || (wr->send_flags & SIW_SEND_INLINE)))
		return -EINVAL;
	if ((flags & SIW_OP_PRIVATE) && !qp->private)
		return -EINVAL;
	if ((flags & SIW_OP_RECORD) && qp->type != SIW_QPT_RD)
		return -EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > SIW_MAX_RC_MSG)
		return -EINVAL;
	if ((flags & SIW_OP_ATOMIC) && length != sizeof(uint64_t))
		return -EINVAL;
	if ((wr->send_flags & SIW_SEND_INLINE) && length > qp->cap.max_inline_data)
		return -EINVAL;
	return (int64_t)length;
}

static void put_atomic(struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	bool swap = wr->opcode == SIW_WR_ATOMIC_CMP_AND_SWP ||
		    wr->opcode == SIW_WR_MASKED_ATOMIC_CMP_AND_SWP;
	bool masked = wr->opcode == SIW_WR_MASKED_ATOMIC_CMP_AND_SWP ||
		      wr->opcode == SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	wqe->remote = wr->wr.atomic.remote_addr;
	wqe->rkey = wr->wr.atomic.rkey;
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

void siw_verbs_op_put(struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	uint8_t flags = siw_verbs_op_flags(wr->opcode);

	if (flags & SIW_OP_ATOMIC) {
		put_atomic(wqe, wr);
		return;
	}
	if (flags & SIW_OP_IMM)
		wqe->imm = wr->imm_data;
	wqe->remote = wr->wr.rdma.remote_addr;
	wqe->rkey = wr->opcode == SIW_WR_SEND_WITH_INV ? wr->invalidate_rkey : wr->wr.rdma.rkey;
}

void siw_verbs_op_record(struct siw_wqe *wqe, struct siw_rdmap_op *op)
{
	*op = (struct siw_rdmap_op){
		.opcode = SIW_RDMAP_PRIVATE,
		.solicited = wqe->flags & SIW_SEND_SOLICITED,
		.internal = wqe->flags & SIW_SEND_INLINE,
		.sgl = wqe->sge,
		.nsge = wqe->nsge,
		.length = wqe->length,
		.rkey = wqe->rkey,
		.remote_to = wqe->remote,
	};
}

void siw_verbs_op_make(struct siw_wqe *wqe, uint32_t index, struct siw_rdmap_op *op)
{
	*op = (struct siw_rdmap_op){
		.opcode = wqe->flags & SIW_SEND_SOLICITED ? ops[wqe->opcode].rdmap_solicited
							  : ops[wqe->opcode].rdmap,
		.internal = wqe->flags & SIW_SEND_INLINE,
		.cookie = index,
		.sgl = wqe->sge,
		.nsge = wqe->nsge,
		.length = wqe->length,
		.rkey = wqe->rkey,
		.remote_to = wqe->remote,
		.atomic = &wqe->atomic,
	};
	if (__builtin_expect(ops[wqe->opcode].flags & SIW_OP_IMM, 0)) {
		op->imm_opcode = wqe->flags & SIW_SEND_SOLICITED ? SIW_RDMAP_IMMEDIATE_SE
								 : SIW_RDMAP_IMMEDIATE;
		op->imm = wqe->imm;
		op->imm_room = wqe->imm_room;
	}
}
