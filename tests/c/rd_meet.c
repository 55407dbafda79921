/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two RD endpoints establish contact over a bad link, with a clock that the test controls: the
 * round trip is two seconds, and 30% of the datagrams in each direction are lost. For 99 of 100
 * seeds contact must be established within a minute, and neither endpoint may start again with a
 * new epoch. The argument is "one" if one endpoint starts, or "both".
 */
#include "fuzz_rd.h"

enum { SEEDS = 100, MOST_LATE = 1, LOSS = 30 };
#define S      1000000000ull
#define ONEWAY (1 * S)
#define GOAL   (60 * S)

static struct siw_rd *ends[2];
static uint64_t due[AIR]; /* arrival time of each datagram in flight */
static uint32_t known, rng_state;
static bool parted;

static uint32_t random_number(void)
{
	rng_state = rng_state * 1664525 + 1013904223;
	return rng_state >> 8;
}

static bool pretend_every_peer_is_known(int end, int place)
{
	(void)end, (void)place;
	return true;
}

static struct siw_rd_peer *peer_of_endpoint(int i)
{
	struct siw_addr addr = fuzz_addr_from_index(1 - i);
	struct siw_rd_peer *peer;

	CHECK(!siw_rd_get_or_create_peer(ends[i], &addr, &peer));
	return peer;
}

static void open_endpoint(int i, uint32_t seed)
{
	static struct siw_llp_poller poller;
	struct siw_rd_attr attr = { .local = fuzz_addr_from_index(i), .fd = -1, .qkey = 7 };

	poller.owner = getpid();
	CHECK(!siw_rd_open(&poller, &attr, &ends[i]));
	ends[i]->key = (struct siw_sipkey){ { seed, (uint64_t)i } };
}

/*
 * Decides for each datagram that was sent since the last call whether it is lost or when it
 * arrives.
 */
static void schedule_datagram_arrivals(void)
{
	while (known < net.n_in_flight) {
		if (random_number() % 100 < LOSS)
			fuzz_net_drop_datagram(known);
		else
			due[known++] = net.now + ONEWAY;
	}
}

static void poll_endpoint(int i)
{
	struct siw_rd_event event;

	if (ends[i]->sock->due_ns <= net.now)
		ends[i]->sock->due_ns = UINT64_MAX;
	while (siw_rd_recv(ends[i], &event) == 1) {
		if (event.kind == SIW_RD_SEGMENT)
			siw_rd_mark_segment_accepted(event.peer);
		if (event.kind == SIW_RD_RESTARTED || event.kind == SIW_RD_GONE)
			parted = true;
	}
	schedule_datagram_arrivals();
}

static void deliver_next_datagram(void)
{
	CHECK(fuzz_net_deliver_datagram(0));
	known--;
	memmove(due, due + 1, known * sizeof(due[0]));
}

static void advance_to_next_arrival_or_timer(void)
{
	uint64_t next = known ? due[0] : UINT64_MAX;

	for (int i = 0; i < 2; i++)
		if (ends[i]->sock->due_ns < next)
			next = ends[i]->sock->due_ns;
	CHECK(next != UINT64_MAX);
	if (next > net.now)
		net.now = next;
	while (known && due[0] <= net.now)
		deliver_next_datagram();
	poll_endpoint(0);
	poll_endpoint(1);
}

/*
 * Returns whether both endpoints have established contact in time; senders: how many of them send.
 */
static bool try_handshake(uint32_t seed, int senders)
{
	uint64_t began;
	bool met = false;

	fuzz_net_reset();
	net.knows = pretend_every_peer_is_known;
	known = 0;
	parted = false;
	rng_state = seed * 2654435761u;
	began = net.now;
	for (int i = 0; i < 2; i++)
		open_endpoint(i, seed);
	for (int i = 0; i < senders; i++)
		CHECK(siw_rd_tx(peer_of_endpoint(i), SIW_RD_REQUESTS, "x", 1, NULL, 0, false) == 1);
	schedule_datagram_arrivals();
	while (!met && net.now - began < GOAL) {
		advance_to_next_arrival_or_timer();
		met = peer_of_endpoint(0)->state == SIW_RD_OPEN &&
		      peer_of_endpoint(1)->state == SIW_RD_OPEN;
	}
	CHECK(!parted && (!met || (peer_of_endpoint(0)->epoch == peer_of_endpoint(1)->peer_epoch &&
				   peer_of_endpoint(1)->epoch == peer_of_endpoint(0)->peer_epoch)));
	for (int i = 0; i < 2; i++)
		siw_rd_close(ends[i]);
	return met;
}

int main(int argc, char **argv)
{
	int senders = argc == 2 && !strcmp(argv[1], "both") ? 2 : 1, late = 0;

	for (uint32_t seed = 1; seed <= SEEDS; seed++)
		late += !try_handshake(seed, senders);
	if (late > MOST_LATE)
		fprintf(stderr, "%d of %d did not meet\n", late, SEEDS);
	return late > MOST_LATE;
}
