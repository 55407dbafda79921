/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_events.c - completion events and asynchronous events. */
#include "abi/ibverbs/abi.h"

#define WAIT (-1) /* time-out: wait without limit, or not at all if the descriptor has O_NONBLOCK */

static int event_set_errno_from_result(const char *call, int r)
{
	if (r == 0)
		return 0;
	abi_set_errno_and_log_refusal(call, -r);
	return -1;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct siw_cq *siw;
	void *user;
	int r;

	if (!abi_is_live_object(ABI_CHANNEL, channel) || !abi_is_given(cq, "cq") ||
	    !abi_is_given(cq_context, "cq_context"))
		return event_set_errno_from_result(__func__, -EINVAL);
	do
		r = siw_get_cq_event(((struct abi_channel *)channel)->siw, &siw, &user, WAIT);
	while (r == -EINTR && abi_should_restart_interrupted_wait());
	if (r < 0)
		return event_set_errno_from_result(__func__, r);
	*cq = user;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	if (abi_is_live_object(ABI_CQ, cq))
		siw_ack_cq_events(abi_cq_of(cq)->siw, nevents);
}

/*
 * Returns the kind of object to which an event refers, which determines the member of
 * event.element.
 */
static enum abi_kind event_object_kind(int event_type)
{
	switch (event_type) {
	case IBV_EVENT_CQ_ERR:
		return ABI_CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
	case SIW_EVENT_QP_ERR_QUEUED:
	case SIW_EVENT_PEER_RESTARTED:
	case SIW_EVENT_CONGESTED:
		return ABI_QP;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return ABI_SRQ;
	default:
		return ABI_CONTEXT; /* an event of the port belongs to the context */
	}
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct siw_async_event taken;
	int r;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(event, "event"))
		return event_set_errno_from_result(__func__, -EINVAL);
	do
		r = siw_get_async_event(abi_context_of(context)->siw, &taken, WAIT);
	while (r == -EINTR && abi_should_restart_interrupted_wait());
	if (r < 0)
		return event_set_errno_from_result(__func__, r);
	event->event_type = (enum ibv_event_type)taken.event_type;
	switch (event_object_kind(taken.event_type)) {
	case ABI_CQ:
	case ABI_QP:
	case ABI_SRQ:
		/*
		 * The engine's user pointer is the verbs object, which begins with the public
		 * struct.
		 */
		event->element.cq = taken.user_context;
		break;
	default:
		event->element.port_num = taken.element.port_num;
	}
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct siw_async_event taken = { 0 };

	if (!event)
		return;
	taken.event_type = (int)event->event_type;
	switch (event_object_kind(taken.event_type)) {
	case ABI_CQ:
		if (!abi_is_live_object(ABI_CQ, event->element.cq))
			return;
		taken.element.cq = abi_cq_of(event->element.cq)->siw;
		break;
	case ABI_QP:
		if (!abi_is_live_object(ABI_QP, event->element.qp))
			return;
		taken.element.qp = abi_qp_of(event->element.qp)->siw;
		break;
	case ABI_SRQ:
		if (!abi_is_live_object(ABI_SRQ, event->element.srq))
			return;
		taken.element.srq = ((struct abi_srq *)event->element.srq)->siw;
		break;
	default:
		taken.element.port_num = event->element.port_num;
	}
	siw_ack_async_event(&taken);
}
