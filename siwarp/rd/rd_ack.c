/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_ack.c - what became of sent datagrams: delivered, lost, or unacknowledged at a time-out. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "rd/rd_impl.h"

#define PASSED_BY 3 /* a datagram is lost when so many later ones were delivered (RFC 6675) */
#define LEAST_REO (50 * 1000ull)
#define MOST_RTOS 6

/* What one acknowledgement changed. */
struct gain {
	uint64_t octets, lost;
	uint32_t longest; /* the longest that was delivered */
	uint32_t relost;  /* the longest that was lost for a second time */
	/* send time of the newest delivered datagram that was sent once; 0: none */
	uint64_t sent_ns;
};

static void delivered(struct siw_rd_peer *peer, uint64_t index, struct gain *gain)
{
	struct siw_rd_tx *tx = peer->tx;
	struct siw_rd_slot *slot = siw_rd_slot_of(tx, index);

	if (slot->lost) {
		slot->lost = false;
		tx->n_lost--;
	} else {
		tx->in_flight -= slot->len;
	}
	slot->sacked = true;
	gain->octets += slot->len;
	if (slot->len > gain->longest)
		gain->longest = slot->len;
	if (!slot->again && slot->sent_ns > gain->sent_ns)
		gain->sent_ns = slot->sent_ns;
	if (slot->sent_ns > tx->newest_ns)
		tx->newest_ns = slot->sent_ns;
	if (index >= tx->high)
		tx->high = index + 1;
}

static void accept_to(struct siw_rd_peer *peer, uint64_t to, struct gain *gain)
{
	struct siw_rd_tx *tx = peer->tx;

	for (; peer->una < to; peer->una++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, peer->una);

		if (!slot->sacked)
			delivered(peer, peer->una, gain);
		tx->units -= siw_rd_units(slot->len);
		tx->octets -= slot->len;
		peer->rd->tx_octets -= siw_rd_class_octets(slot->class);
		siw_rd_buf_free(peer->rd, slot->buf, slot->class);
		slot->buf = NULL;
	}
	siw_rd_report(peer, SIW_RD_REPORT_ACKED);
}

static void selective(struct siw_rd_peer *peer, uint64_t from, const uint8_t *bitmap,
		      uint32_t octets, struct gain *gain)
{
	struct siw_rd_tx *tx = peer->tx;

	for (uint32_t i = 0; i < octets * 8 && from + i < tx->sent; i++)
		if (bitmap[i / 8] & 1u << i % 8 && from + i >= peer->una &&
		    !siw_rd_slot_of(tx, from + i)->sacked)
			delivered(peer, from + i, gain);
}

/*
 * Marks as lost what later datagrams have overtaken: by number, or, if it was retransmitted, by
 * send time.
 */
static void find_lost(struct siw_rd_peer *peer, struct gain *gain)
{
	struct siw_rd_tx *tx = peer->tx;
	uint64_t reo = peer->cc.min_rtt / 4 > LEAST_REO ? peer->cc.min_rtt / 4 : LEAST_REO;

	for (uint64_t i = peer->una; i < tx->high; i++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

		if (slot->sacked || slot->lost)
			continue;
		if ((slot->again || tx->high - 1 - i < PASSED_BY) &&
		    slot->sent_ns + reo >= tx->newest_ns)
			continue;
		slot->lost = true;
		tx->n_lost++;
		tx->in_flight -= slot->len;
		gain->lost += slot->len;
		if (slot->again && slot->len > gain->relost)
			gain->relost = slot->len;
	}
}

void siw_rd_acked(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, const uint8_t *bitmap,
		  uint32_t octets, uint64_t now)
{
	int32_t ahead = (int32_t)(ntohl(wire->acknowledged) - peer->epoch - (uint32_t)peer->una);
	struct siw_rd_tx *tx = peer->tx;
	struct gain gain = { 0 };
	uint64_t before = tx ? tx->in_flight : 0, to = peer->una + (uint64_t)ahead;

	if (ahead < 0)
		return; /* an older acknowledgement that arrived late */
	if (to > (tx ? tx->sent : peer->una)) {
		siw_drop(SIW_COUNTER_drop_rd_ack);
		return;
	}
	peer->credit = ntohs(wire->credit);
	if (!tx || peer->una == peer->nxt)
		return;
	if (ahead)
		accept_to(peer, to, &gain);
	if (octets)
		selective(peer, to, bitmap, octets, &gain);
	if (gain.octets) {
		peer->rtos = 0;
		if (gain.sent_ns) { /* Karn's rule: a retransmitted datagram gives no round trip */
			peer->backoff = 0;
			if (now > gain.sent_ns)
				siw_rd_cc_rtt(&peer->cc, now - gain.sent_ns);
		}
		if (tx->high > peer->una)
			find_lost(peer, &gain);
		siw_rd_cc_ack(&peer->cc, now, gain.octets, tx->in_flight, siw_rd_datagram(peer),
			      peer->full || before * 4 >= peer->cc.cwnd * 3);
		peer->full = false;
	}
	if (gain.lost)
		siw_rd_cc_loss(&peer->cc, now, gain.lost, siw_rd_datagram(peer));
	if (__builtin_expect(gain.relost || peer->suspect, 0))
		siw_rd_mtu_suspect(peer, gain.relost, gain.longest, now);
	if (peer->una == peer->nxt)
		peer->since_ns = siw_rd_awaits_more(peer) ? now : 0;
	if (gain.octets)
		siw_rd_rearm(peer, now);
	siw_rd_pump(peer, now);
}

/* ---- time-outs ------------------------------------------------------------------------------- */

/* The last sent index that is not known to have arrived; -1: none. */
static int64_t last_unsure(struct siw_rd_peer *peer)
{
	struct siw_rd_tx *tx = peer->tx;

	for (uint64_t i = tx->sent; i-- > peer->una;)
		if (!siw_rd_slot_of(tx, i)->sacked)
			return (int64_t)i;
	return -1;
}

static uint32_t longest_unsure(struct siw_rd_peer *peer)
{
	struct siw_rd_tx *tx = peer->tx;
	uint32_t most = 0;

	for (uint64_t i = peer->una; i < tx->sent; i++)
		if (!siw_rd_slot_of(tx, i)->sacked && siw_rd_slot_of(tx, i)->len > most)
			most = siw_rd_slot_of(tx, i)->len;
	return most;
}

static void all_lost(struct siw_rd_peer *peer)
{
	struct siw_rd_tx *tx = peer->tx;

	for (uint64_t i = peer->una; i < tx->sent; i++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

		if (slot->sacked || slot->lost)
			continue;
		slot->lost = true;
		tx->n_lost++;
	}
	tx->in_flight = 0;
}

/*
 * Fragments do not reach the peer, although its acknowledgements show that it is alive. After as
 * many time-outs as fit into peer_timeout the peer is declared lost.
 */
static bool is_hopeless(struct siw_rd_peer *peer)
{
	uint64_t fit = peer->rd->timeout / SIW_RD_S;

	if (fit < 8)
		fit = 8; /* a time-out is at most an eighth of it, and at most a second */
	return peer->rtos > MOST_RTOS + (fit < 240 ? fit : 240) &&
	       longest_unsure(peer) > peer->whole;
}

void siw_rd_timeout(struct siw_rd_peer *peer, uint64_t now)
{
	int64_t last = last_unsure(peer);
	bool probes_tail = siw_rd_probes_tail(peer);
	struct siw_rd_tx *tx = peer->tx;

	if (peer->backoff < MOST_RTOS && (peer->rtos || peer->backoff))
		peer->backoff++;
	if (peer->rtos < UINT8_MAX)
		peer->rtos++;
	if (last >= 0 && is_hopeless(peer)) {
		siw_count(SIW_COUNTER_rd_gone, 1);
		siw_rd_over(peer, SIW_RD_GONE);
		return;
	}
	if (last < 0) {
		/* The peer has everything, or grants no credit: probe it. */
		siw_rd_ask(peer, now);
	} else if (probes_tail) {
		/*
		 * A tail loss probe (RFC 8985 section 7): its acknowledgement shows what is lost.
		 */
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, (uint64_t)last);

		if (!slot->lost) {
			slot->lost = true;
			tx->n_lost++;
			tx->in_flight -= slot->len;
		}
		siw_rd_resend(peer, (uint64_t)last, now);
	} else {
		siw_rd_mtu_silence(peer, longest_unsure(peer), now);
		all_lost(peer);
		siw_rd_cc_timeout(&peer->cc, now, siw_rd_datagram(peer));
		siw_rd_pump(peer, now);
	}
	siw_rd_rearm(peer, now);
}
