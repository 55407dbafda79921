/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Receiver not ready, persona roce: Sends that came before their receives, kept by ddp. Who posts a
 * receive says so, to all who wait where receives are shared, and whoever waits too long ends the
 * connection.
 */
#include "base/clock.h"
#include "verbs/verbs_impl.h"

#define NO_LIMIT 7

/* InfiniBand's codes, in units of 10 microseconds. */
static const uint32_t timer_of[32] = {
	65536, 1,    2,	   3,	 4,    6,     8,     12,    16,	   24,	  32,
	48,    64,   96,   128,	 192,  256,   384,   512,   768,   1024,  1536,
	2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

static uint64_t patience_ns(const struct siw_qp *qp)
{
	return (uint64_t)qp->rnr_retry * timer_of[qp->min_rnr_timer] * 10000;
}

/* Somebody must look at the clock. */
static void watch(struct siw_qp *qp)
{
	if (qp->rnr_retry != NO_LIMIT && qp->rnr_deadline_ns)
		siw_verbs_timed_at(qp->ctx, &qp->timed, qp->rnr_deadline_ns);
}

/*
 * Under the lock that a post holds: either it sees this, or what it posted is seen by who goes on
 * receiving now.
 */
void siw_verbs_rnr_parked(struct siw_qp *qp, bool parked)
{
	siw_lock(&qp->recv_lock);
	qp->parked = parked;
	siw_unlock(&qp->recv_lock);
	if (!qp->srq)
		return;
	siw_lock(&qp->srq->lock);
	siw_link_del(&qp->of_srq);
	if (parked)
		siw_link_add(&qp->srq->parked, &qp->of_srq);
	siw_unlock(&qp->srq->lock);
}

void siw_verbs_rnr_begin(struct siw_qp *qp)
{
	siw_verbs_rnr_parked(qp, true);
	if (siw_rdmap_starved(qp->stream, &qp->rnr_msn))
		qp->rnr_deadline_ns = siw_now_ns() + patience_ns(qp);
	watch(qp);
	siw_rdmap_again(qp->stream);
}

void siw_verbs_rnr_end(struct siw_qp *qp)
{
	if (!qp->parked)
		return;
	siw_verbs_rnr_parked(qp, false);
}

void siw_verbs_rnr_look(struct siw_qp *qp, uint64_t now_ns)
{
	uint32_t msn;

	if (qp->closing || !qp->stream)
		return;
	siw_verbs_rc_serve(&qp->pollee);
	if (qp->closing || !qp->stream)
		return;
	if (!siw_rdmap_starved(qp->stream, &msn)) {
		/* More may be on its way to its receives: another turn. */
		siw_rdmap_again(qp->stream);
		if (!siw_rdmap_parked(qp->stream)) {
			siw_verbs_rnr_end(qp);
			siw_verbs_timed_del(qp->ctx, &qp->timed);
		} else if (qp->srq) { /* another stream may be faster: then this one still waits */
			qp->rnr_deadline_ns = now_ns + patience_ns(qp);
			watch(qp);
		}
		return;
	}
	if (msn != qp->rnr_msn) { /* the next one's time begins */
		qp->rnr_msn = msn;
		qp->rnr_deadline_ns = now_ns + patience_ns(qp);
	}
	watch(qp);
	if (qp->rnr_retry == NO_LIMIT || now_ns < qp->rnr_deadline_ns)
		return;
	siw_rdmap_expire(qp->stream);
	siw_count(SIW_COUNTER_rnr_expired, 1);
	siw_verbs_rc_serve(&qp->pollee);
}
