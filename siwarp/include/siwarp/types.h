/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/types.h> - value types shared by all layers and users: addresses, scatter/gather elements
 * and entries of query results. The only functions parse and format an address.
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
 * An IPv4 or IPv6 address with a port. The layout matches struct sockaddr_in (family, port, v4) and
 * struct sockaddr_in6 (family, port, v4 = 0 in place of the flow label, v6, scope), so that a
 * pointer to a struct siw_addr can be passed to socket calls. The port is therefore in network byte
 * order. family is AF_INET, AF_INET6, or 0 for no address.
 */
struct siw_addr {
	uint16_t family;
	uint16_t port_be;
	uint8_t v4[4];
	uint8_t v6[16];
	uint32_t scope;
};

/*
 * A scatter/gather element, that is, a range of registered memory, as struct ibv_sge. length is in
 * octets.
 */
struct siw_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/*
 * Datagrams of one source address (port 0) that were dropped because no receive was posted.
 * Returned by siw_query_drops.
 */
struct siw_source_drops {
	struct siw_addr source;
	uint64_t drops; /* number of dropped datagrams */
	uint64_t over;	/* at most this number of drops were datagrams of other sources */
};

/* An RD peer with a message that waits for a receive. Returned by siw_query_waits. */
struct siw_rd_wait {
	struct siw_addr peer;
	uint64_t ms; /* waiting time so far in milliseconds */
	int here;    /* 1: the message waits at this end; 0: at the peer */
};

/* An RD peer that has restarted as another instance. Returned by siw_poll_restarts. */
struct siw_rd_restart {
	struct siw_addr peer;
	uint64_t instance; /* current instance of the peer; 0: the peer reports no instance */
};

/*
 * Parses a numeric address ("127.0.0.1", "::1", "fe80::1%eth0") into *out, together with port (host
 * byte order). Returns 0, or -EINVAL if text is not a numeric address.
 */
int siw_addr_parse(const char *text, uint16_t port, struct siw_addr *out);

/*
 * Formats addr as "1.2.3.4:5" or "[::1]:5" into text, of size octets (64 always suffice). Returns
 * text.
 */
char *siw_addr_format(const struct siw_addr *addr, char *text, size_t size);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
