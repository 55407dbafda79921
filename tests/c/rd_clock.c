/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests each row of the specification's table of RD timers with a clock that the test controls:
 * each timer fires at its specified time, to the nanosecond, and not earlier. The argument selects
 * the row.
 */
#include "rd_clock.h"

/* Time in ns between the first and the i-th datagram of a type, when no answer arrives. */
static uint64_t interval_to_nth(int type, uint32_t i)
{
	CHECK(nth(type, i));
	return nth(type, i)->at - nth(type, 0)->at;
}

enum { DOUBLINGS = 8 };

static void hellos_after(const uint64_t ms[DOUBLINGS])
{
	uint64_t at = 0;

	post(1);
	pass(30 * S);
	for (uint32_t i = 0; i < DOUBLINGS; i++) {
		at += ms[i] * MS;
		CHECK(interval_to_nth(SIW_DGRAM_RD_HELLO, i + 1) == at);
	}
}

static void hello(void)
{
	begin();
	hellos_after((uint64_t[]){ 1000, 2000, 4000, 4000, 4000, 4000, 4000, 4000 });
}

/* Intervals between HELLOs on a path that does not leave the machine. */
static void hello_near(void)
{
	begin();
	net.route_mtu = 65536;
	hellos_after((uint64_t[]){ 20, 40, 80, 160, 320, 500, 500, 500 });
}

/*
 * If a peer never answers, it is reported lost when the time limit for establishing contact
 * expires, and not earlier.
 */
static void check_meet_time_limit(void)
{
	begin();
	post(1);
	pass(60 * S - 1);
	CHECK(!news[SIW_RD_GONE]);
	pass(4 * S);
	CHECK(news[SIW_RD_GONE] == 1);
}

/* The simulated peer answers a HELLO after ns nanoseconds, and stays silent afterwards. */
static void challenge_after(uint64_t ns, bool near)
{
	begin();
	net.route_mtu = near ? 65536 : 0;
	post(1);
	epoch = ntohl(nth(SIW_DGRAM_RD_HELLO, 0)->wire.source_epoch);
	pass(ns);
	n_sent = 0;
	SAY(SIW_DGRAM_RD_CHALLENGE, .rest = with_cookie("a cookie, 20 octets."), .len = ECHO);
	look();
}

static void echo_near(void)
{
	challenge_after(10 * MS, true);
	pass(299 * MS);
	CHECK(count(SIW_DGRAM_RD_ECHO) == 4 && !count(SIW_DGRAM_RD_HELLO));
	CHECK(interval_to_nth(SIW_DGRAM_RD_ECHO, 1) == 20 * MS &&
	      interval_to_nth(SIW_DGRAM_RD_ECHO, 2) == 60 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_ECHO, 3) == 140 * MS);
	pass(2 * MS);
	CHECK(count(SIW_DGRAM_RD_ECHO) == 4);
	CHECK(nth(SIW_DGRAM_RD_HELLO, 0)->at - nth(SIW_DGRAM_RD_ECHO, 0)->at == 300 * MS);
}

/* An ECHO is retransmitted if no answer arrives within the time that the CHALLENGE took. */
static void echo_far(void)
{
	challenge_after(2 * S, true);
	pass(2 * S - 1);
	CHECK(count(SIW_DGRAM_RD_ECHO) >= 7 && !count(SIW_DGRAM_RD_HELLO));
	pass(500 * MS);
	CHECK(count(SIW_DGRAM_RD_HELLO) == 1);
}

/*
 * Between machines, the first retransmission of an ECHO follows after three times the round trip of
 * the CHALLENGE; the interval then doubles.
 */
static void echo(void)
{
	challenge_after(100 * MS, false);
	pass(4500 * MS - 1);
	CHECK(count(SIW_DGRAM_RD_ECHO) == 4 && !count(SIW_DGRAM_RD_HELLO));
	CHECK(interval_to_nth(SIW_DGRAM_RD_ECHO, 1) == 300 * MS &&
	      interval_to_nth(SIW_DGRAM_RD_ECHO, 2) == 900 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_ECHO, 3) == 2100 * MS);
	pass(1);
	CHECK(nth(SIW_DGRAM_RD_HELLO, 0)->at - nth(SIW_DGRAM_RD_ECHO, 0)->at == 4500 * MS);
}

/*
 * Returns whether an ECHO that arrives ns nanoseconds after its CHALLENGE still establishes a peer.
 */
static bool meets_after(uint64_t ns)
{
	begin();
	SAY(SIW_DGRAM_RD_HELLO, .rest = hello_body, .len = sizeof(hello_body));
	look();
	epoch = ntohl(nth(SIW_DGRAM_RD_CHALLENGE, 0)->wire.source_epoch);
	pass(ns);
	SAY(SIW_DGRAM_RD_ECHO, .rest = echo_body(), .len = ECHO);
	look();
	return siw_rd_n_peers(rd) == 1;
}

static void cookie(void)
{
	CHECK(meets_after(30 * S) && !meets_after(30 * S + MS));
	CHECK(!siw_setting_set("rd_idle_ms", 300));
	CHECK(meets_after(300 * MS) && !meets_after(301 * MS));
	CHECK(!siw_setting_set("rd_idle_ms", 30000));
}

/* Retransmission time-outs before a round trip has been measured. */
static void retransmission_first(void)
{
	uint64_t each[] = { 200, 200, 400, 800, 1000, 1000, 1000 }, at = 0;

	begin();
	meet();
	post(1);
	pass(9 * S);
	for (uint32_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		at += each[i] * MS;
		CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, i + 1) == at);
	}
}

/* Makes n round trips of rtt ns each, one after the other. */
static void round_trips(uint32_t n, uint64_t rtt)
{
	for (uint32_t i = 0; i < n; i++) {
		post(1);
		pass(rtt);
		SAY(SIW_DGRAM_RD_ACK,
		    .acknowledged = (uint32_t)siw_rd_framed(peer(), SIW_RD_REQUESTS),
		    .credit = 4096);
		look();
		pass(10 * MS);
	}
	n_sent = 0;
}

/*
 * After a loss, the last datagram is sent again after 2 SRTT plus 0.2 to 1 ms (tail-loss probe).
 * Further retransmissions follow after RTO, at least 20 ms, which doubles up to one second.
 */
static void retransmission(void)
{
	uint64_t rto, at;

	begin();
	meet();
	round_trips(60, 2 * MS);
	rto = peer()->cc->rto;
	CHECK(rto == 20 * MS);
	post(1);
	pass(9 * S);
	at = siw_rd_cc_pto(peer()->cc);
	CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, 1) == at && at >= 4 * MS && at <= 4500 * US);
	for (uint32_t i = 2; i < 10; i++) {
		at += rto;
		CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, i) == at);
		rto = 2 * rto < S ? 2 * rto : S;
	}
}

/* RTO is SRTT + 4 RTTVAR (RFC 6298) if that is more than the minimum. */
static void retransmission_far(void)
{
	begin();
	meet();
	round_trips(1, 50 * MS);
	CHECK(peer()->cc->srtt == 50 * MS && peer()->cc->rto == 150 * MS);
	post(1);
	pass(252 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, 1) == 101 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, 2) == 251 * MS);
	CHECK(count(SIW_DGRAM_RD_DATA) == 3);
}

/*
 * Measures one round trip of 50 ms; the peer's ACK states that it was delayed by `delay` µs.
 * Returns SRTT.
 */
static uint64_t measured(uint16_t delay)
{
	begin();
	meet();
	post(1);
	pass(50 * MS);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 1, .credit = 4096, .delay = delay);
	look();
	return peer()->cc->srtt;
}

static void delay_told(void)
{
	CHECK(measured(900) == 50 * MS - 900 * US);
}

/* An implausibly long acknowledgement delay is ignored. */
static void delay_not_believed(void)
{
	CHECK(measured(30000) == 50 * MS);
}

/*
 * Karn's algorithm: a doubled time-out is kept until a datagram that was sent only once yields a
 * round trip (RFC 6298 section 5).
 */
static void retransmission_kept(void)
{
	begin();
	meet();
	round_trips(60, 2 * MS);
	CHECK(peer()->cc->rto == 20 * MS);
	post(1);
	pass(110 * MS); /* the tail-loss probe, then time-outs after 20 and another 40 ms */
	CHECK(count(SIW_DGRAM_RD_DATA) == 4 && peer()->backoff == 2);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 61, .credit = 4096);
	look();
	n_sent = 0;
	post(1);
	pass(80 * MS - 1);
	CHECK(count(SIW_DGRAM_RD_DATA) == 1);
	pass(160 * MS + 1);
	CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, 1) == 80 * MS &&
	      interval_to_nth(SIW_DGRAM_RD_DATA, 2) == 240 * MS);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 62, .credit = 4096);
	look();
	CHECK(peer()->backoff == 4 && peer()->rtos == 0);
	/* A datagram that was sent once and acknowledged resets the back-off. */
	n_sent = 0;
	post(1);
	pass(2 * MS);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 63, .credit = 4096);
	look();
	CHECK(count(SIW_DGRAM_RD_DATA) == 1 && peer()->backoff == 0);
	n_sent = 0;
	post(1);
	pass(20 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_DATA, 1) == siw_rd_cc_pto(peer()->cc));
}

static void data(uint32_t psn, uint32_t octets)
{
	static const uint8_t body[SIW_RD_BATCH / 2 + 1];

	SAY(SIW_DGRAM_RD_DATA, psn, .credit = 4096, .rest = body, .len = octets);
}

static void ack_alone(void)
{
	begin();
	meet();
	data(0, 1);
	look();
	pass(20 * US - 1);
	CHECK(taken == 1 && !n_sent);
	pass(1);
	CHECK(n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 1);
	pass(S);
	CHECK(n_sent == 1);
}

static void ack_of_two(void)
{
	begin();
	meet();
	data(0, 1);
	data(1, 1);
	look();
	CHECK(n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 2);
}

static void ack_of_many(void)
{
	begin();
	meet();
	for (uint32_t i = 0; i < 127; i++)
		data(i, 1);
	look();
	/* An ACK after 64 datagrams, and one for the rest when the socket is empty. */
	CHECK(n_sent == 2 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 64);
	CHECK(ntohl(log_[1].wire.acknowledged[0]) == EPOCH + 127);
}

/*
 * At most 16 datagrams longer than half of a batch may wait for an acknowledgement; of shorter
 * ones, 64.
 */
static void ack_of_long(void)
{
	const uint32_t longest_of_others = SIW_RD_BATCH / 2 - SIW_RD_OVERHEAD;

	begin();
	meet();
	for (uint32_t i = 0; i < 40; i++)
		data(i, longest_of_others + 1);
	look();
	CHECK(taken == 40 && n_sent == 3);
	CHECK(ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 16);
	CHECK(ntohl(log_[1].wire.acknowledged[0]) == EPOCH + 32);
	CHECK(ntohl(log_[2].wire.acknowledged[0]) == EPOCH + 40);
	n_sent = 0;
	for (uint32_t i = 40; i < 80; i++)
		data(i, longest_of_others);
	look();
	CHECK(taken == 80 && n_sent == 1);
	CHECK(ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 80);
}

static void ack_behind_a_gap(void)
{
	const struct siw_rd_ack *ack;
	const struct siw_rd_range *range;

	begin();
	meet();
	for (uint32_t i = 1; i <= 8 + 16; i++)
		data(i, 1);
	look();
	/*
	 * The first datagrams are acknowledged one by one, as more might not follow; then there is
	 * one ACK for eight.
	 */
	CHECK(n_sent == 8 + 2 || n_sent == 8 + 3);
	CHECK(ntohl(log_[n_sent - 1].wire.acknowledged[0]) == EPOCH);
	ack = (const void *)log_[n_sent - 1].rest;
	range = (const void *)(ack + 1);
	CHECK(ack->ranges[SIW_RD_REQUESTS] == 1 && !ack->ranges[SIW_RD_RESPONSES]);
	CHECK(ntohs(range->gap) == 1 && ntohs(range->length) == 24);
}

/* A peer that does not answer is reported lost at its time limit, and at most a fifth later. */
static void check_peer_timeout(void)
{
	begin();
	meet();
	post(1);
	pass(10 * S - 1);
	CHECK(!news[SIW_RD_GONE]);
	pass(2 * S);
	CHECK(news[SIW_RD_GONE] == 1);
}

/*
 * Returns whether a peer that was silent for ns nanoseconds is evicted in favour of another one.
 * gave: the peer has sent a data segment.
 */
static bool makes_room_after(uint64_t ns, bool gave)
{
	struct siw_addr other = fuzz_addr_of(ENDS + 1);
	struct siw_rd_peer *p;

	begin();
	rd->max_peers = 1;
	meet();
	if (gave) {
		SAY(SIW_DGRAM_RD_DATA);
		look();
		pass(20 * US); /* let the endpoint send its acknowledgement */
		CHECK(count(SIW_DGRAM_RD_ACK) == 1);
	}
	pass(ns);
	return siw_rd_peer(rd, &other, &p) == 0;
}

static void check_peer_eviction(void)
{
	/*
	 * One millisecond more, because the lifetime of the peer's ECHO is also 30 s and counts in
	 * milliseconds.
	 */
	CHECK(!makes_room_after(30 * S - 1, true) && makes_room_after(30 * S + MS, true));
	CHECK(makes_room_after(MS, false));
}

static void check_credit_probe(void)
{
	begin();
	meet();
	pass(10 * S);
	post(1);
	CHECK(count(SIW_DGRAM_RD_DATA) == 1 && !count(SIW_DGRAM_RD_PROBE));
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 1, .credit = 4096);
	look();
	pass(10 * S + 1);
	n_sent = 0;
	CHECK(siw_rd_tx(peer(), SIW_RD_REQUESTS, "x", 1, NULL, 0) == 0);
	look();
	CHECK(!count(SIW_DGRAM_RD_DATA) && count(SIW_DGRAM_RD_PROBE) == 1);
}

/* Sends segments of full length for ns nanoseconds; each is acknowledged immediately. */
static void full_length(uint64_t ns)
{
	for (uint64_t end = now() + ns; now() < end;) {
		post(siw_rd_mulpdu(peer(), SIW_RD_REQUESTS));
		pass(MS);
		SAY(SIW_DGRAM_RD_ACK,
		    .acknowledged = (uint32_t)siw_rd_framed(peer(), SIW_RD_REQUESTS),
		    .credit = 4096);
		look();
	}
}

/*
 * Probes the route's MTU and then a smaller datagram length, three times each, 2 RTO apart; and
 * again ten seconds later.
 */
static void check_mtu_probes(void)
{
	CHECK(!siw_setting_set("rd_max_datagram", 1400));
	begin();
	net.route_mtu = 1400;
	meet();
	round_trips(60, 2 * MS);
	full_length(9900 * MS);
	CHECK(peer()->datagram == SIW_RD_MIN_DATAGRAM && peer()->cc->rto == 20 * MS);
	CHECK(count(SIW_DGRAM_RD_PROBE) == 6);
	for (uint32_t i = 0; i < 6; i++) {
		CHECK(nth(SIW_DGRAM_RD_PROBE, i)->len == (i < 3 ? 1400 : 1280) - 28u);
		CHECK(interval_to_nth(SIW_DGRAM_RD_PROBE, i) == i * 2 * 20 * MS);
	}
	full_length(600 * MS);
	CHECK(interval_to_nth(SIW_DGRAM_RD_PROBE, 6) >= 240 * MS + 10 * S);
	CHECK(interval_to_nth(SIW_DGRAM_RD_PROBE, 6) <= 240 * MS + 10 * S + 2 * MS);
}

/*
 * When long datagrams no longer pass, larger lengths are probed again one second later, while
 * segments of full length are sent.
 */
static void check_mtu_probes_after_loss(void)
{
	uint64_t lowered;

	CHECK(!siw_setting_set("rd_max_datagram", 1400));
	begin();
	net.route_mtu = 1400;
	meet();
	round_trips(60, 2 * MS);
	post(siw_rd_mulpdu(peer(), SIW_RD_REQUESTS));
	SAY(SIW_DGRAM_RD_ACK, ntohl(nth(SIW_DGRAM_RD_PROBE, 0)->wire.llp.psn) - EPOCH,
	    .acknowledged = 61, .credit = 4096, .flags = SIW_RD_PROBED);
	look();
	CHECK(peer()->datagram == 1400 - 28);
	post(siw_rd_mulpdu(peer(), SIW_RD_REQUESTS));
	for (int i = 0; i < 10000 && peer()->datagram != SIW_RD_MIN_DATAGRAM; i++)
		pass(MS);
	CHECK(peer()->datagram == SIW_RD_MIN_DATAGRAM);
	lowered = now();
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 62, .credit = 4096);
	look();
	n_sent = 0;
	full_length(1100 * MS);
	CHECK(count(SIW_DGRAM_RD_PROBE) > 0);
	CHECK(nth(SIW_DGRAM_RD_PROBE, 0)->at >= lowered + S - MS);
	CHECK(nth(SIW_DGRAM_RD_PROBE, 0)->at <= lowered + S + 2 * MS);
}

/* A rate limit: `at_once` answers are sent immediately, then one for each interval of `each` ns. */
static void check_rate_limit(const struct says *what, int answer, uint32_t at_once, uint64_t each)
{
	begin();
	epoch = 7;
	net.now += S; /* let the rate limit recover until the complete burst is available */
	for (uint32_t i = 0; i < at_once + 100; i++) {
		say(what);
		look();
	}
	CHECK(count(answer) == at_once);
	net.now += 10 * each - 1;
	for (int i = 0; i < 20; i++) {
		say(what);
		look();
	}
	CHECK(count(answer) == at_once + 9);
	net.now += 1;
	say(what);
	look();
	CHECK(count(answer) == at_once + 10);
}

static void challenges(void)
{
	check_rate_limit(&(struct says){ SIW_DGRAM_RD_HELLO, .rest = hello_body,
					 .len = sizeof(hello_body) },
			 SIW_DGRAM_RD_CHALLENGE, 1000, 100 * US);
}

static void byes(void)
{
	check_rate_limit(&(struct says){ SIW_DGRAM_RD_PROBE }, SIW_DGRAM_RD_BYE, 20, 5 * MS);
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

/*
 * Segments that are queued for lack of credit and were never sent cannot be acknowledged, whatever
 * the peer claims.
 */
static void ack_of_what_was_never_sent(void)
{
	struct {
		struct siw_rd_ack ack;
		struct siw_rd_range range;
	} all = { .ack.ranges = { 1 }, .range = { 0, htons(8) } };

	begin();
	meet();
	SAY(SIW_DGRAM_RD_ACK, .credit = 2);
	look();
	for (int i = 0; i < 5; i++)
		post(1);
	CHECK(count(SIW_DGRAM_RD_DATA) == 2 && siw_rd_framed(peer(), SIW_RD_REQUESTS) == 5);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 3, .credit = 2);
	look();
	CHECK(siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 0);
	/*
	 * A range is ignored for segments that were never sent, and counts for those that were
	 * sent.
	 */
	SAY(SIW_DGRAM_RD_ACK, .credit = 2, .rest = &all, .len = sizeof(all));
	look();
	CHECK(peer()->in_flight == 0 && siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 0);
	CHECK(peer()->seq[0].tx->high == 2);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 2, .credit = 3);
	look();
	CHECK(siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 2);
	CHECK(count(SIW_DGRAM_RD_DATA) == 5);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 5, .credit = 3);
	look();
	CHECK(siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 5);
}

/* Each range acknowledges its own datagrams, and no others. */
static void ack_by_ranges(void)
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

	begin();
	meet();
	for (int i = 0; i < 24; i++)
		post(1);
	CHECK(siw_rd_framed(peer(), SIW_RD_REQUESTS) == 24);
	pass(MS);
	n_sent = 0;
	for (int i = 0; i < RANGES; i++) {
		body.range[i] = (struct siw_rd_range){ htons(there[i][0]), htons(there[i][1]) };
		at += there[i][0];
		for (int n = there[i][1]; n; n--)
			came[at++] = true;
	}
	CHECK(at == 24);
	SAY(SIW_DGRAM_RD_ACK, .credit = 4096, .rest = &body, .len = sizeof(body));
	look();
	pass(19 * MS);
	for (uint32_t i = 0; i < 24; i++) {
		bool again = false;

		for (uint32_t n = 0; n < n_sent; n++)
			again |= log_[n].type == SIW_DGRAM_RD_DATA &&
				 ntohl(log_[n].wire.llp.psn) == epoch + i;
		CHECK(again == !came[i]);
	}
}

/* ---- a full socket --------------------------------------------------------------------------- */

/* The socket becomes writable again, and the endpoint is notified. */
static void room_again(void)
{
	net.full = false;
	net.end[0].up = true;
	look();
}

/* Checks that the log holds n DATA datagrams with consecutive PSNs from `first`, each once. */
static void sent_in_order(uint32_t first, uint32_t n)
{
	CHECK(count(SIW_DGRAM_RD_DATA) == n);
	for (uint32_t i = 0; i < n; i++)
		CHECK(ntohl(nth(SIW_DGRAM_RD_DATA, i)->wire.llp.psn) == epoch + first + i);
}

/*
 * Datagrams that a full socket rejected are sent when there is room, once and in order; no timer
 * treats them as lost.
 */
static void full_socket(bool no_batches)
{
	uint64_t accepted;

	begin();
	meet();
	net.no_batches = no_batches;
	round_trips(60, 2 * MS);
	net.full = true;
	for (int i = 0; i < 5; i++)
		post(1);
	CHECK(siw_rd_flush(peer(), &accepted) == 0 && rd->blocked &&
	      !siw_link_empty(&peer()->starved));
	pass(MS);
	CHECK(!n_sent);
	room_again();
	sent_in_order(60, 5);
	CHECK(!rd->blocked && siw_link_empty(&peer()->starved));
	pass(4 * MS);
	sent_in_order(60, 5);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 65, .credit = 4096);
	look();
	CHECK(siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 65);
}

static void full_socket_together(void)
{
	full_socket(false);
}

static void full_socket_one_by_one(void)
{
	full_socket(true);
}

/* One datagram was sent before the socket became full: the rest waits behind it. */
static void full_socket_after_first(void)
{
	begin();
	meet();
	post(1);
	net.full = true;
	post(1400 - 100);
	post(1);
	CHECK(count(SIW_DGRAM_RD_DATA) == 1);
	/*
	 * The retransmission time-out of the first datagram also finds no room, and the datagram
	 * keeps its place in the order.
	 */
	pass(3 * S);
	CHECK(count(SIW_DGRAM_RD_DATA) == 1 && peer()->seq[0].nxt == 3);
	n_sent = 0;
	room_again();
	sent_in_order(0, 2); /* at most two datagrams are sent after a time-out (DGRAM-CC-10) */
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 2, .credit = 4096);
	look();
	sent_in_order(0, 3);
	SAY(SIW_DGRAM_RD_ACK, .acknowledged = 3, .credit = 4096);
	look();
	CHECK(siw_rd_accepted(peer(), SIW_RD_REQUESTS) == 3 && !news[SIW_RD_GONE]);
}

/*
 * An acknowledgement that finds the socket full is dropped. When the peer retransmits the datagram,
 * it is acknowledged again.
 */
static void full_socket_ack(void)
{
	begin();
	meet();
	net.full = true;
	data(0, 1);
	look();
	pass(MS);
	CHECK(taken == 1 && !n_sent);
	net.full = false;
	data(0, 1);
	look();
	CHECK(taken == 1 && n_sent == 1 && ntohl(log_[0].wire.acknowledged[0]) == EPOCH + 1);
}

/*
 * Messages to a second peer are sent when the socket has room again, together with those of the
 * first peer, and do not wait for a time-out.
 */
static void full_socket_others(void)
{
	uint32_t of_first;

	begin();
	meet();
	of_first = epoch;
	stranger++;
	epoch = 0;
	meet();
	net.full = true;
	stranger--;
	post(1);
	stranger++;
	CHECK(rd->blocked && siw_link_empty(&peer()->starved));
	post(1);
	CHECK(!siw_link_empty(&peer()->starved) && !n_sent);
	room_again();
	CHECK(count(SIW_DGRAM_RD_DATA) == 2 && siw_link_empty(&rd->starved));
	CHECK(ntohl(nth(SIW_DGRAM_RD_DATA, 0)->wire.llp.psn) == of_first);
	CHECK(ntohl(nth(SIW_DGRAM_RD_DATA, 1)->wire.llp.psn) == epoch);
}

/* A peer that is closed while it waits for room is removed from the queue of waiting peers. */
static void full_socket_peer_closed(void)
{
	begin();
	meet();
	net.full = true;
	post(1);
	CHECK(!siw_link_empty(&peer()->starved));
	SAY(SIW_DGRAM_RD_BYE);
	look();
	CHECK(news[SIW_RD_GONE] == 1 && siw_link_empty(&rd->starved));
	room_again();
	CHECK(!count(SIW_DGRAM_RD_DATA) && !rd->blocked);
}

static const struct {
	const char *name;
	void (*run)(void);
} rows[] = {
	{ "hello", hello },
	{ "echo", echo },
	{ "echo-far", echo_far },
	{ "hello-near", hello_near },
	{ "echo-near", echo_near },
	{ "meeting", check_meet_time_limit },
	{ "cookie", cookie },
	{ "retransmission-first", retransmission_first },
	{ "retransmission", retransmission },
	{ "retransmission-far", retransmission_far },
	{ "delay-told", delay_told },
	{ "delay-not-believed", delay_not_believed },
	{ "retransmission-kept", retransmission_kept },
	{ "ack-alone", ack_alone },
	{ "ack-of-two", ack_of_two },
	{ "ack-of-many", ack_of_many },
	{ "ack-of-long", ack_of_long },
	{ "ack-behind-a-gap", ack_behind_a_gap },
	{ "gone", check_peer_timeout },
	{ "forgotten", check_peer_eviction },
	{ "asked", check_credit_probe },
	{ "longer", check_mtu_probes },
	{ "longer-soon", check_mtu_probes_after_loss },
	{ "challenges", challenges },
	{ "byes", byes },
	{ "full-socket-together", full_socket_together },
	{ "full-socket-one-by-one", full_socket_one_by_one },
	{ "full-socket-amid", full_socket_after_first },
	{ "full-socket-ack", full_socket_ack },
	{ "full-socket-others", full_socket_others },
	{ "full-socket-over", full_socket_peer_closed },
	{ "ack-never-sent", ack_of_what_was_never_sent },
	{ "ack-by-ranges", ack_by_ranges },
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
