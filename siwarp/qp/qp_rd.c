/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RD queue pairs: requests to any number of peers through one ring. Each peer has its own order: what
 * is to one that is slow, or gone, holds up nobody else's, so requests leave the ring in any order and
 * its slots are a free list. A completion says that the peer has it.
 */
#include <errno.h>

#include "base/addr.h"
#include "rdmap/rdmap_record.h"
#include "qp/qp_rd.h"

#define NONE UINT32_MAX

struct siw_qp_rd_flow *siw_qp_rd_flow_of(struct siw_rdmap_stream *stream)
{
	struct siw_qp_rd_flow *flow = siw_rdmap_rd_user(stream);

	if (!flow->stream) {
		flow->stream = stream;
		flow->ddp = siw_rdmap_rd_ddp(stream);
		flow->next = NONE;
		siw_link_init(&flow->busy);
		siw_link_init(&flow->ready);
	}
	return flow;
}

void siw_qp_rd_ready(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow)
{
	if (siw_link_alone(&flow->ready))
		siw_link_add(&rd->ready, &flow->ready);
}

/* ---- the ring -------------------------------------------------------------------------------- */

void siw_qp_rd_slots(struct siw_rd_qp *rd)
{
	for (uint32_t i = 0; i <= rd->wq.sq_mask; i++)
		siw_qp_wqe(&rd->wq, i)->chain = i + 1;
	rd->free = 0;
}

/* There is one: no more requests are in the ring than it has slots. */
static uint32_t take_slot(struct siw_rd_qp *rd)
{
	uint32_t slot = rd->free;

	rd->free = siw_qp_wqe(&rd->wq, slot)->chain;
	rd->wq.sq_tail++;
	return slot;
}

static void append(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, uint32_t slot)
{
	if (!flow->n++) {
		flow->first = slot;
		siw_link_add(&rd->busy, &flow->busy);
	} else {
		siw_qp_wqe(&rd->wq, flow->last)->chain = slot;
	}
	flow->last = slot;
	if (flow->next == NONE)
		flow->next = slot;
}

/* How a request completes: as a peer said, or else as is said here. */
static int outcome(const struct siw_wqe *wqe, int otherwise)
{
	bool told = wqe->state == SIW_WQE_DONE || (wqe->state == SIW_WQE_BEGUN && wqe->status);

	return told ? wqe->status : otherwise;
}

/* The oldest request to a peer is over. */
static void finish(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, int status)
{
	uint32_t slot = flow->first;
	struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);

	if (wqe->state != SIW_WQE_POSTED)
		rd->wq.begun--;
	if (flow->next == slot)
		flow->next = flow->n > 1 ? wqe->chain : NONE;
	flow->first = wqe->chain;
	if (!--flow->n)
		siw_link_del(&flow->busy);
	siw_qp_wqe_complete(&rd->wq, wqe, status, status ? rd->wq.wire_err : 0,
			    status ? siw_rdmap_rd_peer_addr(flow->stream) : NULL);
	wqe->chain = rd->free;
	rd->free = slot;
}

void siw_qp_rd_finish_all(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, int first)
{
	while (flow->n) {
		const struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, flow->first);
		bool told = outcome(wqe, -1) != -1;

		finish(rd, flow, outcome(wqe, first));
		if (!told)
			first = SIW_WC_WR_FLUSH_ERR;
	}
	flow->reads_out = 0;
	siw_link_del(&flow->ready);
}

void siw_qp_rd_flush_slots(struct siw_rd_qp *rd, const struct siw_qp_rd_flow *flow,
			   const struct siw_addr *peer)
{
	uint32_t slot = flow->first;

	for (uint32_t n = flow->n; n; n--) {
		struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);
		uint32_t next = wqe->chain;

		siw_qp_wqe_complete(&rd->wq, wqe, SIW_WC_WR_FLUSH_ERR, rd->wq.wire_err, peer);
		wqe->chain = rd->free;
		rd->free = slot;
		slot = next;
	}
}

/* ---- posting --------------------------------------------------------------------------------- */

static int64_t check(const struct siw_rd_qp *rd, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;

	if (siw_qp_is_local(wr->opcode))
		return siw_refuse(RD_LOCAL);
	if (!ah || ah->pd != rd->wq.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(RD_HANDLE);
	if (!wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	return siw_qp_op_check(&rd->wq, wr);
}

static struct siw_addr destination(const struct siw_send_wr *wr)
{
	struct siw_addr dest = wr->rd.ah->dest;

	if (wr->rd.remote_qpn)
		dest.port_be = htons((uint16_t)wr->rd.remote_qpn);
	return dest;
}

/* The requests to this peer that are not complete; NULL: there are none. */
static struct siw_qp_rd_flow *flow_to(struct siw_rd_qp *rd, const struct siw_addr *dest)
{
	for (struct siw_link *l = rd->busy.next; l != &rd->busy; l = l->next) {
		struct siw_qp_rd_flow *flow = siw_container(l, struct siw_qp_rd_flow, busy);

		if (siw_addr_same(siw_rdmap_rd_peer_addr(flow->stream), dest))
			return flow;
	}
	return NULL;
}

/* It completes behind those to its peer that were begun. */
static void put_flushed(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow,
			const struct siw_send_wr *wr, uint64_t length)
{
	uint32_t slot = take_slot(rd);
	struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);

	siw_qp_wqe_fill(&rd->wq, wqe, wr, length);
	wqe->state = SIW_WQE_DONE;
	wqe->status = SIW_WC_WR_FLUSH_ERR;
	rd->wq.begun++;
	append(rd, flow, slot);
	flow->next = NONE;
	siw_qp_rd_ready(rd, flow);
}

/* Nothing is sent any more: the request is over as soon as it is posted. */
static __attribute__((cold, noinline)) int
post_flushed(struct siw_rd_qp *rd, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_addr dest = destination(wr);
	struct siw_qp_rd_flow *flow = siw_teardown_of(&rd->wq) == SIW_FLUSHED ? NULL
									      : flow_to(rd, &dest);
	struct siw_wqe wqe = { .wr_id = wr->wr_id, .opcode = (uint8_t)wr->opcode };

	if (flow) {
		put_flushed(rd, flow, wr, length);
		return 0;
	}
	rd->wq.sq_tail++;
	siw_qp_wqe_complete(&rd->wq, &wqe, SIW_WC_WR_FLUSH_ERR, rd->wq.wire_err, &dest);
	return 0;
}

int siw_qp_rd_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);
	int64_t length = check(rd, wr);
	struct siw_rdmap_stream *stream;
	struct siw_qp_rd_flow *flow;
	struct siw_addr dest;
	struct siw_wqe *wqe;
	uint32_t slot;

	(void)wait; /* all of them lie in the ring until they are run */
	if (length < 0)
		return (int)length;
	if (siw_qp_sq_full(&rd->wq))
		return siw_refuse_full(SEND_FULL, rd->wq.cap.max_send_wr);
	if (__builtin_expect(
		    rd->wq.qp.state == SIW_QPS_SQE || siw_teardown_of(&rd->wq) == SIW_FLUSHED, 0))
		return post_flushed(rd, wr, (uint64_t)length);
	dest = destination(wr);
	if (siw_rdmap_rd_stream(rd->end, &dest, &stream))
		return siw_refuse(PEERS_FULL); /* all of them have requests, too */
	flow = siw_qp_rd_flow_of(stream);
	slot = take_slot(rd);
	wqe = siw_qp_wqe(&rd->wq, slot);
	siw_qp_wqe_fill(&rd->wq, wqe, wr, (uint64_t)length);
	siw_qp_op_put(wqe, wr);
	append(rd, flow, slot);
	siw_qp_rd_ready(rd, flow);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int begin(const struct siw_qp_rd_flow *flow, struct siw_wqe *wqe, uint32_t slot)
{
	struct siw_rdmap_op op;

	if (__builtin_expect(wqe->opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
		siw_qp_op_record(wqe, &op);
	else
		siw_qp_op_make(wqe, slot, &op);
	return siw_rdmap_send(flow->stream, &op);
}

static void begun(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, struct siw_wqe *wqe)
{
	wqe->state = SIW_WQE_BEGUN;
	wqe->status = SIW_WC_SUCCESS;
	rd->wq.begun++;
	if (siw_qp_awaits_response(wqe)) {
		flow->reads_out++;
		wqe->msn = siw_rdmap_reads(flow->stream);
	} else if (siw_qp_op_flags(wqe->opcode) & SIW_OP_SENDS) {
		wqe->msn = siw_rdmap_rd_sends(flow->stream);
	}
}

/*
 * A request of ours could not be sent, for a key or memory of this end: SQE, as UD, and what nobody began
 * flushes. Requests that were begun go on.
 */
static __attribute__((cold, noinline)) void fail(struct siw_rd_qp *rd, struct siw_wqe *wqe)
{
	if (wqe->state == SIW_WQE_POSTED)
		rd->wq.begun++;
	wqe->state = SIW_WQE_DONE;
	wqe->status = SIW_WC_LOC_PROT_ERR;
	siw_qp_send_failed(&rd->wq);
	for (struct siw_link *l = rd->busy.next; l != &rd->busy; l = l->next) {
		struct siw_qp_rd_flow *flow = siw_container(l, struct siw_qp_rd_flow, busy);

		for (uint32_t n = flow->n, slot = flow->first; n; n--) {
			struct siw_wqe *w = siw_qp_wqe(&rd->wq, slot);

			if (w->state == SIW_WQE_POSTED) {
				w->state = SIW_WQE_DONE;
				w->status = SIW_WC_WR_FLUSH_ERR;
				rd->wq.begun++;
			}
			slot = w->chain;
		}
		flow->next = NONE;
		siw_qp_rd_ready(rd, flow);
	}
}

/* Begins the next request to a peer: 0, or -EAGAIN: nothing more now. */
static int begin_next(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow)
{
	uint32_t slot = flow->next;
	struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);
	uint64_t accepted;
	int err;

	if ((wqe->flags & SIW_SEND_FENCE) && flow->reads_out)
		return -EAGAIN;
	if (siw_qp_awaits_response(wqe) && flow->reads_out >= siw_rdmap_rd_ord(flow->stream))
		return -EAGAIN;
	err = begin(flow, wqe, slot);
	if (err == -EAGAIN && siw_rdmap_flush(flow->stream, &accepted) == 1)
		err = begin(flow, wqe, slot);
	/* The peer is lost: whoever receives hears of it, and sees to its requests. */
	if (err == -EAGAIN || err == -EPIPE)
		return -EAGAIN;
	flow->next = slot == flow->last ? NONE : wqe->chain;
	if (err) {
		fail(rd, wqe);
		flow->torn = siw_rdmap_rd_is_torn(flow->stream);
		return -EAGAIN;
	}
	begun(rd, flow, wqe);
	return 0;
}

void siw_qp_rd_reap(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, uint64_t accepted)
{
	while (flow->n) {
		const struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, flow->first);

		if (wqe->state == SIW_WQE_POSTED)
			return;
		if (wqe->state == SIW_WQE_BEGUN &&
		    (siw_qp_awaits_response(wqe) || wqe->stamp.end > accepted))
			return;
		finish(rd, flow, outcome(wqe, SIW_WC_SUCCESS));
	}
}

static bool may_begin(const struct siw_rd_qp *rd, const struct siw_qp_rd_flow *flow)
{
	return rd->wq.qp.state == SIW_QPS_RTS && flow->next != NONE;
}

/*
 * A message broke off in its middle, since its memory is not there any more: the peer cannot have the
 * rest, and so must not have what comes behind it. The stream ends in the next pass: siw_qp_rd_broken.
 */
static __attribute__((cold, noinline)) void torn(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow)
{
	struct siw_wqe *newest = NULL;

	for (uint32_t n = flow->n, slot = flow->first; n; n--) {
		struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);

		if (wqe->state == SIW_WQE_BEGUN)
			newest = wqe;
		slot = wqe->chain;
	}
	if (newest && !flow->torn)
		fail(rd, newest);
	flow->torn = true;
	siw_tear(&rd->wq, SIW_BROKEN);
}

/* Sends to one peer what there is to send: whether there is more for the next turn. */
static bool run_flow(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow)
{
	uint64_t accepted;
	int r;

	while (may_begin(rd, flow))
		if (begin_next(rd, flow))
			break;
	r = siw_rdmap_flush(flow->stream, &accepted);
	/* The socket may have taken everything since a request found no room. */
	if (r == 1 && may_begin(rd, flow) && !begin_next(rd, flow))
		r = 0;
	siw_qp_rd_reap(rd, flow, accepted);
	if (__builtin_expect(r == -EACCES, 0)) {
		torn(rd, flow);
		return true;
	}
	return r == 0 && !siw_ddp_tx_blocked(flow->ddp);
}

enum siw_run siw_qp_rd_run(struct siw_wq *wq)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);
	struct siw_link turn;
	bool more = false;

	if (siw_link_alone(&rd->ready))
		return SIW_RUN_DONE;
	siw_link_init(&turn);
	while (!siw_link_alone(&rd->ready)) {
		struct siw_link *l = rd->ready.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_alone(&turn)) {
		struct siw_qp_rd_flow *flow =
			siw_container(turn.next, struct siw_qp_rd_flow, ready);

		siw_link_del(&flow->ready);
		if (run_flow(rd, flow)) {
			siw_qp_rd_ready(rd, flow);
			more = true;
		}
	}
	if (__builtin_expect(rd->wq.draining, 0))
		siw_qp_drained(&rd->wq);
	return more || !siw_link_alone(&rd->ready) ? SIW_RUN_MORE : SIW_RUN_DONE;
}

void siw_qp_rd_resume(struct siw_wq *wq)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);

	for (struct siw_link *l = rd->busy.next; l != &rd->busy; l = l->next)
		siw_qp_rd_ready(rd, siw_container(l, struct siw_qp_rd_flow, busy));
}

void siw_qp_rd_abandon(struct siw_wq *wq, bool report)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);

	while (!siw_link_alone(&rd->busy)) {
		struct siw_qp_rd_flow *flow =
			siw_container(rd->busy.next, struct siw_qp_rd_flow, busy);

		if (report) {
			siw_qp_rd_finish_all(rd, flow, SIW_WC_WR_FLUSH_ERR);
			continue;
		}
		siw_link_del(&flow->busy);
		siw_link_del(&flow->ready);
		flow->n = flow->reads_out = 0;
		flow->next = NONE;
	}
	while (!siw_link_alone(&rd->ready))
		siw_link_del(rd->ready.next);
	rd->wq.begun = 0;
	if (!report)
		siw_qp_rd_slots(rd);
	if (rd->end)
		siw_rdmap_rd_abandon(rd->end);
}

bool siw_qp_rd_uses_key(struct siw_wq *wq, uint32_t lkey)
{
	struct siw_rd_qp *rd = siw_rd_of(wq);

	for (struct siw_link *l = rd->busy.next; l != &rd->busy; l = l->next) {
		struct siw_qp_rd_flow *flow = siw_container(l, struct siw_qp_rd_flow, busy);

		/* What was framed was copied, whether or not the peer has it yet. */
		for (uint32_t n = flow->n, slot = flow->first; n; n--) {
			const struct siw_wqe *wqe = siw_qp_wqe(&rd->wq, slot);

			if (siw_qp_wqe_uses_key(wqe, lkey, UINT64_MAX - 1))
				return true;
			slot = wqe->chain;
		}
	}
	return false;
}
