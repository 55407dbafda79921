/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc.h - round-trip times and congestion control of one peer: values in, values out. All
 * times in nanoseconds, all amounts in octets.
 *
 * The window grows as CUBIC's (RFC 9438). It differs in which losses count. A loss while the round
 * trip is near its minimum is taken for noise of the path and changes nothing, up to a share of
 * SIW_RD_CC_NOISE. A loss while a queue stands, or beyond that share, is congestion.
 *
 * A round trip of more than three times the minimum means a needlessly long queue, and the window
 * shrinks, as BBR bounds its own. But where losses show that another flow fills the buffer anyway,
 * this one competes.
 *
 * What it does NOT do: send, or know of datagrams.
 */
#ifndef SIW_RD_CC_H
#define SIW_RD_CC_H

#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */

struct siw_rd_cc {
	/* RFC 6298, with a least RTO of its own. */
	uint64_t srtt, rttvar;
	uint64_t min_rtt, last_rtt; /* 0: none yet */
	uint64_t cwnd, ssthresh;
	uint64_t w_max; /* CUBIC: the window before the last reduction */
	uint64_t epoch; /* when the last reduction was; 0: none, or long idle */
	/* A round: from a delivery to the delivery of what was sent right after it. */
	uint64_t delivered, lost; /* in all */
	uint64_t round_end;	  /* delivered + in flight when it began */
	uint64_t round_delivered, round_lost, round_start;
	uint64_t round_rtt; /* least of this round */
	uint64_t rate;	    /* delivered a second, the greatest of late */
	uint32_t rto;
	uint32_t noise; /* smoothed share of losses, in 1/65536 */
	uint32_t k_ms;	/* CUBIC: how long after a reduction it is there again */
	uint8_t rest;	/* rounds until a reduction may follow the last */
	uint8_t slow_rounds;
	uint8_t compete; /* rounds in which a standing queue is no reason to yield */
};

void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss);
/* A round trip measured on a datagram that was sent once (Karn's rule). */
void siw_rd_cc_rtt(struct siw_rd_cc *cc, uint64_t rtt);
/*
 * octets were delivered. in_flight: octets still outstanding; full: the window kept more from being
 * sent.
 */
void siw_rd_cc_ack(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint64_t in_flight,
		   uint32_t mss, bool full);
void siw_rd_cc_loss(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint32_t mss);
/* Nothing was acknowledged for a whole RTO. */
void siw_rd_cc_timeout(struct siw_rd_cc *cc, uint64_t now, uint32_t mss);
/* Octets a second to send at; 0: the round trip is too short to pace by. */
uint64_t siw_rd_cc_pace(const struct siw_rd_cc *cc);

/* cffi: end */

#endif
