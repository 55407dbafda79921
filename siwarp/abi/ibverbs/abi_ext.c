/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_ext.c - <siwarp/ibv_ext.h>: access to the engine objects behind verbs objects. */
#include "abi/ibverbs/abi.h"

#define SIWARP_IBV_EXT_DEFINES
#include <siwarp/ibv_ext.h>

struct siw_context *siw_ibv_context(struct ibv_context *context)
{
	return abi_is_live_object(ABI_CONTEXT, context) ? abi_context_of(context)->siw : NULL;
}

struct siw_pd *siw_ibv_pd(struct ibv_pd *pd)
{
	return abi_is_live_object(ABI_PD, pd) ? ((struct abi_pd *)pd)->siw : NULL;
}

struct siw_mr *siw_ibv_mr(struct ibv_mr *mr)
{
	return abi_is_live_object(ABI_MR, mr) ? ((struct abi_mr *)mr)->siw : NULL;
}

struct siw_cq *siw_ibv_cq(struct ibv_cq *cq)
{
	return abi_is_live_object(ABI_CQ, cq) ? abi_cq_of(cq)->siw : NULL;
}

struct siw_qp *siw_ibv_qp(struct ibv_qp *qp)
{
	return abi_is_live_object(ABI_QP, qp) ? abi_qp_of(qp)->siw : NULL;
}

struct siw_srq *siw_ibv_srq(struct ibv_srq *srq)
{
	return abi_is_live_object(ABI_SRQ, srq) ? ((struct abi_srq *)srq)->siw : NULL;
}

struct siw_ah *siw_ibv_ah(struct ibv_ah *ah)
{
	return abi_is_live_object(ABI_AH, ah) ? (struct siw_ah *)ah : NULL;
}

struct ibv_qp *siw_ibv_create_cm_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	return abi_create_cm_qp(context, attr);
}

void siw_ibv_pd_of_ids(struct ibv_pd *pd)
{
	if (abi_is_live_object(ABI_PD, pd))
		((struct abi_pd *)pd)->of_ids = true;
}

void siw_ibv_show_attr(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	if (abi_is_live_object(ABI_QP, qp))
		abi_store_qp_attr(abi_qp_of(qp), attr, mask);
}

struct wanted_qp {
	struct ibv_context *context;
	uint32_t number;
};

static bool qp_has_number(void *handle, const void *arg)
{
	const struct wanted_qp *wanted = arg;
	const struct ibv_qp *qp = handle;

	return qp->context == wanted->context && qp->qp_num == wanted->number;
}

struct ibv_qp *siw_ibv_find_qp(struct ibv_context *context, uint32_t qp_num)
{
	const struct wanted_qp wanted = { context, qp_num };

	return abi_find_object(ABI_QP, qp_has_number, &wanted);
}

struct ibv_qp *siw_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
				 const struct siw_qp_init_attr *more)
{
	return more ? abi_create_qp(pd, init, more) : ibv_create_qp(pd, init);
}
