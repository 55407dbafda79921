/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Connections of the connection manager: retries of connects, start-up, listening. */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/os.h"
#include "connect/connect_impl.h"
#include "qp/qp_sockets.h"

/* ==== retries of connects ===================================================================== */

/*
 * Retries of connects. A connect is retried for a limited time if it was refused, because nothing
 * listens at the address yet, or reset, because the listener already has as many start-ups from
 * this source as it admits.
 */

#define FIRST_WAIT_US 1000
#define LAST_WAIT_US  64000

/*
 * Enables retries of a connect that was just started, in case it is refused. Returns 0 or -ENOMEM.
 */
static int conn_retry_enable(struct siw_conn *conn, const struct siw_addr *dest,
			     const struct siw_addr *source, const struct siw_mpa_params *params,
			     int timeout_ms, int refused_ms)
{
	struct siw_conn_retry *again = calloc(1, sizeof(*again));

	if (!again)
		return -ENOMEM;
	again->dest = *dest;
	if (source)
		again->source = *source;
	again->params = *params;
	again->until_ns = siw_now_ns() + (uint64_t)refused_ms * 1000000;
	again->reset_until_ns =
		siw_now_ns() +
		(uint64_t)(timeout_ms > 0 ? timeout_ms : siw_settings()->mpa_timeout_ms) * 1000000;
	again->wait_us = FIRST_WAIT_US;
	again->timeout_ms = timeout_ms;
	conn->retry = again;
	return 0;
}

/*
 * Returns the time until which a connect that failed with status is retried; 0: the connect is not
 * retried.
 */
static uint64_t connect_retry_deadline(const struct siw_conn_retry *again, int status)
{
	switch (status) {
	case -ECONNREFUSED:
		return again->until_ns;
	case -ECONNRESET:
		return again->reset_until_ns;
	default:
		return 0;
	}
}

/* Called when the connect failed with status: returns whether the connect will be retried later. */
static bool conn_retry_schedule(struct siw_conn *conn, int status)
{
	struct siw_conn_retry *again = conn->retry;
	uint64_t next = siw_now_ns(), end = again ? connect_retry_deadline(again, status) : 0;

	if (next >= end)
		return false;
	next += (uint64_t)again->wait_us * 1000;
	if (next > end)
		next = end;
	if (again->wait_us < LAST_WAIT_US)
		again->wait_us *= 2;
	siw_mpa_close(conn->mpa, false);
	conn->mpa = NULL;
	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
	conn->deadline_ns = next;
	siw_device_timer_start_at(siw_conn_lane(conn), &conn->timed, next);
	return true;
}

/*
 * Retries the connect. Returns 0, and the caller then sets the start-up timer; or the -errno with
 * which the connect fails.
 */
static int conn_retry_start(struct siw_conn *conn)
{
	struct siw_conn_retry *again = conn->retry;
	const struct siw_addr *source = again->source.family ? &again->source : NULL;
	int err = siw_mpa_connect(siw_conn_lane(conn)->poller, &again->dest, source, &again->params,
				  &conn->handler, &conn->mpa);

	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
	if (!err && again->tos)
		siw_llp_tcp_set_tos(siw_mpa_sock(conn->mpa), again->tos);
	return err;
}

void siw_conn_set_tos(struct siw_conn *conn, int tos)
{
	struct siw_lane *lane = siw_conn_lock(conn);

	if (conn->retry)
		conn->retry->tos = tos;
	if (conn->mpa)
		siw_llp_tcp_set_tos(siw_mpa_sock(conn->mpa), tos);
	siw_unlock(&lane->lock);
}

/* ==== connections ============================================================================= */

/* Listeners, and connections from start-up until a QP owns the stream. */

/* The listeners of a siw_connect_listen() at every address of the device, chained by next_addr. */
struct siw_conn_listeners {
	struct siw_every_addr every; /* must be the first member of the struct */
	const struct siw_conn_user *user;
	int backlog;
	struct siw_conn *first, *last;
};

/*
 * Maximum number of connections that a listener accepts each time it is serviced, so that earlier
 * connections are serviced in between.
 */
#define ACCEPTS 16
/*
 * A start-up whose peer has not sent its complete Request after this time, in nanoseconds, may be
 * closed to admit another connection.
 */
#define SAFE_NS 500000000ull
#define NEVER	UINT64_MAX

/* ---- start-up -------------------------------------------------------------------------------- */

static int conn_report_event(struct siw_conn *conn, struct siw_conn *listener, int kind, int status,
			     const struct siw_mpa_params *params)
{
	return conn->user->report(conn, listener, kind, status, params);
}

static void conn_end_stream(struct siw_conn *conn, bool abort)
{
	if (conn->mpa)
		siw_mpa_close(conn->mpa, abort);
	conn->mpa = NULL;
	conn->stage = OVER;
	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
}

void siw_conn_free(struct siw_conn *conn)
{
	while (!siw_link_empty(&conn->children))
		siw_conn_free(siw_container(conn->children.next, struct siw_conn, of_listener));
	if (conn->set)
		siw_every_addr_stop_handling_addr_changes(&conn->set->every);
	if (conn->next_addr)
		siw_conn_free(conn->next_addr);
	if (conn->lsock)
		siw_llp_close(conn->lsock);
	conn_end_stream(conn, false);
	conn->user->forget(conn);
	siw_conn_leave_listener(conn);
	free(conn->set);
	free(conn->admission);
	free(conn->retry);
	free(conn);
}

/*
 * Ends a start-up with a Terminate, if one can be sent now, and lingers so that the peer can read
 * it.
 */
static void conn_refuse_with_terminate(struct siw_conn *conn, const struct siw_wire_err *err)
{
	conn->err = *err;
	if (siw_qp_rc_refuse_with_terminate(siw_conn_lane(conn), conn->mpa, err) == 0)
		conn->mpa = NULL;
	conn_end_stream(conn, false);
}

/*
 * Handles a failed start-up. A responder's connection, which the user has not seen yet, is dropped;
 * the user of an initiator receives an event.
 */
static void conn_handle_startup_failure(struct siw_conn *conn, int status)
{
	struct siw_wire_err err;

	if (!conn->initiator) {
		if (status == -EPROTO)
			siw_count(SIW_COUNTER_startup_strangers, 1);
		siw_conn_free(conn);
		return;
	}
	if (conn_retry_schedule(conn, status))
		return;
	err = conn->mpa ? siw_mpa_get_error(conn->mpa) : (struct siw_wire_err){ 0 };
	/* RFC6581-9.2-10, -11: the only failure after which the peer can understand a Terminate. */
	if (status == -EPROTO && err.layer == SIW_LAYER_LLP && err.code == SIW_MPA_NO_RTR_MATCH)
		conn_refuse_with_terminate(conn, &err);
	else
		conn_end_stream(conn, false);
	/* report an error for which no Terminate can be sent any more (RFC5044-8-01) */
	if (status == -EPROTO)
		conn->err = err;
	conn_report_event(conn, NULL, SIW_CONN_FAILED, status, NULL);
}

static int conn_serve_startup(struct siw_conn *conn)
{
	struct siw_mpa_params params;
	int r = siw_mpa_startup(conn->mpa, &params);

	if (r == SIW_MPA_STARTING)
		return 0;
	if (r < 0) {
		conn_handle_startup_failure(conn, r);
		return 1;
	}
	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
	if (r == SIW_MPA_REQUEST) {
		conn->stage = REQUESTED;
		siw_conn_set_admission_stage(conn, SIW_ADMISSION_REQUEST);
		if (conn_report_event(conn, conn->listener, SIW_CONN_REQUEST, 0, &params))
			siw_conn_free(conn);
	} else if (r == SIW_MPA_REPLY) {
		conn->stage = STARTED;
		siw_count(SIW_COUNTER_connects, 1);
		conn_report_event(conn, NULL, SIW_CONN_REPLY, 0, &params);
	} else {
		siw_count(SIW_COUNTER_rejects, 1);
		conn_end_stream(conn, false);
		conn_report_event(conn, NULL, SIW_CONN_REJECTED, -ECONNREFUSED, &params);
	}
	return 1;
}

/*
 * Services a connection whose Request the user has not answered yet: checks whether the peer is
 * still connected.
 */
static int conn_check_peer_still_connected(struct siw_conn *conn)
{
	struct siw_mpa_params unused;
	int r = siw_mpa_startup(conn->mpa, &unused);

	if (r >= 0)
		return 0;
	if (conn->listener) { /* the user has not read the event of the Request yet */
		siw_conn_free(conn);
		return 1;
	}
	conn->cause = r;
	conn_end_stream(conn, false);
	return 1;
}

static void conn_start_timer(struct siw_conn *conn, int timeout_ms)
{
	if (timeout_ms <= 0)
		timeout_ms = (int)siw_settings()->mpa_timeout_ms;
	conn->deadline_ns = siw_now_ns() + (uint64_t)timeout_ms * 1000000;
	siw_device_timer_start_at(siw_conn_lane(conn), &conn->timed, conn->deadline_ns);
}

static void conn_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_conn *conn = siw_container(timed, struct siw_conn, timed);
	int err;

	if (now_ns < conn->deadline_ns)
		return;
	if (conn->stage == OVER) { /* end_startup_and_free_later() has set this timer */
		siw_conn_free(conn);
		return;
	}
	/* a start-up is now old enough to be closed for a new connection */
	if (conn->stage == LISTENING) {
		conn->admission->shut = false;
		siw_llp_sock_resume(conn->lsock);
		return;
	}
	if (conn->retry && conn->stage == STARTING && !conn->mpa) {
		err = conn_retry_start(conn);
		if (err)
			conn_handle_startup_failure(conn, err);
		else
			conn_start_timer(conn, conn->retry->timeout_ms);
		return;
	}
	siw_count(SIW_COUNTER_startup_timeouts, 1);
	if (conn->stage == ATTACHED) /* the initiator's RTR has not arrived in time */
		siw_qp_rc_handle_lost_stream(conn->rc, -ETIMEDOUT);
	else
		conn_handle_startup_failure(conn, -ETIMEDOUT);
}

static int serve_listener(struct siw_conn *listener);

static int conn_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_conn *conn = siw_container(self, struct siw_conn, handler);

	switch (conn->stage) {
	case LISTENING:
		return serve_listener(conn);
	case STARTING:
		return conn_serve_startup(conn);
	case REQUESTED:
		return conn_check_peer_still_connected(conn);
	default: /* unread data stays in the socket until a QP resumes reading and is serviced */
		if (conn->mpa)
			siw_llp_sock_pause(siw_mpa_sock(conn->mpa));
		return 0;
	}
}

static struct siw_conn *alloc_connection(const struct siw_conn_user *user, struct siw_lane *lane,
					 enum siw_conn_stage stage, void *user_data)
{
	struct siw_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->handler.serve = conn_handle_socket_event;
	conn->user = user;
	atomic_init(&conn->lane, lane);
	conn->stage = stage;
	conn->user_data = user_data;
	conn->timed.tick = conn_handle_timer;
	siw_link_init(&conn->timed.link);
	siw_link_init(&conn->children);
	siw_link_init(&conn->of_listener);
	return conn;
}

/* ---- listeners ------------------------------------------------------------------------------- */

#define ANY_SOURCE UINT32_MAX

/*
 * Ends a start-up while its listener is being serviced. The current progress round may also be
 * about to service the start-up, so the struct is freed later, by its timer.
 */
static void end_startup_and_free_later(struct siw_conn *conn)
{
	conn_end_stream(conn, true);
	siw_conn_set_admission_stage(conn, SIW_ADMISSION_NOWHERE);
	conn->deadline_ns = 0;
	siw_device_timer_start_at(siw_conn_lane(conn), &conn->timed, 0);
}

/*
 * Returns the start-up to close for a new connection: the oldest start-up of that source, or, with
 * ANY_SOURCE, the oldest of the source that has the most start-ups; only start-ups older than
 * SAFE_NS are eligible. If there is no such start-up, returns NULL and sets *next to the time at
 * which there will be one, or NEVER.
 */
static struct siw_conn *choose_startup_to_close(struct siw_conn *listener, uint32_t source,
						uint64_t *next)
{
	const struct siw_admission_count *of = listener->admission->source;
	struct siw_conn *chosen = NULL;
	uint64_t now = siw_now_ns();

	*next = NEVER;
	for (struct siw_link *l = listener->children.next; l != &listener->children; l = l->next) {
		struct siw_conn *conn = siw_container(l, struct siw_conn, of_listener);

		if (conn->place != SIW_ADMISSION_STARTING ||
		    (source != ANY_SOURCE && conn->source != source))
			continue;
		/* this start-up and all later ones in the list may be too young to be closed */
		if (now < conn->began_ns + SAFE_NS) {
			*next = conn->began_ns + SAFE_NS;
			break;
		}
		if (!chosen || of[conn->source].starting > of[chosen->source].starting)
			chosen = conn;
	}
	return chosen;
}

/* Closes a start-up of the source for a new connection. Returns whether a start-up was closed. */
static bool close_startup_for_new_connection(struct siw_conn *listener, uint32_t source)
{
	uint64_t next;
	struct siw_conn *conn = choose_startup_to_close(listener, source, &next);

	if (!conn)
		return false;
	siw_count(SIW_COUNTER_startups_refused, 1);
	end_startup_and_free_later(conn);
	return true;
}

static bool is_peer_expected(const struct siw_conn *listener, const struct siw_addr *peer)
{
	return listener->user->expects && listener->user->expects(listener, peer);
}

/* Admits or refuses an accepted connection, depending on its source. */
static void listener_admit_or_refuse(struct siw_conn *listener, struct siw_conn *conn)
{
	struct siw_admission *admission = listener->admission;
	int timeout_ms = (int)siw_settings()->mpa_timeout_ms;
	struct siw_addr peer;

	/* The address of a peer that has already disconnected is not available. */
	if (siw_mpa_addrs(conn->mpa, NULL, &peer)) {
		siw_conn_free(conn);
		return;
	}
	conn->source = siw_admission_source_index_of_addr(admission, &peer);
	while (!siw_admission_source_has_room(admission, conn->source) &&
	       !is_peer_expected(listener, &peer))
		if (!close_startup_for_new_connection(listener, conn->source)) {
			siw_count(SIW_COUNTER_startups_refused, 1);
			conn_end_stream(conn, true);
			siw_conn_free(conn);
			return;
		}
	if (!siw_admission_has_room(admission))
		close_startup_for_new_connection(listener, ANY_SOURCE);
	conn->listener = listener;
	siw_link_add(&listener->children, &conn->of_listener);
	siw_conn_set_admission_stage(conn, SIW_ADMISSION_STARTING);
	conn->began_ns = siw_now_ns();
	conn_start_timer(conn,
			 siw_admission_is_half_full(admission) ? timeout_ms / 4 + 1 : timeout_ms);
}

/*
 * Returns whether another connection can be admitted: there is space, or a start-up may be closed
 * for it. If not, further connections stay in the kernel's queue; when that is full, the kernel
 * drops SYNs, and the peers retransmit them.
 */
static bool listener_can_admit_connection(struct siw_conn *listener)
{
	struct siw_admission *admission = listener->admission;
	uint64_t next;

	if (siw_admission_has_room(admission) ||
	    choose_startup_to_close(listener, ANY_SOURCE, &next))
		return true;
	admission->shut = true;
	siw_llp_sock_pause(listener->lsock);
	siw_count(SIW_COUNTER_startups_paused, 1);
	if (next != NEVER) {
		listener->deadline_ns = next;
		siw_device_timer_start_at(siw_conn_lane(listener), &listener->timed, next);
	}
	return false;
}

static int serve_listener(struct siw_conn *listener)
{
	for (int n = 0; n < ACCEPTS; n++) {
		struct siw_conn *conn;

		if (!listener_can_admit_connection(listener))
			return n;
		conn = alloc_connection(listener->user, siw_conn_lane(listener), STARTING, NULL);
		if (!conn)
			return n;
		if (siw_mpa_accept_connection(listener->lsock, &conn->handler, &conn->mpa)) {
			free(conn);
			return n;
		}
		listener_admit_or_refuse(listener, conn);
	}
	return ACCEPTS;
}

/* ---- calls of the connection manager --------------------------------------------------------- */

int siw_conn_listen(const struct siw_conn_user *user, struct siw_lane *lane,
		    const struct siw_addr *addr, int backlog, void *user_data,
		    struct siw_conn **out)
{
	struct siw_conn *conn = alloc_connection(user, lane, LISTENING, user_data);
	int err = -ENOMEM;

	if (!conn)
		return -ENOMEM;
	conn->admission = siw_admission_new();
	if (conn->admission)
		err = siw_llp_tcp_listen(lane->poller, addr, backlog, &conn->handler, &conn->lsock);
	if (err)
		siw_conn_free(conn);
	else
		*out = conn;
	return err;
}

int siw_conn_start_connecting(const struct siw_conn_user *user, struct siw_lane *lane,
			      const struct siw_addr *dest, const struct siw_addr *source,
			      const struct siw_mpa_params *params, int timeout_ms, void *user_data,
			      struct siw_conn **out)
{
	struct siw_conn *conn = alloc_connection(user, lane, STARTING, user_data);
	int err;

	if (!conn)
		return -ENOMEM;
	conn->initiator = true;
	if (dest)
		err = siw_mpa_connect(lane->poller, dest, source, params, &conn->handler,
				      &conn->mpa);
	else
		err = siw_mpa_connect_to_itself(lane->poller, source, params, &conn->handler,
						&conn->mpa);
	if (err) {
		free(conn);
		return err;
	}
	conn_start_timer(conn, timeout_ms);
	*out = conn;
	return 0;
}

int siw_connect_with_retries(struct siw_reporter *reporter, const struct siw_addr *dest,
			     const struct siw_addr *source, const struct siw_mpa_params *params,
			     int timeout_ms, int refused_ms, struct siw_conn **out)
{
	struct siw_context *ctx = reporter->user.ctx;
	int err;

	/*
	 * *out is set under the lock, because another thread may read the connection's first event
	 * and use *out.
	 */
	siw_lock(&ctx->lane0.lock);
	err = siw_conn_start_connecting(&reporter->user, &ctx->lane0, dest, source, params,
					timeout_ms, NULL, out);
	if (!err && refused_ms > 0) {
		err = conn_retry_enable(*out, dest, source, params, timeout_ms, refused_ms);
		if (err) {
			siw_conn_free(*out);
			*out = NULL;
		}
	}
	siw_unlock(&ctx->lane0.lock);
	return err;
}

/*
 * Returns the result of a reply to a peer that has disconnected meanwhile: cause, except that a
 * rejection counts as successful.
 */
static int result_of_reply_to_lost_peer(const struct siw_mpa_params *params, int cause)
{
	return params->rejected ? 0 : cause;
}

int siw_conn_reply(struct siw_conn *conn, const struct siw_mpa_params *params)
{
	int err;

	if (conn->stage == OVER && conn->cause)
		return result_of_reply_to_lost_peer(params, conn->cause);
	if (conn->stage != REQUESTED)
		return siw_refuse(CM_NO_REQUEST);
	err = siw_mpa_send_startup_reply(conn->mpa, params);
	if (err == -ECONNRESET || err == -EPIPE)
		return result_of_reply_to_lost_peer(params, err);
	if (err)
		return err;
	conn->stage = STARTED;
	siw_count(params->rejected ? SIW_COUNTER_rejects : SIW_COUNTER_accepts, 1);
	if (params->rejected)
		conn_end_stream(conn, false);
	return 0;
}

int siw_connect_reply(struct siw_conn *conn, const struct siw_mpa_params *params)
{
	struct siw_lane *lane = siw_conn_lock(conn);
	int err = siw_conn_reply(conn, params);

	siw_unlock(&lane->lock);
	return err;
}

void siw_conn_start_user_timer(struct siw_conn *conn, int timeout_ms)
{
	conn_start_timer(conn, timeout_ms);
}

int siw_conn_addrs(struct siw_conn *conn, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_lane *lane;
	int err = -ENOTCONN;

	memset(local, 0, sizeof(*local));
	memset(peer, 0, sizeof(*peer));
	lane = siw_conn_lock(conn);
	if (conn->lsock)
		err = siw_llp_local_addr(conn->lsock, local);
	else if (conn->mpa)
		err = siw_mpa_addrs(conn->mpa, local, peer);
	else if (conn->rc && conn->rc->base.flow.stream)
		err = siw_mpa_addrs(conn->rc->mpa, local, peer);
	siw_unlock(&lane->lock);
	return err;
}

int siw_conn_uses_crc(struct siw_conn *conn)
{
	struct siw_lane *lane = siw_conn_lock(conn);
	int on = conn->crc;

	siw_unlock(&lane->lock);
	return on;
}

static void conn_report_established(struct siw_conn *conn)
{
	if (conn->established)
		return;
	conn->established = true;
	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
	conn_report_event(conn, NULL, SIW_CONN_ESTABLISHED, 0, NULL);
}

/* Handles the end of the stream that a QP owned: the on_ended callback of struct siw_rc_qp. */
static void conn_handle_stream_end(struct siw_conn *conn, int status,
				   const struct siw_wire_err *err)
{
	conn->rc = NULL;
	conn->stage = OVER;
	conn->cause = status;
	conn->err = *err;
	siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
	conn_report_event(conn, NULL, SIW_CONN_DISCONNECTED, status, NULL);
}

int siw_conn_attach_qp(struct siw_conn *conn, struct siw_rc_qp *rc,
		       const struct siw_rc_start *start)
{
	int err = siw_qp_rc_start_stream(rc, conn->mpa, start);

	if (err)
		return err;
	conn->crc = siw_mpa_is_crc_on(conn->mpa);
	conn->mpa = NULL;
	conn->stage = ATTACHED;
	conn->rc = rc;
	rc->conn = conn;
	rc->on_started = conn_report_established;
	rc->on_ended = conn_handle_stream_end;
	siw_llp_set_handler(siw_mpa_sock(rc->mpa), &rc->base.qp.handler);
	siw_llp_sock_resume(siw_mpa_sock(rc->mpa));
	siw_qp_schedule_sending_turn(&rc->base); /* the initiator's RTR may still have to be sent */
	if (start->initiator || !start->rtr)
		conn_report_established(conn);
	else /* limits the wait for the RTR message */
		conn_start_timer(conn, 0);
	return 0;
}

/*
 * Moves a connection whose stream no queue pair owns to another lane. Called with the locks of both
 * lanes held. Returns 0; or -errno: the connection stays in its lane, or, if the poller of that
 * lane does not accept the socket again either, has ended.
 */
static int conn_move_to_lane(struct siw_conn *conn, struct siw_lane *to)
{
	struct siw_llp_sock *sock = siw_mpa_sock(conn->mpa);
	struct siw_lane *from = siw_conn_lane(conn);
	int err;

	if (to == from)
		return 0;
	siw_llp_leave_poller(sock);
	err = siw_llp_add_to_poller(sock, to->poller);
	if (!err) {
		atomic_store_explicit(&conn->lane, to, memory_order_relaxed);
	} else if (siw_llp_add_to_poller(sock, from->poller)) {
		conn_end_stream(conn, true);
		conn->cause = err;
	}
	return err;
}

static bool conn_can_attach_qp(const struct siw_conn *conn, const struct siw_rc_qp *rc)
{
	const struct siw_lane *lane = siw_conn_lane(conn);
	int action;

	/*
	 * A connection that is neither in lane 0 nor in the lane of this queue pair has had another
	 * queue pair. The lock of its lane is not held.
	 */
	if (lane != &lane->ctx->lane0 && lane != rc->base.qp.lane)
		return false;
	return conn->stage == STARTED && !rc->conn && !rc->base.flow.stream &&
	       siw_qp_find_next_state(SIW_QPT_RC, rc->base.qp.state, SIW_QPE_ATTACHED, &action) >=
		       0;
}

/* Called with the locks of lane 0 and of the queue pair's lane held. */
static int conn_move_and_attach_qp(struct siw_conn *conn, struct siw_rc_qp *rc,
				   const struct siw_rc_start *start)
{
	struct siw_lane *lane = rc->base.qp.lane;
	int err;

	if (!lane->ctx->lane0.poller || !lane->poller) /* the device was closed by force */
		return siw_refuse(STALE);
	if (!conn_can_attach_qp(conn, rc))
		return siw_refuse(CM_QP_STATE, (uint64_t)rc->base.qp.state);
	err = conn_move_to_lane(conn, lane);
	return err ? err : siw_conn_attach_qp(conn, rc, start);
}

int siw_connect_attach_qp(struct siw_conn *conn, const struct siw_qp_hold *hold,
			  const struct siw_rc_start *start)
{
	struct siw_context *ctx = conn->user->ctx;
	struct siw_qp *qp = siw_qp_get_by_weak_ref(ctx, hold);
	int err;

	if (!qp)
		return siw_refuse(CM_NO_QP);
	siw_lock(&ctx->lane0.lock);
	if (qp->lane != &ctx->lane0)
		siw_lock(&qp->lane->lock);
	/* The queue pair may have been destroyed before its lane was locked, but not since then. */
	if (siw_qp_get_by_weak_ref(ctx, hold) == qp)
		err = conn_move_and_attach_qp(conn, siw_rc_qp_of(siw_base_qp_of(qp)), start);
	else
		err = siw_refuse(CM_NO_QP);
	if (qp->lane != &ctx->lane0)
		siw_unlock(&qp->lane->lock);
	siw_unlock(&ctx->lane0.lock);
	return err;
}

void siw_connect_refuse_with_terminate(struct siw_conn *conn, const struct siw_wire_err *err)
{
	struct siw_lane *lane = siw_conn_lock(conn);

	if (conn->stage == STARTED)
		conn_refuse_with_terminate(conn, err);
	siw_unlock(&lane->lock);
}

int siw_connect_disconnect(struct siw_conn *conn)
{
	struct siw_lane *lane = siw_conn_lock(conn);
	int err = 0;

	if (conn->rc)
		siw_qp_rc_receive_arrived_messages(&conn->rc->base);
	if (conn->rc) /* the data just received may have ended the stream */
		siw_qp_rc_fail(conn->rc, SIW_SHUTTING_DOWN, 0, NULL);
	else if (conn->stage != OVER)
		err = -ENOTCONN;
	siw_unlock(&lane->lock);
	return err;
}

void siw_conn_destroy(struct siw_conn *conn)
{
	struct siw_lane *lane = siw_conn_lock(conn);

	if (conn->rc)
		siw_qp_rc_receive_arrived_messages(&conn->rc->base);
	if (conn->rc) {
		struct siw_rc_qp *rc = conn->rc;

		siw_qp_rc_fail(rc, SIW_SHUTTING_DOWN, 0, NULL);
		/* The QP may still have to flush, but has no connection to report to any more. */
		rc->conn = NULL;
	}
	siw_conn_free(conn);
	siw_unlock(&lane->lock);
}

/* ==== listening =============================================================================== */

/* Listeners of a connection manager, at one address or at every address of the device. */

static int open_listener_at_addr(struct siw_every_addr *every, struct siw_addr *addr)
{
	struct siw_conn_listeners *l = siw_container(every, struct siw_conn_listeners, every);
	struct siw_conn *conn;
	int err = siw_conn_listen(l->user, every->lane, addr, l->backlog, NULL, &conn);

	if (err)
		return err;
	if (l->last)
		l->last->next_addr = conn;
	else
		l->first = conn;
	l->last = conn;
	return siw_llp_local_addr(conn->lsock, addr);
}

static void close_listeners(struct siw_every_addr *every)
{
	struct siw_conn_listeners *l = siw_container(every, struct siw_conn_listeners, every);

	if (l->first)
		siw_conn_free(l->first);
	l->first = l->last = NULL;
}

/* Listens at every address of the device on one port. Called with the lock of lane 0 held. */
static int listen_at_every_address(const struct siw_conn_user *user, uint16_t port, int backlog,
				   struct siw_conn **out)
{
	struct siw_conn_listeners *l = calloc(1, sizeof(*l));
	int err;

	if (!l)
		return -ENOMEM;
	*l = (struct siw_conn_listeners){
		.every = { .open = open_listener_at_addr, .undo = close_listeners },
		.user = user,
		.backlog = backlog,
	};
	err = siw_every_addr_open_sockets(&l->every, &user->ctx->lane0, port);
	if (err) {
		free(l);
		return err;
	}
	l->first->set = l;
	*out = l->first;
	return 0;
}

int siw_connect_listen(struct siw_reporter *reporter, const struct siw_addr *addr, int backlog,
		       struct siw_conn **out)
{
	const struct siw_conn_user *user = &reporter->user;
	struct siw_context *ctx = reporter->user.ctx;
	int err;

	/*
	 * *out is set under the lock, because another thread may read the listener's first event
	 * and use *out.
	 */
	siw_lock(&ctx->lane0.lock);
	err = addr->family ? siw_conn_listen(user, &ctx->lane0, addr, backlog, NULL, out)
			   : listen_at_every_address(user, siw_addr_port(addr), backlog, out);
	siw_unlock(&ctx->lane0.lock);
	return err;
}

int siw_connect_reserve_addr(struct siw_reserved_addr *place, const struct siw_addr *addr, bool udp,
			     bool v6_only)
{
	struct siw_addr kept = *addr;
	int fd = udp ? siw_llp_udp_reserve_port(&kept, v6_only)
		     : siw_llp_tcp_reserve_port(&kept, v6_only);

	if (fd < 0)
		return fd;
	place->fd = fd;
	place->addr = kept;
	return 0;
}

void siw_connect_release_addr(struct siw_reserved_addr *place)
{
	if (place->fd >= 0)
		siw_llp_event_fd_close(place->fd);
	place->fd = -1;
}
