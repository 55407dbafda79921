/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds memory and address handles that requests and responses still use. This is searched for when
 * one is to be destroyed, so posting need not count uses.
 */
#include "verbs/verbs_impl.h"

bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey)
{
	bool busy = false;

	siw_lock(&ctx->progress);
	for (struct siw_link *l = ctx->qps.next; !busy && l != &ctx->qps; l = l->next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		busy = qp->ops->uses_key(qp, lkey);
	}
	siw_unlock(&ctx->progress);
	return busy;
}

bool siw_verbs_ah_in_use(struct siw_ah *ah)
{
	struct siw_context *ctx;
	bool busy = false;

	/*
	 * Most sends go straight to the socket: only a handle that was ever queued needs a search.
	 */
	if (!atomic_load(&ah->queued))
		return false;
	ctx = atomic_load(&ah->pd)->ctx;
	siw_lock(&ctx->progress);
	for (struct siw_link *l = ctx->qps.next; !busy && l != &ctx->qps; l = l->next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		busy = qp->ops->uses_ah && qp->ops->uses_ah(qp, ah);
	}
	siw_unlock(&ctx->progress);
	return busy;
}

/* Responses that TCP has not accepted yet still refer to the memory. */
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except)
{
	struct siw_link *l, *next;

	for (l = ctx->qps.next; atomic_load(&ctx->n_rc) && l != &ctx->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		next = l->next;
		if (qp != except && qp->ops->revoke)
			qp->ops->revoke(qp, stag);
	}
}

/* Taking the progress lock waits for a placement that resolved the STag before. */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag)
{
	siw_lock(&ctx->progress);
	siw_verbs_revoke_stag_locked(ctx, stag, NULL);
	siw_unlock(&ctx->progress);
}
