/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc.h - round-trip times and congestion control of one peer. Pure functions on a struct. All
 * times are in nanoseconds, all amounts in octets.
 *
 * The window grows as CUBIC's does (RFC 9438). What differs is which losses count. While the round
 * trip is near its minimum, a loss is taken for noise of the path and changes nothing, up to a loss
 * rate of 4%. A loss while a queue stands, or beyond that rate, means congestion.
 *
 * A round trip of more than three times the minimum means a needlessly long queue, and the window
 * shrinks, as BBR bounds its own. If losses show that another flow fills the buffer anyway, the
 * window does not shrink: this flow competes.
 *
 * What it does NOT do: send, or know of datagrams.
 */
#ifndef SIW_RD_CC_H
#define SIW_RD_CC_H

#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */

struct siw_rd_cc {
	/* RFC 6298, but with its own minimum RTO. */
	uint64_t srtt, rttvar;
	uint64_t min_rtt, last_rtt; /* 0: not measured yet */
	uint64_t cwnd, ssthresh;
	uint64_t w_max; /* CUBIC: the window before the last reduction */
	uint64_t epoch; /* time of the last reduction; 0: none, or idle for long */
	/* A round lasts from a delivery to the delivery of what was sent right after it. */
	uint64_t delivered, lost; /* in all */
	uint64_t round_end;	  /* delivered + lost + in flight at its beginning */
	uint64_t round_delivered, round_lost, round_start;
	uint64_t round_rtt; /* the least of this round */
	uint64_t rate;	    /* the greatest recent delivery rate, octets per second */
	uint32_t rto;
	uint32_t noise; /* smoothed loss rate, in 1/65536 */
	uint32_t k_ms;	/* CUBIC's K: time from a reduction until w_max is reached again */
	uint8_t rest;	/* rounds until the next reduction is allowed */
	uint8_t slow_rounds;
	uint8_t compete; /* rounds in which a standing queue does not shrink the window */
};

void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss);
/* A round trip was measured, on a datagram that was sent only once (Karn's rule). */
void siw_rd_cc_rtt(struct siw_rd_cc *cc, uint64_t rtt);
/*
 * octets were delivered. in_flight: octets still outstanding. full: the window kept the sender from
 * sending more.
 */
void siw_rd_cc_ack(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint64_t in_flight,
		   uint32_t mss, bool full);
void siw_rd_cc_loss(struct siw_rd_cc *cc, uint64_t now, uint64_t octets, uint32_t mss);
/* Nothing was acknowledged for a whole RTO. */
void siw_rd_cc_timeout(struct siw_rd_cc *cc, uint64_t now, uint32_t mss);
/* Octets per second to send at; 0: no pacing, since the round trip is too short for it. */
uint64_t siw_rd_cc_pace(const struct siw_rd_cc *cc);

/* cffi: end */

#endif
