/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs, sending: requests through RDMAP, while the stream lives, and when the peer has
 * them.
 */
#include <errno.h>

#include "qp/qp_rc.h"

/* From so many octets on, a request does not share its question with those behind it. */
#define LONG_OCTETS (64u << 10)

static bool is_wanted(const struct siw_wq *wq, const struct siw_wqe *wqe)
{
	return wq->sig_all || (wqe->flags & SIW_SEND_SIGNALED);
}

/* How many requests were ever begun. */
static uint32_t begun_by(const struct siw_wq *wq)
{
	return wq->sq_head + wq->begun;
}

/* Requests nobody is told of wait until the queue is half full of them. */
static void want_confirmation(struct siw_rc *rc, const struct siw_wqe *wqe)
{
	if (is_wanted(&rc->wq, wqe) || rc->wq.begun >= rc->wq.sq_mask / 2)
		rc->confirm.wanted = begun_by(&rc->wq) + 1;
	rc->confirm.due = wqe->length >= LONG_OCTETS;
}

/* Behind the last thing begun, so that it travels in the same write. Whether there was a need. */
static bool send_confirm_read(struct siw_rc *rc)
{
	struct siw_confirm *c = &rc->confirm;

	if (c->asked || (int32_t)(c->covered - c->wanted) >= 0 ||
	    (rc->wq.qp.state != SIW_QPS_RTS && rc->wq.qp.state != SIW_QPS_SQD))
		return false;
	/* Not now: a Read that is in its way ends some time, or TCP makes room. */
	if (siw_rdmap_confirm(rc->wq.flow.stream, begun_by(&rc->wq)))
		return false;
	c->asked = true;
	c->due = false;
	c->covered = begun_by(&rc->wq);
	return true;
}

int siw_qp_rc_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe)
{
	struct siw_rc *rc = siw_rc_of(wq);
	struct siw_rdmap_op op;
	int err;

	if (__builtin_expect(rc->confirm.due, 0))
		send_confirm_read(rc);
	siw_qp_op_make(wqe, &op);
	err = siw_rdmap_send(flow->stream, &op);
	if (err)
		return err;
	if (siw_qp_awaits_response(wqe)) {
		wqe->msn = siw_rdmap_reads(flow->stream);
		rc->confirm.covered = begun_by(wq) + 1;
	} else if (wqe->opcode != SIW_WR_RDMA_WRITE) {
		wqe->msn = ++rc->sends_begun;
	}
	if (rc->confirm.on)
		want_confirmation(rc, wqe);
	return 0;
}

/* The connection ends with it; with persona roce when those ahead of it are with the peer. */
void siw_qp_rc_failed(struct siw_wq *wq, struct siw_flow *flow, int status)
{
	struct siw_confirm *c = &siw_rc_of(wq)->confirm;

	(void)flow;
	(void)status;
	siw_tear(wq, c->on ? SIW_FAILING : SIW_BROKEN);
	c->wanted = begun_by(wq) - 1;
}

/* Who waits for it: siw_qp_did_local's. */
void siw_qp_rc_did_local(struct siw_wq *wq, struct siw_wqe *wqe)
{
	struct siw_rc *rc = siw_rc_of(wq);

	/*
	 * Its completion comes behind those of the requests before it, of which nobody may have
	 * asked.
	 */
	if (rc->confirm.on && is_wanted(wq, wqe))
		rc->confirm.wanted = begun_by(wq) - 1;
}

int siw_qp_rc_flush(struct siw_wq *wq, struct siw_flow *flow)
{
	struct siw_rc *rc = siw_rc_of(wq);
	int r;

	/* What nobody is told of, nobody asked the peer about. */
	if (__builtin_expect(wq->draining, 0) && wq->begun)
		rc->confirm.wanted = begun_by(wq);
	if (rc->confirm.on)
		send_confirm_read(rc);
	r = siw_rdmap_flush(flow->stream, &flow->taken);
	/* What the peer says that it has is DONE without that. */
	flow->accepted = rc->confirm.on ? 0 : flow->taken;
	return r;
}

/*
 * TCP could not read what is sent there: a request that lies there says so, and the stream is over.
 * It may be the response to a Read, too.
 */
static __attribute__((cold, noinline)) void blame_sent(struct siw_wq *wq, uint64_t at)
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

	if (!flow->stream)
		return SIW_RUN_DONE;
	r = siw_qp_flow_send(wq, flow);
	/* Nobody else would ask, if it was a long message that left no room for the question. */
	if (r == 1 && rc->confirm.on && send_confirm_read(rc))
		r = siw_qp_rc_flush(wq, flow);
	siw_qp_flow_reap(wq, flow);
	if (__builtin_expect(r == -EFAULT, 0) && !siw_is_closing(wq))
		blame_sent(wq, flow->taken);
	/* Found by this end in what it was sending: the receiving side has the error. */
	if (r == -EACCES && !siw_is_closing(wq))
		siw_tear(wq, SIW_BROKEN);
	return siw_qp_flow_left(wq, r, r == 0 && siw_mpa_tx_blocked(rc->mpa));
}
