/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Listeners and connections in start-up, up to a QP that takes the stream. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "verbs/verbs_conn.h"

/* So many at a listener's turn: those that came before them want to be heard, too. */
#define ACCEPTS 16

/* ---- start-up -------------------------------------------------------------------------------- */

static void end_stream(struct siw_verbs_conn *conn, bool abort)
{
	if (conn->stream)
		siw_rdmap_close(conn->stream, abort);
	conn->stream = NULL;
	conn->stage = OVER;
	siw_verbs_timed_del(conn->evq->ctx, &conn->timed);
}

static void free_conn(struct siw_verbs_conn *conn)
{
	end_stream(conn, false);
	siw_verbs_conn_hand_over(conn);
	siw_verbs_evq_drop(conn);
	free(conn->gate);
	free(conn);
}

/* Ends a start-up with a Terminate, if it can go out now; the peer may take its time to read it. */
static void refuse(struct siw_verbs_conn *conn, const struct siw_wire_err *err)
{
	conn->err = *err;
	if (siw_rdmap_refuse(conn->stream, err) == 1 &&
	    siw_verbs_linger(conn->evq->ctx, conn->stream) == 0)
		conn->stream = NULL;
	end_stream(conn, false);
}

/* A request that nobody saw yet just vanishes; an initiator is told. */
static void fail(struct siw_verbs_conn *conn, int status)
{
	struct siw_wire_err err;

	if (!conn->initiator) {
		free_conn(conn);
		return;
	}
	err = siw_rdmap_startup_error(conn->stream);
	/* RFC6581-9.2-10, -11; the only failure after which the peer can understand a Terminate. */
	if (status == -EPROTO && err.layer == SIW_LAYER_LLP && err.code == SIW_MPA_NO_RTR_MATCH)
		refuse(conn, &err);
	else
		end_stream(conn, false);
	if (status == -EPROTO) /* what no Terminate can say any more (RFC5044-8-01) */
		conn->err = err;
	siw_verbs_evq_raise(conn, NULL, SIW_CONN_FAILED, status, NULL);
}

static int serve_startup(struct siw_verbs_conn *conn)
{
	struct siw_mpa_params params;
	int r = siw_rdmap_startup(conn->stream, &params);

	if (r == SIW_RDMAP_STARTING)
		return 0;
	if (r < 0) {
		fail(conn, r);
		return 1;
	}
	siw_verbs_timed_del(conn->evq->ctx, &conn->timed);
	if (r == SIW_RDMAP_REQUEST) {
		conn->stage = REQUESTED;
		siw_verbs_conn_place(conn, SIW_GATE_REQUEST);
		if (siw_verbs_evq_raise(conn, conn->listener, SIW_CONN_REQUEST, 0, &params))
			free_conn(conn);
	} else if (r == SIW_RDMAP_REPLY) {
		conn->stage = STARTED;
		siw_count(SIW_COUNTER_connects, 1);
		siw_verbs_evq_raise(conn, NULL, SIW_CONN_REPLY, 0, &params);
	} else {
		siw_count(SIW_COUNTER_rejects, 1);
		end_stream(conn, false);
		siw_verbs_evq_raise(conn, NULL, SIW_CONN_REJECTED, -ECONNREFUSED, &params);
	}
	return 1;
}

/* The user thinks a Request over: is the peer still there? */
static int serve_requested(struct siw_verbs_conn *conn)
{
	struct siw_mpa_params unused;
	int r = siw_rdmap_startup(conn->stream, &unused);

	if (r >= 0)
		return 0;
	if (conn->listener) { /* the user has not even seen it */
		free_conn(conn);
		return 1;
	}
	conn->cause = r;
	end_stream(conn, false);
	return 1;
}

static void tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_verbs_conn *conn = siw_container(timed, struct siw_verbs_conn, timed);

	if (now_ns < conn->deadline_ns)
		return;
	siw_count(SIW_COUNTER_startup_timeouts, 1);
	if (conn->stage == ATTACHED) /* the initiator's RTR never came */
		siw_verbs_rc_fail(conn->qp, SIW_SHUTTING_DOWN, -ETIMEDOUT, NULL);
	else
		fail(conn, -ETIMEDOUT);
}

static int serve_listener(struct siw_verbs_conn *listener);

static int serve(struct siw_pollee *self)
{
	struct siw_verbs_conn *conn = siw_container(self, struct siw_verbs_conn, pollee);

	switch (conn->stage) {
	case LISTENING:
		return serve_listener(conn);
	case STARTING:
		return serve_startup(conn);
	case REQUESTED:
		return serve_requested(conn);
	default: /* the peer's octets wait in the socket for the QP, which asks for them again */
		if (conn->stream)
			siw_rdmap_hold(conn->stream);
		return 0;
	}
}

static struct siw_verbs_conn *new_conn(struct siw_verbs_evq *q, enum siw_conn_stage stage,
				       void *cookie)
{
	struct siw_verbs_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->pollee.serve = serve;
	conn->evq = q;
	conn->stage = stage;
	conn->cookie = cookie;
	conn->timed.tick = tick;
	siw_link_init(&conn->timed.link);
	siw_link_init(&conn->children);
	siw_link_init(&conn->of_listener);
	return conn;
}

static void start_clock(struct siw_verbs_conn *conn, int timeout_ms)
{
	if (timeout_ms <= 0)
		timeout_ms = (int)siw_settings()->mpa_timeout_ms;
	conn->deadline_ns = siw_now_ns() + (uint64_t)timeout_ms * 1000000;
	siw_verbs_timed_at(conn->evq->ctx, &conn->timed, conn->deadline_ns);
}

/* ---- listeners ------------------------------------------------------------------------------- */

void siw_verbs_conn_place(struct siw_verbs_conn *conn, enum siw_gate_place place)
{
	struct siw_verbs_conn *listener = conn->listener;
	struct siw_gate *gate = listener->gate;

	siw_verbs_gate_move(gate, conn->source, conn->place, place);
	conn->place = place;
	if (!gate->shut || !siw_verbs_gate_has_room(gate))
		return;
	gate->shut = false;
	siw_rdmap_listener_hold(listener->lsock, false);
}

/* Its source says whether a connection that was accepted may stay. */
static void admit(struct siw_verbs_conn *listener, struct siw_verbs_conn *conn)
{
	struct siw_addr local, peer;

	/* Who has gone already has no address any more. */
	if (siw_rdmap_addrs(conn->stream, &local, &peer)) {
		free_conn(conn);
		return;
	}
	conn->source = siw_verbs_gate_source(listener->gate, &peer);
	if (!siw_verbs_gate_fair(listener->gate, conn->source)) {
		siw_count(SIW_COUNTER_startups_refused, 1);
		end_stream(conn, true);
		free_conn(conn);
		return;
	}
	conn->listener = listener;
	siw_link_add(&listener->children, &conn->of_listener);
	siw_verbs_conn_place(conn, SIW_GATE_STARTING);
	start_clock(conn, 0);
}

static int serve_listener(struct siw_verbs_conn *listener)
{
	for (int n = 0; n < ACCEPTS; n++) {
		struct siw_verbs_conn *conn;

		if (!siw_verbs_gate_has_room(listener->gate)) {
			/* They wait in the kernel, and when its queue is full the network keeps them. */
			listener->gate->shut = true;
			siw_rdmap_listener_hold(listener->lsock, true);
			siw_count(SIW_COUNTER_startups_held, 1);
			return n;
		}
		conn = new_conn(listener->evq, STARTING, NULL);
		if (!conn)
			return n;
		if (siw_rdmap_accept(listener->lsock, &conn->pollee, &conn->stream)) {
			free(conn);
			return n;
		}
		admit(listener, conn);
	}
	return ACCEPTS;
}

/* ---- what the connection manager asks for ---------------------------------------------------- */

int siw_verbs_listen(struct siw_verbs_evq *q, const struct siw_addr *addr, int backlog,
		     void *cookie, struct siw_verbs_conn **out)
{
	struct siw_verbs_conn *conn = new_conn(q, LISTENING, cookie);
	int err;

	if (!conn)
		return -ENOMEM;
	conn->gate = siw_verbs_gate_new();
	if (!conn->gate) {
		free(conn);
		return -ENOMEM;
	}
	siw_lock(&q->ctx->progress);
	err = siw_rdmap_listen(q->ctx->port, addr, backlog, &conn->pollee, &conn->lsock);
	/* Under the lock: who takes the first event may ask for it. */
	if (err)
		free_conn(conn);
	else
		*out = conn;
	siw_unlock(&q->ctx->progress);
	return err;
}

int siw_verbs_connect(struct siw_verbs_evq *q, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_mpa_params *params,
		      int timeout_ms, void *cookie, struct siw_verbs_conn **out)
{
	struct siw_verbs_conn *conn = new_conn(q, STARTING, cookie);
	int err;

	if (!conn)
		return -ENOMEM;
	conn->initiator = true;
	siw_lock(&q->ctx->progress);
	err = siw_rdmap_connect(q->ctx->port, dest, source, params, &conn->pollee, &conn->stream);
	if (!err)
		start_clock(conn, timeout_ms);
	/* Under the lock: who takes the first event may ask for it. */
	if (err)
		free(conn);
	else
		*out = conn;
	siw_unlock(&q->ctx->progress);
	return err;
}

int siw_verbs_reply(struct siw_verbs_conn *conn, const struct siw_mpa_params *params)
{
	struct siw_context *ctx = conn->evq->ctx;
	int err = -EINVAL;

	siw_lock(&ctx->progress);
	if (conn->stage == OVER && conn->cause)
		err = conn->cause; /* the peer left meanwhile */
	if (conn->stage == REQUESTED) {
		err = siw_rdmap_reply(conn->stream, params);
		if (!err) {
			conn->stage = STARTED;
			siw_count(params->rejected ? SIW_COUNTER_rejects : SIW_COUNTER_accepts, 1);
		}
		if (params->rejected && !err)
			end_stream(conn, false);
	}
	siw_unlock(&ctx->progress);
	return err;
}

void siw_verbs_conn_cookie(struct siw_verbs_conn *conn, void *cookie)
{
	siw_lock(&conn->evq->ctx->progress);
	conn->cookie = cookie;
	siw_unlock(&conn->evq->ctx->progress);
}

int siw_verbs_conn_addrs(struct siw_verbs_conn *conn, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_context *ctx = conn->evq->ctx;
	int err = -ENOTCONN;

	memset(local, 0, sizeof(*local));
	memset(peer, 0, sizeof(*peer));
	siw_lock(&ctx->progress);
	if (conn->lsock)
		err = siw_rdmap_listener_addr(conn->lsock, local);
	else if (conn->stream)
		err = siw_rdmap_addrs(conn->stream, local, peer);
	else if (conn->qp && conn->qp->stream)
		err = siw_rdmap_addrs(conn->qp->stream, local, peer);
	siw_unlock(&ctx->progress);
	return err;
}

int siw_verbs_conn_crc(struct siw_verbs_conn *conn)
{
	struct siw_context *ctx = conn->evq->ctx;
	int on;

	siw_lock(&ctx->progress);
	on = conn->crc;
	siw_unlock(&ctx->progress);
	return on;
}

static int start_stream(struct siw_verbs_conn *conn, struct siw_qp *qp,
			const struct siw_verbs_attach *at)
{
	struct siw_rdmap_start start = {
		.recvs = qp->recvs,
		.pd = qp->pd->number,
		.ird = at->ird,
		.ord = at->ord,
		.rtr = at->rtr,
		.initiator = at->initiator,
		.denied = ~(uint32_t)qp->access,
		.owner = siw_verbs_owner(qp),
		.park = qp->roce ? (uint64_t)siw_settings()->rnr_octets : 0,
		.private = siw_settings()->private_messages,
	};
	int err;

	if (!qp->linger)
		qp->linger = calloc(1, sizeof(*qp->linger));
	if (!qp->linger)
		return -ENOMEM;
	siw_lock(&qp->send_lock);
	err = siw_rdmap_start(conn->stream, &start);
	if (!err) {
		qp->stream = conn->stream;
		qp->granted_ord = qp->reads_max = at->ord;
		qp->granted_ird = at->ird;
		qp->private = start.private;
		qp->wire_err = 0;
		qp->sends_begun = 0;
		qp->peer_asks = false;
		qp->confirm = (struct siw_confirm){ .on = qp->roce && at->ord && at->ord_told };
	}
	siw_unlock(&qp->send_lock);
	if (!err && qp->roce && !qp->confirm.on)
		siw_count(SIW_COUNTER_confirm_none, 1);
	return err;
}

int siw_verbs_attach(struct siw_verbs_conn *conn, struct siw_qp *qp,
		     const struct siw_verbs_attach *at)
{
	struct siw_context *ctx = conn->evq->ctx;
	int action, err = -EINVAL;

	if (qp->ctx != ctx || qp->type != SIW_QPT_RC)
		return -EINVAL;
	siw_lock(&ctx->progress);
	if (conn->stage != STARTED || qp->conn || qp->stream ||
	    siw_verbs_state_next(qp->type, qp->state, SIW_QPE_ATTACHED, &action) < 0)
		goto out;
	err = start_stream(conn, qp, at);
	if (err)
		goto out;
	siw_verbs_qp_step(qp, SIW_QPE_ATTACHED);
	siw_verbs_qp_step(qp, SIW_QPE_STARTED);
	conn->crc = siw_rdmap_crc_on(qp->stream);
	conn->stream = NULL;
	conn->stage = ATTACHED;
	conn->qp = qp;
	qp->conn = conn;
	siw_rdmap_set_token(qp->stream, &qp->pollee);
	siw_rdmap_again(qp->stream);
	/* An initiator's RTR may not have gone out yet; a responder with one waits for it. */
	siw_verbs_mark_unsent(qp);
	siw_verbs_nudge(ctx);
	qp->may_send = at->initiator;
	if (at->initiator || !at->rtr)
		siw_verbs_conn_established(conn);
	else /* until the RTR comes */
		start_clock(conn, 0);
out:
	siw_unlock(&ctx->progress);
	return err;
}

void siw_verbs_refuse(struct siw_verbs_conn *conn, const struct siw_wire_err *err)
{
	struct siw_context *ctx = conn->evq->ctx;

	siw_lock(&ctx->progress);
	if (conn->stage == STARTED)
		refuse(conn, err);
	siw_unlock(&ctx->progress);
}

int siw_verbs_disconnect(struct siw_verbs_conn *conn)
{
	struct siw_context *ctx = conn->evq->ctx;
	int err = 0;

	siw_lock(&ctx->progress);
	if (conn->qp)
		siw_verbs_rc_settle(conn->qp);
	if (conn->qp) /* what came may have ended it */
		siw_verbs_rc_fail(conn->qp, SIW_SHUTTING_DOWN, 0, NULL);
	else if (conn->stage != OVER)
		err = -ENOTCONN;
	siw_unlock(&ctx->progress);
	return err;
}

void siw_verbs_conn_destroy(struct siw_verbs_conn *conn)
{
	struct siw_context *ctx = conn->evq->ctx;

	siw_lock(&ctx->progress);
	while (!siw_link_alone(&conn->children))
		free_conn(siw_container(conn->children.next, struct siw_verbs_conn, of_listener));
	if (conn->lsock)
		siw_rdmap_listener_close(conn->lsock);
	if (conn->qp)
		siw_verbs_rc_settle(conn->qp);
	if (conn->qp) {
		struct siw_qp *qp = conn->qp;

		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, 0, NULL);
		/* It may still be on its way to a flush; there is nobody left to tell. */
		qp->conn = NULL;
	}
	free_conn(conn);
	siw_unlock(&ctx->progress);
}

/* ---- what the QP says ------------------------------------------------------------------------ */

void siw_verbs_conn_established(struct siw_verbs_conn *conn)
{
	if (conn->established)
		return;
	conn->established = true;
	siw_verbs_timed_del(conn->evq->ctx, &conn->timed);
	siw_verbs_evq_raise(conn, NULL, SIW_CONN_ESTABLISHED, 0, NULL);
}

void siw_verbs_conn_cause(struct siw_verbs_conn *conn, int status, const struct siw_wire_err *err)
{
	/* The first is the cause; what ends what has ended already is none. */
	if (conn->has_cause)
		return;
	conn->has_cause = true;
	conn->cause = status;
	if (err)
		conn->err = *err;
}

void siw_verbs_conn_over(struct siw_verbs_conn *conn)
{
	conn->qp = NULL;
	conn->stage = OVER;
	siw_verbs_timed_del(conn->evq->ctx, &conn->timed);
	siw_verbs_evq_raise(conn, NULL, SIW_CONN_DISCONNECTED, conn->cause, NULL);
}
