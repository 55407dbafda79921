/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The end of all that is posted: flushed with completions, or dropped without. */
#include <errno.h>

#include "qp/qp_impl.h"

static void end_sends(struct siw_wq *wq)
{
	siw_qp_mw_settle(wq, true);
	siw_verbs_forget_unsent(&wq->qp);
	if (siw_class_of(wq)->clear_records)
		siw_class_of(wq)->clear_records(wq);
}

void siw_qp_flush(struct siw_wq *wq)
{
	const struct siw_qp_class *class = siw_class_of(wq);
	struct siw_qp *qp = &wq->qp;
	uint64_t wr_id;

	end_sends(wq);
	siw_lock(&qp->send_lock);
	wq->revoke.due = SIW_REVOKE_NONE;
	if (class->abandon)
		class->abandon(wq, true);
	while (wq->sq_head != wq->sq_tail) {
		struct siw_wqe *wqe = siw_qp_wqe(wq, wq->sq_head);

		int status = wqe->state == SIW_WQE_DONE ? wqe->status : SIW_WC_WR_FLUSH_ERR;

		siw_qp_wqe_finish(wq, wqe, status, status == SIW_WC_SUCCESS ? 0 : wq->wire_err);
	}
	wq->sq_next = wq->sq_head;
	siw_set_teardown(wq, SIW_FLUSHED);
	siw_unlock(&qp->send_lock);

	siw_lock(&qp->recv_lock);
	/* A message that broke off in its middle has its receive already. */
	if (class->take_recv && class->take_recv(wq, &wr_id) == 1)
		siw_qp_flush_recv(wq, wr_id);
	while (!qp->srq && siw_mem_queue_take(wq->recvs, &wr_id) == 1)
		siw_qp_flush_recv(wq, wr_id);
	siw_unlock(&qp->recv_lock);
	if (qp->srq) {
		siw_verbs_srq_taken(qp->srq);
		siw_verbs_async_raise(&wq->qp.async, SIW_EVENT_QP_LAST_WQE_REACHED);
	}
}

void siw_qp_forget(struct siw_wq *wq)
{
	const struct siw_qp_class *class = siw_class_of(wq);
	struct siw_qp *qp = &wq->qp;
	uint64_t wr_id;

	end_sends(wq);
	siw_lock(&qp->send_lock);
	wq->revoke.due = SIW_REVOKE_NONE;
	if (class->abandon)
		class->abandon(wq, false);
	/* Where windows are bound, requests are in the ring and in order. */
	for (uint32_t i = wq->sq_next; class->binds && i != wq->sq_tail; i++)
		siw_qp_let_go(wq, siw_qp_wqe(wq, i));
	if (class->take_recv)
		class->take_recv(wq, &wr_id);
	siw_set_teardown(wq, SIW_ALIVE);
	wq->sq_head = wq->sq_next = wq->sq_tail;
	wq->draining = false;
	siw_lock(&qp->recv_lock);
	while (!qp->srq && siw_mem_queue_take(wq->recvs, &wr_id) == 1)
		;
	wq->rq_done = wq->rq_posted;
	/* All slots are free; completions that wait to be polled must not take one back. */
	siw_verbs_cq_rebase(qp->send_cq, qp, wq->sq_tail, wq->rq_posted);
	siw_verbs_cq_rebase(qp->recv_cq, qp, wq->sq_tail, wq->rq_posted);
	atomic_store(&qp->sq_freed, wq->sq_tail);
	atomic_store(&qp->rq_freed, wq->rq_posted);
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
}

/* ---- what a step asks for -------------------------------------------------------------------- */

static void drain(struct siw_wq *wq, bool notify)
{
	siw_lock(&wq->qp.send_lock);
	wq->draining = true;
	wq->sqd_notify = notify;
	if (siw_class_of(wq)->drain)
		siw_class_of(wq)->drain(wq);
	siw_qp_drained(wq);
	siw_unlock(&wq->qp.send_lock);
	/* Whatever is not out yet, the next rounds of progress see to. */
	siw_qp_wake(wq);
}

static void resume(struct siw_wq *wq)
{
	enum siw_run run;

	siw_lock(&wq->qp.send_lock);
	if (siw_class_of(wq)->resume)
		siw_class_of(wq)->resume(wq);
	run = siw_class_of(wq)->run(wq);
	siw_unlock(&wq->qp.send_lock);
	if (run != SIW_RUN_DONE)
		siw_qp_wake(wq);
}

void siw_qp_act(struct siw_wq *wq, int action, bool notify)
{
	const struct siw_qp_class *class = siw_class_of(wq);

	if (action == SIW_QPA_DRAIN) {
		drain(wq, notify);
	} else if (action == SIW_QPA_RESUME) {
		resume(wq);
	} else if (action == SIW_QPA_FLUSH) {
		class->end(wq);
	} else if (action == SIW_QPA_FORGET) {
		wq->heard = false;
		if (class->release)
			class->release(wq);
		siw_qp_forget(wq);
	}
	if (class->receive)
		class->receive(wq);
}

void siw_qp_abort(struct siw_wq *wq, int type)
{
	int action = siw_qp_step(wq, SIW_QPE_FAILED);

	if (action == SIW_QPA_FLUSH)
		siw_verbs_async_raise(&wq->qp.async, type);
	siw_qp_act(wq, action, false);
}

void siw_qp_fail(struct siw_qp *qp, int status)
{
	(void)status;
	siw_qp_abort(siw_wq_of(qp), SIW_EVENT_QP_FATAL);
}

void siw_qp_leave(struct siw_qp *qp)
{
	siw_qp_finish(siw_wq_of(qp));
}
