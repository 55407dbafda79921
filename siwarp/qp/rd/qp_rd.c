/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sending on RD queue pairs: requests to any number of peers through one send queue. Each peer has
 * its own flow, so a slow or lost peer does not delay requests to others. A completion means that
 * the peer has received the message.
 */
#include <errno.h>

#include "base/addr.h"
#include "rdmap/rdmap_record.h"
#include "rd/rd.h"
#include "qp/rd/qp_rd.h"

struct siw_flow *siw_qp_rd_flow_of(struct siw_rdmap_stream *stream)
{
	struct siw_flow *flow = siw_rdmap_rd_user(stream);

	if (!flow->stream) {
		flow->stream = stream;
		flow->ddp = siw_rdmap_rd_ddp(stream);
		flow->peer = siw_rdmap_rd_peer_addr(stream);
		siw_link_init(&flow->busy);
		siw_link_init(&flow->ready);
	}
	return flow;
}

void siw_qp_rd_ready(struct siw_rd_qp *rd, struct siw_flow *flow)
{
	if (siw_link_empty(&flow->ready))
		siw_link_add(&rd->ready, &flow->ready);
}

void siw_qp_rd_resume(struct siw_wq *wq)
{
	for (struct siw_link *l = wq->flows.next; l != &wq->flows; l = l->next)
		siw_qp_rd_ready(siw_rd_of(wq), siw_container(l, struct siw_flow, busy));
}

/* ---- posting --------------------------------------------------------------------------------- */

int64_t siw_qp_rd_check(struct siw_wq *wq, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;

	if (siw_qp_is_local(wr->opcode))
		return siw_refuse(RD_LOCAL);
	if (!ah || ah->pd != wq->qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(RD_HANDLE);
	if (!wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	return siw_qp_op_check(wq, wr);
}

static struct siw_addr rd_destination(const struct siw_send_wr *wr)
{
	struct siw_addr dest = wr->rd.ah->dest;

	if (wr->rd.remote_qpn)
		dest.port_be = htons((uint16_t)wr->rd.remote_qpn);
	return dest;
}

/* The flow to this peer, if it has requests; else NULL. */
static struct siw_flow *rd_find_flow(struct siw_wq *wq, const struct siw_addr *dest)
{
	for (struct siw_link *l = wq->flows.next; l != &wq->flows; l = l->next) {
		struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		if (siw_addr_same(flow->peer, dest))
			return flow;
	}
	return NULL;
}

/*
 * Sending has stopped: flushes the new request, after earlier requests to the same peer that have
 * begun.
 */
static __attribute__((cold, noinline)) int
post_flushed(struct siw_rd_qp *rd, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_addr dest = rd_destination(wr);
	struct siw_flow *flow =
		siw_teardown_of(&rd->wq) == SIW_FLUSHED ? NULL : rd_find_flow(&rd->wq, &dest);

	if (flow) {
		siw_qp_sq_append(&rd->wq, flow, wr, length);
		siw_qp_flow_advance(&rd->wq, flow, SIW_WQE_DONE, SIW_WC_WR_FLUSH_ERR);
		siw_qp_rd_ready(rd, flow);
	} else {
		siw_qp_sq_bypass(&rd->wq, wr, 0, SIW_WC_WR_FLUSH_ERR, &dest);
	}
	return 0;
}

int siw_qp_rd_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);
	int64_t length = siw_qp_rd_check(wq, wr);
	struct siw_rdmap_stream *stream;
	struct siw_flow *flow;
	struct siw_addr dest;

	(void)wait; /* unused: a request stays in the queue until it is run in any case */
	if (length < 0)
		return (int)length;
	if (siw_qp_sq_full(&rd->wq))
		return siw_refuse_full(SEND_FULL, rd->wq.cap.max_send_wr);
	if (__builtin_expect(
		    rd->wq.qp.state == SIW_QPS_SQE || siw_teardown_of(&rd->wq) == SIW_FLUSHED, 0))
		return post_flushed(rd, wr, (uint64_t)length);
	dest = rd_destination(wr);
	if (siw_rdmap_rd_stream(rd->end, &dest, &stream))
		/* no peer record can be evicted, since all have requests */
		return siw_refuse(PEERS_FULL);
	flow = siw_qp_rd_flow_of(stream);
	siw_qp_op_store(siw_qp_sq_append(wq, flow, wr, (uint64_t)length), wr);
	siw_qp_rd_ready(rd, flow);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

int siw_qp_rd_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe)
{
	struct siw_rdmap_op op;
	int err;

	(void)wq;
	if (__builtin_expect(wqe->opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
		siw_qp_op_record(wqe, &op);
	else
		siw_qp_op_make(wqe, &op);
	err = siw_rdmap_send(flow->stream, &op);
	/* -EPIPE: the peer is lost; the receiving side reports that and ends the peer's requests */
	if (err)
		return err == -EPIPE ? -EAGAIN : err;
	if (siw_qp_awaits_response(wqe))
		wqe->msn = siw_rdmap_reads(flow->stream);
	else if (siw_qp_op_flags(wqe->opcode) & SIW_OP_SENDS)
		wqe->msn = siw_rdmap_rd_sends(flow->stream);
	return 0;
}

/*
 * A request failed locally because of its key or memory: moves the QP to SQE, as on UD, and flushes
 * requests that have not begun. Requests that have begun continue.
 */
static __attribute__((cold, noinline)) void rd_send_failed(struct siw_wq *wq)
{
	siw_qp_send_failed(wq);
	for (struct siw_link *l = wq->flows.next; l != &wq->flows; l = l->next) {
		struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		while (flow->next)
			siw_qp_flow_advance(wq, flow, SIW_WQE_DONE, SIW_WC_WR_FLUSH_ERR);
	}
	siw_qp_rd_resume(wq);
}

void siw_qp_rd_failed(struct siw_wq *wq, struct siw_flow *flow, int status)
{
	(void)status;
	rd_send_failed(wq);
	flow->torn = siw_rdmap_rd_is_torn(flow->stream);
}

int siw_qp_rd_flush(struct siw_wq *wq, struct siw_flow *flow)
{
	(void)wq;
	/* the data was copied when the request was framed, so the memory is free */
	flow->taken = UINT64_MAX - 1;
	return siw_rdmap_flush(flow->stream, &flow->accepted);
}

void siw_qp_rd_reap(struct siw_rd_qp *rd, struct siw_flow *flow)
{
	flow->accepted = siw_ddp_tx_accepted(flow->ddp);
	siw_qp_flow_reap(&rd->wq, flow);
}

/*
 * Memory became unmapped in the middle of a message. The peer cannot receive the rest of the
 * message, so no later message may be sent on the stream: the stream ends at the next turn.
 */
static __attribute__((cold, noinline)) void rd_tear_stream(struct siw_wq *wq, struct siw_flow *flow)
{
	struct siw_wqe *newest = NULL;

	for (struct siw_wqe *wqe = flow->first; wqe; wqe = wqe->chain)
		if (wqe->state == SIW_WQE_BEGUN)
			newest = wqe;
	if (newest && !flow->torn) {
		newest->state = SIW_WQE_DONE;
		newest->status = SIW_WC_LOC_PROT_ERR;
		rd_send_failed(wq);
	}
	flow->torn = true;
	siw_tear(wq, SIW_BROKEN);
}

/* Sends to one peer. Returns whether requests are left for the next turn. */
static bool rd_run_flow(struct siw_wq *wq, struct siw_flow *flow)
{
	int r = siw_qp_flow_send(wq, flow);

	siw_qp_flow_reap(wq, flow);
	if (__builtin_expect(r == -EACCES, 0)) {
		rd_tear_stream(wq, flow);
		return true;
	}
	return r >= 0 && siw_rdmap_rd_has_more(flow->stream);
}

enum siw_run siw_qp_rd_run(struct siw_wq *wq)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);
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
		if (rd_run_flow(wq, flow))
			siw_qp_rd_ready(rd, flow);
	}
	if (__builtin_expect(wq->draining, 0))
		siw_qp_drained(wq);
	return siw_link_empty(&rd->ready) ? SIW_RUN_DONE : SIW_RUN_MORE;
}

void siw_qp_rd_abandon(struct siw_wq *wq)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);

	while (!siw_link_empty(&rd->ready))
		siw_link_del(rd->ready.next);
	if (rd->end)
		siw_rdmap_rd_abandon(rd->end);
}

/* ---- queries and peers ----------------------------------------------------------------------- */

int siw_query_waits(struct siw_qp *qp, struct siw_rd_wait *out, int max)
{
	struct siw_wq *wq = siw_wq_of(qp);
	int n = siw_qp_enter(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	n = -EINVAL;
	siw_lock(&qp->ctx->progress);
	if (siw_class_of(wq) == &siw_qp_rd_class && siw_rd_of(wq)->endpoint)
		n = siw_rd_list_waiting_peers(siw_rd_of(wq)->endpoint, out, max);
	siw_unlock(&qp->ctx->progress);
	return n == -EINVAL ? siw_qp_refuse_type(wq, "RD") : n;
}

int siw_end_peer(struct siw_qp *qp, const struct siw_addr *peer)
{
	struct siw_wq *wq = siw_wq_of(qp);
	int n = siw_qp_enter(qp);

	if (n)
		return n;
	if (!peer)
		return siw_refuse_null("peer");
	if (siw_class_of(wq) != &siw_qp_rd_class)
		return siw_qp_refuse_type(wq, "RD");
	siw_lock(&qp->ctx->progress);
	if (siw_rd_of(wq)->endpoint)
		n = siw_rd_abandon_peer(siw_rd_of(wq)->endpoint, peer);
	siw_unlock(&qp->ctx->progress);
	return n;
}

int siw_poll_restarts(struct siw_qp *qp, struct siw_rd_restart *out, int max)
{
	struct siw_wq *wq = siw_wq_of(qp);
	int n = siw_qp_enter(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	if (siw_class_of(wq) != &siw_qp_rd_class)
		return siw_qp_refuse_type(wq, "RD");
	siw_lock(&qp->ctx->progress);
	if (siw_rd_of(wq)->endpoint)
		n = siw_rd_restarts(siw_rd_of(wq)->endpoint, out, max);
	siw_unlock(&qp->ctx->progress);
	return n;
}
