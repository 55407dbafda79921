/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared receive queues: one queue of receives for several queue pairs. The next message of any of
 * these queue pairs, which may be in several lanes, takes the oldest receive under the lock of the
 * queue (mem/mem_queue.h). Receives are posted under the SRQ's own lock.
 */
#include <errno.h>
#include <stdlib.h>

#include "device/device_impl.h"

static uint32_t srq_round_up(uint32_t max_wr)
{
	uint32_t granted = 1;

	while (granted < max_wr)
		granted *= 2;
	return granted;
}

static int srq_check_size(const struct siw_context *ctx, uint32_t max_wr)
{
	uint32_t most = ctx->attr.max_srq_wr;

	return max_wr && max_wr <= most
		       ? 0
		       : siw_refuse(RANGE, siw_reason_text("max_wr"), max_wr, 1, most);
}

static int srq_check_limit_arg(uint32_t limit, uint32_t max_wr)
{
	return limit > max_wr ? siw_refuse(SRQ_LIMIT, limit, max_wr) : 0;
}

static int srq_check_args(const struct siw_pd *pd, const struct siw_srq_attr *attr)
{
	const struct siw_device_attr *max = &pd->ctx->attr;

	int err = srq_check_size(pd->ctx, attr->max_wr);

	if (err)
		return err;
	if (attr->max_sge > max->max_srq_sge)
		return siw_refuse(RANGE, siw_reason_text("max_sge"), attr->max_sge, 0,
				  max->max_srq_sge);
	return srq_check_limit_arg(attr->srq_limit, attr->max_wr);
}

/*
 * Returns an SRQ struct without a queue. If the memory belonged to a destroyed SRQ, a late post on
 * that SRQ finds no queue.
 */
static struct siw_srq *srq_alloc_struct(struct siw_context *ctx)
{
	struct siw_link *old = siw_device_freelist_take(&ctx->free_srqs);
	struct siw_srq *srq;

	if (old)
		return siw_container(old, struct siw_srq, in_freelist);
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	srq->ctx = ctx;
	siw_lock_init(&srq->lock);
	siw_link_init(&srq->in_freelist);
	siw_link_init(&srq->waiting);
	return srq;
}

static struct siw_srq *srq_alloc(struct siw_pd *pd, const struct siw_srq_init_attr *init)
{
	struct siw_srq_attr attr = { .max_sge = init->attr.max_sge ? init->attr.max_sge : 1 };
	struct siw_srq *srq = srq_alloc_struct(pd->ctx);
	struct siw_mem_queue_attr queue = { .pd = pd->number, .shared = true };
	struct siw_mem_buffer_queue *recvs;

	if (!srq)
		return NULL;
	attr.max_wr = srq_round_up(init->attr.max_wr);
	queue.depth = attr.max_wr;
	queue.max_sge = attr.max_sge;
	if (siw_mem_buffer_queue_create(&queue, &recvs)) {
		siw_device_freelist_give(&pd->ctx->free_srqs, &srq->in_freelist);
		return NULL;
	}
	siw_device_init_object_async(&srq->async, pd->ctx, srq, init->srq_context);
	siw_lock(&srq->lock);
	srq->pd = pd;
	srq->number = atomic_fetch_add(&pd->ctx->next_srq, 1) + 1;
	srq->user = init->srq_context;
	srq->attr = attr;
	atomic_store_explicit(&srq->limit, 0, memory_order_relaxed);
	srq->recvs = recvs;
	siw_unlock(&srq->lock);
	return srq;
}

static bool srq_is_destroyed(struct siw_srq *srq)
{
	bool dead;

	siw_lock(&srq->lock);
	dead = !srq->recvs;
	siw_unlock(&srq->lock);
	return dead;
}

/*
 * Ends an SRQ: later calls to post to it, query it or modify it are refused. No progress round uses
 * the receives any more: n_qp is 0, and a QP is counted until its lane has forgotten it.
 */
static void srq_tear_down(struct siw_srq *srq)
{
	struct siw_mem_buffer_queue *recvs;

	siw_lock(&srq->lock);
	recvs = srq->recvs;
	srq->recvs = NULL;
	siw_unlock(&srq->lock);
	siw_mem_buffer_queue_destroy(recvs);
	siw_device_freelist_give(&srq->ctx->free_srqs, &srq->in_freelist);
}

static void srq_destroy_by_force(struct siw_child *child)
{
	struct siw_srq *srq = siw_container(child, struct siw_srq, child);

	siw_device_drop_object_events_unacked(&srq->async);
	srq_tear_down(srq);
}

struct siw_srq *siw_create_srq(struct siw_pd *pd, struct siw_srq_init_attr *init)
{
	struct siw_context *ctx;
	struct siw_srq *srq = NULL;
	int err = siw_device_check_create_args(pd, init);

	if (!err)
		err = srq_check_args(pd, &init->attr);
	if (err)
		return siw_refuse_and_return_null(err);
	ctx = pd->ctx;
	if (atomic_fetch_add(&ctx->n_srq, 1) >= ctx->attr.max_srq)
		err = siw_device_refuse_limit_reached("max_srq", ctx->attr.max_srq);
	else
		srq = srq_alloc(pd, init);
	if (!srq) {
		atomic_fetch_sub(&ctx->n_srq, 1);
		return siw_refuse_and_return_null(err ? err : -ENOMEM);
	}
	atomic_fetch_add(&pd->n_srq, 1);
	siw_device_add_child(ctx, &srq->child, SIW_CHILD_SRQ, srq_destroy_by_force, -1);
	init->attr.max_wr = srq->attr.max_wr;
	init->attr.max_sge = srq->attr.max_sge;
	return srq;
}

int siw_destroy_srq(struct siw_srq *srq)
{
	int err = siw_device_check_usable(srq ? srq->ctx : NULL, "srq");

	if (err)
		return err;
	if (srq_is_destroyed(srq))
		return siw_refuse(DESTROYED);
	if (atomic_load(&srq->n_qp))
		return siw_refuse(SRQ_BUSY, atomic_load(&srq->n_qp));
	siw_device_drop_async_events_then_wait(&srq->async);
	atomic_fetch_sub(&srq->pd->n_srq, 1);
	atomic_fetch_sub(&srq->ctx->n_srq, 1);
	siw_device_remove_child(srq->ctx, &srq->child);
	srq_tear_down(srq);
	return 0;
}

static bool srq_is_below_limit(const struct siw_srq *srq, uint32_t left)
{
	return left < atomic_load_explicit(&srq->limit, memory_order_relaxed);
}

/* Raises the limit event. Called with srq->lock held. */
static void srq_raise_limit_event(struct siw_srq *srq)
{
	/* the event is raised only once until the limit is set again */
	atomic_store_explicit(&srq->limit, 0, memory_order_relaxed);
	siw_device_raise_async_event(&srq->async, SIW_EVENT_SRQ_LIMIT_REACHED);
}

void siw_device_srq_raise_limit_event_if_low(struct siw_srq *srq)
{
	if (!atomic_load_explicit(&srq->limit, memory_order_relaxed) ||
	    !srq_is_below_limit(srq, siw_mem_buffer_queue_posted_count(srq->recvs)))
		return;
	/*
	 * The comparison is repeated under the lock, because another lane may have raised the event
	 * since, or the program may have posted receives or set another limit.
	 */
	siw_lock(&srq->lock);
	if (srq_is_below_limit(srq, siw_mem_buffer_queue_posted_count(srq->recvs)))
		srq_raise_limit_event(srq);
	siw_unlock(&srq->lock);
}

/*
 * Sets the limit. The exact count ensures that a lane that takes a receive at the same time is
 * either counted here, or compares with the new limit. Called with srq->lock held.
 */
static void srq_set_limit(struct siw_srq *srq, uint32_t limit)
{
	atomic_store_explicit(&srq->limit, limit, memory_order_relaxed);
	if (srq_is_below_limit(srq, siw_mem_buffer_queue_exact_count(srq->recvs)))
		srq_raise_limit_event(srq);
}

/* Checks a modification of the SRQ. Called with srq->lock held. */
static int srq_check_modify(const struct siw_srq *srq, const struct siw_srq_attr *attr, int mask)
{
	uint32_t max_wr = srq->attr.max_wr;

	if (!srq->recvs)
		return siw_refuse(DESTROYED);
	if (mask & ~(SIW_SRQ_LIMIT | SIW_SRQ_MAX_WR))
		return siw_refuse_flags("the mask", mask, "siw_srq_attr_mask");
	if (mask & SIW_SRQ_MAX_WR) {
		int err = srq_check_size(srq->ctx, attr->max_wr);

		if (err)
			return err;
		max_wr = srq_round_up(attr->max_wr);
	}
	return srq_check_limit_arg(
		mask & SIW_SRQ_LIMIT ? attr->srq_limit
				     : atomic_load_explicit(&srq->limit, memory_order_relaxed),
		max_wr);
}

/*
 * Changes the size of the SRQ. Receives are posted under srq->lock, and the queue excludes threads
 * that take receives while its ring is replaced. Called with srq->lock held.
 */
static int srq_resize(struct siw_srq *srq, uint32_t max_wr)
{
	int err = siw_mem_buffer_queue_resize(srq->recvs, max_wr);

	if (!err)
		srq->attr.max_wr = srq_round_up(max_wr);
	return err == -EINVAL ? siw_refuse(SRQ_SHRINKS, max_wr,
					   siw_mem_buffer_queue_posted_count(srq->recvs))
			      : err;
}

int siw_modify_srq(struct siw_srq *srq, const struct siw_srq_attr *attr, int mask)
{
	int err = siw_device_check_usable(srq ? srq->ctx : NULL, "srq");

	if (err)
		return err;
	if (!attr)
		return siw_refuse_null("attr");
	siw_lock(&srq->lock);
	err = srq_check_modify(srq, attr, mask);
	if (!err && (mask & SIW_SRQ_MAX_WR))
		err = srq_resize(srq, attr->max_wr);
	if (!err && (mask & SIW_SRQ_LIMIT))
		srq_set_limit(srq, attr->srq_limit);
	siw_unlock(&srq->lock);
	return siw_refused(err);
}

uint32_t siw_srq_num(struct siw_srq *srq)
{
	return srq ? srq->number : 0; /* no SRQ has number 0 */
}

int siw_query_srq(struct siw_srq *srq, struct siw_srq_attr *attr)
{
	int err = siw_device_check_usable(srq ? srq->ctx : NULL, "srq");

	if (err)
		return err;
	if (!attr)
		return siw_refuse_null("attr");
	siw_lock(&srq->lock);
	if (srq->recvs) {
		*attr = srq->attr;
		attr->srq_limit = atomic_load_explicit(&srq->limit, memory_order_relaxed);
	} else {
		err = siw_refuse(DESTROYED);
	}
	siw_unlock(&srq->lock);
	return err;
}

/*
 * Gives the waiting QPs a turn, because their Sends arrived before the receives were posted. The
 * first QP that is serviced consumes the first receive. A lane is woken after a QP of it was added,
 * once for adjacent QPs of the same lane. Called with srq->lock held, which keeps the QPs in the
 * list.
 */
static void schedule_qps_waiting_for_srq(struct siw_srq *srq)
{
	struct siw_lane *lane = NULL;

	for (struct siw_link *l = srq->waiting.next; l != &srq->waiting; l = l->next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_srq);

		if (lane && qp->lane != lane)
			siw_device_wake_sleeping_thread(lane);
		lane = qp->lane;
		siw_device_add_unsent_qp(qp);
	}
	if (lane)
		siw_device_wake_sleeping_thread(lane);
}

void siw_device_srq_offer_returned_receives(struct siw_srq *srq)
{
	if (__builtin_expect(!siw_mem_buffer_queue_has_returned_buffers(srq->recvs), 1))
		return;
	siw_lock(&srq->lock);
	schedule_qps_waiting_for_srq(srq);
	siw_unlock(&srq->lock);
}

/* Posts one receive to the SRQ. Called with srq->lock held. */
static int srq_post_one(struct siw_srq *srq, const struct siw_recv_wr *wr)
{
	int err;

	if (__builtin_expect(!srq->recvs, 0))
		return siw_refuse(DESTROYED);
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->attr.max_sge)
		return siw_refuse(SRQ_SGE, (uint64_t)wr->num_sge, srq->attr.max_sge);
	if (wr->num_sge && !wr->sg_list)
		return siw_refuse(SGE_LIST, (uint64_t)wr->num_sge);
	err = siw_mem_buffer_queue_post(srq->recvs, wr->wr_id, wr->sg_list, wr->num_sge);
	return err ? siw_refuse_full(SRQ_FULL, srq->attr.max_wr) : 0;
}

int siw_post_srq_recv(struct siw_srq *srq, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr)
{
	int err = 0;

	if (!srq || siw_device_inherited(srq->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return srq ? siw_refuse(STALE) : siw_refuse_null("srq");
	}
	siw_lock(&srq->lock);
	for (; wr; wr = wr->next) {
		err = srq_post_one(srq, wr);
		if (err)
			break;
	}
	if (__builtin_expect(!siw_link_empty(&srq->waiting), 0))
		schedule_qps_waiting_for_srq(srq);
	siw_unlock(&srq->lock);
	if (err && bad_wr)
		*bad_wr = wr;
	return err;
}
