/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queue pairs, moved through their states by the table. */
#include "qp/qp_impl.h"

/* ---- states ---------------------------------------------------------------------------------- */

int siw_qp_step(struct siw_wq *wq, int event)
{
	int action, next;

	/* Under every lock that reads it, so that a post sees the old state or the new. */
	siw_lock(&wq->qp.send_lock);
	siw_lock(&wq->qp.recv_lock);
	next = siw_qp_state_next(siw_class_of(wq)->type, wq->qp.state, event, &action);
	if (next >= 0)
		atomic_store(&wq->qp.state, next);
	if (next != SIW_QPS_SQD)
		wq->draining = false;
	siw_unlock(&wq->qp.recv_lock);
	siw_unlock(&wq->qp.send_lock);
	return next < 0 ? next : action;
}

void siw_qp_send_failed(struct siw_wq *wq)
{
	int action, next = siw_qp_state_next(siw_class_of(wq)->type, wq->qp.state,
					     SIW_QPE_SEND_FAILED, &action);

	if (next < 0)
		return;
	atomic_store(&wq->qp.state, next);
	wq->draining = false;
}

void siw_qp_drained(struct siw_wq *wq)
{
	bool in_order = !siw_class_of(wq)->unordered;

	if (!wq->draining || wq->begun || (in_order && wq->sq_head != wq->sq_next))
		return;
	wq->draining = false;
	if (wq->sqd_notify)
		siw_verbs_async_raise(&wq->qp.async, SIW_EVENT_SQ_DRAINED);
}

int siw_qp_event_of(const struct siw_wire_err *err)
{
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_PROTECTION)
		return SIW_EVENT_QP_ACCESS_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_TAGGED_BUFFER)
		return SIW_EVENT_QP_ACCESS_ERR;
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_OPERATION)
		return SIW_EVENT_QP_REQ_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_UNTAGGED_BUFFER)
		return SIW_EVENT_QP_REQ_ERR;
	return SIW_EVENT_QP_FATAL;
}

void siw_qp_wake(struct siw_wq *wq)
{
	siw_verbs_mark_unsent(&wq->qp);
	siw_verbs_nudge(wq->qp.ctx);
}

void siw_qp_run_and_mark(struct siw_wq *wq)
{
	enum siw_run run;

	siw_lock(&wq->qp.send_lock);
	run = siw_class_of(wq)->run(wq);
	siw_unlock(&wq->qp.send_lock);
	if (run != SIW_RUN_DONE)
		siw_verbs_mark_unsent(&wq->qp);
}

void siw_qp_finish(struct siw_wq *wq)
{
	siw_lock(&wq->qp.send_lock);
	siw_class_of(wq)->run(wq);
	siw_unlock(&wq->qp.send_lock);
}

enum siw_turn siw_qp_turn_of(enum siw_run left, bool progressed)
{
	if (left == SIW_RUN_BLOCKED)
		return progressed ? SIW_TURN_BLOCKED : SIW_TURN_STARVED;
	return left == SIW_RUN_MORE ? SIW_TURN_MORE : SIW_TURN_DONE;
}

bool siw_qp_still_uses(struct siw_wq *wq, bool (*uses)(struct siw_wq *wq, uint32_t lkey),
		       uint32_t lkey)
{
	bool ran = false, busy;

	siw_lock(&wq->qp.send_lock);
	busy = uses(wq, lkey);
	if (busy && wq->qp.state == SIW_QPS_RTS) {
		ran = true;
		siw_class_of(wq)->run(wq);
		busy = uses(wq, lkey);
	}
	siw_unlock(&wq->qp.send_lock);
	if (ran) /* with what is left, or with what went wrong */
		siw_verbs_mark_unsent(&wq->qp);
	return busy;
}
