/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc.h - round-trip times and congestion control of one peer. Pure functions on a struct. All
 * times are in nanoseconds, all amounts in octets, all rates in octets per second.
 *
 * Two controllers: BBR, version 3 (draft-ietf-ccwg-bbr; rd_cc_bbr.c), and CUBIC (RFC 9438;
 * rd_cc_cubic.c). Setting rd_cc chooses. Both set a window and a pace, at every round trip.
 *
 * A path that does not leave the host is the exception: there the two ends' CPU time is the
 * bottleneck. It has CUBIC with a large least window, and no pace.
 *
 * What it does NOT do: send, or know of datagrams' numbers.
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

/* What a datagram keeps of the time when it was sent, for the delivery rate (draft, 4.1). */
struct siw_rd_sent {
	uint32_t delivered; /* in all, then: the low bits */
	uint32_t lost;	    /* likewise */
	uint32_t in_flight; /* with it */
	uint32_t idle_ns;   /* from the last delivery before it to its sending */
	uint32_t span_ns;   /* from the sending of what that delivery named to its own */
	bool app_limited;
};

/* CUBIC's own state. */
struct siw_rd_cubic {
	uint64_t ssthresh;
	uint64_t w_max; /* the window before the last reduction */
	uint64_t epoch; /* when growth began anew; 0: not yet */
	uint64_t reduced_at;
	uint64_t round_end; /* delivered in all at the end of this round */
	uint64_t round_rtt; /* the least of this round */
	uint32_t k_ms;	    /* K: time from a reduction until w_max is reached again */
	uint8_t slow_rounds;
};

/* BBR's own state, under the draft's names. UINT64_MAX is the draft's Infinity. */
struct siw_rd_bbr {
	uint64_t max_bw[2]; /* of the cycle before, and of this one */
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
	uint32_t probe_wait_ns; /* until the next probe for bandwidth */
	uint32_t extra_acked[2];
	uint32_t random;
	uint16_t loss_events; /* in this round */
	uint8_t rounds_since_probe, probe_up_rounds, extra_acked_rounds;
	uint8_t state;	   /* enum siw_rd_bbr_state */
	uint8_t ack_phase; /* enum siw_rd_bbr_acks */
	uint8_t full_bw_count, drain_rounds;
	bool paced : 1; /* by a round trip that was measured */
	bool full_bw_reached : 1;
	bool full_bw_now : 1;
	bool round_start : 1;
	bool loss_round_start : 1;
	bool loss_in_round : 1;
	bool probe_sample : 1;
	bool too_high : 1; /* the last probe was */
	bool precautionary : 1;
	bool idle_restart : 1;
	bool probe_rtt_round_done : 1;
};

struct siw_rd_cc {
	/* RFC 6298, but with its own minimum RTO. */
	uint64_t srtt, rttvar;
	uint64_t min_rtt; /* 0: not measured yet */
	uint64_t cwnd;
	uint64_t rate;		  /* the pace; 0: none */
	uint64_t gap;		  /* 2^-20 ns for each octet at that pace */
	uint64_t delivered, lost; /* in all */
	uint64_t delivered_at;	  /* when something was last delivered */
	uint64_t first_sent_at;	  /* when the datagram was sent that was delivered last */
	/* The span that goes on, and the rate of the one before; 0: none, or the path is long. */
	uint64_t span_at, span_delivered, span_rate;
	uint64_t app_limited; /* until so much is delivered; 0: it is not */
	uint32_t rto;
	uint32_t quantum; /* at most so much is sent as one batch */
	uint32_t burst;	  /* octets that a sender who comes late may catch up with */
	uint32_t mss;
	bool bbr_on; /* else CUBIC */
	bool local;  /* the path does not leave the host */
	struct siw_rd_cubic cubic;
	struct siw_rd_bbr bbr;
};

/* One acknowledgement, collected datagram by datagram. */
struct siw_rd_cc_ack {
	uint64_t now;
	uint64_t octets, lost; /* newly delivered, newly lost */
	uint64_t in_flight;    /* after it */
	uint64_t rtt;	       /* of a datagram that was sent once; 0: none */
	uint32_t ce;	       /* datagrams that came with CE since the last one */
	bool full;	       /* the window kept the sender from sending more */
	/* of the delivered datagram that was sent last; newest_at 0: none */
	uint64_t newest_at;
	struct siw_rd_sent newest;
};

/* With the controller that setting rd_cc names; on a local path with CUBIC. */
void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss, bool local);
/* The path leaves the host, or does not; the longest datagram has mss octets. */
void siw_rd_cc_path(struct siw_rd_cc *cc, uint32_t mss, bool local);
/* A round trip was measured, on a datagram that was sent only once (Karn's rule). */
void siw_rd_cc_rtt(struct siw_rd_cc *cc, uint64_t rtt);
/* A datagram is sent; in_flight: octets outstanding before it. */
void siw_rd_cc_sent(struct siw_rd_cc *cc, uint64_t now, uint32_t octets, uint64_t in_flight,
		    struct siw_rd_sent *sent);
/* A datagram, sent at sent_ns, was delivered. */
void siw_rd_cc_delivered(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack,
			 const struct siw_rd_sent *sent, uint32_t octets, uint64_t sent_ns);
/* A datagram counts as lost. */
void siw_rd_cc_lost(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack, const struct siw_rd_sent *sent,
		    uint32_t octets, uint64_t sent_ns);
/* The acknowledgement is complete: renews window and pace. */
void siw_rd_cc_acked(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack);
/* Nothing was acknowledged for a whole RTO. */
void siw_rd_cc_timeout(struct siw_rd_cc *cc, uint64_t now);
/* The sender has nothing more to send, with so much in flight. */
void siw_rd_cc_idle(struct siw_rd_cc *cc, uint64_t in_flight);
/* When a tail loss probe is due after the last sending (RFC 8985 section 7.2), ns. */
uint64_t siw_rd_cc_pto(const struct siw_rd_cc *cc);
/* ns that the pace wants between this many octets and what follows; 0: no pace. */
uint64_t siw_rd_cc_wait(const struct siw_rd_cc *cc, uint32_t octets);

/* cffi: end */

#endif
