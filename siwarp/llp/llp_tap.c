/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_tap.c - from sockets to packets: whose they are, and TCP's numbers. */
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llp/llp_tap.h"

/* What the capture knows of a socket. Under the capture's lock. */
struct siw_llp_tap {
	uint32_t generation; /* of the capture that the rest is about */
	int interface;
	struct siw_addr local, peer;
	uint32_t next[2]; /* TCP's next sequence number: of the peer, of ours */
	bool ended[2];
	/*
	 * With both ends of a connection in this process its octets are written once, as on a
	 * wire: when they are sent. known is the peer's next number as the other end's tap has it.
	 */
	struct siw_llp_tap *twin;
	bool has_known;
	uint32_t known;
	struct siw_link all; /* of TCP's that have a generation */
};

static struct siw_link streams = { &streams, &streams };

enum { THEIRS, OURS };

static bool is_wildcard(const struct siw_addr *a)
{
	static const uint8_t zero[16];

	return a->family == AF_INET ? !memcmp(a->v4, zero, 4) : !memcmp(a->v6, zero, 16);
}

/* The address that this machine would use towards the peer, where the socket is bound to all. */
static void local_towards(struct siw_addr *local, const struct siw_addr *peer)
{
	int fd = socket(peer->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct siw_addr route = { 0 };
	socklen_t len = sizeof(route);

	if (fd < 0)
		return;
	if (connect(fd, (const struct sockaddr *)peer, siw_addr_len(peer)) == 0 &&
	    getsockname(fd, (struct sockaddr *)&route, &len) == 0) {
		route.port_be = local->port_be;
		*local = route;
	}
	close(fd);
}

static bool same_host(struct siw_addr a, struct siw_addr b)
{
	a.port_be = b.port_be = 0;
	return siw_addr_same(&a, &b) ||
	       /* All of 127/8 is the loopback interface's. */
	       (a.family == AF_INET && b.family == AF_INET && a.v4[0] == 127 && b.v4[0] == 127);
}

/* The number in the file of the interface that has this address, or whose group it is. */
static int interface_of(const struct siw_llp_sock *sock, const struct siw_addr *local)
{
	static struct siw_llp_interface all[64];
	char name[IF_NAMESIZE];
	int i, n;

	if (sock->ifindex && if_indextoname(sock->ifindex, name))
		return siw_capture_interface(name);
	n = siw_llp_interfaces(all, 64);
	for (i = 0; i < n; i++)
		for (uint32_t j = 0; j < all[i].n_addrs; j++)
			if (same_host(all[i].addrs[j], *local))
				return siw_capture_interface(all[i].name);
	return siw_capture_interface("unknown");
}

/*
 * A first sequence number that both ends work out alike, so that captures of the two, or the
 * two halves of a connection within one process, tell of one connection.
 */
static uint32_t first_number(const struct siw_addr *from, const struct siw_addr *to)
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

static void forget(struct siw_llp_tap *tap)
{
	if (tap->twin)
		tap->twin->twin = NULL;
	tap->twin = NULL;
	if (tap->all.next)
		siw_link_del(&tap->all);
}

static void find_twin(struct siw_llp_tap *tap)
{
	for (struct siw_link *l = streams.next; l != &streams; l = l->next) {
		struct siw_llp_tap *other = siw_container(l, struct siw_llp_tap, all);

		if (other->generation == tap->generation && !other->twin &&
		    siw_addr_same(&other->local, &tap->peer) &&
		    siw_addr_same(&other->peer, &tap->local)) {
			tap->twin = other;
			other->twin = tap;
			tap->known = other->next[OURS];
			tap->has_known = true;
			/* Mid-stream, what this end sent up to now is not written yet. */
			break;
		}
	}
	siw_link_add(&streams, &tap->all);
}

/* The socket's state for the capture that is on, NULL if none is; *fresh: it was not known yet. */
static struct siw_llp_tap *tap_of(struct siw_llp_sock *sock, bool *fresh)
{
	uint32_t generation = siw_capture_generation();
	struct siw_llp_tap *tap = sock->tap;

	*fresh = false;
	if (!generation)
		return NULL;
	if (!tap)
		sock->tap = tap = calloc(1, sizeof(*tap));
	if (!tap || tap->generation == generation)
		return tap;
	forget(tap);
	memset(tap, 0, sizeof(*tap));
	siw_link_init(&tap->all);
	if (siw_llp_local(sock, &tap->local))
		return NULL;
	tap->generation = generation;
	*fresh = true;
	return tap;
}

static void set_peer(struct siw_llp_sock *sock, struct siw_llp_tap *tap,
		     const struct siw_addr *peer)
{
	tap->peer = *peer;
	if (sock->udp) {
		struct siw_addr bound;

		if (siw_llp_local(sock, &bound) == 0)
			tap->local = bound;
		if (is_wildcard(&tap->local))
			local_towards(&tap->local, peer);
	}
	tap->interface = interface_of(sock, &tap->local);
}

void siw_llp_tap_datagram(struct siw_llp_sock *sock, uint64_t when, bool sent,
			  const struct siw_addr *peer, const struct iovec *iov, size_t skip,
			  size_t length, size_t missing)
{
	int saved = errno;
	bool fresh;
	struct siw_llp_tap *tap = tap_of(sock, &fresh);

	if (tap) {
		struct siw_capture_packet packet = {
			.when_ns = when,
			.sent = sent,
			.iov = iov,
			.skip = skip,
			.length = length,
			.missing = missing,
		};

		if (fresh || !siw_addr_same(&tap->peer, peer))
			set_peer(sock, tap, peer);
		packet.interface = tap->interface;
		packet.source = sent ? tap->local : tap->peer;
		packet.dest = sent ? tap->peer : tap->local;
		siw_capture_write(&packet);
	}
	errno = saved;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

static struct siw_llp_tap *stream_of(struct siw_llp_sock *sock)
{
	bool fresh;
	struct siw_addr peer;
	struct siw_llp_tap *tap = tap_of(sock, &fresh);

	if (!tap || !fresh)
		return tap;
	if (siw_llp_peer(sock, &peer)) {
		tap->generation = 0; /* it is gone already: next time anew */
		return NULL;
	}
	set_peer(sock, tap, &peer);
	/* The octet after a SYN's. */
	tap->next[OURS] = first_number(&tap->local, &tap->peer) + 1;
	tap->next[THEIRS] = first_number(&tap->peer, &tap->local) + 1;
	find_twin(tap);
	return tap;
}

/* A segment of one direction, which advances its number by the octets and the flags in it. */
static void put_segment(struct siw_llp_tap *tap, uint64_t when, int who, uint8_t flags,
			const struct iovec *iov, size_t skip, size_t length)
{
	struct siw_capture_packet packet = {
		.when_ns = when,
		.interface = tap->interface,
		.sent = who == OURS,
		.tcp = true,
		.flags = flags,
		.seq = tap->next[who],
		.ack = tap->next[!who],
		.source = who == OURS ? tap->local : tap->peer,
		.dest = who == OURS ? tap->peer : tap->local,
		.iov = iov,
		.skip = skip,
		.length = length,
	};

	tap->next[who] += (uint32_t)length + !!(flags & SIW_TCP_SYN) + !!(flags & SIW_TCP_FIN);
	/* Compared as sequence numbers are, which wrap. */
	if (who == THEIRS && tap->has_known && (int32_t)(tap->known - tap->next[THEIRS]) >= 0)
		return;
	siw_capture_write(&packet);
	if (who == OURS && tap->twin) {
		tap->twin->known = tap->next[OURS];
		tap->twin->has_known = true;
	}
}

void siw_llp_tap_connected(struct siw_llp_sock *sock, uint64_t when, bool initiator)
{
	int saved = errno, first = initiator ? OURS : THEIRS;
	struct siw_llp_tap *tap = stream_of(sock);

	if (tap && !tap->twin) {
		tap->next[OURS]--;
		tap->next[THEIRS]--;
		put_segment(tap, when, first, SIW_TCP_SYN, NULL, 0, 0);
		put_segment(tap, when, !first, SIW_TCP_SYN | SIW_TCP_ACK, NULL, 0, 0);
		put_segment(tap, when, first, SIW_TCP_ACK, NULL, 0, 0);
	}
	errno = saved;
}

void siw_llp_tap_octets(struct siw_llp_sock *sock, uint64_t when, bool sent,
			const struct iovec *iov, size_t length)
{
	int saved = errno;
	struct siw_llp_tap *tap = stream_of(sock);
	size_t at, n;

	for (at = 0; tap && at < length; at += n) {
		n = length - at < SIW_CAPTURE_TCP_MAX ? length - at : SIW_CAPTURE_TCP_MAX;
		put_segment(tap, when, sent ? OURS : THEIRS, SIW_TCP_PSH | SIW_TCP_ACK, iov, at, n);
	}
	errno = saved;
}

void siw_llp_tap_end(struct siw_llp_sock *sock, uint64_t when, bool sent, bool reset)
{
	int saved = errno, who = sent ? OURS : THEIRS;
	struct siw_llp_tap *tap = stream_of(sock);

	if (tap && reset && !(tap->ended[0] && tap->ended[1])) {
		put_segment(tap, when, who, SIW_TCP_RST | SIW_TCP_ACK, NULL, 0, 0);
		tap->ended[0] = tap->ended[1] = true;
	} else if (tap && !tap->ended[who]) {
		put_segment(tap, when, who, SIW_TCP_FIN | SIW_TCP_ACK, NULL, 0, 0);
		put_segment(tap, when, !who, SIW_TCP_ACK, NULL, 0, 0);
		tap->ended[who] = true;
	}
	errno = saved;
}

void siw_llp_tap_connected_now(struct siw_llp_sock *sock, bool initiator)
{
	siw_llp_tap_connected(sock, siw_capture_lock(), initiator);
	siw_capture_unlock();
}

void siw_llp_tap_end_now(struct siw_llp_sock *sock, bool sent, bool reset)
{
	siw_llp_tap_end(sock, siw_capture_lock(), sent, reset);
	siw_capture_unlock();
}

void siw_llp_tap_close(struct siw_llp_sock *sock)
{
	/* In a forked child the socket is the parent's too, and its connection does not end here. */
	if (siw_capture_on() && sock->kind == SIW_LLP_STREAM && getpid() == sock->port->owner)
		siw_llp_tap_end_now(sock, true, sock->aborted);
	if (!sock->tap)
		return;
	siw_capture_lock();
	forget(sock->tap);
	siw_capture_unlock();
	free(sock->tap);
}
