/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* RD queue pairs: what comes up from the peers, and what becomes of their requests and ours. */
#include <errno.h>

#include "base/addr.h"
#include "rdmap/rdmap_record.h"
#include "verbs/verbs_rd.h"

/*
 * What the peer had taken when it sent this is complete, and its completion comes first: who has the answer
 * has the request back.
 */
static void reap(struct siw_qp *qp, struct siw_rdmap_stream *stream)
{
	siw_lock(&qp->send_lock);
	siw_verbs_rd_reap(qp, siw_verbs_rd_flow(stream));
	siw_unlock(&qp->send_lock);
}

static void on_recv(struct siw_qp *qp, struct siw_rdmap_stream *stream,
		    const struct siw_rdmap_event *ev, int status)
{
	struct siw_wc wc = {
		.wr_id = ev->cookie,
		.status = status,
		.opcode = SIW_WC_RECV,
		.byte_len = ev->length,
		.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		.src_qp = ev->src_qpn,
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
	reap(qp, stream);
	siw_verbs_complete(qp, qp->recv_cq, &wc, &ev->source, ev->solicited);
	siw_verbs_heard(qp);
}

static void run_and_mark(struct siw_qp *qp, struct siw_rdmap_stream *stream)
{
	enum siw_run run;

	siw_lock(&qp->send_lock);
	siw_verbs_rd_ready(qp, siw_verbs_rd_flow(stream));
	run = siw_verbs_rd_run(qp);
	siw_unlock(&qp->send_lock);
	if (run != SIW_RUN_DONE)
		siw_verbs_mark_unsent(qp);
}

/* A Read is over. */
static void on_read_done(struct siw_qp *qp, struct siw_rdmap_stream *stream, uint64_t cookie,
			 int status)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, (uint32_t)cookie);

	siw_lock(&qp->send_lock);
	/* A peer that is over may have answered what did not get out to it any more. */
	if (wqe->state == SIW_WQE_BEGUN) {
		wqe->state = SIW_WQE_DONE;
		wqe->status = (uint8_t)status;
		siw_verbs_rd_flow(stream)->reads_out--;
	}
	siw_unlock(&qp->send_lock);
	run_and_mark(qp, stream);
}

/*
 * What asks has its answer with that. Anything else may be in the middle of being sent, from the user's
 * memory, and is over when the peer has thrown all of it away.
 */
static void blame(struct siw_rd_flow *flow, struct siw_wqe *wqe, uint8_t status)
{
	wqe->status = status;
	if (!siw_verbs_asks(wqe))
		return;
	flow->reads_out--;
	wqe->state = SIW_WQE_DONE;
}

/* The peer refused something: the request that it names says so; one that was complete, the error queue. */
static void on_error(struct siw_qp *qp, struct siw_rdmap_stream *stream,
		     const struct siw_rdmap_event *ev)
{
	struct siw_rd_flow *flow;
	bool found = false;

	siw_lock(&qp->send_lock);
	flow = siw_verbs_rd_flow(stream);
	/* Whatever it took is with the peer, and no matter of this. */
	siw_verbs_rd_reap(qp, flow);
	for (uint32_t n = ev->quoted ? flow->n : 0, slot = flow->first; n && !found; n--) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, slot);

		found = siw_verbs_is_quoted(wqe, ev);
		if (found)
			blame(flow, wqe, (uint8_t)siw_verbs_status_of(&ev->err));
		slot = wqe->chain;
	}
	siw_unlock(&qp->send_lock);
	if (!found)
		siw_verbs_err_reported(qp, ev);
	run_and_mark(qp, stream);
}

/* This end refused something of the peer's. */
static void on_refused(struct siw_qp *qp, struct siw_rdmap_stream *stream,
		       const struct siw_rdmap_event *ev)
{
	bool local = ev->err.layer == SIW_LAYER_DDP && ev->err.type == SIW_DDP_LOCAL_CATASTROPHIC;

	if (ev->of_response) {
		on_read_done(qp, stream, ev->cookie,
			     local ? SIW_WC_LOC_PROT_ERR : SIW_WC_BAD_RESP_ERR);
		return;
	}
	if (ev->blamed)
		on_recv(qp, stream, ev, local ? SIW_WC_LOC_PROT_ERR : SIW_WC_LOC_LEN_ERR);
	run_and_mark(qp, stream); /* the peer hears of it */
	if (!ev->blamed)
		siw_verbs_err_refused(qp, ev);
}

/* Nothing was begun of them: they are for the next life of the pair. */
static void move_requests(struct siw_qp *qp, struct siw_rdmap_stream *stream, bool reset)
{
	struct siw_rd_flow old = *siw_verbs_rd_flow(stream), *flow;
	struct siw_addr peer = *siw_rdmap_rd_peer_addr(stream);

	siw_link_del(&siw_verbs_rd_flow(stream)->busy);
	siw_link_del(&siw_verbs_rd_flow(stream)->ready);
	siw_rdmap_rd_end(stream, reset);
	/* The record of the peer is there; without memory they are lost with its life. */
	if (siw_rdmap_rd_stream(qp->rd, &peer, &stream)) {
		siw_verbs_rd_flush_slots(qp, &old, &peer);
		return;
	}
	flow = siw_verbs_rd_flow(stream);
	flow->n = old.n;
	flow->first = old.first;
	flow->next = old.first;
	flow->last = old.last;
	siw_link_add(&qp->rd_busy, &flow->busy);
	siw_verbs_rd_ready(qp, flow);
}

/*
 * A stream ends; first: how the first request ends that was begun and of which nobody knows whether the peer
 * has it. Send lock.
 */
static void end_stream(struct siw_qp *qp, struct siw_rdmap_stream *stream, int first, bool reset)
{
	struct siw_rd_flow *flow = siw_verbs_rd_flow(stream);

	siw_verbs_rd_reap(qp, flow);
	if (flow->n && siw_verbs_wqe(qp, flow->first)->state == SIW_WQE_POSTED) {
		move_requests(qp, stream, reset);
	} else {
		siw_verbs_rd_finish_all(qp, flow, first);
		siw_rdmap_rd_end(stream, reset);
	}
	if (__builtin_expect(qp->draining, 0))
		siw_verbs_qp_drained(qp);
}

/* The peer is gone, or lives anew. */
static __attribute__((cold, noinline)) void on_lost(struct siw_qp *qp,
						    struct siw_rdmap_stream *stream, int status)
{
	siw_lock(&qp->send_lock);
	end_stream(qp, stream, status == -ETIMEDOUT ? SIW_WC_RETRY_EXC_ERR : SIW_WC_WR_FLUSH_ERR,
		   false);
	siw_unlock(&qp->send_lock);
	siw_verbs_mark_unsent(qp);
}

void siw_verbs_rd_broken(struct siw_qp *qp)
{
	struct siw_rdmap_stream *stream;

	siw_lock(&qp->send_lock);
	qp->broken = false;
	while ((stream = siw_rdmap_rd_torn(qp->rd)))
		end_stream(qp, stream, SIW_WC_WR_FLUSH_ERR, true);
	siw_unlock(&qp->send_lock);
	siw_verbs_mark_unsent(qp);
}

/* How many completions of Write-Records were polled: as many more may be told. */
static void count_polled(struct siw_qp *qp)
{
	qp->records_seen = atomic_load(&qp->records_polled);
	siw_rdmap_rd_record_polled(qp->rd, qp->records_seen);
}

/* A Write-Record waits for one who polls; he may have done so just now. */
static __attribute__((cold, noinline)) void on_held_record(struct siw_qp *qp)
{
	siw_verbs_rnr_parked(qp, true);
	atomic_store(&qp->records_wait, true);
	if (qp->records_seen == atomic_load(&qp->records_polled))
		return;
	count_polled(qp);
	siw_rdmap_rd_resume(qp->rd);
}

/* A message waits for a receive; one may have been posted just now. */
static void on_held(struct siw_qp *qp)
{
	siw_verbs_rnr_parked(qp, true);
	if (siw_rdmap_queue_used(qp->recvs) && qp->state >= SIW_QPS_RTR)
		siw_rdmap_rd_resume(qp->rd);
}

void siw_verbs_rd_look(struct siw_qp *qp)
{
	atomic_store(&qp->records_wait, false);
	siw_verbs_rnr_parked(qp, false);
	siw_rdmap_rd_resume(qp->rd);
	siw_verbs_rd_serve(&qp->pollee);
}

static void handle(struct siw_qp *qp, struct siw_rdmap_stream *stream,
		   const struct siw_rdmap_event *ev)
{
	switch (ev->kind) {
	case SIW_RDMAP_RECV:
		on_recv(qp, stream, ev, SIW_WC_SUCCESS);
		break;
	case SIW_RDMAP_BAD_RECV:
		on_recv(qp, stream, ev, SIW_WC_LOC_PROT_ERR);
		run_and_mark(qp, stream); /* the peer hears of it */
		siw_verbs_err_refused(qp, ev);
		break;
	case SIW_RDMAP_RECORD:
		reap(qp, stream);
		siw_verbs_record_came(qp, ev->cookie);
		break;
	case SIW_RDMAP_READ_DONE:
		on_read_done(qp, stream, ev->cookie, SIW_WC_SUCCESS);
		break;
	case SIW_RDMAP_REQUESTED:
	case SIW_RDMAP_ACKED:
		run_and_mark(qp, stream);
		break;
	case SIW_RDMAP_TERMINATED:
		on_error(qp, stream, ev);
		break;
	case SIW_RDMAP_REFUSED:
		on_refused(qp, stream, ev);
		break;
	case SIW_RDMAP_HELD:
		if (ev->status == -EBUSY)
			on_held_record(qp);
		else
			on_held(qp);
		break;
	case SIW_RDMAP_LOST:
		on_lost(qp, stream, ev->status);
		break;
	default:
		break;
	}
}

int siw_verbs_rd_serve(struct siw_pollee *self)
{
	struct siw_qp *qp = siw_container(self, struct siw_qp, pollee);
	struct siw_rdmap_stream *stream;
	struct siw_rdmap_event ev = { 0 };
	uint32_t octets = 0;
	int n = 0;

	if (__builtin_expect(qp->max_records, 0))
		count_polled(qp);
	while (n < qp->burst && octets < SIW_TURN_OCTETS &&
	       siw_rdmap_rd_recv(qp->rd, &stream, &ev) == 1) {
		n++;
		octets += ev.placed;
		handle(qp, stream, &ev);
	}
	if (n == qp->burst || octets >= SIW_TURN_OCTETS)
		siw_rdmap_rd_again(qp->rd);
	siw_verbs_next_burst(qp, octets < SIW_TURN_OCTETS ? n : qp->burst);
	if (qp->srq)
		siw_verbs_srq_taken(qp->srq);
	if (siw_rdmap_rd_streams(qp->rd) && siw_link_alone(&qp->timed.link))
		siw_verbs_timed_add(qp->ctx, &qp->timed, 0);
	return n;
}
