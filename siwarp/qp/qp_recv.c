/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Completion of receives, for all types of queue pairs. */
#include <errno.h>

#include "base/addr.h"
#include "qp/qp_impl.h"

/* Raises the event COMM_EST for the first message that the QP receives in state RTR. */
static inline void recv_raise_comm_est(struct siw_base_qp *base)
{
	if (__builtin_expect(atomic_load_explicit(&base->qp.state, memory_order_relaxed) ==
				     SIW_QPS_RTR,
			     0) &&
	    !base->comm_established) {
		base->comm_established = true;
		siw_device_raise_async_event(&base->qp.async, SIW_EVENT_COMM_EST);
	}
}

int siw_qp_wc_status_of_recv_event(const struct siw_rdmap_event *ev)
{
	if (__builtin_expect(ev->kind == SIW_RDMAP_RECV, 1))
		return SIW_WC_SUCCESS;
	return ev->status == -EMSGSIZE ? SIW_WC_LOC_LEN_ERR
	       : ev->status == -EPROTO ? SIW_WC_WR_FLUSH_ERR
				       : SIW_WC_LOC_PROT_ERR;
}

/*
 * Marks in the completion that the message is preceded by a GRH. The completion's service level
 * shows whether the GRH has the IPv4 or the IPv6 form.
 */
static void wc_set_grh(struct siw_wc *wc, const struct siw_addr *source)
{
	wc->byte_len += SIW_DDP_GRH;
	wc->wc_flags |= SIW_WC_GRH;
	wc->sl = source->family == AF_INET ? 10 : 9;
}

void siw_qp_add_recv_completion(struct siw_base_qp *base, const struct siw_rdmap_event *ev,
				int status, uint32_t src_qp, const struct siw_addr *source,
				uint64_t instance)
{
	struct siw_wc wc = {
		.wr_id = ev->user_data,
		.status = status,
		.opcode = SIW_WC_RECV,
		.byte_len = ev->length,
		.qp_num = atomic_load_explicit(&base->qp.qpn, memory_order_relaxed),
		.src_qp = src_qp,
	};
	struct siw_way way = { .source = source, .dest = ev->dest, .instance = instance };

	if (ev->invalidated) {
		wc.wc_flags = SIW_WC_WITH_INV;
		wc.invalidated_rkey = ev->inv_stag;
	}
	if (__builtin_expect(ev->with_imm, 0) && ev->kind == SIW_RDMAP_RECV) {
		wc.opcode = ev->of_write ? SIW_WC_RECV_RDMA_WITH_IMM : SIW_WC_RECV;
		wc.wc_flags = SIW_WC_WITH_IMM;
		wc.imm_data = ev->imm;
	}
	if (__builtin_expect(base->grh, 0) && ev->kind == SIW_RDMAP_RECV)
		wc_set_grh(&wc, source);
	siw_device_cq_add_completion(&base->qp, base->qp.recv_cq, &wc, source ? &way : NULL,
				     ++base->rq_done, ev->solicited);
	recv_raise_comm_est(base);
}

void siw_qp_write_record_add_completion(struct siw_base_qp *base,
					const struct siw_rdmap_record *rec, uint64_t instance)
{
	struct siw_wc wc = {
		.wr_id = rec->number,
		.opcode = SIW_WC_RECV_WRITE_RECORD,
		.byte_len = rec->length,
		.qp_num = atomic_load_explicit(&base->qp.qpn, memory_order_relaxed),
		.src_qp = rec->src_qpn,
	};
	struct siw_way way = { .source = &rec->source, .instance = instance };

	siw_device_cq_add_completion(&base->qp, base->qp.recv_cq, &wc, &way, base->rq_done,
				     rec->solicited);
	recv_raise_comm_est(base);
}

void siw_qp_add_flushed_recv_completion(struct siw_base_qp *base, uint64_t wr_id)
{
	struct siw_wc wc = { .wr_id = wr_id,
			     .status = SIW_WC_WR_FLUSH_ERR,
			     .opcode = SIW_WC_RECV,
			     .vendor_err = base->wire_err,
			     .qp_num = base->qp.qpn };

	siw_device_cq_add_completion(&base->qp, base->qp.recv_cq, &wc, NULL, ++base->rq_done,
				     false);
}

/*
 * has_unexpected is set under the lock that posts hold, so that either the post sees
 * has_unexpected, or the thread that resumes receiving sees the posted receive.
 */
void siw_qp_set_messages_waiting(struct siw_base_qp *base, bool any)
{
	struct siw_qp *qp = &base->qp;

	siw_lock(&qp->recv_lock);
	qp->has_unexpected = any;
	siw_unlock(&qp->recv_lock);
	if (!qp->srq)
		return;
	siw_lock(&qp->srq->lock);
	siw_link_del(&qp->in_srq);
	if (any)
		siw_link_add(&qp->srq->waiting, &qp->in_srq);
	siw_unlock(&qp->srq->lock);
}
