/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UD queue pairs: error messages and their rate limit, sending, and receiving. Each section calls
 * only functions of earlier sections.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/clock.h"
#include "base/source.h"
#include "ddp/ddp.h"
#include "qp/qp_impl.h"
#include "rdmap/rdmap_record.h"

/* ==== rate limit of error messages ============================================================ */

/*
 * The rate limits of error messages: setting err_rate limits the rate to all destinations together,
 * and err_source_rate the rate to each address. A burst may contain as many messages as the rate
 * permits in one second. A forged source address thus directs little traffic at its victim.
 */

struct siw_err_limit {
	uint64_t key;
	struct siw_source_buckets buckets;
};

static struct siw_err_limit *error_message_limit_alloc(void)
{
	struct siw_err_limit *limit = calloc(1, sizeof(*limit));

	if (limit)
		limit->key = siw_source_make_hash_key();
	return limit;
}

/*
 * Whether the rate limits allow another error message to the address; if so, the message is
 * counted. The queue pairs of all lanes share the limits.
 */
static bool take_error_message_allowance(struct siw_context *ctx, const struct siw_addr *to)
{
	const struct siw_settings *set = siw_settings();
	uint64_t all = (uint64_t)set->err_rate, one = (uint64_t)set->err_source_rate;
	struct siw_err_limit *limit;
	bool admitted;

	siw_lock(&ctx->err_lock);
	if (!ctx->err_limit)
		ctx->err_limit = error_message_limit_alloc();
	limit = ctx->err_limit;
	admitted = limit &&
		   siw_source_consume_token(&limit->buckets, siw_source_table_index(limit->key, to),
					    &(struct siw_rate){ all, all },
					    &(struct siw_rate){ one, one }, siw_now_ns());
	siw_unlock(&ctx->err_lock);
	return admitted;
}

/* ==== errors ================================================================================== */

/* UD queue pairs send error messages to the senders of invalid messages, within rate limits. */

/*
 * Selects the socket at the address at which an invalid message arrived as the source of the error
 * message, since the sender knows this end by that address.
 */
static void ud_choose_error_send_socket(struct siw_ud_qp *ud, const struct siw_addr *dest)
{
	struct siw_addr_sock *end = ud->socks ? siw_addr_socks_find(ud->socks, dest, dest) : NULL;

	if (end)
		siw_ddp_dgram_set_tx_sock(ud->ddp, end->sock);
}

static void ud_send_error_message(struct siw_ud_qp *ud, const struct siw_rdmap_event *event)
{
	int err;

	if (!take_error_message_allowance(ud->base.qp.ctx, &event->source)) {
		siw_count(SIW_COUNTER_err_limited, 1);
		return;
	}
	siw_lock(&ud->base.qp.send_lock);
	ud_choose_error_send_socket(ud, event->dest);
	err = siw_rdmap_dgram_send_error(ud->dgram, event);
	siw_unlock(&ud->base.qp.send_lock);
	siw_count(err ? SIW_COUNTER_err_unsent : SIW_COUNTER_err_sent, 1);
}

/*
 * Handles an invalid message (BAD_MSG, or BAD_RECV of a message that is too long): sends an error
 * message to the sender, within the rate limits, and for BAD_MSG calls
 * siw_qp_err_handle_invalid_message().
 */
static void ud_handle_invalid_message(struct siw_ud_qp *ud, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	ud_send_error_message(ud, event);
	/* for BAD_RECV, the completion of the receive reports the error */
	if (event->kind == SIW_RDMAP_BAD_MSG)
		siw_qp_err_handle_invalid_message(&ud->base, event);
}

/*
 * Handles an error message of a peer: queues an entry of the QP's error queue if the error message
 * quotes a message that the QP has sent.
 */
static void ud_queue_peer_error_message(struct siw_ud_qp *ud, const struct siw_rdmap_event *event)
{
	uint64_t wr_id;
	bool ours;

	siw_lock(&ud->base.qp.send_lock);
	ours = siw_rdmap_dgram_match_error_to_sent(ud->dgram, event, &wr_id);
	siw_unlock(&ud->base.qp.send_lock);
	if (ours)
		siw_qp_errq_add_error_reported_by_peer(&ud->base, event, wr_id);
	else
		siw_drop(SIW_COUNTER_err_stale);
}

/* ==== sending ================================================================================= */

/*
 * Sending on UD queue pairs: one message is one datagram. A single send is passed directly from the
 * caller's request to the socket. Sends posted as a list, or one by one without a poll in between,
 * are copied into the send queue; sends of one size to one peer are sent together, up to 64 in one
 * system call.
 */

#define OWN_QKEY    0x80000000u
#define KNOWN_FLAGS (SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED | SIW_SEND_INLINE)
/* Number of datagrams that a QP with a shared socket sends before the turn of the next QP. */
#define SHARED_TURN 32

static void ud_get_dest_addr(const struct siw_ah *ah, uint32_t remote_qpn, struct siw_addr *dest)
{
	*dest = ah->dest;
	if ((uint16_t)remote_qpn && !ah->group)
		dest->port_be = htons((uint16_t)remote_qpn);
}

static void ud_get_send_dest(const struct siw_send_wr *wr, struct siw_addr *dest)
{
	ud_get_dest_addr(wr->wr.ud.ah, wr->wr.ud.remote_qpn, dest);
}

/*
 * Whether the request is a Write-Record. The address handle of a Write-Record is in wr->rd, those
 * of other requests in wr->wr.ud.
 */
static bool is_write_record(const struct siw_send_wr *wr)
{
	return __builtin_expect(wr->opcode == SIW_WR_RDMA_WRITE_RECORD, 0);
}

/*
 * Returns the status of a failed request. A wrong local key or length moves the QP to SQE, as verbs
 * require. A datagram that the network refuses counts as lost, and the queue continues, because it
 * may hold requests to other peers.
 */
static __attribute__((cold, noinline)) enum siw_wc_status
ud_handle_request_failure(struct siw_ud_qp *ud, int err)
{
	enum siw_wc_status status = err == -EMSGSIZE
					    ? SIW_WC_LOC_LEN_ERR
					    : siw_qp_wc_status_of_send_error(&ud->base, err);

	/*
	 * The state changes before the completion is queued, so that a program that polls the
	 * completion sees the new state.
	 */
	if (status != SIW_WC_GENERAL_ERR)
		siw_qp_move_to_sqe(&ud->base);
	return status;
}

/*
 * Completes the oldest request with an error, and flushes later requests if the error moves the QP
 * to SQE.
 */
static __attribute__((cold, noinline)) void ud_fail_oldest(struct siw_ud_qp *ud, int err)
{
	siw_qp_flow_complete_oldest_request(&ud->base, &ud->base.flow,
					    (int)ud_handle_request_failure(ud, err));
	siw_qp_flush_late_send(&ud->base);
}

/*
 * Returns the socket from which a message with the address handle is sent; NULL if there is no
 * socket at the handle's source address, or no socket of the destination's address family.
 */
static inline struct siw_llp_sock *ud_sock_for_address_handle(const struct siw_ud_qp *ud,
							      const struct siw_ah *ah)
{
	const struct siw_addr_sock *end;

	if (__builtin_expect(!ud->socks && !ah->source.family, 1))
		return ud->sock;
	if (!ud->socks)
		return siw_addr_same_host(siw_ddp_dgram_get_rx_dest_addr(ud->ddp), &ah->source)
			       ? ud->sock
			       : NULL;
	end = siw_addr_socks_find(ud->socks, &ah->dest, &ah->source);
	return end ? end->sock : NULL;
}

/* Sets the socket from which the next messages are sent. */
static inline void ud_set_tx_sock(struct siw_ud_qp *ud, struct siw_llp_sock *sock)
{
	if (ud->socks)
		siw_ddp_dgram_set_tx_sock(ud->ddp, sock);
}

static int64_t ud_check_send(const struct siw_ud_qp *ud, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->wr.ud.ah;
	uint64_t length, over;

	if (wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_SEND_WITH_IMM)
		return siw_qp_refuse_opcode(&ud->base, wr->opcode);
	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse_flags("send_flags", wr->send_flags, "siw_send_flags");
	if (!ah || ah->pd != ud->base.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(NO_HANDLE);
	if (!(uint16_t)wr->wr.ud.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	length = siw_qp_octets(wr);
	if ((wr->send_flags & SIW_SEND_INLINE) && length > ud->base.cap.max_inline_data)
		return siw_refuse(INLINE_LENGTH, length, ud->base.cap.max_inline_data);
	/*
	 * A message that is too long completes with LOC_LEN_ERR later; the returned length is
	 * limited to the maximum plus 1.
	 */
	over = siw_rdmap_dgram_max_message_octets(ud->dgram) + 1;
	return (int64_t)(length < over ? length : over);
}

/* Returns the index of the destination QP among the QPs that share its socket. */
static uint8_t ud_dest_qp_index(const struct siw_send_wr *wr)
{
	return wr->wr.ud.ah->group ? 0 : (uint8_t)(wr->wr.ud.remote_qpn >> SIW_QPN_INDEX_BIT);
}

static uint32_t ud_dest_qkey(const struct siw_ud_qp *ud, const struct siw_send_wr *wr)
{
	return wr->wr.ud.remote_qkey & OWN_QKEY ? ud->base.qkey : wr->wr.ud.remote_qkey;
}

static int64_t ud_check_write_record_request(const struct siw_ud_qp *ud,
					     const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	uint64_t length;

	if (wr->send_flags & ~KNOWN_FLAGS)
		return siw_refuse_flags("send_flags", wr->send_flags, "siw_send_flags");
	if (!ah || ah->pd != ud->base.qp.pd)
		return ah && ah->pd ? siw_refuse(HANDLE_PD) : siw_refuse(NO_HANDLE);
	if (ah->group)
		return siw_refuse(HANDLE_GROUP);
	if (!(uint16_t)wr->rd.remote_qpn && !ah->dest.port_be)
		return siw_refuse(HANDLE_PORT);
	length = siw_qp_octets(wr);
	return siw_qp_check_length(&ud->base, wr, length);
}

/* Appends a Write-Record to the send queue; ud_run_send_queue() sends it. */
static __attribute__((cold, noinline)) int ud_post_write_record(struct siw_ud_qp *ud,
								const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = wr->rd.ah;
	int64_t length = ud_check_write_record_request(ud, wr);
	struct siw_llp_sock *sock;
	struct siw_wqe *wqe;

	if (length < 0)
		return (int)length;
	sock = ud_sock_for_address_handle(ud, ah);
	if (!sock)
		return siw_refuse(HANDLE_END);
	wqe = siw_qp_sq_append(&ud->base, &ud->base.flow, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_full_sq(&ud->base);
	ud_get_dest_addr(ah, wr->rd.remote_qpn, &wqe->dest);
	wqe->ah = ah;
	wqe->sock = sock;
	atomic_store_explicit(&wr->rd.ah->queued, true, memory_order_relaxed);
	wqe->op.rkey = wr->rd.remote_qkey & OWN_QKEY ? ud->base.qkey : wr->rd.remote_qkey;
	wqe->op.remote_to = (uint8_t)(wr->rd.remote_qpn >> SIW_QPN_INDEX_BIT);
	wqe->record.addr = wr->wr.rdma.remote_addr;
	wqe->record.rkey = wr->wr.rdma.rkey;
	wqe->record.sent = 0;
	if (ud->base.qp.state >= SIW_QPS_SQE)
		siw_qp_flush_late_send(&ud->base);
	return 0;
}

/*
 * Appends a send to the send queue, because it becomes part of a batch or because it cannot be sent
 * now. In SQD the send stays queued; in SQE and ERR the send is flushed.
 */
static int ud_queue_send(struct siw_ud_qp *ud, const struct siw_send_wr *wr, uint64_t length,
			 struct siw_llp_sock *sock)
{
	struct siw_wqe *wqe = siw_qp_sq_append(&ud->base, &ud->base.flow, wr, length);

	if (!wqe)
		return siw_qp_refuse_full_sq(&ud->base);
	ud_get_send_dest(wr, &wqe->dest);
	wqe->ah = wr->wr.ud.ah;
	wqe->sock = sock;
	atomic_store_explicit(&wr->wr.ud.ah->queued, true, memory_order_relaxed);
	wqe->op.rkey = ud_dest_qkey(ud, wr);
	wqe->op.remote_to = ud_dest_qp_index(wr);
	wqe->op.imm = wr->imm_data;
	if (__builtin_expect(ud->base.qp.state >= SIW_QPS_SQE, 0))
		siw_qp_flush_late_send(&ud->base);
	return 0;
}

/*
 * Sets up the socket for sending to multicast groups, before the first send to a group. Returns 0
 * or -errno.
 */
static __attribute__((cold, noinline)) int
ud_prepare_group_sending(struct siw_ud_qp *ud, const struct siw_ah *ah, struct siw_llp_sock *sock)
{
	struct siw_addr_sock *end =
		ud->socks ? siw_addr_socks_find(ud->socks, &ah->dest, &ah->source) : NULL;
	int err;

	if (end ? atomic_load(&end->sends_to_groups) : ud->sends_to_groups)
		return 0;
	err = siw_llp_udp_enable_multicast_sending(sock, ud->base.qp.ctx->info.netdev,
						   (int)siw_settings()->mcast_ttl);
	if (end)
		atomic_store(&end->sends_to_groups, !err);
	else
		ud->sends_to_groups = !err;
	return err;
}

static int64_t ud_check_send_wr(struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	const struct siw_ah *ah = is_write_record(wr) ? wr->rd.ah : wr->wr.ud.ah;
	struct siw_ud_qp *ud = siw_ud_qp_of(base);
	int64_t length = is_write_record(wr) ? ud_check_write_record_request(ud, wr)
					     : ud_check_send(ud, wr);
	struct siw_llp_sock *sock;
	int err;

	if (length < 0)
		return length;
	sock = ud_sock_for_address_handle(ud, ah);
	if (!sock)
		return siw_refuse(HANDLE_END);
	err = ah->group ? ud_prepare_group_sending(ud, ah, sock) : 0;
	return err ? err : length;
}

static int ud_post_request(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait)
{
	struct siw_ud_qp *ud = siw_ud_qp_of(base);
	struct siw_llp_sock *sock;
	struct siw_addr dest;
	int64_t length;
	int err;

	if (is_write_record(wr))
		return ud_post_write_record(ud, wr);
	length = ud_check_send(ud, wr);
	if (length < 0)
		return (int)length;
	sock = ud_sock_for_address_handle(ud, wr->wr.ud.ah);
	if (__builtin_expect(!sock, 0))
		return siw_refuse(HANDLE_END);
	if (__builtin_expect(wr->wr.ud.ah->group, 0)) {
		err = ud_prepare_group_sending(ud, wr->wr.ud.ah, sock);
		if (err)
			return err;
	}
	if (wait || ud->base.flow.first || ud->base.qp.state != SIW_QPS_RTS)
		return ud_queue_send(ud, wr, (uint64_t)length, sock);
	if (siw_qp_sq_full(&ud->base))
		return siw_refuse_full(SEND_FULL, ud->base.cap.max_send_wr);
	ud_get_send_dest(wr, &dest);
	ud_set_tx_sock(ud, sock);
	err = siw_rdmap_dgram_send(ud->dgram,
				   &(struct siw_rdmap_dgram_op){
					   .user_data = wr->wr_id,
					   .dest = &dest,
					   .dest_index = ud_dest_qp_index(wr),
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
	siw_qp_sq_complete_without_slot(
		base, wr, (uint64_t)length,
		__builtin_expect(err, 0) ? (int)ud_handle_request_failure(ud, err) : SIW_WC_SUCCESS,
		NULL);
	return 0;
}

/*
 * Builds the operations of the oldest WQEs, up to the first WQE that is sent from another socket.
 * Returns the number of operations.
 */
static int ud_build_ops_of_queued_sends(struct siw_ud_qp *ud, struct siw_rdmap_dgram_op *ops,
					int max)
{
	struct siw_wqe *wqe = ud->base.flow.first;
	const struct siw_llp_sock *sock = wqe->sock;
	int n;

	for (n = 0; n < max && wqe && wqe->sock == sock && wqe->opcode != SIW_WR_RDMA_WRITE_RECORD;
	     n++) {
		ops[n] = (struct siw_rdmap_dgram_op){
			.user_data = wqe->wr_id,
			.dest = &wqe->dest,
			.dest_index = (uint8_t)wqe->op.remote_to,
			.qkey = wqe->op.rkey,
			.solicited = wqe->flags & SIW_SEND_SOLICITED,
			.internal = wqe->flags & SIW_SEND_INLINE,
			.with_imm = wqe->opcode == SIW_WR_SEND_WITH_IMM,
			.imm = wqe->op.imm,
			.sgl = wqe->sge,
			.nsge = wqe->op.nsge,
			.length = wqe->op.length,
		};
		wqe = wqe->chain;
	}
	return n;
}

/*
 * Sends the oldest request, which is a Write-Record. Returns 0 if the request has completed;
 * -EAGAIN if the socket's send buffer is full; 1 if the QP has sent the maximum of one turn.
 */
static __attribute__((cold, noinline)) int ud_send_write_record(struct siw_ud_qp *ud)
{
	struct siw_flow *flow = &ud->base.flow;
	struct siw_wqe *wqe = flow->first;
	struct siw_rdmap_record_op op = siw_qp_write_record_make_op(wqe);
	int r = siw_rdmap_write_record_send(ud->dgram, &op, &wqe->record.sent);

	/* A Write-Record, unlike a single datagram, can be partially sent. */
	if (wqe->record.sent && flow->next == wqe)
		siw_qp_flow_finish_current_request(&ud->base, flow, SIW_WQE_BEGUN, SIW_WC_SUCCESS);
	if (r == -EAGAIN)
		return r;
	if (!r)
		return 1;
	if (r < 0)
		ud_fail_oldest(ud, r);
	else
		siw_qp_flow_complete_oldest_request(&ud->base, flow, SIW_WC_SUCCESS);
	siw_qp_raise_event_if_drained(&ud->base);
	return 0;
}

/*
 * Whether queued requests may be sent. In SQD, a request that has begun continues, and the other
 * requests wait. In ERR and RESET, other code clears the queue.
 */
static inline bool ud_can_send_queued_requests(struct siw_ud_qp *ud)
{
	return __builtin_expect(ud->base.qp.state == SIW_QPS_RTS, 1) ||
	       (ud->base.qp.state == SIW_QPS_SQD && ud->base.begun);
}

/* Sends queued requests of a UD QP, until at least max datagrams were sent. */
static enum siw_run ud_send_queued_requests(struct siw_ud_qp *ud, int max)
{
	struct siw_rdmap_dgram_op ops[SIW_RDMAP_MAX_SOME];
	int sent = 0;

	while (ud->base.flow.first && ud_can_send_queued_requests(ud)) {
		int n = ud_build_ops_of_queued_sends(ud, ops, SIW_RDMAP_MAX_SOME);
		int taken;

		ud_set_tx_sock(ud, ud->base.flow.first->sock);
		if (__builtin_expect(!n, 0)) {
			n = ud_send_write_record(ud);
			if (n)
				return n == -EAGAIN ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
			continue;
		}
		taken = siw_rdmap_dgram_send_batch(ud->dgram, ops, n);

		if (taken == -EAGAIN)
			return SIW_RUN_BLOCKED;
		sent += taken;
		if (taken < 0)
			ud_fail_oldest(ud, taken);
		for (; taken > 0; taken--)
			siw_qp_flow_complete_oldest_request(&ud->base, &ud->base.flow,
							    SIW_WC_SUCCESS);
		if (sent >= max)
			return SIW_RUN_MORE;
	}
	return SIW_RUN_DONE;
}

static enum siw_run ud_run_send_queue(struct siw_base_qp *base)
{
	return ud_send_queued_requests(siw_ud_qp_of(base), INT_MAX);
}

/*
 * Gives the QP one turn to send. On a shared socket, the QP sends only part of its send queue in a
 * turn, and nothing in a progress round in which another QP found the socket's send buffer full;
 * otherwise the first QP of each round would fill the send buffer alone.
 */
static enum siw_turn ud_make_sending_turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_ud_qp *ud = siw_ud_qp_of(siw_base_qp_of(qp));
	enum siw_run left;
	uint32_t head;
	bool held;

	if (!ud->dgram || !siw_rdmap_dgram_shares_socket(ud->dgram))
		return siw_qp_make_sending_turn(qp, round);
	if (siw_rdmap_dgram_last_full_round(ud->dgram) == round)
		return SIW_TURN_STARVED;
	siw_lock(&qp->send_lock);
	head = ud->base.sq_head;
	left = ud_send_queued_requests(ud, SHARED_TURN);
	head -= ud->base.sq_head;
	held = siw_ddp_dgram_get_pace(ud->ddp)->held;
	siw_unlock(&qp->send_lock);
	/* the QP's own rate limit delays the requests, so the socket is not full for other QPs */
	if (held)
		return left == SIW_RUN_BLOCKED ? SIW_TURN_BLOCKED
					       : siw_qp_run_result_to_turn_result(left, head);
	if (left == SIW_RUN_BLOCKED)
		siw_rdmap_dgram_set_socket_full_time(ud->dgram, round);
	return siw_qp_run_result_to_turn_result(left, head);
}

static bool ud_wqe_uses_ah(const struct siw_flow *flow, const struct siw_wqe *wqe, const void *ah)
{
	(void)flow;
	return wqe->ah == ah;
}

static bool ud_uses_ah(struct siw_qp *qp, const struct siw_ah *ah)
{
	return siw_qp_still_uses_object(siw_base_qp_of(qp), ud_wqe_uses_ah, ah);
}

/* ==== receiving, and the type ================================================================= */

/* UD queue pairs: their sockets, and the receive path. */

_Static_assert(SIW_MAX_SHARERS == SIW_RDMAP_MAX_SHARERS,
	       "SIW_MAX_SHARERS equals the limit of rdmap");

static int ud_handle_socket_event(struct siw_io_handler *self);
static int ud_handle_addr_sock_event(struct siw_addr_sock *end);

static void ud_close_socket(struct siw_base_qp *base)
{
	struct siw_ud_qp *ud = siw_ud_qp_of(base), *other;

	if (!ud->dgram)
		return;
	other = siw_rdmap_dgram_close(ud->dgram);
	/* Another QP that shares the socket handles its events from now on. */
	if (other && ud->socks)
		ud->socks->server = other;
	else if (other)
		siw_llp_set_handler(ud->sock, &other->base.qp.handler);
	else if (ud->socks)
		siw_addr_socks_close(ud->socks);
	else
		siw_llp_close(ud->sock);
	ud->dgram = NULL;
	ud->ddp = NULL;
	ud->socks = NULL;
	ud->sock = NULL;
}

/*
 * Opens an endpoint on a socket. On failure the caller keeps the ownership of the socket. share:
 * the endpoint of another QP on the same socket, or NULL.
 */
static int ud_open_endpoint(struct siw_ud_qp *ud, struct siw_llp_sock *sock,
			    struct siw_rdmap_dgram *share)
{
	struct siw_lane *lane = ud->base.qp.lane;
	struct siw_rdmap_dgram *dgram;
	struct siw_ddp_dgram *ddp;
	struct siw_addr bound;
	int err = siw_llp_local_addr(sock, &bound);

	if (!err)
		err = siw_ddp_dgram_open(lane->poller, lane->ctx->mem, sock, !ud->base.no_crc,
					 &ddp);
	if (err)
		return err;
	err = siw_rdmap_dgram_open(ddp, share, ud, &dgram);
	if (err) {
		siw_ddp_dgram_close(ddp);
		return err;
	}
	err = siw_rdmap_write_record_enable_rx(dgram, ud->records.max);
	if (err) {
		siw_rdmap_dgram_close(dgram);
		return err;
	}
	if (ud->base.grh)
		siw_rdmap_dgram_enable_grh(dgram);
	ud_close_socket(&ud->base);
	ud->sock = sock;
	ud->ddp = ddp;
	ud->dgram = dgram;
	ud->base.qp.handler.serve = ud_handle_socket_event;
	/* The QPN consists of the UDP port and the QP's index among the QPs that share the port. */
	atomic_store(&ud->base.qp.qpn,
		     siw_addr_port(&bound) | (uint32_t)siw_rdmap_dgram_index_on_socket(dgram)
						     << SIW_QPN_INDEX_BIT);
	return 0;
}

static int ud_open_socket(struct siw_base_qp *base, const struct siw_addr *addr, int fd)
{
	struct siw_ud_qp *ud = siw_ud_qp_of(base);
	struct siw_llp_sock *sock;
	int err;

	/* A shared socket cannot be replaced, because other QPs use the socket. */
	if (ud->dgram && siw_rdmap_dgram_shares_socket(ud->dgram))
		return siw_refuse(QP_FD_SHARED);
	if (ud->n_groups)
		return siw_refuse(QP_FD_GROUPS);
	if (ud->socks)
		return siw_refuse(QP_FD_EVERY);
	err = siw_qp_open_udp_socket(base, addr, fd, &sock);
	if (err)
		return err;
	ud->sends_to_groups = false; /* no thread sends, because the QP is in RESET */
	err = ud_open_endpoint(ud, sock, NULL);
	if (err)
		siw_llp_close(sock);
	return err;
}

static int ud_open_sockets_at_every_addr(struct siw_ud_qp *ud, uint16_t port)
{
	struct siw_addr_socks *ends;
	int err = siw_per_addr_sockets_open(ud->base.qp.lane, port, ud, ud_handle_addr_sock_event,
					    &ends);

	if (err)
		return err;
	err = ud_open_endpoint(ud, ends->at[0]->sock, NULL);
	if (err)
		siw_addr_socks_close(ends);
	else
		ud->socks = ends;
	return err;
}

/* Makes the QP use the sockets of the other QP, too. */
static void ud_share_sockets(struct siw_ud_qp *ud, const struct siw_ud_qp *with)
{
	ud->socks = with->socks;
	ud->base.every_addr = ud->socks != NULL;
	if (ud->socks)
		siw_addr_socks_enable_concurrent_sends(ud->socks);
	else
		siw_llp_allow_concurrent_sends(ud->sock);
}

/*
 * Opens an endpoint on the socket of another QP. Returns 0; -EINVAL if the other QP has no socket,
 * or another CRC setting; -ENOSPC if no index is free.
 */
static int ud_open_on_shared_socket(struct siw_ud_qp *ud, const struct siw_ud_qp *with)
{
	int tries, err;

	/* The other QP may have been destroyed, and its memory reused for another QP type. */
	if (siw_class_of(&with->base) != &siw_qp_ud_class)
		return siw_refuse_type("shared_socket_qp", "UD", siw_class_of(&with->base)->type);
	if (!with->dgram)
		return siw_refuse(SHARE_CLOSED);
	if (with->base.no_crc != ud->base.no_crc)
		return siw_refuse(SHARE_CRC, with->base.no_crc);
	/* Each attempt gets another index; the resulting QPN must not be the QPN of an RC QP. */
	for (tries = 0; tries < SIW_MAX_SHARERS; tries++) {
		err = ud_open_endpoint(ud, with->sock, with->dgram);
		if (err)
			return err == -ENOSPC ? siw_refuse(SHARE_FULL, SIW_MAX_SHARERS) : err;
		ud_share_sockets(ud, with);
		if (siw_qp_reserve_qpn(&ud->base, ud->base.qp.qpn))
			return 0;
		ud_close_socket(&ud->base);
	}
	return siw_refuse(SHARE_FULL, SIW_MAX_SHARERS);
}

static int ud_create(struct siw_base_qp *base, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr;
	int err;

	base->timed.tick = siw_qp_write_record_handle_timer;
	siw_ud_qp_of(base)->records.max = init->max_write_records;
	if (init->shared_socket_qp)
		return ud_open_on_shared_socket(
			siw_ud_qp_of(base), siw_ud_qp_of(siw_base_qp_of(init->shared_socket_qp)));
	if (init->every_addr)
		return ud_open_sockets_at_every_addr(siw_ud_qp_of(base),
						     siw_addr_port(&init->addr));
	err = siw_qp_addr_or_first_of_device(base, &init->addr, &addr);
	return err ? err : ud_open_socket(base, &addr, -1);
}

static int ud_get_local_addr(const struct siw_base_qp *base, struct siw_addr *own,
			     struct siw_addr *peer)
{
	(void)peer;
	return siw_ud_qp_of(base)->sock ? siw_llp_local_addr(siw_ud_qp_of(base)->sock, own)
					: -ENOTCONN;
}

static int ud_check_destroyable(const struct siw_base_qp *base)
{
	uint64_t groups = siw_ud_qp_of(base)->n_groups;

	return groups ? siw_refuse(QP_IN_GROUPS, groups) : 0;
}

static void ud_configure_receiving(struct siw_base_qp *base)
{
	struct siw_ud_qp *ud = siw_ud_qp_of(base);
	bool on = ud->base.qp.state >= SIW_QPS_RTR && ud->base.qp.state <= SIW_QPS_SQE;

	/* Under send_lock, because the send path reads what these calls change. */
	siw_lock(&ud->base.qp.send_lock);
	siw_rdmap_dgram_configure_receiving(ud->dgram, on ? ud->base.recvs : NULL,
					    ud->base.qp.pd->number, ud->base.qkey);
	siw_ddp_pace_set_rate_limit(siw_ddp_dgram_get_pace(ud->ddp), ud->base.rate_limit, ud->sock);
	siw_unlock(&ud->base.qp.send_lock);
}

static void ud_apply_modified_attrs(struct siw_base_qp *base, int mask)
{
	if (mask & SIW_QP_QKEY)
		siw_qp_err_update_policy(base, siw_ud_qp_of(base)->n_groups);
}

int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max)
{
	struct siw_ud_qp *ud;
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	ud = siw_ud_qp_of(siw_base_qp_of(qp));
	n = -EINVAL;
	siw_lock(&qp->lane->lock);
	if (siw_class_of(&ud->base) == &siw_qp_ud_class && ud->dgram)
		n = siw_rdmap_dgram_query_drops_by_source(ud->dgram, out, max);
	siw_unlock(&qp->lane->lock);
	return n == -EINVAL ? siw_qp_refuse_type(&ud->base, "UD") : siw_refused(n);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void siw_qp_ud_add_recv_completion(struct siw_ud_qp *ud, const struct siw_rdmap_event *ev)
{
	siw_qp_add_recv_completion(&ud->base, ev, siw_qp_wc_status_of_recv_event(ev), ev->src_qpn,
				   &ev->source, 0);
}

/* Handles all received events other than a successful receive. */
static __attribute__((cold, noinline)) void ud_handle_event(struct siw_ud_qp *ud,
							    const struct siw_rdmap_event *ev)
{
	if (ev->kind == SIW_RDMAP_RECORD) {
		siw_qp_write_record_report_completed(ud, siw_now_ns());
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_ACCESS) {
		siw_qp_errq_add_access_error(&ud->base, ev);
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_RECV)
		siw_qp_ud_add_recv_completion(ud, ev);
	if (ev->kind == SIW_RDMAP_PEER_ERR)
		ud_queue_peer_error_message(ud, ev);
	else if (ev->status != -EACCES) /* an invalid local key is not the peer's fault */
		ud_handle_invalid_message(ud, ev);
}

static inline int ud_process_received_batch(struct siw_ud_qp *ud)
{
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	int n = 0;

	ev.of_write = false;
	while (((n < ud->base.burst && octets < SIW_TURN_OCTETS) ||
		siw_llp_poller_has_more_datagrams(ud->base.qp.lane->poller)) &&
	       siw_rdmap_dgram_recv(ud->dgram, &ev) == 1) {
		/* The event is for the QP itself or for a QP that shares the socket. */
		struct siw_ud_qp *to = ev.user;

		if (__builtin_expect(ev.kind == SIW_RDMAP_RECV, 1))
			siw_qp_ud_add_recv_completion(to, &ev);
		else
			ud_handle_event(to, &ev);
		if (to != ud && to->base.qp.srq)
			siw_device_srq_raise_limit_event_if_low(to->base.qp.srq);
		octets += ev.length;
		n++;
	}
	siw_qp_receive_turn_done(&ud->base, n, octets);
	return n;
}

static int ud_handle_socket_event(struct siw_io_handler *self)
{
	return ud_process_received_batch(siw_container(self, struct siw_ud_qp, base.qp.handler));
}

static int ud_handle_addr_sock_event(struct siw_addr_sock *end)
{
	struct siw_ud_qp *ud = end->socks->server;

	siw_ddp_dgram_set_rx_sock(ud->ddp, end->sock, &end->addr);
	return ud_process_received_batch(ud);
}

/* ---- the type -------------------------------------------------------------------------------- */

static void ud_count_polled_write_record(struct siw_qp *qp)
{
	siw_qp_write_record_note_polled_completion(siw_base_qp_of(qp),
						   &siw_ud_qp_of(siw_base_qp_of(qp))->records);
}

static void ud_discard_protocol_state(struct siw_base_qp *base)
{
	siw_qp_write_record_abandon_all(siw_ud_qp_of(base));
}

static const struct siw_rdmap_record *ud_find_write_record(struct siw_base_qp *base,
							   uint64_t number)
{
	return siw_ud_qp_of(base)->dgram
		       ? siw_rdmap_write_record_find_report(siw_ud_qp_of(base)->dgram, number)
		       : NULL;
}

const struct siw_qp_class siw_qp_ud_class = {
	.ops = {
		.turn = ud_make_sending_turn,
		.uses_key = siw_qp_uses_lkey,
		.is_quiet = siw_qp_has_empty_sq,
		.uses_ah = ud_uses_ah,
		.fail = siw_qp_fail,
		.leave = siw_qp_dgram_send_delayed_at_exit,
		.record_polled = ud_count_polled_write_record,
	},
	.size = sizeof(struct siw_ud_qp),
	.type = SIW_QPT_UD,
	.has_records = true,
	.has_errors = true,
	.shares_socket = true,
	.wait_octets = SIW_DELAY_OCTETS_DGRAM,
	.wait_requests = SIW_RDMAP_MAX_SOME,
	.lazy_slots = true,
	.failure = SIW_WC_GENERAL_ERR,
	.create = ud_create,
	.open = ud_open_socket,
	.may_destroy = ud_check_destroyable,
	.close = ud_close_socket,
	.addr = ud_get_local_addr,
	.receive = ud_configure_receiving,
	.modified = ud_apply_modified_attrs,
	.end = siw_qp_flush,
	.post = ud_post_request,
	.check = ud_check_send_wr,
	.run = ud_run_send_queue,
	.discard_state = ud_discard_protocol_state,
	.find_record = ud_find_write_record,
};
