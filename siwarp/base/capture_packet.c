/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/capture_packet.c - builds the Ethernet, IP, TCP and UDP headers of captured packets. */
#include <endian.h>

#include "base/addr.h"
#include "base/capture_impl.h"
#include "base/guard.h"

#define ETHERNET 14
#define IPV4	 20
#define IPV6	 40
#define UDP	 8
#define TCP	 20
#define SYN_MORE 8 /* octets of TCP options in a SYN */

static void store_be16(uint8_t *at, uint32_t v)
{
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
}

static void packet_put32(uint8_t *at, uint32_t v)
{
	store_be16(at, v >> 16);
	store_be16(at + 2, v);
}

/*
 * Adds len octets to an Internet checksum without folding the carries. Only the last call for a
 * checksum may have an odd len.
 */
static uint64_t add_to_checksum(uint64_t sum, const uint8_t *at, size_t len)
{
	size_t i;

	for (i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)(at[i] << 8 | at[i + 1]);
	if (i < len)
		sum += (uint32_t)(at[i] << 8);
	return sum;
}

static uint16_t packet_fold_checksum(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/*
 * Writes the MAC address that corresponds to an IP address: a locally administered address that
 * contains the IP address, or the MAC address of the multicast group (RFC 1112 section 6.4, RFC
 * 2464 section 7).
 */
static void write_mac_address(uint8_t *at, const struct siw_addr *a)
{
	if (siw_addr_is_group(a) && a->family == AF_INET) {
		const uint8_t mac[6] = { 1, 0, 0x5e, a->v4[1] & 0x7f, a->v4[2], a->v4[3] };

		memcpy(at, mac, sizeof(mac));
		return;
	}
	if (siw_addr_is_group(a)) {
		at[0] = at[1] = 0x33;
		memcpy(at + 2, a->v6 + 12, 4);
		return;
	}
	at[0] = 2;
	at[1] = 0;
	memcpy(at + 2, a->family == AF_INET ? a->v4 : a->v6 + 12, 4);
}

static size_t write_ip_header(uint8_t *at, const struct siw_capture_packet *p, size_t len)
{
	uint8_t protocol = p->tcp ? IPPROTO_TCP : IPPROTO_UDP;

	if (p->source.family == AF_INET) {
		memset(at, 0, IPV4);
		at[0] = 0x45;
		store_be16(at + 2, (uint32_t)(IPV4 + len));
		at[6] = 0x40; /* don't fragment: allows an identification of 0 */
		at[8] = 64;
		at[9] = protocol;
		memcpy(at + 12, p->source.v4, 4);
		memcpy(at + 16, p->dest.v4, 4);
		store_be16(at + 10, packet_fold_checksum(add_to_checksum(0, at, IPV4)));
		return IPV4;
	}
	memset(at, 0, 8);
	at[0] = 0x60;
	store_be16(at + 4, (uint32_t)len);
	at[6] = protocol;
	at[7] = 64;
	memcpy(at + 8, p->source.v6, 16);
	memcpy(at + 24, p->dest.v6, 16);
	return IPV6;
}

static size_t write_udp_header(uint8_t *at, const struct siw_capture_packet *p)
{
	store_be16(at, siw_addr_port(&p->source));
	store_be16(at + 2, siw_addr_port(&p->dest));
	store_be16(at + 4, (uint32_t)(UDP + p->length + p->missing));
	store_be16(at + 6, 0);
	return UDP;
}

/*
 * Writes the TCP header. The SYN announces the maximum segment size and window scale, so that
 * analyzers do not report large flights of data as errors.
 */
static size_t write_tcp_header(uint8_t *at, const struct siw_capture_packet *p)
{
	size_t len = TCP + (p->flags & SIW_TCP_SYN ? SYN_MORE : 0);

	store_be16(at, siw_addr_port(&p->source));
	store_be16(at + 2, siw_addr_port(&p->dest));
	packet_put32(at + 4, p->seq);
	packet_put32(at + 8, p->flags & SIW_TCP_ACK ? p->ack : 0);
	at[12] = (uint8_t)(len / 4 << 4);
	at[13] = p->flags;
	store_be16(at + 14, 65535);
	packet_put32(at + 16, 0);
	if (p->flags & SIW_TCP_SYN) {
		packet_put32(at + TCP, 0x02040000 | SIW_CAPTURE_TCP_MAX); /* MSS */
		packet_put32(at + TCP + 4, 0x0103030e); /* no-operation, window scale 14 */
	}
	return len;
}

static void copy_packet_payload(uint8_t *out, const struct siw_capture_packet *p)
{
	const struct iovec *iov = p->iov;
	size_t skip = p->skip, left = p->length;

	while (left) {
		size_t n;

		for (; skip >= iov->iov_len; iov++)
			skip -= iov->iov_len;
		n = iov->iov_len - skip < left ? iov->iov_len - skip : left;
		/* Memory that the program has unmapped since the send is captured as zeros. */
		if (siw_guard_read(out, (const uint8_t *)iov->iov_base + skip, n))
			memset(out, 0, n);
		out += n;
		left -= n;
		skip += n;
	}
}

/* Returns the TCP or UDP checksum. The pseudo-headers of IPv4 and IPv6 have the same sum. */
static uint16_t packet_checksum(const struct siw_capture_packet *p, const uint8_t *segment,
				size_t len)
{
	uint64_t sum = len + (p->tcp ? IPPROTO_TCP : IPPROTO_UDP);
	bool v4 = p->source.family == AF_INET;

	sum = add_to_checksum(sum, v4 ? p->source.v4 : p->source.v6, v4 ? 4 : 16);
	sum = add_to_checksum(sum, v4 ? p->dest.v4 : p->dest.v6, v4 ? 4 : 16);
	return packet_fold_checksum(add_to_checksum(sum, segment, len));
}

size_t siw_capture_packet_build(const struct siw_capture_packet *p, uint8_t *out)
{
	size_t ip = p->source.family == AF_INET ? IPV4 : IPV6;
	uint8_t *segment = out + ETHERNET + ip;
	size_t len = p->tcp ? write_tcp_header(segment, p) : write_udp_header(segment, p);

	write_mac_address(out, &p->dest);
	write_mac_address(out + 6, &p->source);
	store_be16(out + 12, ip == IPV4 ? 0x0800 : 0x86dd);
	copy_packet_payload(segment + len, p);
	len += p->length;
	write_ip_header(out + ETHERNET, p, len + p->missing);
	/* The checksum of a truncated datagram is unknown; 0 means no checksum. */
	if (!p->missing) {
		uint16_t sum = packet_checksum(p, segment, len);

		/* In UDP 0 means no checksum, so a computed sum of 0 is written as 0xffff. */
		store_be16(segment + (p->tcp ? 16 : 6), sum || p->tcp ? sum : 0xffff);
	}
	return ETHERNET + ip + len;
}
