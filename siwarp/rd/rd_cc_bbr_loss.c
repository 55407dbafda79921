/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr_loss.c - BBR: evaluation of losses: when a bandwidth probe has sent too fast, and by
 * how much a round with losses lowers the short-term bounds.
 */
#include "rd/rd_cc_bbr.h"

#define LOSS_PERCENT 2 /* BBR.LossThresh */

/*
 * Returns whether more than 2% of the octets in flight were lost: IsInflightTooHigh of the BBR
 * draft. If 2% are a datagram or more, two more datagrams are tolerated: of 100 datagrams at 1%
 * random loss, three are lost too often to indicate congestion.
 */
bool siw_rd_bbr_is_loss_too_high(const struct siw_rd_cc *cc, uint64_t lost, uint64_t in_flight)
{
	uint64_t free = in_flight * LOSS_PERCENT / 100;

	return lost > (free < cc->mss ? free : free + 2 * (uint64_t)cc->mss);
}

static void bbr_handle_inflight_too_high(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight,
					 bool app_limited)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->too_high = true;
	bbr->probe_sample = false; /* the losses of a bandwidth probe are evaluated only once */
	if (!app_limited)
		bbr->inflight_longterm = greater(in_flight, target_inflight(cc) * BETA_10 / 10);
	if (bbr->state == PROBE_UP)
		siw_rd_bbr_start_probe_down(cc, now);
}

/*
 * Returns the octets in flight at the time when losses exceeded the threshold: InflightAtLoss of
 * the BBR draft.
 */
static uint64_t inflight_at_loss(uint64_t in_flight, uint64_t lost, uint32_t octets)
{
	uint64_t before = in_flight - lesser(in_flight, octets);
	uint64_t lost_before = lost - lesser(lost, octets);
	uint64_t free = before * LOSS_PERCENT / 100;

	return before +
	       (free > lost_before ? (free - lost_before) * 100 / (100 - LOSS_PERCENT) : 0);
}

void siw_rd_bbr_handle_loss(struct siw_rd_cc *cc, uint64_t now, const struct siw_rd_sent *sent,
			    uint32_t octets)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t lost = (uint32_t)cc->lost - sent->lost;

	if (!bbr->loss_in_round)
		bbr->loss_round_delivered = cc->delivered;
	bbr->loss_in_round = true;
	if (bbr->loss_events < UINT16_MAX)
		bbr->loss_events++;
	if (bbr->probe_sample && siw_rd_bbr_is_loss_too_high(cc, lost, sent->in_flight))
		bbr_handle_inflight_too_high(cc, now,
					     inflight_at_loss(sent->in_flight, lost, octets),
					     sent->app_limited);
}

/*
 * Returns whether the losses of this round are too few to indicate congestion. In the BBR draft any
 * loss reduces the rate, round by round until the next probe: with 1% random loss nearly every
 * round has a loss, and a sixth of a link of 50 Mbit/s with a round trip of 20 ms stays unused.
 * Therefore siwarp applies the loss threshold of bandwidth probes to every round.
 */
static bool bbr_losses_insignificant(const struct siw_rd_cc *cc)
{
	return !siw_rd_bbr_is_loss_too_high(cc, cc->bbr.loss_events * (uint64_t)cc->mss, cc->cwnd);
}

/*
 * Returns the delivery rate: the best sample of this round, as in the BBR draft, but no more than
 * the rate of the last span (update_delivery_rate_over_span).
 */
static uint64_t delivery_rate(const struct siw_rd_cc *cc)
{
	return lesser(cc->bbr.bw_latest, cc->span_rate ? cc->span_rate : NO_LIMIT);
}

/*
 * Called once per round: if the round had losses and BBR is not probing, lowers the short-term
 * bounds on the rate and on the octets in flight, but not below what was delivered in the round.
 */
void siw_rd_bbr_adapt_lower_bounds(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (is_accelerating(bbr) || !bbr->loss_in_round || bbr_losses_insignificant(cc))
		return;
	if (bbr->bw_shortterm == NO_LIMIT)
		bbr->bw_shortterm = max_bw(bbr);
	if (bbr->inflight_shortterm == NO_LIMIT)
		bbr->inflight_shortterm = cc->cwnd;
	bbr->bw_shortterm = greater(delivery_rate(cc), bbr->bw_shortterm * BETA_10 / 10);
	bbr->inflight_shortterm =
		greater(bbr->inflight_latest, bbr->inflight_shortterm * BETA_10 / 10);
}
