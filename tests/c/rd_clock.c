/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests each row of the specification's table of RD timers with a clock that the test controls:
 * each timer fires at its specified time, to the nanosecond, and not earlier. The argument selects
 * the row.
 */
#include "rd_clock.h"

/*
 * Returns the time in ns between the first and the i-th datagram of a type, when no answer arrives.
 */
static uint64_t interval_to_nth_datagram(int type, uint32_t i)
{
	CHECK(find_nth_sent_datagram(type, i));
	return find_nth_sent_datagram(type, i)->at - find_nth_sent_datagram(type, 0)->at;
}

enum { DOUBLINGS = 8 };

static void check_hello_intervals(const uint64_t ms[DOUBLINGS])
{
	uint64_t at = 0;

	send_segment(1);
	advance_clock(30 * S);
	for (uint32_t i = 0; i < DOUBLINGS; i++) {
		at += ms[i] * MS;
		CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_HELLO, i + 1) == at);
	}
}

static void check_hello_retransmission(void)
{
	open_endpoint();
	check_hello_intervals((uint64_t[]){ 1000, 2000, 4000, 4000, 4000, 4000, 4000, 4000 });
}

/* Checks the intervals between HELLOs on a path that does not leave the machine. */
static void check_hello_retransmission_on_same_host(void)
{
	open_endpoint();
	net.route_mtu = 65536;
	check_hello_intervals((uint64_t[]){ 20, 40, 80, 160, 320, 500, 500, 500 });
}

/*
 * Checks that a peer that never answers is reported lost when the time limit for establishing
 * contact expires, and not earlier.
 */
static void check_contact_time_limit(void)
{
	open_endpoint();
	send_segment(1);
	advance_clock(60 * S - 1);
	CHECK(!news[SIW_RD_GONE]);
	advance_clock(4 * S);
	CHECK(news[SIW_RD_GONE] == 1);
}

/* Makes the simulated peer answer a HELLO after ns nanoseconds and stay silent afterwards. */
static void challenge_hello_after_delay(uint64_t ns, bool near)
{
	open_endpoint();
	net.route_mtu = near ? 65536 : 0;
	send_segment(1);
	epoch = ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_HELLO, 0)->wire.source_epoch);
	advance_clock(ns);
	n_sent = 0;
	SEND_FROM_PEER(SIW_DGRAM_RD_CHALLENGE, .rest = build_rd_echo_body("a cookie, 20 octets."),
		       .len = ECHO);
	process_endpoint_events();
}

static void check_echo_retransmission_on_same_host(void)
{
	challenge_hello_after_delay(10 * MS, true);
	advance_clock(299 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_ECHO) == 4 &&
	      !count_sent_datagrams(SIW_DGRAM_RD_HELLO));
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 1) == 20 * MS &&
	      interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 2) == 60 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 3) == 140 * MS);
	advance_clock(2 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_ECHO) == 4);
	CHECK(find_nth_sent_datagram(SIW_DGRAM_RD_HELLO, 0)->at -
		      find_nth_sent_datagram(SIW_DGRAM_RD_ECHO, 0)->at ==
	      300 * MS);
}

/*
 * Checks that an ECHO is retransmitted if no answer arrives within the time that the CHALLENGE
 * took.
 */
static void check_echo_resent_after_slow_challenge(void)
{
	challenge_hello_after_delay(2 * S, true);
	advance_clock(2 * S - 1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_ECHO) >= 7 &&
	      !count_sent_datagrams(SIW_DGRAM_RD_HELLO));
	advance_clock(500 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_HELLO) == 1);
}

/*
 * Checks an ECHO between machines: the first retransmission follows after three times the round
 * trip of the CHALLENGE; the interval then doubles.
 */
static void check_echo_retransmission_between_machines(void)
{
	challenge_hello_after_delay(100 * MS, false);
	advance_clock(4500 * MS - 1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_ECHO) == 4 &&
	      !count_sent_datagrams(SIW_DGRAM_RD_HELLO));
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 1) == 300 * MS &&
	      interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 2) == 900 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_ECHO, 3) == 2100 * MS);
	advance_clock(1);
	CHECK(find_nth_sent_datagram(SIW_DGRAM_RD_HELLO, 0)->at -
		      find_nth_sent_datagram(SIW_DGRAM_RD_ECHO, 0)->at ==
	      4500 * MS);
}

/*
 * Returns whether an ECHO that arrives ns nanoseconds after its CHALLENGE still establishes a peer.
 */
static bool try_late_echo(uint64_t ns)
{
	open_endpoint();
	SEND_FROM_PEER(SIW_DGRAM_RD_HELLO, .rest = hello_body, .len = sizeof(hello_body));
	process_endpoint_events();
	epoch = ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_CHALLENGE, 0)->wire.source_epoch);
	advance_clock(ns);
	SEND_FROM_PEER(SIW_DGRAM_RD_ECHO, .rest = build_echo_body(), .len = ECHO);
	process_endpoint_events();
	return siw_rd_peer_count(rd) == 1;
}

static void check_cookie_lifetime(void)
{
	CHECK(try_late_echo(30 * S) && !try_late_echo(30 * S + MS));
	CHECK(!siw_setting_set("rd_idle_ms", 300));
	CHECK(try_late_echo(300 * MS) && !try_late_echo(301 * MS));
	CHECK(!siw_setting_set("rd_idle_ms", 30000));
}

/* Checks the retransmission time-outs before a round trip has been measured. */
static void check_timeouts_before_first_rtt_sample(void)
{
	uint64_t each[] = { 200, 200, 400, 800, 1000, 1000, 1000 }, at = 0;

	open_endpoint();
	establish_contact();
	send_segment(1);
	advance_clock(9 * S);
	for (uint32_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		at += each[i] * MS;
		CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, i + 1) == at);
	}
}

/* Makes n round trips of rtt ns each, one after the other. */
static void make_round_trips(uint32_t n, uint64_t rtt)
{
	for (uint32_t i = 0; i < n; i++) {
		send_segment(1);
		advance_clock(rtt);
		SEND_FROM_PEER(SIW_DGRAM_RD_ACK,
			       .acknowledged = (uint32_t)siw_rd_segments_ever_queued(
				       get_simulated_peer(), SIW_RD_REQUESTS),
			       .credit = 4096);
		process_endpoint_events();
		advance_clock(10 * MS);
	}
	n_sent = 0;
}

/*
 * Checks the time-outs after a loss: the last datagram is sent again after 2 SRTT plus 0.2 to 1 ms
 * (tail-loss probe). Further retransmissions follow after RTO, at least 20 ms, which doubles up to
 * one second.
 */
static void check_timeouts_after_loss(void)
{
	uint64_t rto, at;

	open_endpoint();
	establish_contact();
	make_round_trips(60, 2 * MS);
	rto = get_simulated_peer()->cc->rto;
	CHECK(rto == 20 * MS);
	send_segment(1);
	advance_clock(9 * S);
	at = siw_rd_cc_probe_timeout_ns(get_simulated_peer()->cc);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 1) == at && at >= 4 * MS &&
	      at <= 4500 * US);
	for (uint32_t i = 2; i < 10; i++) {
		at += rto;
		CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, i) == at);
		rto = 2 * rto < S ? 2 * rto : S;
	}
}

/* Checks that RTO is SRTT + 4 RTTVAR (RFC 6298) if that is more than the minimum. */
static void check_timeout_of_long_round_trip(void)
{
	open_endpoint();
	establish_contact();
	make_round_trips(1, 50 * MS);
	CHECK(get_simulated_peer()->cc->srtt == 50 * MS &&
	      get_simulated_peer()->cc->rto == 150 * MS);
	send_segment(1);
	advance_clock(252 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 1) == 101 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 2) == 251 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 3);
}

/*
 * Measures one round trip of 50 ms; the peer's ACK states that it was delayed by `delay` µs.
 * Returns SRTT.
 */
static uint64_t measure_srtt_with_ack_delay(uint16_t delay)
{
	open_endpoint();
	establish_contact();
	send_segment(1);
	advance_clock(50 * MS);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 1, .credit = 4096, .delay = delay);
	process_endpoint_events();
	return get_simulated_peer()->cc->srtt;
}

static void check_ack_delay_subtracted(void)
{
	CHECK(measure_srtt_with_ack_delay(900) == 50 * MS - 900 * US);
}

/* Checks that an implausibly long acknowledgement delay is ignored. */
static void check_long_ack_delay_ignored(void)
{
	CHECK(measure_srtt_with_ack_delay(30000) == 50 * MS);
}

/*
 * Checks Karn's algorithm: a doubled time-out is kept until a datagram that was sent only once
 * yields a round trip (RFC 6298 section 5).
 */
static void check_backoff_kept_until_new_rtt_sample(void)
{
	open_endpoint();
	establish_contact();
	make_round_trips(60, 2 * MS);
	CHECK(get_simulated_peer()->cc->rto == 20 * MS);
	send_segment(1);
	advance_clock(110 *
		      MS); /* the tail-loss probe, then time-outs after 20 and another 40 ms */
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 4 && get_simulated_peer()->backoff == 2);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 61, .credit = 4096);
	process_endpoint_events();
	n_sent = 0;
	send_segment(1);
	advance_clock(80 * MS - 1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 1);
	advance_clock(160 * MS + 1);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 1) == 80 * MS &&
	      interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 2) == 240 * MS);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 62, .credit = 4096);
	process_endpoint_events();
	CHECK(get_simulated_peer()->backoff == 4 && get_simulated_peer()->rtos == 0);
	/* A datagram that was sent once and acknowledged resets the back-off. */
	n_sent = 0;
	send_segment(1);
	advance_clock(2 * MS);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 63, .credit = 4096);
	process_endpoint_events();
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 1 && get_simulated_peer()->backoff == 0);
	n_sent = 0;
	send_segment(1);
	advance_clock(20 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_DATA, 1) ==
	      siw_rd_cc_probe_timeout_ns(get_simulated_peer()->cc));
}

static void send_data_from_peer(uint32_t psn, uint32_t octets)
{
	static const uint8_t body[SIW_RD_BATCH / 2 + 1];

	SEND_FROM_PEER(SIW_DGRAM_RD_DATA, psn, .credit = 4096, .rest = body, .len = octets);
}

static void check_single_datagram_acked_after_delay(void)
{
	open_endpoint();
	establish_contact();
	send_data_from_peer(0, 1);
	process_endpoint_events();
	advance_clock(20 * US - 1);
	CHECK(taken == 1 && !n_sent);
	advance_clock(1);
	CHECK(n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 1);
	advance_clock(S);
	CHECK(n_sent == 1);
}

static void check_two_datagrams_acked_immediately(void)
{
	open_endpoint();
	establish_contact();
	send_data_from_peer(0, 1);
	send_data_from_peer(1, 1);
	process_endpoint_events();
	CHECK(n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 2);
}

static void check_one_ack_per_64_datagrams(void)
{
	open_endpoint();
	establish_contact();
	for (uint32_t i = 0; i < 127; i++)
		send_data_from_peer(i, 1);
	process_endpoint_events();
	/*
	 * One ACK is sent after 64 datagrams, and another for the other datagrams when the socket
	 * is empty.
	 */
	CHECK(n_sent == 2 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 64);
	CHECK(ntohl(log_[1].wire.acknowledged[0]) == EPOCH + 127);
}

/*
 * Checks that an ACK is sent at the latest after 16 datagrams that are longer than half of the
 * maximum batch (SIW_RD_BATCH octets), or after 64 shorter datagrams.
 */
static void check_one_ack_per_16_long_datagrams(void)
{
	const uint32_t longest_of_others = SIW_RD_BATCH / 2 - SIW_RD_OVERHEAD;

	open_endpoint();
	establish_contact();
	for (uint32_t i = 0; i < 40; i++)
		send_data_from_peer(i, longest_of_others + 1);
	process_endpoint_events();
	CHECK(taken == 40 && n_sent == 3);
	CHECK(ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 16);
	CHECK(ntohl(log_[1].wire.acknowledged[0]) == EPOCH + 32);
	CHECK(ntohl(log_[2].wire.acknowledged[0]) == EPOCH + 40);
	n_sent = 0;
	for (uint32_t i = 40; i < 80; i++)
		send_data_from_peer(i, longest_of_others);
	process_endpoint_events();
	CHECK(taken == 80 && n_sent == 1);
	CHECK(ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 80);
}

static void check_ack_after_gap(void)
{
	const struct siw_rd_ack *ack;
	const struct siw_rd_range *range;

	open_endpoint();
	establish_contact();
	for (uint32_t i = 1; i <= 8 + 16; i++)
		send_data_from_peer(i, 1);
	process_endpoint_events();
	/*
	 * The first datagrams are acknowledged one by one, as more might not follow; then one ACK
	 * acknowledges eight.
	 */
	CHECK(n_sent == 8 + 2 || n_sent == 8 + 3);
	CHECK(ntohl(log_[n_sent - 1].wire.acknowledged[0]) == EPOCH);
	ack = (const void *)log_[n_sent - 1].rest;
	range = (const void *)(ack + 1);
	CHECK(ack->ranges[SIW_RD_REQUESTS] == 1 && !ack->ranges[SIW_RD_RESPONSES]);
	CHECK(ntohs(range->gap) == 1 && ntohs(range->length) == 24);
}

/*
 * Checks that a peer that does not answer is reported lost at its time limit, and at most a fifth
 * of the limit later.
 */
static void check_peer_timeout(void)
{
	open_endpoint();
	establish_contact();
	send_segment(1);
	advance_clock(10 * S - 1);
	CHECK(!news[SIW_RD_GONE]);
	advance_clock(2 * S);
	CHECK(news[SIW_RD_GONE] == 1);
}

/*
 * Returns whether a peer that was silent for ns nanoseconds is evicted in favour of another one.
 * gave: the peer has sent a data segment.
 */
static bool is_peer_evicted_after_silence(uint64_t ns, bool gave)
{
	struct siw_addr other = fuzz_addr_from_index(ENDS + 1);
	struct siw_rd_peer *p;

	open_endpoint();
	rd->max_peers = 1;
	establish_contact();
	if (gave) {
		SEND_FROM_PEER(SIW_DGRAM_RD_DATA);
		process_endpoint_events();
		advance_clock(20 * US); /* let the endpoint send its acknowledgement */
		CHECK(count_sent_datagrams(SIW_DGRAM_RD_ACK) == 1);
	}
	advance_clock(ns);
	return siw_rd_get_or_create_peer(rd, &other, &p) == 0;
}

static void check_peer_eviction(void)
{
	/*
	 * The limit is one millisecond more, because the lifetime of the peer's ECHO is also 30 s
	 * and counts in milliseconds.
	 */
	CHECK(!is_peer_evicted_after_silence(30 * S - 1, true) &&
	      is_peer_evicted_after_silence(30 * S + MS, true));
	CHECK(is_peer_evicted_after_silence(MS, false));
}

static void check_credit_probe(void)
{
	open_endpoint();
	establish_contact();
	advance_clock(10 * S);
	send_segment(1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 1 &&
	      !count_sent_datagrams(SIW_DGRAM_RD_PROBE));
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 1, .credit = 4096);
	process_endpoint_events();
	advance_clock(10 * S + 1);
	n_sent = 0;
	CHECK(siw_rd_tx(get_simulated_peer(), SIW_RD_REQUESTS, "x", 1, NULL, 0, false) == 0);
	process_endpoint_events();
	CHECK(!count_sent_datagrams(SIW_DGRAM_RD_DATA) &&
	      count_sent_datagrams(SIW_DGRAM_RD_PROBE) == 1);
}

/* Sends segments of full length for ns nanoseconds; each segment is acknowledged immediately. */
static void send_full_segments(uint64_t ns)
{
	for (uint64_t end = elapsed_ns() + ns; elapsed_ns() < end;) {
		send_segment(siw_rd_mulpdu(get_simulated_peer(), SIW_RD_REQUESTS));
		advance_clock(MS);
		SEND_FROM_PEER(SIW_DGRAM_RD_ACK,
			       .acknowledged = (uint32_t)siw_rd_segments_ever_queued(
				       get_simulated_peer(), SIW_RD_REQUESTS),
			       .credit = 4096);
		process_endpoint_events();
	}
}

/*
 * Checks that the route's MTU and then a smaller datagram length are probed, three times each, 2
 * RTO apart; and again ten seconds later.
 */
static void check_mtu_probes(void)
{
	CHECK(!siw_setting_set("rd_max_datagram", 1400));
	open_endpoint();
	net.route_mtu = 1400;
	establish_contact();
	make_round_trips(60, 2 * MS);
	send_full_segments(9900 * MS);
	CHECK(get_simulated_peer()->datagram == SIW_RD_MIN_DATAGRAM &&
	      get_simulated_peer()->cc->rto == 20 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_PROBE) == 6);
	for (uint32_t i = 0; i < 6; i++) {
		CHECK(find_nth_sent_datagram(SIW_DGRAM_RD_PROBE, i)->len ==
		      (i < 3 ? 1400 : 1280) - 28u);
		CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_PROBE, i) == i * 2 * 20 * MS);
	}
	send_full_segments(600 * MS);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_PROBE, 6) >= 240 * MS + 10 * S);
	CHECK(interval_to_nth_datagram(SIW_DGRAM_RD_PROBE, 6) <= 240 * MS + 10 * S + 2 * MS);
}

/*
 * Checks that when long datagrams no longer pass, larger lengths are probed again one second later,
 * while segments of full length are sent.
 */
static void check_mtu_probes_after_loss(void)
{
	uint64_t lowered;

	CHECK(!siw_setting_set("rd_max_datagram", 1400));
	open_endpoint();
	net.route_mtu = 1400;
	establish_contact();
	make_round_trips(60, 2 * MS);
	send_segment(siw_rd_mulpdu(get_simulated_peer(), SIW_RD_REQUESTS));
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK,
		       ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_PROBE, 0)->wire.llp.psn) - EPOCH,
		       .acknowledged = 61, .credit = 4096, .flags = SIW_RD_PROBED);
	process_endpoint_events();
	CHECK(get_simulated_peer()->datagram == 1400 - 28);
	send_segment(siw_rd_mulpdu(get_simulated_peer(), SIW_RD_REQUESTS));
	for (int i = 0; i < 10000 && get_simulated_peer()->datagram != SIW_RD_MIN_DATAGRAM; i++)
		advance_clock(MS);
	CHECK(get_simulated_peer()->datagram == SIW_RD_MIN_DATAGRAM);
	lowered = elapsed_ns();
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 62, .credit = 4096);
	process_endpoint_events();
	n_sent = 0;
	send_full_segments(1100 * MS);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_PROBE) > 0);
	CHECK(find_nth_sent_datagram(SIW_DGRAM_RD_PROBE, 0)->at >= lowered + S - MS);
	CHECK(find_nth_sent_datagram(SIW_DGRAM_RD_PROBE, 0)->at <= lowered + S + 2 * MS);
}

/*
 * Checks a rate limit: `at_once` answers are sent immediately, then one answer for each interval of
 * `each` ns.
 */
static void check_rate_limit(const struct peer_datagram *what, int answer, uint32_t at_once,
			     uint64_t each)
{
	open_endpoint();
	epoch = 7;
	net.now += S; /* let the rate limit recover until the complete burst is available */
	for (uint32_t i = 0; i < at_once + 100; i++) {
		send_from_peer(what);
		process_endpoint_events();
	}
	CHECK(count_sent_datagrams(answer) == at_once);
	net.now += 10 * each - 1;
	for (int i = 0; i < 20; i++) {
		send_from_peer(what);
		process_endpoint_events();
	}
	CHECK(count_sent_datagrams(answer) == at_once + 9);
	net.now += 1;
	send_from_peer(what);
	process_endpoint_events();
	CHECK(count_sent_datagrams(answer) == at_once + 10);
}

static void check_challenge_rate_limit(void)
{
	check_rate_limit(&(struct peer_datagram){ SIW_DGRAM_RD_HELLO, .rest = hello_body,
						  .len = sizeof(hello_body) },
			 SIW_DGRAM_RD_CHALLENGE, 1000, 100 * US);
}

static void check_bye_rate_limit(void)
{
	check_rate_limit(&(struct peer_datagram){ SIW_DGRAM_RD_PROBE }, SIW_DGRAM_RD_BYE, 20,
			 5 * MS);
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

/*
 * Checks that segments that are queued for lack of credit and were never sent cannot be
 * acknowledged, whatever the peer claims.
 */
static void check_ack_of_unsent_ignored(void)
{
	struct {
		struct siw_rd_ack ack;
		struct siw_rd_range range;
	} all = { .ack.ranges = { 1 }, .range = { 0, htons(8) } };

	open_endpoint();
	establish_contact();
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .credit = 2);
	process_endpoint_events();
	for (int i = 0; i < 5; i++)
		send_segment(1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 2 &&
	      siw_rd_segments_ever_queued(get_simulated_peer(), SIW_RD_REQUESTS) == 5);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 3, .credit = 2);
	process_endpoint_events();
	CHECK(siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 0);
	/*
	 * An acknowledged range is ignored for segments that were never sent, and counts for
	 * segments that were sent.
	 */
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .credit = 2, .rest = &all, .len = sizeof(all));
	process_endpoint_events();
	CHECK(get_simulated_peer()->in_flight == 0 &&
	      siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 0);
	CHECK(get_simulated_peer()->seq[0].tx->high == 2);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 2, .credit = 3);
	process_endpoint_events();
	CHECK(siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 2);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 5);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 5, .credit = 3);
	process_endpoint_events();
	CHECK(siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 5);
}

/* Checks that each range of an ACK acknowledges its own datagrams, and no others. */
static void check_ranges_acknowledge_own_datagrams(void)
{
	/* For each range: how many datagrams are missing, and how many arrived after them. */
	static const uint16_t there[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 },
					     { 3, 1 }, { 2, 2 }, { 5, 2 } };
	enum { RANGES = sizeof(there) / sizeof(there[0]) };
	struct {
		struct siw_rd_ack ack;
		struct siw_rd_range range[RANGES];
	} body = { .ack.ranges = { RANGES } };
	bool came[24] = { false };
	uint32_t at = 0;

	open_endpoint();
	establish_contact();
	for (int i = 0; i < 24; i++)
		send_segment(1);
	CHECK(siw_rd_segments_ever_queued(get_simulated_peer(), SIW_RD_REQUESTS) == 24);
	advance_clock(MS);
	n_sent = 0;
	for (int i = 0; i < RANGES; i++) {
		body.range[i] = (struct siw_rd_range){ htons(there[i][0]), htons(there[i][1]) };
		at += there[i][0];
		for (int n = there[i][1]; n; n--)
			came[at++] = true;
	}
	CHECK(at == 24);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .credit = 4096, .rest = &body, .len = sizeof(body));
	process_endpoint_events();
	advance_clock(19 * MS);
	for (uint32_t i = 0; i < 24; i++) {
		bool again = false;

		for (uint32_t n = 0; n < n_sent; n++)
			again |= log_[n].type == SIW_DGRAM_RD_DATA &&
				 ntohl(log_[n].wire.llp.psn) == epoch + i;
		CHECK(again == !came[i]);
	}
}

/* ---- a full socket --------------------------------------------------------------------------- */

/* Makes the socket writable again and notifies the endpoint. */
static void make_socket_writable(void)
{
	net.full = false;
	net.end[0].up = true;
	process_endpoint_events();
}

/* Checks that the log holds n DATA datagrams with consecutive PSNs from `first`, each once. */
static void check_data_sent_in_order(uint32_t first, uint32_t n)
{
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == n);
	for (uint32_t i = 0; i < n; i++)
		CHECK(ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_DATA, i)->wire.llp.psn) ==
		      epoch + first + i);
}

/*
 * Checks that datagrams that a full socket rejected are sent when there is space, once and in
 * order, and that no timer treats them as lost.
 */
static void check_sends_resume_after_full_socket(bool no_batches)
{
	uint64_t accepted;

	open_endpoint();
	establish_contact();
	net.no_batches = no_batches;
	make_round_trips(60, 2 * MS);
	net.full = true;
	for (int i = 0; i < 5; i++)
		send_segment(1);
	CHECK(siw_rd_flush(get_simulated_peer(), &accepted) == 0 && rd->blocked &&
	      !siw_link_empty(&get_simulated_peer()->starved));
	advance_clock(MS);
	CHECK(!n_sent);
	make_socket_writable();
	check_data_sent_in_order(60, 5);
	CHECK(!rd->blocked && siw_link_empty(&get_simulated_peer()->starved));
	advance_clock(4 * MS);
	check_data_sent_in_order(60, 5);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 65, .credit = 4096);
	process_endpoint_events();
	CHECK(siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 65);
}

static void check_batch_resumes_after_full_socket(void)
{
	check_sends_resume_after_full_socket(false);
}

static void check_unbatched_resume_after_full_socket(void)
{
	check_sends_resume_after_full_socket(true);
}

/*
 * Checks a socket that becomes full after one datagram was sent: the other datagrams wait until the
 * socket has space.
 */
static void check_socket_full_after_first_datagram(void)
{
	open_endpoint();
	establish_contact();
	send_segment(1);
	net.full = true;
	send_segment(1400 - 100);
	send_segment(1);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 1);
	/*
	 * The retransmission time-out of the first datagram also finds the socket full, and the
	 * datagram keeps its place in the order.
	 */
	advance_clock(3 * S);
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 1 &&
	      get_simulated_peer()->seq[0].nxt == 3);
	n_sent = 0;
	make_socket_writable();
	check_data_sent_in_order(
		0, 2); /* at most two datagrams are sent after a time-out (DGRAM-CC-10) */
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 2, .credit = 4096);
	process_endpoint_events();
	check_data_sent_in_order(0, 3);
	SEND_FROM_PEER(SIW_DGRAM_RD_ACK, .acknowledged = 3, .credit = 4096);
	process_endpoint_events();
	CHECK(siw_rd_total_accepted_segments(get_simulated_peer(), SIW_RD_REQUESTS) == 3 &&
	      !news[SIW_RD_GONE]);
}

/*
 * Checks that an acknowledgement that finds the socket full is dropped. When the peer retransmits
 * the datagram, the datagram is acknowledged again.
 */
static void check_full_socket_drops_ack(void)
{
	open_endpoint();
	establish_contact();
	net.full = true;
	send_data_from_peer(0, 1);
	process_endpoint_events();
	advance_clock(MS);
	CHECK(taken == 1 && !n_sent);
	net.full = false;
	send_data_from_peer(0, 1);
	process_endpoint_events();
	CHECK(taken == 1 && n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 1);
}

/*
 * Checks that messages to a second peer are sent when the socket has space again, together with
 * those of the first peer, and do not wait for a time-out.
 */
static void check_all_peers_resume_after_full_socket(void)
{
	uint32_t of_first;

	open_endpoint();
	establish_contact();
	of_first = epoch;
	stranger++;
	epoch = 0;
	establish_contact();
	net.full = true;
	stranger--;
	send_segment(1);
	stranger++;
	CHECK(rd->blocked && siw_link_empty(&get_simulated_peer()->starved));
	send_segment(1);
	CHECK(!siw_link_empty(&get_simulated_peer()->starved) && !n_sent);
	make_socket_writable();
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_DATA) == 2 && siw_link_empty(&rd->starved));
	CHECK(ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_DATA, 0)->wire.llp.psn) == of_first);
	CHECK(ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_DATA, 1)->wire.llp.psn) == epoch);
}

/*
 * Checks that a peer that is closed while it waits for space in the socket is removed from the
 * queue of waiting peers.
 */
static void check_peer_closed_while_socket_is_full(void)
{
	open_endpoint();
	establish_contact();
	net.full = true;
	send_segment(1);
	CHECK(!siw_link_empty(&get_simulated_peer()->starved));
	SEND_FROM_PEER(SIW_DGRAM_RD_BYE);
	process_endpoint_events();
	CHECK(news[SIW_RD_GONE] == 1 && siw_link_empty(&rd->starved));
	make_socket_writable();
	CHECK(!count_sent_datagrams(SIW_DGRAM_RD_DATA) && !rd->blocked);
}

static const struct {
	const char *name;
	void (*run)(void);
} rows[] = {
	{ "hello", check_hello_retransmission },
	{ "echo", check_echo_retransmission_between_machines },
	{ "echo-far", check_echo_resent_after_slow_challenge },
	{ "hello-near", check_hello_retransmission_on_same_host },
	{ "echo-near", check_echo_retransmission_on_same_host },
	{ "meeting", check_contact_time_limit },
	{ "cookie", check_cookie_lifetime },
	{ "retransmission-first", check_timeouts_before_first_rtt_sample },
	{ "retransmission", check_timeouts_after_loss },
	{ "retransmission-far", check_timeout_of_long_round_trip },
	{ "delay-told", check_ack_delay_subtracted },
	{ "delay-not-believed", check_long_ack_delay_ignored },
	{ "retransmission-kept", check_backoff_kept_until_new_rtt_sample },
	{ "ack-alone", check_single_datagram_acked_after_delay },
	{ "ack-of-two", check_two_datagrams_acked_immediately },
	{ "ack-of-many", check_one_ack_per_64_datagrams },
	{ "ack-of-long", check_one_ack_per_16_long_datagrams },
	{ "ack-behind-a-gap", check_ack_after_gap },
	{ "gone", check_peer_timeout },
	{ "forgotten", check_peer_eviction },
	{ "asked", check_credit_probe },
	{ "longer", check_mtu_probes },
	{ "longer-soon", check_mtu_probes_after_loss },
	{ "challenges", check_challenge_rate_limit },
	{ "byes", check_bye_rate_limit },
	{ "full-socket-together", check_batch_resumes_after_full_socket },
	{ "full-socket-one-by-one", check_unbatched_resume_after_full_socket },
	{ "full-socket-amid", check_socket_full_after_first_datagram },
	{ "full-socket-ack", check_full_socket_drops_ack },
	{ "full-socket-others", check_all_peers_resume_after_full_socket },
	{ "full-socket-over", check_peer_closed_while_socket_is_full },
	{ "ack-never-sent", check_ack_of_unsent_ignored },
	{ "ack-by-ranges", check_ranges_acknowledge_own_datagrams },
};

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (strcmp(argv[1], rows[i].name) == 0) {
			rows[i].run();
			return 0;
		}
	fprintf(stderr, "no row is called %s\n", argv[1]);
	return 2;
}
