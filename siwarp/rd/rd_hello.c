/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_hello.c - the handshake. A HELLO is answered with a cookie, and no state is stored. A peer
 * record is created, or reset, only for a source that returns the cookie, which proves that it
 * receives datagrams at its source address.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/capture.h"
#include "base/os.h"
#include "rd/rd_hello_wire.h"
#include "rd/rd_impl.h"

/*
 * Retransmission of HELLO and ECHO. On a path within the machine: after 20 ms, doubling to 500 ms.
 * On other paths: after one second, as RFC 8085 section 3.1.1 and RFC 6298 require, doubling to 4
 * seconds; RFC 8085 section 3.1.3 allows one datagram in three seconds if no round trip is known.
 */
#define NEAR_NS	  (20 * SIW_RD_MS)
#define NEAR_MOST (500 * SIW_RD_MS)
#define FAR_NS	  (1 * SIW_RD_S)
#define FAR_MOST  (4 * SIW_RD_S)
/* a new cookie is requested after this number of unanswered ECHOs */
#define ECHOES 3
/*
 * Within a period of 2^16 ms, choose_own_epoch() returns the same epoch for the same epoch of the
 * peer. A period is longer than the lifetime of a cookie.
 */
#define EPOCH_MS_BITS 16

static const struct siw_rate challenges = { 50000, 5000 }, challenges_each = { 10000, 1000 };

/* The longest handshake datagram that this end sends: a HELLO. */
struct datagram {
	struct siw_rd_wire wire;
	uint8_t body[SIW_RD_HELLO_LEAST];
	uint8_t crc[SIW_DGRAM_CRC_LEN];
} __attribute__((packed));

/* ---- head and options ------------------------------------------------------------------------ */

/* The parameters that an endpoint announces in the handshake. */
struct offer {
	const uint8_t *head; /* struct siw_rd_head and the options, as in the datagram */
	uint32_t octets;     /* total length of head and options in octets */
	uint32_t longest, window;
	uint64_t instance; /* instance of the peer; 0: the peer announced none */
	uint8_t versions;
};

/*
 * Returns this end's parameters; writes head and options, at most SIW_RD_HELLO_LEAST octets, to
 * `to`.
 */
static struct offer build_own_handshake_parameters(const struct siw_rd *rd, uint8_t *to)
{
	struct {
		struct siw_rd_head head;
		struct siw_rd_option option[3];
		struct siw_rd_option_instance instance;
	} __attribute__((packed)) out = {
		.head = { .versions = SIW_RD_VERSIONS,
			  .octets = htons(sizeof(out) - sizeof(out.head)) },
		.instance = { SIW_RD_INSTANCE, sizeof(rd->instance), htobe64(rd->instance) },
		.option = {
			{ SIW_RD_LONGEST, 4, htonl(SIW_RD_BATCH - SIW_RD_OVERHEAD) },
			{ SIW_RD_WINDOW, 4, htonl(SIW_RD_WINDOW_MAX) },
			{ SIW_RD_FEATURES, 4, 0 },
		},
	};

	_Static_assert(sizeof(out) + SIW_RD_COOKIE_LEN <= SIW_RD_HELLO_LEAST, "a CHALLENGE fits");
	memcpy(to, &out, sizeof(out));
	return (struct offer){ .head = to, .octets = sizeof(out) };
}

static bool parse_instance_option(struct offer *offer, uint8_t length, const uint8_t *value)
{
	if (length != sizeof(offer->instance))
		return false;
	memcpy(&offer->instance, value, length);
	offer->instance = be64toh(offer->instance);
	return offer->instance;
}

/*
 * Stores an option of a handshake datagram in the offer. Returns false if the option's value is
 * invalid.
 */
static bool parse_hello_option(struct offer *offer, uint8_t type, uint8_t length,
			       const uint8_t *octets)
{
	uint32_t value;

	if (type == SIW_RD_INSTANCE)
		return parse_instance_option(offer, length, octets);
	if (type != SIW_RD_LONGEST && type != SIW_RD_WINDOW)
		return true;
	if (length != sizeof(value))
		return false;
	memcpy(&value, octets, sizeof(value));
	value = ntohl(value);
	if (type == SIW_RD_LONGEST) {
		offer->longest = value;
		return value >= SIW_RD_MIN_MAX_SEGMENT;
	}
	offer->window = value;
	return value > 0;
}

/*
 * Parses head and options at the start of a handshake body of len octets. Returns false if they are
 * malformed.
 */
static bool parse_hello_options(const uint8_t *body, uint32_t len, struct offer *out)
{
	struct siw_rd_head head;
	uint32_t at = SIW_RD_HEAD_LEN, end;

	if (len < sizeof(head))
		return false;
	memcpy(&head, body, sizeof(head));
	end = at + ntohs(head.octets);
	*out = (struct offer){
		.head = body,
		.octets = end,
		.longest = SIW_RD_MIN_MAX_SEGMENT,
		.window = SIW_RD_DEFAULT_WINDOW,
		.versions = head.versions,
	};
	if (end > len || !(head.versions & SIW_RD_VERSIONS))
		return false;
	for (; at < end; at += 2u + body[at + 1])
		if (end - at < 2 || end - at < 2u + body[at + 1] ||
		    !parse_hello_option(out, body[at], body[at + 1], body + at + 2))
			return false;
	return true;
}

/* Parses the body of a handshake datagram that consists of head, options and a cookie. */
static bool parse_options_and_cookie(const uint8_t *body, uint32_t len, struct offer *offer,
				     struct siw_rd_cookie *cookie)
{
	if (!parse_hello_options(body, len, offer) || len != offer->octets + sizeof(*cookie))
		return false;
	memcpy(cookie, body + offer->octets, sizeof(*cookie));
	return true;
}

static void apply_handshake_parameters_of_peer(struct siw_rd_peer *peer, const struct offer *offer)
{
	peer->peer_max_segment = offer->longest < UINT16_MAX ? (uint16_t)offer->longest
							     : UINT16_MAX;
	peer->peer_window = offer->window < SIW_RD_WINDOW_MAX ? offer->window : SIW_RD_WINDOW_MAX;
}

void siw_rd_write_bare_header(const struct siw_rd *rd, enum siw_dgram_type type, uint32_t epoch,
			      uint32_t its_epoch, struct siw_rd_wire *out)
{
	*out = (struct siw_rd_wire){
		.llp = { .type = siw_dgram_first(type), .qkey = htonl(rd->qkey) },
		.source_epoch = htonl(epoch),
		.dest_epoch = htonl(its_epoch),
	};
}

/* ---- initiator ------------------------------------------------------------------------------- */

/*
 * Returns the interval, in ns, until a HELLO or ECHO is retransmitted. The time from the first
 * HELLO to the CHALLENGE is an upper bound of the round trip; three times that is RFC 6298's
 * initial time-out.
 */
static uint64_t hello_interval_ns(const struct siw_rd_peer *peer)
{
	uint64_t first = peer->near ? NEAR_NS : FAR_NS, most = peer->near ? NEAR_MOST : FAR_MOST;
	uint64_t took = peer->last_received_ns - peer->awaited_since_ns;

	if (peer->state == SIW_RD_ECHOED && !peer->near)
		first = took * 3 > NEAR_NS ? took * 3 : NEAR_NS;
	first <<= peer->backoff;
	return first < most ? first : most;
}

static void send_hello(struct siw_rd_peer *peer, uint64_t now)
{
	struct datagram out = { 0 };
	uint32_t len = build_own_handshake_parameters(peer->rd, out.body).octets;

	if (peer->state == SIW_RD_ECHOED) {
		siw_rd_write_header(peer, SIW_DGRAM_RD_ECHO, 0, 0, now, &out.wire);
		out.wire.delay = 0;
		out.wire.ird = 0;
		memcpy(out.body + len, &peer->cookie, sizeof(peer->cookie));
		len += (uint32_t)sizeof(peer->cookie);
	} else {
		siw_rd_write_bare_header(peer->rd, SIW_DGRAM_RD_HELLO, peer->epoch, 0, &out.wire);
		len = SIW_RD_HELLO_LEAST;
	}
	siw_rd_send_datagram(peer->rd, &peer->addr, (uint8_t *)&out, SIW_RD_LEN + len);
	peer->last_sent_ns = now;
	peer->timer_ns = now + hello_interval_ns(peer);
	siw_rd_set_timer(peer, peer->timer_ns);
	siw_rd_set_timer(peer, siw_rd_time_to_declare_peer_lost(peer));
}

void siw_rd_start_handshake(struct siw_rd_peer *peer, uint64_t now)
{
	peer->state = SIW_RD_HELLO;
	peer->backoff = peer->rtos = 0;
	peer->awaited_since_ns = now;
	send_hello(peer, now);
}

void siw_rd_retransmit_handshake(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->backoff < 5)
		peer->backoff++;
	if (peer->state == SIW_RD_ECHOED) {
		if (peer->rtos < UINT8_MAX)
			peer->rtos++;
		/*
		 * The peer's acknowledgement of the ECHO may still be in flight; the peer's epoch
		 * stays valid until another CHALLENGE arrives. Once as much time has passed since
		 * the CHALLENGE as the CHALLENGE took to arrive, no CHALLENGE for an earlier HELLO
		 * is in flight any more.
		 */
		if (peer->rtos > ECHOES &&
		    now - peer->last_received_ns >= peer->last_received_ns - peer->awaited_since_ns)
			peer->state = SIW_RD_HELLO;
	}
	send_hello(peer, now);
}

void siw_rd_handle_challenge(struct siw_rd *rd, const struct siw_addr *from,
			     const struct siw_rd_wire *wire, uint32_t len, uint64_t now)
{
	struct siw_rd_peer *peer = siw_rd_peer_find(rd, from);
	struct siw_rd_cookie cookie;
	struct offer offer;

	/*
	 * If several CHALLENGEs answer one HELLO and its retransmissions, only the first is echoed.
	 */
	if (!peer || peer->state != SIW_RD_HELLO || ntohl(wire->dest_epoch) != peer->epoch ||
	    !wire->source_epoch ||
	    !parse_options_and_cookie((const uint8_t *)(wire + 1), len - SIW_RD_OVERHEAD, &offer,
				      &cookie)) {
		siw_drop(SIW_COUNTER_drop_rd_epoch);
		return;
	}
	if (siw_rd_update_peer_instance(peer, offer.instance)) {
		siw_rd_handle_replaced_instance(peer);
		return;
	}
	apply_handshake_parameters_of_peer(peer, &offer);
	peer->cookie = cookie;
	peer->peer_epoch = ntohl(wire->source_epoch);
	peer->state = SIW_RD_ECHOED;
	peer->backoff = peer->rtos = 0;
	peer->last_received_ns = now;
	send_hello(peer, now);
}

void siw_rd_handle_versions_datagram(struct siw_rd *rd, const struct siw_addr *from,
				     const struct siw_rd_wire *wire, uint32_t len)
{
	struct siw_rd_peer *peer = siw_rd_peer_find(rd, from);
	const struct siw_rd_head *head = (const void *)(wire + 1);

	if (!peer || peer->state != SIW_RD_HELLO || ntohl(wire->dest_epoch) != peer->epoch ||
	    len < SIW_RD_OVERHEAD + sizeof(*head) || head->versions & SIW_RD_VERSIONS) {
		siw_drop(SIW_COUNTER_drop_rd_epoch);
		return;
	}
	siw_drop(SIW_COUNTER_drop_version);
	siw_count(SIW_COUNTER_rd_gone, 1);
	siw_rd_end_incarnation(peer, SIW_RD_GONE);
}

/* ---- responder ------------------------------------------------------------------------------- */

/*
 * The wire carries the low 32 bits of a cookie's time, the hash covers all 64 bits. An overheard
 * cookie is therefore valid only for its lifetime, and not again after the low 32 bits wrap around.
 */
static uint64_t cookie_hash(const struct siw_rd *rd, const struct siw_addr *from,
			    uint32_t its_epoch, uint32_t epoch, uint64_t made,
			    const struct offer *its)
{
	uint8_t own[SIW_RD_HELLO_LEAST];
	struct offer mine = build_own_handshake_parameters(rd, own);
	struct {
		struct siw_addr from;
		uint32_t its_epoch, epoch, made, made_high, version;
		uint64_t its_offer, own_handshake_parameters;
	} __attribute__((packed)) in = {
		*from,
		its_epoch,
		epoch,
		(uint32_t)made,
		(uint32_t)(made >> 32),
		SIW_DGRAM_VERSION,
		siw_siphash(&rd->key, its->head, its->octets),
		siw_siphash(&rd->key, mine.head, mine.octets),
	};

	return siw_siphash(&rd->key, &in, sizeof(in));
}

/*
 * Returns this end's epoch for a pair with the peer's epoch its_epoch: the current epoch if that
 * pair is open or being opened, otherwise a new epoch, which is the same for each retransmission of
 * the HELLO.
 */
static uint32_t choose_own_epoch(const struct siw_rd *rd, const struct siw_rd_peer *peer,
				 const struct siw_addr *from, uint32_t its_epoch, uint64_t made)
{
	struct {
		struct siw_addr from;
		uint32_t its_epoch, period;
	} in = { *from, its_epoch, (uint32_t)(made >> EPOCH_MS_BITS) };
	uint32_t epoch;

	_Static_assert(sizeof(in) == sizeof(struct siw_addr) + 8, "no uninitialized octets");
	if (peer && (peer->state != SIW_RD_OPEN || peer->peer_epoch == its_epoch))
		return peer->epoch;
	epoch = (uint32_t)siw_siphash(&rd->key, &in, sizeof(in));
	return siw_initial_sequence(epoch ? epoch : 1);
}

/*
 * Returns whether a HELLO from this address may be answered now; consumes a token of the rate
 * limit.
 */
static bool is_hello_answer_allowed(struct siw_rd *rd, const struct siw_addr *from, uint64_t now)
{
	struct siw_rd_sources *sources = siw_rd_get_source_table(rd);

	return sources &&
	       siw_source_consume_token(&sources->hello, siw_source_table_index(sources->key, from),
					&challenges, &challenges_each, now);
}

void siw_rd_handle_hello(struct siw_rd *rd, const struct siw_addr *from,
			 const struct siw_rd_wire *wire, uint32_t len)
{
	uint32_t its_epoch = ntohl(wire->source_epoch), epoch, octets;
	uint64_t now = rd->now, made = siw_rd_cookie_clock_ms(rd, now);
	struct siw_rd_cookie cookie = { .made = htonl((uint32_t)made) };
	struct datagram out = { 0 };
	struct offer its;

	/*
	 * The response is no longer than the HELLO, and its rate is limited, so that this endpoint
	 * cannot be used to amplify an attack.
	 */
	if (len < sizeof(out) || !its_epoch ||
	    !parse_hello_options((const uint8_t *)(wire + 1), len - SIW_RD_OVERHEAD, &its) ||
	    !is_hello_answer_allowed(rd, from, now)) {
		siw_drop(SIW_COUNTER_drop_rd_hello);
		return;
	}
	epoch = choose_own_epoch(rd, siw_rd_peer_find(rd, from), from, its_epoch, made);
	cookie.hash = cookie_hash(rd, from, its_epoch, epoch, made, &its);
	siw_rd_write_bare_header(rd, SIW_DGRAM_RD_CHALLENGE, epoch, its_epoch, &out.wire);
	octets = build_own_handshake_parameters(rd, out.body).octets;
	memcpy(out.body + octets, &cookie, sizeof(cookie));
	siw_rd_send_datagram(rd, from, (uint8_t *)&out, SIW_RD_LEN + octets + sizeof(cookie));
}

void siw_rd_handle_hello_of_other_version(struct siw_rd *rd, const struct siw_addr *from,
					  const struct siw_rd_wire *wire, uint32_t len)
{
	struct {
		struct siw_rd_wire wire;
		struct siw_rd_head head;
		uint8_t crc[SIW_DGRAM_CRC_LEN];
	} __attribute__((packed)) out = { .head = { .versions = SIW_RD_VERSIONS } };

	siw_drop(SIW_COUNTER_drop_version);
	if (len < sizeof(out) || !wire->source_epoch || !is_hello_answer_allowed(rd, from, rd->now))
		return;
	siw_rd_write_bare_header(rd, SIW_DGRAM_RD_VERSIONS, 0, ntohl(wire->source_epoch),
				 &out.wire);
	siw_rd_send_datagram(rd, from, (uint8_t *)&out, SIW_RD_LEN + sizeof(out.head));
}

/*
 * Returns whether the ECHO's cookie was created by this endpoint, for this source, these epochs and
 * options, and has not expired. *made: the cookie's creation time, by siw_rd_cookie_clock_ms.
 */
static bool is_our_cookie(const struct siw_rd *rd, const struct siw_addr *from,
			  const struct siw_rd_wire *wire, uint32_t len, struct offer *its,
			  uint64_t *made)
{
	uint64_t ms = siw_rd_cookie_clock_ms(rd, rd->now);
	struct siw_rd_cookie cookie;
	uint32_t age;

	if (!parse_options_and_cookie((const uint8_t *)(wire + 1), len - SIW_RD_OVERHEAD, its,
				      &cookie))
		return false;
	age = (uint32_t)ms - ntohl(cookie.made);
	*made = ms - age;
	return age <= rd->cookie_ms && age < ms &&
	       cookie.hash == cookie_hash(rd, from, ntohl(wire->source_epoch),
					  ntohl(wire->dest_epoch), *made, its);
}

/* Returns whether the ECHO may belong to an evicted record whose cookie has not expired. */
static bool cookie_may_belong_to_evicted_peer(struct siw_rd *rd, const struct siw_addr *from,
					      uint64_t made)
{
	const struct siw_rd_sources *sources = rd->sources;

	return sources && made <= sources->not_before[siw_source_table_index(sources->key, from)];
}

/* Opens the pair of epochs: both ends know both epochs, and queued segments may be sent. */
static void rd_open_peer_incarnation(struct siw_rd_peer *peer, uint32_t epoch, uint32_t its_epoch,
				     uint64_t now)
{
	peer->state = SIW_RD_OPEN;
	peer->epoch = epoch;
	peer->peer_epoch = its_epoch;
	peer->backoff = peer->rtos = 0;
	peer->known_lost = false;
	peer->timer_ns = SIW_RD_NEVER;
	peer->awaited_since_ns = siw_rd_has_outstanding_segment(peer) ? now : 0;
	peer->last_received_ns = now;
	siw_rd_mtu_handle_handshake_done(peer);
}

void siw_rd_handle_cookie_echo(struct siw_rd *rd, const struct siw_addr *from,
			       const struct siw_rd_wire *wire, uint32_t len, uint64_t now)
{
	struct siw_rd_peer *peer = siw_rd_peer_find(rd, from);
	uint32_t its_epoch = ntohl(wire->source_epoch), epoch = ntohl(wire->dest_epoch);
	struct offer its;
	uint64_t made;
	bool same;

	if (!its_epoch || !epoch || !is_our_cookie(rd, from, wire, len, &its, &made)) {
		siw_drop(SIW_COUNTER_drop_rd_cookie);
		return;
	}
	same = peer && peer->state == SIW_RD_OPEN && peer->epoch == epoch &&
	       peer->peer_epoch == its_epoch;
	/*
	 * An ECHO that is not newer than the one that opened this incarnation opens no other
	 * incarnation.
	 */
	if (peer && made <= peer->cookie_made && !same) {
		siw_drop(SIW_COUNTER_drop_rd_cookie);
		return;
	}
	/*
	 * Both ends began a handshake simultaneously, and each received the other's ECHO: the
	 * handshake of the end with the greater epoch wins.
	 */
	if (peer && (peer->state == SIW_RD_HELLO || peer->state == SIW_RD_ECHOED) &&
	    peer->epoch > its_epoch) {
		siw_drop(SIW_COUNTER_drop_rd_epoch);
		return;
	}
	if (!peer && cookie_may_belong_to_evicted_peer(rd, from, made)) {
		siw_drop(SIW_COUNTER_drop_rd_cookie);
		return;
	}
	if (!peer && siw_rd_get_or_create_peer_locked(rd, from, &peer) < 0) {
		siw_drop(SIW_COUNTER_drop_rd_peers);
		return;
	}
	if (!same) {
		if (siw_rd_update_peer_instance(peer, its.instance))
			siw_rd_handle_replaced_instance(peer);
		else if (peer->state == SIW_RD_OPEN)
			siw_rd_end_incarnation(peer, SIW_RD_RESTARTED);
		/* the peer knows that the previous incarnation has ended */
		siw_rd_pending_bye_free(peer);
		apply_handshake_parameters_of_peer(peer, &its);
		rd_open_peer_incarnation(peer, epoch, its_epoch, now);
		if (!siw_rd_upper_layer_object(peer))
			siw_rd_queue_peer_event(peer, SIW_RD_REPORT_NEW);
		peer->cookie_made = made;
	}
	siw_rd_move_to_end_of_lru(peer, now);
	siw_rd_handle_ack(peer, wire, NULL, now);
	siw_rd_send_ack(peer, 0, siw_rd_next_psn(peer), now);
}
