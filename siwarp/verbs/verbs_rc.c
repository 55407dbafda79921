/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs while their stream lives: the send ring through RDMAP, and what comes up from it.
 */
#include <errno.h>

#include "verbs/verbs_impl.h"

/* ---- posting --------------------------------------------------------------------------------- */

int siw_verbs_rc_post(struct siw_qp *qp, const struct siw_send_wr *wr)
{
	int64_t length;
	struct siw_wqe *wqe;

	if (__builtin_expect(siw_verbs_is_local(wr->opcode), 0))
		return siw_verbs_mw_post(qp, wr, SIW_MW_TYPE_2);
	length = siw_verbs_op_check(qp, wr);
	if (length < 0)
		return (int)length;
	wqe = siw_verbs_wqe_put(qp, wr, (uint64_t)length);
	if (!wqe)
		return -ENOMEM;
	siw_verbs_op_put(wqe, wr);
	if (qp->state == SIW_QPS_ERR)
		siw_verbs_flush_late_send(qp);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int begin(struct siw_qp *qp, struct siw_wqe *wqe, uint32_t index)
{
	struct siw_rdmap_op op;

	siw_verbs_op_make(wqe, index, &op);
	return siw_rdmap_send(qp->stream, &op);
}

/* From so many octets on, a request does not share its question with those behind it. */
#define LONG_OCTETS (64u << 10)

/* Requests nobody is told of wait until the ring is half full of them. */
static void want_confirmation(struct siw_qp *qp, const struct siw_wqe *wqe)
{
	if (qp->sig_all || (wqe->flags & SIW_SEND_SIGNALED) ||
	    qp->sq_next - qp->sq_head > qp->sq_mask / 2)
		qp->confirm.wanted = wqe->seq;
	qp->confirm.due = wqe->length >= LONG_OCTETS;
}

/* Behind the last thing begun, so that it travels in the same write. Whether there was a need. */
static bool ask_confirmation(struct siw_qp *qp)
{
	struct siw_confirm *c = &qp->confirm;

	if (c->asked || c->covered >= c->wanted ||
	    (qp->state != SIW_QPS_RTS && qp->state != SIW_QPS_SQD))
		return false;
	/* Not now: a Read that is in its way ends some time, or TCP makes room. */
	if (siw_rdmap_confirm(qp->stream))
		return false;
	c->asked = true;
	c->due = false;
	c->covered = siw_rdmap_begun(qp->stream);
	return true;
}

/*
 * A request of ours could not be sent, which ends the connection; with persona roce when those ahead
 * of it are with the peer.
 */
static void fail_in_turn(struct siw_qp *qp)
{
	if (qp->sq_head != qp->sq_next) {
		const struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

		if (wqe->state != SIW_WQE_DONE || wqe->status == SIW_WC_SUCCESS)
			return;
	}
	qp->failing = false;
	qp->broken = true;
}

/* A request could not be: the connection ends with it, as persona says. */
static void blame(struct siw_qp *qp, struct siw_wqe *wqe, enum siw_wc_status status)
{
	wqe->state = SIW_WQE_DONE;
	wqe->status = (uint8_t)status;
	qp->failing = qp->confirm.on;
	qp->broken = !qp->confirm.on;
	qp->confirm.wanted = siw_rdmap_begun(qp->stream);
}

void siw_verbs_rc_did_local(struct siw_qp *qp)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_next++);

	wqe->state = SIW_WQE_DONE;
	wqe->status = SIW_WC_SUCCESS;
	wqe->seq = qp->stream ? siw_rdmap_begun(qp->stream) : 0;
	/* Its completion comes behind those of the requests before it, of which nobody may have asked. */
	if (qp->confirm.on && (qp->sig_all || (wqe->flags & SIW_SEND_SIGNALED)))
		qp->confirm.wanted = wqe->seq;
}

/* What happens at this end alone is done when it begins; as begin_next. */
static __attribute__((cold, noinline)) int begin_local(struct siw_qp *qp, struct siw_wqe *wqe)
{
	int r = siw_verbs_mw_begin(qp, wqe);

	if (r == -EINPROGRESS) {
		qp->broken |= qp->cut;
		return -EAGAIN;
	}
	if (r) {
		qp->sq_next++;
		blame(qp, wqe, (enum siw_wc_status)r);
		return -EAGAIN;
	}
	siw_verbs_rc_did_local(qp);
	return 0;
}

/* Begins one WQE: 0, or -EAGAIN when nothing more can begin now. */
static int begin_next(struct siw_qp *qp)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_next);
	int err;

	if ((wqe->flags & SIW_SEND_FENCE) && qp->reads_out)
		return -EAGAIN;
	if (__builtin_expect(siw_verbs_is_local(wqe->opcode), 0))
		return begin_local(qp, wqe);
	if (siw_verbs_asks(wqe) && qp->reads_out >= qp->reads_max)
		return -EAGAIN;
	if (__builtin_expect(qp->confirm.due, 0))
		ask_confirmation(qp);
	err = begin(qp, wqe, qp->sq_next);
	if (err == -EAGAIN && siw_rdmap_flush(qp->stream) == 1) {
		if (__builtin_expect(qp->confirm.due, 0))
			ask_confirmation(qp);
		err = begin(qp, wqe, qp->sq_next);
	}
	if (err == -EAGAIN)
		return err;
	qp->sq_next++;
	if (err) {
		blame(qp, wqe,
		      err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR : SIW_WC_WR_FLUSH_ERR);
		return -EAGAIN;
	}
	wqe->state = SIW_WQE_BEGUN;
	wqe->seq = siw_rdmap_begun(qp->stream);
	if (siw_verbs_asks(wqe)) {
		qp->reads_out++;
		wqe->msn = siw_rdmap_reads(qp->stream);
		qp->confirm.covered = wqe->seq;
	} else if (wqe->opcode != SIW_WR_RDMA_WRITE) {
		wqe->msn = ++qp->sends_begun;
	}
	if (qp->confirm.on)
		want_confirmation(qp, wqe);
	return 0;
}

/* Completes, in order, what TCP has taken (roce: the peer has) and what was read. */
static void reap(struct siw_qp *qp)
{
	uint64_t accepted = qp->confirm.on ? qp->confirm.known : siw_rdmap_accepted(qp->stream);

	while (qp->sq_head != qp->sq_next) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

		if (wqe->state == SIW_WQE_BEGUN && (siw_verbs_asks(wqe) || wqe->seq > accepted))
			return;
		if (wqe->state == SIW_WQE_DONE && wqe->status != SIW_WC_SUCCESS)
			return; /* for the flush, which is near */
		siw_verbs_wqe_finish(qp, wqe, SIW_WC_SUCCESS, 0);
	}
}

static bool may_begin(const struct siw_qp *qp)
{
	return qp->state == SIW_QPS_RTS && !qp->broken && !qp->failing &&
	       qp->sq_next != qp->sq_tail;
}

/* TCP could not read what a request sends: the request says so, and the stream is over. */
static __attribute__((cold, noinline)) void blame_sent(struct siw_qp *qp)
{
	uint64_t seq = siw_rdmap_faulty(qp->stream);

	for (uint32_t i = qp->sq_head; seq && i != qp->sq_next; i++) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, i);

		if (wqe->state != SIW_WQE_BEGUN || wqe->seq != seq)
			continue;
		wqe->state = SIW_WQE_DONE;
		wqe->status = SIW_WC_LOC_PROT_ERR;
	}
	qp->broken = true;
}

enum siw_run siw_verbs_rc_run(struct siw_qp *qp)
{
	int r;

	if (!qp->stream)
		return SIW_RUN_DONE;
	while (may_begin(qp))
		if (begin_next(qp))
			break;
	if (__builtin_expect(qp->cut, 0))
		return SIW_RUN_MORE;
	if (qp->confirm.on)
		ask_confirmation(qp);
	r = siw_rdmap_flush(qp->stream);
	/*
	 * TCP may have taken everything since a request found no room: nobody else would begin it.
	 * One that does not begin now waits for a Read, and the Read's end comes here again.
	 */
	if (r == 1 && may_begin(qp) && !begin_next(qp))
		r = 0;
	/* Nor would anybody ask, if it was a long message that left no room for the question. */
	if (r == 1 && qp->confirm.on && ask_confirmation(qp))
		r = siw_rdmap_flush(qp->stream);
	reap(qp);
	if (qp->failing)
		fail_in_turn(qp);
	if (__builtin_expect(r == -EFAULT, 0) && !qp->closing)
		blame_sent(qp);
	if (__builtin_expect(qp->draining, 0))
		siw_verbs_qp_drained(qp);
	/* Found by this end in what it was sending: the receiving side has the error. */
	if (r == -EACCES && !qp->closing)
		qp->broken = true;
	if (qp->broken || qp->revoke.due)
		return SIW_RUN_MORE;
	/* A dead stream says so to the receiving side, which knows what to do. */
	if (r)
		return SIW_RUN_DONE;
	return siw_rdmap_blocked(qp->stream) ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
}

void siw_verbs_rc_drain(struct siw_qp *qp)
{
	/* What nobody is told of, nobody asked the peer about. */
	if (qp->sq_next != qp->sq_head)
		qp->confirm.wanted = siw_verbs_wqe(qp, qp->sq_next - 1)->seq;
	siw_verbs_rc_run(qp);
}

static void run_and_mark(struct siw_qp *qp)
{
	enum siw_run run;

	siw_lock(&qp->send_lock);
	run = siw_verbs_rc_run(qp);
	siw_unlock(&qp->send_lock);
	if (run != SIW_RUN_DONE)
		siw_verbs_mark_unsent(qp);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_recv(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	struct siw_wc wc = {
		.wr_id = ev->cookie,
		.opcode = SIW_WC_RECV,
		.byte_len = ev->length,
		.qp_num = qp->qpn,
	};

	if (ev->invalidated) {
		wc.wc_flags = SIW_WC_WITH_INV;
		wc.invalidated_rkey = ev->inv_stag;
	}
	if (__builtin_expect(ev->with_imm, 0)) {
		wc.opcode = ev->of_write ? SIW_WC_RECV_RDMA_WITH_IMM : SIW_WC_RECV;
		wc.wc_flags = SIW_WC_WITH_IMM;
		wc.imm_data = ev->imm;
	}
	if (ev->kind == SIW_RDMAP_BAD_RECV)
		wc.status = ev->status == -EMSGSIZE ? SIW_WC_LOC_LEN_ERR
			    : ev->status == -EPROTO ? SIW_WC_WR_FLUSH_ERR
						    : SIW_WC_LOC_PROT_ERR;
	siw_verbs_complete(qp, qp->recv_cq, &wc, NULL, ev->solicited);
	siw_verbs_heard(qp);
}

static void on_read_done(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	siw_lock(&qp->send_lock);
	siw_verbs_wqe(qp, (uint32_t)ev->cookie)->state = SIW_WQE_DONE;
	siw_verbs_wqe(qp, (uint32_t)ev->cookie)->status = SIW_WC_SUCCESS;
	qp->confirm.known = siw_verbs_wqe(qp, (uint32_t)ev->cookie)->seq;
	qp->reads_out--;
	siw_unlock(&qp->send_lock);
	run_and_mark(qp);
}

/* The answers come in order, so this one knows more than the last. */
static void on_confirmed(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	siw_lock(&qp->send_lock);
	qp->confirm.known = ev->cookie;
	qp->confirm.asked = false;
	siw_unlock(&qp->send_lock);
	run_and_mark(qp);
}

/* How the request behind a Terminate completes (RFC 5040 section 4.8's codes in verbs' terms). */
enum siw_wc_status siw_verbs_status_of(const struct siw_wire_err *err)
{
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_PROTECTION)
		return SIW_WC_REM_ACCESS_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_TAGGED_BUFFER)
		return SIW_WC_REM_ACCESS_ERR;
	if (err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_UNTAGGED_BUFFER)
		return err->code == SIW_DDP_NO_BUFFER ? SIW_WC_RNR_RETRY_EXC_ERR
						      : SIW_WC_REM_INV_REQ_ERR;
	if (err->layer == SIW_LAYER_RDMAP && err->type == SIW_RDMAP_REMOTE_OPERATION &&
	    err->code == SIW_RDMAP_OPCODE)
		return SIW_WC_REM_INV_REQ_ERR;
	return SIW_WC_REM_OP_ERR;
}

/*
 * Whether the header that a Terminate quotes is of this request. Of Writes to the same place it is
 * the first: nothing is called delivered that may not be.
 */
bool siw_verbs_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev)
{
	uint64_t last = wqe->length ? wqe->length - 1 : 0;

	if (wqe->state != SIW_WQE_BEGUN)
		return false;
	if (ev->quoted_tagged)
		return (siw_verbs_op_flags(wqe->opcode) & SIW_OP_WRITES) &&
		       ev->quoted_stag == wqe->rkey && ev->quoted_to - wqe->remote <= last;
	return (siw_verbs_op_flags(wqe->opcode) & (SIW_OP_SENDS | SIW_OP_ASKS)) &&
	       ev->quoted_msn == wqe->msn && ev->quoted_qn == siw_verbs_asks(wqe);
}

/* The request that the Terminate is about, if it is still here; else sq_next. */
static uint32_t find_culprit(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	uint32_t i = qp->sq_head;

	while (i != qp->sq_next && !siw_verbs_is_quoted(siw_verbs_wqe(qp, i), ev))
		i++;
	return i;
}

/*
 * Says how the request ended that the Terminate is about. The peer took what came in order, so it
 * has the Sends and Writes before; what it was still to answer, it will not.
 */
static void name_culprit(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	uint32_t culprit;

	if (!ev->quoted)
		return;
	siw_lock(&qp->send_lock);
	culprit = find_culprit(qp, ev);
	if (culprit != qp->sq_next) {
		for (uint32_t i = qp->sq_head; i != culprit; i++) {
			struct siw_wqe *wqe = siw_verbs_wqe(qp, i);

			if (wqe->state != SIW_WQE_BEGUN || siw_verbs_asks(wqe))
				continue;
			wqe->state = SIW_WQE_DONE;
			wqe->status = SIW_WC_SUCCESS;
		}
		siw_verbs_wqe(qp, culprit)->state = SIW_WQE_DONE;
		siw_verbs_wqe(qp, culprit)->status = (uint8_t)siw_verbs_status_of(&ev->err);
	}
	siw_unlock(&qp->send_lock);
}

/* The receive that this end's error is about, if it is about one, says how it failed. */
static void blame_receive(struct siw_qp *qp, const struct siw_rdmap_event *ev)
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
	if (siw_rdmap_take_recv(qp->stream, &blamed.cookie) == 1 ||
	    siw_rdmap_queue_take(qp->recvs, &blamed.cookie) == 1)
		on_recv(qp, &blamed);
}

/*
 * This end's memory is not there, or its key is dead: the request that it belongs to says so. A
 * response's place is the oldest Read's; an error about no segment was found in what was being sent,
 * and that is the newest.
 */
static void blame_request(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	bool of_read = ev->of_response && ev->err.layer == SIW_LAYER_DDP;
	bool of_sent = !ev->quoted && ev->err.layer == SIW_LAYER_RDMAP;
	struct siw_wqe *found = NULL;

	if (ev->err.type != 0 || (!of_read && !of_sent)) /* 0: local catastrophic, at both layers */
		return;
	siw_lock(&qp->send_lock);
	for (uint32_t i = qp->sq_head; i != qp->sq_next; i++) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, i);

		if (wqe->state == SIW_WQE_BEGUN && (!of_read || siw_verbs_asks(wqe)))
			found = wqe;
		if (found && of_read)
			break;
	}
	if (found) {
		found->state = SIW_WQE_DONE;
		found->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_unlock(&qp->send_lock);
}

/*
 * The peer ended a region that it is still being sent in answer to a Read. What TCP has not taken of that
 * cannot be recalled, and the memory is the program's as soon as it hears: the connection ends first,
 * with a reset, as if the region had been deregistered.
 */
static __attribute__((cold, noinline)) bool still_read(struct siw_qp *qp,
						       const struct siw_rdmap_event *ev)
{
	const struct siw_wire_err err = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					  SIW_RDMAP_CANNOT_INVALIDATE };
	bool in_flight;

	siw_lock(&qp->send_lock);
	in_flight = siw_rdmap_revoke(qp->stream, ev->inv_stag) == 1;
	siw_unlock(&qp->send_lock);
	if (!in_flight)
		return false;
	qp->wire_err = SIW_RDMAP_REMOTE_PROTECTION << 8 | SIW_RDMAP_CANNOT_INVALIDATE;
	if (qp->conn)
		siw_verbs_conn_cause(qp->conn, -EPROTO, &err);
	siw_verbs_flush_recv(qp, ev->cookie);
	siw_verbs_rc_abort(qp);
	return true;
}

/* One event; false when the stream is over. */
static bool handle(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	switch (ev->kind) {
	case SIW_RDMAP_RECV:
		if (__builtin_expect(ev->invalidated, 0) && still_read(qp, ev))
			return false;
		on_recv(qp, ev);
		return true;
	case SIW_RDMAP_BAD_RECV: /* the user's own key was wrong: the ERROR follows */
		on_recv(qp, ev);
		return true;
	case SIW_RDMAP_READ_DONE:
		on_read_done(qp, ev);
		return true;
	case SIW_RDMAP_CONFIRMED:
		on_confirmed(qp, ev);
		return true;
	case SIW_RDMAP_REQUESTED:
		qp->peer_asks |= !ev->length;
		run_and_mark(qp);
		return true;
	case SIW_RDMAP_PARKED:
		siw_verbs_rnr_begin(qp);
		return true;
	case SIW_RDMAP_STARTED:
		qp->may_send = true;
		if (qp->conn)
			siw_verbs_conn_established(qp->conn);
		run_and_mark(qp);
		return true;
	case SIW_RDMAP_TERMINATED:
		name_culprit(qp, ev);
		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, -ECONNABORTED, &ev->err);
		return false;
	case SIW_RDMAP_ERROR:
		blame_receive(qp, ev);
		blame_request(qp, ev);
		siw_verbs_rc_fail(qp, SIW_TERMINATING, -EPROTO, &ev->err);
		return false;
	case SIW_RDMAP_CLOSED:
		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, ev->status, NULL);
		return false;
	default:
		return true;
	}
}

/*
 * A peer of persona roce asks behind each message whether it is here, and the question mostly came in
 * the same read. Answered now, its request completes although the program here polls no more for a
 * while. False when the stream is over.
 */
static __attribute__((noinline)) bool answer_question(struct siw_qp *qp)
{
	struct siw_rdmap_event ev;

	return !siw_rdmap_staged(qp->stream) || siw_rdmap_recv(qp->stream, &ev) != 1 ||
	       handle(qp, &ev);
}

int siw_verbs_rc_serve(struct siw_pollee *self)
{
	struct siw_qp *qp = siw_container(self, struct siw_qp, pollee);
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	int n = 0;

	if (qp->closing) {
		siw_verbs_rc_close_step(qp);
		return 0;
	}
	while (n < qp->burst && octets < SIW_TURN_OCTETS && siw_rdmap_recv(qp->stream, &ev) == 1) {
		n++;
		octets += ev.placed;
		if (!handle(qp, &ev))
			return n;
	}
	if (__builtin_expect(qp->peer_asks, 0) && (n == qp->burst || octets >= SIW_TURN_OCTETS) &&
	    !answer_question(qp))
		return n;
	siw_verbs_next_burst(qp, octets < SIW_TURN_OCTETS ? n : qp->burst);
	if (qp->srq)
		siw_verbs_srq_taken(qp->srq);
	return n;
}
