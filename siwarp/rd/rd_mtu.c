/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_mtu.c - path MTU discovery (RFC 8899). Datagrams are sent with DF. No datagram is longer
 * than a length that is known to pass the path: 1200 octets, which every path carries, until a
 * longer probe was acknowledged. So no segment is sent in a datagram that the path may drop
 * silently because of its length.
 *
 * The kernel caches the MTUs that ICMP messages report, and forged messages can put wrong values
 * there. The cached value only selects the next length to probe, and the length to fall back to
 * after longer datagrams were lost.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/capture.h"
#include "base/settings.h"
#include "rd/rd_impl.h"

/* after a length did not pass, no longer datagram is probed for this time, ns */
#define SEARCH_SOON  (1 * SIW_RD_S)
#define SEARCH_AGAIN (10 * SIW_RD_S) /* minimum time between two searches, ns */
#define PROBE_TRIES  3
/* consecutive time-outs after which long datagrams are assumed not to pass */
#define PATH_RTOS 2
/*
 * long datagrams lost twice, while short ones pass, after which long ones are assumed not to pass
 */
#define RELOST	 3
#define SMALLEST 548 /* octets that pass every path: IPv4's 576 less headers */

/* MTUs of common links, octets. */
static const uint32_t common[] = { 65536, 32768, 16384, 9000, 4352, 1500, 1492, 1400, 1280 };

static uint32_t ip_udp_header_len(const struct siw_rd *rd)
{
	return rd->ipv6 ? 48 : 28;
}

/*
 * Returns the longest datagram, in octets, that both ends accept. Before the handshake: the length
 * that every endpoint accepts.
 */
static uint32_t max_datagram_len(const struct siw_rd_peer *peer)
{
	uint32_t most = peer->rd->ipv6 ? 65527 - 40 : 65507;
	uint32_t set = (uint32_t)siw_settings()->rd_max_datagram;
	uint32_t its = peer->peer_max_segment + SIW_RD_OVERHEAD;

	if (!peer->peer_max_segment)
		return SIW_RD_MIN_DATAGRAM;
	if (its < most)
		most = its;
	return set && set < most ? set : most;
}

static uint32_t datagram_len_for_mtu(const struct siw_rd_peer *peer, uint32_t mtu)
{
	uint32_t most = max_datagram_len(peer),
		 n = mtu > ip_udp_header_len(peer->rd) ? mtu - ip_udp_header_len(peer->rd) : 0;

	if (n > most)
		n = most;
	return n < SIW_RD_MIN_DATAGRAM ? SIW_RD_MIN_DATAGRAM : n;
}

static uint32_t datagram_len_for_route(const struct siw_rd_peer *peer)
{
	return datagram_len_for_mtu(peer, siw_llp_udp_route_mtu(peer->rd->sock, &peer->addr));
}

static void mtu_set_datagram_len(struct siw_rd_peer *peer, uint32_t octets)
{
	uint16_t n = (uint16_t)octets;

	atomic_store_explicit(&peer->datagram, n, memory_order_relaxed);
	peer->fragmented_len = n;
	peer->mtu_search_len = n < max_datagram_len(peer) ? n : UINT16_MAX;
	if (siw_rd_has_cc(peer))
		siw_rd_cc_set_path_mss(peer->cc, n, peer->near);
}

void siw_rd_mtu_init(struct siw_rd_peer *peer)
{
	peer->near = siw_llp_udp_route_mtu(peer->rd->sock, &peer->addr) >= SIW_LLP_LOOPBACK_MTU;
	mtu_set_datagram_len(peer, SIW_RD_MIN_DATAGRAM);
	/*
	 * ECN is not enabled for loopback, which sets no marks: reading the marks costs time for
	 * each datagram.
	 */
	if (!peer->near && !peer->rd->ecn)
		peer->rd->ecn = siw_llp_udp_enable_ecn(peer->rd->sock) == 0;
}

void siw_rd_mtu_handle_handshake_done(struct siw_rd_peer *peer)
{
	if (!peer->fragmented_len)
		return; /* the path carries only datagrams shorter than the minimum */
	mtu_set_datagram_len(peer, peer->near ? datagram_len_for_mtu(peer, SIW_LLP_LOOPBACK_MTU)
					      : siw_rd_max_datagram_octets(peer));
}

void siw_rd_mtu_handle_incarnation_end(struct siw_rd_peer *peer)
{
	peer->peer_max_segment = 0;
	if (peer->fragmented_len)
		mtu_set_datagram_len(peer, SIW_RD_MIN_DATAGRAM);
}

/* Returns the next common datagram size above this number of octets; 0: there is none. */
static uint32_t next_common_datagram_len(const struct siw_rd_peer *peer, uint32_t octets)
{
	for (size_t i = sizeof(common) / sizeof(common[0]); i-- > 0;)
		if (datagram_len_for_mtu(peer, common[i]) > octets)
			return datagram_len_for_mtu(peer, common[i]);
	return 0;
}

/* ---- shorter datagrams ----------------------------------------------------------------------- */

void siw_rd_mtu_reduce_datagram_len(struct siw_rd_peer *peer, uint32_t octets, uint64_t now)
{
	uint32_t to = SIW_RD_MIN_DATAGRAM, known;

	if (octets > peer->fragmented_len)
		return; /* datagrams of this length are already sent in fragments */
	siw_count(SIW_COUNTER_rd_mtu_lowered, 1);
	if (octets > SIW_RD_MIN_DATAGRAM) {
		known = datagram_len_for_route(peer);
		mtu_set_datagram_len(peer, known < octets ? known : to);
	} else {
		peer->fragmented_len = 0;
		peer->mtu_search_len = 0;
	}
	peer->probe = peer->long_losses = 0;
	peer->probe_ns = now + SEARCH_SOON;
}

void siw_rd_mtu_handle_retransmission_timeout(struct siw_rd_peer *peer, uint32_t octets,
					      uint64_t now)
{
	if (octets > peer->fragmented_len || octets <= SMALLEST)
		return;
	if (peer->rtos > PATH_RTOS ||
	    (octets > SIW_RD_MIN_DATAGRAM && datagram_len_for_route(peer) < octets))
		siw_rd_mtu_reduce_datagram_len(peer, octets, now);
}

void siw_rd_mtu_detect_smaller_mtu(struct siw_rd_peer *peer, uint32_t lost, uint32_t passed,
				   uint64_t now)
{
	if (passed > SIW_RD_MIN_DATAGRAM)
		peer->long_losses = 0;
	else if (lost > SIW_RD_MIN_DATAGRAM && lost <= peer->fragmented_len &&
		 ++peer->long_losses >= RELOST)
		siw_rd_mtu_reduce_datagram_len(peer, lost, now);
}

int siw_rd_send_in_ip_fragments(struct siw_rd_peer *peer, uint8_t *datagram, size_t len)
{
	struct iovec iov = { datagram, len };
	int r;

	siw_llp_udp_set_fragmentation_allowed(peer->rd->sock, true);
	r = siw_llp_udp_send(peer->rd->sock, &peer->addr, &iov, 1);
	siw_llp_udp_set_fragmentation_allowed(peer->rd->sock, false);
	return r;
}

/* ---- longer datagrams ------------------------------------------------------------------------ */

/*
 * Returns the next datagram length to probe, in octets: the kernel's route MTU, otherwise the next
 * common size. 0: no length is left.
 */
static uint32_t next_probe_len(const struct siw_rd_peer *peer)
{
	uint32_t size = peer->fragmented_len ? datagram_len_for_route(peer) : SIW_RD_MIN_DATAGRAM;

	if (size <= peer->fragmented_len || size >= peer->probe_limit)
		size = next_common_datagram_len(peer, peer->fragmented_len);
	return size < peer->probe_limit ? size : 0;
}

/* Sends a PROBE. Returns 0, or -EMSGSIZE if this host's own interface cannot send it. */
static int send_mtu_probe(struct siw_rd_peer *peer, uint32_t size, uint64_t now)
{
	struct siw_rd *rd = peer->rd;
	uint8_t class, *out = siw_rd_alloc_buffer(rd, size, &class);
	int r;

	peer->probe = (uint16_t)size;
	peer->probe_psn++;
	peer->probe_ns = now + 2 * peer->cc->rto;
	siw_rd_set_timer(peer, peer->probe_ns);
	if (!out)
		return 0; /* no memory for the PROBE: it counts as lost when its time is over */
	memset(out, 0, size);
	siw_rd_write_header(peer, SIW_DGRAM_RD_PROBE, peer->probe_psn, 0, now,
			    (struct siw_rd_wire *)out);
	siw_count(SIW_COUNTER_rd_probes, 1);
	r = siw_rd_send_datagram(rd, &peer->addr, out, size - SIW_DGRAM_CRC_LEN);
	siw_rd_buf_free(rd, out, class);
	return r == -EMSGSIZE ? r : 0;
}

static void mtu_send_next_probe(struct siw_rd_peer *peer, uint64_t now)
{
	uint32_t size;

	peer->probe_tries = 0;
	while ((size = next_probe_len(peer))) {
		if (!send_mtu_probe(peer, size, now))
			return;
		peer->probe_limit = (uint16_t)size;
	}
	peer->probe = 0;
	peer->probe_ns = now + SEARCH_AGAIN;
}

void siw_rd_mtu_probe_longer_datagram(struct siw_rd_peer *peer, uint64_t now)
{
	if (peer->state != SIW_RD_OPEN || peer->probe || now < peer->probe_ns)
		return;
	peer->probe_limit = UINT16_MAX;
	mtu_send_next_probe(peer, now);
}

void siw_rd_mtu_handle_lost_probe(struct siw_rd_peer *peer, uint64_t now)
{
	if (++peer->probe_tries < PROBE_TRIES && datagram_len_for_route(peer) >= peer->probe) {
		send_mtu_probe(peer, peer->probe, now);
		return;
	}
	peer->probe_limit = peer->probe;
	mtu_send_next_probe(peer, now);
}

void siw_rd_mtu_handle_probe_ack(struct siw_rd_peer *peer, uint32_t psn)
{
	if (!peer->probe || psn != peer->probe_psn)
		return;
	mtu_set_datagram_len(peer, peer->probe);
	mtu_send_next_probe(peer, peer->rd->now);
}
