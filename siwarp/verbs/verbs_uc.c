/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UC queue pairs: one peer, messages of any length, and no word about what is lost on the way. A request lies in
 * the ring until UDP has taken all of it.
 */
#include <errno.h>

#include "base/addr.h"
#include "rdmap/rdmap_uc.h"
#include "verbs/verbs_impl.h"

static int serve(struct siw_pollee *self);

int siw_verbs_uc_open(struct siw_qp *qp, const struct siw_addr *addr, int fd)
{
	struct siw_rdmap_dgram_attr attr = { .fd = fd, .no_crc = qp->no_crc, .token = &qp->pollee };
	struct siw_rdmap_uc *uc;
	struct siw_addr bound;
	int err;

	if (addr)
		attr.local = *addr;
	err = siw_rdmap_uc_open(qp->ctx->port, &attr, &uc);
	if (err)
		return err;
	siw_rdmap_uc_addr(uc, &bound);
	siw_verbs_uc_close(qp);
	qp->uc = uc;
	qp->pollee.serve = serve;
	atomic_store(&qp->qpn, siw_addr_port(&bound));
	return 0;
}

void siw_verbs_uc_close(struct siw_qp *qp)
{
	if (qp->uc)
		siw_rdmap_uc_close(qp->uc);
	qp->uc = NULL;
}

/* ---- the path -------------------------------------------------------------------------------- */

#define LEAST_MTU 256

/* enum ibv_mtu: 1 is 256 octets, 5 is 4096. */
static uint32_t octets_of(int path_mtu)
{
	return path_mtu >= 1 && path_mtu <= 5 ? 128u << path_mtu : (uint32_t)path_mtu;
}

bool siw_verbs_uc_mtu_valid(int path_mtu)
{
	return path_mtu == 0 || (octets_of(path_mtu) >= LEAST_MTU && path_mtu <= 65535);
}

static int take_peer(struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	struct siw_addr peer = attr->ah_addr;
	uint32_t psn = mask & SIW_QP_RQ_PSN ? attr->rq_psn : 0;
	uint32_t payload = mask & SIW_QP_PATH_MTU ? octets_of(attr->path_mtu) : 0;
	int err;

	if (!(mask & SIW_QP_AV))
		return -EINVAL;
	if ((mask & SIW_QP_DEST_QPN) && attr->dest_qp_num)
		peer.port_be = htons((uint16_t)attr->dest_qp_num);
	if (!peer.port_be || !siw_addr_len(&peer))
		return -EINVAL;
	siw_lock(&qp->send_lock);
	err = siw_rdmap_uc_connect(qp->uc, &peer, psn, payload);
	if (!err) {
		qp->peer = peer;
		qp->dest_qpn = mask & SIW_QP_DEST_QPN ? attr->dest_qp_num : 0;
		if (!qp->dest_qpn)
			qp->dest_qpn = siw_addr_port(&peer);
	}
	siw_unlock(&qp->send_lock);
	return err;
}

int siw_verbs_uc_prepare(struct siw_qp *qp, int event, const struct siw_qp_attr *attr, int mask)
{
	if (event == SIW_QPE_TO_RTR)
		return take_peer(qp, attr, mask);
	if (event == SIW_QPE_TO_RTS && qp->state == SIW_QPS_RTR) {
		siw_lock(&qp->send_lock);
		siw_rdmap_uc_number(qp->uc, mask & SIW_QP_SQ_PSN ? attr->sq_psn : 0);
		siw_unlock(&qp->send_lock);
	}
	return 0;
}

void siw_verbs_uc_receive(struct siw_qp *qp)
{
	bool on = qp->state >= SIW_QPS_RTR && qp->state <= SIW_QPS_SQE;
	struct siw_rdmap_uc_start start = {
		.recvs = on ? qp->recvs : NULL,
		.pd = qp->pd->number,
		.qkey = qp->qkey,
		.denied = ~(uint32_t)qp->access,
		.owner = siw_verbs_owner(qp),
	};

	/* Sending reads these too. */
	siw_lock(&qp->send_lock);
	siw_rdmap_uc_start(qp->uc, &start);
	if (qp->state == SIW_QPS_RESET)
		qp->peer = (struct siw_addr){ 0 };
	siw_unlock(&qp->send_lock);
}

void siw_verbs_uc_query(const struct siw_qp *qp, struct siw_qp_attr *attr)
{
	if (!qp->peer.family)
		return;
	attr->ah_addr = qp->peer;
	attr->dest_qp_num = qp->dest_qpn;
	attr->path_mtu = (int)siw_rdmap_uc_payload(qp->uc);
	siw_rdmap_uc_numbers(qp->uc, &attr->rq_psn, &attr->sq_psn);
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

static int64_t check(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED |
				   SIW_SEND_INLINE;
	uint64_t length = 0;

	if (wr->send_flags & ~known)
		return -EINVAL;
	if (wr->opcode != SIW_WR_SEND && wr->opcode != SIW_WR_RDMA_WRITE && !with_imm(wr->opcode))
		return -EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > SIW_MAX_RC_MSG)
		return -EINVAL;
	if ((wr->send_flags & SIW_SEND_INLINE) && length > qp->cap.max_inline_data)
		return -EINVAL;
	return (int64_t)length;
}

static void flush_sends(struct siw_qp *qp)
{
	while (qp->sq_head != qp->sq_tail)
		siw_verbs_wqe_finish(qp, siw_verbs_wqe(qp, qp->sq_head), SIW_WC_WR_FLUSH_ERR, 0);
	qp->sq_next = qp->sq_head;
}

int siw_verbs_uc_post(struct siw_qp *qp, const struct siw_send_wr *wr)
{
	int64_t length;
	struct siw_wqe *wqe;
	int err;

	if (__builtin_expect(siw_verbs_is_local(wr->opcode), 0)) {
		err = siw_verbs_mw_post(qp, wr, SIW_MW_TYPE_2);
		if (!err && qp->state == SIW_QPS_SQE)
			flush_sends(qp);
		return err;
	}
	length = check(qp, wr);
	if (length < 0)
		return (int)length;
	wqe = siw_verbs_wqe_put(qp, wr, (uint64_t)length);
	if (!wqe)
		return -ENOMEM;
	wqe->remote = wr->wr.rdma.remote_addr;
	wqe->rkey = wr->wr.rdma.rkey;
	wqe->imm = wr->imm_data;
	if (__builtin_expect(qp->state == SIW_QPS_SQE, 0))
		flush_sends(qp);
	else if (__builtin_expect(qp->state == SIW_QPS_ERR, 0))
		siw_verbs_flush_late_send(qp);
	return 0;
}

static void mark(struct siw_qp *qp, struct siw_wqe *wqe, int err)
{
	wqe->state = SIW_WQE_DONE;
	wqe->status = err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR : SIW_WC_GENERAL_ERR;
	/* A mistake of this end's own stops the queue; what the network refused is as if it were lost. */
	qp->failing |= wqe->status == SIW_WC_LOC_PROT_ERR;
}

/* What happens at this end alone is done when it begins; as begin_next. */
static __attribute__((cold, noinline)) int begin_local(struct siw_qp *qp, struct siw_wqe *wqe)
{
	int r = siw_verbs_mw_begin(qp, wqe);

	if (r == -EINPROGRESS)
		return -EAGAIN;
	if (!r) {
		siw_verbs_rc_did_local(qp);
		return 0;
	}
	qp->sq_next++;
	wqe->state = SIW_WQE_DONE;
	wqe->status = (uint8_t)r;
	qp->failing = true;
	return r;
}

static int begin_sent(struct siw_qp *qp, struct siw_wqe *wqe)
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
	err = siw_rdmap_uc_send(qp->uc, &op);
	if (err == -EAGAIN)
		return err;
	qp->sq_next++;
	wqe->seq = siw_rdmap_uc_begun(qp->uc);
	wqe->state = SIW_WQE_BEGUN;
	if (err)
		mark(qp, wqe, err);
	return err;
}

/* Begins the next request: 0, or not 0 when nothing more can begin now. */
static int begin_next(struct siw_qp *qp)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_next);

	return __builtin_expect(siw_verbs_is_local(wqe->opcode), 0) ? begin_local(qp, wqe)
								    : begin_sent(qp, wqe);
}

static bool may_begin(const struct siw_qp *qp)
{
	return qp->state == SIW_QPS_RTS && !qp->failing && qp->sq_next != qp->sq_tail;
}

/* Begins requests, a turn's worth. */
static void begin_some(struct siw_qp *qp)
{
	uint64_t octets = 0;

	while (may_begin(qp) && octets < SIW_TURN_OCTETS) {
		octets += siw_verbs_wqe(qp, qp->sq_next)->length;
		if (begin_next(qp))
			break;
	}
}

/* The network refused something of these requests. */
static __attribute__((cold, noinline)) void mark_refused(struct siw_qp *qp, uint64_t first,
							 uint64_t last)
{
	for (uint32_t i = qp->sq_head; i != qp->sq_next; i++) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, i);

		if (wqe->state == SIW_WQE_BEGUN && wqe->seq >= first && wqe->seq <= last)
			mark(qp, wqe, -EIO);
	}
}

/* The last request that was begun could not go on. */
static __attribute__((cold, noinline)) void mark_last(struct siw_qp *qp, int err)
{
	struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_next - 1);

	if (qp->sq_next != qp->sq_head && wqe->state == SIW_WQE_BEGUN)
		mark(qp, wqe, err);
}

/* Everything before it is complete: to SQE, as verbs has it. */
static __attribute__((cold, noinline)) void fail(struct siw_qp *qp, struct siw_wqe *wqe)
{
	qp->failing = false;
	siw_verbs_qp_send_failed(
		qp); /* before the completion, so that who polls it sees the state */
	siw_verbs_wqe_finish(qp, wqe, wqe->status, 0);
	siw_rdmap_uc_cut(qp->uc);
	flush_sends(qp);
}

/* Completes, in order, what UDP has. */
static void reap(struct siw_qp *qp)
{
	uint64_t accepted = siw_rdmap_uc_accepted(qp->uc);

	while (qp->sq_head != qp->sq_next) {
		struct siw_wqe *wqe = siw_verbs_wqe(qp, qp->sq_head);

		if (wqe->state == SIW_WQE_BEGUN && wqe->seq > accepted)
			return;
		if (wqe->state == SIW_WQE_BEGUN) {
			siw_verbs_wqe_finish(qp, wqe, SIW_WC_SUCCESS, 0);
		} else if (wqe->status == SIW_WC_LOC_PROT_ERR ||
			   wqe->status == SIW_WC_MW_BIND_ERR) {
			fail(qp, wqe);
			return;
		} else {
			siw_verbs_wqe_finish(qp, wqe, wqe->status, 0);
		}
	}
}

enum siw_run siw_verbs_uc_run(struct siw_qp *qp)
{
	uint64_t first, last;
	int r;

	if (!qp->uc || qp->sq_head == qp->sq_tail)
		return SIW_RUN_DONE;
	begin_some(qp);
	r = siw_rdmap_uc_flush(qp->uc);
	if (r < 0)
		mark_last(qp, r);
	if (__builtin_expect(siw_rdmap_uc_refused(qp->uc, &first, &last), 0)) {
		mark_refused(qp, first, last);
		r = siw_rdmap_uc_flush(qp->uc);
	}
	reap(qp);
	if (__builtin_expect(qp->draining, 0))
		siw_verbs_qp_drained(qp);
	if (qp->sq_head == qp->sq_next && !may_begin(qp))
		return SIW_RUN_DONE;
	return siw_rdmap_uc_blocked(qp->uc) ? SIW_RUN_BLOCKED : SIW_RUN_MORE;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void complete_recv(struct siw_qp *qp, const struct siw_rdmap_event *ev)
{
	struct siw_wc wc = {
		.wr_id = ev->cookie,
		.opcode = SIW_WC_RECV,
		.byte_len = ev->length,
		.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		.src_qp = qp->dest_qpn,
	};

	if (ev->kind == SIW_RDMAP_BAD_RECV)
		wc.status = ev->status == -EMSGSIZE ? SIW_WC_LOC_LEN_ERR : SIW_WC_LOC_PROT_ERR;
	if (__builtin_expect(ev->with_imm, 0) && ev->kind == SIW_RDMAP_RECV) {
		wc.opcode = ev->of_write ? SIW_WC_RECV_RDMA_WITH_IMM : SIW_WC_RECV;
		wc.wc_flags = SIW_WC_WITH_IMM;
		wc.imm_data = ev->imm;
	}
	siw_verbs_complete(qp, qp->recv_cq, &wc, NULL, ev->solicited);
	siw_verbs_heard(qp);
}

static int serve(struct siw_pollee *self)
{
	struct siw_qp *qp = siw_container(self, struct siw_qp, pollee);
	struct siw_rdmap_event ev;
	uint32_t octets = 0, more;
	int n = 0, got = 1;

	while (got && n < qp->burst && octets < SIW_TURN_OCTETS) {
		got = siw_rdmap_uc_recv(qp->uc, &ev, &more);
		if (got)
			complete_recv(qp, &ev);
		octets += more;
		n += got;
	}
	siw_verbs_next_burst(qp, octets < SIW_TURN_OCTETS ? n : qp->burst);
	if (qp->srq)
		siw_verbs_srq_taken(qp->srq);
	/* Segments without a completion were moved too: nobody sleeps while they come. */
	return n + (octets != 0);
}
