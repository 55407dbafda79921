/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* RC queue pairs, sending: the send ring through RDMAP, while the stream lives. */
#include <errno.h>

#include "qp/qp_rc.h"

/* ---- posting --------------------------------------------------------------------------------- */

int siw_qp_rc_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	int64_t length;
	struct siw_wqe *wqe;

	(void)wait; /* all of them lie in the ring until they complete */
	if (__builtin_expect(siw_qp_is_local(wr->opcode), 0))
		return siw_qp_mw_post(wq, wr, SIW_MW_TYPE_2);
	length = siw_qp_op_check(wq, wr);
	if (length < 0)
		return (int)length;
	wqe = siw_qp_wqe_put(wq, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_slot(wq);
	siw_qp_op_put(wqe, wr);
	if (wq->qp.state == SIW_QPS_ERR)
		siw_qp_flush_late_send(wq);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int begin(struct siw_rc *rc, struct siw_wqe *wqe, uint32_t index)
{
	struct siw_rdmap_op op;

	siw_qp_op_make(wqe, index, &op);
	return siw_rdmap_send(rc->stream, &op);
}

/* From so many octets on, a request does not share its question with those behind it. */
#define LONG_OCTETS (64u << 10)

/* Requests nobody is told of wait until the ring is half full of them. */
static void want_confirmation(struct siw_rc *rc, const struct siw_wqe *wqe)
{
	if (rc->wq.sig_all || (wqe->flags & SIW_SEND_SIGNALED) ||
	    rc->wq.sq_next - rc->wq.sq_head > rc->wq.sq_mask / 2)
		rc->confirm.wanted = rc->wq.sq_next;
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
	if (siw_rdmap_confirm(rc->stream, rc->wq.sq_next))
		return false;
	c->asked = true;
	c->due = false;
	c->covered = rc->wq.sq_next;
	return true;
}

/*
 * A request of ours could not be sent, which ends the connection; with persona roce when those ahead
 * of it are with the peer.
 */
static void fail_in_turn(struct siw_rc *rc)
{
	if (rc->wq.sq_head != rc->wq.sq_next) {
		const struct siw_wqe *wqe = siw_qp_wqe(&rc->wq, rc->wq.sq_head);

		if (wqe->state != SIW_WQE_DONE || wqe->status == SIW_WC_SUCCESS)
			return;
	}
	siw_tear(&rc->wq, SIW_BROKEN);
}

/* A request could not be: the connection ends with it, as persona says. */
static void blame(struct siw_rc *rc, struct siw_wqe *wqe, enum siw_wc_status status)
{
	wqe->state = SIW_WQE_DONE;
	wqe->status = (uint8_t)status;
	siw_tear(&rc->wq, rc->confirm.on ? SIW_FAILING : SIW_BROKEN);
	rc->confirm.wanted = rc->wq.sq_next - 1;
}

/* Who waits for it: siw_qp_did_local's. */
void siw_qp_rc_did_local(struct siw_wq *wq, struct siw_wqe *wqe)
{
	struct siw_rc *rc = siw_rc_of(wq);

	/* Its completion comes behind those of the requests before it, of which nobody may have asked. */
	if (rc->confirm.on && (wq->sig_all || (wqe->flags & SIW_SEND_SIGNALED)))
		rc->confirm.wanted = wq->sq_next - 1;
}

/* What happens at this end alone is done when it begins; as begin_next. */
static __attribute__((cold, noinline)) int begin_local(struct siw_rc *rc, struct siw_wqe *wqe)
{
	int r = siw_qp_mw_begin(&rc->wq, wqe);

	if (r == -EINPROGRESS)
		return -EAGAIN;
	if (r) {
		rc->wq.sq_next++;
		blame(rc, wqe, (enum siw_wc_status)r);
		return -EAGAIN;
	}
	siw_qp_did_local(&rc->wq);
	return 0;
}

/* Begins one WQE: 0, or -EAGAIN when nothing more can begin now. */
static int begin_next(struct siw_rc *rc)
{
	struct siw_wqe *wqe = siw_qp_wqe(&rc->wq, rc->wq.sq_next);
	uint64_t accepted;
	int err;

	if ((wqe->flags & SIW_SEND_FENCE) && rc->reads_out)
		return -EAGAIN;
	if (__builtin_expect(siw_qp_is_local(wqe->opcode), 0))
		return begin_local(rc, wqe);
	if (siw_qp_awaits_response(wqe) && rc->reads_out >= rc->wq.reads_max)
		return -EAGAIN;
	if (__builtin_expect(rc->confirm.due, 0))
		send_confirm_read(rc);
	err = begin(rc, wqe, rc->wq.sq_next);
	if (err == -EAGAIN && siw_rdmap_flush(rc->stream, &accepted) == 1) {
		if (__builtin_expect(rc->confirm.due, 0))
			send_confirm_read(rc);
		err = begin(rc, wqe, rc->wq.sq_next);
	}
	if (err == -EAGAIN)
		return err;
	rc->wq.sq_next++;
	if (err) {
		blame(rc, wqe,
		      err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR : SIW_WC_WR_FLUSH_ERR);
		return -EAGAIN;
	}
	wqe->state = SIW_WQE_BEGUN;
	if (siw_qp_awaits_response(wqe)) {
		rc->reads_out++;
		wqe->msn = siw_rdmap_reads(rc->stream);
		rc->confirm.covered = rc->wq.sq_next;
	} else if (wqe->opcode != SIW_WR_RDMA_WRITE) {
		wqe->msn = ++rc->sends_begun;
	}
	if (rc->confirm.on)
		want_confirmation(rc, wqe);
	return 0;
}

/* Whether a request at the head that awaits no response is out: TCP has it (roce: the peer has). */
static bool is_out(const struct siw_rc *rc, const struct siw_wqe *wqe, uint64_t accepted)
{
	return rc->confirm.on ? (int32_t)(rc->confirm.known - rc->wq.sq_head) > 0
			      : wqe->stamp.end <= accepted;
}

/* Completes, in order, what is out and what was read. */
static void reap(struct siw_rc *rc, uint64_t accepted)
{
	while (rc->wq.sq_head != rc->wq.sq_next) {
		struct siw_wqe *wqe = siw_qp_wqe(&rc->wq, rc->wq.sq_head);

		if (wqe->state == SIW_WQE_BEGUN &&
		    (siw_qp_awaits_response(wqe) || !is_out(rc, wqe, accepted)))
			return;
		if (wqe->state == SIW_WQE_DONE && wqe->status != SIW_WC_SUCCESS)
			return; /* for the flush, which is near */
		siw_qp_wqe_finish(&rc->wq, wqe, SIW_WC_SUCCESS, 0);
	}
}

static bool may_begin(const struct siw_rc *rc)
{
	return rc->wq.qp.state == SIW_QPS_RTS && siw_teardown_of(&rc->wq) == SIW_ALIVE &&
	       rc->wq.sq_next != rc->wq.sq_tail;
}

/*
 * TCP could not read what is sent there: a request that lies there says so, and the stream is over. It may be the
 * response to a Read, too.
 */
static __attribute__((cold, noinline)) void blame_sent(struct siw_rc *rc, uint64_t accepted)
{
	for (uint32_t i = rc->wq.sq_head; i != rc->wq.sq_next; i++) {
		struct siw_wqe *wqe = siw_qp_wqe(&rc->wq, i);

		if (wqe->state != SIW_WQE_BEGUN || siw_qp_awaits_response(wqe) ||
		    wqe->stamp.begin > accepted || wqe->stamp.end <= accepted)
			continue;
		wqe->state = SIW_WQE_DONE;
		wqe->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_tear(&rc->wq, SIW_BROKEN);
}

enum siw_run siw_qp_rc_run(struct siw_wq *wq)
{
	struct siw_rc *rc = siw_rc_of(wq);
	uint64_t accepted;
	int r;

	if (!rc->stream)
		return SIW_RUN_DONE;
	while (may_begin(rc))
		if (begin_next(rc))
			break;
	if (__builtin_expect(siw_teardown_of(wq) == SIW_CUT, 0))
		return SIW_RUN_MORE;
	if (rc->confirm.on)
		send_confirm_read(rc);
	r = siw_rdmap_flush(rc->stream, &accepted);
	/*
	 * TCP may have taken everything since a request found no room: nobody else would begin it.
	 * One that does not begin now waits for a Read, and the Read's end comes here again.
	 */
	if (r == 1 && may_begin(rc) && !begin_next(rc))
		r = 0;
	/* Nor would anybody ask, if it was a long message that left no room for the question. */
	if (r == 1 && rc->confirm.on && send_confirm_read(rc))
		r = siw_rdmap_flush(rc->stream, &accepted);
	reap(rc, accepted);
	if (siw_teardown_of(wq) == SIW_FAILING)
		fail_in_turn(rc);
	if (__builtin_expect(r == -EFAULT, 0) && !siw_is_closing(wq))
		blame_sent(rc, accepted);
	if (__builtin_expect(rc->wq.draining, 0))
		siw_qp_drained(&rc->wq);
	/* Found by this end in what it was sending: the receiving side has the error. */
	if (r == -EACCES && !siw_is_closing(wq))
		siw_tear(wq, SIW_BROKEN);
	if (siw_teardown_of(wq) == SIW_BROKEN || wq->revoke.due)
		return SIW_RUN_MORE;
	/* A dead stream says so to the receiving side, which knows what to do. */
	if (r)
		return SIW_RUN_DONE;
	return siw_mpa_tx_blocked(rc->mpa) ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
}

void siw_qp_rc_drain(struct siw_wq *wq)
{
	/* What nobody is told of, nobody asked the peer about. */
	if (wq->sq_next != wq->sq_head)
		siw_rc_of(wq)->confirm.wanted = wq->sq_next;
	siw_qp_rc_run(wq);
}
