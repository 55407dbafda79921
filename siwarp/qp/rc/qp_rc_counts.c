/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Delivery counts on RC (spec/delivery-counts.md): counts of the peer complete requests of this
 * end, and this end decides when to send its own counts.
 *
 * A count precedes a message that is sent anyway. It is sent without a message after 64 KiB, or
 * when a progress round has found the socket empty. It is not sent alone in the round that received
 * data, nor in polls before the next round, because the program has not seen that data yet and may
 * answer it; nor in the next few rounds while a CQ of the queue pair holds completions that the
 * program has not polled. (UCX polls the CQ of receives once more before it polls the CQ of Sends.)
 * Counts without a message keep a minimum distance, so that a peer that streams small messages gets
 * one count for several messages.
 */
#include "base/clock.h"
#include "qp/rc/qp_rc.h"

/* A count is sent after this many octets were received without one. */
#define COUNT_OCTETS (64u << 10)
/*
 * Minimum distance in nanoseconds between counts without a message: about the transfer time of a
 * small message and its count.
 */
#define DISTANCE_NS 5000u
/* A count waits this many progress rounds for a program that has not polled all its completions. */
#define UNSEEN_ROUNDS 4u

/* ---- counts received from the peer ----------------------------------------------------------- */

void siw_qp_rc_counts_start(struct siw_rc *rc, bool agreed, int rnr_retry)
{
	rc->counts = (struct siw_delivery_counts){
		.on = agreed && rc->wq.roce,
		.tell = agreed && rc->wq.roce,
		.sends = rc->sends_begun,
		.rnr_retry = rnr_retry > 0   ? rnr_retry
			     : rnr_retry < 0 ? 0
					     : -1,
		.rnr_fixed = rnr_retry != 0,
	};
	rc->wq.flow.accepted = 0;
}

/* Whether the peer's counts cover this Send or Write. */
static bool rc_count_covers(const struct siw_delivery_counts *c, const struct siw_wqe *wqe)
{
	uint32_t count = wqe->opcode == SIW_WR_RDMA_WRITE ? c->writes : c->sends;

	return (int32_t)(count - wqe->msn) >= 0;
}

/*
 * Whether a count is plausible: it does not decrease, reports something new, and does not exceed
 * what was sent.
 */
static bool rc_count_is_plausible(const struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	const struct siw_delivery_counts *c = &rc->counts;
	uint32_t sends = ev->sends - c->sends, writes = ev->writes - c->writes;

	return (c->on || siw_rdmap_requested_counts(rc->wq.flow.stream)) && (sends || writes) &&
	       sends <= rc->sends_begun - c->sends && writes <= c->writes_begun - c->writes;
}

/*
 * The peer has answered an offer of counts, so it is siwarp: delivery counts replace confirming
 * Reads.
 */
static void rc_enable_counts(struct siw_rc *rc)
{
	rc->counts.on = true;
	rc->confirm.on = rc->confirm.due = false;
}

bool siw_qp_rc_delivered(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	struct siw_flow *flow = &rc->wq.flow;
	uint64_t out = siw_ddp_tx_accepted(flow->ddp);

	if (!rc_count_is_plausible(rc, ev))
		return false;
	if (__builtin_expect(!rc->counts.on, 0))
		rc_enable_counts(rc);
	rc->counts.sends = ev->sends;
	rc->counts.writes = ev->writes;
	/* In order: a Write behind a Send that waits for its receive is not complete either. */
	for (const struct siw_wqe *wqe = flow->first; wqe; wqe = wqe->chain) {
		if (wqe->state == SIW_WQE_DONE || siw_qp_awaits_response(wqe))
			continue;
		if (wqe->state == SIW_WQE_POSTED || !rc_count_covers(&rc->counts, wqe))
			break;
		/* the request has not completely left this end, so the count is wrong */
		if (wqe->stamp.end > out)
			return false;
		flow->accepted = wqe->stamp.end;
	}
	return true;
}

/* ---- counts sent to the peer ----------------------------------------------------------------- */

static bool rc_count_is_due(const struct siw_rc *rc)
{
	return rc->wq.flow.stream && !siw_is_closing(&rc->wq) &&
	       siw_rdmap_count_pending(rc->wq.flow.stream);
}

void siw_qp_rc_counts_send(struct siw_rc *rc)
{
	enum siw_run left;

	if (!rc_count_is_due(rc))
		return;
	siw_lock(&rc->wq.qp.send_lock);
	siw_rdmap_send_count(rc->wq.flow.stream);
	left = siw_qp_rc_run(&rc->wq);
	siw_unlock(&rc->wq.qp.send_lock);
	rc->counts.octets = 0;
	if (left != SIW_RUN_DONE)
		siw_device_mark_unsent(&rc->wq.qp);
}

/*
 * Whether the program may still answer the received data, because it has not polled all resulting
 * completions.
 */
static bool rc_program_may_answer(struct siw_rc *rc)
{
	const struct siw_qp *qp = &rc->wq.qp;
	uint64_t round = qp->ctx->rounds;

	if (round - rc->counts.came >= UNSEEN_ROUNDS ||
	    (siw_cq_pending(qp->send_cq) <= 0 && siw_cq_pending(qp->recv_cq) <= 0))
		return false;
	rc->counts.seen = round;
	return true;
}

/*
 * Sends the peer a count without a message, unless an answer may still carry it, or the last one
 * was sent a short time ago.
 */
static void rc_send_count_alone(struct siw_rc *rc)
{
	uint64_t now;

	if (rc_program_may_answer(rc))
		return;
	now = siw_now_ns();
	if (now - rc->counts.alone_ns < DISTANCE_NS)
		return;
	rc->counts.alone_ns = now;
	siw_qp_rc_counts_send(rc);
}

void siw_qp_rc_counts_received(struct siw_rc *rc, int n, uint32_t octets)
{
	if (!rc_count_is_due(rc))
		return;
	if (n)
		rc->counts.came = rc->counts.seen = rc->wq.qp.ctx->rounds;
	rc->counts.octets += octets;
	if (rc->counts.octets >= COUNT_OCTETS) {
		siw_qp_rc_counts_send(rc);
		return;
	}
	if (n == rc->wq.burst) /* the socket is served again, with n = 0 if it is empty */
		return;
	if (!n)
		rc_send_count_alone(rc);
	if (rc_count_is_due(rc))
		siw_device_mark_unsent(&rc->wq.qp);
}

bool siw_qp_rc_counts_turn(struct siw_rc *rc)
{
	if (rc_count_is_due(rc) && rc->wq.qp.ctx->rounds != rc->counts.seen)
		rc_send_count_alone(rc);
	return rc_count_is_due(rc);
}
