/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* RC queue pairs with a stream: handling of the stream's events, and the type's ops. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "qp/rc/qp_rc.h"

/* ---- events ---------------------------------------------------------------------------------- */

/*
 * Completes the receive of a message. The message may answer a request that another thread has just
 * sent and is about to complete. That request completes first, as programs with one completion
 * queue expect, so this waits for the send lock.
 */
static void on_recv(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	siw_lock_wait_released(&rc->wq.qp.send_lock);
	siw_qp_received(&rc->wq, ev, siw_qp_recv_status(ev), 0, NULL, 0);
}

/*
 * Marks requests as DONE that the peer has received: all before end (NULL: all), or, without sends,
 * only the Writes among them. Reads and atomics without their responses are not marked.
 */
static void mark_delivered(struct siw_rc *rc, const struct siw_wqe *end, bool sends)
{
	for (struct siw_wqe *wqe = rc->wq.flow.first; wqe != end; wqe = wqe->chain)
		if (wqe->state == SIW_WQE_BEGUN && !siw_qp_awaits_response(wqe) &&
		    (sends || wqe->opcode == SIW_WR_RDMA_WRITE))
			wqe->state = SIW_WQE_DONE;
}

static void on_read_done(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe = (struct siw_wqe *)(uintptr_t)ev->user_data;

	siw_lock(&rc->wq.qp.send_lock);
	if (rc->confirm.on)
		mark_delivered(rc, wqe, siw_qp_rc_confirms_sends(wqe));
	wqe->state = SIW_WQE_DONE;
	rc->wq.flow.reads_out--;
	siw_unlock(&rc->wq.qp.send_lock);
	siw_qp_run_and_mark(&rc->wq);
}

static void on_delivered(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	bool can_be;

	siw_lock(&rc->wq.qp.send_lock);
	can_be = siw_qp_rc_delivered(rc, ev);
	siw_unlock(&rc->wq.qp.send_lock);
	if (can_be)
		siw_qp_run_and_mark(&rc->wq);
	else
		siw_rdmap_refuse_count(rc->wq.flow.stream);
}

/* The peer has announced how long its requests may wait for receives from now on. */
static void rc_on_rnr_retry(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	if (rc->counts.rnr_fixed)
		return;
	rc->counts.rnr_retry = ev->rnr_retry;
	if (rc->wq.qp.has_unexpected)
		siw_qp_rnr_begin(rc);
}

/*
 * The response to a confirming empty Read has arrived. Responses arrive in order, so each confirms
 * more requests than the one before.
 */
static void on_confirmed(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe;
	int32_t more;

	siw_lock(&rc->wq.qp.send_lock);
	wqe = rc->wq.flow.first;
	for (more = (int32_t)((uint32_t)ev->user_data - rc->wq.sq_head); more > 0; more--)
		wqe = wqe->chain;
	mark_delivered(rc, wqe, true);
	rc->confirm.asked = false;
	siw_unlock(&rc->wq.qp.send_lock);
	siw_qp_run_and_mark(&rc->wq);
}

/*
 * The request that a Terminate without a quoted header refers to, or NULL. A peer that cannot
 * access its own memory quotes nothing (RFC 5040 section 4.8: local catastrophic error). With
 * persona roce, the oldest request that the peer has not acknowledged has failed, since the peer
 * has not processed any later request. With persona iwarp, this end does not know what the peer has
 * received.
 */
static struct siw_wqe *rc_oldest_unacknowledged(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *wqe = rc->wq.flow.first;
	bool own_memory = ev->err.type == 0 &&
			  (ev->err.layer == SIW_LAYER_RDMAP || ev->err.layer == SIW_LAYER_DDP);

	if (ev->quoted || !own_memory || !rc->wq.roce)
		return NULL;
	while (wqe && wqe->state != SIW_WQE_BEGUN)
		wqe = wqe->chain;
	return wqe;
}

/*
 * Marks the request that the Terminate quotes as failed, if it is still queued. The peer processes
 * messages in order, so it has received the earlier Writes. It has also received the earlier Sends,
 * unless delivery counts are on: then a Send that is not counted was still waiting for its receive.
 * Earlier Reads get no response any more.
 */
static void rc_mark_terminated_request(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	struct siw_wqe *culprit;

	siw_lock(&rc->wq.qp.send_lock);
	culprit = siw_qp_flow_quoted(&rc->wq.flow, ev);
	if (!culprit)
		culprit = rc_oldest_unacknowledged(rc, ev);
	if (culprit) {
		mark_delivered(rc, culprit, !rc->counts.on);
		culprit->state = SIW_WQE_DONE;
		culprit->status = (uint8_t)siw_qp_status_of(&ev->err);
	}
	siw_unlock(&rc->wq.qp.send_lock);
}

/* If the local error concerns a receive, completes that receive with the matching status. */
static void rc_fail_receive(struct siw_rc *rc, const struct siw_rdmap_event *ev)
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
	if (siw_ddp_stream_take(rc->wq.flow.ddp, SIW_RDMAP_QN_SEND, &blamed.user_data) == 1 ||
	    siw_mem_queue_take(rc->wq.recvs, &blamed.user_data) == 1)
		on_recv(rc, &blamed);
}

/*
 * Marks the request that used local memory which is unmapped or whose key is invalid. An error in
 * placing a response concerns the oldest Read. An error without a quoted segment was found in data
 * being sent, and concerns the newest request.
 */
static void rc_fail_request(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	bool of_read = ev->of_response && ev->err.layer == SIW_LAYER_DDP;
	bool of_sent = !ev->quoted && ev->err.layer == SIW_LAYER_RDMAP;
	struct siw_wqe *found = NULL;

	if (ev->err.type != 0 || (!of_read && !of_sent)) /* 0: local catastrophic, at both layers */
		return;
	siw_lock(&rc->wq.qp.send_lock);
	for (struct siw_wqe *wqe = rc->wq.flow.first; wqe; wqe = wqe->chain) {
		if (wqe->state == SIW_WQE_BEGUN && (!of_read || siw_qp_awaits_response(wqe)))
			found = wqe;
		if (found && of_read)
			break;
	}
	if (found) {
		found->state = SIW_WQE_DONE;
		found->status = SIW_WC_LOC_PROT_ERR;
	}
	siw_unlock(&rc->wq.qp.send_lock);
}

/*
 * Handles the invalidation by the peer of a region that is still being sent to it in a Read
 * Response; returns whether that was the case. TCP may still have to accept part of the response,
 * which cannot be recalled, and the program may reuse the memory as soon as it learns of the
 * invalidation. So the connection is reset first, as if the region had been deregistered.
 */
static __attribute__((cold, noinline)) bool
rc_reset_if_inv_region_sent(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	const struct siw_wire_err err = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					  SIW_RDMAP_CANNOT_INVALIDATE };
	bool in_flight;

	siw_lock(&rc->wq.qp.send_lock);
	in_flight = siw_ddp_tx_revoke(rc->wq.flow.ddp, ev->inv_stag) == 1;
	siw_unlock(&rc->wq.qp.send_lock);
	if (!in_flight)
		return false;
	rc->wq.wire_err = SIW_RDMAP_REMOTE_PROTECTION << 8 | SIW_RDMAP_CANNOT_INVALIDATE;
	siw_qp_rc_cause(rc, -EPROTO, &err);
	siw_qp_flush_recv(&rc->wq, ev->user_data);
	siw_qp_rc_abort(rc);
	return true;
}

/* Handles one event; false: the stream has ended. */
static bool rc_handle_event(struct siw_rc *rc, const struct siw_rdmap_event *ev)
{
	switch (ev->kind) {
	case SIW_RDMAP_RECV:
		if (__builtin_expect(ev->invalidated, 0) && rc_reset_if_inv_region_sent(rc, ev))
			return false;
		on_recv(rc, ev);
		return true;
	case SIW_RDMAP_BAD_RECV: /* the user's own lkey was wrong; an ERROR event follows */
		on_recv(rc, ev);
		return true;
	case SIW_RDMAP_READ_DONE:
		on_read_done(rc, ev);
		return true;
	case SIW_RDMAP_CONFIRMED:
		on_confirmed(rc, ev);
		return true;
	case SIW_RDMAP_DELIVERED:
		on_delivered(rc, ev);
		return true;
	case SIW_RDMAP_RNR_RETRY:
		rc_on_rnr_retry(rc, ev);
		return true;
	case SIW_RDMAP_PROGRESS:
		if (ev->of_write)
			siw_qp_one_sided(&rc->wq, ev->length);
		return true;
	case SIW_RDMAP_REQUESTED:
		siw_qp_one_sided(&rc->wq, ev->length);
		if (!ev->length)
			rc->peer_confirms = !siw_rdmap_counts_requested(rc->wq.flow.stream);
		siw_qp_run_and_mark(&rc->wq);
		return true;
	case SIW_RDMAP_UNEXPECTED:
		siw_qp_rnr_begin(rc);
		return true;
	case SIW_RDMAP_STARTED:
		siw_lock(&rc->wq.qp.send_lock);
		rc->may_send = true;
		siw_unlock(&rc->wq.qp.send_lock);
		if (rc->conn)
			rc->on_started(rc->conn);
		siw_qp_run_and_mark(&rc->wq);
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
		siw_qp_rc_stream_lost(rc, ev->status);
		return false;
	default:
		return true;
	}
}

/*
 * A peer of persona roce sends an empty Read after each message, which mostly arrives in the same
 * receive call. The Read is handled now, so that the peer's request completes even if this program
 * does not poll again soon. false: the stream has ended.
 */
static __attribute__((noinline)) bool rc_answer_confirm_read(struct siw_rc *rc)
{
	struct siw_rdmap_event ev;

	return !siw_mpa_staged(rc->mpa) || siw_rdmap_recv(rc->wq.flow.stream, &ev) != 1 ||
	       rc_handle_event(rc, &ev);
}

static int rc_serve(struct siw_io_handler *self)
{
	struct siw_rc *rc = siw_container(self, struct siw_rc, wq.qp.handler);
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	bool counted = false;
	int n = 0;

	if (siw_is_closing(&rc->wq)) {
		siw_qp_rc_close_step(rc);
		return 0;
	}
	while (n < rc->wq.burst && octets < SIW_TURN_OCTETS &&
	       siw_rdmap_recv(rc->wq.flow.stream, &ev) == 1) {
		/* A delivery count precedes a message, and the turn handles both as one message. */
		if (ev.kind == SIW_RDMAP_DELIVERED && !counted)
			counted = true;
		else
			n++;
		octets += ev.placed;
		if (!rc_handle_event(rc, &ev))
			return n;
	}
	if (__builtin_expect(rc->peer_confirms, 0) &&
	    (n == rc->wq.burst || octets >= SIW_TURN_OCTETS) && !rc_answer_confirm_read(rc))
		return n;
	siw_qp_rc_counts_received(rc, n, octets);
	siw_qp_receive_turn_done(&rc->wq, n, octets);
	return n + counted;
}

/* ---- Sends that wait for receives, and deadlines --------------------------------------------- */

/* Serves waiting Sends, for which receives may have been posted, and checks their deadline. */
static void rc_serve_waiting_sends(struct siw_rc *rc, uint64_t now_ns)
{
	if (siw_is_closing(&rc->wq) || !rc->wq.flow.stream)
		return;
	rc_serve(&rc->wq.qp.handler);
	if (siw_is_closing(&rc->wq) || !rc->wq.flow.stream)
		return;
	if (siw_qp_rnr_has_expired(rc, now_ns))
		rc_serve(&rc->wq.qp.handler);
}

static void rc_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_rc *rc = siw_container(timed, struct siw_rc, wq.timed);

	if (siw_is_closing(&rc->wq))
		siw_qp_rc_close_tick(rc, now_ns);
	else
		rc_serve_waiting_sends(rc, now_ns);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Ends the stream because a request or response of this end could not be sent. */
static void rc_end_broken(struct siw_rc *rc)
{
	if (rc->wq.flow.stream && siw_teardown_of(&rc->wq) == SIW_RESETTING)
		siw_qp_rc_abort(rc);
	if (!rc->wq.flow.stream || siw_is_closing(&rc->wq))
		return;
	/*
	 * If RDMAP has an error to report to the peer, it delivers an ERROR event. A request that
	 * never began does not concern the peer.
	 */
	rc_serve(&rc->wq.qp.handler);
	if (rc->wq.qp.state != SIW_QPS_ERR)
		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, -EFAULT, NULL);
}

/*
 * Whether requests are posted on a QP that connects without a connection manager and has no stream
 * yet.
 */
static bool awaits_stream(struct siw_wq *wq)
{
	bool posted;

	if (!siw_rc_of(wq)->pairs || wq->flow.stream || wq->qp.state != SIW_QPS_RTS)
		return false;
	siw_lock(&wq->qp.send_lock);
	posted = wq->flow.first != NULL;
	siw_unlock(&wq->qp.send_lock);
	return posted;
}

static enum siw_turn rc_turn(struct siw_qp *qp, uint64_t round)
{
	enum siw_turn left = siw_qp_turn(qp, round);
	struct siw_rc *rc = siw_rc_of(siw_wq_of(qp));
	int teardown = siw_teardown_of(&rc->wq);
	bool broken = teardown == SIW_BROKEN || teardown == SIW_RESETTING;

	if (awaits_stream(&rc->wq)) {
		rc->pairs->turn(rc);
		return SIW_TURN_DONE;
	}
	if (broken)
		rc_end_broken(rc);
	if (qp->has_unexpected)
		rc_serve_waiting_sends(rc, siw_now_ns());
	if (broken)
		return SIW_TURN_DONE;
	return siw_qp_rc_counts_turn(rc) && left == SIW_TURN_DONE ? SIW_TURN_MORE : left;
}

#define SETTLE_TURNS 8

/*
 * Receives what has arrived, because the peer may have sent an empty Read to learn whether its last
 * message has arrived.
 */
void siw_qp_rc_settle(struct siw_wq *wq)
{
	struct siw_rc *rc = siw_rc_of(wq);

	siw_qp_send_delayed(
		wq); /* requests delayed for a batch count as posted, so they are sent */
	for (int i = 0; i < SETTLE_TURNS && rc->wq.flow.stream && !siw_is_closing(&rc->wq); i++)
		if (!rc_serve(&rc->wq.qp.handler))
			break;
	siw_qp_rc_counts_send(rc);
}

static bool rc_is_sending(struct siw_wq *wq, uint32_t stag)
{
	const struct siw_rc *rc = siw_rc_of(wq);

	return rc->wq.flow.stream && siw_ddp_tx_revoke(rc->wq.flow.ddp, stag) == 1;
}

static bool is_quiet(const struct siw_qp *qp)
{
	const struct siw_flow *flow = &siw_wq_of(qp)->flow;

	return siw_qp_is_quiet(qp) &&
	       (!flow->stream || (!siw_rdmap_responses_pending(flow->stream) &&
				  siw_ddp_tx_framed(flow->ddp) == siw_ddp_tx_accepted(flow->ddp) &&
				  !siw_ddp_tx_active(flow->ddp)));
}

/*
 * Resets the connection if responses that TCP has not accepted yet still refer to the revoked
 * memory.
 */
static void rc_revoke(struct siw_qp *qp, uint32_t stag)
{
	bool in_flight;

	siw_lock(&qp->send_lock);
	in_flight = rc_is_sending(siw_wq_of(qp), stag);
	siw_unlock(&qp->send_lock);
	if (in_flight)
		siw_qp_rc_abort(siw_rc_of(siw_wq_of(qp)));
}

static void settle_binds(struct siw_qp *qp)
{
	struct siw_rc *rc = siw_rc_of(siw_wq_of(qp));
	bool cut;

	siw_lock(&qp->send_lock);
	cut = siw_teardown_of(&rc->wq) == SIW_RESETTING && rc->wq.flow.stream;
	siw_unlock(&qp->send_lock);
	if (cut)
		siw_qp_rc_abort(rc);
	else
		siw_qp_mw_settle(&rc->wq, false);
}

static void fail_qp(struct siw_qp *qp, int status)
{
	siw_qp_rc_fail(siw_rc_of(siw_wq_of(qp)), SIW_SHUTTING_DOWN, status, NULL);
}

static void rc_leave(struct siw_qp *qp)
{
	struct siw_rc *rc = siw_rc_of(siw_wq_of(qp));

	if (!rc->wq.flow.stream || siw_is_closing(&rc->wq))
		return;
	siw_qp_rc_settle(&rc->wq);
	siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, 0, NULL);
}

static bool is_leaving(const struct siw_qp *qp)
{
	return siw_is_closing(siw_wq_of(qp));
}

/* ---- the type -------------------------------------------------------------------------------- */

static int rc_create(struct siw_wq *wq, const struct siw_qp_init_attr *attr)
{
	struct siw_rc *rc = siw_rc_of(wq);

	(void)attr;
	rc->linger = calloc(1, sizeof(*rc->linger));
	if (!rc->linger)
		return -ENOMEM;
	wq->qp.qpn = siw_qp_rc_number(wq->qp.ctx);
	wq->qp.handler.serve = rc_serve;
	wq->timed.tick = rc_tick;
	rc->counted = true;
	atomic_fetch_add(&wq->qp.ctx->n_rc, 1);
	return 0;
}

static void close_qp(struct siw_wq *wq)
{
	struct siw_rc *rc = siw_rc_of(wq);

	if (rc->pairs)
		rc->pairs->close(rc);
	if (rc->left_pairing)
		wq->qp.ctx->n_high--;
	rc->left_pairing = false;
	free(rc->linger);
	rc->linger = NULL;
	if (rc->counted)
		atomic_fetch_sub(&wq->qp.ctx->n_rc, 1);
	rc->counted = false;
}

static int rc_addr(const struct siw_wq *wq, struct siw_addr *own, struct siw_addr *peer)
{
	const struct siw_rc *rc = siw_rc_of(wq);

	return rc->wq.flow.stream ? siw_mpa_addrs(rc->mpa, own, peer) : -ENOTCONN;
}

static int rc_prepare(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask)
{
	struct siw_rc *rc = siw_rc_of(wq);

	if (wq->flow.stream && (event == SIW_QPE_TO_ERR || event == SIW_QPE_TO_RESET))
		siw_qp_rc_settle(wq);
	if (rc->pairs)
		return rc->pairs->prepare(rc, event, attr, mask);
	if (event == SIW_QPE_TO_RTR)
		return siw_refuse(QP_STEP_RC, (uint64_t)wq->qp.state, SIW_QPS_RTR);
	return 0;
}

static void rc_modified(struct siw_wq *wq, int mask)
{
	const struct siw_rc *rc = siw_rc_of(wq);

	if ((mask & SIW_QP_ACCESS_FLAGS) && rc->wq.flow.stream) {
		siw_lock(&wq->qp.send_lock);
		siw_rdmap_deny(rc->wq.flow.stream, ~(uint32_t)wq->access);
		siw_unlock(&wq->qp.send_lock);
	}
	if ((mask & SIW_QP_RNR_RETRY) && rc->counts.on) {
		siw_lock(&wq->qp.send_lock);
		siw_rc_of(wq)->counts.tell = true;
		siw_unlock(&wq->qp.send_lock);
	}
	if (wq->qp.has_unexpected && (mask & (SIW_QP_RNR_RETRY | SIW_QP_MIN_RNR_TIMER)))
		siw_qp_rnr_begin(siw_rc_of(wq));
	if (rc->pairs)
		rc->pairs->modified(siw_rc_of(wq));
}

static void query_attr(const struct siw_wq *wq, struct siw_qp_attr *attr)
{
	const struct siw_rc *rc = siw_rc_of(wq);

	if (rc->pairs)
		rc->pairs->query(rc, attr);
}

static void query_init(const struct siw_wq *wq, struct siw_qp_init_attr *init)
{
	init->by_qpn = siw_rc_of(wq)->pairs != NULL;
	init->private_messages = wq->private_always || wq->private;
}

static void rc_end(struct siw_wq *wq)
{
	siw_qp_rc_close(siw_rc_of(wq), SIW_SHUTTING_DOWN);
}

static void rc_release(struct siw_wq *wq)
{
	siw_qp_rc_release(siw_rc_of(wq));
}

const struct siw_qp_class siw_qp_rc_class = {
	.ops = {
		.owns_regions = true,
		.turn = rc_turn,
		.uses_key = siw_qp_uses_key,
		.is_quiet = is_quiet,
		.revoke = rc_revoke,
		.settle = settle_binds,
		.fail = fail_qp,
		.leave = rc_leave,
		.is_leaving = is_leaving,
	},
	.size = sizeof(struct siw_rc),
	.type = SIW_QPT_RC,
	.opcodes = UINT32_MAX,
	.turn_octets = UINT64_MAX,
	.wait_octets = SIW_DELAY_OCTETS_STREAM,
	.failure = SIW_WC_WR_FLUSH_ERR,
	.binds = true,
	.has_rights = true,
	.create = rc_create,
	.close = close_qp,
	.addr = rc_addr,
	.query_attr = query_attr,
	.query_init = query_init,
	.prepare = rc_prepare,
	.modified = rc_modified,
	.end = rc_end,
	.release = rc_release,
	.post = siw_qp_flow_post,
	.check = siw_qp_flow_check,
	.run = siw_qp_rc_run,
	.begin = siw_qp_rc_begin,
	.failed = siw_qp_rc_failed,
	.flush = siw_qp_rc_flush,
	.take_recv = siw_qp_rc_take_recv,
	.is_sending = rc_is_sending,
	.did_local = siw_qp_rc_did_local,
};
