/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_tx.c - sending: takes segments in, sends them as window, credit and pace allow, and
 * retransmits.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/faults.h"
#include "base/pieces.h"
#include "rd/rd_impl.h"

#define FIRST_SLOTS   16
#define LEAST_QUEUE   (256u << 10) /* octets that may always be queued */
#define PACE_BURST_NS SIW_RD_MS	   /* so much of the pace may be sent in one burst */
#define BATCH_MAX     64	   /* datagrams of a batch (UDP_MAX_SEGMENTS of older kernels) */
#define IDLE_TX_NS    (100 * SIW_RD_MS)
#define LONGEST_RTO   SIW_RD_S

/* ---- the window ------------------------------------------------------------------------------ */

static bool widen(struct siw_rd_peer *peer)
{
	struct siw_rd_tx *old = peer->tx, *tx;
	uint32_t n = old ? (old->mask + 1) * 2 : FIRST_SLOTS;

	tx = calloc(1, sizeof(*tx) + n * sizeof(tx->slot[0]));
	if (!tx)
		return false;
	tx->sent = tx->high = peer->una;
	if (old)
		memcpy(tx, old, sizeof(*tx));
	tx->mask = n - 1;
	for (uint64_t i = peer->una; old && i < peer->nxt; i++)
		*siw_rd_slot_of(tx, i) = *siw_rd_slot_of(old, i);
	free(old);
	peer->tx = tx;
	return true;
}

static void free_slot(struct siw_rd_peer *peer, struct siw_rd_slot *slot)
{
	peer->tx->octets -= slot->len;
	peer->rd->tx_octets -= siw_rd_class_octets(slot->class);
	siw_rd_buf_free(peer->rd, slot->buf, slot->class);
	slot->buf = NULL;
}

void siw_rd_tx_free(struct siw_rd_peer *peer)
{
	if (!peer->tx)
		return;
	for (uint64_t i = peer->una; i < peer->nxt; i++)
		free_slot(peer, siw_rd_slot_of(peer->tx, i));
	free(peer->tx);
	peer->tx = NULL;
}

/* Whether a datagram of so many octets may be queued now. */
static bool has_room(const struct siw_rd_peer *peer, uint32_t len)
{
	const struct siw_rd *rd = peer->rd;
	uint64_t limit = peer->cc.cwnd * 2, most = (uint64_t)rd->window_units * SIW_RD_UNIT;
	uint64_t left = rd->tx_limit > rd->tx_octets ? rd->tx_limit - rd->tx_octets : 0;

	if (peer->nxt == peer->una)
		return true;
	if (limit < LEAST_QUEUE)
		limit = LEAST_QUEUE;
	if (limit > most)
		limit = most;
	/* Peers that acknowledge nothing must leave memory to the others. */
	if (limit > left / SIW_RD_SHARE)
		limit = left / SIW_RD_SHARE;
	return peer->tx->octets + len <= limit && peer->nxt - peer->una < SIW_RD_WINDOW_MAX;
}

static inline bool is_over(const struct siw_rd_peer *peer)
{
	return (peer->reports & SIW_RD_REPORT_OVER) || peer->settling;
}

/* ---- sending --------------------------------------------------------------------------------- */

void siw_rd_rearm(struct siw_rd_peer *peer, uint64_t now)
{
	const struct siw_rd_cc *cc = &peer->cc;
	uint64_t rto = (uint64_t)cc->rto << peer->backoff, pto = 2 * cc->srtt + SIW_RD_MS;

	if (peer->una == peer->nxt) {
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
	siw_rd_due(peer, peer->timer_ns);
}

static void account_sent(struct siw_rd_peer *peer, uint64_t index, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;
	struct siw_rd_slot *slot = siw_rd_slot_of(tx, index);
	uint64_t pace = siw_rd_cc_pace(&peer->cc);

	tx->in_flight += slot->len;
	if (index == tx->sent) {
		tx->sent++;
		tx->units += siw_rd_units(slot->len);
	} else {
		siw_count(SIW_COUNTER_rd_retransmits, 1);
		slot->again = true;
	}
	if (slot->lost) {
		slot->lost = false;
		tx->n_lost--;
	}
	slot->sent_ns = peer->sent_ns = now;
	if (pace) {
		if (peer->pace_ns + PACE_BURST_NS < now)
			peer->pace_ns = now - PACE_BURST_NS;
		peer->pace_ns += (uint64_t)((double)slot->len * (double)SIW_RD_S / (double)pace);
	}
	peer->due_acks = 0;
	siw_link_del(&peer->acks);
	if (!peer->since_ns)
		peer->since_ns = now;
}

void siw_rd_starve(struct siw_rd_peer *peer)
{
	peer->rd->blocked = true;
	if (siw_link_alone(&peer->starved))
		siw_link_add(&peer->rd->starved, &peer->starved);
}

/* 1: sent, or lost on the way; 0: the socket is full. */
static int send_built(struct siw_rd_peer *peer, struct siw_rd_slot *slot, uint64_t now)
{
	struct iovec iov = { slot->buf, slot->len };
	int r;

	if (__builtin_expect(slot->len > peer->whole, 0))
		r = siw_rd_mtu_send(peer, slot->buf, slot->len);
	else
		r = siw_llp_udp_send(peer->rd->sock, &peer->addr, &iov, 1);
	if (r == -EMSGSIZE) {
		siw_rd_mtu_lower(peer, slot->len, now);
		r = siw_rd_mtu_send(peer, slot->buf, slot->len);
	}
	if (r == -EAGAIN) {
		siw_rd_starve(peer);
		return 0;
	}
	return 1;
}

/* Writes header and CRC at each transmission, so that the acknowledgement in it is current. */
static struct siw_rd_slot *build(struct siw_rd_peer *peer, uint64_t index)
{
	struct siw_rd_slot *slot = siw_rd_slot_of(peer->tx, index);
	size_t len = slot->len - SIW_DGRAM_CRC_LEN;

	siw_rd_header(peer, SIW_DGRAM_RD_DATA, peer->epoch + (uint32_t)index, 0,
		      (struct siw_rd_wire *)slot->buf);
	siw_crc32c_put(slot->buf + len, peer->rd->crc ? siw_crc32c(0, slot->buf, len) : 0);
	return slot;
}

static int send_slot(struct siw_rd_peer *peer, uint64_t index, uint64_t now)
{
	if (!send_built(peer, build(peer, index), now))
		return 0;
	account_sent(peer, index, now);
	return 1;
}

/* Whether socket, window and pace allow a datagram of so many octets now. */
static bool may_send(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	if (peer->rd->blocked) {
		siw_rd_starve(peer);
		return false;
	}
	if (peer->tx->in_flight && peer->tx->in_flight + len > peer->cc.cwnd) {
		peer->full = true;
		return false;
	}
	if (peer->pace_ns > now) {
		siw_rd_due(peer, peer->pace_ns);
		return false;
	}
	return true;
}

static bool has_credit(const struct siw_rd_peer *peer, uint32_t len)
{
	const struct siw_rd_tx *tx = peer->tx;

	return tx->units + siw_rd_units(len) <= peer->credit || (!tx->units && peer->credit);
}

/* Octets that the pace allows now. */
static uint64_t due_octets(const struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t pace = siw_rd_cc_pace(&peer->cc), since = now - peer->pace_ns;

	if (!pace)
		return UINT64_MAX;
	if (since > PACE_BURST_NS)
		since = PACE_BURST_NS;
	return (uint64_t)((double)since * (double)pace / (double)SIW_RD_S);
}

static bool may_join_batch(const struct siw_rd_peer *peer, uint32_t len)
{
	return len <= peer->rd->batch_max && len <= peer->whole && !siw_faults_on();
}

/*
 * How many of the datagrams that were never sent fit into one batch; the first one may be sent. All
 * have its length, except the last, which may be shorter.
 */
static uint32_t batch_length(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;
	uint32_t datagram = siw_rd_slot_of(tx, tx->sent)->len, units = tx->units, n = 0,
		 len = datagram;
	uint64_t octets = 0, due;

	if (!may_join_batch(peer, datagram))
		return 1;
	due = due_octets(peer, now);
	for (uint64_t i = tx->sent; i < peer->nxt && n < BATCH_MAX && len == datagram; i++, n++) {
		len = siw_rd_slot_of(tx, i)->len;
		units += siw_rd_units(len);
		if (len > datagram || octets + len > SIW_RD_BATCH)
			break;
		if (n && (octets > due || units > peer->credit ||
			  tx->in_flight + octets + len > peer->cc.cwnd))
			break;
		octets += len;
	}
	return n;
}

/* Sends the next n datagrams as one batch. 1: sent; 0: the socket is full. */
static int send_batch(struct siw_rd_peer *peer, uint32_t n, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;
	struct iovec iov[BATCH_MAX];
	uint16_t whole = peer->whole;
	int r, sent;

	for (uint32_t i = 0; i < n; i++) {
		const struct siw_rd_slot *slot = build(peer, tx->sent + i);

		iov[i] = (struct iovec){ slot->buf, slot->len };
	}
	r = siw_llp_udp_send_batchv(peer->rd->sock, &peer->addr, iov, (int)n,
				    (uint16_t)iov[0].iov_len);
	if (r == -EAGAIN) {
		siw_rd_starve(peer);
		return 0;
	}
	if (r == -EOPNOTSUPP || r == -ECONNREFUSED) {
		sent = send_slot(peer, tx->sent, now);
		/*
		 * If the path MTU was lowered meanwhile, the datagrams were too long, and batches
		 * still work.
		 */
		if (r == -EOPNOTSUPP && peer->whole == whole)
			peer->rd->batch_max = (uint32_t)iov[0].iov_len - 1;
		return sent;
	}
	/* Any other error counts as a loss on the way, as for a single datagram. */
	for (; n; n--)
		account_sent(peer, tx->sent, now);
	return 1;
}

/* Sends datagrams that were never sent, as far as credit, window, pace and socket allow. */
static void send_new(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;

	while (tx->sent < peer->nxt) {
		uint32_t len = siw_rd_slot_of(tx, tx->sent)->len, n;

		if (!has_credit(peer, len) || !may_send(peer, len, now))
			return;
		n = batch_length(peer, now);
		if (!(n > 1 ? send_batch(peer, n, now) : send_slot(peer, tx->sent, now)))
			return;
	}
}

static bool resend_lost(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;

	for (uint64_t i = peer->una; i < tx->sent && tx->n_lost; i++) {
		struct siw_rd_slot *slot = siw_rd_slot_of(tx, i);

		if (slot->lost && (!may_send(peer, slot->len, now) || !send_slot(peer, i, now)))
			return false;
	}
	return true;
}

bool siw_rd_pump(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_tx *tx = peer->tx;
	uint64_t before;

	if (!tx || peer->una == peer->nxt)
		return true;
	if (peer->state != SIW_RD_OPEN)
		return false;
	before = tx->sent;
	if (resend_lost(peer, now))
		send_new(peer, now);
	if (tx->sent != before || peer->timer_ns == SIW_RD_NEVER)
		siw_rd_rearm(peer, now);
	return tx->sent == peer->nxt && !tx->n_lost;
}

/* ---- queuing segments ------------------------------------------------------------------------ */

void siw_rd_resend(struct siw_rd_peer *peer, uint64_t index, uint64_t now)
{
	send_slot(peer, index, now);
}

/*
 * Whether nothing is queued before it and it may be sent while it is built. A short one behind
 * unacknowledged ones waits for the flush, to be sent in a batch.
 */
static bool goes_at_once(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	return peer->state == SIW_RD_OPEN && peer->tx->sent == peer->nxt && !peer->tx->n_lost &&
	       (!peer->tx->in_flight || !may_join_batch(peer, len)) && has_credit(peer, len) &&
	       may_send(peer, len, now);
}

/*
 * Whether the peer may have forgotten this end after a long silence. heard_ns may be later than
 * now, which was read before the lock was taken.
 */
static bool must_verify(const struct siw_rd_peer *peer, uint64_t now)
{
	return peer->verify || (peer->state == SIW_RD_OPEN && peer->una == peer->nxt &&
				now > peer->heard_ns + peer->rd->idle / 3);
}

/* Whether a segment may be queued: 1; 0: not now; -EPIPE: the pair has ended. */
static int admit(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	if (is_over(peer))
		return -EPIPE;
	if (!has_room(peer, len))
		return 0;
	return must_verify(peer, now) ? siw_rd_verify(peer, now) : 1;
}

/* Appends a slot to the window, with a buffer of so many octets. NULL: no memory. */
static struct siw_rd_slot *new_slot(struct siw_rd_peer *peer, uint32_t len)
{
	struct siw_rd_slot *slot;

	if ((!peer->tx || peer->nxt - peer->una > peer->tx->mask) && !widen(peer))
		return NULL;
	slot = siw_rd_slot_of(peer->tx, peer->nxt);
	*slot = (struct siw_rd_slot){ .len = len };
	slot->buf = siw_rd_buf(peer->rd, len, &slot->class);
	return slot->buf ? slot : NULL;
}

/*
 * Fills the slot: header (if it is sent at once), head and iovecs, then the CRC, computed while
 * copying. 1: the slot is in the window; -EFAULT: it is not.
 */
static int fill(struct siw_rd_peer *peer, struct siw_rd_slot *slot, const void *head,
		size_t head_len, const struct iovec *iov, int n, bool at_once)
{
	uint8_t *at = slot->buf + SIW_RD_LEN;
	bool sum = at_once && peer->rd->crc;
	uint32_t crc = 0;

	if (at_once)
		siw_rd_header(peer, SIW_DGRAM_RD_DATA, peer->epoch + (uint32_t)peer->nxt, 0,
			      (struct siw_rd_wire *)slot->buf);
	memcpy(at, head, head_len);
	if (sum)
		crc = siw_crc32c(0, slot->buf, SIW_RD_LEN + head_len);
	at = siw_pieces_gather(at + head_len, sum ? &crc : NULL, iov, n);
	if (!at) {
		siw_rd_buf_free(peer->rd, slot->buf, slot->class);
		/* an empty window without a timer would never be freed */
		if (peer->una == peer->nxt)
			siw_rd_tx_free(peer);
		return -EFAULT;
	}
	siw_crc32c_put(at, crc);
	peer->tx->octets += slot->len;
	peer->rd->tx_octets += siw_rd_class_octets(slot->class);
	peer->nxt++;
	return 1;
}

/* After a segment was queued: starts what it needs, an MTU search, the timer or the handshake. */
static void see_to(struct siw_rd_peer *peer, uint32_t len, uint64_t now)
{
	if (__builtin_expect(len >= peer->search_at, 0))
		siw_rd_mtu_search(peer, now);
	if (!peer->since_ns)
		peer->since_ns = now;
	if (peer->state == SIW_RD_OPEN && peer->timer_ns == SIW_RD_NEVER)
		siw_rd_rearm(peer, now);
	else if (peer->state == SIW_RD_CLOSED)
		siw_rd_hello(peer, now);
}

int64_t siw_rd_tx(struct siw_rd_peer *peer, const void *head, size_t head_len,
		  const struct iovec *iov, int n)
{
	struct siw_rd *rd = peer->rd;
	uint64_t now = siw_now_ns();
	size_t len = SIW_RD_OVERHEAD + head_len + siw_pieces_octets(iov, n);
	struct siw_rd_slot *slot = NULL;
	bool at_once = false;
	int64_t r;

	if (len > SIW_RD_BUF)
		return -EMSGSIZE;
	siw_lock(&rd->lock);
	r = admit(peer, (uint32_t)len, now);
	if (r == 1) {
		slot = new_slot(peer, (uint32_t)len);
		at_once = slot && goes_at_once(peer, slot->len, now);
		r = slot ? fill(peer, slot, head, head_len, iov, n, at_once) : 0;
	}
	if (r == 1) {
		if (at_once && send_built(peer, slot, now)) {
			bool first = peer->tx->in_flight == 0;

			account_sent(peer, peer->nxt - 1, now);
			if (first)
				siw_rd_rearm(peer, now);
		}
		see_to(peer, slot->len, now);
		r = (int64_t)peer->nxt;
	}
	siw_unlock(&rd->lock);
	return r;
}

/* Whether nothing is to be sent and the timer is set, so that siw_rd_pump would change nothing. */
static bool all_sent(const struct siw_rd_peer *peer)
{
	const struct siw_rd_tx *tx = peer->tx;

	return !tx || peer->una == peer->nxt ||
	       (peer->state == SIW_RD_OPEN && tx->sent == peer->nxt && !tx->n_lost &&
		peer->timer_ns != SIW_RD_NEVER);
}

static uint64_t accepted(const struct siw_rd_peer *peer)
{
	return is_over(peer) ? peer->over_una : peer->una;
}

int siw_rd_flush(struct siw_rd_peer *peer, uint64_t *taken)
{
	struct siw_rd *rd = peer->rd;
	bool all = true;

	siw_lock(&rd->lock);
	if (!all_sent(peer))
		all = siw_rd_pump(peer, siw_now_ns());
	*taken = accepted(peer);
	siw_unlock(&rd->lock);
	return all;
}

bool siw_rd_blocked(const struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;
	bool blocked;

	siw_lock(&rd->lock);
	blocked = is_over(peer) || peer->verify || !has_room(peer, siw_rd_datagram(peer));
	siw_unlock(&rd->lock);
	return blocked;
}

uint64_t siw_rd_framed(const struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;
	uint64_t n;

	siw_lock(&rd->lock);
	n = peer->nxt;
	siw_unlock(&rd->lock);
	return n;
}

uint64_t siw_rd_accepted(const struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;
	uint64_t n;

	siw_lock(&rd->lock);
	n = accepted(peer);
	siw_unlock(&rd->lock);
	return n;
}
