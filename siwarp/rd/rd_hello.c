/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_hello.c - how two ends meet, and part. A HELLO is answered with a cookie, and nothing is
 * stored. A record is made, or reset, only for a source that returns the cookie, which proves that
 * it receives at its source address.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/capture.h"
#include "rd/rd_impl.h"

#define HELLO_NS   (20 * SIW_RD_MS) /* then twice as long, and so on */
#define HELLO_MOST (500 * SIW_RD_MS)
/* ECHOs without an answer after which a new cookie is requested */
#define ECHOES 3
/* rate limit: so many per second, and so many in a burst */
#define CHALLENGE_EACH (SIW_RD_S / 50000)
#define CHALLENGE_MOST 5000
#define BYE_EACH       (SIW_RD_S / 1000)
#define BYE_MOST       100

struct datagram {
	struct siw_rd_wire wire;
	struct siw_rd_cookie cookie;
	uint8_t crc[SIW_DGRAM_CRC_LEN];
} __attribute__((packed));

/* ---- initiator ------------------------------------------------------------------------------- */

static void send_hello(struct siw_rd_peer *peer, uint64_t now)
{
	struct datagram out = { 0 };

	siw_rd_header(peer, peer->state == SIW_RD_ECHOED ? SIW_DGRAM_RD_ECHO : SIW_DGRAM_RD_HELLO,
		      peer->epoch, 0, now, &out.wire);
	if (peer->state == SIW_RD_ECHOED)
		out.cookie = peer->cookie;
	else
		out.wire.dest_epoch = 0;
	siw_count(SIW_COUNTER_rd_hellos, 1);
	siw_rd_send(peer->rd, &peer->addr, (uint8_t *)&out, SIW_RD_LEN + SIW_RD_COOKIE_LEN);
	peer->sent_ns = now;
	peer->timer_ns = HELLO_NS << peer->backoff;
	peer->timer_ns = now + (peer->timer_ns < HELLO_MOST ? peer->timer_ns : HELLO_MOST);
	siw_rd_due(peer, peer->timer_ns);
}

void siw_rd_hello(struct siw_rd_peer *peer, uint64_t now)
{
	peer->state = SIW_RD_HELLO;
	peer->backoff = peer->rtos = 0;
	peer->since_ns = now;
	send_hello(peer, now);
}

/* Time from the first HELLO to the CHALLENGE: an upper bound of the round trip. */
static uint64_t challenge_took(const struct siw_rd_peer *peer)
{
	return peer->heard_ns - peer->since_ns;
}

void siw_rd_hello_again(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->backoff < 5)
		peer->backoff++;
	if (peer->state == SIW_RD_ECHOED) {
		if (peer->rtos < UINT8_MAX)
			peer->rtos++;
		/*
		 * The peer's acknowledgement of the ECHO may still be on its way; its epochs stay
		 * valid until another CHALLENGE comes. After this time, no CHALLENGE for an earlier
		 * HELLO is on its way any more.
		 */
		if (peer->rtos > ECHOES && now - peer->heard_ns >= challenge_took(peer))
			peer->state = SIW_RD_HELLO;
	}
	send_hello(peer, now);
}

void siw_rd_got_challenge(struct siw_rd *rd, const struct siw_addr *from,
			  const struct siw_rd_wire *wire, uint32_t len, uint64_t now)
{
	struct siw_rd_peer *peer = siw_rd_find(rd, from);

	if (!peer || peer->state != SIW_RD_HELLO || ntohl(wire->dest_epoch) != peer->epoch ||
	    !wire->source_epoch || len != sizeof(struct datagram)) {
		siw_drop(SIW_COUNTER_drop_rd_epoch);
		return;
	}
	memcpy(&peer->cookie, (const uint8_t *)wire + SIW_RD_LEN, sizeof(peer->cookie));
	peer->peer_epoch = ntohl(wire->source_epoch);
	peer->state = SIW_RD_ECHOED;
	peer->backoff = peer->rtos = 0;
	peer->heard_ns = now;
	send_hello(peer, now);
}

/* ---- responder ------------------------------------------------------------------------------- */

/*
 * The wire carries the lower half of a cookie's time, the hash covers all of it. So an overheard
 * cookie is valid for its few seconds only, and not again when the lower half wraps around.
 */
static uint64_t cookie_hash(const struct siw_rd *rd, const struct siw_addr *from,
			    uint32_t its_epoch, uint32_t epoch, uint64_t made)
{
	struct {
		struct siw_addr from;
		uint32_t its_epoch, epoch, made, made_high;
	} in = { *from, its_epoch, epoch, (uint32_t)made, (uint32_t)(made >> 32) };

	_Static_assert(sizeof(in) == sizeof(struct siw_addr) + 16, "no octet that is not set");
	return siw_siphash(&rd->key, &in, sizeof(in));
}

/*
 * The epoch of this end for a pair with that peer epoch: the current one if that pair goes on, else
 * a new one.
 */
static uint32_t epoch_for(struct siw_rd *rd, const struct siw_rd_peer *peer, uint32_t its_epoch)
{
	if (peer && (peer->state != SIW_RD_OPEN || peer->peer_epoch == its_epoch))
		return peer->epoch;
	return siw_rd_new_epoch(rd);
}

void siw_rd_got_hello(struct siw_rd *rd, const struct siw_addr *from,
		      const struct siw_rd_wire *wire, uint32_t len)
{
	struct datagram out = { .wire = { .llp = wire->llp } };
	uint32_t its_epoch = ntohl(wire->source_epoch);
	uint64_t now = rd->now, made = siw_rd_ms(rd, now);

	/*
	 * The response is no longer than the request, and rate limited, so it does not amplify an
	 * attack.
	 */
	if (len < sizeof(out) || !its_epoch ||
	    !siw_rd_take(&rd->hello, now, CHALLENGE_EACH, CHALLENGE_MOST)) {
		siw_drop(SIW_COUNTER_drop_rd_hello);
		return;
	}
	out.wire.llp.type = siw_dgram_first(SIW_DGRAM_RD_CHALLENGE);
	out.wire.llp.psn = 0;
	out.wire.dest_epoch = wire->source_epoch;
	out.wire.source_epoch = epoch_for(rd, siw_rd_find(rd, from), its_epoch);
	out.cookie.made = htonl((uint32_t)made);
	out.cookie.hash = cookie_hash(rd, from, its_epoch, out.wire.source_epoch, made);
	out.wire.source_epoch = htonl(out.wire.source_epoch);
	out.wire.ird = rd->ird;
	siw_rd_send(rd, from, (uint8_t *)&out, SIW_RD_LEN + SIW_RD_COOKIE_LEN);
}

/* Whether the cookie was made here, for this source and these epochs, and is fresh. *made: when. */
static bool is_our_cookie(const struct siw_rd *rd, const struct siw_addr *from,
			  const struct siw_rd_wire *wire, uint64_t now, uint64_t *made)
{
	uint64_t ms = siw_rd_ms(rd, now);
	struct siw_rd_cookie cookie;
	uint32_t age;

	memcpy(&cookie, (const uint8_t *)wire + SIW_RD_LEN, sizeof(cookie));
	age = (uint32_t)ms - ntohl(cookie.made);
	*made = ms - age;
	return age <= rd->cookie_ms && age < ms &&
	       cookie.hash == cookie_hash(rd, from, ntohl(wire->source_epoch),
					  ntohl(wire->dest_epoch), *made);
}

/* Both ends know both epochs: what was queued may be sent. */
static void open_pair(struct siw_rd_peer *peer, uint32_t epoch, uint32_t its_epoch, uint64_t now)
{
	peer->state = SIW_RD_OPEN;
	peer->epoch = epoch;
	peer->peer_epoch = its_epoch;
	peer->backoff = peer->rtos = 0;
	peer->timer_ns = SIW_RD_NEVER;
	peer->since_ns = siw_rd_outstanding(peer) ? now : 0;
	peer->heard_ns = now;
}

void siw_rd_got_echo(struct siw_rd *rd, const struct siw_addr *from, const struct siw_rd_wire *wire,
		     uint32_t len, uint64_t now)
{
	struct siw_rd_peer *peer = siw_rd_find(rd, from);
	uint32_t its_epoch = ntohl(wire->source_epoch), epoch = ntohl(wire->dest_epoch);
	uint64_t made;
	bool same;

	if (len != sizeof(struct datagram) || !its_epoch || !epoch ||
	    !is_our_cookie(rd, from, wire, now, &made)) {
		siw_drop(SIW_COUNTER_drop_rd_cookie);
		return;
	}
	same = peer && peer->state == SIW_RD_OPEN && peer->epoch == epoch &&
	       peer->peer_epoch == its_epoch;
	/* The ECHO that opened this incarnation, or an earlier ECHO, opens no other. */
	if (peer && made <= peer->cookie_made && !same) {
		siw_drop(SIW_COUNTER_drop_rd_cookie);
		return;
	}
	/*
	 * Both ends began at once, and each received the other's ECHO: the handshake of the end
	 * with the greater epoch counts.
	 */
	if (peer && (peer->state == SIW_RD_HELLO || peer->state == SIW_RD_ECHOED) &&
	    peer->epoch > its_epoch) {
		siw_drop(SIW_COUNTER_drop_rd_epoch);
		return;
	}
	if (!peer && siw_rd_make(rd, from, &peer) < 0) {
		siw_drop(SIW_COUNTER_drop_rd_peers);
		return;
	}
	if (!same) {
		if (peer->state == SIW_RD_OPEN)
			siw_rd_over(peer, SIW_RD_RESTARTED);
		open_pair(peer, epoch, its_epoch, now);
		if (!siw_rd_upper(peer))
			siw_rd_report(peer, SIW_RD_REPORT_NEW);
		peer->cookie_made = made;
	}
	siw_rd_touch(peer, now);
	siw_rd_acked(peer, wire, NULL, now);
	siw_rd_send_ack(peer, 0, siw_rd_next_psn(peer), now);
}

/* ---- BYE ------------------------------------------------------------------------------------- */

void siw_rd_bye(struct siw_rd_peer *peer, enum siw_rd_reason reason)
{
	uint8_t out[SIW_RD_OVERHEAD];

	siw_rd_header(peer, SIW_DGRAM_RD_BYE, siw_rd_next_psn(peer), 0, siw_now_ns(),
		      (struct siw_rd_wire *)out);
	((struct siw_rd_wire *)out)->reason = (uint8_t)reason;
	siw_rd_send(peer->rd, &peer->addr, out, SIW_RD_LEN);
}

void siw_rd_refuse(struct siw_rd *rd, const struct siw_addr *to, const struct siw_rd_wire *wire,
		   uint64_t now)
{
	struct {
		struct siw_rd_wire wire;
		uint8_t crc[SIW_DGRAM_CRC_LEN];
	} out = { .wire = { .llp = wire->llp } };

	siw_drop(SIW_COUNTER_drop_rd_epoch);
	if (!siw_rd_take(&rd->bye, now, BYE_EACH, BYE_MOST))
		return;
	out.wire.llp.type = siw_dgram_first(SIW_DGRAM_RD_BYE);
	out.wire.source_epoch = wire->dest_epoch;
	out.wire.dest_epoch = wire->source_epoch;
	out.wire.reason = SIW_RD_UNKNOWN_PAIR;
	siw_rd_send(rd, to, (uint8_t *)&out, SIW_RD_LEN);
}

void siw_rd_got_bye(struct siw_rd_peer *peer, const struct siw_rd_wire *wire)
{
	siw_rd_over(peer, wire->reason == SIW_RD_UNKNOWN_PAIR ? SIW_RD_RESTARTED : SIW_RD_GONE);
}
