/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UD queue pairs, sending: one message, one datagram. A lone send goes from the caller's request to the
 * socket. What comes in lists, or one by one with no poll between, is copied into the ring, so that
 * those of one size to one peer go down together: a system call for up to 32.
 */
#include <errno.h>
#include <limits.h>

#include "base/addr.h"
#include "qp/qp_impl.h"

#define OWN_QKEY    0x80000000u
#define KNOWN_FLAGS (SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED | SIW_SEND_INLINE)
/* Datagrams that a QP which shares its socket sends before another one's turn. */
#define SHARED_TURN 32

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
static void complete(struct siw_ud *ud, uint64_t wr_id, uint32_t flags, uint64_t length, int status)
{
	if (status || ud->wq.sig_all || (flags & SIW_SEND_SIGNALED)) {
		struct siw_wc wc = {
			.wr_id = wr_id,
			.status = status,
			.opcode = SIW_WC_SEND,
			.byte_len = (uint32_t)length,
			.qp_num = atomic_load_explicit(&ud->wq.qp.qpn, memory_order_relaxed),
		};

		siw_verbs_complete(&ud->wq.qp, ud->wq.qp.send_cq, &wc, NULL, ud->wq.sq_head + 1,
				   false);
	}
	ud->wq.sq_head++;
}

static void flush_sends(struct siw_ud *ud)
{
	while (ud->wq.sq_head != ud->wq.sq_tail) {
		const struct siw_wqe *wqe = siw_qp_wqe(&ud->wq, ud->wq.sq_head);

		complete(ud, wqe->wr_id, wqe->flags, wqe->length, SIW_WC_WR_FLUSH_ERR);
	}
}

/*
 * The oldest request failed. A key or a length of ours that is wrong stops the queue, as verbs has it
 * (SQE). What the network refused is to a datagram what loss is: other peers go on being served.
 */
static __attribute__((cold, noinline)) void fail(struct siw_ud *ud, uint64_t wr_id, int err)
{
	enum siw_wc_status status = status_of(err);
	bool ours = status != SIW_WC_GENERAL_ERR;

	if (ours) /* before the completion, so that who polls it sees the state */
		siw_qp_send_failed(&ud->wq);
	complete(ud, wr_id, 0, 0, status);
	if (ours)
		flush_sends(ud);
}

static int64_t check(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->wr.ud.ah;
	uint64_t length = 0, over;

	if (wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_SEND_WITH_IMM)
		return siw_qp_refuse_opcode(&ud->wq, wr->opcode);
	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse(SEND_FLAGS, wr->send_flags);
	if (!ah || ah->pd != ud->wq.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(UD_HANDLE);
	if (!(uint16_t)wr->wr.ud.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if ((wr->send_flags & SIW_SEND_INLINE) && length > ud->wq.cap.max_inline_data)
		return siw_refuse(INLINE_LENGTH, length, ud->wq.cap.max_inline_data);
	/* One that is too long completes with LOC_LEN_ERR; how much too long is no matter. */
	over = siw_rdmap_dgram_max(ud->dgram) + 1;
	return (int64_t)(length < over ? length : over);
}

/* Of the destination among the QPs of its socket. */
static uint8_t index_of(const struct siw_send_wr *wr)
{
	return wr->wr.ud.ah->group ? 0 : (uint8_t)(wr->wr.ud.remote_qpn >> SIW_QPN_INDEX_BIT);
}

static uint32_t qkey_of(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	return wr->wr.ud.remote_qkey & OWN_QKEY ? ud->wq.qkey : wr->wr.ud.remote_qkey;
}

static int64_t check_record(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	uint64_t length = 0;

	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse(SEND_FLAGS, wr->send_flags);
	if (!ah || ah->pd != ud->wq.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(RECORD_HANDLE);
	if (ah->group)
		return siw_refuse(HANDLE_GROUP);
	if (!(uint16_t)wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return siw_qp_check_length(&ud->wq, wr, length);
}

/* Into the ring; siw_qp_ud_run sends it. */
static __attribute__((cold, noinline)) int post_record(struct siw_ud *ud,
						       const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	int64_t length = check_record(ud, wr);
	struct siw_wqe *wqe;

	if (length < 0)
		return (int)length;
	wqe = siw_qp_wqe_put(&ud->wq, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_slot(&ud->wq);
	address(ah, wr->rd.remote_qpn, &wqe->dest);
	wqe->ah = ah;
	atomic_store_explicit(&wr->rd.ah->queued, true, memory_order_relaxed);
	wqe->rkey = wr->rd.remote_qkey & OWN_QKEY ? ud->wq.qkey : wr->rd.remote_qkey;
	wqe->remote = (uint8_t)(wr->rd.remote_qpn >> SIW_QPN_INDEX_BIT);
	wqe->record.addr = wr->wr.rdma.remote_addr;
	wqe->record.rkey = wr->wr.rdma.rkey;
	wqe->seq = 0;
	if (ud->wq.qp.state == SIW_QPS_SQE)
		flush_sends(ud);
	else if (ud->wq.qp.state == SIW_QPS_ERR)
		siw_qp_flush_late_send(&ud->wq);
	return 0;
}

static int queue(struct siw_ud *ud, const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_wqe *wqe = siw_qp_wqe_put(&ud->wq, wr, length);

	if (!wqe)
		return siw_qp_refuse_slot(&ud->wq);
	destination(wr, &wqe->dest);
	wqe->ah = wr->wr.ud.ah;
	atomic_store_explicit(&wr->wr.ud.ah->queued, true, memory_order_relaxed);
	wqe->rkey = qkey_of(ud, wr);
	wqe->remote = index_of(wr);
	wqe->send_imm = wr->imm_data;
	return 0;
}

/* In a state that sends nothing: SQD queues, SQE and ERR flush. */
static __attribute__((cold, noinline)) int post_held(struct siw_ud *ud,
						     const struct siw_send_wr *wr, uint64_t length)
{
	int err = queue(ud, wr, length);

	if (!err && ud->wq.qp.state == SIW_QPS_SQE)
		flush_sends(ud);
	else if (!err && ud->wq.qp.state == SIW_QPS_ERR)
		siw_qp_flush_late_send(&ud->wq);
	return err;
}

/* The first send to a group: its socket is made ready for that: 0 or -errno. */
static int prepare_for_groups(struct siw_ud *ud)
{
	int err = siw_llp_udp_group_sender(ud->sock, ud->wq.qp.ctx->info.netdev,
					   (int)siw_settings()->mcast_ttl);

	ud->sends_to_groups = !err;
	return err;
}

int siw_qp_ud_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	struct siw_ud *ud = siw_ud_of(wq);
	struct siw_addr dest;
	int64_t length;
	int err;

	if (is_record(wr))
		return post_record(ud, wr);
	length = check(ud, wr);
	if (length < 0)
		return (int)length;
	if (__builtin_expect(wr->wr.ud.ah->group && !ud->sends_to_groups, 0)) {
		err = prepare_for_groups(ud);
		if (err)
			return err;
	}
	if (__builtin_expect(ud->wq.qp.state != SIW_QPS_RTS, 0))
		return post_held(ud, wr, (uint64_t)length);
	if (wait || ud->wq.sq_head != ud->wq.sq_tail)
		return queue(ud, wr, (uint64_t)length);
	if (siw_qp_sq_full(&ud->wq))
		return siw_refuse_full(SEND_FULL, ud->wq.cap.max_send_wr);
	destination(wr, &dest);
	err = siw_rdmap_dgram_send(ud->dgram,
				   &(struct siw_rdmap_dgram_op){
					   .user_data = wr->wr_id,
					   .dest = &dest,
					   .dest_index = index_of(wr),
					   .qkey = qkey_of(ud, wr),
					   .solicited = wr->send_flags & SIW_SEND_SOLICITED,
					   .internal = wr->send_flags & SIW_SEND_INLINE,
					   .with_imm = wr->opcode == SIW_WR_SEND_WITH_IMM,
					   .imm = wr->imm_data,
					   .sgl = wr->sg_list,
					   .nsge = wr->num_sge,
					   .length = (uint64_t)length,
				   });
	if (err == -EAGAIN)
		return queue(ud, wr, (uint64_t)length);
	ud->wq.sq_tail++; /* it needs no place in the ring, but a slot */
	if (err)
		fail(ud, wr->wr_id, err);
	else
		complete(ud, wr->wr_id, wr->send_flags, (uint64_t)length, SIW_WC_SUCCESS);
	return 0;
}

/* The oldest WQEs as operations: their count. */
static int gather(struct siw_ud *ud, struct siw_rdmap_dgram_op *ops, int max)
{
	uint32_t left = ud->wq.sq_tail - ud->wq.sq_head;
	int n = left < (uint32_t)max ? (int)left : max;

	for (int i = 0; i < n; i++) {
		struct siw_wqe *wqe = siw_qp_wqe(&ud->wq, ud->wq.sq_head + (uint32_t)i);

		if (__builtin_expect(wqe->opcode == SIW_WR_RDMA_WRITE_RECORD, 0))
			return i;
		ops[i] = (struct siw_rdmap_dgram_op){
			.user_data = wqe->wr_id,
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
static bool half_out(struct siw_ud *ud)
{
	const struct siw_wqe *wqe;

	if (ud->wq.sq_head == ud->wq.sq_tail)
		return false;
	wqe = siw_qp_wqe(&ud->wq, ud->wq.sq_head);
	return wqe->opcode == SIW_WR_RDMA_WRITE_RECORD && wqe->seq;
}

/* The oldest request is a Write-Record: 0 it is over; -EAGAIN; 1 a turn is over. */
static __attribute__((cold, noinline)) int run_record(struct siw_ud *ud)
{
	struct siw_wqe *wqe = siw_qp_wqe(&ud->wq, ud->wq.sq_head);
	struct siw_rdmap_record_op op = siw_qp_record_op(wqe);
	int r = siw_rdmap_record_send(ud->dgram, &op, &wqe->seq);

	if (r == -EAGAIN)
		return r;
	if (!r)
		return 1;
	if (r < 0)
		fail(ud, wqe->wr_id, r);
	else
		siw_qp_wqe_finish(&ud->wq, wqe, SIW_WC_SUCCESS, 0);
	siw_qp_drained(&ud->wq);
	return 0;
}

/* In SQD what is begun goes on; what else waits there goes out after it. In ERR and RESET, others clear the ring. */
static inline bool may_run(struct siw_ud *ud)
{
	return __builtin_expect(ud->wq.qp.state == SIW_QPS_RTS, 1) ||
	       (ud->wq.qp.state == SIW_QPS_SQD && half_out(ud));
}

/* Sends what is queued, max datagrams or a few more. */
static enum siw_run run(struct siw_ud *ud, int max)
{
	struct siw_rdmap_dgram_op ops[SIW_RDMAP_MAX_SOME];
	int sent = 0;

	while (ud->wq.sq_head != ud->wq.sq_tail && may_run(ud)) {
		int n = gather(ud, ops, SIW_RDMAP_MAX_SOME);
		int taken;

		if (__builtin_expect(!n, 0)) {
			n = run_record(ud);
			if (n)
				return n == -EAGAIN ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
			continue;
		}
		taken = siw_rdmap_dgram_send_some(ud->dgram, ops, n);

		if (taken == -EAGAIN)
			return SIW_RUN_BLOCKED;
		sent += taken;
		if (taken < 0)
			fail(ud, siw_qp_wqe(&ud->wq, ud->wq.sq_head)->wr_id, taken);
		for (; taken > 0; taken--) {
			const struct siw_wqe *wqe = siw_qp_wqe(&ud->wq, ud->wq.sq_head);

			complete(ud, wqe->wr_id, wqe->flags, wqe->length, SIW_WC_SUCCESS);
		}
		if (sent >= max)
			return SIW_RUN_MORE;
	}
	return SIW_RUN_DONE;
}

enum siw_run siw_qp_ud_run(struct siw_wq *wq)
{
	return run(siw_ud_of(wq), INT_MAX);
}

/*
 * Where others share the socket: not all of it, and nothing behind one that found no room in this round; or room
 * would be whosever it is when it comes.
 */
static enum siw_run run_turn(struct siw_ud *ud, uint64_t round)
{
	enum siw_run left;

	if (!ud->dgram || !siw_rdmap_dgram_shared(ud->dgram))
		return run(ud, INT_MAX);
	if (siw_rdmap_dgram_full(ud->dgram) == round)
		return SIW_RUN_BLOCKED;
	left = run(ud, SHARED_TURN);
	if (left == SIW_RUN_BLOCKED)
		siw_rdmap_dgram_set_full(ud->dgram, round);
	return left;
}

enum siw_turn siw_qp_ud_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_wq *wq = siw_wq_of(qp);
	enum siw_run left;
	uint32_t head;

	siw_lock(&qp->send_lock);
	head = wq->sq_head;
	left = run_turn(siw_ud_of(wq), round);
	head -= wq->sq_head;
	siw_unlock(&qp->send_lock);
	return siw_qp_turn_of(left, head);
}

void siw_qp_ud_drain(struct siw_wq *wq)
{
	wq->sq_next = wq->sq_head + half_out(siw_ud_of(wq));
}

static bool ring_uses_key(struct siw_wq *wq, uint32_t lkey)
{
	return siw_qp_sq_uses_key(wq, lkey, 0);
}

bool siw_qp_ud_uses_key(struct siw_qp *qp, uint32_t lkey)
{
	return siw_qp_still_uses(siw_wq_of(qp), ring_uses_key, lkey);
}

static bool ring_uses_ah(const struct siw_wq *wq, const struct siw_ah *ah)
{
	for (uint32_t i = wq->sq_head; i != wq->sq_tail; i++)
		if (siw_qp_wqe(wq, i)->ah == ah)
			return true;
	return false;
}

bool siw_qp_ud_uses_ah(struct siw_qp *qp, const struct siw_ah *ah)
{
	struct siw_wq *wq = siw_wq_of(qp);
	bool ran = false, busy;

	siw_lock(&qp->send_lock);
	busy = ring_uses_ah(wq, ah);
	if (busy && qp->state == SIW_QPS_RTS) {
		ran = true;
		siw_qp_ud_run(wq);
		busy = ring_uses_ah(wq, ah);
	}
	siw_unlock(&qp->send_lock);
	if (ran) /* with what is left, or with what went wrong */
		siw_verbs_mark_unsent(qp);
	return busy;
}
