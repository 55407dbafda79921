/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UC queue pairs: one peer, messages of any length, and no word about what is lost on the way. A request lies in
 * the ring until UDP has taken all of it.
 */
#include <errno.h>

#include "base/addr.h"
#include "ddp/ddp_uc.h"
#include "rdmap/rdmap_uc.h"
#include "qp/qp_impl.h"

static int serve(struct siw_io_handler *self);

static void close_socket(struct siw_wq *wq)
{
	struct siw_uc *uc = siw_uc_of(wq);

	if (!uc->end)
		return;
	siw_rdmap_uc_close(uc->end);
	siw_llp_close(uc->sock);
	uc->end = NULL;
	uc->ddp = NULL;
	uc->sock = NULL;
}

static int open_socket(struct siw_wq *wq, const struct siw_addr *addr, int fd)
{
	struct siw_context *ctx = wq->qp.ctx;
	struct siw_uc *uc = siw_uc_of(wq);
	struct siw_rdmap_uc *end;
	struct siw_llp_sock *sock;
	struct siw_ddp_uc *ddp;
	struct siw_addr bound;
	int err = siw_qp_open_udp(wq, addr, fd, &sock);

	if (err)
		return err;
	err = siw_ddp_uc_open(ctx->port, ctx->mem, sock, !wq->no_crc, &ddp);
	if (err)
		goto close_sock;
	err = siw_rdmap_uc_open(ddp, &end);
	if (err)
		goto close_ddp;
	siw_llp_local(sock, &bound);
	close_socket(wq);
	uc->sock = sock;
	uc->ddp = ddp;
	uc->end = end;
	wq->qp.handler.serve = serve;
	atomic_store(&wq->qp.qpn, siw_addr_port(&bound));
	return 0;

close_ddp:
	siw_ddp_uc_close(ddp);
close_sock:
	siw_llp_close(sock);
	return err;
}

static int create(struct siw_wq *wq, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr;
	int err = siw_qp_first_addr(wq, &init->addr, &addr);

	return err ? err : open_socket(wq, &addr, -1);
}

static int addr_of(struct siw_wq *wq, struct siw_addr *own, struct siw_addr *peer)
{
	const struct siw_uc *uc = siw_uc_of(wq);

	if (!uc->end)
		return -ENOTCONN;
	*peer = uc->peer;
	return siw_llp_local(uc->sock, own);
}

/* ---- the path -------------------------------------------------------------------------------- */

#define LEAST_MTU 256

/* enum ibv_mtu: 1 is 256 octets, 5 is 4096. */
static uint32_t octets_of(int path_mtu)
{
	return path_mtu >= 1 && path_mtu <= 5 ? 128u << path_mtu : (uint32_t)path_mtu;
}

static bool mtu_valid(int path_mtu)
{
	return path_mtu == 0 || (octets_of(path_mtu) >= LEAST_MTU && path_mtu <= 65535);
}

static int take_peer(struct siw_uc *uc, const struct siw_qp_attr *attr, int mask)
{
	struct siw_addr peer = attr->ah_addr;
	uint32_t psn = mask & SIW_QP_RQ_PSN ? attr->rq_psn : 0;
	uint32_t payload = mask & SIW_QP_PATH_MTU ? octets_of(attr->path_mtu) : 0;
	int err;

	if (!(mask & SIW_QP_AV))
		return siw_refuse(UC_PEER);
	if ((mask & SIW_QP_DEST_QPN) && attr->dest_qp_num)
		peer.port_be = htons((uint16_t)attr->dest_qp_num);
	if (!siw_addr_len(&peer))
		return siw_refuse(ADDRESS_FAMILY, peer.family);
	if (!peer.port_be)
		return siw_refuse(UC_PORT);
	siw_lock(&uc->wq.qp.send_lock);
	err = siw_rdmap_uc_connect(uc->end, &peer, psn, payload);
	if (!err) {
		uc->peer = peer;
		uc->dest_qpn = mask & SIW_QP_DEST_QPN ? attr->dest_qp_num : 0;
		if (!uc->dest_qpn)
			uc->dest_qpn = siw_addr_port(&peer);
	}
	siw_unlock(&uc->wq.qp.send_lock);
	return err == -EAFNOSUPPORT ? siw_refuse(UC_FAMILY) : err;
}

static int prepare(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask)
{
	struct siw_uc *uc = siw_uc_of(wq);

	if ((mask & SIW_QP_PATH_MTU) && !mtu_valid(attr->path_mtu))
		return siw_refuse(QP_PATH_MTU, (uint64_t)attr->path_mtu);
	if (event == SIW_QPE_TO_RTR)
		return take_peer(uc, attr, mask);
	if (event == SIW_QPE_TO_RTS && uc->wq.qp.state == SIW_QPS_RTR) {
		siw_lock(&uc->wq.qp.send_lock);
		siw_ddp_uc_number(uc->ddp, mask & SIW_QP_SQ_PSN ? attr->sq_psn : 0);
		siw_unlock(&uc->wq.qp.send_lock);
	}
	/* What only waits for company counts as begun. */
	siw_qp_finish(wq);
	return 0;
}

static void receive(struct siw_wq *wq)
{
	struct siw_uc *uc = siw_uc_of(wq);
	bool on = uc->wq.qp.state >= SIW_QPS_RTR && uc->wq.qp.state <= SIW_QPS_SQE;
	struct siw_rdmap_uc_start start = {
		.recvs = on ? uc->wq.recvs : NULL,
		.pd = uc->wq.qp.pd->number,
		.qkey = uc->wq.qkey,
		.denied = ~(uint32_t)uc->wq.access,
		.owner = siw_verbs_owner(&uc->wq.qp),
	};

	/* Sending reads these too. */
	siw_lock(&uc->wq.qp.send_lock);
	siw_rdmap_uc_start(uc->end, &start);
	if (uc->wq.qp.state == SIW_QPS_RESET)
		uc->peer = (struct siw_addr){ 0 };
	siw_unlock(&uc->wq.qp.send_lock);
}

static void query_init(const struct siw_wq *wq, struct siw_qp_init_attr *init)
{
	if (siw_uc_of(wq)->sock)
		siw_llp_local(siw_uc_of(wq)->sock, &init->addr);
}

static void query_attr(const struct siw_wq *wq, struct siw_qp_attr *attr)
{
	const struct siw_uc *uc = siw_uc_of(wq);

	if (!uc->end || !uc->peer.family)
		return;
	attr->ah_addr = uc->peer;
	attr->dest_qp_num = uc->dest_qpn;
	attr->path_mtu = (int)siw_ddp_uc_payload(uc->ddp);
	siw_ddp_uc_numbers(uc->ddp, &attr->rq_psn, &attr->sq_psn);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool with_imm(int opcode)
{
	return opcode == SIW_WR_SEND_WITH_IMM || opcode == SIW_WR_RDMA_WRITE_WITH_IMM;
}

static bool writes(int opcode)
{
	return opcode == SIW_WR_RDMA_WRITE || opcode == SIW_WR_RDMA_WRITE_WITH_IMM;
}

static int64_t check(const struct siw_uc *uc, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED |
				   SIW_SEND_INLINE;
	uint64_t length = 0;

	if (wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_RDMA_WRITE && !with_imm(wr->opcode))
		return siw_qp_refuse_opcode(&uc->wq, wr->opcode);
	if (wr->send_flags & ~known)
		return siw_refuse(SEND_FLAGS, wr->send_flags);
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return siw_qp_check_length(&uc->wq, wr, length);
}

static void flush_sends(struct siw_uc *uc)
{
	while (uc->wq.sq_head != uc->wq.sq_tail)
		siw_qp_wqe_finish(&uc->wq, siw_qp_wqe(&uc->wq, uc->wq.sq_head), SIW_WC_WR_FLUSH_ERR,
				  0);
	uc->wq.sq_next = uc->wq.sq_head;
}

static int post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait)
{
	struct siw_uc *uc = siw_uc_of(wq);
	int64_t length;
	struct siw_wqe *wqe;
	int err;

	(void)wait; /* all of them lie in the ring until they are run */
	if (__builtin_expect(siw_qp_is_local(wr->opcode), 0)) {
		err = siw_qp_mw_post(&uc->wq, wr, SIW_MW_TYPE_2);
		if (!err && uc->wq.qp.state == SIW_QPS_SQE)
			flush_sends(uc);
		return err;
	}
	length = check(uc, wr);
	if (length < 0)
		return (int)length;
	wqe = siw_qp_wqe_put(&uc->wq, wr, (uint64_t)length);
	if (!wqe)
		return siw_qp_refuse_slot(&uc->wq);
	wqe->remote = wr->wr.rdma.remote_addr;
	wqe->rkey = wr->wr.rdma.rkey;
	wqe->imm = wr->imm_data;
	if (__builtin_expect(uc->wq.qp.state == SIW_QPS_SQE, 0))
		flush_sends(uc);
	else if (__builtin_expect(uc->wq.qp.state == SIW_QPS_ERR, 0))
		siw_qp_flush_late_send(&uc->wq);
	return 0;
}

static void mark(struct siw_uc *uc, struct siw_wqe *wqe, int err)
{
	wqe->state = SIW_WQE_DONE;
	wqe->status = err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR : SIW_WC_GENERAL_ERR;
	/* A mistake of this end's own stops the queue; what the network refused is as if it were lost. */
	if (wqe->status == SIW_WC_LOC_PROT_ERR)
		siw_tear(&uc->wq, SIW_FAILING);
}

/* What happens at this end alone is done when it begins; as begin_next. */
static __attribute__((cold, noinline)) int begin_local(struct siw_uc *uc, struct siw_wqe *wqe)
{
	int r = siw_qp_mw_begin(&uc->wq, wqe);

	if (r == -EINPROGRESS)
		return -EAGAIN;
	if (!r) {
		siw_qp_did_local(&uc->wq);
		return 0;
	}
	uc->wq.sq_next++;
	wqe->state = SIW_WQE_DONE;
	wqe->status = (uint8_t)r;
	siw_tear(&uc->wq, SIW_FAILING);
	return r;
}

static int begin_sent(struct siw_uc *uc, struct siw_wqe *wqe)
{
	struct siw_rdmap_op op = {
		.opcode = writes(wqe->opcode)		    ? SIW_RDMAP_WRITE
			  : wqe->flags & SIW_SEND_SOLICITED ? SIW_RDMAP_SEND_SE
							    : SIW_RDMAP_SEND,
		.internal = wqe->flags & SIW_SEND_INLINE,
		.sgl = wqe->sge,
		.nsge = wqe->nsge,
		.length = wqe->length,
		.rkey = wqe->rkey,
		.remote_to = wqe->remote,
	};
	int err;

	if (__builtin_expect(with_imm(wqe->opcode), 0)) {
		op.imm_opcode = wqe->flags & SIW_SEND_SOLICITED ? SIW_RDMAP_IMMEDIATE_SE
								: SIW_RDMAP_IMMEDIATE;
		op.imm = wqe->imm;
	}
	err = siw_rdmap_uc_send(uc->end, &op);
	if (err == -EAGAIN)
		return err;
	uc->wq.sq_next++;
	wqe->seq = siw_rdmap_uc_begun(uc->end);
	wqe->state = SIW_WQE_BEGUN;
	if (err)
		mark(uc, wqe, err);
	return err;
}

/* Begins the next request: 0, or not 0 when nothing more can begin now. */
static int begin_next(struct siw_uc *uc)
{
	struct siw_wqe *wqe = siw_qp_wqe(&uc->wq, uc->wq.sq_next);

	return __builtin_expect(siw_qp_is_local(wqe->opcode), 0) ? begin_local(uc, wqe)
								 : begin_sent(uc, wqe);
}

static bool may_begin(const struct siw_uc *uc)
{
	return uc->wq.qp.state == SIW_QPS_RTS && siw_teardown_of(&uc->wq) == SIW_ALIVE &&
	       uc->wq.sq_next != uc->wq.sq_tail;
}

/* Begins requests, a turn's worth. */
static void begin_some(struct siw_uc *uc)
{
	uint64_t octets = 0;

	while (may_begin(uc) && octets < SIW_TURN_OCTETS) {
		octets += siw_qp_wqe(&uc->wq, uc->wq.sq_next)->length;
		if (begin_next(uc))
			break;
	}
}

/* The network refused something of these requests. */
static __attribute__((cold, noinline)) void mark_refused(struct siw_uc *uc, uint64_t first,
							 uint64_t last)
{
	for (uint32_t i = uc->wq.sq_head; i != uc->wq.sq_next; i++) {
		struct siw_wqe *wqe = siw_qp_wqe(&uc->wq, i);

		if (wqe->state == SIW_WQE_BEGUN && wqe->seq >= first && wqe->seq <= last)
			mark(uc, wqe, -EIO);
	}
}

/* The last request that was begun could not go on. */
static __attribute__((cold, noinline)) void mark_last(struct siw_uc *uc, int err)
{
	struct siw_wqe *wqe = siw_qp_wqe(&uc->wq, uc->wq.sq_next - 1);

	if (uc->wq.sq_next != uc->wq.sq_head && wqe->state == SIW_WQE_BEGUN)
		mark(uc, wqe, err);
}

/* Everything before it is complete: to SQE, as verbs has it. */
static __attribute__((cold, noinline)) void fail(struct siw_uc *uc, struct siw_wqe *wqe)
{
	siw_set_teardown(&uc->wq, SIW_ALIVE);
	siw_qp_send_failed(
		&uc->wq); /* before the completion, so that who polls it sees the state */
	siw_qp_wqe_finish(&uc->wq, wqe, wqe->status, 0);
	siw_rdmap_uc_cut(uc->end);
	flush_sends(uc);
}

/* Completes, in order, what UDP has. */
static void reap(struct siw_uc *uc)
{
	uint64_t accepted = siw_ddp_uc_accepted(uc->ddp);

	while (uc->wq.sq_head != uc->wq.sq_next) {
		struct siw_wqe *wqe = siw_qp_wqe(&uc->wq, uc->wq.sq_head);

		if (wqe->state == SIW_WQE_BEGUN && wqe->seq > accepted)
			return;
		if (wqe->state == SIW_WQE_BEGUN) {
			siw_qp_wqe_finish(&uc->wq, wqe, SIW_WC_SUCCESS, 0);
		} else if (wqe->status == SIW_WC_LOC_PROT_ERR ||
			   wqe->status == SIW_WC_MW_BIND_ERR) {
			fail(uc, wqe);
			return;
		} else {
			siw_qp_wqe_finish(&uc->wq, wqe, wqe->status, 0);
		}
	}
}

static enum siw_run run(struct siw_wq *wq)
{
	struct siw_uc *uc = siw_uc_of(wq);
	uint64_t first, last;
	int r;

	if (!uc->end || uc->wq.sq_head == uc->wq.sq_tail)
		return SIW_RUN_DONE;
	begin_some(uc);
	r = siw_rdmap_uc_flush(uc->end);
	if (r < 0)
		mark_last(uc, r);
	if (__builtin_expect(siw_rdmap_uc_refused(uc->end, &first, &last), 0)) {
		mark_refused(uc, first, last);
		r = siw_rdmap_uc_flush(uc->end);
	}
	reap(uc);
	if (__builtin_expect(uc->wq.draining, 0))
		siw_qp_drained(&uc->wq);
	if (uc->wq.sq_head == uc->wq.sq_next && !may_begin(uc))
		return SIW_RUN_DONE;
	return siw_ddp_uc_tx_blocked(uc->ddp) ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
}

static enum siw_turn turn(struct siw_qp *qp, uint64_t round)
{
	struct siw_wq *wq = siw_wq_of(qp);
	enum siw_run left;
	uint32_t head;
	bool due;

	(void)round;
	siw_lock(&qp->send_lock);
	head = wq->sq_head;
	left = run(wq);
	head -= wq->sq_head;
	due = wq->revoke.due;
	siw_unlock(&qp->send_lock);
	if (__builtin_expect(due, 0))
		siw_qp_mw_settle(wq, false);
	return siw_qp_turn_of(left, head);
}

static bool ring_uses_key(struct siw_wq *wq, uint32_t lkey)
{
	const struct siw_uc *uc = siw_uc_of(wq);

	return siw_qp_sq_uses_key(wq, lkey, uc->end ? siw_ddp_uc_accepted(uc->ddp) : 0);
}

static bool uses_key(struct siw_qp *qp, uint32_t lkey)
{
	return siw_qp_still_uses(siw_wq_of(qp), ring_uses_key, lkey);
}

static void abandon(struct siw_wq *wq, bool report)
{
	(void)report;
	if (siw_uc_of(wq)->end)
		siw_rdmap_uc_cut(siw_uc_of(wq)->end);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static int serve(struct siw_io_handler *self)
{
	struct siw_uc *uc = siw_container(self, struct siw_uc, wq.qp.handler);
	struct siw_rdmap_event ev;
	uint32_t octets = 0, more;
	int n = 0, got = 1;

	while (got && n < uc->wq.burst && octets < SIW_TURN_OCTETS) {
		got = siw_rdmap_uc_recv(uc->end, &ev, &more);
		if (got)
			siw_qp_received(&uc->wq, &ev, siw_qp_recv_status(&ev), uc->dest_qpn, NULL);
		octets += more;
		n += got;
	}
	siw_qp_next_burst(&uc->wq, octets < SIW_TURN_OCTETS ? n : uc->wq.burst);
	if (uc->wq.qp.srq)
		siw_verbs_srq_taken(uc->wq.qp.srq);
	/* Segments without a completion were moved too: nobody sleeps while they come. */
	return n + (octets != 0);
}

/* ---- the type -------------------------------------------------------------------------------- */

static void settle(struct siw_qp *qp)
{
	siw_qp_mw_settle(siw_wq_of(qp), false);
}

static int take_recv(struct siw_wq *wq, uint64_t *wr_id)
{
	return siw_uc_of(wq)->end ? siw_ddp_uc_give(siw_uc_of(wq)->ddp, wr_id) : 0;
}

const struct siw_qp_class siw_qp_uc_class = {
	.ops = {
		.owns_regions = true,
		.turn = turn,
		.uses_key = uses_key,
		.settle = settle,
		.fail = siw_qp_fail,
		.leave = siw_qp_leave,
	},
	.size = sizeof(struct siw_uc),
	.type = SIW_QPT_UC,
	.has_errors = true,
	.may_wait = true,
	.binds = true,
	.has_rights = true,
	.create = create,
	.open = open_socket,
	.close = close_socket,
	.addr = addr_of,
	.query_attr = query_attr,
	.query_init = query_init,
	.prepare = prepare,
	.receive = receive,
	.settle = siw_qp_finish,
	.end = siw_qp_flush,
	.post = post,
	.run = run,
	.abandon = abandon,
	.take_recv = take_recv,
};
