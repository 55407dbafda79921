/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds out whether requests or responses still use memory or an address handle. The search takes
 * place when the memory or the handle is to be destroyed, so posting need not count uses. It covers
 * only the queue pairs that posted or answered a request since they were last found to have nothing
 * in progress, so idle queue pairs cost nothing.
 */
#include "device/device_impl.h"

void siw_device_add_qp_to_busy_list(struct siw_qp *qp)
{
	struct siw_lane *lane = qp->lane;

	qp->on_busy = true;
	siw_lock(&lane->busy_lock);
	siw_link_add(&lane->busy, &qp->busy);
	lane->n_busy++;
	siw_unlock(&lane->busy_lock);
}

/* Removes a QP from the busy list. Called with busy_lock held. */
static void busy_list_remove(struct siw_lane *lane, struct siw_qp *qp)
{
	siw_link_del(&qp->busy);
	lane->n_busy--;
}

void siw_device_remove_qp_from_busy_list(struct siw_qp *qp)
{
	struct siw_lane *lane = qp->lane;

	siw_lock(&qp->send_lock);
	siw_lock(&lane->busy_lock);
	if (qp->on_busy)
		busy_list_remove(lane, qp);
	siw_unlock(&lane->busy_lock);
	qp->on_busy = false;
	siw_unlock(&qp->send_lock);
}

/*
 * Called after a QP was checked: adds the QP to the end of the busy list again, unless the QP has
 * nothing in progress.
 */
static void busy_list_add_qp_unless_quiet(struct siw_qp *qp)
{
	siw_lock(&qp->send_lock);
	if (qp->ops->is_quiet(qp))
		qp->on_busy = false;
	else
		siw_device_add_qp_to_busy_list(qp);
	siw_unlock(&qp->send_lock);
}

/*
 * Removes and returns the first QP of the busy list, or NULL if the list is empty. The QP is marked
 * on_busy until busy_list_add_qp_unless_quiet(). The QP is removed during its check because ending
 * a stream may start another search of the list.
 */
static struct siw_qp *busy_list_pop_qp(struct siw_lane *lane)
{
	struct siw_qp *qp = NULL;

	siw_lock(&lane->busy_lock);
	if (!siw_link_empty(&lane->busy)) {
		qp = siw_container(lane->busy.next, struct siw_qp, busy);
		busy_list_remove(lane, qp);
	}
	siw_unlock(&lane->busy_lock);
	return qp;
}

static uint32_t busy_list_length(struct siw_lane *lane)
{
	uint32_t n;

	siw_lock(&lane->busy_lock);
	n = lane->n_busy;
	siw_unlock(&lane->busy_lock);
	return n;
}

/*
 * Returns whether a queue pair of the lane uses the memory key lkey (ah is NULL) or the address
 * handle ah (lkey is 0).
 */
static bool lane_uses_key_or_ah(struct siw_lane *lane, uint32_t lkey, const struct siw_ah *ah)
{
	struct siw_qp *qp;
	bool busy = false;

	siw_lock(&lane->lock);
	for (uint32_t n = busy_list_length(lane); !busy && n && (qp = busy_list_pop_qp(lane));
	     n--) {
		if (ah)
			busy = qp->ops->uses_ah && qp->ops->uses_ah(qp, ah);
		else
			busy = qp->ops->uses_key(qp, lkey);
		busy_list_add_qp_unless_quiet(qp);
	}
	siw_unlock(&lane->lock);
	return busy;
}

bool siw_device_is_lkey_in_use(struct siw_context *ctx, uint32_t lkey)
{
	SIW_EACH_LANE(lane, ctx)
	if (lane_uses_key_or_ah(lane, lkey, NULL))
		return true;
	return false;
}

bool siw_device_is_ah_in_use(struct siw_ah *ah)
{
	/*
	 * Most sends go directly to the socket, so only a handle of a send that was ever queued
	 * needs a search.
	 */
	if (!atomic_load(&ah->queued))
		return false;
	SIW_EACH_LANE(lane, atomic_load(&ah->pd)->ctx)
	if (lane_uses_key_or_ah(lane, 0, ah))
		return true;
	return false;
}

/*
 * Resets streams whose responses TCP has not accepted yet, because such responses still refer to
 * the memory.
 */
void siw_device_reset_streams_using_stag_in_lane(struct siw_lane *lane, uint32_t stag,
						 const struct siw_qp *except)
{
	uint32_t n = atomic_load(&lane->ctx->n_rc) ? busy_list_length(lane) : 0;
	struct siw_qp *qp;

	for (; n && (qp = busy_list_pop_qp(lane)); n--) {
		if (qp != except && qp->ops->revoke)
			qp->ops->revoke(qp, stag);
		busy_list_add_qp_unless_quiet(qp);
	}
}

/*
 * Acquiring the lock of a lane waits for a placement in that lane that has already looked up the
 * STag.
 */
void siw_device_reset_streams_using_stag(struct siw_context *ctx, uint32_t stag)
{
	SIW_EACH_LANE(lane, ctx)
	{
		siw_lock(&lane->lock);
		siw_device_reset_streams_using_stag_in_lane(lane, stag, NULL);
		siw_unlock(&lane->lock);
	}
}
