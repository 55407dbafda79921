/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* See rd_clock.h. */
#include "rd_clock.h"

#include "base/crc32c.h"

enum { LOG = 1 << 16 };

struct siw_rd *rd;
struct sent *log_;
uint32_t n_sent, taken, epoch;
int stranger;
bool holds;
int news[8];

static struct siw_llp_poller poller;
static uint64_t began, accepted;
static uint32_t logged; /* number of datagrams of net.kept that are already in log_ */

static bool pretend_every_peer_is_known(int end, int place)
{
	(void)end, (void)place;
	return true;
}

void open_endpoint(void)
{
	struct siw_rd_attr attr = {
		.local = fuzz_addr_from_index(0), .fd = -1, .ird = 7, .qkey = QKEY, .rnr_retry = 7
	};

	if (rd)
		siw_rd_close(rd);
	fuzz_net_reset();
	logged = n_sent = taken = epoch = 0;
	stranger = ENDS;
	holds = false;
	memset(news, 0, sizeof(news));
	net.knows = pretend_every_peer_is_known;
	began = net.now;
	if (!log_)
		log_ = calloc(LOG, sizeof(*log_));
	CHECK(log_);
	poller.owner = getpid();
	CHECK(!siw_rd_open(&poller, &attr, &rd));
}

uint64_t elapsed_ns(void)
{
	return net.now - began;
}

/* Logs the datagrams that the endpoint has sent since the last call. */
static void log_sent_datagrams(void)
{
	for (; logged != net.kept; logged++) {
		const struct fuzz_datagram *d = &net.past[logged % PAST];
		struct sent *s = &log_[n_sent];

		if (d->from)
			continue;
		CHECK(n_sent < LOG && d->len >= SIW_RD_OVERHEAD);
		*s = (struct sent){ .at = elapsed_ns(), .len = d->len };
		memcpy(&s->wire, d->octets, SIW_RD_LEN);
		memcpy(s->rest, d->octets + SIW_RD_LEN,
		       d->len - SIW_RD_OVERHEAD < sizeof(s->rest) ? d->len - SIW_RD_OVERHEAD
								  : sizeof(s->rest));
		s->type = s->wire.llp.type >> 4;
		n_sent++;
	}
}

void process_endpoint_events(void)
{
	struct siw_rd_event event;

	while (fuzz_net_deliver_datagram(0))
		;
	net.end[0].up = false;
	if (rd->sock->due_ns <= net.now)
		rd->sock->due_ns = UINT64_MAX;
	for (int n = 0; siw_rd_recv(rd, &event) == 1; n++) {
		CHECK(n < 100000 && event.kind < 8);
		news[event.kind]++;
		if (event.kind == SIW_RD_SEGMENT && holds) {
			siw_rd_pause_delivery(event.peer, event.space, true);
		} else if (event.kind == SIW_RD_SEGMENT) {
			taken++;
			siw_rd_mark_segment_accepted(event.peer);
		}
		if (event.kind == SIW_RD_ACKED || (event.kind == SIW_RD_SEGMENT && event.acked))
			siw_rd_flush(event.peer, &accepted);
		log_sent_datagrams();
	}
	log_sent_datagrams();
}

void advance_clock(uint64_t ns)
{
	uint64_t goal = net.now + ns;

	for (int n = 0; rd->sock->due_ns <= goal; n++) {
		CHECK(n < 1000000);
		if (rd->sock->due_ns > net.now)
			net.now = rd->sock->due_ns;
		process_endpoint_events();
	}
	net.now = goal;
	process_endpoint_events();
}

void send_from_peer(const struct peer_datagram *what)
{
	struct {
		struct siw_rd_wire wire;
		uint8_t rest[FUZZ_LONGEST - SIW_RD_OVERHEAD];
	} d = { 0 };
	uint32_t crc, len = what->len, source = what->source_epoch ? what->source_epoch : EPOCH;

	d.wire.llp.type = siw_dgram_first((enum siw_dgram_type)what->type);
	d.wire.llp.qkey = htonl(QKEY);
	d.wire.llp.psn = htonl(source + what->psn);
	d.wire.source_epoch = htonl(source);
	d.wire.dest_epoch = htonl(epoch);
	d.wire.acknowledged[SIW_RD_REQUESTS] = htonl(epoch + what->acknowledged);
	d.wire.acknowledged[SIW_RD_RESPONSES] = htonl(epoch + what->responses);
	d.wire.credit[SIW_RD_REQUESTS] = d.wire.credit[SIW_RD_RESPONSES] = htons(what->credit);
	d.wire.delay = htons(what->delay);
	d.wire.ird = 3;
	d.wire.flags = what->flags;
	if (what->rest)
		memcpy(d.rest, what->rest, what->len);
	if (what->type == SIW_DGRAM_RD_ACK && !what->rest)
		len = SIW_RD_ACK_LEN; /* the body of an ACK without ranges */
	crc = htole32(siw_crc32c(0, &d, SIW_RD_LEN + len));
	memcpy((uint8_t *)&d + SIW_RD_LEN + len, &crc, sizeof(crc));
	fuzz_net_send_datagram(stranger, 0, &d, SIW_RD_OVERHEAD + len);
}

const uint8_t hello_body[SIW_RD_HELLO_LEAST] = {
	SIW_RD_VERSIONS,
	0,
	0,
	OFFER - SIW_RD_HEAD_LEN, /* length of the options that follow the head, in octets */
	SIW_RD_LONGEST,
	4,
	0,
	0,
	0xff,
	0,
	SIW_RD_WINDOW,
	4,
	0,
	1,
	0,
	0,
};

const uint8_t *build_rd_echo_body(const void *cookie)
{
	static uint8_t body[ECHO];

	memcpy(body, hello_body, OFFER);
	memcpy(body + OFFER, cookie, SIW_RD_COOKIE_LEN);
	return body;
}

const uint8_t *build_echo_body(void)
{
	const uint8_t *rest = find_nth_sent_datagram(SIW_DGRAM_RD_CHALLENGE, 0)->rest;

	return build_rd_echo_body(rest + SIW_RD_HEAD_LEN + rest[3]);
}

void establish_contact(void)
{
	SEND_FROM_PEER(SIW_DGRAM_RD_HELLO, .rest = hello_body, .len = sizeof(hello_body));
	process_endpoint_events();
	epoch = ntohl(find_nth_sent_datagram(SIW_DGRAM_RD_CHALLENGE, 0)->wire.source_epoch);
	SEND_FROM_PEER(SIW_DGRAM_RD_ECHO, .credit = 4096, .rest = build_echo_body(), .len = ECHO);
	process_endpoint_events();
	CHECK(count_sent_datagrams(SIW_DGRAM_RD_ACK) == 1);
	n_sent = 0;
}

struct siw_rd_peer *get_simulated_peer(void)
{
	struct siw_addr addr = fuzz_addr_from_index(stranger);
	struct siw_rd_peer *p;

	CHECK(!siw_rd_get_or_create_peer(rd, &addr, &p));
	return p;
}

void send_segment(uint32_t octets)
{
	static uint8_t body[1400];
	struct iovec iov = { body, octets };

	CHECK(siw_rd_tx(get_simulated_peer(), SIW_RD_REQUESTS, "", 0, &iov, 1, false) > 0);
	siw_rd_flush(get_simulated_peer(), &accepted);
	log_sent_datagrams();
}

const struct sent *find_nth_sent_datagram(int type, uint32_t i)
{
	for (uint32_t n = 0; n < n_sent; n++)
		if (log_[n].type == type && !i--)
			return &log_[n];
	return NULL;
}

uint32_t count_sent_datagrams(int type)
{
	uint32_t n = 0;

	while (find_nth_sent_datagram(type, n))
		n++;
	return n;
}
