/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_rd_mtu.c - how long a datagram may be. Datagrams are not fragmented (DF): the route's MTU is where
 * it starts, what does not pass lowers it, and probes find out when more passes again.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/capture.h"
#include "base/settings.h"
#include "llp/llp_rd_impl.h"

#define PROBE_AFTER (10 * SIW_RD_S) /* a longer one is tried so long after it was lowered */
#define PROBE_TRIES 3

/* Octets of MTU that paths have. */
static const uint32_t common[] = { 65536, 32768, 16384, 9000, 4352, 1500, 1492, 1400, 1280 };

static uint32_t headers(const struct siw_llp_rd *rd)
{
	return rd->ipv6 ? 48 : 28;
}

static uint32_t longest(const struct siw_llp_rd *rd)
{
	uint32_t most = rd->ipv6 ? 65527 - 40 : 65507;
	uint32_t set = (uint32_t)siw_settings()->rd_datagram;

	return set && set < most ? set : most;
}

static uint32_t datagram_of(const struct siw_llp_rd *rd, uint32_t mtu)
{
	uint32_t most = longest(rd), n = mtu > headers(rd) ? mtu - headers(rd) : 0;

	if (n > most)
		n = most;
	return n < SIW_RD_LEAST_DATAGRAM ? SIW_RD_LEAST_DATAGRAM : n;
}

static void fragments(const struct siw_llp_rd *rd, bool may)
{
	if (rd->ipv6)
		siw_llp_option(rd->sock->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER,
			       may ? IPV6_PMTUDISC_DONT : IPV6_PMTUDISC_DO);
	else
		siw_llp_option(rd->sock->fd, IPPROTO_IP, IP_MTU_DISCOVER,
			       may ? IP_PMTUDISC_DONT : IP_PMTUDISC_DO);
}

void siw_llp_rd_mtu_socket(struct siw_llp_rd *rd)
{
	fragments(rd, false);
}

/* What the kernel knows of the way there: 0 nothing. */
static uint32_t route_mtu(const struct siw_llp_rd *rd, const struct siw_addr *to)
{
	int fd = siw_llp_socket(to->family, SOCK_DGRAM), mtu = 0;
	socklen_t len = sizeof(mtu);

	if (fd < 0)
		return 0;
	if (connect(fd, (const struct sockaddr *)to, siw_addr_len(to)) ||
	    getsockopt(fd, rd->ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, rd->ipv6 ? IPV6_MTU : IP_MTU, &mtu,
		       &len))
		mtu = 0;
	siw_llp_fd_close(fd);
	return mtu > 0 ? (uint32_t)mtu : 0;
}

void siw_llp_rd_mtu_start(struct siw_llp_rd_peer *peer)
{
	uint32_t mtu = route_mtu(peer->rd, &peer->addr);

	peer->mtu_max = datagram_of(peer->rd, mtu ? mtu : 1500);
	peer->datagram = peer->mtu_max;
}

/* The next common size below this one, above it: 0 none. */
static uint32_t below(const struct siw_llp_rd *rd, uint32_t octets)
{
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		if (datagram_of(rd, common[i]) < octets)
			return datagram_of(rd, common[i]);
	return 0;
}

static uint32_t above(const struct siw_llp_rd *rd, uint32_t octets)
{
	for (size_t i = sizeof(common) / sizeof(common[0]); i-- > 0;)
		if (datagram_of(rd, common[i]) > octets)
			return datagram_of(rd, common[i]);
	return 0;
}

void siw_llp_rd_mtu_lower(struct siw_llp_rd_peer *peer, uint32_t octets, uint64_t now)
{
	uint32_t to;

	if (octets > peer->datagram)
		return; /* known, and it goes in fragments */
	to = below(peer->rd, peer->datagram);
	if (!to)
		return;
	siw_count(SIW_COUNTER_rd_mtu_lowered, 1);
	__atomic_store_n(&peer->datagram, to, __ATOMIC_RELAXED);
	peer->probe = 0;
	peer->probe_ns = now + PROBE_AFTER;
	siw_llp_rd_due(peer, peer->probe_ns);
}

int siw_llp_rd_mtu_send(struct siw_llp_rd_peer *peer, uint8_t *datagram, size_t len)
{
	struct iovec iov = { datagram, len };
	int r;

	fragments(peer->rd, true);
	r = siw_llp_udp_send(peer->rd->sock, &peer->addr, &iov, 1);
	fragments(peer->rd, false);
	return r;
}

/* ---- probes ----------------------------------------------------------------------------------------- */

void siw_llp_rd_mtu_probe(struct siw_llp_rd_peer *peer, uint64_t now)
{
	struct siw_llp_rd *rd = peer->rd;
	uint8_t class, *out;
	uint32_t size = above(rd, peer->datagram);

	peer->probe_ns = SIW_RD_NEVER;
	if (size > peer->mtu_max)
		size = peer->mtu_max;
	if (peer->state != SIW_RD_OPEN || size <= peer->datagram)
		return;
	peer->probe_ns = now + PROBE_AFTER;
	out = siw_llp_rd_buf(rd, size, &class);
	if (!out)
		return;
	memset(out, 0, size);
	peer->probe = size;
	siw_llp_rd_header(peer, SIW_DGRAM_RD_PROBE, ++peer->probe_psn, 0,
			  (struct siw_rd_wire *)out);
	siw_count(SIW_COUNTER_rd_probes, 1);
	siw_llp_rd_send(rd, &peer->addr, out, size - SIW_DGRAM_CRC_LEN);
	siw_llp_rd_buf_free(rd, out, class);
}

void siw_llp_rd_mtu_probed(struct siw_llp_rd_peer *peer, uint32_t psn)
{
	if (psn != peer->probe_psn || !peer->probe)
		return;
	__atomic_store_n(&peer->datagram, peer->probe, __ATOMIC_RELAXED);
	peer->probe = 0;
	peer->probe_ns = SIW_RD_NEVER;
	if (peer->datagram == peer->mtu_max)
		return;
	peer->probe_ns = peer->rd->now + SIW_RD_S / 10;
	siw_llp_rd_due(peer, peer->probe_ns);
}
