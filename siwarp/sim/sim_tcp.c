/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_tcp.c - the functions of llp.h for TCP, on segments that sim_net.c carries.
 *
 * The sender splits its stream into segments, which the path's fault plan delays, loses, reorders
 * or duplicates like any packet. The receiver acknowledges every segment together with the number
 * of its transmission, which serves as selective acknowledgement. A segment is considered lost once
 * three segments sent after it have arrived, or after a retransmission time-out (RFC 6298, with
 * Linux's bounds). Data that arrives after a lost segment waits at the receiver, so that loss
 * causes delay and head-of-line blocking. A congestion window (RFC 5681) and the receiver's window
 * limit the data in flight.
 *
 * The seed decides where the stream is split and how many octets a read returns or a write accepts.
 *
 * The results of calls and their order, resets, half-closed connections, TIME-WAIT and the backlog
 * are as in Linux. Keepalive, delayed acknowledgements, urgent data and the detection of path MTU
 * black holes are not simulated.
 */
#include "base/capture.h"
#include "base/pieces.h"
#include "sim/sim_impl.h"

#define SEND_ROOM    (256u << 10) /* octets of a send buffer, a power of two */
#define RECEIVE_ROOM (256u << 10) /* octets of a receive buffer */
#define FIRST_ROOM   (16u << 10)  /* initial size of a send buffer */
#define HEADS_IPV4   52		  /* octets of IPv4 and TCP headers, with the time stamp option */
#define HEADS_IPV6   72
#define LEAST_MSS    48
#define FIRST_CWND   10 /* initial congestion window in segments (RFC 6928) */
#define REORDERING   3	/* later segments received before a segment counts as lost (RFC 5681) */
#define MOST_BACKLOG 4096
#define PORT_TRIES   100 /* free ports tried to find a port without a connection to the same peer */

#define MS	      1000000ull
#define SECOND	      1000000000ull
#define FIRST_RTO     SECOND /* initial retransmission time-out (RFC 6298) */
#define LEAST_RTO     (200 * MS)
#define MOST_RTO      (120 * SECOND)
#define SYN_LIMIT     (127 * SECOND) /* time-out of a connect: net.ipv4.tcp_syn_retries=6 */
#define SYN_ACK_LIMIT (63 * SECOND)  /* time-out of a SYN-ACK: net.ipv4.tcp_synack_retries=5 */
#define LIMIT	      (924600 * MS)  /* time-out of a connection: net.ipv4.tcp_retries2=15 */
#define CLOSED_LIMIT  (102200 * MS)  /* time-out after close: net.ipv4.tcp_orphan_retries=8 */
#define TIME_WAIT     (60 * SECOND)
/* On average, one of SHORT_..._IN segments, reads or writes is shorter than possible. */
#define SHORT_SEGMENT_IN 4
#define SHORT_READ_IN	 8
#define SHORT_WRITE_IN	 16

enum tcp_state {
	CONNECTING, /* SYN-SENT */
	ANSWERING,  /* SYN-RECEIVED */
	OPEN,
	CLOSED, /* includes TIME-WAIT, in which segments are still answered */
};

/* A sent segment that is not acknowledged, or acknowledged only selectively */
struct sent {
	struct siw_link link;
	uint64_t seq, at;
	uint64_t number; /* number of the segment's last transmission */
	uint32_t length; /* number of sequence numbers; SYN and FIN count as one each */
	uint8_t flags;
	bool arrived; /* the segment is acknowledged selectively */
	bool lost;    /* the segment must be retransmitted */
	bool again;   /* a retransmitted segment gives no round-trip sample */
};

struct sim_stream {
	struct sim_timer timer, reset;
	struct siw_link all;
	struct sim_stream *next; /* next stream in the hash bucket */
	bool listed;		 /* whether the stream is in its hash bucket */
	struct siw_link queue;	 /* link in the listener's list `coming` or `waiting` */
	struct siw_llp_sock *listener;
	struct siw_llp_sock *sock; /* NULL: the connection is not yet accepted, or is closed */
	struct sim_host *host;
	struct siw_addr local, peer;
	uint64_t id, peer_id;
	enum tcp_state state;
	bool active;  /* whether this end has opened the connection (by connect) */
	bool known;   /* whether the program knows that the connection is established */
	bool aborted; /* whether closing the socket sends a reset instead of a FIN */
	int error;    /* errno value that the next call returns */
	struct sim_flow out_flow, in_flow;
	/*
	 * Sending. Octet i of the stream has the sequence number i + 1, which is also its index in
	 * the ring, modulo the size of the ring.
	 */
	uint8_t *ring;
	uint32_t ring_room;
	/* sequence numbers: first unacknowledged, next to send, next to write */
	uint64_t una, nxt, end;
	uint64_t edge;		/* the right edge of the peer's window */
	bool shut;		/* the sending direction is shut down, and a FIN follows */
	struct siw_link flight; /* list of struct sent, the unacknowledged segments */
	uint64_t pipe;		/* sequence numbers in flight that are not lost */
	uint32_t n_lost;
	/* transmission numbers: the last number used, and the highest acknowledged number */
	uint64_t numbers, newest;
	uint64_t cwnd, ssthresh, recover;
	uint64_t srtt, rttvar;
	uint32_t backoff;
	/* last time at which the peer acknowledged data, or at which no data was unacknowledged */
	uint64_t progress;
	uint64_t rto_from;
	/* Receiving */
	struct siw_link early; /* list of out-of-order packets, in the order of sequence numbers */
	struct siw_link inbox;
	uint64_t rcv_nxt, read;	     /* read: number of octets that the program has read */
	uint32_t unread, inbox_read; /* inbox_read: octets read of the inbox's first packet */
	uint64_t advertised_edge;
	bool ended; /* the peer's FIN and all octets before the FIN have arrived */
};

static struct sent *sent_segment_of_list_node(struct siw_link *l)
{
	return siw_container(l, struct sent, link);
}

static struct sim_packet *packet_of_list_node(struct siw_link *l)
{
	return siw_container(l, struct sim_packet, link);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Returns a random length from 1 to length - 1 in one of n calls on average, otherwise length. */
static size_t random_part_length(size_t length, uint64_t n)
{
	if (length < 2 || sim_draw_random(&sim.tcp) % n)
		return length;
	return 1 + (size_t)(sim_draw_random(&sim.tcp) % (length - 1));
}

/* ---- lookup of connections by address -------------------------------------------------------- */

static struct sim_stream **stream_hash_bucket(const struct siw_addr *local,
					      const struct siw_addr *peer)
{
	uint64_t more = (uint64_t)sim_addr_hash_bucket(peer, 1) << 16;

	return &sim.streams_at[sim_addr_hash_bucket(local, more)];
}

static struct sim_stream *stream_find(const struct siw_addr *local, const struct siw_addr *peer)
{
	struct sim_stream *s = *stream_hash_bucket(local, peer);

	while (s && !(siw_addr_same(&s->local, local) && siw_addr_same(&s->peer, peer)))
		s = s->next;
	return s;
}

static void stream_add_to_bucket(struct sim_stream *s)
{
	struct sim_stream **at = stream_hash_bucket(&s->local, &s->peer);

	s->next = *at;
	*at = s;
	s->listed = true;
}

static void stream_remove_from_bucket(struct sim_stream *s)
{
	struct sim_stream **at = stream_hash_bucket(&s->local, &s->peer);

	if (!s->listed)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	s->listed = false;
}

static void stream_timer_fire(struct sim_timer *timer);
static void reset_connection_on_timer(struct sim_timer *timer);

static struct sim_stream *stream_new(struct sim_host *host, const struct siw_addr *local,
				     const struct siw_addr *peer)
{
	struct sim_stream *s = sim_alloc(sizeof(*s));

	s->host = host;
	s->local = *local;
	s->peer = *peer;
	s->id = ++sim.n_streams;
	s->out_flow.number = s->in_flow.number = (uint32_t)s->id;
	s->timer.fire = stream_timer_fire;
	s->reset.fire = reset_connection_on_timer;
	s->end = 1;
	s->ssthresh = UINT64_MAX;
	siw_link_init(&s->queue);
	siw_link_init(&s->flight);
	siw_link_init(&s->early);
	siw_link_init(&s->inbox);
	siw_link_add(&sim.streams, &s->all);
	stream_add_to_bucket(s);
	return s;
}

static void free_packets(struct siw_link *packets)
{
	while (!siw_link_empty(packets)) {
		struct sim_packet *packet = packet_of_list_node(packets->next);

		siw_link_del(&packet->link);
		sim_packet_free(packet);
	}
}

/* Stops sending and receiving on a connection. Received octets can still be read. */
static void stream_stop(struct sim_stream *s)
{
	s->state = CLOSED;
	sim_timer_stop(&s->timer);
	sim_timer_stop(&s->reset);
	while (!siw_link_empty(&s->flight)) {
		struct sent *sent = sent_segment_of_list_node(s->flight.next);

		siw_link_del(&sent->link);
		free(sent);
	}
	free_packets(&s->early);
	free(s->ring);
	s->ring = NULL;
	s->ring_room = 0;
	s->pipe = s->n_lost = 0;
	s->una = s->nxt = s->end;
}

static void stream_free(struct sim_stream *s)
{
	stream_stop(s);
	free_packets(&s->inbox);
	stream_remove_from_bucket(s);
	siw_link_del(&s->queue);
	siw_link_del(&s->all);
	free(s);
}

/* ---- readiness ------------------------------------------------------------------------------- */

static bool is_stream_writable(const struct sim_stream *s)
{
	return s->state == CLOSED || (s->state == OPEN && s->end - s->una <= SEND_ROOM / 3 * 2);
}

static void stream_mark_sock_ready(struct sim_stream *s)
{
	if (s->sock)
		siw_llp_sock_mark_ready(s->sock);
}

static void notify_if_writable(struct sim_stream *s)
{
	if (s->sock && s->sock->want_write && is_stream_writable(s))
		siw_llp_sock_mark_ready(s->sock);
}

/*
 * Ends a connection after a reset or a time-out. Frees s if s belongs neither to a socket nor to a
 * listener's queue of established connections.
 */
static void stream_end_with_error(struct sim_stream *s, int error)
{
	bool owned = s->sock || (s->listener && s->state != ANSWERING);

	stream_stop(s);
	stream_remove_from_bucket(s);
	s->error = error;
	if (owned)
		stream_mark_sock_ready(s);
	else
		stream_free(s);
}

/* ---- sending --------------------------------------------------------------------------------- */

static uint32_t stream_mss(const struct sim_stream *s)
{
	struct sim_host *to = sim_host_by_addr(&s->peer);
	uint32_t heads = s->local.family == AF_INET6 ? HEADS_IPV6 : HEADS_IPV4;
	uint32_t mtu = to ? sim_path_known_mtu(sim_path_find_or_create(s->host, to))
			  : s->host->netif.mtu;

	/* the MSS in the peer's SYN limits the segment size */
	if (to && to != s->host && mtu > to->netif.mtu)
		mtu = to->netif.mtu;
	mtu = (uint32_t)max_u64(mtu, heads + LEAST_MSS);
	return (uint32_t)min_u64(mtu - heads, SIW_CAPTURE_TCP_MAX);
}

/* Copies octets from the ring (write false) or to the ring (write true). */
static void ring_copy(struct sim_stream *s, uint64_t seq, uint8_t *octets, uint32_t length,
		      bool write)
{
	while (length) {
		uint32_t at = (uint32_t)seq & (s->ring_room - 1);
		uint32_t n = (uint32_t)min_u64(length, s->ring_room - at);

		if (write)
			memcpy(s->ring + at, octets, n);
		else
			memcpy(octets, s->ring + at, n);
		seq += n;
		octets += n;
		length -= n;
	}
}

static void stream_send_segment(struct sim_stream *s, struct sim_segment segment, uint32_t length)
{
	struct sim_host *to = sim_host_by_addr(&s->peer);
	struct sim_packet *packet;

	segment.from = s->id;
	segment.to = s->peer_id;
	segment.ack = s->rcv_nxt;
	segment.edge = s->advertised_edge = 1 + s->read + RECEIVE_ROOM;
	if (s->state != CONNECTING)
		segment.flags |= SIW_TCP_ACK;
	if (!to) { /* no host has the peer's address */
		sim.stats.lost++;
		sim.stats.segments++;
		return;
	}
	packet = sim_packet_new(sim_path_find_or_create(s->host, to), &s->local, &s->peer, length);
	packet->tcp = true;
	packet->segment = segment;
	ring_copy(s, segment.seq, packet->octets, length, false);
	sim_send_tcp_segment(packet);
}

static void send_ack(struct sim_stream *s, uint64_t number)
{
	stream_send_segment(s, (struct sim_segment){ .seq = s->nxt, .answers = number }, 0);
}

static void send_reset(struct sim_stream *s)
{
	stream_send_segment(s, (struct sim_segment){ .flags = SIW_TCP_RST, .seq = s->nxt }, 0);
}

/* Answers a segment of an unknown connection with a reset. */
static void answer_segment_with_reset(const struct sim_packet *packet, struct sim_host *host)
{
	struct sim_packet *reset;

	if (packet->segment.flags & SIW_TCP_RST)
		return;
	reset = sim_packet_new(sim_path_find_or_create(host, packet->path->from), &packet->to,
			       &packet->from, 0);
	reset->tcp = true;
	reset->segment = (struct sim_segment){
		.flags = SIW_TCP_RST | SIW_TCP_ACK,
		.from = packet->segment.to,
		.to = packet->segment.from,
		.seq = packet->segment.ack,
		.ack = packet->segment.seq,
	};
	sim_send_tcp_segment(reset);
}

static void transmit_segment(struct sim_stream *s, struct sent *sent)
{
	uint32_t marks = !!(sent->flags & SIW_TCP_SYN) + !!(sent->flags & SIW_TCP_FIN);

	s->n_lost -= sent->lost;
	sent->lost = false;
	sent->number = ++s->numbers;
	sent->at = sim.now;
	s->pipe += sent->length;
	stream_send_segment(s,
			    (struct sim_segment){ .flags = sent->flags,
						  .seq = sent->seq,
						  .number = sent->number },
			    sent->length - marks);
}

static struct sent *sent_segment_new(uint64_t seq, uint32_t length, uint8_t flags)
{
	struct sent *sent = sim_alloc(sizeof(*sent));

	sent->seq = seq;
	sent->length = length;
	sent->flags = flags;
	return sent;
}

static void transmit_new_segment(struct sim_stream *s, uint32_t length, uint8_t flags)
{
	struct sent *sent = sent_segment_new(s->nxt, length, flags);

	if (siw_link_empty(&s->flight))
		s->progress = s->rto_from = sim.now;
	siw_link_add(&s->flight, &sent->link);
	s->nxt += length;
	transmit_segment(s, sent);
}

/* Retransmits a segment, and splits the segment first if the path MTU has become too small. */
static void retransmit_segment(struct sim_stream *s, struct sent *sent, uint32_t mss)
{
	uint32_t fin = !!(sent->flags & SIW_TCP_FIN);

	if (sent->length > mss + fin) {
		struct sent *rest =
			sent_segment_new(sent->seq + mss, sent->length - mss, sent->flags);

		rest->again = rest->lost = true;
		s->n_lost++;
		sent->length = mss;
		sent->flags &= (uint8_t) ~(SIW_TCP_FIN | SIW_TCP_PSH);
		siw_link_add(sent->link.next, &rest->link);
	}
	sent->again = true;
	transmit_segment(s, sent);
}

static uint64_t stream_rto_ns(const struct sim_stream *s)
{
	uint64_t rto = s->srtt ? s->srtt + max_u64(4 * s->rttvar, LEAST_RTO) : FIRST_RTO;

	return s->backoff < 20 ? min_u64(rto << s->backoff, MOST_RTO) : MOST_RTO;
}

static bool is_fin_acked(const struct sim_stream *s)
{
	return s->shut && s->una == s->end + 1;
}

static void stream_arm_timer(struct sim_stream *s)
{
	if (s->state == CLOSED)
		return;
	if (!siw_link_empty(&s->flight) || s->nxt < s->end)
		sim_timer_set(&s->timer, max_u64(s->rto_from + stream_rto_ns(s), sim.now));
	else if (!s->sock && is_fin_acked(s)) /* FIN-WAIT-2, and the socket is closed */
		sim_timer_set(&s->timer, s->rto_from + TIME_WAIT);
	else
		sim_timer_stop(&s->timer);
}

static void retransmit_lost_segments(struct sim_stream *s, uint32_t mss)
{
	for (struct siw_link *l = s->flight.next; l != &s->flight && s->n_lost; l = l->next)
		if (sent_segment_of_list_node(l)->lost && s->pipe < s->cwnd)
			retransmit_segment(s, sent_segment_of_list_node(l), mss);
}

/* Sends as many octets as the congestion window and the peer's window permit. */
static void stream_send_within_windows(struct sim_stream *s)
{
	uint32_t mss = stream_mss(s);

	if (s->state == OPEN) {
		retransmit_lost_segments(s, mss);
		while (s->pipe < s->cwnd && !s->n_lost && s->nxt < s->end + s->shut) {
			uint64_t room = s->edge > s->nxt ? s->edge - s->nxt : 0;
			uint64_t length = min_u64(min_u64(mss, s->end - s->nxt), room);
			uint8_t flags = length ? SIW_TCP_PSH : 0;

			length = random_part_length(length, SHORT_SEGMENT_IN);
			if (s->shut && s->nxt + length == s->end) {
				flags |= SIW_TCP_FIN;
				length++;
			}
			if (!length)
				break;
			transmit_new_segment(s, (uint32_t)length, flags);
		}
	}
	stream_arm_timer(s);
}

/* Handles the expiry of the retransmission timer. */
static void stream_handle_rto_expiry(struct sim_stream *s)
{
	s->backoff++;
	s->rto_from = sim.now;
	if (siw_link_empty(&s->flight)) { /* the peer's window is closed, so send a window probe */
		stream_send_segment(s, (struct sim_segment){ .seq = s->nxt, .probe = true }, 0);
		stream_arm_timer(s);
		return;
	}
	if (s->state != OPEN) { /* retransmit the SYN or SYN-ACK */
		s->pipe = 0;
		sent_segment_of_list_node(s->flight.next)->again = true;
		transmit_segment(s, sent_segment_of_list_node(s->flight.next));
		stream_arm_timer(s);
		return;
	}
	for (struct siw_link *l = s->flight.next; l != &s->flight; l = l->next) {
		struct sent *sent = sent_segment_of_list_node(l);

		s->n_lost += !sent->arrived && !sent->lost;
		sent->lost |= !sent->arrived;
	}
	s->pipe = 0;
	s->ssthresh = max_u64(s->cwnd / 2, 2 * (uint64_t)stream_mss(s));
	s->cwnd = stream_mss(s);
	s->recover = s->una;
	stream_send_within_windows(s);
}

static uint64_t stream_timeout_ns(const struct sim_stream *s)
{
	if (s->state == CONNECTING)
		return SYN_LIMIT;
	if (s->state == ANSWERING)
		return s->active ? SYN_LIMIT : SYN_ACK_LIMIT;
	return s->sock || s->listener ? LIMIT : CLOSED_LIMIT;
}

static void stream_timer_fire(struct sim_timer *timer)
{
	struct sim_stream *s = siw_container(timer, struct sim_stream, timer);

	if (s->state == CLOSED) { /* TIME-WAIT is over */
		stream_remove_from_bucket(s);
		if (!s->sock && !s->listener)
			stream_free(s);
	} else if (siw_link_empty(&s->flight) && s->nxt >= s->end) {
		stream_free(s);
	} else if (sim.now - s->progress >= stream_timeout_ns(s)) {
		stream_end_with_error(s, ETIMEDOUT);
	} else {
		stream_handle_rto_expiry(s);
	}
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

static void stream_sample_rtt(struct sim_stream *s, const struct sent *sent)
{
	uint64_t rtt = sim.now - sent->at, off;

	if (sent->again)
		return;
	if (!s->srtt) {
		s->srtt = max_u64(rtt, 1);
		s->rttvar = rtt / 2;
		return;
	}
	off = rtt > s->srtt ? rtt - s->srtt : s->srtt - rtt;
	s->rttvar = (3 * s->rttvar + off) / 4;
	s->srtt = max_u64((7 * s->srtt + rtt) / 8, 1);
}

static void mark_sent_segment_arrived(struct sim_stream *s, struct sent *sent)
{
	if (sent->arrived)
		return;
	sent->arrived = true;
	if (sent->lost)
		s->n_lost--;
	else
		s->pipe -= sent->length;
	sent->lost = false;
	s->newest = max_u64(s->newest, sent->number);
	stream_sample_rtt(s, sent);
}

static void grow_congestion_window(struct sim_stream *s, uint64_t octets)
{
	if (s->una < s->recover)
		return;
	if (s->cwnd < s->ssthresh)
		s->cwnd += octets;
	else
		s->cwnd += max_u64(stream_mss(s) * octets / s->cwnd, 1);
	s->cwnd = min_u64(s->cwnd, 2 * (uint64_t)SEND_ROOM);
}

static void handle_cumulative_ack(struct sim_stream *s, uint64_t ack)
{
	uint64_t octets = ack - s->una;

	while (!siw_link_empty(&s->flight)) {
		struct sent *sent = sent_segment_of_list_node(s->flight.next);

		if (sent->seq + sent->length > ack)
			break;
		mark_sent_segment_arrived(s, sent);
		siw_link_del(&sent->link);
		free(sent);
	}
	s->una = ack;
	s->backoff = 0;
	s->progress = s->rto_from = sim.now;
	grow_congestion_window(s, octets);
}

static void mark_lost_segments(struct sim_stream *s)
{
	bool any = false;

	for (struct siw_link *l = s->flight.next; l != &s->flight; l = l->next) {
		struct sent *sent = sent_segment_of_list_node(l);

		if (sent->arrived || sent->lost || sent->number + REORDERING > s->newest)
			continue;
		sent->lost = any = true;
		s->pipe -= sent->length;
		s->n_lost++;
	}
	if (any && s->una >= s->recover) {
		s->cwnd = s->ssthresh = max_u64(s->cwnd / 2, 2 * (uint64_t)stream_mss(s));
		s->recover = s->nxt;
	}
}

static void handle_ack(struct sim_stream *s, const struct sim_segment *segment)
{
	if (segment->edge > s->edge && siw_link_empty(&s->flight))
		s->backoff = 0; /* end the backoff of window probes */
	s->edge = max_u64(s->edge, segment->edge);
	if (segment->ack > s->una && segment->ack <= s->nxt)
		handle_cumulative_ack(s, segment->ack);
	if (siw_link_empty(&s->flight)) { /* the segment is an answer to a window probe */
		s->progress = sim.now;
		return;
	}
	if (!segment->answers)
		return;
	for (struct siw_link *l = s->flight.next; l != &s->flight; l = l->next)
		if (sent_segment_of_list_node(l)->number == segment->answers) {
			mark_sent_segment_arrived(s, sent_segment_of_list_node(l));
			break;
		}
	mark_lost_segments(s);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void send_syn(struct sim_stream *s, enum tcp_state state)
{
	s->state = state;
	transmit_new_segment(s, 1, SIW_TCP_SYN);
	stream_arm_timer(s);
}

static void stream_set_established(struct sim_stream *s)
{
	struct siw_llp_sock *listener = s->listener;

	s->state = OPEN;
	s->cwnd = FIRST_CWND * (uint64_t)stream_mss(s);
	sim_trace_event(SIM_CONNECTED, &s->local, &s->peer, s->id, NULL);
	sim.stats.connections += s->active;
	stream_mark_sock_ready(s);
	if (!listener)
		return;
	siw_link_del(&s->queue);
	siw_link_add(&listener->waiting, &s->queue);
	listener->n_waiting++;
	if (!listener->held)
		siw_llp_sock_mark_ready(listener);
}

static void handle_syn_for_listener(struct sim_packet *packet, struct sim_host *host)
{
	struct siw_llp_sock *listener = sim_sock_find(SIM_LISTENER, &packet->to, host, NULL);
	struct sim_stream *s;

	if (!listener || listener->kind != SIM_LISTENER || host->dead) {
		sim.stats.refused++;
		answer_segment_with_reset(packet, host);
		return;
	}
	/* As Linux does, drop the SYN, which the peer retransmits. */
	if (listener->n_waiting > listener->backlog) {
		sim.stats.overflowed++;
		return;
	}
	s = stream_new(host, &packet->to, &packet->from);
	s->listener = listener;
	siw_link_add(&listener->coming, &s->queue);
	s->peer_id = packet->segment.from;
	s->edge = packet->segment.edge;
	s->rcv_nxt = 1;
	send_syn(s, ANSWERING);
}

static void handle_syn(struct sim_stream *s, const struct sim_segment *segment)
{
	if (segment->flags & SIW_TCP_ACK) {
		s->peer_id = segment->from;
		s->rcv_nxt = 1;
		s->state = ANSWERING;
		handle_ack(s, segment);
		stream_set_established(s);
		send_ack(s, segment->number);
		stream_send_within_windows(s);
		return;
	}
	/* Both ends have sent a SYN: a simultaneous open (RFC 9293 section 3.5). */
	s->peer_id = segment->from;
	s->edge = segment->edge;
	s->rcv_nxt = 1;
	s->state = ANSWERING;
	s->pipe = 0;
	transmit_segment(s, sent_segment_of_list_node(s->flight.next));
}

/*
 * Closes a connection if both directions have ended. by_fin: the peer's FIN arrived last. Otherwise
 * the acknowledgement of the local FIN arrived last, and there is no TIME-WAIT. Frees s if s
 * belongs to no socket.
 */
static void close_if_both_directions_ended(struct sim_stream *s, bool by_fin)
{
	if (s->state != OPEN || !s->ended || !is_fin_acked(s))
		return;
	stream_stop(s);
	notify_if_writable(s);
	if (by_fin) {
		sim_timer_set(&s->timer, sim.now + TIME_WAIT);
		return;
	}
	stream_remove_from_bucket(s);
	if (!s->sock && !s->listener)
		stream_free(s);
}

static void handle_reset(struct sim_stream *s)
{
	if (s->state == CLOSED) { /* a reset ends TIME-WAIT */
		sim_timer_set(&s->timer, sim.now);
		return;
	}
	stream_end_with_error(s, s->state == CONNECTING ? ECONNREFUSED
				 : s->ended		? EPIPE
							: ECONNRESET);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static uint32_t segment_sequence_length(const struct sim_packet *packet)
{
	uint8_t flags = packet->segment.flags;

	return packet->length + !!(flags & SIW_TCP_SYN) + !!(flags & SIW_TCP_FIN);
}

/* Adds a packet to the out-of-order packets, sorted by sequence number. */
static void add_out_of_order_packet(struct sim_stream *s, struct sim_packet *packet)
{
	struct siw_link *l = s->early.prev;

	while (l != &s->early && packet_of_list_node(l)->segment.seq > packet->segment.seq)
		l = l->prev;
	siw_link_add(l->next, &packet->link);
}

/* Moves the out-of-order packets that have become the next in order to the inbox. */
static void move_in_order_packets_to_inbox(struct sim_stream *s)
{
	while (!siw_link_empty(&s->early)) {
		struct sim_packet *packet = packet_of_list_node(s->early.next);
		uint64_t behind = packet->segment.seq + segment_sequence_length(packet), skip;

		if (packet->segment.seq > s->rcv_nxt)
			return;
		siw_link_del(&packet->link);
		if (behind <= s->rcv_nxt) {
			sim_packet_free(packet);
			continue;
		}
		skip = s->rcv_nxt - packet->segment.seq;
		s->ended |= (packet->segment.flags & SIW_TCP_FIN) != 0;
		s->rcv_nxt = behind;
		if (skip >= packet->length) {
			sim_packet_free(packet);
			continue;
		}
		if (skip) {
			memmove(packet->octets, packet->octets + skip, packet->length - skip);
			packet->length -= (uint32_t)skip;
		}
		s->unread += packet->length;
		siw_link_add(&s->inbox, &packet->link);
	}
}

/* Handles a segment with octets or a FIN. Returns whether it took ownership of the packet. */
static bool handle_data(struct sim_stream *s, struct sim_packet *packet)
{
	uint64_t behind = packet->segment.seq + segment_sequence_length(packet),
		 number = packet->segment.number;
	uint32_t unread = s->unread;
	bool ended = s->ended;

	if (behind <= s->rcv_nxt || behind > 2 + s->read + RECEIVE_ROOM) {
		send_ack(s, number);
		return false;
	}
	/* Data for a closed socket resets the connection. */
	if (!s->sock && !s->listener && packet->length) {
		send_reset(s);
		stream_end_with_error(s, ECONNRESET);
		return false;
	}
	add_out_of_order_packet(s, packet);
	move_in_order_packets_to_inbox(s);
	send_ack(s, number);
	if (s->sock && ((s->unread > unread && !s->sock->held) || s->ended != ended))
		siw_llp_sock_mark_ready(s->sock);
	if (s->ended != ended)
		close_if_both_directions_ended(s, true);
	return true;
}

/*
 * Handles a segment of a known connection other than the first SYN. Returns true if the function
 * took ownership of the packet, false if the caller has to free the packet.
 */
static bool handle_segment(struct sim_stream *s, struct sim_packet *packet)
{
	const struct sim_segment segment = packet->segment;
	uint64_t una = s->una;

	/* the peer retransmits its FIN in TIME-WAIT, because the last acknowledgement was lost */
	if (s->state == CLOSED) {
		if (segment_sequence_length(packet))
			send_ack(s, segment.number);
		return false;
	}
	handle_ack(s, &segment);
	if (s->state == ANSWERING && s->una)
		stream_set_established(s);
	if (s->state != OPEN)
		return false;
	stream_send_within_windows(s);
	if (s->una != una) {
		notify_if_writable(s);
		if (s->ended && is_fin_acked(s)) {
			close_if_both_directions_ended(s, false);
			return false;
		}
	}
	if (segment.probe || segment.flags & SIW_TCP_SYN)
		send_ack(s, segment.number);
	else if (segment_sequence_length(packet))
		return handle_data(s, packet);
	return false;
}

void sim_tcp_deliver(struct sim_packet *packet, struct sim_host *host)
{
	const struct sim_segment *segment = &packet->segment;
	struct sim_stream *s = stream_find(&packet->to, &packet->from);
	bool syn = segment->flags & SIW_TCP_SYN, ours;

	sim_trace_tcp_segment(SIM_SEGMENT_DELIVERED, packet);
	sim_capture_tcp_segment(host, false, packet);
	/* A SYN of a new connection replaces a connection in TIME-WAIT. */
	if (s && syn && s->state == CLOSED && segment->from != s->peer_id) {
		sim_timer_stop(&s->timer);
		stream_remove_from_bucket(s);
		if (!s->sock && !s->listener)
			stream_free(s);
		s = NULL;
	}
	ours = s && (segment->to == s->id || (!segment->to && segment->from == s->peer_id));
	if (segment->flags & SIW_TCP_RST) {
		if (ours)
			handle_reset(s);
	} else if (!s && syn && !(segment->flags & SIW_TCP_ACK)) {
		handle_syn_for_listener(packet, host);
	} else if (s && syn && s->state == CONNECTING && (ours || !segment->to)) {
		handle_syn(s, segment);
	} else if (ours && syn && s->state == ANSWERING && !segment->to) {
		s->pipe = 0; /* the peer retransmits its SYN, because the SYN-ACK was lost */
		transmit_segment(s, sent_segment_of_list_node(s->flight.next));
	} else if (ours) {
		if (handle_segment(s, packet))
			return;
	} else if (s && syn && s->state != CONNECTING) {
		send_ack(s, 0); /* the peer, which does not know the connection, resets it */
	} else {
		answer_segment_with_reset(packet, host);
	}
	sim_packet_free(packet);
}

static void reset_connection_on_timer(struct sim_timer *timer)
{
	struct sim_stream *s = siw_container(timer, struct sim_stream, reset);

	siw_count(SIW_COUNTER_fault_reset, 1);
	send_reset(s);
	free_packets(&s->inbox);
	s->unread = 0;
	stream_end_with_error(s, ECONNRESET);
}

/* ---- listeners ------------------------------------------------------------------------------- */

int siw_llp_tcp_reserve_port(struct siw_addr *local, bool v6_only)
{
	return sim_reserve_port(SIM_LISTENER, local, v6_only);
}

int siw_llp_tcp_listen(struct siw_llp_poller *poller, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	struct siw_llp_sock *sock = sim_alloc(sizeof(*sock));

	sim_sock_init(sock, poller, SIM_LISTENER, handler);
	siw_link_init(&sock->coming);
	siw_link_init(&sock->waiting);
	sock->backlog = backlog < 0 || backlog > MOST_BACKLOG ? MOST_BACKLOG : (uint32_t)backlog;
	return sim_sock_bind_or_free(sock, local, false, out);
}

static void close_listener(struct siw_llp_sock *sock)
{
	struct siw_link *lists[] = { &sock->coming, &sock->waiting };

	for (int i = 0; i < 2; i++)
		while (!siw_link_empty(lists[i])) {
			struct sim_stream *s =
				siw_container(lists[i]->next, struct sim_stream, queue);

			if (s->state != CLOSED)
				send_reset(s);
			stream_free(s);
		}
}

int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out)
{
	struct siw_llp_sock *sock;
	struct sim_stream *s;

	if (siw_link_empty(&listener->waiting)) {
		sim_sock_clear_ready(listener);
		return -EAGAIN;
	}
	s = siw_container(listener->waiting.next, struct sim_stream, queue);
	siw_link_del(&s->queue);
	listener->n_waiting--;
	sock = sim_alloc(sizeof(*sock));
	sim_sock_init(sock, listener->poller, SIM_STREAM_SOCK, handler);
	/* The accepted socket is not bound, because it uses the listener's port. */
	sock->host = s->host;
	sock->local = s->local;
	sock->stream = s;
	s->listener = NULL;
	s->sock = sock;
	s->known = true;
	if (s->unread || s->ended || s->state == CLOSED)
		siw_llp_sock_mark_ready(sock);
	*out = sock;
	return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static const struct siw_addr *host_first_addr(const struct sim_host *host, uint16_t family)
{
	for (uint32_t i = 0; i < host->netif.n_addrs; i++)
		if (host->netif.addrs[i].family == family)
			return &host->netif.addrs[i];
	return NULL;
}

/* Stores the source address for connections from a host to dest in *local. */
static int choose_source_addr(struct sim_host *host, const struct siw_addr *dest,
			      struct siw_addr *local)
{
	const struct siw_addr *own;
	uint16_t port_be = local->port_be;

	if (!host)
		return -ENETUNREACH;
	own = sim_host_by_addr(dest) == host ? dest : host_first_addr(host, dest->family);
	if (!own)
		return -ENETUNREACH;
	*local = *own;
	local->port_be = port_be;
	return 0;
}

/*
 * Binds a socket to *local for a connection to dest (NULL: to the socket itself), and stores the
 * addresses of both ends. Returns 0, -EADDRINUSE or -EADDRNOTAVAIL.
 */
static int bind_socket_and_store_addresses(struct siw_llp_sock *sock, const struct siw_addr *dest,
					   struct siw_addr *local, struct siw_addr *peer)
{
	bool any_port = !local->port_be;

	for (int tries = 0; tries < PORT_TRIES; tries++) {
		int rv = sim_sock_bind(sock, local, false);

		if (rv)
			return rv;
		*peer = dest ? *dest : *local;
		if (sim_addr_is_any(peer)) { /* as in Linux, the wildcard address means this host */
			*peer = *local;
			peer->port_be = dest ? dest->port_be : local->port_be;
		}
		peer->scope = 0;
		if (!stream_find(local, peer))
			return 0;
		/*
		 * Another connection, which is in TIME-WAIT or was accepted by a listener, uses the
		 * same pair of addresses.
		 */
		if (!any_port)
			return -EADDRINUSE;
		sim_sock_unbind(sock);
		local->port_be = 0;
	}
	return -EADDRNOTAVAIL;
}

/* Opens a socket and connects the socket to dest; NULL: to itself. */
static int connect_stream(struct siw_llp_poller *poller, const struct siw_addr *dest,
			  struct siw_addr local, struct siw_io_handler *handler,
			  struct siw_llp_sock **out)
{
	struct siw_llp_sock *sock = sim_alloc(sizeof(*sock));
	struct siw_addr peer;
	int rv;

	sim_sock_init(sock, poller, SIM_STREAM_SOCK, handler);
	rv = bind_socket_and_store_addresses(sock, dest, &local, &peer);
	if (rv) {
		sim_sock_fini(sock);
		free(sock);
		return rv;
	}
	sock->stream = stream_new(sock->host, &local, &peer);
	sock->stream->sock = sock;
	sock->stream->active = true;
	send_syn(sock->stream, CONNECTING);
	*out = sock;
	return 0;
}

int siw_llp_tcp_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out)
{
	struct siw_addr local = { .family = dest->family };
	int rv = 0;

	if (dest->family != AF_INET && dest->family != AF_INET6)
		return -EAFNOSUPPORT;
	if (source)
		local = *source;
	if (local.family != dest->family)
		return -EAFNOSUPPORT;
	if (siw_addr_is_group(dest))
		return -ENETUNREACH;
	if (sim_addr_is_any(&local))
		rv = choose_source_addr(poller->host, dest, &local);
	return rv ? rv : connect_stream(poller, dest, local, handler, out);
}

int siw_llp_tcp_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
				  struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	struct siw_addr own = *local;
	int rv = sim_addr_is_any(local) ? choose_source_addr(poller->host, local, &own) : 0;

	return rv ? rv : connect_stream(poller, NULL, own, handler, out);
}

int siw_llp_tcp_connect_result(struct siw_llp_sock *sock)
{
	struct sim_stream *s = sock->stream;

	if (s->known)
		return 0;
	if (s->error) {
		sim_sock_clear_ready(sock);
		return -s->error;
	}
	if (s->state != OPEN) {
		sim_sock_clear_ready(sock);
		return -EAGAIN;
	}
	s->known = true;
	return 0;
}

void siw_llp_tcp_set_tos(struct siw_llp_sock *sock, int tos)
{
	(void)sock, (void)tos; /* the simulated network ignores the type of service */
}

/* ---- reading and writing --------------------------------------------------------------------- */

static int take_pending_error(struct sim_stream *s, int otherwise)
{
	int error = s->error ? s->error : otherwise;

	s->error = 0;
	return -error;
}

/*
 * Returns the number of octets that a call may move according to the path's fault plan; 0: the plan
 * has reset the connection.
 */
static size_t stream_octets_allowed_by_fault_plan(struct sim_stream *s, bool sends, size_t length)
{
	struct sim_host *peer = sim_host_by_addr(&s->peer);
	size_t planned;
	uint64_t reset_at;

	if (!peer || !length || s->state != OPEN)
		return length;
	planned = sim_path_allowed_stream_octets(sends ? sim_path_find_or_create(s->host, peer)
						       : sim_path_find_or_create(peer, s->host),
						 sends ? &s->out_flow : &s->in_flow,
						 sends ? &s->peer : &s->local, length, &reset_at);
	if (planned && (!s->reset.place || s->reset.at > reset_at) && reset_at != SIM_NEVER)
		sim_timer_set(&s->reset, reset_at);
	if (!planned)
		reset_connection_on_timer(&s->reset);
	if (planned < length)
		siw_count(SIW_COUNTER_fault_short, planned > 0);
	return planned;
}

/* Grows the send ring so that `more` octets fit. */
static void grow_send_ring(struct sim_stream *s, size_t more)
{
	uint64_t from = max_u64(s->una, 1);
	size_t need = (size_t)(s->end - from) + more;
	uint32_t room = s->ring_room ? s->ring_room : FIRST_ROOM;
	struct sim_stream larger = { .ring_room = 0 };

	while (room < need)
		room *= 2;
	if (room == s->ring_room)
		return;
	larger.ring = sim_alloc(room);
	larger.ring_room = room;
	for (uint64_t seq = from; seq < s->end;) {
		uint32_t at = (uint32_t)seq & (s->ring_room - 1);
		uint32_t n = (uint32_t)min_u64(s->ring_room - at, s->end - seq);

		ring_copy(&larger, seq, s->ring + at, n, true);
		seq += n;
	}
	free(s->ring);
	s->ring = larger.ring;
	s->ring_room = room;
}

/* Copies the program's octets into the send ring. Returns 0 or -EFAULT. */
static int copy_to_send_ring(struct sim_stream *s, const struct iovec *iov, size_t length)
{
	uint64_t seq = s->end;
	size_t left = length;

	grow_send_ring(s, length);
	for (; left; iov++) {
		size_t done = 0, here = min_u64(iov->iov_len, left);

		while (done < here) {
			uint32_t at = (uint32_t)(seq + done) & (s->ring_room - 1);
			size_t n = min_u64(here - done, s->ring_room - at);

			if (siw_guard_read(s->ring + at, (const uint8_t *)iov->iov_base + done, n))
				return -EFAULT;
			done += n;
		}
		seq += here;
		left -= here;
	}
	s->end += length;
	return 0;
}

static ssize_t count_send_error(int rv)
{
	siw_count(SIW_COUNTER_send_errors, 1);
	return rv;
}

ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	struct sim_stream *s = sock->stream;
	size_t all = siw_iov_octets(iov, n), length;
	uint64_t room;

	if (s->error || s->shut || s->state == CLOSED)
		return count_send_error(take_pending_error(s, EPIPE));
	room = s->state == OPEN ? SEND_ROOM - (s->end - s->una) : 0;
	if (!room) {
		sock->want_write = true;
		siw_count(SIW_COUNTER_tx_eagain, 1);
		return -EAGAIN;
	}
	length = stream_octets_allowed_by_fault_plan(s, true, min_u64(all, room));
	if (all && !length)
		return count_send_error(take_pending_error(s, ECONNRESET));
	length = random_part_length(length, SHORT_WRITE_IN);
	if (copy_to_send_ring(s, iov, length))
		return count_send_error(-EFAULT);
	s->out_flow.state.octets += length;
	stream_send_within_windows(s);
	return (ssize_t)length;
}

/* Copies received octets to the program's buffers. Returns 0 or -EFAULT. */
static int copy_from_inbox(const struct sim_stream *s, const struct iovec *iov, size_t length)
{
	struct siw_link *l = s->inbox.next;
	size_t from = s->inbox_read, to = 0;

	while (length) {
		const struct sim_packet *packet = packet_of_list_node(l);
		size_t n = min_u64(min_u64(packet->length - from, iov->iov_len - to), length);

		if (n && siw_guard_write((uint8_t *)iov->iov_base + to, packet->octets + from, n))
			return -EFAULT;
		length -= n;
		from += n;
		to += n;
		if (from == packet->length) {
			l = l->next;
			from = 0;
		}
		if (to == iov->iov_len) {
			iov++;
			to = 0;
		}
	}
	return 0;
}

static void consume_read_octets(struct sim_stream *s, size_t length)
{
	s->unread -= (uint32_t)length;
	s->read += length;
	for (length += s->inbox_read; !siw_link_empty(&s->inbox);) {
		struct sim_packet *packet = packet_of_list_node(s->inbox.next);

		if (length < packet->length)
			break;
		length -= packet->length;
		siw_link_del(&packet->link);
		sim_packet_free(packet);
	}
	s->inbox_read = (uint32_t)length;
	/*
	 * As Linux does, send a window update only when the window has grown by a quarter of the
	 * buffer.
	 */
	if (s->state == OPEN && !s->ended &&
	    1 + s->read + RECEIVE_ROOM - s->advertised_edge >= RECEIVE_ROOM / 4)
		send_ack(s, 0);
}

ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	struct sim_stream *s = sock->stream;
	size_t length = min_u64(siw_iov_octets(iov, n), s->unread);

	if (length)
		length = stream_octets_allowed_by_fault_plan(s, false, length);
	if (s->unread && length) {
		length = random_part_length(length, SHORT_READ_IN);
		if (copy_from_inbox(s, iov, length))
			return -EFAULT;
		consume_read_octets(s, length);
		return (ssize_t)length;
	}
	if (s->unread && s->state == OPEN)
		return 0; /* the program's buffers have no room for a single octet */
	sim_sock_clear_ready(sock);
	if (s->error && !s->ended)
		return take_pending_error(s, 0);
	return s->ended || s->state == CLOSED ? 0 : -EAGAIN;
}

int siw_llp_tcp_emss(struct siw_llp_sock *sock)
{
	return (int)stream_mss(sock->stream);
}

bool siw_llp_tcp_is_closed(struct siw_llp_sock *sock)
{
	return sock->stream->state == CLOSED;
}

int siw_llp_tcp_shutdown(struct siw_llp_sock *sock)
{
	struct sim_stream *s = sock->stream;

	if (s->state == CLOSED)
		return -ENOTCONN;
	if (s->state == CONNECTING) { /* as in Linux, shutdown ends the connection attempt */
		stream_end_with_error(s, 0);
		return 0;
	}
	s->shut = true;
	stream_send_within_windows(s);
	return 0;
}

void siw_llp_tcp_set_abortive_close(struct siw_llp_sock *sock)
{
	sock->stream->aborted = true;
}

int siw_llp_peer_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	const struct sim_stream *s = sock->stream;

	if (!s || s->state == CONNECTING || s->state == CLOSED)
		return -ENOTCONN;
	*out = s->peer;
	return 0;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void close_stream(struct sim_stream *s)
{
	s->sock = NULL;
	if (s->state == CLOSED && s->listed) { /* TIME-WAIT continues without the socket */
		free_packets(&s->inbox);
		s->unread = 0;
		return;
	}
	if (s->state == CLOSED || s->state == CONNECTING) {
		stream_free(s);
		return;
	}
	if (s->aborted || s->unread || s->state == ANSWERING) {
		send_reset(s);
		stream_free(s);
		return;
	}
	s->shut = true;
	if (siw_link_empty(&s->flight))
		s->rto_from = sim.now;
	stream_send_within_windows(s);
}

void siw_llp_close(struct siw_llp_sock *sock)
{
	if (!sock)
		return;
	if (sock->kind == SIM_LISTENER)
		close_listener(sock);
	if (sock->stream)
		close_stream(sock->stream);
	sim_sock_fini(sock);
	free(sock);
}

void siw_llp_update_want_write(struct siw_llp_sock *sock, bool want)
{
	sock->want_write = want;
	if (want && !sock->room.place && (!sock->stream || is_stream_writable(sock->stream)))
		siw_llp_sock_mark_ready(sock);
}

/*
 * Closes the stream of a killed process. The socket gets a substitute stream, on which later calls
 * fail with ECONNRESET.
 */
static void close_stream_of_killed_process(struct sim_stream *s)
{
	struct siw_llp_sock *sock = s->sock;
	struct sim_stream *rest = stream_new(s->host, &s->local, &s->peer);

	stream_remove_from_bucket(rest);
	rest->state = CLOSED;
	rest->error = ECONNRESET;
	rest->sock = sock;
	sock->stream = rest;
	close_stream(s);
	siw_llp_sock_mark_ready(sock);
}

void sim_tcp_close_host_streams(const struct sim_host *host)
{
	struct siw_link *next;

	for (struct siw_link *l = sim.streams.next; l != &sim.streams; l = next) {
		struct sim_stream *s = siw_container(l, struct sim_stream, all);

		next = l->next;
		if (s->host != host || s->state == CLOSED)
			continue;
		if (s->sock) {
			close_stream_of_killed_process(s);
		} else if (s->listener) {
			send_reset(s);
			stream_end_with_error(s, ECONNRESET);
		}
	}
}

void sim_tcp_free_streams(void)
{
	while (!siw_link_empty(&sim.streams))
		stream_free(siw_container(sim.streams.next, struct sim_stream, all));
}
