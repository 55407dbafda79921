/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_timer.c - the timers of RD peers. */
#include <stdlib.h>

#include "rd/rd_impl.h"

/* ---- the heap -------------------------------------------------------------------------------- */

bool siw_rd_reserve_timers(struct siw_rd *rd, uint32_t peers)
{
	uint32_t max = rd->heap_max ? rd->heap_max : 16;
	struct siw_rd_timer *heap;

	if (peers <= rd->heap_max)
		return true;
	while (max < peers)
		max *= 2;
	heap = realloc(rd->heap, max * sizeof(*heap));
	if (!heap)
		return false;
	rd->heap = heap;
	rd->heap_max = max;
	return true;
}

static void heap_store_at(struct siw_rd *rd, uint32_t i, struct siw_rd_timer timer)
{
	rd->heap[i] = timer;
	timer.peer->heap_at = i + 1;
}

/* Sifts a timer up in the heap from the free index i. */
static void timer_heap_sift_up(struct siw_rd *rd, uint32_t i, struct siw_rd_timer timer)
{
	while (i && rd->heap[(i - 1) / 2].at > timer.at) {
		heap_store_at(rd, i, rd->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_store_at(rd, i, timer);
}

/* Sifts a timer down, or up, in the heap from the free index i. */
static void timer_heap_sift(struct siw_rd *rd, uint32_t i, struct siw_rd_timer timer)
{
	for (uint32_t least; 2 * i + 1 < rd->heap_n; i = least) {
		least = 2 * i + 1;
		if (least + 1 < rd->heap_n && rd->heap[least + 1].at < rd->heap[least].at)
			least++;
		if (rd->heap[least].at >= timer.at)
			break;
		heap_store_at(rd, i, rd->heap[least]);
	}
	timer_heap_sift_up(rd, i, timer);
}

void siw_rd_cancel_timer(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;
	uint32_t i = peer->heap_at;

	if (!i)
		return;
	peer->heap_at = 0;
	if (i-- < rd->heap_n--)
		timer_heap_sift(rd, i, rd->heap[rd->heap_n]);
}

void siw_rd_set_timer(struct siw_rd_peer *peer, uint64_t at)
{
	struct siw_rd *rd = peer->rd;
	uint32_t i = peer->heap_at;

	if (!i)
		timer_heap_sift_up(rd, rd->heap_n++, (struct siw_rd_timer){ at, peer });
	else if (at < rd->heap[i - 1].at)
		timer_heap_sift_up(rd, i - 1, (struct siw_rd_timer){ at, peer });
	if (at >= rd->due)
		return;
	rd->due = at;
	siw_llp_sock_set_timer(rd->sock, at);
}

/* ---- expired timers -------------------------------------------------------------------------- */

void siw_rd_send_liveness_probe(struct siw_rd_peer *peer, uint64_t now)
{
	uint8_t out[SIW_RD_OVERHEAD];

	/*
	 * The PSN of a PROBE for a peer's liveness differs from the PSN of an outstanding MTU
	 * probe.
	 */
	siw_rd_write_header(peer, SIW_DGRAM_RD_PROBE, ~peer->probe_psn, 0, now,
			    (struct siw_rd_wire *)out);
	siw_count(SIW_COUNTER_rd_probes, 1);
	siw_rd_send_datagram(peer->rd, &peer->addr, out, SIW_RD_LEN);
	peer->last_sent_ns = now;
}

int siw_rd_probe_peer_before_send(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->verify)
		return 0;
	peer->verify = true;
	peer->awaited_since_ns = now;
	peer->backoff = peer->rtos = 0;
	siw_rd_send_liveness_probe(peer, now);
	peer->timer_ns = now + peer->cc->rto;
	siw_rd_set_timer(peer, peer->timer_ns);
	siw_rd_set_timer(peer, siw_rd_time_to_declare_peer_lost(peer));
	return 0;
}

/*
 * Returns whether the peer owes data that it could send at any time: the rest of a message, the
 * datagrams of a gap, or the response to a request that it has accepted.
 */
static bool peer_owes_data(const struct siw_rd_peer *peer)
{
	const struct siw_rd_seq *requests = &peer->seq[SIW_RD_REQUESTS];

	if (siw_rd_has_gap(requests) || siw_rd_has_gap(&peer->seq[SIW_RD_RESPONSES]))
		return true;
	return peer->expect && requests->una == requests->nxt && !requests->held &&
	       !peer->seq[SIW_RD_RESPONSES].held;
}

static bool handshake_in_progress(const struct siw_rd_peer *peer)
{
	return peer->state == SIW_RD_HELLO || peer->state == SIW_RD_ECHOED;
}

static uint64_t current_peer_timeout(const struct siw_rd_peer *peer)
{
	return handshake_in_progress(peer) && !peer->near ? peer->rd->handshake_timeout
							  : peer->rd->timeout;
}

static uint64_t later_of_two_times(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

uint64_t siw_rd_time_to_declare_peer_lost(const struct siw_rd_peer *peer)
{
	if (!peer->awaited_since_ns)
		return SIW_RD_NEVER;
	if (handshake_in_progress(peer))
		return peer->awaited_since_ns + current_peer_timeout(peer);
	return later_of_two_times(peer->last_received_ns, peer->awaited_since_ns) +
	       current_peer_timeout(peer);
}

/*
 * Returns whether the peer is lost: this end waits for the peer, and the peer has sent nothing for
 * the peer time-out. When the peer's timer has expired and the peer owes data, other datagrams of
 * the peer do not extend the time-out. If the timer is serviced far too late, this process was
 * stopped and could not probe the peer; the peer is then probed first.
 */
static bool peer_is_lost(const struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t at = siw_rd_time_to_declare_peer_lost(peer), due = at;

	if (peer->timer_ns <= now) {
		due = peer->timer_ns;
		if (at != SIW_RD_NEVER && !handshake_in_progress(peer) && peer_owes_data(peer))
			at = later_of_two_times(peer->last_progress_ns, peer->awaited_since_ns) +
			     current_peer_timeout(peer);
	}
	return at <= now && now - due < current_peer_timeout(peer) / 4;
}

/*
 * Returns the time at which the measured state of the path is discarded. The state of a path beyond
 * the machine is kept longer.
 */
static uint64_t path_state_expiry_time(const struct siw_rd_peer *peer)
{
	return peer->last_sent_ns + (peer->near ? 100 * SIW_RD_MS : 10 * SIW_RD_S);
}

/*
 * Called when nothing is outstanding: frees an idle send window, and probes a peer whose response
 * is due.
 */
static void service_idle_peer(struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t every = peer->rd->timeout / 8;

	for (int i = 0; i < SIW_RD_SPACES && now - peer->last_sent_ns >= 100 * SIW_RD_MS; i++)
		siw_rd_release_send_window(peer, &peer->seq[i]);
	if (!siw_rd_has_window(peer) && now >= path_state_expiry_time(peer))
		siw_rd_cc_free_of_peer(peer);
	if (peer->verify) {
		siw_rd_send_liveness_probe(peer, now);
		peer->timer_ns = now + (every < SIW_RD_S / 4 ? every : SIW_RD_S / 4);
	} else if (siw_rd_awaits_more(peer) && peer->state == SIW_RD_OPEN) {
		if (now - peer->last_received_ns >= every)
			siw_rd_send_liveness_probe(peer, now);
		peer->timer_ns = now + every;
	} else {
		peer->awaited_since_ns = 0;
		peer->timer_ns = siw_rd_has_window(peer) ? now + 100 * SIW_RD_MS
				 : siw_rd_has_cc(peer)	 ? path_state_expiry_time(peer)
							 : SIW_RD_NEVER;
	}
}

static void service_peer_timer(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer_is_lost(peer, now)) {
		siw_count(SIW_COUNTER_rd_gone, 1);
		siw_rd_end_incarnation(peer, SIW_RD_GONE);
	} else if (handshake_in_progress(peer)) {
		siw_rd_retransmit_handshake(peer, now);
	} else if (!siw_rd_has_outstanding_segment(peer) || peer->state == SIW_RD_CLOSED) {
		service_idle_peer(peer, now);
	} else {
		siw_rd_handle_retransmission_timeout(peer, now);
	}
}

/* Returns the time at which the peer's next timer expires. */
static uint64_t next_timer_expiry_of_peer(const struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t next = peer->timer_ns, lost = siw_rd_time_to_declare_peer_lost(peer);

	/*
	 * Retransmissions to a silent peer may be seconds apart, so the peer time-out is checked
	 * separately.
	 */
	if (lost > now && lost < next)
		next = lost;
	if (peer->due_acks && peer->ack_ns + SIW_RD_ACK_NS < next)
		next = peer->ack_ns + SIW_RD_ACK_NS;
	if (peer->pace_ns > now && peer->cc->rate && siw_rd_next_paced_send_time(peer) < next &&
	    (siw_rd_has_unsent_datagram(&peer->seq[SIW_RD_REQUESTS]) ||
	     siw_rd_has_unsent_datagram(&peer->seq[SIW_RD_RESPONSES])))
		next = siw_rd_next_paced_send_time(peer);
	if (siw_rd_next_bye_time(peer) < next)
		next = siw_rd_next_bye_time(peer);
	return peer->probe && peer->probe_ns < next ? peer->probe_ns : next;
}

static void service_peer_with_expired_timers(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->timer_ns <= now || peer_is_lost(peer, now))
		service_peer_timer(peer, now);
	if (peer->due_acks && peer->ack_ns + SIW_RD_ACK_NS <= now)
		siw_rd_send_ack(peer, 0, siw_rd_next_psn(peer), now);
	if (peer->probe && peer->probe_ns <= now)
		siw_rd_mtu_handle_lost_probe(peer, now);
	if (siw_rd_next_bye_time(peer) <= now)
		siw_rd_bye_retransmit(peer, now);
	siw_rd_send_queued_datagrams(peer, now);
}

/* Sends datagrams that waited for space in the socket, while there is space. */
static void send_to_blocked_peers(struct siw_rd *rd, uint64_t now)
{
	rd->blocked = false;
	while (!siw_link_empty(&rd->starved) && !rd->blocked) {
		struct siw_rd_peer *peer =
			siw_container(rd->starved.next, struct siw_rd_peer, starved);

		siw_link_del(&peer->starved);
		siw_rd_send_queued_datagrams(peer, now);
	}
}

void siw_rd_service_timers(struct siw_rd *rd, uint64_t now)
{
	if (rd->blocked)
		send_to_blocked_peers(rd, now);
	rd->due = 0; /* keeps siw_rd_set_timer from setting the socket's timer during the loop */
	while (rd->heap_n && rd->heap[0].at <= now) {
		struct siw_rd_peer *peer = rd->heap[0].peer;
		uint64_t at;

		service_peer_with_expired_timers(peer, now);
		at = next_timer_expiry_of_peer(peer, now);
		siw_rd_cancel_timer(peer);
		/* each timer expires at most once per tick, so that the loop ends */
		if (at != SIW_RD_NEVER)
			siw_rd_set_timer(peer, at > now ? at : now + 1);
	}
	rd->due = rd->heap_n ? rd->heap[0].at : SIW_RD_NEVER;
	if (rd->heap_n)
		siw_llp_sock_set_timer(rd->sock, rd->due);
}

void siw_rd_note_peer_owes_response(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->state != SIW_RD_OPEN)
		return;
	if (!peer->awaited_since_ns)
		peer->awaited_since_ns = now;
	if (peer->timer_ns <= now + peer->rd->timeout / 8)
		return;
	peer->timer_ns = now + peer->rd->timeout / 8;
	siw_rd_set_timer(peer, peer->timer_ns);
}

void siw_rd_set_response_expected(struct siw_rd_peer *peer, bool expected)
{
	struct siw_rd *rd = peer->rd;
	uint64_t now = siw_now_ns();

	siw_lock(&rd->lock);
	if (expected && !peer->expect)
		peer->last_progress_ns = now;
	peer->expect = expected;
	if (expected)
		siw_rd_note_peer_owes_response(peer, now);
	else if (!siw_rd_has_outstanding_segment(peer) && !peer->verify &&
		 !siw_rd_awaits_more(peer))
		peer->awaited_since_ns = 0;
	siw_unlock(&rd->lock);
}
