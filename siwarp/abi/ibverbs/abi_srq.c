/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_srq.c - shared receive queues. */
#include "abi/ibverbs/abi.h"

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct siw_srq_init_attr wanted = { 0 };
	struct abi_srq *srq;
	int why;

	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_given(init, "srq_init_attr"))
		return abi_fail_null(EINVAL);
	srq = abi_alloc_object(ABI_SRQ);
	if (!srq)
		return NULL;
	wanted.srq_context = srq;
	wanted.attr.max_wr = init->attr.max_wr;
	wanted.attr.max_sge = init->attr.max_sge;
	if (wanted.attr.max_wr > 0 && wanted.attr.max_wr < ABI_MIN_WR)
		wanted.attr.max_wr = ABI_MIN_WR;
	srq->siw = siw_create_srq(((struct abi_pd *)pd)->siw, &wanted);
	why = errno;
	if (srq->siw) {
		static atomic_uint handles;

		srq->ibv.context = pd->context;
		srq->ibv.srq_context = init->srq_context;
		srq->ibv.pd = pd;
		srq->ibv.handle = atomic_fetch_add(&handles, 1) + 1;
		pthread_mutex_init(&srq->ibv.mutex, NULL);
		pthread_cond_init(&srq->ibv.cond, NULL);
		if (abi_register_handle(ABI_SRQ, srq, pd->context)) {
			init->attr.max_wr = wanted.attr.max_wr;
			init->attr.max_sge = wanted.attr.max_sge;
			return &srq->ibv;
		}
		why = ENOMEM;
		siw_destroy_srq(srq->siw);
	}
	abi_free_object(ABI_SRQ, srq);
	return abi_fail_null(why);
}

struct ibv_srq *abi_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "srq_init_attr_ex"))
		return abi_fail_null(EINVAL);
	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type != IBV_SRQT_BASIC)
		return abi_fail_null(abi_refuse(EOPNOTSUPP,
						"siwarp has no XRC and tag matching SRQs: set "
						"srq_type to IBV_SRQT_BASIC"));
	/* A basic SRQ has neither an XRC domain nor a CQ nor tag matching. */
	if (attr->comp_mask & ~(uint32_t)(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) ||
	    !(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD))
		return abi_fail_null(abi_refuse(EINVAL,
						"comp_mask is %#x: a basic SRQ has pd "
						"(IBV_SRQ_INIT_ATTR_PD), and at most its type too",
						attr->comp_mask));
	return ibv_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr);
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	if (!abi_is_live_object(ABI_SRQ, srq) || !abi_is_given(attr, "srq_attr"))
		return abi_fail(EINVAL);
	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return abi_fail(abi_refuse(EINVAL,
					   "srq_attr_mask %#x contains unknown bits: use a set of "
					   "enum ibv_srq_attr_mask",
					   mask));
	return abi_errno_of_result(
		siw_modify_srq(((struct abi_srq *)srq)->siw, (struct siw_srq_attr *)attr, mask));
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	if (!abi_is_live_object(ABI_SRQ, srq) || !abi_is_given(attr, "srq_attr"))
		return abi_fail(EINVAL);
	return abi_errno_of_result(
		siw_query_srq(((struct abi_srq *)srq)->siw, (struct siw_srq_attr *)attr));
}

int abi_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
	if (!abi_is_live_object(ABI_SRQ, srq) || !abi_is_given(srq_num, "srq_num"))
		return abi_fail(EINVAL);
	*srq_num = siw_srq_num(((struct abi_srq *)srq)->siw);
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	int r;

	if (!abi_is_live_object(ABI_SRQ, srq))
		return abi_fail(EINVAL);
	atomic_store(&((struct abi_srq *)srq)->ending, true);
	r = siw_destroy_srq(((struct abi_srq *)srq)->siw);
	if (r == 0)
		abi_mark_object_dead(ABI_SRQ, srq);
	else
		atomic_store(&((struct abi_srq *)srq)->ending, false);
	return abi_errno_of_result(r);
}

int abi_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct abi_srq *own = (struct abi_srq *)srq;
	int r = siw_post_srq_recv(own->siw, (struct siw_recv_wr *)wr,
				  (struct siw_recv_wr **)bad_wr);

	if (__builtin_expect(r == 0, 1))
		return 0;
	if (atomic_load(&own->ending))
		return abi_post_dropped();
	return r == -ENOMEM ? ENOMEM : abi_set_errno_and_log_refusal("ibv_post_srq_recv", -r);
}
