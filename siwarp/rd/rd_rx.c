/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_rx.c - receiving: ordering, duplicates, and the timing of acknowledgements. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "rd/rd_impl.h"

#define FIRST_SLOTS 16
#define MANY_ACKS   64 /* unacknowledged datagrams after which an ACK is sent immediately */
#define LONG_ACKS   16 /* unacknowledged long datagrams after which an ACK is sent */
/* unacknowledged datagrams after which an ACK is sent, while PSNs are missing */
#define GAP_ACKS      8
#define LONGEST_UNITS (SIW_RD_BUF / SIW_RD_UNIT)

/*
 * Returns a quarter of the remaining memory, in units, so that peers that use all of their share
 * leave some for the next peer; at least `least` units, at most window_units.
 */
static uint32_t peer_share_of_rx_memory(const struct siw_rd *rd, uint32_t least)
{
	uint64_t left = rd->rx_limit > rd->rx_octets ? rd->rx_limit - rd->rx_octets : 0;
	uint64_t units = left / SIW_RD_SHARE / SIW_RD_UNIT;

	if (units < least)
		units = least;
	return (uint32_t)(units < rd->window_units ? units : rd->window_units);
}

/* Returns the maximum amount of data, in units, that this end stores for the peer in one space. */
static uint32_t max_units_stored_for_peer(const struct siw_rd_peer *peer,
					  const struct siw_rd_seq *seq)
{
	if (seq->rx)
		return peer_share_of_rx_memory(peer->rd, seq->rx->units);
	return peer_share_of_rx_memory(peer->rd, seq->held ? 0 : LONGEST_UNITS);
}

/*
 * Returns the credit to grant to the peer, in units. A datagram in order needs no memory, so unless
 * the space is paused the credit covers the longest segment in addition to the stored ones: a peer
 * that grants less without reporting NOT READY is declared lost
 * (siw_rd_handle_retransmission_timeout).
 */
uint16_t siw_rd_credit_to_grant(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq)
{
	uint32_t stored = seq->rx ? seq->rx->units : 0;

	return (uint16_t)peer_share_of_rx_memory(peer->rd,
						 seq->held ? stored : stored + LONGEST_UNITS);
}

/* ---- stored datagrams ------------------------------------------------------------------------ */

static struct siw_rd_held *rx_slot_of(struct siw_rd_rx *rx, uint64_t index)
{
	return &rx->slot[index & rx->mask];
}

static uint64_t rx_ring_allocation_octets(uint32_t slots)
{
	return sizeof(struct siw_rd_rx) + slots * sizeof(struct siw_rd_held);
}

static void free_stored_datagram(struct siw_rd *rd, struct siw_rd_rx *rx, struct siw_rd_held *held)
{
	siw_rd_buf_free(rd, held->buf, held->class);
	rd->rx_octets -= siw_rd_size_class_octets(held->class);
	rx->units -= siw_rd_credit_units(held->len);
	rx->n--;
	held->buf = NULL;
}

static void rx_ring_free(struct siw_rd *rd, struct siw_rd_seq *seq)
{
	rd->rx_octets -= rx_ring_allocation_octets(seq->rx->mask + 1);
	free(seq->rx);
	seq->rx = NULL;
}

void siw_rd_free_receive_window(struct siw_rd_peer *peer, struct siw_rd_seq *seq)
{
	struct siw_rd_rx *rx = seq->rx;

	if (!rx)
		return;
	for (uint32_t i = 0; i <= rx->mask; i++)
		if (rx->slot[i].buf)
			free_stored_datagram(peer->rd, rx, &rx->slot[i]);
	rx_ring_free(peer->rd, seq);
}

/*
 * Returns the number of slots, a power of two, that the ring of received datagrams needs to store a
 * datagram with this index.
 */
static uint32_t rx_ring_slots_for_index(const struct siw_rd_seq *seq, uint64_t index)
{
	uint32_t n = seq->rx ? seq->rx->mask + 1 : FIRST_SLOTS;

	while (index - seq->rcv >= n)
		n *= 2;
	return n;
}

static bool rx_ring_extend(struct siw_rd *rd, struct siw_rd_seq *seq, uint64_t index)
{
	struct siw_rd_rx *old = seq->rx, *rx;
	uint32_t n = rx_ring_slots_for_index(seq, index);

	if (old && n == old->mask + 1)
		return true;
	rx = calloc(1, rx_ring_allocation_octets(n));
	if (!rx)
		return false;
	rx->mask = n - 1;
	rd->rx_octets += rx_ring_allocation_octets(n);
	rx->high = seq->rcv;
	if (old) {
		rx->n = old->n;
		rx->units = old->units;
		rx->high = old->high;
		for (uint64_t i = seq->rcv; i < old->high; i++)
			*rx_slot_of(rx, i) = *rx_slot_of(old, i);
		rx_ring_free(rd, seq);
	}
	seq->rx = rx;
	return true;
}

/*
 * Returns whether a buffer of this number of octets may be allocated to store a datagram of len
 * octets: within the window, the credit of the space, and the memory for all peers.
 */
static bool can_store_datagram(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq,
			       uint64_t index, uint32_t len, uint32_t octets)
{
	const struct siw_rd *rd = peer->rd;
	uint32_t units = seq->rx ? seq->rx->units : 0;
	uint64_t more;

	if (index - seq->rcv >= SIW_RD_WINDOW_MAX ||
	    units + siw_rd_credit_units(len) > max_units_stored_for_peer(peer, seq))
		return false;
	more = rx_ring_allocation_octets(rx_ring_slots_for_index(seq, index)) +
	       siw_rd_size_class_octets(siw_rd_size_class(octets));
	return rd->rx_octets + more <= rd->rx_limit;
}

/*
 * Stores a datagram of rx_buf in the ring: a large datagram by swapping rx_buf with a new buffer,
 * other datagrams by a copy.
 */
static bool store_datagram(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
			   uint8_t *datagram, uint32_t len)
{
	struct siw_rd *rd = peer->rd;
	bool whole = len > SIW_RD_BUF / 2 && len == rd->end;
	struct siw_rd_held *held;
	uint8_t class;
	uint32_t octets = whole ? SIW_RD_BUF : len;
	void *buf;

	if (!can_store_datagram(peer, seq, index, len, octets))
		return false;
	buf = siw_rd_alloc_buffer(rd, octets, &class);
	if (!buf)
		return false;
	if (!rx_ring_extend(rd, seq, index)) {
		siw_rd_buf_free(rd, buf, class);
		return false;
	}
	held = rx_slot_of(seq->rx, index);
	if (whole) {
		held->buf = rd->rx_buf;
		rd->rx_buf = buf;
	} else {
		memcpy(buf, datagram, len);
		held->buf = buf;
	}
	held->len = len;
	held->class = class;
	rd->rx_octets += siw_rd_size_class_octets(class);
	seq->rx->n++;
	seq->rx->units += siw_rd_credit_units(len);
	if (index >= seq->rx->high)
		seq->rx->high = index + 1;
	peer->last_data_ns = rd->now;
	return true;
}

struct siw_rd_seq *siw_rd_sequence_space_to_deliver(struct siw_rd_peer *peer)
{
	for (int i = SIW_RD_SPACES; i-- > 0;) {
		struct siw_rd_seq *seq = &peer->seq[i];

		if (!seq->held && seq->rx && rx_slot_of(seq->rx, seq->rcv)->buf)
			return seq;
	}
	return NULL;
}

void siw_rd_schedule_delivery(struct siw_rd_peer *peer)
{
	if (!siw_link_empty(&peer->ready) || !siw_rd_sequence_space_to_deliver(peer))
		return;
	siw_link_add(&peer->rd->ready, &peer->ready);
	atomic_store_explicit(&peer->rd->has_events, true, memory_order_relaxed);
}

/* ---- DATA ------------------------------------------------------------------------------------ */

void siw_rd_handle_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len,
			uint64_t now)
{
	struct siw_rd *rd = peer->rd;
	struct siw_rd_seq *seq =
		&peer->seq[wire->flags & SIW_RD_RESPONSE ? SIW_RD_RESPONSES : SIW_RD_REQUESTS];
	int32_t ahead = (int32_t)(ntohl(wire->llp.psn) - peer->peer_epoch - (uint32_t)seq->rcv);
	uint64_t index = seq->rcv + (uint64_t)ahead;
	bool opens;

	if (__builtin_expect(rd->ce, 0)) {
		siw_count(SIW_COUNTER_rd_ce, 1);
		peer->ce++;
	}
	if (ahead < 0 ||
	    (seq->rx && index - seq->rcv <= seq->rx->mask && rx_slot_of(seq->rx, index)->buf)) {
		siw_drop(SIW_COUNTER_rd_duplicates);
		siw_rd_schedule_ack(peer, true, now);
		return;
	}
	if (ahead == 0 && !seq->held && !rd->delivered_peer) {
		rd->delivered_peer = peer;
		rd->delivered_seq = seq;
		rd->direct = (uint8_t *)wire;
		rd->direct_len = len;
		return;
	}
	opens = !seq->rx || index > seq->rx->high;
	if (!seq->rx)
		peer->last_progress_ns = now; /* a gap in the received PSNs begins */
	if (!store_datagram(peer, seq, index, (uint8_t *)wire, len)) {
		siw_drop(SIW_COUNTER_drop_rd_window);
		siw_rd_schedule_ack(peer, true, now);
		return;
	}
	if (ahead == 0)
		siw_rd_schedule_delivery(peer);
	else if (siw_rd_awaits_more(peer))
		siw_rd_note_peer_owes_response(peer, now);
	/*
	 * A new gap is acknowledged immediately, so that the sender detects the loss early. In a
	 * stream without pauses, datagrams after a known gap are acknowledged several at a time.
	 */
	siw_rd_schedule_ack(peer,
			    !seq->held && (opens || rd->streak < GAP_ACKS ||
					   peer->due_acks + 1 >= GAP_ACKS),
			    now);
}

/* ---- calls of the upper layer ---------------------------------------------------------------- */

static void acknowledge_delivered_segment(struct siw_rd_peer *peer, struct siw_rd_seq *seq)
{
	struct siw_rd *rd = peer->rd;

	rd->delivered_peer = NULL;
	peer->last_data_ns = peer->last_progress_ns = rd->now;
	if (seq->space == SIW_RD_REQUESTS)
		peer->receive_wait_ns = 0;
	if (rd->direct && !seq->rx) {
		seq->rcv++;
		siw_rd_schedule_ack(
			peer, rd->direct_len > SIW_RD_BATCH / 2 && peer->due_acks + 1 >= LONG_ACKS,
			rd->now);
		return;
	}
	if (!rd->direct)
		free_stored_datagram(rd, seq->rx, rx_slot_of(seq->rx, seq->rcv));
	seq->rcv++;
	if (!seq->rx->n)
		rx_ring_free(rd, seq);
	siw_rd_schedule_delivery(peer);
	siw_rd_schedule_ack(peer, !seq->rx, rd->now);
}

void siw_rd_acknowledge_accepted_segment(struct siw_rd *rd)
{
	/*
	 * Pairs with the store in siw_rd_mark_segment_accepted(), after which the upper layer does
	 * not read the segment any more.
	 */
	if (atomic_load_explicit(&rd->delivery, memory_order_acquire) != SIW_RD_ACCEPTED)
		return;
	if (rd->delivered_peer)
		acknowledge_delivered_segment(rd->delivered_peer, rd->delivered_seq);
	atomic_store_explicit(&rd->delivery, SIW_RD_NONE, memory_order_relaxed);
}

void siw_rd_mark_segment_accepted(struct siw_rd_peer *peer)
{
	atomic_store_explicit(&peer->rd->delivery, SIW_RD_ACCEPTED, memory_order_release);
}

void siw_rd_pause_delivery(struct siw_rd_peer *peer, enum siw_rd_space space, bool no_receive)
{
	struct siw_rd *rd = peer->rd;
	struct siw_rd_seq *seq = &peer->seq[space];
	bool tell;

	siw_lock(&rd->lock);
	tell = no_receive && !peer->receive_wait_ns;
	seq->held = true;
	if (tell)
		peer->receive_wait_ns = rd->now;
	if (rd->delivered_peer == peer && rd->delivered_seq == seq) {
		rd->delivered_peer = NULL;
		atomic_store_explicit(&rd->delivery, SIW_RD_NONE, memory_order_relaxed);
		/* A segment that was stored before has been acknowledged in a range of an ACK. */
		if (rd->direct) {
			/* Without memory the datagram counts as lost and will be retransmitted. */
			if (!store_datagram(peer, seq, seq->rcv, rd->direct, rd->direct_len))
				siw_drop(SIW_COUNTER_drop_rd_window);
			siw_rd_schedule_ack(peer, tell, rd->now);
		} else if (tell) {
			siw_rd_schedule_ack(peer, true, rd->now);
		}
	}
	siw_link_del(&peer->ready);
	siw_rd_schedule_delivery(peer);
	siw_unlock(&rd->lock);
}

void siw_rd_resume_delivery(struct siw_rd_peer *peer, enum siw_rd_space space)
{
	struct siw_rd *rd = peer->rd;
	uint64_t now = siw_now_ns();

	siw_lock(&rd->lock);
	if (peer->seq[space].held) {
		peer->seq[space].held = false;
		siw_rd_schedule_delivery(peer);
		if (siw_rd_awaits_more(peer))
			siw_rd_note_peer_owes_response(peer, now);
		/*
		 * Datagrams dropped for lack of memory were not acknowledged: announce the new
		 * credit.
		 */
		if (!peer->seq[space].rx && peer->state == SIW_RD_OPEN)
			siw_rd_schedule_ack(peer, true, now);
	}
	siw_unlock(&rd->lock);
	siw_llp_sock_mark_ready(rd->sock);
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

/*
 * Writes the ranges of the datagrams stored in a space, from rcv on, at most `most` ranges. Returns
 * the number of ranges.
 */
static uint32_t put_ack_ranges(const struct siw_rd_seq *seq, struct siw_rd_range *to, uint32_t most)
{
	struct siw_rd_rx *rx = seq->rx;
	uint64_t end = rx ? rx->high : seq->rcv, i = seq->rcv;
	uint32_t n = 0;

	for (; i < end && n < most; n++) {
		uint64_t from = i, first;

		while (i < end && !rx_slot_of(rx, i)->buf)
			i++;
		first = i;
		while (i < end && rx_slot_of(rx, i)->buf)
			i++;
		to[n].gap = htons((uint16_t)(first - from));
		to[n].length = htons((uint16_t)(i - first));
	}
	return n;
}

/*
 * Fills the body of an ACK. Each space may use ranges that the other does not need. Returns the
 * body's length in octets.
 */
static uint32_t put_ack_body(const struct siw_rd_peer *peer, uint8_t *to)
{
	const struct siw_rd_seq *seq = peer->seq;
	struct siw_rd_range *range = (struct siw_rd_range *)(to + SIW_RD_ACK_LEN);
	uint32_t n, more;

	n = put_ack_ranges(&seq[SIW_RD_REQUESTS], range,
			   seq[SIW_RD_RESPONSES].rx ? SIW_RD_RANGES / 2 : UINT8_MAX);
	more = SIW_RD_RANGES - n < UINT8_MAX ? SIW_RD_RANGES - n : UINT8_MAX;
	more = put_ack_ranges(&seq[SIW_RD_RESPONSES], range + n, more);
	*(struct siw_rd_ack *)to = (struct siw_rd_ack){
		.ce = htonl(peer->ce),
		.rnr_timer = siw_rd_request_lacks_receive(peer) ? peer->rd->rnr_timer : 0,
		.ranges = { (uint8_t)n, (uint8_t)more },
	};
	return SIW_RD_ACK_LEN + (n + more) * SIW_RD_RANGE_LEN;
}

void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now)
{
	uint8_t out[SIW_RD_OVERHEAD + SIW_RD_ACK_LEN + SIW_RD_RANGES * SIW_RD_RANGE_LEN];
	uint32_t octets = put_ack_body(peer, out + SIW_RD_LEN);

	if (siw_rd_request_lacks_receive(peer))
		flags |= SIW_RD_NOT_READY;
	siw_rd_write_header(peer, SIW_DGRAM_RD_ACK, psn, flags, now, (struct siw_rd_wire *)out);
	peer->due_acks = 0;
	siw_link_del(&peer->acks);
	peer->last_sent_ns = now;
	siw_count(SIW_COUNTER_rd_acks, 1);
	/* A failed send counts as a loss: the peer retransmits and is acknowledged again. */
	siw_rd_send_datagram(peer->rd, &peer->addr, out, SIW_RD_LEN + octets);
}

bool siw_rd_must_ack_now(const struct siw_rd_peer *peer, uint64_t now)
{
	return peer->due_acks > 1 || siw_rd_has_gap(&peer->seq[SIW_RD_REQUESTS]) ||
	       siw_rd_has_gap(&peer->seq[SIW_RD_RESPONSES]) || now - peer->ack_ns >= SIW_RD_ACK_NS;
}

void siw_rd_schedule_ack(struct siw_rd_peer *peer, bool at_once, uint64_t now)
{
	if (peer->due_acks < UINT8_MAX)
		peer->due_acks++;
	if (at_once || peer->due_acks >= MANY_ACKS) {
		siw_rd_send_ack(peer, 0, siw_rd_next_psn(peer), now);
		return;
	}
	if (peer->due_acks > 1)
		return;
	peer->ack_ns = now;
	siw_link_add(&peer->rd->acks, &peer->acks);
	siw_rd_set_timer(peer, now + SIW_RD_ACK_NS);
}
