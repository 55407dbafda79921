/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_cq.c - completion queues and completion channels. */
#include "abi/ibverbs/abi.h"

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct abi_channel *channel;
	int why;

	if (!abi_is_live_object(ABI_CONTEXT, context))
		return abi_fail_null(EINVAL);
	channel = abi_alloc_object(ABI_CHANNEL);
	if (!channel)
		return NULL;
	channel->siw = siw_create_comp_channel(abi_context_of(context)->siw);
	why = errno;
	if (channel->siw) {
		channel->ibv.context = context;
		channel->ibv.fd = siw_comp_channel_fd(channel->siw);
		if (abi_register_handle(ABI_CHANNEL, channel, context))
			return &channel->ibv;
		why = ENOMEM;
		siw_destroy_comp_channel(channel->siw);
	}
	abi_free_object(ABI_CHANNEL, channel);
	return abi_fail_null(why);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	int r;

	if (!abi_is_live_object(ABI_CHANNEL, channel))
		return abi_fail(EINVAL);
	r = siw_destroy_comp_channel(((struct abi_channel *)channel)->siw);
	if (r == 0)
		abi_mark_object_dead(ABI_CHANNEL, channel);
	return abi_errno_of_result(r);
}

/* Creates a CQ with the members of struct ibv_cq; abi_cq_ex.c sets the rest of struct ibv_cq_ex. */
static struct abi_cq *cq_create(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	struct abi_cq *cq;
	int why;

	if (!abi_is_live_object(ABI_CONTEXT, context) ||
	    (channel && !abi_is_live_object(ABI_CHANNEL, channel)))
		return abi_fail_null(EINVAL);
	if (cqe > 0 && cqe < ABI_MIN_CQE)
		cqe = ABI_MIN_CQE;
	cq = abi_alloc_object(ABI_CQ);
	if (!cq)
		return NULL;
	cq->siw = siw_create_cq(abi_context_of(context)->siw, cqe, cq,
				channel ? ((struct abi_channel *)channel)->siw : NULL, comp_vector);
	if (!cq->siw) {
		why = errno;
		abi_free_object(ABI_CQ, cq);
		return abi_fail_null(why);
	}
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.cqe = siw_cq_capacity(cq->siw);
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);
	abi_init_checked_mutex(&cq->polling);
	cq->forks = abi_forks;
	return cq;
}

static struct abi_cq *cq_register_handle_or_destroy(struct abi_cq *cq)
{
	if (!cq || abi_register_handle(ABI_CQ, cq, cq->ibv.context))
		return cq;
	siw_destroy_cq(cq->siw);
	abi_free_object(ABI_CQ, cq);
	return abi_fail_null(ENOMEM);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	return (struct ibv_cq *)cq_register_handle_or_destroy(
		cq_create(context, cqe, cq_context, channel, comp_vector));
}

struct ibv_cq_ex *abi_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	const uint64_t readers = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
				 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	const uint32_t masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	uint32_t flags;
	struct abi_cq *cq;

	if (!abi_is_given(attr, "cq_attr"))
		return abi_fail_null(EINVAL);
	if (attr->comp_mask & ~masks || attr->cqe > INT32_MAX)
		return abi_fail_null(abi_refuse(EINVAL,
						"comp_mask %#x contains unknown bits, or cqe %u "
						"exceeds max_cqe",
						attr->comp_mask, attr->cqe));
	flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
		if (!abi_is_live_object(ABI_PD, attr->parent_domain))
			return abi_fail_null(EINVAL);
		if (attr->parent_domain->context != context)
			return abi_fail_null(abi_refuse(
				EINVAL, "parent_domain belongs to another device context"));
	}
	/* An overflow moves the CQ's queue pairs to ERR, so IGNORE_OVERRUN is not supported. */
	if (attr->wc_flags & ~readers || flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
		return abi_fail_null(abi_refuse(EOPNOTSUPP,
						"siwarp supports no such wc_flags %#llx or flags "
						"%#x: use IBV_WC_STANDARD_FLAGS, completion time "
						"stamps, and SINGLE_THREADED",
						(unsigned long long)attr->wc_flags, flags));
	cq = cq_create(context, (int)attr->cqe, attr->cq_context, attr->channel,
		       (int)attr->comp_vector);
	if (cq) {
		cq->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
		abi_cq_set_read_functions(cq, attr->wc_flags);
	}
	return (struct ibv_cq_ex *)cq_register_handle_or_destroy(cq);
}

int abi_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	if (!abi_is_live_object(ABI_CQ, cq) || !abi_is_given(attr, "attr"))
		return abi_fail(EINVAL);
	if (attr->attr_mask >= IBV_CQ_ATTR_RESERVED)
		return abi_fail(
			abi_refuse(EINVAL, "attr_mask %#x contains unknown bits", attr->attr_mask));
	/*
	 * Moderation is not supported (cq_mod_caps of query_device_ex is 0), because each
	 * completion raises its event immediately.
	 */
	return abi_fail(abi_refuse(EOPNOTSUPP, "siwarp does not moderate completion events"));
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	int r;

	if (!abi_is_live_object(ABI_CQ, cq))
		return abi_fail(EINVAL);
	/*
	 * The size is not rounded up, because a program that shrinks a CQ wants the requested size.
	 */
	r = siw_resize_cq(abi_cq_of(cq)->siw, cqe);
	if (r == 0)
		cq->cqe = siw_cq_capacity(abi_cq_of(cq)->siw);
	return abi_errno_of_result(r);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	int r;

	if (!abi_is_live_object(ABI_CQ, cq))
		return abi_fail(EINVAL);
	r = siw_destroy_cq(abi_cq_of(cq)->siw);
	if (r == 0)
		abi_mark_object_dead(ABI_CQ, cq);
	return abi_errno_of_result(r);
}

int abi_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	return siw_poll_cq(abi_cq_of(cq)->siw, num_entries, (struct siw_wc *)wc);
}

int abi_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	/* Arming a CQ without a channel has no effect; with adapters it is not an error either. */
	if (!cq->channel)
		return 0;
	return abi_errno_of_result(siw_req_notify_cq(abi_cq_of(cq)->siw, solicited_only));
}
