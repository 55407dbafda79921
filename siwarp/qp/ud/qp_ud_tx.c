/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sending on UD queue pairs: one message is one datagram. A lone send goes directly from the
 * caller's request to the socket. Sends posted as a list, or one by one without a poll in between,
 * are copied into the send queue; sends of one size to one peer are sent together, up to 64 in one
 * system call.
 */
#include <errno.h>
#include <limits.h>

#include "base/addr.h"
#include "qp/qp_impl.h"

#define OWN_QKEY    0x80000000u
#define KNOWN_FLAGS (SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED | SIW_SEND_INLINE)
/* Number of datagrams that a QP with a shared socket sends before the next QP's turn. */
#define SHARED_TURN 32

static void ud_dest_addr(const struct siw_ah *ah, uint32_t remote_qpn, struct siw_addr *dest)
{
	*dest = ah->dest;
	if ((uint16_t)remote_qpn && !ah->group)
		dest->port_be = htons((uint16_t)remote_qpn);
}

static void ud_send_dest(const struct siw_send_wr *wr, struct siw_addr *dest)
{
	ud_dest_addr(wr->wr.ud.ah, wr->wr.ud.remote_qpn, dest);
}

/* Whether the request is a Write-Record, whose address handle is in wr->rd, after its rkey. */
static bool is_record(const struct siw_send_wr *wr)
{
	return __builtin_expect(wr->opcode == SIW_WR_RDMA_WRITE_RECORD, 0);
}

/*
 * The status of a failed request. A wrong local key or length moves the queue to SQE, as verbs
 * require. A datagram that the network refuses counts as lost, and the queue continues, for the
 * sake of other peers.
 */
static __attribute__((cold, noinline)) enum siw_wc_status ud_request_failed(struct siw_ud *ud,
									    int err)
{
	enum siw_wc_status status = err == -EMSGSIZE ? SIW_WC_LOC_LEN_ERR
						     : siw_qp_sq_status(&ud->wq, err);

	/*
	 * The state changes before the completion is queued, so that a program that polls the
	 * completion sees the new state.
	 */
	if (status != SIW_WC_GENERAL_ERR)
		siw_qp_send_failed(&ud->wq);
	return status;
}

/*
 * Completes the oldest request with an error, and flushes later requests if the error stops the
 * queue.
 */
static __attribute__((cold, noinline)) void ud_fail_oldest(struct siw_ud *ud, int err)
{
	siw_qp_flow_finish(&ud->wq, &ud->wq.flow, (int)ud_request_failed(ud, err));
	siw_qp_flush_late_send(&ud->wq);
}

/*
 * The socket from which a message with this address handle is sent; NULL: there is none at the
 * handle's source address, or none of the destination's family.
 */
static inline struct siw_llp_sock *ud_sock_for(const struct siw_ud *ud, const struct siw_ah *ah)
{
	const struct siw_addr_sock *end;

	if (__builtin_expect(!ud->ends && !ah->source.family, 1))
		return ud->sock;
	if (!ud->ends)
		return siw_addr_same_host(siw_ddp_dgram_dest_addr(ud->ddp), &ah->source) ? ud->sock
											 : NULL;
	end = siw_addr_socks_find(ud->ends, &ah->dest, &ah->source);
	return end ? end->sock : NULL;
}

/* Makes the next messages leave from this socket. */
static inline void ud_send_by(struct siw_ud *ud, struct siw_llp_sock *sock)
{
	if (ud->ends)
		siw_ddp_dgram_set_tx_sock(ud->ddp, sock);
}

static int64_t ud_check_send(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->wr.ud.ah;
	uint64_t length, over;

	if (wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_SEND_WITH_IMM)
		return siw_qp_refuse_opcode(&ud->wq, wr->opcode);
	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse(SEND_FLAGS, wr->send_flags);
	if (!ah || ah->pd != ud->wq.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(UD_HANDLE);
	if (!(uint16_t)wr->wr.ud.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	length = siw_qp_octets(wr);
	if ((wr->send_flags & SIW_SEND_INLINE) && length > ud->wq.cap.max_inline_data)
		return siw_refuse(INLINE_LENGTH, length, ud->wq.cap.max_inline_data);
	/* A message that is too long completes with LOC_LEN_ERR; its length is capped here. */
	over = siw_rdmap_dgram_max(ud->dgram) + 1;
	return (int64_t)(length < over ? length : over);
}

/* The destination's index among the QPs that share its socket. */
static uint8_t ud_dest_index(const struct siw_send_wr *wr)
{
	return wr->wr.ud.ah->group ? 0 : (uint8_t)(wr->wr.ud.remote_qpn >> SIW_QPN_INDEX_BIT);
}

static uint32_t ud_dest_qkey(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	return wr->wr.ud.remote_qkey & OWN_QKEY ? ud->wq.qkey : wr->wr.ud.remote_qkey;
}

static int64_t check_record(const struct siw_ud *ud, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	uint64_t length;

	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse(SEND_FLAGS, wr->send_flags);
	if (!ah || ah->pd != ud->wq.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(RECORD_HANDLE);
	if (ah->group)
		return siw_refuse(HANDLE_GROUP);
	if (!(uint16_t)wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	length = siw_qp_octets(wr);
	return siw_qp_check_length(&ud->wq, wr, length);
}

/* Queues a Write-Record; siw_qp_ud_run sends it. */
static __attribute__((cold, noinline)) int post_record(struct siw_ud *ud,
						       const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	int64_t length = check_record(ud, wr);
	struct siw_llp_sock *sock;
	struct siw_wqe *wqe;

	if (length < 0)
		return (int)length;
	sock = ud_sock_for(ud, ah);
	if (!sock)
		return siw_refuse(HANDLE_END);
	wqe = siw_qp_sq_append(&ud->wq, &ud->wq.flow, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_slot(&ud->wq);
	ud_dest_addr(ah, wr->rd.remote_qpn, &wqe->dest);
	wqe->ah = ah;
	wqe->sock = sock;
	atomic_store_explicit(&wr->rd.ah->queued, true, memory_order_relaxed);
	wqe->rkey = wr->rd.remote_qkey & OWN_QKEY ? ud->wq.qkey : wr->rd.remote_qkey;
	wqe->remote = (uint8_t)(wr->rd.remote_qpn >> SIW_QPN_INDEX_BIT);
	wqe->record.addr = wr->wr.rdma.remote_addr;
	wqe->record.rkey = wr->wr.rdma.rkey;
	wqe->seq = 0;
	if (ud->wq.qp.state >= SIW_QPS_SQE)
		siw_qp_flush_late_send(&ud->wq);
	return 0;
}

/*
 * Queues a send, for a batch or because the state does not allow sending. In SQD the send stays
 * queued; in SQE and ERR it is flushed.
 */
static int ud_queue_send(struct siw_ud *ud, const struct siw_send_wr *wr, uint64_t length,
			 struct siw_llp_sock *sock)
{
	struct siw_wqe *wqe = siw_qp_sq_append(&ud->wq, &ud->wq.flow, wr, length);

	if (!wqe)
		return siw_qp_refuse_slot(&ud->wq);
	ud_send_dest(wr, &wqe->dest);
	wqe->ah = wr->wr.ud.ah;
	wqe->sock = sock;
	atomic_store_explicit(&wr->wr.ud.ah->queued, true, memory_order_relaxed);
	wqe->rkey = ud_dest_qkey(ud, wr);
	wqe->remote = ud_dest_index(wr);
	wqe->send_imm = wr->imm_data;
	if (__builtin_expect(ud->wq.qp.state >= SIW_QPS_SQE, 0))
		siw_qp_flush_late_send(&ud->wq);
	return 0;
}

/* Sets up the socket for sending to multicast groups, before the first such send: 0 or -errno. */
static __attribute__((cold, noinline)) int
prepare_for_groups(struct siw_ud *ud, const struct siw_ah *ah, struct siw_llp_sock *sock)
{
	struct siw_addr_sock *end = ud->ends ? siw_addr_socks_find(ud->ends, &ah->dest, &ah->source)
					     : NULL;
	int err;

	if (end ? atomic_load(&end->sends_to_groups) : ud->sends_to_groups)
		return 0;
	err = siw_llp_udp_group_sender(sock, ud->wq.qp.ctx->info.netdev,
				       (int)siw_settings()->mcast_ttl);
	if (end)
		atomic_store(&end->sends_to_groups, !err);
	else
		ud->sends_to_groups = !err;
	return err;
}

int64_t siw_qp_ud_check(struct siw_wq *wq, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = is_record(wr) ? wr->rd.ah : wr->wr.ud.ah;
	struct siw_ud *ud = siw_ud_of(wq);
	int64_t length = is_record(wr) ? check_record(ud, wr) : ud_check_send(ud, wr);
	struct siw_llp_sock *sock;
	int err;

	if (length < 0)
		return length;
	sock = ud_sock_for(ud, ah);
	if (!sock)
		return siw_refuse(HANDLE_END);
	err = ah->group ? prepare_for_groups(ud, ah, sock) : 0;
	return err ? err : length;
}

int siw_qp_ud_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	struct siw_ud *ud = siw_ud_of(wq);
	struct siw_llp_sock *sock;
	struct siw_addr dest;
	int64_t length;
	int err;

	if (is_record(wr))
		return post_record(ud, wr);
	length = ud_check_send(ud, wr);
	if (length < 0)
		return (int)length;
	sock = ud_sock_for(ud, wr->wr.ud.ah);
	if (__builtin_expect(!sock, 0))
		return siw_refuse(HANDLE_END);
	if (__builtin_expect(wr->wr.ud.ah->group, 0)) {
		err = prepare_for_groups(ud, wr->wr.ud.ah, sock);
		if (err)
			return err;
	}
	if (wait || ud->wq.flow.first || ud->wq.qp.state != SIW_QPS_RTS)
		return ud_queue_send(ud, wr, (uint64_t)length, sock);
	if (siw_qp_sq_full(&ud->wq))
		return siw_refuse_full(SEND_FULL, ud->wq.cap.max_send_wr);
	ud_send_dest(wr, &dest);
	ud_send_by(ud, sock);
	err = siw_rdmap_dgram_send(ud->dgram,
				   &(struct siw_rdmap_dgram_op){
					   .user_data = wr->wr_id,
					   .dest = &dest,
					   .dest_index = ud_dest_index(wr),
					   .qkey = ud_dest_qkey(ud, wr),
					   .solicited = wr->send_flags & SIW_SEND_SOLICITED,
					   .internal = wr->send_flags & SIW_SEND_INLINE,
					   .with_imm = wr->opcode == SIW_WR_SEND_WITH_IMM,
					   .imm = wr->imm_data,
					   .sgl = wr->sg_list,
					   .nsge = wr->num_sge,
					   .length = (uint64_t)length,
				   });
	if (err == -EAGAIN)
		return ud_queue_send(ud, wr, (uint64_t)length, sock);
	siw_qp_sq_bypass(
		wq, wr, (uint64_t)length,
		__builtin_expect(err, 0) ? (int)ud_request_failed(ud, err) : SIW_WC_SUCCESS, NULL);
	return 0;
}

/* Builds operations for the oldest WQEs that are sent from one socket. Returns their number. */
static int ud_gather_ops(struct siw_ud *ud, struct siw_rdmap_dgram_op *ops, int max)
{
	struct siw_wqe *wqe = ud->wq.flow.first;
	const struct siw_llp_sock *sock = wqe->sock;
	int n;

	for (n = 0; n < max && wqe && wqe->sock == sock && wqe->opcode != SIW_WR_RDMA_WRITE_RECORD;
	     n++) {
		ops[n] = (struct siw_rdmap_dgram_op){
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
		wqe = wqe->chain;
	}
	return n;
}

/*
 * Sends the oldest request, a Write-Record. 0: it has completed; -EAGAIN: the socket is full; 1:
 * the turn has sent enough.
 */
static __attribute__((cold, noinline)) int ud_run_record(struct siw_ud *ud)
{
	struct siw_flow *flow = &ud->wq.flow;
	struct siw_wqe *wqe = flow->first;
	struct siw_rdmap_record_op op = siw_qp_record_op(wqe);
	int r = siw_rdmap_record_send(ud->dgram, &op, &wqe->seq);

	/* Unlike a single datagram, a Write-Record can be partly sent. */
	if (wqe->seq && flow->next == wqe)
		siw_qp_flow_advance(&ud->wq, flow, SIW_WQE_BEGUN, SIW_WC_SUCCESS);
	if (r == -EAGAIN)
		return r;
	if (!r)
		return 1;
	if (r < 0)
		ud_fail_oldest(ud, r);
	else
		siw_qp_flow_finish(&ud->wq, flow, SIW_WC_SUCCESS);
	siw_qp_drained(&ud->wq);
	return 0;
}

/*
 * Whether queued requests may be sent. In SQD, a request that has begun continues, and the others
 * wait. In ERR and RESET, other code clears the queue.
 */
static inline bool ud_may_run(struct siw_ud *ud)
{
	return __builtin_expect(ud->wq.qp.state == SIW_QPS_RTS, 1) ||
	       (ud->wq.qp.state == SIW_QPS_SQD && ud->wq.begun);
}

/* Sends queued requests, until at least max datagrams were sent. */
static enum siw_run ud_run_queue(struct siw_ud *ud, int max)
{
	struct siw_rdmap_dgram_op ops[SIW_RDMAP_MAX_SOME];
	int sent = 0;

	while (ud->wq.flow.first && ud_may_run(ud)) {
		int n = ud_gather_ops(ud, ops, SIW_RDMAP_MAX_SOME);
		int taken;

		ud_send_by(ud, ud->wq.flow.first->sock);
		if (__builtin_expect(!n, 0)) {
			n = ud_run_record(ud);
			if (n)
				return n == -EAGAIN ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
			continue;
		}
		taken = siw_rdmap_dgram_send_some(ud->dgram, ops, n);

		if (taken == -EAGAIN)
			return SIW_RUN_BLOCKED;
		sent += taken;
		if (taken < 0)
			ud_fail_oldest(ud, taken);
		for (; taken > 0; taken--)
			siw_qp_flow_finish(&ud->wq, &ud->wq.flow, SIW_WC_SUCCESS);
		if (sent >= max)
			return SIW_RUN_MORE;
	}
	return SIW_RUN_DONE;
}

enum siw_run siw_qp_ud_run(struct siw_wq *wq)
{
	return ud_run_queue(siw_ud_of(wq), INT_MAX);
}

/*
 * On a shared socket, a turn sends only part of the queue, and nothing in a round in which another
 * QP found the socket full; otherwise the first QP of each round would take all room.
 */
enum siw_turn siw_qp_ud_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_ud *ud = siw_ud_of(siw_wq_of(qp));
	enum siw_run left;
	uint32_t head;
	bool held;

	if (!ud->dgram || !siw_rdmap_dgram_shared(ud->dgram))
		return siw_qp_turn(qp, round);
	if (siw_rdmap_dgram_full(ud->dgram) == round)
		return SIW_TURN_STARVED;
	siw_lock(&qp->send_lock);
	head = ud->wq.sq_head;
	left = ud_run_queue(ud, SHARED_TURN);
	head -= ud->wq.sq_head;
	held = siw_ddp_dgram_pace(ud->ddp)->held;
	siw_unlock(&qp->send_lock);
	if (held) /* held by the QP's own rate limit: the socket has room for other QPs */
		return left == SIW_RUN_BLOCKED ? SIW_TURN_BLOCKED : siw_qp_turn_of(left, head);
	if (left == SIW_RUN_BLOCKED)
		siw_rdmap_dgram_set_full(ud->dgram, round);
	return siw_qp_turn_of(left, head);
}

static bool ud_wqe_uses_ah(const struct siw_flow *flow, const struct siw_wqe *wqe, const void *ah)
{
	(void)flow;
	return wqe->ah == ah;
}

bool siw_qp_ud_uses_ah(struct siw_qp *qp, const struct siw_ah *ah)
{
	return siw_qp_still_uses(siw_wq_of(qp), ud_wqe_uses_ah, ah);
}
