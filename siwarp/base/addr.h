/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/addr.h - functions on struct siw_addr, an IP address with a port. They use no sockets. */
#ifndef SIW_BASE_ADDR_H
#define SIW_BASE_ADDR_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include <siwarp/types.h>

_Static_assert(sizeof(struct siw_addr) == sizeof(struct sockaddr_in6), "sockaddr_in6");
_Static_assert(offsetof(struct siw_addr, v4) == offsetof(struct sockaddr_in, sin_addr), "v4");
_Static_assert(offsetof(struct siw_addr, v6) == offsetof(struct sockaddr_in6, sin6_addr), "v6");
_Static_assert(offsetof(struct siw_addr, scope) == offsetof(struct sockaddr_in6, sin6_scope_id),
	       "scope");

/* Length in octets of the address as a struct sockaddr; 0 if no address is set. */
static inline socklen_t siw_addr_len(const struct siw_addr *a)
{
	return a->family == AF_INET    ? sizeof(struct sockaddr_in)
	       : a->family == AF_INET6 ? sizeof(struct sockaddr_in6)
				       : 0;
}

static inline uint16_t siw_addr_port(const struct siw_addr *a)
{
	return ntohs(a->port_be);
}

/* Returns whether the address is a multicast group. */
static inline bool siw_addr_is_group(const struct siw_addr *a)
{
	return a->family == AF_INET ? a->v4[0] >> 4 == 14
				    : a->family == AF_INET6 && a->v6[0] == 0xff;
}

/* Returns whether family, address and port are equal. Scopes are compared only if both are set. */
static inline bool siw_addr_same(const struct siw_addr *a, const struct siw_addr *b)
{
	if (a->family != b->family || a->port_be != b->port_be)
		return false;
	if (a->family == AF_INET)
		return memcmp(a->v4, b->v4, 4) == 0;
	return memcmp(a->v6, b->v6, 16) == 0 && (a->scope == b->scope || !a->scope || !b->scope);
}

/* Returns whether family and address are equal, like siw_addr_same, but ignores the ports. */
static inline bool siw_addr_same_host(const struct siw_addr *a, const struct siw_addr *b)
{
	struct siw_addr x = *a;

	x.port_be = b->port_be;
	return siw_addr_same(&x, b);
}

/*
 * Returns whether the address is an IPv6 address valid on one link only (RFC 4291 section 2.5.6).
 */
static inline bool siw_addr_is_link_local(const struct siw_addr *a)
{
	return a->family == AF_INET6 && ((a->v6[0] == 0xfe && a->v6[1] >> 6 == 2) ||
					 (a->v6[0] == 0xff && (a->v6[1] & 15) == 2));
}

/*
 * Converts an address to a GID: an IPv4 address becomes an IPv4-mapped IPv6 address (RFC 4291
 * section 2.5.5.2).
 */
static inline void siw_addr_to_gid(const struct siw_addr *a, uint8_t gid[16])
{
	if (a->family == AF_INET6) {
		memcpy(gid, a->v6, 16);
		return;
	}
	memset(gid, 0, 10);
	memset(gid + 10, 0xff, 2);
	memcpy(gid + 12, a->v4, 4);
}

/* Converts a GID to an address with port and scope 0. */
static inline struct siw_addr siw_addr_of_gid(const uint8_t gid[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct siw_addr addr = { .family = AF_INET6 };

	if (memcmp(gid, mapped, 12) == 0) {
		addr.family = AF_INET;
		memcpy(addr.v4, gid + 12, 4);
	} else {
		memcpy(addr.v6, gid, 16);
	}
	return addr;
}

/* Returns whether the address is a loopback address. */
static inline bool siw_addr_is_loopback(const struct siw_addr *a)
{
	static const uint8_t one[16] = { [15] = 1 };

	return a->family == AF_INET ? a->v4[0] == 127 : memcmp(a->v6, one, 16) == 0;
}

#endif
