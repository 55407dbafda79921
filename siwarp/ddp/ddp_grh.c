/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_grh.c - the global route header before a received UD message, in the format of RoCE
 * v2.
 *
 *   IPv6   0                                                40
 *         +--------------------------------------------------+
 *         | IPv6 header                                      |
 *         +--------------------------------------------------+
 *   IPv4   0                        20                      40
 *         +-------------------------+------------------------+
 *         | zero                    | IPv4 header, checksum  |
 *         +-------------------------+------------------------+
 */
#include <endian.h>

#include "base/addr.h"
#include "ddp/ddp.h"

#define UDP_HEAD 8
#define HOPS	 64

struct ipv4 { /* RFC 791 section 3.1 */
	uint8_t version_ihl;
	uint8_t tos;
	uint16_t total_length;
	uint16_t identification;
	uint16_t flags_offset;
	uint8_t ttl;
	uint8_t protocol;
	uint16_t checksum;
	uint8_t source[4], dest[4];
};

struct ipv6 { /* RFC 8200 section 3 */
	uint32_t version_class_flow;
	uint16_t payload_length;
	uint8_t next_header;
	uint8_t hop_limit;
	uint8_t source[16], dest[16];
};

_Static_assert(sizeof(struct ipv4) == 20 && sizeof(struct ipv6) == SIW_DDP_GRH, "as on the wire");

/* RFC 1071: a ones' complement sum of 16-bit words needs no conversion of octet order. */
static uint16_t ipv4_checksum(const struct ipv4 *ip)
{
	uint16_t words[sizeof(*ip) / 2];
	uint32_t sum = 0;

	memcpy(words, ip, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

static void put_ipv4_grh(uint8_t *out, const struct siw_addr *source, const struct siw_addr *dest,
			 uint32_t octets)
{
	struct ipv4 ip = {
		.version_ihl = 0x45,
		.total_length = htobe16((uint16_t)(sizeof(ip) + UDP_HEAD + octets)),
		.ttl = HOPS,
		.protocol = IPPROTO_UDP,
	};

	memcpy(ip.source, source->v4, sizeof(ip.source));
	memcpy(ip.dest, dest->v4, sizeof(ip.dest));
	ip.checksum = ipv4_checksum(&ip);
	memcpy(out, &ip, sizeof(ip));
}

void siw_ddp_grh_put(uint8_t grh[SIW_DDP_GRH], const struct siw_addr *source,
		     const struct siw_addr *dest, uint32_t octets)
{
	struct ipv6 ip = {
		.version_class_flow = htobe32(6u << 28),
		.payload_length = htobe16((uint16_t)(UDP_HEAD + octets)),
		.next_header = IPPROTO_UDP,
		.hop_limit = HOPS,
	};

	if (source->family == AF_INET) {
		memset(grh, 0, SIW_DDP_GRH - sizeof(struct ipv4));
		put_ipv4_grh(grh + SIW_DDP_GRH - sizeof(struct ipv4), source, dest, octets);
		return;
	}
	memcpy(ip.source, source->v6, sizeof(ip.source));
	memcpy(ip.dest, dest->v6, sizeof(ip.dest));
	memcpy(grh, &ip, sizeof(ip));
}
