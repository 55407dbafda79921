/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RD queue pairs: closing of endpoints, sending to peers, and the events of the endpoint. Each
 * section calls only functions of earlier sections.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "ddp/ddp_rd.h"
#include "qp/qp_impl.h"
#include "rd/rd.h"
#include "rdmap/rdmap_record.h"

/* ==== endpoints without a queue pair ========================================================== */

/*
 * An RD endpoint whose queue pair was destroyed or got another socket. The endpoint remains open
 * until the peers have received all messages, including responses, and have answered the BYE, but
 * for at most linger_ms. If a new RD queue pair needs the port, the endpoint is closed immediately.
 */

struct rd_linger {
	struct siw_io_handler handler;
	struct siw_lane *lane;
	struct siw_rd *endpoint;
	uint64_t deadline_ns;
	struct siw_timed timed;
	struct siw_link link; /* link in lane->lingering_rds */
};

static void rd_linger_close(struct rd_linger *rd_linger)
{
	siw_device_timer_cancel(rd_linger->lane, &rd_linger->timed);
	siw_link_del(&rd_linger->link);
	atomic_fetch_sub(&rd_linger->lane->ctx->n_linger, 1);
	siw_rd_close(rd_linger->endpoint);
	free(rd_linger);
}

static int rd_linger_handle_socket_event(struct siw_io_handler *self)
{
	struct rd_linger *rd_linger = siw_container(self, struct rd_linger, handler);

	if (siw_rd_continue_shutdown(rd_linger->endpoint))
		rd_linger_close(rd_linger);
	return 0;
}

static void rd_linger_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct rd_linger *rd_linger = siw_container(timed, struct rd_linger, timed);

	if (siw_rd_continue_shutdown(rd_linger->endpoint) || now_ns >= rd_linger->deadline_ns)
		rd_linger_close(rd_linger);
}

/*
 * Closes an endpoint that no longer has a queue pair, after the peers have received all messages.
 */
static void rd_linger_start(struct siw_lane *lane, struct siw_rd *endpoint)
{
	uint64_t linger_ns = (uint64_t)siw_settings()->linger_ms * 1000000;
	struct rd_linger *rd_linger = NULL;

	siw_rd_shutdown(endpoint);
	if (linger_ns && !siw_rd_continue_shutdown(endpoint))
		rd_linger = calloc(1, sizeof(*rd_linger));
	if (!rd_linger) { /* there is nothing to wait for, or no memory for the wait */
		siw_rd_close(endpoint);
		return;
	}
	rd_linger->handler.serve = rd_linger_handle_socket_event;
	rd_linger->lane = lane;
	rd_linger->endpoint = endpoint;
	rd_linger->deadline_ns = siw_now_ns() + linger_ns;
	rd_linger->timed.tick = rd_linger_handle_timer;
	siw_link_init(&rd_linger->timed.link);
	siw_link_add(&lane->lingering_rds, &rd_linger->link);
	siw_llp_set_handler(siw_rd_sock(endpoint), &rd_linger->handler);
	siw_llp_sock_resume(siw_rd_sock(endpoint));
	siw_device_timer_start_periodic(lane, &rd_linger->timed, rd_linger->deadline_ns);
	atomic_fetch_add(&lane->ctx->n_linger, 1);
}

/*
 * Immediately closes the lingering endpoint (one without a queue pair) that uses the port of addr.
 * Returns whether there was such an endpoint.
 */
static bool rd_close_lingering_endpoint(struct siw_lane *lane, const struct siw_addr *addr)
{
	struct siw_addr bound;

	for (struct siw_link *l = lane->lingering_rds.next; l != &lane->lingering_rds;
	     l = l->next) {
		struct rd_linger *rd_linger = siw_container(l, struct rd_linger, link);

		if (siw_llp_local_addr(siw_rd_sock(rd_linger->endpoint), &bound) ||
		    bound.port_be != addr->port_be)
			continue;
		rd_linger_close(rd_linger);
		return true;
	}
	return false;
}

/* ==== sending ================================================================================= */

/*
 * Sending on RD queue pairs: requests to any number of peers through one send queue. Each peer has
 * its own flow, so a slow or lost peer does not delay requests to others. A completion means that
 * the peer has received the message.
 */

/*
 * Returns the flow of a stream, which is stored with the stream. All functions of the section on
 * sending are called with send_lock held.
 */
static struct siw_flow *rd_flow_of_stream(struct siw_rdmap_stream *stream)
{
	struct siw_flow *flow = siw_rdmap_rd_user_memory(stream);

	if (!flow->stream) {
		flow->stream = stream;
		flow->ddp = siw_rdmap_rd_ddp_stream(stream);
		flow->peer = siw_rdmap_rd_peer_addr(stream);
		siw_link_init(&flow->busy);
		siw_link_init(&flow->ready);
	}
	return flow;
}

/* Marks a flow as having requests to begin or to continue. */
static void rd_mark_flow_ready(struct siw_rd_qp *rd, struct siw_flow *flow)
{
	if (siw_link_empty(&flow->ready))
		siw_link_add(&rd->ready, &flow->ready);
}

/* Marks every flow with requests as ready. */
static void rd_mark_all_flows_ready(struct siw_base_qp *base)
{
	for (struct siw_link *l = base->flows.next; l != &base->flows; l = l->next)
		rd_mark_flow_ready(siw_rd_qp_of(base), siw_container(l, struct siw_flow, busy));
}

/* ---- posting --------------------------------------------------------------------------------- */

static int64_t rd_check_request(struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;

	if (siw_qp_is_local(wr->opcode))
		return siw_refuse(RD_LOCAL);
	if (!ah || ah->pd != base->qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(NO_HANDLE);
	if (!wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	return siw_qp_op_check(base, wr);
}

static struct siw_addr rd_destination_of_request(const struct siw_send_wr *wr)
{
	struct siw_addr dest = wr->rd.ah->dest;

	if (wr->rd.remote_qpn)
		dest.port_be = htons((uint16_t)wr->rd.remote_qpn);
	return dest;
}

/* Finds the flow whose peer is at dest. Returns NULL if the flow has no requests. */
static struct siw_flow *rd_find_flow(struct siw_base_qp *base, const struct siw_addr *dest)
{
	for (struct siw_link *l = base->flows.next; l != &base->flows; l = l->next) {
		struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		if (siw_addr_same(flow->peer, dest))
			return flow;
	}
	return NULL;
}

/*
 * Flushes a request that is posted while sending is stopped. The request completes after earlier
 * requests to the same peer whose transmission has begun.
 */
static __attribute__((cold, noinline)) int
rd_flush_posted_request(struct siw_rd_qp *rd, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_addr dest = rd_destination_of_request(wr);
	struct siw_flow *flow =
		siw_teardown_of(&rd->base) == SIW_FLUSHED ? NULL : rd_find_flow(&rd->base, &dest);

	if (flow) {
		siw_qp_sq_append(&rd->base, flow, wr, length);
		siw_qp_flow_finish_current_request(&rd->base, flow, SIW_WQE_DONE,
						   SIW_WC_WR_FLUSH_ERR);
		rd_mark_flow_ready(rd, flow);
	} else {
		siw_qp_sq_complete_without_slot(&rd->base, wr, 0, SIW_WC_WR_FLUSH_ERR, &dest);
	}
	return 0;
}

/* The member post of struct siw_qp_class: appends a request to the flow of its peer. */
static int rd_post_request(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);
	int64_t length = rd_check_request(base, wr);
	struct siw_rdmap_stream *stream;
	struct siw_flow *flow;
	struct siw_addr dest;

	(void)wait; /* every request stays in the send queue until the queue is run */
	if (length < 0)
		return (int)length;
	if (siw_qp_sq_full(&rd->base))
		return siw_refuse_full(SEND_FULL, rd->base.cap.max_send_wr);
	if (__builtin_expect(rd->base.qp.state == SIW_QPS_SQE ||
				     siw_teardown_of(&rd->base) == SIW_FLUSHED,
			     0))
		return rd_flush_posted_request(rd, wr, (uint64_t)length);
	dest = rd_destination_of_request(wr);
	if (siw_rdmap_rd_get_or_create_stream(rd->end, &dest, &stream))
		/* the table of peers is full, and no peer can be evicted: all have requests */
		return siw_refuse(PEERS_FULL);
	flow = rd_flow_of_stream(stream);
	siw_qp_op_store_in_wqe(siw_qp_sq_append(base, flow, wr, (uint64_t)length), wr);
	rd_mark_flow_ready(rd, flow);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int rd_begin_request(struct siw_base_qp *base, struct siw_flow *flow, struct siw_wqe *wqe)
{
	int err;

	(void)base;
	wqe->op.more = wqe->chain != NULL;
	err = siw_rdmap_begin_op(flow->stream, &wqe->op);
	/*
	 * -EPIPE: the peer is lost; the receive path of this end reports the loss, and completes
	 * the requests to the peer
	 */
	if (err)
		return err == -EPIPE ? -EAGAIN : err;
	if (siw_qp_awaits_response(wqe))
		wqe->msn = siw_rdmap_begun_read_count(flow->stream);
	else if (siw_qp_flags_of_opcode(wqe->opcode) & SIW_OP_SENDS)
		wqe->msn = siw_rdmap_rd_last_send_msn(flow->stream);
	return 0;
}

/*
 * Moves the QP to SQE, as on UD, after a request failed locally because of its key or memory, and
 * flushes requests that have not begun. Requests that have begun continue.
 */
static __attribute__((cold, noinline)) void rd_handle_local_send_failure(struct siw_base_qp *base)
{
	siw_qp_move_to_sqe(base);
	for (struct siw_link *l = base->flows.next; l != &base->flows; l = l->next) {
		struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		while (flow->next)
			siw_qp_flow_finish_current_request(base, flow, SIW_WQE_DONE,
							   SIW_WC_WR_FLUSH_ERR);
	}
	rd_mark_all_flows_ready(base);
}

static void rd_handle_request_failure(struct siw_base_qp *base, struct siw_flow *flow, int status)
{
	(void)status;
	rd_handle_local_send_failure(base);
	flow->torn = siw_rdmap_rd_has_unfinishable_message(flow->stream);
}

static int rd_transmit_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	(void)base;
	/* the data was copied when the request was framed, so the program may reuse the memory */
	flow->memory_released = UINT64_MAX - 1;
	return siw_rdmap_flush_tx(flow->stream, &flow->accepted);
}

/* Completes, in order, the requests of the flow that the peer has accepted or that are DONE. */
static void rd_reap_accepted_requests(struct siw_rd_qp *rd, struct siw_flow *flow)
{
	flow->accepted = siw_ddp_tx_accepted_position(flow->ddp);
	siw_qp_reap_finished_requests(&rd->base, flow);
}

/*
 * Marks the stream of a flow as torn, after memory became unmapped in the middle of a message. The
 * peer cannot receive the rest of the message, so no later message may be sent on the stream: the
 * stream ends when the device services the queue pair next.
 */
static __attribute__((cold, noinline)) void rd_tear_stream(struct siw_base_qp *base,
							   struct siw_flow *flow)
{
	struct siw_wqe *newest = NULL;

	for (struct siw_wqe *wqe = flow->first; wqe; wqe = wqe->chain)
		if (wqe->state == SIW_WQE_BEGUN)
			newest = wqe;
	if (newest && !flow->torn) {
		newest->state = SIW_WQE_DONE;
		newest->status = SIW_WC_LOC_PROT_ERR;
		rd_handle_local_send_failure(base);
	}
	flow->torn = true;
	siw_advance_teardown(base, SIW_BROKEN);
}

/* Sends the requests to one peer. Returns whether requests are left for the next turn. */
static bool rd_send_flow_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	int r = siw_qp_flow_send_requests(base, flow);

	siw_qp_reap_finished_requests(base, flow);
	if (__builtin_expect(r == -EACCES, 0)) {
		rd_tear_stream(base, flow);
		return true;
	}
	return r >= 0 && siw_rdmap_rd_has_more_to_send(flow->stream);
}

static enum siw_run rd_run_send_queue(struct siw_base_qp *base)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);
	struct siw_link turn;

	if (siw_link_empty(&rd->ready))
		return SIW_RUN_DONE;
	siw_link_init(&turn);
	while (!siw_link_empty(&rd->ready)) {
		struct siw_link *l = rd->ready.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_empty(&turn)) {
		struct siw_flow *flow = siw_container(turn.next, struct siw_flow, ready);

		siw_link_del(&flow->ready);
		if (rd_send_flow_requests(base, flow))
			rd_mark_flow_ready(rd, flow);
	}
	if (__builtin_expect(base->draining, 0))
		siw_qp_raise_event_if_drained(base);
	return siw_link_empty(&rd->ready) ? SIW_RUN_DONE : SIW_RUN_MORE;
}

/*
 * Discards all protocol state of requests and messages in progress with peers. Called with the send
 * lock and the progress lock held.
 */
static void rd_discard_protocol_state(struct siw_base_qp *base)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);

	while (!siw_link_empty(&rd->ready))
		siw_link_del(rd->ready.next);
	if (rd->end)
		siw_rdmap_rd_end_all_streams(rd->end);
}

/* ---- queries and peers ----------------------------------------------------------------------- */

int siw_query_waits(struct siw_qp *qp, struct siw_rd_wait *out, int max)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	n = -EINVAL;
	siw_lock(&qp->lane->lock);
	if (siw_class_of(base) == &siw_qp_rd_class && siw_rd_qp_of(base)->endpoint)
		n = siw_rd_list_waiting_peers(siw_rd_qp_of(base)->endpoint, out, max);
	siw_unlock(&qp->lane->lock);
	return n == -EINVAL ? siw_qp_refuse_type(base, "RD") : n;
}

int siw_end_peer(struct siw_qp *qp, const struct siw_addr *peer)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (!peer)
		return siw_refuse_null("peer");
	if (siw_class_of(base) != &siw_qp_rd_class)
		return siw_qp_refuse_type(base, "RD");
	siw_lock(&qp->lane->lock);
	if (siw_rd_qp_of(base)->endpoint)
		n = siw_rd_abandon_peer(siw_rd_qp_of(base)->endpoint, peer);
	siw_unlock(&qp->lane->lock);
	return n;
}

int siw_poll_restarts(struct siw_qp *qp, struct siw_rd_restart *out, int max)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	if (siw_class_of(base) != &siw_qp_rd_class)
		return siw_qp_refuse_type(base, "RD");
	siw_lock(&qp->lane->lock);
	if (siw_rd_qp_of(base)->endpoint)
		n = siw_rd_list_restarted_peers(siw_rd_qp_of(base)->endpoint, out, max);
	siw_unlock(&qp->lane->lock);
	return n;
}

/* ==== the endpoint's events, and the type ===================================================== */

/*
 * RD queue pairs: handling of events from the peers, completion of requests, and handling of the
 * socket.
 */

/* Default ORD and IRD per peer. */
#define DEPTH 16

/*
 * Completes the requests that the peer had accepted when it sent the received message, and returns
 * the flow. The requests complete before the message, so that a program that polls a reply has
 * already polled the completion of its request.
 */
static struct siw_flow *rd_reap_finished_requests_and_get_flow(struct siw_rd_qp *rd,
							       struct siw_rdmap_stream *stream)
{
	struct siw_flow *flow;

	siw_lock(&rd->base.qp.send_lock);
	flow = rd_flow_of_stream(stream);
	rd_reap_accepted_requests(rd, flow);
	siw_unlock(&rd->base.qp.send_lock);
	return flow;
}

/*
 * Returns the instance number of the peer. A stream ends when the peer appears with another
 * instance number.
 */
static uint64_t rd_peer_instance_number(struct siw_rd_qp *rd, struct siw_flow *flow)
{
	if (__builtin_expect(!flow->instance, 0))
		flow->instance = siw_rd_instance_number_of_peer(rd->endpoint, flow->peer);
	return flow->instance;
}

static void rd_complete_receive(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
				const struct siw_rdmap_event *ev, int status)
{
	struct siw_flow *flow = rd_reap_finished_requests_and_get_flow(rd, stream);

	siw_qp_add_recv_completion(&rd->base, ev, status, ev->src_qpn, &ev->source,
				   rd_peer_instance_number(rd, flow));
}

static void rd_complete_write_record(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
				     uint64_t number)
{
	struct siw_flow *flow = rd_reap_finished_requests_and_get_flow(rd, stream);

	siw_qp_write_record_add_completion(&rd->base,
					   siw_rdmap_rd_write_record_find_report(rd->end, number),
					   rd_peer_instance_number(rd, flow));
	rd->records.reported++;
}

static void rd_handle_invalid_message(struct siw_rd_qp *rd, const struct siw_rdmap_event *ev)
{
	siw_count(SIW_COUNTER_err_found, 1);
	siw_qp_err_handle_invalid_message(&rd->base, ev);
}

static void rd_resume_flow_and_run_sq(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream)
{
	enum siw_run run;

	siw_lock(&rd->base.qp.send_lock);
	rd_mark_flow_ready(rd, rd_flow_of_stream(stream));
	run = rd_run_send_queue(&rd->base);
	siw_unlock(&rd->base.qp.send_lock);
	if (run != SIW_RUN_DONE)
		siw_device_add_unsent_qp(&rd->base.qp);
}

/*
 * Marks a Read or atomic request of this end as DONE with status, so that requests that waited for
 * it may begin.
 */
static void rd_handle_read_done(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
				uint64_t user_data, int status)
{
	struct siw_wqe *wqe = (struct siw_wqe *)(uintptr_t)user_data;

	siw_lock(&rd->base.qp.send_lock);
	/*
	 * The request may already have been completed while the response was in flight, because its
	 * flow ended.
	 */
	if (wqe->state == SIW_WQE_BEGUN) {
		wqe->state = SIW_WQE_DONE;
		wqe->status = (uint8_t)status;
		rd_flow_of_stream(stream)->reads_out--;
	}
	siw_unlock(&rd->base.qp.send_lock);
}

/*
 * Marks a request that the peer has refused. For a Read or atomic, the error replaces the response.
 * Any other request may still be in transmission from the user's memory, so it completes when the
 * peer has discarded all its segments.
 */
static void rd_mark_refused_request(struct siw_flow *flow, struct siw_wqe *wqe, uint8_t status)
{
	wqe->status = status;
	if (!siw_qp_awaits_response(wqe))
		return;
	flow->reads_out--;
	wqe->state = SIW_WQE_DONE;
}

/*
 * Handles an error that the peer has reported: marks the request that the error quotes as refused,
 * or queues an entry of the QP's error queue if the request has completed already.
 */
static void rd_handle_peer_error(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
				 const struct siw_rdmap_event *ev)
{
	struct siw_flow *flow;
	struct siw_wqe *wqe;

	siw_lock(&rd->base.qp.send_lock);
	flow = rd_flow_of_stream(stream);
	/*
	 * The requests that the peer has accepted complete first, because the error does not
	 * concern them.
	 */
	rd_reap_accepted_requests(rd, flow);
	wqe = siw_qp_flow_find_quoted_request(flow, ev);
	if (wqe)
		rd_mark_refused_request(flow, wqe,
					(uint8_t)siw_qp_wc_status_of_peer_error(&ev->err));
	siw_unlock(&rd->base.qp.send_lock);
	if (!wqe)
		siw_qp_errq_add_error_reported_by_peer(&rd->base, ev, 0);
}

/*
 * Ends the stream, and moves its requests, none of which has begun, to a new stream to the same
 * peer.
 */
static void rd_move_requests_to_new_stream(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
					   enum siw_rdmap_rd_ending how)
{
	struct siw_flow *flow = rd_flow_of_stream(stream), old;
	struct siw_addr peer = *flow->peer;

	siw_link_del(&flow->busy);
	siw_link_del(&flow->ready);
	old = *flow;
	old.peer = &peer;
	siw_link_init(&old.busy);
	siw_link_init(&old.ready);
	siw_rdmap_rd_end_stream(stream, how);
	/*
	 * The record of the peer exists already, so only a lack of memory can prevent the creation
	 * of the stream; the requests are then flushed.
	 */
	if (siw_rdmap_rd_get_or_create_stream(rd->end, &peer, &stream)) {
		siw_qp_flow_flush_requests(&rd->base, &old, SIW_WC_WR_FLUSH_ERR);
		return;
	}
	flow = rd_flow_of_stream(stream);
	flow->first = flow->next = old.first;
	flow->last = old.last;
	siw_link_add(&rd->base.flows, &flow->busy);
	rd_mark_flow_ready(rd, flow);
}

/*
 * Ends a stream. first: the status of the oldest begun request whose outcome is unknown. moves:
 * whether the requests move to a new stream if none of them has begun. send_lock held.
 */
static void rd_end_stream(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream, int first,
			  enum siw_rdmap_rd_ending how, bool moves)
{
	struct siw_flow *flow = rd_flow_of_stream(stream);

	rd_reap_accepted_requests(rd, flow);
	if (moves && flow->first && flow->first->state == SIW_WQE_POSTED) {
		rd_move_requests_to_new_stream(rd, stream, how);
	} else {
		siw_qp_flow_flush_requests(&rd->base, flow, first);
		siw_rdmap_rd_end_stream(stream, how);
	}
	if (__builtin_expect(rd->base.draining, 0))
		siw_qp_raise_event_if_drained(&rd->base);
}

/* Ends the stream to a peer that is lost or has restarted. status: as in event SIW_DDP_RD_LOST. */
static __attribute__((cold, noinline)) void
rd_handle_lost_peer(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream, int status)
{
	siw_lock(&rd->base.qp.send_lock);
	rd_end_stream(rd, stream,
		      status == -ETIMEDOUT ? SIW_WC_RETRY_EXC_ERR
		      : status == -ENOBUFS ? SIW_WC_RNR_RETRY_EXC_ERR
					   : SIW_WC_WR_FLUSH_ERR,
		      SIW_RDMAP_RD_LOST_PEER, status != -ESTALE);
	siw_unlock(&rd->base.qp.send_lock);
	siw_device_add_unsent_qp(&rd->base.qp);
}

/*
 * Ends the stream to a peer whose MSNs are wrong, because this end does not know which messages of
 * the peer are new and which are repeated. Both ends restart with a new stream.
 */
static __attribute__((cold, noinline)) void rd_handle_wrong_msn(struct siw_rd_qp *rd,
								struct siw_rdmap_stream *stream,
								const struct siw_rdmap_event *ev)
{
	rd_handle_invalid_message(rd, ev);
	siw_lock(&rd->base.qp.send_lock);
	rd_end_stream(rd, stream, SIW_WC_WR_FLUSH_ERR, SIW_RDMAP_RD_SEQUENCE, true);
	siw_unlock(&rd->base.qp.send_lock);
	siw_device_add_unsent_qp(&rd->base.qp);
}

/*
 * Handles a message from the peer that this end has refused: completes the request that the message
 * answers, or the receive that the message has consumed.
 */
static void rd_handle_locally_refused_message(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
					      const struct siw_rdmap_event *ev)
{
	bool local = ev->err.layer == SIW_LAYER_DDP && ev->err.type == SIW_DDP_LOCAL_CATASTROPHIC;

	if (ev->of_response) {
		rd_handle_read_done(rd, stream, ev->user_data,
				    local ? SIW_WC_LOC_PROT_ERR : SIW_WC_BAD_RESP_ERR);
		return;
	}
	if (ev->receive_consumed)
		rd_complete_receive(rd, stream, ev,
				    local ? SIW_WC_LOC_PROT_ERR : SIW_WC_LOC_LEN_ERR);
}

/*
 * Ends the streams on which a message of this end cannot be finished. A BYE notifies the peer, and
 * both ends restart with a new stream.
 */
static void rd_qp_end_unfinishable_streams(struct siw_rd_qp *rd)
{
	struct siw_rdmap_stream *stream;

	siw_lock(&rd->base.qp.send_lock);
	if (siw_teardown_of(&rd->base) == SIW_BROKEN)
		siw_set_teardown(&rd->base, SIW_ALIVE);
	/* while the teardown state was BROKEN, no flow has begun a request */
	rd_mark_all_flows_ready(&rd->base);
	while ((stream = siw_rdmap_rd_first_unfinishable_stream(rd->end)))
		rd_end_stream(rd, stream, SIW_WC_WR_FLUSH_ERR, SIW_RDMAP_RD_RESET, true);
	siw_unlock(&rd->base.qp.send_lock);
	siw_device_add_unsent_qp(&rd->base.qp);
}

/*
 * Reports to RDMAP how many completions of Write-Records the program has polled, so that as many
 * further Write-Records may be completed.
 */
static void rd_report_polled_write_records(struct siw_rd_qp *rd)
{
	rd->records.seen = atomic_load(&rd->records.polled);
	siw_rdmap_rd_write_record_set_polled_count(rd->end, rd->records.seen);
}

/*
 * Handles the pause of a Write-Record, which lasts until the program polls the completion of a
 * Write-Record. The message is resumed immediately if such a completion was polled in the meantime.
 */
static __attribute__((cold, noinline)) void rd_handle_paused_record(struct siw_rd_qp *rd)
{
	siw_qp_set_messages_waiting(&rd->base, true);
	atomic_store(&rd->records.waits, true);
	if (rd->records.seen == atomic_load(&rd->records.polled))
		return;
	rd_report_polled_write_records(rd);
	siw_rdmap_rd_resume_paused_streams(rd->end);
}

/*
 * Handles the pause of a message, which lasts until a receive is posted. The message is resumed
 * immediately if a receive was posted in the meantime.
 */
static void rd_handle_paused_message(struct siw_rd_qp *rd)
{
	siw_qp_set_messages_waiting(&rd->base, true);
	if (rd->base.qp.state >= SIW_QPS_RTR &&
	    siw_ddp_rd_can_resume_paused_stream(rd->ddp, rd->base.recvs))
		siw_rdmap_rd_resume_paused_streams(rd->end);
}

static int rd_handle_socket_event(struct siw_io_handler *self);

/* Whether the next segment of a paused stream could be accepted now. */
static bool rd_can_resume_paused_messages(struct siw_rd_qp *rd)
{
	if (rd->base.qp.state >= SIW_QPS_RTR &&
	    siw_ddp_rd_can_resume_paused_stream(rd->ddp, rd->base.recvs))
		return true;
	if (!rd->records.max)
		return false;
	rd_report_polled_write_records(rd);
	return atomic_load(&rd->records.waits) && siw_rdmap_rd_write_record_has_room(rd->end);
}

/*
 * Resumes paused messages after a receive was posted, a completion was polled, or another message
 * has ended. Returns whether messages were resumed.
 */
static bool rd_resume_paused_messages(struct siw_rd_qp *rd)
{
	if (!rd_can_resume_paused_messages(rd))
		return false;
	atomic_store(&rd->records.waits, false);
	siw_qp_set_messages_waiting(&rd->base, false);
	siw_rdmap_rd_resume_paused_streams(rd->end);
	return true;
}

static void rd_resume_and_receive(struct siw_rd_qp *rd)
{
	if (rd_resume_paused_messages(rd))
		rd_handle_socket_event(&rd->base.qp.handler);
}

static void rd_qp_handle_event(struct siw_rd_qp *rd, struct siw_rdmap_stream *stream,
			       const struct siw_rdmap_event *ev)
{
	/* whether requests, responses or an error message can be sent after the event */
	bool run = ev->acked;
	bool found = false; /* whether an error of the peer is reported to the program */

	switch (ev->kind) {
	case SIW_RDMAP_RECV:
		rd_complete_receive(rd, stream, ev, SIW_WC_SUCCESS);
		break;
	case SIW_RDMAP_BAD_RECV:
		rd_complete_receive(rd, stream, ev, SIW_WC_LOC_PROT_ERR);
		run = found = true;
		break;
	case SIW_RDMAP_RECORD:
		rd_complete_write_record(rd, stream, ev->user_data);
		break;
	case SIW_RDMAP_READ_DONE:
		rd_handle_read_done(rd, stream, ev->user_data, SIW_WC_SUCCESS);
		run = true;
		break;
	case SIW_RDMAP_REQUESTED:
	case SIW_RDMAP_ACKED:
		run = true;
		break;
	case SIW_RDMAP_TERMINATED:
		rd_handle_peer_error(rd, stream, ev);
		run = true;
		break;
	case SIW_RDMAP_REFUSED:
		rd_handle_locally_refused_message(rd, stream, ev);
		run = true;
		found = !ev->of_response && !ev->receive_consumed;
		break;
	case SIW_RDMAP_PAUSED:
		if (ev->status == -EBUSY)
			rd_handle_paused_record(rd);
		else
			rd_handle_paused_message(rd);
		break;
	case SIW_RDMAP_SEQUENCE:
		rd_handle_wrong_msn(rd, stream, ev);
		return; /* the stream does not exist any more */
	case SIW_RDMAP_LOST:
		rd_handle_lost_peer(rd, stream, ev->status);
		return;
	default:
		break;
	}
	if (run)
		rd_resume_flow_and_run_sq(rd, stream);
	if (__builtin_expect(found, 0)) /* rd_handle_invalid_message() may end all streams */
		rd_handle_invalid_message(rd, ev);
}

static int rd_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_rd_qp *rd = siw_container(self, struct siw_rd_qp, base.qp.handler);
	struct siw_rdmap_stream *stream;
	struct siw_rdmap_event ev = { 0 };
	uint32_t octets = 0;
	int n = 0;

	if (__builtin_expect(rd->records.max, 0))
		rd_report_polled_write_records(rd);
	while (n < rd->base.burst && octets < SIW_TURN_OCTETS &&
	       siw_rdmap_rd_recv(rd->end, &stream, &ev) == 1) {
		n++;
		octets += ev.placed;
		rd_qp_handle_event(rd, stream, &ev);
	}
	if (n == rd->base.burst || octets >= SIW_TURN_OCTETS)
		siw_llp_sock_resume(siw_rd_sock(rd->endpoint));
	if (__builtin_expect(rd->base.qp.has_unexpected, 0))
		rd_resume_paused_messages(rd);
	if (__builtin_expect(siw_rd_test_and_clear_any_peer_restarted(rd->endpoint), 0))
		siw_device_raise_async_event(&rd->base.qp.async, SIW_EVENT_PEER_RESTARTED);
	siw_qp_receive_turn_done(&rd->base, n, octets);
	if (siw_rdmap_rd_stream_count(rd->end) && siw_link_empty(&rd->base.timed.link))
		siw_device_timer_start_periodic(rd->base.qp.lane, &rd->base.timed, 0);
	return n;
}

/* ---- the endpoint ---------------------------------------------------------------------------- */

static uint16_t rd_read_depth_or_default(int asked)
{
	return asked < 0 ? DEPTH : (uint16_t)asked;
}

static void rd_qp_configure_receiving(struct siw_base_qp *base)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);
	struct siw_rdmap_start start = {
		.recvs = rd->base.recvs,
		.pd = rd->base.qp.pd->number,
		.ird = rd_read_depth_or_default(rd->base.ird),
		.ord = rd_read_depth_or_default(rd->base.ord),
		.denied = ~(uint32_t)rd->base.access,
		.owner = siw_device_owner(&rd->base.qp),
	};
	enum siw_rdmap_rd_mode mode = SIW_RDMAP_RD_WAIT;

	if (rd->base.qp.state >= SIW_QPS_RTR && rd->base.qp.state <= SIW_QPS_SQE)
		mode = SIW_RDMAP_RD_ON;
	else if (rd->base.qp.state == SIW_QPS_ERR)
		mode = SIW_RDMAP_RD_REJECT;
	if (!rd->end)
		return;
	siw_lock(&rd->base.qp.send_lock);
	rd->base.granted_ord = rd->base.reads_max = rd_read_depth_or_default(rd->base.ord);
	rd->base.granted_ird = rd_read_depth_or_default(rd->base.ird);
	siw_rd_set_qkey(rd->endpoint, rd->base.qkey);
	siw_rd_set_unreachable(rd->endpoint, rd->base.qp.state == SIW_QPS_RESET);
	siw_rd_set_ird(rd->endpoint, (uint8_t)start.ird);
	siw_rd_set_rnr_retry_and_timer(rd->endpoint, (uint8_t)rd->base.rnr_retry,
				       (uint8_t)rd->base.min_rnr_timer);
	siw_rdmap_rd_configure_receiving(rd->end, mode, &start);
	siw_unlock(&rd->base.qp.send_lock);
}

static void rd_qp_close_socket(struct siw_base_qp *base)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);

	if (!rd->end)
		return;
	siw_device_timer_cancel(rd->base.qp.lane, &rd->base.timed);
	if (rd->base.qp.has_unexpected)
		siw_qp_set_messages_waiting(&rd->base, false);
	siw_lock(&rd->base.qp.send_lock);
	siw_rd_shutdown(rd->endpoint);
	siw_rdmap_rd_close(rd->end);
	rd_linger_start(rd->base.qp.lane, rd->endpoint);
	rd->end = NULL;
	rd->ddp = NULL;
	rd->endpoint = NULL;
	siw_unlock(&rd->base.qp.send_lock);
}

/*
 * Starts the shutdown of the endpoint before the queue pair is destroyed, so that all messages sent
 * still reach the peers.
 */
static void rd_qp_start_shutdown_before_destroy(struct siw_base_qp *base)
{
	if (siw_rd_qp_of(base)->endpoint)
		siw_rd_shutdown(siw_rd_qp_of(base)->endpoint);
}

static bool rd_flow_has_requests(void *user)
{
	return ((struct siw_flow *)user)->first;
}

/* Ends the streams that were not used since the last tick of the timer. */
static void rd_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_rd_qp *rd = siw_container(timed, struct siw_rd_qp, base.timed);
	uint32_t left;

	(void)now_ns;
	siw_lock(&rd->base.qp.send_lock);
	left = siw_rdmap_rd_end_idle_streams(rd->end, rd_flow_has_requests);
	siw_unlock(&rd->base.qp.send_lock);
	if (!left)
		siw_device_timer_cancel(rd->base.qp.lane, timed);
}

/*
 * Opens DDP and RDMAP on an RD endpoint, which the caller still owns. Returns 0 with *ddp and *out,
 * or -errno.
 */
static int rd_open_rdmap(struct siw_rd_qp *rd, struct siw_rd *endpoint, struct siw_ddp_rd **ddp,
			 struct siw_rdmap_rd **out)
{
	struct siw_mem *mem = rd->base.qp.ctx->mem;
	int err = siw_ddp_rd_open(mem, endpoint, ddp);

	if (err)
		return err;
	err = siw_rdmap_rd_open(mem, *ddp, sizeof(struct siw_flow), out);
	if (err) {
		siw_ddp_rd_close(*ddp);
		return err;
	}
	err = siw_rdmap_rd_write_record_enable_rx(*out, rd->records.max);
	if (err)
		siw_rdmap_rd_close(*out);
	return err;
}

static int rd_qp_open_socket(struct siw_base_qp *base, const struct siw_addr *addr, int fd)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);
	struct siw_rd_attr attr = {
		.fd = fd,
		.no_crc = base->no_crc,
		.ird = (uint8_t)rd_read_depth_or_default(base->ird),
		.qkey = base->qkey,
		.max_peers = rd->max_peers,
		.peer_timeout_ns = (uint64_t)rd->peer_timeout_ms * 1000000,
		.rnr_retry = (uint8_t)base->rnr_retry,
		.rnr_timer = (uint8_t)base->min_rnr_timer,
		.handler = &base->qp.handler,
	};
	struct siw_rdmap_rd *end;
	struct siw_rd *endpoint;
	struct siw_ddp_rd *ddp;
	struct siw_addr bound;
	int err;

	if (addr)
		attr.local = *addr;
	err = siw_rd_open(base->qp.lane->poller, &attr, &endpoint);
	if (err == -EADDRINUSE && addr && rd_close_lingering_endpoint(base->qp.lane, addr))
		err = siw_rd_open(base->qp.lane->poller, &attr, &endpoint);
	if (err)
		return err;
	err = rd_open_rdmap(rd, endpoint, &ddp, &end);
	if (err) {
		siw_rd_close(endpoint);
		return err;
	}
	atomic_store(&rd->records.polled, 0);
	siw_llp_local_addr(siw_rd_sock(endpoint), &bound);
	rd_qp_close_socket(base);
	base->qp.handler.serve = rd_handle_socket_event;
	base->timed.tick = rd_handle_timer;
	siw_lock(&base->qp.send_lock);
	rd->endpoint = endpoint;
	rd->ddp = ddp;
	rd->end = end;
	base->private = true;
	/* The QPN is the UDP port, as on UD. */
	atomic_store(&base->qp.qpn, siw_addr_port(&bound));
	siw_unlock(&base->qp.send_lock);
	rd_qp_configure_receiving(base);
	return 0;
}

static bool rd_qp_close_lingering_endpoint_at_port(struct siw_base_qp *base,
						   const struct siw_qp_init_attr *init)
{
	bool found = false;

	SIW_EACH_LANE(lane, base->qp.ctx)
	{
		siw_lock(&lane->lock);
		found |= rd_close_lingering_endpoint(lane, &init->addr);
		siw_unlock(&lane->lock);
	}
	return found;
}

static int rd_qp_create(struct siw_base_qp *base, const struct siw_qp_init_attr *attr)
{
	struct siw_rd_qp *rd = siw_rd_qp_of(base);
	struct siw_addr addr;
	int err = siw_qp_addr_or_first_of_device(base, &attr->addr, &addr);

	rd->records.max = attr->max_write_records;
	rd->max_peers = attr->max_peers;
	rd->peer_timeout_ms = attr->peer_timeout_ms;
	siw_link_init(&rd->ready);
	return err ? err : rd_qp_open_socket(base, &addr, -1);
}

static int rd_get_addr(const struct siw_base_qp *base, struct siw_addr *own, struct siw_addr *peer)
{
	const struct siw_rd_qp *rd = siw_rd_qp_of(base);

	(void)peer;
	return rd->end ? siw_llp_local_addr(siw_rd_sock(rd->endpoint), own) : -ENOTCONN;
}

static void rd_qp_query_init_attr(const struct siw_base_qp *base, struct siw_qp_init_attr *attr)
{
	const struct siw_rd_qp *rd = siw_rd_qp_of(base);

	attr->max_peers = rd->max_peers;
	attr->peer_timeout_ms = rd->peer_timeout_ms;
}

/* ---- ops and the type ------------------------------------------------------------------------ */

static enum siw_turn rd_make_sending_turn(struct siw_qp *qp, uint64_t round)
{
	enum siw_turn left = siw_qp_make_sending_turn(qp, round);
	struct siw_rd_qp *rd = siw_rd_qp_of(siw_base_qp_of(qp));
	bool broken = siw_teardown_of(&rd->base) == SIW_BROKEN;

	if (broken)
		rd_qp_end_unfinishable_streams(rd);
	if (qp->has_unexpected)
		rd_resume_and_receive(rd);
	return broken ? SIW_TURN_DONE : left;
}

/*
 * Closes the queue pair when the process exits, and sends BYE to the peers, which would otherwise
 * probe this end until their time-out.
 */
static void rd_close_at_exit(struct siw_qp *qp)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);

	siw_qp_send_delayed_requests(base);
	rd_qp_start_shutdown_before_destroy(base);
	if (siw_qp_apply_state_event(base, SIW_QPE_FAILED) >= 0)
		siw_qp_flush(base);
	rd_qp_close_socket(base);
}

static void rd_count_polled_write_record(struct siw_qp *qp)
{
	siw_qp_write_record_note_polled_completion(siw_base_qp_of(qp),
						   &siw_rd_qp_of(siw_base_qp_of(qp))->records);
}

static const struct siw_rdmap_record *rd_find_write_record(struct siw_base_qp *base,
							   uint64_t number)
{
	return siw_rd_qp_of(base)->end
		       ? siw_rdmap_rd_write_record_find_report(siw_rd_qp_of(base)->end, number)
		       : NULL;
}

const struct siw_qp_class siw_qp_rd_class = {
	.ops = {
		.owns_regions = true,
		.turn = rd_make_sending_turn,
		.uses_key = siw_qp_uses_lkey,
		.is_quiet = siw_qp_has_empty_sq,
		.fail = siw_qp_fail,
		.leave = rd_close_at_exit,
		.record_polled = rd_count_polled_write_record,
	},
	.size = sizeof(struct siw_rd_qp),
	.type = SIW_QPT_RD,
	.has_records = true,
	.has_errors = true,
	.wait_octets = SIW_DELAY_OCTETS_DGRAM,
	.wait_requests = SIW_RDMAP_MAX_SOME,
	.many_flows = true,
	.has_rights = true,
	.opcodes = UINT32_MAX,
	.turn_octets = UINT64_MAX,
	.failure = SIW_WC_LOC_PROT_ERR,
	.create = rd_qp_create,
	.free_port = rd_qp_close_lingering_endpoint_at_port,
	.open = rd_qp_open_socket,
	.before_destroy = rd_qp_start_shutdown_before_destroy,
	.close = rd_qp_close_socket,
	.addr = rd_get_addr,
	.query_init = rd_qp_query_init_attr,
	.receive = rd_qp_configure_receiving,
	.end = siw_qp_flush,
	.post = rd_post_request,
	.check = rd_check_request,
	.run = rd_run_send_queue,
	.resume = rd_mark_all_flows_ready,
	.begin = rd_begin_request,
	.failed = rd_handle_request_failure,
	.transmit = rd_transmit_requests,
	.discard_state = rd_discard_protocol_state,
	.find_record = rd_find_write_record,
};
