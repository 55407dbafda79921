/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Local requests: binds of memory windows, and local invalidation. The format of a bind is checked
 * when it is posted, the access rights when it begins, because rights and region may change until
 * then.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/* ---- posting --------------------------------------------------------------------------------- */

static int check_bind(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ |
				   SIW_ACCESS_REMOTE_ATOMIC | SIW_ACCESS_ZERO_BASED;
	const struct siw_mw_bind_info *info = &wr->bind_mw.bind_info;
	const struct siw_mw *mw = wr->bind_mw.mw;

	if (!mw)
		return siw_refuse(BIND_WINDOW);
	if (info->mw_access_flags & ~known)
		return siw_refuse(BIND_ACCESS, info->mw_access_flags);
	if (!info->mr && info->length)
		return siw_refuse(BIND_REGION);
	if (mw->context != qp->ctx || (info->mr && info->mr->context != qp->ctx))
		return siw_refuse(BIND_CONTEXT);
	return 0;
}

int siw_qp_mw_check(const struct siw_wq *wq, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED;

	if (wr->send_flags & ~known)
		return wr->send_flags & SIW_SEND_INLINE ? siw_refuse(LOCAL_INLINE)
							: siw_refuse(SEND_FLAGS, wr->send_flags);
	return wr->opcode == SIW_WR_BIND_MW ? check_bind(&wq->qp, wr) : 0;
}

int siw_qp_mw_post(struct siw_wq *wq, const struct siw_send_wr *wr, int type)
{
	struct siw_send_wr plain = *wr;
	struct siw_bind bind = { 0 };
	struct siw_wqe *wqe;
	int err = siw_qp_mw_check(wq, wr);

	if (err)
		return err;
	if (siw_qp_sq_full(wq))
		return siw_qp_refuse_slot(wq);
	if (wr->opcode == SIW_WR_BIND_MW)
		err = siw_device_bind_pin(wq->qp.ctx, wr, type, &bind);
	if (err)
		return err;
	plain.num_sge = 0;
	wqe = siw_qp_sq_append(wq, &wq->flow, &plain, 0);
	if (wr->opcode == SIW_WR_BIND_MW)
		wqe->bind = bind;
	else
		wqe->rkey = wr->invalidate_rkey;
	if (wq->qp.state >= SIW_QPS_SQE)
		siw_qp_flush_late_send(wq);
	return 0;
}

static int bind_type_1(struct siw_wq *wq, struct siw_send_wr *wr)
{
	struct siw_context *ctx = wq->qp.ctx;
	enum siw_run run;
	int err;

	if (!siw_class_of(wq)->binds)
		return siw_refuse(BIND_TYPE, (uint64_t)siw_class_of(wq)->type);
	siw_lock(&wq->qp.send_lock);
	if (wq->qp.state < SIW_QPS_RTS) {
		err = siw_qp_refuse_send_state(wq, wq->qp.state);
		siw_unlock(&wq->qp.send_lock);
		return err;
	}
	/*
	 * Under the lock, because the device may be closed by force meanwhile, and its close waits
	 * for posts to end.
	 */
	err = siw_mem_stag_reserve(ctx->mem, false, &wr->bind_mw.rkey);
	if (err) {
		siw_unlock(&wq->qp.send_lock);
		return siw_device_refuse_full("max_mr", ctx->attr.max_mr);
	}
	err = siw_qp_mw_post(wq, wr, SIW_MW_TYPE_1);
	if (err)
		siw_mem_stag_free(ctx->mem, wr->bind_mw.rkey);
	run = siw_class_of(wq)->run(wq);
	if (run != SIW_RUN_DONE)
		siw_qp_wake(wq);
	siw_unlock(&wq->qp.send_lock);
	return err;
}

int siw_bind_mw(struct siw_qp *qp, struct siw_mw *mw, struct siw_mw_bind *bind)
{
	struct siw_send_wr wr = { .opcode = SIW_WR_BIND_MW };
	int err = siw_qp_enter(qp);

	if (err)
		return err;
	if (!mw || !bind)
		return siw_refuse_null(mw ? "bind" : "mw");
	wr.wr_id = bind->wr_id;
	wr.send_flags = bind->send_flags;
	wr.bind_mw.mw = mw;
	wr.bind_mw.bind_info = bind->bind_info;
	return bind_type_1(siw_wq_of(qp), &wr);
}

/* ---- execution ------------------------------------------------------------------------------- */

/*
 * Whether TCP still has to accept a Read Response from the memory of that STag. The response cannot
 * be recalled, so the QP becomes CUT.
 */
static bool cut_if_sending(struct siw_wq *wq, uint32_t stag)
{
	if (!siw_class_of(wq)->is_sending || !siw_class_of(wq)->is_sending(wq, stag))
		return false;
	siw_tear(wq, SIW_RESETTING);
	return true;
}

int siw_qp_mw_begin(struct siw_wq *wq, struct siw_wqe *wqe)
{
	int r;

	if (wqe->opcode == SIW_WR_LOCAL_INV) {
		if (siw_mem_stag_invalidate(wq->qp.ctx->mem, wqe->rkey, siw_device_owner(&wq->qp)))
			return SIW_WC_LOC_PROT_ERR;
		/* The STag belongs to this QP, so no other QP's peer can be using it. */
		return cut_if_sending(wq, wqe->rkey) ? -EINPROGRESS : 0;
	}
	if (wq->revoke.due)
		return -EINPROGRESS;
	r = siw_device_bind(&wq->qp, &wqe->bind, &wq->revoke.rest);
	if (r == -EINPROGRESS) {
		wq->revoke.due = SIW_REVOKE_DUE;
		wq->revoke.wqe = wqe;
		cut_if_sending(wq, wq->revoke.rest.stag);
	}
	return r;
}

void siw_qp_local_done(struct siw_wq *wq)
{
	struct siw_wqe *wqe = siw_qp_flow_advance(wq, &wq->flow, SIW_WQE_DONE, SIW_WC_SUCCESS);

	if (siw_class_of(wq)->did_local)
		siw_class_of(wq)->did_local(wq, wqe);
}

void siw_qp_mw_settle(struct siw_wq *wq, bool last)
{
	struct siw_revoke revoke;

	siw_lock(&wq->qp.send_lock);
	revoke = wq->revoke;
	if (revoke.due == SIW_REVOKE_DUE)
		wq->revoke.due = SIW_REVOKE_BEGUN;
	siw_unlock(&wq->qp.send_lock);
	if (revoke.due != SIW_REVOKE_DUE)
		return;
	siw_device_bind_end(wq->qp.ctx, &revoke.rest, last ? &wq->qp : NULL);
	siw_lock(&wq->qp.send_lock);
	/* The request may have been flushed meanwhile. */
	if (wq->revoke.due == SIW_REVOKE_BEGUN) {
		wq->revoke.due = SIW_REVOKE_NONE;
		if (wq->flow.next == revoke.wqe)
			siw_qp_local_done(wq);
	}
	siw_unlock(&wq->qp.send_lock);
	siw_device_mark_unsent(&wq->qp);
}
