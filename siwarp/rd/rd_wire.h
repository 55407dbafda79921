/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_wire.h - the header of reliable datagrams, which follows the common header
 * (llp_dgram_wire.h):
 *
 *   12       16       20       24         28       30        32      34     35    36
 *  +--------+--------+--------+----------+--------+---------+-------+------+-----+
 *  | source | dest   | acknow-| response | credit | response| delay | IRD/ |flags|
 *  | epoch  | epoch  | ledged | ackn.    |        | credit  |       |reason|     |
 *  +--------+--------+--------+----------+--------+---------+-------+------+-----+
 *
 * An epoch numbers one incarnation of the pair of endpoints. DATA is numbered in two PSN spaces,
 * requests and responses; the PSN of the first DATA of either space equals the epoch.
 * - acknowledged, response acknowledged: the lowest PSN of each space that the sender of this
 *   datagram has not accepted yet.
 * - credit, response credit: the number of units of 1024 octets that may be outstanding from that
 *   PSN on. Each datagram uses at least one unit.
 * - delay: microseconds from the receipt of the newest datagram that this datagram acknowledges to
 *   the sending of this one; 65,535: that long or longer.
 *
 *   DATA       the segment
 *   ACK        struct siw_rd_ack and ranges. PSN: the sender's next request, or, if flag PROBED,
 *              the probe's number
 *   HELLO, CHALLENGE, ECHO, VERSIONS: rd_hello_wire.h
 *   PROBE      zeros; PSN numbers the probe
 *   BYE        nothing; the reason is in the place of the IRD
 *
 * What it does NOT do: validate header fields.
 */
#ifndef SIW_RD_WIRE_H
#define SIW_RD_WIRE_H

#include "llp/llp_dgram_wire.h"

struct siw_rd_wire {
	struct siw_dgram_wire llp;
	uint32_t source_epoch;
	uint32_t dest_epoch;
	uint32_t acknowledged[2]; /* acknowledged PSNs, indexed by enum siw_rd_space */
	uint16_t credit[2];
	uint16_t delay;
	union {
		uint8_t ird;
		uint8_t reason; /* in a BYE: the reason, enum siw_rd_reason */
	};
	uint8_t flags;
} __attribute__((packed));
#define SIW_RD_LEN 36
_Static_assert(sizeof(struct siw_rd_wire) == SIW_RD_LEN, "RD header");

#define SIW_RD_PROBED	0x01 /* ACK: acknowledges the PROBE whose PSN it contains */
#define SIW_RD_ANSWER	0x02 /* flag of a BYE that answers the peer's BYE */
#define SIW_RD_RESPONSE 0x04 /* DATA: its PSN belongs to the response space */
/* ACK: the oldest request that is not acknowledged waits for a receive */
#define SIW_RD_NOT_READY 0x08

/*
 * The body of an ACK. The ranges of the request space follow, then those of the response space,
 * each in ascending order.
 */
struct siw_rd_ack {
	uint32_t ce; /* datagrams of this incarnation received with the ECN mark CE */
	uint8_t rnr_timer;
	uint8_t ranges[2]; /* numbers of ranges, indexed by enum siw_rd_space */
	uint8_t zero;
} __attribute__((packed));
#define SIW_RD_ACK_LEN 8
_Static_assert(sizeof(struct siw_rd_ack) == SIW_RD_ACK_LEN, "ACK");

/*
 * One range of an ACK: gap PSNs are missing after the acknowledged PSN or after the previous range;
 * the next length PSNs were received.
 */
struct siw_rd_range {
	uint16_t gap, length;
} __attribute__((packed));
#define SIW_RD_RANGE_LEN 4
_Static_assert(sizeof(struct siw_rd_range) == SIW_RD_RANGE_LEN, "range");
#define SIW_RD_RANGES 256u /* maximum number of ranges in one ACK */

struct siw_rd_cookie {
	uint32_t made; /* time of creation on the challenger's clock, milliseconds */
	uint32_t zero[2];
	uint64_t hash;
} __attribute__((packed));
#define SIW_RD_COOKIE_LEN 20
_Static_assert(sizeof(struct siw_rd_cookie) == SIW_RD_COOKIE_LEN, "cookie");

#define SIW_RD_UNIT	  1024u	 /* octets of one unit of credit */
#define SIW_RD_WINDOW_MAX 16384u /* maximum number of datagrams outstanding in one space */
#define SIW_RD_OVERHEAD	  (SIW_RD_LEN + SIW_DGRAM_CRC_LEN)
/*
 * A datagram of this length, in octets, passes every path: IPv6's minimum MTU less its headers and
 * possible options.
 */
#define SIW_RD_MIN_DATAGRAM 1200u

#endif
