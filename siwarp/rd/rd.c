/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd.c - an RD endpoint: opens and closes it, receives datagrams, reports events.
 *
 * How reliable datagrams work. Segments are accepted and delivered intact, exactly once and in
 * order per peer and PSN space: responses and error messages have a space of their own, so that
 * requests for which no receive is posted do not delay responses.
 *
 * Files: rd_hello.c: handshake with a stateless cookie. rd_life.c: detects another instance of a
 * peer. rd_bye.c: end of an incarnation. rd_peer.c: the table of peers (SipHash), and eviction when
 * the table is full. rd_tx.c: congestion window, credit and pacing. rd_ack.c: acknowledged and lost
 * datagrams. rd_rx.c: ordering and acknowledgements. rd_cc.c, rd_cc_bbr.c, rd_cc_cubic.c:
 * congestion control, as pure functions. rd_mtu.c: path MTU. rd_rnr.c: requests for which no
 * receive is posted. rd_timer.c: timers.
 *
 * Sending: a segment is copied and its CRC computed in one pass, and it is normally sent in the
 * call that queues it. A short segment after unacknowledged ones, or before others, waits for the
 * flush; segments of one length to one peer are sent in one batch of up to 64 (UDP_SEGMENT). The
 * header is written at each transmission, and its CRC is combined with that of a long segment.
 * While many short datagrams arrive, they are also received in batches (llp_udp_dense.c).
 *
 * Acknowledgements are carried by DATA. A separate ACK is sent if the socket is empty and either
 * two segments wait for an acknowledgement or one has waited for 20 us, or if 64 wait (16 if they
 * are long, 8 after a gap). A ping-pong therefore sends no separate ACK. A segment is acknowledged
 * after DDP has accepted it. The data of a datagram is delivered before the event for what the
 * datagram acknowledges: the delivery of a reply does not wait for the completion of the request
 * before it.
 *
 * Congestion: BBR version 3, or CUBIC if setting rd_cc says so, each with a window and a pacing
 * rate; an ECN mark (CE) counts as a loss. A batch is no longer than pacing allows. On a path that
 * does not leave the machine the two ends' CPU time is the bottleneck: there CUBIC is used with a
 * large minimum window, and without pacing.
 *
 * Timers: a heap with lazy updates; a postponed timer is re-sifted when it expires, so a tick costs
 * only the timers that are due. If a timer is serviced far too late, this process was stopped; the
 * peer is probed once more before it is declared lost.
 *
 * Memory: segments that arrived early or are paused are stored; their buffers and rings count
 * against a memory limit of the endpoint. One peer may use a quarter of the memory that is left. A
 * peer record is kept while a valid ECHO could open its incarnation again. A peer that leaves a gap
 * or an unfinished message is probed; it is declared lost after the peer time-out without progress.
 *
 * Path MTU: datagrams have at most 1200 octets initially, except on loopback, and become longer
 * after a probe was acknowledged; probes are sent only when segments fill the datagrams. A path
 * that silently drops long datagrams is detected by time-outs, or when long datagrams are lost
 * repeatedly while short ones arrive.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "base/crc32c.h"
#include "base/faults.h"
#include "base/settings.h"
#include "rd/rd_impl.h"

#define TRIES	  64	/* maximum number of receive attempts in one call */
#define COOKIE_MS 30000 /* lifetime of a cookie, ms; an idle peer record is kept longer */

/* ---- open and close -------------------------------------------------------------------------- */

/*
 * Returns the largest credit for one peer, in units: the amount that the socket's receive buffer
 * can hold.
 */
static uint32_t rd_max_credit_units(struct siw_llp_sock *sock)
{
	uint64_t window = (uint64_t)siw_settings()->rd_window;
	uint32_t room = siw_llp_udp_rx_buffer_size(sock);

	if (room && room < window)
		window = room;
	window /= SIW_RD_UNIT;
	return window > UINT16_MAX ? UINT16_MAX : window < 64 ? 64 : (uint32_t)window;
}

static void init_rd_endpoint(struct siw_rd *rd, struct siw_llp_poller *poller,
			     const struct siw_rd_attr *attr)
{
	const struct siw_settings *set = siw_settings();

	siw_lock_init(&rd->lock);
	rd->poller = poller;
	rd->crc = !attr->no_crc;
	rd->ird = attr->ird;
	rd->qkey = attr->qkey;
	rd->rnr_retry = attr->rnr_retry;
	rd->rnr_timer = attr->rnr_timer;
	rd->max_peers = attr->max_peers ? attr->max_peers : (uint32_t)set->rd_peers;
	rd->timeout = attr->peer_timeout_ns ? attr->peer_timeout_ns
					    : (uint64_t)set->peer_timeout_ms * SIW_RD_MS;
	rd->handshake_timeout = attr->peer_timeout_ns
					? rd->timeout
					: (uint64_t)set->rd_handshake_timeout_ms * SIW_RD_MS;
	rd->rx_limit = rd->tx_limit = (uint64_t)set->rd_total_window;
	rd->idle = (uint64_t)set->rd_idle_ms * SIW_RD_MS;
	rd->cookie_ms = set->rd_idle_ms < COOKIE_MS ? (uint32_t)set->rd_idle_ms : COOKIE_MS;
	rd->batch_max = SIW_RD_BATCH / 2;
	rd->due = SIW_RD_NEVER;
	rd->began = rd->now = siw_now_ns();
	siw_siphash_make_key(&rd->key);
	do {
		rd->instance = siw_siphash(&rd->key, &rd->epochs, sizeof(rd->epochs));
		rd->epochs++;
	} while (!rd->instance);
	rd->follow_restart = set->rd_follow_restart;
	siw_rd_cc_init(&rd->initial_cc, SIW_RD_MIN_DATAGRAM, false);
}

int siw_rd_open(struct siw_llp_poller *poller, const struct siw_rd_attr *attr, struct siw_rd **out)
{
	struct siw_rd *rd = calloc(1, sizeof(*rd));
	struct siw_addr local;
	int r = -ENOMEM;

	if (!rd)
		return r;
	init_rd_endpoint(rd, poller, attr);
	rd->rx_buf = malloc(SIW_RD_BUF);
	if (!rd->rx_buf || siw_rd_peer_table_init(rd))
		goto free_rd;
	if (attr->fd >= 0)
		r = siw_llp_udp_adopt_program_socket(poller, attr->fd, attr->handler, &rd->sock);
	else
		r = siw_llp_udp_open(poller, &attr->local, attr->handler, &rd->sock);
	if (r)
		goto free_rd;
	r = siw_llp_local_addr(rd->sock, &local);
	if (r)
		goto close_sock;
	rd->ipv6 = local.family == AF_INET6;
	rd->window_units = rd_max_credit_units(rd->sock);
	siw_llp_udp_set_fragmentation_allowed(rd->sock, false);
	siw_llp_sock_enable_timer(rd->sock);
	*out = rd;
	return 0;

close_sock:
	siw_llp_close(rd->sock);
free_rd:
	if (rd->table)
		siw_rd_peer_table_fini(rd);
	free(rd->rx_buf);
	free(rd);
	return r;
}

void siw_rd_close(struct siw_rd *rd)
{
	if (!rd)
		return;
	if (siw_llp_poller_opened_by_this_process(rd->poller))
		siw_rd_send_final_byes(rd);
	siw_rd_peer_table_fini(rd);
	siw_llp_close(rd->sock);
	free(rd->rx_buf);
	free(rd);
}

struct siw_llp_sock *siw_rd_sock(const struct siw_rd *rd)
{
	return rd->sock;
}

void siw_rd_set_qkey(struct siw_rd *rd, uint32_t qkey)
{
	siw_lock(&rd->lock);
	rd->qkey = qkey;
	siw_unlock(&rd->lock);
}

void siw_rd_set_unreachable(struct siw_rd *rd, bool away)
{
	siw_lock(&rd->lock);
	rd->unreachable = away;
	siw_unlock(&rd->lock);
}

void siw_rd_set_ird(struct siw_rd *rd, uint8_t ird)
{
	siw_lock(&rd->lock);
	rd->ird = ird;
	siw_unlock(&rd->lock);
}

void siw_rd_set_rnr_retry_and_timer(struct siw_rd *rd, uint8_t retry, uint8_t timer)
{
	siw_lock(&rd->lock);
	rd->rnr_retry = retry;
	rd->rnr_timer = timer;
	siw_unlock(&rd->lock);
}

/*
 * Called when the upper layer has handled the last RESTARTED or GONE event, and may send to that
 * peer again.
 */
static void rd_finish_handled_event(struct siw_rd *rd)
{
	if (!rd->settle)
		return;
	rd->settle->settling = false;
	siw_rd_store_accepted_counts(rd->settle);
	rd->settle = NULL;
}

/* ---- peer functions for the upper layer ------------------------------------------------------ */

int siw_rd_get_or_create_peer(struct siw_rd *rd, const struct siw_addr *addr,
			      struct siw_rd_peer **out)
{
	int r;

	siw_lock(&rd->lock);
	r = siw_rd_get_or_create_peer_locked(rd, addr, out);
	if (!r)
		(*out)->claimed = true;
	siw_unlock(&rd->lock);
	return r;
}

const struct siw_addr *siw_rd_peer_addr(const struct siw_rd_peer *peer)
{
	return &peer->addr;
}

void siw_rd_set_upper_layer_object(struct siw_rd_peer *peer, void *upper)
{
	siw_lock(&peer->rd->lock);
	peer->claimed = false;
	if (peer->settling) /* the upper layer has handled the RESTARTED or GONE event */
		rd_finish_handled_event(peer->rd);
	/*
	 * Pairs with the load in siw_rd_upper_layer_object(): a thread that finds the upper layer's
	 * object finds it complete.
	 */
	atomic_store_explicit(&peer->upper, upper, memory_order_release);
	siw_unlock(&peer->rd->lock);
}

void *siw_rd_upper_layer_object(const struct siw_rd_peer *peer)
{
	return atomic_load_explicit(&peer->upper, memory_order_acquire);
}

void *siw_rd_peer_upper_data(struct siw_rd_peer *peer)
{
	return peer->upper_data;
}

uint8_t siw_rd_peer_ird(const struct siw_rd_peer *peer)
{
	return atomic_load_explicit(&peer->ird, memory_order_relaxed);
}

uint32_t siw_rd_mulpdu(const struct siw_rd_peer *peer, enum siw_rd_space space)
{
	uint32_t path = siw_rd_max_datagram_octets(peer) - SIW_RD_OVERHEAD;
	uint32_t units = atomic_load_explicit(&peer->seq[space].most_units, memory_order_relaxed);

	return path < units * SIW_RD_UNIT ? path : units * SIW_RD_UNIT;
}

void siw_rd_end_peer_incarnation(struct siw_rd_peer *peer, enum siw_rd_reason reason)
{
	struct siw_rd *rd = peer->rd;

	siw_lock(&rd->lock);
	siw_rd_acknowledge_accepted_segment(rd);
	if (peer->state == SIW_RD_OPEN && !rd->shut_down)
		siw_rd_end_incarnation_with_bye(peer, reason, 0);
	else if (!rd->shut_down)
		siw_rd_end_incarnation(peer, 0);
	siw_unlock(&rd->lock);
}

bool siw_rd_abandon_peer(struct siw_rd *rd, const struct siw_addr *addr)
{
	struct siw_rd_peer *peer;
	bool found;

	siw_lock(&rd->lock);
	siw_rd_acknowledge_accepted_segment(rd);
	peer = siw_rd_peer_find(rd, addr);
	found = peer && !rd->shut_down &&
		(peer->state != SIW_RD_CLOSED || siw_rd_has_outstanding_segment(peer));
	if (found && peer->state == SIW_RD_OPEN)
		siw_rd_end_incarnation_with_bye(peer, SIW_RD_IDLE, SIW_RD_GONE);
	else if (found)
		siw_rd_end_incarnation(peer, SIW_RD_GONE);
	siw_unlock(&rd->lock);
	if (found)
		/* mark the socket ready, so that event GONE is reported */
		siw_llp_sock_mark_ready(rd->sock);
	return found;
}

uint32_t siw_rd_peer_count(struct siw_rd *rd)
{
	uint32_t n;

	siw_lock(&rd->lock);
	n = rd->n_peers;
	siw_unlock(&rd->lock);
	return n;
}

size_t siw_rd_peer_record_size(void)
{
	return sizeof(struct siw_rd_peer);
}

/* ---- received datagrams ---------------------------------------------------------------------- */

static bool has_unsupported_version(const struct siw_rd_wire *wire)
{
	return (wire->llp.type >> 2 & 3) != SIW_DGRAM_VERSION;
}

static bool is_version_independent_datagram_type(int type)
{
	return type == SIW_DGRAM_RD_HELLO || type == SIW_DGRAM_RD_VERSIONS;
}

/* Returns whether a datagram may be handled; counts any other datagram as dropped. */
static bool rd_is_datagram_acceptable(struct siw_rd *rd, const struct siw_rd_wire *wire, size_t len)
{
	if (len < SIW_RD_OVERHEAD)
		return siw_drop(SIW_COUNTER_drop_short);
	if ((rd->crc || siw_rd_is_handshake_type(wire->llp.type)) &&
	    !siw_crc32c_ends((const uint8_t *)wire, len))
		return siw_drop(SIW_COUNTER_drop_crc);
	if (!siw_dgram_is(wire->llp.type) ||
	    (has_unsupported_version(wire) &&
	     !is_version_independent_datagram_type(wire->llp.type >> 4)))
		return siw_drop(SIW_COUNTER_drop_version);
	if (wire->llp.dest_index)
		return siw_drop(SIW_COUNTER_drop_header);
	if (ntohl(wire->llp.qkey) != rd->qkey)
		return siw_drop(SIW_COUNTER_drop_qkey);
	if (rd->unreachable && wire->llp.type >> 4 != SIW_DGRAM_RD_BYE)
		return siw_drop(SIW_COUNTER_drop_source);
	return true;
}

/* Handles the first datagram that completes a handshake begun by this end. */
static void rd_complete_handshake(struct siw_rd_peer *peer, uint64_t now)
{
	peer->state = SIW_RD_OPEN;
	peer->known_lost = false;
	siw_rd_mtu_handle_handshake_done(peer);
	if (!peer->rtos && siw_rd_has_cc(peer))
		siw_rd_cc_add_rtt_sample(peer->cc, now - peer->last_sent_ns);
	/*
	 * If the peer began a handshake before it received this end's HELLO, the peer's ECHO must
	 * not open a second pair of epochs.
	 */
	peer->cookie_made = siw_rd_cookie_clock_ms(peer->rd, now);
	peer->backoff = peer->rtos = 0;
	peer->timer_ns = SIW_RD_NEVER;
}

/* Handles a datagram of the current epochs: DATA, ACK, PROBE or BYE. */
static void rd_handle_datagram_of_current_epochs(struct siw_rd_peer *peer, struct siw_rd_wire *wire,
						 uint32_t len, uint64_t now)
{
	uint32_t body = len - SIW_RD_OVERHEAD;

	if (wire->llp.type >> 4 == SIW_DGRAM_RD_BYE) {
		siw_rd_handle_bye(peer, wire, now);
		return;
	}
	if (wire->llp.type >> 4 == SIW_DGRAM_RD_ACK && !siw_rd_is_valid_ack_body(wire + 1, body)) {
		siw_drop(SIW_COUNTER_drop_header);
		return;
	}
	if (peer->state != SIW_RD_OPEN)
		rd_complete_handshake(peer, now);
	peer->last_received_ns = now;
	siw_rd_move_to_end_of_lru(peer, now);
	if (siw_rd_peer_ird(peer) != wire->ird)
		atomic_store_explicit(&peer->ird, wire->ird, memory_order_relaxed);
	if (peer->verify) {
		peer->verify = false;
		peer->awaited_since_ns = 0;
		siw_rd_queue_peer_event(peer, SIW_RD_REPORT_ACKED);
	}
	switch (wire->llp.type >> 4) {
	case SIW_DGRAM_RD_DATA:
		siw_rd_handle_ack(peer, wire, NULL, now);
		if (!peer->rd->shut_down)
			siw_rd_handle_data(peer, wire, len, now);
		break;
	case SIW_DGRAM_RD_ACK:
		siw_rd_handle_ack(peer, wire, (const struct siw_rd_ack *)(wire + 1), now);
		siw_rd_handle_not_ready(peer, wire, now);
		if (wire->flags & SIW_RD_PROBED)
			siw_rd_mtu_handle_probe_ack(peer, ntohl(wire->llp.psn));
		break;
	default:
		siw_rd_handle_ack(peer, wire, NULL, now);
		siw_rd_send_ack(peer, SIW_RD_PROBED, ntohl(wire->llp.psn), now);
	}
}

static bool is_datagram_of_current_epochs(const struct siw_rd_peer *peer,
					  const struct siw_rd_wire *wire)
{
	return peer && peer->peer_epoch && ntohl(wire->dest_epoch) == peer->epoch &&
	       ntohl(wire->source_epoch) == peer->peer_epoch;
}

static void rd_handle_datagram(struct siw_rd *rd, struct siw_rd_wire *wire, uint32_t len)
{
	const struct siw_addr *from = &rd->from;
	struct siw_rd_peer *peer;
	uint64_t now = rd->now;

	if (rd->shut_down && siw_rd_is_handshake_type(wire->llp.type))
		return; /* no new handshakes during shutdown */
	switch (wire->llp.type >> 4) {
	case SIW_DGRAM_RD_HELLO:
		if (has_unsupported_version(wire))
			siw_rd_handle_hello_of_other_version(rd, from, wire, len);
		else
			siw_rd_handle_hello(rd, from, wire, len);
		return;
	case SIW_DGRAM_RD_VERSIONS:
		siw_rd_handle_versions_datagram(rd, from, wire, len);
		return;
	case SIW_DGRAM_RD_CHALLENGE:
		siw_rd_handle_challenge(rd, from, wire, len, now);
		return;
	case SIW_DGRAM_RD_ECHO:
		siw_rd_handle_cookie_echo(rd, from, wire, len, now);
		return;
	case SIW_DGRAM_RD_DATA:
	case SIW_DGRAM_RD_ACK:
	case SIW_DGRAM_RD_PROBE:
	case SIW_DGRAM_RD_BYE:
		peer = siw_rd_peer_find(rd, from);
		if (is_datagram_of_current_epochs(peer, wire))
			rd_handle_datagram_of_current_epochs(peer, wire, len, now);
		else
			siw_rd_answer_with_bye(rd, peer, wire);
		return;
	default:
		siw_drop(SIW_COUNTER_drop_opcode);
	}
}

/* ---- events ---------------------------------------------------------------------------------- */

static int rd_pop_event_of_peer(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	if (peer->reports & SIW_RD_REPORT_OVER) {
		peer->reports &= (uint8_t)~SIW_RD_REPORT_OVER;
		peer->settling = true;
		rd->settle = peer;
		return peer->over_kind;
	}
	if (peer->reports & SIW_RD_REPORT_NEW) {
		peer->reports &= (uint8_t)~SIW_RD_REPORT_NEW;
		return SIW_RD_NEW_PEER;
	}
	peer->reports = 0;
	return SIW_RD_ACKED;
}

static int rd_fill_segment_event(struct siw_rd *rd, struct siw_rd_event *event)
{
	struct siw_rd_peer *peer = rd->delivered_peer;
	bool acked = peer->reports & SIW_RD_REPORT_ACKED;
	const uint8_t *datagram = rd->direct;
	uint32_t len = rd->direct_len;

	if (!datagram) {
		const struct siw_rd_seq *seq = rd->delivered_seq;
		const struct siw_rd_held *held = &seq->rx->slot[seq->rcv & seq->rx->mask];

		datagram = held->buf;
		len = held->len;
	}
	if (acked) {
		peer->reports &= (uint8_t)~SIW_RD_REPORT_ACKED;
		siw_link_del(&peer->news);
	}
	*event = (struct siw_rd_event){
		.kind = SIW_RD_SEGMENT,
		.peer = peer,
		.space = rd->delivered_seq->space,
		.acked = acked,
		.data = datagram + SIW_RD_LEN,
		.len = len - SIW_RD_OVERHEAD,
	};
	atomic_store_explicit(&rd->delivery, SIW_RD_DELIVERED, memory_order_relaxed);
	return 1;
}

static int rd_next_event(struct siw_rd *rd, struct siw_rd_event *event)
{
	struct siw_rd_peer *peer;

	/* A segment and the acknowledgement in the same datagram are reported by one event. */
	if (rd->delivered_peer && !(rd->delivered_peer->reports & ~SIW_RD_REPORT_ACKED))
		return rd_fill_segment_event(rd, event);
	if (!siw_link_empty(&rd->news)) {
		peer = siw_container(rd->news.next, struct siw_rd_peer, news);
		*event = (struct siw_rd_event){ .kind = rd_pop_event_of_peer(peer), .peer = peer };
		if (!peer->reports)
			siw_link_del(&peer->news);
		return 1;
	}
	if (!rd->delivered_peer && !siw_link_empty(&rd->ready)) {
		rd->delivered_peer = siw_container(rd->ready.next, struct siw_rd_peer, ready);
		rd->delivered_seq = siw_rd_sequence_space_to_deliver(rd->delivered_peer);
		rd->direct = NULL;
		siw_link_del(&rd->delivered_peer->ready);
	}
	return rd->delivered_peer ? rd_fill_segment_event(rd, event) : 0;
}

/*
 * Returns the peer whose acknowledgement has been pending longest. The list of pending
 * acknowledgements must not be empty.
 */
static struct siw_rd_peer *rd_peer_with_oldest_pending_ack(struct siw_rd *rd)
{
	return siw_container(rd->acks.next, struct siw_rd_peer, acks);
}

/*
 * Called when the socket is empty: sends the acknowledgements that are due, and services the
 * timers.
 */
static void rd_handle_empty_socket(struct siw_rd *rd)
{
	/*
	 * rd->now, the arrival time of the last datagram, is used instead of the current time: an
	 * acknowledgement that was not due then is not sent yet.
	 */
	bool ack = !siw_link_empty(&rd->acks) &&
		   siw_rd_must_ack_now(rd_peer_with_oldest_pending_ack(rd), rd->now);
	uint64_t now;

	if (rd->due == SIW_RD_NEVER && !rd->blocked)
		return;
	/*
	 * The poller reads the clock for all sockets in every poll; here the clock is read only if
	 * there is work.
	 */
	if (!rd->blocked && !ack && siw_llp_sock_timer_is_pending(rd->sock))
		return;
	now = siw_now_ns();
	while (!siw_link_empty(&rd->acks)) {
		struct siw_rd_peer *peer = rd_peer_with_oldest_pending_ack(rd);

		if (!siw_rd_must_ack_now(peer, now))
			break;
		siw_rd_send_ack(peer, 0, siw_rd_next_psn(peer), now);
	}
	if (now >= rd->due || rd->blocked) {
		siw_rd_service_timers(rd, now);
	} else {
		/*
		 * The handler was called for an earlier timer that has expired: set the time of the
		 * next timer.
		 */
		siw_llp_sock_set_timer(rd->sock, rd->due);
	}
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The result of a receive call on the socket, which is made without the endpoint's lock. */
struct received {
	ssize_t len;  /* as siw_llp_udp_recv_with_gro */
	uint32_t seg; /* octets of each datagram but the last one */
};

static void rd_receive_from_socket(struct siw_rd *rd, struct received *in)
{
	in->len = siw_llp_udp_recv_with_gro(rd->sock, &rd->from, rd->rx_buf, SIW_RD_BUF, &in->seg);
}

/*
 * Notes the position, length and arrival time of the datagrams that the socket returned. Returns
 * false if the socket was empty.
 */
static bool rd_note_received_datagrams(struct siw_rd *rd, const struct received *in)
{
	if (rd->ecn)
		rd->ce = siw_llp_udp_ce_received(rd->sock);
	if (in->len < 0) {
		rd->streak = 0;
		return false;
	}
	if (!in->len || in->len > (ssize_t)SIW_RD_BUF) {
		siw_drop(SIW_COUNTER_drop_short);
		return true;
	}
	rd->at = 0;
	rd->end = (uint32_t)in->len;
	rd->seg = in->seg;
	rd->now = siw_now_ns();
	if (in->seg <= SIW_RD_BATCH / 2)
		rd->streak += rd->end / in->seg;
	return true;
}

/*
 * Returns whether the next event can only come from the socket. Called without the lock: an event
 * that another thread reports at the same time is returned after the receive call on the socket.
 */
static bool rd_must_read_socket(const struct siw_rd *rd)
{
	return rd->at >= rd->end &&
	       atomic_load_explicit(&rd->delivery, memory_order_relaxed) != SIW_RD_DELIVERED &&
	       !atomic_load_explicit(&rd->has_events, memory_order_relaxed);
}

/* Handles the datagrams in rx_buf up to and including the first that causes an event. */
static int rd_process_rx_buf(struct siw_rd *rd, struct siw_rd_event *event)
{
	int r = rd_next_event(rd, event);

	while (!r && rd->at < rd->end) {
		struct siw_rd_wire *wire = (struct siw_rd_wire *)(rd->rx_buf + rd->at);
		uint32_t len = rd->end - rd->at < rd->seg ? rd->end - rd->at : rd->seg;

		rd->at += len;
		if (rd_is_datagram_acceptable(rd, wire, len))
			rd_handle_datagram(rd, wire, len);
		r = rd_next_event(rd, event);
	}
	return r;
}

int siw_rd_recv(struct siw_rd *rd, struct siw_rd_event *event)
{
	bool called = rd_must_read_socket(rd);
	struct received in;
	int r, tries = 0;

	if (called)
		rd_receive_from_socket(rd, &in);
	siw_lock(&rd->lock);
	siw_rd_acknowledge_accepted_segment(rd);
	rd_finish_handled_event(rd);
	for (;;) {
		bool empty = called && !rd_note_received_datagrams(rd, &in);

		r = rd_process_rx_buf(rd, event);
		if (!r && empty) {
			rd_handle_empty_socket(rd);
			r = rd_next_event(rd, event);
		}
		if (r || empty)
			break;
		/* A flood of invalid datagrams must not starve the other sockets. */
		if (++tries > TRIES) {
			siw_llp_sock_resume(rd->sock);
			break;
		}
		siw_unlock(&rd->lock);
		rd_receive_from_socket(rd, &in);
		called = true;
		siw_lock(&rd->lock);
	}
	atomic_store_explicit(&rd->has_events,
			      !siw_link_empty(&rd->news) || !siw_link_empty(&rd->ready),
			      memory_order_relaxed);
	siw_unlock(&rd->lock);
	return r;
}
