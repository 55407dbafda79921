/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr.c - BBR, version 3, as draft-ietf-ccwg-bbr has it, and under its names. Where this
 * differs, a comment says so and why.
 *
 * BBR keeps a model of the path: the greatest delivery rate of the last two cycles, the least round
 * trip of the last ten seconds, and how much may be in flight before more than 2% is lost. It sends
 * at that rate, and now and then a quarter faster, to find out whether there is more.
 */
#include "rd/rd_cc_impl.h"

/*
 * Datagrams: BBR.MinPipeCwnd. The draft has 4, for receivers that acknowledge every other packet.
 * RD's acknowledges each within 20 us, and 4 overflow a queue of two packets.
 */
#define LEAST_CWND	 2
#define LOSS_PERCENT	 2 /* BBR.LossThresh */
#define BETA_10		 7
#define HEADROOM_PERCENT 15
#define STARTUP_LOSSES	 6 /* losses in a round that may end Startup */
#define MIN_RTT_LEN	 (10 * SECOND)
#define PROBE_RTT_EVERY	 (5 * SECOND)
#define PROBE_RTT_LASTS	 (200 * MS)
#define EXTRA_ROUNDS	 5 /* of each of two slots: together BBR.ExtraAckedFilterLen */
/*
 * Rounds from one probe to the next: the draft has as many as datagrams fit in flight. At a window
 * of two or three that would be a probe, and so a loss, in every other round; this is half as often.
 * It stays in proportion, so that of two flows the smaller one probes more often and catches up.
 */
#define LEAST_RENO_ROUNDS 6
#define MOST_RENO_ROUNDS  63

enum siw_rd_bbr_state {
	STARTUP,
	DRAIN,
	PROBE_DOWN,
	PROBE_CRUISE,
	PROBE_REFILL,
	PROBE_UP,
	PROBE_RTT
};

enum siw_rd_bbr_acks { ACKS_INIT, ACKS_REFILLING, ACKS_STARTING, ACKS_FEEDBACK, ACKS_STOPPING };

/* By state: pace and window as multiples of the model, in hundredths. */
static const struct {
	uint16_t pace, window;
} gains[] = {
	[STARTUP] = { 277, 200 },      [DRAIN] = { 50, 200 },	      [PROBE_DOWN] = { 90, 200 },
	[PROBE_CRUISE] = { 100, 200 }, [PROBE_REFILL] = { 100, 200 }, [PROBE_UP] = { 125, 225 },
	[PROBE_RTT] = { 100, 50 },
};

static bool is_probing_bw_state(const struct siw_rd_bbr *bbr)
{
	return bbr->state >= PROBE_DOWN && bbr->state <= PROBE_UP;
}

static bool is_accelerating(const struct siw_rd_bbr *bbr)
{
	return bbr->state == STARTUP || bbr->state == PROBE_REFILL || bbr->state == PROBE_UP;
}

static uint64_t max_bw(const struct siw_rd_bbr *bbr)
{
	return greater(bbr->max_bw[0], bbr->max_bw[1]);
}

static uint64_t least_window(const struct siw_rd_cc *cc)
{
	return LEAST_CWND * (uint64_t)cc->mss;
}

static uint64_t bdp(const struct siw_rd_cc *cc, uint64_t bw, uint32_t hundredths)
{
	if (!cc->min_rtt || !bw)
		return 10 * (uint64_t)cc->mss;
	return octets_in(bw, cc->min_rtt) * hundredths / 100;
}

/* What the ends need in flight besides, as they send and acknowledge several at once. */
static uint64_t with_quanta(const struct siw_rd_cc *cc, uint64_t octets)
{
	octets = greater(octets, cc->quantum);
	octets = greater(octets, least_window(cc));
	return cc->bbr.state == PROBE_UP ? octets + 2 * (uint64_t)cc->mss : octets;
}

static uint64_t target_inflight(const struct siw_rd_cc *cc)
{
	return lesser(bdp(cc, cc->bbr.bw, 100), cc->cwnd);
}

static uint64_t inflight_with_headroom(const struct siw_rd_cc *cc)
{
	uint64_t most = cc->bbr.inflight_longterm;

	if (most == NO_LIMIT)
		return NO_LIMIT;
	return greater(most - lesser(most, greater(cc->mss, most * HEADROOM_PERCENT / 100)),
		       least_window(cc));
}

static uint32_t next_random(struct siw_rd_bbr *bbr)
{
	bbr->random = bbr->random * 1664525u + 1013904223u;
	return bbr->random >> 8;
}

/* ---- rounds and states ----------------------------------------------------------------------- */

static void start_round(struct siw_rd_cc *cc)
{
	cc->bbr.next_round_delivered = cc->delivered;
}

static void reset_congestion_signals(struct siw_rd_bbr *bbr)
{
	bbr->loss_in_round = false;
	bbr->loss_events = 0;
	bbr->bw_latest = bbr->inflight_latest = 0;
}

static void reset_short_term(struct siw_rd_bbr *bbr)
{
	bbr->bw_shortterm = bbr->inflight_shortterm = NO_LIMIT;
}

static void reset_full_bw(struct siw_rd_bbr *bbr)
{
	bbr->full_bw = 0;
	bbr->full_bw_count = 0;
	bbr->full_bw_now = false;
}

static void start_down(struct siw_rd_cc *cc, uint64_t now)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	reset_congestion_signals(bbr);
	bbr->probe_up_per_inc = NO_LIMIT;
	/* BBR.bw_probe_wait and rounds_since_bw_probe: 2 to 3 s, or as many rounds as Reno needs */
	bbr->probe_wait_ns = (uint32_t)(2 * SECOND + next_random(bbr) % SECOND);
	bbr->rounds_since_probe = (uint8_t)(next_random(bbr) & 1);
	bbr->cycle_stamp = now;
	bbr->ack_phase = ACKS_STOPPING;
	start_round(cc);
	bbr->state = PROBE_DOWN;
}

static void start_refill(struct siw_rd_cc *cc)
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

static void raise_slope(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->probe_up_per_inc = greater(cc->cwnd >> bbr->probe_up_rounds, cc->mss);
	if (bbr->probe_up_rounds < 30)
		bbr->probe_up_rounds++;
}

static void start_up(struct siw_rd_cc *cc, uint64_t rate)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->ack_phase = ACKS_STARTING;
	start_round(cc);
	reset_full_bw(bbr);
	bbr->full_bw = rate;
	bbr->state = PROBE_UP;
	raise_slope(cc);
}

/* The initial window in the first round trip, or in 1 ms before one was measured. */
static uint64_t first_rate(const struct siw_rd_cc *cc)
{
	return (uint64_t)((double)cc->cwnd * (double)SECOND / (double)(cc->srtt ? cc->srtt : MS) *
			  gains[STARTUP].pace / 100);
}

void siw_rd_bbr_init(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->inflight_longterm = bbr->probe_up_per_inc = NO_LIMIT;
	bbr->probe_rtt_min_delay = NO_LIMIT;
	bbr->random = (uint32_t)(uintptr_t)cc;
	reset_short_term(bbr);
	siw_rd_cc_set_rate(cc, first_rate(cc));
}

/* ---- loss ------------------------------------------------------------------------------------ */

/*
 * More than 2% of what was in flight: IsInflightTooHigh. Where 2% are a datagram or more, two more:
 * of 100 datagrams at 1% random loss, three are lost too often to mean anything.
 */
static bool is_too_high(const struct siw_rd_cc *cc, uint64_t lost, uint64_t in_flight)
{
	uint64_t free = in_flight * LOSS_PERCENT / 100;

	return lost > (free < cc->mss ? free : free + 2 * (uint64_t)cc->mss);
}

static void too_high(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight, bool app_limited)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->too_high = true;
	bbr->probe_sample = false; /* once for each probe */
	if (!app_limited)
		bbr->inflight_longterm = greater(in_flight, target_inflight(cc) * BETA_10 / 10);
	if (bbr->state == PROBE_UP)
		start_down(cc, now);
}

/* How much was in flight when losses passed the threshold: InflightAtLoss. */
static uint64_t inflight_at_loss(uint64_t in_flight, uint64_t lost, uint32_t octets)
{
	uint64_t before = in_flight - lesser(in_flight, octets);
	uint64_t lost_before = lost - lesser(lost, octets);
	uint64_t free = before * LOSS_PERCENT / 100;

	return before +
	       (free > lost_before ? (free - lost_before) * 100 / (100 - LOSS_PERCENT) : 0);
}

void siw_rd_bbr_lost(struct siw_rd_cc *cc, uint64_t now, const struct siw_rd_sent *sent,
		     uint32_t octets)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t lost = (uint32_t)cc->lost - sent->lost;

	if (!bbr->loss_in_round)
		bbr->loss_round_delivered = cc->delivered;
	bbr->loss_in_round = true;
	if (bbr->loss_events < UINT16_MAX)
		bbr->loss_events++;
	if (bbr->probe_sample && is_too_high(cc, lost, sent->in_flight))
		too_high(cc, now, inflight_at_loss(sent->in_flight, lost, octets),
			 sent->app_limited);
}

/*
 * Whether the losses of this round are too few to mean congestion. The draft lets any loss reduce
 * the rate, round by round until the next probe: with 1% random loss nearly all rounds have one,
 * and a sixth of a line of 50 Mbit/s and 20 ms stays unused. So the threshold of probing counts
 * here, too.
 */
static bool is_noise(const struct siw_rd_cc *cc)
{
	return !is_too_high(cc, cc->bbr.loss_events * (uint64_t)cc->mss, cc->cwnd);
}

/* Once a round that had losses, while not probing: less, down to what is being delivered. */
static void adapt_lower_bounds(struct siw_rd_cc *cc)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (is_accelerating(bbr) || !bbr->loss_in_round || is_noise(cc))
		return;
	if (bbr->bw_shortterm == NO_LIMIT)
		bbr->bw_shortterm = max_bw(bbr);
	if (bbr->inflight_shortterm == NO_LIMIT)
		bbr->inflight_shortterm = cc->cwnd;
	bbr->bw_shortterm = greater(bbr->bw_latest, bbr->bw_shortterm * BETA_10 / 10);
	bbr->inflight_shortterm =
		greater(bbr->inflight_latest, bbr->inflight_shortterm * BETA_10 / 10);
}

/* ---- the model ------------------------------------------------------------------------------- */

static void update_round(struct siw_rd_cc *cc, const struct sample *s)
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

static void update_signals(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->loss_round_start = s->prior >= bbr->loss_round_delivered;
	if (bbr->loss_round_start)
		bbr->loss_round_delivered = cc->delivered;
	bbr->bw_latest = greater(bbr->bw_latest, s->rate);
	bbr->inflight_latest = greater(bbr->inflight_latest, s->delivered);
	update_round(cc, s);
	if (s->rate && (s->rate >= max_bw(bbr) || !s->app_limited))
		bbr->max_bw[1] = greater(bbr->max_bw[1], s->rate);
	if (bbr->loss_round_start)
		adapt_lower_bounds(cc);
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

static void check_full_bw(struct siw_rd_cc *cc, const struct sample *s)
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

static void check_startup_done(struct siw_rd_cc *cc, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (bbr->state != STARTUP)
		return;
	if (!bbr->full_bw_reached && bbr->loss_round_start && bbr->loss_in_round &&
	    bbr->loss_events >= STARTUP_LOSSES && is_too_high(cc, s->lost, s->in_flight)) {
		bbr->full_bw_reached = true;
		bbr->inflight_longterm = greater(bdp(cc, max_bw(bbr), 100), bbr->inflight_latest);
	}
	if (!bbr->full_bw_reached)
		return;
	bbr->state = DRAIN;
	bbr->drain_rounds = 0;
}

static void check_drain_done(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	if (cc->bbr.state == DRAIN &&
	    (ack->in_flight <= with_quanta(cc, bdp(cc, cc->bbr.bw, 100)) ||
	     cc->bbr.drain_rounds > 3))
		start_down(cc, ack->now);
}

/* ---- probing for bandwidth ------------------------------------------------------------------- */

static void probe_upward(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
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
		raise_slope(cc);
}

/* true: it decided on a state. */
static bool adapt_long_term(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
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
			start_refill(cc);
			return true;
		}
	}
	if (is_too_high(cc, s->lost, s->in_flight) || bbr->inflight_longterm == NO_LIMIT)
		return false;
	bbr->inflight_longterm = greater(bbr->inflight_longterm, s->in_flight);
	if (bbr->state == PROBE_UP)
		probe_upward(cc, ack);
	return false;
}

/* Whether 2 to 3 s have passed, or as many rounds as Reno takes to grow by as much again. */
static bool is_time_to_probe(struct siw_rd_cc *cc, uint64_t now)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t rounds = LEAST_RENO_ROUNDS + 2 * target_inflight(cc) / cc->mss;

	return now - bbr->cycle_stamp > bbr->probe_wait_ns ||
	       bbr->rounds_since_probe >= lesser(rounds, MOST_RENO_ROUNDS);
}

static bool is_time_to_cruise(const struct siw_rd_cc *cc, uint64_t in_flight)
{
	return in_flight <= inflight_with_headroom(cc) &&
	       in_flight <= with_quanta(cc, bdp(cc, max_bw(&cc->bbr), 100));
}

static bool is_time_to_go_down(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
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

static void update_cycle(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
			 const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (!bbr->full_bw_reached || adapt_long_term(cc, ack, s) || !is_probing_bw_state(bbr))
		return;
	if (bbr->state == PROBE_REFILL) {
		if (bbr->round_start) {
			bbr->probe_sample = true;
			start_up(cc, s->rate);
		}
	} else if (bbr->state == PROBE_UP) {
		if (is_time_to_go_down(cc, ack, s)) {
			bbr->too_high = false;
			start_down(cc, ack->now);
		}
	} else if (is_time_to_probe(cc, ack->now)) {
		start_refill(cc);
	} else if (bbr->state == PROBE_DOWN && is_time_to_cruise(cc, ack->in_flight)) {
		bbr->state = PROBE_CRUISE;
	}
}

/* ---- the least round trip -------------------------------------------------------------------- */

static bool update_min_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	bool expired = ack->now > bbr->probe_rtt_min_stamp + PROBE_RTT_EVERY;

	if (ack->rtt && (ack->rtt < bbr->probe_rtt_min_delay || expired)) {
		if (bbr->probe_rtt_min_delay == NO_LIMIT)
			expired = false; /* the first one: nothing is known to be stale */
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

static uint64_t probe_rtt_cwnd(const struct siw_rd_cc *cc)
{
	return greater(bdp(cc, cc->bbr.bw, gains[PROBE_RTT].window), least_window(cc));
}

static void exit_probe_rtt(struct siw_rd_cc *cc, uint64_t now)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	bbr->probe_rtt_min_stamp = now;
	cc->cwnd = greater(cc->cwnd, bbr->prior_cwnd);
	reset_short_term(bbr);
	if (bbr->full_bw_reached) {
		start_down(cc, now);
		bbr->state = PROBE_CRUISE;
	} else {
		bbr->state = STARTUP;
	}
}

static void check_probe_rtt_done(struct siw_rd_cc *cc, uint64_t now)
{
	if (cc->bbr.probe_rtt_done_stamp && now > cc->bbr.probe_rtt_done_stamp)
		exit_probe_rtt(cc, now);
}

static void check_probe_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack, bool expired)
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
		if (!bbr->probe_rtt_done_stamp && ack->in_flight <= probe_rtt_cwnd(cc)) {
			bbr->probe_rtt_done_stamp = ack->now + PROBE_RTT_LASTS;
			bbr->probe_rtt_round_done = false;
			start_round(cc);
		} else if (bbr->probe_rtt_done_stamp) {
			bbr->probe_rtt_round_done |= bbr->round_start;
			if (bbr->probe_rtt_round_done)
				check_probe_rtt_done(cc, ack->now);
		}
	}
	bbr->idle_restart = false;
}

/* ---- window and pace ------------------------------------------------------------------------- */

static void set_pace(struct siw_rd_cc *cc, uint32_t gain)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	/* 1% less than what is measured, so that queues shrink: BBR.PacingMarginPercent */
	uint64_t rate = bbr->bw * gain / 100 * 99 / 100;

	if (!bbr->paced) {
		bbr->paced = true;
		cc->rate = 0; /* the round trip is known now */
		rate = greater(rate, first_rate(cc));
	}
	if (bbr->full_bw_reached || rate > cc->rate)
		siw_rd_cc_set_rate(cc, rate);
}

static void bound_cwnd(struct siw_rd_cc *cc)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t cap = NO_LIMIT;

	if (bbr->state == PROBE_RTT || bbr->state == PROBE_CRUISE)
		cap = inflight_with_headroom(cc);
	else if (is_probing_bw_state(bbr))
		cap = bbr->inflight_longterm;
	cap = greater(lesser(cap, bbr->inflight_shortterm), least_window(cc));
	cc->cwnd = lesser(cc->cwnd, cap);
}

static void set_cwnd(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	const struct siw_rd_bbr *bbr = &cc->bbr;
	uint64_t extra = greater(bbr->extra_acked[0], bbr->extra_acked[1]);
	uint64_t most = with_quanta(cc, bdp(cc, bbr->bw, gains[bbr->state].window) + extra);

	if (bbr->full_bw_reached)
		cc->cwnd = lesser(cc->cwnd + ack->octets, most);
	else if (cc->cwnd < most || cc->delivered < 10 * (uint64_t)cc->mss)
		cc->cwnd += ack->octets;
	cc->cwnd = greater(cc->cwnd, least_window(cc));
	if (bbr->state == PROBE_RTT)
		cc->cwnd = lesser(cc->cwnd, probe_rtt_cwnd(cc));
	bound_cwnd(cc);
}

/* ---- events ---------------------------------------------------------------------------------- */

void siw_rd_bbr_sent(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight)
{
	struct siw_rd_bbr *bbr = &cc->bbr;

	if (in_flight || !cc->app_limited)
		return;
	bbr->idle_restart = true;
	bbr->extra_acked_start = now;
	if (is_probing_bw_state(bbr))
		set_pace(cc, 100);
	else if (bbr->state == PROBE_RTT)
		check_probe_rtt_done(cc, now);
}

void siw_rd_bbr_acked(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack, const struct sample *s)
{
	struct siw_rd_bbr *bbr = &cc->bbr;
	bool expired;

	update_signals(cc, s);
	update_ack_aggregation(cc, ack);
	check_full_bw(cc, s);
	check_startup_done(cc, s);
	if (bbr->loss_round_start) {
		bbr->loss_in_round = false;
		bbr->loss_events = 0;
	}
	check_drain_done(cc, ack);
	update_cycle(cc, ack, s);
	expired = update_min_rtt(cc, ack);
	check_probe_rtt(cc, ack, expired);
	if (bbr->loss_round_start) {
		bbr->bw_latest = s->rate;
		bbr->inflight_latest = s->delivered;
	}
	bbr->bw = lesser(max_bw(bbr), bbr->bw_shortterm);
	set_pace(cc, gains[bbr->state].pace);
	set_cwnd(cc, ack);
}

void siw_rd_bbr_timeout(struct siw_rd_cc *cc, uint64_t now)
{
	(void)now;
	cc->cwnd = least_window(cc);
}
