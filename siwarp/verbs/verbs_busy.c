/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What requests that are on their way still use: memory and address handles. Looked for when one of
 * them is to go, so that posting need not count.
 */
#include "rdmap/rdmap_uc.h"
#include "verbs/verbs_impl.h"

/* Whether this request still reads or writes its memory. accepted: what TCP has taken. */
static bool needs_memory(const struct siw_wqe *wqe, uint64_t accepted)
{
	if (wqe->state == SIW_WQE_DONE || (wqe->flags & SIW_SEND_INLINE))
		return false;
	return wqe->state == SIW_WQE_POSTED || siw_verbs_asks(wqe) || wqe->seq > accepted;
}

static bool has_key(const struct siw_wqe *wqe, uint32_t lkey)
{
	for (int i = 0; i < wqe->nsge; i++)
		if (wqe->sge[i].lkey == lkey)
			return true;
	return false;
}

/* send_lock held, as below. */
static bool uses_key(struct siw_qp *qp, const void *what)
{
	uint64_t accepted = qp->stream ? siw_rdmap_accepted(qp->stream)
			    : qp->uc   ? siw_rdmap_uc_accepted(qp->uc)
				       : 0;

	if (qp->rd)
		return siw_verbs_rd_uses_key(qp, *(const uint32_t *)what);
	for (uint32_t i = qp->sq_head; i != qp->sq_tail; i++) {
		const struct siw_wqe *wqe = siw_verbs_wqe(qp, i);

		if (needs_memory(wqe, accepted) && has_key(wqe, *(const uint32_t *)what))
			return true;
	}
	return false;
}

static bool uses_ah(struct siw_qp *qp, const void *what)
{
	if (qp->type != SIW_QPT_UD)
		return false;
	for (uint32_t i = qp->sq_head; i != qp->sq_tail; i++)
		if (siw_verbs_wqe(qp, i)->ah == what)
			return true;
	return false;
}

/* What only waits for company or for somebody to look goes out first. */
static bool still_uses(struct siw_qp *qp, bool (*uses)(struct siw_qp *, const void *),
		       const void *what)
{
	bool ran = false, busy;

	siw_lock(&qp->send_lock);
	busy = uses(qp, what);
	if (busy && qp->state == SIW_QPS_RTS) {
		ran = true;
		siw_verbs_run(qp);
		busy = uses(qp, what);
	}
	siw_unlock(&qp->send_lock);
	if (ran) /* with what is left, or with what went wrong */
		siw_verbs_mark_unsent(qp);
	return busy;
}

static bool anyone_uses(struct siw_context *ctx, bool (*uses)(struct siw_qp *, const void *),
			const void *what)
{
	bool busy = false;

	siw_lock(&ctx->progress);
	for (struct siw_link *l = ctx->qps.next; !busy && l != &ctx->qps; l = l->next)
		busy = still_uses(siw_container(l, struct siw_qp, in_ctx), uses, what);
	siw_unlock(&ctx->progress);
	return busy;
}

bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey)
{
	return anyone_uses(ctx, uses_key, &lkey);
}

bool siw_verbs_ah_in_use(struct siw_ah *ah)
{
	/* Most go straight to the socket: only one that was ever left in a ring is worth a look. */
	return atomic_load(&ah->queued) && anyone_uses(atomic_load(&ah->pd)->ctx, uses_ah, ah);
}
