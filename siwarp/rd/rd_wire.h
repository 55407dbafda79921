/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_wire.h - the header of reliable datagrams, behind the common one (dgram_wire.h):
 *
 *   12            16            20            24        26    27    28
 *  +-------------+-------------+-------------+---------+-----+-----+
 *  |   source    | destination | acknowledged|  credit | IRD |flags|
 *  |    epoch    |    epoch    |             |         |     |     |
 *  +-------------+-------------+-------------+---------+-----+-----+
 *
 * An epoch numbers one incarnation of an endpoint; the PSN of its first DATA equals the epoch.
 * acknowledged: the first PSN that the sender of this datagram has not taken yet.
 * credit: so many units of 1024 octets may be outstanding from there on. Each datagram takes at
 * least one unit.
 *
 *   DATA       the segment
 *   ACK        a bitmap, up to 512 octets: bit i (of octet i / 8, from the lowest) is PSN
 *              acknowledged + i. PSN: the sender's next one, or, if flag PROBED, the probe's number
 *   HELLO      20 octets of zeros: it is as long as the CHALLENGE
 *   CHALLENGE  a cookie: the sender's time and a keyed hash
 *   ECHO       the same cookie
 *   PROBE      zeros; PSN numbers the probe
 *   BYE        nothing
 *
 * What it does NOT do: check what it reads.
 */
#ifndef SIW_RD_WIRE_H
#define SIW_RD_WIRE_H

#include "base/dgram_wire.h"

struct siw_rd_wire {
	struct siw_dgram_wire llp;
	uint32_t source_epoch;
	uint32_t dest_epoch;
	uint32_t acknowledged;
	uint16_t credit;
	uint8_t ird;
	uint8_t flags;
} __attribute__((packed));
#define SIW_RD_LEN 28
_Static_assert(sizeof(struct siw_rd_wire) == SIW_RD_LEN, "RD header");

#define SIW_RD_PROBED 0x01 /* ACK: acknowledges the PROBE with that PSN */
/* BYE: the epochs are unknown here; without it: the endpoint was closed */
#define SIW_RD_UNKNOWN 0x02

struct siw_rd_cookie {
	uint32_t made; /* time on the challenger's clock, milliseconds */
	uint32_t zero[2];
	uint64_t hash;
} __attribute__((packed));
#define SIW_RD_COOKIE_LEN 20
_Static_assert(sizeof(struct siw_rd_cookie) == SIW_RD_COOKIE_LEN, "cookie");

#define SIW_RD_UNIT	  1024u /* octets of one unit of credit */
#define SIW_RD_WINDOW_MAX 4096u /* most datagrams outstanding, and bits of the bitmap */
#define SIW_RD_OVERHEAD	  (SIW_RD_LEN + SIW_DGRAM_CRC_LEN)
/* Passes every path: IPv6's minimum MTU less its headers and possible options. */
#define SIW_RD_LEAST_DATAGRAM 1200u

#endif
