/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds out whether requests or responses still use memory or an address handle. The search takes
 * place when the memory or the handle is to be destroyed, so posting need not count uses. It covers
 * only the queue pairs that posted or answered a request since they were last found to have nothing
 * in progress, so idle queue pairs cost nothing.
 */
#include "device/device_impl.h"

void siw_device_busy_list_add(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	qp->on_busy = true;
	siw_lock(&ctx->busy_lock);
	siw_link_add(&ctx->busy, &qp->busy);
	ctx->n_busy++;
	siw_unlock(&ctx->busy_lock);
}

/* Removes a QP from the busy list. Called with busy_lock held. */
static void busy_list_remove(struct siw_context *ctx, struct siw_qp *qp)
{
	siw_link_del(&qp->busy);
	ctx->n_busy--;
}

void siw_device_busy_list_forget(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	siw_lock(&qp->send_lock);
	siw_lock(&ctx->busy_lock);
	if (qp->on_busy)
		busy_list_remove(ctx, qp);
	siw_unlock(&ctx->busy_lock);
	qp->on_busy = false;
	siw_unlock(&qp->send_lock);
}

/*
 * Called after a QP was checked: adds the QP to the end of the busy list again, unless the QP has
 * nothing in progress.
 */
static void busy_list_add_unless_quiet(struct siw_qp *qp)
{
	siw_lock(&qp->send_lock);
	if (qp->ops->is_quiet(qp))
		qp->on_busy = false;
	else
		siw_device_busy_list_add(qp);
	siw_unlock(&qp->send_lock);
}

/*
 * Removes and returns the first QP of the busy list, or NULL if the list is empty. The QP is marked
 * on_busy until busy_list_add_unless_quiet(). The QP is removed during its check because ending a
 * stream may start another search of the list.
 */
static struct siw_qp *busy_list_pop(struct siw_context *ctx)
{
	struct siw_qp *qp = NULL;

	siw_lock(&ctx->busy_lock);
	if (!siw_link_empty(&ctx->busy)) {
		qp = siw_container(ctx->busy.next, struct siw_qp, busy);
		busy_list_remove(ctx, qp);
	}
	siw_unlock(&ctx->busy_lock);
	return qp;
}

static uint32_t busy_list_length(struct siw_context *ctx)
{
	uint32_t n;

	siw_lock(&ctx->busy_lock);
	n = ctx->n_busy;
	siw_unlock(&ctx->busy_lock);
	return n;
}

bool siw_device_key_in_use(struct siw_context *ctx, uint32_t lkey)
{
	struct siw_qp *qp;
	bool busy = false;

	siw_lock(&ctx->lane.lock);
	for (uint32_t n = busy_list_length(ctx); !busy && n && (qp = busy_list_pop(ctx)); n--) {
		busy = qp->ops->uses_key(qp, lkey);
		busy_list_add_unless_quiet(qp);
	}
	siw_unlock(&ctx->lane.lock);
	return busy;
}

bool siw_device_ah_in_use(struct siw_ah *ah)
{
	struct siw_context *ctx;
	struct siw_qp *qp;
	bool busy = false;

	/*
	 * Most sends go directly to the socket, so only a handle of a send that was ever queued
	 * needs a search.
	 */
	if (!atomic_load(&ah->queued))
		return false;
	ctx = atomic_load(&ah->pd)->ctx;
	siw_lock(&ctx->lane.lock);
	for (uint32_t n = busy_list_length(ctx); !busy && n && (qp = busy_list_pop(ctx)); n--) {
		busy = qp->ops->uses_ah && qp->ops->uses_ah(qp, ah);
		busy_list_add_unless_quiet(qp);
	}
	siw_unlock(&ctx->lane.lock);
	return busy;
}

/*
 * Resets streams whose responses TCP has not accepted yet, because such responses still refer to
 * the memory.
 */
void siw_device_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				   const struct siw_qp *except)
{
	uint32_t n = atomic_load(&ctx->n_rc) ? busy_list_length(ctx) : 0;
	struct siw_qp *qp;

	for (; n && (qp = busy_list_pop(ctx)); n--) {
		if (qp != except && qp->ops->revoke)
			qp->ops->revoke(qp, stag);
		busy_list_add_unless_quiet(qp);
	}
}

/* Acquiring the progress lock waits for a placement that has already looked up the STag. */
void siw_device_revoke_stag(struct siw_context *ctx, uint32_t stag)
{
	siw_lock(&ctx->lane.lock);
	siw_device_revoke_stag_locked(ctx, stag, NULL);
	siw_unlock(&ctx->lane.lock);
}
