/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Creation, destruction and queries of queue pairs. qp_modify.c changes their attributes. */
#include <errno.h>
#include <stdlib.h>

#include "qp/qp_impl.h"

/* ---- creating -------------------------------------------------------------------------------- */

/* In the order of ctx->free_qps, which has one freelist per type. */
static const struct siw_qp_class *const types[SIW_QP_TYPES] = {
	&siw_qp_rc_class,
	&siw_qp_uc_class,
	&siw_qp_ud_class,
	&siw_qp_rd_class,
};

static int qp_class_index(int type)
{
	int i = 0;

	while (i < SIW_QP_TYPES && types[i]->type != type)
		i++;
	return i;
}

const struct siw_qp_class *siw_qp_class_of_type(int type)
{
	int i = qp_class_index(type);

	return i < SIW_QP_TYPES ? types[i] : NULL;
}

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

/*
 * Rounds the requested capacities up: at least one SGE, numbers of requests to powers of two,
 * inline data to a multiple of 16 octets. With an SRQ, the QP has no receive queue.
 */
static void qp_round_caps(struct siw_qp_cap *cap, bool shared)
{
	cap->max_send_wr = power_of_two(cap->max_send_wr);
	cap->max_recv_wr = shared ? 0 : power_of_two(cap->max_recv_wr);
	if (!cap->max_send_sge)
		cap->max_send_sge = 1;
	if (shared)
		cap->max_recv_sge = 0;
	else if (!cap->max_recv_sge)
		cap->max_recv_sge = 1;
	cap->max_inline_data = (cap->max_inline_data + 15) & ~15u;
}

static int qp_create_queues(struct siw_wq *wq)
{
	struct siw_mem_queue_attr queue = { .pd = wq->qp.pd->number };
	const struct siw_qp_cap *cap = &wq->cap;

	wq->sq_stride =
		(uint32_t)(sizeof(struct siw_wqe) + cap->max_send_sge * sizeof(struct siw_sge) +
			   cap->max_inline_data);
	wq->sq_stride = (wq->sq_stride + 63) & ~63u;
	wq->sq_mask = cap->max_send_wr - 1;
	/*
	 * With lazy_slots, slots are allocated later: a UD send that goes directly to the socket
	 * needs no slot, and there may be thousands of QPs.
	 */
	if (!siw_class_of(wq)->lazy_slots && siw_qp_sq_alloc(wq))
		return -ENOMEM;
	if (wq->qp.srq) {
		wq->recvs = wq->qp.srq->recvs;
		return 0;
	}
	queue.depth = cap->max_recv_wr;
	queue.max_sge = cap->max_recv_sge;
	return siw_mem_queue_create(&queue, &wq->recvs);
}

/* Frees the QP's queues. No thread posts any more: the QP is in RESET, or its creation failed. */
static void qp_free_queues(struct siw_wq *wq)
{
	siw_class_of(wq)->close(wq);
	if (wq->recvs && !wq->qp.srq)
		siw_mem_queue_destroy(wq->recvs);
	free(wq->errq);
	free(wq->sq);
	wq->recvs = NULL;
	wq->errq = NULL;
	wq->sq = NULL;
}

/* Zeroes the part of the struct between two offsets. */
static void wq_clear_range(struct siw_wq *wq, size_t from, size_t to)
{
	memset((char *)wq + from, 0, to - from);
}

#define AT(field)     offsetof(struct siw_wq, field)
#define BEHIND(field) (AT(field) + sizeof(((struct siw_wq *)0)->field))

/*
 * Returns a zeroed struct, which represents state RESET. Memory from the freelist keeps the fields
 * that a late post on the destroyed QP may still use: locks, links, ops.
 */
static struct siw_wq *qp_alloc_zeroed(struct siw_context *ctx, const struct siw_qp_class *class)
{
	struct siw_link *old =
		siw_device_freelist_take(&ctx->free_qps[qp_class_index(class->type)]);
	struct siw_wq *wq;

	if (old) {
		wq = siw_container(old, struct siw_wq, qp.in_freelist);
		siw_device_forget_unsent(&wq->qp);
		siw_lock(&wq->qp.send_lock);
		siw_lock(&wq->qp.recv_lock);
		wq_clear_range(wq, AT(qp.handler), AT(qp.ops));
		wq_clear_range(wq, AT(qp.pd), AT(qp.send_lock));
		wq_clear_range(wq, AT(qp.sq_freed), AT(qp.unsent));
		wq_clear_range(wq, AT(qp.has_unexpected), AT(qp.in_freelist));
		wq_clear_range(wq, BEHIND(qp.in_freelist), class->size);
		siw_unlock(&wq->qp.recv_lock);
		siw_unlock(&wq->qp.send_lock);
		return wq;
	}
	wq = calloc(1, class->size);
	if (!wq)
		return NULL;
	wq->qp.ctx = ctx;
	wq->qp.ops = &class->ops;
	siw_lock_init(&wq->qp.send_lock);
	siw_lock_init(&wq->qp.recv_lock);
	siw_link_init(&wq->qp.unsent);
	siw_link_init(&wq->qp.busy);
	siw_link_init(&wq->qp.in_freelist);
	return wq;
}

static void set_attributes(struct siw_wq *wq, struct siw_pd *pd,
			   const struct siw_qp_init_attr *init)
{
	struct siw_qp *qp = &wq->qp;

	qp->pd = pd;
	qp->serial = atomic_fetch_add(&pd->ctx->next_qp, 1);
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->srq = init->srq;
	wq->user = init->qp_context;
	wq->sig_all = init->sq_sig_all;
	wq->grh = init->grh;
	wq->every_addr = init->every_addr;
	wq->no_crc = init->no_crc || !siw_settings()->crc;
	wq->roce = (init->persona ? init->persona : siw_settings()->persona) == SIW_PERSONA_ROCE;
	wq->keep_unexpected = init->keep_unexpected;
	wq->private_always = init->private_messages;
	wq->error_policy = init->error_policy ? init->error_policy
					      : (int)siw_settings()->error_policy;
	siw_qp_err_policy(wq, false);
	wq->ord = wq->ird = -1;
	wq->rnr_retry = 7;
	wq->min_rnr_timer = 12;
	wq->access = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC;
	wq->burst = 1;
	/* so that the QP's first post is not delayed */
	wq->round.polls = siw_qp_poll_round(qp->ctx) - 1;
	wq->cap = init->cap;
	qp_round_caps(&wq->cap, qp->srq);
	siw_link_init(&qp->in_ctx);
	siw_link_init(&qp->in_srq);
	siw_link_init(&wq->timed.link);
	siw_link_init(&wq->holds);
	siw_link_init(&wq->flows);
	siw_link_init(&wq->flow.busy);
	siw_link_init(&wq->flow.ready);
	if (!siw_class_of(wq)->many_flows)
		siw_link_add(&wq->flows, &wq->flow.busy);
	siw_device_async_init(&qp->async, qp->ctx, qp, wq->user);
}

static struct siw_wq *new_qp(struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	struct siw_wq *wq = qp_alloc_zeroed(pd->ctx, siw_qp_class_of_type(init->qp_type));

	if (!wq)
		return NULL;
	/* A late post on the destroyed QP that had this memory may hold a lock. */
	siw_lock(&wq->qp.send_lock);
	siw_lock(&wq->qp.recv_lock);
	set_attributes(wq, pd, init);
	siw_unlock(&wq->qp.recv_lock);
	siw_unlock(&wq->qp.send_lock);
	return wq;
}

static void qp_release_memory(struct siw_wq *wq)
{
	struct siw_context *ctx = wq->qp.ctx;

	siw_lock(&ctx->progress);
	qp_free_queues(wq);
	siw_set_teardown(wq, SIW_DEAD);
	siw_unlock(&ctx->progress);
	siw_device_freelist_give(&ctx->free_qps[qp_class_index(siw_class_of(wq)->type)],
				 &wq->qp.in_freelist);
}

static void count_qp(struct siw_wq *wq, int by)
{
	atomic_fetch_add(&wq->qp.ctx->n_qp, (uint32_t)by);
	atomic_fetch_add(&wq->qp.pd->n_qp, (uint32_t)by);
	siw_device_cq_count(wq->qp.send_cq, by);
	siw_device_cq_count(wq->qp.recv_cq, by);
	if (wq->qp.srq)
		atomic_fetch_add(&wq->qp.srq->n_qp, (uint32_t)by);
}

/* Clears the references of connection ids to the QP. Progress lock held. */
static void qp_clear_holds(struct siw_wq *wq)
{
	while (!siw_link_empty(&wq->holds)) {
		struct siw_qp_hold *hold = siw_container(wq->holds.next, struct siw_qp_hold, link);

		siw_link_del(&hold->link);
		hold->qp = NULL;
	}
}

/*
 * Removes the QP from its context and ends its work: 0; or -errno with nothing changed. Progress
 * lock held.
 */
static int qp_remove(struct siw_wq *wq)
{
	const struct siw_qp_class *class = siw_class_of(wq);
	struct siw_qp *qp = &wq->qp;
	int err;

	if (siw_teardown_of(wq) == SIW_DEAD || siw_link_empty(&qp->in_ctx))
		return siw_refuse(DESTROYED);
	err = class->may_end ? class->may_end(wq) : 0;
	if (err)
		return err;
	siw_qp_prepare(wq, SIW_QPE_TO_RESET, NULL, 0);
	if (class->depart)
		class->depart(wq);
	siw_qp_step(wq, SIW_QPE_TO_RESET); /* from here on posts are refused */
	if (class->release)
		class->release(wq);
	siw_qp_drop_work(wq);
	qp_clear_holds(wq);
	siw_link_del(&qp->in_ctx);
	siw_device_busy_list_forget(qp);
	class->close(wq);
	return 0;
}

/* As siw_destroy_qp(), for a device that is closed by force. */
static void end_by_force(struct siw_child *child)
{
	struct siw_qp *qp = siw_container(child, struct siw_qp, child);
	struct siw_wq *wq = siw_wq_of(qp);

	siw_lock(&qp->ctx->progress);
	if (siw_class_of(wq) == &siw_qp_ud_class)
		siw_qp_leave_groups(siw_ud_of(wq));
	qp_remove(wq);
	siw_unlock(&qp->ctx->progress);
	siw_device_async_drop(&qp->async);
	count_qp(wq, -1);
	qp_release_memory(wq);
}

int siw_qp_create(struct siw_pd *pd, struct siw_qp_init_attr *init, int (*pair)(struct siw_rc *rc),
		  struct siw_qp **out)
{
	struct siw_context *ctx = pd->ctx;
	struct siw_wq *wq = new_qp(pd, init);
	int err;

	if (!wq)
		return -ENOMEM;
	err = qp_create_queues(wq);
	if (err)
		goto fail;
	siw_lock(&ctx->progress);
	err = atomic_load(&ctx->n_qp) < ctx->attr.max_qp
		      ? 0
		      : siw_device_refuse_full("max_qp", ctx->attr.max_qp);
	if (!err)
		err = siw_class_of(wq)->create(wq, init);
	if (!err && init->by_qpn)
		err = pair(siw_rc_of(wq));
	if (!err) {
		siw_link_add(&ctx->qps, &wq->qp.in_ctx);
		count_qp(wq, 1);
	}
	siw_unlock(&ctx->progress);
	if (err)
		goto fail;
	siw_device_child_add(ctx, &wq->qp.child, SIW_CHILD_QP, end_by_force, -1);
	init->cap = wq->cap;
	*out = &wq->qp;
	return 0;
fail:
	qp_release_memory(wq);
	return err;
}

int siw_destroy_qp(struct siw_qp *qp)
{
	struct siw_wq *wq = siw_wq_of(qp);
	int err = siw_qp_enter(qp);

	if (err)
		return err;
	siw_lock(&qp->ctx->progress);
	err = qp_remove(wq);
	siw_unlock(&qp->ctx->progress);
	if (err)
		return err;
	siw_device_child_del(qp->ctx, &qp->child);
	/* Waits until no event handler uses the QP any more. */
	siw_device_async_end(&qp->async);
	count_qp(wq, -1);
	qp_release_memory(wq);
	return 0;
}

/* ---- queries --------------------------------------------------------------------------------- */

uint32_t siw_qp_num(struct siw_qp *qp)
{
	return qp ? qp->qpn : 0; /* no QP has number 0 */
}

int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_addr other = { 0 }, own = { 0 };
	int err = siw_qp_enter(qp);

	if (err)
		return err;
	siw_lock(&qp->ctx->progress);
	err = siw_class_of(siw_wq_of(qp))->addr(siw_wq_of(qp), &own, &other);
	siw_unlock(&qp->ctx->progress);
	if (err == -ENOTCONN)
		return siw_refuse(NOT_CONNECTED);
	if (err)
		return siw_refused(err);
	if (local)
		*local = own;
	if (peer)
		*peer = other;
	return 0;
}

void siw_qp_hold(struct siw_qp_hold *hold, struct siw_qp *qp)
{
	siw_lock(&qp->ctx->progress);
	siw_link_init(&hold->link);
	siw_link_add(&siw_wq_of(qp)->holds, &hold->link);
	hold->qp = qp;
	siw_unlock(&qp->ctx->progress);
}

void siw_qp_hold_end(struct siw_context *ctx, struct siw_qp_hold *hold)
{
	siw_lock(&ctx->progress);
	if (hold->qp)
		siw_link_del(&hold->link);
	hold->qp = NULL;
	siw_unlock(&ctx->progress);
}

bool siw_qp_hold_query(struct siw_context *ctx, const struct siw_qp_hold *hold,
		       struct siw_qp_held *held)
{
	const struct siw_wq *wq;

	siw_lock(&ctx->progress);
	wq = hold->qp ? siw_wq_of(hold->qp) : NULL;
	if (wq && held)
		*held = (struct siw_qp_held){ wq->qp.state, wq->ord, wq->ird, wq->roce };
	siw_unlock(&ctx->progress);
	return wq;
}

int siw_persona_setting(void)
{
	return (int)siw_settings()->persona;
}

struct siw_context *siw_qp_context(struct siw_qp *qp)
{
	return qp->ctx;
}

int siw_qp_type(struct siw_qp *qp)
{
	return siw_class_of(siw_wq_of(qp))->type;
}

int siw_qp_leave_pairing(struct siw_qp *qp)
{
	struct siw_rc *rc = siw_rc_of(siw_wq_of(qp));
	int err = 0;

	siw_lock(&qp->ctx->progress);
	if (rc->pairs && qp->state != SIW_QPS_RESET && qp->state != SIW_QPS_INIT)
		err = siw_refuse(CM_QP_PAIRS);
	if (!err && rc->pairs) {
		rc->pairs->close(rc);
		/*
		 * The kept QPN lies in the range of other RC QPNs, so new RC QPs must check for
		 * collisions.
		 */
		rc->left_pairing = true;
		qp->ctx->n_high++;
	}
	siw_unlock(&qp->ctx->progress);
	return err;
}
