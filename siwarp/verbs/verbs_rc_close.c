/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How an RC queue pair lets go of its stream. What completed must reach the peer, so the sending
 * side is shut first and the peer's end of stream awaited: closing a socket with unread input
 * resets the connection and takes the peer's unread data with it. Work is flushed when the stream
 * refers to its memory no longer.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "verbs/verbs_impl.h"

static uint64_t linger_until(void)
{
	return siw_now_ns() + (uint64_t)siw_settings()->linger_ms * 1000000;
}

/* ---- after the QP: a stream that waits for the peer's end ------------------------------------ */

static void linger_end(struct siw_linger *linger)
{
	siw_verbs_timed_del(linger->ctx, &linger->timed);
	atomic_fetch_sub(&linger->ctx->n_linger, 1);
	siw_rdmap_close(linger->stream, false);
	free(linger);
}

static int linger_serve(struct siw_pollee *self)
{
	struct siw_linger *linger = siw_container(self, struct siw_linger, pollee);

	if (siw_rdmap_drain(linger->stream))
		linger_end(linger);
	return 0;
}

static void linger_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_linger *linger = siw_container(timed, struct siw_linger, timed);

	if (siw_rdmap_drain(linger->stream) || now_ns >= linger->deadline_ns)
		linger_end(linger);
}

static struct siw_rdmap_stream *detach(struct siw_qp *qp)
{
	struct siw_rdmap_stream *stream = qp->stream;

	siw_lock(&qp->send_lock);
	qp->stream = NULL;
	qp->closing = SIW_OPEN;
	qp->broken = qp->failing = qp->cut = false;
	siw_unlock(&qp->send_lock);
	siw_verbs_rnr_end(qp);
	siw_verbs_timed_del(qp->ctx, &qp->timed);
	return stream;
}

static void start_linger(struct siw_linger *linger, struct siw_context *ctx,
			 struct siw_rdmap_stream *stream)
{
	linger->pollee.serve = linger_serve;
	linger->ctx = ctx;
	linger->stream = stream;
	linger->deadline_ns = linger_until();
	linger->timed.tick = linger_tick;
	siw_link_init(&linger->timed.link);
	siw_rdmap_set_token(linger->stream, &linger->pollee);
	siw_verbs_timed_add(linger->ctx, &linger->timed, linger->deadline_ns);
	atomic_fetch_add(&ctx->n_linger, 1);
}

int siw_verbs_linger(struct siw_context *ctx, struct siw_rdmap_stream *stream)
{
	struct siw_linger *linger = calloc(1, sizeof(*linger));

	if (!linger)
		return -ENOMEM;
	start_linger(linger, ctx, stream);
	return 0;
}

static void let_linger(struct siw_qp *qp)
{
	struct siw_linger *linger = qp->linger;

	qp->linger = NULL;
	start_linger(linger, qp->ctx, detach(qp));
}

static void leave_conn(struct siw_qp *qp)
{
	struct siw_verbs_conn *conn = qp->conn;

	qp->conn = NULL;
	if (conn)
		siw_verbs_conn_over(conn);
}

/* ---- with the QP ----------------------------------------------------------------------------- */

static void finish(struct siw_qp *qp, bool dead)
{
	siw_verbs_flush(qp);
	if (dead)
		siw_rdmap_close(detach(qp), false);
	else
		let_linger(qp);
	leave_conn(qp);
}

void siw_verbs_rc_close_step(struct siw_qp *qp)
{
	int r;

	siw_lock(&qp->send_lock);
	r = qp->closing == SIW_TERMINATING ? siw_rdmap_terminate(qp->stream)
					   : siw_rdmap_shutdown(qp->stream);
	/* What went out meanwhile completes as it would have. */
	siw_verbs_rc_run(qp);
	siw_unlock(&qp->send_lock);
	/*
	 * The peer may be as full of words as we are: who only talks does not hear that both wait. And a
	 * responder that never heard of its peer will not get anything out.
	 */
	if (!r) {
		siw_rdmap_drain(qp->stream);
		if (!qp->may_send)
			r = -ENOTCONN;
	}
	if (r)
		finish(qp, r < 0);
}

/*
 * Ends sending now: what TCP does not take at once is given up, since it refers to memory that is the
 * user's again. The peer reads what TCP has, then an end of stream, perhaps within an FPDU.
 */
static int end_sending(struct siw_qp *qp)
{
	int r;

	siw_lock(&qp->send_lock);
	r = qp->closing == SIW_TERMINATING ? siw_rdmap_terminate(qp->stream)
					   : siw_rdmap_shutdown(qp->stream);
	if (!r)
		r = siw_rdmap_cut(qp->stream);
	siw_unlock(&qp->send_lock);
	return r;
}

void siw_verbs_rc_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_qp *qp = siw_container(timed, struct siw_qp, timed);

	if (!qp->closing)
		siw_verbs_rnr_look(qp, now_ns);
	else if (now_ns >= qp->close_by_ns)
		finish(qp, end_sending(qp) != 1);
	else
		siw_verbs_rc_close_step(qp);
}

void siw_verbs_rc_close(struct siw_qp *qp, enum siw_closing how)
{
	if (!qp->stream) {
		siw_verbs_flush(qp);
		return;
	}
	siw_lock(&qp->send_lock);
	qp->closing = how;
	siw_unlock(&qp->send_lock);
	qp->close_by_ns = linger_until();
	siw_verbs_timed_add(qp->ctx, &qp->timed, qp->close_by_ns);
	siw_verbs_rc_close_step(qp);
}

/*
 * RDMAP's local catastrophic error has no code, and any may stand there (RFC 5040 figure 9). As 0 it
 * would be told as 0, which means that there is none.
 */
static void give_code(struct siw_wire_err *err)
{
	if (!err->layer && !err->type && !err->code)
		err->code = SIW_RDMAP_UNSPECIFIED;
}

void siw_verbs_rc_fail(struct siw_qp *qp, enum siw_closing how, int status,
		       const struct siw_wire_err *err)
{
	struct siw_wire_err told;

	if (err) {
		told = *err;
		give_code(&told);
		err = &told;
	}
	if (err)
		qp->wire_err = (uint32_t)err->layer << 16 | (uint32_t)err->type << 8 | err->code;
	if (qp->conn)
		siw_verbs_conn_cause(qp->conn, status, err);
	if (siw_verbs_qp_step(qp, SIW_QPE_FAILED) == SIW_QPA_FLUSH) {
		siw_verbs_async_failure(qp, how, status, err);
		if (qp->cut)
			siw_verbs_rc_abort(qp);
		else
			siw_verbs_rc_close(qp, how);
	}
}

void siw_verbs_rc_broken(struct siw_qp *qp)
{
	if (qp->stream && qp->cut)
		siw_verbs_rc_abort(qp);
	if (!qp->stream || qp->closing)
		return;
	/*
	 * If the peer must be told, RDMAP says so as an ERROR; a request that never began concerns
	 * us alone.
	 */
	siw_verbs_rc_serve(&qp->pollee);
	if (qp->state != SIW_QPS_ERR)
		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, -EFAULT, NULL);
}

void siw_verbs_rc_abort(struct siw_qp *qp)
{
	struct siw_rdmap_stream *stream;
	uint64_t cookie;
	bool taken;

	if (siw_verbs_qp_step(qp, SIW_QPE_FAILED) == SIW_QPA_FLUSH)
		siw_verbs_async_qp(qp, SIW_EVENT_QP_FATAL);
	stream = detach(qp);
	/* A message that broke off in its middle has its receive already: the oldest of all. */
	taken = siw_rdmap_take_recv(stream, &cookie) == 1;
	siw_rdmap_close(stream, true);
	if (taken)
		siw_verbs_flush_recv(qp, cookie);
	siw_verbs_flush(qp);
	leave_conn(qp);
}

#define SETTLE_TURNS 8

void siw_verbs_rc_settle(struct siw_qp *qp)
{
	for (int i = 0; i < SETTLE_TURNS && qp->stream && !qp->closing; i++)
		if (!siw_verbs_rc_serve(&qp->pollee))
			return;
}

void siw_verbs_rc_release(struct siw_qp *qp)
{
	if (qp->stream) {
		if (end_sending(qp) == 1)
			let_linger(qp);
		else
			siw_rdmap_close(detach(qp), false);
	}
	leave_conn(qp);
	qp->wire_err = 0;
}
