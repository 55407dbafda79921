/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs: sending, delivery counts, receiver not ready, closing, and the events of the
 * stream. The sections of the file are in call order.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/os.h"
#include "qp/rc/qp_rc.h"
#include "rd/rd_rnr.h"

/* ==== sending ================================================================================= */

/*
 * Whether the response to the request, a Read or an atomic, shows that the peer has received the
 * earlier Sends.
 */
static inline bool response_confirms_sends(const struct siw_wqe *wqe)
{
	return wqe->opcode != SIW_WR_RDMA_READ || !wqe->op.length;
}

/*
 * Sending on RC queue pairs: requests are passed to RDMAP while there is a stream; with persona
 * roce, the sending side also finds out which requests the peer has received.
 */

/*
 * Minimum length, in octets, of a request that is confirmed by a Read of its own, not together with
 * later requests.
 */
#define LONG_OCTETS (64u << 10)

static bool rc_is_signaled(const struct siw_base_qp *base, const struct siw_wqe *wqe)
{
	return base->sig_all || (wqe->flags & SIW_SEND_SIGNALED);
}

/* Returns the number of requests begun since the QP was created. */
static uint32_t rc_count_of_requests_begun(const struct siw_base_qp *base)
{
	return base->sq_head + base->begun;
}

/*
 * Marks a request as one that the peer has to confirm. Unsignaled requests are confirmed only when
 * they fill half of the queue.
 */
static void rc_mark_confirmation_wanted(struct siw_rc_qp *rc, const struct siw_wqe *wqe)
{
	if (rc_is_signaled(&rc->base, wqe) || rc->base.begun >= rc->base.sq_mask / 2)
		rc->confirm.wanted = rc_count_of_requests_begun(&rc->base) + 1;
	rc->confirm.due = wqe->op.length >= LONG_OCTETS;
}

/*
 * Sends an empty Read after the last request begun, so that one system call sends the request and
 * the Read. Returns whether the Read was needed and sent.
 */
static bool rc_send_confirming_read(struct siw_rc_qp *rc)
{
	struct siw_confirm *c = &rc->confirm;

	if (c->read_outstanding || (int32_t)(c->covered - c->wanted) >= 0 ||
	    (rc->base.qp.state != SIW_QPS_RTS && rc->base.qp.state != SIW_QPS_SQD))
		return false;
	/*
	 * After a failure a later call sends the Read: when an outstanding Read ends, or when TCP
	 * has room.
	 */
	if (siw_rdmap_send_confirming_read(rc->base.flow.stream,
					   rc_count_of_requests_begun(&rc->base)))
		return false;
	c->read_outstanding = true;
	c->due = false;
	c->covered = rc_count_of_requests_begun(&rc->base);
	return true;
}

/*
 * Assigns the numbers by which delivery counts refer to a request. A Write with immediate data is a
 * Write followed by a message on the Send queue, and is numbered as a Write and as a Send.
 */
static void rc_assign_request_numbers(struct siw_rc_qp *rc, struct siw_wqe *wqe)
{
	if (siw_qp_flags_of_opcode(wqe->opcode) & SIW_OP_WRITES)
		wqe->msn = ++rc->counts.writes_begun;
	if (wqe->opcode != SIW_WR_RDMA_WRITE) {
		wqe->msn = ++rc->sends_begun;
		rc->confirm.sends = rc_count_of_requests_begun(&rc->base) + 1;
	}
}

/*
 * Records which requests the response to a Read or atomic will confirm: all earlier requests,
 * unless earlier Sends are unconfirmed and the response does not confirm Sends.
 */
static void rc_note_requests_to_be_confirmed(struct siw_rc_qp *rc, const struct siw_wqe *wqe)
{
	struct siw_confirm *c = &rc->confirm;

	if (response_confirms_sends(wqe) || (int32_t)(c->sends - c->covered) <= 0)
		c->covered = rc_count_of_requests_begun(&rc->base) + 1;
}

static int rc_begin_request(struct siw_base_qp *base, struct siw_flow *flow, struct siw_wqe *wqe)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);
	int err;

	if (__builtin_expect(rc->confirm.due, 0))
		rc_send_confirming_read(rc);
	if (__builtin_expect(rc->counts.announce, 0)) {
		siw_rdmap_announce_counts_and_rnr_retry(flow->stream, rc->counts.on,
							(uint8_t)base->rnr_retry);
		rc->counts.announce = false;
	}
	err = siw_rdmap_begin_op(flow->stream, &wqe->op);
	if (err)
		return err;
	if (siw_qp_awaits_response(wqe)) {
		wqe->msn = siw_rdmap_begun_read_count(flow->stream);
		rc_note_requests_to_be_confirmed(rc, wqe);
	} else {
		rc_assign_request_numbers(rc, wqe);
	}
	if (rc->confirm.on)
		rc_mark_confirmation_wanted(rc, wqe);
	return 0;
}

/*
 * Ends the connection because a request has failed; with persona roce, only after the peer has
 * received the earlier requests.
 */
static void rc_handle_request_failure(struct siw_base_qp *base, struct siw_flow *flow, int status)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	(void)flow;
	(void)status;
	siw_advance_teardown(base, rc->confirm.on || rc->counts.on ? SIW_FAILING : SIW_BROKEN);
	rc->confirm.wanted = rc_count_of_requests_begun(base) - 1;
}

/*
 * Updates the confirmation state when siw_qp_mark_local_request_done() has marked a local request
 * as done.
 */
static void rc_handle_local_request_done(struct siw_base_qp *base, struct siw_wqe *wqe)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	/*
	 * A local request completes after the earlier requests, which may be unsignaled and thus
	 * not confirmed yet.
	 */
	if (rc->confirm.on && rc_is_signaled(base, wqe))
		rc->confirm.wanted = rc_count_of_requests_begun(base) - 1;
}

static int rc_transmit_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);
	int r;

	/* To drain the send queue, unsignaled requests must be confirmed, too. */
	if (__builtin_expect(base->draining, 0) && base->begun)
		rc->confirm.wanted = rc_count_of_requests_begun(base);
	if (rc->confirm.on)
		rc_send_confirming_read(rc);
	r = siw_rdmap_flush_tx(flow->stream, &flow->memory_released);
	/*
	 * Without delivery counts and confirmations, requests complete when TCP has accepted them.
	 * With delivery counts, rc_apply_delivery_count() sets flow->accepted; with confirmations,
	 * rc_mark_requests_delivered() makes requests DONE.
	 */
	if (!rc->counts.on)
		flow->accepted = rc->confirm.on ? 0 : flow->memory_released;
	return r;
}

/*
 * Marks as failed the request that contains the stream position `at`, and ends the stream, because
 * TCP could not read the memory of the data at this position. If the position lies in a Read
 * Response, no request is marked.
 */
static __attribute__((cold, noinline)) void rc_fail_at_position(struct siw_base_qp *base,
								uint64_t at)
{
	for (struct siw_wqe *wqe = base->flow.first; wqe; wqe = wqe->chain) {
		if (wqe->state != SIW_WQE_BEGUN || siw_qp_awaits_response(wqe) ||
		    wqe->op.stamp.begin > at || wqe->op.stamp.end <= at)
			continue;
		wqe->state = SIW_WQE_DONE;
		wqe->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_advance_teardown(base, SIW_BROKEN);
}

static enum siw_run rc_run_send_queue(struct siw_base_qp *base)
{
	struct siw_flow *flow = &base->flow;
	struct siw_rc_qp *rc = siw_rc_qp_of(base);
	int r;

	/* SIW_RUN_MORE causes another turn, which starts the time-out for a missing stream */
	if (!flow->stream)
		return rc->pairs && flow->first ? SIW_RUN_MORE : SIW_RUN_DONE;
	if (siw_rdmap_has_responses_to_send(flow->stream))
		siw_device_mark_busy(&base->qp);
	/*
	 * If the QP connects by QPN, requests wait in the send queue for the RTR, since the
	 * start-up may fail.
	 */
	if (__builtin_expect(rc->pairs && !rc->may_send, 0))
		r = rc_transmit_requests(base, flow);
	else
		r = siw_qp_flow_send_requests(base, flow);
	/*
	 * Before its data was passed to TCP, a long message may have left no room for the
	 * confirming Read. No other event would send the Read.
	 */
	if (r == 1 && rc->confirm.on && rc_send_confirming_read(rc))
		r = rc_transmit_requests(base, flow);
	siw_qp_reap_finished_requests(base, flow);
	if (__builtin_expect(r == -EFAULT, 0) && !siw_is_closing(base))
		rc_fail_at_position(base, flow->memory_released);
	/* This end found an error in data that it sends; the QP's receive path reports it. */
	if (r == -EACCES && !siw_is_closing(base))
		siw_advance_teardown(base, SIW_BROKEN);
	/*
	 * Ends the stream if memory runs out, because no event would send the remaining data later,
	 * and both ends would wait forever.
	 */
	if (__builtin_expect(r == -ENOMEM, 0) && !siw_is_closing(base))
		siw_advance_teardown(base, SIW_BROKEN);
	return siw_qp_flow_finish_sending_turn(base, r, r == 0 && siw_mpa_is_tx_blocked(rc->mpa));
}

/* ==== delivery counts ========================================================================= */

/*
 * Delivery counts on RC (spec/delivery-counts.md): counts of the peer complete requests of this
 * end, and this end decides when to send its own counts.
 *
 * A count is usually sent together with the next message to the peer. A count is sent without a
 * message after 64 KiB, or when a progress round has found the socket empty. A count is not sent
 * alone in the round that received data, nor in polls before the next round, because the program
 * has not seen the data yet and may answer it; nor in the next few rounds while a CQ of the queue
 * pair holds completions that the program has not polled. (UCX polls the CQ of receives once more
 * before it polls the CQ of Sends.) Counts without a message have a minimum interval, so that a
 * peer that streams small messages gets one count for several messages.
 */

/* Number of octets after whose receipt a delivery count is sent, if none was sent before. */
#define COUNT_OCTETS (64u << 10)
/*
 * Minimum interval in nanoseconds between delivery counts without a message: about the transfer
 * time of a small message and its count.
 */
#define DISTANCE_NS 5000u
/*
 * Maximum number of progress rounds that a delivery count waits while the program has not polled
 * all its completions.
 */
#define UNSEEN_ROUNDS 4u

/* ---- counts received from the peer ----------------------------------------------------------- */

/*
 * Initializes the delivery counts when a stream starts. agreed: the peer is siwarp, and both ends
 * offer delivery counts. rnr_retry: as in struct siw_rc_start. Both locks held.
 */
static void rc_init_delivery_counts(struct siw_rc_qp *rc, bool agreed, int rnr_retry)
{
	rc->counts = (struct siw_delivery_counts){
		.on = agreed && rc->base.roce,
		.announce = agreed && rc->base.roce,
		.sends = rc->sends_begun,
		.rnr_retry = rnr_retry > 0   ? rnr_retry
			     : rnr_retry < 0 ? 0
					     : -1,
		.rnr_fixed = rnr_retry != 0,
	};
	rc->base.flow.accepted = 0;
}

/* Whether the peer's delivery counts include the request, a Send or Write. */
static bool rc_delivery_count_includes_request(const struct siw_delivery_counts *c,
					       const struct siw_wqe *wqe)
{
	uint32_t count = wqe->opcode == SIW_WR_RDMA_WRITE ? c->writes : c->sends;

	return (int32_t)(count - wqe->msn) >= 0;
}

/*
 * Whether a delivery count from the peer is plausible: it does not decrease, includes new requests,
 * and does not exceed the number of requests sent.
 */
static bool rc_delivery_count_is_plausible(const struct siw_rc_qp *rc,
					   const struct siw_rdmap_event *ev)
{
	const struct siw_delivery_counts *c = &rc->counts;
	uint32_t sends = ev->sends - c->sends, writes = ev->writes - c->writes;

	return (c->on || siw_rdmap_has_requested_delivery_counts(rc->base.flow.stream)) &&
	       (sends || writes) && sends <= rc->sends_begun - c->sends &&
	       writes <= c->writes_begun - c->writes;
}

/*
 * Replaces confirming Reads by delivery counts, because the peer has answered the offer of counts
 * and therefore is siwarp.
 */
static void rc_enable_delivery_counts(struct siw_rc_qp *rc)
{
	rc->counts.on = true;
	rc->confirm.on = rc->confirm.due = false;
}

/*
 * Applies a delivery count of the peer to the requests in progress. Returns whether the count is
 * plausible. send_lock held.
 */
static bool rc_apply_delivery_count(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	struct siw_flow *flow = &rc->base.flow;
	uint64_t out = siw_ddp_tx_accepted_position(flow->ddp);

	if (!rc_delivery_count_is_plausible(rc, ev))
		return false;
	if (__builtin_expect(!rc->counts.on, 0))
		rc_enable_delivery_counts(rc);
	rc->counts.sends = ev->sends;
	rc->counts.writes = ev->writes;
	/*
	 * Requests complete in order: a Write after a Send that waits for its receive is not
	 * complete either.
	 */
	for (const struct siw_wqe *wqe = flow->first; wqe; wqe = wqe->chain) {
		if (wqe->state == SIW_WQE_DONE || siw_qp_awaits_response(wqe))
			continue;
		if (wqe->state == SIW_WQE_POSTED ||
		    !rc_delivery_count_includes_request(&rc->counts, wqe))
			break;
		/* the peer has counted a request that is not completely sent: an error of the peer */
		if (wqe->op.stamp.end > out)
			return false;
		flow->accepted = wqe->op.stamp.end;
	}
	return true;
}

/* ---- counts sent to the peer ----------------------------------------------------------------- */

static bool rc_delivery_count_is_due(const struct siw_rc_qp *rc)
{
	return rc->base.flow.stream && !siw_is_closing(&rc->base) &&
	       siw_rdmap_has_unsent_delivery_count(rc->base.flow.stream);
}

/* Sends the peer a delivery count immediately, if a count is due. */
static void rc_send_delivery_count_if_due(struct siw_rc_qp *rc)
{
	enum siw_run left;

	if (!rc_delivery_count_is_due(rc))
		return;
	siw_lock(&rc->base.qp.send_lock);
	siw_rdmap_transmit_delivery_count(rc->base.flow.stream);
	left = rc_run_send_queue(&rc->base);
	siw_unlock(&rc->base.qp.send_lock);
	rc->counts.octets = 0;
	if (left != SIW_RUN_DONE)
		siw_device_add_unsent_qp(&rc->base.qp);
}

/*
 * Whether the program may still answer the received data, because the program has not polled all
 * resulting completions.
 */
static bool rc_may_program_answer_data(struct siw_rc_qp *rc)
{
	const struct siw_qp *qp = &rc->base.qp;
	uint64_t round = qp->lane->rounds;

	if (round - rc->counts.last_received_round >= UNSEEN_ROUNDS ||
	    (siw_cq_pending(qp->send_cq) <= 0 && siw_cq_pending(qp->recv_cq) <= 0))
		return false;
	rc->counts.last_seen_round = round;
	return true;
}

/*
 * Sends the peer a delivery count without a message, unless an answer of the program may still
 * carry the count, or the last count without a message was sent a short time ago.
 */
static void rc_send_delivery_count_alone(struct siw_rc_qp *rc)
{
	uint64_t now;

	if (rc_may_program_answer_data(rc))
		return;
	now = siw_now_ns();
	if (now - rc->counts.last_alone_ns < DISTANCE_NS)
		return;
	rc->counts.last_alone_ns = now;
	rc_send_delivery_count_if_due(rc);
}

/*
 * Sends the peer a delivery count, now or in a later turn, if the peer requested counts. Called
 * after a receiving turn in which n segments with a total of octets arrived. Progress lock held, as
 * for all later functions of the file.
 */
static void rc_send_delivery_count_after_receiving(struct siw_rc_qp *rc, int n, uint32_t octets)
{
	if (!rc_delivery_count_is_due(rc))
		return;
	if (n)
		rc->counts.last_received_round = rc->counts.last_seen_round =
			rc->base.qp.lane->rounds;
	rc->counts.octets += octets;
	if (rc->counts.octets >= COUNT_OCTETS) {
		rc_send_delivery_count_if_due(rc);
		return;
	}
	if (n >= rc->base.burst) /* the socket gets another turn, with n = 0 if it is empty */
		return;
	if (!n)
		rc_send_delivery_count_alone(rc);
	if (rc_delivery_count_is_due(rc))
		siw_device_add_unsent_qp(&rc->base.qp);
}

/*
 * Sends the peer a delivery count in a sending turn, if a count is due. Returns whether another
 * turn is needed.
 */
static bool rc_send_delivery_count_in_sending_turn(struct siw_rc_qp *rc)
{
	if (rc_delivery_count_is_due(rc) && rc->base.qp.lane->rounds != rc->counts.last_seen_round)
		rc_send_delivery_count_alone(rc);
	return rc_delivery_count_is_due(rc);
}

/* ==== receiver not ready ====================================================================== */

/*
 * Receiver not ready, with persona roce: ddp keeps Sends that arrived before their receives.
 * Posting a receive wakes every QP of the receive queue on which a Send waits. A Send that waits
 * too long ends the connection.
 */

/*
 * Returns the number of RNR retries: the sender's rnr_retry if it is known, otherwise the rnr_retry
 * of this end.
 */
static int rnr_retry_limit(const struct siw_rc_qp *rc)
{
	return rc->counts.rnr_retry >= 0 ? rc->counts.rnr_retry : rc->base.rnr_retry;
}

static uint64_t rnr_give_up_time_ns(const struct siw_rc_qp *rc)
{
	return siw_rnr_timeout_ns((uint32_t)rnr_retry_limit(rc), (uint32_t)rc->base.min_rnr_timer);
}

/* Sets the timer for the deadline of the oldest Send that waits for a receive. */
static void rnr_set_timer(struct siw_rc_qp *rc)
{
	if (rnr_retry_limit(rc) != SIW_RNR_NO_LIMIT && rc->rnr_deadline_ns)
		siw_device_timer_start_at(rc->base.qp.lane, &rc->base.timed, rc->rnr_deadline_ns);
}

/* Starts the receiver-not-ready time-out, because a Send of the peer has found no receive. */
static void rnr_begin_wait(struct siw_rc_qp *rc)
{
	siw_qp_set_messages_waiting(&rc->base, true);
	if (siw_rdmap_received_send_awaits_buffer(rc->base.flow.stream, &rc->rnr_msn))
		rc->rnr_deadline_ns = siw_now_ns() + rnr_give_up_time_ns(rc);
	rnr_set_timer(rc);
	siw_llp_sock_resume(siw_mpa_sock(rc->mpa));
}

/* Ends the receiver-not-ready state: no Send waits for a receive any more. */
static void rnr_end_wait(struct siw_rc_qp *rc)
{
	if (!rc->base.qp.has_unexpected)
		return;
	siw_qp_set_messages_waiting(&rc->base, false);
}

/*
 * Whether a Send has waited for a receive too long; if so, RDMAP delivers an ERROR event. Called
 * after waiting Sends were processed.
 */
static bool rnr_has_expired(struct siw_rc_qp *rc, uint64_t now_ns)
{
	uint32_t msn;

	if (!siw_rdmap_received_send_awaits_buffer(rc->base.flow.stream, &msn)) {
		/* The socket gets another turn, because more Sends may find receives now. */
		siw_llp_sock_resume(siw_mpa_sock(rc->mpa));
		if (!siw_rdmap_has_unexpected_messages(rc->base.flow.stream)) {
			rnr_end_wait(rc);
			siw_device_timer_cancel(rc->base.qp.lane, &rc->base.timed);
		} else if (rc->base.qp.srq) {
			/*
			 * Another QP may use the receive of the SRQ first; then the Send of the QP
			 * still waits.
			 */
			rc->rnr_deadline_ns = now_ns + rnr_give_up_time_ns(rc);
			rnr_set_timer(rc);
		}
		return false;
	}
	/* another Send is the oldest waiting Send now, and gets a new deadline */
	if (msn != rc->rnr_msn) {
		rc->rnr_msn = msn;
		rc->rnr_deadline_ns = now_ns + rnr_give_up_time_ns(rc);
	}
	rnr_set_timer(rc);
	if (rnr_retry_limit(rc) == SIW_RNR_NO_LIMIT || now_ns < rc->rnr_deadline_ns)
		return false;
	siw_rdmap_fail_received_send_without_buffer(rc->base.flow.stream);
	siw_count(SIW_COUNTER_rnr_expired, 1);
	return true;
}

/* ==== closing ================================================================================= */

/*
 * Closing the stream of an RC queue pair. Completed requests must reach the peer. Closing a socket
 * with unread input resets the connection and discards data that the peer has not read yet; so the
 * sending side is shut down first, and this end waits until the peer closes its side, too. Requests
 * are flushed when the stream no longer refers to their memory.
 */

static uint64_t linger_deadline_ns(void)
{
	return siw_now_ns() + (uint64_t)siw_settings()->linger_ms * 1000000;
}

/* ---- after the QP: a stream that waits for the peer's end of stream -------------------------- */

static void linger_end_and_free(struct siw_linger *linger)
{
	siw_device_timer_cancel(linger->lane, &linger->timed);
	atomic_fetch_sub(&linger->lane->ctx->n_linger, 1);
	siw_mpa_close(linger->mpa, false);
	free(linger);
}

static int linger_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_linger *linger = siw_container(self, struct siw_linger, handler);

	if (siw_mpa_read_and_discard(linger->mpa))
		linger_end_and_free(linger);
	return 0;
}

static void linger_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_linger *linger = siw_container(timed, struct siw_linger, timed);

	if (siw_mpa_read_and_discard(linger->mpa) || now_ns >= linger->deadline_ns)
		linger_end_and_free(linger);
}

/* Closes the RDMAP and DDP streams of the QP, and returns the MPA stream, which stays open. */
static struct siw_mpa_stream *rc_detach_stream(struct siw_rc_qp *rc)
{
	struct siw_mpa_stream *mpa = rc->mpa;

	siw_lock(&rc->base.qp.send_lock);
	siw_rdmap_close(rc->base.flow.stream);
	rc->base.flow.stream = NULL;
	rc->base.flow.ddp = NULL;
	rc->mpa = NULL;
	rc->base.connected = false;
	if (siw_teardown_of(&rc->base) < SIW_FLUSHED)
		siw_set_teardown(&rc->base, SIW_ALIVE);
	siw_unlock(&rc->base.qp.send_lock);
	rnr_end_wait(rc);
	siw_device_timer_cancel(rc->base.qp.lane, &rc->base.timed);
	return mpa;
}

static void linger_start_closing(struct siw_linger *linger, struct siw_lane *lane,
				 struct siw_mpa_stream *mpa)
{
	linger->handler.serve = linger_handle_socket_event;
	linger->lane = lane;
	linger->mpa = mpa;
	linger->deadline_ns = linger_deadline_ns();
	linger->timed.tick = linger_handle_timer;
	siw_link_init(&linger->timed.link);
	siw_llp_set_handler(siw_mpa_sock(mpa), &linger->handler);
	siw_llp_sock_resume(siw_mpa_sock(mpa)); /* the socket may have been paused before */
	siw_device_timer_start_periodic(lane, &linger->timed, linger->deadline_ns);
	atomic_fetch_add(&lane->ctx->n_linger, 1);
}

/*
 * Waits, independently of any QP, until the peer closes a stream whose sending side is shut down.
 * Returns 0 or -ENOMEM.
 */
static int linger_start_without_qp(struct siw_lane *lane, struct siw_mpa_stream *mpa)
{
	struct siw_linger *linger = calloc(1, sizeof(*linger));

	if (!linger)
		return -ENOMEM;
	linger_start_closing(linger, lane, mpa);
	return 0;
}

static void rc_start_linger(struct siw_rc_qp *rc)
{
	struct siw_linger *linger = rc->linger;

	rc->linger = NULL;
	linger_start_closing(linger, rc->base.qp.lane, rc_detach_stream(rc));
}

static void rc_report_conn_end(struct siw_rc_qp *rc)
{
	struct siw_conn *conn = rc->conn;

	rc->conn = NULL;
	if (conn)
		rc->on_ended(conn, rc->cause, &rc->cause_err);
}

/* ---- with the QP ----------------------------------------------------------------------------- */

static void rc_finish_close(struct siw_rc_qp *rc, bool dead)
{
	siw_qp_flush(&rc->base);
	if (dead)
		siw_mpa_close(rc_detach_stream(rc), false);
	else
		rc_start_linger(rc);
	rc_report_conn_end(rc);
}

/*
 * Sends the remaining data, then shuts down the sending side of the stream. Returns 1 if the
 * sending side is shut down, 0 if data is left, or -errno. send_lock held.
 */
static int rc_flush_and_shut_sending(struct siw_rc_qp *rc)
{
	uint64_t accepted;
	int r = siw_teardown_of(&rc->base) == SIW_TERMINATING
			? siw_rdmap_terminate(rc->base.flow.stream)
			: siw_rdmap_flush_tx(rc->base.flow.stream, &accepted);

	if (r != 1)
		return r;
	r = siw_mpa_shutdown(rc->mpa); /* RFC5040-6.2.1-04: a graceful close */
	return r < 0 ? r : 1;
}

/* Continues to close the stream when the socket is ready. */
static void rc_continue_close(struct siw_rc_qp *rc)
{
	int r;

	siw_lock(&rc->base.qp.send_lock);
	r = rc_flush_and_shut_sending(rc);
	/* Requests that have been sent since the close began complete successfully. */
	rc_run_send_queue(&rc->base);
	siw_unlock(&rc->base.qp.send_lock);
	/*
	 * Both ends may have full socket buffers, and if neither end reads, neither end can send.
	 * So this end reads and discards data. A responder that has not received the initiator's
	 * first FPDU must not send at all.
	 */
	if (!r) {
		siw_ddp_stream_drop_unexpected_segments(rc->base.flow.ddp);
		siw_mpa_read_and_discard(rc->mpa);
		if (!rc->may_send)
			r = -ENOTCONN;
	}
	if (r)
		rc_finish_close(rc, r < 0);
}

/*
 * Shuts down the sending side immediately: data that TCP does not accept now is dropped, since its
 * memory is returned to the user. The peer reads the data that TCP has accepted, and then an end of
 * stream, perhaps within an FPDU.
 */
static int rc_shut_sending_immediately(struct siw_rc_qp *rc)
{
	int r;

	siw_lock(&rc->base.qp.send_lock);
	r = rc_flush_and_shut_sending(rc);
	if (!r)
		r = siw_mpa_shutdown(rc->mpa) < 0 ? -EPIPE : 1;
	siw_unlock(&rc->base.qp.send_lock);
	return r;
}

/* Continues to close the stream when the timer expires, and gives up at the deadline. */
static void rc_handle_close_timer(struct siw_rc_qp *rc, uint64_t now_ns)
{
	if (now_ns >= rc->close_by_ns)
		rc_finish_close(rc, rc_shut_sending_immediately(rc) != 1);
	else
		rc_continue_close(rc);
}

static void rc_begin_close(struct siw_rc_qp *rc, enum siw_teardown how)
{
	if (!rc->base.flow.stream) {
		if (rc->pairs)
			rc->pairs->stop(rc);
		siw_qp_flush(&rc->base);
		return;
	}
	siw_lock(&rc->base.qp.send_lock);
	siw_set_teardown(&rc->base, how);
	siw_unlock(&rc->base.qp.send_lock);
	rc->close_by_ns = linger_deadline_ns();
	siw_device_timer_start_periodic(rc->base.qp.lane, &rc->base.timed, rc->close_by_ns);
	rc_continue_close(rc);
}

/*
 * Sets an error code for RDMAP's local catastrophic error, which has no codes; any value may be
 * sent (RFC 5040 figure 9). With code 0, vendor_err would be 0, which means no error.
 */
static void rc_fill_missing_error_code(struct siw_wire_err *err)
{
	if (!err->layer && !err->type && !err->code)
		err->code = SIW_RDMAP_UNSPECIFIED;
}

/*
 * Raises an asynchronous event for a failure that no completion reports. (A failure with status
 * -EFAULT is reported by the completion of the request.) With persona roce, completions also report
 * failures caused by the peer or the network, as with InfiniBand channel adapters; an RNIC raises
 * an event for its stream.
 */
static void rc_raise_failure_event(struct siw_rc_qp *rc, enum siw_teardown how, int status,
				   const struct siw_wire_err *err)
{
	if (err && how == SIW_TERMINATING)
		siw_device_raise_async_event(&rc->base.qp.async, siw_qp_async_event_of_error(err));
	else if (rc->base.roce && status != -EOVERFLOW)
		return;
	else if (err || (status && status != -EFAULT))
		siw_device_raise_async_event(&rc->base.qp.async, SIW_EVENT_QP_FATAL);
}

/*
 * Sets the cause that on_ended reports. Only the first call has an effect, because later calls
 * report consequences of the first cause.
 */
static void rc_note_cause_of_connection_end(struct siw_rc_qp *rc, int status,
					    const struct siw_wire_err *err)
{
	if (rc->has_cause)
		return;
	rc->has_cause = true;
	rc->cause = status;
	if (err)
		rc->cause_err = *err;
}

/* Resets the connection, because TCP has not accepted data that must not be sent any more. */
static void rc_reset_connection(struct siw_rc_qp *rc)
{
	uint64_t wr_id;
	bool taken;

	if (siw_qp_apply_state_event(&rc->base, SIW_QPE_FAILED) == SIW_QPA_FLUSH)
		siw_device_raise_async_event(&rc->base.qp.async, SIW_EVENT_QP_FATAL);
	/* A partially received message has already consumed the oldest receive. */
	taken = siw_ddp_stream_pop_partial_buffer(rc->base.flow.ddp, SIW_RDMAP_QN_SEND, &wr_id) ==
		1;
	siw_mpa_close(rc_detach_stream(rc), true);
	if (taken)
		siw_qp_add_flushed_recv_completion(&rc->base, wr_id);
	siw_qp_flush(&rc->base);
	rc_report_conn_end(rc);
}

void siw_qp_rc_fail(struct siw_rc_qp *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err)
{
	struct siw_wire_err coded;

	if (err) {
		coded = *err;
		rc_fill_missing_error_code(&coded);
		err = &coded;
	}
	if (err)
		rc->base.wire_err = (uint32_t)err->layer << 16 | (uint32_t)err->type << 8 |
				    err->code;
	rc_note_cause_of_connection_end(rc, status, err);
	if (siw_qp_apply_state_event(&rc->base, SIW_QPE_FAILED) == SIW_QPA_FLUSH) {
		rc_raise_failure_event(rc, how, status, err);
		if (siw_teardown_of(&rc->base) == SIW_RESETTING)
			rc_reset_connection(rc);
		else
			rc_begin_close(rc, how);
	}
}

static void rc_release_stream(struct siw_rc_qp *rc)
{
	if (rc->base.flow.stream) {
		if (rc_shut_sending_immediately(rc) == 1)
			rc_start_linger(rc);
		else
			siw_mpa_close(rc_detach_stream(rc), false);
	}
	rc_report_conn_end(rc);
	rc->base.wire_err = 0;
}

/*
 * Closes the stream immediately, for a transition to RESET; data that TCP has accepted still
 * reaches the peer.
 */
static void rc_release_stream_for_reset(struct siw_base_qp *base)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	rc_release_stream(rc);
	if (rc->pairs)
		rc->pairs->stop(rc);
}

/*
 * Completes the requests that are DONE. Returns the oldest request that is not complete, or NULL.
 * send_lock held.
 */
static struct siw_wqe *rc_reap_and_get_oldest_request(struct siw_rc_qp *rc)
{
	siw_qp_reap_finished_requests(&rc->base, &rc->base.flow);
	return rc->base.flow.first;
}

/*
 * Marks the oldest incomplete request of the QP as failed with status. Returns whether there is an
 * incomplete request.
 */
static bool rc_fail_oldest_request(struct siw_rc_qp *rc, int status)
{
	struct siw_wqe *oldest;

	siw_lock(&rc->base.qp.send_lock);
	oldest = rc_reap_and_get_oldest_request(rc);
	if (oldest && oldest->state != SIW_WQE_DONE) {
		oldest->state = SIW_WQE_DONE;
		oldest->status = (uint8_t)status;
	}
	siw_unlock(&rc->base.qp.send_lock);
	return oldest != NULL;
}

/*
 * The member take_recv of struct siw_qp_class: releases the receive that a partially received
 * message has consumed.
 */
static int rc_release_unfinished_recv(struct siw_base_qp *base, uint64_t *wr_id)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);
	bool torn = rc->has_torn;

	rc->has_torn = false;
	if (torn)
		*wr_id = rc->torn;
	if (torn || !rc->base.flow.stream)
		return torn;
	return siw_ddp_stream_pop_partial_buffer(rc->base.flow.ddp, SIW_RDMAP_QN_SEND, wr_id);
}

/*
 * Closes the stream of a QP that connects by QPN, after the stream has ended; the QP keeps its
 * state. The peer may have completed its requests and disconnected before it acknowledged the
 * requests of this end, so incomplete requests get the same time-out as requests that are posted
 * while the QP has no connection. The receive of a partially received message is kept.
 */
static void rc_close_stream_and_keep_qp_state(struct siw_rc_qp *rc)
{
	bool open;

	siw_lock(&rc->base.qp.send_lock);
	open = rc_reap_and_get_oldest_request(rc);
	siw_unlock(&rc->base.qp.send_lock);
	rc->has_torn = rc_release_unfinished_recv(&rc->base, &rc->torn) == 1;
	rc_release_stream(rc);
	if (open)
		rc->pairs->turn(rc);
}

void siw_qp_rc_handle_lost_stream(struct siw_rc_qp *rc, int status)
{
	if (!rc->pairs)
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, status, NULL);
	else if (rc->base.flow.stream && rc->base.qp.state == SIW_QPS_RTS)
		/* The stream was lost during start-up, when no request had been sent on it. */
		rc_close_stream_and_keep_qp_state(rc);
	else if (rc_fail_oldest_request(rc, SIW_WC_RETRY_EXC_ERR))
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, -EFAULT, NULL);
	else
		rc_release_stream(rc);
}

/* ==== starting a stream ======================================================================= */

/* Opens DDP and RDMAP on an MPA stream whose start-up is complete. Returns 0 or -ENOMEM. */
static int rc_open_stream(struct siw_context *ctx, struct siw_mpa_stream *mpa,
			  struct siw_ddp_stream **ddp, struct siw_rdmap_stream **stream)
{
	int err = siw_ddp_stream_open(ctx->mem, mpa, ddp);

	if (err)
		return err;
	err = siw_rdmap_open(ctx->mem, *ddp, stream);
	if (err)
		siw_ddp_stream_close(*ddp);
	return err;
}

int siw_qp_rc_start_stream(struct siw_rc_qp *rc, struct siw_mpa_stream *mpa,
			   const struct siw_rc_start *start)
{
	struct siw_rdmap_start rdmap = {
		.recvs = rc->base.recvs,
		.pd = rc->base.qp.pd->number,
		.ird = start->ird,
		.ord = start->ord,
		.rtr = start->rtr,
		.initiator = start->initiator,
		.denied = ~(uint32_t)rc->base.access,
		.owner = siw_device_owner(&rc->base.qp),
		.unexpected_octets = rc->base.roce || rc->base.keep_unexpected
					     ? (uint64_t)siw_settings()->rnr_octets
					     : 0,
		.deliver_before_end = rc->base.keep_unexpected || rc->pairs,
		.private = rc->base.private_always || start->siwarp,
	};
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	int err;

	rdmap.counts = start->siwarp ? start->counts
				     : rdmap.private && siw_settings()->delivery_counts;
	rdmap.offers = !rdmap.private && siw_settings()->delivery_counts;
	if (!rc->linger)
		rc->linger = calloc(1, sizeof(*rc->linger));
	if (!rc->linger)
		return -ENOMEM;
	err = rc_open_stream(rc->base.qp.ctx, mpa, &ddp, &stream);
	if (err)
		return err;
	siw_lock(&rc->base.qp.send_lock);
	err = siw_rdmap_start(stream, &rdmap);
	if (err) {
		siw_rdmap_close(stream);
	} else {
		rc->mpa = mpa;
		rc->base.flow.ddp = ddp;
		rc->base.flow.stream = stream;
		/* A responder that expects an RTR must not send before the RTR arrives. */
		rc->may_send = start->initiator;
		rc->base.connected = true;
		rc->base.granted_ord = rc->base.reads_max = start->ord;
		rc->base.granted_ird = start->ird;
		rc->base.private = rdmap.private;
		rc->base.wire_err = 0;
		rc->sends_begun = siw_initial_sequence(1) - 1;
		rc->peer_confirms = rc->responses_framed = false;
		rc_init_delivery_counts(rc, rdmap.counts, start->rnr_retry);
		rc->confirm = (struct siw_confirm){
			.on = rc->base.roce && !rc->counts.on && start->ord && start->ord_known,
			.wanted = rc->base.sq_head,
			.covered = rc->base.sq_head,
			.sends = rc->base.sq_head,
		};
	}
	siw_unlock(&rc->base.qp.send_lock);
	if (err)
		return err;
	if (rc->base.roce && !rc->confirm.on && !rc->counts.on)
		siw_count(SIW_COUNTER_confirm_none, 1);
	rc->has_cause = false;
	rc->cause = 0;
	rc->cause_err = (struct siw_wire_err){ 0 };
	/* Without a connection manager, the program moves the QP through its states. */
	if (!rc->pairs) {
		siw_qp_apply_state_event(&rc->base, SIW_QPE_ATTACHED);
		siw_qp_apply_state_event(&rc->base, SIW_QPE_STARTED);
	}
	return 0;
}

int siw_qp_rc_refuse_with_terminate(struct siw_lane *lane, struct siw_mpa_stream *mpa,
				    const struct siw_wire_err *err)
{
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	bool sent;

	if (rc_open_stream(lane->ctx, mpa, &ddp, &stream))
		return -ENOMEM;
	sent = siw_rdmap_refuse_with_terminate(stream, err) == 1 && siw_mpa_shutdown(mpa) == 0;
	siw_rdmap_close(stream);
	return sent ? linger_start_without_qp(lane, mpa) : -EPIPE;
}

/* ==== the stream's events, and the type ======================================================= */

/*
 * RC queue pairs with a stream: handling of the events of the stream, and the functions of the QP
 * type.
 */

/* ---- events ---------------------------------------------------------------------------------- */

/*
 * Completes the receive of a message. The message may answer a request that another thread has just
 * sent and is about to complete. The function waits for the send lock, so that the request
 * completes first, as programs with one completion queue expect.
 */
static void rc_complete_receive(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	siw_lock_wait_released(&rc->base.qp.send_lock);
	siw_qp_add_recv_completion(&rc->base, ev, siw_qp_wc_status_of_recv_event(ev), 0, NULL, 0);
}

/*
 * Marks requests that the peer has received as DONE: the requests before end (NULL: all requests),
 * or, if sends is false, only the Writes before end. Reads and atomics without their responses are
 * not marked.
 */
static void rc_mark_requests_delivered(struct siw_rc_qp *rc, const struct siw_wqe *end, bool sends)
{
	for (struct siw_wqe *wqe = rc->base.flow.first; wqe != end; wqe = wqe->chain)
		if (wqe->state == SIW_WQE_BEGUN && !siw_qp_awaits_response(wqe) &&
		    (sends || wqe->opcode == SIW_WR_RDMA_WRITE))
			wqe->state = SIW_WQE_DONE;
}

/*
 * Maximum time in nanoseconds from a response until the Reads that wait for a batch are requested:
 * about the time in which loopback transfers two responses of 64 KiB.
 */
#define READS_WAIT_NS 20000u

/*
 * Whether the Reads that wait for a batch may wait for the next response: at least half of the
 * Reads that the program keeps outstanding have been requested, so the peer does not run out of
 * requests. Requests that leave together are answered together, and several responses fill TCP's
 * segments better than each of them does alone. send_lock held.
 */
static bool rc_may_delay_reads_until_next_response(const struct siw_rc_qp *rc)
{
	const struct siw_base_qp *base = &rc->base;
	const struct siw_flow *flow = &base->flow;
	uint32_t waiting = base->sq_tail - base->sq_head - base->begun;

	return base->only_reads_wait && waiting && waiting < flow->reads_out &&
	       base->qp.state == SIW_QPS_RTS && siw_teardown_of(base) == SIW_ALIVE &&
	       !rc->confirm.on && !siw_rdmap_has_responses_to_send(flow->stream) &&
	       !siw_ddp_has_tx_message_in_progress(flow->ddp) &&
	       siw_ddp_tx_framed_position(flow->ddp) == siw_ddp_tx_accepted_position(flow->ddp);
}

static void rc_handle_read_done(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe = (struct siw_wqe *)(uintptr_t)ev->user_data;
	struct siw_flow *flow = &rc->base.flow;
	bool wait;

	siw_lock(&rc->base.qp.send_lock);
	if (rc->confirm.on)
		rc_mark_requests_delivered(rc, wqe, response_confirms_sends(wqe));
	wqe->state = SIW_WQE_DONE;
	flow->reads_out--;
	if (wqe->op.length >= SIW_LONG_READ)
		rc->base.reads_answered++;
	if (rc->base.reads_answered > flow->reads_out)
		rc->base.reads_answered = flow->reads_out;
	wait = rc_may_delay_reads_until_next_response(rc);
	if (wait)
		siw_qp_reap_finished_requests(&rc->base, flow);
	siw_unlock(&rc->base.qp.send_lock);
	if (wait)
		rc->answered_ns = siw_now_ns();
	else
		siw_qp_run_sq_and_mark_unsent(&rc->base);
}

static void rc_handle_peer_delivery_count(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	bool can_be;

	siw_lock(&rc->base.qp.send_lock);
	can_be = rc_apply_delivery_count(rc, ev);
	siw_unlock(&rc->base.qp.send_lock);
	if (can_be)
		siw_qp_run_sq_and_mark_unsent(&rc->base);
	else
		siw_rdmap_refuse_bad_delivery_count(rc->base.flow.stream);
}

/*
 * Handles the peer's announcement of its rnr_retry, which limits how long the peer's requests may
 * wait for receives.
 */
static void rc_handle_rnr_retry_announcement(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	if (rc->counts.rnr_fixed)
		return;
	rc->counts.rnr_retry = ev->rnr_retry;
	if (rc->base.qp.has_unexpected)
		rnr_begin_wait(rc);
}

/*
 * Handles the response to a confirming empty Read. Responses arrive in order, so each response
 * confirms more requests than the previous response.
 */
static void rc_handle_confirming_read_response(struct siw_rc_qp *rc,
					       const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe;
	int32_t more;

	siw_lock(&rc->base.qp.send_lock);
	wqe = rc->base.flow.first;
	for (more = (int32_t)((uint32_t)ev->user_data - rc->base.sq_head); more > 0; more--)
		wqe = wqe->chain;
	rc_mark_requests_delivered(rc, wqe, true);
	rc->confirm.read_outstanding = false;
	siw_unlock(&rc->base.qp.send_lock);
	siw_qp_run_sq_and_mark_unsent(&rc->base);
}

/*
 * Returns the request that a Terminate without a quoted header refers to, or NULL. A peer that
 * cannot access its own memory quotes no header (RFC 5040 section 4.8: local catastrophic error).
 * With persona roce, the oldest request that the peer has not acknowledged has failed, since the
 * peer has not processed any later request. With persona iwarp, this end does not know what the
 * peer has received.
 */
static struct siw_wqe *rc_find_request_of_unquoted_terminate(struct siw_rc_qp *rc,
							     const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe = rc->base.flow.first;
	bool own_memory = ev->err.type == 0 &&
			  (ev->err.layer == SIW_LAYER_RDMAP || ev->err.layer == SIW_LAYER_DDP);

	if (ev->quoted || !own_memory || !rc->base.roce)
		return NULL;
	while (wqe && wqe->state != SIW_WQE_BEGUN)
		wqe = wqe->chain;
	return wqe;
}

/*
 * Marks as failed the request that the Terminate quotes, if the request is still queued. The peer
 * processes messages in order, so it has received the earlier Writes. The peer has also received
 * the earlier Sends, unless delivery counts are on: then a Send that is not counted was still
 * waiting for its receive. Earlier Reads get no response any more.
 */
static void rc_mark_terminated_request(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *culprit;

	siw_lock(&rc->base.qp.send_lock);
	culprit = siw_qp_flow_find_quoted_request(&rc->base.flow, ev);
	if (!culprit)
		culprit = rc_find_request_of_unquoted_terminate(rc, ev);
	if (culprit) {
		rc_mark_requests_delivered(rc, culprit, !rc->counts.on);
		culprit->state = SIW_WQE_DONE;
		culprit->status = (uint8_t)siw_qp_wc_status_of_peer_error(&ev->err);
	}
	siw_unlock(&rc->base.qp.send_lock);
}

/*
 * If a local error concerns a receive, completes the receive with the status that matches the
 * error.
 */
static void rc_fail_receive(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	const struct siw_wire_err *err = &ev->err;
	struct siw_rdmap_event blamed = { .kind = SIW_RDMAP_BAD_RECV };

	if (!ev->quoted || ev->quoted_tagged || ev->quoted_qn || err->layer != SIW_LAYER_DDP)
		return;
	if (err->type == SIW_DDP_UNTAGGED_BUFFER && err->code == SIW_DDP_TOO_LONG)
		blamed.status = -EMSGSIZE;
	else if (err->type == SIW_DDP_LOCAL_CATASTROPHIC)
		blamed.status = -EACCES;
	else
		return;
	if (siw_ddp_stream_pop_partial_buffer(rc->base.flow.ddp, SIW_RDMAP_QN_SEND,
					      &blamed.user_data) == 1 ||
	    siw_mem_buffer_queue_pop_unfilled(rc->base.recvs, &blamed.user_data) == 1)
		rc_complete_receive(rc, &blamed);
}

/*
 * Marks as failed the request whose local memory is unmapped or has an invalid key. An error in
 * placing a response concerns the oldest Read. An error without a quoted segment was found in data
 * being sent, and concerns the newest request.
 */
static void rc_fail_request(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	bool of_read = ev->of_response && ev->err.layer == SIW_LAYER_DDP;
	bool of_sent = !ev->quoted && ev->err.layer == SIW_LAYER_RDMAP;
	struct siw_wqe *found = NULL;

	/* in both RDMAP and DDP, error type 0 is the local catastrophic error */
	if (ev->err.type != 0 || (!of_read && !of_sent))
		return;
	siw_lock(&rc->base.qp.send_lock);
	for (struct siw_wqe *wqe = rc->base.flow.first; wqe; wqe = wqe->chain) {
		if (wqe->state == SIW_WQE_BEGUN && (!of_read || siw_qp_awaits_response(wqe)))
			found = wqe;
		if (found && of_read)
			break;
	}
	if (found) {
		found->state = SIW_WQE_DONE;
		found->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_unlock(&rc->base.qp.send_lock);
}

/*
 * Resets the connection if the peer has invalidated a region that is still being sent to the peer
 * in a Read Response. Returns whether the connection was reset. TCP may not have accepted part of
 * the response, which cannot be recalled, and the program may reuse the memory as soon as the
 * invalidation is reported. So the connection is reset first, as if the region had been
 * deregistered.
 */
static __attribute__((cold, noinline)) bool
rc_reset_if_inv_region_sent(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	const struct siw_wire_err err = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					  SIW_RDMAP_CANNOT_INVALIDATE };
	bool in_flight;

	siw_lock(&rc->base.qp.send_lock);
	in_flight = siw_ddp_tx_still_refers_to_stag(rc->base.flow.ddp, ev->inv_stag) == 1;
	siw_unlock(&rc->base.qp.send_lock);
	if (!in_flight)
		return false;
	rc->base.wire_err = SIW_RDMAP_REMOTE_PROTECTION << 8 | SIW_RDMAP_CANNOT_INVALIDATE;
	rc_note_cause_of_connection_end(rc, -EPROTO, &err);
	siw_qp_add_flushed_recv_completion(&rc->base, ev->user_data);
	rc_reset_connection(rc);
	return true;
}

/*
 * Sends the response to a Read Request that has arrived. If the next message is a Read Request that
 * arrived together with this one, the response is only framed, so that one system call sends both
 * responses: several responses fill TCP's segments better than each of them does alone. Any other
 * message that follows is handled after the responses are sent.
 */
static void rc_send_responses(struct siw_rc_qp *rc)
{
	rc->responses_framed = siw_rdmap_is_next_received_read_request(rc->base.flow.stream);
	if (!rc->responses_framed) {
		siw_qp_run_sq_and_mark_unsent(&rc->base);
		return;
	}
	siw_lock(&rc->base.qp.send_lock);
	siw_device_mark_busy(&rc->base.qp);
	siw_rdmap_frame_responses(rc->base.flow.stream);
	siw_unlock(&rc->base.qp.send_lock);
}

/* Sends the responses that rc_send_responses() has only framed, at the end of a receiving turn. */
static void rc_send_framed_responses(struct siw_rc_qp *rc)
{
	if (!rc->responses_framed)
		return;
	rc->responses_framed = false;
	siw_qp_run_sq_and_mark_unsent(&rc->base);
}

/* Handles one event of the RDMAP stream. Returns false if the stream has ended. */
static bool rc_handle_event(struct siw_rc_qp *rc, const struct siw_rdmap_event *ev)
{
	switch (ev->kind) {
	case SIW_RDMAP_RECV:
		if (__builtin_expect(ev->invalidated, 0) && rc_reset_if_inv_region_sent(rc, ev))
			return false;
		rc_complete_receive(rc, ev);
		return true;
	case SIW_RDMAP_BAD_RECV: /* an lkey of the receive is invalid; an ERROR event follows */
		rc_complete_receive(rc, ev);
		return true;
	case SIW_RDMAP_READ_DONE:
		rc_handle_read_done(rc, ev);
		return true;
	case SIW_RDMAP_CONFIRMED:
		rc_handle_confirming_read_response(rc, ev);
		return true;
	case SIW_RDMAP_DELIVERED:
		rc_handle_peer_delivery_count(rc, ev);
		return true;
	case SIW_RDMAP_RNR_RETRY:
		rc_handle_rnr_retry_announcement(rc, ev);
		return true;
	case SIW_RDMAP_PROGRESS:
		if (ev->of_write)
			siw_qp_count_one_sided(&rc->base, ev->length);
		return true;
	case SIW_RDMAP_REQUESTED:
		siw_qp_count_one_sided(&rc->base, ev->length);
		if (!ev->length)
			rc->peer_confirms =
				!siw_rdmap_peer_wants_delivery_counts(rc->base.flow.stream);
		rc_send_responses(rc);
		return true;
	case SIW_RDMAP_UNEXPECTED:
		rnr_begin_wait(rc);
		return true;
	case SIW_RDMAP_STARTED:
		siw_lock(&rc->base.qp.send_lock);
		rc->may_send = true;
		siw_unlock(&rc->base.qp.send_lock);
		if (rc->conn)
			rc->on_started(rc->conn);
		siw_qp_run_sq_and_mark_unsent(&rc->base);
		return true;
	case SIW_RDMAP_TERMINATED:
		rc_mark_terminated_request(rc, ev);
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, -ECONNABORTED, &ev->err);
		return false;
	case SIW_RDMAP_ERROR:
		rc_fail_receive(rc, ev);
		rc_fail_request(rc, ev);
		siw_qp_rc_fail(rc, SIW_TERMINATING, -EPROTO, &ev->err);
		return false;
	case SIW_RDMAP_CLOSED:
		siw_qp_rc_handle_lost_stream(rc, ev->status);
		return false;
	default:
		return true;
	}
}

/*
 * Handles the empty Read that a peer of persona roce sends after each message, and that mostly
 * arrives in the same receive call. The Read is handled immediately, so that the peer's request
 * completes even if the program does not poll again soon. Returns false if the stream has ended.
 */
static __attribute__((noinline)) bool rc_answer_confirm_read(struct siw_rc_qp *rc)
{
	struct siw_rdmap_event ev;

	return !siw_mpa_has_unconsumed_octets(rc->mpa) ||
	       siw_rdmap_next_event(rc->base.flow.stream, &ev) != 1 || rc_handle_event(rc, &ev);
}

/*
 * Whether a receiving turn, in which n messages with a total of octets have arrived, handles
 * another one: messages that arrived together with earlier ones do not count for the burst, because
 * they need no system call.
 */
static bool rc_may_continue_receiving_turn(const struct siw_rc_qp *rc, int n, uint32_t octets)
{
	const uint8_t *ulpdu;
	size_t len;

	return octets < SIW_TURN_OCTETS &&
	       (n < rc->base.burst || (n < (int)siw_settings()->budget &&
				       siw_mpa_rx_peek_already_read_fpdu(rc->mpa, &ulpdu, &len)));
}

static int rc_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_rc_qp *rc = siw_container(self, struct siw_rc_qp, base.qp.handler);
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	bool counted = false;
	int n = 0;

	if (siw_is_closing(&rc->base)) {
		rc_continue_close(rc);
		return 0;
	}
	/*
	 * Earlier in this progress round, the end of another QP may have reset this QP's
	 * connection, because the connection used a window binding that the other QP has replaced.
	 */
	if (!rc->base.flow.stream)
		return 0;
	while (rc_may_continue_receiving_turn(rc, n, octets) &&
	       siw_rdmap_next_event(rc->base.flow.stream, &ev) == 1) {
		/*
		 * A delivery count that precedes a message is not counted as a message of the turn.
		 */
		if (ev.kind == SIW_RDMAP_DELIVERED && !counted)
			counted = true;
		else
			n++;
		octets += ev.placed;
		if (!rc_handle_event(rc, &ev))
			return n;
	}
	if (__builtin_expect(rc->peer_confirms, 0) &&
	    (n >= rc->base.burst || octets >= SIW_TURN_OCTETS) && !rc_answer_confirm_read(rc))
		return n;
	rc_send_framed_responses(rc);
	rc_send_delivery_count_after_receiving(rc, n, octets);
	siw_qp_receive_turn_done(&rc->base, n, octets);
	return n + counted;
}

/* ---- Sends that wait for receives, and deadlines --------------------------------------------- */

/*
 * Processes the Sends that wait for receives, because receives may have been posted, and checks
 * their deadline.
 */
static void rc_process_received_waiting_sends(struct siw_rc_qp *rc, uint64_t now_ns)
{
	if (siw_is_closing(&rc->base) || !rc->base.flow.stream)
		return;
	rc_handle_socket_event(&rc->base.qp.handler);
	if (siw_is_closing(&rc->base) || !rc->base.flow.stream)
		return;
	if (rnr_has_expired(rc, now_ns))
		rc_handle_socket_event(&rc->base.qp.handler);
}

static void rc_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_rc_qp *rc = siw_container(timed, struct siw_rc_qp, base.timed);

	if (siw_is_closing(&rc->base))
		rc_handle_close_timer(rc, now_ns);
	else
		rc_process_received_waiting_sends(rc, now_ns);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Ends the stream because a request or response of this end could not be sent. */
static void rc_end_stream_after_send_error(struct siw_rc_qp *rc)
{
	if (rc->base.flow.stream && siw_teardown_of(&rc->base) == SIW_RESETTING)
		rc_reset_connection(rc);
	if (!rc->base.flow.stream || siw_is_closing(&rc->base))
		return;
	/*
	 * If RDMAP has an error to report to the peer, RDMAP delivers an ERROR event now. A request
	 * that never began does not concern the peer.
	 */
	rc_handle_socket_event(&rc->base.qp.handler);
	if (rc->base.qp.state != SIW_QPS_ERR)
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, -EFAULT, NULL);
}

/*
 * Whether requests are posted on a QP that connects without a connection manager and has no stream
 * yet.
 */
static bool rc_has_requests_awaiting_stream(struct siw_base_qp *base)
{
	bool posted;

	if (!siw_rc_qp_of(base)->pairs || base->flow.stream || base->qp.state != SIW_QPS_RTS)
		return false;
	siw_lock(&base->qp.send_lock);
	posted = base->flow.first != NULL;
	siw_unlock(&base->qp.send_lock);
	return posted;
}

/*
 * Whether the Reads that wait for a batch wait for a further round: the program polls, and
 * responses to earlier Reads are arriving.
 */
static bool rc_delays_reads_for_further_round(struct siw_rc_qp *rc)
{
	struct siw_qp *qp = &rc->base.qp;
	bool wait;

	if (!qp->lane->round_of_poll || !rc->answered_ns)
		return false;
	siw_lock(&qp->send_lock);
	wait = rc->base.flow.stream && rc_may_delay_reads_until_next_response(rc) &&
	       siw_now_ns() - rc->answered_ns < READS_WAIT_NS * (uint64_t)siw_settings()->pauses;
	siw_unlock(&qp->send_lock);
	if (wait)
		atomic_store_explicit(&qp->lane->posts_delayed, true, memory_order_release);
	else
		rc->answered_ns = 0;
	return wait;
}

static enum siw_turn rc_make_sending_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(siw_base_qp_of(qp));
	enum siw_turn left;
	bool broken;
	int teardown;

	if (rc_delays_reads_for_further_round(rc))
		return SIW_TURN_MORE;
	left = siw_qp_make_sending_turn(qp, round);
	teardown = siw_teardown_of(&rc->base);
	broken = teardown == SIW_BROKEN || teardown == SIW_RESETTING;
	if (rc_has_requests_awaiting_stream(&rc->base)) {
		rc->pairs->turn(rc);
		return SIW_TURN_DONE;
	}
	if (broken)
		rc_end_stream_after_send_error(rc);
	if (qp->has_unexpected)
		rc_process_received_waiting_sends(rc, siw_now_ns());
	if (broken)
		return SIW_TURN_DONE;
	return rc_send_delivery_count_in_sending_turn(rc) && left == SIW_TURN_DONE ? SIW_TURN_MORE
										   : left;
}

#define SETTLE_TURNS 8

/*
 * Receives the messages that have arrived, because the peer may have sent an empty Read to find out
 * whether its last message was received.
 */
void siw_qp_rc_receive_arrived_messages(struct siw_base_qp *base)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	siw_qp_send_delayed_requests(
		base); /* requests delayed for a batch count as posted, so they are sent */
	for (int i = 0; i < SETTLE_TURNS && rc->base.flow.stream && !siw_is_closing(&rc->base); i++)
		if (!rc_handle_socket_event(&rc->base.qp.handler))
			break;
	rc_send_delivery_count_if_due(rc);
}

static bool rc_is_sending_from_stag(struct siw_base_qp *base, uint32_t stag)
{
	const struct siw_rc_qp *rc = siw_rc_qp_of(base);

	return rc->base.flow.stream &&
	       siw_ddp_tx_still_refers_to_stag(rc->base.flow.ddp, stag) == 1;
}

static bool rc_has_nothing_to_send(const struct siw_qp *qp)
{
	const struct siw_flow *flow = &siw_base_qp_of(qp)->flow;

	return siw_qp_has_empty_sq(qp) &&
	       (!flow->stream ||
		(!siw_rdmap_has_responses_to_send(flow->stream) &&
		 siw_ddp_tx_framed_position(flow->ddp) == siw_ddp_tx_accepted_position(flow->ddp) &&
		 !siw_ddp_has_tx_message_in_progress(flow->ddp)));
}

/*
 * Resets the connection if Read Responses that TCP has not accepted yet still refer to the revoked
 * memory.
 */
static void rc_reset_if_sending_from_revoked_stag(struct siw_qp *qp, uint32_t stag)
{
	bool in_flight;

	siw_lock(&qp->send_lock);
	in_flight = rc_is_sending_from_stag(siw_base_qp_of(qp), stag);
	siw_unlock(&qp->send_lock);
	if (in_flight)
		rc_reset_connection(siw_rc_qp_of(siw_base_qp_of(qp)));
}

static void rc_end_replaced_mw_binding(struct siw_qp *qp)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(siw_base_qp_of(qp));
	bool cut;

	siw_lock(&qp->send_lock);
	cut = siw_teardown_of(&rc->base) == SIW_RESETTING && rc->base.flow.stream;
	siw_unlock(&qp->send_lock);
	if (cut)
		rc_reset_connection(rc);
	else
		siw_qp_mw_end_replaced_binding(&rc->base, false);
}

static void rc_fail_qp(struct siw_qp *qp, int status)
{
	siw_qp_rc_fail(siw_rc_qp_of(siw_base_qp_of(qp)), SIW_SHUTTING_DOWN, status, NULL);
}

static void rc_close_at_exit(struct siw_qp *qp)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(siw_base_qp_of(qp));

	if (!rc->base.flow.stream || siw_is_closing(&rc->base))
		return;
	siw_qp_rc_receive_arrived_messages(&rc->base);
	siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, 0, NULL);
}

static bool rc_stream_is_closing(const struct siw_qp *qp)
{
	return siw_is_closing(siw_base_qp_of(qp));
}

/* ---- the type -------------------------------------------------------------------------------- */

static int rc_create(struct siw_base_qp *base, const struct siw_qp_init_attr *attr)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	(void)attr;
	rc->linger = calloc(1, sizeof(*rc->linger));
	if (!rc->linger)
		return -ENOMEM;
	base->qp.handler.serve = rc_handle_socket_event;
	base->timed.tick = rc_handle_timer;
	rc->counted = true;
	atomic_fetch_add(&base->qp.ctx->n_rc, 1);
	siw_qp_reserve_next_rc_qpn(base);
	return 0;
}

static void rc_free_resources(struct siw_base_qp *base)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	if (rc->pairs)
		rc->pairs->close(rc);
	free(rc->linger);
	rc->linger = NULL;
	if (rc->counted)
		atomic_fetch_sub(&base->qp.ctx->n_rc, 1);
	rc->counted = false;
}

static int rc_get_addrs(const struct siw_base_qp *base, struct siw_addr *own, struct siw_addr *peer)
{
	const struct siw_rc_qp *rc = siw_rc_qp_of(base);

	return rc->base.flow.stream ? siw_mpa_addrs(rc->mpa, own, peer) : -ENOTCONN;
}

static int rc_prepare_transition(struct siw_base_qp *base, int event,
				 const struct siw_qp_attr *attr, int mask)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(base);

	if (base->flow.stream && (event == SIW_QPE_TO_ERR || event == SIW_QPE_TO_RESET))
		siw_qp_rc_receive_arrived_messages(base);
	if (rc->pairs)
		return rc->pairs->prepare(rc, event, attr, mask);
	if (event == SIW_QPE_TO_RTR)
		return siw_refuse(QP_STEP_RC, (uint64_t)base->qp.state, SIW_QPS_RTR);
	return 0;
}

static void rc_apply_modified_attrs(struct siw_base_qp *base, int mask)
{
	const struct siw_rc_qp *rc = siw_rc_qp_of(base);

	if ((mask & SIW_QP_ACCESS_FLAGS) && rc->base.flow.stream) {
		siw_lock(&base->qp.send_lock);
		siw_rdmap_deny_access_rights(rc->base.flow.stream, ~(uint32_t)base->access);
		siw_unlock(&base->qp.send_lock);
	}
	if ((mask & SIW_QP_RNR_RETRY) && rc->counts.on) {
		siw_lock(&base->qp.send_lock);
		siw_rc_qp_of(base)->counts.announce = true;
		siw_unlock(&base->qp.send_lock);
	}
	if (base->qp.has_unexpected && (mask & (SIW_QP_RNR_RETRY | SIW_QP_MIN_RNR_TIMER)))
		rnr_begin_wait(siw_rc_qp_of(base));
	if (rc->pairs)
		rc->pairs->modified(siw_rc_qp_of(base));
}

static void rc_query_attr(const struct siw_base_qp *base, struct siw_qp_attr *attr)
{
	const struct siw_rc_qp *rc = siw_rc_qp_of(base);

	if (rc->pairs)
		rc->pairs->query(rc, attr);
}

static void rc_query_init_attr(const struct siw_base_qp *base, struct siw_qp_init_attr *init)
{
	init->by_qpn = siw_rc_qp_of(base)->pairs != NULL;
	init->private_messages = base->private_always || base->private;
}

static void rc_begin_close_in_err_state(struct siw_base_qp *base)
{
	rc_begin_close(siw_rc_qp_of(base), SIW_SHUTTING_DOWN);
}

const struct siw_qp_class siw_qp_rc_class = {
	.ops = {
		.owns_regions = true,
		.turn = rc_make_sending_turn,
		.uses_key = siw_qp_uses_lkey,
		.is_quiet = rc_has_nothing_to_send,
		.revoke = rc_reset_if_sending_from_revoked_stag,
		.settle = rc_end_replaced_mw_binding,
		.fail = rc_fail_qp,
		.leave = rc_close_at_exit,
		.is_leaving = rc_stream_is_closing,
	},
	.size = sizeof(struct siw_rc_qp),
	.type = SIW_QPT_RC,
	.opcodes = UINT32_MAX,
	.turn_octets = UINT64_MAX,
	.wait_octets = SIW_DELAY_OCTETS_STREAM,
	.wait_requests = 256,
	.failure = SIW_WC_WR_FLUSH_ERR,
	.binds = true,
	.has_rights = true,
	.create = rc_create,
	.close = rc_free_resources,
	.addr = rc_get_addrs,
	.query_attr = rc_query_attr,
	.query_init = rc_query_init_attr,
	.prepare = rc_prepare_transition,
	.modified = rc_apply_modified_attrs,
	.end = rc_begin_close_in_err_state,
	.release = rc_release_stream_for_reset,
	.post = siw_qp_post_send_request,
	.check = siw_qp_check_send_request,
	.run = rc_run_send_queue,
	.begin = rc_begin_request,
	.failed = rc_handle_request_failure,
	.transmit = rc_transmit_requests,
	.take_recv = rc_release_unfinished_recv,
	.is_sending = rc_is_sending_from_stag,
	.did_local = rc_handle_local_request_done,
};
