/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ends all posted work, by flushing it with completions or by dropping it without. */
#include <errno.h>

#include "qp/qp_impl.h"

/*
 * Ends every send request, then discards the protocol's state for them, and sets the teardown
 * state. Returns with send_lock held.
 */
static void sq_end_requests(struct siw_wq *wq, bool report, enum siw_teardown to)
{
	siw_qp_mw_settle(wq, true);
	siw_device_forget_unsent(&wq->qp);
	siw_lock(&wq->qp.send_lock);
	wq->revoke.due = SIW_REVOKE_NONE;
	siw_qp_sq_end(wq, report);
	if (siw_class_of(wq)->abandon)
		siw_class_of(wq)->abandon(wq);
	siw_set_teardown(wq, to);
}

void siw_qp_flush(struct siw_wq *wq)
{
	const struct siw_qp_class *class = siw_class_of(wq);
	struct siw_qp *qp = &wq->qp;
	uint64_t wr_id;

	sq_end_requests(wq, true, SIW_FLUSHED);
	siw_unlock(&qp->send_lock);

	siw_lock(&qp->recv_lock);
	/* An unfinished message has already consumed its receive. */
	if (class->take_recv && class->take_recv(wq, &wr_id) == 1)
		siw_qp_flush_recv(wq, wr_id);
	while (!qp->srq && siw_mem_queue_take(wq->recvs, &wr_id) == 1)
		siw_qp_flush_recv(wq, wr_id);
	siw_unlock(&qp->recv_lock);
	if (qp->srq) {
		siw_device_srq_taken(qp->srq);
		siw_device_async_raise(&wq->qp.async, SIW_EVENT_QP_LAST_WQE_REACHED);
	}
}

void siw_qp_drop_work(struct siw_wq *wq)
{
	const struct siw_qp_class *class = siw_class_of(wq);
	struct siw_qp *qp = &wq->qp;
	uint64_t wr_id;

	sq_end_requests(wq, false, SIW_ALIVE);
	if (class->take_recv)
		class->take_recv(wq, &wr_id);
	wq->draining = false;
	wq->rate_limit = 0;
	siw_lock(&qp->recv_lock);
	while (!qp->srq && siw_mem_queue_take(wq->recvs, &wr_id) == 1)
		;
	wq->rq_done = wq->rq_posted;
	siw_device_cq_purge(qp->send_cq, qp);
	siw_device_cq_purge(qp->recv_cq, qp);
	/*
	 * purging completions of Write-Records counts them as polled, which may have marked the QP
	 */
	siw_device_forget_unsent(qp);
	atomic_store(&qp->sq_freed, wq->sq_tail);
	atomic_store(&qp->rq_freed, wq->rq_posted);
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
}

/* ---- actions of the state table -------------------------------------------------------------- */

static void sq_drain(struct siw_wq *wq, bool notify)
{
	siw_lock(&wq->qp.send_lock);
	wq->draining = true;
	wq->sqd_notify = notify;
	siw_class_of(wq)->run(wq);
	siw_qp_drained(wq);
	siw_unlock(&wq->qp.send_lock);
	/* The following progress rounds send the requests that are not sent yet. */
	siw_qp_wake(wq);
}

static void sq_resume(struct siw_wq *wq)
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
		sq_drain(wq, notify);
	} else if (action == SIW_QPA_RESUME) {
		sq_resume(wq);
	} else if (action == SIW_QPA_FLUSH) {
		class->end(wq);
	} else if (action == SIW_QPA_FORGET) {
		wq->heard = false;
		if (class->release)
			class->release(wq);
		siw_qp_drop_work(wq);
	}
	if (class->receive)
		class->receive(wq);
}

void siw_qp_abort(struct siw_wq *wq, int type)
{
	int action = siw_qp_step(wq, SIW_QPE_FAILED);

	if (action == SIW_QPA_FLUSH)
		siw_device_async_raise(&wq->qp.async, type);
	siw_qp_act(wq, action, false);
}

void siw_qp_fail(struct siw_qp *qp, int status)
{
	(void)status;
	siw_qp_abort(siw_wq_of(qp), SIW_EVENT_QP_FATAL);
}

void siw_qp_dgram_leave(struct siw_qp *qp)
{
	siw_qp_send_delayed(siw_wq_of(qp));
}

enum siw_turn siw_qp_turn_of(enum siw_run left, bool progressed)
{
	if (left == SIW_RUN_BLOCKED)
		return progressed ? SIW_TURN_BLOCKED : SIW_TURN_STARVED;
	return left == SIW_RUN_MORE ? SIW_TURN_MORE : SIW_TURN_DONE;
}

enum siw_turn siw_qp_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_wq *wq = siw_wq_of(qp);
	enum siw_run left;
	uint32_t head;
	bool due;

	(void)round;
	siw_lock(&qp->send_lock);
	head = wq->sq_head;
	left = siw_class_of(wq)->run(wq);
	head -= wq->sq_head;
	due = wq->revoke.due;
	siw_unlock(&qp->send_lock);
	if (__builtin_expect(due, 0))
		siw_qp_mw_settle(wq, false);
	return siw_qp_turn_of(left, head);
}

bool siw_qp_still_uses(struct siw_wq *wq, siw_qp_wqe_uses_fn *uses, const void *what)
{
	bool ran = false, busy;

	siw_lock(&wq->qp.send_lock);
	busy = siw_qp_sq_uses(wq, uses, what);
	if (busy && wq->qp.state == SIW_QPS_RTS) {
		ran = true;
		siw_class_of(wq)->run(wq);
		busy = siw_qp_sq_uses(wq, uses, what);
	}
	siw_unlock(&wq->qp.send_lock);
	if (ran) /* requests may be left, or a failure has to be handled */
		siw_device_mark_unsent(&wq->qp);
	return busy;
}

bool siw_qp_uses_key(struct siw_qp *qp, uint32_t lkey)
{
	return siw_qp_still_uses(siw_wq_of(qp), siw_qp_wqe_uses_key, &lkey);
}

bool siw_qp_is_quiet(const struct siw_qp *qp)
{
	const struct siw_wq *wq = siw_wq_of(qp);

	return wq->sq_head == wq->sq_tail;
}
