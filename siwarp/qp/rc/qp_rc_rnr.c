/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Receiver not ready, with persona roce: ddp keeps Sends that arrived before their receives.
 * Posting a receive wakes every QP with such a Send on that receive queue. A Send that waits too
 * long ends the connection.
 */
#include "base/clock.h"
#include "rd/rd_rnr.h"
#include "qp/rc/qp_rc.h"

/* The number of retries: the sender's rnr_retry if it is known, else this end's. */
static int rnr_retries(const struct siw_rc *rc)
{
	return rc->counts.rnr_retry >= 0 ? rc->counts.rnr_retry : rc->wq.rnr_retry;
}

static uint64_t rnr_patience_ns(const struct siw_rc *rc)
{
	return siw_rnr_timeout_ns((uint32_t)rnr_retries(rc), (uint32_t)rc->wq.min_rnr_timer);
}

/* Sets the timer for the deadline. */
static void rnr_set_timer(struct siw_rc *rc)
{
	if (rnr_retries(rc) != SIW_RNR_NO_LIMIT && rc->rnr_deadline_ns)
		siw_device_timed_at(rc->wq.qp.ctx, &rc->wq.timed, rc->rnr_deadline_ns);
}

void siw_qp_rnr_begin(struct siw_rc *rc)
{
	siw_qp_set_unexpected(&rc->wq, true);
	if (siw_rdmap_send_waits(rc->wq.flow.stream, &rc->rnr_msn))
		rc->rnr_deadline_ns = siw_now_ns() + rnr_patience_ns(rc);
	rnr_set_timer(rc);
	siw_llp_resume(siw_mpa_sock(rc->mpa));
}

void siw_qp_rnr_end(struct siw_rc *rc)
{
	if (!rc->wq.qp.has_unexpected)
		return;
	siw_qp_set_unexpected(&rc->wq, false);
}

bool siw_qp_rnr_has_expired(struct siw_rc *rc, uint64_t now_ns)
{
	uint32_t msn;

	if (!siw_rdmap_send_waits(rc->wq.flow.stream, &msn)) {
		/* More Sends may be ready for their receives: the socket gets another turn. */
		siw_llp_resume(siw_mpa_sock(rc->mpa));
		if (!siw_rdmap_unexpected(rc->wq.flow.stream)) {
			siw_qp_rnr_end(rc);
			siw_device_timed_del(rc->wq.qp.ctx, &rc->wq.timed);
		} else if (rc->wq.qp.srq) {
			/*
			 * Another QP may use the SRQ's receive first; then this QP's Send still
			 * waits.
			 */
			rc->rnr_deadline_ns = now_ns + rnr_patience_ns(rc);
			rnr_set_timer(rc);
		}
		return false;
	}
	if (msn != rc->rnr_msn) { /* another Send is the oldest now, and gets a new deadline */
		rc->rnr_msn = msn;
		rc->rnr_deadline_ns = now_ns + rnr_patience_ns(rc);
	}
	rnr_set_timer(rc);
	if (rnr_retries(rc) == SIW_RNR_NO_LIMIT || now_ns < rc->rnr_deadline_ns)
		return false;
	siw_rdmap_expire(rc->wq.flow.stream);
	siw_count(SIW_COUNTER_rnr_expired, 1);
	return true;
}
