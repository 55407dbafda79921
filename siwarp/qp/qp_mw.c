/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Local requests: binds of memory windows, and local invalidation. The format of a bind is checked
 * when the bind is posted. The access rights are checked when the bind begins, because rights and
 * region may change until then.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/* ---- posting --------------------------------------------------------------------------------- */

static int mw_check_bind(const struct siw_qp *qp, const struct siw_send_wr *wr)
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

int siw_qp_mw_check_request(const struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED;

	if (wr->send_flags & ~known)
		return wr->send_flags & SIW_SEND_INLINE
			       ? siw_refuse(LOCAL_INLINE)
			       : siw_refuse_flags("send_flags", wr->send_flags, "siw_send_flags");
	return wr->opcode == SIW_WR_BIND_MW ? mw_check_bind(&base->qp, wr) : 0;
}

int siw_qp_mw_post_request(struct siw_base_qp *base, const struct siw_send_wr *wr, int type)
{
	struct siw_send_wr plain = *wr;
	struct siw_bind bind = { 0 };
	struct siw_wqe *wqe;
	int err = siw_qp_mw_check_request(base, wr);

	if (err)
		return err;
	if (siw_qp_sq_full(base))
		return siw_qp_refuse_full_sq(base);
	if (wr->opcode == SIW_WR_BIND_MW)
		err = siw_device_mw_pin_for_bind(base->qp.ctx, wr, type, &bind);
	if (err)
		return err;
	plain.num_sge = 0;
	wqe = siw_qp_sq_append(base, &base->flow, &plain, 0);
	if (wr->opcode == SIW_WR_BIND_MW)
		wqe->bind = bind;
	else
		wqe->op.rkey = wr->invalidate_rkey;
	if (base->qp.state >= SIW_QPS_SQE)
		siw_qp_flush_late_send(base);
	return 0;
}

static int mw_bind_type_1(struct siw_base_qp *base, struct siw_send_wr *wr)
{
	struct siw_context *ctx = base->qp.ctx;
	enum siw_run run;
	int err;

	if (!siw_class_of(base)->binds)
		return siw_refuse_type("a memory window", "RC and UC", siw_class_of(base)->type);
	siw_lock(&base->qp.send_lock);
	if (base->qp.state < SIW_QPS_RTS) {
		err = siw_qp_refuse_send_in_state(base, base->qp.state);
		siw_unlock(&base->qp.send_lock);
		return err;
	}
	/*
	 * Reserve the STag under the send lock, because the device may be closed by force at the
	 * same time, and the close waits for posts to end.
	 */
	err = siw_mem_stag_reserve(ctx->mem, false, &wr->bind_mw.rkey);
	if (err) {
		siw_unlock(&base->qp.send_lock);
		return siw_device_refuse_limit_reached("max_mr", ctx->attr.max_mr);
	}
	err = siw_qp_mw_post_request(base, wr, SIW_MW_TYPE_1);
	if (err)
		siw_mem_stag_free(ctx->mem, wr->bind_mw.rkey);
	run = siw_class_of(base)->run(base);
	if (run != SIW_RUN_DONE)
		siw_qp_schedule_sending_turn(base);
	siw_unlock(&base->qp.send_lock);
	return err;
}

int siw_bind_mw(struct siw_qp *qp, struct siw_mw *mw, struct siw_mw_bind *bind)
{
	struct siw_send_wr wr = { .opcode = SIW_WR_BIND_MW };
	int err = siw_qp_check_usable(qp);

	if (err)
		return err;
	if (!mw || !bind)
		return siw_refuse_null(mw ? "bind" : "mw");
	wr.wr_id = bind->wr_id;
	wr.send_flags = bind->send_flags;
	wr.bind_mw.mw = mw;
	wr.bind_mw.bind_info = bind->bind_info;
	return mw_bind_type_1(siw_base_qp_of(qp), &wr);
}

/* ---- execution ------------------------------------------------------------------------------- */

/*
 * Tears the QP down if TCP has not accepted all octets of a Read Response from the memory of the
 * STag, because the response cannot be recalled. Returns whether the QP was torn down.
 */
static bool qp_abort_if_sending_from_stag(struct siw_base_qp *base, uint32_t stag)
{
	if (!siw_class_of(base)->is_sending || !siw_class_of(base)->is_sending(base, stag))
		return false;
	siw_advance_teardown(base, SIW_RESETTING);
	return true;
}

int siw_qp_mw_execute_request(struct siw_base_qp *base, struct siw_wqe *wqe)
{
	int r;

	if (wqe->opcode == SIW_WR_LOCAL_INV) {
		if (siw_mem_stag_invalidate(base->qp.ctx->mem, wqe->op.rkey,
					    siw_device_owner(&base->qp)))
			return SIW_WC_LOC_PROT_ERR;
		/* The STag belongs to the QP, so no peer of another QP can be using it. */
		return qp_abort_if_sending_from_stag(base, wqe->op.rkey) ? -EINPROGRESS : 0;
	}
	if (base->revoke.due)
		return -EINPROGRESS;
	r = siw_device_mw_bind(&base->qp, &wqe->bind, &base->revoke.rest);
	if (r == -EINPROGRESS) {
		base->revoke.due = SIW_REVOKE_DUE;
		base->revoke.wqe = wqe;
		qp_abort_if_sending_from_stag(base, base->revoke.rest.stag);
	}
	return r;
}

void siw_qp_mark_local_request_done(struct siw_base_qp *base)
{
	struct siw_wqe *wqe =
		siw_qp_flow_finish_current_request(base, &base->flow, SIW_WQE_DONE, SIW_WC_SUCCESS);

	if (siw_class_of(base)->did_local)
		siw_class_of(base)->did_local(base, wqe);
}

void siw_qp_mw_end_replaced_binding(struct siw_base_qp *base, bool last)
{
	struct siw_revoke revoke;
	bool ended;

	siw_lock(&base->qp.send_lock);
	revoke = base->revoke;
	if (revoke.due == SIW_REVOKE_DUE)
		base->revoke.due = SIW_REVOKE_BEGUN;
	siw_unlock(&base->qp.send_lock);
	if (revoke.due == SIW_REVOKE_NONE)
		return;
	if (revoke.due == SIW_REVOKE_DUE)
		ended = siw_device_mw_end_replaced_binding(base->qp.lane, &revoke.rest,
							   last ? &base->qp : NULL);
	else
		ended = siw_device_mw_replaced_binding_has_ended(base->qp.ctx, &revoke.rest);
	if (!ended && last)
		siw_device_mw_stop_waiting_for_binding_end(base->qp.ctx, &revoke.rest);
	if (!ended)
		return;
	siw_lock(&base->qp.send_lock);
	/* The bind request may have been flushed while send_lock was not held. */
	if (base->revoke.due == SIW_REVOKE_BEGUN) {
		base->revoke.due = SIW_REVOKE_NONE;
		if (base->flow.next == revoke.wqe)
			siw_qp_mark_local_request_done(base);
	}
	siw_unlock(&base->qp.send_lock);
	siw_device_add_unsent_qp(&base->qp);
}
