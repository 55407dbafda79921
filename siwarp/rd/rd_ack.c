/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_ack.c - acknowledgements and retransmission time-outs: which sent datagrams were delivered
 * or lost.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "rd/rd_impl.h"

#define PASSED_BY 3 /* a datagram is lost when this many later ones were delivered (RFC 6675) */
#define LEAST_REO (50 * 1000ull)
#define MOST_RTOS 6
/* datagrams that may be sent after a time-out, until an acknowledgement arrives */
#define AFTER_RTO 2
/* maximum plausible acknowledgement delay, ns; longer delays reported by the peer are ignored */
#define MOST_DELAY (1000 * 1000ull)

/* The changes that one acknowledgement has caused. */
struct gain {
	struct siw_rd_cc_ack cc;
	uint32_t longest; /* octets of the longest delivered datagram */
	uint32_t relost;  /* octets of the longest datagram lost for a second time */
	uint16_t delay;	  /* acknowledgement delay, in the format of the datagram header */
	/* send time of the newest delivered datagram that was sent only once; 0: none */
	uint64_t sent_ns;
};

/*
 * Returns whether a retransmitted datagram was acknowledged so soon that its first transmission
 * must have arrived (RFC 8985 section 6.2). In this case the send time of the retransmission says
 * nothing about the datagrams sent between the two transmissions.
 */
static bool is_ack_of_first_transmission(const struct siw_rd_peer *peer,
					 const struct siw_rd_slot *slot, uint64_t now)
{
	return slot->again && now - slot->sent_ns < peer->cc->min_rtt;
}

static void handle_delivered_slot(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
				  struct gain *gain)
{
	struct siw_rd_tx *tx = seq->tx;
	struct siw_rd_slot *slot = siw_rd_slot_of(tx, index);

	if (slot->lost) {
		slot->lost = false;
		tx->n_lost--;
	} else {
		peer->in_flight -= slot->len;
	}
	slot->sacked = true;
	siw_rd_cc_note_delivered(peer->cc, &gain->cc, &slot->sent, slot->len, slot->sent_ns);
	if (slot->len > gain->longest)
		gain->longest = slot->len;
	if (!slot->again && slot->sent_ns > gain->sent_ns)
		gain->sent_ns = slot->sent_ns;
	if (slot->sent_ns > peer->newest_ns &&
	    !is_ack_of_first_transmission(peer, slot, gain->cc.now))
		peer->newest_ns = slot->sent_ns;
	if (index >= tx->high)
		tx->high = index + 1;
}

static void seq_release_acknowledged_up_to(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
					   uint64_t to, struct gain *gain)
{
	struct siw_rd_tx *tx = seq->tx;

	for (; seq->una < to; seq->una++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, seq->una);

		if (!slot->sacked)
			handle_delivered_slot(peer, seq, seq->una, gain);
		tx->units -= siw_rd_credit_units(slot->len);
		tx->octets -= slot->len;
		peer->rd->tx_octets -= siw_rd_size_class_octets(slot->class);
		siw_rd_buf_free(peer->rd, slot->buf, slot->class);
		slot->buf = NULL;
	}
	siw_rd_store_accepted_counts(peer);
	siw_rd_queue_peer_event(peer, SIW_RD_REPORT_ACKED);
}

/* ---- ranges of an ACK ------------------------------------------------------------------------ */

bool siw_rd_is_valid_ack_body(const void *body, uint32_t octets)
{
	const struct siw_rd_ack *ack = body;
	uint32_t n;

	if (octets < SIW_RD_ACK_LEN)
		return false;
	n = (uint32_t)ack->ranges[SIW_RD_REQUESTS] + ack->ranges[SIW_RD_RESPONSES];
	return n <= SIW_RD_RANGES && octets == SIW_RD_ACK_LEN + n * SIW_RD_RANGE_LEN;
}

/*
 * Handles the ranges of an ACK for one space. from: the index up to which the ACK acknowledges all
 * datagrams.
 */
static void handle_ack_ranges(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t from,
			      const struct siw_rd_ack *ack, struct gain *gain)
{
	const struct siw_rd_range *range = (const struct siw_rd_range *)(ack + 1);
	struct siw_rd_tx *tx = seq->tx;

	if (seq->space == SIW_RD_RESPONSES)
		range += ack->ranges[SIW_RD_REQUESTS];
	for (int n = ack->ranges[seq->space]; n; n--, range++) {
		uint64_t i = from + ntohs(range->gap);

		from = i + ntohs(range->length);
		for (i = i < seq->una ? seq->una : i; i < from && i < tx->sent; i++)
			if (!siw_rd_slot_of(tx, i)->sacked)
				handle_delivered_slot(peer, seq, i, gain);
	}
}

/*
 * Marks a datagram as lost if the peer has received a datagram that was sent sufficiently later or,
 * unless the first datagram was retransmitted, a datagram with a sufficiently higher number.
 */
static void mark_lost_datagrams(struct siw_rd_peer *peer, struct siw_rd_seq *seq, struct gain *gain)
{
	struct siw_rd_tx *tx = seq->tx;
	uint64_t reo = peer->cc->min_rtt / 4 > LEAST_REO ? peer->cc->min_rtt / 4 : LEAST_REO;

	for (uint64_t i = seq->una; i < tx->high; i++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

		if (slot->sacked || slot->lost)
			continue;
		if ((slot->again || tx->high - 1 - i < PASSED_BY) &&
		    slot->sent_ns + reo >= peer->newest_ns)
			continue;
		slot->lost = true;
		tx->n_lost++;
		peer->in_flight -= slot->len;
		siw_rd_cc_note_lost(peer->cc, &gain->cc, &slot->sent, slot->len, slot->sent_ns);
		if (slot->again && slot->len > gain->relost)
			gain->relost = slot->len;
	}
}

/*
 * Returns by how many datagrams the acknowledgement of a space advances; negative: an older
 * acknowledgement that arrived late.
 */
static int32_t newly_acknowledged_count(const struct siw_rd_peer *peer,
					const struct siw_rd_seq *seq,
					const struct siw_rd_wire *wire)
{
	return (int32_t)(ntohl(wire->acknowledged[seq->space]) - peer->epoch - (uint32_t)seq->una);
}

/* Returns whether the acknowledgement covers datagrams of a space that this end has never sent. */
static bool acknowledges_unsent_datagram(const struct siw_rd_peer *peer,
					 const struct siw_rd_seq *seq,
					 const struct siw_rd_wire *wire)
{
	int32_t ahead = newly_acknowledged_count(peer, seq, wire);

	return ahead > 0 && (uint64_t)ahead > (seq->tx ? seq->tx->sent - seq->una : 0);
}

static void handle_ack_of_sequence_space(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
					 const struct siw_rd_wire *wire,
					 const struct siw_rd_ack *ack, struct gain *gain)
{
	int32_t ahead = newly_acknowledged_count(peer, seq, wire);
	uint64_t to = seq->una + (uint64_t)ahead;

	if (ahead < 0)
		return;
	seq->credit = ntohs(wire->credit[seq->space]);
	if (seq->credit)
		atomic_store_explicit(&seq->most_units, seq->credit, memory_order_relaxed);
	if (seq->una == seq->nxt)
		return;
	if (ahead)
		seq_release_acknowledged_up_to(peer, seq, to, gain);
	if (ahead || !siw_rd_lacks_credit_for_oldest_segment(seq))
		seq->starved_ns = 0;
	if (ack && ack->ranges[seq->space])
		handle_ack_ranges(peer, seq, to, ack, gain);
}

/*
 * Measures a round trip. took: time in ns from sending a datagram, which was sent only once, to its
 * acknowledgement. The delay that the peer reports for its acknowledgement is subtracted, unless
 * the delay is implausible.
 */
static void add_rtt_sample_of_ack(struct siw_rd_peer *peer, struct gain *gain, uint64_t took)
{
	uint64_t delay = ntohs(gain->delay) * 1000ull;

	gain->cc.rtt = delay < MOST_DELAY && took > 2 * delay ? took - delay : took;
	siw_rd_cc_add_rtt_sample(peer->cc, gain->cc.rtt);
}

/* Handles newly delivered datagrams. before: the octets in flight before the acknowledgement. */
static void handle_newly_acked_datagrams(struct siw_rd_peer *peer, struct gain *gain,
					 uint64_t before, uint64_t now)
{
	peer->rtos = 0;
	peer->after_rto = 0;
	/* Karn's algorithm: a retransmitted datagram gives no round-trip sample */
	if (gain->sent_ns) {
		peer->backoff = 0;
		if (now > gain->sent_ns)
			add_rtt_sample_of_ack(peer, gain, now - gain->sent_ns);
	}
	for (int i = 0; i < SIW_RD_SPACES; i++)
		if (peer->seq[i].tx && peer->seq[i].tx->high > peer->seq[i].una)
			mark_lost_datagrams(peer, &peer->seq[i], gain);
	gain->cc.in_flight = peer->in_flight;
	gain->cc.full = peer->full || before * 4 >= peer->cc->cwnd * 3;
	siw_rd_cc_handle_ack(peer->cc, &gain->cc);
	peer->full = false;
}

/*
 * Returns how many more of this end's datagrams arrived with CE, by the peer's count. An ACK that
 * arrived late has a lower count and is ignored. At most the number of datagrams that can be
 * outstanding is believed.
 */
static uint32_t newly_reported_ce_marks(struct siw_rd_peer *peer, uint32_t ce_count)
{
	uint32_t more = ce_count - peer->ce_reported;

	if (more > INT32_MAX)
		return 0;
	peer->ce_reported = ce_count;
	return more < SIW_RD_WINDOW_MAX ? more : SIW_RD_WINDOW_MAX;
}

void siw_rd_handle_ack(struct siw_rd_peer *peer, const struct siw_rd_wire *wire,
		       const struct siw_rd_ack *ack, uint64_t now)
{
	struct siw_rd_seq *requests = &peer->seq[SIW_RD_REQUESTS];
	struct siw_rd_seq *responses = &peer->seq[SIW_RD_RESPONSES];
	bool waited = siw_rd_has_outstanding_segment(peer);
	struct gain gain = { .cc.now = now, .delay = wire->delay };
	uint64_t before = peer->in_flight;

	if (waited && !siw_rd_has_unsent_datagram(requests) &&
	    !siw_rd_has_unsent_datagram(responses))
		siw_rd_cc_mark_app_limited(peer->cc, before);
	if (acknowledges_unsent_datagram(peer, requests, wire) ||
	    acknowledges_unsent_datagram(peer, responses, wire)) {
		siw_drop(SIW_COUNTER_drop_rd_ack);
		return;
	}
	if (ack)
		gain.cc.ce = newly_reported_ce_marks(peer, ntohl(ack->ce));
	handle_ack_of_sequence_space(peer, requests, wire, ack, &gain);
	handle_ack_of_sequence_space(peer, responses, wire, ack, &gain);
	if (!waited)
		return;
	if (gain.cc.octets)
		handle_newly_acked_datagrams(peer, &gain, before, now);
	if (__builtin_expect(gain.relost || peer->long_losses, 0))
		siw_rd_mtu_detect_smaller_mtu(peer, gain.relost, gain.longest, now);
	if (peer->peer_unready_una != requests->una)
		peer->peer_unready_ns = 0;
	if (!siw_rd_has_outstanding_segment(peer))
		peer->awaited_since_ns = siw_rd_awaits_more(peer) ? now : 0;
	if (gain.cc.octets)
		siw_rd_set_retransmission_timer(peer, now);
	siw_rd_send_queued_datagrams(peer, now);
}

/* ---- time-outs ------------------------------------------------------------------------------- */

/*
 * Returns the slot of the highest sent index of a space that is not known to have arrived; NULL:
 * none.
 */
static struct siw_rd_slot *highest_unacknowledged_slot_of_space(const struct siw_rd_seq *seq,
								uint64_t *index)
{
	for (uint64_t i = seq->tx ? seq->tx->sent : seq->una; i-- > seq->una;)
		if (!siw_rd_slot_of(seq->tx, i)->sacked) {
			*index = i;
			return siw_rd_slot_of(seq->tx, i);
		}
	return NULL;
}

/*
 * Returns the datagram of either space that was sent last and is not known to have arrived, with
 * its space and index.
 */
static struct siw_rd_slot *last_undelivered_datagram(struct siw_rd_peer *peer,
						     struct siw_rd_seq **seq, uint64_t *index)
{
	struct siw_rd_slot *last = NULL;

	for (int i = 0; i < SIW_RD_SPACES; i++) {
		uint64_t at = 0;
		struct siw_rd_slot *slot = highest_unacknowledged_slot_of_space(&peer->seq[i], &at);

		if (!slot || (last && last->sent_ns >= slot->sent_ns))
			continue;
		last = slot;
		*seq = &peer->seq[i];
		*index = at;
	}
	return last;
}

static uint32_t longest_undelivered_datagram_len(const struct siw_rd_peer *peer)
{
	uint32_t most = 0;

	for (int n = 0; n < SIW_RD_SPACES; n++) {
		struct siw_rd_tx *tx = peer->seq[n].tx;

		for (uint64_t i = peer->seq[n].una; tx && i < tx->sent; i++)
			if (!siw_rd_slot_of(tx, i)->sacked && siw_rd_slot_of(tx, i)->len > most)
				most = siw_rd_slot_of(tx, i)->len;
	}
	return most;
}

static void mark_all_datagrams_lost(struct siw_rd_peer *peer)
{
	for (int n = 0; n < SIW_RD_SPACES; n++) {
		struct siw_rd_tx *tx = peer->seq[n].tx;

		for (uint64_t i = peer->seq[n].una; tx && i < tx->sent; i++) {
			struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

			if (slot->sacked || slot->lost)
				continue;
			slot->lost = true;
			tx->n_lost++;
		}
	}
	peer->in_flight = 0;
}

/* Returns whether the peer may withhold credit for a space, because it has reported NOT READY. */
static bool peer_has_reason_to_withhold_credit(const struct siw_rd_peer *peer,
					       const struct siw_rd_seq *seq)
{
	return seq->space == SIW_RD_REQUESTS && peer->peer_unready_ns;
}

/*
 * Returns whether the peer has granted too little credit for longer than the peer time-out: a peer
 * that can accept a segment grants credit for it.
 */
static bool has_peer_withheld_credit_too_long(struct siw_rd_peer *peer, uint64_t now)
{
	bool too_long = false;

	for (int i = 0; i < SIW_RD_SPACES; i++) {
		struct siw_rd_seq *seq = &peer->seq[i];

		if (!siw_rd_lacks_credit_for_oldest_segment(seq) ||
		    peer_has_reason_to_withhold_credit(peer, seq))
			seq->starved_ns = 0;
		else if (!seq->starved_ns)
			seq->starved_ns = now;
		else
			too_long |= now - seq->starved_ns >= peer->rd->timeout;
	}
	return too_long;
}

/*
 * Returns whether a peer that is alive acknowledges nothing that was sent to it, either
 * deliberately or because IP fragments do not reach it. The peer is declared lost after the peer
 * time-out without an acknowledgement, or, if a datagram is sent in fragments, after as many
 * time-outs as fit into the peer time-out.
 */
static bool is_peer_withholding_acks(struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t fit = peer->rd->timeout / SIW_RD_S;

	if (fit < 8)
		/* a time-out is at most an eighth of the peer time-out, and at most a second */
		fit = 8;
	if (peer->rtos > MOST_RTOS + (fit < 240 ? fit : 240) &&
	    longest_undelivered_datagram_len(peer) > peer->fragmented_len)
		return true;
	return peer->rtos > MOST_RTOS && now - peer->first_timeout_ns >= peer->rd->timeout;
}

/*
 * Sends a tail loss probe (RFC 8985 section 7): its acknowledgement shows which datagrams are lost.
 */
static void send_tail_loss_probe(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
				 uint64_t now)
{
	struct siw_rd_slot *slot = siw_rd_slot_of(seq->tx, index);

	if (!slot->lost) {
		slot->lost = true;
		seq->tx->n_lost++;
		peer->in_flight -= slot->len;
	}
	siw_rd_resend_datagram(peer, seq, index, now);
}

void siw_rd_handle_retransmission_timeout(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_seq *seq = NULL;
	uint64_t index = 0, before = peer->last_sent_ns;
	struct siw_rd_slot *last = last_undelivered_datagram(peer, &seq, &index);
	bool probes_tail = siw_rd_probes_tail(peer);

	if (peer->backoff < MOST_RTOS && (peer->rtos || peer->backoff))
		peer->backoff++;
	if (!peer->rtos || !last ||
	    (!siw_rd_is_covered_by_credit(seq, index) &&
	     peer_has_reason_to_withhold_credit(peer, seq)))
		peer->first_timeout_ns = now;
	if (peer->rtos < UINT8_MAX)
		peer->rtos++;
	if (has_peer_withheld_credit_too_long(peer, now) ||
	    (last && is_peer_withholding_acks(peer, now))) {
		siw_count(SIW_COUNTER_rd_gone, 1);
		siw_rd_end_incarnation(peer, SIW_RD_GONE);
		return;
	}
	if (last && probes_tail && siw_rd_is_covered_by_credit(seq, index)) {
		send_tail_loss_probe(peer, seq, index, now);
	} else if (last) {
		siw_rd_mtu_handle_retransmission_timeout(
			peer, longest_undelivered_datagram_len(peer), now);
		mark_all_datagrams_lost(peer);
		siw_rd_cc_handle_timeout(peer->cc, now);
		peer->after_rto = peer->near ? 0 : 1 + AFTER_RTO;
		siw_rd_send_queued_datagrams(peer, now);
	}
	/* The peer has acknowledged everything, or grants no credit: send a PROBE to the peer. */
	if (!last || (peer->last_sent_ns == before && !peer->rd->blocked && peer->pace_ns <= now))
		siw_rd_send_liveness_probe(peer, now);
	siw_rd_set_retransmission_timer(peer, now);
}
