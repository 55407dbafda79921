/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_rx.c - receiving: order, duplicates, and when to acknowledge. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "rd/rd_impl.h"

#define FIRST_SLOTS 16
#define MANY_ACKS   64 /* so many datagrams are acknowledged at once */
#define LONG_ACKS   16 /* so many, if they are long */
#define GAP_ACKS    8  /* so many, behind a gap */

/*
 * The credit to grant: at most a quarter of the memory that is left, so that peers which use all
 * their credit leave some to the next one. A datagram in order needs no memory, so at least one
 * unit is granted unless the peer is paused.
 */
uint16_t siw_rd_credit(const struct siw_rd_peer *peer)
{
	const struct siw_rd *rd = peer->rd;
	uint64_t left = rd->rx_limit > rd->rx_octets ? rd->rx_limit - rd->rx_octets : 0;
	uint64_t units = left / SIW_RD_SHARE / SIW_RD_UNIT,
		 own = peer->rx ? peer->rx->units : !peer->held;

	if (units < own)
		units = own;
	return (uint16_t)(units < rd->window_units ? units : rd->window_units);
}

/* ---- stored datagrams ------------------------------------------------------------------------ */

static struct siw_rd_held *slot_of(struct siw_rd_rx *rx, uint64_t index)
{
	return &rx->slot[index & rx->mask];
}

static uint64_t ring_octets(uint32_t slots)
{
	return sizeof(struct siw_rd_rx) + slots * sizeof(struct siw_rd_held);
}

static void drop_held(struct siw_rd_peer *peer, struct siw_rd_held *held)
{
	siw_rd_buf_free(peer->rd, held->buf, held->class);
	peer->rd->rx_octets -= siw_rd_class_octets(held->class);
	peer->rx->units -= siw_rd_units(held->len);
	peer->rx->n--;
	held->buf = NULL;
}

static void free_ring(struct siw_rd_peer *peer)
{
	peer->rd->rx_octets -= ring_octets(peer->rx->mask + 1);
	free(peer->rx);
	peer->rx = NULL;
}

void siw_rd_rx_free(struct siw_rd_peer *peer)
{
	struct siw_rd_rx *rx = peer->rx;

	if (!rx)
		return;
	for (uint32_t i = 0; i <= rx->mask; i++)
		if (rx->slot[i].buf)
			drop_held(peer, &rx->slot[i]);
	free_ring(peer);
}

/* The slots of a ring that includes this index: a power of two. */
static uint32_t slots_for(const struct siw_rd_peer *peer, uint64_t index)
{
	uint32_t n = peer->rx ? peer->rx->mask + 1 : FIRST_SLOTS;

	while (index - peer->rcv >= n)
		n *= 2;
	return n;
}

static bool reach(struct siw_rd_peer *peer, uint64_t index)
{
	struct siw_rd_rx *old = peer->rx, *rx;
	uint32_t n = slots_for(peer, index);

	if (old && n == old->mask + 1)
		return true;
	rx = calloc(1, ring_octets(n));
	if (!rx)
		return false;
	rx->mask = n - 1;
	peer->rd->rx_octets += ring_octets(n);
	rx->high = peer->rcv;
	if (old) {
		rx->n = old->n;
		rx->units = old->units;
		rx->high = old->high;
		for (uint64_t i = peer->rcv; i < old->high; i++)
			*slot_of(rx, i) = *slot_of(old, i);
		free_ring(peer);
	}
	peer->rx = rx;
	return true;
}

/*
 * Whether a buffer of so many octets may be stored for a datagram of len octets: within the window,
 * the peer's credit, and the memory for all peers.
 */
static bool fits(const struct siw_rd_peer *peer, uint64_t index, uint32_t len, uint32_t octets)
{
	const struct siw_rd *rd = peer->rd;
	uint32_t units = peer->rx ? peer->rx->units : 0;
	uint64_t more;

	if (index - peer->rcv >= SIW_RD_WINDOW_MAX ||
	    units + siw_rd_units(len) > siw_rd_credit(peer))
		return false;
	more = ring_octets(slots_for(peer, index)) + siw_rd_class_octets(siw_rd_class(octets));
	return rd->rx_octets + more <= rd->rx_limit;
}

/* Stores a datagram of rx_buf in the ring: a large one by taking over rx_buf, others by a copy. */
static bool keep(struct siw_rd_peer *peer, uint64_t index, uint8_t *datagram, uint32_t len)
{
	struct siw_rd *rd = peer->rd;
	bool whole = len > SIW_RD_BUF / 2 && len == rd->end;
	struct siw_rd_held *held;
	uint8_t class;
	uint32_t octets = whole ? SIW_RD_BUF : len;
	void *buf;

	if (!fits(peer, index, len, octets))
		return false;
	buf = siw_rd_buf(rd, octets, &class);
	if (!buf)
		return false;
	if (!reach(peer, index)) {
		siw_rd_buf_free(rd, buf, class);
		return false;
	}
	held = slot_of(peer->rx, index);
	if (whole) {
		held->buf = rd->rx_buf;
		rd->rx_buf = buf;
	} else {
		memcpy(buf, datagram, len);
		held->buf = buf;
	}
	held->len = len;
	held->class = class;
	rd->rx_octets += siw_rd_class_octets(class);
	peer->rx->n++;
	peer->rx->units += siw_rd_units(len);
	if (index >= peer->rx->high)
		peer->rx->high = index + 1;
	return true;
}

void siw_rd_offer_next(struct siw_rd_peer *peer)
{
	if (peer->held || !peer->rx || !slot_of(peer->rx, peer->rcv)->buf ||
	    !siw_link_alone(&peer->ready))
		return;
	siw_link_add(&peer->rd->ready, &peer->ready);
}

/* ---- DATA ------------------------------------------------------------------------------------ */

void siw_rd_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len, uint64_t now)
{
	struct siw_rd *rd = peer->rd;
	int32_t ahead = (int32_t)(ntohl(wire->llp.psn) - peer->peer_epoch - (uint32_t)peer->rcv);
	uint64_t index = peer->rcv + (uint64_t)ahead;
	bool opens;

	if (ahead < 0 ||
	    (peer->rx && index - peer->rcv <= peer->rx->mask && slot_of(peer->rx, index)->buf)) {
		siw_drop(SIW_COUNTER_rd_duplicates);
		siw_rd_ack_due(peer, true, now);
		return;
	}
	if (ahead == 0 && !peer->held && !rd->offered) {
		rd->offered = peer;
		rd->direct = (uint8_t *)wire;
		rd->direct_len = len;
		return;
	}
	opens = !peer->rx || index > peer->rx->high;
	if (!keep(peer, index, (uint8_t *)wire, len)) {
		siw_drop(SIW_COUNTER_drop_rd_window);
		siw_rd_ack_due(peer, true, now);
		return;
	}
	if (ahead == 0)
		siw_rd_offer_next(peer);
	else if (siw_rd_awaits_more(peer))
		siw_rd_await(peer, now);
	/*
	 * A gap is acknowledged at once, so that the sender learns of it early. In a stream without
	 * pauses, datagrams behind a gap are acknowledged several at a time.
	 */
	siw_rd_ack_due(peer,
		       !peer->held &&
			       (opens || rd->streak < GAP_ACKS || peer->due_acks + 1 >= GAP_ACKS),
		       now);
}

/* ---- calls of the layer above ---------------------------------------------------------------- */

static void accept_next(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	rd->offered = NULL;
	if (rd->direct && !peer->rx) {
		peer->rcv++;
		siw_rd_ack_due(peer,
			       rd->direct_len > SIW_RD_BATCH / 2 && peer->due_acks + 1 >= LONG_ACKS,
			       rd->now);
		return;
	}
	if (!rd->direct)
		drop_held(peer, slot_of(peer->rx, peer->rcv));
	peer->rcv++;
	if (!peer->rx->n)
		free_ring(peer);
	siw_rd_offer_next(peer);
	siw_rd_ack_due(peer, !peer->rx, rd->now);
}

void siw_rd_taken(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	siw_lock(&rd->lock);
	if (rd->offered == peer)
		accept_next(peer);
	siw_unlock(&rd->lock);
}

void siw_rd_pause(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	siw_lock(&rd->lock);
	peer->held = true;
	siw_link_del(&peer->ready);
	if (rd->offered == peer) {
		rd->offered = NULL;
		/* A segment that was stored earlier was acknowledged in the bitmap when it came. */
		if (rd->direct) {
			/* If there is no memory, it counts as lost and will be retransmitted. */
			if (!keep(peer, peer->rcv, rd->direct, rd->direct_len))
				siw_drop(SIW_COUNTER_drop_rd_window);
			siw_rd_ack_due(peer, false, rd->now);
		}
	}
	siw_unlock(&rd->lock);
}

void siw_rd_resume(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	siw_lock(&rd->lock);
	peer->held = false;
	siw_rd_offer_next(peer);
	if (siw_rd_awaits_more(peer))
		siw_rd_await(peer, siw_now_ns());
	siw_unlock(&rd->lock);
	siw_llp_sock_ready(rd->sock);
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

/* Writes the bitmap of stored PSNs from rcv on. Returns its octets. */
static uint32_t put_bitmap(const struct siw_rd_peer *peer, uint8_t *to)
{
	const struct siw_rd_rx *rx = peer->rx;
	uint32_t bits = rx ? (uint32_t)(rx->high - peer->rcv) : 0, octets;

	octets = (bits + 7) / 8;
	memset(to, 0, octets);
	for (uint32_t i = 0; i < bits; i++)
		if (rx->slot[(peer->rcv + i) & rx->mask].buf)
			to[i / 8] |= (uint8_t)(1u << i % 8);
	return octets;
}

void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now)
{
	uint8_t out[SIW_RD_LEN + SIW_RD_WINDOW_MAX / 8 + SIW_DGRAM_CRC_LEN];
	uint32_t octets = put_bitmap(peer, out + SIW_RD_LEN);

	siw_rd_header(peer, SIW_DGRAM_RD_ACK, psn, flags, (struct siw_rd_wire *)out);
	peer->due_acks = 0;
	siw_link_del(&peer->acks);
	peer->sent_ns = now;
	siw_count(SIW_COUNTER_rd_acks, 1);
	/* A failed send counts as a loss: the peer retransmits, and is acknowledged then. */
	siw_rd_send(peer->rd, &peer->addr, out, SIW_RD_LEN + octets);
}

bool siw_rd_ack_now(const struct siw_rd_peer *peer, uint64_t now)
{
	return peer->due_acks > 1 || (peer->rx && !peer->held) ||
	       now - peer->ack_ns >= SIW_RD_ACK_NS;
}

void siw_rd_ack_due(struct siw_rd_peer *peer, bool at_once, uint64_t now)
{
	if (peer->due_acks < UINT8_MAX)
		peer->due_acks++;
	if (at_once || peer->due_acks >= MANY_ACKS) {
		siw_rd_send_ack(peer, 0, peer->epoch + (uint32_t)peer->nxt, now);
		return;
	}
	if (peer->due_acks > 1)
		return;
	peer->ack_ns = now;
	siw_link_add(&peer->rd->acks, &peer->acks);
	siw_rd_due(peer, now + SIW_RD_ACK_NS);
}
