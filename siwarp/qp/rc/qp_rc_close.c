/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How an RC queue pair gives up its stream. Completed requests must reach the peer. Closing a
 * socket with unread input resets the connection and discards data that the peer has not read yet;
 * so the sending side is shut down first, and this end waits for the peer's end of stream. Requests
 * are flushed when the stream no longer refers to their memory.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "qp/rc/qp_rc.h"

static uint64_t linger_until(void)
{
	return siw_now_ns() + (uint64_t)siw_settings()->linger_ms * 1000000;
}

/* ---- after the QP: a stream that waits for the peer's end of stream -------------------------- */

static void linger_end(struct siw_linger *linger)
{
	siw_device_timed_del(linger->ctx, &linger->timed);
	atomic_fetch_sub(&linger->ctx->n_linger, 1);
	siw_mpa_close(linger->mpa, false);
	free(linger);
}

static int linger_serve(struct siw_io_handler *self)
{
	struct siw_linger *linger = siw_container(self, struct siw_linger, handler);

	if (siw_mpa_drain(linger->mpa))
		linger_end(linger);
	return 0;
}

static void linger_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_linger *linger = siw_container(timed, struct siw_linger, timed);

	if (siw_mpa_drain(linger->mpa) || now_ns >= linger->deadline_ns)
		linger_end(linger);
}

/* Closes RDMAP and ddp; returns the connection below them. */
static struct siw_mpa_stream *rc_detach_stream(struct siw_rc *rc)
{
	struct siw_mpa_stream *mpa = rc->mpa;

	siw_lock(&rc->wq.qp.send_lock);
	siw_rdmap_close(rc->wq.flow.stream);
	rc->wq.flow.stream = NULL;
	rc->wq.flow.ddp = NULL;
	rc->mpa = NULL;
	rc->wq.connected = false;
	if (siw_teardown_of(&rc->wq) < SIW_FLUSHED)
		siw_set_teardown(&rc->wq, SIW_ALIVE);
	siw_unlock(&rc->wq.qp.send_lock);
	siw_qp_rnr_end(rc);
	siw_device_timed_del(rc->wq.qp.ctx, &rc->wq.timed);
	return mpa;
}

static void start_linger(struct siw_linger *linger, struct siw_context *ctx,
			 struct siw_mpa_stream *mpa)
{
	linger->handler.serve = linger_serve;
	linger->ctx = ctx;
	linger->mpa = mpa;
	linger->deadline_ns = linger_until();
	linger->timed.tick = linger_tick;
	siw_link_init(&linger->timed.link);
	siw_llp_set_handler(siw_mpa_sock(mpa), &linger->handler);
	siw_llp_resume(siw_mpa_sock(mpa)); /* the socket may have been paused */
	siw_device_timed_add(linger->ctx, &linger->timed, linger->deadline_ns);
	atomic_fetch_add(&ctx->n_linger, 1);
}

int siw_qp_linger(struct siw_context *ctx, struct siw_mpa_stream *mpa)
{
	struct siw_linger *linger = calloc(1, sizeof(*linger));

	if (!linger)
		return -ENOMEM;
	start_linger(linger, ctx, mpa);
	return 0;
}

static void rc_start_linger(struct siw_rc *rc)
{
	struct siw_linger *linger = rc->linger;

	rc->linger = NULL;
	start_linger(linger, rc->wq.qp.ctx, rc_detach_stream(rc));
}

static void rc_report_conn_end(struct siw_rc *rc)
{
	struct siw_conn *conn = rc->conn;

	rc->conn = NULL;
	if (conn)
		rc->on_ended(conn, rc->cause, &rc->cause_err);
}

/* ---- with the QP ----------------------------------------------------------------------------- */

static void rc_finish_close(struct siw_rc *rc, bool dead)
{
	siw_qp_flush(&rc->wq);
	if (dead)
		siw_mpa_close(rc_detach_stream(rc), false);
	else
		rc_start_linger(rc);
	rc_report_conn_end(rc);
}

/*
 * Sends the remaining data, then shuts down the sending side. 1: done; 0: not yet; -errno.
 * send_lock held.
 */
static int rc_shut_sending(struct siw_rc *rc)
{
	uint64_t accepted;
	int r = siw_teardown_of(&rc->wq) == SIW_TERMINATING
			? siw_rdmap_terminate(rc->wq.flow.stream)
			: siw_rdmap_flush(rc->wq.flow.stream, &accepted);

	if (r != 1)
		return r;
	r = siw_mpa_shutdown(rc->mpa); /* RFC5040-6.2.1-04: a graceful close */
	return r < 0 ? r : 1;
}

void siw_qp_rc_close_step(struct siw_rc *rc)
{
	int r;

	siw_lock(&rc->wq.qp.send_lock);
	r = rc_shut_sending(rc);
	/* Requests that have been sent meanwhile complete successfully. */
	siw_qp_rc_run(&rc->wq);
	siw_unlock(&rc->wq.qp.send_lock);
	/*
	 * Both ends may have full socket buffers, and if neither reads, neither can send. So this
	 * end reads and discards. A responder that has not received the initiator's first FPDU may
	 * not send at all.
	 */
	if (!r) {
		siw_ddp_stream_drop_unexpected(rc->wq.flow.ddp);
		siw_mpa_drain(rc->mpa);
		if (!rc->may_send)
			r = -ENOTCONN;
	}
	if (r)
		rc_finish_close(rc, r < 0);
}

/*
 * Ends sending at once: data that TCP does not accept now is dropped, since its memory is returned
 * to the user. The peer reads the data that TCP has accepted, then an end of stream, perhaps within
 * an FPDU.
 */
static int end_sending(struct siw_rc *rc)
{
	int r;

	siw_lock(&rc->wq.qp.send_lock);
	r = rc_shut_sending(rc);
	if (!r)
		r = siw_mpa_shutdown(rc->mpa) < 0 ? -EPIPE : 1;
	siw_unlock(&rc->wq.qp.send_lock);
	return r;
}

void siw_qp_rc_close_tick(struct siw_rc *rc, uint64_t now_ns)
{
	if (now_ns >= rc->close_by_ns)
		rc_finish_close(rc, end_sending(rc) != 1);
	else
		siw_qp_rc_close_step(rc);
}

void siw_qp_rc_close(struct siw_rc *rc, enum siw_teardown how)
{
	if (!rc->wq.flow.stream) {
		if (rc->pairs)
			rc->pairs->stop(rc);
		siw_qp_flush(&rc->wq);
		return;
	}
	siw_lock(&rc->wq.qp.send_lock);
	siw_set_teardown(&rc->wq, how);
	siw_unlock(&rc->wq.qp.send_lock);
	rc->close_by_ns = linger_until();
	siw_device_timed_add(rc->wq.qp.ctx, &rc->wq.timed, rc->close_by_ns);
	siw_qp_rc_close_step(rc);
}

/*
 * Sets an error code for RDMAP's local catastrophic error, which has no codes; any value may be
 * sent (RFC 5040 figure 9). With code 0, vendor_err would be 0, which means no error.
 */
static void rc_set_error_code(struct siw_wire_err *err)
{
	if (!err->layer && !err->type && !err->code)
		err->code = SIW_RDMAP_UNSPECIFIED;
}

/*
 * Raises an asynchronous event for a failure that no completion reports. -EFAULT: the request's
 * completion reports it. With persona roce, completions also report failures caused by the peer or
 * the network, as with InfiniBand channel adapters; an RNIC raises an event for its stream.
 */
static void raise_failure(struct siw_rc *rc, enum siw_teardown how, int status,
			  const struct siw_wire_err *err)
{
	if (err && how == SIW_TERMINATING)
		siw_device_async_raise(&rc->wq.qp.async, siw_qp_event_of(err));
	else if (rc->wq.roce && status != -EOVERFLOW)
		return;
	else if (err || (status && status != -EFAULT))
		siw_device_async_raise(&rc->wq.qp.async, SIW_EVENT_QP_FATAL);
}

void siw_qp_rc_cause(struct siw_rc *rc, int status, const struct siw_wire_err *err)
{
	/* The first call has the cause; later calls report its consequences. */
	if (rc->has_cause)
		return;
	rc->has_cause = true;
	rc->cause = status;
	if (err)
		rc->cause_err = *err;
}

void siw_qp_rc_fail(struct siw_rc *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err)
{
	struct siw_wire_err coded;

	if (err) {
		coded = *err;
		rc_set_error_code(&coded);
		err = &coded;
	}
	if (err)
		rc->wq.wire_err = (uint32_t)err->layer << 16 | (uint32_t)err->type << 8 | err->code;
	siw_qp_rc_cause(rc, status, err);
	if (siw_qp_step(&rc->wq, SIW_QPE_FAILED) == SIW_QPA_FLUSH) {
		raise_failure(rc, how, status, err);
		if (siw_teardown_of(&rc->wq) == SIW_RESETTING)
			siw_qp_rc_abort(rc);
		else
			siw_qp_rc_close(rc, how);
	}
}

void siw_qp_rc_abort(struct siw_rc *rc)
{
	uint64_t wr_id;
	bool taken;

	if (siw_qp_step(&rc->wq, SIW_QPE_FAILED) == SIW_QPA_FLUSH)
		siw_device_async_raise(&rc->wq.qp.async, SIW_EVENT_QP_FATAL);
	/* An unfinished message has already consumed the oldest receive. */
	taken = siw_ddp_stream_take(rc->wq.flow.ddp, SIW_RDMAP_QN_SEND, &wr_id) == 1;
	siw_mpa_close(rc_detach_stream(rc), true);
	if (taken)
		siw_qp_flush_recv(&rc->wq, wr_id);
	siw_qp_flush(&rc->wq);
	rc_report_conn_end(rc);
}

static void rc_release_stream(struct siw_rc *rc)
{
	if (rc->wq.flow.stream) {
		if (end_sending(rc) == 1)
			rc_start_linger(rc);
		else
			siw_mpa_close(rc_detach_stream(rc), false);
	}
	rc_report_conn_end(rc);
	rc->wq.wire_err = 0;
}

void siw_qp_rc_release(struct siw_rc *rc)
{
	rc_release_stream(rc);
	if (rc->pairs)
		rc->pairs->stop(rc);
}

/*
 * Completes the requests that are DONE. Returns the oldest request that is not, or NULL. send_lock
 * held.
 */
static struct siw_wqe *rc_oldest_incomplete(struct siw_rc *rc)
{
	siw_qp_flow_reap(&rc->wq, &rc->wq.flow);
	return rc->wq.flow.first;
}

/*
 * Marks the oldest incomplete request as failed with status. Returns whether there is an incomplete
 * request.
 */
static bool rc_fail_oldest(struct siw_rc *rc, int status)
{
	struct siw_wqe *oldest;

	siw_lock(&rc->wq.qp.send_lock);
	oldest = rc_oldest_incomplete(rc);
	if (oldest && oldest->state != SIW_WQE_DONE) {
		oldest->state = SIW_WQE_DONE;
		oldest->status = (uint8_t)status;
	}
	siw_unlock(&rc->wq.qp.send_lock);
	return oldest != NULL;
}

int siw_qp_rc_take_recv(struct siw_wq *wq, uint64_t *wr_id)
{
	struct siw_rc *rc = siw_rc_of(wq);
	bool torn = rc->has_torn;

	rc->has_torn = false;
	if (torn)
		*wr_id = rc->torn;
	if (torn || !rc->wq.flow.stream)
		return torn;
	return siw_ddp_stream_take(rc->wq.flow.ddp, SIW_RDMAP_QN_SEND, wr_id);
}

/*
 * The stream of a QP that connects by QPN has ended, and the QP keeps its state. The peer may have
 * disconnected with all its work done before this end's requests were acknowledged, so incomplete
 * requests get the time-out of requests without a peer. The receive of an unfinished message is
 * kept.
 */
static void rc_keep_state_after_stream(struct siw_rc *rc)
{
	bool open;

	siw_lock(&rc->wq.qp.send_lock);
	open = rc_oldest_incomplete(rc);
	siw_unlock(&rc->wq.qp.send_lock);
	rc->has_torn = siw_qp_rc_take_recv(&rc->wq, &rc->torn) == 1;
	rc_release_stream(rc);
	if (open)
		rc->pairs->turn(rc);
}

void siw_qp_rc_stream_lost(struct siw_rc *rc, int status)
{
	if (!rc->pairs)
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, status, NULL);
	else if (rc->wq.flow.stream && rc->wq.qp.state == SIW_QPS_RTS)
		rc_keep_state_after_stream(
			rc); /* also if its start-up broke off: nothing was sent on it */
	else if (rc_fail_oldest(rc, SIW_WC_RETRY_EXC_ERR))
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, -EFAULT, NULL);
	else
		rc_release_stream(rc);
}
