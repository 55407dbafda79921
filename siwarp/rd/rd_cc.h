/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc.h - round-trip times and congestion control of one peer, as pure functions on a struct.
 * All times are in nanoseconds, all amounts in octets, all rates in octets per second.
 *
 * There are two controllers: BBR, version 3 (draft-ietf-ccwg-bbr; rd_cc_bbr.c), and CUBIC (RFC
 * 9438; rd_cc_cubic.c). Setting rd_cc selects one. Both compute a congestion window and a pacing
 * rate, at every round trip.
 *
 * A path that does not leave the host is the exception: there the two ends' CPU time is the
 * bottleneck, and CUBIC is used with a large minimum window and without pacing.
 *
 * What it does NOT do: transmit, or know the sequence numbers of datagrams.
 */
#ifndef SIW_RD_CC_H
#define SIW_RD_CC_H

#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */

/* Values of setting rd_cc. */
enum siw_rd_cc_kind {
	SIW_RD_CC_AUTO = 0, /* BBR */
	SIW_RD_CC_BBR = 1,
	SIW_RD_CC_CUBIC = 2,
};

/*
 * Sender state stored with a datagram when it is sent, for measuring the delivery rate (BBR draft,
 * section 4.1).
 */
struct siw_rd_sent {
	uint32_t delivered; /* octets delivered in total at the time of sending: the low 32 bits */
	uint32_t lost;	    /* octets lost in total at the time of sending: the low 32 bits */
	uint32_t in_flight; /* octets in flight, including this datagram */
	uint32_t idle_ns;   /* time from the last delivery to this transmission */
	/* time between the transmission of the datagram delivered last and this transmission */
	uint32_t span_ns;
	bool app_limited;
};

/* State of CUBIC. */
struct siw_rd_cubic {
	uint64_t ssthresh;
	uint64_t w_max; /* the congestion window before the last reduction */
	uint64_t epoch; /* start of the current growth period; 0: none yet */
	uint64_t reduced_at;
	uint64_t round_end; /* total of delivered octets at which this round ends */
	uint64_t round_rtt; /* the smallest round-trip time of this round */
	uint32_t k_ms;	    /* K: time from a reduction until w_max is reached again */
	uint8_t slow_rounds;
};

/* State of BBR, under the draft's names. UINT64_MAX stands for the draft's Infinity. */
struct siw_rd_bbr {
	uint64_t max_bw[2]; /* maximum bandwidth of the previous probe cycle, and of this one */
	uint64_t bw;
	uint64_t bw_latest, bw_shortterm;
	uint64_t inflight_latest, inflight_shortterm, inflight_longterm;
	uint64_t full_bw;
	uint64_t next_round_delivered, loss_round_delivered;
	uint64_t cycle_stamp;
	uint64_t probe_rtt_min_delay, probe_rtt_min_stamp, probe_rtt_done_stamp;
	uint64_t min_rtt_stamp;
	uint64_t extra_acked_start, extra_acked_delivered;
	uint64_t probe_up_per_inc, probe_up_acked;
	uint64_t prior_cwnd;
	uint32_t probe_wait_ns; /* time from the last probe for bandwidth to the next */
	uint32_t extra_acked[2];
	uint32_t random;
	uint16_t loss_events; /* number of losses in this round */
	uint8_t rounds_since_probe, probe_up_rounds, extra_acked_rounds;
	uint8_t state;	   /* enum siw_rd_bbr_state */
	uint8_t ack_phase; /* enum siw_rd_bbr_acks */
	uint8_t full_bw_count, drain_rounds;
	bool paced : 1; /* the pacing rate is based on a measured round trip */
	bool full_bw_reached : 1;
	bool full_bw_now : 1;
	bool round_start : 1;
	bool loss_round_start : 1;
	bool loss_in_round : 1;
	bool probe_sample : 1;
	bool too_high : 1; /* the last bandwidth probe caused too many losses */
	bool precautionary : 1;
	bool idle_restart : 1;
	bool probe_rtt_round_done : 1;
};

struct siw_rd_cc {
	/* RFC 6298, except that the minimum RTO is 20 ms. */
	uint64_t srtt, rttvar;
	uint64_t min_rtt; /* minimum round-trip time; 0: not measured yet */
	uint64_t cwnd;
	uint64_t rate;		  /* pacing rate; 0: no pacing */
	uint64_t gap;		  /* pacing interval per octet, in units of 2^-20 ns */
	uint64_t delivered, lost; /* total octets delivered, and lost */
	uint64_t delivered_at;	  /* time of the last delivery */
	uint64_t first_sent_at;	  /* send time of the datagram that was delivered last */
	/*
	 * Start of the current span of rate measurement, and the rate of the previous span; 0: no
	 * rate was measured, or the path is long.
	 */
	uint64_t span_at, span_delivered, span_rate;
	/*
	 * The sender is limited by the application until this many octets are delivered in total;
	 * 0: the sender is not limited by the application.
	 */
	uint64_t app_limited;
	uint32_t rto;
	uint32_t quantum; /* maximum octets of one batch */
	/* octets that a sender that is late in its pacing schedule may send without pacing */
	uint32_t burst;
	uint32_t mss;
	bool bbr_on; /* BBR is used; otherwise CUBIC */
	bool local;  /* the path does not leave the host */
	struct siw_rd_cubic cubic;
	struct siw_rd_bbr bbr;
};

/* Effects of one acknowledgement, collected datagram by datagram. */
struct siw_rd_cc_ack {
	uint64_t now;
	uint64_t octets, lost; /* octets newly delivered, newly lost */
	uint64_t in_flight;    /* octets in flight after this acknowledgement */
	uint64_t rtt;	       /* round-trip time of a datagram that was sent only once; 0: none */
	uint32_t ce;	       /* datagrams newly reported as received with CE */
	bool full;	       /* the congestion window kept the sender from sending more */
	/* send time and state of the delivered datagram that was sent last; newest_at 0: none */
	uint64_t newest_at;
	struct siw_rd_sent newest;
};

/*
 * Initializes the congestion control with the controller that setting rd_cc selects; on a local
 * path with CUBIC.
 */
void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss, bool local);
/*
 * Reports a change of the path. mss: octets of the longest datagram; local: the path does not leave
 * the host.
 */
void siw_rd_cc_set_path_mss(struct siw_rd_cc *cc, uint32_t mss, bool local);
/* Reports a round-trip time, measured on a datagram that was sent only once (Karn's algorithm). */
void siw_rd_cc_add_rtt_sample(struct siw_rd_cc *cc, uint64_t rtt);
/* Reports the transmission of a datagram; in_flight: octets outstanding before it. */
void siw_rd_cc_note_sent(struct siw_rd_cc *cc, uint64_t now, uint32_t octets, uint64_t in_flight,
			 struct siw_rd_sent *sent);
/* Reports the delivery of a datagram that was sent at sent_ns. */
void siw_rd_cc_note_delivered(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack,
			      const struct siw_rd_sent *sent, uint32_t octets, uint64_t sent_ns);
/* Reports that a datagram that was sent at sent_ns is considered lost. */
void siw_rd_cc_note_lost(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack,
			 const struct siw_rd_sent *sent, uint32_t octets, uint64_t sent_ns);
/*
 * Called when all effects of an acknowledgement are collected: updates the congestion window and
 * the pacing rate.
 */
void siw_rd_cc_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack);
/* Reports that nothing was acknowledged for a complete RTO. */
void siw_rd_cc_handle_timeout(struct siw_rd_cc *cc, uint64_t now);
/* Reports that the sender has no more datagrams to send while in_flight octets are outstanding. */
void siw_rd_cc_mark_app_limited(struct siw_rd_cc *cc, uint64_t in_flight);
/* Returns the time from the last transmission to a tail loss probe (RFC 8985 section 7.2), ns. */
uint64_t siw_rd_cc_probe_timeout_ns(const struct siw_rd_cc *cc);
/*
 * Returns the time, in ns, that pacing requires between a transmission of this number of octets and
 * the next transmission; 0: no pacing.
 */
uint64_t siw_rd_cc_pacing_delay(const struct siw_rd_cc *cc, uint32_t octets);

/* cffi: end */

#endif
