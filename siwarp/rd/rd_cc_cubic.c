/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_cc_cubic.c - CUBIC congestion control (RFC 9438), with pacing. */
#include "rd/rd_cc_impl.h"

#define MOST_CWND  (1ull << 40)
#define LEAST_CWND 2 /* in datagrams */
#define BETA_10	   7 /* tenths of the window that remain after a reduction */
/* hundredths of the window that remain after a reduction for CE (RFC 8511) */
#define BETA_CE_100 85
#define C_10	    4 /* CUBIC's C, in tenths of datagrams per second cubed */

static uint64_t cubic_min_cwnd(const struct siw_rd_cc *cc)
{
	return greater(LEAST_CWND * (uint64_t)cc->mss, cc->local ? LOCAL_CWND : 0);
}

void siw_rd_cubic_init(struct siw_rd_cc *cc)
{
	cc->cubic.ssthresh = UINT64_MAX;
}

/* Returns the integer cube root. */
static uint64_t cube_root(uint64_t v)
{
	uint64_t low = 0, high = 2000000;

	while (low < high) {
		uint64_t mid = (low + high + 1) / 2;

		if (mid * mid * mid <= v)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

static void cubic_reduce_cwnd(struct siw_rd_cc *cc, uint64_t now, uint64_t to)
{
	struct siw_rd_cubic *cubic = &cc->cubic;
	uint64_t datagrams;

	/* Fast convergence: RFC 9438 section 4.7. */
	cubic->w_max = cc->cwnd < cubic->w_max ? cc->cwnd * (10 + BETA_10) / 20 : cc->cwnd;
	cc->cwnd = greater(to, cubic_min_cwnd(cc));
	cubic->ssthresh = cc->cwnd;
	cubic->epoch = cubic->reduced_at = now;
	/*
	 * K = cbrt((W_max - cwnd) / C) seconds. Multiplying by 10^9 under the root gives
	 * milliseconds.
	 */
	datagrams = (cubic->w_max > cc->cwnd ? cubic->w_max - cc->cwnd : 0) / cc->mss;
	cubic->k_ms = (uint32_t)cube_root(lesser(datagrams, 1000000) * SECOND * 10 / C_10);
}

/*
 * Converts octets to an integer with an upper bound: after a long time without loss the value can
 * be huge.
 */
static uint64_t cubic_bounded_octets(double octets)
{
	return octets < MOST_CWND ? (uint64_t)octets : MOST_CWND;
}

/* Returns CUBIC's window one round trip after now, in octets. */
static uint64_t cubic_cwnd_after_round_trip(const struct siw_rd_cc *cc, uint64_t now)
{
	double t = ((double)(now - cc->cubic.epoch + cc->srtt) - (double)cc->cubic.k_ms * MS) /
		   (double)SECOND;
	double grown = (double)C_10 / 10 * t * t * t * cc->mss + (double)cc->cubic.w_max;

	return grown > 0 ? cubic_bounded_octets(grown) : 0;
}

/* Returns Reno's window at this time with the same beta, in octets: RFC 9438 section 4.3. */
static uint64_t reno_cwnd_at(const struct siw_rd_cc *cc, uint64_t now)
{
	double rounds = (double)(now - cc->cubic.epoch) / (double)(cc->srtt ? cc->srtt : 1);

	return cubic_bounded_octets((double)cc->cubic.w_max * BETA_10 / 10 +
				    0.53 * rounds * cc->mss);
}

static void cubic_grow_cwnd(struct siw_rd_cc *cc, uint64_t now, uint64_t octets)
{
	struct siw_rd_cubic *cubic = &cc->cubic;
	uint64_t target;

	if (cc->cwnd < cubic->ssthresh) {
		cc->cwnd += octets;
		return;
	}
	if (!cubic->epoch) {
		cubic->epoch = now;
		cubic->w_max = cc->cwnd;
		cubic->k_ms = 0;
	}
	target = greater(cubic_cwnd_after_round_trip(cc, now), reno_cwnd_at(cc, now));
	if (target > cc->cwnd)
		cc->cwnd += lesser(
			(uint64_t)((double)(target - cc->cwnd) * (double)octets / (double)cc->cwnd),
			octets / 2);
	else
		cc->cwnd += octets * cc->mss / cc->cwnd / 100;
}

/*
 * Called at the end of a round trip. A queue that built up during two consecutive rounds ends slow
 * start.
 */
static void cubic_end_round(struct siw_rd_cc *cc, uint64_t in_flight)
{
	struct siw_rd_cubic *cubic = &cc->cubic;
	bool queueing = cubic->round_rtt > cc->min_rtt + cc->min_rtt / 4 + MS / 5;

	if (cc->cwnd >= cubic->ssthresh || !queueing || cc->cwnd <= LOCAL_CWND)
		cubic->slow_rounds = 0;
	else if (++cubic->slow_rounds >= 2)
		cubic->ssthresh = cc->cwnd;
	cubic->round_rtt = 0;
	cubic->round_end = cc->delivered + in_flight;
}

static void cubic_set_rate(struct siw_rd_cc *cc)
{
	double gain = cc->cwnd < cc->cubic.ssthresh ? 2.0 : 1.2;

	if (!cc->local && cc->srtt)
		siw_rd_cc_set_rate(cc, (uint64_t)((double)cc->cwnd * (double)SECOND /
						  (double)cc->srtt * gain));
}

void siw_rd_cubic_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	if (cc->delivered >= cc->cubic.round_end)
		cubic_end_round(cc, ack->in_flight);
	if (ack->full && ack->octets)
		cubic_grow_cwnd(cc, ack->now, ack->octets);
	cubic_set_rate(cc);
}

void siw_rd_cubic_handle_loss(struct siw_rd_cc *cc, uint64_t now, uint64_t sent_ns, bool ce)
{
	/* Reduce the window only once for losses among datagrams sent before the last reduction. */
	if (sent_ns <= cc->cubic.reduced_at)
		return;
	cubic_reduce_cwnd(cc, now, ce ? cc->cwnd * BETA_CE_100 / 100 : cc->cwnd * BETA_10 / 10);
}

void siw_rd_cubic_handle_timeout(struct siw_rd_cc *cc, uint64_t now)
{
	cubic_reduce_cwnd(cc, now, cc->cwnd * BETA_10 / 10);
	cc->cwnd = cubic_min_cwnd(cc);
	cubic_set_rate(cc);
}
