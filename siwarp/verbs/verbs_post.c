/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Posting: the checks, the send ring, and how its entries end. */
#include <errno.h>
#include <stdlib.h>

#include "rdmap/rdmap_uc.h"
#include "verbs/verbs_impl.h"

/* ---- the send ring --------------------------------------------------------------------------- */

struct siw_wqe *siw_verbs_wqe(struct siw_qp *qp, uint32_t index)
{
	return (struct siw_wqe *)(qp->sq + (size_t)(index & qp->sq_mask) * qp->sq_stride);
}

/* Inline octets lie behind the SGEs; the one SGE of an inline WQE points at them. */
static void copy_inline(struct siw_qp *qp, struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	char *to = (char *)(wqe->sge + qp->cap.max_send_sge);

	wqe->sge[0] = (struct siw_sge){ .addr = (uintptr_t)to, .length = (uint32_t)wqe->length };
	wqe->nsge = 1;
	for (int i = 0; i < wr->num_sge; i++) {
		const void *from = (const void *)(uintptr_t)wr->sg_list[i].addr;

		if (wr->sg_list[i].length) /* an element of no octets may lie nowhere */
			memcpy(to, from, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

int siw_verbs_sq_make(struct siw_qp *qp)
{
	qp->sq = calloc(qp->cap.max_send_wr, qp->sq_stride);
	return qp->sq ? 0 : -ENOMEM;
}

void siw_verbs_wqe_fill(struct siw_qp *qp, struct siw_wqe *wqe, const struct siw_send_wr *wr,
			uint64_t length)
{
	wqe->wr_id = wr->wr_id;
	wqe->length = length;
	wqe->opcode = (uint8_t)wr->opcode;
	wqe->state = SIW_WQE_POSTED;
	wqe->flags = wr->send_flags;
	wqe->nsge = (uint8_t)wr->num_sge;
	if (wr->send_flags & SIW_SEND_INLINE)
		copy_inline(qp, wqe, wr);
	else if (wr->num_sge) /* without elements the list may be NULL */
		memcpy(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(wqe->sge[0]));
}

struct siw_wqe *siw_verbs_wqe_put(struct siw_qp *qp, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_wqe *wqe;

	if (siw_verbs_sq_full(qp) || (__builtin_expect(!qp->sq, 0) && siw_verbs_sq_make(qp)))
		return NULL;
	wqe = siw_verbs_wqe(qp, qp->sq_tail);
	siw_verbs_wqe_fill(qp, wqe, wr, length);
	qp->sq_tail++;
	return wqe;
}

/* A bind that did not come to its turn holds a window and a region. */
static void let_go(struct siw_qp *qp, struct siw_wqe *wqe)
{
	if (__builtin_expect(wqe->opcode == SIW_WR_BIND_MW, 0) && wqe->state == SIW_WQE_POSTED)
		siw_verbs_mw_drop(qp, wqe);
}

void siw_verbs_wqe_complete(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err,
			    const struct siw_addr *peer)
{
	let_go(qp, wqe);
	if (status != SIW_WC_SUCCESS || qp->sig_all || (wqe->flags & SIW_SEND_SIGNALED)) {
		struct siw_wc wc = {
			.wr_id = wqe->wr_id,
			.status = status,
			.opcode = siw_verbs_op_wc(wqe->opcode),
			.vendor_err = vendor_err,
			.byte_len = (uint32_t)wqe->length,
			.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		};

		siw_verbs_complete(qp, qp->send_cq, &wc, peer, false);
	}
	qp->sq_head++;
}

void siw_verbs_wqe_finish(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err)
{
	siw_verbs_wqe_complete(qp, wqe, status, vendor_err, NULL);
}

/* ---- the end of all that is posted ----------------------------------------------------------- */

static void drop_reads(struct siw_qp *qp)
{
	uint64_t cookie;

	while (qp->stream && siw_rdmap_take_read(qp->stream, &cookie) == 1)
		;
	qp->reads_out = 0;
}

void siw_verbs_flush_late_send(struct siw_qp *qp)
{
	if (!qp->flushed)
		return;
	siw_verbs_wqe_finish(qp, siw_verbs_wqe(qp, qp->sq_head), SIW_WC_WR_FLUSH_ERR, qp->wire_err);
	qp->sq_next = qp->sq_head;
}

void siw_verbs_flush_recv(struct siw_qp *qp, uint64_t cookie)
{
	struct siw_wc wc = { .wr_id = cookie,
			     .status = SIW_WC_WR_FLUSH_ERR,
			     .opcode = SIW_WC_RECV,
			     .vendor_err = qp->wire_err,
			     .qp_num = qp->qpn };

	siw_verbs_complete(qp, qp->recv_cq, &wc, NULL, false);
}

void siw_verbs_flush(struct siw_qp *qp)
{
	uint64_t cookie;

	siw_verbs_mw_settle(qp, true);
	siw_verbs_forget_unsent(qp);
	siw_verbs_record_clear(qp);
	siw_lock(&qp->send_lock);
	qp->revoke.due = SIW_REVOKE_NONE;
	drop_reads(qp);
	if (qp->uc)
		siw_rdmap_uc_cut(qp->uc);
	if (qp->rd)
		siw_verbs_rd_flush(qp, true);
	while (qp->sq_head != qp->sq_tail) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

		int status = wqe->state == SIW_WQE_DONE ? wqe->status : SIW_WC_WR_FLUSH_ERR;

		siw_verbs_wqe_finish(qp, wqe, status, status == SIW_WC_SUCCESS ? 0 : qp->wire_err);
	}
	qp->sq_next = qp->sq_head;
	qp->flushed = true;
	siw_unlock(&qp->send_lock);

	siw_lock(&qp->recv_lock);
	/* A message that broke off in its middle has its receive already. */
	if (qp->stream && siw_rdmap_take_recv(qp->stream, &cookie) == 1)
		siw_verbs_flush_recv(qp, cookie);
	if (qp->uc && siw_rdmap_uc_take_recv(qp->uc, &cookie) == 1)
		siw_verbs_flush_recv(qp, cookie);
	while (!qp->srq && siw_rdmap_queue_take(qp->recvs, &cookie) == 1)
		siw_verbs_flush_recv(qp, cookie);
	siw_unlock(&qp->recv_lock);
	if (qp->srq) {
		siw_verbs_srq_taken(qp->srq);
		siw_verbs_async_qp(qp, SIW_EVENT_QP_LAST_WQE_REACHED);
	}
}

void siw_verbs_forget(struct siw_qp *qp)
{
	uint64_t cookie;

	siw_verbs_mw_settle(qp, true);
	siw_verbs_forget_unsent(qp);
	siw_verbs_record_clear(qp);
	siw_lock(&qp->send_lock);
	qp->revoke.due = SIW_REVOKE_NONE;
	drop_reads(qp);
	if (qp->rd)
		siw_verbs_rd_flush(qp, false);
	/* These bind no windows and count no sq_next, and UD's requests may never have been in the ring. */
	for (uint32_t i = qp->sq_next;
	     qp->type != SIW_QPT_UD && qp->type != SIW_QPT_RD && i != qp->sq_tail; i++)
		let_go(qp, siw_verbs_wqe(qp, i));
	if (qp->uc) {
		siw_rdmap_uc_cut(qp->uc);
		siw_rdmap_uc_take_recv(qp->uc, &cookie);
	}
	qp->failing = false;
	qp->sq_head = qp->sq_next = qp->sq_tail;
	qp->flushed = qp->draining = false;
	siw_lock(&qp->recv_lock);
	while (!qp->srq && siw_rdmap_queue_take(qp->recvs, &cookie) == 1)
		;
	qp->rq_done = qp->rq_posted;
	/* All slots are free; completions that wait to be polled must not take one back. */
	siw_verbs_cq_rebase(qp->send_cq, qp);
	siw_verbs_cq_rebase(qp->recv_cq, qp);
	atomic_store(&qp->sq_freed, qp->sq_tail);
	atomic_store(&qp->rq_freed, qp->rq_posted);
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
}

/* ---- the verbs ------------------------------------------------------------------------------- */

static int post_one(struct siw_qp *qp, const struct siw_send_wr *wr, bool wait)
{
	int state = atomic_load_explicit(&qp->state, memory_order_relaxed);

	if (__builtin_expect(state < SIW_QPS_RTS, 0))
		return -EINVAL;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge ||
	    (wr->num_sge && !wr->sg_list))
		return -EINVAL;
	switch (qp->type) {
	case SIW_QPT_UD:
		return siw_verbs_ud_post(qp, wr, wait);
	case SIW_QPT_UC:
		return siw_verbs_uc_post(qp, wr);
	case SIW_QPT_RD:
		return siw_verbs_rd_post(qp, wr);
	default:
		return siw_verbs_rc_post(qp, wr);
	}
}

int siw_post_send(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr)
{
	bool list, later;
	enum siw_run run = SIW_RUN_BLOCKED;
	int err = 0;

	if (__builtin_expect(!qp, 0) || siw_verbs_inherited(qp->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return qp ? -ESTALE : -EINVAL;
	}
	siw_lock(&qp->send_lock);
	list = wr && wr->next;
	later = qp->type != SIW_QPT_RC && !list && qp->state >= SIW_QPS_RTS &&
		siw_verbs_ud_may_wait(qp);
	for (; wr; wr = wr->next) {
		err = post_one(qp, wr, list || later);
		if (err) {
			if (bad_wr)
				*bad_wr = wr;
			break;
		}
	}
	if (!later || err)
		run = siw_verbs_run(qp);
	/* Before the lock goes: behind it, the QP and its device may go, too. */
	if (run != SIW_RUN_DONE) {
		siw_verbs_mark_unsent(qp);
		siw_verbs_nudge(qp->ctx);
	}
	siw_unlock(&qp->send_lock);
	return err;
}

static void flush_late_receive(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;
	uint64_t cookie;

	/* Only the holder of progress takes buffers off the queue. */
	siw_lock(&ctx->progress);
	/* Unless it was reset or destroyed meanwhile. */
	while (qp->state == SIW_QPS_ERR && !qp->srq &&
	       siw_rdmap_queue_take(qp->recvs, &cookie) == 1)
		siw_verbs_flush_recv(qp, cookie);
	siw_unlock(&ctx->progress);
}

static int post_one_recv(struct siw_qp *qp, const struct siw_recv_wr *wr)
{
	uint32_t held = qp->rq_posted - atomic_load_explicit(&qp->rq_freed, memory_order_relaxed);
	int err;

	if (wr->num_sge < 0 || (wr->num_sge && !wr->sg_list))
		return -EINVAL;
	if (held >= qp->cap.max_recv_wr)
		return -ENOMEM;
	err = siw_rdmap_queue_post(qp->recvs, wr->wr_id, wr->sg_list, wr->num_sge);
	qp->rq_posted += !err;
	return err;
}

int siw_post_recv(struct siw_qp *qp, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr)
{
	int state, err = 0;
	bool late;

	if (__builtin_expect(!qp, 0) || siw_verbs_inherited(qp->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return qp ? -ESTALE : -EINVAL;
	}
	siw_lock(&qp->recv_lock);
	state = atomic_load(&qp->state);
	if (state == SIW_QPS_RESET || qp->srq)
		err = -EINVAL;
	for (; !err && wr; wr = wr->next) {
		err = post_one_recv(qp, wr);
		if (err)
			break;
	}
	late = state == SIW_QPS_ERR && !qp->srq;
	if (__builtin_expect(qp->parked, 0)) {
		siw_verbs_mark_unsent(qp);
		siw_verbs_nudge(qp->ctx);
	}
	siw_unlock(&qp->recv_lock);
	if (err && bad_wr)
		*bad_wr = wr;
	if (late)
		flush_late_receive(qp);
	return err;
}
