/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_capture.c - converts the octets that pass a socket into the packets of a capture, with
 * addresses, interface and TCP sequence numbers.
 *
 * base/capture.c writes the pcapng file. This file adds Ethernet, IP and TCP or UDP headers to the
 * octets. While no capture runs, the cost is one relaxed load and a branch per system call. While a
 * capture runs, a lock is held from the system call until its packet is written, so no response
 * precedes its request in the file.
 *
 * Each system call is written as one TCP segment. Initial sequence numbers are computed from the
 * addresses, so that the captures of both ends agree. If both ends are in one process, octets are
 * written once, when they are sent. The block of a received datagram has room for a comment, which
 * siw_drop(counter) fills in. With a fault plan the file shows the packets that passed the socket.
 * The file does not show what a socket cannot observe: retransmissions, fragments, the peer's
 * acknowledgements and link-layer addresses.
 */
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "llp/llp_capture.h"

/* The capture state of a socket. Protected by the capture's lock. */
struct siw_llp_capture {
	uint32_t generation; /* the capture to which the other members belong */
	int interface;
	struct siw_addr local, peer;
	/* next TCP sequence number of each direction, indexed by THEIRS and OURS */
	uint32_t next[2];
	bool ended[2];
	/*
	 * If both ends of a connection are in this process, twin is the other end's state. known is
	 * the peer's next sequence number according to the twin: octets below it are already in the
	 * file.
	 */
	struct siw_llp_capture *twin;
	bool has_known;
	uint32_t known;
	struct siw_link all; /* in streams, the list of the TCP sockets with capture state */
};

static struct siw_link streams = { &streams, &streams };

enum { THEIRS, OURS };

static bool is_wildcard_address(const struct siw_addr *a)
{
	static const uint8_t zero[16];

	return a->family == AF_INET ? !memcmp(a->v4, zero, 4) : !memcmp(a->v6, zero, 16);
}

/*
 * Determines, for a socket bound to the wildcard address, the address from which this host sends to
 * the peer.
 */
static void capture_look_up_source_addr(struct siw_addr *local, const struct siw_addr *peer)
{
	struct siw_addr route;

	if (siw_llp_source_addr_for_dest(peer, &route))
		return;
	route.port_be = local->port_be;
	*local = route;
}

static bool is_same_host(struct siw_addr a, struct siw_addr b)
{
	a.port_be = b.port_be = 0;
	return siw_addr_same(&a, &b) ||
	       /* all of 127.0.0.0/8 belongs to the loopback interface */
	       (a.family == AF_INET && b.family == AF_INET && a.v4[0] == 127 && b.v4[0] == 127);
}

/*
 * Returns the number, in the capture file, of the interface that has this address or joined this
 * group.
 */
static int capture_interface_index(const struct siw_llp_sock *sock, const struct siw_addr *local)
{
	static struct siw_llp_interface all[64];
	char name[IF_NAMESIZE];
	int i, n;

	if (sock->ifindex && if_indextoname(sock->ifindex, name))
		return siw_capture_find_or_add_interface(name);
	n = siw_llp_list_interfaces(all, 64);
	for (i = 0; i < n; i++)
		for (uint32_t j = 0; j < all[i].n_addrs; j++)
			if (is_same_host(all[i].addrs[j], *local))
				return siw_capture_find_or_add_interface(all[i].name);
	return siw_capture_find_or_add_interface("unknown");
}

/*
 * Returns an initial sequence number that both ends compute alike, so that two captures, or both
 * ends of a connection in one process, show the same connection.
 */
static uint32_t initial_sequence_number(const struct siw_addr *from, const struct siw_addr *to)
{
	const struct siw_addr *ends[2] = { from, to };
	uint32_t hash = 2166136261u;

	for (int i = 0; i < 2; i++) {
		const struct siw_addr *a = ends[i];
		const uint8_t *ip = a->family == AF_INET ? a->v4 : a->v6;

		for (int j = 0; j < (a->family == AF_INET ? 4 : 16); j++)
			hash = (hash ^ ip[j]) * 16777619u;
		hash = (hash ^ siw_addr_port(a)) * 16777619u;
	}
	return hash;
}

static void capture_state_reset(struct siw_llp_capture *capture)
{
	if (capture->twin)
		capture->twin->twin = NULL;
	capture->twin = NULL;
	if (capture->all.next)
		siw_link_del(&capture->all);
}

static void link_captures_of_both_ends(struct siw_llp_capture *capture)
{
	for (struct siw_link *l = streams.next; l != &streams; l = l->next) {
		struct siw_llp_capture *other = siw_container(l, struct siw_llp_capture, all);

		if (other->generation == capture->generation && !other->twin &&
		    siw_addr_same(&other->local, &capture->peer) &&
		    siw_addr_same(&other->peer, &capture->local)) {
			capture->twin = other;
			other->twin = capture;
			capture->known = other->next[OURS];
			capture->has_known = true;
			/*
			 * If the capture began in the middle of the stream, octets that were in
			 * flight at that time may be missing from the file.
			 */
			break;
		}
	}
	siw_link_add(&streams, &capture->all);
}

/*
 * Returns the socket's state for the running capture, or NULL without a capture. *fresh: the state
 * was just created.
 */
static struct siw_llp_capture *get_or_create_sock_capture(struct siw_llp_sock *sock, bool *fresh)
{
	uint32_t generation = siw_capture_current_file_number();
	struct siw_llp_capture *capture = sock->capture;

	*fresh = false;
	if (!generation)
		return NULL;
	if (!capture)
		sock->capture = capture = calloc(1, sizeof(*capture));
	if (!capture || capture->generation == generation)
		return capture;
	capture_state_reset(capture);
	memset(capture, 0, sizeof(*capture));
	siw_link_init(&capture->all);
	if (siw_llp_local_addr(sock, &capture->local))
		return NULL;
	capture->generation = generation;
	*fresh = true;
	return capture;
}

static void set_captured_peer(struct siw_llp_sock *sock, struct siw_llp_capture *capture,
			      const struct siw_addr *peer)
{
	capture->peer = *peer;
	if (sock->udp) {
		struct siw_addr bound;

		if (siw_llp_local_addr(sock, &bound) == 0)
			capture->local = bound;
		if (is_wildcard_address(&capture->local))
			capture_look_up_source_addr(&capture->local, peer);
	}
	capture->interface = capture_interface_index(sock, &capture->local);
}

void siw_llp_capture_datagram(struct siw_llp_sock *sock, uint64_t when, bool sent,
			      const struct siw_addr *peer, const struct iovec *iov, size_t skip,
			      size_t length, size_t missing)
{
	int saved = errno;
	bool fresh;
	struct siw_llp_capture *capture = get_or_create_sock_capture(sock, &fresh);

	if (capture) {
		struct siw_capture_packet packet = {
			.when_ns = when,
			.sent = sent,
			.iov = iov,
			.skip = skip,
			.length = length,
			.missing = missing,
		};

		if (fresh || !siw_addr_same(&capture->peer, peer))
			set_captured_peer(sock, capture, peer);
		packet.interface = capture->interface;
		packet.source = sent ? capture->local : capture->peer;
		packet.dest = sent ? capture->peer : capture->local;
		siw_capture_write(&packet);
	}
	errno = saved;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

static struct siw_llp_capture *get_stream_capture_state(struct siw_llp_sock *sock)
{
	bool fresh;
	struct siw_addr peer;
	struct siw_llp_capture *capture = get_or_create_sock_capture(sock, &fresh);

	if (!capture || !fresh)
		return capture;
	if (siw_llp_peer_addr(sock, &peer)) {
		capture->generation = 0; /* so that the next call tries again */
		return NULL;
	}
	set_captured_peer(sock, capture, &peer);
	/* A SYN uses one sequence number. */
	capture->next[OURS] = initial_sequence_number(&capture->local, &capture->peer) + 1;
	capture->next[THEIRS] = initial_sequence_number(&capture->peer, &capture->local) + 1;
	link_captures_of_both_ends(capture);
	return capture;
}

/* Writes a segment of one direction and advances that direction's sequence number. */
static void capture_write_segment(struct siw_llp_capture *capture, uint64_t when, int who,
				  uint8_t flags, const struct iovec *iov, size_t skip,
				  size_t length)
{
	struct siw_capture_packet packet = {
		.when_ns = when,
		.interface = capture->interface,
		.sent = who == OURS,
		.tcp = true,
		.flags = flags,
		.seq = capture->next[who],
		.ack = capture->next[!who],
		.source = who == OURS ? capture->local : capture->peer,
		.dest = who == OURS ? capture->peer : capture->local,
		.iov = iov,
		.skip = skip,
		.length = length,
	};

	capture->next[who] += (uint32_t)length + !!(flags & SIW_TCP_SYN) + !!(flags & SIW_TCP_FIN);
	/* Sequence numbers are compared by their difference, because they wrap. */
	if (who == THEIRS && capture->has_known &&
	    (int32_t)(capture->known - capture->next[THEIRS]) >= 0)
		return;
	siw_capture_write(&packet);
	if (who == OURS && capture->twin) {
		capture->twin->known = capture->next[OURS];
		capture->twin->has_known = true;
	}
}

void siw_llp_capture_tcp_handshake(struct siw_llp_sock *sock, uint64_t when, bool initiator)
{
	int saved = errno, first = initiator ? OURS : THEIRS;
	struct siw_llp_capture *capture = get_stream_capture_state(sock);

	if (capture && !capture->twin) {
		capture->next[OURS]--;
		capture->next[THEIRS]--;
		capture_write_segment(capture, when, first, SIW_TCP_SYN, NULL, 0, 0);
		capture_write_segment(capture, when, !first, SIW_TCP_SYN | SIW_TCP_ACK, NULL, 0, 0);
		capture_write_segment(capture, when, first, SIW_TCP_ACK, NULL, 0, 0);
	}
	errno = saved;
}

void siw_llp_capture_stream_octets(struct siw_llp_sock *sock, uint64_t when, bool sent,
				   const struct iovec *iov, size_t length)
{
	int saved = errno;
	struct siw_llp_capture *capture = get_stream_capture_state(sock);
	size_t at, n;

	for (at = 0; capture && at < length; at += n) {
		n = length - at < SIW_CAPTURE_TCP_MAX ? length - at : SIW_CAPTURE_TCP_MAX;
		capture_write_segment(capture, when, sent ? OURS : THEIRS,
				      SIW_TCP_PSH | SIW_TCP_ACK, iov, at, n);
	}
	errno = saved;
}

void siw_llp_capture_stream_end(struct siw_llp_sock *sock, uint64_t when, bool sent, bool reset)
{
	int saved = errno, who = sent ? OURS : THEIRS;
	struct siw_llp_capture *capture = get_stream_capture_state(sock);

	if (capture && reset && !(capture->ended[0] && capture->ended[1])) {
		capture_write_segment(capture, when, who, SIW_TCP_RST | SIW_TCP_ACK, NULL, 0, 0);
		capture->ended[0] = capture->ended[1] = true;
	} else if (capture && !capture->ended[who]) {
		capture_write_segment(capture, when, who, SIW_TCP_FIN | SIW_TCP_ACK, NULL, 0, 0);
		capture_write_segment(capture, when, !who, SIW_TCP_ACK, NULL, 0, 0);
		capture->ended[who] = true;
	}
	errno = saved;
}

void siw_llp_capture_tcp_handshake_locking(struct siw_llp_sock *sock, bool initiator)
{
	siw_llp_capture_tcp_handshake(sock, siw_capture_lock(), initiator);
	siw_capture_unlock();
}

void siw_llp_capture_stream_end_locking(struct siw_llp_sock *sock, bool sent, bool reset)
{
	siw_llp_capture_stream_end(sock, siw_capture_lock(), sent, reset);
	siw_capture_unlock();
}

void siw_llp_capture_socket_close(struct siw_llp_sock *sock)
{
	/*
	 * In a forked child the parent shares the socket, so closing it does not end the
	 * connection.
	 */
	if (siw_capture_on() && sock->kind == SIW_LLP_STREAM && getpid() == sock->poller->owner)
		siw_llp_capture_stream_end_locking(sock, true, sock->aborted);
	if (!sock->capture)
		return;
	siw_capture_lock();
	capture_state_reset(sock->capture);
	siw_capture_unlock();
	free(sock->capture);
}
