/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect_sidr_wire.h - the frames of service id resolution for UD (spec/cm-udp.md). Each
 * frame is one datagram; all have the same length and are in network byte order:
 *
 *    0                   1                   2                   3
 *    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                        "SIWU" (magic)                         |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |    version    |     type      |    status     | octets of data|
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                    the query's id (8 octets)                  |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                      cookie (8 octets)                        |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                              QPN                              |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                             Q_Key                             |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                       GID (16 octets)                         |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |             private data, then zeros (180 octets)             |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   | CRC32C of the octets above, least significant octet first     |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *
 * What this does NOT do: handle sockets, timers or the matching of answers to queries.
 */
#ifndef SIW_CONNECT_SIDR_WIRE_H
#define SIW_CONNECT_SIDR_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <siwarp/types.h>

#define SIW_SIDR_FRAME	     232 /* octets of every frame */
#define SIW_SIDR_DATA	     180 /* maximum octets of private data in a query */
#define SIW_SIDR_ANSWER_DATA 136 /* maximum octets of private data in an answer or a refusal */

enum siw_sidr_type {
	SIW_SIDR_QUERY = 1,
	SIW_SIDR_ANSWER = 2,
	SIW_SIDR_REFUSAL = 3,
	SIW_SIDR_COOKIE = 4, /* the querying end shall repeat its query with this cookie */
};

/* The contents of a frame. Fields that the type does not use are zero. */
struct siw_sidr_frame {
	uint8_t type;	/* enum siw_sidr_type */
	uint8_t status; /* of a refusal: enum siw_sidr_status of connect_sidr.h */
	uint8_t data_len;
	uint64_t id, cookie;
	uint32_t qpn, qkey; /* in an answer: QPN and Q_Key of the queue pair */
	/* in an answer: address, without port, at which the queue pair receives */
	struct siw_addr addr;
	uint8_t data[SIW_SIDR_DATA];
};

void siw_sidr_build_frame(const struct siw_sidr_frame *frame, uint8_t out[SIW_SIDR_FRAME]);
/*
 * Parses a frame. Returns false if the octets are not a valid frame; they were counted as dropped.
 */
bool siw_sidr_parse_frame(const uint8_t *in, size_t len, struct siw_sidr_frame *frame);

/* Number of leading octets of a frame that include its id. */
#define SIW_SIDR_QUOTED 16
/*
 * Returns the id of a frame of which only the first octets are available, as quoted by ICMP; 0: the
 * octets are not a frame.
 */
uint64_t siw_sidr_query_id_of_icmp_quote(const uint8_t *in, size_t len);

#endif
