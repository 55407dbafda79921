/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reliable datagrams: three endpoints that run the product's code, a network that is controlled by
 * the input, and four strangers (hosts without an endpoint) that send what the input says, also
 * with the address of an endpoint.
 *
 *   octet 0  SHORT 1: little memory, few peer records, cookie lifetime and idle time of 50 ms;
 *            WRAP 2: PSNs begin just before they wrap; NO_ATTACKS 4: no strangers, restarts or
 *            resets; NO_GSO 8: no UDP_SEGMENT
 *   then     steps: one octet selects the step, one or more octets are its parameters
 *
 * An incarnation of a pair of endpoints ends when one of the two loses its state. Invariants for
 * every input: each segment is delivered at most once, in order, and without a gap within one
 * incarnation; a segment that is reported as accepted was delivered; memory and peer records stay
 * within their limits, and the accounting is consistent; an address that has not completed the
 * handshake is never sent more octets than it sent. In the end, all segments of incarnations that
 * have not ended are delivered.
 */
#include <arpa/inet.h>

#include "base/crc32c.h"
#include "fuzz_rd.h"
#include "rd/rd_hello_wire.h"

enum { SHORT = 1, WRAP = 2, NO_ATTACKS = 4, NO_GSO = 8 };
enum { QKEY = 0x11223344, STEPS = 500, HEAD = 8, LIVES = 16 };
#define MS 1000000ull

struct input {
	const uint8_t *at, *end;
	uint8_t flags;
};

/* State of one endpoint towards another endpoint, in one sequence space. */
struct pair {
	uint32_t next;	/* number of the next segment to send */
	uint32_t taken; /* highest segment number delivered from the other endpoint, + 1 */
	bool fresh;	/* nothing was delivered yet in this incarnation of the pair */
};

static struct {
	struct siw_rd *rd;
	struct siw_llp_poller poller;
	struct pair with[ENDS][SIW_RD_SPACES];
	bool holds[SIW_RD_SPACES];
	uint8_t life;
} ends[ENDS];

static uint8_t flags;
static bool upset; /* the input may have ended an incarnation in a way that RD permits */
static uint32_t foreign_taken;

static uint32_t next_input_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static uint32_t next_input_uint32(struct input *in)
{
	uint32_t n = 0;

	for (int i = 0; i < 4; i++)
		n = n << 8 | next_input_byte(in);
	return n;
}

static struct siw_rd_peer *fuzz_rd_find_peer(int end, int place)
{
	struct siw_addr addr = fuzz_addr_from_index(place);

	return siw_rd_peer_find(ends[end].rd, &addr);
}

static bool fuzz_rd_knows_peer(int end, int place)
{
	return fuzz_rd_find_peer(end, place) != NULL;
}

/* ---- the endpoints --------------------------------------------------------------------------- */

static void open_rd_endpoint(int i)
{
	struct siw_rd_attr attr = {
		.local = fuzz_addr_from_index(i),
		.fd = -1,
		.ird = 7,
		.rnr_retry = 7,
		.qkey = QKEY,
		.max_peers = flags & SHORT ? 5 : 0,
	};

	ends[i].poller.owner = getpid();
	CHECK(!siw_rd_open(&ends[i].poller, &attr, &ends[i].rd));
	/*
	 * The key of an endpoint is the same in each run, and changes with each restart of the
	 * endpoint.
	 */
	ends[i].rd->key = (struct siw_sipkey){ { (uint64_t)i + 1, ends[i].life++ } };
}

static struct siw_rd_peer *find_or_create_peer(int a, int b)
{
	struct siw_rd_peer *peer = fuzz_rd_find_peer(a, b);
	struct siw_addr addr = fuzz_addr_from_index(b);

	if (peer) {
		siw_rd_set_upper_layer_object(peer, &ends[b]);
		return peer;
	}
	if (siw_rd_get_or_create_peer(ends[a].rd, &addr, &peer))
		return NULL;
	siw_rd_set_upper_layer_object(peer, &ends[b]);
	if (flags & WRAP)
		peer->epoch = UINT32_MAX - (uint32_t)(ends[a].life * ENDS + a);
	return peer;
}

static void note_restart_of_endpoint_pair(int a, int b)
{
	for (int space = 0; space < SIW_RD_SPACES; space++)
		ends[a].with[b][space].fresh = true;
}

/* Segment numbers are even in the space of requests and odd in the space of responses. */
static uint32_t segment_number(uint32_t next, enum siw_rd_space space)
{
	return next * SIW_RD_SPACES + space;
}

/* Sends a segment. Every segment whose length is a multiple of 3 is a response. */
static void send_segment(int a, int b, uint32_t len)
{
	struct siw_rd_peer *peer = find_or_create_peer(a, b);
	enum siw_rd_space space = len % 3 ? SIW_RD_REQUESTS : SIW_RD_RESPONSES;
	struct pair *pair = &ends[a].with[b][space];
	uint32_t number = htonl(segment_number(pair->next, space));
	uint8_t head[HEAD] = { 'S', (uint8_t)a, (uint8_t)b, (uint8_t)len };
	static uint8_t body[1024];
	struct iovec iov = { body, len };
	uint64_t accepted;
	int64_t r;

	if (!peer)
		return;
	memcpy(head + 4, &number, 4);
	memset(body, (int)(ntohl(number) * 7), len);
	r = siw_rd_tx(peer, space, head, sizeof(head), &iov, 1, false);
	CHECK(r >= 0 || r == -EPIPE);
	CHECK(r <= 0 || (uint64_t)r == siw_rd_segments_ever_queued(peer, space));
	if (r > 0)
		pair->next++;
	siw_rd_flush(peer, &accepted);
	CHECK(accepted == siw_rd_total_accepted_segments(peer, SIW_RD_REQUESTS));
}

/* Checks a segment that endpoint a received from b: the segment is unchanged, and next in order. */
static void fuzz_rd_check_delivered_segment(int a, int b, enum siw_rd_space space,
					    const uint8_t *data, uint32_t len)
{
	struct pair *pair = &ends[a].with[b][space];
	uint32_t number;

	CHECK(len >= HEAD && data[0] == 'S' && data[1] == b && data[2] == a);
	memcpy(&number, data + 4, 4);
	number = ntohl(number);
	for (uint32_t i = HEAD; i < len; i++)
		CHECK(data[i] == (uint8_t)(number * 7));
	CHECK((uint8_t)(len - HEAD) == data[3]);
	CHECK(number % SIW_RD_SPACES == space);
	number /= SIW_RD_SPACES;
	CHECK(number < ends[b].with[a][space].next);
	CHECK(number >= pair->taken); /* segments are delivered at most once, in order */
	CHECK(pair->fresh || number == pair->taken);
	pair->taken = number + 1;
	pair->fresh = false;
}

static void fuzz_rd_handle_event(int a, const struct siw_rd_event *event)
{
	int b = fuzz_index_of_addr(siw_rd_peer_addr(event->peer));

	switch (event->kind) {
	case SIW_RD_SEGMENT:
		if (ends[a].holds[event->space]) {
			siw_rd_pause_delivery(event->peer, event->space, true);
			return;
		}
		if (b < ENDS) {
			siw_rd_set_upper_layer_object(event->peer, &ends[b]);
			fuzz_rd_check_delivered_segment(a, b, event->space, event->data,
							event->len);
		} else {
			for (uint32_t i = 0; i < event->len; i++)
				foreign_taken += event->data[i];
		}
		siw_rd_mark_segment_accepted(event->peer);
		return;
	case SIW_RD_RESTARTED:
	case SIW_RD_GONE:
	case SIW_RD_UNREADY:
	case SIW_RD_REPLACED:
		CHECK(b >= ENDS || upset);
		siw_rd_set_upper_layer_object(event->peer, NULL);
		/* fall through */
	case SIW_RD_NEW_PEER:
		if (b < ENDS)
			note_restart_of_endpoint_pair(a, b);
		return;
	default:
		CHECK(event->kind == SIW_RD_ACKED);
	}
}

/*
 * Makes one progress round: an endpoint is serviced if its socket is ready or its timer has
 * expired.
 */
static void fuzz_rd_make_progress(int i)
{
	struct siw_rd *rd = ends[i].rd;
	struct siw_rd_event event;
	uint64_t accepted;

	if (!net.end[i].up && rd->sock->due_ns > net.now)
		return;
	net.end[i].up = false;
	if (rd->sock->due_ns <= net.now)
		rd->sock->due_ns = UINT64_MAX;
	for (int n = 0; siw_rd_recv(rd, &event) == 1; n++) {
		CHECK(n < 100000);
		fuzz_rd_handle_event(i, &event);
		if (event.kind == SIW_RD_ACKED || (event.kind == SIW_RD_SEGMENT && event.acked))
			siw_rd_flush(event.peer, &accepted);
	}
}

static void pause_or_resume_sequence_space(int i, enum siw_rd_space space, bool on)
{
	ends[i].holds[space] = on;
	for (int place = 0; !on && place < PLACES; place++) {
		struct siw_rd_peer *peer = fuzz_rd_find_peer(i, place);

		if (peer && peer->seq[space].held)
			siw_rd_resume_delivery(peer, space);
	}
}

/*
 * Closes and reopens an endpoint. Received datagrams are lost; if quietly, the close sends nothing.
 */
static void fuzz_rd_restart_endpoint(int i, bool quietly)
{
	bool was_full = net.full;

	if (ends[i].life >= LIVES)
		return;
	upset = true;
	net.full = quietly || was_full;
	siw_rd_close(ends[i].rd);
	net.full = was_full;
	net.end[i].n = net.end[i].at = 0;
	open_rd_endpoint(i);
	memset(ends[i].holds, 0, sizeof(ends[i].holds));
	for (int b = 0; b < ENDS; b++)
		note_restart_of_endpoint_pair(i, b);
}

/* ---- checks of the accounting ---------------------------------------------------------------- */

static uint64_t assert_send_window_is_consistent(const struct siw_rd_seq *seq, uint64_t *in_flight)
{
	const struct siw_rd_tx *tx = seq->tx;
	uint64_t octets = 0, room = 0;
	uint32_t lost = 0, units = 0;

	CHECK(tx || seq->una == seq->nxt);
	if (!tx)
		return 0;
	CHECK(seq->nxt - seq->una <= SIW_RD_WINDOW_MAX && seq->nxt - seq->una <= tx->mask + 1);
	CHECK(tx->sent >= seq->una && tx->sent <= seq->nxt && tx->high <= tx->sent);
	for (uint64_t i = seq->una; i < seq->nxt; i++) {
		const struct siw_rd_slot *slot = &tx->slot[i & tx->mask];

		CHECK(slot->buf && !(slot->sacked && slot->lost));
		CHECK(i < tx->sent || !(slot->sacked || slot->lost));
		if (i < tx->sent && !slot->sacked && !slot->lost)
			*in_flight += slot->len;
		if (i < tx->sent)
			units += siw_rd_credit_units(slot->len);
		lost += slot->lost;
		octets += slot->len;
		room += siw_rd_size_class_octets(slot->class);
	}
	CHECK(lost == tx->n_lost && units == tx->units);
	CHECK(octets == tx->octets);
	return room;
}

static uint64_t check_receive_window(const struct siw_rd *rd, const struct siw_rd_seq *seq)
{
	const struct siw_rd_rx *rx = seq->rx;
	uint64_t room = 0;
	uint32_t n = 0, units = 0;

	if (!rx)
		return 0;
	for (uint32_t i = 0; i <= rx->mask; i++) {
		const struct siw_rd_held *held = &rx->slot[i];

		if (!held->buf)
			continue;
		n++;
		units += siw_rd_credit_units(held->len);
		room += siw_rd_size_class_octets(held->class);
	}
	CHECK(n && n == rx->n && units == rx->units && units <= rd->window_units);
	CHECK(rx->high > seq->rcv && rx->high - seq->rcv <= SIW_RD_WINDOW_MAX);
	CHECK(rx->high - seq->rcv <= rx->mask + 1);
	return room + sizeof(*rx) + (rx->mask + 1) * sizeof(rx->slot[0]);
}

/*
 * Checks that the other endpoint has delivered all segments of this incarnation that count as
 * accepted.
 */
static void check_accepted_segments_were_delivered(int a, int b, enum siw_rd_space space)
{
	struct siw_rd_peer *peer = fuzz_rd_find_peer(a, b);
	uint64_t framed = peer ? siw_rd_segments_ever_queued(peer, space) : 0;
	uint64_t accepted = framed ? siw_rd_total_accepted_segments(peer, space) : 0;

	if (accepted)
		CHECK(ends[a].with[b][space].next - framed + accepted <=
		      ends[b].with[a][space].taken);
}

static void fuzz_rd_check_accounting(int i)
{
	struct siw_rd *rd = ends[i].rd;
	uint64_t tx = 0, rx = 0;
	uint32_t n = 0;

	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		struct siw_rd_peer *peer = siw_container(l, struct siw_rd_peer, lru);

		uint64_t in_flight = 0;

		for (int space = 0; space < SIW_RD_SPACES; space++) {
			tx += assert_send_window_is_consistent(&peer->seq[space], &in_flight);
			rx += check_receive_window(rd, &peer->seq[space]);
		}
		CHECK(in_flight == peer->in_flight);
		n++;
	}
	CHECK(n == rd->n_peers && n <= rd->max_peers);
	CHECK(tx == rd->tx_octets && tx <= rd->tx_limit + n * SIW_RD_SPACES * 2048);
	CHECK(rx == rd->rx_octets && rx <= rd->rx_limit);
	for (int b = 0; b < ENDS; b++)
		for (int space = 0; b != i && space < SIW_RD_SPACES; space++)
			check_accepted_segments_were_delivered(i, b, (enum siw_rd_space)space);
}

/* ---- strangers ------------------------------------------------------------------------------- */

static uint32_t number_at_fuzzed_distance(uint32_t base, uint32_t by)
{
	static const int32_t far[8] = { 0, 1, 15, 16, 300, 4095, 4096, -1 };

	return base + (by & 0x80 ? (uint32_t)(int8_t)by : (uint32_t)far[by & 7] + (by >> 3));
}

/*
 * Returns whether a forged datagram is more than an attacker without knowledge of the epochs could
 * send. Such a datagram is not sent, because it could legitimately change an endpoint's state.
 */
static bool is_forgery_beyond_attacker_abilities(int from, int to, const struct siw_rd_wire *wire)
{
	const struct siw_rd_peer *peer = fuzz_rd_find_peer(to, from);

	return wire->llp.type >> 4 == SIW_DGRAM_RD_ECHO ||
	       (peer && (ntohl(wire->dest_epoch) == peer->epoch ||
			 (peer->peer_epoch && ntohl(wire->source_epoch) == peer->peer_epoch)));
}

/*
 * Builds the body of an ACK: up to four ranges from the input, and further ranges that repeat one
 * octet.
 */
static uint32_t build_ack_body(struct input *in, uint8_t *rest)
{
	struct siw_rd_ack *ack = (struct siw_rd_ack *)rest;
	uint32_t n = next_input_byte(in) % 64, len = SIW_RD_ACK_LEN + n * SIW_RD_RANGE_LEN;

	memset(rest, (int)next_input_byte(in), len);
	ack->ranges[SIW_RD_REQUESTS] = (uint8_t)(n - n / 4);
	ack->ranges[SIW_RD_RESPONSES] = (uint8_t)(n / 4);
	for (uint32_t i = 0; i < n && i < 4; i++) {
		struct siw_rd_range *range = (struct siw_rd_range *)(ack + 1) + i;

		*range = (struct siw_rd_range){ htons((uint16_t)next_input_byte(in)),
						htons((uint16_t)next_input_byte(in)) };
	}
	return len;
}

static void fuzz_rd_send_from_stranger(struct input *in)
{
	uint32_t how = next_input_byte(in), what = next_input_byte(in), who = how % STRANGERS,
		 len = 0, crc;
	int to = (int)(how >> 2) % ENDS, from = ENDS + (int)who;
	bool lies = (how >> 4) % 4 == 3;
	struct {
		struct siw_rd_wire wire;
		uint8_t rest[1024];
	} d = { 0 };

	d.wire.llp.type = siw_dgram_first(SIW_DGRAM_RD_DATA + what % 8);
	d.wire.llp.qkey = htonl(QKEY + (what == 255));
	d.wire.source_epoch = htonl(0xf0000000 + who);
	d.wire.dest_epoch = htonl(net.heard[who].epoch);
	if (what & 0x10)
		d.wire.source_epoch = htonl(next_input_uint32(in));
	if (what & 0x20)
		d.wire.dest_epoch = htonl(next_input_uint32(in));
	d.wire.llp.psn =
		htonl(number_at_fuzzed_distance(ntohl(d.wire.source_epoch), next_input_byte(in)));
	d.wire.acknowledged[0] =
		htonl(number_at_fuzzed_distance(ntohl(d.wire.dest_epoch), next_input_byte(in)));
	d.wire.acknowledged[1] =
		htonl(number_at_fuzzed_distance(ntohl(d.wire.dest_epoch), next_input_byte(in)));
	d.wire.credit[0] = d.wire.credit[1] = htons((uint16_t)(next_input_byte(in) * 257));
	d.wire.flags = (uint8_t)next_input_byte(in);
	switch (what % 8 + SIW_DGRAM_RD_DATA) {
	case SIW_DGRAM_RD_ECHO:
	case SIW_DGRAM_RD_CHALLENGE:
		d.rest[0] = SIW_RD_VERSIONS;
		memcpy(d.rest + SIW_RD_HEAD_LEN, net.heard[who].cookie, SIW_RD_COOKIE_LEN);
		len = SIW_RD_HEAD_LEN + SIW_RD_COOKIE_LEN;
		break;
	case SIW_DGRAM_RD_HELLO:
		/* The options of a HELLO, if any, come from the input. */
		d.rest[0] = SIW_RD_VERSIONS;
		len = SIW_RD_HELLO_LEAST;
		if (what & 0x80) {
			d.rest[3] = (uint8_t)next_input_byte(in);
			for (int i = SIW_RD_HEAD_LEN; i < 16; i++)
				d.rest[i] = (uint8_t)next_input_byte(in);
		}
		break;
	case SIW_DGRAM_RD_ACK:
		len = build_ack_body(in, d.rest);
		break;
	default:
		len = next_input_byte(in) * 4;
	}
	if (what & 0x40)
		len = next_input_byte(in);
	if (lies) {
		from = (to + 1 + (int)who % (ENDS - 1)) % ENDS;
		if (is_forgery_beyond_attacker_abilities(from, to, &d.wire))
			return;
	}
	crc = htole32(siw_crc32c(0, &d, SIW_RD_LEN + len));
	memcpy((uint8_t *)&d + SIW_RD_LEN + len, &crc, sizeof(crc));
	fuzz_net_send_datagram(from, to, &d, SIW_RD_OVERHEAD + len);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void deliver_datagrams_in_flight(void)
{
	while (fuzz_net_deliver_datagram(0))
		;
	for (int i = 0; i < ENDS; i++)
		fuzz_rd_make_progress(i);
}

static void advance_simulated_time(uint64_t ns)
{
	net.now += ns;
	/*
	 * An endpoint that was not serviced for so long may have dropped peers that were alive.
	 */
	if (ns > 1000 * MS)
		upset = true;
}

static void corrupt_datagram_in_flight(uint32_t which, uint32_t at)
{
	if (which < net.n_in_flight && net.in_flight[which]->len)
		net.in_flight[which]->octets[at % net.in_flight[which]->len] ^=
			(uint8_t)(1u << at % 8);
}

static void reset_rd_connection_between(int a, int b)
{
	struct siw_rd_peer *peer = fuzz_rd_find_peer(a, b);

	if (!peer)
		return;
	upset = true;
	siw_rd_end_peer_incarnation(peer, SIW_RD_CLOSED_END);
	note_restart_of_endpoint_pair(a, b);
}

/*
 * Makes the sockets refuse sends, or accept sends again; then every waiting endpoint is serviced.
 */
static void fuzz_rd_set_sockets_full(bool full)
{
	for (int i = 0; net.full && !full && i < ENDS; i++)
		net.end[i].up = true;
	net.full = full;
}

static void run_input_step(struct input *in)
{
	uint32_t what = next_input_byte(in) % 16, how = next_input_byte(in);
	int a = (int)how % ENDS, b = (a + 1 + (int)(how >> 2) % (ENDS - 1)) % ENDS;
	bool calm = flags & NO_ATTACKS;

	switch (what) {
	case 0:
	case 1:
		for (uint32_t n = how >> 6; n < 4; n++)
			send_segment(a, b, next_input_byte(in));
		break;
	case 2:
	case 3:
		fuzz_net_deliver_datagram(how < 128 ? 0 : how % 16);
		break;
	case 4:
		fuzz_net_drop_datagram(how % 16);
		break;
	case 5:
		fuzz_net_replay_datagram(how);
		break;
	case 6:
		advance_simulated_time(calm && how % 36 > 29 ? MS : 1ull << how % 36);
		break;
	case 7:
		fuzz_rd_make_progress(a);
		break;
	case 8:
		pause_or_resume_sequence_space(a, how >> 6 & 1, how & 0x80);
		break;
	case 9:
		if (!calm)
			fuzz_rd_restart_endpoint(a, how & 0x80);
		break;
	case 10:
	case 11:
		if (calm)
			send_segment(a, b, how);
		else
			fuzz_rd_send_from_stranger(in);
		break;
	case 12:
		corrupt_datagram_in_flight(how % 16, next_input_byte(in));
		break;
	case 13:
		if (!calm && how > 200)
			reset_rd_connection_between(a, b);
		else if (fuzz_rd_find_peer(a, b))
			siw_rd_set_response_expected(fuzz_rd_find_peer(a, b), how & 1);
		break;
	case 14:
		for (uint32_t n = how % 8; n < 8; n++) {
			deliver_datagrams_in_flight();
			net.now += 100000;
		}
		break;
	default:
		fuzz_rd_set_sockets_full(how & 0x80);
		siw_rd_set_ird(ends[a].rd, (uint8_t)how);
	}
}

/*
 * Returns whether every segment that was accepted for sending in an incarnation that continues has
 * been delivered.
 */
static bool are_all_segments_delivered(void)
{
	for (int a = 0; a < ENDS; a++)
		for (int b = 0; b < ENDS; b++) {
			struct siw_rd_peer *peer = a == b ? NULL : fuzz_rd_find_peer(a, b);

			for (int space = 0; peer && space < SIW_RD_SPACES; space++)
				if (siw_rd_segments_ever_queued(peer, space) !=
				    siw_rd_total_accepted_segments(peer, space))
					return false;
		}
	return true;
}

/* Ends all interference and loss, and checks that every transfer completes. */
static void end_faults_and_check_delivery(void)
{
	fuzz_rd_set_sockets_full(false);
	for (int i = 0; i < ENDS; i++)
		for (int space = 0; space < SIW_RD_SPACES; space++)
			pause_or_resume_sequence_space(i, (enum siw_rd_space)space, false);
	/*
	 * If the network delayed a CHALLENGE for longer than the lifetime of its cookie, an
	 * endpoint asks for a new cookie only after another such delay.
	 */
	for (int n = 0; n < 9000 && (n < 20 || !are_all_segments_delivered()); n++) {
		deliver_datagrams_in_flight();
		net.now += n < 6000 ? 5 * MS : 50 * MS;
	}
	CHECK(are_all_segments_delivered());
}

static void begin_fuzz_run(void)
{
	static bool once;

	if (!once) {
		CHECK(!siw_setting_set("rd_max_datagram", 1400) &&
		      !siw_setting_set("rd_window", 65536));
		once = true;
	}
	CHECK(!siw_setting_set("rd_total_window", flags & SHORT ? 1 << 20 : 64 << 20));
	CHECK(!siw_setting_set("rd_idle_ms", flags & SHORT ? 50 : 30000));
	fuzz_net_reset();
	net.no_batches = flags & NO_GSO;
	net.knows = fuzz_rd_knows_peer;
	memset(ends, 0, sizeof(ends));
	/* With few peer records, one may be dropped before the peer sends again. */
	upset = flags & SHORT;
	for (int i = 0; i < ENDS; i++) {
		open_rd_endpoint(i);
		for (int b = 0; b < ENDS; b++)
			note_restart_of_endpoint_pair(i, b);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data + 1, data + size, 0 };

	if (size < 2)
		return 0;
	flags = data[0];
	begin_fuzz_run();
	for (int n = 0; n < STEPS && in.at < in.end; n++) {
		run_input_step(&in);
		for (int i = 0; i < ENDS && n % 4 == 0; i++)
			fuzz_rd_check_accounting(i);
	}
	end_faults_and_check_delivery();
	for (int i = 0; i < ENDS; i++) {
		fuzz_rd_check_accounting(i);
		siw_rd_close(ends[i].rd);
	}
	return 0;
}
