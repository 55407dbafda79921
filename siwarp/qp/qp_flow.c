/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sending on RC, on UC, and to each peer of RD. The requests of a flow begin in order and complete
 * in order. A request waits in its flow until it may begin, and then until the peer or the socket
 * has accepted it, or until its response has arrived. struct siw_qp_class has the functions that
 * differ by QP type.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/* ---- posting --------------------------------------------------------------------------------- */

int64_t siw_qp_check_send_request(struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	return siw_qp_is_local(wr->opcode) ? siw_qp_mw_check_request(base, wr)
					   : siw_qp_op_check(base, wr);
}

int siw_qp_post_send_request(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait)
{
	int64_t length;
	struct siw_wqe *wqe;

	/*
	 * The parameter wait (the request may be delayed for a batch) has no effect on RC and UC:
	 * each request stays in the queue until it completes.
	 */
	(void)wait;
	if (__builtin_expect(siw_qp_is_local(wr->opcode), 0))
		return siw_qp_mw_post_request(base, wr, SIW_MW_TYPE_2);
	length = siw_qp_op_check(base, wr);
	if (length < 0)
		return (int)length;
	wqe = siw_qp_sq_append(base, &base->flow, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_full_sq(base);
	siw_qp_op_store_in_wqe(wqe, wr);
	if (__builtin_expect(base->qp.state >= SIW_QPS_SQE, 0))
		siw_qp_flush_late_send(base);
	return 0;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static uint32_t flow_max_outstanding_reads(const struct siw_base_qp *base,
					   const struct siw_flow *flow)
{
	return flow->peer ? siw_rdmap_rd_max_outstanding_reads(flow->stream) : base->reads_max;
}

static bool flow_may_begin_next_request(const struct siw_base_qp *base, const struct siw_flow *flow)
{
	const struct siw_wqe *wqe = flow->next;

	return wqe && base->qp.state == SIW_QPS_RTS && siw_teardown_of(base) == SIW_ALIVE &&
	       !((wqe->flags & SIW_SEND_FENCE) && flow->reads_out) &&
	       !(siw_qp_awaits_response(wqe) &&
		 flow->reads_out >= flow_max_outstanding_reads(base, flow));
}

/*
 * Begins a local request, which is executed immediately. Returns the same values as the member
 * begin of struct siw_qp_class.
 */
static __attribute__((cold, noinline)) int flow_begin_local(struct siw_base_qp *base,
							    struct siw_wqe *wqe)
{
	int r = siw_qp_mw_execute_request(base, wqe);

	return r == -EINPROGRESS ? -EAGAIN : r;
}

/*
 * Handles the failure of the flow's next request to begin. err: -errno, or an enum siw_wc_status.
 */
static __attribute__((cold, noinline)) void
flow_handle_begin_failure(struct siw_base_qp *base, struct siw_flow *flow, int err)
{
	int status = err > 0 ? err : (int)siw_qp_wc_status_of_send_error(base, err);

	siw_qp_flow_finish_current_request(base, flow, SIW_WQE_DONE, status);
	siw_class_of(base)->failed(base, flow, status);
}

int siw_qp_flow_send_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	const struct siw_qp_class *class = siw_class_of(base);
	const struct siw_wqe *stuck = NULL;
	uint64_t octets = 0;
	int r;

	for (;;) {
		int err = 0;

		while (flow_may_begin_next_request(base, flow) && octets < class->turn_octets) {
			struct siw_wqe *wqe = flow->next;
			bool local = __builtin_expect(siw_qp_is_local(wqe->opcode), 0);

			octets += wqe->op.length;
			err = local ? flow_begin_local(base, wqe) : class->begin(base, flow, wqe);
			if (err)
				break;
			if (local)
				siw_qp_mark_local_request_done(base);
			else
				siw_qp_flow_finish_current_request(base, flow, SIW_WQE_BEGUN,
								   SIW_WC_SUCCESS);
			flow->reads_out += siw_qp_awaits_response(wqe);
		}
		if (__builtin_expect(err && err != -EAGAIN, 0))
			flow_handle_begin_failure(base, flow, err);
		if (__builtin_expect(siw_teardown_of(base) == SIW_RESETTING, 0))
			return 0;
		r = class->transmit(base, flow);
		if (r != 1 || !flow_may_begin_next_request(base, flow))
			return r;
		if (octets >= class->turn_octets)
			return 0;
		/*
		 * The lower layer had no room when the request could not begin, and has sent all
		 * its data since, so no other event would make the request begin. If the request
		 * cannot begin now either, it waits for the completion of a Read, after which
		 * siw_qp_flow_send_requests() is called again.
		 */
		if (flow->next == stuck)
			return r;
		stuck = flow->next;
	}
}

/* ---- completing ------------------------------------------------------------------------------ */

/*
 * Whether the request has failed in a way that prevents later requests of its flow from completing
 * successfully. On RD, later requests do complete; and a request that the network refused counts as
 * lost.
 */
static bool does_failure_fail_later_requests(const struct siw_base_qp *base,
					     const struct siw_wqe *wqe)
{
	return wqe->status != SIW_WC_SUCCESS && wqe->status != SIW_WC_GENERAL_ERR &&
	       !siw_class_of(base)->many_flows;
}

/*
 * Handles the local failure of the oldest request, when all earlier requests are complete: moves
 * the QP to SQE if its type has that state, or else ends the connection.
 */
static __attribute__((cold, noinline)) void flow_fail_oldest(struct siw_base_qp *base,
							     struct siw_flow *flow)
{
	/*
	 * The state changes before the completion is queued, so that a program that polls the
	 * completion sees the new state.
	 */
	if (!siw_qp_move_to_sqe(base)) {
		siw_advance_teardown(base, SIW_BROKEN);
		return;
	}
	siw_set_teardown(base, SIW_ALIVE);
	siw_qp_flow_flush_requests(base, flow, SIW_WC_WR_FLUSH_ERR);
	siw_class_of(base)->discard_state(base);
}

void siw_qp_reap_finished_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	struct siw_wqe *wqe;

	while ((wqe = flow->first) && wqe->state != SIW_WQE_POSTED) {
		if (wqe->state == SIW_WQE_BEGUN &&
		    (siw_qp_awaits_response(wqe) || wqe->op.stamp.end > flow->accepted))
			return;
		if (does_failure_fail_later_requests(base, wqe)) {
			if (siw_teardown_of(base) == SIW_FAILING)
				flow_fail_oldest(base, flow);
			/* in other teardown states, the flush of the QP completes the request */
			return;
		}
		siw_qp_flow_complete_oldest_request(base, flow, wqe->status);
	}
}

enum siw_run siw_qp_flow_finish_sending_turn(struct siw_base_qp *base, int r, bool blocked)
{
	int teardown = siw_teardown_of(base);

	if (__builtin_expect(base->draining, 0))
		siw_qp_raise_event_if_drained(base);
	if (teardown == SIW_BROKEN || teardown == SIW_RESETTING ||
	    base->revoke.due == SIW_REVOKE_DUE)
		return SIW_RUN_MORE;
	/* A dead stream is detected and handled by the receiving side. */
	/*
	 * A flow that waits until other lanes have ended a replaced binding is blocked: the last of
	 * these lanes leaves work for this lane.
	 */
	if (r)
		return base->revoke.due == SIW_REVOKE_BEGUN ? SIW_RUN_BLOCKED : SIW_RUN_DONE;
	return blocked ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
}

struct siw_wqe *siw_qp_flow_find_quoted_request(const struct siw_flow *flow,
						const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe = ev->quoted ? flow->first : NULL;

	while (wqe && !siw_qp_is_request_quoted(wqe, ev))
		wqe = wqe->chain;
	return wqe;
}
