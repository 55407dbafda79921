/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_cc.c - functions that both congestion controllers use: round-trip times, delivery rates,
 * pacing.
 */
#include <string.h>

#include "base/settings.h"
#include "rd/rd_cc_impl.h"

#define LEAST_RTO    (20 * MS)
#define LONGEST_RTO  SECOND
#define FIRST_RTO    (200 * MS)
#define LONGEST_RTT  (2 * SECOND)
#define FIRST_CWND   10 /* initial congestion window, in datagrams; RFC 6928 */
#define QUANTUM_NS   (MS / 5)
#define BURST_NS     (MS / 2)
#define MOST_AT_ONCE 65507
#define SPAN_NS	     (10 * MS)
#define SPAN_LEAST   16 /* datagrams */

void siw_rd_cc_init(struct siw_rd_cc *cc, uint32_t mss, bool local)
{
	memset(cc, 0, sizeof(*cc));
	cc->rto = FIRST_RTO;
	cc->mss = mss;
	cc->cwnd = 14600;
	cc->quantum = mss;
	cc->burst = 4 * mss;
	siw_rd_cubic_init(cc);
	siw_rd_bbr_init(cc);
	siw_rd_cc_set_path_mss(cc, mss, local);
}

void siw_rd_cc_set_path_mss(struct siw_rd_cc *cc, uint32_t mss, bool local)
{
	cc->mss = mss;
	/*
	 * Until the first loss, the congestion window is at least FIRST_CWND datagrams, also after
	 * a change of the MSS.
	 */
	if (!cc->lost)
		cc->cwnd = greater(cc->cwnd, FIRST_CWND * (uint64_t)mss);
	cc->local = local;
	cc->bbr_on = !local && siw_settings()->rd_cc != SIW_RD_CC_CUBIC;
	if (!local)
		return;
	cc->rate = 0;
	cc->cwnd = greater(cc->cwnd, LOCAL_CWND);
}

void siw_rd_cc_add_rtt_sample(struct siw_rd_cc *cc, uint64_t rtt)
{
	uint64_t off;

	if (!rtt)
		rtt = 1;
	/*
	 * A round-trip time above LONGEST_RTT does not measure the path: the datagram was
	 * retransmitted, or this process was stopped.
	 */
	if (rtt > LONGEST_RTT)
		rtt = LONGEST_RTT;
	if (!cc->cubic.round_rtt || rtt < cc->cubic.round_rtt)
		cc->cubic.round_rtt = rtt;
	if (!cc->min_rtt || (rtt < cc->min_rtt && !cc->bbr_on))
		cc->min_rtt = rtt;
	if (!cc->srtt) {
		cc->srtt = rtt;
		cc->rttvar = rtt / 2;
	} else {
		off = rtt > cc->srtt ? rtt - cc->srtt : cc->srtt - rtt;
		/*
		 * RFC 6298 section 2.3. The old value is reduced before the new sample is added; in
		 * the other order the integer division would settle at 3/4 and 7/8 of the measured
		 * value.
		 */
		cc->rttvar -= cc->rttvar / 4;
		cc->rttvar += off / 4;
		cc->srtt -= cc->srtt / 8;
		cc->srtt += rtt / 8;
	}
	cc->rto = (uint32_t)lesser(greater(cc->srtt + 4 * cc->rttvar, LEAST_RTO), LONGEST_RTO);
}

void siw_rd_cc_set_rate(struct siw_rd_cc *cc, uint64_t rate)
{
	/* never slower than two datagrams per second, so that the flow can recover */
	cc->rate = greater(rate, 2 * (uint64_t)cc->mss);
	cc->gap = (SECOND << 20) / cc->rate;
	cc->burst = (uint32_t)greater(lesser(cc->burst, octets_in(cc->rate, BURST_NS)), cc->mss);
	cc->quantum = (uint32_t)lesser(greater(octets_in(cc->rate, QUANTUM_NS), cc->mss),
				       lesser(cc->burst, MOST_AT_ONCE));
}

uint64_t siw_rd_cc_probe_timeout_ns(const struct siw_rd_cc *cc)
{
	uint64_t slack = cc->local ? MS : lesser(greater(4 * cc->rttvar, MS / 5), MS);

	return 2 * cc->srtt + slack;
}

uint64_t siw_rd_cc_pacing_delay(const struct siw_rd_cc *cc, uint32_t octets)
{
	return cc->rate ? octets * cc->gap >> 20 : 0;
}

static uint32_t elapsed_ns_at_most_32_bits(uint64_t from, uint64_t to)
{
	return to > from ? (uint32_t)lesser(to - from, UINT32_MAX) : 0;
}

void siw_rd_cc_note_sent(struct siw_rd_cc *cc, uint64_t now, uint32_t octets, uint64_t in_flight,
			 struct siw_rd_sent *sent)
{
	if (cc->local)
		return;
	if (!in_flight) {
		cc->first_sent_at = cc->delivered_at = now;
		if (cc->bbr_on)
			siw_rd_bbr_handle_send_after_idle(cc, now, in_flight);
	}
	sent->delivered = (uint32_t)cc->delivered;
	sent->lost = (uint32_t)cc->lost;
	sent->in_flight = (uint32_t)(in_flight + octets);
	sent->idle_ns = elapsed_ns_at_most_32_bits(cc->delivered_at, now);
	sent->span_ns = elapsed_ns_at_most_32_bits(cc->first_sent_at, now);
	sent->app_limited = cc->app_limited != 0;
}

void siw_rd_cc_note_delivered(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack,
			      const struct siw_rd_sent *sent, uint32_t octets, uint64_t sent_ns)
{
	cc->delivered += octets;
	ack->octets += octets;
	if (cc->local || sent_ns < ack->newest_at)
		return;
	ack->newest_at = sent_ns;
	ack->newest = *sent;
}

void siw_rd_cc_note_lost(struct siw_rd_cc *cc, struct siw_rd_cc_ack *ack,
			 const struct siw_rd_sent *sent, uint32_t octets, uint64_t sent_ns)
{
	cc->lost += octets;
	ack->lost += octets;
	/*
	 * A burst that a short queue cannot hold is lost although the rate is right. Therefore each
	 * loss shortens the permitted bursts by a quarter, and delivered octets lengthen them: at
	 * 2% loss they settle at three datagrams.
	 */
	cc->burst -= cc->burst / 4;
	if (!cc->bbr_on)
		siw_rd_cubic_handle_loss(cc, ack->now, sent_ns, false);
	else
		siw_rd_bbr_handle_loss(cc, ack->now, sent, octets);
}

/* Computes the delivery rate from one acknowledgement. */
static struct sample sample_of_delivery_rate(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	const struct siw_rd_sent *sent = &ack->newest;
	uint64_t acks = ack->now - ack->newest_at + sent->idle_ns;
	uint64_t interval = greater(acks, sent->span_ns);
	struct sample s = {
		.delivered = (uint32_t)cc->delivered - sent->delivered,
		.lost = (uint32_t)cc->lost - sent->lost,
		.in_flight = sent->in_flight,
		.app_limited = sent->app_limited,
	};

	s.prior = cc->delivered - s.delivered;
	/*
	 * An interval shorter than any round trip gives no rate: either the transmissions were not
	 * clocked by acknowledgements, or the acknowledgement belongs to an earlier transmission of
	 * a retransmitted datagram. Before a round trip is known no interval can be judged, for
	 * example if the path's queue delays all acknowledgements for more than the initial
	 * time-out.
	 */
	if (cc->min_rtt && interval >= cc->min_rtt)
		s.rate = (uint64_t)((double)s.delivered * (double)SECOND / (double)interval);
	cc->first_sent_at = ack->newest_at;
	return s;
}

/*
 * Updates the delivery rate that is measured over a span. A token bucket lets a few datagrams pass
 * together, and on a short path these are all the datagrams of a round trip: two datagrams in 0.2
 * ms suggest six times the rate of a link of 20 Mbit/s. On short paths the rate is therefore also
 * measured over spans of at least SPAN_NS and SPAN_LEAST datagrams, which are long compared with
 * such a burst.
 */
static void update_delivery_rate_over_span(struct siw_rd_cc *cc, uint64_t now)
{
	uint64_t took = now - cc->span_at, delivered = cc->delivered - cc->span_delivered;

	if (took < SPAN_NS || delivered < SPAN_LEAST * (uint64_t)cc->mss)
		return;
	cc->span_rate = 0;
	if (cc->span_at && cc->min_rtt < SPAN_NS)
		cc->span_rate = (uint64_t)((double)delivered * (double)SECOND / (double)took);
	cc->span_at = now;
	cc->span_delivered = cc->delivered;
}

void siw_rd_cc_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack)
{
	struct sample sample;

	if (!cc->bbr_on) {
		if (ack->ce)
			siw_rd_cubic_handle_loss(cc, ack->now, ack->newest_at, true);
		siw_rd_cubic_handle_ack(cc, ack);
		return;
	}
	if (!ack->newest_at)
		return;
	if (cc->app_limited && cc->delivered > cc->app_limited)
		cc->app_limited = 0;
	cc->delivered_at = ack->now;
	if (ack->ce) { /* CE counts as a loss (RFC 3168 section 5), but nothing is retransmitted */
		cc->lost += (uint64_t)ack->ce * cc->mss;
		siw_rd_bbr_handle_loss(cc, ack->now, &ack->newest, cc->mss);
	}
	cc->burst += (uint32_t)(ack->octets / 64);
	update_delivery_rate_over_span(cc, ack->now);
	sample = sample_of_delivery_rate(cc, ack);
	siw_rd_bbr_handle_ack(cc, ack, &sample);
}

void siw_rd_cc_handle_timeout(struct siw_rd_cc *cc, uint64_t now)
{
	if (!cc->bbr_on)
		siw_rd_cubic_handle_timeout(cc, now);
	else
		siw_rd_bbr_handle_timeout(cc, now);
}

void siw_rd_cc_mark_app_limited(struct siw_rd_cc *cc, uint64_t in_flight)
{
	if (!cc->local && in_flight < cc->cwnd)
		cc->app_limited = greater(cc->delivered + in_flight, 1);
}
