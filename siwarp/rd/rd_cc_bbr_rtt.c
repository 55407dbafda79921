/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr_rtt.c - BBR: the minimum round-trip time, and ProbeRTT, which empties the path to
 * measure it.
 */
#include "rd/rd_cc_bbr.h"

#define MIN_RTT_LEN	(10 * SECOND)
#define PROBE_RTT_EVERY (5 * SECOND)
#define PROBE_RTT_LASTS (200 * MS)

bool siw_rd_bbr_update_min_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	/* Before the first measurement of the round trip no minimum can be stale. */
	bool expired = bbr->probe_rtt_min_delay != NO_LIMIT &&
		       ack->now > bbr->probe_rtt_min_stamp + PROBE_RTT_EVERY;

	if (ack->rtt && (ack->rtt < bbr->probe_rtt_min_delay || expired)) {
		bbr->probe_rtt_min_delay = ack->rtt;
		bbr->probe_rtt_min_stamp = ack->now;
	}
	if (bbr->probe_rtt_min_delay != NO_LIMIT &&
	    (bbr->probe_rtt_min_delay < cc->min_rtt || !cc->min_rtt ||
	     ack->now > bbr->min_rtt_stamp + MIN_RTT_LEN)) {
		cc->min_rtt = bbr->probe_rtt_min_delay;
		bbr->min_rtt_stamp = bbr->probe_rtt_min_stamp;
	}
	return expired;
}

uint64_t siw_rd_bbr_probe_rtt_cwnd(const struct siw_rd_cc *cc)
{
	return greater(bdp(cc, cc->bbr.bw, siw_rd_bbr_gains[PROBE_RTT].window), bbr_min_window(cc));
}

static void exit_probe_rtt(struct siw_rd_cc *cc, uint64_t now)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->probe_rtt_min_stamp = now;
	cc->cwnd = greater(cc->cwnd, bbr->prior_cwnd);
	reset_short_term(bbr);
	if (bbr->full_bw_reached) {
		siw_rd_bbr_start_probe_down(cc, now);
		bbr->state = PROBE_CRUISE;
	} else {
		bbr->state = STARTUP;
	}
}

void siw_rd_bbr_exit_probe_rtt_if_done(struct siw_rd_cc *cc, uint64_t now)
{
	if (cc->bbr.probe_rtt_done_stamp && now > cc->bbr.probe_rtt_done_stamp)
		exit_probe_rtt(cc, now);
}

void siw_rd_bbr_check_probe_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack, bool expired)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->state != PROBE_RTT && expired && !bbr->idle_restart) {
		bbr->state = PROBE_RTT;
		bbr->prior_cwnd = cc->cwnd;
		bbr->probe_rtt_done_stamp = 0;
		bbr->ack_phase = ACKS_STOPPING;
		start_round(cc);
	}
	if (bbr->state == PROBE_RTT) {
		cc->app_limited = greater(cc->delivered + ack->in_flight, 1);
		if (!bbr->probe_rtt_done_stamp && ack->in_flight <= siw_rd_bbr_probe_rtt_cwnd(cc)) {
			bbr->probe_rtt_done_stamp = ack->now + PROBE_RTT_LASTS;
			bbr->probe_rtt_round_done = false;
			start_round(cc);
		} else if (bbr->probe_rtt_done_stamp) {
			bbr->probe_rtt_round_done |= bbr->round_start;
			if (bbr->probe_rtt_round_done)
				siw_rd_bbr_exit_probe_rtt_if_done(cc, ack->now);
		}
	}
	bbr->idle_restart = false;
}
