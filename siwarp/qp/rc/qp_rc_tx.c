/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sending on RC queue pairs: through RDMAP while there is a stream; with persona roce also finding
 * out what the peer has received.
 */
#include <errno.h>

#include "qp/rc/qp_rc.h"

/*
 * A request of at least this many octets is confirmed by its own Read, not together with later
 * requests.
 */
#define LONG_OCTETS (64u << 10)

static bool rc_is_signaled(const struct siw_wq *wq, const struct siw_wqe *wqe)
{
	return wq->sig_all || (wqe->flags & SIW_SEND_SIGNALED);
}

/* The number of requests begun since the QP was created. */
static uint32_t rc_requests_begun(const struct siw_wq *wq)
{
	return wq->sq_head + wq->begun;
}

/*
 * Requests confirmation of a request. Unsignaled requests are confirmed only when they fill half of
 * the queue.
 */
static void want_confirmation(struct siw_rc *rc, const struct siw_wqe *wqe)
{
	if (rc_is_signaled(&rc->wq, wqe) || rc->wq.begun >= rc->wq.sq_mask / 2)
		rc->confirm.wanted = rc_requests_begun(&rc->wq) + 1;
	rc->confirm.due = wqe->length >= LONG_OCTETS;
}

/*
 * Sends an empty Read behind the last request begun, so that both leave in one write. Returns
 * whether the Read was needed and sent.
 */
static bool send_confirm_read(struct siw_rc *rc)
{
	struct siw_confirm *c = &rc->confirm;

	if (c->asked || (int32_t)(c->covered - c->wanted) >= 0 ||
	    (rc->wq.qp.state != SIW_QPS_RTS && rc->wq.qp.state != SIW_QPS_SQD))
		return false;
	/* On failure a later call retries: when an outstanding Read ends, or TCP has room. */
	if (siw_rdmap_confirm(rc->wq.flow.stream, rc_requests_begun(&rc->wq)))
		return false;
	c->asked = true;
	c->due = false;
	c->covered = rc_requests_begun(&rc->wq);
	return true;
}

/*
 * Assigns the numbers by which counts refer to a request. A Write with immediate data is a Write
 * followed by a message on the Send queue, and is numbered as both.
 */
static void rc_number_request(struct siw_rc *rc, struct siw_wqe *wqe)
{
	if (siw_qp_op_flags(wqe->opcode) & SIW_OP_WRITES)
		wqe->msn = ++rc->counts.writes_begun;
	if (wqe->opcode != SIW_WR_RDMA_WRITE) {
		wqe->msn = ++rc->sends_begun;
		rc->confirm.sends = rc_requests_begun(&rc->wq) + 1;
	}
}

/*
 * Records what the response to this Read or atomic will confirm: all earlier requests, unless
 * earlier Sends are unconfirmed and the response does not cover Sends.
 */
static void rc_record_confirmation(struct siw_rc *rc, const struct siw_wqe *wqe)
{
	struct siw_confirm *c = &rc->confirm;

	if (siw_qp_rc_confirms_sends(wqe) || (int32_t)(c->sends - c->covered) <= 0)
		c->covered = rc_requests_begun(&rc->wq) + 1;
}

int siw_qp_rc_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe)
{
	struct siw_rc *rc = siw_rc_of(wq);
	struct siw_rdmap_op op;
	int err;

	if (__builtin_expect(rc->confirm.due, 0))
		send_confirm_read(rc);
	if (__builtin_expect(rc->counts.tell, 0)) {
		siw_rdmap_announce(flow->stream, rc->counts.on, (uint8_t)wq->rnr_retry);
		rc->counts.tell = false;
	}
	siw_qp_op_make(wqe, &op);
	err = siw_rdmap_send(flow->stream, &op);
	if (err)
		return err;
	if (siw_qp_awaits_response(wqe)) {
		wqe->msn = siw_rdmap_reads(flow->stream);
		rc_record_confirmation(rc, wqe);
	} else {
		rc_number_request(rc, wqe);
	}
	if (rc->confirm.on)
		want_confirmation(rc, wqe);
	return 0;
}

/*
 * A failed request ends the connection; with persona roce, only after the peer has received the
 * earlier requests.
 */
void siw_qp_rc_failed(struct siw_wq *wq, struct siw_flow *flow, int status)
{
	struct siw_rc *rc = siw_rc_of(wq);

	(void)flow;
	(void)status;
	siw_tear(wq, rc->confirm.on || rc->counts.on ? SIW_FAILING : SIW_BROKEN);
	rc->confirm.wanted = rc_requests_begun(wq) - 1;
}

/* See siw_qp_local_done. */
void siw_qp_rc_did_local(struct siw_wq *wq, struct siw_wqe *wqe)
{
	struct siw_rc *rc = siw_rc_of(wq);

	/*
	 * A local request completes after the earlier requests, which may be unsignaled and thus
	 * not confirmed yet.
	 */
	if (rc->confirm.on && rc_is_signaled(wq, wqe))
		rc->confirm.wanted = rc_requests_begun(wq) - 1;
}

int siw_qp_rc_flush(struct siw_wq *wq, struct siw_flow *flow)
{
	struct siw_rc *rc = siw_rc_of(wq);
	int r;

	/* To drain the send queue, unsignaled requests must be confirmed, too. */
	if (__builtin_expect(wq->draining, 0) && wq->begun)
		rc->confirm.wanted = rc_requests_begun(wq);
	if (rc->confirm.on)
		send_confirm_read(rc);
	r = siw_rdmap_flush(flow->stream, &flow->taken);
	/*
	 * If confirmations are on, mark_delivered() makes requests DONE instead; with delivery
	 * counts, siw_qp_rc_delivered() sets accepted.
	 */
	if (!rc->counts.on)
		flow->accepted = rc->confirm.on ? 0 : flow->taken;
	return r;
}

/*
 * TCP could not read the memory of the data at that position of the stream: marks the request that
 * contains the position as failed, and ends the stream. The position may lie in a Read Response
 * instead.
 */
static __attribute__((cold, noinline)) void rc_fail_at_position(struct siw_wq *wq, uint64_t at)
{
	for (struct siw_wqe *wqe = wq->flow.first; wqe; wqe = wqe->chain) {
		if (wqe->state != SIW_WQE_BEGUN || siw_qp_awaits_response(wqe) ||
		    wqe->stamp.begin > at || wqe->stamp.end <= at)
			continue;
		wqe->state = SIW_WQE_DONE;
		wqe->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_tear(wq, SIW_BROKEN);
}

enum siw_run siw_qp_rc_run(struct siw_wq *wq)
{
	struct siw_flow *flow = &wq->flow;
	struct siw_rc *rc = siw_rc_of(wq);
	int r;

	/* SIW_RUN_MORE causes a turn, which starts the time-out for a missing stream */
	if (!flow->stream)
		return rc->pairs && flow->first ? SIW_RUN_MORE : SIW_RUN_DONE;
	if (siw_rdmap_responses_pending(flow->stream))
		siw_device_mark_busy(&wq->qp);
	/*
	 * With RC by QPN, requests wait in the send queue for the RTR, since a start-up may break
	 * off.
	 */
	if (__builtin_expect(rc->pairs && !rc->may_send, 0))
		r = siw_qp_rc_flush(wq, flow);
	else
		r = siw_qp_flow_send(wq, flow);
	/*
	 * A long message may have left no room for the confirming Read before, and nothing else
	 * would send it.
	 */
	if (r == 1 && rc->confirm.on && send_confirm_read(rc))
		r = siw_qp_rc_flush(wq, flow);
	siw_qp_flow_reap(wq, flow);
	if (__builtin_expect(r == -EFAULT, 0) && !siw_is_closing(wq))
		rc_fail_at_position(wq, flow->taken);
	/* This end found an error in data that it was sending; the receiving side reports it. */
	if (r == -EACCES && !siw_is_closing(wq))
		siw_tear(wq, SIW_BROKEN);
	/*
	 * If memory runs out, no event would send the rest later, and both ends would wait: ends
	 * the stream.
	 */
	if (__builtin_expect(r == -ENOMEM, 0) && !siw_is_closing(wq))
		siw_tear(wq, SIW_BROKEN);
	return siw_qp_flow_left(wq, r, r == 0 && siw_mpa_tx_blocked(rc->mpa));
}
