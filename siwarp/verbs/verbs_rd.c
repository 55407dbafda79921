/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RD queue pairs: requests to any number of peers through one ring. Each peer has its own order: what
 * is to one that is slow, or gone, holds up nobody else's, so requests leave the ring in any order and
 * its slots are a free list. A completion says that the peer has it.
 */
#include <errno.h>

#include "base/addr.h"
#include "rdmap/rdmap_record.h"
#include "verbs/verbs_rd.h"

#define NONE UINT32_MAX
/* Reads and atomics that one peer may have outstanding, either way, when nobody says otherwise. */
#define DEPTH 16

struct siw_rd_flow *siw_verbs_rd_flow(struct siw_rdmap_stream *stream)
{
	struct siw_rd_flow *flow = siw_rdmap_rd_user(stream);

	if (!flow->stream) {
		flow->stream = stream;
		flow->next = NONE;
		siw_link_init(&flow->busy);
		siw_link_init(&flow->ready);
	}
	return flow;
}

void siw_verbs_rd_ready(struct siw_qp *qp, struct siw_rd_flow *flow)
{
	if (siw_link_alone(&flow->ready))
		siw_link_add(&qp->rd_ready, &flow->ready);
}

/* ---- the endpoint ---------------------------------------------------------------------------- */

static void tick(struct siw_timed *timed, uint64_t now_ns);

static uint16_t depth(int asked)
{
	return asked < 0 ? DEPTH : (uint16_t)asked;
}

int siw_verbs_rd_open(struct siw_qp *qp, const struct siw_addr *addr, int fd)
{
	struct siw_rdmap_rd_attr attr = {
		.fd = fd,
		.no_crc = qp->no_crc,
		.ird = depth(qp->ird),
		.qkey = qp->qkey,
		.max_peers = qp->max_peers,
		.peer_timeout_ns = (uint64_t)qp->peer_timeout_ms * 1000000,
		.user_octets = sizeof(struct siw_rd_flow),
		.token = &qp->pollee,
	};
	struct siw_rdmap_rd *rd;
	struct siw_addr bound;
	int err;

	if (addr)
		attr.local = *addr;
	err = siw_rdmap_rd_open(qp->ctx->port, &attr, &rd);
	if (err)
		return err;
	err = siw_rdmap_rd_record_open(rd, qp->max_records);
	if (err) {
		siw_rdmap_rd_close(rd);
		return err;
	}
	atomic_store(&qp->records_polled, 0);
	siw_rdmap_rd_addr(rd, &bound);
	siw_verbs_rd_close(qp);
	qp->pollee.serve = siw_verbs_rd_serve;
	qp->timed.tick = tick;
	siw_lock(&qp->send_lock);
	qp->rd = rd;
	qp->private = true;
	/* As UD's: the UDP port. */
	atomic_store(&qp->qpn, siw_addr_port(&bound));
	siw_unlock(&qp->send_lock);
	siw_verbs_rd_receive(qp);
	return 0;
}

void siw_verbs_rd_receive(struct siw_qp *qp)
{
	struct siw_rdmap_start start = {
		.recvs = qp->recvs,
		.pd = qp->pd->number,
		.ird = depth(qp->ird),
		.ord = depth(qp->ord),
		.denied = ~(uint32_t)qp->access,
		.owner = siw_verbs_owner(qp),
	};
	enum siw_rdmap_rd_mode mode = SIW_RDMAP_RD_WAIT;

	if (qp->state >= SIW_QPS_RTR && qp->state <= SIW_QPS_SQE)
		mode = SIW_RDMAP_RD_ON;
	else if (qp->state == SIW_QPS_ERR)
		mode = SIW_RDMAP_RD_REJECT;
	if (!qp->rd)
		return;
	siw_lock(&qp->send_lock);
	qp->granted_ord = qp->reads_max = depth(qp->ord);
	qp->granted_ird = depth(qp->ird);
	siw_rdmap_rd_start(qp->rd, mode, &start, qp->qkey);
	siw_unlock(&qp->send_lock);
}

void siw_verbs_rd_close(struct siw_qp *qp)
{
	if (!qp->rd)
		return;
	siw_verbs_timed_del(qp->ctx, &qp->timed);
	if (qp->parked)
		siw_verbs_rnr_parked(qp, false);
	siw_lock(&qp->send_lock);
	siw_rdmap_rd_close(qp->rd);
	qp->rd = NULL;
	siw_unlock(&qp->send_lock);
}

void siw_verbs_rd_leave(struct siw_qp *qp)
{
	if (siw_verbs_qp_step(qp, SIW_QPE_FAILED) >= 0)
		siw_verbs_flush(qp);
	siw_verbs_rd_close(qp);
}

static bool has_requests(void *user)
{
	return ((struct siw_rd_flow *)user)->n;
}

/* Streams that nobody has used since the last time go. */
static void tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_qp *qp = siw_container(timed, struct siw_qp, timed);
	uint32_t left;

	(void)now_ns;
	siw_lock(&qp->send_lock);
	left = siw_rdmap_rd_sweep(qp->rd, has_requests);
	siw_unlock(&qp->send_lock);
	if (!left)
		siw_verbs_timed_del(qp->ctx, timed);
}

/* ---- the ring -------------------------------------------------------------------------------- */

void siw_verbs_rd_slots(struct siw_qp *qp)
{
	for (uint32_t i = 0; i <= qp->sq_mask; i++)
		siw_verbs_wqe(qp, i)->chain = i + 1;
	qp->rd_free = 0;
}

/* There is one: no more requests are in the ring than it has slots. */
static uint32_t take_slot(struct siw_qp *qp)
{
	uint32_t slot = qp->rd_free;

	qp->rd_free = siw_verbs_wqe(qp, slot)->chain;
	qp->sq_tail++;
	return slot;
}

static void append(struct siw_qp *qp, struct siw_rd_flow *flow, uint32_t slot)
{
	if (!flow->n++) {
		flow->first = slot;
		siw_link_add(&qp->rd_busy, &flow->busy);
	} else {
		siw_verbs_wqe(qp, flow->last)->chain = slot;
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
static void finish(struct siw_qp *qp, struct siw_rd_flow *flow, int status)
{
	uint32_t slot = flow->first;
	struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);

	if (wqe->state != SIW_WQE_POSTED)
		qp->rd_begun--;
	if (flow->next == slot)
		flow->next = flow->n > 1 ? wqe->chain : NONE;
	flow->first = wqe->chain;
	if (!--flow->n)
		siw_link_del(&flow->busy);
	siw_verbs_wqe_complete(qp, wqe, status, status ? qp->wire_err : 0,
			       status ? siw_rdmap_rd_peer_addr(flow->stream) : NULL);
	wqe->chain = qp->rd_free;
	qp->rd_free = slot;
}

void siw_verbs_rd_finish_all(struct siw_qp *qp, struct siw_rd_flow *flow, int first)
{
	while (flow->n) {
		const struct siw_wqe *wqe = siw_verbs_wqe(qp, flow->first);
		bool told = outcome(wqe, -1) != -1;

		finish(qp, flow, outcome(wqe, first));
		if (!told)
			first = SIW_WC_WR_FLUSH_ERR;
	}
	flow->reads_out = 0;
	siw_link_del(&flow->ready);
}

void siw_verbs_rd_flush_slots(struct siw_qp *qp, const struct siw_rd_flow *flow,
			      const struct siw_addr *peer)
{
	uint32_t slot = flow->first;

	for (uint32_t n = flow->n; n; n--) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);
		uint32_t next = wqe->chain;

		siw_verbs_wqe_complete(qp, wqe, SIW_WC_WR_FLUSH_ERR, qp->wire_err, peer);
		wqe->chain = qp->rd_free;
		qp->rd_free = slot;
		slot = next;
	}
}

/* ---- posting --------------------------------------------------------------------------------- */

static int64_t check(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;

	if (!ah || ah->pd != qp->pd || (!wr->rd.remote_qpn && !ah->dest.port_be))
		return -EINVAL;
	return siw_verbs_op_check(qp, wr);
}

static struct siw_addr destination(const struct siw_send_wr *wr)
{
	struct siw_addr dest = wr->rd.ah->dest;

	if (wr->rd.remote_qpn)
		dest.port_be = htons((uint16_t)wr->rd.remote_qpn);
	return dest;
}

/* The requests to this peer that are not complete; NULL: there are none. */
static struct siw_rd_flow *flow_to(struct siw_qp *qp, const struct siw_addr *dest)
{
	for (struct siw_link *l = qp->rd_busy.next; l != &qp->rd_busy; l = l->next) {
		struct siw_rd_flow *flow = siw_container(l, struct siw_rd_flow, busy);

		if (siw_addr_same(siw_rdmap_rd_peer_addr(flow->stream), dest))
			return flow;
	}
	return NULL;
}

/* It completes behind those to its peer that were begun. */
static void put_flushed(struct siw_qp *qp, struct siw_rd_flow *flow, const struct siw_send_wr *wr,
			uint64_t length)
{
	uint32_t slot = take_slot(qp);
	struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);

	siw_verbs_wqe_fill(qp, wqe, wr, length);
	wqe->state = SIW_WQE_DONE;
	wqe->status = SIW_WC_WR_FLUSH_ERR;
	qp->rd_begun++;
	append(qp, flow, slot);
	flow->next = NONE;
	siw_verbs_rd_ready(qp, flow);
}

/* Nothing is sent any more: the request is over as soon as it is posted. */
static __attribute__((cold, noinline)) int
post_flushed(struct siw_qp *qp, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_addr dest = destination(wr);
	struct siw_rd_flow *flow = qp->flushed ? NULL : flow_to(qp, &dest);
	struct siw_wqe wqe = { .wr_id = wr->wr_id, .opcode = (uint8_t)wr->opcode };

	if (flow) {
		put_flushed(qp, flow, wr, length);
		return 0;
	}
	qp->sq_tail++;
	siw_verbs_wqe_complete(qp, &wqe, SIW_WC_WR_FLUSH_ERR, qp->wire_err, &dest);
	return 0;
}

int siw_verbs_rd_post(struct siw_qp *qp, const struct siw_send_wr *wr)
{
	int64_t length = check(qp, wr);
	struct siw_rdmap_stream *stream;
	struct siw_rd_flow *flow;
	struct siw_addr dest;
	struct siw_wqe *wqe;
	uint32_t slot;

	if (length < 0)
		return (int)length;
	if (siw_verbs_sq_full(qp))
		return -ENOMEM;
	if (__builtin_expect(qp->state == SIW_QPS_SQE || qp->flushed, 0))
		return post_flushed(qp, wr, (uint64_t)length);
	dest = destination(wr);
	if (siw_rdmap_rd_stream(qp->rd, &dest, &stream))
		return -ENOMEM; /* of peers, too, there are as many as there may be */
	flow = siw_verbs_rd_flow(stream);
	slot = take_slot(qp);
	wqe = siw_verbs_wqe(qp, slot);
	siw_verbs_wqe_fill(qp, wqe, wr, (uint64_t)length);
	siw_verbs_op_put(wqe, wr);
	append(qp, flow, slot);
	siw_verbs_rd_ready(qp, flow);
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int begin(const struct siw_rd_flow *flow, struct siw_wqe *wqe, uint32_t slot)
{
	struct siw_rdmap_op op;

	if (__builtin_expect(wqe->opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
		siw_verbs_op_record(wqe, &op);
	else
		siw_verbs_op_make(wqe, slot, &op);
	return siw_rdmap_send(flow->stream, &op);
}

static void begun(struct siw_qp *qp, struct siw_rd_flow *flow, struct siw_wqe *wqe)
{
	wqe->state = SIW_WQE_BEGUN;
	wqe->status = SIW_WC_SUCCESS;
	wqe->seq = siw_rdmap_begun(flow->stream);
	qp->rd_begun++;
	if (siw_verbs_asks(wqe)) {
		flow->reads_out++;
		wqe->msn = siw_rdmap_reads(flow->stream);
	} else if (siw_verbs_op_flags(wqe->opcode) & SIW_OP_SENDS) {
		wqe->msn = siw_rdmap_rd_sends(flow->stream);
	}
}

/*
 * A request of ours could not be sent, for a key or memory of this end: SQE, as UD, and what nobody began
 * flushes. Requests that were begun go on.
 */
static __attribute__((cold, noinline)) void fail(struct siw_qp *qp, struct siw_wqe *wqe)
{
	if (wqe->state == SIW_WQE_POSTED)
		qp->rd_begun++;
	wqe->state = SIW_WQE_DONE;
	wqe->status = SIW_WC_LOC_PROT_ERR;
	siw_verbs_qp_send_failed(qp);
	for (struct siw_link *l = qp->rd_busy.next; l != &qp->rd_busy; l = l->next) {
		struct siw_rd_flow *flow = siw_container(l, struct siw_rd_flow, busy);

		for (uint32_t n = flow->n, slot = flow->first; n; n--) {
			struct siw_wqe *w = siw_verbs_wqe(qp, slot);

			if (w->state == SIW_WQE_POSTED) {
				w->state = SIW_WQE_DONE;
				w->status = SIW_WC_WR_FLUSH_ERR;
				qp->rd_begun++;
			}
			slot = w->chain;
		}
		flow->next = NONE;
		siw_verbs_rd_ready(qp, flow);
	}
}

/* Begins the next request to a peer: 0, or -EAGAIN: nothing more now. */
static int begin_next(struct siw_qp *qp, struct siw_rd_flow *flow)
{
	uint32_t slot = flow->next;
	struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);
	int err;

	if ((wqe->flags & SIW_SEND_FENCE) && flow->reads_out)
		return -EAGAIN;
	if (siw_verbs_asks(wqe) && flow->reads_out >= siw_rdmap_rd_ord(flow->stream))
		return -EAGAIN;
	err = begin(flow, wqe, slot);
	if (err == -EAGAIN && siw_rdmap_flush(flow->stream) == 1)
		err = begin(flow, wqe, slot);
	/* The peer is lost: whoever receives hears of it, and sees to its requests. */
	if (err == -EAGAIN || err == -EPIPE)
		return -EAGAIN;
	flow->next = slot == flow->last ? NONE : wqe->chain;
	if (err) {
		fail(qp, wqe);
		flow->torn = siw_rdmap_rd_is_torn(flow->stream);
		return -EAGAIN;
	}
	begun(qp, flow, wqe);
	return 0;
}

void siw_verbs_rd_reap(struct siw_qp *qp, struct siw_rd_flow *flow)
{
	uint64_t accepted = siw_rdmap_accepted(flow->stream);

	while (flow->n) {
		const struct siw_wqe *wqe = siw_verbs_wqe(qp, flow->first);

		if (wqe->state == SIW_WQE_POSTED)
			return;
		if (wqe->state == SIW_WQE_BEGUN && (siw_verbs_asks(wqe) || wqe->seq > accepted))
			return;
		finish(qp, flow, outcome(wqe, SIW_WC_SUCCESS));
	}
}

static bool may_begin(const struct siw_qp *qp, const struct siw_rd_flow *flow)
{
	return qp->state == SIW_QPS_RTS && flow->next != NONE;
}

/*
 * A message broke off in its middle, since its memory is not there any more: the peer cannot have the
 * rest, and so must not have what comes behind it. The stream ends in the next pass: siw_verbs_rd_broken.
 */
static __attribute__((cold, noinline)) void torn(struct siw_qp *qp, struct siw_rd_flow *flow)
{
	struct siw_wqe *newest = NULL;

	for (uint32_t n = flow->n, slot = flow->first; n; n--) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);

		if (wqe->state == SIW_WQE_BEGUN)
			newest = wqe;
		slot = wqe->chain;
	}
	if (newest && !flow->torn)
		fail(qp, newest);
	flow->torn = qp->broken = true;
}

/* Sends to one peer what there is to send: whether there is more for the next turn. */
static bool run_flow(struct siw_qp *qp, struct siw_rd_flow *flow)
{
	int r;

	while (may_begin(qp, flow))
		if (begin_next(qp, flow))
			break;
	r = siw_rdmap_flush(flow->stream);
	/* The socket may have taken everything since a request found no room. */
	if (r == 1 && may_begin(qp, flow) && !begin_next(qp, flow))
		r = 0;
	siw_verbs_rd_reap(qp, flow);
	if (__builtin_expect(r == -EACCES, 0)) {
		torn(qp, flow);
		return true;
	}
	return r == 0 && !siw_rdmap_blocked(flow->stream);
}

enum siw_run siw_verbs_rd_run(struct siw_qp *qp)
{
	struct siw_link turn;
	bool more = false;

	if (siw_link_alone(&qp->rd_ready))
		return SIW_RUN_DONE;
	siw_link_init(&turn);
	while (!siw_link_alone(&qp->rd_ready)) {
		struct siw_link *l = qp->rd_ready.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_alone(&turn)) {
		struct siw_rd_flow *flow = siw_container(turn.next, struct siw_rd_flow, ready);

		siw_link_del(&flow->ready);
		if (run_flow(qp, flow)) {
			siw_verbs_rd_ready(qp, flow);
			more = true;
		}
	}
	if (__builtin_expect(qp->draining, 0))
		siw_verbs_qp_drained(qp);
	return more || !siw_link_alone(&qp->rd_ready) ? SIW_RUN_MORE : SIW_RUN_DONE;
}

void siw_verbs_rd_resume(struct siw_qp *qp)
{
	for (struct siw_link *l = qp->rd_busy.next; l != &qp->rd_busy; l = l->next)
		siw_verbs_rd_ready(qp, siw_container(l, struct siw_rd_flow, busy));
}

void siw_verbs_rd_flush(struct siw_qp *qp, bool tell)
{
	while (!siw_link_alone(&qp->rd_busy)) {
		struct siw_rd_flow *flow =
			siw_container(qp->rd_busy.next, struct siw_rd_flow, busy);

		if (tell) {
			siw_verbs_rd_finish_all(qp, flow, SIW_WC_WR_FLUSH_ERR);
			continue;
		}
		siw_link_del(&flow->busy);
		siw_link_del(&flow->ready);
		flow->n = flow->reads_out = 0;
		flow->next = NONE;
	}
	while (!siw_link_alone(&qp->rd_ready))
		siw_link_del(qp->rd_ready.next);
	qp->rd_begun = 0;
	if (!tell)
		siw_verbs_rd_slots(qp);
	siw_rdmap_rd_abandon(qp->rd);
}

/* What was framed was copied, whether or not the peer has it yet. */
static bool needs_memory(const struct siw_rd_flow *flow, const struct siw_wqe *wqe)
{
	if (wqe->state == SIW_WQE_DONE || (wqe->flags & SIW_SEND_INLINE))
		return false;
	return wqe->state == SIW_WQE_POSTED || siw_verbs_asks(wqe) ||
	       wqe->seq > siw_rdmap_rd_framed(flow->stream);
}

bool siw_verbs_rd_uses_key(struct siw_qp *qp, uint32_t lkey)
{
	for (struct siw_link *l = qp->rd_busy.next; l != &qp->rd_busy; l = l->next) {
		struct siw_rd_flow *flow = siw_container(l, struct siw_rd_flow, busy);

		for (uint32_t n = flow->n, slot = flow->first; n; n--) {
			const struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);

			if (needs_memory(flow, wqe))
				for (int i = 0; i < wqe->nsge; i++)
					if (wqe->sge[i].lkey == lkey)
						return true;
			slot = wqe->chain;
		}
	}
	return false;
}
