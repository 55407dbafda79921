/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_wire.h - RDMAP's control octet, Read Request header and Terminate header
 * (RFC 5040 section 4), to and from values.
 *
 * What it does NOT do: judge.
 */
#ifndef SIW_RDMAP_WIRE_H
#define SIW_RDMAP_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "rdmap/rdmap.h"

/*
 * The control octet (figure 3), which is the first RsvdULP octet of DDP: RV 2 bits, reserved 2
 * bits, opcode 4 bits. RV is 1 in what we send; 0, the RDMA Consortium's, is as valid in what we
 * receive (RFC5040-4.1-08).
 */
#define SIW_RDMAP_RV	   1
#define SIW_RDMAP_RV_SHIFT 6
#define SIW_RDMAP_OP_MASK  0x0f

/* The untagged queues (figure 4). Queue 3 is for the responses of RFC 7306. */
#define SIW_RDMAP_QN_SEND      0
#define SIW_RDMAP_QN_READ      1
#define SIW_RDMAP_QN_TERMINATE 2

static inline uint8_t siw_rdmap_ctrl(uint8_t opcode)
{
	return (uint8_t)(SIW_RDMAP_RV << SIW_RDMAP_RV_SHIFT | opcode);
}

/*
 *   0        3  4         11  12       15  16       19  20        27
 *  +----------+-------------+-------------+-----------+-------------+
 *  | SinkSTag |   SinkTO    |  RDMARDSZ   |  SrcSTag  |    SrcTO    |   figure 6
 *  +----------+-------------+-------------+-----------+-------------+
 */
struct siw_rdmap_wire_read {
	uint32_t sink_stag;
	uint64_t sink_to;
	uint32_t rdmardsz;
	uint32_t src_stag;
	uint64_t src_to;
} __attribute__((packed));
#define SIW_RDMAP_READ_LEN 28
_Static_assert(sizeof(struct siw_rdmap_wire_read) == SIW_RDMAP_READ_LEN, "RFC 5040 figure 6");

/*
 *   0              1            2                   3     4             6
 *  +--------------+------------+-------------------+-----+-------------+------------+-------------+
 *  | layer, etype | error code | M D R, 5 reserved | res | segment len | DDP header | RDMA header |
 *  +--------------+------------+-------------------+-----+-------------+------------+-------------+
 *   figures 7 and 8                                        with M or D   with D       with R: 28
 */
struct siw_rdmap_wire_terminate {
	uint8_t layer_etype; /* layer in the upper four bits */
	uint8_t code;
	uint8_t hdrct;
	uint8_t reserved;
} __attribute__((packed));
#define SIW_RDMAP_TERM_M 0x80 /* DDP segment length valid */
#define SIW_RDMAP_TERM_D 0x40 /* DDP header included */
#define SIW_RDMAP_TERM_R 0x20 /* RDMAP header included */
_Static_assert(sizeof(struct siw_rdmap_wire_terminate) == 4, "RFC 5040 figure 8");

/*
 * The longest Terminate header: control, segment length, untagged DDP header, Read Request header.
 */
#define SIW_RDMAP_TERM_MAX (4 + 2 + 18 + SIW_RDMAP_READ_LEN)

#endif
