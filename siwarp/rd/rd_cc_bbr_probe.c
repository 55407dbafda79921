/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr_probe.c - BBR: the ProbeBW cycle. BBR refills the path, sends 25% faster for a
 * while, drains the queue that has built up, and cruises.
 */
#include "rd/rd_cc_bbr.h"

/*
 * Limits on the number of rounds between two probes. In the draft there are as many rounds as
 * datagrams fit in flight. At a window of two or three datagrams every second or third round would
 * be a probe, and cause a loss; siwarp waits twice as many rounds, plus LEAST_RENO_ROUNDS. The
 * number stays proportional to the window, so that of two flows the smaller one probes more often
 * and catches up.
 */
#define LEAST_RENO_ROUNDS 6
#define MOST_RENO_ROUNDS  63
/*
 * On a path of 0.2 ms the rounds between two bandwidth probes would last only 2 ms, and the flow
 * would probe all the time. This is the minimum time between two probes.
 */
#define LEAST_PROBE_WAIT (60 * MS)

static uint32_t next_bbr_random_number(struct siw_rd_bbr *bbr)
{
	bbr->random = bbr->random * 1664525u + 1013904223u;
	return bbr->random >> 8;
}

static void reset_congestion_signals(struct siw_rd_bbr *bbr)
{
	bbr->loss_in_round = false;
	bbr->loss_events = 0;
	bbr->bw_latest = bbr->inflight_latest = 0;
}

void siw_rd_bbr_start_probe_down(struct siw_rd_cc *cc, uint64_t now)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	reset_congestion_signals(bbr);
	bbr->probe_up_per_inc = NO_LIMIT;
	/* BBR.bw_probe_wait: 2 to 3 s at random; BBR.rounds_since_bw_probe: 0 or 1 at random */
	bbr->probe_wait_ns = (uint32_t)(2 * SECOND + next_bbr_random_number(bbr) % SECOND);
	bbr->rounds_since_probe = (uint8_t)(next_bbr_random_number(bbr) & 1);
	bbr->cycle_stamp = now;
	bbr->ack_phase = ACKS_STOPPING;
	start_round(cc);
	bbr->state = PROBE_DOWN;
}

static void start_probe_refill(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	reset_short_term(bbr);
	bbr->probe_up_rounds = 0;
	bbr->probe_up_acked = 0;
	bbr->precautionary = false;
	bbr->ack_phase = ACKS_REFILLING;
	start_round(cc);
	bbr->state = PROBE_REFILL;
}

static void raise_inflight_growth(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->probe_up_per_inc = greater(cc->cwnd >> bbr->probe_up_rounds, cc->mss);
	if (bbr->probe_up_rounds < 30)
		bbr->probe_up_rounds++;
}

static void bbr_start_probe_up(struct siw_rd_cc *cc, uint64_t rate)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->ack_phase = ACKS_STARTING;
	start_round(cc);
	reset_full_bw(bbr);
	bbr->full_bw = rate;
	bbr->state = PROBE_UP;
	raise_inflight_growth(cc);
}

static void raise_inflight_bound(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (!ack->full || cc->cwnd < bbr->inflight_longterm)
		return;
	bbr->probe_up_acked += ack->octets;
	if (bbr->probe_up_acked >= bbr->probe_up_per_inc) {
		uint64_t steps = bbr->probe_up_acked / bbr->probe_up_per_inc;

		bbr->probe_up_acked -= steps * bbr->probe_up_per_inc;
		bbr->inflight_longterm += steps * cc->mss;
	}
	if (bbr->round_start)
		raise_inflight_growth(cc);
}

/*
 * Adapts the long-term bound on the octets in flight. Returns true if the function has changed
 * BBR's state.
 */
static bool adapt_long_term_bound(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
				  const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->ack_phase == ACKS_STARTING && bbr->round_start)
		bbr->ack_phase = ACKS_FEEDBACK;
	if (bbr->ack_phase == ACKS_STOPPING && bbr->round_start) {
		bbr->probe_sample = false;
		bbr->ack_phase = ACKS_INIT;
		if (is_probing_bw_state(bbr) && !s->app_limited) {
			bbr->max_bw[0] = bbr->max_bw[1];
			bbr->max_bw[1] = 0;
		}
		if (is_probing_bw_state(bbr) && bbr->precautionary && !bbr->too_high) {
			start_probe_refill(cc);
			return true;
		}
	}
	if (siw_rd_bbr_is_loss_too_high(cc, s->lost, s->in_flight) ||
	    bbr->inflight_longterm == NO_LIMIT)
		return false;
	bbr->inflight_longterm = greater(bbr->inflight_longterm, s->in_flight);
	if (bbr->state == PROBE_UP)
		raise_inflight_bound(cc, ack);
	return false;
}

/*
 * Returns whether it is time for a bandwidth probe: since the last one 2 to 3 s have passed, or
 * twice as many rounds as datagrams fit in flight, plus LEAST_RENO_ROUNDS, and at most
 * MOST_RENO_ROUNDS; but never before LEAST_PROBE_WAIT.
 */
static bool is_time_to_probe_bandwidth(struct siw_rd_cc *cc, uint64_t now)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t rounds = LEAST_RENO_ROUNDS + 2 * target_inflight(cc) / cc->mss;
	uint64_t waited = now - bbr->cycle_stamp;

	if (waited < LEAST_PROBE_WAIT)
		return false;
	return waited > bbr->probe_wait_ns ||
	       bbr->rounds_since_probe >= lesser(rounds, MOST_RENO_ROUNDS);
}

static bool is_time_to_cruise(const struct siw_rd_cc *cc, uint64_t in_flight)
{
	return in_flight <= inflight_with_headroom(cc) &&
	       in_flight <= with_quanta(cc, bdp(cc, max_bw(&cc->bbr), 100));
}

static bool bbr_is_time_to_probe_down(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
				      const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->too_high && ack->in_flight >= bbr->inflight_longterm) {
		bbr->precautionary = true;
		return true;
	}
	if (ack->full && cc->cwnd >= bbr->inflight_longterm) {
		reset_full_bw(bbr);
		bbr->full_bw = s->rate;
		return false;
	}
	return bbr->full_bw_now;
}

void siw_rd_bbr_update_cycle(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
			     const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (!bbr->full_bw_reached || adapt_long_term_bound(cc, ack, s) || !is_probing_bw_state(bbr))
		return;
	if (bbr->state == PROBE_REFILL) {
		if (bbr->round_start) {
			bbr->probe_sample = true;
			bbr_start_probe_up(cc, s->rate);
		}
	} else if (bbr->state == PROBE_UP) {
		if (bbr_is_time_to_probe_down(cc, ack, s)) {
			bbr->too_high = false;
			siw_rd_bbr_start_probe_down(cc, ack->now);
		}
	} else if (is_time_to_probe_bandwidth(cc, ack->now)) {
		start_probe_refill(cc);
	} else if (bbr->state == PROBE_DOWN && is_time_to_cruise(cc, ack->in_flight)) {
		bbr->state = PROBE_CRUISE;
	}
}
