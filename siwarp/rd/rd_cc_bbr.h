/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc_bbr.h - declarations shared by the BBR files: states, and helper functions on the model.
 */
#ifndef SIW_RD_CC_BBR_H
#define SIW_RD_CC_BBR_H

#include "rd/rd_cc_impl.h"

/*
 * Minimum congestion windows, in datagrams: BBR.MinPipeCwnd. The draft has 4. On a short path that
 * is a high rate, and 4 datagrams overflow a queue of two packets; RD's receiver acknowledges each
 * datagram within 20 us, so that 2 suffice on a short path.
 */
#define LEAST_CWND	 4
#define LEAST_CWND_SHORT 2
/* paths with a shorter or an unknown round trip are short */
#define SHORT_PATH	 (10 * MS)
#define BETA_10		 7
#define HEADROOM_PERCENT 15

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

/* Gains for the pacing rate and the window, in hundredths. */
struct siw_rd_bbr_gain {
	uint16_t pace, window;
};

/* The gains of each state of BBR, indexed by state. */
extern const struct siw_rd_bbr_gain siw_rd_bbr_gains[];

static inline bool is_probing_bw_state(const struct siw_rd_bbr *bbr)
{
	return bbr->state >= PROBE_DOWN && bbr->state <= PROBE_UP;
}

static inline bool is_accelerating(const struct siw_rd_bbr *bbr)
{
	return bbr->state == STARTUP || bbr->state == PROBE_REFILL || bbr->state == PROBE_UP;
}

static inline uint64_t max_bw(const struct siw_rd_bbr *bbr)
{
	return greater(bbr->max_bw[0], bbr->max_bw[1]);
}

static inline bool is_short_path(const struct siw_rd_cc *cc)
{
	return cc->min_rtt < SHORT_PATH;
}

static inline uint64_t bbr_min_window(const struct siw_rd_cc *cc)
{
	return (is_short_path(cc) ? LEAST_CWND_SHORT : LEAST_CWND) * (uint64_t)cc->mss;
}

static inline uint64_t bdp(const struct siw_rd_cc *cc, uint64_t bw, uint32_t hundredths)
{
	if (!cc->min_rtt || !bw)
		return 10 * (uint64_t)cc->mss;
	return octets_in(bw, cc->min_rtt) * hundredths / 100;
}

/*
 * Adds an allowance for datagrams that are sent and acknowledged in batches to an amount of octets.
 */
static inline uint64_t with_quanta(const struct siw_rd_cc *cc, uint64_t octets)
{
	octets = greater(octets, cc->quantum);
	octets = greater(octets, bbr_min_window(cc));
	return cc->bbr.state == PROBE_UP ? octets + 2 * (uint64_t)cc->mss : octets;
}

static inline uint64_t target_inflight(const struct siw_rd_cc *cc)
{
	return lesser(bdp(cc, cc->bbr.bw, 100), cc->cwnd);
}

static inline uint64_t inflight_with_headroom(const struct siw_rd_cc *cc)
{
	uint64_t most = cc->bbr.inflight_longterm;

	if (most == NO_LIMIT)
		return NO_LIMIT;
	return greater(most - lesser(most, greater(cc->mss, most * HEADROOM_PERCENT / 100)),
		       bbr_min_window(cc));
}

static inline void start_round(struct siw_rd_cc *cc)
{
	cc->bbr.next_round_delivered = cc->delivered;
}

static inline void reset_short_term(struct siw_rd_bbr *bbr)
{
	bbr->bw_shortterm = bbr->inflight_shortterm = NO_LIMIT;
}

static inline void reset_full_bw(struct siw_rd_bbr *bbr)
{
	bbr->full_bw = 0;
	bbr->full_bw_count = 0;
	bbr->full_bw_now = false;
}

/* functions of rd_cc_bbr_loss.c */
bool siw_rd_bbr_is_loss_too_high(const struct siw_rd_cc *cc, uint64_t lost, uint64_t in_flight);
void siw_rd_bbr_adapt_lower_bounds(struct siw_rd_cc *cc);

/* functions of rd_cc_bbr_probe.c */
void siw_rd_bbr_start_probe_down(struct siw_rd_cc *cc, uint64_t now);
void siw_rd_bbr_update_cycle(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
			     const struct sample *s);

/* functions of rd_cc_bbr_rtt.c */
bool siw_rd_bbr_update_min_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack);
uint64_t siw_rd_bbr_probe_rtt_cwnd(const struct siw_rd_cc *cc);
void siw_rd_bbr_exit_probe_rtt_if_done(struct siw_rd_cc *cc, uint64_t now);
void siw_rd_bbr_check_probe_rtt(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
				bool expired);

#endif
