/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared receive queues: one queue of receives for several queue pairs. Whoever's message comes next
 * takes the oldest. Takers hold the progress lock, so the order of taking is that of posting; posters
 * hold the SRQ's own lock.
 */
#include <errno.h>
#include <stdlib.h>

#include "verbs/verbs_impl.h"

static int check(const struct siw_pd *pd, const struct siw_srq_attr *attr)
{
	const struct siw_device_attr *max = &pd->ctx->attr;

	if (!attr->max_wr || attr->max_wr > max->max_srq_wr || attr->max_sge > max->max_srq_sge ||
	    attr->srq_limit > attr->max_wr)
		return -EINVAL;
	return 0;
}

/* Without a queue, as one that was destroyed; a post that comes too late for that one finds none. */
static struct siw_srq *blank_srq(struct siw_context *ctx)
{
	struct siw_link *kept = siw_verbs_kept_take(&ctx->kept_srqs);
	struct siw_srq *srq;

	if (kept)
		return siw_container(kept, struct siw_srq, kept);
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	srq->ctx = ctx;
	siw_lock_init(&srq->lock);
	siw_link_init(&srq->kept);
	siw_link_init(&srq->parked);
	return srq;
}

static struct siw_srq *new_srq(struct siw_pd *pd, const struct siw_srq_init_attr *init)
{
	struct siw_srq_attr attr = { .max_wr = 1,
				     .max_sge = init->attr.max_sge ? init->attr.max_sge : 1 };
	struct siw_srq *srq = blank_srq(pd->ctx);
	struct siw_rdmap_queue *recvs;

	if (!srq)
		return NULL;
	while (attr.max_wr < init->attr.max_wr)
		attr.max_wr *= 2;
	if (siw_rdmap_queue_create(pd->ctx->port, attr.max_wr, attr.max_sge, pd->number, &recvs)) {
		siw_verbs_kept_give(&pd->ctx->kept_srqs, &srq->kept);
		return NULL;
	}
	siw_verbs_async_init(&srq->async, pd->ctx, srq);
	siw_lock(&pd->ctx->progress);
	siw_lock(&srq->lock);
	srq->pd = pd;
	srq->user = init->srq_context;
	srq->attr = attr;
	srq->recvs = recvs;
	siw_unlock(&srq->lock);
	siw_unlock(&pd->ctx->progress);
	return srq;
}

static bool is_dead(struct siw_srq *srq)
{
	bool dead;

	siw_lock(&srq->lock);
	dead = !srq->recvs;
	siw_unlock(&srq->lock);
	return dead;
}

/* Posting to it, asking and modifying it are refused from here on. */
static void end_srq(struct siw_srq *srq)
{
	struct siw_rdmap_queue *recvs = srq->recvs;

	siw_lock(&srq->ctx->progress);
	siw_lock(&srq->lock);
	srq->recvs = NULL;
	siw_unlock(&srq->lock);
	siw_unlock(&srq->ctx->progress);
	siw_rdmap_queue_destroy(recvs);
	siw_verbs_kept_give(&srq->ctx->kept_srqs, &srq->kept);
}

struct siw_srq *siw_create_srq(struct siw_pd *pd, struct siw_srq_init_attr *init)
{
	struct siw_context *ctx;
	struct siw_srq *srq;

	if (pd && siw_verbs_inherited(pd->ctx)) {
		errno = ESTALE;
		return NULL;
	}
	if (!pd || !init || check(pd, &init->attr)) {
		errno = EINVAL;
		return NULL;
	}
	ctx = pd->ctx;
	srq = atomic_fetch_add(&ctx->n_srq, 1) < ctx->attr.max_srq ? new_srq(pd, init) : NULL;
	if (!srq) {
		atomic_fetch_sub(&ctx->n_srq, 1);
		errno = ENOMEM;
		return NULL;
	}
	atomic_fetch_add(&pd->n_srq, 1);
	init->attr.max_wr = srq->attr.max_wr;
	init->attr.max_sge = srq->attr.max_sge;
	return srq;
}

int siw_destroy_srq(struct siw_srq *srq)
{
	if (!srq)
		return -EINVAL;
	if (siw_verbs_inherited(srq->ctx))
		return -ESTALE;
	if (is_dead(srq))
		return -EINVAL;
	if (atomic_load(&srq->n_qp))
		return -EBUSY;
	siw_verbs_async_leave(&srq->async);
	atomic_fetch_sub(&srq->pd->n_srq, 1);
	atomic_fetch_sub(&srq->ctx->n_srq, 1);
	end_srq(srq);
	return 0;
}

void siw_verbs_srq_taken(struct siw_srq *srq)
{
	if (siw_rdmap_queue_used(srq->recvs) >= srq->attr.srq_limit)
		return;
	srq->attr.srq_limit = 0; /* once, until it is set anew */
	siw_verbs_async_raise(&srq->async, SIW_EVENT_SRQ_LIMIT_REACHED);
}

int siw_modify_srq(struct siw_srq *srq, const struct siw_srq_attr *attr, int mask)
{
	int err = 0;

	if (!srq)
		return -EINVAL;
	if (siw_verbs_inherited(srq->ctx))
		return -ESTALE;
	if (!attr)
		return -EINVAL;
	siw_lock(&srq->ctx->progress);
	if (!srq->recvs || (mask & ~SIW_SRQ_LIMIT) || attr->srq_limit > srq->attr.max_wr) {
		err = -EINVAL;
	} else if (mask & SIW_SRQ_LIMIT) {
		srq->attr.srq_limit = attr->srq_limit;
		siw_verbs_srq_taken(srq);
	}
	siw_unlock(&srq->ctx->progress);
	return err;
}

int siw_query_srq(struct siw_srq *srq, struct siw_srq_attr *attr)
{
	if (!srq)
		return -EINVAL;
	if (siw_verbs_inherited(srq->ctx))
		return -ESTALE;
	if (!attr)
		return -EINVAL;
	siw_lock(&srq->ctx->progress);
	*attr = srq->attr;
	siw_unlock(&srq->ctx->progress);
	return 0;
}

/* Their Sends came before these receives. The first to look has the first. */
static void wake_parked(struct siw_srq *srq)
{
	for (struct siw_link *l = srq->parked.next; l != &srq->parked; l = l->next)
		siw_verbs_mark_unsent(siw_container(l, struct siw_qp, of_srq));
	siw_verbs_nudge(srq->ctx);
}

int siw_post_srq_recv(struct siw_srq *srq, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr)
{
	int err = 0;

	if (!srq || siw_verbs_inherited(srq->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return srq ? -ESTALE : -EINVAL;
	}
	siw_lock(&srq->lock);
	for (; wr; wr = wr->next) {
		err = -EINVAL;
		if (srq->recvs && wr->num_sge >= 0 && (!wr->num_sge || wr->sg_list))
			err = siw_rdmap_queue_post(srq->recvs, wr->wr_id, wr->sg_list, wr->num_sge);
		if (err)
			break;
	}
	if (__builtin_expect(!siw_link_alone(&srq->parked), 0))
		wake_parked(srq);
	siw_unlock(&srq->lock);
	if (err && bad_wr)
		*bad_wr = wr;
	return err;
}
