/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/types.h> - plain values that every layer and every user shares:
 * an address, a scatter/gather element. No functions but the two that read and
 * print an address.
 */
#ifndef SIWARP_TYPES_H
#define SIWARP_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cffi: begin */

/*
 * An IPv4 or IPv6 address with a port. The octets lie as in struct sockaddr_in
 * (family, port, v4) and struct sockaddr_in6 (family, port, zero v4 in the place
 * of the flow label, v6, scope), so a pointer to one can be handed to a socket
 * call as it is; the port is therefore in network byte order.
 * family: AF_INET, AF_INET6, or 0 for "none given".
 */
struct siw_addr {
	uint16_t family;
	uint16_t port_be;
	uint8_t v4[4];
	uint8_t v6[16];
	uint32_t scope;
};

/* A piece of registered memory: as struct ibv_sge. length is in octets. */
struct siw_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/* Datagrams of one source address (port 0) dropped without a receive: siw_query_drops. */
struct siw_source_drops {
	struct siw_addr source;
	uint64_t drops; /* datagrams */
	uint64_t over;	/* up to so many of these may be of sources that are not stored any more */
};

/* A peer of reliable datagrams with whom a message waits for a receive: siw_query_waits. */
struct siw_rd_wait {
	struct siw_addr peer;
	uint64_t ms; /* for so long */
	int here;    /* 1: the peer's message for a receive of this end; 0: the other way round */
};

/* A peer of reliable datagrams that was met as another instance: siw_poll_restarts. */
struct siw_rd_restart {
	struct siw_addr peer;
	uint64_t instance; /* its own of now, as completions have it; 0: it tells none */
};

/*
 * Reads a numeric address ("127.0.0.1", "::1", "fe80::1%eth0") into *out with the port
 * (host byte order). Returns 0, or -EINVAL if the text is no numeric address.
 */
int siw_addr_parse(const char *text, uint16_t port, struct siw_addr *out);

/* Writes "1.2.3.4:5" or "[::1]:5" into text (size octets, 64 always suffice). Returns text. */
char *siw_addr_format(const struct siw_addr *addr, char *text, size_t size);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
