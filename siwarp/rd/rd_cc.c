/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_cc.c - congestion control of a peer; rd_cc.h explains it. */
#include "rd/rd_cc.h"

#include <string.h>

#define MS	    1000000ull
#define SECOND	    1000000000ull
#define LEAST_RTO   (20 * MS)
#define LONGEST_RTO SECOND
#define FIRST_RTO   (200 * MS)
#define LONGEST_RTT (2 * SECOND)
#define LOCAL_RTT   MS /* below this round trip nothing is paced */
#define MOST_CWND   (1ull << 40)
#define LEAST_CWND  4 /* datagrams */
#define LOCAL_CWND  (128u << 10)
#define NOISE_SHARE 2600 /* 4%, in 1/65536 */
#define BETA_10	    7	 /* a reduction leaves so many tenths */
/* rounds from one reduction to the next: a reduction needs so long to show */
#define REST_ROUNDS    4
#define COMPETE_ROUNDS 100
#define C_10	       4 /* CUBIC's C, in tenths of datagrams per second cubed */

static uint64_t greater(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static bool is_local(const struct siw_rd_cc *cc)
{
	return cc->min_rtt && cc->min_rtt < LOCAL_RTT;
}

static uint64_t least_window(const struct siw_rd_cc *cc, uint32_t mss)
{
	return greater(LEAST_CWND * (uint64_t)mss, is_local(cc) ? LOCAL_CWND : 0);
}

void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss)
{
	memset(cc, 0, sizeof(*cc));
	cc->rto = FIRST_RTO;
	cc->cwnd = greater(10ull * mss, 14600);
	cc->ssthresh = UINT64_MAX;
}

void siw_rd_cc_rtt(struct siw_rd_cc *cc, uint64_t rtt)
{
	uint64_t off;

	if (!rtt)
		rtt = 1;
	/*
	 * A longer time means that it was retransmitted, or that this process stood still; neither
	 * measures the path.
	 */
	if (rtt > LONGEST_RTT)
		rtt = LONGEST_RTT;
	cc->last_rtt = rtt;
	if (!cc->round_rtt || rtt < cc->round_rtt)
		cc->round_rtt = rtt;
	if (!cc->min_rtt || rtt < cc->min_rtt)
		cc->min_rtt = rtt;
	if (!cc->srtt) {
		cc->srtt = rtt;
		cc->rttvar = rtt / 2;
	} else {
		off = rtt > cc->srtt ? rtt - cc->srtt : cc->srtt - rtt;
		/*
		 * RFC 6298 section 2.3. Decay comes first; in the other order the integer division
		 * would settle at 3/4 and 7/8 of the measured value.
		 */
		cc->rttvar -= cc->rttvar / 4;
		cc->rttvar += off / 4;
		cc->srtt -= cc->srtt / 8;
		cc->srtt += rtt / 8;
	}
	cc->rto = (uint32_t)lesser(greater(cc->srtt + 4 * cc->rttvar, LEAST_RTO), LONGEST_RTO);
}

/* Whether the round trip shows a queue. */
static bool is_queueing(const struct siw_rd_cc *cc)
{
	uint64_t rtt = cc->round_rtt ? cc->round_rtt : cc->last_rtt;

	return rtt > cc->min_rtt + cc->min_rtt / 4 + MS / 5;
}

/* Whether the round trip shows a queue longer than needed. */
static bool is_standing(const struct siw_rd_cc *cc)
{
	return !is_local(cc) && cc->last_rtt > 3 * cc->min_rtt + 2 * MS;
}

/*
 * The octets that the path holds without a queue, by the delivery rate, plus a quarter to probe for
 * more. On a local path most of a round trip is the work of the two ends, which take turns: four
 * times as much keeps both busy.
 */
static uint64_t path_holds(const struct siw_rd_cc *cc)
{
	return (uint64_t)((double)cc->rate * (double)cc->min_rtt / (double)SECOND *
			  (is_local(cc) ? 4.0 : 1.25));
}

/* ---- CUBIC ----------------------------------------------------------------------------------- */

/* The integer cube root. */
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

static void reduce(struct siw_rd_cc *cc, uint64_t now, uint64_t to, uint32_t mss)
{
	uint64_t datagrams;

	cc->w_max = cc->cwnd;
	cc->cwnd = greater(to, least_window(cc, mss));
	cc->ssthresh = cc->cwnd;
	cc->epoch = now;
	cc->rest = REST_ROUNDS;
	/*
	 * K = cbrt(W_max (1 - beta) / C) seconds. Multiplying by 10^9 under the root gives
	 * milliseconds.
	 */
	datagrams = (cc->w_max > cc->cwnd ? cc->w_max - cc->cwnd : 0) / mss;
	cc->k_ms = (uint32_t)cube_root(lesser(datagrams, 1000000) * SECOND * 10 / C_10);
}

/* As an integer, bounded: after a long time without loss the value can be huge. */
static uint64_t octets_of(double octets)
{
	return octets < MOST_CWND ? (uint64_t)octets : MOST_CWND;
}

/* CUBIC's window at this time, octets. */
static uint64_t cubic_at(const struct siw_rd_cc *cc, uint64_t now, uint32_t mss)
{
	double t = ((double)(now - cc->epoch + cc->srtt) - (double)cc->k_ms * MS) / (double)SECOND;
	double grown = (double)C_10 / 10 * t * t * t * mss + (double)cc->w_max;

	return grown > 0 ? octets_of(grown) : 0;
}

/* Reno's window at this time with this beta, octets: RFC 9438 section 4.3. */
static uint64_t reno_at(const struct siw_rd_cc *cc, uint64_t now, uint32_t mss)
{
	double rounds = (double)(now - cc->epoch) / (double)(cc->srtt ? cc->srtt : 1);

	return octets_of((double)cc->w_max * BETA_10 / 10 + 0.53 * rounds * mss);
}

static void grow(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint32_t mss)
{
	uint64_t target;

	if (cc->cwnd < cc->ssthresh) {
		cc->cwnd += octets;
		return;
	}
	/*
	 * Below what the path was measured to hold, the last reduction was for noise: grow back
	 * fast.
	 */
	if (!is_local(cc) && cc->cwnd < path_holds(cc)) {
		cc->cwnd += octets / 4;
		return;
	}
	if (!cc->epoch) {
		cc->epoch = now;
		cc->w_max = cc->cwnd;
		cc->k_ms = 0;
	}
	target = greater(cubic_at(cc, now, mss), reno_at(cc, now, mss));
	if (target > cc->cwnd)
		cc->cwnd += lesser(
			(uint64_t)((double)(target - cc->cwnd) * (double)octets / (double)cc->cwnd),
			octets / 2);
	else
		cc->cwnd += octets * mss / cc->cwnd / 100;
}

/* Shrinks the window by a thirtieth per round and restarts growth from there. */
static void yield(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint32_t mss)
{
	uint64_t least = least_window(cc, mss);

	cc->cwnd -= octets / 30;
	if (cc->cwnd < least)
		cc->cwnd = least;
	cc->ssthresh = cc->w_max = cc->cwnd;
	cc->epoch = now;
	cc->k_ms = 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A round has ended: takes stock of what was delivered and lost in it. */
static void end_round(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight)
{
	uint64_t sum = cc->delivered - cc->round_delivered + cc->lost - cc->round_lost;
	uint64_t took = now - cc->round_start, rate;

	if (cc->round_start && took) {
		rate = (uint64_t)((double)(cc->delivered - cc->round_delivered) * (double)SECOND /
				  (double)took);
		/* A maximum that decays by a 64th per round. */
		cc->rate = greater(rate, cc->rate - cc->rate / 64);
	}
	if (sum) {
		cc->noise -= cc->noise / 8;
		cc->noise += (uint32_t)((cc->lost - cc->round_lost) * 65536 / sum / 8);
	}
	/* A queue builds up: the window is large enough, slow start ends. */
	if (cc->cwnd < cc->ssthresh && is_queueing(cc) && cc->cwnd > LOCAL_CWND) {
		if (++cc->slow_rounds >= 2)
			cc->ssthresh = cc->cwnd;
	} else {
		cc->slow_rounds = 0;
	}
	cc->round_rtt = 0;
	cc->round_end = cc->delivered + cc->lost + in_flight;
	cc->round_delivered = cc->delivered;
	cc->round_lost = cc->lost;
	cc->round_start = now;
	if (cc->rest)
		cc->rest--;
	if (cc->compete)
		cc->compete--;
}

void siw_rd_cc_ack(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint64_t in_flight,
		   uint32_t mss, bool full)
{
	cc->delivered += octets;
	if (cc->delivered + cc->lost >= cc->round_end)
		end_round(cc, now, in_flight);
	if (is_standing(cc) && !cc->compete)
		yield(cc, now, octets, mss);
	else if (full)
		grow(cc, now, octets, mss);
}

void siw_rd_cc_loss(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint32_t mss)
{
	uint64_t share = cc->cwnd * BETA_10 / 10;

	cc->lost += octets;
	if (is_standing(cc))
		cc->compete = COMPETE_ROUNDS;
	if (cc->rest)
		return;
	if (cc->noise > NOISE_SHARE)
		reduce(cc, now, share, mss);
	else if (is_queueing(cc))
		reduce(cc, now, greater(share, lesser(path_holds(cc), cc->cwnd)), mss);
}

void siw_rd_cc_timeout(struct siw_rd_cc *cc, uint64_t now, uint32_t mss)
{
	if (!cc->rest)
		reduce(cc, now, cc->cwnd * BETA_10 / 10, mss);
	cc->ssthresh = cc->cwnd;
	cc->cwnd = least_window(cc, mss);
}

uint64_t siw_rd_cc_pace(const struct siw_rd_cc *cc)
{
	if (cc->srtt < LOCAL_RTT || is_local(cc))
		return 0;
	return (uint64_t)((double)cc->cwnd * (double)SECOND / (double)cc->srtt *
			  (cc->cwnd < cc->ssthresh ? 2.0 : 1.2)) +
	       1;
}
