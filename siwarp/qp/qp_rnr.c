/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Receiver not ready, with persona roce: ddp keeps Sends that came before their receives. Posting a
 * receive wakes every QP that waits for one of that queue. A Send that waits too long ends the
 * connection.
 */
#include "base/clock.h"
#include "qp/qp_rc.h"

#define NO_LIMIT 7

/* InfiniBand's RNR timer codes, in units of 10 microseconds. */
static const uint32_t timer_of[32] = {
	65536, 1,    2,	   3,	 4,    6,     8,     12,    16,	   24,	  32,
	48,    64,   96,   128,	 192,  256,   384,   512,   768,   1024,  1536,
	2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

/* The sender's, if it is known. */
static int retries(const struct siw_rc *rc)
{
	return rc->counts.rnr_retry >= 0 ? rc->counts.rnr_retry : rc->wq.rnr_retry;
}

static uint64_t patience_ns(const struct siw_rc *rc)
{
	return (uint64_t)retries(rc) * timer_of[rc->wq.min_rnr_timer] * 10000;
}

/* Sets the timer for the deadline. */
static void watch(struct siw_rc *rc)
{
	if (retries(rc) != NO_LIMIT && rc->rnr_deadline_ns)
		siw_verbs_timed_at(rc->wq.qp.ctx, &rc->wq.timed, rc->rnr_deadline_ns);
}

void siw_qp_rnr_begin(struct siw_rc *rc)
{
	siw_qp_set_unexpected(&rc->wq, true);
	if (siw_rdmap_starved(rc->wq.flow.stream, &rc->rnr_msn))
		rc->rnr_deadline_ns = siw_now_ns() + patience_ns(rc);
	watch(rc);
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

	if (!siw_rdmap_starved(rc->wq.flow.stream, &msn)) {
		/* More Sends may be on their way to their receives: takes another turn. */
		siw_llp_resume(siw_mpa_sock(rc->mpa));
		if (!siw_rdmap_unexpected(rc->wq.flow.stream)) {
			siw_qp_rnr_end(rc);
			siw_verbs_timed_del(rc->wq.qp.ctx, &rc->wq.timed);
		} else if (rc->wq.qp.srq) {
			/* Another QP may take the receive first; then this one still waits. */
			rc->rnr_deadline_ns = now_ns + patience_ns(rc);
			watch(rc);
		}
		return false;
	}
	if (msn != rc->rnr_msn) { /* the next Send starts its own time */
		rc->rnr_msn = msn;
		rc->rnr_deadline_ns = now_ns + patience_ns(rc);
	}
	watch(rc);
	if (retries(rc) == NO_LIMIT || now_ns < rc->rnr_deadline_ns)
		return false;
	siw_rdmap_expire(rc->wq.flow.stream);
	siw_count(SIW_COUNTER_rnr_expired, 1);
	return true;
}
