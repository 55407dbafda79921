/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ends all posted requests of a QP: flushes them with completions, or drops them without
 * completions.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/*
 * Ends every send request, discards the protocol state of the requests, and sets the teardown state
 * to `to`. Returns with send_lock held.
 */
static void sq_end_requests(struct siw_base_qp *base, bool report, enum siw_teardown to)
{
	siw_qp_mw_end_replaced_binding(base, true);
	siw_device_remove_unsent_qp(&base->qp);
	siw_lock(&base->qp.send_lock);
	base->revoke.due = SIW_REVOKE_NONE;
	siw_qp_sq_flush_or_drop_requests(base, report);
	if (siw_class_of(base)->discard_state)
		siw_class_of(base)->discard_state(base);
	siw_set_teardown(base, to);
}

void siw_qp_flush(struct siw_base_qp *base)
{
	const struct siw_qp_class *class = siw_class_of(base);
	struct siw_qp *qp = &base->qp;
	uint64_t wr_id;

	sq_end_requests(base, true, SIW_FLUSHED);
	siw_unlock(&qp->send_lock);

	siw_lock(&qp->recv_lock);
	/*
	 * A partially received message has already consumed a receive, which must be flushed, too.
	 */
	if (class->take_recv && class->take_recv(base, &wr_id) == 1)
		siw_qp_add_flushed_recv_completion(base, wr_id);
	while (!qp->srq && siw_mem_buffer_queue_pop_unfilled(base->recvs, &wr_id) == 1)
		siw_qp_add_flushed_recv_completion(base, wr_id);
	siw_unlock(&qp->recv_lock);
	if (qp->srq) {
		siw_device_srq_raise_limit_event_if_low(qp->srq);
		siw_device_raise_async_event(&base->qp.async, SIW_EVENT_QP_LAST_WQE_REACHED);
	}
}

void siw_qp_drop_requests_for_reset(struct siw_base_qp *base)
{
	const struct siw_qp_class *class = siw_class_of(base);
	struct siw_qp *qp = &base->qp;
	uint64_t wr_id;

	sq_end_requests(base, false, SIW_ALIVE);
	if (class->take_recv)
		class->take_recv(base, &wr_id);
	base->draining = false;
	base->rate_limit = 0;
	siw_lock(&qp->recv_lock);
	while (!qp->srq && siw_mem_buffer_queue_pop_unfilled(base->recvs, &wr_id) == 1)
		;
	base->rq_done = base->rq_posted;
	siw_device_cq_remove_completions_of_qp(qp->send_cq, qp);
	siw_device_cq_remove_completions_of_qp(qp->recv_cq, qp);
	/*
	 * purging the completions of Write-Records counts them as polled, which may have marked the
	 * QP as having unsent requests
	 */
	siw_device_remove_unsent_qp(qp);
	atomic_store(&qp->sq_freed, base->sq_tail);
	atomic_store(&qp->rq_freed, base->rq_posted);
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
}

/* ---- actions of the state table -------------------------------------------------------------- */

static void sq_begin_draining(struct siw_base_qp *base, bool notify)
{
	siw_lock(&base->qp.send_lock);
	base->draining = true;
	base->sqd_notify = notify;
	siw_class_of(base)->run(base);
	siw_qp_raise_event_if_drained(base);
	siw_unlock(&base->qp.send_lock);
	/* The next progress rounds send the requests that are not sent yet. */
	siw_qp_schedule_sending_turn(base);
}

static void sq_end_draining(struct siw_base_qp *base)
{
	enum siw_run run;

	siw_lock(&base->qp.send_lock);
	if (siw_class_of(base)->resume)
		siw_class_of(base)->resume(base);
	run = siw_class_of(base)->run(base);
	siw_unlock(&base->qp.send_lock);
	if (run != SIW_RUN_DONE)
		siw_qp_schedule_sending_turn(base);
}

void siw_qp_carry_out_transition_action(struct siw_base_qp *base, int action, bool notify)
{
	const struct siw_qp_class *class = siw_class_of(base);

	if (action == SIW_QPA_DRAIN) {
		sq_begin_draining(base, notify);
	} else if (action == SIW_QPA_RESUME) {
		sq_end_draining(base);
	} else if (action == SIW_QPA_FLUSH) {
		class->end(base);
	} else if (action == SIW_QPA_FORGET) {
		base->comm_established = false;
		if (class->release)
			class->release(base);
		siw_qp_drop_requests_for_reset(base);
	}
	if (class->receive)
		class->receive(base);
}

void siw_qp_move_to_err(struct siw_base_qp *base, int type)
{
	int action = siw_qp_apply_state_event(base, SIW_QPE_FAILED);

	if (action == SIW_QPA_FLUSH)
		siw_device_raise_async_event(&base->qp.async, type);
	siw_qp_carry_out_transition_action(base, action, false);
}

void siw_qp_fail(struct siw_qp *qp, int status)
{
	(void)status;
	siw_qp_move_to_err(siw_base_qp_of(qp), SIW_EVENT_QP_FATAL);
}

void siw_qp_dgram_send_delayed_at_exit(struct siw_qp *qp)
{
	siw_qp_send_delayed_requests(siw_base_qp_of(qp));
}

enum siw_turn siw_qp_run_result_to_turn_result(enum siw_run left, bool progressed)
{
	if (left == SIW_RUN_BLOCKED)
		return progressed ? SIW_TURN_BLOCKED : SIW_TURN_STARVED;
	return left == SIW_RUN_MORE ? SIW_TURN_MORE : SIW_TURN_DONE;
}

enum siw_turn siw_qp_make_sending_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	enum siw_run left;
	uint32_t head;
	bool due;

	(void)round;
	siw_lock(&qp->send_lock);
	head = base->sq_head;
	left = siw_class_of(base)->run(base);
	head -= base->sq_head;
	due = base->revoke.due;
	siw_unlock(&qp->send_lock);
	if (__builtin_expect(due, 0))
		siw_qp_mw_end_replaced_binding(base, false);
	return siw_qp_run_result_to_turn_result(left, head);
}

bool siw_qp_still_uses_object(struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses, const void *what)
{
	bool ran = false, busy;

	siw_lock(&base->qp.send_lock);
	busy = siw_qp_sq_uses_object(base, uses, what);
	if (busy && base->qp.state == SIW_QPS_RTS) {
		ran = true;
		siw_class_of(base)->run(base);
		busy = siw_qp_sq_uses_object(base, uses, what);
	}
	siw_unlock(&base->qp.send_lock);
	if (ran) /* unsent requests may be left, or a failure has to be handled */
		siw_device_add_unsent_qp(&base->qp);
	return busy;
}

bool siw_qp_uses_lkey(struct siw_qp *qp, uint32_t lkey)
{
	return siw_qp_still_uses_object(siw_base_qp_of(qp), siw_qp_wqe_uses_lkey, &lkey);
}

bool siw_qp_has_empty_sq(const struct siw_qp *qp)
{
	const struct siw_base_qp *base = siw_base_qp_of(qp);

	return base->sq_head == base->sq_tail;
}
