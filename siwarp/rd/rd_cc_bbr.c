/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr.c - BBR, version 3, as specified by draft-ietf-ccwg-bbr, with the draft's names.
 * Deviations from the draft are marked by comments that give the reason.
 *
 * BBR maintains a model of the path: the maximum delivery rate of the last two cycles, the minimum
 * round trip of the last ten seconds, and how much may be in flight before more than 2% is lost.
 * BBR sends at that rate, and periodically 25% faster, to probe for more bandwidth.
 */
#include "base/os.h"
#include "rd/rd_cc_bbr.h"

/*
 * The number of losses in a round that may end Startup: BBR.StartupFullLossCnt. For a window of few
 * datagrams a quarter of the window suffices: such a flow may never lose STARTUP_LOSSES datagrams
 * in a round, and would stay in Startup, without a pacing rate of its own.
 */
#define STARTUP_LOSSES 6
/* rounds per slot of the filter of extra_acked; its two slots cover BBR.ExtraAckedFilterLen */
#define EXTRA_ROUNDS 5

const struct siw_rd_bbr_gain siw_rd_bbr_gains[] = {
	[STARTUP] = { 277, 200 },      [DRAIN] = { 50, 200 },	      [PROBE_DOWN] = { 90, 200 },
	[PROBE_CRUISE] = { 100, 200 }, [PROBE_REFILL] = { 100, 200 }, [PROBE_UP] = { 125, 225 },
	[PROBE_RTT] = { 100, 50 },
};

/*
 * Returns the initial pacing rate: the congestion window per round trip, or per 1 ms before a round
 * trip was measured, times the gain of Startup.
 */
static uint64_t initial_pacing_rate(const struct siw_rd_cc *cc)
{
	return (uint64_t)((double)cc->cwnd * (double)SECOND / (double)(cc->srtt ? cc->srtt : MS) *
			  siw_rd_bbr_gains[STARTUP].pace / 100);
}

void siw_rd_bbr_init(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->inflight_longterm = bbr->probe_up_per_inc = NO_LIMIT;
	bbr->probe_rtt_min_delay = NO_LIMIT;
	bbr->random = siw_random();
	reset_short_term(bbr);
	siw_rd_cc_set_rate(cc, initial_pacing_rate(cc));
}

/* ---- the model ------------------------------------------------------------------------------- */

static void update_bbr_round(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->round_start = s->prior >= bbr->next_round_delivered;
	if (!bbr->round_start)
		return;
	start_round(cc);
	if (bbr->rounds_since_probe < UINT8_MAX)
		bbr->rounds_since_probe++;
	if (bbr->drain_rounds < UINT8_MAX)
		bbr->drain_rounds++;
	if (++bbr->extra_acked_rounds >= (bbr->full_bw_reached ? EXTRA_ROUNDS : 1)) {
		bbr->extra_acked_rounds = 0;
		bbr->extra_acked[0] = bbr->extra_acked[1];
		bbr->extra_acked[1] = 0;
	}
}

static void update_congestion_signals(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->loss_round_start = s->prior >= bbr->loss_round_delivered;
	if (bbr->loss_round_start)
		bbr->loss_round_delivered = cc->delivered;
	bbr->bw_latest = greater(bbr->bw_latest, s->rate);
	bbr->inflight_latest = greater(bbr->inflight_latest, s->delivered);
	update_bbr_round(cc, s);
	if (s->rate && (s->rate >= max_bw(bbr) || !s->app_limited))
		bbr->max_bw[1] = greater(bbr->max_bw[1], s->rate);
	if (bbr->loss_round_start)
		siw_rd_bbr_adapt_lower_bounds(cc);
}

static void update_ack_aggregation(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t expected = octets_in(bbr->bw, ack->now - bbr->extra_acked_start), extra;

	if (bbr->extra_acked_delivered <= expected) {
		bbr->extra_acked_delivered = 0;
		bbr->extra_acked_start = ack->now;
		expected = 0;
	}
	bbr->extra_acked_delivered += ack->octets;
	extra = lesser(bbr->extra_acked_delivered - expected, cc->cwnd);
	bbr->extra_acked[1] = (uint32_t)lesser(greater(extra, bbr->extra_acked[1]), UINT32_MAX);
}

static void update_full_bandwidth_reached(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->full_bw_now || !bbr->round_start || s->app_limited || !s->rate)
		return;
	if (s->rate * 4 >= bbr->full_bw * 5) {
		reset_full_bw(bbr);
		bbr->full_bw = s->rate;
		return;
	}
	if (++bbr->full_bw_count < 3)
		return;
	bbr->full_bw_now = bbr->full_bw_reached = true;
}

static uint64_t max_startup_losses(const struct siw_rd_cc *cc, uint64_t in_flight)
{
	return lesser(STARTUP_LOSSES, greater(in_flight / cc->mss / 4, 1));
}

static void end_startup_if_done(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->state != STARTUP)
		return;
	if (!bbr->full_bw_reached && bbr->loss_round_start && bbr->loss_in_round &&
	    bbr->loss_events >= max_startup_losses(cc, s->in_flight) &&
	    siw_rd_bbr_is_loss_too_high(cc, s->lost, s->in_flight)) {
		bbr->full_bw_reached = true;
		bbr->inflight_longterm = greater(bdp(cc, max_bw(bbr), 100), bbr->inflight_latest);
	}
	if (!bbr->full_bw_reached)
		return;
	bbr->state = DRAIN;
	bbr->drain_rounds = 0;
}

static void bbr_leave_drain_if_done(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	if (cc->bbr.state == DRAIN &&
	    (ack->in_flight <= with_quanta(cc, bdp(cc, cc->bbr.bw, 100)) ||
	     cc->bbr.drain_rounds > 3))
		siw_rd_bbr_start_probe_down(cc, ack->now);
}

/* ---- window and pacing rate ------------------------------------------------------------------ */

static void bbr_set_rate(struct siw_rd_cc *cc, uint32_t gain)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	/* 1% less than the measured rate, so that queues shrink: BBR.PacingMarginPercent */
	uint64_t rate = bbr->bw * gain / 100 * 99 / 100;

	if (!bbr->paced && cc->srtt) {
		bbr->paced = true;
		cc->rate = 0; /* the first measured round trip replaces the initial rate */
		rate = greater(rate, initial_pacing_rate(cc));
	}
	if (bbr->full_bw_reached || rate > cc->rate)
		siw_rd_cc_set_rate(cc, rate);
}

static void apply_bounds_to_cwnd(struct siw_rd_cc *cc)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t cap = NO_LIMIT;

	if (bbr->state == PROBE_RTT || bbr->state == PROBE_CRUISE)
		cap = inflight_with_headroom(cc);
	else if (is_probing_bw_state(bbr))
		cap = bbr->inflight_longterm;
	cap = greater(lesser(cap, bbr->inflight_shortterm), bbr_min_window(cc));
	cc->cwnd = lesser(cc->cwnd, cap);
}

static void set_cwnd(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t extra = greater(bbr->extra_acked[0], bbr->extra_acked[1]);
	uint64_t most =
		with_quanta(cc, bdp(cc, bbr->bw, siw_rd_bbr_gains[bbr->state].window) + extra);

	if (bbr->full_bw_reached)
		cc->cwnd = lesser(cc->cwnd + ack->octets, most);
	else if (cc->cwnd < most || cc->delivered < 10 * (uint64_t)cc->mss)
		cc->cwnd += ack->octets;
	cc->cwnd = greater(cc->cwnd, bbr_min_window(cc));
	if (bbr->state == PROBE_RTT)
		cc->cwnd = lesser(cc->cwnd, siw_rd_bbr_probe_rtt_cwnd(cc));
	apply_bounds_to_cwnd(cc);
}

/* ---- events ---------------------------------------------------------------------------------- */

void siw_rd_bbr_handle_send_after_idle(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (in_flight || !cc->app_limited)
		return;
	bbr->idle_restart = true;
	bbr->extra_acked_start = now;
	if (is_probing_bw_state(bbr))
		bbr_set_rate(cc, 100);
	else if (bbr->state == PROBE_RTT)
		siw_rd_bbr_exit_probe_rtt_if_done(cc, now);
}

void siw_rd_bbr_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
			   const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	bool expired;

	update_congestion_signals(cc, s);
	update_ack_aggregation(cc, ack);
	update_full_bandwidth_reached(cc, s);
	end_startup_if_done(cc, s);
	if (bbr->loss_round_start) {
		bbr->loss_in_round = false;
		bbr->loss_events = 0;
	}
	bbr_leave_drain_if_done(cc, ack);
	siw_rd_bbr_update_cycle(cc, ack, s);
	expired = siw_rd_bbr_update_min_rtt(cc, ack);
	siw_rd_bbr_check_probe_rtt(cc, ack, expired);
	if (bbr->loss_round_start) {
		bbr->bw_latest = s->rate;
		bbr->inflight_latest = s->delivered;
	}
	bbr->bw = lesser(max_bw(bbr), bbr->bw_shortterm);
	bbr_set_rate(cc, siw_rd_bbr_gains[bbr->state].pace);
	set_cwnd(cc, ack);
}

void siw_rd_bbr_handle_timeout(struct siw_rd_cc *cc, uint64_t now)
{
	(void)now;
	cc->cwnd = LEAST_CWND_SHORT * (uint64_t)cc->mss;
}
