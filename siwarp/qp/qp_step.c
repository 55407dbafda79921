/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* State transitions of queue pairs according to the state table. */
#include "qp/qp_impl.h"

/* ---- states ---------------------------------------------------------------------------------- */

int siw_qp_apply_state_event(struct siw_base_qp *base, int event)
{
	int action, next;

	/*
	 * The state changes under both locks that posts may hold, so that a post sees either the
	 * old or the new state.
	 */
	siw_lock(&base->qp.send_lock);
	siw_lock(&base->qp.recv_lock);
	next = siw_qp_find_next_state(siw_class_of(base)->type, base->qp.state, event, &action);
	if (next >= 0)
		atomic_store(&base->qp.state, next);
	if (next != SIW_QPS_SQD)
		base->draining = false;
	siw_unlock(&base->qp.recv_lock);
	siw_unlock(&base->qp.send_lock);
	return next < 0 ? next : action;
}

bool siw_qp_move_to_sqe(struct siw_base_qp *base)
{
	int action, next = siw_qp_find_next_state(siw_class_of(base)->type, base->qp.state,
						  SIW_QPE_SEND_FAILED, &action);

	if (next < 0)
		return false;
	atomic_store(&base->qp.state, next);
	base->draining = false;
	return true;
}

void siw_qp_raise_event_if_drained(struct siw_base_qp *base)
{
	if (!base->draining || base->begun)
		return;
	base->draining = false;
	if (base->sqd_notify)
		siw_device_raise_async_event(&base->qp.async, SIW_EVENT_SQ_DRAINED);
}

int siw_qp_async_event_of_error(const struct siw_wire_err *err)
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

void siw_qp_schedule_sending_turn(struct siw_base_qp *base)
{
	siw_device_add_unsent_qp(&base->qp);
	siw_device_wake_sleeping_thread(base->qp.lane);
}

void siw_qp_run_sq_and_mark_unsent(struct siw_base_qp *base)
{
	enum siw_run run;

	siw_lock(&base->qp.send_lock);
	run = siw_class_of(base)->run(base);
	siw_unlock(&base->qp.send_lock);
	if (run != SIW_RUN_DONE)
		siw_device_add_unsent_qp(&base->qp);
}

void siw_qp_send_delayed_requests(struct siw_base_qp *base)
{
	siw_lock(&base->qp.send_lock);
	siw_class_of(base)->run(base);
	siw_unlock(&base->qp.send_lock);
}

int siw_qp_prepare_transition(struct siw_base_qp *base, int event, const struct siw_qp_attr *attr,
			      int mask)
{
	const struct siw_qp_class *class = siw_class_of(base);
	int err = class->prepare ? class->prepare(base, event, attr, mask) : 0;

	/*
	 * Requests that were delayed for a batch count as begun, so they are sent before the state
	 * changes.
	 */
	if (!err && class->wait_octets)
		siw_qp_send_delayed_requests(base);
	return err;
}
