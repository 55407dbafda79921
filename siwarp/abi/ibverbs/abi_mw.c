/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_mw.c - memory windows. */
#include "abi/ibverbs/abi.h"

struct ibv_mw *abi_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct abi_mw *mw;
	int why;

	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	mw = abi_alloc_object(ABI_MW);
	if (!mw)
		return NULL;
	mw->siw = siw_alloc_mw(((struct abi_pd *)pd)->siw, (int)type);
	why = errno;
	if (mw->siw) {
		mw->ibv = (struct ibv_mw){
			.context = pd->context,
			.pd = pd,
			.rkey = mw->siw->rkey,
			.handle = mw->siw->handle,
			.type = type,
		};
		if (abi_register_handle(ABI_MW, mw, pd->context))
			return &mw->ibv;
		why = ENOMEM;
		siw_dealloc_mw(mw->siw);
	}
	abi_free_object(ABI_MW, mw);
	return abi_fail_null(why);
}

int abi_dealloc_mw(struct ibv_mw *mw)
{
	int r;

	if (!abi_is_live_object(ABI_MW, mw))
		return abi_fail(EINVAL);
	r = siw_dealloc_mw(((struct abi_mw *)mw)->siw);
	if (r == 0)
		abi_mark_object_dead(ABI_MW, mw);
	return abi_errno_of_result(r);
}

int abi_convert_bind_info(const struct ibv_mw_bind_info *from, struct siw_mw_bind_info *to)
{
	/* A bind of length 0 needs no region. */
	if (from->mr && !abi_is_live_object(ABI_MR, from->mr))
		return EINVAL;
	/* The local write flag is ignored, because a window grants access only to peers. */
	*to = (struct siw_mw_bind_info){
		.mr = from->mr ? ((struct abi_mr *)from->mr)->siw : NULL,
		.addr = from->addr,
		.length = from->length,
		.mw_access_flags = from->mw_access_flags & ~(unsigned int)IBV_ACCESS_LOCAL_WRITE,
	};
	return 0;
}

int abi_bind_mw(struct ibv_qp *qp, struct ibv_mw *ibv, struct ibv_mw_bind *bind)
{
	struct abi_mw *mw = (struct abi_mw *)ibv;
	struct siw_mw_bind request;
	int r;

	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_live_object(ABI_MW, ibv) ||
	    !abi_is_given(bind, "mw_bind") ||
	    abi_convert_bind_info(&bind->bind_info, &request.bind_info))
		return abi_fail(EINVAL);
	request.wr_id = bind->wr_id;
	request.send_flags = bind->send_flags;
	r = siw_bind_mw(abi_qp_of(qp)->siw, mw->siw, &request);
	if (r == 0)
		ibv->rkey = mw->siw->rkey;
	return abi_errno_of_result(r);
}
