/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_dgram_wire.h - the datagram LLP header of datagram-iWARP (spec/datagram-iwarp.md, "LLP
 * header"), with which every datagram except a plain UD segment starts.
 *
 *   0         1         2         3         4           8           12
 *  +---------+---------+---------+---------+-----------+-----------+
 *  | type|v|2|  flags  |  dest   | source  |   Q_Key   |    PSN    |
 *  |  4 |2|2 |         |  index  |  index  |           |           |
 *  +---------+---------+---------+---------+-----------+-----------+
 *
 * The low two bits of the first octet are 2; in a DDP segment these bits are the DDP version, 1. v
 * is the LLP version. An index identifies a queue pair on its socket. The data after the header
 * depends on the type. The last four octets of the datagram are the CRC32C of all octets before
 * them, least significant octet first, or zero between two ends that have agreed to use no CRC.
 *
 * This header does not validate datagrams.
 */
#ifndef SIW_LLP_DGRAM_WIRE_H
#define SIW_LLP_DGRAM_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>

#define SIW_DGRAM_MARK	    0x02 /* mark of an LLP header, in the low two bits of the first octet */
#define SIW_DGRAM_MARK_MASK 0x03
#define SIW_DGRAM_VERSION   1 /* LLP version, in the next two bits of the first octet */
#define SIW_DGRAM_CRC_LEN   4

/* Datagram types. RD types are followed by the rest of the RD header. */
enum siw_dgram_type {
	SIW_DGRAM_UC = 1,	 /* a DDP segment on an unreliable connection */
	SIW_DGRAM_RECORD = 2,	 /* UD Write-Record: a tagged DDP segment */
	SIW_DGRAM_UC_REPORT = 3, /* reports which datagrams of an unreliable connection arrived */
	SIW_DGRAM_RD_DATA = 4,	 /* a numbered DDP segment, with an acknowledgement */
	SIW_DGRAM_RD_ACK = 5,	 /* a pure acknowledgement */
	SIW_DGRAM_RD_HELLO = 6,	 /* requests a cookie */
	SIW_DGRAM_RD_CHALLENGE = 7, /* contains the cookie; the sender keeps no state */
	SIW_DGRAM_RD_ECHO = 8,	    /* returns the cookie; the receiver may store peer state */
	SIW_DGRAM_RD_PROBE = 9,	    /* tests whether a datagram of this length arrives */
	SIW_DGRAM_RD_BYE = 10,	    /* the sender is closed, or does not know the epochs */
	SIW_DGRAM_RD_VERSIONS = 11, /* reply to a HELLO of an unknown version */
};

struct siw_dgram_wire {
	uint8_t type; /* type << 4 | version << 2 | SIW_DGRAM_MARK */
	uint8_t flags;
	uint8_t dest_index;
	uint8_t source_index;
	uint32_t qkey;
	uint32_t psn; /* sequence number of the datagram; its meaning depends on the type */
} __attribute__((packed));
#define SIW_DGRAM_LEN 12
_Static_assert(sizeof(struct siw_dgram_wire) == SIW_DGRAM_LEN, "LLP header");

static inline uint8_t siw_dgram_first(enum siw_dgram_type type)
{
	return (uint8_t)(type << 4 | SIW_DGRAM_VERSION << 2 | SIW_DGRAM_MARK);
}

/*
 * Returns whether a datagram with this first octet has the LLP header, rather than being a plain
 * DDP segment.
 */
static inline bool siw_dgram_is(uint8_t first)
{
	return (first & SIW_DGRAM_MARK_MASK) == SIW_DGRAM_MARK;
}

#endif
