/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The send ring: its entries, and how they end. */
#include <errno.h>
#include <stdlib.h>

#include "qp/qp_impl.h"

struct siw_wqe *siw_qp_wqe(const struct siw_wq *wq, uint32_t index)
{
	return (struct siw_wqe *)(wq->sq + (size_t)(index & wq->sq_mask) * wq->sq_stride);
}

/* Inline octets lie behind the SGEs; the one SGE of an inline WQE points at them. */
static void copy_inline(struct siw_wq *wq, struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	char *to = (char *)(wqe->sge + wq->cap.max_send_sge);

	wqe->sge[0] = (struct siw_sge){ .addr = (uintptr_t)to, .length = (uint32_t)wqe->length };
	wqe->nsge = 1;
	for (int i = 0; i < wr->num_sge; i++) {
		const void *from = (const void *)(uintptr_t)wr->sg_list[i].addr;

		if (wr->sg_list[i].length) /* an element of no octets may lie nowhere */
			memcpy(to, from, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

int siw_qp_sq_make(struct siw_wq *wq)
{
	wq->sq = calloc(wq->cap.max_send_wr, wq->sq_stride);
	return wq->sq ? 0 : -ENOMEM;
}

void siw_qp_wqe_fill(struct siw_wq *wq, struct siw_wqe *wqe, const struct siw_send_wr *wr,
		     uint64_t length)
{
	wqe->wr_id = wr->wr_id;
	wqe->length = length;
	wqe->opcode = (uint8_t)wr->opcode;
	wqe->state = SIW_WQE_POSTED;
	wqe->flags = wr->send_flags;
	wqe->nsge = (uint8_t)wr->num_sge;
	if (wr->send_flags & SIW_SEND_INLINE)
		copy_inline(wq, wqe, wr);
	else if (wr->num_sge) /* without elements the list may be NULL */
		memcpy(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(wqe->sge[0]));
}

struct siw_wqe *siw_qp_wqe_put(struct siw_wq *wq, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_wqe *wqe;

	if (siw_qp_sq_full(wq) || (__builtin_expect(!wq->sq, 0) && siw_qp_sq_make(wq)))
		return NULL;
	wqe = siw_qp_wqe(wq, wq->sq_tail);
	siw_qp_wqe_fill(wq, wqe, wr, length);
	wq->sq_tail++;
	return wqe;
}

void siw_qp_let_go(struct siw_wq *wq, struct siw_wqe *wqe)
{
	if (__builtin_expect(wqe->opcode == SIW_WR_BIND_MW, 0) && wqe->state == SIW_WQE_POSTED)
		siw_verbs_bind_drop(wq->qp.ctx, &wqe->bind);
}

void siw_qp_wqe_complete(struct siw_wq *wq, struct siw_wqe *wqe, int status, uint32_t vendor_err,
			 const struct siw_addr *peer)
{
	struct siw_wc wc;

	siw_qp_let_go(wq, wqe);
	if (status == SIW_WC_SUCCESS && !wq->sig_all && !(wqe->flags & SIW_SEND_SIGNALED)) {
		wq->sq_head++;
		return;
	}
	wc = (struct siw_wc){
		.wr_id = wqe->wr_id,
		.status = status,
		.opcode = siw_qp_op_wc(wqe->opcode),
		.vendor_err = vendor_err,
		.byte_len = (uint32_t)wqe->length,
		.qp_num = atomic_load_explicit(&wq->qp.qpn, memory_order_relaxed),
	};
	siw_verbs_complete(&wq->qp, wq->qp.send_cq, &wc, peer, wq->sq_head + 1, false);
	wq->sq_head++;
}

void siw_qp_wqe_finish(struct siw_wq *wq, struct siw_wqe *wqe, int status, uint32_t vendor_err)
{
	siw_qp_wqe_complete(wq, wqe, status, vendor_err, NULL);
}

void siw_qp_flush_late_send(struct siw_wq *wq)
{
	if (siw_teardown_of(wq) != SIW_FLUSHED)
		return;
	siw_qp_wqe_finish(wq, siw_qp_wqe(wq, wq->sq_head), SIW_WC_WR_FLUSH_ERR, wq->wire_err);
	wq->sq_next = wq->sq_head;
}

/* ---- what is on its way ---------------------------------------------------------------------- */

/* Whether this request still reads or writes its memory. */
static bool needs_memory(const struct siw_wqe *wqe, uint64_t accepted)
{
	if (wqe->state == SIW_WQE_DONE || (wqe->flags & SIW_SEND_INLINE))
		return false;
	return wqe->state == SIW_WQE_POSTED || siw_qp_awaits_response(wqe) || wqe->seq > accepted;
}

bool siw_qp_wqe_uses_key(const struct siw_wqe *wqe, uint32_t lkey, uint64_t accepted)
{
	if (!needs_memory(wqe, accepted))
		return false;
	for (int i = 0; i < wqe->nsge; i++)
		if (wqe->sge[i].lkey == lkey)
			return true;
	return false;
}

bool siw_qp_sq_uses_key(struct siw_wq *wq, uint32_t lkey, uint64_t accepted)
{
	for (uint32_t i = wq->sq_head; i != wq->sq_tail; i++)
		if (siw_qp_wqe_uses_key(siw_qp_wqe(wq, i), lkey, accepted))
			return true;
	return false;
}

bool siw_qp_may_wait(struct siw_wq *wq)
{
	struct siw_context *ctx = wq->qp.ctx;
	uint32_t polls = atomic_load_explicit(&ctx->polls, memory_order_relaxed);

	if (wq->polls_at_post != polls) {
		wq->polls_at_post = polls;
		return false;
	}
	return ctx->has_thread && !siw_llp_port_armed(ctx->port) &&
	       !atomic_load_explicit(&ctx->waiters, memory_order_relaxed) &&
	       !atomic_load_explicit(&ctx->n_armed, memory_order_relaxed) &&
	       wq->sq_tail - wq->sq_head - wq->begun < SIW_RDMAP_MAX_SOME - 1;
}
