/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UD queue pairs: one message, one datagram. A lone send goes from the caller's request to the
 * socket. What comes in lists, or one by one with no poll between, is copied into the ring, so that
 * those of one size to one peer go down together: a system call for up to 32.
 */
#include <errno.h>
#include <limits.h>

#include "base/addr.h"
#include "base/clock.h"
#include "rdmap/rdmap_record.h"
#include "verbs/verbs_impl.h"

_Static_assert(SIW_MAX_SHARERS == SIW_RDMAP_MAX_SHARERS, "the same limit, told to users");

#define OWN_QKEY    0x80000000u
#define KNOWN_FLAGS (SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED | SIW_SEND_INLINE)
/* Datagrams that a QP which shares its socket sends before another one's turn. */
#define SHARED_TURN 32

static int serve(struct siw_pollee *self);

static int open_endpoint(struct siw_qp *qp, const struct siw_rdmap_dgram_attr *attr)
{
	struct siw_rdmap_dgram *dgram;
	struct siw_addr bound;
	int err = siw_rdmap_dgram_open(qp->ctx->port, attr, &dgram);

	if (err)
		return err;
	err = siw_rdmap_dgram_addr(dgram, &bound);
	if (!err)
		err = siw_rdmap_record_open(dgram, qp->max_records);
	if (err) {
		siw_rdmap_dgram_close(dgram);
		return err;
	}
	if (qp->dgram)
		siw_rdmap_dgram_close(qp->dgram);
	qp->dgram = dgram;
	qp->pollee.serve = serve;
	/* The UDP port, and the index among those that share it. */
	atomic_store(&qp->qpn, siw_addr_port(&bound) | (uint32_t)siw_rdmap_dgram_index(dgram)
							       << SIW_QPN_INDEX_BIT);
	return 0;
}

int siw_verbs_ud_open(struct siw_qp *qp, const struct siw_addr *addr, int fd)
{
	struct siw_rdmap_dgram_attr attr = { .fd = fd, .no_crc = qp->no_crc, .token = &qp->pollee };

	if (addr)
		attr.local = *addr;
	/* The others of its socket count on it. */
	if (qp->dgram && (siw_rdmap_dgram_shared(qp->dgram) || qp->n_groups))
		return -EINVAL;
	qp->sends_to_groups = false; /* in RESET: nobody sends */
	return open_endpoint(qp, &attr);
}

int siw_verbs_ud_share(struct siw_qp *qp, const struct siw_qp *with)
{
	struct siw_rdmap_dgram_attr attr = { .fd = -1, .share = with->dgram, .token = &qp->pollee };
	struct siw_context *ctx = qp->ctx;
	int tries, err;

	/* It may have been destroyed meanwhile. */
	if (with->type != SIW_QPT_UD || !with->dgram || with->no_crc != qp->no_crc)
		return -EINVAL;
	/* Each try gets another index. */
	for (tries = 0; tries < SIW_MAX_SHARERS; tries++) {
		err = open_endpoint(qp, &attr);
		if (err)
			return err;
		if (qp->qpn < SIW_FIRST_RC_QPN)
			return 0;
		if (!atomic_load(&ctx->n_rc) || !siw_verbs_qpn_taken(ctx, qp->qpn)) {
			ctx->n_high++;
			return 0;
		}
		siw_rdmap_dgram_close(qp->dgram);
		qp->dgram = NULL;
	}
	return -ENOSPC;
}

void siw_verbs_ud_receive(struct siw_qp *qp)
{
	bool on = qp->state >= SIW_QPS_RTR && qp->state <= SIW_QPS_SQE;

	/* Sending reads these too. */
	siw_lock(&qp->send_lock);
	siw_rdmap_dgram_start(qp->dgram, on ? qp->recvs : NULL, qp->pd->number, qp->qkey);
	siw_unlock(&qp->send_lock);
}

int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max)
{
	int n = -EINVAL;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	if (max > 0 && !out)
		return -EINVAL;
	siw_lock(&qp->ctx->progress);
	if (qp->dgram)
		n = siw_rdmap_dgram_drops(qp->dgram, out, max);
	siw_unlock(&qp->ctx->progress);
	return n;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void address(const struct siw_ah *ah, uint32_t remote_qpn, struct siw_addr *dest)
{
	*dest = ah->dest;
	if ((uint16_t)remote_qpn && !ah->group)
		dest->port_be = htons((uint16_t)remote_qpn);
}

static void destination(const struct siw_send_wr *wr, struct siw_addr *dest)
{
	address(wr->wr.ud.ah, wr->wr.ud.remote_qpn, dest);
}

/* What a send that failed here and now completes with. */
static enum siw_wc_status status_of(int err)
{
	return err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR
	       : err == -EMSGSIZE		? SIW_WC_LOC_LEN_ERR
						: SIW_WC_GENERAL_ERR;
}

/* Where its address handle is: behind the union where a Write-Record has its key. */
static bool is_record(const struct siw_send_wr *wr)
{
	return __builtin_expect(wr->opcode == SIW_WR_RDMA_WRITE_RECORD, 0);
}

/* The oldest request is over: its completion, and its place in the ring. */
static void complete(struct siw_qp *qp, uint64_t wr_id, uint32_t flags, uint64_t length, int status)
{
	if (status || qp->sig_all || (flags & SIW_SEND_SIGNALED)) {
		struct siw_wc wc = {
			.wr_id = wr_id,
			.status = status,
			.opcode = SIW_WC_SEND,
			.byte_len = (uint32_t)length,
			.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		};

		siw_verbs_complete(qp, qp->send_cq, &wc, NULL, false);
	}
	qp->sq_head++;
}

static void flush_sends(struct siw_qp *qp)
{
	while (qp->sq_head != qp->sq_tail) {
		const struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

		complete(qp, wqe->wr_id, wqe->flags, wqe->length, SIW_WC_WR_FLUSH_ERR);
	}
}

/*
 * The oldest request failed. A key or a length of ours that is wrong stops the queue, as verbs has it
 * (SQE). What the network refused is to a datagram what loss is: other peers go on being served.
 */
static __attribute__((cold, noinline)) void fail(struct siw_qp *qp, uint64_t wr_id, int err)
{
	enum siw_wc_status status = status_of(err);
	bool ours = status != SIW_WC_GENERAL_ERR;

	if (ours) /* before the completion, so that who polls it sees the state */
		siw_verbs_qp_send_failed(qp);
	complete(qp, wr_id, 0, 0, status);
	if (ours)
		flush_sends(qp);
}

static int64_t check(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->wr.ud.ah;
	uint64_t length = 0, over;

	if ((wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_SEND_WITH_IMM) ||
	    (wr->send_flags & ~KNOWN_FLAGS))
		return -EINVAL;
	if (!ah || ah->pd != qp->pd)
		return -EINVAL;
	if (!(uint16_t)wr->wr.ud.remote_qpn && !ah->dest.port_be)
		return -EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if ((wr->send_flags & SIW_SEND_INLINE) && length > qp->cap.max_inline_data)
		return -EINVAL;
	/* One that is too long completes with LOC_LEN_ERR; how much too long is no matter. */
	over = siw_rdmap_dgram_max(qp->dgram) + 1;
	return (int64_t)(length < over ? length : over);
}

/* Of the destination among the QPs of its socket. */
static uint8_t index_of(const struct siw_send_wr *wr)
{
	return wr->wr.ud.ah->group ? 0 : (uint8_t)(wr->wr.ud.remote_qpn >> SIW_QPN_INDEX_BIT);
}

static uint32_t qkey_of(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	return wr->wr.ud.remote_qkey & OWN_QKEY ? qp->qkey : wr->wr.ud.remote_qkey;
}

/* Into the ring; siw_verbs_ud_run sends it. */
static __attribute__((cold, noinline)) int post_record(struct siw_qp *qp,
						       const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	struct siw_wqe *wqe;
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if ((wr->send_flags & ~KNOWN_FLAGS) || !ah || ah->pd != qp->pd || ah->group ||
	    length > SIW_MAX_RC_MSG || (!(uint16_t)wr->rd.remote_qpn && !ah->dest.port_be))
		return -EINVAL;
	if ((wr->send_flags & SIW_SEND_INLINE) && length > qp->cap.max_inline_data)
		return -EINVAL;
	wqe = siw_verbs_wqe_put(qp, wr, length);
	if (!wqe)
		return -ENOMEM;
	address(ah, wr->rd.remote_qpn, &wqe->dest);
	wqe->ah = ah;
	atomic_store_explicit(&wr->rd.ah->queued, true, memory_order_relaxed);
	wqe->rkey = wr->rd.remote_qkey & OWN_QKEY ? qp->qkey : wr->rd.remote_qkey;
	wqe->remote = (uint8_t)(wr->rd.remote_qpn >> SIW_QPN_INDEX_BIT);
	wqe->record.addr = wr->wr.rdma.remote_addr;
	wqe->record.rkey = wr->wr.rdma.rkey;
	wqe->seq = 0;
	if (qp->state == SIW_QPS_SQE)
		flush_sends(qp);
	else if (qp->state == SIW_QPS_ERR)
		siw_verbs_flush_late_send(qp);
	return 0;
}

static int queue(struct siw_qp *qp, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_wqe *wqe = siw_verbs_wqe_put(qp, wr, length);

	if (!wqe)
		return -ENOMEM;
	destination(wr, &wqe->dest);
	wqe->ah = wr->wr.ud.ah;
	atomic_store_explicit(&wr->wr.ud.ah->queued, true, memory_order_relaxed);
	wqe->rkey = qkey_of(qp, wr);
	wqe->remote = index_of(wr);
	wqe->send_imm = wr->imm_data;
	return 0;
}

/* In a state that sends nothing: SQD queues, SQE and ERR flush. */
static __attribute__((cold, noinline)) int post_held(struct siw_qp *qp,
						     const struct siw_send_wr *wr, uint64_t length)
{
	int err = queue(qp, wr, length);

	if (!err && qp->state == SIW_QPS_SQE)
		flush_sends(qp);
	else if (!err && qp->state == SIW_QPS_ERR)
		siw_verbs_flush_late_send(qp);
	return err;
}

int siw_verbs_ud_post(struct siw_qp *qp, const struct siw_send_wr *wr, bool wait)
{
	struct siw_addr dest;
	int64_t length;
	int err;

	if (is_record(wr))
		return post_record(qp, wr);
	length = check(qp, wr);
	if (length < 0)
		return (int)length;
	if (__builtin_expect(wr->wr.ud.ah->group && !qp->sends_to_groups, 0)) {
		err = siw_verbs_mcast_sender(qp);
		if (err)
			return err;
	}
	if (__builtin_expect(qp->state != SIW_QPS_RTS, 0))
		return post_held(qp, wr, (uint64_t)length);
	if (wait || qp->sq_head != qp->sq_tail)
		return queue(qp, wr, (uint64_t)length);
	if (siw_verbs_sq_full(qp))
		return -ENOMEM;
	destination(wr, &dest);
	err = siw_rdmap_dgram_send(qp->dgram,
				   &(struct siw_rdmap_dgram_op){
					   .cookie = wr->wr_id,
					   .dest = &dest,
					   .dest_index = index_of(wr),
					   .qkey = qkey_of(qp, wr),
					   .solicited = wr->send_flags & SIW_SEND_SOLICITED,
					   .internal = wr->send_flags & SIW_SEND_INLINE,
					   .with_imm = wr->opcode == SIW_WR_SEND_WITH_IMM,
					   .imm = wr->imm_data,
					   .sgl = wr->sg_list,
					   .nsge = wr->num_sge,
					   .length = (uint64_t)length,
				   });
	if (err == -EAGAIN)
		return queue(qp, wr, (uint64_t)length);
	qp->sq_tail++; /* it needs no place in the ring, but a slot */
	if (err)
		fail(qp, wr->wr_id, err);
	else
		complete(qp, wr->wr_id, wr->send_flags, (uint64_t)length, SIW_WC_SUCCESS);
	return 0;
}

/* The oldest WQEs as operations: their count. */
static int gather(struct siw_qp *qp, struct siw_rdmap_dgram_op *ops, int max)
{
	uint32_t left = qp->sq_tail - qp->sq_head;
	int n = left < (uint32_t)max ? (int)left : max;

	for (int i = 0; i < n; i++) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head + (uint32_t)i);

		if (__builtin_expect(wqe->opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
			return i;
		ops[i] = (struct siw_rdmap_dgram_op){
			.cookie = wqe->wr_id,
			.dest = &wqe->dest,
			.dest_index = (uint8_t)wqe->remote,
			.qkey = wqe->rkey,
			.solicited = wqe->flags & SIW_SEND_SOLICITED,
			.internal = wqe->flags & SIW_SEND_INLINE,
			.with_imm = wqe->opcode == SIW_WR_SEND_WITH_IMM,
			.imm = wqe->send_imm,
			.sgl = wqe->sge,
			.nsge = wqe->nsge,
			.length = wqe->length,
		};
	}
	return n;
}

/* A datagram is out or it is not; of a Write-Record some may be. */
bool siw_verbs_ud_half_out(struct siw_qp *qp)
{
	const struct siw_wqe *wqe;

	if (qp->sq_head == qp->sq_tail)
		return false;
	wqe = siw_verbs_wqe(qp, qp->sq_head);
	return wqe->opcode == SIW_WR_RDMA_WRITE_RECORD && wqe->seq;
}

/* The oldest request is a Write-Record: 0 it is over; -EAGAIN; 1 a turn is over. */
static __attribute__((cold, noinline)) int run_record(struct siw_qp *qp)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);
	int r = siw_verbs_record_send(qp, wqe);

	if (r == -EAGAIN)
		return r;
	if (!r)
		return 1;
	if (r < 0)
		fail(qp, wqe->wr_id, r);
	else
		siw_verbs_wqe_finish(qp, wqe, SIW_WC_SUCCESS, 0);
	siw_verbs_qp_drained(qp);
	return 0;
}

/* In SQD what is begun goes on; what else waits there goes out after it. In ERR and RESET, others clear the ring. */
static inline bool may_run(struct siw_qp *qp)
{
	return __builtin_expect(qp->state == SIW_QPS_RTS, 1) ||
	       (qp->state == SIW_QPS_SQD && siw_verbs_ud_half_out(qp));
}

/* Sends what is queued, max datagrams or a few more. */
static enum siw_run run(struct siw_qp *qp, int max)
{
	struct siw_rdmap_dgram_op ops[SIW_RDMAP_MAX_SOME];
	int sent = 0;

	while (qp->sq_head != qp->sq_tail && may_run(qp)) {
		int n = gather(qp, ops, SIW_RDMAP_MAX_SOME);
		int taken;

		if (__builtin_expect(!n, 0)) {
			n = run_record(qp);
			if (n)
				return n == -EAGAIN ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
			continue;
		}
		taken = siw_rdmap_dgram_send_some(qp->dgram, ops, n);

		if (taken == -EAGAIN)
			return SIW_RUN_BLOCKED;
		sent += taken;
		if (taken < 0)
			fail(qp, siw_verbs_wqe(qp, qp->sq_head)->wr_id, taken);
		for (; taken > 0; taken--) {
			const struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

			complete(qp, wqe->wr_id, wqe->flags, wqe->length, SIW_WC_SUCCESS);
		}
		if (sent >= max)
			return SIW_RUN_MORE;
	}
	return SIW_RUN_DONE;
}

enum siw_run siw_verbs_ud_run(struct siw_qp *qp)
{
	return run(qp, INT_MAX);
}

enum siw_run siw_verbs_ud_turn(struct siw_qp *qp, uint64_t turn)
{
	enum siw_run left;

	if (!qp->dgram || !siw_rdmap_dgram_shared(qp->dgram))
		return run(qp, INT_MAX);
	if (siw_rdmap_dgram_full(qp->dgram) == turn)
		return SIW_RUN_BLOCKED;
	left = run(qp, SHARED_TURN);
	if (left == SIW_RUN_BLOCKED)
		siw_rdmap_dgram_set_full(qp->dgram, turn);
	return left;
}

bool siw_verbs_ud_may_wait(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;
	uint32_t polls = atomic_load_explicit(&ctx->polls, memory_order_relaxed);

	if (qp->polls_at_post != polls) {
		qp->polls_at_post = polls;
		return false;
	}
	return ctx->has_thread && !siw_rdmap_port_armed(ctx->port) &&
	       !atomic_load_explicit(&ctx->waiters, memory_order_relaxed) &&
	       qp->sq_tail - qp->sq_head - qp->rd_begun < SIW_RDMAP_MAX_SOME - 1;
}

void siw_verbs_ud_finish(struct siw_qp *qp)
{
	siw_lock(&qp->send_lock);
	siw_verbs_run(qp);
	siw_unlock(&qp->send_lock);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void siw_verbs_ud_received(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	struct siw_wc wc = {
		.wr_id = ev->cookie,
		.opcode = SIW_WC_RECV,
		.byte_len = ev->length,
		.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		.src_qp = ev->src_qpn,
	};

	if (__builtin_expect(ev->kind == SIW_RDMAP_BAD_RECV, 0)) {
		wc.status = ev->status == -EMSGSIZE ? SIW_WC_LOC_LEN_ERR : SIW_WC_LOC_PROT_ERR;
	} else if (__builtin_expect(ev->with_imm, 0)) {
		wc.wc_flags = SIW_WC_WITH_IMM;
		wc.imm_data = ev->imm;
	}
	siw_verbs_complete(qp, qp->recv_cq, &wc, &ev->source, ev->solicited);
	siw_verbs_heard(qp);
}

/* What came is not, or not only, a receive. */
static __attribute__((cold, noinline)) void trouble(struct siw_qp *qp,
						    const struct siw_rdmap_event *ev)
{
	if (ev->kind == SIW_RDMAP_RECORD) {
		siw_verbs_record_look(qp, siw_now_ns());
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_ACCESS) {
		siw_verbs_err_access(qp, ev);
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_RECV)
		siw_verbs_ud_received(qp, ev);
	if (ev->kind == SIW_RDMAP_PEER_ERR)
		siw_verbs_err_told(qp, ev);
	else if (ev->status != -EACCES) /* a key of this end's own is no fault of the peer's */
		siw_verbs_err_found(qp, ev);
}

static int serve(struct siw_pollee *self)
{
	struct siw_qp *qp = siw_container(self, struct siw_qp, pollee);
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	int n = 0;

	while (n < qp->burst && octets < SIW_TURN_OCTETS &&
	       siw_rdmap_dgram_recv(qp->dgram, &ev) == 1) {
		/* Its own, or that of one which shares the socket. */
		struct siw_qp *to = siw_container(ev.token, struct siw_qp, pollee);

		if (__builtin_expect(ev.kind == SIW_RDMAP_RECV, 1))
			siw_verbs_ud_received(to, &ev);
		else
			trouble(to, &ev);
		if (to != qp && to->srq)
			siw_verbs_srq_taken(to->srq);
		octets += ev.length;
		n++;
	}
	siw_verbs_next_burst(qp, octets < SIW_TURN_OCTETS ? n : qp->burst);
	if (qp->srq)
		siw_verbs_srq_taken(qp->srq);
	return n;
}
