/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_tx.c - sending: queues segments, sends them as congestion window, credit and pacing allow,
 * and retransmits.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/faults.h"
#include "base/pieces.h"
#include "rd/rd_impl.h"

#define FIRST_SLOTS 16
#define LEAST_QUEUE (256u << 10) /* octets that may always be queued */
#define BATCH_MAX   64		 /* datagrams in a batch (UDP_MAX_SEGMENTS of older kernels) */
#define IDLE_TX_NS  (100 * SIW_RD_MS)
#define LONGEST_RTO SIW_RD_S
/* octets of the shortest datagram whose slot has the CRC of the segment */
#define SEGMENT_CRC_MIN 2048

/* ---- the send window ------------------------------------------------------------------------- */

static bool tx_ring_grow(struct siw_rd_seq *seq)
{
	struct siw_rd_tx *old = seq->tx, *tx;
	uint32_t n = old ? (old->mask + 1) * 2 : FIRST_SLOTS;

	tx = calloc(1, sizeof(*tx) + n * sizeof(tx->slot[0]));
	if (!tx)
		return false;
	tx->sent = tx->high = seq->una;
	if (old)
		memcpy(tx, old, sizeof(*tx));
	tx->mask = n - 1;
	for (uint64_t i = seq->una; old && i < seq->nxt; i++)
		*siw_rd_slot_of(tx, i) = *siw_rd_slot_of(old, i);
	free(old);
	seq->tx = tx;
	return true;
}

static void free_tx_slot(struct siw_rd *rd, struct siw_rd_tx *tx, struct siw_rd_slot *slot)
{
	tx->octets -= slot->len;
	rd->tx_octets -= siw_rd_size_class_octets(slot->class);
	siw_rd_buf_free(rd, slot->buf, slot->class);
	slot->buf = NULL;
}

void siw_rd_release_send_window(struct siw_rd_peer *peer, struct siw_rd_seq *seq)
{
	if (!seq->tx)
		return;
	for (uint64_t i = seq->una; i < seq->nxt; i++)
		free_tx_slot(peer->rd, seq->tx, siw_rd_slot_of(seq->tx, i));
	free(seq->tx);
	seq->tx = NULL;
}

/* Returns whether a datagram of len octets may be queued now. */
static bool rd_tx_window_has_room(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq,
				  uint32_t len)
{
	const struct siw_rd *rd = peer->rd;
	uint64_t limit = peer->cc->cwnd * 2, most = (uint64_t)rd->window_units * SIW_RD_UNIT;
	uint64_t left = rd->tx_limit > rd->tx_octets ? rd->tx_limit - rd->tx_octets : 0;

	if (seq->nxt == seq->una)
		return true;
	if (limit < LEAST_QUEUE)
		limit = LEAST_QUEUE;
	if (limit > most)
		limit = most;
	/* Peers that acknowledge nothing must leave memory for the other peers. */
	if (limit > left / SIW_RD_SHARE)
		limit = left / SIW_RD_SHARE;
	return seq->tx->octets + len <= limit && seq->nxt - seq->una < SIW_RD_WINDOW_MAX;
}

/* ---- sending --------------------------------------------------------------------------------- */

void siw_rd_set_retransmission_timer(struct siw_rd_peer *peer, uint64_t now)
{
	const struct siw_rd_cc *cc = peer->cc;
	uint64_t rto = (uint64_t)cc->rto << peer->backoff, pto = siw_rd_cc_probe_timeout_ns(cc);

	if (!siw_rd_has_outstanding_segment(peer)) {
		peer->timer_ns = now + IDLE_TX_NS;
	} else {
		if (rto > LONGEST_RTO)
			rto = LONGEST_RTO;
		if (rto > peer->rd->timeout / 8)
			rto = peer->rd->timeout / 8;
		if (siw_rd_probes_tail(peer) && pto < rto)
			rto = pto;
		peer->timer_ns = now + rto;
	}
	siw_rd_set_timer(peer, peer->timer_ns);
}

static void account_sent_datagram(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
				  uint64_t now)
{
	struct siw_rd_tx *tx = seq->tx;
	struct siw_rd_slot *slot = siw_rd_slot_of(tx, index);

	siw_rd_cc_note_sent(peer->cc, now, slot->len, peer->in_flight, &slot->sent);
	peer->in_flight += slot->len;
	if (index == tx->sent) {
		tx->sent++;
		tx->units += siw_rd_credit_units(slot->len);
	} else {
		siw_count(SIW_COUNTER_rd_retransmits, 1);
		slot->again = true;
	}
	if (slot->lost) {
		slot->lost = false;
		tx->n_lost--;
	}
	slot->sent_ns = peer->last_sent_ns = now;
	if (peer->after_rto > 1)
		peer->after_rto--;
	peer->response_octets = seq->space == SIW_RD_RESPONSES ? peer->response_octets + slot->len
							       : 0;
	if (peer->cc->rate) {
		uint64_t late = siw_rd_cc_pacing_delay(peer->cc, peer->cc->burst);

		if (peer->pace_ns + late < now)
			peer->pace_ns = now - late;
		peer->pace_ns += siw_rd_cc_pacing_delay(peer->cc, slot->len);
	}
	peer->due_acks = 0;
	siw_link_del(&peer->acks);
	if (!peer->awaited_since_ns)
		peer->awaited_since_ns = now;
}

void siw_rd_queue_peer_for_full_socket(struct siw_rd_peer *peer)
{
	peer->rd->blocked = true;
	if (siw_link_empty(&peer->starved))
		siw_link_add(&peer->rd->starved, &peer->starved);
}

static uint8_t response_space_flag(const struct siw_rd_seq *seq)
{
	return seq->space == SIW_RD_RESPONSES ? SIW_RD_RESPONSE : 0;
}

/*
 * Sends a datagram whose header is complete. Returns 1 if the datagram was sent, or lost because of
 * an error; 0 if the socket is full.
 */
static int send_built_datagram(struct siw_rd_peer *peer, struct siw_rd_slot *slot, uint64_t now)
{
	struct iovec iov = { slot->buf, slot->len };
	int r;

	if (__builtin_expect(slot->len > peer->fragmented_len, 0))
		r = siw_rd_send_in_ip_fragments(peer, slot->buf, slot->len);
	else
		r = siw_llp_udp_send(peer->rd->sock, &peer->addr, &iov, 1);
	if (r == -EMSGSIZE) {
		siw_rd_mtu_reduce_datagram_len(peer, slot->len, now);
		r = siw_rd_send_in_ip_fragments(peer, slot->buf, slot->len);
	}
	if (r == -EAGAIN) {
		siw_rd_queue_peer_for_full_socket(peer);
		return 0;
	}
	return 1;
}

/*
 * Returns whether the CRC of the segment is computed while the segment is copied into the slot of a
 * datagram of len octets. The CRC of the datagram is then computed from it and from the CRC of the
 * header. For a short datagram a second pass over the octets takes less time.
 */
static bool computes_segment_crc_while_copying(const struct siw_rd *rd, uint32_t len)
{
	return rd->crc && len >= SEGMENT_CRC_MIN;
}

/* Returns the CRC of a datagram whose header and segment are complete, or 0 if CRCs are off. */
static uint32_t compute_datagram_crc(struct siw_rd *rd, const struct siw_rd_slot *slot)
{
	uint32_t len = slot->len - SIW_DGRAM_CRC_LEN;

	if (!rd->crc)
		return 0;
	if (!computes_segment_crc_while_copying(rd, slot->len))
		return siw_crc32c(0, slot->buf, len);
	if (rd->crc_shift_octets != len - SIW_RD_LEN) {
		rd->crc_shift_octets = len - SIW_RD_LEN;
		rd->crc_shift = siw_crc32c_shift_factor(len - SIW_RD_LEN);
	}
	return siw_crc32c_combine(siw_crc32c(0, slot->buf, SIW_RD_LEN), slot->crc, rd->crc_shift);
}

/*
 * Builds a DATA datagram for transmission. Header and CRC are written at each transmission, so that
 * the acknowledgement in the header is current.
 */
static struct siw_rd_slot *build_data_datagram(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
					       uint64_t index, uint64_t now)
{
	struct siw_rd_slot *slot = siw_rd_slot_of(seq->tx, index);

	siw_rd_write_header(peer, SIW_DGRAM_RD_DATA, peer->epoch + (uint32_t)index,
			    response_space_flag(seq), now, (struct siw_rd_wire *)slot->buf);
	siw_crc32c_put(slot->buf + slot->len - SIW_DGRAM_CRC_LEN,
		       compute_datagram_crc(peer->rd, slot));
	return slot;
}

static int send_datagram_of_slot(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
				 uint64_t now)
{
	if (!send_built_datagram(peer, build_data_datagram(peer, seq, index, now), now))
		return 0;
	account_sent_datagram(peer, seq, index, now);
	return 1;
}

/*
 * Returns whether the socket, the congestion window and pacing allow a datagram of len octets now.
 */
static bool rd_can_send_datagram(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	if (peer->rd->blocked) {
		siw_rd_queue_peer_for_full_socket(peer);
		return false;
	}
	if (peer->after_rto == 1 || (peer->in_flight && peer->in_flight + len > peer->cc->cwnd)) {
		peer->full = true;
		return false;
	}
	if (peer->pace_ns > now && peer->cc->rate) {
		siw_rd_set_timer(peer, siw_rd_next_paced_send_time(peer));
		return false;
	}
	return true;
}

/* Returns whether the peer's credit and window cover one more datagram of len octets. */
static bool has_credit(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq, uint32_t len)
{
	return seq->tx->units + siw_rd_credit_units(len) <= seq->credit &&
	       seq->tx->sent - seq->una < peer->peer_window;
}

bool siw_rd_is_covered_by_credit(const struct siw_rd_seq *seq, uint64_t index)
{
	uint32_t units = 0;

	if (seq->tx->units <= seq->credit)
		return true;
	for (uint64_t i = seq->una; i <= index; i++)
		units += siw_rd_credit_units(siw_rd_slot_of(seq->tx, i)->len);
	return units <= seq->credit;
}

bool siw_rd_lacks_credit_for_oldest_segment(const struct siw_rd_seq *seq)
{
	return seq->una != seq->nxt &&
	       siw_rd_credit_units(siw_rd_slot_of(seq->tx, seq->una)->len) > seq->credit;
}

/* Returns the octets that pacing allows now. */
static uint64_t octets_allowed_by_pacing(const struct siw_rd_peer *peer, uint64_t now)
{
	const struct siw_rd_cc *cc = peer->cc;
	uint64_t since = now - peer->pace_ns, due;

	if (!cc->rate)
		return UINT64_MAX;
	if (since > SIW_RD_MS)
		return cc->quantum;
	due = since * cc->rate / SIW_RD_S;
	return due < cc->quantum ? due : cc->quantum;
}

static bool can_join_batch(const struct siw_rd_peer *peer, uint32_t len)
{
	return len <= peer->rd->batch_max && len <= peer->fragmented_len && !siw_faults_on();
}

/*
 * Returns how many unsent datagrams fit into one batch, given that the first one may be sent. All
 * datagrams of a batch have the same length, except the last, which may be shorter.
 */
static uint32_t rd_count_datagrams_in_next_batch(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
						 uint64_t now)
{
	struct siw_rd_tx *tx = seq->tx;
	uint32_t datagram = siw_rd_slot_of(tx, tx->sent)->len, units = tx->units, n = 0,
		 len = datagram;
	uint64_t octets = 0, due;

	if (!can_join_batch(peer, datagram) || peer->after_rto)
		return 1;
	due = octets_allowed_by_pacing(peer, now);
	for (uint64_t i = tx->sent; i < seq->nxt && n < BATCH_MAX && len == datagram; i++, n++) {
		len = siw_rd_slot_of(tx, i)->len;
		units += siw_rd_credit_units(len);
		if (len > datagram || octets + len > SIW_RD_BATCH)
			break;
		if (n &&
		    (octets > due || units > seq->credit || i - seq->una >= peer->peer_window ||
		     peer->in_flight + octets + len > peer->cc->cwnd))
			break;
		octets += len;
	}
	return n;
}

/*
 * Sends the next n datagrams as one batch. Returns 1 if the batch was sent; 0 if the socket is
 * full.
 */
static int rd_send_batch(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint32_t n, uint64_t now)
{
	struct siw_rd_tx *tx = seq->tx;
	struct iovec iov[BATCH_MAX];
	uint16_t whole = peer->fragmented_len;
	int r, sent;

	for (uint32_t i = 0; i < n; i++) {
		const struct siw_rd_slot *slot = build_data_datagram(peer, seq, tx->sent + i, now);

		iov[i] = (struct iovec){ slot->buf, slot->len };
	}
	r = siw_llp_udp_send_batchv(peer->rd->sock, &peer->addr, iov, (int)n,
				    (uint16_t)iov[0].iov_len);
	if (r == -EAGAIN) {
		siw_rd_queue_peer_for_full_socket(peer);
		return 0;
	}
	if (r == -EOPNOTSUPP || r == -ECONNREFUSED) {
		sent = send_datagram_of_slot(peer, seq, tx->sent, now);
		/*
		 * If sending the datagram alone has lowered the path MTU, the batch failed because
		 * its datagrams were too long. Otherwise batches of this size do not work.
		 */
		if (r == -EOPNOTSUPP && peer->fragmented_len == whole)
			peer->rd->batch_max = (uint32_t)iov[0].iov_len - 1;
		return sent;
	}
	/* Any other error counts as a loss on the path, as for a single datagram. */
	for (; n; n--)
		account_sent_datagram(peer, seq, tx->sent, now);
	return 1;
}

/*
 * Sends datagrams for the first time. Returns false if the congestion window, pacing or the socket
 * allow no more; true if all datagrams were sent, or the rest waits for credit.
 */
static bool send_new_datagrams(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t now)
{
	struct siw_rd_tx *tx = seq->tx;

	while (tx->sent < seq->nxt) {
		uint32_t len = siw_rd_slot_of(tx, tx->sent)->len, n;

		if (!has_credit(peer, seq, len))
			return true;
		if (!rd_can_send_datagram(peer, len, now))
			return false;
		n = rd_count_datagrams_in_next_batch(peer, seq, now);
		if (!(n > 1 ? rd_send_batch(peer, seq, n, now)
			    : send_datagram_of_slot(peer, seq, tx->sent, now)))
			return false;
	}
	return true;
}

/* Retransmits lost datagrams; returns the same values as send_new_datagrams. */
static bool resend_lost_datagrams(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t now)
{
	struct siw_rd_tx *tx = seq->tx;
	uint32_t units = 0;

	for (uint64_t i = seq->una; i < tx->sent && tx->n_lost; i++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

		units += siw_rd_credit_units(slot->len);
		/* if the credit was reduced, the peer would drop this datagram */
		if (units > seq->credit)
			return true;
		if (slot->lost && (!rd_can_send_datagram(peer, slot->len, now) ||
				   !send_datagram_of_slot(peer, seq, i, now)))
			return false;
	}
	return true;
}

/*
 * Sends the queued datagrams of a space; returns the same values as send_new_datagrams. *sent is
 * set if new datagrams were sent.
 */
static bool send_queued_of_sequence_space(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
					  uint64_t now, bool *sent)
{
	uint64_t before;
	bool more;

	if (!siw_rd_has_unsent_datagram(seq))
		return true;
	before = seq->tx->sent;
	more = resend_lost_datagrams(peer, seq, now);
	if (more)
		more = send_new_datagrams(peer, seq, now);
	*sent |= seq->tx->sent != before;
	return more;
}

bool siw_rd_send_queued_datagrams(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_seq *requests = &peer->seq[SIW_RD_REQUESTS];
	struct siw_rd_seq *responses = &peer->seq[SIW_RD_RESPONSES];
	/*
	 * Responses are sent first, but a peer that reads continuously must not block the requests
	 * to that peer.
	 */
	bool turn = peer->response_octets > SIW_RD_BATCH, sent = false;

	peer->rd->queued_ns = now;
	if (!siw_rd_has_outstanding_segment(peer))
		return true;
	if (peer->state != SIW_RD_OPEN)
		return false;
	if (send_queued_of_sequence_space(peer, turn ? requests : responses, now, &sent))
		send_queued_of_sequence_space(peer, turn ? responses : requests, now, &sent);
	if (sent || peer->timer_ns == SIW_RD_NEVER)
		siw_rd_set_retransmission_timer(peer, now);
	return !siw_rd_has_unsent_datagram(requests) && !siw_rd_has_unsent_datagram(responses);
}

/* ---- queuing segments ------------------------------------------------------------------------ */

void siw_rd_resend_datagram(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
			    uint64_t now)
{
	send_datagram_of_slot(peer, seq, index, now);
}

/*
 * Returns whether the segment may be sent as soon as it is built, because no segment is queued
 * before it. A short segment after unacknowledged segments waits for the flush, to be sent in a
 * batch.
 */
static bool can_send_segment_when_built(struct siw_rd_peer *peer, const struct siw_rd_seq *seq,
					uint32_t len, uint64_t now)
{
	return peer->state == SIW_RD_OPEN && seq->tx->sent == seq->nxt && !seq->tx->n_lost &&
	       (!peer->in_flight || !can_join_batch(peer, len)) &&
	       !siw_rd_has_unsent_datagram(&peer->seq[SIW_RD_RESPONSES]) &&
	       has_credit(peer, seq, len) && rd_can_send_datagram(peer, len, now);
}

/*
 * Returns whether the peer may have evicted this end's record after a long silence.
 * last_received_ns may be later than now, because now was read before the lock was acquired.
 */
static bool must_verify_peer_before_send(const struct siw_rd_peer *peer, uint64_t now)
{
	return peer->verify ||
	       (now > peer->last_received_ns + peer->rd->idle / 3 && peer->state == SIW_RD_OPEN &&
		!siw_rd_has_outstanding_segment(peer));
}

/*
 * Returns 1 if a segment can be queued now; 0 if it must be queued later; -EPIPE if the incarnation
 * has ended.
 */
static int rd_can_queue_segment(struct siw_rd_peer *peer, const struct siw_rd_seq *seq,
				uint32_t len, uint64_t now)
{
	if (siw_rd_incarnation_ended(peer))
		return -EPIPE;
	if (!rd_tx_window_has_room(peer, seq, len))
		return 0;
	return must_verify_peer_before_send(peer, now) ? siw_rd_probe_peer_before_send(peer, now)
						       : 1;
}

/*
 * Prepares the next slot of the send window, with a buffer of len octets. Returns NULL if there is
 * no memory.
 */
static struct siw_rd_slot *prepare_next_tx_slot(struct siw_rd_peer *peer, struct siw_rd_seq *seq,
						uint32_t len)
{
	struct siw_rd_slot *slot;

	if ((!seq->tx || seq->nxt - seq->una > seq->tx->mask) &&
	    (!siw_rd_cc_alloc_for_peer(peer) || !tx_ring_grow(seq)))
		return NULL;
	slot = siw_rd_slot_of(seq->tx, seq->nxt);
	*slot = (struct siw_rd_slot){ .len = len };
	slot->buf = siw_rd_alloc_buffer(peer->rd, len, &slot->class);
	return slot->buf ? slot : NULL;
}

/* A segment that the upper layer has passed for transmission. */
struct segment {
	const void *head;
	size_t head_len;
	const struct iovec *iov;
	int n;
};

/*
 * Fills the slot with a segment: head and iovecs. A segment that is sent immediately also gets the
 * header and the CRC. The CRC is computed while copying, unless a short segment is sent later.
 * Returns 1 if the segment was added to the window; -EFAULT if not.
 */
static int build_segment(struct siw_rd_peer *peer, struct siw_rd_seq *seq, struct siw_rd_slot *slot,
			 const struct segment *seg, bool at_once, uint64_t now)
{
	uint8_t *at = slot->buf + SIW_RD_LEN, *summed_from = at;
	bool segment_crc = computes_segment_crc_while_copying(peer->rd, slot->len);
	bool sum = segment_crc || (at_once && peer->rd->crc);
	uint32_t crc = 0;

	if (at_once && !segment_crc) {
		siw_rd_write_header(peer, SIW_DGRAM_RD_DATA, peer->epoch + (uint32_t)seq->nxt,
				    response_space_flag(seq), now, (struct siw_rd_wire *)slot->buf);
		summed_from = slot->buf;
	}
	memcpy(at, seg->head, seg->head_len);
	if (sum)
		crc = siw_crc32c(0, summed_from, (size_t)(at - summed_from) + seg->head_len);
	at = siw_iov_gather(at + seg->head_len, sum ? &crc : NULL, seg->iov, seg->n);
	if (!at) {
		siw_rd_buf_free(peer->rd, slot->buf, slot->class);
		/*
		 * Memory of an empty send window is freed here, because no timer is set yet that
		 * would free it.
		 */
		if (seq->una == seq->nxt)
			siw_rd_release_send_window(peer, seq);
		if (!siw_rd_has_window(peer))
			siw_rd_cc_free_of_peer(peer);
		return -EFAULT;
	}
	slot->crc = crc;
	if (at_once && segment_crc)
		build_data_datagram(peer, seq, seq->nxt, now);
	else
		siw_crc32c_put(at, crc);
	seq->tx->octets += slot->len;
	peer->rd->tx_octets += siw_rd_size_class_octets(slot->class);
	seq->nxt++;
	return 1;
}

/*
 * Called after a segment was queued: starts an MTU search, the retransmission timer or the
 * handshake if needed.
 */
static void start_timers_after_segment_queued(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	if (__builtin_expect(len >= peer->mtu_search_len, 0))
		siw_rd_mtu_probe_longer_datagram(peer, now);
	if (!peer->awaited_since_ns)
		peer->awaited_since_ns = now;
	if (peer->state == SIW_RD_OPEN && peer->timer_ns == SIW_RD_NEVER)
		siw_rd_set_retransmission_timer(peer, now);
	else if (peer->state == SIW_RD_CLOSED)
		siw_rd_start_handshake(peer, now);
}

/*
 * Returns whether a new segment has to wait until an earlier segment of its space is sent. Sending
 * the earlier segment sets the timers.
 */
static bool waits_behind_unsent_segment(const struct siw_rd_peer *peer,
					const struct siw_rd_seq *seq)
{
	return peer->state == SIW_RD_OPEN && seq->tx && seq->tx->sent < seq->nxt &&
	       peer->timer_ns != SIW_RD_NEVER && peer->awaited_since_ns;
}

int64_t siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
		  size_t head_len, const struct iovec *iov, int n, bool more)
{
	struct siw_rd *rd = peer->rd;
	struct siw_rd_seq *seq = &peer->seq[space];
	uint64_t now;
	size_t len = SIW_RD_OVERHEAD + head_len + siw_iov_octets(iov, n);
	struct segment seg = { head, head_len, iov, n };
	struct siw_rd_slot *slot = NULL;
	bool at_once = false;
	int64_t r;

	if (len > SIW_RD_BUF)
		return -EMSGSIZE;
	siw_lock(&rd->lock);
	/*
	 * The clock is not read for a segment that waits behind unsent ones: it is read when they
	 * are sent.
	 */
	if (!waits_behind_unsent_segment(peer, seq))
		rd->queued_ns = siw_now_ns();
	now = rd->queued_ns;
	/* the header of the new segment then carries this acknowledgement */
	siw_rd_acknowledge_accepted_segment(rd);
	r = rd_can_queue_segment(peer, seq, (uint32_t)len, now);
	if (r == 1) {
		slot = prepare_next_tx_slot(peer, seq, (uint32_t)len);
		at_once = slot && !(more && can_join_batch(peer, slot->len)) &&
			  can_send_segment_when_built(peer, seq, slot->len, now);
		r = slot ? build_segment(peer, seq, slot, &seg, at_once, now) : 0;
	}
	if (r == 1) {
		if (at_once && send_built_datagram(peer, slot, now)) {
			bool first = peer->in_flight == 0;

			account_sent_datagram(peer, seq, seq->nxt - 1, now);
			if (first)
				siw_rd_set_retransmission_timer(peer, now);
		} else {
			peer->queued = true;
		}
		start_timers_after_segment_queued(peer, slot->len, now);
		r = (int64_t)seq->nxt;
	}
	siw_unlock(&rd->lock);
	return r;
}

/*
 * Returns whether no datagram waits to be sent and the timer is set, so that
 * siw_rd_send_queued_datagrams would change nothing.
 */
static bool has_nothing_to_send(const struct siw_rd_peer *peer)
{
	return !siw_rd_has_outstanding_segment(peer) ||
	       (peer->state == SIW_RD_OPEN &&
		!siw_rd_has_unsent_datagram(&peer->seq[SIW_RD_REQUESTS]) &&
		!siw_rd_has_unsent_datagram(&peer->seq[SIW_RD_RESPONSES]) &&
		peer->timer_ns != SIW_RD_NEVER);
}

int siw_rd_flush(struct siw_rd_peer *peer, uint64_t *accepted)
{
	struct siw_rd *rd = peer->rd;

	if (peer->queued) {
		siw_lock(&rd->lock);
		peer->queued = !has_nothing_to_send(peer) &&
			       !siw_rd_send_queued_datagrams(peer, siw_now_ns());
		siw_unlock(&rd->lock);
	}
	*accepted = siw_rd_total_accepted_segments(peer, SIW_RD_REQUESTS);
	return !peer->queued;
}

bool siw_rd_is_send_queue_full(const struct siw_rd_peer *peer, enum siw_rd_space space)
{
	struct siw_rd *rd = peer->rd;
	bool blocked;

	siw_lock(&rd->lock);
	blocked = siw_rd_incarnation_ended(peer) || peer->verify ||
		  !rd_tx_window_has_room(peer, &peer->seq[space], siw_rd_max_datagram_octets(peer));
	siw_unlock(&rd->lock);
	return blocked;
}

uint64_t siw_rd_segments_ever_queued(const struct siw_rd_peer *peer, enum siw_rd_space space)
{
	struct siw_rd *rd = peer->rd;
	uint64_t n;

	siw_lock(&rd->lock);
	n = peer->seq[space].nxt;
	siw_unlock(&rd->lock);
	return n;
}

uint64_t siw_rd_total_accepted_segments(const struct siw_rd_peer *peer, enum siw_rd_space space)
{
	return atomic_load_explicit(&peer->seq[space].accepted, memory_order_relaxed);
}
